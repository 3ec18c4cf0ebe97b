"""layoutgemm.quantize and its like: kept launches, or all checks, then a kernel or torch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn, TypeAlias

import torch
import torch.autograd.forward_ad as _forward

from ...arguments import sees_unknown
from ..checks import (
    PLAIN,
    differentiated,
    modes_of_dispatch,
    modes_of_functions,
    needs_dispatcher,
    tracing_state,
    transforms,
)
from ..compiled.constant_objects import constant_of_objects
from ..compiled.traced import check_kinds, refusal, refuse, refuse_unknown
from ..scaled_grouped.recipes import BLOCK, recipe_text
from .launch import (
    AS_QUANTIZE,
    BY_KERNEL,
    READY,
    Key,
    Pair,
    QuantizeRequest,
    computed,
    computed_both,
    computed_together,
)
from .operators import CHECK_QUANTIZE, WAY_OUT, check_quantized, options_of

_is_traced = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
# Elements of all tensors of a launch but the largest. Registers of one tensor's code leave fewer CTAs of another's to
# an SM, which beyond costs more than a launch of its own: 5 us of 8192 x 4096 elements, where a launch is 1 to 2 us.
MOST_BESIDE = 1 << 22
Together: TypeAlias = tuple[torch.Tensor, str, bool]  # a tensor, its recipe, and whether its transpose too


@sees_unknown
def quantize(
    x: torch.Tensor,
    recipe: object = BLOCK,
    *,
    dtype: torch.dtype = torch.float8_e4m3fn,
    power_of_two: bool = False,
    scale_major: str = "mn",
    **unknown: NoReturn,
) -> tuple[torch.Tensor, torch.Tensor]:
    """8-bit floats of x, and the scales by which they are x. (values, scales) for `scaled_matmul`.

    x       (..., M, K), bfloat16, float16 or float32, K being what a product sums over; on one GPU or on the CPU. Rows
            or columns contiguous: quantize(weight.mT) is read in place. What else lies otherwise is copied
    recipe  of the scales: torch.nn.functional.ScalingType or its name
    dtype   of the values: float8_e4m3fn, largest value 448, or float8_e5m2, 57344
    power_of_two  round scales up to powers of two
    scale_major   "mn": scales of neighbouring rows lie next to each other, in lines of a multiple of 4, as TMA loads
            them and `scaled_matmul` reads them fastest; "k": row-major

    values  x's shape, in rows of a multiple of 16 elements
    scales  float32: BlockWise1x128 (..., M, K / 128), BlockWise128x128 (..., M / 128, K / 128), divisions rounded up;
            RowWise (..., M, 1); TensorWise one element

    amax is the largest |x| that shares the scale, but 1e-30 at least; most is the type's largest value. Each operation
    is rounded to float32:

        scale = amax / most                        or the least power of two that is not less
        value = round(x * inverse), saturating     inverse = 1 / amax * most, or 1 / scale

    These are the bits of the epilogue step Quantize(least=1e-30). A NaN makes all values that share its scale NaN
    (0x7f), and the scale. An infinity makes the scale infinite, itself NaN, and the others 0.

    On a GPU of compute capability 9.0 one kernel, but for TensorWise; elsewhere torch's operators, with the same bits.
    Works under torch.compile, FakeTensor, vmap and in CUDA graphs. No gradients.

    Raises OperandError, or TensorError for shapes and derivatives, naming the argument.

    >>> import torch
    >>> values, scales = quantize(torch.tensor([[1.0, -3.5], [0.0, 0.0]]))
    >>> values.float().tolist(), scales[0].tolist()
    ([[128.0, -448.0], [0.0, 0.0]], [0.0078125])
    """
    if unknown:
        refuse_unknown(quantize, tuple(unknown))
    if _is_traced():
        return _traced(x, recipe, dtype, power_of_two, scale_major)
    key: Key = ()
    if type(x) in PLAIN and type(power_of_two) is bool and not (  # a key takes 1 for True
        modes_of_functions() or modes_of_dispatch() or transforms() or _forward._current_level >= 0
        or tracing_state() is not None
    ):  # fmt: skip
        try:
            key = x.shape, x.stride(), x.dtype, x.get_device(), recipe, dtype, power_of_two, scale_major
            kept = READY.get(key)
            if (
                kept is not None
                and not (x.is_neg() or (x.requires_grad and _grad_enabled()))
                and kept.reads((x,))
                and (made := kept.call(x)) is not None
            ):
                return made if kept.cuts is None else kept.pairs(made)[0]
        except (RuntimeError, TypeError):  # sparse tensors have no strides, and an option may have no hash
            key = ()
    asked = options_of(recipe, dtype, power_of_two, scale_major)
    check_quantized(x)
    if needs_dispatcher(x):
        return _by_operator(x, *asked)
    return computed(x, asked, key)


@sees_unknown
def quantize_both(
    x: torch.Tensor, *, dtype: torch.dtype = torch.float8_e4m3fn, power_of_two: bool = False, scale_major: str = "mn",
    **unknown: NoReturn,
) -> tuple[Pair, Pair]:  # fmt: skip
    """quantize(x) and quantize(x.mT), by one kernel that reads x once.

    Both have a scale for each 1x128. A product that sums over x's last dimension reads the first pair, one that sums
    over the dimension before it the second. Of a gradient dC these are dC @ B^T and A^T @ dC.

    x, dtype, power_of_two, scale_major  as `quantize` has them; x has rows or columns contiguous, or is copied

    The bits, shapes and strides are those of `quantize`. Works under torch.compile, FakeTensor, vmap and in CUDA
    graphs. No gradients.

    Raises OperandError, or TensorError for shapes and derivatives, naming the argument.

    >>> import torch
    >>> (values, scales), (turned, of_turned) = quantize_both(torch.tensor([[1.0, -3.5], [0.0, 1.75]]))
    >>> values.float().tolist(), turned.float().tolist()
    ([[128.0, -448.0], [0.0, 448.0]], [[448.0, 0.0], [-448.0, 224.0]])
    """
    if unknown:
        refuse_unknown(quantize_both, tuple(unknown))
    if _is_traced():
        check_kinds({"x": x}, {})
        refuse(refusal("quantize", BLOCK, dtype, power_of_two, scale_major))
        _refuse_derived("quantize_both", x)
        return _both_by_operator(x, dtype, power_of_two, scale_major)
    key: Key = ()
    if type(x) in PLAIN and type(power_of_two) is bool and not needs_dispatcher(x):
        try:
            key = "both", x.shape, x.stride(), x.dtype, x.get_device(), dtype, power_of_two, scale_major
            kept = READY.get(key)
            if (
                kept is not None
                and not (x.is_neg() or (x.requires_grad and _grad_enabled()))
                and kept.reads((x,))
                and (made := kept.call(x)) is not None
            ):
                first, second = kept.pairs(made)
                return first, second
        except (RuntimeError, TypeError):  # as in `quantize`
            key = ()
    asked = options_of(BLOCK, dtype, power_of_two, scale_major)
    check_quantized(x)
    if needs_dispatcher(x):
        return _both_by_operator(x, *asked[1:])
    return computed_both(x, asked, key)


def quantize_together(requests: Sequence[Together]) -> tuple[Sequence[Pair], list[Sequence[torch.Tensor]]]:
    """Pairs of several tensors by `quantize`, in one launch where a kernel does them all.

    requests  of each tensor: itself, its recipe's name, and whether `quantize_both` is meant, which gives two pairs

    Returns the pairs, and the tensors of each launch. The tensors have passed the checks of `quantize`.

    >>> x, y = torch.ones(2, 128), torch.full((2, 128), 7.0)
    >>> (_, (values, _)), launches = quantize_together([(x, "RowWise", False), (y, "RowWise", False)])
    >>> values[0, 0].item(), [len(tensors) for tensors in launches]
    (448.0, [3, 3])
    """
    if len(requests) > 1 and joins(requests):
        xs = [x for x, _, _ in requests]
        if _is_traced() or any(_of_compiler(x) for x in xs):
            names = ",".join([recipe for _, recipe, _ in requests])
            made = torch.ops.layoutgemm.quantize_together(xs, names, [both for _, _, both in requests])
            return list(zip(made[::2], made[1::2])), []
        together = None if needs_dispatcher(*xs) else _by_one_launch(requests)
        if together is not None:
            return together, [(*xs, *[part for pair in together for part in pair])]
    pairs: list[Pair] = []
    launches: list[Sequence[torch.Tensor]] = []
    for x, recipe, both in requests:
        own = quantize_both(x) if both else (quantize(x, recipe),)
        pairs += own
        launches.append((x, *[part for pair in own for part in pair]))
    return pairs, launches


def joins(requests: Sequence[Together]) -> bool:
    """True if one launch quantises these tensors: all but the largest are small."""
    sizes = [x.numel() for x, _, _ in requests]
    plain = all(recipe in BY_KERNEL and (type(x) in PLAIN or _of_compiler(x)) for x, recipe, _ in requests)
    return plain and sum(sizes) - max(sizes) <= MOST_BESIDE


def _of_compiler(x: torch.Tensor) -> bool:
    """True for torch's functional and fake tensors. In torch 2.11 the compiler runs autograd's functions on them."""
    return type(x).__module__.startswith("torch._subclasses.")


def _by_one_launch(requests: Sequence[Together]) -> Sequence[Pair] | None:
    """The pairs of plain tensors; None where no kernel does them all."""
    xs = [x for x, _, _ in requests]
    key = tuple([(x.shape, x.stride(), x.dtype, x.get_device(), *asked) for x, *asked in requests])
    kept = READY.get(key)
    if kept is not None and not any(x.is_neg() for x in xs) and kept.reads(xs) and (made := kept.call(*xs)) is not None:
        return kept.pairs(made)
    return computed_together(
        [QuantizeRequest(x, AS_QUANTIZE._replace(recipe=recipe), both) for x, recipe, both in requests], key
    )


def _both_by_operator(x: torch.Tensor, *options: object) -> tuple[Pair, Pair]:
    values, scales, turned, of_turned = torch.ops.layoutgemm.quantize_both(x, *options)
    return (values, scales), (turned, of_turned)


def _refuse_derived(function: str, x: torch.Tensor) -> None:
    if differentiated(x):
        refuse(f"x requires grad, and {function} has no gradient: {WAY_OUT}")
    CHECK_QUANTIZE(x)


def _by_operator(x: torch.Tensor, *options: object) -> tuple[torch.Tensor, torch.Tensor]:
    found: tuple[torch.Tensor, torch.Tensor] = torch.ops.layoutgemm.quantize(x, *options)
    return found


def _traced(
    x: object, recipe: object, dtype: object, power_of_two: object, scale_major: object
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    check_kinds({"x": x}, {})
    refuse(refusal("quantize", recipe, dtype, power_of_two, scale_major))
    _refuse_derived("quantize", x)
    return _by_operator(x, _name(recipe), dtype, power_of_two, scale_major)


@constant_of_objects
def _name(recipe: object) -> str:
    """The name of a recipe that has been checked: a constant to the compiler."""
    return recipe_text("recipe", recipe)
