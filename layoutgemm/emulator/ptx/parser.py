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

from ...arguments import shown
from ...errors import PtxError
from .constants import WARP_SIZE, constant
from .declarations import SIZES as SIZES
from .declarations import DeviceFunction, ModuleVariable, alignment_of, functions_of, line_of, size_of, variables_of
from .inlining import FRAMED, Inliner
from .statements import NAME, Statement, resolved, statements_of
from .statements import SourceLine as SourceLine

# Bounds of a kernel's declarations. Hardware has none for virtual registers, and 32764 bytes of parameters.
MAX_REGISTERS, MAX_PARAMETER_BYTES, MAX_SHARED_BYTES, MAX_LOCAL_BYTES = 1 << 17, 32764, 1 << 24, 1 << 19
MAX_BRACKETS = 64
CARRY = "CC.CF"  # the register of the carry, of one bit (PTX ISA, "Extended-Precision Integer Arithmetic")
CARRIED = ("addc", "subc", "madc")  # the instructions that read it


class PtxOperand(NamedTuple):
    """One operand of an instruction.

    kind     "reg", "special" (%tid.x), "number", "symbol", "vector" ({a, b}), "address" ([a+16], [map, {x, y}]),
             "pair" (a|b), "part" (%r1.b0, of a video instruction), or "sink" (_)
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
    source: SourceLine | None = None

    @property
    def where(self) -> str:
        """The place in words: the PTX line, and the source line where it is known."""
        return f"PTX line {self.line}" + (f" ({self.source})" if self.source else "")

    def __str__(self) -> str:
        return f"{self.where}: {self.text}"


class Parameter(NamedTuple):
    """A kernel parameter. Its name, its bytes [offset, offset + size) in parameter space, and its element's type."""

    name: str
    offset: int
    size: int
    kind: str


class SharedSymbol(NamedTuple):
    """A shared-memory symbol; size 0: the dynamic part, which starts after all others."""

    name: str
    align: int
    size: int


class LocalSymbol(NamedTuple):
    """A variable of each thread: a `.local` one, or a `.param` one of a call. `framed`: in the frame of a routine."""

    name: str
    align: int
    size: int
    framed: bool = False


@dataclass
class PtxKernel:
    """One `.entry` of a PTX module, with the device functions that it calls put in.

    registers    name -> type, as declared
    labels       name -> pc of the instruction that follows
    directives   performance directives by name, ".reqntid" -> (128, 1, 1)
    local        variables of each thread
    variables    of the module
    functions    the other functions of the module by name -> why they are not put in
    branch_targets  label of a `.branchtargets` list -> its labels
    problems     what could not be read, with its lines
    """

    name: str
    target: str
    parameters: tuple[Parameter, ...] = ()
    registers: dict[str, str] = field(default_factory=dict)
    labels: dict[str, int] = field(default_factory=dict)
    instructions: list[PtxInstruction] = field(default_factory=list)
    shared: tuple[SharedSymbol, ...] = ()
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    local: tuple[LocalSymbol, ...] = ()
    variables: tuple[ModuleVariable, ...] = ()
    functions: dict[str, str] = field(default_factory=dict)
    branch_targets: dict[str, tuple[str, ...]] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        return f"<PtxKernel {self.name[:60]} for {self.target}: {len(self.instructions)} instructions>"

    @property
    def parameter_bytes(self) -> int:
        """Bytes of parameter space."""
        return max((p.offset + p.size for p in self.parameters), default=0)


