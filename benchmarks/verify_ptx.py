"""Runs random PTX instructions on a GPU and in the emulator, and keeps what differs.

    python benchmarks/verify_ptx.py --gpu --out FILE [--count 900] [--seed 1] [--keep all]
    python benchmarks/verify_ptx.py --gpu --only 'fma.*bf16'
    python benchmarks/verify_ptx.py FILE

With `--gpu` it draws cases. Scalar instructions get random types, modifiers and register widths from the emulator's
table of forms. Extended-precision sums, warp-wide and matrix instructions and asynchronous copies come from lists. TMA
loads go through random tensor maps. Operands are edges of integers, special values of every float format, and sums that
nearly cancel. Each case runs in 1,024 threads. Results are compared bit by bit, NaNs by being NaN, and approximations
within a relative bound. FILE gets the cases that differ, or all of them with `--keep all`.

Without `--gpu` it runs the cases of a stored FILE in the emulator alone and compares them with the stored results.

It exits with 1 for a case that differs or is refused, and with 2 without a GPU.
"""

from __future__ import annotations

import argparse
import collections
import datetime
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import numpy as np

from benchmarks import needs
from tests.micro import scalar, tensor_loads
from tests.micro.cuda_driver import CudaError, Device
from tests.micro.emulated_device import EmulatedDevice
from tests.micro.scalar import THREADS, Case, Words

CHUNK = 60  # kernels of a module: a GPU's compiler reads them together


class Row(NamedTuple):
    """One case: "same", "different", or "refused" by one side. Has what to print, and the GPU's result where there is
    one."""

    case: Case
    outcome: str
    text: str
    result: Words | None = None


def emulate(case: Case, target: str, arrays: Sequence[Words]) -> Words:
    """The result of a case in the emulator. Raises CudaError with the refusal or the findings."""
    text = scalar.module_of([case], target)
    (raw,) = EmulatedDevice(target).launch(text, "k0", 1, THREADS, arrays, [8 * THREADS])
    return raw.view(np.uint64)


def judged(case: Case, target: str, arrays: Sequence[Words], want: Words | None, reason: str = "") -> Row:
    """A case, emulated and compared with the GPU's result. None: the GPU's compiler refused it for `reason`."""
    try:
        got = emulate(case, target, arrays)
    except CudaError as error:
        if want is None:
            return Row(case, "same", "refused by both")
        return Row(case, "refused", f"the emulator refuses: {str(error)[:300]}", want)
    if want is None:
        return Row(case, "different", f"the emulator runs it, the GPU refuses: {reason[:200]}")
    wrong = scalar.differing(case, got, want)
    if not wrong.any():
        return Row(case, "same", "", want)
    at = int(np.argmax(wrong))
    a, b, c = (f"{int(words[at]):#x}" for words in arrays)
    text = f"{int(wrong.sum())} threads; thread {at}: a={a} b={b} c={c}"
    text += f": GPU {int(want[at]):#x}, emulator {int(got[at]):#x}"
    return Row(case, "different", text, want)


def on_gpu(gpu: Device, cases: Sequence[Case], arrays: Sequence[Words]) -> list[Words | str]:
    """The GPU's results; for a case that its compiler refuses, the reason."""
    out: list[Words | str] = []
    for first in range(0, len(cases), CHUNK):
        chunk = cases[first : first + CHUNK]
        try:
            out += _launched(gpu, chunk, arrays)
        except CudaError:  # one of them is refused: each for itself
            for case in chunk:
                try:
                    out += _launched(gpu, [case], arrays)
                except CudaError as error:
                    out.append(" ".join(str(error).split()))
                    gpu.reopen()
    return out


def _launched(gpu: Device, cases: Sequence[Case], arrays: Sequence[Words]) -> list[Words | str]:
    module = gpu.load(scalar.module_of(cases, gpu.target))
    try:
        found = [gpu.launch(module, f"k{n}", 1, THREADS, arrays, [8 * THREADS])[0] for n in range(len(cases))]
    finally:
        gpu.unload(module)
    return [raw.view(np.uint64) for raw in found]


def tensor_rows(gpu: Device, rng: random.Random, count: int) -> list[Row]:
    """TMA loads through random tensor maps, on the GPU and in the emulator."""
    rows = []
    for _ in range(count):
        load = tensor_loads.drawn(rng)
        case = Case(f"TMA load: {load}", 64)
        try:
            real, ours = (tensor_loads.loaded(device, load) for device in (gpu, EmulatedDevice(gpu.target)))
        except CudaError as error:
            rows.append(Row(case, "refused", str(error)[:300]))
            gpu.reopen()
            continue
        differ = real != ours
        text = f"{int(differ.sum())} bytes, first {int(np.argmax(differ))}" if differ.any() else ""
        rows.append(Row(case, "different" if differ.any() else "same", text))
    return rows


def report(rows: Sequence[Row], seconds: float, first: int = 20) -> int:
    """Print the differences and the count; the exit status."""
    bad = [row for row in rows if row.outcome != "same"]
    for row in bad[:first]:
        print(f"{row.outcome}: {row.case.body}\n    {row.text}")
    counts = collections.Counter(row.outcome for row in rows)
    said = ", ".join(f"{counts[name]} {name}" for name in ("same", "different", "refused"))
    print(f"{len(rows)} cases in {seconds:.0f} s: {said}")
    return 1 if bad else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("file", type=Path, nargs="?", help="a stored file to compare the emulator with")
    parser.add_argument("--gpu", action="store_true", help="draw cases and run them on the GPU")
    parser.add_argument("--out", type=Path, help="write the GPU's results here")
    parser.add_argument("--count", type=int, default=900, help="cases with scalar, warp-wide and matrix instructions")
    parser.add_argument("--only", default="", help="a regular expression: draw scalar instructions that match, alone")
    parser.add_argument("--maps", type=int, default=60, help="TMA loads through random maps")
    parser.add_argument("--seed", type=int, default=1, help="of the random choices")
    parser.add_argument("--keep", choices=("differing", "all"), default="differing", help="the cases that --out keeps")
    args = parser.parse_args(argv)
    start = time.monotonic()
    if not args.gpu:
        if args.file is None:
            parser.error("name a stored file, or pass --gpu")
        about, arrays, stored = scalar.load(args.file)
        print(f"{len(stored)} cases of {about}")
        return report([judged(case, about["target"], arrays, want) for case, want in stored], time.monotonic() - start)
    if status := needs.refused(needs.no_driver()):
        return status
    rng = random.Random(args.seed)
    arrays = scalar.inputs(args.seed)
    with Device() as gpu:
        about = {"device": gpu.name, "target": gpu.target, "driver": "{}.{}".format(*gpu.driver),
                 "seed": str(args.seed), "date": datetime.date.today().isoformat()}  # fmt: skip
        print(about, flush=True)
        cases = scalar.draw(rng, args.count, gpu.target, args.only)
        real = on_gpu(gpu, cases, arrays)
        print(f"{len(cases)} cases ran on the GPU in {time.monotonic() - start:.0f} s", flush=True)
        rows = [
            judged(case, gpu.target, arrays, *((None, found) if isinstance(found, str) else (found,)))
            for case, found in zip(cases, real, strict=True)
        ]
        maps = tensor_rows(gpu, rng, 0 if args.only else args.maps)
    if args.out:
        kept = [row for row in rows if row.result is not None and (args.keep == "all" or row.outcome != "same")]
        scalar.save(args.out, about, arrays, [(row.case, row.result) for row in kept if row.result is not None])
    return report([*rows, *maps], time.monotonic() - start)


if __name__ == "__main__":
    sys.exit(main())
