"""Pictures of atoms, copies, swizzles, words, boxes, memory, orders, timelines: what they say, read back out."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import (
    SmemDescriptor,
    TiledMma,
    ldmatrix,
    make_tiled_copy,
    mma_sync,
    smem_tile,
    tcgen05_cp,
    tcgen05_ld,
    tcgen05_mma,
    tma_load,
    tma_store,
    universal_copy,
    wgmma,
)
from layoutgemm.atoms.smem.descriptor_words import smem_table
from layoutgemm.checks import matrix_access, ring, thread_access
from layoutgemm.checks.pipeline.actions import ForK
from layoutgemm.checks.pipeline.model import Pipeline
from layoutgemm.checks.pipeline.patterns import (
    cluster_ring,
    multistage,
    pingpong,
    self_loading,
    tcgen05_ring,
)
from layoutgemm.errors import DescriptorError, LayoutError
from layoutgemm.layouts import Layout, LinearLayout, Swizzle, parse
from layoutgemm.schedule import Grouped, Hilbert, Persistent
from layoutgemm.view import (
    Region,
    access_svg,
    box_svg,
    copy_svg,
    fields_svg,
    fragment_svg,
    layout_svg,
    layout_table,
    pipeline_svg,
    product_svg,
    product_table,
    schedule_svg,
    smem_map_svg,
    swizzle_pair_svg,
    swizzle_svg,
    tiled_copy_svg,
    tiled_mma_svg,
    timeline_svg,
    tv_svg,
    tv_table,
)
from layoutgemm.view.banks import bank_panel
from layoutgemm.view.diagrams.tmem import tmem_operands, tmem_panel
from layoutgemm.view.grid import DividedLayout, planes_of
from layoutgemm.view.palette import HUES, lighter
from layoutgemm.view.threads import ODD

Golden = Callable[[str, str], None]
Read = Callable[[str, str], list[list[str]]]
SVG = "{http://www.w3.org/2000/svg}"

ROWS = Layout((8, 64), (64, 1))
SW128 = Swizzle(3, 4, 3, "bytes")
MMA = mma_sync("m16n8k16", "bf16")
RAGGED = tma_load(Layout((200, 104), (104, 1)), smem_tile((128, 128), "bf16", "K"))
COPY = make_tiled_copy(universal_copy(128, "bf16"), Layout((8, 8), (8, 1)), Layout((1, 8)))
COPY_3D = make_tiled_copy(universal_copy(64, "bf16"), Layout((4, 2, 2), (2, 1, 8)), Layout((1, 4, 1)))
REGIONS = [
    *[Region("A", i * 16384, 16384, i, "128x64 bf16") for i in range(3)],
    *[Region("full", 49152 + 8 * i, 8, i) for i in range(3)],
    Region("C", 0, 32768),
]
TIMELINE: dict[str, Any] = {
    "unit": "instructions of a warp",
    "cut": 3,
    "rows": [
        {"cta": [0, 0, 0], "warp": 0, "engine": "", "role": "loads",
         "spans": [["wait", 0, 40, "mbarrier 0x40 parity 1", 5, 1], ["load", 40, 44, "cp.async.bulk.tensor", 9, 2]]},
        {"cta": [0, 0, 0], "warp": 1, "engine": "", "role": "mma + epilogue",
         "spans": [["wait", 2, 90, "mbarrier 0x0 parity 0", 20, 1], ["mma", 90, 130, "wgmma.mma_async", 31, 1],
                   ["store", 140, 150, "st.global", 44, 8]]},
        {"cta": [1, 0, 0], "warp": 0, "engine": "", "role": "loads", "spans": [["load", 0, 1, "x", 9, 1]]},
        {"cta": [0, 0, 0], "warp": None, "engine": "copy engine, loads", "role": "",
         "spans": [["load", 41, 90, "cp.async.bulk.tensor", 9, 1]]},
    ],
}  # fmt: skip
GOLDEN: dict[str, Callable[[], str]] = {
    "product_m8n8k4_f64.svg": lambda: product_svg(mma_sync("m8n8k4", "f64"), thread=5),
    "tiled_2x1x1_m16n8k8.svg": lambda: tiled_mma_svg(TiledMma(mma_sync("m16n8k8", "tf32"), (2, 1, 1))),
    "copy_ldmatrix_x1.svg": lambda: copy_svg(ldmatrix(1), color="register"),
    "copy_tcgen05_ld.svg": lambda: copy_svg(tcgen05_ld("16x64b", 1)),
    "copy_tcgen05_cp.svg": lambda: copy_svg(tcgen05_cp("32x128b", "warpx4")),
    "mma_quad_lanes.svg": lambda: fragment_svg(mma_sync("m16n8k8", "bf16"), "C", color="quad_lane"),
    "tiled_copy_8x64.svg": lambda: tiled_copy_svg(COPY),
    "tiled_copy_3d.svg": lambda: tiled_copy_svg(COPY_3D),
    "swizzle_pair_8x64.svg": lambda: swizzle_pair_svg(ROWS, SW128),
    "fields_128B.svg": lambda: SmemDescriptor("128B", 1024, 16).svg(),
    "box_ragged.svg": lambda: box_svg(RAGGED, (1, 0)),
    "smem_map.svg": lambda: smem_map_svg(REGIONS, total=49176, limit=65536),
    "schedule_grouped.svg": lambda: schedule_svg(Grouped(group=2, serpentine=True), (5, 4), wave=6),
    "pipeline_ring.svg": lambda: pipeline_svg(ring(stages=4, bytes=32768, consumers=2)),
    "tmem_scaled.svg": lambda: tcgen05_mma("mxf8f6f4", 128, 8, "e4m3").svg(tmem=True),
    "timeline.svg": lambda: timeline_svg(TIMELINE),
    "layout_4x8x3x2.svg": lambda: layout_svg(Layout((4, 8, 3, 2), (8, 1, 32, 96))),
    "layout_zipped.svg": lambda: layout_svg(Layout((4, 8), (8, 1)).zipped_divide((2, 4)), divided="zipped"),
    "layout_nested.svg": lambda: layout_svg(Layout((4, 8), (8, 1)).zipped_divide((2, 4)), nested=True),
    "layout_tiles.svg": lambda: layout_svg(Layout((8, 16), (16, 1)).logical_divide((4, 8)), tile=(4, 8)),
}


@pytest.mark.parametrize("name", GOLDEN)
def test_pictures_stay_as_they_were_looked_at(name: str, golden: Golden) -> None:
    golden(name, GOLDEN[name]())


@pytest.mark.parametrize("name", [*GOLDEN, "a long list"])
def test_pictures_are_well_formed_and_nothing_is_cut_off(name: str) -> None:
    svg = GOLDEN[name]() if name in GOLDEN else fragment_svg(wgmma(256))
    root = ET.fromstring(svg)
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    assert "<script" not in svg
    for group in root.iter(f"{SVG}g"):
        size, anchor = float(group.get("font-size", "0")), group.get("text-anchor", "start")
        for node in group.iter(f"{SVG}text"):
            x, y = float(node.get("x", "-1")), float(node.get("y", "-1"))
            room = 0.5 * size * len(node.text or "")  # a lower bound: fonts differ
            left = x - {"start": 0.0, "middle": room / 2, "end": room}[anchor]
            assert left > -1 and left + room < width + 1 and size - 2 < y < height, node.text
    for node in root.iter(f"{SVG}rect"):
        if node.get("width") != "100%":
            x, y = float(node.get("x", "-1")), float(node.get("y", "-1"))
            assert x >= 0 and x + float(node.get("width", "0")) <= width + 1, node.attrib
            assert y >= 0 and y + float(node.get("height", "0")) <= height + 1, node.attrib


def titles(svg: str) -> list[str]:
    """The texts under the pointer, without the document's own title."""
    return [node.text or "" for node in ET.fromstring(svg).iter(f"{SVG}title")][1:]


