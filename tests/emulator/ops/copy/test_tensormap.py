"""Tensor maps that a kernel changes: each field, the copies that use them, and the fences that they need."""

from __future__ import annotations

import re
import struct
from dataclasses import replace

import numpy as np
import pytest

from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.machine.tensor_map import decode, encode, replaced
from layoutgemm.errors import EmulatorError, PtxError
from tests.emulator.ops.copy.tensor_copies import (
    BARRIER,
    LOAD,
    OUT,
    POLICIES,
    SHARED,
    WAIT,
    at,
    box_of,
    swizzled,
    tiled,
)
from tests.emulator.run_ptx import Result, run

STRIDES = (2048, 1 << 21, 1 << 24, 1 << 27)
BASE = TensorMap(dtype("u16"), (1000, 900, 7, 6, 5), STRIDES, (32, 8, 2, 1, 1), (1,) * 5, "64B")
# field, dimension, value as PTX takes it -> the map that it makes
CHANGES = [
    *[("global_dim", i, 64, {"extents": (*BASE.extents[:i], 64, *BASE.extents[i + 1 :])}) for i in range(5)],
    *[
        ("global_stride", i, (3 + i) << 30, {"strides": (*BASE.strides[:i], (3 + i) << 30, *BASE.strides[i + 1 :])})
        for i in range(4)
    ],
    *[("box_dim", i, 16, {"box": (*BASE.box[:i], 16, *BASE.box[i + 1 :])}) for i in range(5)],
    *[("element_stride", i, 3, {"steps": (*BASE.steps[:i], 3, *BASE.steps[i + 1 :])}) for i in range(1, 5)],
    ("rank", 0, 2, {"extents": BASE.extents[:3], "strides": BASE.strides[:2], "box": BASE.box[:3], "steps": (1,) * 3}),
    ("swizzle_mode", 0, 3, {"swizzle": "128B"}),
    ("swizzle_mode", 0, 0, {"swizzle": "none"}),
    ("elemtype", 0, 6, {"dtype": dtype("f16")}),
    ("elemtype", 0, 10, {"dtype": dtype("bf16")}),
]


def words(content: bytes) -> tuple[int, ...]:
    """Those that say something: what uses words 16 and 18 is not known."""
    found = struct.unpack("<32I", content)
    return (*found[:15], *found[19:])


@pytest.mark.parametrize("name,dimension,value,change", CHANGES, ids=lambda x: "" if isinstance(x, dict) else str(x))
def test_a_replaced_field_is_the_one_that_the_driver_would_write(name, dimension, value, change):
    made = replaced(encode(BASE, 1 << 40), name, dimension, value)
    assert decode(made) == (replace(BASE, **change), 1 << 40)
    if name != "rank":  # which leaves the dimensions that are no more where they were
        assert words(made) == words(encode(replace(BASE, **change), 1 << 40))


# What tensormap.replace made of BASE on an H200 (driver 580.159.04, CUDA 13.0): field, dimension, value -> the words of
# the map that changed. It has no swizzle_atomicity.
H200 = [
    ("global_address", 0, 0x7FFF12345680, {0: 0x12345680, 1: 0x7FFF}),
    *[("global_dim", i, 64, {8 + i: 0x3F}) for i in range(5)],
    ("global_dim", 0, 0, {8: 0xFFFFFFFF}), ("global_dim", 1, 0, {9: 0xFFFFFFFF}),
    *[("global_stride", i, (3 + i) << 30, {3 + i: (3 + i) << 26}) for i in range(4)],
    ("global_stride", 0, 0x5000000030, {3: 0x3, 7: 0x5}),
    ("box_dim", 0, 16, {13: 0x0F000000}), ("box_dim", 1, 16, {14: 0x10F}), ("box_dim", 2, 16, {14: 0xF07}),
    ("box_dim", 3, 16, {14: 0xF0107}), ("box_dim", 4, 16, {14: 0xF000107}),
    ("element_stride", 0, 3, {13: 0x1F000002}), ("element_stride", 1, 3, {13: 0x1F000010}),
    ("element_stride", 2, 3, {13: 0x1F000080}), ("element_stride", 3, 3, {13: 0x1F000400}),
    ("element_stride", 4, 3, {13: 0x1F002000}),
    ("rank", 0, 2, {2: 0x440A0}),
    ("swizzle_mode", 0, 0, {2: 0x400C0}), ("swizzle_mode", 0, 1, {2: 0x420C0}), ("swizzle_mode", 0, 2, {}),
    ("swizzle_mode", 0, 3, {2: 0x460C0}),
    ("elemtype", 0, 0, {2: 0x44040}), ("elemtype", 0, 1, {}), ("elemtype", 0, 2, {2: 0x44140}),
    ("elemtype", 0, 3, {2: 0x441C0}), ("elemtype", 0, 4, {2: 0x44240}), ("elemtype", 0, 5, {2: 0x442C0}),
    ("elemtype", 0, 6, {2: 0x44340}), ("elemtype", 0, 7, {2: 0x443C0}), ("elemtype", 0, 8, {2: 0x44440}),
    ("elemtype", 0, 9, {2: 0x444C0}), ("elemtype", 0, 10, {2: 0x44540}), ("elemtype", 0, 11, {2: 0x543C0}),
    ("elemtype", 0, 12, {2: 0x54440}),
    ("fill_mode", 0, 1, {2: 0x4C0C0}), ("interleave_layout", 0, 1, {2: 0x448C0}),
    ("interleave_layout", 0, 2, {2: 0x450C0}),
]  # fmt: skip


