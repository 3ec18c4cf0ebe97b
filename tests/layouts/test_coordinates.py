"""Tensors of coordinates that begin elsewhere than at 0: read, written, cut, compared, drawn."""

from __future__ import annotations

import pickle

import pytest

from layoutgemm import E, Layout, dim, parse, prove
from layoutgemm.errors import LayoutError, ParseError
from layoutgemm.layouts import CoordinateTensor

# (what CuTe, the DSL and its IR print, what it is here)
PRINTED = [
    ("ArithTuple(128,_0) o (128,64):(_1@0,_1@1)", "(128,0) o (128,64):(1@0,1@1)"),
    ("(128,0) o (128,64):(1@1,1@0)", "(128,0) o (128,64):(1@1,1@0)"),
    ("tensor<(128,0) o (128,(64)):(1@0,(1@1))>", "(128,0) o (128,(64)):(1@0,(1@1))"),
    ('!cute.coord_tensor<"(0,64)", "(4,8):(1@0,1@1)">', "(0,64) o (4,8):(1@0,1@1)"),
    ("ArithTuple(_0,(_0,16)) o (4,(2,8)):(1@0,(1@0@1,1@1@1))", "(0,(0,16)) o (4,(2,8)):(1@0,(1@0@1,1@1@1))"),
    ("tCcC: ArithTuple(128,_0) o ((_2,_2),_4):((_1@1,_8@0),_16@0)", "(128,0) o ((2,2),4):((1@1,8@0),16@0)"),
    ("CoordinateTensor((128, 0), Layout((4, 8), (E(0), E(1))))", "(128,0) o (4,8):(1@0,1@1)"),
    ("(128) o 4:1@1", "(128,0) o 4:1@1"),
    ("(128,0) o 1:0", "(128,0) o 1:0"),
    ("ArithTuple(_0,_0) o (4,8):(1@0,1@1)", "(4,8):(1@0,1@1)"),
    ("counting_iter(5) o (4,8):(8,1)", "S<0,0,0> o 5 o (4,8):(8,1)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "right"), PRINTED)
def test_a_printed_tensor_of_coordinates(text: str, right: str) -> None:
    found = parse(text)
    assert str(found) == right
    assert parse(right) == found == pickle.loads(pickle.dumps(found)) == eval(
        repr(found), {"Layout": Layout, "E": E, "CoordinateTensor": CoordinateTensor, **vars(__import__("layoutgemm"))}
    )  # fmt: skip


def test_a_dynamic_offset_is_a_symbol() -> None:
    found = parse("(?{div=128},0) o (128,64):(1@0,1@1)")
    assert isinstance(found, CoordinateTensor)
    assert found.offset[0] % 128 == 0 and found.offset[1] == 0
    assert prove(found, found).ok and not prove(found, parse("(?,0) o (128,64):(1@0,1@1)")).ok


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ArithTuple(128,_0) o (128,64):(_1,128)", "strides as 1@0"),
        ("(5,0) o (4,8):(1@0@0,1@1)", "5 in a mode, and"),
        ("(128,0) o", "':'"),
        ("(128,x y) o (4,8):(1@0,1@1)", "no integer"),
        ('!cute.coord_tensor<"(0,64)">', "the layout in quotation marks"),
    ],
)
def test_what_is_no_tensor_of_coordinates_is_refused(text: str, said: str) -> None:
    with pytest.raises(ParseError, match=said.replace("(", r"\(")):
        parse(text)


def test_a_part_of_an_identity_keeps_its_coordinates() -> None:
    """Every cut of an identity gives the coordinates that the whole has there."""
    whole = Layout.identity((8, (4, 6)))
    tiles = whole.zipped_divide((2, 4))
    for r in range(4):
        for c in range(1, 6):
            tile = tiles[:, (r, c)]
            assert [tile(((i, j),)) for i in range(2) for j in range(4)] == [
                whole(2 * r + i, 4 * c + j) for i in range(2) for j in range(4)
            ]
    row = whole[5, :]
    assert isinstance(row, CoordinateTensor) and [row(c) for c in range(24)] == [whole(5, c) for c in range(24)]
    assert [row[((1, None),)](c) for c in range(6)] == [whole(5, (1, c)) for c in range(6)]
    assert list(zip(*[x.tolist() for x in row.offsets()[1]])) == [row(i)[1] for i in range(24)]


def test_operations_act_behind_the_offset() -> None:
    tile = CoordinateTensor((128, 64), Layout.identity((8, 4)))
    for made in (tile.flatten(), tile.coalesce(), tile.with_shape(8, 4), tile.select(0, 1), tile.group(0, 2)):
        assert [made(i) for i in range(32)] == [tile(i) for i in range(32)]
    assert tile.compose(Layout(4, 8))(3) == tile(24) == (128, 67)
    assert tile.zipped_divide((2, 2))((1, 1), (3, 1)) == tile(7, 3)
    assert tile.equivalent(tile.flatten()).ok and prove(tile, tile.select(1, 0)).coord == (1, 0)
    assert tile.is_injective().ok and tile.congruent(Layout((8, 4))) and not tile.can_product(2)
    assert tile.equivalent(Layout.identity((8, 4))).coord == (0, 0)
    assert "128,64" in tile.svg() and "<title>" in tile.svg()


def test_symbols_of_an_offset_take_values() -> None:
    M = dim("M")
    tile = CoordinateTensor((M, 0), Layout.identity((M, 8)))
    assert prove(tile, tile.flatten()).ok
    with pytest.raises(LayoutError, match="offset of a CoordinateTensor must be a tuple"):
        CoordinateTensor(4, Layout.identity((4, 8)))
    with pytest.raises(LayoutError, match="leads to offsets"):
        CoordinateTensor((4, 0), Layout((4, 8)))
