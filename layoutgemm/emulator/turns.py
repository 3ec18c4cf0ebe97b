"""One run of the emulator at a time in a process, for all its threads.

A host function keeps its launches, a program its operations, and generated code its names, for all threads.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

RUNNING = threading.RLock()


class OwnStack(threading.local, Generic[T]):
    """A stack that each thread has for itself."""

    def __init__(self) -> None:
        self.items: list[T] = []


def in_turn(function: Callable[P, T]) -> Callable[P, T]:
    """The function, which waits until no other thread is in one that was decorated so."""

    @functools.wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> T:
        with RUNNING:
            return function(*args, **kwargs)

    return run
