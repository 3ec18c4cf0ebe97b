"""The pictures show what the layouts do; and each picture, once looked at, stays as it is (golden/)."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from types import SimpleNamespace

import pytest

from layoutgemm.atoms import mma_sync, smem_tile
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import ComposedLayout, E, Layout, Swizzle
from layoutgemm.layouts.display import HasPicture
from layoutgemm.view import fragment_svg, layout_svg, swizzle_svg, tv_svg, tv_table
from layoutgemm.view.panel import NEXT, for_painting

Golden = Callable[[str, str], None]
Read = Callable[[str, str], list[list[str]]]

WGMMA_C = Layout(((4, 8, 4), (2, 2, 8)), ((128, 1, 16), (64, 8, 512)))
MMA_A = Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128)))
ATOM = SimpleNamespace(
    name="wgmma m64n64k16", shape_mnk=(64, 64, 16), layout_A=WGMMA_C, layout_B=WGMMA_C, layout_C=WGMMA_C
)
ROW_MAJOR = Layout((8, 64), (64, 1))
TILE_128B = ComposedLayout(Swizzle(3, 3, 3), 0, ROW_MAJOR)

PICTURES: dict[str, Callable[[], str]] = {
    "wgmma_m64n64k16_c.svg": lambda: fragment_svg(ATOM),
    "mma_m16n8k16_a.svg": lambda: tv_svg(MMA_A, (16, 16), title="mma.m16n8k16: fragment A", thread=5, axes=("m", "k")),
    "smem_8x64_bf16_128b.svg": lambda: swizzle_svg(TILE_128B, 16, title="8 x 64 bf16, 128-byte swizzle"),
    "layout_4x8.svg": lambda: layout_svg(Layout((4, (2, 4)), (2, (1, 8)))),
    "tv_broadcast.svg": lambda: tv_svg(Layout((4, (2, 2)), (0, (1, 4))), (4, 3)),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_stay_as_they_were_looked_at(name: str, golden: Golden) -> None:
    golden(name, PICTURES[name]())


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_well_formed(name: str) -> None:
    svg = PICTURES[name]()
    root = ET.fromstring(svg)
    space = "{http://www.w3.org/2000/svg}"
    title, description = root.find(f"{space}title"), root.find(f"{space}desc")
    assert title is not None and title.text and description is not None and description.text
    assert root.get("role") == "img"
    assert (root.get("aria-labelledby") or "").split() == [title.get("id"), description.get("id")]
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    assert root.get("viewBox") == f"0 0 {root.get('width')} {root.get('height')}"
    for node in root.iter(f"{space}text"):
        assert 0 < float(node.get("x", "-1")) < width, node.text
        assert 0 < float(node.get("y", "-1")) < height, node.text
    assert PICTURES[name]() == svg, "the same picture twice is the same text"


def test_ids_differ_between_pictures_of_one_page() -> None:
    ids = [found for draw in PICTURES.values() for found in re.findall(r' id="([^"]+)"', draw())]
    assert len(ids) == len(set(ids)) == 2 * len(PICTURES)


def test_wgmma_c_says_where_the_registers_are(read: Read) -> None:
    svg = PICTURES["wgmma_m64n64k16_c.svg"]()
    threads, values = read(svg, r"T\d+"), read(svg, r"V\d+")
    assert [len(row) for row in threads] == [len(row) for row in values] == [64] * 64
    for t in range(128):
        for v in range(32):
            row = 16 * (t // 32) + t % 32 // 4 + 8 * (v // 2 % 2)  # PTX ISA, wgmma.m64nNk16, figure of matrix D
            column = 8 * (v // 4) + 2 * (t % 4) + v % 2
            assert (threads[row][column], values[row][column]) == (f"T{t}", f"V{v}")
    assert re.findall(r">(V\d+ +\(.*\))<", svg)[:3] == ["V0  (0, 0)", "V1  (0, 1)", "V2  (8, 0)"]


def test_mma_a_says_where_the_registers_are(read: Read) -> None:
    svg = tv_svg(MMA_A, (16, 16))
    threads, values = read(svg, r"T\d+"), read(svg, r"V\d+")
    for t in range(32):
        for v in range(8):
            row, column = t // 4 + 8 * (v // 2 % 2), 2 * (t % 4) + v % 2 + 8 * (v // 4)
            assert (threads[row][column], values[row][column]) == (f"T{t}", f"V{v}")


def test_a_coordinate_layout_draws_the_same() -> None:
    basis = Layout(((4, 8), (2, 2, 2)), ((2 * E(1), E(0)), (E(1), 8 * E(0), 8 * E(1))))
    pictures = [tv_svg(tv, (16, 16), title="x").replace(str(tv), "") for tv in (MMA_A, basis)]
    strip = [re.sub(r"(title|desc)-[0-9a-f]{8}", "", picture) for picture in pictures]
    assert strip[0] == strip[1]


def test_layout_prints_its_offsets(read: Read) -> None:
    layout = Layout((4, (2, 4)), (2, (1, 8)))
    assert read(layout_svg(layout), r"\d+") == [[str(layout(i, j)) for j in range(8)] for i in range(4)]
    part = layout_svg(layout, rows=range(1, 3), columns=range(2, 5))
    assert read(part, r"\d+") == [["10", "11", "18"], ["12", "13", "20"]]
    axis = part[part.index("j \u2192") :]
    assert re.findall(r">(\d+)<", axis)[:5] == ["2", "3", "4", "1", "2"]


def test_layout_colours_neighbouring_offsets() -> None:
    svg = layout_svg(Layout((2, 8), (8, 1)), group=8)
    assert "0-7" in svg and "8-15" in svg
    drawn = re.findall(r'<path d="([^"]+)" fill="#77AADD"/>', svg)
    assert len(drawn) == 1 and drawn[0].count("M") == 1  # the whole first row is one run of one colour
    assert "after 8 groups the colours come again" in layout_svg(Layout((4, 8)), group=2)
    with pytest.raises(LayoutError, match="group=0"):
        layout_svg(Layout((2, 2)), group=0)


def test_rank_one_and_coordinates_and_negative_strides_draw(read: Read) -> None:
    assert read(layout_svg(Layout(3, 7)), r"\d+") == [["0", "7", "14"]]
    assert ["0,0", "0,1"] in read(layout_svg(Layout.identity((2, 2))), r"\d+,\d+")
    assert ["-1"] in read(layout_svg(Layout((2,), (-1,))), r"-\d+")


def banks(svg: str, read: Read) -> list[list[int]]:
    """First bank of every field."""
    return [[int(text.split()[1].split("-")[0]) for text in row] for row in read(svg, r"banks \d+-\d+")]


def test_swizzle_prints_banks(read: Read) -> None:
    want = [[4 * (chunk ^ row) for chunk in range(8)] for row in range(8)]
    assert banks(swizzle_svg(TILE_128B, 16), read) == want
    assert "are in different banks: conflict-free" in swizzle_svg(TILE_128B, 16)
    # The same tile, its swizzle on bytes and kept apart from the layout.
    apart = swizzle_svg(ROW_MAJOR, 16, swizzle=Swizzle(3, 4, 3, "bytes"))
    assert banks(apart, read) == want
    assert "S&lt;3,4,3&gt;[bytes] o (8,64):(64,1) by" in apart


def test_swizzle_counts_conflicts(read: Read) -> None:
    assert banks(swizzle_svg(ROW_MAJOR, 16), read) == [[4 * chunk for chunk in range(8)]] * 8
    assert "8-way conflict" in swizzle_svg(ROW_MAJOR, 16)
    assert "4-way conflict" in swizzle_svg(Layout((8, 32), (32, 1)), 16)
    assert "4-way conflict" in swizzle_svg(ComposedLayout(Swizzle(1, 3, 3), 0, ROW_MAJOR), 16)
    # One row read eight times is one access.
    assert "conflict-free" in swizzle_svg(Layout((8, 64), (0, 1)), 16)


def test_swizzle_turns_an_mn_major_tile(read: Read) -> None:
    across = swizzle_svg(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((64, 8), (1, 64))), 16)
    assert banks(across, read) == banks(swizzle_svg(TILE_128B, 16), read)
    assert "8 values of j" in across


def test_swizzle_without_whole_fields_prints_every_element(read: Read) -> None:
    rows = read(swizzle_svg(Layout((3, 9), (9, 1)), 32), r"\d+")
    assert rows == [[str((9 * i + j) % 32) for j in range(9)] for i in range(3)]


def test_text_is_escaped() -> None:
    title = '<script>&"\x07'
    svg = layout_svg(Layout((2, 2)), title=title)
    assert "<script>" not in svg
    assert (ET.fromstring(svg)[0].text or "").startswith('<script>&"')


def test_empty_and_shared_cells_are_told() -> None:
    svg = PICTURES["tv_broadcast.svg"]()
    assert ">+3</text>" in svg and ">-</text>" in svg
    assert "k more threads or values hold the same element" in svg and "no thread holds it" in svg


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: layout_svg(Layout((512, 256))), r"512 x 256 = 131072 cells.*rows=range\(64\)"),
        (lambda: layout_svg(Layout((4, 4)), rows=range(3, 6)), r"rows=range\(3, 6\).*4 rows"),
        (lambda: layout_svg(Layout((4, 4)), columns=range(0)), "shows nothing"),
        (lambda: layout_svg(SimpleNamespace(shape=("M", 2), stride=(1, 1))), "extent M.*needs numbers"),
        (lambda: tv_svg(Layout((4, 2, 2)), (4, 4)), "not a thread-value layout"),
        (lambda: tv_svg(WGMMA_C, (64, 32)), r"thread 0, value 16 gives 2048, which is row 0, column 32"),
        (lambda: tv_svg(MMA_A, (16, 16), thread=32), "there is no thread 32"),
        (lambda: tv_svg(MMA_A, (16, 16), color="lane"), "color='lane'"),
        (lambda: fragment_svg(ATOM, "E"), "operand 'E'"),
        (lambda: swizzle_svg(ROW_MAJOR, 0), "bits=0"),
        (lambda: swizzle_svg(Layout.identity((2, 2)), 16), "only offsets have banks"),
    ],
)
def test_refusals_say_what_to_do(draw: Callable[[], str], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        draw()


@pytest.mark.parametrize(
    "tv, tile", [(Layout((1 << 40, 1)), (4, 4)), (Layout((1, 1 << 40)), (4, 4)), (Layout((4, 1)), (1 << 40, 1 << 30))]
)
def test_what_no_table_holds_is_not_drawn(tv: Layout, tile: tuple[int, int]) -> None:
    for draw in (tv_svg, tv_table):
        with pytest.raises(LayoutError, match="more than 16777216: too many to tell who holds which"):
            draw(tv, tile, rows=range(4), columns=range(4))


def placed(element: ET.Element, x: float = 0, y: float = 0) -> list[tuple[float, float, str]]:
    """(x, y, text) of all texts, one in an element or several."""
    moved = re.match(r"translate\(([-\d.]+) ([-\d.]+)\)", element.get("transform", ""))
    x, y = (x + float(moved[1]), y + float(moved[2])) if moved else (x, y)
    found = [each for child in element for each in placed(child, x, y)]
    kind = element.tag.rpartition("}")[2]
    if kind in ("text", "texts", "cells"):
        lines = [element.text or ""] if kind == "text" else (element.text or "").split(NEXT)
        places = zip(element.get("x", "").split(), element.get("y", "").split(), lines, strict=True)
        found += [(round(x + float(a), 2), round(y + float(b), 2), line) for a, b, line in places]
    return found


@pytest.mark.parametrize(
    "drawn",
    [Layout((4, 8), (8, 1)), Layout((4, 3, 2), (E(1), E(0), 0)), mma_sync("m16n8k16"), smem_tile((8, 64), "bf16", "K")],
    ids=str,
)
def test_a_page_that_paints_gets_the_same_texts_at_the_same_places(drawn: HasPicture) -> None:
    plain = drawn.svg()
    with for_painting():
        painted = drawn.svg()
    assert sorted(placed(ET.fromstring(painted))) == sorted(placed(ET.fromstring(plain)))
    assert len(re.findall("<text |<texts |<cells ", painted)) < plain.count("<text ")
    assert "<title>" not in painted
