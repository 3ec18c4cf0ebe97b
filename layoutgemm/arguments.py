"""Conversion and refusal of callers' arguments, for every entry point.

A public function's annotations define its arguments. `checked` reads them and converts each argument before the
function runs. NumPy's integers become ints, lists and `torch.Size` become tuples, at any depth. Other values (a bool, a
float or a text where an integer is due) are refused with the same message everywhere.

An annotation of `Any` is not checked: the function converts such an argument itself, with `as_int`.
"""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import sys
import types
import typing
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeGuard, TypeVar, Union

from .cute_names import instead_of
from .errors import LayoutError
from .graph_marks import constant_in_graphs, not_in_graphs

IntTuple = int | tuple["IntTuple", ...]


class Integer(Protocol):
    """An operand with integer arithmetic. An int, a symbol, an array of integers or a traced integer."""

    def __add__(self, other: Any, /) -> Any: ...
    def __radd__(self, other: Any, /) -> Any: ...
    def __sub__(self, other: Any, /) -> Any: ...
    def __rsub__(self, other: Any, /) -> Any: ...
    def __mul__(self, other: Any, /) -> Any: ...
    def __rmul__(self, other: Any, /) -> Any: ...
    def __floordiv__(self, other: Any, /) -> Any: ...
    def __rfloordiv__(self, other: Any, /) -> Any: ...
    def __mod__(self, other: Any, /) -> Any: ...
    def __rmod__(self, other: Any, /) -> Any: ...
    def __neg__(self) -> Any: ...
    def __lt__(self, other: Any, /) -> object: ...
    def __le__(self, other: Any, /) -> object: ...
    def __gt__(self, other: Any, /) -> object: ...
    def __ge__(self, other: Any, /) -> object: ...


F = TypeVar("F", bound=Callable[..., Any])
Refusal = TypeVar("Refusal", bound=LayoutError)
Read = Callable[[Any], object]  # converts an argument, or returns _REFUSED

PROGRAMS = (".cu", ".so")  # how files of CUDA C++ programs end: a source, or its library
DEPTH = 64  # levels of nested tuples: each level takes several of the 1000 calls that Python allows
MAX_BITS = 4096  # of an integer: far more than any size or address has, and Python prints it
FLOAT_BITS = 1023  # of an integer that a float holds
WORD_BITS = 64  # of an operand of a kernel's arithmetic
_DIGITS = 40  # of an integer in a message
_TEXT = 160  # characters of another value in a message
_REFUSED: object = object()
# Functions that take these read them with better error messages: `Operand.parse`, `Gated.of`.
_READ_ELSEWHERE = frozenset({"Atom", "Drawable", "Operand", "Epilogue", "Gated", "Promoted"})
# class name -> its reader of callers' values, which names the nearest in a refusal: `dtype`, `arch`
_MAKERS: dict[str, Read] = {}


def read_by(kind: type, maker: Read) -> None:
    """Let an annotation of `kind` take every value that `maker` takes.

    `maker` returns an instance of `kind` as it is, and raises a LayoutError for what it cannot read.
    """
    _MAKERS[kind.__name__] = maker


def is_int(x: object) -> TypeGuard[int]:
    """True for an integer. Any `numbers.Integral`, such as an int or a NumPy integer, except a bool.

    >>> import numpy as np
    >>> is_int(4), is_int(np.uint8(4)), is_int(True), is_int(np.array(4)), is_int(4.0)
    (True, True, False, False, False)
    """
    return x.__class__ is int or (isinstance(x, numbers.Integral) and not isinstance(x, bool))


def shown(x: object) -> str:
    """A value as shown in a message: its repr, of bounded length.

    Works for any size of integer and depth of nesting.

    >>> shown(64), shown("4"), shown(10**99)
    ('64', "'4'", 'an integer of 329 bits')
    """
    if isinstance(x, int) and x.bit_length() > 4 * _DIGITS:
        return f"an integer of {x.bit_length()} bits"
    try:
        text = repr(x)
    except Exception:  # an integer of over 4300 digits inside, a deep nest, a class with a repr that fails
        return f"a {type(x).__name__}"
    if "\n" in text and is_array(x):
        return f"an array of shape {tuple(x.shape)}"  # type: ignore[attr-defined]
    return text if len(text) <= _TEXT else f"{text[:_TEXT]}..."


