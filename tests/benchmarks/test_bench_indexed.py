"""The operands and the reference of `benchmarks/bench_indexed.py`, on the CPU."""

from __future__ import annotations

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_indexed as bench


@pytest.mark.parametrize("shape", [bench.Shape(40, 24, 16, 9), bench.Shape(40, 24, 16, 9, 3)], ids=str)
def test_the_reference_is_the_product_of_named_rows(shape: bench.Shape) -> None:
    x = bench.operands(shape, 1, "cpu")
    want = bench.exact(x)
    assert torch.allclose(x.ours(rows=x.rows).double(), want, rtol=2.0**-8, atol=1e-6)
    out = x.ours(out=torch.zeros(40, 24).bfloat16(), rows=x.rows, out_rows=x.out_rows, row_weights=x.weights)
    scattered = out[x.out_rows.long()].double()
    assert torch.allclose(scattered, want * x.weights.double()[:, None], rtol=2.0**-8, atol=1e-6)
    assert not torch.allclose(x.ours(rows=x.rows.roll(1)).double(), want, rtol=2.0**-8, atol=1e-6)


def test_every_shape_is_timed_by_its_name() -> None:
    names = [str(shape) for shape in bench.TIMED]
    assert len({*names}) == len(names) and names[-1] == "512x1536x2048 of 64 rows, 128 groups"
