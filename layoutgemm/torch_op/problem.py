"""A product of torch tensors as a problem: shapes as torch.matmul reads them, strides as the kernels take them.

    shapes, strides, types  -->  Problem (hashable)  -->  Solution: kernel, sizes, distances, launches, copies in words

Nothing here touches memory, and nothing here imports torch: a problem is a value, and so is what is done about it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from typing import NamedTuple

from ..atoms.tma.rules import STRIDE_UNIT
from ..dtypes import dtype
from ..errors import OperandError, TensorError
from ..kernels.compile.worker import Kernel
from ..kernels.derive import padded_leading
from ..kernels.epilogue.chain import Epilogue
from ..kernels.sm80.choose import Sm80Choice
from ..kernels.sm80.plan import MAX_BATCH
from ..kernels.sm90.choose.occupancy import Places
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.teaching.plan import MAX_COORDINATE
from .choose import choose_by_lines, choose_kernel, compared

Ints = tuple[int, ...]
# Launches that a batch may be taken apart into, where no tensor map holds it as a whole; beyond, an operand is copied.
MAX_LAUNCHES = 32
# Whether one matrix for all of a batch is a dimension of a tensor map, with stride 0. CUDA's documents do not say so;
# an H200 with driver 580.159 takes it (2026-11-20, tests/torch_op/test_gpu_matmul.py). Without, it is one launch each.
STRETCHED_IN_MAP = True
# Types that are multiplied, each with the types of C that may be asked for; the first is the default. 8-bit floats of
# both kinds may meet in one product, and so may 8-bit integers.
C_TYPES = {
    "bf16": ("bf16", "f32", "f16", "e4m3", "e5m2"),
    "f16": ("f16", "f32", "bf16", "e4m3", "e5m2"),
    "e4m3": ("bf16", "f16", "f32", "e4m3", "e5m2"),
    "e5m2": ("bf16", "f16", "f32", "e4m3", "e5m2"),
    "tf32": ("f32", "bf16", "f16", "e4m3", "e5m2"),
    "i8": ("i32", "f32", "bf16", "f16", "e4m3", "e5m2"),
    "u8": ("i32", "f32", "bf16", "f16", "e4m3", "e5m2"),
}
_BOTH_MAJORS = ("bf16", "f16")  # wgmma reads others with K contiguous alone: PTX ISA, "wgmma", matrix transpose


# --------------------------------------------------------------------------------------------------------------- shapes


class Shapes(NamedTuple):
    """A product's sizes: matrices (m, k) and (k, n), as many as `batch` says, and the shape that torch gives it."""

    m: int
    n: int
    k: int
    batch: Ints
    result: Ints


def shapes_of(a: Sequence[int], b: Sequence[int]) -> Shapes:
    """The sizes of torch.matmul(a, b): vectors, matrices and broadcast batches.

    Raises TensorError in torch's words, and with the sizes that do not meet.

    >>> shapes_of((7, 1, 2, 3), (5, 3, 4))
    Shapes(m=2, n=4, k=3, batch=(7, 5), result=(7, 5, 2, 4))
    >>> shapes_of((3,), (5, 3, 4)).result
    (5, 4)
    """
    if not a or not b:
        raise TensorError(f"both arguments to matmul need to be at least 1D, but they are {len(a)}D and {len(b)}D")
    m, k = (a[-2] if len(a) > 1 else 1), a[-1]
    k_of_b, n = (b[-2], b[-1]) if len(b) > 1 else (b[0], 1)
    if k != k_of_b:
        raise TensorError(f"{_mismatch(a, b)}: K is {k} in a and {k_of_b} in b")
    batch = broadcast(a[:-2], b[:-2])
    return Shapes(m, n, k, batch, (*batch, *((m,) * (len(a) > 1)), *((n,) * (len(b) > 1))))


