"""torch.ops.layoutgemm.matmul, finished and gated. Torch's compiler, autograd and functorch see products as these.

An operator's parameters are those of its `..._call`; `torch.ops.layoutgemm.matmul.default._schema` prints them.

a and b have two dimensions or more. `config` is a configuration as `torch_op.prepared.config_text` writes it. The
derivatives are products too, through the same operator, so they have derivatives of their own:

    C = A @ B  -->  dA = dC @ B^T,  dB = A^T @ dC, summed over the dimensions along which A or B was stretched
                    dC = dA @ B + A @ dB in forward mode

A finished product is activation(a @ b + bias), rounded once. Its derivatives are those of a @ b, by way of the kept
result for relu, and the bias's is dC summed over all rows. Where they are recorded, the kernel computes bias and relu,
and torch the other activations in the result's type. Of a gated product, which has none, b = [gate | up] is (K, 2n),
and C = act(a @ gate) * (a @ up) has n columns.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch.autograd.function import FunctionCtx

from ..arguments import shown
from ..errors import OperandError
from ..kernels.run.operand_checks import check_operands
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm100.choose import Sm100Choice
from ..moved import old_names
from . import tuned_store as tuned
from .autograd.activation import behind_relu, by_autograd
from .autograd.products import check_derivable, gradients
from .bias_activation import GATES, by_torch, gate_by_torch
from .checks import (
    autocast_type,
    cast,
    check_activation,
    check_finish,
    check_gated_type,
    check_matrices,
    check_sizes,
    copied,
    derived_by_func,
    differentiated,
    differentiated_in_trace,
    fake_shape,
    output_type,
    sizes_later,
    transforms,
)
from .compiled.flops import count_flops
from .compiled.traced import schema_of
from .compute import finished_product, gated_product, product, wide_type
from .emulated_gpu import around
from .prepared import Config, config_text, of_derivatives
from .problem import half

__getattr__ = old_names(__name__)

NAME = "layoutgemm::matmul"


@functools.lru_cache(256)
def configured(text: str, kinds: tuple[type, ...] = (Sm90Choice, Sm100Choice)) -> Any:
    """The configuration that `prepared.config_text` wrote. Raises OperandError for a text of no such one."""
    if not text:
        return None
    try:
        found = tuned.any_choice_of(json.loads(text))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, kinds):
        raise OperandError(f"config {shown(text)} is no configuration")
    return found


class VmapInfo(Protocol):
    """The facts that a vmap rule gets."""

    batch_size: int


Places = Sequence[Any]  # of the mapped dimension, for each argument: a number, None, or a list of these for a list


def in_front(x: torch.Tensor, at: int | None, size: int) -> torch.Tensor:
    """The tensor with the mapped dimension in front. Stretched along it where it is not mapped."""
    return x.expand(size, *x.shape) if at is None else x.movedim(at, 0)


def slices_of(info: VmapInfo, in_dims: Places, arguments: Sequence[object]) -> list[list[object]]:
    """The arguments of each slice of a mapped call, those of its lists too. Views of the caller's tensors."""
    places = [*in_dims, *[None] * (len(arguments) - len(in_dims))]
    return [[_slice(x, at, i) for x, at in zip(arguments, places, strict=True)] for i in range(info.batch_size)]


def _slice(x: object, at: object, number: int) -> object:
    if isinstance(x, (list, tuple)) and isinstance(at, (list, tuple)):
        return [_slice(each, of, number) for each, of in zip(x, at, strict=True)]
    return x if at is None or not isinstance(x, torch.Tensor) else x.select(at, number)


def one_after_another(
    info: VmapInfo, in_dims: Places, arguments: Sequence[object], call: Callable[..., torch.Tensor]
) -> torch.Tensor:
    """A call for each slice along the mapped dimension, stacked. Groups differ from slice to slice."""
    return torch.stack([call(*each) for each in slices_of(info, in_dims, arguments)])


def aligned(in_dims: Sequence[int | None], *operands: torch.Tensor) -> list[torch.Tensor]:
    """The mapped dimension in front of all others. An operand that is not mapped is stretched along it."""
    moved = [x if at is None else x.movedim(at, 0) for x, at in zip(operands, in_dims)]
    ranks = [x.ndim - (at is not None) for x, at in zip(moved, in_dims)]
    out = []
    for x, at, rank in zip(moved, in_dims, ranks):
        missing = max(ranks) - rank
        out.append(x if at is None or not missing else x.reshape(x.shape[0], *(1,) * missing, *x.shape[1:]))
    return out


