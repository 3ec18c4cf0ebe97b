"""The blocks of the page on transformers, run on stand-ins of its models."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from layoutgemm.nn import MasterLinear
from tests.nn.test_experts_forward import Experts
from tests.test_readme import Block, blocks

PAGE = Path(__file__).resolve().parents[2] / "docs" / "transformers.md"
REGISTRY: dict[str, Callable[..., Any]] = {}


class Attention(torch.nn.Module):
    """Attention of one head."""

    def __init__(self, wide: int):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (torch.nn.Linear(wide, wide, bias=False) for _ in range(4))

    def forward(self, x: Any) -> Any:
        q, k, v = self.q_proj(x), self.k_proj(x), self.v_proj(x)
        return self.o_proj(scaled_dot_product_attention(q, k, v, is_causal=True))


class Mlp(torch.nn.Module):
    """A gated MLP."""

    def __init__(self, wide: int, hidden: int):
        super().__init__()
        self.gate_proj, self.up_proj = (torch.nn.Linear(wide, hidden, bias=False) for _ in range(2))
        self.down_proj, self.act_fn = torch.nn.Linear(hidden, wide, bias=False), torch.nn.SiLU()

    def forward(self, x: Any) -> Any:
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class Mixture(torch.nn.Module):
    """Experts behind a router, computed by the function that the model names."""

    def __init__(self, wide: int, hidden: int):
        super().__init__()
        self.router, self.experts = torch.nn.Parameter(torch.randn(3, wide)), Experts()
        self.implementation = "eager"

    def forward(self, x: Any) -> Any:
        rows = x.flatten(0, 1)
        weights, index = (rows @ self.router.T).float().softmax(-1).topk(2)
        call = REGISTRY.get(self.implementation, lambda module, *given: module(*given))
        return call(self.experts, rows, index, weights).view(x.shape)


class Model(torch.nn.Module):
    """A language model of such layers."""

    mlp: Callable[[int, int], torch.nn.Module] = Mlp

    def __init__(self, config: Any):
        super().__init__()
        torch.manual_seed(0)
        wide, hidden = config.hidden_size, config.intermediate_size
        layers = [
            torch.nn.ModuleDict({"self_attn": Attention(wide), "mlp": type(self).mlp(wide, hidden)})
            for _ in range(config.num_hidden_layers)
        ]
        self.model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(64, wide), "layers": torch.nn.ModuleList(layers)})
        self.lm_head = torch.nn.Linear(wide, 64, bias=False)

    def set_experts_implementation(self, name: str) -> None:
        for module in self.modules():
            if isinstance(module, Mixture):
                module.implementation = name

    def forward(self, tokens: Any, labels: Any) -> Any:
        x = self.model["embed"](tokens)
        for layer in self.model["layers"]:
            for name in ("self_attn", "mlp"):
                x = x + layer[name](torch.nn.functional.rms_norm(x, x.shape[-1:]))
        logits = self.lm_head(x)[:, :-1].flatten(0, 1).float()
        return SimpleNamespace(loss=cross_entropy(logits, labels[:, 1:].flatten()))


class Mixtral(Model):
    """The model with a mixture of experts in each layer."""

    mlp = Mixture


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    moe = SimpleNamespace(register=REGISTRY.__setitem__)
    made: dict[str, dict[str, Any]] = {
        "transformers": {
            "LlamaConfig": SimpleNamespace, "LlamaForCausalLM": Model, "MixtralConfig": SimpleNamespace,
            "MixtralForCausalLM": Mixtral,
        },
        "transformers.integrations": {}, "transformers.integrations.moe": {"ALL_EXPERTS_FUNCTIONS": moe},
    }  # fmt: skip
    for name, contents in made.items():
        module = ModuleType(name)
        vars(module).update(contents)
        monkeypatch.setitem(sys.modules, name, module)


def page_blocks() -> list[Block]:
    return [block for block in blocks(PAGE.read_text(encoding="utf-8")) if "transformers" in block.tags]


@pytest.mark.parametrize(("at", "layers"), [(0, 7), (1, 4)], ids=["Llama", "Mixtral"])
def test_the_page_trains_in_fp8(at: int, layers: int, stand_ins: None, monkeypatch: Any, capsys: Any) -> None:
    names: dict[str, Any] = {}
    with monkeypatch.context() as within:
        within.setattr(Experts, "forward", None)  # the registered function computes them
        exec(page_blocks()[at].text, names)
        model, tokens = names["model"], names["tokens"]
        with torch.no_grad():
            loss = float(model(tokens, labels=tokens).loss)
    assert f"{layers} of {layers + 1} linear layers replaced" in capsys.readouterr().out
    assert sum(isinstance(module, MasterLinear) for module in model.modules()) == layers
    assert all(p.grad is not None and bool(p.grad.any()) for p in model.parameters())
    again = type(model)(names["config"])
    again.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert abs(loss - float(again(tokens, labels=tokens).loss)) <= 2**-6 * loss
