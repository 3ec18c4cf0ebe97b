"""Loads, stores and atomics: types and widths, vectors, predicates, spaces, and what is said of a wrong access."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.api import ORDERS, emulate_ptx
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.machine.memory import CtaSharedMemory, GlobalMemory, granules, span
from layoutgemm.errors import EmulatorError, PtxError
from tests.emulator.run_ptx import LANE, lanes, run

HEAD = "mov.u32 %r30, %tid.x; mov.u32 %r29, smem; mul.wide.u32 %d30, %r30, 16; add.s64 %d0, %a, %d30; add.s64 %d1, %out, %d30;"  # noqa: E501
SLOT = "mad.lo.u32 %r28, %r30, 16, %r29;"


def buffers() -> dict[str, np.ndarray]:
    return {"a": np.random.default_rng(2).integers(0, 256, 512, dtype=np.uint8), "out": np.zeros(512, np.uint8)}


def go(body: str, **more):
    return run(HEAD + SLOT + body, buffers(), shared=1024, **more)


@pytest.mark.parametrize(
    ("kind", "letter"), [("b8", "h"), ("b16", "h"), ("b32", "r"), ("b64", "d"), ("f32", "f"), ("f64", "e")]
)
@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("through", ["global", "shared", "generic"])
def test_a_round_trip_of_every_width_and_vector(kind, letter, count, through):
    size = int(kind[1:]) // 8 * count
    if size > 16:
        return
    names = [f"%{letter}{40 + i}" for i in range(count)]
    vector, word = (f"{{{', '.join(names)}}}", f".v{count}") if count > 1 else (names[0], "")
    body = f"ld.global{word}.{kind} {vector}, [%d0];"
    if through == "shared":
        body += f"st.shared{word}.{kind} [%r28], {vector}; mov.b32 %r28, %r28; ld.shared{word}.{kind} {vector}, [%r28];"
    if through == "generic":
        body += f"cvt.u64.u32 %d9, %r28; cvta.shared.u64 %d9, %d9; st{word}.{kind} [%d9], {vector}; ld{word}.{kind} {vector}, [%d9];"  # noqa: E501
    found = go(body + f"st.global{word}.{kind} [%d1], {vector};")
    rows = found["a"].reshape(32, 16)[:, :size]
    assert np.array_equal(found["out"].reshape(32, 16)[:, :size], rows) and not found.findings
    assert not found["out"].reshape(32, 16)[:, size:].any()


def test_signed_loads_extend_to_the_register():
    found = go("ld.global.s8 %r0, [%d0]; st.global.u32 [%d1], %r0; ld.global.u8 %r1, [%d0]; st.global.u32 [%d1+4], %r1;"
               "ld.global.s16 %r2, [%d0]; cvt.s64.s32 %d2, %r2; st.global.u64 [%d1+8], %d2;")  # fmt: skip
    out, a = found["out"].view(np.uint32).reshape(32, 4), found["a"]
    assert np.array_equal(out[:, 0].view(np.int32), a[::16].view(np.int8).astype(np.int32))
    assert np.array_equal(out[:, 1], a[::16].astype(np.uint32))
    assert np.array_equal(found["out"].view(np.int64).reshape(32, 2)[:, 1], a.view(np.int16)[::8].astype(np.int64))


def test_uniform_addresses():
    found = go("ld.global.u32 %r0, [%a+8]; add.u32 %r0, %r0, 1; st.global.u32 [%out], %r0; st.shared.u32 [%r29], %r0;"
               "ld.shared.u32 %r1, [%r29]; st.global.u32 [%d1+4], %r1;")  # fmt: skip
    want = found["a"].view(np.uint32)[2] + np.uint32(1)
    out = found["out"].view(np.uint32).reshape(32, 4)
    assert out[0, 0] == want and (out[:, 1] == want).all() and not found.findings


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("ld.global.u32 %r0, [%d0+512];", "outside of it"),
        ("ld.global.u32 %r0, [16];", "lies in no buffer"),
        ("st.global.u64 [%d1+4], %d0;", "not a multiple of the access's 8 bytes"),
        ("ld.shared.u32 %r0, [%r28+2];", "not a multiple of 4"),
        ("st.shared.u32 [%r28+1024], %r0;", "of 0x800 bytes"),
        ("mov.u32 %r1, 0x1000400; st.shared.u32 [%r1], %r0;", "block 1 of a cluster of 1"),
        ("ld.param.u64 %d2, [a+16];", "parameter bytes 16 to 23, of 16"),
        ("mov.u64 %d2, a; ld.param.u64 %d2, [%d2+9];", "parameter bytes 9 to 16, of 16"),
        ("mov.u64 %d2, a; cvta.param.u64 %d2, %d2; st.u64 [%d2+8], %d2;", "st.u64 writes byte 8 of the parameters"),
    ],
)  # fmt: skip
def test_wrong_accesses(body, says):
    with pytest.raises(EmulatorError, match=says) as caught:
        go("mov.u32 %r0, 1;" + body)
    assert "PTX line" in str(caught.value)


@pytest.mark.parametrize(
    "access",
    ["st.shared.u32 [%d9], %r30; ld.shared::cta.u32 %r0, [%r28];",
     "st.shared.u32 [%r28], %r30; ld.shared.u32 %r0, [%d9];",
     "st.shared.u32 [%r28], 0; bar.warp.sync -1; atom.shared.add.u32 %r0, [%d9], %r30; ld.shared.u32 %r0, [%r28];"],
)  # fmt: skip
def test_a_generic_address_of_shared_memory_is_taken_for_a_shared_one(access):
    """CUDA C++ passes a variable's own address to inline PTX, without `__cvta_generic_to_shared`."""
    body = f"cvt.u64.u32 %d9, %r28; cvta.shared.u64 %d9, %d9; {access} st.global.u32 [%d1], %r0;"
    found = go(body)
    assert np.array_equal(found["out"].view(np.uint32)[::4], np.arange(32))
    assert set(found.kinds) == {"lint"} and "a generic address" in found.findings[0].message
    assert "cvta.to.shared" in found.findings[0].orders
    assert set(go(body, policy=Policy(strict=True)).kinds) == {"protocol"}
    beyond = body.replace("cvta.shared.u64 %d9, %d9;", "cvta.shared.u64 %d9, %d9; add.u64 %d9, %d9, 0x1000000;")
    with pytest.raises(EmulatorError, match="names block 1 of a cluster of 1"):
        go(beyond)


