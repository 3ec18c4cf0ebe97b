"""Accumulators are read only after the wait for their products, in every epilogue.

Compilers moved an epilogue that needs the accumulator alone above the wait. ptxas then waits for every wgmma by itself,
and the emulator refuses to read a register in flight.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm.kernels.epilogue.chain import Activation, Bias, Clamp, Custom, Dropout, Epilogue, Scale
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan

pytestmark = pytest.mark.dsl

CONFIG = {"tile": (64, 32), "consumers": 1, "loader": "warp", "launch": "tiles", "stages": 2}
RELU = Epilogue(Activation("relu"))
# The arguments of `derive`, further fields of the configuration, and the kernel's arguments.
FORMS: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    "relu": ({"epilogue": RELU}, {}, {}),
    "relu squared": ({"epilogue": Epilogue(Activation("relu_sq"))}, {}, {}),
    "relu of a bias": ({"epilogue": Epilogue(Bias(), Activation("relu"))}, {}, {"bias": np.arange(40.0)}),
    "alpha": ({"epilogue": Epilogue(Scale())}, {}, {"alpha": 3.0}),
    "clamp": ({"epilogue": Epilogue(Clamp(-4, 5))}, {}, {}),
    "dropout": ({"epilogue": Epilogue(Dropout(0.5))}, {}, {"seed": 7}),
    "a function": ({"epilogue": Epilogue(Custom.of(lambda x, i, j, ops: x * 2))}, {}, {}),
    "gated by relu": ({"gated": "relu", "c": "f32"}, {}, {}),
    "integers as bf16": ({"a": "i8", "b": "i8:col", "c": "bf16"}, {}, {}),
    "integers as f32": ({"a": "i8", "b": "i8:col", "c": "f32"}, {}, {}),
    "stores of columns by threads": ({"c": "bf16:col"}, {"store": "direct"}, {}),
    "two blocks": ({"epilogue": RELU}, {"tile": (128, 32)}, {}),
    "two blocks, early": ({"epilogue": RELU}, {"tile": (128, 32), "staged_epilogue_k_tiles": 1}, {}),
    "halves, early": ({"epilogue": RELU}, {"staged_epilogue_k_tiles": 1}, {}),
    "parts of K": ({"epilogue": RELU}, {"one_tile_per_cluster": True, "split": 2, "chunks": 2}, {}),
    "blocks of a worker": ({"epilogue": RELU}, {"launch": "workers"}, {}),
}


@pytest.mark.parametrize("name", FORMS)
def test_products_overlap_and_are_read_when_done(name: str) -> None:
    given, config, words = FORMS[name]
    n = 40
    plan = Sm90Plan.derive(100, n, 130, **{"b": "bf16:col", **given}, config=Sm90Config(**{**CONFIG, **config}))
    steps = len(plan.a.descriptor.k_steps)
    if name != "halves, early":  # which ptxas serialises for reasons of its own: `_IN_HALVES` says where not
        code = plan.compile().sass()
        each = steps if plan.config.staged_epilogue_k_tiles else steps * plan.blocks
        assert code.serialised_wgmma(each) is None, code.serialised_wgmma(each)
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-2, 3, size).astype(np.float32) for size in ((100, 130), (130, n * plan.halves)))
    if plan.a.dtype.kind == "int":
        a, b = a.astype(np.int8), b.astype(np.int8)
    found = plan.run(a, b, device="emulator", given=words or None)
    assert found.ran_on == "emulator"
    if plan.epilogue:
        wanted = plan.epilogue.reference(a.astype(np.float64) @ b, **words).c
    else:
        wanted = np.asarray(plan.run(a, b, device="reference").c, np.float64)
    assert np.allclose(np.asarray(found.c, np.float64), wanted, rtol=2.0**-8, atol=0) and len(np.unique(wanted)) > 2
