"""Which kernel for a problem. The caller's, the one that was measured, the likeliest, in this order.

There are two families: sm_90a's production kernel, fed by tensor copies, and the mma.sync kernel, whose threads read
lines of any pitch and address. `torch_op.solver` asks for both where the first would need an operand copied, and
`compared` says which is estimated faster.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import islice

from ..arch import arch
from ..dtypes import dtype
from ..errors import LayoutError, OperandError
from ..kernels.compile.worker import Kernel, plan_of
from ..kernels.epilogue.chain import Epilogue
from ..kernels.operands.combined import Combined
from ..kernels.operands.gated import combination
from ..kernels.operands.pair import SecondPair
from ..kernels.partials import whole_rows
from ..kernels.planner import PlanParts, tcgen05_configs
from ..kernels.sm80.choose import Sm80Choice, by_lines, holding_groups
from ..kernels.sm90.choose.costs import cost_model
from ..kernels.sm90.choose.occupancy import ClusterOccupancy
from ..kernels.sm90.choose.rules import (
    NEXT,
    SPARE,
    Sm90Choice,
    choose,
    in_place,
    likeliest,
    near_depth,
    near_rows,
    nearest,
    of_estimate,
    with_whole_rows,
)
from ..kernels.sm90.config import Sm90Config, check_tiles, check_whole_rows
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm90.request import check_rows
from ..kernels.sm100.choose import Sm100Choice
from . import tuned_store as tuned
from .problem import Problem, Solution


def choose_kernel(
    problem: Problem, sizes: tuple[int, int, int, int], orders: Sequence[str], names: tuple[str, str, str], direct: bool
) -> tuple[Sm90Choice | Sm100Choice, str]:
    """The first configuration whose plan can be derived, and the reason for it. By tcgen05 it is the caller's.

    sizes   m, n, k and the batch of one launch
    orders  "row" or "col" of A, B and C
    names   of their types, with the orders: "bf16:row"
    direct  C's lines are such that no tensor copy stores them

    Raises OperandError with the reason of the first that failed where none can be derived, or each has too many tiles.

    >>> from layoutgemm.torch_op.problem import StridedOperand
    >>> x = StridedOperand((64, 64), (64, 1), "bf16")
    >>> names = ("bf16:row", "bf16:row", "bf16:row")
    >>> choice, _ = choose_kernel(Problem(x, x, x), (64, 64, 64, 1), ("row", "row", "row"), names, direct=False)
    >>> choice.config.launch
    'tiles'
    """
    if problem.by_tcgen05:
        return choose_by_tcgen05(problem, sizes, names)
    m, n, k, batch = sizes
    last: LayoutError | None = None
    for choice, why in _candidates(problem, sizes, orders):
        if direct:
            choice = replace(choice, config=replace(choice.config, store="direct", split=1, staged_epilogue_k_tiles=0))
        # Of the sizes only K takes part, and only where the last k tiles are multiplied in another order.
        deep = min(k, 1 << 16) if choice.config.staged_epilogue_k_tiles else 1 << 16
        tile, error = _derived(
            Kernel(choice, names, batch > 1, problem.epilogue, problem.gated, bool(problem.second_k)), deep
        )
        if error is not None:
            last = last or error
            continue
        rows, columns = (n, m) if choice.swapped else (m, n)
        along_m, along_n = choice.config.cluster
        across = -(-rows // (tile[0] * along_m)), -(-columns // (tile[1] * along_n))
        try:
            check_rows(choice.config, rows)
            check_tiles(choice.config, across, batch, ragged=False)
            if problem.epilogue is not None and problem.epilogue.reductions:
                check_whole_rows(choice.config, tile[1], columns, batch)
                choice = _with_whole_rows(choice, names, problem, sizes)
        except LayoutError as refusal:
            last = last or refusal
            continue
        return choice, why
    raise OperandError(f"no kernel for a {names[0]}, b {names[1]}, c {names[2]}, {m}x{n}x{k}: {last}") from last


def _with_whole_rows(
    choice: Sm90Choice, names: tuple[str, str, str], problem: Problem, sizes: tuple[int, int, int, int]
) -> Sm90Choice:  # fmt: skip
    """The choice, or its kernel's whose clusters reduce whole rows of these sizes."""
    if problem.config is not None:
        return choice
    kernel = Kernel(choice, names, sizes[3] > 1, problem.epilogue, problem.gated, bool(problem.second_k))

    def derive(config: Sm90Config) -> Sm90Plan:
        plan: Sm90Plan = kernel._replace(choice=replace(choice, config=config)).plan(*sizes)
        return plan

    found = with_whole_rows(derive(choice.config), derive)
    return choice if found.row_exchange is None else replace(choice, config=choice.config.tuned(finish="cluster"))


