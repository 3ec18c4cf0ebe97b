"""matmul with several parts as on a GPU: the launches' arguments, run by the emulator on the CPU tensors' memory."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm import matmul
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels import Prologue, Sm100Config
from layoutgemm.kernels.epilogue.chain import Aux, Bias, ColumnReduce, Epilogue, RowReduce
from layoutgemm.kernels.run import fused
from layoutgemm.torch_op import explain
from layoutgemm.torch_op.composed import plans
from layoutgemm.torch_op.composed import product as composed
from layoutgemm.torch_op.indexed import product as indexed
from layoutgemm.torch_op.operands import several
from layoutgemm.torch_op.prologue import product as prologues
from layoutgemm.torch_op.prologue.apart import Ways
from tests.torch_op.emulated_launches import launches_are_emulated
from tests.torch_op.test_composed import CASES, CAUSAL, TILE, A, drawn

# A kernel for each, which takes a second: what other cases launch differs in names of words alone.
LAUNCHED = [
    "two pairs, their epilogue and an order",
    "batches of several matrices in two pairs",
    "rows placed in an output",
    "rows added to each other",
    "a triangle by a prologue, a gate and a second pair",
    "a triangular A and a second pair",
]


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Calls of CPU tensors run as on an H200; the plans that were launched."""
    return launches_are_emulated(monkeypatch)


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize("name", LAUNCHED)
def test_the_kernel_computes_the_reference(name: str, hopper: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    call, _, operands, _ = CASES[name]
    found = call(*operands)
    assert len(hopper) == 1
    monkeypatch.undo()
    torch.testing.assert_close(found, call(*operands), rtol=2**-7, atol=2**-7)


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
def test_rows_are_gathered_and_scattered_by_mma_sync(hopper: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """With other parts, and alone: where the kernel is not Hopper's, one launch has both."""
    for module in (plans, indexed):
        monkeypatch.setattr(module, "target", lambda index, config=None: ("sm_80", 163 << 10))
    monkeypatch.setattr(indexed, "on_gpu", lambda index: True)
    call, formula, operands, _ = CASES["rows placed in an output"]
    torch.testing.assert_close(call(*operands), formula(*operands), rtol=2**-7, atol=2**-7)
    rows, to = torch.tensor([3, 0, 3]), torch.tensor([4, 1, 0], dtype=torch.int32)
    weights, out = torch.tensor([1.0, 2.0, -1.0]), torch.full((5, 136), 7.0).bfloat16()
    b = drawn(64, 136)
    matmul(A, b, rows=rows, out_rows=to, row_weights=weights, activation="relu", out=out)
    want = torch.full((5, 136), 7.0).index_copy(0, to.long(), (A[rows].float() @ b.float()).relu() * weights[:, None])
    torch.testing.assert_close(out, want.bfloat16(), rtol=2**-7, atol=2**-7)
    assert [plan.arch.name for plan in hopper] == ["sm_80"] * 2


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize(
    "name", ["batches of several matrices in two pairs", "a gate of two pairs", "a prologue and an epilogue"]
)
def test_mma_sync_multiplies_several_matrices(name: str, hopper: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "target", lambda index, config=None: ("sm_80", 163 << 10))
    call, _, operands, _ = CASES[name]
    found = call(*operands)
    assert [type(plan).__name__ for plan in hopper] == ["Sm80Plan"]
    monkeypatch.undo()
    torch.testing.assert_close(found, call(*operands), rtol=2**-7, atol=2**-7)


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
def test_mma_sync_has_a_function_of_products_alone(hopper: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plans, several, composed):
        monkeypatch.setattr(module, "target", lambda index, config=None: ("sm_80", 163 << 10))
    monkeypatch.setattr(several, "on_gpu", lambda index: True)
    b, up, out = drawn(64, 72), drawn(64, 72), torch.empty(2, 68, 72).bfloat16()
    x = A.reshape(2, 68, 64)
    assert matmul(x, (b, up), combine="silu", out=out) is out
    found = matmul((A, A), (b, up), bias=drawn(72))
    assert [type(plan).__name__ for plan in hopper] == ["Sm80Plan"] * 2
    monkeypatch.undo()
    torch.testing.assert_close(out, matmul(x, (b, up), combine="silu"), rtol=2**-7, atol=2**-7)
    assert found.shape == (136, 72)


def statistics(keys: Any) -> Any:
    given = {"row_max": torch.zeros(136), "row_log_sum_exp": torch.zeros(136), "best_value": torch.zeros(136)}
    given["best_index"] = torch.zeros(136, dtype=torch.int32)
    steps = Epilogue(CAUSAL, RowReduce("softmax", "row"), ColumnReduce("argmax", "best"), stores_c=False)
    matmul(A, keys, order="lower", epilogue=steps, given=given)
    return given


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize("code", ["sm_90a", "sm_80"])
def test_tiles_left_out_count_as_nothing(code: str, hopper: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Causal scores: the memory of partial results holds identities where no tile writes it."""
    monkeypatch.setattr(plans, "target", lambda index, config=None: (code, 227 << 10))
    keys = drawn(64, 136)
    found = statistics(keys)
    scores = (A.double() @ keys.double()).masked_fill(torch.ones(136, 136).triu(1).bool(), -torch.inf)
    assert hopper[0].first_partials and len(hopper) == 1
    torch.testing.assert_close(found["row_log_sum_exp"].double(), scores.logsumexp(1), rtol=1e-5, atol=1e-5)
    assert torch.equal(found["row_max"].double(), scores.amax(1))
    assert torch.equal(found["best_value"].double(), scores.amax(0))
    assert torch.equal(found["best_index"].long(), scores.argmax(0))


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
def test_a_plan_of_another_architecture_runs_on_tensors(hopper: list[Any]) -> None:
    """`matmul` launches no kernel of sm_100a; its plan does, with an epilogue too."""
    steps = Epilogue(Bias(), Aux("f32"), RowReduce("max", "most"), RowReduce("top2", "best", order="col"))
    small = Sm100Config((128, 32), stages=2)
    made = layoutgemm.plan(68, 24, 64, arch="blackwell", b="bf16:col", config=small, epilogue=steps)
    a, b, aux, most = A[:68], drawn(24, 64).T, torch.empty(68, 32)[:, :24], torch.empty(68)
    best = {"best_value": torch.empty(2, 68).T, "best_index": torch.empty(2, 68, dtype=torch.int32).T}
    given = {"bias": drawn(24).float(), "aux": aux, "most": most, **best}
    found = fused.run_fused_on_tensors(made, a, b, given, None, True)
    torch.testing.assert_close(aux.double(), a.double() @ b.double() + given["bias"].double(), rtol=1e-6, atol=1e-5)
    assert torch.equal(found.c, aux.bfloat16()) and found.written["aux"] is aux and torch.equal(most, aux.amax(1))
    first = aux.sort(dim=1, descending=True, stable=True)  # of equal values the first; topk may take another
    assert torch.equal(best["best_value"], first.values[:, :2])
    assert torch.equal(best["best_index"], first.indices[:, :2].int())
    for name, x, text in (
        ("aux", torch.empty(24, 68).T, "aux: the plan takes it row-major"),
        ("best_value", torch.empty(68, 2), "best_value: the plan takes it col-major"),
        ("bias", a[0, :24], "bias is torch.bfloat16"),
        ("most", a, "most, which is written to, shares memory with a"), ("aux", aux[:1], "aux has shape"),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match=text):
            fused.run_fused_on_tensors(made, a, b, {**given, name: x}, None, True)


def test_the_mma_sync_kernel_refuses_other_parts(hopper: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plans, "target", lambda index, config=None: ("sm_80", 99 << 10))
    twice = Prologue.of(lambda x, i, k, ops: x * 2.0)
    with pytest.raises(PlanError, match=r"prologue and pair: by mma\.sync a function is of one A"):
        matmul((A, A), (A.T, A.T), prologue=twice)
    with pytest.raises(OperandError, match="config is one of sm_90a's kernel"):
        matmul(A, A.T, order="lower", bias=drawn(136), config=TILE)
    assert not hopper


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
def test_mma_sync_has_a_function_of_a_alone(hopper: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (plans, prologues, composed):
        monkeypatch.setattr(module, "target", lambda index, config=None: ("sm_80", 163 << 10))
    monkeypatch.setattr(prologues, "on_gpu", lambda index: True)
    scaled = Prologue.of(lambda x, i, k, ops, s: ops.maximum(x, 0.0) * s + k, s="m")
    b, bias, s = drawn(64, 72), drawn(72), drawn(2, 2 * 136)[0, ::2].float()
    found = matmul(A, b, prologue=scaled, given={"s": s}, bias=bias, activation="relu", out_dtype=torch.float32)
    monkeypatch.setattr(explain, "_by_mma_sync", lambda a: True)
    assert str(layoutgemm.explain_matmul(A, b, prologue=scaled, given={"s": s})).startswith("Sm80Plan 136x72x64 sm_80")
    assert [type(plan).__name__ for plan in hopper] == ["Sm80Plan"]
    x = (A.float().relu() * s[:, None] + torch.arange(64)).bfloat16()
    torch.testing.assert_close(found, (x.float() @ b.float() + bias.float()).relu(), rtol=1e-5, atol=1e-3)
    # Of two pairs no such kernel has a function: torch computes it first.
    found = matmul((A, A), (b, b), prologue=scaled, given={"s": s}, bias=bias, out_dtype=torch.float32)
    assert [plan.prologue is None for plan in hopper] == [False, True]
    torch.testing.assert_close(found, (x.float() + A.float()) @ b.float() + bias.float(), rtol=1e-5, atol=1e-3)
    told = layoutgemm.explain_matmul((A, A), (b, b), prologue=scaled, given={"s": s})
    assert "by torch first" in told.why and told.copies[0].startswith("a: torch computes its function first")


def test_a_function_of_a_is_torchs_where_that_is_cheaper(hopper: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """The choice follows N: in a kernel the function is computed for each tile of columns."""
    silu = Prologue.of(lambda x, i, k, ops: x * ops.sigmoid(x))
    tall = torch.empty(4096, 4096).bfloat16()
    for n, apart in ((4096, False), (65536, True)):
        wide = torch.empty(1, 4096).bfloat16().expand(n, 4096).T if n > 4096 else tall.T
        told = layoutgemm.explain_matmul(tall, wide, prologue=silu)
        assert (told.workspace > 0) == apart == ("by torch first:" in told.why), n
    monkeypatch.setattr(prologues, "on_gpu", lambda index: True)
    monkeypatch.setattr(prologues, "ways_of_product", lambda *given: Ways(1.0, 0.0, 0))
    monkeypatch.setattr(prologues, "finished_product", lambda a, b, *rest: a)
    assert torch.equal(matmul(A, A.T, prologue=silu), (A.float() * A.float().sigmoid()).bfloat16())