def is_array(x: object) -> bool:
    """True for an array or a tensor of another library."""
    return hasattr(x, "tolist") and bool(getattr(x, "shape", ()))


def refusal(x: object, what: str, wanted: str) -> str:
    """The common message for an argument that its parameter does not take.

    >>> refusal(4.0, "n of wgmma", "an integer")
    'n of wgmma must be an integer, not 4.0 (float)'
    """
    said = shown(x)
    if _bits(x) > MAX_BITS and wanted.startswith("an integer"):
        return f"{what} must be an integer of at most {MAX_BITS} bits, not {_bits(x)} bits"
    kind = "" if said in (f"a {type(x).__name__}", f"an integer of {_bits(x)} bits") else f" ({type(x).__name__})"
    hint = f"; CuTe's notation is read by parse({said})" if isinstance(x, str) and ":" in x else ""
    if is_array(x) and "layout" in f"{what} {wanted}".lower():
        hint = "; from_cute(x) is the layout of an array, and a shape is a tuple"
    return f"{what} must be {wanted}, not {said}{kind}{hint}"


def _bits(x: object) -> int:
    return int(x).bit_length() if is_int(x) else 0


def nearest(x: object, known: Iterable[object], most: int = 1) -> str:
    """The question whether a misspelt name is one of the known names. "" where none is like it.

    >>> nearest("rleu", ("relu", "gelu")), nearest("tanj", ("relu", "gelu")), nearest(3, ("relu",))
    ("do you mean 'relu'? ", '', '')
    >>> nearest("rowwize", ("RowWise", "TensorWise"))
    "do you mean 'RowWise'? "
    """
    if not isinstance(x, str):
        return ""
    from difflib import get_close_matches

    names = {name.lower(): name for name in known if isinstance(name, str)}
    near = get_close_matches(x.lower()[:_TEXT], names, most)
    return f"do you mean {' or '.join(repr(names[name]) for name in near)}? " if near else ""


def unnamed(error: Refusal, value: object) -> Refusal:
    """The error of a refused value whose argument is not known where it is refused.

    The outermost call of a `checked` function with this value says the argument's name before the message.

    >>> from layoutgemm import wgmma
    >>> wgmma(64, "bf61")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.OperandError: a of wgmma: unknown number format 'bf61'; do you mean bf16 or b1? known: f64, f32, \
tf32, f16, bf16, e4m3, e5m2, e3m2, e2m3, e2m1, ue8m0, ue4m3, i64, i32, i16, i8, u64, u32, u16, u8, i4, u4, b1
    """
    error.unnamed = value, error.reason
    return error


def _say_name(error: LayoutError, name: str, x: object) -> bool:
    """Put an argument's name before the message of an error about its value; True if it is."""
    if error.unnamed is None:
        return False
    value, message = error.unnamed
    if x is not value and not (x.__class__ is str and x == value):
        return False
    error.reason = f"{name}: {message}"
    error.args = (error.reason,)
    return True


def as_int(
    x: object, what: str, error: type[LayoutError] = LayoutError, least: int | None = None, most: int | None = None
) -> int:
    """`x` as a Python int in least..most. Raises `error`, which calls it `what`.

    >>> import numpy as np
    >>> as_int(np.int64(64), "N"), as_int(7, "M", least=1)
    (64, 7)
    >>> as_int((64,), "N")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.LayoutError: N must be an integer, not (64,) (tuple)
    """
    if x.__class__ is not int:
        if not is_int(x):
            raise error(refusal(x, what, "an integer"))
        x = int(x)
    if x.bit_length() > MAX_BITS:
        raise error(refusal(x, what, "an integer"))
    if least is not None and x < least:
        raise error(f"{what} must be at least {least}, not {shown(x)}")
    if most is not None and x > most:
        raise error(f"{what} must be at most {most}, not {shown(x)}")
    out: int = x
    return out


def as_bool(x: object, what: str, error: type[LayoutError] = LayoutError) -> bool:
    """`x` as True or False. Raises `error`, which calls it `what`, for any other value, as 1, "no" or a tensor.

    >>> import numpy as np
    >>> as_bool(np.bool_(True), "relu")
    True
    """
    if x is True or x is False:
        return x
    taken = _bool(x)
    if taken is _REFUSED:
        raise error(refusal(x, what, "True or False"))
    return bool(taken)


