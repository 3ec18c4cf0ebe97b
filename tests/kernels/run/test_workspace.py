"""Device memory of a call: every plan states its bytes, and kernels use no more."""

from __future__ import annotations

from typing import Any

import pytest

from layoutgemm.kernels import Sm90Config, Sm90Plan, TeachingPlan
from layoutgemm.kernels.epilogue.chain import Amax, Aux, Bias, ColumnReduce, Epilogue, RowReduce
from layoutgemm.kernels.sm80.plan import Sm80Plan
from layoutgemm.kernels.sm100.plan import Sm100Plan

SPLIT = Sm90Config((64, 16), consumers=1, loader="warp", one_tile_per_cluster=True, split=2)
PLANS = {
    "first": lambda: TeachingPlan.derive(64, 64, 64),
    "mma.sync": lambda: Sm80Plan.derive(256, 256, 256),
    "Hopper": lambda: Sm90Plan.derive(512, 512, 512, config=Sm90Config()),
    "split": lambda: Sm90Plan.derive(16, 64, 1024, b="bf16:col", config=SPLIT),
    "gated": lambda: Sm90Plan.derive(64, 64, 64, b="bf16:col", config=Sm90Config((64, 64), consumers=1), gated="silu"),
    "epilogue": lambda: Sm90Plan.derive(512, 512, 512, config=Sm90Config(), epilogue=Epilogue(Bias(), Aux())),
    "reductions": lambda: Sm90Plan.derive(
        500,
        300,
        512,
        batch=2,
        config=Sm90Config((128, 128)),
        epilogue=Epilogue(RowReduce("softmax"), ColumnReduce(), Amax()),
    ),
    "Blackwell": lambda: Sm100Plan.derive(512, 512, 512),
}


@pytest.mark.parametrize("name", PLANS)
def test_the_workspace_is_stated_and_has_a_word_where_it_is_needed(name: str) -> None:
    plan: Any = PLANS[name]()
    lines = [line for line in plan.explain().splitlines() if line.startswith("device memory: ")]
    assert len(lines) == 1 and f"a workspace of {plan.workspace} bytes" in lines[0]
    # Tuples of a maximum and a sum for 3 tiles of columns, and sums for each 16 rows, in 32 bits each.
    assert plan.workspace == (2 * 4 * (2 * 3 * 500 + -(-500 // 16) * 300) if name == "reductions" else 0)
    addresses = [key for key, kind in plan.parameters.items() if kind == "address"]
    assert len(addresses) == 3  # A, B and C; what an epilogue names are words
    words = [key for key, kind in plan.parameters.items() if kind == "word" and not key.startswith("unused")]
    assert words == (list(plan.epilogue.words) if name in ("epilogue", "reductions") else [])
    assert ("workspace" in words) == (plan.workspace > 0)
    assert ("go through shared memory" in lines[0]) == (name == "split")
    if name == "split":
        assert f"{plan.exchange.bytes} bytes a block" in lines[0]
        assert plan.exchange.bytes <= plan.smem.total
