"""The mutation tools, on a kernel small enough to say what each mutant does."""

from __future__ import annotations

import dataclasses
import struct

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Launch, Policy
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.mutation.mutants import SPARE, Change, Mutant, Site, changed, deletions, edited, fields, sites
from layoutgemm.emulator.mutation.run import IN_TURN, LaunchCase, Survey, sample, survey, unreached, verdict
from layoutgemm.emulator.ops import program_of
from layoutgemm.emulator.ptx.parser import PtxKernel, parse
from layoutgemm.errors import EmulatorError

# Warp 0 writes a value for each lane; warp 1 reads it when an mbarrier says so, and adds its own; twice for n = 2.
TEXT = """
.version 8.0
.target sm_90a
.extern .shared .align 16 .b8 smem[];
.visible .entry exchange(.param .u64 a, .param .u64 c, .param .u32 n) {
  .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<8>;
  ld.param.u64 %d0, [a];
  ld.param.u64 %d1, [c];
  ld.param.u32 %r0, [n];
  mov.u32 %r1, %tid.x;
  and.b32 %r2, %r1, 31;
  shl.b32 %r3, %r2, 2;
  mov.u32 %r4, smem;
  add.u32 %r5, %r4, %r3;
  add.u32 %r14, %r5, 16;
  setp.ne.u32 %p0, %r1, 0;
  @%p0 bra INITIALISED;
  mbarrier.init.shared.b64 [%r4], 32;
INITIALISED:
  bar.sync 0;
  bar.sync 0;
  setp.ge.u32 %p1, %r1, 32;
  @%p1 bra READER;
  mul.wide.u32 %d2, %r2, 4;
  add.u64 %d3, %d0, %d2;
  ld.global.b32 %r6, [%d3];
  st.shared.b32 [%r14], %r6;
  mbarrier.arrive.shared.b64 _, [%r4];
  setp.lt.u32 %p2, %r0, 2;
  @%p2 bra DONE;
  bar.sync 1, 64;
  add.u32 %r6, %r6, 1;
  st.shared.b32 [%r14], %r6;
  mbarrier.arrive.shared.b64 _, [%r4];
  bra DONE;
READER:
  mov.b32 %r7, 0;
  mov.b32 %r8, 0;
AGAIN:
  mbarrier.try_wait.parity.shared.b64 %p3, [%r4], %r7;
  @!%p3 bra AGAIN;
  ld.shared.b32 %r9, [%r14];
  add.u32 %r8, %r8, %r9;
  add.u32 %r7, %r7, 1;
  setp.ge.u32 %p4, %r7, %r0;
  @%p4 bra STORE;
  bar.sync 1, 64;
  bra AGAIN;
STORE:
  mul.wide.u32 %d4, %r2, 4;
  add.u64 %d5, %d1, %d4;
  st.global.b32 [%d5], %r8;
DONE:
  ret;
}
"""


def kernel() -> PtxKernel:
    return parse(TEXT)[0]


def case(n: int, policy: Policy | None = None) -> LaunchCase:
    def launch() -> Launch:
        memory = GlobalMemory()
        a, c = np.arange(32, dtype=np.uint32) + 7, np.zeros(32, dtype=np.uint32)
        parameters = struct.pack("<QQI", memory.add("a", a).address, memory.add("c", c).address, n)
        return Launch((1, 1, 1), (64, 1, 1), parameters, memory, dynamic_shared=256)

    def check(launch: Launch) -> str | None:
        a, c = (launch.memory.buffers[i].data.view(np.uint32) for i in (0, 1))
        return None if (c == n * a + (n - 1)).all() else f"c is {c[:4].tolist()}"

    return LaunchCase(f"n = {n}", launch, check, policy or IN_TURN)


def table(mutants: list[str], n: tuple[int, ...] = (1, 2)) -> Survey:
    every = [*deletions(kernel()), *fields(kernel())]
    return survey(kernel(), [case(k) for k in n], [m for m in every if any(text in str(m) for text in mutants)])


def test_the_kernel_itself_passes() -> None:
    for n in (1, 2):
        for policy in (Policy(), Policy(waits="reluctant"), Policy(pick="random", seed=3)):
            assert verdict(kernel(), case(n, policy))[0] == ""


def test_deletions_are_caught_except_of_a_duplicate_barrier() -> None:
    found = survey(kernel(), [case(1), case(2)], deletions(kernel()))
    assert len(found.rows) == 8
    assert [m.place for m in found.survivors] == ["PTX line 20: bar.sync 0", "PTX line 21: bar.sync 0"]
    lines = found.table().splitlines()
    assert lines[:2] == ["deletion     6 of     8", "all          6 of     8 caught"]
    assert lines[2] == "survives: deletion: deleted, PTX line 20: bar.sync 0"


