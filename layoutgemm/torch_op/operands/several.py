"""matmul(a, (b0, b1), combine=f): one function of the products of a with several matrices, in one kernel.

    matmul(x, (w_gate, w_up), combine="silu")                            SwiGLU of weights that lie apart
    matmul(x, (w0, w1), combine=lambda p, q, ops, s: p + s * q, given={"s": 0.5})

The kernel loads each tile of a once for all products, and an element's sums meet in registers: see
`kernels.sm90.operands.combined`. On the CPU products and function are computed in float64, and rounded once.

Gradients recompute the products in float32: torch differentiates the function, and each product has its two gradients.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.autograd.function import FunctionCtx

from ...dtypes import dtype, f32
from ...errors import OperandError, PlanError, TensorError
from ...kernels.epilogue.parameters import float_word, host_number
from ...kernels.epilogue.steps import ACTIVATIONS, EpilogueOperand, check_activation
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.operands.combined import LEAST_MATRICES, MOST_MATRICES, Combined
from ..checks import autocast, check_call, check_out, check_own_launch, refuse_traces
from ..compiled.kept_launches import Extras, again_or
from ..compute import product
from ..explanation import Explanation
from ..launch import plan_of
from ..prepared import Config, LaunchEpilogue, choice_of, launched, on_gpu, problem_at, start, target
from ..problem import shapes_of
from ..reference import exact, rounded
from ..solver import padded_strides, solve
from ..types import C_NAMES, NAMES

Combine = Callable[..., Any] | Combined | str
_BOTH_MAJORS = ("bf16", "f16")


class TorchMath:
    """The functions of a traced expression on tensors."""

    def __init__(self, like: torch.Tensor):
        self._like = like

    def to_float(self, x: torch.Tensor) -> torch.Tensor:
        """Coordinates, of the tensors' type."""
        return x.to(self._like.dtype)

    def constant(self, value: float) -> torch.Tensor:
        """A number, on the tensors' device and of their type."""
        return torch.full((), value, dtype=self._like.dtype, device=self._like.device)  # a CUDA graph captures a fill

    add, sub, mul, div = (staticmethod(f) for f in (torch.add, torch.sub, torch.mul, torch.div))
    lt, le, gt, ge = (staticmethod(f) for f in (torch.lt, torch.le, torch.gt, torch.ge))
    eq, ne, where = (staticmethod(f) for f in (torch.eq, torch.ne, torch.where))
    exp, log, sqrt, rsqrt = (staticmethod(f) for f in (torch.exp, torch.log, torch.sqrt, torch.rsqrt))
    tanh, erf, sigmoid = (staticmethod(f) for f in (torch.tanh, torch.erf, torch.sigmoid))
    normal = staticmethod(torch.special.ndtr)
    maximum, minimum = staticmethod(torch.fmax), staticmethod(torch.fmin)
    largest, smallest = staticmethod(torch.maximum), staticmethod(torch.minimum)
    floordiv, mod = staticmethod(torch.floor_divide), staticmethod(torch.remainder)
    and_, or_, xor = (staticmethod(f) for f in (torch.bitwise_and, torch.bitwise_or, torch.bitwise_xor))


