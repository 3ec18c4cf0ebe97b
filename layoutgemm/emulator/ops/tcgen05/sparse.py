"""Sparse operand A of tcgen05.mma.sp. Its metadata select the places of the stored elements in the dense matrix.

The metadata's address is that of a pair of columns. Kinds f16 and tf32 read one of the two, which the sparsity selector
of the instruction descriptor names; the others read both. PTX ISA, "Sparse Matrices" of tcgen05.
"""

from __future__ import annotations

from ....atoms.mma.tcgen05 import Tcgen05Atom
from ....errors import EmulatorError
from ..mma.sparse import ORDERED, SINGLE

# Of two places out of order, PTX lists these alone.
_PAIRS = (*ORDERED, 0b0110)


def meanings(atom: Tcgen05Atom) -> tuple[int, ...]:
    """Groups of 4 bits to which PTX gives a meaning."""
    return SINGLE if atom.kind == "tf32" else _PAIRS


def metadata_column(atom: Tcgen05Atom, column: int, selector: int) -> int:
    """The first column that one instruction reads. Raises EmulatorError for an odd address and unknown selectors."""
    if column % 2:
        raise EmulatorError(f"metadata at column {column}: an address of sparse metadata names a pair of columns")
    if selector > 1:
        raise EmulatorError(f"sparsity selector {selector}: kind::{atom.kind} selects one of two columns, 0 or 1")
    return column + selector
