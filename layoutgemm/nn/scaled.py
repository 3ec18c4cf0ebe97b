"""A linear layer with float8 weights, quantised where they are loaded.

    weights (N, K) of 16 or 32 bits  --quantized-->  float8_e4m3fn (N, K), float32 scales (N / 128, K / 128)
    x (..., K)                       --quantize-->   float8_e4m3fn, float32 scales (..., K / 128), at each call

A scale that is made here is a power of two. Then scale and value are exact in bfloat16, and a state dict that is saved
and loaded again gives the same weights.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.autograd.function import FunctionCtx

from ..arguments import shown
from ..errors import OperandError, TensorError
from ..torch_op.api import matmul
from ..torch_op.autograd.activation import by_autograd
from ..torch_op.bias_activation import GATES
from ..torch_op.checks import autocast_type, check_activation, check_input, differentiated, refuse_jit
from ..torch_op.compiled.chains import Chain, ChainCalls
from ..torch_op.fp8.api import quantize
from ..torch_op.problem import half
from ..torch_op.quantized.no_tensor import NoTensor
from ..torch_op.scaled_grouped import DEPTH, scaled_matmul
from ..torch_op.scaled_grouped.recipes import BLOCK, SQUARE
from ..torch_op.scaled_grouped.training import is_exporting
from .linear import ActivatedLayer, attributes, check_features, check_layer

FLOAT8 = torch.float8_e4m3fn
_CALLS = ChainCalls()
_is_traced = torch.compiler.is_dynamo_compiling  # a constant to Dynamo; others that compile are modes


def quantized(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights (N, K) as float8_e4m3fn, and their scales (N / 128, K / 128) in float32, powers of two.

    Blocks at the ends are smaller. weight = value * scale, rounded to 4 bits of significand.

    >>> value, scale = quantized(torch.tensor([[448.0, 7.0], [-896.0, 0.0]]))
    >>> value.float().tolist(), scale.tolist()
    ([[224.0, 3.5], [-448.0, 0.0]], [[2.0]])
    """
    value, scale = quantize(weight.detach(), SQUARE, power_of_two=True, scale_major="k")
    return value.contiguous(), scale


def spread(scale: torch.Tensor, n: int, k: int) -> torch.Tensor:
    """Scales of blocks, one for each of (N, K) weights."""
    return scale.repeat_interleave(DEPTH, 0)[:n].repeat_interleave(DEPTH, 1)[:, :k]


@dataclass(frozen=True, eq=False)
class ScaledWeight(NoTensor):
    """float8 weights with their scales; type, sizes and device are those of the dense weights.

    It is no tensor: a model that casts x to a layer's weight.dtype does not round x to 8 bits.

    values  float8_e4m3fn (N, K)
    scale   float32 (N / 128, K / 128)
    dtype   of the dense weights
    """

    values: torch.Tensor
    scale: torch.Tensor
    dtype: torch.dtype

    @property
    def shape(self) -> torch.Size:
        """(N, K)."""
        return self.values.shape

    @property
    def device(self) -> torch.device:
        """The device of the values."""
        return self.values.device

    def __repr__(self) -> str:
        return f"ScaledWeight(float8_e4m3fn {[*self.shape]} of {self.dtype}, on {self.device})"

    def dense(self) -> torch.Tensor:
        """The weights (N, K): values times scales, rounded to `dtype`."""
        return dequantized(self.values, self.scale, self.dtype)


