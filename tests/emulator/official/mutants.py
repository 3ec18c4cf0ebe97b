"""Run every mutant of official examples over their shapes, and print the table:

    python -m tests.emulator.official.mutants NAME... [--sample N] [--deletions] [--fields] [--launch]

Each line of a survivor is either equivalent to the kernel, with a reason, or a shape that is missing.
"""

from __future__ import annotations

import argparse

from layoutgemm.emulator.mutants import Mutant, alterations, deletions, fields
from layoutgemm.emulator.mutate import on_terminal, sample, survey

from .examples import EXAMPLES, Example
from .running import cases, kernel


def mutants_of(example: Example, kinds: tuple[str, ...] = ("deletions", "fields", "launch")) -> list[Mutant]:
    """All mutants of an example, of these kinds."""
    made = kernel(example)
    out: list[Mutant] = []
    if "deletions" in kinds:
        out += deletions(made)
    if "fields" in kinds:
        out += fields(made)
    if "launch" in kinds:
        out += alterations(made, cases(example)[0].launch())
    return out


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="+", choices=sorted(EXAMPLES), metavar="NAME")
    parser.add_argument("--sample", type=int, help="at most so many mutants, spread over their kinds")
    for kind in ("deletions", "fields", "launch"):
        parser.add_argument(f"--{kind}", action="append_const", dest="kinds", const=kind, help=f"only {kind}")
    chosen = parser.parse_args()
    for name in chosen.names:
        example = EXAMPLES[name]
        mutants = mutants_of(example, tuple(chosen.kinds or ("deletions", "fields", "launch")))
        if chosen.sample is not None:
            mutants = sample(mutants, chosen.sample)
        print(f"{name}\n{survey(kernel(example), cases(example), mutants, on_terminal).table()}", flush=True)


if __name__ == "__main__":
    main()
