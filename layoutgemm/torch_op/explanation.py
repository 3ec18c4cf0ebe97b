"""Explanation: the kernel, copies and workspace of a product, in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod


@dataclass(frozen=True)
class Explanation:
    """The kernel, copies and workspace of one product: `explain_matmul` gives it.

    kernel     configuration and operand orders, or where it is computed otherwise
    why        why this kernel
    launches   how many
    copies     one sentence for each tensor that is copied or lies between kernels, with the reason and its bytes
    workspace  bytes of device memory that the call takes besides inputs and output, at a time: the copies, partial
               results of reductions, and the float32 product that torch gates or another kernel quantises

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

    def __str__(self) -> str:
        copies = "".join(f"\n  copied: {copy}" for copy in self.copies) or "\n  no copies"
        times = f", {self.launches} launches" if self.launches > 1 else ""
        return f"{self.kernel}{times}\n  {self.why}{copies}\n  workspace: {self.workspace} bytes"


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
