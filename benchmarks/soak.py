"""Soak test: two thousand random products from several threads and streams, and all refusals.

    python benchmarks/soak.py --json soak.json                # on a Hopper GPU, some minutes
    python benchmarks/soak.py --cases 200 --threads 2 --device cpu      # the same cases computed by the reference

Every product is compared with float64: small integers bit by bit, normal values within the error bound. Elements around
a given output must stay, and no operand may change. Several processes compile the kernels first, into the cache folder.
Last, a separate process measures the host memory of a thousand shapes and the time of a cold and a warm kernel.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

import torch

from benchmarks import needs, soak_cases, soak_forms
from benchmarks.soak_cases import BF16, EIGHT, F16, F32, Case, cases, fault, tensors
from benchmarks.soak_refusals import refusals
from layoutgemm import matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.compile.worker import build, plan_of
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy

H200 = (ClusterOccupancy(), "NVIDIA H200")


def types() -> tuple[Any, ...]:
    """Types with a kernel: tf32 and int8 if Sm90Plan takes them."""
    found: list[Any] = [BF16, BF16, F16, *EIGHT]
    for kind in (F32, torch.int8):
        try:
            out = torch.int32 if kind == torch.int8 else kind
            kinds, layouts = (kind, kind, out), ("row", "col")
            case = Case(0, (64, 64, 64), ((), ()), (False, False), kinds, layouts, "none", None, True, False)
            soak_cases.kernel_of(case, H200)
        except LayoutError:
            continue
        found += [kind, torch.uint8] if kind == torch.int8 else [kind]
    return tuple(found)


def one(case: Case, device: str) -> str:
    """Runs a case; returns the fault, or ""."""
    a, b, out, whole = tensors(case, device)
    bias = None
    if case.finish:
        bias = torch.full((b.shape[-1],), 1.0, device=device, dtype=a.dtype)
    extra = None if case.form == "plain" else soak_forms.extras(case, device)
    before = [x.clone() for x in (a, b)]
    options: dict[str, Any] = {"config": case.config, "out_dtype": case.types[2], "allow_tf32": True}
    for _ in range(2):  # the second time as one that was seen before
        if extra is not None:
            got = soak_forms.call(case, a, b, out, extra)
        elif bias is not None:
            got = matmul(a, b, bias=bias, activation="relu", **options)
        else:
            got = matmul(a, b, out=out, **options)
        if text := fault(case, a, b, got, bias, extra):
            return text
    for name, x, old in (("a", a, before[0]), ("b", b, before[1])):
        if not torch.equal(x.float().nan_to_num(), old.float().nan_to_num()):
            return f"{case}: {name} has changed"
    if whole is not None:
        out.fill_(3)
        if not bool((whole.float() == 3).all()):
            return f"{case}: elements around out have changed"
    return ""


def run(chosen: Sequence[Case], device: str, threads: int) -> list[str]:
    """Runs all cases on threads with two streams each."""
    faults: list[str] = []
    done = [0] * threads

    def work(index: int) -> None:
        rng = random.Random(index)
        streams: list[Any] = [torch.cuda.Stream() for _ in range(2)] if device == "cuda" else [None]
        for case in chosen[index::threads]:
            stream = rng.choice(streams)
            try:
                with torch.cuda.stream(stream) if stream is not None else contextlib.nullcontext():
                    text = one(case, device)
            except Exception as error:
                text = f"{case}: {type(error).__name__}: {error}"
            if text:
                faults.append(text)
            done[index] += 1

    start = last = time.monotonic()
    workers = [threading.Thread(target=work, args=(i,), daemon=True) for i in range(threads)]
    for worker in workers:
        worker.start()
    while any(worker.is_alive() for worker in workers):
        time.sleep(0.2)
        if time.monotonic() - last > 10:
            last = time.monotonic()
            print(f"  {sum(done)} of {len(chosen)} products, {last - start:.0f} s, {len(faults)} wrong", flush=True)
    return faults


def resident() -> float:
    """Resident memory of this process in MB."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def host_costs(seed: int, kernels: int) -> dict[str, Any]:
    """Memory of a thousand shapes beyond torch's, and seconds of cold and warm kernels."""
    drawn = cases(1500, seed, H200, types(), kernels)  # of which more than a thousand are plain, on a kernel of ours
    found = [case for case, kernel, _ in drawn if kernel is not None and case.form == "plain"]
    made = [tensors(case, "cpu", fill=False)[:2] for case in found[:4]]
    x = torch.randn(512, 512, device="cuda", dtype=BF16)
    torch.matmul(x, x)
    torch.matmul(x.double(), x.double())
    torch.cuda.synchronize()
    del made
    before = resident()
    times, shapes = [], set()
    for case in found:
        a, b, _, _ = tensors(case, "cuda", fill=False)
        start = time.perf_counter()
        matmul(a, b, config=case.config, out_dtype=case.types[2], allow_tf32=True)
        times.append(time.perf_counter() - start)
        shapes.add((tuple(a.shape), tuple(b.shape), a.stride(), b.stride()))
    torch.cuda.synchronize()
    after = resident()
    from layoutgemm.torch_op import launch as torch_launch

    info = torch_launch.compiled_kernel.cache_info()
    record: dict[str, Any] = {
        "shapes": len(shapes), "kernels": info.currsize, "mb_above_torch": after - before,
        "first_calls_s": sorted(times)[len(times) // 2], "slowest_s": max(times),
        "dsl_imported": "cutlass" in sys.modules,
    }  # fmt: skip
    # warm: the kernel is on disk, this process has not loaded it; cold: an empty cache
    kernel = next(kernel for _, kernel, _ in cases(50, seed, H200, types(), kernels) if kernel is not None)
    from layoutgemm.kernels.compile import compiler as compiling

    warm = []
    for _ in range(5):
        compiling._LOADED.clear()
        torch_launch.compiled_kernel.cache_clear()
        start = time.perf_counter()
        torch_launch.compiled_kernel(kernel).launcher.load(0)
        warm.append(time.perf_counter() - start)
    record["warm_s"] = sorted(warm)[2]
    cold = []
    for _ in range(3):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["LAYOUTGEMM_CACHE_DIR"] = folder
            compiling._LOADED.clear()
            torch_launch.compiled_kernel.cache_clear()
            start = time.perf_counter()
            torch_launch.compiled_kernel(kernel).launcher.load(0)
            cold.append(time.perf_counter() - start)
    record["cold_first_s"], record["cold_next_s"] = cold[0], cold[1:]
    return record


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong product or refusal, 2 without the requested GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--kernels", type=int, default=200, help="different kernels at most (%(default)s)")
    parser.add_argument("--threads", type=int, default=6)
    parser.add_argument("--jobs", type=int, help="compiling processes (half the processors)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--host-costs", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.device == "cuda" and (status := needs.refused(needs.no_gpu())):
        return status
    if options.host_costs:
        print(json.dumps(host_costs(options.seed, options.kernels)))
        return 0
    start = time.monotonic()
    drawn = list(cases(options.cases, options.seed, H200, types(), options.kernels))
    kernels = list(dict.fromkeys(kernel for _, kernel, _ in drawn if kernel is not None))
    print(f"{len(drawn)} products, {len(kernels)} kernels, {time.monotonic() - start:.0f} s", flush=True)
    broken: list[str] = []
    if options.device == "cuda":
        plans = [plan_of(kernel) for kernel in kernels]
        answers = build(plans, options.jobs, lambda line: print(f"  {line}", flush=True))
        broken = [f"{kernel}: {answer}" for kernel, answer in zip(kernels, answers) if answer]
        firsts = {soak_forms.signature(case): case for case, _, _ in reversed(drawn)}
        broken += run([case for key, case in firsts.items() if key is not None], options.device, 1)  # compiled here
        print(f"compiled, {time.monotonic() - start:.0f} s, {len(broken)} failed", flush=True)
    faults = broken + run([case for case, _, _ in drawn], options.device, options.threads)
    print(f"products done, {time.monotonic() - start:.0f} s, {len(faults)} wrong", flush=True)
    refused = refusals(options.device)
    faults += [text for refusal in refused if (text := refusal.fault())]
    if options.device == "cuda":  # nothing that was refused has broken the GPU
        torch.cuda.synchronize()
    print(f"{len(refused)} refusals, {time.monotonic() - start:.0f} s", flush=True)
    costs: dict[str, Any] = {}
    if options.device == "cuda":
        command = [sys.executable, __file__, "--host-costs"]
        command += ["--seed", str(options.seed), "--kernels", str(options.kernels)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=240)
        if done.returncode:
            faults.append(f"host costs: {done.stderr[-800:]}")
        else:
            costs = json.loads(done.stdout.splitlines()[-1])
            print(json.dumps(costs, indent=1))
    for text in faults[:40]:
        print(f"FAULT {text}")
    forms = Counter(case.form.split()[0] for case, _, _ in drawn)
    kinds = Counter(str(case.types[0]).removeprefix("torch.") for case, _, _ in drawn)
    record = {
        "products": len(drawn), "kernels": len(kernels), "refusals": len(refused), "threads": options.threads,
        "types": dict(kinds), "forms": dict(forms), "copied": sum(copies > 0 for _, _, copies in drawn),
        "faults": faults, "seconds": round(time.monotonic() - start, 1), "host": costs,
    }  # fmt: skip
    if options.device == "cuda":
        from layoutgemm.bench import machine

        record["machine"] = machine.facts()
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(f"{len(drawn)} products, {len(refused)} refusals, {len(faults)} faults, {record['seconds']} s")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
