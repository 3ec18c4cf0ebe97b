"""The configuration of the mma.sync kernel for a problem. Measured on an H200, or a guess."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import lcm

from ...arch import Arch
from ...arch import arch as arch_named
from ...atoms.copy.base import WARP
from ...checks.coalescing import SECTOR
from ...dtypes import DType
from ..derive import Operand, OperandSpec
from ..epilogue.chain import Epilogue
from ..operand_orders import KernelChoice
from ..plan import BARRIER_BYTES
from ..ragged import AlongK, Ragged
from .block_scales import SCALED_K
from .plan import MAX_BATCH, Sm80Config, Sm80Plan
from .store import BUFFERS

ROUND_ROWS = 16  # of C that a warp puts into one buffer: the instruction's M
FEW_TILES = 170  # multiprocessors of the largest GPU of compute capability 12.0
_LARGE = (128, 256)
_MOST_SUMS = 64  # of a thread, beside as many totals


def choose_sm80(m: int, n: int, k: int, arch: str | Arch = "sm_80", processors: int = 132) -> tuple[Sm80Config, str]:
    """A configuration for 16-bit operands, and the reason in words.

    processors  multiprocessors of the GPU

    Measured on an H200 (benchmarks/results/ampere_h200.json) for large squares and one ragged product; for few tiles
    the choice goes by their number and was not measured.

    >>> config, why = choose_sm80(8192, 8192, 8192, "sm_90a")
    >>> config.tile, config.persistent, why
    ((128, 256), True, '128x256x64: 2048 tiles, persistent')
    >>> choose_sm80(4000, 4040, 4072, "sm_90a")[1]
    '128x256x64 by tensor copies: lines of 8144 bytes are no whole sectors, and longer rows straddle fewer'
    """
    target = arch_named(arch)
    stmatrix = "stmatrix" in target.features
    tiles = -(-m // _LARGE[0]) * -(-n // _LARGE[1])
    if tiles < processors:
        small = -(-m // 64) * -(-n // 64)
        if small <= 4 * processors:
            return Sm80Config((64, 64), 64, 3, (2, 2), 8), f"64x64x64: {small} tiles, {tiles} of 128x256 (not measured)"
        return Sm80Config((128, 128), 32, 4, (2, 2), 8), f"128x128x32: {tiles} tiles of 128x256 (not measured)"
    if 2 * k % SECTOR:
        why = f"lines of {2 * k} bytes are no whole sectors, and longer rows straddle fewer"
        by_tma = Sm80Config(_LARGE, 64, 3, loads="tma", stmatrix=stmatrix)
        if "cp.async.bulk.tensor" in target.features and target.smem_per_block >= shared_bytes(by_tma):
            return by_tma, f"128x256x64 by tensor copies: {why}"
        deep = Sm80Config(_LARGE, 64, 3)
        if target.smem_per_block >= shared_bytes(deep):
            return deep, f"128x256x64: {why}"
    flat = Sm80Config(_LARGE, 32, 4, persistent=True)
    if target.smem_per_block < shared_bytes(flat):
        return Sm80Config(_LARGE, 32, 4, stmatrix=stmatrix), f"128x256x32: {tiles} tiles"
    deep = Sm80Config(_LARGE, 64, 3, persistent=True, stmatrix=True)
    if stmatrix and target.smem_per_block >= shared_bytes(deep):
        return deep, f"128x256x64: {tiles} tiles, persistent"
    return flat, f"128x256x32: {tiles} tiles, persistent"


def scaled_candidates(m: int, n: int, batch: int, c: DType) -> Iterator[Sm80Config]:
    """Configurations for products with block scales, which no GPU has measured. The best first.

    Tiles are chunks of 128 rows of factors, or parts of one for few rows or few tiles.

    >>> from layoutgemm.dtypes import dtype
    >>> [next(scaled_candidates(m, 4096, 1, dtype("bf16"))).tile for m in (8, 512, 4096)]
    [(16, 128), (64, 64), (128, 128)]
    """
    if m <= ROUND_ROWS:
        for tile_k in (SCALED_K, 2 * SCALED_K):  # of 4 bits the first has too few vectors of A for all threads
            yield Sm80Config((ROUND_ROWS, 128), tile_k, warps=(1, 4), group=8, stmatrix=c.bits == 16)
    elif -(-m // 128) * -(-n // 128) * batch < FEW_TILES:
        yield Sm80Config((64, 64), warps=(2, 2), group=8, stmatrix=c.bits == 16)
    yield Sm80Config((128, 128), warps=(2, 4), group=8, stmatrix=c.bits == 16)


def holding_groups(config: Sm80Config, epilogue: Epilogue | None, sums: int = 1) -> Sm80Config:
    """The configuration, or one whose warps hold the groups of columns that an epilogue reduces.

    A row's group is of the lanes of one warp. Groups wider than a tile are `check_reductions`' to refuse.

    sums  that make one element of C: a warp has as many columns of each

    >>> from layoutgemm.kernels.epilogue.chain import RowReduce
    >>> by_groups = holding_groups(Sm80Config((128, 128)), Epilogue(RowReduce("sum", each=128)))
    >>> by_groups.tile, by_groups.warps
    ((128, 128), (8, 1))
    """
    columns = sums * (epilogue.columns if epilogue else 1)
    if columns == sums:
        return config
    if not (config.tile[1] // config.warps[1]) % columns:
        return config
    threads = config.warps[0] * config.warps[1]
    for along in (each for each in (4, 2, 1) if each < config.warps[1] and threads % each == 0):
        if not (config.tile[1] // along % columns or config.tile[0] % (threads // along * ROUND_ROWS)):
            return replace(config, warps=(threads // along, along))  # as many values a lane
    width = lcm(columns, 2 * ROUND_ROWS)
    return Sm80Config((64, width), None, 3, (4, 1), 8, align=config.align) if width <= _LARGE[1] else config


def for_several(config: Sm80Config, sums: int, paired: bool, c_bytes: int = 2) -> Sm80Config:
    """The configuration, or the nearest one whose warps hold all sums.

    They hold whole sectors of C's rows, too.

    sums    that make one element of C;   paired   a second pair follows;   c_bytes   of an element of C

    >>> three = for_several(Sm80Config((128, 256), persistent=True), 3, True)
    >>> three.tile, three.warps, three.persistent
    ((128, 192), (2, 4), False)
    >>> for_several(Sm80Config((128, 256)), 3, False, 1).warps  # 32 bytes of a row each
    (4, 2)
    """
    if sums == 1 and not paired:
        return config
    (rows, along), least = config.warps, SECTOR // c_bytes  # columns of C in a sector of its rows
    if config.tile[1] // along // sums < least and along % 2 == 0 and not config.tile[0] % (2 * rows * ROUND_ROWS):
        config = replace(config, warps=(2 * rows, along // 2))
    # A warp takes a multiple of 16 columns of each matrix.
    unit = max(ROUND_ROWS, least) * config.warps[1] * sums
    width = max(unit, config.tile[1] // unit * unit)
    persistent = config.persistent and not paired
    return replace(config, tile=(config.tile[0], width), loads="cp.async", persistent=persistent)


def for_prologue(config: Sm80Config) -> tuple[Sm80Config, ...]:
    """The nearest configurations that compute a function of A, the best first. A CTA a tile, fed by cp.async.

    Two warps along N rather than four: each computes the function. At 4096^3 that is 456 us in place of 560 on an H200.
    Their buffers of C are larger.

    >>> [each.warps for each in for_prologue(Sm80Config((128, 256), persistent=True))]
    [(4, 2), (2, 4)]
    """
    rows, along = config.warps[0] * 2, config.warps[1] // 2
    halved = config.warps[1] % 4 == 0 and config.tile[0] % (rows * ROUND_ROWS) == 0
    alone = replace(config, loads="cp.async", persistent=False)
    return (replace(alone, warps=(rows, along)), alone) if halved else (alone,)


_PROMOTED = Sm80Config((128, 128), None, None, (2, 4), 8)  # of the most sums whose totals fit beside them


def for_promoted(config: Sm80Config, depth: int) -> Sm80Config:
    """The nearest configuration of a main loop that promotes.

    K tiles are K blocks, and half of the registers are for sums.

    >>> for_promoted(Sm80Config((128, 256)), 128).tile, for_promoted(Sm80Config((64, 64), warps=(2, 2)), 128).tile
    ((128, 128), (64, 64))
    """
    (m, n), (along_m, along_n) = config.tile, config.warps
    sums = m * n // (WARP * along_m * along_n)
    found = config if sums <= _MOST_SUMS else replace(config, tile=_PROMOTED.tile, warps=_PROMOTED.warps)
    return replace(found, tile_k=depth, stages=None, loads="cp.async", persistent=False)


def candidates(
    m: int, n: int, k: int, *, batch: int, arch: Arch, a: DType, c: DType
) -> Iterator[Sm80Config]:  # fmt: skip
    """Configurations for operands in vectors of 16 bytes, the likeliest first.

    A stage has as many bytes of K for every type as for 16 bits, for which the choice was measured. A persistent
    kernel multiplies one pair of matrices, and stmatrix stores elements of 16 bits.

    n   columns of all B

    >>> from layoutgemm.dtypes import dtype
    >>> sizes = {"batch": 1, "arch": arch_named("sm_89"), "a": dtype("e4m3"), "c": dtype("bf16")}
    >>> [next(candidates(m, 4096, 4096, **sizes)).tile for m in (16, 4096)]
    [(64, 64), (128, 256)]
    """
    found, _ = choose_sm80(m, n, k, arch, arch.gpu.multiprocessors)
    if a.bits != 16 and found.loads == "tma":
        found = replace(found, loads="cp.async")
    spare = (Sm80Config((128, 128), 32, 4, (2, 4), 8), Sm80Config((64, 64), 64, 3, (2, 2), 8))
    for config in (found, *(each for each in spare if each.tile != found.tile)):
        assert config.tile_k is not None
        yield replace(
            config, tile_k=config.tile_k * 16 // a.bits, persistent=config.persistent and batch == 1,
            stmatrix=config.stmatrix and c.bits == 16,
        )  # fmt: skip


_FEW_K = 64  # elements of 16 bits in the K tiles of:
# Tiles of groups of few rows: a group's B is read once for all of its rows.
_FEW_ROWS = {
    16: Sm80Config((16, 128), _FEW_K, 4, (1, 4), 8), 32: Sm80Config((32, 128), _FEW_K, 4, (1, 4), 8),
    64: Sm80Config((64, 128), _FEW_K, 3, (2, 2), 8),
}  # fmt: skip
_MASKED_ROWS = 128  # that are taken to count in a masked group, whose counts the host does not know


def group_candidates(
    sizes: tuple[int, int, int, int], groups: Ragged | AlongK, arch: Arch, a: DType, c: DType
) -> Iterator[Sm80Config]:  # fmt: skip
    """Configurations for groups, the likeliest first. Not measured.

    sizes  M, columns of all B, K and the groups

    >>> from layoutgemm.dtypes import dtype
    >>> given = Ragged.of(8), arch_named("sm_89"), dtype("bf16"), dtype("bf16")
    >>> [next(group_candidates((rows, 4096, 4096, 8), *given)).tile for rows in (64, 512, 8192)]
    [(16, 128), (64, 128), (128, 256)]
    """
    m, n, k, count = sizes
    if isinstance(groups, AlongK):
        every, rows, depth = m * count, m, -(-k // count)
    else:
        rows = min(m, _MASKED_ROWS) if groups.masked else -(-m // count)
        every, depth = rows * count, k
    few = next((config for height, config in _FEW_ROWS.items() if rows <= height), None)
    if few is not None:
        yield replace(few, tile_k=_FEW_K * 16 // a.bits)
    for config in candidates(every, n, depth, batch=max(count, 2), arch=arch, a=a, c=c):
        yield replace(config, loads="cp.async")


def shared_bytes(config: Sm80Config) -> int:
    """Shared memory that a block takes whose tile_k and stages are given. What `Sm80Plan.smem.total` is, or more.

    A and B are of 16 bits, C of 32.

    C's buffers lie behind the stages of a persistent kernel, and over them in the others.

    >>> [shared_bytes(Sm80Config((128, 256), 64, 3, persistent=persistent)) for persistent in (False, True)]
    [147456, 212992]
    """
    assert config.tile_k is not None and config.stages is not None, config
    stage = (config.tile[0] + config.tile[1]) * config.tile_k * 2
    barriers = config.stages * BARRIER_BYTES if config.loads == "tma" else 0
    rounds = config.warps[0] * config.warps[1] * BUFFERS * ROUND_ROWS  # a warp's rows of C in shared memory
    buffers = rounds * config.tile[1] // config.warps[1] * 4
    lasting = config.stages * stage
    return (lasting + buffers if config.persistent else max(lasting, buffers)) + barriers


@dataclass(frozen=True)
class Sm80Choice(KernelChoice):
    """A configuration of the mma.sync kernel, its target, and its operand order.

    swapped  it multiplies C^T = B^T @ A^T: the kernel stores row-major, and a column-major C is the transpose's
    """

    config: Sm80Config
    arch: str = "sm_90a"
    swapped: bool = False

    def plan(
        self,
        m: int,
        n: int,
        k: int,
        *,
        batch: int = 1,
        a: OperandSpec = "bf16",
        b: OperandSpec | None = None,
        c: OperandSpec | None = None,
        epilogue: Epilogue | None = None,
    ) -> Sm80Plan:
        """The plan of C[m, n] = A[m, k] @ B[k, n]. Arguments are those of Sm80Plan.derive.

        >>> Sm80Choice(Sm80Config(), swapped=True).plan(16, 4096, 64, a="bf16:row", b="bf16:col", c="bf16:col").a.order
        'row'
        """
        a_ = Operand.parse(a)
        b_ = Operand.parse(a_.dtype if b is None else b)
        a_, b_, c_ = self.operands(a_, b_, None if c is None else Operand.parse(c))
        if self.swapped:
            m, n, epilogue = n, m, epilogue.transposed() if epilogue else None
        return Sm80Plan.derive(
            m, n, k, arch=self.arch, a=a_, b=b_, c=c_, batch=batch, config=self.config, epilogue=epilogue
        )

    @property
    def persistent(self) -> bool:
        """True if the kernel's CTAs take tile after tile."""
        return self.config.persistent


