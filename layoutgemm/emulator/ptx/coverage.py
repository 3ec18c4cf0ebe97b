"""The instructions of kernels, and those that the emulator knows:

    python -m layoutgemm.emulator.ptx.coverage FILE.ptx...

A *spelling* is an opcode with its words, "ld.shared.v4.b32". It is unknown when an instruction of it is refused at
load; the reason and the first line are kept.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import PtxError
from ..ops import build
from .parser import PtxInstruction, PtxKernel, parse
from .program import Program, Run


@dataclass
class Spelling:
    """One spelling of an opcode.

    kernels  name of each text that has it -> how many instructions are of it
    refused  why the emulator does not take one of them, with its place; "" when it takes all
    """

    opcode: str
    kernels: dict[str, int] = field(default_factory=dict)
    refused: str = ""


class _Listing(Program):
    """A program that notes refusals and goes on."""

    def __init__(self, kernel: PtxKernel, refused: dict[int, str]) -> None:
        self.refused = refused
        super().__init__(kernel, self._noting)

    def _noting(self, program: Program, ins: PtxInstruction) -> Run:
        try:
            return build(program, ins)
        except (PtxError, NotImplementedError) as error:
            self.refused[ins.pc] = str(error)
            return lambda fiber: None

    def _make_steps(self) -> None:
        statement = self.generator.statement

        def noting(ins: PtxInstruction) -> str | None:
            try:
                return statement(ins)
            except PtxError as error:
                self.refused[ins.pc] = str(error)
                return "pass"

        self.generator.statement = noting  # type: ignore[method-assign]
        super()._make_steps()


def refusals(kernel: PtxKernel) -> dict[int, str]:
    """The reason for each refused instruction, by pc.

    >>> kernel, = parse('.target sm_90\\n.entry k() { .reg .b32 %r<2>; mov.b32 %r0, 1; sqrt.b99 %r1, %r0; fly %r0; }')
    >>> sorted(refusals(kernel))
    [1, 2]
    """
    refused: dict[int, str] = {}
    _Listing(kernel, refused)
    return refused


def census(texts: Iterable[tuple[str, str]]) -> dict[str, Spelling]:
    """(name, PTX text) pairs -> the spellings in them, in alphabetical order."""
    found: dict[str, Spelling] = {}
    for name, text in texts:
        for kernel in parse(text):
            refused = refusals(kernel)
            for ins in kernel.instructions:
                spelling = found.setdefault(ins.opcode, Spelling(ins.opcode))
                spelling.kernels[name] = spelling.kernels.get(name, 0) + 1
                if ins.pc in refused and not spelling.refused:
                    spelling.refused = f"{name}: {refused[ins.pc]}"
    return dict(sorted(found.items()))


def main(arguments: list[str] | None = None) -> int:
    """Print the spellings of PTX files, unknown ones last; exit status 1 for unknown ones."""
    program = "python -m layoutgemm.emulator.ptx.coverage"
    parser = argparse.ArgumentParser(prog=program, description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--unknown", action="store_true", help="only what the emulator does not know")
    chosen = parser.parse_args(arguments)
    found = census((path.stem, path.read_text(encoding="utf-8")) for path in chosen.files)
    known = [s for s in found.values() if not s.refused]
    unknown = [s for s in found.values() if s.refused]
    if not chosen.unknown:
        for spelling in known:
            print(f"  {spelling.opcode:72} {sum(spelling.kernels.values()):6} in {len(spelling.kernels)}")
    for spelling in unknown:
        print(f"? {spelling.opcode:72} {sum(spelling.kernels.values()):6} in {len(spelling.kernels)}")
        print(f"    {spelling.refused}")
    print(f"{len(found)} spellings, {len(unknown)} of them unknown")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
