"""The kernel with packed weights: what synchronises is deleted, one instruction at a time, and each deletion is caught.

Sizes have more K tiles than the ring has stages, as many, and fewer, with edges everywhere.
"""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Launch
from layoutgemm.emulator.mutation.mutants import deletions
from layoutgemm.emulator.mutation.run import LaunchCase
from layoutgemm.emulator.mutation.survivors import PROVEN, Explainer
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.quantized.packing import QuantizedWeights, pack
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from tests import needs

pytestmark = [
    pytest.mark.slow,
    needs.DSL,
    needs.C_COMPILER,
]
SIZES = ((20, 136, 448), (13, 64, 64), (33, 70, 320), (17, 200, 128))
WEIGHTS = QuantizedFormat("int4", 64)


def case(plan: Sm80Plan, m: int, n: int, k: int) -> tuple[PtxKernel, LaunchCase]:
    host, rng = linked(plan), np.random.default_rng(m + n + k)
    a, codes = rng.integers(-2, 3, (m, k)).astype(np.float32), rng.integers(6, 11, (n, k)).astype(np.uint8)
    units = pack(QuantizedWeights(WEIGHTS, codes, np.ones((n, k // 64)))).units.reshape(-1)
    want = plan.c.dtype.encode(a @ (codes.astype(np.float32) - 8).T)
    ldc = -(-n // 8) * 8
    held: dict[int, tuple[np.ndarray, ...]] = {}  # the emulator works in these arrays' own memory

    def launch() -> Launch:
        given = (plan.a.dtype.encode(a), units.copy(), np.full((m, ldc), 0xFFFF, np.uint16))
        arrays, (made,) = host.call((*given, m, n, k, 1, k, k, ldc, 0, 0, 0, 1, *[0] * 16))
        held[id(arrays.memory)] = given
        return Launch(made.grid, made.block, made.parameters, arrays.memory, made.cluster, made.dynamic_shared)

    def check(done: Launch) -> str | None:
        wrong = held.pop(id(done.memory))[2][:, :n] != want
        return f"{int(wrong.sum())} elements of C are wrong" if wrong.any() else None

    launch()
    return host.launches[0].kernel, LaunchCase(f"{m}x{n}x{k}", launch, check)


def test_every_synchronisation_is_needed() -> None:
    plan = Sm80Plan.derive(*SIZES[0], weights=WEIGHTS, config=Sm80Config((32, 64), 64, 3, (1, 2)))
    found = [case(plan, *size) for size in SIZES]
    judge = Explainer(found[0][0], tuple(each for _, each in found), ())
    rows = [judge.row(mutant) for mutant in deletions(judge.kernel)]
    # lanes of a warp are executed together, so that bar.warp.sync is not judged
    left = [row for row in rows if not row.caught and row.reason.split(":")[0] not in PROVEN]
    survivors = [f"{row.mutant}: {row.reason}" for row in left if "bar.warp.sync" not in row.mutant.place]
    assert survivors == [] and sum(row.caught for row in rows) >= 5
