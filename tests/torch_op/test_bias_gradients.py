"""The gradients of a weight and its bias by one launch, under autograd's own tools.

On the CPU torch computes both, from the addresses that a kernel would get. On a GPU the kernel does.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch._dynamo import compiled_autograd
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from layoutgemm.nn import Linear
from layoutgemm.torch_op import api, prepared
from layoutgemm.torch_op.autograd import bias as bias_launch
from tests.torch_op.host_launches import HostLaunches, host_launches
from tests.torch_op.test_recorded import BF16, F32, Added, added, integers, leaf

__all__ = ["added"]
Multiply = Callable[[Any, Any, Any], Any]


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> Iterator[HostLaunches]:
    with host_launches(monkeypatch) as noted:
        yield noted


def twice(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """The second pass adds to `.grad`."""
    for _ in range(2):
        linear(x, w, b).backward(grad)


def kept_graph(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    c = linear(x, w, b)
    c.backward(grad, retain_graph=True)
    c.backward(grad)


def doubled(leaf: Any) -> None:
    leaf.grad.mul_(2)


def hooks(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """Hooks of leaves, before and behind the accumulation, and of the result."""
    w.register_hook(lambda g: 2 * g)
    b.register_hook(lambda g: -g)
    b.register_post_accumulate_grad_hook(doubled)
    c = linear(x, w, b)
    c.register_hook(lambda g: 2 * g)
    c.backward(grad)


def checkpointed(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    for reentrant in (False, True):
        checkpoint(linear, x, w, b, use_reentrant=reentrant).backward(grad)


def asked(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """Gradients that are returned: both, the bias's alone, and the weight's alone."""
    w.grad, of_b = torch.autograd.grad(linear(x, w, b), (w, b), grad)
    b.grad = of_b + torch.autograd.grad(linear(x, w, b), b, grad)[0]
    w.grad += torch.autograd.grad(linear(x, w, b), w, grad)[0]


def frozen(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    linear(x, w.detach(), b).backward(grad)
    linear(x.detach(), w, b).backward(grad)
    linear(x, w, b.detach()).backward(grad)


def summed(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """Gradients of stride 0, of contiguous columns, and of every second column."""
    linear(x, w, b).sum().backward()
    linear(x, w, b).backward(grad.mT.contiguous().mT)
    wide = torch.zeros(*grad.shape[:-1], 2 * grad.shape[-1], dtype=grad.dtype, device=grad.device)
    wide[..., ::2] = grad
    linear(x, w, b).backward(wide[..., ::2])


def shared(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """Two products of one weight and one bias, one of them of other rows."""
    (linear(x, w, b) + linear(-x, w, b)[:1]).backward(grad)


def created(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """The gradients of gradients: of x by way of dW, and of dC by way of both."""
    factor = grad.clone().requires_grad_()
    of_w, of_b = torch.autograd.grad(linear(x, w, b), (w, b), factor, create_graph=True)
    torch.autograd.backward((of_w, of_b), (torch.ones_like(of_w), torch.ones_like(of_b)))
    w.grad, b.grad = of_w.detach(), of_b.detach() + factor.grad.reshape(-1, b.shape[0])[0].to(b)


def batched(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """Two gradients of the result at once."""
    both = torch.stack((grad, -2 * grad))
    found = torch.autograd.grad(linear(x, w, b), (x, w, b), both, is_grads_batched=True)
    x.grad, w.grad, b.grad = [each[0] + each[1] for each in found]


def transformed(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    def loss(x: Any, w: Any, b: Any) -> Any:
        return (linear(x, w, b) * grad).sum(dtype=torch.float64)

    x.grad, w.grad, b.grad = torch.func.grad(loss, argnums=(0, 1, 2))(x.detach(), w.detach(), b.detach())


def offloaded(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    with torch.autograd.graph.save_on_cpu():
        c = linear(x, w, b)
    c.backward(grad)


def by_compiled_autograd(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    with compiled_autograd._enable(torch.compile(backend="eager")):
        linear(x, w, b).backward(grad)


def cast(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """Float32 leaves whose products autocast multiplies in bfloat16."""
    wide = [leaf(t.detach().to(F32 if t.dtype.itemsize == 2 else t.dtype)) for t in (x, w, b)]
    with contextlib.nullcontext() if x.dtype == torch.float64 else torch.autocast(x.device.type, BF16):
        c = linear(*wide)
    c.backward(grad)
    x.grad, w.grad, b.grad = [t.grad.to(like.dtype) for t, like in zip(wide, (x, w, b))]


def looked_for(linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    with torch.autograd.detect_anomaly(check_nan=True):
        linear(x, w, b).backward(grad)


AROUND = {
    each.__name__: each
    for each in (
        twice, kept_graph, hooks, checkpointed, asked, frozen, summed, shared, created, batched, transformed, offloaded,
        by_compiled_autograd, cast, looked_for,
    )
}  # fmt: skip


def run(name: str, linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> list[Any]:
    """The gradients of x, the weight and the bias, by one of the table."""
    leaves = [leaf(t) for t in (x, w, b)]
    AROUND[name](linear, *leaves, grad)
    return [t.grad for t in leaves]


def check(name: str, linear: Multiply, x: Any, w: Any, b: Any, grad: Any) -> None:
    """Each gradient is the exact one, rounded once for each product that was added."""
    got = run(name, linear, x, w, b, grad)
    want = run(name, torch.nn.functional.linear, *[t.double() for t in (x, w, b, grad)])
    for of, found, exact, like in zip("xwb", got, want, (x, w, b)):
        if exact is None:
            assert found is None, (name, of)
            continue
        assert found.dtype == like.dtype and found.shape == like.shape, (name, of)
        error = (found.double() - exact).abs()
        assert bool((error <= torch.finfo(BF16).eps * exact.abs()).all()), (name, of, error.max())


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        pytest.param(name, kind, marks=pytest.mark.slow if name == "by_compiled_autograd" else ())
        for name, kind in zip(AROUND, cycle((BF16, F32)))
    ],
)
def test_around_a_backward_pass(name: str, kind: Any, added: Added, launches: HostLaunches) -> None:
    x, w, b, grad = integers(3, 16, 72), integers(40, 72), integers(40, kind=kind), integers(3, 16, 40)
    for _ in range(3):
        check(name, api.linear, x, w, b, grad)
    if name not in ("batched", "cast", "created", "transformed", "by_compiled_autograd"):
        assert added.made


# ----------------------------------------------------------------------------------------------------------- on a GPU

BOTH = (3, 512, 2048), (4096, 2048), (4096,)  # x, a weight and a bias whose gradients are one launch


def of_both(kind: Any) -> tuple[Any, Any, Any, Any]:
    """Operands whose sums of products stay below 256: three of four elements of the gradient are 0."""
    x, w, b = (integers(*shape, kind=of).cuda() for shape, of in zip(BOTH, (BF16, BF16, kind), strict=True))
    grad = integers(*BOTH[0][:2], BOTH[1][0])
    kept = (torch.arange(grad.shape[1])[:, None] + torch.arange(grad.shape[2])) % 4 == 0
    return x, w, b, (grad * kept).cuda()


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize("kind", [BF16, F32])
@pytest.mark.parametrize("name", AROUND)
def test_around_a_backward_pass_on_a_gpu(name: str, kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact gradients of a weight and its bias, in all that autograd has; twice by kept launches."""
    made: list[Any] = []
    known = bias_launch.compile_apart
    monkeypatch.setattr(bias_launch, "compile_apart", lambda plan: (made.append(plan), known(plan))[1])
    prepared.forget()
    for _ in range(3):
        check(name, api.linear, *of_both(kind))
    assert made or name in ("batched", "cast", "created", "transformed", "by_compiled_autograd")


