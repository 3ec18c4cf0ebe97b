"""Plans of products with row indices: their configuration, and whether A's rows are copied first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from ...dtypes import dtype
from ...errors import LayoutError, OperandError
from ...kernels.epilogue.chain import Activation, Epilogue, VectorScale
from ...kernels.indexed.rows import IndexedRows, RowIndices
from ...kernels.operands.gated import HALVES
from ...kernels.ragged import Ragged, masked_rows
from ...kernels.sm90.choose.occupancy import ClusterOccupancy
from ...kernels.sm90.choose.rules import Sm90Choice, in_place, near_depth, near_rows
from ...kernels.sm90.choose.scaled_grouped import usual_config
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.indexed.choose import copies_first, indexed_config
from ...kernels.sm90.plan import Sm90Plan
from ..scaled_grouped.by_mma import MmaProduct
from ..scaled_grouped.grouped import COUNTS, OFFSETS
from ..tuned_store import lookup_with_parts

WEIGHTS = "row_weights"


class IndexedShape(NamedTuple):
    """The properties of a call that determine its plan.

    sizes   M, N, K, rows of A and of C; N is C's columns
    types   of A, B and C, with B's order
    groups  of rows, or matrices of a batch; 0 for neither
    places  the GPU's cluster occupancy; `gpu` is its name
    kinds   the types of the index vectors, of offsets and of counts, by name
    """

    sizes: tuple[int, int, int, int, int]
    types: tuple[str, str, str]
    groups: int
    kinds: tuple[tuple[str, str], ...]
    activation: str | None
    gate: str | None
    weighted: bool
    places: ClusterOccupancy
    gpu: str


def mma_product(of: IndexedShape, copies: bool | None) -> MmaProduct:
    """All that decides on a plan by mma.sync.

    Its kernel gathers rows as it copies them, and scatters rows beside a gate.

    Raises OperandError for rows that are to be copied first.
    """
    if copies:
        raise OperandError("copy_rows: the kernel of mma.sync gathers a's rows as it copies them; leave it out")
    named, (m, n, k, _, _) = dict(of.kinds), of.sizes
    ragged = Ragged.of(of.groups, named[OFFSETS]) if of.groups else None
    sizes = m, n, k, max(of.groups, 1)
    return MmaProduct(
        sizes, of.types, ragged, None, epilogue_of(of) or None, of.gate, indexed_of(of, None)
    )  # fmt: skip


def indexed_of(of: IndexedShape, copies: bool | None) -> IndexedRows:
    """The rows of a call that have indices. `copies`: A's are copied first."""
    named, (_, _, _, rows_of_a, rows_of_c) = dict(of.kinds), of.sizes
    gather = RowIndices(rows_of_a, named["rows"]) if "rows" in named else None
    to = next((name for name in ("out_rows", "add_rows") if name in named), None)
    scatter = None if to is None else RowIndices(rows_of_c, named[to])
    return IndexedRows(gather, scatter, copies, to == "add_rows")


def epilogue_of(of: IndexedShape) -> Epilogue:
    """The activation, then the weights of rows."""
    steps = [Activation(of.activation)] if of.activation is not None else []
    return Epilogue(*steps, *([VectorScale("m", "f32", WEIGHTS)] if of.weighted else []))


def plan_of(of: IndexedShape, config: Sm90Config | None, copies: bool | None = None) -> Sm90Plan:
    """The plan of a call. The caller's configuration, the measured one, or the usual.

    copies  whether A's rows are copied first; None for the way that is estimated faster, or the only one
    """
    if config is None and (found := measured(of, copies)) is not None:
        with suppress(LayoutError):  # a result that does not fit is passed over
            return _plan_of(of, found, copies)
    return _plan_of(of, config, copies)


def measured(of: IndexedShape, copies: bool | None) -> Sm90Config | None:
    """The configuration that was measured fastest, or None."""
    (m, n, k, *rows), groups = of.sizes, max(of.groups, 1)
    facts = *rows, of.groups, of.kinds, of.activation, of.gate, of.weighted, copies
    found = lookup_with_parts(of.gpu, (m, n, k, groups), of.types, facts)
    return None if found is None else found.config