@lru_cache(4096)
def _derived(kernel: Kernel, k: int) -> tuple[tuple[int, int], LayoutError | None]:
    """C's tile of a kernel's plan for that K, or the error of its derivation."""
    try:
        plan = kernel.plan(1, 1, k, 2 if kernel.batched else 1)
    except LayoutError as error:
        return (0, 0), error.with_traceback(None)
    return plan.tile_c, None


def _with_parts(problem: Problem, sizes: tuple[int, int, int, int], orders: Sequence[str]) -> Sm90Choice | None:
    """The choice that was measured for a gate, several B, a second pair, and steps."""
    types = problem.a.dtype, problem.b.dtype, problem.c.dtype
    names = tuple([f"{of}:{order}" for of, order in zip(types, orders, strict=True)])
    parts = problem.gated, problem.second_k, problem.epilogue
    return tuned.lookup_with_parts(problem.gpu, sizes, names, *parts)


def _candidates(
    problem: Problem, sizes: tuple[int, int, int, int], orders: Sequence[str]
) -> Iterator[tuple[Sm90Choice, str]]:
    """Choices for sm_90a's production kernel, the best first; those of the other family are `sm80.choose.by_lines`."""
    if isinstance(problem.config, Sm90Choice):
        yield problem.config, "given by the caller"
        return
    m, n, k, batch = sizes
    types = problem.a.dtype, problem.b.dtype, problem.c.dtype
    if problem.gated is not None:
        gate = problem.gated if isinstance(problem.gated, str) else None
        if (gate is None or problem.epilogue is not None) and (kept := _with_parts(problem, sizes, orders)) is not None:
            yield kept, tuned.MEASURED
        if gate and (kept := tuned.lookup(problem.gpu, sizes, tuned.gated_types(types, gate), tuple(orders))):
            yield kept, tuned.MEASURED
        yield from _in_place(problem, (m, n, k), orders)
        return
    if problem.second_k:
        if (kept := _with_parts(problem, sizes, orders)) is not None:
            yield kept, tuned.MEASURED
        both = _in_place(problem, (m, n, k + problem.second_k), orders)
        yield from ((choice, f"{why}; K = {k} and {problem.second_k} in one loop") for choice, why in both)
        return
    own = [] if problem.epilogue is None else [tuned.finished_types(types, problem.epilogue)]
    for name in (*own, types):
        if (found := tuned.lookup(problem.gpu, sizes, name, tuple(orders))) is not None:
            yield found, tuned.MEASURED
    k_major = orders[0] == "row", orders[1] == "col"
    # Few columns are few rows of the transposed product. Where rows are reduced, a tile has them whole: its columns'
    # partial results and a second launch take 6% longer for 65536x64x2048.
    by_rows = problem.epilogue is not None and (whole_rows(problem.epilogue) or problem.epilogue.quantizes is not None)
    flip = n < m and n <= 64 and not by_rows
    near = near_rows(m), near_depth(k)
    rows, columns, b_major = (n, near[0], k_major[0]) if flip else (near[0], n, k_major[1])
    choice, why = _chosen(
        (rows, columns, near[1], batch), problem.a.dtype, "K" if b_major else "MN", problem.places, problem.epilogue
    )
    swapped = choice.swapped != flip
    why = f"of the transposed product: {why}" if flip else why
    yield from nearest(Sm90Choice(choice.config, swapped), why, k_major[1 if swapped else 0])
    if rows > 64 and dtype(problem.a.dtype).bits == 16:
        yield from _next_best((rows, columns, near[1], batch), "K" if b_major else "MN", problem, flip)
    for config in SPARE:
        yield Sm90Choice(config), "the operands' orders leave little choice"


@lru_cache(4096)
def _chosen(
    sizes: tuple[int, int, int, int], a: str, b_major: str, places: ClusterOccupancy, epilogue: Epilogue | None
) -> tuple[Sm90Choice, str]:
    """The choice for sizes of the kernel's rows, columns, depth and batch."""
    m, n, k, batch = sizes
    return choose(m, n, k, batch=batch, a=a, b_major=b_major, multiprocessors=places, epilogue=epilogue)


