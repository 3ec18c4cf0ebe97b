"""Packed weights as tensors: from plain ones and back."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch

from ...arguments import settle
from ...errors import OperandError, TensorError
from ...kernels.quantized.formats import QuantizedFormat
from ...kernels.quantized.order import PackedOrder
from ...kernels.quantized.packing import (
    PackedWeights,
    QuantizedWeights,
    check_activations,
    check_k,
    pack,
    quantize,
    units_of,
    unpack,
)
from ...kernels.run.operand_checks import addressed, check_operands, no_tensor, resolved
from ..checks import seen_by_autograd_alone
from ..types import TYPES
from .configs import check_packed_config
from .dense import FLOAT8, dense_of, dense_weights, facts_of, moved, name_of, packed_for
from .no_tensor import NoTensor

_AT_A_TIME = 1024  # rows, whole blocks: what is quantised at a time


@dataclass(frozen=True, eq=False)
class QuantizedWeight(NoTensor):
    """Weights (out features, in features) of 4 or 8 bits, packed for a kernel.

    As tensors and modules, it equals itself alone.

    units        uint8 (row blocks, K units, bytes): codes, and the scales of groups
    scales       float32 (n,): of whole columns; None where groups have scales
    n, k         out and in features
    activations  torch.bfloat16 or torch.float16: the type of x; torch.float8_e4m3fn: x is float8_e4m3fn or float8_e5m2

    >>> weight = QuantizedWeight.quantize(torch.eye(64, 128), QuantizedFormat("int8"))
    >>> weight.units.shape, weight.dense()[3, :5].tolist()
    (torch.Size([1, 1, 8192]), [0.0, 0.0, 0.0, 1.0, 0.0])
    """

    format: QuantizedFormat
    units: torch.Tensor
    scales: torch.Tensor | None
    n: int
    k: int
    activations: torch.dtype = torch.bfloat16

    def __post_init__(self) -> None:
        settle(self, OperandError)
        name = name_of(self.activations)
        check_activations(self.format, name)
        check_k(self.format, self.k)
        order = PackedOrder(self.format, name)
        want = (*units_of(self.n, self.k), order.unit_bytes)
        if self.units.dtype != torch.uint8 or tuple(self.units.shape) != want or not self.units.is_contiguous():
            found = f"{self.units.dtype} of shape {list(self.units.shape)}"
            raise OperandError(f"units are {found}: contiguous uint8 of {list(want)} for {self.n}x{self.k} weights")
        given = self.scales
        if (given is None) != (self.format.group is not None):
            raise OperandError(f"scales are {'missing' if given is None else 'given'}, and weights are {self.format}")
        if given is not None and (given.dtype != torch.float32 or tuple(given.shape) != (self.n,)):
            raise OperandError(f"scales are {given.dtype} of shape {list(given.shape)}: float32 of [{self.n}]")
        if given is not None and given.device != self.units.device:
            raise OperandError(f"scales are on {given.device}, and units on {self.units.device}: one device")

    def __repr__(self) -> str:
        return f"QuantizedWeight({self.kind}, on {self.device})"

    @property
    def dtype(self) -> torch.dtype:
        """The type of dense weights of 16 bits. `activations`, or bfloat16, which x is quantised from."""
        return torch.bfloat16 if self.activations == FLOAT8 else self.activations

    @property
    def shape(self) -> torch.Size:
        """(n, k)."""
        return torch.Size((self.n, self.k))

    @property
    def device(self) -> torch.device:
        """The device of the units."""
        return self.units.device

    def takes(self, kind: torch.dtype) -> bool:
        """True for the types of x that the weights are multiplied by."""
        return packed_for(kind) == self.activations

    @cached_property
    def kind(self) -> str:
        """The format, the sizes and the type of x as a text. The same launches read weights of one kind.

        >>> QuantizedWeight.quantize(torch.eye(64, 128), QuantizedFormat("int8")).kind
        'int8 with a scale a column, 64x128, torch.bfloat16'
        """
        return sys.intern(f"{self.format}, {self.n}x{self.k}, {self.activations}")

    @classmethod
    def quantize(
        cls, weight: torch.Tensor, fmt: QuantizedFormat, activations: torch.dtype = torch.bfloat16
    ) -> QuantizedWeight:
        """Weights (n, k) rounded to the nearest codes, on the CPU, and packed. The result is where `weight` is.

        Raises OperandError for weights that are not finite, a k that groups do not divide, or codes that float8 does
        not hold.
        """
        name = name_of(activations)
        check_operands({"weight": weight})
        if not weight.is_floating_point():
            raise OperandError(f"weight is {weight.dtype}: floating-point numbers are rounded")
        if weight.ndim != 2 or 0 in weight.shape:
            raise OperandError(f"weight has shape {list(weight.shape)}: (n, k), neither of them 0")
        if not addressed(weight):
            raise OperandError("weight has no values to round: it is traced, mapped, fake or on the meta device")
        parts = []
        for number, rows in enumerate(weight.split(_AT_A_TIME)):
            try:
                parts.append(pack(quantize(resolved(rows.detach()).double().cpu().numpy(), fmt, name), name))
            except OperandError as error:
                if len(weight) <= _AT_A_TIME:
                    raise
                first = number * _AT_A_TIME  # an error's places are those of the part
                raise OperandError(f"rows {first} to {first + len(rows) - 1}: {error}") from None
        scales = None if fmt.group else np.concatenate([part.scales for part in parts if part.scales is not None])
        units = np.concatenate([part.units for part in parts])
        n, k = weight.shape
        return cls.of(PackedWeights(fmt, name, n, k, units, scales)).to(weight.device)

    @classmethod
    def pack(cls, weights: QuantizedWeights, activations: torch.dtype = torch.bfloat16) -> QuantizedWeight:
        """Codes and scales that are there already, packed; see `kernels.quantized.packing`."""
        return cls.of(pack(weights, name_of(activations)))

    @classmethod
    def of(cls, packed: PackedWeights) -> QuantizedWeight:
        """Packed NumPy weights as tensors."""
        scales = None if packed.scales is None else torch.from_numpy(np.ascontiguousarray(packed.scales))
        units = torch.from_numpy(np.ascontiguousarray(packed.units))
        return cls(packed.format, units, scales, packed.n, packed.k, TYPES[packed.activations])

    @classmethod
    def on_meta(
        cls, n: int, k: int, fmt: QuantizedFormat, activations: torch.dtype = torch.bfloat16
    ) -> QuantizedWeight:
        """Weights of a size on the meta device, without values. Raises OperandError for a k that groups do not divide.

        >>> QuantizedWeight.on_meta(64, 128, QuantizedFormat("int8")).units.device.type
        'meta'
        """
        check_k(fmt, k)
        order = PackedOrder(fmt, name_of(activations))
        units = torch.empty(*units_of(n, k), order.unit_bytes, dtype=torch.uint8, device="meta")
        scales = None if fmt.group else torch.empty(n, dtype=torch.float32, device="meta")
        return cls(fmt, units, scales, n, k, activations)

    def to(self, device: torch.device | str) -> QuantizedWeight:
        """The same on a device. Raises OperandError for a type: packed weights are not cast."""
        if isinstance(device, torch.dtype):
            raise OperandError(f"to({device}): packed weights are not cast; dense({device}) gives a tensor")
        scales = None if self.scales is None else self.scales.to(device)
        return replace(self, units=self.units.to(device), scales=scales)

    def plain(self) -> QuantizedWeights:
        """Codes, scales and zero points in plain order, as NumPy arrays."""
        scales = None if self.scales is None else self.scales.cpu().numpy()
        name = name_of(self.activations)
        return unpack(PackedWeights(self.format, name, self.n, self.k, self.units.cpu().numpy(), scales))

    def dense(self, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """The weights (n, k), where the packed ones are. A product rounds those of groups to x's type."""
        if dtype == self.activations and addressed(self.units) and seen_by_autograd_alone():
            return dense_weights(self.units, self.scales, dtype, facts_of(self.format, self.n, self.k))
        return dense_of(self.format, self.activations, self.units, self.scales, (self.n, self.k)).to(dtype)


