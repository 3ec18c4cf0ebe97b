"""The bridge's copies. Tensor maps, tensor loads (alone and multicast), tensor stores, bulk groups, plain bulk copies.

    plan object                       function here               instruction
    ------------------------------    -----------------------     ------------------------------------------------
    TmaPlan.box, .dims, .swizzle      encode_tensor_map           cuTensorMapEncodeTiled, on the host, at each launch
    TmaPlan.instructions              load_tile                   cp.async.bulk.tensor (one for each entry)
    TmaPlan.issued_by(rank)           load_share                  cp.async.bulk.tensor ... .multicast::cluster
    TmaPlan.issued_by(rank)           prefetch_share              cp.async.bulk.prefetch.tensor
    TmaPlan.instructions              send_tile                   the same, all of it by one block
    TmaPlan.instructions              store_tile                  cp.async.bulk.tensor.global.shared::cta
    in_fours(TmaPlan).instructions    gather_tile, scatter_tile   loads and stores of tile::gather4 and tile::scatter4
    PackedBlocks.block_copies         load_bytes                  cp.async.bulk.shared::cluster.global
    NumberSlots.bulk_bytes            load_bytes                  the same
    PackedBlocks.block_copies         prefetch_bytes              cp.async.bulk.prefetch.L2.global

Sources: PTX ISA, "cp.async.bulk", "cp.async.bulk.prefetch", "cp.async.bulk.tensor", "cp.async.bulk.prefetch.tensor",
"cp.async.bulk.commit_group", "cp.async.bulk.wait_group"; CUDA driver API, cuTensorMapEncodeTiled. Gathers and scatters
are assembly: the DSL's functions for them take two coordinates, and PTX five (4.8.1).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import cutlass
import cutlass.cute as cute
import cutlass.experimental.cuda as xcuda
from cutlass import Boolean, Int16, Int32, Int64
from cutlass.experimental import primitives

from layoutgemm.arguments import refusal, shown
from layoutgemm.atoms import TmaPlan
from layoutgemm.atoms.tma.gather import PTX
from layoutgemm.atoms.tma.rules import NO_STRIDE, STRIDE_UNIT
from layoutgemm.errors import AtomError

from .types import TensorMap, assembly, element_type, raw

_EVEN_BLOCK = ~(1 << 24)  # of a shared address: the lowest bit of the block's rank in its cluster is cleared
# Elements that a tensor map pads: the type of their packed memory, and the format.
_PADDED = {
    "e2m1": (cutlass.Float4E2M1FNx2, xcuda.TensorMapDataFormat.B4X16_P64),
    "e2m3": (cutlass.Float6E2M3FNx4, xcuda.TensorMapDataFormat.B6X16_P32),
    "e3m2": (cutlass.Float6E3M2FNx4, xcuda.TensorMapDataFormat.B6X16_P32),
}
_PROMOTIONS = {"none": "none", "64B": "l2_64b", "128B": "l2_128b", "256B": "l2_256b"}


def encode_tensor_map(
    tma: TmaPlan, address: Int64, extents: Mapping[str, Int32], *strides: Int64, box: Mapping[str, Int32] | None = None
) -> TensorMap:
    """Encode a tensor map, on the host: TmaPlan x run-time tensor -> tensor map.

    `address` is the tensor's first byte, and `extents` maps the dimension names of `tma.dims` to sizes in elements.
    `strides` are the distances, in elements, between neighbours along every dimension but the first. Box and swizzle
    mode come from `tma`; `box` may name other extents, run-time ones too. Reads beyond `extents` return zeros, which
    makes ragged edges right: a zero adds nothing to a dot product. Raises AtomError, while tracing, for a name or a
    stride that is missing. A map counts in units of 16 bytes: a launch with another stride faults.
    """
    if len(strides) != len(tma.dims) - 1:
        raise AtomError(
            f"encode_tensor_map: {len(strides)} stride(s) for the dimensions {', '.join(tma.dims)}; all but the first "
            "have one"
        )
    kind, packed = (element_type(tma.dtype), None) if not tma.format else _PADDED[tma.dtype.name]
    size = tma.dtype.bytes if packed is None else 1  # lines of padded elements are counted in bytes
    return xcuda.create_tensor_map_tiled(
        address,
        kind,
        [entry_of(extents, name, "extents", tma) for name in tma.dims],
        [_units(Int64(stride) * size) for stride in strides],
        [(box or {}).get(name, extent) for name, extent in zip(tma.dims, tma.box, strict=True)],
        swizzle=xcuda.TensorMapSwizzle(tma.driver_swizzle),
        l2_promotion=getattr(xcuda.TensorMapL2Promotion, _PROMOTIONS[tma.l2_promotion]),
        oob_fill=xcuda.TensorMapFloatOOBFill.none,
        tma_format=packed,
    )


def _units(nbytes: Int64) -> Int64:
    """A stride in the units of a tensor map; `NO_STRIDE` if it is no multiple."""
    return cutlass.select_(nbytes % STRIDE_UNIT == 0, nbytes // STRIDE_UNIT, Int64(NO_STRIDE))


def entry_of(given: Mapping[str, Int32], name: str, what: str, tma: TmaPlan) -> Int32:
    """The size or coordinate along a dimension. Raises AtomError, while tracing, where it is missing."""
    if not isinstance(given, Mapping) or name not in given:
        names = "{" + ", ".join(f"{dim!r}: ..." for dim in tma.dims) + "}"
        has = sorted(given) if isinstance(given, Mapping) else shown(given)
        raise AtomError(
            f"{what} of a tensor map over {', '.join(tma.dims)} are {names}; got {has}, without {shown(name)}"
        )
    return given[name]


class SelectedTensorMap:
    """One of two tensor maps, as a condition says."""

    def __init__(self, condition: Boolean, yes: TensorMap, no: TensorMap):
        self._pointers = Boolean(condition), yes.get_ptr(), no.get_ptr()

    def get_ptr(self) -> cute.Pointer:
        """The address that an instruction takes."""
        return cutlass.Pointer._from_raw_ptr(cutlass.select_(*self._pointers))


def prefetch_map(tensor_map: TensorMap | SelectedTensorMap) -> None:
    """Prefetch a tensor map into the descriptor cache."""
    primitives.prefetch_tensormap(tensor_map.get_ptr())


def load_tile(
    tensor_map: TensorMap | SelectedTensorMap, tma: TmaPlan, origin: Mapping[str, Int32], destination: cute.Pointer,
    barrier: cute.Pointer,
) -> None:  # fmt: skip
    """Issue every TMA load of one operand tile. Global box -> shared memory, bytes counted on `barrier`.

    `origin` maps the dimension names of `tma.dims` to the tile's first coordinate, in elements; `destination` is the
    stage's first byte. Call it from one thread. Each entry of `tma.instructions` adds its coordinate and byte offsets.
    """
    if not hasattr(tma, "instructions"):
        raise AtomError(refusal(tma, "tma of load_tile", "a TmaPlan, as levels.operand(...).tma"))
    for instruction in tma.instructions:
        primitives.cp_async_bulk_tensor_shared_cta_global(
            raw(destination + instruction.smem_offset),
            tensor_map.get_ptr(),
            coordinates_of(tma, origin, instruction.coord_offset),
            raw(barrier),
        )


def load_share(
    tensor_map: TensorMap | SelectedTensorMap, tma: TmaPlan, origin: Mapping[str, Int32], destination: cute.Pointer,
    barrier: cute.Pointer, rank: Int32 | int, mask: Int32 | None,
) -> None:  # fmt: skip
    """Issue this block's share of a multicast tile. `load_tile` for `tma.multicast` blocks that need the same tile.

    rank   this block's place in the multicast group, 0 .. tma.multicast - 1, traced or an int
    mask   bit i for each block i of the cluster that receives it; every receiver counts the bytes on its own barrier at
           the same address. None: this block alone

    Every rank sends the same number of boxes, evenly apart in shared memory and in the tensor, so that the share is
    rank times a distance; that is asserted here, while tracing.
    """
    for byte, byte_step, offsets in _share(tma, rank):
        target, place = raw(destination + (byte + rank * byte_step)), coordinates_of(tma, origin, offsets)
        if mask is None:
            primitives.cp_async_bulk_tensor_shared_cta_global(target, tensor_map.get_ptr(), place, raw(barrier))
        else:
            primitives.cp_async_bulk_tensor_shared_cluster_global(
                target, tensor_map.get_ptr(), place, raw(barrier), [], multicast_mask=Int16(mask)
            )


def prefetch_share(
    tensor_map: TensorMap | SelectedTensorMap, tma: TmaPlan, origin: Mapping[str, Int32], rank: Int32 | int
) -> None:
    """Bring what `load_share` would send, or `load_tile` load, into L2. A hint, which moves nothing that a thread sees.

    What another kernel writes there later is what a load finds: L2 is where all multiprocessors meet. Call it from one
    thread. Source: PTX ISA, "cp.async.bulk.prefetch.tensor".
    """
    for _, _, offsets in _share(tma, rank):
        primitives.cp_async_bulk_tensor_prefetch(tensor_map.get_ptr(), coordinates_of(tma, origin, offsets), [])


def _share(tma: TmaPlan, rank: Int32 | int) -> Iterator[tuple[int, int, list[Int32]]]:
    """Each box that a CTA sends: byte offset of rank 0, bytes between ranks, this rank's coordinates."""
    shares = [tma.issued_by(r) for r in range(tma.multicast)]
    for first, *others in zip(*shares, strict=True):
        if not others:
            yield first.smem_offset, 0, list(first.coord_offset)
            continue
        coordinate_step = [b - a for a, b in zip(first.coord_offset, others[0].coord_offset, strict=True)]
        byte_step = others[0].smem_offset - first.smem_offset
        for r, copy in enumerate(others, 1):
            expected = [a + r * step for a, step in zip(first.coord_offset, coordinate_step, strict=True)]
            assert list(copy.coord_offset) == expected and copy.smem_offset == first.smem_offset + r * byte_step, tma
        offsets = [a + rank * step if step else a for a, step in zip(first.coord_offset, coordinate_step, strict=True)]
        yield first.smem_offset, byte_step, offsets


