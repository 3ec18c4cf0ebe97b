"""Launches of compiled kernels for mutants: operands' bits, and a C to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from layoutgemm.emulator.machine.interpreter import Launch, Policy
from layoutgemm.emulator.mutation.run import IN_TURN, LaunchCase, MutantOutcome
from layoutgemm.emulator.mutation.survivors import PROVEN
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels import GemmPlan

if TYPE_CHECKING:
    from layoutgemm.emulator.host.launcher import HostFunction

Bits = np.ndarray


def launch_case(
    host: HostFunction, name: str, matrices: Sequence[Bits], rest: Sequence[object], want: Bits,
    policy: Policy = IN_TURN,
) -> tuple[PtxKernel, LaunchCase]:  # fmt: skip
    """The host function's kernel, and its launch with copies of the matrices.

    matrices  bits of A, of B, and of C before the launch
    rest      the arguments behind them
    want      C's bits afterwards; what C has beyond its columns is not looked at
    """
    held: dict[int, list[Bits]] = {}  # the emulator works in these arrays' own memory

    def launch() -> Launch:
        own = [bits.copy() for bits in matrices]
        arrays, (made,) = host.call((*own, *rest))
        held[id(arrays.memory)] = own
        return Launch(made.grid, made.block, made.parameters, arrays.memory, made.cluster, made.dynamic_shared)

    def check(done: Launch) -> str | None:
        wrong = held.pop(id(done.memory))[2][..., : want.shape[-1]] != want
        return f"{int(wrong.sum())} elements of C are wrong" if wrong.any() else None

    launch()
    return host.launches[0].kernel, LaunchCase(name, launch, check, policy)


def integers(m: int, n: int, k: int, plan: GemmPlan) -> tuple[tuple[Bits, Bits], Bits]:
    """Bits of random A (m, k) and B (n, k), and of their exact product."""
    rng = np.random.default_rng(m + n + k)
    a, b = (rng.integers(-2, 3, (rows, k)).astype(np.float32) for rows in (m, n))
    return (plan.a.dtype.encode(a), plan.b.dtype.encode(b)), plan.c.dtype.encode(a @ b.T)


def unproven(rows: Sequence[MutantOutcome], unjudged: str = "\0") -> list[str]:
    """Survivors without a proof, but those of an instruction that is not judged."""
    left = [row for row in rows if not row.caught and row.reason.split(":")[0] not in PROVEN]
    return [f"{row.mutant}: {row.reason}" for row in left if unjudged not in row.mutant.place]
