"""Fixtures of the kernels' tests."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import needs
from tests.kernels.oracles import ORACLE


@pytest.fixture(scope="session")
def folder_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that all workers of this run share, and no other run."""
    own = tmp_path_factory.getbasetemp()
    return own.parent if "PYTEST_XDIST_WORKER" in os.environ else own


@pytest.fixture(scope="module")
def cache_of_this_run(folder_of_this_run: Path) -> Iterator[None]:
    """Kernels are kept for this run alone: nothing that an earlier run left can make a test pass."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYOUTGEMM_CACHE_DIR", str(folder_of_this_run / "kernels of this run"))
        yield


@pytest.fixture(scope="module")
def recorder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """recorder.c as a shared library: a CUDA runtime that writes down what it is asked for."""
    compiler = needs.c_compiler()
    library = tmp_path_factory.mktemp("recorder") / "recorder.so"
    # -Bsymbolic: its own names win over those of a real runtime in the process
    command = [compiler, "-shared", "-fPIC", "-O1", "-Wl,-Bsymbolic", "-o", str(library), str(ORACLE / "recorder.c")]
    subprocess.run(command, check=True, capture_output=True)
    return str(library)
