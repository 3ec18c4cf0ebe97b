"""Shared-memory tiles: the DSL's atoms, bijectivity, conflict-free rows, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from layoutgemm import Layout, Swizzle
from layoutgemm.atoms import SPANS, smem_atom, smem_tile, swizzle_of, widest_swizzle
from layoutgemm.errors import AtomError

VECTORS = Path(__file__).parents[1] / "vectors" / "smem_atoms.json"
TYPES = {"bf16": "bf16", "f8": "e4m3", "f16": "f16", "tf32": "tf32", "f32": "f32", "i8": "i8"}
NAMES = {"INTER": "none", "SW32": "32B", "SW64": "64B", "SW128": "128B"}


def as_tuple(nested):
    return tuple(map(as_tuple, nested)) if isinstance(nested, list) else nested


def rows():
    return [row for row in json.loads(VECTORS.read_text())["atoms"] if row["kind"].partition("_")[2] in NAMES]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['module']}-{row['kind']}-{row['type']}")
def test_atoms_equal_the_dsl(row):
    major, _, swizzle = row["kind"].partition("_")
    atom = smem_atom(TYPES[row["type"]], major, NAMES[swizzle])
    assert atom == Layout(as_tuple(row["shape"]), as_tuple(row["stride"]))
    on_bytes = swizzle_of(NAMES[swizzle])
    assert on_bytes == Swizzle(*row["swizzle"], unit="bytes")
    # the same XOR counted in elements; an empty one (B = 0) has no unit to speak of
    elements = on_bytes.recast(row["elem_bits"])
    size = row["elem_bits"] // 8
    theirs = Swizzle(*row["swizzle_on_elements"])
    index = np.arange(4096)
    assert np.array_equal(elements(index), theirs(index)) and np.array_equal(
        on_bytes(index * size), theirs(index) * size
    )


TILES = [
    (extent, kind, major, swizzle)
    for extent in ((64, 64), (128, 64), (64, 128), (256, 192))
    for kind, size in (("bf16", 2), ("e4m3", 1), ("tf32", 4))
    for major in ("K", "MN")
    for swizzle, span in SPANS.items()
    if extent[major == "K"] * size % span == 0
]


@pytest.mark.parametrize("extent, kind, major, swizzle", TILES)
def test_tiles_are_bijections_and_keep_their_extents(extent, kind, major, swizzle):
    tile = smem_tile(extent, kind, major, swizzle)
    assert tile.extent == extent
    address = np.asarray(tile.byte(np.arange(extent[0])[:, None], np.arange(extent[1])[None, :]))
    assert np.array_equal(np.sort(address, axis=None), np.arange(extent[0] * extent[1]) * tile.dtype.bytes)
    composed = np.asarray(tile.composed(np.arange(extent[0])[:, None], np.arange(extent[1])[None, :]))
    assert np.array_equal(composed * tile.dtype.bytes, address)


def test_eight_rows_of_one_chunk_hit_every_bank_once_with_the_128_byte_swizzle():
    for swizzle, ways in (("128B", 1), ("64B", 2), ("32B", 4)):
        tile = smem_tile((8, 64), "bf16", "K", swizzle)
        for chunk in range(SPANS[swizzle] // 16):
            starts = [tile.byte(row, 8 * chunk) // 16 % 8 for row in range(8)]
            # a 64-byte span puts two rows in one 128-byte line, so the pattern is over address lines, not rows
            assert max(starts.count(bank) for bank in starts) <= ways
    # without a swizzle at a 128-byte pitch, all eight rows sit in the same four banks
    plain = Layout((8, 64), (64, 1))
    assert {plain(row, 0) * 2 // 16 % 8 for row in range(8)} == {0}


def test_widest_swizzle_divides():
    assert [widest_swizzle(n, "bf16") for n in (8, 16, 24, 32, 48, 64, 72, 128)] == [
        "none", "32B", "none", "64B", "32B", "128B", "none", "128B",
    ]  # fmt: skip
    with pytest.raises(AtomError, match="12 elements of bf16 are 24 bytes"):
        widest_swizzle(12, "bf16")


def test_refusals_name_the_arithmetic():
    with pytest.raises(AtomError, match="its K extent 32 is no multiple of the atom's 64"):
        smem_tile((64, 32), "bf16", "K", "128B")
    with pytest.raises(AtomError, match="its MN extent 60 is no multiple of the atom's 8"):
        smem_tile((60, 64), "bf16", "K")
    with pytest.raises(AtomError, match="unknown shared-memory swizzle '256B'"):
        swizzle_of("256B")
    with pytest.raises(AtomError, match="major is 'N'"):
        smem_tile((64, 64), "bf16", "N")


@pytest.mark.parametrize("swizzle, alignment", (("none", 128), ("32B", 256), ("64B", 512), ("128B", 1024)))
def test_alignment_is_where_the_pattern_repeats(swizzle, alignment):
    tile = smem_tile((64, 64), "bf16", "K", swizzle)
    assert tile.alignment == alignment
    offsets = np.arange(0, 4096, 16)
    xor = np.asarray(swizzle_of(swizzle)(offsets)) ^ offsets
    period = next(p for p in (128, 256, 512, 1024, 2048) if np.array_equal(xor[p // 16 :], xor[: -p // 16]))
    assert period <= alignment
