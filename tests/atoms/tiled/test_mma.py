"""Tiled products: against their definition in words, their own laws, and what they refuse."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import mma_sync, smem_tile, wgmma
from layoutgemm.atoms.tiled.mma import TiledMma
from layoutgemm.errors import AtomError, LayoutError
from layoutgemm.layouts import E
from layoutgemm.layouts.symbols.dims import dim
from tests.atoms.tiled.tiled_atoms import defined, quad_pair, warp_mma

EIGHTS = Layout((8, 2, 2), (1, 16, 8))  # over N: columns 0-7, 16-23, 8-15, 24-31
CASES = [
    (warp_mma(), (1, 1, 1), None),
    (warp_mma(), (2, 2, 1), None),
    (warp_mma(8), (4, 1, 1), None),
    (warp_mma(), (1, 1, 2), None),
    (warp_mma(), Layout((2, 2, 1), (2, 1, 0)), None),
    (warp_mma(), (2, 1, 1), (None, EIGHTS, None)),
    (warp_mma(), (2, 2, 1), (32, EIGHTS, 32)),
    (warp_mma(8), (2, 1, 2), (64, 16, Layout((2, 4, 2, 2), (1, 4, 2, 16)))),
    (warp_mma(16, Layout((16, 2), (2, 1))), (2, 1, 1), None),
    (wgmma(16), (2, 1, 1), None),
    (wgmma(8), (1, 2, 1), (None, Layout((8, 2), (2, 1)), None)),
]


def extent_of(mma, operand, times=(2, 1)):
    return tuple(e * t for e, t in zip(mma.tile_of(operand), times))


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("operand", "ABC")
def test_the_map_is_the_definition(case, operand):
    mma = TiledMma(*CASES[case])
    extent = extent_of(mma, operand)
    view = mma.view(operand, extent)
    expected = defined(mma, operand, extent)
    assert sum(thread == 0 for thread, _, _ in expected) * mma.threads == view.layout.size
    for (thread, value, rest), coordinate in list(expected.items())[:: max(1, len(expected) // 2000)]:
        assert view(thread, value, rest) == coordinate, (thread, value, rest)


@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("operand", "ABC")
def test_owners_hold_what_they_own(case, operand):
    """The inverse leads back, and an element's owners are exactly those that reach it."""
    mma = TiledMma(*CASES[case])
    extent = extent_of(mma, operand)
    view = mma.view(operand, extent)
    assert view.coverage().ok
    rows = extent[0]
    index = view.index.offsets()
    assert np.array_equal(np.bincount(index), np.full(rows * extent[1], view.copies))
    for element in range(0, rows * extent[1], 293 if view.copies > 4 else 61):
        row, column = element % rows, element // rows
        owners = view.owners((row, column))
        assert owners[0] == view.owner((row, column)) == view.owner(element)
        assert len(owners) == view.copies
        assert {view(*owner) for owner in owners} == {(row, column)}
        held = sorted(np.nonzero(index == element)[0].tolist())
        assert sorted(Layout(view.shape)(owner) for owner in owners) == held
        inverse = view.inverse((row, column))
        assert inverse == owners[0][: len(inverse)] or len(inverse) == 3  # zeros at the end are left out


