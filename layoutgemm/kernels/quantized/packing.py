"""Weights to codes and scales, codes to packed units, and back.

    quantize     (N, K) weights -> QuantizedWeights, rounded to the nearest code
    pack         QuantizedWeights -> PackedWeights, in the order of `order.PackedOrder`
    unpack       PackedWeights -> QuantizedWeights

Weights are (out features, in features), as torch.nn.Linear has them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arguments import check_range, checked, settle, shown
from ...dtypes import DType, dtype
from ...errors import OperandError
from ..plan import MAX_COORDINATE
from .conversions import TARGETS, zero_bits, zeros_of
from .float8 import refusal
from .formats import ACTIVATIONS, MOST_ZERO, UNIT_K, UNIT_ROWS, QuantizedFormat
from .order import PackedOrder

Floats = npt.NDArray[np.floating[Any]]
_COLUMN_SCALES = dtype("f32")
_MOST_EXACT = 1 << 53  # of the integers that float64 holds one by one


@dataclass(frozen=True, eq=False)
class QuantizedWeights:
    """Codes of weights and their scales, in plain order.

    codes   uint8, (N, K): the bits of each code
    scales  (N, K / group), or (N,) where a column has one
    zeros   (N, K / group) zero points, 0 to 16, or None

    Raises OperandError for shapes that do not fit, a K that groups do not divide, codes of NaN or infinity, and zero
    points that are no integers from 0 to 16.
    """

    format: QuantizedFormat
    codes: npt.NDArray[np.uint8]
    scales: Floats
    zeros: npt.NDArray[Any] | None = None

    def __post_init__(self) -> None:
        fmt, codes = self.format, np.asarray(self.codes)
        if codes.ndim != 2 or codes.dtype != np.uint8 or 0 in codes.shape:
            raise OperandError(f"codes are {codes.dtype} of shape {codes.shape}: uint8 of (N, K), neither of them 0")
        n, k = codes.shape
        check_k(fmt, k)
        shape = (n,) if fmt.group is None else (n, k // fmt.group)
        given = {"scales": self.scales} | ({"zeros": self.zeros} if fmt.zeros else {})
        for name, value in given.items():
            if value is None or np.shape(value) != shape:
                found = "missing" if value is None else f"of shape {np.shape(value)}"
                raise OperandError(f"{name} are {found}: weights of {n}x{k}, {fmt}, take {shape}")
        if self.zeros is not None and not fmt.zeros:
            raise OperandError(f"zeros are given, and {fmt} has none")
        self._check_values(codes)

    def _check_values(self, codes: npt.NDArray[np.uint8]) -> None:
        fmt, values = self.format, self.format.facts.values()
        wrong = np.argwhere(codes >= len(values)) if fmt.bits < 8 else np.argwhere(~np.isfinite(values[codes]))
        if len(wrong):
            row, column = (int(x) for x in wrong[0])
            raise OperandError(f"code {int(codes[row, column])} at ({row}, {column}): {fmt.code} has no such weight")
        wrong = np.argwhere(~np.isfinite(_real("scales", self.scales)))
        if len(wrong):
            raise OperandError(f"scale {tuple(int(x) for x in wrong[0])} is not finite")
        if self.zeros is not None:
            zeros = _real("zeros", self.zeros)
            wrong = np.argwhere((zeros != np.round(zeros)) | (zeros < 0) | (zeros > MOST_ZERO))
            if len(wrong):
                at = tuple(int(x) for x in wrong[0])
                raise OperandError(f"zero point {zeros[at]} at {at}: an integer from 0 to {MOST_ZERO}")

    @property
    def n(self) -> int:
        """Output features."""
        return int(self.codes.shape[0])

    @property
    def k(self) -> int:
        """Input features."""
        return int(self.codes.shape[1])

    def dense(self) -> npt.NDArray[np.float64]:
        """The weights (N, K) in float64: (value - zero point) * scale."""
        facts, group = self.format.facts, self.format.group
        if self.zeros is None:
            value = facts.values()[self.codes]
        else:
            value = self.codes.astype(np.float64) - np.repeat(np.asarray(self.zeros, np.float64), group or 1, axis=1)
        scales = np.asarray(self.scales, np.float64)
        return np.asarray(value * (scales[:, None] if group is None else np.repeat(scales, group, axis=1)))


def _real(name: str, given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Numbers in float64. Raises OperandError for values that are no real numbers, or that float64 rounds."""
    try:
        array = np.asarray(given)
    except ValueError:  # rows of different lengths
        raise OperandError(f"{name} are {shown(given)}: an array of real numbers") from None
    # V: the floats that NumPy lacks, as bfloat16, but no records
    if array.dtype.kind not in "fiuV" or array.dtype.itemsize > 8 or array.dtype.names is not None:
        raise OperandError(f"{name} are {array.dtype} of shape {array.shape}: real numbers")
    if array.dtype.kind in "iu" and len(wrong := np.argwhere((array > _MOST_EXACT) | (array < -_MOST_EXACT))):
        at = tuple(int(x) for x in wrong[0])
        raise OperandError(f"{name} has {array[at]} at {at}: integers up to 2**53 are float64's")
    return array.astype(np.float64)


