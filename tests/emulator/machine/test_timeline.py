"""The timeline: who waited for what, what engines had in flight, what warps are called; and progress on the way."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.atoms.mma.tcgen05 import tcgen05_mma
from layoutgemm.cli.main import main
from layoutgemm.emulator.api import TensorMapOf, _progress
from layoutgemm.emulator.machine import timeline as module
from layoutgemm.emulator.machine.interpreter import PtxMachine
from layoutgemm.emulator.machine.launch import Launch, Policy, Progress
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.machine.timeline import KINDS, Timeline, TimelineRow, kind_of
from layoutgemm.emulator.ptx.parser import parse
from tests.emulator.ops.mma.test_sync import ATOMS
from tests.emulator.ops.tcgen05.case import Case
from tests.emulator.run_ptx import program

# Warp 0 loads N boxes of two rows into two stages, warp 1 adds them up, warp 2 has nothing to do.
RING = """
.version 8.0
.target sm_90a
.visible .entry ring(.param .align 64 .b8 from[128], .param .u64 out, .param .u32 n) .reqntid 96, 1, 1
{
.extern .shared .align 1024 .b8 tile[];
.reg .b32 %r<20>; .reg .b64 %d<5>; .reg .pred %p<9>;
mov.b64 %d0, from; cvta.param.u64 %d0, %d0; ld.param.u64 %d1, [out]; ld.param.u32 %r9, [n];
mov.u32 %r0, %tid.x; mov.u32 %r1, tile; setp.ne.u32 %p0, %r0, 0; @%p0 bra READY;
mbarrier.init.shared::cta.b64 [%r1+512], 1; mbarrier.init.shared::cta.b64 [%r1+520], 1;
mbarrier.init.shared::cta.b64 [%r1+528], 32; mbarrier.init.shared::cta.b64 [%r1+536], 32;
READY: fence.mbarrier_init.release.cluster; bar.sync 0;
shr.u32 %r2, %r0, 5; setp.eq.u32 %p1, %r2, 1; @%p1 bra CONSUMER; setp.eq.u32 %p2, %r2, 2; @%p2 bra END;
mov.u32 %r3, 0; mov.u32 %r5, 1;
LOAD: and.b32 %r4, %r3, 1; shl.b32 %r6, %r4, 3; add.u32 %r6, %r6, %r1; shl.b32 %r7, %r4, 7; add.u32 %r7, %r7, %r1;
EMPTY: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6+528], %r5; @!%p3 bra EMPTY;
@%p0 bra NEXT; shl.b32 %r8, %r3, 1;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6+512], 128;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r7], [%d0, {0, %r8}], [%r6+512];
NEXT: xor.b32 %r5, %r5, %r4; add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, %r9; @%p4 bra LOAD;
bra END;
CONSUMER: mov.u32 %r3, 0; mov.u32 %r5, 0; mov.u32 %r10, 0; and.b32 %r11, %r0, 31; shl.b32 %r11, %r11, 2;
TAKE: and.b32 %r4, %r3, 1; shl.b32 %r6, %r4, 3; add.u32 %r6, %r6, %r1; shl.b32 %r7, %r4, 7; add.u32 %r7, %r7, %r1;
FULL: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r6+512], %r5; @!%p3 bra FULL;
add.u32 %r7, %r7, %r11; ld.shared.u32 %r12, [%r7]; add.u32 %r10, %r10, %r12;
mbarrier.arrive.shared::cta.b64 _, [%r6+528];
xor.b32 %r5, %r5, %r4; add.u32 %r3, %r3, 1; setp.lt.u32 %p4, %r3, %r9; @%p4 bra TAKE;
cvt.u64.u32 %d2, %r11; add.u64 %d2, %d2, %d1; st.global.u32 [%d2], %r10;
END: ret;
}
"""


def ring(n: int = 6, policy: Policy | None = None) -> Timeline:
    a, out = np.arange(32 * n, dtype=np.uint32).reshape(2 * n, 16), np.zeros(32, np.uint32)
    args = [TensorMapOf(a, (2, 16)), out, n]
    done = emulate_ptx(RING, args=args, smem=1024, policy=policy, timeline=True)
    assert done.ok and np.array_equal(out, a.reshape(n, 32).sum(0)), done.report()
    found = done.launches[0].timeline
    assert found is not None
    return found


def row(of: Timeline, name: str) -> TimelineRow:
    (found,) = [row for row in of.rows if name in row.name]
    return found


POLICIES = [Policy(), Policy(loads="early"), Policy(pick="random", seed=3), Policy(waits="reluctant")]


@pytest.mark.parametrize("policy", POLICIES, ids=str)
def test_every_wait_ends_after_its_event(policy: Policy):
    found = ring(6, policy)
    assert [row.name.partition("warp ")[2] for row in found.rows if row.warp is not None] == [
        "0: loads by TMA", "1: stores", "2: waits",
    ]  # fmt: skip
    loads, takes = row(found, "copy engine, loads").spans, row(found, "1: stores").spans
    full = [span for span in takes if span.kind == "wait" and span.detail.startswith("mbarrier")]
    assert [span.detail for span in full[:4]] == [
        "mbarrier 0x600 parity 0", "mbarrier 0x608 parity 0", "mbarrier 0x600 parity 1", "mbarrier 0x608 parity 1",
    ]  # fmt: skip
    assert len(loads) == len(full) == 6
    for load, wait in zip(loads, full, strict=True):
        assert load.begin < load.end <= wait.end and wait.begin <= wait.end
    # The third load into a stage waits until the consumer has arrived for the first.
    arrivals = [span for span in takes if span.kind == "arrive"]
    waits = [span for span in row(found, "0: loads by TMA").spans if span.kind == "wait"]
    empty = [span for span in waits if span.detail.startswith("mbarrier")]
    for arrival, wait in zip(arrivals, empty[2:], strict=False):
        assert wait.end > arrival.begin
    for each in found.rows:
        assert all(span.begin <= span.end for span in each.spans)
        assert [span.begin for span in each.spans] == sorted(span.begin for span in each.spans)


def test_a_barrier_of_the_block_is_waited_for_until_its_last_thread():
    (sync, *_), (other, *_) = ([s for s in row(ring(), f"warp {n}").spans if s.kind == "wait"] for n in (1, 0))
    assert sync.detail == other.detail == "barrier 0" and abs(sync.end - other.end) <= 1
    assert sync.begin < other.begin  # warp 0 initialises first


def test_the_spans_are_bounded(monkeypatch: pytest.MonkeyPatch):
    """When the limit is reached it is said what is missing."""
    whole = ring(40)
    count = sum(len(each.spans) for each in whole.rows)
    assert whole.cut == 0 and "cut" not in whole.text()
    monkeypatch.setattr(module.Recorder.__init__, "__defaults__", (50,))
    cut = ring(40)
    assert sum(len(each.spans) for each in cut.rows) == 50 and cut.cut >= count - 50 > 0
    assert f"cut: {cut.cut} instructions" in cut.text()


def test_the_data_is_json_and_small():
    found = ring()
    data = json.loads(json.dumps(found.as_json()))
    assert data["rows"][0]["role"] == "loads by TMA" and data["rows"][-1]["engine"] == "copy engine, loads"
    kind, begin, end, detail, line, times = data["rows"][-1]["spans"][0]
    assert kind == "load" and begin < end and detail.startswith("cp.async.bulk.tensor.2d") and times == 1
    assert RING.splitlines()[line - 1].startswith("cp.async.bulk")
    assert len(json.dumps(data)) < 8000


def test_the_text():
    text = ring().text(width=40)
    lines = text.splitlines()
    assert all(f"{letter} {kind}" in lines[0] for kind, letter in KINDS.items())
    assert len({line.index("|") for line in lines[1:]}) == 1
    assert all(re.search(r"\|.{30,40}\|", line) for line in lines[1:])
    assert re.search(r"warp 1: stores .*\|.*\.r.*S\| waits \d+ of \d+, \d+ for mbarrier", text)
    assert "and 2 more rows" in ring().text(most=2)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "ring.ptx"
    path.write_text(RING)
    arguments = ["--smem", "1024", "--arg", "map:i32:12x16:2x16", "--arg", "i32:32", "--arg", "i32=6", "--timeline"]
    assert main(["emulate", str(path), *arguments]) == 0
    assert "copy engine, loads" in capsys.readouterr().out
    assert main(["emulate", str(path), *arguments, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["launches"][0]["timeline"]["rows"]


def test_products_of_tensor_cores_are_rows_of_their_own():
    case = Case(tcgen05_mma("f16", 64, 16))
    buffers = [case.image.copy(), *(data.copy() for data in case.inputs.values())]
    done = emulate_ptx(case.text, block=128, args=buffers, timeline=True)
    found = done.launches[0].timeline
    assert found is not None
    (product,) = row(found, "tcgen05 of warp 0").spans
    ends = [span.end for span in row(found, "warp 1").spans if span.kind == "wait" and "mbarrier" in span.detail]
    assert product.kind == "mma" and product.begin < product.end <= max(ends)
    assert [r.role for r in found.rows[:4]] == [
        "loads + multiplies + reads accumulators + stores", *["loads + reads accumulators + stores"] * 3,
    ]  # fmt: skip


@pytest.mark.parametrize(
    "text,kind",
    (
        ("cp.async.bulk.commit_group;", ""),
        ("cp.async.bulk.wait_group.read 0;", "wait"),
        ("wgmma.fence.sync.aligned;", ""),
        ("wgmma.wait_group.sync.aligned 0;", "wait"),
        ("bar.warp.sync -1;", ""),
        ("bar.arrive 1, 64;", "arrive"),
        ("barrier.cluster.arrive;", "arrive"),
        ("barrier.cluster.wait;", "wait"),
        ("mbarrier.inval.shared.b64 [%r0];", ""),
        ("st.shared.b32 [%r0], %r0;", "write"),
        ("st.global.b32 [%r0], %r0;", "store"),
        ("ld.param.b32 %r0, [x];", ""),
        ("tcgen05.wait::ld.sync.aligned;", "wait"),
        ("tcgen05.ld.sync.aligned.32x32b.x1.b32 %r0, [%r0];", "accumulators"),
        ("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;", ""),
        ("red.global.add.u32 [%r0], %r0;", "atomic"),
        ("cp.async.ca.shared.global [%r0], [%r0], 4;", "load"),
        ("cp.async.wait_all;", "wait"),
        ("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%r0, {%r0, %r0}], [%r0];", "store"),
        (f"{ATOMS[0].ptx} %r0, %r0, %r0, %r0;", "mma"),
        ("elect.sync %r0|%p, -1;", ""),
    ),
)
def test_kinds_of_instructions(text: str, kind: str):
    (kernel,) = parse(f".target sm_90\n.entry k(.param .u64 x) {{ .reg .b32 %r<2>; .reg .pred %p; {text} }}")
    assert kind_of(kernel.instructions[0]) == kind


# Progress -------------------------------------------------------------------------------------------------------------

LONG = """
.version 8.0
.target sm_80
.visible .entry k() { .reg .b32 %r; .reg .pred %p; mov.u32 %r, 0;
L: bar.sync 0; add.u32 %r, %r, 1; setp.lt.u32 %p, %r, 500; @%p bra L; ret; }
"""


def test_progress_within_a_cluster(monkeypatch: pytest.MonkeyPatch):
    told: list[Progress] = []
    monkeypatch.setattr(PtxMachine, "EVERY", 0.0)
    launch = Launch((2, 1, 1), (64, 1, 1), b"", GlobalMemory())
    PtxMachine(program(LONG), launch, progress=told.append).run()
    assert len(told) > 20 and [at.done for at in told] == sorted(at.done for at in told)
    assert {at.cta for at in told} == {(0, 0, 0), (1, 0, 0)} and told[-1].done == told[-1].clusters == 2
    steps = np.diff([at.operations for at in told])
    assert (steps > 0).all() and steps.max() <= PtxMachine.LOOK + 2


def test_the_line_of_progress(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    monkeypatch.setattr("layoutgemm.emulator.api.EVERY", 0.0)
    line = _progress("k (1 of 1)")
    line(Progress(0, 3, (0, 0, 0), 1000, 7))
    line(Progress(1, 3, (1, 0, 0), 1000, 0))
    line(Progress(3, 3, (2, 0, 0), 1000, 0))
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith("cluster 1 of 3 (CTA (0, 0, 0)), 1000 operations, 7 tensor-core products")
    assert re.search(r"cluster 2 of 3, about \d+ s left$", second)


@pytest.mark.parametrize("cache", ["ca", "cg"])
def test_copies_of_threads_are_a_row_of_their_warp(cache: str):
    text = f"""
.version 8.0
.target sm_80
.visible .entry k(.param .u64 x) .reqntid 32, 1, 1 {{
.shared .align 16 .b8 tile[512]; .reg .b32 %r<3>; .reg .b64 %d<3>;
ld.param.u64 %d0, [x]; mov.u32 %r0, %tid.x; mad.wide.u32 %d1, %r0, 16, %d0; mov.u32 %r1, tile;
mad.lo.u32 %r1, %r0, 16, %r1; cp.async.{cache}.shared.global [%r1], [%d1], 16; cp.async.wait_all; ret; }}
"""
    found = emulate_ptx(text, args=[np.zeros(512, np.uint8)], timeline=True).launches[0].timeline
    assert found is not None
    assert row(found, "cp.async of warp 0").spans
