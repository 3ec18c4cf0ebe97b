"""Reductions: associative and commutative operations on tuples of 32-bit numbers, traced like epilogue functions.

    element x at (i, j) --lift--> tuple;   two tuples --combine--> one;   the last tuple --finish--> results

Which tuples meet in which order is the kernel's choice, so the order must not matter. `Reduction.of` tries the laws on
samples and refuses an operation with the first tuples that break one.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from ...arguments import shown
from ...errors import PlanError
from ...memo import exact
from . import tracing
from .numpy_math import Math
from .places import ElementPlace, Value
from .steps import EpilogueOperand, check_operands
from .tracing import Expression, Operations, Symbol

_Two: TypeAlias = "tuple[Sequence[Value], Sequence[Value]]"

LOWEST = -3.4028234663852886e38  # the least finite float32
NO_INDEX = 2**31 - 1  # above all indices
INFINITY = math.inf
MOST = "most"  # the largest x of several elements, as a term reads it
MOST_COMPONENTS = 16
CHAINS = 4  # sums of terms beside each other, none of which waits for another
_SAMPLES = (-3.0, -0.5, 0.0, 1.0, 2.5, 7.0)
_CLOSE = 1e-4  # relative: sums in another order round otherwise


@dataclass(frozen=True)
class About:
    """The second component of several elements at once, from the largest of them. Fewer steps than by pairs.

    term    an element's, of x, i, j and the largest x, which it reads as "most". Elements outside of C are -inf: beside
            one of C their term changes nothing
    merged  how terms become one: "add", or "first". That is of a term which is the element's index, and takes the first
            that is a largest x, or NaN
    value   of x: what "the largest x" and the term take in its place
    """

    term: Expression
    merged: str
    value: Expression = ("x",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "term", exact(self.term))
        object.__setattr__(self, "value", exact(self.value))

    @classmethod
    def traced(cls, term: Callable[..., Symbol], merged: str, value: Expression = ("x",)) -> About:
        """term: (x, i, j, ops, most) -> the element's term."""
        most = Symbol(("given", MOST), "float")
        found = tracing.called(term, ("x", "i", "j", "ops", MOST), (*tracing.element(), tracing.Operations(), most))
        return cls(tracing.as_value(found).expression, merged, value)


