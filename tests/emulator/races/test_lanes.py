"""Lanes of one warp race as threads do: what orders them, what does not, and what practice leans on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutgemm.emulator.machine.interpreter import Launch, Policy
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.mutation.mutants import deletions
from layoutgemm.emulator.mutation.run import LaunchCase
from layoutgemm.emulator.mutation.survivors import Explainer
from layoutgemm.emulator.ptx.parser import parse
from layoutgemm.emulator.races.happens_before import Ledger
from layoutgemm.emulator.races.lanes import LaneAccess, conflicting, divide
from tests.emulator.run_ptx import Result, module, run

STRICT, OFF = Policy(lanes="strict"), Policy(lanes="off")
SYNC = "bar.warp.sync -1;"
# %r1: the lane's own word, %r2: its neighbour's, %r3: one for all; %p1: lane 0, %p2: the lower half.
HEAD = """
    mov.u32 %r0, %laneid; mov.u32 %r9, smem;
    shl.b32 %r1, %r0, 2; add.u32 %r1, %r1, %r9;
    add.u32 %r2, %r0, 1; and.b32 %r2, %r2, 31; shl.b32 %r2, %r2, 2; add.u32 %r2, %r2, %r9;
    mov.u32 %r3, %r9; setp.eq.u32 %p1, %r0, 0; setp.lt.u32 %p2, %r0, 16;
    shl.b32 %r8, %r0, 4; add.u32 %r8, %r8, %r9; mov.u32 %r5, 7;
