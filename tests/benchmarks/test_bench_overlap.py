"""The benchmark of products that overlap: its kernels exist, its check finds wrong results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'layoutgemm[torch]'")

from benchmarks import bench_overlap
from benchmarks.bench_overlap import ALONE, CHECKS, CHUNKS, CONFIGS, OURS, SHAPES, Rank, row, share
from docs import tables
from layoutgemm.distributed.shard_plans import gather_choice, scatter_choice

RECORD = Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "overlap_h100.json"


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_contender_has_a_kernel(shape: tuple[int, int, int], ranks: int) -> None:
    m, n, k = shape
    for config in (None, *CONFIGS.values()):
        gather_choice(m, n // ranks, k, ranks=ranks, config=config)
        scatter_choice(m, n, k // ranks, ranks=ranks, config=config)
    for chunks in CHUNKS:
        assert gather_choice(m, n // ranks, k, ranks=ranks, chunks=chunks).chunks == chunks
        assert scatter_choice(m, n, k // ranks, ranks=ranks, chunks=chunks).chunks == chunks


@pytest.mark.parametrize("sizes", CHECKS)
def test_every_check_has_a_kernel(sizes: tuple[int, int, int, int | None]) -> None:
    m, n, k, chunks = sizes
    gather_choice(m, n, k, ranks=2, chunks=chunks)
    scatter_choice(m, n, k, ranks=2, chunks=chunks)


def test_errors_are_shares_of_the_bound() -> None:
    want, bound = torch.ones(4, dtype=torch.float64), torch.full((4,), 0.5)
    assert share(torch.tensor([1.0, 1.0, 1.25, 1.0]), want, bound) == 0.5
    assert share(torch.tensor([1.0, 1.0, float("nan"), 1.0]), want, bound) == float("inf")


def test_a_line_has_times_and_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_overlap, "timed", lambda me, call: call())

    def refused() -> Any:
        raise RuntimeError("no operator")

    me = Rank(0, 2, 1, tmp_path / "overlap.json")
    row(me, "all-gather 8x8x8", {ALONE: lambda: lambda: 10.0, OURS: lambda: lambda: 12.0, "fused": refused})
    times = json.loads((tmp_path / "overlap.json").read_text())["us"]["all-gather 8x8x8"]
    assert times == {ALONE: 10.0, OURS: 12.0, "fused": "RuntimeError: no operator"}
    assert "12.0 ours (1.200)" in capsys.readouterr().out


def test_the_record_has_every_shape() -> None:
    found = json.loads(RECORD.read_text(encoding="utf-8"))
    for what in ("all-gather", "reduce-scatter"):
        for shape in SHAPES:
            assert {ALONE, OURS} <= found["us"][f"{what} {'x'.join(map(str, shape))}"].keys()
    assert all(max(errors[:2]) <= 1 and not errors[2] for errors in found["correct"].values())
    assert len(tables.overlap_table().splitlines()) == 2 + 2 * len(SHAPES)
