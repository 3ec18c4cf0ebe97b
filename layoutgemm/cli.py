"""The command line, `layoutgemm COMMAND`: its subcommands, those of `command` and of the emulator among them."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from . import __version__
from .command.arguments import Parser, add, failed
from .command.banks import add_banks, add_swizzle
from .command.plans import add_plan, derive, options
from .command.shared import add_box, add_desc
from .command.show import add_show
from .emulator import command as emulator_command
from .errors import LayoutError
from .kernels import GemmPlan, error_bound
from .layouts import Undecided, parse
from .layouts.facts import Facts
from .layouts.prove import prove


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0 when everything held, 1 when something did not, 2 for bad usage."""
    args = make_parser().parse_args(argv)
    try:
        return int(args.run(args))
    except (LayoutError, OSError) as error:
        return failed(error, getattr(args, "json", False))


def make_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = Parser(prog="layoutgemm", description="CuTe-style layouts and the GEMM kernels built on them")
    parser.add_argument("--version", action="version", version=f"layoutgemm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_show(commands)
    add_swizzle(commands)
    add_banks(commands)
    add_desc(commands)
    add_box(commands)
    prove = add(
        commands, "prove", "prove two layouts equal, for every size, or show where they differ first",
        ("layoutgemm prove '(64,M//64):(1,64)' M:1 --given '64 | M'",), _prove, as_json=False,
        says="Layouts in CuTe's notation, symbols allowed. Exit status: 0 proven, 1 refuted, 3 undecided.",
    )  # fmt: skip
    prove.add_argument("a", help="a layout, as in '(M,N):(N,1)' or 'S<3,3,3> o 0 o (8,64):(64,1)'")
    prove.add_argument("b", help="another")
    prove.add_argument("--given", action="append", default=[], metavar="FACT", help="'64 | M', 'ld >= M'; repeatable")
    add_plan(commands)
    emulator_command.add_arguments(
        commands.add_parser("emulate", help="run a kernel of a PTX file on the CPU and look for races")
    )
    tune = add(
        commands, "tune", "measure configurations for a product on the GPU, and keep the fastest",
        ("layoutgemm tune 4096 14336 4096",), _tune, as_json=False,
    )  # fmt: skip
    for name in "mnk":
        tune.add_argument(name, type=int)
    tune.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    tune.add_argument("--a-major", choices=("k", "mn"), default="k", help="A's contiguous index (%(default)s)")
    tune.add_argument("--b-major", choices=("k", "mn"), default="k", help="B's contiguous index (%(default)s)")
    tune.add_argument("--most", type=int, default=24, help="configurations to try (%(default)s)")
    tune.add_argument("--budget", type=float, default=120.0, help="seconds for measuring (%(default)s)")
    add(
        commands, "doctor", "what of GPU, driver, packages and cache is here",
        ("layoutgemm doctor --json  # status 1 where something is missing",), _doctor,
    )  # fmt: skip
    demo = add(
        commands, "demo", "derive, check, compile and run one GEMM, and draw its fragment map",
        ("layoutgemm demo -m 65 -n 70 -k 40 --device reference",), _demo, as_json=False,
    )  # fmt: skip
    for name, size in zip("mnk", (200, 136, 72)):
        demo.add_argument(f"-{name}", type=int, default=size, help="size (%(default)s)")
    options(demo)
    demo.add_argument("--device", choices=("cuda", "emulator", "reference"), help="default: the GPU when there is one")
    demo.add_argument(
        "--svg", type=Path, default=Path("fragment.svg"), help="where to draw the fragment map (%(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0, help="of the random matrices (%(default)s)")
    return parser


def _doctor(args: argparse.Namespace) -> int:
    from .doctor import examine, report, status

    findings = examine()
    print(report(findings, args.json))
    return status(findings)


def _tune(args: argparse.Namespace) -> int:
    from .tune import tune

    print(
        tune(
            args.m, args.n, args.k, dtype=args.dtype, a_major=args.a_major, b_major=args.b_major, most=args.most,
            budget=args.budget,
        )
    )  # fmt: skip
    return 0


def _prove(args: argparse.Namespace) -> int:
    # Names mean symbols under these facts alone, whatever else the process has called by them.
    facts = Facts(*args.given)
    answer = prove(parse(args.a, facts), parse(args.b, facts))
    if args.given:
        print(f"given {', '.join(args.given)}:")
    print(answer.explain())
    if isinstance(answer, Undecided):
        return 3
    return 0 if answer else 1


def _demo(args: argparse.Namespace) -> int:
    plan = derive(args)
    print("1. The derivation\n")
    print(plan.explain())
    print("\n2. Its checks\n")
    report = plan.check()
    print(report)
    if not report:
        return 1
    print("\n3. The compiled kernel\n")
    print(_compiled(plan))
    print("\n4. The run\n")
    ok = _run(plan, args)
    print("\n5. The fragment map\n")
    args.svg.parent.mkdir(parents=True, exist_ok=True)
    args.svg.write_text(plan.svg(), encoding="utf-8")
    print(f"written to {args.svg}")
    return 0 if ok else 1


def _compiled(plan: GemmPlan) -> str:
    """Compile where the DSL is installed, and say what came out; else say what is missing. A failed compile raises."""
    if importlib.util.find_spec("cutlass") is None:
        return "not compiled: the CuTe DSL is not installed (Linux: pip install 'layoutgemm[dsl]')"
    print(f"compiling for {plan.arch.name} ...", flush=True)
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


def _run(plan: GemmPlan, args: argparse.Namespace) -> bool:
    rng = np.random.default_rng(args.seed)
    # Values that A's and B's types represent exactly, so that the float64 product is the exact one.
    a = plan.a.dtype.decode(plan.a.dtype.encode(rng.standard_normal((plan.m, plan.k), dtype=np.float32)))
    b = plan.b.dtype.decode(plan.b.dtype.encode(rng.standard_normal((plan.k, plan.n), dtype=np.float32)))
    result = plan.run(a, b, device=args.device)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    error = np.abs(np.asarray(result) - exact)
    bound = error_bound(plan, a, b)
    ok = bool((error <= bound).all())
    print(f"ran on: {result.ran_on}" + (f" ({result.why})" if result.why else ""))
    for note in result.copies:
        print(f"copied: {note}")
    relative = float(np.linalg.norm(error) / np.linalg.norm(exact))
    print(f"C = A @ B, {plan.m}x{plan.n}x{plan.k}, standard normal values")
    print(
        f"against float64: largest error {error.max():.3g}, relative {relative:.3g}, "
        f"at most {(error / bound).max():.3f} of the bound"
    )
    print("equal within the bound" if ok else "NOT equal within the bound")
    return ok


if __name__ == "__main__":
    raise SystemExit(main())
