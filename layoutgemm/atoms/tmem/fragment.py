"""The thread and register of each accumulator element in the epilogue, composed and proven.

The accumulator's layout says where element (m, n) lies in tensor memory; the load's map says which lane and column each
register of a warp reads. The first, inverted, after the second is the fragment map. Two proofs go with it: the register
reads the very place where its element lies, and each element is held exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass

from ...arguments import checked
from ...errors import AtomError, CompositionError
from ...layouts import CounterExample, E, Layout, Proof, ScaledBasis
from ...layouts.int_tuple import StrideEntry, transform
from ..copy.tmem import FRAGMENTS, HALVED, TmemCopyAtom
from ..mma.tcgen05 import Tcgen05Atom
from .layout import LANES, WARP_LANES

WARPS = LANES // WARP_LANES


@dataclass(frozen=True)
class AccumulatorFragment:
    """The accumulator in the registers of four warps of each block.

    coords      (thread, value) -> (m, n); threads are the 128 of a block, those of the second block of a pair after
                them; values are the elements of one load after another
    issues      load number -> (lane within the warp's quarter, column) of its address
    registers   32-bit registers that all the loads fill in each thread
    place       proof that each value is read from where its element lies
    once        proof that each element of the tile is held exactly once
    """

    coords: Layout
    issues: Layout
    registers: int
    place: Proof
    once: Proof


def _words(layout: Layout) -> Layout:
    """Places as numbers, lane + 128*column: CUTLASS's virtual addresses, on which the integer algebra works."""
    steps: dict[tuple[int, ...], int] = {(0,): 1, (1,): LANES}

    def number(stride: int | ScaledBasis) -> int:
        return stride.value * steps[stride.path] if isinstance(stride, ScaledBasis) else stride

    return Layout(layout.shape, transform(number, layout.stride))


def _issues(ld: TmemCopyAtom, columns: int, both_halves: bool) -> list[tuple[int, StrideEntry]]:
    """The loads' addresses, as modes: the upper lanes of a quarter, then along the columns."""
    fragment = FRAGMENTS[ld.shape]
    width = fragment.columns * ld.repeat * (2 if ld.pack else 1)
    modes: list[tuple[int, StrideEntry]] = []
    if fragment.lanes < WARP_LANES and both_halves:
        modes.append((2, fragment.lanes * E(0)))
    span = width
    if ld.shape == HALVED:
        # One load reads `width` columns at its address and as many `split` further; loads fill the gap first.
        split = ld.split or 0
        if split % width or not split:
            raise AtomError(
                f"{ld} reads {width} columns at 0 and as many at {split}: repeated, it does not fill the columns once"
            )
        modes.append((split // width, width * E(1)))
        span = 2 * split
    if columns % span:
        raise AtomError(f"{ld} covers {span} columns at a time; the accumulator's {columns} are no multiple of it")
    modes.append((columns // span, span * E(1)))
    return [mode for mode in modes if mode[0] > 1]


@checked(AtomError)
def accumulator_fragment(atom: Tcgen05Atom, ld: TmemCopyAtom) -> AccumulatorFragment:
    """The map of `atom`'s accumulator onto four warps that read it with `ld`. They read again and again.

    Warp w reads lanes 32*w and up. Loads of 16 lanes are issued twice where all lanes are used, and once under layout F
    (M = 64), which uses the lower 16 of every 32. `ld` counts 32-bit elements, or with .pack::16b the 16-bit elements
    of a 16-bit accumulator.

    Raises AtomError where the load does not fit: its columns do not divide the accumulator's, it reads lanes that hold
    no element, or it packs what is not 16 bits wide. The error names the first (thread, value) that reads elsewhere.

    >>> from layoutgemm.atoms.copy.tmem import tcgen05_ld
    >>> from layoutgemm.atoms.mma.tcgen05 import tcgen05_mma
    >>> print(accumulator_fragment(tcgen05_mma("f16", 128, 64, "bf16"), tcgen05_ld("32x32b", 32)).coords)
    ((32,4),(32,2)):((1@0,32@0),(1@1,32@1))
    >>> pair = accumulator_fragment(tcgen05_mma("f16", 128, 64, "bf16", cta_group=2), tcgen05_ld("32x32b", 32))
    >>> print(pair.coords)
    ((32,(2,2),2),32):((1@0,(32@0,32@1),64@0),1@1)
    >>> pair.coords(64 + 5, 7), pair.place.ok, pair.once.ok
    ((5, 39), True, True)
    """
    home = atom.accumulator
    bits = home.dtype.bits
    if ld.target != "rmem" or ld.source != "tmem":
        raise AtomError(f"{ld} is no load from tensor memory")
    if ld.element.bits != (bits if ld.pack else 32):
        wants = f"{bits}-bit elements" if ld.pack else "32-bit elements, one to a column,"
        raise AtomError(f"{ld} counts {ld.element} elements; for an accumulator of {home.dtype} it must count {wants}")
    own = Layout.join(home.layout[0], home.layout[1])
    read = _reads(ld, home.columns, atom.datapath.spread)
    held, places = _words(own), _words(read)
    try:
        fragment = held.left_inverse().compose(places)
        place = held.compose(fragment).equivalent(places)
    except CompositionError as error:
        raise AtomError(f"{ld} does not follow {home}: {error.reason}") from error
    if not isinstance(place, Proof):
        column, lane = divmod(int(place.right), LANES) if isinstance(place, CounterExample) else (0, 0)
        where = f"(thread, value) {place.coord} reads lane {lane}, column {column}" if place.ok is False else str(place)
        raise AtomError(f"{ld} reads what {home} does not hold: {where}", place)
    once = fragment.is_bijective()
    if not isinstance(once, Proof):
        raise AtomError(f"{ld} does not read each element of {home} once: {once}", once)
    m, n, _ = atom.shape_mnk
    rows = m // atom.threads
    coords = Layout.identity((rows, n)).compose(fragment)
    if atom.threads > 1:
        threads = _append(coords[0], atom.threads, rows * E(0))
        coords = Layout.join(threads, coords[1])
    issues = _issues(ld, home.columns, not atom.datapath.spread)
    return AccumulatorFragment(
        coords,
        Layout(tuple([s for s, _ in issues]) or (1,), tuple([d for _, d in issues]) or (0,)),
        fragment[1].size * ld.element.bits // 32,
        place,
        once,
    )


def _reads(ld: TmemCopyAtom, columns: int, spread: bool) -> Layout:
    """(thread of four warps, value of all loads) -> (lane, column)."""
    thread = _append(ld.tmem[0], WARPS, WARP_LANES * E(0))
    value = ld.tmem[1]
    for extent, step in _issues(ld, columns, not spread):
        value = _append(value, extent, step)
    return Layout.join(thread, value)


def _append(mode: Layout, extent: int, stride: object) -> Layout:
    """The mode with one more at its end."""
    if isinstance(mode.shape, tuple):
        return Layout((*mode.shape, extent), (*mode.stride, stride))
    if mode.size == 1:
        return Layout(extent, stride)
    return Layout((mode.shape, extent), (mode.stride, stride))
