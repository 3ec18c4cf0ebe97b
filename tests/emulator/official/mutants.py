"""Run every mutant of official examples over their shapes, and print the table:

    python -m tests.emulator.official.mutants NAME... [--sample N] [--deletions] [--fields] [--launch] [--write]

Each survivor has a reason (`layoutgemm/emulator/mutation/survivors.py`). --write keeps them in `survivors.json`, which
a test compares with what it finds.
"""

from __future__ import annotations

import argparse
import functools

from layoutgemm.emulator.mutation.mutants import Mutant, alterations, deletions, fields
from layoutgemm.emulator.mutation.run import MutantOutcome, Survey, on_terminal, sample
from layoutgemm.emulator.mutation.survivors import Explainer
from tests.emulator.official import survivors
from tests.emulator.official.examples import EXAMPLES, Example
from tests.emulator.official.running import cases, few, repaired

KINDS = ("deletions", "fields", "launch")
# Changes of what one instruction reads, for which few shapes are as good as all: it reads the same, or it does not.
LOCAL = ("descriptor", "flag")


def mutants_of(example: Example, kinds: tuple[str, ...] = KINDS) -> list[Mutant]:
    """All mutants of an example, of these kinds; of one that races, of the kernel without its race."""
    made = repaired(example)
    out: list[Mutant] = []
    if "deletions" in kinds:
        out += deletions(made)
    if "fields" in kinds:
        out += fields(made)
    if "launch" in kinds:
        out += alterations(made, cases(example)[0].launch())
    return out


class Judge:
    """Runs mutants of an example: over few shapes first, and over all in every order where those do not settle it."""

    def __init__(self, example: Example) -> None:
        self.example, self.kernel = example, repaired(example)
        self.quick = Explainer(self.kernel, cases(example, shapes=few(example))[: len(few(example))])

    @functools.cached_property
    def thorough(self) -> Explainer:
        """With all shapes, and other orders."""
        every, count = cases(self.example), len(self.example.shapes)
        return Explainer(self.kernel, every[:count], every[count:])

    def row(self, mutant: Mutant) -> MutantOutcome:
        """The outcome of a mutant."""
        row = self.quick.row(mutant)
        if row.caught or (mutant.kind in LOCAL and row.reason.startswith("same")):
            return row
        return self.thorough.row(mutant)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("names", nargs="+", choices=sorted(EXAMPLES), metavar="NAME")
    parser.add_argument("--sample", type=int, help="at most so many mutants, spread over their kinds")
    parser.add_argument("--write", action="store_true", help="keep what survives in survivors.json")
    for kind in KINDS:
        parser.add_argument(f"--{kind}", action="append_const", dest="kinds", const=kind, help=f"only {kind}")
    chosen = parser.parse_args()
    if chosen.write and chosen.kinds:
        parser.error("--write is for all kinds")
    for name in chosen.names:
        judge = Judge(EXAMPLES[name])
        mutants = mutants_of(judge.example, tuple(chosen.kinds or KINDS))
        count = len(mutants)
        if chosen.sample is not None:
            mutants = sample(mutants, chosen.sample)
        rows: list[MutantOutcome] = []
        for mutant in mutants:
            rows.append(judge.row(mutant))
            on_terminal(len(rows), len(mutants), rows[-1])
        print(f"{name}\n{Survey(tuple(rows)).table()}", flush=True)
        if chosen.write:
            survivors.write(name, survivors.entry_of(judge.kernel, rows, count, chosen.sample))


if __name__ == "__main__":
    main()
