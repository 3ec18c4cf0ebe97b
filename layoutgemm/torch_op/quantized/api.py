"""layoutgemm.quantized_matmul and quantized_grouped_matmul: all checks, then a kernel or torch's dispatcher."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import NoReturn, TypeVar
from typing import cast as cast_as

import torch

from ...arguments import sees_unknown
from ...errors import OperandError
from ...kernels.epilogue.chain import Activation, Bias, Epilogue, Step
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.config import Sm90Config
from ..autograd.activation import by_autograd
from ..bias_activation import by_torch
from ..checks import (
    PLAIN,
    autocast_type,
    cast,
    check_activation,
    copied,
    derived_by_transform,
    has_tangent,
    in_older_vmap,
    needs_dispatcher,
    seen_and_recorded,
    seen_by_autograd_alone,
    stored_as,
    transforms,
)
from ..compiled.lowering import register
from ..compiled.repeated_calls import RepeatedCalls
from ..compiled.traced import refuse, refuse_unknown
from ..epilogue import arguments_beside, gate_of, refusal_of_epilogue
from ..own_epilogue.recorded import derivable as formula_alone
from ..own_epilogue.recorded import recorded
from ..prepared import config_text
from ..reference import rounded
from ..scaled_grouped.grouped import COUNTS, OFFSETS
from ..types import C_NAMES
from .configs import PackedConfig, packed_text
from .dense import facts_of
from .epilogue_operator import traced
from .experts import QuantizedExperts, check_experts, checked_experts, expected_of
from .kept import READY, Key, find, found_last, note_again
from .launch import check_bias, flat, quantized_product
from .operators import checked_call, derivable, recorded_product
from .own_epilogue import (
    OwnEpilogue,
    PackedFormula,
    check_matrix,
    checked_product,
    computed,
    dispatched,
    in_place_of_operand,
)
from .weights import QuantizedWeight, check_halves, check_kinds_of, check_product

_is_traced = torch.compiler.is_dynamo_compiling  # a constant to Dynamo
_autocast = torch._C._is_any_autocast_enabled


F = TypeVar("F", bound=Callable[..., torch.Tensor])
_AGAIN = RepeatedCalls({}, 1)
READY.on_clear.append(_AGAIN.clear)


def _found_first(product: F) -> F:
    """The function, whose last call with the same weights is looked for first: in C, and without its defaults."""

    @functools.wraps(product)
    def call(*arguments: object, **options: object) -> torch.Tensor:
        if _is_traced():
            return product(*arguments, **options)
        if _AGAIN.first is not None and (found := _AGAIN.first(arguments, options)) is not None:
            return cast_as(torch.Tensor, found)
        made = product(*arguments, **options)
        if len(arguments) == 2 and type(arguments[1]) is QuantizedWeight:
            note_again(_AGAIN, arguments[1], options)
        return made

    return cast_as(F, call)


@_found_first
@sees_unknown
def quantized_matmul(
    x: torch.Tensor,
    weight: QuantizedWeight,
    *,
    scale_x: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    config: PackedConfig | None = None,
    epilogue: Epilogue | None = None,
    given: Mapping[str, object] | None = None,
    out: torch.Tensor | None = None,
    **unknown: NoReturn,
) -> torch.Tensor:
    """activation(scale_x * x @ weight.T + bias) with packed weights of 4 or 8 bits.

    x          bfloat16 or float16, (..., k), the type that `weight` was packed for; float8_e4m3fn or float8_e5m2 if
               that is float8_e4m3fn. On one GPU of compute capability 9.0, or by mma.sync of 8.x and 12.0 without
               float8, or on the CPU, where the product is computed in float64
    weight     (n, k), on x's device
    scale_x    of a float8 x: float32, one for each row, (..., 1) or (...), or one element; as `layoutgemm.quantize`
               makes them for RowWise and TensorWise
    bias       float32, bfloat16 or float16, (n,)
    activation relu, relu_sq, gelu, gelu_tanh, silu, sigmoid, tanh; or "swiglu" and "geglu": silu or gelu of the first
               n / 2 columns times the others, in float32. No kernel has both halves of a gate in a CTA: a second one
               reads the sums, or torch
    out_dtype  default x's, or bfloat16 of a float8 x
    config     of 9.0's kernel, of the transposed product, or `FeatureParts`; default the one estimated fastest
    epilogue   in place of bias and activation, any `kernels.epilogue.chain.Epilogue` of the product (rows, n), in the
               kernel: residuals, copies, reductions, ... x then is a matrix (rows, k). Behind a gate of (rows, n / 2),
               by torch on float32 sums, its first `sums` steps before the gate; not under torch.compile
    given      what the epilogue reads and writes, by name: numbers and tensors (see `torch_op.epilogue`)
               The operands have gradients as x does. A float8 x has none, nor have results of 8 bits
    out        where the product of a matrix x goes, of the result's shape and type; without gradients. With any of
               these three a call is checked each time

    Scales of groups multiply sums in float32 where the kernel is a streamed one (`StreamedPlan`): of up to 4 rows on
    9.0 and on the CPU, of up to 8 elsewhere. On 9.0 and on the CPU so do those of int4 in groups of 128, for up to 64
    rows. Else a weight of a group is rounded to x's type when it is multiplied. Sums are float32. With float8 the codes
    are multiplied, exactly; each group's sum, or each 128 of K, is multiplied by its scale and added in float32.
    Scales, bias and activation are applied before the one rounding. Works under torch.compile, FakeTensor, autocast and
    in CUDA graphs. x and bias have gradients, but for a float8 x.

    Raises OperandError, or TensorError for shapes, naming the operand.

    >>> from layoutgemm.kernels.quantized.formats import QuantizedFormat
    >>> weight = QuantizedWeight.quantize(torch.eye(3, 128), QuantizedFormat("int8"))
    >>> quantized_matmul(torch.arange(128.0).bfloat16(), weight, bias=torch.ones(3)).tolist()
    [1.0, 2.0, 3.0]
    >>> weight = QuantizedWeight.quantize(torch.eye(3, 128), QuantizedFormat("int4", 128), torch.float8_e4m3fn)
    >>> x = torch.ones(2, 128).to(torch.float8_e4m3fn)
    >>> quantized_matmul(x, weight, scale_x=torch.tensor([[1.0], [0.5]])).tolist()
    [[1.0, 1.0, 1.0], [0.5, 0.5, 0.5]]
    >>> both = QuantizedWeight.quantize(torch.eye(2, 128), QuantizedFormat("int8"))
    >>> round(quantized_matmul(torch.ones(1, 128).bfloat16(), both, activation="swiglu").item(), 3)
    0.73
    """
    if unknown:
        refuse_unknown(quantized_matmul, tuple(unknown))
    if epilogue is not None or given is not None or out is not None:
        return _own(x, weight, OwnEpilogue(epilogue, given, out), scale_x, bias, activation, out_dtype, config)
    key: Key = ()
    if (_is_traced() or _autocast()) and isinstance(x, torch.Tensor):
        x = cast(x, autocast_type(x))
    if _is_traced():
        register()  # Inductor is told of the operator before it meets it
    elif type(weight) is QuantizedWeight:
        options = weight.kind, activation, out_dtype, config
        key, found = find(x, weight.units, weight.scales, bias, options, scale_x)
        if found is not None:
            return found
    if gate_of(activation) is not None:
        return _gated(x, weight, scale_x, bias, str(activation), out_dtype, config)
    if scale_x is None and _derived_alone(x, weight, bias):
        return _recorded(x, weight, bias, activation, out_dtype, config)
    check_product(x, weight, config)
    check_kinds_of(bias=bias, scale_x=scale_x)
    rows = x.reshape(-1, weight.k)
    facts, text = facts_of(weight.format, weight.n, weight.k), packed_text(config)
    operands = rows, weight.units, weight.scales, bias
    factors = flat(scale_x, x)
    if not torch.compiler.is_compiling() and transforms() and x.dtype.itemsize > 1:
        value = derivable(*operands, activation, facts, out_dtype, text, factors)
    elif needs_dispatcher(*operands, factors):
        value = torch.ops.layoutgemm.quantized_matmul(*operands, activation, *facts, out_dtype, text, factors)
    else:
        call = checked_call(*operands, activation, facts, out_dtype, text, factors)
        copied = rows.data_ptr() != x.data_ptr() or (
            scale_x is not None and factors is not None and factors.data_ptr() != scale_x.data_ptr()
        )
        value = quantized_product(call, *operands, factors, None, () if copied else key, (*x.shape[:-1], weight.n))
    return value.reshape(*x.shape[:-1], weight.n)


@sees_unknown
def quantized_grouped_matmul(
    x: torch.Tensor,
    weights: QuantizedExperts,
    offsets: torch.Tensor | None = None,
    *,
    counts: torch.Tensor | None = None,
    expected_rows: int | None = None,
    scale_x: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    out_dtype: torch.dtype | None = None,
    config: Sm90Config | None = None,
    epilogue: Epilogue | None = None,
    given: Mapping[str, object] | None = None,
    out: torch.Tensor | None = None,
    **unknown: NoReturn,
) -> torch.Tensor:
    """activation(scale_x[g] * x[g] @ weights[e].T + bias[e]), g the rows of e.

    x          bfloat16 or float16, (rows, k), the type that `weights` are packed for; float8_e4m3fn or float8_e5m2 if
               that is float8_e4m3fn. With counts (experts, rows, k). On one GPU of compute capability 9.0, or by
               mma.sync of 8.x and 12.0 without float8, or on the CPU, where the products are computed in float64
    weights    of all experts, on x's device
    offsets    int32 or int64, (experts + 1,): group e is rows offsets[e] to offsets[e + 1]; from 0 to x's rows, none
               below the one before it. On a GPU their values are read by the kernel alone, and not checked
    counts     in place of offsets, int32 or int64 of experts: the rows of each group that count. Others are unspecified
               in the result, (experts, rows, n); tiles of them cost nothing. Of counts that are no groups a GPU takes
               the nearest
    expected_rows  that a masked group is taken to have, for which tiles are chosen; default as `grouped_matmul`
    scale_x    of a float8 x: float32, one for each row, (rows, 1) or (rows,), or one element
    bias       float32, bfloat16 or float16, (experts, n), or (n,) for all
    activation relu, relu_sq, gelu, gelu_tanh, silu, sigmoid, tanh; or "swiglu" and "geglu", as for `quantized_matmul`
    out_dtype  default x's, or bfloat16 of a float8 x
    config     the kernel's configuration, of the transposed product; default a tile as wide as two usual groups
    epilogue, given, out  as for `quantized_matmul`. Operands along n are (n,), or (experts, n): each group's own. Steps
               that read are in the kernel. torch computes all steps of an epilogue that writes or reduces, on float32
               sums: columns of groups are reduced to (experts, n)

    An empty group costs nothing. Works under torch.compile, FakeTensor, autocast and in CUDA graphs. x and bias have
    gradients, but for a float8 x; torch then adds the bias and computes the activation.

    Raises OperandError, or TensorError for shapes, naming the operand.

    >>> from layoutgemm.kernels.quantized.formats import QuantizedFormat
    >>> eye = QuantizedWeight.quantize(torch.eye(2, 128), QuantizedFormat("int8"))
    >>> two = QuantizedWeight.quantize(2 * torch.eye(2, 128), QuantizedFormat("int8"))
    >>> x, both = torch.ones(3, 128).bfloat16(), QuantizedExperts.of([eye, two])
    >>> quantized_grouped_matmul(x, both, torch.tensor([0, 1, 3]), bias=torch.tensor([[0.0, 1.0], [5.0, 0.0]])).tolist()
    [[1.0, 2.0], [7.0, 2.0], [7.0, 2.0]]
    >>> quantized_grouped_matmul(x, both, torch.tensor([0, 3, 3]), activation="swiglu").shape
    torch.Size([3, 1])
    >>> quantized_grouped_matmul(x.reshape(1, 3, 128).repeat(2, 1, 1), both, counts=torch.tensor([2, 0])).shape
    torch.Size([2, 3, 2])
    """
    if unknown:
        refuse_unknown(quantized_grouped_matmul, tuple(unknown))
    masked = counts is not None or expected_rows is not None
    if epilogue is not None or given is not None or out is not None:
        if masked:
            raise OperandError("counts: masked groups take a bias and an activation, no epilogue=, given= or out=")
        check_kinds_of(offsets=offsets)
        own = OwnEpilogue(epilogue, given, out)
        return _own(x, weights, own, scale_x, bias, activation, out_dtype, config, offsets)
    if isinstance(x, torch.Tensor):
        x = cast(x, autocast_type(x))
    check_experts(x, weights, counts if masked else offsets, config, COUNTS if masked else OFFSETS)
    expected = expected_of(x, weights.experts, offsets, counts, expected_rows) if masked else 0
    check_kinds_of(scale_x=scale_x, bias=bias)
    kind, gate = out_dtype, gate_of(activation)
    if gate is not None:
        check_halves(weights.n, gate)
        kind = torch.float32
    value: torch.Tensor = torch.ops.layoutgemm.quantized_grouped_matmul(
        x.flatten(0, 1) if masked else x, weights.units, weights.scales, counts if masked else offsets,
        None if gate is not None else activation, *facts_of(weights.format, weights.n, weights.k), kind,
        config_text(config), flat(scale_x, x), bias, expected,
    )  # fmt: skip
    if gate is not None:
        value = rounded(by_autograd(value, str(activation)), stored_as(x.dtype, out_dtype))
    return value.unflatten(0, x.shape[:2]) if masked else value


def _gated(
    x: torch.Tensor, weight: QuantizedWeight, scale_x: torch.Tensor | None, bias: torch.Tensor | None,
    activation: str, out_dtype: torch.dtype | None, config: PackedConfig | None,
) -> torch.Tensor:  # fmt: skip
    """The gate of the float32 product, rounded once."""
    check_product(x, weight, config)
    check_halves(weight.n, gate_of(activation))
    kind = stored_as(x.dtype, out_dtype)
    sums = quantized_matmul(x, weight, scale_x=scale_x, bias=bias, out_dtype=torch.float32, config=config)
    return rounded(by_autograd(sums, activation), kind)


def quantized_again(
    x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None, activation: str | None
) -> torch.Tensor | None:
    """The product by the last launch with these weights; None without one for such tensors."""
    return (
        None
        if _is_traced()
        else found_last(x, weight.units, weight.scales, bias, (weight.kind, activation, None, None))
    )


def _own(
    x: torch.Tensor, weight: QuantizedWeight | QuantizedExperts, own: OwnEpilogue, scale_x: torch.Tensor | None,
    bias: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype | None, config: PackedConfig | None,
    offsets: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product with an epilogue, or into a given tensor. `offsets`: of the groups that experts multiply."""
    gate, asked = gate_of(activation), (own, scale_x, bias, activation, out_dtype, config, offsets)
    plain = own.epilogue is None and own.given is None
    if plain and (bias is not None or activation is not None):
        own, bias, activation = _with_finish(own, weight, bias, activation), None, None
    beside = arguments_beside(bias, activation)
    if _is_traced():
        if gate is not None:
            refuse(
                "a gate of packed weights under torch.compile takes no epilogue= and no out=: give the product alone"
            )
        steps = Epilogue() if own.epilogue is None and own.given is None else own.epilogue
        return traced(x, weight, scale_x, steps, own.given, own.out, beside, out_dtype, config, offsets)
    if isinstance(x, torch.Tensor):
        x = cast(x, autocast_type(x))
    if offsets is None:
        check_product(x, weight, config)
    else:
        check_experts(x, weight, offsets, config)
    check_kinds_of(scale_x=scale_x, out=own.out)
    check_matrix(x)
    check_halves(weight.n, gate)
    if own.epilogue is not None or own.given is not None:
        if text := refusal_of_epilogue(own.epilogue, own.given, beside, gate is not None):
            raise OperandError(text)
    factors, facts = flat(scale_x, x), facts_of(weight.format, weight.n, weight.k)
    rest = facts, out_dtype, packed_text(config), factors
    if offsets is None:
        call = checked_call(x, weight.units, weight.scales, None, None, *rest)
    else:
        call = checked_experts(x, weight.units, weight.scales, offsets, None, *rest)
    if in_place_of_operand(own):
        check_operands({"x": x}, {"out": own.out})
        return copied(_own(x, weight, asked[0]._replace(out=None), *asked[1:]), own.out)
    made = checked_product(call, x, weight, factors, own, gate, offsets)
    tensors = *made.read.values(), *made.operands.written.values()
    sees, records = seen_and_recorded(tensors, own.out)
    if records:
        made.check_derivable()
    formula = PackedFormula(made, facts, packed_text(config))
    if plain and gate is not None:  # the sums are float32, as without `out`
        return copied(_plain_gate(x, weight, *asked[1:]), own.out)
    if made.is_formula:
        return copied(formula_alone(formula), own.out)
    if records:
        if derived_by_transform() or any(has_tangent(t) for t in tensors):
            return formula_alone(formula)
        if not sees:
            return recorded(formula)
    return copied(dispatched(made, facts, packed_text(config)), own.out) if sees else computed(made, own.out)


