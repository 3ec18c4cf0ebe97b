"""Every check of tensor copies, by a kernel that breaks its rule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.machine.tensor_map import encode
from layoutgemm.errors import DeadlockError, EmulatorError, PtxError
from tests.emulator.ops.copy.tensor_copies import (
    ARM,
    BARRIER,
    BEGIN,
    COMMIT,
    FENCE,
    GET,
    IN,
    OUT,
    PAIR,
    POLICIES,
    SHARED,
    STORE,
    WAIT,
    at,
    load,
    one,
    setting,
    store,
    swizzled,
    tiled,
)
from tests.emulator.run_ptx import module, program, run


def test_the_plain_load_is_silent() -> None:
    assert one(ARM + GET, OUT).kinds == []


@pytest.mark.parametrize(
    ("issue", "message"),
    [
        (GET.replace("[%r1]", "[%r1+64]"), "multiple of 128"),
        (GET.replace("[%r1]", f"[%r1+{SHARED - 512}]"), "ends at"),
        (GET.replace("[%map,", "[%map+16,"), "multiple of 64"),
        (GET.replace("[%map,", "[%tensor,"), "not a tensor map"),
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


def test_a_map_that_begins_before_its_tensor() -> None:
    """A load is refused though all of its box is there; a store is not."""
    tmap, memory = tiled("bf16", (64, 24), (64, 8), "128B")
    early = np.frombuffer(encode(tmap, at(1) - 8 * tmap.strides[0]), np.uint8).copy()
    buffers = {"map": early, "tensor": memory, "out": np.zeros(1024, np.uint8)}
    prefetch = "cp.async.bulk.prefetch.tensor.2d.L2.global.tile [%map, {0, 8}];"
    for issue in (ARM + GET.replace("{0, 0}", "{0, 8}"), prefetch):
        with pytest.raises(EmulatorError, match="address is 1024 bytes before tensor"):
            run(f"{BEGIN} mov.u32 %r10, 1024; @!%p0 bra WAIT; {issue} {WAIT}", buffers, shared=SHARED)
    beyond = np.frombuffer(encode(tmap, at(3) + 4096), np.uint8).copy()  # behind all buffers, and no row is in the box
    with pytest.raises(EmulatorError, match="in no buffer: an H100"):
        load_of = ARM + GET.replace("{0, 0}", "{0, 24}")
        run(f"{BEGIN} mov.u32 %r10, 1024; @!%p0 bra WAIT; {load_of} {WAIT}", {**buffers, "map": beyond}, shared=SHARED)
    fill = np.arange(1024, dtype=np.uint16).astype(np.uint8)
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; setp.eq.u32 %p0, %r0, 0; mov.u32 %r10, 1024;
    {IN} {FENCE} @!%p0 bra END; {STORE.format(rank=2)} [%map, {{0, 8}}], [%r1]; {COMMIT}
    cp.async.bulk.wait_group 0; END:"""
    assert run(body, {"map": early, "tensor": memory, "source": fill}, shared=SHARED).kinds == []
    assert (memory[:1024].reshape(8, 8, 16) == swizzled(fill, "128B").reshape(8, 8, 16)).all()


@pytest.mark.parametrize("amount", [1008, 1040, 512, 2048])
def test_bytes_are_exact(amount: int) -> None:
    with pytest.raises(DeadlockError):
        one(ARM.replace("1024", str(amount)) + GET)


def test_a_box_over_a_barrier() -> None:
    result = one(ARM + GET.replace("[%r1]", f"[%r1+{BARRIER - 896}]"))
    assert "protocol" in result.kinds
    assert "overwrites the mbarrier" in next(f.message for f in result.findings if f.kind == "protocol")