def test_uninitialised_shared_memory():
    found = go("setp.ne.u32 %p0, %r30, 3; @%p0 st.shared.u32 [%r28], %r30; ld.shared.u32 %r0, [%r28];")
    assert found.kinds == ["uninitialised"] and "0x430" in found.findings[0].message
    assert go("setp.ne.u32 %p0, %r30, 3; @%p0 st.shared.u32 [%r28], %r30; @%p0 ld.shared.u32 %r0, [%r28];").kinds == []
    assert go("atom.shared.add.u32 %r0, [%r28], 1;").kinds == ["uninitialised"]
    assert go("st.shared.u32 [%r28], 0; red.shared.add.u32 [%r28], 1;").kinds == []


@pytest.mark.parametrize("space", ["shared", "global"])
@pytest.mark.parametrize(("used", "races"), [((0, 2), False), ((0, 1), True), ((3,), False)])
def test_elements_of_a_vector_that_nothing_reads_race_with_nothing(space, used, races):
    """Compilers join loads of neighbours, and read what lies between them."""
    at = "[%r29]" if space == "shared" else "[%a]"
    start = "setp.lt.u32 %p0, %r30, 32; mov.b32 %r20, 5;"
    if space == "shared":
        start += "setp.eq.u32 %p2, %r30, 0; @%p2 st.shared.v4.b32 [%r29], {%r20, %r20, %r20, %r20}; bar.sync 0;"
    store = f"@%p0 bra $store; ld.{space}.v4.b32 {{%r1, %r2, %r3, %r4}}, {at};"
    store += (
        "".join(f"st.global.u32 [%d1+{4 * n}], %r{1 + n};" for n in used) + "ret; $store: setp.eq.u32 %p1, %r30, 0;"
    )
    store += f"@%p1 st.{space}.u32 {at.replace(']', '+4]')}, %r20;"  # element 1
    found = run(HEAD + SLOT + start + store, {**buffers(), "out": np.zeros(1024, np.uint8)}, block=64, shared=1024)
    assert [finding.kind for finding in found.findings] == ["race"] * races


