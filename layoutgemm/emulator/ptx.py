"""PTX text read into values: kernels with their parameters, registers, shared symbols, labels and instructions.

Nothing is interpreted here. An operand is split into its parts, a name inside a `{ }` scope (as inline assembly makes
them) is renamed so that every register and label of a kernel has one name, and `.loc` lines are kept, so that whatever
is said about an instruction can name the line of the program that it came from.

Grammar: PTX ISA, "Syntax", "Directives"; operands: "Instruction Operands".
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from ..errors import PtxError

# Sizes in bytes of the types that may stand in a declaration.
SIZES = {"pred": 1, **{f"{k}{n}": n // 8 for k in "bsuf" for n in (8, 16, 32, 64, 128)}}


class Operand(NamedTuple):
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
    parts: tuple[Operand, ...] = ()
    offset: int = 0
    negated: bool = False


class Source(NamedTuple):
    """A line of the program that an instruction was made from."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@dataclass(slots=True)
class Instruction:
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
    operands: tuple[Operand, ...]
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
class Kernel:
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
    instructions: list[Instruction] = field(default_factory=list)
    shared: tuple[SharedSymbol, ...] = ()
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)

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
_ENTRY = re.compile(r"(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)\s*(?:\((.*?)\))?", re.S)
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+(?:\.ptr\s*(?:\.(?!align\b)\w+\s*)*(?:\.align\s+\d+\s+)?|\.align\s+\d+\s+)*"
    r"([\w$]+)\s*(?:\[(\d+)\])?"
)
_SHARED = re.compile(r"(?:\.extern\s+)?\.shared\s+(?:\.align\s+(\d+)\s+)?\.(\w+)\s+([\w$]+)\s*(?:\[(\d*)\])?")
_DIRECTIVE = re.compile(r"\.(\w+)((?:\s+\d+)?(?:\s*,\s*\d+)*)")
_LOC = re.compile(r"\s*\.loc\s+(\d+)\s+(\d+)")
_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"', re.M)


_BLANK, _STOP = re.compile(r"\s*"), re.compile(r"[{};:]")


def parse(text: str) -> list[Kernel]:
    """The kernels of a PTX module, in order.

    Raises PtxError for text without `.target` or `.entry`, and for what cannot be read, with its line.

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
    Operand(kind='address', text='[%rd0+4]', parts=(Operand(kind='reg', text='%rd0', parts=(), offset=0, \
negated=False),), offset=4, negated=False)
    """
    text = _blank_comments(text)
    target = re.search(r"\.target\s+(\w+)", text)
    if target is None:
        raise PtxError("no .target: this is no PTX module")
    files = {int(number): name for number, name in _FILE.findall(text)}
    entries = list(_ENTRY.finditer(text))
    if not entries:
        raise PtxError("the module has no .entry")
    first = text.index("{", entries[0].end())
    shared = [_shared(m) for m in _SHARED.finditer(text, 0, first)]
    kernels = []
    for entry in entries:
        kernels.append(_kernel(text, entry, target.group(1), shared, files))
    return kernels


def _blank_comments(text: str) -> str:
    """Comments replaced by blanks, line ends kept."""
    return re.sub(
        r"//[^\n]*|/\*.*?\*/", lambda m: "\n" * m.group(0).count("\n") if m.group(0).startswith("/*") else "", text,
        flags=re.S,
    )  # fmt: skip


def _shared(m: re.Match[str]) -> SharedSymbol:
    align, kind, name, count = m.groups()
    size = SIZES[kind]
    return SharedSymbol(name, int(align or size), 0 if count == "" else size * int(count or 1))


def _kernel(text: str, entry: re.Match[str], target: str, shared: list[SharedSymbol], files: dict[int, str]) -> Kernel:
    body = text.index("{", entry.end())
    kernel = Kernel(entry.group(1), target, _parameters(entry.group(2) or ""))
    for name, numbers in _DIRECTIVE.findall(text[entry.end() : body]):
        kernel.directives[f".{name}"] = tuple([int(n) for n in re.findall(r"\d+", numbers)])
    statements = list(_statements(text, body, files))
    own = _declare(kernel, statements)
    kernel.shared = (*shared, *own)
    for statement in statements:
        if statement.kind == "label":
            kernel.labels[_resolved(statement.text, statement.scopes)] = len(kernel.instructions)
        elif not statement.text.startswith("."):
            kernel.instructions.append(_instruction(kernel, statement))
    return kernel


