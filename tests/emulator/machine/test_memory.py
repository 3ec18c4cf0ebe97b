"""Global memory: what lies behind a tensor that was passed."""

from __future__ import annotations

import numpy as np

from layoutgemm.emulator.machine.memory import GlobalMemory


def test_a_change_behind_a_tensor_is_said_of_the_launch_that_made_it() -> None:
    whole = np.arange(8, dtype=np.uint8)
    memory = GlobalMemory()
    buffer = memory.add("x", whole[:6])
    buffer.allocation = whole
    assert memory.find(buffer.address + 6) == (buffer, 6)  # a launch reads there
    assert list(memory.written_behind()) == []
    whole[7] = 0
    assert list(memory.written_behind()) == [("x", 1, 7)]
    assert list(memory.written_behind()) == []  # after the next launch
