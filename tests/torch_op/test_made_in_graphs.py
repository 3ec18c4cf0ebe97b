"""Epilogues, orders and configurations that a compiled function makes: constants of the graph, or a plain refusal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, matmul
from layoutgemm.kernels import Prologue, Triangles
from layoutgemm.kernels.epilogue.chain import Activation, Bias, ColumnGroup, Custom, Epilogue
from layoutgemm.layouts import Layout
from layoutgemm.schedule import Banded, Triangular

A, B, BIAS = torch.randn(64, 64).bfloat16().tril(), torch.randn(64, 64).bfloat16(), torch.randn(64)
TEXTS = Epilogue(Bias(), Activation("gelu")).json, Prologue.of(lambda x, i, k, ops: x * 2.0).to_json()
MADE: dict[str, tuple[str, Callable[[], Any], dict[str, Any]]] = {
    "epilogue": ("epilogue", lambda: Epilogue(Bias(), Activation("gelu")), {"given": {"bias": BIAS}}),
    "named": ("epilogue", lambda: Epilogue.named("GELU_BIAS"), {"given": {"bias": BIAS}}),
    "epilogue's text": ("epilogue", lambda: Epilogue.from_json(TEXTS[0]), {"given": {"bias": BIAS}}),
    "prologue's text": ("prologue", lambda: Prologue.from_json(TEXTS[1]), {}),
    "custom": ("epilogue", lambda: Epilogue(Custom.of(lambda x, i, j, ops: x * 2.0)), {}),
    "columns": ("epilogue", lambda: Epilogue(ColumnGroup.of(lambda x, i, j, ops: (x[1], x[0]))), {}),
    "order": ("order", lambda: Triangular("lower"), {}),
    "banded": ("order", lambda: Banded(below=1, above=0), {}),
    "layout": ("order", lambda: Layout((1, 1)), {}),
    "config": ("config", lambda: Sm90Config((64, 64), consumers=1), {}),
    "triangles": ("triangles", lambda: Triangles("lower"), {}),
    "prologue": ("prologue", lambda: Prologue.of(lambda x, i, k, ops: x * 2.0), {}),
}


@pytest.mark.parametrize("name", MADE)
def test_objects_made_in_a_graph_are_refused_in_plain_words(name: str) -> None:
    argument, make, more = MADE[name]

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return matmul(a, b, **{argument: make()}, **more)

    want = product(A, B)
    torch._dynamo.reset()
    if argument == "triangles" or name in ("order", "banded", "named") or name.endswith("text"):
        assert torch.equal(torch.compile(product, backend="aot_eager", fullgraph=True)(A, B), want)
        return
    with pytest.raises(Exception, match=r"are made before the compiled function is called; epilogues and prologues"):
        torch.compile(product, backend="eager", fullgraph=True)(A, B)
    torch._dynamo.reset()
    assert torch.equal(torch.compile(product, backend="eager")(A, B), want)  # the graph breaks there
    found = make()
    may_be_marked = argument in ("epilogue", "prologue")
    made = torch.compiler.assume_constant_result(make) if may_be_marked else lambda: found

    def constant(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return matmul(a, b, **{argument: made()}, **more)

    torch._dynamo.reset()
    assert torch.equal(torch.compile(constant, backend="aot_eager", fullgraph=True)(A, B), want)
