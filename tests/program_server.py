"""A server that runs programs in forks of one process with the common imports.

    python program_server.py MODULE...

It imports the modules that are there. Then each line of standard input is a JSON list [path, folder, file]. The program
at `path` runs in `folder` as `python path` would run it there, with a namespace of its own. Its output goes to `file`,
its errors to `file`.err. The answer is two lines: the child's process id, and its exit status at its end.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import runpy
import sys
import traceback


def run(path: str, folder: str, output: str) -> int:
    """Run a program in this process, which is its own; its exit status, by the rules of the interpreter."""
    for descriptor, name in ((1, output), (2, output + ".err")):
        os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.chdir(folder)
    sys.argv, sys.path[0] = [path], os.path.dirname(path)
    try:
        runpy.run_path(path, run_name="__main__")
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return ended.code or 0
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def serve() -> None:
    """Answer requests until standard input ends."""
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            status = 1
            try:
                status = run(*json.loads(line))
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(status & 0xFF)
        print(child, flush=True)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":
    serve()
