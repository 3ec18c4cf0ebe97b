"""Python source for instructions that only compute.

Runs of arithmetic lie between two instructions that touch memory or other threads. Each run becomes one Python function
of (R, W): R the list of a warp's registers, W the warp, for its special registers. The source is plain expressions over
`values.py` and `floats.py`. PTX that it does not cover is refused when the kernel is loaded, with its line.

Semantics: PTX ISA, "Instruction Set", by the names of the instructions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache

import numpy as np

from ...dtypes import dtype
from ...errors import PtxError
from ..machine.launch import CLOCKS, SPECIAL
from . import floats, rounding, values, video
from .forms import form_of
from .parser import PtxInstruction, PtxKernel, PtxOperand

# Exceptions from reading an instruction whose words or operands fit no form.
UNREADABLE = (ValueError, LookupError, TypeError, StopIteration)
_GENERIC = re.compile(r"generic\(\s*([\w$@.]+)\s*\)")
# The start of parameter space, and of shared memory among generic addresses: no process has memory from 2**51 on, so
# that a pointer to it that a kernel follows means no window.
PARAMETER_BASE = 0x10000
SHARED_WINDOW = 1 << 52
LOCAL_WINDOW, LOCAL_BYTES = 1 << 51, 1 << 20  # of each thread's own memory
MASKS = {8: "255", 16: "65535", 32: "M32", 64: "M64"}
HALVES = {"f16": "f16", "bf16": "bf16", "f16x2": "f16", "bf16x2": "bf16"}
NAMES: dict[str, object] = {
    **{name: value for name, value in vars(values).items() if not name.startswith("_")},
    **{name: value for name, value in vars(floats).items() if not name.startswith("_")},
    **{name: value for name, value in vars(rounding).items() if not name.startswith("_")},
    "scalar_video": video.scalar_video,
    "simd_video": video.simd_video,
}


@cache
def bits_of(kind: str) -> int:
    """Bits of a type such as "s32" or "b64"; 1 for pred."""
    if kind == "pred":
        return 1
    if kind.endswith("x2"):
        return 64 if kind == "f32x2" else 32
    if kind in ("u8x4", "s8x4"):
        return 32
    found = re.search(r"\d+", kind)
    return int(found.group()) if found else 0


class CodeGenerator:
    """Python expressions for a kernel's operands and instructions; symbols: name -> address."""

    def __init__(self, kernel: PtxKernel, symbols: Mapping[str, int]) -> None:
        self.index = {name: i for i, name in enumerate(kernel.registers)}
        self.kinds = kernel.registers
        self.symbols = symbols
        self.shared = {symbol.name for symbol in kernel.shared}
        self.target = kernel.target

    # ------------------------------------------------------------ operands

    def read(self, operand: PtxOperand, kind: str = "b32", any_width: bool = False) -> str:
        """The operand's bits as an expression, from a register of the type's width unless `any_width`."""
        if operand.kind == "reg":
            if not any_width and (wrong := self.misfit(operand, bits_of(kind))):
                raise ValueError(wrong)
            text = f"R[{self.index[operand.text]}]"
            return f"({text} ^ True)" if operand.negated else text
        if operand.kind == "special":
            name = special(operand)
            return "W.clock({}, {}, {})".format(*CLOCKS[name]) if name in CLOCKS else f"W.special[{name!r}]"
        if operand.kind == "number":
            return str(number(operand.text, bits_of(kind)))
        if operand.kind == "symbol":
            name, _, offset = operand.text.partition("+")
            if (generic := _GENERIC.fullmatch(name.strip())) is not None:
                name = generic.group(1)
            if name.strip() in ("true", "false"):
                return name.strip().capitalize()
            if name.strip() not in self.symbols:
                raise ValueError(f"unknown symbol {operand.text}")
            address = self.symbols[name.strip()] + int(offset or 0)
            return f"({address} | W.window)" if name.strip() in self.shared else str(address)
        raise ValueError(f"{operand.text} is not a value")

    def misfit(self, operand: PtxOperand, bits: int) -> str:
        """The error of a register of another width, or "". Only `cvt`, `ld` and `st` take wider ones."""
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
        """The bits of a packed pair as an expression. It lies in the low bits of a register of any width."""
        return self.read(operand, self.kinds.get(operand.text, "b32"))

    def signed(self, operand: PtxOperand, kind: str, wider: bool = False) -> str:
        """The operand's value as an expression, signed where its type is. `wider`: its register may be."""
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
            if ins.words[0] not in UNTABLED:
                self.check(ins)
            found = rule(self, ins)
        except UNREADABLE as error:
            raise PtxError(f"{ins.where}: {ins.text}: unknown form of {ins.words[0]}: {error}") from None
        # (operand, expression) pairs of an instruction that writes several registers
        pairs = found if isinstance(found, list) else [(ins.operands[0], found)]
        assigned = [self.assigned(ins, target, text) for target, text in pairs if target.kind != "sink"]
        # All at once: the second expression may read the register that the first one writes.
        return " = ".join(", ".join(side) for side in zip(*assigned)) or "pass"

    def check(self, ins: PtxInstruction) -> None:
        """Raise ValueError unless opcode and operands are a form of the target."""
        form = form_of(ins.opcode, len(ins.operands), self.target)
        for operand, kind in zip(ins.operands, form.operands, strict=True):
            if kind[2:3] == ":":
                self.fits_vector(operand, int(kind[1]), kind[3:])
                continue
            whole, _, beside = kind.partition("|")
            parts = operand.parts if operand.kind == "pair" else (operand,)
            if operand.kind == "pair" and not beside:
                raise ValueError(f"{operand.text} is a pair, where one register is needed")
            for part, type_ in zip(parts, (whole, "pred"), strict=False):
                self.fits(part, type_.lstrip("*"), type_[:1] == "*", bool(beside))

    def fits_vector(self, operand: PtxOperand, count: int, kind: str) -> None:
        """Raise ValueError unless an operand is a vector of that many elements of a type."""
        parts = elements_of(operand)
        if len(parts) != count:
            raise ValueError(f"{operand.text} is no vector of {count} .{kind}")
        for part in parts:
            self.fits(part, kind, False, True)

    def fits(self, operand: PtxOperand, kind: str, wider: bool, beside: bool) -> None:
        """Raise ValueError for a register or literal of another width or class than a type."""
        kind = "pred" if kind == "p" else kind
        if kind == "address":  # an integer of any width
            found = self.kinds.get(operand.text, "b64")
            if _class(found) not in ("b", "integer") or bits_of(found) > 64:
                raise ValueError(f"{operand.text} is a register of type .{found}, where an address is needed")
            return
        if operand.kind == "number" and (_is_float(operand.text), kind[0]) in ((True, "u"), (True, "s"), (False, "f")):
            what = "a float" if _is_float(operand.text) else "an integer"
            raise ValueError(f"{operand.text} is {what}, where .{kind} is needed")
        if operand.kind == "number" and kind[0] == "b" and _is_float(operand.text):
            bits = 32 if operand.text.lstrip("-")[:2].lower() == "0f" else 64  # PTX ISA, "Floating-Point Constants"
            if bits != bits_of(kind):
                raise ValueError(f"{operand.text} is a float of {bits} bits, where .{kind} is needed")
        if operand.kind == "sink" and not beside:
            raise ValueError("a result of it cannot be dropped")
        if operand.kind != "reg" or kind == "i":
            return
        bits, declared = bits_of(kind), self.kinds[operand.text]
        if (wrong := self.misfit(operand, bits)) and not (wider and bits_of(declared) > bits):
            raise ValueError(wrong)
        if _class(kind) != _class(declared) and "b" not in (_class(kind), _class(declared)):
            raise ValueError(f"{operand.text} is a register of type .{declared}, where .{kind} is needed")

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


