"""The instructions' names against ptxas: it takes each on the targets that the atom names, and on no other."""

import shutil
import subprocess

import pytest

from layoutgemm.atoms import (
    async_copies,
    bulk_copy,
    cp_async,
    load_global,
    matrix_copies,
    store_global,
    vector_copies,
)
from layoutgemm.atoms.copy.vector import SCOPES
from tests import needs
from tests.micro import copy_matrix, copy_thread

PTXAS = shutil.which("ptxas")
TARGETS = ("sm_75", "sm_80", "sm_90a", "sm_100a", "sm_120a")
THREADS = [
    *vector_copies(),
    *async_copies(),
    *(load_global(128, "f32", cache=c) for c in ("cg", "cs", "lu", "cv")),
    *(load_global(64, "f32", evict=e) for e in ("evict_first", "evict_last", "evict_unchanged", "no_allocate")),
    *(store_global(64, "f32", evict=e) for e in ("evict_first", "evict_last", "evict_unchanged", "no_allocate")),
    *(store_global(128, "f32", cache=c) for c in ("cg", "cs", "wt")),
    *(load_global(256, "f32", l2_prefetch=n, cache="cg", read_only=True) for n in (64, 128, 256)),
    *(load_global(32, "f32", order=o, scope=s) for o in ("relaxed", "acquire") for s in SCOPES),
    *(store_global(32, "f32", order=o, scope=s) for o in ("relaxed", "release") for s in SCOPES),
    load_global(32, "f32", order="volatile"),
    load_global(32, "f32", order="relaxed", scope="gpu", evict="no_allocate", l2_prefetch=128),
    *(cp_async(16, "cg", src_bytes=n, l2_prefetch=128) for n in (0, 5, 16, "register")),
    bulk_copy((1 << 20) - 16),
]


def assembled(text, target, folder):
    source = folder / "kernel.ptx"
    source.write_text(text)
    command = [PTXAS, "-arch", target, str(source), "-o", str(folder / "kernel.cubin")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "Unsupported .version" in done.stderr:
        pytest.skip(f"ptxas is too old for PTX {copy_matrix.PTX_VERSION}: pip install -U nvidia-cuda-nvcc")
    return done


@pytest.fixture(autouse=True)
def needs_ptxas():
    if PTXAS is None:
        pytest.skip(needs.NO_PTXAS)


@pytest.mark.parametrize("target", TARGETS)
def test_every_instruction_assembles_where_the_atom_says(target, tmp_path):
    matrix = [atom for atom in matrix_copies() if target in atom.archs]
    threads = [atom for atom in THREADS if target in atom.archs]
    text = copy_matrix.header(target)
    text += "".join(copy_matrix.entry(atom, f"matrix{i}") for i, atom in enumerate(matrix))
    text += copy_thread.entry(threads)
    done = assembled(text, target, tmp_path)
    assert done.returncode == 0, done.stderr[:2000]
    counts = {"sm_75": 7, "sm_80": 7, "sm_90a": 13, "sm_100a": 28, "sm_120a": 28}
    assert len(matrix) == counts[target]


def test_no_instruction_assembles_elsewhere(tmp_path):
    # The newest target that an atom does not name, one of each set of targets and instruction.
    tried = {}
    for atom in (*matrix_copies(), *THREADS):
        older = [target for target in TARGETS if target not in atom.archs]
        if older:
            tried[older[-1], ".".join(atom.ptx.split(".")[:2])] = atom
    assert len(tried) >= 5
    for (target, _), atom in tried.items():
        body = copy_matrix.entry(atom) if atom.threads == 32 else copy_thread.entry([atom])
        done = assembled(copy_matrix.header(target) + body, target, tmp_path)
        assert done.returncode != 0, (str(atom), target)
