"""Registers that nothing has written: harmless where a result does not depend on them, an error where one does."""

from __future__ import annotations

import re

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.errors import EmulatorError
from tests.emulator.run_ptx import module, run

# %f0 and %r8 have the values of buffer x in lanes below n, and no value in the others; %p1 holds in the others.
HEAD = """
mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d1, %x; setp.ge.u32 %p1, %r0, %n;
@!%p1 ld.global.b32 %r8, [%d2]; mov.b32 %f0, %r8; mov.u32 %r29, smem; mad.lo.u32 %r28, %r0, 4, %r29;
"""
PARTS = (64, 40, 32, 7, 0)


def outcome(body: str, n: int, block: int = 64) -> tuple[str, list[int]]:
    """("" or what was found, the values of buffer x afterwards)."""
    text = module(HEAD + body, {"x": "u64", "n": "u32"})
    x = np.arange(100, 100 + block, dtype=np.uint32)
    try:
        done = emulate_ptx(text, block=block, args=[x, n], smem=1024, progress=False)
    except EmulatorError as error:
        return str(error), x.tolist()
    return " ".join([str(finding) for finding in done.findings]), x.tolist()


ADDRESS = "sub.u32 %r10, %r8, %r8; cvt.u64.u32 %d7, %r10; add.u64 %d7, %d7, %d2;"  # the lane's own, or undefined
LANDED = "cp.async.wait_all; bar.sync 0; ld.shared.b32 %r9, [%r28]; st.global.b32 [%d2], %r9;"
# Two floats of 8 bits, the upper of which may have no value, as halves of 16 bits.
NARROW = """cvt.rn.f32.u32 %f1, %r0; cvt.rn.satfinite.e4m3x2.f32 %h0, %f0, %f1; cvt.rn.f16x2.e4m3x2 %r9, %h0;
mov.b32 {%h1, %h2}, %r9;"""
HARMLESS = {
    "stored where it has a value": "add.u32 %r9, %r8, %r8; @!%p1 st.global.b32 [%d2], %r9;",
    "floats": "add.f32 %f1, %f0, %f0; fma.rn.f32 %f1, %f1, %f0, %f0; @!%p1 st.global.b32 [%d2], %r0;",
    "selp takes the other": "add.u32 %r9, %r8, 1; selp.b32 %r9, 5, %r9, %p1; st.global.b32 [%d2], %r9;",
    "a predicated move over it": "mul.lo.u32 %r9, %r8, 3; @%p1 mov.b32 %r9, 7; st.global.b32 [%d2], %r9;",
    "moved, widened, split": "cvt.u64.u32 %d5, %r8; mov.b64 {%r10, %r11}, %d5; mov.b64 %d6, {%r10, %r8};"
    "shl.b64 %d6, %d6, 3; cvt.u32.u64 %r12, %d6; @!%p1 st.global.b32 [%d2], %r12;",
    "compared, and the predicate not used": "setp.eq.b32 %p2, %r8, 5; selp.b32 %r9, 1, 2, %p2; @!%p1 st.global.b32 "
    "[%d2], %r9;",
    "behind a branch": "@%p1 bra off; add.u32 %r9, %r8, 1; st.global.b32 [%d2], %r9; off:",
    "written behind a branch": "@%p1 bra off; mul.lo.u32 %r20, %r8, 2; off: add.u32 %r21, %r20, 1; @%p1 bra end; "
    "st.global.b32 [%d2], %r21; end:",
    "a shuffle of it": "shfl.sync.bfly.b32 %r9, %r8, 0, 31, -1; @!%p1 st.global.b32 [%d2], %r9;",
    "reduced by butterflies": "shfl.sync.bfly.b32 %r9, %r8, 0, 31, -1; max.u32 %r8, %r8, %r9;"
    "shfl.sync.bfly.b32 %r9, %r8, 0, 31, -1; add.u32 %r8, %r8, %r9; @!%p1 st.global.b32 [%d2], %r8;",
    "through shared memory": "st.shared.b32 [%r28], %r8; ld.shared.b32 %r9, [%r28]; add.u32 %r9, %r9, 1;"
    "@!%p1 st.global.b32 [%d2], %r9;",
    "an address of a load that is off": "cvt.u64.u32 %d7, %r8; add.u64 %d7, %d7, %x; sub.u64 %d7, %d7, 100;"
    "setp.eq.u32 %p3, %r0, 999; @%p3 ld.global.b32 %r9, [%d7];",
    "an address of a copy of no bytes": ADDRESS + "selp.b32 %r9, 0, 4, %p1; cp.async.ca.shared.global [%r28], [%d7], 4,"
    "%r9;" + LANDED,
    "an address of a copy that ignores it": ADDRESS + "cp.async.ca.shared.global [%r28], [%d7], 4, %p1;" + LANDED,
    "addresses of rows that a matrix copy does not take": "st.shared.b32 [%r28], %r0; bar.sync 0; and.b32 %r9, %r0, 31;"
    "setp.lt.u32 %p2, %r9, 8; sub.u32 %r10, %r8, %r8; shl.b32 %r11, %r9, 4; add.u32 %r11, %r11, %r29;"
    "@!%p2 add.u32 %r11, %r11, %r10; ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r12}, [%r11];"
    "st.global.b32 [%d2], %r12;",
    "an atomic that is off": "@!%p1 red.global.add.u32 [%d2], %r8;",
    "and with a zero": "selp.b32 %r9, 0, -1, %p1; and.b32 %r10, %r8, %r9; st.global.b32 [%d2], %r10;",
    "or with ones": "selp.b32 %r9, -1, 0, %p1; or.b32 %r10, %r8, %r9; st.global.b32 [%d2], %r10;",
    "a compared value, and out of bounds": "setp.eq.u32 %p2, %r8, 5; not.pred %p4, %p1; and.pred %p3, %p2, %p4;"
    "@%p3 st.global.b32 [%d2], 9;",
    "a comparison with an and": "not.pred %p4, %p1; setp.eq.and.u32 %p2, %r8, 5, %p4; @%p2 st.global.b32 [%d2], 9;",
    "one of two packed halves": "cvt.u16.u32 %h0, %r8; cvt.u16.u32 %h1, %r0; mov.b32 %r9, {%h0, %h1};"
    "mov.b32 {%h2, %h3}, %r9; st.global.b16 [%d2+2], %h3; @!%p1 st.global.b16 [%d2], %h2;",
    "the lower of two narrow floats": NARROW + "st.global.b16 [%d2], %h1; @!%p1 st.global.b16 [%d2+2], %h2;",
    "arithmetic of packed halves": "cvt.u16.u32 %h0, %r8; cvt.u16.u32 %h1, %r0; mov.b32 %r9, {%h0, %h1};"
    "fma.rn.bf16x2 %r10, %r9, %r9, %r9; shr.u32 %r11, %r10, 16; cvt.u16.u32 %h3, %r11; st.global.b16 [%d2+2], %h3;"
    "@!%p1 st.global.b16 [%d2], 7;",
    "converted to a packed pair": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.bf16x2.f32 %r9, %f1, %f0; "
    "prmt.b32 %r10, %r9, 0, 0x4432; mov.b32 {%h2, %h3}, %r10; st.global.b16 [%d2], %h2;",
    "converted to packed pairs in a row": "cvt.rn.f32.u32 %f1, %r0; cvt.rn.f16x2.f32 %r9, %f1, %f1; cvt.rn.f16x2.f32 "
    "%r10, %f1, %f0; cvt.rn.f16x2.f32 %r11, %f1, %f1; st.global.b32 [%d2], %r9; st.global.b32 [%d2], %r11; "
    "@!%p1 st.global.b32 [%d2], %r10;",
    "bits that are shifted out": "shl.b32 %r9, %r8, 16; or.b32 %r9, %r9, 5; and.b32 %r9, %r9, 0xFF;"
    "st.global.b32 [%d2], %r9;",
    "half a word of shared memory": "cvt.u16.u32 %h0, %r8; cvt.u16.u32 %h1, %r0; mov.b32 %r9, {%h0, %h1};"
    "st.shared.b32 [%r28], %r9; ld.shared.b16 %h4, [%r28+2]; st.global.b16 [%d2+2], %h4; @!%p1 st.global.b16 [%d2], 7;",
    "a product whose result is masked": "mov.b32 %r12, 0; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{%f1, %f2, %f3, %f4}, {%r8, %r12, %r12, %r12}, {%r12, %r12}, {%f0, %f0, %f0, %f0};"
    "setp.eq.u32 %p5, %n, 64; @%p5 st.global.f32 [%d2], %f1;",
}


