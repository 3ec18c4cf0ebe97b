"""The data of a picture or a table. The offsets of a layout, the owners of a tile's elements."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any, Protocol, TypeAlias, TypeGuard, cast

from layoutgemm.arguments import as_int, refusal
from layoutgemm.errors import LayoutError
from layoutgemm.layouts import ComposedLayout, Layout, LinearLayout
from layoutgemm.layouts.basis import assemble, component, has_basis, paths_of
from layoutgemm.layouts.int_tuple import Shape, Stride, leaves
from layoutgemm.lazy_numpy import has_numpy, np

from ..arguments import shown

Offset: TypeAlias = int | tuple[int, ...]  # or a coordinate
# Tiles have up to 256 x 256 elements; cells of more are too small to be told apart.
MAX_CELLS = 1 << 16
MAX_ELEMENTS = 1 << 24  # of a tile, and held by all threads: who holds which is a table


class Drawable(Protocol):
    """An object with a shape that maps coordinates to offsets, or to coordinate tuples."""

    @property
    def shape(self) -> object:
        """A nested tuple of positive ints, or an int."""

    def __call__(self, *coord: Any) -> Any:
        """Coordinate, one argument a mode -> offset."""


def extent(mode: object) -> int:
    """Nested mode -> its number of coordinates.

    >>> extent((4, (2, 2)))
    16

    Raises LayoutError for a symbolic mode, which has no picture before its symbols have values.
    """
    if isinstance(mode, tuple):
        return prod([extent(inner) for inner in mode])
    if not isinstance(mode, (int, np.integer)):
        raise LayoutError(f"cannot draw extent {mode}: a picture needs numbers, so put them in first, as in .at(M=64)")
    return int(mode)


def pick(wanted: range | None, size: int, name: str) -> range:
    """The rows or columns to show: all, or the wanted part, which must lie inside.

    >>> pick(None, 8, "rows"), pick(range(2, 4), 8, "rows")
    (range(0, 8), range(2, 4))
    """
    if wanted is None:
        return range(size)
    if not isinstance(wanted, range):
        raise LayoutError(f"{name} is a range, as in {name}=range(8), not {shown(wanted)}")
    if length(wanted) == 0 or wanted[0] < 0 or wanted[-1] < 0 or max(wanted[0], wanted[-1]) >= size:
        raise LayoutError(f"{name}={wanted} shows nothing or leaves the {size} {name} that there are")
    return wanted


def bounded(what: object, rows: range, columns: range) -> None:
    """Raises LayoutError if the picture would have more than MAX_CELLS cells."""
    n, m = length(rows), length(columns)
    if (cells := n * m) > MAX_CELLS:
        raise LayoutError(
            f"{what} has {n} x {m} = {cells} cells to draw, more than {MAX_CELLS}: "
            f"show a part of it, for example rows=range({min(n, 64)}), columns=range({min(m, 64)})"
        )


def length(numbers: range) -> int:
    """The count of a range's numbers; len() ends at 2**63.

    >>> length(range(2**100)), length(range(9, 0, -2))
    (1267650600228229401496703205376, 5)
    """
    return max(0, -((numbers.start - numbers.stop) // numbers.step))


@dataclass(frozen=True, slots=True)
class GridOffsets:
    """A layout's value at each coordinate. `values[i][j]` is an int, or a tuple for coordinate strides."""

    rows: range
    columns: range
    values: tuple[tuple[Offset, ...], ...]


@dataclass(frozen=True, slots=True)
class Owners:
    """The holders of each element of a tile. `held[i][j]` lists (thread, value) in order of thread, then value."""

    rows: range
    columns: range
    threads: int
    held: tuple[tuple[tuple[tuple[int, int], ...], ...], ...]
    registers: tuple[tuple[int, int], ...]  # (m, n) of each value of the thread asked for
    values: int
    least: int  # holders of an element of the tile
    most: int


def numbers(value: object) -> list[Offset]:
    """Offsets as ints, or a nested tuple of arrays as flat tuples of ints."""
    if isinstance(value, tuple):
        columns = [numbers(inner) for inner in value]
        return [
            tuple(x for part in parts for x in (part if isinstance(part, tuple) else (part,)))
            for parts in zip(*columns, strict=True)
        ]
    return [int(x) for x in np.asarray(value).ravel()]


