"""The common part of both families' choices: swapped operands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from .derive import OTHER_ORDER, Operand


def transposed(operand: Operand) -> Operand:
    """The same memory as the transpose's.

    >>> print(transposed(Operand.parse("bf16:col")))
    bf16 row-major
    """
    return replace(operand, order=OTHER_ORDER[operand.order])


class KernelChoice:
    """A kernel whose operands may change places. It then multiplies C^T = B^T @ A^T instead of C = A @ B."""

    swapped: bool

    def operands(self, a: Operand, b: Operand, c: Operand | None) -> tuple[Operand, Operand, Operand | None]:
        """A, B and C as the kernel has them."""
        if not self.swapped:
            return a, b, c
        return transposed(b), transposed(a), None if c is None else transposed(c)

    def arguments(
        self,
        pointers: Sequence[Any],
        sizes: Sequence[int],
        leading: Sequence[int],
        strides: Sequence[int],
        workers: int,
    ) -> tuple[Any, ...]:
        """The launch's arguments for A, B, C as the caller has them.

        pointers   of A, B, C: bytes
        sizes      m, n, k, batch
        leading    lda, ldb, ldc: elements
        strides    between matrices of a batch, of A, B, C: elements
        workers    clusters, or blocks, that may be resident: an argument of a persistent kernel alone
        """
        m, n, k, batch = sizes
        if self.swapped:
            m, n = n, m
            pointers, leading, strides = ((x[1], x[0], x[2]) for x in (pointers, leading, strides))
        own = (*pointers, m, n, k, batch, *leading, *strides)
        return (*own, workers) if self.persistent else own

    @property
    def persistent(self) -> bool:
        """True if the kernel's CTAs take tile after tile."""
        return True