def having(x: Any, what: str, wanted: str, *names: str, error: type[LayoutError] = LayoutError) -> Any:
    """`x` where it has the attributes `names`. Raises `error`, which calls it `what` and asks for `wanted`.

    >>> having(3, "atom", "a matrix atom", "ptx")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.LayoutError: atom must be a matrix atom, not 3 (int)
    """
    if isinstance(x, type) or not all(hasattr(x, name) for name in names):
        raise error(refusal(x, what, wanted))
    return x


def as_path(x: object, what: str) -> Path:
    """`x` as a file's path. Raises LayoutError for what is no text or path, and for one that names no file.

    >>> as_path("rows.svg", "path of svg").name
    'rows.svg'
    """
    if not isinstance(x, (str, os.PathLike)) or not isinstance(os.fspath(x), str):
        raise LayoutError(refusal(x, what, "a path, as text or a pathlib.Path"))
    text = str(os.fspath(x))
    if not text or "\0" in text:
        raise LayoutError(f"{what} must name a file, not {shown(text)}")
    return Path(text)


def check_range(error: type[LayoutError], most: int, bound: str, **numbers: int) -> None:
    """Raise `error` for a number outside 1..most: its name, the number, and `bound`.

    >>> check_range(LayoutError, 4, "a cluster has 1 to 4", m=2, n=8)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.LayoutError: n = 8: a cluster has 1 to 4
    """
    for name, number in numbers.items():
        if not 1 <= number <= most:
            raise error(f"{name} = {shown(number)}: {bound}")


def as_number(x: object, what: str, error: type[LayoutError] = LayoutError, least: int | None = None) -> Any:
    """An integer as a Python int; a symbol, traced value or array unchanged.

    Raises `error` for built-in values other than integers, integers below `least`, and objects without `%`.

    >>> import numpy as np
    >>> as_number(np.int8(4), "a tile"), as_number(np.arange(3), "tiles")
    (4, array([0, 1, 2]))
    >>> as_number(4.0, "a tile")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.LayoutError: a tile must be an integer, not 4.0 (float)
    """
    if is_int(x) or isinstance(x, (bool, numbers.Number, str, bytes)) or not hasattr(type(x), "__mod__"):
        return as_int(x, what, error, least)
    kind = getattr(x, "dtype", None)
    if getattr(kind, "kind", "i") not in "iuO" or getattr(kind, "is_floating_point", False):
        raise error(refusal(x, what, "an integer"))
    return x


def as_arithmetic(x: Any, what: str, error: type[LayoutError] = LayoutError) -> Any:
    """`x` where it has arithmetic. A number, a symbol, a traced value or an array of numbers, unchanged.

    Raises `error` for another value, and for an integer beyond every float.

    >>> as_arithmetic("4", "a sum")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.LayoutError: a sum must be a number, not '4' (str)
    """
    odd = isinstance(x, (bool, str, bytes, tuple, list)) or not hasattr(type(x), "__add__")
    wide, kind = is_int(x) and int(x).bit_length() > FLOAT_BITS, getattr(getattr(x, "dtype", None), "kind", "f")
    if odd or wide or kind in ("O", "S", "U", "M", "m"):
        raise error(refusal(x, what, "a number"))
    return x


def plain(x: object) -> Any:
    """An argument with integers as ints and lists of integers as tuples.

    Everything else stays unchanged, for the caller to judge: bools, floats, strings, objects, lists that hold them.
    Raises LayoutError for integers of more than MAX_BITS bits, and for tuples that nest deeper than DEPTH.

    >>> import numpy as np
    >>> plain(np.int64(64)), plain([128, np.int32(64)]), plain(((2,), [3])), plain(True), plain("4")
    (64, (128, 64), ((2,), (3,)), True, '4')
    """
    return _plain(x, 0)


