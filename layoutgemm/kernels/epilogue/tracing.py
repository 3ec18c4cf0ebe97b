"""A function of elements as an expression. It is called once with symbols, and what it computes is kept.

The expression decides the kernel's code, so it is what kernels are cached by; it is evaluated on registers in a kernel
and on arrays in NumPy. Branches of Python would be taken once, while tracing: a symbol has no truth value, and says so.
"""

from __future__ import annotations

import inspect
import json
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from ...arguments import as_arithmetic
from ...arguments import shown as bounded
from ...errors import LayoutError, PlanError
from ...graph_marks import not_in_graphs
from ...memo import exact
from .places import Value

# An expression: ("float", value), ("int", value), ("x",), ("i",), ("j",), ("given", name) or (operation, *expressions).
# Of a group of columns ("x", k) is the value of column k of the group, and ("given", name, k) an operand's there.
# Where values are read often it is ("steps", expressions, last): ("step", n) is the value of expressions[n].
Expression = tuple[Any, ...]
Place: TypeAlias = Any  # coordinates, operands and operations, as expressions read them

FUNCTIONS = (
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "erf",
    "normal",
    "sigmoid",
    "abs",
    "floor",
    "round",
    "sin",
    "cos",
)  # of one float
MAX_POWER = 16  # of x ** n
WRITTEN_OUT = 256  # operations of a function that is kept without steps
_CHOICES = ("maximum", "minimum", "largest", "smallest", "where")  # of several values
_MADE_OF = ("exp2", "log2", "relu", "clamp")  # of these and arithmetic
_KNOWN = (*FUNCTIONS, "float", "whole", *_CHOICES, *_MADE_OF)  # what ops has
MAX_SHIFT = 31
_MAX_F32 = float.fromhex("0x1.fffffep127")


def _symbol(value: Any) -> Symbol:
    if isinstance(value, Symbol):
        return value
    if getattr(value, "ndim", 1) == 0:  # a number of NumPy's
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise PlanError(f"a traced function computes with numbers and its own values, not with {bounded(value)}")
    if isinstance(value, int):
        return Symbol(("int", value), "int")
    if math.isfinite(value) and abs(value) > _MAX_F32:
        raise PlanError(f"{bounded(value)} is beyond float32, in which functions compute")
    return Symbol(("float", value), "float")


def _float(value: object) -> Symbol:
    value = _symbol(value)
    if value.kind == "bool":
        raise PlanError("a comparison is no number: ops.where(condition, 1.0, 0.0) makes one of it")
    if value.kind == "int":
        if value.expression[0] != "int":
            return Symbol(("to_float", value.expression), "float")
        if abs(value.expression[1]) > _MAX_F32:
            bits = value.expression[1].bit_length()
            raise PlanError(f"an integer of {bits} bits is beyond float32, in which functions compute")
        return Symbol(("float", float(value.expression[1])), "float")
    return value


def _shift(by: object) -> int:
    """A number of bits. Raises PlanError for anything but a whole number from 0 to 31."""
    if isinstance(by, bool) or not isinstance(by, int) or not 0 <= by <= MAX_SHIFT:
        raise PlanError(f"a shift by {bounded(by)}: a whole number of bits, from 0 to {MAX_SHIFT}, known while tracing")
    return by


def _int32_of(number: int) -> int:
    """The int32 with the low 32 bits of a number."""
    return (number + 2**31) % 2**32 - 2**31


def _same(x: object, y: object) -> tuple[Symbol, Symbol]:
    x, y = _symbol(x), _symbol(y)
    return (_int32(x), _int32(y)) if x.kind == y.kind == "int" else (_float(x), _float(y))


def _int32(value: Symbol) -> Symbol:
    """The same. Raises PlanError for a number that meets coordinates, which are int32, and is beyond it."""
    if value.expression[0] == "int" and not -(2**31) <= value.expression[1] < 2**31:
        bits = value.expression[1].bit_length()
        raise PlanError(f"an integer of {bits} bits is beyond int32, in which coordinates are computed")
    return value


def _apply(name: str, kind: str, *operands: Symbol) -> Symbol:
    return Symbol((name, *[operand.expression for operand in operands]), kind)


