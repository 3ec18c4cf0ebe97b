"""Layers with master weights of 16 or 32 bits, multiplied in fp8 in both passes."""

from __future__ import annotations

import torch

from ..arguments import as_bool
from ..errors import OperandError
from ..torch_op.autograd.activation import by_autograd
from ..torch_op.bias_activation import GATES
from ..torch_op.checks import autocast_type, cast, check_activation, check_input, differentiated
from ..torch_op.problem import half
from ..torch_op.scaled_grouped.grouped_training import fp8_grouped_matmul, fp8_groups_unrecorded
from ..torch_op.scaled_grouped.recipes import BLOCK, SQUARE, Recipes, recipe_text, refusal_of_both
from ..torch_op.scaled_grouped.training import fp8_again, fp8_linear, fp8_linear_once, fp8_unrecorded
from .kept_weights import MasterWeights, WeightOnce
from .linear import ActivatedLayer, check_features, check_layer, weight_and_bias


class MasterLinear(ActivatedLayer, MasterWeights, torch.nn.Linear):
    """activation(x @ weight.T + bias) in fp8, with gradients in fp8. It is torch.nn.Linear by `layoutgemm.fp8_matmul`.

    in_features, out_features, bias, device, dtype  as torch.nn.Linear has them: bfloat16, float16 or float32
    activation  None, relu, relu_sq, gelu, gelu_tanh, silu, sigmoid or tanh; by torch, on a float32 product. "swiglu"
                and "geglu" gate the first half of the columns with the second, in the kernel without derivatives
    recipe_a    of x, and of the result's gradient; recipe_b of the weights. The weights' gradient takes a scale for 128
                of a line on both sides, or for a line

    The parameters are the master weights: they and the state dict are torch.nn.Linear's. Each call quantises them
    anew, as optimizers change them. `keep_quantized()` keeps them quantised for inference, `quantize_once()` between an
    optimizer's steps. Works under autocast and torch.compile.

    Raises OperandError for recipes that do not meet, and for an activation that the product does not have; TensorError
    for a gate of an odd number of columns.

    >>> layer = MasterLinear(256, 2, bias=False, dtype=torch.bfloat16)
    >>> _ = layer.load_state_dict({"weight": torch.ones(2, 256)})
    >>> layer(torch.ones(3, 256).bfloat16()).sum().backward()
    >>> layer.weight.grad[0, 0].item(), layer.weight.dtype
    (3.0, torch.bfloat16)
    """

    def __init__(
        self, in_features: int, out_features: int, bias: bool = True,
        device: torch.device | str | None = None, dtype: torch.dtype | None = None, *,
        activation: str | None = None, recipe_a: object = BLOCK, recipe_b: object = SQUARE,
    ) -> None:  # fmt: skip
        check_activation(activation)
        check_features(in_features=in_features, out_features=out_features)
        if activation in GATES:
            half(2, out_features)
        names = recipe_text("recipe_a", recipe_a), recipe_text("recipe_b", recipe_b)
        if refused := refusal_of_both(*names):
            raise OperandError(refused)
        super().__init__(in_features, out_features, bias, device, dtype)
        self.activation, self.recipe_a, self.recipe_b = activation, *names

    @classmethod
    def of(
        cls, layer: torch.nn.Linear, *, activation: str | None = None, recipe_a: object = BLOCK,
        recipe_b: object = SQUARE,
    ) -> MasterLinear:  # fmt: skip
        """The layer with the parameters of another. The same tensors, so that ties and optimizers stay.

        >>> layer = torch.nn.Linear(2, 3)
        >>> MasterLinear.of(layer).weight is layer.weight
        True
        """
        check_layer(layer, "layer of MasterLinear.of")
        sizes = layer.in_features, layer.out_features
        options = {"activation": activation, "recipe_a": recipe_a, "recipe_b": recipe_b}
        made = cls(*sizes, layer.bias is not None, device="meta", **options)  # type: ignore[arg-type]
        made.weight, made.bias = layer.weight, layer.bias
        return made.train(layer.training)

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """activation(x @ weight.T + bias), of shape (..., out_features), or half of them with a gate."""
        x, activation = input, self.activation
        weight, bias = weight_and_bias(self, MasterLinear)
        once = self._once if self.training else None
        if type(x) is torch.Tensor and activation is None and self._kept is None and once is None:
            again = fp8_again(x, weight, bias, (self.recipe_a, self.recipe_b, None, True))
            if again is not None:
                return again
        dense = type(x) is torch.Tensor and x.layout is torch.strided
        if not (dense and x.ndim > 1 and x.shape[-1] == self.in_features):
            check_input(x, self.in_features)  # the product checks any other input likewise
        rows = x if x.ndim > 1 else x.unsqueeze(0)
        kept = None if self._kept is None else self._quantized(x, weight, bias)
        if activation is None and kept is None and once is None:
            value = fp8_linear(rows, weight, bias, self.recipe_a, self.recipe_b, None)
            return value if x.ndim > 1 else value.squeeze(0)
        gated, kind = activation in GATES, autocast_type(x) or x.dtype
        inside = gated and (kept is not None or not differentiated(x, weight, bias))  # of the kernel
        of_product = kind if inside or activation is None else torch.float32
        if once is not None and not inside:
            value = fp8_linear_once(rows, weight, bias, (self.recipe_a, self.recipe_b, of_product), once)
        elif kept is not None or inside:
            recipes, own = Recipes(self.recipe_a, self.recipe_b), activation if inside else None
            value = fp8_unrecorded(rows, weight, bias, own, recipes, of_product, kept)
        else:
            value = fp8_linear(rows, weight, bias, self.recipe_a, self.recipe_b, of_product)
        if activation is not None and not inside:
            value = by_autograd(value, activation).to(kind)
        return value if x.ndim > 1 else value.squeeze(0)

    def quantize_once(self, once: bool = True) -> MasterLinear:
        """Quantise the weights once for all training calls between two optimizer steps.

        Both layouts, for both passes. Returns the module.

        once  False drops what is kept: each call quantises the weights again

        For gradient accumulation: results and gradients have the same bits. It takes two bytes a weight and its scales:
        one for the forward pass, one for the backward pass. The next step of any optimizer of torch.optim frees them.
        `repr` tells the bytes. Captured graphs and code of torch.compile quantise the weights themselves.

        A change of the weight is seen where torch counts it, as another parameter, and at each step of an optimizer.
        Without such a step, writes past the count are not seen, by `.data` in one's own loop or by collectives. Call
        `quantize_once()` again, which drops what is kept.

        >>> layer = MasterLinear(128, 2, bias=False).quantize_once()
        >>> for _ in range(3):
        ...     layer(torch.ones(1, 128)).sum().backward()
        >>> layer
        MasterLinear(in_features=128, out_features=2, bias=False, recipes=BlockWise1x128 x BlockWise128x128, \
quantized once: 260 bytes)
        """
        once = as_bool(once, "once of quantize_once", OperandError)
        self._once = WeightOnce() if once else None
        return self

    @property
    def _told(self) -> tuple[str, ...]:
        once = () if self._once is None else (f"quantized once: {self._once.nbytes} bytes",)
        return (f"recipes={self.recipe_a} x {self.recipe_b}", *once)


