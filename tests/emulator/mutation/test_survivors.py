"""Why mutants survive: what each reason says, on kernels that are small enough to know it beforehand."""

from __future__ import annotations

import dataclasses
import json
import struct
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from layoutgemm.cli.main import main
from layoutgemm.emulator.machine.interpreter import Launch, Policy, PtxMachine
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.mutation.api import mutate_ptx
from layoutgemm.emulator.mutation.mutants import Change, Mutant, changed, deletions, fields, sites
from layoutgemm.emulator.mutation.run import IN_TURN, LaunchCase
from layoutgemm.emulator.mutation.survivors import KINDS, Explainer, explained
from layoutgemm.emulator.mutation.trace import AccessTrace, TraceDifference, difference
from layoutgemm.emulator.ops import build
from layoutgemm.emulator.ptx.parser import PtxKernel, parse, read_instruction
from layoutgemm.emulator.ptx.program import Program
from layoutgemm.errors import EmulatorError
from tests.emulator.mutation import test_run as test_mutate

# Two warps write a word for each lane, each its own (n = 1), or read what the other one wrote as well (n = 2).
TEXT = """
.version 8.0
.target sm_90a
.extern .shared .align 16 .b8 smem[];
.visible .entry words(.param .u64 c, .param .u32 n) {
  .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<8>;
  ld.param.u64 %d0, [c];
  ld.param.u32 %r0, [n];
  mov.u32 %r1, %tid.x;
  shl.b32 %r2, %r1, 2;
  mov.u32 %r3, smem;
  add.u32 %r4, %r3, %r2;
  st.shared.b32 [%r4], %r1;
  bar.sync 0;
  setp.lt.u32 %p0, %r0, 2;
  @%p0 bra OWN;
  xor.b32 %r5, %r2, 128;
  add.u32 %r4, %r3, %r5;
OWN:
  ld.shared.b32 %r6, [%r4];
  mul.wide.u32 %d1, %r1, 4;
  add.u64 %d2, %d0, %d1;
  st.global.b32 [%d2], %r6;
  bar.sync 1;
  ret;
}
"""


def words() -> PtxKernel:
    return parse(TEXT)[0]


def case(n: int, policy: Policy | None = None) -> LaunchCase:
    def launch() -> Launch:
        memory = GlobalMemory()
        c = np.zeros(64, dtype=np.uint32)
        parameters = struct.pack("<QI", memory.add("c", c).address, n)
        return Launch((1, 1, 1), (64, 1, 1), parameters, memory, dynamic_shared=256)

    def check(launch: Launch) -> str | None:
        got = launch.memory.buffers[0].data.view(np.uint32)
        return None if (got == np.arange(64) ^ 32 * (n - 1)).all() else "wrong"

    return LaunchCase(f"n = {n}", launch, check, policy or IN_TURN)


def deletion(kernel: PtxKernel, text: str) -> Mutant:
    (found,) = [mutant for mutant in deletions(kernel) if text in mutant.place]
    return found


def inserted(kernel: PtxKernel, text: str, before: str) -> Mutant:
    """A mutant with one more instruction."""
    (ins,) = [ins for ins in kernel.instructions if before in ins.text]
    return Mutant("more", str(ins), "one more", ((ins.pc, (read_instruction(kernel, text, ins.line, None), ins)),))


def kind(kernel: PtxKernel, cases: list[LaunchCase], mutant: Mutant) -> str:
    row = Explainer(kernel, cases).row(mutant)
    assert row.caught or row.reason.split(":")[0] in KINDS
    return row.how.split(":")[0] or row.reason.split(":")[0]


def test_a_duplicate_barrier_is_redundant_and_has_a_partner() -> None:
    kernel, cases = test_mutate.kernel(), [test_mutate.case(1), test_mutate.case(2)]
    found = explained(kernel, cases, deletions(kernel))
    reasons = {row.mutant.name(kernel): row.reason for row in found.rows if not row.caught}
    assert reasons == {
        f"bar.sync #{n}: deleted": "same: every access touches the same bytes, after the same others" for n in (0, 1)
    }
    one, two = found.survivors
    explainer = Explainer(kernel, cases)
    assert explainer.partner(one, [one, two]) is two and explainer.partner(one, [one]) is None
    assert found.table().splitlines()[-1] == f"    {reasons['bar.sync #1: deleted']}"


