"""Copies that run on their own. They are cp.async of single threads, and cp.async.bulk of the copy engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...arguments import checked, shown
from ...dtypes import DType, dtype
from ...errors import AtomError
from ..targets import since
from .base import CopyAtom, lane_copy
from .vector import L2_PREFETCH, LOAD_CACHE

# PTX ISA, "cp.async": cp-size is 4, 8 or 16 bytes, and 16 only with .cg, which bypasses L1.
_ASYNC_BYTES = {"ca": (4, 8, 16), "cg": (16,)}
# PTX ISA, "cp.async.bulk": size and both addresses are multiples of 16 bytes; ptxas takes sizes up to 2^20 - 16.
BULK_ALIGNMENT = 16
BULK_MAX = (1 << 20) - BULK_ALIGNMENT


@dataclass(frozen=True)
class AsyncCopy(CopyAtom):
    """cp.async: a copy by one thread from global to shared memory that completes later.

    bytes        4, 8 or 16
    src_bytes    how many of them are read from global memory, the rest of the destination becoming zeros; "register"
                 where the instruction takes the number from a register, None where all are read
    completion   "cp.async.wait_group" or an mbarrier may await it; nothing else makes the data visible
    """

    bytes: int = 0
    src_bytes: int | str | None = None
    completion: tuple[str, ...] = ("cp.async.wait_group", "cp.async.wait_all", "cp.async.mbarrier.arrive")

    @property
    def alignment(self) -> int:
        """Bytes that both addresses are multiples of."""
        return self.bytes

    @property
    def zeros(self) -> int:
        """Bytes of the destination that are filled with zeros.

        >>> cp_async(16, "cg", src_bytes=0).zeros
        16
        """
        if self.src_bytes == "register":
            raise AtomError(f"{self.ptx} takes the number of bytes from a register: what is zero is known at run time")
        return 0 if self.src_bytes is None else self.bytes - int(self.src_bytes)

    @checked(AtomError)
    def source_size(self, valid: int) -> int:
        """The src-size operand that reads the first `valid` elements and zeroes the others.

        Raises AtomError when more elements are valid than the vector has, or fewer than none.

        >>> cp_async(16, element="bf16", src_bytes="register").source_size(3)
        6
        """
        most = self.values_per_thread("src")
        if not 0 <= valid <= most:
            raise AtomError(f"{self.ptx} copies {most} elements of {self.element}; {shown(valid)} cannot be valid")
        if valid * self.element.bits % 8:
            raise AtomError(f"{valid} elements of {self.element} are {valid * self.element.bits} bits: no whole bytes")
        return valid * self.element.bits // 8


@dataclass(frozen=True)
class BulkCopy(CopyAtom):
    """cp.async.bulk: one thread has the copy engine move a block of bytes.

    bytes        the block, a multiple of 16
    completion   "mbarrier": the engine counts the bytes down on an mbarrier (expect_tx them first); "bulk_group":
                 await it with cp.async.bulk.wait_group
    multicast    the block is written to the same offset in every block of the cluster that the mask names
    byte_mask    of every 16 bytes, a 16-bit mask says which are written
    """

    bytes: int = 0
    completion: str = "mbarrier"
    multicast: bool = False
    byte_mask: bool = False

    @property
    def alignment(self) -> int:
        """Bytes that both addresses are multiples of."""
        return BULK_ALIGNMENT

    @property
    def phases(self) -> tuple[tuple[int, ...], ...]:
        """Raises AtomError: the copy engine, not the lanes of a warp, accesses shared memory."""
        raise AtomError(f"{self.ptx} is done by the copy engine: no lanes access shared memory")

    @checked(AtomError)
    def transaction_bytes(self, blocks: int = 1) -> int:
        """Bytes that each destination's mbarrier is to expect; multicast does not multiply them.

        blocks   thread blocks that send such a copy into this one

        Raises AtomError for a copy that completes by bulk group.

        >>> bulk_copy(4096).transaction_bytes()
        4096
        """
        if self.completion != "mbarrier":
            raise AtomError(f"{self.ptx} completes by bulk group and counts no bytes on an mbarrier")
        if blocks < 1:
            raise AtomError(f"a positive number of blocks sends the copies, not {shown(blocks)}")
        return self.bytes * blocks


@checked(AtomError)
def cp_async(
    bytes: int,
    cache: str = "ca",
    element: DType | str = "u8",
    src_bytes: int | str | None = None,
    l2_prefetch: int | None = None,
) -> AsyncCopy:
    """cp.async of 4, 8 or 16 bytes by each thread, from global to shared memory.

    cache        "ca" (all levels) or "cg" (L2 only; 16 bytes), or the DSL's names "always" and "global"
    element      the type that the maps count in
    src_bytes    0..bytes: bytes beyond it become zeros; "register": the number comes from a register, which must hold
                 0..bytes too; None: all bytes are read
    l2_prefetch  64, 128 or 256 bytes, or None

    Raises AtomError for anything PTX has not. Source: PTX ISA, "Data Movement and Conversion Instructions: cp.async".

    >>> copy = cp_async(16, "cg", "bf16", l2_prefetch=128)
    >>> print(copy, copy.layout_dst)
    cp.async.cg.shared.global.L2::128B (1,8):(0,1)
    >>> cp_async(8, "cg")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.AtomError: cp.async.cg copies 16 bytes, not 8
    """
    kind = dtype(element)
    cop = next((c for c in _ASYNC_BYTES if cache in (c, LOAD_CACHE[c])), None)
    if cop is None:
        raise AtomError(f"cp.async has the cache operators ca (always) and cg (global), not {shown(cache)}")
    sizes = _ASYNC_BYTES[cop]
    if bytes not in sizes:
        raise AtomError(f"cp.async.{cop} copies {', '.join(map(str, sizes))} bytes, not {shown(bytes)}")
    if src_bytes not in (None, "register") and (isinstance(src_bytes, str) or not 0 <= src_bytes <= bytes):
        raise AtomError(f"cp.async of {bytes} bytes reads 0..{bytes} of them, not {shown(src_bytes)}")
    if l2_prefetch is not None and l2_prefetch not in L2_PREFETCH:
        raise AtomError(f"L2 prefetch sizes are {', '.join(map(str, L2_PREFETCH))} bytes, not {shown(l2_prefetch)}")
    ptx = f"cp.async.{cop}.shared.global" + (f".L2::{l2_prefetch}B" if l2_prefetch else "")
    return lane_copy(
        AsyncCopy, kind, bytes * 8, f"{bytes} bytes", "cp.async",
        ptx=ptx, archs=since("sm_80"), source="gmem", target="smem", bytes=bytes, src_bytes=src_bytes,
    )  # fmt: skip


# (source, target) -> state spaces in PTX's order and how the copy completes. PTX ISA, "cp.async.bulk".
_BULK = {
    ("gmem", "smem"): ("shared::cluster.global", "mbarrier"),
    ("smem", "smem"): ("shared::cluster.shared::cta", "mbarrier"),
    ("smem", "gmem"): ("global.shared::cta", "bulk_group"),
}
_COMPLETION = {"mbarrier": ".mbarrier::complete_tx::bytes", "bulk_group": ".bulk_group"}


@checked(AtomError)
def bulk_copy(
    bytes: int,
    source: str = "gmem",
    target: str = "smem",
    element: DType | str = "u8",
    multicast: bool = False,
    byte_mask: bool = False,
) -> BulkCopy:
    """cp.async.bulk of a contiguous block. Global to shared, shared to global, or shared to another block's shared.

    bytes       a multiple of 16, from 16 to 2**20 - 16
    source, target   "gmem" -> "smem", "smem" -> "gmem", or "smem" -> "smem" (distributed shared memory)
    element     the type that the maps count in
    multicast   gmem -> smem of every block of the cluster that a mask names
    byte_mask   smem -> gmem with a mask of the bytes of every 16 (sm_100)

    Raises AtomError for another size or pair, naming the arithmetic. Source: PTX ISA, "Data Movement and Conversion
    Instructions: cp.async.bulk".

    >>> print(bulk_copy(1024), bulk_copy(1024, "smem", "gmem").completion)
    cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes bulk_group
    >>> bulk_copy(24)
    Traceback (most recent call last):
    ...
    layoutgemm.errors.AtomError: cp.async.bulk copies multiples of 16 bytes; 24 is 1 x 16 + 8
    """
    kind = dtype(element)
    if (source, target) not in _BULK:
        known = ", ".join(f"{a} -> {b}" for a, b in _BULK)
        raise AtomError(f"cp.async.bulk copies {known}, not {shown(source)} -> {shown(target)}")
    if not BULK_ALIGNMENT <= bytes <= BULK_MAX:
        raise AtomError(f"cp.async.bulk copies {BULK_ALIGNMENT} to {BULK_MAX} bytes, not {shown(bytes)}")
    if bytes % BULK_ALIGNMENT:
        count, rest = divmod(bytes, BULK_ALIGNMENT)
        raise AtomError(f"cp.async.bulk copies multiples of 16 bytes; {bytes} is {count} x 16 + {rest}")
    spaces, completion = _BULK[source, target]
    if multicast and (source, target) != ("gmem", "smem"):
        raise AtomError(f"cp.async.bulk multicasts gmem -> smem alone, not {source} -> {target}")
    if byte_mask and (source, target) != ("smem", "gmem"):
        raise AtomError(f"cp.async.bulk masks bytes smem -> gmem alone, not {source} -> {target}")
    suffix = ".multicast::cluster" if multicast else ".cp_mask" if byte_mask else ""
    return lane_copy(
        BulkCopy, kind, bytes * 8, f"{bytes} bytes", "cp.async.bulk",
        ptx=f"cp.async.bulk.{spaces}{_COMPLETION[completion]}{suffix}", archs=since("sm_100" if byte_mask else "sm_90"),
        source=source, target=target, bytes=bytes, completion=completion, multicast=multicast, byte_mask=byte_mask,
    )  # fmt: skip


# PTX ISA, "st.async": .b32, .b64, and vectors of two or four.
_STORE_BITS = {32: ".b32", 64: ".v2.b32", 128: ".v4.b32"}


@checked(AtomError)
def st_async(bits: int = 32, element: DType | str = "u32") -> CopyAtom:
    """st.async stores a vector from registers to shared memory of the cluster. The block's mbarrier counts it.

    bits   32, 64 or 128; raises AtomError for others. Source: PTX ISA, "Data Movement and Conversion Instructions:
    st.async"; CopyDsmemStoreOp of the DSL.

    >>> print(st_async(128, "f32"))
    st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32
    """
    kind = dtype(element)
    if bits not in _STORE_BITS:
        raise AtomError(f"st.async stores {', '.join(map(str, _STORE_BITS))} bits, not {shown(bits)}")
    ptx = f"st.async.weak.shared::cluster.mbarrier::complete_tx::bytes{_STORE_BITS[bits]}"
    return lane_copy(
        CopyAtom, kind, bits, f"{bits} bits", "st.async", ptx=ptx, archs=since("sm_90"), source="rmem", target="smem"
    )


def async_copies() -> Iterator[CopyAtom]:
    """cp.async by size and cache, cp.async.bulk by direction, st.async by width. The bulk copies are of 128
    bytes.

    >>> len(list(async_copies()))
    12
    """
    for cache, sizes in _ASYNC_BYTES.items():
        for size in sizes:
            yield cp_async(size, cache)
    for source, target in _BULK:
        yield bulk_copy(128, source, target)
    yield bulk_copy(128, multicast=True)
    yield bulk_copy(128, "smem", "gmem", byte_mask=True)
    for bits in _STORE_BITS:
        yield st_async(bits, "u8")
