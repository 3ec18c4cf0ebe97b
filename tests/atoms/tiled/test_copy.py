"""Tiled copies: against their definition, against the fragments they feed, and what they refuse."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import smem_tile, wgmma
from layoutgemm.atoms.tiled.copy import TiledCopy
from layoutgemm.atoms.tiled.derived_copies import (
    make_cotiled_copy,
    make_tiled_copy,
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    make_tiled_copy_C_atom,
    make_tiled_copy_D,
    make_tiled_copy_S,
    make_tiled_copy_tv,
)
from layoutgemm.atoms.tiled.mma import TiledMma
from layoutgemm.dtypes import bf16
from layoutgemm.errors import AtomError, LayoutError
from layoutgemm.layouts import ComposedLayout, Swizzle
from layoutgemm.layouts.symbols.dims import dim
from tests.atoms.tiled.tiled_atoms import ldmatrix, stmatrix, vector, warp_mma

EIGHTS = Layout((8, 2, 2), (1, 16, 8))
ROW_THREADS = Layout((16, 8), (8, 1))


def rows_of_matrices(count, lane):
    """PTX ISA, ldmatrix: the row whose address a lane supplies, as elements 64*matrix + 8*row + column."""
    return [8 * (lane % (8 * count)) + column for column in range(8)]


def registers_of_matrices(count, transpose, lane):
    """PTX ISA, ldmatrix: register j of a lane holds row lane//4, columns 2*(lane%4) and the next, of matrix j."""
    held = [(lane // 4, 2 * (lane % 4) + i) for i in range(2)]
    return [64 * j + (8 * c + r if transpose else 8 * r + c) for j in range(count) for r, c in held]


# ---------------------------------------------------------------- by definition


@pytest.mark.parametrize("count", (1, 2, 4))
@pytest.mark.parametrize("transpose", (False, True))
@pytest.mark.parametrize("atom", (ldmatrix, stmatrix))
def test_each_side_names_what_one_instruction_moves(count, transpose, atom):
    """For every warp and instruction: from thread and value of a side to who has it in registers, and to the tile."""
    instruction = atom(count, transpose)
    copy = make_tiled_copy(instruction, Layout((8, 8), (8, 1)), Layout((2, 4), (4, 1)))
    registers = "dst" if atom is ldmatrix else "src"
    assert copy.reference == registers
    sides = {
        registers: [registers_of_matrices(count, transpose, lane) for lane in range(32)],
        "dst" if registers == "src" else "src": [rows_of_matrices(count, lane) for lane in range(32)],
    }
    holder = {e: (lane, v) for lane in range(32) for v, e in enumerate(sides[registers][lane])}
    for side, named in sides.items():
        tv = copy.tv_layout(side)
        per = len(named[0])
        for warp in range(2):
            for lane in range(32):
                for step in range(8 // (2 * count)):
                    for v, element in enumerate(named[lane]):
                        there, value = holder[element]
                        expected = copy.layout_tv(warp * 32 + there, step * 2 * count + value)
                        assert tv(warp * 32 + lane, step * per + v) == expected


@pytest.mark.parametrize(
    ("bits", "threads", "values"),
    [
        (128, ROW_THREADS, Layout((1, 8))),
        (64, Layout((4, 32)), Layout((4, 2))),
        (32, Layout((8, 4), (4, 1)), Layout((2, 4), (4, 1))),
        (16, Layout(((2, 4), 4), ((1, 8), 2)), Layout((3, 2), (2, 1))),
    ],
)
def test_a_thread_moves_its_block(bits, threads, values):
    """Thread (i, j) of the thread layout moves block (i, j). Value (x, y) is its element (x, y)."""
    copy = make_tiled_copy(vector(bits), threads, values)
    m, n = values[0].size, values[1].size
    assert copy.tile == (threads[0].size * m, threads[1].size * n)
    for i in range(threads[0].size):
        for j in range(threads[1].size):
            for x in range(m):
                for y in range(n):
                    element = i * m + x + copy.tile[0] * (j * n + y)
                    assert copy.layout_tv(threads(i, j), values(x, y)) == element
    assert copy.coverage().ok
    view = copy.view("src")
    assert view.once().ok and view.copies == 1
    for element in range(0, view.layout.size, 41):
        row, column = element % copy.tile[0], element // copy.tile[0]
        assert view(*view.owner((row, column))) == (row, column)
    assert make_tiled_copy_tv(vector(bits), threads, values) == copy


def test_one_column():
    view = make_tiled_copy(vector(128), Layout(32), Layout(8)).layout_tv
    copy = TiledCopy(vector(128), view, (256, 1))
    assert copy.view("src")(3, 2) == (26, 0) and copy.view("src").owner((26, 0)) == (3, 2, (0, 0))
    point = TiledCopy(vector(16), Layout((1, 1), (0, 0)), (1, 1)).view("dst")
    assert point(0, 0) == (0, 0) and point.owner((0, 0)) == (0, 0, (0, 0))


def test_partitions_are_the_view_looked_up():
    copy = make_tiled_copy(vector(64), ROW_THREADS, Layout((1, 8)))
    extent = (32, 128)
    view = copy.view("dst", extent)
    memory = Layout((*extent, 3), (128, 1, 4096))
    for thread in (0, 9, 127):
        part, offset = copy.partition_D(thread, memory)
        assert [m.size for m in part] == [8, 2, 2, 3] and part[0].shape == (4, 2)
        flat = np.arange(part.size // 3)
        row, column = view(thread, flat % 8, flat // 8)
        assert np.array_equal(offset + part.offsets()[: flat.size], memory(row, column, 0 * row))
        assert copy.get_slice(thread).partition_D(memory) == (part, offset)
    assert copy.get_slice(3).partition_S(memory) == copy.partition_S(3, memory)


# ---------------------------------------------------------------- fragments


FEEDS = [
    (make_tiled_copy_A, "A", ldmatrix(4), (2, 2, 1), None),
    (make_tiled_copy_B, "B", ldmatrix(2), (2, 2, 1), None),
    (make_tiled_copy_B, "B", ldmatrix(4), (2, 2, 1), (32, 32, 16)),
    (make_tiled_copy_B, "B", ldmatrix(4), (2, 1, 1), (None, EIGHTS, None)),
    (make_tiled_copy_B, "B", ldmatrix(1), (2, 1, 1), (None, EIGHTS, None)),
    (make_tiled_copy_C, "C", stmatrix(2), (2, 2, 1), None),
    (make_tiled_copy_C, "C", stmatrix(4), (2, 1, 1), (None, EIGHTS, None)),
    (make_tiled_copy_A, "A", ldmatrix(4), (1, 1, 2), None),
]


@pytest.mark.parametrize("case", range(len(FEEDS)))
def test_retiled_registers_hold_what_the_copy_moves(case):
    """A thread's instruction i moves what the product expects in those registers. This holds element by element."""
    make, operand, atom, atoms, permutation = FEEDS[case]
    mma = TiledMma(warp_mma(), atoms, permutation)
    copy = make(atom, mma)
    extent = tuple(2 * e for e in mma.tile_of(operand))
    fragment = Layout(mma.partition_shape(operand, extent))
    retiled = copy.retile(fragment)
    expected = mma.view(operand, extent)
    side = copy.reference
    for thread in (0, 5, mma.threads - 1):
        moved, start = (copy.partition_D if side == "dst" else copy.partition_S)(thread, Layout.identity(extent))
        assert [m.size for m in moved] == [m.size for m in retiled]
        rows, columns = moved.offsets()
        register = retiled.offsets()
        n = fragment[0].size
        row, column = expected(thread, register % n, register // n)
        assert np.array_equal(rows + start[0], row) and np.array_equal(columns + start[1], column)
    assert sorted(retiled.offsets()) == list(range(fragment.size))
    assert copy.feeds(mma, operand, extent).ok and copy.feeds(mma, operand).ok
    # every element that a thread of the product holds is loaded by it, and both sides cover the tile
    assert copy.coverage("src").ok and copy.coverage("dst").ok


def test_values_in_another_order_than_the_fragment():
    """A copy whose values run along N before M: which block is which follows from the places in the tile."""
    mma = TiledMma(warp_mma(), (2, 2, 1), (64, 32, None))
    threads, (values, (rest_m, rest_n)) = mma.layout_C()
    along_n = Layout.join(threads, Layout.join(values, rest_n, rest_m))
    copy = TiledCopy(vector(16, "rmem", "gmem"), along_n, mma.tile_of("C"))
    fragment = Layout(mma.partition_shape("C", (128, 32)))
    assert [int(copy.retile(fragment)(4 * i, 0, 0)) for i in range(4)] == [
        0,
        16,
        4,
        20,
    ]  # blocks (0,0) (0,1) (1,0) (1,1)
    assert copy.feeds(mma, "C", (128, 32)).ok
    assert not TiledCopy(copy.atom, along_n, copy.tiler, (4, 2, 2)).feeds(mma, "C", (128, 32))


def test_a_copy_that_does_not_feed():
    """A copy for warps that stand the other way gives warp 1 the rows of warp 2."""
    mma = TiledMma(warp_mma(), (2, 2, 1))
    other = make_tiled_copy_A(ldmatrix(4), TiledMma(warp_mma(), Layout((2, 2, 1), (2, 1, 0))))
    found = other.feeds(mma, "A", (64, 16))
    assert not found and found.coord[0] == (0, 0, 1, 0) and (found.left, found.right) == (0, 16)
    plain = make_tiled_copy_B(ldmatrix(4), TiledMma(warp_mma(), (2, 1, 1), (None, 32, None)))
    dealt = TiledMma(warp_mma(), (2, 1, 1), (None, EIGHTS, None))
    assert not plain.feeds(dealt, "B") and make_tiled_copy_B(ldmatrix(4), dealt).feeds(dealt, "B").ok


def test_a_wide_fragment_is_split():
    """The accumulator of m64n64: 32 values, stored 8 at a time."""
    mma = TiledMma(wgmma(64), (2, 1, 1))
    copy = make_tiled_copy_C_atom(stmatrix(4), mma)
    assert copy.tile == (128, 16) and copy.values == 8
    fragment = Layout(mma.partition_shape("C", (128, 64)))
    retiled = copy.retile(fragment)
    assert [m.size for m in retiled] == [32, 1, 1] and retiled[0].shape == (8, 4)
    assert retiled.equivalent(Layout(32)).ok
    store = make_tiled_copy_S(vector(32, "rmem", "smem"), copy)
    assert store.layout_tv.equivalent(copy.layout_tv).ok and store.retile(fragment)[0].shape[0] == 2
    # on the other side the threads of stmatrix hold rows of 8
    rows = make_tiled_copy_D(vector(128, "rmem", "smem"), copy)
    assert rows.vectors("dst", Layout((128, 64), (64, 1))).ok


def test_fragments_that_do_not_fit():
    mma = TiledMma(warp_mma(), (2, 2, 1), (32, 32, 16))
    copy = make_tiled_copy_B(ldmatrix(4), mma)
    with pytest.raises(AtomError, match=r"mode 1 of the fragment .* has 3 blocks, and a tile 2"):
        copy.retile(Layout((4, 3, 1)))
    with pytest.raises(AtomError, match="no multiple of the fragment's 3"):
        copy.retile(Layout((3, 2, 1)))
    with pytest.raises(AtomError, match="has 12 values, no multiple of the copy's 8"):
        copy.retile(Layout((12, 2, 1)))
    odd = TiledCopy(vector(16), Layout((4, (3, 2)), (1, (8, 4))), (4, 6))
    with pytest.raises(AtomError, match=r"the fragment's 2 values are no block of .*12 and 4 threads \* 2"):
        odd.retile(Layout((2, 1, 3)))
    with pytest.raises(AtomError, match="has too few"):
        copy.retile(Layout((4, 2)))


# ---------------------------------------------------------------- coverage and vectors


def test_coverage():
    tv = Layout(((8, 4), 2), ((1, 16), 8))
    whole = TiledCopy(vector(16), tv, (8, 8))
    assert whole.coverage().ok and whole.coverage("src").ok
    half = TiledCopy(vector(16), tv, (16, 8))
    missing = half.coverage()
    assert not missing and missing.coord == 64
    twice = TiledCopy(vector(16), Layout((32, 7), (1, 16)), (16, 8))
    assert twice.coverage("dst").ok
    shared = twice.coverage()
    assert not shared and shared.coord == (16, 32)  # thread 16, value 0 and thread 0, value 1
    # warps side by side along N hold the same A: each element goes to both, on purpose
    fed = make_tiled_copy_A(ldmatrix(4), TiledMma(warp_mma(), (2, 2, 1)))
    assert fed.coverage("src").ok and fed.coverage("dst").ok and not fed.coverage()


def test_vectors():
    copy = make_tiled_copy(vector(128), ROW_THREADS, Layout((1, 8)))
    assert copy.vectors("src", Layout((64, 128), (128, 1))).ok
    strided = copy.vectors("src", Layout((64, 128)))
    assert not strided and "value 1 of an access" in strided.explain() and (strided.left, strided.right) == (64, 1)
    pitch = copy.vectors("src", Layout((64, 128), (132, 1)))
    # thread 8 is the first of the second row, and 132 is no multiple of 8
    assert not pitch and pitch.left == 132 and pitch.right == 128 and pitch.coord[0] == (0, 1)
    assert copy.vectors("src", Layout((64, 128), (132, 1)), width=4).ok
    with pytest.raises(AtomError, match="no multiple of 3"):
        copy.vectors("src", Layout((64, 128), (128, 1)), width=3)


def test_vectors_under_a_swizzle():
    copy = make_tiled_copy(vector(128, "gmem", "smem"), ROW_THREADS, Layout((1, 8)))
    tile = smem_tile((64, 64), "bf16", "K", "128B").composed
    assert copy.vectors("dst", tile).ok  # 16 bytes stay together
    fine = ComposedLayout(Swizzle(3, 2, 3), 0, Layout((64, 64), (64, 1)))
    split = copy.vectors("dst", fine)
    assert not split and ": ((4,0),0,0,0,0) gives 36 and 32" in split.explain()
    coarse = make_tiled_copy(vector(128), Layout((4, 1)), Layout((1, 8)))
    assert coarse.vectors("src", Swizzle(1, 2, 3) @ Layout((4, 8), (8, 1))).ok  # the identity on these rows
    inside = coarse.vectors("src", Swizzle(1, 1, 2) @ Layout((4, 8), (8, 1)))
    assert not inside and inside.left != inside.right
    assert copy.vectors("dst", fine, width=4).ok
    moved = ComposedLayout(tile.swizzle, 4, tile.layout)
    assert not copy.vectors("dst", moved)


# every vector claim, by looking at the addresses
@pytest.mark.parametrize("pitch", (64, 72, 68, 66, 65))
@pytest.mark.parametrize("width", (8, 4, 2))
def test_vectors_by_looking(pitch, width):
    copy = make_tiled_copy(vector(128), Layout((4, 8), (8, 1)), Layout((1, 8)))
    memory = Layout((8, 64), (pitch, 1))
    addresses = copy.partition("src", memory).offsets().reshape(-1, 8, 32)  # rest, value, thread
    groups = addresses.reshape(-1, 8 // width, width, 32)
    ok = bool((groups == groups[:, :, :1] + np.arange(width)[:, None]).all() and (groups[:, :, 0] % width == 0).all())
    assert copy.vectors("src", memory, width).ok == ok


# ---------------------------------------------------------------- by offsets


def test_cotiled():
    """32 threads, each 8 elements in a row, of a tile stored row after row: rows of 32 elements in 4 threads."""
    data = Layout((16, 32), (32, 1))
    copy = make_cotiled_copy(vector(128), Layout((32, 8), (8, 1)), data)
    assert copy.tile == (8, 32)
    part, offset = copy.partition_S(5, data)
    assert offset == 40 and part[0].offsets().tolist() == list(range(8))
    assert copy.vectors("src", data).ok and copy.coverage().ok
    with pytest.raises(LayoutError):
        make_cotiled_copy(vector(128), Layout((32, 8), (8, 1)), Layout((16, 32), (1, 1)))
    with pytest.raises(AtomError, match=r"names offsets that .* does not have"):
        make_cotiled_copy(vector(128), Layout((32, 8), (32, 1)), Layout((16, 8), (32, 1)))
    with pytest.raises(AtomError, match="no box"):
        make_cotiled_copy(vector(16), Layout((2, 1), (33, 1)), Layout((32, 32)))


# ---------------------------------------------------------------- symbols


def test_symbolic_extents():
    copy = make_tiled_copy(vector(128), ROW_THREADS, Layout((1, 8)))
    M, K = dim("M", multiple_of=16), dim("K", multiple_of=64)
    part = copy.partition("src", Layout((M, K), (K, 1)))
    assert part.at(M=32, K=128).equivalent(copy.partition("src", Layout((32, 128), (128, 1)))).ok
    assert copy.vectors("src", Layout((M, K), (K, 1))).ok
    with pytest.raises(LayoutError, match=r"needs 64 \| L"):
        copy.partition("src", Layout((M, dim("L")), (K, 1)))
    with pytest.raises(LayoutError, match=r"8 \| P"):
        copy.vectors("src", Layout((M, K), (dim("P"), 1)))


# ---------------------------------------------------------------- refusals


def test_too_few_threads_or_values():
    with pytest.raises(AtomError, match=r"takes 32 threads an instruction, and the tiled copy has 16 = 0\*32 \+ 16"):
        make_tiled_copy(ldmatrix(1), Layout((4, 4), (4, 1)), Layout((2, 2)))
    with pytest.raises(AtomError, match=r"takes 8 values an instruction, and the tiled copy has 4 = 0\*8 \+ 4"):
        make_tiled_copy_A(ldmatrix(4), TiledMma(warp_mma(8), (2, 2, 1)))
    with pytest.raises(AtomError, match=r"has 12 = 1\*8 \+ 4"):
        make_tiled_copy(vector(128), ROW_THREADS, Layout((1, 12)))


def test_layouts_that_number_nothing():
    """CuTe takes these, and its right inverse then leaves threads or values out in silence."""
    with pytest.raises(AtomError, match=r"thread layout .* is to number 32 threads 0 to 31, each once"):
        make_tiled_copy(vector(64), Layout((8, 4), (1, 16)), Layout((1, 4)))
    with pytest.raises(AtomError, match=r"value layout .* is to number 4 values"):
        make_tiled_copy(vector(64), Layout((8, 4)), Layout((1, 4), (0, 2)))


def test_malformed():
    tv = Layout((32, 4), (1, 32))
    with pytest.raises(AtomError, match=r"leaves its tile \(8, 8\) of 64 elements: it reaches 127"):
        TiledCopy(vector(16), tv, (8, 8))
    with pytest.raises(AtomError, match="modes thread and value"):
        TiledCopy(vector(16), Layout(32), (8, 4))
    for tiler in ((8, None), (8, 0), (True, 8), ("8", 8)):
        with pytest.raises(AtomError, match="a mode of the tiler must be a positive integer or a Layout"):
            TiledCopy(vector(16), tv, tiler)
    quads = replace(ldmatrix(1), thread_ids=Layout((16, 2), (2, 1)))
    with pytest.raises(AtomError, match="numbers the threads of one instruction in a row"):
        TiledCopy(quads, Layout((32, 2)), (8, 8))
    more = replace(ldmatrix(1), layout_src=ldmatrix(2).layout_src)
    with pytest.raises(AtomError, match=r"the src side names elements up to 127, and the registers .* the first 64 of"):
        TiledCopy(more, Layout((32, 2)), (8, 8)).tv_layout("src")
    gaps = TiledCopy(vector(16), tv, (Layout((8, 2), (1, 16)), 8))
    assert gaps.partition_S(8, Layout((32, 8)))[1] == 16  # rows 0-7 and 16-23, then 8-15 and 24-31
    with pytest.raises(AtomError, match=r"do not cut the 16 elements of mode 0.*they are 32 and reach element 31"):
        gaps.partition_S(0, Layout((16, 8)))
    copy = TiledCopy(vector(16), tv, (16, 8))
    with pytest.raises(AtomError, match=r"mode 0 of .* has 40 elements, and the tile 16: 40 = 2\*16 \+ 8"):
        copy.partition_S(0, Layout((40, 8)))
    with pytest.raises(AtomError, match="the tiler has 2 modes"):
        copy.partition_S(0, Layout(128))
    with pytest.raises(AtomError, match="the threads are 0 to 31"):
        copy.partition_S(32, Layout((16, 8)))
    with pytest.raises(AtomError, match='has sides "src" and "dst"'):
        copy.view("A")


def test_the_side_that_the_map_is_about():
    """Registers, tensor memory before them, else the source."""
    assert make_tiled_copy(vector(64), Layout((8, 4)), Layout((4, 1))).reference == "dst"
    assert make_tiled_copy(vector(64, "gmem", "smem"), Layout((8, 4)), Layout((4, 1))).reference == "src"
    assert make_tiled_copy(vector(64, "rmem", "smem"), Layout((8, 4)), Layout((4, 1))).reference == "src"
    lanes = Layout((32, 32), (32, 1))
    load = replace(vector(32), source="tmem", target="rmem", layout_src=Layout((32, 1024), (0, 1)), layout_dst=lanes)
    assert TiledCopy(load, Layout((32, 1024), (0, 1)), (32, 32)).reference == "src"
    assert bf16.bits == 16
