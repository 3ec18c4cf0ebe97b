"""scaled_matmul with the block scales of tcgen05: MXFP8, MXFP4 and NVFP4.

`kernels.sm100.block_scales.FORMATS` has the types and the elements of K that share a factor. A call has for each of a
and b its factors, and one float32 scale of the whole operand or none:

    scale_a            recipe_a                        factors of a, and the scale of all of a
    -----------------  ------------------------------  -------------------------------------------
    factors            BlockWise1x32, BlockWise1x16    as given; no scale of all
    [factors, number]  [BlockWise1x16, "TensorWise"]   both, as torch.nn.functional.scaled_mm has them

    swizzle_a           factors of (M, K)
    ------------------  ----------------------------------------------------------------------------------------
    "NO_SWIZZLE"        (M, K blocks) of any strides; copied to the order below
    "SWIZZLE_32_4_4"    the contiguous order of `kernels.sm100.block_scales`, in any shape; read where they lie
    None                the first if the shape is (M, K blocks), else the second

The kernel multiplies the sums by the scales of whole operands in its epilogue, before bias and activation. On the CPU
all is computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple, TypeAlias

import numpy as np
import torch

from ...arch import arch
from ...arguments import nearest, shown
from ...dtypes import dtype
from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import Activation, Bias, Epilogue
from ...kernels.plan import tile_count
from ...kernels.planner import without_block_scales
from ...kernels.run.operand_checks import check_operands, resolved
from ...kernels.run.torch_tensors import TORCH_NAMES
from ...kernels.sm80.plan import Sm80Config
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm100.block_scales import CHUNK_BYTES, CHUNK_FACTORS, CHUNK_ROWS, FORMATS, ScaleFormat, blocked_view
from ...kernels.sm100.plan import Sm100Config, Sm100Plan
from ..checks import check_activation, check_device, check_out, copied, needs_dispatcher, refuse_derivatives, stored_as
from ..compiled.constant_objects import constant_of_objects
from ..compiled.traced import CHECKS, check_kinds, checking_operator, named, refusal, refuse, refuse_finish
from ..operators import operator_of, with_autograd
from ..prepared import Config, config_text, on_gpu, target
from ..problem import asks_tcgen05
from ..reference import exact
from ..types import C_NAMES, GroupsPlan
from .by_mma import HOPPER, MmaProduct, mma_plan
from .epilogue import scale_step
from .kept import KeptKey, Key, find, launch
from .operators import WAY_OUT, plain_config
from .recipes import TENSOR, as_members
from .scaled import BiasActivation, check_bias, check_config, finished_by_torch, line

Scale: TypeAlias = "torch.Tensor | list[torch.Tensor] | tuple[torch.Tensor, ...]"  # factors; or with a number of all
_is_traced = torch.compiler.is_dynamo_compiling
_ELEMENTS = {
    getattr(torch, TORCH_NAMES[name]): name
    for form in FORMATS.values() for name in form.types if hasattr(torch, TORCH_NAMES[name])
}  # fmt: skip
_FACTORS = {
    getattr(torch, TORCH_NAMES[form.scale.name]): form.scale.name
    for form in FORMATS.values() if hasattr(torch, TORCH_NAMES[form.scale.name])
}  # fmt: skip
PAIRS = getattr(torch, TORCH_NAMES["e2m1"], None)  # two elements of K in a byte; None before torch 2.8
_RECIPES = tuple(dict.fromkeys([f"BlockWise1x{form.vector}" for form in FORMATS.values()]))
PLAIN_ORDER, BLOCKED = "NO_SWIZZLE", "SWIZZLE_32_4_4"
_NO_OUT_RECIPE = "out_recipe: no product with block scales quantises its result; layoutgemm.quantize takes it"
BESIDE = (
    "a product with block scales takes bias and activation; layoutgemm.plan(..., scales='mxfp8', epilogue=, order=) "
    "has kernels with more"
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
    """

    form: str
    kind: torch.dtype
    shape: tuple[int, ...]
    k: int
    blocked: tuple[bool, bool]

    @property
    def factors(self) -> int:
        """Factors of a row."""
        return tile_count(self.k, FORMATS[self.form].vector)

    def blocked_bytes(self, operand: int) -> int:
        """Bytes of the factors of A (0) or B (1) in the kernel's order."""
        return prod(blocked_view(self.shape[operand - 2], self.factors, prod(self.shape[:-2]))[0])


