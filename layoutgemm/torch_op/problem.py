"""A product of torch tensors as a value. Shapes as torch.matmul reads them, strides as kernels take them.

    shapes, strides, types  -->  Problem (hashable)  --solver.solve-->  Solution

Nothing here touches memory, and nothing here imports torch.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ..arch import ARCHES, arch, of_capability
from ..atoms.copy.base import VECTOR_BYTES
from ..atoms.tma.rules import STRIDE_UNIT
from ..dtypes import dtype
from ..errors import TensorError
from ..kernels.compile.worker import Kernel
from ..kernels.derive import padded_leading
from ..kernels.epilogue.chain import MAX_WORDS, Activation, Bias, Epilogue, Step
from ..kernels.operands.combined import Combined
from ..kernels.plan import rounded_up
from ..kernels.sm80.choose import Sm80Choice
from ..kernels.sm80.plan import Sm80Config, stored_floats
from ..kernels.sm90.choose.occupancy import ClusterOccupancy
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm100.choose import Sm100Choice
from ..kernels.sm100.plan import Sm100Config
from ..moved import old_names

__getattr__ = old_names(__name__)

OLDEST_TORCH = (2, 6)
Ints = tuple[int, ...]
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


# --------------------------------------------------------------------------------------------------------------- shapes


class Shapes(NamedTuple):
    """A product's sizes. Matrices (m, k) and (k, n), as many as `batch` says, and the shape that torch gives it."""

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
        way_out = f"; b.mT has K = {k}" if len(b) > 1 and k == n else ""
        raise TensorError(f"{_mismatch(a, b)}: K is {k} in a and {k_of_b} in b{way_out}")
    batch = broadcast(a[:-2], b[:-2])
    return Shapes(m, n, k, batch, (*batch, *((m,) * (len(a) > 1)), *((n,) * (len(b) > 1))))


def gated_shapes(a: Sequence[int], b: Sequence[int], gated: Combined | str | None) -> Shapes:
    """The sizes of a product that may be gated. A gated one has b = [gate | up], and n is C's.

    Raises TensorError for a b that is a vector, or of an odd number of columns.

    >>> gated_shapes((7, 2, 3), (3, 8), "silu")
    Shapes(m=2, n=4, k=3, batch=(7,), result=(7, 2, 4))
    """
    shapes = shapes_of(a, b)
    if gated is None or isinstance(gated, Combined):
        return shapes
    n = half(len(b), shapes.n)
    return shapes._replace(n=n, result=(*shapes.result[:-1], n))


def half(rank: int, columns: int) -> int:
    """The columns of a gate, given the rank and the columns of b = [gate | up].

    Raises TensorError for a b that is a vector, or of an odd number of columns.
    """
    if rank < 2 or columns % 2:
        has = "is a vector" if rank < 2 else f"has {columns} columns"
        raise TensorError(f"b {has}: a gated product takes gate and up side by side, a matrix of an even number")
    return columns // 2


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
class StridedOperand:
    """A tensor as a kernel sees it. Shape and strides in elements, its type's name, and `start`, the bytes that its
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
    keep_batch_separate   True if no two matrices of a batch are merged: the epilogue has something of its own for each
                    row or matrix
    gated           "silu", "gelu", ...: C = act(A @ B[:, :n]) * (A @ B[:, n:]), of half B's columns; or a Combined: C
                    is its function of A @ B and products with further matrices; or None
    second_k        K of a second pair, whose product is added; 0 if there is none
    code, smem      what the GPU runs ("sm_86", "sm_90a", "sm_120a"), and bytes of shared memory of a block; 0: what
                    the architecture has at most
    """

    a: StridedOperand
    b: StridedOperand
    c: StridedOperand
    places: ClusterOccupancy = field(default_factory=ClusterOccupancy)
    gpu: str = ""
    config: Sm90Choice | Sm100Choice | None = None
    epilogue: Epilogue | None = None
    keep_batch_separate: bool = False
    code: str = "sm_90a"
    smem: int = 0
    gated: Combined | str | None = None
    second_k: int = 0

    @property
    def multiprocessors(self) -> int:
        """The GPU's."""
        return self.places.multiprocessors

    @property
    def by_tcgen05(self) -> bool:
        """True if the caller asked for the tcgen05 kernel. It reads 8-bit floats of both majors, and has no choice."""
        return asks_tcgen05(self.config)


