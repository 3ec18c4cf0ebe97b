"""The contenders of `benchmarks/bench_quantize.py` and its comparison with the CPU, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from benchmarks import bench_quantize as bench


def test_every_contender_runs_and_moves_what_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "ROTATED", 1)
    calls, moved = bench.quantizers(64, 256, "cpu", bench.formula)
    assert moved == 64 * 256 * 3 + 64 * 2 * 4
    values = {name: each[0]() for name, each in calls.items()}
    assert 2 * values["a copy of as many bytes"].nbytes == moved
    pairs = [(name, x) for name, x in values.items() if isinstance(x, tuple)]
    both, apart = (values.pop(name) for name in ("quantize_both", "quantize 1x128, then of the transpose"))
    assert all(
        torch.equal(x.float(), y.float()) for one, two in zip(both, apart, strict=True) for x, y in zip(one, two)
    )
    for name, (found, _) in [(name, x) for name, x in pairs if name in values]:
        assert found.dtype == torch.float8_e4m3fn and found.numel() == 64 * 256, name
    (v, s), (w, t) = values["quantize 1x128"], values["torch.compile 1x128"]
    one, two = (x.float().unflatten(-1, (-1, 128)) * scale[..., None] for x, scale in ((v, s), (w, t)))
    assert (one - two).abs().max() <= 2.0**-3 * one.abs().max()
    calls, seconds = bench.products(64, 128, 256, "cpu")
    results = {name: each[0]() for name, each in calls.items()}
    assert seconds > 0 and torch.equal(results["to bf16"], results["to float32"].bfloat16())
    want, of_want = results["to float32, then quantize"]
    for name in ("quantised", "quantised by the product's kernel"):
        values_of, scales = results[name]
        assert torch.equal(values_of.view(torch.uint8), want.view(torch.uint8)) and torch.equal(scales, of_want)


def test_other_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert bench.differing("cpu") == []
    plain, count = layoutgemm.quantize, iter(range(100))

    def wrong(x: Any, recipe: str = bench.BLOCK) -> Any:
        values, scales = plain(x, recipe)
        return values, scales * (2 if next(count) == 2 else 1)

    monkeypatch.setattr(layoutgemm, "quantize", wrong)
    assert bench.differing("cpu") == [bench.SQUARE]
    monkeypatch.setattr(layoutgemm, "quantize_both", lambda x: (plain(x), plain(-x.mT)))
    assert bench.differing("cpu") == ["both ways"]