def evaluate(layout: Drawable, *coord: Iterable[int]) -> list[Offset]:
    """The layout at coordinates: an entry of each list for each value.

    >>> from layoutgemm.layouts import Layout
    >>> evaluate(Layout((4, 8), (8, 1)), [0, 1, 2], [0, 1, 2])
    [0, 9, 18]
    """
    lists = [x.tolist() if isinstance(x, np.ndarray) else list(x) for x in coord]
    found = _sums(layout, lists)
    if found is not None:
        return found
    if not has_numpy():
        return [_offset(layout(*each)) for each in zip(*lists, strict=True)]

    def spread(value: object) -> object:
        """A part that does not depend on the coordinates, once for each of them."""
        if isinstance(value, tuple):
            return tuple(spread(inner) for inner in value)
        return np.broadcast_to(np.asarray(value), len(lists[0]))

    return numbers(spread(layout(*map(np.array, lists))))


def _of_integers(layout: object) -> TypeGuard[Layout]:
    return isinstance(layout, Layout) and all(type(x) is int for x in leaves((layout.shape, layout.stride)))


def _sums(layout: object, coord: Sequence[list[int]]) -> list[Offset] | None:
    """The values of a layout of integers or coordinates, with or without swizzles: a table for each mode, or None."""
    if isinstance(layout, ComposedLayout):
        inside = _sums(layout.layout, coord)
        if inside is None or not isinstance(layout.offset, int):
            return None
        offset = layout.offset
        return cast("list[Offset]", layout.swizzle.each([x + offset for x in cast("list[int]", inside)]))
    if isinstance(layout, Layout) and has_basis(layout.stride):
        return _coordinates(layout, coord)
    if not _of_integers(layout):
        return None
    modes = [layout] if len(coord) == 1 else [layout[k] for k in range(layout.rank)]
    if len(modes) != len(coord):
        return None
    tables = [{c: mode(c) for c in set(each)} for mode, each in zip(modes, coord, strict=True)]
    first, *rest = [[table[c] for c in each] for table, each in zip(tables, coord, strict=True)]
    for more in rest:
        first = [a + b for a, b in zip(first, more, strict=True)]
    return first


def _coordinates(layout: Layout, coord: Sequence[list[int]]) -> list[Offset] | None:
    """The flat coordinates of a layout with basis strides: the values of each component; None for symbols."""
    paths = paths_of(layout.stride)
    parts = [_sums(Layout(layout.shape, component(layout.stride, path)), coord) for path in paths]
    order = leaves(assemble({path: number for number, path in enumerate(paths, 1)}))  # 0: no path leads there
    columns = [[0] * len(coord[0]), *parts]
    chosen = [columns[number] for number in order]
    return None if None in chosen else list(zip(*cast("list[list[int]]", chosen), strict=True))


def _offset(value: object) -> Offset:
    """An offset, or a nested coordinate as a flat tuple."""
    return tuple(map(int, leaves(value))) if isinstance(value, tuple) else int(cast("int", value))


def mesh(*axes: Sequence[int]) -> list[list[int]]:
    """The coordinates of a grid, one list an axis; the last axis runs fastest.

    >>> mesh(range(2), range(3))
    [[0, 0, 0, 1, 1, 1], [0, 1, 2, 0, 1, 2]]
    """
    every = list(product(*axes))
    return [[at[k] for at in every] for k in range(len(axes))]


def drawable(x: Drawable) -> Drawable:
    """`x` where it is a layout, or has its shape and its values or strides. Raises LayoutError for anything else."""
    strided = hasattr(x, "stride") and not callable(x.stride)  # a method of tensors
    if isinstance(x, type) or not hasattr(x, "shape") or not (strided or callable(x)):
        raise LayoutError(refusal(x, "what is drawn", "a layout"))
    return x


def rank_of(layout: Drawable) -> int:
    """The number of a layout's modes."""
    layout = drawable(layout)
    return len(layout.shape) if isinstance(layout.shape, tuple) else 1


