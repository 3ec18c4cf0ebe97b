"""Experts of transformers by two grouped products, beside each row's own products in float64."""

from __future__ import annotations

import copy
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm.errors import LayoutError, OperandError
from layoutgemm.nn import experts as experts_file
from layoutgemm.nn import experts_forward, swap_linears

BF16 = torch.bfloat16
EXPERTS, WIDE, HIDDEN, TOKENS = 3, 128, 64, 9
INDEX = torch.tensor([[0, 2], [1, 0], [2, 1], [0, 2], [0, 1], [2, 0], [1, 2], [0, 2], [0, 1]])


class Experts(torch.nn.Module):
    """Experts with the facts that transformers' decorator adds; the forward computes row by row."""

    def __init__(self, gate: bool = True, bias: bool = False, transposed: bool = False, norm: bool = False):
        super().__init__()
        self.has_gate, self.has_bias, self.is_transposed, self.has_post_expert_norm = gate, bias, transposed, norm
        self.first = "gate_up_proj" if gate else "up_proj"
        for name, n, k in ((self.first, HIDDEN * (1 + gate), WIDE), ("down_proj", WIDE, HIDDEN)):
            w = torch.randn(EXPERTS, n, k) / 8
            setattr(self, name, torch.nn.Parameter(w.mT.contiguous() if transposed else w))
            if bias:
                setattr(self, f"{name}_bias", torch.nn.Parameter(torch.randn(EXPERTS, n)))
        self.act_fn = torch.nn.SiLU()
        if norm:
            self.post_expert_norm = torch.nn.RMSNorm(WIDE)

    def _apply_gate(self, x: Any) -> Any:
        gate, up = x[..., ::2], x[..., 1::2]  # in an order of its own
        return self.act_fn(gate) * up

    def one(self, x: Any, name: str, e: int) -> Any:
        w = getattr(self, name)[e]
        y = x @ (w if self.is_transposed else w.T)
        return y + getattr(self, f"{name}_bias")[e] if self.has_bias else y

    def forward(self, x: Any, index: Any, weights: Any) -> Any:
        rows = []
        for row, experts, factors in zip(x, index.tolist(), weights, strict=True):
            total = torch.zeros_like(row)
            for e, factor in zip(experts, factors, strict=True):
                if 0 <= e < EXPERTS:
                    hidden = self.one(row, self.first, e)
                    hidden = self._apply_gate(hidden) if self.has_gate else self.act_fn(hidden)
                    y = self.one(hidden, "down_proj", e)
                    total = total + factor * (self.post_expert_norm(y) if self.has_post_expert_norm else y)
            rows.append(total)
        return torch.stack(rows)


def drawn(device: str = "cpu", **facts: bool) -> tuple[Any, Any, Any]:
    torch.manual_seed(0)
    given = Experts(**facts).to(BF16), torch.randn(TOKENS, WIDE).to(BF16), torch.rand(TOKENS, 2)
    return tuple([each.to(device) for each in given])  # type: ignore[return-value]


def gradients(call: Any, module: Any, x: Any) -> list[Any]:
    x = x.detach().requires_grad_()
    y = call(x)
    slope = torch.cos(torch.arange(y.numel(), device=y.device)).view(y.shape).to(y.dtype)
    return [y, *torch.autograd.grad(y, [x, *module.parameters()], slope)]


FACTS: dict[str, dict[str, bool]] = {
    "gated": {}, "no gate": {"gate": False}, "transposed, with biases": {"bias": True, "transposed": True},
    "a norm": {"norm": True},
}  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.dsl])])
@pytest.mark.parametrize("name", FACTS)
def test_values_and_gradients_are_float64s(name: str, device: str) -> None:
    module, x, factors = drawn(device, **FACTS[name])
    index = INDEX.to(device, copy=True)
    index[3, 1], index[4, 0] = EXPERTS, -1  # on another process, as expert parallelism says it
    wide = copy.deepcopy(module).double()
    want = gradients(lambda x: wide(x, index, factors.double()), wide, x.double())
    for weights, bound in (("own", 2**-5), ("master", 2**-3)):
        if weights == "master" and module.has_bias:
            continue

        def call(x: Any, weights: str = weights) -> Any:
            return experts_forward(module, x, index, factors, weights=weights)

        for found, right in zip(gradients(call, module, x), want, strict=True):
            assert found.dtype == BF16
            assert (found - right).detach().norm() <= bound * right.detach().norm()


