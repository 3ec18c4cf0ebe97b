"""Products that autograd records, on a GPU: launches of both passes, memory, streams, graphs, and no waiting host."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.dsl]

from benchmarks.bench_models import experts_forward
from layoutgemm import matmul
from layoutgemm.torch_op import api
from layoutgemm.torch_op.autograd.activation import by_autograd
from tests.benchmarks.test_bench_models import experts
from tests.torch_op.test_recorded import BF16, CASES, F32, ONE_LAUNCH_EACH, integers, leaf, wanted


@pytest.mark.parametrize("name", CASES)
def test_gradients_by_kernels(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact ones, three times: the long way, then by kept launches alone, and of a sum."""
    leaves, made = CASES[name]
    for turn in range(3):
        mine = [leaf(x.cuda()) for x in leaves()]
        c = matmul(*made(*mine))
        grad = integers(*c.shape) if turn < 2 else torch.ones(c.shape)
        if turn == 1 and name in ONE_LAUNCH_EACH:
            monkeypatch.setattr(api, "gradients", None)
        c.backward(grad.to(c)) if turn < 2 else c.sum().backward()
        monkeypatch.undo()
        for x, want in zip(mine, wanted(name, grad), strict=True):
            assert torch.equal(x.grad.double().cpu(), want)
            assert name not in ONE_LAUNCH_EACH or x.grad.stride() == x.stride()


@pytest.mark.parametrize("activation", [None, "relu"])
@pytest.mark.parametrize("kind", [BF16, F32])
def test_bias_and_relu(activation: str | None, kind: Any) -> None:
    x, weight, bias = integers(3, 8, 64), integers(32, 64), integers(32, kind=kind)
    grad = integers(3, 8, 32)
    exact = [leaf(t.double()) for t in (x, weight, bias)]
    want = exact[0] @ exact[1].t() + exact[2]
    want = torch.relu(want) if activation else want
    want.backward(grad.double())
    for _ in range(2):
        mine = [leaf(t.cuda()) for t in (x, weight, bias)]
        c = matmul(mine[0], mine[1].t(), bias=mine[2], activation=activation)
        c.backward(grad.cuda())
        assert torch.equal(c.double().cpu(), want)
        assert all(torch.equal(t.grad.double().cpu(), e.grad) for t, e in zip(mine, exact, strict=True))


def test_no_hidden_copies() -> None:
    """A step of a linear layer allocates its output and both gradients."""
    x, weight = (torch.randn(2048, 2048, device="cuda").to(BF16).requires_grad_() for _ in range(2))
    grad = torch.randn(2048, 2048, device="cuda").to(BF16)
    for _ in range(3):
        x.grad = weight.grad = None
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        matmul(x, weight.t()).backward(grad)
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
    assert peak == 3 * grad.nbytes, peak / grad.nbytes


def test_a_training_step_in_a_graph() -> None:
    """Replays compute new gradients of new operands."""
    x, weight, bias = (leaf(t.cuda()) for t in (integers(24, 64), integers(32, 64), integers(32)))

    def step() -> Any:
        x.grad = weight.grad = bias.grad = None
        matmul(x, weight.t(), bias=bias, activation="relu").sum().backward()

    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    for turn in range(3):
        with torch.no_grad():
            x.copy_(-x if turn else x)
        graph.replay()
        torch.cuda.synchronize()
        exact = [leaf(t.detach().double()) for t in (x, weight, bias)]
        torch.relu(exact[0] @ exact[1].t() + exact[2]).sum().backward()
        assert all(torch.equal(t.grad.double(), e.grad) for t, e in zip((x, weight, bias), exact, strict=True))


