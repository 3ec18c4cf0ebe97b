"""Launches of compiled kernels for mutants: operands' bits, and a C to compare."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from layoutgemm.emulator.machine.interpreter import Launch, Policy
from layoutgemm.emulator.mutation.run import IN_TURN, LaunchCase, MutantOutcome
from layoutgemm.emulator.mutation.survivors import PROVEN
from layoutgemm.emulator.ptx.parser import PtxKernel

if TYPE_CHECKING:
    from layoutgemm.emulator.host.launcher import HostFunction

Bits = np.ndarray
UNWRITTEN = 0xFFFF


def launch_case(
    host: HostFunction, name: str, operands: Sequence[Bits], rest: Sequence[object], want: Bits,
    policy: Policy = IN_TURN, pitch: int | None = None,
) -> tuple[PtxKernel, LaunchCase]:  # fmt: skip
    """The host function's kernel, and its launch with copies of the operands and an unwritten C.

    operands  bits of A and of B
    rest      the arguments behind C
    want      C's bits; `pitch`: elements from one of its rows to the next, where that is more than a row
    """
    held: dict[int, Bits] = {}  # the emulator works in these arrays' own memory

    def launch() -> Launch:
        c = np.full((*want.shape[:-1], pitch or want.shape[-1]), UNWRITTEN, np.uint16)
        arrays, (made,) = host.call((*[bits.copy() for bits in operands], c, *rest))
        held[id(arrays.memory)] = c
        return Launch(made.grid, made.block, made.parameters, arrays.memory, made.cluster, made.dynamic_shared)

    def check(done: Launch) -> str | None:
        wrong = held.pop(id(done.memory))[..., : want.shape[-1]] != want
        return f"{int(wrong.sum())} elements of C are wrong" if wrong.any() else None

    launch()
    return host.launches[0].kernel, LaunchCase(name, launch, check, policy)


def unproven(rows: Sequence[MutantOutcome], unjudged: str = "\0") -> list[str]:
    """Survivors without a proof, but those of an instruction that is not judged."""
    left = [row for row in rows if not row.caught and row.reason.split(":")[0] not in PROVEN]
    return [f"{row.mutant}: {row.reason}" for row in left if unjudged not in row.mutant.place]