def rows_by_columns(layout: Drawable) -> tuple[int, int]:
    """The extents of a layout of rank 1 (one row) or 2. Raises LayoutError for another rank and for symbols."""
    shape = drawable(layout).shape
    shape = shape if isinstance(shape, tuple) else (shape,)
    if len(shape) not in (1, 2):
        raise LayoutError(
            f"cannot draw {layout}: it has {len(shape)} modes and a picture has rows and columns; "
            "group or slice its modes until there are two"
        )
    return (1, extent(shape[0])) if len(shape) == 1 else (extent(shape[0]), extent(shape[1]))


def coordinates_of(mode: object) -> tuple[str, ...]:
    """Nested mode -> its coordinates as text, the first entry fastest.

    >>> coordinates_of((2, 2)), coordinates_of(3)
    (('(0,0)', '(1,0)', '(0,1)', '(1,1)'), ('0', '1', '2'))
    """
    if not isinstance(mode, tuple):
        return tuple(map(str, range(extent(mode))))
    slowest_first = [coordinates_of(inner) for inner in reversed(mode)]
    return tuple([f"({','.join(reversed(entries))})" for entries in product(*slowest_first)])


DIVIDES = ("logical", "zipped", "tiled", "flat")


@dataclass(frozen=True, slots=True)
class DividedLayout:
    """A divided layout by its tiles. (i, j) within the tile, (r, c) of the tile -> offset.

    layout  the result of a divide
    kind    the divide that made it: "logical", "zipped", "tiled" or "flat"
    shape   (rows, columns of a tile, rows, columns of tiles)
    vector  whether it has one mode, which lies along the columns
    """

    layout: Drawable
    kind: str
    shape: tuple[int, int, int, int]
    vector: bool = False

    @classmethod
    def of(cls, layout: Drawable, kind: str) -> DividedLayout:
        """The tiles of a layout that this divide made.

        A vector's tiles are rows, side by side. Raises LayoutError for an unknown kind, and for a shape that this
        divide does not make.

        >>> from layoutgemm.layouts import Layout
        >>> DividedLayout.of(Layout((8, 16)).zipped_divide((4, 8)), "zipped").shape
        (4, 8, 2, 2)
        >>> DividedLayout.of(Layout((5, 2), (1, 60)).zipped_divide(2), "zipped").shape
        (1, 2, 1, 6)
        """
        if kind not in DIVIDES:
            raise LayoutError(
                f"divided={shown(kind)}: a divide is {', '.join(map(repr, DIVIDES[:-1]))} or {shown(DIVIDES[-1])}"
            )
        shape = layout.shape if isinstance(layout.shape, tuple) else (layout.shape,)
        if (
            len(shape) == 2
            and (not isinstance(shape[1], tuple) or (kind == "zipped" and not isinstance(shape[0], tuple)))
            and not (kind == "logical" and isinstance(shape[0], tuple))
        ):
            return cls(layout, kind, (1, extent(shape[0]), 1, extent(shape[1])), vector=True)
        modes: tuple[object, ...] = ()
        if kind == "flat":
            modes = shape
        elif kind == "tiled" and len(shape) == 3:
            modes = (*pair(shape[0]), *shape[1:])
        elif kind in ("zipped", "logical") and len(shape) == 2:
            (a, *b), (c, *d) = pair(shape[0]), pair(shape[1])
            modes = (a, *b, c, *d) if kind == "zipped" else (a, c, *b, *d)
        if len(modes) != 4 or (kind != "flat" and len(pair(shape[0])) != 2):
            raise LayoutError(
                f"divided={shown(kind)}: {layout} is not the {kind} divide of a matrix or a vector; that of a "
                "matrix has "
                f"the shape {SHAPES[kind]}"
            )
        rows, columns, down, across = map(extent, modes)
        return cls(layout, kind, (rows, columns, down, across))

    def __call__(self, i: Any, j: Any, r: Any, c: Any) -> object:
        """Element (i, j) of tile (r, c) -> offset."""
        if self.vector:
            return self.layout(j, c)
        rows, columns, down, _ = self.shape
        modes = {
            "logical": (i + rows * r, j + columns * c),
            "zipped": (i + rows * j, r + down * c),
            "tiled": (i + rows * j, r, c),
            "flat": (i, j, r, c),
        }
        return self.layout(*modes[self.kind])

    def by_modes(self) -> Drawable:
        """The layout of these four modes, which is its own sum of four tables. Itself where it has not such modes.

        >>> from layoutgemm.layouts import Layout
        >>> print(DividedLayout.of(Layout((8, 16), (16, 1)).zipped_divide((4, 8)), "zipped").by_modes())
        (4,8,2,2):(16,1,64,8)
        """
        swizzled = self.layout if isinstance(self.layout, ComposedLayout) else None
        layout = self.layout if swizzled is None else swizzled.layout
        if self.vector or not _of_integers(layout):
            return self
        top = _entries(layout.shape, layout.stride)
        modes = top
        if self.kind != "flat":
            first, rest = _entries(*top[0]), top[1:]
            second = rest if self.kind == "tiled" else _entries(*rest[0])
            modes = [first[0], second[0], first[1], second[1]] if self.kind == "logical" else [*first, *second]
        flat = Layout(tuple([shape for shape, _ in modes]), tuple([stride for _, stride in modes]))
        return flat if swizzled is None else ComposedLayout(swizzled.swizzle, swizzled.offset, flat)

    def coordinate(self, i: int, j: int, r: int, c: int) -> str:
        """The coordinate in the divided layout, nested as its shape is."""
        if self.vector:
            return f"({j},{c})"
        return {
            "logical": f"(({i},{r}),({j},{c}))",
            "zipped": f"(({i},{j}),({r},{c}))",
            "tiled": f"(({i},{j}),{r},{c})",
            "flat": f"({i},{j},{r},{c})",
        }[self.kind]

    def __str__(self) -> str:
        return str(self.layout)


