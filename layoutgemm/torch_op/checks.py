"""Refusals of matmul, in torch's words, and the need for its dispatcher.

Kind, layout, device and memory of tensors are checked before, by `kernels.run.operand_checks`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as _forward

from ..arguments import as_bool, nearest, shown
from ..dtypes import dtype, multiply_together, way_to_alike
from ..errors import OperandError, TensorError
from ..graph_marks import constant_in_graphs
from ..kernels.epilogue.parameters import host_number
from ..kernels.epilogue.steps import other_name
from ..kernels.run.operand_checks import check_operands
from .bias_activation import ACTIVATIONS, GATES
from .compiled import c_calls
from .problem import C_TYPES, broadcast, half, shapes_of
from .types import C_NAMES, NAMES, READ, TYPES, WHOLE, Scalar, listed, usual_type

# Types that an instruction multiplies: a set, which a compiler of Python looks into.
_PAIRS = frozenset([(a, b) for a in NAMES for b in NAMES if multiply_together(dtype(NAMES[a]), dtype(NAMES[b]))])
PLAIN = frozenset({torch.Tensor, torch.nn.Parameter})
DEVICES = ("cuda", "cpu", "meta")  # of tensors that are multiplied
NOT_RECORDED = (
    "functions with out=... arguments don't support automatic differentiation, but one of the arguments requires grad, "
    "or has a tangent"
)
# Cheap checks whether autograd, a mode or a transform must see this call: each a call into C of some ten nanoseconds.
modes_of_functions, modes_of_dispatch = c_calls.modes_of_functions, c_calls.modes_of_dispatch
transforms = torch._C._are_functorch_transforms_active
tracing_state = torch._C._get_tracing_state
in_older_vmap = torch._C._functorch.is_legacy_batchedtensor  # of is_grads_batched=True: no transform of torch.func


def seen_and_recorded(tensors: Sequence[torch.Tensor], out: torch.Tensor | None) -> tuple[bool, bool]:
    """(torch's dispatcher has to see a product of the tensors, its derivative is recorded).

    Raises TensorError for a derivative that an `out` would be part of.
    """
    records = differentiated(*tensors)
    if out is not None and (records or differentiated(out)):
        raise TensorError(NOT_RECORDED)
    return seen(*tensors, out), records


def check_written(written: Mapping[str, torch.Tensor]) -> None:
    """Raise TensorError, naming it, for a tensor in whose place autograd keeps no other. Torch refuses it later."""
    for name, x in written.items():
        if x.requires_grad and x.is_leaf and torch.is_grad_enabled():
            raise TensorError(f"{name} is a leaf that requires grad, and the epilogue writes to it: give its detach()")


# ---------------------------------------------------------------------------------------------------------- whole calls


def check_call(
    a: torch.Tensor, b: torch.Tensor, activation: object, out_dtype: object, allow_tf32: bool | None
) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
    """The operands of `matmul` as autocast has them, and the output's type. Sizes are `check_sizes`' business.

    Raises OperandError or TensorError for a call of dense tensors that no kernel computes.
    """
    a, b = autocast(a, b)
    check_types(a, b, allow_tf32)
    kind = output_type(a, b, out_dtype)
    check_activation(activation)
    return a, b, kind


def check_sizes(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    kind: torch.dtype, shape: Sequence[int],
) -> None:  # fmt: skip
    """Raise unless bias, activation and output fit a product of that shape, before any gate."""
    if activation in GATES:
        check_gated_type(kind)
        columns = half(b.ndim, shape[-1] if b.ndim > 1 else 1)
        check_finish(bias, None, shape, kind)
        shape = (*shape[:-1], columns)
    else:
        check_finish(bias, activation, shape, kind)
    if out is not None:
        check_out(out, shape, kind, {"a": a, "b": b, "bias": bias})


def check_gemm(
    alpha: Scalar, a: torch.Tensor, b: torch.Tensor, beta: Scalar, c: torch.Tensor | None, allow_tf32: bool | None
) -> tuple[Scalar, torch.Tensor, torch.Tensor, Scalar, torch.Tensor | None, torch.dtype]:
    """The operands of `gemm` as they are computed with, and the output's type.

    Those are alpha, a, b, beta, and c or None where it is not read.

    Raises as `check_call`, and OperandError for a beta without a c.
    """
    number = isinstance(beta, (int, float)) and not isinstance(beta, bool)
    if c is None and not (number and beta == 0):
        raise OperandError(f"beta = {shown(beta)} needs a c to scale")
    a, b = autocast(a, b)
    check_types(a, b, allow_tf32)
    try:
        kind = usual_type(a.dtype) if c is None else output_type(a, b, c.dtype)
    except OperandError as error:
        raise OperandError(f"c, as which the result is stored: {error}") from None
    c = None if number and beta == 0 else c
    alpha, beta = scalars_of(alpha, beta, kind, a)
    return alpha, a, b, beta, c, kind


def check_gemm_sizes(
    alpha: Scalar, a: torch.Tensor, b: torch.Tensor, beta: Scalar, c: torch.Tensor | None, out: torch.Tensor | None,
    kind: torch.dtype, shape: tuple[int, ...],
) -> None:  # fmt: skip
    """Raise unless c broadcasts to the product's shape, and the output can take it."""
    if c is not None and shape != broadcast(c.shape, shape):
        raise TensorError(f"c of shape {list(c.shape)} does not broadcast to the product's {list(shape)}")
    if out is not None:
        scales = [x for x in (alpha, beta) if isinstance(x, torch.Tensor)]
        check_out(out, shape, kind, {"a": a, "b": b, "c": c}, scales)


# ------------------------------------------------------------------------------------------------------------- operands


def check_types(a: torch.Tensor, b: torch.Tensor, allow_tf32: bool | None) -> None:
    """Raise TensorError or OperandError unless a kernel multiplies the types of two dense tensors."""
    check_device(a)
    check_alike(a, b)
    if a.dtype not in NAMES:
        raise OperandError(
            f"a and b are {a.dtype}; this library multiplies {listed(NAMES)}. torch.matmul takes {a.dtype}"
        )
    asked = allow_tf32 is not None or a.dtype == torch.float32
    if asked and not tf32_allowed(allow_tf32) and a.dtype == torch.float32:
        raise OperandError(
            "a and b are float32, and the tensor cores would round them to tf32 (11 bits of significand): say "
            "allow_tf32=True, set torch.backends.cuda.matmul.allow_tf32 = True, convert them to bfloat16 or float16, "
            "or use torch.matmul"
        )


def check_alike(a: torch.Tensor, b: torch.Tensor) -> None:
    """Raise TensorError, with the way out, unless an instruction multiplies the two types."""
    if a.dtype == b.dtype or (a.dtype, b.dtype) in _PAIRS:
        return
    off = [name for name, x in (("a", a), ("b", b)) if x.dtype not in NAMES]
    way = f"convert {' and '.join(off)} to a type of the library's, {listed(NAMES)}"
    if a.dtype in NAMES and b.dtype in NAMES:
        kinds = dtype(NAMES[a.dtype]), dtype(NAMES[b.dtype])
        way = way_to_alike(*kinds, (str(a.dtype), str(b.dtype)), str(torch.bfloat16))
    raise TensorError(f"expected a and b to have the same dtype, but got: {a.dtype} != {b.dtype}; {way}")


def check_matrices(a: torch.Tensor, b: torch.Tensor, allow_tf32: bool | None) -> None:
    """Raise TensorError or OperandError unless a kernel multiplies two matrices, or batches of them."""
    check_types(a, b, allow_tf32)
    for name, x in (("a", a), ("b", b)):
        if x.ndim < 2:
            raise TensorError(f"{name} has shape {list(x.shape)}: the operator takes matrices, and batches of them")


def product_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[int, ...]:
    """The shape of torch.matmul(a, b), where sizes may be symbols. Raises TensorError in torch's words."""
    if all(isinstance(n, int) for n in (*a.shape, *b.shape)):
        return shapes_of(a.shape, b.shape).result
    left, right = (a.unsqueeze(0) if a.ndim == 1 else a), (b.unsqueeze(1) if b.ndim == 1 else b)
    *batch, m, n = fake_shape(left, right)
    return (*batch, *[m] * (a.ndim > 1), *[n] * (b.ndim > 1))


def fake_shape(a: torch.Tensor, b: torch.Tensor) -> tuple[Any, ...]:
    """The shape of a product of matrices where sizes may be symbols. Raises TensorError in torch's words."""
    torch._check_with(
        TensorError,
        a.shape[-1] == b.shape[-2],
        lambda: (
            f"mat1 and mat2 shapes cannot be multiplied ({a.shape[-2]}x{a.shape[-1]} and {b.shape[-2]}x{b.shape[-1]})"
        ),
    )
    try:
        batch = torch.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except RuntimeError as error:
        raise TensorError(str(error)) from None
    return (*batch, a.shape[-2], b.shape[-1])


def check_device(a: torch.Tensor) -> None:
    """Raise OperandError for a device that this library does not run on."""
    if a.device.type not in DEVICES:
        raise OperandError(f"a is on {a.device}; this library runs on CUDA GPUs, and on the CPU as their reference")


def tf32_allowed(allow: object) -> bool:
    """True if float32 may be rounded to tf32. As the caller says, or as torch is set.

    Raises OperandError for anything but True, False and None.
    """
    return _torch_allows_tf32() if allow is None else as_bool(allow, "allow_tf32", OperandError)


@constant_in_graphs
def _torch_allows_tf32() -> bool:
    # fp32_precision came with torch 2.9; once it is used, reading allow_tf32 raises
    precision = getattr(torch.backends.cuda.matmul, "fp32_precision", None)
    return bool(torch.backends.cuda.matmul.allow_tf32) if precision is None else precision == "tf32"


def output_type(a: torch.Tensor, b: torch.Tensor, asked: object) -> torch.dtype:
    """The type of the product. Raises OperandError for one that the kernels do not store.

    >>> x = torch.ones(2, 2, dtype=torch.int8)
    >>> output_type(x, x, None)
    torch.int32
    """
    return stored_as(a.dtype, asked)


def stored_as(multiplied: torch.dtype, asked: object, said: torch.dtype | None = None) -> torch.dtype:
    """The type of a product of that type. Raises OperandError for one that the kernels do not store.

    said  the type that the error names, of a product that is stored likewise
    """
    possible = C_TYPES[NAMES[multiplied]]
    if asked is None:
        return usual_type(multiplied)
    if not isinstance(asked, torch.dtype) or C_NAMES.get(asked) not in possible:
        known = listed(TYPES[name] for name in possible)
        raise OperandError(f"out_dtype {asked}: a product of {said or multiplied} is stored as {known}")
    return asked


def check_out(
    out: torch.Tensor, shape: Sequence[int], kind: torch.dtype, read: Mapping[str, torch.Tensor | None],
    scales: Sequence[torch.Tensor] = (),
) -> None:  # fmt: skip
    """Raise unless `out` has the product's shape and type, and no derivative is recorded.

    scales  alpha and beta where they are tensors

    Its device and memory are `check_operands`' business.
    """
    operands = {name: x for name, x in read.items() if x is not None}
    if tuple(out.shape) != tuple(shape):
        raise TensorError(f"out has shape {list(out.shape)}, the product {list(shape)}: it is not resized")
    if out.dtype != kind:
        raise TensorError(f"Expected out tensor to have dtype {kind}, but got {out.dtype} instead; out_dtype chooses")
    for name, x in {**operands, "out": out}.items():
        if differentiated(x):
            raise TensorError(f"{NOT_RECORDED}: {name}")
    if differentiated(*scales):
        raise TensorError(NOT_RECORDED)


def differentiated(*tensors: torch.Tensor | None) -> bool:
    """True if a derivative by a tensor is recorded. A gradient, or a tangent in forward mode."""
    given = [x for x in tensors if x is not None]
    return (torch.is_grad_enabled() and any(x.requires_grad for x in given)) or any(has_tangent(x) for x in given)


def differentiated_in_trace(*tensors: torch.Tensor | None) -> bool:
    """True if torch.jit.trace sees a tensor with a gradient. It traces a second time, without recording, to compare."""
    traced = not torch.compiler.is_compiling() and tracing_state() is not None
    return traced and any(x is not None and x.requires_grad for x in tensors)


def has_tangent(x: torch.Tensor) -> bool:
    """True if forward mode is on, and the tensor carries a tangent."""
    if torch.compiler.is_dynamo_compiling() or _forward._current_level < 0 or not torch._C._is_fwd_grad_enabled():
        return False
    while torch._C._functorch.is_batchedtensor(x):  # of which torch unpacks none
        x = torch._C._functorch.get_unwrapped(x)
    return _forward.unpack_dual(x).tangent is not None


def autocast_type(x: torch.Tensor) -> torch.dtype | None:
    """The type that the autocast region of a tensor's device casts to. None outside of a region."""
    kind = x.device.type
    inside = kind in ("cuda", "cpu") and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if inside else None


def autocast(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Floats of 16 and 32 bits in the type of their autocast region. All others stay as they are."""
    to = autocast_type(a)
    return (a, b) if to is None else (cast(a, to), cast(b, to))


def cast(x: torch.Tensor, to: torch.dtype | None) -> torch.Tensor:
    """A float of 16 or 32 bits in an `autocast_type`. Another tensor, and outside of a region, as it is."""
    return x if to is None or x.dtype not in (torch.float32, torch.bfloat16, torch.float16) else x.to(to)


def check_input(x: torch.Tensor, features: int) -> None:
    """Raise OperandError for a module's input that is no dense tensor, TensorError for other features."""
    if not torch.compiler.is_compiling():
        if isinstance(x, torch.fx.Proxy):
            raise OperandError("x is a torch.fx.Proxy: make the module a leaf of the Tracer, or use torch.export")
        check_operands({"x": x})
    if x.ndim == 0 or x.shape[-1] != features:
        raise TensorError(f"x has shape {list(x.shape)}: (..., {features}), the module's in_features")


def sizes_later() -> bool:
    """True if a trace would keep comparisons of sizes. They are checked on the product instead."""
    return torch.compiler.is_compiling() or tracing_state() is not None


def needs_dispatcher(*tensors: torch.Tensor | None) -> bool:
    """True if torch's dispatcher has to see the product: recorded, transformed, traced or faked."""
    return seen(*tensors) or differentiated(*tensors)


def seen(*tensors: torch.Tensor | None) -> bool:
    """The same but for gradients that autograd records. No region without them: torch.export keeps an empty one.

    So it has to for zeros without memory, which forward derivatives have: it gives them some.
    """
    given = [x for x in tensors if x is not None]
    return bool(
        torch.compiler.is_compiling()
        or any(type(x) not in PLAIN or x.device.type == "meta" or in_older_vmap(x) or x._is_zerotensor() for x in given)
        or any(has_tangent(x) for x in given)
        or modes_of_functions()
        or modes_of_dispatch()
        or transforms()
        or tracing_state() is not None
    )


def derived_by_func() -> bool:
    """True if the innermost transform of torch.func derives or maps, as `functionalize` does not."""
    top = torch._C._functorch.peek_interpreter_stack()
    return top is not None and top.key() != torch._C._functorch.TransformType.Functionalize


def derived_by_transform() -> bool:
    """True if one of torch.func's transforms derives: it takes no operator's derivative."""
    kinds = torch._C._functorch.TransformType
    stack = torch._C._functorch.get_interpreter_stack() or ()
    return any(each.key() in (kinds.Grad, kinds.Jvp) for each in stack)


def refuse_traces(said: str) -> None:
    """Raise OperandError under torch.jit.trace, which sees no launch that is not an operator's.

    said   the argument that asks for the launch
    """
    if tracing_state() is not None:
        raise OperandError(f"{said} is a launch of its own, not under torch.jit.trace: call it beside what is traced")


def refuse_jit(module: str) -> None:
    """Raise OperandError, naming a module, under torch.jit.trace, which has no views of float8."""
    if not torch.compiler.is_compiling() and tracing_state() is not None:
        raise OperandError(f"{module} under torch.jit.trace: torch.export takes it")


def copied(value: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    """The value, in `out` if there is one. Raises OperandError for an `out` that vmap does not map as the value."""
    if out is None:
        return value
    if not torch.compiler.is_compiling() and _level(value) > _level(out):
        raise OperandError(
            "out is one tensor for all that torch.func.vmap maps: map it too, as in vmap(f, in_dims=(0, 0))(x, out), "
            "or leave it out"
        )
    return out.copy_(value)


def _level(x: torch.Tensor) -> int:
    """The innermost vmap that maps a tensor; -1 without one."""
    return torch._C._functorch.maybe_get_level(x) if torch._C._functorch.is_batchedtensor(x) else -1


def seen_by_autograd_alone() -> bool:
    """True without modes, transforms, forward mode, autocast and traces."""
    return (
        not (modes_of_functions() or modes_of_dispatch() or torch._C._is_any_autocast_enabled() or transforms())
        and _forward._current_level < 0
        and tracing_state() is None
    )


def launched_alone(tensors: Sequence[torch.Tensor]) -> int | None:
    """The device of tensors whose call is a launch and no more. None where torch has to see it.

    They are plain, dense, in memory and of one device, and no derivative is recorded. -1 is the CPU.

    >>> x = torch.ones(2)
    >>> launched_alone([x, x[:1]]), launched_alone([x, torch.ones(2, requires_grad=True)])
    (-1, None)
    """
    if any(type(x) not in PLAIN for x in tensors) or not seen_by_autograd_alone():
        return None
    index, recording = tensors[0].get_device(), torch.is_grad_enabled()
    for x in tensors:
        other = x.get_device() != index or x.layout is not torch.strided
        if other or x.is_neg() or x._is_zerotensor() or (recording and x.requires_grad):
            return None
    return index


def refuse_derivatives(tensors: Mapping[str, object], way_out: str) -> None:
    """Raise TensorError, naming the tensor, where the derivative of one is recorded."""
    for name, x in tensors.items():
        if isinstance(x, torch.Tensor) and differentiated(x):
            if has_tangent(x):
                raise TensorError(f"{name} has a tangent, and this product has none: give unpack_dual({name}).primal")
            raise TensorError(f"{name} requires grad, and this product has no gradient: {way_out}")


# ------------------------------------------------------------------------------------------------ what follows the sums


def check_activation(activation: object, gates: Iterable[str] = GATES) -> None:
    """Raise OperandError for an activation that is not known by that name. `gates` are those of the product."""
    known = (*ACTIVATIONS, *gates)
    if activation is not None and (not isinstance(activation, str) or activation not in known):
        meant = nearest(activation, known)
        raise OperandError(
            f"activation {shown(activation)}: {meant}known are {', '.join(map(repr, known))}{other_name(activation)}"
        )


def check_gated_type(kind: torch.dtype) -> None:
    """Raise OperandError for a gated product that is stored as integers."""
    if not kind.is_floating_point:
        raise OperandError(f"the product is {kind}, and gating computes in float32: say out_dtype=torch.float32")


def check_finish(bias: torch.Tensor | None, activation: str | None, shape: Sequence[int], kind: torch.dtype) -> None:
    """Raise unless bias and activation fit a product of that shape, stored as `kind`.

    The bias is a vector along the last dimension, of a type that is added as it is; a result that is stored in integers
    cuts off nothing of either.
    """
    what = ""
    if bias is not None and bias.is_floating_point():
        what = f"bias is {bias.dtype}"
    elif activation not in (None, "relu"):
        what = f"activation {activation!r} gives fractions, or more than {kind} holds"
    if what and not kind.is_floating_point:
        raise OperandError(f"{what}, and the product is stored as {kind}: out_dtype=torch.float32 keeps them")
    if bias is None:
        return
    known = (*READ, *WHOLE) if kind.is_floating_point else WHOLE
    if bias.dtype not in known:
        raise OperandError(f"bias is {bias.dtype}; to a product that is stored as {kind} it is one of {listed(known)}")
    if bias.ndim != 1 or not shape or bias.shape[0] != shape[-1]:
        rule = f"it is a vector, one number for each of {shape[-1]} columns" if shape else "a number has no columns"
        raise TensorError(f"bias of shape {list(bias.shape)} does not fit a product of shape {list(shape)}: {rule}")


def scalars_of(alpha: object, beta: object, kind: torch.dtype, a: torch.Tensor) -> tuple[Scalar, Scalar]:
    """alpha and beta for a result of that type, without any rounding.

    Numbers of float32, of integers whole ones of 32 bits; or tensors of one element, on a's device or the CPU.

    Raises OperandError where integers would cut off what they are scaled to, and for what is no real number.

    >>> x = torch.ones(1)
    >>> scalars_of(2.0, 0.5, torch.float32, x), scalars_of(2.0, 0.0, torch.int32, x)
    ((2.0, 0.5), (2, 0))
    """
    return scalar_of("alpha", alpha, kind, a.device), scalar_of("beta", beta, kind, a.device)


def scalar_of(name: str, x: Any, kind: torch.dtype, device: torch.device) -> Scalar:
    """One of the two, for operands on that device. Raises as `scalars_of`."""
    whole = not kind.is_floating_point
    fractions = f"of a result stored as {kind}: a c of torch.float32 keeps fractions"
    if isinstance(x, torch.Tensor):
        check_operands({name: x})
        if whole and x.dtype.is_floating_point:
            raise OperandError(f"{name} = {shown(x)} {fractions}")
        if x.dtype not in ((*WHOLE, torch.int64) if whole else (*READ, torch.float64, *WHOLE)):
            raise OperandError(f"{name} is {x.dtype}, and scales a result stored as {kind}")
        if x.numel() != 1 or x.ndim > 1:
            raise OperandError(f"{name} has shape {list(x.shape)}: a number, or a tensor of one element")
        if x.device != device and x.device.type != "cpu":
            raise TensorError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{device} and {x.device}: {name} is on {x.device}"
            )
        x = x.reshape(())
        return x.long() if whole else x.float()
    if whole and isinstance(x, numbers.Real):
        number: Any = x
        if not isinstance(number, numbers.Integral) and (not math.isfinite(number) or number != int(number)):
            raise OperandError(f"{name} = {shown(x)} {fractions}")
        x = int(number)
        if not -(2**31) <= x < 2**31:
            raise OperandError(f"{name} is an integer of {x.bit_length()} bits, and scales a result stored as {kind}")
        return x
    return host_number(name, x)
