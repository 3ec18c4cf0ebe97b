"""Linked pages in a headless Chromium: what lights up under the pointer, and what the panel tells, against the atoms.

Lit cells are counted in the pixels of the picture: what is lit is a hole in the veil that lies over all else.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import (
    TiledMma,
    ldmatrix,
    make_tiled_copy_tv,
    mma_sync,
    smem_tile,
    tcgen05_mma,
    universal_copy,
    wgmma,
)
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan
from layoutgemm.layouts import Layout, Swizzle
from tests import needs

LEFT, TOP = 46, 32  # of the cells within a picture
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
         "--disable-sync", "--no-first-run"]  # fmt: skip
# Of every cell of a picture, how opaque its centre is in the layer above the colours. Cells are 12 pixels or more.
PIXELS = """name => {
  const picture = pictures.find((p) => p.name === name), {over} = picture, context = over.getContext("2d");
  const ratio = over.width / parseFloat(over.style.width), found = [];
  const {data, width} = context.getImageData(0, 0, over.width, over.height);
  for (let e = 0; e < picture.matrix.count; e++) {
    const [x, y, w, h] = picture.cell(e);
    const px = Math.floor((LEFT + x + w / 2) * ratio), py = Math.floor((TOP + y + h / 2) * ratio);
    found.push(data[4 * (py * width + px) + 3]);
  }
  return found;
}"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    sync_api = needs.module("playwright.sync_api")
    program = needs.browser()
    with sync_api.sync_playwright() as playwright:
        made = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield made
        made.close()


class Page:
    """An open page, and the ways in which people use it."""

    def __init__(self, page: Any) -> None:
        self.page = page

    def corner(self, name: str) -> tuple[float, float]:
        """The corner of a picture's cells in the window."""
        box = self.page.locator(f'figure[data-picture="{name}"] canvas + canvas').bounding_box()
        return box["x"] + LEFT, box["y"] + TOP

    def hover(self, name: str, element: int) -> None:
        script = "([name, e]) => pictures.find((p) => p.name === name).cell(e)"
        x, y, w, h = self.page.evaluate(script, [name, element])
        left, top = self.corner(name)
        self.page.mouse.move(left + x + w / 2, top + y + h / 2)

    def click(self, name: str, element: int) -> None:
        self.hover(name, element)
        self.page.mouse.down()
        self.page.mouse.up()

    def leave(self) -> None:
        self.page.mouse.move(1, 1)

    def go(self, text: str) -> None:
        self.page.fill("#jump", text)
        self.page.press("#jump", "Enter")

    def told(self) -> str:
        return self.page.inner_text("#told")

    def lit(self, name: str) -> set[int]:
        """Elements of the picture that no veil covers."""
        opacity = np.array(self.page.evaluate(PIXELS, name))
        assert set(np.unique(opacity)) <= {0} or opacity.max() > 150
        number = int(self.page.locator(f'figure[data-picture="{name}"]').get_attribute("data-lit"))
        found = set(np.flatnonzero(opacity == 0).tolist())
        assert len(found) == number
        return found


