"""layoutgemm.fp8_grouped_matmul: groups of rows in fp8, with gradients in fp8. Operands have 16 or 32 bits.

Each product quantises its operands along the dimension that it sums over:

    product                  left, quantised along    right, quantised along    scales of blocks
    -----------------------  -----------------------  ------------------------  -----------------
    C[g] = A[g] @ B[e]       A (rows, K), K           B^T (E, N, K), K          1x128 by 128x128
    dA[g] = dC[g] @ B[e]^T   dC (rows, N), N          B (E, K, N), N            1x128 by 128x128
    dB[e] = A[g]^T @ dC[g]   A^T (K, rows), rows      dC^T (N, rows), rows      1x128 by 1x128

A block of rows has one scale, so dB is such a product where groups begin at multiples of 128. Elsewhere it is a product
of 16 bits. Accumulators are float32. Scales are constants to autograd, and rounding is the identity. The operands
themselves are kept for the backward pass. There one launch makes both forms of dC, and those of A^T and B. A product
along K has gradients by the first two rows of the table, so there are second derivatives.
"""

from __future__ import annotations

from typing import NoReturn

import torch
from torch.autograd.function import FunctionCtx

from ...arguments import sees_unknown, shown
from ...errors import TensorError
from ...kernels.operands.promoted import DEPTH
from ...kernels.ragged import check_multiples
from ...kernels.run.operand_checks import addressed, check_operands
from ..autograd.products import dense
from ..checks import autocast, differentiated
from ..compiled.traced import check_kinds, named, refuse_unknown
from ..fp8.api import Together, joins, quantize_together
from ..fp8.launch import Pair
from ..operators import operator_of
from ..types import listed
from .api import grouped_matmul
from .grouped import ALONG_K, ENDS, OFFSETS, ROWS, groups_of
from .operators import lies_in_columns
from .recipes import BLOCK, SQUARE
from .training import TRAINED, is_exporting, refuse_training, refuse_transforms

_SHORT = (torch.bfloat16, torch.float16)


@sees_unknown
def fp8_grouped_matmul(
    a: torch.Tensor,
    b: torch.Tensor,
    offsets: torch.Tensor | None = None,
    *,
    offs: torch.Tensor | None = None,
    multiple: int = 1,
    out_dtype: torch.dtype | None = None,
    **unknown: NoReturn,
) -> torch.Tensor:
    """grouped_matmul(a, b, offsets) of rows in float8_e4m3fn with scales, and gradients by such products.

    a, b      (rows, K) and (experts, K, N), bfloat16, float16 or float32; on a GPU of compute capability 9.0 or on the
              CPU. Autocast casts them
    offsets, offs  where groups of rows begin, or end, as `grouped_matmul` has them
    multiple  128 promises groups that begin at multiples of 128, and end there or at the last row: b's gradient is in
              fp8 too, with a scale for each 1x128 of both operands. 1 promises nothing: b's gradient is
              `grouped_matmul`'s of a and the result's gradient, in a's type, of 16 bits
    out_dtype default a's type

    Scales are BlockWise1x128 of a and of the result's gradient, BlockWise128x128 of b. A gradient has its operand's
    type, and the strides of transposed matrices where b has them. Differentiable any number of times, under
    torch.compile too. With da = max(2**-4 |a|, 2**-10 scale) and db likewise, the sums of a product in fp8 are off by
    at most the sum over K of da |b| + |a| db + da db.

    On the CPU a broken promise is refused. On a GPU the gradient of b is NaN for a group that begins or ends inside of
    a block of 128 rows.

    Raises OperandError or TensorError, naming the operand.

    >>> experts = torch.ones(2, 3, 128).bfloat16().requires_grad_()
    >>> x, ends = torch.full((384, 128), 0.5).bfloat16(), torch.tensor([128, 384])
    >>> c = fp8_grouped_matmul(x, experts.mT, offs=ends, multiple=128)
    >>> c.sum().backward()
    >>> c[0].tolist(), experts.grad[:, 0, 0].tolist()
    ([64.0, 64.0, 64.0], [64.0, 128.0])
    """
    if unknown:
        refuse_unknown(fp8_grouped_matmul, tuple(unknown))
    groups, said = groups_of(offsets, offs, None)
    given = {"a": a, "b": b, **named(**{said: groups})}
    if torch.compiler.is_dynamo_compiling():
        check_kinds(given, {})
    elif not torch.compiler.is_compiling():
        check_operands(given)
        refuse_transforms("fp8_grouped_matmul", given)
    a, b = autocast(a, b)
    _check(a, b, groups, said, multiple)
    kind = a.dtype if out_dtype is None else out_dtype
    if is_exporting():  # which drops the gradients of a Function, and records an operator that has them
        made: torch.Tensor = torch.ops.layoutgemm.fp8_grouped_product(a, b, groups, said, multiple, kind)
        return made
    value: torch.Tensor = _Fp8Groups.apply(a, b, groups, said, ROWS, multiple, kind)
    return value


