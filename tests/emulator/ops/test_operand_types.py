"""The types of operands: for every operation, the registers that ptxas takes, and no others.

PTX ISA, "Operand Type Checking". ptxas 13.0 takes more than PTX names in places, which `beyond` lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from layoutgemm.emulator.ops.registry import BUILDERS
from layoutgemm.emulator.ptx.coverage import refusals
from layoutgemm.emulator.ptx.parser import parse
from layoutgemm.errors import PtxError
from tests import needs
from tests.emulator.ops.test_spellings import refused_by_ptxas
from tests.emulator.run_ptx import run

# A register's letter -> its type, for each that PTX can declare.
TYPES = {"p": "pred", "k": "b8", "h": "b16", "w": "u16", "g": "f16", "r": "b32", "u": "u32", "s": "s32", "f": "f32",
         "x": "f16x2", "d": "b64", "l": "u64", "m": "s64", "e": "f64", "q": "b128"}  # fmt: skip
DECLARED = " ".join(f".reg .{kind} %{letter}<12>;" for letter, kind in TYPES.items())
# Instructions of every operation that has registers, by a target that has them; `%r1..4` is `%r1, %r2, %r3, %r4`.
TEXTS = {
    "sm_90a": """
mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1..4}, {%r1..4}, {%r5, %r6}, {%f1..4};
mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%r1, %r2}, {%r1..4}, {%r5, %r6}, {%r1, %r2};
mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%r1..4}, {%r1..4}, {%r5, %r6}, {%r1..4};
mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%f1..4}, {%r1..4}, {%r5, %r6}, {%f1..4};
mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%e1, %e2}, {%e3}, {%e4}, {%e1, %e2};
mma.sp::ordered_metadata.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {%f1..4}, {%r1..4}, {%r5..8}, {%f1..4}, %r9, \
0x0;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1..4}, %d1, %d2, %p1, 1, 1, 0, 0;
wgmma.mma_async.sync.aligned.m64n8k16.f16.f16.f16 {%r1, %r2}, {%r3..6}, %d2, %p1, 1, 1, 0;
wgmma.mma_async.sync.aligned.m64n8k32.s32.s8.s8 {%r1..4}, %d1, %d2, %p1;
wgmma.mma_async.sp.sync.aligned.m64n8k32.f32.f16.f16 {%f1..4}, %d1, %d2, %r9, 0, %p1, 1, 1, 0, 0;
wmma.load.a.sync.aligned.row.m16n16k16.f16 {%r1..8}, [%d1], %r9;
wmma.load.c.sync.aligned.row.m16n16k16.f32 {%f1..8}, [%d1], %r9;
wmma.store.d.sync.aligned.row.m16n16k16.f32 [%d1], {%f1..8}, %r9;
wmma.store.d.sync.aligned.row.m16n16k16.shared.s32 [%r10], {%r1..8}, %r9;
wmma.mma.sync.aligned.row.col.m16n16k16.f32.f32 {%f1..8}, {%r1..8}, {%r1..8}, {%f1..8};
shfl.sync.bfly.b32 %r1|%p1, %r2, %r3, %r4, %r5;
shfl.sync.idx.b32 %r1, %r2, %r3, %r4, %r5;
elect.sync %r1|%p1, %r2;
vote.sync.all.pred %p1, %p2, %r1;
vote.sync.ballot.b32 %r1, %p2, %r2;
activemask.b32 %r1;
match.any.sync.b32 %r1, %r2, %r3;
match.any.sync.b64 %r1, %d2, %r3;
match.all.sync.b32 %r1|%p1, %r2, %r3;
redux.sync.add.u32 %r1, %r2, %r3;
redux.sync.min.s32 %r1, %r2, %r3;
redux.sync.xor.b32 %r1, %r2, %r3;
bar.sync %r1, %r2;
bar.arrive %r1, %r2;
barrier.sync.aligned %r1;
bar.red.popc.u32 %r1, %r2, %r3, %p1;
bar.red.and.pred %p1, %r2, %r3, %p2;
bar.warp.sync %r1;
bar.cta.sync %r1, %r2;
bar.cta.arrive %r1, %r2;
barrier.cta.sync %r1, %r2;
barrier.cta.arrive.aligned %r1, %r2;
barrier.arrive %r1, %r2;
barrier.red.and.pred %p1, %r2, %r3, %p2;
bar.cta.red.or.pred %p1, %r2, %r3, %p2;
barrier.cta.red.popc.u32 %r1, %r2, %p2;
applypriority.global.L2::evict_normal [%d1], 128;
wmma.load.b.sync.aligned.col.m16n16k16.bf16 {%r1..4}, [%d1], %r9;
cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes [%r1], [%d1], %r2, [%r3];
mbarrier.init.shared::cta.b64 [%r1], %r2;
mbarrier.init.b64 [%d1], %r2;
mbarrier.inval.shared::cta.b64 [%r1];
mbarrier.arrive.shared::cta.b64 %d1, [%r1], %r2;
mbarrier.arrive.shared::cluster.b64 _, [%r1], %r2;
mbarrier.arrive_drop.shared::cta.b64 %d1, [%r1], %r2;
mbarrier.arrive.expect_tx.shared::cta.b64 %d1, [%r1], %r2;
mbarrier.arrive.noComplete.shared::cta.b64 %d1, [%r1], %r2;
mbarrier.pending_count.b64 %r1, %d1;
mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], %r2;
mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], %r2;
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2, %r3;
mbarrier.try_wait.shared::cta.b64 %p1, [%r1], %d2, %r3;
mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], %r2;
mbarrier.test_wait.b64 %p1, [%d1], %d2;
ld.global.b32 %r1, [%d1];
ld.global.u8 %r1, [%d1];
ld.global.u16 %h1, [%d1];
ld.global.s32 %r1, [%d1];
ld.global.u64 %d2, [%d1];
ld.global.f32 %f1, [%d1];
ld.global.f64 %e1, [%d1];
ld.global.b128 %q1, [%d1];
ld.shared.v4.b32 {%r1..4}, [%r5];
ld.global.v2.f32 {%f1, %f2}, [%d1];
ld.global.v2.u64 {%d2, %d3}, [%d1];
ld.global.v4.u8 {%h1..4}, [%d1];
ld.global.L2::cache_hint.b32 %r1, [%d1], %d2;
ld.global.nc.s16 %h1, [%d1];
ldu.global.b32 %r1, [%d1];
ld.acquire.gpu.b32 %r1, [%d1];
st.global.b32 [%d1], %r1;
st.global.u8 [%d1], %r1;
st.global.s16 [%d1], %h1;
st.global.u64 [%d1], %d2;
st.global.f32 [%d1], %f1;
st.global.f64 [%d1], %e1;
st.global.b128 [%d1], %q1;
st.shared.v4.b32 [%r5], {%r1..4};
st.global.v2.f32 [%d1], {%f1, %f2};
st.global.L2::cache_hint.b32 [%d1], %r1, %d2;
atom.global.add.u32 %r1, [%d1], %r2;
atom.global.add.f32 %f1, [%d1], %f2;
atom.global.add.f64 %e1, [%d1], %e2;
atom.global.add.u64 %d2, [%d1], %d3;
atom.global.min.s32 %r1, [%d1], %r2;
atom.global.exch.b32 %r1, [%d1], %r2;
atom.global.exch.b64 %d2, [%d1], %d3;
atom.global.exch.b128 %q2, [%d1], %q3;
atom.global.cas.b16 %h1, [%d1], %h2, %h3;
atom.shared.cas.b32 %r1, [%r4], %r2, %r3;
atom.global.cas.b64 %d2, [%d1], %d3, %d4;
atom.global.add.noftz.f16 %h1, [%d1], %h2;
atom.global.add.noftz.bf16 %h1, [%d1], %h2;
atom.global.add.noftz.f16x2 %r1, [%d1], %r2;
atom.global.add.noftz.bf16x2 %r1, [%d1], %r2;
atom.global.add.L2::cache_hint.u32 %r1, [%d1], %r2, %d2;
atom.global.v2.f32.add {%f1, %f2}, [%d1], {%f3, %f4};
atom.global.v2.f16.add.noftz {%h1, %h2}, [%d1], {%h3, %h4};
atom.global.v2.f16x2.add.noftz {%r1, %r2}, [%d1], {%r3, %r4};
red.global.add.u32 [%d1], %r2;
red.global.add.f32 [%d1], %f2;
red.global.or.b32 [%d1], %r2;
red.global.add.noftz.bf16x2 [%d1], %r2;
red.global.add.v4.f32 [%d1], {%f1..4};
red.global.add.noftz.v2.bf16 [%d1], {%h1, %h2};
red.global.add.L2::cache_hint.u32 [%d1], %r2, %d2;
createpolicy.fractional.L2::evict_last.b64 %d1, %f1;
createpolicy.range.global.L2::evict_last.L2::evict_first.b64 %d1, [%d2], %r1, %r2;
mapa.shared::cluster.u32 %r1, %r2, %r3;
mapa.shared::cluster.u64 %d1, %d2, %r3;
mapa.u64 %d1, %d2, %r3;
getctarank.shared::cluster.u32 %r1, %r2;
getctarank.u64 %r1, %d2;
alloca.u32 %r1, %r2, 16;
alloca.u64 %d1, %d2, 16;
stacksave.u32 %r1;
stackrestore.u32 %r1;
multimem.ld_reduce.relaxed.sys.global.add.f32 %f1, [%d1];
multimem.ld_reduce.relaxed.sys.global.add.v4.f16x2 {%r1..4}, [%d1];
multimem.st.relaxed.sys.global.f32 [%d1], %f1;
multimem.st.relaxed.sys.global.v4.f32 [%d1], {%f1..4};
multimem.red.relaxed.sys.global.add.u32 [%d1], %r1;
nanosleep.u32 %r1;
prefetch.global.L2 [%d1];
prefetchu.L1 [%d1];
prefetch.tensormap [%d1];
discard.global.L2 [%d1], 128;
cp.async.bulk.prefetch.L2.global [%d1], %r1;
cp.async.bulk.prefetch.L2.global.L2::cache_hint [%d1], %r1, %d2;
tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r1], %d1;
tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r1], 0, %r2;
tensormap.replace.tile.global_stride.global.b1024.b64 [%d2], 0, %d1;
tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%d1], [%r1], 128;
fence.proxy.tensormap::generic.acquire.gpu [%d1], 128;
cp.async.ca.shared.global [%r1], [%d1], 16;
cp.async.ca.shared.global [%r1], [%d1], 16, %r2;
cp.async.ca.shared.global [%r1], [%d1], 16, %p1;
cp.async.cg.shared.global.L2::cache_hint [%r1], [%d1], 16, %d2;
cp.async.ca.shared.global.L2::cache_hint [%r1], [%d1], 16, %r2, %d2;
cp.async.mbarrier.arrive.noinc.shared.b64 [%r1];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, %r3}], [%r4];
cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint \
[%r1], [%d1, {%r2, %r3}], [%r4], %h1, %d2;
cp.async.bulk.tensor.4d.shared::cluster.global.im2col.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, %r3, %r5, \
%r6}], [%r4], {%h1, %h2};
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%d1, {%r2, %r3}], [%r4];
cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint [%d1, {%r2, %r3}], [%r4], %d2;
cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%d1, {%r2, %r3}], [%r4];
cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group.L2::cache_hint [%d1, {%r2, %r3}], [%r4], %d2;
cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%d1, {%r2, %r3}];
cp.async.bulk.prefetch.tensor.2d.L2.global.tile.L2::cache_hint [%d1, {%r2, %r3}], %d2;
ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r1..4}, [%r5];
ldmatrix.sync.aligned.m8n8.x1.b16 {%r1}, [%d5];
stmatrix.sync.aligned.m8n8.x2.shared.b16 [%r5], {%r1, %r2};
movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d1], %r2, [%r3];
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster.L2::cache_hint [%r1], [%d1], \
%r2, [%r3], %h1, %d2;
cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r1], [%r4], %r2, [%r3];
cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r4], %r2;
cp.async.bulk.global.shared::cta.bulk_group.L2::cache_hint [%d1], [%r4], %r2, %d2;
cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.u32 [%r1], [%r4], %r2, [%r3];
cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%d1], [%r4], %r2;
cp.reduce.async.bulk.global.shared::cta.bulk_group.L2::cache_hint.add.f32 [%d1], [%r4], %r2, %d2;
st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%r1], %r2, [%r3];
st.async.shared::cluster.mbarrier::complete_tx::bytes.f32 [%r1], %f2, [%r3];
st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%r1], {%d1, %d2}, [%r3];
red.async.relaxed.cluster.mbarrier::complete_tx::bytes.shared::cluster.add.u32 [%r1], %r2, [%r3];
red.async.relaxed.cluster.mbarrier::complete_tx::bytes.shared::cluster.add.u64 [%r1], %d2, [%r3];
wmma.load.a.sync.aligned.row.m8n8k4.f64 {%e1}, [%d1], %r9;
wmma.load.c.sync.aligned.row.m8n8k4.f64 {%e1, %e2}, [%d1], %r9;
wmma.load.a.sync.aligned.row.m16n16k8.tf32 {%r1..4}, [%d1], %r9;
wmma.mma.sync.aligned.row.col.m8n8k4.f64.f64.f64.f64 {%e1, %e2}, {%e3}, {%e4}, {%e1, %e2};
ld.global.v2.b16 {%h1, %h2}, [%d1];
ld.global.v2.s8 {%h1, %h2}, [%d1];
ld.global.v2.f64 {%e1, %e2}, [%d1];
ld.local.s8 %r1, [%d1];
ld.const.u8 %r1, [%d1];
st.local.v2.u8 [%d1], {%h1, %h2};
multimem.ld_reduce.relaxed.sys.global.add.f64 %e1, [%d1];
multimem.ld_reduce.relaxed.sys.global.add.v8.f16 {%h1..8}, [%d1];
multimem.ld_reduce.relaxed.sys.global.add.u64 %d2, [%d1];
multimem.ld_reduce.relaxed.sys.global.and.b64 %d2, [%d1];
multimem.st.relaxed.sys.global.f16x2 [%d1], %r1;
createpolicy.cvt.L2.b64 %d1, %d2;
""",
    "sm_100a": """
