"""TMA loads of one box through a random tensor map: one warp loads a tile and copies its bytes out.

Parameters of the kernel: the tensor, the output, and, by value, the tensor map.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from layoutgemm.atoms.tma.rules import TensorMap, broken
from layoutgemm.dtypes import dtype
from tests.micro.cuda_driver import Device
from tests.micro.emulated_device import EmulatedDevice
from tests.micro.mma_sync import header

KINDS = ("u8", "u16", "u32", "i32", "u64", "f16", "bf16", "f32")
SPANS = {"none": 0, "32B": 32, "64B": 64, "128B": 128}  # bytes of a line of the box under a swizzle
BASE = 1 << 20  # an address that is aligned for every rule


@dataclass(frozen=True)
class Load:
    """A map, the coordinates of a box, and the seed of the tensor's bytes."""

    tmap: TensorMap
    at: tuple[int, ...]
    seed: int

    @property
    def tile(self) -> int:
        """Bytes of the box."""
        return int(np.prod(self.tmap.box)) * self.tmap.dtype.bytes

    @property
    def held(self) -> int:
        """Bytes of the tensor."""
        pitch = self.tmap.strides[-1] if self.tmap.strides else self.tmap.extents[0] * self.tmap.dtype.bytes
        return -(-pitch * (self.tmap.extents[-1] if self.tmap.strides else 1) // 16) * 16

    def __str__(self) -> str:
        tmap = self.tmap
        where = f"strides {tmap.strides}, box {tmap.box} at {self.at}, {tmap.swizzle}, {tmap.oob_fill}"
        return f"{tmap.dtype} {tmap.extents}, {where}"


def drawn(rng: random.Random) -> Load:
    """A random legal map, and a box that may lie outside of the tensor."""
    while True:
        kind, rank, swizzle = dtype(rng.choice(KINDS)), rng.randint(1, 5), rng.choice(list(SPANS))
        extents = tuple(rng.randint(1, 9 if rank > 2 else 70) for _ in range(rank))
        strides, pitch = [], -(-extents[0] * kind.bytes // 16) * 16 + 16 * rng.randrange(3)
        for extent in extents[1:]:
            strides.append(pitch)
            pitch *= extent
        unit = max(1, 16 // kind.bytes)
        box = (
            unit * rng.randint(1, 16) if swizzle == "none" else SPANS[swizzle] // kind.bytes,
            *[rng.randint(1, 4 if rank > 2 else 16) for _ in range(rank - 1)],
        )
        fill = rng.choice(("zeros", "nan")) if kind.kind == "float" else "zeros"
        tmap = TensorMap(kind, extents, tuple(strides), box, (1,) * rank, swizzle, oob_fill=fill)
        at = [rng.randint(-side, extent + 1) for side, extent in zip(box, extents, strict=True)]
        at[0] = at[0] // unit * unit  # the innermost coordinate is a multiple of 16 bytes
        load = Load(tmap, tuple(at), rng.getrandbits(16))
        if load.tile <= 16384 and next(broken(tmap, BASE), None) is None:
            return load


def kernel(load: Load, target: str, version: str = "8.6") -> str:
    """The module's text."""
    rank, size = load.tmap.rank, load.tile
    return (
        header(target, version)
        + f""".visible .entry kernel(.param .u64 source, .param .u64 out,
  .param .align 64 .b8 map[128])
{{
  .shared .align 1024 .b8 tile[{-(-size // 1024) * 1024}]; .shared .align 8 .b64 barrier;
  .reg .b32 %r<4>; .reg .b64 %d<4>; .reg .pred %p<4>; .reg .b8 %b<2>; .reg .b16 %h<2>;
  mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 0; mov.u32 %r1, tile; mov.u32 %r2, barrier; @%p0 bra WAIT;
  mbarrier.init.shared::cta.b64 [%r2], 1;
  fence.proxy.async;
  mov.b64 %d0, map; cvta.param.u64 %d0, %d0;
  mbarrier.arrive.expect_tx.shared::cta.b64 %d1, [%r2], {size};
  cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
    [%r1], [%d0, {{{", ".join(map(str, load.at))}}}], [%r2];
WAIT:
  bar.sync 0;
POLL:
  mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
  @!%p1 bra POLL;
  ld.param.u64 %d2, [out];
NEXT:
  setp.ge.u32 %p2, %r0, {size}; @%p2 bra DONE;
  add.u32 %r3, %r1, %r0; cvt.u64.u32 %d3, %r0; add.u64 %d3, %d3, %d2;
  ld.shared.u8 %h0, [%r3]; st.global.u8 [%d3], %h0;
  add.u32 %r0, %r0, 32; bra NEXT;
DONE:
  ret;
}}
"""
    )


def loaded(device: Device | EmulatedDevice, load: Load) -> npt.NDArray[np.uint8]:
    """The bytes of the tile that a device loads."""
    tensor = np.random.default_rng(load.seed).integers(0, 256, max(16, load.held), dtype=np.uint8)
    text = kernel(load, device.target)
    if isinstance(device, EmulatedDevice):
        (found,) = device.launch(text, "kernel", 1, 32, [tensor], [load.tile], maps=[(load.tmap, 0)])
        return found
    module = device.load(text)
    try:
        (out,) = device.launch(module, "kernel", 1, 32, [tensor], [load.tile], maps=[(load.tmap, 0)])
    finally:
        device.unload(module)
    return out
