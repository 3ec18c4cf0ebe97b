"""layoutgemm.fp8_matmul: a product in fp8, with its gradients in fp8. Operands have 16 or 32 bits.

Each product quantises its operands along the dimension that it sums over:

    product        a, quantised along      b, quantised along     scales of blocks
    -------------  ----------------------  ---------------------  --------------------------------
    C = A @ B      A (M, K), K             B^T (N, K), K          as named: 1x128 by 128x128
    dA = dC @ B^T  dC (M, N), N            B (K, N), N            as named, the same for square ones
    dB = A^T @ dC  A^T (K, M), M           dC^T (N, M), M         1x128 by 1x128

Of batches each matrix is such a product. Values and scales are those of `layoutgemm.quantize`: both operands' by one
launch, and so B's, A^T's and both forms of dC where both gradients take 1x128 of dC. Of large tensors each has a launch
of its own. Scales are constants to autograd, and rounding is the identity. Accumulators are float32. The operands
themselves are kept for the backward pass, and quantised again there. The last two products have gradients by the same
rows of the table, so there are second derivatives.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn, Protocol

import torch
from torch.autograd.function import FunctionCtx

from ...arguments import sees_unknown
from ...errors import OperandError, TensorError
from ...kernels.run.operand_checks import check_operands
from ..autograd.kept import recorder
from ..autograd.products import dense
from ..checks import (
    PLAIN,
    autocast,
    autocast_type,
    cast,
    has_tangent,
    modes_of_dispatch,
    modes_of_functions,
    transforms,
)
from ..compiled.chains import Chain, ChainCalls, Tensors, launches_alone
from ..compiled.traced import named, refuse, refuse_unknown
from ..fp8.api import Together, joins, quantize_together
from ..fp8.launch import Pair
from ..operators import operator_of
from ..types import listed
from .api import scaled_matmul
from .recipes import BLOCK, ROW, SQUARE, Recipes, recipe_text, refusal_of_both

Steps = list[Tensors]  # of each launch its tensors
# The recipes of a and b, the result's type or None, and whether b holds the transpose of what is multiplied.
Asked = tuple[object, object, "torch.dtype | None", bool]


class QuantizedOnce(Protocol):
    """A weight's values and scales, quantised once for one version of it: see `nn.kept_weights`."""

    def pair(self, weight: torch.Tensor, recipe: str, region: torch.dtype | None, turned: bool) -> Pair | None:
        """Those of the weight or its transpose; None where they have to be made anew.

        region  autocast's type of the weight, or None
        """

    def turned_of(
        self, weight: torch.Tensor, recipe: str, region: torch.dtype | None
    ) -> Callable[[], Pair | None]:  # fmt: skip
        """Those of the transpose in the backward pass. None once the weight is another than now."""


_is_traced = torch.compiler.is_dynamo_compiling  # a constant to Dynamo; others that compile are modes
_EXPORTS = "_is_exporting_flag"  # of torch.compiler; absent in torch 2.6
TRAINED = (torch.bfloat16, torch.float16, torch.float32)


