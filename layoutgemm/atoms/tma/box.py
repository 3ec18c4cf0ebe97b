"""The boxes of a tile. Walk through shared memory, and see how far one rectangle of the tensor follows.

Leaf           one mode of the global layout without nesting, with the tile's extent and step along it
Entry          (count, leaf or dimension, step, shared stride): a digit of the walk through the tile
MapDimension   one dimension of a tensor map: a leaf, several that continue each other, or a part of one
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from ...arguments import Integer, shown
from ...errors import TmaError
from ...layouts import Layout
from ...layouts.int_tuple import leaves as flat_entries
from .rules import MAX_BOX, MAX_STEP, MODES, SMEM_UNIT, STRIDE_UNIT, Format, multiple

# count, index of a leaf or dimension (-1: none), step in its elements, stride in shared memory, elements
Digit = tuple[Integer | None, tuple[tuple[int, int], ...]]
Entry = tuple[int, int, int, int]
MAX_CHOICES = 64  # ways of merging that are tried


@dataclass(frozen=True)
class Leaf:
    """One mode of the global layout: extent, stride in elements, and the tile's part."""

    name: str
    mode: int
    extent: Integer
    stride: Integer
    tile: int
    step: int = 1

    @property
    def repeats(self) -> bool:
        """True if all its coordinates are one address."""
        return isinstance(self.stride, int) and self.stride == 0


@dataclass
class MapDimension:
    """One dimension of a tensor map. The leaves in it, each with its weight, in units of `unit` elements."""

    name: str
    parts: list[tuple[Leaf, Integer]]
    extent: Integer
    stride: Integer
    unit: Integer = 1
    inner: bool = False  # the inner part of a split dimension: its coordinate never moves
    step: int = 1
    leaves: list[Leaf] = field(default_factory=list)


# dimensions, elements of the box along each, the walk that is left
Choice = tuple[list[MapDimension], list[int], list[Entry]]


def leaves_of(gmem: Layout, tile: tuple[object, ...], names: Sequence[str]) -> list[Leaf]:
    """The leaves of the global layout with the tile's parts. They come in order of the tile's flat index."""
    modes = list(gmem)
    if len(tile) != len(modes):
        raise TmaError(f"a tile {shown(tile)} for the {len(modes)} modes of {gmem}", rule="tile")
    leaves: list[Leaf] = []
    for i, (mode, part) in enumerate(zip(modes, tile, strict=True)):
        try:
            leaves += _leaves(mode.shape, mode.stride, part, i, names[i])
        except TmaError:
            merged = mode.coalesce()
            if isinstance(part, tuple) or merged.shape == mode.shape:
                raise
            leaves += _leaves(merged.shape, merged.stride, part, i, names[i])
    return leaves


def _leaves(shape: Any, stride: Any, tile: object, mode: int, name: str) -> list[Leaf]:
    if not isinstance(shape, tuple):
        return [_leaf(shape, stride, tile, mode, name)]
    if isinstance(tile, tuple):
        if len(tile) != len(shape):
            raise TmaError(f"a tile {shown(tile)} for the modes {shape} of {name}", rule="tile")
        parts = zip(shape, stride, tile, strict=True)
        return [leaf for i, part in enumerate(parts) for leaf in _leaves(*part, mode, f"{name}.{i}")]
    flat_shape, flat_stride = flat_entries(shape), flat_entries(stride)
    if tile is None:
        tiles: list[int | None] = [None] * len(flat_shape)
    elif isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
        raise TmaError(f"a tile of {shown(tile)} along the nested mode {shape} of {name}", rule="tile")
    else:
        tiles, left = [], tile
        for place, extent in enumerate(flat_shape):
            if place == len(flat_shape) - 1 or multiple(extent, left):
                take = left
            elif isinstance(extent, int) and left % extent == 0:
                take = extent
            else:
                raise TmaError(
                    f"tiles of {tile} along {name} straddle its mode of extent {extent} in {shape}", rule="tile"
                )
            tiles.append(take)
            left //= take
    parts = zip(flat_shape, flat_stride, tiles, strict=True)
    return [_leaf(*part, mode, f"{name}.{i}") for i, part in enumerate(parts)]