# --------------------------------------------------------------------------------------------------------------- checks


def asks_block_scales(a: object, scale_a: object, scale_b: object, *swizzles: object) -> bool:
    """True if a call is one with block scales, by its types or a swizzle.

    >>> asks_block_scales(torch.ones(2, 2), torch.ones(2, 1), None)
    False
    """
    kinds = [getattr(x, "dtype", None) for x in (scale_a, scale_b)]
    lists = isinstance(scale_a, (list, tuple)) or isinstance(scale_b, (list, tuple))
    pairs = PAIRS is not None and getattr(a, "dtype", None) == PAIRS
    return lists or pairs or all(kind in _FACTORS for kind in kinds) or any(x is not None for x in swizzles)


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
        found[f"recipe_{side}"] = _first(f"recipe_{side}", recipe, "ScalingType", _RECIPES, TENSOR, count)
        orders = PLAIN_ORDER, BLOCKED
        found[f"swizzle_{side}"] = _first(f"swizzle_{side}", swizzle, "SwizzleType", orders, PLAIN_ORDER, count)
    check_config(config)
    if config is not None and not asks_tcgen05(config):
        kind = type(config).__qualname__
        raise OperandError(f"config is an {kind}: block scales are tcgen05's, config=Sm100Config() asks for it")
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
    form = _form(of, options)
    if a.ndim not in (2, 3) or b.ndim != a.ndim or a.shape[-1] != b.shape[-2] or a.shape[:-2] != b.shape[:-2]:
        shapes = f"a and b have shapes {list(a.shape)} and {list(b.shape)}"
        pairs = "; a byte has two elements of K, of a and of b" if a.dtype == PAIRS else ""
        raise TensorError(f"{shapes}: (M, K) and (K, N), or as many of both{pairs}")
    kind = stored_as(torch.float8_e4m3fn, out_dtype, a.dtype)
    front, k = tuple(a.shape[:-2]), a.shape[-1] * (2 if a.dtype == PAIRS else 1)
    count = tile_count(k, form.vector)
    blocked = (
        _is_blocked("scale_a", of.scale_a, (*front, a.shape[-2], count), options.swizzle_a, form),
        _is_blocked("scale_b", of.scale_b, (*front, b.shape[-1], count), options.swizzle_b, form),
    )
    for name, x in (("scale_a[1]", of.global_a), ("scale_b[1]", of.global_b)):
        if x is not None and (x.dtype != torch.float32 or x.numel() != 1):
            raise OperandError(f"{name} is {x.dtype} of shape {list(x.shape)}: a scale of all is one float32 element")
    check_activation(activation, ())
    check_bias(of.bias, [(b.shape[-1],)])
    call = BlockScaledCall(form.name, kind, (*front, a.shape[-2], b.shape[-1]), k, blocked)
    if out is not None:
        check_out(out, call.shape, kind, of.named)
    return call


def _form(of: BlockFactors, options: BlockOptions) -> ScaleFormat:
    """The format of the operands' types. Raises OperandError, naming the first that no format has."""
    for name, x in (("a", of.a), ("b", of.b)):
        if x.dtype not in _ELEMENTS:
            raw = "; its bytes of two elements are view(torch.float4_e2m1fn_x2)" if x.dtype == torch.uint8 else ""
            raise OperandError(f"{name} is {x.dtype}: block scales are of {_listed(_ELEMENTS)}{raw}")
    for name, x in (("scale_a", of.scale_a), ("scale_b", of.scale_b)):
        if x.dtype not in _FACTORS:
            raw = f"; bytes of e8m0 are {name}.view(torch.float8_e8m0fnu)" if x.dtype == torch.uint8 else ""
            raise OperandError(f"{name} is {x.dtype}: factors are {_listed(_FACTORS)}{raw}")
    elements, factors = {_ELEMENTS[x.dtype] for x in (of.a, of.b)}, {_FACTORS[x.dtype] for x in of[1:4:2]}  # type: ignore[union-attr]
    for form in FORMATS.values():
        if elements <= set(form.types) and factors == {form.scale.name}:
            for name, recipe in (("a", options.recipe_a), ("b", options.recipe_b)):
                if recipe and recipe != f"BlockWise1x{form.vector}":
                    kinds = f"{of.a.dtype} with {of.scale_a.dtype} is {form.name}"
                    raise OperandError(f"recipe_{name} {recipe}: {kinds}, BlockWise1x{form.vector}")
            return form
    own = f"a is {of.a.dtype}, b {of.b.dtype}, scale_a {of.scale_a.dtype}, scale_b {of.scale_b.dtype}"
    known = "; ".join([
        f"{form.name}: {' and '.join(TORCH_NAMES[x] for x in form.types)} with {TORCH_NAMES[form.scale.name]}"
        for form in FORMATS.values()
    ])  # fmt: skip
    raise OperandError(f"{own}: formats are {known}")


