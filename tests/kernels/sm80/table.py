"""Products that the Ampere kernel is tried with: every type in every order, edges, alignments, forms of the loop."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutgemm.kernels.sm80.operand import Sm80Operand
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan

SMALL = Sm80Config((64, 64), None, 3, (2, 2))


@dataclass(frozen=True)
class Product:
    """One product: sizes, types and orders as `Sm80Plan.derive` takes them, and what lies beyond lines.

    spare  units of the stated alignment that a line of A, B and C has beyond its last element, at least
    """

    m: int = 70
    n: int = 53
    k: int = 101
    a: str = "bf16"
    b: str = "bf16:col"
    c: str | None = None
    batch: int = 1
    arch: str = "sm_80"
    config: Sm80Config = SMALL
    spare: tuple[int, int, int] = (0, 0, 1)

    def plan(self) -> Sm80Plan:
        return Sm80Plan.derive(
            self.m, self.n, self.k, arch=self.arch, a=self.a, b=self.b, c=self.c, batch=self.batch, config=self.config
        )

    def values(self, seed: int = 0) -> tuple[npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
        """A (batch, M, K), B (batch, K, N) of small integers, and their exact product."""
        plan, rng = self.plan(), np.random.default_rng(seed)
        low = [0 if op.dtype.kind == "uint" else -3 for op in (plan.a, plan.b)]
        a = rng.integers(low[0], 4, (self.batch, self.m, self.k))
        b = rng.integers(low[1], 4, (self.batch, self.k, self.n))
        return a, b, a @ b

    def operand(self, plan: Sm80Plan, which: str, values: npt.NDArray[Any]) -> tuple[npt.NDArray[Any], int, int]:
        """(raw bits, pitch, distance of matrices): lines, with NaN (or 1) between them."""
        operand: Sm80Operand = plan.a if which == "a" else plan.b
        at = "ab".index(which)
        lines = values if operand.order == "row" else values.swapaxes(1, 2)
        unit = max(1, plan.config.align[at] // operand.dtype.bytes)
        pitch = (-(-lines.shape[2] // unit) + self.spare[at]) * unit
        shape = (*lines.shape[:2], pitch)
        floats = operand.dtype.kind == "float"
        out = np.full(shape, np.nan) if floats else np.ones(shape, np.int64)
        out[:, :, : lines.shape[2]] = lines
        return operand.dtype.encode(out), pitch, lines.shape[1] * pitch


KINDS = {
    "bf16": ("bf16", "bf16", "sm_80"), "f16": ("f16", "f16", "sm_80"), "tf32": ("tf32", "tf32", "sm_80"),
    "int8": ("i8", "u8", "sm_80"), "fp8": ("e4m3", "e5m2", "sm_90a"),
}  # fmt: skip
TABLE: dict[str, Product] = {
    f"{name} {a}-{b}": Product(a=f"{types[0]}:{a}", b=f"{types[1]}:{b}", arch=types[2])
    for (name, types), a, b in product(KINDS.items(), ("row", "col"), ("row", "col"))
}
TABLE |= {
    "f32 out of bf16": Product(c="f32", a="bf16:col"),
    "bf16 out of tf32": Product(a="tf32", b="tf32", c="bf16"),
    "batch": Product(batch=3, b="bf16", m=20, n=30, k=40),
    "one element": Product(1, 1, 1),
    "one k tile, four stages": Product(65, 33, 20, config=replace(SMALL, stages=4)),
    "two stages": Product(b="bf16", config=replace(SMALL, stages=2)),
    "one depth a k tile": Product(k=130, config=replace(SMALL, tile_k=16)),
    "three depths": Product(k=150, config=replace(SMALL, tile_k=48, warps=(2, 1))),
    "late": Product(k=150, config=replace(SMALL, ahead=False)),
    "late, two stages": Product(b="bf16", config=replace(SMALL, ahead=False, stages=2)),
    "8 bytes": Product(config=replace(SMALL, align=(8, 8, 8)), spare=(1, 1, 1)),
    "8 bytes, MN": Product(a="bf16:col", b="bf16", config=replace(SMALL, align=(8, 8, 8)), spare=(1, 1, 1)),
    "4 bytes": Product(b="bf16", config=replace(SMALL, align=(4, 4, 4)), spare=(1, 1, 1)),
    "odd pitches": Product(config=replace(SMALL, align=(2, 2, 2)), spare=(2, 1, 2)),
    "odd pitches, MN": Product(a="bf16:col", b="bf16", config=replace(SMALL, align=(2, 2, 2)), spare=(1, 2, 1)),
    "odd bytes": Product(
        a="i8", b="i8", config=replace(SMALL, align=(1, 1, 4)), spare=(1, 2, 1),
    ),
    "odd words": Product(a="tf32:col", b="tf32:col", config=replace(SMALL, align=(4, 4, 4)), spare=(1, 1, 1)),
    "128x256": Product(130, 260, 100, arch="sm_90a", config=Sm80Config()),
    "256x192, late": Product(130, 200, 100, arch="sm_90a", config=Sm80Config((256, 192), 32, 3, (4, 2), ahead=False)),
    "two blocks a multiprocessor": Product(b="bf16", config=Sm80Config((128, 128), 32, 3, (2, 2), blocks_per_sm=2)),
    "bands along N": Product(200, 300, 40, config=replace(SMALL, group=2, along="N")),
    "later architectures": Product(b="bf16", arch="sm_120a"),
    "TMA on sm_120a": Product(200, 72, 264, arch="sm_120a", config=replace(SMALL, loads="tma", stmatrix=True)),
    "TMA, columns and rows": Product(
        72, 104, 72, a="bf16:col", b="bf16", batch=2, arch="sm_120a", config=replace(SMALL, loads="tma", stmatrix=True),
    ),
    "TMA, bytes": Product(
        72, 80, 144, a="i8:col", b="i8", arch="sm_120a", config=replace(SMALL, loads="tma", stages=2),
    ),
    "TMA, all of sm_120a's shared memory": Product(
        130, 136, 200, arch="sm_120a", config=Sm80Config((128, 128), 64, 3, (2, 2), loads="tma", stmatrix=True),
    ),
    "TMA on sm_90a, one k tile": Product(70, 56, 20, b="bf16", arch="sm_90a", config=replace(SMALL, loads="tma")),
    "TMA, late": Product(200, 72, 264, arch="sm_120a", config=replace(SMALL, loads="tma", ahead=False)),
    "persistent": Product(200, 150, 130, a="bf16:col", config=replace(SMALL, persistent=True)),
    "persistent, late, odd pitches": Product(
        150, 130, 70, b="bf16", config=replace(SMALL, persistent=True, ahead=False, stages=2, align=(2, 2, 2)),
    ),
    "persistent, one k tile": Product(150, 130, 20, config=replace(SMALL, persistent=True)),
    "persistent, 48 rows a warp": Product(
        200, 130, 100, config=Sm80Config((96, 64), 32, 3, (2, 2), persistent=True), b="bf16",
    ),
    "stmatrix on sm_90a": Product(a="bf16:col", b="bf16", arch="sm_90a",
                                  config=replace(SMALL, stmatrix=True)),
}  # fmt: skip
# What the default run has; the rest is left to `pytest -m slow`.
FIRST = {
    "bf16 row-col", "bf16 col-row", "f16 col-row", "tf32 col-col", "int8 col-row", "fp8 col-col", "batch",
    "one element", "one k tile, four stages", "two stages", "late", "4 bytes", "odd pitches", "odd bytes",
    "TMA on sm_120a", "TMA, bytes", "persistent", "stmatrix on sm_90a",
}  # fmt: skip
LATER = set(TABLE) - FIRST
