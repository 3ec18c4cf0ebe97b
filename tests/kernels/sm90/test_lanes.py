"""The production kernel's warps and lanes: each bar.warp.sync is needed, and they suffice.

A warp that stores its own rows of C synchronises twice a round. First lane 0 waits until its store has read the buffer,
then all lanes write it. After all lanes have written and fenced it, lane 0 stores it. Without either barrier lanes
race, except in the first round, whose buffer no store has used yet. A kernel of one tile has only such rounds.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from layoutgemm.emulator.api import ORDERS
from layoutgemm.emulator.machine.interpreter import Launch, Policy
from layoutgemm.emulator.mutation.mutants import deletions
from layoutgemm.emulator.mutation.run import LaunchCase, verdict
from layoutgemm.emulator.mutation.survivors import Explainer
from layoutgemm.emulator.ptx.parser import PtxKernel
from layoutgemm.kernels.derive import padded_leading
from layoutgemm.kernels.run.emulated import linked
from tests import needs
from tests.kernels.sm90.table import TABLE, Product
from tests.kernels.sm90.test_emulated import emulate

pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]
QUICK = ("pingpong", "K in 2 parts of two blocks", "f32 rows")
STRICT = replace(ORDERS[0], lanes="strict")


def case(product: Product, policy: Policy) -> tuple[PtxKernel, LaunchCase]:
    """A product, whose results are not looked at: `emulate` does that."""
    plan = product.plan()
    host = linked(plan)
    a, b, want = product.values()
    (bits_a, lda, pitch_a), (bits_b, ldb, pitch_b) = product.operand(plan.a, a), product.operand(plan.b, b)
    lines, inner = want.shape[1:] if plan.c.order == "row" else want.shape[:0:-1]
    ldc = padded_leading(plan.c.dtype, inner) + 16
    words = np.zeros((product.batch, lines, ldc), plan.c.dtype.storage)
    sizes = (product.m, product.n, product.k, product.batch, lda, ldb, ldc, pitch_a, pitch_b, words[0].size)

    def launch() -> Launch:
        arrays, (made,) = host.call((bits_a, bits_b, words, *sizes, product.workers))
        return Launch(made.grid, made.block, made.parameters, arrays.memory, made.cluster, made.dynamic_shared)

    launch()
    kernel = host.launches[0].kernel
    return kernel, LaunchCase(str(plan), launch, lambda done: None, replace(policy, edges=False))


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.slow) for n in TABLE])
def test_every_form_is_silent_by_the_word(name: str) -> None:
    assert not emulate(TABLE[name], STRICT).findings


def stores_by_warp(name: str) -> bool:
    store = TABLE[name].plan().store
    return store is not None and store.warps == 1


# Two blocks and one; the barriers of the other forms are between the same two steps, in the longer run.
@pytest.mark.parametrize("name", [n if n in QUICK[1:] else pytest.param(n, marks=pytest.mark.slow) for n in TABLE])
def test_every_warp_barrier_is_needed(name: str) -> None:
    product = replace(TABLE[name], workers=1)  # so that a warp has more than one tile, where a kernel may
    kernel, one = case(product, Policy())
    plan, barriers = product.plan(), list(deletions(kernel, ("bar.warp.sync",)))
    assert bool(barriers) == stores_by_warp(name)
    judge = Explainer(kernel, [one])
    left = []
    for mutant in barriers:
        row = judge.row(mutant)
        assert row.how.startswith("race") or row.reason.startswith("same"), row
        left += [mutant] * (not row.caught)
        assert verdict(kernel, replace(one, policy=replace(one.policy, lanes="off")), mutant)[0] == ""
    # The first of the two in as many rounds as there are buffers, for each part of the columns.
    one_tile = plan.config.one_tile_per_cluster or plan.config.launch == "tiles" or name == "one row, one column"
    assert plan.store is None or len(left) <= plan.config.split * plan.store.buffers * one_tile
    assert not set(left) & set(barriers[1::2])
