"""`layoutgemm swizzle` and `layoutgemm banks`: counted here once more by hand, and what they refuse."""

import json
from collections import Counter

import pytest

from layoutgemm.cli.main import main
from layoutgemm.layouts import parse
from tests.cli.test_main import refusal


def told(capsys, status, *arguments):
    assert main([*arguments, "--json"]) == status
    return json.loads(capsys.readouterr().out)


def ways_of_a_matrix(layout, bits):
    """The first 8 rows of 16 bytes, the words of which the fullest bank gives: the definition, spelt out."""
    words = {(layout(row, 0) * bits // 32) + i for row in range(8) for i in range(4)}
    return max(Counter(word % 32 for word in words).values())


@pytest.mark.parametrize(
    ("layout", "ways"),
    [
        ("(64,64):(64,1)", 8), ("(64,64):(72,1)", 1), ("(64,64):(80,1)", 2), ("(8,32):(32,1)", 4),
        ("S<3,3,3> o 0 o (64,64):(64,1)", 1), ("S<2,3,3> o 0 o (64,64):(64,1)", 2),
    ],
)  # fmt: skip
def test_rows(capsys, layout, ways):
    said = told(capsys, int(ways > 1), "banks", layout, "--element", "bf16")
    assert said["ways"] == ways == ways_of_a_matrix(parse(layout), 16)
    assert said["conflict_free"] is (ways == 1)
    lanes = [] if said["first"] is None else said["first"]["lanes"]
    assert len(lanes) == (0 if ways == 1 else ways)
    assert len({lane["byte"] // 4 % 32 for lane in lanes}) <= 1


def test_columns(capsys):
    assert told(capsys, 0, "banks", "(32,32):(33,1)", "--element", "f32", "--access", "columns")["ways"] == 1
    assert told(capsys, 1, "banks", "(32,32):(32,1)", "--element", "f32", "--access", "columns")["ways"] == 32
    assert told(capsys, 1, "banks", "(32,32):(1,32)", "--element", "f32", "--access", "columns")["ways"] == 32


def test_the_lanes_are_printed(capsys):
    assert main(["banks", "(64,64):(64,1)"]) == 1
    out = capsys.readouterr().out
    assert "bank 0 gives 8 words" in out and "   7   896   224  0..3" in out


def test_the_swizzle_found_is_free(capsys):
    said = told(capsys, 0, "swizzle", "(64,64):(64,1)", "--element", "bf16")
    assert (said["swizzle"], said["on_elements"]) == ("S<3,4,3>[bytes]", "S<3,3,3>[16b]")
    composed = f"{said['on_elements']} o 0 o (64,64):(64,1)"
    assert told(capsys, 0, "banks", composed)["wavefronts"] == said["banks"]["wavefronts"] == 64
    assert main(["swizzle", "(64,64):(64,1)"]) == 0
    assert "S<3,4,3>[bytes] is free of conflicts" in capsys.readouterr().out


def test_none_is_proven(capsys):
    said = told(capsys, 1, "swizzle", "(128,64):(64,1)", "--access", "rows", "--access", "columns")
    assert said["swizzle"] is None and "rank 5 over GF(2), the banks rank 3" in said["reason"]
    column = told(capsys, 0, "swizzle", "(128,64):(64,1)", "--access", "columns")
    assert column["swizzle"] == "S<5,2,5>[bytes]"
    assert told(capsys, 1, "swizzle", "(128,64):(64,1)", "--access", "columns", "--tma")["best"] == "S<3,4,3>[bytes]"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("banks '(64,60):(64,1)'", "8x8 matrices of bf16 do not tile 64x60; rows are 16 bytes"),
        ("banks '(64,64):(65,1)'", "no multiple of its 16 bytes; rows are 16 bytes"),
        ("banks '(64,64):(64,2)'", "as (64,64):(64,1) has along its second"),
        ("banks '(64,M):(1,64)'", "give them values"),
        ("banks 64:1", "group them, as in (8,(4,2)):(8,(1,4))"),
        ("banks smem:64x64:bf16 --element f32", "give --element a type of that width"),
        ("banks '(64,64):(64,1)' --element bf17", "unknown number format 'bf17'; do you mean bf16 or b1? known:"),
        ("banks '(512,512):(512,1)' --svg x.svg", "draw a part of it, as in (64,64):(1024,1)"),
        ("swizzle nonsense", "a layout is written"),
        ("swizzle", "see layoutgemm swizzle --help"),
        ("banks '(64,64):(64,1)' --access diagonal", "see layoutgemm banks --help"),
    ],
)
def test_refusals(capsys, arguments, text):
    assert text in refusal(capsys, arguments)


@pytest.mark.parametrize(
    ("threads", "vector", "ways"),
    [("(4,8):(8,1)", 4, 1), ("(32,1):(1,0)", 4, 8), ("(32,1):(1,0)", 1, 32), ("(1,32):(0,1)", 1, 1)],
)
def test_an_access_by_a_layout_of_threads(capsys, threads: str, vector: int, ways: int) -> None:
    """Row-major floats, 32 to a row: a bank gives as many words as threads of a phase stand in one column."""
    words = ["(32,32):(32,1)", "--element", "f32", "--threads", threads, "--vector", str(vector)]
    found = told(capsys, int(ways > 1), "banks", *words)
    assert found["ways"] == ways
    assert told(capsys, 0, "swizzle", *words)["banks"]["ways"] == 1


def test_an_access_by_threads_and_values_is_the_same(capsys) -> None:
    words = ["(32,32):(32,1)", "--element", "f32", "--vector", "4"]
    by_threads = told(capsys, 0, "banks", *words, "--threads", "(4,8):(8,1)", "--store")
    assert told(capsys, 0, "banks", *words, "--tv", "((8,4),4):((128,1),32)", "--store")["wavefronts"] == 4
    assert by_threads["wavefronts"] == 32
    assert main(["banks", *words]) == 2 and "--vector and --store are for" in capsys.readouterr().err


def test_the_element_type_is_that_of_a_pasted_text(capsys):
    pasted = "tensor<ptr<f32, smem, align<16>> o (32,32):(32,1)>"
    arguments = ["--threads", "(32,1):(1,0)", "--vector", "4", "--json"]
    found = []
    for text, more in ((pasted, []), ("(32,32):(32,1)", ["--element", "f32"]), (pasted, ["--element", "bf16"])):
        assert main(["banks", text, *arguments, *more]) == 1
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["element"] == "f32" and found[2]["element"] == "bf16"
    assert {**found[0], "layout": ""} == {**found[1], "layout": ""} != {**found[2], "layout": ""}
    assert main(["banks", "tensor<ptr<f33, smem, align<16>> o (32,32):(32,1)>"]) == 2
    assert "unknown number format 'f33'" in capsys.readouterr().err


@pytest.mark.parametrize("text", ["--tv M:1", "--tv (32,8):(M,1)", "--threads (M,8):(8,1)", "--threads (4,8):(M,1)"])
def test_an_access_with_symbols_is_refused_by_name(capsys, text):
    assert f"{text} has symbols" in refusal(capsys, f"banks '(64,64):(64,1)' {text.split()[0]} '{text.split()[1]}'")


def test_coordinates_have_no_banks(capsys):
    for command in ("banks '(4,8):(1@0,1@1)'", "swizzle '(4,8):(E<0>,E<1>)' --threads '(4,8):(8,1)' --vector 4"):
        assert "leads to coordinates" in refusal(capsys, command)


def test_a_long_argument_is_not_repeated_whole(capsys):
    for command in (
        f"show {'a' * 5000}",
        f"emulate {'a' * 5000}",
        f"banks 4:1 --vector {'a' * 5000}",
        f"box {'a' * 5000}",
    ):
        assert len(refusal(capsys, command)) < 1200


def test_long_tables_print_their_head(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["(128,64):(64,1)", "--element", "bf16", "--access", "rows", "--access", "columns"]
    for command in ("swizzle", "banks"):
        texts = []
        for more in ([], ["--full"]):
            main([command, *asked, *more])
            texts.append(capsys.readouterr().out.splitlines())
        short, whole = texts
        if command == "swizzle":
            assert len(short) == 30 and short[-1] == f"29 of {len(whole)} lines; --full prints the rest"
            assert short[:29] == whole[:29] and whole[-1].split()[0] == "31"
        else:
            assert short == whole and len(whole) <= 30
