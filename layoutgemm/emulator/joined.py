"""Code that takes part in an emulated GPU: the contexts that each session enters.

The library's own kernels are launched by loaded objects, which know nothing of the emulator. The packages that launch
them join here when they are imported, within a session too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Protocol

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


Context = Callable[[JoinedGpu], AbstractContextManager[object]]
_CONTEXTS: list[Context] = []
_OPEN: list[tuple[JoinedGpu, ExitStack]] = []  # the session's GPU, and what ends with it


def join(context: Context) -> None:
    """Have each session enter a context with its GPU, one that is open at once."""
    _CONTEXTS.append(context)
    for gpu, stack in _OPEN:
        stack.enter_context(context(gpu))


@contextmanager
def all_joined(gpu: JoinedGpu) -> Iterator[None]:
    """All contexts of a session."""
    with ExitStack() as stack:
        for context in _CONTEXTS:
            stack.enter_context(context(gpu))
        _OPEN.append((gpu, stack))
        try:
            yield
        finally:
            _OPEN.pop()