@dataclass(frozen=True)
class Reduction:
    """An operation: see `Reduction.of`.

    lift, combine, finish  expressions for each component, or for each result
    identity               the tuple that changes no other, of places outside of C
    kinds                  "float" (f32) or "int" (i32) of each component
    results                (name, kind) of each result; the name "" is that of an only one, and results of one name are
                           one output
    atomic                 "sum", "max" or "min" where one component can be combined in memory by an atomic instruction
    about                  of two components, the first of which is the largest x: the second of several elements
    insert                 expressions for each component of a tuple and one element more, or none: combine(a, lift(x))
    operands               that lift and insert read
    """

    name: str
    lift: tuple[Expression, ...]
    combine: tuple[Expression, ...]
    finish: tuple[Expression, ...]
    identity: tuple[float | int, ...]
    kinds: tuple[str, ...]
    results: tuple[tuple[str, str], ...]
    atomic: str | None = None
    about: About | None = None
    insert: tuple[Expression, ...] = ()
    operands: tuple[EpilogueOperand, ...] = ()

    def __post_init__(self) -> None:
        for name in ("lift", "combine", "finish", "identity", "insert"):
            object.__setattr__(self, name, exact(getattr(self, name)))

    @classmethod
    def of(
        cls, lift: Callable[..., object], combine: Callable[..., object], identity: Sequence[float | int] | float,
        finish: Callable[..., object] | None = None, results: Sequence[str] = (), name: str = "reduction",
        insert: Callable[..., object] | None = None, operands: Sequence[EpilogueOperand] = (),
    ) -> Reduction:  # fmt: skip
        """The operation of traced functions, each giving up to 16 numbers.

        lift      (x, i, j, ops, *operands) -> an element's tuple: f32 values, or whole numbers
        combine   (a, b, ops) -> one tuple of two
        identity  the tuple that changes no other; finite numbers, since arithmetic of infinities gives NaN. A number
                  alone: a and b of the other functions are numbers, too
        finish    (a, ops) -> the results; by default the components themselves
        results   a name for each result, of several. Neighbours of one name are one output, such as (M, 2): a result
                  may be a tuple itself, and has its name once
        insert    (a, x, i, j, ops, *operands) -> combine(a, lift(x, ...)) in fewer steps: a thread takes its elements
                  one by one, and most of a kernel's arithmetic is here
        operands  that lift and insert read where the element is: EpilogueOperands, as `Custom.of` takes them

        Raises PlanError for another number of components, and for an operation that is not associative or not
        commutative, or whose identity changes a tuple. The laws are tried on samples; the first failure is named.

        >>> product = Reduction.of(lambda x, i, j, ops: x, lambda a, b, ops: a * b, 1.0)
        >>> product.reduce(np.array([[1.0, 2.0, 4.0]], np.float32), axis=-1)[0].tolist()
        [8.0]

        The largest of x + bias in each row, with the x there, as a router that corrects its choice but not its weights:

        >>> from layoutgemm.kernels.epilogue.chain import Epilogue, EpilogueOperand, RowReduce
        >>> def larger(a, b, ops):
        ...     first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] >= b[1]))
        ...     return ops.where(first, a[0], b[0]), ops.where(first, a[1], b[1])
        >>> chosen = Reduction.of(
        ...     lambda x, i, j, ops, bias: (x + bias, x), larger, [-1e38, -1e38], lambda a, ops: a[1],
        ...     operands=[EpilogueOperand("bias", "n", "f32")],
        ... )
        >>> made = Epilogue(RowReduce(chosen, "score"), stores_c=False)
        >>> made.reference(np.array([[1.0, 4.0, 2.0]]), bias=[0.0, 0.0, 9.0]).written["score"].tolist()
        [2.0]

        Eight values of 4 bits, of a `RowReduce(..., each=8)`, make a word:

        >>> def nibble(x, i, j, ops):
        ...     ones, twos, fours = (ops.where(j // n % 2 == 1, 16**n, 1) for n in (1, 2, 4))
        ...     return (ops.whole(ops.minimum(ops.maximum(ops.round(x), -8.0), 7.0)) & 15) * ones * twos * fours
        >>> words = Reduction.of(nibble, lambda a, b, ops: a[0] + b[0], [0])
        >>> hex(words.reduce(np.arange(-4.0, 4.0, dtype=np.float32)[None, :], axis=-1)[0].view(np.uint32)[0])
        '0x3210fedc'

        >>> Reduction.of(lambda x, i, j, ops: x, lambda a, b, ops: a[0] - b[0], [0.0])
        Traceback (most recent call last):
            ...
        layoutgemm.errors.PlanError: the reduction is not commutative: a = (-3.0,), b = (-0.5,): combine(a, b) = \
(-2.5,), combine(b, a) = (2.5,)
        """
        made = cls.traced(lift, combine, identity, finish, results, name, insert, operands)
        made.check_laws()
        return made

    @classmethod
    def traced(
        cls, lift: Callable[..., object], combine: Callable[..., object], identity: Sequence[float | int] | float,
        finish: Callable[..., object] | None = None, results: Sequence[str] = (), name: str = "reduction",
        insert: Callable[..., object] | None = None, operands: Sequence[EpilogueOperand] = (),
    ) -> Reduction:  # fmt: skip
        """The same without its laws being tried: this package's own are tried by its tests."""
        read = _checked_operands(operands)
        taken = [tracing.Symbol(("given", x.name), "int" if x.dtype.kind == "int" else "float") for x in read]
        names_read = ("x", "i", "j", "ops", *[x.name for x in read])
        element = (*tracing.element(), tracing.Operations(), *taken)
        lifted = _several(tracing.called(lift, names_read, element))
        values = [tracing.as_value(value) for value in lifted]
        kinds = tuple(value.kind for value in values)
        alone = isinstance(identity, (int, float)) and not isinstance(identity, bool)
        each = (identity,) if alone else identity
        if not isinstance(each, Sequence) or len(each) != len(values):
            raise PlanError(f"identity = {shown(identity)}: one number for each of {len(values)} component(s)")
        a, b = (_components(letter, kinds) for letter in "ab")
        of_a, of_b = (a[0], b[0]) if alone else (a, b)
        both = tracing.called(combine, ("a", "b", "ops"), (of_a, of_b, tracing.Operations()))
        combined = [tracing.as_value(value, kind).expression for value, kind in _zipped("combine", both, kinds)]
        more: list[Expression] = []
        if insert is not None:
            found = tracing.called(insert, ("a", *names_read), (of_a, *element))
            more = [tracing.as_value(value, kind).expression for value, kind in _zipped("insert", found, kinds)]
        last = a if finish is None else tracing.called(finish, ("a", "ops"), (of_a, tracing.Operations()))
        done, names = _named_results(last, tuple(results))
        return cls(
            name,
            tracing.in_steps([value.expression for value in values]),
            tracing.in_steps(combined),
            tracing.in_steps([value.expression for value in done]),
            tuple(_number(number, kind) for number, kind in zip(each, kinds, strict=True)),
            kinds,
            tuple((name, value.kind) for name, value in zip(names, done, strict=True)),
            insert=tracing.in_steps(more),
            operands=read,
        )

    def transposed(self) -> Reduction:
        """The same for the transposed matrix: i and j change places."""
        lift, insert = (tuple(map(tracing.transposed, each)) for each in (self.lift, self.insert))
        about = None if self.about is None else replace(self.about, term=tracing.transposed(self.about.term))
        operands = tuple([x.transposed() for x in self.operands])
        return replace(self, lift=lift, insert=insert, about=about, operands=operands)

    # ----------------------------------------------------------------------------------------- registers and arrays
    def lifted(self, x: Value, at: ElementPlace) -> list[Value]:
        """An element's tuple; `at` as for a step's `apply`."""
        return tracing.evaluate_each(self.lift, x, at)

    def tuple_of(
        self, elements: Sequence[tuple[Value, ElementPlace]], inside: Sequence[object], steps: Sequence[int]
    ) -> list[Value]:
        """The tuple of an element (x, at), or of several at once by `about`.

        inside  of each, whether it is an element of C: others leave the tuple
        steps   from the first one's index along the line to each one's, rising: numbers, which machine code has in its
                instructions
        """
        math = elements[0][1].math
        if self.about is None or len(elements) == 1:
            ((x, at),), (counts,) = elements, inside
            return [
                math.where(counts, value, fill) for value, fill in zip(self.lifted(x, at), self.identity, strict=True)
            ]
        taken = [tracing.evaluate(self.about.value, x, at) for x, at in elements]
        values = [math.where(counts, x, -INFINITY) for counts, x in zip(inside, taken, strict=True)]
        most = by_halves(math.largest, [math.constant(self.identity[0]), *values])
        about = self.about

        def term(e: int) -> Value:
            return tracing.evaluate(about.term, values[e], _About(elements[e][1], {MOST: most}))

        count = len(elements)
        if about.merged == "add":  # one after the other: terms that wait for each other's sums would need registers
            sums = [term(e) for e in range(min(count, CHAINS))]
            for e in range(CHAINS, count):
                sums[e % CHAINS] = math.add(sums[e % CHAINS], term(e))
            return [most, by_halves(math.add, sums)]
        bound, found = math.below(most), steps[-1]
        for e in reversed(range(count - 1)):  # from the last on: the first one stays
            found = math.where(values[e] <= bound, found, steps[e])
        return [most, math.add(term(0), found)]

    def inserted(self, a: Sequence[Value], x: Value, at: ElementPlace, inside: object) -> list[Value]:
        """A tuple and one element more, where `inside` holds."""
        place = _Inserted(at, a, {x.name for x in self.operands})
        found = tracing.evaluate_each(self.insert, x, place)
        return [at.math.where(inside, new, old) for new, old in zip(found, a, strict=True)]

    def combined(self, a: Sequence[Value], b: Sequence[Value], math: object) -> list[Value]:
        """One tuple of two."""
        at = _Tuples(math, {"a": a, "b": b})
        return tracing.evaluate_each(self.combine, None, at)

    def finished(self, a: Sequence[Value], math: object) -> list[Value]:
        """The results of the last tuple."""
        at = _Tuples(math, {"a": a})
        return tracing.evaluate_each(self.finish, None, at)

    def reduce(
        self, x: np.ndarray, axis: int | None, column: int = 0, row: int = 0, inside: np.ndarray | None = None,
        read: Callable[[str], Value] | None = None,
    ) -> list[np.ndarray]:  # fmt: skip
        """The results over an axis of (..., M, N), or over all of it, in NumPy. No element gives the identity's.

        column, row  the number of the first one
        inside       True for the elements that are combined; None for all
        read         an operand's values, to be broadcast along x
        """
        rows, columns = x.shape[-2:]
        i, j = np.arange(rows, dtype=np.int32)[:, None], np.arange(columns, dtype=np.int32)[None, :]
        at = _Coordinates(i + np.int32(row), j + np.int32(column), values=read)
        kinds = [np.float32 if kind == "float" else np.int32 for kind in self.kinds]
        with np.errstate(all="ignore"):
            lifted = [
                np.broadcast_to(np.asarray(value, kind), x.shape)
                for value, kind in zip(self.lifted(x, at), kinds, strict=True)
            ]
            if inside is not None:
                neutral = [kind(value) for kind, value in zip(kinds, self.identity, strict=True)]
                lifted = [np.where(inside, value, none) for value, none in zip(lifted, neutral, strict=True)]
            if axis is None:
                lifted, axis = [value.reshape(-1) for value in lifted], 0
            found = self.folded([np.moveaxis(value, axis, 0) for value in lifted])
            done = self.finished(found, Math)
        types = [np.float32 if kind == "float" else np.int32 for _, kind in self.results]
        return [
            np.broadcast_to(np.asarray(value, kind), found[0].shape)[0] for value, kind in zip(done, types, strict=True)
        ]

    def folded(self, values: list[np.ndarray]) -> list[np.ndarray]:
        """Tuples along the first axis as one, by halves; the axis stays, of extent 1. Of none it is the identity."""
        if not len(values[0]):
            return [
                np.full((1, *value.shape[1:]), number, value.dtype)
                for value, number in zip(values, self.identity, strict=True)
            ]
        while (count := len(values[0])) > 1:
            half = count // 2
            first, second = [value[:half] for value in values], [value[half : 2 * half] for value in values]
            halves = [np.asarray(value) for value in self.combined(first, second, Math)]
            values = [np.concatenate([x, y[2 * half :]]) for x, y in zip(halves, values, strict=True)]
        return values

    # --------------------------------------------------------------------------------------------------------- laws
    def check_laws(self) -> None:
        """Raise PlanError with the first samples that break a law."""
        places = itertools.cycle(((0, 5), (3, 1), (2, 2), (7, 0)))
        with np.errstate(all="ignore"):
            samples = [
                self._typed(self.lifted(np.array([x], np.float32), self._sampled(i, j)))
                for x, (i, j) in zip((*_SAMPLES, *_SAMPLES[::-1]), places, strict=False)
            ]
            samples += [self._joined(samples[0], samples[3]), self._joined(samples[5], samples[7])]
            tried = [np.concatenate(values) for values in zip(*samples, strict=True)]

            def chosen(count: int) -> list[list[np.ndarray]]:  # all sets of samples at once, a tuple of each
                sets = np.array(list(itertools.combinations(range(len(samples)), count))).T
                return [[values[at] for values in tried] for at in sets]

            a, b = chosen(2)
            self._equal("commutative", "combine(a, b)", "combine(b, a)", (a, b), (a, b), (b, a))
            a, b, c = chosen(3)
            left, right = (self._joined(a, b), c), (a, self._joined(b, c))
            names = "combine(combine(a, b), c)", "combine(a, combine(b, c))"
            self._equal("associative", *names, (a, b, c), left, right)
            identity = self._typed(self.identity)
            for a in (*samples, identity):
                found = self._joined(a, identity)
                if not _close(found, a).all():
                    raise PlanError(
                        f"identity = {said(identity)}: combine({said(a)}, identity) = {said(found)}, not {said(a)}"
                    )
            if self.insert:
                self._check_insert(samples)

    def _sampled(self, i: int, j: int) -> _Coordinates:
        """A place with numbers for the operands."""
        kinds = {x.name: np.int32 if x.dtype.kind == "int" else np.float32 for x in self.operands}
        numbers = {name: np.array([i - 0.5 * j + at], kind) for at, (name, kind) in enumerate(kinds.items())}
        return _Coordinates(np.array([i], np.int32), np.array([j], np.int32), values=numbers.__getitem__)

    def _check_insert(self, samples: Sequence[Sequence[np.ndarray]]) -> None:
        for a in samples:
            for x in _SAMPLES:
                at = self._sampled(4, 6)
                value = np.array([x], np.float32)
                want = self._joined(a, self._typed(self.lifted(value, at)))
                found = self._typed(self.inserted(a, value, at, np.array([True])))
                if not _close(found, want).all():
                    raise PlanError(
                        f"insert({said(a)}, {x}, i = 4, j = 6) = {said(found)}, and combine(a, lift(x)) = {said(want)}"
                    )

    def _equal(self, law: str, left: str, right: str, given: Sequence[Value], x: _Two, y: _Two) -> None:
        found, other = self._joined(*x), self._joined(*y)
        wrong = np.flatnonzero(~_close(found, other))
        if len(wrong):
            one = slice(wrong[0], wrong[0] + 1)

            def at(values: Sequence[np.ndarray]) -> str:
                return said([value[one] for value in values])

            named = ", ".join(f"{letter} = {at(value)}" for letter, value in zip("abc", given, strict=False))
            raise PlanError(f"the {self.name} is not {law}: {named}: {left} = {at(found)}, {right} = {at(other)}")

    def _typed(self, values: Sequence[Value], count: int = 1) -> list[Value]:
        return [
            np.broadcast_to(np.asarray(value, np.float32 if kind == "float" else np.int32).reshape(-1), (count,))
            for value, kind in zip(values, self.kinds, strict=True)
        ]

    def _joined(self, a: Sequence[Value], b: Sequence[Value]) -> list[Value]:
        return self._typed(self.combined(a, b, Math), len(a[0]))


