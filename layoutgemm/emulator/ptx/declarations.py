"""Variables and functions of a PTX module: their names, sizes, initial bytes and bodies.

Grammar: PTX ISA, "State Spaces", "Variables" (initialisers, arrays, addresses in them), ".func", ".extern", ".weak".
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ...arguments import shown
from ...errors import PtxError

MAX_VARIABLE_BYTES = 1 << 28
# Sizes in bytes of the types in declarations.
SIZES = {"pred": 1, **{f"{k}{n}": n // 8 for k in "bsuf" for n in (8, 16, 32, 64, 128)}}
OPAQUE = ("texref", "samplerref", "surfref")
MAX_ALIGNMENT = 1 << 16


class Relocation(NamedTuple):
    """An address in an initialiser.

    Bytes [offset, offset + size) hold a symbol's address + addend, from its byte `shift` on.
    """

    offset: int
    size: int
    symbol: str
    addend: int
    shift: int = 0


class ModuleVariable(NamedTuple):
    """A `.global` or `.const` variable of a module.

    space        "global" or "const"
    content      its initial bytes, zeros where none are given
    relocations  addresses of other variables in it
    line         of the PTX text
    external     defined elsewhere (`.extern`): its bytes must be given
    element      bytes of one
    """

    name: str
    space: str
    align: int
    content: bytes
    relocations: tuple[Relocation, ...]
    line: int
    external: bool = False
    element: int = 1


@dataclass(frozen=True)
class FormalParameter:
    """A formal parameter of a function. Its name, its type, its state space, "reg" or "param", and its elements."""

    name: str
    kind: str
    space: str
    count: int = 1

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.count * SIZES.get(self.kind, 1)


@dataclass(frozen=True)
class DeviceFunction:
    """A `.func` of a module.

    body  the place of its opening brace in the text, None for a declaration
    """

    name: str
    results: tuple[FormalParameter, ...]
    parameters: tuple[FormalParameter, ...]
    body: int | None
    line: int


_VARIABLE = re.compile(
    r"(?<![\w.%$])((?:\.(?:visible|extern|weak|common)\s+)*)\.(global|const)\s+"
    r"(?:\.attribute\s*\([^)]*\)\s*)?(?:\.align\s+(\d{1,9})\s+)?(?:\.attribute\s*\([^)]*\)\s*)?"
    r"(?:\.v([248])\s+)?\.(\w+)\s+([\w$]+)\s*((?:\[\s*\d{0,9}\s*\]\s*)*)(=|;)"
)
_FUNCTION = re.compile(
    r"((?:\.(?:visible|extern|weak)\s+)*)\.func\b\s*(?:\.\w+\s*)*(?:\(([^()]*)\))?\s*([\w$]+)\s*(?:\(([^()]*)\))?"
    r"((?:\s*\.\w+(?:\s+\d+)?)*)\s*(;|\{)"
)
_FORMAL = re.compile(
    r"\.(reg|param)\s+(?:\.align\s+\d{1,9}\s+)?\.(\w+)\s+(?:\.ptr\b\s*(?:\.\w+\s*)?)?(?:\.align\s+\d{1,9}\s+)?"
    r"(%?[\w$]+)\s*(?:\[\s*(\d{0,9})\s*\])?"
)
_ITEM = re.compile(
    r"\s*(?:(0[xX]FF0*)\s*\(\s*([\w$]+)\s*(?:([+-])\s*(\d+)\s*)?\)|(generic)\s*\(\s*([\w$]+)\s*\)\s*(?:([+-])\s*(\d+))?"
    r"|([A-Za-z_$][\w$]*)\s*(?:([+-])\s*(\d+))?|(-?[\w.]+(?:[eE][+-]\d+)?)U?)\s*"
)


def line_of(text: str, at: int) -> int:
    """The line of a place in the text, from 1."""
    return text.count("\n", 0, at) + 1


def alignment_of(align: str | None, default: int, what: str) -> int:
    """The alignment in bytes that a declaration gives. Raises PtxError unless it is a power of two."""
    found = default if align is None else int(align)
    if not 1 <= found <= MAX_ALIGNMENT or found & found - 1:
        raise PtxError(f"{what}: an alignment of {found} bytes is not a power of two up to {MAX_ALIGNMENT}")
    return found


def size_of(kind: str, what: str) -> int:
    """Bytes of a type in a declaration. Raises PtxError for a name that is no type."""
    if kind not in SIZES:
        raise PtxError(f"{what}: .{kind} is not a type")
    return SIZES[kind]


def variables_of(text: str) -> tuple[ModuleVariable, ...]:
    """The `.global` and `.const` variables of a module, those in bodies too, in order.

    >>> one, two = variables_of(".const .align 4 .b8 one[4] = {1, 2};\\n.global .u64 two[2] = {generic(one), 7};")
    >>> one.content, two.content[8:], two.relocations[0].symbol
    (b'\\x01\\x02\\x00\\x00', b'\\x07\\x00\\x00\\x00\\x00\\x00\\x00\\x00', 'one')
    """
    out = []
    for found in _VARIABLE.finditer(text):
        linkage, space, align, vector, kind, name, extents, ends = found.groups()
        if kind in OPAQUE:
            continue  # an instruction that takes one is refused
        line = line_of(text, found.start())
        what = f"PTX line {line}: .{space} {name}"
        unit = size_of(kind, what)
        each = unit * int(vector or 1)
        dimensions = [int(extent or 0) for extent in re.findall(r"\[\s*(\d*)\s*\]", extents)]
        values = _initialiser(text, found.end(), what) if ends == "=" else []
        flat = _flat(values, dimensions + ([int(vector)] if vector else []), what)
        if dimensions and not dimensions[0]:
            dimensions[0] = -(-len(flat) // max(1, int(np.prod(dimensions[1:])) * int(vector or 1)))
        size = each
        for dimension in dimensions:
            size *= dimension
        if size > MAX_VARIABLE_BYTES:
            raise PtxError(f"{what}: {size} bytes, more than {MAX_VARIABLE_BYTES}")
        content, relocations = bytearray(size), []
        for place, item in flat:
            if (place + 1) * unit > size:
                raise PtxError(f"{what}: more values than its {size} bytes hold")
            if isinstance(item, Relocation):
                relocations.append(item._replace(offset=place * unit, size=unit))
            else:
                content[place * unit : (place + 1) * unit] = _bytes_of(item, kind, unit, what)
        out.append(
            ModuleVariable(
                name, space, alignment_of(align, each, what), bytes(content), tuple(relocations), line,
                "extern" in linkage, each,
            )
        )  # fmt: skip
    return tuple(out)


Nested = list["Nested | str | Relocation"]


def _initialiser(text: str, at: int, what: str) -> Nested:
    """The values after the "=" of a declaration, braces as lists."""
    top: Nested = []
    stack = [top]
    while at < len(text):
        char = text[at]
        if char == ";":
            if len(stack) > 1:
                break
            return top
        if char == "{":
            inner: Nested = []
            stack[-1].append(inner)
            stack.append(inner)
        elif char == "}":
            if len(stack) == 1:
                break
            stack.pop()
        elif char not in ", \t\r\n":
            item = _ITEM.match(text, at)
            if item is None or item.end() == at:
                break
            stack[-1].append(_item(item))
            at = item.end()
            continue
        at += 1
    raise PtxError(f"{what}: its initialiser cannot be read at PTX line {line_of(text, min(at, len(text) - 1))}")


def _item(found: re.Match[str]) -> str | Relocation:
    mask, masked, sign, addend, generic, of, plus, more, symbol, sign3, add3, literal = found.groups()
    if literal is not None:
        return literal
    name, way, count = (masked, sign, addend) if mask else (of, plus, more) if generic else (symbol, sign3, add3)
    shift = (len(mask) - 4) // 2 if mask else 0
    return Relocation(0, 0, name, int(f"{way or '+'}{count or 0}"), shift)


def _flat(values: Nested, extents: list[int], what: str) -> list[tuple[int, str | Relocation]]:
    """(place among the elements, value) of nested values: an inner list fills one row."""
    if len(values) == 1 and isinstance(values[0], list):
        values = values[0]
    out: list[tuple[int, str | Relocation]] = []

    def fill(items: Nested, depth: int, at: int) -> None:
        row = 1
        for extent in extents[depth + 1 :]:
            row *= extent
        for item in items:
            if isinstance(item, list):
                fill(item, depth + 1, at)
                at += row
            else:
                out.append((at, item))
                at += 1

    fill(values, 0, 0)
    return out


def _bytes_of(text: str, kind: str, size: int, what: str) -> bytes:
    """The bytes of a literal of a type."""
    try:
        low = text.lower()
        if low[:2] in ("0f", "0d"):
            raw = int(low[2:], 16)
            bits = 32 if low[1] == "f" else 64
            if kind in ("f32", "f64") and bits != 8 * size:
                value = struct.unpack("<f" if bits == 32 else "<d", raw.to_bytes(bits // 8, "little"))[0]
                return struct.pack("<f" if size == 4 else "<d", value)
            return raw.to_bytes(size, "little")
        if kind[0] == "f":
            return struct.pack({2: "<e", 4: "<f", 8: "<d"}[size], float(text))
        value = int(text, 8) if re.fullmatch(r"-?0[0-7]+", text) else int(text, 0)
        return (value & (1 << 8 * size) - 1).to_bytes(size, "little")
    except (ValueError, OverflowError, struct.error):
        raise PtxError(f"{what}: {text} is not a value of type .{kind}") from None


def functions_of(text: str) -> dict[str, DeviceFunction]:
    """The `.func` of a module by name; a definition takes the place of its declaration.

    >>> functions_of(".func (.reg .b32 %a) twice (.reg .b32 %b) { add.u32 %a, %b, %b; ret; }")["twice"].parameters
    (FormalParameter(name='%b', kind='b32', space='reg', count=1),)
    """
    out: dict[str, DeviceFunction] = {}
    for found in _FUNCTION.finditer(text):
        _, results, name, parameters, _, ends = found.groups()
        line = line_of(text, found.start())
        body = found.end() - 1 if ends == "{" else None
        if name in out and body is None:
            continue
        out[name] = DeviceFunction(name, _formals(results, line), _formals(parameters, line), body, line)
    return out


def _formals(text: str | None, line: int) -> tuple[FormalParameter, ...]:
    out = []
    for part in (text or "").split(","):
        if not part.strip():
            continue
        found = _FORMAL.fullmatch(" ".join(part.split()))
        if found is None:
            raise PtxError(
                f"PTX line {line}: {shown(' '.join(part.split()))} among a function's parameters cannot be read"
            )
        out.append(FormalParameter(found.group(3), found.group(2), found.group(1), int(found.group(4) or 1)))
    return tuple(out)