@sees_unknown
def fp8_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    bias: torch.Tensor | None = None,
    recipe_a: object = BLOCK,
    recipe_b: object = SQUARE,
    out_dtype: torch.dtype | None = None,
    **unknown: NoReturn,
) -> torch.Tensor:
    """a @ b + bias in float8_e4m3fn with scales, and gradients by such products.

    a, b      bfloat16, float16 or float32: (..., M, K) and a matrix (K, N), or (batch, M, K) and (batch, K, N); on a
              GPU of compute capability 8.9, 9.0 or 12.x or on the CPU. Autocast casts them
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
    if unknown:
        refuse_unknown(fp8_matmul, tuple(unknown))
    again = fp8_again(a, b, bias, asked := (recipe_a, recipe_b, out_dtype, False))
    return _first(a, b, bias, asked) if again is None else again


def fp8_linear(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, recipe_a: object, recipe_b: object,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:  # fmt: skip
    """fp8_matmul(x, weight.mT, bias=bias) of a weight (N, K). Autograd records no view of it."""
    again = fp8_again(x, weight, bias, asked := (recipe_a, recipe_b, out_dtype, True))
    return _first(x, weight, bias, asked) if again is None else again


def fp8_linear_once(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, asked: tuple[object, object, torch.dtype | None],
    once: QuantizedOnce,
) -> torch.Tensor:  # fmt: skip
    """`fp8_linear` with values and scales of the weight that `once` has, in both passes.

    asked  the recipes, and the result's type
    """
    given, region = (x, weight) if bias is None else (x, weight, bias), autocast_type(x)
    if _is_traced() or not all(type(t) in PLAIN for t in given) or needs_mode(*given):
        return fp8_linear(x, weight, bias, *asked)
    recipes = _of_checked(x, weight.mT, bias, *asked[:2])[2]
    pair = once.pair(weight, recipes.b, region, False)
    if pair is None:
        return fp8_linear(x, weight, bias, *asked)
    with torch.no_grad():
        value = fp8_unrecorded(x, weight, bias, None, recipes, asked[2] or region or x.dtype, pair)
    if not (torch.is_grad_enabled() and any(t.requires_grad for t in given)):
        return value
    a, b = (cast(t, region) for t in (x, weight))
    made: torch.Tensor = _record(a, b, bias, (value, (*asked, True)), once.turned_of(weight, recipes.b, region))
    return made


def needs_mode(*given: torch.Tensor) -> bool:
    """True if a mode, a transform or a tangent has to see the product."""
    return modes_of_functions() or modes_of_dispatch() or transforms() or any(has_tangent(t) for t in given)


def fp8_again(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, asked: Asked) -> torch.Tensor | None:
    """The product by a kept chain of launches, recorded if need be; None without one."""
    if _is_traced():
        return None
    # The last one of the weight first: that is one call of C.
    found: torch.Tensor | None = _LAST.again(asked, a, b) if bias is None else _LAST.again(asked, a, b, bias)
    return _FORWARD.again(asked, (a, b) if bias is None else (a, b, bias)) if found is None else found


def _first(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, asked: Asked) -> torch.Tensor:
    """The product with all checks, by launches that are kept where they can be."""
    matrix, options = b.mT if asked[3] else b, asked[:3]
    given = (a, b) if bias is None else (a, b, bias)
    if _is_traced() or not launches_alone(given):
        return _checked(a, matrix, bias, *options)
    [value] = _FORWARD.first(lambda: _chain(a, matrix, bias, *options), asked, given).results
    recorded = torch.is_grad_enabled() and any(x.requires_grad for x in given)
    made: torch.Tensor = _record(a, b, bias, (value, asked), None) if recorded else value
    return made


@functools.lru_cache(64)
def _names(recipe_a: object, recipe_b: object) -> Recipes:
    """Recipes of a kept call: they have a hash."""
    return Recipes(recipe_text("recipe_a", recipe_a), recipe_text("recipe_b", recipe_b))


def _of_checked(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, recipe_a: object, recipe_b: object
) -> tuple[torch.Tensor, torch.Tensor, Recipes]:
    """Operands and recipes. Raises OperandError or TensorError for those that the product does not take."""
    if not torch.compiler.is_compiling():
        given = {"a": a, "b": b, **named(bias=bias)}
        check_operands(given)
        refuse_transforms("fp8_matmul", given)
    a, b = autocast(a, b)
    _check(a, b)
    names = Recipes(recipe_text("recipe_a", recipe_a), recipe_text("recipe_b", recipe_b))
    if refused := refusal_of_both(*names):
        refuse_training(refused)
    return a, b, names


def _checked(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, recipe_a: object, recipe_b: object,
    out_dtype: torch.dtype | None,
) -> torch.Tensor:  # fmt: skip
    """The product with all checks, in a form that compilers and subclasses of tensors take."""
    a, b, names = _of_checked(a, b, bias, recipe_a, recipe_b)
    rows = a.flatten(0, -2) if b.ndim == 2 else a
    value = _differentiable(rows, b.mT, bias, names, a.dtype if out_dtype is None else out_dtype, True)
    return value if value.ndim == a.ndim else value.view(*a.shape[:-1], b.shape[1])


def _chain(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, recipe_a: object, recipe_b: object,
    out_dtype: torch.dtype | None,
) -> Chain:  # fmt: skip
    """The launches of the product of plain tensors: two that quantise, and their product."""
    a, b, names = _of_checked(a, b, bias, recipe_a, recipe_b)
    steps: Steps = []
    rows, kind = a.flatten(0, -2) if b.ndim == 2 else a, a.dtype if out_dtype is None else out_dtype
    value = _product(rows, b.mT, names, kind, bias, True, steps=steps)
    return Chain(steps, (value.view(*a.shape[:-1], value.shape[-1]),))


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


def is_exporting() -> bool:
    """True within torch.export.

    In a torch that does not say so, it is True within all of its compilers. To Dynamo of torch 2.11
    torch.compiler.is_exporting is True for torch.compile, too.
    """
    if hasattr(torch.compiler, _EXPORTS):
        return bool(getattr(torch.compiler, _EXPORTS))
    return torch.compiler.is_compiling()


class _Fp8Product(torch.autograd.Function):
    """left @ right^T + bias of operands that are quantised for it. Its gradients are such products too.

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
        grad, wants = dense(grad), ctx.needs_input_grad
        made = _gradients(left, right, grad, wants, _BackwardFacts(ctx.recipes, of_left, of_right, ctx.by_columns))
        return *made, _bias_gradient(grad, of_bias) if wants[2] else None, None, None, None


