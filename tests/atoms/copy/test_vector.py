"""Vector copies and asynchronous copies of threads: what PTX has, what a layout allows."""

import itertools

import numpy as np
import pytest

from layoutgemm import ComposedLayout, Layout, Swizzle
from layoutgemm.atoms import (
    async_copies,
    bulk_copy,
    cp_async,
    load_global,
    load_shared,
    smem_tile,
    st_async,
    store_global,
    store_shared,
    universal_copy,
    vector_copies,
    widest,
)
from layoutgemm.errors import AtomError

REFUSALS = (
    (lambda: universal_copy(256, "u8", "smem", "rmem"), r"ld.shared has 8, 16, 32, ..., 128 bits; no .* copies 256"),
    (lambda: universal_copy(512), "no one instruction copies 512"),
    (lambda: universal_copy(96), "no one instruction copies 96"),
    (lambda: universal_copy(True), "bits of universal_copy must be an integer or None"),
    (lambda: universal_copy(16, "f32"), r"16 bits hold no whole elements of f32 \(32 bits\)"),
    (lambda: universal_copy(128, "e2m3"), "hold no whole elements of e2m3"),
    (lambda: universal_copy(32, "u8", "gmem", "smem"), "no ld or st copies 'gmem' -> 'smem'"),
    (lambda: load_global(32, cache="wt"), r"ld has the cache operators ca \(always\).*not 'wt'"),
    (lambda: store_global(32, cache="ca"), "st has the cache operators"),
    (lambda: load_global(32, cache="cv", evict="evict_last"), "not both: .cv, L1::evict_last"),
    (lambda: load_global(32, evict="last"), "L1 priority is one of"),
    (lambda: load_global(32, l2_prefetch=32), "64, 128, 256 bytes, not 32"),
    (lambda: load_global(32, order="relaxed"), "needs a scope"),
    (lambda: load_global(32, order="release", scope="gpu"), "not 'release'"),
    (lambda: store_global(32, order="acquire", scope="gpu"), "not 'acquire'"),
    (lambda: load_global(32, scope="gpu"), "order weak has no scope"),
    (lambda: load_global(32, cache="cg", order="relaxed", scope="gpu"), "relaxed takes no cache operator"),
    (lambda: load_global(32, evict="evict_last", order="volatile"), "volatile takes no cache hints"),
    (lambda: load_global(32, cache="lu", read_only=True), "ld.global.nc is weak and has ca, cg or cs"),
    (lambda: cp_async(2), "cp.async.ca copies 4, 8, 16 bytes, not 2"),
    (lambda: cp_async(32), "not 32"),
    (lambda: cp_async(8, "cg"), "cp.async.cg copies 16 bytes, not 8"),
    (lambda: cp_async(8, "cs"), "ca .always. and cg .global., not 'cs'"),
    (lambda: cp_async(8, src_bytes=12), "reads 0..8 of them, not 12"),
    (lambda: cp_async(8, src_bytes=-1), "not -1"),
    (lambda: cp_async(8, src_bytes="r1"), "not 'r1'"),
    (lambda: cp_async(8, l2_prefetch=32), "not 32"),
    (lambda: cp_async(4, element="f64"), "no whole elements of f64"),
    (lambda: cp_async(16, src_bytes="register").zeros, "known at run time"),
    (lambda: cp_async(16, element="f32").source_size(5), "copies 4 elements of f32; 5 cannot be valid"),
    (lambda: cp_async(4, element="e2m1").source_size(3), "12 bits: no whole bytes"),
    (lambda: bulk_copy(40), "40 is 2 x 16 \\+ 8"),
    (lambda: bulk_copy(0), "16 to 1048560 bytes, not 0"),
    (lambda: bulk_copy(1 << 20), "not 1048576"),
    (lambda: bulk_copy(32, "gmem", "gmem"), "not 'gmem' -> 'gmem'"),
    (lambda: bulk_copy(32, "smem", "gmem", multicast=True), "multicasts gmem -> smem alone"),
    (lambda: bulk_copy(32, byte_mask=True), "masks bytes smem -> gmem alone"),
    (lambda: bulk_copy(32).phases, "no lanes access shared memory"),
    (lambda: bulk_copy(32, "smem", "gmem").transaction_bytes(), "counts no bytes on an mbarrier"),
    (lambda: bulk_copy(32).transaction_bytes(0), "positive number of blocks"),
    (lambda: st_async(16), "st.async stores 32, 64, 128 bits, not 16"),
    (lambda: widest(Layout(8), "u8", alignment=12), "power of two"),
    (lambda: widest(Layout(8), "u8", limit=48), "one of 8, 16, 32, 64, 128, 256 bits, not 48"),
    (lambda: widest(smem_tile((64, 64), "bf16", "K").composed, "f32"), "swizzles 16-bit units and is said to count 32"),
)


@pytest.mark.parametrize("make, message", REFUSALS, ids=[row[1][:30] for row in REFUSALS])
def test_refusals(make, message):
    with pytest.raises(AtomError, match=message):
        make()