def in_place(units: torch.Tensor, fmt: QuantizedFormat, activations: torch.dtype) -> torch.Tensor:
    """Units of an earlier version, with each bit where it is now.

    Codes lay side by side in their words, as they are; `PackedOrder.moves` and `stored` say what becomes of them.
    """
    order = PackedOrder(fmt, name_of(activations))
    codes, rest = units[..., : order.code_bytes], units[..., order.code_bytes :]
    if order.stored:
        table = torch.tensor(order.stored, dtype=torch.uint8, device=units.device)
        codes = table[(codes & 15).int()] | table[(codes >> 4).int()] << 4
    return torch.cat([moved(codes, order.moves), rest], dim=-1)


def multiplied(fmt: QuantizedFormat, dense: torch.Tensor, activations: torch.dtype) -> torch.Tensor:
    """Weights as a product multiplies them. Those of groups are rounded to the activations' type of 16 bits.

    The scale of a column multiplies the sums, in float32, and with float8 activations so does that of a group.
    """
    return dense if fmt.group is None or activations.itemsize == 1 else dense.to(activations).to(dense.dtype)


def unlike(kind: torch.dtype, packed: torch.dtype) -> str:
    """The refusal of an x of another type than its packed weights take."""
    way_out = (
        f"x.to({packed}) is one" if packed.itemsize > 1 else "layoutgemm.quantize(x, 'RowWise') makes one, and scales"
    )
    device = next((name for name in ("cuda", "cpu") if torch.is_autocast_enabled(name)), None)
    if packed.itemsize > 1 and device is not None and torch.get_autocast_dtype(device) == kind:
        way_out = f"torch.autocast casts it: take one of dtype={packed}"
    return f"x is {kind}, and the weights are packed for {packed}: {way_out}"


def check_kinds_of(**operands: object) -> None:
    """Raise OperandError, naming it, for an operand that is given and no tensor."""
    for name, x in operands.items():
        if x is not None and not isinstance(x, torch.Tensor):
            raise OperandError(no_tensor(name, x))


def check_halves(n: int, gate: str | None) -> None:
    """Raise OperandError for a gate of an odd number of columns.

    gate  its function, or None
    """
    if gate is not None and n % 2:
        raise OperandError(f"n = {n}: a gate takes two halves of as many columns")


def check_product(x: object, weight: object, config: object) -> None:
    """Raise OperandError or TensorError for what `quantized_matmul` does not multiply."""
    if not isinstance(weight, QuantizedWeight):
        made = "QuantizedWeight.quantize(weight, format) makes one"
        raise OperandError(f"weight is a {type(weight).__qualname__}, not a QuantizedWeight: {made}")
    if not isinstance(x, torch.Tensor):
        raise OperandError(no_tensor("x", x))
    if not torch.compiler.is_compiling():
        check_operands({"x": x})
    if not weight.takes(x.dtype):
        raise OperandError(unlike(x.dtype, weight.activations))
    if x.ndim == 0 or x.shape[-1] != weight.k:
        raise TensorError(f"x has shape {list(x.shape)}: (..., {weight.k}), the weights being {weight.n}x{weight.k}")
    check_packed_config(config)