# ------------------------------------------------------------------------------------------------------ threads, values


def test_a_tiled_copy_of_three_modes_has_a_grid_for_each_plane(read: Read) -> None:
    svg = tiled_copy_svg(COPY_3D)
    threads, values = read(svg, r"T\d+"), read(svg, r"V\d+")
    assert COPY_3D.tile == (4, 8, 2)
    assert [len(row) for row in threads] == [
        16
    ] * 8  # two planes below each other, each at the source and where it goes
    element = COPY_3D.tv_layout("src")
    for t in range(16):
        for v in range(4):
            at = int(element(t, v))
            i, j, k = at % 4, at // 4 % 8, at // 32
            assert (threads[4 * k + i][j], values[4 * k + i][j]) == (f"T{t}", f"V{v}")
    assert svg.count("[:, :, 1]</text>") == 2


@pytest.mark.parametrize("kind", ["logical", "zipped", "tiled", "flat"])
def test_tiles_stand_where_they_lie_in_the_matrix(kind: str, read: Read) -> None:
    matrix = Layout((8, 16), (16, 1))
    divided = getattr(matrix, f"{kind}_divide")((4, 8))
    svg = layout_svg(divided, divided=kind)
    assert read(svg, r"\d+") == [[str(matrix(i, j)) for j in range(16)] for i in range(8)]
    (said,) = (text for text in titles(svg) if text.endswith("offset 91"))  # element (1, 3) of tile (1, 1)
    nested = {"logical": "((1,1),(3,1))", "zipped": "((1,3),(1,1))", "tiled": "((1,3),1,1)", "flat": "(1,3,1,1)"}[kind]
    assert said == f"i 1, j 3: coordinate {nested}, offset 91"
    coordinate = eval(nested)  # what is shown is a coordinate of the layout
    assert divided(*coordinate) == 91
    vector = layout_svg(getattr(Layout(32, 2), f"{kind}_divide")(8), divided=kind)
    assert read(vector, r"\d+") == [[str(2 * i) for i in range(32)]]


def test_a_vector_stands_in_lines_by_its_one_coordinate(read: Read) -> None:
    svg = layout_svg(Layout(200, 3))
    assert read(svg, r"\d+") == [[str(3 * i) for i in range(k, min(k + 64, 200))] for k in range(0, 200, 64)]
    assert "i 199: offset 597" in titles(svg) and "Cell i prints its offset" in svg and "j" not in "".join(titles(svg))
    assert svg.count(">i \u2192</text>") == 4 and "A grid stands" not in svg
    nested = layout_svg(Layout(((2, 40),), ((40, 1),)), rows=range(1))  # one nested mode: a matrix
    assert "Cell (i, j)" in nested


