"""The Ampere kernel's mutants: what synchronises is deleted, one instruction at a time, and each deletion is caught.

Four forms on small tiles, of sizes with fewer k tiles than the ring has stages, as many, and more.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import pytest

from layoutgemm.emulator.mutation.mutants import deletions
from layoutgemm.emulator.mutation.run import LaunchCase
from layoutgemm.emulator.mutation.survivors import Explainer
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels.operands.block_scales import blocked
from layoutgemm.kernels.plan import MAX_WORDS, present
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from tests import needs
from tests.kernels.launch_cases import integers, launch_case, unproven

pytestmark = [
    pytest.mark.slow,
    needs.DSL,
    needs.C_COMPILER,
]
FORMS = {
    "ring": ("sm_80", Sm80Config((64, 64), 32, 3, (2, 2))),
    "persistent": ("sm_80", Sm80Config((64, 64), 32, 3, (2, 2), persistent=True)),
    "block scales": ("sm_120a", Sm80Config((64, 64), 128, 3, (2, 2))),
    "tensor copies": ("sm_120a", Sm80Config((64, 64), 32, 3, (2, 2), loads="tma", stmatrix=True)),
}
# 6 k tiles and edges everywhere: zeros behind the last are in stage 0, as C is; one k tile; 5, and columns that are no
# whole 16 bytes; one k tile of several tiles.
SIZES = ((72, 136, 184), (64, 64, 32), (136, 79, 160), (136, 200, 32))


OF_FACTORS = ((72, 136, 656), (64, 64, 128), (136, 79, 544))  # the same in stages of 128 of K


def scaled_case(plan: Sm80Plan, m: int, n: int, k: int) -> tuple[PtxKernel, LaunchCase]:
    """A product of e4m3 with factors that are powers of two."""
    bits, want = integers(m, n, k, plan)
    rng, shape = np.random.default_rng(k), present(plan.scales).shapes((m, n, k, 1))
    factors = [2.0 ** rng.integers(-1, 2, of).astype(np.float32) for of in shape.values()]
    a, b = (
        np.asarray(plan.a.dtype.decode(x)) * np.repeat(of, 32, 1)[:, :k] for x, of in zip(bits, factors, strict=True)
    )
    want, ldc = plan.c.dtype.encode(a @ b.T), -(-n // 8) * 8
    words = [blocked(present(plan.scales).format.scale.encode(of)) for of in factors]
    rest = (m, n, k, 1, k, k, ldc, 0, 0, 0, 1, *words, *[0] * (MAX_WORDS - len(words)))
    return launch_case(linked(plan), f"{m}x{n}x{k}", [*bits, np.full((m, ldc), 0xFFFF, np.uint16)], rest, want)


def case(plan: Sm80Plan, m: int, n: int, k: int) -> tuple[PtxKernel, LaunchCase]:
    if plan.scales is not None:
        return scaled_case(plan, m, n, k)
    bits, want = integers(m, n, k, plan)
    ldc = -(-n // 8) * 8
    rest = (m, n, k, 1, k, k, ldc, 0, 0, 0, *(2,) * plan.config.persistent)
    return launch_case(linked(plan), f"{m}x{n}x{k}", [*bits, np.full((m, ldc), 0xFFFF, np.uint16)], rest, want)


@lru_cache
def everything(form: str) -> tuple[PtxKernel, tuple[LaunchCase, ...]]:
    arch, config = FORMS[form]
    scaled = form == "block scales"
    types = {"a": "e4m3", "b": "e4m3:col", "c": "bf16", "scales": "mxfp8"} if scaled else {"b": "bf16:col"}
    plan = Sm80Plan.derive(*SIZES[0], arch=arch, config=config, **types)
    found = [case(plan, *size) for size in (OF_FACTORS if scaled else SIZES)]
    return found[0][0], tuple(one for _, one in found)


@lru_cache
def explainer(form: str) -> Explainer:
    """It has run the kernel over all cases."""
    kernel, cases = everything(form)
    return Explainer(kernel, cases, ())


@pytest.mark.parametrize("form", FORMS)
def test_every_instruction_is_reached(form: str) -> None:
    judge = explainer(form)
    assert [str(ins) for ins in judge.kernel.instructions if not judge.executed[ins.pc]] == []


@pytest.mark.parametrize("form", FORMS)
def test_every_synchronisation_is_needed(form: str) -> None:
    judge = explainer(form)
    rows = [judge.row(mutant) for mutant in deletions(judge.kernel)]
    # lanes of a warp are executed together, so that bar.warp.sync is not judged
    assert unproven(rows, "bar.warp.sync") == [] and sum(row.caught for row in rows) >= 5