"""
FILL = f"st.shared.b32 [%r1], %r0; {SYNC}"


def go(body: str, policy: Policy | None = None, block: int = 32, **more: object) -> Result:
    out = np.zeros(64, np.uint32)
    return run(f"{HEAD} {body}", {"out": out}, block=block, shared=8192, policy=policy, **more)


# (what the lanes do, what may stand between, what they do then): a race unless something orders them.
PAIRS = {
    "read the neighbour's": ("st.shared.b32 [%r1], %r0;", "ld.shared.b32 %r4, [%r2];"),
    "write the neighbour's": ("st.shared.b32 [%r1], %r0;", "st.shared.b32 [%r2], %r0;"),
    "one writes for all": ("@%p1 st.shared.b32 [%r3], %r5;", "ld.shared.b32 %r4, [%r3];"),
    "rows for a matrix": (
        "st.shared.b32 [%r8], %r0; st.shared.b32 [%r8+4], %r0; st.shared.b64 [%r8+8], %d0;",
        "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r10, %r11, %r12, %r13}, [%r8+0];",
    ),
    "a matrix for rows": (
        "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r8], {%r0, %r0, %r0, %r0};",
        "ld.shared.b32 %r4, [%r2];",
    ),
    "an atomic on the neighbour's": ("st.shared.b32 [%r1], %r0;", "red.shared.add.u32 [%r2], 1;"),
    "a copy into the neighbour's": (
        "cp.async.ca.shared.global [%r1], [%out], 4; cp.async.wait_all;",
        "ld.shared.b32 %r4, [%r2];",
    ),
    "other bytes of the neighbour's word": ("st.shared.b8 [%r1], %h0;", "st.shared.b32 [%r2], %r0;"),
}


@pytest.mark.parametrize("name", PAIRS)
def test_only_a_barrier_orders_lanes(name: str) -> None:
    first, then = PAIRS[name]
    first = f"mov.u64 %d0, 0; mov.b16 %h0, 1; {first}"
    if name == "rows for a matrix":
        then = then.replace("%r8+0", "%r20")
        first = f"xor.b32 %r20, %r8, 16; {first}"
    found = go(first + then)
    assert found.kinds == ["race"] and "no bar.warp.sync" in found.findings[0].message, found.findings
    for nothing in (
        "shfl.sync.idx.b32 %r6, %r0, 0, 31, -1;", "vote.sync.all.pred %p3, %p2, -1;", "activemask.b32 %r6;",
        "redux.sync.add.u32 %r6, %r0, -1;", "match.any.sync.b32 %r6, %r0, -1;", "fence.acq_rel.cta;",
        "fence.proxy.async.shared::cta;",
    ):  # fmt: skip
        assert go(first + nothing + then).kinds == ["race"], nothing
    for order in (SYNC, "bar.sync 0;", "barrier.cluster.arrive; barrier.cluster.wait;"):
        assert not go(first + order + then).findings, order
    assert not go(first + then, OFF).findings


def test_lanes_by_themselves() -> None:
    """A lane's accesses to its own bytes need no order with adjacent bytes' accesses."""
    own = "st.shared.b32 [%r1], %r0; ld.shared.b32 %r4, [%r1]; st.shared.b32 [%r1], %r4; red.shared.add.u32 [%r1], 1;"
    assert not go(own, STRICT).findings
    bytes_ = "sub.u32 %r6, %r1, %r9; shr.u32 %r6, %r6, 2; add.u32 %r6, %r6, %r9; mov.b16 %h0, 1;"
    assert not go(f"{bytes_} st.shared.b8 [%r6], %h0; ld.shared.u8 %h1, [%r6];", STRICT).findings
    zero = f"st.shared.b32 [%r3], %r5; {SYNC}"
    assert not go(f"{zero} red.shared.add.u32 [%r3], 1; atom.shared.add.u32 %r4, [%r3], 1;", STRICT).findings
    same = "st.shared.b32 [%r3], %r5; ld.shared.b32 %r4, [%r3];"  # all write 7
    assert not go(same, STRICT).findings


def test_a_race_names_the_instruction_that_touched_the_place() -> None:
    """Not the first one since the last barrier."""
    first = "st.shared.b32 [%r1+1024], %r0; st.shared.u32 [%r1], %r0;"
    (race,) = go(f"{first} xor.b32 %r20, %r1, 16; ld.shared.b32 %r4, [%r20];").findings
    assert race.kind == "race" and "before it, st.shared.u32 at" in race.message, race


def test_one_store_to_one_place() -> None:
    found = go("st.shared.b32 [%r3], %r0;")
    assert found.kinds == ["race"] and "different values to address 0x400" in found.findings[0].message
    assert go("st.global.b32 [%out], %r0;").kinds == ["race"]
    assert not go("st.shared.b32 [%r3], %r5; st.global.b32 [%out], %r5;").findings
    assert not go("st.shared.b32 [%r3], %r0;", OFF).findings


def test_global_memory_between_lanes() -> None:
    """Words of an array: the lane's own, and its neighbour's."""
    head = "mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %out, %d1; add.u32 %r6, %r0, 1; and.b32 %r6, %r6, 31;"
    head += "mul.wide.u32 %d2, %r6, 4; add.u64 %d2, %out, %d2; mov.u64 %d3, 0; mov.b16 %h0, 1;"
    write, sync = f"{head} st.global.b32 [%d1], %r0;", SYNC
    for then in (
        "ld.global.b32 %r4, [%d2];", "st.global.b32 [%d2], %r0;", "red.global.add.u32 [%d2], 1;",
        "ld.global.u8 %h1, [%d2+3];", "ld.global.b64 %d4, [%out];", "@%p1 ld.global.b32 %r4, [%d2];",
        "@!%p1 bra A; ld.global.b32 %r4, [%d2]; A:", "bar.warp.sync -1; st.global.b32 [%d1], %r5; ld.b32 %r4, [%d2];",
    ):  # fmt: skip
        found = go(write + then)
        assert found.kinds == ["race"] and " of out, that lanes 0x" in found.findings[0].message, (then, found.findings)
        assert not go(write + sync + then if not then.startswith("bar") else write, None).findings
        assert not go(write + then, OFF).findings
    own = "st.global.b32 [%d1], %r5; ld.global.b32 %r4, [%d1]; @%p1 ld.global.b32 %r4, [%d1];"
    assert not go(f"{write} {own}", STRICT).findings
    assert not go(f"{write} @!%p1 bra A; st.global.b32 [%d1], %r5; A: ld.global.b32 %r4, [%d1];").findings
    # Atomics do not race with each other; equal writes of all lanes are each lane's own.
    assert not go("red.global.add.u32 [%out], 1; red.global.add.u32 [%out], 1;", STRICT).findings
    assert not go("st.global.b32 [%out], %r5; ld.global.b32 %r4, [%out];", STRICT).findings
    # Equal writes of lanes that take turns are no race, as between warps; a read of one lane's is.
    turns = "mov.u32 %r6, 0; T: setp.eq.u32 %p3, %r6, %r0; @%p3 st.global.b32 [%out], VALUE; READ add.u32 %r6, %r6, 1;"
    turns = f"{turns} setp.lt.u32 %p3, %r6, 32; @%p3 bra T;"
    assert not go(turns.replace("VALUE", "%r5").replace("READ", "")).findings
    assert go(turns.replace("VALUE", "%r0").replace("READ", "")).kinds == ["race"]
    assert "race" in go(turns.replace("VALUE", "%r5").replace("READ", "ld.global.b32 %r4, [%out];")).kinds
    # A word stays watched over many releases that order no lanes, each followed by stores elsewhere.
    more = " fence.proxy.async; st.global.b32 [%d1+128], %r0;" * 100
    assert go(f"{write} {more} ld.global.b32 %r4, [%d2];").kinds == ["race"]
    assert not go(f"{write} {more} {sync} ld.global.b32 %r4, [%d2];").findings
    half = f"{write} @!%p2 bra A; bar.warp.sync 0xffff; A: mov.u32 %r4, 0; @%p2 bra B; bra C; B: "
    assert not go(half + "ld.global.b32 %r4, [%out+60]; C:").findings
    assert go(half + "ld.global.b32 %r4, [%out+64]; C:").kinds == ["race"]


def test_a_write_over_what_lanes_read_in_global_memory() -> None:
    """Lint, as in shared memory, and a race by PTX's word; not where a barrier stands between, or each has its own."""
    head = "mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %out, %d1; add.u32 %r6, %r0, 1; and.b32 %r6, %r6, 31;"
    head += "mul.wide.u32 %d2, %r6, 4; add.u64 %d2, %out, %d2;"
    read, write = "ld.global.b32 %r4, [%d2];", "st.global.b32 [%d1], %r0;"
    for load in (read, "ld.volatile.global.b32 %r4, [%d2];"):
        late = f"{head} {load} SHUFFLE {write}"
        for between, says in (("", "lane 0 reads, lane 1 of"), ("shfl.sync.idx.b32 %r4, %r4, 0, 31, -1;", "waited")):
            found = go(late.replace("SHUFFLE", between))
            assert found.kinds == ["lint"] and says in found.findings[0].message, found.findings
            assert "before it, ld." in found.findings[0].message
            assert go(late.replace("SHUFFLE", between), STRICT).kinds == ["race"]
        for order in (SYNC, "bar.sync 0;"):
            assert not go(late.replace("SHUFFLE", order)).findings
        assert not go(late.replace("SHUFFLE", ""), OFF).findings
        assert not go(late.replace("[%d2]", "[%d1]").replace("SHUFFLE", "")).findings  # each its own
        assert not go(late.replace("SHUFFLE", "").replace("[%d1]", "[%d1+128]")).findings  # elsewhere
    one = f"{head} ld.global.b32 %r4, [%out]; @%p1 st.global.b32 [%out], %r5;"
    assert go(one).kinds == ["lint"] and not go(one.replace("@%p1 st", f"{SYNC} @%p1 st")).findings
    # Lane 0 tells another warp, which writes.
    body = f"{BARRIER.replace('COUNT', '1')} {head} @%p5 bra R; {read} ARRIVE bra E; R: {WAIT} {write} E:"
    tell = "@%p1 mbarrier.arrive.shared.b64 _, [%r7];"
    found = go(body.replace("ARRIVE", tell), block=64)
    assert found.kinds == ["lint"] and "one lane released it" in found.findings[0].message, found.findings
    assert not go(body.replace("ARRIVE", SYNC + tell), block=64).findings
    assert go(body.replace("ARRIVE", tell), STRICT, block=64).kinds == ["race"]


