"""The data of a linked page. Matrices, the holders of their elements, and the elements' places in memory.

    Figure --> PageMatrix A (m, k), B (n, k), C (m, n) --> Holders: (thread, value) of every element
                                                       --> Fact: a number, or a named one, of every element
                                                       --> Memory: the first bit of every element

Matrices are linked by shared dimensions: (m, n) of C goes with all (m, k) of A and all (n, k) of B. Matrices of the
same two dimensions show the same elements twice: the two sides of a copy, a tile before and after a swizzle. A
dimension may count blocks of another, as the factors of block scales do along k. Everything is an array over the
elements. `Figure.data` packs the arrays: as two lists wherever every entry is the sum, or the XOR, of one of its row
and one of its column, else as raw integers.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, is_dataclass
from math import gcd
from typing import TYPE_CHECKING, TypeAlias

from layoutgemm.errors import LayoutError
from layoutgemm.lazy_numpy import np

if TYPE_CHECKING:
    import numpy.typing as npt

Table: TypeAlias = "npt.NDArray[np.int64]"  # (rows, columns) of a matrix -> a number; -1 for none

# Of one page. A tile of 256 x 256 with both of its operands 128 deep is as large as a block's tile gets.
MAX_ELEMENTS = 1 << 17
MAX_COPIES = 256  # of one element among the threads
NOTHING = -1


def packed(table: Table) -> dict[str, object]:
    """A table as JSON has it, in the smallest of its forms.

    >>> import numpy as np
    >>> packed(np.array([[0, 1], [4, 5]]))
    {'join': '+', 'rows': [0, 4], 'columns': [0, 1]}
    >>> packed(np.array([[3, 2], [2, 3]]))
    {'join': '^', 'rows': [3, 2], 'columns': [0, 1]}
    >>> packed(np.array([[0, 7], [7, 1]]))
    {'bytes': 1, 'base64': 'AAcHAQ=='}
    """
    values = np.asarray(table, np.int64)
    rows, columns = values[:, 0], values[0, :] - values[0, 0]
    if np.array_equal(rows[:, None] + columns, values):
        return {"join": "+", "rows": rows.tolist(), "columns": columns.tolist()}
    if values.min() >= 0:
        columns = values[0, :] ^ values[0, 0]
        if np.array_equal(rows[:, None] ^ columns, values):
            return {"join": "^", "rows": rows.tolist(), "columns": columns.tolist()}
    for width in (1, 2, 4):
        if -(1 << (8 * width - 1)) <= values.min() and values.max() < 1 << (8 * width - 1):
            raw = values.astype(f"<i{width}").tobytes()
            return {"bytes": width, "base64": base64.b64encode(raw).decode()}
    raise LayoutError(f"the page holds numbers of 32 bits; {values.max()} is too large")


@dataclass(frozen=True)
class Tables:
    """The tables of a page, each kept once."""

    forms: list[dict[str, object]] = field(default_factory=list)
    known: dict[tuple[tuple[int, ...], bytes], int] = field(default_factory=dict)

    def add(self, table: Table) -> int:
        """The number of a table."""
        key = table.shape, np.ascontiguousarray(table, np.int64).tobytes()
        if key not in self.known:
            self.known[key] = len(self.forms)
            self.forms.append(packed(table))
        return self.known[key]


@dataclass(frozen=True)
class Fact:
    """Something that every element of a matrix has. A number, or what `labels` call that number."""

    name: str
    table: Table
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Paint:
    """A way to colour a matrix. `per` neighbouring numbers share a hue, and every second number may be lighter.

    texts    (prefix, table) of each line that a large cell prints
    legend   (number of the hue, meaning)
    """

    name: str
    table: Table
    per: int
    odd: bool
    texts: tuple[tuple[str, Table], ...]
    legend: tuple[tuple[int, str], ...]


@dataclass(frozen=True)
class Holder:
    """A holder of elements. "thread", or a "lane" of tensor memory, numbered 0 to count - 1.

    Number h is number h % size of group h // size: lane 5 of warp 1 is thread 37. `value` names its part that holds one
    element, and two letters stand for both in a cell.
    """

    name: str
    count: int
    size: int
    group: str
    inner: str
    value: str
    letters: str

    def words(self, number: int) -> str:
        """A holder as the page names it.

        >>> THREADS(128).words(37), THREADS(8).words(3)
        ('thread 37 (warp 1, lane 5)', 'thread 3')
        """
        if self.count <= self.size:
            return f"{self.name} {number}"
        return f"{self.name} {number} ({self.group} {number // self.size}, {self.inner} {number % self.size})"


def THREADS(count: int) -> Holder:
    """The threads of a block, in warps of 32."""
    return Holder("thread", count, 32, "warp", "lane", "value", "TV")


@dataclass(frozen=True)
class Holders:
    """The holders of each element of a matrix. A layer for each holder of an element, the lowest thread first.

    labels   value -> its text: its instruction, its register; without one its number
    """

    threads: tuple[Table, ...]
    values: tuple[Table, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, extent: tuple[int, int], held: Sequence[npt.ArrayLike], labels: Sequence[str]) -> Holders:
        """From arrays (row, column, thread, value) of equal length, in any order.

        >>> import numpy as np
        >>> both = Holders.of((1, 2), [np.array(x) for x in ([0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 0])], ["V0"])
        >>> [layer.tolist() for layer in both.threads]
        [[[0, 0]], [[1, -1]]]

        Raises LayoutError for an element outside the matrix, and for more than MAX_COPIES of one.
        """
        row, column, thread, value = (np.asarray(x, np.int64).ravel() for x in np.broadcast_arrays(*held))
        outside = (row < 0) | (row >= extent[0]) | (column < 0) | (column >= extent[1])
        if outside.any():
            at = int(np.flatnonzero(outside)[0])
            raise LayoutError(
                f"thread {thread[at]}, value {value[at]} holds ({row[at]}, {column[at]}), outside of {extent}"
            )
        element = row * extent[1] + column
        order = np.lexsort((value, thread, element))
        element, thread, value = element[order], thread[order], value[order]
        first = np.searchsorted(element, element)  # of the same element
        layer = np.arange(element.size) - first
        copies = int(layer.max()) + 1
        if copies > MAX_COPIES:
            raise LayoutError(f"{copies} threads and values hold one element: the page shows up to {MAX_COPIES}")
        made = np.full((2, copies, extent[0] * extent[1]), NOTHING, np.int64)
        made[0, layer, element], made[1, layer, element] = thread, value
        threads, values = made.reshape(2, copies, *extent)
        return cls(tuple(threads), tuple(values), tuple(labels))


@dataclass(frozen=True)
class Memory:
    """The memory of a matrix's elements. A picture of lines, each of equally many bytes (or offsets).

    start, bits   first bit of each element, and its bits; without `bank_bits` they count offsets
    line, unit    bits of a line, and of a unit within it, which is framed when one of its elements is shown
    bank_bits     of one bank, or None for an address space without banks
    size          bits of the whole
    """

    name: str
    title: str
    start: Table
    bits: int
    line: int
    unit: int
    size: int
    bank_bits: int | None
    facts: tuple[Fact, ...]
    paint: Paint | None = None


@dataclass(frozen=True)
class Planes:
    """The dimensions of a matrix beyond two. Each of their coordinates is a plane of `width` columns.

    Column c of the matrix is column c % width of plane c // width; planes are counted with the first name fastest.
    """

    names: tuple[str, ...]
    extents: tuple[int, ...]
    width: int


@dataclass(frozen=True)
class PageMatrix:
    """One matrix: its two dimensions by name, and the data of its elements.

    across   the dimension that is drawn from left to right: 0 or 1
    place    "left", "top" or "middle" of the product, "farleft" or "fartop" beyond these, or "alone"
    rivals   element -> a number shared by those that conflict in a bank; -1 without conflict
    planes   further dimensions, drawn as grids of their own; None for a matrix of two
    """

    name: str
    title: str
    dims: tuple[str, str]
    extent: tuple[int, int]
    across: int = 1
    place: str = "alone"
    holders: Holders | None = None
    facts: tuple[Fact, ...] = ()
    paints: tuple[Paint, ...] = ()
    memory: Memory | None = None
    rivals: Table | None = None
    planes: Planes | None = None


@dataclass(frozen=True)
class Figure:
    """A page: its heading and its matrices. `blocks` maps a dimension -> (the one of which it counts blocks, their
    size)."""

    title: str
    notes: tuple[str, ...]
    matrices: tuple[PageMatrix, ...]
    holder: Holder | None = None
    blocks: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = sum(matrix.extent[0] * matrix.extent[1] for matrix in self.matrices)
        if count > MAX_ELEMENTS:
            each = ", ".join(f"{matrix.name} {matrix.extent[0]}x{matrix.extent[1]}" for matrix in self.matrices)
            raise LayoutError(f"a page shows up to {MAX_ELEMENTS} elements; {each} are {count}")

    def data(self) -> dict[str, object]:
        """The figure as JSON has it: tables by their number, the rest by name."""
        tables = Tables()
        return {**{name: _listed(value, tables) for name, value in vars(self).items()}, "tables": tables.forms}


def _listed(value: object, tables: Tables) -> object:
    """A value as JSON has it: tables by their number, dataclasses by their fields."""
    if isinstance(value, np.ndarray):
        return tables.add(value)
    if isinstance(value, tuple):
        return [_listed(each, tables) for each in value]
    if isinstance(value, Memory):
        return _memory(value, tables)
    if not is_dataclass(value):
        return value
    out = {name: _listed(each, tables) for name, each in vars(value).items()}
    if isinstance(value, Paint):
        out["texts"] = [{"prefix": prefix, "table": tables.add(table)} for prefix, table in value.texts]
    return out


def _memory(memory: Memory, tables: Tables) -> dict[str, object]:
    """In grains: the largest number of bits that divides the start of every element."""
    grain = gcd(int(np.gcd.reduce(memory.start, axis=None)), memory.bits, memory.unit)
    bank = memory.bank_bits
    return {
        "name": memory.name, "title": memory.title, "start": tables.add(memory.start // grain),
        "grain": grain, "grains": memory.bits // grain, "line": memory.line // grain, "unit": memory.unit // grain,
        "size": -(-memory.size // grain), "banked": bank is not None,
        "ticks": [
            unit * memory.unit // bank % (memory.line // bank) if bank else unit * memory.unit
            for unit in range(memory.line // memory.unit)
        ],
        "per_line": memory.line // 8 if bank else memory.line,
        "facts": _listed(memory.facts, tables),
        "paint": _listed(memory.paint, tables),
    }  # fmt: skip
