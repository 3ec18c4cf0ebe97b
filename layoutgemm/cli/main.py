"""The command line `layoutgemm COMMAND` and its subcommands."""

from __future__ import annotations

import argparse
import functools
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..errors import LayoutError
from ..kernels import TeachingPlan, error_bound
from ..kernels.run.torch_tensors import require_gpu
from ..layouts import CounterExample, Proof, Undecided
from ..layouts.proofs.prove import prove
from ..layouts.symbols.facts import Facts
from . import doctor
from . import emulate as emulator_command
from .arguments import Parser, add, answer, failed, is_buffer, plain, stated, tile_in_memory
from .banks import add_banks, add_swizzle
from .bench import add_bench
from .descriptors import add_box, add_desc
from .object_names import atom_layout
from .plan import add_plan, options, plan_data, teaching
from .show import add_show

PROVE_EXAMPLES = (
    "layoutgemm prove '(64,M//64):(1,64)' M:1 --given '64 | M'",
    "layoutgemm prove '((4,8),(2,2)):((32,1),(16,8))' mma:m16n8k16:bf16:C",
)
# Optional modules, and the extra that installs each.
EXTRAS = {"torch": "torch", "cutlass": "dsl", "resvg_py": "png"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns 0 for yes, 1 for no, 2 for input that it cannot take."""
    parser = make_parser()
    own, of_script = emulator_command.script_arguments(sys.argv[1:] if argv is None else argv)
    if not own:  # no command: print the help
        parser.print_help()
        return 2
    args = parser.parse_args(own, argparse.Namespace(script=of_script))
    as_json = getattr(args, "json", False)
    try:
        status = int(args.run(args))
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # the reader has closed the pipe, as `| head` does; nothing is left to flush at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141  # the status that shells use for a closed pipe: 1 would say no
    except KeyboardInterrupt:
        return 130  # the status that shells use for ^C
    except MemoryError as error:
        return failed(LayoutError(f"not enough memory ({str(error) or 'here'}): try a smaller problem"), as_json)
    except ModuleNotFoundError as error:
        if error.name not in EXTRAS:
            raise
        way_out = f"pip install 'layoutgemm[{EXTRAS[error.name]}]'; layoutgemm doctor says what else is missing"
        return failed(LayoutError(f"{error.name} is not installed: {way_out}"), as_json)
    except (LayoutError, OSError) as error:
        return failed(error, as_json)


def make_parser() -> argparse.ArgumentParser:
    """The parser of all subcommands."""
    parser = Parser(
        prog="layoutgemm", description="CuTe-style layouts and the GEMM kernels built on them",
        epilog="examples:\n  layoutgemm show '(4,8):(8,1)'\n  layoutgemm demo\n\n"
        "layoutgemm COMMAND --help shows those of a command\n"
        "exit status: 0 yes, 1 no (conflicts, refuted, not found), 2 input that it cannot take",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("--version", action="version", version=f"layoutgemm {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    add_show(commands)
    add_swizzle(commands)
    add_banks(commands)
    add_desc(commands)
    add_box(commands)
    prove = add(
        commands, "prove", "prove two layouts equal for every size, or show the first difference",
        PROVE_EXAMPLES, _prove,
        says="Layouts in CuTe's notation, symbols allowed. Exit status: 0 proven, 1 refuted, 3 undecided.",
    )  # fmt: skip
    prove.add_argument(
        "a", help="a layout, as in '(M,N):(N,1)', a tile, as in smem:64x64:bf16:K:128B, or an operand: wgmma:64:bf16:C"
    )
    prove.add_argument("b", help="another")
    prove.add_argument("--given", action="append", default=[], metavar="FACT", help="'64 | M', 'ld >= M'; repeatable")
    add_plan(commands)
    emulator_command.add_arguments(
        commands.add_parser("emulate", help="run a kernel of a PTX file on the CPU and look for races")
    )
    tune = add(
        commands, "tune", "measure configurations of a product on the GPU and keep the fastest",
        ("layoutgemm tune 4096 14336 4096",), _tune,
    )  # fmt: skip
    for name in "mnk":
        tune.add_argument(name, type=int)
    tune.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    tune.add_argument("--a-major", choices=("k", "mn"), default="k", help="A's contiguous index (%(default)s)")
    tune.add_argument("--b-major", choices=("k", "mn"), default="k", help="B's contiguous index (%(default)s)")
    tune.add_argument("--activation", choices=("swiglu", "geglu"), help="of a gated product, whose N is C's columns")
    tune.add_argument("--most", type=int, default=24, help="configurations to try (%(default)s)")
    tune.add_argument("--budget", type=float, default=120.0, help="seconds for measuring (%(default)s)")
    add_bench(commands)
    add(
        commands, "doctor", "check GPU, driver, packages and cache",
        ("layoutgemm doctor --json  # status 1 where something is missing",), _doctor,
    )  # fmt: skip
    demo = add(
        commands, "demo", "derive, check, compile and run one GEMM, and draw its fragment map",
        ("layoutgemm demo -m 65 -n 70 -k 40 --device reference",), _demo,
    )  # fmt: skip
    for name, size in zip("mnk", (200, 136, 72)):
        demo.add_argument(f"-{name}", type=int, default=size, help="size (%(default)s)")
    options(demo)
    demo.add_argument("--device", choices=("cuda", "emulator", "reference"), help="default: the GPU when there is one")
    demo.add_argument(
        "--svg", type=Path, default=Path("fragment.svg"), help="where to draw the fragment map (%(default)s)"
    )
    demo.add_argument("--seed", type=int, default=0, help="seed of the random matrices (%(default)s)")
    return parser


def _doctor(args: argparse.Namespace) -> int:
    findings = doctor.examine()
    print(doctor.report(findings, args.json))
    return doctor.status(findings)


def _tune(args: argparse.Namespace) -> int:
    from ..torch_op.tuning import name_of, tune

    found = tune(
        args.m, args.n, args.k, dtype=args.dtype, a_major=args.a_major, b_major=args.b_major, most=args.most,
        budget=args.budget, activation=args.activation,
    )  # fmt: skip

    def data() -> dict[str, object]:
        return {
            "fastest": name_of(found.choice), "seconds": found.seconds, "heuristic_seconds": found.chosen,
            "torch_seconds": found.torch, "kept": None if found.kept is None else str(found.kept),
            "measured": [{"configuration": name_of(choice), "seconds": time} for choice, time in found.measured],
            "failed": [{"configuration": name_of(choice), "why": why} for choice, why in found.failed],
        }  # fmt: skip

    answer(args, lambda: str(found), data)
    return 0


def _prove(args: argparse.Namespace) -> int:
    # Names are symbols under these facts alone, whatever facts the process has stated before.
    facts = Facts(*args.given)
    buffers = [is_buffer(text) for text in (args.a, args.b)]
    found = prove(*(
        tile_in_memory(text) if buffer and not all(buffers) else atom_layout(text) or stated(text, facts)
        for text, buffer in zip((args.a, args.b), buffers, strict=True)
    ))  # fmt: skip
    verdict = "undecided" if isinstance(found, Undecided) else "proven" if found else "refuted"

    def data() -> dict[str, object]:
        said: dict[str, object] = {"verdict": verdict, "given": args.given, "explanation": found.explain()}
        if isinstance(found, CounterExample):
            witness = {"coord": found.coord, "left": found.left, "right": found.right}
            said |= {"method": found.method, "sizes": dict(found.sizes)}
            said |= {name: plain(value) for name, value in witness.items()}
        elif isinstance(found, Proof):
            said |= {"method": found.method, "conditions": [str(each) for each in found.conditions]}
        return said

    given = f"given {', '.join(args.given)}:\n" if args.given else ""
    answer(args, lambda: given + found.explain(), data)
    return {"proven": 0, "refuted": 1, "undecided": 3}[verdict]


def _demo(args: argparse.Namespace) -> int:
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


if __name__ == "__main__":
    raise SystemExit(main())