def test_threads_and_streams() -> None:
    """Two threads record and derive one product at once, each on its stream."""
    x, weight, grad = integers(256, 64).cuda(), integers(128, 64).cuda(), integers(256, 128).cuda()
    want = grad @ weight, grad.mT @ x
    wrong: list[int] = []

    def work(number: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())
            for _ in range(50):
                a, b = leaf(x), leaf(weight)
                matmul(a, b.t()).backward(grad)
                torch.cuda.current_stream().synchronize()
                if not (torch.equal(a.grad, want[0]) and torch.equal(b.grad, want[1])):
                    wrong.append(number)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_experts_never_make_the_host_wait() -> None:
    """Offsets stay on the device, forward and backward."""
    layer = experts(4, 64, 128).cuda()
    x = torch.randn(96, 64, device="cuda").to(BF16).requires_grad_()
    chosen, weights = torch.randint(0, 4, (96, 2), device="cuda"), torch.rand(96, 2, device="cuda").to(BF16)
    grad = torch.randn(96, 64, device="cuda").to(BF16)
    for turn in range(3):
        torch.cuda.set_sync_debug_mode("error" if turn else "default")
        try:
            experts_forward(layer, x, chosen, weights).backward(grad)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert x.grad is not None and layer.down_proj.grad.isfinite().all()


@pytest.mark.parametrize("kind", [BF16, F32])
@pytest.mark.parametrize("sizes", [(4096, 4096, 2048), (4096, 4095, 2047), (14336, 1024, 4096)])
def test_a_weight_and_its_bias_by_one_launch(sizes: tuple[int, int, int], kind: Any) -> None:
    """Against float64 within float32's sum and one rounding; the same bits each time."""
    torch.manual_seed(0)
    out, inner, tokens = sizes
    x, weight = (
        torch.randn(tokens, inner, device="cuda", dtype=BF16),
        torch.randn(out, inner, device="cuda", dtype=BF16),
    )
    grad, found = torch.randn(tokens, out, device="cuda", dtype=BF16), []
    for _ in range(3):
        w, bias = leaf(weight), leaf(torch.zeros(out, device="cuda", dtype=kind))
        matmul(x, w.mT, bias=bias).backward(grad)
        found.append((w.grad, bias.grad))
    wide = grad.double()
    rows, most = wide.sum(0), wide.abs().sum(0)
    eps = torch.finfo(kind).eps
    assert bool(((found[0][1].double() - rows).abs() <= eps * rows.abs() + (tokens / 16 + 8) * 2.0**-24 * most).all())
    want = wide.mT @ x.double()
    assert bool(((found[0][0].double() - want).norm() / want.norm()) < 2.0**-8)
    assert all(torch.equal(w, found[0][0]) and torch.equal(b, found[0][1]) for w, b in found[1:])


@pytest.mark.parametrize("gate", ["swiglu", "geglu"])
@pytest.mark.parametrize("kind", [BF16, torch.float16, F32])
def test_gates_by_kernels(gate: str, kind: Any) -> None:
    """Beside float64, of whole vectors and of four bytes; as few passes as launches."""
    act = {"swiglu": torch.nn.functional.silu, "geglu": torch.nn.functional.gelu}[gate]
    for rows, n in ((1000, 1536), (77, 4098)):
        h = (torch.randn(rows, 2 * n, device="cuda") * 3).to(kind).requires_grad_()
        dy = torch.randn(rows, n, device="cuda").to(kind)
        y = by_autograd(h, gate)
        (dh,) = torch.autograd.grad(y, h, dy)
        wide = h.detach().double().requires_grad_()
        first, up = wide.chunk(2, -1)
        want = act(first) * up
        (slopes,) = torch.autograd.grad(want, wide, dy.double())
        for got, right in ((y, want), (dh, slopes)):
            bound = torch.finfo(kind).eps / 2 * right.abs() + 1e-6 * right.abs().max()
            assert ((got.double() - right).abs() <= bound).all()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        torch.autograd.grad(by_autograd(h, gate), h, dy)
        torch.cuda.synchronize()
    launched = [event for event in seen.key_averages() if "gates" in event.key]
    assert sum(event.count for event in launched) == 2, [event.key for event in seen.key_averages()]