# ----------------------------------------------------------------------------------------------------------- operators


_library = torch.library.Library("layoutgemm", "FRAGMENT")


def with_autograd(name: str, recorded: Callable[..., torch.Tensor]) -> None:
    """Have an operator call `recorded` where a derivative by one of its tensors is recorded.

    By torch.library's register_autograd an operator has gradients, and loses tangents in silence.
    """
    below = torch._C._after_autograd_keyset
    operator = getattr(torch.ops.layoutgemm, name).default
    names = [argument.name for argument in operator._schema.arguments]

    def run(keys: object, *operands: object) -> Any:
        if differentiated(*_tensors(operands)):
            with around():
                return recorded(*operands)
        with torch._C._AutoDispatchBelowAutograd():
            return operator.redispatch(keys & below, *operands)

    for device in ("CUDA", "CPU", "Meta"):
        _library.impl(name, run, f"Autograd{device}", with_keyset=True)

    def refuse(*operands: object) -> None:
        check_operands({at: x for at, x in zip(names, operands) if isinstance(x, torch.Tensor)})

    _library.impl(name, refuse, "AutogradNestedTensor")  # nested tensors would say NotImplementedError


def operator_of(
    name: str, call: Callable[..., Sequence[object]], computed: Callable[..., object], empty: Callable[..., object],
    recorded: Callable[..., torch.Tensor] | None = None, mapped: Callable[..., tuple[object, object]] | None = None,
    mutates: Sequence[str] = (), returns: object = torch.Tensor, autocast: bool = False, function: str = "matmul",
) -> None:  # fmt: skip
    """Define the operator `layoutgemm::name` of the calls that `call` makes and checks.

    call      the operator's parameters, with the types of its schema -> what the three below take
    computed  the result now; `empty`: a result without values, for compilers
    recorded  the result where a derivative is recorded, if torch.func takes none; None: `with_autograd` says it later
    mapped    the rule of torch.func.vmap; None: one product after another, stacked
    mutates, returns  the lists of tensors that are written to, and the type of the result
    autocast  whether a and b take the type of an autocast region
    function  of layoutgemm, whose derivatives torch.func takes
    """

    def kernel(*arguments: object) -> object:
        with around():
            return computed(*call(*arguments))

    def derived(*arguments: object) -> torch.Tensor:
        assert recorded is not None
        refuse_under_functorch(name, function)
        return recorded(*call(*arguments))

    def of_slices(info: VmapInfo, in_dims: Places, *arguments: object) -> tuple[torch.Tensor, int]:
        return one_after_another(info, in_dims, arguments, getattr(torch.ops.layoutgemm, name)), 0

    schema = schema_of(call, mutates, returns)
    made = torch.library.custom_op(f"layoutgemm::{name}", kernel, mutates_args=tuple(mutates), schema=schema)
    made.register_fake(lambda *arguments: empty(*call(*arguments)))
    made.register_vmap(of_slices if mapped is None else mapped)
    if recorded is not None:
        with_autograd(name, derived)
    if autocast:
        _with_autocast(name)
    count_flops(name)


def _tensors(operands: Sequence[object]) -> list[torch.Tensor]:
    """The tensors of an operator's arguments, those of its lists too."""
    flat = [x for each in operands for x in (each if isinstance(each, (list, tuple)) else (each,))]
    return [x for x in flat if isinstance(x, torch.Tensor)]


def refuse_under_functorch(name: str, function: str = "matmul") -> None:
    """Raise OperandError where torch.func differentiates an operator by name; `function` of layoutgemm may be."""
    if derived_by_func():
        raise OperandError(
            f"torch.ops.layoutgemm.{name} is differentiated by torch.func, which takes no operator's derivative: "
            f"layoutgemm.{function} has it, outside of torch.compile"
        )


def _cast(x: object, to: torch.dtype | None) -> object:
    """A tensor, or those of a list, in the type of an autocast region."""
    if isinstance(x, (list, tuple)):
        return [_cast(each, to) for each in x]
    return cast(x, to) if isinstance(x, torch.Tensor) else x


