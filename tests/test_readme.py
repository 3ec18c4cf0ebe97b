"""README.md is true: its examples run, and its commands, paths and extras exist.

Fenced blocks are held to this:
    python, pycon   with `>>>` a doctest, else run as a program; all blocks of the file share one namespace
    python gpu      likewise, where there is a GPU (`dsl`: where the CuTe DSL is installed)
    sh, bash        each command is one that this test can check; a command it does not know is a failure
    console         the same for lines that start with `$ `; lines under a `layoutgemm` command are its output, in
                    which `...` stands for anything
    text, none      not read
"""

from __future__ import annotations

import contextlib
import doctest
import functools
import importlib.metadata
import importlib.util
import io
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from layoutgemm.cli.main import main

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
SHELL = ("sh", "bash", "shell", "console", "powershell", "bat")
# Commands that only set the scene.
SCENERY = frozenset({"git", "cd", "source", ".", "python3", "py", "export"})


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    tags: tuple[str, ...]
    text: str


def blocks(readme: str) -> Iterator[Block]:
    """The fenced code blocks of a Markdown text."""
    fence, start, info, body = "", 0, [""], []
    for number, line in enumerate(readme.splitlines(), start=1):
        opening = re.match(r"^ {0,3}(```+|~~~+)(.*)$", line)
        if not fence and opening:
            fence, start, info, body = opening[1], number, opening[2].split() or [""], []
        elif fence and line.strip() == fence:
            yield Block(start, info[0], tuple(info[1:]), "\n".join(body) + "\n")
            fence = ""
        elif fence:
            body.append(line)
    if fence:
        raise ValueError(f"line {start}: a code block is never closed")


def run_python(found: list[Block], lacking: frozenset[str] = frozenset()) -> list[str]:
    """Runs the Python blocks one after another in one namespace; returns what went wrong."""
    names: dict[str, object] = {"__name__": "readme"}
    report: list[str] = []
    runner = doctest.DocTestRunner(verbose=False)
    for block in found:
        if block.language not in ("python", "py", "pycon") or lacking.intersection(block.tags):
            continue
        where = f"README.md:{block.line}"
        if ">>>" in block.text:
            test = doctest.DocTestParser().get_doctest(block.text, names, where, where, block.line)
            test.globs = names
            runner.run(test, out=report.append, clear_globs=False)
        else:
            try:
                with contextlib.redirect_stdout(io.StringIO()):
                    exec(compile(block.text, where, "exec"), names)
            except Exception as error:
                report.append(f"{where}: {type(error).__name__}: {error}\n")
    return report


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """(command, the output under it) of a shell block."""
    text = re.sub(r"\s*\\\n\s*", " ", block.text)
    if block.language != "console":
        for line in text.splitlines():
            if line.strip() and not line.lstrip().startswith("#"):
                yield line.strip().removeprefix("$ "), ""
        return
    command, output = "", []
    for line in text.splitlines():
        if line.startswith("$ "):
            if command:
                yield command, "\n".join(output)
            command, output = line[2:].strip(), []
        else:
            output.append(line)
    if command:
        yield command, "\n".join(output)


def layoutgemm(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    code = "import sys; from layoutgemm.cli.main import main; sys.exit(main(sys.argv[1:]))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, env=env
    )


