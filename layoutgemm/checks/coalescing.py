"""Coalescing of global memory. How many sectors and cache lines the requests of a warp touch.

Global memory moves in sectors of 32 bytes, four to a cache line of 128. One instruction of a warp is one request,
whatever the width for a lane, and the memory system fetches every sector that any of its lanes touches, once. So the
cost of a request is the number of its distinct sectors, and the least possible is its distinct bytes / 32, rounded up.

Sources: CUDA C++ Programming Guide, "Compute Capability 5.x", "Global Memory"; CUDA C++ Best Practices Guide,
"Coalesced Access to Global Memory" (32-byte transactions). For sectors per request, four sectors to a line: Nsight
Compute's documentation, "L1/TEX cache".
"""

from __future__ import annotations

from dataclasses import dataclass

from ..arguments import checked, shown
from ..dtypes import DType
from ..errors import AtomError
from ..lazy_numpy import np
from ..report import Check
from .smem.access_patterns import IntArray
from .smem.bank_conflicts import LAYOUTS, distinct, requests_of

SECTOR = 32
LINE = 128
# cudaMalloc and every driver allocation: "at least 256 bytes", CUDA C++ Programming Guide, "Device Memory Accesses".
ALLOCATION = 256


@dataclass(frozen=True, eq=False)
class SectorReport:
    """Sectors and lines of one or several accesses. Truthy when no request touches more sectors than its bytes need.

    names      of the accesses
    rows       per access: arrays over its requests of (sectors, lines, distinct bytes, least sectors)
    addresses  per access: (request, lane) byte addresses relative to the base, -1 for a lane that takes no part
    widths     per access: bytes for a lane
    base       byte offset of the base within a line for which this was counted: the worst that the alignment allows
    alignment  bytes that the base is known to be a multiple of
    subject    what was accessed
    """

    names: tuple[str, ...]
    rows: tuple[IntArray, ...]
    addresses: tuple[IntArray, ...]
    widths: tuple[int, ...]
    base: int
    alignment: int
    subject: str = "these addresses"

    @property
    def requests(self) -> int:
        """Instructions of a warp."""
        return sum(rows.shape[1] for rows in self.rows)

    @property
    def sectors(self) -> int:
        """32-byte sectors that all requests touch together."""
        return sum(int(rows[0].sum()) for rows in self.rows)

    @property
    def lines(self) -> int:
        """128-byte lines that all requests touch together."""
        return sum(int(rows[1].sum()) for rows in self.rows)

    @property
    def bytes(self) -> int:
        """Distinct bytes that the requests ask for, request by request."""
        return sum(int(rows[2].sum()) for rows in self.rows)

    @property
    def minimum(self) -> int:
        """Sectors that no arrangement could avoid: each request's distinct bytes / 32, rounded up."""
        return sum(int(rows[3].sum()) for rows in self.rows)

    @property
    def per_request(self) -> float:
        """Sectors for a request, on average."""
        return self.sectors / self.requests

    @property
    def efficiency(self) -> float:
        """Bytes asked for / bytes moved."""
        return self.bytes / (SECTOR * self.sectors)

    @property
    def coalesced(self) -> bool:
        """True if every request touches as few sectors as its bytes need."""
        return self.sectors == self.minimum

    def __bool__(self) -> bool:
        return self.coalesced

    @property
    def witness(self) -> str:
        """The first request with too many sectors, and its first sector that is not full. Or ""."""
        for name, rows, addresses, width in zip(self.names, self.rows, self.addresses, self.widths):
            over = np.flatnonzero(rows[0] > rows[3])
            if not over.size:
                continue
            request = int(over[0])
            touched: dict[int, dict[int, int]] = {}
            for lane, address in enumerate(addresses[request].tolist()):
                if address >= 0:
                    for byte in range(address + self.base, address + self.base + width):
                        touched.setdefault(byte // SECTOR, {})[byte] = lane
            sector = min((s for s, used in touched.items() if len(used) < SECTOR), default=0)
            used = touched.get(sector, {})
            lanes = sorted(set(used.values()))
            named = ", ".join(map(str, lanes[:4])) + (", ..." if len(lanes) > 4 else "")
            which, use = ("lane", "uses") if len(lanes) == 1 else ("lanes", "use")
            return (
                f"{name}, request {request}: {int(rows[0, request])} sectors for {int(rows[2, request])} bytes, "
                f"which fit {int(rows[3, request])}; of the sector at byte {sector * SECTOR - self.base} "
                f"{which} {named} {use} {len(used)} of {SECTOR} bytes"
            )
        return ""

    @checked(AtomError)
    def as_check(self, name: str = "coalescing") -> Check:
        """The statement that each request touches the fewest sectors, with the first counterexample."""
        base = f"base a multiple of {self.alignment} bytes"
        statement = (
            f"{' and '.join(self.names)} on {self.subject}, {base}: {self.per_request:g} sectors for a request "
            f"(at least {self.minimum / self.requests:g}), {self.efficiency:.0%} of the bytes moved are used"
        )
        return Check(name, statement, self.coalesced, f"exhaustion ({self.requests} requests)", self.witness)

    def explain(self) -> str:
        """A table of the accesses, the alignment, and the first request that moves too much.

        >>> print(sectors(range(0, 256, 8), 4, "ld.global").explain())
        access     bytes  requests  sectors  minimum  lines  used
        ld.global      4         1        8        4      2   50%
        base: a multiple of 256 bytes, counted at 0 within a line
        ld.global, request 0: 8 sectors for 128 bytes, which fit 4; of the sector at byte 0 lanes 0, 1, 2, 3 use 16 of \
32 bytes
        """
        wide = max(len("access"), *map(len, self.names))
        lines = [f"{'access':<{wide}}  bytes  requests  sectors  minimum  lines  used"]
        for name, rows, width in zip(self.names, self.rows, self.widths):
            count, lines_, asked, least = (int(row.sum()) for row in rows)
            lines.append(
                f"{name:<{wide}}  {width:>5}  {rows.shape[1]:>8}  {count:>7}  {least:>7}  {lines_:>5}  "
                f"{asked / (SECTOR * count):>4.0%}"
            )
        lines.append(f"base: a multiple of {self.alignment} bytes, counted at {self.base} within a line")
        return "\n".join([*lines, self.witness or "no request moves a sector that it does not need"])

    def __str__(self) -> str:
        return str(self.as_check())


@checked(AtomError)
def sectors(
    what: object,
    how: object,
    kind: str | None = None,
    *,
    element: DType | str | int | None = None,
    alignment: int = ALLOCATION,
) -> SectorReport:
    """The sectors of addresses in global memory, or of accesses to a tensor.

    `sectors(addresses, width, kind)`: byte addresses of up to 32 lanes (None or -1: takes no part), or an array
    (request, lane); width in bytes for a lane; kind "ld.global" unless given.

    `sectors(layout, accesses)`: a Layout, ComposedLayout or LinearLayout of the tensor and one `AccessPattern` or
    several; `element` says how wide an element is.

    alignment  bytes that the base is known to be a multiple of, a power of two: 256 for an allocation; where it is less
               than a line's, the count is that of the worst base

    Raises AtomError as `bank_conflicts` does, and for an alignment that the width does not divide.

    >>> sectors(range(0, 512, 16), 16).sectors, sectors(range(0, 512, 16), 4).efficiency
    (16, 0.25)
    >>> from layoutgemm.checks import thread_access
    >>> from layoutgemm import Layout
    >>> row_major = Layout((128, 64), (64, 1))
    >>> down = thread_access(Layout(32, 1), kind="ld.global", name="a column")
    >>> sectors(row_major, down, element="bf16").per_request
    32.0
    >>> sectors(range(0, 128, 4), 4, alignment=4).sectors  # 128 bytes that straddle
    5
    """
    if alignment < 1 or alignment & (alignment - 1):
        raise AtomError(f"the base's alignment is a power of two of bytes, not {shown(alignment)}")
    if kind is not None and not isinstance(what, LAYOUTS):
        _global_only(kind)
    asked, subject = requests_of(what, how, kind, element, "ld.global", "layout", LAYOUTS)
    for _, of, _, _ in asked:
        _global_only(of)
    found = [(name, addresses, width) for name, _, addresses, width in asked]
    for name, _, width in found:
        if alignment % width:
            raise AtomError(f"{name}: a base aligned to {alignment} bytes does not align accesses of {width}")
    bases = range(0, LINE, alignment) if alignment < LINE else (0,)
    counts = [(base, [count_sectors(addresses, width, base) for _, addresses, width in found]) for base in bases]
    base, rows = max(counts, key=lambda pair: sum(int(r[0].sum()) for r in pair[1]))
    names, tables, widths = (tuple(column) for column in zip(*found))
    return SectorReport(names, tuple(rows), tables, widths, base, alignment, subject)


def _global_only(kind: str) -> None:
    if kind not in ("ld.global", "st.global", "cp.async"):
        raise AtomError(f"{shown(kind)} does not access global memory: sectors are of ld.global, st.global, cp.async")


def count_sectors(addresses: IntArray, width: int, base: int) -> IntArray:
    """(sectors, lines, distinct bytes, least sectors) x request, of addresses (request, lane). -1. Takes no part.

    width  bytes for a lane, of which each address is a multiple; base: byte offset of address 0 within a line

    >>> count_sectors(np.arange(0, 256, 8)[None], 4, 0)[:, 0].tolist()
    [8, 2, 128, 4]
    """
    idle = addresses < 0
    start = addresses + base
    asked = distinct(np.where(idle, -1, start)) * width
    # An access is aligned to its width of at most a sector, so it lies in one sector.
    touched = distinct(np.where(idle, -1, start // SECTOR))
    lines = distinct(np.where(idle, -1, start // LINE))
    return np.stack([touched, lines, asked, -(-asked // SECTOR)])
