"""Closed forms of layouts in SymPy: `//`, `%` and `^` as people write them. Loaded by `formulas.py` on demand.

SymPy's own floor(a/b) and Mod(a, b) print as functions, and evaluate in floats once numbers come in. The three
functions here print as operators, evaluate on ints exactly, become NumPy code under `lambdify`, and have a LaTeX form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import sympy
from sympy.printing.precedence import PRECEDENCE
from sympy.printing.printer import Printer

from ...errors import LayoutError
from .. import registries
from ..basis import assemble, component, paths_of
from ..int_tuple import Shape, Stride, coal, product
from ..proofs.digit_boxes import CannotRewrite, DigitBox
from ..proofs.digits import NormalForm, maximum, minimum, rewrite
from ..swizzle import ComposedLayout, Swizzle
from .dims import from_sympy, to_sympy
from .polynomial import Polynomial, Scalar, div

TIMES, PLUS, XOR = PRECEDENCE["Mul"], PRECEDENCE["Add"], PRECEDENCE["Xor"]


class _Operator(sympy.Function):
    """A binary operator on integers, printed as in Python."""

    nargs = 2
    is_integer = True
    sign = ""
    # As low as a sum's: SymPy prints the factors of -8*(x%2) with a sum's precedence, and would leave them bare.
    precedence = PLUS

    def _text(self, printer: object) -> str:
        left, right = (self._operand(printer, x) for x in self.args)
        return f"{left}{self.sign}{right}"

    def _operand(self, printer: Printer, x: sympy.Expr) -> str:
        # In parentheses unless it binds tighter: x//(64*N), and (t//4)%8 though Python needs none.
        return str(printer.parenthesize(x, TIMES, strict=False))

    _sympystr = _pythoncode = _numpycode = _lambdacode = _text


class FloorDiv(_Operator):
    """a // b, rounded down.

    >>> t, N = sympy.symbols("t N", integer=True, positive=True)
    >>> 16 * FloorDiv(t, 32), FloorDiv(t, 64 * N), FloorDiv(64 * N, 64), FloorDiv(t, 32).subs(t, 100)
    (16*(t//32), t//(64*N), N, 3)
    """

    sign = "//"

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        """Quotients that are known: of integers, by 1, and of a multiple."""
        if b == 1 or a == 0:
            return a
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) // int(b))
        if a.is_Mul and (a / b).is_integer:
            return a / b
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[0].is_nonnegative and self.args[1].is_positive else None

    def _eval_rewrite_as_floor(self, a: sympy.Expr, b: sympy.Expr, **_: object) -> sympy.Expr:
        return sympy.floor(a / b)

    def _latex(self, printer: Printer) -> str:
        return rf"\left\lfloor \frac{{{printer._print(self.args[0])}}}{{{printer._print(self.args[1])}}} \right\rfloor"


class FloorMod(_Operator):
    """a % b, the remainder of a // b.

    >>> t = sympy.Symbol("t", integer=True, nonnegative=True)
    >>> FloorMod(FloorDiv(t, 4), 8), 8 * FloorMod(t, 2), FloorMod(t, 8).subs(t, 13), FloorMod(t + 1, 8)
    ((t//4)%8, 8*(t%2), 5, (t + 1)%8)
    """

    sign = "%"

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        """Remainders that are known: of integers, and by 1."""
        if b == 1 or a == 0:
            return sympy.Integer(0)
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) % int(b))
        return None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[1].is_positive else None

    def _eval_rewrite_as_Mod(self, a: sympy.Expr, b: sympy.Expr, **_: object) -> sympy.Expr:
        return sympy.Mod(a, b)

    def _latex(self, printer: Printer) -> str:
        left, right = (self._operand(printer, x) for x in self.args)
        return rf"{left} \bmod {right}"  # the printer puts it in parentheses as a factor


class BitXor(_Operator):
    """a ^ b, bit by bit.

    >>> m, k = sympy.symbols("m k", integer=True, nonnegative=True)
    >>> 64 * m + BitXor(k, 8 * FloorMod(m, 8)), BitXor(k, m).subs({k: 6, m: 3})
    (64*m + (k ^ 8*(m%8)), 5)
    """

    sign = " ^ "
    precedence = XOR

    @classmethod
    def eval(cls, a: sympy.Expr, b: sympy.Expr) -> sympy.Expr | None:
        """Values that are known: of integers, with 0, and with itself."""
        if a.is_Integer and b.is_Integer:
            return sympy.Integer(int(a) ^ int(b))
        if a == b:
            return sympy.Integer(0)
        return b if a == 0 else a if b == 0 else None

    def _eval_is_nonnegative(self) -> bool | None:
        return True if self.args[0].is_nonnegative and self.args[1].is_nonnegative else None

    def _operand(self, printer: Printer, x: sympy.Expr) -> str:
        text = str(printer._print(x))
        return f"({text})" if x.is_Add or isinstance(x, BitXor) else text

    def _latex(self, printer: Printer) -> str:
        left, right = (self._operand(printer, x) for x in self.args)
        return rf"\left( {left} \oplus {right} \right)"


def variable(name: str) -> sympy.Symbol:
    """The SymPy symbol of a coordinate."""
    return sympy.Symbol(name, integer=True, nonnegative=True)


def _entry(p: object) -> sympy.Expr:
    """An entry in SymPy, with quotients as //: they are exact, and so stay integers when numbers come in."""
    if p.__class__ is not Polynomial:
        return sympy.Integer(p)
    top, bottom = sympy.fraction(sympy.together(to_sympy(p)))
    return sympy.expand(top) if bottom == 1 else FloorDiv(sympy.expand(top), bottom)


# ---------------------------------------------------------------- layouts as expressions


@registries.closed_form.register(object)
def closed_form(source: Any, names: tuple[str, ...]) -> Any:
    """See formula.expr."""
    if isinstance(source, Swizzle):
        if len(names) != 1:
            raise LayoutError(f"{source} has one argument, not {names}")
        return _swizzled(source, variable(names[0]))
    shape = source.shape
    flat = shape.__class__ is not tuple or (len(names) == 1 and len(shape) > 1)
    shapes = (shape,) if flat else shape
    if len(names) != len(shapes):
        raise LayoutError(f"{source} has {len(shapes)} modes, and {len(names)} names {names}")
    if isinstance(source, ComposedLayout):
        return _composed(source, dict(zip(names, map(product, shapes), strict=True)))

    def plain(stride: Stride) -> sympy.Expr:
        return _plain(names, shapes, (stride,) if flat else stride)

    if source.has_basis:
        return assemble({p: plain(component(source.stride, p)) for p in paths_of(source.stride)})
    return plain(source.stride)


def _plain(names: tuple[str, ...], shapes: Sequence[Shape], strides: Any) -> sympy.Expr:
    terms = []
    for name, shape, stride in zip(names, shapes, strides, strict=True):
        width: int = 1
        S, D = coal(shape, stride)
        for i, (e, d) in enumerate(zip(S, D, strict=True)):
            terms.append(_entry(d) * _field(variable(name), width, e, i == len(S) - 1))
            width = width * e
    return sympy.Add(*terms)


def _field(x: sympy.Expr, width: sympy.Expr, extent: sympy.Expr, last: bool) -> sympy.Expr:
    part = FloorDiv(x, _entry(width))
    return part if last else FloorMod(part, _entry(extent))


def _composed(source: ComposedLayout, extents: dict[str, Any]) -> sympy.Expr:
    """The swizzled value; multiples of 2^n, of which a XOR below 2^n changes nothing, are written outside the XOR."""
    swizzle = source.swizzle

    def inner(**v: object) -> sympy.Expr:
        return source.layout(*v.values()) + source.offset

    if not swizzle.bits:
        try:
            box, (y,) = rewrite(extents, inner)
        except CannotRewrite:
            return _literal(source, extents)
        return _expression(box, y)
    source_low, low = (
        s.bit_length() - 1 for s in (swizzle.source_mask & -swizzle.source_mask, _lowest(swizzle.target_mask))
    )
    reach = 1 << (low + swizzle.bits)
    try:
        box, (y, field) = rewrite(extents, inner, lambda **v: (inner(**v) >> source_low) % (1 << swizzle.bits) << low)
    except CannotRewrite:
        return _literal(source, extents)
    upper = y.constant // reach * reach if y.constant.__class__ is int else 0
    outside = NormalForm(box, {s: c for s, c in y.terms.items() if div(c, reach) is not None}, upper)
    inside = y - outside
    return _expression(box, outside) + BitXor(_expression(box, inside), _expression(box, field))


def _lowest(mask: int) -> int:
    return mask & -mask


def _literal(source: ComposedLayout, extents: dict[str, object]) -> sympy.Expr:
    inner = source.layout
    if isinstance(inner, ComposedLayout):
        value = _literal(inner, extents)
    else:
        value = closed_form(inner, tuple(extents))
    return _swizzled(source.swizzle, value + _entry(source.offset))


def _swizzled(swizzle: Swizzle, x: sympy.Expr) -> sympy.Expr:
    if not swizzle.bits:
        return x
    field = FloorMod(FloorDiv(x, _lowest(swizzle.source_mask)), 1 << swizzle.bits)
    return BitXor(x, _lowest(swizzle.target_mask) * field)


def _expression(box: DigitBox, form: NormalForm) -> sympy.Expr:
    """A normal form in SymPy: neighbouring digits that continue each other are one field of the variable."""
    total = _entry(form.constant)
    for name, weights in box.weights.items():
        runs: list[tuple[int, Any]] = []  # the digit where a run starts, and its coefficient
        for i, (e, w) in enumerate(zip(box.digits[name], weights, strict=True)):
            c = form.terms.get(frozenset([(name, i)]), 0)
            ratio = div(w, weights[runs[-1][0]]) if runs else None
            if e != 1 and (ratio is None or runs[-1][1] * ratio != c):
                runs.append((i, c))
        ends = [*[i for i, _ in runs[1:]], len(weights)]
        for (i, c), end in zip(runs, ends, strict=False):
            if not (c.__class__ is int and c == 0):
                total += _entry(c) * _digits(box, name, i, end)
    for s, c in form.terms.items():
        if len(s) > 1:
            total += _entry(c) * reduce(BitXor, [_digits(box, name, i, i + 1) for name, i in sorted(s)])
    return total


def _digits(box: DigitBox, name: str, start: int, end: int) -> sympy.Expr:
    """The value of digits start..end-1 of a variable, counted from 1: x // v % (w/v) as a rule."""
    x, weights = variable(name), box.weights[name]
    v = weights[start]
    if end == len(weights):
        return FloorDiv(x, _entry(v))
    # A digit below one that over-covers is a digit of a remainder: x % 12 % 8, since 8 does not divide 12.
    moduli = [weights[end]]
    for w in weights[end + 1 :]:
        if div(w, moduli[-1]) is None:
            moduli.append(w)
    ratio = div(weights[end], v)
    if len(moduli) == 1 and ratio is not None:
        return _field(x, v, ratio, False)
    for w in reversed(moduli):
        x = FloorMod(x, _entry(w))
    return FloorDiv(x, _entry(v))


# ---------------------------------------------------------------- expressions as formulas


@registries.evaluator.register(object)
def evaluator(expression: object) -> Callable[..., object]:
    """A SymPy expression as a function of named variables; its other symbols are sizes."""
    expression = sympy.sympify(expression)

    def formula(**variables: object) -> Any:
        return _read(expression, variables)

    return formula


def _read(x: sympy.Expr, variables: dict[str, object]) -> Any:
    if x.is_Integer:
        return int(x)
    if x.is_Symbol:
        return variables[x.name] if x.name in variables else from_sympy(x)
    if isinstance(x, _Operator):
        a, b = (_read(y, variables) for y in x.args)
        return a // b if isinstance(x, FloorDiv) else a % b if isinstance(x, FloorMod) else a ^ b
    if isinstance(x, sympy.Mod):
        return _read(x.args[0], variables) % _read(x.args[1], variables)
    if isinstance(x, (sympy.Min, sympy.Max)):
        return (minimum if isinstance(x, sympy.Min) else maximum)(*[_read(y, variables) for y in x.args])
    if isinstance(x, (sympy.floor, sympy.ceiling)):
        top, bottom = (_read(y, variables) for y in sympy.fraction(sympy.together(x.args[0])))
        return top // bottom if isinstance(x, sympy.floor) else -(-top // bottom)
    if x.is_Add or x.is_Mul:
        top, bottom = sympy.fraction(sympy.together(x))
        if bottom != 1:
            return _exact(_read(top, variables), _read(bottom, variables), x)
        values = [_read(y, variables) for y in x.args]
        total = values[0]
        for v in values[1:]:
            total = total + v if x.is_Add else total * v
        return total
    if x.is_Pow and x.exp.is_Integer and x.exp >= 0:
        value: int = 1
        for _ in range(int(x.exp)):
            value = value * _read(x.base, variables)
        return value
    raise LayoutError(f"{x} ({type(x).__name__}) is no formula in + - * // % ^, floor, ceiling, Mod, Min and Max")


def _exact(top: Scalar, bottom: Scalar, x: object) -> Any:
    """A quotient that must leave no remainder."""
    quotient, rest = top // bottom, top % bottom
    zero = rest == 0
    if zero is True or getattr(zero, "all", lambda: False)():
        return quotient
    raise LayoutError(f"{x} is not an integer everywhere: write // where it is to be rounded down")