def test_nested_coordinates_stand_at_rows_and_columns() -> None:
    svg = layout_svg(Layout(((2, 2), (2, 3)), ((1, 8), (2, 16))), nested=True, rows=range(1, 4))
    assert re.findall(r">(\([\d,]+\))<", svg) == [
        "(0,0)", "(1,0)", "(0,1)", "(1,1)", "(0,2)", "(1,2)", "(1,0)", "(0,1)", "(1,1)",
    ]  # fmt: skip
    assert "i (1,0), j (0,0): offset 1" in titles(svg)


def test_lanes_of_a_quad_have_a_hue_each() -> None:
    svg = fragment_svg(MMA, "C", color="quad_lane")
    assert [f"lane {lane} of its quad" in svg for lane in range(5)] == [True] * 4 + [False]
    assert "Odd quads are lighter." in svg
    for lane in range(4):  # lane l holds columns 2l and 2l + 1; rows 0, 2, ... are those of even quads
        runs = re.findall(rf'<path d="([^"]+)" fill="{HUES[lane]}"/>', svg)
        assert [path.count("M") for path in runs] == [8]


def test_a_product_has_its_operands_in_line(read: Read) -> None:
    svg = product_svg(MMA)
    threads, values = read(svg, r"T\d+"), read(svg, r"V\d+")
    assert [len(row) for row in threads] == [8] * 16 + [16 + 8] * 16  # B above C, A at the left of C
    for k in range(16):
        for n in range(8):
            t, v = MMA.owner("B")(n, k)
            assert (threads[k][n], values[k][n]) == (f"T{t}", f"V{v}")
    for m in range(16):
        row = [MMA.owner("A")(m, k) for k in range(16)] + [MMA.owner("C")(m, n) for n in range(8)]
        assert threads[16 + m] == [f"T{t}" for t, _ in row] and values[16 + m] == [f"V{v}" for _, v in row]
    places: dict[float, list[float]] = {}  # y -> x of the threads in that line
    for node in ET.fromstring(svg).iter(f"{SVG}text"):
        if re.fullmatch(r"T\d+", node.text or ""):
            places.setdefault(float(node.get("y", "")), []).append(float(node.get("x", "")))
    lines = [sorted(xs) for _, xs in sorted(places.items())]
    assert lines[0] == lines[-1][16:], "B's columns stand over C's"


def test_hovering_tells_thread_value_and_register() -> None:
    said = titles(product_svg(MMA))
    assert "m 9, k 11: thread 5, value 7, register 3, bits 16 to 31" in said
    assert "k 3, n 2: thread 9, value 1, register 0, bits 16 to 31" in said
    assert len(said) == 16 * 16 + 16 * 8 + 16 * 8
    assert "i 3, j 8: offset 200, byte 400, bank 4" in titles(swizzle_svg(ROWS, 16))


def test_operands_that_no_thread_holds_are_said_to_be_elsewhere() -> None:
    svg = product_svg(wgmma(8))
    assert "A: 64x16 bf16, shared memory" in svg and "B: 16x8 bf16, shared memory" in svg and "C: 64x8 f32<" in svg
    assert "held by no thread" in svg and "held by no thread" not in product_svg(MMA)
    atom = tcgen05_mma("f16", 128, 32, "bf16")
    assert "tensor memory" in product_svg(atom) and atom.svg(tmem=False) == product_svg(atom)
    assert atom.svg() == atom.svg(tmem=True) != atom.svg(tmem=False)  # all of the product is grey


def test_colours_by_register(read: Read) -> None:
    svg = tv_svg(Layout((4, 8), (8, 1)), (8, 4), color="register")
    fills = {fill: path.count("M") for path, fill in re.findall(r'<path d="(M[^"]+)" fill="(#\w+)"/>', svg)}
    assert fills == dict.fromkeys(HUES, 1)  # value v is row v: eight rows, each a run of its own hue
    assert "value 3" in svg and "threads are lighter" not in svg
    assert "Odd values are lighter" in tv_svg(Layout((2, 16), (16, 1)), (16, 2), color="register")


def warps(svg: str) -> dict[str, list[str]]:
    """Warp -> the paths of its outlines."""
    found: dict[str, list[str]] = {}
    for node in ET.fromstring(svg).iter(f"{SVG}path"):
        if node.get("data-warp") is not None:
            found.setdefault(node.get("data-warp", ""), []).append(node.get("d", ""))
    return found


def test_warps_are_outlined() -> None:
    tiled = TiledMma(wgmma(16, a_source="rmem"), (2, 1, 1))
    found = warps(tiled_mma_svg(tiled))
    assert sorted(found) == [str(w) for w in range(8)] and {len(paths) for paths in found.values()} == {2}  # A and C
    # A warp of wgmma has 16 rows of C: two lines across and two down.
    assert all(path.count("h") == path.count("v") == 2 for paths in found.values() for path in paths)
    assert sorted(warps(tiled_copy_svg(COPY))) == ["0", "1"]
    # Warps that interleave too finely are not outlined, their colours stay.
    fine = Layout((64, 128), (1, 64)).compose(Layout((256, 32), (1, 256)))
    assert "warp 7" in tv_svg(fine, (64, 128))


