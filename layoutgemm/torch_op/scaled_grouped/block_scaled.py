"""scaled_matmul with the tensor cores' block scales: MXFP8, MXFP4 and NVFP4.

`kernels.operands.block_scales.FORMATS` has the types and the elements of K that share a factor. A call has for each of
a and b its factors, and one float32 scale of the whole operand or none:

    scale_a            recipe_a                        factors of a, and the scale of all of a
    -----------------  ------------------------------  -------------------------------------------
    factors            BlockWise1x32, BlockWise1x16    as given; no scale of all
    [factors, number]  [BlockWise1x16, "TensorWise"]   both, as torch.nn.functional.scaled_mm has them

`swizzle_a` names the order of factors; None for the one that the shape says: see `block_factors`.

The kernel multiplies the sums by the scales of whole operands in its epilogue, before bias and activation. On the CPU
all is computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

import torch

from ...arguments import nearest, shown
from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import Activation, Bias, Epilogue
from ...kernels.operands.block_scales import FORMATS
from ...kernels.plan import tile_count
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm80.plan import Sm80Config
from ..bias_activation import GATES
from ..checks import check_activation, check_device, check_out, copied, needs_dispatcher, refuse_derivatives, stored_as
from ..compiled.constant_objects import constant_of_objects
from ..compiled.traced import CHECKS, check_kinds, checking_operator, named, refusal, refuse, refuse_finish
from ..composed.api import refuse_or_raise
from ..epilogue import gate_of
from ..operators import operator_of, with_autograd
from ..prepared import Config, config_text, on_gpu
from ..problem import asks_tcgen05
from ..types import C_NAMES, GroupsPlan
from .block_factors import (
    BLOCK_RECIPES,
    BLOCKED,
    ELEMENTS,
    FACTORS,
    PAIRS,
    PLAIN_ORDER,
    FactorLines,
    block_sums,
    depth_of_b,
    elements_of_k,
    format_of,
    listed_types,
)
from .by_mma import MmaProduct, mma_plan, scaled_by_mma
from .epilogue import scale_step
from .gated import why_by_torch
from .kept import KeptKey, Key, find, launch
from .operators import WAY_OUT, plain_config
from .recipes import SCALES, TENSOR, as_members
from .scaled import BiasActivation, check_bias, check_config, finished_by_torch, line

Scale: TypeAlias = torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]  # factors; or with a number of all
_is_traced = torch.compiler.is_dynamo_compiling
_NO_OUT_RECIPE = "out_recipe: no product with block scales quantises its result; layoutgemm.quantize takes it"
BESIDE = (
    "a product with block scales takes bias and activation, or an epilogue; layoutgemm.plan(..., scales='mxfp8', "
    "order=) has kernels with an order of tiles"
)
_OF_ALL = (
    "scale_{side} is a list: beside an epilogue a scale of all is its first step, Scale('global_{side}', True), with "
    "given={{'global_{side}': number}}"
)


class BlockFactors(NamedTuple):
    """The tensors of a product: operands, their factors, scales of whole operands, a bias."""

    a: torch.Tensor
    scale_a: torch.Tensor
    b: torch.Tensor
    scale_b: torch.Tensor
    global_a: torch.Tensor | None = None
    global_b: torch.Tensor | None = None
    bias: torch.Tensor | None = None

    @property
    def named(self) -> dict[str, torch.Tensor]:
        """Those that are given, by name."""
        return named(**self._asdict())


class BlockOptions(NamedTuple):
    """Names of recipes and of the factors' orders; "" for what types and shapes say."""

    recipe_a: str = ""
    recipe_b: str = ""
    swizzle_a: str = ""
    swizzle_b: str = ""


class BlockScaledCall(NamedTuple):
    """A checked product.

    form     of `FORMATS`
    kind     the result's type, of that `shape`
    k        elements of K
    blocked  whether factors of a, and of b, lie in the kernel's order
    halves   columns of b for each of the result: 2 with a gate
    """

    form: str
    kind: torch.dtype
    shape: tuple[int, ...]
    k: int
    blocked: tuple[bool, bool]
    halves: int = 1

    def laid(self, of: BlockFactors) -> list[torch.Tensor]:
        """The factors of A and B, whose shape says their order: flat in the kernel's."""
        return [x.view(-1) if flat else x for x, flat in zip((of.scale_a, of.scale_b), self.blocked, strict=True)]

    def lines(self, operand: int) -> FactorLines:
        """The places of the factors of A (0) or B (1)."""
        lines = self.shape[operand - 2] * (self.halves if operand else 1)
        return FactorLines((*self.shape[:-2], lines, tile_count(self.k, FORMATS[self.form].vector)))

    @property
    def ungated(self) -> BlockScaledCall:
        """The product of all columns in float32, which a gate may follow."""
        shape = (*self.shape[:-1], self.shape[-1] * self.halves)
        return self._replace(kind=torch.float32, shape=shape, halves=1)


