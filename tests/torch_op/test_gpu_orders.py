"""Orders of tiles on a GPU: against float64, and recorded in a CUDA graph by their first call."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import matmul
from layoutgemm.kernels.run.capture import outside_capture
from layoutgemm.schedule import Triangular

pytestmark = [pytest.mark.gpu, pytest.mark.dsl]


@pytest.mark.parametrize("order", ["lower", "upper", "hilbert", Triangular("lower", group=2)])
@pytest.mark.parametrize("size", [(1024, 1024, 256), (2300, 2300, 520), (4096, 1000, 512)])
def test_a_first_call_is_captured(order: Any, size: tuple[int, int, int]) -> None:
    """The list of tiles outlives the graph. Eager calls read it too."""
    m, n, k = size
    torch.manual_seed(0)
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (n, k)))
    want = a.double() @ b.double().T
    room = 2.0**-8 * want.abs() + 1e-2
    out, graph = torch.full((m, n), 7.0, device="cuda", dtype=torch.bfloat16), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        matmul(a, b.T, order=order, out=out)
    assert bool((out == 7).all())
    graph.replay()
    torch.cuda.synchronize()
    half = getattr(order, "half", order)
    mask = {"lower": torch.tril, "upper": torch.triu}.get(half, lambda x: x)(torch.ones_like(want))
    assert bool(((out.double() - want).abs() * mask <= room).all())
    first = out.clone()
    del graph
    torch.cuda.empty_cache()
    again = torch.full_like(out, 7.0)
    matmul(a, b.T, order=order, out=again)
    assert torch.equal(again, first)


def test_memory_is_made_beside_any_captured_stream() -> None:
    """torch hands out 32 streams in turn: one of 33 is the captured one, whose use would end the capture."""
    device, graph = torch.device("cuda", torch.cuda.current_device()), torch.cuda.CUDAGraph()
    x = torch.zeros(8, device=device)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        x += 1
        lists = []
        for number in range(33):
            with outside_capture(device):
                lists.append(torch.full((4,), number).to(device))
    graph.replay()
    assert bool((x == 1).all()) and [int(found[0]) for found in lists] == list(range(33))
