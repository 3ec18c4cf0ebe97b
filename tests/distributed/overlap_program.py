"""One gloo process of several: reference paths of overlapping products, and refusals. Run by test_overlap."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from layoutgemm.distributed import all_gather_matmul, matmul_reduce_scatter
from layoutgemm.errors import OperandError


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def refused(said: str, function: object, *given: object, **named: object) -> None:
    try:
        function(*given, **named)  # type: ignore[operator]
    except OperandError as error:
        assert said in str(error), (said, error)
    else:
        raise AssertionError(said)


def main() -> None:
    rank, world = int(sys.argv[1]), int(sys.argv[2])
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[3]}", rank=rank, world_size=world)
    m, n, k = 12 * world, 24, 40
    shards, weights = [normal(r, 12, k) for r in range(world)], [normal(100 + r, n, k) for r in range(world)]
    found = all_gather_matmul(shards[rank], weights[rank].t())
    want = torch.cat(shards).double() @ weights[rank].t().double()
    assert found.shape == (m, n) and (found.double() - want).abs().max() <= 2.0**-8 * want.abs().max()
    wide, part = [normal(200 + r, m, k) for r in range(world)], [normal(300 + r, n, k) for r in range(world)]
    out = torch.full((12, n), float("nan"), dtype=torch.bfloat16)
    found = matmul_reduce_scatter(wide[rank], part[rank].t(), out=out)
    partial = [(x.double() @ y.t().double())[12 * rank : 12 * rank + 12] for x, y in zip(wide, part, strict=True)]
    want = torch.stack(partial).sum(0)
    bound = 2.0**-8 * (torch.stack(partial).abs().sum(0) + want.abs()) + 1e-4
    assert found is out and ((found.double() - want).abs() <= bound).all()
    assert torch.equal(found, matmul_reduce_scatter(wide[rank], part[rank].t()))
    refused("37 rows for", matmul_reduce_scatter, normal(1, 37, k), part[rank].t())
    refused("40 columns, b 24 rows", all_gather_matmul, shards[rank], weights[rank])
    refused("torch.float32", all_gather_matmul, shards[rank].float(), weights[rank].t())
    refused("requires grad", all_gather_matmul, shards[rank].detach().requires_grad_(), weights[rank].t())
    refused("out is", all_gather_matmul, shards[rank], weights[rank].t(), out=out)
    refused("a matrix", all_gather_matmul, shards[rank][None], weights[rank].t())
    refused("group is", all_gather_matmul, shards[rank], weights[rank].t(), "world")
    dist.destroy_process_group()
    refused("not initialised", all_gather_matmul, shards[rank], weights[rank].t())
    print("right")


main()