# --------------------------------------------------------------------------------------------------------------- checks


def asks_block_scales(a: object, scale_a: object, scale_b: object, *swizzles: object) -> bool:
    """True if a call is one with block scales, by its types or a swizzle.

    >>> asks_block_scales(torch.ones(2, 2), torch.ones(2, 1), None)
    False
    """
    kinds = [getattr(x, "dtype", None) for x in (scale_a, scale_b)]
    lists = isinstance(scale_a, (list, tuple)) or isinstance(scale_b, (list, tuple))
    pairs = PAIRS is not None and getattr(a, "dtype", None) == PAIRS
    return lists or pairs or all(kind in FACTORS for kind in kinds) or any(x is not None for x in swizzles)


def check_options(
    recipe_a: object, recipe_b: object, swizzle_a: object, swizzle_b: object, counts: tuple[int, int], config: object,
    out_recipe: object = None,
) -> BlockOptions:  # fmt: skip
    """The names of a call's options. Raises OperandError, naming the option.

    counts  of tensors that scale_a is, and scale_b

    >>> check_options("BlockWise1x32", None, None, "NO_SWIZZLE", (1, 1), None)
    BlockOptions(recipe_a='BlockWise1x32', recipe_b='', swizzle_a='', swizzle_b='NO_SWIZZLE')
    """
    found: dict[str, str] = {}
    for side, recipe, swizzle, count in zip("ab", (recipe_a, recipe_b), (swizzle_a, swizzle_b), counts, strict=True):
        if count not in (1, 2):
            raise OperandError(f"scale_{side} is {count} tensors: the factors, or [factors, a float32 scale of all]")
        found[f"recipe_{side}"] = _first(f"recipe_{side}", recipe, "ScalingType", BLOCK_RECIPES, TENSOR, count)
        orders = PLAIN_ORDER, BLOCKED
        found[f"swizzle_{side}"] = _first(f"swizzle_{side}", swizzle, "SwizzleType", orders, PLAIN_ORDER, count)
    check_config(config)
    if config is not None and not asks_tcgen05(config) and not isinstance(config, Sm80Config):
        kind = type(config).__qualname__
        raise OperandError(
            f"config is an {kind}: block scales are tcgen05's, config=Sm100Config() asks for it, or mma.sync's of "
            "sm_120a, an Sm80Config"
        )
    if out_recipe is not None:
        raise OperandError(_NO_OUT_RECIPE)
    return BlockOptions(**found)


def _first(name: str, given: object, kind: str, known: Sequence[str], second: str, count: int) -> str:
    """The name of an option for factors, "" for None. A list has `second` too, for the scale of the whole operand."""
    if given is None:
        return ""
    names = as_members(name, given, kind)
    if names[0] not in known:
        way = f"{nearest(names[0], known)}with factors it is {' or '.join(known)}"
        raise OperandError(f"{name} {shown(names[0])}: {way}")
    if names[1:] and (len(names) != count or names[1:] != [second]):
        both = shown([names[0], second])
        raise OperandError(f"{name} {shown(names)}, and scale_{name[-1]} is {count} tensor(s): {both} of 2")
    return names[0]


