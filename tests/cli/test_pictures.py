"""`--svg`, `--png` and `--dark` of the commands: what is drawn is what is printed."""

import json
import re
from xml.etree import ElementTree

import pytest

from layoutgemm.cli.main import main
from tests import needs
from tests.cli.test_main import PTX

# Command, and what its picture says.
PICTURES = {
    'swizzle "(8,64):(64,1)"': ("before: (8,64):(64,1), 8-way conflict", "conflict-free", ">lane 7<"),
    "swizzle smem:64x32:bf16:K:64B": ("conflict-free",),
    "banks smem:64x64:bf16:K:128B": ("conflict-free", "64 wavefronts for 16 requests", ">byte 1008<"),
    "desc 128x64": ("stride dimension byte offset", 'data-field="stride_bytes"', ">1024 bytes<"),
    "desc 0x8400490 --kind f16": ("kind::f16", "M of the instruction"),
    "box 128x128 --of 200x104 --at 1,0": ("40x72 of 64x128 inside", "tensor row 200 x column 104"),
    "box 64x64": ("64x64, all inside",),
    "plan 200 136 72": ("fragment C",),
    "plan 200 136 72 --teaching --of smem": ("B stage 3: bytes 57344", "full stage 0"),
    "plan 4096 4096 4096 --arch sm_80 --of order": ("number 17, tile ",),
    "show mma:m16n8k16:bf16 --thread 5": ("Framed: thread 5", "B: 16x8 bf16"),
    "show wgmma:8:bf16:C --color register": ("value 0", "fragment C"),
}


def words(line: str) -> list[str]:
    return [a or b for a, b in re.findall(r'"([^"]*)"|(\S+)', line)]


@pytest.mark.parametrize("line", PICTURES)
def test_commands_draw(line, tmp_path, capsys):
    file = tmp_path / "new" / "picture.svg"
    assert main([*words(line), "--svg", str(file)]) == 0
    assert capsys.readouterr().out == f"written to {file}\n"
    text = file.read_text(encoding="utf-8")
    assert ElementTree.fromstring(text).tag.endswith("svg")
    for part in PICTURES[line]:
        assert part in text, part


def test_no_swizzle_found_draws_the_best_and_says_1(tmp_path, capsys):
    file = tmp_path / "best.svg"
    both = ["--access", "rows", "--access", "columns"]
    assert main(["swizzle", "(128,64):(64,1)", "--element", "bf16", *both, "--svg", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out) == {"svg": str(file)}
    assert "before: (128,64):(64,1)" in file.read_text(encoding="utf-8")


def test_conflicts_are_framed_lane_by_lane(tmp_path, capsys):
    """The status is that of the table; framed is what the lanes of a phase ask of one bank: 8 lanes, 4 banks each."""
    file = tmp_path / "banks.svg"
    for layout, ways in (("(64,64):(64,1)", 8), ("(8,32):(32,1)", 4), ("(64,64):(72,1)", 1)):
        assert main(["banks", layout, "--svg", str(file), "--json"]) == int(ways > 1)
        assert json.loads(capsys.readouterr().out) == {"svg": str(file)}
        text = file.read_text(encoding="utf-8")
        assert ("conflict-free" if ways == 1 else f"{ways}-way conflict") in text
        pitch = 2 * int(layout.split("(")[2].split(",")[0])
        assert [f">byte {pitch * lane}<" in text for lane in range(8)] == [True] * 8
        told = " ".join(re.findall(r"<title>lane ([^<]*)", text))
        assert {number for pair in re.findall(r"gives (\d+)|\d \((\d+)\)", told) for number in pair} == {"", str(ways)}


def test_dark_and_png(tmp_path, capsys):
    needs.module("resvg_py")
    svg, png = tmp_path / "a.svg", tmp_path / "b.image"
    assert main(["show", "(4,8):(8,1)", "--svg", str(svg), "--png", str(png), "--dark"]) == 0
    assert capsys.readouterr().out == f"written to {svg}\nwritten to {png}\n"
    assert png.read_bytes().startswith(b"\x89PNG") and "@media" not in svg.read_text(encoding="utf-8")


def test_a_plan_prints_its_drawing_as_text(capsys):
    assert main(["plan", "200", "136", "72", "--teaching", "--of", "smem"]) == 0
    assert "0x8000   8192  B stage 0: 64x64 bf16, 128B" in capsys.readouterr().out
    assert main(["plan", "200", "136", "72", "--teaching", "--of", "order", "--json"]) == 0
    assert "0 |  0  1  2" in json.loads(capsys.readouterr().out)["text"]


def test_the_emulator_draws_its_timeline(tmp_path, capsys):
    (tmp_path / "kernel.ptx").write_text(PTX)
    file = tmp_path / "timeline.svg"
    assert main(["emulate", str(tmp_path / "kernel.ptx"), "--arg", "f32:32=range", "--svg", str(file)]) == 0
    assert f"written to {file}" in capsys.readouterr().out
    assert re.findall(r'data-kind="(\w+)"', file.read_text(encoding="utf-8")) == ["read", "store"]
