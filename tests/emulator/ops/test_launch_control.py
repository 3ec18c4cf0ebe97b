"""Work stealing between clusters: every block's work is done once, whoever does it; a missing barrier is a race."""

import numpy as np
import pytest

from layoutgemm.emulator import ops
from layoutgemm.emulator.machine.interpreter import Launch, Policy, PtxMachine
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.ptx.parser import parse
from layoutgemm.emulator.ptx.program import Program

# Every block counts its own number, then asks for another cluster until none is left.
STEAL = """
.version 8.7
.target sm_100a
.visible .entry steal(.param .u64 p) {
  .reg .b32 %r<20>; .reg .pred %p<6>; .reg .b64 %rd<10>;
  .shared .align 16 .b8 handle[16];
  .shared .align 8 .b8 bar[8];
  ld.param.b64 %rd0, [p];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r9, %ctaid.y;
  mov.u32 %r1, %tid.x;
  mov.b32 %r5, 0;
  setp.ne.b32 %p0, %r1, 0;
  @%p0 bra START;
  mbarrier.init.shared.b64 [bar], 1;
START:
  bar.sync 0;
LOOP:
  @%p0 bra WORK;
  fence.proxy.async;
  mbarrier.arrive.expect_tx.shared.b64 _, [bar], 16;
  clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [handle], [bar];
WORK:
  mad.lo.u32 %r2, %r9, 3, %r0;
  mul.wide.u32 %rd1, %r2, 4;
  add.u64 %rd1, %rd1, %rd0;
  @!%p0 red.global.add.u32 [%rd1], 1;
WAIT:
  mbarrier.try_wait.parity.shared.b64 %p1, [bar], %r5;
  @!%p1 bra WAIT;
  xor.b32 %r5, %r5, 1;
  ld.shared.v2.b64 {%rd2, %rd3}, [handle];
  {
  .reg .b128 h;
  mov.b128 h, {%rd2, %rd3};
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p2, h;
  @%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r0, h;
  @%p2 clusterlaunchcontrol.query_cancel.get_first_ctaid::y.b32.b128 %r9, h;
  }
  bar.sync 0;
  @%p2 bra LOOP;
  ret; }"""


def run(text: str = STEAL, policy: Policy | None = None) -> tuple[list[int], PtxMachine]:
    (kernel,) = parse(text)
    memory, out = GlobalMemory(), np.zeros(6, np.uint32)
    at = memory.add("out", out).address
    launch = Launch((3, 2, 1), (64, 1, 1), at.to_bytes(8, "little"), memory)
    machine = PtxMachine(Program(kernel, ops.build), launch, policy).run()
    return out.tolist(), machine


@pytest.mark.parametrize("policy", [None, Policy(loads="early"), Policy(pick="random", seed=3)])
def test_every_tile_is_done_once(policy: Policy | None) -> None:
    out, machine = run(policy=policy)
    assert out == [1] * 6 and not machine.findings.found
    name = next(name for name in machine.counts.instructions if "try_cancel" in name)
    assert machine.counts.instructions[name] == 6  # five are taken by the first block, and one question is in vain


def test_a_handle_that_is_overwritten_while_it_is_read() -> None:
    text = STEAL.replace("  bar.sync 0;\n  @%p2 bra LOOP", "  @%p2 bra LOOP")
    assert text != STEAL
    _, machine = run(text)
    (race,) = [finding for finding in machine.findings.found if finding.kind == "race"]
    assert "try_cancel" in race.message and "ld.shared.v2.b64" in race.message
