"""layoutgemm.scaled_matmul and grouped_matmul.

A call is a kept launch, or all checks, then a kernel or torch's dispatcher.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypedDict, overload

import torch
from torch.autograd.function import FunctionCtx

from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue
from ...kernels.operands.combined import Combine
from ...kernels.operands.prologue import Prologue
from ...kernels.orders import Order, leaves_tiles
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.triangular.operands import Triangles
from ..api import Named, Tensors, repeated_first
from ..autograd.kept import recorder
from ..autograd.products import stand_in
from ..checks import (
    NOT_RECORDED,
    PLAIN,
    autocast,
    copied,
    differentiated,
    needs_dispatcher,
    seen_by_autograd_alone,
    transforms,
)
from ..compiled.constant_objects import constant_of_objects
from ..compiled.traced import check_kinds, named, refusal, refuse, refuse_finish
from ..composed.api import ComposedOptions, refuse_or_raise
from ..composed.parts import AskedParts
from ..composed.scaled import NO_OUT_RECIPE, ScaledPart, asks_parts, scaled_composed
from ..epilogue import gate_of
from ..fp8.launch import AS_QUANTIZE, kept_shapes
from ..indexed.added import placed_product, sums_of_product
from ..indexed.api import indexed_matmul
from ..indexed.grouped_rows import Options, grouped_rows, takes_copied_rows
from ..indexed.product import IndexedOperands
from ..launch import ProductCall
from ..operands.grouped_api import grouped_combined
from ..own_epilogue.scaled_api import QUANTIZES, traced_grouped, traced_scaled
from ..prepared import Config, config_text
from ..problem import asks_tcgen05
from ..prologue.grouped_api import grouped_prologue_product, with_function_applied
from .block_scaled import BESIDE, BlockArguments, Scale, asks_block_scales, block_scaled, factors_beside
from .epilogue import why_unfinished
from .grouped import (
    ALONG_K,
    COLUMNS,
    COUNTS,
    ENDS,
    OFFSETS,
    GroupedCall,
    check_expected,
    expected_config,
    finished,
    groups_of,
    in_groups,
)
from .grouped import grouped_product as computed_grouped
from .grouped_epilogue import grouped_call, grouped_with_epilogue
from .kept import ONCE, USUAL, KeptKey, find, memory_beside, usual_again, usual_calls
from .kept_gradients import gradients_again
from .operators import (
    CHECK_GROUPED,
    CHECK_SCALED,
    WAY_OUT,
    check_derivable,
    checked_grouped,
    checked_scaled,
    differentiable,
    grouped_gradients,
    recorded_type,
)
from .own_epilogue import ScaledFactors, with_epilogue
from .recipes import fast_accum, named_recipes, recipe_text
from .scaled import APART, BiasActivation, check_config, scaled_product, unswapped

if TYPE_CHECKING:
    from typing_extensions import Unpack

_is_traced = torch.compiler.is_dynamo_compiling
_grad_enabled = torch.is_grad_enabled
_DERIVED = (torch.bfloat16, torch.float16)
_NO_EXPECTED_ROWS = "expected_rows: not under torch.compile, where a configuration is given by config="


_USUAL_OPTIONS: tuple[object, ...] = None, None, None, None, None, True  # out_dtype, config, recipes, activation, fast
USUAL.update({("scaled", torch.bfloat16, *_USUAL_OPTIONS[1:]): "scaled"})
USUAL.update({(said, *_USUAL_OPTIONS, None): said for said in (OFFSETS, ENDS, COUNTS)})  # and the rows to expect


_SCALED, _SCALED_A = usual_calls("scaled", 4, 3, (0, 2, 1, 3)), usual_calls("scaled", 3, 2, (0, 2, 1))
_SCALED_ONCE = usual_calls("scaled", ONCE, 2, range(3))
_GROUPED = {
    said: usual_calls(said, 3, 1, range(3), lambda *given, said=said: _recorded_by(said, *given))
    for said in (OFFSETS, ENDS)
}
_GROUPED[COUNTS] = usual_calls(COUNTS, 3, 1, range(3))  # a product of masked rows is no node of its own


def _scaled_again(given: Tensors, _: Named) -> torch.Tensor | None:
    """A product with scales by a kept launch, or None."""
    if len(given) == 4:
        a, scale_a, b, scale_b = given
        return usual_again(_SCALED_ONCE, a, b, scale_a) if scale_a is scale_b else usual_again(_SCALED, *given)
    return usual_again(_SCALED_A, *given)


def _grouped_again(given: Tensors, options: Named) -> torch.Tensor | None:
    """A product of groups by a kept launch, recorded if it has derivatives, or None."""
    said = OFFSETS
    try:
        if options:
            (a, b), (said,) = given, options
            groups = options[said]
        else:
            a, b, groups = given
    except ValueError:  # groups that are said twice, or not
        return None
    return usual_again(_GROUPED[said], a, b, groups)


class _ScaledOptions(TypedDict, total=False):
    """Arguments of `scaled_matmul` that both of its results have."""

    recipe_a: object
    recipe_b: object
    swizzle_a: object
    swizzle_b: object
    bias: torch.Tensor | None
    activation: str | None
    use_fast_accum: bool
    out: torch.Tensor | None
    config: Config | None


class _ScaledParts(_ScaledOptions, total=False):
    """Those of a result that is one tensor."""

    epilogue: Epilogue | None
    given: Mapping[str, object] | None
    rows: torch.Tensor | None
    out_rows: torch.Tensor | None
    add_rows: torch.Tensor | None
    row_weights: torch.Tensor | None
    copy_rows: bool | None
    order: Order | None
    combine: Combine | None
    prologue: Prologue | None
    triangles: Triangles | None


@overload
def scaled_matmul(
    a: torch.Tensor, scale_a: Scale, b: torch.Tensor, scale_b: Scale | None = None, *,
    out_dtype: torch.dtype | None = torch.bfloat16, out_recipe: None = None, **options: Unpack[_ScaledParts],
) -> torch.Tensor: ...  # fmt: skip


@overload
def scaled_matmul(
    a: torch.Tensor, scale_a: Scale, b: torch.Tensor, scale_b: Scale | None = None, *,
    out_dtype: torch.dtype | None, out_recipe: object, **options: Unpack[_ScaledOptions],
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip


@repeated_first(_scaled_again, (3, 4), {(3, None): _SCALED_A.last, (4, None): _SCALED.last}, weight=2)
def scaled_matmul(
    a: torch.Tensor,
    scale_a: Scale,
    b: torch.Tensor,
    scale_b: Scale | None = None,
    *,
    recipe_a: object = None,
    recipe_b: object = None,
    swizzle_a: object = None,
    swizzle_b: object = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    use_fast_accum: bool = True,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = torch.bfloat16,
    out_recipe: object = None,
    config: Config | None = None,
    epilogue: Epilogue | None = None,
    given: Mapping[str, object] | None = None,
    rows: torch.Tensor | None = None,
    out_rows: torch.Tensor | None = None,
    add_rows: torch.Tensor | None = None,
    row_weights: torch.Tensor | None = None,
    copy_rows: bool | None = None,
    order: Order | None = None,
    combine: Combine | None = None,
    prologue: Prologue | None = None,
    triangles: Triangles | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """activation(A @ B + bias) of 8-bit floats, and of 4-bit ones, each with its scales.

    With scales of blocks, C[i, j] = sum over K blocks kb of 128 of
    scale_a[i, kb] * scale_b[j, kb] * (A's block @ B's block)[i, j].

    a, b     float8_e4m3fn or float8_e5m2 each, (M, K) and (K, N), or batches of them: on one GPU of compute capability
             8.9, 9.0 or 12.x, or on the CPU. K contiguous (b is the transpose of an (N, K) matrix) and lines of a
             multiple of 16 elements; what lies otherwise is copied
    scale_a  float32, of any strides: (M, K blocks), or (M / 128, K blocks) for a scale of 128 rows; (M, 1) or (M,) for
             a scale of each row; one element for all of a
    scale_b  float32, or None: (N, K blocks), or (N / 128, K blocks); (1, N), (N, 1) or (N,); one element
    recipe_a, recipe_b  what the scales are, where the shape is not to say it: a torch.nn.functional.ScalingType, or its
             name: BlockWise1x128 and BlockWise128x128, or RowWise and TensorWise. Both of a product are of blocks, or
             neither is
    swizzle_a, swizzle_b  orders of block scales of 32 or 16 elements, below
    bias     float32, bfloat16 or float16, (N,); activation one of relu, relu_sq, gelu, gelu_tanh, silu, sigmoid, tanh
    activation  also a gate, "swiglu" or "geglu": b is [gate | up], and the result act(a @ gate) * (a @ up) has half of
             b's columns. scale_b and bias are of all of b's; they come before the gate
    use_fast_accum  for RowWise and TensorWise: whether sums stay in the tensor core's registers of 14 bits; False adds
             each 128 of K in float32, as a product with scales of blocks does always
    out      where the product goes, of its shape and type, apart from what is read
    out_recipe  BlockWise1x128 to quantise the result to an 8-bit out_dtype: (C, its float32 scales), the next product's
             A. These are the values and scales that `layoutgemm.quantize` makes of the same sums in float32. In the
             kernel, but for a scale of each column of b and 128 of K, and a gate whose columns are no multiple of 16:
             float32 and `quantize` follow
    config   the kernel's configuration; default what `layoutgemm.tune` measured, or the one estimated fastest
    epilogue in place of bias, activation and out_recipe: any `kernels.epilogue.chain.Epilogue`, behind the scales. Its
             first `sums` steps come before a gate
    given    what it reads and writes, by name, as for `matmul`; its tensors have gradients
    rows, out_rows, add_rows, row_weights, copy_rows, order, combine, prologue, triangles  as of `matmul`. scale_a is of
             the rows of a, chosen or not. With combine b is two matrices, and scale_b their scales; scales of rows and
             tensors come before the function. A prologue is of a's 8-bit elements, before the scales. Of a product
             with scales of blocks rows are copied first, torch computes a prologue, and scales of 128 rows of a are
             refused beside rows. With add_rows and an order of some tiles torch adds the rows. No out_recipe

    Block scales of the tensor cores (MXFP8, MXFP4, NVFP4) are taken as torch.nn.functional.scaled_mm has them:

        a, b                            scale_a, scale_b   a factor for           recipe
        float8_e4m3fn, float8_e5m2      float8_e8m0fnu     32 of K                BlockWise1x32
        float4_e2m1fn_x2, (M, K / 2)    float8_e8m0fnu     32 of K                BlockWise1x32
        one of each                     float8_e8m0fnu     32 of K                BlockWise1x32
        float4_e2m1fn_x2, (M, K / 2)    float8_e4m3fn      16 of K                BlockWise1x16

    Factors are (M, K / 32), which are copied, or lie contiguously by SwizzleType.SWIZZLE_32_4_4, padded to 128 rows and
    4 factors, in any other shape; `swizzle_a` says so where the shape does not. [factors, number] has a float32 scale
    of the whole operand too. A GPU of tcgen05 multiplies them with config=Sm100Config(), one of compute capability 12.0
    or 12.1 by mma.sync. Bias and activation go with
    them, or an epilogue; no gate, no other parts and no out_recipe. Beside an epilogue a scale of the whole operand is
    its first step. Their sums are float32, whatever use_fast_accum is. On the CPU a factor below 0 is refused; on a GPU
    none is looked at, and its sign is not read.

    Scales, bias and activation are applied in the kernel, in float32, before the one rounding; on the CPU in float64.
    Works under torch.compile, FakeTensor, torch.export and in CUDA graphs; autocast changes nothing. No gradients: 8
    bits are too coarse for them. Differentiate a bfloat16 product, with quantisation in an autograd.Function's forward.

    Raises OperandError, or TensorError in torch's words, naming the operand, before anything is written.

    >>> import torch
    >>> a, b = torch.ones(2, 256).to(torch.float8_e4m3fn), torch.ones(256, 3).to(torch.float8_e4m3fn)
    >>> scaled_matmul(a, torch.tensor([[1.0, 2.0], [0.5, 0.25]]), b)[:, 0].tolist()
    [384.0, 96.0]
    >>> rows, columns = torch.tensor([[0.5], [2.0]]), torch.tensor([[1.0, 2.0, 3.0]])
    >>> scaled_matmul(a, rows, b, columns, recipe_a="RowWise", recipe_b="RowWise").tolist()
    [[128.0, 256.0, 384.0], [512.0, 1024.0, 1536.0]]
    >>> twos = torch.full((2, 8), 2.0).to(torch.float8_e8m0fnu)
    >>> scaled_matmul(a, twos, b, twos[:1].expand(3, 8), recipe_a="BlockWise1x32")[0].tolist()
    [1024.0, 1024.0, 1024.0]
    """
    config = unswapped(config)
    indexed = rows is not None or out_rows is not None or row_weights is not None or add_rows is not None
    several = order is not None or combine is not None or prologue is not None or triangles is not None
    behind = epilogue is not None or given is not None or copy_rows is not None
    if indexed or several or behind or isinstance(b, (tuple, list)):
        parts = AskedParts(order, prologue, combine, epilogue, activation, copy_rows, triangles)
        own = {"bias": bias, "rows": rows, "out_rows": out_rows, "add_rows": add_rows, "row_weights": row_weights}
        of = ScaledPart(a, scale_a, b, scale_b, (recipe_a, recipe_b), fast_accum(use_fast_accum))  # type: ignore[arg-type]
        result_of, swizzles = ComposedOptions(out, config, out_dtype, None), (swizzle_a, swizzle_b)
        return _scaled_with_more(of, parts, own, given, result_of, out_recipe, swizzles)
    of_blocks = swizzle_a is not None or swizzle_b is not None
    if _is_traced() or out_recipe is not None:  # others are looked for among kept launches first
        of_blocks = of_blocks or asks_block_scales(a, scale_a, scale_b)
    if of_blocks or isinstance(scale_a, (list, tuple)) or isinstance(scale_b, (list, tuple)):
        result = bias, activation, out, out_dtype, out_recipe, config
        return block_scaled(BlockArguments(a, scale_a, b, scale_b, recipe_a, recipe_b, swizzle_a, swizzle_b, *result))
    if _is_traced():
        options = activation, use_fast_accum, out_dtype, config
        return _traced_scaled(a, scale_a, b, scale_b, bias, out, recipe_a, recipe_b, *options, out_recipe)
    if out_recipe is not None:
        finish = BiasActivation(bias, activation, fast_accum(use_fast_accum))
        named_by = recipe_a, recipe_b, out_dtype, out_recipe
        return _quantized(a, scale_a, b, scale_b, finish, out, *named_by, config)
    finish = BiasActivation(bias, activation, fast_accum(use_fast_accum))  # a key takes 1 for True
    others = () if bias is None else (bias,)
    chosen = "scaled", out_dtype, config, recipe_a, recipe_b, activation, finish.fast
    key, found = find(a, b, scale_a, scale_b, others, out, chosen)
    if found is not None:
        return found
    return _first_scaled(a, scale_a, b, scale_b, finish, out, out_dtype, (recipe_a, recipe_b), config, key)


def _first_scaled(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, finish: BiasActivation,
    out: torch.Tensor | None, out_dtype: torch.dtype | None, recipes: tuple[object, object],
    config: Sm90Config | None, key: tuple[object, ...],
) -> torch.Tensor:  # fmt: skip
    """The product with all checks. `key`: by which its launch is kept."""
    bias = finish.bias
    if asks_block_scales(a, scale_a, scale_b):
        result = bias, finish.activation, out, out_dtype, None, config
        given = BlockArguments(a, scale_a, b, scale_b, recipes[0], recipes[1], None, None, *result)
        return block_scaled(given, key)
    check_config(config)
    names = recipe_text("recipe_a", recipes[0]), recipe_text("recipe_b", recipes[1])
    call = checked_scaled(a, scale_a, b, scale_b, finish, out, out_dtype, *names)
    if needs_dispatcher(a, scale_a, b, scale_b, bias, out):
        text = config_text(config)
        value: torch.Tensor = torch.ops.layoutgemm.scaled_matmul(
            a, scale_a, b, scale_b, bias, finish.activation, out_dtype, *names, finish.fast, text
        )
        return copied(value, out)
    return scaled_product(call, a, scale_a, b, scale_b, finish, config, out, key)


def _scaled_with_more(
    of: ScaledPart, asked: AskedParts, own: Mapping[str, torch.Tensor | None], given: Mapping[str, object] | None,
    options: ComposedOptions, out_recipe: object, swizzles: tuple[object, object],
) -> torch.Tensor:  # fmt: skip
    """The product with parts, or with an epilogue and its operands."""
    if asks_block_scales(of.a, of.scale_a, of.scale_b if isinstance(of.b, torch.Tensor) else None, *swizzles):
        if asks_parts(asked, own) or not isinstance(of.b, torch.Tensor):
            refuse_or_raise(BESIDE)
        said = *of.recipes, *swizzles
        scale_a, scale_b, names = factors_beside((of.scale_a, of.scale_b), said, options.config, out_recipe)
        of = of._replace(scale_a=scale_a, scale_b=scale_b, recipes=(names[0] or None, names[1] or None))
    if own["add_rows"] is not None and leaves_tiles(asked.order) and out_recipe is None:
        return _sums_of_tiles(of, asked, own, given, options)
    if asks_parts(asked, own) or not isinstance(of.b, torch.Tensor):
        refuse_or_raise(NO_OUT_RECIPE if out_recipe is not None else "")
        return scaled_composed(of, asked, own, given, options)
    factors = ScaledFactors(of.a, of.scale_a, of.b, of.scale_b)  # type: ignore[arg-type]  # a tensor, by the checks
    (out, config, out_dtype, _), bias = options, own["bias"]
    if _is_traced():
        return traced_scaled(factors, asked.epilogue, given, {  # type: ignore[arg-type]  # as it was given
            "bias": bias, "activation": asked.activation, "out_recipe": out_recipe, "out": out, "out_dtype": out_dtype,
            "recipe_a": of.recipes[0], "recipe_b": of.recipes[1], "use_fast_accum": of.fast, "config": config,
        })  # fmt: skip
    if out_recipe is not None:
        raise OperandError(QUANTIZES)
    finish = BiasActivation(bias, asked.activation, of.fast)
    return with_epilogue(factors, asked.epilogue, given, of.recipes, finish, out, out_dtype, unswapped(config))


def _sums_of_tiles(
    of: ScaledPart, asked: AskedParts, own: Mapping[str, torch.Tensor | None], given: Mapping[str, object] | None,
    options: ComposedOptions,
) -> torch.Tensor:  # fmt: skip
    """The rows of an order's tiles, added by torch behind the product."""

    def product(a: torch.Tensor, b: torch.Tensor, **others: object) -> torch.Tensor:
        value: torch.Tensor = scaled_matmul(  # type: ignore[call-overload]  # as they were given
            a, of.scale_a, b, of.scale_b, use_fast_accum=of.fast, **others
        )
        return value

    return sums_of_product(True, product, of.a, of.b, own["add_rows"], options.out, {
        **{name: x for name, x in own.items() if name != "add_rows"}, "recipe_a": of.recipes[0],
        "recipe_b": of.recipes[1], "activation": asked.activation, "out_dtype": options.out_dtype,
        "config": options.config, "epilogue": asked.epilogue, "given": given, "copy_rows": asked.copy_rows,
        "order": asked.order, "combine": asked.combine, "prologue": asked.prologue, "triangles": asked.triangles,
    })  # fmt: skip


