"""A thread's shared-memory addresses: a few that it computes once, and constants.

A swizzle leaves alone what lies a multiple of its period away, so most addresses of a loop differ by constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

Index = tuple[int, ...]


@dataclass(frozen=True)
class ThreadAddresses:
    """(thread, index) -> byte, as one of a few addresses of the thread plus a constant.

    bases    the indices whose address a thread computes
    entries  (index, (number of a base, bytes to add)) of every index
    """

    bases: tuple[Index, ...]
    entries: tuple[tuple[Index, tuple[int, int]], ...]

    @cached_property
    def of(self) -> dict[Index, tuple[int, int]]:
        """Index -> (number of a base, bytes to add)."""
        return dict(self.entries)

    @classmethod
    def derive(cls, byte: Callable[[Any, Index], Any], threads: int, indices: Sequence[Index]) -> ThreadAddresses:
        """Group the indices whose addresses differ by the same number of bytes for all threads.

        >>> from layoutgemm.atoms import smem_tile
        >>> tile = smem_tile((64, 64), "bf16", "K")
        >>> byte = lambda t, i: tile.byte(t + 32 * i[0], 8 * i[1])
        >>> places = ThreadAddresses.derive(byte, 32, [(0, 0), (1, 0), (0, 1)])
        >>> places.bases, places.of
        (((0, 0), (0, 1)), {(0, 0): (0, 0), (1, 0): (0, 4096), (0, 1): (1, 0)})
        """
        lanes = np.arange(threads)
        bases: list[Index] = []
        tables: list[npt.NDArray[np.int64]] = []
        of: dict[Index, tuple[int, int]] = {}
        for index in indices:
            table = np.asarray(byte(lanes, index), np.int64) + np.zeros(threads, np.int64)
            for number, known in enumerate(tables):
                if (table - known == table[0] - known[0]).all():
                    of[index] = number, int(table[0] - known[0])
                    break
            else:
                of[index] = len(bases), 0
                bases.append(index)
                tables.append(table)
        return cls(tuple(bases), tuple(of.items()))
