"""Times bf16 GEMMs by mma.sync on a GPU.

Contenders: our configurations, the official CuTe DSL example, Triton, torch.mm.

    python benchmarks/bench_ampere.py build FOLDER --official path/to/tensorop_gemm.py   # compiles, no GPU needed
    python benchmarks/bench_ampere.py run FOLDER --json ampere.json                      # on a GPU

`build` writes one object per candidate and a manifest. The official example is tensorop_gemm.py of NVIDIA/cutlass, in
examples/python/CuTeDSL/cute/ampere/kernel/dense_gemm. Triton is restricted to mma.sync.

`run` checks every contender against float64. It measures by `layoutgemm/bench/method.py`: graphs over rotating
operands, rounds in random order, idle gaps. B is given as (N, K). torch.mm shows the rate of the GPU's own
instructions; on Hopper it does not use mma.sync.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("DISABLE_MMA_V3", "1")  # before Triton is imported: mma.sync instead of wgmma
ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.objects import export, loaded
from layoutgemm.bench.method import BenchProblem, Contender, Launch, Operands
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.run.occupancy import resident
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan

SHAPES = "4096x4096x4096,8192x8192x8192,4000x4040x4072"
OFFICIAL_WARPS = ((2, 2, 1), (2, 4, 1))  # its atom layouts: the default, and eight warps


def candidates() -> dict[str, Sm80Config]:
    """Candidate configurations by name."""
    found: dict[str, Sm80Config] = {}
    rows: list[tuple[Any, ...]] = [
        # tile, tile_k, stages, warps, blocks a multiprocessor, group, along, fragments ahead
        ((128, 256), 32, (3, 4, 5, 6), (2, 4), 1, 16, "M", True),
        ((128, 256), 32, (4,), (2, 4), 1, 8, "M", True),
        ((128, 256), 32, (4,), (2, 4), 1, 8, "N", True),
        ((128, 256), 32, (4,), (2, 4), 1, 16, "N", True),
        ((128, 256), 32, (4,), (2, 4), 1, 32, "M", True),
        ((256, 128), 32, (4, 6), (4, 2), 1, 8, "M", True),
        ((128, 256), 32, (4,), (2, 4), 1, 16, "M", False),
        ((128, 256), 64, (3, 4), (2, 4), 1, 16, "M", True),
        ((128, 256), 64, (3, 4), (2, 4), 1, 16, "M", False),
        ((128, 256), 128, (2,), (2, 4), 1, 16, "M", False),
        ((256, 128), 64, (3, 4), (4, 2), 1, 8, "M", True),
        ((128, 128), 32, (3, 4, 5), (2, 2), 2, 16, "M", True),
        ((128, 128), 64, (3,), (2, 2), 2, 16, "M", False),
        ((256, 192), 32, (3, 4), (4, 2), 1, 8, "M", False),
        ((256, 192), 64, (3,), (4, 2), 1, 8, "M", False),
        ((192, 256), 32, (4,), (2, 4), 1, 8, "M", False),
        ((128, 192), 32, (4,), (2, 2), 2, 16, "M", False),
    ]
    for tile, tile_k, stages, warps, blocks, group, along, ahead in rows:
        for count in stages:
            config = Sm80Config(tile, tile_k, count, warps, group, along, blocks, ahead)
            found[name_of(config)] = config
    for tile, tile_k, count, warps, blocks in (
        ((128, 256), 32, 4, (2, 4), 1), ((128, 256), 32, 6, (2, 4), 1), ((128, 256), 64, 3, (2, 4), 1),
        ((128, 256), 64, 4, (2, 4), 1), ((256, 128), 64, 4, (4, 2), 1), ((128, 128), 64, 3, (2, 2), 2),
        ((256, 192), 64, 3, (4, 2), 1), ((192, 256), 32, 4, (2, 4), 1),
    ):  # fmt: skip
        config = Sm80Config(tile, tile_k, count, warps, 16, "M", blocks, True, loads="tma", stmatrix=True)
        found[name_of(config)] = config
    for tile, tile_k, count, warps in (
        ((256, 192), 64, 3, (4, 2)), ((256, 192), 32, 6, (4, 2)), ((192, 256), 64, 3, (2, 4)),
        ((128, 256), 64, 4, (2, 4)),
    ):  # fmt: skip
        config = Sm80Config(tile, tile_k, count, warps, 16, "M", 1, False, loads="tma", stmatrix=True)
        found[name_of(config)] = config
    for tile, tile_k, count, warps, blocks, group, ahead in (
        ((128, 256), 32, 4, (2, 4), 1, 16, True), ((128, 256), 32, 4, (2, 4), 1, 8, True),
        ((256, 128), 32, 4, (4, 2), 1, 8, True), ((128, 256), 64, 3, (2, 4), 1, 16, False),
        ((128, 256), 32, 4, (2, 4), 1, 16, False), ((256, 192), 64, 3, (4, 2), 1, 8, False),
    ):  # fmt: skip
        config = Sm80Config(tile, tile_k, count, warps, group, "M", blocks, ahead, True)
        found[name_of(config)] = config
    for tile, tile_k, count, warps, group in (
        ((128, 256), 32, 4, (2, 4), 16), ((128, 256), 32, 5, (2, 4), 16), ((256, 128), 32, 4, (4, 2), 16),
        ((128, 256), 32, 4, (2, 4), 12), ((128, 256), 64, 3, (2, 4), 16),
    ):  # fmt: skip
        config = Sm80Config(tile, tile_k, count, warps, group, persistent=True, stmatrix=True)
        found[name_of(config)] = config
    for tile_k, count, group, ahead in ((64, 3, 8, True), (64, 3, 32, True), (32, 6, 16, True), (64, 3, 16, False)):
        config = Sm80Config((128, 128), tile_k, count, (2, 2), group, "M", 2, ahead, loads="tma", stmatrix=True)
        found[name_of(config)] = config
    config = Sm80Config((128, 256), 32, 4, (2, 4), 16, stmatrix=True)
    found[name_of(config)] = config
    return found


def name_of(config: Sm80Config) -> str:
    """A short, unique name of a configuration.

    >>> name_of(Sm80Config((128, 128), 64, 3, (2, 2), blocks_per_sm=2))
    '128x128 k64 s3 w2x2 b2 g16M'
    """
    tile, warps = ("x".join(map(str, pair)) for pair in (config.tile, config.warps))
    blocks = f" b{config.blocks_per_sm}" if config.blocks_per_sm > 1 else ""
    marks = {"late": not config.ahead, "persistent": config.persistent, "tma": config.loads == "tma",
             "stsm": config.stmatrix}  # fmt: skip
    late = "".join(f" {mark}" for mark, present in marks.items() if present)
    return f"{tile} k{config.tile_k} s{config.stages} w{warps}{blocks} g{config.group}{config.along}{late}"


# -------------------------------------------------------------------------------------------------------------- build


def build(folder: Path, arch: str, official: Path | None, only: str) -> None:
    """Compiles the missing objects."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "manifest.json"
    manifest = json.loads(file.read_text()) if file.exists() else {}
    for name, config in candidates().items():
        if name in manifest or not any(text in name for text in only.split(",")):
            continue
        try:
            plan = Sm80Plan.derive(1, 1, 1, arch=arch, b="bf16:col", config=config)
        except LayoutError as error:
            print(f"{name}: {error}", flush=True)
            continue
        from layoutgemm.kernels.compile.compiler import kernel_of

        kinds = [*plan.parameters.values()]
        workers = config.blocks_per_sm if config.persistent else 0
        made = _export(folder, kernel_of(plan), kinds, f"ampere{len(manifest)}", arch, "ours")
        manifest[name] = {"workers": workers, **made}
        print(f"{name}: {manifest[name]}", flush=True)
        file.write_text(json.dumps(manifest, indent=1))
    for warps in OFFICIAL_WARPS if official else ():
        name = f"official DSL sm_80 {'x'.join(map(str, warps[:2]))}"
        if name not in manifest:
            kinds = ["address"] * 3 + ["size"] * 3 + ["stride"] * 3
            from benchmarks.official_ampere import OfficialGemm

            kernel = OfficialGemm(Path(str(official)), warps)
            manifest[name] = _export(folder, kernel, kinds, f"ampere{len(manifest)}", arch, "official DSL")
            print(f"{name}: {manifest[name]}", flush=True)
            file.write_text(json.dumps(manifest, indent=1))


