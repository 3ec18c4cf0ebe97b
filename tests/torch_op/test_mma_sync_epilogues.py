"""Epilogues, reductions and biases of torch tensors on GPUs without wgmma: the mma.sync kernel, in the emulator."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import gemm, matmul
from layoutgemm.errors import OperandError
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Amax,
    Bias,
    ColumnReduce,
    Epilogue,
    Quantize,
    RowReduce,
    VectorScale,
)
from layoutgemm.torch_op import launch as torch_launch
from layoutgemm.torch_op import prepared as torch_prepared
from layoutgemm.torch_op import solver
from layoutgemm.torch_op.problem import Problem, StridedOperand
from layoutgemm.torch_op.solver import solve
from tests.torch_op.test_epilogue import check, strange
from tests.torch_op.test_operator import BF16, emulated, integers
from tests.torch_op.test_reductions import EVERY, outputs

pytestmark = [needs.DSL, needs.C_COMPILER, pytest.mark.dsl]


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Calls of CPU tensors run as on a GPU of compute capability 8.6."""
    with emulated(monkeypatch) as calls:
        monkeypatch.setattr(torch_prepared, "target", lambda index, config=None: ("sm_80", 99 << 10))
        torch_prepared.forget()
        yield calls
    torch_prepared.forget()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=[pytest.mark.slow] * (case not in ("rows", "a batch")))
        for case in ("rows", "columns of C", "odd", "one matrix for a batch", "a batch", "two dimensions")
    ],
)
def test_an_epilogue_of_ones_own(case: str, ampere: Any) -> None:
    a, b, fronts, turn, launches = {
        "rows": (integers(70, 64), integers(72, 64).T, True, None, 1),
        "columns of C": (integers(70, 33), integers(33, 40), True, strange, 1),
        "odd": (integers(33, 41)[:, 1:], integers(40, 37), True, strange, 1),
        "one matrix for a batch": (integers(3, 20, 64), integers(64, 40), False, None, 1),
        "a batch": (integers(3, 20, 64), integers(3, 64, 40), True, strange, 1),
        "two dimensions": (integers(2, 2, 20, 32), integers(2, 2, 32, 24).transpose(0, 1), True, None, 2),
    }[case]  # fmt: skip
    out = torch.zeros(40, 71, dtype=BF16)[:, 1:].T if case == "columns of C" else None
    check(a, b, fronts, turn, out=out)
    assert len(ampere) == launches and ampere[-1][0][13] == 132


@pytest.mark.parametrize("batch", [(), pytest.param((3,), marks=pytest.mark.slow)])
def test_reductions(batch: tuple[int, ...], ampere: Any) -> None:
    a, b, given = integers(*batch, 70, 40), integers(*batch, 40, 57), outputs(batch, 70, 57)
    c = matmul(a, b, epilogue=EVERY, given=given)
    exact = a.double() @ b.double()
    assert torch.equal(c, exact.bfloat16()) and len(ampere) == 1
    assert torch.equal(given["row_softmax_max"].double(), exact.amax(-1))
    assert torch.allclose(given["row_softmax_log_sum_exp"].double(), exact.logsumexp(-1), rtol=1e-5)
    assert torch.equal(given["column_argmax_value"].double(), exact.amax(-2))
    assert torch.equal(given["column_argmax_index"].long(), exact.argmax(-2))
    assert torch.equal(given["sums"], exact.sum(-1).bfloat16())


def test_groups_of_128_columns_take_warps_that_hold_them(ampere: Any) -> None:
    a, b, given = integers(70, 40), integers(40, 200), {"sums": torch.zeros(70, 2)}
    assert matmul(a, b, epilogue=Epilogue(RowReduce("sum", "sums", each=128), stores_c=False), given=given).numel() == 0
    exact = torch.nn.functional.pad(a.double() @ b.double(), (0, 56)).unflatten(-1, (2, 128)).sum(-1)
    assert torch.equal(given["sums"].double(), exact) and len(ampere) == 1


def test_bias_activation_and_scalars_are_in_the_kernel(ampere: Any) -> None:
    a, b, bias, c = integers(70, 64), integers(72, 64).T, torch.randn(72).bfloat16(), integers(70, 72)
    product = torch.matmul(a.double(), b.double())
    want = torch.relu(product + bias.double()).bfloat16()
    for stream in (88, 77):  # the second call by the short way
        assert torch.equal(matmul(a, b, bias=bias, activation="relu"), want) and ampere[-1][1] == stream
    got = gemm(2.0, a, b, -1.5, c)
    assert torch.equal(got, (2 * product - 1.5 * c.double()).bfloat16()) and len(ampere) == 3
    whole = integers(70, 64, dtype=torch.int8), integers(64, 72, dtype=torch.int8)
    scale = torch.full((72,), 0.5)
    got = matmul(*whole, out_dtype=BF16, epilogue=Epilogue(VectorScale("n")), given={"scale": scale})
    assert torch.equal(got, (whole[0].double() @ whole[1].double() / 2).bfloat16()) and len(ampere) == 4


def test_other_results_are_finished_by_torch_or_refused_by_name(ampere: Any) -> None:
    fp8, a, b = torch.float8_e4m3fn, integers(16, 32), integers(32, 16)
    bias = torch.ones(16)
    got = matmul(a, b, bias=bias, out_dtype=fp8)
    assert torch.equal(got.float(), (a.double() @ b.double() + 1).to(fp8).float())
    given = {"scales": torch.zeros(16, 1)}
    with pytest.raises(OperandError, match=r"c e4m3:row.*this kernel stores f32, bf16, f16"):
        matmul(a, b, epilogue=Epilogue(Quantize()), given=given, out_dtype=fp8)
    with pytest.raises(OperandError, match=r"each = 512 columns, and a tile is stored \d+ columns at a time"):
        given = {"sums": torch.zeros(16, 1)}
        matmul(a, b, epilogue=Epilogue(RowReduce("sum", "sums", each=512)), given=given)