def test_a_barrier_between_disjoint_accesses_is_redundant() -> None:
    kernel = words()
    barrier = deletion(kernel, "bar.sync 0")
    assert kind(kernel, [case(1)], barrier) == "looser"
    row = Explainer(kernel, [case(1)]).row(barrier)
    assert "st.shared.b32 (PTX line 13), ld.shared.b32 (PTX line 20)" in row.reason
    assert kind(kernel, [case(1), case(2)], barrier) in ("race", "uninitialised")  # the shape that was missing


def test_bytes_of_one_thread_alone_are_apart_in_any_case() -> None:
    """Addresses that come from the thread's index alone, by registers with one definition each."""
    text = TEXT.replace("@%p0 bra OWN;", "").replace("xor.b32 %r5, %r2, 128;", "xor.b32 %r5, %r2, 0;")
    text = text.replace("add.u32 %r4, %r3, %r5;", "add.u32 %r7, %r3, %r5;").replace("[%r4];", "[%r7];")
    text = text.replace("[%r7], %r1", "[%r4], %r1")
    kernel = parse(text)[0]
    assert kind(kernel, [case(1)], deletion(kernel, "bar.sync 0")) == "apart"
    for other, why in (
        ("xor.b32 %r5, %r2, %r9;", "a parameter"),  # 0 in this case
        ("mov.u32 %r8, %ctaid.x; xor.b32 %r5, %r2, %r8;", "the block"),
        ("ld.shared.b32 %r8, [%r4]; sub.u32 %r8, %r8, %r1; xor.b32 %r5, %r2, %r8;", "memory"),
        ("mov.b32 %r5, 0; xor.b32 %r5, %r2, 0;", "two definitions"),
    ):
        begin = text.replace("ld.param.u32 %r0, [n];", "ld.param.u32 %r0, [n]; sub.u32 %r9, %r0, 1;")
        if why == "a parameter":
            begin = text.replace("ld.param.u32 %r0, [n];", "ld.param.u32 %r0, [n]; ld.param.u32 %r9, [n+4];")
            begin = begin.replace(".param .u32 n)", ".param .u64 n)")
        changed_ = parse(begin.replace("xor.b32 %r5, %r2, 0;", other))[0]
        of = LaunchCase("n", _longer(case(1)), case(1).check, Policy())
        assert kind(changed_, [of], deletion(changed_, "bar.sync 0")) == "looser", why


def _longer(one: LaunchCase) -> Callable[[], Launch]:
    """The launch with a parameter of 0 more."""

    def launch() -> Launch:
        made = one.launch()
        return dataclasses.replace(made, parameters=made.parameters + bytes(8))

    return launch


def test_an_answer_that_nothing_reads() -> None:
    """A look at an mbarrier whose answer is not used may go; one whose answer is may not."""
    text = TEXT.replace(
        "ret;",
        """
      setp.ne.u32 %p1, %r1, 0; add.u32 %r8, %r3, 256;
      @%p1 bra OVER; mbarrier.init.shared.b64 [%r8], 1; mbarrier.arrive.shared.b64 _, [%r8];
      mbarrier.try_wait.parity.shared.b64 %p2, [%r8], 0; OVER: ret;""",
        1,
    )
    kernel = parse(text)[0]

    def launch() -> Launch:
        return dataclasses.replace(case(1).launch(), dynamic_shared=512)

    asked = deletion(kernel, "try_wait")
    assert kind(kernel, [LaunchCase("n", launch, case(1).check)], asked) in ("same", "end", "unread")
    text = text.replace("@%p1 bra OVER;", "@%p1 bra OVER; bra OVER;")
    never = parse(text)[0]
    assert kind(never, [LaunchCase("n", launch, case(1).check)], deletion(never, "try_wait")) == "unread"
    read = parse(text.replace("OVER: ret", "@%p2 bra OVER; OVER: ret"))[0]
    assert kind(read, [LaunchCase("n", launch, case(1).check)], deletion(read, "try_wait")) == "unreached"


