"""Tensor copies, each by a small kernel: what they move against a second statement of it; every check by a breach."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import tma_engine
from layoutgemm.atoms.tma_rules import TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine import Policy
from layoutgemm.emulator.memory import GlobalMemory
from layoutgemm.emulator.ops.tma import Box
from layoutgemm.emulator.tensor_map import encode
from layoutgemm.errors import DeadlockError, EmulatorError, PtxError
from tests.emulator.run_ptx import Result, module, program, run

POLICIES = [
    Policy(),
    Policy(loads="early", stores="early"),
    Policy(pick="random", seed=3),
    Policy(pick="random", seed=4, loads="early", elect="highest"),
]
TILE, BARRIER, SHARED = 0, 16384, 16384 + 1024
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
# Thread 0 initialises the barrier; %r1 is the tile, %r2 the barrier, %p0 thread 0.
BEGIN = f"""
mov.u32 %r0, %tid.x; mov.u32 %r1, smem; add.u32 %r2, %r1, {BARRIER};
setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
@%p0 fence.mbarrier_init.release.cluster;
bar.sync 0;"""
WAIT = """
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
@!%p1 bra WAIT;"""
# 32 lanes copy %r10 bytes of the tile to the buffer at %out, or fill the tile from it.
OUT = """
shl.b32 %r3, %r0, 4;
OUT:
setp.ge.u32 %p2, %r3, %r10;
@%p2 bra DONE;
add.u32 %r4, %r1, %r3; cvt.u64.u32 %d1, %r3; add.u64 %d1, %d1, %out;
ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r4];
st.global.v4.b32 [%d1], {%r5, %r6, %r7, %r8};
add.u32 %r3, %r3, 512;
bra OUT;
DONE:"""
IN = """
shl.b32 %r3, %r0, 4;
IN:
setp.ge.u32 %p2, %r3, %r10;
@%p2 bra FILLED;
add.u32 %r4, %r1, %r3; cvt.u64.u32 %d1, %r3; add.u64 %d1, %d1, %source;
ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%d1];
st.shared.v4.b32 [%r4], {%r5, %r6, %r7, %r8};
add.u32 %r3, %r3, 512;
bra IN;
FILLED:"""


def tensor(extents: tuple[int, ...], kind: str, seed: int = 0) -> tuple[np.ndarray, tuple[int, ...]]:
    """A random tensor as bytes, rows padded to 16 bytes, and its strides in bytes, of all dimensions but the first."""
    size = dtype(kind).bytes
    pitch = -(-extents[0] * size // 16) * 16
    strides = []
    for extent in extents[1:]:
        strides.append(pitch)
        pitch *= extent
    return np.random.default_rng(seed).integers(0, 256, pitch, dtype=np.uint8), tuple(strides)


def elements(tmap: TensorMap, memory: np.ndarray) -> np.ndarray:
    """The tensor as an array of raw elements, outermost dimension first."""
    size = tmap.dtype.bytes
    strides = (*reversed(tmap.strides), size)
    word = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
    return np.lib.stride_tricks.as_strided(memory.view(word), tuple(reversed(tmap.extents)), strides)


def box_of(tmap: TensorMap, memory: np.ndarray, coordinates: tuple[int, ...], fill: int = 0) -> np.ndarray:
    """What PTX says the box holds: the tensor's elements, `fill` outside; outermost first."""
    whole = elements(tmap, memory)
    out = np.full(tuple(reversed(tmap.moved)), fill, whole.dtype)
    for index in np.ndindex(*out.shape):
        place = [c + i * s for c, i, s in zip(reversed(coordinates), index, reversed(tmap.steps), strict=True)]
        if all(0 <= p < n for p, n in zip(place, whole.shape, strict=True)):
            out[index] = whole[tuple(place)]
    return out


def swizzled(compact: np.ndarray, mode: str) -> np.ndarray:
    """Bytes of a compact tile as the mode permutes them: 16-byte chunk c of 128-byte line r goes to chunk c ^ f(r)."""
    wide = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[mode]
    lines = compact.reshape(-1, 8, 16)
    out = np.empty_like(lines)
    for line in range(len(lines)):
        for chunk in range(8):
            out[line, chunk ^ line & wide] = lines[line, chunk]
    return out.reshape(-1)


