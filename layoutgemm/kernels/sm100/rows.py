"""Row indices of a Blackwell plan. A's rows come by tile::gather4, C's rows by tile::scatter4.

    part       in order                        with indices
    -------    ----------------------------    ------------------------------------------------------------------------
    loads A    boxes of all rows of a tile     boxes of four rows, into the same swizzled tile; the same bytes arrive at
                                               full[s]. The loader's lanes read the indices once for each tile of C
    stores C   boxes of a warp's 32 rows       boxes of four rows, from the same buffers; a lane reads one index

The tensor maps have boxes of one row. An index outside of its matrix becomes the matrix's number of rows, the first
coordinate outside of the tensor map: TMA loads zeros from there, and stores nothing.

The instructions take tensor maps of two dimensions. So the matrices of a batch are one matrix of rows: row r of matrix
l is row l * s + r, where s is the distance of two matrices in rows. Matrices have to lie a multiple of their row pitch
apart (`run.tensor_maps` refuses or copies others), and the first coordinate outside is the number of all rows.

No device of this architecture has run it: the emulator and ptxas have.
"""

from __future__ import annotations

from dataclasses import replace

from ...atoms.copy.base import WARP
from ...atoms.tma.gather import in_fours
from ...atoms.tmem.layout import LANES
from ...errors import PlanError, TmaError
from ...layouts import Layout
from ..derive import Operand, OperandPlan
from ..epilogue.chain import Epilogue
from ..indexed.rows import IndexedRows, check_rows_lie
from ..operands.combinations import Asked
from ..store import StorePlan

# (value, lane) -> the row of A's tile whose index a lane of the loader reads: a lane has the four rows of a gather.
READ_BY_LANES = Layout((LANES // WARP, WARP))


def check_rows(
    indexed: IndexedRows | None, operands: tuple[Operand, Operand], epilogue: Epilogue | None, alone: bool, arch: str
) -> None:
    """Raise PlanError, naming the obstacle, for a product with indices that this kernel has not.

    operands  A and C
    alone     whether there is one product: no batch, no groups
    """
    if indexed is None:
        return
    if indexed.copies:
        raise PlanError(f"indexed: {arch}'s kernel copies no rows first, TMA gathers them; leave copy out")
    check_rows_lie(indexed, *operands, epilogue, alone=alone)


def matrices_by_map(asked: Asked, batch: int) -> tuple[int, int]:
    """Extents of the batch's dimension in the tensor maps of A and C.

    It is 1 where rows are chosen, since the matrices are rows of one, and where groups share a matrix.
    """
    joined, indexed = asked.ragged is not None and not asked.ragged.masked, asked.indexed
    of_a, of_c = 1 if joined or asked.along_k is not None else batch, 1 if joined else batch
    if indexed is None:
        return of_a, of_c
    return 1 if indexed.gather is not None else of_a, 1 if indexed.places_rows else of_c


def gathered(indexed: IndexedRows | None, a: OperandPlan) -> OperandPlan:
    """A with copies of four chosen rows each; A itself where none are gathered.

    >>> from layoutgemm.kernels.indexed.rows import RowIndices
    >>> from layoutgemm.kernels.sm100.plan import Sm100Plan
    >>> plan = gathered(IndexedRows(RowIndices(9)), Sm100Plan.derive(128, 256, 64).a)
    >>> plan.tma.box, len(plan.tma.instructions), plan.bytes
    ((64, 4), 32, 16384)
    """
    return a if indexed is None or indexed.gather is None else replace(a, tma=in_fours(a.tma))


def scattered(indexed: IndexedRows | None, store: StorePlan) -> StorePlan:
    """The store with boxes of four chosen rows each. The store itself where none are scattered.

    Raises PlanError for a chunk whose rows are too short.
    """
    if indexed is None or not indexed.places_rows:
        return store
    try:
        return replace(store, maps=tuple([in_fours(tma, "scatter") for tma in store.maps]))
    except TmaError as error:
        widths = sorted({chunk.width for round_ in store.rounds for chunk in round_.chunks})
        raise PlanError(
            f"indexed: a chunk of C of {widths[0]} columns of {store.c.dtype}: {error}; a tile of more columns has none"
        ) from error
