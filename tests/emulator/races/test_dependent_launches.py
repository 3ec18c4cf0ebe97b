"""Programmatic dependent launch: what a launch touches before griddepcontrol.wait, of launches that may still run."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from layoutgemm.emulator.findings import Finding
from layoutgemm.emulator.machine.interpreter import Launch, Policy, PtxMachine
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.races.dependent_launches import PreviousLaunch, dependent
from tests.emulator.run_ptx import module, program

# Each thread has the place of a 4-byte element of a, b and c in %d10, %d11 and %d12.
HEAD = """mov.u32 %r30, %tid.x; mov.u32 %r29, %ctaid.x; mad.lo.u32 %r28, %r29, 64, %r30; mul.wide.u32 %d1, %r28, 4;
add.u64 %d10, %a, %d1; add.u64 %d11, %b, %d1; add.u64 %d12, %c, %d1;"""
WAIT, TRIGGER = "griddepcontrol.wait;", "griddepcontrol.launch_dependents;"
READ_A, READ_B, READ_C = (f"ld.global.u32 %r{n}, [%d1{n}];" for n in range(3))
WRITE_A, WRITE_B, WRITE_C = (f"st.global.u32 [%d1{n}], %r30;" for n in range(3))
PLAIN, DEPENDENT = False, True


def launched(*bodies: tuple[str, bool], shared: int = 0, policy: Policy | None = None) -> list[list[Finding]]:
    """The findings of each launch; (instructions, whether it is dependent), in order, over the same arrays."""
    arrays = {name: np.zeros(128, np.uint32) for name in "abc"}
    found, front = [], None
    for number, (body, depends) in enumerate(bodies):
        memory = GlobalMemory()  # of its own for each call: an array may lie at another address there
        names = [*arrays][number % 3 :] + [*arrays][: number % 3]
        at = {name: memory.add(name, arrays[name]).address for name in names}
        text = module(HEAD + body, dict.fromkeys("abc", "u64"))
        parameters = struct.pack("<3Q", *[at[name] for name in "abc"])
        machine = PtxMachine(
            program(text), Launch((2, 1, 1), (64, 1, 1), parameters, memory, (1, 1, 1), shared), policy
        )
        assert machine.global_watch is not None
        if depends:
            machine.global_watch.dependent = dependent(machine.global_watch, front)
        front = PreviousLaunch(f"kernel {number}", memory, machine.global_watch)
        found.append(machine.run().findings.found)
    return found


def last(*bodies: tuple[str, bool], **more: int) -> list[str]:
    *others, found = launched(*bodies, **more)
    assert not any(others)
    return [one.kind for one in found]


FIRST = (TRIGGER + READ_A + WRITE_B, PLAIN)


@pytest.mark.parametrize(
    ("body", "kinds"),
    [(WAIT + READ_B + WRITE_A, []), (READ_C + WAIT + READ_B + WRITE_C, []), (READ_A + WAIT + READ_B, []),
     (READ_B + WAIT, ["race"]), (WRITE_A + WAIT, ["race"]), (WRITE_B + WAIT, ["race"]), (READ_B, ["race"]),
     (TRIGGER + READ_B, ["race"]), (READ_C + WRITE_C, []),
     ("red.global.add.u32 [%d11], 1;" + WAIT, ["race"])],
)  # fmt: skip
def test_accesses_before_the_wait(body: str, kinds: list[str]) -> None:
    assert last(FIRST, (body, DEPENDENT)) == kinds
    assert last(FIRST, (body, PLAIN)) == []
    assert last((FIRST[0].replace(TRIGGER, ""), PLAIN), (body, DEPENDENT)) == kinds  # its end triggers, too
    assert last((body, DEPENDENT)) == []  # nothing is in front


def test_the_finding_names_both_launches() -> None:
    (found,) = launched(FIRST, (READ_B + WAIT, DEPENDENT))[1]
    assert "ld.global.u32" in found.message and "st.global.u32" in found.message and "of kernel 0" in found.message
    assert "no griddepcontrol.wait comes before" in found.message and "reads b from byte 0" in found.message
    assert found.orders.startswith("griddepcontrol.wait by the thread")


def test_a_write_after_the_trigger_is_seen_after_the_wait_alone() -> None:
    late = (READ_A + TRIGGER + WRITE_B, PLAIN)
    assert last(late, (WAIT + READ_B, DEPENDENT)) == []
    assert last(late, (READ_B + WAIT, DEPENDENT)) == ["race"]


@pytest.mark.parametrize(
    ("barrier", "kinds"), [("bar.sync 0;", []), ("", ["race"])], ids=["a barrier follows", "no barrier"]
)
def test_one_warp_waits_for_its_block(barrier: str, kinds: list[str]) -> None:
    body = f"setp.ge.u32 %p1, %r30, 32; @%p1 bra ON; {WAIT} ON: {barrier} {READ_B}"
    assert last(FIRST, (body, DEPENDENT)) == kinds


def test_an_mbarrier_leads_from_the_wait() -> None:
    body = f"""setp.eq.u32 %p0, %r30, 0; @%p0 mbarrier.init.shared.b64 [smem], 1; bar.sync 0;
    @!%p0 bra L; {WAIT} mbarrier.arrive{{}}.shared.b64 _, [smem];
    L: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra L; {READ_B}"""
    assert last(FIRST, (body.format(""), DEPENDENT), shared=64) == []
    assert last(FIRST, (body.format(".relaxed.cta"), DEPENDENT), shared=64) == ["race"]


def test_copies_are_issued_after_the_wait() -> None:
    body = """setp.eq.u32 %p0, %r30, 0; setp.eq.u32 %p1, %r29, 0; and.pred %p0, %p0, %p1; @!%p0 bra END;
    mbarrier.init.shared.b64 [smem], 1; fence.mbarrier_init.release.cluster;
    mbarrier.arrive.expect_tx.shared.b64 _, [smem], 256; {}
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [smem+128], [%b], 256, [smem]; {}
    L: mbarrier.try_wait.parity.shared.b64 %p2, [smem], 0; @!%p2 bra L; END:"""
    assert last(FIRST, (body.format(WAIT, ""), DEPENDENT), shared=512) == []
    assert last(FIRST, (body.format("", WAIT), DEPENDENT), shared=512) == ["race"]


MIDDLE = READ_C + WRITE_C  # touches neither a nor b


@pytest.mark.parametrize(
    ("middle", "body", "kinds"),
    [(WAIT + TRIGGER + MIDDLE, READ_B + WAIT, []),  # its trigger comes after the first launch's end
     (WAIT + MIDDLE, READ_B + WAIT, []),  # so does the end of its blocks
     (TRIGGER + WAIT + MIDDLE, READ_B + WAIT, ["race"]),  # all three may run at once
     (TRIGGER + WAIT + MIDDLE, WAIT + READ_B, []),
     (TRIGGER + MIDDLE, WAIT + READ_B, ["race"]),  # its end says nothing of the first's
     (MIDDLE, READ_B + WAIT, ["race"])],
)  # fmt: skip
def test_the_launch_before_the_one_in_front(middle: str, body: str, kinds: list[str]) -> None:
    assert last(FIRST, (middle, DEPENDENT), (body, DEPENDENT)) == kinds
    assert last(FIRST, (middle, PLAIN), (READ_B + WAIT, DEPENDENT)) == []


def test_one_block_that_holds_the_next_launch_back() -> None:
    held = "setp.eq.u32 %p1, %r29, 0; @%p1 bra HELD; " + TRIGGER + "HELD: " + WAIT + TRIGGER + MIDDLE
    assert last(FIRST, (held, DEPENDENT), (READ_B + WAIT, DEPENDENT)) == []
    found = launched(FIRST, (TRIGGER + MIDDLE, DEPENDENT), (WAIT + READ_B, DEPENDENT))[2]
    assert "never waits" in found[0].message and "in the kernel between the two" in found[0].orders


def test_without_the_race_checker_nothing_is_kept() -> None:
    text = module(HEAD + WAIT + TRIGGER, dict.fromkeys("abc", "u64"))
    memory = GlobalMemory()
    at = [memory.add(name, np.zeros(128, np.uint32)).address for name in "abc"]
    launch = Launch((2, 1, 1), (64, 1, 1), struct.pack("<3Q", *at), memory)
    assert PtxMachine(program(text), launch, Policy(races=False)).run().findings.found == []