def store_tile(
    tensor_map: TensorMap | SelectedTensorMap, tma: TmaPlan, origin: Mapping[str, Int32], source: cute.Pointer
) -> None:
    """Issue every TMA store of one tile: shared memory -> global box. Rows beyond the extents are not written.

    A line that ends within 16 bytes is written to their end: `TmaPlan.line_overrun`.

    Call it from one thread, after the tile's writers have fenced and met; then `commit_stores`.
    """
    for instruction in tma.instructions:
        primitives.cp_async_bulk_tensor_global_shared_cta(
            tensor_map.get_ptr(),
            raw(source + instruction.smem_offset),
            coordinates_of(tma, origin, instruction.coord_offset),
        )


def gather_tile(
    tensor_map: TensorMap, tma: TmaPlan, origin: Mapping[str, Int32], rows: Sequence[Int32], destination: cute.Pointer,
    barrier: cute.Pointer, pair: bool = False,
) -> None:  # fmt: skip
    """Issue every gather of one tile: four chosen rows each, bytes counted on `barrier`. Call it from one thread.

    tma   copies cut by `atoms.tma.gather.in_fours`; the tensor map has boxes of one row
    rows  the tensor's row for each row of the tile; one outside of the tensor is zeros
    pair  in a block of a pair: bytes are counted on the even block's barrier, at the same address
    """
    signal = Int32(barrier.toint()) & (_EVEN_BLOCK if pair else -1)
    opcode = PTX["gather"] + ".cta_group::2" * pair
    for instruction in tma.instructions:
        assembly(
            f"{opcode} [$0], [$1, {{$2, $3, $4, $5, $6}}], [$7];",
            "r,l,r,r,r,r,r,r,~{memory}",
            [Int32((destination + instruction.smem_offset).toint()), _generic(tensor_map),
             *_four_rows(tma, origin, instruction.coord_offset, rows), signal],
        )  # fmt: skip


