"""matmul with reductions, without C, and with values quantised by groups: shapes, refusals, the reference."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import matmul
from layoutgemm.errors import LayoutError, OperandError, TensorError
from layoutgemm.kernels.epilogue.chain import ColumnReduce, Epilogue, Quantize, RowReduce
from layoutgemm.torch_op.epilogue import nothing_of
from layoutgemm.torch_op.problem import Problem, StridedOperand
from layoutgemm.torch_op.solver import solve
from tests.torch_op.epilogue_fuzz import dense_faults
from tests.torch_op.test_operator import F32, emulated, integers

EVERY = Epilogue(RowReduce("softmax"), ColumnReduce("argmax"), RowReduce("sum", "sums", dtype="bf16"))


def outputs(batch: tuple[int, ...], m: int, n: int) -> dict[str, Any]:
    return {
        "row_softmax_max": torch.full((*batch, m), 7.0), "row_softmax_log_sum_exp": torch.full((*batch, m), 7.0),
        "column_argmax_value": torch.zeros(*batch, n), "column_argmax_index": torch.zeros(*batch, n).int(),
        "sums": torch.zeros(*batch, m).bfloat16(),
    }  # fmt: skip


@pytest.mark.parametrize("batch", [(), (3,), (2, 2)])
def test_the_reference_on_the_cpu(batch: tuple[int, ...]) -> None:
    a, b = integers(*batch, 20, 24), integers(*batch, 24, 17)
    given = outputs(batch, 20, 17)
    c = matmul(a, b, epilogue=EVERY, given=given)
    exact = a.double() @ b.double()
    assert torch.equal(c, exact.bfloat16())
    assert torch.equal(given["row_softmax_max"].double(), exact.amax(-1))
    assert torch.allclose(given["row_softmax_log_sum_exp"].double(), exact.logsumexp(-1), rtol=1e-6)
    assert torch.equal(given["column_argmax_value"].double(), exact.amax(-2))
    assert torch.equal(given["column_argmax_index"].long(), exact.argmax(-2))
    assert torch.equal(given["sums"], exact.sum(-1).bfloat16())


def test_without_c_and_combined_in_memory() -> None:
    a, b = integers(20, 24), integers(24, 17)
    exact = (a.double() @ b.double()).float()
    epilogue = Epilogue(
        RowReduce("max", "most", ordered=False), ColumnReduce("sum", "sums", ordered=False), stores_c=False
    )
    given = {"most": torch.full((20,), 30.0), "sums": torch.full((17,), 2.0)}
    found = matmul(a, b, epilogue=epilogue, given=given)
    assert found.shape == (0,) and found.dtype == torch.bfloat16
    assert torch.equal(given["most"], exact.amax(-1).clamp_min(30)) and torch.equal(given["sums"], exact.sum(0) + 2)
    with pytest.raises(OperandError, match="out is given, and the epilogue stores no C"):
        matmul(a, b, epilogue=epilogue, given=given, out=torch.empty(20, 17).bfloat16())


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
def test_a_transposed_product_writes_each_number_to_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel has 40 rows and 72 columns, and reduces what are its rows."""
    a, b = integers(72, 64), integers(40, 64).T
    given = {"best_value": torch.empty(2, 40), "best_index": torch.empty(2, 40, dtype=torch.int32)}
    with emulated(monkeypatch) as calls:
        matmul(a, b, epilogue=Epilogue(ColumnReduce("top2", "best"), stores_c=False), given=given)
        assert [values[3:6] for values, _ in calls] == [[40, 72, 64]]
    exact = (a.double() @ b.double()).sort(dim=0, descending=True, stable=True)
    assert torch.equal(given["best_value"].double(), exact.values[:2])
    assert torch.equal(given["best_index"].long(), exact.indices[:2])


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
def test_random_epilogues_are_those_of_the_cpu() -> None:
    assert list(dense_faults(0, 12)) == []


def test_reductions_of_nothing() -> None:
    given = {"most": torch.zeros(3), "sums": torch.zeros(3)}
    epilogue = Epilogue(RowReduce("max", "most"), RowReduce("sum", "sums"), stores_c=False)
    assert matmul(integers(3, 4), integers(4, 0), epilogue=epilogue, given=given).shape == (0,)
    assert given["most"].tolist() == [-float("inf")] * 3 and given["sums"].tolist() == [0.0] * 3


