"""Pages that show the same elements twice, copies and swizzles, and block scales: read back, against the objects."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.atoms import (
    TiledMma,
    ldmatrix,
    make_tiled_copy,
    mma_sync,
    movmatrix,
    smem_tile,
    stmatrix,
    tcgen05_ld,
    tcgen05_mma,
    universal_copy,
)
from layoutgemm.atoms.mma.block_scales import provider
from layoutgemm.atoms.tiled.derived_copies import make_tiled_copy_A
from layoutgemm.checks import bank_conflicts, matrix_access, tiled_access
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import Layout, Swizzle
from tests.view.pages.test_model import Shown, all_pairs, data_of

SIDES = {"source": "src", "destination": "dst"}


@pytest.mark.parametrize("atom", [
    ldmatrix(1), ldmatrix(4), ldmatrix(2, transpose=True), stmatrix(2), movmatrix(), universal_copy(128, "bf16"),
], ids=str)  # fmt: skip
def test_a_copy_is_held_as_its_maps_say(atom):
    html = atom.html()
    for name, side in SIDES.items():
        shown, coords = Shown(html, name), atom.coords(side)
        in_memory = atom.space(side) in ("smem", "gmem")
        threads = atom.address_threads(side) if in_memory else range(atom.threads)
        want = set()
        for t in threads:
            for v in range(atom.values_per_thread(side)):
                at = coords(t, v)
                row, column, *matrix = at if len(at) > 1 else (0, *at)
                want.add((t, v, row + 8 * sum(matrix), column))
        assert all_pairs(shown) == want
        if atom.space(side) == "smem":  # packed: 16 bytes a row, or what one thread moves
            row, column = np.indices(shown.extent)
            byte = 2 * (shown.extent[1] * row + column)
            assert np.array_equal(shown.fact("byte offset"), byte)
            assert np.array_equal(shown.fact("bank"), byte // 4 % 32)
        else:
            assert shown.spec["memory"] is None


def test_a_register_and_the_byte_that_comes_there():
    shown = Shown(ldmatrix(4).html(), "destination")
    ((thread, value),) = shown.layers()
    assert shown.spec["holders"]["labels"][value[17, 5]] == "5: register 2, bits 16-31" and thread[17, 5] == 6


def test_tensor_memory_has_lanes_and_columns():
    atom = tcgen05_ld("16x256b", 1)
    html = atom.html()
    assert Shown(html, "source").spec["dims"] == ["lane", "column"]
    want = {(t, v, *(int(x) for x in atom.tmem(t, v))) for t in range(32) for v in range(atom.registers)}
    assert all_pairs(Shown(html, "source")) == all_pairs(Shown(html, "destination")) == want


@pytest.mark.parametrize(("tile", "ways"), [(smem_tile((32, 64), "bf16", "K"), 1), (Layout((32, 64), (64, 1)), 8)])
def test_a_tiled_copy_and_what_it_meets(tile, ways):
    """Against `tv_layout` and the bytes of the tile; the lanes that meet against the report of the same access."""
    copy = make_tiled_copy(universal_copy(128, "bf16", "smem", "rmem"), Layout((32, 8)), Layout((1, 8)))
    html = copy.html(src=tile)
    shown = Shown(html, "source")
    at = np.indices((32, 64))
    assert np.array_equal(shown.fact("byte offset"), tile.byte(*at) if ways == 1 else 2 * tile(*at))
    for name, side in SIDES.items():
        tv = copy.tv_layout(side)
        assert all_pairs(Shown(html, name)) == {
            (t, v, int(tv(t, v)) % 32, int(tv(t, v)) // 32) for t in range(copy.threads) for v in range(copy.values)
        }
    report = bank_conflicts(tile, tiled_access(copy, (32, 64)), element="bf16")
    assert report.ways == ways
    rivals = shown.table(shown.spec["rivals"])
    # of the eight rows of a phase all lanes meet, or none
    assert [len(set(rivals[:8, 0].tolist())), int(rivals.max()) >= 0] == [1, ways > 1]


def test_ldmatrix_of_a_tiled_product():
    mma = TiledMma(mma_sync((16, 8, 16)), (2, 1, 1))
    html = make_tiled_copy_A(ldmatrix(4, element="bf16"), mma).html(src=Layout((32, 16), (16, 1)))
    view = mma.view("A", (32, 16))
    held = {(t, v, *(int(x) for x in view(t, v, 0))) for t in range(64) for v in range(8)}
    places = {(t, row, column) for t, _, row, column in held}
    assert {(t, row, column) for t, _, row, column in all_pairs(Shown(html, "destination"))} == places
    # rows of 32 bytes: every fourth is in the same banks, so two lanes of a phase meet
    meets = next(f for f in Shown(html, "source").spec["facts"] if f["name"] == "meets")
    assert "lanes 0, 4: 2 words of bank 0" in meets["labels"]


SWIZZLES = [
    (Swizzle(3, 4, 3, "bytes"), Layout((8, 64), (64, 1)), 16), (Swizzle(3, 3, 3), None, None),
    (Swizzle(2, 4, 3, "bytes"), Layout((16, 32), (32, 1)), 16), (Swizzle(1, 4, 3, "bytes"), Layout((16, 16)), 16),
]  # fmt: skip


@pytest.mark.parametrize(("swizzle", "layout", "bits"), SWIZZLES, ids=str)
def test_a_swizzle_before_and_after(swizzle, layout, bits):
    html = swizzle.html(layout=layout, bits=bits)
    before, after = Shown(html, "before"), Shown(html, "after")
    layout, bits = (layout, bits) if bits else (Layout((8, 64), (64, 1)), 16)
    offset = np.asarray(layout(*np.indices(before.extent)))
    assert np.array_equal(before.fact("byte offset"), offset * bits // 8)
    moved = swizzle(offset * bits // 8) if swizzle.unit == 8 else swizzle(offset) * bits // 8
    assert np.array_equal(after.fact("byte offset"), moved) and np.array_equal(after.fact("bank"), moved // 4 % 32)


def test_lanes_that_meet_are_those_of_the_report():
    """Every group of rivals: as many different words of one bank as the report has ways, in the lanes that it names."""
    layout, rows = Layout((16, 64), (64, 1)), matrix_access((16, 64), "bf16")
    for swizzle, ways in ((Swizzle(3, 4, 3, "bytes"), (8, 1)), (Swizzle(1, 4, 3, "bytes"), (8, 4))):
        html = swizzle.html(layout=layout, bits=16)
        for name, expected in zip(("before", "after"), ways, strict=True):
            shown = Shown(html, name)
            rivals, bank, byte = shown.table(shown.spec["rivals"]), shown.fact("bank"), shown.fact("byte offset")
            ((access, _),) = shown.layers()
            found = {1}
            for group in set(rivals[rivals >= 0].tolist()):
                mine = rivals == group
                words = [len(set((byte[mine & (bank == b)] // 4).tolist())) for b in set(bank[mine].tolist())]
                assert len(set(access[mine].tolist())) == max(words)
                found.add(max(words))
            assert max(found) == expected
            meets = next(f for f in shown.spec["facts"] if f["name"] == "meets")
            assert (len(meets["labels"]) > 1) == (expected > 1)
    assert data_of(html)["holder"]["count"] == 32 * rows.requests


def test_scales_of_mma_sync():
    """Against `provider`, which says whose byte the instruction takes for each thread-id."""
    atom = mma_sync((16, 8, 64), "e2m1", kind="mxf4")
    html = atom.html()
    assert data_of(html)["blocks"] == {"block": ["k", 32]}
    for name, copies in (("SFA", 2), ("SFB", 4)):
        pairs = all_pairs(Shown(html, name))
        rows, blocks = atom.tile_of(name)
        want = {
            (*provider(atom, name, row, block, thread_id=i), row, block)
            for row in range(rows) for block in range(blocks) for i in range(copies)
        }  # fmt: skip
        assert pairs == want


def test_scales_of_a_tiled_product():
    """A lane holds the factor of its own rows of A: warp along m, instruction along k."""
    tiled = TiledMma(mma_sync((16, 8, 64), "e2m1", kind="mxf4"), (2, 2, 1))
    shown = Shown(tiled.html(extent=(64, 16, 128)), "SFA")
    assert shown.extent == (64, 4)
    for t, v, row, block in all_pairs(shown):
        warp, instruction = t // 32, v // 2
        m, lane = warp % 2, t % 32
        at = lane // 4 + 8 * (lane % 2), v % 2
        assert (row, block) == (16 * m + 32 * (instruction % 2) + at[0], 2 * (instruction // 2) + at[1])


@pytest.mark.parametrize("group", [1, 2])
def test_scales_in_tensor_memory(group):
    atom = tcgen05_mma("mxf8f6f4", 128 * group, 64, "e4m3", cta_group=group)
    html = atom.html(extent=(128 * group, 64, 64))
    for name in ("SFA", "SFB"):
        home, shown = atom.scale_layout(name[2], 2).layout, Shown(html, name)
        rows = 128 if name == "SFA" else 64
        want = set()
        for row in range(shown.extent[0]):
            for block in range(2):
                for copy in range(int(home[2].size)):
                    lane, column, bit = (*home(row % rows, block, copy), 0)[:3]
                    for cta in [row // rows] if name == "SFA" else range(group):
                        want.add((int(lane) + 128 * cta, 4 * int(column) + int(bit) // 8, row, block))
        assert all_pairs(shown) == want


def test_large_pages_are_small():
    made = [
        Swizzle(3, 4, 3, "bytes").html(layout=Layout((256, 256), (256, 1)), bits=16),
        make_tiled_copy(universal_copy(128, "bf16", "smem", "rmem"), Layout((128, 2)), Layout((1, 8))).html(
            src=Layout((128, 16), (16, 1))),
        tcgen05_ld("32x32b", 128).html(),
    ]  # fmt: skip
    assert max(map(len, made)) < 300_000


def test_refusals():
    copy = make_tiled_copy(universal_copy(128, "bf16", "smem", "rmem"), Layout((32, 8)), Layout((1, 8)))
    with pytest.raises(LayoutError, match="src has 16x64 elements, and the copy moves 32x64"):
        copy.html(src=smem_tile((16, 64), "bf16", "K"))
    with pytest.raises(LayoutError, match="src holds f32, and"):
        copy.html(src=smem_tile((32, 64), "f32", "K"))
    with pytest.raises(LayoutError, match="is in registers, which no layout lays out"):
        copy.html(dst=Layout((32, 64)))
    with pytest.raises(LayoutError, match="is in global memory, and a tile in shared memory"):
        loads = universal_copy(128, "bf16", "gmem", "rmem")
        make_tiled_copy(loads, Layout((32, 8)), Layout((1, 8))).html(src=smem_tile((32, 64), "bf16", "K"))
    with pytest.raises(LayoutError, match="up to 131072 elements; before 512x256, after 512x256 are 262144"):
        Swizzle(3, 4, 3, "bytes").html(layout=Layout((512, 256), (256, 1)), bits=16)
