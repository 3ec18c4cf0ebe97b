"""The kernel's plan of a composed product, and the elements of C that it visits.

A plan is kept for the sizes, types and orders of a call. On a GPU without wgmma the mma.sync kernel takes an order of
tiles with an epilogue; other parts are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ...atoms.tma.rules import STRIDE_UNIT
from ...dtypes import dtype
from ...errors import LayoutError, OperandError
from ...kernels import plan as plan_of
from ...kernels.compile.compiler import CompiledGemm
from ...kernels.compile.worker import compile_apart
from ...kernels.epilogue.chain import Epilogue
from ...kernels.indexed.rows import OUT_ROWS, ROWS, IndexedRows
from ...kernels.operands.combined import Combined
from ...kernels.operands.prologue import Prologue
from ...kernels.operands.promoted import mainloop_of
from ...kernels.orders import (
    Order,
    check_order,
    clusters_of_plan,
    columns_of_order,
    is_symmetric,
    order_values,
    spread_to_elements,
    visited_tiles,
)
from ...kernels.plan import present
from ...kernels.planner import refusal_beside_hopper, square_config
from ...kernels.run.operand_checks import same_memory
from ...kernels.sm80.choose import by_lines, for_prologue, for_several, holding_groups
from ...kernels.sm80.plan import Sm80Plan
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.choose.scaled_grouped import plan_with_scales
from ...kernels.sm90.config import Sm90Config, Sm90Tuning
from ...kernels.sm90.indexed.choose import copies_first
from ...kernels.sm90.plan import Sm90Plan
from ...kernels.sm90.triangular.operands import Triangles
from ...kernels.sm100.plan import Sm100Config, Sm100Plan
from ...schedule.listed import decoded, tiles_on_host
from ..epilogue import Tensors as Operands
from ..operands.several import order_of
from ..prepared import Config, choice_of, gpu, target
from ..problem import reads_by_tma
from ..scaled_grouped.recipes import SCALES
from ..scaled_grouped.scaled import chosen, widest_span_of
from ..tuned_store import MEASURED, fitting, lookup_with_parts
from ..types import C_NAMES, NAMES
from .checks import ComposedCall, epilogue_of, gated_of, indexed_rows
from .parts import ADD_ROWS, PLACED, TILES

Plan = Sm90Plan | Sm80Plan | Sm100Plan


@dataclass(frozen=True, eq=False)
class ReadyPlan:
    """A plan, compiled when it is first launched.

    why  the reason for a configuration that was measured, or None
    """

    plan: Plan
    why: str | None = None

    @cached_property
    def compiled(self) -> CompiledGemm:
        """The kernel."""
        return compile_apart(self.plan)

    @cached_property
    def visited(self) -> torch.Tensor | None:
        """True for each tile (row, column) of the plan's own order; None for all."""
        return _mask(visited_tiles(self.plan, {}))


class PlanKey(NamedTuple):
    """The facts of a call that decide on its plan.

    sizes  M, N, K, matrices, and K of a second pair or 0
    span   K blocks whose scales lie together
    names  types of A, B and C, with orders
    on     the GPU's code, and bytes of shared memory
    """

    sizes: tuple[int, int, int, int, int]
    names: tuple[str, str, str]
    order: Order | None
    epilogue: Epilogue | None
    gated: Combined | None
    prologue: Prologue | None
    triangles: Triangles | None
    promotes: tuple[int, ...] | None
    span: int
    indexed: IndexedRows | None
    config: Sm90Config | Sm100Config | None
    on: tuple[str, int]


def ready_plan(call: ComposedCall, config: Config | None, epilogue: Epilogue | None) -> ReadyPlan:
    """The plan of a call; that of an H200 for CPU tensors.

    epilogue  as the kernel takes it

    Raises OperandError or PlanError for a product that no kernel computes.
    """
    a, b, parts = call.a[0], call.b[0], call.parts
    choice, on = choice_of(config), target(a.get_device(), config)
    if isinstance(choice, Sm90Choice) and on[0] != "sm_90a":
        raise OperandError(f"config is one of sm_90a's kernel, and {a.device} runs {on[0]}")
    if parts.promotes is not None and not reads_by_tma(target(a.get_device(), config)[0]):
        raise OperandError(
            f"scales of K blocks are the main loop's of compute capability 9.0, and {a.device} runs {on[0]}"
        )
    if choice is not None and choice.swapped:
        raise OperandError("config is of the transposed product (swapped), and the parts are of A, B and C themselves")
    of_b = "col" if parts.gate is not None else order_of(b, "col")
    names = f"{NAMES[a.dtype]}:{order_of(a, 'row')}", f"{NAMES[b.dtype]}:{of_b}", C_NAMES[call.kind]
    m, n = call.shape[-2:]
    second = call.a[1].shape[-1] if len(call.a) > 1 else 0
    sizes = int(m), int(n), int(a.shape[-1]), int(call.shape[0]) if len(call.shape) > 2 else 1, int(second)
    of_parts = parts.order, epilogue, gated_of(parts), parts.prologue, parts.triangles

    tables = [call.values[name] for name in SCALES[: len(parts.promotes or ())]]
    span = 1 if parts.triangles is not None else widest_span_of(sizes[2], *tables)

    def ready(found: Sm90Config | Sm100Config | None, why: str | None = None) -> ReadyPlan:
        indexed = indexed_rows(call, _copies(call, found))
        return _ready(PlanKey(sizes, names, *of_parts, parts.promotes, span, indexed, found, on), why)

    if choice is not None:
        return ready(choice.config)
    if on[0] == "sm_90a":
        rows = indexed_rows(call, False), parts.copy_rows
        loop = () if parts.promotes is None else (parts.promotes,)
        measured = lookup_with_parts(gpu(a.get_device())[1], sizes[:4], names, *of_parts, second, *rows, *loop)
        if (fits := fitting(measured, ready)) is not None:
            return ready(fits, MEASURED)
    return ready(None if parts.promotes is None else _scaled_config(call, sizes, names, ready))


