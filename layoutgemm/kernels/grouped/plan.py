"""The common type of plans whose tiles, loads or stores may end with groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...schedule import Persistent
from ..indexed.rows import IndexedProduct
from ..operands.product import SeveralOperands
from ..partials import ReducingPlan
from ..plan import PersistentPlan


class GroupedPlan(SeveralOperands, IndexedProduct, ReducingPlan, PersistentPlan):
    """A persistent plan that may have groups of rows, or along K. Its map of shared memory has their tables."""

    smem: Any  # of each kernel's own type, as the operands are
    a: Any
    b: Any
    order: Persistent
    threads: int

    @property
    def matrices_of_c(self) -> int:
        """Matrices of C: one where groups are rows or columns of the same."""
        return 1 if self.joined_rows or self.experts is not None else self.batch

    @property
    def aligned_rows(self) -> bool:
        """True if tiles begin at multiples of their rows."""
        return not self.joined_rows

    @property
    def turns(self) -> bool:
        """True if a pair of CTAs at an odd last row has two columns."""
        return False

    @property
    def least_k_tiles(self) -> int:
        """K tiles of a group along K at least. An empty one has a K tile of zeros."""
        return 1

    def stored_rows(self, values: Mapping[str, object]) -> Any:
        """The rows of C that are stored, as an array; None for all.

        values  that the plan reads, by name
        """
        rows = super().stored_rows(values)
        if rows is None or self.ragged is None or not self.ragged.ends:
            return rows
        return rows[: int(np.asarray(values[self.ragged.name])[-1])]
