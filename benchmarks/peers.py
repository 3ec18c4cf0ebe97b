"""Further peers beside `layoutgemm.bench.contenders`: quack-kernels and compiled CuTe DSL objects.

Each is a `Contender` that is prepared late, so that a missing or broken one is reported by name.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutgemm.bench.contenders import each
from layoutgemm.bench.method import BenchProblem, Contender, Launch, Operands

# Peers that the table did not run, and why: a family that gives no contender says so here.
LEFT_OUT: dict[str, str] = {}


# quack ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class QuackConfig:
    """A configuration of quack's Hopper kernel. Swapped is C^T = B @ A^T, with M as wgmma's N."""

    tile: tuple[int, int]
    cluster: tuple[int, int] = (1, 1)
    pingpong: bool = False
    swapped: bool = False

    def __str__(self) -> str:
        cluster = "" if self.cluster == (1, 1) else f" cluster {self.cluster[0]}x{self.cluster[1]}"
        marks = f"{' pingpong' if self.pingpong else ''}{' swapped' if self.swapped else ''}"
        return f"{self.tile[0]}x{self.tile[1]}{cluster}{marks}"


# What its `gemm_config.default_config` gives on Hopper; its heuristic of NVIDIA's is a package of its own, and without
# that package this is what a call with `tuned=False` runs.
QUACK_DEFAULT = QuackConfig((128, 192), (2, 1), pingpong=True)
# (smallest M, configurations): the fastest of its configurations at the table's shapes on an H200 in November 2026,
# their close rivals among them.
QUACK_BY_M = (
    (4096, (((256, 208), (1, 2)), ((256, 192), (1, 2)), ((256, 128), (1, 2)), ((128, 256), (2, 1)))),
    (1024, (((64, 128), (1, 1), True), ((128, 128), (2, 1), True), ((128, 128), (1, 1), True), ((256, 128), (1, 2)))),
    (128, (((128, 128), (2, 1), True), ((128, 224), (2, 1)), ((128, 192), (1, 1), True), ((128, 256), (2, 1)))),
    (33, (((128, 64), (1, 1), False, True), ((64, 64), (1, 1), True, True), ((64, 128), (1, 1), True))),
    (1, (((128, 16), (1, 1), False, True), ((64, 16), (1, 1), True, True), ((64, 128), (1, 1), True))),
)


def quack_configs(m: int) -> list[QuackConfig]:
    """The default and the good configurations for that M.

    >>> [str(config) for config in quack_configs(16)]
    ['128x192 cluster 2x1 pingpong', '128x16 swapped', '64x16 pingpong swapped', '64x128 pingpong']
    """
    rows = next(rows for least, rows in QUACK_BY_M if m >= least)
    return [QUACK_DEFAULT, *(QuackConfig(*row) for row in rows)]


def quack(problem: BenchProblem) -> list[Contender]:
    """quack-kernels' GEMM in each configuration; without the package none, and a line in `LEFT_OUT`."""
    if importlib.util.find_spec("quack") is None:
        LEFT_OUT["quack"] = "no package quack: pip install quack-kernels"
        return []
    return [_quack_contender(config) for config in quack_configs(problem.m)]


def _quack_contender(config: QuackConfig) -> Contender:
    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        from quack.gemm import gemm

        def launch(a: Any, b: Any, c: Any) -> None:
            x, y, z = (b, a, c.T) if config.swapped else (a, b, c)
            gemm(x, y, z, None, None, *config.tile, *config.cluster, pingpong=config.pingpong)

        return each(launch)(sets)

    name = f"quack {config}" + (" (its default)" if config == QUACK_DEFAULT else "")
    return Contender(name, prepare, "quack")


def dsl_object(name: str, path: Path, family: str) -> Contender:
    """A CuTe DSL kernel with TVM-FFI, exported by `export_to_c` as `func(a, b, c)`.

    It must have been compiled for torch's current stream (`make_fake_stream(use_tvm_ffi_env_stream=True)`).
    """

    def prepare(sets: Sequence[Operands]) -> list[Launch]:
        return each(_loaded(path))(sets)

    return Contender(name, prepare, family, path.name)


@functools.cache
def _loaded(path: Path) -> Callable[[Any, Any, Any], object]:
    from cutlass.cute.runtime import load_module

    return load_module(str(path), enable_tvm_ffi=True)["func"]
