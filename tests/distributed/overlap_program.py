"""Some gloo processes: reference paths, refusals, and a rank that leaves. Run by test_overlap.

    python overlap_program.py WORLD STORE

The ranks are forked from this process, so that torch and its tracers are imported once. Each prints "right" at its end.
"""

from __future__ import annotations

import os
import sys
import traceback

import torch
import torch._dynamo
import torch.distributed as dist

from layoutgemm.distributed import Transfer, all_gather_matmul, matmul_reduce_scatter
from layoutgemm.errors import OperandError, RankError


def normal(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(torch.bfloat16)


def refused(said: str, function: object, *given: object, **named: object) -> None:
    try:
        function(*given, **named)
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


def gradients(rank: int, world: int) -> None:
    """Both products recorded, eager and compiled, against float64 of all ranks' operands in one process."""
    m, n, k = 12 * world, 24, 40
    parts = {
        all_gather_matmul: ([normal(700 + r, 12, k) for r in range(world)], (m, n)),
        matmul_reduce_scatter: ([normal(800 + r, m, k) for r in range(world)], (12, n)),
    }
    for function, (every, shape) in parts.items():
        weights = [normal(900 + r, n, k) for r in range(world)]
        dys = [normal(1000 + r, *shape) for r in range(world)]
        exact = [[x.double().requires_grad_() for x in of] for of in (every, weights)]
        if function is all_gather_matmul:
            whole = torch.cat(exact[0])
            values = [whole @ w.t() for w in exact[1]]
        else:
            values = list(torch.stack([x @ w.t() for x, w in zip(*exact, strict=True)]).sum(0).chunk(world))
        torch.autograd.backward(values, [dy.double() for dy in dys])
        compiled = torch.compile(lambda x, w, call=function: call(x, w.t()) * 2, fullgraph=True, backend="aot_eager")
        for call, factor in ((lambda x, w, call=function: call(x, w.t()), 1), (compiled, 2)):
            x, w = (of[rank].detach().requires_grad_() for of in (every, weights))
            value = call(x, w)
            near(value, factor * values[rank].detach())
            value.backward(dys[rank])
            near(x.grad, factor * exact[0][rank].grad)
            near(w.grad, factor * exact[1][rank].grad)
        x, w = (of[rank].float().requires_grad_() for of in (every, weights))
        with torch.autocast("cpu", torch.bfloat16):
            for call, factor in ((function, 1), (lambda x, w, call=compiled: call(x, w.t()), 2)):
                near(call(x, w.t()), factor * values[rank].detach())
            function(x, w.t()).backward(dys[rank])
        assert x.grad.dtype == w.grad.dtype == torch.float32
        near(x.grad.bfloat16(), exact[0][rank].grad)
        with torch.no_grad():
            near(compiled(every[rank], weights[rank]), 2 * values[rank].detach())
    a, b = every[rank].detach().requires_grad_(), weights[rank].t()
    refused(
        "out: matmul_reduce_scatter does not record", matmul_reduce_scatter, a, b, out=torch.empty(12, n).bfloat16()
    )
    refused("transfer and config", matmul_reduce_scatter, a, b, transfer=Transfer(1))
    second_derivatives(rank, world)
    if world == 2:
        operators_are_right(rank)


def operators_are_right(rank: int) -> None:
    """torch's own checks: schemas, fake kernels, registered derivatives, and tracing with symbolic sizes."""
    rows, wide, weight = normal(rank, 12, 40), normal(rank, 24, 40), normal(9, 24, 40).t()
    group = dist.group.WORLD.group_name
    for name, x in (("all_gather_matmul", rows), ("matmul_reduce_scatter", wide)):
        operands = x.clone().requires_grad_(), weight.clone().requires_grad_()
        torch.library.opcheck(getattr(torch.ops.layoutgemm, name).default, (*operands, None, None, group, 30.0))
    for name in ("gathered_rows", "summed_rows"):
        operator = getattr(torch.ops.layoutgemm, name).default
        torch.library.opcheck(operator, (wide.clone().requires_grad_(), group))


def second_derivatives(rank: int, world: int) -> None:
    """The gradient's gradient by b and by the result's gradient, against float64 of one process."""
    m, n, k = 12 * world, 24, 40
    for function, a_rows, c_rows in ((all_gather_matmul, 12, m), (matmul_reduce_scatter, m, 12)):
        every = [[normal(seed + r, *of) for r in range(world)] for seed, of in (
            (1100, (a_rows, k)), (1200, (n, k)), (1300, (c_rows, n)), (1400, (a_rows, k)), (1500, (n, k)))]  # fmt: skip
        exact = [[x.double().requires_grad_() for x in of] for of in every]
        xs, ws, dys, us, vs = exact
        if function is all_gather_matmul:
            values = [torch.cat(xs) @ w.t() for w in ws]
        else:
            values = list(torch.stack([x @ w.t() for x, w in zip(xs, ws, strict=True)]).sum(0).chunk(world))
        first = torch.autograd.grad(values, [*xs, *ws], dys, create_graph=True)
        torch.autograd.backward(first, [x.detach() for x in (*us, *vs)])
        x, w, dy, u, v = (of[rank].detach().requires_grad_() for of in every)
        first = torch.autograd.grad(function(x, w.t()), [x, w], dy, create_graph=True)
        torch.autograd.backward(first, [u.detach(), v.detach()])
        for one, of in ((x, xs), (w, ws), (dy, dys)):
            near(one.grad, of[rank].grad)


def near(found: torch.Tensor, want: torch.Tensor) -> None:
    assert found.shape == want.shape and found.dtype == torch.bfloat16
    assert (found.double() - want).abs().max() <= 2.0**-6 * want.abs().max()


def others(
    shards: list[torch.Tensor], weights: list[torch.Tensor], wide: list[torch.Tensor], rank: int, world: int
) -> None:  # fmt: skip
    """The last rank has fewer rows, or calls the other product: gloo ended a process, and another had garbage."""
    last = rank == world - 1
    rows = shards[rank][:11] if last else shards[rank]
    seen = world - 1 if not last else 0
    own, theirs = ((11, 12) if last else (12, 11)), weights[rank].t()
    said = f"rank {rank} has ('all_gather_matmul', {own[0]}, 40, 'torch.bfloat16'), rank {seen} has"
    refused(f"{said} ('all_gather_matmul', {own[1]}, 40, 'torch.bfloat16'): all call alike", all_gather_matmul, rows,
            theirs)  # fmt: skip
    function, a = (matmul_reduce_scatter, wide[rank]) if last else (all_gather_matmul, shards[rank])
    refused(f"'{'all_gather_matmul' if last else 'matmul_reduce_scatter'}', ", function, a, theirs)


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
            # Missing; ended, so that its connection is closed or reset; or given up in the call before.
            said = f"Ranks {world - 1} failed", "by peer", "pair closure"
            assert rank or any(text in str(error) for text in said), error
            # Others may still wait in the call before, when the first rank comes to the second.
            alone = "rank " if function is all_gather_matmul else ""
            assert f"{alone}{world - 1} did not come: " in str(error), error
        else:
            raise AssertionError(function)


def run(rank: int, world: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
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
    gradients(rank, world)
    refused("out is", all_gather_matmul, shards[rank], weights[rank].t(), out=out)
    refused("a matrix", all_gather_matmul, shards[rank][None], weights[rank].t())
    refused("group is", all_gather_matmul, shards[rank], weights[rank].t(), "world")
    others(shards, weights, wide, rank, world)
    eight_bits(rank, world)
    one_leaves(rank, world)
    dist.destroy_process_group()
    refused("not initialised", all_gather_matmul, shards[rank], weights[rank].t())
    print("right", flush=True)


def main() -> None:
    world, store = int(sys.argv[1]), sys.argv[2]
    ranks = []
    for rank in range(world):
        ranks.append(os.fork())
        if not ranks[-1]:
            try:
                run(rank, world, store)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
    ended = [os.waitpid(rank, 0)[1] for rank in ranks]
    sys.exit(any(ended))


main()
