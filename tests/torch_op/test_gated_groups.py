"""Gated products of groups by grouped_matmul: experts with SwiGLU in one launch, by torch elsewhere, and gradients."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, explain_matmul, grouped_matmul
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.test_gated import close, expected
from tests.torch_op.test_operator import BF16, F32, emulated, integers
from tests.torch_op.test_scaled_kernels import OFFSETS

E4M3, F16 = torch.float8_e4m3fn, torch.float16
SMALL = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")
COUNTS = torch.tensor([20, 0, 1, 7], dtype=torch.int32)
GROUP = torch.repeat_interleave(torch.arange(4), OFFSETS.diff())  # of each row


def experts(kind: Any = BF16, k_major: bool = True, device: str = "cpu") -> tuple[Any, Any]:
    """Rows, and [gate | up] of four experts, (4, 144, 96)."""
    a, b = integers(70, 144, dtype=kind), integers(4, 96, 144, dtype=kind).mT
    return a.to(device), (b if k_major else b.contiguous()).to(device)


def by_rows(a: Any, b: Any, activation: str, group: Any = GROUP) -> Any:
    """In float64, from the definition."""
    return torch.stack([expected(a[i].cpu(), b[e].cpu(), activation) for i, e in enumerate(group.tolist())])


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
@pytest.mark.parametrize("kind", [BF16, F16, E4M3])
def test_the_definition_on_the_cpu(kind: Any, activation: str) -> None:
    a, b = experts(kind)
    want = by_rows(a, b, activation)
    for groups in ({"offsets": OFFSETS}, {"offs": OFFSETS[1:]}):
        got = grouped_matmul(a, b, **groups, activation=activation, out_dtype=F32)
        assert close(got, want, 2.0**-20)
    got = grouped_matmul(a, b, offs=torch.tensor([30, 30, 60, 63]), activation=activation)
    assert got.shape == (70, 48) and close(got[:60], want[:60]) and not got[63:].any()
    x = integers(4, 20, 144, dtype=kind)
    masked = grouped_matmul(x, b, counts=COUNTS, activation=activation, out=torch.full((4, 20, 48), 7.0, dtype=BF16),
                            out_dtype=BF16)  # fmt: skip
    count = torch.arange(20) < COUNTS[:, None]
    whole = expected(x, b, activation)
    assert close(masked[count], whole[count]) and (masked[~count] == 7).all()
    assert close(grouped_matmul(x, b, activation=activation), whole)
    for rows, k in ((0, 144), (70, 0)):
        empty = grouped_matmul(a[:rows, :k], b[:, :k], offs=(OFFSETS[1:] * (rows > 0)), activation=activation)
        assert empty.shape == (rows, 48) and not empty.any()


@pytest.mark.dsl
@pytest.mark.parametrize("kind", [BF16, pytest.param(E4M3, marks=pytest.mark.slow)])
def test_one_launch_twice(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept, into a new tensor and the caller's."""
    a, b = experts(kind)
    want, options = by_rows(a, b, "swiglu"), {"activation": "swiglu", "config": SMALL}
    out = torch.full((70, 48), 7.0, dtype=BF16)
    with emulated(monkeypatch) as calls:
        assert close(grouped_matmul(a, b, OFFSETS, **options), want)
        assert grouped_matmul(a, b, OFFSETS, out=out, **options) is out and close(out, want)
        assert calls[0][0][4] == 48  # the kernel's n is C's
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        ends = torch.tensor([0, 1, 40, 40, 70], dtype=torch.int32)
        other = by_rows(a, b, "swiglu", torch.repeat_interleave(torch.arange(4), ends.diff()))
        assert close(grouped_matmul(a, b, ends, **options), other)
        assert len(calls) == 3 and len(kept.READY) == 2


@pytest.mark.dsl
def test_masked_groups_and_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(4, 20, 144), experts()[1]
    count = torch.arange(20) < COUNTS[:, None]
    want = expected(a, b, "geglu")
    a[~count] = torch.nan
    with emulated(monkeypatch) as calls:
        got = grouped_matmul(a, b, counts=COUNTS, activation="geglu", config=SMALL)
        assert close(got[count], want[count])
        one = grouped_matmul(a[:1], b[:1], counts=COUNTS[:1], activation="geglu", config=SMALL)
        assert close(one[0, :20], want[0, :20])
        x, _ = experts()
        got = grouped_matmul(x, b, offs=torch.tensor([30, 30, 60, 63]), activation="swiglu", config=SMALL)
        assert close(got[:60], by_rows(x, b, "swiglu")[:60]) and not got[63:].any()
        assert len(calls) == 3