def test_reads_before_writes_are_a_matter_of_the_policy() -> None:
    """A warp that has executed a load has read: practice leans on it, PTX does not say it."""
    for read in ("ld.shared.b32 %r4, [%r2];", "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r4}, [%r9];"):
        body = FILL + read + "st.shared.b32 [%r1], %r5;"
        if "ldmatrix" in read:
            body = body.replace("[%r9]", "[%r8]")
        assert go(body).kinds == ["lint"]
        assert go(body, STRICT).kinds == ["race"], read
        assert not go(body.replace("st.shared.b32 [%r1], %r5", f"{SYNC} st.shared.b32 [%r1], %r5"), STRICT).findings


def test_an_elected_lane_does_not_act_for_the_others() -> None:
    """Both ways: what lane 0 writes, and what it writes over."""
    after = f"{FILL} @!%p1 bra A; st.shared.b32 [%r9+64], %r5; A: ld.shared.b32 %r4, [%r2];"
    assert go(after).kinds == ["race"]
    assert not go(after.replace("A: ", f"A: {SYNC}")).findings
    # Of the other lanes' words, in a branch that only lane 0 takes.
    before = f"st.shared.b32 [%r1], %r0; @!%p1 bra A; ld.shared.b32 %r4, [%r9+64]; A: {SYNC}"
    assert go(before).kinds == ["race"]
    assert not go(before.replace("@!%p1", f"{SYNC} @!%p1")).findings
    # Its own is its own.
    assert not go(before.replace("+64", ""), STRICT).findings
    # Two sides of a branch race as before, and lanes that meet again are not ordered by that.
    sides = f"{FILL} @!%p2 bra A; st.shared.b32 [%r3], %r5; bra B; A: mov.u32 %r4, 0; B: @%p2 bra C; "
    assert go(sides + "ld.shared.b32 %r4, [%r3]; C:").kinds == ["race"]
    assert not go(sides.replace("B: ", f"B: {SYNC}") + "ld.shared.b32 %r4, [%r3]; C:").findings