def checked_block_scaled(
    of: BlockFactors, activation: object, out: torch.Tensor | None, out_dtype: object, options: BlockOptions
) -> BlockScaledCall:
    """The checked product. Raises OperandError or TensorError, naming the operand."""
    check_operands(of.named, named(out=out))
    check_device(of.a)
    refuse_derivatives(of.named, WAY_OUT)
    a, b = of.a, of.b
    form = format_of(of.a, of.scale_a, of.b, of.scale_b, options[:2])
    if a.ndim not in (2, 3) or b.ndim != a.ndim or elements_of_k(a) != depth_of_b(b) or a.shape[:-2] != b.shape[:-2]:
        shapes = f"a and b have shapes {list(a.shape)} and {list(b.shape)}"
        pairs = f"; a byte of {PAIRS} has two elements of K" if PAIRS in (a.dtype, b.dtype) else ""
        raise TensorError(f"{shapes}: (M, K) and (K, N), or as many of both{pairs}")
    kind = stored_as(torch.float8_e4m3fn, out_dtype, a.dtype)
    front, k = tuple(a.shape[:-2]), elements_of_k(a)
    check_activation(activation)
    finish = BiasActivation(of.bias, activation)  # type: ignore[arg-type]  # by the check
    shape = (*front, a.shape[-2], finish.columns(b))
    call = BlockScaledCall(form.name, kind, shape, k, (False, False), finish.halves)
    blocked = [
        call.lines(operand).is_blocked(name, x, form, swizzle)
        for operand, (name, x, swizzle) in enumerate(zip(SCALES, (of.scale_a, of.scale_b), options[2:], strict=True))
    ]
    call = call._replace(blocked=(blocked[0], blocked[1]))
    for name, x in (("scale_a[1]", of.global_a), ("scale_b[1]", of.global_b)):
        if x is not None and (x.dtype != torch.float32 or x.numel() != 1):
            raise OperandError(f"{name} is {x.dtype} of shape {list(x.shape)}: a scale of all is one float32 element")
    check_bias(of.bias, [(b.shape[-1],)])
    if out is not None:
        check_out(out, call.shape, kind, of.named)
    return call


# ------------------------------------------------------------------------------------------------------------ reference


def sums(call: BlockScaledCall, of: BlockFactors) -> torch.Tensor:
    """The scaled sums in float64, on the CPU. Raises OperandError for a factor below 0, which no format has."""
    scale_a, scale_b = call.laid(of)
    value = block_sums(FORMATS[call.form], of.a, scale_a, of.b, scale_b)
    for scale in (of.global_a, of.global_b):
        value = value if scale is None else value * scale.detach().double().reshape(())
    return value


# -------------------------------------------------------------------------------------------------------------- product


@lru_cache(256)
def block_epilogue(scales: tuple[str, ...], bias: str | None, activation: str | None) -> Epilogue:
    """The epilogue of whole operands' scales by name, a bias's type, an activation. A gate comes behind it.

    >>> [type(step).__name__ for step in block_epilogue(("global_a",), "bf16", "relu").steps]
    ['Scale', 'Bias', 'Activation']
    """
    steps = [step for name in scales for step in scale_step(name, "m", TENSOR)]
    steps += [] if bias is None else [Bias("n", bias)]
    if activation in GATES:
        return Epilogue(*steps, sums=len(steps))
    return Epilogue(*steps, *([] if activation is None else [Activation(activation)]))


def plan_of(
    call: BlockScaledCall, of: BlockFactors, activation: str | None, config: Config | None
) -> tuple[GroupsPlan, str]:
    """The plan of a product, and why this configuration. Raises OperandError where no kernel takes block scales."""
    index = of.a.get_device()
    m, n = call.shape[-2:]
    scales = tuple([name for name in ("global_a", "global_b") if name in of.named])
    epilogue = block_epilogue(scales, None if of.bias is None else C_NAMES[of.bias.dtype], activation)
    types = ELEMENTS[of.a.dtype], f"{ELEMENTS[of.b.dtype]}:col", C_NAMES[call.kind]
    sizes = m, n, call.k, prod(call.shape[:-2])
    product = MmaProduct(sizes, types, epilogue=epilogue or None, gate=gate_of(activation), form=call.form)
    return mma_plan(product, index, config)  # type: ignore[arg-type]


