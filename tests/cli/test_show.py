"""`layoutgemm show`: what it prints is what the layout says, and what it refuses names the way out."""

import json
from xml.etree import ElementTree

import pytest

from layoutgemm import Layout, wgmma
from layoutgemm.atoms import smem_tile
from layoutgemm.cli.main import main
from layoutgemm.cli.show import fitting
from tests.cli.test_main import refusal


def told(capsys, *arguments):
    assert main(["show", *arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_layout_is_a_grid_of_its_offsets(capsys):
    assert main(["show", "(2,4):(4,1)"]) == 0
    assert capsys.readouterr().out.splitlines()[-2:] == ["0 | 0 1 2 3", "1 | 4 5 6 7"]
    said = told(capsys, "(4,(2,2)):(2,(1,8))")
    layout = Layout((4, (2, 2)), (2, (1, 8)))
    assert said["offsets"] == [[layout(i, j) for j in range(4)] for i in range(4)]


def test_a_tile_is_swizzled(capsys):
    said = told(capsys, "smem:16x64:bf16", "--rows", "1:16:5")
    tile = smem_tile((16, 64), "bf16", "K")
    assert said["offsets"] == [[tile.composed(i, j) for j in range(64)] for i in (1, 6, 11)]
    assert said["rows"] == [1, 6, 11]


OBJECTS = {
    "mma:m16n8k16:f16": "B, k down, n across, thread:value",
    "wgmma:8:bf16": "A, m x k = 64x16: in shared memory",
    "tcgen05:128x32:bf16": "C, m x n = 128x32: in tensor memory",
    "tiled:2x1x1:mma:m16n8k8:tf32": "2x1x1 x mma.sync.aligned.m16n8k8",
    "copy:ldmatrix:1:trans": "destination, registers, thread:value",
    "copy:cp_async:16": "source, global memory, thread:value",
    "copy:tcgen05_ld:32x32b:2": "source, tensor memory, thread:value",
    "schedule:serpentine:2:4x4": "serpentine=True) over 4x4 tiles",
    "S<2,4,3>[bytes]": "before: ",
}


@pytest.mark.parametrize("what", OBJECTS)
def test_objects_by_name(capsys, what):
    assert main(["show", what]) == 0
    assert OBJECTS[what] in capsys.readouterr().out
    assert told(capsys, what)["what"] == what


def test_wide_tables_are_cut_one_by_one():
    two = "a\n    0 1 2\n  +------\n0 | 7 8 9\nb\n    0 1\n  +----\n0 | 7 8"
    cut = ["    0 1", "  +----", "0 | 7 8"]
    assert fitting(two, 8).split("\n")[:8] == ["a", *cut, "b", *cut]
    assert "2 of 3 columns fit into 8 characters" in fitting(two, 8)
    assert fitting(two, 80) == two


@pytest.mark.parametrize("operand", ["C", "A"])
def test_an_atom_shows_threads_and_values(capsys, operand):
    said = told(capsys, f"wgmma:16:f16:{operand}")
    atom = wgmma(16, "f16", a_source="rmem")
    for m, row in enumerate(said["thread_value"]):
        for n, [(thread, value)] in enumerate(row):
            assert atom.coords(operand)(thread, value) == (m, n)


@pytest.mark.parametrize("what", ["(4,8):(8,1)", "smem:8x64:bf16", "mma:m16n8k16:bf16:B", *OBJECTS])
def test_pictures(capsys, tmp_path, what):
    file = tmp_path / "new" / "picture.svg"
    assert main(["show", what, "--svg", str(file)]) == 0
    assert capsys.readouterr().out == f"written to {file}\n"
    assert ElementTree.parse(file).getroot().tag.endswith("svg")


@pytest.mark.parametrize(("what", "text"), [
    ("(4,8):(8,1)", '"name":"offsets"'), ("smem:8x64:bf16", "tile in shared memory"), ("mma:m16n8k16", '"name":"B"'),
    ("wgmma:64:bf16 --smem-b smem:64x64:bf16", "read by the descriptor"), ("copy:ldmatrix:4", '"name":"destination"'),
    ("S<3,4,3>[bytes]", '"name":"after"'), ("mma:m16n8k64:e2m1:mxf4", '"name":"SFB"'),
])  # fmt: skip
def test_pages(capsys, tmp_path, what, text):
    file = tmp_path / "new" / "page.html"
    assert main(["show", *what.split(), "--html", str(file)]) == 0
    assert capsys.readouterr().out == f"written to {file}\n"
    assert text in file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("'(4,8'", "at the end of '(4,8': a layout is written '(8,64):(64,1)'"),
        ("'S<3,4'", "a swizzle is written S<3,4,3> or S<3,4,3>[bytes]"),
        ("'S<3,4,3>' --rows 0:4", "is shown whole"),
        ("'(4,8):(8,1)' --thread 3", "not held by threads"),
        ("'(4,8):(8,1)' --rows 0:9", "leaves the 4 rows that there are"),
        ("'(4,8):(8,1)' --rows 9", "write FROM:TO, as in 0:16; see layoutgemm show --help"),
        ("", "required: LAYOUT; see layoutgemm show --help"),
        ("smem:8", "as in smem:64x64:bf16:K:128B"),
        ("smem:8x64:bf17", "bf16"),
        ("wgmma:65", "N = 8, 16, ..., 256"),
        ("wgmma:64:bf16:B", "show its tile, as in smem:64x16:bf16:K"),
        ("wgmma", "an atom is written FAMILY:SIZE[:TYPE[:KIND]][:OPERAND], as in wgmma:64:bf16:C"),
        ("mma:m16n8k15", "has m16n8k8, m16n8k16"),
        ("mma:m16n8k16 --thread 3", "apply to a picture: give --svg FILE"),
        ("tiled:2x2x1", "as in tiled:2x2x1:mma:m16n8k16"),
        ("tiled:100x100x1:mma:m16n8k16 --svg x.svg", "tiled:100x100x1:mma:m16n8k16 is shown whole"),
        ("schedule:linear:100000x100000", "and up to 65536 are shown"),
        ("'S<40,4,40>'", "write 'S<40,4,40> o 0 o (8,64):(64,1)'"),
        ("'(4,8):(8,1)' --rows 3:1", "--rows 3:1 shows nothing"),
        ("'(4,8):(8,1)' --dark", "give --svg FILE or --png FILE too"),
        ("'(4,8):(8,1)' --svg x.pdf", "a picture is an .svg or a .png"),
        ("mma:m16n8k64:e2m1:foo", "it has f8f6f4, mxf4"),
        ("tcgen05:128x64:e2m1:foo", "the kinds of tcgen05.mma are f16"),
        ("wgmma:64:bf16:f16", "wgmma has no kinds"),
        ("mma:m16n8k16:bf16:SFA", "has operands A, B, C and D"),
        ("schedule:linear --html x.html", "has no page"),
        ("tcgen05:f16", "written MxN, as in tcgen05:128x256:bf16"),
        ("tcgen05:128x256:bf16:A", "show a tile in shared memory"),
        ("copy:ldmatrix", "a copy is one of copy:ldmatrix:4"),
        ("copy:ldmatrix:3", "ldmatrix"),
        ("schedule:grouped:8:16", "as in schedule:grouped:8:16x12"),
        ("tiled:2x2:mma:m16n8k16", "written tiled:MxNxK:ATOM"),
        ("tiled:2x2x1:mma:m16n8k16:bf16:C", "written FAMILY:SIZE"),
        ("'(4,8):(8,1)' --html x.html --svg x.svg", "omit --svg"),
        ("'(4,8):(8,1)' --html x.html --planes 0:1", "omit --planes"),
        ("'(4,8):(8,1)' --html x.html --smem-a smem:64x64:bf16", "and (4,8):(8,1) is not an atom"),
        ("mma:m16n8k16 --smem-a smem:64x64:bf16", "give --html FILE too"),
        ("mma:m16n8k16 --html x.html --smem-a smem:40x64:bf16", "M = 40 is no multiple of 16"),
    ],
)
def test_refusals(capsys, arguments, text):
    assert text in refusal(capsys, f"show {arguments}")


