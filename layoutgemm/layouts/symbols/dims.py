"""Symbols as a user meets them. `dim`, entries read from text, and the way from and to SymPy.

A symbol made here is an entry like an int: it goes into shapes and strides, adds and multiplies, and divides where that
is exact. Otherwise it says which fact is missing. SymPy symbols and expressions are accepted in the same places and
become such entries at once. SymPy itself is loaded only when a caller hands over one of its objects or asks for one.

    >>> M, N = dim("M", multiple_of=64), dim("N")
    >>> M // 64, (M + 3) % 64, 8 * N * M // 16
    (M//64, 3, M*N//2)
    >>> N // 8
    Traceback (most recent call last):
        ...
    layoutgemm.layouts.symbols.polynomial.MissingFact: N // 8: needs 8 | N or N <= 7
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable
from fractions import Fraction
from typing import Any, TypeGuard

from ...arguments import MAX_BITS, as_int, is_int, refusal, shown
from ...errors import LayoutError, ParseError
from .. import registries
from .generators import GENERATORS, FactError, generator
from .polynomial import MAX_POWER, MissingFact, Polynomial, Scalar, floordiv, ge0, gen, needs_div, needs_ge, show

_declared: dict[str, Scalar] = {}


def dim(name: str, multiple_of: int = 1, min: int = 1, max: int | None = None) -> Scalar:
    """A symbol for an integer. A multiple of `multiple_of` in min..max (no upper bound when None).

    The result is an entry for shapes and strides. Calls with the same name and facts give the same symbol. Symbols of
    one name and different facts are different symbols, and raise FactError where they meet in one layout. Facts that
    relate symbols, or come later, are stated with `Facts`. Where the facts leave one value, the result is that int.

    Raises FactError when the facts leave no value, LayoutError for a name that is no identifier.

    >>> M = dim("M", multiple_of=64, max=4096)
    >>> M, M // 64, dim("M", multiple_of=64, max=4096) == M, dim("b", min=8, max=8)
    (M, M//64, True, 8)
    """
    if not isinstance(name, str) or not name.isidentifier():
        many = "; dims makes several" if isinstance(name, str) and len(name.replace(",", " ").split()) > 1 else ""
        raise LayoutError(f"a symbol's name is an identifier such as M, not {shown(name)}{many}")
    bounds: tuple[tuple[str, str, object], ...] = (("min", ">=", min), ("max", "<=", max))
    for what, relation, value in bounds:
        if value.__class__ is Polynomial:
            stated = f"{name} {relation} {show(value)}"
            raise LayoutError(f"{what} of dim must be an integer; state a relation by given={shown(stated)}")
    multiple_of = as_int(multiple_of, f"multiple_of of dim({name!r})", least=1)
    min = as_int(min, f"min of dim({name!r})")
    max = None if max is None else as_int(max, f"max of dim({name!r})")
    _declared[name] = symbol(name, multiple_of, min, max)
    return _declared[name]


def dims(names: str, multiple_of: int = 1, min: int = 1, max: int | None = None) -> tuple[Scalar, ...]:
    """Several symbols with the same facts: `M, N, K = dims("M N K")`.

    >>> M, N = dims("M N")
    >>> 2 * M + N
    2*M+N
    """
    if not isinstance(names, str):
        raise LayoutError(refusal(names, "names of dims", "a string such as 'M N'"))
    return tuple([dim(n, multiple_of, min, max) for n in names.replace(",", " ").split()])


def declared(name: str) -> Scalar:
    """The symbol last made under this name, or a new one >= 1."""
    found = _declared.get(name)
    return dim(name) if found is None else found


def entry(x: object, what: str = "an entry") -> Scalar:
    """`x` as an entry, int or Polynomial: SymPy integers, symbols and expressions are converted. Raises LayoutError."""
    if x.__class__ is Polynomial:
        return x
    if is_sympy(x):
        return from_sympy(x)
    if not is_int(x):
        raise LayoutError(refusal(x, what, "an integer or a symbol"))
    return as_int(x, what)


def extent(p: Scalar) -> Scalar:
    """`p` as a layout's extent. Raises MissingFact unless it is >= 1 at every size."""
    if not ge0(p - 1):
        raise MissingFact(f"a layout's extent must be at least 1, and {show(p)} may be less", needs_ge(p - 1))
    return p


def ceil_div(p: Scalar, d: Scalar) -> Scalar:
    """ceil(p / d) where the facts make it an entry. Raises MissingFact naming the facts that would.

    >>> ceil_div(dim("M", multiple_of=64), 64), ceil_div(100, 64)
    (M//64, 2)
    """
    p, d = entry(p, "the dividend of ceil_div"), entry(d, "the divisor of ceil_div")
    if d.__class__ is int and d == 0:
        raise LayoutError(f"ceil_div({show(p)},0): a division by zero")
    q = floordiv(-p, d)
    if q is None:
        raise MissingFact(f"ceil_div({show(p)},{show(d)})", (*needs_div(d, p), f"T = ceil_div({show(p)},{show(d)})"))
    return -q


# ---------------------------------------------------------------- entries from text

ARITHMETIC: dict[type, Callable[[Any, Any], Any]] = {
    ast.Add: lambda a, b: a + b,
    ast.Sub: lambda a, b: a - b,
    ast.Mult: lambda a, b: a * b,
    ast.FloorDiv: lambda a, b: a // b,
    ast.Mod: lambda a, b: a % b,
}
_BINARY = {**ARITHMETIC, ast.Pow: lambda a, b: a**b}


def parse_entry(text: str, symbol: Callable[[str], Scalar] | None = None) -> Scalar:
    """The entry that a text such as `64*N+8` or `M//64` means. Names are the symbols last made with `dim`, or new, or
    what `symbol` gives for them.

    >>> parse_entry("2*(M+1)") == 2 * declared("M") + 2
    True
    """
    tree = expression(text, "no integer and no expression of symbols")
    return evaluate(tree, symbol or declared)


MAX_EXPRESSION = 2000  # characters


def expression(text: str, failing: str) -> ast.expr:
    """The syntax tree of a text in Python's syntax. Raises ParseError, `failing` being what the text is, then.

    Texts are bounded, so that neither the parser nor what walks the tree runs out of stack.
    """
    if len(text) > MAX_EXPRESSION:
        raise ParseError(f"{len(text)} characters: an expression has at most {MAX_EXPRESSION}", text, MAX_EXPRESSION)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of numbers with letters behind them, which are refused below
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        at = (getattr(error, "offset", None) or 1) - 1
        why = f": {error.msg}" if isinstance(error, SyntaxError) else ""
        raise ParseError(f"`{_head(text)}` is {failing}{why}", text, at) from None
    depths = {id(tree): 1}
    for node in ast.walk(tree):  # breadth first: a parent comes before its children
        for child in ast.iter_child_nodes(node):
            depths[id(child)] = depths[id(node)] + 1
    if max(depths.values()) > MAX_DEPTH:
        raise ParseError(f"`{_head(text)}` nests more than {MAX_DEPTH} operations", text, 0)
    return tree


MAX_DEPTH = 200  # nested operations


def _head(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def evaluate(node: ast.expr, symbol: Callable[[str], Scalar]) -> Scalar:
    """The entry of an expression in + - * // % ** and ceil_div over integers and names."""
    if isinstance(node, ast.Constant) and node.value.__class__ is int:
        return node.value
    if isinstance(node, ast.Name):
        return symbol(node.id)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return -evaluate(node.operand, symbol)
    if isinstance(node, ast.BinOp) and type(node.op) in _BINARY:
        left, right = evaluate(node.left, symbol), evaluate(node.right, symbol)
        return operate(_BINARY[type(node.op)], node, left, right)
    if is_ceil_div(node):
        left, right = evaluate(node.args[0], symbol), evaluate(node.args[1], symbol)
        if right.__class__ is int and right == 0:
            raise _refused(node, "a division by zero")
        return ceil_div(left, right)
    raise _refused(node, "no integer expression in + - * // % ** and ceil_div")


def is_ceil_div(node: ast.AST) -> TypeGuard[ast.Call]:
    """True for a call of ceil_div with two arguments."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
        return False
    return node.func.id == "ceil_div" and len(node.args) == 2


def operate(operation: Callable[[object, object], Scalar], node: ast.BinOp, left: Scalar, right: Scalar) -> Scalar:
    """The operation of a node on two entries. Raises ParseError for divisions by zero and huge results.

    >>> evaluate(expression("M**2//4", ""), lambda name: dim(name, multiple_of=2))
    M**2//4
    >>> evaluate(expression("9**9**9", ""), dim)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.ParseError: `9 ** 9 ** 9`: the result has more than 4096 bits
      9 ** 9 ** 9
      ^
    """
    if right.__class__ is int:
        if right == 0 and isinstance(node.op, (ast.FloorDiv, ast.Mod)):
            raise _refused(node, "a division by zero")
        if isinstance(node.op, ast.Pow):
            if right < 0:
                raise _refused(node, "an exponent is an integer >= 0")
            if left.__class__ is int and left.bit_length() * right > MAX_BITS and abs(left) > 1:
                raise _refused(node, f"the result has more than {MAX_BITS} bits")
            if left.__class__ is not int and right > MAX_POWER:
                raise _refused(node, f"an exponent of symbols is at most {MAX_POWER}")
        if isinstance(node.op, (ast.LShift, ast.RShift)) and not 0 <= right <= MAX_BITS:
            raise _refused(node, f"a shift by {right} bits")
    elif isinstance(node.op, ast.Pow):
        raise _refused(node, "an exponent is an integer >= 0")
    try:
        out = operation(left, right)
    except ZeroDivisionError:
        raise _refused(node, "a division by zero") from None
    if out.__class__ is int and out.bit_length() > MAX_BITS:
        raise _refused(node, f"the result has more than {MAX_BITS} bits")
    return out


def _refused(node: ast.expr, why: str) -> ParseError:
    text = ast.unparse(node)
    return ParseError(f"`{_head(text)}`{' is' if why.startswith(('a ', 'no ')) else ':'} {why}", text, 0)


# ---------------------------------------------------------------- SymPy


def is_sympy(x: object) -> bool:
    """True for a SymPy expression; does not load SymPy."""
    sympy = sys.modules.get("sympy")
    return sympy is not None and isinstance(x, getattr(sympy, "Basic", ()))


def to_sympy(x: object) -> Any:
    """The entry as a SymPy expression in the user's symbols: M//64 becomes M/64. `from_sympy` is its inverse.

    A symbol whose only fact is >= 1 is Symbol(name, integer=True, positive=True); others carry their facts.

    >>> to_sympy(dim("M", multiple_of=64) // 32 + 1)
    M/32 + 1
    """
    return registries.to_sympy(x)


def from_sympy(x: object) -> Scalar:
    """A SymPy expression as an entry. Integer symbols, + - *, powers, exact quotients, floor, ceiling and Mod.

    The symbols' own assumptions are their facts: integer is required, positive means >= 1, nonnegative >= 0, even a
    multiple of 2. Raises LayoutError for what is no integer expression, MissingFact for a quotient that is not exact.
    """
    return registries.from_sympy(x)


_given: dict[str, int] = {}


def fresh_name(base: str) -> str:
    """A name that no symbol of this process has: `base`, then base_1, base_2, ...

    What is met twice without a name, as the `?` of two texts, is two integers, and must not become one symbol.

    >>> first, second = fresh_name("rows"), fresh_name("rows")
    >>> first != second
    True
    """
    taken = {G.symbol for G in GENERATORS}
    while True:
        count = _given.get(base, 0)
        _given[base] = count + 1
        name = f"{base}_{count}" if count else base
        if name not in taken:
            return name


def symbol(name: str, multiple_of: int = 1, low: int | None = 1, high: int | None = None) -> Scalar:
    """The symbol with these facts; texts keep their meaning of its name."""
    g_low = None if low is None else -(-low // multiple_of)
    g_high = None if high is None else high // multiple_of
    if g_low is not None and g_high is not None and g_low > g_high:
        raise FactError(f"{name}: there is no multiple of {multiple_of} in {low}..{high}")
    return gen(generator(name, g_low, g_high, {((name, 1),): Fraction(1, multiple_of)})) * multiple_of
