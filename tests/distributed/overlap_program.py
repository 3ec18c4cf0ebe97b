"""One gloo process of several: reference paths, refusals, and a rank that leaves. Run by test_overlap."""

from __future__ import annotations

import sys

import torch
import torch.distributed as dist

from layoutgemm.distributed import all_gather_matmul, matmul_reduce_scatter
from layoutgemm.errors import OperandError, RankError


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def refused(said: str, function: object, *given: object, **named: object) -> None:
    try:
        function(*given, **named)  # type: ignore[operator]
    except OperandError as error:
        assert said in str(error), (said, error)
    else:
        raise AssertionError(said)


def eight_bits(rank: int, world: int) -> None:
    """Both products of float8, each rank with scales of its own: of rows, of columns, of a tensor."""
    m, n, k = 12 * world, 24, 40
    of = [[normal(seed + r, *shape).to(torch.float8_e4m3fn) for r in range(world)] for seed, shape in (
        (400, (12, k)), (500, (n, k)), (600, (m, k)))]  # fmt: skip
    shards, weights, wide = of
    rows = [torch.rand(12, 1, generator=torch.Generator().manual_seed(r)) + 0.5 for r in range(world)]
    whole, columns = torch.cat(shards).double() * torch.cat(rows), torch.rand(1, n) + 0.5
    found = all_gather_matmul(shards[rank], weights[rank].t(), scale_a=rows[rank], scale_b=columns)
    near(found, whole @ (weights[rank].double() * columns.t()).t())
    one = torch.tensor(0.5 + rank)
    found = matmul_reduce_scatter(wide[rank], weights[rank].t(), scale_a=one, scale_b=torch.ones(n))
    want = sum((wide[r].double() @ weights[r].t().double() * (0.5 + r) for r in range(world)), torch.zeros(()))
    near(found, want[12 * rank : 12 * rank + 12])
    missing = all_gather_matmul, shards[rank], weights[rank].t()
    refused("scale_a is missing", *missing)
    refused("scale_b has shape [3]", *missing, scale_a=one, scale_b=torch.ones(3))
    refused("float64", *missing, scale_a=one.double(), scale_b=one)
    refused("K contiguous", missing[0], shards[rank], weights[rank].t().contiguous(), scale_a=one, scale_b=one)
    refused("scale_a is given", missing[0], shards[rank].bfloat16(), weights[rank].t().bfloat16(), scale_a=one)


def near(found: torch.Tensor, want: torch.Tensor) -> None:
    assert found.shape == want.shape and found.dtype == torch.bfloat16
    assert (found.double() - want).abs().max() <= 2.0**-6 * want.abs().max()


def one_leaves(rank: int, world: int) -> None:
    """The last rank does not call: the first names it, within the timeout, and no rank hangs."""
    if rank == world - 1:
        return
    for function, a in ((all_gather_matmul, normal(1, 12, 40)), (matmul_reduce_scatter, normal(2, 12 * world, 40))):
        try:
            function(a, normal(3, 40, 24), timeout=1.0)
        except RankError as error:
            name = getattr(function, "__name__", "")
            assert str(error).startswith(f"{name}: rank {rank} of {world} waited up to 1 s"), error
            said = f"Ranks {world - 1} failed", "by peer"  # missing; ended, so that its connection is closed or reset
            assert rank or any(text in str(error) for text in said), error
        else:
            raise AssertionError(function)


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
    ring = torch.stack([partial[(rank - 1 - i) % world] for i in range(world)]).cumsum(0)
    want, bound = ring[-1], 2.0**-8 * 1.01 * ring.abs().sum(0) + 1e-4
    assert found is out and ((found.double() - want).abs() <= bound).all()
    assert torch.equal(found, matmul_reduce_scatter(wide[rank], part[rank].t()))
    refused("37 rows for", matmul_reduce_scatter, normal(1, 37, k), part[rank].t())
    refused("40 columns, b 24 rows", all_gather_matmul, shards[rank], weights[rank])
    refused("torch.float32", all_gather_matmul, shards[rank].float(), weights[rank].t())
    refused("requires grad", all_gather_matmul, shards[rank].detach().requires_grad_(), weights[rank].t())
    refused("out is", all_gather_matmul, shards[rank], weights[rank].t(), out=out)
    refused("a matrix", all_gather_matmul, shards[rank][None], weights[rank].t())
    refused("group is", all_gather_matmul, shards[rank], weights[rank].t(), "world")
    eight_bits(rank, world)
    one_leaves(rank, world)
    dist.destroy_process_group()
    refused("not initialised", all_gather_matmul, shards[rank], weights[rank].t())
    print("right")


main()