def _entries(shape: Shape, stride: Stride) -> list[tuple[Shape, Stride]]:
    """The modes of a layout as (shape, stride); an int is its own only one."""
    if isinstance(shape, tuple) and isinstance(stride, tuple):
        return list(zip(shape, stride, strict=True))
    return [(shape, stride)]


SHAPES = {
    "logical": "((tile, tiles), (tile, tiles))",
    "zipped": "((tile, tile), (tiles, tiles))",
    "tiled": "((tile, tile), tiles, tiles)",
    "flat": "(tile, tile, tiles, tiles)",
}


def pair(mode: object) -> tuple[object, ...]:
    """The entries of a nested mode; an int is its own only one."""
    return mode if isinstance(mode, tuple) else (mode,)


class UnwrappedLayout:
    """A layout of one nested mode by the modes inside it.

    A subscript takes such tiles of a divided layout.

    >>> from layoutgemm.layouts import Layout
    >>> tile = UnwrappedLayout(Layout((8, 8), (8, 1)).zipped_divide((2, 4))[:, (1, 0)])
    >>> tile.shape, tile(1, 2)
    ((2, 4), 26)
    """

    def __init__(self, layout: Drawable) -> None:
        self.layout, self.shape, self._brackets = layout, drawable(layout).shape, 0
        while isinstance(self.shape, tuple) and len(self.shape) == 1 and isinstance(self.shape[0], tuple):
            self.shape, self._brackets = self.shape[0], self._brackets + 1

    @classmethod
    def of(cls, layout: Drawable) -> Drawable:
        """The layout itself where it has not one nested mode alone."""
        made = cls(layout)
        return made if made._brackets else layout

    def __call__(self, *coord: Any) -> object:
        """Coordinate inside the nested mode -> offset."""
        inside: object = coord if len(coord) > 1 else coord[0]
        for _ in range(self._brackets):
            inside = (inside,)
        return self.layout(inside)

    def __str__(self) -> str:
        return str(self.layout)


def as_layout(layout: Drawable) -> Drawable:
    """A matrix over GF(2) as a layout if it is one, others as they are.

    >>> print(as_layout(LinearLayout((16, 8, 32, 64), bits=(2, 2), names=("register", "lane"))))
    ((2,2),4):((16,8),32)
    """
    if not isinstance(layout, LinearLayout):
        return layout
    for form in (layout.to_layout, layout.to_composed):
        try:
            return form()
        except LayoutError:
            continue
    return layout


