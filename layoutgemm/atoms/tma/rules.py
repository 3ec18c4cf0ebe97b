"""Limits of TMA and its tensor maps: element formats, swizzle modes, reductions, as one table.

A tensor map describes a global tensor and the box that one instruction moves. The driver encodes it once, and the
instruction adds the coordinates of the box, a shared-memory address and a barrier. Everything that the hardware refuses
is a `Rule` here, with its text in `rules.json`; `broken` holds a map against all of them.

Not derived: stores and reductions of pixel columns (im2col_no_offs), and im2col along W alone (sm_100). Neither are
the layouts NC/8HWC8 and NC/16HWC16 of interleaved channels. Of the modes, "128B, atom 32B flip 8B" exchanges 8-byte
halves, and no source states the pattern of "128B, atom 64B".

Sources: [DRIVER] CUDA Driver API, cuTensorMapEncodeTiled; [PTX] PTX ISA, the section named; [GUIDE] CUDA Programming
Guide, "Asynchronous data copies using the Tensor Memory Accelerator"; [CUTE] NVIDIA/cutlass, the header named.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib.resources import files
from typing import Any

from ...arguments import Integer, shown
from ...dtypes import DType
from ...errors import LayoutError, TmaError
from ...layouts import Swizzle

MAX_RANK = 5
MAX_BOX = 256  # elements along each dimension of the box
MAX_STEP = 8  # traversal stride of a dimension
STRIDE_UNIT = 16  # bytes: every global stride but the first, and the base address, are multiples
# In these units, of 36 bits in a map: what kernels encode for a stride that is no multiple. No memory is so large.
NO_STRIDE = (1 << 36) - 1
SMEM_UNIT = 128  # bytes: the shared address of every instruction is a multiple
# Bytes at whose multiples a store ends a line: of the unit that holds the line's last element it writes all. Measured
# on an H200 with driver 580.159, 2026-11-20, 2-D, bf16 and f32; `python benchmarks/verify_copies.py edges` shows it.
EDGE_UNIT = 16
MAX_DIM = 1 << 32
MAX_STRIDE = 1 << 40


@dataclass(frozen=True, slots=True)
class Rule:
    """One demand of the hardware. Its name in errors, what it says, and where that is written."""

    name: str
    text: str
    source: str


# A stride of 0, one line for all of a dimension, is not excluded by the driver's text: an H200, driver 580.159, loads
# through such a map (2026-11-20, `tests/torch_op/test_gpu_matmul.py`).
RULES: dict[str, Rule] = {
    name: Rule(name, **each)
    for name, each in json.loads((files(__package__) / "rules.json").read_text(encoding="utf-8")).items()
}


@dataclass(frozen=True, slots=True)
class Mode:
    """A swizzle mode. The driver's number, B, M and S of the XOR on byte addresses, the span in bytes, who has it."""

    driver: int
    bits: int
    base: int
    shift: int
    span: int
    archs: tuple[str, ...]

    @property
    def swizzle(self) -> Swizzle:
        """The XOR on byte addresses."""
        return Swizzle(self.bits, self.base, self.shift, "bytes")

    @property
    def period(self) -> int:
        """Bytes after which the pattern repeats. What a tile's base is aligned to, 128 at least."""
        return max(SMEM_UNIT, 1 << (self.bits + self.base + self.shift) if self.bits else 0)


_ALL = ("sm_90a", "sm_100a", "sm_120a")
# Driver numbers: CUtensorMapSwizzle, which are not the descriptor's. Patterns: [PTX] "Swizzling Modes"; [CUTE]
# cute/atom/copy_traits_sm90_tma_swizzle.hpp.
MODES = {
    "none": Mode(0, 0, 4, 3, 16, _ALL),
    "32B": Mode(1, 1, 4, 3, 32, _ALL),
    "64B": Mode(2, 2, 4, 3, 64, _ALL),
    "128B": Mode(3, 3, 4, 3, 128, _ALL),
    "128B, atom 32B": Mode(4, 2, 5, 2, 128, ("sm_100a",)),
}