class Matrices(NamedTuple):
    """An operand as matrices. Extents and strides of rows and columns, and strides of each dimension of the batch."""

    rows: int
    columns: int
    row: int
    column: int
    batch: Ints
    dtype: str
    start: int

    @property
    def aligned(self) -> bool:
        """True if a tensor map can begin at its address."""
        return self.start == STRIDE_UNIT

    def alignment(self, order: str) -> int:
        """Alignment of its lines in bytes: a power of two up to 16."""
        _, _, count, leading = self.lines(order)
        size = dtype(self.dtype).bytes
        steps = [step * size for step in (*self.batch, leading if count > 1 else 0) if step]
        return min(self.start, *[step & -step for step in steps]) if steps else self.start

    def lines(self, order: str) -> tuple[int, int, int, int]:
        """Extent and stride along a line, number of lines and the distance between them."""
        along, across = (self.columns, self.column), (self.rows, self.row)
        return (*along, *across) if order == "row" else (*across, *along)

    def leading(self, order: str) -> int:
        """Elements from line to line. Where there is one line, any that a tensor map takes."""
        extent, _, count, leading = self.lines(order)
        return leading if count > 1 else padded_leading(dtype(self.dtype), extent)


def matrices(given: StridedOperand, side: str, batch: Ints) -> Matrices:
    """The tensor as the "left" or the "right" operand of a product with that batch.

    A vector is a row on the left and a column on the right; a dimension that is stretched, or of extent 1, has stride
    0.
    """
    shape, strides = given.shape, given.strides
    if len(shape) == 1:
        shape, strides = ((1, *shape), (0, *strides)) if side == "left" else ((*shape, 1), (*strides, 0))
    front = len(batch) - (len(shape) - 2)
    outer = [0] * front + [0 if n == 1 else s for n, s in zip(shape[:-2], strides[:-2], strict=True)]
    return Matrices(*shape[-2:], *strides[-2:], tuple(outer), given.dtype, given.start)  # type: ignore[call-arg,arg-type]


def result_matrices(c: StridedOperand, shapes: Shapes, vectors: tuple[bool, bool]) -> Matrices:
    """C likewise. `vectors` says of A and of B whether it is one, and its dimension not in the result."""
    kept = iter(c.strides[len(shapes.batch) :])
    row, column = (0 if vector else next(kept) for vector in vectors)
    outer = tuple([0 if n == 1 else s for n, s in zip(shapes.batch, c.strides[: len(shapes.batch)], strict=True)])
    return Matrices(shapes.m, shapes.n, row, column, outer, c.dtype, c.start)


