"""What a measuring program needs and this machine may lack: one line on standard error and exit status 2.

    if status := refused(no_gpu(), no_tool("ncu")):
        return status

Each question gives None where the thing is there, else a sentence. Nothing is imported before it is asked for.
"""

from __future__ import annotations

import shutil
import sys

REFUSED = 2  # the exit status of a program that could not begin


def no_gpu(install: str = "pip install 'layoutgemm[dsl,torch]'") -> str | None:
    """Why torch has no GPU to measure on; `install` says what brings torch."""
    try:
        import torch
    except ModuleNotFoundError:
        return f"torch is not installed: {install}"
    return None if torch.cuda.is_available() else "torch finds no CUDA GPU: nothing can be measured"


def no_driver() -> str | None:
    """Why there is no GPU for programs that ask the CUDA driver alone."""
    from tests.micro.cuda_driver import available

    reason = available()
    return None if reason is None else f"no GPU to run on: {reason}"


def no_tool(name: str) -> str | None:
    """Why a program of that name, or at that path, cannot be run.

    >>> no_tool("no-such-program")
    'no-such-program is not here: it is neither on PATH nor a path to a program'
    """
    return None if shutil.which(name) else f"{name} is not here: it is neither on PATH nor a path to a program"


def refused(*reasons: str | None) -> int:
    """Exit status: 0 where nothing is lacking, else 2, with the first reason on standard error.

    >>> refused(None, None)
    0
    """
    reason = next((reason for reason in reasons if reason is not None), None)
    if reason is None:
        return 0
    print(reason, file=sys.stderr)
    return REFUSED
