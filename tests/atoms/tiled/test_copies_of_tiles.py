"""Tiled copies from a tile and a number of threads; their view as a layout."""

from __future__ import annotations

import itertools
from math import gcd

import pytest

from layoutgemm import Layout
from layoutgemm.atoms import load_global, make_tiled_copy, smem_tile, tiled_copy_of_tile
from layoutgemm.errors import AtomError


@pytest.mark.parametrize("threads", [1, 32, 96, 128])
@pytest.mark.parametrize("tile", [(64, 64), (48, 32), (8, 16, 12), (256,)])
@pytest.mark.parametrize("bits", [16, 128])
def test_every_element_is_moved_once_by_vectors_and_neighbours_are_next_threads(
    threads: int, tile: tuple[int, ...], bits: int
) -> None:
    vector = bits // 16
    for order in itertools.permutations(range(len(tile))):
        try:
            copy = tiled_copy_of_tile(load_global(bits, "bf16"), threads, tile, order)
        except AtomError as error:
            assert "left over" in str(error) or "moves" in str(error)
            assert tile[order[0]] % vector or _unfilled(threads, tile, order, vector)
            continue
        assert copy.threads == threads and copy.coverage() and copy.tile == tile
        compact = Layout.ordered(tile, tuple(order.index(i) for i in range(len(tile))))
        assert copy.vectors("src", compact)
        if threads > 1 and tile[order[0]] >= 2 * vector:
            one, two = (copy.partition_S(t, compact)[1] for t in (0, 1))
            assert two - one == vector


def _unfilled(threads: int, tile: tuple[int, ...], order: tuple[int, ...], vector: int) -> bool:
    for mode in order:
        threads //= gcd(threads, tile[mode] // (vector if mode == order[0] else 1))
    return threads != 1


def test_a_partition_is_one_layout_of_threads_values_and_rests() -> None:
    copy = tiled_copy_of_tile(load_global(128, "bf16"), 32, (16, 64))
    for layout in (Layout((64, 128), (128, 1)), smem_tile((64, 128), "bf16", "K")):
        whole, parts = copy.thread_value_rest("src", layout), copy.partition("src", layout)
        assert whole.rank == 3 and whole.size == parts.size
        assert [whole(i) for i in range(whole.size)] == [parts(i) for i in range(parts.size)]


def test_a_tiler_goes_with_one_layout() -> None:
    atom = load_global(128, "bf16")
    tv = Layout(((8, 16), 8), ((128, 1), 16))
    assert make_tiled_copy(atom, tv, tiler=(16, 64)).tile == (16, 64)
    with pytest.raises(AtomError, match="a tiler goes with one layout"):
        make_tiled_copy(atom, tv, Layout(8), tiler=(16, 64))
