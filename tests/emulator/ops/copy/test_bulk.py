"""Bulk copies, reductions, asynchronous stores: data, mbarriers, groups, and what is said where a step is left out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import DeadlockError, EmulatorError, PtxError
from tests.emulator.run_ptx import run

LATE, EARLY = Policy(), Policy(loads="early", stores="early")
BOTH = pytest.mark.parametrize("policy", [LATE, EARLY], ids=["late", "early"])
# An mbarrier of one arrival at %r20, 512 bytes of shared memory at %r29; lane 0 alone in %p0.
HEAD = """
mov.u32 %r30, %tid.x; mov.u32 %r29, smem; mov.u32 %r20, fixed; mul.wide.u32 %d30, %r30, 16;
mad.lo.u32 %r10, %r30, 16, %r29; setp.eq.u32 %p0, %r30, 0; add.s64 %d1, %out, %d30;
@%p0 mbarrier.init.shared.b64 [%r20], 1; @%p0 fence.mbarrier_init.release.cluster; bar.sync 0;
"""
EXPECT = "@%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 512;"
LOAD = "@%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r29], [%a], 512, [%r20];"
WAIT = "wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0; @!%p2 bra wait;"
BACK = "ld.shared.v4.b32 {%r0, %r1, %r2, %r3}, [%r10]; st.global.v4.b32 [%d1], {%r0, %r1, %r2, %r3};"


def buffers() -> dict[str, np.ndarray]:
    a = np.random.default_rng(1).integers(0, 256, 1024, dtype=np.uint8)
    return {"a": a, "out": np.zeros(1024, np.uint8)}


def go(body: str, policy: Policy = LATE, **more):
    return run(HEAD + body, buffers(), shared=1024, static=16, policy=policy, **more)


@BOTH
def test_a_load_counts_down_its_mbarrier(policy):
    result = go(EXPECT + LOAD + WAIT + BACK, policy)
    assert np.array_equal(result["out"][:512], result["a"][:512]) and not result.findings
    same = LOAD.replace("shared::cluster", "shared::cta").replace("::bytes ", "::bytes.L2::cache_hint ")
    assert not go(EXPECT + "mov.u64 %d9, 0;" + same.replace("[%r20];", "[%r20], %d9;") + WAIT + BACK, policy).findings


@BOTH
def test_a_load_that_is_not_waited_for(policy):
    assert "race" in go(EXPECT + LOAD + BACK + WAIT, policy).kinds
    with pytest.raises(DeadlockError, match=r"mbarrier\.try_wait"):
        go(EXPECT.replace("512", "528") + LOAD + WAIT + BACK, policy)


def test_an_initialisation_without_a_fence():
    bare = HEAD.replace("@%p0 fence.mbarrier_init.release.cluster; ", "") + EXPECT + LOAD + WAIT + BACK
    for policy, kind in ((Policy(), "lint"), (Policy(fences="writers"), "race"), (Policy(strict=True), "race")):
        (found,) = run(bare, buffers(), shared=1024, static=16, policy=policy).findings
        assert found.kind == kind and "signalled by a bulk copy, and no fence.mbarrier_init" in found.message
        assert ('Policy(fences="writers")' in found.message) == (kind == "lint")
    pair = run(bare, buffers(), shared=1024, static=16, grid=2, cluster=2)
    assert any(x.kind == "race" and "signalled by a bulk copy" in x.message for x in pair.findings)
    fenced = bare.replace("1; bar.sync", "1; @%p0 fence.proxy.async.shared::cta; bar.sync")
    assert not run(fenced, buffers(), shared=1024, static=16).findings


@BOTH
def test_a_load_into_a_buffer_still_being_read_is_a_race(policy):
    next_wait = WAIT.replace("wait:", "more:").replace("bra wait", "bra more").replace(", 0;", ", 1;")
    body = EXPECT + LOAD + WAIT + "xor.b32 %r9, %r30, 32; mad.lo.u32 %r10, %r9, 8, %r29; ld.shared.b32 %r0, [%r10];"
    again = EXPECT + LOAD + next_wait
    assert not go(f"{body} fence.proxy.async.shared::cta; bar.sync 1; {again}", policy, block=64).findings
    assert "race" not in go(f"{body} bar.sync 1; {again}", policy, block=64).kinds
    assert "race" in go(body + again, policy, block=64).kinds
    assert "exit" in go(body + "bar.sync 1;" + EXPECT + LOAD, policy, block=64).kinds  # no thread waits for the second


@BOTH
def test_a_refill_of_what_was_read_without_a_proxy_fence(policy):
    """It rests on practice: PTX asks for a fence between a generic read and the copy that overwrites it."""
    more = WAIT.replace("wait:", "more:").replace("bra wait", "bra more").replace(", 0;", ", 1;")
    read = "xor.b32 %r9, %r30, 32; mad.lo.u32 %r10, %r9, 8, %r29; ld.shared.b32 %r0, [%r10];"
    for fence, kinds in (("", ["lint"]), ("fence.proxy.async.shared::cta;", [])):
        body = f"{EXPECT} {LOAD} {WAIT} {read} {fence} bar.sync 1; {EXPECT} {LOAD} {more}"
        assert go(body, policy, block=64).kinds == kinds
        assert go(body, replace(policy, strict=True), block=64).kinds == ["race" for _ in kinds]
        late = f"{EXPECT} {LOAD} {WAIT} {read} bar.sync 1; {fence} {EXPECT} {LOAD} {more}"
        assert go(late, replace(policy, strict=True), block=64).kinds == ["race" for _ in kinds]


STORE = "cp.async.bulk.global.shared::cta.bulk_group [%out], [%r29], 512;"
FILL = """
mul.wide.u32 %d31, %r30, 16; add.s64 %d0, %a, %d31; ld.global.v4.b32 {%r0, %r1, %r2, %r3}, [%d0];
st.shared.v4.b32 [%r10], {%r0, %r1, %r2, %r3};
"""
FENCE = "fence.proxy.async.shared::cta; bar.sync 1;"
GROUP = "@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group 0;"


@BOTH
def test_a_store_and_its_group(policy):
    result = go(FILL + FENCE + "@%p0 " + STORE + GROUP, policy)
    assert np.array_equal(result["out"][:512], result["a"][:512]) and not result.findings
    assert result.machine.counts.bytes["shared to global"] == 512


@BOTH
def test_a_store_needs_a_fence_before_and_a_wait_after(policy):
    store = "@%p0 " + STORE
    assert "race" in go(FILL + "bar.sync 1;" + store + GROUP, policy).kinds  # no proxy fence
    wide = {"block": 64}
    swapped = "xor.b32 %r10, %r30, 1; mad.lo.u32 %r10, %r10, 16, %r29;" + FILL
    whole = STORE.replace("512", "1024")
    assert not go(swapped + FENCE + "@%p0 " + whole + GROUP, policy, **wide).findings
    assert "race" in go(swapped + "fence.proxy.async.shared::cta;" + "@%p0 " + whole + GROUP, policy, **wide).kinds
    assert "race" in go(FILL + FENCE + store + "bar.sync 1;" + FILL + GROUP, policy).kinds  # overwritten while read
    read = "@%p0 cp.async.bulk.commit_group; @%p0 cp.async.bulk.wait_group.read 0; bar.sync 1;"
    assert not go(FILL + FENCE + store + read + FILL, policy).findings
    assert "race" in go(FILL + FENCE + store + read.replace("read 0", "read 1") + FILL, policy).kinds
    assert "exit" in go(FILL + FENCE + store, policy).kinds  # ends before the engine has read
    assert "exit" in go(FILL + FENCE + store + GROUP.replace("wait_group 0", "wait_group 1"), policy).kinds
    # The whole warp waits, but the group is lane 0's: the others' waits say nothing.
    alone = "setp.ne.u32 %p3, %r30, 0; @%p0 cp.async.bulk.commit_group; @%p3 cp.async.bulk.wait_group 0;"
    assert "exit" in go(FILL + FENCE + store + alone, policy).kinds
    assert "exit" in go(FILL + FENCE + store + alone.replace("@%p0 ", ""), policy).kinds


def test_a_store_of_unwritten_bytes():
    result = go("@%p0 " + STORE + GROUP)
    assert result.kinds == ["uninitialised"]


def test_a_byte_mask():
    masked = STORE.replace(".bulk_group", ".bulk_group.cp_mask").replace("512;", "512, %h0;")
    result = go(FILL + FENCE + "mov.u16 %h0, 0x00F1; @%p0 " + masked + GROUP, target="sm_100a")
    keep = np.tile((0x00F1 >> np.arange(16) & 1).astype(bool), 32)
    assert np.array_equal(result["out"][:512], np.where(keep, result["a"][:512], 0))


@pytest.mark.parametrize(
    ("form", "dtype", "function"),
    [
        ("add.u32", np.uint32, np.add), ("min.s32", np.int32, np.minimum), ("max.u64", np.uint64, np.maximum),
        ("xor.b32", np.uint32, np.bitwise_xor), ("and.b64", np.uint64, np.bitwise_and), ("add.f32", np.float32, np.add),
        ("add.noftz.f16", np.float16, np.add), ("min.f16", np.float16, np.minimum), ("add.f64", np.float64, np.add),
    ],
)  # fmt: skip
def test_reductions_into_global_memory(form, dtype, function):
    rng = np.random.default_rng(4)
    count = 512 // np.dtype(dtype).itemsize
    a, out = (rng.integers(0, 100, count).astype(dtype) for _ in range(2))
    want = function(out, a)
    text = STORE.replace("cp.async", "cp.reduce.async").replace(".bulk_group", f".bulk_group.{form}")
    result = run(HEAD + FILL + FENCE + "@%p0 " + text + GROUP, {"a": a, "out": out}, shared=1024, static=16)
    assert np.array_equal(out, want) and not result.findings


CLUSTER = "mov.u32 %r25, %cluster_ctarank; xor.b32 %r24, %r25, 1;"
ARRIVED = "fence.mbarrier_init.release.cluster; barrier.cluster.arrive; barrier.cluster.wait;"
ENDING = "barrier.cluster.arrive; barrier.cluster.wait;"


@BOTH
def test_a_copy_to_the_other_block(policy):
    body = (
        CLUSTER
        + ARRIVED
        + EXPECT
        + FILL
        + FENCE
        + """
    add.u32 %r19, %r29, 512; mapa.shared::cluster.u32 %r22, %r19, %r24; mapa.shared::cluster.u32 %r23, %r20, %r24;
    @%p0 cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%r22], [%r29], 512, [%r23];
    """
        + WAIT
        + "add.u32 %r10, %r10, 512; mul.wide.u32 %d5, %r25, 512; add.s64 %d1, %d1, %d5;"
        + BACK
    )
    start = "mov.u32 %r26, %cluster_ctarank; mul.wide.u32 %d6, %r26, 512; add.s64 %a, %a, %d6;"
    result = go(start + body + ENDING, policy, grid=2, cluster=2)
    assert np.array_equal(result["out"], np.roll(result["a"], 512))
    assert not result.findings
    # A block may end only when its memory has been read, which the other's barrier alone says.
    assert "exit" in go(start + body, policy, grid=2, cluster=2).kinds
    with pytest.raises(EmulatorError, match="is not in the block that is written"):
        go(start + body.replace("[%r23];", "[%r20];") + ENDING, policy, grid=2, cluster=2)


@BOTH
def test_multicast(policy):
    body = (
        CLUSTER
        + ARRIVED
        + EXPECT
        + """
    setp.eq.u32 %p3, %r25, 0; and.pred %p3, %p3, %p0; mov.u16 %h0, 3;
    @%p3 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
      [%r29], [%a], 512, [%r20], %h0;
    """
        + WAIT
        + "mul.wide.u32 %d5, %r25, 512; add.s64 %d1, %d1, %d5;"
        + BACK
    )
    result = go(body + ENDING, policy, grid=2, cluster=2)
    assert np.array_equal(result["out"], np.tile(result["a"][:512], 2)) and not result.findings
    with pytest.raises(EmulatorError, match="mask 0x7 in a cluster of 2"):
        go(body.replace("%h0, 3", "%h0, 7"), policy, grid=2, cluster=2)


@BOTH
@pytest.mark.parametrize("form", ["b32", "v2.b32", "v4.b32", "b64"])
def test_st_async(policy, form):
    count, width = (int(form[1]) if form[0] == "v" else 1), int(form[-2:])
    registers = ", ".join(f"%{'d' if width == 64 else 'r'}{40 + i}" for i in range(count))
    size = count * width // 8
    body = (
        CLUSTER
        + ARRIVED
        + EXPECT.replace("512", str(32 * size))
        + f"""
    mul.lo.u32 %r10, %r30, {size}; add.u32 %r10, %r10, %r29;
    mapa.shared::cluster.u32 %r22, %r10, %r24; mapa.shared::cluster.u32 %r23, %r20, %r24;
    mul.wide.u32 %d30, %r30, {size}; add.s64 %d0, %a, %d30; ld.global.{form} {{{registers}}}, [%d0];
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.{form} [%r22], {{{registers}}}, [%r23];
    """
        + WAIT
        + f"""ld.shared.{form} {{{registers}}}, [%r10]; mul.wide.u32 %d5, %r25, 512; add.s64 %d5, %out, %d5;
    add.s64 %d5, %d5, %d30; st.global.{form} [%d5], {{{registers}}};"""
    )
    if count == 1:
        body = body.replace(f"{{{registers}}}", registers)
    result = go(body + ENDING, policy, grid=2, cluster=2)
    for rank in (0, 1):
        assert np.array_equal(result["out"][512 * rank :][: 32 * size], result["a"][: 32 * size])
    assert not result.findings
    assert "race" in go(body.replace(WAIT, "") + ENDING, policy, grid=2, cluster=2).kinds


def test_red_async():
    body = (
        CLUSTER
        + ARRIVED
        + EXPECT.replace("512", "128")
        + """
    @%p0 st.shared.u32 [%r29], 1000; barrier.cluster.arrive; barrier.cluster.wait;
    mapa.shared::cluster.u32 %r22, %r29, %r24; mapa.shared::cluster.u32 %r23, %r20, %r24;
    red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r22], %r30, [%r23];
    """
        + WAIT
        + "ld.shared.u32 %r0, [%r29]; @%p0 st.global.u32 [%out], %r0;"
        + ENDING
    )
    result = go(body, grid=2, cluster=2)
    assert result["out"][:4].view(np.uint32)[0] == 1000 + 31 * 16
    assert "uninitialised" not in result.kinds
    fresh = go(body.replace("@%p0 st.shared.u32 [%r29], 1000;", ""), grid=2, cluster=2)
    assert set(fresh.kinds) == {"uninitialised"} and "reduces shared offset" in fresh.findings[0].message
    unannounced = go(body.replace("128;", "64;"), grid=2, cluster=2)
    assert {"exit"} == set(unannounced.kinds) and "64 bytes came that no expect_tx" in unannounced.findings[0].message


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (LOAD.replace("512", "520"), "520 bytes: they are multiples of 16"),
        (LOAD.replace("512", "0"), "a bulk copy of 0 bytes"),
        (LOAD.replace("[%r29]", "[%r29+8]"), "shared offset 0x808 is not a multiple of 16"),
        (LOAD.replace("[%a]", "[%a+8]"), "global address .* is not a multiple of 16"),
        (LOAD.replace("[%a]", "[%a+1008]"), "512 bytes there are outside"),
        (LOAD.replace("[%r29]", "[%r29+1008]"), "shared offset 0xbf0 and 512 bytes, of 0xc00"),
        (LOAD.replace("[%r20];", "[%r29];"), "no mbarrier is initialised at 0x"),
        ("@%p0 " + STORE.replace("[%out]", "[%out+4]"), "global address .* is not a multiple of 16"),
    ],
)
def test_misuse_is_an_error(text, says):
    with pytest.raises(EmulatorError, match=says):
        go(text)


def test_what_is_predicated_off_is_not_misuse():
    for text in (LOAD.replace("[%a]", "[%a+8]"), LOAD.replace("512", "0"), "@%p0 st.global.b32 [%out+2], %r30;"):
        assert not go("setp.lt.u32 %p0, %r30, 0;" + text).findings


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cp.async.bulk.shared::cluster.global.bulk_group [%r29], [%a], 512, [%r20];", "not emulated"),
        ("cp.async.bulk.global.shared::cta.mbarrier::complete_tx::bytes [%out], [%r29], 512;", "not emulated"),
        ("cp.async.bulk.global.shared::cta.bulk_group [%out], [%r29], 512, %d1;", "3 operands, not 4"),
        ("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.foo [%r29], [%a], 512, [%r20];", "foo"),
        ("cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.add.f32 [%r2], [%r3], 16, [%r4]"
         ";", "no form of cp that the emulator knows"),
        ("st.async.weak.shared::cluster.b32 [%r0], %r1, [%r2];", "no form of st that the emulator knows"),
        ("multimem.ld_reduce.global.f32 %f0, [%d0];", "without a reduction"),
        ("cp.async.bulk.wait_group.foo 0;", "foo"),
    ],
)  # fmt: skip
def test_unknown_forms_are_refused_with_their_line(text, says):
    with pytest.raises(PtxError, match=rf"PTX line \d+: .*{says}"):
        go(text)


NEIGHBOURS = """
mov.u32 %r30, %tid.x; shr.u32 %r31, %r30, 5; mov.u32 %r29, smem; mov.u32 %r20, fixed; setp.eq.u32 %p0, %r30, 0;
and.b32 %r28, %r30, 31; setp.eq.u32 %p1, %r28, 0; mov.u32 %r24, 0;
@%p0 mbarrier.init.shared.b64 [%r20], 1; fence.mbarrier_init.release.cluster; barrier.cluster.arrive;
barrier.cluster.wait; @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], {0};
mad.lo.u32 %r10, %r31, {1}, %r29; mapa.shared::cluster.u32 %r22, %r10, %r24;
mapa.shared::cluster.u32 %r23, %r20, %r24; add.u32 %r31, %r31, 1; cvt.u64.u32 %d31, %r31;
@%p1 {2} [%r22], {3}, [%r23];
wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0; @!%p2 bra wait;
@%p1 ld.shared.b32 %r0, [%r10]; mul.wide.u32 %d1, %r31, 4; add.u64 %d1, %d1, %out;
@%p1 st.global.b32 [%d1+-4], %r0;
"""


def neighbours(stride: int, form: str = "b32", opcode: str = "st.async"):
    kind = "mbarrier::complete_tx::bytes"
    name = f"{opcode}.shared::cluster.{kind}.{form}".replace("red.async.", "red.async.relaxed.cluster.")
    size = int(form[-2:]) // 8
    body = NEIGHBOURS.format(2 * size, stride, name, "%d31" if size == 8 else "%r31")
    if "add" in form:
        body = body.replace("fence.mb", "@%p0 st.shared.b32 [%r29], 0; fence.mb", 1)
    return run(body, {"out": np.zeros(2, np.uint32)}, block=64, shared=64, static=16)


@pytest.mark.parametrize(("form", "strides"), [("b32", (4, 8, 12, 16, 32)), ("b64", (8, 16, 24))])
def test_two_st_async_within_16_bytes(form, strides):
    for stride in strides:
        result = neighbours(stride, form)
        assert not result.findings and result["out"].tolist() == [1, 2], (stride, result.findings)
    assert "race" in neighbours(0, form).kinds


def test_red_async_of_two_warps_on_one_word():
    result = neighbours(0, "add.u32", "red.async")
    assert not result.findings and result["out"].tolist() == [3, 3]


def test_st_async_and_an_ordinary_store_within_16_bytes():
    for place, kinds in (("4", []), ("0", ["race"])):
        at = f"%r29+{place}" if place != "0" else "%r29"
        body = NEIGHBOURS.replace("@%p1 {2}", f"setp.eq.u32 %p3, %r30, 33; @%p3 st.shared.b32 [{at}], 7; @%p0 {{2}}")
        body = body.format(4, 0, "st.async.shared::cluster.mbarrier::complete_tx::bytes.b32", "%r31")
        body = body.replace("@%p1 ld.shared.b32 %r0, [%r10];", "@%p0 ld.shared.b32 %r0, [%r10];").replace(
            "@%p1 st.global", "@%p0 st.global"
        )
        assert run(body, {"out": np.zeros(2, np.uint32)}, block=64, shared=64, static=16).kinds == kinds
