"""Copy instructions as values: which thread reads and writes which element.

A copy atom moves the elements of a small reference tile, numbered 0, 1, 2, ... Two thread-value layouts give, for every
thread and each of its values, the element that it names on the source side and on the destination side. Where a thread
only supplies an address (ldmatrix) the values of that side are the elements at that address.

The accesses to shared memory follow from the same two layouts: the lanes that supply an address (`address_threads`),
the lanes served together (`phases`), and the bytes at each address (`accesses`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

from ...arguments import checked, settle, shown
from ...dtypes import DType, dtype
from ...errors import AtomError
from ...layouts import E, Layout
from ...layouts.display import Convertible, HasPage, HasPicture
from ...lazy_numpy import np
from ..targets import since

SPACES = ("gmem", "smem", "rmem", "tmem")
SIDES = ("src", "dst")
WARP = 32
VECTOR_BYTES = 16  # of a thread's widest access: PTX ISA, "ld", "st", "cp.async"

# Bytes that one lane accesses -> lanes of a warp that shared memory serves in one pass. A pass delivers 128 bytes, 4
# from each of 32 banks (CUDA C++ Programming Guide, "Shared Memory"), so accesses of 8 bytes go by half-warps and of 16
# bytes by quarter-warps; a row of ldmatrix or stmatrix is such an access of 16 bytes, eight addresses to a matrix.
PHASE_LANES = {1: 32, 2: 32, 4: 32, 8: 16, 16: 8}

_Copy = TypeVar("_Copy", bound="CopyAtom")


def lane_copy(make: Callable[..., _Copy], kind: DType, bits: int, moved: str, section: str, /, **own: object) -> _Copy:
    """An instruction of one lane, which moves `bits` that lie side by side.

    make     the atom's class; `own` are its fields beside those that follow
    moved    the bits in words
    section  of the PTX ISA

    Raises AtomError for bits that are no whole elements.
    """
    if bits % kind.bits:
        raise AtomError(f"{moved} hold no whole elements of {kind} ({kind.bits} bits)")
    map_ = Layout((1, bits // kind.bits), (0, 1))
    reference = f'PTX ISA, "Data Movement and Conversion Instructions: {section}"'
    return make(element=kind, threads=1, layout_src=map_, layout_dst=map_, reference=reference, **own)


class Access(NamedTuple):
    """The bytes that one lane touches at its address. `bytes` bytes from element number `first` of the tile on."""

    lane: int
    first: int
    bytes: int


@dataclass(frozen=True)
class CopyAtom(HasPicture, HasPage, Convertible):
    """One copy instruction.

    ptx          the instruction's name without its operands
    archs        architectures that have it
    element      the type that the layouts count in
    threads      how many threads execute it together (1: each thread on its own, 32: a warp)
    source, target   where it reads and writes: "gmem", "smem", "rmem" or "tmem"
    layout_src   (thread, value) -> element of the reference tile that this thread names or holds at the source
    layout_dst   (thread, value) -> the same at the destination
    reference    where the maps can be read
    thread_ids   (thread of the maps) -> thread of the warp; None where they are the same
    tile         coordinate layout of the reference tile, element number -> coordinate, for `coords`; None where the
                 tile has one dimension
    """

    ptx: str
    archs: tuple[str, ...]
    element: DType
    threads: int
    source: str
    target: str
    layout_src: Layout
    layout_dst: Layout
    reference: str
    thread_ids: Layout | None = None
    tile: Layout | None = None

    def __post_init__(self) -> None:
        settle(self, AtomError)
        for side in (self.source, self.target):
            if side not in SPACES:
                raise AtomError(f"{self.ptx} copies between {', '.join(SPACES)}, not {shown(side)}")

    # ------------------------------------------------------------ the two sides

    @checked(AtomError)
    def layout(self, side: str) -> Layout:
        """The thread-value layout of side "src" or "dst"."""
        if side not in SIDES:
            raise AtomError(f'{self.ptx} has sides "src" and "dst", not {shown(side)}')
        return self.layout_src if side == "src" else self.layout_dst

    @checked(AtomError)
    def space(self, side: str) -> str:
        """The memory of that side: "gmem", "smem", "rmem" or "tmem"."""
        self.layout(side)
        return self.source if side == "src" else self.target

    @checked(AtomError)
    def side_in(self, space: str) -> str:
        """The one side in that space; raises AtomError when neither or both are."""
        found = [side for side in SIDES if self.space(side) == space]
        if len(found) != 1:
            raise AtomError(f"{self.ptx} goes from {self.source} to {self.target}: no one side is in {shown(space)}")
        return found[0]

    @checked(AtomError)
    def values_per_thread(self, side: str) -> int:
        """The number of values of each thread at side "src" or "dst", in elements.

        >>> from layoutgemm.atoms import ldmatrix
        >>> ldmatrix(4).values_per_thread("src"), ldmatrix(4).values_per_thread("dst")
        (8, 8)
        >>> ldmatrix(1).values_per_thread("src"), ldmatrix(1).values_per_thread("dst")
        (8, 2)
        """
        return int(self.layout(side)[1].size)

    @checked(AtomError)
    def bytes_per_thread(self, side: str) -> int:
        """The bytes that each thread names or holds at side "src" or "dst".

        >>> from layoutgemm.atoms import ldmatrix
        >>> ldmatrix(1).bytes_per_thread("src"), ldmatrix(1).bytes_per_thread("dst")
        (16, 4)
        """
        bits = self.values_per_thread(side) * self.element.bits
        if bits % 8:
            raise AtomError(f"{self.ptx} moves {bits} bits per thread at {side}, which is no whole number of bytes")
        return bits // 8

    @checked(AtomError)
    def coords(self, side: str) -> Layout:
        """(thread, value) -> coordinate of the reference tile: the same map with coordinate strides.

        For matrix copies (row, column), and the matrix where there are several; for others the element number alone.

        >>> from layoutgemm.atoms import ldmatrix
        >>> print(ldmatrix(2).coords("dst")(5, 2))
        (1, 2, 1)
        """
        layout = self.layout(side)
        tile = Layout.identity(self.layout_src.cosize) if self.tile is None else self.tile
        return tile.compose(layout)

    def recast(self: _Copy, element: DType | str) -> _Copy:
        """The same instruction with its maps counted in another element type.

        Raises AtomError, with the thread and value, where an element of that width would be spread over two threads or
        over values that are no neighbours. Then no map of whole elements describes the instruction.

        >>> from layoutgemm.atoms import ldmatrix
        >>> print(ldmatrix(2).recast("f32").layout_dst)
        ((4,8),2):((1,4),32)
        >>> ldmatrix(1, transpose=True).recast("f32")
        Traceback (most recent call last):
        ...
        layoutgemm.errors.AtomError: ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 moves no whole f32 at dst: \
