"""The benchmark of products that overlap: its kernels exist, its check finds wrong results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_overlap, parallel_block
from benchmarks.bench_overlap import ALONE, CHECKS, GATHERS, OURS, SCATTERS, SHAPES, Rank, row, share
from docs import tables
from layoutgemm.distributed import Transfer
from layoutgemm.distributed.shard_plans import gather_choice, scatter_choice

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
RECORDS = ("two_h200", "four_h200", "two_h100", "four_h100")


@pytest.mark.parametrize("ranks", [2, 8])
@pytest.mark.parametrize("kind", ["bf16", "e4m3"])
@pytest.mark.parametrize("shape", SHAPES)
def test_every_contender_has_a_kernel(shape: tuple[int, int, int], kind: str, ranks: int) -> None:
    m, n, k = shape
    gathers, scatters = (GATHERS.values(), SCATTERS.values()) if kind == "bf16" else ((), ())
    for gather_way in (None, *gathers):
        found = gather_choice(m, n // ranks, k, ranks=ranks, kind=kind, transfer=gather_way).transfer
        assert gather_way is None or found.chunks == (gather_way.chunks or found.chunks)
    for way in (None, *scatters):
        found = scatter_choice(m, n, k // ranks, ranks=ranks, kind=kind, transfer=way).transfer
        assert way is None or (found.chunks == way.chunks and way.by in (None, found.by))


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("case", CHECKS, ids=str)
def test_every_check_has_a_kernel(case: tuple[int, int, int, Transfer, Transfer | None], ranks: int) -> None:
    m, n, k, gather_way, scatter_way = case
    found = [gather_choice(m, n, k, ranks=ranks, transfer=gather_way)]
    if scatter_way is not None:
        found.append(scatter_choice(m, n, k, ranks=ranks, transfer=scatter_way))
    assert all(each.plan.check() for each in found)


@pytest.mark.parametrize("overlaps", [True, False])
def test_the_block_of_one_rank_is_that_of_torch(monkeypatch: pytest.MonkeyPatch, overlaps: bool) -> None:
    """Gradients of all weights, in a group of one rank, beside plain torch's."""
    for name, value in (("TOKENS", 16), ("WIDTH", 32), ("HIDDEN", 64), ("HEADS", 4), ("GROUPS", 2), ("HEAD", 8)):
        monkeypatch.setattr(parallel_block, name, value)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        block, plain = parallel_block.Block(0, 1, overlaps), parallel_block.Block(0, 1, False)
        monkeypatch.setattr(torch.distributed, "reduce_scatter_tensor", lambda mine, whole: mine.copy_(whole))
        block.step()
        linear = torch.nn.functional.linear
        for name in ("Gathered", "Scattered"):
            stand_in = type(name, (), {"apply": staticmethod(lambda x, w: linear(x, w))})
            monkeypatch.setattr(parallel_block, name, stand_in)
        plain.step()
    finally:
        torch.distributed.destroy_process_group()
    for one, two in zip(block.parameters, plain.parameters, strict=True):
        assert (one.grad.double() - two.grad.double()).abs().max() <= 2.0**-5 * two.grad.double().abs().max()


def test_errors_are_shares_of_the_bound() -> None:
    want, bound = torch.ones(4, dtype=torch.float64), torch.full((4,), 0.5)
    assert share(torch.tensor([1.0, 1.0, 1.25, 1.0]), want, bound) == 0.5
    assert share(torch.tensor([1.0, 1.0, float("nan"), 1.0]), want, bound) == float("inf")


def test_a_line_has_times_and_reasons(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_overlap, "once", lambda call: (call(), 5.0))
    monkeypatch.setattr(Rank, "largest", lambda me, *values: list(values))

    def refused() -> Any:
        raise RuntimeError("no operator")

    me = Rank(0, 2, 1, tmp_path / "overlap.json")
    row(me, "all-gather 8x8x8", {ALONE: lambda: lambda: 10.0, OURS: lambda: lambda: 12.0, "fused": refused})
    times = json.loads((tmp_path / "overlap.json").read_text())["us"]["all-gather 8x8x8"]
    assert times == {ALONE: 10.0, OURS: 12.0, "fused": "RuntimeError: no operator"}
    assert "12.0 ours (1.200, host 5)" in capsys.readouterr().out


@pytest.mark.parametrize("name", RECORDS)
def test_the_records_have_every_shape(name: str) -> None:
    found = json.loads((RESULTS / f"overlap_{name}.json").read_text(encoding="utf-8"))
    for what in ("all-gather", "reduce-scatter"):
        for kind in ("bf16", "float8"):
            for shape in SHAPES:
                assert {ALONE, OURS} <= found["us"][f"{what} {kind} {'x'.join(map(str, shape))}"].keys()
    assert all(max(errors) <= 1 for case, errors in found["correct"].items() if "block" not in case)
    assert not any(any(errors[2:]) for case, errors in found["correct"].items() if "block" not in case)
    of, _, gpu = name.rpartition("_")
    assert len(tables.overlap_table(f"overlap_{of}", gpu).splitlines()) == 2 + 2 * 2 * len(SHAPES)
