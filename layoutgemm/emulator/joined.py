"""Code that takes part in an emulated GPU: the contexts that each session enters.

The library's own kernels are launched by loaded objects, which know nothing of the emulator. The packages that launch
them join here when they are imported, within a session too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from .host.launcher import HostCall


class JoinedGpu(Protocol):
    """The part of an `EmulatedGpu` that launches."""

    def launch(self, one: HostCall, stream: int) -> None:
        """Run a host function's kernels on a stream."""

    def torch_mode(self) -> AbstractContextManager[object]:
        """The mode in which torch's "cuda" is this GPU."""

    def adopt(self, tensors: Sequence[object]) -> None:
        """Have all tensors on this GPU where one is."""


Session = TypeVar("Session")


class Joined(Generic[Session]):
    """The contexts that each session of a kind enters.

    >>> from contextlib import nullcontext
    >>> sessions: Joined[str] = Joined()
    >>> with sessions.entered("first"):
    ...     sessions.join(lambda session: nullcontext(print(session)))
    first
    """

    def __init__(self) -> None:
        self._contexts: list[Callable[[Session], AbstractContextManager[object]]] = []
        self._open: list[tuple[Session, ExitStack]] = []  # each session, and what ends with it

    def join(self, context: Callable[[Session], AbstractContextManager[object]]) -> None:
        """Have each session enter a context, one that is open at once."""
        self._contexts.append(context)
        for session, stack in self._open:
            stack.enter_context(context(session))

    @contextmanager
    def entered(self, session: Session) -> Iterator[None]:
        """All contexts of a session."""
        with ExitStack() as stack:
            for context in self._contexts:
                stack.enter_context(context(session))
            self._open.append((session, stack))
            try:
                yield
            finally:
                self._open.pop()


_GPUS: Joined[JoinedGpu] = Joined()
join = _GPUS.join
all_joined = _GPUS.entered
