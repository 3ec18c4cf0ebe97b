"""Row indices: A's rows are gathered, C's rows are scattered.

    IndexedRows(gather=RowIndices(1000))                   row i of the product reads row rows[i] of an A of 1000 rows
    IndexedRows(scatter=RowIndices(1000, "i64"))           row i of the product is row out_rows[i] of a C of 1000 rows
    IndexedRows(gather=RowIndices(1000), copy=True)        A's chosen rows are copied to a workspace before the product

Without `copy` neither matrix has a copy in global memory. On Hopper:

    part       before        with indices
    -------    ----------    ------------------------------------------------------------------------------------------
    loads A    TMA           cp.async of 16 bytes by the loader's 128 threads, into the same swizzled tile. A thread
                             arrives at full[s] when its copies have landed (cp.async.mbarrier.arrive.noinc)
    consumer   waits full    the same, then fence.proxy.async: cp.async writes through the generic proxy, and wgmma
                             reads through the async proxy
    stores C   TMA           16-byte vectors from the store's buffers: 8 lanes store 128 bytes of a row

On Blackwell TMA moves chosen rows itself, by tile::gather4 and tile::scatter4: see `kernels.sm100.rows`. No such
kernel has run on hardware here. The mma.sync kernels (sm_80 and later, sm_120a) copy each row by cp.async from the
address that its index gives, and store 16-byte vectors likewise: see `kernels.sm80.device.indexed`.

An index outside of its matrix reads nothing, and the row is zeros; or writes nothing. Where the host sees the indices
they are refused instead, with the first one. Rows of C that no index names are left. An index of C that repeats is
refused where the host sees it; on a GPU the row is then of either product row, or of parts of both.

With groups of rows the product's rows are those of the groups, so a mixture of experts gathers its tokens and
multiplies them in one kernel.

A batch has m indices for each matrix: row i of matrix l reads row rows[l * M + i] of matrix l of A. Hopper's kernel
takes a batch with `copy` alone.

With `copy` a kernel of its own gathers the rows (`indexed.row_copy`). The product is then an ordinary one, of any
configuration. A configuration gives the same bits either way, since its products see the same values in the same order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...arguments import as_bool, checked, settle, shown
from ...errors import OperandError, PlanError
from ..numbers import checked_numbers
from ..plan import check_sizes
from .row_copy import COPIED, RowCopy

if TYPE_CHECKING:
    from ..derive import Operand
    from ..epilogue.chain import Epilogue
    from ..ragged import Ragged

INDEX_TYPES = ("i32", "i64")
ROWS, OUT_ROWS = "rows", "out_rows"  # names of the two vectors
ADDED = "added_rows"  # the word that has the address of the product's rows in order, before they are added
ADDED_TYPES = ("f32", "bf16", "f16")  # of a C to which rows are added


@dataclass(frozen=True, slots=True)
class RowIndices:
    """The rows of an indexed matrix, and the type of their indices.

    rows  of the matrix, 1 or more; a launch may say another number
    kind  of the indices, "i32" or "i64"

    Raises PlanError for other numbers or types.

    >>> RowIndices(1000, "i64").bytes, RowIndices(1000).kind
    (8, 'i32')
    """

    rows: int
    kind: str = "i32"

    def __post_init__(self) -> None:
        settle(self, PlanError)
        check_sizes(rows=self.rows)
        if self.kind not in INDEX_TYPES:
            raise PlanError(f"row indices of {shown(self.kind)}: i32 or i64")

    @property
    def bytes(self) -> int:
        """Bytes of one index."""
        return int(self.kind.removeprefix("i")) // 8

    @checked(PlanError)
    def take(self, name: str, indices: object, count: int, matrix: str) -> npt.NDArray[np.int64]:
        """NumPy indices as int64. Raises OperandError for another type or number, and for one outside of the matrix.

        >>> RowIndices(4).take("rows", np.array([3, 4], np.int32), 2, "a")
        Traceback (most recent call last):
            ...
        layoutgemm.errors.OperandError: rows[1] = 4: a has 4 rows, 0 to 3
        """
        found = checked_numbers(name, indices, self.kind, count)
        check_inside(shown(name)[1:-1], found, self.rows, matrix)
        return found


@dataclass(frozen=True, slots=True)
class IndexedRows:
    """The row indices of A, of C, or of both.

    gather   of A: row i of the product reads row rows[i]
    scatter  of C: row i of the product is row out_rows[i]
    copy     A's chosen rows are copied to a workspace first: a RowCopy, or True for the usual one; None or False: the
             product's kernel gathers
    adds     rows of the product are added to the rows of C that `scatter` names, which may repeat: see `added_rows`
    through  names of vectors along M, and of A's tables, that have a number for each row of A: row i of the product
             reads that of row rows[i], and 0 for an index outside of A

    Raises PlanError without indices, and for a copy or numbers of rows that are not gathered.

    >>> IndexedRows(RowIndices(9), RowIndices(7)).words
    ('rows', 'a_rows', 'out_rows', 'c_rows')
    >>> IndexedRows(RowIndices(9), copy=True).words
    ('rows', 'a_rows', 'copied_rows')
    """

    gather: RowIndices | None = None
    scatter: RowIndices | None = None
    copy: RowCopy | bool | None = None
    adds: bool = False
    through: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        as_bool(self.adds, "adds of IndexedRows", PlanError)
        if self.adds and self.scatter is None:
            raise PlanError("adds = True: rows are added to those of C that scatter names, and scatter is None")
        for name in ("gather", "scatter"):
            if not isinstance(part := getattr(self, name), RowIndices | None):
                raise PlanError(f"{name} = {shown(part)}: RowIndices(rows), or None")
        if self.gather is None and self.scatter is None:
            raise PlanError("indexed: neither rows to gather nor rows to scatter")
        if isinstance(self.copy, bool):
            object.__setattr__(self, "copy", RowCopy() if self.copy else None)
        if not isinstance(self.copy, RowCopy | None):
            raise PlanError(f"copy = {shown(self.copy)}: True, a RowCopy, or None")
        if self.copy is not None and self.gather is None:
            raise PlanError("copy: rows of A are copied where they are gathered, and gather is None")
        if not isinstance(self.through, (tuple, list)) or not all(isinstance(name, str) for name in self.through):
            raise PlanError(f"through = {shown(self.through)}: names, ('scale_a',)")
        object.__setattr__(self, "through", tuple(self.through))
        if self.through and self.gather is None:
            raise PlanError(f"through = {self.through}: numbers of A's rows are read where these are gathered")

    @property
    def copies(self) -> bool:
        """True if a kernel of its own gathers A's rows."""
        return self.copy is not None

    @property
    def places_rows(self) -> bool:
        """True if the product's kernel stores its rows where `scatter` says."""
        return self.scatter is not None and not self.adds

    @property
    def row_copy(self) -> RowCopy:
        """The kernel that copies rows. Raises PlanError where none are copied."""
        if not isinstance(self.copy, RowCopy):
            raise PlanError("copy: the product's kernel gathers the rows")
        return self.copy

    @property
    def names(self) -> tuple[str, ...]:
        """The vectors that a launch gives."""
        return tuple(name for name, part in ((ROWS, self.gather), (OUT_ROWS, self.scatter)) if part is not None)

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel's parameters: the address of each vector, and the rows of its matrix."""
        found = [word for name in self.names for word in (name, {ROWS: "a_rows", OUT_ROWS: "c_rows"}[name])]
        return (*found, *[COPIED] * self.copies, *[ADDED] * self.adds)

    def of(self, name: str) -> tuple[RowIndices, str]:
        """(the indices of that name, the matrix that they are of)."""
        part, matrix = (self.gather, "a") if name == ROWS else (self.scatter, "c")
        if part is None:
            raise PlanError(f"{name}: the plan has no such indices")
        return part, matrix

    @checked(PlanError)
    def take(self, given: Mapping[str, object], m: int, matrices: int = 1) -> dict[str, npt.NDArray[np.int64]]:
        """The vectors by name, checked. Raises OperandError for one that does not fit, or that repeats a row of C.

        m         rows of the product, of all matrices of a batch
        matrices  of C: a row of one may have the number of a row of another
        """
        found: dict[str, npt.NDArray[np.int64]] = {}
        for name in self.names:
            part, matrix = self.of(name)
            found[name] = part.take(name, given[name], m, matrix)
        if OUT_ROWS in found and not self.adds:
            check_distinct(OUT_ROWS, found[OUT_ROWS], matrices)
        return found

    @property
    def missing(self) -> str:
        """The meaning of the vectors, for an error."""
        return "an index for each row of the product"

    @checked(PlanError)
    def check_through(self, epilogue: Epilogue | None, tables: Sequence[str], alone: bool) -> None:
        """Raise PlanError for names that are no numbers of A's rows, and for a batch.

        tables  of A that the main loop reads by row
        alone   whether the product is one of two matrices
        """
        vectors = [x.name for x in (() if epilogue is None else epilogue.given) if x.axes == "m" and not x.written]
        for name in self.through:
            if name not in (*vectors, *tables):
                known = ", ".join((*vectors, *tables)) or "none"
                raise PlanError(
                    f"through = {shown(name)}: no number of a row that this kernel reads; known are {known}"
                )
            if not alone:
                raise PlanError(f"through = {shown(name)}: of a batch, and of groups, give a number for each row of C")

    def for_any_size(self) -> IndexedRows:
        """The same for matrices of one row: what the trace sees."""
        gather, scatter = [None if part is None else RowIndices(1, part.kind) for part in (self.gather, self.scatter)]
        return IndexedRows(gather, scatter, self.copy, self.adds, self.through)

    @checked(PlanError)
    def gathered(self, values: Mapping[str, object]) -> dict[str, object]:
        """Arrays by name, those of `through` with a number for each row of the product.

        >>> indexed = IndexedRows(RowIndices(3), through=("scale",))
        >>> indexed.gathered({"scale": np.array([1.0, 2.0, 4.0]), "rows": np.array([2, 0])})["scale"].tolist()
        [4.0, 1.0]
        """
        rows = np.asarray(values.get(ROWS, ()))
        return {name: np.asarray(x)[rows] if name in self.through else x for name, x in values.items()}

    def __str__(self) -> str:
        parts = []
        if self.gather is not None:
            how = "copied" if self.copies else "gathered"
            parts.append(f"rows {how} from {self.gather.rows} of A ({self.gather.kind})")
        if self.scatter is not None:
            how = "added" if self.adds else "scattered"
            parts.append(f"rows {how} to {self.scatter.rows} of C ({self.scatter.kind})")
        return ", ".join(parts)


