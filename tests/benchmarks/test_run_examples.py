"""The program that runs other people's kernels: its list, its record, and a run of its own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks import run_examples
from benchmarks.run_examples import LIST, RECORD, SKIP, STATES, Example, Outcome, examples, last_error, outcome, run


def test_each_run_of_the_list_has_a_name_of_its_own() -> None:
    """The record is kept by name."""
    names = [one.name for one in examples()]
    assert len(names) == len(set(names)) > 200
    assert {one.source for one in examples()} == {"cutlass", "layoutgemm"}
    assert all((LIST.parent / one.script).is_file() for one in examples() if one.source == "layoutgemm")


def test_the_record_is_of_the_list() -> None:
    """A run that is no longer listed is no longer recorded."""
    record = json.loads(RECORD.read_text())
    assert set(record) <= {one.name for one in examples()}
    for name, row in record.items():
        assert row["build"] and row["state"] in STATES, name
        assert row["state"] != "right" or (row["launches"] and row["checks"] and not row["skipped"]), name


def test_no_record_has_a_path_of_a_machine() -> None:
    """Files are named: the folder of a checkout says nothing to others."""
    path = re.compile(r'(?<![\w./:])/(?:home|root|tmp|work|mnt|opt|usr|data|Users)/[^"\s]*')
    found = {file.name: path.findall(file.read_text("utf-8"))[:3] for file in RECORD.parent.glob("*.json")}
    assert {name: paths for name, paths in found.items() if paths} == {}


def test_outcomes_tell_wrong_results_from_stops() -> None:
    """A failed assertion is a wrong result; any other error stops the script."""
    head = '{"device": "x", "arch": "sm_90a", "ok": true, "launches": [{}], "findings": [], "fatal": [], "status": 1}'
    wrong = outcome(f"text\n{head}\n", "Traceback\nAssertionError: not close\n", 3, 1.0)
    assert (wrong.state, wrong.launches) == ("wrong", 1)
    stopped = outcome(head, "Traceback\n  File a\nValueError: no\nmore\n", 3, 1.0)
    assert (stopped.state, stopped.error) == ("stopped", "ValueError: no more")
    assert outcome("", "Killed", -11, 1.0).error == "ended by signal 11: Killed"
    assert last_error("\x1b[91mfoo.bar.BazError: in /a/b/c.py\x1b[0m") == "foo.bar.BazError: in c.py"


def test_only_a_launch_and_a_passed_check_are_right() -> None:
    """A script that skips, checks nothing or launches nothing is not right."""
    assert Outcome(0, "", 1, 1.0).state == "right"
    assert Outcome(0, "", 1, 1.0, checks=False).state == "unchecked"
    assert Outcome(0, "", 1, 1.0, skipped="SKIP: no GPU").state == "skipped"
    assert Outcome(0, "", 0, 1.0).state == "launched nothing"
    assert Outcome(None, "ended by signal 11", 0, 1.0).state == "stopped"
    assert Outcome(1, "AssertionError: not close", 1, 1.0, defect="races").state == "defect"
    assert Outcome(1, "ImportError: no", 0, 1.0, defect="races").state == "stopped"
    assert Outcome(0, "", 1, 1.0, defect="races").state == "right"
    assert SKIP.findall("a\n[SKIP] no GPU\n  skipped CTAs: 3\nSkipping it") == ["[SKIP] no GPU", "Skipping it"]


def test_a_run_ends_by_itself_or_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script runs as a copy where sizes are replaced; one that takes too long is killed."""
    monkeypatch.setattr(run_examples, "LIST", tmp_path / "list.json")
    (tmp_path / "one.py").write_text("import sys, time\ntime.sleep(100)\nassert sys.argv[1] == 'x', sys.argv\n")
    short = Example("layoutgemm", "one.py", "sm_90a", "x", replace=[("100", "0")])
    done = run(short, {}, 60)
    assert (done.state, done.launches, done.checks) == ("launched nothing", 0, True), done
    assert run(Example("layoutgemm", "one.py", "sm_90a", "y", replace=[("100", "0")]), {}, 60).state == "stopped"
    assert run(Example("layoutgemm", "one.py", "sm_90a", "x"), {}, 2).error == "longer than 2 s"


def test_a_script_finds_what_the_one_before_it_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second does not run if the first one fails."""
    monkeypatch.setattr(run_examples, "LIST", tmp_path / "list.json")
    (tmp_path / "first.py").write_text("open('made', 'w').write('3')\n")
    (tmp_path / "second.py").write_text("assert open('made').read() == '3'\n")
    (tmp_path / "wrong.py").write_text("open('made', 'w').write('3')\nraise ValueError('no')\n")
    second = Example("layoutgemm", "second.py", "sm_90a", after="first.py")
    assert run(second, {}, 60).state == "launched nothing"
    assert run(Example("layoutgemm", "second.py", "sm_90a"), {}, 60).state == "stopped"
    failed = run(Example("layoutgemm", "second.py", "sm_90a", after="wrong.py"), {}, 60)
    assert (failed.state, failed.error) == ("stopped", "ValueError: no")