@lru_cache(maxsize=1024)
def _plan_of(of: IndexedShape, config: Sm90Config | None, copies: bool | None) -> Sm90Plan:
    gathers = "rows" in dict(of.kinds)
    if copies and not gathers:
        raise OperandError("copy_rows: without rows=, none are copied")
    if copies is None:
        copies = gathers and _copies_first(of, config)
    indexed, last = indexed_of(of, copies), None
    for candidate in _configs(of, indexed) if config is None else [config]:
        try:
            return _derived(of, indexed, candidate)
        except LayoutError as error:
            last = last or error
    raise OperandError(f"no kernel with row indices: {last}") from last


def why_copied(of: IndexedShape, config: Sm90Config | None, copies: bool | None) -> str:
    """Why A's rows are copied first, or gathered in the kernel; "" without gathered rows."""
    names = [name for name, _ in of.kinds]
    if "rows" not in names:
        return ""
    if copies is not None:
        return "copy_rows was given"
    if of.groups and OFFSETS not in names:
        return "A copied first: no kernel gathers rows of a batch or of masked groups"
    if of.gate is not None:
        return "A copied first: a gated product that gathers was not measured; copy_rows=False asks for it"
    if config is not None:
        return "A copied first: the configuration has no warpgroup that gathers" if _copies_first(of, config) else ""
    (m, n, k, _, _), groups = of.sizes, of.groups
    return copies_first((m, n, k, max(groups, 1)), dtype(of.types[0]).bytes, groups > 0)[1]


def _copies_first(of: IndexedShape, config: Sm90Config | None) -> bool:
    """True if A's rows are copied where the caller does not say: the only way, or the one estimated faster."""
    names = [name for name, _ in of.kinds]
    if of.gate is not None or COUNTS in names or (of.groups and OFFSETS not in names):
        return True
    if config is not None:
        return config.loader != "warpgroup" or config.cluster[1] > 1
    (m, n, k, _, _), groups = of.sizes, of.groups
    return copies_first((m, n, k, max(groups, 1)), dtype(of.types[0]).bytes, groups > 0)[0]


def _derived(of: IndexedShape, indexed: IndexedRows, config: Sm90Config) -> Sm90Plan:
    """The plan with a configuration. Raises PlanError where no kernel exists."""
    named, (m, n, k, _, _), groups = dict(of.kinds), of.sizes, of.groups
    epilogue, said = epilogue_of(of), OFFSETS if OFFSETS in named else COUNTS
    return Sm90Choice(config).plan(
        m, n, k, batch=max(groups, 1), a=of.types[0], b=of.types[1], c=of.types[2], epilogue=epilogue or None,
        gated=of.gate, ragged=Ragged.of(groups, named[said], said == COUNTS) if groups and said in named else None,
        indexed=indexed,
    )  # fmt: skip


def _configs(of: IndexedShape, indexed: IndexedRows) -> Iterator[Sm90Config]:
    """Configurations, the best first."""
    names, (m, n, k, _, _), groups = [name for name, _ in of.kinds], of.sizes, of.groups
    wide, sums = dtype(of.types[2]).bits == 32, 1 if of.gate is None else HALVES
    if not indexed.copies or indexed.scatter is not None:
        yield indexed_config((m, n, k, max(groups, 1)), not indexed.copies, OFFSETS in names, wide)
        return
    if OFFSETS in names or COUNTS in names:
        masked = COUNTS in names
        rows = masked_rows(m) * groups if masked else m
        yield usual_config((rows, n, k, groups), of.types, None, sums, places=of.places, masked=masked)
        return
    major = "K" if of.types[1].endswith(":col") else "MN"
    found = in_place(
        near_rows(m), n, near_depth(k), batch=max(groups, 1), a=of.types[0], b_major=major, multiprocessors=of.places,
        gated=of.gate,
    )  # fmt: skip
    yield from [choice.config for choice, _ in found]
