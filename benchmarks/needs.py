"""Requirements of a measuring program. A missing one is one line on standard error and exit status 2.

    if status := refused(no_gpu(), no_tool("ncu")):
        return status

Each question returns None or a sentence. It imports nothing before it is asked.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

REFUSED = 2  # the exit status of a program that could not begin


def no_gpu(install: str = "pip install 'layoutgemm[dsl,torch]'") -> str | None:
    """The reason why torch has no GPU, or None; `install` is the command for torch."""
    try:
        import torch
    except ModuleNotFoundError:
        return f"torch is not installed: {install}"
    return None if torch.cuda.is_available() else "torch finds no CUDA GPU: nothing can be measured"


def few_gpus(count: int) -> str | None:
    """The reason why torch has fewer GPUs than `count`, or None."""
    import torch

    found = torch.cuda.device_count()
    return None if found >= count else f"torch finds {found} CUDA GPU(s): {count} ranks need one each"


def no_driver() -> str | None:
    """The reason why the CUDA driver has no GPU, or None."""
    from tests.micro.cuda_driver import available

    reason = available()
    return None if reason is None else f"no GPU to run on: {reason}"


def no_tool(name: str) -> str | None:
    """The reason why a program of that name or path cannot run, or None.

    >>> no_tool("no-such-program")
    'no-such-program is not here: it is neither on PATH nor a path to a program'
    """
    return None if shutil.which(name) else f"{name} is not here: it is neither on PATH nor a path to a program"


def record_file(doc: str | None, argv: Sequence[str] | None) -> Path | None:
    """The file of --json, for a program without other options; `doc` is its docstring.

    >>> record_file("Times it.", ["--json", "a.json"]), record_file("Times it.", [])
    (PosixPath('a.json'), None)
    """
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--json", type=Path)
    file: Path | None = parser.parse_args(argv).json
    return file


def refused(*reasons: str | None) -> int:
    """Exit status: 0, or 2 with the first reason on standard error.

    >>> refused(None, None)
    0
    """
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is None:
        return 0
    print(reason, file=sys.stderr)
    return REFUSED
