"""Junk in place of any argument of public callables, as their doctests call them.

A profiler records the calls of public functions, methods and classes while doctests run. Each recorded call is repeated
with one argument replaced. An error of Python, NumPy or the standard library is a failure: refusals are LayoutErrors.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import random
import warnings
import zlib
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any

import numpy as np

from docs.reference import PACKAGES
from layoutgemm import Layout
from layoutgemm.arguments import shown
from layoutgemm.errors import LayoutError
from layoutgemm.layouts.proofs.digits import NormalForm

JUNK: list[object] = [
    None, 7, -1, 0, 10**30, 10**5000, 1.5, float("nan"), True, "junk", "x" * 20_000, "\ud800", b"ab", (), (3, "x"),
    (1, 2, 3, 4, 5, 6, 7), tuple(range(10_000)), [[]], {}, {"a": object}, {4}, object(), np.array(["a"]),
    np.array(4.5), 1j, range(3), Layout((4, 8)),
]  # fmt: skip
DRAWN = 8  # of these for each argument: all of them take a minute


@functools.cache
def public() -> list[Any]:
    """The functions and classes that the packages' pages describe."""
    modules = [importlib.import_module(name) for name in ("layoutgemm", *PACKAGES)]
    every = {id(value): value for module in modules for value in (getattr(module, name) for name in module.__all__)}
    return [value for value in every.values() if inspect.isfunction(value) or inspect.isclass(value)]


def modules() -> list[str]:
    """The modules of public callables, but that of the emulator, whose doctests compile kernels."""
    found = {value.__module__ for value in public() if value.__module__.startswith("layoutgemm.")}
    return sorted(found - {"layoutgemm.emulator.api"})


class Recorder:
    """The first calls of a module's public callables: what to call, and with which arguments."""

    def __init__(self, module: Any) -> None:
        self.callables: dict[CodeType, tuple[Callable[..., Any], bool]] = {}
        self.calls: dict[CodeType, list[tuple[Callable[..., Any], inspect.BoundArguments]]] = {}
        for value in public():
            if value.__module__ != module.__name__:
                continue
            if inspect.isfunction(value):
                self._add(value, value, False)
            elif inspect.isclass(value) and not issubclass(value, BaseException):
                for part, raw in vars(value).items():
                    if inspect.isfunction(raw) and (not part.startswith("_") or part == "__call__"):
                        self._add(raw, raw, True)
                    elif isinstance(raw, (staticmethod, classmethod)) and not part.startswith("_"):
                        self._add(raw.__func__, raw.__get__(None, value), False)
                if inspect.isfunction(value.__init__):
                    self._add(value.__init__, value, False)

    def _add(self, function: Callable[..., Any], call: Callable[..., Any], method: bool) -> None:
        self.callables[inspect.unwrap(function).__code__] = call, method

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or frame.f_code not in self.callables or len(self.calls.get(frame.f_code, ())) > 1:
            return
        call, values = self.callables[frame.f_code][0], frame.f_locals
        bound = inspect.signature(call).bind_partial()
        bound.arguments.update({name: values[name] for name in bound.signature.parameters})
        if not any(isinstance(value, NormalForm) for value in bound.arguments.values()):  # of a proof under way
            self.calls.setdefault(frame.f_code, []).append((call, bound))


def replaced(bound: inspect.BoundArguments, method: bool, draw: random.Random) -> Iterator[tuple[str, object, Any]]:
    """The arguments with one replaced, or an entry of a tuple."""
    for at, (name, value) in enumerate(bound.arguments.items()):
        kind = bound.signature.parameters[name].kind
        if (method and at == 0) or callable(value) or kind is inspect.Parameter.VAR_KEYWORD:
            continue  # a function that fails when called raises its own error
        for junk in draw.sample(JUNK, DRAWN):
            if kind is not inspect.Parameter.VAR_POSITIONAL:
                yield name, junk, {**bound.arguments, name: junk}
            if type(value) is tuple and value:
                entry = draw.randrange(len(value))
                yield name, junk, {**bound.arguments, name: (*value[:entry], junk, *value[entry + 1 :])}


def outcome(call: Callable[..., Any], bound: inspect.BoundArguments, arguments: dict[str, Any]) -> str:
    """A foreign error, as text; "" for an answer, or for a refusal of bounded length."""
    again = inspect.BoundArguments(bound.signature, arguments)  # type: ignore[arg-type]
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            answer = call(*again.args, **again.kwargs)
            if inspect.isgenerator(answer):
                list(answer)
    except LayoutError as error:
        return "" if len(str(error)) < 4_000 else f"a message of {len(str(error))} characters"
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:200]
    return ""


def failures(recorder: Recorder, name: str) -> list[str]:
    """The recorded calls that junk ends with a foreign error, each with its junk; `name` seeds the draw."""
    found, draw = [], random.Random(zlib.crc32(name.encode()))
    for code, calls in recorder.calls.items():
        for call, bound in calls:
            for argument, junk, arguments in replaced(bound, recorder.callables[code][1], draw):
                if text := outcome(call, bound, arguments):
                    found.append(f"{code.co_qualname} with {argument} = {shown(junk)}: {text}")
    return found
