"""Bank conflicts against loops over phases and banks, known cases, and published figures."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutgemm import Layout
from layoutgemm.arch import ARCHES
from layoutgemm.atoms import (
    SPANS,
    CopyAtom,
    TiledCopy,
    TiledMma,
    ldmatrix,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    matrix_copies,
    mma_sync,
    smem_tile,
    stmatrix,
    swizzle_of,
)
from layoutgemm.atoms.copy.base import PHASE_LANES
from layoutgemm.atoms.smem.tile import SmemTile
from layoutgemm.checks import (
    AccessPattern,
    atom_access,
    bank_conflicts,
    matrix_access,
    thread_access,
    tiled_access,
    tma_access,
)
from layoutgemm.checks.smem.access_patterns import WIDTHS, byte_addresses
from layoutgemm.checks.smem.bank_conflicts import judge, lanes_of_phase
from layoutgemm.dtypes import dtype
from layoutgemm.errors import AtomError
from layoutgemm.layouts import ComposedLayout, Swizzle
from layoutgemm.layouts.linear import LinearLayout
from tests.checks.smem import bank_model as model


def requests_of(width: int) -> st.SearchStrategy[list[int | None]]:
    """Random lanes; few distinct addresses, so that words coincide, and strides, so that banks do."""
    address = st.integers(0, 511).map(lambda n: n * width)
    free = st.lists(st.none() | address, min_size=1, max_size=32)
    strided = st.tuples(address, st.integers(0, 40), st.integers(1, 32)).map(
        lambda t: [t[0] + width * t[1] * lane for lane in range(t[2])]
    )
    return free | strided


@given(st.sampled_from([1, 2, 4, 8, 16]).flatmap(lambda w: st.tuples(st.just(w), requests_of(w))))
@settings(max_examples=150, deadline=None)
def test_ways_wavefronts_and_minimum_against_loops(case: tuple[int, list[int | None]]) -> None:
    width, request = case
    report = bank_conflicts(request, width, packing=False)
    ways = model.all_ways(request, width)
    assert report.parts[0].phase_ways.tolist() == [ways]
    assert (report.ways, report.wavefronts, report.phases) == (max(ways), sum(ways), sum(w > 0 for w in ways))
    distinct = {byte for a in request if a is not None for byte in range(a, a + width)}
    assert report.minimum == -(-len(distinct) // 128) <= report.wavefronts
    assert bool(report) == (max(ways) <= 1)
    # The witness names lanes that really hold different words of one bank.
    if (hit := report.witness) is not None:
        assert len(hit.hits) == hit.ways == ways[hit.index] > 1
        words = set()
        for lane, address in hit.hits:
            assert request[lane] == address and lane in range(hit.index * 128 // max(4, width), 32)
            words.add(next(b // 4 for b in range(address, address + width) if b // 4 % 32 == hit.bank))
        assert len(words) == hit.ways
    else:
        assert max(ways) <= 1
    # The base turns the banks; it changes no count.
    turned = [None if a is None else a + 7 * max(4, width) for a in request]
    assert bank_conflicts(turned, width, packing=False).parts[0].phase_ways.tolist() == [ways]


def test_the_phases_of_each_width() -> None:
    """Lanes 0 and 16 (or 8, 16, 24) collide only where they are served together."""
    two = [0 if lane == 0 else 128 if lane == 16 else None for lane in range(32)]
    assert [bank_conflicts(two, w).ways for w in (1, 2, 4, 8, 16)] == [2, 2, 2, 1, 1]
    near = [0 if lane == 0 else 128 if lane == 8 else None for lane in range(32)]
    assert [bank_conflicts(near, w).ways for w in (4, 8, 16)] == [2, 2, 1]
    same = [0 if lane == 0 else 128 if lane == 7 else None for lane in range(32)]
    assert [bank_conflicts(same, w).ways for w in (4, 8, 16)] == [2, 2, 2]


# Known cases ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("addresses", "width", "kind", "ways", "wavefronts"),
    [
        ([4 * lane for lane in range(32)], 4, "ld.shared", 1, 1),
        ([8 * lane for lane in range(32)], 4, "ld.shared", 2, 2),  # stride 2
        ([12 * lane for lane in range(32)], 4, "ld.shared", 1, 1),  # an odd stride
        ([128 * lane for lane in range(32)], 4, "ld.shared", 32, 32),  # a column of a 32 x 32 tile of floats
        ([132 * lane for lane in range(32)], 4, "ld.shared", 1, 1),  # the same with a pitch of 33
        ([64] * 32, 4, "ld.shared", 1, 1),  # one word for all
        ([64] * 32, 4, "st.shared", 1, 1),  # one word of all: one writer wins
        (list(range(32)), 1, "ld.shared", 1, 1),  # four bytes to a word
        ([2 * lane for lane in range(32)], 2, "st.shared", 1, 1),
        ([128 * lane for lane in range(32)], 2, "ld.shared", 32, 32),
        ([8 * lane for lane in range(32)], 8, "ld.shared", 1, 2),  # float2: two half-warps
        ([16 * lane for lane in range(32)], 16, "ld.shared", 1, 4),  # float4: four quarter-warps
        ([16 * lane for lane in range(32)], 16, "cp.async", 1, 4),
        ([16 * lane for lane in range(32)], 8, "ld.shared", 2, 4),  # float2 of every other
        ([64 * lane for lane in range(8)], 16, "ldmatrix", 4, 4),  # row pitch 64 bytes
        ([128 * lane for lane in range(8)], 16, "ldmatrix", 8, 8),
        ([256 * lane for lane in range(32)], 16, "stmatrix", 8, 32),
        ([80 * lane for lane in range(32)], 16, "ldmatrix", 1, 4),  # 64 bytes padded by 16
        ([272 * lane for lane in range(32)], 16, "ldmatrix", 1, 4),  # 256 bytes padded by 16
        ([32 * lane for lane in range(8)], 16, "wgmma", 2, 2),
    ],
)
def test_known_cases(addresses: list[int], width: int, kind: str, ways: int, wavefronts: int) -> None:
    report = bank_conflicts(addresses, width, kind)
    assert (report.ways, report.wavefronts) == (ways, wavefronts)


def test_paired_lanes_take_two_phases_at_once_in_loads_only() -> None:
    """NVIDIA developer forum, topic 77228: lanes n and n^1, or n and n^2, with one address halve a wide load."""
    by_one = [lane // 2 * 8 for lane in range(32)]
    by_two = [(lane // 4 * 2 + lane % 2) * 8 for lane in range(32)]
    by_four = [(lane // 8 * 4 + lane % 4) * 8 for lane in range(32)]
    assert [bank_conflicts(a, 8).wavefronts for a in (by_one, by_two, by_four)] == [1, 1, 2]
    assert [bank_conflicts(a, 8, packing=False).wavefronts for a in (by_one, by_two, by_four)] == [2, 2, 2]
    assert [bank_conflicts(a, 8, "st.shared").wavefronts for a in (by_one, by_two)] == [2, 2]
    wide = [[2 * a for a in addresses] for addresses in (by_one, by_two, by_four)]
    assert [bank_conflicts(a, 16).wavefronts for a in wide] == [2, 2, 4]
    # The case asked about there: tid % 4 * 16 takes 4, though 64 distinct bytes would fit one.
    asked = bank_conflicts([lane % 4 * 16 for lane in range(32)], 16)
    assert (asked.wavefronts, asked.minimum, asked.ways) == (4, 1, 1)
    # One lane out of step, and the rule is off; idle lanes do not break it.
    assert bank_conflicts([*by_one[:31], 0], 8).wavefronts == 2
    assert bank_conflicts([a if lane % 2 else None for lane, a in enumerate(by_one)], 8).wavefronts == 1
    # What conflicts still does when taken together.
    far = [lane // 2 % 8 * 8 + lane // 16 * 128 for lane in range(32)]
    assert (bank_conflicts(far, 8).wavefronts, bank_conflicts(far, 8).ways) == (2, 1)


# Tiles and their accesses ---------------------------------------------------------------------------------------------


def tiles() -> list[SmemTile]:
    return [
        smem_tile((64, 64) if dtype(t).bits <= 32 else (32, 32), t, major, swizzle)
        for t in ("i8", "e4m3", "bf16", "tf32", "f32")
        for major in ("K", "MN")
        for swizzle in SPANS
        if 64 * dtype(t).bits // 8 >= SPANS[swizzle]
    ]


@pytest.mark.parametrize("tile", tiles(), ids=str)
def test_the_copy_engines_tiles_are_free_of_conflicts(tile: SmemTile) -> None:
    """Each canonical tile: written by the copy engine, read in rows of 16 bytes along its major, in every width."""
    along = tile.major
    reads = [matrix_access(tile.extent, tile.dtype, along, kind) for kind in ("ldmatrix", "stmatrix", "wgmma")]
    report = bank_conflicts(tile, [tma_access(tile), *reads])
    assert report.ways == 1, report.explain()
    assert report.wavefronts == report.minimum == 4 * tile.bytes // 128
    # By the definition too, address by address.
    row = 128 // tile.dtype.bits
    mn, k = tile.extent
    for start in range(0, mn if along == "K" else k, 8):
        for chunk in range(0, k if along == "K" else mn, row):
            eight = range(start, start + 8)
            phase = [tile.byte(r, chunk) if along == "K" else tile.byte(chunk, r) for r in eight]
            assert model.ways([int(a) for a in phase], 16) == 1


@pytest.mark.parametrize(("pitch_bytes", "ways"), [(32, 2), (64, 4), (128, 8), (256, 8), (272, 1), (144, 1), (80, 1)])
def test_unswizzled_rows_conflict(pitch_bytes: int, ways: int) -> None:
    k = pitch_bytes // 2 if pitch_bytes % 32 == 0 else pitch_bytes // 2 - 8
    tile = Layout((64, k), (pitch_bytes // 2, 1))
    assert bank_conflicts(tile, matrix_access((64, k), "bf16"), element="bf16").ways == ways


def test_a_swizzle_spreads_rows_only_over_its_own_span() -> None:
    """A 32-byte swizzle at a 128-byte pitch: one XOR bit, from address bit 7, makes the 8-way conflict 4-way."""
    rows = matrix_access((64, 64), "bf16")
    plain = Layout((64, 64), (64, 1))
    found = [
        bank_conflicts(ComposedLayout(swizzle_of(s).recast(16), 0, plain), rows).ways
        for s in ("none", "32B", "64B", "128B")
    ]
    assert found == [8, 4, 2, 1]


def test_forms_of_one_tile_agree() -> None:
    tile = smem_tile((64, 64), "bf16", "K")
    rows = matrix_access((64, 64), "bf16")
    every = [
        bank_conflicts(tile, rows),
        bank_conflicts(tile.composed, rows),
        bank_conflicts(LinearLayout.of(tile.composed), rows, element=16),
        bank_conflicts(byte_addresses(tile, rows)[0], 16, "ldmatrix"),
    ]
    for report in every[1:]:
        assert np.array_equal(report.parts[0].phase_ways, every[0].parts[0].phase_ways)
        assert np.array_equal(report.parts[0].addresses, every[0].parts[0].addresses)


def test_thread_access_orders_warps_chunks_and_lanes() -> None:
    tv = Layout(((32, 2), (2, 3)), ((4, 400), (1, 2000)))
    access = thread_access(tv, vector=2)
    assert access.coords.shape == (6, 32, 2)
    for warp in range(2):
        for chunk in range(3):
            for lane in range(32):
                want = [4 * lane + 400 * warp + value + 2000 * chunk for value in range(2)]
                assert access.coords[warp * 3 + chunk, lane].tolist() == want


def test_an_atom_tells_its_kind_lanes_and_vector() -> None:
    bf16 = dtype("bf16")
    rows = Layout(((8, 4), 8), ((8, 64), 1))
    x4 = CopyAtom("ldmatrix.sync.aligned.m8n8.x4.shared.b16", ("sm_75",), bf16, 32, "smem", "rmem", rows, rows, "")
    place = Layout((8, 32), (32, 1))  # reference element (column, row) -> row + 32 * column of a (32, 8) tile
    access = atom_access(x4, place)
    assert (access.kind, access.coords.shape) == ("ldmatrix", (1, 32, 8))
    assert access.coords[0, 9].tolist() == [9 + 32 * column for column in range(8)]
    assert bank_conflicts(Layout((32, 8), (64, 1)), access, element="bf16").ways == 8
    # x1 reads the addresses of eight lanes; the layout repeats them for the others.
    one = Layout(((8, 4), 8), ((8, 0), 1))
    x1 = CopyAtom("ldmatrix.sync.aligned.m8n8.x1.shared.b16", ("sm_75",), bf16, 32, "smem", "rmem", one, one, "")
    assert atom_access(x1, place).coords.shape == (1, 8, 8)
    vector = Layout((1, 8), (0, 1))
    cp = CopyAtom("cp.async.cg.shared.global", ("sm_80",), bf16, 1, "gmem", "smem", vector, vector, "")
    written = atom_access(cp, Layout((32, 8), (8, 1)))
    assert (written.kind, written.coords.shape) == ("cp.async", (1, 32, 8))
    assert atom_access(cp, Layout((32, 8), (8, 1)), "src").kind == "ld.global"
    # Threads of the map sit in other lanes of the warp.
    turned = Layout((16, 2), (2, 1))
    moved = CopyAtom(x4.ptx, x4.archs, bf16, 32, "smem", "rmem", rows, rows, "", turned)
    assert atom_access(moved, place).coords[0, int(turned(5))].tolist() == access.coords[0, 5].tolist()


class SixteenRows(TiledCopy):
    """A tiled copy as CuTe defines it: a tile of 16 rows of 64, cut out of the tensor, then (thread, value) in it."""

    def __init__(self, atom: CopyAtom, tv: Layout) -> None:
        object.__setattr__(self, "atom", atom)
        object.__setattr__(self, "tv", tv)
        object.__setattr__(self, "tiler", (16, 64))

    def partition(self, side: str, layout: Layout) -> Layout:
        tiles = layout.zipped_divide((16, 64))
        threads, values = tiles[0].compose(self.tv)
        return Layout.join(threads, values, *tiles[1])


def test_a_tiled_copy_is_every_instruction_over_the_tile() -> None:
    vector = Layout((1, 8), (0, 1))
    cp = CopyAtom("cp.async.cg.shared.global", ("sm_80",), dtype("bf16"), 1, "gmem", "smem", vector, vector, "")
    copy = SixteenRows(cp, Layout(((8, 16), 8), ((128, 1), 16)))  # 128 threads, a row of 64 for each eight of them
    access = tiled_access(copy, (128, 128))
    assert (access.kind, access.coords.shape) == ("cp.async", (8 * 2 * 4, 32, 8))
    assert sorted(access.coords.ravel().tolist()) == list(range(128 * 128))
    # warp 0 of the first tile: lane 9 writes row 1, columns 8 to 15
    assert access.coords[0, 9].tolist() == [1 + 128 * column for column in range(8, 16)]
    assert bank_conflicts(smem_tile((128, 128), "bf16", "K"), access).ways == 1
    assert tiled_access(copy, (16, 64), "src").kind == "ld.global"
    out = CopyAtom("st.global.v4.b32", ("sm_80",), dtype("bf16"), 1, "rmem", "gmem", vector, vector, "")
    assert tiled_access(SixteenRows(out, copy.tv), (16, 64)).kind == "st.global"
    bulk = CopyAtom("cp.async.bulk.shared::cta", ("sm_90",), dtype("bf16"), 1, "gmem", "smem", vector, vector, "")
    with pytest.raises(AtomError, match="carried out by the copy engine"):
        tiled_access(SixteenRows(bulk, copy.tv), (16, 64))
    registers = CopyAtom("mov", ("sm_80",), dtype("bf16"), 1, "rmem", "rmem", vector, vector, "")
    with pytest.raises(AtomError, match="say which side"):
        atom_access(registers, copy.tv)
    with pytest.raises(AtomError, match="neither banks nor sectors"):
        atom_access(registers, copy.tv, "src")


def test_every_matrix_copy_has_its_rows_and_phases() -> None:
    """ldmatrix and stmatrix in every form, the 8-bit ones too: 8 row addresses to a phase, rows of 16 bytes."""
    for atom in matrix_copies():
        if "smem" not in (atom.source, atom.target):
            continue
        side = atom.side_in("smem")
        row, size = atom.values_per_thread(side), atom.layout(side).cosize
        access = atom_access(atom, Layout(size, 1))
        assert access.kind == atom.ptx.split(".")[0] and access.coords.shape == (1, size // row, row)
        compact = bank_conflicts(Layout(size, 1), access, element=atom.element)
        assert (compact.ways, compact.wavefronts, compact.phases) == (1, len(atom.phases), len(atom.phases))
        apart = Layout((row, size // row), (1, 128 * 8 // atom.element.bits))
        assert bank_conflicts(apart, access, element=atom.element).ways == 8


def test_fragments_of_a_tiled_product_through_ldmatrix_and_stmatrix() -> None:
    """A, B and C of four warps of m16n8k16: 8-way from plain rows of 128 bytes, free of conflicts in the swizzled."""
    tiled = TiledMma(mma_sync((16, 8, 16), "bf16", "bf16", "f32"), (2, 2, 1), (32, 32, 16))
    for copy, extent, kind in (
        (make_tiled_copy_A(ldmatrix(4, element="bf16"), tiled), (64, 64), "ldmatrix"),
        (make_tiled_copy_B(ldmatrix(4, element="bf16"), tiled), (96, 64), "ldmatrix"),
        (make_tiled_copy_C(stmatrix(4, element="bf16"), tiled), (64, 64), "stmatrix"),
    ):
        access = tiled_access(copy, extent)
        assert access.kind == kind and access.coords.shape[1:] == (32, 8)
        assert set(access.coords.ravel().tolist()) == set(range(extent[0] * extent[1]))
        assert bank_conflicts(Layout(extent, (64, 1)), access, element="bf16").ways == 8
        assert bank_conflicts(smem_tile(extent, "bf16", "K"), access).ways == 1


def test_the_phases_of_the_copy_atoms_are_what_fills_128_bytes() -> None:
    assert {width: lanes_of_phase(width) for width in PHASE_LANES} == PHASE_LANES
    assert all(lanes == min(32, 128 // width) for width, lanes in PHASE_LANES.items())


# What has been published ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bk", "ways"), [(16, 2), (32, 4), (64, 8)])
def test_ampere_example_loads_conflict_and_ldmatrix_with_a_swizzle_does_not(bk: int, ways: int) -> None:
    """The Ampere example's fragment loads, ld.shared.b32 at ((lane / 4) * BK + lane % 4 * 2) * 2 bytes."""
    tile = Layout((64, bk), (bk, 1))
    fragment = thread_access(Layout(((4, 8), 2), ((128, 1), 64)), vector=2, name="fragment of A")
    report = bank_conflicts(tile, fragment, element="bf16")
    assert (report.ways, report.wavefronts, report.minimum) == (ways, ways, 1)
    lanes = byte_addresses(tile, fragment, "bf16")[0][0].tolist()
    assert lanes == [((lane // 4) * bk + lane % 4 * 2) * 2 for lane in range(32)]
    # ldmatrix alone does not help: 16-byte rows at the same pitch conflict as often. With the swizzle they do not.
    rows = matrix_access((64, bk), "bf16")
    assert bank_conflicts(tile, rows, element="bf16").ways == ways
    assert bank_conflicts(smem_tile((64, bk), "bf16", "K"), rows).ways == 1


def test_c5_the_published_index_is_free_of_conflicts_at_other_pitches_too() -> None:
    """index = m*stride + (k ^ ((m % 8) * 8)): free of conflicts at 64 and at 128, where it is not what TMA writes."""
    rows = matrix_access((64, 64), "bf16")
    m, k = np.meshgrid(np.arange(64), np.arange(64), indexing="ij")
    for pitch in (64, 128):
        table = (m * pitch + (k ^ (m % 8 * 8))).T.reshape(-1)  # flat coordinate m + 64 k
        addresses = table[rows.coords[:, :, 0]] * 2
        assert bank_conflicts(addresses, 16, "ldmatrix").ways == 1
    written = smem_tile((64, 128), "bf16", "K")
    assert int(written.byte(1, 64)) != 2 * (128 + (64 ^ 8))


def test_c6_row_r_of_a_swizzled_atom_sits_in_banks_4r() -> None:
    tile = smem_tile((8, 64), "bf16", "K")
    assert [int(tile.byte(r, 0)) // 4 % 32 for r in range(8)] == [4 * r for r in range(8)]
    plain = bank_conflicts([128 * r for r in range(8)], 16, "ldmatrix")
    assert plain.ways == 8 and {a // 4 % 32 for _, a in plain.witness.hits} == {0}


def test_c8_stmatrix_of_the_accumulator_is_free_of_conflicts() -> None:
    """guide 9.3, BM = 128: the x2 addresses of 16 lanes; lanes 16-31 would name rows of the next warp."""
    for i in range(32):
        for warp in range(4):
            lanes = [warp * 16 * 128 + i // 8 * 128 * 128 + row * 128 + ((i % 8) ^ (row % 8)) * 16 for row in range(32)]
            report = bank_conflicts(lanes[:16], 16, "stmatrix")
            assert (report.ways, report.wavefronts, report.minimum) == (1, 2, 2)
            beyond = (warp * 16 + 16) * 128 + i // 8 * 128 * 128
            assert min(lanes[16:]) >= beyond  # were this x4, they would overwrite the next 16 rows


# Reports and refusals -------------------------------------------------------------------------------------------------


def test_the_report_reads() -> None:
    rows = matrix_access((16, 64), "bf16", name="rows of A")
    report = bank_conflicts(Layout((16, 64), (64, 1)), rows, element="bf16")
    check = report.as_check("A")
    assert not check and check.name == "A" and check.method == "exhaustion (16 phases)"
    assert "8-way at worst, 128 wavefronts for 4 requests (at least 16)" in check.statement
    assert check.witness == (
        "rows of A, request 0, phase 0: bank 0 gives 8 words: lane 0 at byte 0, lane 1 at byte 128, lane 2 at byte "
        "256, lane 3 at byte 384 and 4 more"
    )
    good = bank_conflicts(smem_tile((16, 64), "bf16", "K"), rows)
    assert good.as_check() and good.witness is None and good.as_check().witness == ""
    assert "no bank is asked for two words" in good.explain()
    both = bank_conflicts(Layout((16, 64), (64, 1)), [tma_access(smem_tile((16, 64), "bf16", "K")), rows], element=16)
    assert [len(part.addresses) for part in both.parts] == [16, 4]
    assert both.witness is not None and both.witness.access == "rows of A"
    assert len(list(both.conflicts())) == 16


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda: bank_conflicts([0], 4, "atom.shared"), "atomics serialise by address"),
        (lambda: bank_conflicts([0], 32), "moves 1, 2, 4, 8, 16 bytes for a lane, not 32"),
        (lambda: bank_conflicts([0], 3), "not 3"),
        (lambda: bank_conflicts([0], True), "not True"),
        (lambda: bank_conflicts([0, 8], 16), "lane 1 of request 0 names byte 8, no multiple of its 16 bytes"),
        (lambda: bank_conflicts([0, -4], 4), "names byte -4"),
        (lambda: bank_conflicts([0.0], 4), "an address must be an integer"),
        (lambda: bank_conflicts([True], 4), "an address must be an integer"),
        (lambda: bank_conflicts([], 4), "addresses of 1 to 32 lanes"),
        (lambda: bank_conflicts(range(0, 132, 4), 4), "addresses of 1 to 32 lanes"),
        (lambda: bank_conflicts([[0], [0, 4]], 4), "must be alike"),
        (lambda: bank_conflicts([0], 8, "ldmatrix"), "ldmatrix moves 16 bytes"),
        (lambda: bank_conflicts(Layout(32, 1), thread_access(Layout(32, 1))), "give element="),
        (lambda: bank_conflicts(Layout(32, 1), [], element=32), "one access or several"),
        (lambda: bank_conflicts(Layout(32, 1), thread_access(Layout(32, 1)), "ld.shared", element=32), "own kind"),
        (lambda: bank_conflicts(Layout(16, 1), thread_access(Layout(32, 1)), element=32), "coordinate 31 outside"),
        (lambda: bank_conflicts(smem_tile((8, 64), "bf16", "K"), matrix_access((8, 32), "f32"), element="f32"),
         "counts elements of 16 bits"),
        (lambda: bank_conflicts(Swizzle(3, 4, 3, "bytes") @ Layout((8, 64), (64, 1)), matrix_access((8, 64), "bf16"),
                                element=16), "counts elements of 8 bits, not 16"),
        (lambda: bank_conflicts(Layout((64, 64), (1, 64)), matrix_access((64, 64), "bf16"), element=16),
         "lie at elements [0, 64, 128"),
        (lambda: bank_conflicts(Layout((8, 8), (12, 1)), matrix_access((8, 8), "bf16"), element=16),
         "lane 1 names byte 24, no multiple of its 16 bytes"),
        (lambda: thread_access(Layout(48, 1)), "no whole number of warps"),
        (lambda: thread_access(Layout((32, 3), (3, 1)), vector=2), "do not divide 3 values"),
        (lambda: matrix_access((12, 64), "bf16"), "do not tile 12x64"),
        (lambda: matrix_access((8, 8), "bf16", matrices=2), "not taken 2 at a time"),
        (lambda: matrix_access((8, 8), "bf16", "M"), "'K' or 'MN'"),
        (lambda: thread_access(Layout(32, 1)).over((8, 4), (12, 4)), "do not fill"),
        (lambda: thread_access(Layout(32, 2)).over((8, 4), (16, 4)), "outside a block"),
        (lambda: AccessPattern("a", "ld.shared", np.array([[[0, -1]]])), "with all of its elements or with none"),
        (lambda: AccessPattern("a", "ld.local", np.zeros((1, 1, 1), np.int64)), "no access of kind 'ld.local'"),
    ],
)  # fmt: skip
def test_refusals(act: object, message: str) -> None:
    with pytest.raises(AtomError) as refusal:
        act()
    assert message in str(refusal.value)


def test_every_architecture_has_the_banks_of_the_model() -> None:
    for name in ARCHES:
        assert bank_conflicts([0, 128], 4, arch=name).ways == 2


def test_widths_are_what_a_phase_can_hold() -> None:
    shared = {kind: widths for kind, widths in WIDTHS.items() if "global" not in kind}
    assert max(max(widths) for widths in shared.values()) == 16
    for kind, widths in shared.items():
        for width in widths:
            full = judge("", kind, np.arange(32)[None] * width, width)
            assert full.phase_ways.tolist() == [[1] * max(1, width * 32 // 128)]


def test_elements_of_four_bits() -> None:
    """Two elements to a byte: rows of 16 bytes are 32 of them, in every swizzle."""
    rows = matrix_access((64, 256), "e2m1")
    for swizzle in SPANS:
        tile = smem_tile((64, 256), "e2m1", "K", swizzle)
        report = bank_conflicts(tile, [tma_access(tile), rows])
        assert report.ways == 1 and report.wavefronts == 2 * 64
    assert bank_conflicts(Layout((64, 256), (256, 1)), rows, element="e2m1").ways == 8
    with pytest.raises(AtomError, match="no whole number of bytes"):
        bank_conflicts(Layout(32, 1), thread_access(Layout(32, 1)), element="e2m1")
