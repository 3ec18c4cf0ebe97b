"""Number formats: rounding to nearest even, exact decoding, refusals."""

import numpy as np
import pytest

from layoutgemm.dtypes import bf16, dtype, f16, f32, i8
from layoutgemm.errors import OperandError


def test_bf16_round_trip_of_every_pattern():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = bf16.decode(bits)
    again = bf16.encode(values)
    nan = np.isnan(values)
    assert np.array_equal(again[~nan], bits[~nan])
    assert np.isnan(bf16.decode(again[nan])).all()


def test_f16_round_trip_of_every_pattern():
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = f16.decode(bits)
    finite = ~np.isnan(values)
    assert np.array_equal(f16.encode(values)[finite], bits[finite])


def nearest_even(value: float) -> int:
    """bf16 bits by trying the two neighbours: the definition of round to nearest, ties to even."""
    bits = int(np.float32(abs(value)).view(np.uint32)) >> 16
    choices = [b for b in (bits - 1, bits, bits + 1) if 0 <= b <= 0x7F80]
    key = {b: float(np.uint32(b << 16).view(np.float32)) if b < 0x7F80 else 2.0**128 for b in choices}
    best = min(choices, key=lambda b: (abs(key[b] - abs(value)), b & 1))
    return best | (0x8000 if np.signbit(value) else 0)


def test_bf16_rounds_to_nearest_even_from_float32_and_float64():
    rng = np.random.default_rng(1)
    values = list(rng.standard_normal(500)) + [
        1 + 2**-8,
        1 + 3 * 2**-8,
        1 + 2**-8 + 2**-40,
        1 + 2**-8 - 2**-40,
        3.3e38,
        1e-40,
        -0.0,
        2.0**-133,
        3.4e38,
    ]
    for value in values:
        assert int(bf16.encode(np.float64(value))) == nearest_even(value), value
        single = np.float32(value)
        assert int(bf16.encode(single)) == nearest_even(float(single)), single


def test_float64_is_not_rounded_twice():
    # Just above a tie of bf16, but a tie again after rounding to float32: two roundings would go down.
    value = 1 + 2**-8 + 2**-50
    assert bf16.decode(bf16.encode(np.float64(value))) == 1 + 2**-7


def test_float64_beyond_float32_overflows_to_infinity():
    assert bf16.decode(bf16.encode(np.float64(1e300))) == np.inf
    assert bf16.decode(bf16.encode(np.float64(-1e300))) == -np.inf


def test_integers_are_refused_outside_their_range_and_never_rounded():
    with pytest.raises(OperandError, match=r"i8 holds -128..127; element \(1,\) is 200"):
        i8.encode(np.array([3, 200]))
    with pytest.raises(OperandError, match="takes integers"):
        i8.encode(np.array([1.5]))
    assert i8.decode(i8.encode(np.array([-128, 127]))).tolist() == [-128, 127]


def test_names_aliases_and_unknown():
    assert dtype("torch.bfloat16") is bf16 and dtype(np.dtype("float32")) is f32
    with pytest.raises(OperandError, match="unknown number format 'bf17'"):
        dtype("bf17")
    assert (f32.unit_roundoff, f16.unit_roundoff) == (2**-24, 2**-11)
    with pytest.raises(OperandError, match="no unit roundoff"):
        _ = i8.unit_roundoff
    with pytest.raises(OperandError, match="4 bits"):
        _ = dtype("e2m1").bytes