@dataclass(frozen=True)
class _Tuples:
    """Components by name, as an expression reads them."""

    math: object
    values: Mapping[str, Sequence[Value]]

    def read(self, name: str) -> Value:
        """Component number name[1:] of a or of b."""
        return self.values[name[0]][int(name[1:])]


class _Inserted:
    """An element's place, and a tuple's components by name. `operands` names what the element reads."""

    def __init__(self, at: ElementPlace, a: Sequence[Value], operands: Collection[str]):
        self.i, self.j, self.math, self._a, self._at, self._operands = at.i, at.j, at.math, a, at, operands

    def read(self, name: str) -> Value:
        """An operand, or component number name[1:]."""
        return self._at.read(name) if name in self._operands else self._a[int(name[1:])]  # type: ignore[attr-defined]


class _About(tracing.Values):
    """An element's place, and the largest x of its group."""

    def __init__(self, at: ElementPlace, values: Mapping[str, object]):
        super().__init__(values, at.math)
        self.i, self.j = at.i, at.j


@dataclass(frozen=True)
class _Coordinates:
    """A place, as an expression reads it in NumPy."""

    i: Value
    j: Value
    math: object = Math
    values: Callable[[str], Value] | None = None

    def read(self, name: str) -> Value:
        """An operand's values."""
        assert self.values is not None, name
        return self.values(name)


