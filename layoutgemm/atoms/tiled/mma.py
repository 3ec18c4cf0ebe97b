"""One matrix instruction tiled over threads and values. Which thread holds which element of a whole tile.

A tiled product places an atom's threads side by side along M, N and K (`atom_layout`), and may deal the elements of a
mode to the atoms in another order (`permutation`). Everything else follows from the atom's thread-value layouts:

    the operand (M, K)              -> permuted:  logical_divide by (permutation of M, permutation of K)
    ((AtomM, AtomK), (RestM, RestK)) zipped_divide by the atom's shape
    ((ThrV, FrgV), (RestM, RestK))   the atom's layout composed with the first mode
    ((ThrV, (ThrM, ThrK)), (FrgV, (RestM, RestK)))   zipped_divide of the rest by the threads along M and K

Source: `cute/atom/mma_atom.hpp` in NVIDIA/cutlass, TiledMMA; `cute.make_tiled_mma` of the CuTe DSL.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

from ...arguments import as_int, checked, plain, refusal, settle, shown
from ...errors import AtomError
from ...layouts import ComposedLayout, Layout
from ...layouts.display import Convertible, HasPage, HasPicture
from ...layouts.int_tuple import Shape
from ...layouts.swizzle import AnyLayout, Part
from ..mma.base import MmaAtom, whole_tiles
from .thread_map import View

MODES = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}
NAMES = "MNK"


@dataclass(frozen=True)
class Fragment:
    """The part of an operand that one thread holds in registers.

    layout     (value, rest, rest) -> element of the fragment, in order
    registers  32-bit registers that it takes
    """

    layout: Layout
    registers: int


@dataclass(frozen=True)
class TiledMma(HasPicture, HasPage, Convertible):
    """An atom over (M, N, K) atoms' worth of threads: `cute.make_tiled_mma(atom, atom_layout_mnk, permutation_mnk)`.

    atom         the instruction
    atom_layout  how many atoms along M, N and K run side by side on other threads: a tuple, or a Layout that says
                 which (strides count atoms' worth of threads). Modes that it lacks have one atom, as in CuTe
    permutation  for each of M, N and K a tiler, or None: an int is the extent of the tile (a multiple of what the
                 threads take: the rest are values), a Layout deals the elements of that extent in its order

    Raises AtomError for more than three modes, for an atom layout that is no numbering 0, 1, 2, ... of the atoms, for a
    tiler that is not a permutation, and for one that the threads do not divide.

    >>> from layoutgemm.atoms import wgmma
    >>> two = TiledMma(wgmma(64), (2, 1, 1))
    >>> two.threads, two.tile_mnk, str(two.layout_C())
    (256, (128, 64, 16), '((4,8,8),((2,2,8),(1,1))):((256,1,16),((128,8,1024),(0,0)))')
    """

    atom: MmaAtom
    atom_layout: Any = (1, 1, 1)
    permutation: Any = (None, None, None)

    def __post_init__(self) -> None:
        settle(self, AtomError)
        layout = self.atom_layout if isinstance(self.atom_layout, Layout) else Layout(self.atom_layout)
        permutation = () if self.permutation is None else plain(self.permutation)
        if not 1 <= layout.rank <= 3:
            raise AtomError(f"an atom layout counts atoms along M, N and K; {layout} has {layout.rank} modes, not 3")
        if layout.rank < 3:
            modes = [*(layout if isinstance(layout.shape, tuple) else [layout])]
            layout = Layout.join(*modes, *[Layout(1, 0)] * (3 - len(modes)))
        if not isinstance(permutation, (tuple, list)) or len(permutation) > 3:
            raise AtomError(f"a permutation is three tilers, of M, N and K, not {shown(permutation)}")
        check_numbering(layout, f"atom layout {layout}: {layout.size} atoms are to be numbered")
        object.__setattr__(self, "atom_layout", layout)
        object.__setattr__(self, "permutation", (*permutation, None, None, None)[:3])
        for mode in range(3):
            self._check_permutation(mode)

    def _check_permutation(self, mode: int) -> None:
        tiler, name, taken = self.permutation[mode], NAMES[mode], self.tile_of_threads[mode]
        if tiler is None:
            return
        if isinstance(tiler, bool) or not isinstance(tiler, (int, Layout)):
            raise AtomError(refusal(tiler, f"the permutation of {name}", "an integer, a Layout or None"))
        extent = tiler if isinstance(tiler, int) else tiler.size
        if extent < 1 or extent % taken:
            raise AtomError(
                f"the permutation of {name} covers {extent} elements, and {self._arithmetic(mode)}: "
                f"{extent} = {extent // taken}*{taken} + {extent % taken}"
            )
        if isinstance(tiler, Layout):
            check_numbering(tiler, f"the permutation {tiler} of {name} is none: its values are to be")

    def _arithmetic(self, mode: int) -> str:
        atom, atoms = self.atom.shape_mnk[mode], self.atom_layout[mode].size
        return f"the threads take {atom * atoms} = {atom} (the atom's {NAMES[mode]}) * {atoms} atoms"

    # ------------------------------------------------------------ threads and extents

    @cached_property
    def thr_layout_vmnk(self) -> Layout:
        """(thread of the atom, atom along M, along N, along K) -> thread.

        >>> from layoutgemm.atoms import wgmma
        >>> str(TiledMma(wgmma(64), (2, 1, 1)).thr_layout_vmnk)
        '(128,2,1,1):(1,128,256,256)'
        """
        ids = self.atom.thread_ids if self.atom.thread_ids is not None else Layout(self.atom.threads)
        return ids.tiled_product(self.atom_layout)

    @property
    def threads(self) -> int:
        """The number of threads that run the product together."""
        return self.atom.threads * int(self.atom_layout.size)

    @property
    def tile_of_threads(self) -> tuple[int, int, int]:
        """(M, N, K) extents that one instruction of every thread takes. The atom's times the atoms."""
        m, n, k = (e * int(self.atom_layout[i].size) for i, e in enumerate(self.atom.shape_mnk))
        return m, n, k

    @cached_property
    def tile_mnk(self) -> tuple[int, int, int]:
        """(M, N, K) extents of the tile: the permutation's where there is one, else `tile_of_threads`."""
        m, n, k = (
            taken if tiler is None else tiler if isinstance(tiler, int) else int(tiler.size)
            for tiler, taken in zip(self.permutation, self.tile_of_threads)
        )
        return m, n, k

    @checked(AtomError)
    def tile_of(self, operand: str) -> tuple[int, int]:
        """The two extents in elements of an operand's tile. "A" (M, K), "B" (N, K) or "C" (M, N)."""
        if operand not in MODES:
            raise AtomError(f"{self.atom} is tiled for the operands {', '.join(MODES)}, not {shown(operand)}")
        rows, columns = MODES[operand]
        return self.tile_mnk[rows], self.tile_mnk[columns]

    @cached_property
    def _vmnk_of_thread(self) -> Layout:
        """thread -> flat coordinate of thr_layout_vmnk."""
        bijective = self.thr_layout_vmnk.is_bijective()
        if not bijective:
            raise AtomError(
                f"{self.atom} on the threads {self.thr_layout_vmnk}: they are not 0 to {self.threads - 1}, so no "
                f"layout says what thread t holds ({bijective.explain()}); tile the atom over the whole warp"
            )
        return self.thr_layout_vmnk.right_inverse()

    def _thread_mode(self, operand: str) -> Layout:
        """thread -> flat coordinate (ThrV, (ThrM, ThrK)) of the operand: the atoms along the third mode share it."""
        v, *atoms = (self.thr_layout_vmnk[i].size for i in range(4))
        rows, columns = MODES[operand]
        strides = [0, 0, 0]
        strides[rows] = v
        strides[columns] = v * atoms[rows]
        return Layout((v, *atoms), (1, *strides)).compose(self._vmnk_of_thread)

    # ------------------------------------------------------------ the maps

    @checked(AtomError)
    def thrfrg(self, operand: str, layout: Any) -> Any:
        """Any layout of the operand, cut up: ((ThrV,(ThrM,ThrK)),(FrgV,(RestM,RestK,...))) -> its values.

        `layout` is (rows, columns, ...) of operand "A" (M, K), "B" (N, K) or "C" (M, N): offsets, coordinates, or with
        a swizzle; modes past the second stay, behind the rest. Raises AtomError where the tile does not divide an
        extent, and CompositionError where no layout has the answer.

        >>> from layoutgemm.atoms import wgmma
        >>> str(TiledMma(wgmma(8)).thrfrg("C", Layout((128, 8))))
        '(((4,8,4),(1,1)),((2,2),(2,1))):(((256,1,16),(0,0)),((128,8),(64,0)))'
        """
        if isinstance(layout, ComposedLayout):
            return ComposedLayout(layout.swizzle, layout.offset, self.thrfrg(operand, layout.layout))
        self.check_extents(operand, layout)
        modes = MODES[operand]
        # A permutation that keeps the order changes nothing: only layouts are divided by.
        order = tuple(p if isinstance(p, Layout) else None for p in (self.permutation[i] for i in modes))
        permuted = layout.logical_divide(order) if any(p is not None for p in order) else layout
        tiles = whole_tiles(permuted.zipped_divide(self.atom.tile_of(operand)), layout)
        atoms = tiles.compose((self.atom.layout(operand), None))
        rest = whole_tiles(atoms[1].zipped_divide(tuple(int(self.atom_layout[i].size) for i in modes)), atoms[1])
        threads, values = atoms[0]
        return Layout.join(Layout.join(threads, rest[0]), Layout.join(values, rest[1]))

    @checked(AtomError)
    def check_extents(self, operand: str, layout: object) -> None:
        """Raises AtomError where the tile does not divide an extent of it. Names the fact that a symbol lacks."""
        tile = self.tile_of(operand)
        if not isinstance(layout, Layout):
            raise AtomError(f"operand {operand} is partitioned as a Layout or a ComposedLayout, not {shown(layout)}")
        if layout.rank < 2:
            raise AtomError(f"operand {operand} has two modes at least; {layout} has {layout.rank}")
        for i, mode in enumerate(MODES[operand]):
            extent = layout[i].size
            if not isinstance(extent, int):
                Layout(extent).logical_divide(tile[i])  # refuses, and says what it needs
            elif extent % tile[i]:
                why = "the permutation" if self.permutation[mode] is not None else self._arithmetic(mode)
                raise AtomError(
                    f"operand {operand} has {extent} elements along {NAMES[mode]}, and the tile {tile[i]} ({why}): "
                    f"{extent} = {extent // tile[i]}*{tile[i]} + {extent % tile[i]}"
                )

    @checked(AtomError)
    def partition(self, operand: str, layout: object) -> Any:
        """(thread, values, rest of the rows, rest of the columns, ...) -> the values of `layout` there.

        One layout for all threads; `partition_A`, `_B`, `_C` slice it. It evaluates on traced integers too. Raises as
        thrfrg does.

        >>> from layoutgemm.atoms import wgmma
        >>> str(TiledMma(wgmma(8)).partition("C", Layout((128, 8), (8, 1))))
        '((32,4),(2,2),2,1):((2,128),(1,64),512,0)'
        """
        if isinstance(layout, ComposedLayout):
            return ComposedLayout(layout.swizzle, layout.offset, self.partition(operand, layout.layout))
        cut = self.thrfrg(operand, layout)
        threads = cut[0].compose(self._thread_mode(operand))
        return Layout.join(threads, cut[1][0], *cut[1][1])

    def partition_A(self, thread: object, layout: object) -> Part:
        """(values, rest_m, rest_k, ...) of one thread in a layout (M, K, ...), and its offset. The layout is A's."""
        return self._partition_of("A", thread, layout)

    def partition_B(self, thread: object, layout: object) -> Part:
        """(values, rest_n, rest_k, ...) of one thread in a layout (N, K, ...), and its offset. The layout is B's."""
        return self._partition_of("B", thread, layout)

    def partition_C(self, thread: object, layout: object) -> Part:
        """(values, rest_m, rest_n, ...) of one thread in a layout (M, N, ...), and its offset. The layout is C's.

        >>> from layoutgemm.atoms import wgmma
        >>> part, offset = TiledMma(wgmma(8)).partition_C(37, Layout.identity((128, 8)))
        >>> str(part), offset
        ('((2,2),2,1):((1@1,8@0),64@0,0)', (17, 2))
        """
        return self._partition_of("C", thread, layout)

    def _partition_of(self, operand: str, thread: object, layout: object) -> Part:
        return one_thread(self.partition(operand, layout), thread, self.threads)

    @checked(AtomError)
    def get_slice(self, thread: int) -> ThreadMma:
        """The partitions of one thread. Raises AtomError for a thread that does not take part."""
        check_thread(thread, self.threads)
        return ThreadMma(self, thread)

    @checked(AtomError)
    def tv_layout(self, operand: str, extent: object = None) -> Layout:
        """(thread, (value, (rest, rest))) -> element of the operand, column-major over `extent` (None: one tile)."""
        cut = self.partition(operand, Layout(self.tile_of(operand) if extent is None else extent))
        threads, values, *rest = cut
        return Layout.join(threads, Layout.join(values, Layout.join(*rest)))

    def layout_A(self, extent: object = None) -> Layout:
        """(thread, (value, (rest_m, rest_k))) -> m + M*k over (M, K) = `extent`, None for one tile.

        >>> from layoutgemm.atoms import wgmma
        >>> str(TiledMma(wgmma(64), (2, 1, 1)).layout_A())
        '((128,2),((64,16),(1,1))):((0,64),((1,128),(0,0)))'
        """
        return self.tv_layout("A", extent)

    def layout_B(self, extent: object = None) -> Layout:
        """(thread, (value, (rest_n, rest_k))) -> n + N*k over (N, K) = `extent`, None for one tile."""
        return self.tv_layout("B", extent)

    def layout_C(self, extent: object = None) -> Layout:
        """(thread, (value, (rest_m, rest_n))) -> m + M*n over (M, N) = `extent`, None for one tile."""
        return self.tv_layout("C", extent)

    @checked(AtomError)
    def view(self, operand: str, extent: object = None) -> View:
        """The whole map (thread, value, rest) -> (row, column), and its inverse. It covers `extent` (None: one tile).

        >>> from layoutgemm.atoms import wgmma
        >>> view = TiledMma(wgmma(8), (2, 1, 1)).view("C", (256, 16))
        >>> str(view), view(37, 1, (1, 1)), view.owner((145, 11))
        ('((4,8,8),(2,2),(2,2)):((2@1,1@0,16@0),(1@1,8@0),(128@0,8@1))', (145, 11), (37, 1, (1, 1)))
        """
        if extent is not None and not isinstance(extent, (tuple, list)):
            raise AtomError(refusal(extent, "the extent of a view", "a tuple of integers"))
        extent = self.tile_of(operand) if extent is None else tuple(extent)
        threads, values, *rest = self.partition(operand, Layout.identity(extent))
        return View(Layout.join(threads, values, Layout.join(*rest)), extent)

    # ------------------------------------------------------------ registers

    @checked(AtomError)
    def partition_shape(self, operand: str, extent: object) -> tuple[Shape, ...]:
        """The shape of a thread's part of the operand. (values, rest of the rows, rest of the columns, ...).

        >>> from layoutgemm.atoms import wgmma
        >>> TiledMma(wgmma(64), (2, 1, 1)).partition_shape("C", (256, 128))
        ((2, 2, 8), 2, 2)
        """
        layout = Layout(extent)
        self.check_extents(operand, layout)
        rest = [layout[i].size // self.tile_of_threads[mode] for i, mode in enumerate(MODES[operand])]
        return (self.atom.layout(operand)[1].shape, *rest, *layout.shape[2:])

    @checked(AtomError)
    def fragment(self, operand: str, tile: object) -> Fragment:
        """A thread's registers for `tile` (rows, columns) of an operand, in order of the values.

        Raises AtomError for an operand that the instruction does not take from registers.

        >>> from layoutgemm.atoms import wgmma
        >>> TiledMma(wgmma(64), (2, 1, 1)).fragment("C", (128, 128))
        Fragment(layout=Layout(((2, 2, 8), 1, 2), ((1, 2, 4), 0, 32)), registers=64)
        """
        self.tile_of(operand)  # refuses an unknown operand
        source = {"A": self.atom.a_source, "B": self.atom.b_source, "C": self.atom.c_source}[operand]
        if source != "rmem":
            raise AtomError(f"{self.atom} takes {operand} from {source}, not from registers: it has no fragment")
        element = {"A": self.atom.a_dtype, "B": self.atom.b_dtype, "C": self.atom.c_dtype}[operand]
        layout = Layout(self.partition_shape(operand, tile))
        shape = layout.shape
        strides = tuple(0 if s == 1 else d for s, d in zip(shape[1:], layout.stride[1:]))
        bits = layout.size * element.bits
        if bits % 32:
            raise AtomError(f"{layout.size} values of {element.bits} bits are {bits} bits, no whole 32-bit registers")
        return Fragment(Layout(shape, (layout.stride[0], *strides)), bits // 32)

    @checked(AtomError)
    def retile(self, source: str, target: str, extent: object) -> Layout:
        """(values, rest, rest) of operand `target` -> value of the fragment of `source`. Both are of one matrix
        `extent`.

        What a thread holds as one operand, read as another without moving anything: attention's second product takes
        the first one's C as its A. Derived as inverse of the source's map o the target's map, whose threads must be
        the identity. Raises AtomError naming the first value that another thread holds.
        """
        there, here = self.tv_layout(source, extent), self.tv_layout(target, extent)
        moved = there.right_inverse().compose(here)
        same = moved[0].equivalent(Layout(self.threads))
        if not same:
            raise AtomError(
                f"{target} of {extent} is not in the registers of {source}: value 0 of thread t of {target} is value "
                f"(number // {self.threads}) of thread (number % {self.threads}) of {source}; {same.explain()}"
            )
        strides = flat_strides(moved[1])
        for stride in strides:
            if stride % self.threads:
                raise AtomError(
                    f"{target} of {extent} is not in the registers of {source}: values of {target} that one thread "
                    f"holds are {stride} apart in {source}, no multiple of the {self.threads} threads"
                )
        values = moved[1].upcast(self.threads) if prod(strides or [1]) else moved[1]
        return values.with_shape(self.partition_shape(target, extent))

    def __str__(self) -> str:
        return f"{self.atom} tiled over {self.atom_layout}: {self.threads} threads, tile {self.tile_mnk}"


def make_tiled_mma(atom: MmaAtom, atom_layout_mnk: object = (1, 1, 1), permutation_mnk: object = None) -> TiledMma:
    """See TiledMma; the arguments have the names of the CuTe DSL.

    >>> from layoutgemm.atoms import mma_sync
    >>> make_tiled_mma(mma_sync("m16n8k16"), (2, 2)).tile_mnk
    (32, 16, 16)
    """
    return TiledMma(atom, atom_layout_mnk, permutation_mnk)


@dataclass(frozen=True)
class ThreadMma:
    """One thread's share of a tiled product. The partitions of TiledMma with the thread filled in."""

    tiled: TiledMma
    thread: int

    def partition_A(self, layout: object) -> Part:
        """See TiledMma.partition_A."""
        return self.tiled.partition_A(self.thread, layout)

    def partition_B(self, layout: object) -> Part:
        """See TiledMma.partition_B."""
        return self.tiled.partition_B(self.thread, layout)

    def partition_C(self, layout: object) -> Part:
        """See TiledMma.partition_C."""
        return self.tiled.partition_C(self.thread, layout)


def check_numbering(layout: Layout, said: str) -> None:
    """Raise AtomError, which begins with `said`, unless the values are 0 to size-1, each once."""
    bijective = layout.is_bijective()
    if not bijective:
        raise AtomError(f"{said} 0 to {layout.size - 1}, each once; {bijective.explain()}", bijective.witness)


def check_thread(thread: object, threads: int) -> int:
    """The thread as an int of 0..threads-1. Raises AtomError."""
    number = as_int(thread, "a thread", AtomError)
    if not 0 <= number < threads:
        raise AtomError(f"thread {shown(number)} does not take part: the threads are 0 to {threads - 1}")
    return number


def one_thread(part: AnyLayout, thread: object, threads: int) -> Part:
    """The modes past the first of (thread, ...), and where that thread begins."""
    return part.slice((check_thread(thread, threads),) + (None,) * (part.rank - 1))


def flat_strides(layout: Layout) -> list[int]:
    """The strides of the modes that move, in order."""
    flat = layout.coalesce().flatten()[:]
    return [d for s, d in zip(flat.shape, flat.stride) if s != 1]