def _arithmetic(name: str, x: object, y: object) -> Symbol:
    x, y = _same(x, y)
    return _apply(name, x.kind, x, y)


def _compare(name: str, x: object, y: object) -> Symbol:
    return _apply(name, "bool", *_same(x, y))


def _bits(name: str, x: object, y: object) -> Symbol:
    """An operation on bits: of two comparisons, a condition."""
    if isinstance(x, Symbol) and isinstance(y, Symbol) and x.kind == y.kind == "bool":
        return _apply(name, "bool", x, y)
    return _integers(name, x, y)


def _integers(name: str, x: object, y: object) -> Symbol:
    x, y = _symbol(x), _symbol(y)
    if x.kind != "int" or y.kind != "int":
        raise PlanError(f"{name.strip('_')} is for coordinates and whole numbers, not for {x.kind} and {y.kind}")
    return _apply(name, "int", _int32(x), _int32(y))


def _operator(how: Callable[[str, object, object], Symbol], name: str) -> Callable[[Symbol, object], Symbol]:
    """An operation with a symbol on its left."""
    return lambda self, other: how(name, self, other)


def _reflected(how: Callable[[str, object, object], Symbol], name: str) -> Callable[[Symbol, object], Symbol]:
    """An operation with a symbol on its right."""
    return lambda self, other: how(name, other, self)


