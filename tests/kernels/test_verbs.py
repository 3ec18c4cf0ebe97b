"""The names in plans exist, and no plan names the code of another architecture."""

from __future__ import annotations

import inspect

import pytest

from layoutgemm.kernels import (
    GemmPlan,
    Sm80Config,
    Sm80Plan,
    Sm90Plan,
    Sm100Plan,
    TeachingPlan,
)
from layoutgemm.kernels.epilogue.chain import Bias
from layoutgemm.kernels.run.torch_tensors import OperandPath
from layoutgemm.kernels.verbs import named
from tests import needs

KINDS = {"sm80": Sm80Plan, "sm90": Sm90Plan, "sm100": Sm100Plan, "teaching": TeachingPlan}
VERBS = {
    "check", "compile", "derive", "emulate", "execute", "explain", "fragment", "run",
}  # fmt: skip
PLANS: dict[str, GemmPlan] = {
    "Sm90SingleKernel": TeachingPlan.derive(64, 64, 64),
    "Sm80GemmKernel": Sm80Plan.derive(64, 64, 64),
    "Sm80PersistentKernel": Sm80Plan.derive(64, 64, 64, config=Sm80Config(persistent=True)),
    "Sm120GemmKernel": Sm80Plan.derive(64, 64, 64, arch="sm_120a", config=Sm80Config(loads="tma")),
    "Sm90GemmKernel": Sm90Plan.derive(64, 64, 64),
    "Sm90FusedKernel": Sm90Plan.derive(64, 64, 64, epilogue=Bias()),
    "Sm100GemmKernel": Sm100Plan.derive(64, 64, 64),
    "Sm100FusedKernel": Sm100Plan.derive(64, 64, 64, epilogue=Bias()),
}


@pytest.mark.parametrize("folder", KINDS)
def test_every_verb_of_a_plan_is_a_function(folder: str) -> None:
    verbs = KINDS[folder].verbs
    assert set(verbs) == VERBS
    for path in verbs.values():
        assert inspect.isfunction(named(path)), path
    assert isinstance(named(KINDS[folder].operand_path), OperandPath)


@pytest.mark.parametrize("folder", KINDS)
def test_no_plan_names_code_of_another_architecture(folder: str) -> None:
    others = tuple(f"{other}." for other in KINDS if other != folder)
    kernels = [plan.device_kernel for plan in PLANS.values() if type(plan) is KINDS[folder]]
    assert kernels
    for path in (*KINDS[folder].verbs.values(), *kernels):
        assert not path.startswith(others)
    assert all(path.startswith(f"{folder}.device.") for path in kernels)


@needs.DSL
@pytest.mark.parametrize("name", PLANS)
def test_a_plan_names_its_kernel(name: str) -> None:
    kernel = named(PLANS[name].device_kernel)
    assert inspect.isclass(kernel) and kernel.__name__ == name
