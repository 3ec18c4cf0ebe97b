"""wgmma atoms: their maps against the DSL's, against the published formulas, and against their own laws."""

import json
from pathlib import Path

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import wgmma
from layoutgemm.errors import AtomError

VECTORS = Path(__file__).parents[1] / "vectors" / "tv_vectors.json"
EVERY_N = range(8, 257, 8)


def as_tuple(nested):
    return tuple(map(as_tuple, nested)) if isinstance(nested, list) else nested


@pytest.mark.parametrize("n", EVERY_N)
def test_accumulator_map_is_a_bijection_onto_the_tile(n):
    atom = wgmma(n)
    assert sorted(atom.layout_C.offsets()) == list(range(64 * n))
    assert atom.layout_C[0].size == atom.threads == 128
    assert atom.layout_C[1].size == n // 2 == atom.accumulator_registers


@pytest.mark.parametrize("n", (8, 64, 136, 256))
def test_coordinates_are_the_offsets_taken_apart(n):
    atom = wgmma(n)
    for operand in "ABC":
        rows, _ = atom.tile_of(operand)
        layout = atom.layout(operand)
        index = np.arange(layout.size)
        row, column = atom.coords(operand)(index)
        assert np.array_equal(row + rows * np.asarray(column), layout.offsets()), operand


def published_coordinate(thread, register):
    """The formula published with a 64x64 accumulator: warp, lane, then bits of the register number."""
    warp, lane = thread // 32, thread % 32
    row = warp * 16 + lane // 4 + 8 * (register // 2 % 2)
    column = lane % 4 * 2 + register % 2 + 8 * (register // 4)
    return row, column


def test_published_fragment_formula():
    coords = wgmma(64).coords_C
    for thread in range(128):
        for register in range(32):
            assert coords(thread, register) == published_coordinate(thread, register)
    # register 1 moves the column, register 2 the row
    assert [coords(0, r) for r in (1, 2)] == [(0, 1), (8, 0)]


def test_maps_equal_the_dsl():
    rows = [
        row for row in json.loads(VECTORS.read_text())["rows"] if "wgmma" in row["atom"] or "warpgroup" in row["atom"]
    ]
    compared = 0
    for row in rows:
        _, n, k = row["shape_mnk"]
        kind = row["atom"]
        types = [name for name in ("bf16", "f16") if f".{name}.{name}." in kind]
        if k != 16 or not types or "rmem" in kind.lower() or ".rs" in kind.lower():
            continue
        c = "f16" if kind.split(types[0])[0].endswith("f16.") and types[0] == "f16" and ".f32" not in kind else "f32"
        atom = wgmma(n, types[0], c=c)
        ours = atom.layout(row["operand"])
        theirs = Layout(as_tuple(row["shape"]), as_tuple(row["stride"]))
        assert ours.equivalent(theirs), (kind, row["operand"], str(ours), str(theirs))
        compared += 1
    assert compared >= 3, f"only {compared} wgmma rows in the vectors"


def test_operands_in_shared_memory_are_seen_by_every_thread():
    atom = wgmma(48)
    assert set(atom.layout_A[0].offsets()) == {0} and set(atom.layout_B[0].offsets()) == {0}
    assert sorted(atom.layout_B[1].offsets()) == list(range(48 * 16))


@pytest.mark.parametrize("n", (0, 4, 12, 264, -8, True, 64.0, "64"))
def test_no_such_n(n):
    with pytest.raises(AtomError, match="N = 8, 16"):
        wgmma(n)


def test_no_such_types():
    with pytest.raises(AtomError, match="got A bf16 and B f16"):
        wgmma(64, "bf16", "f16")
    with pytest.raises(AtomError, match="got A f64"):
        wgmma(64, "f64")
    with pytest.raises(AtomError, match="accumulates bf16 inputs in f32, not in f16"):
        wgmma(64, "bf16", c="f16")
    assert wgmma(64, "f16", c="f16").accumulator_registers == 16


def test_no_such_operand():
    with pytest.raises(AtomError, match="operands A, B, C and D, not 'E'"):
        wgmma(64).coords("E")
