"""Nsight Compute's counters of the ladder, level by level.

    python benchmarks/profile_ladder.py table --levels 1,2,3,4,5 --size 8192 --json FILE   # needs ncu and a GPU
    ncu --profile-from-start off --set full python benchmarks/profile_ladder.py launch hopper_02_wgmma.py 0

`launch` compiles one level, runs it once, and runs it again between cudaProfilerStart and Stop: the profiled launch.

`table` runs ncu for each level and prints one column per level. Rows are time, tensor-core and issue-slot utilisation,
warp stalls, bank conflicts, and the traffic at each border, in bytes and as a share of the peak. Below
the counters it prints the expected values from the tile (`expected`). Counters that this ncu lacks are omitted and
named.
"""

from __future__ import annotations

import argparse
import csv
import fnmatch
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from benchmarks import needs
from layoutgemm.kernels.ladder import levels
from layoutgemm.kernels.ladder import on_gpu as device_levels

SECTIONS = (
    "SpeedOfLight", "ComputeWorkloadAnalysis", "MemoryWorkloadAnalysis", "SchedulerStats", "WarpStateStats",
    "Occupancy", "LaunchStats",
)  # fmt: skip
# Beside what the sections collect. Names as of Nsight Compute 2025 for GH100; `ncu --query-metrics` lists them.
METRICS = (
    "gpu__time_duration.sum",
    "sm__cycles_active.avg",
    "smsp__cycles_active.sum",
    "sm__inst_executed.sum",
    "sm__inst_executed_pipe_tensor.sum",
    "sm__inst_executed_pipe_tensor_op_hmma.sum",
    "sm__inst_executed_pipe_tensor_op_gmma.sum",
    "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_hmma_cycles_active.avg.pct_of_peak_sustained_active",
    "sm__pipe_tensor_op_gmma_cycles_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "l1tex__data_bank_reads.avg.pct_of_peak_sustained_elapsed",
    "l1tex__data_bank_writes.avg.pct_of_peak_sustained_elapsed",
    "l1tex__m_xbar2l1tex_read_bytes.sum",
    "l1tex__m_xbar2l1tex_read_bytes.sum.pct_of_peak_sustained_elapsed",
    "lts__t_bytes.sum",
    "lts__t_sectors.avg.pct_of_peak_sustained_elapsed",
    "lts__lts2xbar_cycles_active.avg.pct_of_peak_sustained_elapsed",
    "lts__t_sector_hit_rate.pct",
    "dram__bytes_read.sum",
    "dram__throughput.avg.pct_of_peak_sustained_elapsed",
)
# Rows of the table, in order; the sections' metrics among them.
ROWS = (
    *METRICS, "sm__throughput.avg.pct*", "l1tex__throughput.avg.pct*", "lts__throughput.avg.pct*",
    "sm__warps_active.avg.pct*", "smsp__average_warps_issue_stalled_*_per_issue_active*",
    "smsp__average_warp_latency_issue_stalled_*", "launch__registers_per_thread", "launch__occupancy_limit_*",
)  # fmt: skip


def launch(program: str, which: int, size: int) -> None:
    """One warm-up launch, and one profiled launch."""
    import torch

    level = levels.load(ROOT / "kernels" / program)[which]
    a, b = device_levels.operands(size, size, size, level.leading(size, size, size)[0])
    c = device_levels.output(level, size, size, size)
    run = device_levels.launcher(level, a, b, c, size, size, size)
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    run()
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


def parsed(text: str) -> dict[str, str]:
    """Parses `ncu --csv --page raw` of one kernel: metric -> value with its unit.

    >>> parsed('==PROF== x\\n"ID","Kernel Name","gpu__time_duration.sum"\\n"","","ns"\\n"0","k","4,896,128"\\n')
    {'gpu__time_duration.sum': '4896128 ns'}
    """
    rows = list(csv.reader(io.StringIO("\n".join(line for line in text.splitlines() if line.startswith('"')))))
    if len(rows) < 3:
        raise RuntimeError(f"ncu gave no kernel:\n{text.strip()[-2000:]}")
    found = {}
    for name, unit, value in zip(*rows[:3]):
        if "__" in name:
            found[name] = f"{value.replace(',', '')} {unit}".strip()
    return found


