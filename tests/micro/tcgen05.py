"""PTX text for one tcgen05 product or copy: bring raw bytes to shared and tensor memory, run it once, store the words.

A block has 128 threads, thread t for lane t of tensor memory. Operands in shared memory come as raw bytes of their
tile; tensor memory comes as an image, [block, lane, column] words, whose columns the test names, and goes back whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tests.micro.mma_sync import header
from tests.micro.wgmma import fill_loop, place_address

PTX_VERSION = "8.8"
CHUNK = 8  # columns of one load or store


@dataclass(frozen=True)
class Tile:
    """An operand in shared memory: bytes of the tile, the descriptor at address 0, offset of the step."""

    bytes: int
    word: int
    step: int = 0


def fill(operand: str, tile: Tile) -> list[str]:
    """The CTA copies a tile from global to shared memory, and makes the descriptor."""
    return [
        f"ld.param.u64 %g, [kernel_{operand}];",
        f"mul.wide.u32 %o, %case, {tile.bytes};",
        "add.u64 %g, %g, %o;",
        "mul.wide.u32 %o, %lane, 4;",
        "add.u64 %g, %g, %o;",
        f"mov.u32 %s, smem{operand};",
        "mad.lo.u32 %to, %lane, 4, %s;",
        *fill_loop(operand, tile.bytes),
        *place_address(operand, "%s", tile.step, tile.word),
    ]


def image(columns: int) -> list[str]:
    """%g: this thread's row of the image in global memory; %ta: its warp's lanes in tensor memory."""
    return [
        "mad.lo.u32 %index, %case, 128, %lane;",
        f"mul.wide.u32 %o, %index, {4 * columns};",
        "ld.param.u64 %g, [kernel_T];",
        "add.u64 %g, %g, %o;",
        "and.b32 %ta, %lane, 96;",
        "shl.b32 %ta, %ta, 16;",
        "add.u32 %ta, %ta, %base;",
    ]


def _vector() -> str:
    return "{" + ", ".join(f"%r{i}" for i in range(CHUNK)) + "}"


def bring(columns: Sequence[int]) -> list[str]:
    """Words of the image into the columns, by threes of instructions: loads, a store, the next."""
    out = []
    for first in columns:
        out += [f"ld.global.b32 %r{i}, [%g+{4 * (first + i)}];" for i in range(CHUNK)]
        out += [f"add.u32 %at, %ta, {first};", f"tcgen05.st.sync.aligned.32x32b.x{CHUNK}.b32 [%at], {_vector()};"]
    return out


def take(columns: int) -> list[str]:
    """All columns of tensor memory into the image."""
    out = []
    for first in range(0, columns, CHUNK):
        out += [f"add.u32 %at, %ta, {first};", f"tcgen05.ld.sync.aligned.32x32b.x{CHUNK}.b32 {_vector()}, [%at];"]
        out += ["tcgen05.wait::ld.sync.aligned;"]
        out += [f"st.global.b32 [%g+{4 * (first + i)}], %r{i};" for i in range(CHUNK)]
    return out


def kernel(
    body: Sequence[str],
    tiles: Mapping[str, Tile],
    columns: int,
    group: int = 1,
    given: Sequence[int] | None = None,
    allocation: int | None = None,
    warps: Sequence[str] = (),
    registers: int = 0,
) -> str:
    """A module of one kernel with parameters kernel_T (the image) and one a tile.

    body        what one thread of the first block of the group does; it ends in a commit to %bar
    columns     of the image; given: the first column of each chunk that is brought in (all of them)
    allocation  columns to allocate (the next power of two, 32 at least)
    warps       what all threads do before that, with %ta the first lane of their warp's window
    registers   of each thread that it leaves in %v0 and on; a parameter kernel_R after the others takes them
    """
    size = allocation or max(32, 1 << (columns - 1).bit_length())
    everyone = ["barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;"] if group == 2 else ["bar.sync 0;"]
    given = range(0, columns, CHUNK) if given is None else given
    text = [
        ".reg .b32 %lane, %case, %index, %w, %i, %to, %s, %base, %ta, %at, %bar, %idesc, %rank, %d, %a, %sfa, %sfb;",
        f".reg .b32 %r<{CHUNK}>, %v<{registers + 1}>;",
        ".reg .b64 %g, %o, %descA, %descB, %descS;",
        ".reg .b16 %mask;",
        ".reg .pred %stop, %add, %first, %done;",
        "mov.u32 %lane, %tid.x;",
        "mov.u32 %case, %ctaid.x;",
        "mov.u32 %rank, %cluster_ctarank;",
        "mov.u32 %bar, barrier;",
        "setp.ne.u32 %first, %lane, 0;",
        "@%first bra ready;",
        "mbarrier.init.shared::cta.b64 [%bar], 1;",
        "fence.mbarrier_init.release.cluster;",
        "ready:",
        "setp.ge.u32 %stop, %lane, 32;",
        "@%stop bra allocated;",
        "mov.u32 %s, column;",
        f"tcgen05.alloc.cta_group::{group}.sync.aligned.shared::cta.b32 [%s], {size};",
        f"tcgen05.relinquish_alloc_permit.cta_group::{group}.sync.aligned;",
        "allocated:",
    ]
    for operand, tile in tiles.items():
        text += fill(operand, tile)
    text += ["fence.proxy.async.shared::cta;", "bar.sync 0;", "mov.u32 %s, column;", "ld.shared.b32 %base, [%s];"]
    text += [*image(columns), *bring(given), "tcgen05.wait::st.sync.aligned;"]
    if warps:
        text += [*warps, "tcgen05.wait::ld.sync.aligned;", "tcgen05.wait::st.sync.aligned;"]
    if registers:
        text += ["ld.param.u64 %o, [kernel_R];", f"mul.wide.u32 %descS, %index, {4 * registers};"]
        text += ["add.u64 %o, %o, %descS;"]
        text += [f"st.global.b32 [%o+{4 * i}], %v{i};" for i in range(registers)]
    text += ["tcgen05.fence::before_thread_sync;", *everyone]
    text += [
        "or.b32 %w, %lane, %rank;",
        "setp.ne.u32 %stop, %w, 0;",
        "@%stop bra issued;",
        "tcgen05.fence::after_thread_sync;",
        *body,
        "issued:",
        "wait:",
        "mbarrier.try_wait.parity.shared::cta.b64 %done, [%bar], 0;",
        "@!%done bra wait;",
        "tcgen05.fence::after_thread_sync;",
        *take(columns),
        "tcgen05.fence::before_thread_sync;",
        *everyone,
        "setp.ge.u32 %stop, %lane, 32;",
        "@%stop bra over;",
        "tcgen05.fence::after_thread_sync;",
        f"tcgen05.dealloc.cta_group::{group}.sync.aligned.b32 %base, {size};",
        "over:",
        "ret;",
    ]
    shared = "".join(f".shared .align 1024 .b8 smem{name}[{tile.bytes}];\n" for name, tile in tiles.items())
    shared += ".shared .align 8 .b64 barrier;\n.shared .align 4 .b32 column;\n"
    listed = ", ".join(f".param .u64 kernel_{name}" for name in ("T", *tiles, *("R" * bool(registers))))
    lines = "\n".join(line if line.endswith(":") else f"  {line}" for line in text)
    return f"{header('sm_100a', PTX_VERSION)}{shared}.visible .entry kernel({listed})\n{{\n{lines}\n}}\n"


def commit(group: int = 1) -> list[str]:
    """One arrival at the barrier of each block of the group."""
    arrive = "mbarrier::arrive::one.shared::cluster"
    if group == 1:
        return [f"tcgen05.commit.cta_group::1.{arrive}.b64 [%bar];"]
    return ["mov.u16 %mask, 3;", f"tcgen05.commit.cta_group::2.{arrive}.multicast::cluster.b64 [%bar], %mask;"]
