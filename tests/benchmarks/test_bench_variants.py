"""The benchmark of the variants: its kernels are sound, and its experts have as many rows as asked for."""

from __future__ import annotations

import pytest

from benchmarks.bench_variants import GROUPED, drawn, plans


@pytest.mark.slow
def test_every_kernel_holds_its_checks() -> None:
    found = plans()
    assert len(found) == 17
    for plan in found.values():
        plan.check().require()


def test_rows_of_experts() -> None:
    for experts, rows, _, _ in GROUPED:
        sizes = drawn(experts, rows)
        assert len(sizes) == experts and sum(sizes) == rows and sizes == drawn(experts, rows)
    assert 0 in drawn(64, 512)