class Symbol:
    """A value that the kernel will know: of kind "float" (f32), "int" (i32) or "bool"."""

    __slots__ = ("expression", "kind")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, expression: Expression, kind: str):
        self.expression = expression
        self.kind = kind

    def __repr__(self) -> str:
        return shown(self.expression) if _size([self.expression]) <= WRITTEN_OUT else "a value of many operations"

    def __bool__(self) -> bool:
        raise PlanError(
            "a function of elements is traced once for all of them: a value has no truth in Python. Choose with "
            "ops.where(condition, yes, no), and join conditions by & and |, as in (0 <= j) & (j < 8)"
        )

    def __getitem__(self, key: object) -> Symbol:
        raise PlanError(
            f"{shown(self.expression)} is one value, and [{bounded(key)}] asks for several: ColumnGroup.of gives a "
            "function the values of neighbouring columns, x[0], x[1] and so on, and tuples of operands along N"
        )

    __iter__ = None  # else unpacking asks for items

    def __array_ufunc__(self, function: np.ufunc, method: str, *values: object, **options: object) -> Symbol:
        """NumPy's numbers may stand in the arithmetic; its functions cannot be traced."""
        known: dict[str, Callable[..., Any]] = {
            "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv,
        }  # fmt: skip
        if method != "__call__" or function.__name__ not in known or options:
            raise PlanError(
                f"np.{function.__name__} of a traced value: its functions are those of ops, as in ops.tanh(x)"
            )
        # a list, of an array, is refused by the operation as no number
        plain = [value.tolist() if hasattr(value, "tolist") else value for value in values]
        return _symbol(known[function.__name__](*plain))

    def __add__(self, other: object) -> Symbol:
        return _arithmetic("add", self, other)

    def __radd__(self, other: object) -> Symbol:
        return _arithmetic("add", other, self)

    def __sub__(self, other: object) -> Symbol:
        return _arithmetic("sub", self, other)

    def __rsub__(self, other: object) -> Symbol:
        return _arithmetic("sub", other, self)

    def __mul__(self, other: object) -> Symbol:
        return _arithmetic("mul", self, other)

    def __rmul__(self, other: object) -> Symbol:
        return _arithmetic("mul", other, self)

    def __truediv__(self, other: object) -> Symbol:
        return _apply("div", "float", _float(self), _float(other))

    def __rtruediv__(self, other: object) -> Symbol:
        return _apply("div", "float", _float(other), _float(self))

    def __pow__(self, other: object) -> Symbol:
        if isinstance(other, bool) or not isinstance(other, int) or not 1 <= other <= MAX_POWER:
            raise PlanError(
                f"x ** {bounded(other)}: a whole number from 1 to {MAX_POWER} is a chain of products; others are "
                "ops.exp(exponent * ops.log(x)), of a positive x"
            )
        half = self if other < 2 else self ** (other // 2)
        return half if other == 1 else half * half if other % 2 == 0 else half * half * self

    def __rpow__(self, other: object) -> Symbol:
        if isinstance(other, bool) or not isinstance(other, (int, float)) or not 0 < other < math.inf:
            raise PlanError(f"{bounded(other)} ** x: of a positive number, as in 2.0 ** x")
        return Operations().exp(self * math.log(other))

    def __invert__(self) -> Symbol:
        if self.kind == "bool":
            return Operations.where(self, 0, 1) == 1
        return _integers("xor", self, -1)

    def __lshift__(self, other: object) -> Symbol:
        return _integers("mul", self, _int32_of(2 ** _shift(other)))

    def __rshift__(self, other: object) -> Symbol:
        if _shift(other) == MAX_SHIFT:
            return Operations.where(_integers("add", self, 0) < 0, -1, 0)
        return _integers("floordiv", self, 2 ** _shift(other))

    def __neg__(self) -> Symbol:
        return _arithmetic("sub", 0 if self.kind == "int" else -0.0, self)  # 0.0 - 0.0 would lose the sign of zero

    def __abs__(self) -> Symbol:
        return _arithmetic("maximum", self, -self) if self.kind == "int" else _apply("abs", "float", _float(self))

    def __floordiv__(self, other: object) -> Symbol:
        return _integers("floordiv", self, other)

    def __mod__(self, other: object) -> Symbol:
        return _integers("mod", self, other)

    def __and__(self, other: object) -> Symbol:
        return _bits("and_", self, other)

    def __or__(self, other: object) -> Symbol:
        return _bits("or_", self, other)

    def __xor__(self, other: object) -> Symbol:
        return _bits("xor", self, other)

    def __lt__(self, other: object) -> Symbol:
        return _compare("lt", self, other)

    def __le__(self, other: object) -> Symbol:
        return _compare("le", self, other)

    def __gt__(self, other: object) -> Symbol:
        return _compare("gt", self, other)

    def __ge__(self, other: object) -> Symbol:
        return _compare("ge", self, other)

    def __eq__(self, other: object) -> Symbol:  # type: ignore[override]
        return _compare("eq", self, other)

    def __ne__(self, other: object) -> Symbol:  # type: ignore[override]
        return _compare("ne", self, other)


class Operations:
    """The functions that a traced function may call, in f32.

    exp, log, sqrt, rsqrt, tanh, erf, sigmoid, abs, floor, sin, cos, exp2, log2, relu, clamp(x, low, high). `round`
    gives the nearest whole number, of two the even one. `normal` is the distribution function, erfc(-x / sqrt(2)) / 2.
    maximum, minimum and where; largest and smallest are NaN where either value is. `float` makes a float of a
    coordinate, which arithmetic with floats does by itself, and `whole` a 32-bit integer of a float. A division is
    correctly rounded where the result has 32 bits, else within 2 ulp of f32. Sine and cosine are within 1e-6 up to
    2**15.
    """

    def __getattr__(self, name: str) -> Callable[[object], Symbol]:
        if name not in FUNCTIONS:
            raise PlanError(f"ops has no operation {bounded(name)}; it has {', '.join(_KNOWN)}")
        return lambda x: _apply(name, "float", _float(x))

    @staticmethod
    def float(x: object) -> Symbol:
        """A coordinate as f32; exact below 2**24."""
        return _float(x)

    @staticmethod
    def whole(x: object) -> Symbol:
        """A float as a 32-bit integer. Cut to it, beyond int32 its nearest, of NaN 0. Arithmetic wraps."""
        return _apply("whole", "int", _float(x))

    @classmethod
    def exp2(cls, x: object) -> Symbol:
        """2 to the power of x."""
        return cls().exp(_float(x) * math.log(2))

    @classmethod
    def log2(cls, x: object) -> Symbol:
        """The logarithm to base 2."""
        return cls().log(x) * (1 / math.log(2))

    @classmethod
    def relu(cls, x: object) -> Symbol:
        """x, or 0 where it is negative."""
        return cls.maximum(x, 0)

    @classmethod
    def clamp(cls, x: object, low: object, high: object) -> Symbol:
        """The value of low .. high that is nearest to x."""
        return cls.minimum(cls.maximum(x, low), high)

    @staticmethod
    def maximum(x: object, y: object) -> Symbol:
        """The larger of two."""
        return _arithmetic("maximum", x, y)

    @staticmethod
    def minimum(x: object, y: object) -> Symbol:
        """The smaller of two."""
        return _arithmetic("minimum", x, y)

    @staticmethod
    def largest(x: object, y: object) -> Symbol:
        """The larger of two floats, NaN where either is."""
        return _apply("largest", "float", _float(x), _float(y))

    @staticmethod
    def smallest(x: object, y: object) -> Symbol:
        """The smaller of two floats, NaN where either is."""
        return _apply("smallest", "float", _float(x), _float(y))

    @staticmethod
    def where(condition: object, yes: object, no: object) -> Symbol:
        """`yes` where the condition holds, else `no`; both are computed."""
        if not isinstance(condition, Symbol) or condition.kind != "bool":
            raise PlanError(f"where takes a comparison of the function's values, not {bounded(condition)}")
        yes, no = _same(yes, no)
        return _apply("where", yes.kind, condition, yes, no)


@not_in_graphs
def trace(
    function: Callable[..., object], names: tuple[str, ...], coordinates: tuple[str, str] = ("i", "j"),
    whole: Collection[str] = (),
) -> Expression:  # fmt: skip
    """The expression of `function(x, i, j, ops, *values)`. `values` are in the order of `names`.

    coordinates  names of i and j, for the refusal
    whole        names of the values that are int32

    x is the f32 value of an element, i and j its row and column in C. Raises PlanError when the function does not give
    one f32 value, asks a value for its truth, or raises an error of its own, such as that of math.exp(x).

    >>> trace(lambda x, i, j, ops: ops.where(i >= j, x, 0.0), ())
    ('where', ('ge', ('i',), ('j',)), ('x',), ('float', 0.0))
    """
    given = [Symbol(("given", name), "int" if name in whole else "float") for name in names]
    result = called(function, ("x", *coordinates, "ops", *names), (*element(), Operations(), *given))
    if result is None:
        raise PlanError("the function returned nothing: it gives the new value of x")
    if isinstance(result, (tuple, list)):
        raise PlanError(
            f"the function gives {len(result)} values, and each element has one: SeveralOutputs.of(function, "
            "name='bf16') is a step that writes the others to matrices, and RowReduce reduces them"
        )
    return in_steps([_float(result).expression])[0]


@not_in_graphs
def trace_outputs(
    function: Callable[..., object], names: tuple[str, ...], outputs: Sequence[str], whole: Collection[str] = ()
) -> tuple[Expression, ...]:
    """The expressions of a function that gives x, then each of `outputs`; otherwise as `trace`.

    >>> trace_outputs(lambda x, i, j, ops: (x * x, x), (), ("old",))
    (('mul', ('x',), ('x',)), ('x',))
    """
    given = [Symbol(("given", name), "int" if name in whole else "float") for name in names]
    found = called(function, ("x", "i", "j", "ops", *names), (*element(), Operations(), *given))
    if not isinstance(found, (tuple, list)) or len(found) != 1 + len(outputs):
        want = ", ".join(("x", *outputs))
        raise PlanError(f"the function gave {bounded(found)}: it gives {1 + len(outputs)} values, {want}")
    return in_steps([_float(value).expression for value in found])


@not_in_graphs
def trace_columns(
    function: Callable[..., object], names: Mapping[str, bool], columns: int, whole: Collection[str] = ()
) -> tuple[Expression, ...]:
    """The expression of each column of a group, by `function(x, i, j, ops, *values)`.

    names  of the operands in order, and whether one differs from column to column: its value is then a tuple, as x is
    whole  names of int32 operands

    Raises PlanError as `trace`, and unless the function gives a value for each column.

    >>> trace_columns(lambda x, i, j, ops, w: (x[1] * w[0], x[0]), {"w": True}, 2)
    (('mul', ('x', 1), ('given', 'w', 0)), ('x', 0))
    """
    each = range(columns)
    x = tuple([Symbol(("x", k), "float") for k in each])
    kinds = {name: "int" if name in whole else "float" for name in names}
    given = [
        tuple([Symbol(("given", name, k), kinds[name]) for k in each])
        if along
        else Symbol(("given", name), kinds[name])
        for name, along in names.items()
    ]
    found = called(function, ("x", "i", "j", "ops", *names), (x, *element()[1:], Operations(), *given))
    if not isinstance(found, (tuple, list)) or len(found) != columns:
        raise PlanError(f"the function of {columns} columns gave {bounded(found)}: it gives {columns} values, one each")
    return in_steps([_float(value).expression for value in found])


def _parts(expressions: Sequence[Expression]) -> list[Expression]:
    """Their operations, each once and behind its operands; without recursion, since sums of many terms are deep."""
    known: set[int] = set()
    found, waiting = [], [(expression, False) for expression in reversed(expressions)]
    while waiting:
        part, ready = waiting.pop()
        if part[0] in _LEAVES or (id(part) in known and not ready):
            continue
        if ready:
            found.append(part)
        else:
            known.add(id(part))
            waiting.append((part, True))
            waiting += [(operand, False) for operand in reversed(part[1:])]
    return found


def operations(expression: Expression) -> tuple[str, ...]:
    """The names of its operations, each value's once.

    >>> operations(trace(lambda x, i, j, ops: x * ops.sigmoid(x), ()))
    ('sigmoid', 'mul')
    """
    each = expression[1] if expression[0] == "steps" else _parts([expression])
    return tuple([part[0] for part in each])


def _size(expressions: Sequence[Expression]) -> int:
    """The operations of expressions that are written out: a value that is read often counts each time."""
    sizes: dict[int, int] = {}
    for part in _parts(expressions):
        sizes[id(part)] = 1 + sum([sizes.get(id(operand), 0) for operand in part[1:]])
    return sum([sizes.get(id(expression), 0) for expression in expressions])


def in_steps(expressions: Sequence[Expression]) -> tuple[Expression, ...]:
    """The expressions of one function's results. Long ones as steps, each of which is computed once for all.

    A sorting network reads each value several times: written out it doubles with every comparison.

    >>> x = Symbol(("x",), "float")
    >>> for _ in range(9):
    ...     x = x * x
    >>> head, steps, last = in_steps([x.expression])[0]
    >>> head, len(steps), last
    ('steps', 9, ('step', 8))
    """
    if _size(expressions) <= WRITTEN_OUT:
        return tuple(expressions)
    steps: dict[Expression, Expression] = {}  # an operation on steps -> the step
    known: dict[int, Expression] = {}
    for part in _parts(expressions):
        own = exact((part[0], *[known.get(id(operand), operand) for operand in part[1:]]))
        known[id(part)] = steps.setdefault(own, ("step", len(steps)))
    kept = tuple(steps)
    return tuple([("steps", kept, known.get(id(expression), expression)) for expression in expressions])


def entry_of_each(expressions: Sequence[Expression]) -> Sequence[object]:
    """The expressions of one function as JSON has them: steps that they share once.

    >>> entry_of_each((("x",), ("i",)))
    (('x',), ('i',))
    """
    steps = {expression[1] if expression[0] == "steps" else None for expression in expressions}
    if len(steps) > 1 or None in steps or not expressions:
        return expressions
    return ("steps", *steps, tuple([expression[2] for expression in expressions]))


def each_of_entry(entry: Expression) -> tuple[Expression, ...]:
    """The expressions of an entry, of tuples.

    >>> each_of_entry(entry_of_each((("x",), ("i",))))
    (('x',), ('i',))
    """
    if len(entry) == 3 and entry[0] == "steps":
        return tuple([("steps", entry[1], last) for last in entry[2]])
    return tuple(entry)


_LEAVES = frozenset(("x", "i", "j", "given", "float", "int", "step"))


def element() -> tuple[Symbol, Symbol, Symbol]:
    """The symbols of an element: its f32 value, its row and its column."""
    return Symbol(("x",), "float"), Symbol(("i",), "int"), Symbol(("j",), "int")


def called(function: Callable[..., object], names: tuple[str, ...], symbols: tuple[object, ...]) -> object:
    """The result of a function of symbols; `names` are its parameters, for the refusal.

    Raises PlanError where it takes others, and for an error that it raises.
    """
    try:
        inspect.signature(function).bind(*names)
    except (TypeError, ValueError) as error:  # ValueError: a class or a function of Python's own
        raise PlanError(f"the function is called with ({', '.join(names)}): {error}") from None
    try:
        return function(*symbols)
    except LayoutError:
        raise
    except Exception as error:
        raise PlanError(
            f"the function raised {type(error).__name__}: {error}. It is called once with values that take "
            f"+ - * / ** // % & | ^ ~ << >> and comparisons; functions of them are those of ops: {', '.join(_KNOWN)}"
        ) from error


def as_value(value: object, kind: str | None = None) -> Symbol:
    """A function's result as a symbol of kind "float" or "int". Of its own kind without one.

    Raises PlanError for a comparison, for anything that is no number, and for a float where a whole number belongs.
    """
    found = _symbol(value)
    if kind == "int":
        if found.kind != "int":
            raise PlanError(f"{bounded(value)} is a {found.kind}, and a whole number belongs here")
        return _int32(found)
    return found if found.kind == "int" and kind is None else _float(found)


def transposed(expression: Expression) -> Expression:
    """The same of the transposed matrix: i and j change places."""
    if expression[0] in ("i", "j"):
        return ("j",) if expression[0] == "i" else ("i",)
    if expression[0] in _LEAVES:
        return expression
    if expression[0] == "steps":
        _, steps, last = expression
        return ("steps", tuple([transposed(step) for step in steps]), transposed(last))
    return (expression[0], *map(transposed, expression[1:]))


def evaluate(expression: Expression, x: Value, at: Place) -> Value:
    """The value of an expression. `at` gives coordinates, operands and operations, as for a step's `apply`."""
    return evaluate_each([expression], x, at)[0]


def evaluate_each(expressions: Sequence[Expression], x: Value, at: Place) -> list[Value]:
    """The values of a function's results: steps that they share are computed once."""
    steps: Expression | None = None
    done: list[Value] = []
    found = []
    for expression in expressions:
        if expression[0] != "steps":
            found.append(_evaluated(expression, x, at, ()))
            continue
        if expression[1] is not steps and expression[1] != steps:
            steps, done = expression[1], []
            for step in expression[1]:
                done.append(_evaluated(step, x, at, done))
        found.append(_evaluated(expression[2], x, at, done))
    return found


def _evaluated(expression: Expression, x: Value, at: Place, done: Sequence[Value]) -> Value:
    head, *rest = expression
    if head == "step":
        return done[rest[0]]
    if head == "x":
        return as_arithmetic(x[rest[0]] if rest else x, "x", PlanError)
    if head in ("i", "j"):
        return getattr(at, head)
    if head in ("float", "int"):
        return at.math.constant(rest[0]) if head == "float" else rest[0]
    if head == "given":
        return at.read(*rest)
    if not hasattr(at.math, head):
        raise PlanError(f"math has no {head}: {bounded(at.math)}")
    return getattr(at.math, head)(*[_evaluated(part, x, at, done) for part in rest])


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}