def at(place: int) -> int:
    """The address that the machine gives to a buffer."""
    return GlobalMemory.START + GlobalMemory.GAP * place


def setting(tmap: TensorMap, memory: np.ndarray, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Buffers of a kernel: the map, the tensor that it is of, and others."""
    return {"map": np.frombuffer(encode(tmap, at(1)), np.uint8).copy(), "tensor": memory, **more}


def listed(coordinates: tuple[int, ...]) -> str:
    return "{" + ", ".join(str(c) for c in coordinates) + "}"


def load(tmap: TensorMap, memory: np.ndarray, coordinates: tuple[int, ...], policy: Policy | None = None) -> Result:
    """Load one box, and read it back."""
    size = tma_engine.bytes_moved(tmap)
    body = f"""{BEGIN} mov.u32 %r10, {size};
    @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {size};
    {LOAD.format(rank=tmap.rank)} [%r1], [%map, {listed(coordinates)}], [%r2];
    {WAIT} {OUT}"""
    out = np.zeros(size, np.uint8)
    return run(body, setting(tmap, memory, out=out), shared=SHARED, policy=policy)


def tiled(kind: str, extents: tuple[int, ...], box: tuple[int, ...], mode: str, **more: Any) -> Any:
    memory, strides = tensor(extents, kind)
    steps = more.pop("steps", (1,) * len(box))
    return TensorMap(dtype(kind), extents, strides, box, steps, mode, **more), memory


LOADS = [
    ("bf16", (128, 96), (64, 16), "128B", [(0, 0), (64, 80), (8, 3), (104, 90), (-16, -3), (200, 0)]),
    ("bf16", (100, 50), (32, 24), "64B", [(0, 0), (96, 40), (8, 49)]),
    ("f32", (36, 20), (8, 16), "32B", [(0, 0), (32, 8), (-4, 19)]),
    ("u8", (250, 30), (96, 12), "none", [(0, 0), (16, 2), (208, 25)]),
    ("u8", (512,), (256,), "none", [(0,), (256,), (304,), (-16,)]),
    ("bf16", (64, 20, 10), (64, 4, 3), "128B", [(0, 0, 0), (0, 18, 8), (-8, 1, 9)]),
    ("f16", (32, 6, 5, 4), (16, 4, 2, 2), "32B", [(0, 0, 0, 0), (16, 4, 4, 3)]),
    ("f32", (8, 5, 4, 3, 3), (4, 4, 2, 2, 2), "none", [(0, 0, 0, 0, 0), (4, 3, 3, 2, 2)]),
    ("u64", (20, 30), (16, 8), "128B", [(0, 0), (18, 25)]),
]


@pytest.mark.parametrize(("kind", "extents", "box", "mode", "places"), LOADS)
def test_a_load_moves_the_box(kind: str, extents: tuple[int, ...], box: Any, mode: str, places: Any) -> None:
    tmap, memory = tiled(kind, extents, box, mode)
    for number, coordinates in enumerate(places):
        want = swizzled(box_of(tmap, memory, coordinates).reshape(-1).view(np.uint8), mode)
        result = load(tmap, memory, coordinates, POLICIES[number % len(POLICIES)])
        assert (result["out"] == want).all(), coordinates
        assert result.kinds == [], result.findings
        assert result.machine.counts.bytes["global to shared"] == tma_engine.bytes_moved(tmap)


def test_steps_and_fill() -> None:
    tmap, memory = tiled("f16", (64, 60), (64, 32), "128B", steps=(1, 3), oob_fill="nan")
    for coordinates in ((0, 0), (8, 50)):
        want = box_of(tmap, memory, coordinates, 0x7FF7)
        # 11 rows of 128 bytes, and the swizzle in whole lines of them
        result = load(tmap, memory, coordinates)
        rows = result["out"].reshape(11, 8, 16)
        back = np.stack([rows[r][[c ^ r & 7 for c in range(8)]] for r in range(11)])
        assert (back.reshape(11, 128).view(np.uint16) == want).all()


def test_the_indices_are_the_engines() -> None:
    """The quick way of whole aligned boxes, and the engine's own copies, everywhere in shared memory."""
    rng = np.random.default_rng(5)
    for kind, extents, box, mode, _ in LOADS:
        tmap, memory = tiled(kind, extents, box, mode)
        made = Box(encode(tmap, at(0)))
        for offset in (0, 128, 896, 1024, 4096 + 384):
            shared = np.zeros(1 << 15, np.uint8)
            tma_engine.load(tmap, memory, (0,) * tmap.rank, shared, offset)
            chunks = made.chunks(offset % 1024) + offset // 1024 * 64
            quick = np.zeros(1 << 15, np.uint8)
            rows = made.relative // 16
            if all(extent >= count for extent, count in zip(extents, tmap.moved, strict=True)):
                quick.reshape(-1, 16)[chunks] = memory.reshape(-1, 16)[rows]
                assert (quick == shared).all()
            granules = {int(x) for x in np.unique(tma_engine.shared_bits(tmap, offset) // 128)}
            assert made.places(offset) == sum(1 << g for g in granules)
        spot = (16 * int(rng.integers(-1, 3)), *[int(rng.integers(-3, extent)) for extent in extents[1:]])
        assert made.whole(spot) == bool(tma_engine.box_coordinates(tmap, spot)[1].all())


def test_tf32_is_rounded() -> None:
    """To nearest, ties to even, 13 bits less; and by the way that all ragged boxes go."""
    tmap, memory = tiled("tf32", (16, 8), (16, 8), "none")
    memory.view(np.uint32)[:4] = [0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001]
    assert load(tmap, memory, (0, 0))["out"].view(np.uint32)[:4].tolist() == [
        0x3F800000, 0x3F804000, 0x3F800000, 0x3F802000,
    ]  # fmt: skip


# Stores ---------------------------------------------------------------------------------------------------------------

FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"
COMMIT = "cp.async.bulk.commit_group;"


def store(
    tmap: TensorMap,
    memory: np.ndarray,
    source: np.ndarray,
    coordinates: tuple[int, ...],
    policy: Policy | None = None,
    opcode: str = STORE,
    after: str = "cp.async.bulk.wait_group 0;",
    fence: str = FENCE,
    who: str = "@!%p0 bra END;",
) -> Result:
    """Fill the tile from `source`, and store it."""
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r10, {len(source)};
    {IN} {fence} {who}
    {opcode.format(rank=tmap.rank)} [%map, {listed(coordinates)}], [%r1];
    {COMMIT} {after}
    END:"""
    return run(body, setting(tmap, memory, source=source), shared=SHARED, policy=policy)


@pytest.mark.parametrize(("kind", "extents", "box", "mode", "places"), LOADS)
def test_a_store_moves_what_lies_inside(kind: str, extents: tuple[int, ...], box: Any, mode: str, places: Any) -> None:
    tmap, memory = tiled(kind, extents, box, mode)
    source = np.random.default_rng(9).integers(0, 256, tma_engine.bytes_moved(tmap), dtype=np.uint8)
    for number, coordinates in enumerate(places):
        if min(coordinates) < 0:
            continue
        target = memory.copy()
        want = memory.copy()
        words = source.view(elements(tmap, memory).dtype).reshape(tuple(reversed(tmap.moved)))
        view = elements(tmap, want)
        for index in np.ndindex(*words.shape):
            place = tuple([c + i for c, i in zip(reversed(coordinates), index, strict=True)])
            if all(0 <= p < n for p, n in zip(place, view.shape, strict=True)):
                view[place] = words[index]
        result = store(tmap, target, swizzled(source, mode), coordinates, POLICIES[number % len(POLICIES)])
        assert (target == want).all(), coordinates
        assert result.kinds == [], result.findings


REDUCTIONS = [
    ("i32", "add", lambda a, b: a + b),
    ("u32", "min", np.minimum),
    ("i32", "max", np.maximum),
    ("u32", "and", np.bitwise_and),
    ("u64", "xor", np.bitwise_xor),
    ("f32", "add", lambda a, b: a + b),
    ("u32", "inc", lambda old, new: np.where(old >= new, 0, old + 1)),
]


@pytest.mark.parametrize(("kind", "name", "combine"), REDUCTIONS)
def test_a_reduction_combines(kind: str, name: str, combine: Any) -> None:
    word = {"i32": np.int32, "u32": np.uint32, "u64": np.uint64, "f32": np.float32}[kind]
    rng = np.random.default_rng(2)
    tmap, memory = tiled(kind, (40, 12), (16, 8), "none")
    memory[:] = rng.integers(0, 100, memory.size // word().itemsize).astype(word).view(np.uint8)
    values = rng.integers(0, 100, (8, 16)).astype(word)
    want = memory.copy()
    view = elements(tmap, want).view(word)
    view[8:12, 32:40] = combine(view[8:12, 32:40], values[:4, :8])
    opcode = f"cp.reduce.async.bulk.tensor.{{rank}}d.global.shared::cta.{name}.tile.bulk_group"
    for policy in POLICIES[:2]:
        target = memory.copy()
        result = store(tmap, target, values.reshape(-1).view(np.uint8), (32, 8), policy, opcode)
        assert (target == want).all()
        assert result.kinds == []


def test_every_lane_issues_its_own() -> None:
    """32 lanes that reduce add 32 times (recorded on an H200), and that is worth a word."""
    tmap, memory = tiled("i32", (8, 4), (8, 4), "none")
    memory[:] = 0
    ones = np.ones(32, np.int32).view(np.uint8)
    opcode = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group"
    result = store(tmap, memory, ones, (0, 0), opcode=opcode, who="")
    assert (memory.view(np.int32) == 32).all()
    assert result.kinds == ["lint"]
    result = store(tmap, memory, ones, (0, 0), who="")
    assert (memory.view(np.int32) == 1).all()
    assert result.kinds == ["lint"]


# Clusters -------------------------------------------------------------------------------------------------------------

PAIR = TensorMap(dtype("bf16"), (64, 64), (128,), (64, 8), (1, 1), "128B")
CLUSTER = f"""
mov.u32 %r0, %tid.x; mov.u32 %r1, smem; add.u32 %r2, %r1, {BARRIER}; mov.u32 %r9, %cluster_ctarank;
setp.eq.u32 %p0, %r0, 0; mov.u32 %r10, 1024;
@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
@%p0 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r10;
setp.eq.u32 %p3, %r9, 0; and.pred %p4, %p3, %p0;
"""
EACH = "cvt.u64.u32 %d2, %r9; mul.lo.u64 %d2, %d2, 1024; add.u64 %out, %out, %d2;"
LAST = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def cluster(issue: str, last: str = LAST, policy: Policy | None = None, blocks: int = 2) -> Result:
    memory = np.arange(64 * 64, dtype=np.uint16).view(np.uint8)
    body = f"{CLUSTER} {issue} {WAIT} {EACH} {OUT} {last}"
    buffers = setting(PAIR, memory, out=np.zeros(1024 * blocks, np.uint8))
    return run(body, buffers, shared=SHARED, grid=blocks, cluster=blocks, policy=policy)


MULTICAST = LOAD.format(rank=2) + ".multicast::cluster"


@pytest.mark.parametrize("policy", POLICIES)
def test_multicast_reaches_every_block_of_the_mask(policy: Policy) -> None:
    issue = f"mov.b16 %h0, 3; @%p4 {MULTICAST} [%r1], [%map, {{0, 8}}], [%r2], %h0;"
    result = cluster(issue, policy=policy)
    want = swizzled(np.arange(512, 1024, dtype=np.uint16).view(np.uint8), "128B")
    assert (result["out"].reshape(2, 1024) == want).all()
    assert result.kinds == []


def test_multicast_with_a_cache_hint() -> None:
    hint = MULTICAST + ".L2::cache_hint"
    issue = f"mov.b16 %h0, 3; mov.b64 %d5, 0; @%p4 {hint} [%r1], [%map, {{0, 8}}], [%r2], %h0, %d5;"
    assert cluster(issue).kinds == []


@pytest.mark.parametrize("mask", [0, 4, 8])
def test_a_mask_beyond_the_cluster(mask: int) -> None:
    issue = f"mov.b16 %h0, {mask}; @%p4 {MULTICAST} [%r1], [%map, {{0, 8}}], [%r2], %h0;"
    with pytest.raises(EmulatorError, match="multicast to blocks"):
        cluster(issue)


def test_half_a_multicast_leaves_the_other_block_waiting() -> None:
    issue = f"mov.b16 %h0, 1; @%p4 {MULTICAST} [%r1], [%map, {{0, 8}}], [%r2], %h0;"
    with pytest.raises(DeadlockError, match="try_wait"):
        cluster(issue)


def test_a_block_that_ends_before_its_multicast_lands() -> None:
    """The second block waits for nothing: the first one's copy may land when its memory is another's."""
    issue = f"""mov.b16 %h0, 3; @%p4 {MULTICAST} [%r1], [%map, {{0, 8}}], [%r2], %h0;
    @!%p3 {LAST} @!%p3 ret;"""
    result = cluster(issue)
    assert result.kinds == ["exit"]
    assert "cp.async.bulk.tensor" in result.findings[0].message


def test_the_signal_of_a_pair_may_go_to_the_leader() -> None:
    """cta_group::2: each block loads its own tile; both signal the even block's barrier."""
    issue = f"""@%p4 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r2], 1024;
    {LAST}
    and.b32 %r11, %r2, -16777217;
    @%p0 {LOAD.format(rank=2)}.cta_group::2 [%r1], [%map, {{0, 8}}], [%r11];
    @!%p3 bra SKIP;"""
    memory = np.arange(64 * 64, dtype=np.uint16).view(np.uint8)
    body = f"{CLUSTER} {issue} {WAIT} SKIP: {LAST} {EACH} {OUT} {LAST}"
    # the second block's own barrier was armed too: nobody waits for it
    buffers = setting(PAIR, memory, out=np.zeros(2048, np.uint8))
    result = run(body, buffers, shared=SHARED, grid=2, cluster=2, target="sm_100a")
    want = swizzled(np.arange(512, 1024, dtype=np.uint16).view(np.uint8), "128B")
    assert (result["out"].reshape(2, 1024) == want).all()
    assert result.kinds == []
    with pytest.raises(EmulatorError, match="the mbarrier in 0"):
        run(body.replace(".cta_group::2", ""), buffers, shared=SHARED, grid=2, cluster=2, target="sm_100a")


# Every check ----------------------------------------------------------------------------------------------------------


def one(issue: str, after: str = "", begin: str = BEGIN, policy: Policy | None = None, shared: int = SHARED) -> Result:
    """Thread 0 does `issue`; all wait."""
    memory = np.arange(64 * 64, dtype=np.uint16).view(np.uint8)
    body = f"{begin} mov.u32 %r10, 1024; @!%p0 bra WAIT; {issue} {WAIT} {after}"
    return run(body, setting(PAIR, memory, out=np.zeros(1024, np.uint8)), shared=shared, policy=policy)


ARM = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;"
GET = LOAD.format(rank=2) + " [%r1], [%map, {0, 0}], [%r2];"


def test_the_plain_load_is_silent() -> None:
    assert one(ARM + GET, OUT).kinds == []


@pytest.mark.parametrize(
    ("issue", "message"),
    [
        (GET.replace("[%r1]", "[%r1+64]"), "multiple of 128"),
        (GET.replace("[%r1]", f"[%r1+{SHARED - 512}]"), "ends at"),
        (GET.replace("[%map,", "[%map+16,"), "multiple of 64"),
        (GET.replace("[%map,", "[%tensor,"), "no tensor map"),
        (GET.replace("[%r2]", "[%r2+8]"), "no mbarrier"),
        (GET.replace("[%r1]", "[%r1+16777216]"), "block 1 of a cluster of 1"),
        (GET.replace("2d", "3d").replace("{0, 0}", "{0, 0, 0}"), "3 dimensions with a tensor map of 2"),
        (GET.replace("{0, 0}", "{4, 0}"), "innermost coordinate"),
        (STORE.format(rank=2) + " [%map, {-8, 0}], [%r1];", "negative"),
    ],
)
def test_wrong_loads_are_errors(issue: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message) as caught:
        one(ARM + issue)
    assert "PTX line" in str(caught.value)


@pytest.mark.parametrize("amount", [1008, 1040, 512, 2048])
def test_bytes_are_exact(amount: int) -> None:
    with pytest.raises(DeadlockError):
        one(ARM.replace("1024", str(amount)) + GET)


def test_a_box_over_a_barrier() -> None:
    result = one(ARM + GET.replace("[%r1]", f"[%r1+{BARRIER - 896}]"))
    assert "protocol" in result.kinds
    assert "covers the mbarrier" in next(f.message for f in result.findings if f.kind == "protocol")


def test_initialisation_without_a_fence() -> None:
    bare = BEGIN.replace("@%p0 fence.mbarrier_init.release.cluster;", "")
    result = one(ARM + GET, begin=bare)
    assert result.kinds == ["race"]
    assert "fence.mbarrier_init" in result.findings[0].message
    proxy = BEGIN.replace("fence.mbarrier_init.release.cluster", "fence.proxy.async.shared::cta")
    assert one(ARM + GET, begin=proxy).kinds == []


def test_two_lanes_load() -> None:
    """Both copies signal: the barrier gets twice the bytes."""
    both = f"{BEGIN} setp.lt.u32 %p5, %r0, 2; @%p0 {ARM.replace('1024', '2048')} bar.warp.sync -1; @%p5 {GET} {WAIT}"
    memory = np.arange(64 * 64, dtype=np.uint16).view(np.uint8)
    assert run(both, setting(PAIR, memory), shared=SHARED).kinds == ["lint"]


def test_reading_before_the_wait_is_a_race() -> None:
    early = "ld.shared.b32 %r20, [%r1];"
    for policy in POLICIES:
        result = one(ARM + GET + early, policy=policy)
        assert "race" in result.kinds
        text = next(f.message for f in result.findings if f.kind == "race")
        assert "ld.shared" in text and "cp.async.bulk.tensor" in text


def test_loading_over_what_is_still_read_is_a_race() -> None:
    """The other lanes read the tile; thread 0 loads the next one without a barrier between."""
    again = (
        f"{OUT} @%p0 {ARM} @%p0 {GET} SECOND: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 1; @!%p1 bra SECOND;"
    )
    memory = np.arange(64 * 64, dtype=np.uint16).view(np.uint8)
    for width, kinds in ((32, []), (64, ["race"])):
        body = f"{BEGIN} mov.u32 %r10, 1024; @!%p0 bra WAIT; {ARM} {GET} {WAIT} {again}"
        result = run(body, setting(PAIR, memory, out=np.zeros(1024, np.uint8)), shared=SHARED, block=width)
        assert result.kinds == kinds


def test_stores_have_to_be_fenced() -> None:
    tmap, memory = tiled("i32", (8, 4), (8, 4), "none")
    source = np.ones(32, np.int32).view(np.uint8)
    for fence, kinds in (
        (FENCE, []),
        ("bar.sync 0;", ["race"]),
        ("bar.sync 0; fence.proxy.async.shared::cta;", []),
        ("", ["race"]),
    ):
        for policy in POLICIES:
            assert store(tmap, memory, source, (0, 0), fence=fence, policy=policy).kinds == kinds, (fence, policy)


def test_another_warps_writes_need_its_own_fence() -> None:
    """64 threads fill the tile; a fence by the storing thread alone, after the barrier, counts only if not strict."""
    tmap, memory = tiled("i32", (32, 8), (32, 8), "none")
    fill = "mad.lo.u32 %r3, %r0, 16, %r1; st.shared.v4.b32 [%r3], {%r0, %r0, %r0, %r0};"
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; setp.eq.u32 %p0, %r0, 0; {fill}
    bar.sync 0; @!%p0 bra END; fence.proxy.async.shared::cta;
    {STORE.format(rank=2)} [%map, {{0, 0}}], [%r1]; {COMMIT} cp.async.bulk.wait_group 0;
    END:"""
    for strict, kinds in ((True, ["race"]), (False, [])):
        result = run(body, setting(tmap, memory), shared=SHARED, block=64, policy=Policy(strict=strict))
        assert result.kinds == kinds


def test_overwriting_what_a_store_still_reads() -> None:
    tmap, memory = tiled("i32", (8, 4), (8, 4), "none")
    source = np.ones(32, np.int32).view(np.uint8)
    write = "st.shared.b32 [%r1], %r0;"
    for wait, kinds in (
        ("cp.async.bulk.wait_group.read 0;", []),
        ("cp.async.bulk.wait_group 0;", []),
        ("cp.async.bulk.wait_group.read 1;", ["race", "exit"]),
        ("", ["race", "exit"]),
    ):
        assert store(tmap, memory, source, (0, 0), after=wait + write).kinds == kinds
    values = []
    for late in ("late", "early"):
        store(tmap, memory, source, (0, 0), Policy(stores=late), after=write)
        values.append(int(memory.view(np.int32)[0]))
    assert values == [0, 1]


def test_a_block_that_ends_while_its_store_reads() -> None:
    tmap, memory = tiled("i32", (8, 4), (8, 4), "none")
    source = np.ones(32, np.int32).view(np.uint8)
    result = store(tmap, memory, source, (0, 0), after="")
    assert result.kinds == ["exit"]
    assert (memory.view(np.int32) == 1).all()


def test_a_store_of_bytes_never_written() -> None:
    tmap, memory = tiled("i32", (8, 8), (8, 8), "none")
    half = np.ones(32, np.int32).view(np.uint8)
    assert store(tmap, memory, half, (0, 0)).kinds == ["uninitialised"]
    assert store(tmap, memory, half, (0, 4)).kinds == []  # the other half lies outside


def test_a_map_that_says_more_than_there_is() -> None:
    tmap, memory = tiled("bf16", (64, 8), (64, 8), "128B")
    long = replace(tmap, extents=(64, 9))
    load(long, memory, (0, 0))
    with pytest.raises(EmulatorError, match="reaches to byte 1152 of buffer tensor, which has 1024"):
        load(long, memory, (0, 1))
    with pytest.raises(EmulatorError, match="reaches to byte"):
        load(long, memory, (0, 4))


def test_prefetch_changes_nothing() -> None:
    fetch = "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {0, 0}]; prefetch.tensormap [%map];"
    assert one(fetch + ARM + GET).machine.counts.bytes["prefetched to L2"] == 1024


def test_a_reduction_that_the_type_has_not() -> None:
    tmap, memory = tiled("f32", (8, 4), (8, 4), "none")
    opcode = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.max.tile.bulk_group"
    with pytest.raises(EmulatorError, match="max reduces"):
        store(tmap, memory, np.ones(32, np.float32).view(np.uint8), (0, 0), opcode=opcode)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (GET.replace(".tile", ".im2col"), "im2col is not emulated"),
        (GET.replace(".tile", ".tile::gather4"), "gather4 is not emulated"),
        (GET.replace(".mbarrier::complete_tx::bytes", ""), "completes on an mbarrier"),
        (GET.replace("shared::cluster", "shared::cta").replace("bytes", "bytes.multicast::cluster"), "multicast"),
        (GET.replace("bytes", "bytes.cta_group::4"), "cta_group::4 is not known"),
        (GET.replace("2d", "6d"), "1 to 5"),
        (GET.replace("{0, 0}", "{0, 0, 0}"), "3 coordinates for 2"),
        (GET.replace("[%r2];", "[%r2], %d0;"), "operands"),
        (STORE.format(rank=2).replace("tile", "tile::scatter4") + " [%map, {0, 0}], [%r1];", "scatter4"),
        ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {0, 0}], [%r1];", "a reduction is"),
        ("tensormap.replace.tile.rank.global.b1024.b32 [%map], 1;", "not emulated"),
    ],
)
def test_what_is_not_known_is_an_error_at_load(text: str, message: str) -> None:
    with pytest.raises(PtxError, match=message) as caught:
        program(module(text, {"map": "u64"}))
    assert "PTX line" in str(caught.value)
