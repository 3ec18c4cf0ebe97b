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
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from .errors import OperandError, TensorError
from .kernels.epilogue import Epilogue
from .kernels.sm90_choice import Sm90Choice
from .kernels.sm90_plan import Sm90Config
from .torch_checks import check_out, check_tensors, output_type, require_tensors, tf32_allowed
from .torch_epilogue import by_reference, check_apart, check_epilogue, finish_of, spread
from .torch_finish import GATES, Finish, by_torch, check_finish, fused, fused_gemm, key_of, scalars_of
from .torch_gated import check_gated_type, gate_by_torch, gated_finish, gated_operator, why_unfused
from .torch_launch import C_NAMES, NAMES, Prepared, gpu, plan_of, problem_of, start, target
from .torch_library import differentiable
from .torch_problem import C_TYPES, Given, Problem, broadcast, contiguous_strides, gated_shapes, shapes_of, solve
from .torch_reference import multiply

Config = Sm90Config | Sm90Choice
MAX_PREPARED = 4096  # problems kept ready; beyond, the oldest quarter goes
_PREPARED: dict[tuple[Any, ...], Prepared] = {}
_Tensor, _Parameter = torch.Tensor, torch.nn.Parameter
_PLAIN = frozenset({_Tensor, _Parameter})
_written = torch.autograd.graph.increment_version  # a graph that saved the tensor has to see that it has changed
# What tells that somebody looks on, each a call into C of some ten nanoseconds; and what a launch needs of torch.
_C = torch._C
_is_compiling, _grad_enabled = torch.compiler.is_compiling, torch.is_grad_enabled
_functions, _modes = _C._len_torch_function_stack, _C._len_torch_dispatch_stack
_functorch = _C._functorch.peek_interpreter_stack
_autocast, _tracing = _C._is_any_autocast_enabled, _C._get_tracing_state
_current_device: Callable[[], int] = getattr(_C, "_cuda_getDevice", torch.cuda.current_device)
_raw_stream: Callable[[int], int] = getattr(
    _C, "_cuda_getCurrentRawStream", lambda index: torch.cuda.current_stream(index).cuda_stream
)


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
    out         where the product goes, of the result's shape and type; may not share memory with a or b
    bias        float32, bfloat16 or float16, added along the last dimension; activation one of relu, relu_sq, gelu,
                gelu_tanh, silu, sigmoid, tanh. Both happen in the kernel, in float32, before the one rounding; by torch
                on a float32 product where gradients are recorded and under torch.compile. "tanh" in the kernel is the
                hardware's for a product of 16 bits or fewer: relative error 2**-11
                "swiglu" and "geglu" are gated products: b holds the gate's n columns and, beside them, the n that it
                multiplies, and the result has n: silu(a @ b[..., :n]) * (a @ b[..., n:]), or gelu. One kernel for a b
                whose columns are contiguous (the transpose of (2n, K) weights) and no bias; with a bias, of 2n, and for
                any other b torch gates a float32 product
    epilogue    in place of these: any `kernels.epilogue.Epilogue`, in the kernel, for matrices and batches of them;
    given       what it reads and writes, by name: numbers and tensors (see `torch_epilogue`). No gradients
    config      the kernel's configuration, an Sm90Config or Sm90Choice; default what `layoutgemm.tune` measured for the
                product, or else `sm90_choice.choose`
    out_dtype   default a's type; bfloat16 for 8-bit floats, int32 for integers
    allow_tf32  whether float32 may be multiplied as tf32; default torch.backends.cuda.matmul.allow_tf32

    Sums are float32, of integers int32. On the CPU the product is computed in float64 and rounded once: the reference,
    with the same refusals. Differentiable (twice, too); works under torch.compile, torch.func.vmap, autocast and in
    CUDA graphs after one call outside.

    Raises TensorError (a RuntimeError and a ValueError) in torch's words for shapes, types and devices that do not
    meet, OperandError where no kernel exists.

    >>> import torch
    >>> a = torch.arange(6.0).reshape(2, 3).bfloat16()
    >>> matmul(a, a.T).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    >>> matmul(a, torch.ones(5, 3, 4).bfloat16()).shape
    torch.Size([5, 2, 4])
    >>> from layoutgemm.kernels.epilogue import Activation, Aux, Epilogue, Scale
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
    if _is_compiling():
        return _checked(a, b, out, bias, activation, config, out_dtype, allow_tf32)
    # The fast path: plain tensors, of shapes and strides that were seen before, and nobody who looks on.
    if (
        ((kind := type(a)) is _Tensor or kind is _Parameter)
        and ((kind := type(b)) is _Tensor or kind is _Parameter)
        and not ((a.requires_grad or b.requires_grad) and _grad_enabled())
    ):
        index = a.get_device()
        key = (a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, index, out_dtype, config)
        if out is not None or bias is not None or activation is not None:
            key = _longer(key, out, bias, activation, index)
        try:
            ready = _PREPARED.get(key)
        except TypeError:  # a config that cannot be hashed is none
            ready = None
        if (
            ready is not None
            and ready.simple
            and b.get_device() == index == _current_device()
            and not (_functions() or _modes() or _autocast())
            and _functorch() is None
            and _tracing() is None
            and not (ready.tf32 and not tf32_allowed(allow_tf32))
        ):
            at_a, at_b = a.data_ptr(), b.data_ptr()
            low = at_a | at_b
            words: tuple[int, ...] = ()
            if bias is not None:
                words = (bias.data_ptr(), 0)
                low |= words[0]
            if out is None:
                c = _empty(ready.shape, ready.strides, ready.kind)  # on the current device
                at_c = c.data_ptr()
            else:
                c, at_c = out, out.data_ptr()
                low |= at_c
                _written(out)
                if not _apart(at_a, at_b, at_c, ready.spans):
                    low = 1  # views of the same lines, or an error: `_checked` tells
            if not low & 15:
                ready.launch(at_a, at_b, at_c, _raw_stream(index), words)
                return c
    return _checked(a, b, out, bias, activation, config, out_dtype, allow_tf32)


