"""One process of several: every placement of layoutgemm's operators, and parallelize_module. Run by test_shardings."""

from __future__ import annotations

import itertools
import sys
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from layoutgemm import grouped_matmul, matmul, quantize, quantize_both, quantized_matmul, scaled_matmul
from layoutgemm.distributed import register_shardings
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.nn import Linear
from layoutgemm.torch_op.quantized import QuantizedExperts, QuantizedWeight, quantized_grouped_matmul

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
        x = x.detach()
        parts, rank = x.chunk(mesh.size(), placement.dim), mesh.get_local_rank()
        part = parts[rank] if rank < len(parts) else x.narrow(placement.dim, 0, 0)
        sizes = {"shape": x.shape, "stride": x.contiguous().stride()}
        return DTensor.from_local(part.contiguous(), mesh, [placement], run_check=False, **sizes)
    return DTensor.from_local(x.detach(), mesh, [placement], run_check=False)


def products(mesh: Any) -> None:
    """Forward and backward of every pair of placements, and with a bias and an activation."""
    uneven = ((3, 5, 9), (9, 13))  # on two processes and on four
    for shape_a, shape_b in (((8, 16), (16, 12)), ((4, 8, 16), (16, 12)), ((4, 8, 16), (4, 16, 12)), uneven):
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
            bias = normal(shape_b[-1])
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


def refused(call: Any, said: str) -> None:
    try:
        call()
    except Exception as error:
        assert said in str(error), error
    else:
        raise AssertionError(f"nothing was refused: {said}")


def blocks(mesh: Any) -> None:
    """Products with scales of blocks, rows and the tensor: rows, columns and K cut; and quantize."""
    whole, size = Replicate(), mesh.size()
    m, n, k = 128 * size, 256 * size, 128 * size
    a, b = normal(m, k), normal(n, k)
    ways = ("BlockWise1x128", "BlockWise128x128"), ("BlockWise128x128", "BlockWise1x128"), ("RowWise", "TensorWise")
    for of_a, of_b in ways:
        (x, sx), (y, sy) = quantize(a, of_a), quantize(b, of_b)
        want = scaled_matmul(x, sx, y.mT, sy, recipe_a=of_a, recipe_b=of_b)
        for p, q, result in ((Shard(0), whole, Shard(0)), (whole, Shard(1), Shard(1)), (Shard(1), Shard(0), Partial())):
            # scales are whole, and cut by DTensor
            given = [placed(x, mesh, p), placed(sx, mesh, whole), placed(y.mT, mesh, q), placed(sy, mesh, whole)]
            got = scaled_matmul(*given, recipe_a=of_a, recipe_b=of_b)
            assert got.placements == (result,), (of_a, of_b, p, q, got.placements)
            near(got, want, (of_a, of_b, p, q))
            bias = normal(n)  # the kernel adds each process' part of it
            got = scaled_matmul(*given, recipe_a=of_a, recipe_b=of_b, bias=placed(bias, mesh, whole))
            assert got.placements == (result,), (of_a, of_b, p, q, got.placements, "with a bias")
            near(got, want + bias, (of_a, of_b, p, q, "bias"))
        for p in (Shard(0), Shard(1)):
            values, scales = quantize(placed(a, mesh, p), of_a)
            cut = (of_a != "RowWise" or p == Shard(0),)
            assert not any(cut) or values.placements == scales.placements == (p,), (of_a, p, values.placements)
            if values.placements == (p,):  # gloo gathers no float8
                part = x.chunk(size, p.dim)[mesh.get_local_rank()]
                assert torch.equal(values.to_local().view(torch.uint8), part.view(torch.uint8)), (of_a, p)
                near(scales, sx, (of_a, p, "scales"))
    for p, turned in ((Shard(0), Shard(1)), (Shard(1), Shard(0))):
        lines, columns = quantize_both(placed(b, mesh, p))
        for pair, right, place in ((lines, quantize(b), p), (columns, quantize(b.mT), turned)):
            assert all(t.placements == (place,) for t in pair), (p, [t.placements for t in pair])
            part = right[0].chunk(size, place.dim)[mesh.get_local_rank()]
            assert torch.equal(pair[0].to_local().view(torch.uint8), part.view(torch.uint8)), (p, place)
            near(pair[1], right[1], (p, place, "scales"))
    (x, sx), (y, sy) = quantize(a), quantize(b)
    given = [placed(t, mesh, p) for t, p in ((x, whole), (sx, whole), (y.mT, Shard(1)), (sy, whole))]
    for gate in ("silu", "swiglu", "silu"):  # DTensor keeps its choices: by activations, too
        got = scaled_matmul(given[0], given[1], placed(y.mT, mesh, whole), given[3], activation=gate)
        near(got, scaled_matmul(x, sx, y.mT, sy, activation=gate), gate)
    near(scaled_matmul(*given, activation="silu"), scaled_matmul(x, sx, y.mT, sy, activation="silu"), "silu, cut")
    c, scales = scaled_matmul(*given, out_dtype=torch.float8_e4m3fn, out_recipe="BlockWise1x128")
    want_c, want_scales = scaled_matmul(x, sx, y.mT, sy, out_dtype=torch.float8_e4m3fn, out_recipe="BlockWise1x128")
    assert c.placements == scales.placements == (Shard(1),)
    part = want_c.chunk(size, 1)[mesh.get_local_rank()]
    assert torch.equal(c.to_local().view(torch.uint8), part.view(torch.uint8))
    near(scales, want_scales, "quantised result")


