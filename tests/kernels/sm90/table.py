"""Products of the production kernel that the emulator's and the GPU's tests share: every type, order and form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutgemm.kernels import GemmPlan
from layoutgemm.kernels.derive import padded_leading
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan

Values = npt.NDArray[Any]


@dataclass(frozen=True)
class Product:
    """A product and the kernel for it.

    m, n, k, batch, a, b, c   as for Sm90Plan.derive
    workers  clusters that run at a time: fewer than there are tiles
    """

    m: int
    n: int
    k: int
    config: Sm90Config = field(default_factory=Sm90Config)
    batch: int = 1
    a: str = "bf16"
    b: str = "bf16:col"
    c: str = "bf16"
    workers: int = 2

    def plan(self) -> Sm90Plan:
        """The plan."""
        return GemmPlan.derive(
            self.m, self.n, self.k, batch=self.batch, a=self.a, b=self.b, c=self.c, config=self.config
        )

    def values(self, seed: int = 0) -> tuple[Values, Values, Values]:
        """A and B of small integers with exact sums, and C: each (batch, rows, columns).

        C is rounded to its type. Integer types take all their values: no sum of theirs reaches the end of i32 here.
        """
        rng = np.random.default_rng(seed)
        plan = self.plan()
        shapes = (self.batch, self.m, self.k), (self.batch, self.k, self.n)
        if plan.mma.c_dtype.kind == "int":
            kinds = [{"i8": np.int8, "u8": np.uint8}[op.dtype.name] for op in (plan.a, plan.b)]
            a, b = (rng.integers(np.iinfo(t).min, np.iinfo(t).max, s, t, True) for t, s in zip(kinds, shapes))
            sums = np.matmul(a.astype(np.int64), b.astype(np.int64)).astype(np.int32)
            c = plan.c.dtype
            return a, b, sums if c.kind == "int" else np.asarray(c.decode(c.encode(sums.astype(np.float32))))
        a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in shapes)
        return a, b, np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(np.matmul(a, b, dtype=np.float64))))

    def operand(self, op: Any, values: Values) -> tuple[Values, int, int]:
        """(bits, leading, pitch) with NaN, or all bits, between rows and matrices."""
        lines = values if op.order == "row" else values.swapaxes(1, 2)
        leading = padded_leading(op.dtype, lines.shape[2]) + 16
        bits = np.full((self.batch, lines.shape[1] + 1, leading), -1, np.int64).astype(op.dtype.storage)
        bits[:, : lines.shape[1], : lines.shape[2]] = op.dtype.encode(lines)
        return bits, leading, leading * (lines.shape[1] + 1)


def small(m: int = 64, n: int = 32, /, **given: Any) -> Sm90Config:
    """A small tile, and three stages: fewer, and more, k tiles than stages are then easy to have."""
    given.setdefault("consumers", m // 64)
    given.setdefault("stages", 3)
    return Sm90Config((m, n), **given)


TABLE = {
    # who loads, and how the rows are shared
    "self": Product(200, 90, 328, small()),
    "self, two consumers": Product(300, 72, 200, small(128, 32)),
    "self, three consumers, launched early": Product(200, 100, 136, small(192, 40, overlap=True)),
    "self, two blocks each": Product(300, 72, 264, small(256, 24, consumers=2)),
    "warp": Product(200, 90, 328, small(loader="warp")),
    "warpgroup, two consumers": Product(300, 72, 200, small(128, 32, loader="warpgroup")),
    "warpgroup, three consumers": Product(
        400, 72, 200, small(192, 32, loader="warpgroup", reverse_odd_tiles=True, along="N")
    ),
    "pingpong": Product(200, 100, 328, small(64, 24, loader="warp", schedule="pingpong", consumers=2), workers=1),
    "pingpong, two blocks, early": Product(
        520,
        100,
        200,
        small(
            128,
            32,
            schedule="pingpong",
            loader="warpgroup",
            staged_epilogue_k_tiles=1,
            chunks=1,
            buffers=2,
            consumers=2,
        ),
    ),
    # clusters
    "cluster 2x1": Product(300, 72, 200, small(64, 32, cluster=(2, 1))),
    "cluster 1x2, pingpong": Product(
        200,
        150,
        200,
        small(64, 24, cluster=(1, 2), schedule="pingpong", loader="warp", consumers=2, reverse_odd_tiles=True),
    ),
    "cluster 2x2": Product(300, 72, 136, small(64, 16, cluster=(2, 2), loader="warpgroup"), workers=1),
    "cluster 4x2, self": Product(300, 72, 136, small(64, 32, cluster=(4, 2), stages=2), workers=1),
    "cluster 4x1, quarters of 26 lines, blocks without a tile": Product(
        300,
        104,
        136,
        small(64, 104, cluster=(4, 1), loader="warp", overlap=True, prefetch=1, launch="tiles", along="N"),
    ),
    "cluster 1x4": Product(70, 150, 136, small(64, 40, cluster=(1, 4), loader="warp", overlap=True, launch="tiles")),
    "cluster 2x4, halves of 52 lines, blocks without a tile": Product(
        70,
        250,
        136,
        small(64, 104, cluster=(2, 4), loader="warp", overlap=True, prefetch=2, launch="tiles", along="N"),
    ),
    "cluster 4x2, self, half of a warpgroup's rows early": Product(
        520,
        50,
        200,
        small(
            256,
            32,
            consumers=2,
            cluster=(4, 2),
            overlap=True,
            prefetch=2,
            launch="tiles",
            along="N",
            chunks=1,
            staged_epilogue_k_tiles=2,
        ),
    ),
    # where boxes end with their matrix: tiles, and shares, that are outside; last rows that make no 16 bytes of C
    "a tile outside, cluster 2x1": Product(136, 77, 328, small(cluster=(2, 1), loader="warp")),
    "half a tile outside, cluster 1x2": Product(
        93, 100, 328, small(128, 32, cluster=(1, 2), loader="warpgroup", consumers=2), workers=1
    ),
    "a tile outside, cluster 2x2, a batch, f32": Product(
        68, 37, 200, small(64, 32, cluster=(2, 2), loader="warp"), c="f32", batch=2
    ),
    "shares that are parts of K, fetched ahead": Product(
        130,
        75,
        328,
        small(64, 48, cluster=(2, 1), loader="warp", tile_k=128, overlap=True, prefetch=2, launch="tiles", along="N"),
    ),
    "all rows within one box, pingpong, columns of e4m3": Product(
        19,
        21,
        328,
        small(64, 32, loader="warpgroup", schedule="pingpong", consumers=2),
        a="e4m3",
        b="e4m3:col",
        c="e4m3:col",
    ),
    "three consumers and a warp, a block without a tile, one buffer": Product(
        400,
        45,
        200,
        small(
            192,
            40,
            loader="warp",
            cluster=(2, 1),
            chunks=1,
            buffers=1,
            overlap=True,
            prefetch=2,
            launch="tiles",
            along="N",
        ),
    ),
    # ends
    "early, one buffer": Product(
        300, 90, 200, small(256, 40, consumers=2, staged_epilogue_k_tiles=1, chunks=1, buffers=1)
    ),
    "early, two k tiles": Product(
        300, 90, 200, small(256, 40, consumers=2, staged_epilogue_k_tiles=2, stages=3, cluster=(2, 1))
    ),
    "early, two k tiles and no more, a loader": Product(
        300,
        90,
        128,
        small(256, 40, consumers=2, staged_epilogue_k_tiles=2, stages=4, loader="warpgroup", chunks=1, buffers=2),
    ),
    "early, one k tile": Product(300, 90, 60, small(256, 24, consumers=2, staged_epilogue_k_tiles=1, cluster=(1, 2))),
    "early, halves of one block": Product(
        300, 150, 328, small(128, 64, staged_epilogue_k_tiles=2, loader="warp", chunks=1, buffers=2, cluster=(2, 1))
    ),
    "early, halves, one k tile, self": Product(70, 90, 60, small(64, 48, staged_epilogue_k_tiles=1), c="f32"),
    "early, halves, pingpong, columns": Product(
        200,
        150,
        328,
        small(
            64,
            64,
            staged_epilogue_k_tiles=1,
            loader="warpgroup",
            schedule="pingpong",
            consumers=2,
            overlap=True,
            prefetch=1,
        ),
        b="bf16:row",
        c="bf16:col",
    ),
    "early, halves, tf32": Product(
        130, 72, 200, small(64, 80, staged_epilogue_k_tiles=2), a="tf32", b="tf32:col", c="f32"
    ),
    # one tile a block, in a grid of tiles; fetched ahead
    "a grid of tiles": Product(200, 90, 328, small(overlap=True, prefetch=2, launch="tiles")),
    "a grid of tiles, dealt out": Product(
        200,
        90,
        328,
        small(launch="tiles", gpc_order=(((0,), 1), ((1, 2, 3), 2), ((1, 3), 3)), along="N", loader="warp"),
    ),
    "clusters dealt out": Product(
        300, 172, 200, small(64, 32, cluster=(2, 1), gpc_order=(((0, 1), 2),), group=2), workers=4
    ),
    "a grid of tiles along N, cluster 2x1": Product(
        200,
        200,
        328,
        small(
            64,
            32,
            overlap=True,
            prefetch=1,
            first="A",
            launch="tiles",
            along="N",
            cluster=(2, 1),
            loader="warp",
            staged_epilogue_k_tiles=2,
        ),
    ),
    "a grid of tiles, cluster 2x2, fetched beyond K": Product(
        300, 72, 136, small(64, 16, cluster=(2, 2), loader="warpgroup", overlap=True, prefetch=4, launch="tiles")
    ),
    "a grid of tiles, K in 2 parts": Product(
        130,
        100,
        328,
        small(64, 32, one_tile_per_cluster=True, split=2, loader="warp", overlap=True, prefetch=2, launch="tiles"),
    ),
    "three rounds through two buffers": Product(130, 400, 72, small(128, 176, chunks=1, buffers=2, stages=2)),
    "four rounds through three buffers": Product(72, 500, 72, small(64, 248, chunks=1, buffers=3, stages=2)),
    "threads store": Product(130, 77, 72, small(64, 40, store="direct"), batch=2),
    "threads store columns": Product(77, 50, 72, small(64, 24, store="direct"), c="f32:col"),
    "threads store pairs, 16 rows": Product(
        13,
        100,
        328,
        small(64, 48, loaded_a_rows=16, one_tile_per_cluster=True, loader="warp", store="direct", launch="tiles"),
    ),
    "threads store pairs of 8 bits": Product(
        70, 50, 136, small(64, 24, store="direct"), a="e4m3", b="e4m3:col", c="e4m3"
    ),
    "threads store pairs of f32, a batch": Product(70, 50, 72, small(64, 24, store="direct"), c="f32", batch=2),
    # one tile a cluster, parts of K, few rows
    "one tile": Product(130, 100, 200, small(128, 48, one_tile_per_cluster=True, chunks=1, buffers=2)),
    "one tile, warp, launched early": Product(
        70, 16, 700, small(64, 16, one_tile_per_cluster=True, loader="warp", overlap=True)
    ),
    "one tile, cluster 1x2, the next kernel at its end": Product(
        130,
        100,
        328,
        small(
            64,
            32,
            one_tile_per_cluster=True,
            loader="warp",
            cluster=(1, 2),
            overlap=True,
            trigger="end",
            launch="tiles",
            first="B",
        ),
    ),
    "one tile, cluster 2x1, self": Product(
        200, 100, 200, small(128, 32, one_tile_per_cluster=True, cluster=(2, 1), l2_promotion="256B")
    ),
    "K in 2 parts": Product(130, 100, 328, small(64, 32, one_tile_per_cluster=True, split=2, loader="warp")),
    "K in 3 parts, columns": Product(
        130,
        90,
        328,
        small(
            64,
            48,
            one_tile_per_cluster=True,
            split=3,
            chunks=3,
            loader="warp",
            overlap=True,
            trigger="end",
            launch="tiles",
        ),
        c="bf16:col",
    ),
    "K in 4 parts, two of them empty": Product(130, 60, 100, small(64, 32, one_tile_per_cluster=True, split=4)),
    "K in 2 parts, cluster 2x1, columns": Product(
        200,
        64,
        328,
        small(64, 32, one_tile_per_cluster=True, split=2, cluster=(2, 1), loader="warpgroup"),
        c="bf16:col",
    ),
    "K in 2 parts of two blocks": Product(
        256, 32, 200, small(256, 32, consumers=2, one_tile_per_cluster=True, split=2)
    ),
    "K in 4 parts, two of them empty, cluster 2x1": Product(
        130, 60, 100, small(64, 32, one_tile_per_cluster=True, split=4, cluster=(2, 1), loader="warp")
    ),
    "K in 2 parts, cluster 2x2, launched early": Product(
        200,
        100,
        328,
        small(
            128,
            32,
            consumers=2,
            one_tile_per_cluster=True,
            split=2,
            cluster=(2, 2),
            loader="warp",
            overlap=True,
            trigger="end",
            launch="tiles",
        ),
    ),
    "K in 2 parts, cluster 1x2, self": Product(
        130, 90, 200, small(64, 32, one_tile_per_cluster=True, split=2, cluster=(1, 2))
    ),
    "K in 2 parts, threads store pairs": Product(
        130, 100, 328, small(64, 32, one_tile_per_cluster=True, split=2, loader="warp", store="direct")
    ),
    "K in 3 parts, threads store columns": Product(
        130, 77, 328, small(64, 48, one_tile_per_cluster=True, split=3, loader="warp", store="direct"), c="bf16:col"
    ),
    "16 rows": Product(13, 200, 328, small(64, 48, loaded_a_rows=16, loader="warp")),
    "8 rows, K in 2 parts": Product(
        5, 100, 328, small(64, 32, loaded_a_rows=8, split=2, one_tile_per_cluster=True, loader="warp", tile_k=128)
    ),
    # types and orders
    "f16, row-major B": Product(200, 72, 104, small(64, 64), a="f16", b="f16:row", c="f16"),
    "rows of B, the last span in part, cluster 1x2": Product(
        200, 250, 200, small(128, 112, cluster=(1, 2), first="B"), b="bf16:row"
    ),
    "rows of B, the last span in part, cluster 2x1, a batch": Product(
        200, 150, 136, small(64, 72, cluster=(2, 1), loader="warp", chunks=1, buffers=2), a="f16", b="f16:row", batch=2
    ),
    "rows of B, a span in part, a grid of tiles": Product(
        13,
        100,
        328,
        small(
            64, 40, loaded_a_rows=16, one_tile_per_cluster=True, loader="warp", overlap=True, prefetch=2, launch="tiles"
        ),
        b="bf16:row",
    ),
    "rows of B, four chunks of C and a span in part": Product(130, 250, 72, small(128, 120), b="bf16:row"),
    "columns of A, rows of B": Product(200, 72, 104, small(64, 64, loader="warp"), a="bf16:col", b="bf16:row"),
    "columns of both": Product(200, 72, 104, small(64, 32), a="f16:col", b="f16:col", c="f32"),
    "e4m3 times e5m2": Product(200, 72, 328, small(64, 48), a="e4m3", b="e5m2:col"),
    "e5m2 times e4m3 in clusters": Product(
        200, 72, 328, small(128, 48, cluster=(2, 1), loader="warpgroup"), a="e5m2", b="e4m3:col", c="f16"
    ),
    "e4m3 to e4m3": Product(130, 72, 200, small(64, 32), a="e4m3", b="e4m3:col", c="e4m3"),
    "e4m3 to columns of e5m2": Product(130, 40, 200, small(64, 32), a="e4m3", b="e4m3:col", c="e5m2:col"),
    "tf32": Product(200, 90, 104, small(64, 72), a="tf32", b="tf32:col", c="f32"),
    "tf32 to columns of f16, two blocks each, early": Product(
        300,
        90,
        136,
        small(256, 40, consumers=2, staged_epilogue_k_tiles=1, cluster=(2, 1), chunks=1, buffers=2),
        a="tf32",
        b="tf32:col",
        c="f16:col",
    ),
    "tf32, pingpong": Product(
        200, 100, 140, small(64, 24, loader="warp", schedule="pingpong", consumers=2), a="tf32", b="tf32:col", workers=1
    ),
    "tf32, K in 2 parts, a batch": Product(
        130,
        40,
        72,
        small(64, 32, one_tile_per_cluster=True, split=2, loader="warp"),
        a="tf32",
        b="tf32:col",
        batch=2,
        c="f32",
    ),
    "i8": Product(200, 90, 328, small(64, 48), a="i8", b="i8:col", c="i32"),
    "i8 times u8 in clusters, early": Product(
        300,
        90,
        264,
        small(256, 48, consumers=2, staged_epilogue_k_tiles=1, cluster=(1, 2)),
        a="i8",
        b="u8:col",
        c="i32",
    ),
    "u8, K in 4 parts, two of them empty": Product(
        130, 60, 180, small(64, 32, one_tile_per_cluster=True, split=4), a="u8", b="u8:col", c="i32"
    ),
    "u8 times i8 to columns": Product(
        130, 40, 200, small(64, 32, loader="warpgroup"), a="u8", b="i8:col", c="i32:col", batch=2
    ),
    "i8 to bf16": Product(130, 72, 200, small(64, 32), a="i8", b="i8:col", c="bf16"),
    "i8, threads store": Product(77, 50, 72, small(64, 24, store="direct"), a="i8", b="i8:col", c="i32"),
    "f32 rows": Product(130, 90, 100, small(64, 72), c="f32"),
    "f32 columns": Product(130, 40, 100, small(128, 40, loader="warpgroup"), c="f32:col"),
    "columns": Product(130, 90, 100, small(64, 88), c="bf16:col"),
    "a batch": Product(130, 72, 104, small(64, 40), batch=3),
    "a batch in columns": Product(70, 72, 104, small(64, 32, cluster=(1, 2)), batch=2, a="bf16:col", c="f16:col"),
    "one row, one column": Product(1, 1, 8, small(64, 8)),
    "widest": Product(
        300, 264, 136, Sm90Config((256, 224), cluster=(2, 1), staged_epilogue_k_tiles=1, chunks=1, buffers=2)
    ),
    "widest, tf32": Product(
        300,
        264,
        68,
        Sm90Config((256, 224), cluster=(2, 1), staged_epilogue_k_tiles=1, chunks=1, buffers=2),
        a="tf32",
        b="tf32:col",
        c="f32",
    ),
    "widest, i8": Product(
        300,
        264,
        272,
        Sm90Config((256, 224), cluster=(2, 1), staged_epilogue_k_tiles=1, chunks=1, buffers=2),
        a="i8",
        b="i8:col",
        c="i32",
    ),
}

# Forms whose parts are all in others: for the longer run.
LATER = (
    "self, two consumers", "warpgroup, two consumers", "cluster 2x1", "early, one buffer", "threads store columns",
    "one tile", "columns of both", "e4m3 to e4m3", "f32 rows", "tf32, pingpong", "i8, threads store",
    "u8 times i8 to columns", "widest, tf32", "widest, i8", "tf32", "i8", "self, three consumers, launched early",
    "self, two blocks each", "warp", "three rounds through two buffers", "K in 2 parts", "columns", "a batch",
)  # fmt: skip
