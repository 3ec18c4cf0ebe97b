"""The PTX parser: kernels with parameters, registers, shared symbols, labels and instructions.

Nothing is interpreted here. An operand is split into its parts. A name inside a `{ }` scope, as inline assembly makes
them, is renamed, so every register and label of a kernel has one name. `.loc` lines are kept, so messages about an
instruction can name its source line.

Grammar: PTX ISA, "Syntax", "Directives"; operands: "Instruction Operands".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ...errors import PtxError

# Bounds of a kernel's declarations. Hardware has none for virtual registers, and 32764 bytes of parameters.
MAX_REGISTERS, MAX_PARAMETER_BYTES, MAX_SHARED_BYTES, MAX_SCOPES = 1 << 17, 32764, 1 << 24, 256
MAX_ALIGNMENT, MAX_BRACKETS = 1 << 16, 64
# Sizes in bytes of the types in declarations.
SIZES = {"pred": 1, **{f"{k}{n}": n // 8 for k in "bsuf" for n in (8, 16, 32, 64, 128)}}


class PtxOperand(NamedTuple):
    """One operand of an instruction.

    kind     "reg", "special" (%tid.x), "number", "symbol", "vector" ({a, b}), "address" ([a+16], [map, {x, y}]),
             "pair" (a|b), or "sink" (_)
    text     as it was written, registers under their unique names
    parts    of a vector or pair: its elements; of an address: the base, then coordinates
    offset   bytes added to the base of an address
    negated  written with a "!"
    """

    kind: str
    text: str
    parts: tuple[PtxOperand, ...] = ()
    offset: int = 0
    negated: bool = False


class Source(NamedTuple):
    """The source line of an instruction."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class PtxInstruction:
    """One instruction.

    pc         its number in the kernel
    line       of the PTX text, from 1
    text       the statement
    opcode     as written, "ld.shared.b32"
    words      the opcode split at dots
    operands   in order
    predicate  the register that guards it, or None; negated: runs where that is false
    source     the line of the original program, where the text has line information
    """

    pc: int
    line: int
    text: str
    opcode: str
    words: tuple[str, ...]
    operands: tuple[PtxOperand, ...]
    predicate: str | None = None
    negated: bool = False
    source: Source | None = None

    @property
    def where(self) -> str:
        """The place in words: the PTX line, and the source line where it is known."""
        return f"PTX line {self.line}" + (f" ({self.source})" if self.source else "")

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Parameter(NamedTuple):
    """A kernel parameter: its name, and its bytes [offset, offset + size) in parameter space."""

    name: str
    offset: int
    size: int


class SharedSymbol(NamedTuple):
    """A shared-memory symbol; size 0: the dynamic part, which starts after all others."""

    name: str
    align: int
    size: int


@dataclass
class PtxKernel:
    """One `.entry` of a PTX module.

    registers    name -> type, as declared
    labels       name -> pc of the instruction that follows
    directives   performance directives by name, ".reqntid" -> (128, 1, 1)
    """

    name: str
    target: str
    parameters: tuple[Parameter, ...] = ()
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    instructions: list[PtxInstruction] = field(default_factory=list)
    shared: tuple[SharedSymbol, ...] = ()
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<PtxKernel {self.name[:60]} for {self.target}: {len(self.instructions)} instructions>"

    @property
    def parameter_bytes(self) -> int:
        """Bytes of parameter space."""
        return max((p.offset + p.size for p in self.parameters), default=0)


class _Statement(NamedTuple):
    kind: str  # "label" or "statement"
    text: str
    scopes: tuple[dict[str, str], ...]
    line: int
    source: Source | None