def groups(mesh: Any) -> None:
    """Grouped products: every placement of each form, forward and backward."""
    ends = torch.tensor([3, 3, 7, 8], dtype=torch.int32)
    forms = [((8, 16), (4, 16, 12)), ((4, 12, 16), (16, 8)), ((12, 8), (8, 16)), ((4, 8, 16), (4, 16, 12))]
    for shape_a, shape_b in forms:
        a, b = normal(*shape_a), normal(*shape_b)
        both = len(shape_a) == len(shape_b) == 3
        for said in (None, "counts") if both else ("offs",):
            values = torch.tensor([8, 8, 8, 8], dtype=torch.int32) if said == "counts" else ends
            x, y = a.clone().requires_grad_(), b.clone().requires_grad_()
            want = grouped_matmul(x, y, **({said: values} if said else {}))
            want.sum().backward()
            of_a = [Replicate(), Partial(), *[Shard(place) for place in range(a.ndim)]]
            of_b = [Replicate(), *[Shard(place) for place in range(b.ndim)]]
            for p, q in itertools.product(of_a, of_b):
                left, right = placed(a, mesh, p).requires_grad_(), placed(b, mesh, q).requires_grad_()
                over = {said: placed(values, mesh, Replicate())} if said else {}
                got = grouped_matmul(left, right, **over)
                near(got, want, (shape_a, shape_b, said, p, q))
                got.sum().backward()
                near(left.grad, x.grad, ("dA", shape_a, said, p, q))
                near(right.grad, y.grad, ("dB", shape_b, said, p, q))
    a, b, bias, over = normal(8, 16), normal(4, 16, 12), normal(4, 12), placed(ends, mesh, Replicate())
    with torch.no_grad():
        places = (Shard(1), Replicate()), (Shard(2), Shard(1))
        for activation, p, q in itertools.product((None, "relu", "swiglu"), *places):
            want = grouped_matmul(a, b, offs=ends, bias=bias, activation=activation)
            given = placed(a, mesh, p), placed(b, mesh, q)
            got = grouped_matmul(*given, offs=over, bias=placed(bias, mesh, Replicate()), activation=activation)
            near(got, want, (activation, p, q))
        # Groups along K: `offs` of n ends are n groups, offsets n - 1, and DTensor keeps choices by arguments.
        x, y = normal(12, 8), normal(8, 16)
        for said, values in (("offs", torch.tensor([3, 5, 8])), ("offsets", torch.tensor([0, 5, 8]))):
            given = placed(x, mesh, Shard(0)), placed(y, mesh, Replicate())
            got = grouped_matmul(*given, **{said: placed(values, mesh, Replicate())})
            near(got, grouped_matmul(x, y, **{said: values}), said)
    if mesh.size() == 2:
        x, y = placed(a, mesh, Replicate()), placed(b, mesh, Shard(2))
        call = lambda *t: grouped_matmul(t[0], t[1], offs=t[2])  # noqa: E731
        near(
            torch.compile(call, backend="aot_eager", fullgraph=True)(x, y, over),
            grouped_matmul(a, b, offs=ends),
            "traced groups",
        )