def _parameters(text: str) -> tuple[Parameter, ...]:
    out, offset = [], 0
    for align, kind, name, count in _PARAMETER.findall(text):
        size = SIZES[kind] * int(count or 1)
        unit = int(align or SIZES[kind])
        offset = -(-offset // unit) * unit
        out.append(Parameter(name, offset, size))
        offset += size
    return tuple(out)


def _statements(text: str, start: int, files: dict[int, str]) -> list[_Statement]:
    """The statements between a kernel's braces, each with the scopes that it stands in and its line."""
    out: list[_Statement] = []
    scopes: list[dict[str, str]] = [{}]
    line = text.count("\n", 0, start) + 1
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
            at = text.index("\n", at)
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
    raise PtxError(f"the kernel's body does not end: {len(scopes) - 1} open scopes at the end of the text")


def _declare(kernel: Kernel, statements: list[_Statement]) -> list[SharedSymbol]:
    """Enter the registers and labels; those of inner scopes get names of their own. Returns the shared symbols."""
    shared = []
    for kind, text, scopes, line, _ in statements:
        inner = len(scopes) > 2
        if kind == "label":
            if inner:
                scopes[-1][text] = f"{text}@{scopes[-1]['#']}"
        elif text.startswith(".reg"):
            m = re.match(r"\.reg\s+(?:\.v[24]\s+)?\.(\w+)\s+(.*)", text)
            if m is None:
                raise PtxError(f"PTX line {line}: cannot read the declaration {text!r}")
            for name in _split(m.group(2)):
                many = re.fullmatch(r"(%?[\w$]+)\s*<(\d+)>", name)
                names = _numbered(many.group(1), int(many.group(2))) if many else (name,)
                if inner:
                    scopes[-1].update({one: f"{one}@{scopes[-1]['#']}" for one in names})
                    names = tuple([scopes[-1][one] for one in names])
                kernel.registers.update(dict.fromkeys(names, m.group(1)))
        elif ".shared" in text:
            found = _SHARED.match(text)
            if found is not None:
                shared.append(_shared(found))
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


def _instruction(kernel: Kernel, statement: _Statement) -> Instruction:
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
    return Instruction(number, line, text, opcode, tuple(opcode.split(".")), operands, predicate, negated, source)


def read_instruction(kernel: Kernel, text: str, line: int = 0, source: Source | None = None) -> Instruction:
    """One statement as an instruction of a kernel that was read before; names are the kernel's unique ones.

    >>> kernel, = parse('.target sm_90\\n.entry k() { .reg .b32 %r<2>; ret; }')
    >>> read_instruction(kernel, "add.u32 %r0, %r1, 4").opcode
    'add.u32'
    """
    return _instruction(kernel, _Statement("statement", text, ({},), line, source))


_BRACKET = re.compile(r"[\[\](){}]")


def _split(text: str) -> list[str]:
    """At the commas outside of brackets."""
    if not _BRACKET.search(text):
        plain = [part.strip() for part in text.split(",")]
        return plain if plain[-1] else plain[:-1]
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


def _operand(kernel: Kernel, text: str) -> Operand:
    if text in kernel.registers:
        return Operand("reg", text)
    negated = text.startswith("!")
    bare = text.lstrip("!").strip()
    if bare.startswith("["):
        base, *coordinates = _split(bare[1:-1])
        offset = 0
        m = _OFFSET.match(base)
        if m is not None and (m.group(1) in kernel.registers or not _NUMBER.fullmatch(base)):
            base, offset = m.group(1), int(m.group(2) + "1") * int(m.group(3), 0)
        parts = [_operand(kernel, base)]
        for part in coordinates:
            inner = _operand(kernel, part)
            parts += inner.parts if inner.kind == "vector" else (inner,)
        return Operand("address", text, tuple(parts), offset)
    if bare.startswith("{"):
        return Operand("vector", text, tuple([_operand(kernel, part) for part in _split(bare[1:-1])]))
    if "|" in bare:
        return Operand("pair", text, tuple([_operand(kernel, part.strip()) for part in bare.split("|")]))
    if bare == "_":
        return Operand("sink", bare)
    if bare in kernel.registers:
        return Operand("reg", bare, negated=negated)
    if _NUMBER.fullmatch(bare):
        return Operand("number", bare)
    if bare.startswith("%"):
        return Operand("special", bare)
    if re.fullmatch(r"[\w$@.]+(?:\s*\+\s*\d+)?", bare):
        return Operand("symbol", bare)
    raise ValueError(f"cannot read the operand {text!r}")