def test_initialisation_without_a_fence() -> None:
    bare = BEGIN.replace("@%p0 fence.mbarrier_init.release.cluster;", "")
    assert one(ARM + GET, begin=bare).kinds == ["lint"]
    result = one(ARM + GET, begin=bare, policy=Policy(fences="writers"))
    assert result.kinds == ["race"]
    assert "fence.mbarrier_init" in result.findings[0].message
    assert result.findings[0].orders.startswith("fence.mbarrier_init after the initialisation")
    two = ARM.replace("1024", "2048") + GET + GET.replace("[%r1]", "[%r1+1024]")
    assert len(one(two, begin=bare).findings) == 1
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


def test_a_load_over_ordinary_writes_needs_a_proxy_fence() -> None:
    write = "st.shared.b32 [%r1], %r0;"
    for fence, kinds in (("", ["race"]), ("fence.proxy.async.shared::cta;", [])):
        result = one(write + fence + ARM + GET)
        assert result.kinds == kinds
    assert "fence.proxy.async" in one(write + ARM + GET).findings[0].message


def test_loads_land_late_or_early() -> None:
    """A read before the wait returns the old content or the new."""
    early = "ld.shared.b32 %r20, [%r1+128]; st.global.b32 [%out], %r20;"
    results = [one(ARM + GET + early, policy=Policy(loads=when)) for when in ("late", "early")]
    line = swizzled(np.arange(512, dtype=np.uint16).view(np.uint8), "128B").view(np.uint32)
    assert [int(result["out"].view(np.uint32)[0]) for result in results] == [0xFFFFFFFF, int(line[32])]


def test_a_load_into_a_buffer_still_being_read_is_a_race() -> None:
    """The other lanes read the tile; thread 0 loads the next one without a barrier between."""
    again = (
        f"{OUT} @%p0 {ARM} @%p0 {GET} SECOND: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 1; @!%p1 bra SECOND;"
    )
    memory = np.arange(64 * 64, dtype=np.uint16).view(np.uint8)
    for width, fence, policy, kinds in (
        (32, "", None, ["lint"] * 2),  # its own reads need a proxy fence by PTX's word, the other lanes' bar.warp.sync
        (32, "", Policy(strict=True), ["race", "lint"]),
        (32, "fence.proxy.async.shared::cta;", Policy(strict=True), ["lint"]),
        (32, "fence.proxy.async.shared::cta; bar.warp.sync -1;", Policy(strict=True), []),
        (64, "", None, ["race", "lint"]),
    ):
        body = f"{BEGIN} mov.u32 %r10, 1024; @!%p0 bra WAIT; {ARM} {GET} {WAIT} {OUT} {fence} {again[len(OUT) :]}"
        setup = setting(PAIR, memory, out=np.zeros(1024, np.uint8))
        result = run(body, setup, shared=SHARED, block=width, policy=policy)
        assert result.kinds == kinds, (width, fence, policy)
        if policy is None and width == 32:
            assert "Policy(strict=True) makes this a finding" in result.findings[0].message
            assert "--lanes strict" in result.findings[1].message


def test_stores_have_to_be_fenced() -> None:
    tmap, memory = tiled("i32", (8, 4), (8, 4), "none")
    source = np.ones(32, np.int32).view(np.uint8)
    for fence, kinds in (
        (FENCE, []),
        ("bar.sync 0;", ["race"]),
        ("bar.sync 0; fence.proxy.async.shared::cta; bar.warp.sync -1;", []),
        ("", ["race"]),
    ):
        for policy in POLICIES:
            assert store(tmap, memory, source, (0, 0), fence=fence, policy=policy).kinds == kinds, (fence, policy)
    # Each lane fences what it wrote, and the one that stores knows nothing of it; lanes="off" takes a warp as one.
    late = "bar.sync 0; fence.proxy.async.shared::cta;"
    for policy, kinds in ((Policy(fences="writers"), ["race"]), (Policy(fences="writers", lanes="off"), [])):
        assert store(tmap, memory, source, (0, 0), fence=late, policy=policy).kinds == kinds
    assert store(tmap, memory, source, (0, 0), fence=late).kinds == ["lint"]


