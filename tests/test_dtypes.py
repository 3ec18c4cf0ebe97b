"""Number formats: rounding to nearest even, exact decoding, refusals."""

from itertools import pairwise

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


# Formats of 8 bits or less, from their definition: OCP 8-bit floating point, OCP microscaling formats.


def value_of(name: str, code: int) -> float:
    """The value of a code, field by field."""
    if name == "ue8m0":
        return float("nan") if code == 255 else 2.0 ** (code - 127)
    exponent_bits, mantissa_bits = int(name[-3]), int(name[-1])
    sign = 1.0 if name[0] == "u" else -1.0 if code >> (exponent_bits + mantissa_bits) & 1 else 1.0
    exponent, mantissa = code >> mantissa_bits & (1 << exponent_bits) - 1, code & (1 << mantissa_bits) - 1
    last = exponent == (1 << exponent_bits) - 1
    if name == "e5m2" and last:
        return float("nan") if mantissa else sign * float("inf")
    if name in ("e4m3", "ue4m3") and last and mantissa == 7:
        return float("nan")
    bias = (1 << exponent_bits - 1) - 1
    if exponent == 0:
        return sign * mantissa * 2.0 ** (1 - bias - mantissa_bits)
    return sign * (1 + mantissa / (1 << mantissa_bits)) * 2.0 ** (exponent - bias)


NARROW = ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1", "ue8m0", "ue4m3")


def codes_of(name: str) -> range:
    return range(128 if name == "ue4m3" else 1 << dtype(name).bits)


@pytest.mark.parametrize("name", NARROW)
def test_every_code_of_a_narrow_format(name):
    codes = np.array(codes_of(name))
    decoded = dtype(name).decode(codes)
    assert np.array_equal(decoded, np.array([value_of(name, c) for c in codes]), equal_nan=True)
    finite = np.isfinite(decoded)
    assert np.array_equal(dtype(name).encode(decoded[finite]), codes[finite])


@pytest.mark.parametrize("name", NARROW)
def test_narrow_formats_round_to_nearest_even_and_saturate(name):
    values = {c: value_of(name, c) for c in codes_of(name)}
    finite = {c: v for c, v in values.items() if np.isfinite(v) and not np.signbit(v)}
    ordered = sorted(finite.values())
    rng = np.random.default_rng(3)
    low = [(a + b) / 2 for a, b in pairwise(ordered)]
    tries = [*ordered, *low, *np.nextafter(low, 0), *np.nextafter(low, np.inf), ordered[-1] * 1.5, np.inf]
    tries += list(rng.uniform(0, ordered[-1] if name != "ue8m0" else 8, 200))
    for value in tries:
        best = min(finite, key=lambda c: (abs(finite[c] - min(value, ordered[-1])), c & 1))
        assert int(dtype(name).encode(value)) == best, value
        if name[0] != "u":
            assert int(dtype(name).encode(-value)) == best | 1 << dtype(name).bits - 1, value
    nan = int(dtype(name).encode(np.nan))
    assert nan == {"e4m3": 0x7F, "ue4m3": 0x7F, "e5m2": 0x7F, "ue8m0": 0xFF}.get(name, max(finite))


def test_unsigned_floats_refuse_negative_values():
    with pytest.raises(OperandError, match=r"ue8m0 has no sign: -2\.0"):
        dtype("ue8m0").encode([1.0, -2.0])


def test_tf32_keeps_ten_bits_of_the_mantissa_and_rounds_once():
    tf32 = dtype("tf32")
    assert tf32.encode([1.0, 1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-11 + 2.0**-50]).tolist() == [
        0x3F800000, 0x3F800000, 0x3F804000, 0x3F802000,
    ]  # fmt: skip
    assert tf32.encode(3.4025e38) == 0x7F800000 and np.isnan(tf32.decode(tf32.encode(np.nan)))
    assert tf32.decode(np.array([0x3F801FFF])).tolist() == [1.0]
    assert np.isnan(tf32.decode(np.array([0x7F800001]))).all()


def test_integers_narrower_than_a_byte():
    i4, u4, b1 = dtype("i4"), dtype("u4"), dtype("b1")
    assert i4.decode(np.arange(16)).tolist() == [*range(8), *range(-8, 0)]
    assert i4.encode(np.arange(-8, 8)).tolist() == [*range(8, 16), *range(8)]
    assert u4.decode(u4.encode(np.arange(16))).tolist() == list(range(16))
    assert b1.encode(np.array([0, 1])).tolist() == [0, 1]
    with pytest.raises(OperandError, match=r"i4 holds -8..7; element \(0,\) is 8"):
        i4.encode(np.array([8]))
    assert i4.storage is np.uint8


@pytest.mark.parametrize("name", ["bf16", "tf32", "e5m2", "ue8m0"])
def test_integers_of_64_bits_are_rounded_once(name: str) -> None:
    """Beside the middle of two values, where float64 has no room for the last bits."""
    kind = dtype(name)
    for sign in (1,) if name == "ue8m0" else (1, -1):
        low, high = (2**62, 2**62 + 2 ** (63 - kind.mantissa)) if name != "e5m2" else (49152, 57344)
        middle = np.array([sign * ((low + high) // 2 + step) for step in (-1, 1)])
        assert kind.decode(kind.encode(middle)).tolist() == [sign * float(low), sign * float(high)]
    assert dtype("bf16").decode(dtype("bf16").encode(np.array([-(2**63)]))).tolist() == [-(2.0**63)]


@pytest.mark.parametrize("values", [[1 + 2j], ["1.5"], [None], [np.datetime64("2020-01-01")], [[1], [2, 3]], [10**30]])
@pytest.mark.parametrize("name", ["f64", "f32", "f16", "bf16", "tf32", "e2m1"])
def test_what_is_no_real_number_is_no_value(name: str, values: list[object]) -> None:
    with pytest.raises(OperandError, match=f"^{name} takes"):
        dtype(name).encode(values)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["f64", "f16", "bf16", "tf32", "e4m3", "e2m1", "i4", "u8"])
def test_what_is_no_integer_is_no_bits(name: str) -> None:
    for bits in (np.array([1.7]), np.array(["1"])):
        with pytest.raises(OperandError, match=f"^bits of {name} are unsigned integers, not {bits.dtype}"):
            dtype(name).decode(bits)
    assert dtype(name).decode(np.array([])).size == 0
