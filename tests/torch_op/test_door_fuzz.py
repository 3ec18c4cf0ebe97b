"""Random products by every torch door beside float64 formulas: on the CPU, and by the kernels in the emulator."""

from __future__ import annotations

from collections import Counter

import pytest

from tests import needs

torch = needs.module("torch")

from tests.torch_op.door_fuzz import DOORS, faults


@pytest.mark.parametrize("door", DOORS)
def test_the_cpu_computes_the_formulas(door: str) -> None:
    tally: Counter[str] = Counter()
    assert list(faults(door, 0, 1, tally, on=("cpu",))) == [] and tally["answered cpu"]


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("door", DOORS)
def test_kernels_compute_the_formulas(door: str) -> None:
    tally: Counter[str] = Counter()
    assert list(faults(door, 100, 6, tally)) == [] and tally["answered kernel"]
