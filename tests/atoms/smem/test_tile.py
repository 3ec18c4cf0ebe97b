"""Shared-memory tiles: the DSL's atoms, bijectivity, conflict-free rows, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

from layoutgemm import Layout, Swizzle
from layoutgemm.atoms import SPANS, SWIZZLES, SmemTile, as_tile, smem_atom, smem_tile, swizzle_of, widest_swizzle
from layoutgemm.atoms.smem.tile import packing_of
from layoutgemm.checks import bijective_tile
from layoutgemm.dtypes import dtype
from layoutgemm.errors import AtomError

VECTORS = Path(__file__).parents[2] / "vectors" / "smem_atoms.json"
TYPES = {"bf16": "bf16", "f8": "e4m3", "f16": "f16", "tf32": "tf32", "f32": "f32", "i8": "i8"}
NAMES = {"INTER": "none", "SW32": "32B", "SW64": "64B", "SW128": "128B", "SW128_32B": "128B_ATOM_32B"}


def as_tuple(nested):
    return tuple(map(as_tuple, nested)) if isinstance(nested, list) else nested


def rows():
    return json.loads(VECTORS.read_text())["atoms"]


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['module']}-{row['kind']}-{row['type']}")
def test_atoms_equal_the_dsl(row):
    major, _, swizzle = row["kind"].partition("_")
    atom = smem_atom(TYPES[row["type"]], major, NAMES[swizzle])
    theirs = Layout(as_tuple(row["shape"]), as_tuple(row["stride"]))
    if swizzle == "SW128_32B":
        # PTX and CUTLASS's C++ have 4 rows in this atom, after which its pattern repeats; the DSL's is two of them
        assert atom[1].size == 4 and theirs.equivalent(atom.tile_to_shape((atom[0].size, 8)))
    else:
        assert atom == theirs
    on_bytes = swizzle_of(NAMES[swizzle])
    assert on_bytes == Swizzle(*row["swizzle"], unit="bytes")
    # the same XOR counted in elements; an empty one (B = 0) has no unit to speak of
    elements = on_bytes.recast(row["elem_bits"])
    size = row["elem_bits"] // 8
    moved = Swizzle(*row["swizzle_on_elements"])
    index = np.arange(4096)
    assert np.array_equal(elements(index), moved(index)) and np.array_equal(on_bytes(index * size), moved(index) * size)


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
    with pytest.raises(AtomError, match="extent of smem_tile must be 2 integers, not 128"):
        smem_tile(128, "bf16", "K")


@pytest.mark.parametrize("swizzle, alignment", (("none", 128), ("32B", 256), ("64B", 512), ("128B", 1024)))
def test_alignment_is_where_the_pattern_repeats(swizzle, alignment):
    tile = smem_tile((64, 64), "bf16", "K", swizzle)
    assert tile.alignment == alignment
    offsets = np.arange(0, 4096, 16)
    xor = np.asarray(swizzle_of(swizzle)(offsets)) ^ offsets
    period = next(p for p in (128, 256, 512, 1024, 2048) if np.array_equal(xor[p // 16 :], xor[: -p // 16]))
    assert period <= alignment


# PTX ISA, "Swizzling Modes" of tensors: which 16-byte piece of a 128-byte line lies where, line by line.
PICTURES = {
    "none": ("01234567",),
    "32B": ("01234567", "10325476"),
    "64B": ("01234567", "10325476", "23016745", "32107654"),
    "128B": (
        "01234567", "10325476", "23016745", "32107654", "45670123", "54761032", "67452301", "76543210",
    ),
    "128B_ATOM_32B": ("01234567", "23016745", "45670123", "67452301"),
    "128B_ATOM_64B": ("01234567", "45670123"),
}  # fmt: skip


@pytest.mark.parametrize("name", PICTURES)
def test_swizzles_are_the_documents_pictures(name):
    picture, swizzle = PICTURES[name], swizzle_of(name)
    for line in range(64):
        places = [swizzle(line * 128 + 16 * piece) for piece in range(8)]
        assert all(place // 128 == line for place in places)
        held = "".join(str(places.index(line * 128 + 16 * at)) for at in range(8))
        assert held == picture[line % len(picture)], (name, line)
    # what stays together, and how soon the pattern repeats
    assert SWIZZLES[name].xor[1] == {"128B_ATOM_32B": 5, "128B_ATOM_64B": 6}.get(name, 4)
    assert smem_tile((256, 256), "i8", "MN", name).alignment % max(128, swizzle.span) == 0


def test_every_swizzle_says_who_reads_it():
    assert {name for name, mode in SWIZZLES.items() if mode.readers == ("wgmma", "tcgen05")} == set(SPANS)
    assert [name for name, mode in SWIZZLES.items() if mode.readers == ("tcgen05",)] == ["128B_ATOM_32B"]
    assert [name for name, mode in SWIZZLES.items() if not mode.readers] == ["128B_ATOM_32B_FLIP_8B", "128B_ATOM_64B"]
    with pytest.raises(AtomError, match="also flips 8-byte halves in alternate lines"):
        swizzle_of("128B_ATOM_32B_FLIP_8B")


WIDTHS = [("e2m1", None), ("e2m1", "b4x16_p64"), ("u4", None), ("e3m2", None), ("e2m3", "b6x16_p32"), ("e4m3", None)]
WIDTHS += [("bf16", None), ("tf32", None), ("f64", None)]


@pytest.mark.parametrize("name, packing", WIDTHS)
@pytest.mark.parametrize("swizzle", [name for name, mode in SWIZZLES.items() if mode.xor])
@pytest.mark.parametrize("major", ("K", "MN"))
def test_bit_addresses_of_every_width_are_disjoint_and_keep_chunks_whole(name, packing, swizzle, major):
    extent = (256, 64) if major == "MN" else (16, 256)
    tile = smem_tile(extent, name, major, swizzle, packing)
    bits = tile.dtype.bits
    mn, k = np.arange(extent[0])[:, None], np.arange(extent[1])[None, :]
    first = np.asarray(tile.bit(mn, k))
    order = np.sort(first, axis=None)
    assert np.diff(order).min() >= bits and order[-1] + bits <= tile.bytes * 8
    # sixteen bytes stay sixteen bytes: the place in the chunk is that of the plain layout
    contiguous = (k if major == "K" else mn) + 0 * first
    per_chunk = 128 // tile.slot_bits
    assert np.array_equal(first % 128, contiguous % per_chunk * bits)
    if packing is None and 128 % bits == 0:
        assert np.array_equal(order, np.arange(first.size) * bits)
    else:
        padding = {4: 64, 6: 32}.get(bits, 0)
        assert tile.bytes * 8 == first.size // 16 * (16 * bits + padding)
    if bits % 8 == 0:
        assert np.array_equal(np.asarray(tile.byte(mn, k)) * 8, first)
        assert np.array_equal(np.asarray(tile.composed(mn, k)) * bits, first)
    else:
        with pytest.raises(AtomError, match=f"elements of {bits} bits do not each begin on a byte: ask bit"):
            tile.byte(0, 0)


def test_packings_that_do_not_exist_are_refused():
    for call, text in (
        (
            lambda: packing_of("e3m2", "packed"),
            "e3m2 elements of 6 bits do not fill a 16-byte chunk",
        ),
        (lambda: packing_of("e3m2", "b4x16_p64"), "packing b4x16_p64 holds 4-bit elements; e3m2 has 6"),
        (lambda: packing_of("e4m3", "b6x16_p32"), "holds 6-bit elements; e4m3 has 8"),
        (lambda: packing_of("e2m1", "b4"), "unknown packing 'b4'; known: packed, b4x16_p64, b6x16_p32"),
        (lambda: widest_swizzle(8, "e2m1", "b4x16_p64"), "8 elements of e2m1 are 8 bytes, no multiple"),
    ):
        with pytest.raises(AtomError, match=text):
            call()


def test_any_layout_is_a_tile():
    tile = smem_tile((64, 128), "e4m3", "MN", "32B")
    assert as_tile(tile, "e4m3") is tile
    assert as_tile(tile.composed, "e4m3") == tile == as_tile(tile.layout, "e4m3", "32B")
    part = as_tile(smem_tile((64, 64), "bf16", "K").composed, "bf16")
    shifted = SmemTile(part.dtype, "K", "128B", part.layout, offset=64)
    assert shifted.byte(0, 0) == part.byte(1, 0) == 144 and shifted.bytes == part.bytes + 128
    assert str(shifted) == "S<3,4,3>[bytes] o 64 + ((8,8),(64,1)):((64,512),(1,0)) x bf16"
    for make, text in (
        (lambda: as_tile(tile, "e4m3", "64B"), "has a swizzle and a major of its own"),
        (lambda: as_tile(tile.composed, "e4m3", "64B"), "has a swizzle of its own; another, '64B', is named"),
        (lambda: as_tile(Layout((8, 8), (2, 32)), "bf16"), "mn is 2 away, along k 32"),
        (lambda: SmemTile(tile.dtype, "K", "none", Layout(8, 1)), "has two modes, mn and k"),
        (lambda: SmemTile(tile.dtype, "M", "none", tile.layout), "major is 'M'"),
        (lambda: SmemTile(tile.dtype, "K", "none", tile.layout, offset=-1), "offset counts elements from 0"),
        (lambda: SmemTile(tile.dtype, "K", "none", tile.layout, "b4x16_p64"), "holds 4-bit elements; e4m3 has 8"),
    ):
        with pytest.raises(AtomError, match=text):
            make()


def test_a_tile_that_is_no_bijection_is_shown_with_its_first_hole():
    good = smem_tile((16, 64), "bf16", "K")
    assert bijective_tile("tile", good) and bijective_tile("tile", smem_tile((16, 256), "e2m1", "K"))
    assert bijective_tile("tile", smem_tile((16, 128), "e3m2", "K"))
    for tile, text in (
        (SmemTile(good.dtype, "K", "none", Layout((16, 64), (72, 1))), "byte 128 is held by no element"),
        (SmemTile(good.dtype, "K", "none", Layout((16, 64), (0, 1))), "byte 0 twice"),
        (SmemTile(dtype("e2m1"), "K", "none", Layout((16, 64), (65, 1))), "bit 256 is held by no element"),
    ):
        assert bijective_tile("tile", tile).witness == text