def _class(kind: str) -> str:
    """The class of a type: integers pass for each other, a float for itself, and bits ("b") for all."""
    return "b" if kind[0] == "b" and kind[:2] != "bf" else "integer" if kind[0] in "us" and kind[:2] != "ue" else kind


def _is_float(text: str) -> bool:
    """True for the text of a float literal."""
    text = text.lstrip("-").lower()
    return text[:2] in ("0f", "0d") or "." in text or (text[:2] != "0x" and "e" in text)


def elements_of(operand: PtxOperand) -> Sequence[PtxOperand]:
    """The elements of a vector, or of a special register of four such as %tid. None of another operand."""
    if operand.kind == "special" and f"{operand.text}.w" in SPECIAL:
        return [PtxOperand("special", f"{operand.text}.{element}") for element in "xyzw"]
    return operand.parts if operand.kind == "vector" else ()


def special(operand: PtxOperand) -> str:
    """The name of a special register. Raises ValueError for one that is not known."""
    if operand.text not in SPECIAL:
        raise ValueError(f"{operand.text} is neither declared nor a special register")
    return operand.text


def number(text: str, bits: int) -> int:
    """The bits of a literal. Decimal, hexadecimal, octal, binary, a float, or a float's bits (0f..., 0d...).

    >>> number("-1", 16), number("017", 32), hex(number("1.5", 32)), hex(number("0d3FF8000000000000", 32))
    (65535, 15, '0x3fc00000', '0x3fc00000')
    """
    text = text.rstrip("U")
    sign = 1 << bits - 1 if text[0] == "-" else 0
    head = text.lstrip("-")[:2].lower()
    if head == "0f":
        return int(text.lstrip("-")[2:], 16) ^ sign
    if _is_float(text):
        raw = int(text.lstrip("-")[2:], 16) if head == "0d" else None
        value = float(text.lstrip("-")) if raw is None else float(np.uint64(raw).view(np.float64))
        found = np.float32(value).view(np.uint32) if bits == 32 else np.float64(value).view(np.uint64)
        return int(found) ^ sign
    if head[0] == "0" and head[1:].isdigit():
        return int(text, 8) & ((1 << bits) - 1)
    return int(text, 0) & ((1 << bits) - 1)


Rule = Callable[[CodeGenerator, PtxInstruction], "str | list[tuple[PtxOperand, str]]"]
RULES: dict[str, Rule] = {}


UNTABLED: set[str] = set()  # instructions whose rule checks their form


def rule(*names: str, checks: bool = True) -> Callable[[Rule], Rule]:
    """Register a rule for instructions of these names; checks: their forms are those of `forms.py`."""

    def register(function: Rule) -> Rule:
        for name in names:
            RULES[name] = function
            if not checks:
                UNTABLED.add(name)
        return function

    return register


def mask_of_type(kind: str) -> str:
    """The mask of a type's bits, by its name in generated code."""
    return MASKS[bits_of(kind)]


def wrapped(text: str, bits: int) -> str:
    """An expression modulo 2**bits: 64-bit arrays wrap by themselves, ints need the mask."""
    return f"(({text}) & {MASKS[bits]})"


def kind_of(name: str) -> str:
    """The name of a number format in generated code."""
    return f"KIND_{dtype(name).name}"


KINDS = ("f64", "f32", "f16", "bf16", "e4m3", "e5m2", "e2m1", "e3m2", "e2m3", "ue8m0")
NAMES |= {f"KIND_{kind}": dtype(kind) for kind in KINDS} | {"np": np}
