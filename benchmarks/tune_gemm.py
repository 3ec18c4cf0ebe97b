"""Every configuration worth trying for a shape, measured side by side: what the heuristic is held against.

    python benchmarks/tune_gemm.py build FOLDER --shapes 8192,4096x14336x4096      # compiles, no GPU needed
    python benchmarks/tune_gemm.py run FOLDER --shapes 8192,4096x14336x4096 --json tuned.json

`build` writes one object a configuration, and a manifest; `run` loads what it needs, checks every contender against
float64, and measures bursts as `layoutgemm/bench.py` says, torch.mm among them.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks.bench_gemm import SHAPES
from benchmarks.objects import export, loaded
from benchmarks.ours import launches
from layoutgemm.bench import Contender, Launch, Operands, Problem
from layoutgemm.command.bench import shape
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.sm90_choice import Sm90Choice, choose, likeliest, of_estimate
from layoutgemm.kernels.sm90_few_rows import most_split
from layoutgemm.kernels.sm90_plan import Sm90Config

NEXT = (("start", 2), ("end", 0))  # when the next kernel's blocks may come, k tiles fetched before this one's
_LIKELY = 24  # of those that the heuristic estimates, the best
B_ORDERS = {"k": "bf16:col", "n": "bf16:row"}


def candidates(m: int, n: int, k: int, b_major: str = "k") -> Iterator[Sm90Choice]:
    """Configurations that could be the fastest for a shape; the heuristic's own comes first."""
    seen = set()
    order = "K" if b_major == "k" else "MN"
    chosen, _ = choose(m, n, k, b_major=order)
    likely = [of_estimate(e, m, n, k, order)[0] for e in likeliest(m, n, k, order)[:_LIKELY]] if m > 64 else []
    for choice in [chosen, *likely, *(_few_rows(m, n) if m <= 64 else _many_rows(m, n, k, chosen.config.overlap))]:
        if (name := name_of(choice)) not in seen:
            seen.add(name)
            yield choice