@pytest.mark.dsl
def test_weights_in_rows_are_gated_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product of all columns by the kernel; rows in no group stay."""
    a, b = experts(k_major=False)
    want = by_rows(a, b, "swiglu")
    ends, out = torch.tensor([30, 30, 60, 63]), torch.full((70, 48), 7.0, dtype=BF16)
    with emulated(monkeypatch) as calls:
        assert close(grouped_matmul(a, b, OFFSETS, activation="swiglu", config=SMALL), want)
        grouped_matmul(a, b, offs=ends, activation="swiglu", config=SMALL, out=out)
        assert close(out[:60], want[:60]) and (out[63:] == 7).all()
        assert [values[4] for values, _ in calls] == [96, 96]


def test_explanations() -> None:
    a, w = torch.empty(4096, 64).bfloat16(), torch.empty(4, 512, 64).bfloat16()
    ends = torch.tensor([1000, 2000, 3000, 4096], dtype=torch.int32)
    fused = explain_matmul(a, w.mT, offs=ends, activation="swiglu")
    assert "4096x256x64" in fused.kernel and "gated by silu" in fused.kernel and fused.launches == 1
    rows = explain_matmul(a, w.mT.contiguous(), offs=ends, activation="swiglu")
    assert "then torch gates it" in rows.kernel and "reads a K-major b" in rows.why
    counts = torch.tensor([3, 4, 5, 6])
    masked = explain_matmul(a.view(4, 1024, 64), w.mT, counts=counts, expected_rows=4, activation="geglu")
    assert "gated by gelu" in masked.kernel and "expected_rows = 4" in masked.why


@pytest.mark.parametrize("activation", ["swiglu", "geglu"])
def test_gradients(activation: str) -> None:
    """First and second derivatives against torch's of the definition in float64; by the operator too."""
    a, b = (x.float() / 8 for x in experts())
    given = [x.bfloat16().requires_grad_() for x in (a, b)]
    exact = [x.detach().double().requires_grad_() for x in given]
    ends = OFFSETS[1:]
    weight = torch.randn(70, 48, generator=torch.Generator().manual_seed(3)).bfloat16()
    want = by_rows(*exact, activation)
    of_want = torch.autograd.grad(want, exact, weight.double(), create_graph=True)
    second = torch.autograd.grad(of_want[0].square().sum(), exact)
    for call in (
        lambda: grouped_matmul(*given, offs=ends, activation=activation, out_dtype=F32),
        lambda: torch.ops.layoutgemm.grouped_matmul(*given, ends, "offs", activation=activation, out_dtype=F32),
    ):
        got = call()
        found = torch.autograd.grad(got, given, weight.float(), create_graph=True)
        again = torch.autograd.grad(found[0].float().square().sum(), given)
        for x, y in zip((got, *found, *again), (want, *of_want, *second), strict=True):
            assert float((x.double() - y).detach().norm() / y.detach().norm()) < 2e-2
    narrow = grouped_matmul(*given, offs=ends, activation=activation)
    assert narrow.dtype == BF16 and float((narrow.double() - want).detach().norm() / want.detach().norm()) < 1e-2


def test_modes_and_transforms() -> None:
    a, b = experts()
    ends = OFFSETS[1:]
    want = grouped_matmul(a, b, offs=ends, activation="swiglu")
    for backend in ("aot_eager", "inductor"):
        torch._dynamo.reset()
        call = torch.compile(lambda *x: grouped_matmul(*x[:2], offs=x[2], activation="swiglu"), backend=backend)
        assert torch.equal(call(a, b, ends), want)
    several = torch.vmap(lambda x: grouped_matmul(x, b, offs=ends, activation="swiglu"))(torch.stack([a, -a]))
    assert close(several[0], want.double(), 2.0**-7)  # gated in float32, not float64: ties may round otherwise
    with torch._subclasses.FakeTensorMode():
        given = torch.empty(70, 144).bfloat16(), torch.empty(4, 144, 96).bfloat16()
        fake = grouped_matmul(*given, offs=torch.ones(4).int(), activation="swiglu")
        assert fake.shape == (70, 48) and fake.dtype == BF16
    for grad in (False, True):
        given = a.detach().requires_grad_(grad), b.detach().requires_grad_(grad), ends, "offs"
        torch.library.opcheck(torch.ops.layoutgemm.grouped_matmul.default, given, {"activation": "swiglu"})