class ScaledBuffers(torch.nn.Module):
    """The buffers of float8 weights. Casts of a module leave them, and change the result's type.

    codes, weight_scale  as `ScaledLinear` has them; or those of several experts
    wide                 the type of the dense weights and of the result
    """

    codes: torch.Tensor
    weight_scale: torch.Tensor

    def __init__(self, codes: torch.Tensor, weight_scale: torch.Tensor, wide: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("codes", codes)
        self.register_buffer("weight_scale", weight_scale)
        self.wide = wide

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> ScaledBuffers:
        """Move the module; a cast leaves codes and float32 scales, and changes the result's type."""
        scale = self.weight_scale
        kind = fn(torch.empty(0, dtype=self.wide, device=scale.device)).dtype
        self.wide = kind if kind in (torch.bfloat16, torch.float16, torch.float32) else self.wide
        super()._apply(fn, recurse)
        if self.weight_scale.dtype != scale.dtype:
            self.weight_scale = scale.to(self.weight_scale.device)
        return self


class ScaledLinear(ActivatedLayer, ScaledBuffers):
    """activation(x @ weight.T + bias) with float8 weights. A scale for 128 x 128 weights, and for 128 of a row of x.

    in_features, out_features, bias, activation  as `layoutgemm.nn.Linear`, gates too
    dtype  of state dicts, bias and result: bfloat16 or float16. `float()` makes it float32; autocast's is the result's

    weight        a `ScaledWeight`: it is not trained
    codes         uint8 (out_features, in_features): the bytes of float8_e4m3fn values, a buffer that any process
                  group sends and any pickle takes
    weight_scale  float32 (out_features / 128, in_features / 128), a buffer

    A state dict has `weight` in `dtype`, as torch.nn.Linear's; it is quantised where it is loaded. A checkpoint of
    float8 weights with `weight_scale_inv` is loaded as it is, and saved likewise.

    The gradient of x is by the weights, as if x had not been rounded. Raises OperandError for a dtype or an activation
    that the product does not have; TensorError for weights and scales of another shape, and for an odd gate.

    >>> layer = ScaledLinear(128, 2, bias=False)
    >>> _ = layer.load_state_dict({"weight": torch.ones(2, 128)})
    >>> layer(torch.ones(1, 128).bfloat16()).tolist(), layer.weight.values.dtype, layer.weight.dtype
    ([[128.0, 128.0]], torch.float8_e4m3fn, torch.bfloat16)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = torch.bfloat16, *,
        activation: str | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(dtype, torch.dtype) or dtype not in (torch.bfloat16, torch.float16):
            raise OperandError(
                f"dtype {shown(dtype)}: bfloat16 or float16, which the product is stored as; .bfloat16() converts"
            )
        check_activation(activation)
        check_features(in_features=in_features, out_features=out_features)
        if activation in GATES:
            half(2, out_features)
        blocks = -(-out_features // DEPTH), -(-in_features // DEPTH)
        codes = torch.zeros(out_features, in_features, device=device, dtype=torch.uint8)
        super().__init__(codes, torch.ones(blocks, device=device, dtype=torch.float32), dtype)
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.bias = torch.nn.Parameter(torch.zeros(out_features, device=device, dtype=dtype)) if bias else None
        self.saves_scales = False

    @classmethod
    def of(cls, layer: torch.nn.Linear, *, activation: str | None = None) -> ScaledLinear:
        """The layer with another's weights, quantised, and its bias. Raises OperandError for its type."""
        check_layer(layer, "layer of ScaledLinear.of")
        size, kind, device = (layer.in_features, layer.out_features), layer.weight.dtype, layer.weight.device
        made = cls(*size, layer.bias is not None, device=device, dtype=kind, activation=activation)
        if device.type != "meta":
            value, made.weight_scale = quantized(layer.weight)
            made.codes = value.view(torch.uint8)
        made.bias = layer.bias
        return made.train(layer.training)

    @property
    def weight(self) -> ScaledWeight:
        """The weights: views of the buffers."""
        return ScaledWeight(self.codes.view(FLOAT8), self.weight_scale, self.wide)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """activation(x @ weight.T + bias), of shape (..., out_features)."""
        x = input
        if _is_traced() or type(x) is not torch.Tensor:
            return self._made(x).results[0]
        codes, scale, bias = attributes(self, ScaledLinear, "codes", "weight_scale", "bias")
        given = (x, codes, scale) if bias is None else (x, codes, scale, bias)
        value: torch.Tensor = _CALLS.of(lambda: self._made(x), (self.activation, self.wide), given)
        return value

    def _made(self, x: torch.Tensor) -> Chain:
        """The result, with the launches of a call that records no derivatives."""
        refuse_jit("ScaledLinear")
        check_input(x, self.in_features)
        rows, kind = x.reshape(-1, x.shape[-1]), autocast_type(x) or self.wide
        weight = self.codes.view(FLOAT8)
        if differentiated(x, self.bias):
            product = _StraightThrough if torch.compiler.is_compiling() else _Transformed
            # An exporter records the inside of the Function, where a bias has no gradient: there it is added behind.
            inside = None if is_exporting() else self.bias
            value: torch.Tensor = product.apply(rows, weight, self.weight_scale, kind, inside)
            if self.bias is not inside:
                value = (value + self.bias).to(kind)
            if self.activation is not None:
                value = by_autograd(value, self.activation)
            steps: list[tuple[torch.Tensor, ...]] = []
        else:
            eight, scale = quantize(rows, BLOCK, power_of_two=True)
            value = scaled_matmul(
                eight, scale, weight.mT, self.weight_scale, recipe_a=BLOCK, recipe_b=SQUARE, bias=self.bias,
                activation=self.activation, out_dtype=kind,
            )  # fmt: skip
            own = (weight, self.weight_scale) if self.bias is None else (weight, self.weight_scale, self.bias)
            steps = [(rows, eight, scale), (eight, scale, *own, value)]
        return Chain(steps, (value.reshape(*x.shape[:-1], value.shape[-1]),))

    def dequantized(self) -> torch.Tensor:
        """The weights (out_features, in_features) in the type of state dicts."""
        return self.weight.dense()

    def _save_to_state_dict(self, destination: dict[str, torch.Tensor], prefix: str, keep_vars: bool) -> None:
        own: dict[str, torch.Tensor] = {}
        super()._save_to_state_dict(own, prefix, keep_vars)
        codes, scale = own.pop(f"{prefix}codes"), own.pop(f"{prefix}weight_scale")
        # The weight comes first, as in a torch.nn.Linear's.
        destination[f"{prefix}weight"] = codes.view(FLOAT8) if self.saves_scales else self.dequantized()
        if self.saves_scales:
            destination[f"{prefix}weight_scale_inv"] = scale
        destination.update(own)

    def _load_from_state_dict(
        self, state: dict[str, torch.Tensor], prefix: str, metadata: object, strict: bool, missing: list[str],
        *others: object,
    ) -> None:  # fmt: skip
        weight = state.pop(f"{prefix}weight", None)
        if weight is None:
            missing.append(f"{prefix}weight")
            value, scale = self.codes.view(FLOAT8), self.weight_scale
        else:
            scale = state.pop(f"{prefix}weight_scale_inv", None)
            self._check_stored(prefix, weight, scale)
            self.saves_scales = scale is not None
            value, scale = quantized(weight) if scale is None else (weight, scale)
        state[f"{prefix}codes"], state[f"{prefix}weight_scale"] = value.view(torch.uint8), scale
        super()._load_from_state_dict(state, prefix, metadata, strict, missing, *others)

    def _check_stored(self, prefix: str, weight: torch.Tensor, scale: torch.Tensor | None) -> None:
        """Raise unless a state dict's weight and scales are the layer's."""
        key, size = f"{prefix}weight_scale_inv", (self.weight_rows, self.in_features)
        if (weight.dtype == FLOAT8) != (scale is not None):
            there = "without" if scale is None else "with"
            raise OperandError(f"{prefix}weight is {weight.dtype} {there} {key}: float8 weights have it, others not")
        if tuple(weight.shape) != size:
            raise TensorError(f"{prefix}weight has shape {list(weight.shape)}: {list(size)}")
        if scale is not None and not scale.is_floating_point():
            raise OperandError(
                f"{key} is {scale.dtype}: floats; exponents of powers of two are scale.view(torch.float8_e8m0fnu)"
            )
        if scale is not None and scale.shape != self.weight_scale.shape:
            raise TensorError(f"{key} has shape {list(scale.shape)}: {list(self.weight_scale.shape)}")


def dequantized(weight: torch.Tensor, scale: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """float8 weights (N, K) times their scales, as `kind`."""
    return (weight.float() * spread(scale, *weight.shape)).to(kind)


_Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.dtype, torch.Tensor | None]


class _StraightThrough(torch.autograd.Function):
    """The product and its bias, with the gradient of x. Rounding x to 8 bits counts as the identity."""

    @staticmethod
    def forward(
        x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor, kind: torch.dtype, bias: torch.Tensor | None
    ) -> torch.Tensor:
        eight, of_rows = quantize(x, BLOCK, power_of_two=True)
        return scaled_matmul(
            eight, of_rows, weight.mT, scale, recipe_a=BLOCK, recipe_b=SQUARE, bias=bias, out_dtype=kind
        )

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: _Inputs, output: torch.Tensor) -> None:
        x, weight, scale, ctx.kind, bias = inputs
        ctx.save_for_backward(weight, scale)
        ctx.save_for_forward(weight, scale)
        ctx.like, ctx.of_bias, ctx.rows = x.dtype, None if bias is None else bias.dtype, x.shape[0]

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        weight, scale = ctx.saved_tensors
        of_x = matmul(grad, dequantized(weight, scale, grad.dtype)).to(ctx.like) if ctx.needs_input_grad[0] else None
        return of_x, None, None, None, grad.sum(0).to(ctx.of_bias) if ctx.needs_input_grad[4] else None


