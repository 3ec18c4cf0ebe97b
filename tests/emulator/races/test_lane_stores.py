"""Asynchronous stores and the lanes of their warp: the order required before and after a store.

A store reads shared memory for the lane that issues it. Each other lane fences its own writes, and a barrier orders
them before the store. The bytes that the store still reads stay unchanged until that lane has waited and a barrier has
followed.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.interpreter import Policy
from tests.emulator.ops.copy.tensor_copies import POLICIES, setting
from tests.emulator.run_ptx import LANE, Result, run

STRICT, OFF, WRITERS = Policy(lanes="strict"), Policy(lanes="off"), Policy(fences="writers")
# %r1: the lane's 16 bytes, %r2: its neighbour's, %d1: the lane's place in the output; %p1: lane 0, %p2: the others.
HEAD = """
    mov.u32 %r0, %laneid; mov.u32 %r9, smem; mov.u32 %r5, 7; setp.eq.u32 %p1, %r0, 0; setp.ne.u32 %p2, %r0, 0;
    shl.b32 %r1, %r0, 4; cvt.u64.u32 %d1, %r1; add.u32 %r1, %r1, %r9; add.u64 %d1, %d1, %tensor;
    add.u32 %r2, %r0, 1; and.b32 %r2, %r2, 31; shl.b32 %r2, %r2, 4; add.u32 %r2, %r2, %r9;