def said(values: Sequence[Value]) -> str:
    """A tuple of NumPy's numbers as Python writes it."""
    return repr(tuple(value.item() for value in values))


def _close(x: Sequence[Value], y: Sequence[Value]) -> np.ndarray:
    """True for each pair of tuples that are equal but for rounding."""
    each = [
        a == b if a.dtype.kind == "i" else np.isclose(a, b, rtol=_CLOSE, atol=_CLOSE, equal_nan=True)
        for a, b in zip(x, y, strict=True)
    ]
    return np.logical_and.reduce(each)


def by_halves(operation: Callable[[Value, Value], Value], values: Sequence[Value]) -> Value:
    """Values combined in a tree. The operations of a level do not wait for each other."""
    if len(values) == 1:
        return values[0]
    half = len(values) // 2
    return operation(by_halves(operation, values[:half]), by_halves(operation, values[half:]))


def _checked_operands(operands: Sequence[EpilogueOperand]) -> tuple[EpilogueOperand, ...]:
    """Raise PlanError for operands that no reduction reads."""
    check_operands(operands)
    for name in [x.name for x in operands]:
        if name == MOST or (name[0] in "ab" and name[1:].isdigit()):
            raise PlanError(f"an operand of the reduction is named {name}, as a component of its tuples is")
    return tuple(operands)


