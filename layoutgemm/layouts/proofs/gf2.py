"""Elimination over GF(2) on Python ints. A vector is an int, a matrix the list of its columns.

Everything is exact and takes a few operations on machine words for each column, so that matrices of layouts with 2^40
elements cost microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence


def bits_of(x: int) -> Iterator[int]:
    """The positions of the set bits, lowest first."""
    while x:
        low = x & -x
        yield low.bit_length() - 1
        x ^= low


def combine(columns: Sequence[int], x: int) -> int:
    """The matrix times the vector x: the XOR of the columns that x names."""
    value = 0
    for i in bits_of(x):
        value ^= columns[i]
    return value


def clash(columns: Sequence[int]) -> tuple[int, int, int] | None:
    """The first two columns that share a bit, and the bit."""
    touched = 0
    for j, c in enumerate(columns):
        if c & touched:
            i = next(i for i, d in enumerate(columns) if c & d)
            return i, j, next(bits_of(c & columns[i]))
        touched |= c
    return None


def rows_of(columns: Sequence[int], width: int) -> list[int]:
    """The matrix by rows. Bit j of row i says whether column j has bit i."""
    rows = [0] * width
    for j, column in enumerate(columns):
        for i in bits_of(column):
            rows[i] |= 1 << j
    return rows


def add_constant(constant: int, rows: list[int], one: int) -> list[int] | None:
    """The rows of `constant + f` for an affine f; None if that is not affine.

    Each row is an affine form: bit j is the coefficient of variable j, bit `one` the constant term. The sum is affine
    iff every carry is. The carry out of a bit is the OR (where the constant has a 1) or the AND of the bit and the
    carry into it. The AND of two affine forms is affine only if one is constant or they differ by a constant. The rows
    must be enough to hold the sum.
    """
    true = 1 << one
    out = []
    carry = 0
    for i, row in enumerate(rows):
        flip = true if constant >> i & 1 else 0
        out.append(row ^ flip ^ carry)
        # x OR c = NOT (NOT x AND NOT c)
        x, c = row ^ flip, carry ^ flip
        if x in (0, true) or c in (0, true):
            both = (c if x else 0) if x in (0, true) else (x if c else 0)
        elif x == c:
            both = x
        elif x == c ^ true:
            both = 0
        else:
            return None
        carry = both ^ flip
    return out


def swizzle_candidates(rows: list[int]) -> Iterator[tuple[int, int, int]]:
    """Candidate (B, M, S) for the rows with two ones; without such rows, no swizzle."""
    targets = [i for i, row in enumerate(rows) if row & (row - 1)]
    if not targets:
        yield 0, 4, 3
        return
    low, B = targets[0], targets[-1] - targets[0] + 1
    for source, row in enumerate(rows):
        S = source - low
        if row and not row & (row - 1) and row & rows[low] and abs(S) >= B:
            yield B, min(low, source), S


class Elimination:
    """Gaussian elimination on columns: which combinations of columns give which values."""

    def __init__(self, columns: Iterable[int]) -> None:
        self.pivots: dict[int, int] = {}  # highest bit -> value
        self.combos: dict[int, int] = {}  # highest bit -> the columns, as bits, that XOR to it
        self.kernel: list[int] = []
        for j, value in enumerate(columns):
            value, combo = self._reduce(value, 1 << j)
            if value:
                self.pivots[value.bit_length()] = value
                self.combos[value.bit_length()] = combo
            else:
                self.kernel.append(combo)

    def _reduce(self, value: int, combo: int) -> tuple[int, int]:
        pivots, rest = self.pivots, value
        while rest:
            top = rest.bit_length()
            if top in pivots:
                value ^= pivots[top]
                combo ^= self.combos[top]
                rest ^= pivots[top]
            else:
                return value, combo
        return value, combo

    def solve(self, value: int, partial: bool = False) -> int | None:
        """Columns that XOR to the value, or None. With `partial`, a linear extension to values that they do not
        reach."""
        combo = 0
        while value:
            top = value.bit_length()
            if top in self.pivots:
                combo ^= self.combos[top]
                value ^= self.pivots[top]
            elif partial:
                # Bits without a pivot span a complement of the image; the extension sends them to 0.
                value ^= 1 << (top - 1)
            else:
                return None
        return combo

    def reduced(self) -> list[int]:
        """The reduced basis: no pivot bit occurs in another value."""
        out: list[int] = []
        for top in sorted(self.pivots):
            value = self.pivots[top]
            for other in reversed(out):
                if value >> (other.bit_length() - 1) & 1:
                    value ^= other
            out.append(value)
        return out