def mode_of(swizzle: Swizzle, bits: int) -> str:
    """The mode whose XOR the swizzle is. `bits`: of one element, which the swizzle counts where it names no unit.

    Raises TmaError, rule "swizzle", when the engine has none such.

    >>> mode_of(Swizzle(3, 3, 3), 16), mode_of(Swizzle(2, 4, 3, "bytes"), 16)
    ('128B', '64B')
    """
    if swizzle.bits == 0:
        return "none"
    counted = Swizzle(swizzle.bits, swizzle.base, swizzle.shift, swizzle.unit or bits)
    try:
        in_bytes = counted.recast("bytes")
    except LayoutError as error:
        raise TmaError(f"{swizzle}: {error}", rule="swizzle") from None
    for name, mode in MODES.items():
        if mode.bits and mode.swizzle == in_bytes:
            return name
    known = ", ".join(f"{mode.swizzle} ({name})" for name, mode in MODES.items() if mode.bits)
    raise TmaError(f"{swizzle} is {in_bytes}; tensor copies have {known}", rule="swizzle")


@dataclass(frozen=True, slots=True)
class Format:
    """An element format of tensor maps.

    name          CUtensorMapDataType, without its prefix
    driver        its number
    gmem_bits     bits of one element in global memory
    smem_bits     bits from one element to the next in shared memory; more than gmem_bits where 16 packed elements are
                  padded to 16 bytes
    unit          bytes that the address and the strides are multiples of
    inner         elements that the innermost extent is a multiple of
    inner_box     elements of the inner box extent where only one is allowed, else 0
    archs         architectures that have it; an H200's driver refuses the packed ones
    floating      whether NaN fill applies
    """

    name: str
    driver: int
    gmem_bits: int
    smem_bits: int
    unit: int = STRIDE_UNIT
    inner: int = 1
    inner_box: int = 0
    floating: bool = False
    archs: tuple[str, ...] = ("sm_90a", "sm_100a", "sm_120a")

    @property
    def packed(self) -> bool:
        """True if elements are narrower than a byte."""
        return self.gmem_bits < 8


_LATER = ("sm_100a", "sm_120a")
FORMATS = {
    entry.name: entry
    for entry in (
        Format("UINT8", 0, 8, 8),
        Format("UINT16", 1, 16, 16),
        Format("UINT32", 2, 32, 32),
        Format("INT32", 3, 32, 32),
        Format("UINT64", 4, 64, 64),
        Format("INT64", 5, 64, 64),
        Format("FLOAT16", 6, 16, 16, floating=True),
        Format("FLOAT32", 7, 32, 32, floating=True),
        Format("FLOAT64", 8, 64, 64, floating=True),
        Format("BFLOAT16", 9, 16, 16, floating=True),
        Format("TFLOAT32", 11, 32, 32, floating=True),
        Format("16U4_ALIGN8B", 13, 4, 4, inner=2, archs=_LATER),
        Format("16U4_ALIGN16B", 14, 4, 8, unit=32, inner=128, inner_box=128, archs=_LATER),
        Format("16U6_ALIGN16B", 15, 6, 8, unit=32, inner=128, inner_box=128, archs=_LATER),
    )
}
# Element type -> formats, the default first. A byte is a byte: the engine moves 8-bit floats as UINT8.
_FORMATS_OF = {
    **dict.fromkeys(("u8", "i8", "e4m3", "e5m2", "ue8m0", "ue4m3"), ("UINT8",)),
    **dict.fromkeys(("u16", "i16"), ("UINT16",)),
    "u32": ("UINT32",), "i32": ("INT32",), "u64": ("UINT64",), "i64": ("INT64",),
    "f16": ("FLOAT16",), "bf16": ("BFLOAT16",), "f32": ("FLOAT32",), "tf32": ("TFLOAT32",), "f64": ("FLOAT64",),
    **dict.fromkeys(("e2m1", "u4", "i4"), ("16U4_ALIGN8B", "16U4_ALIGN16B")),
    **dict.fromkeys(("e2m3", "e3m2"), ("16U6_ALIGN16B",)),
}  # fmt: skip


def format_of(dtype: DType, name: str | None = None) -> Format:
    """The tensor map's format for an element type: the default, or the one named.

    >>> format_of(DType("bf16", 16, "float", 8)).driver
    9
    """
    known = _FORMATS_OF.get(dtype.name, ())
    if not known:
        raise TmaError(f"no tensor map holds {dtype}; the types are {', '.join(_FORMATS_OF)}", rule="format")
    if name is not None and name not in known:
        raise TmaError(f"{dtype} is copied as {' or '.join(known)}, not {shown(name)}", rule="format")
    return FORMATS[name or known[0]]


L2_PROMOTION = {"none": 0, "64B": 1, "128B": 2, "256B": 3}  # CUtensorMapL2promotion
OOB_FILL = {"zeros": 0, "nan": 1}  # CUtensorMapFloatOOBfill
OPERATIONS = ("load", "store", "reduce")

