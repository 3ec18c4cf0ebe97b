"""Comparisons and selections. PTX ISA, "Comparison and Selection Instructions"."""

from __future__ import annotations

from ..codegen import HALVES, CodeGenerator, bits_of, kind_of, rule
from ..parser import PtxInstruction, PtxOperand

COMPARE = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
# Float comparisons that hold for NaN, by the name of the ordered one.
UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
BOOLEAN = {"and": "&", "or": "|", "xor": "^"}


def _float_view(kind: str, text: str, flush: bool) -> str:
    """The value of a float's bits, subnormal ones as zero under .ftz."""
    if not flush:
        return f"decode({text}, {kind_of(kind)})"
    if kind == "f32":
        return f"flushed(f32({text}))"
    return f"decode(flushed_half({text}, {kind!r}), {kind_of(kind)})"


def _of_floats(name: str, x: str, y: str) -> str:
    """A comparison of two float expressions, each of which may be evaluated several times."""
    if name in ("num", "nan"):
        text = f"(({x} == {x}) & ({y} == {y}))" + (" ^ True" if name == "nan" else "")
    else:
        text = f"({x} {COMPARE[UNORDERED.get(name, name)]} {y})"
        if name in UNORDERED:
            text = f"({text} | ({x} != {x}) | ({y} != {y}))"
        elif name == "ne":
            text = f"({text} & ({x} == {x}) & ({y} == {y}))"
    return f"as_predicate({text})"


def _compared(g: CodeGenerator, ins: PtxInstruction, name: str) -> list[str]:
    """The comparison as an expression; of a packed pair, of its low and of its high half."""
    kind, flush = ins.words[-1], "ftz" in ins.words
    a, b = ins.operands[1], ins.operands[2]
    if kind not in ("f32", "f64") and kind not in HALVES:
        return [f"({g.signed(a, kind)} {COMPARE[name]} {g.signed(b, kind)})"]
    texts = [g.read(operand, kind) for operand in (a, b)]
    halves = [texts]
    if kind.endswith("x2"):
        halves = [[f"({text} & M16)" for text in texts], [f"({text} >> 16 & M16)" for text in texts]]
    views = [[_float_view(HALVES.get(kind, kind), text, flush) for text in half] for half in halves]
    return [f"(lambda x, y: {_of_floats(name, 'x', 'y')})({x}, {y})" for x, y in views]


def _joined_with(g: CodeGenerator, ins: PtxInstruction) -> str:
    """The boolean operator and the predicate that a comparison is combined with, or ""."""
    sign = next((BOOLEAN[word] for word in ins.words[1:] if word in BOOLEAN), None)
    return f" {sign} {g.read(ins.operands[3], 'pred')}" if sign else ""


@rule("setp")
def _setp(g: CodeGenerator, ins: PtxInstruction) -> str | list[tuple[PtxOperand, str]]:
    found, other, target = _compared(g, ins, ins.words[1]), _joined_with(g, ins), ins.operands[0]
    if target.kind != "pair":
        return found[0] + other
    second = found[1] if len(found) == 2 else f"({found[0]} ^ True)"
    return [(target.parts[0], found[0] + other), (target.parts[1], second + other)]


# What `set` writes where the comparison holds, by the type of the result.
HOLDS = {"u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "u16": 0xFFFF, "s16": 0xFFFF}
ONE = {"f16": 0x3C00, "bf16": 0x3F80}


@rule("set")
def _set(g: CodeGenerator, ins: PtxInstruction) -> str:
    to, packed, other = ins.words[-2], ins.words[-1].endswith("x2"), _joined_with(g, ins)
    one = HOLDS["u16" if packed else to] if to in HOLDS else ONE[HALVES[to]]  # of a pair, 16 bits each
    chosen = [f"select({text}{other}, {one}, 0)" for text in _compared(g, ins, ins.words[1])]
    return chosen[0] if len(chosen) == 1 else f"({chosen[0]} | {chosen[1]} << 16)"


@rule("selp")
def _selp(g: CodeGenerator, ins: PtxInstruction) -> str:
    a, b = (g.read(o, ins.words[-1]) for o in ins.operands[1:3])
    return f"{g.choose(ins.operands[0])}({g.read(ins.operands[3], 'pred')}, {a}, {b})"


@rule("slct")
def _slct(g: CodeGenerator, ins: PtxInstruction) -> str:
    """The first operand where the third is not negative; -0 is not, and NaN takes the second."""
    kind, by = ins.words[-2:]
    a, b = (g.read(operand, kind) for operand in ins.operands[1:3])
    if by == "s32":
        holds = f"({g.signed(ins.operands[3], by)} >= 0)"
    else:
        holds = f"as_predicate({_float_view(by, g.read(ins.operands[3], by), 'ftz' in ins.words)} >= 0)"
    return f"select{'64' if bits_of(kind) == 64 else ''}({holds}, {a}, {b})"
