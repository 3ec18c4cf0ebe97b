"""Small kernels around TMA copies, and an independent model of a box by PTX's text."""

from __future__ import annotations

from typing import Any

import numpy as np

from layoutgemm.atoms.tma import engine as tma_engine
from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.machine.tensor_map import encode
from tests.emulator.run_ptx import Result, run

POLICIES = [
    Policy(),
    Policy(loads="early", stores="early"),
    Policy(pick="random", seed=3),
    Policy(pick="random", seed=4, loads="early", elect="highest"),
]
BARRIER, SHARED = 16384, 16384 + 1024
LOAD = "cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group"
# Thread 0 initialises the barrier; %r1 is the tile, %r2 the barrier, %p0 thread 0.
BEGIN = f"""
mov.u32 %r0, %tid.x; mov.u32 %r1, smem; add.u32 %r2, %r1, {BARRIER};
setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
@%p0 fence.mbarrier_init.release.cluster;
bar.sync 0;"""
WAIT = """
WAIT:
mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
@!%p1 bra WAIT;"""
# 32 lanes copy %r10 bytes of the tile to the buffer at %out, or fill the tile from it.
OUT = """
shl.b32 %r3, %r0, 4;
OUT:
setp.ge.u32 %p2, %r3, %r10;
@%p2 bra DONE;
add.u32 %r4, %r1, %r3; cvt.u64.u32 %d1, %r3; add.u64 %d1, %d1, %out;
ld.shared.v4.b32 {%r5, %r6, %r7, %r8}, [%r4];
st.global.v4.b32 [%d1], {%r5, %r6, %r7, %r8};
add.u32 %r3, %r3, 512;
bra OUT;
DONE:"""
IN = """
shl.b32 %r3, %r0, 4;
IN:
setp.ge.u32 %p2, %r3, %r10;
@%p2 bra FILLED;
add.u32 %r4, %r1, %r3; cvt.u64.u32 %d1, %r3; add.u64 %d1, %d1, %source;
ld.global.v4.b32 {%r5, %r6, %r7, %r8}, [%d1];
st.shared.v4.b32 [%r4], {%r5, %r6, %r7, %r8};
add.u32 %r3, %r3, 512;
bra IN;
FILLED:"""


def tensor(extents: tuple[int, ...], kind: str, seed: int = 0) -> tuple[np.ndarray, tuple[int, ...]]:
    """A random tensor as bytes, with rows padded to 16 bytes, and its strides in bytes."""
    size = dtype(kind).bytes
    pitch = -(-extents[0] * size // 16) * 16
    strides = []
    for extent in extents[1:]:
        strides.append(pitch)
        pitch *= extent
    return np.random.default_rng(seed).integers(0, 256, pitch, dtype=np.uint8), tuple(strides)


def elements(tmap: TensorMap, memory: np.ndarray) -> np.ndarray:
    """The tensor as an array of raw elements, outermost dimension first."""
    size = tmap.dtype.bytes
    strides = (*reversed(tmap.strides), size)
    word = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}[size]
    return np.lib.stride_tricks.as_strided(memory.view(word), tuple(reversed(tmap.extents)), strides)


def box_of(tmap: TensorMap, memory: np.ndarray, coordinates: tuple[int, ...], fill: int = 0) -> np.ndarray:
    """The box's content by PTX's text: the tensor's elements, `fill` outside; outermost first."""
    whole = elements(tmap, memory)
    out = np.full(tuple(reversed(tmap.moved)), fill, whole.dtype)
    for index in np.ndindex(*out.shape):
        place = [c + i * s for c, i, s in zip(reversed(coordinates), index, reversed(tmap.steps), strict=True)]
        if all(0 <= p < n for p, n in zip(place, whole.shape, strict=True)):
            out[index] = whole[tuple(place)]
    return out


def swizzled(compact: np.ndarray, mode: str) -> np.ndarray:
    """Bytes of a compact tile as the mode permutes them: 16-byte chunk c of 128-byte line r goes to chunk c ^ f(r)."""
    wide = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[mode]
    lines = compact.reshape(-1, 8, 16)
    out = np.empty_like(lines)
    for line in range(len(lines)):
        for chunk in range(8):
            out[line, chunk ^ line & wide] = lines[line, chunk]
    return out.reshape(-1)


def at(place: int) -> int:
    """The address that the machine gives to a buffer."""
    return GlobalMemory.START + GlobalMemory.GAP * place