# [PTX] cp.reduce.async.bulk.tensor; each pair was tried on an H200, which faults on the ones that are not here.
REDUCTIONS: dict[str, tuple[str, ...]] = {
    "add": ("u32", "i32", "u64", "f32", "f64", "f16", "bf16"),
    **dict.fromkeys(("min", "max"), ("u32", "i32", "u64", "i64", "f16", "bf16")),
    **dict.fromkeys(("inc", "dec"), ("u32",)),
    **dict.fromkeys(("and", "or", "xor"), ("u32", "i32", "u64")),
}


def check_reduction(operation: str, dtype: DType) -> None:
    """Raise TmaError, rule "reduction", unless the engine reduces elements of this type by this operation."""
    if operation not in REDUCTIONS:
        raise TmaError(f"the engine reduces by {', '.join(REDUCTIONS)}, not {shown(operation)}", rule="reduction")
    if dtype.name not in REDUCTIONS[operation]:
        raise TmaError(
            f"{operation} reduces {', '.join(REDUCTIONS[operation])} in global memory, not {dtype}", rule="reduction"
        )


@dataclass(frozen=True)
class TensorMap:
    """The arguments of cuTensorMapEncodeTiled. A global tensor and the box of one instruction, innermost dimension
    first.

    dtype            element type
    extents          of the tensor, elements; ints or symbols
    strides          bytes, of every dimension but the first
    box              extents traversed, elements
    steps            traversal strides ("element strides"): every steps[i]-th element is moved
    swizzle          a name of `MODES`
    format           a name of `FORMATS`; "" for the type's default
    l2_promotion     "none", "64B", "128B" or "256B": what an L2 miss fetches
    oob_fill         "zeros" or "nan": what is loaded beyond the tensor
    """

    dtype: DType
    extents: tuple[Any, ...]
    strides: tuple[Any, ...]
    box: tuple[int, ...]
    steps: tuple[int, ...]
    swizzle: str = "none"
    format: str = ""
    l2_promotion: str = "128B"
    oob_fill: str = "zeros"

    @property
    def rank(self) -> int:
        """The number of dimensions."""
        return len(self.box)

    @property
    def moved(self) -> tuple[int, ...]:
        """Elements that one instruction moves along each dimension: ceil(box / step). The innermost step is ignored."""
        return (self.box[0], *(-(-extent // step) for extent, step in zip(self.box[1:], self.steps[1:], strict=True)))

    @property
    def kind(self) -> Format:
        """The element format."""
        return format_of(self.dtype, self.format or None)

    def encode_arguments(self) -> dict[str, Any]:
        """The arguments of cuTensorMapEncodeTiled but the addresses, by their names there, enumerators as numbers."""
        return {
            "tensorDataType": self.kind.driver,
            "tensorRank": self.rank,
            "globalDim": self.extents,
            "globalStrides": self.strides,
            "boxDim": self.box,
            "elementStrides": self.steps,
            "interleave": 0,
            "swizzle": MODES[self.swizzle].driver,
            "l2Promotion": L2_PROMOTION[self.l2_promotion],
            "oobFill": OOB_FILL[self.oob_fill],
        }


def whole_units(tmap: TensorMap) -> TensorMap:
    """The map of what stores write. Lines that last to the end of their last 16 bytes, and all else the same.

    The engine ends a line of a store at a multiple of 16 bytes from the line's start, not at an element. The shared
    tile's values for the elements between go to global memory too. Units that begin beyond the line are not written.
    Since lines start 16 * n bytes apart, no other line of the tensor is reached: what is overwritten is pitch, or
    whatever else lies beyond a line. Reductions do the same (measured with add).

    >>> from layoutgemm.dtypes import dtype
    >>> tmap = TensorMap(dtype("bf16"), (1037, 9), (2112,), (64, 8), (1, 1))
    >>> whole_units(tmap).extents, whole_units(whole_units(tmap)) == whole_units(tmap)
    ((1040, 9), True)
    """
    beyond = line_overrun(tmap.extents[0], tmap.kind)
    return replace(tmap, extents=(tmap.extents[0] + beyond, *tmap.extents[1:])) if beyond else tmap


def line_overrun(extent: int, kind: Format) -> int:
    """Elements beyond a line of `extent` elements that a store writes: see `whole_units`.

    >>> [line_overrun(n, FORMATS["BFLOAT16"]) for n in (1032, 1033, 1037, 1040)]
    [0, 7, 3, 0]
    """
    unit = 8 * EDGE_UNIT
    return -extent * kind.gmem_bits % unit // kind.gmem_bits


@dataclass(frozen=True, slots=True)
class RuleViolation:
    """A rule that a map breaks, and the numbers."""

    rule: Rule
    arithmetic: str


def multiple(value: Integer, unit: int) -> bool:
    """True if value is a multiple of unit, at every size of a symbol. False where no fact says so."""
    try:
        return bool(value % unit == 0)
    except LayoutError:
        return False


def broken(
    tmap: TensorMap, address: int = 0, operation: str = "load", names: Sequence[object] = ()
) -> Iterator[RuleViolation]:
    """Every rule that the map breaks. A symbol is held to divisibility; its upper limit is the caller's to state."""
    kind, mode = tmap.kind, MODES[tmap.swizzle]

    def no(name: str, text: str) -> RuleViolation:
        return RuleViolation(RULES[name], text)

    rank = tmap.rank
    called = tuple(names) or tuple(f"m{i}" for i in range(rank))
    if not 1 <= rank <= MAX_RANK:
        yield no("rank", f"{rank} dimensions {tmap.extents}; a tensor map has 1 to {MAX_RANK}")
    if not (len(tmap.extents) == len(tmap.steps) == rank == len(tmap.strides) + 1):
        yield no(
            "rank", f"{len(tmap.extents)} extents, {len(tmap.strides)} strides, {len(tmap.steps)} steps, box {rank}"
        )
    if not 0 <= address < 1 << 64:
        yield no("address", f"the tensor starts at address {shown(address)}: an address has 64 bits")
    if address % kind.unit:
        past = address % kind.unit
        yield no("address", f"the tensor starts at address {address:#x}, {past} bytes past a multiple of {kind.unit}")
    for i, extent in enumerate(tmap.extents):
        if isinstance(extent, int) and not 1 <= extent <= MAX_DIM:
            yield no("extent", f"dimension {called[i]} has {extent} elements; a tensor map takes 1 to 2**32")
    if kind.inner > 1 and not multiple(tmap.extents[0], kind.inner):
        yield no("packed extent", f"{tmap.extents[0]} elements of {kind.name} innermost, no multiple of {kind.inner}")
    for i, stride in enumerate(tmap.strides, 1):
        if not multiple(stride, kind.unit):
            yield no("stride", f"stride of {called[i]} is {stride} bytes, a tensor map needs a multiple of {kind.unit}")
        elif isinstance(stride, int) and not (operation == "store") <= stride < MAX_STRIDE:
            yield no("stride", f"stride of {called[i]} is {stride} bytes, a tensor map takes {kind.unit} to 2**40 - "
                     f"{kind.unit}")  # fmt: skip
    for i, (extent, step) in enumerate(zip(tmap.box, tmap.steps)):
        if not 1 <= extent <= MAX_BOX:
            yield no("box", f"the box is {extent} along {called[i]}; a box holds 1 to {MAX_BOX}")
        if not 1 <= step <= MAX_STEP or (i == 0 and step != 1):
            yield no("step", f"{called[i]} is traversed in steps of {step}")
    inner = tmap.box[0] * kind.smem_bits
    if kind.inner_box and tmap.box[0] != kind.inner_box:
        yield no("packed box", f"the box's inner extent is {tmap.box[0]}; {kind.name} takes {kind.inner_box} only")
    if inner % (8 * STRIDE_UNIT):
        yield no("inner bytes", f"the box's inner {tmap.box[0]} elements of {tmap.dtype} are {inner / 8:g} bytes, no "
                 "multiple of 16")  # fmt: skip
    if mode.bits and inner > 8 * mode.span:
        yield no("span", f"the box's inner {tmap.box[0]} elements are {inner // 8} bytes; swizzle {tmap.swizzle} "
                 f"permutes chunks within rows of {mode.span} bytes")  # fmt: skip
    if kind.inner_box and tmap.swizzle not in ("none", "128B", "128B, atom 32B"):
        yield no("swizzle", f"{kind.name} takes swizzle none, 128B and 128B, atom 32B, not {tmap.swizzle}")
    if kind.name == "16U4_ALIGN16B" and operation != "load":
        yield no("direction", f"a {operation} of {kind.name}: the engine loads it only")
    if tmap.oob_fill == "nan" and not kind.floating:
        yield no("fill", f"NaN fill of {kind.name}")
