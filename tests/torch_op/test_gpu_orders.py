"""Orders of tiles on a GPU: against float64, and recorded in a CUDA graph by their first call."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import matmul
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