def by_threads(tv: Drawable) -> Drawable:
    """Triton's (register, lane, warp, block) as (thread, value), other layouts as they are.

    Lanes run fastest among the threads, then warps, then blocks.

    >>> print(by_threads(LinearLayout((16, 8, 32, 64), bits=(2, 2), names=("register", "lane"))))
    (4,(2,2)):(32,(16,8))
    """
    if not isinstance(tv, LinearLayout) or not {"register", "lane"} <= set(tv.names):
        return as_layout(tv)
    columns, start = {}, 0
    for name, bits in zip(tv.names, tv.bits, strict=True):
        columns[name] = tv.columns[start : start + bits]
        start += bits
    values = columns.pop("register")
    threads = tuple([c for name in ("lane", "warp", "block") for c in columns.pop(name, ())])
    if columns:
        raise LayoutError(
            f"threads are of lane, warp and block: {as_layout(tv)} has {', '.join(columns)} beside register"
        )
    modes = (len(threads), len(values))
    return as_layout(LinearLayout((*threads, *values), modes, ("thread", "value"), tv.width, tv.offset))


def offsets_of(layout: Drawable, rows: range | None = None, columns: range | None = None) -> GridOffsets:
    """Layout of rank 1 or 2 -> the offset of every coordinate shown. Raises LayoutError for others."""
    height, width = rows_by_columns(layout)
    rows, columns = pick(rows, height, "rows"), pick(columns, width, "columns")
    bounded(layout, rows, columns)
    return _plane(layout, rows, columns, ())


def _plane(layout: Drawable, rows: range, columns: range, rest: Sequence[int]) -> GridOffsets:
    """The offsets at the rows and columns, and at one coordinate of the further modes."""
    found = _rows(layout, rows, columns, rest)
    if found is not None:
        return GridOffsets(rows, columns, found)
    i, j = mesh(rows, columns)
    at = (i, j, *[[c] * len(i) for c in rest]) if rank_of(layout) > 1 else (j,)
    flat, width = evaluate(layout, *at), len(columns)
    return GridOffsets(rows, columns, tuple(tuple(flat[r * width : (r + 1) * width]) for r in range(len(rows))))


def _rows(
    layout: object, rows: Sequence[int], columns: Sequence[int], rest: Sequence[int]
) -> tuple[tuple[int, ...], ...] | None:
    """The offsets of a layout of integers, swizzled or not, as rows: a sum for each cell. None for another layout."""
    if isinstance(layout, ComposedLayout):
        inside, offset = _rows(layout.layout, rows, columns, rest), layout.offset
        if inside is None or not isinstance(offset, int):
            return None
        return tuple([tuple(layout.swizzle.each([x + offset for x in row])) for row in inside])
    if not _of_integers(layout):
        return None
    if layout.rank == 1:
        return (tuple([layout(c) for c in columns]),)
    down, along = layout[0], layout[1]
    first = sum([layout[2 + k](c) for k, c in enumerate(rest)])
    across = [first + along(c) for c in columns]
    return tuple([tuple([x + y for y in across]) for x in [down(r) for r in rows]])


def planes_of(
    layout: Drawable, rows: range | None = None, columns: range | None = None, planes: range | None = None
) -> list[tuple[tuple[int, ...], GridOffsets]]:
    """Layout of any rank -> the offsets, for each coordinate of the modes past the second.

    `planes` is a part of those, by their flat index. Raises LayoutError for symbols, and for more than MAX_CELLS cells
    in all.

    >>> from layoutgemm.layouts import Layout
    >>> [(rest, plane.values) for rest, plane in planes_of(Layout((1, 2, 2)))]
    [((0,), ((0, 1),)), ((1,), ((2, 3),))]
    """
    layout = UnwrappedLayout.of(layout)
    summed = layout.by_modes() if isinstance(layout, DividedLayout) else layout
    if rank_of(layout) <= 2:
        pick(planes, 1, "planes")
        return [((), offsets_of(layout, rows, columns))]
    shape = layout.shape if isinstance(layout.shape, tuple) else ()
    height, width, *rest = map(extent, shape)
    rows, columns = pick(rows, height, "rows"), pick(columns, width, "columns")
    numbers = pick(planes, prod(rest), "planes")
    each, count = length(rows) * length(columns), length(numbers)
    if each * count > MAX_CELLS and each <= MAX_CELLS:
        raise LayoutError(
            f"{layout} has {count} planes of {length(rows)} x {length(columns)} cells, {each * count} to draw, more "
            f"than {MAX_CELLS}: show a part of it, for example planes=range({min(count, MAX_CELLS // each)})"
        )
    bounded(layout, rows, columns)
    out = []
    for number_ in numbers:
        at, left = [], number_
        for size in rest:
            at.append(left % size)
            left //= size
        out.append((tuple(at), _plane(summed, rows, columns, at)))
    return out