def _longer(
    key: tuple[Any, ...], out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None, index: int
) -> tuple[Any, ...]:
    """The key of a product with more than its operands; one that is never found where they are not plain."""
    for x in (out, bias):
        if x is not None and (
            type(x) not in _PLAIN or x.get_device() != index or (x.requires_grad and _grad_enabled())
        ):
            return ()
    into = None if out is None else (out.shape, out.stride(), out.dtype)
    return (*key, into, *key_of(bias, activation))


def _apart(a: int, b: int, c: int, spans: Sequence[int]) -> bool:
    """Whether C's bytes lie before or after A's, and B's."""
    end = c + spans[2]
    return (end <= a or a + spans[0] <= c) and (end <= b or b + spans[1] <= c)


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
    if c is None and not (isinstance(beta, (int, float)) and beta == 0):
        raise OperandError(f"beta = {beta!r} needs a c to scale")
    require_tensors(a, b)
    if c is not None and not isinstance(c, torch.Tensor):
        raise OperandError(f"c is a {type(c).__module__}.{type(c).__qualname__}, not a torch tensor")
    if c is not None and isinstance(beta, (int, float)) and beta == 0:
        kind, c = c.dtype, None
    else:
        kind = output_type(a, b, None) if c is None else c.dtype
    storable = C_NAMES.get(kind) in C_TYPES.get(NAMES.get(a.dtype, ""), ())
    if storable and not _autocast() and not _looked_on(a, b, c, out):
        check_tensors(a, b, allow_tf32)
        shape = shapes_of(a.shape, b.shape).result
        if out is not None:
            check_out(out, shape, kind, a, b)
        if _on_gpu(a) and _fuses(a) and 0 not in (*shape, *a.shape):
            finish = fused_gemm(alpha, beta, c, out, kind, shape)
            if finish is not None:
                return product(a, b, kind, config, out, finish)
    wide = torch.float32 if a.dtype.is_floating_point else torch.int32
    alpha, beta = scalars_of(alpha, beta, kind)
    value = matmul(a, b, config=config, out_dtype=wide, allow_tf32=allow_tf32)
    value = alpha * (value.float() if kind.is_floating_point else value)
    if c is not None:
        if tuple(value.shape) != broadcast(c.shape, value.shape):
            raise TensorError(f"c of shape {list(c.shape)} does not broadcast to the product's {list(value.shape)}")
        value = value + beta * c.to(value.dtype)
    return _into(out, value.to(kind), a, b)