def _differentiable(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None, recipes: Recipes, kind: torch.dtype, fast: bool
) -> torch.Tensor:
    """The product with gradients. An exporter, which drops those of a Function, records an operator that has them."""
    if is_exporting():
        made: torch.Tensor = torch.ops.layoutgemm.fp8_product(left, right, bias, *recipes, kind, fast)
        return made
    value: torch.Tensor = _Fp8Product.apply(left, right, bias, recipes, kind, fast)
    return value


def _product_call(
    left: torch.Tensor, right: torch.Tensor, bias: torch.Tensor | None, recipe_a: str, recipe_b: str,
    kind: torch.dtype, fast: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None, Recipes, torch.dtype, bool]:  # fmt: skip
    return left, right, bias, Recipes(recipe_a, recipe_b), kind, fast


operator_of(
    "fp8_product",
    _product_call,
    lambda left, right, bias, recipes, kind, fast: _product(left, right, recipes, kind, bias, fast),
    lambda left, right, bias, recipes, kind, fast: left.new_empty((*left.shape[:-1], right.shape[-2]), dtype=kind),
    recorded=lambda *call: _Fp8Product.apply(*call),
    function="fp8_matmul",
)


class _BackwardFacts(NamedTuple):
    """The facts of a backward pass beside its tensors.

    recipes, of_left, of_right  of the product, and the types of left and right
    by_columns  whether right has contiguous columns, as its gradient then
    turned      whether the second operand is right itself, else its transpose
    is_matrix   whether it is one matrix, times all of a's rows
    """

    recipes: Recipes
    of_left: torch.dtype
    of_right: torch.dtype
    by_columns: bool
    turned: bool = True
    is_matrix: bool = True