SHUFFLE = "shfl.sync.bfly.b32 %r6, %r4, 1, 31, -1;"


def test_lanes_that_waited_for_each_other_have_read() -> None:
    """A block's sum: lanes 0 to 15 read a word each, all shuffle them, and all write one of the words.

    PTX orders no memory by a shuffle, so that it is lint which names the switch.
    """
    body = f"{FILL} mov.u32 %r4, 0; @!%p2 bra A; ld.shared.b32 %r4, [%r1]; A: {SHUFFLE} st.shared.b32 [%r3+4], %r5;"
    for ordered in (body, body.replace("st.shared.b32 [%r3+4]", "@!%p2 st.shared.b32 [%r3+4]")):
        found = go(ordered)
        assert found.kinds == ["lint"] and "--lanes strict" in found.findings[0].message
        assert "have waited for each other since" in found.findings[0].message
        assert go(ordered, STRICT).kinds == ["race"]
        assert not go(ordered.replace(SHUFFLE, SHUFFLE + SYNC)).findings
    # Nothing else makes the other lanes wait, nor a shuffle before the read or among the lanes that read.
    assert go(body.replace(SHUFFLE, "")).kinds == ["race"]
    assert go(body.replace(SHUFFLE, "").replace("@!%p2 bra", f"{SHUFFLE} @!%p2 bra")).kinds == ["race"]
    some = SHUFFLE.replace("-1;", "0xFFFF;")
    assert go(body.replace(SHUFFLE, "").replace("A:", f"{some} A:")).kinds == ["race"]
    # What they wrote is not handed on.
    assert go(body.replace("ld.shared.b32 %r4, [%r1]", "st.shared.b32 [%r1], %r0")).kinds == ["race"]


def test_some_lanes_synchronise() -> None:
    """A barrier of one half orders nothing for the other."""
    half = "@!%p2 bra A; st.shared.b32 [%r1], %r0; bar.warp.sync 0xffff; ld.shared.b32 %r4, [%r3+{at}]; A:"
    assert not go(half.format(at=60)).findings
    assert go(half.format(at=60).replace("bar.warp.sync 0xffff;", "")).kinds == ["race"]
    other = half.format(at=60) + "@%p2 bra B; ld.shared.b32 %r4, [%r3+60]; B:"
    assert go(other).kinds == ["race"]
    assert not go(other.replace("A:", f"A: {SYNC}")).findings
    assert go("bar.warp.sync 0xffff;").kinds == ["divergence"]  # lanes outside of the mask execute it


BARRIER = """
    mov.u32 %r7, smem; add.u32 %r7, %r7, 4096; mov.u32 %r15, %tid.x; setp.lt.u32 %p5, %r15, 32;
    setp.eq.u32 %p4, %r15, 0; @%p4 mbarrier.init.shared.b64 [%r7], COUNT; bar.sync 0;
"""
WAIT = "W: mbarrier.try_wait.parity.shared.b64 %p6, [%r7], 0; @!%p6 bra W;"


