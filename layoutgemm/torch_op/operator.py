"""layoutgemm.matmul and layoutgemm.gemm: products of torch tensors on Hopper's tensor cores.

    a call of matmul ----> fast path: the same shapes and strides again, nothing to record: launch (torch_launch)
                     \\--> checks, then torch_library's operator where autograd, torch.compile, functorch or a mode
                           look on, or else straight to `product`: prepare, keep, launch; on the CPU, torch in float64

Imported when `layoutgemm.matmul` is first named; importing layoutgemm alone does not import torch.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.autograd.forward_ad as _forward

from ..errors import OperandError, TensorError
from ..kernels.epilogue.chain import Epilogue
from ..kernels.run.operand_checks import check_operands, resolved, same_memory
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm90.plan import Sm90Config
from .bias_activation import (
    GATES,
    Finish,
    by_torch,
    check_activation,
    check_finish,
    fused,
    fused_gemm,
    scalars_of,
    scaled_by_torch,
)
from .checks import check_out, check_tensors, differentiated, output_type, tf32_allowed
from .epilogue import by_reference, check_epilogue, finish_of, spread
from .gated import check_gated_type, gate_by_torch, gated_finish, gated_operator, why_unfused
from .launch import C_NAMES, Prepared, gpu, problem_of, start, target
from .library import differentiable
from .problem import Given, Problem, broadcast, contiguous_strides, gated_shapes, shapes_of
from .reference import exact, multiply

Config = Sm90Config | Sm90Choice
MAX_PREPARED = 4096  # problems kept ready; beyond, the oldest quarter goes
_PREPARED: dict[tuple[Any, ...], Prepared] = {}
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_PLAIN = frozenset({_Tensor, _Parameter})
# What tells that somebody looks on, each a call into C of some ten nanoseconds; and what a launch needs of torch.
_C = torch._C
_is_compiling, _grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_functions = getattr(_C, "_is_torch_function_mode_enabled", _C._len_torch_function_stack)
_modes = _C._len_torch_dispatch_stack
_functorch = _C._are_functorch_transforms_active
_is_traced = torch.compiler.is_dynamo_compiling  # a constant to Dynamo; others that compile are modes
_autocast, _tracing = _C._is_any_autocast_enabled, _C._get_tracing_state
_current_device: Callable[[], int] = getattr(_C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream: Callable[[int], int] = getattr(
    _C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)


# A graph that saved a tensor has to see that it has changed: in C alone, half the time of increment_version.
try:
    (_written := _C._increment_version)((torch.empty(0),))
except (AttributeError, TypeError):

    def _written(tensors: Sequence[torch.Tensor]) -> None:
        for x in tensors:
            torch.autograd.graph.increment_version(x)


def _empty_strided(shape: Sequence[int], strides: Sequence[int], kind: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, strides, dtype=kind, device="cuda")


# What torch's own generated code allocates with: half the time of torch.empty, and all the dispatcher adds is skipped.
_empty = getattr(getattr(getattr(_C, "_dynamo", None), "guards", None), "_empty_strided_cuda", _empty_strided)


def matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    *,
    out: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    activation: str | None = None,
    epilogue: Epilogue | None = None,
    given: Mapping[str, Any] | None = None,
    config: Config | None = None,
    out_dtype: torch.dtype | None = None,
    allow_tf32: bool | None = None,
) -> torch.Tensor:
    """activation(a @ b + bias), with shapes as in torch.matmul: vectors, matrices, batches that broadcast.

    a, b        bfloat16, float16, float8_e4m3fn or float8_e5m2, int8 or uint8 (two kinds of 8 bits may meet), or
                float32 multiplied as tf32; on one GPU of compute capability 9.0, by mma.sync on 8.x and 12.0, or on
                the CPU. Any strides: what no kernel reads in place, or none quickly, is copied (`explain_matmul`)
    out         where the product goes, of the result's shape and type; may not share memory with what is read
    bias        float32, bfloat16, float16 or integers of up to 32 bits, added along the last dimension; to a product
                that is stored as int32 such integers, and a sum that int32 does not hold is refused. activation one of
                relu, relu_sq, gelu, gelu_tanh, silu, sigmoid, tanh. Both happen in the kernel, in float32, before the
                one rounding; by torch on a float32 product where derivatives are recorded and under torch.compile; on
                the CPU in float64. "tanh" in the kernel is the hardware's for a product of 16 bits or fewer: relative
                error 2**-11
                "swiglu" and "geglu" are gated products: b holds the gate's n columns and, beside them, the n that it
                multiplies, and the result has n: silu(a @ b[..., :n]) * (a @ b[..., n:]), or gelu. One kernel for a b
                whose columns are contiguous (the transpose of (2n, K) weights) and no bias; with a bias, of 2n, and for
                any other b torch gates a float32 product
    epilogue    in place of these: any `kernels.epilogue.Epilogue`, in the kernel, for matrices and batches of them;
    given       what it reads and writes, by name: numbers and tensors (see `torch_op.epilogue`). No gradients
    config      the kernel's configuration, an Sm90Config or Sm90Choice; default what `layoutgemm.tune` measured for the
                product, or else `kernels.sm90.choose.rules.choose`
    out_dtype   default a's type; bfloat16 for 8-bit floats, int32 for integers
    allow_tf32  whether float32 may be multiplied as tf32; default torch.backends.cuda.matmul.allow_tf32

    Sums are float32, of integers int32. On the CPU the product is computed in float64 and rounded once: the reference,
    with the same refusals. Differentiable (twice, too, and in forward mode); works under torch.compile, torch.func,
    autocast and in CUDA graphs after one call outside.

    Raises TensorError (a RuntimeError and a ValueError) in torch's words for shapes, types and devices that do not
    meet, OperandError where no kernel exists.

    >>> import torch
    >>> a = torch.arange(6.0).reshape(2, 3).bfloat16()
    >>> matmul(a, a.T).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    >>> matmul(a, torch.ones(5, 3, 4).bfloat16()).shape
    torch.Size([5, 2, 4])
    >>> from layoutgemm.kernels.epilogue.chain import Activation, Aux, Epilogue, Scale
    >>> aux = torch.empty(2, 2).bfloat16()
    >>> matmul(a, -a.T, epilogue=Epilogue(Scale(), Aux(), Activation("relu")), given={"alpha": -2.0, "aux": aux})[0]
    tensor([10., 28.], dtype=torch.bfloat16)
    >>> aux[0]
    tensor([10., 28.], dtype=torch.bfloat16)
    >>> gate, up = torch.tensor([[-1.0], [2.0]]), torch.tensor([[3.0], [4.0]])
    >>> matmul(torch.eye(2).half(), torch.cat([gate, up], 1).half(), activation="geglu", out_dtype=torch.float32)
    tensor([[-0.4760],
            [ 7.8180]])
    """
    if epilogue is not None or given is not None:
        return _with_epilogue(a, b, out, bias, activation, epilogue, given, config, out_dtype, allow_tf32)
    if _is_traced():
        return _checked(a, b, out, bias, activation, config, out_dtype, allow_tf32)
    # The fast path: plain tensors, of shapes and strides that were seen before, and nobody who looks on.
    if (
        ((kind := type(a)) is _Tensor or kind is _Parameter)
        and ((kind := type(b)) is _Tensor or kind is _Parameter)
        and not ((a.requires_grad or b.requires_grad) and _grad_enabled())
    ):
        index = a.get_device()
        try:
            key = (a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, index, out_dtype, config)
            if out is not None or bias is not None or activation is not None:
                key = _longer(key, out, bias, activation, index)
            ready = _PREPARED[key]
        except (KeyError, TypeError, RuntimeError):  # new; a config that cannot be hashed is none; no strides: sparse
            ready = None
        if (
            ready is not None
            and ready.simple
            and b.get_device() == index == _current_device()
            and not (_functions() or _modes() or _autocast() or _functorch() or a.is_neg() or b.is_neg())
            and _forward._current_level < 0
            and _tracing() is None
            and not (ready.tf32 and not tf32_allowed(allow_tf32))
        ):
            try:
                at_a, at_b = a.data_ptr(), b.data_ptr()
                low = at_a | at_b
                words: tuple[int, ...] = ()
                if bias is not None:
                    words = (bias.data_ptr(),)
                    low |= words[0]
                if out is None:
                    c = _empty(ready.shape, ready.strides, ready.kind)  # on the current device
                    at_c = c.data_ptr()
                else:
                    c, at_c = out, out.data_ptr()
                    low |= at_c
                    end = at_c + ready.spans[2]
                    if (
                        not (end <= at_a or at_a + ready.spans[0] <= at_c)
                        or not (end <= at_b or at_b + ready.spans[1] <= at_c)
                        or (bias is not None and not (end <= words[0] or words[0] + bias.nbytes <= at_c))
                    ):
                        low = 1  # views of the same lines, or an error: `_checked` tells
            except RuntimeError:  # sparse tensors have no address
                low = 1
            if not low & 15:
                if out is not None:
                    _written((out,))
                ready.launch(at_a, at_b, at_c, _raw_stream(index), words)
                return c
    return _checked(a, b, out, bias, activation, config, out_dtype, allow_tf32)


def _longer(
    key: tuple[Any, ...], out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None, index: int
) -> tuple[Any, ...]:
    """The key of a product with more than its operands; one that is never found where they are not plain."""
    into = over = None
    if out is not None:
        if type(out) not in _PLAIN or out.get_device() != index or out.requires_grad or out.is_neg():
            return ()
        into = out.shape, out.stride(), out.dtype
    if bias is not None:
        if type(bias) not in _PLAIN or bias.get_device() != index or bias.is_neg():
            return ()
        if bias.requires_grad and _grad_enabled():
            return ()
        over = bias.shape, bias.stride(), bias.dtype  # as `key_of` has it
    return (*key, into, over, activation)


def gemm(
    alpha: float | torch.Tensor,
    a: torch.Tensor,
    b: torch.Tensor,
    beta: float | torch.Tensor = 0.0,
    c: torch.Tensor | None = None,
    *,
    out: torch.Tensor | None = None,
    config: Config | None = None,
    allow_tf32: bool | None = None,
) -> torch.Tensor:
    """alpha * (a @ b) + beta * c, in float32, rounded once to c's type, or to matmul's where there is no c.

    c is broadcast to the product's shape, and not read where beta is the number 0. A new tensor, or `out`. One kernel
    for numbers alpha and beta, matrices, and a c of the product's shape; else torch scales and adds, in float32.

    Raises OperandError for a beta without a c, a c that is no tensor and fractions of a result in integers, TensorError
    for a c that does not broadcast to the product's shape, and both as matmul does.

    >>> import torch
    >>> x = torch.eye(2).bfloat16()
    >>> gemm(2.0, x, x, 1.0, torch.ones(2, 2).bfloat16()).tolist()
    [[3.0, 1.0], [1.0, 3.0]]
    """
    check_operands({"a": a, "b": b, **({} if c is None else {"c": c})})
    number = isinstance(beta, (int, float)) and not isinstance(beta, bool)
    if c is None and not (number and beta == 0):
        shown = f"an integer of {beta.bit_length()} bits" if isinstance(beta, int) and beta >> 64 else repr(beta)
        raise OperandError(f"beta = {shown} needs a c to scale")
    a, b, usual = _accepted(a, b, config, None, allow_tf32)
    try:
        kind = usual if c is None else output_type(a, b, c.dtype)
    except OperandError as error:
        raise OperandError(f"c, as which the result is stored: {error}") from None
    c = None if number and beta == 0 else c
    alpha, beta = scalars_of(alpha, beta, kind, a)
    scales = [x for x in (alpha, beta) if isinstance(x, torch.Tensor)]
    looked_on = _looked_on(a, b, c, out, *scales)
    if not _sizes_later():
        shape = shapes_of(a.shape, b.shape).result
        _check_gemm(a, b, c, out, scales, shape, kind)
        if not looked_on and _on_gpu(a) and _fuses(a) and 0 not in (*shape, *a.shape):
            finish = fused_gemm(alpha, beta, None if c is None else resolved(c), out, kind, shape)
            if finish is not None:
                return product(a, b, kind, config, out, finish)
    if looked_on:
        value = _checked(a, b, None, None, None, config, _wide(a), True)
    else:
        value = product(a, b, _wide(a), config) if _on_gpu(a) else exact(a, b)
    if _sizes_later():
        _check_gemm(a, b, c, out, scales, tuple(value.shape), kind)
    value = scaled_by_torch(value, alpha, beta, c, kind)
    return value if out is None else out.copy_(value)


def _check_gemm(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | None, out: torch.Tensor | None, scales: Sequence[torch.Tensor],
    shape: tuple[int, ...], kind: torch.dtype,
) -> None:  # fmt: skip
    """A c that does not broadcast to the product's shape, and an output that cannot take it, are refused."""
    if c is not None and shape != broadcast(c.shape, shape):
        raise TensorError(f"c of shape {list(c.shape)} does not broadcast to the product's {list(shape)}")
    if out is not None:  # c may be the output itself: each element is read before it is written
        check_out(out, shape, kind, {"a": a, "b": b, "c": None if same_memory(c, out) else c}, scales)