def shown(expression: Expression, names: Mapping[str, str] = MappingProxyType({}), inside: bool = False) -> str:
    """An expression as text.

    names  of x, i and j, where they are other than these

    >>> shown(trace(lambda x, i, j, ops, s: x * s + j, ("s",)), {"j": "k"})
    '(x * s) + to_float(k)'
    """
    head, *parts = expression
    if head in ("x", "i", "j"):
        return names.get(head, str(head)) + "".join(f"[{k}]" for k in parts)
    if head == "steps":
        text = "; ".join(f"s{n} = {shown(step, names)}" for n, step in enumerate(parts[0]))
        return f"{shown(parts[1], names)} with {text}"
    if head == "step":
        return f"s{parts[0]}"
    if head in ("given", "float", "int"):
        return str(parts[0]) + "".join(f"[{k}]" for k in parts[1:])
    if head in _SIGNS:
        text = f" {_SIGNS[head]} ".join(shown(part, names, True) for part in parts)
        return f"({text})" if inside else text
    return f"{head}({', '.join(shown(part, names) for part in parts)})"


_MADE: Mapping[str, Callable[..., Symbol]] = {
    "add": operator.add, "sub": operator.sub, "mul": operator.mul, "div": operator.truediv, "lt": operator.lt,
    "le": operator.le, "gt": operator.gt, "ge": operator.ge, "eq": operator.eq, "ne": operator.ne,
    "floordiv": operator.floordiv, "mod": operator.mod, "and_": operator.and_, "or_": operator.or_,
    "xor": operator.xor, "to_float": Operations.float, "whole": Operations.whole,
    **{name: getattr(Operations(), name) for name in (*FUNCTIONS, *_CHOICES)},
}  # fmt: skip


