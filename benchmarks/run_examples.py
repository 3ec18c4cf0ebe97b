"""Run other people's kernels on an emulated GPU, and record the outcome of each.

    python benchmarks/run_examples.py --cutlass ~/cutlass --quack ~/quack --flash-attention ~/fa
    python benchmarks/run_examples.py --cutlass ~/cutlass --only hopper --again    # those once more

The list is `examples/list.json`: the script, the GPU and arguments that make it small. An example that names a version
of the CuTe DSL needs that one installed; --only chooses, and the others keep their rows. Each runs in a process of its
own, by `layoutgemm emulate`, for at most --limit seconds. The record is written after each, with its commit.
What the record has of this commit is not run again without --again. The page docs/examples.md shows it. Source trees
are checkouts of the public repositories.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import NoReturn, TypedDict

HERE = Path(__file__).resolve().parent
LIST, RECORD = HERE / "examples" / "list.json", HERE / "results" / "examples.json"
OURS = "layoutgemm"  # the source of scripts that lie in this folder and call another package's functions
# Where the scripts of a source lie in its repository.
FOLDERS = {"cutlass": "examples/python/CuTeDSL", "quack": ".", "flash-attention": "."}
# A line by which a script says that it leaves something out, and text with which it checks its results.
SKIP = re.compile(r"^\W*(?:SKIP(?:PED|PING)?|[Ss]kipping)\b.*", re.MULTILINE)
# What a lint's message says -> its judgement, which every row with such a lint has.
STANDARD = {
    "Policy(tensor_strict=True)": "lint: tcgen05 waits or fences left out (tensor_strict)",
    "Policy(register_strict=True)": "lint: a wgmma.fence left out (register_strict)",
    "one lane released it for lanes of its warp": "lint: a lane releases what its warp has read (--lanes strict)",
    "has one block's scope (.cta": "lint: an mbarrier of one block's scope tells another block (strict)",
    "have waited for each other since": (
        "lint: a write over reads that only a shuffle or the like orders (--lanes strict)"
    ),
}
CHECK = re.compile(r"\bassert|allclose|array_equal|torch\.equal|\bPASS|\bsys\.exit\(|\braise \w")


@dataclass(frozen=True)
class Example:
    """One run. It is a script of a source, the GPU that it is told about, and its arguments.

    needs   for a script of our own: the source whose package it calls
    raises  the beginning of the error with which it is meant to end
    replace (text, text) for sizes that are written in the script, which then runs as a copy
    judgement  what its findings are, as read in its source: real, lint, or false
    defect     what in its source makes the emulator stop it, or its result wrong in some order that PTX allows
    after      a script that runs before it in the same folder, as one that exports what it loads
    ranks      GPUs of a distributed script, as of torchrun
    dsl        the version of the DSL that it needs: another does not run it
    reason     why it cannot run
    cut        what of its own default arguments `args` leaves out, beside sizes and iterations
    """

    source: str
    script: str
    arch: str
    args: str = ""
    needs: str = ""
    raises: str = ""
    replace: Sequence[tuple[str, str]] = ()
    judgement: str = ""
    defect: str = ""
    after: str = ""
    ranks: int = 1
    dsl: str = ""
    reason: str = ""
    cut: str = ""

    @property
    def name(self) -> str:
        """The architecture, the script and its arguments: the key of the record.

        >>> Example("cutlass", "a/b.py", "sm_80", "--m 64").name
        'sm_80 a/b.py --m 64'
        """
        return f"{self.arch} {self.script} {self.args}".strip()


class Found(TypedDict):
    """A finding, and how often it came."""

    kind: str
    message: str
    source: str | None
    times: int


def judged(example: Example, findings: Sequence[Found]) -> str:
    """The judgement of a row's findings. It is its own, and the standard one of each lint that has it.

    >>> found = Found(kind="lint", message="x; Policy(register_strict=True) makes this a finding", source=None, times=1)
    >>> judged(Example("cutlass", "a.py", "sm_90a", judgement="lint: no elect"), [found])
    'lint: no elect; lint: a wgmma.fence left out (register_strict)'
    """
    lints = [one["message"] for one in findings if one["kind"] == "lint"]
    said = [standard for words, standard in STANDARD.items() if any(words in message for message in lints)]
    return "; ".join(filter(None, [example.judgement, *said]))


STATES = ("right", "unchecked", "wrong", "launched nothing", "skipped", "stopped", "defect")


@dataclass
class Outcome:
    """The outcome of a run.

    status    the script's exit status; None if the time limit ended it, or a signal
    error     the last line of its error, or ""
    launches  kernels that ran in the emulator
    checks    True if the script's text has a check of its results
    skipped   the line by which the script says that it left something out, or ""
    build     the commit that ran it, or "" where the tree was none
    dsl       the version of the CuTe DSL that compiled it
    defect    the example's defect, where it ended the script or made it wrong
    """

    status: int | None
    error: str
    launches: int
    seconds: float
    findings: list[Found] = field(default_factory=list)
    checks: bool = True
    skipped: str = ""
    build: str = ""
    dsl: str = ""
    defect: str = ""

    @property
    def state(self) -> str:
        """One of STATES. A state is right only where a kernel ran in the emulator and the script's own checks
        passed."""
        if self.status != 0 and self.defect and self.error.startswith(("EmulatorError", "DeadlockError", "Assertion")):
            return "defect"
        if self.status == 1 and self.launches and self.error.startswith("AssertionError"):
            return "wrong"
        if self.status != 0:
            return "stopped"
        if not self.launches:
            return "launched nothing"
        return "skipped" if self.skipped else "right" if self.checks else "unchecked"

    def __str__(self) -> str:
        said = f"stopped: {self.error[:150]}" if self.state == "stopped" else self.state
        kinds = ", ".join(f"{n} {kind}" for kind, n in Counter(one["kind"] for one in self.findings).items())
        return f"{self.seconds:6.1f} s  {self.launches} launches  {said}{'; ' + kinds if kinds else ''}"


def examples(path: Path = LIST) -> list[Example]:
    """The list."""
    return [Example(**row) for row in json.loads(path.read_text())]


def build() -> str:
    """The commit of this tree, with a + where files differ from it. It is "" outside of a repository."""
    git = ["git", "-C", str(HERE)]
    found = subprocess.run([*git, "rev-parse", "--short=9", "HEAD"], capture_output=True, text=True)
    if found.returncode:
        return ""
    changed = subprocess.run([*git, "status", "--porcelain", "--", "../layoutgemm"], capture_output=True, text=True)
    return found.stdout.strip() + ("+" if changed.stdout.strip() else "")


def run(example: Example, roots: Mapping[str, Path], limit: float) -> Outcome:
    """Run an example in a process of its own for at most `limit` seconds."""
    folder = LIST.parent if example.source == OURS else roots[example.source] / FOLDERS[example.source]
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="layoutgemm-example-") as work:
        script = folder / example.script
        text = script.read_text()
        if example.replace:
            for before, after in example.replace:
                text = text.replace(before, after)
            script = Path(work) / script.name
            script.write_text(text)
        words = ["emulate", "--json", "--arch", example.arch, "--ranks", str(example.ranks)]
        calls = [[*words, str(folder / example.after)]] if example.after else []
        calls += [[*words, str(script), *shlex.split(example.args)]]
        status: int | None = 0
        out, err = Path(work) / "out.txt", Path(work) / "err.txt"
        for call in calls:
            child = os.fork()  # torch and the DSL are loaded once, before the first
            if child == 0:
                sys.path[:0] = [str((folder / example.script).parent)] * bool(example.replace)  # what a copy imports
                _become(call, Path(work), out, err)
            status = _ended(child, start + limit)
            if status is None:
                return Outcome(None, f"longer than {limit:.0f} s", 0, limit)
            if status:
                break
        said = [path.read_text(errors="replace") for path in (out, err)]
    done = outcome(said[0], said[1], status or 0, time.monotonic() - start)
    if example.raises and done.error.startswith(example.raises):
        done.status = 0
    done.checks = CHECK.search(text) is not None
    done.skipped = "".join(SKIP.findall(said[0])[:1])[:200]
    return done


def _become(words: Sequence[str], folder: Path, out: Path, err: Path) -> NoReturn:
    """In a child process: the command `layoutgemm` with these words, in a folder, its output in files."""
    status = 1
    try:
        os.setsid()
        os.chdir(folder)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)
        from layoutgemm.cli.main import main as command

        status = command(words)
    except SystemExit as stop:
        status = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _ended(child: int, until: float) -> int | None:
    """A child's exit status, or a signal's number below zero; None if it has to be killed at that time."""
    while time.monotonic() < until:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.2)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def load(roots: Mapping[str, Path]) -> None:
    """Import torch and the DSL, and put the source trees on the path."""
    sys.path.insert(0, str(HERE.parent))  # the package of this tree, whose commit is recorded, not an installed one
    import cutlass.cute  # noqa: F401
    import torch

    import layoutgemm

    if Path(layoutgemm.__file__).resolve().parents[1] != HERE.parent:
        raise SystemExit(f"layoutgemm is {layoutgemm.__file__}, not of {HERE.parent}: its commit is recorded")

    torch.set_num_threads(1)  # the results of its products do not depend on the machine then
    sys.path[:0] = [str(root / FOLDERS[name]) for name, root in roots.items()]


def without_folders(text: str) -> str:
    """The text with files' names in place of their paths on this machine.

    >>> without_folders("a load (/home/me/cutlass/mapa.py:144) by a thread, and x/y")
    'a load (mapa.py:144) by a thread, and x/y'
    """
    return re.sub(r"(?<![\w/])/(?:[^\s/():\"']+/)+", "", text)


def bare_places(text: str) -> str:
    """A finding's place with files' names in place of their paths.

    >>> bare_places("/home/me/gemm.py:904, in /home/my tools/helpers.py:173")
    'gemm.py:904, in helpers.py:173'
    """
    return ", in ".join([one.rpartition("/")[2] for one in text.split(", in ")])


def outcome(out: str, err: str, status: int, seconds: float) -> Outcome:
    """The outcome by what a process wrote."""
    seconds = round(seconds, 1)
    if status < 0:
        return Outcome(None, f"ended by signal {-status}: {last_error(err)}", 0, seconds)
    line = next((line for line in reversed(out.splitlines()) if line.startswith('{"device"')), None)
    if line is None:
        return Outcome(status or 1, last_error(err) or "no report", 0, seconds)
    done = json.loads(line)
    times = Counter((f["kind"], f["message"].splitlines()[0], f["source"]) for f in done["findings"])
    findings: list[Found] = [
        {"kind": kind, "message": without_folders(text), "source": place and bare_places(place), "times": n}
        for (kind, text, place), n in times.items()
    ]
    error = last_error("\n".join(done["fatal"])) or last_error(err) if done["status"] else ""
    return Outcome(done["status"], without_folders(error), len(done["launches"]), seconds, findings)


def last_error(text: str) -> str:
    """The exception at the end of a traceback, in one line without colours and folders.

    >>> last_error("Traceback (most recent call last):\\n  File x\\nValueError: no\\n")
    'ValueError: no'
    """
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    lines = text.splitlines()
    starts = [
        i for i, line in enumerate(lines) if re.match(r"[\w.]*(Error|Exception|Failed|Interrupt|Warning)\b", line)
    ]
    said = " ".join(lines[starts[-1] :]) if starts else (lines[-1] if lines else "")
    said = re.sub(r"\s+", " ", said).strip()
    return re.sub(r"(?<![\w.])/(?:[\w.+-]+/)+", "", said)[:400]


def main(argv: Sequence[str] | None = None) -> int:
    """Run what the record lacks; print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in FOLDERS:
        parser.add_argument(f"--{name}", type=Path, metavar="FOLDER", help="a checkout of its repository")
    parser.add_argument("--only", default="", metavar="TEXT", help="names that match a regular expression")
    parser.add_argument("--again", action="store_true", help="also what the record has")
    parser.add_argument(
        "--stopped", action="store_true", help="of what this commit has run, all that ended with an error"
    )
    parser.add_argument("--limit", type=float, default=300, help="seconds of one run (%(default)s)")
    parser.add_argument("--record", type=Path, default=RECORD, help="the record (%(default)s)")
    args = parser.parse_args(argv)
    roots = {name: root.resolve() for name in FOLDERS if (root := getattr(args, name.replace("-", "_"))) is not None}
    now = build()
    record: dict[str, dict[str, object]] = json.loads(args.record.read_text()) if args.record.exists() else {}
    chosen = [
        one for one in examples()
        if (one.needs or one.source) in roots and re.search(args.only, one.name)
        and (args.again or not (row := record.get(one.name)) or row.get("build") != now
             or (args.stopped and row["status"] != 0))
    ]  # fmt: skip
    load(roots)
    dsl = version("nvidia-cutlass-dsl")
    chosen = [one for one in chosen if dsl.startswith(one.dsl)]
    for number, one in enumerate(chosen, 1):
        print(f"[{number}/{len(chosen)}] {one.name}", end=" ", flush=True)
        done = run(one, roots, args.limit)
        done.build, done.dsl, done.defect = now, dsl, one.defect
        print(done, flush=True)
        record[one.name] = {**asdict(done), "state": done.state}
        args.record.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    states = Counter(str(row["state"]) for row in record.values() if row.get("build") == now)
    print(f"of {len(examples())} listed, by {now}: {', '.join(f'{states[state]} {state}' for state in STATES)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
