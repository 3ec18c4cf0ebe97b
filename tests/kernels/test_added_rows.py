"""Rows of the product that are added to rows of C: values, proofs, refusals."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import IndexedRows, Ragged, RowIndices, Sm90Config, Sm90Plan, Sm100Config
from layoutgemm.kernels.epilogue.chain import Epilogue, VectorScale
from layoutgemm.kernels.indexed import added_rows as added
from layoutgemm.kernels.indexed.row_copy import RowCopy
from layoutgemm.kernels.run.epilogue_operands import write_sorted
from tests import needs

M, N, K, ROWS = 72, 44, 64, 9
ARCHS = ("sm_80", "sm_90a", "sm_100a", "sm_120a")
RNG = np.random.default_rng(0)
A, B = (RNG.integers(-8, 9, shape).astype(np.float32) / 8 for shape in ((M, K), (K, N)))
TO, ORDER, WEIGHTS = RNG.integers(0, ROWS - 1, M).astype(np.int32), RNG.permutation(M), RNG.integers(1, 5, M)
TO[::2] = 3  # whose places fill a chunk of the sorted list, and parts of two others
ADDED = IndexedRows(scatter=RowIndices(ROWS), adds=True)
BOTH = IndexedRows(RowIndices(M, "i64"), RowIndices(ROWS), adds=True)
GIVEN = {"rows": ORDER, "out_rows": TO, "w": WEIGHTS.astype(np.float32)}
WEIGHTED = Epilogue(VectorScale("m", "f32", "w"))


def sums(product: np.ndarray, first: Any = 0.0) -> np.ndarray:
    found = np.zeros((ROWS, N)) + first
    np.add.at(found, TO, product)
    return found


@pytest.mark.parametrize("arch", ARCHS)
def test_the_executor_adds_rows_in_order(arch: str) -> None:
    made = plan(M, N, K, arch=arch, b="bf16:col", c="f32", indexed=ADDED)
    assert [check.name for check in made.check().require()].count("add rows") == 1
    assert "a further launch adds" in made.explain()
    assert made.workspace == M * 64 * 4  # of few indices one launch has no list
    more = plan(added.FEW + 1, N, K, arch=arch, b="bf16:col", c="f32", indexed=ADDED)
    assert more.workspace == (added.FEW + 1) * (64 * 4 + 8 + 4) + 2 * -(-(added.FEW + 1) // added.CHUNK) * 64 * 4
    given, out = {"out_rows": TO}, np.ones((ROWS, N), np.float32)
    found = made.run(A, B, given=given, out=out, device="reference").c
    assert found is out and np.array_equal(found, sums(A @ B, 1.0)) and (found[-1] == 1).all()


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize(
    "arch, c",
    [
        pytest.param("sm_80", "bf16", marks=pytest.mark.slow),
        pytest.param("sm_90a", "bf16", marks=pytest.mark.slow),
        ("sm_90a", "f32"),
        pytest.param("sm_100a", "f32", marks=pytest.mark.slow),
    ],
)
def test_the_kernel_adds_gathered_and_weighted_rows(arch: str, c: str) -> None:
    """Few indices by one launch. More, where Hopper stores f32, by the list's."""
    config = {"sm_100a": Sm100Config((128, 64)), "sm_90a": Sm90Config((64, 64), consumers=1, loader="warpgroup")}
    indexed, times = BOTH if arch != "sm_100a" else ADDED, 4 if (arch, c) == ("sm_90a", "f32") else 1
    made = plan(
        M * times, N, K, arch=arch, b="bf16:col", c=c, config=config.get(arch), epilogue=WEIGHTED, indexed=indexed
    )
    assert (made.m > added.FEW) == (times > 1)
    given = {name: np.tile(x, times) for name, x in GIVEN.items() if name != "rows" or indexed is BOTH}
    rows = (A[given["rows"]] if indexed is BOTH else A) @ B * given["w"][:, None]
    want = np.zeros((ROWS, N))
    np.add.at(want, given["out_rows"], made.c.dtype.decode(made.c.dtype.encode(rows.astype(np.float32))))
    want = made.c.dtype.decode(made.c.dtype.encode(want.astype(np.float32)))
    assert np.array_equal(made.run(A, B, given=given, device="emulator").c, want)