def test_a_copy_shows_both_sides(read: Read) -> None:
    svg = copy_svg(ldmatrix(4, transpose=True))
    rows = read(svg, r"T\d+")
    for i, row in enumerate(rows):
        assert row[:8] == [f"T{i}"] * 8  # at the source lane i names row i % 8 of matrix i / 8
        for j, text in enumerate(row[8:]):  # transposed: thread t holds column t / 4
            assert text == f"T{4 * j + i % 8 // 2}"
    assert "source: shared memory" in svg and "destination: registers" in svg
    tmem = copy_svg(tcgen05_ld("32x32b", 2))
    assert read(tmem, r"T\d+") == [[f"T{t}"] * 4 for t in range(32)] and "lane" in tmem


# ------------------------------------------------------------------------------------------------------------- memory


def test_a_swizzle_before_and_after(read: Read) -> None:
    svg = swizzle_pair_svg(ROWS, SW128)
    fields = read(svg, r"banks \d+-\d+")
    assert fields[:8] == [[f"banks {4 * c}-{4 * c + 3}" for c in range(8)]] * 8
    assert fields[8:] == [[f"banks {4 * (c ^ r)}-{4 * (c ^ r) + 3}" for c in range(8)] for r in range(8)]
    assert read(svg, r"lane \d+") == [[f"lane {lane}"] for lane in range(8)] * 2
    frames = [n for n in ET.fromstring(svg).iter(f"{SVG}rect") if n.get("fill") == "none"]
    assert [n.get("stroke-dasharray") for n in frames] == [None] * 8 + ["2 3"] * 8  # framed before, dotted after
    assert "8-way conflict" in svg and "conflict-free" in svg


def test_a_swizzle_that_does_not_help_keeps_its_frames() -> None:
    svg = swizzle_pair_svg(ROWS, Swizzle(1, 4, 3, "bytes"))
    frames = [n.get("stroke-dasharray") for n in ET.fromstring(svg).iter(f"{SVG}rect") if n.get("fill") == "none"]
    assert frames == [None] * 16 and "8-way conflict" in svg and "4-way conflict" in svg
    two = swizzle_pair_svg(Layout((8, 16), (16, 1)), Swizzle(0, 4, 3, "bytes"))  # rows r and r + 4 share their banks
    assert two.count("2-way conflict") == 2 and two.count("stroke-dasharray") == 0
    column = thread_access(Layout(32, 1), name="a column")
    padded = swizzle_pair_svg(Layout((32, 32), (32, 1)), Swizzle(5, 0, 5), 32, access=column)
    assert "32-way conflict" in padded and "conflict-free" in padded


def test_a_swizzle_alone_has_a_tile_of_its_own() -> None:
    bytes_ = Swizzle(2, 4, 3, "bytes").svg()  # 16 cells a field: narrow cells, and all rows are counted nevertheless
    assert all(bytes_.count(f">{row}</text>") >= 2 for row in range(8)) and "2-way conflict" in bytes_
    for swizzle in (Swizzle(3, 3, 3), SW128, Swizzle(2, 4, 3, "bytes"), Swizzle(3, 4, -3), Swizzle(0, 4, 3)):
        assert "before: " in swizzle.svg()
    assert swizzle._repr_svg_() is not None
    assert "(64,64):(64,1)" in SW128.svg(layout=Layout((64, 64), (64, 1)), bits=16)


def bits_of(svg: str) -> dict[int, tuple[str, str]]:
    """Bit -> its field and its value, from the rectangles."""
    out = {}
    for node in ET.fromstring(svg).iter(f"{SVG}rect"):
        if node.get("data-bit") is not None:
            title = node[0].text or ""
            out[int(node.get("data-bit", ""))] = (node.get("data-field", ""), title.split(": ")[1][0])
    return out


def test_fields_show_every_bit() -> None:
    word = SmemDescriptor("128B", 1024, 16, address=0x8400).word
    found = bits_of(fields_svg(smem_table("sm_90a"), word))
    assert sorted(found) == list(range(64)) and sum(int(v) << bit for bit, (_, v) in found.items()) == word
    assert {bit for bit, (name, _) in found.items() if name == "stride_bytes"} == set(range(32, 46))
    assert found[14] == ("", "0")
    assert "Set there: (14,)" in fields_svg(smem_table("sm_90a"), word | 1 << 14)
    with pytest.raises(DescriptorError, match="no 64-bit word"):
        fields_svg(smem_table("sm_90a"), 1 << 64)


def test_a_ragged_box_says_what_is_inside() -> None:
    svg = box_svg(RAGGED, (1, 0))
    assert re.findall(r'data-inside="(\w+)"', svg) == ["64x72", "40x72"]
    assert "40x72 of 64x128 inside" in svg and "at (64, 128)" in svg and "zeros arrive" in svg
    inside = [n for n in ET.fromstring(svg).iter(f"{SVG}rect") if n.get("data-inside")]
    whole = [n for n in ET.fromstring(svg).iter(f"{SVG}rect") if n.get("data-box")]
    shares = [float(a.get("width", "")) / float(b.get("width", "")) for a, b in zip(inside, whole, strict=True)]
    assert shares == pytest.approx([1, 40 / 64], abs=1e-3)
    full = box_svg(RAGGED, (0, 0))
    assert re.findall(r'data-inside="(\w+)"', full) == ["64x128", "40x128"] and "64x128, all inside" in full
    store = tma_store(Layout((200, 104), (104, 1)), smem_tile((64, 64), "bf16", "K"))
    assert ">outside</text>" in svg and ">outside</text>" not in box_svg(store, (0, 0))
    assert "nothing is written" in box_svg(store, (3, 1)) and "40x8 of 64x64 inside" in box_svg(store, (3, 1))


