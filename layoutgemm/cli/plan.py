"""`layoutgemm plan`: the derivation of a GEMM and its checks, for any architecture."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, replace

from ..arch import ARCHES
from ..arch import arch as arch_of
from ..errors import PlanError
from ..kernels import GemmPlan, TeachingConfig, TeachingPlan
from ..kernels.pictures import PICTURES, plan_svg, plan_table
from ..kernels.planner import plan as planned
from ..kernels.sm90.choose.rules import choose
from ..kernels.sm90.types import operands
from ..report import Report
from .arguments import LINES, add, add_picture, answer, drawn
from .commands import Commands

EXAMPLES = (
    "layoutgemm plan 4096 4096 4096 -b bf16:col",
    "layoutgemm plan 4096 4096 4096 -b bf16:col --full",
    "layoutgemm plan 4096 4096 4096 -a f16 --arch sm_80 --html tile.html",
    "layoutgemm plan 300 200 328 -b bf16:col --arch sm_100a --json",
    "layoutgemm plan 4096 4096 4096 --of smem --svg smem.svg",
    "layoutgemm plan 512 4096 4096 -b bf16:col --matmul",
    "layoutgemm plan 200 136 72 -b bf16:col --teaching --stages 2",
)
# TeachingConfig's names of the choices.
CHOICES = ("tile_n", "tile_k", "stages")


def add_plan(commands: Commands) -> None:
    """The subcommand plan, and its alias explain."""
    parser = add(
        commands, "plan", EXAMPLES, run,
        says="Derives C[m, n] = A[m, k] @ B[k, n]: tiles, boxes, descriptors, stages, budgets, and proves them. Exit "
        "status: 0 every check holds, 1 one does not.",
    )  # fmt: skip
    for name in "mnk":
        parser.add_argument(name, type=int, help="size")
    parser.add_argument("--arch", default="sm_90a", help=f"{', '.join(ARCHES)}, hopper, ... (%(default)s)")
    parser.add_argument("--teaching", action="store_true", help="sm_90a: the teaching kernel, not the production one")
    parser.add_argument("--matmul", action="store_true", help="sm_90a: the kernel that matmul launches, and the reason")
    parser.add_argument(
        "--full", action="store_true", help=f"every line, not the first levels in {LINES}: fields, checks"
    )
    parser.add_argument("--html", metavar="FILE", help="also write an interactive page of the tile there")
    options(parser)
    parser.add_argument("--of", choices=tuple(PICTURES), help="print or draw this part instead of the derivation")
    add_picture(parser, "its fragment map, or the part of --of,")


def options(parser: argparse.ArgumentParser) -> None:
    """Types, orders, and the teaching kernel's choices. The plan chooses those left out."""
    parser.add_argument("-a", default="bf16", help="A's type and order, as in bf16:col (%(default)s)")
    parser.add_argument("-b", default=None, help="B's type and order (A's type, row-major)")
    parser.add_argument("-c", default=None, help="C's type (that of 16-bit inputs; teaching: f32)")
    for name, what in zip(CHOICES, ("columns of C a block computes", "depth of a stage", "k tiles in flight")):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, help=f"teaching: {what}")


def derive(args: argparse.Namespace) -> GemmPlan:
    """The plan that the arguments ask for: production or teaching kernel. Raises LayoutError."""
    given = [f"--{name.replace('_', '-')}" for name in CHOICES if getattr(args, name) is not None]
    if args.teaching:
        return teaching(args, args.arch)
    if given:
        raise PlanError(f"{', '.join(given)}: a choice of the teaching kernel: add --teaching, or omit it")
    return planned(args.m, args.n, args.k, arch=args.arch, a=args.a, b=args.b, c=args.c)


def teaching(args: argparse.Namespace, arch: str = "sm_90a") -> TeachingPlan:
    """The plan of the teaching kernel that the arguments ask for. Raises LayoutError."""
    chosen = {name: value for name in CHOICES if (value := getattr(args, name)) is not None}
    config = TeachingConfig(**chosen)
    return TeachingPlan.derive(args.m, args.n, args.k, arch=arch, a=args.a, b=args.b, c=args.c, config=config)


