"""Needs of tests beyond pytest, with the reasons of skips: each says what to install.

A file imports at its top. A module that needs an optional package (`layoutgemm.kernels.dsl` the DSL) is imported behind
`needs.module`, or, where other tests of the file need no such package, inside of the test.

A test that needs the DSL alone is marked `@pytest.mark.dsl`; `needs.DSL` is for files where other tests do not.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Sequence
from typing import Any

import pytest

# A module, or the first part of its name -> how to install it.
HOW = {
    "cuda": "pip install 'layoutgemm[dsl]' (Linux)",
    "cutlass": "pip install 'layoutgemm[dsl]' (Linux)",
    "cutlass.operators": "pip install 'layoutgemm[operators]' (Linux)",
    "griffe": "pip install 'layoutgemm[docs]'",
    "islpy": "pip install islpy",
    "jax": "pip install 'layoutgemm[jax]'",
    "material": "pip install 'layoutgemm[docs]'",
    "mkdocstrings": "pip install 'layoutgemm[docs]'",
    "packaging": "pip install packaging",
    "playwright": "pip install 'layoutgemm[browser]'",
    "safetensors": "pip install 'layoutgemm[checkpoints]'",
    "resvg_py": "pip install 'layoutgemm[png]'",
    "sympy": "pip install sympy",
    "torch": "pip install 'layoutgemm[torch]'",
    "transformers": "pip install 'layoutgemm[bench-models]'",
    "triton": "pip install triton (Linux)",
    "tvm_ffi": "pip install 'layoutgemm[dsl]' (Linux)",
    "z3": "pip install z3-solver",
}
COMPILERS = ("cc", "gcc", "clang")
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def reason(name: str) -> str:
    """The reason of a skip where a module is absent: its name, and how to install it.

    >>> reason("torch.fx")
    "torch.fx is not installed: pip install 'layoutgemm[torch]'"
    """
    first = name.partition(".")[0]
    how = HOW.get(name) or HOW.get(first, f"pip install {first}")
    return f"{name} is not installed: {how}"


def module(name: str) -> Any:
    """The imported module; skips the test, or the file that is being collected, where it is absent."""
    return pytest.importorskip(name, reason=reason(name))


def found(name: str) -> bool:
    """True if the top-level module is installed; imports nothing."""
    return importlib.util.find_spec(name) is not None


def program(names: Sequence[str], how: str) -> str:
    """The path of the first of these programs; skips the test where none is on PATH. `how` installs one."""
    path = next(filter(None, map(shutil.which, names)), None)
    return pytest.skip(f"{', '.join(names)}: not on PATH; {how}") if path is None else path


def c_compiler() -> str:
    """The path of a C compiler; skips the test where it is absent."""
    return program(COMPILERS, "install gcc or clang")


def browser() -> str:
    """The path of Chromium; skips the test where it is absent."""
    return program(BROWSERS, "install Chromium (Debian: apt-get install chromium)")


def site_builder() -> None:
    """Skip the test where the site's builder is not installed."""
    for each in ("material", "mkdocstrings"):
        module(each)


DSL = pytest.mark.skipif(not found("cutlass"), reason=reason("cutlass"))
C_COMPILER = pytest.mark.skipif(
    not any(map(shutil.which, COMPILERS)), reason="no C compiler on PATH: install gcc or clang"
)
NO_PTXAS = "ptxas is not on PATH: pip install nvidia-cuda-nvcc and add its bin folder, or install the CUDA toolkit"
PTXAS = pytest.mark.skipif(shutil.which("ptxas") is None, reason=NO_PTXAS)