def _in_place(problem: Problem, sizes: tuple[int, int, int], orders: Sequence[str]) -> Iterator[tuple[Sm90Choice, str]]:
    """Choices for M, N and K with the operands in their places."""
    (m, n, k), major = sizes, "K" if orders[1] == "col" else "MN"
    given = (near_rows(m), n, near_depth(k)), f"{problem.a.dtype}:{orders[0]}", major, problem.places
    yield _first_in_place(*given, problem.gated, problem.epilogue)
    yield from islice(_all_in_place(*given, problem.gated, problem.epilogue), 1, None)


def _all_in_place(
    sizes: tuple[int, int, int], a: str, b_major: str, places: ClusterOccupancy, gated: Combined | str | None,
    epilogue: Epilogue | None,
) -> Iterator[tuple[Sm90Choice, str]]:  # fmt: skip
    return in_place(*sizes, a=a, b_major=b_major, multiprocessors=places, gated=gated, epilogue=epilogue)


@lru_cache(4096)
def _first_in_place(
    sizes: tuple[int, int, int], a: str, b_major: str, places: ClusterOccupancy, gated: Combined | str | None,
    epilogue: Epilogue | None,
) -> tuple[Sm90Choice, str]:  # fmt: skip
    return next(_all_in_place(sizes, a, b_major, places, gated, epilogue))


def _next_best(
    sizes: tuple[int, int, int, int], b_major: str, problem: Problem, flip: bool
) -> Iterator[tuple[Sm90Choice, str]]:
    """The next best choices, for a column-major A, or a wide or narrow C."""
    m, n, k, batch = sizes
    found = likeliest(
        m, n, k, b_major, batch=batch, multiprocessors=problem.places, epilogue=problem.epilogue
    )  # fmt: skip
    for estimate in found[1:NEXT]:
        choice, why = of_estimate(estimate, m, n, k, b_major, batch=batch)
        why = f"of the transposed product: {why}" if flip else why
        yield from nearest(replace(choice, swapped=choice.swapped != flip), why, k_major=True)  # all rows are loaded


def choose_by_tcgen05(
    problem: Problem, sizes: tuple[int, int, int, int], names: tuple[str, str, str]
) -> tuple[Sm100Choice, str]:
    """The caller's configuration of the tcgen05 kernel, with the rule's tile where it has none.

    sizes, names  as for `choose_kernel`

    Raises OperandError with the reason where no plan can be derived.

    >>> from layoutgemm.kernels import Sm100Config
    >>> from layoutgemm.torch_op.problem import StridedOperand
    >>> x = StridedOperand((64, 64), (64, 1), "bf16")
    >>> problem = Problem(x, x, x, config=Sm100Choice(Sm100Config(stages=3)), code="sm_100a")
    >>> choose_by_tcgen05(problem, (64, 64, 64, 1), ("bf16:row",) * 3)[0].config.tile
    (128, 32)
    """
    assert isinstance(problem.config, Sm100Choice)
    (m, n, k, batch), asked = sizes, problem.config.config
    gated, pair = combination(problem.gated), SecondPair(problem.second_k) if problem.second_k else None
    parts = PlanParts(problem.epilogue, gated, None, None, pair, None, None, None, None)
    last: LayoutError | None = None
    for config in tcgen05_configs((m, n, batch), arch(problem.code), parts, asked=asked):
        choice = Sm100Choice(config, problem.code)
        kernel = Kernel(choice, names, batch > 1, problem.epilogue, problem.gated, pair is not None)
        try:
            tile = kernel.plan(m, n, k, batch).tile
        except LayoutError as error:
            last = last or error
            continue
        why = f"tiles of {tile[0]}x{tile[1]} by the rule, not measured; tcgen05 was asked for"
        return choice, "given by the caller" if asked.tile else why
    types = f"a {names[0]}, b {names[1]}, c {names[2]}"
    raise OperandError(f"no tcgen05 kernel for {types}, {m}x{n}x{k}: {last}") from last


# ------------------------------------------------------------------------------------------------ lines of any pitch

MODEL = cost_model("unaligned_rows")


