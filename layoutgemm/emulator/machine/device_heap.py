"""Memory that a kernel's threads allocate: `malloc` and `free` in device code.

Blocks lie far apart at addresses that are not used again, so that an access beyond a block, or after its free, hits
none. The heap has CUDA's default size; malloc returns 0 when it is full. CUDA C++ Programming Guide, "Dynamic Global
Memory Allocation and Operations".
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np
import numpy.typing as npt

from ...errors import EmulatorError

START, END = 0x5800_0000_0000, 0x5F00_0000_0000  # below the workspace of a grid (launch.py)
ALIGNMENT, GAP = 16, 1 << 16
CAPACITY = 8 << 20  # bytes: cudaLimitMallocHeapSize as it is without a call
_POISON = 0xFF


class DeviceHeap:
    """The blocks that threads hold.

    >>> heap = DeviceHeap()
    >>> at = heap.allocate(24, "here")
    >>> heap.blocks[at][1].size, heap.allocate(CAPACITY, "there")
    (24, 0)
    >>> heap.release(at, "later")
    >>> heap.find(at, 4)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.EmulatorError: global address 0x580000000000 lies in memory that was freed (later)
    """

    def __init__(self) -> None:
        self.blocks: dict[int, tuple[str, npt.NDArray[np.uint8]]] = {}
        self.freed: dict[int, tuple[int, str]] = {}  # address -> (bytes, where)
        self.starts: list[int] = []  # of all blocks so far, which ascend
        self.used, self.next = 0, START

    def clear(self) -> None:
        """Forget every block, and begin at the first address again."""
        self.blocks, self.freed, self.starts = {}, {}, []
        self.used, self.next = 0, START

    def allocate(self, size: int, where: str) -> int:
        """The address of a new block, or 0 where the heap has no place for it."""
        if size == 0 or self.used + size > CAPACITY:
            return 0
        at, self.used = self.next, self.used + size
        self.blocks[at] = (f"the block of {size} bytes that malloc gave ({where})", np.full(size, _POISON, np.uint8))
        self.starts.append(at)
        self.next += -(-size // GAP) * GAP + GAP
        return at

    def release(self, address: int, where: str) -> None:
        """Free a block, unless the address is 0. Raises EmulatorError for another address, and for a second time."""
        if address == 0:
            return
        if address in self.freed:
            raise EmulatorError(f"free of {address:#x}, which was freed before ({self.freed[address][1]})")
        if address not in self.blocks:
            raise EmulatorError(f"free of {address:#x}, which malloc did not return")
        size = self.blocks.pop(address)[1].size
        self.used -= size
        self.freed[address] = (size, where)

    def find(self, address: int, size: int) -> tuple[str, int, npt.NDArray[np.uint8]]:
        """(Name, first address, bytes) of the block that holds some bytes. Raises EmulatorError without one."""
        at = self.starts[max(0, bisect_right(self.starts, address) - 1)] if self.starts else END
        if at in self.blocks and address >= at:
            name, data = self.blocks[at]
            if address + size <= at + data.size:
                return name, at, data
            raise EmulatorError(f"global address {address:#x} and {size} bytes leave {name} at {at:#x}")
        held, where = self.freed.get(at, (0, ""))
        if at <= address < at + held:
            raise EmulatorError(f"global address {address:#x} lies in memory that was freed ({where})")
        raise EmulatorError(f"global address {address:#x} lies in no block that malloc gave")