def _export(folder: Path, kernel: Any, kinds: list[str], symbol: str, arch: str, family: str) -> dict[str, Any]:
    from layoutgemm.kernels.compile.sass import disassemble, resources

    start = time.time()
    cubin = export(folder, kernel, kinds, symbol, arch)
    used, sass = resources(cubin), disassemble(cubin)
    return {
        "symbol": symbol, "family": family, "registers": used.registers, "spilled": len(sass.local_memory),
        **{name: sass.count(name) for name in ("HMMA", "LDSM", "LDGSTS")}, "seconds": round(time.time() - start, 1),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- run


def compiled(folder: Path, name: str, entry: dict[str, Any], problem: BenchProblem) -> Contender:
    """A compiled kernel as a contender."""

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        import torch
        from cuda.bindings import driver

        function = loaded(folder / f"{entry['symbol']}.o", entry["symbol"])
        sizes: tuple[int, ...] = (problem.m, problem.n, problem.k)
        ours = entry["family"] == "ours"

        def one(operands: Operands) -> Launch:
            pointers = [x.data_ptr() for x in operands]
            strides = [x.stride(0) for x in operands]
            arguments = (*pointers, *sizes, *([1] if ours else []), *strides, *([0, 0, 0] if ours else []))
            if entry.get("workers"):
                arguments = (*arguments, resident(operands.a.device.index, 1) * entry["workers"])
            return lambda: function(*arguments, driver.CUstream(torch.cuda.current_stream().cuda_stream))

        return [one(operands) for operands in sets]

    note = f"{entry['registers']} registers, {entry['spilled']} local"
    return Contender(name, prepare, entry["family"], note)


TRITON_TILES = (
    # BM, BN, BK, warps, stages
    (128, 128, 32, 4, 4), (128, 128, 64, 4, 3), (128, 256, 32, 8, 4), (128, 256, 64, 8, 3), (256, 128, 32, 8, 4),
    (256, 128, 64, 8, 3), (128, 128, 32, 8, 4), (128, 128, 64, 8, 3), (64, 256, 32, 4, 4), (128, 64, 64, 4, 4),
    (128, 256, 32, 8, 3), (256, 128, 32, 8, 3),
)  # fmt: skip


def _triton_kernel() -> Any:
    import triton
    import triton.language as tl

    @triton.jit
    def gemm(
        a_ptr: Any, b_ptr: Any, c_ptr: Any, m: Any, n: Any, k: Any, lda: Any, ldb: Any, ldc: Any,
        BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr, HINT: tl.constexpr,
    ) -> None:  # fmt: skip
        if HINT:  # Triton finds out by itself what is a multiple of 16, and nothing less
            k = tl.multiple_of(k, 8)
            lda = tl.multiple_of(lda, 8)
            ldb = tl.multiple_of(ldb, 8)
            ldc = tl.multiple_of(ldc, 8)
        number = tl.program_id(0)
        rows, columns = tl.cdiv(m, BM), tl.cdiv(n, BN)
        first = number // (GROUP * columns) * GROUP
        height = min(rows - first, GROUP)
        inside = number % (GROUP * columns)
        row, column = first + inside % height, inside // height
        i = (row * BM + tl.arange(0, BM)) % m
        j = (column * BN + tl.arange(0, BN)) % n
        depth = tl.arange(0, BK)
        a = a_ptr + i[:, None] * lda + depth[None, :]
        b = b_ptr + j[None, :] * ldb + depth[:, None]
        total = tl.zeros((BM, BN), dtype=tl.float32)
        for step in range(tl.cdiv(k, BK)):
            left = k - step * BK
            x = tl.load(a, mask=depth[None, :] < left, other=0.0)
            y = tl.load(b, mask=depth[:, None] < left, other=0.0)
            total = tl.dot(x, y, total)
            a += BK
            b += BK
        i = row * BM + tl.arange(0, BM)
        j = column * BN + tl.arange(0, BN)
        inside_c = (i[:, None] < m) & (j[None, :] < n)
        tl.store(c_ptr + i[:, None] * ldc + j[None, :], total.to(tl.bfloat16), mask=inside_c)

    return gemm


def triton_contenders(problem: BenchProblem) -> list[Contender]:
    """The tutorial's kernel in several configurations, with PTX checked to have no wgmma."""
    if importlib.util.find_spec("triton") is None:
        print("no Triton here: left out", flush=True)
        return []
    kernel = _triton_kernel_cached()
    odd = any(size % 16 for size in (problem.n, problem.k)) and not any(size % 8 for size in (problem.n, problem.k))

    def contender(config: tuple[int, ...], hint: int) -> Contender:
        bm, bn, bk, warps, stages = config

        def prepare(sets: Sequence[Operands]) -> list[Launch]:
            grid = (-(-problem.m // bm) * -(-problem.n // bn),)

            def run(operands: Operands) -> Any:
                a, b, c = operands
                return kernel[grid](
                    a, b, c, problem.m, problem.n, problem.k, a.stride(0), b.stride(0), c.stride(0),
                    BM=bm, BN=bn, BK=bk, GROUP=8, HINT=hint, num_warps=warps, num_stages=stages,
                )  # fmt: skip

            ptx = run(sets[0]).asm["ptx"]
            if "wgmma" in ptx or "mma.sync" not in ptx:
                raise RuntimeError("Triton compiled this to wgmma, or to no mma.sync: DISABLE_MMA_V3 had no effect")
            return [lambda operands=operands: run(operands) for operands in sets]

        hinted = " hinted" * hint
        return Contender(f"triton {bm}x{bn}x{bk} w{warps} s{stages}{hinted}", prepare, "triton mma.sync")

    return [contender(config, hint) for hint in range(1 + odd) for config in TRITON_TILES]


@functools.cache
def _triton_kernel_cached() -> Any:
    return _triton_kernel()


def run(folder: Path, shapes: str, json_file: Path | None, options: argparse.Namespace) -> int:
    """Measures every shape; prints the table and writes the JSON after each."""
    from benchmarks.bench_gemm import Watchdog
    from layoutgemm.bench import machine
    from layoutgemm.bench.contenders import torch_mm
    from layoutgemm.bench.method import CudaDevice
    from layoutgemm.bench.outcome import Method, measure
    from layoutgemm.cli.bench import shape

    manifest = json.loads((folder / "manifest.json").read_text())
    _, sampler = machine.sampler()
    device, facts = CudaDevice(sampler), machine.facts()
    print(", ".join(f"{key} {value}" for key, value in facts.items()), flush=True)
    results: dict[str, Any] = {"facts": facts}
    wanted = options.only.split(",")
    with Watchdog(options.patience, print) as watchdog:
        for text in shapes.split(","):
            problem, begun = BenchProblem(*shape(text)), time.monotonic()
            field = torch_mm(problem)
            for name, entry in manifest.items():
                chosen = entry["family"] != "ours" or any(part in name for part in wanted)
                if chosen and not entry["spilled"]:
                    field.append(compiled(folder, name, entry, problem))
            field += triton_contenders(problem)
            method = Method(
                options.rounds, sustained_rounds=options.sustained_rounds,
                keep={"ours": options.keep, "triton mma.sync": 2}, finalists={"ours": 2},
            )  # fmt: skip
            outcome = measure(device, problem, field, method, watchdog.mark)
            table = sorted(outcome.measured, key=lambda m: m.seconds)
            print(f"\n{problem} [{time.monotonic() - begun:.1f} s]", flush=True)
            for m in table:
                held = f"{problem.tflops(m.sustained_seconds):6.1f} held" if m.sustained_seconds else ""
                print(f"  {problem.tflops(m.seconds):6.1f} TFLOP/s {m.seconds * 1e6:9.1f} us {held:11s}  {m.name}"
                      f"  ({m.note}) {m.fault}", flush=True)  # fmt: skip
            for name, seconds in sorted(outcome.fell_out, key=lambda pair: pair[1]):
                print(f"  {problem.tflops(seconds):6.1f} in the short round: {name}", flush=True)
            for name, why in outcome.failed:
                print(f"  FAILED {name}: {why[:200]}", flush=True)
            results[str(problem)] = {
                m.name: {"family": m.family, "us": m.seconds * 1e6, "tflops": problem.tflops(m.seconds),
                         "sustained_us": m.sustained_seconds and m.sustained_seconds * 1e6, "fault": m.fault}
                for m in table
            }  # fmt: skip
            if json_file:
                json_file.write_text(json.dumps(results, indent=1, default=str))
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 2 if `run` finds no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90a", help="what to compile for (default: sm_90a)")
    parser.add_argument("--official", type=Path, help="NVIDIA's tensorop_gemm.py, to compile beside")
    parser.add_argument("--only", default="", help="candidates whose name contains one of these, comma-separated")
    parser.add_argument("--shapes", default=SHAPES, help=f"MxNxK,... (default: {SHAPES})")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--sustained-rounds", type=int, default=0)
    parser.add_argument("--keep", type=int, default=6, help="how many of ours go on after a short round")
    parser.add_argument("--patience", type=float, default=120.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if options.step == "build":
        build(options.folder, options.arch, options.official, options.only)
        return 0
    if status := needs.refused(needs.no_gpu()):
        return status
    return run(options.folder, options.shapes, options.json, options)


if __name__ == "__main__":
    sys.exit(main())
