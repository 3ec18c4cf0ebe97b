"""Bank conflicts of shared memory, by the phases in which each instruction really runs.

Shared memory has 32 banks of 4 bytes; the word at byte address a lies in bank a/4 mod 32. In one pass (a *wavefront*)
every bank gives or takes one word, whoever asked for it. Lanes that name the same word share it, for stores too (one of
them wins), and bytes and halves of one word do not conflict.

A wavefront moves 128 bytes, so an instruction whose lanes name more is taken in *phases*: as many consecutive lanes as
ask for 128 bytes together (`PHASE_LANES` of the copy atoms):

    bytes for a lane   lanes of a phase                                  phases of a full warp
    1, 2, 4            32                                                1
    8                  16, a half-warp                                   2
    16                 8, a quarter-warp; for ldmatrix, stmatrix,        4
                       matrix operands and the copy engine 8 rows

Within a phase, a bank that must give w different words makes it take w wavefronts: a w-way conflict.

Accesses of 8 and 16 bytes have two rules of cost beside the conflicts. A phase without an active lane still takes its
wavefront. And loads where all active lanes n and n^1 name the same address, or all n and n^2 do, take two phases as
one, since the registers to return fit in one. `wavefronts` counts both when `packing` is on; `ways` is always by the
phases of the table.

Sources: CUDA C++ Programming Guide, "Compute Capability 5.x", "Shared Memory" (banks, same word, one of the writers
wins), and its older section "Compute Capability 2.x" for half-warps at 64 bits. For 8 row addresses a matrix: PTX ISA,
ldmatrix and stmatrix; for the pairs: NVIDIA developer forum, "Unexpected shared memory bank conflict" (topic 77228).
The access schedule of the tensor cores and of TMA is not documented; the model for them is one core matrix, or 128
bytes, at a time. All others were measured on an H200: benchmarks/verify_banks.py, 198 patterns, recorded in
benchmarks/results/banks_h200.json.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ...arch import Arch
from ...arch import arch as arch_of
from ...arguments import as_int, checked, refusal, shown
from ...atoms.copy.base import PHASE_LANES, WARP
from ...atoms.smem.tile import SmemTile
from ...dtypes import DType
from ...errors import AtomError
from ...layouts import ComposedLayout, Layout
from ...layouts.linear import LinearLayout
from ...lazy_numpy import np
from ...report import Check
from .access_patterns import IntArray, byte_addresses, check_width, default_access, listed

if TYPE_CHECKING:
    import numpy.typing as npt

BANKS = 32
BANK_BYTES = 4
WAVEFRONT = BANKS * BANK_BYTES


def lanes_of_phase(width: int) -> int:
    """Lanes of one phase when each accesses `width` bytes. Together 128 bytes, at most a warp.

    >>> [lanes_of_phase(width) for width in (1, 4, 8, 16)]
    [32, 32, 16, 8]
    """
    return PHASE_LANES[width]


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of one request.

    access, request, index  whose it is: the access's name, its request, the phase's number in it
    ways   wavefronts that it takes: the most different words that one bank must give
    bank   the first bank that gives as many
    hits   (lane, byte address) of the first lane of each of its words
    """

    access: str
    request: int
    index: int
    ways: int
    bank: int
    hits: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        lanes = ", ".join(f"lane {lane} at byte {address}" for lane, address in self.hits[:4])
        more = f" and {len(self.hits) - 4} more" if len(self.hits) > 4 else ""
        head = f"{self.access}, request {self.request}, phase {self.index}"
        return f"{head}: bank {self.bank} gives {self.ways} words: {lanes}{more}"


@dataclass(frozen=True, eq=False)
class Requests:
    """The requests of one access, with the cost of each phase.

    name, kind, width  the access, its instruction, bytes for a lane
    addresses          (request, lane) -> byte address, -1 for a lane that takes no part
    phase_ways         (request, phase) -> ways, 0 where no lane of the phase takes part
    minima             request -> its distinct bytes / 128, rounded up: no order of the lanes needs fewer wavefronts
    packed             request -> wavefronts, with phases of paired lanes taken as one where the hardware does
    """

    name: str
    kind: str
    width: int
    addresses: IntArray = field(repr=False)
    phase_ways: IntArray = field(repr=False)
    minima: IntArray = field(repr=False)
    packed: IntArray = field(repr=False)

    def phase(self, request: int, index: int) -> Phase:
        """One phase, with the lanes at its worst bank."""
        size = lanes_of_phase(self.width)
        words: dict[int, dict[int, tuple[int, int]]] = {}
        for lane, address in enumerate(self.addresses[request].tolist()):
            if lane // size == index and address >= 0:
                for at in range(address, address + self.width, BANK_BYTES):
                    word = at // BANK_BYTES
                    words.setdefault(word % BANKS, {}).setdefault(word, (lane, address))
        ways = max((len(found) for found in words.values()), default=0)
        bank = min((b for b, found in words.items() if len(found) == ways), default=0)
        return Phase(self.name, request, index, ways, bank, tuple(words.get(bank, {}).values()))


