"""Structured sparsity of A. Metadata select the places of the stored elements in the dense matrix.

Of every group of A's elements half are stored: two of four, or one of two of tf32. Of elements of 4 bits two pairs of
four are stored. A group has 4 bits of metadata, its two places, lower bits first. In mma.sync and wgmma a lane's
register holds the metadata of

    16 and 32 bits   four groups of row g in its lower half, and of row g + 8 in its upper half
    4 and 8 bits     eight groups of one row, g in even lanes, g + 8 in odd ones

where g counts the quads. The lanes of a quad go on along K. Where the metadata fill fewer than four registers of a
quad, the sparsity selector names the lanes that the instruction reads.

Sources: PTX ISA, "Sparse Matrix Storage" of mma.sp and of wgmma.mma_async.sp; NVIDIA/cutlass,
cute/atom/mma_traits_sm90_gmma_sparse.hpp and mma_traits_sm120_sparse.hpp.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ....atoms.mma.base import MmaAtom
from ....atoms.mma.warp_fragments import fragment, run_of
from ....layouts import Layout
from ...ptx.values import LANES, Value
from ..swizzles import OnFinding
from .fragments import words_of
from .operands import Matrix

# Two places of four, in rising order. Those of tf32 name one of two elements by its two halves.
ORDERED = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110)
SINGLE = (0b0100, 0b1110)
# Without .sp::ordered_metadata, mma.sync takes the two places in either order.
UNORDERED = tuple([low | high << 2 for low in range(4) for high in range(4) if low != high])
QUAD, GROUP_BITS, ROWS = 4, 4, 16


def dense(
    stored: Matrix,
    metadata: npt.NDArray[np.uint32],
    legal: tuple[int, ...],
    report: OnFinding,
) -> npt.NDArray[np.float32]:
    """A with its zeros, [row, k], from stored elements and metadata of 4 bits, [row, group]."""
    if not (known := np.isin(metadata, legal)).all():
        row, group = (int(axis[0]) for axis in np.nonzero(~known))
        report(
            "protocol",
            f"metadata of row {row}, group {group} of A is {int(metadata[row, group]):#06b}; PTX gives a meaning to "
            + ", ".join(f"{one:#06b}" for one in legal),
            "Store the metadata that the compression of A gave, in the order of the instruction's selector.",
        )
    rows, groups = metadata.shape
    places = metadata[:, :, None] >> 3 if legal == SINGLE else np.stack((metadata & 3, metadata >> 2), axis=2)
    count = places.shape[2]
    parts = stored.reshape(rows, groups, count, -1)  # of several elements where they are sparse in pairs
    out = np.zeros((rows, groups, 2 * count, parts.shape[3]), dtype=np.float32)
    np.put_along_axis(out, places[:, :, :, None].astype(np.int64), parts, axis=2)
    return out.reshape(rows, -1)


@dataclass(frozen=True, eq=False)
class RegisterMetadata:
    """The metadata of one warp's 16 rows in its lanes' registers.

    lane, low   [row, group] -> the lane that holds its 4 bits, and the lowest of them
    legal       values with a meaning
    """

    lane: npt.NDArray[np.int64]
    low: npt.NDArray[np.uint32]
    legal: tuple[int, ...]

    @classmethod
    def of(cls, full: MmaAtom, selector: int, ordered: bool = True) -> RegisterMetadata:
        """The metadata of a sparse product. Raises ValueError for a selector that PTX has not."""
        groups = groups_of(full)
        row, group = np.indices((ROWS, groups))
        upper = row // 8
        if full.a_dtype.bits >= 16:
            lanes, lane, low = groups // 4, group // 4, 16 * upper + GROUP_BITS * (group % 4)
        else:
            lanes, lane, low = groups // 4, upper + 2 * (group // 8), GROUP_BITS * (group % 8)
        if not 0 <= selector < QUAD // lanes:
            most = QUAD // lanes - 1
            raise ValueError(f"the sparsity selector of {full} is {f'0 to {most}' if most else '0'}, not {selector}")
        return cls(QUAD * (row % 8) + lanes * selector + lane, low.astype(np.uint32), meanings(full, ordered))

    def read(self, value: Value) -> npt.NDArray[np.uint32]:
        """[row, group] from the register's value."""
        words = words_of([value])[0].astype(np.uint32)
        return np.asarray(words[self.lane] >> self.low & np.uint32(0xF))


def groups_of(full: MmaAtom) -> int:
    """Groups of A's elements in a row, to each of which 4 bits of metadata belong."""
    size = 2 if full.a_dtype.name == "tf32" else 8 if full.element_bits("A") == 4 else 4
    return full.shape_mnk[2] // size


def meanings(full: MmaAtom, ordered: bool = True) -> tuple[int, ...]:
    """Groups of 4 bits to which PTX gives a meaning."""
    return SINGLE if full.a_dtype.name == "tf32" else ORDERED if ordered else UNORDERED


def of_full_depth(stored: MmaAtom, variant: str = "sp") -> MmaAtom:
    """The sparse product whose stored half is a dense one. K, B and a block scale's vector are twice as deep."""
    m, n, k = stored.shape_mnk
    depth, scale = 2 * k, stored.scale
    run_a, run_b = (run_of(stored.element_bits(operand)) for operand in "AB")
    everyone = Layout((stored.threads, (n, depth)), (0, (1, n)))
    return replace(
        stored,
        ptx=stored.ptx.replace(f"n{n}k{k}", f"n{n}k{depth}", 1).replace(".sync", f".{variant}.sync", 1),
        shape_mnk=(m, n, depth),
        layout_A=fragment(m, depth, run_a, stored.threads // LANES),
        layout_B=fragment(n, depth, run_b) if stored.b_source == "rmem" else everyone,
        scale=None if scale is None else replace(scale, vector=2 * scale.vector),
    )