thread 0, value 0 has bits 0..15 of the tile and then bits 128..143
        """
        new = dtype(element)
        sides = []
        for side in SIDES:
            layout = counted_in(new.bits, in_bits(self.layout(side), self.element.bits))
            if layout is None:
                raise AtomError(f"{self.ptx} moves no whole {new} at {side}: {self._split(side, new)}")
            sides.append(layout)
        tile = self.tile
        if tile is not None and new.bits != self.element.bits:
            tile = _recast_tile(tile, self.element.bits, new.bits)
        return replace(self, element=new, layout_src=sides[0], layout_dst=sides[1], tile=tile)

    def _split(self, side: str, new: DType) -> str:
        old = self.element.bits
        firsts = in_bits(self.layout(side), old).offsets().reshape(-1, self.layout(side)[0].size)[::old]
        values, threads = firsts.shape
        if values * old % new.bits:
            return f"a thread has {values * old} bits"
        pieces = max(1, new.bits // old)
        whole = firsts.reshape(values // pieces, pieces, threads) if new.bits >= old else firsts[:, None]
        breaks = whole != whole[:, :1] + old * np.arange(pieces)[:, None]
        breaks[:, 0] = whole[:, 0] % new.bits != 0
        value, piece, thread = map(int, np.argwhere(breaks)[np.argmin(np.argwhere(breaks)[:, 2])])
        run = [f"bits {x}..{x + old - 1}" for x in map(int, whole[value, max(piece - 1, 0) : piece + 1, thread])]
        return f"thread {thread}, value {value} has {' of the tile and then '.join(run)}"

    # ------------------------------------------------------------ what shared memory sees

    @checked(AtomError)
    def address_threads(self, side: str) -> tuple[int, ...]:
        """The threads whose address side "src" or "dst" uses. The others repeat one of theirs, and it is ignored.

        Raises AtomError for a side in registers.

        >>> from layoutgemm.atoms import ldmatrix
        >>> ldmatrix(1).address_threads("src")
        (0, 1, 2, 3, 4, 5, 6, 7)
        """
        if self.space(side) not in ("smem", "gmem"):
            raise AtomError(f"{self.ptx} takes no address at {side}: that side is in {self.space(side)}")
        firsts = self.layout(side)[0].offsets()
        return tuple(sorted(int(x) for x in np.unique(firsts, return_index=True)[1]))

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """The lanes of a warp that shared memory serves together, phase by phase. Only those that supply an address.

        An atom of one thread is taken as executed by all 32 lanes. Two lanes of different phases never conflict.
        Raises AtomError when no side is in shared memory.

        >>> from layoutgemm.atoms import ldmatrix, universal_copy
        >>> [f"{p[0]}..{p[-1]}" for p in ldmatrix(2).phases]
        ['0..7', '8..15']
        >>> [len(universal_copy(bits, "u8", "smem", "rmem").phases) for bits in (8, 32, 64, 128)]
        [1, 1, 2, 4]
        """
        side = self.side_in("smem")
        size = self.bytes_per_thread(side)
        if size not in PHASE_LANES:
            known = ", ".join(map(str, PHASE_LANES))
            raise AtomError(f"{self.ptx} touches {size} bytes per lane; shared memory serves {known}")
        lanes = tuple(range(WARP)) if self.threads == 1 else self.address_threads(side)
        step = PHASE_LANES[size]
        return tuple(lanes[i : i + step] for i in range(0, len(lanes), step))

    @checked(AtomError)
    def accesses(self, side: str, start: Callable[[int], int] | None = None) -> tuple[tuple[Access, ...], ...]:
        """For each phase, what each of its lanes touches in shared memory. (lane, first element, bytes).

        side   "src" or "dst", the one in shared memory
        start  for an atom of one thread: lane -> element at which the lane's copy starts; by default the lanes copy one
               after another. An atom of a warp says itself where its lanes start.

        Raises AtomError for another side, and where `start` contradicts the atom.

        >>> from layoutgemm.atoms import ldmatrix
        >>> ldmatrix(4).accesses("src")[1][0]
        Access(lane=8, first=64, bytes=16)
        """
        if self.side_in("smem") != side:
            raise AtomError(f"{self.ptx} has its shared-memory side at {self.side_in('smem')}, not at {shown(side)}")
        if start is not None and self.threads != 1:
            raise AtomError(f"{self.ptx} fixes the element of every lane; start is for atoms of one thread")
        size, values = self.bytes_per_thread(side), self.values_per_thread(side)
        threads = self.layout(side)[0]
        if start is None:
            start = (lambda lane: lane * values) if self.threads == 1 else threads
        return tuple(tuple(Access(lane, int(start(lane)), size) for lane in phase) for phase in self.phases)

    # ------------------------------------------------------------ for people

    def explain(self) -> str:
        """The instruction and its map as a table. For every thread it has the elements of each side.

        >>> from layoutgemm.atoms import movmatrix
        >>> print("\\n".join(movmatrix().explain().splitlines()[:8]))
        movmatrix.sync.aligned.m8n8.trans.b16 (sm_75 and later)
          rmem -> rmem, 32 threads, elements of 16 bits (u16)
          src ((4,8),2):((2,8),1)
          dst ((4,8),2):((16,1),8)
        thread  src      dst
             0  0 1      0 8
             1  2 3      16 24
             2  4 5      32 40
        """
        lines = [
            f"{self.ptx} ({_targets(self.archs)})",
            f"  {self.source} -> {self.target}, {self.threads} thread{'s' if self.threads > 1 else ''}, "
            f"elements of {self.element.bits} bits ({self.element})",
            *(f"  {side} {self.layout(side)}" for side in SIDES),
        ]
        columns = []
        for side in SIDES:
            layout = self.layout(side)
            table = layout.offsets().reshape(layout[1].size, -1).T
            named = set(self.address_threads(side)) if self.space(side) in ("smem", "gmem") else None
            columns.append([_run(row) if named is None or t in named else "-" for t, row in enumerate(table)])
        width = max(map(len, columns[0])) + 2
        lines.append(f"thread  {'src':<{width + 2}}dst")
        lines += [f"{t:6d}  {a:<{width + 2}}{b}" for t, (a, b) in enumerate(zip(*columns))]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.ptx


def in_bits(layout: Layout, bits: int) -> Layout:
    """(thread, value) -> element as (thread, (bit, value)) -> bit, for elements of `bits` bits.

    >>> print(in_bits(Layout((32, 2), (2, 1)), 16))
    (32,(16,2)):(32,(1,16))
    """
    scale = Layout(layout.cosize, bits)
    return Layout.join(scale.compose(layout[0]), Layout.join(Layout(bits), scale.compose(layout[1])))


def counted_in(bits: int, layout: Layout) -> Layout | None:
    """(thread, bit of its values) -> bit, counted in elements of `bits` bits. None where an element would be split."""
    threads, values = layout
    if values.size % bits:
        return None
    run = values.coalesce().flatten()
    head = run[0] if run.rank else run
    if threads.offsets().any() and any(int(x) % bits for x in np.unique(threads.offsets())):
        return None
    if head.size % bits or (head.size > 1 and head.stride not in (1, (1,))):
        return None
    if any(int(x) % bits for x in values.offsets()[::bits]):
        return None
    return Layout.join(_divided(threads, bits), _divided(values.compose(Layout(values.size // bits, bits)), bits))


def _divided(layout: Layout, by: int) -> Layout:
    """The layout with every value divided by `by`, which divides them all."""

    def each(stride: Any) -> Any:
        return tuple(map(each, stride)) if isinstance(stride, tuple) else stride // by

    return Layout(layout.shape, each(layout.stride))


def _recast_tile(tile: Layout, old: int, new: int) -> Layout | None:
    """The coordinate layout of a matrix tile with rows of `new`-bit elements; its first mode runs along a row."""
    columns = int(tile[0].size) * old // new
    rest = tile.shape[1:]
    return Layout((columns, *rest), tuple(E(i) for i in (1, 0, *range(2, tile.rank))))


def _run(values: Iterable[int]) -> str:
    """The element numbers of one thread, shortened where they are consecutive."""
    numbers = [int(x) for x in values]
    if len(numbers) > 2 and numbers == list(range(numbers[0], numbers[0] + len(numbers))):
        return f"{numbers[0]}..{numbers[-1]}"
    return " ".join(map(str, numbers))


def _targets(archs: tuple[str, ...]) -> str:
    return f"{archs[0]} and later" if archs and archs == since(archs[0]) else ", ".join(archs)
