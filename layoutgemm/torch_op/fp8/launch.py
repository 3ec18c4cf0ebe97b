"""Checked tensors quantised: by the kernel, or by the reference where it does not run.

on a GPU of compute capability 9.0   all but TensorWise by the kernel; what it reads in neither order is copied
on others, on the CPU, of no element the reference, into results of the same strides
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import torch

from ...atoms.copy.base import VECTOR_BYTES
from ...errors import OperandError
from ...kernels.compile.compiler import CompiledGemm
from ...kernels.compile.worker import compile_apart
from ...kernels.fp8.plan import BLOCK as DEPTH
from ...kernels.fp8.plan import BothWaysPlan, JoinedPlan, QuantizePlan, pitch_of, scale_pitch
from ...kernels.plan import MAX_COORDINATE, tile_count
from ..compiled.guards import LEAST_ADDRESS, MAX_READY
from ..launch import (
    NONE_WRITTEN,
    DirectLaunch,
    NewResult,
    NewTensor,
    alignment,
    empty_on_gpu,
    making,
    raw_stream,
)
from ..prepared import on_gpu, target
from ..problem import contiguous_strides
from ..scaled_grouped.recipes import BLOCK, ROW, SQUARE, TENSOR
from ..types import C_NAMES
from .reference import quantized

Key = tuple[object, ...]
Pair = tuple[torch.Tensor, torch.Tensor]
BY_KERNEL = {BLOCK: 1, SQUARE: DEPTH, ROW: 0}  # the recipes of kernels, and their groups


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


class QuantizeRequest(NamedTuple):
    """A checked tensor, its options, and whether its transpose is quantised too."""

    x: torch.Tensor
    asked: QuantizeOptions
    both: bool = False


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


class QuantizedPart(NamedTuple):
    """A tensor's part of a launch.

    plan       of its kernel
    arguments  of a launch, without addresses
    places     of the addresses: x, then values and scales of each result
    results    tensors in the order of the addresses, and what is cut off each pair's values
    turned     whether the second pair is the first result
    mask       address bits of x that are 0
    """

    plan: QuantizePlan
    arguments: tuple[int, ...]
    places: tuple[int, ...]
    results: tuple[QuantizedShapes, ...]
    turned: bool
    mask: int


class KeptQuantizer:
    """A launch for tensors of known shapes, strides and types.

    call    of the tensors: values and scales of each pair, one after the other. None where their GPU is not the current
    direct  the launch at addresses: x, values and scales of each part
    cuts    columns of the values, 0 for all; None where no result is cut
    masks   address bits of each tensor that are 0
    """

    __slots__ = ("call", "cuts", "direct", "masks")

    def __init__(self, parts: Sequence[QuantizedPart], dtype: torch.dtype, index: int):
        plan = parts[0].plan if len(parts) == 1 else JoinedPlan(tuple([part.plan for part in parts]))
        arguments: list[int] = []
        places: list[int] = []
        reads: dict[int, int] = {}
        news: list[NewTensor] = []
        returns: list[int] = []
        cuts: list[int] = []
        for number, part in enumerate(parts):
            reads[number], *written = own = [len(arguments) + place for place in part.places]
            pairs: list[tuple[int, int]] = []
            for made, of_values, of_scales in zip(part.results, written[::2], written[1::2], strict=True):
                pairs.append((len(news), made.columns))
                news += NewTensor(*made.values, dtype, of_values), NewTensor(*made.scales, torch.float32, of_scales)
            for at, columns in pairs[::-1] if part.turned else pairs:
                returns += at, at + 1
                cuts += columns, 0
            arguments += part.arguments
            places += own
        self.direct = DirectLaunch(compiled(plan), arguments, places, index, plan)
        given = NONE_WRITTEN._replace(aligned=False)
        self.call = making([NewResult(self.direct, tuple(news), reads)], len(parts), returns, given)
        self.cuts = cuts if any(cuts) else None
        self.masks = [part.mask for part in parts]

    def reads(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True if its loads reach tensors of its shapes, strides and types."""
        return all(LEAST_ADDRESS <= (at := x.data_ptr()) and not at & mask for x, mask in zip(tensors, self.masks))

    def pairs(self, made: Sequence[torch.Tensor]) -> tuple[Pair, ...]:
        """The pairs of a call's result."""
        if self.cuts is not None:
            made = [x.narrow(-1, 0, columns) if columns else x for x, columns in zip(made, self.cuts)]
        return tuple(zip(made[::2], made[1::2]))