@pytest.mark.dsl
def test_a_bias_of_all_columns_comes_before_the_gate(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the kernel, by torch for weights in rows, on the CPU; its gradient too."""
    a, b = experts()
    bias = integers(4, 96, dtype=F32)
    sums = torch.stack([a[i].double() @ b[e].double() for i, e in enumerate(GROUP.tolist())])
    gate, up = (sums + bias[GROUP].double()).chunk(2, -1)
    want, options = torch.nn.functional.silu(gate) * up, {"activation": "swiglu", "config": SMALL}
    assert close(grouped_matmul(a, b, OFFSETS, bias=bias, **options), want)
    with emulated(monkeypatch) as calls:
        assert close(grouped_matmul(a, b, OFFSETS, bias=bias, **options), want)
        assert close(grouped_matmul(a, b.contiguous(), OFFSETS, bias=bias, **options), want)
        assert [values[4] for values, _ in calls] == [48, 96]
    leaf, exact = bias.clone().requires_grad_(), bias.double().requires_grad_()
    got = grouped_matmul(a, b, OFFSETS, bias=leaf, activation="swiglu", out_dtype=F32)
    gate, up = (sums + exact[GROUP]).chunk(2, -1)
    (of_want,) = torch.autograd.grad((torch.nn.functional.silu(gate) * up).sum(), exact)
    (of_got,) = torch.autograd.grad(got.sum(), leaf)
    assert close(of_got, of_want, 2.0**-12)


# ------------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize("kind", [BF16, F16, E4M3])
@pytest.mark.parametrize("rows", [(3, 0, 20, 1), (300, 1, 0, 723), (2000, 3000, 0, 2501)])
def test_on_a_gpu(rows: tuple[int, ...], kind: Any) -> None:
    """By the chosen tiles against float64: rows, weights in rows, masked groups; the same bits in a CUDA graph."""
    torch.manual_seed(0)
    a = torch.randn(sum(rows), 512, device="cuda").to(kind)
    w = (torch.randn(4, 688, 512, device="cuda") / 16).to(kind)
    ends = torch.tensor(rows, device="cuda").cumsum(0).int()
    group = torch.repeat_interleave(torch.arange(4, device="cuda"), torch.tensor(rows, device="cuda"))
    gate, up = torch.stack([a[i].double() @ w[e].double().T for i, e in enumerate(group.tolist())]).chunk(2, -1)
    want = torch.nn.functional.silu(gate) * up
    out = torch.empty(sum(rows), 344, dtype=BF16 if kind == E4M3 else kind, device="cuda")
    rounding = 2.0**-8 if out.dtype == BF16 else 2.0**-11
    room = rounding * want.abs() + (0.2 if kind == E4M3 else 2e-3)  # sums of 8 bits keep 14 bits
    for b in (w.mT, w.mT.contiguous()):
        assert bool(((grouped_matmul(a, b, offs=ends, activation="swiglu").double() - want).abs() <= room).all())
    grouped_matmul(a, w.mT, offs=ends, activation="swiglu", out=out)
    first = out.clone()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_matmul(a, w.mT, offs=ends, activation="swiglu", out=out.fill_(7.0))
    graph.replay()
    assert torch.equal(out, first)
    most = max(rows)
    x, counts = torch.zeros(4, most, 512, device="cuda").to(kind), torch.tensor(rows, device="cuda")
    for e, part in enumerate(a.split(rows)):
        x[e, : rows[e]] = part
    got = grouped_matmul(x, w.mT, counts=counts, activation="swiglu")
    assert bool(((torch.cat([got[e, :n] for e, n in enumerate(rows)]).double() - want).abs() <= room).all())