def production(args: argparse.Namespace) -> tuple[GemmPlan, str]:
    """The plan of the kernel that `layoutgemm.matmul` launches for these sizes, and why. Raises LayoutError."""
    if arch_of(args.arch).name != "sm_90a":
        raise PlanError(f"--matmul: the choice is among sm_90a's kernels, and {args.arch} has one: omit it")
    chosen = ["teaching"] * args.teaching + [name for name in CHOICES if getattr(args, name) is not None]
    if given := [f"--{name.replace('_', '-')}" for name in chosen]:
        raise PlanError(f"{', '.join(given)} beside --matmul, which chooses them: omit one of them")
    a, b, _ = operands(args.a, args.b, args.c)
    choice, why = choose(args.m, args.n, args.k, a=a.dtype.name, b_major="K" if b.order == "col" else "MN")
    if choice.config.loaded_a_rows is not None and (b.order != "col" if choice.swapped else a.order != "row"):
        # A's unused rows are skipped only where K is contiguous in the kernel's A.
        choice = replace(choice, config=replace(choice.config, loaded_a_rows=None))
    return choice.plan(args.m, args.n, args.k, a=args.a, b=args.b, c=args.c), why


def run(args: argparse.Namespace) -> int:
    """Derive, check and print; returns the exit status."""
    plan, why = production(args) if args.matmul else (derive(args), "")
    if drawn(args, lambda: plan_svg(plan, args.of or "fragment")):
        return 0
    if args.of is not None:
        text = plan_table(plan, args.of)
        answer(args, lambda: text, lambda: {"plan": str(plan), "of": args.of, "text": text})
        return 0
    report = plan.check()
    if args.html is not None:
        plan.html(args.html)
    derivation = (f"chosen: {why}\n" if why else "") + plan.explain()
    answer(
        args,
        lambda: f"{derivation}\n{report}" if args.full else head_of(derivation, report),
        lambda: plan_data(plan, report, why),
    )
    return 0 if report else 1


def head_of(derivation: str, report: Report) -> str:
    """The sections of a derivation, the checks that fail, and how to print the rest."""
    lines = derivation.splitlines()
    failures = [str(check) for check in report.failures]
    whole = len(lines) + len(report) + 1
    if whole <= LINES:
        return f"{derivation}\n{report}"
    kept = shortest_first(lines, max(0, LINES - 2 - len(failures)))
    shown = [*kept, *failures, str(report).splitlines()[-1]]
    return "\n".join([*shown, f"{len(shown)} of {whole} lines; --full prints the rest, --of one part as a table"])


def shortest_first(lines: Sequence[str], most: int) -> list[str]:
    """The titles of sections and the lines below them; long sections are cut first.

    >>> shortest_first(["A", "  1", "    deep", "  2", "  3", "B", "  4"], 5)
    ['A', '  1', '  2', 'B', '  4']
    """
    sections: list[list[str]] = []
    for line in lines:
        depth = len(line) - len(line.lstrip())
        if depth == 0:
            sections.append([line])
        elif depth <= 2 and sections:
            sections[-1].append(line)
    while sum(map(len, sections)) > most and any(len(section) > 1 for section in sections):
        max(reversed(sections), key=len).pop()
    return [line for section in sections for line in section][:most]


def plan_data(plan: GemmPlan, report: Report, why: str = "") -> dict[str, object]:
    """A plan for programs. Its main numbers, the derivation as text, and every check with verdict and method."""
    return {
        **({"chosen": why} if why else {}),
        "ok": bool(report), "plan": str(plan), "kernel": type(plan).__name__, "arch": plan.arch.name,
        "m": plan.m, "n": plan.n, "k": plan.k, "a": str(plan.a.dtype), "b": str(plan.b.dtype), "tile": plan.tile,
        "stages": plan.stages, "checks": [asdict(check) for check in report], "derivation": plan.explain(),
    }  # fmt: skip