_ENTRY = re.compile(r"(?:\.visible\s+|\.weak\s+)?\.entry\s+([\w$]+)\s*(?:\(([^(){};]*)\))?")
_PARAMETER = re.compile(
    r"\.param\s+(?:\.align\s+(\d{1,9})\s+)?\.(\w+)\s+(?:\.ptr\b\s*(?:\.(?:const|global|local|shared|param)\b\s*)?)?"
    r"(?:\.align\s+\d{1,9}\s+)?([\w$]+)\s*(?:\[\s*(\d{1,9})\s*\])?"
)
_SHARED = re.compile(
    r"(?:\.extern\s+)?\.shared\s+(?:\.align\s+(\d{1,9})\s+)?\.(\w+)\s+([\w$]+)\s*((?:\[\s*\d{0,9}\s*\]\s*)*)"
)
_REGISTERS = re.compile(r"\.reg\s+(?:\.v([24])\s+)?\.(\w+)\s+(.*)")
COMPONENTS = "xyzw"  # of a vector register, or r, g, b, a (PTX ISA, "Vectors as Operands")
_REGISTER = re.compile(r"(%?[A-Za-z_$][\w$]*)\s*(?:<\s*(\d{1,9})\s*>)?")
_DIRECTIVE = re.compile(r"\.(\w+)((?:\s+\d{1,9})?(?:\s*,\s*\d{1,9})*)")
_FILE = re.compile(r'^\s*\.file\s+(\d{1,9})\s+"([^"]*)"', re.M)
_LOCAL = re.compile(
    r"\.(?:local|param)\s+(?:\.align\s+(\d{1,9})\s+)?(?:\.v([248])\s+)?\.(\w+)\s+([\w$%]+)\s*((?:\[\s*\d{1,9}\s*\]\s*)*)"
)
# Words of a declaration in a row; an opcode such as ld.param.u64 begins with a name.
_JOINED = re.compile(r"(?<![\w.:%$])\.(?:reg|shared|local|param|const|global|visible|extern|weak|func)(?:\.[a-z]\w*)+")
_ALIGNED = re.compile(r"(\.align\s+\d{1,9})\.(?=[a-z])")
# Directives without effect here; the variables of the module are read from its text as a whole.
_IGNORED = {".pragma", ".const", ".global", ".branchtargets", ".calltargets", ".callprototype"}
_TARGETS = ".branchtargets"


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
    ('add', (Parameter(name='p', offset=0, size=8, kind='u64'),), ['ld.param.b64', 'ld.global.b32', 'ret'])
    >>> kernel.instructions[1].operands[1]
    PtxOperand(kind='address', text='[%rd0+4]', parts=(PtxOperand(kind='reg', text='%rd0', parts=(), offset=0, \
negated=False),), offset=4, negated=False)
    """
    kernels = read_module(text)
    for kernel in kernels:
        if kernel.problems:
            raise PtxError(listed(kernel.name, kernel.problems))
    return kernels


LISTED = 6  # lines that a refusal names
_ANY_REGISTER = re.compile(r"%\w+(\.\w+)?")


def listed(kernel: str, problems: list[str]) -> str:
    """The problems of a kernel as one message. Those that differ in lines and registers are one."""
    lines: dict[str, dict[str, str]] = {}
    for problem in problems:
        where, _, what = problem.partition(": ")
        lines.setdefault(_ANY_REGISTER.sub("%", what), {}).setdefault(where.removeprefix("PTX line "), what)
    texts = []
    for places in lines.values():
        first, rest = list(places)[:LISTED], len(places) - LISTED
        more = f" and {rest} more" if rest > 0 else ""
        texts.append(f"PTX line {', '.join(first)}{more}: {places[first[0]]}")
    return texts[0] if len(texts) == 1 else f"kernel {kernel}, {len(texts)} refusals:\n  " + "\n  ".join(texts)


def read_module(text: str, only: str | None = None) -> list[PtxKernel]:
    """The kernels of a PTX module. What cannot be read of one is among its `problems`.

    only  the name of the one to read, if the module has it: a module of templates may have hundreds

    Raises PtxError for text without `.target` or `.entry`.
    """
    # Half of a surrogate pair is not a character and could not be printed in a message.
    text = _spaced(_blank_comments(text.encode("utf-8", "backslashreplace").decode("utf-8")))
    target = re.search(r"\.target\s+(\w+)", text)
    if target is None:
        raise PtxError("PTX line 1: no .target: this is not a PTX module")
    if re.fullmatch(r"sm_\d{2,3}[af]?", target.group(1)) is None:
        line = line_of(text, target.start(1))
        raise PtxError(f"PTX line {line}: .target {shown(target.group(1))}: not a GPU's, such as sm_90a")
    files = {int(number): name for number, name in _FILE.findall(text)}
    entries = list(_ENTRY.finditer(text))
    if not entries:
        raise PtxError(f"PTX line {line_of(text, len(text))}: the module ends, and has no .entry")
    first = _body(text, entries[0])
    shared = [_shared(m, line_of(text, m.start())) for m in _SHARED.finditer(text, 0, first)]
    module = _Module(text, target.group(1), shared, files, functions_of(text), variables_of(text))
    chosen = [entry for entry in entries if entry.group(1) == only]
    return [_kernel(module, entry) for entry in chosen or entries]


class _Module(NamedTuple):
    """The declarations that the kernels of a module share."""

    text: str
    target: str
    shared: list[SharedSymbol]
    files: dict[int, str]
    functions: dict[str, DeviceFunction]
    variables: tuple[ModuleVariable, ...]


# Inline assembly of several lines: LLVM counts its source lines on from the call's, line by line.
_INLINE = re.compile(r"// begin inline asm\n.*?// end inline asm\n", re.S)
_LOC_LINE = re.compile(r"^[ \t]*\.loc\b[^\n]*", re.M)


def _blank_comments(text: str) -> str:
    """Comments, and source lines within inline assembly, replaced by blanks, line ends kept."""
    if _LOC_LINE.search(text):
        text = _INLINE.sub(lambda m: _LOC_LINE.sub("", m.group(0)), text)

    def blank(m: re.Match[str]) -> str:
        if m.group(0) == "/*":
            raise PtxError(f"PTX line {line_of(text, m.start())}: the comment does not end")
        return "\n" * m.group(0).count("\n")

    return re.sub(r"//[^\n]*|/\*.*?\*/|/\*", blank, text, flags=re.S)


def _spaced(text: str) -> str:
    """The text with a blank before each word of a declaration: ".reg.b16 a" as ".reg .b16 a"."""
    return _JOINED.sub(lambda m: m.group(0).replace(".", " .").strip(), _ALIGNED.sub(r"\1 .", text))


def _shared(m: re.Match[str], line: int) -> SharedSymbol:
    align, kind, name, extents = m.groups()
    what = f"PTX line {line}: {' '.join(m.group(0).split())}"
    size = unit = size_of(kind, what)
    for extent in re.findall(r"\[\s*(\d*)\s*\]", extents):
        size *= int(extent or 0)
    if size > MAX_SHARED_BYTES:
        raise PtxError(f"{what}: {size} bytes of shared memory, more than {MAX_SHARED_BYTES}")
    return SharedSymbol(name, alignment_of(align, unit, what), size)


def _body(text: str, entry: re.Match[str]) -> int:
    """The start of the kernel's body."""
    found = text.find("{", entry.end())
    if found < 0:
        raise PtxError(f"PTX line {line_of(text, entry.start())}: the kernel {entry.group(1)} has no body")
    return found


