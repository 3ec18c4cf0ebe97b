"""The kernel with packed weights: what synchronises is deleted, one instruction at a time, and each deletion is caught.

Sizes have more K tiles than the ring has stages, as many, and fewer, with edges everywhere.
"""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm.emulator.mutation.mutants import deletions
from layoutgemm.emulator.mutation.run import LaunchCase
from layoutgemm.emulator.mutation.survivors import Explainer
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.quantized.packing import QuantizedWeights, pack
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from tests import needs
from tests.kernels.launch_cases import launch_case, unproven

pytestmark = [
    pytest.mark.slow,
    needs.DSL,
    needs.C_COMPILER,
]
SIZES = ((20, 136, 448), (13, 64, 64), (33, 70, 320), (17, 200, 128))
WEIGHTS = QuantizedFormat("int4", 64)


def case(plan: Sm80Plan, m: int, n: int, k: int) -> tuple[PtxKernel, LaunchCase]:
    rng = np.random.default_rng(m + n + k)
    a, codes = rng.integers(-2, 3, (m, k)).astype(np.float32), rng.integers(6, 11, (n, k)).astype(np.uint8)
    units = pack(QuantizedWeights(WEIGHTS, codes, np.ones((n, k // 64)))).units.reshape(-1)
    want, ldc = plan.c.dtype.encode(a @ (codes.astype(np.float32) - 8).T), -(-n // 8) * 8
    matrices = plan.a.dtype.encode(a), units, np.full((m, ldc), 0xFFFF, np.uint16)
    rest = (m, n, k, 1, k, k, ldc, 0, 0, 0, 1, *[0] * 16)
    return launch_case(linked(plan), f"{m}x{n}x{k}", matrices, rest, want)


def test_every_synchronisation_is_needed() -> None:
    plan = Sm80Plan.derive(*SIZES[0], weights=WEIGHTS, config=Sm80Config((32, 64), 64, 3, (1, 2)))
    found = [case(plan, *size) for size in SIZES]
    judge = Explainer(found[0][0], tuple(each for _, each in found), ())
    rows = [judge.row(mutant) for mutant in deletions(judge.kernel)]
    # lanes of a warp are executed together, so that bar.warp.sync is not judged
    assert unproven(rows, "bar.warp.sync") == [] and sum(row.caught for row in rows) >= 5
