"""Products of the Blackwell kernel that its tests share: every type, order and form, at ragged sizes."""

from __future__ import annotations

from typing import Any

from layoutgemm.kernels.sm100.plan import Sm100Config
from tests.kernels.sm90.table import Product


def one(n: int = 32, /, **given: Any) -> Sm100Config:
    """One block a tile of 128 x n; three stages: fewer, and more, k tiles than stages are then easy to have."""
    given.setdefault("stages", 3)
    return Sm100Config((128, n), **given)


def pair(n: int = 64, /, **given: Any) -> Sm100Config:
    """A pair of blocks a tile of 256 x n."""
    given.setdefault("stages", 3)
    return Sm100Config((256, n), **given)


TABLE = {
    # forms
    "one block": Product(300, 90, 328, one(), workers=1),
    "a pair": Product(300, 150, 328, pair(), workers=1),
    "one accumulator": Product(200, 72, 200, one(accumulators=1), workers=1),
    "three accumulators, a pair": Product(300, 150, 72, pair(32, accumulators=3), workers=1),
    "bands along N, launched early": Product(200, 72, 136, one(16, along="N", group=2, overlap=True)),
    "two stages, a pair launched early": Product(300, 60, 328, pair(32, stages=2, overlap=True)),
    "chunks of three widths": Product(130, 130, 72, one(112, width=64), workers=1),
    "rounds of two chunks through three buffers": Product(130, 230, 72, one(112, chunks=2, buffers=3), workers=1),
    "one buffer": Product(300, 90, 72, pair(96, chunks=1, buffers=1), workers=1),
    "short k tiles": Product(130, 60, 100, one(32, tile_k=16)),
    "long k tiles": Product(130, 60, 300, pair(64, tile_k=128)),
    "widest": Product(300, 264, 136, Sm100Config((128, 256)), workers=1),
    "widest, a pair": Product(300, 264, 136, Sm100Config((256, 256)), workers=1),
    "one row, one column": Product(1, 1, 8, pair(32)),
    # types and orders
    "f16, row-major B": Product(200, 72, 104, one(48), a="f16", b="f16:row", c="f16"),
    "columns of A": Product(200, 72, 104, one(32), a="bf16:col"),
    "columns of A, rows of B": Product(300, 72, 104, pair(64), a="bf16:col", b="bf16:row"),
    "columns of both": Product(140, 72, 104, pair(64), a="f16:col", b="f16:col", c="f32"),
    "e4m3 times e5m2": Product(200, 72, 328, one(48), a="e4m3", b="e5m2:col"),
    "e5m2 times e4m3, columns of A": Product(200, 72, 328, one(64), a="e5m2:col", b="e4m3:col", c="f16"),
    "columns of e5m2, rows of e4m3": Product(140, 72, 200, pair(64), a="e5m2:col", b="e4m3:row", c="e4m3"),
    "e4m3 to columns of e5m2": Product(300, 40, 200, pair(64), a="e4m3", b="e4m3:col", c="e5m2:col"),
    "e4m3 rows": Product(130, 72, 200, one(112, width=128), a="e4m3", b="e4m3:row", c="e4m3"),
    "tf32": Product(130, 72, 100, one(48), a="tf32", b="tf32:col", c="f32"),
    "tf32, a pair, columns": Product(140, 40, 100, pair(32), a="tf32", b="tf32:col", c="f32:col"),
    "i8": Product(130, 72, 200, one(48), a="i8", b="i8:col", c="i32"),
    "u8 times i8, a pair, columns": Product(140, 40, 200, pair(32), a="u8:col", b="i8", c="i32:col"),
    "i8 times u8 to bf16": Product(130, 72, 136, one(32), a="i8", b="u8:col"),
    "f32 rows": Product(300, 90, 100, pair(96), c="f32"),
    "f32 columns": Product(130, 40, 100, one(48), c="f32:col"),
    "columns": Product(130, 90, 100, one(112, width=64), c="bf16:col"),
    "columns, a pair": Product(300, 90, 100, pair(96), c="f16:col", a="f16", b="f16:row"),
    "a batch": Product(130, 72, 104, one(48), batch=3, workers=1),
    "a batch, a pair, columns": Product(140, 40, 72, pair(32), batch=2, a="bf16:col", c="bf16:col"),
}

# The forms that are always looked at; the others are for the longer run.
QUICK = (
    "one block", "a pair", "columns of both", "columns of e5m2, rows of e4m3", "tf32, a pair, columns",
    "a batch, a pair, columns", "rounds of two chunks through three buffers",
)  # fmt: skip
LATER = tuple(name for name in TABLE if name not in QUICK)
