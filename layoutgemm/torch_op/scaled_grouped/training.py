"""layoutgemm.fp8_matmul: a product in fp8 of operands of 16 or 32 bits, with its gradients in fp8.

Each product quantises its operands along the dimension that it sums over:

    product        a, quantised along      b, quantised along     scales of blocks
    -------------  ----------------------  ---------------------  --------------------------------
    C = A @ B      A (M, K), K             B^T (N, K), K          as named: 1x128 by 128x128
    dA = dC @ B^T  dC (M, N), N            B (K, N), N            as named, the same for square ones
    dB = A^T @ dC  A^T (K, M), M           dC^T (N, M), M         1x128 by 1x128

Of batches each matrix is such a product. `layoutgemm.quantize` makes values and scales. Where both gradients take 1x128
of dC, `quantize_both` makes both forms in one launch. Scales are constants to autograd, and rounding is the identity.
Accumulators are float32. The operands themselves are kept for the backward pass, and quantised again there. The last
two products have gradients by the same rows of the table, so there are second derivatives.
"""

from __future__ import annotations

import torch
from torch.autograd.function import FunctionCtx

from ...errors import OperandError, TensorError
from ...kernels.run.operand_checks import check_operands
from ..autograd.products import dense
from ..checks import autocast, has_tangent, transforms
from ..compiled.traced import named, refuse
from ..fp8.api import quantize, quantize_both
from ..fp8.launch import Pair
from ..types import listed
from .api import scaled_matmul
from .recipes import BLOCK, FAMILIES, ROW, SQUARE, Recipes, recipe_text

TRAINED = (torch.bfloat16, torch.float16, torch.float32)


def fp8_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    recipe_a: object = BLOCK,
    recipe_b: object = SQUARE,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """a @ b + bias in float8_e4m3fn with scales, and gradients by such products.

    a, b      bfloat16, float16 or float32: (..., M, K) and a matrix (K, N), or (batch, M, K) and (batch, K, N); on a
              GPU of compute capability 9.0 or on the CPU. Autocast casts them
    bias      (N,), float32, bfloat16 or float16, added in the kernel
    recipe_a  of a, and of the result's gradient; recipe_b of b: torch.nn.functional.ScalingType or its name. Both are
              of blocks, or neither is. The weights' gradient takes BlockWise1x128, or RowWise, on both sides
    out_dtype default a's type

    Accumulators are float32; the result's own of RowWise and TensorWise are the tensor core's, of 14 bits. A gradient
    has its operand's type, and the strides of a transposed weight where b is one. Differentiable any number of times:
    the gradients' products have gradients by the same rules. Works under torch.compile. With da = max(2**-4 |a|,
    2**-10 scale) and db likewise, the sums are off by at most the sum over K of da |b| + |a| db + da db.

    Raises OperandError or TensorError, naming the operand.

    >>> weight = torch.ones(3, 256).bfloat16().requires_grad_()
    >>> c = fp8_matmul(torch.full((2, 256), 0.5).bfloat16(), weight.T)
    >>> c.sum().backward()
    >>> c[0].tolist(), weight.grad.shape, weight.grad[0, 0].item()
    ([128.0, 128.0, 128.0], torch.Size([3, 256]), 1.0)
    """
    if not torch.compiler.is_compiling():
        given = {"a": a, "b": b, **named(bias=bias)}
        check_operands(given)
        refuse_transforms("fp8_matmul", given)
    a, b = autocast(a, b)
    _check(a, b)
    names = recipe_text("recipe_a", recipe_a), recipe_text("recipe_b", recipe_b)
    for family in FAMILIES:
        if names[0] in family and names[1] not in family:
            refuse_training(
                f"recipe_a {names[0]} and recipe_b {names[1]}: both are of {' and '.join(family)}, or neither is"
            )
    rows = a.flatten(0, -2) if b.ndim == 2 else a
    value: torch.Tensor = _Fp8Product.apply(
        rows, b.mT, bias, Recipes(*names), a.dtype if out_dtype is None else out_dtype, True
    )
    return value if value.ndim == a.ndim else value.view(*a.shape[:-1], b.shape[1])


def refuse_transforms(function: str, given: dict[str, torch.Tensor]) -> None:
    """Raise OperandError under torch.func, TensorError for a tangent: the gradients are autograd's."""
    if transforms():
        raise OperandError(
            f"{function} under torch.func: its derivatives are backward()'s alone, and a batch is (batch, M, K)"
        )
    for name, x in given.items():
        if has_tangent(x):
            raise TensorError(f"{name} has a tangent, and {function} has none: give unpack_dual({name}).primal")