@dataclass(frozen=True, eq=False)
class BankReport:
    """The bank conflicts of one or several accesses. Truthy without conflicts.

    parts    the accesses, each with the ways of its phases
    subject  what was accessed, for the statement
    packing  whether `wavefronts` takes phases of paired lanes as one
    """

    parts: tuple[Requests, ...]
    subject: str = "these addresses"
    packing: bool = True

    @property
    def ways(self) -> int:
        """The worst phase's wavefronts: 1 is free of conflicts."""
        return max(int(part.phase_ways.max(initial=0)) for part in self.parts)

    @property
    def phases(self) -> int:
        """The number of phases: the wavefronts if nothing conflicts and no lanes pair."""
        return sum(int((part.phase_ways > 0).sum()) for part in self.parts)

    @property
    def wavefronts(self) -> int:
        """Passes over the banks that all requests take together."""
        return sum(int((part.packed if self.packing else part.phase_ways.sum(1)).sum()) for part in self.parts)

    @property
    def minimum(self) -> int:
        """Passes that no arrangement could avoid. The distinct bytes of each request / 128, rounded up."""
        return sum(int(part.minima.sum()) for part in self.parts)

    @property
    def conflict_free(self) -> bool:
        """True if no bank is asked for two words in any phase."""
        return self.ways <= 1

    def __bool__(self) -> bool:
        return self.conflict_free

    def conflicts(self) -> Iterator[Phase]:
        """The phases that take more than one wavefront, in order."""
        for part in self.parts:
            for request, index in np.argwhere(part.phase_ways > 1).tolist():
                yield part.phase(request, index)

    @property
    def witness(self) -> Phase | None:
        """The first conflict, or None."""
        return next(self.conflicts(), None)

    @checked(AtomError)
    def as_check(self, name: str = "banks") -> Check:
        """The statement that nothing conflicts, with its verdict and the first conflict as witness."""
        requests = sum(part.addresses.shape[0] for part in self.parts)
        statement = (
            f"{' and '.join(part.name for part in self.parts)} on {self.subject}: {self.ways}-way at worst, "
            f"{self.wavefronts} wavefronts for {requests} requests (at least {self.minimum})"
        )
        witness = "" if self.conflict_free else str(self.witness)
        return Check(name, statement, self.conflict_free, f"exhaustion ({self.phases} phases)", witness)

    def explain(self) -> str:
        """A table of the accesses, and the lanes and banks of the first conflict.

        >>> print(bank_conflicts([128 * lane for lane in range(8)], 16, "ldmatrix").explain())
        access    bytes  requests  phases  ways  wavefronts  minimum
        ldmatrix     16         1       1     8           8        1
        ldmatrix, request 0, phase 0: bank 0 gives 8 words
        lane  byte  word  banks
           0     0     0  0..3
           1   128    32  0..3
           2   256    64  0..3
           3   384    96  0..3
           4   512   128  0..3
           5   640   160  0..3
           6   768   192  0..3
           7   896   224  0..3
        """
        wide = max(len("access"), *(len(part.name) for part in self.parts))
        lines = [f"{'access':<{wide}}  bytes  requests  phases  ways  wavefronts  minimum"]
        for part in self.parts:
            one = BankReport((part,), packing=self.packing)
            lines.append(
                f"{part.name:<{wide}}  {part.width:>5}  {part.addresses.shape[0]:>8}  {one.phases:>6}  {one.ways:>4}  "
                f"{one.wavefronts:>10}  {one.minimum:>7}"
            )
        first = self.witness
        if first is None:
            return "\n".join([*lines, "no bank is asked for two words in any phase"])
        part = next(p for p in self.parts if (p.phase_ways > 1).any())
        lines.append(f"{first.access}, request {first.request}, phase {first.index}: bank {first.bank} gives "
                     f"{first.ways} words")  # fmt: skip
        size = lanes_of_phase(part.width)
        rows = [("lane", "byte", "word", "banks")]
        for lane in range(first.index * size, min((first.index + 1) * size, part.addresses.shape[1])):
            address = int(part.addresses[first.request, lane])
            if address >= 0:
                low, high = address // BANK_BYTES % BANKS, (address + part.width - 1) // BANK_BYTES % BANKS
                rows.append((str(lane), str(address), str(address // BANK_BYTES),
                             str(low) if low == high else f"{low}..{high}"))  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows)]
        for lane_, byte, word, bank in rows:
            lines.append(f"{lane_:>{widths[0]}}  {byte:>{widths[1]}}  {word:>{widths[2]}}  {bank}")
        return "\n".join(lines)

    def __str__(self) -> str:
        return str(self.as_check())


