"""matmul(a, (b0, b1), combine=f). One function of the products of a with several matrices, in one kernel.

    matmul(x, (w_gate, w_up), combine="silu")                            SwiGLU of weights that lie apart
    matmul(x, (w0, w1), combine=lambda p, q, ops, s: p + s * q, given={"s": 0.5})

The kernel loads each tile of a once for all products, and an element's sums meet in registers: see
`kernels.operands.combined`. On the CPU products and function are computed in float64, and rounded once.

Gradients recompute the products in float32: see `operators`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from ...errors import OperandError, TensorError
from ...kernels.epilogue.parameters import float_word, host_number
from ...kernels.operands.combined import Combine, Combined, function_of, refusal_of_matrices
from ...kernels.run.operand_checks import check_operands
from ..checks import autocast, check_call, check_out
from ..explanation import Explanation
from ..launch import plan_of
from ..prepared import Config, LaunchEpilogue, choice_of, launched, on_gpu, problem_at, start, target
from ..problem import reads_by_tma, shapes_of
from ..reference import exact, rounded
from ..solver import padded_strides, solve
from ..types import C_NAMES, NAMES

NO_DICT = "given is a {}; it is a dict, the function's numbers by name"
_BOTH_MAJORS = ("bf16", "f16")


class TorchMath:
    """The functions of a traced expression on tensors."""

    def __init__(self, like: torch.Tensor):
        self._like = like

    def to_float(self, x: torch.Tensor) -> torch.Tensor:
        """Coordinates, of the tensors' type."""
        return x.to(self._like.dtype)

    def whole(self, x: torch.Tensor) -> torch.Tensor:
        """Cut to int32; beyond it the nearest, of NaN 0."""
        return x.double().nan_to_num(0.0, torch.inf, -torch.inf).clamp(-(2**31), 2**31 - 1).to(torch.int32)

    def constant(self, value: float) -> torch.Tensor:
        """A number, on the tensors' device and of their type."""
        return torch.full((), value, dtype=self._like.dtype, device=self._like.device)

    def __getattr__(self, name: str) -> Callable[..., torch.Tensor]:
        """The operation of that name, of tensors and of whole numbers in an expression."""
        function = _OPERATIONS[name]
        return lambda *values: function(*[self.tensor(value) for value in values])

    def tensor(self, value: torch.Tensor | float) -> torch.Tensor:
        """A value of an expression as a tensor, on the tensors' device."""
        if isinstance(value, torch.Tensor):
            return value
        kind = torch.int32 if isinstance(value, int) else self._like.dtype
        return torch.full((), value, dtype=kind, device=self._like.device)  # a CUDA graph captures a fill


def _normal(x: torch.Tensor) -> torch.Tensor:
    """The normal distribution. `torch.special.ndtr` is 1 + erf, which is 0 where the result is small."""
    return torch.erfc(x * -math.sqrt(0.5)) / 2


_OPERATIONS: Mapping[str, Callable[..., torch.Tensor]] = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div, "lt": torch.lt, "le": torch.le,
    "gt": torch.gt, "ge": torch.ge, "eq": torch.eq, "ne": torch.ne, "where": torch.where, "exp": torch.exp,
    "log": torch.log, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "tanh": torch.tanh, "erf": torch.erf,
    "sigmoid": torch.sigmoid, "normal": _normal, "maximum": torch.fmax, "minimum": torch.fmin,
    "largest": torch.maximum, "smallest": torch.minimum, "floordiv": torch.floor_divide, "mod": torch.remainder,
    "abs": torch.abs, "sin": torch.sin, "cos": torch.cos, "floor": torch.floor, "round": torch.round,
    "and_": torch.bitwise_and, "or_": torch.bitwise_or, "xor": torch.bitwise_xor,
}  # fmt: skip


def combined_sums(how: Combined, sums: Sequence[torch.Tensor], numbers: Mapping[str, float]) -> torch.Tensor:
    """The function of the sums, of their shape and type. A constant is an element of all.

    >>> combined_sums(Combined.of(lambda p, q, ops: 2.0), [torch.zeros(1, 3)] * 2, {}).tolist()
    [[2.0, 2.0, 2.0]]
    """
    value: torch.Tensor = how.apply(sums, TorchMath(sums[0]), numbers)
    return value.expand(sums[0].shape)


def function_and_numbers(
    b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None
) -> tuple[Combined, dict[str, float]]:
    """The function of a call, and its numbers by name. Raises OperandError for a call that has none."""
    if text := refusal_of_matrices(b):
        raise OperandError(text)
    if given is not None and not isinstance(given, Mapping):
        raise OperandError(NO_DICT.format(type(given).__qualname__))
    numbers = {name: float(host_number(name, x)) for name, x in (given or {}).items()}
    return function_of(combine, len(b), tuple(numbers)), numbers


def check_alike(matrices: Sequence[torch.Tensor], rank: int | None = None) -> None:
    """Raise TensorError for a matrix of another shape or type than the first. `rank` of all, or None for any."""
    first = matrices[0]
    for i, x in enumerate(matrices):
        if x.ndim != (rank or x.ndim) or x.shape != first.shape or x.dtype != first.dtype:
            one, of = (f"{y.dtype} of shape {list(y.shape)}" for y in (first, x))
            raise TensorError(f"b[{i}] is {of}: matrices of one shape and type are combined, b[0] is {one}")


def checked_call(
    a: torch.Tensor, b: Sequence[torch.Tensor], combine: Combine, given: Mapping[str, object] | None,
    out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> tuple[torch.Tensor, list[torch.Tensor], Combined, dict[str, float], torch.dtype]:  # fmt: skip
    """The operands of a call, its function and numbers, and the result's type. Raises as `matmul_combined` does."""
    how, numbers = function_and_numbers(b, combine, given)
    named = {f"b[{i}]": x for i, x in enumerate(b)}
    check_operands({"a": a, **named}, {} if out is None else {"out": out})
    choice_of(config)
    matrices = [autocast(a, x)[1] for x in b]
    check_alike(matrices, 2)
    if a.ndim < 2:
        raise TensorError("a is a vector: combine= takes a matrix, or a batch of them")
    a, matrices[0], kind = check_call(a, b[0], None, out_dtype, allow_tf32)
    if not kind.is_floating_point:
        raise OperandError(f"the product is {kind}, and sums are combined in float32: say out_dtype=torch.float32")
    shape = shapes_of(a.shape, matrices[0].shape).result
    if out is not None:
        check_out(out, shape, kind, {"a": a, "b": matrices[0]})
    return a, matrices, how, numbers, kind


# The product on a GPU without wgmma, of the arguments of `computed`: `composed.product` puts it here.
BY_MMA_SYNC: list[Callable[..., torch.Tensor]] = []


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
        value = rounded(combined_sums(how, sums, numbers), kind)
        return value if out is None else out.copy_(value)
    if shapes.k == 0:  # empty sums are 0, and the function of them follows
        a, matrices = a.new_zeros(*a.shape[:-1], 16), [b.new_zeros(16, b.shape[1]) for b in matrices]
    if not reads_by_tma(target(a.get_device(), config)[0]):
        return BY_MMA_SYNC[0](a, matrices, how, numbers, kind, config, out)
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


def order_of(x: torch.Tensor, k_major: str) -> str:
    """The order in which a kernel reads an operand. 8-bit types and tf32 with K contiguous alone."""
    if x.dtype not in (torch.bfloat16, torch.float16):
        return k_major
    along = {"row": x.stride(-1), "col": x.stride(-2)}
    other = "col" if k_major == "row" else "row"
    return other if along[other] == 1 and along[k_major] != 1 else k_major


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
