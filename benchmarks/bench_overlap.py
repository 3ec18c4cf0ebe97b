"""Products that overlap with communication, against torch's symmetric memory and NCCL.

    python benchmarks/bench_overlap.py --json FILE                      # 2 GPUs of one host, 2 minutes
    python benchmarks/bench_overlap.py --ranks 8 --parts shapes         # 8 GPUs, bf16 and float8
    python benchmarks/bench_overlap.py --parts checks --repeat 500      # ranks delayed at random
    python benchmarks/bench_overlap.py --parts block                    # a block of a Llama
    python benchmarks/bench_overlap.py --ranks 4 --parts links          # copies between GPUs, with a flag behind each

A process for each GPU. Sizes are M x N x K of the whole product; B has K contiguous.

- all-gather: each rank has M / ranks rows of A and N / ranks columns of B.
- reduce-scatter: each rank has K / ranks of A and B, and receives M / ranks rows of the sum.

Peers are torch.mm alone ("product alone"; of float8 torch._scaled_mm), NCCL with it, and the fused operators of
`torch.ops.symm_mem`. NVLink multicast is off for all.

- All ranks first check results against float64, with random delays, rotating operands, and bits of repeated calls.
- A time is the median of 7 rounds of 20 calls between two events, of the slowest rank; all contenders of a line take
  part in each round. "host" is what the calls of one round took on the host before the GPUs were done, each.
- CUDA graphs of one call are replayed, compared and timed for the first shape.
- The block: attention and MLP of a Llama of 4096 columns, sequence parallel, forward and backward (`parallel_block`).
- Links: all ranks send 192 MiB at once in pieces, to the rank before, or to each of the others in turn.
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
from layoutgemm.distributed import Transfer

Call = Callable[[], Any]
Make = Callable[[], Call]
SHAPES = (
    (4096, 14336, 4096), (8192, 8192, 8192), (16384, 4096, 14336), (8192, 28672, 8192), (16384, 8192, 28672)
)  # M, N, K  # fmt: skip
PARTS = ("checks", "links", "shapes", "graphs", "block")
SENT, PIECES = 192, (8, 16, 32, 64)  # MiB that each rank sends, and of a piece
GATHERS = {"1 chunk": Transfer(1), "2 chunks": Transfer(2), "4 chunks": Transfer(4), "8 chunks": Transfer(8)}
SCATTERS = {"stores, 16 chunks": Transfer(16, "stores"), "stores, 4 chunks": Transfer(4, "stores")} | {
    f"copies, {chunks} chunks": Transfer(chunks, "copies") for chunks in (1, 2, 4, 8)
}
# M, N, K of a rank, and the ways of a gather and of a scatter; None: rows that are no whole tiles are not scattered
CHECKS = (
    (1024, 512, 256, Transfer(), Transfer()),
    (2048, 1032, 520, Transfer(2), Transfer(1, "copies")),
    (4096, 3584, 4096, Transfer(), Transfer(4)),
    (4096, 1024, 2048, Transfer(4), Transfer(2, "copies")),
    (1200, 1032, 520, Transfer(2), None),
)
ALONE, ALONE_BLOCK, OURS = "product alone", "NCCL", "ours"
ROUNDS, CALLS, WARM = 7, 20, 4
LIMIT = 590  # seconds for all processes
TIMEOUT = 20.0  # seconds that a rank waits for another


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


def eight(x: Any) -> Any:
    """A matrix as float8, each row's largest value at 448, and the rows' scales."""
    import torch

    scale = x.float().abs().amax(1, keepdim=True).clamp(min=1e-6) / 448
    return (x.float() / scale).to(torch.float8_e4m3fn), scale


def scaled(x: Any, wide: bool) -> tuple[Any, Any]:
    """A matrix as it is multiplied, and its scales or None. It is float8 if `wide` is false."""
    return (x, None) if wide else eight(x)


def exact(x: Any, scale: Any) -> Any:
    """The values in float64."""
    return x.double() if scale is None else x.double() * scale.double()


def cut(k: int) -> float:
    """The relative error of sums of float8 products. Each instruction, of 32 values of K, keeps 13 bits."""
    return float((k // 32 + 1) * 2.0**-13)


def gathered(me: Rank, m: int, n: int, k: int, transfer: Transfer, wide: bool) -> tuple[float, bool]:
    """The error of all_gather_matmul, and False if a repeated call or rotated operands differ."""
    import torch

    from layoutgemm.distributed import all_gather_matmul

    delay, (b, scale_b) = delays(me.rank), scaled(normal(100 + me.rank, n, k), wide)

    def call(shard: tuple[Any, Any]) -> Any:
        delay()
        factors = {} if wide else {"scale_a": shard[1], "scale_b": scale_b.t().contiguous()}
        return all_gather_matmul(shard[0], b.t(), transfer=transfer, timeout=TIMEOUT, **factors)

    def bound(shards: list[tuple[Any, Any]]) -> tuple[Any, Any]:
        whole, other = torch.cat([exact(*shard) for shard in shards]), exact(b, scale_b).t()
        want, size = whole @ other, whole.abs() @ other.abs()
        return want, want.abs() * 2.0**-8 + size * (2.0**-20 if wide else cut(k)) + 1e-6

    shards = [scaled(normal(rank, m // me.ranks, k), wide) for rank in range(me.ranks)]
    first = call(shards[me.rank])
    error, same = share(first, *bound(shards)), True
    for _ in range(me.repeat):
        same = torch.equal(call(shards[me.rank]), first) and same
    for i in range(min(me.repeat, 20)):  # other operands in one workspace: a stale row would show
        x = [scaled(normal(1000 + 10 * i + rank, m // me.ranks, k), wide) for rank in range(me.ranks)]
        error = max(error, share(call(x[me.rank]), *bound(x)))
    return error, same


def scattered(me: Rank, m: int, n: int, k: int, transfer: Transfer, wide: bool) -> tuple[float, bool]:
    """The error of matmul_reduce_scatter, and False if a repeated call differs."""
    import torch

    from layoutgemm.distributed import matmul_reduce_scatter

    delay = delays(me.rank)
    mine = slice(me.rank * m // me.ranks, (me.rank + 1) * m // me.ranks)
    error, same = 0.0, True
    for seed in (200, 1200):  # other operands in one workspace
        x, y = ([scaled(normal(seed + 100 * i + r, *of, k), wide) for r in range(me.ranks)]
                for i, of in enumerate(([m], [n])))  # fmt: skip
        pairs = [(exact(*one)[mine], exact(*two).t()) for one, two in zip(x, y, strict=True)]
        ring = torch.stack([one @ two for one, two in (pairs[(me.rank - 1 - i) % me.ranks] for i in range(me.ranks))])
        ring = ring.cumsum(0)
        want, bound = ring[-1], ring.abs().sum(0) * 2.0**-8 * 1.01 + 1e-3
        if not wide:
            bound += sum(one.abs() @ two.abs() for one, two in pairs) * cut(k)
        (a, scale_a), (b, scale_b) = x[me.rank], y[me.rank]
        factors = {} if wide else {"scale_a": scale_a, "scale_b": scale_b.t().contiguous()}

        def call() -> Any:
            delay()
            return matmul_reduce_scatter(a, b.t(), transfer=transfer, timeout=TIMEOUT, **factors)  # noqa: B023

        first = call()
        error = max(error, share(first, want, bound))
        for _ in range(me.repeat // 2):
            same = torch.equal(call(), first) and same
    return error, same


def checked(me: Rank) -> bool:
    """True if every product is within its bound, with the same bits in every run."""
    from layoutgemm.distributed import check_ranks

    right = True
    for wide in (True, False):
        for m, n, k, gather_way, scatter_way in CHECKS if wide else CHECKS[:3:2]:
            gather, same = gathered(me, m, n, k, gather_way, wide)
            scatter, alike = scattered(me, m, n, k, scatter_way, wide) if scatter_way else (0.0, True)
            check_ranks()
            found = me.largest(gather, scatter, float(not same), float(not alike))
            right = right and found[0] <= 1 and found[1] <= 1 and not found[2] and not found[3]
            name = f"{'bf16' if wide else 'float8'} {m}x{n}x{k} {gather_way} {scatter_way}"
            me.keep("correct", name, found)
            bits = ", ".join(f"{part}: {'results differ between runs' if found[i] else 'the same bits in every run'}"
                             for i, part in ((2, "gather"), (3, "scatter")))  # fmt: skip
            me.say(f"{name}: error / bound {found[0]:.3f} (gather), {found[1]:.3f} (scatter); {bits}")
    return right


def once(call: Call) -> tuple[float, float]:
    """Microseconds of a call in one round: on the GPU, and on the host alone."""
    import torch
    import torch.distributed as dist

    torch.cuda.synchronize()
    dist.barrier()
    torch.cuda.synchronize()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    began = time.perf_counter()
    for _ in range(CALLS):
        call()
    host = (time.perf_counter() - began) / CALLS * 1e6
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / CALLS * 1e3, host


def timed(me: Rank, calls: dict[str, Call]) -> dict[str, tuple[float, float]]:
    """Microseconds of calls on the slowest rank, on the GPU and on the host. They are medians of common rounds."""
    for call in calls.values():
        for _ in range(WARM):
            call()
    found: dict[str, list[tuple[float, float]]] = {label: [] for label in calls}
    for _ in range(ROUNDS):
        for label, call in calls.items():
            found[label].append(once(call))
    medians = [statistics.median(x) for rounds in found.values() for x in zip(*rounds, strict=True)]
    slowest = me.largest(*medians)
    return dict(zip(calls, zip(slowest[::2], slowest[1::2], strict=True), strict=True))


def row(me: Rank, name: str, contenders: dict[str, Make], base: str = ALONE) -> None:
    """Times the contenders of one line; a refused one has its reason instead."""
    times: dict[str, float | str] = {}
    calls: dict[str, Call] = {}
    for label, make in contenders.items():
        try:
            calls[label] = make()
            calls[label]()
        except Exception as problem:  # a peer without a kernel for the case
            calls.pop(label, None)
            times[label] = f"{type(problem).__name__}: {str(problem)[:200]}"
    found = timed(me, calls)
    times |= {label: round(gpu, 1) for label, (gpu, _) in found.items()}
    hosts = {label: round(host, 1) for label, (_, host) in found.items()}
    me.keep("us", name, times)
    me.keep("host us", name, hosts)
    alone = times[base]
    assert isinstance(alone, float), alone
    said = [
        f"{us} {label} ({us / alone:.3f}, host {hosts[label]:.0f})"
        for label, us in times.items()
        if isinstance(us, float)
    ]
    me.say(f"{name}, us (ratio to {base}): {', '.join(said)}")


def gather_row(me: Rank, m: int, n: int, k: int, wide: bool) -> None:
    """Times an all-gather and a product."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm

    from layoutgemm.distributed import all_gather_matmul

    columns, rows = n // me.ranks, m // me.ranks
    (a, scale_a), (b, scale_b) = scaled(normal(me.rank, rows, k), wide), scaled(normal(50 + me.rank, columns, k), wide)
    (full, scale), b = scaled(normal(7, m, k), wide), b.t()
    out = torch.empty(m, columns, device="cuda", dtype=torch.bfloat16)
    whole, shared = torch.empty_like(full), symm.empty((rows, k), dtype=a.dtype, device="cuda")
    symm.rendezvous(shared, dist.group.WORLD)
    shared.copy_(a)
    group = dist.group.WORLD.group_name
    factors = {} if wide else {"scale_a": scale_a, "scale_b": scale_b.t().contiguous()}
    alone = product(b, factors.get("scale_b"), out)

    def nccl() -> None:
        dist.all_gather_into_tensor(whole.view(torch.uint8), a.view(torch.uint8))
        alone(whole, scale)

    def fused() -> Any:
        if wide:
            return torch.ops.symm_mem.fused_all_gather_matmul(shared, [b], 0, group)
        return torch.ops.symm_mem.fused_all_gather_scaled_matmul(
            shared, [b], scale_a, [factors["scale_b"]], 0, group, [None], [None], [torch.bfloat16], [True]
        )

    def ours(way: Transfer | None = None) -> Make:
        return lambda: lambda: all_gather_matmul(a, b, out=out, transfer=way, timeout=TIMEOUT, **factors)

    contenders: dict[str, Make] = {
        ALONE: lambda: lambda: alone(full, scale),
        "NCCL, then the product": lambda: nccl,
        "symm_mem fused": lambda: fused,
        OURS: ours(),
    }
    ways = GATHERS if wide else {}
    contenders |= {f"{OURS}, {name}": ours(way) for name, way in ways.items()}
    row(me, f"all-gather {'bf16' if wide else 'float8'} {m}x{n}x{k}", contenders)