@pytest.fixture
def show(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """Opens a page; afterwards: it asked for nothing but itself, and complained of nothing."""
    contexts, asked, complaints, opened = [], [], [], []

    def open_(html: str, width: int = 1900, height: int = 1400, **options: Any) -> Page:
        file = tmp_path / f"{len(opened)}.html"
        file.write_text(html, encoding="utf-8")
        opened.append(file.as_uri())
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: asked.append(request.url))
        # what the browser says of a test that reads many pixels is not about the page
        page.on("console", lambda message: "readback" in message.text or complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(opened[-1])
        return Page(page)

    yield open_
    for context in contexts:
        context.close()
    assert [url for url in asked if not url.startswith("data:")] == opened
    assert complaints == []


A, B = smem_tile((16, 32), "bf16", "K"), smem_tile((8, 32), "bf16", "K")
ATOM = mma_sync((16, 8, 16))


def held(atom: Any, operand: str, thread: int, extent: tuple[int, int]) -> set[int]:
    """The elements of a thread, as the page numbers them: row * columns + column."""
    view = (atom if isinstance(atom, TiledMma) else TiledMma(atom)).view(operand, extent)
    _, values, rest = view.shape
    places = [view(thread, v, (i, j)) for v in range(values) for i in range(rest[0]) for j in range(rest[1])]
    return {int(row) * extent[1] + int(column) for row, column in places}


def test_an_element_of_c_lights_what_makes_it(show):
    page = show(ATOM.html(a=A, b=B))
    page.hover("C", 9 * 8 + 3)
    thread = ATOM.owner("C")(9, 3)[0]
    assert page.lit("C") == held(ATOM, "C", thread, (16, 8))
    row, column = {9 * 32 + k for k in range(32)}, {3 * 32 + k for k in range(32)}
    assert page.lit("A") == row and page.lit("B") == column
    assert page.lit("A in shared memory") == row and page.lit("B in shared memory") == column
    said = page.told()
    assert said.startswith("C (9, 3)") and "m = 9, n = 3" in said
    assert f"thread\n{thread}\nvalue\n3: register 3\n" in said
    assert "A\nm = 9, k = 0 to 31\nB\nn = 3, k = 0 to 31" in said


def test_names_of_axes_are_covered_by_no_number(show):
    page = show(ATOM.html(a=A, b=B))
    assert page.page.title().startswith("A, B and C of mma.sync") and page.page.title().endswith(
        "threads and registers"
    )
    page.hover("A", 0)
    # The painted pixels of both layers in the lines of the names and of the columns' numbers.
    count = """([name, layer, from, to]) => {
      const canvas = pictures.find((p) => p.name === name)[layer];
      const ratio = canvas.width / parseFloat(canvas.style.width);
      const {data} = canvas.getContext("2d").getImageData(0, from * ratio, canvas.width, (to - from) * ratio);
      return data.filter((value, i) => i % 4 === 3 && value > 0).length;
    }"""
    for name in ("A", "A in shared memory"):
        names, numbers = (0, TOP - 17), (TOP - 15, TOP - 2)
        assert page.page.evaluate(count, [name, "base", *names]) > 50
        assert page.page.evaluate(count, [name, "over", *names]) == 0
        assert page.page.evaluate(count, [name, "over", *numbers]) > 50
    assert page.page.evaluate("pictures.map((p) => p.names().join())")[:2] == ["m,k", "k,n"]


def test_an_element_of_a_and_its_bytes(show):
    page = show(ATOM.html(a=A, b=B))
    page.hover("A", 9 * 32 + 21)
    from_matrix = page.told()
    byte = A.byte(9, 21)
    assert f"byte offset\n{byte}\n" in from_matrix and f"bank\n{byte // 4 % 32}\n" in from_matrix
    # rows 8 to 15, k 16 to 23 of a step: matrix 1 of ldmatrix.x4, whose rows lanes 8 to 15 address
    assert "row address from\nlane 9\n" in from_matrix and "load 1: ldmatrix" in from_matrix
    assert page.lit("C") == {9 * 8 + n for n in range(8)}
    assert page.lit("B") == {n * 32 + 21 for n in range(8)}
    thread = ATOM.owner("A")(9, 5)[0]
    assert page.lit("A") == page.lit("A in shared memory") == held(ATOM, "A", thread, (16, 32))
    # the same element, found in shared memory by the pixel of its byte
    x, y = page.page.evaluate("() => { const p = pictures.find((p) => p.name === 'A in shared memory');"
                              "return [p.area()[0] / 128, p.area()[1] / p.rows]; }")  # fmt: skip
    left, top = page.corner("A in shared memory")
    page.leave()
    assert page.told() != from_matrix
    page.page.mouse.move(left + (byte % 128 + 1) * x, top + (byte // 128 + 0.5) * y)
    assert page.told() == from_matrix


def test_a_thread_is_selected_in_all_operands(show):
    tiled = TiledMma(ATOM, (2, 1, 1))
    page = show(tiled.html(extent=(32, 16, 16)))
    thread = tiled.view("C", (32, 16)).owner((20, 5))[0]
    page.click("C", 20 * 16 + 5)
    page.leave()
    for operand, extent in (("A", (32, 16)), ("B", (16, 16)), ("C", (32, 16))):
        others = {"A": {20 * 16 + k for k in range(16)}, "B": {5 * 16 + k for k in range(16)}, "C": set()}
        assert page.lit(operand) == held(tiled, operand, thread, extent) | others[operand]
    assert f"held by thread {thread}" in page.told() and "A: 8 values" in page.told()
    # B is held by both warps: a second click selects the other one
    page.click("B", 3 * 16 + 2)
    first = page.page.evaluate("state.holder")
    page.click("B", 3 * 16 + 2)
    assert page.page.evaluate("state.holder") == first + 32
    page.click("B", 3 * 16 + 2)
    assert page.page.evaluate("state.holder") is None
    page.page.keyboard.press("Escape")
    page.leave()
    assert "Point at an element" in page.told()


def test_a_descriptor_operand(show):
    atom, tile = wgmma(16), smem_tile((64, 64), "bf16", "K")
    page = show(atom.html(a=tile, b=smem_tile((16, 64), "bf16", "K")))
    page.go("A 10 37")
    said, byte = page.told(), tile.byte(10, 37)
    assert f"byte offset\n{byte}\n" in said and "block 2 along k" in said and "thread\n" not in said
    page.go(f"A byte {byte}")
    assert page.told() == said
    page.go("C 10 3")
    thread, value = atom.owner("C")(10, 3)
    assert f"thread\n{thread} (warp {thread // 32}, lane {thread % 32})\n" in page.told()
    assert f"value\n{value}: register {value}\n" in page.told()
    page.leave()
    assert page.page.get_attribute('figure[data-picture="A in shared memory"]', "data-linked") == "64"


def test_keyboard_alone(show):
    page = show(ATOM.html(a=A, b=B))
    for _ in range(10):
        page.page.keyboard.press("Tab")
        if page.page.evaluate("document.activeElement.tagName") == "CANVAS":
            break
    assert page.told().startswith("A (0, 0)")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "PageDown", "ArrowLeft", "ArrowLeft"):
        page.page.keyboard.press(key)
    assert page.told().startswith("A (10, 0)")
    page.page.keyboard.press("End")
    assert page.told().startswith("A (10, 31)") and page.page.inner_text("#summary").startswith("A 10, 31; thread ")
    page.page.keyboard.press("Tab")
    assert page.told().startswith("B (0, 0)")
    page.page.keyboard.press("ArrowRight")  # of B, drawn k by n, to the right is n
    assert page.told().startswith("B (1, 0)")
    page.page.keyboard.press("Enter")
    assert f"held by thread {ATOM.owner('B')(1, 0)[0]}" in page.told()
    for _ in range(2):
        page.page.keyboard.press("Tab")
    page.page.keyboard.press("ArrowRight")  # in shared memory: the next byte pair of the line
    assert page.told().startswith("A (0, 1)") and "byte offset\n2\n" in page.told()
    page.page.keyboard.press("ArrowDown")
    ((row, k),) = np.argwhere(np.asarray(A.byte(*np.indices(A.extent))) == 130).tolist()
    assert page.told().startswith(f"A ({row}, {k})")


def test_jumps(show):
    page = show(ATOM.html(a=A, b=B))
    for text, answer in (
        ("C 16 0", "C has m 0 to 15, n 0 to 7."), ("t32", "There are threads 0 to 31."),
        ("hello", "Not understood: write C 1 2"), ("t3 v9", "C has no value 9 in thread 3."),
        ("B byte 4000", "No element of B is at 4000."),
    ):  # fmt: skip
        page.go(text)
        assert answer in page.page.inner_text("#complaint")
    page.go("C(9, 3)")
    assert page.told().startswith("C (9, 3)")
    page.go("t5 v2")
    row, column = (int(x) for x in ATOM.coords_C(5, 2))
    assert page.told().startswith(f"C ({row}, {column})") and "held by thread 5" in page.told()
    page.go("A t5 v11")
    assert page.told().startswith("A (") and "11" in page.told()
    page.go("thread 7")
    assert page.lit("B") == held(ATOM, "B", 7, (8, 32))
    page.go("")
    assert "Point at an element" in page.told()


def test_layouts_that_repeat_and_tensor_memory(show):
    page = show(Layout((4, 8), (0, 1)).html())
    page.hover("layout", 2 * 8 + 5)
    assert page.lit("layout") == {8 * i + 5 for i in range(4)} and "offset\n5" in page.told()
    page = show(tcgen05_mma("f16", 64, 16, "bf16").html())
    page.hover("C", 17 * 16 + 3)
    assert "lane\n33\ncolumn\n3" in page.told()
    assert page.lit("C") == {17 * 16 + n for n in range(16)}


def test_planes_of_a_layout_of_three_modes(show):
    layout = Layout((4, 8, 3), (1, 4, 40))
    page = show(layout.html())
    for at in ((0, 0, 0), (3, 7, 1), (2, 5, 2)):
        element = at[0] * 24 + at[1] + 8 * at[2]
        page.hover("layout", element)
        assert page.lit("layout") == page.lit("offsets") == {element}
        assert f"i = {at[0]}, j = {at[1]}, k = {at[2]}" in page.told() and f"\n{layout(*at)}" in page.told()
    page.go("layout 1 2 2")
    assert "layout (1, 2, 2)" in page.told()
    page.go("layout 1 2 3")
    assert "k 0 to 2" in page.page.inner_text("#complaint")
    # the planes stand apart: the room between them is no element, and the arrow keys cross it
    x, y, w, _ = page.page.evaluate("pictures[0].cell(7)")
    assert page.page.evaluate("([x, y]) => pictures[0].find(x, y)", [x + w + 5, y + 2]) is None
    page.page.focus('figure[data-picture="layout"] canvas + canvas')
    page.go("layout 0 7 0")
    page.page.focus('figure[data-picture="layout"] canvas + canvas')
    page.page.keyboard.press("ArrowRight")
    assert "layout (0, 0, 1)" in page.told()


def test_colours_by_mode(show):
    page = show(Layout((4, 8, 3), (1, 4, 40)).html())
    fill = "e => fillOf(pictures[0].paint(), e)"
    page.page.select_option("#paint", "mode k")
    seen = [page.page.evaluate(fill, 8 * plane + 3) for plane in range(3)]
    assert len(set(seen)) == 3 and page.page.evaluate(fill, 24 + 8) == seen[1]
    assert "mode k" in page.page.inner_text("#legend")


PAINTED = """y => {
  const {over} = pictures[0], ratio = over.width / parseFloat(over.style.width);
  const rows = [(TOP + y - 3) * ratio, (LEFT - 2) * ratio, 6 * ratio];
  return over.getContext("2d").getImageData(0, ...rows).data.some((v, i) => i % 4 === 3 && v);
}"""


def test_the_tag_of_a_row_hides_no_number_beside_it(show):
    page = show(Layout((16, 8, 11)).html())
    page.page.evaluate("state.cell = 6; redraw()")  # every other row has its number: 12 pixels apart
    page.hover("layout", 4 * 88)
    assert [row for row in (2, 4, 6) if page.page.evaluate(PAINTED, (row + 0.5) * 6)] == [4]
    page.hover("layout", 5 * 88)  # between two: both are hidden whole
    assert [row for row in (2, 4, 6, 8) if page.page.evaluate(PAINTED, (row + 0.5) * 6)] == [4, 6]


def test_both_sides_of_a_copy(show):
    copy = ldmatrix(4, element="bf16")
    page = show(copy.html())
    page.hover("source", 17 * 8 + 5)
    assert page.lit("destination") == {17 * 8 + 5} == page.lit("source") - {17 * 8 + j for j in range(8) if j != 5}
    said = page.told()
    assert said.startswith("source (17, 5)") and "thread\n17\n" in said and f"bank\n{(17 * 16 + 10) // 4 % 32}" in said
    # the register that it comes to, and back
    assert "destination\nthread\n6\nvalue\n5: register 2, bits 16-31" in said
    page.hover("destination", 17 * 8 + 5)
    assert page.lit("source in shared memory") == {17 * 8 + 5}
    assert "source in shared memory\nbyte offset\n282\n" in page.told()
    page.click("destination", 17 * 8 + 5)
    assert "held by thread 6" in page.told()
    page.leave()
    (t, v), row = (6, 5), {r * 8 + c for r in (1, 9, 17, 25) for c in (4, 5)}
    assert tuple(int(x) for x in copy.coords("dst")(t, v)) == (1, 5, 2) and page.lit("destination") == row
    assert page.lit("source") == {6 * 8 + j for j in range(8)} | {17 * 8 + 5}


def test_a_swizzle_and_the_lanes_that_meet(show):
    page = show(Swizzle(3, 4, 3, "bytes").html(layout=Layout((8, 64), (64, 1)), bits=16), width=3000)
    page.hover("before", 3 * 64 + 9)
    chunk = {i * 64 + j for i in range(8) for j in range(8, 16)}  # 16 bytes of each of the eight rows
    assert page.lit("before") == page.lit("before in shared memory") == chunk
    assert page.page.get_attribute('figure[data-picture="before"]', "data-rivals") == "64"
    said = page.told()
    assert "meets\nlanes 8-15: 8 words of bank 4" in said and "bank\n4\n" in said
    after = (64 * 3 + 9) * 2 ^ 3 << 4
    assert f"after in shared memory\nbyte offset\n{after}\n" in said and f"bank\n{after // 4 % 32}" in said
    # what its own lane reads, and no other: nothing meets
    page.hover("after", 3 * 64 + 9)
    assert page.lit("after") == {3 * 64 + j for j in range(8, 16)} and page.lit("before") == chunk
    assert page.page.get_attribute('figure[data-picture="after"]', "data-rivals") == "0"
    page.page.select_option("#paint", "conflicts")
    assert "conflicts with another lane in a bank" in page.page.inner_text("#legend")


def test_block_scales(show):
    atom = mma_sync((16, 8, 64), "e2m1", kind="mxf4")
    page = show(atom.html())
    page.hover("A", 9 * 64 + 35)
    assert page.lit("SFA") == {9 * 2 + 1} and page.lit("SFB") == {n * 2 + 1 for n in range(8)}
    page.hover("SFA", 9 * 2 + 1)
    assert page.lit("A") == {9 * 64 + k for k in range(32, 64)} and page.lit("C") == {9 * 8 + n for n in range(8)}
    assert page.lit("B") == {n * 64 + k for n in range(8) for k in range(32, 64)}
    said = page.told()
    assert "thread\n5\nvalue\n1: bits 8-15" in said and "thread\n7\n" in said
    assert "A\nm = 9, k = 32 to 63\nB\nk = 32 to 63, n = 0 to 7" in said
    page.hover("C", 9 * 8 + 3)
    assert page.lit("SFA") == {18, 19} and page.lit("SFB") == {6, 7}


def test_light_dark_and_narrow(show):
    html = ATOM.html(a=A)
    papers = [
        show(html, color_scheme=scheme).page.evaluate("getComputedStyle(document.body).backgroundColor")
        for scheme in ("light", "dark")
    ]
    assert papers == ["rgb(255, 255, 255)", "rgb(21, 24, 28)"]
    narrow = show(html, width=400, height=800)
    assert narrow.page.evaluate("document.documentElement.scrollWidth") <= 400
    narrow.go("C 9 3")
    assert narrow.told().startswith("C (9, 3)")


@pytest.mark.parametrize("layout", [Layout((8, 16), (16, 1)).zipped_divide((4, 8)), Layout((4, 6, 3), (1, 4, 24))])
def test_no_picture_ends_behind_the_edge(show, layout):
    """A title is wider than a picture of four columns: the offsets beside it stand further right."""
    page = show(layout.html(), width=1280, height=900).page
    hidden = "(() => { const s = document.getElementById('stage'); return s.scrollWidth - s.clientWidth; })()"
    assert page.evaluate(hidden) <= 0
    assert page.evaluate("state.cell") >= 12  # the numbers are read, still


def test_sizes_and_colours_change(show):
    page = show(ATOM.html(a=A, b=B))
    before = page.page.evaluate("state.cell")
    page.page.click("#smaller")
    page.page.click("#smaller")
    page.page.click("#larger")
    assert page.page.evaluate("state.cell") < before
    page.page.select_option("#paint", "banks")
    assert "banks 28-31" in page.page.inner_text("#legend")
    page.hover("A", 5)
    assert len(page.lit("C")) == 8


def test_a_large_plan(show):
    plan = Sm90Plan.derive(8192, 8192, 8192, b="bf16:col", config=Sm90Config((256, 224), cluster=(2, 1)))
    html = plan.html()
    assert len(html) < 200_000
    page = show(html, width=1400, height=900)
    page.go("C 150 70")
    assert "warp 5" in page.told() and "accumulator 0" in page.told()
    assert page.page.get_attribute('figure[data-picture="C"]', "data-held") == "224"
    assert page.page.get_attribute('figure[data-picture="B in shared memory"]', "data-linked") == "64"


def test_all_elements_of_a_picture_are_written_in_letters_of_one_size(show):
    """T100 is longer than T99: the letters were smaller there, or left out."""
    copy = make_tiled_copy_tv(universal_copy(128, "bf16"), Layout((16, 8), (8, 1)), Layout((1, 8)))
    page = show(copy.html(), width=1400, height=1200)
    fonts = page.page.evaluate(
        """() => pictures.map((picture) => {
          const context = picture.base.getContext("2d"), found = {}, fill = context.fillText;
          context.fillText = function (...texts) {
            if (context.font.includes("monospace")) found[context.font] = (found[context.font] ?? 0) + 1;
            return fill.apply(context, texts);
          };
          picture.redraw();
          delete context.fillText;
          return [picture.name, Object.values(found)];
        })"""
    )
    assert len(fonts) >= 2 and all(counts == [2 * 16 * 64] for _, counts in fonts), fonts
