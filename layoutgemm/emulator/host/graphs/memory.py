"""Memory that graphs allocate and free.

It has its address from the node's creation on, and is the device's from the node's run on.

CUDA C++ Programming Guide, "Graph Memory Nodes". Its allocations here do not share addresses.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from .graph import GraphWork, NodeKind
from .statuses import CudaStatusError, Status

if TYPE_CHECKING:
    from ..cuda_calls import DeviceMemory

_USED, _MOST_USED, _RESERVED, _MOST_RESERVED = range(4)  # cudaGraphMemAttributeType


@dataclass(frozen=True, eq=False)
class GraphAllocation:
    """An allocation of a graph. `bytes_` is where its content lies, also while it is freed."""

    pool: GraphPool
    size: int
    bytes_: npt.NDArray[np.uint8]

    @property
    def address(self) -> int:
        """The address of its first byte."""
        return int(self.bytes_.ctypes.data)

    @property
    def is_mapped(self) -> bool:
        """True from its node's run until it is freed."""
        return self.pool.memory.begins_at(self.address)

    @property
    def mapping(self) -> GraphWork:
        """The node that allocates it."""
        return GraphWork(NodeKind.MEM_ALLOC, self._map, f"{self.size} bytes at {self.address:#x}", params=self)

    def _map(self) -> None:
        self.pool.memory.hold(self.bytes_, f"{self.size} bytes of a graph's allocation")
        self.pool.count()

    def free(self) -> None:
        """Give it back until the node runs again."""
        self.pool.memory.free(self.address)


class GraphPool:
    """The allocations of all graphs, and the values of conditional handles.

    defaults  handles whose value is set when a graph is launched
    """

    def __init__(self, memory: DeviceMemory) -> None:
        self.memory = memory
        self.defaults: dict[int, int] = {}
        self._words: set[int] = set()
        self._allocations: dict[int, GraphAllocation] = {}
        self._kept = self._most = self._most_reserved = 0

    def allocation(self, size: int) -> GraphAllocation:
        """A new allocation. Raises CudaStatusError for none."""
        if not size:
            raise CudaStatusError(Status.INVALID_VALUE, "an allocation of 0 bytes")
        made = GraphAllocation(self, size, self.memory.reserved(size))
        self._allocations[made.address] = made
        return made

    def freeing(self, address: int) -> GraphWork:
        """The node that frees an allocation of a graph. Raises CudaStatusError for another address."""
        found = self._allocations.get(address)
        if found is None:
            raise CudaStatusError(Status.INVALID_VALUE, f"{address:#x} is freed, and no graph allocates it")
        return GraphWork(NodeKind.MEM_FREE, found.free, f"{found.size} bytes at {address:#x}", params=address)

    def word(self, name: str) -> int:
        """The address of a new word of 32 bits."""
        address = self.memory.allocate(4, name)
        self._words.add(address)
        return address

    def is_word(self, address: int) -> bool:
        """True for a word of `word`."""
        return address in self._words

    def assign_defaults(self) -> None:
        """Set the conditional handles that have a value at a graph's launch."""
        for address, value in self.defaults.items():
            ctypes.c_uint32.from_address(address).value = value

    def _mapped(self) -> int:
        return sum(one.size for one in self._allocations.values() if one.is_mapped)

    def count(self) -> None:
        """Count the bytes that graphs keep. These are the most in use at once since the last trim."""
        self._kept = max(self._kept, self._mapped())
        self._most, self._most_reserved = max(self._most, self._kept), max(self._most_reserved, self._kept)

    def attribute(self, which: int) -> int:
        """cudaDeviceGetGraphMemAttribute, in bytes. Raises CudaStatusError for an unknown attribute."""
        if which > _MOST_RESERVED:
            raise CudaStatusError(Status.INVALID_VALUE, f"{which} is no cudaGraphMemAttributeType")
        return (self._kept, self._most, self._kept, self._most_reserved)[which]

    def reset(self, which: int) -> None:
        """Set a most number to the present one. Raises CudaStatusError for another."""
        if which == _MOST_USED:
            self._most = self._kept
        elif which == _MOST_RESERVED:
            self._most_reserved = self._kept
        else:
            raise CudaStatusError(Status.INVALID_VALUE, f"attribute {which} cannot be set")

    def trim(self) -> None:
        """Keep no more bytes than are in use."""
        self._kept = self._mapped()