def _check(a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str, multiple: object) -> None:
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in TRAINED:
            refuse_training(
                f"{name} is {x.dtype}: fp8_grouped_matmul quantises {listed(TRAINED)}; grouped_matmul takes 8-bit "
                "floats"
            )
    if a.ndim != 2 or b.ndim != 3 or a.shape[-1] != b.shape[-2]:
        shapes = f"a and b have shapes {list(a.shape)} and {list(b.shape)}"
        refuse_training(f"{shapes}: groups of rows are (rows, K) and (experts, K, N)", TensorError)
    if type(multiple) is not int or multiple not in (1, DEPTH):
        refuse_training(f"multiple = {shown(multiple)}: groups begin at any row, 1, or at multiples of {DEPTH}")
    if groups is None:
        refuse_training("offsets is missing: groups of rows have offsets, or ends, offs")
    if multiple == 1 and a.dtype not in _SHORT and differentiated(b):
        refuse_training(
            f"a is {a.dtype}, and b's gradient of groups that begin at any row is a product of {listed(_SHORT)}: "
            f"multiple={DEPTH}, with groups at multiples of it, or a.bfloat16()"
        )
    assert groups is not None
    if multiple == DEPTH and not torch.compiler.is_compiling() and groups.device.type == "cpu" and addressed(groups):
        check_multiples(said, groups.tolist(), DEPTH, a.shape[0])


class _Fp8Groups(torch.autograd.Function):
    """A grouped product of operands that are quantised for it. Its gradients are such products too.

    form  groups of rows, or along K: the gradient of the first one's matrices. With G the result's gradient:

        rows     left @ right[e]      of left G @ right[e]^T, of right left^T @ G along K
        along K  left @ right -> [e]  of left (right @ G[e]^T)^T, of right left^T @ G[e]
    """

    @staticmethod
    def forward(
        ctx: FunctionCtx, left: torch.Tensor, right: torch.Tensor, groups: torch.Tensor, said: str, form: str,
        multiple: int, kind: torch.dtype,
    ) -> torch.Tensor:  # fmt: skip
        # each operand is kept for the other's gradient alone
        kept = left if right.requires_grad else None, right if left.requires_grad else None
        ctx.save_for_backward(*kept, groups)
        ctx.facts = said, form, multiple, left.dtype, right.dtype, lies_in_columns(right)
        if torch.compiler.is_compiling() and not torch.compiler.is_dynamo_compiling():
            # torch.export runs this with gradients on, and quantize refuses what requires one
            left, right = left.detach(), right.detach()
        return _product(left, right, groups, said, form, multiple, kind)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        left, right, groups = ctx.saved_tensors
        said, form, multiple, of_left, of_right, by_columns = ctx.facts
        wants_left, wants_right = ctx.needs_input_grad[:2]
        grad = dense(grad)
        # Recorded where a derivative of these is asked for; else without a node of autograd.
        multiply = _recorded if torch.is_grad_enabled() else _product
        facts = groups, said
        made_left = made_right = dy = turned = x = y = None
        if form == ALONG_K:
            if wants_left:
                made_left = multiply(right, grad.mT, *facts, ROWS, multiple, of_left).mT
            if wants_right:
                made_right = multiply(left.mT, grad, *facts, ROWS, multiple, of_right)
            return made_left, made_right, None, None, None, None, None
        if wants_left and wants_right and multiple == DEPTH and multiply is _product:
            asked: list[Together] = [(grad, BLOCK, True), (right, SQUARE, False), (left.mT, BLOCK, False)]
            together = joins(asked)
            (dy, turned, *others), _ = quantize_together(asked if together else asked[:1])
            y, x = others if together else (None, None)
        if wants_left:
            made_left = multiply(grad, right.mT, *facts, ROWS, multiple, of_left, x=dy, y=y)
        if multiple == 1 and of_left in _SHORT:
            grad = grad.to(of_left)
        if wants_right and by_columns:  # with the strides of the operand that it is of
            made_right = multiply(grad.mT, left, *facts, ALONG_K, multiple, of_right, x=turned, y=x).mT
        elif wants_right:
            made_right = multiply(left.mT, grad, *facts, ALONG_K, multiple, of_right, x=x, y=turned)
        return made_left, made_right, None, None, None, None, None


