"""Checks the bank-conflict model on a GPU: cycles of one access beside the model's wavefronts.

    python benchmarks/verify_banks.py --json benchmarks/results/banks_h200.json

Each pattern runs on each of its instructions (tests/micro/banks.py). All warps of one CTA repeat it, so an access takes
its wavefronts times the cycles of a wavefront. That unit is the median over patterns with certain wavefronts: strides
and row pitches of four wavefronts or more. The program prints it for each instruction. It is 1 for an instruction that
moves 128 bytes per cycle.

A pattern agrees if its cycles, in units, are within a quarter of a wavefront or 6% of the model's, whichever is more.
`by phases` is the model without pairs of lanes.

`--plant 2` tests the comparison: it predicts one wavefront too many for every second pattern that may differ.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np

from benchmarks import needs
from layoutgemm import __version__
from layoutgemm.checks import bank_conflicts
from tests.micro.banks import FORMS, IDLE, RESULT_BYTES, ROUNDS, UNROLL, WARPS, Form, Pattern, module, patterns

REPEATS = 5


def predicted(form: Form, pattern: Pattern, packing: bool = True) -> int:
    """The model's wavefronts, for the lanes whose addresses the instruction reads."""
    used = list(pattern.addresses[: form.lanes])
    return bank_conflicts(used, form.width, form.kind, packing=packing).wavefronts


def cases() -> list[tuple[Form, Pattern]]:
    """Every (instruction, pattern) that fits: addresses that are multiples of the instruction's width."""
    return [
        (FORMS[name], pattern)
        for pattern in patterns()
        for name in pattern.forms
        if all(a is None or a % FORMS[name].width == 0 for a in pattern.addresses)
    ]


def cycles(raw: np.ndarray) -> float:
    """Cycles of one access, over all accesses of the block. They count from the first warp's start to the last one's
    end."""
    clocks = raw[: WARPS * 16].view(np.uint64).reshape(WARPS, 2)
    return float(int(clocks[:, 1].max()) - int(clocks[:, 0].min())) / (WARPS * UNROLL * ROUNDS)


def measure(gpu: Any, compiled: Any, form: Form, pattern: Pattern) -> float:
    """The minimum of several runs, since other work on the SM only adds time."""
    at = np.array([IDLE if a is None else a for a in pattern.addresses], dtype=np.uint32)
    zero = np.zeros(1, dtype=np.uint32)
    runs = [gpu.launch(compiled, form.name, 1, 32 * WARPS, [at, zero], [RESULT_BYTES])[0] for _ in range(REPEATS)]
    return min(map(cycles, runs))


def judge(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Adds to each row its cycles in wavefronts and whether they agree. Returns the unit of each instruction."""
    units = {}
    for name in dict.fromkeys(row["form"] for row in rows):
        sure = [row for row in rows if row["form"] == name and row["plain"] and row["wavefronts"] >= 4]
        units[name] = statistics.median(row["cycles"] / row["wavefronts"] for row in sure)
    for row in rows:
        row["measured"] = round(row["cycles"] / units[row["form"]], 3)
        row["ok"] = abs(row["measured"] - row["wavefronts"]) <= max(0.25, 0.06 * row["wavefronts"])
    return units


def main(arguments: list[str] | None = None) -> int:
    """The command; exits 1 if a pattern differs from the model, 2 without a GPU."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, help="write the rows and the machine here")
    parser.add_argument("--plant", type=int, default=0, metavar="N", help="make every Nth prediction wrong")
    options = parser.parse_args(arguments)

    if status := needs.refused(needs.no_driver()):
        return status
    from tests.micro.cuda_driver import Device

    rows: list[dict[str, Any]] = []
    with Device() as gpu:
        target = "sm_" + "".join(map(str, gpu.capability))
        version = "7.8" if gpu.capability <= (9, 0) else ".".join(map(str, gpu.ptx_version))
        compiled = gpu.load(module(target, version))
        machine = {"gpu": gpu.name, "driver": list(gpu.driver), "target": target, "layoutgemm": __version__}
        for form, pattern in cases():
            if form.kind == "stmatrix" and gpu.capability < (9, 0):
                continue
            row: dict[str, Any] = {"form": form.name, "pattern": pattern.name, "plain": pattern.plain}
            row |= {"wavefronts": predicted(form, pattern), "by_phases": predicted(form, pattern, packing=False)}
            rows.append(row | {"cycles": round(measure(gpu, compiled, form, pattern), 4)})
    if options.plant:
        for row in [row for row in rows if not row["plain"]][:: options.plant]:
            row["wavefronts"] += 1
    units = judge(rows)
    print(json.dumps(machine))
    print("cycles of a wavefront: " + ", ".join(f"{name} {unit:.3f}" for name, unit in units.items()))
    print(f"{'form':<12} {'pattern':<52} {'cycles':>8} {'measured':>8} {'model':>6} {'by phases':>9}  verdict")
    for row in sorted(rows, key=lambda row: list(units).index(row["form"])):
        verdict = "agrees" if row["ok"] else "DIFFERS"
        print(
            f"{row['form']:<12} {row['pattern']:<52} {row['cycles']:>8.2f} {row['measured']:>8.2f} "
            f"{row['wavefronts']:>6} {row['by_phases']:>9}  {verdict}"
        )
    held = sum(row["ok"] for row in rows)
    print(f"{held} of {len(rows)} agree")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        text = ",\n    ".join(json.dumps(row) for row in rows)
        head = json.dumps({"machine": machine, "units": units, "agree": held, "of": len(rows)}, indent=2)[:-2]
        options.json.write_text(f'{head},\n  "rows": [\n    {text}\n  ]\n}}\n')
    return held != len(rows)


if __name__ == "__main__":
    sys.exit(main())