def test_a_shape_that_is_missing_shows() -> None:
    """With n = 1 alone, no two threads use barrier 1, so nothing shows its deletion."""
    alone = table(["bar.sync 1", "deleted"], (1,))
    assert {"PTX line 31: bar.sync 1, 64", "PTX line 47: bar.sync 1, 64"} <= {m.place for m in alone.survivors}
    assert [i.opcode for i in unreached(kernel(), [case(1)])] == [
        "bar.sync", "add.u32", "st.shared.b32", "mbarrier.arrive.shared.b64", "bra", "bar.sync", "bra",
    ]  # fmt: skip
    assert unreached(kernel(), [case(1), case(2)]) == []


def test_how_each_is_caught() -> None:
    rows = {f"{row.mutant.change}, {row.mutant.place}": row for row in table([""]).rows}

    def how(text: str) -> str:
        (row,) = [row for key, row in rows.items() if text in key]
        return row.how

    assert how("of arrivals one more").startswith("deadlock")
    assert how("flipped, PTX line 40").startswith(("race", "deadlock", "uninitialised"))
    assert how("deleted, PTX line 40").startswith(("race", "uninitialised"))
    assert how("of threads +32, PTX line 31").startswith(("protocol", "deadlock"))
    assert how("16 bytes on, PTX line 42").startswith("values")


# Block 0 writes into block 1 once the cluster has met; the cluster meets again before block 1 reads and ends.
REMOTE = """
.version 8.7
.target sm_90a
.visible .entry send(.param .u64 c) .explicitcluster .reqnctapercluster 2, 1, 1
{
  .reg .b32 %r<8>; .reg .b64 %d<3>; .reg .pred %p<2>;
  .shared .align 16 .b8 tile[128];
  mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mad.lo.u32 %r2, %r0, 4, %r1; mov.u32 %r3, %cluster_ctarank;
  barrier.cluster.arrive.relaxed;
  barrier.cluster.wait;
  setp.ne.u32 %p0, %r3, 0;
  @%p0 bra MEET;
  mapa.shared::cluster.u32 %r4, %r2, 1;
  st.shared::cluster.u32 [%r4], %r0;
MEET:
  barrier.cluster.arrive;
  barrier.cluster.wait;
  setp.eq.u32 %p1, %r3, 0;
  @%p1 bra DONE;
  ld.shared.b32 %r5, [%r2];
  ld.param.u64 %d0, [c]; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1;
  st.global.b32 [%d0], %r5;
DONE:
  ret;
}
"""
# A warp reads what a copy brought, and thread 0 refills the buffer.
REFILL = """
.version 8.7
.target sm_90a
.visible .entry refill(.param .u64 a, .param .u64 c)
{
  .reg .b32 %r<8>; .reg .b64 %d<4>; .reg .pred %p<3>;
  .shared .align 16 .b8 tile[128];
  .shared .align 8 .b8 full[8];
  mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mov.u32 %r2, full; mad.lo.u32 %r3, %r0, 4, %r1; mov.u32 %r5, 0;
  setp.ne.u32 %p0, %r0, 0; ld.param.u64 %d0, [a]; ld.param.u64 %d1, [c]; mov.u32 %r6, 0;
  @%p0 bra READY;
  mbarrier.init.shared.b64 [%r2], 1;
  fence.mbarrier_init.release.cluster;
READY:
  bar.sync 0;
ROUND:
  @%p0 bra WAITS;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r2], 128;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0], 128, [%r2];
WAITS:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r2], %r5;
  @!%p1 bra WAITS;
  ld.shared.b32 %r4, [%r3]; add.u32 %r6, %r6, %r4;
  fence.proxy.async.shared::cta;
  bar.sync 0;
  add.u64 %d0, %d0, 128; add.u32 %r5, %r5, 1; setp.lt.u32 %p2, %r5, 2;
  @%p2 bra ROUND;
  mul.wide.u32 %d2, %r0, 4; add.u64 %d1, %d1, %d2;
  st.global.b32 [%d1], %r6;
  ret;
}
"""


def small(text: str, arrays: dict[str, np.ndarray], want: np.ndarray, grid: int, policy: Policy) -> Survey:
    """All deletions of a kernel, of one warp in each block."""

    def launch() -> Launch:
        memory = GlobalMemory()
        places = [memory.add(name, array.copy()).address for name, array in arrays.items()]
        return Launch((grid, 1, 1), (32, 1, 1), struct.pack(f"<{len(places)}Q", *places), memory, (grid, 1, 1))

    def check(done: Launch) -> str | None:
        return None if (done.memory.buffers[-1].data.view(np.uint32) == want).all() else "other values"

    (kernel,) = parse(text)
    return survey(kernel, [LaunchCase("one", launch, check, policy)], deletions(kernel))