def test_one_lanes_arrival_hands_on_its_own_writes() -> None:
    """Warp 0 writes 32 words and one lane arrives at an mbarrier; warp 1 waits and reads them."""
    one = f"@!%p5 bra R; st.shared.b32 [%r1], %r0; @%p1 mbarrier.arrive.shared.b64 _, [%r7]; bra E; R: {WAIT}"
    one = BARRIER.replace("COUNT", "1") + one + "ld.shared.b32 %r4, [{at}]; E:"
    assert go(one.format(at="%r1"), block=64).kinds == ["race"]
    assert not go(one.format(at="%r3"), block=64).findings  # lane 0's word alone
    synced = one.replace("@%p1 mbarrier", f"{SYNC} @%p1 mbarrier")
    assert not go(synced.format(at="%r1"), block=64).findings
    each = one.replace("@%p1 mbarrier", "mbarrier").replace("[%r7], 1;", "[%r7], 32;")
    assert not go(each.format(at="%r1"), block=64).findings
    # Who read before the arrival: by PTX's word no other lane's reads are released, in practice they are.
    reads = one.replace("bar.sync 0;", "@%p5 st.shared.b32 [%r1], %r0; bar.sync 0;")
    reads = reads.replace("st.shared.b32 [%r1], %r0; @%p1", "ld.shared.b32 %r4, [%r1]; @%p1")
    reads = reads.replace("ld.shared.b32 %r4, [{at}]; E:", "st.shared.b32 [%r1], %r5; E:")
    assert reads.count("ld.shared") == 1
    found = go(reads, block=64)
    assert found.kinds == ["lint"] and "one lane released it" in found.findings[0].message, found.findings
    assert "bar.warp.sync" in found.findings[0].orders and "--lanes strict" in found.findings[0].message
    assert go(reads, STRICT, block=64).kinds == ["race"]
    arrive = "@%p1 mbarrier.arrive.shared.b64 _, [%r7];"
    matrix = "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r6}, [%r3];"
    for wait in (SYNC, SHUFFLE, "vote.sync.any.pred %p6, %p1, -1;", "elect.sync _|%p6, -1;", matrix):
        found = go(reads.replace(arrive, f"{wait} {arrive}"), block=64)
        assert found.kinds == ["lint"] * (wait != SYNC), wait
        assert go(reads.replace("ld.shared.b32 %r4, [%r1];", f"{wait} ld.shared.b32 %r4, [%r1];"), block=64).kinds
    # Lanes that wait without lane 0; one lane's own read; an arrival of every lane.
    some = "@%p1 bra A; bar.warp.sync 0xFFFFFFFE; A:"
    assert go(reads.replace(arrive, f"{some} {arrive}"), block=64).kinds == ["lint"]
    assert not go(reads.replace("ld.shared.b32 %r4, [%r1]", "@%p1 ld.shared.b32 %r4, [%r1]"), block=64).findings
    # Reads of some lanes, before all meet or wait at a barrier; then one lane arrives.
    half = "mov.u32 %r4, 0; @!%p2 bra B; ld.shared.b32 %r4, [%r1]; B:"
    assert go(reads.replace("ld.shared.b32 %r4, [%r1];", half), block=64).kinds == ["lint"]
    for wait in (SHUFFLE, SYNC, "bar.sync 1, 32;"):
        found = go(reads.replace("ld.shared.b32 %r4, [%r1];", f"{half} {wait}"), block=64)
        assert found.kinds == ["lint"] * (wait == SHUFFLE), wait
    assert not go(reads.replace(arrive, arrive[5:]).replace("[%r7], 1;", "[%r7], 32;"), block=64).findings