class _RecordedFp8(torch.autograd.Function):
    """A computed product of plain tensors, with `_Fp8Product`'s gradients by a kept chain.

    made  the product, and what was asked for
    once  gives values and scales of b's transpose, or None
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None,
        made: tuple[torch.Tensor, Asked], once: Callable[[], Pair | None] | None = None,
    ) -> torch.Tensor:  # fmt: skip
        c, (recipe_a, recipe_b, _, turned) = made
        keeps_b, keeps_a, *_ = ctx.needs_input_grad  # each operand is kept for the other's gradient alone
        ctx.once = once
        ctx.save_for_backward(a if keeps_a else None, b if keeps_b else None)
        step, inner = b.stride()[-2:] if turned else b.stride()[:-3:-1]
        recipes = _names(recipe_a, recipe_b)
        ctx.facts = _BackwardFacts(recipes, a.dtype, b.dtype, step == 1 and inner != 1, turned, b.ndim == 2)
        ctx.of_bias = None if bias is None else bias.dtype
        return c

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (a, b), wants, facts = ctx.saved_tensors, ctx.needs_input_grad, ctx.facts
        grad, made, pair = dense(grad), None, None
        if (wants[0] or wants[1]) and not torch.is_grad_enabled():
            if ctx.once is not None and wants[0]:
                pair = ctx.once()
            given = [x for x in (grad, *((b,) if pair is None else pair), a) if x is not None]
            options = facts, *wants[:2], pair is not None
            if (made := _BACKWARD.again(options, given)) is None and launches_alone(given):
                steps: Steps = []
                made = _BACKWARD.first(
                    lambda: Chain(steps, _of_recorded(a, b, grad, wants, facts, steps, pair)), options, given
                ).results
        left, right = _of_recorded(a, b, grad, wants, facts, y=pair) if made is None else made
        return left, right, _bias_gradient(grad, ctx.of_bias) if wants[2] else None, None, None


_record = recorder(_RecordedFp8)


def _derivable(value: torch.Tensor, asked: Asked, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """A computed product whose derivative is recorded."""
    a, b, bias = tensors if len(tensors) > 2 else (*tensors, None)
    recorded: torch.Tensor = _record(a, b, bias, (value, asked), None)
    return recorded


_FORWARD, _BACKWARD, _UNRECORDED = ChainCalls(_derivable), ChainCalls(), ChainCalls()
_LAST = _FORWARD.last


def _of_recorded(
    a: torch.Tensor | None, b: torch.Tensor | None, grad: torch.Tensor, wants: Sequence[bool], facts: _BackwardFacts,
    steps: Steps | None = None, y: Pair | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """The gradients of a recorded product's operands. `y`: as of `_gradients`."""
    rows, left, right = grad, a, b if b is None or facts.turned else b.mT
    if facts.is_matrix:
        rows, left = grad.flatten(0, -2), None if a is None else a.flatten(0, -2)
    of_left, of_right = _gradients(left, right, rows, wants, facts, steps, y)
    if of_left is not None:
        of_left = of_left.view(*grad.shape[:-1], of_left.shape[-1])
    return of_left, of_right if of_right is None or facts.turned else of_right.mT


