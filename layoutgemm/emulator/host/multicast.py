"""Multicast addresses: windows whose bytes stand for those of a tensor on each device.

A window has memory of its own, which no kernel may read or write: `multimem` instructions and stores of the copy engine
reach the tensors instead.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from .arguments import Place, bytes_at
from .torch_device.tensors import marked


class Multicast:
    """The windows of a group of devices."""

    def __init__(self) -> None:
        self._windows: list[tuple[npt.NDArray[np.uint8], list[npt.NDArray[np.uint8]]]] = []

    def over(self, tensors: Sequence[Any]) -> int:
        """The address of a window over tensors of one size. The same that they have had before."""
        parts = []
        for x in tensors:
            storage = x.untyped_storage()
            parts.append(bytes_at(storage.data_ptr(), storage.nbytes(), storage))
        for window, others in self._windows:
            if [x.ctypes.data for x in others] == [x.ctypes.data for x in parts]:
                return int(window.ctypes.data)
        room = np.zeros(len(parts[0]) + 512, np.uint8)
        window = room[-room.ctypes.data % 512 :][: len(parts[0])]
        self._windows.append((window, parts))
        return int(window.ctypes.data)

    def tensor(self, address: int, like: Any) -> Any:
        """A tensor in the window, of another's shape and type."""
        window = next(window for window, _ in self._windows if window.ctypes.data == address)
        return marked(sys.modules["torch"].frombuffer(window, dtype=like.dtype).view(like.shape))

    def holder(self, address: int) -> Place | None:
        """The window that holds an address, or None."""
        for window, _ in self._windows:
            low = int(window.ctypes.data)
            if low <= address < low + len(window):
                return f"a multicast window of {len(window)} bytes", low, window
        return None

    def replicas(self, address: int, size: int) -> list[npt.NDArray[np.uint8]] | None:
        """The bytes of each device under a part of a window. None for another address of this process."""
        for window, parts in self._windows:
            first = address - int(window.ctypes.data)
            if 0 <= first < len(window):
                return [part[first : first + size] for part in parts]
        return None