def _wide(a: torch.Tensor) -> torch.dtype:
    """The type of sums before they are scaled, shifted and rounded."""
    return torch.float32 if a.dtype.is_floating_point else torch.int32


def _checked(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """Everything but the fast path: autocast, checks, and whoever looks on."""
    a, b, kind = _accepted(a, b, config, out_dtype, allow_tf32)
    check_activation(activation)
    if activation in GATES:
        return _gated(a, b, out, bias, str(activation), config, kind)
    finishes = bias is not None or activation is not None
    shape: tuple[int, ...] = ()
    if not _sizes_later():
        shape = shapes_of(a.shape, b.shape).result
        _check_call(a, b, out, bias, activation, shape, shape, kind)
    if not _looked_on(a, b, out, bias):
        if not finishes:
            return product(a, b, kind, config, out)
        bias = None if bias is None else resolved(bias)
        if _on_gpu(a) and _fuses(a) and b.ndim > 1 and 0 not in (*shape, *a.shape):
            finish = fused(bias, activation, kind, shape[-1])
            if finish is not None:
                return product(a, b, kind, config, out, finish)
        value = product(a, b, _wide(a), config) if _on_gpu(a) else exact(a, b)
    else:
        value = differentiable(
            a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b,
            _wide(a) if finishes else kind, config_text(config),
        )  # fmt: skip
        if b.ndim == 1:
            value = value.squeeze(-1)
        if a.ndim == 1:
            value = value.squeeze(-1 if b.ndim == 1 else -2)
    if _sizes_later():
        shape = tuple(value.shape)
        _check_call(a, b, out, bias, activation, shape, shape, kind)
    if finishes:
        value = by_torch(value, bias, activation, kind)
    return value if out is None else out.copy_(value)


def _check_call(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    every: tuple[int, ...], shape: tuple[int, ...], kind: torch.dtype,
) -> None:  # fmt: skip
    """Bias, activation and output of a product of shape `every`, stored with `shape`: refused before it is launched."""
    check_finish(bias, activation, every, a, kind)
    if out is not None:
        check_out(out, shape, kind, {"a": a, "b": b, "bias": bias})


def _gated(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str,
    config: Config | None, kind: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """The gated product of tensors that have been checked: one kernel, or the product of all columns and torch."""
    check_gated_type(kind)
    every = shapes_of(a.shape, b.shape).result
    shape = gated_shapes(a.shape, b.shape, GATES[activation]).result
    _check_call(a, b, out, bias, None, every, shape, kind)
    if not _looked_on(a, b, out, bias):
        return gated_product(a, b, bias, activation, kind, config, out)
    if bias is None and not differentiated(a, b) and (_is_compiling() or not _functorch()):
        value = gated_operator(a, b, activation, kind, config_text(config))
    else:
        value = gate_by_torch(
            _checked(a, b, None, None, None, config, torch.float32, True), bias, activation, kind
        )
    return value if out is None else out.copy_(value)


def gated_product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str, kind: torch.dtype,
    config: Config | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The gated product of plain tensors that have been checked, computed now."""
    if bias is None and _on_gpu(a) and 0 not in (*a.shape, *b.shape):
        if not why_unfused(problem_at(a, b, kind, config, out, GATES[activation])):
            return product(a, b, kind, config, out, gated_finish(activation))
    with torch.no_grad():
        wide = product(a, b, torch.float32, config) if _on_gpu(a) else exact(a, b).double()
        value = gate_by_torch(wide, bias, activation, kind)
    return value if out is None else out.copy_(value)


def _accepted(
    a: torch.Tensor, b: torch.Tensor, config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None
) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
    """A and B as autocast has them, checked, and the output's type."""
    check_operands({"a": a, "b": b})
    a, b = autocast(a, b)
    check_tensors(a, b, allow_tf32)
    if config is not None:
        choice_of(config)
    kind = output_type(a, b, out_dtype)
    return a, b, kind


def _with_epilogue(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    epilogue: Epilogue | None, given: Mapping[str, Any] | None, config: Config | None, out_dtype: torch.dtype | None,
    allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """The product with a user's own epilogue."""
    if _is_compiling():
        raise OperandError("epilogue= is a launch of its own, not under torch.compile; bias= and activation= are")
    if epilogue is None:
        raise OperandError("given holds an epilogue's operands, and there is no epilogue")
    if bias is not None or activation is not None:
        name = "bias" if bias is not None else "activation"
        raise OperandError(f"{name} and epilogue: one or the other; Bias() and Activation(...) are steps of the latter")
    a, b, kind = _accepted(a, b, config, out_dtype, allow_tf32)
    shapes = shapes_of(a.shape, b.shape)
    if out is not None:
        check_out(out, shapes.result, kind, {"a": a, "b": b})
    operands = check_epilogue(epilogue, given, a, b, out, shapes.result, kind)
    if _looked_on(a, b, out, *[x for x in operands.values() if isinstance(x, torch.Tensor)]):
        raise OperandError(
            "epilogue= is a launch of its own: not under torch.compile, torch.func or a mode, nor of fake tensors or "
            "tensor subclasses; bias= and activation= are"
        )
    with torch.no_grad():
        if 0 in shapes.result:
            return torch.empty(shapes.result, dtype=kind, device=a.device) if out is None else out
        if not _on_gpu(a):
            value = by_reference(a, b, kind, epilogue, operands)
            return value if out is None else out.copy_(value)
        if not _fuses(a):
            raise OperandError(f"{a.device}: epilogue= needs compute capability 9.0; bias= and activation= do not")
        if shapes.k == 0:  # an empty sum is 0, and the epilogue follows
            a, b = a.new_zeros(*a.shape[:-1], 16), b.new_zeros(*b.shape[:-2], 16, b.shape[-1])
        c = torch.empty(shapes.result, dtype=kind, device=a.device) if out is None else out
        a, b = resolved(a), resolved(b)
        operands = {name: resolved(x) if isinstance(x, torch.Tensor) else x for name, x in operands.items()}
        for x in (c, *[operands[operand.name] for operand in epilogue.given if operand.written]):
            _written((x,))
        for part in spread(a, b, c, epilogue, operands):
            _launch_epilogue(*part, epilogue, kind, config)
        return c


def _launch_epilogue(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, operands: dict[str, Any], epilogue: Epilogue,
    kind: torch.dtype, config: Config | None,
) -> None:  # fmt: skip
    """One launch, or where no tensor map holds the whole batch one for each of its matrices."""
    finish = finish_of(epilogue, operands, c.shape)
    found = prepare(a, b, kind, config, c, finish)
    if not finish.apart or len(found.solution.launches) == 1:
        found.run(a, b, c, finish.words)
        return
    lying = {operand.name for operand in epilogue.given if operand.axes}
    for i in range(c.shape[0]):
        own = {name: x[i] if name in lying else x for name, x in operands.items()}
        _launch_epilogue(a[i], b[i], c[i], own, epilogue, kind, config)


def _on_gpu(x: torch.Tensor) -> bool:
    return x.device.type == "cuda"


def _fuses(x: torch.Tensor) -> bool:
    """Whether the kernels of the tensor's GPU have epilogues."""
    return target(x.get_device())[0] == "sm_90a"


def autocast(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32, bfloat16 and float16 operands in the type of the autocast region they are in; as they are outside
    one."""
    kind = a.device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return a, b
    to = torch.get_autocast_dtype(kind)
    takes = (torch.float32, torch.bfloat16, torch.float16)
    return a.to(to) if a.dtype in takes else a, b.to(to) if b.dtype in takes else b


def _sizes_later() -> bool:
    """Whether sizes may be symbols, whose comparison a trace would keep: the operator compares those it has to."""
    return _is_compiling() or _tracing() is not None


def _looked_on(*tensors: torch.Tensor | None) -> bool:
    """Whether torch's dispatcher has to see the product: somebody records, transforms or fakes it."""
    given = [x for x in tensors if x is not None]
    return bool(
        _is_compiling()
        or any(type(x) not in _PLAIN or x.device.type == "meta" for x in given)
        or differentiated(*given)
        or _functions()
        or _modes()
        or _functorch()
        or _tracing() is not None
    )


# ---------------------------------------------------------------------------------------------------------- the product


def product(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None = None,
    out: torch.Tensor | None = None, finish: Finish | None = None,
) -> torch.Tensor:  # fmt: skip
    """a @ b of plain tensors that have been checked, computed now; `finish` for CUDA tensors alone."""
    shapes = shapes_of(a.shape, b.shape)
    if 0 in (*shapes.result, shapes.k):
        # torch: an empty sum is 0
        return torch.zeros(shapes.result, dtype=kind, device=a.device) if out is None else out.zero_()
    if a.device.type == "cpu":
        value = multiply(a, b, kind)
        return value if out is None else out.copy_(value)
    if out is not None:
        _written((out,))
    a, b = resolved(a), resolved(b)
    return prepare(a, b, kind, config, out, finish).run(a, b, out, () if finish is None else finish.words)


def prepare(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None = None,
    out: torch.Tensor | None = None, finish: Finish | None = None,
) -> Prepared:  # fmt: skip
    """The prepared product of two CUDA tensors, kept for the next ones of the same shapes, strides and types."""
    index = a.get_device()
    usual = kind == output_type(a, b, None)
    more: tuple[Any, ...] = ()
    if out is not None or finish is not None:
        into = None if out is None else (out.shape, out.stride(), out.dtype)
        more = (into, *((None, None) if finish is None else finish.key))
    starts = tuple([16 if x is None else start(x) for x in (a, b, out)])
    if starts != (16, 16, 16):
        more = (*more, "off", *starts)
    operands = (a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, index)
    key = (*operands, None if usual else kind, config, *more)
    found = _PREPARED.get(key)
    if found is None:
        gated = None if finish is None else finish.gated
        shape = gated_shapes(a.shape, b.shape, gated).result
        places, name = gpu(index)
        c = out if out is not None else Given(shape, contiguous_strides(shape), C_NAMES[kind])
        epilogue = None if finish is None else finish.epilogue
        apart = finish is not None and finish.apart
        problem = problem_of(
            a, b, c, choice_of(config), places, name, epilogue, apart, target(index), gated
        )
        with torch.cuda.device(index):
            found = Prepared(problem, shape, kind, index)
        if len(_PREPARED) >= MAX_PREPARED:
            for old in list(_PREPARED)[: MAX_PREPARED // 4]:
                _PREPARED.pop(old, None)
        _PREPARED[key] = found
        if usual:
            _PREPARED[(*operands, kind, config, *more)] = found  # the caller may name the usual type
    return found


def forget() -> None:
    """Drop every prepared product: the next call of each chooses anew. What was compiled stays."""
    _PREPARED.clear()


def choice_of(config: Config | None) -> Sm90Choice | None:
    """A configuration as the choice of a kernel. Raises OperandError for anything else."""
    if config is None or isinstance(config, Sm90Choice):
        return config
    if isinstance(config, Sm90Config):
        return Sm90Choice(config)
    raise OperandError(f"config is a {type(config).__qualname__}; it is an Sm90Config, an Sm90Choice or None")


def config_text(config: Config | None) -> str:
    """A configuration as text, which an operator's schema can hold; "" for none."""
    if config is None:
        return ""
    choice = choice_of(config)
    assert choice is not None
    return json.dumps({"swapped": choice.swapped, "config": dataclasses.asdict(choice.config)})


# What torch.compiler.assume_constant_result sets; that function imports the whole compiler. A configuration does not
# change between a trace and the runs of it.
config_text._dynamo_marked_constant = True  # type: ignore[attr-defined]


def problem_at(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None, out: torch.Tensor | None,
    gated: str | None = None,
) -> Problem:  # fmt: skip
    """The product of two tensors as a problem of their GPU, or of an H200 for CPU tensors."""
    shape: Sequence[int] = gated_shapes(a.shape, b.shape, gated).result
    places, name = gpu(a.get_device())
    c = out if out is not None else Given(tuple(shape), contiguous_strides(shape), C_NAMES[kind])
    return problem_of(a, b, c, choice_of(config), places, name, on=target(a.get_device()), gated=gated)

