"""`layoutgemm plan`: the derivation and its checks, as text and as JSON, for every architecture that has a kernel."""

import json

import pytest

from layoutgemm.cli.main import main
from layoutgemm.kernels import Sm90Plan
from layoutgemm.kernels.planner import plan as planned
from layoutgemm.kernels.sm90.choose.rules import choose
from layoutgemm.report import Check, Report
from tests.cli.test_main import refusal


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_100a", "sm_120a"])
def test_the_plan_is_that_of_derive(capsys, arch):
    plan = planned(520, 1032, 264, b="bf16:col", arch=arch)
    assert main(["plan", "520", "1032", "264", "-b", "bf16:col", "--arch", arch, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["plan"], said["arch"], said["derivation"]) == (str(plan), arch, plan.explain())
    assert (tuple(said["tile"]), said["stages"]) == (plan.tile, plan.stages)
    assert said["ok"] and [check["name"] for check in said["checks"]] == [check.name for check in plan.check()]


def test_explain_is_an_alias_of_plan(capsys):
    assert main(["explain", "64", "64", "64", "--teaching", "--stages", "2"]) == 0
    before = capsys.readouterr().out
    assert main(["plan", "64", "64", "64", "--teaching", "--stages", "2"]) == 0
    assert capsys.readouterr().out == before and "2 stages" in before


@pytest.mark.parametrize("arguments", ["--arch sm_90a", "--arch sm_100a", "--teaching --stages 2"])
def test_a_long_derivation_prints_its_head(capsys, arguments):
    """Titles with what stands one level below them; every line with --full."""
    command = ["plan", "256", "256", "256", "-b", "bf16:col", *arguments.split()]
    assert main(command) == 0
    *shown, held, rest = capsys.readouterr().out.splitlines()
    assert main([*command, "--full"]) == 0
    whole = capsys.readouterr().out.splitlines()
    assert len(whole) > 30 >= len(shown) + 2
    assert rest.startswith(f"{len(shown) + 1} of {len(whole)} lines; --full prints the rest")
    assert held == whole[-1] and [line for line in whole if line in shown] == shown  # in their order
    titles = [line for line in whole[:-1] if line[0] != " " and not line.startswith("holds")]
    assert [line for line in shown if line[0] != " "] == titles


def test_checks_that_fail_are_in_the_head(capsys, monkeypatch):
    found = Report(tuple(Check(f"planted {i}", "1 = 2", i != 3, "arithmetic") for i in range(40)))
    monkeypatch.setattr(Sm90Plan, "check", lambda self: found)
    assert main(["plan", "64", "64", "64"]) == 1
    said = capsys.readouterr().out.splitlines()
    assert len(said) <= 30 and said[-3:-1] == [str(found.failures[0]), "39 of 40 checks hold"]


def test_a_check_that_fails_is_the_status(capsys, monkeypatch):
    monkeypatch.setattr(Sm90Plan, "check", lambda self: Report((Check("planted", "1 = 2", False, "arithmetic"),)))
    assert main(["plan", "64", "64", "64", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["ok"] is False


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("64 64", "see layoutgemm plan --help"),
        ("64 64 64 --arch sm_91", "do you mean sm_90a?"),
        ("64 64 64 --arch sm_80 --stages 3", "--stages: a choice of the teaching kernel"),
        ("64 64 64 --arch sm_80 --teaching", "this kernel needs wgmma"),
        ("64 64 64 --teaching --stages 90", ": 14 fit into 232448"),
        ("64 64 64 -a bf16:diag", "the order is 'row' or 'col'"),
    ],
)
def test_refusals(capsys, arguments, text):
    assert text in refusal(capsys, f"plan {arguments}")


def test_the_kernel_that_matmul_launches(capsys):
    choice, why = choose(512, 4096, 4096)
    plan = choice.plan(512, 4096, 4096, b="bf16:col")
    assert main(["plan", "512", "4096", "4096", "-b", "bf16:col", "--matmul", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["chosen"], said["plan"], said["kernel"], said["ok"]) == (why, str(plan), "Sm90Plan", True)
    # few rows of a column-major A: no copies of some rows alone
    assert main(["plan", "16", "4096", "4096", "-a", "bf16:col", "--matmul"]) == 0
    assert capsys.readouterr().out.startswith(f"chosen: {choose(16, 4096, 4096, b_major='MN')[1]}")
    for arguments, text in (
        ("--stages 3", "--stages beside --matmul"),
        ("--teaching", "--teaching beside"),
        ("--arch sm_80", "sm_80 has one"),
    ):
        assert text in refusal(capsys, f"plan 64 64 64 --matmul {arguments}")