@checked(AtomError)
def bank_conflicts(
    what: object,
    how: object = None,
    kind: str | None = None,
    *,
    element: DType | str | int | None = None,
    arch: Arch | str | None = None,
    packing: bool = True,
) -> BankReport:
    """The bank conflicts of addresses, or of accesses to a tile.

    `bank_conflicts(addresses, width, kind)`: byte addresses of up to 32 lanes (None or -1: the lane takes no part), or
    an array (request, lane) of them. `width` is in bytes for a lane; `kind` is a key of `accesses.WIDTHS`, "ld.shared"
    unless given.

    `bank_conflicts(tile, accesses)`: a SmemTile, Layout, ComposedLayout or LinearLayout and one `AccessPattern` or
    several, by default its rows (`row_access`); `element` says how wide an element is where the tile does not.
    Addresses are relative to the tile. Where
    its base is a multiple of 4 and of the width (and, swizzled, of the swizzle's period) it turns all banks alike, so
    it changes no count.

    Raises AtomError for an unknown kind or width, for an address that is no multiple of the width (the instruction
    faults), and where a lane's elements are not contiguous.

    >>> bank_conflicts([4 * 33 * lane for lane in range(32)], 4).ways, bank_conflicts(range(0, 4096, 128), 4).ways
    (1, 32)
    >>> from layoutgemm.atoms import smem_tile
    >>> [bank_conflicts(smem_tile((64, 64), "bf16", "K", s)).ways for s in ("32B", "64B", "128B")]
    [1, 1, 1]
    >>> from layoutgemm import Layout
    >>> from layoutgemm.checks import column_access
    >>> tile = Layout((64, 64), (64, 1))
    >>> bank_conflicts(tile, element="bf16").ways, bank_conflicts(tile, column_access(tile), element="bf16").ways
    (8, 32)
    """
    if arch is not None:
        facts = arch_of(arch)
        if (facts.smem_banks, facts.smem_bank_bytes) != (BANKS, BANK_BYTES):
            raise AtomError(f"{facts.name} has {facts.smem_banks} banks of {facts.smem_bank_bytes} bytes")
    if how is None and isinstance(what, (SmemTile, *LAYOUTS)):
        how = default_access(what, element)
    asked, subject = requests_of(what, how, kind, element, "ld.shared", "tile", (SmemTile, *LAYOUTS))
    parts = tuple([judge(name, of, addresses, width) for name, of, addresses, width in asked])
    return BankReport(parts, subject, packing)


LAYOUTS = (Layout, ComposedLayout, LinearLayout)
_MOST = (1 << 62) - 1  # of an address: int64 holds it with the bytes of its access
Asked = tuple[str, str, IntArray, int]  # name and kind of an access, its addresses and width


def requests_of(
    what: object,
    how: object,
    kind: str | None,
    element: DType | str | int | None,
    default: str,
    noun: str,
    holders: tuple[type, ...],
) -> tuple[list[Asked], str]:
    """The requests of addresses, or of accesses to a holder, and the subject of statements.

    `default` is the kind of addresses without one, `noun` a holder in refusals. Raises AtomError.
    """
    if not isinstance(what, holders):
        kind = default if kind is None else kind
        width = as_int(how, "how, the bytes of each lane,", AtomError)
        addresses = address_array(what)
        check_addresses(addresses, width, kind)
        return [(kind, kind, addresses, width)], "these addresses"
    if kind is not None:
        raise AtomError(f"an access has its own kind; {shown(kind)} is not for a {noun}")
    accesses = listed(how)
    if not accesses:
        raise AtomError(f"how is one access or several, as matrix_access((64, 64), 'bf16') makes, not {shown(how)}")
    return [(access.name, access.kind, *byte_addresses(what, access, element)) for access in accesses], str(what)


