"""Video instructions against PTX's pseudo-code, and forms that do not exist."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.errors import PtxError
from tests.emulator.run_ptx import LANE, run

A, B, C = 0x80FF7F01, 0x01FE8002, 0x11223344


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("vadd.u32.u32.u32 %r0, %r1.b0, %r2.h1", 0x01 + 0x01FE),
        ("vadd.s32.s32.s32 %r0, %r1.b3, %r2.b1", -128 - 128),
        ("vsub.u32.u32.u32.sat %r0, %r1.b0, %r2.b0", 0),
        ("vsub.s32.u32.u32.sat %r0.b1, %r1.b2, %r2.b0, %r3", (C & ~0xFF00) | 127 << 8),
        ("vadd.u32.u32.u32 %r0.h1, %r1, %r2, %r3", (C & 0xFFFF) | (A + B & 0xFFFF) << 16),
        ("vabsdiff.u32.s32.s32.add %r0, %r1, %r2, %r3", abs((A - 2**32) - B) + C),
        ("vmin.s32.s32.s32.max %r0, %r1, %r2, %r3", C),
        ("vmax.u32.u32.u32.min %r0, %r1, %r2, %r3", C),
        ("vset.s32.u32.lt %r0, %r1, %r2", 1),
        ("vset.u32.u32.lt.add %r0, %r1, %r2, %r3", C),
        ("vshl.u32.u32.u32.clamp %r0, %r1, %r2", 0),
        ("vshl.u32.u32.u32.wrap %r0, %r1, %r2", A << 2),
        ("vshr.s32.s32.u32.clamp.add %r0, %r1, %r2, %r3", -1 + C),
        ("vmad.s32.s32.s32 %r0, %r1.b3, %r2.b0, %r3", -128 * 2 + C),
        ("vmad.u32.u32.u32.po.shr7 %r0, %r1.h0, %r2.h0, %r3", (0x7F01 * 0x8002 + C + 1) >> 7),
        ("vadd4.u32.u32.u32 %r0, %r1, %r2, %r3", 0x81FDFF03),
        ("vadd4.u32.u32.u32.sat %r0, %r1, %r2, %r3", 0x81FFFF03),
        ("vsub4.s32.s32.s32.sat %r0, %r1, %r2, %r3", 0x80017FFF),
        ("vavrg4.u32.u32.u32 %r0.b20, %r1, %r2, %r3", 0x11FF3302),
        ("vavrg2.s32.s32.s32 %r0, %r1, %r2, %r3", (-32513 + 510 >> 1 & 0xFFFF) << 16 | (0x7F01 - 0x7FFE >> 1 & 0xFFFF)),
        ("vabsdiff4.u32.u32.u32.add %r0, %r1, %r2, %r3", 0x7F + 1 + 1 + 1 + C),
        ("vmin2.u32.u32.u32 %r0, %r1.h01, %r2.h23, %r3", 0x01FE << 16 & 0 | 0x7F01 << 16 | 0x01FE),
        ("vset4.u32.u32.ge %r0, %r1, %r2, %r3", 0x01010000),
        ("vset2.s32.s32.lt.add %r0, %r1, %r2, %r3", C + 1),
    ],
)
def test_a_form(text, want):
    out = np.zeros(1, np.uint32)
    start = f"mov.b32 %r1, {A}; mov.b32 %r2, {B}; mov.b32 %r3, {C}; mov.b32 %r0, 7;"
    assert not run(f"{start} {text}; st.global.b32 [%out], %r0;", {"out": out}, block=1).findings
    assert hex(out[0]) == hex(want & 0xFFFFFFFF)


def test_lanes_of_different_values():
    out = np.zeros(32, np.uint32)
    body = f"{LANE} vsub.s32.u32.u32 %r0, %r31, 5; add.s64 %d1, %out, %d31; st.global.b32 [%d1], %r0;"
    run(body, {"out": out})
    assert out.view(np.int32).tolist() == [i - 5 for i in range(32)]


@pytest.mark.parametrize(
    "text",
    ["vadd.u16.u32.u32 %r0, %r1, %r2;", "vadd.u32.u32.u32 %r0.b4, %r1, %r2, %r3;", "vset.u32.u32.hi %r0, %r1, %r2;",
     "vadd.u32.u32.u32.add %r0.b1, %r1, %r2, %r3;", "vshl.u32.u32.s32.wrap %r0, %r1, %r2;",
     "vmad4.u32.u32.u32 %r0, %r1;",
     "vadd2.s32.s32.s32.sat.add %r0, %r1, %r2, %r3;", "vadd2.u32.u32.u32 %r0, %r1, %r2;",
     "vavrg.u32.u32.u32 %r0, %r1;"],
)  # fmt: skip
def test_forms_that_do_not_exist(text):
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run(text)