def gated_shapes(a: Sequence[int], b: Sequence[int], gated: str | None) -> Shapes:
    """The sizes where b may hold the columns of a gate and, beside them, as many that it multiplies; n is C's.

    Raises TensorError for a b that is a vector, or of an odd number of columns.

    >>> gated_shapes((7, 2, 3), (3, 8), "silu")
    Shapes(m=2, n=4, k=3, batch=(7,), result=(7, 2, 4))
    """
    shapes = shapes_of(a, b)
    if gated is None:
        return shapes
    if len(b) < 2 or shapes.n % 2:
        has = "is a vector" if len(b) < 2 else f"has {shapes.n} columns"
        raise TensorError(f"b {has}: a gated product takes gate and up side by side, a matrix of an even number")
    n = shapes.n // 2
    return shapes._replace(n=n, result=(*shapes.result[:-1], n))


def _mismatch(a: Sequence[int], b: Sequence[int]) -> str:
    if len(a) == len(b) == 1:
        return (
            f"inconsistent tensor size, expected tensor [{a[0]}] and src [{b[0]}] to have the same number of elements, "
            f"but got {a[0]} and {b[0]} elements respectively"
        )
    if len(a) > 1 and len(b) == 1:
        return f"size mismatch, got input ({a[-2]}), mat ({a[-2]}x{a[-1]}), vec ({b[0]})"
    left = f"{a[-2] if len(a) > 1 else 1}x{a[-1]}"
    return f"mat1 and mat2 shapes cannot be multiplied ({left} and {b[-2]}x{b[-1]})"


