"""A linked page's data, read back from its text and compared with its layouts."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import (
    TiledMma,
    feeds,
    fma,
    ldmatrix,
    mma_sync,
    operand_map,
    row_addresses,
    smem_tile,
    tcgen05_mma,
    wgmma,
)
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.page import plan_figure
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan
from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
from layoutgemm.kernels.teaching.plan import TeachingPlan
from layoutgemm.layouts import Layout, Swizzle
from layoutgemm.view.pages.banks import AccessConflicts
from layoutgemm.view.pages.copy import notes_of
from layoutgemm.view.pages.html import page
from layoutgemm.view.pages.model import MAX_ELEMENTS, Figure, PageMatrix, packed
from layoutgemm.view.pages.parts import layout_figure


def data_of(html: str) -> dict:
    return json.loads(re.search(r'id="data">(.*?)</script>', html).group(1))


def unpacked(form: dict[str, Any], extent: tuple[int, ...]) -> np.ndarray:
    """The table of a packed form, as the page reads it: the inverse of `packed`."""
    if "join" in form:
        rows, columns = np.array(form["rows"])[:, None], np.array(form["columns"])
        return rows + columns if form["join"] == "+" else rows ^ columns
    raw = np.frombuffer(base64.b64decode(form["base64"]), f"<i{form['bytes']}")
    return raw.astype(np.int64).reshape(extent)


class Shown:
    """A matrix of a page as the browser has it."""

    def __init__(self, html: str, name: str) -> None:
        self.data = data_of(html)
        self.spec = next(matrix for matrix in self.data["matrices"] if matrix["name"] == name)
        self.extent = tuple(self.spec["extent"])

    def table(self, number: int) -> np.ndarray:
        return np.broadcast_to(unpacked(self.data["tables"][number], self.extent), self.extent)

    def layers(self) -> list[tuple[np.ndarray, np.ndarray]]:
        held = self.spec["holders"]
        return [(self.table(t), self.table(v)) for t, v in zip(held["threads"], held["values"], strict=True)]

    def fact(self, name: str) -> np.ndarray:
        facts = [*self.spec["facts"], *((self.spec["memory"] or {}).get("facts", ()))]
        return self.table(next(fact["table"] for fact in facts if fact["name"] == name))


def all_pairs(shown: Shown) -> set[tuple[int, int, int, int]]:
    """(thread, value, row, column) of all layers."""
    found = set()
    for threads, values in shown.layers():
        for (row, column), thread in np.ndenumerate(threads):
            if thread >= 0:
                found.add((int(thread), int(values[row, column]), row, column))
    return found


ATOMS = [
    mma_sync((16, 8, 16)), mma_sync((16, 8, 8), "tf32"), mma_sync((16, 8, 32), "e4m3"), mma_sync((8, 8, 4), "f64"),
    wgmma(8), wgmma(24, a_source="rmem"),
]  # fmt: skip


@pytest.mark.parametrize("atom", ATOMS, ids=str)
def test_an_atom_is_held_as_its_maps_say(atom):
    html = atom.html()
    for operand in "ABC":
        shown = Shown(html, operand)
        if {"A": atom.a_source, "B": atom.b_source, "C": "rmem"}[operand] != "rmem":
            assert shown.spec["holders"] is None
            continue
        layout = atom.layout(operand)
        want = {
            (t, v, *(int(x) for x in atom.coords(operand)(t, v)))
            for t in range(layout[0].size) for v in range(layout[1].size)
        }  # fmt: skip
        assert all_pairs(shown) == want


def test_quad_pairs_have_the_lanes_of_the_warp():
    atom = mma_sync((8, 8, 4), "f16", c="f32")
    lanes = {thread for thread, *_ in all_pairs(Shown(atom.html(), "C"))}
    assert lanes == set(atom.thread_ids.offsets().tolist()) == {0, 1, 2, 3, 16, 17, 18, 19}


def test_a_tiled_product_has_every_holder():
    tiled = TiledMma(mma_sync((16, 8, 16)), (2, 2, 1), (32, 32, 16))
    html = tiled.html(extent=(64, 32, 32))
    for operand, extent in (("A", (64, 32)), ("B", (32, 32)), ("C", (64, 32))):
        view = tiled.view(operand, extent)
        threads, values, rest = view.shape
        want = {
            (t, v + values * (i + rest[0] * j), *(int(x) for x in view(t, v, (i, j))))
            for t in range(threads) for v in range(values) for i in range(rest[0]) for j in range(rest[1])
        }  # fmt: skip
        assert all_pairs(Shown(html, operand)) == want


def test_one_thread_an_element():
    tiled = TiledMma(fma("f32"), (4, 4, 1))
    assert len(Shown(tiled.html(), "A").layers()) == 4  # of the threads along n
    assert all_pairs(Shown(tiled.html(), "C")) == {(t, 0, t % 4, t // 4) for t in range(16)}


TILES = [
    smem_tile((64, 64), "bf16", "K"), smem_tile((64, 128), "bf16", "K", "64B"),
    smem_tile((96, 64), "bf16", "MN", "32B"),
    smem_tile((8, 64), "e4m3", "K", "64B"), smem_tile((32, 32), "f32", "K"), smem_tile((8, 128), "e2m1", "K"),
    smem_tile((8, 32), "e2m1", "K", packing="b4x16_p64"), smem_tile((16, 64), "f64", "K"),
]  # fmt: skip


@pytest.mark.parametrize("tile", TILES, ids=str)
def test_a_tile_lies_where_it_says(tile):
    shown = Shown(tile.html(), "tile")
    mn, k = np.indices(tile.extent)
    bit = np.asarray(tile.bit(mn, k))
    memory = shown.spec["memory"]
    assert np.array_equal(shown.table(memory["start"]) * memory["grain"], bit)
    assert memory["grains"] * memory["grain"] == tile.dtype.bits
    assert memory["line"] * memory["grain"] == 1024 and memory["ticks"] == list(range(0, 32, 4))
    assert np.array_equal(shown.fact("byte offset"), bit // 8)
    assert np.array_equal(shown.fact("bank"), bit // 32 % 32)


def test_a_descriptor_reaches_an_element_where_it_lies():
    atom, tile = wgmma(64), smem_tile((64, 64), "bf16", "K")
    shown = Shown(atom.html(a=tile), "A")
    fact = next(f for f in shown.spec["memory"]["facts"] if f["name"] == "read by the descriptor")
    which = shown.table(fact["table"])
    for k_block in range(4):
        (number,) = set(which[:, 16 * k_block : 16 * k_block + 16].ravel().tolist())
        word, rest = fact["labels"][number].split(", ", 1)
        assert f"block {k_block} along k" in rest
        # the address field counts 16 bytes: PTX ISA, "Matrix Descriptor"
        assert int(word, 16) & 0x3FFF == int(tile.byte(0, 16 * k_block)) // 16


@pytest.mark.parametrize(("operand", "count", "transpose", "major"), [
    ("A", 4, False, "K"), ("A", 4, True, "MN"), ("B", 2, False, "K"), ("B", 1, True, "MN"), ("B", 4, False, "K"),
])  # fmt: skip
def test_the_lane_that_gives_an_address(operand, count, transpose, major):
    """Against `row_addresses`, which says of every lane where its row begins."""
    atom, copy = mma_sync((16, 8, 16)), ldmatrix(count, transpose=transpose, element="bf16")
    blocks = {("A", 4): (1, 1), ("B", 2): (1, 1), ("B", 1): None, ("B", 4): (1, 2)}[operand, count]
    if blocks is None:  # two loads of one matrix each
        blocks = (1, 1)
    rows, depth = atom.tile_of(operand)
    extent = (rows * blocks[0], depth * blocks[1])
    tile = smem_tile((64, 64), "bf16", major)
    options = {f"{operand.lower()}": tile, f"copy_{operand.lower()}": copy}
    shown = Shown(atom.html(**options), operand)
    lane, load = (np.array(shown.fact(name)) for name in ("row address from", "loaded by"))
    addresses = row_addresses(copy, tile, atom, operand, blocks)
    byte = np.asarray(tile.byte(*np.indices((64, 64))))
    wanted = operand_map(copy, atom, operand, blocks)
    for t in range(32):
        for i in range(int(wanted[1].size)):
            at = int(addresses(t, i)) * 2
            (row, column) = np.argwhere(byte == at)[0]
            assert row < extent[0] and column < extent[1] and load[row, column] == i
            assert lane[row, column] == t or t >= 8 * count  # lanes beyond the rows repeat others
            run = (slice(row, row + 8), column) if major == "MN" else (row, slice(column, column + 8))
            assert len(set(lane[run].tolist())) == 1
    assert feeds(copy, tile, atom, operand, blocks)


def test_a_copy_is_found_or_refused():
    atom, tile = mma_sync((16, 8, 16)), smem_tile((16, 64), "bf16", "K")
    assert "x4.shared" in page_facts(atom.html(a=tile), "A")
    with pytest.raises(LayoutError, match="does not load A"):
        atom.html(a=tile, copy_a=ldmatrix(4, transpose=True, element="bf16"))
    with pytest.raises(LayoutError, match="give the tile of A"):
        atom.html(copy_a=ldmatrix(4))
    # no ldmatrix transposes words of 32 bits: nothing is told
    words = smem_tile((32, 32), "tf32", "MN", "128B_ATOM_32B")
    assert [f["name"] for f in Shown(mma_sync((16, 8, 8), "tf32").html(a=words), "A").spec["memory"]["facts"]] == [
        "byte offset", "line", "bank"]  # fmt: skip


def page_facts(html: str, operand: str) -> str:
    return json.dumps(Shown(html, operand).spec["memory"]["facts"])


def test_tensor_memory():
    atom = tcgen05_mma("f16", 256, 64, "bf16", cta_group=2)
    half = smem_tile((128, 64), "bf16", "K")
    html = atom.html(a=half, b=smem_tile((32, 64), "bf16", "K"))
    shown, a = Shown(html, "C"), Shown(html, "A")
    assert shown.extent == (256, 64) and data_of(html)["holder"]["name"] == "lane"
    ((lane, column),) = shown.layers()
    place = atom.accumulator.layout
    for row, n in ((0, 0), (5, 9), (127, 63), (128, 0), (200, 33)):
        at = place(row % 128, n, 0)
        assert (lane[row, n], column[row, n]) == (128 * (row // 128) + int(at[0]), int(at[1]))
    assert a.fact("block")[130, 3] == 1 == a.fact("shared memory of block")[130, 3]
    assert a.fact("byte offset")[130, 3] == half.byte(2, 3)


@pytest.mark.parametrize("layout", [
    Layout((8, (4, 4)), (4, (1, 32))), Layout(7, 3), Layout((4, 8), (0, 1)), Layout((5, 3), (7, 40)),
    Swizzle(2, 3, 3) @ Layout((8, 32), (32, 1)),
], ids=str)  # fmt: skip
def test_a_layout_lies_at_its_offsets(layout):
    shown = Shown(layout.html(), "layout")
    want = [[layout(j) if layout.rank == 1 else layout(i, j) for j in range(shown.extent[1])]
            for i in range(shown.extent[0])]  # fmt: skip
    assert shown.fact("offset").tolist() == want
    assert shown.table(shown.spec["memory"]["start"]).tolist() == want


@pytest.mark.parametrize("layout", [Layout((4, 8, 3), (1, 4, 40)), Layout((2, 3, (2, 2), 5), (60, 1, (3, 6), 12))])
def test_planes_hold_the_offsets_of_further_modes(layout):
    (matrix,) = layout_figure(layout).matrices
    extents = [mode.size for mode in layout]
    assert matrix.planes.extents == tuple(extents[2:]) and matrix.planes.width == extents[1]
    for at in np.ndindex(*extents):
        plane = np.ravel_multi_index(at[:1:-1], extents[:1:-1])  # the third mode fastest
        assert matrix.facts[0].table[at[0], at[1] + extents[1] * plane] == layout(*at)
    modes = [paint for paint in matrix.paints if paint.name.startswith("mode")]
    assert [paint.name[-1] for paint in modes] == list("ijkl"[: len(extents)])
    assert [int(paint.table.max()) + 1 for paint in modes] == extents


def test_coordinates_and_thread_values():
    shown = Shown(Layout.identity((4, 8)).html(), "layout")
    assert shown.fact("coordinate 1")[2, 5] == 5 and shown.spec["memory"] is None
    tv = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
    shown = Shown(tv.html(tile=(16, 8)), "tile")
    assert all_pairs(shown) == {(t, v, tv(t, v) % 16, tv(t, v) // 16) for t in range(32) for v in range(4)}


# ------------------------------------------------------------------------------------------------------------- plans


def test_hopper_deals_out_its_rows():
    plan = Sm90Plan.derive(512, 512, 512, b="bf16:col", config=Sm90Config((256, 96), cluster=(2, 1)))
    shown = Shown(plan.html(), "C")
    ((thread, value),) = shown.layers()
    owner = plan.mma.owner("C")
    for row, column in ((0, 0), (70, 17), (130, 50), (255, 95)):
        t, v = (int(x) for x in owner(row % 64, column))
        consumer, block = divmod(row // 64, plan.blocks)
        assert (thread[row, column], value[row, column]) == (128 * consumer + t, v + 48 * block)
    assert shown.data["holder"]["count"] == 256
    pingpong = Sm90Plan.derive(512, 512, 512, config=Sm90Config((128, 64), schedule="pingpong", loader="warp"))
    assert Shown(pingpong.html(), "C").data["holder"]["count"] == 128


@pytest.mark.parametrize("types", [("bf16", "bf16:col"), ("i8:col", "i8"), ("tf32:col", "tf32"), ("bf16:col", "bf16")])
def test_ampere_deals_out_its_products(types):
    """C against the plan's own store, A and B against the bytes it loads."""
    plan = Sm80Plan.derive(256, 256, 256, a=types[0], b=types[1], config=Sm80Config((64, 64), warps=(2, 2)))
    html = plan.html()
    ((thread, value),) = Shown(html, "C").layers()
    per = plan.mma.accumulator_registers
    for row, column in ((0, 0), (9, 3), (37, 41), (63, 63), (40, 18)):
        t, v = int(thread[row, column]), int(value[row, column])
        warp, product = divmod(t, 32)[0], v // per
        m, n = product % plan.blocks[0], product // plan.blocks[0]
        i, j = (int(x) for x in plan.mma.coords_C(t % 32, v % per))
        along_m, along_n = plan.warp_place(warp)
        orders = plan.a.load.order, plan.b.load.order
        at = 16 * m + orders[0](i), 16 * (n // 2) + orders[1](8 * (n % 2) + j)
        assert (row, column) == (along_m * plan.a.warp_extent + at[0], along_n * plan.b.warp_extent + at[1])
    for operand in (plan.a, plan.b):
        shown = Shown(html, operand.name)
        assert len(shown.layers()) == 2  # warps along the other dimension share it
        fact = next(f for f in shown.spec["memory"]["facts"] if f["name"] in ("read by", "row address from"))
        lane, offset = shown.table(fact["table"]), shown.fact("byte offset")
        for index in operand.load.places.of:
            at = np.asarray(operand.load.byte(operand.smem, np.arange(32), 1, index))
            for t in (0, 13, 31):
                assert {int(x) for x in lane[offset == at[t]]} == {t}


def test_other_plans_and_sizes():
    first = TeachingPlan.derive(200, 136, 72, b="bf16:col")
    assert Shown(first.html(), "B").extent == (64, 64)
    pair = Sm100Plan.derive(512, 512, 512, config=Sm100Config((256, 256)))
    assert Shown(pair.html(), "B").fact("shared memory of block").max() == 1
    largest = Sm90Plan.derive(8192, 8192, 8192, a="e4m3", b="e4m3:col", config=Sm90Config((256, 256)))
    assert sum(m.extent[0] * m.extent[1] for m in plan_figure(largest).matrices) == MAX_ELEMENTS
    assert len(largest.html()) < 1_000_000
    with pytest.raises(LayoutError, match="no page"):
        plan_figure(object())


# ------------------------------------------------------------------------------------------------------------- refusals


def test_refusals():
    with pytest.raises(LayoutError, match=r"up to 131072 elements; layout 512x512 are 262144"):
        Layout((512, 512)).html()
    with pytest.raises(LayoutError, match=r"up to 131072 elements; layout 64x8192"):
        Layout((64, 64, 128)).html()
    with pytest.raises(LayoutError, match="holds f16, and A of"):
        wgmma(64).html(a=smem_tile((64, 64), "f16", "K"))
    with pytest.raises(LayoutError, match=r"tile of A has 64x64 elements, .* 64x64x32 has an A of 64x32"):
        wgmma(64).html(a=smem_tile((64, 64), "bf16", "K"), b=smem_tile((64, 32), "bf16", "K"))
    with pytest.raises(LayoutError, match="M = 96 is no multiple of 64"):
        wgmma(64).html(extent=(96, 64, 16))
    with pytest.raises(LayoutError, match="no descriptor hands this tile over"):
        wgmma(64, "tf32").html(b=smem_tile((64, 32), "tf32", "MN"))


def test_nothing_is_fetched():
    html = wgmma(64).html()
    assert "default-src 'none'" in html
    assert not re.search(r"https?:|src=|@import|fetch\(|XMLHttpRequest|import\(", html)
    assert re.findall(r'href="([^"]*)"', html) == ["data:,"]


def test_text_of_a_title_is_escaped(tmp_path):
    file = Layout((2, 2)).html(tmp_path / "new" / "page.html", title="</script><b>")
    html = Layout((2, 2)).html(title="</script><b>")
    assert (
        "</script><b>" not in html
        and file == tmp_path / "new" / "page.html"
        and file.read_text(encoding="utf-8") == html
    )


@pytest.mark.parametrize(("table", "form"), [
    ([[1, 2], [3, 4]], "+"), ([[0, 1], [1, 0]], "^"), ([[5, 5]], "+"), ([[-1, 5], [3, 3]], 1), ([[0, 300], [7, 9]], 2),
    ([[0, 1 << 20], [7, 9]], 4),
])  # fmt: skip
def test_packing_has_an_inverse(table, form):
    made = packed(np.array(table))
    assert made.get("join", made.get("bytes")) == form
    assert unpacked(made, np.shape(table)).tolist() == table


def test_a_page_is_plain_json():
    figure = Figure("title", (), (PageMatrix("x", "", ("i", "j"), (2, 2)),))
    assert data_of(page(figure))["matrices"][0]["extent"] == [2, 2]


def test_a_note_says_which_tiles_were_assumed():
    """Only of shared memory that no tile was given for."""
    copy = ldmatrix(4)
    tile = Layout((8, 8), (8, 1))
    assumed = notes_of(copy, copy, None, None)
    assert len(assumed) == 2 and "src= takes a tile of your own" in assumed[1]
    assert len(notes_of(copy, copy, tile, None)) == 1


def test_lanes_that_meet_have_another_hue_than_those_that_do_not() -> None:
    paint = AccessConflicts(np.array([[0, 0, -1]]), np.array([[0, 1, -1]]), np.array([[-1, 0, -1]]), ()).paint
    alone, met, unread = (paint.table // paint.per)[0]
    assert dict(paint.legend)[int(alone)] != dict(paint.legend)[int(met)] and unread < 0


def test_a_product_is_by_threads_or_by_blocks() -> None:
    assert "64x16x16 by 128 threads." in wgmma(16, "bf16").html()
    assert "128x64x16 by one CTA." in tcgen05_mma("f16", 128, 64).html()


def test_a_layout_without_modes_has_no_page() -> None:
    with pytest.raises(LayoutError, match="it has 0 modes and a picture has rows and columns"):
        Layout(()).html()
