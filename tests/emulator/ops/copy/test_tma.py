"""TMA copies by small kernels against an independent model, and copies within clusters."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms.tma import engine as tma_engine
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.machine.memory import GlobalBuffer, GlobalMemory
from layoutgemm.emulator.machine.tensor_map import encode
from layoutgemm.emulator.ops.copy.tma import TmaTransfer
from layoutgemm.errors import DeadlockError, EmulatorError
from tests.emulator.ops.copy.tensor_copies import (
    BARRIER,
    CLUSTER,
    EACH,
    LAST,
    LOAD,
    MULTICAST,
    OUT,
    PAIR,
    POLICIES,
    SHARED,
    STORE,
    WAIT,
    at,
    box_of,
    cluster,
    elements,
    load,
    setting,
    store,
    swizzled,
    tiled,
)
from tests.emulator.run_ptx import run

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
    """The fast path of whole aligned boxes against the engine's copies, at every offset."""
    rng = np.random.default_rng(5)
    for kind, extents, box, mode, _ in LOADS:
        tmap, memory = tiled(kind, extents, box, mode)
        made = TmaTransfer(encode(tmap, at(0)))
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
        for near in (-1, 0, 1):  # one row over the edge is not whole
            edge = (0, *[extent - count + near for extent, count in zip(extents[1:], tmap.moved[1:], strict=True)])
            assert made.whole(edge) == bool(tma_engine.box_coordinates(tmap, edge)[1].all())
        spot = (16 * int(rng.integers(-1, 3)), *[int(rng.integers(-3, extent)) for extent in extents[1:]])
        assert made.whole(spot) == bool(tma_engine.box_coordinates(tmap, spot)[1].all())


def test_a_tensor_that_its_buffer_does_not_align() -> None:
    """A buffer may begin 8 bytes past a multiple of 16, and the tensor 8 bytes later: no whole chunks of the buffer."""
    tmap, _ = tiled("bf16", (64, 8), (64, 8), "none")
    made = TmaTransfer(encode(tmap, at(0) + 16))
    assert made.rows(GlobalBuffer("x", at(0) + 8, np.zeros(4096, np.uint8)), (0, 0)) is None
    assert made.rows(GlobalBuffer("x", at(0), np.zeros(4096, np.uint8)), (0, 0)) is not None


def test_a_tensor_that_begins_before_a_view_of_its_storage() -> None:
    """As NVIDIA's attention kernels have it: rows of padding lie before the view, and the map begins among them."""
    tmap, memory = tiled("bf16", (64, 24), (64, 8), "128B")
    held = GlobalMemory()
    buffer = held.add("x", memory)
    fiber: Any = SimpleNamespace(machine=SimpleNamespace(launch=SimpleNamespace(memory=held)))
    early = TmaTransfer(encode(tmap, at(0) - 8 * tmap.strides[0]))
    with pytest.raises(EmulatorError, match="1024 bytes before x"):
        early.source(fiber, (0, 8))
    buffer.before = 1023
    with pytest.raises(EmulatorError, match="1024 bytes before x"):
        early.source(fiber, (0, 8))
    buffer.before = 1024
    assert early.source(fiber, (0, 8)) is buffer


def test_a_tensor_that_begins_far_before_its_buffer() -> None:
    """As maps of ragged groups: a large coordinate leads back, and the tensor ends at the group's last row."""
    tmap, memory = tiled("bf16", (64, 24), (64, 8), "128B")
    offset = 1 << 22  # rows of 128 bytes
    far = replace(tmap, extents=(64, offset + 21))
    buffer = GlobalBuffer("x", at(0), memory.copy())
    box, first = TmaTransfer(encode(far, at(0) - offset * 128)).beside(buffer, [0, offset + 16])
    assert (box.address, first, box.tmap.extents) == (at(0) + 16 * 128, [0, 0], (64, 5))
    assert TmaTransfer(encode(tmap, at(0))).beside(buffer, [0, 16])[1] == [0, 16]
    outside, there = TmaTransfer(encode(far, at(0) - offset * 128)).beside(buffer, [0, offset + 24])
    assert not outside.whole(there) and there[1] >= outside.tmap.extents[1]
    held = GlobalMemory()
    assert held.add("a", memory) is held.near(at(0) - offset * 128 - (1 << 40), at(0)) is held.near(1 << 20)


def test_a_map_of_ragged_groups_passes_the_end_of_addresses() -> None:
    """Rows of a group end at 2^30. A pitch of 2^35 less one row leads back to the group: the sum wraps at 2^64."""
    tmap, memory = tiled("bf16", (64, 24), (64, 8), "128B")
    group = replace(tmap, extents=(64, 13))
    extents, strides = (64, 1 << 30, (1 << 31) - 1, (1 << 31) - 1), (128, (1 << 35) - 128, 128)
    ragged = replace(tmap, extents=extents, strides=strides, box=(64, 8, 1, 1), steps=(1,) * 4)
    for row in (0, 8, 16):  # all, some and none of the box's rows are the group's
        result = load(ragged, memory, (0, (1 << 30) - 13 + row, 1 << 30, 13))
        want = swizzled(box_of(group, memory, (0, row)).reshape(-1).view(np.uint8), "128B")
        assert not result.findings and (result["out"] == want).all(), row