def _several(values: object) -> tuple[object, ...]:
    found = tuple(values) if isinstance(values, (tuple, list)) else (values,)
    if not 1 <= len(found) <= MOST_COMPONENTS or values is None:
        raise PlanError(
            f"the reduction's function gives {shown(values)}: one number, or a tuple of up to {MOST_COMPONENTS}"
        )
    return found


def _named_results(last: object, names: tuple[str, ...]) -> tuple[list[tracing.Symbol], tuple[str, ...]]:
    """The results one by one, and a name for each: those of a tuple within the results have one name.

    Raises PlanError for another number of names, and for names that are not one output's each.
    """
    given = _several(last)
    parts = [_several(part) if isinstance(part, (tuple, list)) else (part,) for part in given]
    done = [tracing.as_value(value) for part in parts for value in part]
    _several(done)
    own = names or (("",) if len(given) == 1 else tuple(str(i) for i in range(len(given))))
    if len(own) == len(given):
        own = tuple([name for name, part in zip(own, parts, strict=True) for _ in part])
    runs = list(itertools.groupby(zip(own, [value.kind for value in done]))) if len(own) == len(done) else []
    of_runs = [name for (name, _), _ in runs]
    if not runs or len(set(of_runs)) < len(of_runs) or not all(isinstance(name, str) for name in own):
        raise PlanError(
            f"results = {shown(names)}: {len(given)} different names, one for each result of the reduction; results of "
            "one name are neighbours, all f32 or all whole numbers"
        )
    return done, own


