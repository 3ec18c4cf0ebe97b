"""Groups of rows, or of K, whose ends are known on the device alone. Their numbers, and the group of a tile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..arguments import Integer, checked, settle, shown
from ..errors import OperandError, PlanError
from .numbers import W, checked_numbers
from .operands.promoted import DEPTH
from .plan import rounded_up

if TYPE_CHECKING:
    from .epilogue.chain import Epilogue

ENTRY_BYTES = 4  # of a table: rows and tiles are 31-bit
_LEAST_GROUPS = 64
_WAYS = 8  # parts of a search's step: a table's reads of one step are in flight together
_MASKED_ROWS = 128  # a group of masked ones, for which tiles are chosen: see `masked_rows`


@dataclass(frozen=True, slots=True)
class GroupOffsets:
    """The most groups, and the type of the numbers that say where they end.

    TABLES       of entries that every block makes of them in shared memory
    PLACE_BYTES  of the block's first tile, behind the tables
    """

    TABLES: ClassVar[int] = 1
    PLACE_BYTES: ClassVar[int] = 0

    capacity: int
    offsets: str = "i32"

    def __post_init__(self) -> None:
        settle(self, PlanError)
        if self.offsets not in ("i32", "i64"):
            raise PlanError(f"{self.name} of {shown(self.offsets)}: i32 or i64")

    @property
    def name(self) -> str:
        """The array in global memory that says where groups end."""
        return "offsets"

    @property
    def leaves_rows(self) -> bool:
        """True if rows of C may be in no group, and stay as they are."""
        return False

    @property
    def words(self) -> tuple[str, ...]:
        """The kernel's parameters: the address of that array."""
        return (self.name,)

    def read(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers as a kernel reads them, from what `take` gives: all."""
        return numbers

    @property
    def offset_bytes(self) -> int:
        """Bytes of one of its numbers; the low four are read."""
        return int(self.offsets.removeprefix("i")) // 8

    @property
    def entries(self) -> int:
        """Entries of each table."""
        return self.capacity + 1

    @property
    def bytes(self) -> int:
        """Shared memory of the tables and the first tile's place, a multiple of 16 bytes."""
        return self.place_offset + self.PLACE_BYTES

    @property
    def place_offset(self) -> int:
        """Bytes of the tables, a multiple of 16."""
        return rounded_up(self.TABLES * self.entries * ENTRY_BYTES, 16)


@dataclass(frozen=True, slots=True)
class Ragged(GroupOffsets):
    """The largest number of groups of rows, and the type of their offsets.

    capacity  groups that the table has room for, a power of two
    offsets   i32 or i64, `groups + 1` of them in global memory, from 0 to A's rows, none below the one before it
    masked    `groups` counts of that type in place of offsets: each group has a matrix of A, whose first rows count
    ends      `groups` ends of that type in place of offsets: the first group begins at row 0, the last may end early
    clears    rows of C from the last end on become zeros; else they are not written

    Raises PlanError for ends of masked groups, and for rows to clear where there are no ends.

    >>> Ragged.of(8), Ragged.of(100, "i64").capacity, Ragged.of(8, masked=True).words, Ragged.of(8, ends=True).name
    (Ragged(capacity=64, offsets='i32', masked=False, ends=False, clears=False), 128, ('counts',), 'ends')
    """

    TABLES: ClassVar[int] = 2
    PLACE_BYTES: ClassVar[int] = 4 * ENTRY_BYTES

    masked: bool = False
    ends: bool = False
    clears: bool = False

    def __post_init__(self) -> None:
        GroupOffsets.__post_init__(self)
        if self.masked and self.ends:
            raise PlanError("masked groups have counts, not ends")
        if self.clears and not self.ends:
            raise PlanError("clears: offsets leave no row, and rows that do not count stay; it is for ends")

    @classmethod
    @checked(PlanError)
    def of(
        cls, groups: int, offsets: str = "i32", masked: bool = False, ends: bool = False, clears: bool = False
    ) -> Ragged:
        """Room for `groups` groups. Raises PlanError for any other number of groups."""
        return cls(capacity_for(groups), offsets, masked, ends, clears)

    @property
    def name(self) -> str:
        """The array in global memory that says where groups end."""
        return "counts" if self.masked else "ends" if self.ends else "offsets"

    @checked(PlanError)
    def numbers(self, groups: int) -> int:
        """The number of offsets, ends or counts of `groups` groups."""
        return groups + (not (self.masked or self.ends))

    @checked(PlanError)
    def read(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers as a kernel reads them, from what `take` gives."""
        return numbers[1:] if self.ends else numbers

    @property
    def leaves_rows(self) -> bool:
        """True if rows of C may be in no group, and stay as they are."""
        return self.ends and not self.clears

    @property
    def missing(self) -> str:
        """The meaning of the offsets, or of the counts, for an error."""
        return "how many rows of each group count" if self.masked else "where the groups of rows begin and end"

    @checked(PlanError)
    def take(self, numbers: object, sizes: tuple[int, int, int, int]) -> npt.NDArray[np.int64]:
        """NumPy offsets or counts as int64. Raises OperandError for others than the plan's, or that are no groups.

        sizes  M, N, K and the groups

        Of ends the offsets are given.

        >>> Ragged.of(2, ends=True).take(np.array([3, 5], np.int32), (8, 64, 64, 2)).tolist()
        [0, 3, 5]
        """
        found, rows = checked_numbers(self.name, numbers, self.offsets, self.numbers(sizes[3])), sizes[0]
        if self.ends:
            return offsets_of(found, rows, "rows")
        if not self.masked:
            check_ends(found, rows, "rows")
        elif (outside := (found < 0) | (found > rows)).any():
            at = int(np.argmax(outside))
            raise OperandError(f"counts[{at}] = {found[at]}: a has 0 to {rows} rows in a group")
        return found

    @checked(PlanError)
    def rows(self, entry: Callable[[W], W], group: W) -> tuple[W, W]:
        """First row and end of a group in its matrix of C. Ints or traced integers alike.

        entry  group -> its entry of the first table, for 0 to capacity

        >>> Ragged(64).rows(lambda group: 3 * group, 1), Ragged(64, masked=True).rows(lambda group: 7, 1)
        ((3, 6), (0, 7))
        """
        return (group * 0, entry(group)) if self.masked else (entry(group), entry(group + 1))

    @checked(PlanError)
    def lines(self, entry: Callable[[W], W], group: W, each: W) -> tuple[W, W]:
        """First line and end of a group where all groups lie in one matrix. Ints or traced integers alike.

        each  lines of a masked group, of which its first ones count

        >>> Ragged(64).lines(lambda group: 3 * group, 1, 9), Ragged(64, masked=True).lines(lambda group: 7, 2, 9)
        ((3, 6), (18, 25))
        """
        start, end = self.rows(entry, group)
        return (group * each + start, group * each + end) if self.masked else (start, end)

    @checked(PlanError)
    def counting(self, numbers: npt.NDArray[np.int64], lines: int) -> npt.NDArray[np.bool_]:
        """True for each of the lines of one matrix that is of a group.

        numbers  as `read` gives them, of groups that fill the matrix, or of masked groups of one size

        >>> Ragged(64, masked=True).counting(np.array([1, 2]), 6).tolist()
        [True, False, False, True, True, False]
        """
        if not self.masked:
            return np.ones(lines, dtype=bool)
        return (np.arange(lines // len(numbers)) < np.asarray(numbers)[:, None]).reshape(-1)

    @checked(PlanError)
    def find(self, first: Callable[[Any], Any], tile: Integer, choose: Callable[[Any, Any, Any], Any]) -> Any:
        """The last group whose first tile is not after `tile`: ints or traced integers alike.

        first   group -> its first tile, for 0 to capacity - 1; past the last group the number of all tiles
        choose  (condition, yes, no) -> one of them

        >>> tiles = [0, 3, 3, 5] + [6] * 61  # groups of 3, 0, 2 and 1 tiles
        >>> [Ragged(64).find(tiles.__getitem__, t, lambda c, x, y: x if c else y) for t in range(6)]
        [0, 0, 0, 2, 2, 3]
        """
        group: Any = 0
        span = self.capacity
        while span > 1:
            step = -(-span // _WAYS)
            group += sum(choose(first(group + each) <= tile, step, 0) for each in range(step, span, step))
            span = step
        return group


@dataclass(frozen=True, slots=True)
class AlongK(GroupOffsets):
    """The largest number of groups along K, and the type of their offsets.

    capacity  groups that the table has room for, a power of two
    offsets   i32 or i64, `groups + 1` of them in global memory, from 0 to K, none below the one before it
    ends      `groups` ends of that type in place of offsets: the first group begins at line 0, the last may end early
    multiple  of the offsets: 1 for groups that begin at any line, 128 for floats of 8 bits

    >>> AlongK.of(8), AlongK.of(100, "i64").bytes, AlongK.of(8, ends=True).words
    (AlongK(capacity=64, offsets='i32', ends=False, multiple=1), 528, ('ends',))
    """

    ends: bool = False
    multiple: int = 1

    def __post_init__(self) -> None:
        GroupOffsets.__post_init__(self)
        if self.multiple not in (1, DEPTH):
            raise PlanError(f"multiple = {shown(self.multiple)}: groups along K begin at any line, 1, or at {DEPTH}")

    @classmethod
    @checked(PlanError)
    def of(cls, groups: int, offsets: str = "i32", ends: bool = False, multiple: int = 1) -> AlongK:
        """Room for `groups` groups. Raises PlanError for any other number of groups."""
        return cls(capacity_for(groups), offsets, ends, multiple)

    @property
    def in_blocks(self) -> bool:
        """True if groups begin at blocks of K."""
        return self.multiple > 1

    @property
    def name(self) -> str:
        """The array in global memory that says where groups end."""
        return "ends" if self.ends else "offsets"

    @checked(PlanError)
    def read(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """The numbers as a kernel reads them, from what `take` gives."""
        return numbers[1:] if self.ends else numbers

    @property
    def missing(self) -> str:
        """The meaning of the offsets, for an error."""
        return "where the groups of K begin and end"

    @checked(PlanError)
    def numbers(self, groups: int) -> int:
        """The number of offsets or ends of `groups` groups."""
        return groups + (not self.ends)

    @checked(PlanError)
    def take(self, offsets: object, sizes: tuple[int, int, int, int]) -> npt.NDArray[np.int64]:
        """NumPy offsets as int64. Raises OperandError for others than the plan's, or that are no groups of K.

        sizes  M, N, K and the groups

        Of ends the offsets are given.
        """
        found = checked_numbers(self.name, offsets, self.offsets, self.numbers(sizes[3]))
        if not self.ends:
            check_ends(found, sizes[2], "columns")
        check_multiples(self.name, found.tolist(), self.multiple, sizes[2])
        return offsets_of(found, sizes[2], "columns, K") if self.ends else found


def check_room(name: str, groups: object, kind: type[GroupOffsets], count: int) -> None:
    """Raise PlanError for anything but groups of a kind, or without room for them all."""
    if not isinstance(groups, kind) or count > groups.capacity:
        raise PlanError(f"{name} = {shown(groups)}, batch = {count}: {kind.__name__}.of(groups) has room for them")


def check_masked(groups: Ragged, lines: int, count: int, name: str) -> None:
    """Raise PlanError for lines that are no `count` masked groups of one size.

    >>> check_masked(Ragged.of(3, masked=True), 20, 3, "m")
    Traceback (most recent call last):
        ...
    layoutgemm.errors.PlanError: m = 20 = 6 * 3 + 2: masked groups are of one size, 3 of them
    """
    if groups.masked and lines % count:
        each, rest = divmod(lines, count)
        raise PlanError(f"{name} = {lines} = {each} * {count} + {rest}: masked groups are of one size, {count} of them")


def masked_rows(most: int) -> int:
    """The rows a group that masked groups are estimated for, of `most` at most. The host knows no counts.

    Tiles of 128 rows. For few rows a group, memory bounds them still: a tile of B of 128 bytes of K and its products
    take 1.4 us at 1/132 of 3 TB/s, and 0.6 us. For many, they are the tiles of 193 to 1024 rows.

    >>> masked_rows(20), masked_rows(4096)
    (20, 128)
    """
    return min(most, _MASKED_ROWS)


def check_multiples(name: str, numbers: list[int], multiple: int, k: int) -> None:
    """Raise OperandError, naming the first, for offsets inside of a block of K.

    >>> check_multiples("offsets", [0, 128, 300], 128, 300)
    >>> check_multiples("offsets", [0, 64, 300], 128, 300)
    Traceback (most recent call last):
        ...
    layoutgemm.errors.OperandError: offsets[1] = 64 = 0 * 128 + 64: groups of K in blocks begin at multiples of 128, \
and end there or at K = 300
    """
    for e, number in enumerate(numbers):
        if is_inside(number, multiple, k):
            raise OperandError(
                f"{name}[{e}] = {number} = {number // multiple} * {multiple} + {number % multiple}: groups of K in "
                f"blocks begin at multiples of {multiple}, and end there or at K = {k}"
            )


def is_inside(line: W, multiple: int, k: W) -> bool:
    """True if an offset is inside of a block; ints or traced integers."""
    return (line % multiple != 0) & (line != k)


def capacity_for(groups: int) -> int:
    """The entries of a table of `groups` groups: a power of two. Raises PlanError for fewer than one group.

    >>> capacity_for(3), capacity_for(65)
    (64, 128)
    """
    if groups < 1:
        raise PlanError(f"ragged = {shown(groups)}: how many groups there are, 1 or more")
    return max(_LEAST_GROUPS, 1 << (groups - 1).bit_length())


def offsets_of(ends: npt.NDArray[np.int64], size: int, things: str) -> npt.NDArray[np.int64]:
    """The offsets of groups with these ends. Raises OperandError, with the first wrong one, for no groups' ends.

    >>> offsets_of(np.array([3, 5]), 8, "rows").tolist()
    [0, 3, 5]
    """
    found = np.concatenate([np.zeros(1, np.int64), ends])
    if (steps := np.diff(found) < 0).any() or found[-1] > size:
        at = int(np.argmax(steps)) if steps.any() else len(found) - 2
        raise OperandError(f"ends[{at}] = {found[at + 1]}: they are 0 to A's {size} {things}, in order")
    return found


def check_ends(offsets: npt.NDArray[np.int64], size: int, things: str) -> None:
    """Raise OperandError, with the first wrong one, for offsets that are no groups."""
    steps = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != size or (steps < 0).any():
        at = int(np.argmax(steps < 0)) if (steps < 0).any() else 0 if offsets[0] else len(steps)
        raise OperandError(
            f"offsets[{at}] = {offsets[at]}"
            + (f", offsets[{at + 1}] = {offsets[at + 1]}" if (steps < 0).any() else "")
            + f": they go from 0 to A's {size} {things}, none below the one before it"
        )


def sample_sizes(most: int, tile: int, wrong: Sequence[int] = ()) -> list[npt.NDArray[np.int64]]:
    """Sizes of groups, up to `most` of them. Many are 0 or end at a tile's border, some are `wrong`."""
    rng, sizes = np.random.default_rng(0), [0, 0, 1, tile - 1, tile, tile + 1, 2 * tile, 3 * tile + 5, *wrong]
    found = [np.asarray(few, np.int64) for few in ([0], [1], [0] * (most - 1) + [tile + 1])]
    return found + [rng.choice(sizes, groups) for groups in (1, 2, 7, most - 1, most) for _ in range(3)]


def sample_offsets(most: int, tile: int) -> list[npt.NDArray[np.int64]]:
    """Offsets of groups of such sizes."""
    return [np.concatenate([[0], np.cumsum(each)]) for each in sample_sizes(most, tile)]


def check_writes_of_groups(epilogue: Epilogue | None) -> None:
    """Raise PlanError for an epilogue of groups of rows that writes more than C."""
    written = [given.name for given in epilogue.given if given.written] if epilogue else []
    if written or (epilogue and epilogue.reductions):
        name = written[0] if written else "a reduction"
        raise PlanError(f"the epilogue writes {name}: a tile reaches into the next group, and would write there")