def product(b: Any, scale_b: Any, out: Any) -> Callable[[Any, Any], Any]:
    """torch's product with B: of a matrix A and its scales."""
    import torch

    if scale_b is None:
        return lambda a, _: torch.mm(a, b, out=out)
    return lambda a, scale: torch._scaled_mm(a, b, scale, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True)


def scatter_row(me: Rank, m: int, n: int, k: int, wide: bool) -> None:
    """Times a product and a reduce-scatter."""
    import torch
    import torch.distributed as dist

    from layoutgemm.distributed import matmul_reduce_scatter

    depth = k // me.ranks
    (x, scale_x), (y, scale_y) = scaled(normal(me.rank, m, depth), wide), scaled(normal(60 + me.rank, n, depth), wide)
    y = y.t()
    partial = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    mine = torch.empty(m // me.ranks, n, device="cuda", dtype=torch.bfloat16)
    group = dist.group.WORLD.group_name
    factors = {} if wide else {"scale_a": scale_x, "scale_b": scale_y.t().contiguous()}
    alone = product(y, factors.get("scale_b"), partial)

    def nccl() -> None:
        dist.reduce_scatter_tensor(mine, alone(x, scale_x))

    def fused() -> Any:
        if wide:
            return torch.ops.symm_mem.fused_matmul_reduce_scatter(x, y, "sum", 0, group)
        return torch.ops.symm_mem.fused_scaled_matmul_reduce_scatter(
            x, y, scale_x, factors["scale_b"], "sum", 0, 0, group, [m, n], None, None, torch.bfloat16, True
        )

    def ours(way: Transfer | None = None) -> Make:
        return lambda: lambda: matmul_reduce_scatter(x, y, out=mine, transfer=way, timeout=TIMEOUT, **factors)

    contenders: dict[str, Make] = {
        ALONE: lambda: lambda: alone(x, scale_x),
        "product, then NCCL": lambda: nccl,
        "symm_mem fused": lambda: fused,
        OURS: ours(),
    }
    ways = SCATTERS if wide else {}
    contenders |= {f"{OURS}, {name}": ours(way) for name, way in ways.items()}
    row(me, f"reduce-scatter {'bf16' if wide else 'float8'} {m}x{n}x{k}", contenders)


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


def block_row(me: Rank) -> bool:
    """Times a block of a Llama, forward and backward. Returns False if its gradients differ from those with NCCL."""
    from benchmarks.parallel_block import Block, difference

    blocks = {name: Block(me.rank, me.ranks, overlaps=name == OURS) for name in (ALONE_BLOCK, OURS)}
    apart = me.largest(difference(blocks[OURS], blocks[ALONE_BLOCK]))[0]
    me.keep("correct", "block: largest difference over the largest value", apart)
    contenders: dict[str, Make] = {name: (lambda block=block: block.step) for name, block in blocks.items()}
    row(me, "a block of a Llama, forward and backward, 4096 tokens", contenders, ALONE_BLOCK)
    row(me, "a block of a Llama, forward, 4096 tokens", {
        name: (lambda block=block: block.forward) for name, block in blocks.items()}, ALONE_BLOCK)  # fmt: skip
    me.say(f"block: largest difference {apart:.2e} of the largest value")
    return apart < 2.0**-5


def links(me: Rank) -> None:
    """GB/s that each rank sends and receives. Pieces have a flag behind each, and go to one rank or to all in turn."""
    import torch
    import torch.distributed as dist
    import torch.distributed._symmetric_memory as symm

    from layoutgemm.kernels.run.stream_memory import copy_bytes, memory_operations, write

    total, room = SENT << 20, 4096  # bytes, and bytes of flags before
    there = symm.empty(total + room, dtype=torch.uint8, device="cuda")
    starts = [int(at) for at in symm.rendezvous(there, dist.group.WORLD).buffer_ptrs]
    here = torch.ones(total, dtype=torch.uint8, device="cuda")

    def sends(size: int, turns: int) -> Call:
        def send() -> None:
            stream = torch.cuda.current_stream().cuda_stream
            for number in range(total // size):
                to, byte = starts[(me.rank - 1 - number % turns) % me.ranks], number * size
                copy_bytes(stream, to + room + byte, here.data_ptr() + byte, size)
                memory_operations(stream, (write(to + 4 * number, 1),))

        return send

    for size in PIECES:
        for name, turns in {"to one rank": 1, "to all in turn": me.ranks - 1}.items():
            us, _ = timed(me, {name: sends(size << 20, turns)})[name]
            me.keep("GB/s", f"{size} MiB {name}", round(total / us / 1e3, 1))
    me.say("GB/s each way:", ", ".join(f"{name} {rate}" for name, rate in me.record["GB/s"].items()))


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
    parts = options.parts
    right = checked(me) if "checks" in parts else True
    if "links" in parts:
        links(me)
    if right and "shapes" in parts:
        for sizes in SHAPES[: options.shapes]:
            for wide in (True, False):
                gather_row(me, *sizes, wide)
                scatter_row(me, *sizes, wide)
                torch.cuda.empty_cache()
    if right and "graphs" in parts:
        right = graph_row(me, *SHAPES[0])
    if right and "block" in parts:
        right = block_row(me)
    check_ranks()
    dist.destroy_process_group()
    sys.exit(0 if right else 1)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result, 2 without enough GPUs."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--ranks", type=int, default=2, help="GPUs, 2 to 8")
    parser.add_argument("--repeat", type=int, default=100, help="calls of each check, with random delays")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to run; all of it by default")
    parser.add_argument("--shapes", type=int, default=len(SHAPES), help="how many of the shapes, the first ones")
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
