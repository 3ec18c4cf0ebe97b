"""The surviving mutants of official examples, each with the reason why it changes nothing.

`survivors.json` has, for each kernel, the number of mutants and the survivors' names. A name is stable while the
compiler emits the same instructions: opcode, number among equal opcodes, and the change. The reason comes from
`layoutgemm.emulator.mutation.survivors`, and each is a proof. With "sample", only the mutants picked by
`layoutgemm.emulator.mutation.run.sample` for that number were run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from layoutgemm.emulator.mutation.run import MutantOutcome
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels.compile.compiler import dsl_version

FILE = Path(__file__).with_suffix(".json")
NAME = re.compile(r"(?P<instruction>.*?)(?: #(?P<number>\d+))?: (?P<change>.*)")  # of the launch: no number


def read() -> dict[str, Any]:
    """The content of the file."""
    found: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return found


def listed(example: str) -> dict[str, str]:
    """Names of the surviving mutants of an example, with their reasons."""
    return {
        f"{group['instruction']}{number}: {group['change']}": group["reason"]
        for group in read()[example]["survivors"]
        for number in [f" #{number}" for number in group["numbers"]] or [""]
    }


def entry(named: Iterable[tuple[str, str]], count: int, sample: int | None = None) -> dict[str, Any]:
    """The file's entry of one example: survivors with reasons, and the number of mutants."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for name, reason in named:
        found = NAME.fullmatch(name)
        assert found is not None, name
        group = (reason.split(":")[0], found["instruction"], found["change"])
        groups.setdefault(group, []).extend([int(found["number"])] if found["number"] else [])
    return {
        "dsl": dsl_version(),
        "mutants": count,
        **({} if sample is None else {"sample": sample}),
        "survivors": [
            {"reason": reason, "instruction": instruction, "change": change, "numbers": sorted(numbers)}
            for (reason, instruction, change), numbers in sorted(groups.items())
        ],
    }


def entry_of(kernel: PtxKernel, rows: Iterable[MutantOutcome], count: int, sample: int | None = None) -> dict[str, Any]:
    """The same from the rows of a survey."""
    return entry([(row.mutant.name(kernel), row.reason) for row in rows if not row.caught], count, sample)


def write(example: str, what: dict[str, Any]) -> None:
    """Put the entry of an example into the file."""
    everything = {**read(), example: what}
    lines = []
    for name, one in sorted(everything.items()):
        groups = ",\n".join(f"    {json.dumps(group)}" for group in one["survivors"])
        facts = ", ".join(f'"{key}": {json.dumps(value)}' for key, value in one.items() if key != "survivors")
        lines.append(f' "{name}": {{{facts}, "survivors": [\n{groups}\n ]}}')
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