def restored(
    parts: object, names: Sequence[str], along: Sequence[str] = (), columns: int = 0, whole: Collection[str] = ()
) -> Expression:
    """The expression of nested lists, as JSON has them. Its operations are made again, with their checks.

    names    of the operands that it may read
    along    names of those of them that have a value for each column of a group
    columns  of a group; 0 for a function of one element
    whole    names of operands that are int32

    Raises PlanError for lists that no function's trace gives.

    >>> restored(["mul", ["x"], ["given", "s"]], ("s",))
    ('mul', ('x',), ('given', 's'))
    """
    each = range(columns)
    found_x = [("x", k) for k in each] if columns else [("x",)]
    read = [("given", name) for name in names if name not in along]
    read += [("given", name, k) for name in along for k in each]  # type: ignore[misc]
    leaves: dict[Expression, str] = dict.fromkeys(found_x, "float")
    leaves |= {leaf: "int" if leaf[1] in whole else "float" for leaf in read}
    steps: list[Symbol] = []
    last = parts
    if isinstance(parts, (list, tuple)) and len(parts) == 3 and parts[0] == "steps" and parts[1]:
        for step in parts[1]:
            steps.append(_restored(step, leaves, steps))
        last = parts[2]
    found = _float(_restored(last, leaves, steps)).expression
    if steps:
        found = ("steps", tuple([step.expression for step in steps]), found)
    if exact(found) != exact(_as_tuples(parts)):
        raise PlanError(f"an expression is {bounded(parts)}, and a trace would give {bounded(found)}")
    return found