def _listed(kinds: Sequence[torch.dtype] | dict[torch.dtype, str]) -> str:
    return " and ".join([str(kind).removeprefix("torch.") for kind in kinds])


def _is_blocked(name: str, x: torch.Tensor, shape: tuple[int, ...], swizzle: str, form: ScaleFormat) -> bool:
    """True if factors lie in the kernel's order. Raises TensorError for factors of neither order.

    shape  of factors in rows: ([batch,] rows, K blocks)
    """
    *front, rows, count = shape
    chunks = tile_count(rows, CHUNK_ROWS), tile_count(count, CHUNK_FACTORS)
    size = prod(front) * prod(chunks) * CHUNK_BYTES
    if swizzle != BLOCKED and x.ndim == len(shape) and tuple(x.shape) == shape:
        return False
    if swizzle != PLAIN_ORDER and x.numel() == size and x.is_contiguous():
        return True
    said = f"{list(shape)}, a factor for each {form.vector} of K"
    whole = f"contiguous, {prod(front)} * {chunks[0]} * {chunks[1]} * {CHUNK_BYTES} = {size} factors by {BLOCKED}"
    known = {PLAIN_ORDER: said, BLOCKED: whole}.get(swizzle, f"{said}; or {whole}")
    gaps = "" if x.is_contiguous() else f" and strides {list(x.stride())}"
    wide = (
        f"; {name}.float() has scales of 128"
        if count and x.shape[-1:] == (tile_count(count * form.vector, 128),)
        else ""
    )
    raise TensorError(f"{name} has shape {list(x.shape)}{gaps}: {form.name} takes {known}{wide}")


# ------------------------------------------------------------------------------------------------------------ reference


def sums(call: BlockScaledCall, of: BlockFactors) -> torch.Tensor:
    """The scaled sums in float64, on the CPU. Raises OperandError for a factor below 0, which no format has."""
    left, right = _values(call, of.a, of.scale_a, 0), _values(call, of.b.mT, of.scale_b, 1)
    value = exact(left, right.mT)
    for scale in (of.global_a, of.global_b):
        value = value if scale is None else value * scale.detach().double().reshape(())
    return value


def _values(call: BlockScaledCall, x: torch.Tensor, scale: torch.Tensor, operand: int) -> torch.Tensor:
    """Elements times factors, (..., rows, K): of A (0), or of B (1) transposed."""
    x, factors = resolved(x.detach()), plain_factors(call, scale, operand).double()
    below = (factors < 0).nonzero()
    if len(below):
        at = below[0].tolist()
        raise OperandError(f"scale_{'ab'[operand]}{at} is {factors[tuple(at)].item()}: a factor is not below 0")
    if x.dtype == PAIRS:
        codes = x.view(torch.uint8)
        halves = torch.stack((codes & 15, codes >> 4), -1).flatten(-2)
        e2m1 = dtype("e2m1")
        elements = torch.tensor(
            [float(each) for each in e2m1.decode(np.arange(1 << e2m1.bits, dtype=np.uint8))]
        ).double()[halves.long()]
    else:
        elements = x.double()
    return elements * factors.repeat_interleave(FORMATS[call.form].vector, -1)[..., : call.k]


def plain_factors(call: BlockScaledCall, x: torch.Tensor, operand: int) -> torch.Tensor:
    """The factors of A (0) or B (1) as ([batch,] rows, K blocks)."""
    x = resolved(x.detach())
    if not call.blocked[operand]:
        return x
    *front, rows = *call.shape[:-2], call.shape[operand - 2]
    shape, strides = blocked_view(rows, call.factors, prod(front))
    padded = (
        x.view(torch.uint8).reshape(-1).as_strided(shape, strides).reshape(*front, prod(shape[1:4]), prod(shape[4:]))
    )
    return padded[..., :rows, : call.factors].contiguous().view(x.dtype)