def test_errors_for_programs(capsys):
    assert main(["show", "nonsense", "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert said["ok"] is False and "a layout is written" in said["error"]


def test_a_pasted_text_is_shown_in_every_form(capsys, tmp_path) -> None:
    texts = (
        "sA: (4,8):(8,1)  # rows",
        "torch.Size([4, 8]) (8, 1)",
        "{'reg': [[0, 1], [0, 2]], 'lane': [[1, 0], [2, 0]]}",
    )
    for text in texts:
        for options in ([], ["--json"], ["--svg", str(tmp_path / "a.svg")], ["--html", str(tmp_path / "a.html")]):
            assert main(["show", text, *options]) == 0, (text, options, capsys.readouterr())
    for text in ("SW_3_4_3", "Swizzle<3,4,3>", '!cute.swizzle<"S<3,4,3>">'):
        capsys.readouterr()
        assert main(["show", text]) == 0 and capsys.readouterr().out.startswith("S<3,4,3> on ")
    tiled = '!cute.tiled_copy<!a.b<f16>, layout_copy_tv = <"(4,8):(8,1)">, tiler_mn = <"[4:1;8:1]">>'
    assert main(["show", tiled]) == 0 and "TiledLayout_TV: (4,8):(8,1)" in capsys.readouterr().out


def test_planes_of_a_large_layout_have_a_head_and_a_way_to_the_rest(capsys) -> None:
    layout = Layout((128, 8, 513), (4098, 1, 8))
    assert main(["show", str(layout)]) == 0
    *_, last = capsys.readouterr().out.splitlines()
    assert last.startswith("16 of 128 rows, 8 of 8 columns, 1 of 513 planes: --rows FROM:TO")
    assert main(["show", str(layout), "--json", "--planes", "3:5", "--rows", "1:2"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert said["planes"] == [[3], [4]]
    assert said["offsets"] == [[[layout(1, j, k) for j in range(8)]] for k in (3, 4)]
    assert main(["show", str(layout), "--json"]) == 2 and "--planes 0:64" in capsys.readouterr().out
    assert main(["show", "(4,8):(8,1)", "--planes", "1:2"]) == 2 and "planes" in capsys.readouterr().err


@pytest.mark.parametrize(
    "what, told", [("(64,64):(64,1)", "16 of 64 rows, 16 of 64 columns"), ("(65):(1)", "1 of 1 rows, 16 of 65 columns")]
)
def test_a_long_or_wide_table_has_a_head(capsys, what: str, told: str) -> None:
    assert main(["show", what]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == f"{told}: --rows FROM:TO and --columns FROM:TO show others"
    assert main(["show", "(32,64):(64,1)"]) == 0
    assert "others" not in capsys.readouterr().out


def test_a_layout_with_symbols_is_printed_without_a_table(capsys) -> None:
    assert main(["show", "(4,M):(M,1)"]) == 0
    assert capsys.readouterr().out.startswith("(4,M):(M,1)\nno table: some of its extents")
    for word, hint in (("m16n8k16:A", "mma:m16n8k16:A"), ("mma_sync:m16n8k16:bf16", "mma:m16n8k16:bf16"),
                       ("ldmatrix:x4", "copy:ldmatrix:4"), ("cp:128", "copy:ldmatrix:4")):  # fmt: skip
        assert main(["show", word]) == 2 and hint in capsys.readouterr().err
    assert main(["show", "(4,M):(M,1)", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"layout": "(4,M):(M,1)", "shape": [4, "M"], "offsets": None}
    assert main(["show", "(4,M):(M,1)", "--svg", "x.svg"]) == 2 and "needs numbers" in capsys.readouterr().err