def test_another_warps_writes_need_its_own_fence() -> None:
    """64 threads fill the tile; a fence by the storing thread alone, after the barrier, is what PTX asks for."""
    tmap, memory = tiled("i32", (32, 8), (32, 8), "none")
    fill = "mad.lo.u32 %r3, %r0, 16, %r1; st.shared.v4.b32 [%r3], {%r0, %r0, %r0, %r0};"
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; setp.eq.u32 %p0, %r0, 0; {fill}
    bar.sync 0; @!%p0 bra END; fence.proxy.async.shared::cta;
    {STORE.format(rank=2)} [%map, {{0, 0}}], [%r1]; {COMMIT} cp.async.bulk.wait_group 0;
    END:"""
    for policy, kinds in ((Policy(strict=True), ["race"]), (Policy(fences="writers"), ["race"]), (None, ["lint"])):
        result = run(body, setting(tmap, memory), shared=SHARED, block=64, policy=policy)
        assert result.kinds == kinds
    assert 'Policy(fences="writers") asks for that' in result.findings[0].message
    without = body.replace("fence.proxy.async.shared::cta;", "")
    assert run(without, setting(tmap, memory), shared=SHARED, block=64).kinds == ["race"]


def test_overwriting_the_source_of_a_pending_store_is_a_race() -> None:
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


def test_a_store_keeps_the_bytes_it_has_read() -> None:
    tmap, memory = tiled("i32", (8, 4), (8, 4), "none")
    after = "cp.async.bulk.wait_group.read 0; st.shared.b32 [%r1], %r10; cp.async.bulk.wait_group 0;"
    store(tmap, memory, np.ones(32, np.int32).view(np.uint8), (0, 0), after=after)
    assert (memory.view(np.int32) == 1).all()


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


def test_a_map_larger_than_its_buffer_is_refused() -> None:
    tmap, memory = tiled("bf16", (64, 8), (64, 8), "128B")
    long = replace(tmap, extents=(64, 9))
    load(long, memory, (0, 0))
    with pytest.raises(EmulatorError, match="reaches to byte 1152 of buffer tensor, which has 1024"):
        load(long, memory, (0, 1))
    with pytest.raises(EmulatorError, match="reaches to byte"):
        load(long, memory, (0, 4))


ADD = "cp.reduce.async.bulk.tensor.{rank}d.global.shared::cta.add.tile.bulk_group"


@pytest.mark.parametrize(
    ("kind", "line", "said"),
    [
        ("bf16", 37, "writes elements 37 to 39 of a line, beyond the tensor's 37 of bf16"),
        ("u8", 47, "writes element 47 of a line, beyond the tensor's 47 of u8"),
        ("f32", 33, "writes elements 33 to 35 of a line, beyond the tensor's 33 of f32"),
        ("f64", 35, "writes element 35 of a line, beyond the tensor's 35 of f64"),
        ("bf16", 40, ""),
        ("f64", 36, ""),
    ],
)
def test_a_store_beyond_the_end_of_a_line(kind: str, line: int, said: str) -> None:
    """The hardware writes whole 16 bytes: it is done, and said, unless the policy says whose the pitch is."""
    tmap, memory = tiled(kind, (line, 6), (32, 8), "none")
    width = tmap.dtype.bytes
    source = np.full(32 * 8 * width, 7, np.uint8)
    for policy in (*POLICIES, Policy(edges=False)):
        target = np.zeros_like(memory)
        result = store(tmap, target, source, (32, 0), policy)
        assert result.kinds == ["edge"] * bool(said and policy.edges)
        assert all(said in finding.message for finding in result.findings)
        rows = target.reshape(6, -1)
        assert (rows[:, 32 * width :] == 7).all() and not rows[:, : 32 * width].any()


def test_a_box_that_holds_no_end_of_a_line_is_silent() -> None:
    """To the left of it; beyond it; and below the last row. No line is touched twice, none outside is."""
    tmap, memory = tiled("bf16", (37, 6, 4), (8, 4, 2), "none")
    source = np.full(8 * 4 * 2 * 2, 7, np.uint8)
    for place, kinds in (
        ((24, 0, 0), []), ((40, 0, 0), []), ((32, 8, 0), []), ((32, 0, 4), []), ((32, 4, 2), ["edge"]),
    ):  # fmt: skip
        assert store(tmap, memory.copy(), source, place).kinds == kinds, place


def test_a_reduction_beyond_the_end_of_a_line() -> None:
    tmap, memory = tiled("u32", (5, 2), (8, 4), "none")
    memory[:] = 0
    result = store(tmap, memory, np.ones(32, np.uint32).view(np.uint8), (0, 0), opcode=ADD)
    assert result.kinds == ["edge"]
    assert "a reduction (add) of the box at (0, 0) writes elements 5 to 7" in result.findings[0].message
    assert "reduction" in result.findings[0].message
    assert memory.view(np.uint32).reshape(2, 8).tolist() == [[1] * 8] * 2


def test_a_line_that_ends_with_its_buffer() -> None:
    """Bytes in the buffer are written; bytes beyond it are the output's own only by the policy."""
    tmap, memory = tiled("bf16", (37, 6), (32, 8), "none")
    source = np.full(512, 7, np.uint8)
    for opcode in (STORE, ADD):
        for policy in (Policy(), Policy(edges=False)):
            short = np.zeros(memory.size - 4, np.uint8)
            result = store(tmap, short, source, (32, 0), policy, opcode)
            assert result.kinds == ["edge"] * policy.edges
            assert all("4 bytes over the end of buffer tensor" in finding.message for finding in result.findings)
            assert (short.reshape(-1)[-2:] != 0).all()


