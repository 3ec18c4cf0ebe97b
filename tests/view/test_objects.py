"""Every object with a picture returns it, writes it, prints it and shows itself."""

from __future__ import annotations

import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import layoutgemm.view as view
from layoutgemm import Layout, Swizzle, dim, wgmma
from layoutgemm.atoms import (
    InstructionDescriptor,
    TiledMma,
    ldmatrix,
    make_tiled_copy,
    mma_sync,
    smem_tile,
    tcgen05_ld,
    tcgen05_mma,
    tma_load,
    universal_copy,
)
from layoutgemm.emulator.machine.timeline import Span, Timeline, TimelineRow
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import Sm80Plan, Sm90Plan, Sm100Plan, TeachingPlan
from layoutgemm.kernels.pictures import PICTURES, plan_table, regions_of
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.sm90.plan import Sm90Config
from layoutgemm.kernels.streamed.plan import StreamedPlan
from layoutgemm.layouts.display import HasPicture, picture, table
from layoutgemm.schedule import Grouped, Hilbert, Linear, Persistent
from layoutgemm.view.canvas import DARK
from layoutgemm.view.raster import dark_svg
from tests import needs

PLAN = TeachingPlan.derive(200, 136, 72)
OBJECTS: dict[str, Callable[[], Any]] = {
    "Layout": lambda: Layout((4, 8)),
    "ComposedLayout": lambda: Swizzle(2, 0, 2) @ Layout((4, 4), (4, 1)),
    "Swizzle": lambda: Swizzle(2, 4, 3, "bytes"),
    "MmaAtom": lambda: mma_sync("m16n8k8", "tf32"),
    "Tcgen05Atom": lambda: tcgen05_mma("f16", 64, 8, "bf16"),
    "CopyAtom": lambda: ldmatrix(2),
    "TmemCopyAtom": lambda: tcgen05_ld("16x128b", 1),
    "VectorCopy": lambda: universal_copy(128, "bf16"),
    "TiledMma": lambda: TiledMma(mma_sync("m16n8k8", "bf16"), (1, 2, 1)),
    "TiledCopy": lambda: make_tiled_copy(universal_copy(64, "bf16"), Layout((8, 4), (4, 1)), Layout((1, 4))),
    "TmaPlan": lambda: tma_load(Layout((65, 70), (72, 1)), smem_tile((64, 64), "bf16", "K")),
    "OperandDescriptor": lambda: PLAN.a.descriptor,
    "SmemDescriptor": lambda: PLAN.a.descriptor.base,
    "InstructionDescriptor": lambda: InstructionDescriptor("f16", 128, 64, "bf16", "bf16", "f32"),
    "SmemTile": lambda: smem_tile((8, 32), "f32", "K"),
    "Linear": lambda: Linear("N"),
    "Grouped": lambda: Grouped(group=4),
    "Hilbert": lambda: Hilbert(),
    "Persistent": lambda: Persistent(Grouped(), 4, (2, 1)),
    "TeachingPlan": lambda: PLAN,
    "Timeline": lambda: Timeline(
        [TimelineRow((0, 0, 0), 0, role="loads", spans=[Span("load", 0, 3, "cp.async.bulk", 7)])]
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_show_themselves(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = OBJECTS[name]()
    assert type(made).__name__ == name
    svg = made.svg()
    assert ET.fromstring(svg).tag.endswith("svg") and made._repr_svg_() == svg
    file = tmp_path / "new" / f"{name}.svg"
    assert made.svg(file) == file and file.read_text(encoding="utf-8") == svg
    made.show()
    assert capsys.readouterr().out.count("\n") >= 2


def test_what_has_no_picture_says_why() -> None:
    symbolic = Layout((dim("rows"), 4))
    assert symbolic._repr_svg_() is None and Layout((1024, 1024))._repr_svg_() is None
    with pytest.raises(LayoutError, match="put them in first"):
        symbolic.svg()


class Unseen(HasPicture):
    """A type that nothing is registered for."""

    def __repr__(self) -> str:
        return "an unseen thing"


def test_a_type_without_a_picture_is_named() -> None:
    unseen = Unseen()
    assert unseen._repr_svg_() is None
    with pytest.raises(LayoutError, match=r"^an unseen thing has no picture$"):
        unseen.svg()
    with pytest.raises(LayoutError, match=r"^an unseen thing has no text of its picture$"):
        unseen.show()


def test_a_type_takes_the_picture_of_the_nearest_type_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tile(Unseen):
        """An object with a picture."""

    class Ragged(Tile):
        """An object with the same picture."""

    picture.register(Tile)(lambda thing, text="tile": f"{text} of {thing}")
    assert (Ragged().svg(), Ragged().svg(text="edge")) == ("tile of an unseen thing", "edge of an unseen thing")
    picture.register(Ragged)(lambda thing: "its own")
    assert (Tile().svg(), Ragged().svg()) == ("tile of an unseen thing", "its own")


def test_options_go_on_to_the_picture(capsys: pytest.CaptureFixture[str]) -> None:
    atom = wgmma(8)
    assert "fragment C" in atom.svg(operand="C") and "fragment C" not in atom.svg()
    atom.show(operand="C", rows=range(1))
    assert capsys.readouterr().out.splitlines()[-1] == "0 | 0:0 0:1 1:0 1:1 2:0 2:1 3:0 3:1"
    assert "before: " in smem_tile((8, 64), "bf16", "K").svg(pair=True)
    assert "3x2 tiles" in Linear().svg(grid=(3, 2))
    assert "40x1 of 64x64 inside" not in OBJECTS["TmaPlan"]().svg()
    assert "6x1 of 64x64 inside" in OBJECTS["TmaPlan"]().svg(index=(1, 1))


PLANS: dict[str, Callable[[], Any]] = {
    "gemm": lambda: PLAN,
    "sm80": lambda: Sm80Plan.derive(512, 512, 512),
    "sm90": lambda: Sm90Plan.derive(512, 512, 512),
    "sm90 split": lambda: Sm90Plan.derive(
        128, 512, 4096, config=Sm90Config((128, 128), split=2, one_tile_per_cluster=True)
    ),
    "sm100": lambda: Sm100Plan.derive(512, 512, 512),
}


@pytest.mark.parametrize("name", PLANS)
def test_plans_draw_what_they_hold(name: str) -> None:
    plan = PLANS[name]()
    for of in ("smem", "order") if name != "gemm" else PICTURES:
        assert ET.fromstring(plan.svg(of=of)).tag.endswith("svg")
        assert table(plan, of=of)
    regions = regions_of(plan)
    assert max(r.offset + r.bytes for r in regions) == plan.smem.total
    for operand in "AB":
        tile = getattr(plan, operand.lower()).smem
        found = [r for r in regions if r.name == operand]
        assert [r.stage for r in found] == list(range(plan.stages)) and {r.bytes for r in found} == {tile.bytes}
    always = sorted((r.offset, r.offset + r.bytes, r.label) for r in regions if r.name in ("A", "B", "full", "empty"))
    assert all(a[1] <= b[0] for a, b in pairwise(always)), "stages and barriers are apart"
    barriers = [r for r in regions if r.note == "mbarrier"]
    assert {r.bytes for r in barriers} <= {8} and all(r.offset % 8 == 0 for r in barriers)
    with pytest.raises(LayoutError, match="of='tile': a plan shows 'fragment'"):
        plan.svg(of="tile")


# --------------------------------------------------------------------------------------------------------------- files


def test_dark_for_good(tmp_path: Path) -> None:
    svg = Layout((2, 2)).svg()
    assert svg.count(DARK) == 1 and ">0</text>" in svg
    ET.fromstring(dark_svg(svg))
    Layout((2, 2)).svg(tmp_path / "dark.svg", dark=True)
    assert (tmp_path / "dark.svg").read_text(encoding="utf-8") == Layout((2, 2)).svg(dark=True) == dark_svg(svg)


@pytest.mark.parametrize("drawn", [lambda: Layout((8, 8)), lambda: wgmma(8), lambda: smem_tile((8, 64), "bf16", "K")])
def test_a_dark_picture_paints_no_other_picture_of_its_page(drawn: Any) -> None:
    """Style sheets of an SVG hold for the whole page that it is put into."""
    light, dark = drawn().svg(), drawn().svg(dark=True)
    assert "<style" not in dark and "class=" not in dark
    rules = dict(re.findall(r"\.(lg[fs]-\w+)\{\w+:(#\w+)\}", light))
    expected = re.sub(r'(fill|stroke)="[^"]*" class="(lg[fs]-\w+)"', lambda m: f'{m[1]}="{rules[m[2]]}"', light)
    assert len(rules) >= 3 and dark == re.sub("<style>.*</style>\n", "", expected)


def test_png(tmp_path: Path) -> None:
    needs.module("resvg_py")
    file = tmp_path / "picture.png"
    assert Layout((4, 8)).svg(file) == file
    svg = Layout((4, 8)).svg()
    content = file.read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (float(x) for x in re.findall(r'(?:width|height)="([\d.]+)"', svg)[:2])
    size = [int.from_bytes(content[at : at + 4], "big") for at in (16, 20)]
    assert size == pytest.approx([2 * width, 2 * height], abs=2)
    assert view.png(svg, dark=True) != content
    assert len(view.png(svg, scale=1)) < len(content)


def test_png_without_renderer_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resvg_py", None)
    with pytest.raises(LayoutError, match=r"pip install 'layoutgemm\[png\]'"):
        Layout((2, 2)).svg(tmp_path / "a.png")
    assert not (tmp_path / "a.png").exists()


def test_png_without_fonts_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A renderer that finds no font draws everything but the texts, and says nothing."""
    silent = re.compile("<text.*</text>")
    blind = SimpleNamespace(svg_to_bytes=lambda svg_string, **options: silent.sub("", svg_string).encode())
    monkeypatch.setitem(sys.modules, "resvg_py", blind)
    with pytest.raises(LayoutError, match="would have no text: none of the fonts"):
        view.png(Layout((2, 2)).svg())


def test_every_function_is_where_the_list_says() -> None:
    for name in view.__all__:
        assert callable(getattr(view, name)) and name in dir(view)
        assert name.removesuffix("_table").removesuffix("_pair") in (view.__doc__ or "").replace("-_table", ""), name
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        view.nothing  # noqa: B018


def test_a_layout_draws_without_atoms_and_checks() -> None:
    code = "import sys, layoutgemm; layoutgemm.Layout((4, 4)).svg(); print([m for m in sys.modules if 'atoms' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_a_picture_is_whole_pixels_wide() -> None:
    """A fraction of a pixel would be a half transparent seam in a PNG."""
    for svg in (Grouped(group=4).svg(grid=(12, 8)), Layout((4, 8)).svg(), ldmatrix(4).svg()):
        assert re.match(r'<svg [^>]*width="\d+" height="\d+" viewBox="0 0 \d+ \d+"', svg)


def test_packed_weights_are_drawn_by_the_threads_that_hold_them() -> None:
    """On sm_90a they are A, on sm_80 B: its picture was that of a tile, which packed weights are not."""
    weights = QuantizedFormat("int4", 128)
    hopper = Sm90Plan.derive(1024, 64, 1024, weights=weights)
    ampere = Sm80Plan.derive(1024, 64, 1024, weights=weights)
    for plan, of in ((hopper, "a"), (ampere, "b"), (StreamedPlan.derive(4096, 1, 4096, weights=weights), "a")):
        operand = plan.a if of == "a" else plan.b
        svg = plan.svg(of=of)
        assert f"{operand.name}, packed int4 in groups of 128: the codes of a unit of 64x128" in svg
        assert ">feature \u2193</text>" in svg and ">k \u2192</text>" in svg
        codes, seen = operand.packing.codes, 0
        code, word = int(codes[0].size), int(codes[1].size)
        for row, first, cells in re.findall(r"<title>feature (\d+), k (\d+)(?: to \d+)?: (T[^<]*)</title>", svg):
            for column, cell in enumerate(cells.split(" | "), int(first)):
                thread, value = map(int, re.fullmatch(r"T(\d+) V(\d+)", cell).groups())
                found = codes(value % code, value // code % word, thread, value // (code * word))
                assert found == int(row) + 64 * column, (row, column, cell)
                seen += 1
        assert seen == 64 * 128
        assert str(operand.packing.codes) in plan_table(plan, of)
    assert "banks" in ampere.svg(of="a") and "banks" in hopper.svg(of="b")


def test_outlines_have_a_light_edge_on_a_dark_page() -> None:
    """Ink is not seen on dark paper, where an outline leaves the colours."""
    svg = tcgen05_mma("f16", 64, 64, "bf16").svg(tmem=True)
    assert svg.count('stroke="none" class="lgs-halo"') == 4 and ".lgs-halo{stroke:#F2F2F2}" in svg
    assert "halo" not in Layout((4, 8)).svg()