def _leaf(extent: Integer, stride: Integer, tile: Any, mode: int, name: str) -> Leaf:
    step: int = 1
    if isinstance(tile, Layout):
        tile, step = tile.shape, tile.stride
        if isinstance(tile, tuple) or not isinstance(step, int) or (step < 1 and tile != 1):
            raise TmaError(f"a tile along {name} is n:s, every s-th of n elements", rule="tile")
        step = step if tile != 1 else 1
    if tile is None:
        tile = extent
    if isinstance(tile, bool) or not isinstance(tile, int) or tile < 1:
        raise TmaError(f"the tile takes {shown(tile)} elements of {name}: a tile is of one size", rule="tile")
    return Leaf(name, mode, extent, stride, tile, step)


def walk_of(leaves: Sequence[Leaf], smem: Layout) -> list[Entry]:
    """The tile as digits, each inside one leaf and one mode of the shared layout. They come in order of shared strides.

    Raises TmaError where the shared layout cuts the tile elsewhere than the global layout does.
    """
    size = 1
    for leaf in leaves:
        size *= leaf.tile
    if size != smem.size:
        takes = "x".join(str(leaf.tile) for leaf in leaves)
        raise TmaError(f"the tile has {takes} = {size} elements, the shared layout {smem} has {smem.size}", rule="tile")
    flat = smem.coalesce()
    modes = list(zip(flat_entries(flat.shape), flat_entries(flat.stride), strict=True))
    walk: list[Entry] = []
    count, stride = modes.pop(0)
    for i, leaf in enumerate(leaves):
        left, step = leaf.tile, leaf.step
        while left > 1:
            if count == 1:
                count, stride = modes.pop(0)
            if count % left == 0:
                take = left
            elif left % count == 0:
                take = count
            else:
                raise TmaError(
                    f"the shared layout {smem} has a mode of extent {count} where the tile has {left} left along "
                    f"{leaf.name}: neither divides the other",
                    rule="run",
                )
            walk.append((take, i, step, stride))
            left, step = left // take, step * take
            count, stride = count // take, stride * take
    return sorted(walk, key=lambda entry: entry[3])


# ------------------------------------------------------------------------------------------------------ dimensions


def _continues(a: Leaf, b: Leaf) -> bool:
    """True if a tile is one run over a, then b, in memory. The two are then one dimension."""
    if a.repeats or b.repeats or a.step != 1 or b.step != 1:
        return False
    if not bool(b.stride == a.extent * a.stride):
        return False
    whole = isinstance(a.extent, int) and a.tile == a.extent
    return whole or (b.tile == 1 and multiple(a.extent, a.tile))


def _chains(leaves: Sequence[Leaf]) -> Iterator[dict[int, int]]:
    """Every way of merging leaves: leaf -> the one that continues it. The one that merges nothing comes first."""
    pairs = [
        (a, b)
        for a, b in itertools.permutations(range(len(leaves)), 2)
        if _continues(leaves[a], leaves[b]) and not (leaves[a].extent == 1 or leaves[b].extent == 1)
    ]
    choices = itertools.chain.from_iterable(itertools.combinations(pairs, n) for n in range(len(pairs) + 1))
    for choice in itertools.islice(choices, MAX_CHOICES - 1):
        if len({a for a, _ in choice}) == len({b for _, b in choice}) == len(choice):
            yield dict(choice)
    if len(pairs) >= MAX_CHOICES.bit_length() - 1:
        yield dict(pairs)  # many pairs: the choices above stop short of merging all


def _dims(leaves: Sequence[Leaf], chain: dict[int, int]) -> tuple[list[MapDimension], dict[int, tuple[int, Integer]]]:
    """The dimensions, and leaf -> (dimension, weight). Leaves that repeat or are 1 wide have none."""
    dims: list[MapDimension] = []
    place: dict[int, tuple[int, Integer]] = {}
    for i, leaf in enumerate(leaves):
        if leaf.repeats or (leaf.extent == 1 and leaf.tile == 1) or i in chain.values():
            continue
        parts: list[tuple[Leaf, Integer]] = []
        weight, at = 1, i
        while True:
            parts.append((leaves[at], weight))
            place[at] = (len(dims), weight)
            weight = weight * leaves[at].extent
            if at not in chain:
                break
            at = chain[at]
        dims.append(
            MapDimension("+".join(part.name for part, _ in parts), parts, weight, leaf.stride, leaves=list(leaves))
        )
    return dims, place