def test_bytes_beyond_a_row_need_no_initialisation() -> None:
    """A tile filled only inside the tensor: bytes stored into the pitch are unused."""
    tmap, memory = tiled("f32", (5, 4), (8, 4), "none")
    fill = "mad.lo.u32 %r3, %r0, 32, %r1; @%p2 st.shared.v4.b32 [%r3], {%r0, %r0, %r0, %r0};"
    for count, kinds in ((5, ["edge"]), (4, ["uninitialised", "edge"])):
        last = "@%p2 st.shared.b32 [%r3+16], %r0;" if count == 5 else ""
        body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; setp.eq.u32 %p0, %r0, 0; setp.lt.u32 %p2, %r0, 4;
        {fill} {last} {FENCE} @!%p0 bra END;
        {STORE.format(rank=2)} [%map, {{0, 0}}], [%r1]; {COMMIT} cp.async.bulk.wait_group 0;
        END:"""
        assert run(body, setting(tmap, memory), shared=SHARED).kinds == kinds


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
        (GET.replace(".tile", ".im2col"), "an im2col copy has 3 to 5"),
        (GET.replace(".tile", ".tile::gather4"), "2 coordinates for 5"),
        (GET.replace(".mbarrier::complete_tx::bytes", ""), "completes on an mbarrier"),
        (GET.replace("shared::cluster", "shared::cta").replace("bytes", "bytes.multicast::cluster"), "multicast"),
        (GET.replace("bytes", "bytes.cta_group::4"), "cta_group::4 is not emulated"),
        (GET.replace("2d", "6d"), "1 to 5"),
        (GET.replace("{0, 0}", "{0, 0, 0}"), "3 coordinates for 2"),
        (GET.replace("[%r2];", "[%r2], %d0;"), "operands"),
        (STORE.format(rank=2).replace("tile", "tile::scatter4") + " [%map, {0, 0}], [%r1];", "2 coordinates for 5"),
        (GET.replace(".2d", ".3d").replace(".tile", ".tile::gather4"), "four rows are of a tensor of 2"),
        ("cp.reduce.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%map, {0, 0}], [%r1];", "a reduction is"),
        ("tensormap.replace.tile.rank.global.b1024.b64 [%map], 1;", "not emulated"),
    ],
)
def test_unknown_forms_are_errors_at_load(text: str, message: str) -> None:
    with pytest.raises(PtxError, match=message) as caught:
        program(module(text, {"map": "u64"}))
    assert "PTX line" in str(caught.value)