def test_a_meeting_of_the_cluster_that_is_deleted_before_remote_accesses() -> None:
    lane = np.arange(32, dtype=np.uint32)
    found = small(REMOTE, {"c": np.zeros(32, np.uint32)}, lane, 2, IN_TURN)
    how = {row.mutant.place: row.how for row in found.rows}
    assert len(how) == 4 and all(how.values())
    (first,) = [said for place, said in how.items() if place.endswith("barrier.cluster.arrive.relaxed")]
    assert "without an arrive" in first
    both = REMOTE.replace("  barrier.cluster.arrive.relaxed;\n  barrier.cluster.wait;\n", "")
    with pytest.raises(EmulatorError, match=r"fails one: race: st\.shared::cluster.*has begun"):
        small(both, {"c": np.zeros(32, np.uint32)}, lane, 2, IN_TURN)


def test_a_fence_before_a_refill_that_is_deleted() -> None:
    """By PTX's word it is needed; in practice it is left out."""
    a = np.arange(64, dtype=np.uint32)
    arrays, want = {"a": a, "c": np.zeros(32, np.uint32)}, a[:32] + a[32:]
    for policy, survivors in ((Policy(strict=True), 0), (IN_TURN, 1)):
        found = small(REFILL, arrays, want, 1, policy)
        left = [one.place for one in found.survivors]
        assert sum("fence.proxy" in place for place in left) == survivors, left


def test_edits_that_change_nothing_survive_everywhere() -> None:
    """So the change itself is caught, not the way it was inserted."""
    same = Change("the same", "xor", 0)
    original = kernel()
    made = [changed(original, ins, site, same) for ins in original.instructions for site in sites(ins)]
    mutants = [mutant for mutant in made if mutant is not None]
    assert len(mutants) == 8
    assert survey(original, [case(1), case(2)], mutants).survivors == mutants


def test_a_kernel_that_fails_its_cases_is_no_subject() -> None:
    wrong = dataclasses.replace(case(1), check=lambda launch: "no")
    with pytest.raises(EmulatorError, match="without any change fails n = 1: values: no"):
        survey(kernel(), [wrong], [])


def test_editing_keeps_labels_and_numbers() -> None:
    original = kernel()
    arrive = next(ins for ins in original.instructions if ins.opcode.startswith("mbarrier.arrive"))
    after = edited(original, {arrive.pc: ()})
    assert [ins.pc for ins in after.instructions] == list(range(len(original.instructions) - 1))
    for name, pc in original.labels.items():
        assert after.instructions[after.labels[name]].text == original.instructions[pc].text
    mutant = next(m for m in fields(original) if "one more" in m.change).kernel(original)
    assert mutant.registers[f"{SPARE}32"] == "b32"
    assert len(mutant.instructions) == len(original.instructions) + 1


def test_progress_and_samples() -> None:
    told: list[tuple[int, int, bool]] = []
    mutants = sample([*deletions(kernel()), *fields(kernel())], 5)
    assert len(mutants) == 5 and len({m.kind for m in mutants}) == 5
    survey(kernel(), [case(2)], mutants, lambda done, total, row: told.append((done, total, row.caught)))
    assert [done for done, _, _ in told] == [1, 2, 3, 4, 5] and {total for _, total, _ in told} == {5}


WIDTHS = """
.version 8.7
.target sm_90a
.extern .shared .align 1024 .b8 smem[];
.visible .entry widths(.param .u64 map) {
  .reg .b16 %h; .reg .b32 %r<8>; .reg .b64 %d<4>;
  cp.async.bulk.tensor.1d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster
    [%d0], [%d1, {%r2}], [%r3], %h;
  cp.async.ca.shared.global [%d2], [%d3], 4;
  mapa.shared::cluster.u32 %r4, %r5, 1;
  mbarrier.arrive.expect_tx.shared.b64 %d2, [%r3], %r6;
  ret; }
"""


def test_a_changed_operand_has_the_width_of_its_register() -> None:
    """A constant takes its operand's width: a 64-bit address, a 16-bit mask, a 64-bit descriptor."""
    (original,) = parse(WIDTHS)
    found = list(fields(original))

    def put_in(mutant: Mutant) -> str:
        return mutant.edits[0][1][0].text.partition(" (in")[0]

    texts = {(mutant.kind, put_in(mutant)) for mutant in found}
    assert ("shared address", f"add.u64 {SPARE}64, %d2, 16") in texts
    assert ("mask", f"xor.b16 {SPARE}16, %h, 1") in texts
    assert ("bytes", f"add.u32 {SPARE}32, %r6, 16") in texts
    assert ("rank", f"xor.b32 {SPARE}32, 1, 1") in texts
    for mutant in found:
        register = mutant.edits[0][1][0].operands[0].text
        assert mutant.kernel(original).registers[register] == f"b{register.removeprefix(SPARE)}"
    flip = Change("", "xor", 1)
    wide = changed(original, original.instructions[2], Site("descriptor", "", (2,), (flip,), 64), flip)
    assert wide is not None and put_in(wide) == f"xor.b64 {SPARE}64, 1, 1"


def test_every_mutant_of_an_operand_can_be_loaded() -> None:
    found = list(fields(kernel()))
    assert len(found) > 10
    for mutant in found:
        program_of(mutant.kernel(kernel()))
