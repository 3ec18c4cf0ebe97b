"""Block-scaled fp8 and grouped products against torch: checked against float64, then timed.

    python benchmarks/bench_variants.py build DIR        # with the DSL, without a GPU: objects and a manifest
    python benchmarks/bench_variants.py run DIR --json benchmarks/results/variants_h200.json    # on the GPU, minutes

`scaled`: A (M, K) and B (N, K) of e4m3 with a float32 scale for each 1 x 128 of A and 128 x 128 of B. Peers are
torch._scaled_mm with row and column scales (without promotion), the same with equal blocks if this torch has
it, and torch.mm of bf16.

`grouped`: random rows per expert, some experts without rows. Peers are torch._grouped_mm and a loop of torch.mm, which
needs the group offsets on the host. `grouped, scaled`: both.

Times are bursts by `layoutgemm/bench/method.py`. Operands rotate if they would stay in L2. Ratios are to the first
peer.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from layoutgemm.kernels.compile.launcher import link, load
from layoutgemm.kernels.run.occupancy import resident
from layoutgemm.kernels.sm90.grouped import Ragged
from layoutgemm.kernels.sm90.mainloop import Promoted, Table
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan

Call = Callable[[], Any]
DEPTH = 128
SCALED = ((4096, 4096, 7168), (4096, 7168, 2048), (8192, 8192, 8192), (128, 4096, 7168), (16, 7168, 2048))  # M, N, K
# experts, rows, N, K
GROUPED = ((8, 8192, 14336, 4096), (32, 8192, 4096, 7168), (64, 4096, 2816, 2048), (64, 512, 2816, 2048))
BOTH = ((32, 8192, 4096, 7168), (64, 4096, 2816, 2048))
LOOP = Promoted.of(
    lambda total, product, a, b: total + a * b * product, Table("scale_a", "m"), Table("scale_b", "n", DEPTH)
)
PROMOTING = {
    "128x128": Sm90Config((128, 128), chunks=1, buffers=2),
    "128x128 c21": Sm90Config((128, 128), cluster=(2, 1), chunks=1, buffers=2),
    "128x128 c12": Sm90Config((128, 128), cluster=(1, 2), chunks=1, buffers=2),
    "128x128 warpgroup": Sm90Config((128, 128), loader="warpgroup", chunks=1, buffers=2),
    "192x128": Sm90Config((192, 128), consumers=3, chunks=1, buffers=1),
    "64x128": Sm90Config((64, 128), consumers=1, loader="warp", chunks=1, buffers=2),
}
GROUPS = {
    "128x256": Sm90Config((128, 256), chunks=1, buffers=2),
    "128x256 c21": Sm90Config((128, 256), cluster=(2, 1), chunks=1, buffers=2),
    "256x192 c12": Sm90Config((256, 192), cluster=(1, 2), chunks=1, buffers=2, early=2),
    "128x192": Sm90Config((128, 192), chunks=1, buffers=2),
    "64x256": Sm90Config((64, 256), consumers=1, loader="warp", chunks=1, buffers=2),
}
OURS = "ours "


def plans() -> dict[str, Sm90Plan]:
    """Every kernel by name; sizes are launch arguments."""
    found = {}
    for name, config in PROMOTING.items():
        found[f"scaled {name}"] = Sm90Plan.derive(
            4096, 4096, 4096, a="e4m3", b="e4m3:col", c="bf16", config=config, mainloop=LOOP
        )
        found[f"both {name}"] = Sm90Plan.derive(
            4096, 4096, 4096, batch=64, a="e4m3", b="e4m3:col", c="bf16", config=config, mainloop=LOOP,
            ragged=Ragged.of(64),
        )  # fmt: skip
    for name, config in GROUPS.items():
        found[f"grouped {name}"] = Sm90Plan.derive(
            4096, 4096, 4096, batch=64, b="bf16:col", config=config, ragged=Ragged.of(64)
        )
    return found


def build(folder: Path) -> None:
    """Compiles the missing objects."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text()) if file.exists() else {}
    for name, plan in plans().items():
        plan.check().require()
        compiled = plan.compile()
        if manifest.get(name, {}).get("symbol") == compiled.symbol:
            continue
        (folder / f"{compiled.symbol}.o").write_bytes(compiled.object)
        used = compiled.resources
        manifest[name] = {"symbol": compiled.symbol, "registers": used.registers, "local": used.local_bytes}
        file.write_text(json.dumps(manifest, indent=1) + "\n")
        print(f"{name}: {used}", flush=True)


@cache
def launcher(path: Path, symbol: str) -> Callable[[Sequence[int]], None]:
    """launch(arguments) of a built object on torch's current stream."""
    import torch

    content = path.read_bytes()
    found = load(content, link(content), symbol)
    found.load(torch.cuda.current_device())

    def launch(arguments: Sequence[int]) -> None:
        block = found.block(arguments)
        block.values[block.count] = torch.cuda.current_stream().cuda_stream
        if error := block.call():
            raise RuntimeError(f"CUDA refused the launch: {error}")

    return launch