def test_8_bit_results_from_sm_89_on(ampere: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A result with scales, and one with a bias; before sm_89 there is no conversion."""
    monkeypatch.setattr(torch_prepared, "target", lambda index, config=None: ("sm_89", 99 << 10))
    torch_prepared.forget()
    fp8, a, b = torch.float8_e4m3fn, integers(40, 32), integers(32, 200)
    given = {"scales": torch.zeros(40, 2)}
    got = matmul(a, b, epilogue=Epilogue(Quantize()), given=given, out_dtype=fp8)
    exact = (a.double() @ b.double()).numpy().astype("float32")
    want = Epilogue(Quantize()).reference(exact)
    assert torch.equal(given["scales"], torch.from_numpy(want.written["scales"]))
    assert torch.equal(got.float(), torch.tensor(want.c).to(fp8).float())
    bias = torch.ones(200)
    got = matmul(a, b, bias=bias, out_dtype=torch.float8_e5m2)
    assert torch.equal(got.float(), (a.double() @ b.double() + 1).to(torch.float8_e5m2).float()) and len(ampere) == 2


@pytest.mark.parametrize("kind", [RowReduce, ColumnReduce])
def test_the_largest_of_each_line_are_those_of_topk(kind: Any, ampere: Any) -> None:
    """Two outputs of one reduction, column-major. Values are equal, and some lines have fewer than four."""
    a, b = integers(70, 16), integers(16, 2 if kind is RowReduce else 40)
    axis, steps = 1 if kind is RowReduce else 0, kind("top4", "best")
    shape = (70, 4) if axis else (4, b.shape[1])
    given = {"best_value": torch.empty(shape[::-1]).T, "best_index": torch.empty(shape[::-1], dtype=torch.int32).T}
    gaps = torch.empty(shape[0], 2 * shape[1])[:, : shape[1]]
    for wrong, text in (
        (gaps, "leave neither rows nor columns side by side"),
        (torch.empty(shape), "best_value is row-major, and best_index column-major"),
    ):
        with pytest.raises(OperandError, match=text):
            matmul(a, b, epilogue=Epilogue(steps, stores_c=False), given={**given, "best_value": wrong})
    matmul(a, b, epilogue=Epilogue(steps, stores_c=False), given=given)
    exact = (a.double() @ b.double()).sort(dim=axis, descending=True, stable=True)
    count = min(4, exact.values.shape[axis])
    assert torch.equal(given["best_value"].narrow(axis, 0, count).double(), exact.values.narrow(axis, 0, count))
    assert torch.equal(given["best_index"].narrow(axis, 0, count).long(), exact.indices.narrow(axis, 0, count))
    assert (given["best_value"].narrow(axis, count, 4 - count) == -torch.inf).all() and len(ampere) == 1


def test_large_products_have_plans_that_hold() -> None:
    for size in (1000, 4096):
        x = StridedOperand((size, size), (size, 1), "bf16")
        epilogue = Epilogue(Bias(), Activation("gelu"), RowReduce("softmax"))
        found = solve(Problem(x, x, x, epilogue=epilogue, code="sm_80", smem=99 << 10))
        plan = torch_launch.plan_of(found)
        assert plan.check() and plan.epilogue == epilogue and torch_launch.workspace(found) == plan.workspace > 0


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(300, 202, 128), (129, 1001, 96), (1024, 2048, 4096)])
def test_the_mma_sync_kernel_on_a_gpu(size: tuple[int, int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of CUDA tensors by the mma.sync kernel, built for this GPU."""
    monkeypatch.setattr(torch_launch, "solve", lambda problem: solver._solve(problem, (None, None, None), True))
    torch_prepared.forget()
    m, n, k = size
    a, b = (torch.randint(-3, 4, shape, device="cuda").bfloat16() for shape in ((m, k), (k, n)))
    bias = torch.randint(-9, 10, (n,), device="cuda").float()
    exact = a.double() @ b.double() + bias.double()
    epilogue = Epilogue(Bias(), RowReduce("argmax", "best"), ColumnReduce("sum", "sums"), Amax())
    bits = []
    for _ in range(2):
        given = {
            "bias": bias, "best_value": torch.zeros(m, device="cuda"), "sums": torch.zeros(n, device="cuda"),
            "best_index": torch.zeros(m, device="cuda", dtype=torch.int32), "amax": torch.zeros(1, device="cuda"),
        }  # fmt: skip
        c = matmul(a, b, epilogue=epilogue, given=given, out_dtype=torch.float32)
        assert torch.equal(c.double(), exact) and torch.equal(given["sums"].double(), exact.sum(0))
        assert torch.equal(given["best_value"].double(), exact.amax(1))
        assert torch.equal(exact.gather(1, given["best_index"].long()[:, None])[:, 0], exact.amax(1))
        assert given["amax"].item() == exact.abs().max().item()
        bits.append(given["best_index"])
    assert torch.equal(*bits)
    for _ in range(2):  # the second call by the short way
        assert torch.equal(matmul(a, b, bias=bias, activation="relu"), exact.relu().bfloat16())
    torch_prepared.forget()
