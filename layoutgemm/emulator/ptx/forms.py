"""The forms of PTX's scalar instructions. Every spelling, the types of its operands, and the least target.

The table is data, in `forms.txt`, which says how a line is read. A test compares it with what ptxas 13.4 accepts, for
PTX 9.4, and with an earlier ptxas without the newer forms. ptxas takes rcp.ftz.f64 with a rounding mode, too, which PTX
does not have.
"""

from __future__ import annotations

import itertools
import re
from functools import cache, lru_cache
from importlib.resources import files
from typing import NamedTuple

_TYPE = re.compile(r"(?:[busf]|bf|tf|e|ue)\d\w*|pred")


class PtxForm(NamedTuple):
    """One family of forms. The words after the name, the types of the operands, the least target ("80", "100a")."""

    words: tuple[str, ...]
    operands: tuple[str, ...]
    target: str


def table_in(package: str, file: str) -> tuple[dict[str, str], list[str]]:
    """A package's table of spellings: its abbreviations, and its lines.

    >>> table_in("layoutgemm.emulator.ptx", "forms.txt")[0]["BITS"]
    '.b16|.b32|.b64'
    """
    lines = [x for x in (files(package) / file).read_text(encoding="utf-8").splitlines() if x and x[0] != "#"]
    words = dict(line.split(" = ") for line in lines if " = " in line)
    return words, [line for line in lines if " = " not in line]


def _choices(token: str, abbreviated: dict[str, str]) -> tuple[str, ...]:
    """The spellings that one token of a line allows."""
    optional = token.startswith("[")
    body = token.strip("[]")
    if " " in body:  # several words that come together
        found: tuple[str, ...] = ("".join(abbreviated.get(word, word) for word in body.split()),)
    else:
        found = tuple("|".join(abbreviated.get(word, word) for word in body.split("|")).split("|"))
    return (("", *found)) if optional else found


@cache
def _table() -> dict[str, list[tuple[tuple[tuple[str, ...], ...], tuple[str, ...], str]]]:
    """name -> (the choices of each token, operand types, least target) of each of its lines."""
    out: dict[str, list[tuple[tuple[tuple[str, ...], ...], tuple[str, ...], str]]] = {}
    abbreviated, lines = table_in(__package__, "forms.txt")
    for line in lines:
        spelled, _, right = line.partition(" : ")
        target = next((part[1:] for part in right.split() if part[0] == "@"), "50")
        types = tuple(part for part in right.split() if part[0] != "@")
        names = re.match(r"[a-z0-9 ]*", spelled).group().split()  # type: ignore[union-attr]
        tokens = re.findall(r"\[[^\]]*\]|\S+", spelled)[len(names) :]
        for name in names:
            out.setdefault(name, []).append((tuple(_choices(token, abbreviated) for token in tokens), types, target))
    return out


@cache
def forms_of(name: str) -> dict[str, list[PtxForm]]:
    """Every form of an instruction by its spelled opcode. A spelling may have several, of different operands.

    >>> forms_of("testp")["testp.number.f64"]
    [PtxForm(words=('number', 'f64'), operands=('pred', 'f64'), target='50')]
    >>> [form.operands for form in forms_of("min")["min.f32"]]
    [('f32', 'f32', 'f32'), ('f32', 'f32', 'f32', 'f32')]
    """
    out: dict[str, list[PtxForm]] = {}
    for tokens, types, target in _table().get(name, ()):
        for chosen in itertools.product(*tokens):
            text = "".join(chosen)
            words = tuple(text.split(".")[1:])
            named = {"t": words[-1], "u": words[-2] if len(words) > 1 else "", "w": _twice(words[-1])}
            operands = tuple(
                "*" + named[one[1:]]
                if one[0] == "*"
                else one[:3] + named[one[3:]]
                if one[2:3] == ":"
                else named.get(one, one).replace("d|", f"{words[-1]}|")
                for one in types
            )
            out.setdefault(name + text, []).append(PtxForm(words, operands, target))
    return out


def _twice(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}" if kind[1:].isdigit() else ""


@cache
def names() -> frozenset[str]:
    """The names of the instructions in the table."""
    return frozenset(_table())


@lru_cache(maxsize=1 << 12)
def form_of(opcode: str, operands: int, target: str) -> PtxForm:
    """The form of an opcode with this many operands. Raises ValueError that says what does not fit.

    >>> form_of("add.rz.f32", 3, "sm_90a").operands
    ('f32', 'f32', 'f32')
    >>> form_of("add.sat.u64", 3, "sm_90a")
    Traceback (most recent call last):
    ...
    ValueError: add.sat.u64 is no form of add that the emulator knows
    """
    name = opcode.partition(".")[0]
    found = forms_of(name).get(opcode) or _orderless(name).get(_sorted_words(opcode))
    if found is None:
        raise ValueError(f"{opcode} is no form of {name} that the emulator knows")
    fitting = [form for form in found if len(form.operands) == operands]
    if not fitting:
        counts = " or ".join(str(len(form.operands)) for form in found)
        raise ValueError(f"{opcode} takes {counts} operands, not {operands}")
    if not any(reached(target, form.target) for form in fitting):
        raise ValueError(f"{opcode} with {operands} operands needs .target sm_{fitting[0].target.lower()} or above")
    return fitting[0]


@cache
def _orderless(name: str) -> dict[tuple[str, ...], list[PtxForm]]:
    """The forms by their words in any order, which ptxas takes too."""
    return {_sorted_words(opcode): found for opcode, found in forms_of(name).items()}


def _sorted_words(opcode: str) -> tuple[str, ...]:
    """The words of an opcode: sorted modifiers, then the types in order."""
    words = opcode.split(".")[1:]
    kinds = [word for word in words if _TYPE.fullmatch(word)]
    return (*sorted(word for word in words if word not in kinds), *kinds)


def reached(target: str, least: str) -> bool:
    """True if an architecture ("sm_90a") has what `least` ("100a") asks for."""
    number = int(re.sub(r"\D", "", target) or 0)
    own = least[-1] in "axAX"
    if least[-1] in "xX" and number // 10 != int(least[:-1]):
        return False
    return number >= int(least[:-1] + "0" if least[-1] in "xX" else least.rstrip("aA")) and (
        not own or target[-1] in ("a" if least[-1].isupper() else "af")
    )
