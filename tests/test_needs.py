"""The reasons of skips: each says what to install, and tests take them from one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs

ROOT = Path(__file__).resolve().parents[1]
# A call with one string: pytest's own reason says that an import failed, not what to do.
BARE = re.compile(r"importorskip\(\s*[\"'][\w.]+[\"']\s*\)")
# What a reader of a skip can do: install, run it elsewhere, or have what it needs.
WAY_OUT = re.compile(r"\binstall\b|\brun (it|tests/)|\bneeds [\w{]|\bunset\b|\bon PYTHONPATH\b|\bon PATH\b")


def test_every_extra_that_a_reason_names_exists() -> None:
    """Read as text: Python 3.10 has no reader of TOML."""
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    tables = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    extras = set(re.findall(r"^([\w-]+) = \[", tables, flags=re.MULTILINE))
    named = set(re.findall(r"layoutgemm\[([\w-]+)\]", " ".join(needs.HOW.values())))
    assert named and named <= extras


def test_an_absent_module_skips_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(needs.HOW, "no_such", "pip install no-such")
    with pytest.raises(pytest.skip.Exception, match=r"no_such\.part is not installed: pip install no-such"):
        needs.module("no_such.part")
    assert needs.reason("other.part") == "other.part is not installed: pip install other"


def test_no_test_skips_by_a_bare_import() -> None:
    assert BARE.search('torch = pytest.importorskip("torch")')
    bare = [str(p) for p in (ROOT / "tests").rglob("*.py") if BARE.search(p.read_text(encoding="utf-8"))]
    assert bare in ([], [__file__])


def test_a_program_is_found_or_the_skip_says_how_to_install_it() -> None:
    assert needs.program(["no-such-program", "python3", "python"], "").rpartition("/")[2].startswith("python")
    with pytest.raises(pytest.skip.Exception, match="no-such-program: not on PATH; install it"):
        needs.program(["no-such-program"], "install it")


def reasons(path: Path) -> Iterator[str]:
    """The literal reasons of a file's skips; braces in place of what is computed."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if re.search(r"pytest\.[\w.]*skip", text) else ():
        if not isinstance(node, ast.Call) or not (name := ast.unparse(node.func)).startswith("pytest."):
            continue
        given = [key.value for key in node.keywords if key.arg == "reason"] if name != "pytest.skip" else node.args[:1]
        for value in given:
            parts = value.values if isinstance(value, ast.JoinedStr) else [value]
            reason = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)
            if reason.strip("{}"):
                yield reason


def test_every_reason_says_what_to_do() -> None:
    assert WAY_OUT.search("needs two GPUs") and not WAY_OUT.search("locks are POSIX's")
    said = {reason for path in (ROOT / "tests").rglob("*.py") for reason in reasons(path) if reason != "None"}
    assert len(said) > 30
    assert not [reason for reason in said if not WAY_OUT.search(reason)]
