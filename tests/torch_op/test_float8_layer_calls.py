"""Repeated calls of a float8 layer: two launches that a guard finds, for the same call alone.

CPU tensors are taken for a GPU's, and launches compute nothing: their arguments are compared with those of a process
that has kept nothing.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm.nn import ScaledLinear
from layoutgemm.torch_op.fp8 import api, launch, layer
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.host_launches import bare_launches

SIZE = 128


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The launches that are made."""

    def empty(shape: Any, strides: Any, kind: Any) -> Any:
        return torch.empty_strided(shape, strides, dtype=kind)

    with bare_launches(monkeypatch) as noted:
        monkeypatch.setattr(launch, "compiled", noted.compiled)
        monkeypatch.setattr(launch, "on_gpu", lambda index: True)
        monkeypatch.setattr(launch, "target", lambda index: ("sm_90a", 0))
        monkeypatch.setattr(api, "_current_device", lambda: -1)
        monkeypatch.setattr(layer, "FIRST_GPU", -1)
        monkeypatch.setattr(layer, "current_device", lambda: -1)
        for module in (launch, layer):
            monkeypatch.setattr(module, "empty_on_gpu", empty)
            monkeypatch.setattr(module, "raw_stream", lambda index: 77)
        monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
        forget()
        yield noted
        forget()


def forget() -> None:
    for calls in (launch.READY, layer.KEPT, kept.READY):
        calls.clear()


def made(bias: bool = True, activation: str | None = None) -> ScaledLinear:
    linear = torch.nn.Linear(2 * SIZE, SIZE, bias=bias, dtype=torch.bfloat16)
    return ScaledLinear.of(linear, activation=activation)


def launches(run: Callable[[], Any], noted: Any, read: list[Any]) -> list[Any]:
    """The arguments of a call's launches; the place of what is read or returned stands for its address."""
    noted.arguments.clear()
    c = run()
    known = {x.data_ptr(): place for place, x in enumerate([*read, c], 1 << 40)}
    found: dict[int, int] = {}  # memory of the call's own, by the order in which it is met
    each = [
        [value if value < 1 << 32 else known.get(value) or found.setdefault(value, len(found)) for value in one[:-2]]
        for one in noted.arguments
    ]
    return [tuple(c.shape), c.stride(), c.dtype, c.requires_grad, each]


def read_of(linear: ScaledLinear, x: Any) -> list[Any]:
    return [x, linear.codes, linear.weight_scale, *([] if linear.bias is None else [linear.bias])]


@torch.no_grad()
@pytest.mark.parametrize("activation", [None, "silu", "swiglu"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_repeated_call_is_both_launches(
    bias: bool, activation: str | None, noted: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    linear, x = made(bias, activation), torch.randn(3, 5, 2 * SIZE).bfloat16()
    read = read_of(linear, x)
    first = launches(lambda: linear(x), noted, read)
    assert first[0] == (3, 5, SIZE // (2 if activation == "swiglu" else 1)) and len(first[-1]) == 2
    monkeypatch.setattr(linear, "_made", None)  # all checks
    assert launches(lambda: linear(x), noted, read) == first
    other = torch.randn(3, 5, 2 * SIZE).bfloat16()
    assert launches(lambda: linear(other), noted, [other, *read[1:]]) == first
    twin = made(bias, activation)
    monkeypatch.setattr(twin, "_made", None)
    assert launches(lambda: twin(x), noted, read_of(twin, x)) == first


def odd(x: Any) -> Any:
    """The same values, 2 bytes behind a multiple of 16."""
    return torch.empty(x.numel() + 1, dtype=x.dtype)[1:].view(x.shape).copy_(x)


def longer(linear: ScaledLinear) -> None:
    linear.bias = torch.nn.Parameter(torch.ones(2 * SIZE).bfloat16()[::2])


CHANGES: dict[str, tuple[Callable[[Any], Any], Callable[[ScaledLinear], Any]]] = {
    "rows": (lambda x: x[:3].clone(), lambda linear: None),
    "dimensions": (lambda x: x[None], lambda linear: None),
    "strides": (lambda x: x.mT.contiguous().mT, lambda linear: None),
    "a pitch": (lambda x: torch.cat([x, x], 1)[:, : 2 * SIZE], lambda linear: None),
    "an address": (odd, lambda linear: None),
    "x's type": (lambda x: x.float(), lambda linear: None),
    "negated": (lambda x: torch._neg_view(x), lambda linear: None),
    "the layer's type": (lambda x: x, lambda linear: linear.half()),
    "no bias": (lambda x: x, lambda linear: setattr(linear, "bias", None)),
    "a bias of other strides": (lambda x: x, longer),
    "other weights": (lambda x: x, lambda linear: setattr(linear, "codes", linear.codes.clone())),
    "weights at another address": (lambda x: x, lambda linear: setattr(linear, "codes", odd(linear.codes))),
}


@torch.no_grad()
@pytest.mark.parametrize("name", CHANGES)
def test_another_call_is_what_it_is_alone(name: str, noted: Any) -> None:
    of_x, of_layer = CHANGES[name]
    found = []
    for keeps in (True, False):
        torch.manual_seed(0)
        linear, x = made(), torch.randn(40, 2 * SIZE).bfloat16()
        forget()
        for _ in range(3 * keeps):
            linear(x)
        given = of_x(x)
        of_layer(linear)
        for _ in range(2):
            found.append(launches(functools.partial(linear.forward, given), noted, read_of(linear, given)))
    assert found[0] == found[2] and found[1] == found[3], name


def test_derivatives_and_autocast_launch_no_kept_call(noted: Any) -> None:
    linear, x = made(), torch.randn(40, 2 * SIZE).bfloat16()
    with torch.no_grad():
        for _ in range(3):
            linear(x)
    assert linear(x).requires_grad  # the bias's
    with torch.no_grad(), torch.autocast("cpu", torch.float16):
        assert linear(x).dtype is torch.float16
    linear.requires_grad_(False)
    assert not linear(x).requires_grad and linear(x.requires_grad_()).requires_grad
    with torch.inference_mode():
        assert linear(x.detach()).is_inference()


@pytest.mark.gpu
@pytest.mark.dsl
@torch.no_grad()
@pytest.mark.parametrize("activation", [None, "swiglu"])
@pytest.mark.parametrize("bias", [False, True])
def test_repeated_calls_on_a_gpu(bias: bool, activation: str | None) -> None:
    """The bits of a first call: of other values, in a graph, on another stream."""
    forget()
    linear = made(bias, activation).cuda()
    inputs = [torch.randn(77, 2 * SIZE, device="cuda").bfloat16() for _ in range(6)]
    want = []
    for x in inputs:
        forget()
        want.append(linear(x))
    got = [linear(x) for x in inputs]
    assert layer.KEPT.seen and all(map(torch.equal, got, want))
    stream, static = torch.cuda.Stream(), inputs[0].clone()
    with torch.cuda.stream(stream):
        assert torch.equal(linear(inputs[1]), want[1])
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        c = linear(static)
    for x, right in zip(inputs, want):
        static.copy_(x)
        graph.replay()
        assert torch.equal(c, right)
