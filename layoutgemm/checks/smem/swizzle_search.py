"""Searches for a swizzle or a padding that frees a tile's accesses from bank conflicts.

Three facts make it a proof and make it fast.

1. A swizzle must keep every vector in one piece, and the tile within its own bytes. With vectors of 2^w bytes and a
   tile of 2^n bytes that leaves the Swizzle(B, M, S) on byte addresses with M >= w and M + B + |S| <= n: a few hundred.
2. Whether two words share a bank depends on address bits 2 to 6 alone. With S > 0 only those bits of the target
   count; if the source lies below bit 7 too, bits 2 to 6 are mapped one to one onto themselves, whatever the access:
   the banks are renamed and no count changes. With S < 0 (lower bits are XORed onto higher ones) the same holds, unless
   the source has bits 0 or 1: these tell apart the bytes of one word, and may send them to different words. So it is
   enough to look at 2 <= M, M + B <= 7 < M + B + S and, for accesses of 1 or 2 bytes, at S < 0 with M < 2: some tens,
   each of which stands for all candidates with the same effect.
3. A phase whose lanes are 2^p, and whose addresses are one address XOR the combinations of p columns, goes through a
   swizzle as a matrix over GF(2): its words are 2^r, with r the rank of the swizzled columns above bit 1, and its banks
   2^b, with b the rank of their bits 2 to 6. Every bank that is asked gives 2^(r - b) words. So the phase is free of
   conflicts exactly when the two ranks agree, at any address; phases with the same columns need one look together.

Phases that are not of that form (a count of lanes or a pitch that is no power of two) are counted for each
candidate. The answer is counted in any case, for the whole pattern, by `bank_conflicts`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import Any

from ...arguments import checked, shown
from ...atoms.smem.tile import SPANS, SmemTile, swizzle_of
from ...dtypes import DType, dtype
from ...errors import AtomError
from ...layouts import Layout, Swizzle
from ...layouts.proofs.gf2 import Elimination
from ...lazy_numpy import np
from ...report import Check
from .access_patterns import AccessPattern, IntArray, byte_addresses, default_access, element_bits, listed
from .bank_conflicts import BANK_BYTES, WAVEFRONT, BankReport, bank_conflicts, judge, phases_of, ways_of

BANK_LOW = BANK_BYTES.bit_length() - 1  # the address bits from here ...
BANK_HIGH = WAVEFRONT.bit_length() - 1  # ... up to, not including, here number the bank
TMA_MODES = tuple(swizzle_of(name) for name in sorted(SPANS, key=SPANS.__getitem__))


@dataclass(frozen=True, eq=False)
class Pattern:
    """The distinct phases of one access to an unswizzled tile.

    columns, counts   the column tuples of the phases that are affine over GF(2), and how many phases have them
    odd, odd_counts   the other phases, as (phase, lane) byte addresses, and how often they occur
    """

    name: str
    width: int
    addresses: IntArray
    columns: tuple[tuple[int, ...], ...]
    counts: tuple[int, ...]
    odd: IntArray
    odd_counts: IntArray

    def is_free(self, swizzle: Swizzle) -> bool:
        """True if no phase conflicts under a swizzle on bytes. Looks no further than the first that does."""
        for columns in self.columns:
            words, banks = ranks(columns, self.width, swizzle)
            if words > banks:
                return False
        few = 16
        return all(
            self._odd_ways(swizzle, slice(start, start + few)).max() == 1 for start in range(0, len(self.odd), few)
        )

    def weigh(self, swizzle: Swizzle) -> tuple[int, int]:
        """(the worst phase's ways, those of all phases together: the wavefronts, unless lanes pair)."""
        most = total = 0
        for columns, count in zip(self.columns, self.counts):
            words, banks = ranks(columns, self.width, swizzle)
            most, total = max(most, 1 << (words - banks)), total + (count << (words - banks))
        if len(self.odd):
            ways = self._odd_ways(swizzle, slice(None))
            most, total = max(most, int(ways.max())), total + int(ways @ self.odd_counts)
        return most, total

    def _odd_ways(self, swizzle: Swizzle, part: slice) -> IntArray:
        odd = self.odd[part]
        return ways_of(np.where(odd < 0, -1, swizzle(odd)), self.width)


def ranks(columns: Sequence[int], width: int, swizzle: Swizzle) -> tuple[int, int]:
    """(rank of the words, rank of the banks) of a phase with these address columns. They are swizzled.

    The bits inside a vector are columns too: each of its words is asked for.

    >>> ranks((128, 256, 512), 16, Swizzle(0, 4, 3)), ranks((128, 256, 512), 16, Swizzle(3, 4, 3))
    ((5, 2), (5, 5))
    """
    inside = [1 << bit for bit in range(BANK_LOW, width.bit_length() - 1)]
    words = [swizzle(column) >> BANK_LOW << BANK_LOW for column in (*inside, *columns)]
    return len(Elimination(words).pivots), len(Elimination(word % WAVEFRONT for word in words).pivots)


def pattern_of(name: str, addresses: IntArray, width: int) -> Pattern:
    """Sorts the phases into affine ones over GF(2), by their columns, and others."""
    phases = phases_of(addresses, width)
    phases = phases.reshape(-1, phases.shape[2])
    phases = phases[(phases >= 0).any(1)]
    lanes = phases.shape[1]
    bits = lanes.bit_length() - 1
    affine = (phases >= 0).all(1) & (lanes == 1 << bits)
    if 1 << bits == lanes:
        columns = phases[:, [1 << bit for bit in range(bits)]] ^ phases[:, :1]
        span = phases[:, :1]
        for bit in range(bits):
            span = np.concatenate([span, span ^ columns[:, bit : bit + 1]], axis=1)
        affine &= (span == phases).all(1)
        distinct, counts = np.unique(columns[affine], axis=0, return_counts=True)
    else:
        distinct, counts = np.zeros((0, 0), np.int64), np.zeros(0, np.int64)
    odd, odd_counts = np.unique(phases[~affine], axis=0, return_counts=True)
    known = tuple(map(tuple, distinct.tolist()))
    return Pattern(name, width, addresses, known, tuple(counts.tolist()), odd, odd_counts)


@dataclass(frozen=True, eq=False)
class SwizzleAnswer:
    """The result of a search for a swizzle. Truthy when the swizzle frees every access of conflicts.

    swizzle     on byte addresses; of a search that proved that none exists, None
    best        the one whose phases take the fewest wavefronts in all: the same when one is free of conflicts
    report      the bank report of `best`, counted for every phase
    candidates  how many swizzles have the form and keep vectors and tile in one piece
    examined    how many of them were counted; each of the others only renames the banks of one that was
    method      "GF(2) rank", or with exhaustion of the phases that are not affine
    reason      why none exists; empty when one does
    """

    swizzle: Swizzle | None
    best: Swizzle
    report: BankReport
    candidates: int
    examined: int
    method: str
    reason: str = ""

    def __bool__(self) -> bool:
        return self.swizzle is not None

    def on_elements(self, element: DType | str | int) -> Swizzle:
        """The swizzle counted in elements. Raises AtomError where none was found.

        >>> from layoutgemm.checks import matrix_access
        >>> found = find_swizzle(Layout((64, 64), (64, 1)), matrix_access((64, 64), "bf16"), element="bf16")
        >>> str(found.swizzle), str(found.on_elements("bf16"))
        ('S<3,4,3>[bytes]', 'S<3,3,3>[16b]')
        """
        if self.swizzle is None:
            raise AtomError(self.reason)
        return self.swizzle.recast(element if isinstance(element, int) else dtype(element).bits)

    def as_check(self, name: str = "swizzle") -> Check:
        """The statement that the swizzle is free of conflicts, or that no swizzle is."""
        searched = f"{self.method}; {self.examined} counted for {self.candidates} candidates"
        if self.swizzle is not None:
            return Check(name, self.report.as_check().statement, True, searched)
        return Check(name, "some swizzle is free of bank conflicts", False, searched, self.reason)

    def explain(self) -> str:
        """The verdict, the search, and the bank report of the best swizzle."""
        head = f"{self.swizzle} is free of conflicts" if self.swizzle is not None else f"none: {self.reason}"
        searched = f"searched: {self.candidates} candidates, {self.examined} with an effect of their own; {self.method}"
        start = f"with {self.best}, the tile at a multiple of {max(WAVEFRONT, self.best.span)} bytes:"
        return f"{head}\n{searched}\n{start}\n{self.report.explain()}"

    def __str__(self) -> str:
        return str(self.as_check())


def candidates(bits: int, total: int, vector: int) -> Iterator[Swizzle]:
    """The Swizzle(B, M, S) on byte addresses that keep vectors and tile whole. The fewest bits come first.

    bits    address bits of the tile
    total   bytes of the tile
    vector  bytes of the widest vector

    The fields end within the address bits, and where the tile's size is no power of two, no byte may leave it. Among
    equal B come the modes of the copy engine, then S > 0, the smaller |S|, the smaller M.
    """
    yield Swizzle(0, 4, 3, "bytes")
    low = vector.bit_length() - 1
    # No candidate moves bits below a vector's, so the first byte of each vector tells where all of it goes.
    places = np.arange(0, total if total & (total - 1) else 0, gcd(total, vector))
    for B in range(1, bits + 1):
        same = [
            Swizzle(B, M, sign * S, "bytes")
            for S in range(B, bits - low - B + 1)
            for M in range(low, bits - B - S + 1)
            for sign in (1, -1)
        ]
        if places.size:
            same = [swizzle for swizzle in same if int(swizzle(places).max()) < total]
        yield from sorted(same, key=lambda s: (s not in TMA_MODES, s.shift < 0, abs(s.shift), s.base))


def has_effect(swizzle: Swizzle) -> bool:
    """True for a swizzle that fact 2 leaves. All others rename banks, or do the same as one of these."""
    if swizzle.bits == 0:
        return True
    if swizzle.shift < 0:
        return swizzle.base < BANK_LOW
    top = swizzle.base + swizzle.bits
    return BANK_LOW <= swizzle.base and top <= BANK_HIGH < top + swizzle.shift


@checked(AtomError)
def find_swizzle(
    layout: object,
    accesses: AccessPattern | Sequence[AccessPattern] | None = None,
    *,
    element: DType | str | int | None = None,
    tma: bool = False,
) -> SwizzleAnswer:
    """A swizzle on byte addresses without conflicts for all accesses, or a proof of none.

    layout    the tile before the swizzle: flat coordinate -> offset in elements (Layout, ComposedLayout, LinearLayout);
              a SmemTile stands for its layout without its swizzle
    accesses  one or several, all of which are to be free of conflicts at once; None: the tile's rows, as ldmatrix reads
              them (`row_access`)
    element   how wide an element is, where the layout does not say
    tma       only the copy engine's modes: none, 32B, 64B, 128B

    The answer has the smallest B, then an S > 0, the smallest |S| and M, with the copy engine's modes before others of
    the same B. Its tile must start at a multiple of the swizzle's period. What it searched and by which method is in
    the answer, and why none exists. Raises AtomError where an access does not fit the layout.

    >>> from layoutgemm.checks import row_access, thread_access
    >>> tile = Layout((128, 64), (64, 1))
    >>> print(find_swizzle(tile, element="bf16").swizzle)
    S<3,4,3>[bytes]
    >>> rows = row_access(tile, "bf16")
    >>> column = thread_access(Layout(32, 1), name="a column")  # 32 lanes, a row apart each
    >>> print(find_swizzle(tile, column, element="bf16").swizzle)
    S<5,2,5>[bytes]
    >>> print(find_swizzle(tile, [rows, column], element="bf16").reason)  # doctest: +NORMALIZE_WHITESPACE
    a column is at best 4-way under the swizzles within 14 address bits that keep 16-byte vectors whole, with
    S<3,4,3>[bytes]: the lanes of a phase move address bits 7, 8, 9, 10, 11; its words have rank 5 over GF(2), the banks
    rank 3
    """
    return _search(layout, accesses, element, tma)


@checked(AtomError)
def best_swizzle(
    layout: object,
    accesses: AccessPattern | Sequence[AccessPattern] | None = None,
    *,
    element: DType | str | int | None = None,
    tma: bool = False,
) -> SwizzleAnswer:
    """The swizzle with the least wavefronts in all, free of conflicts or not. `best` of the answer, with its report.

    Arguments, ties and refusals as in `find_swizzle`; the answer is truthy when `best` is free of conflicts.
    """
    return _search(layout, accesses, element, tma)


def _search(
    layout: Any, accesses: AccessPattern | Sequence[AccessPattern] | None, element: DType | str | int | None, tma: bool
) -> SwizzleAnswer:
    given = listed(default_access(layout, element) if accesses is None else accesses)
    if not given:
        raise AtomError("no access is given: every swizzle is free of conflicts")
    bits = element_bits(layout, element)
    if isinstance(layout, SmemTile):
        layout, element = layout.layout, layout.dtype
    at = [byte_addresses(layout, access, element) for access in given]
    patterns = [pattern_of(access.name, *found) for access, found in zip(given, at)]
    total = -(-int(np.max(np.asarray(layout.offsets())) + 1) * bits // 8)
    width = max(pattern.width for pattern in patterns)
    every = list(candidates((total - 1).bit_length(), total, width))
    if tma:
        every = [swizzle for swizzle in every if swizzle in TMA_MODES]
    looked = [swizzle for swizzle in every if has_effect(swizzle)]
    method = "GF(2) rank"
    if any(len(pattern.odd) for pattern in patterns):
        method = "exhaustion" if not any(p.columns for p in patterns) else "GF(2) rank and exhaustion"
    for swizzle in looked:
        if all(pattern.is_free(swizzle) for pattern in patterns):
            report = _report(layout, patterns, given, swizzle)
            if not report:
                raise AssertionError(f"{swizzle} passed the search and conflicts: {report}")
            return SwizzleAnswer(swizzle, swizzle, report, len(every), len(looked), method)
    weights = [[pattern.weigh(swizzle) for swizzle in looked] for pattern in patterns]
    costs = [sum(cost for _, cost in row) for row in zip(*weights)]
    best = looked[costs.index(min(costs))]
    form = "the copy engine's modes" if tma else f"the swizzles within {(total - 1).bit_length()} address bits"
    whole = "" if tma else f" that keep {width}-byte vectors whole"
    reason = _why_none(patterns, looked, [[ways for ways, _ in row] for row in weights], form, whole)
    return SwizzleAnswer(None, best, _report(layout, patterns, given, best), len(every), len(looked), method, reason)


def _report(
    layout: object, patterns: Sequence[Pattern], accesses: Sequence[AccessPattern], swizzle: Swizzle
) -> BankReport:
    parts = []
    for pattern, access in zip(patterns, accesses):
        moved = np.where(pattern.addresses < 0, -1, swizzle(pattern.addresses))
        parts.append(judge(access.name, access.kind, moved, pattern.width))
    return BankReport(tuple(parts), f"{layout} under {swizzle}")


def _why_none(
    patterns: Sequence[Pattern], looked: Sequence[Swizzle], ways_of_all: list[list[int]], form: str, whole: str
) -> str:
    """The reason that no candidate fits: an access that fails under each, or accesses with no common one."""
    alone = [[swizzle for swizzle, ways in zip(looked, row) if ways == 1] for row in ways_of_all]
    for pattern, good, row in zip(patterns, alone, ways_of_all):
        if not good:
            ways = min(row)
            least = looked[row.index(ways)]
            why = f"{pattern.name} is at best {ways}-way under {form}{whole}, with {least}"
            for columns in pattern.columns:
                words, banks = ranks(columns, pattern.width, least)
                if 1 << (words - banks) == ways:
                    moved = sorted({bit for c in columns for bit in range(c.bit_length()) if c >> bit & 1})
                    named = ", ".join(map(str, moved))
                    return (
                        f"{why}: the lanes of a phase move address bits {named}; its words have rank {words} over "
                        f"GF(2), the banks rank {banks}"
                    )
            return why
    pairs = "; ".join(
        f"{pattern.name} alone: {len(good)} ({', '.join(map(str, good[:3]))}{', ...' if len(good) > 3 else ''})"
        for pattern, good in zip(patterns, alone)
    )
    return f"no candidate of {form} serves all accesses at once: {pairs}"


@dataclass(frozen=True, eq=False)
class PaddingAnswer:
    """The result of a search for a pitch. Truthy when one is free of conflicts.

    pitch    elements from one row of the contiguous dimension to the next, or None
    layout   the padded layout, or that of the pitch with the least wavefronts
    report   its bank report
    tried    how many pitches were counted
    wasted   bytes that the padding adds to the tile
    reason   why none exists
    """

    pitch: int | None
    layout: Layout
    report: BankReport
    tried: int
    wasted: int
    reason: str = ""

    def __bool__(self) -> bool:
        return self.pitch is not None

    def as_check(self, name: str = "padding") -> Check:
        """The statement that the pitch is free of conflicts, or that none is."""
        method = f"exhaustion ({self.tried} pitches)"
        if self.pitch is None:
            return Check(name, "a pitch is free of bank conflicts", False, method, self.reason)
        statement = f"pitch {self.pitch} ({self.wasted} bytes more): {self.report.as_check().statement}"
        return Check(name, statement, True, method)

    def __str__(self) -> str:
        return str(self.as_check())


@checked(AtomError)
def find_padding(
    extent: tuple[int, int], accesses: AccessPattern | Sequence[AccessPattern], element: DType | str, major: str = "K"
) -> PaddingAnswer:
    """The smallest pitch without conflicts for a tile of rows, or a proof of none.

    extent    (mn, k) in elements; flat coordinate mn + MN*k, as in the accesses
    major     "K": rows of k, one under another at the pitch; "MN": rows of mn
    element   the element's type

    Banks repeat every 128 bytes, so the pitches of one period beyond the row are all there are. A pitch at which a
    vector would not be aligned is passed over. Raises AtomError where no pitch takes the accesses at all.

    >>> from layoutgemm.checks import matrix_access, thread_access
    >>> find_padding((128, 128), matrix_access((128, 128), "bf16"), "bf16").pitch  # 272 bytes
    136
    >>> find_padding((32, 32), thread_access(Layout(32, 1)), "f32").pitch  # a column of floats
    33
    """
    given = listed(accesses)
    bits = dtype(element).bits
    if major not in ("K", "MN"):
        raise AtomError(f"major is {shown(major)}; it is 'K' or 'MN'")
    row = extent[1] if major == "K" else extent[0]
    rows = extent[0] if major == "K" else extent[1]
    found: list[tuple[Layout, BankReport]] = []
    refusal: AtomError | None = None
    period = range(row, row + WAVEFRONT * 8 // bits)
    for pitch in period:
        layout = Layout(extent, (pitch, 1) if major == "K" else (1, pitch))
        try:
            report = bank_conflicts(layout, given, element=element)
        except AtomError as error:
            refusal = refusal or error
            continue
        wasted = (pitch - row) * rows * bits // 8
        if report:
            return PaddingAnswer(pitch, layout, report, pitch - row + 1, wasted)
        found.append((layout, report))
    if not found:
        raise AtomError(f"no pitch from {period[0]} to {period[-1]} takes these accesses: {refusal}")
    layout, report = min(found, key=lambda pair: pair[1].wavefronts)
    pitch = int(layout.stride[0] if major == "K" else layout.stride[1])
    reason = (
        f"all pitches from {period[0]} to {period[-1]} elements, one period of the banks, conflict; at best "
        f"{report.ways}-way, at {pitch}"
    )
    return PaddingAnswer(None, layout, report, len(period), (pitch - row) * rows * bits // 8, reason)