class MasterGroups(MasterWeights):
    """Rows in groups, each times master weights of its own expert, by `layoutgemm.fp8_grouped_matmul`.

    experts, in_features, out_features, device, dtype  sizes, and the parameter's type: bfloat16, float16 or float32
    multiple  128 promises groups that begin at multiples of 128: the weights' gradient is in fp8 too

    The parameter `weight` is (experts, out features, in features); `keep_quantized()` keeps it quantised for inference.
    `ExpertsMLP` takes two such layers, with groups that
    begin at any row.

    Raises OperandError for sizes that are no numbers of features.

    >>> layer = MasterGroups(2, 128, 3, dtype=torch.bfloat16)
    >>> layer(torch.ones(3, 128).bfloat16(), torch.tensor([0, 1, 3])).shape, layer.weight.shape
    (torch.Size([3, 3]), torch.Size([2, 3, 128]))
    """

    def __init__(
        self, experts: int, in_features: int, out_features: int, device: torch.device | str | None = None,
        dtype: torch.dtype | None = None, *, multiple: int = 1,
    ) -> None:  # fmt: skip
        check_features(experts=experts, in_features=in_features, out_features=out_features)
        super().__init__()
        self.experts, self.in_features, self.out_features, self.multiple = experts, in_features, out_features, multiple
        self.recipe_b = SQUARE
        self.weight = torch.nn.Parameter(torch.empty(experts, out_features, in_features, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weights as torch.nn.Linear draws each expert's."""
        bound = max(self.in_features, 1) ** -0.5
        torch.nn.init.uniform_(self.weight, -bound, bound)

    def forward(self, x: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
        """The products of rows (rows, in features). Group e is rows offsets[e] to offsets[e + 1]."""
        check_input(x, self.in_features)
        weight = self.weight
        kept = None if self._kept is None else self._quantized(x, weight)
        if kept is None:
            return fp8_grouped_matmul(x, weight.mT, offsets, multiple=self.multiple)
        kind = autocast_type(x)
        return fp8_groups_unrecorded(cast(x, kind), kept, offsets, kind or x.dtype)

    def extra_repr(self) -> str:
        """Sizes, and the promise."""
        said = f"{self.experts} x (in_features={self.in_features}, out_features={self.out_features})"
        return said if self.multiple == 1 else f"{said}, multiple={self.multiple}"