class Ours:
    """The built kernels."""

    def __init__(self, folder: Path):
        import torch

        self.folder, self.manifest = folder, json.loads((folder / "manifest.json").read_text())
        self.device = torch.cuda.current_device()

    def call(self, name: str, config: Sm90Config, a: Any, b: Any, c: Any, words: Sequence[int]) -> Call:
        """A launch; b is (N, K), or (experts, N, K)."""
        symbol = self.manifest[name]["symbol"]
        launch = launcher(self.folder / f"{symbol}.o", symbol)
        batch = b.shape[0] if b.ndim > 2 else 1
        sizes = (a.shape[0], b.shape[-2], a.shape[1], batch, a.stride(0), b.stride(-2), c.stride(0), 0, b.stride(0), 0)
        arguments = (
            a.data_ptr(), b.data_ptr(), c.data_ptr(), *sizes,
            resident(self.device, config.cluster[0] * config.cluster[1] * config.split),
            *words, *[0] * (16 - len(words)),
        )  # fmt: skip
        return lambda: launch(arguments)


def table_words(scale_a: Any, scale_b: Any) -> list[int]:
    """Launch parameters of two scale tables: address, and strides of rows, blocks and batch."""
    words = []
    for x in (scale_a, scale_b):
        words += [x.data_ptr(), x.stride(-2), x.stride(-1), x.stride(0) if x.ndim > 2 else 0]
    return words


def fp8(*shape: int) -> Any:
    """A random matrix, or several, of e4m3 on the GPU."""
    import torch

    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16).to(torch.float8_e4m3fn)


def spread(scale: Any, group: int, size: int, k: int) -> Any:
    """Scales that match the magnitude of their blocks."""
    return scale.double().repeat_interleave(group, -2)[..., :size, :].repeat_interleave(DEPTH, -1)[..., :k]


def off(got: Any, want: Any, k: int) -> float:
    """The largest error, relative to bf16's rounding and to 2**-8 of the sum's spread."""
    bound = 2.0**-8 * want.abs() + 2.0**-6 * k**0.5
    return float(((got.double() - want).abs() / bound).max())


