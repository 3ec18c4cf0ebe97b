"""matmul((a, a2), (b, b2)): the sum of two products in one kernel, as for a low-rank update of weights (LoRA).

    matmul((x, x @ down), (w, up))       x @ w + (x @ down) @ up, added in float32 and rounded once

One accumulator takes the K tiles of the first pair and then of the second: see `kernels.sm90.operands.pair`. Bias and
activation follow in the kernel. On the CPU both products are computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.autograd.function import FunctionCtx

from ...arguments import shown
from ...dtypes import dtype
from ...errors import OperandError, TensorError
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.operands.pair import SecondPair
from ..bias_activation import GATES, by_torch, fused
from ..checks import autocast, check_call, check_finish, check_out, check_own_launch
from ..compiled.kept_launches import again_or
from ..compute import product
from ..explanation import Explanation
from ..launch import plan_of
from ..prepared import NO_FINISH, Config, LaunchEpilogue, choice_of, launched, on_gpu, problem_at, target
from ..problem import shapes_of
from ..reference import exact
from ..solver import solve
from ..types import NAMES
from .several import as_lines

Two = Sequence[torch.Tensor]


def matmul_pairs(
    a: Two, b: Two, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None, config: Config | None,
    out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> torch.Tensor:  # fmt: skip
    """activation(a[0] @ b[0] + a[1] @ b[1] + bias): `matmul` of two pairs. See the module's docstring.

    Raises TensorError for shapes, types and devices that do not meet, and OperandError for a GPU without such kernels.

    >>> x, one = torch.eye(2).half(), torch.ones(2, 1).half()
    >>> matmul_pairs((x, one), (x, one.T), None, None, None, None, None, None).tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """

    def make() -> torch.Tensor:
        left, right, kind = checked_pairs(a, b, out, bias, activation, config, out_dtype, allow_tf32)
        every = [*left, *right, *([] if bias is None else [bias])]
        if check_own_launch("a product of two pairs", every, out):
            if activation is not None or dtype(NAMES[left[0].dtype]).bits < 16:
                what = f"activation {activation!r}" if activation is not None else f"8 bits ({left[0].dtype})"
                raise TensorError(f"two pairs with {what} have no gradient: give detached tensors")
            first: torch.Tensor = _RecordedPairs.apply(*left, *right, bias, kind, config)
            return first
        with torch.no_grad():
            return computed_pairs(left, right, bias, activation, kind, config, out)

    if out is not None or not all(isinstance(x, (tuple, list)) and len(x) == 2 for x in (a, b)):
        return make()  # into `out` the product is copied
    if getattr(a[0], "dtype", None) is torch.float32:
        return make()  # whether float32 may be multiplied as tf32 is asked each time
    read = {"a": a[0], "b": b[0], "a2": a[1], "b2": b[1], "bias": bias}
    return again_or(make, ("matmul of two pairs", activation, config, out_dtype), read, None)


def checked_pairs(
    a: Two, b: Two, out: torch.Tensor | None, bias: torch.Tensor | None, activation: str | None, config: Config | None,
    out_dtype: torch.dtype | None, allow_tf32: bool | None,
) -> tuple[list[torch.Tensor], list[torch.Tensor], torch.dtype]:  # fmt: skip
    """The operands of a call and the result's type; raises as `matmul_pairs` does."""
    for name, x in (("a", a), ("b", b)):
        if not isinstance(x, (tuple, list)) or len(x) != 2:
            what = f"{len(x)} tensors" if isinstance(x, (tuple, list)) else f"a {type(x).__qualname__}"
            raise OperandError(f"{name} is {what}: the sum of two products takes a tuple of two for a and for b")
    named = {"a[0]": a[0], "a[1]": a[1], "b[0]": b[0], "b[1]": b[1], **({} if bias is None else {"bias": bias})}
    check_operands(named, {} if out is None else {"out": out})
    choice_of(config)
    if activation in GATES:
        raise OperandError(
            f"activation {shown(activation)} of two pairs: a gated product is of one; combine= takes others"
        )
    left: list[torch.Tensor] = []
    right: list[torch.Tensor] = []
    kind: torch.dtype = a[0].dtype
    for i in range(2):
        if a[i].ndim < 2 or b[i].ndim != 2 or a[i].shape[:-1] != a[0].shape[:-1] or b[i].shape[1] != b[0].shape[1]:
            of = f"a[{i}] of {list(a[i].shape)} and b[{i}] of {list(b[i].shape)}"
            want = f"[..., M, K] and [K, N] with the rows of {list(a[0].shape)} and the columns of {list(b[0].shape)}"
            raise TensorError(f"{of}: two pairs are {want}")
        one, two = autocast(a[i], b[i])
        if one.dtype != (left or [one])[0].dtype or two.dtype != (right or [two])[0].dtype:
            raise TensorError(f"a[{i}] is {one.dtype} and b[{i}] {two.dtype}: both pairs have one type")
        one, two, kind = check_call(one, two, activation, out_dtype, allow_tf32)
        left.append(one)
        right.append(two)
    if not kind.is_floating_point:
        raise OperandError(f"the product is {kind}: two pairs are summed in float32; say out_dtype=torch.float32")
    shape, _ = [shapes_of(one.shape, two.shape).result for one, two in zip(left, right)]
    check_finish(bias, activation, shape, kind)
    if out is not None:
        check_out(out, shape, kind, {"a": left[0], "b": right[0]})
    return left, right, kind


