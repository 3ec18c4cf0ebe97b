"""Threads that call the emulator at once: one runs at a time, and what belongs to a thread stays its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import layoutgemm
from layoutgemm.emulator.api import emulate_host, launches_of
from layoutgemm.emulator.host.triton_calls import TritonLaunch
from layoutgemm.emulator.mutation.api import mutate_ptx
from layoutgemm.emulator.ptx.parser import read_module
from layoutgemm.emulator.turns import OwnStack
from layoutgemm.errors import EmulatorError

FILL = """
.version 8.7
.target sm_90a
.visible .entry fill(.param .u64 out)
{
  .reg .b32 %r<2>; .reg .b64 %d<2>;
  mov.u32 %r0, %tid.x;
  ld.param.u64 %d0, [out];
  mul.wide.u32 %d1, %r0, 4;
  add.u64 %d0, %d0, %d1;
  st.global.b32 [%d0], %r0;
  ret;
}
"""


def in_a_thread(body: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """A thread that runs it, and what it raises."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            body()
        except BaseException as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread, raised


class Held:
    """An argument that is read while another thread asks for a run: it notes whether that one had to wait."""

    def __init__(self, size: int) -> None:
        self.values, self.other = np.zeros(size, np.uint32), np.zeros(32, np.uint32)
        self.waited: list[bool] = []
        self.thread: threading.Thread | None = None

    @property
    def __array_interface__(self) -> dict[str, Any]:
        if self.thread is None:
            self.thread, self.raised = in_a_thread(
                lambda: layoutgemm.emulate_ptx(FILL, block=32, args=[self.other], progress=False)
            )
            self.thread.join(0.1)
            self.waited.append(self.thread.is_alive())
        found: dict[str, Any] = self.values.__array_interface__
        return found


class HeldLaunch(TritonLaunch):
    """A launch whose host half is run while another thread asks for a run."""

    def call(self, *arguments: object) -> Any:
        """Ask, and end the run."""
        np.asarray(self.arguments[0])
        raise EmulatorError("the host half ends here")


def held_launch(held: Held) -> HeldLaunch:
    """A launch of that argument."""
    return HeldLaunch(read_module(FILL)[0], (1, 1, 1), 32, 1, 0, [held])  # type: ignore[list-item]


RUNS: dict[str, Callable[[Held], object]] = {
    "emulate": lambda held: layoutgemm.emulate(held_launch(held)),
    "emulate_host": lambda held: emulate_host(held_launch(held), ()),  # type: ignore[arg-type]
    "launches_of": lambda held: launches_of(held_launch(held), (), (), {}),
    "emulate_ptx": lambda held: layoutgemm.emulate_ptx(FILL, block=32, args=[held], progress=False),
    "mutate_ptx": lambda held: mutate_ptx(FILL, block=32, args=[held], count=1),
}


@pytest.mark.parametrize("run", RUNS)
def test_another_threads_run_waits(run: str) -> None:
    held = Held(32)
    try:
        RUNS[run](held)
    except EmulatorError as error:
        assert "the host half ends here" in str(error)
    assert held.thread is not None
    held.thread.join(10)
    assert (held.waited, held.raised) == ([True], [])
    np.testing.assert_array_equal(held.other, np.arange(32))


def test_a_stack_is_a_threads_own() -> None:
    stack: OwnStack[int] = OwnStack()
    stack.items.append(1)
    seen: list[int] = []
    thread, _ = in_a_thread(lambda: (stack.items.append(2), seen.extend(stack.items)))
    thread.join(10)
    assert (seen, stack.items) == ([2], [1])
