"""DensePlan: a kernel that unpacks weights into a dense matrix of 16-bit numbers.

A CTA has a unit: 64 rows of 128 columns. Each thread loads its words from global memory, converts them to the registers
that wgmma would take, and writes those to shared memory. A warp has 16 of the rows, and so meets itself alone. It reads
vectors of 16 bytes back, and stores 256 contiguous bytes of a row.

Values are those of `torch_op.quantized.weights.dense_of`, rounded once to the type: (value - zero point) * scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

from ...arch import Arch, arch
from ...arguments import shown
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...errors import PlanError
from ...layouts import ComposedLayout, Layout, Swizzle
from ...report import Check, Report
from ..plan import rounded_up
from ..verbs import named
from .formats import UNIT_K, UNIT_ROWS, QuantizedFormat
from .order import NUMBER_BYTES, THREADS, PackedOrder

if TYPE_CHECKING:
    from ..compile.compiler import CompiledGemm

VECTOR = VECTOR_BYTES // NUMBER_BYTES  # elements of a store
_BANKS = 32


@dataclass(frozen=True)
class DensePlan:
    """A kernel that unpacks weights; its code serves any size.

    format       of the weights
    activations  type that they are packed for, and of the result: bf16 or f16
    target       the architecture

    Raises PlanError for weights that are packed for float8 activations, whose scales multiply sums.

    >>> plan = DensePlan(QuantizedFormat("int4", 128), "bf16")
    >>> plan.shared_bytes, str(plan.stored)
    (16384, '((16,2,4),8):((8,128,2048),256)')
    >>> bool(plan.check())
    True
    """

    format: QuantizedFormat
    activations: str
    target: str = "sm_90a"

    device_kernel: ClassVar[str] = "quantized.device.dense:DenseKernel"  # as `kernels.verbs.named` takes it
    parameters: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("units", "scales", "dense"), "address"),
        **dict.fromkeys(("n", "columns", "experts"), "size"),
    }

    def __post_init__(self) -> None:
        if self.activations not in ("bf16", "f16"):
            raise PlanError(
                f"activations = {shown(self.activations)}: dense weights are bf16 or f16; scales of weights that are "
                "packed for float8 activations multiply sums"
            )

    @property
    def arch(self) -> Arch:
        """The architecture."""
        return arch(self.target)

    @property
    def overlaps(self) -> bool:
        """True for dependent launch: it waits for the kernel before it."""
        return "griddepcontrol" in self.arch.features

    @property
    def fused(self) -> bool:
        """True if differences and products of conversions are fused multiply-adds. Before sm_90 bf16 has no others."""
        return self.activations == "bf16" and not self.overlaps

    @cached_property
    def order(self) -> PackedOrder:
        """The order of the packed weights."""
        return PackedOrder(self.format, self.activations)

    @property
    def fragments(self) -> int:
        """Fragments of a unit, one after the other along K."""
        return UNIT_K // self.order.depth

    @cached_property
    def tile(self) -> ComposedLayout:
        """(row, column) of a unit -> element in shared memory. Vectors of 8 rows lie in different banks."""
        vectors = VECTOR.bit_length() - 1
        swizzle = Swizzle(3, vectors, (UNIT_K // VECTOR).bit_length() - 1)
        return ComposedLayout(swizzle, 0, Layout((UNIT_ROWS, UNIT_K), (UNIT_K, 1)))

    @cached_property
    def written(self) -> ComposedLayout:
        """(thread, (value of a fragment, fragment)) -> element in shared memory."""
        thread, value = self.order.atom.layout_A[0], self.order.atom.layout_A[1]
        step = self.order.depth * UNIT_ROWS
        own = Layout((thread.shape, (value.shape, self.fragments)), (thread.stride, (value.stride, step)))
        composed: ComposedLayout = self.tile.compose(own)
        return composed

    @property
    def stored(self) -> Layout:
        """(thread, vector) -> row * 128 + column of the first element. A warp has 16 rows, two of them in a vector."""
        across, rows = UNIT_K // VECTOR, UNIT_ROWS // (THREADS // WARP)
        each = WARP // across
        threads = Layout((across, each, THREADS // WARP), (VECTOR, UNIT_K, UNIT_K * rows))
        return Layout((threads.shape, rows // each), (threads.stride, UNIT_K * each))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: a unit's elements."""
        return UNIT_ROWS * UNIT_K * NUMBER_BYTES

    @property
    def facts(self) -> dict[str, object]:
        """All that decides the code, as JSON-able data."""
        return {"unpacked": [str(self.format), self.activations]}

    def compile(self) -> CompiledGemm:
        """The kernel, compiled or from the cache. It needs the DSL, and a GPU only to launch."""
        made: CompiledGemm = named("compile.compiler:compile_own")(self)
        return made

    def check(self) -> Report:
        """One warp writes and stores each element once. Shared memory has no bank conflict."""
        return Report(tuple(self._checks()))

    def _checks(self) -> Iterator[Check]:
        size, values = UNIT_ROWS * UNIT_K, self.fragments * int(self.order.atom.layout_A[1].size)
        written = [[self.written(t, v) for v in range(values)] for t in range(THREADS)]
        read = [[self.vector_at(t, v) for v in range(int(self.stored[1].size))] for t in range(THREADS)]
        loaded = [[x + i for x in own for i in range(VECTOR)] for own in read]
        for name, places in (("written", written), ("read", loaded)):
            once = sorted(x for own in places for x in own) == list(range(size))
            said = f"{THREADS} threads have each of {UNIT_ROWS}x{UNIT_K} elements once"
            yield Check(name, said, once, "exhaustion", "" if once else "an element is nobody's, or two threads'")
        apart = ""
        for first in range(0, THREADS, WARP):
            own = {x for t in range(first, first + WARP) for x in written[t]}
            other = next((x for t in range(first, first + WARP) for x in loaded[t] if x not in own), None)
            if other is not None and not apart:
                apart = f"warp {first // WARP} reads element {other}, of another"
        yield Check("warps", "a warp reads what it wrote", not apart, "exhaustion", apart)
        split = next((f"thread {t}" for t, own in enumerate(written) if not _in_words(own)), "")
        yield Check("words", "two values of a register are a word", not split, "exhaustion", split)
        pairs = [own[::2] for own in written]
        for name, places, words, lanes in (("written", pairs, 1, WARP), ("read", read, VECTOR_BYTES // 4, 8)):
            clash = next(filter(None, self._clashes(places, words, lanes)), "")
            yield Check(f"banks, {name}", f"{lanes} lanes reach {_BANKS} banks", not clash, "exhaustion", clash)

    @staticmethod
    def _clashes(places: list[list[int]], words: int, lanes: int) -> Iterator[str]:
        """A text for each access in which two lanes share a bank."""
        for first in range(0, THREADS, lanes):
            for access in range(len(places[0])):
                starts = [places[t][access] * NUMBER_BYTES // 4 for t in range(first, first + lanes)]
                found = len({(x + i) % _BANKS for x in starts for i in range(words)})
                yield "" if found == lanes * words else f"threads from {first}, access {access}: {found} banks"

    def vector_at(self, thread: int, vector: int) -> int:
        """The element in shared memory of a stored vector."""
        row, column = divmod(self.stored(thread, vector), UNIT_K)
        return self.tile(row, column)


def _in_words(places: list[int]) -> bool:
    """True if every two values lie next to each other, from an even place on."""
    return all(low % 2 == 0 and high == low + 1 for low, high in zip(places[::2], places[1::2], strict=True))


def dense_pitch(k: int) -> int:
    """Elements from row to row of the kernel's result: whole vectors.

    >>> dense_pitch(256), dense_pitch(130)
    (256, 136)
    """
    return rounded_up(k, VECTOR)
