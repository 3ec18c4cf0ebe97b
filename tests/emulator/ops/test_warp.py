"""Instructions between lanes against PTX's definitions, and the report of each misuse."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.ops.warp import entry_registers
from layoutgemm.emulator.ptx.parser import parse
from layoutgemm.errors import DeadlockError, EmulatorError, PtxError
from tests.emulator.run_ptx import LANE, module, run

HEAD = "mov.u32 %r30, %tid.x; mul.wide.u32 %d30, %r30, 4; add.s64 %d0, %out, %d30; mad.lo.u32 %r1, %r30, 7, 100;"
TAIL = "st.global.u32 [%d0], %r0;"


def go(body: str, **more) -> list[int]:
    out = np.zeros(32, np.uint32)
    found = run(HEAD + body + TAIL, {"out": out}, **more)
    assert not found.findings, found.findings
    return out.tolist()


def kinds(body: str, **more) -> list[str]:
    return run(HEAD + body, {"out": np.zeros(32, np.uint32)}, **more).kinds


def shuffled(mode: str, b: int, c: int) -> tuple[list[int], list[bool]]:
    """PTX ISA, shfl.sync, its pseudo-code."""
    values, inside = [], []
    for lane in range(32):
        segment, clamp = c >> 8 & 31, c & 31
        most, least = lane & segment | clamp & ~segment, lane & segment
        j = {"up": lane - (b & 31), "down": lane + (b & 31), "bfly": lane ^ b & 31, "idx": least | b & 31 & ~segment}[
            mode
        ]
        ok = j >= most if mode == "up" else j <= most
        values.append((j if ok else lane) * 7 + 100)
        inside.append(ok)
    return values, inside


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("b", [0, 1, 3, 16, 31])
def test_shuffles(mode, b):
    for c in (0x1F, 0, 0x181F, 0x1C07, 0x1800):
        values, inside = shuffled(mode, b, c)
        assert go(f"shfl.sync.{mode}.b32 %r0|%p0, %r1, {b}, {c}, -1; @!%p0 add.u32 %r0, %r0, 5000;") == [
            v + (0 if ok else 5000) for v, ok in zip(values, inside)
        ]
    if mode == "idx":
        assert go(f"shfl.sync.idx.b32 %r0, %r1, {b}, 31, -1;") == [b * 7 + 100] * 32
    assert go("mov.u32 %r1, 4; shfl.sync.idx.b32 %r0|%p0, %r1, 3, 31, -1;") == [4] * 32


def test_a_shuffle_of_lanes_that_do_not_take_part():
    half = "setp.lt.u32 %p0, %r30, 16; @%p0 shfl.sync.idx.b32 %r0, %r1, 20, 31, 0xFFFF;"
    assert kinds(half) == ["divergence"]
    assert kinds("setp.lt.u32 %p0, %r30, 16; @%p0 shfl.sync.idx.b32 %r0, %r1, 2, 31, -1;") == ["divergence"]
    assert kinds("setp.lt.u32 %p0, %r30, 16; @%p0 shfl.sync.idx.b32 %r0, %r1, 2, 31, 0xFFFF;") == []


def test_votes():
    some = "setp.lt.u32 %p1, %r30, 5;"
    for name, want in (("all", 0), ("any", 1), ("uni", 0)):
        assert go(f"{some} vote.sync.{name}.pred %p0, %p1, -1; selp.u32 %r0, 1, 0, %p0;") == [want] * 32
        assert (
            go(
                f"{some} mov.pred %p0, %p1; @!%p1 vote.sync.{name}.pred %p0, !%p1, 0xFFFFFFE0; selp.u32 %r0, 1, 0, %p0;"
            )[5:]
            == [1] * 27
        )
    assert go(f"{some} vote.sync.ballot.b32 %r0, %p1, -1;") == [31] * 32
    few = "setp.lt.u32 %p2, %r30, 8; mov.b32 %r0, 0;"
    assert go(f"{some}{few} @%p2 vote.sync.ballot.b32 %r0, !%p1, 0xFF;") == [0xE0] * 8 + [0] * 24
    assert kinds(f"{some} vote.sync.ballot.b32 %r0, %p1, 0xFF;") == ["divergence"]
    assert kinds(f"{some} @%p1 vote.sync.ballot.b32 %r0, %p1, -1;") == ["divergence"]


def test_matches():
    values = "and.b32 %r2, %r30, 3;"
    assert go(values + "match.any.sync.b32 %r0, %r2, -1;") == [0x11111111 << (i & 3) for i in range(32)]
    few = "setp.lt.u32 %p2, %r30, 8; mov.b32 %r0, 0;"
    assert go(values + few + "@%p2 match.any.sync.b32 %r0, %r2, 0xFF;")[:8] == [0x11 << (i & 3) for i in range(8)]
    assert go(values + "match.all.sync.b32 %r0|%p0, %r2, -1; @%p0 add.u32 %r0, %r0, 1;") == [0] * 32
    assert go("mov.u32 %r2, 9; match.all.sync.b32 %r0|%p0, %r2, -1; selp.u32 %r0, %r0, 5, %p0;") == [0xFFFFFFFF] * 32
    wide = "cvt.u64.u32 %d1, %r2; shl.b64 %d1, %d1, 40;"
    assert go(values + wide + "match.any.sync.b64 %r0, %d1, -1;") == [0x11111111 << (i & 3) for i in range(32)]


@pytest.mark.parametrize(
    ("form", "want"),
    [("add.u32", sum(range(32)) - 320), ("add.s32", sum(range(32)) - 320), ("min.s32", -10), ("max.s32", 21),
     ("min.u32", 0), ("max.u32", -1), ("and.b32", 0), ("or.b32", -1), ("xor.b32", None)],
)  # fmt: skip
def test_reductions(form, want):
    if want is None:
        want = 0
        for i in range(32):
            want ^= i - 10
    assert go(f"sub.u32 %r2, %r30, 10; redux.sync.{form} %r0, %r2, -1;") == [want & 0xFFFFFFFF] * 32


def test_reductions_of_floats_by_magnitude():
    start = "cvt.rn.f32.s32 %f0, %r30; sub.f32 %f0, %f0, 0f41200000; mov.b32 %r2, %f0;"  # the lane less 10
    assert go(f"{start} redux.sync.min.abs.f32 %r0, %r2, -1;", target="sm_100a") == [0] * 32
    assert go(f"{start} redux.sync.max.abs.NaN.f32 %r0, %r2, -1;", target="sm_100a") == [0x41A80000] * 32
    assert go(f"{start} redux.sync.min.f32 %r0, %r2, -1;", target="sm_100a") == [0xC1200000] * 32


def test_elect():
    body = "elect.sync %r2|%p0, -1; selp.u32 %r0, 1, 0, %p0; mad.lo.u32 %r0, %r2, 100, %r0;"
    assert go(body) == [1] + [0] * 31
    assert go(body, policy=Policy(elect="highest")) == [3100] * 31 + [3101]
    some = "setp.lt.u32 %p0, %r30, 12; mov.b32 %r0, 0;"
    body = some + "@%p0 elect.sync _|%p1, 0xFFF; @%p0 selp.u32 %r0, 1, 0, %p1;"
    assert go(body, policy=Policy(elect="highest")) == [0] * 11 + [1] + [0] * 20


def test_lanes_of_different_member_masks():
    mask = "shr.u32 %r2, %r30, 3; shl.b32 %r2, %r2, 3; mov.b32 %r3, 255; shl.b32 %r3, %r3, %r2;"  # 8 lanes each
    eight = [8 * (i // 8) for i in range(32)]
    assert go(f"{mask} redux.sync.min.u32 %r0, %r30, %r3;") == eight
    assert go(f"{mask} shfl.sync.idx.b32 %r0, %r30, 0, 0x181F, %r3;") == eight
    assert go(f"{mask} setp.ne.b32 %p1, %r30, 9; vote.sync.ballot.b32 %r0, %p1, %r3;") == [
        (255 << i) - (512 if i == 8 else 0) for i in eight
    ]
    assert go(f"{mask} match.any.sync.b32 %r0, %r2, %r3;") == [255 << i for i in eight]
    assert go(f"{mask} elect.sync %r0|%p1, %r3;") == eight
    assert kinds(f"{mask} bar.warp.sync %r3;") == []
    assert kinds(f"{mask} not.b32 %r3, %r3; bar.warp.sync %r3;") == ["divergence"]


def test_active_mask_of_a_branch():
    assert go("setp.lt.u32 %p0, %r30, 3; @%p0 bra A; activemask.b32 %r0; bra B; A: activemask.b32 %r0; B:") == [
        7 if i < 3 else 0xFFFFFFF8 for i in range(32)
    ]


def registers(body: str, threads: int = 384, directives: str = ".maxntid 384 .minnctapersm 1"):
    body = "mov.u32 %r30, %tid.x; setp.lt.u32 %p0, %r30, 128;" + body
    return run(body, block=threads, directives=directives)


def test_register_budgets():
    # 384 threads have 168 each: 128 of them give 128 back, 256 take 64 more.
    assert not registers(
        "@%p0 bra A; setmaxnreg.inc.sync.aligned.u32 232; bra B; A: setmaxnreg.dec.sync.aligned.u32 40; B:"
    ).kinds
    with pytest.raises(DeadlockError, match=r"setmaxnreg\.inc"):
        registers("@%p0 bra A; setmaxnreg.inc.sync.aligned.u32 240; bra B; A: setmaxnreg.dec.sync.aligned.u32 40; B:")
    with pytest.raises(PtxError, match=r"multiples of 8 in 24\.\.256"):
        registers("setmaxnreg.dec.sync.aligned.u32 20;")
    with pytest.raises(EmulatorError, match=r"setmaxnreg\.dec to 200 registers of a warp that has 168"):
        registers("setmaxnreg.dec.sync.aligned.u32 200;")
    odd = "and.b32 %r1, %r30, 1; setp.eq.u32 %p1, %r1, 0; @%p1 setmaxnreg.dec.sync.aligned.u32 40;"
    assert "divergence" in registers(odd).kinds


@pytest.mark.parametrize(
    ("directives", "count"),
    [("", None), (".reqntid 320, 1, 1", None), (".minnctapersm 1", None), (".maxnreg 100", 100),
     (".maxntid 32, 10 .minnctapersm 1", 168), (".reqntid 320 .minnctapersm 2", 96), (".reqntid 384 .maxnreg 200", 200),
     (".reqntid 320 .minnctapersm 1 .maxnreg 96", 96), (".reqntid 320 .minnctapersm 1 .maxnreg 200", 168)],
)  # fmt: skip
def test_registers_at_launch_are_those_of_ptxas(directives, count):
    """The counts that ptxas 13.0 -v prints of a kernel with setmaxnreg; None: it ignores setmaxnreg."""
    (kernel,) = parse(module("setmaxnreg.inc.sync.aligned.u32 232;", {}, directives=directives))
    assert entry_registers(kernel) == count


def test_setmaxnreg_that_ptxas_ignores_is_lint():
    """12 warps of 232 registers, in a block that never had them: the kernel runs."""
    more = "@%p0 bra A; setmaxnreg.inc.sync.aligned.u32 256; bra B; A: setmaxnreg.dec.sync.aligned.u32 24; B:"
    done = registers(more, threads=512, directives="")
    assert set(done.kinds) == {"lint"} and "ptxas ignores this setmaxnreg" in str(done.findings[0])
    with pytest.raises(DeadlockError, match=r"setmaxnreg\.inc"):
        registers(more, threads=512)


def test_register_budgets_are_of_whole_warpgroups():
    # Warp 8 of 288 threads is a warpgroup of one: on an H200 the block hung.
    last = "setp.ge.u32 %p1, %r30, 256; @!%p1 bra B; setmaxnreg.dec.sync.aligned.u32 40; B:"
    done = registers(last, threads=288)
    assert done.kinds == ["protocol"] and "a block of 288 threads has 1 of its 4 warps" in str(done.findings[0])
    # The registers of the three warps that it lacks are there to take: 8 * 232 + 40 of the 12 * 168 of a launch.
    some = "setp.ge.u32 %p1, %r30, 256; @%p1 bra A; setmaxnreg.inc.sync.aligned.u32 232; bra B;"
    assert registers(some + " A: setmaxnreg.dec.sync.aligned.u32 40; B:", threads=288).kinds == ["protocol"]
    with pytest.raises(DeadlockError, match=r"setmaxnreg\.inc"):
        registers(some.replace("232", "256") + " A: setmaxnreg.dec.sync.aligned.u32 40; B:", threads=288)
    assert not registers(last).kinds
    # One warp of four, or another number in one of them.
    done = registers("setp.lt.u32 %p1, %r30, 32; @!%p1 bra B; setmaxnreg.dec.sync.aligned.u32 40; B:")
    assert done.kinds == ["protocol"] and "execute [1, 0, 0, 0] setmaxnreg" in str(done.findings[0])
    two = "@%p1 bra A; setmaxnreg.dec.sync.aligned.u32 48; bra B; A: setmaxnreg.dec.sync.aligned.u32 40; B:"
    done = registers("setp.lt.u32 %p1, %r30, 32;" + two)
    assert set(done.kinds) == {"protocol"} and "executes another, to 40" in str(done.findings[0])
    done = registers("setp.lt.u32 %p1, %r30, 32;" + two.replace("48", "40"))
    assert set(done.kinds) == {"lint"} and "by another instruction than in warp" in str(done.findings[0])
    assert not registers("setp.lt.u32 %p1, %r30, 128;" + two).kinds


def test_words_in_another_order():
    """As ptxas takes them: CUB writes vote.ballot.sync."""
    text = "setp.lt.u32 %p0, %r30, 5; vote.ballot.sync.b32 %r0, %p0, -1; shfl.up.sync.b32 %r1, %r30, 1, 0, -1;"
    text += "redux.add.sync.u32 %r2, %r30, -1; and.b32 %r3, %r30, 1; match.sync.all.b32 %r4|%p1, %r3, -1;"
    text += "prmt.f4e.b32 %r5, %r0, %r2, 1; barrier.aligned.sync 0; vote.any.pred.sync %p2, %p0, -1;"
    at = f"mov.u32 %r30, %tid.x; {text} st.global.v4.b32 [%a], {{%r0, %r2, %r4, %r5}}; @!%p2 trap;"
    ballot, total, match, chosen = run(at, {"a": np.zeros(4, np.uint32)})["a"].tolist()
    assert (ballot, total, match, chosen) == (31, 496, 0, 0xF0 << 24)
    for refused in ("barrier.cluster.aligned.arrive;", "bar.sync.warp -1;"):
        with pytest.raises(PtxError):
            run(refused, {})


@pytest.mark.parametrize(
    "text",
    ["shfl.idx.b32 %r0, %r1, 0, 31;", "shfl.sync.rot.b32 %r0, %r1, 0, 31, -1;", "vote.all.pred %p0, %p1;",
     "match.some.sync.b32 %r0, %r1, -1;", "redux.sync.mul.u32 %r0, %r1, -1;", "setmaxnreg.add.sync.aligned.u32 40;"],
)  # fmt: skip
def test_unknown_forms_are_refused(text):
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run(text)


def test_the_number_of_warps_counts_all_three_dimensions() -> None:
    out = np.zeros(1, np.int32)
    run("mov.u32 %r0, %nwarpid; st.global.b32 [%out], %r0;", {"out": out}, block=(40, 3, 2))
    assert out[0] == 8  # 240 threads


def test_a_special_register_of_four_is_a_vector() -> None:
    body = f"""{LANE} mov.v4.u32 {{%r0, %r1, %r2, _}}, %tid; mad.lo.u32 %r0, %r1, 100, %r0;
    mul.wide.u32 %d0, %r1, 32; mov.u32 %r3, %tid.x; mul.wide.u32 %d1, %r3, 4; add.u64 %d0, %d0, %d1;
    add.u64 %d0, %o, %d0; st.global.u32 [%d0], %r0;"""
    out = run(body, {"o": np.zeros(32, np.uint32)}, block=(8, 4, 1))["o"]
    assert out.tolist() == [x + 100 * y for y in range(4) for x in range(8)]