@dataclass(frozen=True, eq=False)
class PackedWeights:
    """Weights in the order that `quantized_matmul` reads.

    units   uint8, (row blocks, K units, bytes of a unit): see `order`
    scales  float32, (N,): of whole columns; None where groups have scales, which are in the units
    n, k    output and input features
    activations  "bf16" or "f16": the type that codes become, and of the scales in the units; "e4m3", with bf16 scales

    Raises OperandError for units and scales that are not those of the format and the sizes.
    """

    format: QuantizedFormat
    activations: str
    n: int
    k: int
    units: npt.NDArray[np.uint8]
    scales: npt.NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        settle(self, OperandError)
        check_activations(self.format, self.activations)
        check_k(self.format, self.k)
        check_range(OperandError, MAX_COORDINATE, f"it is 1 to {MAX_COORDINATE}", n=self.n, k=self.k)
        want, scales = (*units_of(self.n, self.k), self.order.unit_bytes), self.scales
        if self.units.dtype != np.uint8 or self.units.shape != want:
            raise OperandError(f"units are {self.units.dtype} of {self.units.shape}: uint8 of {want}")
        if (scales is None) != (self.format.group is not None):
            raise OperandError(f"scales are {'missing' if scales is None else 'given'}, and weights are {self.format}")
        if scales is not None and (scales.dtype != np.float32 or scales.shape != (self.n,)):
            raise OperandError(f"scales are {scales.dtype} of shape {scales.shape}: float32 of ({self.n},)")

    @property
    def order(self) -> PackedOrder:
        """The order of the units."""
        return PackedOrder(self.format, self.activations)

    @property
    def nbytes(self) -> int:
        """Bytes of units and scales."""
        return int(self.units.nbytes) + (0 if self.scales is None else int(self.scales.nbytes))


def check_activations(fmt: QuantizedFormat, activations: str) -> None:
    """Raise OperandError for activations that weights of a format are not multiplied by."""
    if activations not in ACTIVATIONS:
        raise OperandError(f"activations = {shown(activations)}: known are {', '.join(ACTIVATIONS)}")
    if activations == "e4m3" and (reason := refusal(fmt)):
        raise OperandError(f"weights are {fmt}, for float8 activations: {reason}")


def check_k(fmt: QuantizedFormat, k: int) -> None:
    """Raise OperandError for a K that groups do not divide."""
    if fmt.group is not None and k % fmt.group:
        raise OperandError(f"K = {k} is {k // fmt.group} groups of {fmt.group} and {k % fmt.group} more: no whole one")


