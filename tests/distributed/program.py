"""One process of several: every placement of layoutgemm's operators, and parallelize_module. Run by test_shardings."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from layoutgemm import matmul, scaled_matmul
from layoutgemm.distributed import register_shardings
from layoutgemm.nn import Linear

BF16 = torch.bfloat16


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(BF16)


def near(got: Any, want: Any, what: object) -> None:
    got = got.full_tensor() if isinstance(got, DTensor) else got
    got, want = got.detach(), want.detach()
    off = float((got.double() - want.double()).abs().max())
    assert got.shape == want.shape and off <= 2.0**-5 * float(want.double().abs().max()), (what, off)


def placed(x: Any, mesh: Any, placement: Any) -> Any:
    if isinstance(placement, Partial):
        share = x / mesh.size()
        return DTensor.from_local(share, mesh, [placement], run_check=False)
    if isinstance(placement, Shard):  # gloo sends no float8, so each process cuts its own part
        part = x.detach().chunk(mesh.size(), placement.dim)[mesh.get_local_rank()].contiguous()
        return DTensor.from_local(part, mesh, [placement], run_check=False)
    return DTensor.from_local(x.detach(), mesh, [placement], run_check=False)


def products(mesh: Any) -> None:
    """Forward and backward of every pair of placements, and with a bias and an activation."""
    for shape_a, shape_b in (((8, 16), (16, 12)), ((4, 8, 16), (16, 12)), ((4, 8, 16), (4, 16, 12))):
        a, b = normal(*shape_a), normal(*shape_b)
        of_a = [Replicate(), Partial(), *[Shard(place) for place in range(a.ndim)]]
        of_b = [Replicate(), *[Shard(place) for place in range(b.ndim)]]
        for x, y in itertools.product(of_a, of_b):
            left, right = placed(a, mesh, x).requires_grad_(), placed(b, mesh, y).requires_grad_()
            value = matmul(left, right)
            near(value, a.double() @ b.double(), (shape_a, shape_b, x, y))
            value.sum().backward()
            one = torch.ones(value.shape, dtype=torch.float64)
            near(left.grad, (one @ b.double().mT).sum_to_size(a.shape), ("dA", x, y))
            near(right.grad, (a.double().mT @ one).sum_to_size(b.shape), ("dB", x, y))
            bias = normal(12)
            with torch.no_grad():
                for activation, z in itertools.product((None, "relu"), (Replicate(), Shard(0))):
                    want = a.double() @ b.double() + bias.double()
                    got = matmul(left, right, bias=placed(bias, mesh, z), activation=activation)
                    near(got, want if activation is None else want.relu(), (x, y, z, activation))


def finishes(mesh: Any) -> None:
    """Gradients of finished and gated products, for every pair of placements."""
    for activation, columns in ((None, 12), ("relu", 12), ("swiglu", 24)):
        a, b, bias = normal(8, 16), normal(16, columns), normal(columns)
        if activation == "swiglu":
            bias = None
        whole = [None if x is None else x.double().requires_grad_() for x in (a, b, bias)]
        want = whole[0] @ whole[1] + (0 if bias is None else whole[2])
        if activation == "swiglu":
            gate, up = want.chunk(2, 1)
            want = torch.nn.functional.silu(gate) * up
        want = want.relu() if activation == "relu" else want
        want.sum().backward()
        of = (Replicate(), Shard(0), Shard(1))
        for x, y, z in itertools.product(of, of, (Replicate(), Shard(0)) if bias is not None else (None,)):
            given = [None if t is None else placed(t, mesh, p).requires_grad_() for t, p in ((a, x), (b, y), (bias, z))]
            got = matmul(given[0], given[1], bias=given[2], activation=activation)
            near(got, want, (activation, x, y, z))
            got.sum().backward()
            for name, one, two in zip(("dA", "dB", "dbias"), given, whole, strict=True):
                if one is not None:
                    near(one.grad, two.grad, (activation, name, x, y, z))


def scaled(mesh: Any) -> None:
    a, b = normal(8, 128).to(torch.float8_e4m3fn), normal(128, 12).to(torch.float8_e4m3fn)
    rows, columns = torch.rand(8, 1) + 0.5, torch.rand(1, 12) + 0.5
    for z in (rows, columns):
        dist.broadcast(z, 0)
    want = (a.double() * rows) @ (b.double() * columns)
    whole = Replicate()  # gloo moves no float8, so placements are those that need no move
    for x, y in ((whole, whole), (Shard(0), whole), (whole, Shard(1))):
        given = [placed(t, mesh, p) for t, p in ((a, x), (rows, Replicate()), (b, y), (columns, Replicate()))]
        near(scaled_matmul(*given, recipe_a="RowWise", recipe_b="RowWise"), want, ("scaled", x, y))


def plans(mesh: Any, sequence: bool) -> None:
    """parallelize_module, column-wise then row-wise, beside the same model in one process.

    sequence  whether each process has its rows of the input and of the result
    """
    torch.manual_seed(0)
    alone = torch.nn.Sequential(Linear(16, 32, dtype=BF16, activation="gelu"), Linear(32, 16, dtype=BF16))
    torch.manual_seed(0)
    spread = torch.nn.Sequential(Linear(16, 32, dtype=BF16, activation="gelu"), Linear(32, 16, dtype=BF16))
    ways = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    if sequence:  # rows of activations are sharded between the layers' pairs
        rows = Shard(0)
        ways = {"0": ColwiseParallel(input_layouts=rows), "1": RowwiseParallel(output_layouts=rows)}
    parallelize_module(spread, mesh, ways)
    assert spread[0].weight.placements == (Shard(0),) and spread[1].weight.placements == (Shard(1),)
    x, y = normal(4, 16).requires_grad_(), normal(4, 16).requires_grad_()
    lines = slice(None)
    if sequence:
        each = 4 // mesh.size()
        lines = slice(mesh.get_local_rank() * each, (mesh.get_local_rank() + 1) * each)
    mine = y[lines].detach().requires_grad_()
    with torch.no_grad():
        near(spread(mine), alone(x)[lines], "inference")
    alone(x).float().square().sum().backward()
    spread(mine).float().square().sum().backward()
    near(mine.grad, x.grad[lines], "dx")
    for one, two in zip(alone.parameters(), spread.parameters(), strict=True):
        near(two.grad, one.grad, "parameters")


def traced(mesh: Any) -> None:
    """Layers of DTensors under torch.compile, and a refusal with whole sizes."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(Linear(16, 32, dtype=BF16, activation="gelu"), Linear(32, 16, dtype=BF16))
    parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
    x, y = normal(4, 16).requires_grad_(), normal(4, 16).requires_grad_()
    want, got = model(x), torch.compile(model, backend="aot_eager", fullgraph=True)(y)
    near(got, want, "compiled")
    want.sum().backward()
    got.sum().backward()
    near(y.grad, x.grad, "compiled dx")
    try:
        a, b = placed(normal(8, 16), mesh, Shard(0)), placed(normal(15, 4), mesh, Replicate())
        torch.compile(matmul, backend="aot_eager")(a, b)
    except Exception as error:
        assert "K is 16 in a and 15 in b" in str(error), error
    else:
        raise AssertionError("nothing was refused")


def main() -> None:
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    register_shardings()
    mesh = init_device_mesh("cpu", (world,))
    products(mesh)
    scaled(mesh)
    finishes(mesh)
    for sequence in (False, True):
        plans(mesh, sequence)
    if world == 2:
        traced(mesh)
    print("right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