def packed(mesh: Any) -> None:
    """Packed weights, column-wise and row-wise, forward and backward, and those of experts."""
    size = mesh.size()
    n, k = 64 * size, 128 * size
    for fmt in (QuantizedFormat("int4", 128), QuantizedFormat("int8")):
        weight = QuantizedWeight.quantize(normal(n, k), fmt)
        x, bias = normal(8, k), normal(n)
        places = (Replicate(), Shard(0), Shard(1))
        for activation, p, q in itertools.product((None, "relu"), places, places):
            alone, b_alone = x.clone().requires_grad_(), bias.clone().requires_grad_()
            want = quantized_matmul(alone, weight, bias=b_alone, activation=activation)
            want.sum().backward()
            scales = None if weight.scales is None else placed(weight.scales, mesh, Replicate())
            spread = QuantizedWeight(fmt, placed(weight.units, mesh, q), scales, n, k)
            left, over = placed(x, mesh, p).requires_grad_(), placed(bias, mesh, Replicate()).requires_grad_()
            got = quantized_matmul(left, spread, bias=over, activation=activation)
            near(got, want, ("packed", fmt, activation, p, q))
            got.sum().backward()
            near(left.grad, alone.grad, ("packed dx", fmt, activation, p, q))
            near(over.grad, b_alone.grad, ("packed dbias", fmt, activation, p, q))
            with torch.no_grad():
                near(quantized_matmul(left, spread, bias=over, activation=activation), want, ("no grad", fmt, p, q))
    experts, ends = QuantizedExperts.of([weight] * 3), torch.tensor([0, 3, 3, 8])
    want = quantized_grouped_matmul(x, experts, ends, activation="relu")
    for p, q in itertools.product((Replicate(), Shard(0), Shard(1)), (Replicate(), Shard(1), Shard(2))):
        whole = [placed(t, mesh, Replicate()) for t in (experts.scales, ends)]
        spread = QuantizedExperts(fmt, placed(experts.units, mesh, q), whole[0], n, k)
        got = quantized_grouped_matmul(placed(x, mesh, p), spread, whole[1], activation="relu")
        near(got, want, ("experts", p, q))
    small = QuantizedWeight.quantize(normal(100, 128), QuantizedFormat("int4", 128))
    left = placed(x[:, :128], mesh, Replicate())
    if size == 2:
        cut = QuantizedWeight(small.format, placed(small.units, mesh, Shard(0)), None, 100, 128)
        refused(lambda: quantized_matmul(left, cut), "n = 100: units of 64 out features are cut into 2 parts")
    refused(lambda: quantized_matmul(left, small), "units is a plain Tensor")


def rowless(mesh: Any) -> None:
    """Row indices have no rule, which DTensor says by the operator's name."""
    a, b = placed(normal(8, 16), mesh, Replicate()), placed(normal(16, 12), mesh, Replicate())
    rows = placed(torch.tensor([1, 0]), mesh, Replicate())
    refused(lambda: matmul(a, b, rows=rows), "layoutgemm.indexed_matmul")


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


def two_dimensions() -> None:
    """Operands placed along both dimensions of a mesh: data parallel and tensor parallel."""
    mesh, a, b = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), normal(6, 10), normal(10, 9)
    whole, rows, columns = Replicate(), Shard(0), Shard(1)
    of_b = (whole, columns), (rows, columns), (whole, rows), (columns, columns)
    for x, y in itertools.product(((rows, whole), (rows, columns), (columns, columns)), of_b):
        left, right = (distribute_tensor(t, mesh, places).requires_grad_() for t, places in ((a, x), (b, y)))
        value = matmul(left, right, activation="relu")
        near(value, (a.double() @ b.double()).relu(), (x, y))
        value.sum().backward()
        one = (a.double() @ b.double() > 0).double()
        near(left.grad, one @ b.double().mT, ("dA", x, y))
        near(right.grad, a.double().mT @ one, ("dB", x, y))


def main() -> None:
    rank, world, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    register_shardings()
    mesh = init_device_mesh("cpu", (world,))
    products(mesh)
    scaled(mesh)
    blocks(mesh)
    groups(mesh)
    packed(mesh)
    rowless(mesh)
    finishes(mesh)
    for sequence in (False, True):
        plans(mesh, sequence)
    if world == 2:
        traced(mesh)
    if world == 4:
        two_dimensions()
    print("right", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
