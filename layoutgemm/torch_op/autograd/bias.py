"""The gradients of a weight and of its bias by one launch.

    y = x @ W^T + bias    dW = dY^T @ x, and dbias = the sums of dY^T's rows: `kernels.sm90.operands.row_sums`

Measured where tiles are of 128x256, or larger: torch's sum beside the product takes longer. For smaller products, and
where the weight's gradient is no product of dY^T, torch adds.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...errors import LayoutError
from ...kernels.compile.worker import compile_apart
from ...kernels.plan import MAX_WORDS
from ...kernels.run.torch_tensors import launch_of
from ...kernels.sm90.choose.rules import Sm90Choice
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.operands.row_sums import RowSums
from ...kernels.sm90.plan import Sm90Plan
from ..launch import DirectLaunch, NewResult, NewTensor
from ..prepared import problem_at
from ..solver import solve
from ..types import C_NAMES
from .products import DerivedProduct

LARGE = Sm90Config((128, 256), cluster=(2, 1), chunks=1, buffers=2)  # beside whose sums a lane's fit in registers
KINDS = (torch.float32, torch.bfloat16, torch.float16)  # of a bias


class WeightAndBias(NamedTuple):
    """The launch of a weight's gradient that adds its bias's too.

    direct  takes the addresses of dW, dY, x and dbias
    rows    elements of the bias
    kind    its type
    """

    direct: DirectLaunch
    rows: int
    kind: torch.dtype

    def launch(self, shape: tuple[int, ...], strides: tuple[int, ...], kind: torch.dtype) -> NewResult:
        """The launch that makes both gradients, of dC and x. A call's third tensor and its first."""
        into, of_c, of_a, of_bias = self.direct.places
        weight = NewTensor(shape, strides, kind, into)
        return NewResult(self.direct, (weight, NewTensor((self.rows,), (1,), self.kind, of_bias)), {2: of_c, 0: of_a})


def weight_and_bias(made: DerivedProduct | None, kind: torch.dtype | None) -> WeightAndBias | None:
    """The launch of both gradients. None where torch's sum beside the product is not known to be slower.

    made  the weight's gradient
    kind  of the bias, or None where its gradient is not wanted
    """
    if made is None or not made.transposed or made.left.ndim != 2 or kind not in KINDS:
        return None
    plan = plan_of_both(made, C_NAMES[kind])
    if plan is None:
        return None
    left, right = made.left, made.right
    launch = launch_of(plan, left, right, None, True, (0,) * MAX_WORDS)
    if launch.copies or launch.late:
        return None
    word = len(launch.arguments) - MAX_WORDS + plan.words.index("row_sums")
    direct = DirectLaunch(compile_apart(plan), launch.arguments, (2, 0, 1, word), left.get_device(), plan)
    return WeightAndBias(direct, left.shape[0], kind)


def plan_of_both(made: DerivedProduct, kind: str) -> Sm90Plan | None:
    """The plan of both. With the product's own configuration, or with `LARGE` in place of larger tiles."""
    solution = solve(problem_at(made.left, made.right, made.left.dtype, None, None))
    choice, (m, n, k, batch) = solution.kernel.choice, solution.sizes
    if not isinstance(choice, Sm90Choice) or batch > 1 or made.left.dtype.itemsize != 2:
        return None
    rows, columns = choice.config.tile
    if rows * columns < LARGE.tile[0] * LARGE.tile[1]:
        return None
    own = [] if choice.swapped or choice.config.tile != LARGE.tile else [choice.config]
    a, b = (C_NAMES[x.dtype] for x in (made.left, made.right))
    for config in (*own, LARGE):
        try:
            return Sm90Plan.derive(
                m, n, k, a=f"{a}:col", b=f"{b}:row", c=a, config=config, row_sums=RowSums(kind)
            )  # fmt: skip
        except LayoutError:
            continue
    return None