def usual(module: Any, x: Any) -> Any:
    gate, up = x.chunk(2, -1)
    return module.act_fn(gate) * up


class Usual(Experts):
    """Experts whose gate is transformers' own."""

    _apply_gate = usual


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.dsl])])
@pytest.mark.parametrize("act", [torch.nn.SiLU(), torch.nn.GELU(), torch.nn.GELU("tanh"), None])
def test_rows_go_by_index_without_gradients(act: Any, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", SimpleNamespace(_default_apply_gate=usual))
    gates = []
    product = experts_file.grouped_matmul

    def counted(*args: Any, **named: Any) -> Any:
        gates.append(named.get("activation"))
        return product(*args, **named)

    monkeypatch.setattr(experts_file, "grouped_matmul", counted)
    module, x, factors = drawn(device)
    index = INDEX.to(device, copy=True)
    index[3, 1], index[4, 0] = EXPERTS, -1
    if act is not None:
        module.__class__, module.act_fn = Usual, act
    wide = copy.deepcopy(module).double()
    with torch.no_grad():
        found, want = experts_forward(module, x, index, factors), wide(x.double(), index, factors.double())
    known = {"SiLU()": "swiglu", "GELU(approximate='none')": "geglu"}
    assert gates == [known.get(repr(act)), None]
    assert found.dtype == BF16
    assert (found - want).norm() <= 2**-7 * want.norm()
    recorded = experts_forward(module, x, index, factors)
    assert (recorded - want).norm() <= 2**-6 * want.norm()
    hook = module.act_fn.register_forward_hook(lambda *_: None)
    assert experts_file.usual_gate(module) is None
    hook.remove()


def usual_experts(monkeypatch: pytest.MonkeyPatch, device: str, **facts: bool) -> tuple[Any, Any, Any, Any]:
    """Experts with transformers' own gate, x, indices of which two are of no expert, and factors."""
    monkeypatch.setitem(sys.modules, "transformers.integrations.moe", SimpleNamespace(_default_apply_gate=usual))
    module, x, factors = drawn(device, **facts)
    module.__class__ = Usual
    index = INDEX.to(device, copy=True)
    index[3, 1], index[4, 0] = EXPERTS, -1
    return module, x, index, factors


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.dsl])])
@pytest.mark.parametrize("transposed", [False, True])
def test_gated_experts_are_one_node_with_float64s_gradients(
    transposed: bool, device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of some operands alone; factors of no expert have a gradient of 0."""
    module, x, index, factors = usual_experts(monkeypatch, device, transposed=transposed)
    wide = copy.deepcopy(module).double()
    found_of, want_of = [], []
    for call, layer, of in ((experts_forward, module, found_of), (None, wide, want_of)):
        dtype = layer.down_proj.dtype
        given = [t.detach().to(dtype if t is x else torch.float64 if call is None else t.dtype) for t in (x, factors)]
        rows, weights = (t.requires_grad_() for t in given)
        y = layer(rows, index, weights) if call is None else call(layer, rows, index, weights)
        slope = torch.cos(torch.arange(y.numel(), device=device)).view(y.shape).to(y.dtype)
        inputs = [rows, weights, *layer.parameters()]
        of += [y, *torch.autograd.grad(y, inputs, slope, retain_graph=True)]
        for one in inputs:
            of += torch.autograd.grad(y, [one], slope, retain_graph=True)
        if call is not None:
            assert type(y.grad_fn).__name__ == "_ExpertsBackward", y.grad_fn
    for found, want in zip(found_of, want_of, strict=True):
        assert (found - want).detach().norm() <= 2**-6 * want.detach().norm()
    assert found_of[2][3, 1] == found_of[2][4, 0] == 0
    assert [found_of[i].stride() for i in (3, 4)] == [each.stride() for each in module.parameters()]


def test_gradients_of_gated_experts_have_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Recorded backward passes, and those of several gradients at once, are those of the single operators."""
    module, x, index, factors = usual_experts(monkeypatch, "cpu")
    results: list[list[Any]] = []
    for alone in (True, False):
        monkeypatch.setattr(experts_file, "recorded_alone", lambda *_, alone=alone: alone)
        rows, weights = x.clone().requires_grad_(), factors.clone().requires_grad_()
        inputs = [rows, weights, *module.parameters()]
        y = experts_forward(module, rows, index, weights)
        first = torch.autograd.grad(y.float().square().sum(), inputs, create_graph=True)
        second = torch.autograd.grad(sum(each.float().square().sum() for each in first), inputs)
        y = experts_forward(module, rows, index, weights)
        batch = torch.autograd.grad(y, inputs, torch.stack([y.detach(), 2 * y.detach()]), is_grads_batched=True)
        results.append([*first, *second, *batch])
    for found, want in zip(*results, strict=True):
        assert (found - want).double().norm() <= 2**-6 * want.double().norm()


def test_autocast_and_no_rows() -> None:
    module, x, factors = drawn()
    module = module.float()
    with torch.no_grad(), torch.autocast("cpu", BF16):
        found = experts_forward(module, x.float(), INDEX, factors)
        assert experts_forward(module, x[:0].float(), INDEX[:0], factors[:0]).shape == (0, WIDE)
    want = copy.deepcopy(module).double()(x.double(), INDEX, factors.double())
    assert found.dtype == BF16
    assert (found - want).norm() <= 2**-6 * want.norm()
    with torch.no_grad(), pytest.raises(OperandError, match="float32"):
        experts_forward(module, x.float(), INDEX, factors)


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_torch_func_derives_it_in_all_modes() -> None:
    module, x, factors = drawn()
    weights = dict(module.named_parameters())

    def loss(weights: Any, x: Any) -> Any:
        call = torch.func.functional_call(module, weights, (x,), {"index": INDEX, "weights": factors})
        return call.float().square().sum()

    def ours(weights: Any, x: Any) -> Any:
        held = copy.copy(module)
        held._parameters = weights
        return experts_forward(held, x, INDEX, factors).float().square().sum()

    for made in (
        lambda f: torch.func.grad(f)(weights, x)["down_proj"],
        lambda f: torch.func.jvp(lambda x: f(weights, x), (x,), (x,))[1],
        lambda f: torch.func.vmap(lambda x: f(weights, x))(torch.stack([x, 2 * x])),
    ):
        found, want = made(ours).float(), made(loss).float()
        assert (found - want).norm() <= 2**-4 * want.norm()


def test_a_graph_holds_it_whole() -> None:
    module, x, factors = drawn()
    torch._dynamo.reset()
    compiled = torch.compile(experts_forward, backend="eager", fullgraph=True)
    assert torch.equal(compiled(module, x, INDEX, factors), experts_forward(module, x, INDEX, factors))


def test_refusals_say_what_is_missing() -> None:
    module, x, factors = drawn(bias=True)
    with pytest.raises(OperandError, match="experts of a Experts have biases, and fp8 products none: 'own'"):
        experts_forward(module, x, INDEX, factors, weights="master")
    with pytest.raises(OperandError, match="weights 'fp8': 'own' or 'master'"):
        experts_forward(module, x, INDEX, factors, weights="fp8")
    with pytest.raises(OperandError, match="a Linear has no has_gate: experts of transformers have it, by use_experts"):
        experts_forward(torch.nn.Linear(2, 2), x, INDEX, factors)
    for index, weights, said in (
        (INDEX[:3], factors, r"index has shape \[3, 2\] and weights \[9, 2\]: both are \(9, k\)"),
        (INDEX, factors[:, :1], r"index has shape \[9, 2\] and weights \[9, 1\]"),
        (INDEX.float(), factors, r"index is torch\.float32: a row's experts are int32 or int64"),
    ):
        with pytest.raises(LayoutError, match=said):
            experts_forward(drawn()[0], x, index, weights)
    with pytest.raises(LayoutError, match=r"a is torch\.float32: a grouped product is of bfloat16"):
        experts_forward(drawn()[0].float(), x.float(), INDEX, factors)


def test_a_swap_names_the_function() -> None:
    swaps = swap_linears(torch.nn.ModuleList([drawn()[0]]))
    assert [each.reason.rpartition("; ")[2] for each in swaps.others] == ["experts_forward computes its products"]