# A bulk copy completes on one mbarrier; at the other one all threads arrive, and wait. They are initialised one after
# the other, each with a fence.
SHOWN = """
.version 8.0
.target sm_90a
.extern .shared .align 16 .b8 smem[];
.visible .entry shown(.param .u64 c) {
  .reg .b32 %r<16>; .reg .b64 %d<8>; .reg .pred %p<8>;
  ld.param.u64 %d0, [c];
  mov.u32 %r1, %tid.x;
  mov.u32 %r3, smem;
  setp.ne.u32 %p0, %r1, 0;
  @%p0 bra ONE;
  mbarrier.init.shared.b64 [%r3+FIRST], COUNT;
ONE:
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
  @%p0 bra TWO;
  mbarrier.init.shared.b64 [%r3+SECOND], OTHER;
TWO:
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
  @%p0 bra LOADED;
  mbarrier.arrive.expect_tx.shared.b64 _, [%r3], 256;
  cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r3+64], [%d0], 256, [%r3];
LOADED:
  mbarrier.arrive.shared.b64 _, [%r3+8];
T:
  mbarrier.try_wait.parity.shared.b64 %p1, [%r3+8], 0;
  @!%p1 bra T;
E:
  mbarrier.try_wait.parity.shared.b64 %p2, [%r3], 0;
  @!%p2 bra E;
  shl.b32 %r6, %r1, 2;
  add.u32 %r6, %r6, %r3;
  ld.shared.b32 %r7, [%r6+64];
  add.u32 %r7, %r7, 1;
  mul.wide.u32 %d1, %r1, 4;
  add.u64 %d2, %d0, %d1;
  st.global.b32 [%d2], %r7;
  ret;
}
"""


def test_an_mbarrier_without_engine_arrivals_needs_no_init_fence() -> None:
    """bar.sync orders it before them; a copy engine's is shown to the engine, and its last fence is missed."""
    for engine, fences in ((0, ["same", "same"]), (8, ["same", "race"])):
        # The engine's mbarrier lies at 0, the threads' at 8; which of them is initialised first changes.
        text = SHOWN.replace("FIRST", str(engine)).replace("SECOND", str(8 - engine))
        text = text.replace("COUNT", "1" if engine == 0 else "64").replace("OTHER", "64" if engine == 0 else "1")
        kernel = parse(text)[0]

        def launch() -> Launch:
            memory = GlobalMemory()
            at = struct.pack("<Q", memory.add("c", np.arange(64, dtype=np.uint32)).address)
            return Launch((1, 1, 1), (64, 1, 1), at, memory, dynamic_shared=512)

        def check(launch: Launch) -> str | None:
            got = launch.memory.buffers[0].data.view(np.uint32)
            return None if (got == np.arange(64) + 1).all() else "wrong"

        found = [m for m in deletions(kernel) if "fence.mbarrier_init" in m.place]
        assert [kind(kernel, [LaunchCase("one", launch, check)], m) for m in found] == fences


def test_a_barrier_that_only_ends_of_warps_come_after() -> None:
    assert kind(words(), [case(1), case(2)], deletion(words(), "bar.sync 1")) == "end"


def test_more_order_and_more_accesses() -> None:
    kernel = words()
    assert kind(kernel, [case(1)], inserted(kernel, "bar.sync 2", "st.shared")) == "same"  # nothing came before
    without = deletion(kernel, "bar.sync 0").kernel(kernel)
    assert kind(without, [case(1)], inserted(without, "bar.sync 2", "ld.shared")) == "stricter"
    again = inserted(kernel, "st.shared.b32 [%r4], %r1", "st.shared")
    assert kind(kernel, [case(1)], again) == "other"
    reason = Explainer(kernel, [case(1)]).row(again).reason
    assert "one more access 1 of CTA (0, 0, 0) warp 0 by st.shared.b32" in reason


def test_unexecuted_instructions_are_not_called_harmless() -> None:
    kernel = test_mutate.kernel()
    (alone, _) = [m for m in deletions(kernel) if "bar.sync 1" in m.place]
    assert kind(kernel, [test_mutate.case(1)], alone) == "unreached"


def test_unmodelled_instructions_are_not_called_harmless() -> None:
    kernel = inserted(words(), "bar.warp.sync -1", "ld.shared").kernel(words())
    row = Explainer(kernel, [case(1, Policy(lanes="off"))]).row(deletion(kernel, "bar.warp.sync"))
    assert row.reason.startswith("unseen: lanes of a warp are one thread")
    row = Explainer(kernel, [case(1)]).row(deletion(kernel, "bar.warp.sync"))
    assert row.reason.startswith("same")  # bar.sync stands before it


def test_changes_missed_by_the_check_show_in_memory() -> None:
    kernel = words()
    lax = dataclasses.replace(case(1), check=lambda launch: None)
    other = inserted(kernel, "mov.b32 %r6, 7", "st.global")
    assert kind(kernel, [case(1)], other) == "values"
    assert "other bytes in memory" in Explainer(kernel, [lax]).row(other).reason


