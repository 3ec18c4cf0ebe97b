"""Compiling in a process of its own: the caller's stays small, its threads go on, and several kernels are made at once.

Importing the DSL and compiling take some 200 MB and hold the interpreter; loading what was compiled takes neither. So
`prepare` asks a worker process for a kernel that the cache on disk does not have, and the worker leaves it there. The
worker waits for more for a while, then ends by itself, as it does when its caller ends. Where there is no cache, or no
process can be started, the caller compiles for itself.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Any

from ..errors import LayoutError
from . import object_cache
from .compile import kernel_facts
from .sm90_choice import Sm90Choice
from .sm90_plan import Sm90Config

IDLE_SECONDS = 30.0
Kernel = tuple[Sm90Choice, tuple[str, ...], bool]  # configuration, types and orders of A, B, C, whether of a batch


def plan_of(kernel: Kernel) -> Any:
    """The plan of a kernel, for some sizes: its code serves any."""
    choice, (a, b, c), batched = kernel
    return choice.plan(1, 1, 1 << 16, batch=2 if batched else 1, a=a, b=b, c=c)


def prepare(kernel: Kernel) -> None:
    """Have the kernel in the cache on disk, compiled by the worker if need be; silent where that cannot be done."""
    if object_cache.cache_dir() is None or object_cache.kept(kernel_facts(plan_of(kernel))):
        return
    with _LOCK:
        global _WORKER
        for _ in range(2):  # a worker that was idle too long has ended
            if _WORKER is None:
                _WORKER = Worker()
            if _WORKER.compile(kernel):
                return
            _WORKER.close()
            _WORKER = None


def build(kernels: Sequence[Kernel], jobs: int | None = None, say: Callable[[str], object] = print) -> list[str]:
    """Compile kernels into the cache on disk, `jobs` at once (default half the processors); what failed, in words.

    Gives one text for each kernel, "" for those that are ready.
    """
    jobs = min(jobs or max(1, (os.cpu_count() or 2) // 2), max(1, len(kernels)))
    answers = [""] * len(kernels)

    def share(first: int) -> None:
        worker = Worker()
        try:
            for number in range(first, len(kernels), jobs):
                answers[number] = worker.compile(kernels[number]) or "the compiling process ended"
        finally:
            worker.close()

    with ThreadPoolExecutor(jobs) as pool:
        for done, job in enumerate(as_completed([pool.submit(share, i) for i in range(jobs)]), 1):
            job.result()
            say(f"compiling: {done} of {jobs} processes are done, {sum(map(bool, answers))} of {len(kernels)} kernels")
    return ["" if answer == "ok" else answer for answer in answers]


class Worker:
    """A process that compiles kernels one after the other."""

    def __init__(self) -> None:
        env = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
        self._process: subprocess.Popen[str] | None = None
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, text=True, env=env,
            )  # fmt: skip
        except OSError:  # no such interpreter, no more processes
            pass

    def compile(self, kernel: Kernel) -> str:
        """Ask for a kernel, and wait: "ok", what went wrong, or "" where the process has ended."""
        if self._process is None or self._process.stdin is None or self._process.stdout is None:
            return ""
        choice, operands, batched = kernel
        line = {"swapped": choice.swapped, "config": asdict(choice.config), "operands": operands, "batched": batched}
        try:
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()
            return self._process.stdout.readline().strip()
        except OSError:
            return ""

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except OSError:
                        pass
            self._process.wait()


_LOCK = threading.Lock()
_WORKER: Worker | None = None


def choice_of(entry: Any) -> Sm90Choice:
    """A configuration from JSON. Raises LayoutError, TypeError or KeyError for what is none.

    >>> choice_of({"swapped": False, "config": {"tile": [128, 64]}}).config.tile
    (128, 64)
    """
    values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry["config"].items()}
    return Sm90Choice(Sm90Config(**values), bool(entry["swapped"]))


def main() -> None:
    """The worker: kernels as JSON lines on stdin; for each, "ok" or what went wrong, on a line of stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the DSL prints is no answer
    while select.select([sys.stdin], [], [], IDLE_SECONDS)[0] and (line := sys.stdin.readline()):
        try:
            entry = json.loads(line)
            plan_of((choice_of(entry), tuple(entry["operands"]), entry["batched"])).compile()
            answer = "ok"
        except (LayoutError, ImportError, OSError, RuntimeError, TypeError, ValueError, KeyError) as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer.replace("\n", " "), file=answers, flush=True)


if __name__ == "__main__":
    main()
