"""grouped_matmul of rows by index with gates, scales, biases and ends: a mixture of experts' first half in one call."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, explain_matmul, grouped_matmul
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.test_gated import ACTS, close
from tests.torch_op.test_operator import BF16, F32, emulated, integers

E4M3 = torch.float8_e4m3fn
SMALL = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")
OFFSETS = torch.tensor([0, 30, 30, 69, 90], dtype=torch.int32)
GROUP = torch.repeat_interleave(torch.arange(4), OFFSETS.diff())
M, H, K, TOKENS = 90, 48, 144, 33


def problem(kind: Any = BF16, scaled: bool = False) -> tuple[Any, Any, Any, dict[str, Any]]:
    """Tokens, [gate | up] of four experts, the rows, and scales of blocks or a bias."""
    torch.manual_seed(0)
    a, b = integers(TOKENS, K, dtype=kind), integers(4, 2 * H, K, dtype=kind).mT
    rows = torch.randint(0, TOKENS, (M,), dtype=torch.int32)
    if not scaled:
        return a, b, rows, {"bias": integers(4, 2 * H, dtype=F32)}
    powers = torch.tensor([0.5, 1.0, 2.0])
    scale = {"scale_a": powers[torch.randint(0, 3, (TOKENS, 2))], "scale_b": powers[torch.randint(0, 3, (4, 1, 2))]}
    return a, b, rows, scale


def definition(a: Any, b: Any, rows: Any, given: dict[str, Any], activation: str | None = "swiglu") -> Any:
    """In float64."""
    x, w = a.double(), b.double()
    if "scale_a" in given:
        x = x * given["scale_a"].double().repeat_interleave(128, -1)[:, :K]
        w = w * given["scale_b"].double().repeat_interleave(128, -1)[..., :K].mT
    sums = torch.stack([x[i] @ w[e] for i, e in zip(rows.tolist(), GROUP.tolist())])
    if "bias" in given:
        sums = sums + given["bias"].double()[GROUP]
    if activation is None:
        return sums
    gate, up = sums.chunk(2, -1)
    return ACTS[activation](gate) * up


@pytest.mark.parametrize(("kind", "scaled"), [(BF16, False), (E4M3, True), (E4M3, False)])
def test_the_definition_on_the_cpu(kind: Any, scaled: bool) -> None:
    a, b, rows, given = problem(kind, scaled)
    want = definition(a, b, rows, given)
    for groups in ({"offsets": OFFSETS}, {"offs": OFFSETS[1:]}):
        got = grouped_matmul(a, b, rows=rows, activation="swiglu", out_dtype=F32, **groups, **given)
        assert close(got, want, 2.0**-20)
    out = torch.full((M, H), 7.0, dtype=BF16)
    few = OFFSETS[1:] - 20 * (OFFSETS[1:] > 80).int()  # the last rows are in no group
    assert grouped_matmul(a, b, offs=few, rows=rows, activation="geglu", out=out, out_dtype=BF16, **given) is out
    assert close(out[:69], definition(a, b, rows, given, "geglu")[:69]) and bool((out[70:] == 7).all())
    new = grouped_matmul(a, b, offs=few, rows=rows, activation="geglu", **given)
    assert not new[70:].any()


@pytest.mark.dsl
@pytest.mark.parametrize(("kind", "scaled"), [(BF16, False), (E4M3, True)])
def test_one_launch_twice(kind: Any, scaled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept; scales of the chosen rows are those of the tokens."""
    a, b, rows, given = problem(kind, scaled)
    options = {"activation": "swiglu", "config": SMALL, **given}
    with emulated(monkeypatch) as calls:
        assert close(grouped_matmul(a, b, OFFSETS, rows=rows, **options), definition(a, b, rows, given))
        assert calls[0][0][4] == H and len(calls) == 1
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        other = rows.flip(0).contiguous()
        assert close(grouped_matmul(a, b, OFFSETS, rows=other, **options), definition(a, b, other, given))
        assert len(calls) == 2 and len(kept.READY) == 1


@pytest.mark.dsl
def test_ends_and_weights_in_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, rows, given = problem()
    ends = torch.tensor([30, 30, 69, 80], dtype=torch.int32)
    want = definition(a, b, rows, given)
    with emulated(monkeypatch) as calls:
        got = grouped_matmul(a, b.contiguous(), offs=ends, rows=rows, activation="swiglu", config=SMALL, **given)
        assert close(got[:80], want[:80]) and not got[80:].any()
        assert calls[0][0][4] == 2 * H  # torch gates all columns
        plain = grouped_matmul(a, b, offs=ends, rows=rows, config=SMALL)
        assert close(plain[:80], definition(a, b, rows, {}, None)[:80]) and not plain[80:].any()