_NAME = re.compile(r"%?[A-Za-z_$][\w$]*")
_ENTRY = re.compile(r"(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)\s*(?:\(([^(){};]*)\))?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d{1,9})\s+)?\.(\w+)\s+(?:\.ptr\b\s*(?:\.(?:const|global|local|shared|param)\b\s*)?)?"
    r"(?:\.align\s+\d{1,9}\s+)?([\w$]+)\s*(?:\[\s*(\d{1,9})\s*\])?"
)
_SHARED = re.compile(
    r"(?:\.extern\s+)?\.shared\s+(?:\.align\s+(\d{1,9})\s+)?\.(\w+)\s+([\w$]+)\s*((?:\[\s*\d{0,9}\s*\]\s*)*)"
)
_REGISTERS = re.compile(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)")
_REGISTER = re.compile(r"(%?[A-Za-z_$][\w$]*)\s*(?:<\s*(\d{1,9})\s*>)?")
_DIRECTIVE = re.compile(r"\.(\w+)((?:\s+\d{1,9})?(?:\s*,\s*\d{1,9})*)")
_LOC = re.compile(r"\s*\.loc\s+(\d{1,9})\s+(\d{1,9})")
_FILE = re.compile(r'^\s*\.file\s+(\d{1,9})\s+"([^"]*)"', re.M)
# Directives without effect here; uses of a .local or .const name are refused.
_IGNORED = {".pragma", ".local", ".const", ".global", ".param", ".branchtargets", ".calltargets", ".callprototype"}


_BLANK, _STOP = re.compile(r"\s*"), re.compile(r"[{};:]")


def parse(text: str) -> list[PtxKernel]:
    """The kernels of a PTX module, in order.

    Raises PtxError for text without `.target` or `.entry`, and for unreadable text, with its line.

    >>> kernel, = parse('''
    ... .version 8.7
    ... .target sm_90a
    ... .visible .entry add(.param .u64 p) { .reg .b32 %r<2>; .reg .b64 %rd<1>;
    ...   ld.param.b64 %rd0, [p];
    ...   ld.global.b32 %r0, [%rd0+4];
    ...   ret; }''')
    >>> kernel.name, kernel.parameters, [i.opcode for i in kernel.instructions]
    ('add', (Parameter(name='p', offset=0, size=8),), ['ld.param.b64', 'ld.global.b32', 'ret'])
    >>> kernel.instructions[1].operands[1]
    PtxOperand(kind='address', text='[%rd0+4]', parts=(PtxOperand(kind='reg', text='%rd0', parts=(), offset=0, \
negated=False),), offset=4, negated=False)
    """
    # Half of a surrogate pair is not a character and could not be printed in a message.
    text = _blank_comments(text.encode("utf-8", "backslashreplace").decode("utf-8"))
    target = re.search(r"\.target\s+(\w+)", text)
    if target is None:
        raise PtxError("PTX line 1: no .target: this is not a PTX module")
    files = {int(number): name for number, name in _FILE.findall(text)}
    entries = list(_ENTRY.finditer(text))
    if not entries:
        raise PtxError(f"PTX line {_line(text, len(text))}: the module ends, and has no .entry")
    first = _body(text, entries[0])
    shared = [_shared(m, _line(text, m.start())) for m in _SHARED.finditer(text, 0, first)]
    return [_kernel(text, entry, target.group(1), shared, files) for entry in entries]


def _line(text: str, at: int) -> int:
    """The line of a place in the text, from 1."""
    return text.count("\n", 0, at) + 1


def _blank_comments(text: str) -> str:
    """Comments replaced by blanks, line ends kept."""

    def blank(m: re.Match[str]) -> str:
        if m.group(0) == "/*":
            raise PtxError(f"PTX line {_line(text, m.start())}: the comment does not end")
        return "\n" * m.group(0).count("\n")

    return re.sub(r"//[^\n]*|/\*.*?\*/|/\*", blank, text, flags=re.S)


def _size(kind: str, what: str) -> int:
    if kind not in SIZES:
        raise PtxError(f"{what}: .{kind} is not a type")
    return SIZES[kind]


