"""Every program in the root folders layouts/, atoms/ and kernels/ runs and checks itself.

A program prints what it checked and exits 0. Its docstring names its needs beyond numpy and sympy, as in `Needs: dsl`:
dsl, torch, triton or gpu, several with commas. A program is skipped where one is absent.

The first program of each folder, and those with torch, run by an interpreter of their own. The others run in processes
forked from one that has imported the libraries already: importing takes longer than most of them.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("layouts", "atoms", "kernels")
PROGRAMS = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
LIMIT_S = 120.0
APART = {min(path for path in PROGRAMS if path.parent.name == folder) for folder in FOLDERS}
IMPORTED = ("numpy", "layoutgemm.kernels.ladder.primitives", "layoutgemm.kernels.ladder.levels", "cutlass.cute")


@functools.cache
def absent(need: str) -> bool:
    if need == "gpu":
        if absent("torch"):
            return True
        import torch

        return not torch.cuda.is_available()
    return importlib.util.find_spec({"dsl": "cutlass", "torch": "torch", "triton": "triton"}[need]) is None


def needs(path: Path) -> list[str]:
    """The requirements in the program's docstring."""
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
    return verdict(done.returncode, done.stdout + done.stderr if done.returncode else done.stdout)


def verdict(status: int, output: str) -> str | None:
    """None for a program that passed, else what was wrong with it."""
    if status != 0:
        return f"exit status {status}\n{output}"
    return None if output.strip() else "printed nothing: a program says what it checked"


class Server:
    """`program_server.py`, and the programs that it runs."""

    def __init__(self) -> None:
        path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("program_server.py")), *IMPORTED],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env={**os.environ, "PYTHONPATH": path},
        )  # fmt: skip

    def run(self, path: Path, cwd: Path, limit_s: float = LIMIT_S) -> str | None:
        """Runs a program; None if it passed, else what went wrong."""
        assert self.process.stdin is not None and self.process.stdout is not None
        output, errors = cwd / "program's output", cwd / "program's output.err"
        self.process.stdin.write(json.dumps([str(path), str(cwd), str(output)]).encode() + b"\n")
        # Unbuffered: a buffer would take both lines of a fast program at once, and `select` would see none.
        child = int(self.process.stdout.readline())
        late = not select.select([self.process.stdout], [], [], limit_s)[0]
        if late:
            os.kill(child, signal.SIGKILL)
        status = int(self.process.stdout.readline())
        text = output.read_text(encoding="utf-8") + (errors.read_text(encoding="utf-8") if status else "")
        return f"ran longer than {limit_s:g} s" if late else verdict(status, text)


@pytest.fixture(scope="session")
def server() -> Iterator[Server | None]:
    """A server for all programs, or None where processes cannot be forked."""
    if not hasattr(os, "fork"):
        yield None
        return
    found = Server()
    yield found
    found.process.kill()
    found.process.communicate()


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_program(path: Path, tmp_path: Path, server: Server | None) -> None:
    lacking = [need for need in needs(path) if absent(need)]
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}")
    apart = server is None or path in APART or "torch" in needs(path)
    problem = run_program(path, tmp_path) if apart or server is None else server.run(path, tmp_path)
    assert problem is None, problem


def test_a_variant_is_at_most_thirty_lines_behind_its_docstring() -> None:
    lines = {}
    for path in (ROOT / "kernels").glob("variant_*.py"):
        text = path.read_text()
        lines[path.name] = len(text.splitlines()) - (ast.parse(text).body[0].end_lineno or 0)
    assert len(lines) >= 10 and max(lines.values()) <= 30, lines


def limit(problem: str | None) -> float:
    """Seconds for a planted program: few where it is one that sleeps, which is seen however slow the machine is."""
    return 0.5 if problem == "ran longer than" else LIMIT_S


SEEN = [
    ("import layoutgemm; print('checked: 1 of 1')", None),
    ("assert 1 == 2, 'one is not two'", "one is not two"),
    ("pass", "printed nothing"),
    ("import time; time.sleep(60)", "ran longer than"),
]


@pytest.mark.parametrize(("text", "problem"), SEEN)
def test_the_runner_sees_failures(tmp_path: Path, text: str, problem: str | None) -> None:
    path = tmp_path / "planted.py"
    path.write_text(text, encoding="utf-8")
    found = run_program(path, tmp_path, limit(problem))
    assert (found is None) if problem is None else (found is not None and problem in found)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *SEEN,
        ("print('x'); raise SystemExit('no good')", "no good"),
        ("print('x'); raise SystemExit(3)", "exit status 3"),
        ("print('x'); np.zeros(1)", "name 'np' is not defined"),
        ("import os, sys; print(__name__, sys.argv, os.getcwd()); raise SystemExit(1)", "__main__"),
    ],
)
def test_the_server_sees_failures(tmp_path: Path, text: str, problem: str | None, server: Server | None) -> None:
    if server is None:
        pytest.skip("the server forks processes: run it on Linux or macOS")
    path = tmp_path / "planted.py"
    path.write_text(text, encoding="utf-8")
    found = server.run(path, tmp_path, limit(problem))
    assert (found is None) if problem is None else (found is not None and problem in found)
    path.write_text("print('checked')", encoding="utf-8")
    assert server.run(path, tmp_path) is None  # and the next one is a program of its own


def test_needs_are_read(tmp_path: Path) -> None:
    path = tmp_path / "planted.py"
    path.write_text('"""A program.\n\nNeeds: dsl, gpu.\n"""\n', encoding="utf-8")
    assert needs(path) == ["dsl", "gpu"]