def _plain_gate(
    x: torch.Tensor, weight: QuantizedWeight | QuantizedExperts, scale_x: torch.Tensor | None,
    bias: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype | None, config: PackedConfig | None,
    offsets: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The gate of a checked product, without an epilogue."""
    if isinstance(weight, QuantizedWeight):
        return _gated(x, weight, scale_x, bias, str(activation), out_dtype, config)
    assert offsets is not None and (config is None or isinstance(config, Sm90Config))
    return quantized_grouped_matmul(
        x, weight, offsets, scale_x=scale_x, bias=bias, activation=activation, out_dtype=out_dtype, config=config
    )


def _with_finish(
    own: OwnEpilogue, weight: QuantizedWeight | QuantizedExperts, bias: torch.Tensor | None, activation: str | None
) -> OwnEpilogue:  # fmt: skip
    """A bias and an activation as steps."""
    check_kinds_of(bias=bias)
    check_bias(bias, weight.n, weight.experts if isinstance(weight, QuantizedExperts) else 0)
    check_activation(activation)
    steps: list[Step] = [] if bias is None else [Bias("n", C_NAMES[bias.dtype])]
    gated = gate_of(activation) is not None
    steps += [] if activation is None or gated else [Activation(activation)]
    made = Epilogue(*steps, sums=len(steps) if gated else 0)
    return own._replace(epilogue=made, given={} if bias is None else {"bias": bias})


def _derived_alone(x: object, weight: object, bias: object) -> bool:
    """True if autograd alone has to see the product of plain tensors."""
    if _is_traced() or not torch.is_grad_enabled() or type(weight) is not QuantizedWeight:
        return False
    given = [t for t in (x, weight.units, weight.scales, bias) if t is not None]
    if not all(isinstance(t, torch.Tensor) and type(t) in PLAIN and t.device.type != "meta" for t in given):
        return False
    own = weight.units, weight.scales
    return (
        seen_by_autograd_alone() and not torch.compiler.is_compiling()
        and any(t.requires_grad for t in (x, bias) if isinstance(t, torch.Tensor))
        and not any(t.requires_grad for t in own if t is not None)
        and not any(in_older_vmap(t) for t in given if isinstance(t, torch.Tensor))
        and isinstance(x, torch.Tensor) and x.dtype.itemsize > 1
    )  # fmt: skip


def _recorded(
    x: torch.Tensor, weight: QuantizedWeight, bias: torch.Tensor | None, activation: str | None,
    out_dtype: torch.dtype | None, config: PackedConfig | None,
) -> torch.Tensor:  # fmt: skip
    """The product as autograd records it in eager mode: a kept launch; torch adds the bias and the activation."""
    finishes, kind = bias is not None or activation is not None, out_dtype
    check_product(x, weight, config)
    facts = facts_of(weight.format, weight.n, weight.k)
    with torch.no_grad():
        if finishes:
            rows, text = x.reshape(-1, weight.k), packed_text(config)
            call = checked_call(rows, weight.units, weight.scales, bias, activation, facts, out_dtype, text, None)
            kind, out_dtype = call.kind, torch.float32
        value = quantized_matmul(x, weight, out_dtype=out_dtype, config=config)
    if x.requires_grad:
        value = recorded_product(x, weight.units, weight.scales, (value, facts))
    return by_torch(value, bias, activation, kind) if finishes else value