def _check(a: torch.Tensor, b: torch.Tensor) -> None:
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in TRAINED:
            refuse_training(
                f"{name} is {x.dtype}: fp8_matmul quantises {listed(TRAINED)}; scaled_matmul takes 8-bit floats"
            )
    batch = b.ndim == 3 and a.ndim == 3 and a.shape[0] == b.shape[0]
    if a.ndim < 2 or not (b.ndim == 2 or batch) or a.shape[-1] != b.shape[-2]:
        shapes = f"a and b have shapes {list(a.shape)} and {list(b.shape)}"
        refuse_training(f"{shapes}: (..., M, K) and (K, N), or (batch, M, K) and (batch, K, N)", TensorError)


def refuse_training(text: str, kind: type[OperandError] | type[TensorError] = OperandError) -> None:
    """Raise the error; under torch.compile, in a way that its tracer can follow."""
    if torch.compiler.is_dynamo_compiling():
        refuse(text)
    raise kind(text)


class _Fp8Product(torch.autograd.Function):
    """left @ right^T + bias of operands that are quantised for it; its gradients are such products too.

    With G the result's gradient, left's is G @ right by the same recipes, and right's is G^T @ left by `lines`. So the
    second derivative, and each after it, is the same rule once more.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None, recipes: Recipes,
        kind: torch.dtype, fast: bool,
    ) -> torch.Tensor:  # fmt: skip
        # each operand is kept for the other's gradient alone
        ctx.save_for_backward(left if right.requires_grad else None, right if left.requires_grad else None)
        ctx.recipes, ctx.types = recipes, (left.dtype, right.dtype, None if bias is None else bias.dtype)
        ctx.by_columns = right.stride(-2) == 1 and right.stride(-1) != 1
        if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():
            # torch.export runs this with gradients on, and quantize refuses what requires one
            left, right, bias = left.detach(), right.detach(), None if bias is None else bias.detach()
        return _product(left, right, recipes, kind, bias, fast)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        left, right = ctx.saved_tensors
        of_left, of_right, of_bias = ctx.types
        wants_left, wants_right, wants_bias = ctx.needs_input_grad[:3]
        grad = dense(grad)
        lines, made_right = _lines(ctx.recipes), None
        if torch.is_grad_enabled():  # a derivative of these is asked for: recorded
            made_left = _recorded(grad, right.mT, ctx.recipes, of_left) if wants_left else None
            if wants_right and ctx.by_columns:  # with the strides of the operand that it is of
                made_right = _recorded(left.mT, grad.mT, lines, of_right).mT
            elif wants_right:
                made_right = _recorded(grad.mT, left.mT, lines, of_right)
        else:
            both = wants_left and wants_right and ctx.recipes.a == lines.a == BLOCK
            dy, turned = quantize_both(grad) if both else (None, None)
            made_left = _product(grad, right.mT, ctx.recipes, of_left, x=dy) if wants_left else None
            if wants_right and ctx.by_columns:
                made_right = _product(left.mT, grad.mT, lines, of_right, y=turned).mT
            elif wants_right:
                made_right = _product(grad.mT, left.mT, lines, of_right, x=turned)
        made_bias = grad.sum(tuple(range(grad.ndim - 1)), dtype=torch.float32).to(of_bias) if wants_bias else None
        return made_left, made_right, made_bias, None, None, None


def _recorded(left: torch.Tensor, right: torch.Tensor, recipes: Recipes, kind: torch.dtype) -> torch.Tensor:
    """A product of a derivative, which autograd records."""
    value: torch.Tensor = _Fp8Product.apply(left, right, None, recipes, kind, False)
    return value


def _lines(recipes: Recipes) -> Recipes:
    """The recipes of a product for the second operand's gradient: a scale for each line of both operands."""
    return Recipes(BLOCK, BLOCK) if recipes.in_mainloop else Recipes(ROW, ROW)


def _product(
    left: torch.Tensor, right: torch.Tensor, recipes: Recipes, kind: torch.dtype,
    bias: torch.Tensor | None = None, fast: bool = False, x: Pair | None = None, y: Pair | None = None,
) -> torch.Tensor:  # fmt: skip
    """left @ right^T, both quantised along their rows; `fast` sums of row-wise scales stay in the tensor core.

    x, y  the operands as they were quantised, or None
    """
    (a, scale_a), (b, scale_b) = x or quantize(left, recipes[0]), y or quantize(right, recipes[1])
    return scaled_matmul(
        a, scale_a, b.mT, scale_b, recipe_a=recipes[0], recipe_b=recipes[1], bias=bias, use_fast_accum=fast,
        out_dtype=kind,
    )  # fmt: skip
