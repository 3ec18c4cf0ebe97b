"""Packed weights as dense matrices: by a kernel on a GPU, elsewhere by torch. The values are the same."""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np
import torch

from ...atoms.copy.base import VECTOR_BYTES
from ...errors import OperandError
from ...kernels.compile.compiler import CompiledGemm
from ...kernels.compile.worker import compile_apart
from ...kernels.quantized.conversions import TARGETS, zero_bits
from ...kernels.quantized.dense import DensePlan, dense_pitch
from ...kernels.quantized.formats import MOST_ZERO, UNIT_K, UNIT_ROWS, QuantizedFormat
from ...kernels.quantized.order import PackedOrder
from ..checks import DEVICES, modes_of_dispatch
from ..compiled.guards import MAX_READY
from ..launch import DirectLaunch, empty_on_gpu, raw_stream
from ..prepared import on_gpu, target
from ..types import C_NAMES, NAMES, TYPES

FLOAT8 = torch.float8_e4m3fn  # the activations of weights that are multiplied by float8, of either kind
_PACKED_FOR = {torch.bfloat16: torch.bfloat16, torch.float16: torch.float16, FLOAT8: FLOAT8, torch.float8_e5m2: FLOAT8}
_KNOWN = "bfloat16, float16, or float8_e4m3fn for float8 of either kind"
Facts = tuple[str, int, bool, int, int]  # code, group, zeros, n, k


def format_of(code: str, group: int, zeros: bool) -> QuantizedFormat:
    """The format of an operator's arguments."""
    return QuantizedFormat(code, group or None, zeros)


def facts_of(fmt: QuantizedFormat, n: int, k: int) -> Facts:
    """An operator's arguments of a format and sizes."""
    return fmt.code, fmt.group or 0, fmt.zeros, n, k


def dense_weights(
    units: torch.Tensor, scales: torch.Tensor | None, activations: torch.dtype, facts: Facts
) -> torch.Tensor:  # fmt: skip
    """The weights (n, k), contiguous, in the type that they are packed for. Of experts (experts, n, k)."""
    return unpacked(units, scales, activations, facts).contiguous()


def unpacked(
    units: torch.Tensor, scales: torch.Tensor | None, activations: torch.dtype, facts: Facts
) -> torch.Tensor:  # fmt: skip
    """The same, whose rows lie multiples of 16 bytes apart where a kernel made them."""
    if activations.itemsize == 2 and _has_kernel(units):
        return _by_kernel(units.detach(), scales, activations, facts)
    fmt, size = format_of(*facts[:3]), facts[3:]
    if units.ndim == 3:
        return dense_of(fmt, activations, units, scales, size).to(activations)
    each = [None] * len(units) if scales is None else scales.unbind()
    made = [dense_of(fmt, activations, one, scale, size).to(activations) for one, scale in zip(units.unbind(), each)]
    return torch.stack(made) if made else units.new_empty((0, *size), dtype=activations)


def _has_kernel(units: torch.Tensor) -> bool:
    """True for units that a kernel reads: on a GPU that runs one, and from a multiple of 16 bytes on."""
    index = units.get_device()
    if not on_gpu(index) or units.device.type not in DEVICES or not units.numel() or units.data_ptr() % VECTOR_BYTES:
        return False
    try:
        target(index)
    except OperandError:  # weights have always been unpacked there by torch
        return False
    return True


READY: dict[object, DirectLaunch] = {}  # launches for weights of a size


def _by_kernel(
    units: torch.Tensor, scales: torch.Tensor | None, activations: torch.dtype, facts: Facts
) -> torch.Tensor:  # fmt: skip
    experts, (n, k) = tuple(units.shape[:-3]), facts[3:]
    index, pitch = units.get_device(), dense_pitch(k)
    units, scales = units.contiguous(), None if scales is None else scales.detach().contiguous()
    key = facts, activations, experts[0] if experts else 1, index
    with torch.cuda.device(index):
        launch = READY.get(key)
        if launch is None:
            if len(READY) >= MAX_READY:
                READY.clear()
            launch = READY[key] = _launch(*key)
        found = empty_on_gpu((*experts, n, pitch), (*[n * pitch] * len(experts), pitch, 1), activations)
        of_scales = 0 if scales is None else scales.data_ptr()
        launch.launch((units.data_ptr(), of_scales, found.data_ptr()), raw_stream(index))
    return found if pitch == k else found.narrow(-1, 0, k)


def _launch(facts: Facts, activations: torch.dtype, experts: int, index: int) -> DirectLaunch:
    plan = DensePlan(format_of(*facts[:3]), NAMES[activations], target(index)[0])
    return DirectLaunch(compiled(plan), [0, 0, 0, facts[3], dense_pitch(facts[4]), experts], (0, 1, 2), index, plan)


def compiled(plan: DensePlan) -> CompiledGemm:
    """The kernel of a plan."""
    return compile_apart(plan)


