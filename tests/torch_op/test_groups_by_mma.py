"""Groups and scales of 128 of K of torch tensors on GPUs without wgmma: by mma.sync, in the emulator."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, explain_matmul, grouped_matmul, scaled_matmul
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm80Config
from layoutgemm.kernels.epilogue.chain import Activation, ColumnReduce, Epilogue
from layoutgemm.torch_op.scaled_grouped import by_mma, kept
from tests.torch_op.door_launches import every_door
from tests.torch_op.test_operator import BF16, F32, integers
from tests.torch_op.test_scaled_kernels import OFFSETS, experts, powers, spread

E4M3 = torch.float8_e4m3fn
SMALL = Sm80Config((32, 64), 32, 3, (2, 2))
slow = [needs.DSL, needs.C_COMPILER, pytest.mark.dsl, pytest.mark.slow]


@pytest.fixture
def ada(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Calls of CPU tensors run as on a GPU of compute capability 8.9."""
    kept.PLANS.clear()
    with every_door(monkeypatch, "sm_89") as made:
        yield made
    kept.PLANS.clear()


@pytest.mark.parametrize("form", [pytest.param(form, marks=slow) for form in ("offsets", "offs", "B by rows")])
def test_groups_of_rows(form: str, ada: Any) -> None:
    a, b, want = experts()
    b, given = (b.contiguous(), {"offsets": OFFSETS}) if form == "B by rows" else (b, {form: OFFSETS})
    if form == "offs":
        ends = OFFSETS[1:].clone()
        ends[-1] -= 2
        given, want = {"offs": ends}, want.clone()
        want[-2:] = 0
    for _ in range(2):
        assert torch.equal(grouped_matmul(a, b, **given), want.to(BF16))
    if form == "offs":
        out = torch.full(want.shape, 7.0, dtype=BF16)
        grouped_matmul(a, b, out=out, config=SMALL, **given)
        assert torch.equal(out[:-2], want[:-2].to(BF16)) and (out[-2:] == 7).all()
    assert {type(plan).__name__ for plan, _ in ada} == {"Sm80Plan"}


@pytest.mark.parametrize("kind", [pytest.param(torch.float16, marks=slow)])
def test_gradients_are_groups_of_rows_and_along_k(kind: Any, ada: Any) -> None:
    a, b, _ = experts(kind)
    x, y = a.clone().requires_grad_(), b.detach().requires_grad_()
    c = grouped_matmul(x, y, OFFSETS)
    grad = integers(*c.shape, dtype=kind)
    c.backward(grad)
    ends = OFFSETS.tolist()
    for e in range(4):
        rows = slice(ends[e], ends[e + 1])
        assert torch.equal(x.grad[rows], (grad[rows].double() @ b[e].double().mT).to(kind))
        assert torch.equal(y.grad[e], (a[rows].double().mT @ grad[rows].double()).to(kind))
    assert [plan.along_k is not None for plan, _ in ada] == [False, False, True]


@pytest.mark.parametrize("what", [pytest.param(what, marks=slow) for what in ("indices", "masked", "epilogue", "gate")])
def test_parts_beside_groups(what: str, ada: Any) -> None:
    a, b, want = experts()
    if what == "indices":
        rows, out = torch.randperm(len(a)).int(), torch.randperm(len(a)).int()
        mixed, placed = torch.empty_like(a), torch.zeros_like(want)
        mixed[rows.long()], placed[out.long()] = a, want
        got = grouped_matmul(mixed, b, OFFSETS, rows=rows, out_rows=out)
        assert torch.equal(got, placed.to(BF16))
    elif what == "masked":
        b, counts = integers(5, 48, 80).mT, torch.tensor([3, 0, 40, 33, 1])
        a, rows, count = integers(50, 80), torch.randint(0, 50, (5, 40)), torch.arange(40) < counts[:, None]
        want = a[rows].double() @ b.double()
        assert torch.equal(grouped_matmul(a, b, counts=counts, rows=rows)[count], want[count].to(BF16))
    elif what == "epilogue":
        given = {"sums": torch.zeros(4, b.shape[-1])}
        steps = Epilogue(ColumnReduce("sum", "sums"), Activation("relu"))
        assert torch.equal(grouped_matmul(a, b, OFFSETS, epilogue=steps, given=given), want.relu().to(BF16))
        parts = want.tensor_split(OFFSETS[1:-1].long())
        assert torch.equal(given["sums"].double(), torch.stack([part.sum(0) for part in parts]))
    else:
        both = torch.cat([b.mT, b.mT], 1).mT
        got = grouped_matmul(a, both, OFFSETS, activation="swiglu", out_dtype=F32)
        assert torch.allclose(got.double(), torch.nn.functional.silu(want) * want, rtol=1e-5)