@pytest.mark.parametrize("name", HARMLESS)
def test_a_value_that_nothing_depends_on(name: str) -> None:
    whole = outcome(HARMLESS[name], 64)[1]
    for n in PARTS:
        said, values = outcome(HARMLESS[name], n)
        assert not said, (n, said)
        assert values[:n] == whole[:n]


HARMFUL = {
    "stored": "st.global.b32 [%d2], %r8;",
    "computed with and stored": "add.f32 %f1, %f0, %f0; st.global.f32 [%d2], %f1;",
    "stored by one lane too many": "setp.gt.u32 %p2, %r0, %n; @!%p2 st.global.b32 [%d2], %r8;",
    "a branch": "setp.eq.b32 %p2, %r8, 5; @%p2 bra on; on:",
    "a guard": "setp.lt.s32 %p2, %r8, 0; @%p2 st.global.b32 [%d2], 1;",
    "a guard of arithmetic": "setp.lt.s32 %p2, %r8, 0; mov.b32 %r9, 1; @%p2 mov.b32 %r9, 2; st.global.b32 [%d2], %r9;",
    "an address": "and.b32 %r9, %r8, 32; cvt.u64.u32 %d7, %r9; add.u64 %d7, %d7, %x; ld.global.b32 %r9, [%d7];",
    "a shared address": "sub.u32 %r9, %r8, %r8; add.u32 %r9, %r9, %r28; st.shared.b32 [%r9], %r0;",
    "an address of a copy": ADDRESS + "cp.async.ca.shared.global [%r28], [%d7], 4;" + LANDED,
    "the size of a copy": "and.b32 %r9, %r8, 4; cp.async.ca.shared.global [%r28], [%d2], 4, %r9;" + LANDED,
    "an address of a row": "sub.u32 %r10, %r8, %r8; st.shared.b32 [%r28], %r0; bar.sync 0; and.b32 %r11, %r0, 7;"
    "shl.b32 %r11, %r11, 4; add.u32 %r11, %r11, %r29; add.u32 %r11, %r11, %r10;"
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r12, %r13, %r14, %r15}, [%r11]; st.global.b32 [%d2], %r12;",
    "an atomic's operand": "red.global.add.u32 [%d2], %r8;",
    "selp takes it": "selp.b32 %r9, %r8, 5, %p1; st.global.b32 [%d2], %r9;",
    "a shuffle from a lane without it": "shfl.sync.idx.b32 %r9, %r8, 31, 31, -1; st.global.b32 [%d2], %r9;",
    "a shuffle, and a predicate of it": "shfl.sync.idx.b32 %r9, %r8, 31, 31, -1; setp.gt.u32 %p3, %r9, 999;"
    "selp.b32 %r9, 1, 2, %p3; st.global.b32 [%d2], %r9;",
    "a shuffle through shared memory": "shfl.sync.idx.b32 %r9, %r8, 31, 31, -1; st.shared.b32 [%r28], %r9;"
    "bar.sync 0; ld.shared.b32 %r9, [%r28]; st.global.b32 [%d2], %r9;",
    "shifted in place": "shl.b32 %r8, %r8, 16; st.global.b32 [%d2], %r8;",
    "through shared memory": "st.shared.b32 [%r28], %r8; ld.shared.b32 %r9, [%r28]; st.global.b32 [%d2], %r9;",
    "a copy of one": "mov.b32 %r9, %r8; mov.b32 %r10, %r9; st.global.b32 [%d2], %r10;",
    "a count of a barrier": "sub.u32 %r9, %r8, %r8; add.u32 %r9, %r9, 64; bar.sync 1, %r9;",
    "and with a one": "selp.b32 %r9, 1, -1, %p1; and.b32 %r10, %r8, %r9; st.global.b32 [%d2], %r10;",
    "a compared value, or out of bounds": "setp.eq.u32 %p2, %r8, 5; not.pred %p4, %p1; or.pred %p3, %p2, %p4;"
    "@%p3 st.global.b32 [%d2], 9;",
    "the other of two packed halves": "cvt.u16.u32 %h0, %r8; cvt.u16.u32 %h1, %r0; mov.b32 %r9, {%h0, %h1};"
    "mov.b32 {%h2, %h3}, %r9; st.global.b16 [%d2], %h2;",
    "the upper of two narrow floats": NARROW + "st.global.b16 [%d2], %h2;",
    "bits that are shifted in": "shl.b32 %r9, %r8, 16; or.b32 %r9, %r9, 5; st.global.b32 [%d2], %r9;",
    "arithmetic across the halves": "cvt.u16.u32 %h0, %r8; cvt.u16.u32 %h1, %r0; mov.b32 %r9, {%h0, %h1};"
    "add.u32 %r10, %r9, 1; shr.u32 %r11, %r10, 16; st.global.b32 [%d2], %r11;",
    "a product whose result is stored": "mov.b32 %r12, 0; mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
    "{%f1, %f2, %f3, %f4}, {%r12, %r12, %r12, %r12}, {%r12, %r12}, {%f0, %f0, %f0, %f0}; st.global.f32 [%d2], %f1;",
    "written by the other lanes alone": "@!%p1 bra off; bra on; off: mov.b32 %r20, 3; on: st.global.b32 [%d2], %r20;",
}