def _with_autocast(name: str) -> None:
    """Let an operator take a and b in the type of an autocast region.

    They are tensors, or lists of them.

    torch.matmul does the same. The functions of layoutgemm have cast already where they were called; this is for
    operators called by name.
    """

    def under(key: torch._C.DispatchKey) -> Any:
        def run(a: object, b: object, *others: object) -> object:
            to = autocast_type(_tensors([a])[0])
            a, b = (_cast(x, to) for x in (a, b))
            with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(key)):
                return getattr(torch.ops.layoutgemm, name)(a, b, *others)

        return run

    for device in ("CUDA", "CPU"):
        _library.impl(name, under(getattr(torch._C.DispatchKey, f"Autocast{device}")), f"Autocast{device}")


# ------------------------------------------------------------------------------------------------------------- product


def _call(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, config: str = "",
    allow_tf32: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.dtype, Config | None]:  # fmt: skip
    check_operands({"a": a, "b": b})
    check_matrices(a, b, allow_tf32)
    return a, b, output_type(a, b, out_dtype), configured(config)


operator_of(
    "matmul",
    _call,
    product,
    lambda a, b, kind, _: a.new_empty(fake_shape(a, b), dtype=kind),
    mapped=lambda info, in_dims, a, b, *others: (torch.ops.layoutgemm.matmul(*aligned(in_dims, a, b), *others), 0),
    autocast=True,
)


# ---------------------------------------------------------------------------------------------------- finished products


Finished = tuple[torch.Tensor, torch.Tensor, "torch.Tensor | None", "str | None", torch.dtype, object]


def _finished_call(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype,
    config: str = "", allow_tf32: bool | None = None,
) -> Finished:  # fmt: skip
    check_operands({"a": a, "b": b} if bias is None else {"a": a, "b": b, "bias": bias})
    check_matrices(a, b, allow_tf32)
    check_activation(activation)
    if activation in GATES:
        raise OperandError(f"activation {shown(activation)}: torch.ops.layoutgemm.gated has it")
    kind = output_type(a, b, out_dtype)
    check_finish(bias, activation, fake_shape(a, b), kind)
    return a, b, bias, activation, kind, configured(config)


class _Product(torch.autograd.Function):
    """activation(a @ b + bias) with its derivatives. They are for autograd and forward mode, and for torch.func's
    transforms.

    activation  relu, or None
    """

    @staticmethod
    def forward(
        a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
        out_dtype: torch.dtype | None, config: str, allow_tf32: bool | None,
    ) -> torch.Tensor:  # fmt: skip
        return _operated(a, b, bias, activation, out_dtype, config, allow_tf32)

    @staticmethod
    def setup_context(ctx: FunctionCtx, inputs: Sequence[Any], output: torch.Tensor) -> None:
        a, b, bias, activation, *_ = inputs
        rectified = None if activation is None else output
        ctx.save_for_backward(a, b, rectified)
        ctx.save_for_forward(a, b, rectified)
        ctx.set_materialize_grads(False)  # a tangent of None spares its product
        ctx.kind, ctx.kind_of_bias = output.dtype, None if bias is None else bias.dtype
        ctx.config = config_text(of_derivatives(configured(inputs[5])))

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        a, b, rectified = ctx.saved_tensors
        of_bias = None
        if grad is not None:
            grad = grad if rectified is None else behind_relu(grad, rectified)
            if ctx.needs_input_grad[2]:
                of_bias = bias_gradient(grad, ctx.kind_of_bias)
        times = functools.partial(differentiable, config=ctx.config)
        return (*gradients(a, b, ctx.needs_input_grad[:2], grad, times), of_bias, None, None, None, None)

    @staticmethod
    def jvp(
        ctx: FunctionCtx, da: torch.Tensor | None, db: torch.Tensor | None, dbias: torch.Tensor | None, *others: None
    ) -> torch.Tensor | None:
        a, b, rectified = ctx.saved_tensors
        check_derivable(a)
        pairs = [pair for pair in ((da, b), (a, db)) if None not in pair]
        if not pairs and dbias is None:
            return None
        wide = ctx.kind if len(pairs) == 1 and dbias is None else torch.float32
        terms = [differentiable(x, y, wide, ctx.config) for x, y in pairs]
        if dbias is not None:
            terms.append(dbias.float() if terms else dbias.float().expand(fake_shape(a, b)))
        value = sum(terms[1:], terms[0]).to(ctx.kind)
        return value if rectified is None else behind_relu(value, rectified)

    @staticmethod
    def vmap(
        info: object, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None,
        activation: str | None, out_dtype: torch.dtype | None, config: str, allow_tf32: bool | None,
    ) -> tuple[torch.Tensor, int]:  # fmt: skip
        x, y = aligned(in_dims, a, b)
        if bias is None or in_dims[2] is None:
            return finishing(x, y, bias, activation, out_dtype, config, allow_tf32), 0
        value = differentiable(x, y, wide_type(a.dtype), config, allow_tf32)
        return by_torch(value, _lines(bias, in_dims, value), activation, out_dtype), 0