def test_one_lanes_copy_over_what_its_warp_reads() -> None:
    """One warp is its own producer: all read a buffer, and one lane has it refilled."""
    start = BARRIER.replace("COUNT", "1") + "st.shared.b32 [%r1], %r0; fence.proxy.async.shared::cta;"
    start += "bar.sync 0; ld.shared.b32 %r4, [%r1]; fence.proxy.async.shared::cta;"
    copy = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%out], BYTES, [%r7];"
    refill = f"@!%p1 bra A; mbarrier.arrive.expect_tx.shared.b64 _, [%r7], BYTES; {copy} A: {WAIT}"
    found = go(start + refill.replace("BYTES", "128"))
    assert found.kinds == ["lint"] and "lane 1 reads, lane 0 of its warp writes" in found.findings[0].message
    assert not go(start + SYNC + refill.replace("BYTES", "128")).findings
    assert go(start + refill.replace("BYTES", "128"), STRICT).kinds == ["race"]
    # In place, each lane its own word; what lanes on one way read is told from what the others write.
    own = f"{FILL} ld.shared.b32 %r4, [%r1]; st.shared.b32 [%r1], %r5; @%p1 st.shared.b32 [%r1], %r0;"
    assert not go(own).findings
    assert go(own.replace("@%p1 st.shared.b32 [%r1]", "@%p1 st.shared.b32 [%r2]")).kinds == ["race"]


def test_one_lanes_wait_is_its_own() -> None:
    """Lane 0 waits for the other warp, the other lanes read: they need its word for it."""
    body = f"@!%p5 bra R; st.shared.b32 [%r1], %r0; mbarrier.arrive.shared.b64 _, [%r7]; bra E; R: @!%p1 bra A; {WAIT}"
    body = BARRIER.replace("COUNT", "32") + body + "A: ld.shared.b32 %r4, [%r1]; E:"
    found = go(body, block=64)
    assert found.kinds == ["race"] and "lane 1 does not: no bar.warp.sync" in found.findings[0].message
    assert not go(body.replace("A: ", f"A: {SYNC}"), block=64).findings
    assert not go(body, OFF, block=64).findings


def test_one_lanes_acquire_at_a_word_is_its_lanes_where_they_shuffle() -> None:
    """The barrier of a tile of several warps in cooperative groups: one lane's atomic, and a shuffle of its result."""
    ask = "P: @!%p1 bra A; ld.acquire.cta.shared.b32 %r6, [%r3+512]; A: shfl.sync.idx.b32 %r6, %r6, 0, 31, -1;"
    body = (f"mov.u32 %r6, %tid.x; setp.lt.u32 %p5, %r6, 32; "
            "setp.eq.u32 %p7, %r6, 0; @%p7 st.shared.b32 [%r3+512], 0; bar.sync 0; @%p5 bra P;"
            f"st.shared.b32 [%r1], %r0; {SYNC} @%p1 red.release.cta.shared.or.b32 [%r3+512], 1; bra E;"
            f"{ask} setp.eq.u32 %p6, %r6, 0; @%p6 bra P; ld.shared.b32 %r4, [%r2]; E:")  # fmt: skip
    found = go(body, block=64)
    assert found.kinds == ["lint"] and "lane 1 has it by a shuffle" in found.findings[0].message, found.findings
    assert go(body, STRICT, block=64).kinds == ["race"]
    # A barrier tells the others. The lane that acquired needs none.
    assert not go(body.replace("ld.shared.b32 %r4", f"{SYNC} ld.shared.b32 %r4"), block=64).findings
    assert not go(body.replace("ld.shared.b32 %r4", "@%p1 ld.shared.b32 %r4"), block=64).findings
    assert go(body.replace(f"{SYNC} @%p1 red.release", "@%p1 red.release"), block=64).kinds == ["race"]
    # Lanes that do not take part learn nothing, nor does a relaxed read tell any.
    some = body.replace("A: shfl.sync.idx.b32 %r6, %r6, 0, 31, -1;", "A:").replace("@%p6 bra P;", "@%p6 bra P; S:")
    assert go(some.replace("@!%p1 bra A;", "@!%p1 bra S;"), block=64).kinds == ["race"]
    assert go(body.replace("ld.acquire.cta", "ld.relaxed.cta"), block=64).kinds == ["race"]


def test_a_barrier_of_all_lanes_tells_of_reads_in_many_branches() -> None:
    """Lanes leave a loop one by one, with more reads in branches than are kept; then all meet."""
    body = """mov.u32 %r15, 0; mul.lo.u32 %r12, %r0, 3; mov.u32 %r7, %tid.x; shl.b32 %r7, %r7, 2;
        add.u32 %r7, %r7, %r9; and.b32 %r13, %r0, 1; setp.eq.u32 %p3, %r13, 0; st.shared.b32 [%r7], %r0; bar.sync 0;
        L: and.b32 %r13, %r15, 31; shl.b32 %r13, %r13, 2; add.u32 %r13, %r13, %r9; ld.shared.b32 %r4, [%r13];
        @%p3 bra C; ld.shared.b32 %r6, [%r13+4];
        C: add.u32 %r15, %r15, 1; setp.lt.u32 %p4, %r15, %r12; @%p4 bra L; MEET st.shared.b32 [%r7], %r15;"""
    assert not go(body.replace("MEET", "bar.sync 0;"), block=64).findings
    assert "race" in go(body.replace("MEET", ""), block=64).kinds


