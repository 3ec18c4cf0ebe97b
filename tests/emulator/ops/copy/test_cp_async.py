"""cp.async and its groups: sizes, zero fill, waits by group, mbarriers, and the races that a wait prevents."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import EmulatorError, PtxError
from tests.emulator.run_ptx import run

HEAD = """
mov.u32 %r30, %tid.x; mov.u32 %r29, smem; mul.wide.u32 %d30, %r30, 16; add.s64 %d0, %a, %d30; add.s64 %d1, %out, %d30;
mad.lo.u32 %r10, %r30, 16, %r29;
"""
COPY = "cp.async.cg.shared.global [%r10], [%d0], 16;"
COMMIT = "cp.async.commit_group;"
BACK = "ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r10]; st.global.v4.b32 [%d1], {%r0, %r1, %r2, %r3};"
LATE, EARLY = Policy(loads="late"), Policy(loads="early")


def buffers(threads: int = 32) -> dict[str, np.ndarray]:
    a = np.random.default_rng(1).integers(0, 256, 16 * threads * 4, dtype=np.uint8)
    return {"a": a, "out": np.zeros(16 * threads, np.uint8)}


def go(body: str, policy: Policy = LATE, threads: int = 32, **more):
    return run(HEAD + body, buffers(threads), block=threads, shared=16384, policy=policy, **more)


@pytest.mark.parametrize("policy", [LATE, EARLY], ids=["late", "early"])
@pytest.mark.parametrize("wait", ["cp.async.wait_group 0;", "cp.async.wait_all;"])
def test_a_copy_has_landed_after_its_wait(policy, wait):
    result = go(COPY + COMMIT + wait + BACK, policy)
    assert np.array_equal(result["out"], result["a"][:512]) and not result.findings
    assert result.machine.counts.bytes["global to shared"] == 512


@pytest.mark.parametrize("missing", [COMMIT, "cp.async.wait_group 0;", "both"])
def test_without_commit_or_wait_the_read_is_a_race(missing):
    body = COPY + COMMIT + "cp.async.wait_group 0;" + BACK
    body = COPY + BACK if missing == "both" else body.replace(missing, "")
    for policy in (LATE, EARLY):
        assert "race" in go(body, policy).kinds
    assert not np.array_equal(go(body)["out"], go(body)["a"][:512])  # late, it has not landed


def test_wait_all_needs_no_commit():
    assert not go(COPY + "cp.async.wait_all;" + BACK).findings


@pytest.mark.parametrize(("size", "cache"), [(4, "ca"), (8, "ca"), (16, "ca"), (16, "cg")])
@pytest.mark.parametrize("read", [None, 0, 1, 3, 4])
def test_sizes_and_zero_fill(size, cache, read):
    more = "" if read is None else f", {read}"
    body = f"""
    mov.u32 %r5, -1; st.shared.v4.b32 [%r10], {{%r5, %r5, %r5, %r5}};
    cp.async.{cache}.shared::cta.global.L2::128B [%r10], [%d0], {size}{more}; cp.async.wait_all;"""
    result = go(body + BACK)
    want = np.full((32, 16), 0xFF, np.uint8)
    want[:, :size] = result["a"][:512].reshape(32, 16)[:, :size]
    if read is not None:
        want[:, read:size] = 0
    assert np.array_equal(result["out"].reshape(32, 16), want) and not result.findings


def test_source_size_of_each_lane():
    result = go("min.u32 %r5, %r30, 16; cp.async.cg.shared.global [%r10], [%d0], 16, %r5; cp.async.wait_all;" + BACK)
    want = result["a"][:512].reshape(32, 16) * (np.arange(16) < np.arange(32)[:, None])
    assert np.array_equal(result["out"].reshape(32, 16), want)


def test_a_lane_that_reads_nothing_may_have_any_aligned_source():
    body = """setp.gt.u32 %p0, %r30, 7; selp.b32 %r5, 0, 16, %p0; selp.b64 %d0, 1234560, %d0, %p0;
    cp.async.cg.shared.global [%r10], [%d0], 16, %r5; cp.async.wait_all;"""
    result = go(body + BACK)
    assert np.array_equal(result["out"][:128], result["a"][:128]) and not result["out"][128:].any()
    with pytest.raises(EmulatorError, match=r"lies in no buffer|outside|different buffers"):
        go(body.replace("selp.b32 %r5, 0, 16, %p0", "mov.u32 %r5, 16") + BACK)


def test_ignore_src_fills_zeros():
    body = """setp.gt.u32 %p1, %r30, 15; cp.async.cg.shared.global.L2::cache_hint [%r10], [%d0], 16, %p1, %d9;
    cp.async.wait_all;"""
    result = go("mov.u64 %d9, 0;" + body + BACK)
    assert np.array_equal(result["out"][:256], result["a"][:256]) and not result["out"][256:].any()


def test_predicated_lanes_alone_copy():
    body = """mov.u32 %r5, 0; st.shared.v4.b32 [%r10], {%r5, %r5, %r5, %r5}; setp.lt.u32 %p1, %r30, 5;
    @%p1 cp.async.cg.shared.global [%r10], [%d0], 16; cp.async.wait_all;"""
    result = go(body + BACK)
    assert np.array_equal(result["out"][:80], result["a"][:80]) and not result["out"][80:].any()
    assert not result.findings


TWO = COPY + COMMIT + "add.s64 %d0, %d0, 512; add.u32 %r10, %r10, 512;" + COPY + COMMIT


def test_a_wait_counts_the_most_recent_groups():
    first = "sub.u32 %r10, %r10, 512;" + BACK
    assert not go(TWO + "cp.async.wait_group 1;" + first).findings
    assert "race" in go(TWO + "cp.async.wait_group 1;" + BACK).kinds
    assert "race" in go(TWO + "cp.async.wait_group 2;" + first).kinds
    assert not go(TWO + "cp.async.wait_group 0;" + BACK + first).findings
    # An empty group counts.
    assert not go(TWO + COMMIT + "cp.async.wait_group 1;" + BACK).findings
    assert "race" in go(TWO + COMMIT + COMMIT + "cp.async.wait_group 3;" + BACK).kinds


def test_groups_belong_to_threads():
    # One lane waits: its own copy is there, the others' are not.
    half = "setp.lt.u32 %p1, %r30, 16; @%p1 cp.async.wait_group 0;"
    read = "@%p1 ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r10]; @%p1 st.global.v4.b32 [%d1], {%r0, %r1, %r2, %r3};"
    result = go(COPY + COMMIT + half + read)
    assert not result.findings and np.array_equal(result["out"][:256], result["a"][:256])
    assert "race" in go(COPY + COMMIT + half + "bar.warp.sync -1;" + BACK).kinds
    # Lanes that commit more often have other groups.
    more = "setp.lt.u32 %p1, %r30, 16; @%p1 cp.async.commit_group;"
    assert not go(COPY + COMMIT + more + "@%p1 cp.async.wait_group 1;" + read).findings
    other = read.replace("@%p1", "@!%p1")
    assert "race" in go(COPY + COMMIT + more + "cp.async.wait_group 1;" + other).kinds
    assert not go(COPY + COMMIT + more + "cp.async.wait_group 0;" + BACK).findings
    # Copies of lanes that are in different groups when they are issued.
    late = more + COPY + COMMIT + "@%p1 cp.async.wait_group 0;"
    assert not go(late + read).findings
    assert "race" in go(late + other).kinds


def test_lanes_with_separate_waits_share_16_bytes():
    body = """mad.lo.u32 %r10, %r30, 4, %r29; cp.async.ca.shared.global [%r10], [%d0], 4; cp.async.commit_group;
    and.b32 %r9, %r30, 1; setp.eq.u32 %p1, %r9, 0; @%p1 cp.async.wait_group 0;"""
    assert not go(body + "@%p1 ld.shared.b32 %r0, [%r10];").findings
    assert "race" in go(body + "@!%p1 ld.shared.b32 %r0, [%r10];").kinds


def test_a_barrier_after_the_wait_shows_the_copy_to_others():
    other = "bar.sync 0; xor.b32 %r30, %r30, 32; mad.lo.u32 %r10, %r30, 16, %r29;" + BACK
    assert not go(COPY + COMMIT + "cp.async.wait_group 0;" + other, threads=64).findings
    assert "race" in go(COPY + COMMIT + other, threads=64).kinds
    early = COPY + COMMIT + other.replace("bar.sync 0;", "bar.sync 0; cp.async.wait_group 0;")
    assert "race" in go(early, threads=64).kinds


def test_a_buffer_that_others_still_read_is_not_overwritten():
    body = COPY + "cp.async.wait_all; bar.sync 0; xor.b32 %r28, %r30, 32; mad.lo.u32 %r11, %r28, 16, %r29;"
    body += "ld.shared.b32 %r0, [%r11]; BARRIER add.s64 %d0, %d0, 1024;" + COPY + "cp.async.wait_all;"
    assert not go(body.replace("BARRIER", "bar.sync 0;"), threads=64).findings
    assert "race" in go(body.replace("BARRIER", ""), threads=64).kinds


# Mbarriers: warp 0 copies, warp 1 waits.
MBARRIER = """
mov.u32 %r20, fixed; setp.eq.u32 %p0, %r30, 0; @%p0 mbarrier.init.shared.b64 [%r20], COUNT; bar.sync 0;
setp.ge.u32 %p1, %r30, 32; @%p1 bra consumer;
"""
ARRIVE = "cp.async.mbarrier.arriveNOINC.shared.b64 [%r20];"
CONSUME = (
    """