def block_scaled_product(
    call: BlockScaledCall, of: BlockFactors, activation: str | None, config: Config | None,
    out: torch.Tensor | None = None, key: Key = (),
) -> torch.Tensor:  # fmt: skip
    """The product, computed now: a new tensor, or `out`. `key`: by which the launch is kept, or ()."""
    if 0 in call.shape:
        return torch.empty(call.shape, dtype=call.kind, device=of.a.device) if out is None else out
    if not call.k or not on_gpu(of.a.get_device()):  # an empty sum is 0, and bias and activation follow
        zeros = call.ungated.shape
        wide = sums(call, of) if call.k else torch.zeros(zeros, dtype=torch.float32, device=of.a.device)
        value = finished_by_torch(wide, of.bias, BiasActivation(of.bias, activation), call.kind)
        return value if out is None else out.copy_(value)
    if of.a.ndim == 3 and of.a.shape[0] == 1:
        scales = [x if blocked else x[0] for x, blocked in zip((of.scale_a, of.scale_b), call.blocked, strict=True)]
        one = of._replace(a=of.a[0], b=of.b[0], scale_a=scales[0], scale_b=scales[1])
        c = block_scaled_product(
            call._replace(shape=call.shape[1:]), one, activation, config, None if out is None else out[0]
        )
        return c.unsqueeze(0) if out is None else out
    if call.halves > 1 and (scaled_by_mma(of.a.get_device(), config) or why_by_torch(of.b, factors=True)):
        wide = block_scaled_product(call.ungated, of._replace(bias=None), None, config)
        value = finished_by_torch(wide, of.bias, BiasActivation(of.bias, activation), call.kind)
        return value if out is None else out.copy_(value)
    if not key:
        key, found = find(of.a, of.b, of.scale_a, of.scale_b, of[4:], out, ("block scaled", call, activation, config))
        if found is not None:
            return found
    plan, _ = plan_of(call, of, activation, config)
    factors = [call.lines(operand).blocked(x) for operand, x in enumerate(call.laid(of))]
    vectors = {name: x.reshape(()) for name, x in of.named.items() if name.startswith("global")}
    vectors |= {} if of.bias is None else {"bias": line(of.bias)}
    lying = all(call.blocked) and vectors.get("bias") is of.bias
    tables = {"scale_a": factors[0], "scale_b": factors[1]}
    return launch(KeptKey(key if lying else ()), plan, of.a, of.b, tables, vectors, out)


# ------------------------------------------------------------------------------------------------------------ operators


def _call(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor,
    global_a: torch.Tensor | None = None, global_b: torch.Tensor | None = None, bias: torch.Tensor | None = None,
    activation: str | None = None, out_dtype: torch.dtype | None = None, recipe_a: str = "", recipe_b: str = "",
    swizzle_a: str = "", swizzle_b: str = "", config: str = "",
) -> tuple[BlockScaledCall, BlockFactors, str | None, Config | None]:  # fmt: skip
    of, own = BlockFactors(a, scale_a, b, scale_b, global_a, global_b, bias), plain_config(config)
    options = check_options(recipe_a or None, recipe_b or None, swizzle_a or None, swizzle_b or None, (1, 1), own)
    return checked_block_scaled(of, activation, None, out_dtype, options), of, activation, own


def _check(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor, global_a: torch.Tensor | None,
    global_b: torch.Tensor | None, bias: torch.Tensor | None, out: torch.Tensor | None, activation: str | None,
    out_dtype: torch.dtype | None, recipe_a: str, recipe_b: str, swizzle_a: str, swizzle_b: str,
) -> None:  # fmt: skip
    of = BlockFactors(a, scale_a, b, scale_b, global_a, global_b, bias)
    checked_block_scaled(of, activation, out, out_dtype, BlockOptions(recipe_a, recipe_b, swizzle_a, swizzle_b))


def _underived(*operands: object) -> torch.Tensor:
    refuse_derivatives(dict(zip(BlockFactors._fields, operands)), WAY_OUT)
    raise OperandError("torch.ops.layoutgemm.block_scaled_matmul has no derivative")


operator_of(
    "block_scaled_matmul", _call, lambda *given: block_scaled_product(*given).contiguous(),
    lambda call, of, *_: of.a.new_empty(call.shape, dtype=call.kind),
)  # fmt: skip
with_autograd("block_scaled_matmul", _underived)
_CHECK = checking_operator("check_block_scaled", _check)
CHECKS["block scales"] = check_options


# ----------------------------------------------------------------------------------------------------------------- call