def _plain(x: object, level: int) -> object:
    if x is None or x.__class__ is str:
        return x
    if is_int(x):
        return as_int(x, "an argument")
    if isinstance(x, (tuple, list)) and not hasattr(x, "_fields"):
        if level >= DEPTH:
            raise LayoutError(f"an argument nests tuples more than {DEPTH} deep")
        parts = [_plain(part, level + 1) for part in x]
        if x.__class__ is not tuple and all(part.__class__ is int or part.__class__ is tuple for part in parts):
            return tuple(parts)
        same = all(new is old for new, old in zip(parts, x))
        return x if same or x.__class__ is not tuple else tuple(parts)
    return x


# ---------------------------------------------------------------- what an annotation takes


class _AnnotationReader(NamedTuple):
    """The reader of an annotation's arguments.

    read     the converted argument, or _REFUSED
    wanted   the annotation in words, for the message
    raises   True if `read` has errors of its own
    """

    read: Read
    wanted: str
    raises: bool = False


def _int(x: object) -> object:
    if x.__class__ is not int:
        if not is_int(x):
            return _REFUSED
        x = int(x)
    return x if x.bit_length() <= MAX_BITS else _REFUSED


def _number(x: object) -> object:
    if is_int(x):
        return _REFUSED if (taken := int(x)).bit_length() > WORD_BITS else taken
    try:
        return as_number(x, "")
    except LayoutError:
        return _REFUSED


def _bool(x: object) -> object:
    # NumPy's bool is not a subclass of bool, and this module does not import NumPy.
    return x if x.__class__ is bool else bool(x) if type(x).__name__ in ("bool", "bool_") else _REFUSED


def _float(x: object) -> object:
    if isinstance(x, numbers.Real) and not isinstance(x, bool):
        return int(x) if is_int(x) else x
    return _REFUSED


def _int_tuple(x: object, level: int = 0) -> object:
    """Nested integers. The function judges an entry of another type, such as a symbol."""
    if isinstance(x, (tuple, list)):
        if level >= DEPTH:
            return _REFUSED
        parts = [_int_tuple(y, level + 1) for y in x]
        return _REFUSED if any(y is _REFUSED for y in parts) else tuple(parts)
    return _int(x) if is_int(x) or x is None or isinstance(x, (bool, float, complex, str, bytes, dict, set)) else x


def _entries(entry: _AnnotationReader | None) -> Read:
    """A reader of a tuple, list or range of any length."""

    ints = entry is not None and entry.read is _int

    def read(x: object) -> object:
        if ints and x.__class__ is tuple:
            for y in x:
                if y.__class__ is not int or y.bit_length() > MAX_BITS:
                    break
            else:  # as most are
                return x
        if not isinstance(x, (tuple, list, range)):
            return _REFUSED
        parts = x if entry is None else [entry.read(y) for y in x]
        return _REFUSED if any(y is _REFUSED for y in parts) else tuple(parts)

    return read


def _fixed(entries: Sequence[_AnnotationReader | None]) -> Read:
    """A reader of a tuple or list of exactly these entries."""

    def read(x: object) -> object:
        if not isinstance(x, (tuple, list)) or len(x) != len(entries):
            return _REFUSED
        parts = [y if entry is None else entry.read(y) for entry, y in zip(entries, x)]
        return _REFUSED if any(y is _REFUSED for y in parts) else tuple(parts)

    return read


def _mapping(value: _AnnotationReader | None) -> Read:
    def read(x: object) -> object:
        if not isinstance(x, Mapping):
            return _REFUSED
        if value is None:
            return x
        parts = {name: value.read(each) for name, each in x.items()}
        return _REFUSED if any(each is _REFUSED for each in parts.values()) else parts

    return read


def _union(members: Sequence[_AnnotationReader]) -> Read:
    def read(x: object) -> object:
        for member in members:
            if (taken := member.read(x)) is not _REFUSED:
                return taken
        return _REFUSED

    return read


def _instance(kind: type) -> Read:
    return lambda x: x if isinstance(x, kind) else _REFUSED


_SIMPLE: dict[object, _AnnotationReader] = {
    int: _AnnotationReader(_int, "an integer"),
    bool: _AnnotationReader(_bool, "True or False"),
    float: _AnnotationReader(_float, "a number"),
    str: _AnnotationReader(_instance(str), "a string"),
    Integer: _AnnotationReader(_number, f"an integer of {WORD_BITS} bits"),
    types.NoneType: _AnnotationReader(_instance(types.NoneType), "None"),
}