def _zipped(what: str, values: object, kinds: tuple[str, ...]) -> list[tuple[object, str]]:
    found = _several(values)
    if len(found) != len(kinds):
        raise PlanError(f"{what} gives {len(found)} number(s), and lift {len(kinds)}")
    return list(zip(found, kinds, strict=True))


def _components(letter: str, kinds: tuple[str, ...]) -> tuple[tracing.Symbol, ...]:
    return tuple(tracing.Symbol(("given", f"{letter}{i}"), kind) for i, kind in enumerate(kinds))


def _number(value: object, kind: str) -> float | int:
    """A component of the identity. Raises PlanError for anything but a number that 32 bits hold."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PlanError(f"a component of the identity is {shown(value)}: a number")
    if kind == "float" and np.isfinite(value):
        return float(tracing.as_value(float(value)).expression[1])
    if kind == "float":
        return float(value)
    whole: int = tracing.as_value(value, "int").expression[1]
    return whole


def _exponential(x: Symbol, i: Symbol, j: Symbol, ops: Operations) -> tuple[Symbol, Symbol]:
    """The maximum, kept finite, and the sum of exp(x - maximum) of one x: of -inf it is 0."""
    return ops.largest(x, LOWEST), ops.where(x < LOWEST, 0.0, 1.0)


def _exponentials(a: Sequence[Symbol], b: Sequence[Symbol], ops: Operations) -> tuple[Symbol, Symbol]:
    """One exponential: the larger maximum's sum stays as it is. Two infinities are equal, their difference is NaN."""
    most, least = ops.largest(a[0], b[0]), ops.smallest(a[0], b[0])
    factor = ops.where(least == most, 1.0, ops.exp(least - most))
    return most, ops.where(a[0] < b[0], a[1] * factor + b[1], b[1] * factor + a[1])


