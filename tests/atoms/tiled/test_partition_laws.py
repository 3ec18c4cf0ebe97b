"""Partitions of nested and padded tensors: the values at the elements of the plain partition, or a refusal."""

from __future__ import annotations

import random
from typing import Any

import pytest

from layoutgemm import Layout, Swizzle
from layoutgemm.atoms import fma
from layoutgemm.atoms.tiled.copy import TiledCopy
from layoutgemm.atoms.tiled.derived_copies import make_tiled_copy
from layoutgemm.atoms.tiled.mma import TiledMma
from layoutgemm.errors import AtomError, LayoutError
from tests.atoms.tiled.tiled_atoms import vector, warp_mma
from tests.layouts import reference as ref


def tensor(rng: random.Random, extents: tuple[int, ...]) -> Layout:
    """A random tensor: split modes; permuted, padded or broadcast strides."""
    shape: list[Any] = []
    for n in extents:
        inner = rng.choice([k for k in range(1, n + 1) if n % k == 0])
        shape.append(rng.choice((n, (inner, n // inner), (1, inner, n // inner), (inner, n // inner, 1))))
    flat = ref.leaves(tuple(shape))
    order, strides, top = list(range(len(flat))), [0] * len(flat), 1
    rng.shuffle(order)
    for i in order:
        strides[i] = 0 if rng.random() < 0.1 else top
        top = top * flat[i] + rng.choice((0, 0, 0, 1, 4))
    return Layout(tuple(shape), ref.like(tuple(shape), strides))


def judge(partition: Any, of: Layout) -> bool:
    """Compare with the tensor at the elements that the plain partition names."""
    plain = partition(Layout(tuple(ref.size(s) for s in of.shape)))
    try:
        answer = partition(of)
    except LayoutError:
        return False
    assert [ref.size(s) for s in answer.shape] == [ref.size(s) for s in plain.shape], f"{of}: {answer}"
    values = ref.image(of.shape, of.stride)
    assert answer.offsets().tolist() == [values[i] for i in plain.offsets()], f"{of}: {answer}"
    swizzle = Swizzle(2, 1, 3)
    moved = partition(swizzle @ of)
    assert moved.offsets().tolist() == [ref.swizzle(2, 1, 3, values[i]) for i in plain.offsets()], f"{of}: {moved}"
    return True


COPIES = [
    make_tiled_copy(vector(32), Layout((4, 3), (3, 1)), Layout((1, 2))),
    make_tiled_copy(vector(16), Layout((2, 3)), Layout((3, 1))),
    TiledCopy(vector(16), Layout((4, 3), (1, 4)), (Layout(4, 2), 3)),
]


@pytest.mark.parametrize("number", range(len(COPIES)))
def test_partitions_of_a_copy(number: int) -> None:
    copy, rng = COPIES[number], random.Random(number)
    answered = 0
    for _ in range(150):
        extents = tuple(n * rng.randint(1, 4) * (2 if number == 2 else 1) for n in copy.tile)
        answered += judge(lambda x: copy.partition("dst", x), tensor(rng, extents))
    assert 40 < answered < 150, answered


@pytest.mark.parametrize("mma", [TiledMma(fma(), Layout((3, 2, 1))), TiledMma(warp_mma(), Layout((1, 1, 1)))], ids=str)
def test_partitions_of_a_product(mma: TiledMma) -> None:
    rng = random.Random(5)
    for operand in "ABC":
        answered = 0
        for _ in range(60):
            extents = tuple(n * rng.randint(1, 3) for n in mma.tile_of(operand))
            answered += judge(lambda x, operand=operand: mma.partition(operand, x), tensor(rng, extents))
        assert answered > 15, (operand, answered)


def test_arguments_of_another_kind_are_refused() -> None:
    mma, copy = TiledMma(warp_mma(), Layout((1, 1, 1))), make_tiled_copy(vector(16), Layout((2, 1)), Layout((1, 1)))
    for wrong in (
        lambda: mma.fragment("x", (16, 8)),
        lambda: mma.view("C", 4),
        lambda: copy.retile(4),
        lambda: copy.retile(()),
    ):
        with pytest.raises(AtomError, match=r"tiled for the operands A, B, C|must be a "):
            wrong()


def test_a_tile_that_ends_inside_an_entry_is_refused() -> None:
    """Tiles of 2 rows in rows of 3: the second tile's last row is in the next entry, 6 away."""
    copy = make_tiled_copy(vector(16), Layout((2, 1)), Layout((1, 1)))
    rows = Layout(((3, 4), 1), ((1, 6), 0))
    with pytest.raises(AtomError, match="have 16 places for 12 elements"):
        copy.partition("dst", rows)
    mma = TiledMma(fma(), Layout((2, 1, 1)))
    with pytest.raises(AtomError, match="have 16 places for 12 elements"):
        mma.partition("C", rows)