def units_of(n: int, k: int) -> tuple[int, int]:
    """Row blocks and K units of weights.

    >>> units_of(100, 300)
    (2, 3)
    """
    return -(-n // UNIT_ROWS), -(-k // UNIT_K)


# ------------------------------------------------------------------------------------------------------------- rounding


@checked(OperandError)
def quantize(weights: npt.ArrayLike, fmt: QuantizedFormat, activations: str | None = None) -> QuantizedWeights:
    """Weights (N, K) rounded to the nearest code. The scale is the smallest with which no weight leaves the range.

    activations  round the scales of groups as `pack` would afterwards, before the weights are

    Raises OperandError for weights that are not finite, or not (N, K), for a K that groups do not divide, and for
    activations that the weights are not multiplied by.

    >>> found = quantize(np.array([[0.0, 7.0, -7.0, 3.0]] * 2).repeat(4, axis=1), QuantizedFormat("int4", 16))
    >>> found.scales.tolist(), found.dense()[0, ::4].tolist()
    ([[1.0], [1.0]], [0.0, 7.0, -7.0, 3.0])
    """
    wide = _real("weights", weights)
    if wide.ndim != 2 or 0 in wide.shape:
        raise OperandError(f"weights have shape {wide.shape}: (N, K), neither of them 0")
    if len(wrong := np.argwhere(~np.isfinite(wide))):
        at = tuple([int(x) for x in wrong[0]])
        raise OperandError(f"weight {at} is {wide[at]}: finite ones are rounded")
    n, k = wide.shape
    check_k(fmt, k)
    if activations is not None:
        check_activations(fmt, activations)
    grouped = wide.reshape(n, -1, fmt.group or k)
    if fmt.zeros:
        return _with_zeros(grouped, fmt, activations, (n, k))
    most = fmt.facts.largest
    scales = _rounded(np.abs(grouped).max(axis=2) / most, fmt, activations)
    ratio = grouped / np.where(scales == 0, 1, scales)[..., None]
    stored = fmt.facts.stored
    if stored.kind == "float":
        codes = stored.encode(np.clip(ratio, -most, most))
    else:
        low = float(fmt.facts.values().min())
        whole = np.clip(np.rint(ratio), low, most) + fmt.facts.excess
        codes = stored.encode(whole.astype(np.int64))
    flat = scales[:, 0] if fmt.group is None else scales
    return QuantizedWeights(fmt, codes.reshape(n, k).astype(np.uint8), flat)


def _with_zeros(
    grouped: npt.NDArray[np.float64], fmt: QuantizedFormat, activations: str | None, shape: tuple[int, int]
) -> QuantizedWeights:
    """int4 from 0 to 15: the least weight of a group is near 0, the largest near 15."""
    low, high = np.minimum(grouped.min(axis=2), 0), np.maximum(grouped.max(axis=2), 0)
    scales = _rounded((high - low) / 15, fmt, activations)
    safe = np.where(scales == 0, 1, scales)
    zeros = np.clip(np.rint(-low / safe), 0, 15)
    codes = np.clip(np.rint(grouped / safe[..., None]) + zeros[..., None], 0, 15)
    return QuantizedWeights(fmt, codes.reshape(shape).astype(np.uint8), scales, zeros.astype(np.uint8))


def _rounded(scales: npt.NDArray[np.float64], fmt: QuantizedFormat, activations: str | None) -> Floats:
    """Scales as `pack` stores them: where the nearest one is 0, and weights are not, the smallest above 0."""
    if fmt.group is not None and activations is None:
        return scales
    kind = _scale_type(fmt, activations or "bf16")
    found = np.asarray(kind.decode(kind.encode(scales)), np.float64)
    least = float(kind.decode(np.array([1]))[0])
    found = np.where((found == 0) & (scales > 0), least, found)
    if len(wrong := np.argwhere(~np.isfinite(found))):
        at = tuple(int(x) for x in wrong[0])
        raise OperandError(
            f"the weights of group {at} take a scale of {scales[at]:g}, which is {found[at]} as {kind}, the type of "
            "scales"
        )
    return found.astype(np.float32) if fmt.group is None else found


def _scale_type(fmt: QuantizedFormat, activations: str) -> DType:
    """The type of scales in packed weights: float32 of columns."""
    return _COLUMN_SCALES if fmt.group is None else TARGETS[activations].scales


# -------------------------------------------------------------------------------------------------------------- packing


@checked(OperandError)
def pack(weights: QuantizedWeights, activations: str = "bf16") -> PackedWeights:
    """Weights in the order of a kernel that multiplies activations of that type.

    activations  "bf16" or "f16", or "e4m3" for float8 activations of either kind

    Scales of groups are rounded to the activations' type, or to bf16 for float8. N is filled up to whole blocks of 64
    rows, K to whole units of 128, with codes of 0.

    Raises OperandError for a scale that the type holds as 0 or not at all, and for codes that it does not hold. It
    refuses a weight beyond the type in which it is multiplied, too. So is a scale of float8 groups that the type does
    not hold times `PackedOrder.bias_factor`: of e4m3 256 or more.

    >>> packed = pack(quantize(np.eye(100, 256) * 7, QuantizedFormat("int4", 128)))
    >>> packed.units.shape, bool((unpack(packed).dense() == np.eye(100, 256) * 7).all())
    ((2, 2, 4224), True)
    """
    check_activations(weights.format, activations)
    order, (rows, units) = PackedOrder(weights.format, activations), units_of(weights.n, weights.k)
    packed = np.zeros((rows, units, order.unit_bytes), np.uint8)
    packed[..., : order.code_bytes] = _packed_codes(order, _filled(weights.codes, rows * UNIT_ROWS, units * UNIT_K))
    bits, scales = _scale_bits(_scale_type(weights.format, activations), weights.scales)
    _check_range(weights, scales, _COLUMN_SCALES if order.scales_sums or not order.format.group else order.target.dtype)
    if weights.format.group is None:
        return PackedWeights(weights.format, activations, weights.n, weights.k, packed, scales.astype(np.float32))
    _check_bias(order, scales)
    numbers = [bits.astype(np.uint16)]
    if weights.zeros is not None:
        numbers.append(zero_bits(order.target, weights.zeros))
    packed[..., order.code_bytes :] = _packed_numbers(order, numbers, (rows, units))
    return PackedWeights(weights.format, activations, weights.n, weights.k, packed)


def _filled(codes: npt.NDArray[Any], rows: int, columns: int) -> npt.NDArray[Any]:
    return np.pad(codes, ((0, rows - codes.shape[0]), (0, columns - codes.shape[1])))


def _packed_codes(order: PackedOrder, codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """(row blocks, K units, bytes) of whole units."""
    rows, units = codes.shape[0] // UNIT_ROWS, codes.shape[1] // UNIT_K
    by_unit = codes.reshape(rows, UNIT_ROWS, units, UNIT_K).transpose(0, 2, 3, 1).reshape(rows, units, -1)
    lined = by_unit[..., np.asarray(order.codes.offsets())]
    if order.stored:
        lined = np.asarray(order.stored, np.uint8)[lined]
    if order.format.bits == 4:
        lined = np.asarray(lined[..., ::2] | lined[..., 1::2] << 4)
    return _moved(lined, order.moves)


def _moved(codes: npt.NDArray[np.uint8], moves: tuple[tuple[int, int], ...]) -> npt.NDArray[np.uint8]:
    """Bytes of words whose bits are moved: (mask, shift to the left) for each part, or () for none."""
    if not moves:
        return codes
    words = np.ascontiguousarray(codes).view("<u4").astype(np.int64)
    found = sum((words & mask) << left if left > 0 else (words & mask) >> -left for mask, left in moves)
    return np.asarray(found, "<u4").view(np.uint8)


def _scale_bits(kind: DType, scales: Floats) -> tuple[npt.NDArray[np.unsignedinteger], npt.NDArray[np.float64]]:
    """The bits of scales, and their values as they are stored."""
    wide = np.asarray(scales, np.float64)
    bits = kind.encode(wide)
    back = np.asarray(kind.decode(bits), np.float64)
    wrong = np.argwhere(~np.isfinite(back) | ((back == 0) & (wide != 0)))
    if len(wrong):
        at = tuple(int(x) for x in wrong[0])
        raise OperandError(f"scale {wide[at]} at {at} is {back[at]} as {kind}, the type of scales")
    return bits, back


def _check_range(weights: QuantizedWeights, scales: npt.NDArray[np.float64], kind: DType) -> None:
    """Raise OperandError for a weight beyond the type in which it is multiplied."""
    most = MOST_ZERO if weights.format.zeros else float(np.nanmax(np.abs(_finite(weights.format))))
    if np.isfinite(kind.decode(kind.encode(np.array([float(np.abs(scales).max()) * most]))))[0]:
        return  # whatever the codes are
    wide = replace(weights, scales=scales).dense()
    wrong = np.argwhere(~np.isfinite(np.asarray(kind.decode(kind.encode(wide)), np.float64)))
    if len(wrong):
        row, column = (int(x) for x in wrong[0])
        scale = scales[row] if weights.format.group is None else scales[row, column // weights.format.group]
        raise OperandError(
            f"weight {wide[row, column]:g} at ({row}, {column}), of scale {scale:g}, is no number of {kind}, the type "
            "in which it is multiplied"
        )


def _check_bias(order: PackedOrder, scales: npt.NDArray[np.float64]) -> None:
    """Raise OperandError for a scale that a kernel multiplies beyond the type.

    It is multiplied by the exponent's bias, or by `order.factor`.
    """
    kind, factor = (_COLUMN_SCALES, order.factor) if order.scales_sums else (order.target.dtype, order.bias_factor)
    wrong = np.argwhere(~np.isfinite(np.asarray(kind.decode(kind.encode(scales * factor)), np.float64)))
    if len(wrong):
        at = tuple(int(x) for x in wrong[0])
        raise OperandError(
            f"scale {scales[at]:g} at {at} of {order.format}: a kernel multiplies it by {factor:g}, and {kind} does "
            f"not hold {scales[at] * factor:g}. Divide the weights by a power of two, and multiply the result by it"
        )


def _finite(fmt: QuantizedFormat) -> npt.NDArray[np.float64]:
    """The values of codes that are weights."""
    values = fmt.facts.values()
    return values[np.isfinite(values)]


def _packed_numbers(
    order: PackedOrder, numbers: list[npt.NDArray[np.uint16]], shape: tuple[int, int]
) -> npt.NDArray[np.uint8]:
    """(row blocks, K units, bytes) of the scales, and of the zeros beside them."""
    (rows, units), groups = shape, order.format.groups
    parts = []
    for each in numbers:
        full = _filled(each, rows * UNIT_ROWS, units * groups)
        by_unit = full.reshape(rows, UNIT_ROWS, units, groups).transpose(0, 2, 3, 1).reshape(rows, units, -1)
        lined = by_unit[..., np.asarray(order.scales.offsets())]
        parts.append(lined.reshape(rows, units, -1, 2))  # side by side: a thread's two rows
    together = np.stack(parts, axis=3).reshape(rows, units, -1)
    return np.ascontiguousarray(together.astype("<u2")).view(np.uint8)


@checked(OperandError)
def unpack(packed: PackedWeights) -> QuantizedWeights:
    """The inverse of `pack`: plain codes, scales and zero points; scales as they were rounded."""
    order, (rows, units) = packed.order, units_of(packed.n, packed.k)
    codes = _moved(packed.units[..., : order.code_bytes], order.back)
    if order.format.bits == 4:
        codes = np.stack([codes & 15, codes >> 4], axis=-1).reshape(rows, units, -1)
    if order.stored:
        codes = np.asarray(order.codes_of_stored, np.uint8)[codes]
    plain = np.empty_like(codes)
    plain[..., np.asarray(order.codes.offsets())] = codes
    plain = plain.reshape(rows, units, UNIT_K, UNIT_ROWS).transpose(0, 3, 1, 2).reshape(rows * UNIT_ROWS, -1)
    plain = np.ascontiguousarray(plain[: packed.n, : packed.k])
    if packed.scales is not None:
        return QuantizedWeights(packed.format, plain, packed.scales)
    bits = np.ascontiguousarray(packed.units[..., order.code_bytes :]).view("<u2")
    kinds = bits.reshape(rows, units, -1, order.scale_words, 2)
    found = [_plain_numbers(order, kinds[..., kind, :], packed) for kind in range(order.scale_words)]
    zeros = zeros_of(order.target, found[1]) if packed.format.zeros else None
    return QuantizedWeights(packed.format, plain, order.target.scales.decode(found[0]), zeros)


def _plain_numbers(order: PackedOrder, bits: npt.NDArray[np.uint16], packed: PackedWeights) -> npt.NDArray[np.uint16]:
    """(N, K / group) numbers, of whole units in packed order."""
    rows, units = bits.shape[:2]
    lined = bits.reshape(rows, units, -1)
    plain = np.empty_like(lined)
    plain[..., np.asarray(order.scales.offsets())] = lined
    groups = order.format.groups
    by_row = plain.reshape(rows, units, groups, UNIT_ROWS).transpose(0, 3, 1, 2).reshape(rows * UNIT_ROWS, -1)
    return np.ascontiguousarray(by_row[: packed.n, : packed.k // (order.format.group or 1)])
