"""The time that an epilogue's reductions add to a product of several waves."""

from __future__ import annotations

from typing import NamedTuple

from ...epilogue.chain import Epilogue
from .costs import cost_model

MODEL = cost_model("reductions", "h100")


class ReductionCost(NamedTuple):
    """An epilogue's reductions, by what an element of a tile costs.

    A lane holds neighbours of a row. Two exchanges of lanes combine a row; a column takes three, in eight lanes.

    rows, columns  of one number, and of tuples of several
    launches       second launches: of those with partial results

    >>> from layoutgemm.kernels.epilogue.chain import Amax, ColumnReduce, RowReduce
    >>> cost = ReductionCost.of(Epilogue(RowReduce("sum"), ColumnReduce("argmax"), Amax()))
    >>> cost
    ReductionCost(rows=(2, 0), columns=(0, 1), launches=2)
    >>> [round(each.seconds(4 * 128 * 256) * 1e6, 1) for each in (cost, cost.turned)]
    [34.2, 24.9]
    """

    rows: tuple[int, int] = (0, 0)
    columns: tuple[int, int] = (0, 0)
    launches: int = 0

    @classmethod
    def of(cls, epilogue: Epilogue | None) -> ReductionCost:
        """The cost of an epilogue's reductions; none without an epilogue."""
        steps = () if epilogue is None else epilogue.reductions
        found = {(along_n, several): 0 for along_n in (False, True) for several in (False, True)}
        for step in steps:
            found[step.axes == "n", len(step.reduction.identity) > 1] += 1
        launches = sum(step.partial for step in steps)
        return cls((found[False, False], found[False, True]), (found[True, False], found[True, True]), launches)

    @property
    def turned(self) -> ReductionCost:
        """The same of the transposed product."""
        return ReductionCost(self.columns, self.rows, self.launches)

    def seconds(self, elements: int) -> float:
        """The time that they add where each CTA has that many elements of tiles."""
        of_rows = self.rows[0] * MODEL.row + self.rows[1] * MODEL.row_of_several
        of_columns = self.columns[0] * MODEL.column + self.columns[1] * MODEL.column_of_several
        return float(self.launches * MODEL.launch + elements * (of_rows + of_columns))


NO_REDUCTIONS = ReductionCost()