def test_tf32_is_rounded() -> None:
    """To nearest, ties to even, 13 bits less; and by the way that all ragged boxes go."""
    tmap, memory = tiled("tf32", (16, 8), (16, 8), "none")
    memory.view(np.uint32)[:4] = [0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001]
    assert load(tmap, memory, (0, 0))["out"].view(np.uint32)[:4].tolist() == [
        0x3F800000, 0x3F804000, 0x3F800000, 0x3F802000,
    ]  # fmt: skip


@pytest.mark.parametrize(("kind", "extents", "box", "mode", "places"), LOADS)
def test_a_store_moves_whole_units(kind: str, extents: tuple[int, ...], box: Any, mode: str, places: Any) -> None:
    """The box inside the tensor, and each row's last 16 bytes, here in the pitch."""
    tmap, memory = tiled(kind, extents, box, mode)
    source = np.random.default_rng(9).integers(0, 256, tma_engine.bytes_moved(tmap), dtype=np.uint8)
    for number, coordinates in enumerate(places):
        if min(coordinates) < 0:
            continue
        target = memory.copy()
        want = memory.copy()
        words = source.view(elements(tmap, memory).dtype).reshape(tuple(reversed(tmap.moved)))
        unit = 16 // words.dtype.itemsize
        line = -(-extents[0] // unit) * unit
        view = elements(replace(tmap, extents=(line, *extents[1:])), want)
        ragged = line > extents[0] and coordinates[0] + box[0] > extents[0] and coordinates[0] < extents[0]
        for index in np.ndindex(*words.shape):
            place = tuple([c + i for c, i in zip(reversed(coordinates), index, strict=True)])
            if all(0 <= p < n for p, n in zip(place, view.shape, strict=True)):
                view[place] = words[index]
        result = store(tmap, target, swizzled(source, mode), coordinates, POLICIES[number % len(POLICIES)])
        assert (target == want).all(), coordinates
        assert result.kinds == ["edge"] * ragged, result.findings


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
    """32 lanes that reduce add 32 times (recorded on an H200); a store does not mind."""
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


def test_lanes_with_a_box_of_their_own_are_no_lint() -> None:
    """Two lanes store the two halves of a tile, as DeepGEMM's kernels do."""
    tmap, memory = tiled("i32", (16, 4), (8, 4), "none")
    values = np.arange(64, dtype=np.int32)
    own: Any = ("%r21", 0)
    begin = "setp.gt.u32 %p5, %r0, 1; @%p5 bra END; shl.b32 %r21, %r0, 3; shl.b32 %r22, %r0, 7; add.u32 %r1, %r1, %r22;"
    result = store(tmap, memory, values.view(np.uint8), own, who=begin)
    assert np.array_equal(memory.view(np.int32).reshape(4, 2, 8).swapaxes(0, 1), values.reshape(2, 4, 8))
    assert result.kinds == []
    twice = begin.replace("%r0, 1;", "%r0, 3; and.b32 %r0, %r0, 1;")  # four lanes, two of each box
    assert "lint" in store(tmap, memory, values.view(np.uint8), own, who=twice).kinds


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
    with pytest.raises(EmulatorError, match="multicast to mask"):
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
    # The second block's own barrier was armed too, and no thread signals it or waits for it.
    buffers = setting(PAIR, memory, out=np.zeros(2048, np.uint8))
    result = run(body, buffers, shared=SHARED, grid=2, cluster=2, target="sm_100a")
    want = swizzled(np.arange(512, 1024, dtype=np.uint16).view(np.uint8), "128B")
    assert (result["out"].reshape(2, 1024) == want).all()
    assert result.kinds == ["lint"] and "bytes out" in result.findings[0].message
    with pytest.raises(EmulatorError, match="the mbarrier in 0"):
        run(body.replace(".cta_group::2", ""), buffers, shared=SHARED, grid=2, cluster=2, target="sm_100a")


@pytest.mark.parametrize(
    ("issue", "message"),
    [
        (f"{LOAD.format(rank=2).replace('shared::cluster', 'shared::cta')} [%r12], [%map, {{0, 8}}], [%r12+{BARRIER}];",
         "shared::cta destination"),
        (f"{STORE.format(rank=2)} [%map, {{0, 8}}], [%r12];", "from the thread's own block"),
        (f"{LOAD.format(rank=2)} [%r12], [%map, {{0, 8}}], [%r2];", "the mbarrier in 0"),
        (f"{LOAD.format(rank=2)}.cta_group::2 [%r1], [%map, {{0, 8}}], [%r13];", "not of the destination's pair"),
    ],
)  # fmt: skip
def test_addresses_in_other_blocks(issue: str, message: str) -> None:
    names = f"add.u32 %r12, %r1, {1 << 24}; add.u32 %r13, %r2, {2 << 24};"
    with pytest.raises(EmulatorError, match=message):
        cluster(f"{names} @!%p4 bra WAIT; {issue}", blocks=4)