def by_lines(
    m: int, n: int, k: int, align: tuple[int, int, int], bytes_: int, *, batch: int = 1, arch: str = "sm_90a",
    processors: int = 132,
) -> list[tuple[Sm80Config, str]]:  # fmt: skip
    """Configurations for lines of any pitch, the likeliest first, each with the reason in words.

    align    bytes that A, B and C are aligned to, as Sm80Config has it
    bytes_   of an element of A and B

    Large tiles are for lines of whole 16-byte vectors, for which they were measured; narrower accesses keep 128x128.

    >>> [config.tile for config, _ in by_lines(4096, 4096, 4095, (2, 2, 2), 2)]
    [(128, 128), (64, 64)]
    """
    if batch > MAX_BATCH:
        return []
    config, why = choose_sm80(m, n, k, arch, processors)
    if config.loads == "tma":
        config, why = Sm80Config(_LARGE, 64, 3), why.replace("by tensor copies", "by cp.async")
    found = []
    if config.tile != _LARGE or min(align[:2]) == 16:
        depth = None if config.tile_k is None else config.tile_k * 2 // bytes_
        persistent = config.persistent and batch == 1
        found.append((replace(config, tile_k=depth, align=align, stmatrix=False, persistent=persistent), why))
    for tile, warps in (((128, 128), (2, 4)), ((64, 64), (2, 2))):
        if not found or found[0][0].tile != tile:
            why = f"{tile[0]}x{tile[1]}: lines in accesses of {align[0]} and {align[1]} bytes"
            found.append((Sm80Config(tile, None, 3, warps, 8, align=align), why))
    return found