def _plural(wanted: str) -> str:
    """The words for several of `wanted`.

    >>> _plural("an integer"), _plural("a Layout"), _plural("an integer or None")
    ('integers', 'Layouts', 'entries that are an integer or None')
    """
    article, _, noun = wanted.partition(" ")
    return f"{noun}s" if article in ("a", "an") and " " not in noun else f"entries that are {wanted}"


def _reader(hint: object) -> _AnnotationReader | None:
    """The reader of an annotation's arguments; None for an annotation without a check."""
    if isinstance(hint, TypeVar):
        return _reader(hint.__bound__) if hint.__bound__ is not None else None
    if hint in (Any, object) or isinstance(hint, str):
        return None
    if hint is None:
        hint = types.NoneType
    if hint in _SIMPLE:
        return _SIMPLE[hint]
    if hint == IntTuple:
        return _AnnotationReader(_int_tuple, "an integer or a tuple of them")
    origin, parameters = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _union_reader(parameters)
    if origin is typing.Literal:
        return _AnnotationReader(lambda x: x if x in parameters else _REFUSED, " or ".join(map(repr, parameters)))
    if origin is tuple and parameters and parameters[-1] is not Ellipsis:
        entries = [_reader(each) for each in parameters]
        alike = len(set(parameters)) == 1 and entries[0] is not None
        nouns = _plural(entries[0].wanted) if alike and entries[0] else "entries"
        return _AnnotationReader(_fixed(entries), f"{len(entries)} {nouns}")
    if origin is tuple or origin in (list, Sequence, Collection, Iterable):
        entry = _reader(parameters[0])
        if origin is not tuple and entry is None:
            return None  # any sequence of anything, an array too
        return _AnnotationReader(_entries(entry), f"a tuple of {_plural(entry.wanted) if entry else 'entries'}")
    if origin in (dict, Mapping):
        value = _reader(parameters[1])
        return _AnnotationReader(_mapping(value), f"a dict of {_plural(value.wanted)}" if value else "a dict")
    if origin is Callable or hint is Callable:
        return _AnnotationReader(lambda x: x if callable(x) else _REFUSED, "a function")
    kind = origin if isinstance(origin, type) else hint
    if isinstance(kind, type) and kind.__name__ in _MAKERS:
        return _AnnotationReader(_MAKERS[kind.__name__], f"a {kind.__name__}", raises=True)
    if not isinstance(kind, type) or kind.__name__ in _READ_ELSEWHERE:
        return None
    if getattr(kind, "_is_protocol", False):
        return _protocol_reader(kind)
    article = "an" if kind.__name__[:1] in "AEIOU" else "a"
    example = getattr(kind, "EXAMPLE", None)  # one, as Python
    wanted = f"{article} {kind.__name__}" + (f" (as {example})" if isinstance(example, str) else "")
    return _AnnotationReader(_instance(kind), wanted)


def _protocol_reader(kind: type) -> _AnnotationReader:
    members = [name for name in (*vars(kind), *inspect.get_annotations(kind)) if not name.startswith("_")]
    wanted = f"an object with {', '.join(dict.fromkeys(members))}"
    return _AnnotationReader(lambda x: x if all(hasattr(x, name) for name in members) else _REFUSED, wanted)


def _union_reader(members: Sequence[object]) -> _AnnotationReader | None:
    nested = set(typing.get_args(IntTuple))
    if nested <= set(members):  # a union forgets that two of its members were an IntTuple
        members = [IntTuple, *[member for member in members if member not in nested]]
    made = [member for member in members if getattr(member, "__name__", "") in _MAKERS]
    if made and str in members:
        return None  # the function reads the names itself, and may accept more of them
    # A maker raises for unknown values, so it comes last.
    members = [*[member for member in members if member not in made], *made]
    readers = [_reader(member) for member in members]
    if any(each is None for each in readers):
        return None
    known = [each for each in readers if each is not None]
    wanted = " or ".join(dict.fromkeys(each.wanted for each in known))
    return _AnnotationReader(_union(known), wanted, any(each.raises for each in known))


class _NamedClass(type):
    """A class known only by its name, imported by type checkers alone."""

    def __instancecheck__(cls, x: object) -> bool:
        return any(each.__name__ == cls.__name__ for each in type(x).__mro__)


