"""Compile DeepGEMM's bf16 kernels for a table of shapes, where nvcc is, to measure them where it is not.

    git clone --recursive https://github.com/deepseek-ai/DeepGEMM
    python benchmarks/deepgemm_build.py out/deepgemm --source DeepGEMM            # needs nvcc and g++, no GPU
    python benchmarks/bench_gemm.py --deepgemm out/deepgemm                       # needs the GPU, no nvcc

For each shape DeepGEMM's own heuristic says the configuration (`get_best_config<SM90ArchSpec>`, run on this machine by
`deepgemm_heuristic.cpp`), and nvcc compiles that instance of `sm90_bf16_gemm_impl` with the options of its just-in-time
compiler, N and K known at compile time as its `bf16_gemm_nt` does by default. Written for DeepGEMM 2.6.1. FOLDER then
holds a cubin for each shape, and `index.json`, which `benchmarks/deepgemm.py` reads.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import needs
from benchmarks.bench_gemm import SHAPES
from benchmarks.deepgemm import Kernel
from layoutgemm.command.bench import shapes

HEURISTIC = ROOT / "benchmarks" / "deepgemm_heuristic.cpp"
# Headers of torch and cuBLASLt that DeepGEMM's host code includes; the heuristic needs none of their text.
EMPTY = ("torch/python.h", "torch/version.h", "ATen/cuda/CUDAContext.h", "c10/core/ScalarType.h", "cublasLt.h")
SMS = 132  # of an H100 or H200 SXM

# csrc/jit/compiler.hpp of 2.6.1, class NVCCCompiler.
FLAGS = [
    *("-std=c++20", "--diag-suppress=39,161,174,177,186,940", "--ptxas-options=--register-usage-level=10"),
    *("--gpu-architecture=sm_90a", "-O3", "--expt-relaxed-constexpr", "--expt-extended-lambda"),
    "--compiler-options=-fPIC,-O3,-fconcepts,-Wno-deprecated-declarations,-Wno-abi",
]

# The template arguments of sm90_bf16_gemm_impl, in its order; M is given at run time.
KERNEL = """\
#include <deep_gemm/impls/sm90_bf16_gemm.cuh>

using namespace deep_gemm;

static void __instantiate_kernel() {{
    auto ptr = reinterpret_cast<void*>(&sm90_bf16_gemm_impl<
        cute::UMMA::Major::K, cute::UMMA::Major::K,
        0, {n}, {k},
        1,
        {block_m}, {block_n}, {block_k},
        {swizzle_a_mode}, {swizzle_b_mode}, {swizzle_cd_mode},
        {num_stages},
        {num_tma_threads}, {num_math_threads},
        {cluster}, {multicast_a},
        {num_sms},
        GemmType::Normal, false, cutlass::bfloat16_t>);
}}
"""


def configuration(printed: str) -> dict[str, int]:
    """The numbers of a printed `GemmConfig`.

    >>> configuration("GemmConfig(layout=Layout(block_m=64, cluster_n=2), pipeline_config=P(num_stages=8))")
    {'block_m': 64, 'cluster_n': 2, 'num_stages': 8}
    """
    return {name: int(value) for name, value in re.findall(r"(\w+)=(-?\d+)", printed)}


def instance(n: int, k: int, config: dict[str, int]) -> str:
    """The CUDA source that instantiates the kernel: A is sent to both blocks of a cluster that lies along N."""
    cluster = config["cluster_m"] * config["cluster_n"]
    multicast_a = str(config["cluster_n"] > 1).lower()
    return KERNEL.format(n=n, k=k, cluster=cluster, multicast_a=multicast_a, **config)


def ran(command: Sequence[str | Path], given: str = "") -> str:
    """What it prints; a failure is raised with what it says."""
    done = subprocess.run([str(part) for part in command], input=given, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"{command[0]} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def choices(
    shapes: Iterable[tuple[int, int, int]], includes: Sequence[str], csrc: Path, nvcc: str, sms: int, work: Path
) -> dict[tuple[int, int, int], dict[str, int]]:
    """What DeepGEMM's heuristic chooses for each shape."""
    for name in EMPTY:
        (work / name).parent.mkdir(parents=True, exist_ok=True)
        (work / name).touch()
    program = work / "heuristic"
    host = ["-std=c++20", "-O1", "-Xcompiler", "-w", "-cudart", "none", f"-I{work}", f"-I{csrc}", *includes]
    ran([nvcc, "-x", "c++", *host, HEURISTIC, "-o", program])
    lines = ran([program, str(sms)], "".join(f"{m} {n} {k}\n" for m, n, k in shapes)).splitlines()
    found = {}
    for line in lines:
        m, n, k, printed = line.split(maxsplit=3)
        found[int(m), int(n), int(k)] = configuration(printed)
    return found


def build(options: argparse.Namespace) -> dict[str, Any]:
    """Compile everything into the folder; what its index holds."""
    source, folder = options.source.resolve(), options.folder
    folder.mkdir(parents=True, exist_ok=True)
    cutlass = options.cutlass or source / "third-party" / "cutlass" / "include"
    fmt = options.fmt or source / "third-party" / "fmt" / "include"
    includes = [f"-I{path}" for path in (source / "deep_gemm" / "include", cutlass.resolve(), fmt.resolve())]
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        found = choices(options.shapes, includes, source / "csrc", options.nvcc, options.sms, work)

        def compiled(item: tuple[tuple[int, int, int], dict[str, int]]) -> tuple[str, dict[str, Any]]:
            (m, n, k), config = item
            shape = f"{m}x{n}x{k}"
            code = work / f"{shape}.cu"
            code.write_text(instance(n, k, config), encoding="utf-8")
            ran([options.nvcc, code, "-cubin", "-o", folder / f"{shape}.cubin", *FLAGS, *includes])
            kernel = Kernel(folder / f"{shape}.cubin", config)
            print(f"{shape}: {kernel}", flush=True)
            return shape, {"file": kernel.cubin.name, **config}

        with ThreadPoolExecutor(options.jobs) as pool:
            kernels = dict(pool.map(compiled, found.items()))
    package = (source / "deep_gemm" / "__init__.py").read_text(encoding="utf-8")
    version = re.search(r"__version__ = '([^']+)'", package)
    compiler = re.search(r"V[\d.]+", ran([options.nvcc, "--version"]))
    index = {
        "deepgemm": version[1] if version else "unknown",
        "nvcc": compiler[0] if compiler else "unknown",
        "kernels": kernels,
    }
    (folder / "index.json").write_text(json.dumps(index, indent=1), encoding="utf-8")
    return index


def main(argv: Sequence[str] | None = None) -> int:
    """The command; 2 without nvcc. Raises SystemExit with what a compiler says that fails."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source", type=Path, required=True, help="a checkout of DeepGEMM")
    parser.add_argument("--cutlass", type=Path, help="CUTLASS's include folder (default: the checkout's submodule)")
    parser.add_argument("--fmt", type=Path, help="fmt's include folder (default: the checkout's submodule)")
    parser.add_argument("--shapes", type=shapes, default=SHAPES, help="MxNxK,... (default: bench_gemm.py's table)")
    parser.add_argument("--sms", type=int, default=SMS, help=f"multiprocessors of the GPU (default: {SMS})")
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_tool(options.nvcc)):
        return status
    index = build(options)
    print(f"DeepGEMM {index['deepgemm']}, nvcc {index['nvcc']}: {len(index['kernels'])} kernels")
    return 0


if __name__ == "__main__":
    sys.exit(main())