def plans_of(
    leaves: Sequence[Leaf], walk: Sequence[Entry], kind: Format, swizzle: str, split: bool
) -> Iterator[Callable[[], Choice]]:
    """Every choice of dimensions. Called, it gives its biggest box and the walk that is left for further instructions.

    The call raises TmaError where no box can begin.
    """
    for chain in _chains(leaves):
        for splitting in (False, True) if split else (False,):
            dims, place = _dims(leaves, chain)
            entries = [
                (count, place[leaf][0], step * place[leaf][1], stride) if leaf in place else (count, -1, 0, stride)
                for count, leaf, step, stride in walk
            ]
            yield partial(_Boxes(dims, kind, swizzle, splitting).follow, entries)


class _Boxes:
    """Follows the walk with one box. `order` are dimensions in the box, `count` their elements in it."""

    def __init__(self, dims: list[MapDimension], kind: Format, swizzle: str, split: bool) -> None:
        self.dims, self.kind, self.split = dims, kind, split
        mode = MODES[swizzle]
        self.span = mode.span * 8 // kind.smem_bits if mode.bits else 0
        self.order: list[int] = []
        self.count: dict[int, int] = {}
        self.now: dict[int, int] = {i: i for i in range(len(dims))}  # a dimension -> its last part

    def follow(self, walk: list[Entry]) -> tuple[list[MapDimension], list[int], list[Entry]]:
        """The dimensions in order, the box's elements along each, and the rest of the walk."""
        rest: list[Entry] = []
        todo = list(walk)
        while todo:
            entry = todo.pop(0)
            count, axis, step, stride = entry
            at = self._takes(axis, step, stride, last=bool(rest)) if axis >= 0 else None
            if at is None:
                if not rest and not self.order:
                    raise self._transposed(axis, step)
                rest.append(entry)
                continue
            fits = self._fit(at, count, stride)
            if fits == 1:  # the run is over, or so long that nothing more of it fits: go on along a second part
                second = self._second(axis, step, stride) if self.count[at] > 1 else None
                if second is None:
                    rest.append(entry)
                    continue
                at, fits = second, self._fit(second, count, stride)
            self.count[at] *= fits
            if fits != count:
                left = (count // fits, axis, step * fits, stride * fits)
                if self.split and fits > 1:
                    todo.insert(0, left)  # only a second part of the dimension can take it
                else:
                    rest.append(left)
        return self._ordered(rest)

    def _pitch(self, at: int) -> int:
        """Elements of shared memory from one step of a new dimension to the next; a swizzled row fills its span."""
        total = 1
        for place, i in enumerate(self.order):
            total *= self.count[i]
            if place == 0 and at != i:
                total = max(total, self.span)
        return total

    def _takes(self, axis: int, step: object, stride: int, last: bool) -> int | None:
        """The dimension of the box that a digit continues or begins; None where the box ends."""
        at = self.now[axis]
        dim = self.dims[at]
        if last:
            return None
        if at in self.count:
            if self.order[-1] == at and step == self.count[at] * dim.step * dim.unit and stride == self._pitch(at):
                if self.count[at] < self._limit(at):
                    return at
            return self._second(axis, step, stride)
        if stride != self._pitch(at) or step.__class__ is not int or step > MAX_STEP:
            return None
        if not self.order and not (step == 1 and bool(dim.stride == 1)):
            return None
        dim.step = step
        self.order.append(at)
        self.count[at] = 1
        return at

    def _second(self, axis: int, step: object, stride: int) -> int | None:
        """Split a dimension with a finished run: the box goes on along its outer part."""
        at = self.now[axis]
        dim = self.dims[at]
        run = self.count[at] * dim.step
        whole = dim.unit * run
        fits = (
            self.split and dim.step == 1 and stride == self._pitch(-1) and step == whole and multiple(dim.extent, run)
        )
        fits = fits and all(
            leaf.step == 1 and multiple(leaf.tile * weight, whole) for leaf, weight in dim.parts if leaf.tile > 1
        )
        fits = fits and all(multiple(leaf.extent * weight, whole) for leaf, weight in dim.parts[:-1])
        if not fits:
            return None
        outer = replace(dim, name=f"{dim.name}/{run}", extent=dim.extent // run, stride=dim.stride * run, unit=whole)
        dim.extent, dim.inner, dim.name = run, True, f"{dim.name}%{run}"
        self.dims.append(outer)
        self.now[axis] = len(self.dims) - 1
        self.order.append(self.now[axis])
        self.count[self.now[axis]] = 1
        return self.now[axis]

    def _limit(self, at: int) -> int:
        if at != self.order[0]:
            return MAX_BOX // self.dims[at].step
        return min(MAX_BOX, self.span or MAX_BOX, self.kind.inner_box or MAX_BOX)

    def _fit(self, at: int, count: int, stride: int) -> int:
        """The part of `count` more steps that the box takes: a divisor, at best one that leaves legal addresses."""
        limit = self._limit(at) // self.count[at]
        if count <= limit:
            return count
        divisors = [n for n in range(min(limit, count), 0, -1) if count % n == 0]
        bits = self.kind.smem_bits
        for unit in (SMEM_UNIT, STRIDE_UNIT):
            for n in divisors:
                if stride * n * bits % (8 * unit) == 0:
                    return n
        return divisors[0]

    def _transposed(self, axis: int, step: object) -> TmaError:
        dim = self.dims[axis] if axis >= 0 else None
        if dim is None:
            return TmaError(
                "shared memory runs along a mode of stride 0 first: a box has no such dimension", rule="run"
            )
        apart = dim.stride * step
        if bool(dim.stride == 1):
            text = f"shared memory takes every {step}-th element of {dim.name} first; the innermost step is 1"
            return TmaError(text, rule="step")
        return TmaError(
            f"shared memory runs along {dim.name} first, of which neighbours are {apart} elements apart in global "
            "memory; a tensor copy does not transpose",
            rule="run",
        )

    def _ordered(self, rest: list[Entry]) -> tuple[list[MapDimension], list[int], list[Entry]]:
        order = list(self.order)
        others = [i for i in range(len(self.dims)) if i not in order]
        if not order:  # a tile of one element: any contiguous dimension will do
            first = next((i for i in others if bool(self.dims[i].stride == 1)), None)
            if first is None:
                raise TmaError("no mode of the global layout is contiguous", rule="contiguous")
            others.remove(first)
            order = [first]
        order += others
        out = []
        for count, axis, step, stride in rest:
            at = self.now[axis] if axis >= 0 else -1
            if at < 0:
                out.append((count, -1, 0, stride))
                continue
            # a split dimension's digits below its unit were taken by the box
            out.append((count, order.index(at), step // self.dims[at].unit, stride))
        return [self.dims[i] for i in order], [self.count.get(i, 1) for i in order], out


def digits_of(mode: int, dims: Sequence[MapDimension]) -> tuple[Digit, ...]:
    """A tile's number along a mode as digits. Their extents, and the step of each coordinate."""
    digits: list[Digit] = []
    leaves = dims[0].leaves
    mine = [leaf for leaf in leaves if leaf.mode == mode]
    for leaf in mine:
        for start, stop in ([(1, leaf.step)] if leaf.step > 1 else []) + [(leaf.tile * leaf.step, None)]:
            adds = []
            for at, dim in enumerate(dims):
                if dim.inner:
                    continue
                for part, weight in dim.parts:
                    if part is leaf:
                        adds.append((at, start * weight // dim.unit))
            count = stop or _ceil(leaf.extent, leaf.tile * leaf.step)
            if count is None and leaf is not mine[-1]:
                raise TmaError(
                    f"how many tiles of {leaf.tile} does {leaf.name} have? {leaf.extent} is not known to be a multiple",
                    rule="tile",
                )
            digits.append((count, tuple(adds)))
    return tuple(digits)


def _ceil(extent: Integer, tile: int) -> Integer | None:
    if isinstance(extent, int):
        return -(-extent // tile)
    return extent // tile if multiple(extent, tile) else None
