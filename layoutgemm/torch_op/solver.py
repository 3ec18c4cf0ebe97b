"""The kernel, launches and copies that compute a problem.

    Problem  --solve-->  Solution: kernel, sizes, distances, launches, copies in words

Nothing here touches memory, and nothing here imports torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from math import prod

from ..atoms.tma.rules import STRIDE_UNIT
from ..dtypes import dtype
from ..errors import LayoutError, OperandError
from ..kernels.alignment import address_misfit, batch_misfit, line_misfit
from ..kernels.compile.worker import Kernel
from ..kernels.derive import padded_leading
from ..kernels.operands.combined import Combined
from ..kernels.sm80.choose import Sm80Choice
from ..kernels.sm80.plan import MAX_BATCH
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm100.choose import Sm100Choice
from ..kernels.teaching.plan import MAX_COORDINATE
from .choose import choose_by_lines, choose_kernel, compared
from .problem import (
    Ints,
    Matrices,
    OperandCopy,
    Problem,
    Solution,
    StridedOperand,
    contiguous_strides,
    gated_shapes,
    matrices,
    result_matrices,
)

# Launches that a batch may be taken apart into, where no tensor map holds it as a whole; beyond, an operand is copied.
MAX_LAUNCHES = 32
# Whether one matrix for all of a batch is a dimension of a tensor map, with stride 0. CUDA's documents do not say so;
# an H200 with driver 580.159 takes it (2026-11-20, tests/torch_op/test_gpu_matmul.py). Without, it is one launch each.
STRETCHED_IN_MAP = True
_BOTH_MAJORS = ("bf16", "f16")  # wgmma reads others with K contiguous alone: PTX ISA, "wgmma", matrix transpose
_BY_TCGEN05 = (
    *_BOTH_MAJORS,
    "e4m3",
    "e5m2",
    "i8",
    "u8",
)  # PTX ISA, "tcgen05", instruction descriptor, transpose of A and B


def solve(problem: Problem) -> Solution:
    """The kernel, its arguments and the copies for a problem without empty sizes.

    If TMA cannot read an operand, it is copied first, or multiplied by mma.sync (`kernels.sm80`), whichever
    `torch_op.choose.compared` estimates faster. GPUs without wgmma have mma.sync alone, but for tcgen05's kernel where
    the caller asks for it.

    Raises OperandError where no kernel exists for the types, or a size is beyond what tensor coordinates hold.
    """
    nothing = (None, None, None)
    if problem.by_tcgen05:
        return _solve(problem, nothing)
    if problem.gated is not None:
        if problem.code != "sm_90a":
            raise OperandError(f"a gated product needs sm_90a's kernel, and the GPU runs {problem.code}")
        return _solve(problem, nothing)
    if problem.second_k:
        if problem.code != "sm_90a":
            raise OperandError(f"two pairs in one product need sm_90a's kernel, and the GPU runs {problem.code}")
        return _solve(problem, nothing)
    if problem.code != "sm_90a":
        if problem.config is not None:
            raise OperandError(f"config is one of sm_90a's kernel, and the GPU runs {problem.code}")
        return _solve(problem, nothing, True)
    found = _solve(problem, nothing)
    if not any(found.copies[:2]) or problem.config is not None or problem.epilogue is not None:
        return found
    try:
        other = _solve(problem, nothing, True)
    except OperandError:  # no such kernel: types, sizes
        return found
    taken, why = compared(found, other, problem)
    return replace(taken, why=f"{taken.why}; {why}")


@functools.lru_cache(4096)
def why_unfused(problem: Problem) -> str:
    """Why no single kernel computes a gated problem, or "".

    >>> a, b, c = (StridedOperand(shape, (shape[1], 1), "bf16") for shape in ((64, 64), (64, 128), (64, 64)))
    >>> why_unfused(Problem(a, b, c, gated="silu"))
    "b: rows of 128 contiguous elements; a gated product's kernel reads a K-major b"
    """
    try:
        solve(problem)
    except LayoutError as error:
        return str(error)
    return ""


def _solve(
    problem: Problem, copies: tuple[OperandCopy | None, OperandCopy | None, OperandCopy | None], by_lines: bool = False
) -> Solution:
    """With copies that have been made; `by_lines`: for the kernel whose threads read lines of any pitch."""
    shapes = gated_shapes(problem.a.shape, problem.b.shape, problem.gated)
    vectors = len(problem.a.shape) == 1, len(problem.b.shape) == 1
    a, b = matrices(problem.a, "left", shapes.batch), matrices(problem.b, "right", shapes.batch)
    c = result_matrices(problem.c, shapes, vectors)
    plain = problem.epilogue is None and problem.gated is None
    a, b, c, batch = _folded(a, b, c, shapes.batch, plain, not problem.keep_batch_separate)
    orders = []
    for index, x, k_major in ((0, a, "row"), (1, b, "col")):
        order, rule = _has_lines(x, k_major) if by_lines else _readable(x, k_major, problem.by_tcgen05)
        if rule:
            return _solve(*_with_copy(problem, copies, index, k_major, rule, ()), by_lines)
        orders.append(order)
    stacked = problem.gated is not None and not isinstance(problem.gated, Combined)
    if stacked and orders[1] != "col":
        raise OperandError(f"b: rows of {b.columns} contiguous elements; a gated product's kernel reads a K-major b")
    order, direct = _writable(c, padded=problem.by_tcgen05 and copies[2] is not None)
    if not order or (direct and problem.by_tcgen05):
        why = f"{_not_stored(c, order)}; computed beside it, then copied"
        return _solve(*_with_copy(problem, copies, 2, order or "row", why, ()), by_lines)
    orders.append(order)

    # One dimension of the batch goes into the launch, the others are launches of their own.
    strides = list(zip(a.batch, b.batch, c.batch, strict=True))
    inner = _in_one_launch(batch, strides, by_lines)
    loops = [i for i in range(len(batch)) if i != inner]
    if prod(batch[i] for i in loops) > MAX_LAUNCHES:
        for index in range(2):
            if copies[index] is None and any(strides[i][index] == 0 for i in loops):
                many = prod(batch[i] for i in loops)
                why = f"one matrix for {many} of the batch is more than {MAX_LAUNCHES} launches"
                return _solve(*_with_copy(problem, copies, index, orders[index], why, shapes.batch), by_lines)
    if isinstance(problem.gated, Combined):  # the further matrices have one address each: a launch for each matrix of A
        if prod(batch) > MAX_LAUNCHES:
            raise OperandError(f"several matrices B, and {prod(batch)} matrices A with gaps: at most {MAX_LAUNCHES}")
        inner, loops = None, list(range(len(batch)))
    sizes = a.rows, c.columns, a.columns, batch[inner] if inner is not None else 1
    for name, size in zip(("m", "n", "k", "batch"), sizes, strict=True):
        if size > MAX_COORDINATE:
            raise OperandError(f"{name} = {size}: a size is at most 2**31 - 1, since tensor coordinates have 31 bits")
    in_a, in_b, in_c = (f"{x.dtype}:{order}" for x, order in zip((a, b, c), orders, strict=True))
    names = in_a, in_b, in_c
    choice: Sm90Choice | Sm80Choice | Sm100Choice
    if by_lines:
        align = tuple([x.alignment(order) for x, order in zip((a, b, c), orders, strict=True)])
        choice, why = choose_by_lines(problem, sizes, orders, names, align)  # type: ignore[arg-type]
    else:
        choice, why = choose_kernel(problem, sizes, orders, names, direct)
    leading = tuple([x.leading(order) for x, order in zip((a, b, c), orders, strict=True)])
    # Between matrices of a batch of one: any that a tensor map takes.
    alone = [step * x.lines(order)[2] for x, order, step in zip((a, b, c), orders, leading, strict=True)]
    steps = strides[inner] if inner is not None else tuple(alone)
    launches = [
        tuple([sum(i * strides[d][x] for i, d in zip(at, loops, strict=True)) for x in range(3)])
        for at in product(*[range(batch[d]) for d in loops])
    ]
    kernel = Kernel(choice, names, sizes[3] > 1, problem.epilogue, problem.gated, bool(problem.second_k))
    return Solution(kernel, sizes, leading, steps, tuple(launches), copies, why)  # type: ignore[arg-type]


def _in_one_launch(batch: Ints, strides: Sequence[Ints], by_lines: bool) -> int | None:
    """The batch dimension that one launch covers: the longest that a tensor map, or `by_lines` a kernel, takes."""
    able = [i for i, s in enumerate(strides) if all(s) or ((by_lines or STRETCHED_IN_MAP) and s[2] and any(s[:2]))]
    if by_lines:
        able = [i for i in able if batch[i] <= MAX_BATCH]
    return max(able, key=lambda i: batch[i], default=None)


def _folded(
    a: Matrices, b: Matrices, c: Matrices, batch: Ints, columns: bool = True, rows: bool = True
) -> tuple[Matrices, Matrices, Matrices, Ints]:
    """Collapse the batch: merge adjacent dimensions, fold one into M or N.

    A dimension is folded where the other operand is broadcast along it.

    columns  whether one may become columns: not where an epilogue has something of its own for each column
    rows     whether one may become rows, or columns

    >>> x, weight = StridedOperand((8, 2, 16), (32, 16, 1), "bf16"), StridedOperand((16, 24), (24, 1), "bf16")
    >>> y = Matrices(2, 24, 24, 1, (48,), "bf16", 16)
    >>> rows, _, _, batch = _folded(matrices(x, "left", (8,)), matrices(weight, "right", (8,)), y, (8,))
    >>> rows.rows, rows.row, batch
    (16, 16, ())
    """
    dims = [(n, *s) for n, *s in zip(batch, a.batch, b.batch, c.batch, strict=True) if n > 1]
    i = 0
    while i + 1 < len(dims):
        (outer, *far), (inner, *near) = dims[i], dims[i + 1]
        if all(x == y * inner for x, y in zip(far, near, strict=True)):
            dims[i : i + 2] = [(outer * inner, *near)]
            i = 0
        else:
            i += 1
    while rows and dims:
        size, step_a, step_b, step_c = dims[-1]
        m, n = a.rows, b.columns
        if size * max(m, n) > MAX_COORDINATE:
            break
        if step_b == 0 and step_a and (m == 1 or (step_a == m * a.row and step_c == m * c.row)):
            row_a, row_c = (step_a, step_c) if m == 1 else (a.row, c.row)
            a, c = a._replace(rows=m * size, row=row_a), c._replace(rows=m * size, row=row_c)
        elif columns and step_a == 0 and step_b and (n == 1 or (step_b == n * b.column and step_c == n * c.column)):
            column_b, column_c = (step_b, step_c) if n == 1 else (b.column, c.column)
            b, c = b._replace(columns=n * size, column=column_b), c._replace(columns=n * size, column=column_c)
        else:
            break
        dims.pop()
    left = [tuple([dim[x] for dim in dims]) for x in range(4)]
    return a._replace(batch=left[1]), b._replace(batch=left[2]), c._replace(batch=left[3]), left[0]


def _readable(x: Matrices, k_major: str, by_tcgen05: bool) -> tuple[str, str]:
    """(order in which tensor copies read the operand, ""), or (any, why none of them can)."""
    both = x.dtype in (_BY_TCGEN05 if by_tcgen05 else _BOTH_MAJORS)
    orders = (k_major, "col" if k_major == "row" else "row") if both else (k_major,)
    size = dtype(x.dtype).bytes
    if rule := address_misfit(x.start) or batch_misfit(x.batch, size):
        return k_major, rule
    rules = {order: line_misfit(*x.lines(order), size) for order in orders}
    for order, rule in rules.items():
        if not rule:
            return order, ""
    if not both and x.lines(k_major)[1] != 1:
        return k_major, f"{x.dtype} is multiplied with K contiguous alone, and its strides are {x.row, x.column}"
    # Of two reasons the one that is nearer to a way out.
    return k_major, next((rule for rule in rules.values() if "elements of a line" not in rule), rules[k_major])


def _has_lines(x: Matrices, k_major: str) -> tuple[str, str]:
    """(order in which threads read the operand, ""), or (any, why they cannot): of two, the one of wider accesses."""
    orders = [k_major, "col" if k_major == "row" else "row"]
    able = [order for order in orders if x.lines(order)[0] == 1 or x.lines(order)[1] == 1]
    if not able:
        return k_major, f"strides {x.row, x.column} of its matrices leave no line contiguous"
    return max(able, key=x.alignment), ""


def _writable(c: Matrices, padded: bool = False) -> tuple[str, bool]:
    """C's order, and whether threads store it element by element; ("", False) where neither way takes it.

    A TMA store needs what a TMA load needs, and ends a line at a multiple of 16 bytes (`Sm90Plan.bytes_beyond_line`).
    Other lines are stored by the threads themselves.

    padded  memory of the library's own follows each line
    """
    size = dtype(c.dtype).bytes
    even = not (address_misfit(c.start) or batch_misfit(c.batch, size))
    for order in ("row", "col"):
        whole = padded or c.lines(order)[0] * size % STRIDE_UNIT == 0
        if even and whole and not line_misfit(*c.lines(order), size):
            return order, False
    for order in ("row", "col"):
        extent, step, count, leading = c.lines(order)
        if (extent == 1 or step == 1) and (count == 1 or leading >= extent):
            return order, True
    return "", False


def _not_stored(c: Matrices, order: str) -> str:
    """Why no TMA store takes C's lines of that order. "" is an order that no kernel stores."""
    if not order:
        return f"strides {c.row, c.column} of its matrices leave no line contiguous"
    (extent, _, _, pitch), size = c.lines(order), dtype(c.dtype).bytes
    own = f"a line is {extent} * {size} = {extent * size} bytes, {pitch * size} apart"
    return f"TMA stores lines of whole 16 bytes, and {address_misfit(c.start) or own}"


