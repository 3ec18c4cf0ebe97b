"""Parts of a product that go together in a kernel, and why others do not.

A part is what an argument of `Sm90Plan.derive` asks for beyond a plain product. Two parts have a kernel unless
`REFUSED` has them. What a part asks of types and of the configuration is said where the part is defined.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, TypedDict

from ...errors import PlanError

if TYPE_CHECKING:
    from ...schedule import Schedule
    from ..epilogue.chain import Epilogue
    from ..indexed.rows import IndexedRows
    from ..operands.promoted import Promoted
    from ..orders import Order
    from ..quantized.formats import QuantizedFormat
    from ..ragged import AlongK, Ragged
    from ..sm90.operands.row_sums import RowSums
    from ..sm90.shards import Shards
    from ..sm90.triangular.operands import Triangles
    from .combined import Combined
    from .pair import SecondPair
    from .prologue import Prologue

# Name of a part -> the argument that asks for it, and the part in a sentence.
PARTS: dict[str, tuple[str, str]] = {
    "gate": ("gated", "a gate"),
    "several B": ("gated", "several matrices B"),
    "main loop": ("mainloop", "a main loop that promotes"),
    "groups of rows": ("ragged", "groups of rows"),
    "masked groups": ("ragged", "masked groups"),
    "groups along K": ("along_k", "groups along K"),
    "second pair": ("pair", "a second pair"),
    "gathered rows": ("indexed", "gathered rows"),
    "copied rows": ("indexed", "copied rows"),
    "scattered rows": ("indexed", "scattered rows"),
    "prologue": ("prologue", "a prologue"),
    "row sums": ("row_sums", "sums of A's rows"),
    "packed weights": ("weights", "packed weights"),
    "shards": ("shards", "shards"),
    "triangular operands": ("triangles", "triangular operands"),
    "batch": ("batch", "a batch"),
    "epilogue": ("epilogue", "an epilogue"),
    "groups of columns": ("epilogue", "an epilogue with scales, results or functions of groups of columns"),
    "symmetric order": ("order", "a symmetric order"),
    "order of some tiles": ("order", "an order of some tiles"),
    "order with words": ("order", "an order that reads words"),
    "other orders": ("order", "an order of every tile"),
}
_COPY = "IndexedRows(..., copy=True) copies A's rows first"
_SCATTER = "scatter C's rows by torch"
_ONE_LOOP = "a kernel has one loop over K"
_PLAIN = "their kernels load and store a plain product"
_NOT_SQUARE = "C is then no product of a matrix and its transpose"
_OWN_GRIDS = "each group has a grid of its own"
_OF_WEIGHTS = "packed weights are A, whose rows are output features"
# (part, other part) -> why no kernel has both; the first is the one that a refusal names.
REFUSED: dict[tuple[str, str], str] = {
    ("main loop", "second pair"): "tables of scales are of one pair",
    ("groups along K", "second pair"): "the second pair's matrices have no groups",
    ("batch", "packed weights"): "one matrix of weights is packed; experts= has several",
    ("gate", "groups along K"): "the weights of a gate have K contiguous, and groups begin at any line of K",
    ("several B", "groups along K"): "each group has one matrix B",
    ("groups of rows", "groups along K"): "groups are of rows or of K",
    ("masked groups", "groups along K"): "groups are of rows or of K",
    ("gathered rows", "groups along K"): "its A is read along M, and rows of A are not contiguous",
    ("copied rows", "groups along K"): "its A is read along M, and rows of A are not contiguous",
    ("scattered rows", "groups along K"): "each group has a matrix of C",
    ("main loop", "gathered rows"): f"one warp of the loader copies its numbers, and all four gather; {_COPY}",
    ("second pair", "gathered rows"): f"the second A's rows are in order; {_COPY}",
    ("masked groups", "gathered rows"): f"indices are of one matrix of A; {_COPY}",
    ("masked groups", "scattered rows"): f"indices are of one matrix of C; {_SCATTER}",
    ("main loop", "prologue"): _ONE_LOOP,
    ("gate", "packed weights"): f"{_OF_WEIGHTS}: a tile's halves are columns of B",
    ("several B", "packed weights"): f"{_OF_WEIGHTS}: a tile's sums are of columns of B",
    ("main loop", "packed weights"): f"{_ONE_LOOP}, and scales are the weights' own",
    ("groups of rows", "packed weights"): f"{_OF_WEIGHTS}: experts= has groups of columns",
    ("masked groups", "packed weights"): f"{_OF_WEIGHTS}: experts= has groups of columns",
    ("groups along K", "packed weights"): "a packed unit has 128 elements of K, and groups begin at any line",
    ("second pair", "packed weights"): "A2 is loaded as A is, and only A is packed",
    ("gathered rows", "packed weights"): f"{_OF_WEIGHTS}, packed in blocks of 64",
    ("copied rows", "packed weights"): f"{_OF_WEIGHTS}, packed in blocks of 64",
    ("scattered rows", "packed weights"): f"{_OF_WEIGHTS}: rows of x are columns of C",
    ("prologue", "packed weights"): "both make A's elements in registers",
    ("triangular operands", "packed weights"): "a packed unit has 128 elements of K, zeros or not",
    ("symmetric order", "packed weights"): "the weights' transpose is no matrix B",
    ("order with words", "packed weights"): "its launch has no words of an order",
    **{(part, "shards"): _PLAIN for part in (
        "gate", "several B", "main loop", "groups of rows", "masked groups", "groups along K", "second pair",
        "gathered rows", "copied rows", "scattered rows", "prologue", "packed weights", "triangular operands", "batch",
    )},
    **{(part, "shards"): "the kernel takes the tiles shard by shard" for part in (
        "symmetric order", "order of some tiles", "order with words", "other orders",
    )},
    ("groups of rows", "triangular operands"): "groups begin at any row, and a diagonal at the first",
    ("masked groups", "triangular operands"): "a loop over groups takes all K tiles of each",
    ("groups along K", "triangular operands"): "K tiles are counted from a group's end",
    **{(part, "triangular operands"): "rows in another order are no triangle"
       for part in ("gathered rows", "copied rows", "scattered rows")},
    **{(part, "symmetric order"): _NOT_SQUARE for part in ("gate", "several B", "prologue")},
    ("groups of columns", "symmetric order"):
        "a tile is stored again transposed, and its groups of columns are of rows there; no order= computes all tiles",
    **{(part, "symmetric order"): "rows in another order have no diagonal"
       for part in ("gathered rows", "copied rows", "scattered rows")},
    **{(part, "symmetric order"): _OWN_GRIDS for part in ("groups of rows", "masked groups")},
    ("groups along K", "symmetric order"): "A and B lie in other orders than a matrix and its transpose",
    **{(order, groups): _OWN_GRIDS for order in ("order of some tiles", "order with words")
       for groups in ("groups of rows", "masked groups")},
    **{(part, "row sums"): _PLAIN for part in (
        "gate", "several B", "main loop", "groups of rows", "masked groups", "second pair", "gathered rows",
        "copied rows", "scattered rows", "prologue",
    )},
    **{("row sums", part): _PLAIN for part in ("packed weights", "shards", "triangular operands")},
    **{("row sums", order): "each row of tiles has one with column 0" for order in (
        "symmetric order", "order of some tiles", "order with words",
    )},
}  # fmt: skip


class PartOptions(TypedDict, total=False):
    """The keyword arguments of a plan that ask for these parts."""

    gated: Combined | str | None
    order: Order | None
    prologue: Prologue | None
    pair: SecondPair | int | None
    indexed: IndexedRows | None
    triangles: Triangles | None
    ragged: Ragged | None
    along_k: AlongK | None
    mainloop: Promoted | None


@dataclass(frozen=True)
class Asked:
    """The arguments of a plan that ask for more than a plain product. None for those that are not given.

    symmetric  the order is that of a symmetric product
    """

    gated: Combined | None = None
    mainloop: Promoted | None = None
    ragged: Ragged | None = None
    along_k: AlongK | None = None
    pair: SecondPair | None = None
    indexed: IndexedRows | None = None
    prologue: Prologue | None = None
    weights: QuantizedFormat | None = None
    experts: Ragged | None = None
    shards: Shards | None = None
    triangles: Triangles | None = None
    epilogue: Epilogue | None = None
    batch: int = 1
    symmetric: bool = False
    row_sums: RowSums | None = None

    @property
    def tables_of_batch(self) -> int:
        """Matrices of a batch that have numbers of a main loop each. One where groups along K share K's blocks."""
        return 1 if self.along_k is not None else self.batch

    @property
    def asked(self) -> dict[str, Any]:
        """These arguments by name; a plan has more fields."""
        return {each.name: getattr(self, each.name) for each in fields(Asked)}

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts, those of `PARTS`.

        >>> from layoutgemm.kernels.operands.pair import SecondPair
        >>> Asked(pair=SecondPair(16), batch=2).parts
        ('second pair', 'batch')
        """
        gated, ragged, indexed = self.gated, self.ragged, self.indexed
        found = {
            "gate": gated is not None and not gated.separate,
            "several B": gated is not None and gated.separate,
            "main loop": self.mainloop is not None,
            "groups of rows": ragged is not None and not ragged.masked,
            "masked groups": ragged is not None and ragged.masked,
            "groups along K": self.along_k is not None,
            "second pair": self.pair is not None,
            "gathered rows": indexed is not None and indexed.gather is not None and not indexed.copies,
            "copied rows": indexed is not None and indexed.copies,
            "scattered rows": indexed is not None and indexed.scatter is not None,
            "prologue": self.prologue is not None,
            "row sums": self.row_sums is not None,
            "packed weights": self.weights is not None,
            "shards": self.shards is not None,
            "triangular operands": self.triangles is not None,
            "batch": self.batch > 1 and all(groups is None for groups in (ragged, self.along_k, self.experts)),
            "epilogue": bool(self.epilogue),
            "groups of columns": self.epilogue is not None and self.epilogue.columns > 1,
            "symmetric order": self.symmetric,
        }
        return tuple(name for name, there in found.items() if there)


def order_parts(schedule: Schedule, usual: Schedule) -> tuple[str, ...]:
    """The names of what an order asks for. None for the configuration's own, and a symmetric one is known before.

    >>> from layoutgemm.schedule import Grouped, Hilbert, Linear, TileList, Triangular
    >>> [order_parts(order, Grouped()) for order in (Grouped(), Linear("N"), TileList(schedule=Hilbert()))]
    [(), ('other orders',), ('order with words',)]
    >>> order_parts(Triangular("lower"), Grouped()), order_parts(Triangular("lower", mirror=True), Grouped())
    (('order of some tiles',), ())
    """
    if schedule == usual or getattr(schedule, "mirror", False):
        return ()
    found = {"order of some tiles": not schedule.is_full, "order with words": bool(schedule.words)}
    return tuple(name for name, there in found.items() if there) or ("other orders",)


GROUPS = ("groups of rows", "masked groups", "groups along K")
SUMS = ("gate", "several B", "second pair")  # parts of kernels without wgmma, too


def refusal(parts: Sequence[str], of: Sequence[str] = tuple(PARTS)) -> str:
    """The reason why two of these parts do not go together. "" where all do, or where neither is one `of` these.

    >>> refusal(("prologue", "main loop"))
    'mainloop: no kernel has a main loop that promotes and a prologue: a kernel has one loop over K'
    """
    for (first, other), why in REFUSED.items():
        if first in parts and other in parts and (first in of or other in of):
            return f"{PARTS[first][0]}: no kernel has {PARTS[first][1]} and {PARTS[other][1]}: {why}"
    return ""


def check_parts(parts: Sequence[str], batch: int, of: Sequence[str] = tuple(PARTS)) -> None:
    """Raise PlanError, naming the first two parts that do not go together and the reason. See `refusal`."""
    if why := refusal(parts, of):
        raise PlanError(why.replace("batch:", f"batch = {batch}:", 1))