def _alignment(align: str | None, default: int, what: str) -> int:
    found = default if align is None else int(align)
    if not 1 <= found <= MAX_ALIGNMENT or found & found - 1:
        raise PtxError(f"{what}: an alignment of {found} bytes is not a power of two up to {MAX_ALIGNMENT}")
    return found


def _shared(m: re.Match[str], line: int) -> SharedSymbol:
    align, kind, name, extents = m.groups()
    what = f"PTX line {line}: {' '.join(m.group(0).split())}"
    size = unit = _size(kind, what)
    for extent in re.findall(r"\[\s*(\d*)\s*\]", extents):
        size *= int(extent or 0)
    if size > MAX_SHARED_BYTES:
        raise PtxError(f"{what}: {size} bytes of shared memory, more than {MAX_SHARED_BYTES}")
    return SharedSymbol(name, _alignment(align, unit, what), size)


def _body(text: str, entry: re.Match[str]) -> int:
    """The start of the kernel's body."""
    found = text.find("{", entry.end())
    if found < 0:
        raise PtxError(f"PTX line {_line(text, entry.start())}: the kernel {entry.group(1)} has no body")
    return found


def _kernel(
    text: str, entry: re.Match[str], target: str, shared: list[SharedSymbol], files: dict[int, str]
) -> PtxKernel:
    body = _body(text, entry)
    line = _line(text, entry.start())
    kernel = PtxKernel(entry.group(1), target, _parameters(entry.group(2) or "", line))
    for name, numbers in _DIRECTIVE.findall(text[entry.end() : body]):
        kernel.directives[f".{name}"] = tuple([int(n) for n in re.findall(r"\d+", numbers)])
    statements = list(_statements(text, body, files))
    own = _declare(kernel, statements)
    kernel.shared = (*shared, *own)
    for statement in statements:
        if statement.kind == "label":
            label = _resolved(statement.text, statement.scopes)
            if label in kernel.labels:
                raise PtxError(f"PTX line {statement.line}: the label {statement.text} stands twice")
            kernel.labels[label] = len(kernel.instructions)
        elif not statement.text.startswith("."):
            kernel.instructions.append(_instruction(kernel, statement))
    if not kernel.instructions:
        raise PtxError(f"PTX line {line}: the kernel {kernel.name} has no instructions")
    return kernel