def _quantized(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, finish: BiasActivation,
    out: torch.Tensor | None, recipe_a: object, recipe_b: object, out_dtype: object, out_recipe: object,
    config: Sm90Config | None,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same with a quantised result, and its scales."""
    key: tuple[object, ...] = ()
    scales = None
    bias = finish.bias
    try:
        scales = memory_beside(a, *_scales_of(a.shape, b.shape[-1], finish.activation), torch.float32)
        others = (scales,) if bias is None else (bias, scales)
        chosen = "quantized", out_dtype, config, recipe_a, recipe_b, out_recipe, *finish[1:], bias is None
        key, found = find(a, b, scale_a, scale_b, others, out, chosen)
        if found is not None:
            return found, scales
    except (RuntimeError, AttributeError, LookupError, TypeError, ValueError):
        pass  # no tensors, or none that multiply: checked below
    if key and scales is not None and (apart := APART.get(key)) is not None:
        return scaled_product(apart, a, scale_a, b, scale_b, finish, config, out, key, scales), scales
    check_config(config)
    names = recipe_text("recipe_a", recipe_a), recipe_text("recipe_b", recipe_b)
    call = checked_scaled(a, scale_a, b, scale_b, finish, out, out_dtype, *names, out_recipe)
    if needs_dispatcher(a, scale_a, b, scale_b, bias, out):
        c: torch.Tensor
        c, scales = torch.ops.layoutgemm.scaled_matmul_quantized(
            a, scale_a, b, scale_b, bias, finish.activation, out_dtype, *names, finish.fast, config_text(config)
        )
        return (c if out is None else out.copy_(c)), scales
    if scales is None:  # there was no memory: it raises again
        scales = memory_beside(a, *_scales_of(a.shape, b.shape[-1], finish.activation), torch.float32)
    return scaled_product(call, a, scale_a, b, scale_b, finish, config, out, key, scales), scales


@lru_cache(1024)
def _scales_of(a: tuple[int, ...], columns: int, activation: str | None) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of the scales of a result."""
    shape = (*a[:-1], columns // BiasActivation(None, activation).halves)
    return kept_shapes(shape, AS_QUANTIZE).scales


def _traced_scaled(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, bias: torch.Tensor | None,
    out: torch.Tensor | None, recipe_a: object, recipe_b: object, activation: str | None, use_fast_accum: bool,
    out_dtype: object, config: Sm90Config | None, out_recipe: object,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    read = {"a": a, "scale_a": scale_a, "b": b, **named(scale_b=scale_b, bias=bias)}
    check_kinds(read, named(out=out))
    refuse(_refusal_of_options(recipe_a, recipe_b, config))
    refuse_finish(activation, a, out_dtype)
    _refuse_recorded(read, out)
    names = _recipe_text(recipe_a), _recipe_text(recipe_b)
    quantizes = out_recipe is not None
    if quantizes:
        refuse(refusal("out recipe", out_recipe, out_dtype))
    of_out = _recipe_text(out_recipe)
    CHECK_SCALED(a, scale_a, b, scale_b, bias, out, activation, out_dtype, *names, of_out)
    if quantizes:
        c, scales = torch.ops.layoutgemm.scaled_matmul_quantized(
            a, scale_a, b, scale_b, bias, activation, out_dtype, *names, fast_accum(use_fast_accum), config_text(config)
        )
        return (c if out is None else out.copy_(c)), scales
    value: torch.Tensor = torch.ops.layoutgemm.scaled_matmul(
        a, scale_a, b, scale_b, bias, activation, out_dtype, *names, fast_accum(use_fast_accum), config_text(config)
    )
    return copied(value, out)


def _refuse_recorded(read: dict[str, torch.Tensor], out: torch.Tensor | None) -> None:
    """Refuse, under the compiler, the derivatives that no product with scales has."""
    for name, x in read.items():
        if differentiated(x):
            refuse(f"{name} requires grad, and this product has no gradient: {WAY_OUT}")
    if out is not None and differentiated(out):
        refuse(NOT_RECORDED)


@constant_of_objects
def _refusal_of_options(
    recipe_a: object, recipe_b: object, config: object, kinds: tuple[torch.dtype | None, ...] = (None, None)
) -> str:
    """The refusal of options that are no tensors, or "": a constant to the compiler. `kinds`: of the scales."""
    texts = [refusal("recipe", "recipe_a", recipe_a, kinds[0]), refusal("recipe", "recipe_b", recipe_b, kinds[1])]
    return next(filter(None, texts), "") or refusal("plain config", config)


@constant_of_objects
def _recipe_text(recipe: object, scale: torch.dtype | None = None) -> str:
    """The name of a recipe that has been checked: a constant to the compiler. `scale`: the type of the scales."""
    return recipe_text("recipe", recipe, scale)


# -------------------------------------------------------------------------------------------------------------- grouped


@repeated_first(
    _grouped_again, (2, 3),
    {(3, None): _GROUPED[OFFSETS].last, (2, ENDS): _GROUPED[ENDS].last, (2, COUNTS): _GROUPED[COUNTS].last}, weight=1,
)  # fmt: skip
def grouped_matmul(
    a: torch.Tensor, b: torch.Tensor | Sequence[torch.Tensor], offsets: torch.Tensor | None = None, *,
    offs: torch.Tensor | None = None, counts: torch.Tensor | None = None, expected_rows: int | None = None,
    scale_a: torch.Tensor | None = None,
    scale_b: torch.Tensor | None = None, recipe_a: object = None, recipe_b: object = None,
    bias: torch.Tensor | None = None, activation: str | None = None, use_fast_accum: bool = True,
    out: torch.Tensor | None = None, out_dtype: torch.dtype | None = None, config: Config | None = None,
    rows: torch.Tensor | None = None, out_rows: torch.Tensor | None = None, row_weights: torch.Tensor | None = None,
    copy_rows: bool | None = None, epilogue: Epilogue | None = None, given: Mapping[str, object] | None = None,
    prologue: Prologue | None = None, add_rows: torch.Tensor | None = None, combine: Combine | None = None,
    ordered: bool = True,
) -> torch.Tensor:  # fmt: skip
    """A grouped GEMM, as in a mixture of experts. It is a product for each group, in one launch.

    The ranks of a and b say what the groups are of, as in torch.nn.functional.grouped_mm:

        a (rows, K)        b (experts, K, N)    rows of a and of the result:         (rows, N)
        a (experts, M, K)  b (K, columns)       columns of b and of the result:      (M, columns), column-major
        a (M, K)           b (K, N)             K, as in a weight's gradient:        (experts, M, N)
        a (experts, M, K)  b (experts, K, N)    none; with `counts`, of masked rows: (experts, M, N)

    a, b      bfloat16, float16, float8_e4m3fn or float8_e5m2: on one GPU of compute capability 8.x, 9.0 or 12.x, float8
              from 8.9 on, or on the CPU. What no kernel reads in place is copied
    offsets   int32 or int64 of experts + 1, on the same device: where each group begins, from 0, and the last one ends,
              at a's rows (or b's columns, or K); none below the one before it, so that groups may be empty. Groups
              along K of float8 begin at multiples of 128, and end there or at K
    offs      in place of offsets, int32 or int64 of experts: where each group ends, without the leading 0, as torch has
              it. Rows or columns from the last end on are in no group: zeros in a new result, untouched in `out`
    counts    in place of both, int32 or int64 of experts: the rows of each group that count. Others are not written to
              `out`, and are unspecified in a new result. On a GPU the kernel reads the counts and skips tiles of rows
              beyond them; a count below 0 is 0, one above the group's rows is all of them
    expected_rows   the rows of a group that the tiles are chosen for, since the host does not see the groups. With
              counts 128 if it is not given, or as many as a group has. With offsets or offs the rows that each group
              has, as with a capacity: without it tiles are those of uneven groups with the rows of the average. Any
              groups give the same result. Not of columns nor along K, nor under torch.compile, which takes config
    scale_a   of float8: float32 (rows, K blocks of 128) and scale_b (experts, N / 128, K blocks), as for scaled_matmul,
              and its recipes likewise. Along K the blocks are those of K, (M, K blocks) and (N / 128, K blocks) or
              (N, K blocks); a scale of each row and column of each group is (experts, M, 1) and (experts, 1, N)
              Block scales of the tensor cores, as for scaled_matmul, have factors of the same types: (rows, K / 32) and
              (experts, N, K / 32), or flat by SWIZZLE_32_4_4. In that order each group of rows is padded to 128, in as
              much memory as any groups of so many rows need. Of all forms but K; with config=Sm100Config() on a GPU
    bias      of all forms but columns and K: float32, bfloat16 or float16, (N,), or (experts, N) for one of each group;
              activation, use_fast_accum  as for scaled_matmul. In the kernel; by torch where derivatives are recorded
    activation  of the same forms also a gate, "swiglu" or "geglu": b is [gate | up] of each expert, (experts, K, 2N),
              and the result act(a @ gate) * (a @ up); bias and scale_b are of all 2N. In one launch for a b that is the
              transpose of (experts, 2N, K), and of float8; else, and for derivatives, torch gates a product of all
              columns
    out       where the product goes, of its shape and type, apart from what is read
    out_dtype default a's type; bfloat16 for float8
    config    the kernel's configuration; of groups of columns, that of the transposed product
    rows, out_rows, row_weights   of groups of rows with `offsets`, as for `matmul`: groups are of the product's rows.
              Row i reads row rows[i] of a, and is row out_rows[i] of the result. With `counts`, or of a batch, `rows`
              alone, (experts, M): row i of group e reads row rows[e, i] of a[e], or of a matrix a. Scales of rows are
              those of a's rows, and read by row index too
    add_rows  in place of `out_rows`, with `offsets`: row i is added to row add_rows[i] of the result, as for `matmul`.
              So the experts' results of a token become one. Goes with `rows`, `row_weights` and an activation by
              kernels of one call; with `offs`, scales, bias, `epilogue`, `prologue` or `combine` torch adds the rows,
              or weighs and places those of `row_weights` and `out_rows`
    ordered   False: in any order, as for `matmul`
    copy_rows  of `rows`, as for `matmul`: whether a's rows are copied to a workspace first
    epilogue  in place of bias and activation, behind the scales: any `kernels.epilogue.chain.Epilogue`. Of all forms
              but columns; with `rows`, of groups of rows and, without scales, of masked groups
    given     what it reads and writes, by name, as for `matmul`. Of groups of rows a vector along N is (N,), or
              (experts, N) for one of each group, and columns are reduced to (experts, N). Rows of no group are in no
              reduction and are not written. Gradients as behind `matmul`'s epilogue; of float8, of what is read alone
    prologue  a function of a's elements before they are multiplied, a `kernels.Prologue`; `given` has the vectors that
              it reads: see `torch_op.prologue.grouped`. Of groups of rows and masked ones, of bfloat16 and float16,
              with bias, activation and, of groups of rows, `rows`, which torch copies first. Beside `epilogue`,
              `combine`, a gate or scales torch computes f(a) first; not under torch.compile
    combine   for a tuple b of two to four matrices of each group, as for `matmul`: the function of
              (*products, ops, **given), or the name of a gate. `given` has its numbers. Of groups of rows and masked
              ones, with bias and activation or an epilogue behind the function, and `rows`, which are copied first.
              Of float8 `scale_b` is a tuple, too: scales of blocks are one kernel's; for others torch combines the
              products. [gate | up] in one b is one kernel

    On a GPU the values of offsets, offs and counts are read by the kernel alone: the host does not wait for them, and
    they are not checked. No row is written outside of its group, and a group along K of float8 that begins or ends
    inside of a block of 128 gives NaN.

    Differentiable for bfloat16 and float16, twice and in forward mode too: the gradient of rows' weights is a product
    with groups along K. No gradients of 8-bit floats and of scales. Works under torch.compile, FakeTensor,
    torch.export, autocast (which casts floats of 16 and 32 bits) and in CUDA graphs.

    Raises OperandError, or TensorError in torch's words, naming the operand, before anything is written.

    >>> import torch
    >>> a, b = torch.ones(3, 2).bfloat16(), torch.arange(1.0, 4).bfloat16().view(3, 1, 1).expand(3, 2, 1)
    >>> grouped_matmul(a, b, torch.tensor([0, 1, 1, 3])).flatten().tolist()
    [2.0, 6.0, 6.0]
    >>> grouped_matmul(a.T, a, offs=torch.tensor([1, 1, 3]))[:, 0, 0].tolist()
    [1.0, 0.0, 2.0]
    """
    config = unswapped(config)
    of_rows = any(x is not None for x in (rows, out_rows, row_weights, copy_rows, add_rows))
    several = combine is not None or isinstance(b, (tuple, list)) or ordered is not True
    if several or of_rows or epilogue is not None or given is not None or prologue is not None:
        return _with_more(a, b, {
            "offsets": offsets, "offs": offs, "counts": counts, "expected_rows": expected_rows, "scale_a": scale_a,
            "scale_b": scale_b, "recipe_a": recipe_a, "recipe_b": recipe_b, "bias": bias, "activation": activation,
            "use_fast_accum": use_fast_accum, "out": out, "out_dtype": out_dtype, "config": config,
            "out_rows": out_rows, "row_weights": row_weights, "copy_rows": copy_rows,
        }, (rows, add_rows), epilogue, given, prologue, combine, ordered)  # fmt: skip
    if _is_traced():
        if expected_rows is not None:
            refuse(_NO_EXPECTED_ROWS)
        return _traced_grouped(
            a, b, (offsets, offs, counts), (scale_a, scale_b), (bias, activation, use_fast_accum), out,
            (recipe_a, recipe_b), out_dtype, config,
        )  # fmt: skip
    key: tuple[object, ...] = ()
    groups, said, fast = offsets, OFFSETS, fast_accum(use_fast_accum)
    if offsets is None and counts is None and offs is not None:
        groups, said = offs, ENDS
    elif offs is not None or counts is not None:
        groups, said = groups_of(offsets, offs, counts)
    check_expected(expected_rows, groups, config)  # a key takes 1.0 for 1
    if groups is not None:
        options = said, out_dtype, config, recipe_a, recipe_b, activation, fast, expected_rows
        others = () if scale_b is None and bias is None else (scale_b, bias)
        alone = scale_a is None and activation is None and not others and out is None
        recorded = alone and _grad_enabled() and _is_recorded(a, b, config)
        key, found = find(a, b, groups, scale_a, others, out, options, recorded)
        if found is not None:
            return _record(a, b, groups, said, [found]) if recorded else found
    if _recorded_alone(a, b, groups, config, out, scale_a, scale_b, recipe_a, recipe_b, bias, activation):
        return _first_recorded(a, b, groups, said, out_dtype, config, expected_rows)
    finish = BiasActivation(bias, activation, fast)
    tensors = {"a": a, "b": b, **named(**{said: groups}, scale_a=scale_a, scale_b=scale_b, bias=bias)}
    check_operands(tensors, named(out=out))
    check_config(config)
    names = named_recipes((recipe_a, recipe_b), scale_a, scale_b)
    a, b = autocast(a, b)
    call = checked_grouped(a, b, groups, said, scale_a, scale_b, finish, out, out_dtype, *names)
    if expected_rows is not None:
        config = expected_config(call, a, b, expected_rows, finish)  # type: ignore[assignment]
    check_derivable(a, b, scale_a, scale_b, bias)
    if not needs_dispatcher(a, b, groups, scale_a, scale_b, bias, out):
        return computed_grouped(call, a, b, groups, scale_a, scale_b, finish, config, out, KeptKey(key))
    value = _dispatched(call, a, b, groups, said, (scale_a, scale_b), names, config_text(config), finish)
    return _placed(value, out, call.leaves_rows, said, groups, call.form == COLUMNS)


def _dispatched(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str,
    scales: tuple[torch.Tensor | None, torch.Tensor | None], names: tuple[str, str], config: str,
    finish: BiasActivation,
) -> torch.Tensor:  # fmt: skip
    """The checked product where torch's dispatcher has to see it."""
    if scales[0] is None and finish.bias is None and finish.activation is None:
        return differentiable(a, b, groups, said, call.kind, config)
    if scales[0] is None and transforms():
        wide = differentiable(a, b, groups, said, recorded_type(call, finish, a, b), config)
        return finished(call, wide, groups, finish)
    value: torch.Tensor = torch.ops.layoutgemm.grouped_matmul(
        a, b, groups, said, *scales, call.kind, *names, config, *finish
    )
    return value


def _with_more(
    a: torch.Tensor, b: torch.Tensor | Sequence[torch.Tensor], given: Options,
    indices: tuple[torch.Tensor | None, torch.Tensor | None], epilogue: Epilogue | None,
    operands: Mapping[str, object] | None, prologue: Prologue | None, combine: Combine | None, ordered: bool,
) -> torch.Tensor:  # fmt: skip
    """The product with row indices, or a function and its operands; `given` has the other arguments by name.

    indices  `rows`, and `add_rows`, whose product takes neither functions nor their operands
    """
    rows, add_rows = indices
    refuse(refusal_of_form(a, b, {"rows": rows, "add_rows": add_rows, **given}))
    several = combine is not None or isinstance(b, (tuple, list))
    functions: dict[str, object] = {"epilogue": epilogue, "given": operands, "prologue": prologue, "combine": combine}
    beside = [*functions.values(), *beside_sums(given)]
    apart = several or any(x is not None for x in beside)
    if ordered is not True or (add_rows is not None and apart):
        others = {**functions, "rows": rows, **{name: x for name, x in given.items() if name != "out"}}
        return sums_of_product(ordered, grouped_matmul, a, b, add_rows, given["out"], others, apart)
    if apart and takes_placed_rows(given):
        others = {
            **functions,
            "rows": rows,
            **{name: x for name, x in given.items() if name not in ("out", "out_rows")},
        }
        ends = given["offs"]

        def in_group(made: torch.Tensor) -> torch.Tensor:
            return in_groups(made.shape, ENDS, ends)

        return placed_product(
            grouped_matmul, a, b, given["out_rows"], given["out"], others, None if ends is None else in_group
        )
    if prologue is not None and applies_function(several, epilogue, given):
        a, of_others, chosen = with_function_applied(a, b, prologue, operands, rows, given)
        return grouped_matmul(a, b, **chosen, epilogue=epilogue, given=of_others or None, combine=combine)
    if several:
        functions = {"epilogue": epilogue, "prologue": prologue, "rows": rows, "add_rows": add_rows}
        return grouped_combined(a, b, combine, operands, {**given, **functions}, grouped_matmul)
    if add_rows is not None:
        return _of_indices(
            IndexedOperands(a, b, rows), add_rows, {**given, "counts": None}, {"counts": given["counts"]}
        )
    if prologue is not None:
        others = {**given, "epilogue": epilogue}
        return grouped_prologue_product(a, b, prologue, operands, others, rows, grouped_matmul)
    if epilogue is not None or operands is not None:
        if _is_traced():
            return traced_grouped(a, b, rows, epilogue, operands, given)
        return grouped_with_epilogue(*grouped_call(a, b, rows, given), epilogue, operands)
    if rows is not None and takes_copied_rows(given):
        return grouped_rows(a, b, rows, given, grouped_matmul)
    return _of_indices(IndexedOperands(a, b, rows), None, given, {})


def refusal_of_form(a: object, b: object, given: Options) -> str:
    """Why groups of columns or of K have no such vectors of rows, or ""."""
    first = b[0] if isinstance(b, (tuple, list)) and b else b
    if isinstance(a, torch.Tensor) and isinstance(first, torch.Tensor) and first.ndim == 2 and 1 < a.ndim < 4:
        for name in ("out_rows", "row_weights", "add_rows"):
            if given[name] is not None:
                return why_unfinished(ALONG_K if a.ndim == 2 else COLUMNS, name)
    return ""


def applies_function(several: bool, epilogue: object, given: Options) -> bool:
    """True for products of groups whose function of A torch computes first.

    No kernel has both.

    several  of several matrices B of each group
    """
    return several or epilogue is not None or given["scale_a"] is not None or gate_of(given["activation"]) is not None


def takes_placed_rows(given: Options) -> bool:
    """True for rows that are weighed or placed, of groups of rows."""
    return given["counts"] is None and any(given[name] is not None for name in ("out_rows", "row_weights"))


_BESIDE_SUMS = ("offs", "expected_rows", "scale_a", "scale_b", "recipe_a", "recipe_b", "bias")


def beside_sums(given: Options) -> list[object]:
    """Arguments beside which a grouped product's rows are added by another kernel."""
    return [given[name] for name in _BESIDE_SUMS]


def _of_indices(
    of: IndexedOperands, add_rows: torch.Tensor | None, given: Options, others: Mapping[str, object]
) -> torch.Tensor:
    """The product with row indices; `others`: arguments that it does not take, beside those of `given`."""
    vectors = {name: given[name] for name in ("out_rows", "row_weights", "offsets", "counts")}
    return indexed_matmul(
        of._replace(add_rows=add_rows, **vectors), activation=given["activation"], out=given["out"],
        out_dtype=given["out_dtype"], config=given["config"], copy_rows=given["copy_rows"],
        others={**others, **{name: given[name] for name in _BESIDE_SUMS}},
    )  # fmt: skip


def _recorded_alone(a: torch.Tensor, b: torch.Tensor, groups: object, config: object, *others: object) -> bool:
    """True for a product that autograd records, and nothing else has to see; all checks are the recorded call's.

    others  arguments that the recorded call does not have
    """
    return (
        type(groups) in PLAIN
        and _grad_enabled()
        and all(x is None for x in others)
        and _is_recorded(a, b, config)
        and a.device.type != "meta"
        and seen_by_autograd_alone()
    )


def _is_recorded(a: torch.Tensor, b: torch.Tensor, config: object = None) -> bool:
    """True for plain operands with a gradient whose product is its own node. By tcgen05 it is the operator's."""
    return (
        type(a) in PLAIN
        and type(b) in PLAIN
        and (a.requires_grad or b.requires_grad)
        and a.dtype in _DERIVED
        and not asks_tcgen05(config)
        and not a.ndim == b.ndim == 3
    )


def _placed(
    value: torch.Tensor, out: torch.Tensor | None, leaves_rows: bool, said: str, groups: torch.Tensor | None,
    columns: bool,
) -> torch.Tensor:  # fmt: skip
    """The result, or `out` with its elements that are in a group."""
    if out is None:
        return value
    if leaves_rows and groups is not None:
        there, into = (value.mT, out.mT) if columns else (value, out)  # columns are rows of the transpose
        kept = torch.where(in_groups(there.shape, said, groups), there, into)
        value = kept.mT if columns else kept
    return copied(value, out)


class _RecordedGroups(torch.autograd.Function):
    """A product that was computed, with its gradients in eager mode: kept launches.

    `operators.differentiable` serves torch.func, forward mode and compilers. Where the backward pass is recorded too,
    `grouped_matmul` records its products.
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor, said: str, made: list[torch.Tensor]
    ) -> torch.Tensor:
        # Each operand is kept for the other's gradient alone, as by `matmul`.
        keeps_b, keeps_a, *_ = ctx.needs_input_grad
        ctx.save_for_backward(a if keeps_a else None, b if keeps_b else None, groups)
        ctx.facts = said, None if keeps_a and keeps_b else (stand_in(a), stand_in(b))
        return made[0]

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        a, b, groups = ctx.saved_tensors
        said, stand_ins = ctx.facts
        if stand_ins is not None:
            a, b = [x if x is not None else other for x, other in zip((a, b), stand_ins)]
        if grad is None:
            return None, None, None, None, None
        return (*gradients_of(a, b, groups, said, ctx.needs_input_grad[:2], grad), None, None, None)


_record = recorder(_RecordedGroups)


def gradients_of(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor, said: str, wanted: Sequence[bool], grad: torch.Tensor
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """The gradients of A and B, where wanted. Kept launches compute them, or `grouped_matmul`, which records them.

    said  what `groups` are: "offsets" or "offs"
    """
    if not (_grad_enabled() or _is_traced()):
        again = gradients_again(a, b, groups, said, wanted, grad)
        if again is not None:
            return again
    return grouped_gradients(a, b, groups, said, wanted, grad, _said_product)


def _recorded_by(
    said: str, product: ProductCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor
) -> torch.Tensor | None:
    """The recorded product of a kept launch; None for what is no node of its own."""
    found = product(a, b, groups) if _is_recorded(a, b) else None
    return None if found is None else _record(a, b, groups, said, [found])


def _first_recorded(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str, kind: torch.dtype | None,
    config: Sm90Config | None, expected: int | None,
) -> torch.Tensor:  # fmt: skip
    assert groups is not None
    with torch.no_grad():
        c = _said_product(a, b, groups, said, kind, config, expected)
    return _record(a, b, groups, said, [c])


def _said_product(
    left: torch.Tensor, right: torch.Tensor, groups: torch.Tensor, said: str, kind: torch.dtype | None,
    config: Sm90Config | None = None, expected: int | None = None,
) -> torch.Tensor:  # fmt: skip
    return grouped_matmul(left, right, **{said: groups}, out_dtype=kind, config=config, expected_rows=expected)


def _traced_grouped(
    a: torch.Tensor, b: torch.Tensor, said_groups: tuple[torch.Tensor | None, ...],
    scales: tuple[torch.Tensor | None, torch.Tensor | None], finish: tuple[torch.Tensor | None, str | None, bool],
    out: torch.Tensor | None, recipes: tuple[object, object], out_dtype: object, config: Sm90Config | None,
) -> torch.Tensor:  # fmt: skip
    """The same under torch.compile, whose tracer meets no exception of ours."""
    (scale_a, scale_b), (bias, activation, use_fast_accum) = scales, finish
    given = [(x, said) for x, said in zip(said_groups, (OFFSETS, ENDS, COUNTS)) if x is not None]
    if len(given) > 1:
        refuse(f"{given[0][1]} and {given[1][1]}: groups are said by one of offsets, offs and counts")
    groups, said = given[0] if given else (None, OFFSETS)
    read = {"a": a, "b": b, **named(**{said: groups}, scale_a=scale_a, scale_b=scale_b, bias=bias)}
    check_kinds(read, named(out=out))
    kinds = getattr(scale_a, "dtype", None), getattr(scale_b, "dtype", None)
    refuse(_refusal_of_options(*recipes, config, kinds))
    refuse_finish(activation, a, out_dtype)
    if scale_a is not None or a.dtype.itemsize == 1:
        _refuse_recorded({"a": a, "b": b, **named(scale_a=scale_a, scale_b=scale_b, bias=bias)}, out)
    elif out is not None and differentiated(a, b, bias, out):
        refuse(NOT_RECORDED)
    a, b = autocast(a, b)
    names = _recipe_text(recipes[0], kinds[0]), _recipe_text(recipes[1], kinds[1])
    CHECK_GROUPED(a, b, groups, scale_a, scale_b, bias, out, said, activation, out_dtype, *names)
    value: torch.Tensor = torch.ops.layoutgemm.grouped_matmul(
        a, b, groups, said, scale_a, scale_b, out_dtype, *names, config_text(config), bias, activation,
        fast_accum(use_fast_accum),
    )  # fmt: skip
    leaves_rows = said != OFFSETS and not a.ndim == b.ndim == 2
    return _placed(value, out, leaves_rows, said, groups, a.ndim == 3 and b.ndim == 2)