def setting(tmap: TensorMap, memory: np.ndarray, **more: np.ndarray) -> dict[str, np.ndarray]:
    """Buffers of a kernel: the map, the tensor that it is of, and others."""
    return {"map": np.frombuffer(encode(tmap, at(1)), np.uint8).copy(), "tensor": memory, **more}


def listed(coordinates: tuple[int, ...]) -> str:
    return "{" + ", ".join(str(c) for c in coordinates) + "}"


def load(tmap: TensorMap, memory: np.ndarray, coordinates: tuple[int, ...], policy: Policy | None = None) -> Result:
    """Load one box, and read it back."""
    size = tma_engine.bytes_moved(tmap)
    body = f"""{BEGIN} mov.u32 %r10, {size};
    @!%p0 bra WAIT;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], {size};
    {LOAD.format(rank=tmap.rank)} [%r1], [%map, {listed(coordinates)}], [%r2];
    {WAIT} {OUT}"""
    out = np.zeros(size, np.uint8)
    return run(body, setting(tmap, memory, out=out), shared=SHARED, policy=policy)


def tiled(kind: str, extents: tuple[int, ...], box: tuple[int, ...], mode: str, **more: Any) -> Any:
    memory, strides = tensor(extents, kind)
    steps = more.pop("steps", (1,) * len(box))
    return TensorMap(dtype(kind), extents, strides, box, steps, mode, **more), memory


FENCE = "fence.proxy.async.shared::cta; bar.sync 0;"
COMMIT = "cp.async.bulk.commit_group;"


def store(
    tmap: TensorMap,
    memory: np.ndarray,
    source: np.ndarray,
    coordinates: tuple[int, ...],
    policy: Policy | None = None,
    opcode: str = STORE,
    after: str = "cp.async.bulk.wait_group 0;",
    fence: str = FENCE,
    who: str = "@!%p0 bra END;",
) -> Result:
    """Fill the tile from `source`, and store it."""
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; setp.eq.u32 %p0, %r0, 0;
    mov.u32 %r10, {len(source)};
    {IN} {fence} {who}
    {opcode.format(rank=tmap.rank)} [%map, {listed(coordinates)}], [%r1];
    {COMMIT} {after}
    END:"""
    return run(body, setting(tmap, memory, source=source), shared=SHARED, policy=policy)


PAIR = TensorMap(dtype("bf16"), (64, 64), (128,), (64, 8), (1, 1), "128B")
CLUSTER = f"""
mov.u32 %r0, %tid.x; mov.u32 %r1, smem; add.u32 %r2, %r1, {BARRIER}; mov.u32 %r9, %cluster_ctarank;
setp.eq.u32 %p0, %r0, 0; mov.u32 %r10, 1024;
@%p0 mbarrier.init.shared::cta.b64 [%r2], 1;
@%p0 fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], %r10;
setp.eq.u32 %p3, %r9, 0; and.pred %p4, %p3, %p0;
"""
EACH = "cvt.u64.u32 %d2, %r9; mul.lo.u64 %d2, %d2, 1024; add.u64 %out, %out, %d2;"
LAST = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def cluster(issue: str, last: str = LAST, policy: Policy | None = None, blocks: int = 2) -> Result:
    memory = np.arange(64 * 64, dtype=np.uint16).view(np.uint8)
    body = f"{CLUSTER} {issue} {WAIT} {EACH} {OUT} {last}"
    buffers = setting(PAIR, memory, out=np.zeros(1024 * blocks, np.uint8))
    return run(body, buffers, shared=SHARED, grid=blocks, cluster=blocks, policy=policy)


MULTICAST = LOAD.format(rank=2) + ".multicast::cluster"


def one(issue: str, after: str = "", begin: str = BEGIN, policy: Policy | None = None, shared: int = SHARED) -> Result:
    """Thread 0 does `issue`; all wait."""
    memory = np.arange(64 * 64, dtype=np.uint16).view(np.uint8)
    body = f"{begin} mov.u32 %r10, 1024; @!%p0 bra WAIT; {issue} {WAIT} {after}"
    return run(body, setting(PAIR, memory, out=np.zeros(1024, np.uint8)), shared=shared, policy=policy)


ARM = "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], 1024;"
GET = LOAD.format(rank=2) + " [%r1], [%map, {0, 0}], [%r2];"
