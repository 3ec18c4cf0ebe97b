"""One copy instruction tiled over threads and values. Which thread moves which element of a whole tile.

A tiled copy says, for every thread and each of its values, which element of a tile it moves: `layout_tv`, (thread,
value) -> element, column-major over the tile. That map is about one side of the atom, its reference: the registers of a
copy between registers and memory, tensor memory where one side is that, else the source. What the other side names
follows from the atom:

    other thread and value of one instruction -> reference's:   right_inverse(reference) o other
    (thread, value) of the tiled copy, the same:                 zipped_divide(layout_tv, one instruction), composed

Source: `cute/atom/copy_atom.hpp` in NVIDIA/cutlass, TiledCopy; `cute.make_tiled_copy` of the CuTe DSL.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

from ...arguments import as_number, checked, plain, refusal, settle, shown
from ...errors import AtomError
from ...layouts import ComposedLayout, CounterExample, Layout, Proof, Undecided
from ...layouts.display import Convertible, HasPage, HasPicture
from ...layouts.int_tuple import ENUMERABLE
from ...layouts.proofs.verdicts import Answer, layout_of
from ...layouts.swizzle import AnyLayout, Part
from ...lazy_numpy import np
from ..copy.base import CopyAtom
from ..mma.base import whole_tiles
from .mma import TiledMma, check_thread, flat_strides, one_thread
from .thread_map import View


@dataclass(frozen=True)
class TiledCopy(HasPicture, HasPage, Convertible):
    """An atom over a tile: `cute.make_tiled_copy(atom, layout_tv, tiler)`.

    atom        the instruction
    layout_tv   (thread, value) -> element of the tile, column-major; several threads may move one element
    tiler       for each mode of the tensor which of its elements are the tile: an int n (the first n) or a Layout
    blocks      the shape (values, blocks along the rows, blocks along the columns) in which a thread's values lie in
                the fragment of the tiled product that the copy was made for; None where there is none

    Raises AtomError where one instruction needs more threads or values than there are or does not divide them, and
    where `layout_tv` leaves the tile.

    >>> from layoutgemm.atoms.tiled.derived_copies import make_tiled_copy
    >>> from layoutgemm.dtypes import bf16
    >>> vector = Layout((1, 8), (0, 1))
    >>> atom = CopyAtom("ld.global.v4.b32", ("sm_80",), bf16, 1, "gmem", "rmem", vector, vector, "PTX ISA, ld")
    >>> copy = make_tiled_copy(atom, Layout((16, 8), (8, 1)), Layout((1, 8)))
    >>> copy.threads, copy.tile, str(copy.layout_tv)
    (128, (16, 64), '((8,16),8):((128,1),16)')
    >>> copy.coverage().ok, str(copy.partition_S(9, Layout((32, 64), (64, 1)))[0])
    (True, '((8,1),2,1):((1,0),1024,0)')
    """

    atom: CopyAtom
    layout_tv: Layout
    tiler: Any
    blocks: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        settle(self, AtomError)
        tiler = plain(self.tiler if isinstance(self.tiler, (tuple, list)) else (self.tiler,))
        for mode in tiler:
            if isinstance(mode, bool) or not isinstance(mode, (int, Layout)) or (isinstance(mode, int) and mode < 1):
                raise AtomError(refusal(mode, "a mode of the tiler", "a positive integer or a Layout"))
        object.__setattr__(self, "tiler", tuple(tiler))
        tv, atom = self.layout_tv, self.atom
        if tv.rank != 2:
            raise AtomError(f"a thread-value layout has the modes thread and value; {tv} has {tv.rank}")
        if atom.thread_ids is not None and not atom.thread_ids.equivalent(Layout(atom.threads)):
            raise AtomError(
                f"{atom} runs on the threads {atom.thread_ids}: a tiled copy numbers the threads of one instruction in "
                f"a row, 0 to {atom.threads - 1}"
            )
        for name, have, need in zip(("threads", "values"), (tv[0].size, tv[1].size), self._per_instruction):
            if have % need:
                raise AtomError(
                    f"{atom} takes {need} {name} an instruction, and the tiled copy has {have} = {have // need}*{need} "
                    f"+ {have % need}: {tv}"
                )
        size = prod(self.tile)
        if tv.cosize > size or min([0, *flat_strides(tv)]) < 0:
            raise AtomError(f"{tv} leaves its tile {self.tile} of {size} elements: it reaches {tv.cosize - 1}")

    # ------------------------------------------------------------ sizes

    @property
    def threads(self) -> int:
        """The number of threads that the copy takes."""
        return int(self.layout_tv[0].size)

    @property
    def values(self) -> int:
        """The number of elements of the tile that each thread moves."""
        return int(self.layout_tv[1].size)

    @property
    def tile(self) -> tuple[int, ...]:
        """The extents of the tile, in elements."""
        return tuple(mode if isinstance(mode, int) else int(mode.size) for mode in self.tiler)

    @property
    def reference(self) -> str:
        """The side that `layout_tv` is about, "src" or "dst".

        Tensor memory where one side is that, else registers where one side is those, else the source: RefLayout in
        `cute/atom/copy_traits_sm75.hpp`, `_sm90.hpp` and `_sm100.hpp`.
        """
        for space in ("tmem", "rmem"):
            if (self.atom.source == space) != (self.atom.target == space):
                return "src" if self.atom.source == space else "dst"
        return "src"

    @property
    def _per_instruction(self) -> tuple[int, int]:
        """Threads and values of the reference that one instruction takes."""
        layout = self.atom.layout(self.reference)
        return int(layout[0].size), int(layout[1].size)

    # ------------------------------------------------------------ the maps

    @property
    def layout_src_tv(self) -> Layout:
        """(thread, (value of one instruction, instruction)) -> element of the tile, on the source side."""
        return self.tv_layout("src")

    @property
    def layout_dst_tv(self) -> Layout:
        """(thread, (value of one instruction, instruction)) -> element of the tile, on the destination side."""
        return self.tv_layout("dst")

    @checked(AtomError)
    def tv_layout(self, side: str) -> Layout:
        """(thread, (value of one instruction, instruction)) -> element of the tile on side "src" or "dst"."""
        named = self.atom.layout(side)
        instructions = whole_tiles(self.layout_tv.zipped_divide(self._per_instruction), self.layout_tv)
        if side != self.reference:
            inverse = self.atom.layout(self.reference).right_inverse()
            if named.cosize > inverse.size:
                raise AtomError(
                    f"{self.atom}: the {side} side names elements up to {named.cosize - 1}, and the registers "
                    f"{self.atom.layout(self.reference)} hold the first {inverse.size} of them"
                )
            instructions = instructions.compose((inverse.compose(named), None))
        (threads, values), (thread_rest, value_rest) = instructions[0], instructions[1]
        return Layout.join(Layout.join(threads, thread_rest).coalesce(), Layout.join(values.coalesce(), value_rest))

    @checked(AtomError)
    def partition(self, side: str, layout: object) -> Any:
        """(thread, (value of one instruction, instruction), rest, rest, ...) -> what `layout` gives for those elements.

        `layout` is the tensor on that side: offsets, coordinates, or with a swizzle; modes past the tiler's stay.
        Raises AtomError where the tile does not divide an extent, and CompositionError where no layout has the answer.
        """
        layout = layout_of(layout)
        if isinstance(layout, ComposedLayout):
            return ComposedLayout(layout.swizzle, layout.offset, self.partition(side, layout.layout))
        whole = self._divisible(layout)
        tiles = whole_tiles(whole.zipped_divide(self.tiler), whole)
        threads, values = tiles[0].compose(self.tv_layout(side))
        return Layout.join(threads, values, *tiles[1])

    def thread_value_rest(self, side: str, layout: object) -> AnyLayout:
        """The partition as one layout of three modes. (thread, value, rest) -> what `layout` gives there.

        >>> from layoutgemm.atoms.copy.vector import load_global
        >>> from layoutgemm.atoms.tiled.derived_copies import make_tiled_copy
        >>> copy = make_tiled_copy(load_global(128, "bf16"), Layout((16, 8), (8, 1)), Layout((1, 8)))
        >>> str(copy.thread_value_rest("src", Layout((32, 64), (64, 1))))
        '((8,16),(8,1),(2,1)):((8,64),(1,0),(1024,0))'
        """
        parts = self.partition(side, layout)
        inner = list(parts.layout if isinstance(parts, ComposedLayout) else parts)
        joined = Layout.join(inner[0], inner[1], Layout.join(*inner[2:]) if inner[2:] else Layout(1, 0))
        return ComposedLayout(parts.swizzle, parts.offset, joined) if isinstance(parts, ComposedLayout) else joined

    def _divisible(self, layout: object) -> Layout:
        """The layout, whose extents the tile divides. Raises AtomError for another."""
        if not isinstance(layout, Layout):
            raise AtomError(f"a tiled copy partitions a Layout or a ComposedLayout, not {shown(layout)}")
        if layout.rank < len(self.tiler):
            raise AtomError(f"the tiler has {len(self.tiler)} modes, and {layout} has {layout.rank}")
        for i, (mode, tiler) in enumerate(zip(layout, self.tiler)):
            n = self.tile[i]
            if not isinstance(mode.size, int):
                Layout(mode.size).logical_divide(tiler)  # refuses, and says what it needs
            elif mode.size % n:
                raise AtomError(
                    f"mode {i} of {layout} has {mode.size} elements, and the tile {n}: "
                    f"{mode.size} = {mode.size // n}*{n} + {mode.size % n}"
                )
            elif isinstance(tiler, Layout):
                # A tiler with gaps is filled by its own translates, or it hangs over the end.
                cut = Layout(mode.size).logical_divide(tiler)
                if cut.size != mode.size or not cut.is_bijective():
                    raise AtomError(
                        f"{tiler} and its translates do not cut the {mode.size} elements of mode {i} of {layout}: they "
                        f"are {cut.size} and reach element {cut.cosize - 1}"
                    )
        return layout

    def partition_S(self, thread: object, layout: object) -> Part:
        """((value of one instruction, instruction), rest, ...) of one thread at the source, and its offset."""
        return one_thread(self.partition("src", layout), thread, self.threads)

    def partition_D(self, thread: object, layout: object) -> Part:
        """((value of one instruction, instruction), rest, ...) of one thread at the destination, and its offset."""
        return one_thread(self.partition("dst", layout), thread, self.threads)

    @checked(AtomError)
    def get_slice(self, thread: int) -> ThreadCopy:
        """The partitions of one thread. Raises AtomError for a thread that does not take part."""
        check_thread(thread, self.threads)
        return ThreadCopy(self, thread)

    @checked(AtomError)
    def view(self, side: str, extent: tuple[Any, ...] | None = None) -> View:
        """The whole map (thread, value, rest) -> (row, column) of one side. It covers `extent` (None: one tile).

        Raises AtomError for a tile of other than two modes, and where the tiler has a Layout and no extent is given.
        """
        if len(self.tiler) != 2:
            raise AtomError(f"a view has rows and columns; the tile {self.tile} has {len(self.tile)} modes")
        if extent is None:
            if any(isinstance(mode, Layout) and mode.coalesce() != Layout(mode.size) for mode in self.tiler):
                raise AtomError(f"the tiler {', '.join(map(str, self.tiler))} is no box: say the extent of the view")
            extent = self.tile
        extent = tuple(as_number(part, "the extent of a view", AtomError) for part in extent)
        if len(extent) != 2:
            raise AtomError(f"a view has rows and columns, not the extent {shown(extent)}")
        rows, columns = extent
        threads, values, *rest = self.partition(side, Layout.identity((rows, columns)))
        return View(Layout.join(threads, values, Layout.join(*rest)), (rows, columns))

    # ------------------------------------------------------------ statements

    @checked(AtomError)
    def coverage(self, side: str | None = None) -> Answer:
        """Prove that the tile is copied whole, or give the first element that is not.

        For a side, whether it names every element of the tile; None asks it of both, and that no element is moved
        twice. Copies made for a tiled product move an element once for each thread that holds it: ask them by side.
        """
        tile = Layout(self.tile)
        if side is not None:
            return self.tv_layout(side).covers(tile)
        for name in ("src", "dst"):
            covered = self.tv_layout(name).covers(tile)
            if not covered:
                return covered
        return self.layout_tv.is_bijective()

    @checked(AtomError)
    def vectors(self, side: str, layout: object, width: int | None = None) -> Answer:
        """Prove that each instruction's values are side by side and aligned in `layout`. It is the tensor of that side.

        `width` is the number of elements of one access (None: the values of one instruction on that side). A Proof says
        that value v of an access is at v, that every access starts at a multiple of the width, and that a swizzle keeps
        that many together. With a base aligned to the width each access is one vector. A CounterExample gives the
        coordinate in (thread, access of the instruction, instruction, rest, ...), its offset and what was needed.
        """
        layout = layout_of(layout)
        inner = layout.layout if isinstance(layout, ComposedLayout) else layout
        part = self.partition(side, inner)
        one = part[1][0]
        width = int(one.size) if width is None else width
        if width < 1 or one.size % width:
            raise AtomError(f"{self.atom} has {one.size} values an instruction at its {side}, no multiple of {width}")
        access = one.with_shape((width, one.size // width))
        for v in range(width):
            if access[0](v) != v:
                said = f"value {v} of an access of {self.atom} does not follow in {layout}"
                return CounterExample(v, access[0](v), v, statement=said)
        what = f"an access of {self.atom} begins at no multiple of {width} in {layout}"
        starts = Layout.join(part[0], access[1], part[1][1], *list(part)[2:])
        flat, weight = starts.flatten(), 1
        for extent, stride in zip(flat.shape, flat.stride):
            if not isinstance(stride, int):
                Layout(width, stride).upcast(width)  # refuses, and says what it needs
            elif extent != 1 and stride % width:
                aligned = stride - stride % width
                return CounterExample(starts.coord(weight), stride, aligned, statement=what)
            weight *= extent
        if isinstance(layout, ComposedLayout):
            refuted = self._swizzled_vectors(layout, starts, width, what)
            if refuted is not None:
                return refuted
        return Proof("strides", (), (f"{width} values at consecutive offsets, every start a multiple of {width}",))

    def _swizzled_vectors(self, layout: ComposedLayout, starts: Layout, width: int, what: str) -> Answer | None:
        """The first access that a swizzle or an offset makes no vector, or None; see `vectors`."""
        start, swizzle = layout.offset, layout.swizzle
        if start % width and not swizzle.bits:
            return CounterExample(0, start, start - start % width, statement=what)
        if not swizzle.bits or (swizzle.base >= (width - 1).bit_length() and not start % width):
            return None  # whole vectors are moved
        if not isinstance(starts.size, int) or starts.size * width > ENUMERABLE:
            return Undecided(f"{swizzle} moves parts of {width} values, and {starts} has too many accesses to look at")
        values = swizzle(start + starts.offsets().reshape(-1, 1) + np.arange(width))
        wanted = values[:, :1] - values[:, :1] % width + np.arange(width)
        wrong = np.argwhere(values != wanted)
        if not len(wrong):
            return None
        access, v = map(int, wrong[0])
        said = f"value {v} of an access of {self.atom} does not follow in {layout}" if v else what
        coord = starts.coord(access)
        return CounterExample(coord, int(values[access, v]), int(wanted[access, v]), statement=said)

    # ------------------------------------------------------------ fragments

    def retile(self, fragment: object) -> Any:
        """A product's fragment (values, rest, rest, ...), as ((value of one instruction, instruction), rest, ...).

        The registers stay; the layout says which of them an instruction of this copy takes. A copy made by
        `make_tiled_copy_A`, `_B` or `_C` knows how a thread's values of one tile lie in the fragment. Another one finds
        it as CuTe does, from the positions in the tile: block b of the fragment's values is the b-th along each mode.
        That is refused where the values are in another order than the positions (a permuted product), since the
        fragment's own order is then not known; CuTe answers with the wrong registers there.

        Raises AtomError in that case, and where the fragment's values do not divide the copy's.
        """
        if isinstance(fragment, ComposedLayout):
            return ComposedLayout(fragment.swizzle, fragment.offset, self.retile(fragment.layout))
        if not isinstance(fragment, Layout):
            raise AtomError(refusal(fragment, "the fragment of retile", "a Layout"))
        if fragment.rank < 1 + len(self.tiler):
            raise AtomError(f"a fragment has the values and {len(self.tiler)} modes of rest; {fragment} has too few")
        taken, order = self._order(int(fragment[0].size))
        for i, n in enumerate(taken[1:], 1):
            if fragment[i].size % n:
                raise AtomError(f"mode {i} of the fragment {fragment} has {fragment[i].size} blocks, and a tile {n}")
        tiles = whole_tiles(fragment.zipped_divide(taken), fragment)
        split = whole_tiles(order.coalesce().zipped_divide(self._per_instruction[1]), order)
        values = tiles[0].compose(Layout.join(split[0].coalesce(), split[1]))
        return Layout.join(values, *list(tiles[1])[1:])

    @checked(AtomError)
    def feeds(self, mma: TiledMma, operand: str, extent: object = None) -> Answer:
        """Prove that the copy fills (or empties) an operand's fragments over `extent` (None: one tile).

        A Proof, element by element and for every thread: the copy puts into the registers of `retile` what the product
        expects in them. Or a CounterExample in (thread, ((values, instructions), rest, rest)) with the element that the
        copy moves and the one that the product expects. Raises AtomError as partition and retile do.
        """
        whole = Layout(mma.tile_of(operand) if extent is None else extent)
        held = mma.partition(operand, whole)
        registers = self.retile(Layout(mma.partition_shape(operand, whole.shape)))
        expected = Layout.join(held[0], Layout.join(*held[1:]).compose(registers))
        moved = self.partition(self.reference, whole)
        return Layout.join(moved[0], Layout.join(*moved[1:])).equivalent(expected)

    def _order(self, values: int) -> tuple[tuple[int, ...], Layout]:
        """The fragment's box that one tile fills, and (value of the copy) -> coordinate in it. The coordinate is
        flat."""
        if self.blocks is not None and self.blocks[0] == values:
            return self.blocks, Layout(self.values)
        whole = (values, *(1 for _ in self.tiler))
        if values >= self.values:
            if values % self.values:
                raise AtomError(f"the fragment has {values} values, no multiple of the copy's {self.values}")
            return whole, Layout(values)
        if self.values % values:
            raise AtomError(f"the copy moves {self.values} values a thread, no multiple of the fragment's {values}")
        inverse = self.layout_tv.right_inverse()
        unit = self.threads * values
        if inverse.size != prod(self.tile):
            raise AtomError(f"{self.layout_tv} does not cover the tile {self.tile}: {self.coverage(self.reference)}")
        for stride in flat_strides(inverse):
            if stride % unit and unit % stride:
                raise AtomError(
                    f"the fragment's {values} values are no block of {self.layout_tv}: {stride} and {self.threads} "
                    f"threads * {values} do not divide one another"
                )
        blocks = inverse.with_shape(self.tile).upcast(unit)
        for i, mode in enumerate(blocks):
            falls = np.nonzero(np.diff(mode.offsets()) <= 0)[0]
            if len(falls):
                at = int(falls[0])
                raise AtomError(
                    f"the order of the fragment along mode {i} is not known: blocks {at} and {at + 1} of the tile "
                    f"{self.tile} hold the values from {values * int(mode(at))} and from {values * int(mode(at + 1))} "
                    f"on; use make_tiled_copy_A, _B or _C of the product that the fragment is of"
                )
        taken = (values, *(int(mode.size) for mode in blocks))
        return taken, Layout(values).logical_product(blocks.right_inverse())

    def __str__(self) -> str:
        return f"{self.atom} tiled: {self.threads} threads, tile {self.tile}, {self.layout_tv}"


@dataclass(frozen=True)
class ThreadCopy:
    """One thread's share of a tiled copy."""

    tiled: TiledCopy
    thread: int

    def partition_S(self, layout: object) -> Part:
        """See TiledCopy.partition_S."""
        return self.tiled.partition_S(self.thread, layout)

    def partition_D(self, layout: object) -> Part:
        """See TiledCopy.partition_D."""
        return self.tiled.partition_D(self.thread, layout)

    def retile(self, fragment: object) -> Any:
        """See TiledCopy.retile."""
        return self.tiled.retile(fragment)