redux.sync.min.f32 %f1, %f2, %r3;
clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r1], [%r2];
clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r1..4}, %q1;
clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r1, %q1;
st.bulk.weak.shared::cta [%r1], %d1, 0;
cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d1], [%r4], %r2, %h1;
cp.async.bulk.tensor.2d.shared::cta.global.tile::gather4.mbarrier::complete_tx::bytes [%r1], [%d1, {%r2, %r3, %r5, \
%r6, %r7}], [%r4];
ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 {%r1, %r2}, [%r5];
stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r5], {%r1};
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], %r2;
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, %r2;
tcgen05.ld.sync.aligned.32x32b.x2.b32 {%r1, %r2}, [%r3];
tcgen05.st.sync.aligned.32x32b.x2.b32 [%r3], {%r1, %r2};
tcgen05.cp.cta_group::1.128x256b [%r1], %d1;
tcgen05.shift.cta_group::1.down [%r1];
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%r1];
tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r1], %h1;
tcgen05.commit.cta_group::1.mbarrier::arrive::one.b64 [%d1];
tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1;
tcgen05.mma.cta_group::1.kind::f16 [%r1], [%r3], %d2, %r2, %p1;
tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, {%r3..6}, %p1;
tcgen05.mma.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1, 1;
tcgen05.mma.sp.cta_group::1.kind::f16 [%r1], %d1, %d2, [%r7], %r2, %p1;
tcgen05.mma.cta_group::1.kind::mxf8f6f4.block_scale.scale_vec::1X [%r1], %d1, %d2, %r2, [%r3], [%r4], %p1;
tcgen05.mma.ws.cta_group::1.kind::f16 [%r1], %d1, %d2, %r2, %p1, %d3;
ld.global.v8.f32 {%f1..8}, [%d1];
ld.global.v4.b64 {%d2..5}, [%d1];
st.global.v8.b32 [%d1], {%r1..8};
""",
    "sm_103a": """
