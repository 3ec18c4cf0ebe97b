"""The callers of helper functions, for the line information of kernels of the CuTe DSL.

The DSL gives an operation the innermost line of Python outside of its own package. In a helper function, that of the
user or of a library, this line does not say which call it is. Here such a place also gets the line that called it, as
an inlined function has in `.loc ... inlined_at`. The DSL's compiler keeps one caller of several (4.8.1).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

_CALLS_KERNELS = "kernel_wrapper"  # the function of the DSL whose callee is a kernel
# Modules whose frames stand between a function and its decorator's wrapper, as that of @deprecated.
_WRAPPERS = {"contextlib", "functools", "typing_extensions", "warnings"}


@contextmanager
def named_callers() -> Iterator[None]:
    """The DSL's locations also have the callers of helper functions."""
    from unittest import mock

    import cutlass._mlir_helpers.op as operations
    from cutlass._mlir import ir

    name = "_get_location_from_frame_info"
    plain = getattr(operations, name, None)
    if plain is None:  # another version of the DSL
        yield
        return
    test = "_is_framework_stack_frame"
    is_framework = by_file(getattr(operations, test))

    def located(info: Any) -> Any:
        location = plain(info)
        caller = calling_line(sys._getframe(1), is_framework)  # a frame of the DSL; the user's are behind it
        return location if caller is None else ir.Location.callsite(location, [ir.Location.file(*caller, 0)])

    with mock.patch.object(operations, name, located), mock.patch.object(operations, test, is_framework):
        yield


def by_file(is_framework: Callable[[FrameType], bool]) -> Callable[[FrameType], bool]:
    """The test with one answer for each module and file; wrappers are the framework's.

    It is asked of every frame for every operation.
    """
    known: dict[tuple[str, str], bool] = {}

    def test(frame: FrameType) -> bool:
        key = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        found = known.get(key)
        if found is None:
            found = known[key] = key[0] in _WRAPPERS or is_framework(frame)
        return found

    return test


def calling_line(frame: FrameType, is_framework: Callable[[FrameType], bool]) -> tuple[str, int] | None:
    """The file and line that lead to the user's innermost frame. None in the kernel itself, or outside of one.

    If that frame is in the kernel's file, it is the line of the kernel's own function, else the innermost one there.
    """
    frames = _up_to_kernel(frame)
    if not frames:
        return None
    kernel = frames[-1].f_code
    own = _codes_of(kernel)
    innermost = next((one for one in frames if not is_framework(one)), None)
    if innermost is None or id(innermost.f_code) in own:
        return None
    in_file = innermost.f_code.co_filename == kernel.co_filename
    caller = next(
        one for one in frames if (id(one.f_code) in own if in_file else one.f_code.co_filename == kernel.co_filename)
    )
    return kernel.co_filename, caller.f_lineno


def _up_to_kernel(frame: FrameType) -> list[FrameType]:
    """The frames from this one up to the kernel's; none if no kernel is being traced."""
    found: list[FrameType] = []
    at: FrameType | None = frame
    while at is not None and at.f_code.co_name != _CALLS_KERNELS:
        found.append(at)
        at = at.f_back
    return found if at is not None else []


# id of a kernel's code -> the code, which stays, and the ids of it and of all functions within it. A code's own hash
# takes as long as the code is large.
_WITHIN: dict[int, tuple[CodeType, frozenset[int]]] = {}


def _codes_of(code: CodeType) -> frozenset[int]:
    """The ids of a function's code and of all within it: the DSL makes the bodies of loops and branches functions."""
    if id(code) not in _WITHIN:
        inner = [_codes_of(one) for one in code.co_consts if isinstance(one, CodeType)]
        _WITHIN[id(code)] = code, frozenset({id(code)}.union(*inner))
    return _WITHIN[id(code)][1]