def _about_most(x: Symbol, i: Symbol, j: Symbol, ops: Operations, most: Symbol) -> Symbol:
    """exp(x - most). Of an infinite largest value the sum is infinite, as its logarithm is, and not NaN."""
    return ops.exp(x - ops.where(most < math.inf, most, 0.0))


def _first_largest(a: Sequence[Symbol], b: Sequence[Symbol], ops: Operations) -> tuple[Symbol, Symbol]:
    """The lower index of equal values; NaN is above all numbers, as in torch."""
    lower = ops.minimum(a[1], b[1])
    unordered = ops.where(a[0] == a[0], b[1], ops.where(b[0] == b[0], a[1], lower))
    found = ops.where(a[0] > b[0], a[1], ops.where(b[0] > a[0], b[1], ops.where(a[0] == b[0], lower, unordered)))
    return ops.largest(a[0], b[0]), found


def _of_an_index(name: str, value: Callable[[Symbol], Symbol]) -> Reduction:
    """The largest value(x) with its index; `value` is its own inverse."""
    made = Reduction.traced(
        lambda x, i, j, ops: (value(x), j), _first_largest, [-math.inf, NO_INDEX],
        lambda a, ops: (value(a[0]), a[1]), ("value", "index"), name,
    )  # fmt: skip
    return replace(made, about=About.traced(lambda x, i, j, ops, most: j, "first", made.lift[0]))


def _precedes(a: Sequence[Symbol], b: Sequence[Symbol]) -> Symbol:
    """True where (value, index) a stands before b: NaN, then the larger value, then the lower index."""
    lower = a[1] < b[1]
    return (a[0] > b[0]) | ((a[0] == b[0]) & lower) | ((a[0] != a[0]) & ((b[0] == b[0]) | lower))


def _in_order(a: Sequence[Symbol], b: Sequence[Symbol], ops: Operations) -> list[tuple[Symbol, ...]]:
    first = _precedes(a, b)
    return [
        tuple([ops.where(first, x, y) for x, y in zip(*each, strict=True)]) for each in ((a, b), (b, a))
    ]  # fmt: skip


