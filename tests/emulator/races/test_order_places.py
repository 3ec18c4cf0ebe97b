"""Overlaps of two accesses, to the byte, in the race checker; and the orders of a policy."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.machine.memory import GRANULE, granules, parts_of
from layoutgemm.emulator.races.conflicts import Conflict
from layoutgemm.emulator.races.happens_before import NO_PARTS, Ledger, ShadowMemory
from tests.emulator.run_ptx import run


class Two:
    """Two fibers over one memory, which know nothing of each other."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.shadow = ShadowMemory(self.ledger, lambda place: f"place {place}")
        self.fibers = [self._fiber(name) for name in "ab"]

    def _fiber(self, name: str) -> Any:
        describe: Callable[[], str] = lambda: name  # noqa: E731
        knows = self.ledger.knowledge()
        return SimpleNamespace(knows=knows, epoch=self.ledger.event(False, describe), describe=describe)

    def access(self, who: int, write: bool, offsets: list[int], size: int) -> Conflict | None:
        where, fiber = np.array(offsets), self.fibers[who]
        parts = parts_of(where, size) or NO_PARTS
        return self.shadow.access(
            granules(where, size), write, fiber.epoch, fiber.knows, False, fiber.describe, fiber.epoch, parts
        )


@pytest.mark.parametrize(
    ("first", "second", "races"),
    [
        (([0], 4), ([4], 4), False),  # neighbours in a granule
        (([0], 4), ([0], 4), True),
        (([0, 4, 8, 12], 4), ([8], 4), True),  # together a whole granule
        (([0, 8], 4), ([4, 12], 4), False),
        (([0], 16), ([12], 4), True),
        (([0], 1), ([1], 1), False),
        (([3], 1), ([0], 4), True),
        (([4096], 16), ([4096 + 16], 16), False),
        (([0, 65536], 16), ([65536], 16), True),  # far apart: pages
    ],
)
def test_two_accesses_race_where_their_bytes_meet(
    first: tuple[list[int], int], second: tuple[list[int], int], races: bool
) -> None:
    for one_writes, other_writes in ((True, True), (True, False), (False, True), (False, False)):
        two = Two()
        assert two.access(0, one_writes, *first) is None
        found = two.access(1, other_writes, *second)
        assert (found is not None) == (races and (one_writes or other_writes)), found


def test_a_narrow_write_does_not_hide_the_rest_of_a_granule() -> None:
    two = Two()
    two.access(0, True, [0], 16)
    two.ledger.renew(two.fibers[0])
    two.access(0, True, [4], 4)
    assert two.access(1, False, [8], 4) is not None


def test_a_write_of_the_whole_takes_the_place_of_earlier_accesses() -> None:
    two = Two()
    two.access(0, True, [0, 4, 8, 12], 4)
    two.access(1, True, [0], 16)  # a race, and the first is gone
    assert [record.event for record in two.shadow.records.values()] == [two.fibers[1].epoch]
    assert sum(bool(record.places) for records in two.shadow.pages.values() for record in records) == 1


def test_wide_and_narrow_accesses_meet_where_their_bytes_do() -> None:
    """Random spans of one granule to 64 KiB, by two fibers, against sets of granules."""
    rng = np.random.default_rng(5)
    for _ in range(40):
        two = Two()
        held: dict[tuple[int, bool], set[int]] = {(who, way): set() for who in (0, 1) for way in (False, True)}
        for _ in range(30):
            who, write = int(rng.integers(2)), bool(rng.integers(2))
            first, count = int(rng.integers(8000)), int(rng.choice([1, 3, 100, 700, 2048, 4096]))
            touched = set(range(first, first + count))
            other = held[1 - who, True] | (held[1 - who, False] if write else set())
            fiber = two.fibers[who]
            found = two.shadow.access(
                (1 << count) - 1 << first, write, fiber.epoch, fiber.knows, False, fiber.describe, fiber.epoch
            )
            assert (found is not None) == bool(touched & other), (who, write, first, count)
            if write:
                for way in (False, True):
                    held[1 - who, way] -= touched
            held[who, write] |= touched