def _copies(call: ComposedCall, config: Sm90Config | Sm100Config | None) -> bool:
    """True if A's rows are copied first: as the caller says, the only way, or the one estimated faster."""
    parts = call.parts
    if ROWS not in parts.own:
        return False
    if parts.copy_rows is not None:
        return parts.copy_rows
    if isinstance(config, Sm100Config):  # whose TMA gathers rows
        return False
    if len(call.a) > 1 or parts.how is not None or parts.gate is not None or parts.promotes is not None:
        return True
    if config is not None:
        return config.loader != "warpgroup" or config.cluster[1] > 1
    m, n = call.shape[-2:]
    return copies_first((m, n, call.a[0].shape[-1], 1), call.a[0].element_size(), False)[0]


@lru_cache(maxsize=1024)
def _ready(key: PlanKey, why: str | None = None) -> ReadyPlan:
    made = ReadyPlan(_derived(key), why)
    if key.order is not None:
        check_order(made.plan)
    return made


def _derived(key: PlanKey) -> Plan:
    """The plan of a key; its order may still visit a tile twice."""
    m, n, k, batch, second = key.sizes
    if isinstance(key.config, Sm100Config):
        return _by_tcgen05(key, key.config)
    if key.on[0] != "sm_90a":
        if key.triangles is not None:
            raise OperandError(refusal_beside_hopper("triangles", key.on[0]))
        return _by_mma_sync(key)
    a, b, c = key.names
    if key.promotes is not None:
        return plan_with_scales(
            key.sizes[:4], key.names, key.promotes, present(key.config), key.span, epilogue=key.epilogue,
            gated=key.gated, order=key.order, indexed=key.indexed, triangles=key.triangles, prologue=key.prologue,
            pair=second or None,
        )  # fmt: skip
    found = plan_of(
        m, n, k, batch=batch, arch="sm_90a", config=key.config, a=a, b=b, c=c, epilogue=key.epilogue, gated=key.gated,
        order=key.order, prologue=key.prologue, pair=second or None, indexed=key.indexed, triangles=key.triangles,
    )  # fmt: skip
    assert isinstance(found, Sm90Plan)
    return found


def _scaled_config(
    call: ComposedCall, sizes: tuple[int, ...], types: tuple[str, str, str], ready: Callable[[Sm90Config], object]
) -> Sm90Config:
    """The configuration of a main loop that promotes, for a call's order and indexed rows."""
    parts, (m, n, k, batch, _) = call.parts, sizes
    own = epilogue_of(call)
    if parts.order is not None:
        n = columns_of_order(parts.order, m, n)
    columns = 1 if own is None else own.columns
    if is_symmetric(parts.order):
        return square_config(m, batch)
    promotes = present(parts.promotes)
    how = parts.gate if parts.how is None else parts.how
    index, fits = call.a[0].get_device(), lambda config: ready(_with_places(call, config))
    config, _ = chosen((m, n, k, batch), types, promotes, index, None, fits, columns, how)
    return _with_places(call, config)


def _with_places(call: ComposedCall, config: Sm90Config) -> Sm90Config:
    """A plain product's configuration, adapted to a call's order and rows."""
    parts = call.parts
    if parts.order is None and parts.triangles is None and not PLACED & set(parts.own):
        return config
    tuning = replace(config.tuning, gpc_order=())
    if parts.triangles is not None:
        config = config if config.loader == "warpgroup" else replace(config, loader="warp")
        tuning = replace(tuning, prefetch=0)
    if {OUT_ROWS, ADD_ROWS} & set(parts.own):  # stored by threads, row by row
        tuning = replace(tuning, store_at_once=False, box_rows=Sm90Tuning().box_rows)
    return replace(
        config, launch="workers", split=1, staged_epilogue_k_tiles=0, one_tile_per_cluster=False, tuning=tuning
    )


