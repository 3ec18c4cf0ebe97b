"""The walk of a value through the package's files, as a profiler sees it."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import layoutgemm

ROOT = Path(layoutgemm.__file__).resolve().parent


def files_of(is_it: Callable[[Any], bool], call: Callable[[], object], folder: str) -> list[str]:
    """The files whose functions are handed the value, in the order of the walk.

    It may be in a container. A file is named each time that the walk enters it.

    folder  whose files are named without it
    """
    found: list[str] = []

    def holds(value: Any) -> bool:
        if isinstance(value, dict):
            value = list(value.values())
        return is_it(value) or (isinstance(value, (list, tuple)) and any(is_it(each) for each in value))

    def see(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(str(ROOT)):
            return
        count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 4) + bool(code.co_flags & 8)
        # comprehensions and nested functions belong to the function around them
        if "<" in code.co_name or not any(holds(frame.f_locals.get(name)) for name in code.co_varnames[:count]):
            return
        path = Path(code.co_filename).relative_to(ROOT).with_suffix("").parts
        name = ".".join(path[1:] if path[0] == folder else path)
        if found[-1:] != [name]:
            found.append(name)

    before = sys.getprofile()
    sys.setprofile(see)
    try:
        call()
    finally:
        sys.setprofile(before)
    return found
