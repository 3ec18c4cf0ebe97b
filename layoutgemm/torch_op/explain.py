"""layoutgemm.explain_matmul: how `matmul` takes a product, in words, without a GPU."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

import torch

from ..kernels.run.operand_checks import check_operands
from .bias_activation import GATES, gated_finish
from .checks import check_activation, check_gated_type, check_out, check_types, output_type
from .launch import plan_of
from .prepared import NO_FINISH, Config, problem_at
from .problem import gated_shapes
from .solver import solve, why_unfused
from .types import C_NAMES, NAMES


@dataclass(frozen=True)
class Explanation:
    """The kernel, copies and workspace of one product: `explain_matmul` gives it.

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
    check_operands({"a": a, "b": b}, {} if out is None else {"out": out})
    check_types(a, b, True)
    check_activation(activation)
    kind = output_type(a, b, out_dtype)
    gated = GATES.get(activation) if activation is not None else None
    shapes = gated_shapes(a.shape, b.shape, gated)
    finish = NO_FINISH if gated is None else gated_finish(str(activation))
    if out is not None:
        check_out(out, shapes.result, kind, {"a": a, "b": b})
    if 0 in (*shapes.result, shapes.k):
        return Explanation("no kernel: zeros", "a size is 0", 0, (), 0)
    unfused = ""
    if gated is not None:
        check_gated_type(kind)
        unfused = why_unfused(problem_at(a, b, kind, config, out, finish))
    if unfused:
        found = solve(problem_at(a, b, torch.float32, config, None))
        kind = torch.float32
    else:
        found = solve(problem_at(a, b, kind, config, out, finish))
    names = NAMES[a.dtype], NAMES[b.dtype], C_NAMES[kind]
    sizes = [0 if copy is None else copy.bytes(name) for copy, name in zip(found.copies, names, strict=True)]
    copies = tuple([f"{copy.why}, {size} bytes" for copy, size in zip(found.copies, sizes, strict=True) if copy])
    kernel, why, workspace = str(plan_of(found)), found.why, sum(sizes)
    if unfused:
        half = 4 * prod(shapes.result)  # of 2n columns; then with act(gate) and its product with up
        kernel, workspace = f"{kernel}; then torch gates it", max(workspace + 2 * half, 4 * half)
        why = f"not in one kernel: {unfused}; {why}"
    return Explanation(kernel, why, len(found.launches), copies, workspace)