class _Names(dict[str, object]):
    """Names in a module's annotations. A name without a run-time import is a class by name."""

    def __init__(self, module: Mapping[str, object]) -> None:
        super().__init__(vars(__builtins__) if isinstance(__builtins__, types.ModuleType) else __builtins__)
        self.update(module)

    def __missing__(self, name: str) -> type:
        return _NamedClass(name, (), {})


def _resolved(annotation: object, names: _Names) -> object:
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, {}, names)
    except Exception:  # an attribute of a module that only type checkers import
        return Any


def _in_config(function: Callable[..., object], name: str) -> str:
    """The way to give a field of the function's configurations; "" for another name."""
    config = _resolved(function.__annotations__.get("config"), _Names(function.__globals__))
    kinds = [kind.__name__ for kind in typing.get_args(config) if name in getattr(kind, "__dataclass_fields__", ())]
    if not kinds:
        return ""
    way = f"write config={kinds[0]}({name}=...)" if len(kinds) == 1 else "write config= with the architecture's own"
    return f"it is a field of {' and '.join(kinds)}: {way}"


def unknown_argument(function: Callable[..., object], names: Iterable[str], given: int = 0) -> TypeError:
    """Python's error of the first unknown keyword of `names`, with what to write instead.

    given  how many arguments came by position

    >>> print(unknown_argument(is_int, ["y"]))
    is_int() got an unexpected keyword argument 'y'; it takes x
    """
    known = _taken(function)
    name = next(name for name in names if name not in known)
    open_to = sorted(each for each in known[given:] if each not in ("cls", "other"))
    few = f"it takes {', '.join(open_to)}" if 0 < len(open_to) <= 12 else ""
    meant = _in_config(function, name) or instead_of(name, frozenset(known)) or nearest(name, open_to) or few
    said = function.__qualname__.rpartition("<locals>.")[2].removesuffix(".__new__")
    return TypeError(f"{said}() got an unexpected keyword argument {shown(name)}; {meant}".rstrip(" ;"))


def _taken(function: Callable[..., object]) -> list[str]:
    """The names of a function's parameters, but for those of any keyword."""
    parameters = inspect.signature(function).parameters.values()
    return [each.name for each in parameters if each.kind is not inspect.Parameter.VAR_KEYWORD]


def sees_unknown(function: F) -> F:
    """The function, whose `**unknown: NoReturn` sees the keywords that it does not have. Its signature is without them.

    A call is no slower, as with `names_unknown`, and a trace by torch.compile has the function's own message.

    >>> @sees_unknown
    ... def product(a: int, b: int, **unknown: typing.NoReturn) -> int:
    ...     return a * b
    >>> str(inspect.signature(product)), product(2, 3)
    ("(a: 'int', b: 'int') -> 'int'", 6)
    """
    whole, taken = inspect.signature(function), _taken(function)
    closed = whole.replace(parameters=[whole.parameters[name] for name in taken])
    function.__signature__ = closed  # type: ignore[attr-defined]
    return function


def names_unknown(function: F) -> F:
    """A decorator that says what to write in place of an unknown keyword. For functions that are called rarely.

    >>> @names_unknown
    ... def product(a: int, b: int) -> int:
    ...     return a * b
    >>> product(2, 3, trans_b=True)
    Traceback (most recent call last):
        ...
    TypeError: product() got an unexpected keyword argument 'trans_b'; give b.mT
    """
    known = inspect.signature(function).parameters.keys()

    @functools.wraps(function)
    def call(*given: object, **named: object) -> object:
        if not known >= named.keys():
            raise unknown_argument(function, named, len(given))
        return function(*given, **named)

    return typing.cast(F, call)