def test_replaced_fields_equal_an_h200():
    # The device's map was written with promotion to 128 bytes in L2.
    before = struct.unpack("<32I", encode(replace(BASE, l2_promotion="128B"), 1 << 40))
    for name, dimension, value, change in H200:
        made = struct.unpack("<32I", replaced(struct.pack("<32I", *before), name, dimension, value))
        assert {i: new for i, (old, new) in enumerate(zip(before, made, strict=True)) if old != new} == change, name


def test_other_fields():
    found = encode(replace(BASE, dtype=dtype("f16")), 1 << 40)
    assert decode(replaced(found, "global_address", 0, 0x7FFF_1234_5680))[1] == 0x7FFF_1234_5680
    assert decode(replaced(found, "fill_mode", 0, 1))[0].oob_fill == "nan"
    wide = replaced(replaced(found, "swizzle_mode", 0, 3), "swizzle_atomicity", 0, 1)
    assert decode(wide)[0].swizzle == "128B, atom 32B"
    floats = encode(replace(BASE, dtype=dtype("f32"), box=(16, 8, 2, 1, 1)), 1 << 40)
    assert decode(replaced(floats, "elemtype", 0, 11))[0].dtype.name == "tf32"
    with pytest.raises(EmulatorError, match="interleaved"):
        decode(replaced(found, "interleave_layout", 0, 1))
    for name, value in (("rank", 5), ("box_dim", 257), ("box_dim", 0), ("global_stride", 8), ("global_stride", 1 << 40),
                        ("element_stride", 9), ("swizzle_mode", 4), ("fill_mode", 2), ("elemtype", 16)):  # fmt: skip
        with pytest.raises(EmulatorError, match=f"replace.{name} with {value}"):
            replaced(found, name, 0, value)