@pytest.mark.parametrize("activation", ["swiglu", "geglu", "relu", "silu"])
@pytest.mark.parametrize("form", ["groups", "groups with a bias", "scattered and weighted"])
def test_gradients_are_those_of_torchs_own_operators(form: str, activation: str) -> None:
    a, b, rows, given = problem()
    bias = given["bias"] / 4
    a, b = (a / 4).to(BF16), (b / 16).to(BF16)
    back, weights = torch.randperm(M), torch.rand(M) + 0.5
    gates = activation in ACTS
    grad = torch.randn(M, H if gates else 2 * H)
    found = []
    for mine in (True, False):
        x, w, c, s = [t.detach().clone().requires_grad_() for t in (a, b, bias, weights)]
        if mine and form == "groups":
            y = grouped_matmul(x, w, OFFSETS, rows=rows, activation=activation, out_dtype=F32)
        elif mine and form == "groups with a bias":
            y = grouped_matmul(x, w, OFFSETS, rows=rows, activation=activation, bias=c, out_dtype=F32)
        elif mine:
            y = grouped_matmul(
                x, w, OFFSETS, rows=rows, out_rows=back, row_weights=s, activation=activation, out_dtype=F32
            )
        else:
            y = torch.cat([x.float()[rows[f:e]] @ w.float()[g] for g, (f, e) in enumerate(pairwise(OFFSETS))])
            y = y + c[GROUP] if form == "groups with a bias" else y
            act = ACTS.get(activation) or getattr(torch.nn.functional, activation)
            y = act(y.chunk(2, -1)[0]) * y.chunk(2, -1)[1] if gates else act(y)
            y = torch.zeros_like(y).index_copy(0, back, y * s[:, None]) if form.startswith("scattered") else y
        y.backward(grad)
        found.append([y, x.grad, w.grad, c.grad, s.grad])
    for ours, want in zip(*found, strict=True):
        assert (ours is None) == (want is None)
        if want is not None:
            error = (ours.double() - want.double()).norm()
            assert error <= 2.0**-7 * want.double().norm() > 0


def test_compilers_transforms_and_autocast() -> None:
    a, b, rows, given = problem()
    want = grouped_matmul(a, b, OFFSETS, rows=rows, activation="swiglu", **given)

    def call(x: Any, w: Any, c: Any, r: Any) -> Any:
        return grouped_matmul(x, w, OFFSETS, rows=r, activation="swiglu", bias=c)

    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    assert close(compiled(a, b, given["bias"], rows), want.double(), 2.0**-7)
    each = torch.vmap(lambda x: call(x, b, given["bias"], rows))(torch.stack([a, -a]))
    assert close(each[0], want.double(), 2.0**-7)
    with torch.autocast("cpu", dtype=BF16):
        assert close(call(a.float(), b.float(), given["bias"], rows), want.double(), 2.0**-7)
    meta = [x.to("meta") for x in (a, b, OFFSETS, rows, given["bias"])]
    assert grouped_matmul(*meta[:3], rows=meta[3], bias=meta[4], activation="swiglu").shape == (M, H)
    gated = torch.compile(
        lambda x, w, r: grouped_matmul(x, w, OFFSETS, rows=r, activation="swiglu"), fullgraph=True, backend="aot_eager"
    )
    leaf = a.clone().requires_grad_()
    gated(leaf, b, rows).sum().backward()
    twin = a.clone().requires_grad_()
    grouped_matmul(twin, b, OFFSETS, rows=rows, activation="swiglu").sum().backward()
    assert torch.equal(leaf.grad, twin.grad) and leaf.grad.any()


def test_explanations_say_what_is_copied() -> None:
    a, b, rows, given = problem(E4M3, True)
    found = explain_matmul(a, b, offsets=OFFSETS, rows=rows, activation="swiglu", **given)
    assert "gated by silu" in found.kernel and "rows copied from 33 of A" in found.kernel
    assert [text.partition(":")[0] for text in found.copies] == ["a", "scale_a"]
    assert found.workspace == sum(int(text.split()[-2]) for text in found.copies)
    a, b, rows, given = problem()
    by_torch = explain_matmul(a, b.contiguous(), offs=OFFSETS[1:], rows=rows, activation="swiglu", **given)
    assert "then torch gates it" in by_torch.kernel
    assert explain_matmul(a, b, offsets=OFFSETS, rows=rows, **given).launches == 1


def test_refusals_name_the_operand() -> None:
    a, b, rows, given = problem(E4M3, True)
    for more, error, text in (
        ({"copy_rows": False}, OperandError, "copy_rows: False"),
        ({"rows": rows.float()}, OperandError, "rows is torch.float32 of 1 dimensions: int32 or int64"),
        ({"rows": rows.clone().fill_(TOKENS)}, OperandError, r"rows\[0\] = 33: a has 33 rows"),
        ({"scale_a": torch.ones(M, 2)}, OperandError, r"scale_a has shape \[90, 2\], and a \[33, 144\]"),
        ({"scale_a": given["scale_a"].double()}, OperandError, "scale_a is torch.float64"),
        ({"offs": OFFSETS[1:]}, OperandError, "offsets and offs"),
        ({"offsets": None}, OperandError, "rows: with scales, a bias or an epilogue they are of groups"),
        ({"a": a[None]}, TensorError, "a has 3 dimensions: row indices take"),
        ({"scale_a": given["scale_a"].clone().requires_grad_()}, TensorError, "scale_a requires grad"),
        ({"out": torch.empty(M, H, dtype=F32)}, TensorError, "Expected out tensor to have dtype"),
    ):
        full = {"a": a, "b": b, "offsets": OFFSETS, "rows": rows, "activation": "swiglu", **given, **more}
        with pytest.raises(error, match=text):
            grouped_matmul(**full)


# ------------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize(("kind", "scaled"), [(BF16, False), (E4M3, True)])
def test_on_a_gpu(kind: Any, scaled: bool) -> None:
    a, b, rows, given = problem(kind, scaled)
    want = definition(a, b, rows, given)
    cuda = {name: x.cuda() for name, x in {"offsets": OFFSETS, "rows": rows, **given}.items()}
    got = grouped_matmul(a.cuda(), b.mT.contiguous().cuda().mT, activation="swiglu", **cuda)
    assert close(got.cpu(), want, 2.0**-7)
