"""A linear layer with packed weights of 4 or 8 bits, quantised once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from ..errors import OperandError
from ..kernels.quantized.checkpoints import from_awq, from_gptq, order_of_groups
from ..kernels.quantized.formats import QuantizedFormat
from ..kernels.quantized.packing import QuantizedWeights
from ..torch_op.bias_activation import GATES
from ..torch_op.checks import autocast_type, check_activation, check_input
from ..torch_op.fp8.api import quantize
from ..torch_op.quantized import QuantizedWeight, quantized_matmul
from ..torch_op.scaled_grouped.recipes import ROW

INT4 = QuantizedFormat("int4", 128)


class QuantizedLinear(torch.nn.Module):
    """activation(x @ weight.T + bias) with packed weights; `from_linear` and `from_checkpoint` make one.

    With weights packed for float8, x is bfloat16, float16 or float32. Each call quantises it to float8_e4m3fn, with a
    scale for each row; the result has x's type, or autocast's. x then has no gradient.

    units, scales  buffers, as `QuantizedWeight` has them: not trained. x and bias have gradients
    bias           a parameter, or None
    order          a buffer: the input features in the order in which `weight` has them; None for their own order

    A state dict has all four. Raises OperandError for an activation that the product does not have.

    >>> layer = torch.nn.Linear(128, 2, bias=False, dtype=torch.bfloat16)
    >>> _ = layer.load_state_dict({"weight": torch.ones(2, 128)})
    >>> QuantizedLinear.from_linear(layer, QuantizedFormat("int8"))(torch.ones(1, 128).bfloat16()).tolist()
    [[128.0, 128.0]]
    """

    units: torch.Tensor
    scales: torch.Tensor | None
    order: torch.Tensor | None

    def __init__(
        self, weight: QuantizedWeight, bias: torch.nn.Parameter | None = None, *, activation: str | None = None,
        order: torch.Tensor | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        check_activation(activation)
        if activation in GATES:
            raise OperandError(f"activation {activation!r}: a product with packed weights has no gate")
        self.format, self.activations, self.activation = weight.format, weight.activations, activation
        self.in_features, self.out_features = weight.k, weight.n
        self.register_buffer("units", weight.units)
        self.register_buffer("scales", weight.scales)
        if order is not None and (order.dtype != torch.int64 or tuple(order.shape) != (weight.k,)):
            raise OperandError(f"order is {order.dtype} of shape {list(order.shape)}: int64 of [{weight.k}]")
        self.register_buffer("order", order)
        self.bias = bias

    @classmethod
    def from_linear(
        cls, layer: torch.nn.Linear, fmt: QuantizedFormat = INT4, *, activation: str | None = None,
        activations: torch.dtype | None = None,
    ) -> QuantizedLinear:  # fmt: skip
        """The layer with another's weights, rounded to codes, and its bias.

        activations  the type of x: that of its weights, or torch.float8_e4m3fn

        Raises OperandError unless its weights are bfloat16 or float16 and groups divide its in_features.
        """
        weight = QuantizedWeight.quantize(layer.weight, fmt, activations or layer.weight.dtype)
        return cls(weight, layer.bias, activation=activation).train(layer.training)

    @classmethod
    def from_checkpoint(
        cls, tensors: dict[str, torch.Tensor], kind: str, *, dtype: torch.dtype = torch.float16,
        activation: str | None = None,
    ) -> QuantizedLinear:  # fmt: skip
        """The layer of a checkpoint's tensors: qweight, qzeros, scales, and bias and g_idx if there are.

        kind   "gptq" or "awq", both of 4 bits
        dtype  of activations: scales are rounded to it, those for float8_e4m3fn to bfloat16

        With groups out of order in g_idx ("act-order"), the layer reorders x in every call.

        Raises OperandError naming a tensor that is missing or does not fit.
        """
        if kind not in ("gptq", "awq"):
            raise OperandError(f"kind {kind!r}: known are 'gptq' and 'awq'")
        missing = [name for name in ("qweight", "qzeros", "scales") if name not in tensors]
        if missing:
            raise OperandError(f"{missing[0]} is missing: a checkpoint has qweight, qzeros and scales")
        found = {name: value.detach().cpu() for name, value in tensors.items() if name != "bias"}
        scales = found["scales"].double().numpy()
        qweight, qzeros = found["qweight"].numpy(), found["qzeros"].numpy()
        plain: QuantizedWeights
        order: torch.Tensor | None = None
        if kind == "gptq":
            g_idx = found["g_idx"].numpy() if "g_idx" in found else None
            if g_idx is not None and (np.diff(g_idx) < 0).any():
                order = torch.from_numpy(order_of_groups(g_idx, scales.shape[0])).to(tensors["qweight"].device)
            plain = from_gptq(qweight, qzeros, scales, g_idx, None if order is None else order.cpu().numpy())
        else:
            plain = from_awq(qweight, qzeros, scales)
        kind = torch.bfloat16 if dtype.itemsize == 1 else dtype
        bias = torch.nn.Parameter(tensors["bias"].to(kind)) if tensors.get("bias") is not None else None
        weight = QuantizedWeight.pack(plain, dtype).to(tensors["qweight"].device)
        return cls(weight, bias, activation=activation, order=order)

    @property
    def weight(self) -> QuantizedWeight:
        """The packed weights, of input features in `order`; checked once for the same tensors."""
        made = self.__dict__.get("_weight")
        if made is None or made.units is not self.units or made.scales is not self.scales:
            size = self.out_features, self.in_features
            made = QuantizedWeight(self.format, self.units, self.scales, *size, self.activations)
            if not torch.compiler.is_compiling():
                self.__dict__["_weight"] = made
        return made

    def __getstate__(self) -> dict[str, object]:
        """The module's state, without what `weight` keeps."""
        return {name: value for name, value in self.__dict__.items() if name != "_weight"}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """activation(x @ weight.T + bias), of shape (..., out_features)."""
        check_input(x)
        x = x if self.order is None else x.index_select(-1, self.order)
        if self.activations.itemsize > 1:
            return quantized_matmul(x, self.weight, bias=self.bias, activation=self.activation)
        values, scale = quantize(x.reshape(-1, x.shape[-1]), ROW, dtype=self.activations)
        made = quantized_matmul(
            values, self.weight, scale_x=scale, bias=self.bias, activation=self.activation,
            out_dtype=autocast_type(x) or x.dtype,
        )  # fmt: skip
        return made.reshape(*x.shape[:-1], self.out_features)

    def dequantized(self) -> torch.Tensor:
        """The weights (out_features, in_features) in the activations' type; those for float8 in float32."""
        dense = self.weight.dense(torch.float32 if self.activations.itemsize == 1 else self.activations)
        return dense if self.order is None else dense[:, self.order.argsort()]

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> QuantizedLinear:
        """Move the module; a cast leaves codes and scales as they are."""
        scales = self.scales
        super()._apply(fn, recurse)
        if scales is not None and self.scales is not None and self.scales.dtype != scales.dtype:
            self.scales = scales.to(self.scales.device)
        return self

    def extra_repr(self) -> str:
        """Sizes and format."""
        said = f"in_features={self.in_features}, out_features={self.out_features}, bias={self.bias is not None}"
        return f"{said}, {self.format}" + ("" if self.activation is None else f", activation={self.activation!r}")