def computed_pairs(
    left: Two, right: Two, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype,
    config: Config | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The sum of two products of checked tensors, computed now; no derivative is recorded."""
    shape = shapes_of(left[0].shape, right[0].shape).result
    if 0 in shape:
        return torch.empty(shape, dtype=kind, device=left[0].device) if out is None else out
    gpu, live = on_gpu(left[0].get_device()), [i for i in range(2) if left[i].shape[-1]]
    if gpu and len(live) == 2:
        value = _launched(left, right, bias, activation, kind, config)
        return value.reshape(shape) if out is None else out.copy_(value.reshape(shape))
    if gpu:
        terms = [product(left[i], right[i], torch.float32, config) for i in live]
    else:
        terms = [exact(left[i], right[i]).double() for i in live]
    total = sum(terms[1:], terms[0]) if terms else torch.zeros(shape, dtype=torch.float32, device=left[0].device)
    value = by_torch(total, bias, activation, kind)
    return value if out is None else out.copy_(value)


def _launched(
    left: Two, right: Two, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype, config: Config | None
) -> torch.Tensor:
    """One launch, rows as one matrix."""
    code, _ = target(left[0].get_device())
    if code != "sm_90a":
        raise OperandError(f"{left[0].device} runs {code}: two pairs in one kernel need wgmma, compute capability 9.0")
    bias = None if bias is None else bias.resolve_neg()
    rows, columns, _ = placed_pairs(left, right)
    after = NO_FINISH
    if bias is not None or activation is not None:
        found = fused(bias, activation, kind, columns[0].shape[1])
        if found is None:  # a bias that no kernel reads
            wide = launched(rows[0], columns[0], torch.float32, config, None, finish_of_pairs(rows, columns, NO_FINISH))
            return by_torch(wide, bias, activation, kind)
        after = found
    return launched(rows[0], columns[0], kind, config, None, finish_of_pairs(rows, columns, after))


def placed_pairs(left: Two, right: Two) -> tuple[list[torch.Tensor], list[torch.Tensor], list[str]]:
    """(A and A2 as matrices, B and B2, what was copied): each two in one order that tensor copies read."""
    lines = [x.resolve_neg().reshape(-1, x.shape[-1]) for x in left]
    rows, of_a = as_lines(lines, "a", "row")
    columns, of_b = as_lines([x.resolve_neg() for x in right], "b")
    return rows, columns, [*of_a, *of_b]


def finish_of_pairs(rows: Two, columns: Two, after: LaunchEpilogue) -> LaunchEpilogue:
    """The second pair as a kernel takes it, after the words of an epilogue."""
    places = [word for x in (rows[1], columns[1]) for word in (x.data_ptr(), max(x.stride()))]
    second = rows[1].shape[1]
    key = (*after.key, "pair", second, rows[0].stride(), columns[0].stride())
    return after._replace(words=(*after.words, *places, second), key=key, second_k=second)


def explain_pairs(
    a: Two, b: Two, out: torch.Tensor | None, activation: str | None, config: Config | None,
    out_dtype: torch.dtype | None,
) -> Explanation:  # fmt: skip
    """Which kernel the sum takes, why, and what it copies; raises as `matmul_pairs` does."""
    left, right, kind = checked_pairs(a, b, out, None, activation, config, out_dtype, True)
    if 0 in (*left[0].shape, *right[0].shape, *left[1].shape):
        return Explanation("one product, or none", "a size is 0", 0, (), 0)
    rows, columns, copied = placed_pairs(left, right)
    found = solve(problem_at(rows[0], columns[0], kind, config, None, finish_of_pairs(rows, columns, NO_FINISH)))
    made = [x for x, y in zip((*rows, *columns), (*left, *right)) if x.data_ptr() != y.data_ptr()]
    memory = sum(x.untyped_storage().nbytes() for x in made)
    plan = replace(plan_of(found), pair=SecondPair(rows[1].shape[1]))
    return Explanation(str(plan), found.why, 1, tuple(copied), memory)


class _RecordedPairs(torch.autograd.Function):
    """The sum of two products with its gradients, those of each product."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, a: torch.Tensor, a2: torch.Tensor, b: torch.Tensor, b2: torch.Tensor,
        bias: torch.Tensor | None, kind: torch.dtype, config: Config | None,
    ) -> torch.Tensor:  # fmt: skip
        ctx.save_for_backward(a, a2, b, b2)
        ctx.kind_of_bias = None if bias is None else bias.dtype
        return computed_pairs((a, a2), (b, b2), bias, None, kind, config)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph
            raise TensorError("two pairs have first derivatives alone: no create_graph=True")
        saved = ctx.saved_tensors
        left, right, wants = saved[:2], saved[2:], ctx.needs_input_grad
        slope = grad.to(left[0].dtype)
        flat = slope.reshape(-1, slope.shape[-1])
        of_a = [product(slope, right[i].T, left[i].dtype) if wants[i] else None for i in range(2)]
        of_b = [
            product(left[i].reshape(-1, left[i].shape[-1]).T, flat, right[i].dtype) if wants[2 + i] else None
            for i in range(2)
        ]
        of_bias = None
        if wants[4]:
            of_bias = grad.reshape(-1, grad.shape[-1]).sum(0, dtype=torch.float32).to(ctx.kind_of_bias)
        return *of_a, *of_b, of_bias, None, None
