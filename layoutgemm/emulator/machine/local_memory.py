"""The memory that each thread has for itself: `.local` variables, and `.param` variables of calls.

An address is the same in all threads and names other bytes in each. Registers that a compiler spills, arrays with
computed indices, and the arguments of device functions lie here. Bytes that a thread has not written are marked.

PTX ISA, "State Spaces: Local", "Parameter State Space: Device Function Parameters".
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError
from ..ptx.program import LOCAL_START
from ..ptx.values import LANES


class LocalMemory:
    """The local memory of a warp's 32 threads, of `size` bytes each.

    >>> memory = LocalMemory(16)
    >>> lanes, at = np.array([0, 5]), np.array([LOCAL_START, LOCAL_START + 4])
    >>> memory.write(lanes, at, np.array([[1, 2], [3, 4]], dtype=np.uint8))
    >>> memory.read(lanes, at, 2).tolist(), memory.unwritten(lanes, at, 4)
    ([[1, 2], [3, 4]], 2)
    """

    def __init__(self, size: int, fill: int = 0xFF) -> None:
        self.size, self.fill = size, fill
        self.bytes = np.full((LANES, size), fill, dtype=np.uint8)
        self.written = np.zeros((LANES, size), dtype=bool)

    def _where(self, addresses: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.int64]:
        """[n] addresses -> [n, size] offsets of bytes. Raises EmulatorError outside, or where misaligned."""
        offsets = addresses - LOCAL_START
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high + size > self.size:
            bad = low if low < 0 else high
            raise EmulatorError(f"local offset {bad:#x} and {size} bytes, of {self.size:#x} bytes of a thread")
        if size & size - 1 == 0 and (addresses & size - 1).any():
            raise EmulatorError(f"a local address is not a multiple of the access's {size} bytes")
        return offsets[:, None] + np.arange(size)

    def read(self, lanes: npt.NDArray[np.int64], addresses: npt.NDArray[np.int64], size: int) -> npt.NDArray[np.uint8]:
        """[n] lanes and addresses -> [n, size] bytes."""
        return self.bytes[lanes[:, None], self._where(addresses, size)]

    def write(
        self, lanes: npt.NDArray[np.int64], addresses: npt.NDArray[np.int64], data: npt.NDArray[np.uint8]
    ) -> None:
        """Store [n, size] bytes of [n] lanes."""
        where = self._where(addresses, data.shape[1])
        self.bytes[lanes[:, None], where] = data
        self.written[lanes[:, None], where] = True

    def forget(
        self, lanes: npt.NDArray[np.int64], addresses: npt.NDArray[np.int64], gone: npt.NDArray[np.bool_]
    ) -> None:
        """Mark those of [n, size] bytes that are `gone` as never written."""
        self.written[lanes[:, None], self._where(addresses, gone.shape[1])] &= ~gone

    def reserve(self, size: int) -> None:
        """Have at least `size` bytes for each thread."""
        more = size - self.size
        if more > 0:
            more = max(more, self.size)
            self.bytes = np.pad(self.bytes, ((0, 0), (0, more)), constant_values=self.fill)
            self.written = np.pad(self.written, ((0, 0), (0, more)))
            self.size += more

    def clear(self, lanes: npt.NDArray[np.int64], address: int, size: int) -> None:
        """Mark `size` bytes of these lanes as never written, and fill them."""
        at = address - LOCAL_START
        self.bytes[lanes, at : at + size] = self.fill
        self.written[lanes, at : at + size] = False

    def copy(
        self, lanes: npt.NDArray[np.int64], to: npt.NDArray[np.int64], of: npt.NDArray[np.int64], size: int
    ) -> None:
        """Copy `size` bytes of each lane between two addresses; what was never written stays so."""
        to_, of_ = self._where(to, size), self._where(of, size)
        self.bytes[lanes[:, None], to_] = self.bytes[lanes[:, None], of_]
        self.written[lanes[:, None], to_] = self.written[lanes[:, None], of_]

    def unwritten(self, lanes: npt.NDArray[np.int64], addresses: npt.NDArray[np.int64], size: int) -> int | None:
        """The offset of a byte that its thread has not written, or None."""
        where = self._where(addresses, size)
        missing = ~self.written[lanes[:, None], where]
        return int(where[missing][0]) if missing.any() else None
