"""The bridge's flags in global memory. Words by which other devices and copy engines say that bytes have arrived.

Sources: PTX ISA, "ld" (.acquire.sys), "red" (.release.sys), "fence.proxy", "trap", "%globaltimer"; "Memory Consistency
Model".
"""

from __future__ import annotations

from collections.abc import Sequence

from cutlass import Int32, Int64

from .types import assembly


def load_acquired(address: Int64) -> Int32:
    """ld.acquire.sys of 32 bits. The writer's earlier stores, on any device, are visible after it."""
    return assembly("ld.global.acquire.sys.b32 $0, [$1];", "=r,l,~{memory}", [Int64(address)], [Int32])[0]


def add_released(address: Int64, count: int) -> None:
    """red.release.sys: add to a counter after all that this thread has written."""
    assembly("red.release.sys.global.add.u32 [$0], $1;", "l,r,~{memory}", [Int64(address), Int32(count)])


def global_reads_visible() -> None:
    """fence.proxy.async for what this thread has acquired. Its later TMA loads and stores come after that."""
    assembly("fence.proxy.async.global;", "~{memory}", [])


def nanoseconds() -> Int64:
    """The GPU's own clock, %globaltimer: it does not follow the SMs' frequency."""
    return assembly("mov.u64 $0, %globaltimer;", "=l,~{memory}", [], [Int64])[0]


def abort(record: Int64, words: Sequence[Int32]) -> None:
    """Write four words for the host, then stop the kernel. The launch ends with an error."""
    assembly(
        "st.global.v4.b32 [$0], {$1, $2, $3, $4}; fence.acq_rel.sys; trap;",
        "l,r,r,r,r,~{memory}",
        [Int64(record), *map(Int32, words)],
    )
