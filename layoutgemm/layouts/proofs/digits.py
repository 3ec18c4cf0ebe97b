"""Index formulas over mixed-radix digits, for all sizes at once. div, mod and XOR are rewritten into a normal form.

A variable x in 0..n-1 is split, where a formula asks for it, into digits: x = x.0 + 8*x.1 with x.0 in 0..7. Every value
then has a normal form

    constant + sum of coefficient * (XOR of a set of digits)

where a set of one digit is the digit itself, larger sets hold bits (digits of extent 2), and coefficients and extents
are ints or polynomials in the sizes. `+ - *const` act on coefficients; `//d` keeps what d divides and drops a remainder
that is provably in 0..d-1, splitting digits until one of both holds; `^ & |` act on sets.

    x in 0..63, y in 0..7:   (64*y + x) ^ ((64*y + x) >> 3 & 56)
    split x at 8, 16, 32 and y at 2, 4:
    64*y.0 + 128*y.1 + 256*y.2 + x.0 + 8*(x.1 ^ y.0) + 16*(x.2 ^ y.1) + 32*(x.3 ^ y.2)

The form is unique on the box of all digits: digits, and the XORs of different sets of bits, are linearly independent
functions with the constant. So equal forms prove equality at every size, and different forms refute it on that box;
layouts of power-of-two extents under swizzles are a special case.

A split that does not divide the extent makes the box larger ("over-covers": 12 rows become 2 times 8). Equality on the
larger box is equality; a difference may lie outside. What the rewriting cannot do raises `CannotRewrite`, which names
facts that would help. `layouts/proofs/index_formulas.py` makes proofs and counterexamples of this.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import reduce
from math import gcd, inf, prod
from typing import Any

from ...arguments import shown
from ...errors import LayoutError
from ..int_tuple import transform
from ..layout import Layout
from ..linear import LinearLayout
from ..swizzle import ComposedLayout, Swizzle
from ..symbols.polynomial import (
    Polynomial,
    Scalar,
    div,
    ge0,
    make,
    needs_div,
    needs_ge,
    reading,
    reread,
    show,
    terms_of,
)
from .digit_boxes import CannotRewrite, Digit, DigitBox, SplitNeeded, distinct

Formula = Callable[..., Any]  # of variables by name
Bit = tuple[frozenset[Digit], bool]  # XOR of the set, and whether it is negated
ZERO: frozenset[Digit] = frozenset()
IN_ORDER = (Layout, ComposedLayout, LinearLayout, Swizzle)  # formulas that take the variables in their order


def variable(box: DigitBox, name: str) -> NormalForm:
    """A variable as a form: the sum of its digits times their weights."""
    pairs = enumerate(zip(box.digits[name], box.weights[name]))
    return NormalForm(box, {frozenset([(name, i)]): w for i, (e, w) in pairs if e != 1}, 0)


class NormalForm:
    """A value in normal form: `constant` + sum of `terms`, coefficients by set of digits. See the module.

    Does + - with forms and entries, * with what has no digits, // and % by what is provably positive and has no digits,
    << >> by ints, and & | ^ ~ as integers of unlimited width do. Raises CannotRewrite.
    """

    __slots__ = ("box", "constant", "quotients", "terms")
    compares_symbols = True

    def __init__(self, box: DigitBox, terms: dict[frozenset[Digit], Scalar], constant: Scalar) -> None:
        self.box, self.terms, self.constant = box, terms, constant
        self.quotients: dict[Scalar, NormalForm] = {}  # formulas ask for x // d and for x % d

    def _lift(self, other: object) -> NormalForm | None:
        if other.__class__ is NormalForm:
            return other
        other = _entry(other)
        return None if other is None else _constant(self.box, other)

    # ------------------------------------------------------------ sums and multiples

    def __add__(self, other: Scalar | NormalForm) -> NormalForm:
        right = self._lift(other)
        if right is None:
            return NotImplemented
        terms = dict(self.terms)
        for s, c in right.terms.items():
            v = terms.get(s, 0) + c
            if v.__class__ is int and v == 0:
                del terms[s]
            else:
                terms[s] = v
        return NormalForm(self.box, terms, self.constant + right.constant)

    __radd__ = __add__

    def __neg__(self) -> NormalForm:
        return NormalForm(self.box, {s: -c for s, c in self.terms.items()}, -self.constant)

    def __pos__(self) -> NormalForm:
        return self

    def __sub__(self, other: object) -> NormalForm:
        right = self._lift(other)
        return NotImplemented if right is None else self + -right

    def __rsub__(self, other: Scalar) -> NormalForm:
        return -self + other

    def __mul__(self, other: Scalar | NormalForm) -> NormalForm:
        right = self._lift(other)
        if right is None:
            return NotImplemented
        if right.terms and self.terms:
            short = min((self, right), key=NormalForm._cases)
            raise CannotRewrite(f"the product ({self}) * ({right}) is not linear in the digits", (), short._digits())
        a, b = (right, self) if right.terms else (self, right)
        k = b.constant
        if k.__class__ is int and k == 0:
            return NormalForm(self.box, {}, 0)
        return NormalForm(self.box, {s: c * k for s, c in a.terms.items()}, a.constant * k)

    __rmul__ = __mul__

    # ------------------------------------------------------------ digits and bounds

    def _digits(self) -> set[Digit]:
        """The digits on which the value depends."""
        return {digit for s in self.terms for digit in s}

    def _cases(self) -> float:
        """The number of values of the digits."""
        extents = [self.box.extent(digit) for digit in self._digits()]
        return prod([e if e.__class__ is int else inf for e in extents])

    def low(self) -> Scalar:
        """A lower bound on the box."""
        return self.constant + self._bound(lambda c: c)

    def high(self) -> Scalar:
        """An upper bound on the box."""
        return self.constant - self._bound(lambda c: -c)

    def _bound(self, sign: Callable[[Scalar], Scalar]) -> Scalar:
        """The sum of the terms' least values, of sign(coefficient) * digit."""
        total: Scalar = 0
        covered = {cover[3] for cover in self.box.covers}
        for s, c in self.terms.items():
            ((name, i),) = s if len(s) == 1 else (("", 0),)
            if name not in covered:
                total = total + _least(sign(c), 1 if len(s) > 1 else self.box.extent((name, i)) - 1)
        for name in covered:
            for factor, most in self._fields(name):
                total = total + _least(sign(factor), most)
        return total

    def _fields(self, name: str) -> Iterator[tuple[Scalar, Scalar]]:
        """The terms of a variable with over-covering digits: factors of its fields, and the most that each field can
        be.

        Digits from weight v up to weight w that occur as multiples of their weights are factor * v * (x % w // v). That
        is below w, however far the digits by themselves would reach.
        """
        digits, weights = self.box.digits[name], self.box.weights[name]
        i = 0
        while i < len(digits):
            c, start = self.terms.get(frozenset([(name, i)]), 0), i
            factor = div(c, weights[i])
            i += 1
            if c.__class__ is int and c == 0:
                continue
            if factor is None:
                yield c, digits[start] - 1
                continue
            while i < len(digits) and (
                digits[i] == 1 or self.terms.get(frozenset([(name, i)]), 0) == factor * weights[i]
            ):
                i += 1
            end, v = weights[i] if i < len(digits) else self.box.extents[name], weights[start]
            yield factor, end - v if div(end, v) is not None else end - 1

    # ------------------------------------------------------------ division

    def __floordiv__(self, other: object) -> NormalForm:
        right = self._lift(other)
        if right is None:
            return NotImplemented
        if right.terms:
            raise CannotRewrite(f"division by {right}, which has digits", (), right._digits())
        d = right.constant
        known = self.quotients.get(d)
        if known is None:
            known = self.quotients[d] = self._quotient(d)
        return known

    def _quotient(self, d: Scalar) -> NormalForm:
        if not ge0(d - 1):
            raise CannotRewrite(f"division by {show(d)}", needs_ge(d - 1))
        quotient: dict[frozenset[Digit], Scalar] = {}
        rest: dict[frozenset[Digit], Scalar] = {}
        for s, c in self.terms.items():
            q, r = _divide(c, d)
            if not (q.__class__ is int and q == 0):
                quotient[s] = q
            if not (r.__class__ is int and r == 0):
                rest[s] = r
        k, r = _divide(self.constant, d)
        remainder = NormalForm(self.box, rest, r)
        carry = remainder._carry(d)
        if carry is None:
            return NormalForm(self.box, quotient, k) + remainder._small_quotient(d)
        return NormalForm(self.box, quotient, k + carry)

    def _carry(self, d: Scalar) -> Scalar | None:
        """The one value of floor(self / d), where the bounds leave only one; else None."""
        if not self.terms and self.constant.__class__ is int and self.constant == 0:
            return 0
        low, high = self.low(), self.high()
        least, _ = _divide(low, d)
        for carry in (0, least, least - 1):  # of symbols, the rest of `low` may lie below 0
            if ge0(low - carry * d) and ge0(carry * d + d - 1 - high):
                return carry
        return None

    def _small_quotient(self, d: Scalar) -> NormalForm:
        """floor(self / d) for a remainder that the bounds do not decide: split a digit, or tabulate a single one."""
        for s, c in self.terms.items():
            if len(s) > 1:
                continue
            (digit,) = s
            e = self.box.extent(digit)
            period = div(d, c)
            if period is None and d.__class__ is int and c.__class__ is int:
                period = d // gcd(c, d)
            if period is None or not ge0(period):
                period = div(d, -c)
            if period is None or not ge0(period):
                continue
            if period != 1 and not ge0(period - e):
                raise SplitNeeded([(digit[0], self.box.weight(digit) * period)])
        if len(self.terms) == 1 and d.__class__ is int and self.constant.__class__ is int:
            ((s, c),) = self.terms.items()
            e = 2 if len(s) > 1 else self.box.extent(next(iter(s)))
            if c.__class__ is int and e.__class__ is int and e <= 1 << 12:
                at0, step = self.constant // d, (self.constant + c) // d - self.constant // d
                if all((self.constant + c * x) // d == at0 + step * x for x in range(e)):
                    return NormalForm(self.box, {s: step} if step else {}, at0)
        entries = [c for c in (*self.terms.values(), self.constant) if c.__class__ is Polynomial]
        needs = [f for c in entries for f in needs_div(d, c)]
        if not needs:
            low, gap = self.low(), d - 1 - self.high()
            needs = [f for x in (low, gap) if not ge0(x) for f in needs_ge(x)]
        why = f"({self}) // {show(d)}: what {show(d)} does not divide is not below it"
        raise CannotRewrite(why, distinct(needs), self._digits())

    def __mod__(self, other: Scalar | NormalForm) -> NormalForm:
        return self - (self // other) * other

    def __divmod__(self, other: Scalar | NormalForm) -> tuple[NormalForm, NormalForm]:
        q = self // other
        return q, self - q * other

    def __rfloordiv__(self, other: object) -> NormalForm:
        left = self._lift(other)
        return NotImplemented if left is None else left // self

    def __rmod__(self, other: object) -> NormalForm:
        left = self._lift(other)
        return NotImplemented if left is None else left % self

    # ------------------------------------------------------------ bits

    def __rshift__(self, n: Scalar) -> NormalForm:
        return self // (1 << n) if n.__class__ is int else NotImplemented

    def __lshift__(self, n: Scalar) -> NormalForm:
        return self * (1 << n) if n.__class__ is int else NotImplemented

    def __invert__(self) -> NormalForm:
        return -self - 1

    def __xor__(self, other: object) -> NormalForm:
        return self._bitwise(other, _xor, True)

    def __and__(self, other: object) -> NormalForm:
        if other.__class__ is int:
            # Runs of ones are fields: no need to know every bit.
            if other < 0:
                return self - (self & ~other)
            total: NormalForm = NormalForm(self.box, {}, 0)
            while other:
                low = (other & -other).bit_length() - 1
                n = (~(other >> low) & ((other >> low) + 1)).bit_length() - 1
                total = total + (((self >> low) % (1 << n)) << low)
                other &= ~(((1 << n) - 1) << low)
            return total
        return self._bitwise(other, _and, False)

    def __or__(self, other: object) -> NormalForm:
        return self._bitwise(other, _or, True)

    __rxor__, __rand__, __ror__ = __xor__, __and__, __or__

    def _bitwise(self, other: object, operation: Callable[[Bit, Bit], Bit | None], keeps_upper: bool) -> NormalForm:
        """Bit by bit below 2^n, where one operand lies in 0..2^n-1; above that the other one, or nothing."""
        right = self._lift(other)
        if right is None:
            return NotImplemented
        wide, narrow, top = self, right, right.high()
        if top.__class__ is not int or not ge0(right.low()):
            wide, narrow, top = right, self, self.high()
            if top.__class__ is not int or not ge0(self.low()):
                raise CannotRewrite(
                    f"neither {self} nor {right} is known to lie between 0 and a constant: their bits are endless"
                )
        n = max(top, 0).bit_length()
        a, upper = wide._bits(n)
        b, _ = narrow._bits(n)
        out = upper if keeps_upper else NormalForm(self.box, {}, 0)
        for p in a.keys() | b.keys():
            both = operation(a.get(p, (ZERO, False)), b.get(p, (ZERO, False)))
            if both is None:
                digits = self._digits() | right._digits()
                raise CannotRewrite("the AND of two different bits is not a XOR of bits", (), digits)
            s, negated = both
            if s:
                out = out + NormalForm(self.box, {s: -(1 << p) if negated else 1 << p}, 0)
            if negated:
                out = out + (1 << p)
        return out

    def _bits(self, n: int) -> tuple[dict[int, Bit], NormalForm]:
        """The bits below 2^n by position, and the rest, a multiple of 2^n."""
        one = 1 << n
        upper: dict[frozenset[Digit], Scalar] = {}
        pieces: list[tuple[frozenset[Digit], int]] = []
        splits: list[tuple[str, Scalar]] = []
        for s, c in self.terms.items():
            if div(c, one) is not None:
                upper[s] = c
                continue
            if isinstance(c, Polynomial):
                raise CannotRewrite(f"the low {n} bits of {self}", needs_div(one, c))
            digit = next(iter(s))
            if len(s) == 1 and self.box.extent(digit) != 2:
                # Bits of the digit matter until the coefficient has moved past position n.
                count = n - ((c & -c).bit_length() - 1)
                e, w = self.box.extent(digit), self.box.weight(digit)
                splits += [
                    (digit[0], w * (1 << i)) for i in range(1, count + 1) if e.__class__ is Polynomial or 1 << i < e
                ]
            pieces.append((s, c))
        if splits:
            raise SplitNeeded(splits)
        bits: dict[int, Bit] = {}
        k, constant = _divide(self.constant, one)
        if isinstance(constant, Polynomial):
            raise CannotRewrite(f"the low {n} bits of {self}", needs_div(one, constant))
        for s, c in pieces:
            if c < 0:  # -c*x = c*(1-x) - c
                constant += c
            m, p = abs(c), 0
            while m:
                if m & 1:
                    if p in bits:
                        why = f"{self} as bits: two terms meet at bit {p}, and their sum carries"
                        raise CannotRewrite(why, (), self._digits())
                    if p < n:
                        bits[p] = s, c < 0
                    else:
                        upper[s] = upper.get(s, 0) + (c >> p << p if c > 0 else -(-c >> p << p))
                        constant += ((-c >> p) << p) if c < 0 else 0
                        break
                m >>= 1
                p += 1
        k, constant = k + constant // one, constant % one
        for p in range(n):
            if constant >> p & 1:
                if p in bits:
                    why = f"{self} as bits: a term meets the constant at bit {p}, and their sum carries"
                    raise CannotRewrite(why, (), self._digits())
                bits[p] = ZERO, True
        return bits, NormalForm(self.box, upper, k * one)

    # ------------------------------------------------------------ the value

    def same(self, other: NormalForm) -> bool:
        """True if the normal forms are equal. The same value at every coordinate of the box."""
        return self.terms == other.terms and self.constant == other.constant

    def __eq__(self, other: object) -> bool:
        # A formula that branches on this must get the truth at every coordinate, or nothing.
        difference = self - other
        if not difference.terms and difference.constant.__class__ is int:
            return bool(difference.constant == 0)
        if ge0(difference.low() - 1) or ge0(-difference.high() - 1):
            return False
        raise self._branch("==", other, difference)

    def __ge__(self, other: object) -> bool:
        difference = self - other
        if ge0(difference.low()):
            return True
        if ge0(-difference.high() - 1):
            return False
        raise self._branch(">=", other, difference)

    def _branch(self, relation: str, other: object, difference: NormalForm) -> CannotRewrite:
        why = f"whether {self} {relation} {other} depends on the coordinate: formulas cannot branch on it"
        return CannotRewrite(why, (), difference._digits())

    def __gt__(self, other: Scalar | NormalForm) -> bool:
        return self >= other + 1

    def __le__(self, other: Scalar | NormalForm) -> bool:
        return -self >= -other

    def __lt__(self, other: Scalar | NormalForm) -> bool:
        return -self >= 1 - other

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        return not self == 0

    def __abs__(self) -> NormalForm:
        return self if self >= 0 else -self

    def __index__(self) -> int:
        if self.terms or self.constant.__class__ is not int:
            raise CannotRewrite(f"{self} is no single number, as an index must be", (), self._digits())
        return self.constant

    def __str__(self) -> str:
        parts = [show(self.constant)] if self.constant != 0 or not self.terms else []
        for s, c in self.terms.items():
            name = " ^ ".join(f"{v}.{i}" if len(self.box.digits[v]) > 1 else v for v, i in sorted(s))
            k = show(c)
            k = f"({k})" if "+" in k or "-" in k[1:] else k
            parts.append(name if c == 1 and len(s) == 1 else f"{k}*({name})" if len(s) > 1 else f"{k}*{name}")
        return " + ".join(parts)

    __repr__ = __str__


def _constant(box: DigitBox, x: Scalar) -> NormalForm:
    """An entry of a formula as a form, under the facts of the box."""
    return NormalForm(box, {}, x if box.read is None or x.__class__ is int else box.read(x))


def _xor(a: Bit, b: Bit) -> Bit:
    return a[0] ^ b[0], a[1] != b[1]


def _and(a: Bit, b: Bit) -> Bit | None:
    for x, y in ((a, b), (b, a)):
        if not x[0]:
            return y if x[1] else (ZERO, False)
    if a[0] == b[0]:
        return a if a[1] == b[1] else (ZERO, False)
    return None


def _or(a: Bit, b: Bit) -> Bit | None:
    both = _and((a[0], not a[1]), (b[0], not b[1]))
    return None if both is None else (both[0], not both[1])


def _entry(x: object) -> Scalar | None:
    """An int or polynomial, or None."""
    if x.__class__ is int or x.__class__ is Polynomial:
        return x
    if hasattr(x, "__index__") and not isinstance(x, bool):
        return int(x)
    return None


def _least(c: Scalar, most: Scalar) -> Scalar:
    """The least value of c * x for x in 0..most."""
    if ge0(c):
        return 0
    if not ge0(-c):
        raise CannotRewrite(f"the sign of the coefficient {show(c)}", needs_ge(c))
    return c * most


def _divide(c: Scalar, d: Scalar) -> tuple[Scalar, Scalar]:
    """c = q*d + r, with as much in q as is known to be whole; for ints divmod, for polynomials term by term."""
    q = div(c, d)
    if q is not None:
        return q, 0
    if c.__class__ is int:
        return divmod(c, d) if d.__class__ is int else (0, c)
    q = 0
    for m, a in terms_of(c).items():
        part = div(make({m: a}), d)
        if part is not None:
            q = q + part
        elif d.__class__ is int and m == ():
            q = q + a // d
    return q, c - q * d


def minimum(*values: object) -> Any:
    """The least value: of ints, arrays, or forms whose order the bounds decide (else CannotRewrite)."""
    return reduce(lambda a, b: _select(a, b, False), values)


def maximum(*values: object) -> Any:
    """The largest value; see minimum."""
    return reduce(lambda a, b: _select(a, b, True), values)


def _select(a: Any, b: Any, larger: bool) -> Any:
    difference = a - b if any(x.__class__ in (NormalForm, Polynomial) for x in (a, b)) else None
    if isinstance(difference, (NormalForm, Polynomial, int)):
        low: Scalar
        high: Scalar
        if isinstance(difference, NormalForm):
            low, high = difference.low(), difference.high()
        else:
            (difference,) = reread(difference) or (difference,)
            low = high = difference
        if ge0(low):
            return a if larger else b
        if ge0(-high):
            return b if larger else a
        name = "max" if larger else "min"
        digits = difference._digits() if isinstance(difference, NormalForm) else ()
        raise CannotRewrite(f"{name}({a}, {b})", distinct((*needs_ge(low), *needs_ge(-high))), digits)
    if hasattr(a, "dtype") or hasattr(b, "dtype"):
        import numpy as np

        return np.maximum(a, b) if larger else np.minimum(a, b)
    return max(a, b) if larger else min(a, b)


def rewrite(
    extents: Mapping[str, Scalar], *formulas: Formula, read: Callable[[Scalar], Scalar] | None = None
) -> tuple[DigitBox, list[Any]]:
    """The normal forms of formulas on one box. Functions of the variables by name, or layouts in their order.

    Splits digits and starts again until every formula goes through. A formula may return a tuple; then so is its form.
    `read` gives an entry that a formula uses under facts. Raises CannotRewrite.

    >>> box, (f, g) = rewrite({"x": 64, "y": 8}, lambda x, y: (8 * y + x // 8) % 8, lambda x, y: x // 8)
    >>> f.same(g), str(f)
    (True, 'x.1')
    """
    box = DigitBox(extents, read)
    for _ in range(200):
        variables = {name: variable(box, name) for name in box.extents}
        try:
            with reading(read):
                out = [call(f, variables) for f in formulas]
        except CannotRewrite as stuck:
            stuck.box = box
            raise
        except LayoutError:
            raise
        except (TypeError, AttributeError, LookupError, ValueError, ArithmeticError) as error:
            said = str(error).replace("'NormalForm'", "'digits'").replace("'Polynomial'", "'a symbol'")
            raise CannotRewrite(
                f"the formula cannot be evaluated on digits, which have + - * // % & | ^ ~ << >>: {said}"
            ) from error
        except SplitNeeded as request:
            before = {v: list(d) for v, d in box.digits.items()}
            try:
                for name, at in request.splits:
                    box.split(name, at)
            except CannotRewrite as stuck:
                stuck.box = box
                raise
            if before == box.digits:
                raise CannotRewrite(f"splitting {request.splits} changes nothing") from None
            continue
        return box, [
            transform(lambda x: x if x.__class__ is NormalForm else _constant(box, _checked(x)), x) for x in out
        ]
    raise CannotRewrite("more than 200 splits")


def call(formula: Formula, variables: Mapping[str, object]) -> Any:
    """The formula at these values: layouts take them in order, functions by name. A list counts as a tuple."""
    if isinstance(formula, IN_ORDER):
        return formula(*variables.values())
    found = formula(**variables)
    return tuple(found) if found.__class__ is list else found


def _checked(x: object) -> Scalar:
    value = _entry(x)
    if value is None:
        raise CannotRewrite(f"the formula gives {shown(x)} ({type(x).__name__}), which is no integer")
    return value