class _Transformed(_StraightThrough):
    """The same for torch.func. Compilers take no Function with rules of its own for tangents and maps."""

    @staticmethod
    def jvp(ctx: FunctionCtx, dx: torch.Tensor | None, *others: torch.Tensor | None) -> torch.Tensor | None:
        weight, scale = ctx.saved_tensors
        of_bias = None if others[-1] is None else others[-1].to(ctx.kind)
        if dx is None:
            return None if of_bias is None else of_bias.expand(ctx.rows, -1)
        return matmul(dx.to(ctx.kind), dequantized(weight, scale, ctx.kind).mT, bias=of_bias)

    @staticmethod
    def vmap(
        info: object, in_dims: tuple[int | None, ...], x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor,
        kind: torch.dtype, bias: torch.Tensor | None,
    ) -> tuple[torch.Tensor, int]:  # fmt: skip
        """Slices of x are more rows of one product. Biases that are mapped are added behind it."""
        if in_dims[1] is not None or in_dims[2] is not None:
            raise OperandError("float8 weights and scales are mapped by no transform: x and a bias are")
        moved = x[None] if in_dims[0] is None else x.movedim(in_dims[0], 0)
        apart = in_dims[4] is not None and bias is not None
        value = _Transformed.apply(moved.flatten(0, 1), weight, scale, kind, None if apart else bias)
        value = value.reshape(*moved.shape[:-1], value.shape[-1])
        if bias is not None and apart:
            value = (value + bias.movedim(in_dims[4], 0)[:, None]).to(kind)
        return value, 0