def profiled(program: str, which: int, size: int, ncu: str) -> dict[str, str]:
    """A level's counters: about forty replays of one launch at the GPU's own clock."""
    command = [
        ncu, "--profile-from-start", "off", "--clock-control", "none",
        "--csv", "--page", "raw", "--print-units", "base",
        *[word for name in SECTIONS for word in ("--section", name)], "--metrics", ",".join(METRICS),
        sys.executable, str(Path(__file__).resolve()), "launch", program, str(which), "--size", str(size),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    return parsed(done.stdout + done.stderr)


def expected(kernel: Any, size: int) -> dict[str, str]:
    """Expected values from the tile: bytes that the SMs read, and operations per byte.

    Levels of one tile with the same time may have the way into the multiprocessors in common. The counters tell:
    bytes over the crossbar and time against what L2 can give.

    >>> from types import SimpleNamespace
    >>> expected(SimpleNamespace(tile_m=64, tile_n=128, tile_k=64), 8192)["bytes into SMs"]
    '25.8 GB, 42.7 FLOP a byte'
    """
    if not hasattr(kernel, "tile_m"):
        return {}
    m, n = kernel.tile_m, kernel.tile_n
    tiles = -(-size // m) * -(-size // n)
    moved = tiles * (m + n) * size * 2
    return {"bytes into SMs": f"{moved / 1e9:.1f} GB, {2 * size**3 / moved:.1f} FLOP a byte"}


def table(chosen: list[int], size: int, ncu: str, path: Path | None) -> int:
    """Profiles and prints; returns the exit status."""
    found: dict[str, dict[str, str]] = {}
    status = 0
    for program in sorted((ROOT / "kernels").glob("hopper_*.py")):
        for which, level in enumerate(levels.load(program)):
            if level.number not in chosen:
                continue
            try:
                counters = profiled(program.name, which, size, ncu)
            except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
                print(f"{level}: FAILED: {error}", flush=True)
                status = 1
                continue
            found[str(level)] = {**counters, **expected(level.kernel, size)}
            print(f"{level}: {len(counters)} counters", flush=True)
    present = {name for counters in found.values() for name in counters}
    rows = list(dict.fromkeys(name for pattern in ROWS for name in sorted(fnmatch.filter(present, pattern))))
    rows += sorted(name for name in present if "__" not in name)
    for name in rows:
        print(f"{name:78} " + " ".join(f"{counters.get(name, '-'):>24}" for counters in found.values()))
    print("columns: " + "; ".join(found))
    if missing := [name for name in METRICS if name not in present]:
        print("this ncu has no " + ", ".join(missing))
    if path is not None and found:
        path.write_text(json.dumps({**device_levels.facts(), "size": size, "levels": found}, indent=1) + "\n")
    return status


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("launch", help="run one level, for ncu to look at")
    one.add_argument("program")
    one.add_argument("which", type=int, help="of the program's levels, from 0")
    many = commands.add_parser("table", help="have ncu look at some levels, and print what decides")
    many.add_argument("--levels", default="1,2,3,4,5")
    many.add_argument("--ncu", default="ncu")
    many.add_argument("--json", type=Path)
    for command in (one, many):
        command.add_argument("--size", type=int, default=levels.SIZE)
    chosen = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu(), needs.no_tool(chosen.ncu) if chosen.command == "table" else None):
        return status
    if chosen.command == "launch":
        launch(chosen.program, chosen.which, chosen.size)
        return 0
    return table([int(number) for number in chosen.levels.split(",")], chosen.size, chosen.ncu, chosen.json)


if __name__ == "__main__":
    raise SystemExit(main())