def _with_copy(
    problem: Problem, copies: tuple[OperandCopy | None, ...], index: int, order: str, why: str, repeat: Ints
) -> tuple[Problem, tuple[OperandCopy | None, OperandCopy | None, OperandCopy | None]]:
    """The problem with one tensor replaced by a copy; `repeat` is the batch where stretching ends.

    order  of the copy, unless the tensor has lines of the other order: those stay, and only their pitch changes
    """
    name = "abc"[index]
    given: StridedOperand = getattr(problem, name)
    if index < 2 and given.dtype in _BOTH_MAJORS and len(given.shape) > 1:
        lines = {"row": (given.shape[-1], given.strides[-1]), "col": (given.shape[-2], given.strides[-2])}
        order = next((o for o, (extent, step) in lines.items() if step == 1 and extent > 1), order)
    if copies[index] is not None:
        raise OperandError(f"{name}: {why}, and so for its copy {copies[index]}")
    if index == 2:
        strides = padded_strides(given.shape, order, given.dtype)
        if not problem.by_tcgen05:  # whose threads store any lines
            strides = contiguous_strides(given.shape)
        copy = OperandCopy(given.shape, strides, f"out: {why}")
        return replace(problem, c=StridedOperand(given.shape, strides, given.dtype)), (*copies[:2], copy)  # type: ignore[return-value]
    shape = (*repeat, *given.shape[-2:]) if repeat else given.shape
    strides = padded_strides(shape, order, given.dtype)
    if not repeat and len(shape) > 2:  # what is stretched stays so
        kept = [1 if step == 0 else n for n, step in zip(shape[:-2], given.strides[:-2], strict=True)]
        shape = (*kept, *shape[-2:])
        strides = padded_strides(shape, order, given.dtype)
    pitch = f", lines {max(strides[-2:])} elements apart" if len(shape) > 1 else ""
    copy = OperandCopy(shape, strides, f"{name}: {why}; copied {order}-major{pitch}")
    full = (*repeat, *given.shape[-2:]) if repeat else given.shape
    seen = tuple([0 if n == 1 != m else s for n, m, s in zip(shape[:-2], full[:-2], strides[:-2])])
    changed = StridedOperand(full, (*seen, *strides[-2:]), given.dtype)
    made = (*copies[:index], copy, *copies[index + 1 :])
    return replace(problem, **{name: changed}), made  # type: ignore[return-value,arg-type]


def padded_strides(shape: Ints, order: str, name: str) -> Ints:
    """Strides of matrices whose lines are padded to 16 bytes, one matrix after the other.

    >>> padded_strides((2, 3, 5), "row", "bf16"), padded_strides((2, 3, 5), "col", "bf16")
    ((24, 8, 1), (40, 1, 8))
    """
    if len(shape) < 2:
        return (1,) * len(shape)
    rows, columns = shape[-2:]
    extent, count = (columns, rows) if order == "row" else (rows, columns)
    leading = padded_leading(dtype(name), extent)
    step, outer = leading * count, []
    for size in reversed(shape[:-2]):
        outer.append(step)
        step *= size
    return (*reversed(outer), *((leading, 1) if order == "row" else (1, leading)))