def packed_for(kind: torch.dtype) -> torch.dtype | None:
    """The `activations` of weights for an x of a type, or None.

    >>> packed_for(torch.float8_e5m2)
    torch.float8_e4m3fn
    """
    return _PACKED_FOR.get(kind)


def name_of(activations: torch.dtype) -> str:
    """The plan's name of the type of x. Raises OperandError for one without packed weights."""
    name = C_NAMES.get(activations) if isinstance(activations, torch.dtype) else None
    if name not in TARGETS:
        raise OperandError(f"activations are {activations}: {_KNOWN}")
    return str(name)


def dense_of(
    fmt: QuantizedFormat, activations: torch.dtype, units: torch.Tensor, scales: torch.Tensor | None,
    shape: tuple[int, int],
) -> torch.Tensor:  # fmt: skip
    """The weights (n, k) in float32: (value - zero point) * scale, by torch."""
    order = PackedOrder(fmt, name_of(packed_for(activations) or activations))
    tables = _tables_of(order, units.device)
    rows, along_k = units.shape[:2]
    codes = moved(units[..., : order.code_bytes], order.back)
    if fmt.bits == 4:
        codes = torch.stack([codes & 15, codes >> 4], dim=-1).flatten(-2)
    plain = codes[..., tables.codes].reshape(rows, along_k, UNIT_K, UNIT_ROWS).permute(0, 3, 1, 2)
    plain = plain.reshape(rows * UNIT_ROWS, along_k * UNIT_K)[: shape[0], : shape[1]].long()
    if scales is not None:
        return tables.values[plain] * scales[:, None]
    kinds = (
        units[..., order.code_bytes :].contiguous().view(torch.int16).reshape(rows, along_k, -1, order.scale_words, 2)
    )
    numbers = kinds[..., 0, :].contiguous().view(TYPES[order.target.scales.name]).float()
    each = _groups(order, tables.scales, numbers, shape)
    if tables.zeros is None:
        return tables.values[plain] * each
    zeros = _groups(order, tables.scales, tables.zeros[kinds[..., 1, :].long() & 0xFFFF], shape)
    return (plain.float() - zeros) * each


def _groups(
    order: PackedOrder, places: torch.Tensor, numbers: torch.Tensor, shape: tuple[int, int]
) -> torch.Tensor:  # fmt: skip
    """The numbers of groups, one for each weight; `places` are those of a unit's scales."""
    rows, along_k = numbers.shape[:2]
    plain = numbers.reshape(rows, along_k, -1)[..., places]
    plain = plain.reshape(rows, along_k, order.format.groups, UNIT_ROWS).permute(0, 3, 1, 2)
    wide = plain.reshape(rows * UNIT_ROWS, -1)[: shape[0]]
    return wide.repeat_interleave(order.format.group or 1, dim=1)[:, : shape[1]]


def moved(codes: torch.Tensor, moves: tuple[tuple[int, int], ...]) -> torch.Tensor:
    """Bytes of words whose bits are moved, as `PackedOrder.moves` has them; () for none."""
    if not moves:
        return codes
    words = codes.contiguous().view(torch.int32).long()
    parts = [(words & mask) << left if left > 0 else (words & mask) >> -left for mask, left in moves]
    found = functools.reduce(torch.bitwise_or, parts)
    return torch.stack([found >> 8 * byte & 0xFF for byte in range(4)], dim=-1).to(torch.uint8).flatten(-2)


class _Tables(NamedTuple):
    """The tables of `dense_of`, on a device.

    codes, scales  the place of each element of a unit among its codes, and among its scales
    values         the value of each code that words hold
    zeros          zero points of their 16 bits, or None
    """

    codes: torch.Tensor
    scales: torch.Tensor
    values: torch.Tensor
    zeros: torch.Tensor | None


def _tables_of(order: PackedOrder, device: torch.device) -> _Tables:
    """The tables, copied to a device once: a backward pass would wait for each copy."""
    if torch.compiler.is_compiling() or modes_of_dispatch() or device.type == "meta":
        return _tables(order, device)
    return _kept_tables(order, device)


@functools.lru_cache(maxsize=64)
def _kept_tables(order: PackedOrder, device: torch.device) -> _Tables:
    with torch.inference_mode(False):
        return _tables(order, device)


def _tables(order: PackedOrder, device: torch.device) -> _Tables:
    places = [np.argsort(np.asarray(layout.offsets())) for layout in (order.codes, order.scales)]
    values = np.nan_to_num(order.format.facts.values(), nan=0.0, posinf=0.0, neginf=0.0).astype(np.float32)
    if order.stored:
        values = values[list(order.codes_of_stored)]
    codes, scales, table = (torch.from_numpy(x).to(device) for x in (*places, values))
    if not order.format.zeros:
        return _Tables(codes, scales, table, None)
    zeros, points = np.full(1 << 16, -1, np.float32), np.arange(MOST_ZERO + 1)
    zeros[zero_bits(order.target, points)] = points
    return _Tables(codes, scales, table, torch.from_numpy(zeros).to(device))