def _restored(parts: object, leaves: Mapping[Expression, str], steps: Sequence[Symbol] = ()) -> Symbol:
    head, *rest = parts if isinstance(parts, (list, tuple)) and parts else (None,)
    if head == "step" and len(rest) == 1 and type(rest[0]) is int and 0 <= rest[0] < len(steps):
        return Symbol((head, rest[0]), steps[rest[0]].kind)
    if head in ("i", "j") and not rest:
        return Symbol((head,), "int")
    if head in ("float", "int") and len(rest) == 1 and isinstance(rest[0], float if head == "float" else int):
        return _symbol(rest[0])
    if head in ("x", "given") and {type(part) for part in rest} <= {str, int} and (head, *rest) in leaves:
        return Symbol((head, *rest), leaves[(head, *rest)])
    if not isinstance(head, str) or head not in _MADE:
        raise PlanError(f"no part of an expression: {bounded(parts)}")
    try:
        return _MADE[head](*[_restored(part, leaves, steps) for part in rest])
    except TypeError as error:
        raise PlanError(f"{head} of {len(rest)} parts in an expression: {error}") from None


def _as_tuples(parts: object) -> object:
    return tuple([_as_tuples(part) for part in parts]) if isinstance(parts, (list, tuple)) else parts


def as_json(what: str, **parts: object) -> str:
    """Parts of a traced function as text. Raises PlanError for an expression that no trace gives."""
    try:
        return json.dumps(parts)
    except (TypeError, ValueError, RecursionError) as error:
        raise PlanError(f"no expression of {what}: {error}") from None


class Values:
    """Values by name, and the operations on them. The place at which an expression without coordinates is evaluated."""

    def __init__(self, values: Mapping[str, object], math: object):
        self.values, self.math = values, math

    def read(self, name: str) -> Value:
        """A value by its name. Raises PlanError for a name without one, and for a value without arithmetic."""
        if name not in self.values:
            raise PlanError(f"{bounded(name)} is read, and the values are of {bounded(tuple(self.values))}")
        return as_arithmetic(self.values[name], name, PlanError)