def attempt(calls: dict[str, list[Call]], name: str, each: list[Call]) -> None:
    """One of torch's contenders, if this torch runs it."""
    try:
        for call in each:
            call()
    except Exception as error:  # absent, or not for these shapes
        print(f"    {name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
        return
    calls[name] = each


def scaled(ours: Ours, sizes: tuple[int, int, int]) -> tuple[dict[str, list[Call]], dict[str, float]]:
    """A product with scales of K blocks: every contender's calls, and the error of each of ours, 1 at the bound.

    Raises KeyError where a kernel was not built, RuntimeError where CUDA refuses a launch.
    """
    import torch

    m, n, k = sizes
    blocks, count = k // DEPTH, max(1, min(16, (1 << 28) // ((m + n) * k)))
    sets = []
    for _ in range(count):
        a, b = fp8(m, k), fp8(n, k)
        sa = torch.rand(blocks, m, device="cuda").T + 0.5  # rows contiguous: a warp reads eight of them
        sb = torch.rand(-(-n // DEPTH), blocks, device="cuda") + 0.5
        sets.append((a, b, sa, sb, torch.empty(m, n, device="cuda", dtype=torch.bfloat16)))
    a, b, sa, sb, c = sets[0]
    want = (spread(sa, 1, m, k) * a.double()) @ (spread(sb, DEPTH, n, k) * b.double()).T
    calls: dict[str, list[Call]] = {}
    errors = {}
    one_a, one_b = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    attempt(calls, "torch._scaled_mm, rows", [
        lambda s=s: torch._scaled_mm(s[0], s[1].T, one_a, one_b, out_dtype=torch.bfloat16, use_fast_accum=False)
        for s in sets
    ])  # fmt: skip
    attempt(calls, "torch._scaled_mm, rows, fast", [
        lambda s=s: torch._scaled_mm(s[0], s[1].T, one_a, one_b, out_dtype=torch.bfloat16, use_fast_accum=True)
        for s in sets
    ])  # fmt: skip
    attempt(calls, "torch._scaled_mm, blocks", [
        lambda s=s: torch._scaled_mm(s[0], s[1].T, s[2], s[3].T, out_dtype=torch.bfloat16) for s in sets
    ])  # fmt: skip
    wide = [(s[0].bfloat16(), s[1].bfloat16()) for s in sets]
    attempt(calls, "torch.mm of bf16", [lambda w=w: torch.mm(w[0], w[1].T) for w in wide])
    for name, config in PROMOTING.items():
        each = [ours.call(f"scaled {name}", config, s[0], s[1], s[4], table_words(s[2], s[3])) for s in sets]
        each[0]()
        errors[name] = off(c, want, k)
        calls[OURS + name] = each
    return calls, errors


def drawn(experts: int, rows: int) -> list[int]:
    """Random rows per expert, with popular and empty experts."""
    rng = random.Random(experts * rows)
    weights = [rng.expovariate(1) if rng.random() > 0.1 else 0.0 for _ in range(experts)]
    sizes = [0] * experts
    for e in rng.choices(range(experts), weights, k=rows):
        sizes[e] += 1
    return sizes


def grouped(
    ours: Ours, sizes: tuple[int, int, int, int], with_scales: bool
) -> tuple[dict[str, list[Call]], dict[str, float]]:
    """A grouped product, with scales or without, in the same form. Raises as `scaled` does."""
    import torch

    experts, m, n, k = sizes
    rows = drawn(experts, m)
    ends = torch.tensor([0, *rows]).cumsum(0)
    offsets, bounds = ends.int().cuda(), list(pairwise(ends.tolist()))
    make = fp8 if with_scales else (lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16))
    a, b, c = make(m, k), make(experts, n, k), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    calls: dict[str, list[Call]] = {}
    errors = {}
    words = [offsets.data_ptr()]
    want = torch.empty(m, n, device="cuda", dtype=torch.float64)
    if with_scales:
        sa = torch.rand(k // DEPTH, m, device="cuda").T + 0.5
        sb = torch.rand(experts, -(-n // DEPTH), k // DEPTH, device="cuda") + 0.5
        words = [*table_words(sa, sb), *words]
    for e, (first, end) in enumerate(bounds):
        x, y = a[first:end].double(), b[e].double()
        if with_scales:
            x, y = x * spread(sa[first:end], 1, end - first, k), y * spread(sb[e], DEPTH, n, k)
        want[first:end] = x @ y.T
    if with_scales:
        one_a, one_b = torch.ones(m, device="cuda"), torch.ones(experts, n, device="cuda")
        attempt(calls, "torch._scaled_grouped_mm, rows", [
            lambda: torch._scaled_grouped_mm(
                a, b.transpose(1, 2), one_a, one_b, offs=offsets[1:], out_dtype=torch.bfloat16
            )
        ])  # fmt: skip
    else:
        attempt(calls, "torch._grouped_mm", [lambda: torch._grouped_mm(a, b.transpose(1, 2), offs=offsets[1:])])

        def loop() -> None:
            for e, (first, end) in enumerate(bounds):
                if end > first:
                    torch.mm(a[first:end], b[e].T, out=c[first:end])

        attempt(calls, "a loop of torch.mm", [loop])
    whole = a.bfloat16(), b[0].bfloat16()
    attempt(calls, "one torch.mm of all rows, bf16", [lambda: torch.mm(whole[0], whole[1].T)])
    for name, config in (PROMOTING if with_scales else GROUPS).items():
        c.fill_(float("nan"))
        call = ours.call(f"{'both' if with_scales else 'grouped'} {name}", config, a, b, c, words)
        call()
        errors[name] = off(c, want, k)
        calls[OURS + name] = [call]
    return calls, errors


def run(folder: Path, rounds: int, file: Path | None) -> int:
    """Checks, then times, every contender of every shape."""
    import torch

    from layoutgemm.bench import machine
    from layoutgemm.bench.method import CudaDevice, burst

    device, ours, failed = CudaDevice(), Ours(folder), 0
    record: dict[str, Any] = {"machine": machine.facts(), "shapes": {}}
    print(record["machine"], flush=True)
    cases = [("scaled", sizes) for sizes in SCALED] + [("grouped", sizes) for sizes in GROUPED]
    for kind, sizes in [*cases, *[("grouped, scaled", sizes) for sizes in BOTH]]:
        torch.manual_seed(0)
        title = f"{kind} {'x'.join(map(str, sizes))}"
        print(title, flush=True)
        calls, errors = scaled(ours, sizes) if kind == "scaled" else grouped(ours, sizes, kind != "grouped")
        torch.cuda.synchronize()
        for name, share in errors.items():
            if not share <= 1:
                print(f"    WRONG {name}: {share:.2f} of the bound", flush=True)
                calls.pop(OURS + name)
                failed += 1
        samples = burst(device, {name: device.record(each) for name, each in calls.items()}, rounds, random.Random(0))
        times = {name: statistics.median(values) / len(calls[name]) for name, values in samples.items()}
        first = next(iter(times))
        rows = sizes[-3]
        for name, seconds in sorted(times.items(), key=lambda item: item[1]):
            speed = 2 * rows * sizes[-2] * sizes[-1] / seconds / 1e12
            share = f", {errors[name[len(OURS) :]]:.2f} of the bound" if name.startswith(OURS) else ""
            figures = f"{times[first] / seconds:6.3f} {seconds * 1e6:9.1f} us {speed:7.1f} TFLOP/s"
            print(f"    {figures}  {name}{share}", flush=True)
        record["shapes"][title] = {name: round(seconds * 1e6, 2) for name, seconds in times.items()}
        if file is not None:
            file.write_text(json.dumps(record, indent=1) + "\n")
        del calls
        torch.cuda.empty_cache()
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result of ours, 2 if `run` finds no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if options.step == "build":
        build(options.folder)
        return 0
    if status := needs.refused(needs.no_gpu()):
        return status
    return run(options.folder, options.rounds, options.json)


if __name__ == "__main__":
    sys.exit(main())
