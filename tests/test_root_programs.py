"""Every program in the root folders layouts/, atoms/ and kernels/ runs as a reader would run it, and checks itself.

A program prints what it checked and exits 0. It says what it needs beyond numpy and sympy in a line of its docstring,
`Needs: dsl`, `Needs: torch` or `Needs: gpu` (several with commas); where that is absent it is skipped.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("layouts", "atoms", "kernels")
PROGRAMS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
LIMIT_S = 120.0


@functools.cache
def absent(need: str) -> bool:
    if need == "gpu":
        if absent("torch"):
            return True
        import torch

        return not torch.cuda.is_available()
    return importlib.util.find_spec({"dsl": "cutlass", "torch": "torch"}[need]) is None


def needs(path: Path) -> list[str]:
    """What the program's docstring says it needs."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    line = re.search(r"^Needs: *(.*?)\.?$", docstring, flags=re.MULTILINE)
    return [need.strip() for need in line[1].split(",")] if line else []


def run_program(path: Path, cwd: Path, limit_s: float = LIMIT_S) -> str | None:
    """Runs a program; None if it passed, else what went wrong."""
    env = dict(os.environ)
    env["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    try:
        done = subprocess.run(
            [sys.executable, str(path)], cwd=cwd, env=env, capture_output=True, text=True, timeout=limit_s
        )
    except subprocess.TimeoutExpired:
        return f"ran longer than {limit_s:g} s"
    if done.returncode != 0:
        return f"exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return None if done.stdout.strip() else "printed nothing: a program says what it checked"


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_program(path: Path, tmp_path: Path) -> None:
    lacking = [need for need in needs(path) if absent(need)]
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}")
    problem = run_program(path, tmp_path)
    assert problem is None, problem


def test_a_variant_is_at_most_thirty_lines() -> None:
    lines = {path.name: len(path.read_text().splitlines()) for path in (ROOT / "kernels").glob("variant_*.py")}
    assert len(lines) >= 3 and max(lines.values()) <= 30, lines


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("import layoutgemm; print('checked: 1 of 1')", None),
        ("assert 1 == 2, 'one is not two'", "one is not two"),
        ("pass", "printed nothing"),
        ("import time; time.sleep(60)", "ran longer than"),
    ],
)
def test_the_runner_sees_failures(tmp_path: Path, text: str, problem: str | None) -> None:
    path = tmp_path / "planted.py"
    path.write_text(text, encoding="utf-8")
    found = run_program(path, tmp_path, limit_s=5)
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_needs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text('"""A program.\n\nNeeds: dsl, gpu.\n"""\n', encoding="utf-8")
    assert needs(path) == ["dsl", "gpu"]