def test_quantised_by_groups() -> None:
    a, b = integers(5, 24), integers(24, 200)
    scales = torch.zeros(2, 5).mT
    c = matmul(a, b, epilogue=Epilogue(Quantize()), given={"scales": scales}, out_dtype=torch.float8_e4m3fn)
    exact = torch.nn.functional.pad(a.float() @ b.float(), (0, 56)).reshape(5, 2, 128)
    amax = exact.abs().amax(-1).clamp_min(1e-10)
    want = (exact * (448 / amax)[..., None]).reshape(5, 256)[:, :200].to(torch.float8_e4m3fn)
    assert torch.equal(scales, amax / 448) and torch.equal(c.view(torch.uint8), want.view(torch.uint8))
    with pytest.raises(OperandError, match="Quantize gives e4m3: out_dtype="):
        matmul(a, b, epilogue=Epilogue(Quantize()), given={"scales": scales})


def test_refusals_name_the_output() -> None:
    a, b = integers(16, 32), integers(32, 16)

    def refused(error: type[Exception], text: str, epilogue: Epilogue, **given: Any) -> None:
        with pytest.raises(error, match=text):
            matmul(a, b, epilogue=epilogue, given=given)

    row, argmax = Epilogue(RowReduce()), Epilogue(RowReduce("argmax", "best"))
    refused(TensorError, r"row_sum has shape \[15\].*\[16\]", row, row_sum=torch.zeros(15))
    refused(TensorError, "row_sum is torch.bfloat16; the epilogue's step says torch.float32", row,
            row_sum=torch.zeros(16).bfloat16())  # fmt: skip
    refused(TensorError, "best_index is torch.int64; the epilogue's step says torch.int32", argmax,
            best_value=torch.zeros(16), best_index=torch.zeros(16).long())  # fmt: skip
    refused(OperandError, "best_index is missing", argmax, best_value=torch.zeros(16))
    refused(TensorError, "meta", row, row_sum=torch.zeros(16, device="meta"))
    refused(OperandError, "elements lie 2 apart", row, row_sum=torch.zeros(32)[::2])
    whole = torch.zeros(16, 32)
    refused(TensorError, "row_sum, which is written to, shares memory with column_sum", Epilogue(
        RowReduce(), ColumnReduce()), row_sum=whole[0, :16], column_sum=whole[0, 8:24])  # fmt: skip
    a = a.float()
    alias = a.view(-1)[:16]
    with pytest.raises(LayoutError, match="row_sum, which is written to, shares memory with a"):
        matmul(a, b.float(), epilogue=row, given={"row_sum": alias}, allow_tf32=True)


@pytest.mark.parametrize("sizes", [(8, 4096, 512), (4096, 8, 512), (300, 1000, 512), (4096, 4096, 4096)])
def test_every_size_has_a_kernel_that_carries_the_steps(sizes: tuple[int, int, int]) -> None:
    """Small M swaps operands: what has groups of columns takes another tile there."""
    m, n, k = sizes
    operand = [StridedOperand(shape, (shape[1], 1), "bf16") for shape in ((m, k), (k, n), (m, n))]
    for epilogue, kept in (
        (EVERY, "bf16"), (Epilogue(RowReduce("amax", each=128)), "bf16"), (Epilogue(Quantize()), "e4m3"),
        (Epilogue(RowReduce(), stores_c=False), "bf16"),
    ):  # fmt: skip
        c = StridedOperand((m, n), (n, 1), kept)
        found = solve(Problem(*operand[:2], c, epilogue=epilogue, keep_batch_separate=True))
        plan = found.kernel.plan(*found.sizes)
        each = [step.each for step in epilogue.steps if getattr(step, "each", None)]
        assert not found.kernel.choice.swapped if each else True
        assert all(plan.columns_at_a_time % width == 0 for width in each)
        assert epilogue.stores_c or plan.store is None


def test_rows_are_reduced_in_their_places() -> None:
    """The transposed product is ahead by a hair, but reduces columns."""
    m, n, k = 4096, 256, 7168
    operand = [StridedOperand(*layout, "bf16") for layout in (((m, k), (k, 1)), ((k, n), (1, k)), ((m, n), (n, 1)))]
    swapped = [
        solve(Problem(*operand, epilogue=epilogue, keep_batch_separate=epilogue is not None)).kernel.choice.swapped
        for epilogue in (None, Epilogue(RowReduce("argmax", "best"), stores_c=False), Epilogue(RowReduce()))
    ]
    assert swapped == [True, False, False]


def test_results_in_float32_are_kept() -> None:
    a, b = integers(4, 8, dtype=F32), integers(8, 4, dtype=F32)
    given = {"row_max": torch.zeros(4)}
    c = matmul(a, b, epilogue=Epilogue(RowReduce("max")), given=given, allow_tf32=True)
    assert torch.equal(given["row_max"], c.amax(-1))


def test_results_of_no_element_are_made_where_they_go() -> None:
    """A CUDA graph captures no copy from the host."""
    meta = torch.device("meta")
    for step in EVERY.reductions:
        assert {value.device for value in nothing_of(step, meta)} == {meta}