@pytest.mark.parametrize("groups", [pytest.param(groups, marks=slow) for groups in (False, True)])
def test_scales_of_128_of_k(groups: bool, ada: Any) -> None:
    if groups:
        a, b, _ = experts(E4M3)
        (m, k), n, ends = a.shape, b.shape[-1], OFFSETS.tolist()
        sa, sb = powers(m, -(-k // 128)), powers(4, -(-n // 128), -(-k // 128))
        wide = a.double() * spread(sa, 1, m, k)
        each = [wide[ends[e] : ends[e + 1]] @ (b[e].double() * spread(sb[e], 128, n, k).mT) for e in range(4)]
        got = grouped_matmul(a, b, OFFSETS, scale_a=sa, scale_b=sb, out_dtype=F32)
        assert torch.equal(got.double(), torch.cat(each))
        return
    a, b, sa, sb = integers(70, 300, dtype=E4M3), integers(48, 300, dtype=E4M3).mT, powers(70, 3), powers(1, 3)
    want = (a.double() * spread(sa, 1, 70, 300)) @ (b.double() * spread(sb, 128, 48, 300).mT)
    for _ in range(2):
        assert torch.equal(scaled_matmul(a, sa, b, sb, out_dtype=F32).double(), want)
    rows, columns = powers(70, 1), powers(1, 48)
    want = rows.double() * (a.double() @ b.double()) * columns.double()
    for fast in (True, False):
        got = scaled_matmul(
            a, rows, b, columns, recipe_a="RowWise", recipe_b="RowWise", use_fast_accum=fast, out_dtype=F32
        )
        assert torch.equal(got.double(), want)


def test_the_plan_is_explained_and_refusals_name_the_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is launched."""
    assert by_mma.by_mma(-1, SMALL) and not by_mma.by_mma(-1, None)
    a, b, _ = experts()
    eight, of_eight, _ = experts(E4M3)
    with every_door(monkeypatch, "sm_120a", computes=False):
        told = explain_matmul(a, b, offsets=OFFSETS)
        assert "Sm80Plan 4 x" in told.kernel and told.why.endswith("by mma.sync (not measured)") and told.launches == 1
        told = explain_matmul(eight, of_eight, offsets=OFFSETS, scale_a=powers(len(eight), 2), scale_b=powers(4, 1, 2))
        assert "K blocks of 128 promoted" in told.kernel
        with pytest.raises(OperandError, match=r"config is one of sm_90a's kernel, and .* runs sm_120a; an Sm80Config"):
            explain_matmul(a, b, offsets=OFFSETS, config=Sm90Config((64, 64), consumers=1))
        with pytest.raises(OperandError, match=r"copy_rows: the kernel of mma\.sync gathers a's rows"):
            grouped_matmul(a, b, OFFSETS, rows=torch.arange(len(a)), copy_rows=True)
        x, y = integers(72, 256, dtype=E4M3), integers(48, 256, dtype=E4M3).mT
        with pytest.raises(OperandError, match="scale_a: scales of 128 of K of groups along K are sm_90a's"):
            grouped_matmul(x, y, torch.tensor([0, 128, 256]), scale_a=powers(72, 2), scale_b=powers(48, 2))
    with every_door(monkeypatch, "sm_86", computes=False), pytest.raises(PlanError, match="it exists from sm_89 on"):
        grouped_matmul(eight, of_eight, OFFSETS)