@pytest.mark.parametrize("batch", [1, 3])
def test_tensors_and_arrays_are_sorted_alike(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = needs.module("torch")
    monkeypatch.setattr(added, "RANKED", 100)
    m = added.RANKED + 1
    indexed = IndexedRows(scatter=RowIndices(ROWS), adds=True)
    made = plan(m, N, K, batch=batch, arch="sm_80", b="bf16:col", c="bf16", indexed=indexed)
    to = RNG.integers(-2, ROWS + 2, (batch, m)).astype(np.int32)  # those outside too
    found = [np.zeros(added.added_bytes(made), np.uint8), torch.zeros(added.added_bytes(made), dtype=torch.uint8)]
    for memory, rows in zip(found, (to, torch.from_numpy(to))):
        write_sorted(made, memory, rows.reshape(-1))
    assert np.array_equal(found[0], found[1].numpy())
    _, order, names = (int(x) for x in added.list_bytes(made, (batch, m, N)))
    places = found[0][order:names].view(np.int64).reshape(batch, m)
    assert np.array_equal(np.take_along_axis(to, places, 1).reshape(-1), found[0][names:].view(np.int32))


def test_sums_are_those_of_chunks_of_the_sorted_list() -> None:
    """1024 values of 2**-24 beside 1, in one row: a chunk's sum is exact, where one chain of additions rounds each."""
    m = 1025
    made = plan(m, 8, 16, arch="sm_80", b="bf16:col", c="f32", indexed=IndexedRows(scatter=RowIndices(2), adds=True))
    a, b, to = np.zeros((m, 16), np.float32), np.eye(16, 8, dtype=np.float32), np.ones(m, np.int32)
    a[:, 0] = [1, *[2.0**-24] * 1024]
    found = made.run(a, b, given={"out_rows": to}, device="reference").c
    assert found[1, 0] == 1 + 31 * 32 * 2.0**-24  # 31 in the first chunk and one in the last are rounded away
    assert not found[0].any()


def test_groups_of_rows_add_their_experts_results() -> None:
    """The second half of a mixture of experts."""
    config, offsets = Sm90Config((64, 64), consumers=1), np.array([0, 5, 5, M], np.int32)
    made = Sm90Plan.derive(M, N, K, batch=3, b="bf16:col", c="f32", config=config, ragged=Ragged.of(3), indexed=ADDED)
    made.check().require()
    weights = RNG.integers(-8, 9, (3, K, N)).astype(np.float32) / 8
    product = np.concatenate([A[s:e] @ weights[i] for i, (s, e) in enumerate(pairwise(offsets))])
    found = made.run(A, weights, given={"offsets": offsets, "out_rows": TO}, device="reference").c
    assert np.array_equal(found, sums(product))


def test_a_run_that_two_warps_sum_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    made = plan(M, N, K, arch="sm_80", b="bf16:col", c="f32", indexed=ADDED)
    monkeypatch.setattr(RowCopy, "place", lambda self, number, n, size: (number // self.runs(n, size), 0))
    assert [check.name for check in made.check() if not check] == ["add rows"]
    assert not added.added_checks(made)[0]


REFUSED = [
    ({"indexed": ADDED, "c": "e4m3"}, "c is e4m3, and rows are added in f32"),
    ({"indexed": ADDED, "order": "lower"}, "rows are added whole, and order = Triangular"),
    ({"indexed": ADDED, "c": "f32:col"}, "scattered rows are contiguous"),
]


@pytest.mark.parametrize("options, text", REFUSED)
def test_refusals(options: dict[str, Any], text: str) -> None:
    with pytest.raises(PlanError, match=text):
        plan(M, N, K, **{"b": "bf16:col", **options})


def test_other_refusals() -> None:
    with pytest.raises(PlanError, match="adds = True: rows are added to those of C that scatter names"):
        IndexedRows(RowIndices(3), adds=True)
    with pytest.raises(PlanError, match="adds of IndexedRows"):
        IndexedRows(scatter=RowIndices(3), adds=1)  # type: ignore[arg-type]
    made = plan(M, N, K, b="bf16:col", indexed=ADDED)
    with pytest.raises(OperandError, match="out: on the CPU rows are added to zeros, and rounded to bf16"):
        made.run(A, B, given={"out_rows": TO}, out=np.ones((ROWS, N), np.float32), device="reference")
    with pytest.raises(OperandError, match=r"out_rows\[0\] = 9: c has 9 rows"):
        made.run(A, B, given={"out_rows": np.full(M, 9, np.int32)}, device="reference")
