"""PTX text for tensor stores and reductions that end within 16 bytes of a line: one warp, one tile, two boxes.

Parameters of the kernel, in order: `image`, the bytes of the shared tile; `before`, the first content of global memory;
`target`, the tensor's memory; and, by value, a tensor map. The warp copies the image to shared memory and `before` to
the target, fences, and one lane stores the tile twice. One box holds the ends of lines, rows and planes; the other
begins beyond the last element of every line.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.dtypes import DType

PTX_VERSION = "8.0"
IMAGE = 512  # bytes of the largest tile
PITCH = 192  # bytes from one line to the next
STEP = 512  # bytes that the warp copies at a time
# Rows and planes: of the tensor, of its memory (the rest must stay as it is), of the box; and where the box starts.
EXTENTS, HELD, BOX, AT = (6, 3), (8, 4), (4, 2), (4, 2)


@dataclass(frozen=True)
class Case:
    """One map and its boxes.

    columns    of the tensor: its innermost extent
    operation  "store", or "add", ... of a reduction
    """

    dtype: DType
    rank: int
    columns: int
    operation: str = "store"
    swizzle: str = "none"

    @property
    def unit(self) -> int:
        """Elements in 16 bytes."""
        return 16 // self.dtype.bytes

    @property
    def tmap(self) -> TensorMap:
        """The tensor map: boxes are 64 bytes wide."""
        more = self.rank - 1
        strides = tuple(PITCH * int(np.prod(HELD[:i])) for i in range(more))
        box = (4 * self.unit, *BOX[:more])
        return TensorMap(
            self.dtype, (self.columns, *EXTENTS[:more]), strides, box, (1,) * self.rank, self.swizzle,
            l2_promotion="none",
        )  # fmt: skip

    @property
    def coordinates(self) -> tuple[tuple[int, ...], ...]:
        """The starts of the two boxes: in front of the ends of lines, and beyond them."""
        return tuple((start * self.unit, *AT[: self.rank - 1]) for start in (4, 8))

    @property
    def shape(self) -> tuple[int, ...]:
        """Extents of the target's elements, outermost first."""
        return (*HELD[: self.rank - 1][::-1], PITCH // self.dtype.bytes)

    @property
    def held(self) -> int:
        """Bytes of the target's buffer: a whole number of the warp's steps."""
        return -(-int(np.prod(self.shape)) * self.dtype.bytes // STEP) * STEP

    def __str__(self) -> str:
        name = self.operation if self.operation == "store" else f"reduce {self.operation}"
        swizzle = "" if self.swizzle == "none" else f", swizzle {self.swizzle}"
        return f"{name}, {self.rank}-D, {self.dtype}{swizzle}"


def cases(dtype: DType, rank: int, operation: str = "store", swizzle: str = "none") -> list[Case]:
    """A case for every way in which a line may end within 16 bytes."""
    unit = 16 // dtype.bytes
    return [Case(dtype, rank, columns, operation, swizzle) for columns in range(5 * unit + 1, 6 * unit + 1)]


def contents(case: Case, rng: np.random.Generator) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """Image and before: small integers of the type, which overlap in no value, so that what is written shows."""

    def drawn(low: int, high: int, count: int) -> npt.NDArray[np.uint8]:
        words = case.dtype.encode(rng.integers(low, high, count // case.dtype.bytes))
        return np.ascontiguousarray(words).view(np.uint8)

    return drawn(16, 32, IMAGE), drawn(1, 16, case.held)


def kernel(case: Case, arch: str, version: str = PTX_VERSION, name: str = "kernel") -> str:
    """The module's text. It depends on the case's type, rank, operation and swizzle alone."""
    words = f"{case.rank}d.global.shared::cta"
    if case.operation == "store":
        opcode = f"cp.async.bulk.tensor.{words}.tile.bulk_group"
    else:
        opcode = f"cp.reduce.async.bulk.tensor.{words}.{case.operation}.tile.bulk_group"
    four = "{%c0, %c1, %c2, %c3}"

    def through(source: str, target: str, space: str, count: int) -> list[str]:
        return [
            line
            for at in range(0, count, STEP)
            for line in (f"ld.global.v4.b32 {four}, [{source}+{at}];", f"st.{space}.v4.b32 [{target}+{at}], {four};")
        ]

    body = [
        f".shared .align 1024 .b8 {name}_tile[{IMAGE}];",
        ".reg .b32 %lane, %tile, %mine; .reg .b32 %c<4>; .reg .b64 %o, %pmap; .reg .pred %one;",
        "mov.u32 %lane, %tid.x;",
        f"mov.u32 %tile, {name}_tile;",
        "mad.lo.u32 %mine, %lane, 16, %tile;",
        "mul.wide.u32 %o, %lane, 16;",
        f"mov.b64 %pmap, {name}_map;",
        "cvta.param.u64 %pmap, %pmap;",
    ]
    for x in ("image", "before", "target"):
        body += [f".reg .b64 %p{x};", f"ld.param.u64 %p{x}, [{name}_{x}];", f"cvta.to.global.u64 %p{x}, %p{x};"]
        body += [f"add.u64 %p{x}, %p{x}, %o;"]
    body += through("%pimage", "%mine", "shared", IMAGE)
    body += through("%pbefore", "%ptarget", "global", case.held)
    body += ["fence.proxy.async;", "bar.sync 0;", "setp.ne.u32 %one, %lane, 0;", "@%one bra END;"]
    for at in case.coordinates:
        body.append(f"{opcode} [%pmap, {{{', '.join(map(str, at))}}}], [%tile];")
    body += ["cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0;", "END:", "ret;"]
    listed = ", ".join(f".param .u64 {name}_{x}" for x in ("image", "before", "target"))
    head = f".version {version}\n.target {arch}\n.address_size 64\n"
    return (
        f"{head}.visible .entry {name}({listed}, .param .align 64 .b8 {name}_map[128])\n{{\n"
        + "\n".join(f"  {line}" for line in body)
        + "\n}\n"
    )