def _top(k: int) -> Reduction:
    """The k largest, falling, of equal ones the lower index first; behind the last column -inf and NO_INDEX."""

    def merged(a: Sequence[Symbol], b: Sequence[Symbol], ops: Operations) -> tuple[Symbol, ...]:
        # The larger of one list's n-th and the other's n-th from its end: the k largest, falling and then rising.
        pairs = [_in_order((a[n], a[k + n]), (b[k - 1 - n], b[2 * k - 1 - n]), ops)[0] for n in range(k)]
        apart = k // 2
        while apart:
            for n in range(k):
                if not n & apart:
                    pairs[n], pairs[n + apart] = _in_order(pairs[n], pairs[n + apart], ops)
            apart //= 2
        return (*[value for value, _ in pairs], *[index for _, index in pairs])

    def inserted(a: Sequence[Symbol], x: Symbol, i: Symbol, j: Symbol, ops: Operations) -> tuple[Symbol, ...]:
        pairs: list[Sequence[Symbol]] = [(a[n], a[k + n]) for n in range(k)]
        before = [_precedes((x, j), pair) for pair in pairs]  # of a sorted list: False, then True
        moved = [(x, j), *pairs]
        kept = [
            [ops.where(before[n], y if n == 0 else ops.where(before[n - 1], z, y), own)
             for y, z, own in zip((x, j), moved[n], pairs[n], strict=True)]
            for n in range(k)
        ]  # fmt: skip
        return (*[value for value, _ in kept], *[index for _, index in kept])

    return Reduction.traced(
        lambda x, i, j, ops: (x, *[-math.inf] * (k - 1), j, *[NO_INDEX] * (k - 1)), merged,
        [-math.inf] * k + [NO_INDEX] * k, lambda a, ops: (a[:k], a[k:]), ("value", "index"), f"top{k}", inserted,
    )  # fmt: skip


def _of_one(
    name: str, lift: Callable[..., object], combine: Callable[..., object], identity: float, atomic: str
) -> Reduction:
    made = Reduction.traced(lift, lambda a, b, ops: combine(a[0], b[0], ops), [identity], name=name)
    return replace(made, atomic=atomic)


def _log_sum_exp(name: str, finish: Callable[..., object], results: Sequence[str] = ()) -> Reduction:
    made = Reduction.traced(_exponential, _exponentials, [LOWEST, 0.0], finish, results, name)
    return replace(made, about=About.traced(_about_most, "add"))


REDUCTIONS: Mapping[str, Reduction] = {
    made.name: made
    for made in (
        _of_one("sum", lambda x, i, j, ops: x, lambda a, b, ops: a + b, 0.0, "sum"),
        _of_one("sum_of_squares", lambda x, i, j, ops: x * x, lambda a, b, ops: a + b, 0.0, "sum"),
        _of_one("max", lambda x, i, j, ops: x, lambda a, b, ops: ops.largest(a, b), -math.inf, "max"),
        _of_one("min", lambda x, i, j, ops: x, lambda a, b, ops: ops.smallest(a, b), math.inf, "min"),
        _of_one("amax", lambda x, i, j, ops: abs(x), lambda a, b, ops: ops.largest(a, b), 0.0, "max"),
        _log_sum_exp("log_sum_exp", lambda a, ops: a[0] + ops.log(a[1])),
        _log_sum_exp(
            "softmax",
            lambda a, ops: (ops.where(a[1] == 0.0, -math.inf, a[0]), a[0] + ops.log(a[1])),
            ("max", "log_sum_exp"),
        ),
        _of_an_index("argmax", lambda x: x),
        _of_an_index("argmin", lambda x: -x),
        *map(_top, (2, 4, 8)),
    )
}  # fmt: skip
"""name -> operation. NaN comes before all numbers, as in torch. Indices count along the axis that is reduced.

"top2", "top4" and "top8" have outputs of shape (M, k), as torch.topk does: values that fall, and their indices. Of
equal values the lower index is first. Behind a line's last number the value is -inf, and the index 2**31 - 1.
"""


def reduction_of(given: str | Reduction) -> Reduction:
    """An operation by its name, or itself. Raises PlanError for anything else.

    >>> reduction_of("softmax").results
    (('max', 'float'), ('log_sum_exp', 'float'))
    """
    if isinstance(given, Reduction):
        return given
    if not isinstance(given, str) or given not in REDUCTIONS:
        raise PlanError(
            f"a reduction by {shown(given)}: known are {', '.join(REDUCTIONS)}, and a Reduction of one's own"
        )
    return REDUCTIONS[given]