def _groups_call(
    left: torch.Tensor, right: torch.Tensor, groups: torch.Tensor, said: str, multiple: int, kind: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, str, str, int, torch.dtype]:
    return left, right, groups, said, ROWS, multiple, kind


operator_of(
    "fp8_grouped_product",
    _groups_call,
    lambda *call: _product(*call),
    lambda left, right, *others: left.new_empty((left.shape[0], right.shape[-1]), dtype=others[-1]),
    recorded=lambda *call: _Fp8Groups.apply(*call),
    function="fp8_grouped_matmul",
)


def _recorded(
    left: torch.Tensor, right: torch.Tensor, groups: torch.Tensor, said: str, form: str, multiple: int,
    kind: torch.dtype, x: Pair | None = None, y: Pair | None = None,
) -> torch.Tensor:  # fmt: skip
    """A product of a derivative, which autograd records."""
    value: torch.Tensor = _Fp8Groups.apply(left, right, groups, said, form, multiple, kind)
    return value


def _product(
    left: torch.Tensor, right: torch.Tensor, groups: torch.Tensor, said: str, form: str, multiple: int,
    kind: torch.dtype, x: Pair | None = None, y: Pair | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product by `grouped_matmul`: both quantised along what is summed over, or groups at any row in 16 bits.

    x, y  left, and right's transpose, as they were quantised, or None
    """
    of_groups = {OFFSETS: groups} if said == OFFSETS else {ENDS: groups}
    if form == ALONG_K and multiple == 1:
        short = next((x.dtype for x in (left, right) if x.dtype in _SHORT), torch.bfloat16)
        return grouped_matmul(left.to(short), right.to(short), **of_groups, out_dtype=kind)
    of_right = SQUARE if form == ROWS else BLOCK
    wanted = [(left, BLOCK, False)] * (x is None) + [(right.mT, of_right, False)] * (y is None)
    pairs = iter(quantize_together(wanted)[0])
    (a, scale_a), (b, scale_b) = x or next(pairs), y or next(pairs)
    return grouped_matmul(
        a, b.mT, **of_groups, scale_a=scale_a, scale_b=scale_b, recipe_a=BLOCK, recipe_b=of_right, out_dtype=kind
    )


def fp8_groups_unrecorded(x: torch.Tensor, weight: Pair, offsets: torch.Tensor, kind: torch.dtype) -> torch.Tensor:
    """Groups of rows of x times a quantised weight (experts, N, K)."""
    return _product(x, weight[0].mT, offsets, OFFSETS, ROWS, 1, kind, y=weight)
