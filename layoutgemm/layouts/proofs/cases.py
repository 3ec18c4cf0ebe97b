"""Proofs of index formulas by cases: a digit is bisected until every formula goes through.

The rewriting of `digits.py` stops where a value is no linear form of the digits. -(-x // 64) is x.1 where the low digit
x.0 of x is 0, and x.1 + 1 elsewhere. Here x.0 is halved as often as needed: 0..1, 2..3, 4..7 and so on to 32..63. In
each case the low digit is a number plus a digit of fewer values, the others keep all of theirs, and the forms are equal
for every size. Digits of symbolic extent lose their first value, then their last one.

The cases cover the box of all digits, so equal forms in each prove equality. Different forms prove nothing here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod

from ...errors import LayoutError
from ..int_tuple import leaves
from ..symbols.polynomial import Scalar, ge0
from .digit_boxes import CannotRewrite, Digit, DigitBox
from .digits import Formula, NormalForm, call, rewrite

CASES = 600  # boxes that are rewritten, for one proof
VALUES = 1 << 16  # values of the digits on which a value depends; of more no proof is tried
WHOLE = 1 << 12  # the largest radix at which a variable is split to make other radices agree


@dataclass(frozen=True)
class VariablePart:
    """A part of a variable: `weight` times `first` + 0..extent-1.

    cut   how often a symbolic extent lost its first or its last value
    """

    weight: Scalar
    extent: Scalar
    first: Scalar = 0
    cut: int = 0


Parts = Mapping[str, tuple[VariablePart, ...]]  # by variable: its value is the sum of its parts


def cases(left: Formula, right: Formula, stuck: CannotRewrite, read: Callable[[Scalar], Scalar]) -> int | None:
    """The number of cases, with equal forms in each; None where a case has others.

    `stuck` is the refusal of `rewrite` on the whole box; `read` gives an entry of a formula under the facts.

    >>> from layoutgemm.layouts.symbols.dims import dim
    >>> from layoutgemm.layouts.proofs.digits import rewrite
    >>> rounded_up = lambda x: (x + 63) // 64, lambda x: -(-x // 64)
    >>> try:
    ...     rewrite({"x": dim("M")}, *rounded_up)
    ... except CannotRewrite as stuck:
    ...     print(cases(*rounded_up, stuck, lambda x: x))
    6
    """
    if stuck.box is None:
        return None
    whole: Parts = {v: (VariablePart(1, n),) for v, n in stuck.box.extents.items()}
    todo = [(whole, {v: (v, 0) for v in whole}, stuck)]
    tried = done = 0
    while todo:
        parts, names, stuck = todo.pop()
        smaller = _smaller(parts, names, stuck)
        tried += len(smaller)
        if not smaller or tried > CASES:
            return None
        for each in smaller:
            names = {f"{v}.{i}": (v, i) for v in each for i in range(len(each[v]))}
            extents = {name: each[v][i].extent for name, (v, i) in names.items()}
            try:
                _, (f, g) = rewrite(extents, _of_parts(left, each), _of_parts(right, each), read=read)
            except CannotRewrite as refusal:
                todo.append((each, names, refusal))
                continue
            except LayoutError:  # a fact is missing that no case supplies
                return None
            fs, gs = leaves(f), leaves(g)
            if len(fs) != len(gs) or not all(x.same(y) for x, y in zip(fs, gs)):
                return None
            done += 1
    return done


def _of_parts(formula: Formula, parts: Parts) -> Formula:
    """The formula as a function of the parts of its variables."""

    def value(**at: NormalForm) -> object:
        of = {v: [p.weight * (p.first + at[f"{v}.{i}"]) for i, p in enumerate(ps)] for v, ps in parts.items()}
        return call(formula, {v: sum(xs[1:], xs[0]) for v, xs in of.items()})

    return value


def _smaller(parts: Parts, names: Mapping[str, tuple[str, int]], stuck: CannotRewrite) -> list[Parts]:
    """The cases of these parts that a refusal asks for; none where no case would help."""
    box = stuck.box
    if box is None:
        return []
    if stuck.radix is not None:
        name, at = stuck.radix
        v, i = names[name]
        part = parts[v][i]
        if at <= WHOLE and (part.extent.__class__ is not int or at < part.extent):
            try:
                whole = DigitBox({name: part.extent})
                whole.split(name, at)
            except CannotRewrite:
                return []
            return [_with(parts, v, i, _split(part, whole, name))]
        return [_with(parts, v, i, (half,)) for half in _halves(part)]
    found: tuple[Digit, VariablePart] | None = None
    if prod([e for e in map(box.extent, stuck.digits) if e.__class__ is int]) > VALUES:
        return []
    for digit in stuck.digits:
        v, i = names[digit[0]]
        part = _split(parts[v][i], box, digit[0])[digit[1]]
        if _order(part) > (0 if found is None else _order(found[1])):
            found = digit, part
    if found is None:
        return []
    (name, k), part = found
    v, i = names[name]
    split = _split(parts[v][i], box, name)
    return [_with(parts, v, i, (*split[:k], half, *split[k + 1 :])) for half in _halves(part)]


def _order(part: VariablePart) -> float:
    """The extent of a part that can be halved, 0.5 of a symbolic one; else 0."""
    if part.extent.__class__ is int:
        return part.extent if part.extent > 1 else 0
    return 0.5 if part.cut == 0 or (part.cut == 1 and ge0(part.extent - 2)) else 0


def _halves(part: VariablePart) -> list[VariablePart]:
    e, first, cut = part.extent, part.first, part.cut
    if not _order(part):
        return []
    if e.__class__ is int:
        return [VariablePart(part.weight, e // 2, first), VariablePart(part.weight, e - e // 2, first + e // 2)]
    if cut:
        return [VariablePart(part.weight, e - 1, first, cut + 1), VariablePart(part.weight, 1, first + e - 1, cut + 1)]
    # Where the extent may be 1, one value too many: a proof of more values is a proof.
    rest = e - 1 if ge0(e - 2) else e
    return [VariablePart(part.weight, 1, first, cut + 1), VariablePart(part.weight, rest, first + 1, cut + 1)]


def _split(part: VariablePart, box: DigitBox, name: str) -> tuple[VariablePart, ...]:
    """The part as its digits of a box. The first value goes to the lowest one."""
    pairs = enumerate(zip(box.digits[name], box.weights[name]))
    return tuple(VariablePart(part.weight * w, e, 0 if k else part.first, part.cut) for k, (e, w) in pairs)


def _with(parts: Parts, v: str, i: int, new: tuple[VariablePart, ...]) -> Parts:
    return {**parts, v: (*parts[v][:i], *new, *parts[v][i + 1 :])}