def thread_value(tv: Drawable) -> tuple[int, int]:
    """The numbers of threads and values. Raises LayoutError for a layout that has not two modes."""
    shape = drawable(tv).shape
    if not isinstance(shape, tuple) or len(shape) != 2:
        raise LayoutError(f"{tv} is not a thread-value layout: that has two modes, threads and values")
    return extent(shape[0]), extent(shape[1])


def owners_of(
    tv: Drawable, tile: Sequence[int], rows: range | None = None, columns: range | None = None, thread: int = 0
) -> Owners:
    """Thread-value layout over a tile (M, N) -> the holders of each element shown.

    The layout maps (thread, value) to m + M*n (the tile counted column by column) or to the pair (m, n).
    Raises LayoutError if it has not two modes, leaves the tile, or would need more than MAX_CELLS cells.
    """
    m_extent, n_extent = [as_int(extent, "an extent of the tile", least=1) for extent in tile]
    threads, values = thread_value(tv)
    if not 0 <= thread < threads:
        raise LayoutError(f"{tv} has threads 0 to {threads - 1}: there is no thread {thread}")
    rows, columns = pick(rows, m_extent, "rows"), pick(columns, n_extent, "columns")
    bounded(tv, rows, columns)
    counts = {"pairs of a thread and a value": threads * values, "elements in the tile": m_extent * n_extent}
    for what, count in counts.items():
        if count > MAX_ELEMENTS:
            raise LayoutError(f"{tv} has {count} {what}, more than {MAX_ELEMENTS}: too many to tell who holds which")
    t, v = mesh(range(threads), range(values))
    m, n = rows_and_columns(evaluate(tv, t, v), m_extent)
    if min(m) < 0 or max(m) >= m_extent or min(n) < 0 or max(n) >= n_extent:
        first = next(k for k, (i, j) in enumerate(zip(m, n)) if not (0 <= i < m_extent and 0 <= j < n_extent))
        who = t[first], v[first]
        raise LayoutError(
            f"{tv} leaves the tile ({m_extent}, {n_extent}): thread {who[0]}, value {who[1]} gives {tv(*who)}, "
            f"which is row {m[first]}, column {n[first]}"
        )
    own = slice(thread * values, (thread + 1) * values)
    registers = tuple(zip(m[own], n[own], strict=True))
    return gathered(m, n, (threads, values), (m_extent, n_extent), rows, columns, registers)


def rows_and_columns(found: Sequence[Offset], m_extent: int) -> tuple[list[int], list[int]]:
    """Values of a thread-value layout as rows and columns. They are of m + M*n, or of the pair (m, n).

    >>> rows_and_columns([5, 2], 4), rows_and_columns([(1, 1), (2, 0)], 4)
    (([1, 2], [1, 0]), ([1, 2], [1, 0]))
    """
    if found and isinstance(found[0], tuple):  # a layout has coordinates everywhere, or nowhere
        pairs = [(*x, 0)[:2] for x in cast("Sequence[tuple[int, ...]]", found)]
        return [m for m, _ in pairs], [n for _, n in pairs]
    offsets = cast("Sequence[int]", found)
    return [x % m_extent for x in offsets], [x // m_extent for x in offsets]


def gathered(
    m: Sequence[int],
    n: Sequence[int],
    shape: tuple[int, int],
    tile: tuple[int, int],
    rows: range,
    columns: range,
    registers: tuple[tuple[int, int], ...] = (),
) -> Owners:
    """Owners from the (row, column) of all (thread, value), threads in order."""
    threads, values = shape
    width = tile[1]
    holders: list[tuple[tuple[int, int], ...]] = [()] * (tile[0] * width)
    places = [i * width + j for i, j in zip(m, n, strict=True)]
    for place, holder in zip(places, product(range(threads), range(values)), strict=True):
        before = holders[place]
        holders[place] = (*before, holder) if before else (holder,)
    counts = list(map(len, holders))
    cells = tuple([tuple([holders[r * width + c] for c in columns]) for r in rows])
    return Owners(rows, columns, threads, cells, registers, values, min(counts), max(counts))
