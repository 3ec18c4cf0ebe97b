"""Gates that autograd records: kernels each way, emulated, and torch's operators where a transform needs them."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm.emulator.api import emulate_host
from layoutgemm.kernels.run.emulated import host_of
from layoutgemm.torch_op.autograd import activation
from layoutgemm.torch_op.autograd.activation import by_autograd
from layoutgemm.torch_op.bias_activation import ACTIVATIONS, GATES
from layoutgemm.torch_op.emulated import memory_at

needs_dsl = needs.DSL


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """CPU tensors are taken for a GPU's. The plans that were launched, in the emulator."""
    kept: list[Any] = []
    made: list[Any] = []
    real = torch.Tensor.data_ptr

    def seen(self: Any) -> int:
        kept.append(self.detach())
        return real(self)

    def direct(compiled: Any, arguments: tuple[int, ...], places: Any, index: int, plan: Any) -> Any:
        def launch(addresses: Any, stream: int) -> None:
            held = [memory_at(address, kept) for address in addresses]
            made.append(plan)
            emulate_host(host_of(compiled), (*held, *arguments[len(held) :]), progress=False).raise_for_findings()

        return SimpleNamespace(launch=launch)

    activation._prepared.cache_clear()
    with monkeypatch.context() as patch:
        patch.setattr(torch.Tensor, "data_ptr", seen)
        patch.setattr(activation, "on_gpu", lambda index: True)
        patch.setattr(activation, "current_device", lambda: -1)
        patch.setattr(activation, "target", lambda index, config=None: ("sm_90a", 0))
        patch.setattr(activation, "DirectLaunch", direct)
        patch.setattr(activation, "raw_stream", lambda index: 0)
        yield made
    activation._prepared.cache_clear()


def numbers(*shape: int, kind: Any = None) -> Any:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
    return x.to(kind or torch.bfloat16).requires_grad_()


def want(h: Any, gate: str, dy: Any) -> tuple[Any, Any]:
    """The value and the gradient in float64, rounded once."""
    wide = h.detach().double().requires_grad_()
    first, up = wide.chunk(2, -1)
    y = ACTIVATIONS[GATES[gate]](first) * up
    return y.detach(), torch.autograd.grad(y, wide, dy.double())[0]


def is_close(got: Any, right: Any) -> bool:
    return bool(((got.double() - right).abs() <= 2.0**-8 * right.abs() + 2.0**-14).all())


def test_each_gate_has_torchs_gradient() -> None:
    assert set(activation._BACKWARD) == set(GATES.values())


@needs_dsl
@pytest.mark.parametrize("gate", GATES)
def test_one_launch_each_way(gate: str, launched: list[Any]) -> None:
    h, dy = numbers(2, 3, 24), numbers(2, 3, 12).detach()
    y = by_autograd(h, gate)
    assert y.shape == dy.shape and type(y.grad_fn).__name__ == "_GateBackward"
    (dh,) = torch.autograd.grad(y, h, dy)
    value, slopes = want(h, gate, dy)
    assert is_close(y.detach(), value) and is_close(dh, slopes)
    assert [(plan.gradient, plan.access) for plan in launched] == [(False, 8), (True, 8)]


@needs_dsl
def test_gradients_that_lie_otherwise_are_copied(launched: list[Any]) -> None:
    """A stretched gradient, as of a sum, and one at an odd address."""
    h = numbers(3, 16)
    for dy in (torch.ones((), dtype=h.dtype).expand(3, 8), numbers(25).detach()[1:].view(3, 8)):
        (dh,) = torch.autograd.grad(by_autograd(h, "swiglu"), h, dy)
        assert is_close(dh, want(h, "swiglu", dy)[1])
    assert len(launched) == 4


@needs_dsl
def test_a_gradient_of_the_gradient_is_torchs(launched: list[Any]) -> None:
    h, dy = numbers(2, 8, kind=torch.float32), numbers(2, 4, kind=torch.float32)
    (dh,) = torch.autograd.grad(by_autograd(h, "swiglu"), h, dy, create_graph=True)
    found = torch.autograd.grad(dh.square().sum(), (h, dy))
    wide, of = h.detach().double().requires_grad_(), dy.detach().double().requires_grad_()
    gate, up = wide.chunk(2, -1)
    (first,) = torch.autograd.grad(torch.nn.functional.silu(gate) * up, wide, of, create_graph=True)
    right = torch.autograd.grad(first.square().sum(), (wide, of))
    assert all(torch.allclose(got.double(), one, rtol=1e-4, atol=1e-5) for got, one in zip(found, right))
    assert [plan.gradient for plan in launched] == [False]


@needs_dsl
def test_changed_in_place_is_refused_as_torch_refuses(launched: list[Any]) -> None:
    h = numbers(2, 8).detach().clone().requires_grad_()
    h = h * 1
    y = by_autograd(h, "swiglu")
    h.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@needs_dsl
def test_what_launches_nothing(launched: list[Any]) -> None:
    """torch.func, forward mode, batched gradients, other strides, odd sizes and other types launch nothing."""
    h = numbers(2, 8, kind=torch.float32)
    dy = torch.ones(2, 4)
    right = want(h, "geglu", dy)[1]
    assert torch.allclose(torch.func.grad(lambda x: by_autograd(x, "geglu").sum())(h.detach()).double(), right)
    _, tangent = torch.func.jvp(lambda x: by_autograd(x, "geglu"), (h.detach(),), (torch.ones(2, 8),))
    assert tangent.shape == (2, 4)
    for x in (numbers(8, 2).mT, numbers(2, 6), numbers(2, 8, kind=torch.float64), numbers(0, 8)):
        assert by_autograd(x, "swiglu").shape == (x.shape[0], x.shape[1] // 2)
    assert not launched
    y = by_autograd(h, "geglu")
    (found,) = torch.autograd.grad(y, h, torch.stack([dy, 2 * dy]), is_grads_batched=True)
    assert torch.allclose(found[1].double(), 2 * right) and [plan.gradient for plan in launched] == [False]