def broadcast(a: Sequence[int], b: Sequence[int]) -> Ints:
    """Two shapes as one, extents of 1 stretched. Raises TensorError in torch's words.

    >>> broadcast((7, 1), (5,))
    (7, 5)
    """
    rank = max(len(a), len(b))
    left, right = (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
    for place, (x, y) in enumerate(zip(left, right, strict=True)):
        if x != y and 1 not in (x, y):
            raise TensorError(
                f"The size of tensor a ({x}) must match the size of tensor b ({y}) at non-singleton dimension {place}"
            )
    return tuple([y if x == 1 else x for x, y in zip(left, right, strict=True)])


def contiguous_strides(shape: Sequence[int]) -> Ints:
    """Strides of a tensor without gaps, the last index fastest.

    >>> contiguous_strides((5, 2, 4))
    (8, 4, 1)
    """
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.append(strides[-1] * max(extent, 1))
    return tuple(reversed(strides[: len(shape)]))


# -------------------------------------------------------------------------------------------------------------- problem


@dataclass(frozen=True, slots=True)
class Given:
    """A tensor as a kernel sees it: shape and strides in elements, its type's name, and `start`, the bytes that its
    address is a multiple of: 16, 8, 4, 2 or 1."""

    shape: Ints
    strides: Ints
    dtype: str
    start: int = 16


@dataclass(frozen=True, slots=True)
class Problem:
    """C = A @ B of given tensors.

    c               where C goes; its shape is the result's, or (batch..., m, n)
    places          of the GPU: its multiprocessors, and how many clusters run on them at a time
    gpu             its name, by which tuned results are kept
    config          what the caller chose, or None
    epilogue        what the kernel does to each element before it is stored, or None
    apart           the matrices of a batch stay apart: the epilogue has something of its own for each row or matrix
    gated           "silu", "gelu", ...: C = act(A @ B[:, :n]) * (A @ B[:, n:]), of half B's columns; or None
    code, smem      what the GPU runs ("sm_80", "sm_90a" or "sm_120a"), and bytes of shared memory of a block; 0: what
                    the architecture has at most
    """

    a: Given
    b: Given
    c: Given
    places: Places = field(default_factory=Places)
    gpu: str = ""
    config: Sm90Choice | None = None
    epilogue: Epilogue | None = None
    apart: bool = False
    code: str = "sm_90a"
    smem: int = 0
    gated: str | None = None

    @property
    def multiprocessors(self) -> int:
        """The GPU's."""
        return self.places.multiprocessors


class Matrices(NamedTuple):
    """An operand as matrices: extents and strides of rows and columns, and strides of each dimension of the batch."""

    rows: int
    columns: int
    row: int
    column: int
    batch: Ints
    dtype: str
    start: int

    @property
    def aligned(self) -> bool:
        """Whether it begins where a tensor map can."""
        return self.start == STRIDE_UNIT

    def alignment(self, order: str) -> int:
        """What addresses of its lines are multiples of, in bytes: a power of two up to 16."""
        _, _, count, leading = self.lines(order)
        size = dtype(self.dtype).bytes
        steps = [step * size for step in (*self.batch, leading if count > 1 else 0) if step]
        return min(self.start, *[step & -step for step in steps]) if steps else self.start

    def lines(self, order: str) -> tuple[int, int, int, int]:
        """Extent and stride along a line, number of lines and the distance between them."""
        along, across = (self.columns, self.column), (self.rows, self.row)
        return (*along, *across) if order == "row" else (*across, *along)

    def leading(self, order: str) -> int:
        """Elements from line to line; where there is one line, any that a tensor map takes."""
        extent, _, count, leading = self.lines(order)
        return leading if count > 1 else padded_leading(dtype(self.dtype), extent)


def matrices(given: Given, side: str, batch: Ints) -> Matrices:
    """The tensor as the operand on the "left" or on the "right" of a product with that batch.

    A vector is a row on the left and a column on the right; a dimension that is stretched, or of extent 1, has stride
    0.
    """
    shape, strides = given.shape, given.strides
    if len(shape) == 1:
        shape, strides = ((1, *shape), (0, *strides)) if side == "left" else ((*shape, 1), (*strides, 0))
    front = len(batch) - (len(shape) - 2)
    outer = [0] * front + [0 if n == 1 else s for n, s in zip(shape[:-2], strides[:-2], strict=True)]
    return Matrices(*shape[-2:], *strides[-2:], tuple(outer), given.dtype, given.start)  # type: ignore[call-arg,arg-type]


def result_matrices(c: Given, shapes: Shapes, vectors: tuple[bool, bool]) -> Matrices:
    """C likewise; `vectors` says of A and of B whether it is one, and its dimension not in the result."""
    kept = iter(c.strides[len(shapes.batch) :])
    row, column = (0 if vector else next(kept) for vector in vectors)
    outer = tuple([0 if n == 1 else s for n, s in zip(shapes.batch, c.strides[: len(shapes.batch)], strict=True)])
    return Matrices(shapes.m, shapes.n, row, column, outer, c.dtype, c.start)


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy into memory of the library's own.

    shape, strides  of the copy: lines padded to 16 bytes, dimensions of stride 0 not repeated
    why             the sentence for explain_matmul
    """

    shape: Ints
    strides: Ints
    why: str

    def bytes(self, name: str) -> int:
        """What it takes of memory, for elements of the type of that name."""
        last = sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * dtype(name).bytes


@dataclass(frozen=True, slots=True)
class Solution:
    """What is launched for a problem.

    kernel      the kernel: configuration, types and orders of A, B and C, epilogue
    sizes       m, n, k, batch of one launch
    leading     elements from line to line, of A, B, C; strides between matrices of the batch likewise
    launches    for each launch, where A, B, C begin: elements from their first
    copies      of A, B, C, or None; C's is the buffer that is copied into the caller's tensor afterwards
    why         why this kernel
    """

    kernel: Kernel
    sizes: tuple[int, int, int, int]
    leading: tuple[int, int, int]
    strides: tuple[int, int, int]
    launches: tuple[tuple[int, int, int], ...]
    copies: tuple[Copy | None, Copy | None, Copy | None]
    why: str


# ------------------------------------------------------------------------------------------------------------- solution


def solve(problem: Problem) -> Solution:
    """The kernel, its arguments and the copies for a problem without empty sizes.

    Where tensor copies cannot read an operand as it lies, threads may (the kernel of `kernels.sm80_plan`, compiled for
    the GPU's own architecture): which of the two it is, copy or slower kernel, `torch_op.choose.compared` says. GPUs
    without wgmma have that kernel alone.

    Raises OperandError where no kernel exists for the types, or a size is beyond what tensor coordinates hold.
    """
    nothing = (None, None, None)
    if problem.gated is not None:
        if problem.code != "sm_90a":
            raise OperandError(f"a gated product needs sm_90a's kernel, and the GPU runs {problem.code}")
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


def _solve(
    problem: Problem, copies: tuple[Copy | None, Copy | None, Copy | None], by_lines: bool = False
) -> Solution:
    """With copies that have been made; `by_lines`: for the kernel whose threads read lines of any pitch."""
    shapes = gated_shapes(problem.a.shape, problem.b.shape, problem.gated)
    vectors = len(problem.a.shape) == 1, len(problem.b.shape) == 1
    a, b = matrices(problem.a, "left", shapes.batch), matrices(problem.b, "right", shapes.batch)
    c = result_matrices(problem.c, shapes, vectors)
    plain = problem.epilogue is None and problem.gated is None
    a, b, c, batch = _folded(a, b, c, shapes.batch, plain, not problem.apart)
    orders = []
    for index, x, k_major in ((0, a, "row"), (1, b, "col")):
        order, rule = _has_lines(x, k_major) if by_lines else _readable(x, k_major)
        if rule:
            return _solve(*_with_copy(problem, copies, index, k_major, rule, ()), by_lines)
        orders.append(order)
    if problem.gated is not None and orders[1] != "col":
        raise OperandError(f"b: rows of {b.columns} contiguous elements; a gated product's kernel reads a K-major b")
    order, direct = _writable(c)
    if not order:
        why = f"strides {c.row, c.column} of its matrices leave no line contiguous; computed beside it, then copied"
        return _solve(*_with_copy(problem, copies, 2, "row", why, ()), by_lines)
    orders.append(order)

    # One dimension of the batch goes into the launch, the others are launches of their own.
    strides = list(zip(a.batch, b.batch, c.batch, strict=True))
    one_launch = [
        i for i, s in enumerate(strides)
        if all(s) or ((by_lines or STRETCHED_IN_MAP) and s[2] and any(s[:2]))
    ]  # fmt: skip
    if by_lines:
        one_launch = [i for i in one_launch if batch[i] <= MAX_BATCH]
    inner = max(one_launch, key=lambda i: batch[i], default=None)
    loops = [i for i in range(len(batch)) if i != inner]
    if prod(batch[i] for i in loops) > MAX_LAUNCHES:
        for index in range(2):
            if copies[index] is None and any(strides[i][index] == 0 for i in loops):
                many = prod(batch[i] for i in loops)
                why = f"one matrix for {many} of the batch is more than {MAX_LAUNCHES} launches"
                return _solve(*_with_copy(problem, copies, index, orders[index], why, shapes.batch), by_lines)
    if problem.gated is not None:  # halves of several matrices are launches of their own, of one each
        if prod(batch) > MAX_LAUNCHES:
            raise OperandError(f"a gated product's kernel is of one pair of matrices, and there are {prod(batch)}")
        inner, loops = None, list(range(len(batch)))
    sizes = a.rows, c.columns, a.columns, batch[inner] if inner is not None else 1
    for name, size in zip(("m", "n", "k", "batch"), sizes, strict=True):
        if size > MAX_COORDINATE:
            raise OperandError(f"{name} = {size}: a size is at most 2**31 - 1, since tensor coordinates have 31 bits")
    in_a, in_b, in_c = (f"{x.dtype}:{order}" for x, order in zip((a, b, c), orders, strict=True))
    names = in_a, in_b, in_c
    choice: Sm90Choice | Sm80Choice
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
    kernel = Kernel(choice, names, sizes[3] > 1, problem.epilogue, problem.gated)
    return Solution(kernel, sizes, leading, steps, tuple(launches), copies, why)  # type: ignore[arg-type]


def _folded(
    a: Matrices, b: Matrices, c: Matrices, batch: Ints, columns: bool = True, rows: bool = True
) -> tuple[Matrices, Matrices, Matrices, Ints]:
    """The batch with as few dimensions as can be: neighbours joined, one that only adds rows or columns become such.

    columns  whether one may become columns: not where an epilogue has something of its own for each column
    rows     whether one may become rows, or columns

    >>> x, weight = Given((8, 2, 16), (32, 16, 1), "bf16"), Given((16, 24), (24, 1), "bf16")
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


def _line_rule(x: Matrices, order: str) -> str:
    """Why the lines of an operand are no tensor map's; "" where they are."""
    extent, step, count, leading = x.lines(order)
    size = dtype(x.dtype).bytes
    if extent > 1 and step != 1:
        return f"elements of a line lie {step} apart"
    if count > 1 and leading < extent:
        return f"lines of {extent} elements lie {leading} elements apart, so they overlap"
    if count > 1 and leading * size % STRIDE_UNIT:
        return f"lines lie {leading} * {size} = {leading * size} bytes apart, no multiple of {STRIDE_UNIT}"
    return ""


def _readable(x: Matrices, k_major: str) -> tuple[str, str]:
    """(order in which tensor copies read the operand, ""), or (any, why none of them can)."""
    both = x.dtype in _BOTH_MAJORS
    orders = (k_major, "col" if k_major == "row" else "row") if both else (k_major,)
    rules = {order: _line_rule(x, order) for order in orders}
    size = dtype(x.dtype).bytes
    uneven = next((step for step in x.batch if step * size % STRIDE_UNIT), None)
    if not x.aligned:
        return k_major, f"it starts at no multiple of {STRIDE_UNIT} bytes"
    if uneven is not None:
        return k_major, f"matrices of the batch lie {uneven} * {size} = {uneven * size} bytes apart, no multiple of 16"
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


def _writable(c: Matrices) -> tuple[str, bool]:
    """C's order, and whether threads store it element by element; ("", False) where neither way takes it.

    A tensor store needs what a tensor load needs, and ends a line at a multiple of 16 bytes whatever lies there
    (`Sm90Plan.bytes_beyond_line`): other lines are stored by the threads themselves, which needs nothing of them.
    """
    size = dtype(c.dtype).bytes
    even = c.aligned and all(step * size % STRIDE_UNIT == 0 for step in c.batch)
    for order in ("row", "col"):
        if even and c.lines(order)[0] * size % STRIDE_UNIT == 0 and not _line_rule(c, order):
            return order, False
    for order in ("row", "col"):
        extent, step, count, leading = c.lines(order)
        if (extent == 1 or step == 1) and (count == 1 or leading >= extent):
            return order, True
    return "", False


def _with_copy(
    problem: Problem, copies: tuple[Copy | None, ...], index: int, order: str, why: str, repeat: Ints
) -> tuple[Problem, tuple[Copy | None, Copy | None, Copy | None]]:
    """The problem with one tensor replaced by a copy; `repeat` is the batch where stretching ends.

    order  of the copy, unless the tensor has lines of the other order: those stay, and only their pitch changes
    """
    name = "abc"[index]
    given: Given = getattr(problem, name)
    if index < 2 and given.dtype in _BOTH_MAJORS and len(given.shape) > 1:
        lines = {"row": (given.shape[-1], given.strides[-1]), "col": (given.shape[-2], given.strides[-2])}
        order = next((o for o, (extent, step) in lines.items() if step == 1 and extent > 1), order)
    if copies[index] is not None:
        raise OperandError(f"{name}: {why}, and so for its copy {copies[index]}")
    if index == 2:
        strides = contiguous_strides(given.shape)
        copy = Copy(given.shape, strides, f"out: {why}")
        return replace(problem, c=Given(given.shape, strides, given.dtype)), (*copies[:2], copy)  # type: ignore[return-value]
    shape = (*repeat, *given.shape[-2:]) if repeat else given.shape
    strides = padded_strides(shape, order, given.dtype)
    if not repeat and len(shape) > 2:  # what is stretched stays so
        kept = [1 if step == 0 else n for n, step in zip(shape[:-2], given.strides[:-2], strict=True)]
        shape = (*kept, *shape[-2:])
        strides = padded_strides(shape, order, given.dtype)
    pitch = f", lines {max(strides[-2:])} elements apart" if len(shape) > 1 else ""
    copy = Copy(shape, strides, f"{name}: {why}; copied {order}-major{pitch}")
    full = (*repeat, *given.shape[-2:]) if repeat else given.shape
    seen = tuple([0 if n == 1 != m else s for n, m, s in zip(shape[:-2], full[:-2], strides[:-2])])
    changed = Given(full, (*seen, *strides[-2:]), given.dtype)
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
