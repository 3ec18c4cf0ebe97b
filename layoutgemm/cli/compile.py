"""`layoutgemm compile SCRIPT`: the kernels that a script launches, compiled before they are needed."""

from __future__ import annotations

import argparse
import json
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from unittest import mock

from ..arguments import as_int
from ..emulator.api import emulate
from ..emulator.host.session import run_script
from ..errors import PlanError
from ..kernels.compile.ahead import KernelsAhead, check_cache, collecting
from ..kernels.compile.compiler import require_gpu
from .arguments import add
from .commands import Commands

EXAMPLES = ("layoutgemm compile --arch hopper script.py --mnk 256,256,64",)
SAYS = """\
Runs a script, and compiles the kernels of layoutgemm that it would launch, several at once, into the cache. None is
launched, so results are uninitialised memory. Without a GPU, or with --arch, the script runs on an emulated one.
"""


def add_compile(commands: Commands) -> None:
    """The subcommand compile."""
    parser = add(commands, "compile", EXAMPLES, run, says=SAYS)
    parser.add_argument("file", type=Path, nargs="?", help="a script of Python, its arguments behind it")
    parser.add_argument("-m", dest="module", metavar="MODULE", help="a module in place of a script, as for python -m")
    parser.add_argument("--arch", help="the GPU to compile for; default this machine's, else sm_90a")
    parser.add_argument("--jobs", type=int, help="processes that compile at once; default half the processors")


def run(args: argparse.Namespace) -> int:
    """Run the script, compile and print; returns the exit status."""
    script: Path | str | None = args.file if args.module is None else args.module
    if script is None or (isinstance(script, Path) and script.suffix != ".py"):
        raise PlanError(f"compile runs a script of Python (.py), or -m MODULE: got {script or 'none'}")
    jobs = None if args.jobs is None else as_int(args.jobs, "--jobs", PlanError, 1)
    check_cache()
    found: list[KernelsAhead] = []

    def collected(body: Callable[[], None]) -> None:
        with collecting() as kernels:
            found.append(kernels)
            body()

    if args.arch is None and _has_gpu():
        status = _run_here(script, args.script, collected)
    else:
        status = run_script(emulate, script, args.script, args.arch or "sm_90a", collected, progress=False).status
    (kernels,) = found
    kernels.compile(jobs)  # behind the emulated GPU, whose kernels have source lines
    if args.json:
        failed = [{"plan": str(plan), "why": why} for plan, why in kernels.failed]
        made = {"kernels": len(kernels.plans), "ready": kernels.ready, "failed": failed, "status": status}
        print(json.dumps(made))
    else:
        print(kernels)
    return 3 if status else int(bool(kernels.failed))


def _has_gpu() -> bool:
    try:
        require_gpu()
    except (ImportError, PlanError):
        return False
    return True


def _run_here(script: Path | str, arguments: list[str], runner: Callable[[Callable[[], None]], None]) -> int:
    """Run a script on this machine's GPU, as `python script` would; returns its exit status."""

    def body() -> None:
        if isinstance(script, str):
            runpy.run_module(script, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(str(script), run_name="__main__")

    first = script.resolve().parent if isinstance(script, Path) else Path.cwd()
    path = mock.patch.object(sys, "path", [str(first), *sys.path])
    with mock.patch.object(sys, "argv", [str(script), *arguments]), path:
        try:
            runner(body)
        except SystemExit as stop:
            if isinstance(stop.code, str):
                print(stop.code, file=sys.stderr)
            return stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        except Exception:
            traceback.print_exc()
            return 1
    return 0
