"""Explanation: the kernel, copies and workspace of a product, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from ..errors import OperandError
from ..kernels.derive import memory_unit, padded_leading
from ..kernels.epilogue.chain import Epilogue
from ..kernels.sm90.plan import Sm90Plan
from ..kernels.sm100.plan import Sm100Plan
from ..kernels.verbs import named
from .epilogue import Tensors, readable_gate, solutions, spread
from .launch import plan_of
from .launch import workspace as partial_results
from .prepared import Config
from .problem import Solution, gated_shapes
from .types import C_NAMES, NAMES, GroupsPlan


@dataclass(frozen=True)
class Explanation:
    """The kernel, copies and workspace of one product: `explain_matmul` gives it.

    kernel     configuration and operand orders, or where it is computed otherwise
    why        why this kernel
    launches   how many
    copies     one sentence for each tensor that is copied or lies between kernels, with the reason and its bytes
    workspace  bytes of device memory that the call takes besides inputs and output, at a time: the copies, partial
               results of reductions, and the float32 product that torch gates or another kernel quantises
    backward   what the backward pass of an epilogue or of several parts computes again, and its bytes, where an
               operand requires grad; else ""

    >>> print(Explanation("no kernel: zeros", "a size is 0", 0, (), 0))
    no kernel: zeros
      a size is 0
      no copies
      workspace: 0 bytes
    """

    kernel: str
    why: str
    launches: int
    copies: tuple[str, ...]
    workspace: int
    backward: str = ""

    def __str__(self) -> str:
        copies = "".join(f"\n  copied: {copy}" for copy in self.copies) or "\n  no copies"
        times = f", {self.launches} launches" if self.launches > 1 else ""
        backward = f"\n  backward: {self.backward}" if self.backward else ""
        return f"{self.kernel}{times}\n  {self.why}{copies}\n  workspace: {self.workspace} bytes{backward}"


ZEROS = Explanation("no kernel: zeros", "a size is 0", 0, (), 0)


def of_solution(solution: Solution, read: tuple[torch.dtype, torch.dtype], kind: torch.dtype) -> Explanation:
    """A solution in words. It reads operands of two types, and C is of type `kind`."""
    names = NAMES[read[0]], NAMES[read[1]], C_NAMES[kind]
    sizes = [0 if copy is None else copy.bytes(name) for copy, name in zip(solution.copies, names, strict=True)]
    copies = tuple([f"{copy.why}, {size} bytes" for copy, size in zip(solution.copies, sizes, strict=True) if copy])
    return Explanation(str(plan_of(solution)), solution.why, len(solution.launches), copies, sum(sizes))


def gated_after(found: Explanation, why: str, shape: Sequence[int]) -> Explanation:
    """A product of all columns in float32 that torch gates.

    why    no kernel does
    shape  of the result
    """
    half = 4 * prod(shape)  # bytes: of the product twice as many; then with act(gate) and its product with up
    return replace(
        found, kernel=f"{found.kernel}; then torch gates it", why=f"not in one kernel: {why}; {found.why}",
        workspace=max(found.workspace + 2 * half, 4 * half),
    )  # fmt: skip


def with_steps(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, epilogue: Epilogue, given: Tensors, out: torch.Tensor | None,
    config: Config | None, gate: str | None = None,
) -> Explanation:  # fmt: skip
    """A product with an epilogue, of operands that have been checked. Its partial results are workspace.

    gate  the function of a gate before it, or None
    """
    c = torch.empty(gated_shapes(a.shape, b.shape, gate).result, dtype=kind, device="meta") if out is None else out
    first: tuple[str, ...] = ()
    size = 0  # of the copied weights
    if gate is not None and b.stride(-2) != 1:
        size = prod(b.shape) * b.element_size()
        first = (f"b: a gate's kernel reads contiguous columns; copied column-major, {size} bytes",)
        b = readable_gate(b.to("meta"))
    parts = spread(a, b, c, epilogue, given)
    found = [one for part in parts for one in solutions(*part, epilogue, kind, config, gate)]
    told = [of_solution(one, (a.dtype, b.dtype), kind) for one in found]
    partial = [partial_results(one) for one in found]
    copies = first + told[0].copies + ((partial_text(partial[0]),) if partial[0] else ())
    most = size + max(one.workspace + more for one, more in zip(told, partial))
    return replace(told[0], launches=sum(one.launches for one in told), copies=copies, workspace=most)


def sums_again(elements: int, products: bool = True) -> str:
    """The sentence on a backward pass that computes sums of that many elements again. `products`: then A's and B's."""
    text = f"float32 sums again, {4 * elements} bytes, by one product for each; torch derives the steps"
    return f"{text}; then products" if products else text


def of_several(matrices: int) -> str:
    """The copy of several matrices' scales, in words.

    >>> of_several(2)
    'scale_b: of 2 b, one behind the other'
    """
    return f"scale_b: of {matrices} b, one behind the other"


def partial_text(size: int) -> str:
    """The sentence on `size` bytes of partial results."""
    return f"reductions: partial results of the tiles, {size} bytes"


def of_plan(
    plan: GroupsPlan,
    a: torch.Tensor,
    b: torch.Tensor,
    out: torch.Tensor | None,
    why: str,
    copies: Sequence[tuple[str, int]],
) -> Explanation:
    """The explanation of a plan's one launch.

    copies  what else the call copies: why, and bytes
    """
    copies = [*copies, *copied_operand(plan, "A", a), *copied_operand(plan, "B", b)]
    if out is not None:
        lines = out if out.stride(-1) == 1 or out.shape[-1] == 1 else None
        size = out.element_size()
        pitch = padded_leading(plan.c.dtype, out.shape[-1])
        overrun = isinstance(plan, Sm90Plan | Sm100Plan) and plan.line_overrun
        if lines is None or lines.stride(-2) * size % 16 or out.data_ptr() % 16 or overrun:
            rule = f"out: strides {tuple(out.stride())}: stored with rows {pitch} elements apart, then copied"
            copies.append((rule, prod(out.shape[:-1]) * pitch * size))
    said = tuple([f"{rule}, {size} bytes" for rule, size in copies])
    return Explanation(str(plan), why, 1, said, sum(size for _, size in copies))


def copied_operand(plan: GroupsPlan, name: str, x: torch.Tensor, said: str = "") -> list[tuple[str, int]]:
    """Why an operand is copied, and the copy's bytes. Nothing where the kernel reads it in place.

    said  the name of a further matrix, which lies as `name` does
    """
    try:
        named(plan.operand_path).lines(plan, name, x, [], False)
    except OperandError as error:
        operand = plan.a if name == "A" else plan.b
        rows, extent = (x if operand.order == "row" else x.mT).shape[-2:]
        unit = memory_unit(operand.dtype)
        made = prod(x.shape[:-2]) * rows * padded_leading(unit, extent) * unit.bytes
        why = str(error).partition("; copy=True")[0]
        return [(said + why.removeprefix(name.lower()) if said else why, made)]
    return []