READY: dict[Key, KeptQuantizer] = {}


def computed(x: torch.Tensor, asked: QuantizeOptions, key: Key = ()) -> Pair:
    """Values and scales of a checked tensor, now.

    key  by which the launch is kept, or ()
    """
    return _computed([QuantizeRequest(x, asked)], key)[0] if _by_kernel(x, asked) else _by_torch(x, asked)


def computed_both(x: torch.Tensor, asked: QuantizeOptions, key: Key = ()) -> tuple[Pair, Pair]:
    """Values and scales of a checked tensor and of its transpose, now. By one kernel, or one after the other.

    key  by which the launch is kept, or ()
    """
    if not _by_kernel(x, asked):
        return computed(x, asked), computed(x.mT, asked)
    first, second = _computed([QuantizeRequest(x, asked, True)], key)
    return first, second


def computed_together(requests: Sequence[QuantizeRequest], key: Key = ()) -> tuple[Pair, ...] | None:
    """The pairs of several checked tensors by one launch, of those both ways two. None where no kernel does them all.

    key  by which the launch is kept, or ()
    """
    alone = len({x.get_device() for x, _, _ in requests}) == 1
    return _computed(requests, key) if alone and all(_by_kernel(x, asked) for x, asked, _ in requests) else None


def _computed(requests: Sequence[QuantizeRequest], key: Key) -> tuple[Pair, ...]:
    read = [_readable(x.detach().resolve_neg(), asked.recipe) for x, asked, _ in requests]
    index = read[0].get_device()
    parts = [_part(x, tuple(each.x.shape), *each[1:]) for x, each in zip(read, requests)]
    with torch.cuda.device(index):
        kept = KeptQuantizer(parts, requests[0].asked.dtype, index)
        found = kept.pairs(kept.call(*read))
    if key and all(x.data_ptr() == each.x.data_ptr() for x, each in zip(read, requests)):
        if len(READY) >= MAX_READY:
            READY.clear()
        READY[key] = kept
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
        if kept is None or not kept.reads([x]) or x.is_neg():
            read = _readable(x.detach().resolve_neg(), asked.recipe)
            kept = KeptQuantizer([_part(read, tuple(x.shape), asked)], asked.dtype, index)
            if read.data_ptr() == x.data_ptr():
                READY[key] = kept
            x = read
        found = empty_on_gpu(*made.values, asked.dtype) if values is None else values
        kept.direct.launch((x.data_ptr(), found.data_ptr(), scales.data_ptr()), raw_stream(index))
    return found.narrow(-1, 0, made.columns) if values is None and made.columns else found


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
    return bool(x.numel()) and asked.recipe in BY_KERNEL and on_gpu(index) and target(index)[0] == "sm_90a"


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


def _part(x: torch.Tensor, shape: tuple[int, ...], asked: QuantizeOptions, both: bool = False) -> QuantizedPart:
    """The part of (batch, M, K), a tensor of that shape. Raises OperandError for more scales than a grid has CTAs.

    Both ways the contiguous dimension is lines, and the other one columns: they are swapped where x has columns.
    """
    rows = x.stride(-1) == 1 or x.shape[-1] == 1
    lines = x if rows else x.mT
    pitch, access = _pitch_and_access(lines)
    types, mask = (C_NAMES[x.dtype], C_NAMES[asked.dtype]), access - 1
    if not both:
        made = shapes_of(shape, asked)
        one = QuantizePlan(*types, BY_KERNEL[asked.recipe], "row" if rows else "col", access, asked.powers)
        arguments = (0, 0, 0, *x.shape[1:], x.shape[0], pitch, x.stride(0), *_distances(x, made))
        return QuantizedPart(one, arguments, (0, 1, 2), (made,), False, mask)
    of_x, of_turned = shapes_of(shape, asked), shapes_of((*shape[:-2], *shape[:-3:-1]), asked)
    of_lines, of_columns = (of_x, of_turned) if rows else (of_turned, of_x)
    plan = BothWaysPlan(*types, access=access, powers=asked.powers)
    columns = lines.mT
    arguments = (0, 0, 0, *columns.shape[1:], x.shape[0], pitch, x.stride(0), *_distances(columns, of_columns),
                 0, 0, *_distances(lines, of_lines))  # fmt: skip
    return QuantizedPart(plan, arguments, (0, 1, 2, 13, 14), (of_columns, of_lines), rows, mask)


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
def compiled(plan: QuantizePlan | JoinedPlan) -> CompiledGemm:
    """The kernel of a plan."""
    return compile_apart(plan)
