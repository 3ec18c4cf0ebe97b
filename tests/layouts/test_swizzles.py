"""Swizzles: bits against brute force, units against byte addresses, composed layouts against their equation."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from layoutgemm.errors import LayoutError, SwizzleError
from layoutgemm.layouts import ComposedLayout, Layout, Swizzle
from tests.layouts import reference as ref
from tests.layouts.strategies import Pair, pairs

# (B, M, S) with B <= |S|, both directions
PARAMETERS = [(b, m, s) for b in range(4) for m in range(5) for s in (-4, -3, -2, -1, 1, 2, 3, 4) if b <= abs(s)]


class Bits:
    """A stand-in for a traced integer with bit operations only."""

    def __init__(self, value: int) -> None:
        self.value = value

    def __bool__(self) -> bool:
        raise TypeError("a traced value has no truth value at trace time")

    def __xor__(self, other: object) -> Bits:
        return Bits(self.value ^ plain(other))

    def __and__(self, other: object) -> Bits:
        return Bits(self.value & plain(other))

    def __rshift__(self, other: object) -> Bits:
        return Bits(self.value >> plain(other))

    def __lshift__(self, other: object) -> Bits:
        return Bits(self.value << plain(other))

    __rxor__, __rand__ = __xor__, __and__


def plain(value: object) -> int:
    return value.value if isinstance(value, Bits) else int(value)


@pytest.mark.parametrize("bms", PARAMETERS, ids=str)
def test_bits(bms: tuple[int, int, int]) -> None:
    swizzle = Swizzle(*bms)
    truth = [ref.swizzle(*bms, x) for x in range(1 << 12)]
    assert [swizzle(x) for x in range(1 << 12)] == truth
    array = swizzle(np.arange(1 << 12))
    assert array.dtype == np.int64 and array.tolist() == truth
    assert [plain(swizzle(Bits(x))) for x in range(0, 1 << 12, 37)] == truth[::37]
    assert all(swizzle(swizzle(x)) == x for x in range(1 << 12)), "with B <= |S| source and target never meet"
    assert sorted(truth) == list(range(1 << 12))
    assert (swizzle.bits, swizzle.base, swizzle.shift, swizzle.unit) == (*bms, None)


def test_known_values() -> None:
    """128-byte swizzle on byte addresses: 16-byte chunk c of 128-byte row r goes to chunk c XOR (r mod 8)."""
    swizzle = Swizzle(3, 4, 3, unit="bytes")
    for row in range(32):
        for chunk in range(8):
            assert swizzle(row * 128 + chunk * 16 + 5) == row * 128 + (chunk ^ (row % 8)) * 16 + 5
    assert Swizzle(0, 4, 3)(12345) == 12345


def test_span_is_the_period() -> None:
    """Addresses that agree beyond the span swizzle alike: adding a multiple of the span commutes with the swizzle."""
    for b, m, s in PARAMETERS:
        period = 1 << (m + abs(s) + b)
        swizzle = Swizzle(b, m, s)
        assert all(swizzle(x + 5 * period) == swizzle(x) + 5 * period for x in range(0, period, 3))


# Units ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [4, 8, 16, 32, 64, 128])
@pytest.mark.parametrize("bms", [(1, 4, 3), (2, 4, 3), (3, 4, 3), (3, 4, -3)], ids=str)
def test_byte_swizzle_on_elements(bms: tuple[int, int, int], bits: int) -> None:
    """The law of recast: byte address of the swizzled element = swizzled byte address of the element."""
    swizzle = Swizzle(*bms, unit="bytes")
    elements = swizzle.recast(bits)
    assert elements.unit == bits and elements.recast(8) == swizzle
    assert (elements.bits, elements.shift) == (swizzle.bits, swizzle.shift)
    for x in range(1 << 12):
        if bits >= 8:
            width = bits // 8
            assert elements(x) * width == swizzle(x * width)
        else:
            assert elements(2 * x) == 2 * swizzle(x) and elements(2 * x + 1) == 2 * swizzle(x) + 1


@given(st.sampled_from(PARAMETERS), st.sampled_from((4, 8, 16, 32, 64)), st.sampled_from((4, 8, 16, 32, 64)))
def test_recast_in_bits(bms: tuple[int, int, int], old: int, new: int) -> None:
    swizzle = Swizzle(*bms, unit=old)
    shift = old.bit_length() - new.bit_length()
    if bms[1] + shift < 0:
        assume(bms[0] > 0)
        with pytest.raises(LayoutError, match="exchanges parts of the wider element"):
            swizzle.recast(new)
        return
    again = swizzle.recast(new)
    assert (again.bits, again.base, again.shift, again.unit) == (bms[0], bms[1] + shift, bms[2], new)
    assert again.recast(old) == swizzle


def test_bytes_is_eight_bits() -> None:
    assert Swizzle(3, 4, 3, unit="bytes").unit == 8
    assert Swizzle(3, 4, 3, unit="bytes") == Swizzle(3, 4, 3, unit=8)
    assert Swizzle(3, 4, 3) != Swizzle(3, 4, 3, unit=8)


def test_units_print() -> None:
    texts = {str(Swizzle(3, 4, 3, unit=u)) for u in (None, 8, 16)}
    assert len(texts) == 3, "the unit is part of what is printed"
    assert "byte" in str(Swizzle(3, 4, 3, unit="bytes"))
    assert "16" in str(Swizzle(3, 3, 3, unit=16))


def test_odd_widths_are_refused() -> None:
    with pytest.raises(LayoutError, match="12, is no power of two"):
        Swizzle(3, 4, 3, unit="bytes").recast(12)
    with pytest.raises(LayoutError, match="must be at least 1, not 0"):
        Swizzle(3, 4, 3, unit="bytes").recast(0)


def test_no_unit_cannot_be_recast() -> None:
    """A swizzle of whatever the layout counts does not know its width."""
    with pytest.raises(LayoutError, match="no unit to recast from"):
        Swizzle(3, 4, 3).recast(16)


# Composed layouts -----------------------------------------------------------------------------------------------------


@given(pairs(limit=400), st.sampled_from(PARAMETERS), st.integers(0, 300))
def test_composed_layout_is_its_equation(pair: Pair, bms: tuple[int, int, int], offset: int) -> None:
    composed = ComposedLayout(Swizzle(*bms), offset, Layout(*pair))
    truth = [ref.swizzle(*bms, offset + v) for v in ref.image(*pair)]
    assert [composed(i) for i in range(composed.size)] == truth
    assert composed.offsets().tolist() == truth and composed(np.arange(len(truth))).tolist() == truth
    assert composed.shape == pair[0] and composed.size == len(truth)
    for i in range(0, len(truth), 7):
        assert composed(ref.coordinate(i, pair[0])) == truth[i]
    assert (composed.swizzle, composed.offset, composed.layout) == (Swizzle(*bms), offset, Layout(*pair))


def test_composed_recast_keeps_byte_addresses() -> None:
    """A 16-bit tile seen as 8-bit: the same bytes in the same order."""
    composed = ComposedLayout(Swizzle(3, 3, 3, unit=16), 0, Layout((8, 64), (64, 1)))
    narrow = composed.recast(8, 16)
    assert narrow.swizzle == Swizzle(3, 4, 3, unit=8)
    assert narrow.layout == Layout((8, 128), (128, 1))
    for row in range(8):
        for column in range(64):
            for byte in range(2):
                assert narrow(row, 2 * column + byte) == 2 * composed(row, column) + byte


def test_composed_recast_moves_the_offset() -> None:
    composed = ComposedLayout(Swizzle(2, 3, 3, unit=16), 24, Layout((8, 32), (32, 1)))
    narrow = composed.recast(8, 16)
    assert [narrow(r, 2 * c) for r in range(8) for c in range(32)] == [
        2 * composed(r, c) for r in range(8) for c in range(32)
    ]
    with pytest.raises(LayoutError, match="the offset 25 is no multiple of 2"):  # in the middle of 32 bits
        ComposedLayout(Swizzle(2, 3, 3, unit=16), 25, Layout((8, 32), (32, 1))).recast(32, 16)


def test_swizzling_by_mismatched_units_is_an_error() -> None:
    inner = ComposedLayout(Swizzle(2, 3, 3, unit=16), 0, Layout((8, 32), (32, 1)))
    for said in (8, 32):
        with pytest.raises(SwizzleError, match=f"counts 16 bits, and the layout is said to count {said}"):
            inner.recast(16, said)


def test_tile_modes_commute_with_the_swizzle_beyond_its_span() -> None:
    """A tile of 8 rows of 128 bytes is a period: moving by whole tiles adds, moving inside does not."""
    rng = random.Random(4)
    atom = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((8, 128), (128, 1)))
    for _ in range(200):
        r, c, t = rng.randrange(8), rng.randrange(128), rng.randrange(5)
        moved = ComposedLayout(Swizzle(3, 4, 3), t * 1024, Layout((8, 128), (128, 1)))
        assert moved(r, c) == atom(r, c) + t * 1024


def test_nested_swizzles_have_one_unit() -> None:
    """Swizzle of a swizzled layout: equal units or none compose to the composed function, others are an error."""
    layout = Layout((8, 64), (64, 1))
    for outer, inner in ((None, None), (16, 16), (None, 16), (16, None)):
        nested = ComposedLayout(
            Swizzle(1, 0, 1, unit=outer), 3, ComposedLayout(Swizzle(2, 3, 3, unit=inner), 5, layout)
        )
        for i in range(0, layout.size, 5):
            assert nested(i) == ref.swizzle(1, 0, 1, 3 + ref.swizzle(2, 3, 3, 5 + layout(i)))
        assert nested.offsets().tolist() == [nested(i) for i in range(layout.size)]
    for outer, inner in ((8, 16), ("bytes", 16), (16, 8)):
        with pytest.raises(SwizzleError) as caught:
            ComposedLayout(Swizzle(1, 0, 1, unit=outer), 0, ComposedLayout(Swizzle(2, 3, 3, unit=inner), 0, layout))
        assert "16" in str(caught.value)


def test_swizzle_in_front_of_a_layout() -> None:
    layout = Layout((8, 64), (64, 1))
    assert Swizzle(3, 3, 3) @ layout == Swizzle(3, 3, 3).compose(layout) == ComposedLayout(Swizzle(3, 3, 3), 0, layout)


def test_swizzled_operations_act_inside() -> None:
    """A swizzled layout's coord, divide, product, coalesce, dice and with_shape are its inner layout's."""
    inner = Layout((8, 64), (64, 1))
    composed = ComposedLayout(Swizzle(3, 3, 3), 16, inner)
    pairs_of_results = [
        (composed.zipped_divide((4, 8)), inner.zipped_divide((4, 8))),
        (composed.logical_divide((4, 8)), inner.logical_divide((4, 8))),
        (composed.tiled_divide((4, 8)), inner.tiled_divide((4, 8))),
        (composed.flat_divide((4, 8)), inner.flat_divide((4, 8))),
        (composed.coalesce(), inner.coalesce()),
        (composed.flatten(), inner.flatten()),
        (composed.with_shape((16, 32)), inner.with_shape((16, 32))),
        (composed.tile_to_shape((16, 128)), inner.tile_to_shape((16, 128))),
        (composed.logical_product(Layout(3)), inner.logical_product(Layout(3))),
        (composed.blocked_product(Layout((2, 3))), inner.blocked_product(Layout((2, 3)))),
        (composed.raked_product(Layout((2, 3))), inner.raked_product(Layout((2, 3)))),
    ]
    for ours, plain_one in pairs_of_results:
        assert ours.shape == plain_one.shape
        assert [ours(i) for i in range(0, ours.size, 3)] == [
            ref.swizzle(3, 3, 3, 16 + plain_one(i)) for i in range(0, plain_one.size, 3)
        ]
    assert composed.coord(70) == inner.coord(70)
    assert (composed.rank, composed.depth, composed.size) == (inner.rank, inner.depth, inner.size)
    assert composed.cosize == max(composed(i) for i in range(composed.size)) + 1
    assert composed.is_injective() and not ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 2), (1, 1))).is_injective()


def test_the_cosize_of_a_swizzled_layout_is_found_in_the_last_span() -> None:
    draw = random.Random(5)
    for _ in range(300):
        modes = draw.randint(1, 4)
        shape = tuple(draw.choice([1, 2, 3, 4, 5, 8]) for _ in range(modes))
        inner = Layout(shape, tuple(draw.choice([0, 1, 2, -3, 4, -8, 16, 31, 64]) for _ in range(modes)))
        swizzle = Swizzle(draw.randint(0, 3), draw.randint(0, 4), draw.choice([3, 4, -3, 5, -5]))
        composed = ComposedLayout(swizzle, draw.choice([0, 5, 64, 1000, -7]), inner)
        assert composed.cosize == 1 + max(composed(i) for i in range(composed.size)), composed
    huge = ComposedLayout(Swizzle(3, 4, 3), 64, Layout((1 << 40, 1 << 30), (1 << 30, 1)))
    assert huge.cosize == (1 << 70) + 64  # of 2^70 values none is enumerated


def test_swizzled_equivalence() -> None:
    layout = Layout((8, 64), (64, 1))
    a = ComposedLayout(Swizzle(3, 3, 3), 0, layout)
    assert a.equivalent(ComposedLayout(Swizzle(3, 3, 3), 0, layout.coalesce()))
    assert a.equivalent(ComposedLayout(Swizzle(3, 3, -3), 0, layout)).__bool__() is False
    for other in (ComposedLayout(Swizzle(2, 3, 3), 0, layout), ComposedLayout(Swizzle(3, 3, 3), 1, layout), layout):
        verdict = a.equivalent(other)
        assert not verdict
        first = next(i for i in range(a.size) if a(i) != other(i))
        where = verdict.coord if isinstance(verdict.coord, int) else ref.flat_index(verdict.coord, layout.shape)
        assert (where, verdict.left, verdict.right) == (first, a(first), other(first))


def test_power_of_two_casts_of_a_swizzle() -> None:
    assert Swizzle(3, 4, 3, 8).upcast(2) == Swizzle(3, 3, 3, 16) == Swizzle(3, 4, 3, 8).recast(16)
    assert Swizzle(3, 3, 3, 16).downcast(4) == Swizzle(3, 5, 3, 4)
    for call in (Swizzle(3, 1, 3, 8).upcast, Swizzle(3, 4, 3, 8).upcast):
        with pytest.raises(LayoutError):
            call(3)
    with pytest.raises(LayoutError, match="its M would be -1"):
        Swizzle(3, 1, 3, 8).upcast(4)
