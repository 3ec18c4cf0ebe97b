"""Fixtures of the kernels' tests."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from tests.kernels.oracles import ORACLE


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """recorder.c as a shared library: a CUDA runtime that writes down what it is asked for."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        pytest.skip("running the host half needs a C compiler (cc, gcc or clang) to build tests/oracle/recorder.c")
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    # -Bsymbolic: its own names win over those of a real runtime in the process
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wl,-Bsymbolic", "-o", str(library), str(ORACLE / "recorder.c")]
    subprocess.run(command, check=True, capture_output=True)
    return str(library)
