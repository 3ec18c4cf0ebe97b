"""Races of loads from global memory whose values nothing uses.

A compiler may have more threads than a tile has elements, as Triton does: spare warps load what others load, compute
it, and store nothing. Where the kernel updates a tensor in place, such a load races with the store of the warp that
owns the element. No result depends on it. So a run with such races is repeated, with other values in each load that
reads what another warp has stored last. Global memory that is equal after all runs does not depend on them.

A race that stays is a finding. One that affects nothing is lint, and with `Policy(strict=True)` a finding too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError
from ..findings import LINT, Finding
from .launch import Policy, Watch
from .memory import GlobalMemory, MemorySnapshot

if TYPE_CHECKING:
    from ..races.global_bytes import GlobalWatch
    from .interpreter import Fiber

FILLS = 0xFF, 0x40, 0, 0xC0  # of each byte of such a load, one run for each
UNUSED = (
    "other values there change no result, as where spare warps load an element that another warp owns: PTX calls it a "
    "race, and Policy(strict=True) makes this a finding"
)


@dataclass(frozen=True, repr=False, eq=False)
class RacingReads:
    """The loads of a launch that race with stores.

    pcs         of the loads
    watch       the last writer of each byte of the launch's global memory
    operations  of the launch
    """

    pcs: frozenset[int]
    watch: GlobalWatch
    operations: int


class ReplacedReads:
    """Other values for racing loads, in a repeated run. `launch` is the number of the current one."""

    def __init__(self, racing: Sequence[RacingReads | None], fill: int) -> None:
        self.racing, self.fill, self.launch = racing, fill, 0

    def replaced(
        self, fiber: Fiber, addresses: npt.NDArray[np.int64], raw: npt.NDArray[np.uint8]
    ) -> npt.NDArray[np.uint8]:
        """The load's bytes [address, byte], with the fill where another warp stored last."""
        racing = self.racing[self.launch]
        assert fiber.ins is not None
        if racing is None or fiber.ins.pc not in racing.pcs:
            return raw
        raw = raw.copy()
        rows = raw.reshape(len(addresses), -1)
        rows[racing.watch.stored_elsewhere(fiber, addresses, rows.shape[1])] = self.fill
        return raw


class RacedLaunch(Protocol):
    """The findings of one launch, and its racing loads."""

    findings: list[Finding]
    racing: RacingReads | None


L = TypeVar("L", bound=RacedLaunch)


def demoted(
    run: Callable[[Policy, Watch], list[L]], launches: list[L], before: MemorySnapshot, memory: GlobalMemory,
    policy: Policy,
) -> list[L]:  # fmt: skip
    """The launches of `run`, with races as lint whose loads affect no result. before: the memory before the run."""
    racing = [launch.racing for launch in launches]
    for launch in launches:
        launch.racing = None
    if policy.strict or not any(racing):
        return launches
    after = memory.contents()
    longest = max(one.operations for one in racing if one is not None)
    order = replace(policy, races=False, limit=min(policy.limit, 2 * longest + 1024))
    try:
        same = all(_same(run, memory, order, ReplacedReads(racing, fill), before, after) for fill in FILLS)
    except EmulatorError:  # another path was taken, so the result depends on them
        same = False
    memory.restore(after)
    if same:
        for launch in launches:
            launch.findings[:] = [_lint(one) if one.reads is not None else one for one in launch.findings]
    return launches


def _same(
    run: Callable[[Policy, Watch], object], memory: GlobalMemory, policy: Policy, reads: ReplacedReads,
    before: MemorySnapshot, after: MemorySnapshot,
) -> bool:  # fmt: skip
    """True if a run with these values leaves the same bytes in memory."""
    memory.restore(before)
    run(policy, Watch(reads=reads))
    return next(memory.differing(after), None) is None


def _lint(finding: Finding) -> Finding:
    return replace(finding, kind=LINT, message=f"{finding.message}; {UNUSED}", reads=None)
