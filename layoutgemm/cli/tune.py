"""`layoutgemm tune`: the fastest measured configuration of a product, kept for `matmul`."""

from __future__ import annotations

import argparse

from .arguments import add, answer
from .commands import Commands

EXAMPLES = ("layoutgemm tune 4096 14336 4096",)


def add_tune(commands: Commands) -> None:
    """The subcommand tune."""
    parser = add(commands, "tune", EXAMPLES, run)
    for name in "mnk":
        parser.add_argument(name, type=int)
    parser.add_argument("--dtype", choices=("bf16", "f16"), default="bf16")
    parser.add_argument("--a-major", choices=("k", "mn"), default="k", help="A's contiguous index (%(default)s)")
    parser.add_argument("--b-major", choices=("k", "mn"), default="k", help="B's contiguous index (%(default)s)")
    parser.add_argument("--activation", choices=("swiglu", "geglu"), help="of a gated product, whose N is C's columns")
    parser.add_argument("--most", type=int, default=24, help="configurations to try (%(default)s)")
    parser.add_argument("--budget", type=float, default=120.0, help="seconds for measuring (%(default)s)")


def run(args: argparse.Namespace) -> int:
    """Measure and print; returns the exit status."""
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
