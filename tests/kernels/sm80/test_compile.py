"""The Ampere kernel's machine code: what each form must hold, no local memory, few integer instructions in the loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import mma_sync
from layoutgemm.dtypes import dtype
from layoutgemm.errors import PlanError
from layoutgemm.kernels import Combined
from layoutgemm.kernels.ladder.primitives import emulate
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan

pytestmark = pytest.mark.dsl

THREE = Combined.of(lambda x, y, z, ops: x * y + z)
FORMS = {
    # what is multiplied, by which configuration -> most registers
    "the fastest": ({"b": "bf16:col", "arch": "sm_90a", "config": Sm80Config(group=16)}, 255),
    "64x96 a warp": (
        {"b": "bf16:col", "arch": "sm_90a", "config": Sm80Config((256, 192), 32, 4, (4, 2), ahead=False)}, 255,
    ),
    "persistent": ({"b": "bf16:col", "arch": "sm_90a", "config": Sm80Config(group=16, persistent=True)}, 255),
    "three matrices and a pair": (
        {"b": "bf16:col", "gated": THREE, "pair": 1, "config": Sm80Config((128, 192), 32, 4)}, 255,
    ),
    "on sm_80": ({"a": "bf16:col", "b": "bf16"}, 255),
    "tf32, words": ({"a": "tf32", "b": "tf32", "config": Sm80Config((128, 128), 16, 3, (2, 2))}, 255),
    "bytes": ({"a": "i8:col", "b": "i8", "config": Sm80Config((128, 128), 64, 3, (2, 2))}, 255),
}  # fmt: skip
LOOKED_AT = [pytest.param(n, marks=[pytest.mark.slow] * (n not in ("the fastest", "bytes"))) for n in FORMS]


def plan_of(name: str) -> Sm80Plan:
    given: Any = FORMS[name][0]
    return Sm80Plan.derive(1, 1, 1, **given)


@pytest.mark.parametrize("name", LOOKED_AT)
def test_the_code_matches_the_plan(name: str) -> None:
    plan = plan_of(name)
    compiled = plan.compile()
    sass, used = compiled.sass(), compiled.resources
    assert sass.local_memory == () and used.local_bytes == used.stack_bytes == 0
    assert used.registers <= FORMS[name][1]
    products = len(plan.products) * plan.steps
    assert "LDS.U8" not in {instruction.opcode for instruction in sass.instructions}  # words, no bytes of them
    assert sass.count("HMMA") + sass.count("IMMA") >= products
    copies = sum(len(op.copy.indices) for op in (plan.a, plan.b))
    assert sass.count("LDGSTS") == copies * plan.stages
    # a k tile's loads, and before the loop those of the first depth
    depths = plan.steps + plan.config.ahead
    matrices = sum(op.load.loads for op in (plan.a, plan.b) if not op.load.words)
    assert sass.count("LDSM") == matrices * depths
    assert sass.count("PRMT") >= 4 * depths * sum(op.load.loads for op in (plan.a, plan.b) if op.load.kind == "bytes")


def test_the_loop_of_the_fastest_is_products() -> None:
    sass = plan_of("the fastest").compile().sass()
    at = [i for i, instruction in enumerate(sass.instructions) if instruction.base == "HMMA"]
    loop = sass.instructions[at[0] : at[-1] + 1]
    names = [instruction.base for instruction in loop]
    assert names.count("HMMA") == 64 and names.count("LDSM") == 16 and names.count("LDGSTS") == 6
    assert names.count("BAR") == 1 and names.count("LDGDEPBAR") == 1
    # addresses of six copies, the ring's two places, the count: what is left over for integers
    rest = len(loop) - 64 - 16 - 6 - 3
    assert rest <= 64, f"{rest} instructions beside products, loads and copies"


def test_arguments_are_the_launchs() -> None:
    plan = plan_of("the fastest")
    assert list(plan.parameters)[:7] == ["a", "b", "c", "m", "n", "k", "batch"]


@pytest.mark.parametrize("kind", ["f16", "bf16"])
def test_the_bridge_multiplies_16_bit_types(kind: str) -> None:
    """By `multiply_warp`, which the Ampere kernel and the ladder share: the dialect takes f16 in pairs, bf16 plain."""
    from tests.kernels.ladder.warp_program import OneProduct

    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, (rows, 16)).astype(np.float32) for rows in (16, 8))
    given = {name: np.asarray(dtype(kind).encode(x)) for name, x in (("a", a), ("b", b))}
    d = np.zeros((16, 8), np.float32)
    emulate(f"one product of {kind}", OneProduct(mma_sync("m16n8k16", kind, kind)), {**given, "d": d}, orders=1)
    assert np.array_equal(d, a @ b.T)


def test_the_bridge_refuses_accumulators_that_it_does_not_hold() -> None:
    from layoutgemm.kernels.dsl.bridge import multiply_warp

    with pytest.raises(PlanError, match="into f32 or i32"):
        multiply_warp(mma_sync("m16n8k16", "f16", "f16", "f16"), [], [], [])
    with pytest.raises(PlanError, match="multiply_warp_scaled"):
        multiply_warp(mma_sync("m16n8k32", "e4m3", kind="mxf8f6f4"), [], [], [])
