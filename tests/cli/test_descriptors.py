"""`layoutgemm desc` and `layoutgemm box`: the words, boxes and bytes of the plans, and what the two refuse."""

import json

import pytest

from layoutgemm.cli.main import main
from layoutgemm.kernels import TeachingPlan
from tests.cli.test_main import refusal

PLAN = TeachingPlan.derive(200, 136, 72, a="bf16", b="bf16")


def told(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("operand", [PLAN.a, PLAN.b], ids="AB")
def test_the_words_and_boxes_are_those_of_a_plan(capsys, operand):
    extent = "x".join(map(str, operand.smem.extent))
    how = ("--element", "bf16", "--major", operand.major, "--swizzle", operand.smem.swizzle_name)
    said = told(capsys, "desc", extent, *how, "--operand", operand.name)
    assert int(said["word"], 16) == operand.descriptor.word
    assert tuple(said["k_steps"]) == operand.descriptor.k_steps
    assert said["stage_bytes"] == operand.descriptor.stage_bytes
    box = told(capsys, "box", extent, *how)
    tile = f"smem:{extent}:bf16:{operand.major}:{operand.smem.swizzle_name}"
    assert told(capsys, "box", tile) == box and told(capsys, "desc", tile, "--operand", operand.name) == said
    assert (tuple(box["box"]), box["bytes"]) == (operand.tma.box, operand.tma.bytes)
    assert [i["shared_byte"] for i in box["instructions"]] == [i.smem_offset for i in operand.tma.instructions]


@pytest.mark.parametrize(
    ("arguments", "word", "rows"),
    [
        (("128x64",), "0x4000004000010000", 64),
        (("128x64", "--address", "0x8400"), "0x4000004000010840", 64),
        (("96x64", "--operand", "B"), "0x4000004000010000", 96),
        (("96x64", "--operand", "B", "--element", "i8"), "0x8000002000010000", 96),
        (("80x64", "--operand", "B", "--element", "i8"), "0x8000002000010000", 80),
        (("128x64", "--arch", "sm_100a"), "0x4000404000010000", 128),
        (("192x64", "--arch", "sm_100a"), "0x4000404000010000", 64),
    ],
)
def test_words(capsys, arguments, word, rows):
    said = told(capsys, "desc", *arguments)
    assert (said["word"], said["instruction"][0]) == (word, rows)
    arch = said["arch"]
    again = told(capsys, "desc", word, "--arch", arch)
    assert again["fields"] == said["fields"] and again["swizzle"] == said["swizzle"]


def test_a_word_is_decoded(capsys):
    assert main(["desc", "0x4000004000010040"]) == 0
    assert "1024 bytes: start address in shared memory" in capsys.readouterr().out
    said = told(capsys, "desc", "0x8400490", "--kind", "f16")
    assert (said["shape"], said["a"], said["d"]) == ([128, 256, 16], "bf16", "f32")
    assert said["fields"]["n"] == {"bits": [17, 23], "raw": 32, "value": 256, "name": "256", "unit": ""}


def test_a_tile_of_a_matrix(capsys):
    said = told(capsys, "box", "128x128", "--of", "4096x1000", "--at", "3,2")
    assert said["tile_coordinates"] == [[256, 384], [320, 384]]
    assert (said["extents"], said["strides"], said["bytes"]) == ([1000, 4096], [2000], 32768)
    store = told(capsys, "box", "64x128", "--major", "mn", "--store")
    assert (store["operation"], store["dims"], store["box"]) == ("store", ["row", "column"], [64, 128])
    assert told(capsys, "box", "128x128", "--element", "e3m2")["bytes"] == 128 * 128 * 6 // 8
    assert main(["box", "512x64"]) == 0
    assert "(column +0, row +256) -> shared byte +32768" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("desc foo", "a tile is written MNxK, as in 128x64"),
        ("desc", "see layoutgemm desc --help"),
        ("desc 64x64 --arch sm_91", "do you mean sm_90a?"),
        ("desc 64x64 --arch sm_80", "sm_80 has no matrix descriptors"),
        ("desc 64x64 --element f32", "one of: bf16 | f16 | tf32"),
        ("desc 64x64 --element f32 --arch sm_100a", "tcgen05.mma multiplies f16, bf16"),
        ("desc 64x64 --element e4m3 --major MN", "wgmma transposes f16 and bf16 alone"),
        ("desc 64x64 --kind f16", "omit --kind f16"),
        ("desc 64x16 --swizzle 128B", "no multiple of the atom's 64"),
        ("desc 96x64", "no multiple of it"),
        ("desc 100x64 --operand B", "a multiple of 8"),
        ("desc 96x64 --arch sm_100a", "takes 64, 128 rows, and none divides"),
        ("desc 64x64 --address 0x8410", "the tile starts at a multiple of 1024, as 0x8800"),
        ("desc 0x4000404000010000", "it is a word of sm_100a: give --arch sm_100a"),
        ("desc 0x8400490 --arch sm_100a", "give its --kind, as in f16"),
        ("desc 100000x64", "12800000 bytes, and the shared memory of a block 232448 at most"),
        ("box 100000x100000", "ask for less"),
        ("box 128", "ROWSxCOLUMNS, as in 128x64"),
        ("box smem:128x64:bf16 --major MN", "--major MN beside smem:128x64:bf16"),
        ("box smem:128x64", "smem:MNxK:TYPE[:MAJOR[:SWIZZLE]]"),
        ("box 128x60", "no multiple of a 16-byte chunk"),
        ("box 128x64 --swizzle 33B", "see layoutgemm box --help"),
        ("box 128x64 --of 4096x1001", "nearest that works: global layout (4096,1001):(1008,1)"),
        ("box 128x64 --of 4096x1000 --at 3,20", "has tiles 0,0 to 31,15"),
        ("box 128x64 --at 1,1", "give the matrix too, as in --of 4096x1024"),
    ],
)
def test_refusals(capsys, arguments, text):
    assert text in refusal(capsys, arguments)