def _few_rows(m: int, n: int) -> Iterator[Sm90Choice]:
    rows = -(-m // 8) * 8
    each = -(-n // (132 * 8)) * 8
    for width in sorted({w for w in (each, each + 8, each * 2, 64, 128) if w <= 256}):
        for trigger, early in NEXT:
            config = Sm90Config(
                (64, width), tile_k=128, consumers=1, loader="warp", single=True, chunks=1, overlap=True,
                trigger=trigger, rows=rows if rows < 64 else None, prefetch=early, first="B", launch="tiles",
                along="N",
            )  # fmt: skip
            yield Sm90Choice(config)
            if rows == 64:
                yield Sm90Choice(replace(config, cluster=(1, 2)))
    for split, width in ((2, 16), (2, 32), (2, 64), (4, 64)):
        for trigger, early in NEXT:
            if -(-n // width) <= most_split(132, split):
                config = Sm90Config(
                    (64, width), tile_k=128, consumers=1, loader="warp", single=True, split=split, chunks=split,
                    overlap=True, trigger=trigger, rows=rows if rows < 64 else None, prefetch=early, first="B",
                    launch="tiles", along="N",
                )  # fmt: skip
                yield Sm90Choice(config)
    width = 16 if m <= 16 else 32 if m <= 32 else 64
    for rows in (64, 128):
        for split in (1, 2):
            for trigger, early in NEXT:
                config = Sm90Config(
                    (rows, width), tile_k=128, consumers=rows // 64, loader="warp", single=True, overlap=True,
                    trigger=trigger, split=split, prefetch=early, launch="tiles",
                )  # fmt: skip
                yield Sm90Choice(config, swapped=True)


def _many_rows(m: int, n: int, k: int, overlap: bool) -> Iterator[Sm90Choice]:
    base = Sm90Config(chunks=1, buffers=2, overlap=overlap, prefetch=int(overlap))
    for width in (64, 96, 128, 192, 256):  # one wave: a grid of tiles, and stores that begin early
        wide = width == 256
        config = replace(base, tile=(128, width), launch="tiles", early=2, loader="warp", consumers=2 if wide else 1)
        yield Sm90Choice(replace(config, cluster=(2, 1), along="N"))
        yield Sm90Choice(config)
        if width in (64, 128):
            low = replace(config, tile=(64, width), early=0, prefetch=2 * int(overlap))
            yield Sm90Choice(low)
            yield Sm90Choice(replace(low, cluster=(2, 1), along="N"))
    for cluster, group, along in (((2, 1), 8, "M"), ((2, 1), 8, "N"), ((1, 2), 8, "N"), ((1, 1), 8, "M")):
        for width in (128, 160, 176, 192, 208, 224):
            config = replace(base, tile=(256, width), cluster=cluster, group=group, along=along, early=2)
            yield Sm90Choice(config)
        for width in (64, 96, 128, 160, 192, 224, 256):
            config = replace(base, tile=(128, width), cluster=cluster, group=group, along=along)
            yield Sm90Choice(config)
            if width <= 192:
                yield Sm90Choice(replace(config, loader="warp", consumers=1))
                yield Sm90Choice(replace(config, loader="warp", consumers=1, early=2))
                yield Sm90Choice(replace(config, loader="warpgroup", schedule="pingpong"))
        if m * n <= 4096 * 4096:
            for width in (64, 128, 192, 256):
                config = replace(base, tile=(64, width), cluster=cluster, group=group, along=along, consumers=1)
                yield Sm90Choice(replace(config, loader="warp"))
                if width <= 128:
                    yield Sm90Choice(replace(config, loader="warpgroup", schedule="pingpong", consumers=2))


def random_shapes(count: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Shapes that nobody chose: sizes log-uniform, N and K multiples of 64, M any multiple of 8 or a power of two.

    >>> random_shapes(2)
    [(4288, 8384, 3264), (4, 14912, 3968)]
    """
    rng = random.Random(seed)

    def size(low: int, high: int, unit: int) -> int:
        return max(unit, round(math.exp(rng.uniform(math.log(low), math.log(high))) / unit) * unit)

    shapes = []
    for i in range(count):
        m = size(128, 8192, 8) if i % 2 == 0 else 1 << rng.randrange(0, 7)
        shapes.append((m, size(1024, 16384, 64), size(1024, 16384, 64)))
    return shapes


def name_of(choice: Sm90Choice) -> str:
    """A short name that tells configurations apart.

    >>> name_of(Sm90Choice(Sm90Config((256, 224), cluster=(2, 1), group=4)))
    '256x224 self c21 g4M'
    """
    config = choice.config
    parts = ["swap"] * choice.swapped + ["x".join(map(str, config.tile))]
    parts += ["pp"] * (config.schedule == "pingpong")
    parts.append({"self": "self", "warp": "w", "warpgroup": "wg"}[config.loader])
    parts.append("c" + "".join(map(str, config.cluster)))
    parts.append(f"g{config.group}{config.along}")
    defaults = Sm90Config()
    shorts = {"stages": "s", "tile_k": "k", "chunks": "ch", "buffers": "b", "split": "split", "consumers": "wg",
              "prefetch": "pf"}  # fmt: skip
    for field, short in shorts.items():
        if getattr(config, field) != getattr(defaults, field):
            parts.append(f"{short}{getattr(config, field)}")
    parts += [f"r{config.rows}"] * (config.rows is not None) + ["single"] * config.single
    parts += ["tiles"] * (config.launch == "tiles")
    parts += [f"{config.first}first"] * (config.first is not None)
    parts += ["late"] * (config.trigger == "end") + [config.l2_promotion] * (config.l2_promotion != "128B")
    parts += ["snake"] * config.snake + [f"early{config.early}"] * (config.early > 0) + ["pdl"] * config.overlap
    return " ".join(parts)


def build(folder: Path, shapes: Sequence[tuple[int, int, int]], b_major: str, of: Callable[..., Any]) -> None:
    """Compile what the shapes need and is not there yet."""
    from layoutgemm.kernels.compile import _kernel_of
    from layoutgemm.kernels.sass import resources

    folder.mkdir(parents=True, exist_ok=True)
    manifest_file = folder / "manifest.json"
    manifest = json.loads(manifest_file.read_text()) if manifest_file.exists() else {}
    wanted = {name_of(choice): choice for sizes in shapes for choice in of(*sizes, b_major)}
    for i, (name, choice) in enumerate(wanted.items()):
        key = f"{name} {b_major}"
        if key in manifest:
            continue
        try:
            plan = choice.plan(1, 1, 8192, b=B_ORDERS[b_major])  # a K that every configuration takes
        except LayoutError as error:
            print(f"{key}: {error}", flush=True)
            continue
        start = time.time()
        symbol = f"tuned{len(manifest)}"
        used = resources(export(folder, _kernel_of(plan), plan.parameters.values(), symbol, "sm_90a"))
        manifest[key] = {
            "symbol": symbol, "clusters": plan.cluster_size, "registers": used.registers, "local": used.local_bytes,
            "stack": used.stack_bytes, "smem": plan.smem.total, "stages": plan.stages,
        }  # fmt: skip
        manifest_file.write_text(json.dumps(manifest, indent=1))
        print(f"[{i + 1}/{len(wanted)}] {key}: {used}, {plan.stages} stages, {time.time() - start:.1f} s", flush=True)


def contender(folder: Path, key: str, choice: Sm90Choice, entry: dict[str, Any], problem: Problem) -> Contender:
    """A compiled configuration as a contender."""

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        from cuda.bindings import driver

        function = loaded(folder / f"{entry['symbol']}.o", entry["symbol"])

        def launch(*arguments: int, stream: int) -> None:
            function(*arguments, driver.CUstream(stream))

        return launches(launch, choice, entry["clusters"], problem, sets)

    return Contender(key, prepare, "ours", "")


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--shapes", help="MxNxK,... (default: the table's)")
    parser.add_argument("--random", type=int, default=0, metavar="COUNT", help="shapes drawn at random, beside")
    parser.add_argument("--seed", type=int, default=0, help="of the random shapes")
    parser.add_argument("--b-major", choices=("k", "n"), default="k")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--budget", type=float, default=400.0, metavar="SECONDS")
    parser.add_argument("--patience", type=float, default=30.0, metavar="SECONDS")
    parser.add_argument("--only", help="configurations whose name contains one of these, comma-separated")
    parser.add_argument("--peers", action="store_true", help="cublasLt and quack, too")
    parser.add_argument("--object", action="append", default=[], metavar="NAME=FILE.o", help="others' kernels, beside")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    shapes = [shape(text) for text in options.shapes.split(",")] if options.shapes else list(SHAPES)
    shapes = (shapes if options.shapes or not options.random else []) + random_shapes(options.random, options.seed)
    if options.step == "build":
        build(options.folder, shapes, options.b_major, candidates)
        return 0
    from benchmarks import peers
    from benchmarks.bench_gemm import FAMILIES, Watchdog
    from layoutgemm import bench_machine as machine
    from layoutgemm.bench import CudaDevice
    from layoutgemm.bench_contenders import KEEP, torch_mm
    from layoutgemm.bench_outcome import Method, measure

    manifest = json.loads((options.folder / "manifest.json").read_text())
    _, sampler = machine.sampler()
    device, begun, results = CudaDevice(sampler), time.monotonic(), {}
    print(machine.facts(), flush=True)
    watchdog = Watchdog(options.patience, print).__enter__()
    wanted = options.only.split(",") if options.only else None
    for sizes in shapes:
        if time.monotonic() - begun > options.budget:
            print("the budget is spent", flush=True)
            break
        problem, start = Problem(*sizes, options.b_major), time.monotonic()
        field = torch_mm(problem)
        if options.peers:
            field = [c for of in FAMILIES.values() for c in of(problem)]
        for choice in candidates(*sizes, options.b_major):
            key = f"{name_of(choice)} {options.b_major}"
            if key in manifest and (wanted is None or any(text in key for text in wanted)):
                field.append(contender(options.folder, key, choice, manifest[key], problem))
        for text in options.object:
            name, _, path = text.partition("=")
            field.append(peers.dsl_object(name, Path(path), "others"))
        outcome = measure(device, problem, field, Method(options.rounds, sustained_rounds=0, keep=KEEP), watchdog.mark)
        base = next(m.seconds for m in outcome.measured if m.name == "torch.mm")
        ranked = sorted(outcome.measured, key=lambda m: m.seconds)
        print(f"{problem} [{time.monotonic() - start:.1f} s] torch.mm {base * 1e6:.2f} us", flush=True)
        for m in ranked:
            print(f"    {base / m.seconds:6.4f} {m.seconds * 1e6:9.2f} us  {m.name} {m.fault}", flush=True)
        own = f"{name_of(next(candidates(*sizes, options.b_major)))} "
        chosen = next((m.seconds for m in ranked if m.name.startswith(own)), None)
        best = min((m.seconds for m in ranked if m.family == "ours"), default=None)
        if chosen and best:
            print(f"    chosen / best: {chosen / best:.4f}", flush=True)
        for name, why in outcome.failed:
            print(f"    FAILED {name}: {why[:300]}", flush=True)
        results[str(problem)] = {m.name: m.seconds for m in outcome.measured}
        if options.json:
            options.json.write_text(json.dumps(results, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