def _gradients(
    left: torch.Tensor | None, right: torch.Tensor | None, grad: torch.Tensor, wants: Sequence[bool],
    facts: _BackwardFacts, steps: Steps | None = None, y: Pair | None = None,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:  # fmt: skip
    """The gradients of left and right, where wanted; recorded, where a derivative of these is asked for.

    steps  takes the tensors of each launch
    y      right's transpose as it was quantised, or None
    """
    recipes, of_left, of_right, by_columns, *_ = facts
    lines, made_left, made_right = _lines(recipes), None, None
    if torch.is_grad_enabled():
        if wants[0] and right is not None:
            made_left = _recorded(grad, right.mT, recipes, of_left)
        if wants[1] and left is not None and by_columns:  # with the strides of the operand that it is of
            made_right = _recorded(left.mT, grad.mT, lines, of_right).mT
        elif wants[1] and left is not None:
            made_right = _recorded(grad.mT, left.mT, lines, of_right)
        return made_left, made_right
    if left is not None and right is not None and wants[0] and wants[1] and recipes.a == lines.a == BLOCK:
        asked: list[Together] = [(grad, BLOCK, True), (right.mT, recipes.b, False), (left.mT, BLOCK, False)]
        first, last = asked[: 2 if y is None else 1], asked[2:]
        together = joins([*first, *last])
        made, launches = quantize_together([*first, *last] if together else first)
        dy, turned, xs = made[0], made[1], list(made[2:])
        del made  # which holds y's values
        steps = [] if steps is None else steps
        steps += launches
        made_left = _multiplied(dy, xs.pop(0) if y is None else y, recipes, of_left, steps=steps)
        if not together:  # its values take the place of y's
            found, launches = quantize_together(last)
            xs += found
            steps += launches
        [x] = xs
        pairs = (x, turned) if by_columns else (turned, x)
        made_right = _multiplied(*pairs, lines, of_right, steps=steps)
        return made_left, made_right.mT if by_columns else made_right
    if wants[0] and right is not None:
        made_left = _product(grad, right.mT, recipes, of_left, steps=steps, y=y)
    if wants[1] and left is not None and by_columns:
        made_right = _product(left.mT, grad.mT, lines, of_right, steps=steps).mT
    elif wants[1] and left is not None:
        made_right = _product(grad.mT, left.mT, lines, of_right, steps=steps)
    return made_left, made_right


def _bias_gradient(grad: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    return grad.sum(tuple(range(grad.ndim - 1)), dtype=torch.float32).to(kind)


def _recorded(left: torch.Tensor, right: torch.Tensor, recipes: Recipes, kind: torch.dtype) -> torch.Tensor:
    """A product of a derivative, which autograd records."""
    return _differentiable(left, right, None, recipes, kind, False)


def _lines(recipes: Recipes) -> Recipes:
    """The recipes of a product for the second operand's gradient: a scale for each line of both operands."""
    return Recipes(BLOCK, BLOCK) if recipes.in_mainloop else Recipes(ROW, ROW)


def _product(
    left: torch.Tensor, right: torch.Tensor, recipes: Recipes, kind: torch.dtype,
    bias: torch.Tensor | None = None, fast: bool = False, y: Pair | None = None, activation: str | None = None,
    steps: Steps | None = None,
) -> torch.Tensor:  # fmt: skip
    """left @ right^T, both quantised along their rows; `fast` sums of row-wise scales stay in the tensor core.

    y      right as it was quantised, or None
    steps  takes the tensors of each launch
    """
    both: list[Together] = [(left, recipes[0], False), (right, recipes[1], False)]
    [x, *ys], launches = quantize_together(both if y is None else both[:1])
    steps = [] if steps is None else steps
    steps += launches
    return _multiplied(x, ys[0] if y is None else y, recipes, kind, bias, fast, activation, steps)


def _multiplied(
    x: Pair, y: Pair, recipes: Recipes, kind: torch.dtype, bias: torch.Tensor | None = None, fast: bool = False,
    activation: str | None = None, steps: Steps | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product of quantised operands. `steps` takes the tensors of its launch."""
    (a, scale_a), (b, scale_b) = x, y
    c: torch.Tensor = scaled_matmul(
        a, scale_a, b.mT, scale_b, recipe_a=recipes[0], recipe_b=recipes[1], bias=bias, activation=activation,
        use_fast_accum=fast, out_dtype=kind,
    )  # fmt: skip
    if steps is not None:
        steps.append((a, scale_a, b, scale_b, *([] if bias is None else [bias]), c))
    return c


def fp8_unrecorded(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, activation: str | None, recipes: Recipes,
    kind: torch.dtype, kept: Pair | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product of x (..., K) and a weight (N, K), without derivatives. With a gate it has half as many columns.

    kept  the weight as it was quantised before, or None: it is quantised now
    """

    def make() -> Chain:
        steps: Steps = []
        rows, own = (cast(each, autocast_type(x)) for each in (x.flatten(0, -2), weight))
        value = _product(rows, own, recipes, kind, bias, True, y=kept, activation=activation, steps=steps)
        return Chain(steps, (value.view(*x.shape[:-1], value.shape[-1]),))

    if _is_traced():
        [value] = make().results
    else:
        read = (x, *((weight,) if kept is None else kept))
        options = activation, recipes, kind, kept is None
        value = _UNRECORDED.of(make, options, read if bias is None else (*read, bias))
    made: torch.Tensor = value
    return made
