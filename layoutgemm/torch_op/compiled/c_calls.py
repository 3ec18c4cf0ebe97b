"""Kept launches from C. One function finds a kept call, one makes its launches, without Python's interpreter between.

    product   the call that `launch.making` makes: addresses, new tensors, launches
    plain     a guard that refuses nested tensors
    again     a kept call by a tensor's id, if no mode has to see it and its guard holds

A C compiler builds them once a process (calls.c). Without one Python's code stands in, and in a Python without a lock:
an entry of `last` may be dropped by another thread while it is read.
"""

from __future__ import annotations

import ctypes
import functools
import sysconfig
from collections.abc import Callable, Sequence
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
_NAMES = "product", "plain", "again"


class _Method(ctypes.Structure):
    """PyMethodDef of Python's C API."""

    _fields_ = [("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p)]


class Library(NamedTuple):
    """The functions of calls.c: what Python makes functions of.

    methods  are never freed. Each function points to one without holding it, and may be the last object of a process
    """

    loaded: ctypes.CDLL
    methods: dict[str, _Method]

    def function(self, name: str, own: tuple[object, ...]) -> Call:
        """A function of C, which keeps `own` and is given it before its arguments."""
        made: Call = _new_function()(ctypes.byref(self.methods[name]), own, None)
        return made


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
        loaded = opened(content)
        methods = {
            name: _Method(f"layoutgemm_{name}".encode(), ctypes.cast(loaded[name], ctypes.c_void_p).value, _FASTCALL)
            for name in _NAMES
        }
    except (OSError, AttributeError):  # /tmp may forbid execution
        return None
    for method in methods.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(method))
    return Library(loaded, methods)


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


def plain(guard: Callable[..., bool]) -> Callable[..., bool] | None:
    """The guard that refuses nested tensors first; None without a C compiler."""
    functions = library()
    return None if functions is None else functions.function("plain", (guard, "is_nested", False))


def again(last: object, key: int, order: Sequence[int]) -> Call | None:
    """The function that finds a kept call in `last`; None without a C compiler.

    key    the place of the tensor whose id finds it
    order  the place in the call of each tensor that the guard and the kept call take
    """
    functions = library()
    if functions is None:
        return None
    places = (ctypes.c_int64 * (2 + len(order)))(key, len(order), *order)
    modes = modes_of_functions, modes_of_dispatch, _forward, "_current_level"
    return functions.function("again", (None, last, *modes, ctypes.addressof(places), places))
