"""Products that overlap with communication, against torch's symmetric memory and NCCL.

    python benchmarks/bench_overlap.py --json benchmarks/results/overlap_h100.json      # 2 GPUs of one host, 2 minutes
    python benchmarks/bench_overlap.py --ranks 4

A process for each GPU. Sizes are M x N x K of the whole product; A and B are bf16, B has K contiguous.

- all-gather: each rank has M / ranks rows of A and N / ranks columns of B.
- reduce-scatter: each rank has K / ranks of A and B, and receives M / ranks rows of the sum.

Peers are torch.mm alone ("product alone"), NCCL with torch.mm, and the fused operators of `torch.ops.symm_mem`. NVLink
multicast is off for all.

- All ranks first check results against float64, with random delays, rotating operands, and bits of repeated calls.
- A time is the median of 7 rounds of 20 calls between two events, of the slowest rank.
- CUDA graphs of one call are replayed, compared and timed for the first shape.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import socket
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from layoutgemm.kernels.sm90.config import Sm90Config

Call = Callable[[], Any]
Make = Callable[[], Call]
SHAPES = ((4096, 14336, 4096), (8192, 8192, 8192), (16384, 4096, 14336))  # M, N, K
CHECKS = ((1024, 512, 256, None), (2048, 1032, 520, 2), (4096, 3584, 4096, None))  # M, N or K of a rank, K or N, chunks
CONFIGS = {
    "256x192 loader": Sm90Config((256, 192), cluster=(2, 1), loader="warpgroup", chunks=1, buffers=2),
    "128x256 self": Sm90Config((128, 256), cluster=(2, 1), chunks=1, buffers=2, l2_promotion="256B"),
}
CHUNKS = (1, 4)
ALONE, OURS = "product alone", "ours"
ROUNDS, CALLS, WARM = 7, 20, 4
LIMIT = 560  # seconds for all processes


@dataclass
class Rank:
    """One process of the benchmark: its GPU, and the record, which rank 0 prints and saves."""

    rank: int
    ranks: int
    repeat: int
    json: Path | None
    record: dict[str, Any] = field(default_factory=dict)

    def say(self, *words: object) -> None:
        """Print on rank 0."""
        if self.rank == 0:
            print(*words, flush=True)

    def keep(self, part: str, name: str, value: object) -> None:
        """Store a result; rank 0 writes the record."""
        self.record.setdefault(part, {})[name] = value
        if self.rank == 0 and self.json:
            self.json.write_text(json.dumps(self.record, indent=1) + "\n")

    def largest(self, *values: float) -> list[float]:
        """Each value's maximum over ranks."""
        import torch
        import torch.distributed as dist

        found = torch.tensor(values, device="cuda", dtype=torch.float64)
        dist.all_reduce(found, dist.ReduceOp.MAX)
        return [float(value) for value in found]


def normal(seed: int, *shape: int) -> Any:
    """A bf16 tensor of normal values, the same on every rank."""
    import torch

    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda").to(torch.bfloat16)


def share(found: Any, want: Any, bound: Any) -> float:
    """The largest error as a share of its bound; NaN counts as infinite."""
    return float(((found.double() - want).abs() / bound).nan_to_num(nan=float("inf")).max())


def delays(seed: int) -> Call:
    """A call that delays the GPU and the host at random."""
    import torch

    rng = random.Random(seed)

    def delay() -> None:
        torch.cuda._sleep(rng.randrange(1, 3_000_000))
        time.sleep(rng.random() * 0.002)

    return delay