@functools.cache
def help_problem(subcommand: str) -> str | None:
    """The reason why `layoutgemm SUBCOMMAND` does not exist. Its --help exits 0, an unknown one 2. Runs in this
    process, since there are many."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = main([subcommand, "--help"])
    except SystemExit as left:
        code = left.code
    return f"layoutgemm {subcommand}: {said.getvalue().strip()[-300:]}" if code else None


def extras(root: Path) -> set[str]:
    """Names of the optional dependencies in pyproject.toml (tomllib came with Python 3.11)."""
    section = (root / "pyproject.toml").read_text(encoding="utf-8").split("[project.optional-dependencies]")[1]
    return set(re.findall(r"^(\w+) = \[", section.split("\n[")[0], flags=re.MULTILINE))


def command_problem(command: str, output: str = "", root: Path = ROOT) -> str | None:
    """Why a command in the README cannot be right, or None."""
    words = shlex.split(re.sub(r"\\(?=\w)", "/", command), comments=True)  # a Windows path
    while words and re.fullmatch(r"\w+=.*", words[0]):
        words = words[1:]
    if not words:
        return None
    head = words[0]
    if head in ("python", "python3", "py") and words[1:3] == ["-m", "pip"]:
        words, head = words[2:], "pip"
    if head == "make":
        rules = re.findall(r"^([\w-]+):", (root / "Makefile").read_text(encoding="utf-8"), flags=re.MULTILINE)
        unknown = [word for word in words[1:] if "=" not in word and word not in rules]
        return f"the Makefile has no target {unknown[0]}" if unknown else None
    if head == "pip":
        known = extras(root)
        for name in re.findall(r"\[([\w, ]+)\]", command):
            if unknown := [extra for extra in re.split(r"[, ]+", name) if extra not in known]:
                return f"pyproject.toml has no extra {unknown[0]}"
        return None
    if head == "layoutgemm":
        return help_problem(words[1] if len(words) > 1 else "")
    if head in ("python", "python3", "py") and len(words) > 1:
        if words[1] == "-m":
            known_module = words[2] == "venv" or importlib.util.find_spec(words[2]) is not None
            return None if known_module else f"there is no module {words[2]}"
        if words[1].endswith(".py"):
            return None if (root / words[1]).is_file() else f"there is no file {words[1]}"
    if head in SCENERY or head.startswith(".venv/"):
        return None
    return f"do not know how to check `{command}`"


def output_problem(command: str, output: str) -> str | None:
    """The difference between shown and actual output (`...` matches anything), or None."""
    words = shlex.split(command, comments=True)
    arguments = ["demo"] if words == ["make", "demo"] else words[1:]
    if not output.strip():
        return None
    if words[0] != "layoutgemm" and words != ["make", "demo"]:
        return "shows output of a command that this test does not run: put it into a text block"
    done = layoutgemm(arguments)
    checker, flags = doctest.OutputChecker(), doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    if checker.check_output(output.strip() + "\n", done.stdout.strip() + "\n", flags):
        return None
    return f"prints something else:\n{done.stdout}{done.stderr}"


def link_problems(readme: str, root: Path = ROOT) -> list[str]:
    """Relative links and images whose file is missing."""
    targets = re.findall(r"\]\(([^)\s]+)\)", readme) + re.findall(r'(?:src|href)="([^"]+)"', readme)
    relative = [t.partition("#")[0] for t in targets if not re.match(r"[a-z]+:|#", t)]
    return [f"there is no file {target}" for target in relative if not (root / target).exists()]


@pytest.fixture(scope="module")
def readme() -> str:
    return README.read_text(encoding="utf-8")


def absent() -> frozenset[str]:
    named = (("dsl", "cutlass"), ("torch", "torch"), ("jax", "jax"), ("transformers", "transformers"))
    lacking = {tag for tag, name in named if importlib.util.find_spec(name) is None}
    if "torch" not in lacking:
        import torch

        lacking |= set() if torch.cuda.is_available() else {"gpu"}
    try:
        importlib.metadata.version("nvidia-cutlass-operators")
    except importlib.metadata.PackageNotFoundError:
        lacking.add("operators")
    return frozenset(lacking | ({"gpu"} if "torch" in lacking else set()))


def test_python_blocks(readme: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = list(blocks(readme))
    assert any(">>>" in block.text for block in found), "README.md shows no example at a prompt"
    monkeypatch.chdir(tmp_path)
    tagged = any(block.tags for block in found)
    report = run_python(found, absent() if tagged else frozenset())
    assert not report, "\n" + "".join(report)


def test_shell_commands(readme: str) -> None:
    found = [(b.line, *pair) for b in blocks(readme) if b.language in SHELL for pair in commands(b)]
    assert any(command.startswith("make ") for _, command, _ in found), "README.md names no make target"
    problems = [f"README.md:{line}: {why}" for line, command, _ in found if (why := command_problem(command))]
    problems += [f"README.md:{line}: `{c}` {why}" for line, c, out in found if (why := output_problem(c, out))]
    assert not problems, "\n" + "\n".join(problems)


def test_links(readme: str) -> None:
    assert not (problems := link_problems(readme)), "\n".join(problems)


def test_a_wrong_example_fails() -> None:
    text = "```python\n>>> x = 6\n>>> x * 7\n42\n```\n\n```python\nassert x == 6\n```\n\n```python gpu\n1/0\n```\n"
    assert run_python(list(blocks(text)), frozenset({"gpu"})) == []
    assert "ZeroDivisionError" in run_python(list(blocks(text)))[0]
    assert "Expected:\n    43" in "".join(run_python(list(blocks(text.replace("42", "43")))))
    assert "AssertionError" in run_python(list(blocks(text.replace("x == 6", "x == 7"))), frozenset({"gpu"}))[0]
    with pytest.raises(ValueError, match="never closed"):
        list(blocks("```python\n1\n"))


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("make demo", None),
        ("make bench-algebra PYCUTE=~/pycute", None),
        ("make demonstration", "no target demonstration"),
        ("pip install -e '.[dsl,torch]'", None),
        ("py -m pip install -e .", None),
        ("pip install layoutgemm[dls]", "no extra dls"),
        ("python tests/test_readme.py", None),
        ("python tests/absent.py", "no file tests/absent.py"),
        ("python -m layoutgemm_absent", "no module layoutgemm_absent"),
        ("layoutgemm show wgmma:64:bf16:C", None),
        ("layoutgemm shew wgmma:64:bf16:C", "layoutgemm shew"),
        ("curl https://example.org | sh", "do not know how to check"),
        ("git clone https://example.org/layoutgemm && cd layoutgemm", None),
        (".venv\\Scripts\\layoutgemm demo", None),
    ],
)
def test_commands_are_checked(command: str, problem: str | None) -> None:
    found = command_problem(command)
    assert (found is None) if problem is None else (found is not None and problem in found)


def test_console_blocks_are_read() -> None:
    block = Block(1, "console", (), "$ make demo\nplan ...\ndone\n$ make \\\n  test\n")
    assert list(commands(block)) == [("make demo", "plan ...\ndone"), ("make test", "")]
    assert "does not run" in (output_problem("make test", "all good") or "")


def test_missing_links_are_found() -> None:
    text = '[a](pyproject.toml) [b](absent.md#x) [c](https://example.org) <img src="absent.svg">'
    assert link_problems(text) == ["there is no file absent.md", "there is no file absent.svg"]
