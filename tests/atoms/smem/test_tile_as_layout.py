"""Tiles in shared memory as layouts, in any order of atoms, with few rows."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from layoutgemm import Layout, prove
from layoutgemm.atoms import smem_tile, tma_load
from layoutgemm.atoms.smem.tile import SWIZZLES
from layoutgemm.atoms.tma.engine import shared_bits
from layoutgemm.errors import AtomError
from layoutgemm.layouts import LinearLayout, functions
from layoutgemm.layouts.proofs.prove import bijective, covers, disjoint, injective

TILE = smem_tile((16, 128), "bf16", "K")


def test_proofs_take_a_tile_for_its_layout() -> None:
    assert prove(TILE, TILE.composed) and prove(TILE.composed, TILE) and TILE.equivalent(TILE.composed)
    found = prove(TILE, TILE.layout)
    assert not found and found.left == TILE(found.index) and found.right == TILE.layout(found.index)
    assert TILE.layout.equivalent(TILE).left == found.right
    assert injective(TILE) and bijective(TILE) and covers(TILE, 16 * 128)
    assert not disjoint(TILE, TILE) and disjoint(TILE, TILE, 16 * 128) and disjoint(Layout(8, 4096), TILE, 1)
    assert covers(smem_tile((8, 32), "bf16", "K"), 257).coord == 256
    assert np.array_equal(LinearLayout.of(TILE).offsets(), TILE.offsets())


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("logical_divide", ((4, 8),)), ("zipped_divide", ((8, 64),)), ("coalesce", ()), ("right_inverse", ()),
        ("flatten", ()), ("logical_product", (2,)), ("max_common_vector", (Layout((16, 128), (128, 1)),)),
    ],
)  # fmt: skip
def test_operations_of_a_tile_are_those_of_its_layout(name: str, args: tuple[object, ...]) -> None:
    assert str(getattr(functions, name)(TILE, *args)) == str(getattr(TILE.composed, name)(*args))


def test_a_tile_is_a_function() -> None:
    assert [TILE(i) for i in range(TILE.size)] == TILE.offsets().tolist()
    assert TILE[3, :](17) == TILE(3, 17) and TILE[:, 17](3) == TILE(3, 17)
    assert str(TILE @ Layout(8, 16)) == str(TILE.composed @ Layout(8, 16))
    whole = Layout(2048, 2)
    assert [(whole @ TILE)(i) for i in range(64)] == [2 * TILE(i) for i in range(64)]
    assert pickle.loads(pickle.dumps(TILE)) == TILE
    with pytest.raises(AttributeError, match=r"has no strides: .* inside are \(\(64,512\),\(1,1024\)\)"):
        _ = TILE.stride


@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_order_of_atoms_is_the_order_of_their_strides(major: str, order: tuple[int, int]) -> None:
    tile = smem_tile((128, 128), "bf16", major, "64B", order=order)
    assert tile.layout.is_bijective()
    second = [mode[1].stride for mode in tile.layout]
    assert second.index(min(second)) == order[0]
    with pytest.raises(AtomError, match="an order of the atoms"):
        smem_tile((128, 128), "bf16", major, order=(0, 0))


@pytest.mark.parametrize("rows", range(1, 8))
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("name", ["none", "32B", "64B", "128B"])
def test_fewer_rows_than_an_atom_are_its_first_rows(rows: int, major: str, name: str) -> None:
    span = SWIZZLES[name].span // 2
    extent = (rows, 2 * span) if major == "K" else (2 * span, rows)
    full = (8, span) if major == "K" else (span, 8)
    tile, atom = smem_tile(extent, "bf16", major, name), smem_tile(full, "bf16", major, name)
    assert tile.is_injective() and tile.extent == extent
    for row in range(rows):
        for column in range(span):
            at = (row, column) if major == "K" else (column, row)
            assert tile.byte(*at) == atom.byte(*at)
    gmem = Layout((64, 256), (256, 1)) if major == "K" else Layout((256, 64), (1, 256))
    if rows * SWIZZLES[name].span % 128:
        return  # the second span would begin inside a line of 128 bytes, where no box may
    plan = tma_load(gmem, tile)
    assert plan.bytes == rows * 2 * span * 2
    written = [tuple(map(int, x)) for x in np.argwhere(np.ones(plan.box))]
    addresses = shared_bits(plan._box_map, 0) // 8
    for place in written:
        column, row = (*place, 0)[:2]
        at = (row, column) if major == "K" else (column, row)
        assert addresses[place] == tile.byte(*at)