def _by_tcgen05(key: PlanKey, config: Sm100Config) -> Sm100Plan:
    """The plan of the tcgen05 kernel, which the caller asked for."""
    m, n, k, batch, second = key.sizes
    a, b, c = key.names
    found = plan_of(
        m, n, k, batch=batch, arch=key.on[0], config=config, a=a, b=b, c=c, epilogue=key.epilogue, gated=key.gated,
        order=key.order, prologue=key.prologue, pair=second or None, indexed=key.indexed, triangles=key.triangles,
        mainloop=None if key.promotes is None else mainloop_of(key.promotes),
    )  # fmt: skip
    assert isinstance(found, Sm100Plan)
    return found


def _by_mma_sync(key: PlanKey) -> Sm80Plan:
    """The first plan of the mma.sync kernel that fits the GPU. Raises the first refusal where none does."""
    (m, n, k, batch, second), (a, b, c), (code, most) = key.sizes, key.names, key.on
    sums = 1 if key.gated is None else key.gated.matrices
    refused: LayoutError = OperandError(f"a batch of {batch} is more than one launch of {code}'s kernel has")
    each = dtype(a.partition(":")[0]).bytes
    indexed = None if key.indexed is None else replace(key.indexed, copy=None)  # this kernel gathers as it copies
    c_bytes = dtype(c.partition(":")[0]).bytes
    configs = [
        one
        for config, _ in by_lines(m, n * sums, k, (STRIDE_UNIT,) * 3, each, batch=batch, arch=code)
        for chosen in [for_several(holding_groups(config, key.epilogue, sums), sums, second > 0, c_bytes)]
        for one in ((chosen,) if key.prologue is None else for_prologue(chosen))
    ]
    for number, one_config in enumerate(configs):
        try:
            found = Sm80Plan.derive(
                m, n, k, arch=code, a=a, b=b, c=c, batch=batch, order=key.order, epilogue=key.epilogue, indexed=indexed,
                config=one_config, gated=key.gated, pair=second or None, prologue=key.prologue,
            )  # fmt: skip
        except LayoutError as error:
            refused = error if number == 0 else refused
            continue
        if found.smem.total <= most:
            return found
        refused = OperandError(f"{found.smem.total} bytes of shared memory, and a block of {code} has up to {most}")
    raise refused


def check_mirror(plan: Plan, call: ComposedCall) -> None:
    """Raise OperandError unless a product in symmetric order is symmetric. A A^T, A A^T + B B^T or A B^T + B A^T."""
    a, b = call.a, call.b
    if not isinstance(plan, Sm90Plan) or plan.mirror is None:
        return
    if not any(all(map(same_memory, a, [x.mT for x in each])) for each in (b, b[::-1])):
        of_two = ", or ((a, a2), (a.mT, a2.mT)) and ((a, a2), (a2.mT, a.mT)) of two pairs" * (len(a) > 1)
        raise OperandError(
            f"order = 'symmetric': b is a's own transpose, as in matmul(a, a.mT, order='symmetric'){of_two}"
        )
    scales = [call.values[name] for name in SCALES[: len(call.parts.promotes or ())]]
    if scales and not same_memory(scales[0], scales[-1]):
        raise OperandError(
            "order = 'symmetric': scale_b is scale_a, as in scaled_matmul(a, s, a.mT, s, order='symmetric'): the main "
            "loop of (i, j) is that of (j, i)"
        )


def plan_of_call(call: ComposedCall, config: Config | None) -> ReadyPlan:
    """The plan by which a call's visited elements are known, on any device."""
    return ready_plan(call, config, epilogue_of(call))


def visited(call: ComposedCall, ready: ReadyPlan) -> torch.Tensor | None:
    """A mask of the elements (row, column) in the order's tiles, on the call's device. None for all."""
    plan, device = ready.plan, call.a[0].device
    if TILES not in call.parts.order_names:
        if call.parts.order_names:
            order_values(plan, host_values(call))  # refuses anything but a number in range
        tiles = ready.visited
    elif device.type == "cpu":
        tiles = _mask(visited_tiles(plan, order_values(plan, host_values(call))))
    else:
        tiles = tiles_listed(call.values[TILES], clusters_of_plan(plan))
    return None if tiles is None else spread_to_elements(plan, tiles.to(device), torch.repeat_interleave)


def tiles_listed(tiles: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
    """True for each tile (row, column) of a list on its own device. The host does not read it.

    Of an entry beside the grid a kernel writes nothing, and here it marks nothing.

    >>> tiles_listed(torch.tensor([1 + 2 * 65536, 9, -1, 9 * 65536], dtype=torch.int32), (2, 3)).tolist()
    [[False, False, False], [False, False, True]]
    """
    (rows, columns), (row, column) = grid, decoded(tiles.long())
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    found = torch.zeros(rows * columns + 1, dtype=torch.bool, device=tiles.device)
    found[torch.where(inside, row * columns + column, rows * columns)] = True
    return found[:-1].reshape(grid)


def _mask(found: npt.NDArray[np.bool_] | None) -> torch.Tensor | None:
    return None if found is None else torch.from_numpy(np.ascontiguousarray(found))


def host_values(call: ComposedCall) -> Operands:
    """The order's operands by name as the host reads them. A list of tiles as rows and columns."""
    values = {name: call.values[name] for name in call.parts.order_names}
    if TILES in values:
        values[TILES] = tiles_on_host(values[TILES])
    return values
