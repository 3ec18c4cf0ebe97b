"""Training steps in compiled models: products of forward and backward graphs rewritten, with the same gradients.

The graphs are those that Inductor's decompositions and partitioner make, run as they are; one model by Inductor itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import torch._inductor.config as config
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor.decomposition import select_decomp_table
from torch.utils.checkpoint import checkpoint

from layoutgemm import inductor
from layoutgemm.inductor.rewrite import PRODUCTS, GraphReport, rewrite_graph

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
Model, Gradients = Any, dict[str, Any]


def normal(*shape: int, kind: Any = BF16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(kind)


class Mlp(torch.nn.Module):
    def __init__(self, kind: Any = BF16, recomputes: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = torch.nn.Linear(16, 32, dtype=kind), torch.nn.Linear(32, 16, dtype=kind)
        self.recomputes = recomputes

    def inner(self, x: Any) -> Any:
        return self.down(torch.nn.functional.gelu(self.up(x)))

    def forward(self, x: Any) -> Any:
        return checkpoint(self.inner, x, use_reentrant=False) if self.recomputes else self.inner(x)


class Attention(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = torch.nn.Linear(16, 48, dtype=BF16)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(x).chunk(3, -1)
        return torch.softmax(q @ k.mT, -1) @ v


class Experts(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(normal(3, 16, 32))

    def forward(self, x: Any) -> Any:
        return torch._grouped_mm(x, self.weight, offs=torch.tensor([2, 2, 6], dtype=torch.int32))


def square(model: Model, x: Any) -> Any:
    return model(x).float().square().mean()


def in_region(model: Model, x: Any) -> Any:
    with torch.autocast("cpu", BF16):
        return square(model, x)


def gradients(model: Model, call: Model, x: Any, loss: Callable[[Model, Any], Any]) -> Gradients:
    model.zero_grad()
    loss(call, x).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def rewriting(found: list[GraphReport]) -> Callable[..., Any]:
    """A backend that rewrites Inductor's graphs, and runs them as they are."""

    def compiled(module: Any, inputs: object) -> Any:
        del inputs
        found.append(rewrite_graph(module.graph, frozenset(PRODUCTS), frozenset({"cpu"})))
        module.recompile()
        return lambda given: module(*given)

    def boxed(module: Any, inputs: object) -> Any:
        run = compiled(module, inputs)
        run._boxed_call = True
        return run

    made: Callable[..., Any] = aot_autograd(
        fw_compiler=boxed, bw_compiler=boxed, decompositions=select_decomp_table,
        partition_fn=min_cut_rematerialization_partition,
    )  # fmt: skip
    return made


def near(got: Gradients, want: Gradients, off: float) -> None:
    assert got.keys() == want.keys()
    for name, x in want.items():
        distance = float((got[name].float() - x.float()).norm())
        assert distance <= off * float(x.float().norm()) + 1e-6, (name, distance)


LINES = [normal(2, 6, 16), normal(3, 5, 16), normal(4, 9, 16)]
CASES: dict[str, tuple[Callable[[], Model], list[Any], Callable[..., Any], bool | None, int, int]] = {
    "matrices": (Mlp, [normal(6, 16)], square, None, 2, 3),
    "batches of other sizes": (Mlp, LINES, square, True, 2, 3),
    "recomputed": (lambda: Mlp(recomputes=True), [normal(6, 16)], square, None, 2, 4),
    "float16": (lambda: Mlp(F16), [normal(6, 16, kind=F16)], square, None, 2, 3),
    "autocast": (lambda: Mlp(F32), [normal(6, 16, kind=F32)], in_region, None, 2, 3),
    "attention of other sizes": (Attention, LINES, square, True, 3, 5),
    "experts": (Experts, [normal(6, 16)], square, None, 1, 1),
}


@pytest.mark.parametrize("name", CASES)
def test_a_training_step_is_rewritten_forward_and_backward(name: str) -> None:
    make, inputs, loss, dynamic, forward, backward = CASES[name]
    torch._dynamo.reset()
    model, found = make(), list[GraphReport]()
    call = torch.compile(model, backend=rewriting(found), fullgraph=True, dynamic=dynamic)
    for x in inputs:
        want = gradients(model, model, x, loss)
        near(gradients(model, call, x, loss), want, 2.0**-6)
    assert [len(report.rewritten) for report in found] == [forward, backward], "\n".join(map(str, found))
    assert not [each for report in found for each in report.left]


@pytest.mark.parametrize("allowed", [False, True])
def test_float32_is_rewritten_where_torch_allows_tf32(allowed: bool) -> None:
    torch._dynamo.reset()
    model, found = Mlp(F32), list[GraphReport]()
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        call = torch.compile(model, backend=rewriting(found), fullgraph=True)
        x = normal(6, 16, kind=F32)
        near(gradients(model, call, x, square), gradients(model, model, x, square), 2.0**-9 if allowed else 2.0**-20)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    assert [len(report.rewritten) for report in found] == ([2, 3] if allowed else [0, 0])
    assert allowed or all("tf32" in each.reason for report in found for each in report.left)


@pytest.mark.parametrize("name", ["llama", "encoder"])
def test_models_of_transformers_train_with_every_product_rewritten(name: str) -> None:
    needs.module("transformers")
    from benchmarks.bench_inductor import made

    torch._dynamo.reset()
    model, found = made(name, tiny=True).to(BF16).train(), list[GraphReport]()
    words = torch.randint(0, 256, (2, 8), generator=torch.Generator().manual_seed(1))
    call = torch.compile(model, backend=rewriting(found), fullgraph=True)

    def loss(model: Model, x: Any) -> Any:
        return model(input_ids=x, labels=x).loss

    got, want = gradients(model, call, words, loss), gradients(model, model, words, loss)
    largest = max(float(x.float().norm()) for x in want.values())
    for name, x in want.items():  # the gradient of a key's bias is rounding alone: softmax takes no constant
        assert float((got[name].float() - x.float()).norm()) <= 2.0**-5 * float(x.float().norm()) + 2.0**-9 * largest
    forward, backward = found
    assert not forward.left and not backward.left and len(backward.rewritten) == 2 * len(forward.rewritten)


@pytest.mark.slow
def test_inductor_compiles_a_training_step_with_the_pass() -> None:
    torch._dynamo.reset()
    model, x = Mlp(), normal(6, 16)
    want = gradients(model, model, x, square)
    with (
        inductor.register(tuple(PRODUCTS), autotune=False, devices=["cpu"]) as registered,
        config.patch(force_disable_caches=True),
    ):
        value = square(torch.compile(model, fullgraph=True), x)
        model.zero_grad()
        there = threading.Thread(target=value.backward)  # as on a GPU, whose backward passes run in autograd's thread
        there.start()
        there.join()
    near({name: p.grad for name, p in model.named_parameters()}, want, 2.0**-6)
    assert [report.part for report in registered.graphs] == ["forward", "backward"]
    assert str(registered).splitlines()[-2:] == ["3 of 3 products rewritten in the backward graph", "2 graphs seen"]