STORE = "cp.async.bulk.global.shared::cta.bulk_group [%out], [%r9], 128; cp.async.bulk.commit_group;"


def test_a_bulk_store_by_one_lane() -> None:
    """The production kernel's epilogue: all fence, the warp meets, lane 0 stores, waits, the warp meets, all write."""
    fence, store = "fence.proxy.async.shared::cta;", f"@%p1 bra S; bra T; S: {STORE} T:"
    wait = "@%p1 bra U; bra V; U: cp.async.bulk.wait_group.read 0; V:"
    parts = ["st.shared.b32 [%r1], %r0;", fence, SYNC, store, wait, SYNC, "st.shared.b32 [%r1], %r5;"]
    assert not go(" ".join(parts), STRICT).findings
    for missing, says in ((1, "no fence.proxy.async"), (2, "cp.async.bulk"), (5, "lane 1 does not")):
        found = go(" ".join(part for at, part in enumerate(parts) if at != missing))
        assert found.kinds == ["race"] and says in str(found.findings[0]), (missing, found.findings)
    # One lane's fence is for its own writes, after the barrier too.
    late = [parts[0], SYNC, f"@%p1 bra F; bra G; F: {fence} G:", *parts[3:]]
    assert go(" ".join(late), Policy(fences="writers")).kinds == ["race"]
    assert go(" ".join(late)).kinds == ["lint"]
    # All lanes execute the wait: those that committed nothing wait for nothing.
    found = go(" ".join([*parts[:4], "cp.async.bulk.wait_group.read 0;", parts[6]]))
    assert found.kinds == ["race"] and "lane 1 does not" in found.findings[0].message


def test_an_initialised_barrier_is_its_lanes_own() -> None:
    body = "mov.u32 %r7, smem; @%p1 mbarrier.init.shared.b64 [%r7], 32; mbarrier.arrive.shared.b64 _, [%r7];"
    body += WAIT
    assert go(body).kinds == ["race"]
    assert not go(body.replace("32; mbar", f"32; {SYNC} mbar")).findings


def test_a_subset_of_the_lanes_that_know() -> None:
    """Lanes 0 to 15 have met; of them and others, lanes 8 to 23 go on: the first half of these knows."""
    body = """
        @!%p2 bra A; st.shared.b32 [%r1], %r0; bar.warp.sync 0xffff; A: add.u32 %r6, %r0, 8; and.b32 %r6, %r6, 31;
        setp.lt.u32 %p3, %r6, 16; not.pred %p3, %p3; @!%p3 bra B; setp.lt.u32 %p4, %r0, LAST;
        @!%p4 bra C; ld.shared.b32 %r4, [%r3]; C: mov.u32 %r7, 1; B:
    """
    assert not go(body.replace("LAST", "16")).findings
    assert go(body.replace("LAST", "17")).kinds == ["race"]


def test_a_known_event_stays_known_after_division() -> None:
    ledger = Ledger(lanes="converged")
    event = ledger.event(False, lambda: "stores")
    event.lanes, bit = 0b11, ledger.bit(event)
    kinds = ("seen", "proxied", "fenced", "inits", "own", "open", "past")
    sets = {kind: ledger.knowledge() for kind in kinds}
    for kind, one in sets.items():
        setattr(one, kind, bit)
    other = divide(ledger, event, 0b01)
    assert (event.lanes, other.lanes) == (0b10, 0b01)
    for kind, one in sets.items():
        both = bit | ledger.bit(other)
        assert {name: getattr(one, name) for name in kinds} == {**dict.fromkeys(kinds, 0), kind: both}


