"""Sparse operand A of tcgen05.mma.sp: its metadata select the places of the stored elements in the dense matrix.

The metadata's address is that of a pair of columns. Kinds f16 and tf32 read one of the two, which the sparsity selector
of the instruction descriptor names; the others read both. PTX ISA, "Sparse Matrices" of tcgen05.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ....atoms.mma.tcgen05 import Tcgen05Atom
from ....errors import EmulatorError
from ..mma.operands import Matrix, Report

# Groups of 4 bits to which PTX gives a meaning: two places of four, the lower bits first. Those of tf32 name one of two
# elements by its two halves.
_PAIRS = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b0110, 0b1110)
_SINGLE = (0b0100, 0b1110)


def metadata_column(atom: Tcgen05Atom, column: int, selector: int) -> int:
    """The first column that one instruction reads. Raises EmulatorError for an odd address and unknown selectors."""
    if column % 2:
        raise EmulatorError(f"metadata at column {column}: an address of sparse metadata names a pair of columns")
    if selector > 1:
        raise EmulatorError(f"sparsity selector {selector}: kind::{atom.kind} selects one of two columns, 0 or 1")
    return column + selector


def dense(
    atom: Tcgen05Atom, stored: Matrix, metadata: npt.NDArray[np.uint32], report: Report
) -> npt.NDArray[np.float32]:
    """A with its zeros, [row, k], from stored elements and metadata of 4 bits, [row, group]."""
    single = atom.kind == "tf32"
    legal = _SINGLE if single else _PAIRS
    if not (known := np.isin(metadata, legal)).all():
        row, group = (int(axis[0]) for axis in np.nonzero(~known))
        report(
            "protocol",
            f"metadata of row {row}, group {group} of A is {int(metadata[row, group]):#06b}; PTX gives a meaning to "
            + ", ".join(f"{one:#06b}" for one in legal),
        )
    rows, groups = metadata.shape
    places = metadata[:, :, None] >> 3 if single else np.stack((metadata & 3, metadata >> 2), axis=2)
    count = places.shape[2]
    parts = stored.reshape(rows, groups, count, -1)  # of several elements where they are sparse in pairs
    out = np.zeros((rows, groups, 2 * count, parts.shape[3]), dtype=np.float32)
    np.put_along_axis(out, places[:, :, :, None].astype(np.int64), parts, axis=2)
    return out.reshape(rows, -1)