@pytest.mark.gpu
@pytest.mark.dsl
def test_a_weight_and_its_bias_in_a_graph_and_on_streams() -> None:
    """Replays read new operands; each of two streams has gradients of its own."""
    x, w, b, grad = of_both(BF16)
    x, w, b = leaf(x), leaf(w), leaf(b)

    def step() -> None:
        w.grad = b.grad = None
        api.linear(x, w, b).backward(grad)

    def is_right() -> bool:
        rows = grad.reshape(-1, grad.shape[-1]).double()
        exact = rows.mT @ x.detach().reshape(rows.shape[0], -1).double(), rows.sum(0)
        return torch.equal(w.grad, exact[0].to(BF16)) and torch.equal(b.grad, exact[1].to(BF16))

    sides = [torch.cuda.Stream() for _ in range(2)]
    torch.cuda.synchronize()
    for turn in range(4):
        with torch.cuda.stream(sides[turn % 2]):
            step()
        sides[turn % 2].synchronize()
        assert is_right()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for turn in range(3):
        grad.copy_(grad.roll(turn, 0))
        with torch.no_grad():
            x.neg_()
        graph.replay()
        torch.cuda.synchronize()
        assert is_right()


@pytest.mark.gpu
@pytest.mark.dsl
@pytest.mark.parametrize("wrapped", ["ddp", "fsdp2"])
def test_a_weight_and_its_bias_of_wrapped_layers(wrapped: str, tmp_path: Path) -> None:
    """One rank of DistributedDataParallel and of fully_shard, whose hooks read the gradients."""
    x, w, b, grad = of_both(BF16)
    x = x.reshape(-1, x.shape[-1])
    torch.distributed.init_process_group("nccl", init_method=f"file://{tmp_path}/ranks", rank=0, world_size=1)
    try:
        layer = Linear(w.shape[1], w.shape[0], device="cuda", dtype=BF16)
        with torch.no_grad():
            layer.weight.copy_(w), layer.bias.copy_(b)
        model = torch.nn.Sequential(layer)
        if wrapped == "ddp":
            model = torch.nn.parallel.DistributedDataParallel(model)
        else:
            fully_shard(model)
        rows = grad.reshape(-1, grad.shape[-1])
        exact = (rows.double().mT @ x.double()).to(BF16), rows.double().sum(0).to(BF16)
        for _ in range(3):
            model.zero_grad()
            model(x).backward(rows)
            found = [getattr(p.grad, "full_tensor", lambda p=p: p.grad)() for p in model.parameters()]
            assert all(torch.equal(mine, theirs) for mine, theirs in zip(found, exact, strict=True))
    finally:
        torch.distributed.destroy_process_group()
