"""Random products of JAX arrays by every door beside float64 formulas: by jax, and by the kernels in the emulator."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import needs

jax = needs.module("jax")
torch = needs.module("torch")

from tests.jax_op.door_fuzz import DOORS, faults


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_kernels_compute_the_formulas(door: str) -> None:
    tally: Counter[str] = Counter()
    assert list(faults(door, 0, 6, tally)) == [] and tally["answered kernel"]