# Thread 0 brings the barrier up; 32 lanes copy the map at %map to shared memory, change it there, and publish it.
HEAD = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; add.u32 %r2, %r1, {BARRIER}; setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r2], 1; @%p0 fence.mbarrier_init.release.cluster;
add.u32 %r20, %r1, {BARRIER + 128}; shl.b32 %r21, %r0, 2; add.u32 %r22, %r20, %r21; cvt.u64.u32 %d20, %r21;
add.u64 %d20, %d20, %map; ld.global.b32 %r23, [%d20]; st.shared.b32 [%r22], %r23; bar.warp.sync -1;
"""
REPLACE = """@%p0 tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%r20], %second;
@%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r20], 0, 40;
@%p0 tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%r20], 1, 30;
@%p0 tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%r20], 0, 80;
bar.warp.sync -1;
"""
COPY_RELEASE = "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
PUBLISH = f"{COPY_RELEASE} [%work], [%r20], 128;\n"
ACQUIRE = "fence.proxy.tensormap::generic.acquire.gpu [%work], 128;\n"
COPY = f"""bar.sync 0; mov.u32 %r10, 1024; @!%p0 bra WAIT;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;
{LOAD.format(rank=2)} [%r1], [%work, {{8, 16}}], [%r2];
{WAIT} {OUT}"""


def setting() -> tuple[TensorMap, dict[str, np.ndarray], np.ndarray]:
    """The changed map, the buffers, and the expected result of the copy."""
    first, memory = tiled("u16", (64, 64), (32, 16), "64B")
    second, other = tiled("u16", (40, 30), (32, 16), "64B")
    other = np.random.default_rng(9).integers(0, 256, other.size, dtype=np.uint8)
    buffers = {
        "map": np.frombuffer(encode(first, at(1)), np.uint8).copy(), "tensor": memory, "second": other,
        "work": np.zeros(128, np.uint8), "out": np.zeros(1024, np.uint8),
    }  # fmt: skip
    return second, buffers, swizzled(box_of(second, other, (8, 16)).reshape(-1).view(np.uint8), "64B")


def change(body: str, block: int = 32, policy: Policy | None = None) -> tuple[Result, bool]:
    _, buffers, want = setting()
    found = run(body, buffers, shared=SHARED, block=block, policy=policy)
    return found, bool((found["out"] == want).all())


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: f"{p.pick} {p.loads}")
def test_a_map_changed_in_shared_memory(policy: Policy):
    found, right = change(HEAD + REPLACE + PUBLISH + ACQUIRE + COPY, policy=policy)
    assert found.kinds == [] and right
    second, _, _ = setting()
    assert decode(found["work"].tobytes()) == (second, at(2))


def test_a_map_of_an_empty_group_is_made_but_not_used():
    """An H200 makes the map, and reports an illegal instruction for its load (CUDA 13)."""
    empty = REPLACE.replace("[%r20], 1, 30;", "[%r20], 1, 0;") + PUBLISH + ACQUIRE
    found = run(HEAD + empty, setting()[1], shared=SHARED, block=32)
    assert found.kinds == [] and found["work"].view(np.uint32)[9] == 0xFFFFFFFF
    with pytest.raises(EmulatorError, match=r"4294967296.*: 2\^32 is how a map says 0"):
        change(HEAD + empty + COPY)


def test_a_map_at_a_multiple_of_64_bytes():
    """Structures in shared memory align maps to 64 bytes in some kernels for Hopper."""
    body = HEAD.replace(f"%r1, {BARRIER + 128};", f"%r1, {BARRIER + 192};") + REPLACE + PUBLISH + ACQUIRE + COPY
    assert body.count(f"%r1, {BARRIER + 192};") == 1 and BARRIER % 128 == 0
    _, buffers, want = setting()
    found = run(body, buffers, shared=SHARED + 64, block=32)
    assert found.kinds == [] and (found["out"] == want).all()
    with pytest.raises(EmulatorError, match="shared offset"):
        run(body, buffers, shared=BARRIER + 256, block=32)  # the map's second half lies outside


IN_PLACE = REPLACE.replace("shared::cta", "global").replace("[%r20]", "[%work]")
# The lanes copy the map to global memory by ordinary stores, one of them changes it there.
GLOBAL = "cvt.u64.u32 %d21, %r21; add.u64 %d21, %d21, %work; st.global.b32 [%d21], %r23; bar.warp.sync -1;" + IN_PLACE
NO_ACQUIRE = "no fence.proxy.tensormap::generic.acquire"
RELEASE = "fence.proxy.tensormap::generic.release.gpu;\n"


def test_a_map_changed_in_global_memory():
    found, right = change(HEAD + GLOBAL + RELEASE + ACQUIRE + COPY)
    assert found.kinds == [] and right
    branch = GLOBAL.replace(
        IN_PLACE, "@!%p0 bra AFTER; " + IN_PLACE.replace("@%p0 ", "").replace("bar.warp.sync -1;", "") + "AFTER: "
    )
    found, right = change(HEAD + branch + RELEASE + ACQUIRE + COPY)  # one lane's change, the warp's fences
    assert found.kinds == [] and right
    generic = GLOBAL.replace(".global.b1024", ".b1024")
    found, right = change(HEAD + generic + RELEASE + ACQUIRE + COPY)
    assert found.kinds == [] and right


@pytest.mark.parametrize(
    "body,says",
    (
        (HEAD + REPLACE + PUBLISH + COPY, NO_ACQUIRE),
        (HEAD + REPLACE + ACQUIRE + PUBLISH + COPY, NO_ACQUIRE),
        (HEAD + REPLACE + PUBLISH + ACQUIRE.replace("%work", "%map") + COPY, NO_ACQUIRE),
        (HEAD + GLOBAL + ACQUIRE + COPY, "was not released to the copy engine"),
        (HEAD + GLOBAL + RELEASE + COPY, NO_ACQUIRE),
        (HEAD + GLOBAL + ACQUIRE + RELEASE + COPY, NO_ACQUIRE),
        (HEAD + GLOBAL + RELEASE + ACQUIRE + IN_PLACE + COPY, "was not released to the copy engine"),
    ),
)
def test_each_fence_is_needed(body: str, says: str):
    found, _ = change(body)
    assert found.kinds == ["race"] and says in found.findings[0].message, found.findings
    assert found.findings[0].text.startswith("@") or "cp.async.bulk.tensor" in found.findings[0].text


def test_another_warp_that_copies_has_to_know_of_the_acquire():
    """Warp 1 changes the map and acquires it; warp 0 copies after a barrier, or without it."""
    split = "setp.ge.u32 %p5, %r0, 32; @!%p5 bra HERE; and.b32 %r0, %r0, 31; setp.eq.u32 %p0, %r0, 0;"
    rest = HEAD.partition("add.u32 %r20")
    begin, publish = rest[0], rest[1] + rest[2] + REPLACE + PUBLISH + ACQUIRE
    body = begin + split + publish + "BARRIER @%p5 exit; HERE: OTHER" + COPY.replace("bar.sync 0;", "")
    ordered = body.replace("BARRIER", "bar.arrive 1, 64;").replace("OTHER", "bar.sync 1, 64; ")
    found, right = change(ordered, 64)
    assert found.kinds == [] and right
    early = ordered.replace(ACQUIRE, "").replace("@%p5 exit;", ACQUIRE + "@%p5 exit;")
    assert change(early, 64)[0].kinds == ["race"]


def test_shared_memory_is_watched():
    rest = REPLACE + PUBLISH + ACQUIRE + COPY
    few = "setp.lt.u32 %p6, %r0, WORDS; @%p6 st.shared.b32 [%r22]"
    found, _ = change(HEAD.replace("st.shared.b32 [%r22]", few.replace("WORDS", "15")) + rest)
    assert found.kinds[0] == "uninitialised" and "tensormap.replace" in found.findings[0].message
    found, right = change(HEAD.replace("st.shared.b32 [%r22]", few.replace("WORDS", "16")) + rest)
    assert found.kinds == [] and right  # the first 64 bytes have all fields
    for policy in (Policy(fill=0xFF), Policy(fill=0x40)):  # the others do not make a result of what nothing wrote
        buffers = {**setting()[1], "work": np.full(128, 7, np.uint8)}
        sixteen = HEAD.replace("st.shared.b32 [%r22]", few.replace("WORDS", "16"))
        found = run(sixteen + rest, buffers, shared=SHARED, block=32, policy=policy)
        assert found.kinds == [] and (found["work"][64:] == 7).all() and (found["work"][:64] != 7).any()
    found, _ = change(HEAD + rest.replace("tensormap.cp_fence", "@%p0 tensormap.cp_fence"))
    assert found.kinds[0] == "divergence"
    # Another warp reads the map while it is changed, or writes it while it is published.
    for access, where in (("ld.shared.b32 %r9, [%r20];", REPLACE), ("st.shared.b32 [%r20], %r20;", PUBLISH)):
        begin = HEAD.replace("bar.warp.sync -1;", "").replace("st.shared", "@!%p5 st.shared")
        begin = re.sub("@%p0 mbarrier.init.*\n", "", begin)
        begin = begin.replace("setp.eq.u32", "setp.ge.u32 %p5, %r0, 32; and.b32 %r0, %r0, 31; setp.eq.u32")
        rest = REPLACE + "bar.sync 2;" if where is PUBLISH else ""
        rest = rest.replace("@%p0", "@%p7")
        body = f"{begin} not.pred %p7, %p5; and.pred %p7, %p7, %p0; bar.sync 1; {rest} @%p5 bra OTHER; {where} bra END;"
        found, _ = change(f"{body} OTHER: {access} END:", 64)
        assert found.kinds == ["race"] and "tensormap." in found.findings[0].message, found.findings


@pytest.mark.parametrize(
    "old,new",
    (
        ("tile.global_address", "im2col.global_address"),
        ("tile.global_address", "tile.base"),
        ("b1024.b64", "b1024.b32"),
        ("b1024", "b512"),
        ("[%r20], 0, 40", "[%r20], 5, 40"),
        ("[%r20], 0, 80", "[%r20], 4, 80"),
        ("[%r20], 0, 40", "[%r20], 40"),
        ("[%r20], 0, 40", "[%r20], %r0, 40"),
        ("[%r20], 128;", "[%r20], 64;"),
        (".release.gpu.sync", ".acquire.gpu.sync"),
        ("acquire.gpu [%work], 128", "acquire.gpu [%work], 64"),
        ("acquire.gpu [%work], 128", "acquire.gpu"),
        ("acquire.gpu [%work]", "weak.gpu [%work]"),
        ("shared::cta.b1024", "shared::cluster.b1024"),
    ),
)
def test_unknown_forms_are_refused_at_load(old: str, new: str):
    body = HEAD + REPLACE + PUBLISH + ACQUIRE + COPY
    assert old in body
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        change(body.replace(old, new))


@pytest.mark.parametrize(
    "old,new,says",
    (
        ("[%r20], 0, 80", "[%r20], 0, 72", "global_stride with 72"),
        ("mov.u32 %r0, %tid.x;", "mov.u32 %r0, %tid.x; add.u64 %work, %work, 32;", "multiple of 64"),
        ("[%r20], 1, 30", "[%r20], 1, 300", "reaches to byte"),
        ("[%r20], %second", "[%r20], %map", "reaches to byte"),
    ),
)
def test_misuse_is_an_error(old: str, new: str, says: str):
    body = HEAD + REPLACE + PUBLISH + ACQUIRE + COPY
    assert old in body
    with pytest.raises(EmulatorError, match=says):
        change(body.replace(old, new))