def _checked(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None,
    config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """Everything but the fast path: autocast, checks, and whoever looks on."""
    a, b, kind = _accepted(a, b, config, out_dtype, allow_tf32)
    if activation in GATES:
        return _gated(a, b, out, bias, str(activation), config, kind)
    finishes = bias is not None or activation is not None
    wide = kind
    if finishes:
        wide = torch.float32 if a.dtype.is_floating_point else torch.int32
    if not _looked_on(a, b, bias):
        shape = shapes_of(a.shape, b.shape).result
        if out is not None:
            check_out(out, shape, kind, a, b)
        if not finishes:
            return product(a, b, kind, config, out)
        check_finish(bias, activation, shape, a.device, kind)
        if _on_gpu(a) and _fuses(a) and b.ndim > 1 and 0 not in (*shape, *a.shape):
            finish = fused(bias, activation, kind, shape[-1])
            if finish is not None:
                return product(a, b, kind, config, out, finish)
        value = product(a, b, wide, config)
    else:
        text = config_text(config)
        value = differentiable(
            a.unsqueeze(0) if a.ndim == 1 else a, b.unsqueeze(1) if b.ndim == 1 else b, wide, text
        )
        if b.ndim == 1:
            value = value.squeeze(-1)
        if a.ndim == 1:
            value = value.squeeze(-1 if b.ndim == 1 else -2)
    if finishes:
        check_finish(bias, activation, tuple(value.shape), value.device, kind)
        value = by_torch(value, bias, activation, kind)
    return value if out is None else _into(out, value, a, b)


def _gated(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str,
    config: Config | None, kind: torch.dtype,
) -> torch.Tensor:  # fmt: skip
    """The gated product of tensors that have been checked: one kernel, or the product of all columns and torch."""
    check_gated_type(kind)
    every = shapes_of(a.shape, b.shape).result
    shape = gated_shapes(a.shape, b.shape, GATES[activation]).result
    check_finish(bias, None, every, a.device, kind)
    if not _looked_on(a, b, bias):
        if out is not None:
            check_out(out, shape, kind, a, b)
        return gated_product(a, b, bias, activation, kind, config, out)
    if bias is None and not _differentiated(a, b):
        value = gated_operator(a, b, activation, kind, config_text(config))
    else:
        value = gate_by_torch(
            _checked(a, b, None, None, None, config, torch.float32, True), bias, activation, kind
        )
    return _into(out, value, a, b)


def gated_product(
    a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, activation: str, kind: torch.dtype,
    config: Config | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The gated product of plain tensors that have been checked, computed now."""
    if bias is None and _on_gpu(a) and 0 not in (*a.shape, *b.shape):
        if not why_unfused(_problem(a, b, kind, config, out, GATES[activation])):
            return product(a, b, kind, config, out, gated_finish(activation))
    with torch.no_grad():
        value = gate_by_torch(product(a, b, torch.float32, config), bias, activation, kind)
    return value if out is None else out.copy_(value)


def _differentiated(*tensors: torch.Tensor) -> bool:
    """Whether gradients are recorded, or one of torch.func's transforms is at work."""
    if _grad_enabled() and any(x.requires_grad for x in tensors):
        return True
    return not _is_compiling() and _functorch() is not None


def _accepted(
    a: torch.Tensor, b: torch.Tensor, config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None
) -> tuple[torch.Tensor, torch.Tensor, torch.dtype]:
    """A and B as autocast has them, checked, and the output's type."""
    require_tensors(a, b)
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
        check_out(out, shapes.result, kind, a, b)
    operands = check_epilogue(epilogue, given, a, b, out, shapes.result, kind)
    if _looked_on(a, b, out, *[x for x in operands.values() if isinstance(x, torch.Tensor)]):
        raise OperandError(
            "epilogue= is a launch of its own: not under torch.compile, torch.func or a mode, nor of fake tensors or "
            "tensor subclasses; bias= and activation= are"
        )
    check_apart(epilogue, operands, a, b, out)
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
        a, b = a.resolve_neg(), b.resolve_neg()
        for x in (c, *[operands[operand.name] for operand in epilogue.given if operand.written]):
            _written(x)
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


def _into(out: torch.Tensor | None, value: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if out is None:
        return value
    check_out(out, tuple(value.shape), value.dtype, a, b)
    return out.copy_(value)


def autocast(a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """float32, bfloat16 and float16 operands in the type of the autocast region they are in; as they are outside
    one."""
    kind = a.device.type
    if kind not in ("cuda", "cpu") or not torch.is_autocast_enabled(kind):
        return a, b
    to = torch.get_autocast_dtype(kind)
    takes = (torch.float32, torch.bfloat16, torch.float16)
    return a.to(to) if a.dtype in takes else a, b.to(to) if b.dtype in takes else b


def _looked_on(*tensors: torch.Tensor | None) -> bool:
    """Whether torch's dispatcher has to see the product: somebody records, transforms or fakes it."""
    given = [x for x in tensors if x is not None]
    return bool(
        _is_compiling()
        or any(type(x) not in _PLAIN or x.device.type == "meta" for x in given)
        or (_grad_enabled() and any(x.requires_grad for x in given))
        or _functions()
        or _modes()
        or _functorch() is not None
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
        _written(out)
    a, b = a.resolve_neg(), b.resolve_neg()
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


# ------------------------------------------------------------------------------------------------------------ in words


@dataclass(frozen=True)
class Explanation:
    """How matmul takes a product: what `explain_matmul` gives.

    kernel     configuration and operand orders, or where it is computed otherwise
    why        why this kernel
    launches   how many
    copies     one sentence for each tensor that is copied, with the rule that makes it necessary and its bytes
    workspace  bytes of device memory that the call takes besides inputs and output: the copies, and where torch gates a
               product, that product in float32; the kernels themselves take none
    """

    kernel: str
    why: str
    launches: int
    copies: tuple[str, ...]
    workspace: int

    def __str__(self) -> str:
        copies = "".join(f"\n  copied: {copy}" for copy in self.copies) or "\n  no copies"
        times = f", {self.launches} launches" if self.launches > 1 else ""
        return f"{self.kernel}{times}\n  {self.why}{copies}\n  workspace: {self.workspace} bytes"


def explain_matmul(
    a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor | None = None, config: Config | None = None,
    out_dtype: torch.dtype | None = None, activation: str | None = None,
) -> Explanation:  # fmt: skip
    """Which kernel `matmul` takes for these tensors, why, and what it copies. Nothing is compiled or launched.

    For CPU tensors it tells what would be done with such tensors on an H200. `activation` is looked at where it is one
    of a gated product: others change neither copies nor configuration.

    >>> import torch
    >>> a, b = torch.empty(4096, 4096).bfloat16(), torch.empty(4096, 1023).bfloat16()
    >>> for part in explain_matmul(a, b).copies[0].split("; "):
    ...     print(part)
    b: lines lie 1023 * 2 = 2046 bytes apart, no multiple of 16
    copied row-major, lines 1024 elements apart, 8388606 bytes
    >>> explain_matmul(a, torch.empty(2048, 4096).bfloat16().T, activation="swiglu").kernel.partition(",")[0]
    'Sm90Plan 4096x1024x4096: A bf16 row'
    """
    check_tensors(a, b, True)
    kind = output_type(a, b, out_dtype)
    gated = GATES.get(activation) if activation is not None else None
    shapes = gated_shapes(a.shape, b.shape, gated)
    if 0 in (*shapes.result, shapes.k):
        return Explanation("no kernel: zeros", "a size is 0", 0, (), 0)
    unfused = ""
    if gated is not None:
        check_gated_type(kind)
        unfused = why_unfused(_problem(a, b, kind, config, out, gated))
    if unfused:
        found = solve(_problem(a, b, torch.float32, config, None))
        kind = torch.float32
    else:
        found = solve(_problem(a, b, kind, config, out, gated))
    names = NAMES[a.dtype], NAMES[b.dtype], C_NAMES[kind]
    sizes = [0 if copy is None else copy.bytes(name) for copy, name in zip(found.copies, names, strict=True)]
    copies = tuple([f"{copy.why}, {size} bytes" for copy, size in zip(found.copies, sizes, strict=True) if copy])
    kernel, why, workspace = str(plan_of(found)), found.why, sum(sizes)
    if unfused:
        half = 4 * prod(shapes.result)  # of 2n columns; then besides act(gate) and its product with up
        kernel, workspace = f"{kernel}; then torch gates it", max(workspace + 2 * half, 4 * half)
        why = f"not in one kernel: {unfused}; {why}"
    return Explanation(kernel, why, len(found.launches), copies, workspace)


def _problem(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None, out: torch.Tensor | None,
    gated: str | None = None,
) -> Problem:  # fmt: skip
    shape: Sequence[int] = gated_shapes(a.shape, b.shape, gated).result
    places, name = gpu(a.get_device())
    c = out if out is not None else Given(tuple(shape), contiguous_strides(shape), C_NAMES[kind])
    return problem_of(a, b, c, choice_of(config), places, name, on=target(a.get_device()), gated=gated)

