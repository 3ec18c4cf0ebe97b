"""Kept launches from C. One function finds a kept call, one makes its launches, without Python's interpreter between.

    product   the call that `launch.making` makes: addresses, new tensors, launches
    alike     a guard: tensors have the facts of those that it was made of
    plain     torch's guard, which refuses nested tensors
    again     a kept call by a tensor's id, if no mode has to see it and its guard holds
    by_options  the same, of options and tensors
    repeat    a kept call with options, whose arguments and options are as they were
    first     either of these, of a function's arguments and options

A C compiler builds them once a process (calls.c). Without one Python's code stands in, and in a Python without a lock:
an entry of `last` may be dropped by another thread while it is read.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ...kernels.compile.launcher import built, opened

modes_of_functions = getattr(torch._C, "_is_torch_function_mode_enabled", torch._C._len_torch_function_stack)
modes_of_dispatch = torch._C._len_torch_dispatch_stack
Call = Callable[..., Any]  # of tensors and numbers
SOURCE = Path(__file__).with_name("calls.c")
_FASTCALL = 0x80  # METH_FASTCALL in Python's methodobject.h: a function of an array of objects and its length
_NAMES = "product", "alike", "plain", "again", "by_options", "repeat", "first"
_RANK, _DIMENSIONS = 7, 8  # of calls.c: where a tensor's number of dimensions stands among its facts, and its most
_FACTS = _RANK + 1 + 2 * _DIMENSIONS


class _Method(ctypes.Structure):
    """PyMethodDef of Python's C API."""

    _fields_ = [("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class _TorchFunctions(ctypes.Structure):
    """`torch` of calls.c."""

    _fields_ = [(name, ctypes.c_uint64) for name in (
        "library", "address", "dimensions", "sizes", "strides", "dtype", "device", "index", "mark", "function_modes",
        "dispatch_modes", "requires_grad", "tensor", "keys", "counted", "included", "excluded", "increment", "kind",
        "parameter",
    )]  # fmt: skip


class Library(NamedTuple):
    """The functions of calls.c: what Python makes functions of.

    methods  are never freed. Each function points to one without holding it, and may be the last object of a process
    """

    loaded: ctypes.PyDLL
    methods: dict[str, _Method]

    def function(self, name: str, own: tuple[object, ...]) -> Call:
        """A function of C, which keeps `own` and is given it before its arguments."""
        made: Call = _new_function()(ctypes.byref(self.methods[name]), own, None)
        return made

    def facts(self, x: torch.Tensor) -> list[int] | None:
        """Facts of a tensor that a guard compares. None where torch has to be asked."""
        found = (ctypes.c_uint64 * _FACTS)()
        return [*found] if self.loaded.facts(ctypes.py_object(x), found, None) else None


@functools.cache
def _new_function() -> Call:
    """PyCFunction_NewEx of Python's C API."""
    kind = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.py_object)
    made: Call = kind(("PyCFunction_NewEx", ctypes.pythonapi))
    return made


@functools.cache
def library() -> Library | None:
    """The functions, built once a process. None without a C compiler, and for a Python that lacks what they call.

    None for a Python without a lock, too.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return None
    content = built(SOURCE.name, SOURCE.read_bytes(), "-fPIC", "-O2")
    if not content:
        return None
    try:
        loaded = ctypes.PyDLL(None, handle=opened(content)._handle)
        methods = {
            name: _Method(f"layoutgemm_{name}".encode(), ctypes.cast(loaded[name], ctypes.c_void_p).value, _FASTCALL)
            for name in _NAMES
        }
    except (OSError, AttributeError):  # /tmp may forbid execution
        return None
    for method in methods.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
    functions = Library(loaded, methods)
    with torch.no_grad(), contextlib.suppress(AttributeError, OSError, RuntimeError, ValueError):  # another torch
        _teach(functions)
    return functions


_KEYS_OF_THREAD = "_ZN3c104impl26raw_local_dispatch_key_setE"  # words turned by constants: included, excluded
_AOTI = "address", "dimensions", "sizes", "strides", "dtype", "device", "index"  # of torch's C interface
_NAMED = "data_ptr", "dim", "sizes", "strides", "dtype", "device_type", "device_index"
_SYMBOLS = {
    **{name: f"aoti_torch_get_{own}" for name, own in zip(_AOTI, _NAMED)},
    "mark": "_ZN5torch8autograd4impl12bump_versionERKN2at6TensorE",
    "function_modes": "_ZN2at4impl27torch_function_mode_enabledEv",
    "dispatch_modes": "_ZN3c104impl20TorchDispatchModeTLS9stack_lenEv",
    "requires_grad": "_ZNK3c1010TensorImpl13requires_gradEv",
}
_MOST_BYTES = 184  # of a tensor's implementation that are looked at: the smallest, of torch 2.13, has as many


def _teach(functions: Library) -> None:
    """Let calls.c read tensors by torch's C interface, which is first compared with Python.

    Where an object has its tensor, and that one its keys, no interface says. They are found by their values.

    Raises AttributeError for a torch without these functions, ValueError where Python says something else.
    """
    one, own = ctypes.CDLL(torch._C.__file__), torch._C
    given = _TorchFunctions(
        library=one._handle,
        increment=id(own._increment_version),
        kind=id(torch.Tensor),
        parameter=id(torch.nn.Parameter),
    )
    for name, symbol in _SYMBOLS.items():
        setattr(given, name, ctypes.cast(one[symbol], ctypes.c_void_p).value)
    words = (ctypes.c_uint64 * 2).in_dll(one, _KEYS_OF_THREAD)

    def of_thread() -> list[int]:
        return [own._dispatch_tls_local_include_set().raw_repr(), own._dispatch_tls_local_exclude_set().raw_repr()]

    given.included, given.excluded = [word ^ keys for word, keys in zip(words, of_thread(), strict=True)]
    samples = [
        torch.zeros(3, 8, 2)[1:, ::3],
        torch.nn.Parameter(torch.zeros(5).half()),
        torch.zeros((), dtype=torch.int8),
    ]
    samples += [torch.zeros(2, 3, dtype=torch.complex64).conj(), torch.empty(4, 1, 2, device="meta")]
    with torch.inference_mode():
        samples.append(torch.zeros(1, 7))  # the last one counts no writes
        apart = [word ^ turned for word, turned in zip(words, (given.included, given.excluded))] == of_thread()
    keys = [own._dispatch_keys(x).raw_repr() for x in samples]
    at = [x._cdata for x in samples]
    given.tensor = _offset([id(x) for x in samples], at, range(16, torch.Tensor.__basicsize__, 8))
    given.keys = _offset(at, keys, range(8, _MOST_BYTES, 8))
    given.counted = keys[0] & ~keys[-1]
    one[_SYMBOLS["mark"]](ctypes.c_void_p(id(samples[0]) + given.tensor))
    functions.loaded.learn(ctypes.byref(given))
    apart &= samples[0]._version == 1 and given.counted != 0
    wanted = [(key, x.requires_grad, x.shape, x.stride()) for x, key in zip(samples, keys)]
    found = [None if each is None else _read(each) for each in map(functions.facts, samples)]
    if not apart or found != wanted or len({*keys}) < 4:
        functions.loaded.learn(ctypes.byref(_TorchFunctions()))
        raise ValueError("torch's C interface says something else of tensors than Python")


def _offset(begins: Sequence[int], values: Sequence[int], offsets: Sequence[int]) -> int:
    """The one offset at which memory has the values. Raises ValueError for none, or several."""
    [found] = [
        offset
        for offset in offsets
        if all(ctypes.c_uint64.from_address(at + offset).value == value for at, value in zip(begins, values))
    ]
    return found


def _read(facts: Sequence[int]) -> tuple[int, bool, tuple[int, ...], tuple[int, ...]]:
    """Keys, whether a gradient is required, sizes and strides of a tensor's facts."""
    rank, first = facts[_RANK], _RANK + 1
    strides = first + _DIMENSIONS
    return facts[1], bool(facts[_RANK - 1]), tuple(facts[first : first + rank]), tuple(facts[strides : strides + rank])


class LaunchPlan(NamedTuple):
    """The launches of a call, for `calls.c`.

    functions  `data_ptr`'s name, functions and objects, in the order of the first members of `Plan`; `take` may be None
    numbers    its numbers, in its order
    template   the arguments
    reads      (tensor, its argument, bytes from the tensor to what the launch takes)
    spans      bytes of each tensor; () where none is written
    written    the tensors that are written
    pairs      of one of these and another tensor, which may share no memory; () where none is written
    inner      (argument, bytes from the beginning of the memory that the launches share)
    news       (shape, strides, type, its argument or None, what it holds before)
    words      the arguments that are numbers of the call
    returns    numbers of new tensors, or None
    launches   (the host function's address, the places of its arguments)
    """

    functions: Sequence[object]
    numbers: Sequence[int]
    template: Sequence[int]
    reads: Sequence[tuple[int, int, int]]
    spans: Sequence[int]
    written: Sequence[int]
    pairs: Sequence[tuple[int, int]]
    inner: Sequence[tuple[int, int]]
    news: Sequence[tuple[object, object, object, int | None, object]]
    words: Sequence[int]
    returns: Sequence[int | None]
    launches: Sequence[tuple[int, Sequence[int]]]

    def call(self) -> Call | None:
        """The function; None without a C compiler."""
        functions = library()
        if functions is None:
            return None
        listed: list[int] = [*map(id, self.functions), *self.numbers, *self.template]
        listed += [len(self.reads), *[x for each in self.reads for x in each], len(self.spans), *self.spans]
        listed.append(bool(self.written))
        if self.written:
            listed += [len(self.written), *self.written, len(self.pairs), *[x for pair in self.pairs for x in pair]]
        listed += [len(self.inner), *[x for each in self.inner for x in each], len(self.news)]
        for *kinds, place, first in self.news:
            listed += [*map(id, kinds), -1 if place is None else place, id(first) if first else 0]
        listed += [len(self.words), *self.words, len(self.returns), *[-1 if i is None else i for i in self.returns]]
        listed.append(len(self.launches))
        for entry, places in self.launches:
            listed += [entry, len(places), *places]
        plan = (ctypes.c_int64 * len(listed))(*listed)
        return functions.function("product", (ctypes.addressof(plan), plan, self))


def alike(
    tensors: Sequence[torch.Tensor], firsts: Sequence[int], begins: Mapping[int, int]
) -> Callable[..., bool] | None:  # fmt: skip
    """The guard that tensors are as these; None where torch's own has to say so.

    firsts  of each tensor the place where it stands first
    begins  of some tensors that of an earlier one, which begins at the same address
    """
    functions = library()
    if functions is None or any(x.layout is not torch.strided or x.is_nested for x in tensors):
        return None
    listed = [len(tensors)]
    for place, x in enumerate(tensors):
        found = functions.facts(x)
        if found is None:
            return None
        listed += [firsts[place], begins.get(place, -1), *found]
    kept = _words(*listed)
    return functions.function("alike", (ctypes.addressof(kept), False, True, kept))


def plain(guard: Callable[..., bool]) -> Callable[..., bool] | None:
    """The guard that refuses nested tensors first; None without a C compiler."""
    functions = library()
    return None if functions is None else functions.function("plain", (guard, "is_nested", False))


_MODES = modes_of_functions, modes_of_dispatch, vars(_forward), "_current_level"


class Places:
    """A place where `calls.c` looks for a kept call, by its tensors.

    last   guards by a tensor's id
    key    the place of that tensor
    order  the place in the call of each tensor that the guard and the kept call take
    """

    def __init__(self, last: object, key: int, order: Sequence[int]) -> None:
        self._order = _words(key, len(order), *order)
        self.words = _words(id(last), ctypes.addressof(self._order))
        self.address = ctypes.addressof(self.words)


def again(last: object, places: Places) -> Call | None:
    """The function that finds a kept call in `last`. None without a C compiler; `places` are of `last`."""
    functions = library()
    if functions is None:
        return None
    words = _words(*map(id, _MODES), *places.words)
    return functions.function("again", (None, ctypes.addressof(words), words, places, last))


def by_options(last: object) -> Call | None:
    """The function that finds a kept call by options and tensors. None without a C compiler.

    last  `LastCalls` by options and the number of tensors
    """
    functions = library()
    if functions is None:
        return None
    words = _words(*map(id, _MODES))
    return functions.function("by_options", (ctypes.addressof(words), None, last, "address", NO_TENSORS, words))


def _words(*numbers: int) -> ctypes.Array[ctypes.c_int64]:
    return (ctypes.c_int64 * len(numbers))(*numbers)  # of 64 bits: larger ones are taken for negative


class RepeatPlan(NamedTuple):
    """A call with options, for `calls.c`.

    functions  the guard, the launch, what says that derivatives are recorded or None, and `number_word`
    given      the name of the option that has operands
    operands   how many these are; -1 for None, -2 where there is no such option
    arguments  of each argument the class of several tensors or None, and how many; or a class and its attributes
    options    how many options there are
    compared   (whether it is an operand, name, value, whether an equal one of its type stands for it)
    named      (whether it is an operand, name) of each other tensor
    numbers    (operand, name, the least float that its word is not simply that of)
    attributes  of an argument: (name, whether it is a tensor, else the object that it is)
    """

    functions: tuple[object, object, object, object]
    given: str
    operands: int
    arguments: Sequence[tuple[type | None, int]]
    options: int
    compared: Sequence[tuple[bool, str, object, bool]]
    named: Sequence[tuple[bool, str]]
    numbers: Sequence[tuple[object, str, float]]
    attributes: Sequence[tuple[str, bool, object]] = ()

    def call(self) -> Call | None:
        """The function; None without a C compiler."""
        functions = library()
        if functions is None:
            return None
        held = None, *self.functions, self.given, MISMATCHES
        listed = [*map(id, held), len(self.arguments), self.options, self.operands, len(self.compared)]
        listed += [len(self.named), len(self.numbers), sum(count for _, count in self.arguments) + len(self.named)]
        for kind, count in self.arguments:
            listed += [0 if kind is None else id(kind), count]
        for place, name, value, is_value in self.compared:
            listed += [place, id(name), id(value), is_value]
        for place, name in self.named:
            listed += [place, id(name)]
        for operand, name, most in self.numbers:
            listed += [id(operand), id(name), *_words_of(most)]
        for name, is_tensor, value in self.attributes:
            listed += [id(name), 0 if is_tensor else id(value)]
        plan = _words(*listed)
        return functions.function("repeat", (ctypes.addressof(plan), plan, self, held))


MISMATCHES = AttributeError, KeyError, RuntimeError, TypeError, ValueError  # of a call that was not kept
NO_TENSORS = AttributeError, TypeError, RuntimeError  # of a call whose operands are no dense tensors


def _words_of(number: float) -> list[int]:
    return [ctypes.c_int64.from_buffer(ctypes.c_double(number)).value]


def first(
    last: object, lasts: Mapping[tuple[int, str | None], Places], weight: int, epilogue: str
) -> Call | None:  # fmt: skip
    """The function that finds a function's kept calls; None without a C compiler.

    last      those with options, by the ids of the argument at `weight` and of the option `epilogue`
    lasts     where calls are by the number of tensors and the name of one more
    """
    functions = library()
    if functions is None:
        return None
    held = *_MODES, None, last, epilogue, NO_TENSORS, lasts
    listed = [*map(id, held[:-1]), weight, len(lasts)]
    for (count, name), places in lasts.items():
        listed += [count, 0 if name is None else id(name), *places.words]
    plan = _words(*listed)
    return functions.function("first", (ctypes.addressof(plan), plan, held))
