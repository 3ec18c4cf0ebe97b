"""layoutgemm.quantized_matmul: all checks, then a kernel or torch's dispatcher."""

from __future__ import annotations

import torch

from ...errors import OperandError, TensorError
from ...kernels.sm90.config import Sm90Config
from ..checks import needs_dispatcher
from ..compiled.lowering import register
from ..prepared import config_text
from ..scaled_grouped.scaled import check_config
from .kept import Key, find
from .launch import quantized_product
from .operators import checked_call, facts_of
from .weights import QuantizedWeight

_is_traced = torch.compiler.is_dynamo_compiling  # a constant to Dynamo


def quantized_matmul(
    x: torch.Tensor,
    weight: QuantizedWeight,
    *,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    config: Sm90Config | None = None,
) -> torch.Tensor:
    """activation(x @ weight.T + bias) with packed weights of 4 or 8 bits.

    x          bfloat16 or float16, (..., k), the type that `weight` was packed for: on one GPU of compute capability
               9.0, or on the CPU, where the product is computed in float64
    weight     (n, k), on x's device
    bias       float32, bfloat16 or float16, (n,)
    activation relu, relu_sq, gelu, gelu_tanh, silu, sigmoid, tanh
    out_dtype  default x's
    config     the kernel's configuration, of the transposed product; default the one estimated fastest

    A weight of groups is rounded to x's type when it is multiplied; sums are float32. Bias and activation are applied
    before the one rounding. Works under torch.compile, FakeTensor and in CUDA graphs. x and bias have gradients.

    Raises OperandError, or TensorError for shapes, naming the operand.

    >>> from layoutgemm.kernels.sm90.quantized.formats import QuantizedFormat
    >>> weight = QuantizedWeight.quantize(torch.eye(3, 128), QuantizedFormat("int8"))
    >>> quantized_matmul(torch.arange(128.0).bfloat16(), weight, bias=torch.ones(3)).tolist()
    [1.0, 2.0, 3.0]
    """
    key: Key = ()
    if _is_traced():
        register()  # Inductor is told of the operator before it meets it
    elif type(weight) is QuantizedWeight:
        key, found = find(x, weight.units, weight.scales, bias, (weight.kind, activation, out_dtype, config))
        if found is not None:
            return found
    if not isinstance(weight, QuantizedWeight):
        raise OperandError(f"weight is a {type(weight).__qualname__}: a QuantizedWeight, as QuantizedWeight.quantize")
    if not isinstance(x, torch.Tensor):
        raise OperandError(f"x is a {type(x).__qualname__}, not a torch tensor")
    if x.dtype != weight.activations:
        raise OperandError(f"x is {x.dtype}, and the weights are packed for {weight.activations}")
    if x.ndim == 0 or x.shape[-1] != weight.k:
        raise TensorError(f"x has shape {list(x.shape)}: (..., {weight.k}), the weights being {weight.n}x{weight.k}")
    check_config(config)
    rows = x.reshape(-1, weight.k)
    facts, text = facts_of(weight.format, weight.n, weight.k), config_text(config)
    operands = rows, weight.units, weight.scales, bias
    if needs_dispatcher(*operands):
        value = torch.ops.layoutgemm.quantized_matmul(*operands, activation, *facts, out_dtype, text)
    else:
        call = checked_call(*operands, activation, facts, out_dtype, text)
        copied = rows.data_ptr() != x.data_ptr()
        value = quantized_product(call, *operands, None, () if copied else key, (*x.shape[:-1], weight.n))
    return value.reshape(*x.shape[:-1], weight.n)