@pytest.mark.parametrize("case", range(len(CASES)))
def test_partitions_of_any_layout_are_the_view_looked_up(case):
    mma = TiledMma(*CASES[case])
    for operand, partition in zip("ABC", (mma.partition_A, mma.partition_B, mma.partition_C)):
        extent = extent_of(mma, operand, (1, 2))
        view = mma.view(operand, extent)
        padded = Layout((*extent, 3), (extent[1] + 8, 1, 4096))
        for thread in {0, 5, mma.threads - 1}:
            part, offset = partition(thread, padded)
            assert part.rank == 4 and part[3].size == 3
            flat = np.arange(part.size // 3)
            value, rest = flat % part[0].size, flat // part[0].size
            row, column = view(thread, value, rest)
            assert np.array_equal(offset + part.offsets()[: part.size // 3], padded(row, column, 0 * row))
            shape = mma.partition_shape(operand, (*extent, 3))
            assert tuple(m.size for m in Layout(shape)) == tuple(m.size for m in part)


def test_a_slice_is_the_partition_with_the_thread_filled_in():
    mma = TiledMma(warp_mma(), (2, 2, 1))
    identity = Layout.identity((64, 64))
    one = mma.get_slice(37)
    assert one.partition_C(identity) == mma.partition_C(37, identity)
    assert one.partition_A(identity) == mma.partition_A(37, identity)
    assert one.partition_B(identity) == mma.partition_B(37, identity)
    part, offset = one.partition_C(identity)
    assert offset == (17, 2)  # warp 1 of two along M, lane 5: row 16 + 5//4, column 2*(5%4)
    assert str(part) == "((2,2),2,4):((1@1,8@0),32@0,16@1)"


def test_a_swizzled_tile_keeps_its_swizzle():
    tile = smem_tile((64, 64), "bf16", "K").composed
    mma = TiledMma(warp_mma(), (2, 2, 1))
    part, offset = mma.partition_A(37, tile)
    assert offset == 0 and part.swizzle == tile.swizzle
    view = mma.view("A", (64, 64))
    for flat in range(0, part.size, 7):
        value, rest = flat % 8, flat // 8
        assert part(part.coord(flat)) == tile(*view(37, value, rest))


def test_partition_evaluates_on_arrays():
    """As traced integers would come: one layout for all threads at once."""
    mma = TiledMma(warp_mma(), (2, 2, 1))
    part = mma.partition("C", Layout((64, 64), (64, 1)))
    thread = np.arange(128)
    expected = [mma.partition_C(int(t), Layout((64, 64), (64, 1)))[1] for t in thread]
    assert part(thread, 0 * thread, 0 * thread, 0 * thread).tolist() == expected


def test_threads_and_extents():
    mma = TiledMma(warp_mma(), (2, 2, 1), (None, EIGHTS, 32))
    assert (mma.threads, mma.tile_mnk, mma.tile_of("B")) == (128, (32, 32, 32), (32, 32))
    assert str(mma.thr_layout_vmnk) == "(32,2,2,1):(1,32,64,128)"
    assert mma.tile_of_threads == (32, 16, 16)


# ---------------------------------------------------------------- registers


def test_fragments():
    mma = TiledMma(warp_mma(), (2, 2, 1))
    assert mma.fragment("C", (128, 128)).registers == 128
    fragment = mma.fragment("A", (64, 64))
    assert str(fragment.layout) == "((2,2,2),2,4):((1,2,4),8,16)" and fragment.registers == 32
    assert sorted(fragment.layout.offsets()) == list(range(fragment.layout.size))
    with pytest.raises(AtomError, match="takes A from smem"):
        TiledMma(wgmma(64)).fragment("A", (64, 16))


def test_registers_of_one_product_feed_the_next():
    """C of attention's first product is A of the second, value by value. This holds in every thread."""
    mma = TiledMma(warp_mma(), (4, 1, 1))
    extent = (128, 64)
    registers = mma.retile("C", "A", extent)
    c, a = mma.view("C", extent), mma.view("A", extent)
    shape = mma.partition_shape("A", extent)
    assert registers.shape == shape
    for thread in (0, 5, 127):
        for flat in range(registers.size):
            here, there = registers.coord(flat), int(registers(flat))
            value, rest = Layout(shape[0])(here[0]), here[1:]
            assert a(thread, value, rest) == c(thread, there % 4, there // 4)


def test_registers_in_another_thread_are_refused():
    with pytest.raises(AtomError, match="A of \\(128, 64\\) is not in the registers of C"):
        TiledMma(warp_mma(), (2, 2, 1)).retile("C", "A", (128, 64))
    with pytest.raises(AtomError, match="not in the registers"):
        TiledMma(warp_mma(), (1, 1, 2)).retile("C", "A", (16, 32))  # every warp has all of C, and its half of A


def test_one_matrix_as_a_and_as_b():
    """m16n8k16 reads a 16x16 A and two 8x16 B from the same registers: A's value 2 (eight rows down) is B's next."""
    assert str(TiledMma(warp_mma()).retile("A", "B", (16, 16))) == "((2,2),2,1):((1,4),2,0)"


# ---------------------------------------------------------------- symbols


def test_symbolic_extents():
    mma = TiledMma(warp_mma(), (2, 2, 1), (None, EIGHTS, None))
    M, N = dim("M", multiple_of=32), dim("N", multiple_of=32)
    part = mma.partition("C", Layout((M, N), (N, 1)))
    at = part.at(M=96, N=64)
    assert at.equivalent(mma.partition("C", Layout((96, 64), (64, 1)))).ok
    L = dim("L", multiple_of=16)
    with pytest.raises(LayoutError, match="needs 32 \\| L"):
        mma.partition("C", Layout((L, N), (N, 1)))


# ---------------------------------------------------------------- refusals


def test_extents_that_do_not_divide():
    mma = TiledMma(warp_mma(), (2, 2, 1))
    with pytest.raises(AtomError, match=r"C has 100 elements along M.* 32 = 16 .*2 atoms.*100 = 3\*32 \+ 4"):
        mma.partition_C(0, Layout((100, 64)))
    with pytest.raises(AtomError, match=r"B has 24 elements along K.*24 = 1\*16 \+ 8"):
        mma.layout_B((64, 24))
    # CuTe rounds this up: 32 of the 64 elements that the permutation deals are outside the operand.
    with pytest.raises(AtomError, match="the permutation"):
        TiledMma(warp_mma(), (1, 1, 1), (None, 64, None)).layout_C((16, 32))


def test_modes_that_are_not_said_are_one_atom_and_in_order():
    """The tiled products of CUTLASS' page on MMA atoms: a layout of two modes, and a permutation of M."""
    atom = mma_sync("m8n8k4", "f16", layouts=("col", "row"))
    assert TiledMma(atom, (2, 2)).layout_C() == TiledMma(atom, (2, 2, 1)).layout_C()
    interleaved = TiledMma(atom, Layout((2, 2), (2, 1)), (Layout((4, 4, 2), (1, 8, 4)), 32))
    assert interleaved.tile_mnk == (32, 32, 4)
    read = [interleaved.view("A")(0, v, rest) for rest in range(2) for v in range(4)]
    assert read == [(m, 0) for m in range(8)]  # 0 to 3 and 16 to 19 without the permutation


@pytest.mark.parametrize(
    ("permutation", "why"),
    [
        ((None, Layout((8, 2), (1, 32)), None), "permutation .* of N is none: its values are to be 0 to 15"),
        ((None, Layout((8, 2), (1, 0)), None), "permutation .* of N is none"),
        ((24, None, None), r"permutation of M covers 24 elements, and the threads take 32 = 16 .*24 = 0\*32 \+ 24"),
        ((None, Layout(24), None), r"24 = 1\*16 \+ 8"),
        ((None, None, None, 4), "three tilers"),
        ((None, "8", None), "an integer, a Layout or None"),
        ((None, True, None), "an integer, a Layout or None"),
        ((None, 0, None), "covers 0 elements"),
    ],
)
def test_permutations_that_are_none(permutation, why):
    with pytest.raises(AtomError, match=why):
        TiledMma(warp_mma(), (2, 2, 1), permutation)


@pytest.mark.parametrize(
    ("atoms", "why"),
    [
        ((2, 2, 1, 1), "has 4 modes, not 3"),
        (Layout((2, 2, 1), (1, 1, 0)), "4 atoms are to be numbered 0 to 3"),
        (Layout((2, 2, 1), (1, 4, 0)), "numbered 0 to 3"),
        (Layout((2, 2, 1), (0, 1, 0)), "numbered 0 to 3"),
    ],
)
def test_atom_layouts_that_number_nothing(atoms, why):
    """CuTe takes all but the first. Its inverse of the thread layout then leaves threads out in silence."""
    with pytest.raises(AtomError, match=why):
        TiledMma(warp_mma(), atoms)


def test_operands_and_threads():
    mma = TiledMma(warp_mma(), (2, 2, 1))
    with pytest.raises(AtomError, match="operands A, B, C, not 'D'"):
        mma.view("D")
    with pytest.raises(AtomError, match="has two modes at least"):
        mma.partition_A(0, Layout(64))
    with pytest.raises(AtomError, match="a Layout or a ComposedLayout"):
        mma.partition_A(0, (64, 64))
    for thread, why in ((128, "the threads are 0 to 127"), (-1, "0 to 127"), (True, "an integer"), (1.0, "an integer")):
        with pytest.raises(AtomError, match=why):
            mma.partition_A(thread, Layout((64, 64)))
        with pytest.raises(AtomError, match=why):
            mma.get_slice(thread)


def test_a_quarter_of_a_warp():
    """An atom on threads 0-3 and 16-19 needs the whole warp before thread t has a share."""
    alone = TiledMma(quad_pair())
    assert str(alone.thr_layout_vmnk) == "((4,2),1,1,1):((1,16),4,4,4)"
    with pytest.raises(AtomError, match=r"not 0 to 7.*tile the atom over the whole warp"):
        alone.layout_C()
    whole = TiledMma(quad_pair(), (2, 2, 1))
    assert sorted(whole.thr_layout_vmnk.offsets()) == list(range(32))
    view = whole.view("C")
    assert view.once().ok
    # thread 16 is the fifth of the first atom, thread 4 the first of the second, which is along M
    assert whole.view("C")(16, 0) == (4, 0) and whole.view("C")(4, 0) == (8, 0)


def test_values_are_frozen_and_hashable():
    a, b = TiledMma(warp_mma(), (2, 2, 1)), TiledMma(warp_mma(), Layout((2, 2, 1)))
    assert a == b and hash(a) == hash(b) and a != TiledMma(warp_mma(), (4, 1, 1))
    assert E(1) in a.view("C").layout.flatten().stride
