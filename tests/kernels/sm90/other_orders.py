"""Runs of compiled kernels in orders of events that PTX allows and GPUs hardly show."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.kernels import Sm90Plan
from layoutgemm.kernels.run.arrays import global_matrix
from layoutgemm.kernels.run.emulated import emulate_plan
from layoutgemm.kernels.run.epilogue_operands import values_read, words_read

SOON = Policy(loads="early", stores="early", pick="random", waits="reluctant")
LATE = Policy(products="early", lands="oldest", elect="highest")
each_policy = pytest.mark.parametrize("policy", [SOON, pytest.param(LATE, marks=pytest.mark.slow)])


def stored_in_order(
    plan: Sm90Plan, a: np.ndarray, b: np.ndarray, given: Mapping[str, object], policy: Policy
) -> np.ndarray:
    """The bits of C that the compiled kernel stores; asserts that nothing is found."""
    lying = [global_matrix(operand, x, [], True) for operand, x in ((plan.a, a), (plan.b, b))]
    words = words_read(plan, values_read(plan, given)) if plan.takes_extra_params else ()
    found, done = emulate_plan(plan, lying[0], lying[1], policy, progress=False, given=words)
    assert not done.findings, done.report()
    return found