def address_array(addresses: object) -> IntArray:
    """Byte addresses of requests, as int64 (request, lane) with -1 for None. One request may come alone.

    Raises AtomError for anything but integers, and for more lanes than a warp has.
    """
    if not isinstance(addresses, np.ndarray):
        if isinstance(addresses, (str, bytes, Mapping)) or not isinstance(addresses, Iterable):
            raise AtomError(refusal(addresses, "what is accessed", "byte addresses in a list, or a layout"))
        addresses = list(addresses)
        nested = bool(addresses) and isinstance(addresses[0], (list, tuple, np.ndarray))
        rows = [list(row) for row in addresses] if nested else [addresses]
        rows = [[-1 if x is None else as_int(x, "an address", AtomError, most=_MOST) for x in row] for row in rows]
        if len({len(row) for row in rows}) > 1:
            raise AtomError(f"requests of {sorted({len(row) for row in rows})} lanes: they must be alike; use None")
        addresses = np.array(rows, dtype=np.int64)
    if addresses.dtype.kind not in "iu":
        raise AtomError(f"addresses are integers, not {addresses.dtype}")
    if addresses.size and int(addresses.max()) > _MOST:
        raise AtomError(f"an address must be at most {_MOST}, not {int(addresses.max())}")
    table = np.atleast_2d(addresses).astype(np.int64)
    if table.ndim != 2 or not 1 <= table.shape[1] <= WARP or not table.shape[0]:
        raise AtomError(f"addresses of 1 to {WARP} lanes, or (request, lane), not of shape {addresses.shape}")
    return table


def check_addresses(addresses: IntArray, width: object, kind: str) -> None:
    """Raise AtomError unless the kind has the width and every address is its multiple."""
    width = as_int(width, "the width in bytes", AtomError)
    check_width(kind, width)
    wrong = (addresses < -1) | ((addresses >= 0) & (addresses % width != 0))
    if wrong.any():
        request, lane = (int(axis[0]) for axis in np.nonzero(wrong))
        raise AtomError(f"{kind}: lane {lane} of request {request} names byte {int(addresses[request, lane])}, "
                        f"no multiple of its {width} bytes")  # fmt: skip


def ways_of(addresses: IntArray, width: int) -> IntArray:
    """(phase, lane) byte addresses, -1 for none -> wavefronts of each phase. Different words of its busiest bank."""
    words = addresses[:, :, None] // BANK_BYTES + np.arange(max(1, width // BANK_BYTES))
    ordered = np.sort(np.where((addresses >= 0)[:, :, None], words, -1).reshape(len(addresses), -1), axis=1)
    fresh = _first_of_equals(ordered)
    bank = ordered % BANKS + BANKS * np.arange(len(addresses))[:, None]
    counts = np.bincount(bank[fresh], minlength=len(addresses) * BANKS)
    return counts.reshape(len(addresses), BANKS).max(1).astype(np.int64)


def phases_of(addresses: IntArray, width: int) -> IntArray:
    """(request, lane) -> (request, phase, lane of the phase), filled with -1 at the end."""
    size = lanes_of_phase(width)
    requests, lanes = addresses.shape
    full = -(-lanes // size) * size
    padded = np.full((requests, full), -1, np.int64)
    padded[:, :lanes] = addresses
    return padded.reshape(requests, full // size, size)


def judge(name: str, kind: str, addresses: IntArray, width: int) -> Requests:
    """The ways of every phase of every request; the addresses are checked already."""
    width = int(width)
    phases = phases_of(addresses, width)
    requests, count, size = phases.shape
    ways = ways_of(phases.reshape(-1, size), width).reshape(requests, count)
    packed = ways.sum(1)
    if kind in ("ld.shared", "st.shared") and width > BANK_BYTES:
        packed = np.maximum(ways, 1).sum(1) + WARP // size - count
        if kind == "ld.shared":
            for request in np.flatnonzero(_paired(addresses)).tolist():
                pairs = phases_of(addresses[request : request + 1], width // 2)
                taken = np.maximum(ways_of(pairs.reshape(-1, pairs.shape[2]), width), 1)
                packed[request] = taken.sum() + WARP // pairs.shape[2] - len(taken)
    return Requests(name, kind, width, addresses, ways, _minima(addresses, width), packed)


def _paired(addresses: IntArray) -> npt.NDArray[np.bool_]:
    """Per request: do all active lanes n and n^1 name one address, or all n and n^2? An idle partner does not count."""
    requests, lanes = addresses.shape
    warp = np.full((requests, WARP), -1, np.int64)
    warp[:, :lanes] = addresses
    out = np.zeros(requests, np.bool_)
    for step in (1, 2):
        partner = warp[:, np.arange(WARP) ^ step]
        out |= ((warp == partner) | (warp < 0) | (partner < 0)).all(1)
    return out


def _minima(addresses: IntArray, width: int) -> IntArray:
    """Distinct bytes of each request / 128, rounded up. Addresses are multiples of the width: no two overlap partly."""
    return -(-distinct(addresses) * width // WAVEFRONT)


def distinct(values: IntArray) -> IntArray:
    """The number of different values >= 0 in each row."""
    return _first_of_equals(np.sort(values, axis=1)).sum(1).astype(np.int64)


def _first_of_equals(ordered: IntArray) -> npt.NDArray[np.bool_]:
    """True for the first of equal values >= 0 in each sorted row."""
    first = ordered >= 0
    first[:, 1:] &= ordered[:, 1:] != ordered[:, :-1]
    return first