def matmul_combined(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None,
    out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """combine(a @ b[0], a @ b[1], ...): `matmul` of several matrices. See the module's docstring.

    Raises TensorError for shapes, types and devices that do not meet, OperandError for a function or numbers that do
    not fit, and for a GPU without such kernels.

    >>> x, w = torch.eye(2).half(), torch.tensor([[1.0, -2.0], [3.0, 4.0]]).half()
    >>> matmul_combined(x, (w, w), lambda p, q, ops, s: ops.maximum(p, 0.0) + s * q, {"s": 10}, None, None, None, None)
    tensor([[ 11., -20.],
            [ 33.,  44.]], dtype=torch.float16)
    """

    def make() -> torch.Tensor:
        refuse_traces("combine=")
        left, matrices, how, numbers, kind = checked_call(a, b, combine, given, out, config, out_dtype, allow_tf32)
        if check_own_launch("combine=", (left, *matrices), out):
            if dtype(NAMES[left.dtype]).bits < 16:
                raise TensorError(f"a is {left.dtype}, and products of 8 bits have no gradient: give detached tensors")
            first: torch.Tensor = _RecordedSeveral.apply(left, how, numbers, kind, config, *matrices)
            return first
        with torch.no_grad():
            return computed(left, matrices, how, numbers, kind, config, out)

    values = {} if given is None else given
    plain = isinstance(b, (tuple, list)) and type(values) is dict and all(type(name) is str for name in values)
    if not plain or getattr(a, "dtype", None) is torch.float32:
        return make()  # whether float32 may be multiplied as tf32 is asked each time
    extras = Extras(numbers=_numbers_named(tuple(values)), given=values)
    options = ("matmul, combine=", combine, tuple(values), config, out_dtype)
    return again_or(make, options, {"a": a, **{f"b{i}" if i else "b": x for i, x in enumerate(b)}}, out, extras)


def checked_call(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None,
    out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> tuple[torch.Tensor, list[torch.Tensor], Combined, dict[str, float], torch.dtype]:  # fmt: skip
    """The operands of a call, its function and numbers, and the result's type; raises as `matmul_combined` does."""
    if not isinstance(b, (tuple, list)) or not LEAST_MATRICES <= len(b) <= MOST_MATRICES:
        what = f"{len(b)} matrices" if isinstance(b, (tuple, list)) else f"a {type(b).__qualname__}"
        raise OperandError(f"b is {what}: combine= takes a tuple of {LEAST_MATRICES} to {MOST_MATRICES} matrices")
    if given is not None and not isinstance(given, Mapping):
        raise OperandError(f"given is a {type(given).__qualname__}; it is a dict, the function's numbers by name")
    numbers = {name: float(host_number(name, x)) for name, x in (given or {}).items()}
    how = function_of(combine, len(b), tuple(numbers))
    named = {f"b[{i}]": x for i, x in enumerate(b)}
    check_operands({"a": a, **named}, {} if out is None else {"out": out})
    choice_of(config)
    matrices = [autocast(a, x)[1] for x in b]
    first = matrices[0]
    for name, x in zip(named, matrices, strict=True):
        if x.ndim != 2 or x.shape != first.shape or x.dtype != first.dtype:
            one, of = (f"{y.dtype} of shape {list(y.shape)}" for y in (first, x))
            raise TensorError(f"{name} is {of}: matrices of one shape and type are combined, b[0] is {one}")
    if a.ndim < 2:
        raise TensorError("a is a vector: combine= takes a matrix, or a batch of them")
    a, matrices[0], kind = check_call(a, b[0], None, out_dtype, allow_tf32)
    if not kind.is_floating_point:
        raise OperandError(f"the product is {kind}, and sums are combined in float32: say out_dtype=torch.float32")
    shape = shapes_of(a.shape, matrices[0].shape).result
    if out is not None:
        check_out(out, shape, kind, {"a": a, "b": matrices[0]})
    return a, matrices, how, numbers, kind


def function_of(combine: Combine, matrices: int, numbers: tuple[str, ...]) -> Combined:
    """The function of a call, traced once for each function object. Raises OperandError for one that does not fit.

    >>> function_of("gelu", 2, ()).matrices, function_of(lambda x, y, ops, s: x - s * y, 2, ("s",)).numbers
    (2, ('s',))
    """
    try:
        if isinstance(combine, Combined):
            if (combine.matrices, combine.numbers) != (matrices, numbers) or not combine.separate:
                raise PlanError(f"combine takes {combine.matrices} matrices and {combine.numbers}, given are "
                                f"{matrices} and {numbers}")  # fmt: skip
            return combine
        return _traced(combine, matrices, numbers)
    except TypeError as error:  # without a hash
        raise OperandError(f"combine is a {type(combine).__qualname__}: a function, or the name of a gate") from error
    except PlanError as error:
        raise OperandError(str(error)) from error


@functools.lru_cache(256)
def _numbers_named(names: tuple[str, ...]) -> tuple[EpilogueOperand, ...]:
    """The function's numbers as a launch takes them; a name that no function has is refused with the function."""
    return tuple([EpilogueOperand(name, "", f32, host=True) for name in names if name.isidentifier()])


@functools.lru_cache(256)
def _traced(combine: Callable[..., object] | str, matrices: int, numbers: tuple[str, ...]) -> Combined:
    if not isinstance(combine, str):
        return Combined.of(combine, matrices, numbers)
    check_activation(combine, "combine =")
    return Combined.of(lambda gate, up, ops: ACTIVATIONS[combine](gate, ops) * up, matrices, numbers)


def computed(
    a: torch.Tensor, matrices: Sequence[torch.Tensor], how: Combined, numbers: Mapping[str, float],
    kind: torch.dtype, config: Config | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product of checked tensors, computed now; no derivative is recorded."""
    shapes = shapes_of(a.shape, matrices[0].shape)
    if 0 in shapes.result:
        return torch.empty(shapes.result, dtype=kind, device=a.device) if out is None else out
    if not on_gpu(a.get_device()):
        sums = [exact(a, b).double() for b in matrices]
        value = rounded(how.apply(sums, TorchMath(sums[0]), numbers), kind)
        return value if out is None else out.copy_(value)
    code, _ = target(a.get_device())
    if code != "sm_90a":
        raise OperandError(f"{a.device} runs {code}: combine= needs wgmma, compute capability 9.0")
    if shapes.k == 0:  # empty sums are 0, and the function of them follows
        a, matrices = a.new_zeros(*a.shape[:-1], 16), [b.new_zeros(16, b.shape[1]) for b in matrices]
    placed, _ = as_lines([b.resolve_neg() for b in matrices])
    return launched(a, placed[0], kind, config, out, finish_of(how, numbers, placed))


def finish_of(how: Combined, numbers: Mapping[str, float], placed: Sequence[torch.Tensor]) -> LaunchEpilogue:
    """The function as a kernel takes it, with its parameters at this launch."""
    words = [word for b in placed[1:] for word in (b.data_ptr(), max(b.stride()))]
    words += [float_word(numbers[name]) for name in how.numbers]
    return LaunchEpilogue(None, tuple(words), (how, placed[0].stride()), gated=how)


def as_lines(
    matrices: Sequence[torch.Tensor], side: str = "b", k_major: str = "col"
) -> tuple[list[torch.Tensor], list[str]]:
    """(matrices of one order that tensor copies read, what was copied for it, in words).

    side, k_major  the operand's name, and its order with K contiguous

    The order is the first matrix's that is read in place; K-major if no matrix is.

    >>> x = torch.empty(64, 24).half()
    >>> [b.stride() for b in as_lines([x, x.T.contiguous().T])[0]], as_lines([x[:, 1:]])[1]
    ([(24, 1), (24, 1)], ['b[0]: copied row-major, no lines that tensor copies read'])
    """
    name = NAMES[matrices[0].dtype]
    kept = "row" if name in _BOTH_MAJORS else k_major
    order = next((order for b in matrices for order in _orders(b, name, k_major)), kept)
    placed, copies = [], []
    for i, b in enumerate(matrices):
        able = _orders(b, name, k_major)
        if order in able:
            placed.append(b)
            continue
        made = torch.empty_strided(b.shape, padded_strides(tuple(b.shape), order, name), dtype=b.dtype, device=b.device)
        placed.append(made.copy_(b))
        why = f"{able[0]}-major, unlike others" if able else "no lines that tensor copies read"
        copies.append(f"{side}[{i}]: copied {order}-major, {why}")
    return placed, copies


def _orders(b: torch.Tensor, name: str, k_major: str) -> tuple[str, ...]:
    """The orders in which tensor copies read a matrix; K-major first."""
    found = []
    lines = {"col": (b.shape[0], b.stride(0), b.stride(1)), "row": (b.shape[1], b.stride(1), b.stride(0))}
    for order in (k_major, "row" if k_major == "col" else "col"):
        extent, step, pitch = lines[order]
        reads = order == k_major or name in _BOTH_MAJORS
        if reads and step == 1 and pitch >= max(extent, 2) and pitch * b.element_size() % 16 == 0 and start(b) == 16:
            found.append(order)
    return tuple(found)


def explain_combined(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None,
    out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None,
) -> Explanation:  # fmt: skip
    """Which kernel the product takes, why, and what it copies; raises as `matmul_combined` does."""
    a, matrices, how, numbers, kind = checked_call(a, b, combine, given, out, config, out_dtype, True)
    if 0 in (*a.shape, *matrices[0].shape):
        return Explanation("no kernel: the function of empty sums", "a size is 0", 0, (), 0)
    placed, copied = as_lines(matrices)
    found = solve(problem_at(a, placed[0], kind, config, out, finish_of(how, numbers, placed)))
    sizes = [0 if copy is None else copy.bytes(name) for copy, name in
             zip(found.copies, (NAMES[a.dtype], NAMES[a.dtype], C_NAMES[kind]), strict=True)]  # fmt: skip
    said = [f"{copy.why}, {size} bytes" for copy, size in zip(found.copies, sizes, strict=True) if copy]
    lines = sum(x.untyped_storage().nbytes() for x, y in zip(placed, matrices) if x is not y)
    return Explanation(str(plan_of(found)), found.why, len(found.launches), (*said, *copied), sum(sizes) + lines)


class _RecordedSeveral(torch.autograd.Function):
    """A product of several matrices with its gradients: products are computed again, the function's by torch."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, a: torch.Tensor, how: Combined, numbers: dict[str, float], kind: torch.dtype,
        config: Config | None, *matrices: torch.Tensor,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(a, *matrices)
        ctx.how, ctx.numbers = how, numbers
        return computed(a, matrices, how, numbers, kind, config)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph
            raise TensorError("combine= has first derivatives alone: no create_graph=True")
        a, *matrices = ctx.saved_tensors
        wants_a, wants = ctx.needs_input_grad[0], ctx.needs_input_grad[5:]
        with torch.enable_grad():
            sums = [product(a, b, torch.float32).requires_grad_() for b in matrices]
            value = ctx.how.apply(sums, TorchMath(sums[0]), ctx.numbers)
        found = torch.autograd.grad(value, sums, grad.float(), allow_unused=True)
        slopes = [torch.zeros_like(x) if g is None else g for x, g in zip(sums, found)]
        slopes = [g.to(a.dtype) for g in slopes]
        lines = a.reshape(-1, a.shape[-1])
        of_b = [
            product(lines.T, g.reshape(-1, g.shape[-1]), b.dtype) if want else None
            for g, b, want in zip(slopes, matrices, wants)
        ]
        of_a = None
        if wants_a:
            terms = [product(g, b.T, torch.float32) for g, b in zip(slopes, matrices)]
            of_a = functools.reduce(torch.add, terms).to(a.dtype)
        return of_a, None, None, None, None, *of_b