def test_every_atom_moves_what_its_name_says():
    names = set()
    for atom in (*vector_copies(), *async_copies()):
        assert atom.layout_src == atom.layout_dst and atom.layout_src[0].size == atom.threads == 1
        assert list(atom.layout_src.offsets()) == list(range(atom.bytes_per_thread("src")))
        names.add((atom.ptx, atom.bytes_per_thread("src")))
    assert len(names) == 22 + 12
    for atom in vector_copies():
        *_, vector, kind = (".v1." + atom.ptx.partition(atom.ptx.split(".")[1])[2].lstrip(".")).split(".")
        assert int(vector[1:]) * int(kind[1:]) == 8 * atom.bytes_per_thread("dst") == atom.bits == 8 * atom.alignment
    assert "sm_90a" not in load_global(256, "f32").archs and "sm_90a" in load_global(128, "f32").archs
    assert "sm_75" not in cp_async(16).archs and "sm_80" not in bulk_copy(16).archs
    assert "sm_80" not in load_global(32, order="relaxed", scope="cluster").archs


def test_phases_by_width():
    for bits, lanes in ((8, 32), (16, 32), (32, 32), (64, 16), (128, 8)):
        for atom in (load_shared(bits), store_shared(bits)):
            assert [len(p) for p in atom.phases] == [lanes] * (32 // lanes)
            assert sorted(itertools.chain(*atom.phases)) == list(range(32))
    assert cp_async(16).phases[1] == tuple(range(8, 16))
    # Lanes copy one after another unless told where they start.
    side = load_shared(128, "bf16").accesses("src")
    assert side[3][7] == (31, 248, 16)
    column = store_shared(32, "f32").accesses("dst", start=Layout(32, 33))
    assert [a.first for a in column[0]] == [33 * lane for lane in range(32)]


def test_recast_of_vectors():
    assert load_shared(128, "bf16").recast("f32").layout_src == load_shared(128, "f32").layout_src
    assert type(load_shared(128, "bf16").recast("f32")).__name__ == "VectorCopy"
    with pytest.raises(AtomError, match="moves no whole f32 at src: a thread has 16 bits"):
        load_shared(16, "bf16").recast("f32")


def blocks_are_whole(offsets, width):
    """True if the set of offsets consists of aligned groups of `width`."""
    present = set(offsets)
    return all({x // width * width + i for i in range(width)} <= present for x in present)


def test_widest_is_the_widest_that_memory_allows():
    # Small injective layouts, all of them: what can be cut into aligned groups of w, and nothing more.
    checked = 0
    for shape in itertools.product((1, 2, 3, 4), repeat=2):
        for stride in itertools.product((1, 2, 3, 4, 6, 8, 12), repeat=2):
            layout = Layout(shape, stride)
            if not layout.is_injective():
                continue
            want = max(w for w in (1, 2, 4, 8, 16) if blocks_are_whole(layout.offsets().tolist(), w))
            assert widest(layout, "u8").elements == want, (str(layout), want)
            checked += 1
    assert checked > 400


def test_widest_says_why():
    tile = smem_tile((64, 64), "bf16", "K", "128B")
    assert widest(tile.composed, "bf16", alignment=1024).elements == 8
    assert "limit" in widest(tile.composed, "bf16", alignment=1024).why
    wide = widest(tile.composed, "bf16", alignment=1024, limit=256)
    assert (wide.bits, wide.why) == (128, "S<3,3,3>[16b] keeps 8 elements together, not 16")
    six = widest(Layout((64, 6), (8, 1)), "f16")
    assert str(six) == "32 bits (2 elements): 6 consecutive element(s) are no multiple of 4"
    assert widest(Layout((64, 64), (65, 1)), "f32").why == "the stride 65 is a multiple of 1, not of 2"
    assert widest(Layout(64), "f32", alignment=4).why == "the address is a multiple of 4 bytes, not of 8"
    assert widest(Layout(64, 2), "e2m1").bits == 0
    # Two sides that run in different directions have single elements in common.
    both = widest(Layout((8, 8)), "f16", other=Layout((8, 8), (8, 1)))
    assert (both.elements, both.why) == (1, "the two layouts have 1 consecutive element(s) in common")
    shifted = ComposedLayout(Swizzle(0, 3, 3), 4, Layout(64))
    assert widest(shifted, "f16").why == "the offset 4 is a multiple of 4, not of 8"


def test_fits():
    assert load_shared(128, "bf16").fits(Layout((64, 64), (72, 1)))
    verdict = load_shared(128, "bf16").fits(Layout((64, 64), (68, 1)))
    assert not verdict and "multiple of 4, not of 8" in verdict.reason
    assert load_global(256, "f32").fits(Layout((64, 64), (64, 1)), alignment=32)
    assert not load_global(256, "f32").fits(Layout((64, 64), (64, 1)), alignment=16)


def test_zero_fill():
    copy = cp_async(16, "cg", "bf16", src_bytes=10)
    assert copy.zeros == 6 and cp_async(16).zeros == 0
    assert [cp_async(16, element="bf16").source_size(n) for n in range(9)] == [2 * n for n in range(9)]


def test_bulk_bytes():
    block = np.prod((64, 64)) * 2
    copy = bulk_copy(int(block), element="bf16", multicast=True)
    assert copy.transaction_bytes() == 8192 and copy.transaction_bytes(2) == 16384
    assert copy.alignment == 16 and copy.values_per_thread("dst") == 4096
