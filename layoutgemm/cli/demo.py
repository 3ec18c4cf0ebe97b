"""`layoutgemm demo`: one GEMM derived, checked, compiled and run, and its fragment map drawn."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..kernels import TeachingPlan, error_bound
from ..kernels.run.torch_tensors import require_gpu
from .arguments import add
from .commands import Commands
from .plan import options, plan_data, teaching

EXAMPLES = ("layoutgemm demo -m 65 -n 70 -k 40 --device reference",)


def add_demo(commands: Commands) -> None:
    """The subcommand demo."""
    parser = add(commands, "demo", EXAMPLES, run)
    for name, size in zip("mnk", (200, 136, 72)):
        parser.add_argument(f"-{name}", type=int, default=size, help="size (%(default)s)")
    options(parser)
    parser.add_argument(
        "--device", choices=("cuda", "emulator", "reference"), help="default: the GPU when there is one"
    )
    parser.add_argument(
        "--svg", type=Path, default=Path("fragment.svg"), help="where to draw the fragment map (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="seed of the random matrices (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Run the demonstration; returns the exit status."""
    say: Callable[[str], object] = (lambda text: None) if args.json else functools.partial(print, flush=True)
    plan = teaching(args)
    if args.device == "cuda":
        require_gpu(plan, None)  # before any compilation for it
    say(f"1. The derivation\n\n{plan.explain()}\n\n2. Its checks\n")
    report = plan.check()
    say(str(report))
    done: dict[str, Any] = {"ok": False, "plan": plan_data(plan, report)}
    if report:
        say("\n3. The compiled kernel\n")
        done["compiled"] = _compiled(plan, say)
        say(f"{done['compiled']}\n\n4. The run\n")
        done["run"] = _run(plan, args, say)
        done["ok"] = done["run"]["ok"]
        args.svg.parent.mkdir(parents=True, exist_ok=True)
        args.svg.write_text(plan.svg(), encoding="utf-8")
        done["svg"] = str(args.svg)
        say(f"\n5. The fragment map\n\nwritten to {args.svg}")
    if args.json:
        print(json.dumps(done))
    return 0 if done["ok"] else 1


def _compiled(plan: TeachingPlan, say: Callable[[str], object]) -> str:
    """Compile where the DSL is installed, and report the result. A failed compile raises."""
    if importlib.util.find_spec("cutlass") is None:
        return "not compiled: the CuTe DSL is not installed (Linux: pip install 'layoutgemm[dsl]')"
    say(f"compiling for {plan.arch.name} ...")
    kernel = plan.compile()
    lines = [f"{'taken from the cache' if kernel.cached else 'compiled'} in {kernel.seconds:.1f} s"]
    resources, counts = kernel.resources, kernel.sass().counts
    memory = f"{resources.stack_bytes} bytes of stack, {resources.local_bytes} of local memory"
    lines.append(f"{resources.registers} registers a thread, {memory}")
    shown = ("HGMMA", "UTMALDG", "SYNCS", "STG")
    lines.append(f"{sum(counts.values())} instructions: " + ", ".join(f"{counts[name]} {name}" for name in shown))
    serial = kernel.sass().serialised_wgmma(plan.tile[2] // plan.mma.shape_mnk[2])
    lines.append(f"WGMMAs are serialised: {serial}" if serial else "the WGMMAs of a k tile run back to back")
    return "\n".join(lines)


def _run(plan: TeachingPlan, args: argparse.Namespace, say: Callable[[str], object]) -> dict[str, object]:
    rng = np.random.default_rng(args.seed)
    # A's and B's types represent these values exactly, so the float64 product is the exact one.
    a = plan.a.dtype.decode(plan.a.dtype.encode(rng.standard_normal((plan.m, plan.k), dtype=np.float32)))
    b = plan.b.dtype.decode(plan.b.dtype.encode(rng.standard_normal((plan.k, plan.n), dtype=np.float32)))
    result = plan.run(a, b, device=args.device)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(np.asarray(result) - exact)
    bound = error_bound(plan, a, b)
    ok = bool((error <= bound).all())
    say(f"ran on: {result.ran_on}" + (f" ({result.why})" if result.why else ""))
    for note in result.copies:
        say(f"copied: {note}")
    largest, relative = float(error.max()), float(np.linalg.norm(error) / np.linalg.norm(exact))
    share = float((error / bound).max())
    say(f"C = A @ B, {plan.m}x{plan.n}x{plan.k}, standard normal values")
    say(
        f"against float64: largest error {largest:.3g}, relative {relative:.3g}, at most {share:.3f} of the bound\n"
        + ("equal within the bound" if ok else "NOT equal within the bound")
    )
    errors = {"largest_error": largest, "relative_error": relative, "share_of_bound": share}
    return {"ok": ok, "ran_on": result.ran_on, "why": result.why, "copies": list(result.copies), **errors}
