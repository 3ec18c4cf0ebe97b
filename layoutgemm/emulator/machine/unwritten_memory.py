"""Uninitialised reads that are reported only where a result depends on them.

Products read shared memory, and tcgen05.ld reads tensor memory.

A tile at a matrix's edge has rows that no copy fills. The tensor core reads them, and their results are not stored: PTX
leaves them undefined, and the kernel is right. So a run with such reads is repeated with other bytes there. Global
memory that is equal after both runs does not depend on them.

The two fills are a NaN in every floating-point type and a small number in every type:

>>> import numpy as np
>>> [np.frombuffer(bytes([fill] * 4), kind)[0].item() for fill in FILLS for kind in ("f4", "f2", "i1")]
[nan, nan, -1, 3.0039215087890625, 2.125, 64]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, TypeVar

from ...errors import EmulatorError
from ..findings import Finding
from .interpreter import PRODUCTS
from .launch import Policy, Watch
from .memory import POISON, GlobalMemory, MemorySnapshot
from .unused_reads import RacingReads, demoted


class LaunchFindings(Protocol):
    """The findings of one launch, and its suspects."""

    findings: list[Finding]
    suspects: list[Finding]
    racing: RacingReads | None


L = TypeVar("L", bound=LaunchFindings)
FILLS = POISON, 0x40
# The value may be tested for its sign and for 0.
MORE_FILLS = 0, 0xC0


def settled(run: Callable[[Policy, Watch], list[L]], memory: GlobalMemory, policy: Policy, watch: Watch) -> list[L]:
    """The launches of `run`; `suspects` and races that affect a result are findings."""
    before = memory.contents()
    launches = demoted(run, run(policy, watch), before, memory, policy)
    if not any(launch.suspects for launch in launches):
        return launches
    after = memory.contents()
    found = [finding for launch in launches for finding in launch.suspects]
    numbers = all(any(name in finding.text for name in (*PRODUCTS, "tcgen05.ld")) for finding in found)
    fills = FILLS if numbers else FILLS + MORE_FILLS
    try:
        others = [
            replace(policy, fill=fill, races=False) for fill in fills if fill != policy.fill
        ]  # values alone count
        same = all(_same(run, memory, other, before, after) for other in others)
    except EmulatorError:  # another path was taken, so the result depends on them
        same = False
    memory.restore(after)
    if not same:
        for launch in launches:
            launch.findings += launch.suspects
    return launches


def _same(
    run: Callable[[Policy, Watch], object],
    memory: GlobalMemory,
    policy: Policy,
    before: MemorySnapshot,
    after: MemorySnapshot,
) -> bool:
    """True if another run leaves the same bytes in memory."""
    memory.restore(before)
    run(policy, Watch())
    return next(memory.differing(after), None) is None
