"""Arithmetic that only some official examples use: copysign, minima that pass NaN on, redux of floats, fixed point."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.dtypes import dtype
from tests.emulator.run_ptx import LANE, run


def f32(*values: float) -> np.ndarray:
    return np.resize(np.array(values, dtype=np.float32), 32)


def computed(text: str, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """%f2 of each lane, of %f0 from a and %f1 from b; text may use %r0 and up."""
    body = f"""{LANE}
      add.u64 %d0, %a, %d31; add.u64 %d1, %b, %d31; add.u64 %d2, %c, %d31;
      ld.global.f32 %f0, [%d0]; ld.global.f32 %f1, [%d1];
      {text}
      st.global.f32 [%d2], %f2;"""
    return run(body, {"a": a, "b": b, "c": np.zeros(32, np.float32)}, target="sm_100a")["c"]


def test_copysign_takes_the_sign_of_the_first_and_the_magnitude_of_the_second() -> None:
    a, b = f32(1.5, -2, 0.0, -0.0), f32(-3, 4, -5, 6)
    got = computed("copysign.f32 %f2, %f0, %f1;", a, b)
    assert got.view(np.uint32).tolist() == np.copysign(b, a).view(np.uint32).tolist()


@pytest.mark.parametrize(("name", "function"), [("max", np.maximum), ("min", np.minimum)])
def test_three_operands_and_nan(name: str, function: np.ufunc) -> None:
    a, b = f32(1, 5, -2, np.nan), f32(3, np.nan, -7, 2)
    third = np.float32(2.5)
    bits = f"0f{int(third.view(np.uint32)):08x}"
    got = computed(f"{name}.NaN.f32 %f2, %f0, %f1, {bits};", a, b)
    np.testing.assert_array_equal(got, function(function(a, b), third))
    got = computed(f"{name}.f32 %f2, %f0, %f1, {bits};", a, b)
    plain = np.fmax if name == "max" else np.fmin
    np.testing.assert_array_equal(got, plain(plain(a, b), third))


def test_redux_of_floats() -> None:
    a = np.arange(32, dtype=np.float32) - 40
    assert set(computed("redux.sync.max.f32 %f2, %f0, -1;", a, a).tolist()) == {-9.0}
    assert set(computed("redux.sync.min.NaN.f32 %f2, %f0, -1;", a, a).tolist()) == {-40.0}
    a[3] = np.nan
    assert set(computed("redux.sync.max.f32 %f2, %f0, -1;", a, a).tolist()) == {-9.0}
    assert np.isnan(computed("redux.sync.max.NaN.f32 %f2, %f0, -1;", a, a)).all()


def test_fixed_point_pairs_scale_each_half() -> None:
    """s2f6: an 8-bit two's complement integer over 64; the scale of each is a power of two."""
    words = np.arange(32, dtype=np.uint32) * 0x0711 & 0xFFFF
    body = f"""{LANE}
      add.u64 %d0, %a, %d31; add.u64 %d1, %c, %d31;
      ld.global.u32 %r0, [%d0]; cvt.u16.u32 %h0, %r0; mov.b16 %h1, 0x8180;
      cvt.rn.satfinite.scaled::n2::ue8m0.bf16x2.s2f6x2 %r1, %h0, %h1;
      st.global.u32 [%d1], %r1;"""
    got = run(body, {"a": words, "c": np.zeros(32, np.uint32)}, target="sm_100a")["c"]
    low, up = (((words >> at & 255) ^ 128).astype(np.int64) - 128 for at in (0, 8))
    bf16 = dtype("bf16")
    assert got.tolist() == (bf16.encode(low / 64 * 2.0) | bf16.encode(up / 64 * 4.0).astype(np.uint32) << 16).tolist()
