"""Tensor memory: addresses, allocation, and where accumulators, A and scale factors lie, by formulas of its own."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.atoms.tmem.layout import (
    accumulator,
    allocation_columns,
    container_bits,
    datapath,
    operand_a,
    scale_factors,
    scale_place,
    tmem_address,
    tmem_coordinate,
    warp_lanes,
)
from layoutgemm.errors import AtomError, BudgetError

# (m, cta_group, ws, sparse) -> letter and the published picture as a formula of (row of the block, column, N)
PICTURES = {
    (256, 2, False, False): ("A", lambda m, n, N: (m, n)),
    (128, 2, False, False): ("B", lambda m, n, N: (m + 64 * (n // (N // 2)), n % (N // 2))),
    (128, 2, False, True): ("C", lambda m, n, N: (m % 16 + 32 * (m // 16), n)),
    (128, 1, False, False): ("D", lambda m, n, N: (m, n)),
    (128, 1, True, False): ("D", lambda m, n, N: (m, n)),
    (64, 1, True, False): ("E", lambda m, n, N: (m + 64 * (n // (N // 2)), n % (N // 2))),
    (64, 1, False, False): ("F", lambda m, n, N: (m % 16 + 32 * (m // 16), n)),
    (32, 1, True, False): ("G", lambda m, n, N: (m + 32 * (n // (N // 4)), n % (N // 4))),
}


@pytest.mark.parametrize("case", PICTURES)
@pytest.mark.parametrize("n", (64, 128, 256))
def test_accumulators_are_the_published_pictures(case, n):
    m, group, ws, sparse = case
    letter, picture = PICTURES[case]
    path = datapath(m, group, ws, sparse)
    home = accumulator(m, n, group, ws, sparse)
    assert path.letter == letter
    rows, columns = np.meshgrid(np.arange(path.rows), np.arange(n), indexing="ij")
    lane, column = home.layout(rows, columns, 0)
    want_lane, want_column = picture(rows, columns, n)
    assert np.array_equal(np.broadcast_to(lane, rows.shape), want_lane)
    assert np.array_equal(np.broadcast_to(column, rows.shape), want_column)
    assert home.columns == want_column.max() + 1
    assert home.layout.is_injective()


def test_no_such_data_path():
    for args in ((32, 1), (64, 2), (256, 1), (96, 1), (64, 2, True)):
        with pytest.raises(AtomError, match="no data path for M"):
            datapath(*args)
    for args in ((True,), (128, True), (128.0,)):
        with pytest.raises(AtomError, match=r"must be (an integer|True or False)"):
            datapath(*args)
    with pytest.raises(AtomError, match="cuts N into 2 parts; N = 17"):
        accumulator(128, 17, 2)


def test_tiles_share_the_lanes_that_one_leaves():
    side_by_side = accumulator(64, 32, tiles=(2, 3))
    apart = accumulator(64, 32, tiles=(2, 3), interleaved=False)
    assert (side_by_side.columns, apart.columns) == (96, 192)
    for home in (side_by_side, apart):
        assert home.layout.is_injective() and home.layout.size == 64 * 32 * 6
    with pytest.raises(AtomError, match="3 tiles of M do not pair up"):
        accumulator(64, 32, tiles=(3, 2))


@pytest.mark.parametrize("bits,per_word", (("tf32", 1), ("bf16", 2), ("e4m3", 4), ("e3m2", 4), ("e2m1", 4)))
def test_operand_a_fills_words_from_the_low_bits(bits, per_word):
    home = operand_a(128, 32, bits, "f8f6f4")
    for k in (0, 1, 5, 31):
        place = home.layout(77, k, 0)
        place += (0,) * (3 - len(place))
        assert place == (77, k // per_word, (k % per_word) * (32 // per_word)), (bits, k)
    assert home.columns == 32 // per_word


def test_operand_a_is_doubled_where_halves_of_n_are_stacked():
    home = operand_a(128, 64, "e2m1", "mxf4", cta_group=2)
    assert container_bits("e2m1", "mxf4") == 4
    assert home.layout(9, 13, 0) == (9, 1, 20) and home.layout(9, 13, 1) == (73, 1, 20)
    with pytest.raises(AtomError, match="do not fill words"):
        operand_a(128, 6, "e2m1", "mxf4")


@pytest.mark.parametrize(
    "rows,factors,halves", ((128, 1, 1), (128, 16, 1), (256, 8, 1), (32, 4, 1), (256, 4, 2), (64, 2, 2))
)
def test_scale_factors_by_their_formula(rows, factors, halves):
    home = scale_factors(rows, factors, halves=halves)
    part = rows // halves
    groups = max(1, part // 32)
    r, f, copy = np.meshgrid(np.arange(rows), np.arange(factors), np.arange(4 // halves), indexing="ij")
    got = home.layout(r, f, copy)
    got = np.stack(np.broadcast_arrays(*got, *[np.zeros_like(r)] * (3 - len(got))), axis=-1)
    lane = r % part % 32 + 64 * (r // part) + 32 * copy
    want = np.stack((lane, r % part // 32 + groups * (f // 4), 8 * (f % 4)), axis=-1)
    assert np.array_equal(got, want)
    assert len(np.unique(got.reshape(-1, 3), axis=0)) == rows * factors * 4 // halves
    assert home.columns == groups * -(-factors // 4)


def test_the_identifiers_of_scale_factors_are_those_of_ptx():
    allowed = {1: {0, 1, 2, 3}, 2: {0, 2}, 3: {0, 1, 2, 3}, 4: {0}, 6: {0, 2}}
    for count, ids in allowed.items():
        places = [scale_place(128, count, j) for j in range(8)]
        assert {byte for _, byte in places} == ids
        home = scale_factors(128, 4 * -(-8 * count // 4))
        for j, (column, byte) in enumerate(places):
            at = home.layout(0, j * count, 0)
            at += (0,) * (3 - len(at))
            assert (at[1], at[2] // 8) == (column, byte)
    with pytest.raises(AtomError, match="1, 2 or 4 scale factors"):
        scale_place(128, 5, 0)


def test_bad_scale_factors_are_refused():
    for args, why in (
        ((48, 4), "48 rows are no multiple of 32"),
        ((96, 4, "ue8m0", 2), "96 rows in 2 halves are no multiple of 64"),
        ((0, 4), "0 rows are no multiple of 32"),
        ((128, 0), "at least one scale factor, not 0"),
        ((128, 4, "ue8m0", 3), "in 2 halves, not 3"),
        ((128, 6), "6 factors to a row fill no whole words of 4"),
    ):
        with pytest.raises(AtomError, match=why):
            scale_factors(*args)


def test_addresses():
    assert tmem_coordinate(tmem_address(127, 511)) == (127, 511)
    for bad, why in (
        ((128, 0), r"lanes 0\.\.127 and columns 0\.\.511, not \(128, 0\)"),
        ((0, 512), r"not \(0, 512\)"),
        ((-1, 0), r"not \(-1, 0\)"),
        ((True, 0), "lane of tmem_address must be an integer, not True"),
        ((1.0, 0), r"lane of tmem_address must be an integer, not 1\.0"),
    ):
        with pytest.raises(AtomError, match=why):
            tmem_address(*bad)
    with pytest.raises(AtomError, match=r"not \(128, 0\)"):
        tmem_coordinate(1 << 23)
    home = accumulator(128, 64, cta_group=2)
    assert home.address(3, 40) == tmem_address(67, 8)


def test_allocation():
    assert [allocation_columns(n) for n in (1, 31, 32, 33, 65, 256, 257, 512)] == [32, 32, 32, 64, 128, 256, 512, 512]
    with pytest.raises(BudgetError, match="513 columns"):
        allocation_columns(513)
    for bad in (0, -1):
        with pytest.raises(BudgetError, match="at least one column"):
            allocation_columns(bad)
    assert accumulator(128, 96).allocation == 128


def test_a_warp_reaches_a_quarter_of_the_lanes():
    assert sorted(lane for warp in range(4) for lane in warp_lanes(warp)) == list(range(128))
    assert warp_lanes(6) == warp_lanes(2) == range(64, 96)