def checked(error: type[LayoutError] = LayoutError) -> Callable[[F], F]:
    """A decorator that converts and checks each argument by its parameter's annotation.

    Raises `error`, which names the parameter and the function.

    >>> import numpy as np
    >>> @checked()
    ... def area(tile: tuple[int, int], times: int = 1) -> int:
    ...     return tile[0] * tile[1] * times
    >>> area([np.int16(128), np.int16(512)])
    65536
    >>> area((128, 2.0))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.LayoutError: tile of area must be 2 integers, not (128, 2.0) (tuple)
    """

    def decorate(function: F) -> F:
        said = function.__qualname__.rpartition("<locals>.")[2]

        @functools.cache
        def readers() -> _Readers:  # at the first call, when the names that annotations use exist
            return _readers_of(function)

        def take(x: object, reader: _AnnotationReader, name: str) -> object:
            taken = reader.read(x)
            if taken is _REFUSED:
                raise error(refusal(x, f"{name} of {said}", reader.wanted))
            return taken

        @functools.wraps(function)
        def call(*given: object, **named: object) -> Any:
            positional, by_name, rest, known = readers()
            try:
                taken = [x if reader is None else take(x, reader, name) for x, (name, reader) in zip(given, positional)]
                if len(given) > len(positional):
                    taken += [x if rest is None else take(x, rest, "an argument") for x in given[len(positional) :]]
                for name, x in named.items():
                    if (reader := by_name.get(name)) is not None:
                        named[name] = take(x, reader, name)
                    elif known is not None and name not in known:
                        raise unknown_argument(function, [name], len(given))
                return function(*taken, **named)
            except LayoutError as error:
                if error.unnamed is not None:
                    arguments = [*zip([name for name, _ in positional], given), *named.items()]
                    any(_say_name(error, f"{name} of {said}", x) for name, x in arguments)
                raise

        return typing.cast(F, call)

    return decorate


class _Readers(NamedTuple):
    """The readers of a function's parameters: by position, by name, and for `*args`.

    known  the names that a call may have; None where it may have any
    """

    positional: tuple[tuple[str, _AnnotationReader | None], ...]
    by_name: dict[str, _AnnotationReader]
    rest: _AnnotationReader | None
    known: frozenset[str] | None


@not_in_graphs
def _readers_of(function: Callable[..., object]) -> _Readers:
    names = _Names(function.__globals__)
    positional, by_name, rest = [], {}, None
    parameters = inspect.signature(function).parameters
    for parameter in parameters.values():
        annotated = parameter.annotation is not inspect.Parameter.empty
        reader = _reader(_resolved(parameter.annotation, names)) if annotated else None
        if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
            rest = reader
        elif parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            if parameter.kind is not inspect.Parameter.KEYWORD_ONLY:
                positional.append((parameter.name, reader))
            if reader is not None:
                by_name[parameter.name] = reader
    taken_any = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values())
    return _Readers(tuple(positional), by_name, rest, None if taken_any else frozenset(parameters))


# Attributes of a class: the readers of its fields, and the class whose they are.
_FIELDS = "_settled_fields"
_SETTLED = "_settled_class"


def settle(value: object, error: type[LayoutError] = LayoutError) -> None:
    """Convert and check each field of a dataclass, as the first line of its `__post_init__`.

    Raises `error`, which names the field and the class.
    """
    kind = type(value)
    if getattr(kind, _SETTLED, None) is not kind:
        _learn(kind)
    for name, reader in getattr(kind, _FIELDS):
        given = getattr(value, name)
        taken = reader.read(given)
        if taken is _REFUSED:
            raise error(refusal(given, f"{name} of {kind.__name__}", reader.wanted))
        if taken is not given:
            object.__setattr__(value, name, taken)


@constant_in_graphs
def _learn(kind: Any) -> None:
    """Keep the readers of a class's fields as its attributes, which torch.compile reads too."""
    setattr(kind, _FIELDS, _field_readers(kind))
    setattr(kind, _SETTLED, kind)


def _naming(reader: _AnnotationReader, what: str) -> _AnnotationReader:
    """A reader whose errors about a value say what it is."""

    def read(x: object) -> object:
        try:
            return reader.read(x)
        except LayoutError as error:
            _say_name(error, what, x)
            raise

    return reader._replace(read=read) if reader.raises else reader


def _field_readers(kind: type) -> list[tuple[str, _AnnotationReader]]:
    out = []
    for base in reversed(kind.__mro__):
        names = _Names(vars(sys.modules[base.__module__]))
        for name, annotation in inspect.get_annotations(base).items():
            if name in kind.__dataclass_fields__ and kind.__dataclass_fields__[name].init:  # type: ignore[attr-defined]
                reader = _reader(_resolved(annotation, names))
                if reader is not None:
                    out.append((name, _naming(reader, f"{name} of {kind.__name__}")))
    return out