def test_a_map_is_to_scale() -> None:
    svg = smem_map_svg(REGIONS, total=49176, limit=65536)
    rects = [n for n in ET.fromstring(svg).iter(f"{SVG}rect") if n.get("data-name") == "A"]
    starts, widths = ([float(n.get(key, "")) for n in rects] for key in ("x", "width"))
    assert widths == pytest.approx([860 / 4] * 3, abs=0.1) and np.diff(starts) == pytest.approx([860 / 4] * 2, abs=0.1)
    assert [n.get("data-stage") for n in rects] == ["0", "1", "2"]
    assert "full stage 2: bytes 49168 to 49175 (0xc010), 8 bytes" in titles(svg) and "3 x 8 bytes" in svg
    assert "16360 free" in svg and svg.count("magnified") == 1


def test_a_schedule_is_a_path_through_every_tile(read: Read) -> None:
    orders = ((Grouped(group=2, serpentine=True), (5, 4)), (Hilbert(), (4, 4)), (Persistent(Grouped(), 3), (3, 5)))
    for order, grid in orders:
        svg = schedule_svg(order, grid)
        table = order.order(grid) if isinstance(order, Persistent) else order.table(grid)
        want = np.zeros(grid, dtype=int)
        want[table[:, 0], table[:, 1]] = np.arange(len(table))
        assert read(svg, r"\d+") == [[str(n) for n in row] for row in want.tolist()]
        path = next(n.get("d", "") for n in ET.fromstring(svg).iter(f"{SVG}path") if n.get("data-order") is not None)
        at = np.array([[int(x) for x in re.findall(r"M(\d+) (\d+)", path)[0]]])
        for kind, a, b in re.findall(r"([hvl])(-?\d+)(?: (-?\d+))?", path):
            step = {"h": (int(a), 0), "v": (0, int(a)), "l": (int(a), int(b or 0))}[kind]
            at = np.vstack([at, at[-1] + step])
        assert ((at[:, ::-1] - 1) // 2).tolist() == table.tolist()
    assert Persistent(Grouped(), 3).svg(grid=(3, 5)).count("0-2") == 1  # three workers: a wave of three tiles


def test_several_accesses_fit_a_screen(read: Read) -> None:
    tile, extent = Layout((64, 64), (64, 1)), (64, 64)
    rows = matrix_access(extent, "bf16")
    columns = thread_access(Layout(32, 1), name="columns").over((32, 1), extent)
    for accesses in ([rows], [rows, columns], [rows, columns, columns], [rows] * 4):
        svg = access_svg(tile, accesses, "bf16")
        width, height = (float(x) for x in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', svg)[0])
        assert 0.9 < width / height < 2.2 and max(width, height) < 2700, (width, height)
        assert svg.count("which lane asks which bank") == len(accesses)
    two = access_svg(tile, [rows, columns], "bf16")
    lanes = Counter(re.findall(r">lane (\d+)<", two))
    assert lanes == Counter([str(lane) for lane in (*range(8), *range(32))])
    assert "8-way conflict, i = 0 to 7 of 64" in two and "32-way conflict, i = 0 to 31 of 64" in two
    assert [said[:15] for said in re.findall(r">(A [^<]*)</text>", two)] == ["A field is 16 c", "A small field i"]
    one = access_svg(tile, rows, "bf16")  # of one access the whole tile, small
    assert " of 64<" not in one and "8190 (31)<" in one
    turned = access_svg(Layout((64, 64)), [matrix_access(extent, "bf16", "MN")] * 2, "bf16")
    assert turned.count("8-way conflict, j = 0 to 7 of 64") == 2


def test_a_part_of_a_tile_is_where_lanes_start() -> None:
    tile = Layout((64, 64), (64, 1))
    grid = [[2 * tile(i, j) for j in range(64)] for i in range(64)]
    panel, part = bank_panel(grid, 16, range(64), range(64), lanes={(20, 8): 3, (33, 0): 4}, part=True)
    assert panel.rows == range(16, 40) and part == grid[16:40] and panel.caption == ", i = 16 to 39 of 64"
    named = {(label.row, label.column) for label in panel.labels if label.lines[1] in ("lane 3", "lane 4")}
    assert named == {(4, 8), (17, 0)} and (4, 15) in panel.marked and panel.says is not None
    assert panel.says(4, 8) == "offset 1288, byte 2576, bank 4"
    whole, _ = bank_panel(grid, 16, range(64), range(64), lanes={(0, 0): 3, (63, 0): 4}, part=True)
    assert whole.rows == range(64) and whole.caption == ""


@pytest.mark.parametrize("kind", ["logical", "zipped", "tiled", "flat"])
def test_tiles_are_sums_of_four_modes(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page without NumPy evaluates each mode once, and no cell."""
    for matrix in (Layout((12, 8), (8, 1)), Layout(((2, 4), 8), ((1, 16), -3)), Swizzle(1, 0, 2) @ Layout((8, 8))):
        divided = getattr(matrix, f"{kind}_divide")((4, 2))
        tiles = DividedLayout.of(divided, kind)
        rows, columns, down, across = tiles.shape
        every = [[[tiles(i, j, r, c) for j in range(columns)] for i in range(rows)]
                 for c in range(across) for r in range(down)]  # fmt: skip
        with monkeypatch.context() as patch:
            patch.setattr(DividedLayout, "__call__", None)
            assert [[list(row) for row in plane.values] for _, plane in planes_of(tiles)] == every


@pytest.mark.parametrize("swizzle", [(1, 1, 4), (2, 0, 3), (1, 2, 3), (3, 0, 4), (2, 2, 3), (0, 0, 0)], ids=str)
@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_fields_print_the_banks_of_their_elements(swizzle: tuple[int, int, int], bits: int) -> None:
    tile = Swizzle(*swizzle) @ Layout((8, 64), (64, 1))
    grid = [[tile(i, j) * bits // 8 for j in range(64)] for i in range(8)]
    panel, _ = bank_panel(grid, bits, range(8), range(64))
    assert len(panel.labels) * panel.step == 8 * 64
    for label in panel.labels:
        held = grid[label.row][label.column : label.column + label.span]
        banks = {(byte + k) // 4 % 32 for byte in held for k in range(bits // 8)}
        if panel.step > 1:
            first, last = map(int, label.lines[0].removeprefix("banks ").split("-"))
            assert banks == set(range(first, last + 1)) and label.lines[1] == f"{held[0]}-{held[-1] + bits // 8 - 1}"
        else:
            assert label.lines == (str(held[0] // 4 % 32),) and int(label.lines[0]) in banks


def test_both_tiles_of_a_swizzle_have_cells_of_one_size() -> None:
    """The fields before S<1,1,4> are whole; drawn as such, those after it have no counterpart."""
    svg = Swizzle(1, 1, 4).svg()
    assert svg.count(">L7</text>") == 2 and "banks 30-33" not in svg and "A cell prints the first bank" in svg


def test_lanes_of_parts_of_a_field_are_all_named() -> None:
    row = thread_access(Layout(32, 8))  # flat coordinates: row 0
    svg = access_svg(Layout((8, 32), (32, 1)), row, "f32")
    assert [svg.count(f">L{lane}</text>") for lane in range(32)] == [1] * 32


@pytest.mark.parametrize(("order", "grid"), [(Grouped(group=2), (5, 4)), (Grouped(), (32, 64)), (Hilbert(), (64, 64))])
def test_no_line_of_a_schedule_runs_through_digits(order: Any, grid: tuple[int, int]) -> None:
    svg = schedule_svg(order, grid)
    line, rest = svg.index("data-order"), svg[svg.index("data-order") :]
    ring, (text,) = rest.index("<circle"), re.findall(r"<g font-family.*?</g>", rest, flags=re.DOTALL)
    plates = rest[ring : rest.index(text)]
    assert svg.count("<circle") == 1 and "(the ring)" in svg[:line] and len(svg) < 1_000_000
    size = float(re.findall(r'font-size="([\d.]+)"', text)[0])
    numbers = [(float(x), float(y), len(n)) for x, y, n in re.findall(r'x="([\d.]+)" y="([\d.]+)">(\d+)<', text)]
    assert len(numbers) == grid[0] * grid[1]
    x, y, digits = np.array(numbers).T
    found = re.findall(r"M([\d.]+) ([\d.]+)h([\d.]+)v([\d.]+)h", plates)
    left, top, wide, high = np.array(found, dtype=float).T
    # The middle of each number lies in the middle of a plate as large as its digits; the line is seen between two.
    apart = np.abs(x[:, None] - (left + wide / 2)) + np.abs(y[:, None] - 0.36 * size - (top + high / 2))
    under = apart.argmin(1)
    assert apart.min(1).max() < 0.3 and sorted(under.tolist()) == list(range(len(numbers)))
    assert (wide[under] >= 0.6 * size * digits).all() and (high >= size).all()
    assert np.diff(np.unique(x)).min() - wide.max() >= 6


def test_a_path_without_numbers_starts_at_a_dot() -> None:
    svg = schedule_svg(Grouped(), (65, 64))
    assert svg.count("<circle") == 1 and "(the dot)" in svg
    assert float(re.findall(r'<circle[^>]* r="([\d.]+)"', svg)[0]) >= 4


def test_a_pipeline_shows_who_does_what_at_which_barrier() -> None:
    svg = tcgen05_ring(4, 32768, accumulators=2).svg()
    said = titles(svg)
    assert [svg.count(f'data-stage="{stage}"') for stage in range(5)] == [7, 6, 3, 3, 0]
    for told in (
        "load, 4: TMA load, ab, every k tile",
        "load, 4: 32768 bytes land, full, every k tile",
        "mma, 5: tcgen05.commit, empty, every k tile",
        "mma, 6: tcgen05.commit, acc_full, outside of the k loop",
        "epilogue, 4: arrive: 4 warps, acc_empty, outside of the k loop",
    ):
        assert said.count(told) == 1
    assert "completes: 4 arrivals" in svg and "completes: 192 threads" in svg and ">tensor memory</text>" in svg
    lacking = ring(stages=2, bytes=16384)
    lacking = lacking.with_program("math", tuple(a for a in lacking.role("math").program if not isinstance(a, ForK)))
    assert "wgmma reads" in ring(stages=2, bytes=16384).svg() and "wgmma reads" not in lacking.svg()


@pytest.mark.parametrize("pattern", [
    ring(3, 1024, store=(2, 4), registers=(40, 232)), cluster_ring(4, 1024, 512), pingpong(4, 1024), multistage(3),
    self_loading(3, 1024), ring(40, 64),
])  # fmt: skip
def test_every_pattern_of_pipelines_is_drawn(pattern: Pipeline) -> None:
    svg = pattern.svg()
    ET.fromstring(svg)
    for role in pattern.roles:
        assert f">{role.name}</text>" in svg
    for barrier in pattern.barriers:
        assert f">{barrier.name}</text>" in svg


@pytest.mark.parametrize("atom", [
    tcgen05_mma("mxf8f6f4", 128, 8, "e4m3"),
    tcgen05_mma("mxf4nvf4", 256, 64, cta_group=2),
    tcgen05_mma("f16", 64, 16, "bf16", a_source="tmem"),
])  # fmt: skip
def test_tensor_memory_shows_every_element_where_it_lies(atom: Any) -> None:
    for name, home in tmem_operands(atom).items():
        panel = tmem_panel(name, home)
        assert panel.tells is not None and len(panel.rows) == 128 and len(panel.columns) == home.columns
        filled = 0
        for lane in range(128):
            for column in range(home.columns):
                for m, k in re.findall(r"\((\d+), (\d+)\)", panel.tells(lane, column)):
                    copies = [home.layout(int(m), int(k), c)[:2] for c in range(int(home.layout[2].size))]
                    assert (lane, column) in [(*place, 0)[:2] for place in copies]
                    filled += 1
        assert filled == home.layout.size
    with pytest.raises(LayoutError, match="takes nothing from tensor memory"):
        MMA.svg(tmem=True)


def test_a_tile_of_one_nested_mode_is_drawn_by_its_modes() -> None:
    tile = Layout((8, 8), (8, 1)).zipped_divide((2, 4))[:, (1, 0)]
    assert str(tile) == "S<0,0,0> o 16 o ((2,4)):((8,1))"
    assert layout_table(tile).splitlines()[3:] == ["0 | 16 17 18 19", "1 | 24 25 26 27"]
    svg = layout_svg(tile)
    assert ">j \u2192</text>" in svg and svg.count("<title>") == 8 and "i 1, j 3: offset 27" in svg


def test_a_timeline_by_role() -> None:
    svg = timeline_svg(TIMELINE)
    assert "warp 0: loads" in svg and "warp 1: mma + epilogue" in svg and "copy engine, loads" in svg
    assert "3 instructions came after the last span" in svg
    assert sorted(re.findall(r'data-kind="(\w+)"', svg)) == ["load", "load", "mma", "store", "wait", "wait"]
    assert "load, 40 to 44: cp.async.bulk.tensor, line 9, 2 times" in titles(svg)
    boxes = {n[0].text: n for n in ET.fromstring(svg).iter(f"{SVG}rect") if n.get("data-kind")}
    mma = boxes["mma, 90 to 130: wgmma.mma_async, line 31"]
    wait = boxes["wait, 2 to 90: mbarrier 0x0 parity 0, line 20"]
    assert float(mma.get("width", "")) == pytest.approx(40 / 150 * 1000, abs=0.1)
    assert float(wait.get("height", "")) < float(mma.get("height", ""))
    assert timeline_svg(TIMELINE, block=(1, 0, 0)).count("data-kind") == 1
    # A long run stays small, and its spans are put together rather than left out.
    spans = [["mma" if i % 2 else "wait", 3 * i, 3 * i + 2, "x", i, 1] for i in range(20_000)]
    long = timeline_svg({"rows": [{"cta": [0, 0, 0], "warp": 0, "role": "mma", "spans": spans}]})
    assert len(long) < 1 << 20


# ----------------------------------------------------------------------------------------------------------- large ones

BIG = Layout(((4, 8, 8), (2, 2, 32)), ((256, 1, 16), (128, 8, 1024)))
LARGE: dict[str, Callable[[], str]] = {
    "layout": lambda: layout_svg(Layout((128, 256), (256, 1))),
    "layout without runs": lambda: layout_svg(Layout(((2, 64), (2, 128)), ((16384, 1), (8192, 64)))),
    "threads": lambda: tv_svg(BIG, (128, 256)),
    "registers": lambda: tv_svg(BIG, (128, 256), color="register"),
    "banks": lambda: swizzle_svg(Swizzle(3, 3, 3) @ Layout((128, 256), (256, 1)), 16),
    "swizzle": lambda: swizzle_pair_svg(Layout((128, 64), (64, 1)), SW128),
    "fragment": lambda: fragment_svg(wgmma(256)),
    "product": lambda: tiled_mma_svg(TiledMma(mma_sync("m16n8k16", "bf16"), (2, 4, 1), (128, 256, 16))),
    "schedule": lambda: schedule_svg(Grouped(group=8), (128, 256)),
}


@pytest.mark.parametrize("name", LARGE)
def test_large_pictures_stay_small_files(name: str) -> None:
    svg = LARGE[name]()
    assert len(svg) < 1_000_000
    assert len(titles(svg)) > 2000  # and still tell what is under the pointer


def test_a_large_picture_tells_its_cells() -> None:
    said = titles(LARGE["layout"]())
    assert said[1] == "i 0, j 8 to 15: 8 | 9 | 10 | 11 | 12 | 13 | 14 | 15"
    assert len(said) == 128 * 256 // 8 and said[-1].endswith("| 32767")
    assert re.search(r"m 17, n 8 to 15: T36 V\d+ \| T36 V\d+ \| T37", LARGE["threads"]())
    root = ET.fromstring(LARGE["layout"]())
    strokes = {n.get("stroke"): n.get("d", "") for n in root.iter(f"{SVG}path") if n.get("d", "").startswith("M0 ")}
    # 4096 offsets of a colour are 16 rows of 256: colour k covers them, one run a row.
    for k, hue in enumerate(HUES):
        assert re.findall(r"M0 (\d+)h256", strokes[hue]) == [str(16 * k + r) for r in range(16)]


def test_the_colours_of_small_cells_are_those_of_their_threads() -> None:
    grid = np.full((128, 256), "", dtype=object)
    for node in ET.fromstring(LARGE["threads"]()).iter(f"{SVG}path"):
        color, path = node.get("stroke", ""), node.get("d", "")
        if not re.fullmatch(r"(?:[Mm]\d+ \d+h\d+)+", path) or not color:
            continue
        row = column = 0
        for kind, a, b, length in re.findall(r"([Mm])(\d+) (\d+)h(\d+)", path):
            row, column = (int(b), int(a)) if kind == "M" else (row, column + int(a))
            assert not grid[row, column : column + int(length)].any(), "no cell has two colours"
            grid[row, column : column + int(length)] = color
            column += int(length)
    t, v = np.arange(256)[:, None], np.arange(128)[None, :]
    place = BIG(t, v)
    for thread in (0, 1, 37, 200, 255):
        want = lighter(HUES[thread // 32], ODD) if thread % 2 else HUES[thread // 32]
        assert set(grid[place[thread] % 128, place[thread] // 128]) == {want}
    assert grid.astype(bool).all()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: layout_svg(ROWS, divided="halved"), "'logical', 'zipped', 'tiled' or 'flat'"),
        (lambda: layout_svg(Layout((4, 4, 4)), divided="zipped"), r"not the zipped divide.*\(\(tile, tile\), \(tiles"),
        (lambda: product_svg(MMA, color="lane"), "color='lane'"),
        (lambda: product_svg(MMA, thread=32), "no thread 32"),
        (lambda: copy_svg(ldmatrix(1), thread=32), "no thread 32"),
        (lambda: swizzle_pair_svg(ROWS, Swizzle(1, 0, 1, "bytes")), "S<1,0,1>"),
        (lambda: box_svg(RAGGED, (2, 0)), r"tile \(2, 0\) begins at \(0, 256\), outside of the tensor"),
        (lambda: smem_map_svg([], total=4), "one region at least"),
        (lambda: smem_map_svg([Region("A", 8, 8)], total=12), "does not lie in the 12 bytes"),
        (lambda: schedule_svg([[0, 0], [0, 0]], (1, 2)), "2 numbers reach 1 of 2 tiles"),
        (lambda: schedule_svg([[0, 0], [1, 0]], (1, 2)), r"number 1 is tile \(1, 0\), outside of 1x2"),
        (lambda: timeline_svg({"rows": []}), "emulate with timeline=True"),
        (lambda: timeline_svg(TIMELINE, block=(2, 0, 0)), r"no block \(2, 0, 0\).* it has \(0, 0, 0\), \(1, 0, 0\)"),
    ],
)
def test_refusals_say_why(draw: Callable[[], str], message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        draw()


def test_a_legend_names_the_offsets_that_are_there() -> None:
    """A tile's rows are 16 apart: offsets 80 to 87 lie in the tile beside it."""
    tile = Layout((8, 16), (16, 1)).zipped_divide((4, 8))[:, (1, 1)]
    found = [text for text in ("72-79", "80-87", "88-95", "120-127") if f">{text}</text>" in tile.svg()]
    assert found == ["72-79", "88-95", "120-127"]
    assert ">0-15</text>" in Layout((8, 16), (16, 1)).svg()


def test_pictures_of_a_quad_pair_say_its_lanes() -> None:
    """Its maps count threads 0 to 7, which are lanes 0 to 3 and 16 to 19 of the warp."""
    atom, said = mma_sync("m8n8k4", "f16"), "Lanes of the threads: (4,2):(1,16). Thread 7 is lane 19."
    assert said in product_svg(atom) and said in fragment_svg(atom) and said in product_table(atom)
    assert "lane" not in product_table(TiledMma(atom, (2, 2)))  # of a whole warp: the threads are the lanes


def test_a_pasted_triton_layout_is_drawn_by_its_threads() -> None:
    """Lanes and warps are threads, registers values: the picture of the same map written as (thread, value)."""
    from layoutgemm.view.pages.html import tv_html

    text = "lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0]], block = []"
    pasted = parse(f"#ttg.linear<{{register = [[0, 1], [8, 0]], {text}}}>")
    tv = Layout(((4, 8, 2), (2, 2)), ((64, 1, 16), (32, 8)))
    for drawn in (tv_svg, tv_table, tv_html):
        assert drawn(pasted, (32, 8)) == drawn(tv, (32, 8))
    crossed = LinearLayout((1, 2, 4, 9 ^ 4, 16 ^ 3, 11), bits=(3, 3), names=("register", "lane"))
    assert tv_table(crossed, (8, 4)).startswith("a matrix over GF(2) of thread 8, value 8 over (8,4)")
    assert ">a matrix over GF(2) of register 8, lane 8</title>" in layout_svg(crossed)
    with pytest.raises(LayoutError, match="has foo beside register"):
        tv_svg(LinearLayout((1, 2, 4), (1, 1, 1), ("register", "lane", "foo")), (4, 2))