def gathered(me: Rank, m: int, n: int, k: int, chunks: int | None) -> tuple[float, bool]:
    """The error of all_gather_matmul, and False if a repeated call or rotated operands differ."""
    import torch

    from layoutgemm.distributed import all_gather_matmul

    delay, b = delays(me.rank), normal(100 + me.rank, n, k)
    shards = [normal(rank, m // me.ranks, k) for rank in range(me.ranks)]
    whole = torch.cat(shards).double()
    want, size = whole @ b.t().double(), whole.abs() @ b.t().double().abs()
    first = all_gather_matmul(shards[me.rank], b.t(), chunks=chunks)
    same = True
    for _ in range(me.repeat):
        delay()
        same = torch.equal(all_gather_matmul(shards[me.rank], b.t(), chunks=chunks), first) and same
    for i in range(min(me.repeat, 20)):  # other operands in one workspace: a stale row would show
        delay()
        x = [normal(1000 + 10 * i + rank, m // me.ranks, k) for rank in range(me.ranks)]
        got = all_gather_matmul(x[me.rank], b.t(), chunks=chunks)
        reference = torch.mm(torch.cat(x), b.t()).double()
        same = bool(((got.double() - reference).abs() <= reference.abs() * 2.0**-6 + 0.5).all()) and same
    return share(first, want, want.abs() * 2.0**-8 + size * 2.0**-20 + 1e-6), same


def scattered(me: Rank, m: int, n: int, k: int, chunks: int | None) -> tuple[float, bool]:
    """The error of matmul_reduce_scatter, and False if a repeated call differs."""
    import torch

    from layoutgemm.distributed import matmul_reduce_scatter

    delay = delays(me.rank)
    x, y = ([normal(seed + rank, *of, k) for rank in range(me.ranks)] for seed, of in ((200, [m]), (300, [n])))
    mine = slice(me.rank * m // me.ranks, (me.rank + 1) * m // me.ranks)
    partial = [one[mine].double() @ two.t().double() for one, two in zip(x, y, strict=True)]
    want = torch.stack(partial).sum(0)
    bound = (torch.stack(partial).abs().sum(0) + want.abs()) * 2.0**-8 + 1e-3
    a, b = x[me.rank], y[me.rank].t()
    first, same = matmul_reduce_scatter(a, b, chunks=chunks), True
    for _ in range(me.repeat):
        delay()
        same = torch.equal(matmul_reduce_scatter(a, b, chunks=chunks), first) and same
    return share(first, want, bound), same


def checked(me: Rank) -> bool:
    """True if every product is within its bound, with the same bits in every run."""
    from layoutgemm.distributed import check_ranks

    right = True
    for m, n, k, chunks in CHECKS:
        gather, same = gathered(me, m, n, k, chunks)
        scatter, alike = scattered(me, m, n, k, chunks)
        check_ranks()
        found = me.largest(gather, scatter, float(not (same and alike)))
        right = right and found[0] <= 1 and found[1] <= 1 and not found[2]
        me.keep("correct", f"{m}x{n}x{k} chunks {chunks}", found)
        me.say(f"{m}x{n}x{k} chunks {chunks}: error / bound {found[0]:.3f} (gather), {found[1]:.3f} (scatter); "
               f"{'results differ between runs' if found[2] else 'the same bits in every run'}")  # fmt: skip
    return right


def timed(me: Rank, call: Call) -> float:
    """Microseconds of a call on the slowest rank."""
    import torch
    import torch.distributed as dist

    for _ in range(WARM):
        call()
    found = []
    for _ in range(ROUNDS):
        torch.cuda.synchronize()
        dist.barrier()
        torch.cuda.synchronize()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(CALLS):
            call()
        end.record()
        end.synchronize()
        found.append(start.elapsed_time(end) / CALLS * 1e3)
    return me.largest(statistics.median(found))[0]


def row(me: Rank, name: str, contenders: dict[str, Make]) -> None:
    """Times the contenders of one line; a refused one has its reason instead."""
    times: dict[str, float | str] = {}
    for label, make in contenders.items():
        try:
            times[label] = round(timed(me, make()), 1)
        except Exception as problem:  # a peer without a kernel for the case
            times[label] = f"{type(problem).__name__}: {str(problem)[:200]}"
    me.keep("us", name, times)
    alone = times[ALONE]
    assert isinstance(alone, float), alone
    said = [f"{us} {label} ({us / alone:.3f})" for label, us in times.items() if isinstance(us, float)]
    me.say(f"{name}, us (ratio to the product alone): {', '.join(said)}")


def gather_row(me: Rank, m: int, n: int, k: int) -> None:
    """Times an all-gather and a product."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm

    from layoutgemm.distributed import all_gather_matmul, gather_buffer

    columns, rows, kind = n // me.ranks, m // me.ranks, torch.bfloat16
    a, b = normal(me.rank, rows, k), normal(50 + me.rank, columns, k).t()
    full, whole = normal(7, m, k), torch.empty(m, k, device="cuda", dtype=kind)
    out = torch.empty(m, columns, device="cuda", dtype=kind)
    slot = gather_buffer((rows, k))
    shared = symm.empty((rows, k), dtype=kind, device="cuda")
    symm.rendezvous(shared, dist.group.WORLD)
    for target in (slot, shared):
        target.copy_(a)
    group = dist.group.WORLD.group_name

    def nccl() -> None:
        dist.all_gather_into_tensor(whole, a)
        torch.mm(whole, b, out=out)

    contenders: dict[str, Make] = {
        ALONE: lambda: lambda: torch.mm(full, b, out=out),
        "NCCL, then torch.mm": lambda: nccl,
        "symm_mem fused": lambda: lambda: torch.ops.symm_mem.fused_all_gather_matmul(shared, [b], 0, group),
        OURS: lambda: lambda: all_gather_matmul(a, b, out=out),
        f"{OURS}, resident rows": lambda: lambda: all_gather_matmul(slot, b, out=out),
    }
    for name, config in CONFIGS.items():
        contenders[f"{OURS} {name}"] = lambda c=config: lambda: all_gather_matmul(slot, b, out=out, config=c)  # type: ignore[misc]
    for count in CHUNKS:
        contenders[f"{OURS} {count} chunks"] = lambda c=count: lambda: all_gather_matmul(a, b, out=out, chunks=c)  # type: ignore[misc]
    row(me, f"all-gather {m}x{n}x{k}", contenders)


def scatter_row(me: Rank, m: int, n: int, k: int) -> None:
    """Times a product and a reduce-scatter."""
    import torch
    import torch.distributed as dist

    from layoutgemm.distributed import matmul_reduce_scatter

    depth = k // me.ranks
    x, y = normal(me.rank, m, depth), normal(60 + me.rank, n, depth).t()
    partial = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    mine = torch.empty(m // me.ranks, n, device="cuda", dtype=torch.bfloat16)
    group = dist.group.WORLD.group_name

    def nccl() -> None:
        torch.mm(x, y, out=partial)
        dist.reduce_scatter_tensor(mine, partial)

    contenders: dict[str, Make] = {
        ALONE: lambda: lambda: torch.mm(x, y, out=partial),
        "torch.mm, then NCCL": lambda: nccl,
        "symm_mem fused": lambda: lambda: torch.ops.symm_mem.fused_matmul_reduce_scatter(x, y, "sum", 0, group),
        OURS: lambda: lambda: matmul_reduce_scatter(x, y, out=mine),
    }
    for name, config in CONFIGS.items():
        contenders[f"{OURS} {name}"] = lambda c=config: lambda: matmul_reduce_scatter(x, y, out=mine, config=c)  # type: ignore[misc]
    for count in CHUNKS:
        contenders[f"{OURS} {count} chunks"] = lambda c=count: lambda: matmul_reduce_scatter(x, y, out=mine, chunks=c)  # type: ignore[misc]
    row(me, f"reduce-scatter {m}x{n}x{k}", contenders)


def replayed(call: Call) -> Call:
    """The replay of a CUDA graph of one call."""
    import torch

    call()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        call()
    return graph.replay


def graph_row(me: Rank, m: int, n: int, k: int) -> bool:
    """Times replays of both products; False if a replay gives other bits than a call."""
    import torch

    from layoutgemm.distributed import all_gather_matmul, matmul_reduce_scatter

    a, b = normal(me.rank, m // me.ranks, k), normal(50 + me.rank, n // me.ranks, k).t()
    x, y = normal(me.rank, m, k // me.ranks), normal(60 + me.rank, n, k // me.ranks).t()
    out, mine = all_gather_matmul(a, b), matmul_reduce_scatter(x, y)
    wanted = out.clone(), mine.clone()
    row(me, f"in a CUDA graph {m}x{n}x{k}", {
        ALONE: lambda: lambda: torch.mm(x, y),
        "gather, graph": lambda: replayed(lambda: all_gather_matmul(a, b, out=out)),
        "scatter, graph": lambda: replayed(lambda: matmul_reduce_scatter(x, y, out=mine)),
    })  # fmt: skip
    return torch.equal(out, wanted[0]) and torch.equal(mine, wanted[1])


def worker(rank: int, ranks: int, port: int, options: argparse.Namespace) -> None:
    """One process; exits with 1 for a wrong result."""
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(ranks), LOCAL_RANK=str(rank), MASTER_ADDR="127.0.0.1",
                      MASTER_PORT=str(port), NCCL_NVLS_ENABLE="0", TORCH_SYMM_MEM_DISABLE_MULTICAST="1")  # fmt: skip
    import torch
    import torch.distributed as dist

    from layoutgemm.bench import machine
    from layoutgemm.distributed import check_ranks

    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", device_id=torch.device("cuda", rank))
    me = Rank(rank, ranks, options.repeat, options.json, {"machine": machine.facts(), "ranks": ranks})
    me.say(me.record["machine"])
    right = checked(me)
    for sizes in SHAPES if right else ():
        gather_row(me, *sizes)
        scatter_row(me, *sizes)
        torch.cuda.empty_cache()
    right = right and graph_row(me, *SHAPES[0])
    check_ranks()
    dist.destroy_process_group()
    sys.exit(0 if right else 1)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without enough GPUs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="GPUs, 2 to 8")
    parser.add_argument("--repeat", type=int, default=100, help="calls of each check, with random delays")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu(), needs.few_gpus(options.ranks)):
        return status
    import torch.multiprocessing

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    processes = [
        context.Process(target=worker, args=(rank, options.ranks, port, options)) for rank in range(options.ranks)
    ]
    for process in processes:
        process.start()
    deadline = time.monotonic() + LIMIT
    for process in processes:
        process.join(max(0.0, deadline - time.monotonic()))
    alive = [process for process in processes if process.is_alive()]
    for process in alive:
        process.kill()
    return 1 if alive or any(process.exitcode for process in processes) else 0


if __name__ == "__main__":
    sys.exit(main())