def blocked_factors(call: BlockScaledCall, x: torch.Tensor, operand: int) -> torch.Tensor:
    """The factors of A (0) or B (1) in the kernel's order, flat. A copy is padded by zero bits."""
    x = resolved(x.detach())
    if call.blocked[operand]:
        return x.view(-1)
    rows = call.shape[operand - 2]
    shape, strides = blocked_view(rows, call.factors, prod(call.shape[:-2]))
    beside = 0, prod(shape[4:]) - call.factors, 0, prod(shape[1:4]) - rows
    made = torch.empty(prod(shape), dtype=torch.uint8, device=x.device)
    made.as_strided(shape, strides).copy_(torch.nn.functional.pad(x.view(torch.uint8), beside).reshape(shape))
    return made.view(x.dtype)


# -------------------------------------------------------------------------------------------------------------- product


@lru_cache(256)
def block_epilogue(scales: tuple[str, ...], bias: str | None, activation: str | None) -> Epilogue:
    """The epilogue of whole operands' scales by name, a bias's type, an activation.

    >>> [type(step).__name__ for step in block_epilogue(("global_a",), "bf16", "relu").steps]
    ['Scale', 'Bias', 'Activation']
    """
    steps = [step for name in scales for step in scale_step(name, "m", TENSOR)]
    steps += [] if bias is None else [Bias("n", bias)]
    return Epilogue(*steps, *([] if activation is None else [Activation(activation)]))


def plan_of(
    call: BlockScaledCall, of: BlockFactors, activation: str | None, config: Config | None
) -> tuple[GroupsPlan, str]:
    """The plan of a product, and why this configuration. Raises OperandError where tcgen05 was not asked for."""
    index = of.a.get_device()
    if not asks_tcgen05(config):
        code = target(index)[0]
        why = without_block_scales(arch(code), Sm90Config if code == HOPPER else Sm80Config, FORMATS[call.form])
        raise OperandError(f"{why}; config=Sm100Config() explains and launches tcgen05's")
    m, n = call.shape[-2:]
    scales = tuple([name for name in ("global_a", "global_b") if name in of.named])
    epilogue = block_epilogue(scales, None if of.bias is None else C_NAMES[of.bias.dtype], activation)
    types = _ELEMENTS[of.a.dtype], f"{_ELEMENTS[of.b.dtype]}:col", C_NAMES[call.kind]
    sizes = m, n, call.k, prod(call.shape[:-2])
    plan, why = mma_plan(MmaProduct(sizes, types, epilogue=epilogue or None, form=call.form), index, config)  # type: ignore[arg-type]
    assert isinstance(plan, Sm100Plan)
    return plan, why


def block_scaled_product(
    call: BlockScaledCall, of: BlockFactors, activation: str | None, config: Config | None,
    out: torch.Tensor | None = None, key: Key = (),
) -> torch.Tensor:  # fmt: skip
    """The product, computed now: a new tensor, or `out`. `key`: by which the launch is kept, or ()."""
    if 0 in call.shape:
        return torch.empty(call.shape, dtype=call.kind, device=of.a.device) if out is None else out
    if not call.k or not on_gpu(of.a.get_device()):  # an empty sum is 0, and bias and activation follow
        wide = sums(call, of) if call.k else torch.zeros(call.shape, dtype=torch.float32, device=of.a.device)
        value = finished_by_torch(wide, of.bias, BiasActivation(of.bias, activation), call.kind)
        return value if out is None else out.copy_(value)
    if of.a.ndim == 3 and of.a.shape[0] == 1:
        scales = [x if blocked else x[0] for x, blocked in zip((of.scale_a, of.scale_b), call.blocked, strict=True)]
        one = of._replace(a=of.a[0], b=of.b[0], scale_a=scales[0], scale_b=scales[1])
        c = block_scaled_product(
            call._replace(shape=call.shape[1:]), one, activation, config, None if out is None else out[0]
        )
        return c.unsqueeze(0) if out is None else out
    if not key:
        key, found = find(of.a, of.b, of.scale_a, of.scale_b, of[4:], out, ("block scaled", call, activation, config))
        if found is not None:
            return found
    plan, _ = plan_of(call, of, activation, config)
    given = of.scale_a, of.scale_b
    factors = [blocked_factors(call, x, operand) for operand, x in enumerate(given)]
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
) -> tuple[BlockScaledCall, BlockFactors, str | None, Sm100Config | None]:  # fmt: skip
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
