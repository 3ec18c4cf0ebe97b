"""The wgmmas of a PTX text: the constant part of each matrix descriptor, and the transpose flags.

A descriptor in PTX is a register made of the traced shared-memory address, shifted and masked, and of constants that
are or-ed and added to it. Folding the constants along the definitions, with every address taken as zero, leaves exactly
the bits that were decided before the kernel ran.
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
    """One wgmma: 64-bit descriptor constants of A and B, address taken as zero; is each operand transposed."""

    shape: str
    types: str
    a: int
    b: int
    transpose_a: bool
    transpose_b: bool


def wgmma_uses(ptx: str) -> list[WgmmaUse]:
    """Every wgmma.mma_async of the PTX, in text order."""
    definitions = {
        m["target"]: (m["opcode"], [s.strip() for s in m["sources"].split(",")]) for m in _DEFINITION.finditer(ptx)
    }
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


_TCGEN05 = re.compile(
    r"tcgen05\.mma\.cta_group::(?P<group>[12])\.kind::(?P<kind>\w+)\S*\s+\[%\w+\],\s*"
    r"(?P<a>%\w+),\s*(?P<b>%\w+),\s*(?P<says>%\w+|-?\d+)\s*[,;]"
)


@dataclass(frozen=True)
class Tcgen05Use:
    """One tcgen05.mma: descriptor constants of A and B, address taken as zero, and the instruction descriptor."""

    group: int
    kind: str
    a: int
    b: int
    says: int


def tcgen05_uses(ptx: str) -> list[Tcgen05Use]:
    """Every tcgen05.mma of the PTX, in text order."""
    definitions = {
        m["target"]: (m["opcode"], [s.strip() for s in m["sources"].split(",")]) for m in _DEFINITION.finditer(ptx)
    }
    return [
        Tcgen05Use(
            int(m["group"]),
            m["kind"],
            _constant(m["a"], definitions),
            _constant(m["b"], definitions),
            _constant(m["says"], definitions) & 0xFFFFFFFF,
        )
        for m in _TCGEN05.finditer(ptx)
    ]


def _constant(operand: str, definitions: dict[str, tuple[str, list[str]]]) -> int:
    if not operand.startswith("%"):
        return int(operand, 0) & _MASK
    opcode, sources = definitions.get(operand, ("", []))
    # a word whose upper half is zero is put together in 32 bits and widened
    if opcode in ("or.b64", "add.s64", "or.b32", "add.s32"):
        left, right = (_constant(source, definitions) for source in sources)
        return left | right if opcode.startswith("or") else (left + right) & _MASK
    if opcode in ("mov.b64", "mov.u64", "mov.b32", "cvt.u64.u32", "shfl.sync.idx.b32"):
        return _constant(sources[0], definitions)
    if opcode == "selp.b32":  # a flag of the word that a run-time value could set
        return _constant(sources[1], definitions)
    if opcode.startswith(("and.", "shr.", "shl.", "mad.", "mul.")):
        return 0  # the address, on its way into its field
    raise AssertionError(f"a descriptor made by {opcode} {operand}, {', '.join(sources)}: teach the test about it")
