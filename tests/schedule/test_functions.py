"""Orders that are functions: what a kernel computes of them."""

from __future__ import annotations

import pytest

from layoutgemm import plan
from layoutgemm.errors import PlanError
from layoutgemm.schedule import Formula, Grouped


def test_sums_and_products_beyond_32_bits_are_refused() -> None:
    """A kernel's wrap: 3 * 1000000009 is negative there, and its tile is outside of C."""
    wraps = Formula.of(lambda t, rows, columns: (t * 1_000_000_009 % 4 // columns, t * 1_000_000_009 % 4 % columns))
    assert wraps.table((1, 2)).tolist() == [[0, 0], [0, 1]]
    with pytest.raises(PlanError, match=r"32-bit integers, and its \('\*', .* reaches 3000000027"):
        wraps.table((2, 2))
    with pytest.raises(PlanError, match="reaches -3999999998"):
        Formula.of(lambda t, rows, columns: (t - 2_000_000_000 - 2_000_000_000 + t, t)).tile(2, (2, 2))
    with pytest.raises(PlanError, match="32768 rows, not 65536"):
        Grouped(group=1 << 16)


def test_the_check_of_a_plan_fails_for_an_order_that_wraps() -> None:
    """Its kernel stored at negative coordinates."""
    wraps = plan(2048, 2048, 64, b="bf16:col", order=lambda t, rows, columns: (t * (2**30 + 1) % rows, t // rows))
    (failed,) = [check for check in wraps.check().checks if not check.ok]
    assert failed.name == "tiles of C" and "reaches 2147483650" in failed.witness
