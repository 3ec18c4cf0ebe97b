"""Checked tensors quantised: by the kernel, or by the reference where it does not run.

on a GPU of compute capability 9.0   all but TensorWise by the kernel; what it reads in neither order is copied
on others, on the CPU, of no element the reference, into results of the same strides
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from math import prod
from typing import NamedTuple

import torch

from ...atoms.copy.base import VECTOR_BYTES
from ...errors import OperandError
from ...kernels.compile.compiler import CompiledGemm
from ...kernels.fp8.plan import BLOCK as DEPTH
from ...kernels.fp8.plan import BothWaysPlan, QuantizePlan, pitch_of, scale_pitch
from ...kernels.plan import MAX_COORDINATE, tile_count
from ..compiled.guards import MAX_READY
from ..launch import DirectLaunch, alignment, empty_on_gpu, raw_stream
from ..prepared import on_gpu, target
from ..problem import contiguous_strides
from ..scaled_grouped.recipes import BLOCK, ROW, SQUARE, TENSOR
from ..types import C_NAMES
from .reference import quantized

Key = tuple[object, ...]
Pair = tuple[torch.Tensor, torch.Tensor]
_GROUPS = {BLOCK: 1, SQUARE: DEPTH, ROW: 0}


class QuantizeOptions(NamedTuple):
    """A checked call.

    recipe, dtype  of the scales, and the values' type
    powers         whether scales are powers of two
    major          of the scales: "mn" or "k"
    """

    recipe: str
    dtype: torch.dtype
    powers: bool
    major: str


# What `quantize` does unless it is told otherwise.
AS_QUANTIZE = QuantizeOptions(BLOCK, torch.float8_e4m3fn, False, "mn")


class QuantizedShapes(NamedTuple):
    """The results as they are allocated, and what is cut off. Values have rows of a multiple of 16 elements.

    values, scales  (shape, strides)
    columns         of the values, where they are narrower; else 0
    """

    values: tuple[tuple[int, ...], tuple[int, ...]]
    scales: tuple[tuple[int, ...], tuple[int, ...]]
    columns: int


def shapes_of(shape: tuple[int, ...], asked: QuantizeOptions) -> QuantizedShapes:
    """The results' shapes for x's.

    >>> shapes_of((5, 200), QuantizeOptions("BlockWise1x128", torch.float8_e4m3fn, False, "mn"))
    QuantizedShapes(values=((5, 208), (208, 1)), scales=((5, 2), (1, 8)), columns=200)
    """
    *front, m, k = shape
    wide = (*front, m, pitch_of(k))
    values = wide, contiguous_strides(wide)
    if asked.recipe == TENSOR:
        one = (1,) * len(shape)
        return QuantizedShapes(values, (one, one), k if wide[-1] != k else 0)
    groups = tile_count(m, DEPTH) if asked.recipe == SQUARE else m
    blocks = 1 if asked.recipe == ROW else tile_count(k, DEPTH)
    own = (*front, groups, blocks)
    if asked.recipe == ROW or asked.major == "k":
        return QuantizedShapes(values, (own, contiguous_strides(own)), k if wide[-1] != k else 0)
    pitch = scale_pitch(groups)
    matrices = contiguous_strides((*front, blocks, pitch))[: len(front)]
    return QuantizedShapes(values, (own, (*matrices, 1, pitch)), k if wide[-1] != k else 0)


kept_shapes = functools.lru_cache(4096)(shapes_of)  # of plain numbers: a size that is a symbol has no hash


@dataclass(slots=True)
class KeptQuantizer:
    """A launch for tensors of one shape, strides and type. Results, the launch, and address bits that are 0."""

    values: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
    scales: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]
    columns: int
    direct: DirectLaunch
    mask: int

    def run(self, at: int, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Quantise what lies at an address, on the current device and stream."""
        values, scales = self.empty()
        self.write(at, values, scales, index)
        return self.cut(values, scales)

    def empty(self) -> Pair:
        """Memory of the results."""
        return empty_on_gpu(*self.values), empty_on_gpu(*self.scales)

    def cut(self, values: torch.Tensor, scales: torch.Tensor) -> Pair:
        """The results in that memory."""
        return values.narrow(-1, 0, self.columns) if self.columns else values, scales

    def write(self, at: int, values: torch.Tensor, scales: torch.Tensor, index: int) -> None:
        """The same into memory of the results' strides."""
        self.direct.launch((at, values.data_ptr(), scales.data_ptr()), raw_stream(index))


