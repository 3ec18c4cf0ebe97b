"""Python source for instructions that only compute.

Runs of arithmetic lie between two instructions that touch memory or other threads. Each run becomes one Python function
of (R, W): R the list of a warp's registers, W the warp, for its special registers. The source is plain expressions over
`values.py` and `floats.py`. PTX that it does not cover is refused when the kernel is loaded, with its line.

Semantics: PTX ISA, "Instruction Set", by the names of the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache

import numpy as np

from ...dtypes import dtype
from ...errors import PtxError
from ..machine.launch import SPECIAL
from . import floats, values
from .parser import PtxInstruction, PtxKernel, PtxOperand

# Exceptions from reading an instruction whose words or operands fit no form.
UNREADABLE = (ValueError, LookupError, TypeError, StopIteration)
# The start of parameter space, and of shared memory among generic addresses.
PARAMETER_BASE = 0x10000
SHARED_WINDOW = 0x7F0000000000
MASKS = {8: "255", 16: "65535", 32: "M32", 64: "M64"}
COMPARE = {
    "eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "lo": "<", "ls": "<=", "hi": ">", "hs": ">=",
}  # fmt: skip
# f32 comparisons that hold for NaN, by the name of the ordered one.
UNORDERED = {"equ": "eq", "neu": "ne", "ltu": "lt", "leu": "le", "gtu": "gt", "geu": "ge"}
HALVES = {"f16": "f16", "bf16": "bf16", "f16x2": "f16", "bf16x2": "bf16"}
# Suffixes of float instructions without effect here: results are rounded to nearest, or better than required.
ROUNDING = {"rn", "approx", "full", "sync"}
NAMES: dict[str, object] = {
    **{name: value for name, value in vars(values).items() if not name.startswith("_")},
    **{name: value for name, value in vars(floats).items() if not name.startswith("_")},
}


@cache
def bits_of(kind: str) -> int:
    """Bits of a type such as "s32" or "b64"; 1 for pred."""
    if kind == "pred":
        return 1
    if kind.endswith("x2"):
        return 64 if kind == "f32x2" else 32
    found = re.search(r"\d+", kind)
    return int(found.group()) if found else 0


class CodeGenerator:
    """Python expressions for a kernel's operands and instructions; symbols: name -> address."""

    def __init__(self, kernel: PtxKernel, symbols: Mapping[str, int]) -> None:
        self.index = {name: i for i, name in enumerate(kernel.registers)}
        self.kinds = kernel.registers
        self.symbols = symbols
        self.shared = {symbol.name for symbol in kernel.shared}

    # ------------------------------------------------------------ operands

    def read(self, operand: PtxOperand, kind: str = "b32", any_width: bool = False) -> str:
        """The operand's bits as an expression, from a register of the type's width unless `any_width`."""
        if operand.kind == "reg":
            if not any_width and (wrong := self.misfit(operand, bits_of(kind))):
                raise ValueError(wrong)
            text = f"R[{self.index[operand.text]}]"
            return f"({text} ^ True)" if operand.negated else text
        if operand.kind == "special":
            return f"W.special[{special(operand)!r}]"
        if operand.kind == "number":
            return str(number(operand.text, bits_of(kind)))
        if operand.kind == "symbol":
            name, _, offset = operand.text.partition("+")
            if name.strip() in ("true", "false"):
                return name.strip().capitalize()
            if name.strip() not in self.symbols:
                raise ValueError(f"unknown symbol {operand.text}")
            address = self.symbols[name.strip()] + int(offset or 0)
            return f"({address} | W.window)" if name.strip() in self.shared else str(address)
        raise ValueError(f"{operand.text} is not a value")

    def misfit(self, operand: PtxOperand, bits: int) -> str:
        """The error of a register of another width, or "": only `cvt`, `ld` and `st` take wider ones."""
        found = bits_of(self.kinds[operand.text])
        return "" if found == bits else f"{operand.text} is a register of {found} bits, where one of {bits} is needed"

    def low(self, operand: PtxOperand, kind: str) -> str:
        """The bits of a type as an expression, from a register that may be wider."""
        if operand.kind != "reg" or (found := bits_of(self.kinds[operand.text])) == bits_of(kind):
            return self.read(operand, kind)
        text, bits = f"R[{self.index[operand.text]}]", bits_of(kind)
        if found < bits:
            raise ValueError(f"{operand.text} is a register of {found} bits, narrower than .{kind}")
        text = f"narrow({text})" if found == 64 else text
        return f"({text} & {MASKS[bits]})" if bits < 32 else text

    def packed(self, operand: PtxOperand) -> str:
        """The bits of a packed pair as an expression: it lies in the low bits of a register of any width."""
        return self.read(operand, self.kinds.get(operand.text, "b32"))

    def signed(self, operand: PtxOperand, kind: str, wider: bool = False) -> str:
        """The operand's value as an expression, signed where its type is; `wider`: its register may be."""
        if operand.kind == "number":
            bits = bits_of(kind)
            value = number(operand.text, bits)
            return str(value - (1 << bits) if kind[0] == "s" and value >> bits - 1 else value)
        text = self.low(operand, kind) if wider else self.read(operand, kind)
        return f"s{bits_of(kind)}({text})" if kind[0] == "s" else text

    # ------------------------------------------------------------ instructions

    def statement(self, ins: PtxInstruction) -> str | None:
        """The instruction as Python, or None if it does more than compute. Raises PtxError for unknown forms."""
        rule = RULES.get(ins.words[0])
        if rule is None or (ins.words[0] == "add" and "noftz" in ins.words):
            return None
        try:
            if ins.words[0] in KINDS_OF and not KINDS_OF[ins.words[0]].fullmatch(ins.words[-1]):
                raise ValueError(f".{ins.words[-1]} is not a type of it")
            found = rule(self, ins)
        except UNREADABLE as error:
            raise PtxError(f"{ins.where}: {ins.text}: unknown form of {ins.words[0]}: {error}") from None
        if found is None:
            return None
        # (operand, expression) pairs of an instruction that writes several registers
        pairs = found if isinstance(found, list) else [(ins.operands[0], found)]
        if ins.words[0] != "cvt":
            for target, _ in pairs:
                if target.kind == "reg" and (wrong := self.misfit(target, result_bits(ins) // len(pairs))):
                    raise PtxError(f"{ins.where}: {ins.text}: {wrong}")
        assigned = [self.assigned(ins, target, text) for target, text in pairs if target.kind != "sink"]
        # All at once: the second expression may read the register that the first one writes.
        return " = ".join(", ".join(side) for side in zip(*assigned)) or "pass"

    def assigned(self, ins: PtxInstruction, target: PtxOperand, text: str) -> tuple[str, str]:
        """(register, its new value): the text where the instruction's predicate holds."""
        if target.kind != "reg":
            raise PtxError(f"{ins.where}: {ins.text}: cannot write to {target.text}")
        place = f"R[{self.index[target.text]}]"
        if ins.predicate is None:
            return place, text
        guard, choose = f"R[{self.index[ins.predicate]}]", self.choose(target)
        return place, f"{choose}({guard} ^ {ins.negated}, {text}, {place})"

    def choose(self, target: PtxOperand) -> str:
        """The function that selects between two values of a register."""
        return "select64" if bits_of(self.kinds.get(target.text, "b32")) == 64 else "select"


def result_bits(ins: PtxInstruction) -> int:
    """Bits that an instruction writes, of all its targets together; `cvt` may write wider registers."""
    name, bits = ins.words[0], bits_of(ins.words[-1])
    if name == "setp":
        return max(1, len(ins.operands[0].parts))
    if name in ("popc", "clz", "bfind"):
        return 32
    return 2 * bits if name in ("mul", "mad") and "wide" in ins.words else bits


def special(operand: PtxOperand) -> str:
    """The name of a special register. Raises ValueError for one that is not known."""
    if operand.text not in SPECIAL:
        raise ValueError(f"{operand.text} is neither declared nor a special register")
    return operand.text


def number(text: str, bits: int) -> int:
    """The bits of a literal: decimal, hexadecimal, binary, or the bits of a float (0f..., 0d...)."""
    text = text.rstrip("U")
    if text[:2] in ("0f", "0F", "0d", "0D"):
        return int(text[2:], 16)
    return int(text, 0) & ((1 << bits) - 1)


_INTEGER, _BITS, _FLOAT = r"[us](16|32|64)", r"b(16|32|64)", r"b?f16(x2)?|f32(x2)?|f64"
_ANY = r"[bus](16|32|64)|f32|f64"
# The types that an instruction may have; those of cvt are two.
KINDS_OF = {
    name: re.compile(kinds)
    for names, kinds in {
        ("add", "sub", "mul", "min", "max"): f"{_INTEGER}|{_FLOAT}",
        ("mad", "div"): f"{_INTEGER}|f32|f64",
        ("rem",): _INTEGER,
        ("fma",): _FLOAT,
        ("neg", "abs"): f"s(16|32|64)|{_FLOAT}",
        ("rcp", "sqrt", "rsqrt", "copysign"): r"f32|f64",
        ("lg2", "sin", "cos"): r"f32",
        ("ex2", "tanh"): r"b?f16(x2)?|f32",
        ("mov",): rf"{_ANY}|b128|pred",
        ("and", "or", "xor", "not"): f"{_BITS}|pred",
        ("cnot", "shl"): _BITS,
        ("shr",): r"[bus](16|32|64)",
        ("shf", "lop3", "prmt"): r"b32",
        ("bfe", "bfind"): r"[us](32|64)",
        ("bfi", "brev", "popc", "clz"): r"b(32|64)",
        ("selp",): _ANY,
        ("setp",): f"{_ANY}|{_FLOAT}",
        ("cvta",): r"u(32|64)",
    }.items()
    for name in names
}

Rule = Callable[[CodeGenerator, PtxInstruction], "str | list[tuple[PtxOperand, str]] | None"]
RULES: dict[str, Rule] = {}


def rule(*names: str) -> Callable[[Rule], Rule]:
    """Register a rule for instructions of these names."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
        return function

    return register


def _only(ins: PtxInstruction, *allowed: str) -> None:
    """Refuse words of the opcode that are not known."""
    for word in ins.words[1:-1]:
        if word not in allowed:
            raise ValueError(f".{word}")


def _mask(kind: str) -> str:
    return MASKS[bits_of(kind)]


@rule("mov")
def _mov(g: CodeGenerator, ins: PtxInstruction) -> str | list[tuple[PtxOperand, str]]:
    kind, (target, source) = ins.words[-1], ins.operands
    _only(ins)
    if target.kind == "vector":
        each = bits_of(kind) // len(target.parts)
        text = g.read(source, kind)
        return [(part, _field(text, i * each, each, bits_of(kind))) for i, part in enumerate(target.parts)]
    if source.kind == "vector":
        return _joined([g.read(part, f"b{bits_of(kind) // len(source.parts)}") for part in source.parts], bits_of(kind))
    return g.read(source, kind)


def _field(text: str, low: int, width: int, whole: int) -> str:
    if whole == 64:
        half = f"narrow({text})" if low < 32 else f"high({text})"
        return half if width == 32 else f"({half} >> {low % 32} & {(1 << width) - 1})"
    return f"({text} >> {low} & {(1 << width) - 1})"


def _joined(parts: list[str], whole: int) -> str:
    each = whole // len(parts)
    if whole == 128:
        return f"join128({', '.join(parts)})"
    if whole == 64:
        half = len(parts) // 2
        low, up = (_joined(p, 32) if len(p) > 1 else p[0] for p in (parts[:half], parts[half:]))
        return f"join64({low}, {up})"
    return "(" + " | ".join(f"({part}) << {i * each}" if i else f"({part})" for i, part in enumerate(parts)) + ")"


@rule("add", "sub", "mul", "mad", "fma", "div", "min", "max")
def _arithmetic(g: CodeGenerator, ins: PtxInstruction) -> str | None:
    name, kind = ins.words[0], ins.words[-1]
    if kind[0] == "f" or kind in HALVES:
        return _float_arithmetic(g, ins)
    a, b, *c = ins.operands[1:]
    bits, mask = bits_of(kind), _mask(kind)
    if name in ("add", "sub"):
        _only(ins, "sat")
        if "sat" in ins.words:
            exact = f"{g.signed(a, kind)} {'+' if name == 'add' else '-'} {g.signed(b, kind)}"
            return f"least(largest({exact}, {-(1 << bits - 1)}), {(1 << bits - 1) - 1}) & {mask}"
        return _wrapped(f"{g.read(a, kind)} {'+' if name == 'add' else '-'} {g.read(b, kind)}", bits)
    if name in ("min", "max"):
        _only(ins, *(("relu",) if kind == "s32" else ()))
        chosen = f"{'least' if name == 'min' else 'largest'}({g.signed(a, kind)}, {g.signed(b, kind)})"
        if "relu" in ins.words:
            chosen = f"largest({chosen}, 0)"
        return f"signed_wide({chosen})" if kind == "s64" else chosen if kind[0] == "u" else f"{chosen} & {mask}"
    if name == "div":
        _only(ins)
        chosen = f"quotient({g.signed(a, kind)}, {g.signed(b, kind)})"
        return f"signed_wide({chosen})" if bits == 64 else f"{chosen} & {mask}"
    part = ins.words[1]
    _only(ins, "lo", "hi", "wide")
    if name == "mad" or name == "mul":
        product = _product(g, a, b, kind, part)
        if name == "mul":
            return product
        whole = 2 * bits if part == "wide" else bits
        return _wrapped(f"({product}) + {g.read(c[0], f'{kind[0]}{whole}')}", whole)
    raise ValueError(kind)


def _wrapped(text: str, bits: int) -> str:
    # 64-bit arrays wrap by themselves and take no negative mask; ints need it.
    return f"(({text}) & {MASKS[bits]})"


def _product(g: CodeGenerator, a: PtxOperand, b: PtxOperand, kind: str, part: str) -> str:
    bits = bits_of(kind)
    if part == "lo":
        return _wrapped(f"{g.read(a, kind)} * {g.read(b, kind)}", bits)
    if part == "wide":
        if kind == "s32":
            return f"signed_wide({g.signed(a, kind)} * {g.signed(b, kind)})"
        if kind == "u32":
            return f"wide({g.read(a, kind)}) * wide({g.read(b, kind)})"
        return f"({g.signed(a, kind)} * {g.signed(b, kind)}) & M32"
    if kind == "u32":
        return f"high(wide({g.read(a, kind)}) * wide({g.read(b, kind)}))"
    if kind == "s32":
        return f"({g.signed(a, kind)} * {g.signed(b, kind)} >> 32) & M32"
    if kind in ("u16", "s16"):
        return f"({g.signed(a, kind)} * {g.signed(b, kind)} >> 16) & 65535"
    if kind == "u64":
        return f"wide(by_lane(lambda x, y: x * y >> 64, {g.read(a, kind)}, {g.read(b, kind)}))"
    if kind == "s64":
        return f"wide(by_lane(lambda x, y: s64(x) * s64(y) >> 64 & M64, {g.read(a, kind)}, {g.read(b, kind)}))"
    raise ValueError(f"mul.hi.{kind}")


def _float_arithmetic(g: CodeGenerator, ins: PtxInstruction) -> str:
    name, kind = ins.words[0], ins.words[-1]
    chooses = name in ("min", "max")
    _only(ins, *ROUNDING, "ftz", "sat", *(("NaN",) if chooses else ()))
    if chooses and len(ins.operands) != 3 and not (len(ins.operands) == 4 and kind == "f32"):
        raise ValueError(f"{name} of {len(ins.operands) - 1} operands")
    operands = [g.read(o, kind) for o in ins.operands[1:]]
    name = "fma" if name == "mad" else f"{name}.NaN" if "NaN" in ins.words else name
    flush, saturate = "ftz" in ins.words, "sat" in ins.words
    if kind in ("f32", "f32x2"):
        if name == "fma":
            core = f"lambda a, b, c: fma32(a, b, c, {flush}, {saturate})"
        else:
            core = f"lambda a, b: binary32({name!r}, a, b, {flush}, {saturate})"
            if len(operands) == 3 and kind == "f32" and name[:3] in ("min", "max"):
                operands = [f"({core})({operands[0]}, {operands[1]})", operands[2]]
        if kind == "f32x2":
            return f"pair32({core}, {', '.join(operands)})"
        return f"({core})({', '.join(operands)})"
    if kind == "f64":
        return f"fma64({', '.join(operands)})" if name == "fma" else f"binary64({name!r}, {', '.join(operands)})"
    if saturate:
        raise ValueError(".sat of half precision")
    core = "fma_odd" if name == "fma" else f"BINARY[{name!r}]"
    wrapper = "packed" if kind.endswith("x2") else "single"
    return f"{wrapper}({core}, KIND_{HALVES[kind]}, {', '.join(operands)})"


@rule("rcp", "sqrt", "rsqrt", "ex2", "lg2", "sin", "cos", "tanh")
def _function(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind = ins.words[-1]
    _only(ins, *ROUNDING, "ftz")
    text = g.read(ins.operands[1], kind)
    if kind == "f32":
        return f"unary32({ins.words[0]!r}, {text}, {'ftz' in ins.words})"
    if kind == "f64":
        return f"bits64(UNARY[{ins.words[0]!r}](f64({text})))"
    wrapper = "packed" if kind.endswith("x2") else "single"
    return f"{wrapper}(UNARY[{ins.words[0]!r}], KIND_{HALVES[kind]}, {text})"


@rule("neg", "abs")
def _sign(g: CodeGenerator, ins: PtxInstruction) -> str:
    name, kind, source = ins.words[0], ins.words[-1], ins.operands[1]
    _only(ins, "ftz")
    text = g.read(source, kind)
    if kind[0] == "s":
        if name == "neg":
            return f"signed_wide(-s64({text}))" if kind == "s64" else f"(-{text}) & {_mask(kind)}"
        value = g.signed(source, kind)
        return f"signed_wide(abs({value}))" if kind == "s64" else f"abs({value}) & {_mask(kind)}"
    sign = {"f32": 1 << 31, "f64": 1 << 63, "f16": 1 << 15, "bf16": 1 << 15}.get(kind, 0x80008000)
    whole = (1 << bits_of(kind)) - 1
    return f"({text} ^ {sign})" if name == "neg" else f"({text} & {whole ^ sign})"


@rule("copysign")
def _copysign(g: CodeGenerator, ins: PtxInstruction) -> str:
    """The sign of a on the magnitude of b."""
    kind = ins.words[-1]
    _only(ins)
    sign = {"f32": 1 << 31, "f64": 1 << 63}[kind]
    a, b = (g.read(operand, kind) for operand in ins.operands[1:])
    return f"({a} & {sign} | {b} & {sign - 1})"


TEMPLATES = {
    "and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}",
    "lop3": "lookup3({}, {}, {}, {})", "prmt": "permute({}, {}, {})",
}  # fmt: skip


@rule(*TEMPLATES)
def _template(g: CodeGenerator, ins: PtxInstruction) -> str:
    _only(ins)
    return TEMPLATES[ins.words[0]].format(*[g.read(operand, ins.words[-1]) for operand in ins.operands[1:]])


@rule("not", "cnot")
def _not(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind, text = ins.words[-1], g.read(ins.operands[1], ins.words[-1])
    if ins.words[0] == "cnot":
        return f"select{'64' if bits_of(kind) == 64 else ''}({text} == 0, 1, 0)"
    return f"{text} ^ True" if kind == "pred" else f"{text} ^ {_mask(kind)}"


@rule("shl", "shr")
def _shift(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind, amount = ins.words[-1], ins.operands[2]
    text, bits = g.read(ins.operands[1], kind), bits_of(kind)
    if amount.kind == "number" and number(amount.text, 32) < bits:
        n = number(amount.text, 32)
        if ins.words[0] == "shl":
            return f"({text} << {n}) & {_mask(kind)}"
        if kind[0] != "s":
            return f"{text} >> {n}"
        if kind != "s64":
            return f"({g.signed(ins.operands[1], kind)} >> {n}) & {_mask(kind)}"
    if ins.words[0] == "shl":
        return f"shift_left({text}, {g.read(amount)}, {bits})"
    return f"shift_right({text}, {g.read(amount)}, {bits}, {kind[0] == 's'})"


@rule("shf")
def _funnel(g: CodeGenerator, ins: PtxInstruction) -> str:
    low, up, amount = (g.read(o) for o in ins.operands[1:])
    if ins.words[1] not in ("l", "r") or ins.words[2:] not in (("clamp", "b32"), ("wrap", "b32")):
        raise ValueError(ins.opcode)
    return f"funnel({low}, {up}, {amount}, {ins.words[1] == 'l'}, {ins.words[2] == 'clamp'})"


@rule("bfe", "bfi", "brev", "popc", "clz", "bfind")
def _bits(g: CodeGenerator, ins: PtxInstruction) -> str:
    name, kind = ins.words[0], ins.words[-1]
    _only(ins, *(("shiftamt",) if name == "bfind" else ()))
    texts = [g.read(o, kind if i < (2 if name == "bfi" else 1) else "b32") for i, o in enumerate(ins.operands[1:])]
    core = {
        "bfe": f"lambda x, p, n: extract(x, p, n, {bits_of(kind)}, {kind[0] == 's'})",
        "bfi": f"lambda a, b, p, n: insert(a, b, p, n, {bits_of(kind)})",
        "brev": f"lambda x: reverse_bits(x, {bits_of(kind)})",
        "popc": "lambda x: x.bit_count()",
        "clz": f"lambda x: {bits_of(kind)} - x.bit_length()",
        "bfind": f"lambda x: leading(x, {kind[0] == 's'}, {bits_of(kind)}, {'shiftamt' in ins.words})",
    }[name]
    found = f"by_lane({core}, {', '.join(texts)})"
    return f"wide({found})" if bits_of(kind) == 64 and name in ("bfe", "bfi", "brev") else found


@rule("rem")
def _rem(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind = ins.words[-1]
    _only(ins)
    left = f"remainder({g.signed(ins.operands[1], kind)}, {g.signed(ins.operands[2], kind)})"
    return f"signed_wide({left})" if kind == "s64" else left if kind == "u64" else f"{left} & {_mask(kind)}"


@rule("selp")
def _selp(g: CodeGenerator, ins: PtxInstruction) -> str:
    _only(ins)
    a, b = (g.read(o, ins.words[-1]) for o in ins.operands[1:3])
    return f"{g.choose(ins.operands[0])}({g.read(ins.operands[3], 'pred')}, {a}, {b})"


@rule("setp", "set")
def _setp(g: CodeGenerator, ins: PtxInstruction) -> str | list[tuple[PtxOperand, str]]:
    kind = ins.words[-1]
    words = [word for word in ins.words[1:-1] if word != "ftz"]
    if ins.words[0] == "set" or not 1 <= len(words) <= 2:
        raise ValueError(ins.opcode)
    a, b = ins.operands[1], ins.operands[2]
    if kind in ("f32", "f64", *HALVES):
        view = f"lambda x: decode(x, KIND_{HALVES.get(kind, kind)})"
        x, y = (f"({view})({g.read(o, kind)})" for o in (a, b))
        ordered = UNORDERED.get(words[0], words[0])
        if words[0] in ("num", "nan"):
            text = f"(({x} == {x}) & ({y} == {y}))" + (" ^ True" if words[0] == "nan" else "")
        else:
            text = f"({x} {COMPARE[ordered]} {y})"
            if words[0] in UNORDERED:
                text = f"({text} | ({x} != {x}) | ({y} != {y}))"
            elif words[0] == "ne":
                text = f"({text} & ({x} == {x}) & ({y} == {y}))"
        text = f"as_predicate({text})"
    else:
        text = f"({g.signed(a, kind)} {COMPARE[words[0]]} {g.signed(b, kind)})"
    target = ins.operands[0]
    other = ""
    if len(words) == 2:
        sign = {"and": "&", "or": "|", "xor": "^"}[words[1]]
        other = f" {sign} {g.read(ins.operands[3], 'pred')}"
    if target.kind == "pair":
        return [(target.parts[0], text + other), (target.parts[1], f"({text} ^ True){other}")]
    return text + other


@rule("cvt")
def _cvt(g: CodeGenerator, ins: PtxInstruction) -> str:
    *words, to, from_ = ins.words[1:]
    for kind in (to, from_):
        if kind[0] in "us" and not kind.endswith("x2") and not re.fullmatch(r"[us](8|16|32|64)", kind):
            raise ValueError(f".{kind} is not a type of it")
    sources = ins.operands[1:]
    if from_ == "s2f6x2":
        _known(words, "rn", "satfinite", "relu", "scaled::n2::ue8m0")
        scale = g.packed(sources[1]) if len(sources) > 1 else "0x7F7F"
        return f"fixed_pair({g.packed(sources[0])}, {scale}, {_kind(to[:-2])}, {'relu' in words})"
    if to.endswith("x2") and from_ == "f32" and len(sources) == 2:
        up, low = (f"decode({g.read(o, from_)}, KIND_f32)" for o in sources)
        return _pair(words, to, up, low)
    if to.endswith("x2") and from_.endswith("x2"):
        kind = _kind(from_[:-2])
        text, bits = g.packed(sources[0]), _field_bits(from_)
        up, low = (f"decode({text} >> {at} & {(1 << bits) - 1}, {kind})" for at in (bits, 0))
        return _pair(words, to, up, low)
    if to[0] in "su" and from_[0] in "su":
        _known(words, "sat")
        return _integer(g, ins, to, from_, "sat" in words)
    if to[0] in "su":
        _known(words, "rni", "rzi", "rmi", "rpi", "ftz", "sat")
        mode = next(word for word in words if word in floats.ROUND)
        text = g.low(sources[0], from_)
        text = f"bits32(flushed(f32({text})))" if "ftz" in words and from_ == "f32" else text
        width = _register(g, ins, to)
        return f"to_integer({text}, {_kind(from_)}, {mode!r}, {bits_of(to)}, {to[0] == 's'}, {width})"
    wide = "wide" if _register(g, ins, "b32" if to == "tf32" else to) > max(32, bits_of(to)) else ""
    if from_[0] in "su":
        _known(words, "rn")
        return f"{wide}(from_integer({g.signed(sources[0], from_, wider=True)}, {_kind(to)}))"
    _known(words, "rn", "ftz", "relu", "sat", "satfinite", "rna", *floats.ROUND)
    if "rna" in words and to != "tf32":
        raise ValueError(".rna")
    text = f"decode({g.low(sources[0], from_)}, {_kind(from_)})"
    if "ftz" in words and from_ == "f32":
        text = f"flushed({text})"
    for word in words:
        if word in floats.ROUND:
            text = f"ROUND[{word!r}]({text})"
    if "sat" in words:
        text = f"saturated({text}, 0, 1)"
    if to == "tf32":
        text = f"tf32(bits32({_limited(words, text, to)}), {'rna' in words})"
        return f"{wide}(limit_tf32({text}))" if "satfinite" in words else f"{wide}({text})"
    text = _limited(words, text, to)
    if to == "f32" and "ftz" in words:
        text = f"flushed(np.float32({text}))"
    text = f"bits32({text})" if to == "f32" else f"bits64({text})" if to == "f64" else f"encode({text}, {_kind(to)})"
    return f"{wide}({text})"


def _limited(words: list[str], text: str, to: str) -> str:
    """A cvt's clamps: .relu turns negative values into 0, .satfinite clamps to the range; NaN stays."""
    if "relu" in words:
        text = f"np.where({text} <= 0, np.float32(0), {text})"
    if "satfinite" in words and to in floats.LARGEST:
        text = f"np.clip({text}, -{floats.LARGEST[to]!r}, {floats.LARGEST[to]!r})"
    return text


def _field_bits(kind: str) -> int:
    """Bits of each half of a packed pair: 6-bit types are padded to bytes."""
    bits = dtype(kind[:-2]).bits
    return 8 if bits == 6 else bits


def _pair(words: list[str], to: str, up: str, low: str) -> str:
    """cvt to a packed pair."""
    kind = to[:-2]
    if kind == "ue8m0":
        _known(words, "rz", "rp", "satfinite")
        halves = [f"scale_bits({x}, {'rp' in words})" for x in (up, low)]
    else:
        _known(words, "rn", "satfinite", "relu")
        halves = [f"encode({_limited(words, x, kind)}, {_kind(kind)})" for x in (up, low)]
    return f"({halves[0]} << {_field_bits(to)} | {halves[1]})"


def _kind(name: str) -> str:
    return f"KIND_{dtype(name).name}"


def _known(words: list[str], *known: str) -> None:
    for word in words:
        if word not in known:
            raise ValueError(f".{word}")


def _integer(g: CodeGenerator, ins: PtxInstruction, to: str, from_: str, saturate: bool) -> str:
    """cvt between integers; a register wider than its type has the type's sign, or zeros, above."""
    source = ins.operands[1]
    value = g.signed(source, from_, wider=True)
    bits, had, register = bits_of(to), bits_of(from_), _register(g, ins, to)
    (low, top), (least, most) = _range(to), _range(from_)
    fits = low <= least and most <= top
    if saturate:
        value = f"largest({value}, {low})" if low > least else value
        value = f"least({value}, {top})" if top < most else value
    if had < 64 and register < 64:
        if fits or (saturate and low == 0):
            return f"({value}) & {MASKS[register]}" if least < 0 else value
        if to[0] == "s" and register > bits and not saturate:
            value = _sign_extended(value, to)
        return f"({value}) & {MASKS[register if to[0] == 's' else bits]}"
    if had == 64 and bits == 64 and (fits or not saturate):
        return g.read(source, from_)
    if had < 64 and fits:
        return f"signed_wide({value})" if least < 0 else f"wide({value})"
    return f"converted({value}, {bits}, {to[0] == 's'}, {register})"


def _register(g: CodeGenerator, ins: PtxInstruction, kind: str) -> int:
    """Bits of the register that a cvt writes. Raises ValueError for one that is narrower than its type."""
    target = ins.operands[0]
    register, bits = bits_of(g.kinds.get(target.text, kind)), bits_of(kind)
    if target.kind == "reg" and register < bits:
        raise ValueError(f"{target.text} is a register of {register} bits, narrower than .{kind}")
    return max(register, bits)


def _range(kind: str) -> tuple[int, int]:
    bits = bits_of(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _sign_extended(text: str, kind: str) -> str:
    half = 1 << bits_of(kind) - 1
    return f"((({text}) & {_mask(kind)} ^ {half}) - {half})"


@rule("cvta")
def _cvta(g: CodeGenerator, ins: PtxInstruction) -> str:
    text = g.read(ins.operands[1], "b64")
    if ins.words[1] == "to":
        return f"({text} - {SHARED_WINDOW})" if ins.words[2].startswith("shared") else text
    return f"({text} + {SHARED_WINDOW})" if ins.words[1].startswith("shared") else text


KINDS = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2", "e2m1", "e3m2", "e2m3", "ue8m0")
NAMES |= {f"KIND_{kind}": dtype(kind) for kind in KINDS} | {"np": np}
