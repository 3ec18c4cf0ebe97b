"""Compiling in a process of its own. The caller's stays small, its threads go on, and several kernels are made at once.

Importing the DSL and compiling take some 200 MB and hold the interpreter; loading what was compiled takes neither. So
`prepare` asks a worker process for a kernel that the cache on disk does not have, and the worker leaves it there. A
worker waits for more for a while, then ends by itself, as it does when its caller ends. Where there is no cache, no
process can be started or a worker does not answer in time, the caller compiles for itself.

A worker imports the caller's modules: those that are loaded from the same files, others along the same absolute paths,
and nothing from the current folder. Threads have workers of their own, and a forked process has none of its parent's.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import io
import json
import os
import pickle
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from ...arguments import shown
from ..epilogue.chain import Epilogue
from ..operands.combined import Combined
from ..operands.pair import SecondPair
from ..plan import GemmPlan
from ..sm80.choose import Sm80Choice
from ..sm80.plan import Sm80Config
from ..sm90.choose.rules import Sm90Choice
from ..sm90.config import Sm90Config, with_current_names
from ..sm90.quantized.feature_parts import FeatureParts, PartsChoice
from ..sm100.choose import Sm100Choice
from ..sm100.plan import Sm100Config
from ..streamed.choose import StreamedChoice
from ..streamed.plan import StreamedConfig
from . import cache as object_cache
from . import compiler as compiling
from .compiler import CompiledGemm, OwnPlan

IDLE_SECONDS = 30.0
LIMIT_SECONDS = 180.0  # for one kernel, the worker's imports included; the slowest took 40 s on a busy machine
SAID_SECONDS = 2.0  # between two lines of progress
_END_SECONDS = 2.0  # after which a worker that is to end is killed
MOST_WORKERS = max(2, (os.cpu_count() or 2) // 2)  # of `prepare`, at a time
# Runs before anything is imported but the standard library: the caller's paths, and the files of its modules.
_START = """
import importlib.machinery, importlib.util, json, sys
start = json.loads(open(0, "rb", buffering=0, closefd=False).readline())
class Same:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in start["modules"]:
            file, folders = start["modules"][name]
            return importlib.util.spec_from_file_location(name, file, submodule_search_locations=folders)
sys.meta_path.insert(sys.meta_path.index(importlib.machinery.PathFinder), Same)
sys.path[:] = start["path"]
importlib.import_module(start["main"]).main()
"""


Compiles = GemmPlan | OwnPlan
AnyChoice = Sm90Choice | Sm80Choice | Sm100Choice | StreamedChoice | PartsChoice


class Kernel(NamedTuple):
    """A kernel to compile: configuration, operand types and orders, batch, epilogue, gate. `paired`: of two pairs."""

    choice: Sm90Choice | Sm80Choice | Sm100Choice
    operands: tuple[str, str, str]
    batched: bool = False
    epilogue: Epilogue | None = None
    gated: Combined | str | None = None
    paired: bool = False

    @property
    def takes_words(self) -> bool:
        """True if the kernel has parameters beyond those of a product."""
        return self.epilogue is not None or self.paired or (isinstance(self.gated, Combined) and bool(self.gated.words))

    def plan(self, m: int, n: int, k: int, batch: int) -> Any:
        """The kernel's plan for these sizes."""
        a, b, c = self.operands
        more: dict[str, Any] = {} if self.gated is None else {"gated": self.gated}
        if self.paired:
            more["pair"] = SecondPair()
        return self.choice.plan(m, n, k, batch=batch, a=a, b=b, c=c, epilogue=self.epilogue, **more)


def plan_of(kernel: Kernel) -> Any:
    """The plan of a kernel, for some sizes: its code serves any."""
    return kernel.plan(1, 1, 1 << 16, 2 if kernel.batched else 1)