class IndexedProduct:
    """Facts that row indices decide, of a request and of its plan."""

    m: int
    indexed: IndexedRows | None
    ragged: Ragged | None

    @property
    def joined_rows(self) -> bool:
        """True if all groups' rows are those of one matrix of A and of C. B has a matrix for each in any case."""
        return self.ragged is not None and not self.ragged.masked

    @property
    def gathers(self) -> bool:
        """True if the product's kernel gathers A's rows."""
        return self.indexed is not None and self.indexed.gather is not None and not self.indexed.copies

    @property
    def copies_rows(self) -> bool:
        """True if a kernel of its own gathers A's rows, before the product."""
        return self.indexed is not None and self.indexed.copies

    @property
    def scatters(self) -> bool:
        """True if C's rows are scattered by the product's kernel."""
        return self.indexed is not None and self.indexed.places_rows

    @property
    def adds_rows(self) -> bool:
        """True if a second launch adds the product's rows to those of C."""
        return self.indexed is not None and self.indexed.adds

    @property
    def rows_of_a(self) -> int:
        """Rows of the matrix A: the product's, unless they are gathered."""
        return self.m if self.indexed is None or self.indexed.gather is None else self.indexed.gather.rows

    @property
    def rows_of_c(self) -> int:
        """Rows of the matrix C: the product's, unless they are scattered."""
        return self.m if self.indexed is None or self.indexed.scatter is None else self.indexed.scatter.rows

    @property
    def index_words(self) -> tuple[str, ...]:
        """The kernel's parameters for row indices: see `IndexedRows.words`."""
        return () if self.indexed is None else self.indexed.words

    def stored_rows(self, values: Mapping[str, Any]) -> Any:
        """The rows of C that are stored, as an array, (batch, M) of a batch. None for all.

        values  that the plan reads, by name
        """
        if not self.scatters:
            return None
        rows = np.asarray(values[OUT_ROWS])
        return rows if len(rows) == self.m else rows.reshape(-1, self.m)


