"""The gradients of a weight and its bias by one launch, under autograd's own tools.

On the CPU torch computes both, from the addresses that a kernel would get; `test_gpu_recorded` runs the same table by
the kernel.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch._dynamo import compiled_autograd
from torch.utils.checkpoint import checkpoint

from layoutgemm.torch_op import operator
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


@pytest.mark.parametrize("kind", [BF16, F32])
@pytest.mark.parametrize("name", AROUND)
def test_around_a_backward_pass(name: str, kind: Any, added: Added, launches: HostLaunches) -> None:
    x, w, b, grad = integers(3, 16, 72), integers(40, 72), integers(40, kind=kind), integers(3, 16, 40)
    for _ in range(3):
        check(name, operator.linear, x, w, b, grad)
    if name not in ("batched", "cast", "created", "transformed", "by_compiled_autograd"):
        assert added.made
