"""DeepGEMM as a peer: its package where that is installed, and a reason where it is not."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks import bench_gemm, deepgemm, peers
from layoutgemm.bench.method import BenchProblem, Operands

PROBLEM = BenchProblem(512, 14336, 4096)


@pytest.fixture(autouse=True)
def left_out(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty table of what is left out."""
    table: dict[str, str] = {}
    for module in (peers, deepgemm):
        monkeypatch.setattr(module, "LEFT_OUT", table)
    return table


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """A package `deep_gemm` that notes what is called."""
    found: list[Any] = []
    package = types.ModuleType("deep_gemm")
    package.__spec__ = importlib.machinery.ModuleSpec("deep_gemm", None)
    package.__dict__.update(__version__="2.6.1", set_pdl=found.append, bf16_gemm_nt=lambda *given: found.append(given))
    monkeypatch.setitem(sys.modules, "deep_gemm", package)
    yield found


def names(*argv: str) -> list[str]:
    return [contender.name for contender in bench_gemm.contenders(PROBLEM, bench_gemm.arguments(argv))]


def test_the_installed_package_is_called_in_both_ways(calls: list[Any], left_out: dict[str, str]) -> None:
    assert names("--contender", "deepgemm") == ["torch.mm", "deepgemm", "deepgemm pdl"]
    for contender in deepgemm.deepgemm(PROBLEM):
        [launch] = contender.prepare([Operands(1, 2, 3)])
        assert contender.family == "deepgemm"
        launch()
    assert calls == [False, (1, 2, 3), True, (1, 2, 3)] and left_out == {} and deepgemm.version() == "2.6.1"


def test_a_missing_package_is_skipped(
    monkeypatch: pytest.MonkeyPatch, left_out: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(deepgemm, "installed", lambda: False)
    assert names("--contender", "deepgemm") == ["torch.mm"] and deepgemm.version() == "none"
    assert left_out == {"DeepGEMM": "no package deep_gemm"}
    assert bench_gemm.report([], {}, []).splitlines()[-1] == "left out: DeepGEMM: no package deep_gemm"
    with pytest.raises(SystemExit):
        bench_gemm.arguments(["--deepgemm", "folder"])
    assert "unrecognized arguments: --deepgemm" in capsys.readouterr().err


def test_a_package_that_does_not_load_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepgemm, "installed", lambda: True)
    monkeypatch.setitem(sys.modules, "deep_gemm", None)
    assert deepgemm.version() == "unknown (ModuleNotFoundError)"


def test_groups_along_k_are_matrices_of_their_own(monkeypatch: pytest.MonkeyPatch, calls: list[Any]) -> None:
    """Each group's columns are contiguous, and the products are added to one result."""
    seen: list[Any] = []

    def kernel(a: Any, b: Any, d: Any, sizes: list[int], on_device: Any, c: Any) -> None:
        seen.append((a, b, d, sizes, on_device.tolist(), c))

    package = sys.modules["deep_gemm"]
    monkeypatch.setattr(package, "k_grouped_fp8_gemm_nt_contiguous", kernel, raising=False)
    monkeypatch.setattr(package, "get_mn_major_tma_aligned_tensor", lambda x: x, raising=False)
    a, b = torch.arange(12).view(2, 6), torch.arange(18).view(3, 6)
    scales = torch.ones(2, 1), torch.ones(3, 1)
    for launches in deepgemm.along_k_launches(a, b, 3, scales).values():
        launches[0]()
    assert calls == [False, True] and len(seen) == 2
    for (left, _), (right, scale_b), result, sizes, on_device, added in seen:
        assert left.tolist() == [0, 1, 2, 6, 7, 8, 3, 4, 5, 9, 10, 11] and right[:6].tolist() == [0, 1, 2, 6, 7, 8]
        assert scale_b is scales[1] and sizes == on_device == [3, 3]
        assert result is added and result.shape == (2, 2, 3) and result.dtype == torch.float32