def scatter_tile(
    tensor_map: TensorMap, tma: TmaPlan, origin: Mapping[str, Int32], rows: Sequence[Int32], source: cute.Pointer
) -> None:
    """Issue every scatter of one tile, as `store_tile` issues stores. Rows from the tensor's last on are not written.

    No row may be negative.
    """
    for instruction in tma.instructions:
        assembly(
            f"{PTX['scatter']} [$0, {{$1, $2, $3, $4, $5}}], [$6];",
            "l,r,r,r,r,r,r,~{memory}",
            [_generic(tensor_map), *_four_rows(tma, origin, instruction.coord_offset, rows),
             Int32((source + instruction.smem_offset).toint())],
        )  # fmt: skip


def _four_rows(tma: TmaPlan, origin: Mapping[str, Int32], offsets: Sequence[int], rows: Sequence[Int32]) -> list[Int32]:
    """A gather's or scatter's coordinates: its column, and the chosen rows of its four rows of the tile."""
    column, first = offsets
    return [Int32(origin[tma.dims[0]] + column), *rows[first : first + tma.box[1]]]


def _generic(tensor_map: TensorMap) -> Int64:
    """A tensor map's generic address."""
    return Int64(tensor_map.get_ptr().toint())


def commit_stores() -> None:
    """Close the group of tensor stores that this thread has issued since the last one."""
    cute.arch.cp_async_bulk_commit_group()