"""
FILL, AGAIN = "st.shared.v4.b32 [%r1], {%r0, %r0, %r0, %r0};", "st.shared.v4.b32 [%r1], {%r5, %r5, %r5, %r5};"
FENCE, SYNC = "fence.proxy.async.shared::cta;", "bar.warp.sync -1;"
COMMIT, READ = "cp.async.bulk.commit_group;", "cp.async.bulk.wait_group.read 0;"
UNORDERED = "no bar.warp.sync|nothing orders them"
WAIT = "cp.async.bulk.wait_group 0;"
BOX = TensorMap(dtype("i32"), (128,), (), (128,), (1,), "none")
STORES = {
    "tensor": "cp.async.bulk.tensor.1d.global.shared::cta.tile.bulk_group [%map, {0}], [%r9];",
    "tensor reduction": "cp.reduce.async.bulk.tensor.1d.global.shared::cta.add.tile.bulk_group [%map, {0}], [%r9];",
    "bytes": "cp.async.bulk.global.shared::cta.bulk_group [%tensor], [%r9], 512;",
    "reduction": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%tensor], [%r9], 512;",
}
ROWS = {
    "bytes": "cp.async.bulk.global.shared::cta.bulk_group [%d1], [%r1], 16;",
    "reduction": "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%d1], [%r1], 16;",
}


def go(body: str, policy: Policy | None = None) -> Result:
    found = run(HEAD + body, setting(BOX, np.zeros(512, np.uint8)), shared=8192, policy=policy)
    assert set(found.kinds) <= {"race", "lint"}, found.findings
    return found


def one(text: str, who: str = "@%p1") -> str:
    """Instructions of lane 0, or of others."""
    return " ".join(f"{who} {part.strip()};" for part in text.split(";") if part.strip())


def round_(
    store: str, ready: str = FENCE + SYNC, waited: str = one(READ), free: str = SYNC, rest: str = AGAIN + one(WAIT)
) -> str:
    """All lanes write, lane 0 stores, all lanes write again."""
    return f"{FILL} {ready} {one(store + COMMIT)} {waited} {free} {rest}"


@pytest.mark.parametrize("name", STORES)
def test_a_store_by_one_lane(name: str) -> None:
    store = STORES[name]
    for policy in (*POLICIES, STRICT):
        assert not go(round_(store), policy).findings, policy
    branch = f"{FILL} {FENCE} {SYNC} @!%p1 bra A; {store} {COMMIT} {READ} A: {SYNC} {AGAIN} {one(WAIT)}"
    assert not go(branch, STRICT).findings
    assert not go(round_(store, ready=FENCE + "bar.sync 0;", free="bar.sync 0;"), STRICT).findings
    shuffle = "shfl.sync.idx.b32 %r6, %r0, 0, 31, -1;"
    for wrong, says in (
        (round_(store, ready=FENCE), UNORDERED),
        (round_(store, ready=FENCE + shuffle), UNORDERED),
        (round_(store, ready=SYNC + FENCE), "fence.proxy.async"),  # each lane fenced its own, and lane 0 cannot know
        (round_(store, ready=SYNC + one(FENCE)), "fence.proxy.async"),  # lane 0 fences what it did not write
        (round_(store, free=""), UNORDERED),
        (round_(store, free=shuffle), UNORDERED),
        (round_(store, waited=READ, free=""), UNORDERED),  # the other lanes wait for nothing
        (branch.replace(f"{FENCE} {SYNC}", FENCE), UNORDERED),
        (branch.replace(f"A: {SYNC}", "A:"), UNORDERED),
        (round_(store, free="", rest=one(AGAIN, "@%p2") + one(WAIT)), UNORDERED),
    ):
        for policy in (WRITERS, replace(STRICT, fences="writers")):
            found = go(wrong, policy)
            assert found.findings and re.search(says, found.findings[0].message), (wrong, found.findings)
        assert not go(wrong, replace(OFF, fences="writers")).findings, wrong
    for wrong in (round_(store, waited=""), round_(store, waited=one(READ, "@%p2"))):
        assert go(wrong).findings and go(wrong, OFF).findings  # the lane that issued the store has not waited
    assert "race" not in go(round_(store, ready=SYNC + FENCE)).kinds  # PTX: the reader's fence will do


@pytest.mark.parametrize("name", STORES)
def test_lane_0_alone(name: str) -> None:
    """A lane knows what it wrote, fenced and waited for itself."""
    store = STORES[name].replace("512", "16")
    own = round_(store, free="", rest=one(AGAIN + WAIT)).replace(FILL, one(FILL))
    if "tensor" in name:
        own = f"{FILL} {FENCE} {SYNC} {own}"  # its box is of all lanes' bytes
    assert not go(own.replace(FENCE + SYNC, one(FENCE)), STRICT).findings
    assert not go(own.replace(FENCE + SYNC, FENCE), STRICT).findings


@pytest.mark.parametrize("name", ROWS)
def test_each_lane_stores_its_own(name: str) -> None:
    """A bulk store of each lane: what it wrote, and its own group; no barrier is needed, and none is implied."""
    rows, next_ = ROWS[name], AGAIN.replace("%r1", "%r2")
    body = f"{FILL} {FENCE} {rows} {COMMIT} {READ}"
    for policy in (None, STRICT, OFF):
        assert not go(f"{body} {AGAIN} {WAIT}", policy).findings
        assert not go(f"{body} {SYNC} {next_} {WAIT}", policy).findings
        assert not go(f"{FILL} {SYNC} {FENCE} {rows} {COMMIT} {READ} {AGAIN} {WAIT}", policy).findings
    found = go(f"{body.replace(FENCE, FENCE + SYNC)} {next_} {WAIT}")
    assert "lane 31 does not: no bar.warp.sync tells it" in found.findings[0].message
    others = body.replace("[%r1], 16", "[%r2], 16")  # the neighbour's bytes
    assert go(f"{others} {WAIT}").findings and not go(f"{others} {WAIT}", OFF).findings
    assert not go(f"{others.replace(FENCE, FENCE + SYNC)} {WAIT}", STRICT).findings
    assert go(f"{others.replace(FENCE, SYNC + FENCE)} {WAIT}", WRITERS).findings
    # Lane 0 waits for its own group only, whatever the checker takes a warp for.
    assert go(f"{FILL} {FENCE} {rows} {COMMIT} {one(READ)} {AGAIN} {WAIT}", OFF).kinds == ["race"]


def test_all_lanes_store_the_same() -> None:
    """Each waits for a copy of its own, and others' still read. A tensor store is taken as one of the warp, as the
    hardware runs it, but by the word."""
    for name, policy, races in (
        ("bytes", None, True), ("bytes", STRICT, True), ("tensor", None, False), ("tensor", STRICT, True),
    ):  # fmt: skip
        body = f"{FILL} {FENCE} {SYNC} {STORES[name]} {COMMIT} {READ}"
        found = run(f"{HEAD} {body} {AGAIN} {WAIT}", setting(BOX, np.zeros(512, np.uint8)), shared=8192, policy=policy)
        assert ("race" in found.kinds) == races, (name, policy, found.findings)
        found = run(f"{HEAD} {body} {SYNC} {AGAIN} {WAIT}", setting(BOX, np.zeros(512, np.uint8)), shared=8192)
        assert "race" not in found.kinds


@pytest.mark.parametrize(
    "first, step, kind",
    [("0x3F800000", 1, "lint"), ("0x3F800000", 1 << 12, "lint"), ("0x3F800000", 1 << 20, "race"), ("9", 1, "race")],
)
def test_lanes_whose_sums_differ_by_rounding(first: str, step: int, kind: str) -> None:
    """A reduction's copies of one sum; other values, and integers, are a race."""
    body = f"mov.u32 %r1, %tid.x; mad.lo.u32 %r1, %r1, {step}, {first}; st.shared.b32 [smem], %r1;"
    (one, *_) = found = run(body, block=2, shared=64).findings
    assert [one.kind for one in found] == [kind], found
    assert "different values to address" in one.message and ("by rounding" in one.message) == (kind == "lint")
    assert run(body, block=2, shared=64, policy=Policy(strict=True)).kinds == ["race"]