def _parameters(text: str, line: int) -> tuple[Parameter, ...]:
    out: list[Parameter] = []
    offset = 0
    for part in text.split(",") if text.strip() else ():
        m = _PARAMETER.fullmatch(part.strip())
        what = f"PTX line {line}: {' '.join(part.split())!r} among the kernel's parameters"
        if m is None:
            raise PtxError(f"{what} cannot be read")
        align, kind, name, count = m.groups()
        size = _size(kind, what) * int(count or 1)
        unit = _alignment(align, _size(kind, what), what)
        offset = -(-offset // unit) * unit
        out.append(Parameter(name, offset, size))
        offset += size
        if offset > MAX_PARAMETER_BYTES:
            raise PtxError(f"{what}: it ends at byte {offset}, and parameters have {MAX_PARAMETER_BYTES} bytes")
    return tuple(out)


def _statements(text: str, start: int, files: dict[int, str]) -> list[_Statement]:
    """The statements between a kernel's braces, with their scopes and lines."""
    out: list[_Statement] = []
    scopes: list[dict[str, str]] = [{}]
    line = first = _line(text, start)
    opened = 0
    source: Source | None = None
    at, end = start, len(text)
    while at < end:
        begin = _BLANK.match(text, at).end()  # type: ignore[union-attr]
        line += text.count("\n", at, begin)
        at = begin
        char = text[at : at + 1]
        if char == "{":
            opened += 1
            if len(scopes) > MAX_SCOPES:
                raise PtxError(f"PTX line {line}: more than {MAX_SCOPES} scopes, one in the other")
            scopes.append({"#": str(opened)})
            at += 1
            continue
        if char == "}":
            scopes.pop()
            if len(scopes) == 1:
                return out
            at += 1
            continue
        loc = _LOC.match(text, at) if char == "." else None
        if loc is not None:  # a directive that ends with its line
            number, row = int(loc.group(1)), int(loc.group(2))
            source = Source(files.get(number, f"file {number}"), row) if row else None
            at = text.find("\n", at)
            if at < 0:
                break
            continue
        depth = 0
        for stop in _STOP.finditer(text, at):
            at = stop.start()
            char = text[at]
            depth += (char == "{") - (char == "}")
            if char == ";" and not depth:
                out.append(_Statement("statement", " ".join(text[begin:at].split()), tuple(scopes), line, source))
                break
            if char == ":" and text[at + 1] != ":" and text[at - 1] != ":":
                label = text[begin:at].strip()
                if _NAME.fullmatch(label):
                    out.append(_Statement("label", label, tuple(scopes), line, source))
                    break
        else:
            break
        line += text.count("\n", begin, at)
        at += 1
    raise PtxError(
        f"PTX line {first}: the kernel's body, which begins here, does not end: {len(scopes) - 1} open scopes at the "
        "end of the text"
    )


def _declare(kernel: PtxKernel, statements: list[_Statement]) -> list[SharedSymbol]:
    """Enter the registers and labels; those of inner scopes get names of their own. Returns the shared symbols."""
    shared = []
    for kind, text, scopes, line, _ in statements:
        inner = len(scopes) > 2
        directive = text.partition(" ")[0]
        if kind == "label":
            if inner:
                scopes[-1][text] = f"{text}@{scopes[-1]['#']}"
        elif directive == ".reg":
            m = _REGISTERS.fullmatch(text)
            found = [_REGISTER.fullmatch(name.strip()) for name in m.group(2).split(",")] if m is not None else []
            if m is None or m.group(1) not in SIZES or not found or None in found:
                raise PtxError(f"PTX line {line}: cannot read the declaration {text!r}")
            for prefix, count in [one.groups() for one in found if one is not None]:
                if int(count or 1) + len(kernel.registers) > MAX_REGISTERS:
                    raise PtxError(f"PTX line {line}: {text}: more than {MAX_REGISTERS} registers in one kernel")
                names = (prefix,) if count is None else _numbered(prefix, int(count))
                if inner:
                    scopes[-1].update({one: f"{one}@{scopes[-1]['#']}" for one in names})
                    names = tuple([scopes[-1][one] for one in names])
                kernel.registers.update(dict.fromkeys(names, m.group(1)))
        elif directive in (".shared", ".extern"):
            declared = _SHARED.fullmatch(text)
            if declared is None:
                raise PtxError(f"PTX line {line}: cannot read the declaration {text!r}")
            shared.append(_shared(declared, line))
        elif text.startswith(".") and directive not in _IGNORED:
            raise PtxError(f"PTX line {line}: {text}: {directive} is not known here")
    return shared


@lru_cache(maxsize=64)
def _numbered(prefix: str, count: int) -> tuple[str, ...]:
    """%r0, %r1 and so on."""
    return tuple([f"{prefix}{i}" for i in range(count)])


def _resolved(name: str, scopes: tuple[dict[str, str], ...]) -> str:
    for scope in reversed(scopes):
        if name in scope:
            return scope[name]
    return name


def _instruction(kernel: PtxKernel, statement: _Statement) -> PtxInstruction:
    _, text, scopes, line, source = statement
    rest, predicate, negated = text, None, False
    guard = re.match(r"@(!?)(%?[\w$]+)\s+(.*)", text) if text[:1] == "@" else None
    if guard is not None:
        negated, predicate, rest = bool(guard.group(1)), _resolved(guard.group(2), scopes), guard.group(3)
        if (kind := kernel.registers.get(predicate)) != "pred":
            known = "is not declared" if kind is None else f"is a register of type .{kind}, not .pred"
            raise PtxError(f"PTX line {line}: {text}: the guard {predicate} {known}")
    opcode, _, arguments = rest.partition(" ")
    if len(scopes) > 2:
        arguments = _NAME.sub(lambda m: _resolved(m.group(0), scopes), arguments)
    try:
        operands = tuple([_operand(kernel, part) for part in _split(arguments)])
    except ValueError as error:
        raise PtxError(f"PTX line {line}: {text}: {error}") from None
    number = len(kernel.instructions)
    return PtxInstruction(number, line, text, opcode, tuple(opcode.split(".")), operands, predicate, negated, source)


def read_instruction(kernel: PtxKernel, text: str, line: int = 0, source: Source | None = None) -> PtxInstruction:
    """One statement as an instruction of a kernel, with the kernel's unique names.

    >>> kernel, = parse('.target sm_90\\n.entry k() { .reg .b32 %r<2>; ret; }')
    >>> read_instruction(kernel, "add.u32 %r0, %r1, 4").opcode
    'add.u32'
    """
    return _instruction(kernel, _Statement("statement", text, ({},), line, source))


_BRACKET = re.compile(r"[\[\](){}]")


def _split(text: str) -> list[str]:
    """The parts between the commas outside brackets."""
    if not _BRACKET.search(text):
        plain = [part.strip() for part in text.split(",")]
        return plain if plain[-1] else plain[:-1]
    if text.count("[") + text.count("{") > MAX_BRACKETS:
        raise ValueError(f"more than {MAX_BRACKETS} brackets")
    out, depth, current = [], 0, ""
    for char in text:
        depth += (char in "[{(") - (char in "]})")
        if char == "," and depth == 0:
            out.append(current.strip())
            current = ""
        else:
            current += char
    return out + [current.strip()] if current.strip() else out


_OFFSET = re.compile(r"(.+?)\s*([+-])\s*(-?(?:0[xX])?[0-9a-fA-F]+)$", re.S)
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+)U?")