def check_rows_lie(
    indexed: IndexedRows, a: Operand, c: Operand, epilogue: Epilogue | None, tables: Sequence[str] = (),
    alone: bool = True,
) -> None:  # fmt: skip
    """Raise PlanError for rows that are not contiguous, or of which none is stored.

    tables, alone  as `IndexedRows.check_through` has them, which raises too
    """
    indexed.check_through(epilogue, tables, alone)
    if indexed.gather is not None and a.order != "row":
        raise PlanError(f"a is {a}: gathered rows are contiguous, a 'row' A")
    if indexed.scatter is None:
        return
    if epilogue is not None and not epilogue.stores_c:
        raise PlanError("indexed: rows of C are scattered, and stores_c = False: no row of C is stored")
    if c.order != "row":
        raise PlanError(f"c is {c}: scattered rows are contiguous, a 'row' C")
    if indexed.adds and c.dtype.name not in ADDED_TYPES:
        raise PlanError(f"indexed: c is {c.dtype}, and rows are added in f32: c = {', '.join(ADDED_TYPES)}")


def check_inside(name: str, indices: npt.NDArray[np.int64], rows: int, matrix: str) -> None:
    """Raise OperandError for the first index outside of 0 to `rows` - 1."""
    outside = (indices < 0) | (indices >= rows)
    if outside.any():
        at = int(np.argmax(outside))
        raise OperandError(f"{name}[{at}] = {indices[at]}: {shown(matrix)[1:-1]} has {rows} rows, 0 to {rows - 1}")


def check_distinct(name: str, indices: npt.NDArray[np.int64], matrices: int = 1) -> None:
    """Raise OperandError, naming both places, for the first index that repeats.

    matrices  of a batch: their indices lie one behind the other, and each may have the same ones

    >>> check_distinct("out_rows", np.array([5, 1, 5]))
    Traceback (most recent call last):
        ...
    layoutgemm.errors.OperandError: out_rows[0] and out_rows[2] are both 5: a row of the result has one source
    """
    of = np.arange(len(indices)) // max(1, len(indices) // matrices)
    order = np.lexsort((indices, of))  # stable
    rows, matrix = indices[order], of[order]
    again = np.nonzero((rows[1:] == rows[:-1]) & (matrix[1:] == matrix[:-1]))[0]
    if len(again):
        second = int(order[again + 1].min())
        first = int(np.argmax((indices == indices[second]) & (of == of[second])))
        raise OperandError(
            f"{name}[{first}] and {name}[{second}] are both {indices[second]}: a row of the result has one source"
        )
