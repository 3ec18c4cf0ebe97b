"""A function of symbols as torch.compile traces it: its operations on a tape.

The tracer runs the function's code. So it guards all that the code reads: variables around it and of its module,
defaults, attributes, items of lists. A value that changes is compiled anew; torch 2.11 misses defaults and
attributes of a class.
As a constant of the tracer the function would be traced once, and the graph would keep the values of its first call.

    followed(function, parameters, ops_at, ...)   the tape as constants, which a constant function takes
    untaped(x)                                    the function of such constants; anything else as it is
"""

from __future__ import annotations

import inspect
import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from ...graph_marks import constant_in_graphs
from ...kernels.epilogue.tracing import Symbol
from ...memo import exact
from .traced import refusal, refuse

Constants: TypeAlias = "tuple[Any, ...]"  # what the compiler keeps
Tape = list[Constants]  # (name, operands, named operands) of each operation
_AT, _TUPLE, _LIST, _CONSTANT, _TAPE, _OF_OPS = "at", "tuple", "list", "constant", "tape", "ops."
_UNFOLLOWED = (
    "{} under torch.compile: the compiler runs the function to see what it reads, and could not; let it read numbers, "
    "functions, attributes and items alone"
)


class TapedValue:
    """A value of a function that is being traced. Operations on it are put on the tape."""

    __hash__ = None  # type: ignore[assignment]
    __iter__ = None

    def __init__(self, tape: Tape, place: int):
        self.tape, self.place = tape, place

    def __bool__(self) -> bool:
        raise TypeError("a value of the function has no truth")  # a symbol's refusal says what to do

    def __str__(self) -> str:
        raise TypeError("a value of the function has no text")


class TapedOperations:
    """`ops` of such a function."""

    def __init__(self, tape: Tape):
        self.tape = tape

    def __getattr__(self, name: str) -> Callable[..., TapedValue]:
        return lambda *operands, **named: _put(self.tape, _OF_OPS + name, operands, named)


def _put(tape: Tape, name: str, operands: Sequence[object], named: Mapping[str, object]) -> TapedValue:
    tape.append((name, _entry(operands), tuple([(key, _entry(x)) for key, x in named.items()])))
    return TapedValue(tape, len(tape) - 1)


def _entry(x: object) -> Constants:
    """A value as a tape has it: its place, its parts, or a constant's type and value."""
    if isinstance(x, TapedValue):
        return (_AT, x.place)
    if isinstance(x, (tuple, list)):
        return (_TUPLE if isinstance(x, tuple) else _LIST, *[_entry(each) for each in x])
    if type(x) in (int, float):  # the compiler has symbols for numbers that change
        from torch.fx.experimental.symbolic_shapes import guard_scalar  # loads SymPy

        x = guard_scalar(x)
    elif hasattr(x, "item"):  # a number of NumPy's, or of a tensor: the graph breaks
        x = x.item()
    return (_CONSTANT, type(x), x)


def _method(name: str) -> Callable[..., TapedValue]:
    return lambda self, *operands: _put(self.tape, name, (self, *operands), {})


_OPERATORS: dict[str, Callable[..., object]] = {name: x for name, x in vars(operator).items() if callable(x)}
_TURNED = {"__r" + name[2:]: x for name, x in _OPERATORS.items() if name.startswith("__")}  # __radd__
for _name in vars(Symbol):
    if _name in _OPERATORS or _name in _TURNED:
        setattr(TapedValue, _name, _method(_name))


class TapedFunction(NamedTuple):
    """The function of a tape. Those of equal tapes are equal.

    parameters, ops_at  their names; the place of `ops` among them
    tape                the operations, behind an entry for each parameter
    result              of the last ones

    >>> three = (_CONSTANT, int, 3)
    >>> TapedFunction(("x",), 1, ((), ("__rsub__", (_TUPLE, (_AT, 0), three), ())), (_AT, 1))(10)
    -7
    """

    parameters: tuple[str, ...]
    ops_at: int
    tape: Constants
    result: Constants

    @property
    def __signature__(self) -> inspect.Signature:
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        return inspect.Signature([inspect.Parameter(name, kind) for name in self.parameters])

    def __call__(self, *given: object, **named: object) -> object:
        """The result of the same operations on other values."""
        values = list(self.__signature__.bind(*given, **named).arguments.values())
        for name, operands, options in self.tape[len(values) :]:
            function = self._function(name, values)
            values.append(
                function(*[_value(x, values) for x in operands[1:]], **{key: _value(x, values) for key, x in options})
            )
        return _value(self.result, values)

    def _function(self, name: str, values: Sequence[object]) -> Callable[..., object]:
        if name.startswith(_OF_OPS):
            found: Callable[..., object] = getattr(values[self.ops_at], name.removeprefix(_OF_OPS))
            return found
        return _OPERATORS.get(name) or (lambda x, y: _TURNED[name](y, x))


def _value(entry: Constants, values: Sequence[object]) -> object:
    kind, *parts = entry
    if kind in (_TUPLE, _LIST):
        return (tuple if kind == _TUPLE else list)([_value(each, values) for each in parts])
    return values[parts[0]] if kind == _AT else parts[1] if parts[1] is None else parts[0](parts[1])


def followed(
    function: Callable[..., object], parameters: Sequence[str], ops_at: int, name: str, *taken: object
) -> Constants:
    """A function's tape, as the compiler's tracer follows it. A constant there, which `untaped` makes a function.

    parameters   names; what stands behind `ops` is given by name
    name, taken  the argument whose check, of the same name, refuses a function that raises

    >>> made = untaped(followed(lambda x, ops, s: s - ops.relu(x), ("x", "ops", "s"), 1, "combine"))
    >>> made(3, types.SimpleNamespace(relu=abs), s=7)
    4
    """
    tape: Tape = []
    values: list[object] = [_put(tape, "parameter", (), {}) for _ in parameters]
    if ops_at < len(values):
        values[ops_at] = TapedOperations(tape)
    front, behind = values[: ops_at + 1], values[ops_at + 1 :]
    try:
        found = function(*front, **dict(zip(parameters[ops_at + 1 :], behind)))
    except Exception:
        refuse(refusal(name, function, *taken))
        refuse(_UNFOLLOWED.format(name))
        raise
    return _TAPE, tuple(parameters), ops_at, tuple(tape), _entry(found)


def untaped(x: object) -> Any:
    """The function of a tape; anything else is returned."""
    return TapedFunction(*exact(x[1:])) if isinstance(x, tuple) and x[:1] == (_TAPE,) else x


def parameters_of(function: Callable[..., object]) -> tuple[str, ...]:
    """The names of a function's parameters.

    >>> parameters_of(lambda t, rows: (t, rows))
    ('t', 'rows')
    """
    if isinstance(function, types.FunctionType):
        return _parameters_of_code(function.__code__)
    return tuple(inspect.signature(function).parameters)


@constant_in_graphs
def _parameters_of_code(code: types.CodeType) -> tuple[str, ...]:
    return tuple(inspect.signature(like(code, 0)).parameters)


def like(code: types.CodeType, defaults: int) -> types.FunctionType:
    """A function to be looked at, with the parameters of such code.

    defaults  how many of the last ones have one


    >>> str(inspect.signature(like((lambda x, ops, s: x + y).__code__, 1)))
    '(x, ops, s=None)'
    """
    return types.FunctionType(code.replace(co_freevars=()), {}, None, (None,) * defaults)
