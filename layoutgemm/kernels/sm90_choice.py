"""Which Hopper kernel for which product: a configuration, and whether the operands change places.

Small M leaves most of wgmma's 64 rows empty. With the operands swapped, C^T = B^T @ A^T, the rows of the weights fill
them and M becomes the instruction's N, which goes down to 8; C is then written column by column, which a tensor store
does as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .plan import Operand
from .sm90_plan import Sm90Config, Sm90Plan

_OTHER = {"row": "col", "col": "row"}


@dataclass(frozen=True)
class Sm90Choice:
    """A configuration, and whether it multiplies C^T = B^T @ A^T instead of C = A @ B."""

    config: Sm90Config
    swapped: bool = False

    def plan(
        self, m: int, n: int, k: int, *, batch: int = 1, a: Any = "bf16", b: Any = None, c: Any = None
    ) -> Sm90Plan:
        """The plan of the kernel that computes C[m, n] = A[m, k] @ B[k, n]; arguments as for Sm90Plan.derive.

        >>> Sm90Choice(Sm90Config((64, 16), consumers=1), swapped=True).plan(16, 4096, 4096, b="bf16:col").c.order
        'col'
        """
        a_, b_ = Operand.parse(a), Operand.parse(Operand.parse(a).dtype if b is None else b)
        c_ = Operand.parse(c if c is not None else a_.dtype if a_.dtype.bits == 16 else "bf16")
        if not self.swapped:
            return Sm90Plan.derive(m, n, k, batch=batch, a=a_, b=b_, c=c_, config=self.config)
        flip = {op: Operand(op.dtype, _OTHER[op.order]) for op in (a_, b_, c_)}
        return Sm90Plan.derive(n, m, k, batch=batch, a=flip[b_], b=flip[a_], c=flip[c_], config=self.config)

    def arguments(
        self,
        pointers: Sequence[int],
        sizes: Sequence[int],
        leading: Sequence[int],
        strides: Sequence[int],
        workers: int,
    ) -> tuple[int, ...]:
        """The launch's arguments for A, B, C as the caller has them.

        pointers   of A, B, C: bytes
        sizes      m, n, k, batch
        leading    lda, ldb, ldc: elements
        strides    between matrices of a batch, of A, B, C: elements
        workers    clusters that may be resident
        """
        m, n, k, batch = sizes
        if not self.swapped:
            return (*pointers, m, n, k, batch, *leading, *strides, workers)

        def swap(x: Sequence[int]) -> tuple[int, int, int]:
            return x[1], x[0], x[2]

        return (*swap(pointers), n, m, k, batch, *swap(leading), *swap(strides), workers)