def choose_by_lines(
    problem: Problem, sizes: tuple[int, int, int, int], orders: Sequence[str], names: tuple[str, str, str],
    align: tuple[int, int, int],
) -> tuple[Sm80Choice, str]:  # fmt: skip
    """The best configuration of the mma.sync kernel that fits the GPU.

    sizes, orders, names  as for `choose_kernel`
    align                 bytes that lines of A, B and C are aligned to

    Raises OperandError with the reason where no configuration can be derived.

    >>> from layoutgemm.torch_op.problem import StridedOperand
    >>> x = StridedOperand((64, 63), (63, 1), "bf16", start=2)
    >>> problem, names = Problem(x, x, x, code="sm_80"), ("bf16:row", "bf16:row", "bf16:row")
    >>> choice, _ = choose_by_lines(problem, (64, 63, 63, 1), ("row", "row", "row"), names, (2, 2, 2))
    >>> choice.config.align
    (2, 2, 2)
    """
    m, n, k, batch = sizes
    swapped = orders[2] == "col"
    rows, columns, turned = (n, m, (align[1], align[0], align[2])) if swapped else (m, n, align)
    most = problem.smem or arch(problem.code).smem_per_block
    last: LayoutError | None = None
    for config, why in by_lines(
        rows, columns, k, turned, dtype(problem.a.dtype).bytes, batch=batch, arch=problem.code,
        processors=problem.multiprocessors,
    ):  # fmt: skip
        choice = Sm80Choice(holding_groups(config, problem.epilogue), problem.code, swapped)
        bytes_, error = _shared(Kernel(choice, names, batch > 1, problem.epilogue))
        if error is None and bytes_ <= most:
            return choice, f"the transposed product, {why}" if swapped else why
        last = last or error or OperandError(f"{bytes_} bytes of shared memory, and a block has up to {most}")
    last = last or OperandError(f"a batch of {batch}")
    types = f"a {names[0]}, b {names[1]}, c {names[2]}"
    raise OperandError(f"no mma.sync kernel for {types}, {m}x{n}x{k}: {last}") from last


@lru_cache(4096)
def _shared(kernel: Kernel) -> tuple[int, LayoutError | None]:
    """Bytes of shared memory of the kernel's blocks, or the error of its derivation."""
    try:
        return plan_of(kernel).smem.total, None
    except LayoutError as error:
        return 0, error.with_traceback(None)


def compared(copied: Solution, in_place: Solution, problem: Problem) -> tuple[Solution, str]:
    """The solution that is estimated faster, and the sentence that says so.

    copied    by the kernel that tensor copies feed, after copies of operands
    in_place  by the kernel whose threads read operands as they lie
    """
    times = [_copying(x, problem) + _multiplying(x, problem) for x in (copied, in_place)]
    choice = in_place.kernel.choice
    assert isinstance(choice, Sm80Choice)
    align = choice.config.align[1::-1] if choice.swapped else choice.config.align[:2]
    said = (
        f"A and B in place, in accesses of {align[0]} and {align[1]} bytes: {times[1] * 1e6:.1f} us; copied for tensor "
        f"copies: {times[0] * 1e6:.1f} us (an estimate)"
    )
    return (in_place if times[1] < times[0] else copied), said


def _copying(solution: Solution, problem: Problem) -> float:
    """Seconds of a solution's copies: each element is read and written."""
    names = problem.a.dtype, problem.b.dtype, problem.c.dtype
    bytes_ = [copy.bytes(name) for copy, name in zip(solution.copies, names, strict=True) if copy is not None]
    return sum(2 * count / MODEL.copied + MODEL.copy for count in bytes_)


def _multiplying(solution: Solution, problem: Problem) -> float:
    """Seconds of a solution's launches."""
    m, n, k, batch = solution.sizes
    size, choice = dtype(problem.a.dtype).bytes, solution.kernel.choice
    moved = (m * k + n * k) * size * batch / MODEL.memory
    if not isinstance(choice, Sm80Choice):
        products = 2 * m * n * k * batch * size / 2 / MODEL.by_tma
        return len(solution.launches) * (max(products, moved) + MODEL.launch)
    config, rows, columns = choice.config, *((n, m) if choice.swapped else (m, n))
    tiles = -(-rows // config.tile[0]) * -(-columns // config.tile[1]) * batch
    waves = -(-tiles // problem.multiprocessors)
    wide = 2 if problem.a.dtype in ("e4m3", "e5m2") else size  # sm_90 has no mma.sync of its own for 8-bit floats
    rate = MODEL.by_lines * 2 / wide * MODEL.narrow.get(min(config.align[:2]), 1.0) / problem.multiprocessors
    seconds = waves * 2 * config.tile[0] * config.tile[1] * k / rate
    return len(solution.launches) * (max(seconds, moved) + MODEL.launch)