def bias_gradient(grad: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """The gradient of a bias of that type. The result's, summed over all rows, in float32 if the types differ."""
    lines = 0 if grad.ndim == 2 else tuple(range(grad.ndim - 1))  # a number is read faster than a tuple
    return grad.sum(lines) if grad.dtype == kind else grad.sum(lines, dtype=torch.float32).to(kind)


def _operated(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype | None,
    config: str, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The operator `finished`, or `matmul` where nothing follows the product."""
    if bias is None and activation is None:
        return torch.ops.layoutgemm.matmul(a, b, kind, config, allow_tf32)
    return torch.ops.layoutgemm.finished(a, b, bias, activation, kind, config, allow_tf32)


def finishing(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None,
    kind: torch.dtype | None, config: str = "", allow_tf32: bool | None = True,
) -> torch.Tensor:  # fmt: skip
    """The operator, with its derivatives for autograd, forward mode and functorch.

    float32 has been allowed, or is the derivative of a product that was.
    """
    if not torch.compiler.is_compiling() and derived_by_func():
        return _Product.apply(a, b, bias, activation, kind, config, allow_tf32)
    return _operated(a, b, bias, activation, kind, config, allow_tf32)


def differentiable(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, config: str = "",
    allow_tf32: bool | None = True,
) -> torch.Tensor:  # fmt: skip
    """`finishing` of the product alone."""
    return finishing(a, b, None, None, out_dtype, config, allow_tf32)


def _recorded(
    a: torch.Tensor, b: torch.Tensor, out_dtype: torch.dtype | None = None, config: str = "",
    allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    refuse_under_functorch("matmul")
    return _Product.apply(a, b, None, None, out_dtype, config, allow_tf32)


with_autograd("matmul", _recorded)


def _finished_recorded(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype,
    config: str = "", allow_tf32: bool | None = None,
) -> torch.Tensor:  # fmt: skip
    refuse_under_functorch("finished")
    if activation is None or activation == "relu":
        return _Product.apply(a, b, bias, activation, out_dtype, config, allow_tf32)
    value = torch.ops.layoutgemm.finished(a, b, bias, None, out_dtype, config, allow_tf32)
    return by_autograd(value, activation)


def _finished_mapped(
    info: object, in_dims: tuple[int | None, ...], a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None,
    activation: str | None, out_dtype: torch.dtype, config: str = "", allow_tf32: bool | None = None,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    x, y = aligned(in_dims, a, b)
    if bias is None or in_dims[2] is None:
        return torch.ops.layoutgemm.finished(x, y, bias, activation, out_dtype, config, allow_tf32), 0
    value = torch.ops.layoutgemm.matmul(x, y, wide_type(a.dtype), config, allow_tf32)
    return by_torch(value, _lines(bias, in_dims, value), activation, out_dtype), 0


operator_of(
    "finished",
    _finished_call,
    finished_product,
    lambda a, b, bias, activation, kind, _: a.new_empty(fake_shape(a, b), dtype=kind),
    mapped=_finished_mapped,
)
with_autograd("finished", _finished_recorded)


def _lines(bias: torch.Tensor, in_dims: Sequence[int | None], value: torch.Tensor) -> torch.Tensor:
    """A mapped bias, to be added to the products of all slices."""
    lines = bias.movedim(in_dims[2] or 0, 0)
    inner = value.ndim - (tuple(in_dims[:2]) != (None, None))  # of one slice's product
    return lines.reshape(lines.shape[0], *(1,) * (inner - 1), lines.shape[1])


# ------------------------------------------------------------------------------------------------------- gated products


def _gated_call(
    a: torch.Tensor, b: torch.Tensor, activation: str, out_dtype: torch.dtype, config: str = "",
    allow_tf32: bool | None = None,
) -> tuple[torch.Tensor, torch.Tensor, None, str, torch.dtype, Config | None]:  # fmt: skip
    check_operands({"a": a, "b": b})
    check_matrices(a, b, allow_tf32)
    if activation not in GATES:
        raise OperandError(f"activation {shown(activation)}: of gated products known are {', '.join(map(repr, GATES))}")
    kind = output_type(a, b, out_dtype)
    check_gated_type(kind)
    return a, b, None, activation, kind, configured(config)


def _gated_empty(a: torch.Tensor, b: torch.Tensor, bias: None, activation: str, kind: torch.dtype, _: object) -> object:
    *front, n = fake_shape(a, b)
    return a.new_empty((*front, half(b.ndim, n)), dtype=kind)


def _underived(a: torch.Tensor, b: torch.Tensor, *others: object) -> torch.Tensor:
    raise OperandError("torch.ops.layoutgemm.gated has no derivative; matmul(a, b, activation=) has")


operator_of(
    "gated",
    _gated_call,
    gated_product,
    _gated_empty,
    mapped=lambda info, in_dims, a, b, *others: (torch.ops.layoutgemm.gated(*aligned(in_dims, a, b), *others), 0),
)
with_autograd("gated", _underived)


def gated_operator(a: torch.Tensor, b: torch.Tensor, activation: str, kind: torch.dtype, config: str) -> torch.Tensor:
    """The operator on an a of any rank, of operands that have been checked."""
    value = torch.ops.layoutgemm.gated(a.unsqueeze(0) if a.ndim == 1 else a, b, activation, kind, config, True)
    return value.squeeze(-2) if a.ndim == 1 else value


def finished_operator(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype, config: str
) -> torch.Tensor:
    """The operator on an a of any rank, of operands that have been checked."""
    rows = a.unsqueeze(0) if a.ndim == 1 else a
    value = finishing(rows, b, bias, activation, kind, config)
    return value.squeeze(-2) if a.ndim == 1 else value


# ------------------------------------------------------------------------------------------------------ calls of matmul


def recorded_product(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    kind: torch.dtype, config: Config | None,
) -> torch.Tensor:  # fmt: skip
    """The product that torch's dispatcher sees, and torch's own operators for what follows it."""
    gated, recorded = activation in GATES, differentiated(a, b, bias) or differentiated_in_trace(a, b, bias)
    finishes = bias is not None or activation is not None
    # Operators without derivatives: one kernel, where nothing is recorded and no transform maps their operands.
    alone = not recorded and (torch.compiler.is_compiling() or not transforms())
    fused = gated and bias is None and alone
    finish: Callable[[torch.Tensor], torch.Tensor] | None = None
    if fused:
        value = gated_operator(a, b, str(activation), kind, config_text(config))
    elif finishes and b.ndim > 1 and recorded and kind.is_floating_point and kind.itemsize > 1:
        # As in eager mode: bias and relu in the kernel, rounded once, then torch's operators in the result's type.
        own = activation if activation == "relu" else None
        if bias is None and own is None:
            value = dispatched(a, b, kind, config)
        else:
            value = finished_operator(a, b, bias, own, kind, config_text(config))
        if activation != own:
            finish = functools.partial(by_autograd, activation=str(activation))
    elif finishes and not gated and alone and b.ndim > 1:
        value = finished_operator(a, b, bias, activation, kind, config_text(config))
    else:
        wide = torch.float32 if gated else wide_type(a.dtype)
        if recorded and kind.itemsize == 2:
            wide = kind  # what is recorded is half as large
        value = dispatched(a, b, wide if finishes else kind, config)
        if gated:
            finish = functools.partial(gate_by_torch, bias=bias, activation=str(activation), kind=kind)
        elif finishes:
            finish = functools.partial(by_torch, bias=bias, activation=activation, kind=kind)
    if sizes_later() and not torch.compiler.is_dynamo_compiling():
        *front, n = value.shape or (1,)
        check_sizes(a, b, out, bias, activation, kind, (*front, 2 * n) if fused else tuple(value.shape))
    value = value if finish is None else finish(value)
    return copied(value, out)


def dispatched(a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None) -> torch.Tensor:
    """The operator `matmul` on operands of any rank, by the way that has derivatives."""
    value = differentiable(
        a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b, kind, config_text(config)
    )
    if b.ndim == 1:
        value = value.squeeze(-1)
    return value.squeeze(-1 if b.ndim == 1 else -2) if a.ndim == 1 else value