def _kernel(module: _Module, entry: re.Match[str]) -> PtxKernel:
    """One kernel; what cannot be read is among its problems."""
    kernel = PtxKernel(entry.group(1), module.target, variables=module.variables)
    try:
        _fill(kernel, module, entry)
    except PtxError as error:
        kernel.problems.append(str(error))
    return kernel


def _fill(kernel: PtxKernel, module: _Module, entry: re.Match[str]) -> None:
    text = module.text
    body, line = _body(text, entry), line_of(text, entry.start())
    kernel.parameters = _parameters(entry.group(2) or "", line)
    for name, numbers in _DIRECTIVE.findall(text[entry.end() : body]):
        kernel.directives[f".{name}"] = tuple([int(n) for n in re.findall(r"\d+", numbers)])
    kernel.shared = tuple(module.shared)
    locals_: dict[str, LocalSymbol] = {}

    def variable(name: str, kind: str, count: int, frame: list[str] | None) -> str:
        size = size_of(kind, name) * count
        return _enter(kernel, locals_, LocalSymbol(name, 16 if count > 1 else size, size), frame)

    inliner = Inliner(
        text, module.files, module.functions, lambda found, frame: _declare(kernel, found, locals_, frame), variable,
        kernel.registers.__setitem__, lambda name: name in locals_ or name.endswith(FRAMED),
        kernel.registers.__contains__,
    )  # fmt: skip
    statements = inliner.whole(statements_of(text, body, module.files))
    kernel.local = tuple(locals_.values())
    kernel.functions = dict.fromkeys(module.functions, "it has no body in this module")
    label = ""
    for statement in statements:
        if statement.kind == "label":
            label = resolved(statement.text, statement.scopes)
            if label in kernel.labels:
                raise PtxError(f"PTX line {statement.line}: the label {statement.text} stands twice")
            kernel.labels[label] = len(kernel.instructions)
        elif statement.text.startswith(_TARGETS):
            names = statement.text.removeprefix(_TARGETS).split(",")
            kernel.branch_targets[label] = tuple([resolved(name.strip(), statement.scopes) for name in names])
        elif not statement.text.startswith("."):
            try:
                kernel.instructions.append(_instruction(kernel, statement))
            except PtxError as error:
                kernel.problems.append(str(error))
    if not kernel.instructions and not kernel.problems:
        raise PtxError(f"PTX line {line}: the kernel {kernel.name} has no instructions")