def elements_between(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from a tensor's first one to behind its last.

    >>> elements_between((2, 3), (8, 1))
    11
    """
    return sum((extent - 1) * stride for extent, stride in zip(shape, strides, strict=True)) + 1


@dataclass(frozen=True, slots=True)
class OperandCopy:
    """A copy into memory of the library's own.

    shape, strides  of the copy: lines padded to 16 bytes, dimensions of stride 0 not repeated
    why             the sentence for explain_matmul
    """

    shape: Ints
    strides: Ints
    why: str

    def elements(self, size: int) -> int:
        """Its elements of `size` bytes. A TMA store fills the 16 bytes in which a line ends, the last one's too."""
        return rounded_up(elements_between(self.shape, self.strides) * size, VECTOR_BYTES) // size

    def bytes(self, name: str) -> int:
        """Its bytes of memory, for elements of the type of that name."""
        size = dtype(name).bytes
        return self.elements(size) * size


@dataclass(frozen=True, slots=True)
class Solution:
    """The launches and copies that compute a problem.

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
    copies: tuple[OperandCopy | None, OperandCopy | None, OperandCopy | None]
    why: str


# ----------------------------------------------------------------------------------------------------------- one launch


def arguments(
    solution: Solution, pointers: Sequence[object], workers: int, words: Sequence[object] = ()
) -> tuple[Any, ...]:
    """A launch's arguments, as the kernel's `parameters` name them; the epilogue's words come last."""
    choice = solution.kernel.choice
    own = choice.arguments(pointers, solution.sizes, solution.leading, solution.strides, workers)
    if not solution.kernel.takes_words:
        return own
    bound = () if choice.persistent else (workers,)  # every kernel with words has that parameter
    return (*own, *bound, *words, *[0] * (MAX_WORDS - len(words)))


def workers(solution: Solution, places: ClusterOccupancy) -> int:
    """The resident clusters: a persistent kernel is launched with as many."""
    return places.resident(cluster_size(solution.kernel.choice))


def cluster_size(choice: Sm90Choice | Sm80Choice | Sm100Choice) -> int:
    """Blocks of a cluster."""
    config = choice.config
    if isinstance(config, Sm100Config):
        return config.blocks
    if isinstance(config, Sm80Config):
        return 1
    return config.cluster[0] * config.cluster[1] * config.split


@functools.lru_cache(256)
def bias_epilogue(bias: str | None, activation: str | None, pairs: bool) -> Epilogue:
    """The epilogue of activation(a @ b + bias).

    bias   the name of its type, or None
    pairs  two columns are read at once: their number is even, and the bias is aligned to 16 bytes

    >>> [type(step).__name__ for step in bias_epilogue("f32", "relu", True).steps]
    ['Bias', 'Activation']
    """
    steps: list[Step] = [] if bias is None else [Bias("n", bias)]
    if activation is not None:
        steps.append(Activation(activation))
    return Epilogue(*steps).in_pairs(pairs)


def asks_tcgen05(config: object) -> bool:
    """True for a configuration of the tcgen05 kernel."""
    return isinstance(config, Sm100Config | Sm100Choice)


def code_of(capability: tuple[int, int], config: object = None) -> str | None:
    """The code that a GPU of this compute capability runs. None where no kernel runs on it.

    None for the GPUs of tcgen05 too, whose kernel no GPU has run here, unless the caller's configuration is one of it.

    >>> code_of((9, 0)), code_of((8, 6)), code_of((7, 5)), code_of((10, 0)), code_of((10, 0), Sm100Config())
    ('sm_90a', 'sm_86', None, None, 'sm_100a')
    """
    found = of_capability(capability)
    if found is None or ("tcgen05" in found.features and not asks_tcgen05(config)):
        return None
    return found.name


def why_no_code(capability: tuple[int, int], instead: str, ask: str = "layoutgemm.plan's run() launches it") -> str:
    """The reason that no kernel is launched on such a GPU, and what runs there.

    instead   the function of the framework that takes the same operands
    ask       the way to a kernel of tcgen05

    >>> why_no_code((10, 0), "torch.matmul", "config=Sm100Config() asks for it").partition("; ")[0]
    'compute capability 10.0 is sm_100a, whose kernel no GPU has run here: config=Sm100Config() asks for it'
    """
    found = of_capability(capability)
    text = f"compute capability {capability[0]}.{capability[1]}"
    if found is not None:
        text += f" is {found.name}, whose kernel no GPU has run here: {ask}"
    able = [entry.capabilities[0] for entry in ARCHES.values() if code_of(entry.capabilities[0]) == entry.name]
    others = ", ".join(f"{major}.{minor}" for major, minor in able if major != 9)
    return (
        f"{text}; these kernels run on 9.0 (H100, H200, GH200), and by mma.sync on {others}. {instead} takes the same"
    )


def reads_by_tma(code: str) -> bool:
    """True if a code's kernel is wgmma's or tcgen05's. Else it is mma.sync's, whose threads read.

    >>> [code for code in ("sm_80", "sm_90a", "sm_103a", "sm_120a") if reads_by_tma(code)]
    ['sm_90a', 'sm_103a']
    """
    return code == "sm_90a" or "tcgen05" in arch(code).features


def stores_fused(code: str, kind: str) -> bool:
    """True if the kernels of a code store results of that type behind an epilogue.

    Those of mma.sync store 8-bit floats from sm_89 on.

    >>> stores_fused("sm_90a", "e4m3"), stores_fused("sm_80", "e4m3"), stores_fused("sm_100a", "e4m3")
    (True, False, True)
    """
    return code == "sm_90a" or kind in stored_floats(code)