tcgen05.ld.red.sync.aligned.32x32b.x2.min.f32 {%r1, %r2}, %f4, [%r3];
tcgen05.ld.red.sync.aligned.32x32b.x2.min.u32 {%r1, %r2}, %r4, [%r3];
""",
    "sm_120a": """
mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::2X.f32.e2m1.e2m1.f32.ue8m0 {%f1..4}, \
{%r1..4}, {%r5, %r6}, {%f1..4}, %r7, {%h1, %h2}, %r8, {%h3, %h4};
""",
}
LINES = {
    target: re.sub(
        r"%(\w)(\d+)\.\.(\d+)",
        lambda m: ", ".join([f"%{m[1]}{n}" for n in range(int(m[2]), int(m[3]) + 1)]),
        text,
    ).split("\n")[1:-1]
    for target, text in TEXTS.items()
}
# Operations without registers, and the instructions that calls of functions become.
BARE = {
    "bra", "brx.idx", "ret", "exit", "trap", "brkpt", "call", "routine.call", "routine.return", "pmevent", "setmaxnreg",
    "griddepcontrol.launch_dependents", "griddepcontrol.wait", "fence", "membar", "barrier.cluster.arrive",
    "barrier.cluster.wait", "wgmma.fence", "wgmma.commit_group", "wgmma.wait_group", "cp.async.commit_group",
    "cp.async.wait_group", "cp.async.wait_all", "cp.async.bulk.commit_group", "cp.async.bulk.wait_group",
    "tcgen05.relinquish_alloc_permit", "tcgen05.fence::before_thread_sync", "tcgen05.fence::after_thread_sync",
    "tcgen05.wait::ld", "tcgen05.wait::st", "tex", "tld4", "txq", "istypep", "suld", "sust", "sured", "suq",
}  # fmt: skip


class Changed(NamedTuple):
    """A line with a register of another type at one place; before: its text up to there; was: the letter there."""

    text: str
    line: str
    before: str
    letter: str
    was: str


def changed(line: str, letters: str = "".join(TYPES)) -> Iterator[Changed]:
    """The line with each of its registers, of a vector the first, in each type."""
    for found in re.finditer(r"%([a-z])(\d+)", line):
        before, after = line[: found.start()], line[found.end() :]
        if before.count("{") == before.count("}") or before.endswith("{"):
            for letter in letters:
                yield Changed(f"{before}%{letter}{found[2]}{after}", line, before, letter, found[1])


def refused_here(lines: list[str], target: str) -> dict[int, str]:
    """Line -> error, for each line that the emulator refuses."""
    text = f".version 8.8\n.target {target}\n.visible .entry k() {{ {DECLARED}\n" + "\n".join(lines) + "\nret; }"
    (kernel,) = parse(text)
    assert len(kernel.instructions) == len(lines) + 1
    return refusals(kernel)


def beyond(one: Changed) -> bool:
    """True where ptxas takes other registers than PTX names for the operand."""
    address, line = one.before.endswith("["), one.line
    if one.letter == "x":  # f16x2 as an integer
        return True
    words = ("movmatrix", "mma.", "wgmma.mma_async.sp", "tcgen05.ld.red")
    if one.letter == "p" and (one.before.endswith("{") or line.startswith(words)):
        return True  # predicates as words
    if address and ("[%d1, {" in line or line.startswith(("tcgen05.", "fence.proxy.tensormap"))):
        return True  # any register as the address of a tensor map, or in tensor memory
    if address and one.letter in "hw" and "mbarrier::complete_tx" in line:
        return True  # not the address of an mbarrier of 16 bits, where it is that of others
    if line.startswith("st.bulk") or line.endswith("%p1, 1;"):
        return True  # a size of 32 bits; a word for enable-input-d
    return line.startswith("multimem.st") and "f16x2" in line  # there no other type of 32 bits


@needs.PTXAS
@pytest.mark.parametrize("target", LINES)
def test_ptxas_takes_the_same_registers(target: str, tmp_path: Path) -> None:
    every = [one for line in LINES[target] for one in changed(line)]
    texts = [one.text for one in every]
    theirs, ours = refused_by_ptxas(texts, target, tmp_path, DECLARED), refused_here(texts, target)
    differ = {texts[n]: theirs.get(n) or ours.get(n) for n in theirs.keys() ^ ours.keys() if not beyond(every[n])}
    assert differ == {} and 0 < len(theirs) < len(every)


@pytest.mark.parametrize("target", LINES)
def test_no_operation_takes_a_register_of_another_width(target: str) -> None:
    lines = LINES[target]
    assert refused_here(lines, target) == {}
    # A float of 16 bits fits nowhere but among 16 bits, where one of 64 does not.
    wrong = [one for line in lines for one in changed(line, "ge") if (one.letter == "e") == (one.was in "hw")]
    ours = refused_here([one.text for one in wrong], target)
    assert [one.text for n, one in enumerate(wrong) if n not in ours] == []


def test_the_lines_are_of_every_operation() -> None:
    opcodes = [line.split(" ")[0] for lines in LINES.values() for line in lines]
    missing = [name for name in BUILDERS.keys() - BARE if not any(f"{one}.".startswith(f"{name}.") for one in opcodes)]
    assert missing == []


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("mbarrier.try_wait.parity.shared.b64 %p0, [%r0], %d1;", "%d1 is a register of 64 bits, where one of 32"),
        ("mbarrier.init.shared.b64 [%r0], %f1;", r"%f1 is a register of type \.f32, where \.u32 is needed"),
        ("ld.global.b32 %r1, [%f0];", r"%f0 is a register of type \.f32, where an address is needed"),
        ("ld.global.f32 %r1, [%d0+4]; ld.global.u32 %f1, [%d0];", r"%f1 is a register of type \.f32, where \.u32"),
        ("elect.sync %r1|_, -1;", "the predicate of elect cannot be dropped"),
        ("mov.b64 {_, _}, %d1;", "all of its results are dropped"),
        ("mov.v4.u32 {%r1, %r2, %r3, %r4}, %laneid;", r"%laneid is no vector of 4 \.u32"),
        ("ld.global.v2.b32 {%r1, %d1}, [%d0];", "%d1 is a register of 64 bits, where one of 32 is needed"),
        ("ld.global.b32 _, [%d0];", "the result of ld cannot be dropped"),
        ("shfl.sync.bfly.b32 _, %r1, 1, 31, -1;", "the result of shfl cannot be dropped"),
        ("st.global.f32 [%d0], 1;", r"1 is an integer, where \.f32 is needed"),
        ("st.global.b32 [%d0], 1.5;", r"1\.5 is a float of 64 bits, where \.b32 is needed"),
        ("prefetch.global.L2 [%p0];", r"%p0 is a register of type \.pred, where an address is needed"),
        ("ld.global.L2::cache_hint.b32 %r1, [%d0], %r2;", "%r2 is a register of 32 bits, where one of 64 is needed"),
    ],
)  # fmt: skip
def test_a_wrong_operand_is_named(line: str, says: str) -> None:
    with pytest.raises(PtxError, match=rf"PTX line \d+: .*{says}"):
        run(line)


# Operands that are too many, too few, or no immediate.
COUNTED = """
shfl.sync.bfly.b32 %r1, %r2, 1, 31;
shfl.sync.bfly.b32 %r1, %r2, 1, 31, -1, 4;
elect.sync %r1|%p1;
activemask.b32 %r1, %r2;
mapa.u64 %d1, %d2;
getctarank.u64 %r1, %d1, 3;
wgmma.wait_group.sync.aligned;
wgmma.wait_group.sync.aligned %r1;
wgmma.wait_group.sync.aligned 1.5;
wgmma.fence.sync.aligned 1;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f1, %f2, %f3, %f4}, %d1, %d2, %p1, %r1, 1, 0, 0;
ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r1}, [%r5], 1;
stmatrix.sync.aligned.m8n8.x1.shared.b16 [%r5], {%r1}, 1;
movmatrix.sync.aligned.m8n8.trans.b16 %r1, %r2, %r3;
createpolicy.fractional.L2::evict_last.b64 %d1, %f1, %f2;
cp.async.commit_group 1;
cp.async.wait_group %r1;
cp.async.bulk.wait_group %r1;
tensormap.replace.tile.elemtype.shared::cta.b1024.b32 [%r1], %r2;
exit %r1;
trap 1;
multimem.st.relaxed.sys.global.f32 [%d1], %f1, %f2;
multimem.st.relaxed.sys.global.f32 [%d1];
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1], %r2, %r3;
tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r1];
tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r1, %r2, %r3;
tcgen05.wait::ld.sync.aligned 1;
tcgen05.fence::before_thread_sync 1;
tcgen05.cp.cta_group::1.128x256b [%r1], %d1, %d2;
tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned 1;
""".strip().split("\n")


def test_operands_are_counted_and_immediates_are() -> None:
    for line in COUNTED:
        (why,) = refused_here([line], "sm_100a" if line.startswith("tcgen05") else "sm_90a").values()
        assert re.search(r"operands?|is not a constant integer", why), why


# Instructions of the targets that have them; `refused` are two that do not.
TARGETS = [
    ("wgmma.fence.sync.aligned;", "sm_90a", ("sm_90", "sm_100a"), "wgmma needs .target sm_90a"),
    ("tcgen05.wait::ld.sync.aligned;", "sm_100f", ("sm_90a", "sm_120a"), "needs .target sm_10x or sm_11x or above"),
    ("atom.shared.cas.b128 %q1, [%r1], %q2, %q3;", "sm_90", ("sm_80", "sm_89"), "needs .target sm_90 or above"),
    ("mapa.u64 %d1, %d2, %r3;", "sm_90", ("sm_80", "sm_89"), "mapa needs .target sm_90 or above"),
    ("mbarrier.inval.shared.b64 [%r1];", "sm_80", ("sm_70", "sm_75"), "mbarrier needs .target sm_80 or above"),
    ("setmaxnreg.inc.sync.aligned.u32 232;", "sm_100a", ("sm_90", "sm_100"), "needs .target sm_90a or above"),
    ("barrier.cluster.wait.aligned;", "sm_90", ("sm_80", "sm_86"), ".cluster needs .target sm_90 or above"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "target", "refused", "says"), TARGETS)
def test_an_instruction_needs_its_target(line: str, target: str, refused: tuple[str, str], says: str) -> None:
    assert refused_here([line], target) == {}
    for other in refused:
        assert refused_here([line], other)[0].endswith(says)


@needs.PTXAS
@pytest.mark.parametrize("target", ["sm_80", "sm_90", "sm_90a", "sm_100", "sm_100a", "sm_103a", "sm_120a"])
def test_ptxas_takes_no_line_that_is_refused_for_its_target(target: str, tmp_path: Path) -> None:
    lines = [line for each in LINES.values() for line in each]
    theirs, ours = refused_by_ptxas(lines, target, tmp_path, DECLARED), refused_here(lines, target)
    assert {lines[n]: why for n, why in ours.items() if n not in theirs} == {}