def compile_apart(plan: Compiles) -> CompiledGemm:
    """A plan's kernel: from memory, from the cache on disk, or compiled by a worker.

    Within `compile_ahead` it is a kernel whose launches do nothing.
    """
    if compiling.AHEAD:
        return compiling.AHEAD[-1](plan)
    with compiling.asking(prepare):
        return plan.compile()


def prepare(plan: Compiles, facts: Mapping[str, object] | None = None) -> None:
    """Have a plan's kernel in the cache on disk, by a worker if need be.

    facts  of the kernel, where they are known

    Silent where that cannot be done.
    """
    facts = compiling.facts_of(plan) if facts is None else facts
    if object_cache.cache_dir() is None or object_cache.kept(facts):
        return
    with _POOL.alone(object_cache.key_of(facts)) as alone:
        if not alone or object_cache.kept(facts):  # another thread asked for it
            return
        with _POOL.worker() as worker:
            if worker is not None and not worker.compile(plan) and not worker.late:
                worker.restart()  # one that was idle too long has ended
                worker.compile(plan)


def build(plans: Sequence[Compiles], jobs: int | None = None, say: Callable[[str], object] = print) -> list[str]:
    """Compile kernels into the disk cache, `jobs` at once; returns the failures in words.

    Gives one text for each plan, "" for those that are ready. `say` is told now and then how many are.
    """
    jobs = min(jobs or max(1, (os.cpu_count() or 2) // 2), max(1, len(plans)))
    answers, numbers, lock = [""] * len(plans), iter(range(len(plans))), threading.Lock()
    start = said = time.monotonic()

    def work() -> None:
        nonlocal said
        worker, lost = Worker(), False
        try:
            while True:
                with lock:
                    number = next(numbers, None)
                if number is None:
                    return
                if lost:
                    worker.restart()
                answer = worker.compile(plans[number])
                lost = not answer
                late = f"no answer in {LIMIT_SECONDS:.0f} s"
                with lock:
                    answers[number] = answer or (late if worker.late else "the compiling process ended")
                    done, now = sum(map(bool, answers)), time.monotonic()
                    if done == len(plans) or now - said > SAID_SECONDS:
                        said = now
                        say(f"compiling: {done} of {len(plans)} kernels after {now - start:.0f} s, {jobs} at once")
        finally:
            worker.close()

    with ThreadPoolExecutor(jobs) as pool:
        for job in [pool.submit(work) for _ in range(jobs)]:
            job.result()
    return ["" if answer == "ok" else answer for answer in answers]


class Worker:
    """A process that compiles kernels one after the other.

    late   whether it was ended because an answer took longer than LIMIT_SECONDS
    lines  what CUTE_DSL_LINEINFO was when it began, which decides the code: see `compiler.facts_of`
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def _start(self) -> None:
        self.late, self.lines = False, _lines()
        self._pid = os.getpid()
        self._read = b""
        if not sys.executable:
            return
        try:
            # -I: neither the current folder nor the environment decides what is imported
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _START], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, bufsize=0,
            )  # fmt: skip
            assert self._process.stdin is not None
            os.set_blocking(self._process.stdin.fileno(), False)
            self._send(_imports(), time.monotonic() + LIMIT_SECONDS)
        except OSError:  # no such interpreter, no more processes
            self.kill()

    def compile(self, plan: Compiles) -> str:
        """Ask for a kernel, and wait. "ok", what went wrong, or "" where the process has ended or was too late."""
        if self._process is None or os.getpid() != self._pid:
            return ""
        try:
            text = sent(plan)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            return f"{type(error).__name__}: {error}"
        end = time.monotonic() + LIMIT_SECONDS
        try:
            self._send({"plan": text, "cache": os.path.abspath(object_cache.cache_dir() or "")}, end)
            answer = self._line(end)
        except OSError:
            return ""
        if answer is None:
            self.late = True
            self.kill()
        return answer or ""

    def _send(self, what: object, end: float) -> None:
        """A line of JSON. Raises OSError where the process has ended, or does not read it until `end`."""
        assert self._process is not None and self._process.stdin is not None
        rest = json.dumps(what).encode() + b"\n"
        while rest:
            left = end - time.monotonic()
            if left <= 0 or not select.select([], [self._process.stdin], [], left)[1]:
                raise TimeoutError("the process does not read")
            rest = rest[os.write(self._process.stdin.fileno(), rest) :]

    def _line(self, end: float) -> str | None:
        """The next line of the answers: "" at their end, None where none comes until `end`."""
        assert self._process is not None and self._process.stdout is not None
        while b"\n" not in self._read:
            left = end - time.monotonic()
            if left <= 0 or not select.select([self._process.stdout], [], [], left)[0]:
                return None
            more = os.read(self._process.stdout.fileno(), 1 << 16)
            if not more:
                return ""
            self._read += more
        line, _, self._read = self._read.partition(b"\n")
        return line.decode(errors="replace").strip()

    def restart(self) -> None:
        """End the process, and start another one."""
        self.kill()
        self._start()

    def kill(self) -> None:
        """End the process at once."""
        if self._process is not None and os.getpid() == self._pid:
            self._process.kill()
        self.close()

    def close(self) -> None:
        """Let the process end, and wait for it. In a forked process, let go of it."""
        process, self._process = self._process, None
        if process is None:
            return
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        if os.getpid() != self._pid:
            process.returncode = 0  # it is the parent's to wait for
            return
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Pool:
    """Workers of `prepare`: a thread takes one that waits, or starts one. MOST_WORKERS are busy at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[Worker] = []
        self._kernels: dict[str, threading.Lock] = {}
        self._slots = threading.BoundedSemaphore(MOST_WORKERS)

    @contextlib.contextmanager
    def worker(self) -> Iterator[Worker | None]:
        """A worker for one kernel; None where all are busy for too long."""
        if not self._slots.acquire(timeout=LIMIT_SECONDS):
            yield None
            return
        try:
            with self._lock:
                worker = next((each for each in self._idle if each.lines == _lines()), None)
                if worker is not None:
                    self._idle.remove(worker)
            worker = worker or Worker()
            try:
                yield worker
            except BaseException:
                worker.kill()  # its answer is yet to come
                raise
            if worker.late:
                return
            with self._lock:
                self._idle.append(worker)
        finally:
            self._slots.release()

    @contextlib.contextmanager
    def alone(self, key: str) -> Iterator[bool]:
        """True if no other thread asks for the kernel. False if one does for too long."""
        with self._lock:
            lock = self._kernels.setdefault(key, threading.Lock())
        alone = lock.acquire(timeout=LIMIT_SECONDS)
        try:
            yield alone
        finally:
            if alone:
                lock.release()

    def end(self) -> None:
        """End the workers that wait."""
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()


def _lines() -> str:
    return os.environ.get("CUTE_DSL_LINEINFO", "")


_POOL = Pool()


def _forked() -> None:
    """In a new process: its parent's workers are not its own, and a lock may be held by a thread that it has not."""
    global _POOL
    idle, _POOL = _POOL._idle, Pool()
    for worker in idle:
        worker.close()


atexit.register(lambda: _POOL.end())  # they wait for work, and have none to lose
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


def _imports() -> dict[str, object]:
    """The absolute import paths of this process, and the files of its top-level modules."""
    modules = {}
    for name, module in list(sys.modules.items()):
        spec = getattr(module, "__spec__", None)
        file = getattr(spec, "origin", None)
        if "." in name or name == "__main__" or name in sys.stdlib_module_names:
            continue
        if isinstance(file, str) and os.path.isfile(file):
            folders = getattr(spec, "submodule_search_locations", None)
            modules[name] = os.path.abspath(file), folders and [os.path.abspath(folder) for folder in folders]
    path = [entry for entry in sys.path if isinstance(entry, str) and os.path.isabs(entry)]
    return {"path": path, "modules": modules, "main": __name__}


def sent(plan: Compiles) -> str:
    """A plan as a line of JSON has it, for any sizes. Raises what pickle does.

    >>> from layoutgemm.kernels.sm90.plan import Sm90Plan
    >>> plan = Sm90Plan.derive(64, 64, 64, config=Sm90Config((64, 64), consumers=1))
    >>> received(sent(plan)) == plan.for_any_size()
    True
    """
    generic = plan.for_any_size() if isinstance(plan, GemmPlan) else replace(cast(Any, plan))
    return base64.b64encode(pickle.dumps(generic)).decode()


def received(text: str) -> Compiles:
    """The plan again. Raises UnpicklingError for one that names anything but this package's classes."""
    plan: Compiles = _Plans(io.BytesIO(base64.b64decode(text))).load()
    return plan


class _Plans(pickle.Unpickler):
    """Reads plans, whose objects are this package's.

    A step of another package is compiled by the process that has it.
    """

    def find_class(self, module: str, name: str) -> Any:
        """A class by name."""
        if module.partition(".")[0] != __name__.partition(".")[0]:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a plan")
        return super().find_class(module, name)


def entry_of_choice(choice: AnyChoice) -> dict[str, object]:
    """A configuration as JSON has it: every setting by name, knobs beside fields.

    >>> choice = Sm90Choice(Sm90Config(overlap=True), swapped=True)
    >>> entry_of_choice(choice)["config"]["overlap"], choice_of(entry_of_choice(choice)) == choice
    (True, True)
    """
    if isinstance(choice, StreamedChoice):
        return {"swapped": False, "config": asdict(choice.config), "streamed": True}
    if isinstance(choice, PartsChoice):
        return {"swapped": False, "parts": [[count, config.settings] for count, config in choice.config.parts]}
    if isinstance(choice, Sm80Choice):
        return {"swapped": choice.swapped, "config": asdict(choice.config), "mma.sync": choice.arch}
    if isinstance(choice, Sm100Choice):
        return {"swapped": False, "config": asdict(choice.config), "tcgen05": choice.arch}
    return {"swapped": choice.swapped, "config": choice.config.settings}


def choice_of(entry: Any) -> AnyChoice:
    """A configuration from JSON. Raises LayoutError, TypeError or KeyError for any other entry.

    >>> choice_of({"swapped": False, "config": {"tile": [128, 64]}}).config.tile
    (128, 64)
    """
    if not isinstance(entry["swapped"], bool):
        raise TypeError(f"swapped = {shown(entry['swapped'])}: true or false")
    if "streamed" in entry:
        return StreamedChoice(StreamedConfig(**entry["config"]))
    if "parts" in entry:
        parts = [(count, Sm90Config(**with_current_names(config))) for count, config in entry["parts"]]
        return PartsChoice(FeatureParts(tuple(parts)))
    if "mma.sync" in entry:
        return Sm80Choice(Sm80Config(**entry["config"]), entry["mma.sync"], entry["swapped"])
    if "tcgen05" in entry:
        return Sm100Choice(Sm100Config(**entry["config"]), entry["tcgen05"])
    return Sm90Choice(Sm90Config(**with_current_names(entry["config"])), entry["swapped"])


def main() -> None:
    """The worker: plans as JSON lines on stdin. For each, "ok" or what went wrong, on a line of stdout."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever the DSL prints is no answer
    asked = open(0, "rb", buffering=0, closefd=False)  # unbuffered: select looks at what is not read yet
    while select.select([asked], [], [], IDLE_SECONDS)[0] and (line := asked.readline()):
        try:
            entry = json.loads(line)
            object_cache.keep_in(Path(entry["cache"]))
            received(entry["plan"]).compile()
            compiling._LOADED.clear()  # asked for it again, the worker keeps it again
            answer = "ok"
        except Exception as error:
            answer = f"{type(error).__name__}: {error}"
        print(answer.replace("\n", " "), file=answers, flush=True)
