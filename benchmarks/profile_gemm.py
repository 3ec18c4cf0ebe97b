"""Nsight Compute's counters of the GEMM kernels beside the peers', shape by shape.

    python benchmarks/profile_gemm.py --shapes 4096,512x4096x4096 --contender torch.mm,layoutgemm --json FILE

Each contender's product is launched once for warm-up and once between cudaProfilerStart and Stop, with cold caches. ncu
replays that launch at the GPU's own clock. For a contender with several kernels the table shows the longest, and their
number. It needs ncu and a GPU with readable counters.

    us, MHz     of that launch: a GPU that was idle runs faster than in a burst
    tensor      busy cycles of the tensor cores, relative to all SMs' elapsed cycles
    into SMs    bytes that the SMs received from L2 and from each other
    asked       bytes requested from L2: simultaneous requests of a GPC's SMs, and multicast, count once. L2 out:
                share of L2's peak
    hit         L2 hit rate of sectors
    memory      DRAM bytes read and written, and share of the peak
    an SM       cycles in which an SM has work: the mean of all, and the most of one
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import bench_gemm, needs
from layoutgemm.bench.method import BenchProblem, Contender
from layoutgemm.cli.bench import shapes

ELAPSED = "avg.pct_of_peak_sustained_elapsed"
METRICS = {
    "ns": "gpu__time_duration.sum",
    "cycles": "sm__cycles_elapsed.max",
    "tensor": f"sm__pipe_tensor_cycles_active.{ELAPSED}",
    "instructions": "sm__inst_executed.sum",
    "into_sms": "l1tex__m_xbar2l1tex_read_bytes.sum",
    "asked": "lts__t_sectors_srcunit_tex.sum",
    "l2_out": f"lts__lts2xbar_cycles_active.{ELAPSED}",
    "l2_hit": "lts__t_sector_hit_rate.pct",
    "read": "dram__bytes_read.sum",
    "written": "dram__bytes_write.sum",
    "memory": f"dram__throughput.{ELAPSED}",
    "mean": "sm__cycles_active.avg",
    "most": "sm__cycles_active.max",
}  # name in the table -> Nsight Compute's, as of 2025 for GH100
SECTOR = 32  # bytes
HEAD = (
    f"{'kernel':46} {'us':>8} {'cycles':>9} {'MHz':>5} {'tensor':>7} {'into SMs':>9} {'asked':>9} {'L2 out':>7} "
    f"{'hit':>6} {'memory':>17} {'an SM, mean':>12} {'most':>9}"
)


def chosen(problem: BenchProblem, options: argparse.Namespace) -> list[Contender]:
    """The requested contenders, torch.mm only on request."""
    names = options.contender.split(",")
    parsed = bench_gemm.arguments([*[f"--object={x}" for x in options.object], "--contender", options.contender])
    return [c for c in bench_gemm.contenders(problem, parsed) if any(c.name.startswith(name) for name in names)]


def profiled(name: str, run: Callable[[], object]) -> None:
    """Makes a launch that ncu counts, under a name with one bar."""
    import torch

    with torch.cuda.nvtx.range(f"@{name}@"):
        torch.cuda.profiler.start()
        run()
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def launch(options: argparse.Namespace) -> None:
    """Runs the launches under ncu, each announced by a line on standard error."""
    import torch

    from layoutgemm.bench.method import CudaDevice

    device = CudaDevice()
    for sizes in options.shapes:
        problem = BenchProblem(*sizes)
        sets = device.operands(problem, seed=1)[:1]
        for contender in chosen(problem, options):
            try:
                (run,) = contender.prepare(sets)
                run()
                torch.cuda.synchronize()
            except Exception as error:
                print(f"@failed {problem} {contender.name}: {error}", file=sys.stderr, flush=True)
                continue
            profiled(f"{problem}|{contender.name}", run)


def parsed(text: str) -> list[dict[str, str]]:
    r"""Parses `ncu --csv --page raw --nvtx`: range and metrics of each kernel, in base units.

    >>> parsed('"ID","Kernel Name","ranges","gpu__time_duration.sum"\n"","","","ns"\n"0","k","x:@4096|ours@:y","4,896"')
    [{'kernel': 'k', 'range': '4096|ours', 'gpu__time_duration.sum': '4896'}]
    """
    rows = list(csv.reader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"')))))
    if len(rows) < 3:
        raise RuntimeError(f"ncu gave no kernel:\n{text.strip()[-2000:]}")
    found = []
    for row in rows[2:]:
        named = dict(zip(rows[0], row))
        within = re.search(r"@(.+\|.+?)@", " ".join(row))
        one = {"kernel": named.get("Kernel Name", "?"), "range": within.group(1) if within else "?"}
        found.append({**one, **{name: x.replace(",", "") for name, x in named.items() if "__" in name}})
    return found


def measured(kernels: Sequence[dict[str, str]]) -> dict[str, dict[str, float | str]]:
    """The longest kernel's figures by range, under the table's names.

    >>> row = {"range": "64|ours", "kernel": "k", "gpu__time_duration.sum": "2000", "sm__cycles_elapsed.max": "3000"}
    >>> found = measured([row, {**row, "gpu__time_duration.sum": "500"}])["64|ours"]
    >>> found["ns"], found["mhz"], found["kernels"]
    (2000.0, 1500, 2)
    """
    found: dict[str, dict[str, float | str]] = {}
    for row in kernels:
        key, of = row.get("range", "?"), {"kernel": row["kernel"]}
        figures: dict[str, float | str] = {
            **of, **{name: float(row[metric]) for name, metric in METRICS.items() if metric in row}
        }  # fmt: skip
        count = 1 + int(found[key]["kernels"]) if key in found else 1
        if key not in found or float(figures["ns"]) > float(found[key]["ns"]):
            found[key] = figures
            if "cycles" in figures:
                figures["mhz"] = round(float(figures["cycles"]) / float(figures["ns"]) * 1e3)
        found[key]["kernels"] = count
    return found


def line(name: str, figures: dict[str, float | str]) -> str:
    """One row of the table; "-" for metrics that this ncu lacks."""

    def cell(key: str, width: int, scale: float = 1.0, unit: str = "", digits: int = 0) -> str:
        value = figures.get(key)
        return f"{'-' if value is None else f'{float(value) / scale:.{digits}f}{unit}':>{width}}"

    several = f" (+{int(figures['kernels']) - 1})" if int(figures["kernels"]) > 1 else ""
    moved = f"{(float(figures.get('read', 0)) + float(figures.get('written', 0))) / 1e6:.0f} MB, "
    moved += f"{float(figures.get('memory', 0)):.0f}%"
    return " ".join(
        [f"{name + several:46}", cell("ns", 8, 1e3, digits=2), cell("cycles", 9), cell("mhz", 5),
         cell("tensor", 7, unit="%", digits=1), cell("into_sms", 9, 1e9, " GB", 2),
         cell("asked", 9, 1e9 / SECTOR, " GB", 2), cell("l2_out", 7, unit="%"),
         cell("l2_hit", 6, unit="%"), f"{moved:>17}", cell("mean", 12), cell("most", 9)]
    )  # fmt: skip


def counted(ncu: str, program: Path, words: Sequence[str], patience: float, file: Path | None) -> int:
    """Runs a program under ncu, prints and writes the table; returns the exit status.

    words  the program's, with which it makes the launches
    file   where the figures go as JSON, or None
    """
    command = [
        ncu, "--profile-from-start", "off", "--clock-control", "none", "--nvtx", "--csv", "--page", "raw",
        "--print-units", "base", "--metrics", ",".join(METRICS.values()),
        sys.executable, str(program.resolve()), *words,
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=patience)
    found = measured(parsed(done.stdout))
    failed = [text[1:] for text in done.stderr.splitlines() if text.startswith("@failed")]
    print(HEAD)
    for key, figures in found.items():
        print(line(key.replace("|", " "), figures))
    for text in failed:
        print(text)
    if file:
        from layoutgemm.bench import machine

        file.write_text(json.dumps({"machine": machine.facts(), "kernels": found}, indent=1) + "\n")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a failed contender, 2 without a GPU or ncu. Raises RuntimeError without kernels."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", type=shapes, default=bench_gemm.SHAPES, help="default: the whole table")
    parser.add_argument("--contender", default="torch.mm,layoutgemm", help="beginnings of names, comma-separated")
    parser.add_argument("--object", action="append", default=[], metavar="NAME=FILE.o", help="as for bench_gemm.py")
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--patience", type=float, default=500.0, metavar="SECONDS")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--launch", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu(), None if options.launch else needs.no_tool(options.ncu)):
        return status
    if options.launch:
        launch(options)
        return 0
    sizes = ",".join("x".join(map(str, s)) for s in options.shapes)
    objects = [f"--object={x}" for x in options.object]
    words = ["--launch", "--shapes", sizes, "--contender", options.contender, *objects]
    return counted(options.ncu, Path(__file__), words, options.patience, options.json)


if __name__ == "__main__":
    sys.exit(main())
