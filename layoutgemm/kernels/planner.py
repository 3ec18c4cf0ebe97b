"""The front door: which production kernel computes a product on an architecture, and its plan.

Each architecture has one production kernel, and a rule that configures it: measured on sm_90a and sm_80, the defaults
elsewhere. The teaching kernel is asked for by its name, `TeachingPlan.derive`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from math import lcm
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, overload

from ..arch import Arch, ArchName
from ..arch import arch as arch_named
from ..arguments import checked, shown
from ..atoms.targets import exists_on
from ..errors import LayoutError, PlanError
from ..schedule import TileList, Triangular
from ..schedule.triangular import HALVES
from .derive import Operand, OperandSpec, memory_unit
from .epilogue.chain import Epilogue
from .grouped.rows import rows_of_group
from .indexed.rows import IndexedRows
from .operands.block_scales import ScaleFormat, scale_format
from .operands.combinations import PartOptions
from .operands.combined import LEAST_MATRICES, Combined, columns_of_each
from .operands.gated import combination
from .operands.pair import SecondPair, pair_of
from .operands.prologue import Prologue
from .operands.promoted import Promoted, as_promoted
from .orders import Order, columns_of_order, diagonal_pattern, is_symmetric
from .plan import GemmPlan, check_sizes, present
from .ragged import AlongK, Ragged
from .sm80.block_scales import scaled_atom
from .sm80.choose import (
    candidates,
    for_prologue,
    for_promoted,
    for_several,
    group_candidates,
    holding_groups,
    scaled_candidates,
)
from .sm80.plan import Sm80Config, Sm80Plan
from .sm90.choose.prologue import grouped_prologue_config, prologue_config
from .sm90.choose.rules import SPARE, Sm90Choice, in_place, near_depth, near_rows, whole_columns, with_whole_rows
from .sm90.choose.scaled_grouped import (
    along_k_config,
    k_blocks_config,
    read_each_column,
    scaled_config,
    usual_config,
)
from .sm90.indexed.choose import indexed_config
from .sm90.plan import Sm90Config, Sm90Plan
from .sm90.triangular.choose import SHORT_PATTERN, by_rounds
from .sm90.triangular.operands import Triangles
from .sm90.types import operands
from .sm100.choose import choose_sm100
from .sm100.plan import Sm100Config, Sm100Plan, gated_scales

if TYPE_CHECKING:
    from typing_extensions import Unpack

Config = Sm80Config | Sm90Config | Sm100Config
P = TypeVar("P", bound=GemmPlan)

# The names of architectures by the kernel that they have, for typed callers; `arch` takes further ones.
Sm80Name = Literal[
    "sm_80", "sm80", "ampere", "a100", "a30", "sm_86", "sm86", "ampere-geforce", "rtx-3090", "a10", "a40", "rtx-a6000",
    "sm_87", "sm87", "orin", "jetson-orin", "sm_89", "sm89", "ada", "ada-lovelace", "rtx-4090", "l4", "l40", "l40s",
    "sm_120a", "sm_120f", "sm120", "blackwell-geforce", "rtx-5090", "rtx-pro-6000",
    "sm_121a", "sm_121f", "sm121", "spark", "dgx-spark", "gb10",
]  # fmt: skip
Sm90Name = Literal["sm_90a", "sm_90", "sm90", "hopper", "h100", "h200", "gh200", "h20"]
Sm100Name = Literal[
    "sm_100a", "sm_100f", "sm100", "blackwell", "b200", "gb200", "b100", "sm_103a", "sm_103f", "sm103",
    "blackwell-ultra", "b300", "gb300", "sm_110a", "sm_110f", "sm110", "thor", "jetson-thor",
]  # fmt: skip


class PlanOptions(PartOptions, total=False):
    """The keyword arguments of `plan` that do not decide which kernel it is."""

    a: OperandSpec
    b: OperandSpec | None
    c: OperandSpec | None
    batch: int
    epilogue: Epilogue | None
    scales: ScaleFormat | str | None


@overload
def plan(
    m: int, n: int, k: int, *, arch: Sm90Name | None = None, config: Sm90Config | None = None,
    **options: Unpack[PlanOptions],
) -> Sm90Plan: ...  # fmt: skip


@overload
def plan(
    m: int, n: int, k: int, *, arch: Sm100Name, config: Sm100Config | None = None, **options: Unpack[PlanOptions]
) -> Sm100Plan: ...


@overload
def plan(
    m: int, n: int, k: int, *, arch: Sm80Name, config: None = None, **options: Unpack[PlanOptions]
) -> Sm80Plan: ...


@overload
def plan(
    m: int, n: int, k: int, *, config: Sm80Config, arch: ArchName | None = None, **options: Unpack[PlanOptions]
) -> Sm80Plan: ...


@overload
def plan(m: int, n: int, k: int, *, config: Sm100Config, **options: Unpack[PlanOptions]) -> Sm100Plan: ...


@overload
def plan(
    m: int, n: int, k: int, *, arch: ArchName | None = None, config: Config | None = None,
    **options: Unpack[PlanOptions],
) -> GemmPlan: ...  # fmt: skip


@checked(PlanError)
def plan(
    m: int,
    n: int,
    k: int,
    *,
    arch: ArchName | None = None,
    a: OperandSpec = "bf16",
    b: OperandSpec | None = None,
    c: OperandSpec | None = None,
    batch: int = 1,
    config: Config | None = None,
    epilogue: Epilogue | None = None,
    gated: Combined | str | None = None,
    order: Order | None = None,
    prologue: Prologue | None = None,
    pair: SecondPair | int | None = None,
    indexed: IndexedRows | None = None,
    triangles: Triangles | None = None,
    scales: ScaleFormat | str | None = None,
    ragged: Ragged | None = None,
    along_k: AlongK | None = None,
    mainloop: Promoted | None = None,
) -> GemmPlan:
    """The production kernel's plan for C[m, n] = A[m, k] @ B[k, n].

    m, n, k   any positive sizes, in elements; `batch` of them
    arch      "sm_90a", "sm90", "hopper", "h200", (9, 0), ...; None: that of `config`, or sm_90a
    a, b, c   types with orders, as in "bf16", "f16:col", torch.float8_e4m3fn. b has a's type by default, and c the
              type of the inputs where that has 16 bits, else the accumulator's; all row-major
    config    None: what the architecture's rule chooses for these sizes, with the operands in their places. An
              Sm80Config asks for the mma.sync kernel on any architecture
    epilogue  what becomes of the product before it is stored
    gated     as for `Sm90Plan.derive`: B has 2n columns; or a function of the sums of several matrices B
    order     the order of tiles, of all or some of them, as for `Sm90Plan.derive`; the rule chooses for as many
              columns as that share of the tiles has
    prologue  a function of A's elements, as for `Sm90Plan.derive`; not on sm_100a
    pair      K of a second pair of matrices, likewise; beside a gate or several matrices B, of each sum
    indexed   rows of A and C by index; m is the product's rows
    triangles A or B is triangular, likewise
    scales    "mxfp8", "mxfp4" or "nvfp4" block scales, as for `Sm100Plan.derive` and `Sm80Plan.derive`: on sm_100a and
              later, sm_120a among them
    ragged, along_k  groups of rows, masked ones, or groups along K, `batch` of them, as for `Sm90Plan.derive`
    mainloop  what happens to the sum of each K block, as for `Sm90Plan.derive`

    Raises PlanError naming the argument when the architecture's kernel does not take it, and passes on AtomError,
    DescriptorError and TmaError.

    >>> made = plan(4096, 4096, 4096, b="bf16:col")
    >>> type(made).__name__, made.tile, made.stages, made.c.dtype.name
    ('Sm90Plan', (128, 256, 64), 4, 'bf16')
    >>> [type(plan(512, 512, 512, arch=arch)).__name__ for arch in ("ada", "hopper", "blackwell", (12, 0))]
    ['Sm80Plan', 'Sm90Plan', 'Sm100Plan', 'Sm80Plan']
    >>> [plan(1024, 512, 512, arch=arch, batch=8, b="bf16:col", ragged=Ragged.of(8)).tile for arch in ("ada", "hopper")]
    [(64, 64, 64), (64, 128, 64)]
    """
    check_sizes(m=m, n=n, k=k, batch=batch)
    target = arch_named(_OF_CONFIG[type(config)] if arch is None else arch)
    kind = Sm80Config if isinstance(config, Sm80Config) else _config_of(target)
    if config is not None and not isinstance(config, kind):
        given = type(config).__name__
        raise PlanError(f"config is a {given}, and the kernel of {target.name} takes a {kind.__name__}")
    chosen: Any = config  # of the kernel's own kind
    gates = combination(gated)
    epilogue = None if epilogue is None else Epilogue.of(epilogue, gated=gates is not None)
    if scales is not None and (why := without_block_scales(target, kind, scale_format(scales))):
        raise PlanError(why)
    parts = PlanParts(
        epilogue, gates, order, prologue, pair_of(pair, gates), indexed, triangles, ragged, along_k,
        None if mainloop is None else as_promoted(mainloop),
    )  # fmt: skip
    if kind is Sm90Config:
        return _for_hopper((m, n, k), batch, (a, b, c), chosen, parts)
    _check_parts(parts, target, kind)
    if kind is Sm100Config:
        on_blackwell = partial(
            Sm100Plan.derive, m, n, k, arch=target, batch=batch, a=a, b=b, c=c, epilogue=epilogue, order=order,
            indexed=indexed, gated=gates, pair=pair, scales=scales, ragged=ragged, along_k=along_k,
            mainloop=mainloop,
        )  # fmt: skip
        columns = n if order is None else columns_of_order(order, m, n)
        rule = tcgen05_configs((m, columns, batch), target, parts, scales is not None, chosen)
        return _first(partial(on_blackwell, config=each) for each in rule)
    derive = partial(
        Sm80Plan.derive, m, n, k, batch=batch, arch=target, a=a, b=b, c=c, epilogue=epilogue, order=order,
        indexed=indexed, gated=gates, pair=pair, prologue=prologue, ragged=ragged, along_k=along_k,
        mainloop=mainloop, scales=scales,
    )  # fmt: skip
    if chosen is not None:
        return derive(config=chosen)
    by_mma = mma_configs((m, n, k, batch), target, (a, c), parts, scales is not None)
    return _first(partial(derive, config=config) for config in by_mma)


def _check_parts(parts: PlanParts, target: Arch, kind: type[Config]) -> None:
    """Raise PlanError for a part that kernels of other architectures than Hopper do not take."""
    missing = ["triangles"]
    if kind is Sm100Config:
        missing.append("prologue")
    for name in missing:
        if getattr(parts, name) is not None:
            raise PlanError(refusal_beside_hopper(name, target.name))


def without_block_scales(target: Arch, kind: type[Config], form: ScaleFormat) -> str:
    """Why an architecture's kernel takes no block scales, and the way out; "" where it does."""
    if kind is Sm100Config:
        return ""
    if kind is Sm90Config:
        why = "no wgmma has block scales"
        way = "scaled_matmul has scales of 128 elements of K for e4m3 and e5m2, quantized_matmul weights of e2m1"
    else:
        if exists_on(scaled_atom(form, form.types[0], form.types[0]).archs, target):
            return ""
        why = "no mma.sync has block scales before sm_120a"
        way = "convert to f16 or bf16 with the scales"
    return f"scales = {shown(form.name)}: not by the kernel of {target.name}: {why}; {way}"