def test_a_value_that_an_operand_has_anyway_is_no_proof() -> None:
    kernel = test_mutate.kernel()
    (ins,) = [ins for ins in kernel.instructions if ins.opcode.startswith("mbarrier.try_wait")]
    (parity,) = [site for site in sites(ins) if site.kind == "parity"]
    same, zero = (changed(kernel, ins, parity, Change("it", how, 0)) for how in ("xor", "mov"))
    assert same is not None and zero is not None
    assert kind(kernel, [test_mutate.case(1)], same) == "same"
    assert kind(kernel, [test_mutate.case(1)], zero) == "idle"
    assert Explainer(kernel, [test_mutate.case(1), test_mutate.case(2)]).row(zero).caught


def test_other_orders_run_for_unproven_survivors() -> None:
    kernel, seen = words(), []

    def check(launch: Launch) -> str | None:
        seen.append(launch)
        return None

    watched = dataclasses.replace(case(1, Policy(seed=1)), check=check)
    explainer = Explainer(kernel, [case(1)], [watched])
    same = inserted(kernel, "bar.sync 2", "st.shared")
    plain = dataclasses.replace(same, kind="registers")  # concerns no barrier
    for mutant, runs in ((deletion(kernel, "bar.sync 0"), 1), (same, 1), (plain, 0)):
        seen.clear()
        assert not explainer.row(mutant).caught and len(seen) == runs


def test_a_kernel_that_fails_is_no_subject() -> None:
    wrong = dataclasses.replace(case(1), check=lambda launch: "no")
    with pytest.raises(EmulatorError, match="without any change fails n = 1: values: no"):
        Explainer(words(), [wrong])


@pytest.mark.parametrize("n", [1, 2])
def test_the_order_is_the_same_in_every_schedule(n: int) -> None:
    kernel = test_mutate.kernel()

    def traced(policy: Policy, like: AccessTrace | None = None) -> AccessTrace:
        trace = AccessTrace(like)
        PtxMachine(Program(kernel, build), test_mutate.case(n).launch(), policy, trace=trace).run()
        return trace

    first = traced(Policy())
    for policy in (Policy(waits="reluctant"), *(Policy(pick="random", seed=seed) for seed in range(6))):
        assert difference(first, traced(policy, first)) == TraceDifference()


def test_names_hold_when_lines_move() -> None:
    kernel = test_mutate.kernel()
    longer = test_mutate.TEXT.replace("mov.u32 %r4, smem;", "mov.u32 %r4, smem;\n\n add.u32 %r14, %r4, 0;")
    moved = parse(longer)[0]
    before, after = ([m.name(k) for m in (*deletions(k), *fields(k))] for k in (kernel, moved))
    assert before == after and len(set(before)) == len(before)
    mutant = next(iter(fields(kernel)))
    changed = mutant.kernel(kernel)
    origins = mutant.origins(kernel)
    assert len(origins) == len(changed.instructions)
    assert [kernel.instructions[pc].line for pc in origins] == [ins.line for ins in changed.instructions]


# From the outside -----------------------------------------------------------------------------------------------------


def test_mutants_of_ptx_leave_the_arrays_as_they_were() -> None:
    c = np.full(64, 7, np.uint32)
    found = mutate_ptx(TEXT, block=64, smem=256, args=[c, 2])
    assert (c == 7).all() and len(found.rows) == 7
    assert [(row.mutant.name(words()), row.reason.split(":")[0]) for row in found.rows if not row.caught] == [
        ("bar.sync #1: deleted", "end"),
        ("bar.sync #1: one access earlier", "same"),
    ]
    assert len(mutate_ptx(TEXT, block=64, smem=256, args=[c, 2], count=2).rows) == 2


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "k.ptx").write_text(TEXT)
    given = ["emulate", str(tmp_path / "k.ptx"), "--block", "64", "--smem", "256", "--arg", "u32:64=zeros", "--mutants"]
    assert main([*given, "--arg", "u32=2"]) == 0
    assert "a warp may end before it knows of ld.shared.b32 (PTX line 20)" in capsys.readouterr().out
    assert main([*given, "--json", "--arg", "u32=1"]) == 1  # no shared bytes: the barrier is not needed
    said = json.loads(capsys.readouterr().out)
    reasons = [one["reason"].split(":")[0] for one in said["survivors"]]
    assert said["mutants"] == 7 and reasons == ["looser", "end", "looser", "same"]
    assert main([*given, "2", "--arg", "u32=2"]) == 0
    assert "of     2 caught" in capsys.readouterr().out