def test_an_event_of_several_instructions_names_the_one_that_conflicts() -> None:
    two = Two()
    group, fiber = two.ledger.event(True, lambda: "group"), two.fibers[0]
    for name, places in (("first", 0b0011), ("second", 0b1100)):
        what: Callable[[], str] = lambda name=name: name  # noqa: E731
        for part in (places & 0b0101, places & 0b1010):
            assert two.shadow.access(part, False, group, fiber.knows, True, what, fiber.epoch) is None
    found = two.access(1, True, [2 * GRANULE], 32)
    assert found is not None and "before it, second both touch place 2" in str(found)
    assert "before it, first both touch place 1" in str(two.access(1, True, [GRANULE], 16))


def test_clearing_and_dividing() -> None:
    two = Two()
    two.access(0, True, [0, 16, 5000 * GRANULE], 16)
    event, other = two.fibers[0].epoch, two.ledger.event(False, lambda: "c")
    two.shadow.divide(event, other, (1 << 5000, NO_PARTS), (0b11, {1: 0xFF}))
    assert {record.event: record.places for record in two.shadow.records.values()} == {event: 0b11, other: 1 << 5000}
    found = two.access(1, True, [5000 * GRANULE], 16)
    assert found is not None and "place 5000" in str(found)
    two.shadow.clear(0b01)
    assert two.access(1, True, [0], 16) is None
    assert two.access(1, True, [24], 8) is None
    assert two.access(1, True, [16], 8) is not None


def test_random_accesses_agree_with_a_plain_list() -> None:
    """Against an oracle without granules, pages or bit sets: per byte, who wrote last and who read since."""
    random = np.random.default_rng(5)
    for _ in range(80):
        two = Two()
        wrote: dict[int, int] = {}
        read: dict[int, set[int]] = {}
        for _ in range(30):
            who, write, size = int(random.integers(2)), bool(random.integers(2)), int(random.choice([1, 2, 4, 8, 16]))
            offsets = sorted({int(x) * size for x in random.integers(0, 48 // size, 3)})
            touched = {at + i for at in offsets for i in range(size)}
            expected = any(wrote.get(b, who) != who or (write and read.get(b, set()) - {who}) for b in touched)
            if random.integers(2):
                two.ledger.renew(two.fibers[who])
            assert (two.access(who, write, offsets, size) is not None) == expected
            for byte in touched:
                if write:
                    wrote[byte], read[byte] = who, set()
                else:
                    read.setdefault(byte, set()).add(who)
            if expected:
                break


WAIT = """
  mov.u32 %r0, smem;
  mov.u32 %r1, %tid.x;
  setp.ne.u32 %p0, %r1, 0;
  @%p0 bra SKIP;
  mbarrier.init.shared.b64 [%r0], 1;
  mbarrier.arrive.shared.b64 _, [%r0];
SKIP:
  bar.sync 0;
  mov.u32 %r2, 0;
AGAIN:
  add.u32 %r2, %r2, 1;
  mbarrier.try_wait.parity.shared.b64 %p1, [%r0], 0;
  @!%p1 bra AGAIN;
  mul.wide.u32 %d0, %r1, 4;
  add.u64 %d1, %a, %d0;
  st.global.u32 [%d1], %r2;
"""


@pytest.mark.parametrize(("waits", "asked"), [("prompt", 1), ("reluctant", 2)])
def test_a_reluctant_wait_needs_two_tests(waits: str, asked: int) -> None:
    done = run(WAIT, {"a": np.zeros(32, np.uint32)}, shared=64, policy=Policy(waits=waits))
    assert done["a"].tolist() == [asked] * 32 and not done.findings


def test_every_instruction_of_a_run_of_arithmetic_counts_as_executed() -> None:
    done = run("mov.u32 %r0, 1; add.u32 %r0, %r0, 1; add.u32 %r0, %r0, 2;", {"a": np.zeros(1, np.uint32)})
    assert done.machine.counts.unreached(done.machine.program.kernel) == []