@pytest.mark.parametrize("name", HARMFUL)
def test_a_value_that_something_depends_on(name: str) -> None:
    for n in PARTS:
        said, _ = outcome(HARMFUL[name], n)
        assert (not said) == (n == 64), (n, said)
        if said:
            assert "never written" in said


def test_exchanged_values_that_nothing_uses_are_no_suspects() -> None:
    """A launch with suspects runs four times."""
    text = module(HEAD + HARMLESS["reduced by butterflies"], {"x": "u64", "n": "u32"})
    done = emulate_ptx(text, block=64, args=[np.zeros(64, np.uint32), 7], smem=1024, progress=False)
    assert done.ok and not done.launches[0].suspects


def test_an_exchanged_value_and_one_that_nothing_wrote() -> None:
    # Lane 0 adds lane 31's undefined value to its own; the others do not store theirs.
    body = "shfl.sync.idx.b32 %r9, %r8, 31, 31, -1; add.u32 %r9, %r9, %r8; setp.eq.u32 %p3, %r0, 0;"
    said, _ = outcome(body + "@%p3 st.global.b32 [%d2], %r9;", 7)
    assert "shfl.sync.idx.b32 takes it: register %r8 is read and was never written" in said


def test_a_comparison_with_a_register_that_nothing_wrote() -> None:
    for body in (
        "setp.eq.b32 %p0, %r5, 3; @%p0 st.global.b32 [%x], 1;",
        "cnot.b32 %r6, %r5; st.global.b32 [%x], %r6;",
        "selp.b32 %r6, 1, 2, %p5; st.global.b32 [%x], %r6;",
        "cvt.u64.u32 %d5, %r5; st.global.b64 [%x], %d5;",
    ):
        found = run(body, {"x": np.zeros(8, np.uint32)}).findings
        assert [one.kind for one in found][:1] == ["uninitialised"]
        assert re.match(r"register %[rp]5 is read and was never written", found[0].message)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("ld.shared.b32 %r9, [%r28]; st.global.b32 [%d2], %r9;", True),
        ("ld.shared.b32 %r9, [%r28]; add.u32 %r9, %r9, 1; selp.b32 %r9, 5, %r9, %p1; @%p1 st.global.b32 [%d2], %r9;",
         False),
        ("ld.shared.b32 %r9, [%r28]; setp.eq.u32 %p2, %r9, 0; @%p2 st.global.b32 [%d2], 9;", True),
        ("ld.shared.b32 %r9, [%r28]; setp.lt.s32 %p2, %r9, -1; @%p2 st.global.b32 [%d2], 9;", True),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r29]; st.global.b32 [%d2], %r9;", True),
        ("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%r9}, [%r29]; @!%p1 st.global.b32 [%d2], %r9;", False),
    ],
)  # fmt: skip
def test_shared_memory_that_nothing_wrote(body: str, found: bool) -> None:
    said, _ = outcome(body, 0, 32)
    assert ("uninitialised" in said) == found, said


def test_predicated_off_lanes_keep_their_values() -> None:
    out = np.zeros(32, np.uint32)
    lane = "mov.u32 %r0, %tid.x; mul.wide.u32 %d1, %r0, 4; add.u64 %d2, %d1, %out; setp.lt.u32 %p0, %r0, 4;"
    run(lane + "mov.u32 %r1, 77; @%p0 atom.global.add.u32 %r1, [%d2], 5; st.global.b32 [%d2], %r1;", {"out": out})
    assert out.tolist() == [0] * 4 + [77] * 28
    run(lane + "mov.u32 %r1, 77; @%p0 ld.param.u32 %r1, [n]; st.global.b32 [%d2], %r1;", {"out": out}, n=9)
    assert out.tolist() == [9] * 4 + [77] * 28


def test_a_comparison_whose_operand_is_its_own_first_result() -> None:
    out = np.zeros(1, np.uint32)
    run("setp.eq.u32 %p0, 1, 1; setp.eq.and.u32 %p0|%p1, 1, 2, %p0; selp.u32 %r0, 1, 0, %p1; "
        "st.global.b32 [%out], %r0;",
        {"out": out})  # fmt: skip
    assert out.tolist() == [1]