def wait_stores_read(pending: int) -> None:
    """Wait until all but `pending` of this thread's groups have read their shared memory. It may be written again."""
    cute.arch.cp_async_bulk_wait_group(pending, read=True)


def coordinates_of(tma: TmaPlan, origin: Mapping[str, Int32], offsets: Sequence[Int32 | int]) -> list[Int32]:
    """A box's coordinates, innermost first: the tile's origin plus the box's offsets in it."""
    return [entry_of(origin, name, "origin", tma) + step for name, step in zip(tma.dims, offsets, strict=True)]


def cluster_mask(size: int, first: Int32, step: int) -> Int32:
    """Bit `first + step * i` for i < size: the blocks of a cluster that a multicast reaches."""
    return Int32(sum(1 << step * i for i in range(size))) << cutlass.Int32(first)


def send_tile(
    tensor_map: TensorMap | SelectedTensorMap, tma: TmaPlan, origin: Mapping[str, Int32], destination: cute.Pointer,
    barrier: cute.Pointer, mask: Int32,
) -> None:  # fmt: skip
    """`load_tile` into every block of the cluster whose bit is in `mask`. One block reads the tile for all of them.

    Each of them receives the tile at the address that `destination` has here, and counts the bytes on its own barrier.
    """
    for instruction in tma.instructions:
        primitives.cp_async_bulk_tensor_shared_cluster_global(
            raw(destination + instruction.smem_offset),
            tensor_map.get_ptr(),
            coordinates_of(tma, origin, instruction.coord_offset),
            raw(barrier),
            [],
            multicast_mask=Int16(mask),
        )


def load_bytes(destination: cute.Pointer, address: Int64, nbytes: int, barrier: cute.Pointer) -> None:
    """cp.async.bulk of consecutive bytes, global to shared; `barrier` counts them.

    Addresses and number are multiples of 16.
    """
    assembly(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [$0], [$1], $2, [$3];",
        "r,l,r,r,~{memory}",
        [Int32(destination.toint()), Int64(address), Int32(nbytes), Int32(barrier.toint())],
    )


def prefetch_bytes(address: Int64, nbytes: int) -> None:
    """cp.async.bulk.prefetch.L2 of consecutive bytes; address and number are multiples of 16."""
    assembly("cp.async.bulk.prefetch.L2.global [$0], $1;", "l,r", [Int64(address), Int32(nbytes)])