def test_races_of_ordinary_accesses():
    body = "xor.b32 %r31, %r30, 32; and.b32 %r30, %r30, 31; mad.lo.u32 %r27, %r31, 16, %r29;"
    body = "mad.lo.u32 %r28, %r30, 16, %r29;" + body + "st.shared.u32 [%r28], %r30;"
    read = "ld.shared.u32 %r0, [%r27];"
    more = {"block": 64}
    assert run(HEAD + body + "bar.sync 0;" + read, buffers(), shared=1024, **more).kinds == []
    found = run(HEAD + body + read, buffers(), shared=1024, **more)
    race = next(f for f in found.findings if f.kind == "race")
    assert "ld.shared.u32 at PTX line" in race.message and "st.shared.u32 at PTX line" in race.message
    assert "CTA (0, 0, 0) warp 1" in race.message and "CTA (0, 0, 0) warp 0" in race.message


@pytest.mark.parametrize("space", ["global", "shared"])
@pytest.mark.parametrize(
    ("form", "start", "want"),
    [
        ("add.u32", 5, 5 + sum(range(32))), ("min.s32", 7, -9), ("max.s32", 7, 22), ("min.u32", 7, 0),
        ("max.u32", 7, -1), ("and.b32", -1, 0), ("or.b32", 0, -1), ("xor.b32", 6, 6), ("inc.u32", 3, None),
        ("dec.u32", 3, None), ("add.u64", 1 << 40, (1 << 40) + 496), ("add.f32", None, 496.0),
    ],
)  # fmt: skip
def test_atomics_on_one_place(space, form, start, want):
    name, kind = form.split(".")
    bits = int(kind[1:])
    place = "%out" if space == "global" else "%r29"
    letter = {"u64": "d", "f32": "f"}.get(kind, "r")
    fill = {"u64": "cvt.u64.u32 %d5, %r30;", "f32": "cvt.rn.f32.u32 %f5, %r30;"}.get(kind, "mov.b32 %r5, %r30;")
    if name in ("min", "max", "and", "or") and bits == 32:
        fill = "sub.u32 %r5, %r30, 9;"
    first = f"mov.b{bits} %{letter if kind != 'f32' else 'r'}6, {start or 0};"
    first += f"st.{space}.b{bits} [{place}], %{letter if kind != 'f32' else 'r'}6; bar.warp.sync -1;"
    body = f"{first} {fill} red.{space}.{form} [{place}], %{letter}5; bar.warp.sync -1;"
    body += f"ld.{space}.b{bits} %{letter}7, [{place}];"
    found = go(body + f"st.global.b{bits} [%out], %{letter}7;")
    if want is None:
        old = start
        for i in range(32):
            old = (0 if old >= i else old + 1) if name == "inc" else (i if old == 0 or old > i else old - 1)
        want = old
    view = np.float32 if kind == "f32" else f"u{bits // 8}"
    got = found["out"][: bits // 8].view(view)[0]
    assert got == (want if kind == "f32" else want & (1 << bits) - 1) and not found.findings


def test_atom_gives_the_old_value_and_cas_compares():
    found = go(
        "mov.u32 %r5, 0; st.shared.u32 [%r29], %r5; atom.shared.add.u32 %r6, [%r29], 2; st.global.u32 [%d1], %r6;"
    )
    assert sorted(found["out"].view(np.uint32)[::4].tolist()) == list(range(0, 64, 2))
    found = go("mov.u32 %r5, 10; st.global.u32 [%out], %r5; add.u32 %r7, %r30, 10; add.u32 %r8, %r30, 11;"
               "atom.global.cas.b32 %r6, [%out], %r7, %r8; atom.global.exch.b32 %r9, [%out], %r6;")  # fmt: skip
    assert found["out"].view(np.uint32)[0] == 41


def test_vector_reductions():
    body = "mov.b32 %r9, 0; cvt.rn.f32.u32 %f5, %r30; mul.f32 %f6, %f5, %f5; neg.f32 %f7, %f5; mov.f32 %f8, 0f3F800000;"
    found = go(body + "red.global.add.v4.f32 [%out], {%f5, %f6, %f7, %f8};")
    assert found["out"][:16].view(np.float32).tolist() == [496, 10416, -496, 32]
    found = go(body + "red.relaxed.gpu.global.add.v2.f32 [%out], {%f5, %f6};")
    assert found["out"][:8].view(np.float32).tolist() == [496, 10416]
    halves = "cvt.rn.f16x2.f32 %r5, %f8, %f5; red.global.add.noftz.v2.f16x2 [%out], {%r5, %r5};"
    assert go(body + halves)["out"][:8].view(np.float16).tolist() == [496, 32, 496, 32]
    single = "cvt.rn.bf16x2.f32 %r5, %f8, %f8; red.global.add.noftz.bf16x2 [%out], %r5;"
    assert go(body + single)["out"][:4].view(np.uint16).tolist() == [0x4200, 0x4200]
    with pytest.raises(EmulatorError, match="not a multiple of the access's 16 bytes"):
        go(body + "red.global.add.v4.f32 [%out+8], {%f5, %f6, %f7, %f8};")


@pytest.mark.parametrize("words, values, view, want", [
    ("red.global.v4.f32.add", "{%f5, %f6, %f7, %f8}", np.float32, [496, 10416, -496, 32]),
    ("red.relaxed.sys.global.v2.f32.add", "{%f5, %f6}", np.float32, [496, 10416]),
    ("red.global.v2.f16.add.noftz", "{%h5, %h6}", np.float16, [496, -496]),
    ("red.global.v8.f16.max.noftz", "{%h5, %h6, %h5, %h6, %h5, %h6, %h5, %h6}", np.float16, [31, 0] * 4),
    ("red.global.v2.f16x2.min.noftz", "{%r5, %r5}", np.float16, [0, -31, 0, -31]),
])  # fmt: skip
def test_the_type_of_a_vector_reduction_may_come_before_its_operation(words, values, view, want):
    """The examples of PTX ISA, "red", write it so; the order of its grammar gives the same."""
    body = """cvt.rn.f32.u32 %f5, %r30; mul.f32 %f6, %f5, %f5; neg.f32 %f7, %f5; mov.f32 %f8, 0f3F800000;
    cvt.rn.f16.f32 %h5, %f5; cvt.rn.f16.f32 %h6, %f7; mov.b32 %r5, {%h5, %h6};"""
    size = len(want) * np.dtype(view).itemsize
    for one in (words, words.replace("red", "atom")):
        vector, kind, *operation = one.split(".")[-3 if "noftz" not in one else -4 :]
        grammar = one.removesuffix(f"{vector}.{kind}." + ".".join(operation)) + ".".join((*operation, vector, kind))
        for form in (one, grammar):
            into = values.translate(str.maketrans("5678", "1234")) + ", " if "atom" in form else ""
            found = go(f"{body} {form} {into}[%out], {values};")
            assert found["out"][:size].view(view).tolist() == want and not found.findings, form


def test_an_atomic_operation_without_a_type_is_refused():
    with pytest.raises(PtxError, match=r"red\.global\.add is no form of red that the emulator knows"):
        go("red.global.add [%out], %r30;")


def test_flags_in_global_memory_order():
    body = """setp.ge.u32 %p0, %r30, 32; @%p0 bra READ; st.shared.u32 [%r28], %r30; bar.warp.sync -1;
    st.RELEASE.gpu.global.u32 [%out], 1; bra END;
    READ: ld.ACQUIRE.gpu.global.u32 %r1, [%out]; setp.ne.u32 %p1, %r1, 1; @%p1 bra READ;
    sub.u32 %r28, %r28, 512; ld.shared.u32 %r0, [%r28]; END:"""

    def kinds(release, acquire):
        text = body.replace("RELEASE", release).replace("ACQUIRE", acquire)
        return go(text, block=64, policy=Policy(pick="random")).kinds

    assert kinds("release", "acquire") == []
    assert "race" in kinds("relaxed", "acquire") and "race" in kinds("release", "relaxed")


def test_addresses_of_other_blocks():
    body = """mov.u32 %r20, %cluster_ctarank; st.shared.u32 [%r28], %r20; barrier.cluster.arrive; barrier.cluster.wait;
    xor.b32 %r21, %r20, 1; mapa.shared::cluster.u32 %r22, %r28, %r21; ld.shared::cluster.u32 %r0, [%r22];
    getctarank.shared::cluster.u32 %r23, %r22; mul.wide.u32 %d5, %r20, 8; add.s64 %d5, %d5, %out;
    st.global.u32 [%d5], %r0; st.global.u32 [%d5+4], %r23; barrier.cluster.arrive; barrier.cluster.wait;"""
    found = go(body, grid=2, cluster=2)
    assert found["out"][:16].view(np.uint32).tolist() == [1, 1, 0, 0] and not found.findings
    with pytest.raises(EmulatorError, match="names block 2 of a cluster of 2"):
        go(body.replace("xor.b32 %r21, %r20, 1", "mov.u32 %r21, 2"), grid=2, cluster=2)
    early = body.replace("barrier.cluster.arrive; barrier.cluster.wait;", "", 1)
    assert {"race", "uninitialised"} & set(go(early, grid=2, cluster=2).kinds)


@pytest.mark.parametrize("text", ["st.const.u32 [%d0], %r0;", "ld.global.b128 %d0, [%d1];",
                                  "red.global.mul.u32 [%d0], %r0;", "ld.global.zz.u32 %r0, [%d0];"])  # fmt: skip
def test_unknown_forms_are_refused(text):
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run(text)


def test_memories():
    memory = GlobalMemory()
    first = memory.add("first", np.arange(4, dtype=np.uint8))
    second = memory.add("second", np.arange(8, dtype=np.uint8), offset=16)
    assert second.address % 256 == 16 and memory.find(second.address + 7)[1] == 7
    with pytest.raises(EmulatorError, match="byte 4 of buffer first, which has 4: 2 bytes"):
        memory.find(first.address + 4, 2)
    where = np.array([first.address + 3, second.address + 5])
    assert memory.read(where, 1).tolist() == [[3], [5]]
    memory.write(where, np.array([[8], [9]], np.uint8))
    assert first.data[3] == 8 and second.data[5] == 9
    with pytest.raises(EmulatorError, match="is byte 8 of buffer second"):
        memory.read(np.array([first.address, second.address + 8]), 1)
    with pytest.raises(EmulatorError, match="not contiguous"):
        memory.add("third", np.zeros((4, 4))[:, ::2])
    shared = CtaSharedMemory(40)
    assert shared.size == 48 and (shared.bytes == 0xFF).all()
    shared.write(np.array([0, 8]), np.ones((2, 4), np.uint8))
    assert shared.unwritten(np.array([0, 8]), 4) is None and shared.unwritten(np.array([0, 8]), 8) == 4
    assert span(0, 16) == 1 and span(8, 16) == 3 and granules(np.array([0, 16, 40]), 8) == 0b111


def test_the_buffer_of_a_tensor_that_begins_before_it() -> None:
    memory = GlobalMemory()
    first, second = memory.add("first", np.zeros(64, np.uint8)), memory.add("second", np.zeros(64, np.uint8))
    for address, buffer in (
        (first.address, first), (first.end - 1, first), (first.address - 16, first), (second.address - 4096, second),
        (second.address + 3, second),
    ):  # fmt: skip
        assert memory.near(address) is buffer
    for address, text in ((second.end, "outside of it"), (first.address - 2 * GlobalMemory.GAP, "lies in no buffer")):
        assert memory.near(address, second.address + 5) is second  # far from all: the byte that is used decides
        with pytest.raises(EmulatorError, match=text):
            memory.near(address, address)


HISTOGRAM = """
mov.u32 %r0, %tid.x; mov.u32 %r1, smem; mad.lo.u32 %r2, %r0, 4, %r1; setp.gt.u32 %p1, %r0, 15;
@%p1 bra cleared; st.shared.u32 [%r2], 0;
cleared: bar.sync 0;
mov.u32 %r18, %r0; setp.ge.u32 %p2, %r18, %n; @%p2 bra done;
loop: cvt.u64.u32 %d1, %r18; add.u64 %d1, %d1, %x; ld.global.u8 %r10, [%d1]; mad.lo.u32 %r11, %r10, 4, %r1;
atom.shared.add.u32 %r12, [%r11], 1;
add.u32 %r18, %r18, 64; setp.lt.u32 %p3, %r18, %n; @%p3 bra loop;
done: bar.sync 0;
@%p1 bra end; mul.wide.u32 %d2, %r0, 4; add.u64 %d2, %d2, %h; ld.shared.u32 %r16, [%r2]; red.global.add.u32 [%d2], %r16;
end:
"""


@pytest.mark.parametrize("n", [33, 64, 100, 116, 180, 244, 256, 500])
def test_atomics_of_warps_that_leave_a_loop_lane_by_lane(n):
    """Lanes of a warp part behind an atomic, and so does its event: it stays the event of an atomic."""
    values = np.random.default_rng(n).integers(0, 16, n).astype(np.uint8)

    def ran(body: str):
        return run(body, {"x": values, "h": np.zeros(16, np.uint32)}, block=64, shared=64, n=n)

    done = ran(HISTOGRAM)
    assert not done.findings and np.array_equal(done["h"], np.bincount(values, minlength=16))
    for mutant in (
        HISTOGRAM.replace("cleared: bar.sync 0;", "cleared:"),
        HISTOGRAM.replace("done: bar.sync 0;", "done:"),
        HISTOGRAM.replace("atom.shared.add.u32 %r12, [%r11], 1;", "st.shared.u32 [%r11], %r18;"),
    ):
        assert "race" in ran(mutant).kinds


def test_lanes_index_parameters():
    """nvcc reads an array of a structure so: ld.param by a register, or a generic load behind cvta.param."""
    x = {f"x{i}": 100 + i for i in range(32)}
    at = "mov.u64 %d1, x0; mul.wide.u32 %d2, %r31, 4; add.u64 %d3, %d1, %d2; add.u64 %d4, %a, %d2; mov.u32 %r0, 7;"
    few = "setp.lt.u32 %p0, %r31, 5;"
    either = f"{few} cvta.param.u64 %d3, %d3; selp.b64 %d3, %d3, %d4, %p0;"
    lane, five = np.arange(32), np.arange(32) < 5
    for load, want in (
        ("ld.param.u32 %r0, [%d3];", 100 + lane),
        (f"{few} @%p0 ld.param.u32 %r0, [%d3];", np.where(five, 100 + lane, 7)),
        (f"{few} @%p0 ld.param.u32 %r0, [%d1+4];", np.where(five, 101, 7)),
        (f"{few} @!%p0 ld.param.u32 %r0, [x3];", np.where(five, 7, 103)),
        ("cvta.param.u64 %d3, %d3; ld.u32 %r0, [%d3];", 100 + lane),
        (f"{either} isspacep.param %p1, %d3; selp.u32 %r0, 2, 3, %p1; isspacep.global %p1, %d3; @!%p1 mov.u32 %r0, 9;",
         np.where(five, 2, 3)),
        (f"{either} ld.u32 %r0, [%d3];", np.where(five, 100 + lane, 1)),
    ):  # fmt: skip
        found = run(f"{LANE} {at} {load} st.global.u32 [%d4], %r0;", {"a": lanes(np.uint32, [1] * 32)}, **x)
        assert not found.findings and found["a"].tolist() == want.tolist(), load


TABLE = """
.version 8.0
.target sm_80
.visible .entry k(.param .u64 table, .param .u64 out, .param .u32 at) {
  .reg .b32 %r<3>; .reg .b64 %d<6>;
  ld.param.u64 %d0, [table]; ld.param.u64 %d2, [out]; ld.param.u32 %r1, [at];
  ld.global.u64 %d1, [%d0]; cvt.u64.u32 %d3, %r1; add.u64 %d4, %d1, %d3;
  ld.global.u32 %r0, [%d4]; add.u32 %r2, %r0, 1; st.global.u32 [%d4], %r2; st.global.u32 [%d2], %r0; ret; }
"""


def test_pointers_in_memory_lead_to_the_arrays_of_the_callers():
    held = {"seven": np.array([7, 8], np.uint32)}
    out = np.zeros(1, np.uint32)
    table = np.array([held["seven"].ctypes.data], np.uint64)
    assert emulate_ptx(TABLE, block=1, args=[table, out, 4]).ok
    assert out.tolist() == [8] and held["seven"].tolist() == [7, 9]
    # Each order begins with the same content, so that no order's result depends on the one before it.
    assert emulate_ptx(TABLE, block=1, args=[table, out, 0], policy=ORDERS).ok
    assert out.tolist() == [7] and held["seven"].tolist() == [8, 9]


def test_pointers_in_memory_that_lead_to_no_array_are_refused():
    one, out = np.array([7, 0, 0], np.uint16), np.zeros(1, np.uint32)
    table = np.array([one.ctypes.data], np.uint64)
    for at, message in ((1 << 20, "lies in no buffer"), (4, "leave one")):
        with pytest.raises(EmulatorError, match=message):
            emulate_ptx(TABLE, block=1, args=[table, out, at])
    frozen = np.array([7], np.uint32)
    frozen.flags.writeable = False
    with pytest.raises(EmulatorError, match="read-only"):
        emulate_ptx(TABLE, block=1, args=[np.array([frozen.ctypes.data], np.uint64), out, 0])


def test_lanes_of_one_access_in_several_memories():
    """Generic addresses of global, shared and local memory, and of two blocks, in one instruction."""
    body = SLOT + ".local .align 4 .b8 own[8]; st.shared.u32 [%r28], %r30; mov.b32 %r1, 77; st.local.u32 [own], %r1;"
    body += "and.b32 %r2, %r30, 3; setp.eq.u32 %p0, %r2, 0; setp.eq.u32 %p1, %r2, 1; cvt.u64.u32 %d9, %r28;"
    body += "cvta.shared.u64 %d9, %d9; mov.u64 %d8, own; cvta.local.u64 %d8, %d8; selp.b64 %d9, %d8, %d9, %p1;"
    body += "selp.b64 %d9, %d0, %d9, %p0; ld.u32 %r0, [%d9]; setp.gt.u32 %p2, %r30, 15; @%p2 st.u32 [%d9], %r2;"
    found = run(HEAD + body + "st.global.u32 [%d1], %r0;", buffers(), shared=1024)
    a, out = (found[name].view(np.uint32).reshape(32, 4)[:, 0] for name in ("a", "out"))
    before = buffers()["a"].view(np.uint32).reshape(32, 4)[:, 0]
    assert out.tolist() == [(before[i], 77, i, i)[i % 4] for i in range(32)] and not found.findings
    assert a[16::4].tolist() == [0] * 4 and a[:16:4].tolist() == before[:16:4].tolist()


@pytest.mark.parametrize("uniform", [False, True])
def test_a_shared_address_stays_one_under_cvta_to_shared(uniform):
    """GPUs keep the low 32 bits of an address that is no generic one."""
    source, target = ("%r29", "%a") if uniform else ("%r28", "%d0")
    body = f"cvt.u64.u32 %d9, {source}; cvta.shared.u64 %d8, %d9; cvta.to.shared.u64 %d8, %d8; mov.b32 %r1, 77;"
    body += "cvta.to.shared::cta.u64 %d9, %d9; st.shared.u32 [%d9], %r1; ld.shared.u32 %r2, [%d8];"
    assert np.all(go(body + "st.global.u32 [%d1], %r2;")["out"].view(np.uint32).reshape(32, 4)[:, 0] == 77)
    with pytest.raises(EmulatorError, match="names block"):
        go(f"cvta.to.shared.u64 %d9, {target}; ld.shared.u32 %r2, [%d9];")


def test_lanes_of_one_atomic_in_two_blocks():
    out = np.zeros(2, np.uint32)
    body = "mov.u32 %r30, %tid.x; mov.u32 %r1, %cluster_ctarank; mov.b32 %r9, 0; st.shared.u32 [smem], %r9;"
    sync = "barrier.cluster.arrive; barrier.cluster.wait;"
    body += f"{sync} and.b32 %r2, %r30, 1; mov.u32 %r3, smem; mapa.shared::cluster.u32 %r4, %r3, %r2;"
    body += f"red.shared::cluster.add.u32 [%r4], %r30; {sync} ld.shared.u32 %r5, [smem]; mul.wide.u32 %d0, %r1, 4;"
    found = run(body + "add.s64 %d0, %d0, %out; st.global.u32 [%d0], %r5;", {"out": out}, grid=2, cluster=2, shared=64)
    assert out.tolist() == [2 * sum(range(0, 32, 2)), 2 * sum(range(1, 32, 2))] and not found.findings


def test_words_of_128_bits():
    body = ".reg .b128 %q<4>; ld.global.b128 %q0, [%d0]; mov.b128 {%d2, %d3}, %q0; st.shared.b128 [%r28], %q0;"
    body += (
        "mov.b128 %q1, {%d3, %d2}; atom.shared.exch.b128 %q2, [%r28], %q1; atom.shared.cas.b128 %q3, [%r28], %q1, %q0;"
    )
    body += "setp.lt.u32 %p0, %r30, 8; @%p0 mov.b128 %q2, %q1; ld.shared.b128 %q1, [%r28]; st.global.b128 [%d1], %q2;"
    found = run(HEAD + SLOT + body, buffers(), shared=1024)
    a, out = (found[name].view(np.uint64).reshape(32, 2) for name in ("a", "out"))
    assert np.array_equal(out[8:], a[8:]) and np.array_equal(out[:8], a[:8, ::-1]) and not found.findings
    count = np.zeros(4, np.uint64)
    add = ".reg .b128 %q<3>; mov.b64 %d1, 0; mov.b128 %q0, {%d1, %d1}; mov.b64 %d2, 7; mov.b128 %q1, {%d2, %d2};"
    run(
        add + "atom.relaxed.gpu.global.cas.b128 %q2, [%a], %q0, %q1; st.global.b128 [%a+16], %q2;",
        {"a": count},
        block=9,
    )
    assert count.tolist() == [7, 7, 7, 7]
    with pytest.raises(PtxError, match="no form of atom that the emulator knows"):
        run(".reg .b128 %q<3>; atom.global.add.b128 %q2, [%a], %q0;", {"a": count})


def test_cache_policies():
    body = "createpolicy.fractional.L2::evict_last.L2::evict_unchanged.b64 %d5, 0.5; mov.b32 %r1, 2;"
    body += (
        "red.global.L2::cache_hint.add.u32 [%out], %r1, %d5; atom.global.L2::cache_hint.add.u32 %r2, [%out], 1, %d5;"
    )
    found = run(HEAD + body, {"a": np.zeros(512, np.uint8), "out": np.zeros(512, np.uint8)})
    assert found["out"].view(np.uint32)[0] == 96 and not found.findings


def test_zeros_in_bulk():
    body = "st.shared.b32 [%r28], %r30; bar.warp.sync -1; setp.eq.u32 %p0, %r30, 0;"
    body = (
        HEAD
        + SLOT
        + body
        + "@%p0 st.bulk.weak.shared::cta [%r29], 256, 0;"
        + "{} ld.shared.b32 %r1, [%r28]; st.global.b32 [%d1], %r1;"
    )
    found = run(body.format("bar.warp.sync -1;"), buffers(), shared=1024, target="sm_100a")
    assert found["out"].view(np.uint32)[::4].tolist() == [0] * 16 + [*range(16, 32)] and not found.findings
    assert set(run(body.format(""), buffers(), shared=1024, target="sm_100a").kinds) == {"race"}
    for wrong, says in (("12, 0", "multiples of 8"), ("2048, 0", "inside of the block")):
        with pytest.raises(EmulatorError, match=says):
            run(HEAD + f"st.bulk.weak.shared::cta [%r29], {wrong};", buffers(), shared=1024, target="sm_100a")