class BlockArguments(NamedTuple):
    """Arguments of `scaled_matmul` with block scales, as given."""

    a: torch.Tensor
    scale_a: Scale
    b: torch.Tensor
    scale_b: Scale | None
    recipe_a: object
    recipe_b: object
    swizzle_a: object
    swizzle_b: object
    bias: torch.Tensor | None
    activation: str | None
    out: torch.Tensor | None
    out_dtype: torch.dtype | None
    out_recipe: object
    config: Config | None

    def parts(self) -> tuple[BlockFactors, tuple[object, ...]]:
        """The tensors, and the arguments of `check_options`."""
        levels = [tuple(x) if isinstance(x, (list, tuple)) else (x,) for x in (self.scale_a, self.scale_b)]
        (scale_a, global_a), (scale_b, global_b) = ((*x, None, None)[:2] for x in levels)
        of = BlockFactors(self.a, scale_a, self.b, scale_b, global_a, global_b, self.bias)  # type: ignore[arg-type]
        own = self.recipe_a, self.recipe_b, self.swizzle_a, self.swizzle_b
        return of, (*own, (len(levels[0]), len(levels[1])), self.config, self.out_recipe)

    def checked(self) -> tuple[BlockScaledCall, BlockFactors, BlockOptions]:
        """The checked product, its tensors and the names of its options. Raises OperandError or TensorError."""
        of, plain = self.parts()
        options = check_options(*plain)  # type: ignore[arg-type]
        if not isinstance(of.scale_a, torch.Tensor):
            raise OperandError(f"scale_a is {shown(self.scale_a)}: a tensor of factors, or a list [factors, number]")
        if of.scale_b is None:
            raise OperandError("scale_b is missing: with block scales a and b have factors")
        return checked_block_scaled(of, self.activation, self.out, self.out_dtype, options), of, options


def factors_beside(
    given: tuple[object, object], options: tuple[object, ...], config: object, out_recipe: object
) -> tuple[torch.Tensor, torch.Tensor, tuple[str, str]]:
    """The factors of a product with an epilogue, and the names of their recipes.

    The factors' shapes say their order then.

    given    scale_a and scale_b
    options  both recipes, then both swizzles

    Raises OperandError or TensorError, or has the tracer meet an operator that does.
    """
    for side, x in zip("ab", given, strict=True):
        if isinstance(x, (list, tuple)):
            refuse_or_raise(_OF_ALL.format(side=side))
    plain = *options, (1, 1), config, out_recipe
    refuse_or_raise(refusal("block scales", *plain))
    recipe_a, recipe_b, *swizzles = _names(*plain)
    laid = []
    for name, x, swizzle in zip(SCALES, given, swizzles, strict=True):
        if swizzle and getattr(x, "dtype", None) not in FACTORS:
            kinds = listed_types(FACTORS)
            refuse_or_raise(f"swizzle_{name[-1]}: an order of factors of {kinds}, and {name} has none")
        if swizzle == BLOCKED:
            if not x.is_contiguous():  # type: ignore[attr-defined]  # a tensor, by its type
                refuse_or_raise(f"{name} has strides {list(x.stride())}: {BLOCKED} is contiguous")  # type: ignore[attr-defined]
            x = x.view(-1)  # type: ignore[attr-defined]
        laid.append(x)
    return laid[0], laid[1], (recipe_a, recipe_b)  # type: ignore[return-value]


def block_scaled(given: BlockArguments, key: Key = ()) -> torch.Tensor:
    """The product of a call, traced or not. `key`: as `block_scaled_product` has it."""
    if _is_traced():
        return _traced(given)
    call, of, options = given.checked()
    if needs_dispatcher(*of, given.out):
        text = config_text(given.config)
        value: torch.Tensor = torch.ops.layoutgemm.block_scaled_matmul(
            *of, given.activation, given.out_dtype, *options, text
        )
        return copied(value, given.out)
    return block_scaled_product(call, of, given.activation, given.config, given.out, key)


def _traced(given: BlockArguments) -> torch.Tensor:
    """The same under torch.compile, whose tracer meets no exception of ours."""
    of, plain = given.parts()
    read = {"a": of.a, "scale_a": of.scale_a, "b": of.b, "scale_b": of.scale_b}
    check_kinds({**read, **named(global_a=of.global_a, global_b=of.global_b, bias=of.bias)}, named(out=given.out))
    refuse(refusal("block scales", *plain))
    refuse_finish(given.activation, of.a, None)
    names = _names(*plain)
    tensors = of.a, of.scale_a, of.b, of.scale_b, of.global_a, of.global_b, of.bias
    _CHECK(*tensors, given.out, given.activation, given.out_dtype, *names)
    value: torch.Tensor = torch.ops.layoutgemm.block_scaled_matmul(
        *tensors, given.activation, given.out_dtype, *names, config_text(given.config)
    )
    return copied(value, given.out)


@constant_of_objects
def _names(*plain: object) -> tuple[str, ...]:
    """The names of options that have been checked: a constant to the compiler."""
    return tuple(check_options(*plain))  # type: ignore[arg-type]
