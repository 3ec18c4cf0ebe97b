"""Random products by every torch door beside float64 formulas: on the CPU, and by the kernels in the emulator."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import gemm, grouped_matmul, matmul
from tests.torch_op import sequence_fuzz
from tests.torch_op.door_fuzz import DOORS, faults
from tests.torch_op.door_launches import every_door


@pytest.mark.parametrize("door", DOORS)
def test_the_cpu_computes_the_formulas(door: str) -> None:
    tally: Counter[str] = Counter()
    assert list(faults(door, 0, 1, tally, on=("cpu",))) == [] and tally["answered cpu"]


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_kernels_compute_the_formulas(door: str) -> None:
    tally: Counter[str] = Counter()
    assert list(faults(door, 100, 6, tally)) == [] and tally["answered kernel"]


def test_sequences_on_the_cpu_compute_the_formulas() -> None:
    tally: Counter[str] = Counter()
    assert list(sequence_fuzz.faults("dense", 1, 1, tally, on="cpu")) == [] and tally["answered"]


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_sequences_of_kernels_compute_the_formulas(door: str) -> None:
    """Memory, values, numbers, objects and regions change between calls."""
    tally: Counter[str] = Counter()
    assert list(sequence_fuzz.faults(door, 0, 3, tally)) == [] and tally["answered"]


@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_what_a_launch_reads_is_there(door: str) -> None:
    """A copy that was dropped before the launch may be another tensor's memory."""
    tally: Counter[str] = Counter()
    assert list(faults(door, 40, 20, tally, on=("addresses",))) == [] and tally["launched"]


@pytest.mark.dsl
def test_copies_that_an_epilogue_reads_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A strided bias, and a negated addend."""
    a, b, bias = torch.ones(16, 72).half(), torch.ones(2, 72, 16).half(), torch.ones(2, 32).bfloat16()[:, ::2]
    with every_door(monkeypatch, computes=False) as launches:
        for _ in range(2):
            grouped_matmul(a, (b, b), torch.tensor([0, 8, 16]), combine=lambda p, q, ops: p + q, bias=bias)
            gemm(2.0, a, b[0], 0.5, torch._neg_view(torch.ones(16, 16).half()))
    assert len(launches) == 4


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
def test_repeated_calls_copy_one_a_for_all_masked_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its columns are no lines of the kernel's: it is copied, in each call for all groups."""
    a, b = torch.randn(16, 9).bfloat16().T, torch.randn(2, 16, 16).bfloat16()
    rows, counts = torch.arange(8).view(2, 4) % 9, torch.tensor([3, 4])
    want = [a[picked[:count]].double() @ x.double() for picked, count, x in zip(rows, counts.tolist(), b)]
    with every_door(monkeypatch) as launches:
        for _ in range(2):
            got = grouped_matmul(a, b, counts=counts, rows=rows, out_dtype=torch.float32)
            for group, of in zip(got, want):
                torch.testing.assert_close(group[: len(of)].double(), of, atol=1e-4, rtol=1e-5)
    assert len(launches) == 2


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
def test_a_second_a_beside_chosen_rows_is_copied_for_tensor_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads copy the first A's rows from any address; the second A's rows come by a tensor map."""
    a, b, b2 = torch.randn(20, 16).bfloat16(), torch.randn(16, 16).bfloat16(), torch.randn(8, 16).bfloat16()
    a2, rows = torch.randn(7 * 8 + 1).bfloat16()[1:].view(7, 8), torch.arange(7) * 2
    want = a[rows].double() @ b.double() + a2.double() @ b2.double()
    with every_door(monkeypatch) as launches:
        got = matmul((a, a2), (b, b2), rows=rows, out_dtype=torch.float32)
    torch.testing.assert_close(got.double(), want, atol=1e-4, rtol=1e-5)
    assert launches
