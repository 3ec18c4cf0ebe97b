"""QuantizePlan: a kernel that turns bf16, f16 or f32 into 8-bit floats. Each block has a scale.

    group    elements that share a scale    CTA                               reads its elements
    -----    ---------------------------    -------------------------------   ---------------------------------
    1        128 of a row                   64 blocks, or 128x128             once, in registers
    128      128x128                        128x128                           once, in registers
    0        a row                          one row                           twice, the second time from L1 or L2

x is in either order: with rows contiguous ("row"), or columns ("col"), as in the transpose that a weight's gradient
needs. Values have contiguous rows always. A "col" tile is transposed through shared memory, whose words are swizzled.
`BothWaysPlan` quantises a matrix and its transpose: a "col" tile whose lines are stored too, each with a scale.
`JoinedPlan` quantises several tensors in one launch, each by a plan of its own.

The arithmetic is that of `epilogue.reduce.Quantize`, each operation rounded to f32:

    amax  = max(|x|, LEAST), NaN where one is
    scale = amax / most                          or the least power of two that is not less
    value = round(x * inverse)                   inverse = 1 / amax * most, or 1 / scale; saturating
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...arch import Arch, arch
from ...arguments import shown
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...dtypes import DType, dtype
from ...errors import PlanError
from ...layouts import ComposedLayout, Layout, Swizzle
from ...report import Check, Report
from ..epilogue.reduce import FP8_MOST
from ..plan import rounded_up
from ..verbs import named

if TYPE_CHECKING:
    from ..compile.compiler import CompiledGemm

BLOCK = 128  # elements of a scale, along each dimension that it is of
THREADS = 256
LEAST = 1e-30  # of the largest |x|, so that zeros have a scale: the smallest that `Quantize` takes
ROWS_ALIGNED = 16  # bytes: rows of values begin at multiples, as TMA has it
SCALES_ALIGNED = 4  # scales: columns of scales begin at multiples of 16 bytes
_SOURCES = ("bf16", "f16", "f32")
_LANES = 8  # threads of a line of a "row" tile: 128 contiguous bytes a load, and two or four loads a line
_LINES_OF_BLOCKS = 64  # of a CTA whose blocks are 1x128


@dataclass(frozen=True)
class QuantizePlan:
    """A kernel that quantises; its code serves any size.

    source  type of x: bf16, f16 or f32
    values  type of the values: e4m3 or e5m2
    group   rows that share a scale of 128 columns: 1 or 128; 0 for one scale of each whole row
    order   of x: "row" for contiguous rows, "col" for contiguous columns
    access  bytes of a load: 16, or less where addresses, pitches or the contiguous size are no multiple of it
    powers  whether scales are powers of two

    Raises PlanError, naming the argument.

    >>> plan = QuantizePlan("bf16", "e4m3", 1)
    >>> plan.vector, plan.passes, plan.lines, str(plan.tile)
    (8, 2, 64, '((8,32),(8,2,2)):((8,128),(1,64,4096))')
    >>> bool(plan.check())
    True
    """

    source: str
    values: str
    group: int
    order: str = "row"
    access: int = VECTOR_BYTES
    powers: bool = False

    arch: ClassVar[Arch] = arch("sm_90a")
    key: ClassVar[str] = "quantize"  # of a compiled kernel's facts
    device_kernel: ClassVar[str] = "fp8.device.quantize:kernel_of"  # as `kernels.verbs.named` takes it
    parameters: ClassVar[dict[str, str]] = {
        **dict.fromkeys(("x", "values", "scales"), "address"),
        **dict.fromkeys(("m", "k", "batch"), "size"),
        **dict.fromkeys(("ldx", "stride_x", "ldv", "stride_v"), "stride"),
        **dict.fromkeys(("scale_m", "scale_k"), "size"),
        "stride_s": "stride",
    }

    def __post_init__(self) -> None:
        if self.source not in _SOURCES:
            raise PlanError(f"source = {shown(self.source)}: known are {', '.join(_SOURCES)}")
        if self.values not in FP8_MOST:
            raise PlanError(f"values = {shown(self.values)}: known are {', '.join(FP8_MOST)}")
        if self.group not in (0, 1, BLOCK) or (self.group == 0 and self.order != "row"):
            raise PlanError(
                f"group = {shown(self.group)}, order = {shown(self.order)}: 1 or {BLOCK} of either, 0 of 'row'"
            )
        if self.order not in ("row", "col"):
            raise PlanError(f"order = {shown(self.order)}: 'row' or 'col'")
        if self.access not in (2, 4, 8, VECTOR_BYTES) or self.access < self.x.bytes:
            raise PlanError(f"access = {shown(self.access)}: {self.x.bytes} to {VECTOR_BYTES} bytes, a power of two")

    @property
    def x(self) -> DType:
        """The type of x."""
        return dtype(self.source)

    @property
    def most(self) -> float:
        """The largest value."""
        return FP8_MOST[self.values]

    @property
    def vector(self) -> int:
        """Elements that a thread has next to each other: 16 bytes of x."""
        return VECTOR_BYTES // self.x.bytes

    @property
    def lanes(self) -> int:
        """Threads of a line of 128 contiguous elements."""
        return _LANES if self.order == "row" else BLOCK // self.vector

    @property
    def vectors(self) -> int:
        """A thread's vectors of a line."""
        return BLOCK // (self.lanes * self.vector)

    @property
    def lines(self) -> int:
        """Lines of a CTA: of "col" and of squares 128, else blocks of 1x128."""
        return _LINES_OF_BLOCKS if self.group == 1 and self.order == "row" else BLOCK

    @property
    def passes(self) -> int:
        """Lines of a thread."""
        return self.lines * self.lanes // THREADS

    @property
    def tile(self) -> Layout:
        """(thread, value) -> line * 128 + place in the line.

        A thread of a "row" tile has every 32nd line, so that a warp's load is of neighbours. One of a "col" tile has
        neighbouring lines: four of them are a word of values.
        """
        if self.order == "row":
            step, across = THREADS // self.lanes, self.lanes * self.vector
            values = Layout((self.vector, self.vectors, self.passes), (1, across, step * BLOCK))
            return Layout(((self.lanes, step), values.shape), ((self.vector, BLOCK), values.stride))
        warps, halves = THREADS // WARP, WARP // self.lanes
        own = self.passes * BLOCK
        threads = Layout((self.lanes, halves, warps), (self.vector, warps * own, own))
        return Layout((threads.shape, (self.vector, self.passes)), (threads.stride, (1, BLOCK)))

    @property
    def words(self) -> ComposedLayout:
        """(row, word of four values) -> the word in shared memory, of a "col" tile.

        A warp writes one word of each of its lanes' rows, and reads all words of a row: neither has a bank conflict.
        """
        bits = self.lanes.bit_length() - 1
        rows = self.vector.bit_length() - 1  # bits of a row's number that are the same lane's
        return ComposedLayout(Swizzle(bits, 0, 5 + rows), 0, Layout((BLOCK, BLOCK // 4), (BLOCK // 4, 1)))

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory. It holds a maximum of each warp and column, their inverses, and a "col" tile's
        words."""
        if self.order == "row":
            return 0 if self.group == 1 else THREADS // WARP * 4
        return (THREADS // WARP + 1) * BLOCK * 4 + BLOCK * BLOCK

    @property
    def facts(self) -> dict[str, object]:
        """All that decides the code, as JSON-able data."""
        own = ("source", "values", "group", "order", "access", "powers")
        return {self.key: {name: getattr(self, name) for name in own}}

    def compile(self) -> CompiledGemm:
        """The kernel, compiled or from the cache. It needs the DSL, and a GPU only to launch."""
        return _compiled(self)

    def check(self) -> Report:
        """The tile covers each element once, in aligned vectors; shared memory has no bank conflict."""
        return Report(tuple(self._checks()))

    def _checks(self) -> Iterator[Check]:
        tile = self.tile
        covered = bool(tile.is_bijective()) and tile.size == self.lines * BLOCK
        yield Check(
            "tile", f"{THREADS} threads have each of {self.lines}x{BLOCK} elements once", covered,
            "normal form", "" if covered else str(tile),
        )  # fmt: skip
        if self.order == "row":
            return
        words = self.words
        once = len({int(x) for x in words.offsets()}) == BLOCK * BLOCK // 4
        yield Check("words", f"{words} is a bijection", once, "exhaustion", "" if once else "two words in one place")
        for name, found in (("written", self._written()), ("read", self._read())):
            clash = next((text for text in found if text), "")
            yield Check(f"banks, {name}", "32 lanes reach 32 banks", not clash, "exhaustion", clash)

    def _written(self) -> Iterator[str]:
        for warp in range(THREADS // WARP):
            for value in range(self.vector):
                for line in range(0, self.passes, 4):
                    places = [self.tile(warp * WARP + t, value + line * self.vector) for t in range(WARP)]
                    banks = {self.words(p % BLOCK, p // BLOCK // 4) % 32 for p in places}
                    yield "" if len(banks) == WARP else f"warp {warp}, value {value}, line {line}: {len(banks)} banks"

    def _read(self) -> Iterator[str]:
        for row in range(BLOCK):
            banks = {self.words(row, word) % 32 for word in range(BLOCK // 4)}
            yield "" if len(banks) == WARP else f"row {row}: {len(banks)} banks"


@dataclass(frozen=True)
class BothWaysPlan(QuantizePlan):
    """A kernel that quantises a matrix along its rows, and along its columns.

    The parameters of `QuantizePlan` are of the columns: m of them, of k elements each, are rows of its values. Those of
    the rows follow. A line of x lies in one half of a warp, or in a warp, so its maximum needs no shared memory.

    Raises PlanError for groups other than 1x128, and for columns that are no lines of x.

    >>> plan = BothWaysPlan("bf16", "e4m3")
    >>> (plan.group, plan.order, plan.lanes, plan.passes), list(BothWaysPlan.parameters)[13:16]
    ((1, 'col', 16, 8), ['line_values', 'line_scales', 'ldl'])
    """

    group: int = 1
    order: str = "col"

    key: ClassVar[str] = "quantize both ways"
    parameters: ClassVar[dict[str, str]] = {
        **QuantizePlan.parameters,
        **dict.fromkeys(("line_values", "line_scales"), "address"),
        **dict.fromkeys(("ldl", "stride_l"), "stride"),
        **dict.fromkeys(("line_m", "line_k"), "size"),
        "stride_ls": "stride",
    }

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.group != 1 or self.order != "col":
            raise PlanError(f"group = {shown(self.group)}, order = {shown(self.order)}: both ways are 1 of 'col'")


@dataclass(frozen=True)
class JoinedPlan:
    """A kernel that quantises several tensors, one plan's CTAs behind those of the plan before.

    parts  the plans; each writes what it writes alone

    Its parameters are those of each plan, with the plan's number behind their names. Raises PlanError for no plan.

    >>> plan = JoinedPlan((QuantizePlan("bf16", "e4m3", 1), QuantizePlan("bf16", "e4m3", 128, "col")))
    >>> list(plan.parameters)[:2], list(plan.parameters)[13:15]
    (['x0', 'values0'], ['x1', 'values1'])
    """

    parts: tuple[QuantizePlan, ...]

    arch: ClassVar[Arch] = QuantizePlan.arch
    device_kernel: ClassVar[str] = QuantizePlan.device_kernel

    def __post_init__(self) -> None:
        if not self.parts:
            raise PlanError("parts = (): a JoinedPlan has one plan or more")

    @property
    def parameters(self) -> dict[str, str]:
        """The kernel's parameters, and what each is."""
        return {f"{name}{i}": kind for i, part in enumerate(self.parts) for name, kind in part.parameters.items()}

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory: those of the plan that takes most."""
        return max(part.shared_bytes for part in self.parts)

    @property
    def facts(self) -> dict[str, object]:
        """All that decides the code, as JSON-able data."""
        return {"quantize several": [part.facts for part in self.parts]}

    def compile(self) -> CompiledGemm:
        """The kernel, compiled or from the cache. It needs the DSL, and a GPU only to launch."""
        return _compiled(self)

    def check(self) -> Report:
        """The checks of each plan."""
        return Report(tuple([check for part in self.parts for check in part.check()]))


def _compiled(plan: QuantizePlan | JoinedPlan) -> CompiledGemm:
    made: CompiledGemm = named("compile.compiler:compile_own")(plan)
    return made


def pitch_of(columns: int) -> int:
    """Elements from row to row of the values.

    >>> pitch_of(256), pitch_of(200)
    (256, 208)
    """
    return rounded_up(columns, ROWS_ALIGNED)


def scale_pitch(lines: int) -> int:
    """Scales from one K block to the next, where neighbouring rows' lie together.

    >>> scale_pitch(64), scale_pitch(3)
    (64, 4)
    """
    return rounded_up(lines, SCALES_ALIGNED)
