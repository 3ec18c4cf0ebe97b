"""Arithmetic of floats, one or two to a register. PTX ISA, "Floating Point", "Half Precision", "Mixed Precision"."""

from __future__ import annotations

from ..codegen import HALVES, CodeGenerator, bits_of, kind_of, rule
from ..parser import PtxInstruction
from ..rounding import rounding_of
from .integer_arithmetic import Pairs, integer


@rule("add", "sub", "mul", "mad", "fma", "div", "min", "max")
def _arithmetic(g: CodeGenerator, ins: PtxInstruction) -> str | Pairs:
    kind = ins.words[-1]
    if ins.words[-2] == "f32":
        return _mixed(g, ins)
    if kind[0] != "f" and kind not in HALVES:
        return integer(g, ins)
    if ins.words[0] in ("min", "max"):
        return _chosen(g, ins)
    texts = ", ".join(g.read(operand, kind) for operand in ins.operands[1:])
    return _computed("fma" if ins.words[0] == "mad" else ins.words[0], ins, kind, texts)


def _computed(name: str, ins: PtxInstruction, kind: str, texts: str) -> str:
    """add, sub, mul, fma, div of one kind of float; texts: the operands' bits."""
    flush, saturate, mode = "ftz" in ins.words, "sat" in ins.words, rounding_of(ins.words)
    if "oob" in ins.words:
        raise ValueError("fma.oob is left out of the emulator")
    if kind in HALVES:
        if kind == "bf16" and mode != "rn":  # of bf16x2 it leaves the mode out: a GPU rounds to nearest
            raise ValueError(f"fma.{mode}.bf16 is compiled by ptxas (13.0, 13.4) as if its operands were f16: use .rn")
        core = f"half_operation({name!r}, {HALVES[kind]!r}, {flush}, {'relu' in ins.words}, {saturate})"
        return f"packed({core}, {texts})" if kind.endswith("x2") else f"{core}({texts})"
    if kind == "f64":
        if mode != "rn" or name == "fma":
            return f"directed64({name!r}, {mode!r}, {texts})"
        return f"binary64({name!r}, {texts})"
    if mode != "rn":
        call = f"directed32({name!r}, {mode!r}, {flush}, {saturate}, {{}})"
    elif name == "fma":
        call = f"fma32({{}}, {flush}, {saturate})"
    else:
        name = "div.approx" if name == "div" and "approx" in ins.words else name
        call = f"binary32({name!r}, {{}}, {flush}, {saturate})"
    if kind == "f32":
        return call.format(texts)
    names = "a, b, c" if name == "fma" else "a, b"
    return f"pair32(lambda {names}: {call.format(names)}, {texts})"


def _mixed(g: CodeGenerator, ins: PtxInstruction) -> str:
    """add, sub, fma of f32 with 16-bit operands, which are exact as f32."""
    kind, (*narrow, last) = ins.words[-1], ins.operands[1:]
    texts = [f"bits32(decode({g.read(operand, kind)}, {kind_of(kind)}))" for operand in narrow]
    return _computed(ins.words[0], ins, "f32", ", ".join([*texts, g.read(last, "f32")]))


def _chosen(g: CodeGenerator, ins: PtxInstruction) -> str:
    """min, max of floats."""
    kind, flush = ins.words[-1], "ftz" in ins.words
    name = f"{ins.words[0]}.NaN" if "NaN" in ins.words else ins.words[0]
    way = "xorsign" if "xorsign" in ins.words else "abs" if "abs" in ins.words else ""
    texts = [g.read(operand, kind) for operand in ins.operands[1:]]
    if kind == "f64":
        return f"binary64({name!r}, {', '.join(texts)})"
    if kind == "f32":
        if len(texts) == 2 and not way:
            return f"binary32({name!r}, {', '.join(texts)}, {flush})"
        return f"chosen32({name!r}, {way!r}, {flush}, {', '.join(texts)})"
    name = f"{name}.xorsign" if way else name
    core = f"half_operation({name!r}, {HALVES[kind]!r}, {flush}, False, False)"
    return f"packed({core}, {', '.join(texts)})" if kind.endswith("x2") else f"{core}({', '.join(texts)})"


@rule("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def _function(g: CodeGenerator, ins: PtxInstruction) -> str:
    name, kind, flush, mode = ins.words[0], ins.words[-1], "ftz" in ins.words, rounding_of(ins.words)
    text = g.read(ins.operands[1], kind)
    if kind in HALVES:
        core = f"half_operation({name!r}, {HALVES[kind]!r}, {flush}, False, False)"
        return f"packed({core}, {text})" if kind.endswith("x2") else f"{core}({text})"
    if kind == "f64":
        if "approx" in ins.words:
            return f"upper64({name!r}, {text}, {flush})"
        return f"directed64({name!r}, {mode!r}, {text})" if mode != "rn" else f"bits64(UNARY[{name!r}](f64({text})))"
    if mode != "rn":
        return f"directed32({name!r}, {mode!r}, {flush}, False, {text})"
    return f"unary32({name!r}, {text}, {flush})"


@rule("copysign")
def _copysign(g: CodeGenerator, ins: PtxInstruction) -> str:
    """The sign of a on the magnitude of b."""
    kind = ins.words[-1]
    sign = 1 << bits_of(kind) - 1
    a, b = (g.read(operand, kind) for operand in ins.operands[1:])
    return f"({a} & {sign} | {b} & {sign - 1})"


@rule("testp")
def _tested(g: CodeGenerator, ins: PtxInstruction) -> str:
    """The class of a float, from its bits without the sign; zeros are normal."""
    kind = ins.words[-1]
    infinity, least = {"f32": (0x7F800000, 0x00800000), "f64": (0x7FF << 52, 1 << 52)}[kind]
    size = f"({g.read(ins.operands[1], kind)} & {(1 << bits_of(kind) - 1) - 1})"
    return {
        "finite": f"({size} < {infinity})",
        "infinite": f"({size} == {infinity})",
        "number": f"({size} <= {infinity})",
        "notanumber": f"({size} > {infinity})",
        "normal": f"(({size} < {infinity}) & (({size} >= {least}) | ({size} == 0)))",
        "subnormal": f"(({size} < {least}) & ({size} != 0))",
    }[ins.words[1]]