MN_SPAN = 64  # columns of 16-bit elements in 128 bytes

# Arguments that kernels of other architectures do not take: why, and the way out.
_BESIDE_HOPPER = {
    "triangles": ("its loop takes the same K tiles in every tile", "leave it out: products with zeros are right"),
    "prologue": ("it multiplies A as it lies in shared memory", "compute the function of A first"),
}


def refusal_beside_hopper(name: str, arch: str, said: str = "") -> str:
    """Why another architecture's kernel does not take that argument, and the way out.

    said  the argument's name in the caller's call, where it is another

    >>> refusal_beside_hopper("triangles", "sm_120a").partition("sm_120a: ")[2]
    'its loop takes the same K tiles in every tile; sm_90a has a kernel. Leave it out: products with zeros are right'
    """
    why, way_out = _BESIDE_HOPPER[name]
    return f"{said or name}: not by the kernel of {arch}: {why}; sm_90a has a kernel. {way_out[0].upper()}{way_out[1:]}"


def tcgen05_configs(
    sizes: tuple[int, int, int], target: Arch, parts: PlanParts, scaled: bool = False, asked: Sm100Config | None = None
) -> Iterator[Sm100Config]:
    """The configurations for tcgen05, the best first. One with a tile is alone; others have the rule's tiles.

    sizes  m, n, batch;   asked  the caller's configuration

    >>> none = PlanParts(*[None] * 9)
    >>> [each.tile for each in tcgen05_configs((16, 4096, 1), arch_named("b200"), none, asked=Sm100Config(stages=4))]
    [(128, 32), (128, 256)]
    """
    own = asked or Sm100Config()
    if own.tile is not None:
        yield own
        return
    if parts.gated is not None and scaled:
        yield gated_scales(own)
        return
    if parts.gated is not None:  # whole spans of 128 bytes of each matrix
        unit = parts.gated.matrices * MN_SPAN
        widest = 256 if parts.mainloop is None else unit
        yield replace(own, tile=(128, widest // unit * unit))
        return
    m, n, batch = sizes
    unit = 1 if parts.epilogue is None else parts.epilogue.columns
    best, _ = choose_sm100(
        m, n, batch=batch, arch=target, unit=unit, scaled=scaled, ragged=parts.ragged, mainloop=parts.mainloop
    )
    yield replace(own, tile=best.tile)
    yield replace(own, tile=(128, 128) if scaled or parts.mainloop is not None else (128, 256))


def mma_configs(
    sizes: tuple[int, int, int, int], target: Arch, given: tuple[OperandSpec, OperandSpec | None], parts: PlanParts,
    scaled: bool = False,
) -> Iterator[Sm80Config]:  # fmt: skip
    """The configurations of the rule for mma.sync with these parts, the best first.

    sizes  m, n, k and batch;   given  A and C;   scaled  with block scales
    """
    (m, n, k, batch), gated, indexed = sizes, parts.gated, parts.indexed
    sums = 1 if gated is None else gated.matrices
    of_a = memory_unit(Operand.parse(given[0]).dtype)
    of_c = of_a if given[1] is None else Operand.parse(given[1]).dtype
    groups = parts.ragged or parts.along_k
    if scaled:
        rule = scaled_candidates(m, n, batch, of_c)
    elif groups is None:
        rule = candidates(m, n * sums, k, batch=batch, arch=target, a=of_a, c=of_c)
    else:
        rule = group_candidates((m, n * sums, k, batch), groups, target, of_a, of_c)
    for config in rule:
        config = holding_groups(config, parts.epilogue, sums)
        config = for_several(config, sums, parts.pair is not None, memory_unit(of_c).bytes)
        if indexed is not None and indexed.gather is not None and config.loads == "tma":
            config = replace(config, loads="cp.async")  # which gathers rows
        config = config if parts.mainloop is None else for_promoted(config, parts.mainloop.depth)
        yield from (config,) if parts.prologue is None else for_prologue(config)


def _first(kernels: Iterable[Callable[[], P]]) -> P:
    """The first plan that can be derived. Raises the first refusal."""
    refused: LayoutError | None = None
    for derive in kernels:
        try:
            return derive()
        except LayoutError as error:
            refused = refused or error
    raise present(refused)


class PlanParts(NamedTuple):
    """Parts of a product beyond A @ B, as `Sm90Plan.derive` takes them."""

    epilogue: Epilogue | None
    gated: Combined | None
    order: Order | None
    prologue: Prologue | None
    pair: SecondPair | None
    indexed: IndexedRows | None
    triangles: Triangles | None
    ragged: Ragged | None
    along_k: AlongK | None
    mainloop: Promoted | None = None


def _for_hopper(
    sizes: tuple[int, int, int], batch: int, given: tuple[OperandSpec, OperandSpec | None, OperandSpec | None],
    config: Sm90Config | None, parts: PlanParts,
) -> Sm90Plan:  # fmt: skip
    """The plan of a caller's configuration, or of the rule's first that has one. Raises the first refusal."""
    (m, n, k), (a, b, c) = sizes, given
    order = parts.order
    if config is not None:
        kernels: Iterable[Callable[..., Sm90Plan]] = [partial(Sm90Plan.derive, config=config)]
    else:
        kernels = [Sm90Choice(each).plan for each in _rule(sizes, batch, given, parts)]
        if order is not None and (triangle := _listed(order, batch, parts)) is not None:
            order = TileList(schedule=triangle)  # faster than the formula
    refused: LayoutError | None = None
    for derive in kernels:
        try:
            asked = {"batch": batch, "a": a, "b": b, "c": c, **parts._replace(order=order)._asdict()}
            found = derive(m, n, k, **asked)
            return found if config is not None else with_whole_rows(found, partial(Sm90Plan.derive, m, n, k, **asked))
        except LayoutError as error:
            refused = refused or error
    raise present(refused)


def _rule(
    sizes: tuple[int, int, int], batch: int, given: tuple[OperandSpec, OperandSpec | None, OperandSpec | None],
    parts: PlanParts,
) -> Iterator[Sm90Config]:  # fmt: skip
    """The configurations of the rule, the best first."""
    (m, n, k), (a, b, c) = sizes, given
    order, indexed = parts.order, parts.indexed
    columns = n if order is None else columns_of_order(order, m, n)
    k += 0 if parts.pair is None else parts.pair.k
    first, second, stored = operands(a, b, c)
    major = "K" if second.order == "col" else "MN"
    choices = in_place(
        near_rows(m), columns, near_depth(k), batch=batch, a=first, b_major=major, gated=parts.gated,
        epilogue=parts.epilogue,
    )  # fmt: skip
    rule: Iterator[Sm90Config] = (choice.config for choice, _ in choices)
    grouped = parts.ragged is not None or parts.along_k is not None
    if grouped:
        rule = chain([_grouped_config((m, columns, k, batch), (first, second, stored), parts)], SPARE)
    if indexed is not None and (not indexed.copies or indexed.scatter is not None):
        wide = stored.dtype.bits == 32
        groups = batch if grouped else 1
        rule = chain([indexed_config((m, columns, k, groups), not indexed.copies, grouped, wide)], SPARE)
    if parts.pair is not None and parts.pair.matrices > LEAST_MATRICES:  # whose tensor maps leave C none
        rule = (replace(config, store="direct") for config in rule)
    if parts.mainloop is not None and not grouped:
        scales = tuple([table.group for table in parts.mainloop.tables])
        each, columns_ = read_each_column(scales, columns, 1), 1 if parts.epilogue is None else parts.epilogue.columns
        found = scaled_config(
            m, columns, k, batch=batch, each_column=each, columns=columns_, c=stored.dtype.name,
            sums=1 if parts.gated is None else parts.gated.matrices, adds=not scales,
        )  # fmt: skip
        rule = chain([found], SPARE)
    if parts.prologue is not None:
        own = prologue_config(m, columns, k, batch)
        if indexed is not None or grouped:  # a CTA takes several tiles, and threads gather
            own = grouped_prologue_config(rows_of_group(m, batch, parts.ragged), columns, k, batch)
        if indexed is not None and indexed.gather is not None and not indexed.copies:
            own = replace(own, loader="warpgroup")
        rule = chain([own], SPARE)
    sums, together = 1 if parts.gated is None else parts.gated.matrices, parts.epilogue.columns if parts.epilogue else 1
    share = 1 if sums == 1 else columns_of_each(second)
    narrow = parts.prologue is not None and share > 8  # whose rule knows of no several matrices
    if together > 1 or sums > LEAST_MATRICES or narrow:  # of three, a tile of 64 or 128 columns has no whole share
        rule = _of_whole_columns(rule, sums * lcm(share, together))
    if order is not None:
        rule = _for_order(order, rule, (m, n, columns))
        if (triangle := _listed(order, batch, parts)) is not None:
            rule = chain(_by_rounds(triangle, sizes, given), rule)
    return rule if parts.triangles is None else _for_triangles(rule)


def _grouped_config(
    sizes: tuple[int, int, int, int], given: tuple[Operand, Operand, Operand], parts: PlanParts
) -> Sm90Config:
    """The rule's configuration of groups. `sizes`: M, N, K and the groups; `given`: A, B and C."""
    (m, n, k, groups), (a, b, c) = sizes, given
    columns = 1 if parts.epilogue is None else parts.epilogue.columns
    if parts.along_k is not None:
        if parts.along_k.in_blocks:
            return k_blocks_config(m, n, k, groups, None, c.dtype.name, columns=columns)
        return along_k_config(m, n, k, groups, c.dtype.bits == 32, columns=columns)
    rows = rows_of_group(m, groups, parts.ragged)
    masked = parts.ragged is not None and parts.ragged.masked
    types = a.dtype.name, f"{b.dtype.name}:{b.order}", c.dtype.name
    sums = 1 if parts.gated is None else parts.gated.matrices
    scales = None if parts.mainloop is None else tuple([table.group for table in parts.mainloop.tables])
    return usual_config((rows * groups if masked else m, n, k, groups), types, scales, sums, columns, masked=masked)


def _of_whole_columns(rule: Iterator[Sm90Config], columns: int) -> Iterator[Sm90Config]:
    """The rule's configurations, with tiles of a multiple of so many columns."""
    for config in rule:
        yield config
        found = whole_columns(config, columns)
        if found != config:
            yield found
        yield replace(found, staged_epilogue_k_tiles=0)


def _for_triangles(rule: Iterator[Sm90Config]) -> Iterator[Sm90Config]:
    """The rule's configurations as kernels that skip K tiles have them; the last one takes any sizes."""
    for config in rule:
        together = config.schedule == "cooperative"
        yield replace(
            config, schedule="cooperative", consumers=config.consumers if together else config.tile[0] // 64, split=1,
            staged_epilogue_k_tiles=0, loader="warpgroup" if config.loader == "self" else config.loader,
            tuning=replace(config.tuning, reverse_odd_tiles=False, prefetch=0),
        )  # fmt: skip
    yield Sm90Config((64, 64), consumers=1, loader="warp")


def _listed(order: Order, batch: int, parts: PlanParts) -> Triangular | None:
    """The triangle that a kernel reads as a list, or None for other products."""
    alone = batch == 1 and parts.gated is None and parts.indexed is None
    return _triangle(order) if alone else None


def _triangle(order: Order) -> Triangular | None:
    """The triangle of that order, or None for other orders and for a mirrored triangle."""
    if isinstance(order, str):
        return Triangular(order) if order in HALVES else None
    return order if isinstance(order, Triangular) and not order.mirror else None


def _by_rounds(
    order: Triangular, sizes: tuple[int, int, int], given: tuple[OperandSpec, OperandSpec | None, OperandSpec | None]
) -> Iterator[Sm90Config]:
    """Configurations for a triangle of 16-bit operands, by the rounds of its own tiles; none for other types."""
    first, second, _ = operands(*given)
    if first.dtype.bits == 16 and sizes[0] > 64:
        yield from by_rounds(order, sizes, "K" if second.order == "col" else "MN")


def _for_order(order: Order, rule: Iterator[Sm90Config], sizes: tuple[int, int, int]) -> Iterator[Sm90Config]:
    """The rule's configurations as kernels with an order of their own have them: persistent, one part of K.

    sizes  M, N, and the columns of a full C with as many elements as the order's tiles

    A symmetric product's clusters are square. A triangle's formula has a term for each tile of the diagonal's pattern:
    tiles with a long pattern come last.
    """
    m, n, columns = sizes
    if is_symmetric(order):
        yield from SQUARE
    elif columns < n and -(-m // _SQUARE) * -(-columns // _SQUARE) >= _MANY:
        yield SQUARE[0]
    late = []
    for config in rule:
        config = replace(config, launch="workers", staged_epilogue_k_tiles=0) if config.launch == "tiles" else config
        tile = config.tile[0] * config.cluster[0], config.tile[1] * config.cluster[1]
        if diagonal_pattern(order, tile) > SHORT_PATTERN:
            late.append(config)
        else:
            yield config
    yield from late


_SQUARE, _MANY = 256, 264  # a square cluster's side; four rounds of them: from there the last, partial one is cheap


# The fastest square clusters for large and for small C.
SQUARE = (
    Sm90Config((128, 256), cluster=(2, 1)),
    Sm90Config((128, 128), loader="warp"),
    Sm90Config((64, 64), consumers=1, loader="warp"),
)


def square_config(m: int, batch: int = 1) -> Sm90Config:
    """The square tile of a symmetric product whose main loop promotes. Tiles of 64x64 where larger leave SMs idle.

    >>> [square_config(m).tile for m in (1024, 4096)]
    [(64, 64), (128, 128)]
    """
    _, large, small = SQUARE  # the first one's cluster has no configuration of such a main loop that was measured
    return large if (m // large.tile[0]) ** 2 * batch > _MANY else small


def _config_of(target: Arch) -> type[Config]:
    """The configuration's type of an architecture's production kernel, which is that of its own instructions."""
    if "tcgen05" in target.features:
        return Sm100Config
    return Sm90Config if "wgmma" in target.features else Sm80Config


_OF_CONFIG = {type(None): "sm_90a", Sm80Config: "sm_80", Sm90Config: "sm_90a", Sm100Config: "sm_100a"}