def _parameters(text: str, line: int) -> tuple[Parameter, ...]:
    out: list[Parameter] = []
    offset = 0
    for part in text.split(",") if text.strip() else ():
        m = _PARAMETER.fullmatch(part.strip())
        what = f"PTX line {line}: {' '.join(part.split())!r} among the kernel's parameters"
        if m is None:
            raise PtxError(f"{what} cannot be read")
        align, kind, name, count = m.groups()
        size = size_of(kind, what) * int(count or 1)
        unit = alignment_of(align, size_of(kind, what), what)
        offset = -(-offset // unit) * unit
        out.append(Parameter(name, offset, size, kind))
        offset += size
        if offset > MAX_PARAMETER_BYTES:
            raise PtxError(f"{what}: it ends at byte {offset}, and parameters have {MAX_PARAMETER_BYTES} bytes")
    return tuple(out)


def _enter(kernel: PtxKernel, locals_: dict[str, LocalSymbol], local: LocalSymbol, frame: list[str] | None) -> str:
    """Enter a variable of each thread. Gives its name, or the register of its address in the frame of a routine."""
    locals_[local.name] = local._replace(framed=frame is not None)
    if frame is None:
        return local.name
    frame.append(local.name)
    kernel.registers[local.name + FRAMED] = "b64"
    return local.name + FRAMED


def _declare(
    kernel: PtxKernel, statements: list[Statement], locals_: dict[str, LocalSymbol], frame: list[str] | None
) -> None:
    """Enter the registers, labels and variables; those of inner scopes get names of their own."""
    shared = list(kernel.shared)
    for kind, text, scopes, line, _ in statements:
        inner = len(scopes) > 2
        directive = text.partition(" ")[0]
        if kind == "label":
            if inner:
                scopes[-1][text] = f"{text}@{scopes[-1]['#']}"
        elif directive == ".reg":
            m = _REGISTERS.fullmatch(text)
            found = [_REGISTER.fullmatch(name.strip()) for name in m.group(3).split(",")] if m is not None else []
            if m is None or m.group(2) not in (*SIZES, "f16x2") or not found or None in found:
                raise PtxError(f"PTX line {line}: cannot read the declaration {shown(text)}")
            for prefix, count in [one.groups() for one in found if one is not None]:
                if int(count or 1) + len(kernel.registers) > MAX_REGISTERS:
                    raise PtxError(f"PTX line {line}: {text}: more than {MAX_REGISTERS} registers in one kernel")
                names = (prefix,) if count is None else _numbered(prefix, int(count))
                if inner:
                    scopes[-1].update({one: f"{one}@{scopes[-1]['#']}" for one in names})
                    names = tuple([scopes[-1][one] for one in names])
                if m.group(1):
                    names = tuple([f"{name}.{part}" for name in names for part in COMPONENTS[: int(m.group(1))]])
                kernel.registers.update(dict.fromkeys(names, m.group(2)))
        elif directive in (".shared", ".extern"):
            declared = _SHARED.fullmatch(text)
            if declared is None:
                raise PtxError(f"PTX line {line}: cannot read the declaration {shown(text)}")
            found_shared = _shared(declared, line)
            if all(one.name != found_shared.name for one in shared):
                shared.append(found_shared)
        elif directive in (".local", ".param"):
            local = _local(text, line)
            name = f"{local.name}@{scopes[-1]['#']}" if inner else local.name
            where = _enter(kernel, locals_, local._replace(name=name), frame)
            if inner:
                scopes[-1][local.name] = where
        elif text.startswith(".") and directive not in _IGNORED:
            raise PtxError(f"PTX line {line}: {text}: {directive} is not emulated")
    kernel.shared = tuple(shared)


def _local(text: str, line: int) -> LocalSymbol:
    """A `.local` or `.param` declaration in a body."""
    found = _LOCAL.fullmatch(text)
    if found is None:
        raise PtxError(f"PTX line {line}: cannot read the declaration {shown(text)}")
    align, vector, kind, name, extents = found.groups()
    what = f"PTX line {line}: {text}"
    unit = size_of(kind, what) * int(vector or 1)
    size = unit
    for extent in re.findall(r"\d+", extents):
        size *= int(extent)
    if size > MAX_LOCAL_BYTES:
        raise PtxError(f"{what}: {size} bytes of local memory, more than {MAX_LOCAL_BYTES}")
    return LocalSymbol(name, alignment_of(align, unit, what), size)


@lru_cache(maxsize=64)
def _numbered(prefix: str, count: int) -> tuple[str, ...]:
    """%r0, %r1 and so on."""
    return tuple([f"{prefix}{i}" for i in range(count)])


# A word for the type of an element, and opcodes whose words ptxas does not take in any order, or which end otherwise.
TYPE_WORD = re.compile(
    r"[busf](1|4|8|16|32|64|128)|f16x2|bf16(x2)?|tf32|(e4m3|e5m2|e3m2|e2m3|e2m1|ue8m0|ue4m3|s2f6)(x[24])?"
)
_TYPES_FIRST = re.compile(r"mul|mad|shf|prmt|dp[24]a|v(?!ote)\w+|tex\w*|tld4|su\w+|txq|suq")


def types_last(words: tuple[str, ...]) -> tuple[str, ...]:
    """An opcode's words with its types at the end, as PTX's manual has them.

    ptxas takes any order.

    >>> types_last(("fma", "sat", "f32", "rn")), types_last(("cvt", "s32", "rzi", "ftz", "f32"))
    (('fma', 'sat', 'rn', 'f32'), ('cvt', 'rzi', 'ftz', 's32', 'f32'))
    """
    first = next((n for n, word in enumerate(words) if TYPE_WORD.fullmatch(word)), len(words))
    if all(TYPE_WORD.fullmatch(word) for word in words[first:]) or "popc" in words or _TYPES_FIRST.fullmatch(words[0]):
        return words
    types = [word for word in words if TYPE_WORD.fullmatch(word)]
    return (*[word for word in words if word not in types], *types)


# The words that PTX's manual has next to these names, in its order.
_NEXT = {
    "vote": ("sync", "all", "any", "uni", "ballot"),
    "shfl": ("sync", "up", "down", "bfly", "idx"),
    "redux": ("sync", "add", "min", "max", "and", "or", "xor"),
    "match": ("any", "all", "sync"),
    "barrier": ("cta", "sync", "arrive", "red"),
    "cp": ("reduce", "async", "ca", "cg"),
    "movmatrix": ("sync", "aligned"),
    "prmt": ("b32",),
}


def in_order(words: tuple[str, ...]) -> tuple[str, ...]:
    """An opcode's words in the order of PTX's manual, where ptxas takes another.

    >>> in_order(("vote", "ballot", "b32", "sync")), in_order(("cp", "async", "shared", "global", "ca"))
    (('vote', 'sync', 'ballot', 'b32'), ('cp', 'async', 'ca', 'shared', 'global'))
    """
    words = types_last(words)
    following = tuple(word for word in _NEXT.get(words[0], ()) if word in words)
    if words[1 : 1 + len(following)] == following or words[1:2] == ("cluster",):  # barrier.cluster has one order
        return words
    return (words[0], *following, *[word for word in words[1:] if word not in following])


# Inline assembly may have blanks before a modifier, and none before the first operand.
_OPCODE = re.compile(r"[\w.:]+(?: +\.[\w.:]+)*")


def _opcode_and_rest(text: str) -> tuple[str, str]:
    """The opcode without blanks, and the operands.

    >>> _opcode_and_rest("ld.param .u64 %d, [a]"), _opcode_and_rest("ld.v2.b32{%r0, %r1},[%d]")
    (('ld.param.u64', '%d, [a]'), ('ld.v2.b32', '{%r0, %r1},[%d]'))
    """
    found = _OPCODE.match(text)
    if found is None:
        opcode, _, rest = text.partition(" ")
        return opcode, rest
    return found[0].replace(" ", ""), text[found.end() :].strip()


def _instruction(kernel: PtxKernel, statement: Statement) -> PtxInstruction:
    _, text, scopes, line, source = statement
    rest, predicate, negated = text, None, False
    guard = re.match(r"@(!?)(%?[\w$@.]+)\s+(.*)", text) if text[:1] == "@" else None
    if guard is not None:
        negated, predicate, rest = bool(guard.group(1)), resolved(guard.group(2), scopes), guard.group(3)
        if (kind := kernel.registers.get(predicate)) != "pred":
            known = "is not declared" if kind is None else f"is a register of type .{kind}, not .pred"
            raise PtxError(f"PTX line {line}: {text}: the guard {predicate} {known}")
    opcode, arguments = _opcode_and_rest(rest)
    if len(scopes) > 2:
        arguments = NAME.sub(lambda m: resolved(m.group(0), scopes), arguments)
    try:
        operands = tuple([_operand(kernel, part) for part in _split(arguments)])
    except ValueError as error:
        raise PtxError(f"PTX line {line}: {text}: {error}") from None
    words = in_order(tuple(opcode.split(".")))
    opcode = ".".join(words)
    if words[0] in CARRIED or "cc" in words:
        kernel.registers.setdefault(CARRY, "pred")
    number = len(kernel.instructions)
    return PtxInstruction(number, line, text, opcode, words, operands, predicate, negated, source)


def read_instruction(kernel: PtxKernel, text: str, line: int = 0, source: SourceLine | None = None) -> PtxInstruction:
    """One statement as an instruction of a kernel, with the kernel's unique names.

    >>> kernel, = parse('.target sm_90\\n.entry k() { .reg .b32 %r<2>; ret; }')
    >>> read_instruction(kernel, "add.u32 %r0, %r1, 4").opcode
    'add.u32'
    """
    return _instruction(kernel, Statement("statement", text, ({},), line, source))


_PART = re.compile(r"(.+)\.[bh]\d{1,4}")  # bytes or halves of a register
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


_SUM = re.compile(r"(%?[A-Za-z_$][\w$]*)\s*\+\s*(.+)", re.S)  # of a register or a symbol and an expression
_OFFSET = re.compile(r"(.+?)\s*([+-])\s*(-?(?:0[xX])?[0-9a-fA-F]+)$", re.S)
_NUMBER = re.compile(r"-?(?:0[xX][0-9a-fA-F]+|0[bB][01]+|0[fF][0-9a-fA-F]{8}|0[dD][0-9a-fA-F]{16}|\d+)U?")


_DECIMAL = re.compile(r"-?\d+(?:\.\d*(?:[eE][+-]?\d+)?|[eE][+-]?\d+)")


def _operand(kernel: PtxKernel, text: str) -> PtxOperand:
    if text in kernel.registers:
        return PtxOperand("reg", text)
    if (value := constant(text)) is not None:
        return PtxOperand("number", str(value))
    negated = text.startswith("!")
    bare = text.lstrip("!").strip()
    if bare[:1] in ("[", "{", "(") and bare[-1] != {"[": "]", "{": "}", "(": ")"}[bare[0]]:
        raise ValueError(f"the bracket of {shown(text)} is not closed")
    if bare.startswith("["):
        base, *coordinates = _split(bare[1:-1])
        offset = 0
        if (more := _SUM.match(base)) is not None and (value := constant(more[2])) is not None:
            base = f"{more[1]}{value:+}"
        m = _OFFSET.match(base)
        if m is not None and (m.group(1) in kernel.registers or not _NUMBER.fullmatch(base)):
            base, offset = m.group(1), int(m.group(2) + "1") * int(m.group(3), 0)
            if abs(offset) >> 32:
                raise ValueError(f"the offset of {shown(text)} has more than 32 bits")
        parts = [_operand(kernel, base)]
        for part in coordinates:
            inner = _operand(kernel, part)
            parts += inner.parts if inner.kind == "vector" else (inner,)
        return PtxOperand("address", text, tuple(parts), offset)
    if bare[:1] in ("{", "("):
        return PtxOperand("vector", text, tuple([_operand(kernel, part) for part in _split(bare[1:-1])]))
    if "|" in bare:
        return PtxOperand("pair", text, tuple([_operand(kernel, part.strip()) for part in bare.split("|")]))
    if bare == "_":
        return PtxOperand("sink", bare)
    if bare in kernel.registers:
        return PtxOperand("reg", bare, negated=negated)
    if f"{bare}.x" in kernel.registers:
        whole = [f"{bare}.{part}" for part in COMPONENTS if f"{bare}.{part}" in kernel.registers]
        return PtxOperand("vector", text, tuple([PtxOperand("reg", part) for part in whole]))
    if (
        bare[-2:] in (".r", ".g", ".b", ".a")
        and (name := bare[:-1] + COMPONENTS["rgba".index(bare[-1])]) in kernel.registers
    ):
        return PtxOperand("reg", name, negated=negated)
    if (selected := _PART.fullmatch(bare)) is not None and selected[1] in kernel.registers:
        return PtxOperand("part", text, (PtxOperand("reg", selected[1]),))
    if bare == WARP_SIZE:
        return PtxOperand("number", "32")
    if _NUMBER.fullmatch(bare):
        if (len(bare) > 20 and bare[:2] not in ("0b", "0B")) or len(bare) > 67:
            raise ValueError(f"{bare[:24]}... has more than 64 bits")
        return PtxOperand("number", bare)
    if bare.startswith("%"):
        return PtxOperand("special", bare)
    if _DECIMAL.fullmatch(bare):
        return PtxOperand("number", bare)
    if re.fullmatch(r"[\w$@.]+(?:\s*\+\s*\d+)?", bare):
        return PtxOperand("symbol", bare)
    raise ValueError(f"cannot read the operand {shown(text)}")