def test_equal_writes_of_two_warps_are_lint():
    (one,) = run("st.shared.b32 [smem], 7;", block=64, shared=64).findings
    assert one.kind == "lint" and "both write the same bytes" in one.message
    assert run("st.shared.b32 [smem], 7;", block=64, shared=64, policy=WRITERS).kinds == ["race"]
    body = "mov.u32 %r1, %warpid; st.shared.b32 [smem], %r1;"
    assert set(run(body, block=64, shared=64).kinds) == {"race"}
    rounded = body.replace("%warpid;", "%warpid; add.u32 %r1, %r1, 0x3F800000;")
    assert run(rounded, block=64, shared=64).kinds == ["lint"]
    assert run(rounded, block=64, shared=64, policy=Policy(strict=True)).kinds == ["race"]


def test_only_the_bytes_that_both_write_are_compared():
    """Rows beyond the last are clamped to it: each warp writes it, and rows of its own, over an earlier tile."""
    body = f"""{LANE} min.u32 %r1, %r31, 40; mul.lo.u32 %r2, %r1, 4; mov.u32 %r3, smem; add.u32 %r3, %r3, %r2;
    setp.lt.u32 %p0, %r31, 41; @%p0 st.shared.b32 [%r3], 9; bar.sync 0; add.u32 %r4, %r1, 3;
    st.shared.b32 [%r3], %r4;"""
    (one,) = run(body, block=96, shared=256).findings
    assert one.kind == "lint" and "both write the same bytes" in one.message
    late = body.replace("add.u32 %r4, %r1, 3;", "add.u32 %r4, %r31, 3;")
    assert "race" in run(late, block=96, shared=256).kinds
    out = np.zeros(64, np.uint32)
    clamped = f"""{LANE} mov.u32 %r5, %ctaid.x; sub.u32 %r5, 2, %r5; mad.lo.u32 %r1, %r5, 32, %r31;
    min.u32 %r1, %r1, 40; add.u32 %r4, %r1, 3; mul.wide.u32 %d1, %r1, 4;
    add.s64 %d1, %d1, %out; st.global.b32 [%d1], %r4;"""
    assert not run(clamped, {"out": out}, grid=3).findings
    assert "race" in run(clamped.replace("%r4, %r1, 3", "%r4, %r5, 3"), {"out": out}, grid=3).kinds
