"""`layoutgemm plan`: the derivation and its checks, as text and as JSON, for every architecture that has a kernel."""

import json

import pytest

from layoutgemm import GemmPlan
from layoutgemm.cli import main

from .test_cli import refusal


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_the_plan_is_that_of_derive(capsys, arch):
    plan = GemmPlan.derive(200, 136, 72, b="bf16:col", arch=arch)
    assert main(["plan", "200", "136", "72", "-b", "bf16:col", "--arch", arch, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["plan"], said["arch"], said["derivation"]) == (str(plan), arch, plan.explain())
    assert (tuple(said["tile"]), said["stages"]) == (plan.tile, plan.stages)
    assert said["ok"] and [check["name"] for check in said["checks"]] == [check.name for check in plan.check()]


def test_explain_is_its_other_name(capsys):
    assert main(["explain", "64", "64", "64", "--stages", "2"]) == 0
    before = capsys.readouterr().out
    assert main(["plan", "64", "64", "64", "--stages", "2"]) == 0
    assert capsys.readouterr().out == before and "2 stages" in before


def test_a_check_that_fails_is_the_status(capsys, monkeypatch):
    from layoutgemm.checks import Check, Report

    monkeypatch.setattr(GemmPlan, "check", lambda self: Report((Check("planted", "1 = 2", False, "arithmetic"),)))
    assert main(["plan", "64", "64", "64", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("64 64", "see layoutgemm plan --help"),
        ("64 64 64 --arch sm_90", "do you mean 'sm_90a'?"),
        ("64 64 64 --arch sm_80 --stages 3", "--stages: a choice of the sm_90a kernel"),
        ("64 64 64 --stages 90", "14 stage(s) fit"),
        ("64 64 64 -a bf16:diag", "the order is 'row' or 'col'"),
    ],
)
def test_refusals(capsys, arguments, text):
    assert text in refusal(capsys, f"plan {arguments}")