bra done;
consumer: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0; @!%p2 bra consumer;
sub.u32 %r10, %r10, 512; sub.s64 %d1, %d1, 512;
"""
    + BACK
    + "done:"
)


def mbarrier(body: str, count: int = 32, noinc: str = ".noinc", policy: Policy = LATE):
    text = MBARRIER.replace("COUNT", str(count)) + body + CONSUME
    return go(text.replace("NOINC", noinc), policy, 64, static=16)


@pytest.mark.parametrize("policy", [LATE, EARLY, Policy(pick="random", seed=3)], ids=["late", "early", "random"])
def test_an_mbarrier_is_told_of_the_copies(policy):
    result = mbarrier(COPY + ARRIVE, policy=policy)
    assert not result.findings and np.array_equal(result["out"][:512], result["a"][:512])
    # Without .noinc the arrival is one more than the count, and one thread arrives beside it.
    assert not mbarrier(COPY + ARRIVE + "@%p0 mbarrier.arrive.shared.b64 _, [%r20];", 1, "", policy).findings
    # Copies that the thread has waited for already are told of too.
    assert not mbarrier(COPY + "cp.async.wait_all;" + ARRIVE, policy=policy).findings


def test_an_mbarrier_that_is_not_told_of_the_copies():
    plain = "mbarrier.arrive.shared.b64 _, [%r20];"
    assert "race" in mbarrier(COPY + plain).kinds
    assert "race" in mbarrier(ARRIVE + COPY).kinds  # it tells of what came before it
    only = "setp.eq.u32 %p3, %r30, 3; @%p3 " + ARRIVE
    assert "race" in mbarrier(COPY + only, count=1).kinds


# Warp 0 refills one buffer; warps 1 and 2 read it and arrive at the second mbarrier.
RING = """
mov.u32 %r20, fixed; setp.eq.u32 %p0, %r30, 0; mov.u32 %r5, 0;
@%p0 mbarrier.init.shared.b64 [%r20], 32; @%p0 mbarrier.init.shared.b64 [%r20+8], 64; bar.sync 0;
and.b32 %r10, %r30, 31; mad.lo.u32 %r10, %r10, 16, %r29; setp.ge.u32 %p1, %r30, 32; @%p1 bra consumer;
loader: xor.b32 %r6, %r5, 1; WAIT
cp.async.cg.shared.global [%r10], [%d0], 16; cp.async.mbarrier.arrive.noinc.shared.b64 [%r20];
add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 3; @%p4 bra loader; bra done;
consumer: and.b32 %r6, %r5, 1; full: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], %r6; @!%p2 bra full;
ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r10]; mbarrier.arrive.shared.b64 _, [%r20+8];
add.u32 %r5, %r5, 1; setp.lt.u32 %p4, %r5, 3; @%p4 bra consumer;
done:
"""
EMPTY = "and.b32 %r6, %r6, 1; empty: mbarrier.try_wait.parity.shared.b64 %p3, [%r20+8], %r6; @!%p3 bra empty;"


@pytest.mark.parametrize("policy", [LATE, EARLY], ids=["late", "early"])
def test_an_arrival_after_copies_comes_after_what_its_thread_has_waited_for(policy):
    """So warp 1's second arrival comes after warp 2's first."""
    assert not go(RING.replace("WAIT", EMPTY), policy, 96, static=16).findings


def test_a_refill_without_a_wait_is_reported():
    assert "race" in go(RING.replace("WAIT", ""), LATE, 96, static=16).kinds


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cp.async.cg.shared.global [%r10], [%d0], 8;", "copies 16 bytes, not 8"),
        ("cp.async.ca.shared.global [%r10], [%d0], 12;", "not 12"),
        ("cp.async.ca.global.shared [%r10], [%d0], 16;", "not emulated"),
        ("cp.async.ca.shared.global [%r10], [%d0], %r5;", "not a constant"),
        ("cp.async.wait_group;", "has 1 operand, not 0"),
        ("cp.async.wait_all 1;", "has 0 operands, not 1"),
    ],
)
def test_forms_that_ptx_has_not_are_refused(text, says):
    with pytest.raises(PtxError, match=rf"PTX line \d+: .*{says}"):
        go(text)


def test_misuse_is_reported():
    with pytest.raises(EmulatorError, match=r"shared offset 0x\w+8 is not a multiple of 16"):
        go("add.u32 %r10, %r10, 8;" + COPY)
    with pytest.raises(EmulatorError, match=r"global address .* not a multiple of 16"):
        go("add.s64 %d0, %d0, 4;" + COPY)
    with pytest.raises(EmulatorError, match="src-size 17"):
        go("mov.u32 %r5, 17; cp.async.cg.shared.global [%r10], [%d0], 16, %r5;")
    with pytest.raises(EmulatorError, match="outside of it"):
        go("add.s64 %d0, %d0, 1600;" + COPY + "cp.async.wait_all;")
    with pytest.raises(EmulatorError, match="of 0x4400 bytes"):
        go("add.u32 %r10, %r10, 16384;" + COPY)


@pytest.mark.parametrize(("size", "cache"), [(4, "ca"), (8, "ca"), (16, "cg")])
@pytest.mark.parametrize("nothing", ["0", "%r5", "%p2"])
def test_a_lane_that_reads_nothing_needs_an_aligned_address(nothing, size, cache):
    """PTX aligns the address operand to the size; src-size and ignore-src say what is read there."""
    copy = f"cp.async.{cache}.shared.global [%r10], [%d0], {size}, {nothing};"
    last = "setp.eq.u32 %p1, %r30, 31; selp.u32 %r5, 0, 4, %p1; mov.pred %p2, %p1;"
    off = "@%p1 add.s64 %d0, %d0, OFF;"
    outside = off.replace("OFF", str(1 << 20))
    assert not go(last + outside + "@%p1 " + copy + "cp.async.wait_all;").findings
    with pytest.raises(EmulatorError, match=rf"global address 0x\w+2 is not a multiple of {size}"):
        go(last + off.replace("OFF", "2") + copy)
    assert not go(last + off.replace("OFF", "2") + "@!%p1 " + copy + "cp.async.wait_all;").findings  # predicated off


def test_a_source_outside_of_its_buffer_is_named_at_the_copy():
    body = (
        "mov.u32 %r1, smem; cp.async.cg.shared.global [%r1], [%a+64], 16; cp.async.commit_group; cp.async.wait_group 0;"
    )
    with pytest.raises(EmulatorError, match=r"(?s)byte 64 of buffer a.*cp\.async\.cg"):
        run(body, {"a": np.zeros(16, np.float32)}, block=1, shared=64)


@pytest.mark.parametrize(
    ("operands", "says"),
    [
        ("16", "takes a cache policy of 64 bits as its last operand"),
        ("16, %r1", "%r1 is a register of 32 bits, where one of 64 is needed"),
        ("16, %p1", "%p1 is a register of 1 bits, where one of 64 is needed"),
    ],
)
def test_a_cache_hint_needs_its_policy(operands: str, says: str) -> None:
    with pytest.raises(PtxError, match=says):
        go(f"cp.async.cg.shared.global.L2::cache_hint [%r10], [%d0], {operands};")