def _operand(kernel: PtxKernel, text: str) -> PtxOperand:
    if text in kernel.registers:
        return PtxOperand("reg", text)
    negated = text.startswith("!")
    bare = text.lstrip("!").strip()
    if bare[:1] in ("[", "{") and bare[-1] != {"[": "]", "{": "}"}[bare[0]]:
        raise ValueError(f"the bracket of {text!r} is not closed")
    if bare.startswith("["):
        base, *coordinates = _split(bare[1:-1])
        offset = 0
        m = _OFFSET.match(base)
        if m is not None and (m.group(1) in kernel.registers or not _NUMBER.fullmatch(base)):
            base, offset = m.group(1), int(m.group(2) + "1") * int(m.group(3), 0)
            if abs(offset) >> 32:
                raise ValueError(f"the offset of {text!r} has more than 32 bits")
        parts = [_operand(kernel, base)]
        for part in coordinates:
            inner = _operand(kernel, part)
            parts += inner.parts if inner.kind == "vector" else (inner,)
        return PtxOperand("address", text, tuple(parts), offset)
    if bare.startswith("{"):
        return PtxOperand("vector", text, tuple([_operand(kernel, part) for part in _split(bare[1:-1])]))
    if "|" in bare:
        return PtxOperand("pair", text, tuple([_operand(kernel, part.strip()) for part in bare.split("|")]))
    if bare == "_":
        return PtxOperand("sink", bare)
    if bare in kernel.registers:
        return PtxOperand("reg", bare, negated=negated)
    if _NUMBER.fullmatch(bare):
        if (len(bare) > 20 and bare[:2] not in ("0b", "0B")) or len(bare) > 67:
            raise ValueError(f"{bare[:24]}... has more than 64 bits")
        return PtxOperand("number", bare)
    if bare.startswith("%"):
        return PtxOperand("special", bare)
    if re.fullmatch(r"[\w$@.]+(?:\s*\+\s*\d+)?", bare):
        return PtxOperand("symbol", bare)
    raise ValueError(f"cannot read the operand {text!r}")