@dataclass(slots=True)
class KeptBothWays:
    """A launch that quantises tensors of one shape, strides and type along both dimensions.

    lines, columns  results of the contiguous dimension, and of the other one
    swapped         whether the contiguous dimension is x's columns
    """

    lines: KeptQuantizer
    columns: KeptQuantizer
    swapped: bool

    @property
    def mask(self) -> int:
        """Address bits that are 0."""
        return self.lines.mask

    def run(self, at: int, index: int) -> tuple[Pair, Pair]:
        """Quantise what lies at an address, on the current device and stream. It writes x, and its transpose."""
        lines, columns = self.lines.empty(), self.columns.empty()
        addresses = at, *[x.data_ptr() for x in (*columns, *lines)]
        self.lines.direct.launch(addresses, raw_stream(index))
        found = self.lines.cut(*lines), self.columns.cut(*columns)
        return found[::-1] if self.swapped else found


READY: dict[Key, KeptQuantizer] = {}
BOTH_READY: dict[Key, KeptBothWays] = {}


def computed(x: torch.Tensor, asked: QuantizeOptions, key: Key = ()) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and scales of a checked tensor, now.

    key  by which the launch is kept, or ()
    """
    index = x.get_device()
    if not _by_kernel(x, asked):
        return _by_torch(x, asked)
    read = _readable(x.detach().resolve_neg(), asked.recipe)
    with torch.cuda.device(index):
        kept = _prepared(read, shapes_of(tuple(x.shape), asked), asked, index)
        found = kept.run(read.data_ptr(), index)
    if key and read.data_ptr() == x.data_ptr():
        if len(READY) >= MAX_READY:
            READY.clear()
        READY[key] = kept
    return found


def computed_both(x: torch.Tensor, asked: QuantizeOptions, key: Key = ()) -> tuple[Pair, Pair]:
    """Values and scales of a checked tensor and of its transpose, now. By one kernel, or one after the other.

    key  by which the launch is kept, or ()
    """
    index = x.get_device()
    if not _by_kernel(x, asked):
        return computed(x, asked), computed(x.mT, asked)
    read = _readable(x.detach().resolve_neg(), asked.recipe)
    with torch.cuda.device(index):
        kept = _both_prepared(read, tuple(x.shape), asked, index)
        found = kept.run(read.data_ptr(), index)
    if key and read.data_ptr() == x.data_ptr():
        if len(BOTH_READY) >= MAX_READY:
            BOTH_READY.clear()
        BOTH_READY[key] = kept
    return found


def computed_into(
    x: torch.Tensor, asked: QuantizeOptions, values: torch.Tensor | None, scales: torch.Tensor
) -> torch.Tensor:
    """The values of a checked tensor: a new tensor, or written to `values`. And its scales to `scales`."""
    made, index = kept_shapes(tuple(x.shape), asked), x.get_device()
    in_place = scales.stride() == made.scales[1] and (values is None or writes_in_place(values, asked))
    if not (in_place and _by_kernel(x, asked)):
        found, of_scales = computed(x, asked)
        scales.copy_(of_scales)
        return found if values is None else values.copy_(found)
    key = "into", asked, x.shape, x.stride(), x.dtype, index
    with torch.cuda.device(index):
        kept = READY.get(key)
        if kept is None or x.data_ptr() & kept.mask or x.is_neg():
            read = _readable(x.detach().resolve_neg(), asked.recipe)
            kept = _prepared(read, made, asked, index)
            if read.data_ptr() == x.data_ptr():
                READY[key] = kept
            x = read
        if values is None:
            values = empty_on_gpu(*kept.values)
            kept.write(x.data_ptr(), values, scales, index)
            return values.narrow(-1, 0, made.columns) if made.columns else values
        kept.write(x.data_ptr(), values, scales, index)
    return values


def pitched(values: torch.Tensor) -> torch.Tensor:
    """Quantised values with the row pitch that `quantize` gives: the tensor itself, or a copy."""
    asked = AS_QUANTIZE._replace(dtype=values.dtype)
    if values.stride() == kept_shapes(tuple(values.shape), asked).values[1]:
        return values
    return empty_results(values, tuple(values.shape), asked)[0].copy_(values)


def writes_in_place(values: torch.Tensor, asked: QuantizeOptions) -> bool:
    """True if the kernel can write these values where they lie."""
    strides = kept_shapes(tuple(values.shape), asked).values[1]
    return values.stride() == strides and values.data_ptr() % VECTOR_BYTES == 0


def _by_kernel(x: torch.Tensor, asked: QuantizeOptions) -> bool:
    """True where a kernel quantises the tensor."""
    index = x.get_device()
    return bool(x.numel()) and asked.recipe in _GROUPS and on_gpu(index) and target(index)[0] == "sm_90a"


def empty_results(
    beside: torch.Tensor, shape: tuple[int, ...], asked: QuantizeOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """Empty results of a tensor of that shape, on the device of `beside`."""
    made = shapes_of(shape, asked)
    values = beside.new_empty(made.values[0], dtype=asked.dtype)
    scales = torch.empty_strided(*made.scales, dtype=torch.float32, device=beside.device)
    return values.narrow(-1, 0, made.columns) if made.columns else values, scales


def _by_torch(x: torch.Tensor, asked: QuantizeOptions) -> tuple[torch.Tensor, torch.Tensor]:
    """The reference's results, with the kernel's strides."""
    values, scales = empty_results(x, tuple(x.shape), asked)
    of_values, of_scales = quantized(x.detach(), *asked[:3])
    return values.copy_(of_values), scales.copy_(of_scales)


def _readable(x: torch.Tensor, recipe: str) -> torch.Tensor:
    """x as (batch, M, K) whose rows, or but for RowWise columns, are contiguous: itself, or a copy."""
    *front, m, k = x.shape
    rows, columns = x.stride(-1) == 1 or k == 1, x.stride(-2) == 1 or m == 1
    if not (rows or (columns and recipe != ROW)):
        x = x.contiguous()
    try:
        return x.view(prod(front), m, k)
    except RuntimeError:  # matrices that are not evenly apart
        return x.contiguous().view(prod(front), m, k)


def _prepared(x: torch.Tensor, made: QuantizedShapes, asked: QuantizeOptions, index: int) -> KeptQuantizer:
    """The launch for (batch, M, K). Raises OperandError for more scales than a grid has CTAs."""
    batch, m, k = x.shape
    order = "row" if x.stride(-1) == 1 or k == 1 else "col"
    pitch, access = _pitch_and_access(x if order == "row" else x.mT)
    plan = QuantizePlan(C_NAMES[x.dtype], C_NAMES[asked.dtype], _GROUPS[asked.recipe], order, access, asked.powers)
    arguments = (0, 0, 0, m, k, batch, pitch, x.stride(0), *_distances(x, made))
    direct = DirectLaunch(compiled(plan), arguments, (0, 1, 2), index, plan)
    return _kept(made, asked, direct, access)


def _both_prepared(x: torch.Tensor, shape: tuple[int, ...], asked: QuantizeOptions, index: int) -> KeptBothWays:
    """The launch for (batch, M, K), and for its transpose. Raises OperandError as `_prepared` does."""
    swapped = x.stride(-1) != 1 and x.shape[-1] != 1
    x, shape = (x.mT, (*shape[:-2], shape[-1], shape[-2])) if swapped else (x, shape)
    (batch, lines, length), (pitch, access) = x.shape, _pitch_and_access(x)
    of_lines, of_columns = shapes_of(shape, asked), shapes_of((*shape[:-2], length, lines), asked)
    plan = BothWaysPlan(C_NAMES[x.dtype], C_NAMES[asked.dtype], access=access, powers=asked.powers)
    arguments = (0, 0, 0, length, lines, batch, pitch, x.stride(0), *_distances(x.mT, of_columns),
                 0, 0, *_distances(x, of_lines))  # fmt: skip
    direct = DirectLaunch(compiled(plan), arguments, (0, 1, 2, 13, 14), index, plan)
    return KeptBothWays(_kept(of_lines, asked, direct, access), _kept(of_columns, asked, direct, access), swapped)


def _kept(made: QuantizedShapes, asked: QuantizeOptions, direct: DirectLaunch, access: int) -> KeptQuantizer:
    return KeptQuantizer((*made.values, asked.dtype), (*made.scales, torch.float32), made.columns, direct, access - 1)


def _pitch_and_access(x: torch.Tensor) -> tuple[int, int]:
    """Elements between the contiguous lines of (batch, lines, elements), and bytes of a load."""
    batch, lines, length = x.shape
    pitch, size = x.stride(1), x.element_size()
    steps = [step * size for step, count in ((pitch, lines), (x.stride(0), batch)) if count > 1]
    return pitch, alignment(x.data_ptr(), length * size, *steps)


def _distances(x: torch.Tensor, made: QuantizedShapes) -> tuple[int, ...]:
    """Elements between rows and matrices of values; and between scales: of groups, K blocks, matrices."""
    batch, m, k = x.shape
    (groups, blocks), (scale_m, scale_k) = made.scales[0][-2:], made.scales[1][-2:]
    if batch * m * tile_count(k, DEPTH) > MAX_COORDINATE or max(scale_m, scale_k) > MAX_COORDINATE:
        raise OperandError(f"x has shape {list(x.shape)}, {batch * m} rows of blocks: more than 2**31 - 1 blocks")
    matrix = groups * blocks if scale_k == 1 else scale_k * blocks
    return made.values[1][-2], m * made.values[1][-2], scale_m, scale_k, matrix


@functools.lru_cache(256)
def compiled(plan: QuantizePlan) -> CompiledGemm:
    """The kernel of a plan."""
    return plan.compile()
