"""Scales of any value: negative, zero, subnormal, infinite and NaN, by kernel, executor and reference.

The contract of docs/scaled_grouped.md, "Values of scales": factors are float32 products of IEEE 754.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, quantize, scaled_matmul
from layoutgemm.torch_op.scaled_grouped import scaled
from tests.torch_op.test_operator import F32, emulated, integers
from tests.torch_op.test_scaled_kernels import E4M3, SMALL, scaled_case

pytestmark = pytest.mark.dsl
INF, NAN = float("inf"), float("nan")
SPECIAL = (-1.0, -0.0, 0.0, NAN, INF, -INF, 2.0**-140, 1.0)
LARGE = 3e38  # whose product with 4 is no float32


def special(name: str) -> dict[str, Any]:
    """Operands whose scales have each special value, before sums that are zero and others."""
    given, _ = scaled_case(name)
    given["a"][20:40] = 0
    sa, sb = (torch.ones_like(given[each]) for each in ("scale_a", "scale_b"))
    values = torch.tensor([*SPECIAL, LARGE])
    if name == "rows":
        sa[:9, 0] = sa[20:29, 0] = values
        sb[0, :9], sb[0, 9] = values, 4.0
    else:
        rows = min(9, len(sa))
        sa[:rows, 1] = values[:rows]
        sa[20:29, 1] = values[: len(sa[20:29])]
        if len(sb) > 9:
            sb[:9, 1], sb[9] = values, 4.0
        else:
            sb[0] = torch.tensor([-2.0, 4.0, 1.0])
            sa[0, 0] = -0.0
    return {**given, "scale_a": sa, "scale_b": sb}


def stated(name: str, given: dict[str, Any]) -> Any:
    """The contract in NumPy's float32: of rows (sum * scale_a) * scale_b, of blocks sums * (scale_a * scale_b)."""
    a, b = (given[each].double().numpy() for each in "ab")
    sa, sb = (given[each].numpy() for each in ("scale_a", "scale_b"))
    with np.errstate(all="ignore"):
        if name == "rows":
            return ((a @ b).astype(np.float32) * sa) * sb
        total = np.zeros((len(a), b.shape[1]), np.float32)
        for block in range(-(-a.shape[1] // 128)):
            at = slice(128 * block, 128 * (block + 1))
            rows, columns = (np.repeat(x[:, block], 128 if len(x) < 20 else 1) for x in (sa, sb))
            factor = rows[: len(a), None] * columns[None, : b.shape[1]]
            total = total + (a[:, at] @ b[at]).astype(np.float32) * factor
        return total


def same(x: Any, y: Any) -> Any:
    """True where both are NaN, or the same number with the same sign."""
    x, y = (torch.as_tensor(each).float() for each in (x, y))
    return ((x == y) & (torch.signbit(x) == torch.signbit(y))) | (x.isnan() & y.isnan())


CASES = ("rows", "1x128, 1x128", "1x128, 128x128", "128x128, 128x128")


@pytest.mark.parametrize("name", [x if x in CASES[:2] else pytest.param(x, marks=pytest.mark.slow) for x in CASES])
def test_scales_of_any_value_are_factors(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given = special(name)
    want = stated(name, given)
    assert len(given["scale_a"]) == 1 or all(found.any() for found in (np.isnan(want), want == 0, want < 0))
    reference = scaled_matmul(**given, out_dtype=F32)
    a, b, sa, sb = (given[each] for each in ("a", "b", "scale_a", "scale_b"))
    call = scaled.check_scaled(a, sa, b, sb, scaled.NO_FINISH, F32, ("", ""))
    with emulated(monkeypatch):
        assert same(scaled_matmul(**given, out_dtype=F32, config=SMALL), want).all()
        plan = scaled.plan_of(call, a, b, scaled.BiasActivation(fast=False), SMALL)[0]
    if name != "rows":  # whose epilogue no executor has
        arrays = [x.float().numpy() for x in (a, b)]
        executed = plan.run(*arrays, device="reference", given={"scale_a": sa.numpy(), "scale_b": sb.numpy()})
        assert same(executed.c, want).all()
    # float64 holds the products that are no float32
    assert same(reference, want)[: len(SPECIAL), : len(SPECIAL)].all()


def test_values_of_a_tensors_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    given, plain = scaled_case("tensors")
    with emulated(monkeypatch) as calls:
        for value in SPECIAL:
            one = torch.tensor(value)
            got = scaled_matmul(given["a"], one, given["b"], out_dtype=F32, config=SMALL)
            assert same(got, (plain.float() * one)).all(), value
            assert same(got, scaled_matmul(given["a"].clone(), one, given["b"], out_dtype=F32, config=SMALL)).all()
        assert len(calls) == 2 * len(SPECIAL)


def test_special_values_are_stored_as_by_quantize(monkeypatch: pytest.MonkeyPatch) -> None:
    """A quantised block with a NaN or an infinity is NaN; float8 without scales saturates."""
    a, b = integers(70, 256, dtype=E4M3), integers(128, 256, dtype=E4M3).mT
    sa, sb = torch.ones(70, 2), torch.ones(1, 2)
    sa[: len(SPECIAL), 0] = torch.tensor(SPECIAL)
    wide = Sm90Config((64, 128), consumers=1, stages=2, loader="warp")
    want, of_want = quantize(scaled_matmul(a, sa, b, sb, out_dtype=F32))
    plain = scaled_matmul(a, sa, b, sb, out_dtype=E4M3)
    with emulated(monkeypatch):
        got, of_got = scaled_matmul(a, sa, b, sb, out_dtype=E4M3, out_recipe="BlockWise1x128", config=wide)
        stored = scaled_matmul(a, sa, b, sb, out_dtype=E4M3, config=wide)
    assert same(got, want).all() and same(of_got, of_want).all() and same(stored, plain).all()
    assert got[3:6].float().isnan().all()  # of NaN and both infinities
    finite = stored[4:6].float()
    assert (finite.isnan() | (finite.abs() == 448)).all() and stored[3].float().isnan().all()
