"""Compiling in a process of its own: the caller's stays small, its threads go on, and several kernels are made at once.

Importing the DSL and compiling take some 200 MB and hold the interpreter; loading what was compiled takes neither. So
`prepare` asks a worker process for a kernel that the cache on disk does not have, and the worker leaves it there. The
worker waits for more for a while, then ends by itself, as it does when its caller ends. Where there is no cache, or no
process can be started, the caller compiles for itself.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict
from typing import Any, NamedTuple

from ..dtypes import dtype
from ..errors import LayoutError
from . import object_cache
from .compile import kernel_facts
from .epilogue import STEPS, Custom, Epilogue, Given, Step
from .sm80_choice import Sm80Choice
from .sm80_plan import Sm80Config
from .sm90_choice import Sm90Choice
from .sm90_plan import Sm90Config

IDLE_SECONDS = 30.0


class Kernel(NamedTuple):
    """A configuration, types and orders of A, B and C, whether it is of a batch, its epilogue, what gates it."""

    choice: Sm90Choice | Sm80Choice
    operands: tuple[str, str, str]
    batched: bool = False
    epilogue: Epilogue | None = None
    gated: str | None = None

    def plan(self, m: int, n: int, k: int, batch: int) -> Any:
        """The kernel's plan for these sizes."""
        a, b, c = self.operands
        more = {} if self.gated is None else {"gated": self.gated}
        return self.choice.plan(m, n, k, batch=batch, a=a, b=b, c=c, epilogue=self.epilogue, **more)


def plan_of(kernel: Kernel) -> Any:
    """The plan of a kernel, for some sizes: its code serves any."""
    return kernel.plan(1, 1, 1 << 16, 2 if kernel.batched else 1)


def prepare(kernel: Kernel) -> None:
    """Have the kernel in the cache on disk, compiled by the worker if need be; silent where that cannot be done."""
    if object_cache.cache_dir() is None or object_cache.kept(kernel_facts(plan_of(kernel))):
        return
    with _LOCK:
        global _WORKER
        for _ in range(2):  # a worker that was idle too long has ended
            if _WORKER is None:
                _WORKER = Worker()
                atexit.register(_WORKER.kill)  # it waits for work, and has none to lose
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
        try:
            self._process.stdin.write(json.dumps(entry_of(kernel)) + "\n")
            self._process.stdin.flush()
            return self._process.stdout.readline().strip()
        except (OSError, TypeError):  # TypeError: an epilogue that JSON does not hold
            return ""

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None:
            self._process.kill()
            self.close()

    def close(self) -> None:
        """Let the process end, and wait for it."""
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


def entry_of(kernel: Kernel) -> dict[str, Any]:
    """A kernel as JSON has it. Raises TypeError for an epilogue with a step that is none of this package's.

    >>> from layoutgemm.kernels.epilogue import Activation, Bias
    >>> kernel = Kernel(Sm90Choice(Sm90Config()), ("bf16:row",) * 3, False, Epilogue(Bias(), Activation("relu")))
    >>> kernel_of(json.loads(json.dumps(entry_of(kernel)))) == kernel
    True
    """
    entry: dict[str, Any] = {
        "swapped": kernel.choice.swapped, "config": asdict(kernel.choice.config), "operands": kernel.operands,
        "batched": kernel.batched,
    }  # fmt: skip
    if isinstance(kernel.choice, Sm80Choice):
        entry["mma.sync"] = kernel.choice.arch
    if kernel.gated is not None:
        entry["gated"] = kernel.gated
    if kernel.epilogue is not None:
        for step in kernel.epilogue.steps:
            if STEPS.get(type(step).__name__) is not type(step):
                raise TypeError(f"{step!r} is not one of {', '.join(STEPS)}")
        entry["steps"] = [[type(step).__name__, _values_of(step)] for step in kernel.epilogue.steps]
        entry["pairs"] = kernel.epilogue.pairs
    return entry


def kernel_of(entry: Any) -> Kernel:
    """The kernel again. Raises LayoutError, TypeError or KeyError for what is none."""
    epilogue = None
    if "steps" in entry:
        epilogue = Epilogue(*[_step_of(name, values) for name, values in entry["steps"]], pairs=entry["pairs"])
    choice: Sm90Choice | Sm80Choice
    if "mma.sync" in entry:
        choice = Sm80Choice(Sm80Config(**_values(entry["config"])), entry["mma.sync"], bool(entry["swapped"]))
    else:
        choice = choice_of(entry)
    return Kernel(choice, tuple(entry["operands"]), bool(entry["batched"]), epilogue, entry.get("gated"))


def _values_of(step: Step) -> dict[str, Any]:
    if not isinstance(step, Custom):
        return vars(step)
    operands = [{**vars(operand), "dtype": operand.dtype.name} for operand in step.operands]
    return {"expression": step.expression, "operands": operands}


def _step_of(name: str, values: Any) -> Step:
    if name != "Custom":
        return STEPS[name](**values)
    operands = [Given(**{**operand, "dtype": dtype(operand["dtype"])}) for operand in values["operands"]]
    return Custom(_tuples(values["expression"]), tuple(operands))


def _tuples(x: Any) -> Any:
    return tuple([_tuples(y) for y in x]) if isinstance(x, list) else x


def choice_of(entry: Any) -> Sm90Choice:
    """A configuration from JSON. Raises LayoutError, TypeError or KeyError for what is none.

    >>> choice_of({"swapped": False, "config": {"tile": [128, 64]}}).config.tile
    (128, 64)
    """
    if not isinstance(entry["swapped"], bool):
        raise TypeError(f"swapped = {entry['swapped']!r}: true or false")
    return Sm90Choice(Sm90Config(**_values(entry["config"])), entry["swapped"])


def _values(config: dict[str, Any]) -> dict[str, Any]:
    return {name: _tuples(value) for name, value in config.items()}


def main() -> None:
    """The worker: kernels as JSON lines on stdin; for each, "ok" or what went wrong, on a line of stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the DSL prints is no answer
    while select.select([sys.stdin], [], [], IDLE_SECONDS)[0] and (line := sys.stdin.readline()):
        try:
            plan_of(kernel_of(json.loads(line))).compile()
            answer = "ok"
        except (LayoutError, ImportError, OSError, RuntimeError, TypeError, ValueError, KeyError) as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer.replace("\n", " "), file=answers, flush=True)


if __name__ == "__main__":
    main()