def deleted(body: str, what: str, block: int = 32) -> str:
    """The outcome of deleting an instruction: how it is caught, or why it survives."""
    kernel = parse(module(f"{HEAD} {body}", {"out": "u64"}))[0]

    def launch() -> Launch:
        memory = GlobalMemory()
        at = memory.add("out", np.zeros(64, np.uint32)).address
        return Launch((1, 1, 1), (block, 1, 1), at.to_bytes(8, "little"), memory, dynamic_shared=8192)

    (mutant,) = deletions(kernel, (what,))
    row = Explainer(kernel, [LaunchCase("one", launch, lambda done: None)]).row(mutant)
    return (row.how or row.reason).split(":")[0]


def test_deleted_warp_barriers() -> None:
    """Needed; between accesses of the same lanes; where another barrier stands."""
    assert deleted(f"{FILL} ld.shared.b32 %r4, [%r2];", "bar.warp.sync") == "race"
    assert deleted(f"{FILL} ld.shared.b32 %r4, [%r1];", "bar.warp.sync") == "looser"
    assert deleted(f"{FILL} bar.sync 0; ld.shared.b32 %r4, [%r2];", "bar.warp.sync") == "same"
    # One lane's arrival hands on its part alone, where the barrier is not there: the other warp reads that part.
    body = f"@!%p5 bra R; {FILL} @%p1 mbarrier.arrive.shared.b64 _, [%r7]; bra E; R: {WAIT}"
    body = BARRIER.replace("COUNT", "1") + body + "ld.shared.b32 %r4, [%r3]; E:"
    assert deleted(body, "bar.warp.sync", 64) == "looser"


def test_a_long_run_stays_short() -> None:
    """Branches of few lanes, many times: what is kept of them is bounded."""
    loop = """
        mov.u32 %r20, 0;
        L: and.b32 %r21, %r20, 31; setp.eq.u32 %p3, %r0, %r21; @!%p3 bra N; st.shared.b32 [%r1], %r20;
        N: add.u32 %r20, %r20, 1; setp.lt.u32 %p4, %r20, 200; @%p4 bra L;
    """
    found = go(FILL + loop + f"{SYNC} ld.shared.b32 %r4, [%r2];", STRICT)
    assert not found.findings
    assert go(FILL + loop + "ld.shared.b32 %r4, [%r2];", STRICT).kinds == ["race"]


@given(st.lists(st.integers(0, 7), min_size=1, max_size=6), st.sampled_from([1, 2, 4, 8, 16]), st.data())
@settings(max_examples=60, deadline=None)
def test_touches_are_the_bytes_that_lanes_touch(numbers: list[int], size: int, data: st.DataObject) -> None:
    lanes = sorted(data.draw(st.sets(st.integers(0, 31), min_size=len(numbers), max_size=len(numbers))))
    touch = LaneAccess(sum(1 << lane for lane in lanes), np.array(numbers) * size, size)
    unit = data.draw(st.sampled_from([u for u in (1, 2, 4, 8, 16) if u <= size]))
    want: dict[int, int] = {}
    for lane, number in zip(lanes, numbers, strict=True):
        for byte in range(number * size, (number + 1) * size):
            want[byte // unit] = want.get(byte // unit, 0) | 1 << lane
    assert touch.units(unit) == want
    some = data.draw(st.integers(0, (1 << 32) - 1))
    part = touch.of(some)
    left = {piece: who & some for piece, who in want.items() if who & some}
    assert (part.units(unit) if part else {}) == left
    assert touch.places == sum(1 << place for place in {byte * unit // 16 for byte in want})


def test_equal_writes_of_lanes_do_not_conflict() -> None:
    rows = np.array([[1, 2], [3, 4], [1, 2], [3, 5]], np.uint8)
    assert conflicting(np.array([0, 2, 0, 4]), rows, 2) is None
    assert conflicting(np.array([0, 2, 0, 2]), rows, 2) == (2, False)


@pytest.mark.parametrize(("place", "races"), [("%r1", 0), ("%r2", 1)])
def test_a_lane_that_reads_its_own_word_alone_races_with_no_other_word(place: str, races: int) -> None:
    """Lane 0 reads word 0; then all lanes write their own words, or their neighbours': lane 31 writes word 0."""
    body = f"{FILL} bar.sync 0; @%p1 bra A; bra B; A: ld.shared.b32 %r4, [%r3]; B: st.shared.b32 [{place}], %r5;"
    assert len(go(body).findings) == races
