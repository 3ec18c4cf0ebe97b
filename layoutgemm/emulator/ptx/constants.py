"""Constant expressions of integers: `(1 << 4) | 3`, `~0`, `5 > 3 ? 1 : 2`, `(.u64) -1 >> 63`.

PTX ISA, "Constant Expressions", "Integer Constant Expression Evaluation": values have 64 bits. An operation is unsigned
if one of its operands is, but a shift has the type of its left operand, and a comparison gives a signed 0 or 1. A
remainder is always unsigned: ptxas 13.0 makes `-7 % 4` 1.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import NamedTuple

WARP_SIZE = "WARP_SZ"
MAX_LENGTH = 64  # characters of an expression: each bracket takes a dozen calls
_TOKEN = re.compile(
    r"\s*(?:(0[xX][0-9a-fA-F]+|0[bB][01]+|\d+)(U?)(?![\w.])|(WARP_SZ\b)|(\(\s*\.[su]64\s*\))|(<<|>>|<=|>=|==|!=|&&|\|\|"
    r"|[-+~!*/%<>&^|?:()]))"
)
_WHOLE = re.compile(rf"(?:{_TOKEN.pattern})+\s*")
_OPERATOR = re.compile(r"[-+~!*/%<>&^|?](?!$)")
# Binary operators, by precedence from the lowest.
_LEVELS = (("||",), ("&&",), ("|",), ("^",), ("&",), ("==", "!="), ("<", "<=", ">", ">="), ("<<", ">>"), ("+", "-"),
           ("*", "/", "%"))  # fmt: skip
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "==": operator.eq, "!=": operator.ne, "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip


class Constant(NamedTuple):
    """A value of 64 bits, signed or not."""

    value: int
    unsigned: bool = False


def _held(value: int, unsigned: bool) -> Constant:
    value &= (1 << 64) - 1
    return Constant(value if unsigned or value >> 63 == 0 else value - (1 << 64), unsigned)


def constant(text: str) -> int | None:
    """The value of a constant expression with an operator; None for other text.

    Raises ValueError for an expression that PTX does not have.

    >>> constant("(1 << 4) | 3"), constant("~0"), constant("5 > 3 ? 7 : 2"), constant("(.u64) -1 >> 63"), constant("4")
    (19, -1, 7, 1, None)
    """
    if not _WHOLE.fullmatch(text) or not _OPERATOR.search(text):
        return None
    if len(text) > MAX_LENGTH:
        raise ValueError(f"{text[:24]}... has more than {MAX_LENGTH} characters")
    tokens = [next(part for part in match.groups() if part) + (match[2] or "") for match in _TOKEN.finditer(text)]
    found = _choice(tokens, text)
    if tokens:
        raise ValueError(f"{text} is no constant expression: what stands before {tokens[0]}?")
    return found.value


def _choice(tokens: list[str], text: str) -> Constant:
    """condition ? one : other, or what binds tighter."""
    found = _binary(tokens, text, 0)
    if tokens[:1] != ["?"]:
        return found
    tokens.pop(0)
    one = _choice(tokens, text)
    if tokens[:1] != [":"]:
        raise ValueError(f"{text} is no constant expression: no : after its ?")
    tokens.pop(0)
    other = _choice(tokens, text)
    return _held((one if found.value else other).value, one.unsigned or other.unsigned)


def _binary(tokens: list[str], text: str, level: int) -> Constant:
    """Operations of this precedence, from the left."""
    if level == len(_LEVELS):
        return _unary(tokens, text)
    left = _binary(tokens, text, level + 1)
    while tokens and tokens[0] in _LEVELS[level]:
        name = tokens.pop(0)
        left = _applied(name, left, _binary(tokens, text, level + 1), text)
    return left


def _applied(name: str, left: Constant, right: Constant, text: str) -> Constant:
    if name in ("&&", "||"):
        return Constant(
            int(bool(left.value) and bool(right.value) if name == "&&" else bool(left.value or right.value))
        )
    if name in ("<<", ">>"):
        if not 0 <= right.value < 64:
            raise ValueError(f"{text}: a shift by {right.value} of a constant of 64 bits")
        return _held(left.value << right.value if name == "<<" else left.value >> right.value, left.unsigned)
    unsigned = left.unsigned or right.unsigned or name == "%"
    a, b = _held(left.value, unsigned).value, _held(right.value, unsigned).value
    if name in _COMPARED:
        return Constant(int(_COMPARED[name](a, b)))
    if name in "/%":
        if not b:
            raise ValueError(f"{text}: a division by zero")
        quotient = abs(a) // abs(b) * (-1 if (a < 0) != (b < 0) else 1)
        return _held(quotient if name == "/" else a % b, unsigned)
    return _held({"+": a + b, "-": a - b, "*": a * b, "&": a & b, "^": a ^ b, "|": a | b}[name], unsigned)


def _unary(tokens: list[str], text: str) -> Constant:
    if not tokens:
        raise ValueError(f"{text} is no constant expression: it ends with an operator")
    token = tokens.pop(0)
    if token == "(":
        found = _choice(tokens, text)
        if tokens[:1] != [")"]:
            raise ValueError(f"{text} is no constant expression: a bracket is not closed")
        tokens.pop(0)
        return found
    if token in ("-", "+", "~", "!"):
        of = _unary(tokens, text)
        if token == "!":
            return Constant(int(not of.value))
        return _held({"-": -of.value, "+": of.value, "~": ~of.value}[token], of.unsigned)
    if token[0] == "(":  # a cast
        return _held(_unary(tokens, text).value, ".u" in token)
    if token == WARP_SIZE:
        return Constant(32)
    if not token[0].isdigit():
        raise ValueError(f"{text} is no constant expression: {token} stands where a value is needed")
    digits = token.rstrip("U")
    value = int(digits, 8) if re.fullmatch(r"0[0-7]+", digits) else int(digits, 0)
    if value >> 64:
        raise ValueError(f"{digits} has more than 64 bits")
    return Constant(value, token[-1] == "U" or value >> 63 != 0)
