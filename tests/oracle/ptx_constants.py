"""What PTX text says about its wgmmas: the constant part of each matrix descriptor, and the transpose flags.

A descriptor in PTX is a register made of the traced shared-memory address, shifted and masked, and of constants that are
or-ed and added to it. Folding the constants along the definitions, with every address taken as zero, leaves exactly the
bits that somebody decided before the kernel ran.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_WGMMA = re.compile(
    r"wgmma\.mma_async\.sync\.aligned\.(?P<shape>m\d+n\d+k\d+)\.(?P<types>[\w.]+)\s*\{[^}]*\},\s*"
    r"(?P<a>%\w+),\s*(?P<b>%\w+),\s*(?P<scale>\w+),\s*(?P<neg_a>-?\d+),\s*(?P<neg_b>-?\d+),"
    r"\s*(?P<trans_a>\d+),\s*(?P<trans_b>\d+)\s*;"
)
_DEFINITION = re.compile(r"^\s*(?P<opcode>[a-z][\w.]*)\s+(?P<target>%\w+),\s*(?P<sources>[^;]+);", re.M)
_MASK = (1 << 64) - 1


@dataclass(frozen=True)
class WgmmaUse:
    """One wgmma: descriptor constants of A and B (64-bit, address taken as zero), whether each operand is transposed."""

    shape: str
    types: str
    a: int
    b: int
    transpose_a: bool
    transpose_b: bool


def wgmma_uses(ptx: str) -> list[WgmmaUse]:
    """Every wgmma.mma_async of the PTX, in text order."""
    definitions = {m["target"]: (m["opcode"], [s.strip() for s in m["sources"].split(",")]) for m in _DEFINITION.finditer(ptx)}
    return [
        WgmmaUse(
            m["shape"],
            m["types"],
            _constant(m["a"], definitions),
            _constant(m["b"], definitions),
            m["trans_a"] == "1",
            m["trans_b"] == "1",
        )
        for m in _WGMMA.finditer(ptx)
    ]


def _constant(operand: str, definitions: dict[str, tuple[str, list[str]]]) -> int:
    if not operand.startswith("%"):
        return int(operand, 0) & _MASK
    opcode, sources = definitions.get(operand, ("", []))
    if opcode in ("or.b64", "add.s64"):
        left, right = (_constant(source, definitions) for source in sources)
        return left | right if opcode == "or.b64" else (left + right) & _MASK
    if opcode in ("mov.b64", "mov.u64"):
        return _constant(sources[0], definitions)
    if opcode in ("cvt.u64.u32", "cvt.s64.s32", "and.b64", "shr.u64", "ld.param.b64", ""):
        return 0  # the address
    raise AssertionError(f"a descriptor made by {opcode} {operand}, {', '.join(sources)}: teach the test about it")
