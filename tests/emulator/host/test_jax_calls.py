"""JAX on an emulated GPU: calls of `cutlass_call` run in the emulator, on arrays that XLA has in CPU memory."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from layoutgemm import emulated_gpu
from tests import needs

needs.module("jax")
needs.module("cutlass")

# In a process of its own: the script imports JAX within the emulated GPU, as a user's does.
SCRIPT = """
import jax
import jax.numpy as jnp
import numpy as np
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
from cutlass.jax import cutlass_call, get_export_disabled_safety_checks


@cute.kernel
def kernel(a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    if t < a.shape[1]:
        c[row, t] = a[row, t] * 2 + b[row, t]


@cute.jit
def launch(stream: cuda.CUstream, a: cute.Tensor, b: cute.Tensor, c: cute.Tensor):
    kernel(a, b, c).launch(grid=(a.shape[0], 1, 1), block=(32, 1, 1), stream=stream)


@jax.jit
def run(a, b):
    return cutlass_call(launch, output_shape_dtype=a)(a, b) + 1


for rows in (3, 5):
    a = jnp.arange(rows * 20, dtype=jnp.float32).reshape(rows, 20)
    b = jnp.full((rows, 20), 7, jnp.float32)
    np.testing.assert_array_equal(run(a, b), np.asarray(a) * 2 + 8)


@cute.jit
def beyond(stream: cuda.CUstream, a: cute.Tensor, c: cute.Tensor):
    kernel(a, a, c).launch(grid=(a.shape[0] + 1, 1, 1), block=(32, 1, 1), stream=stream)


try:
    jax.jit(lambda a: cutlass_call(beyond, output_shape_dtype=a)(a))(a).block_until_ready()
except jax.errors.JaxRuntimeError as error:
    assert "byte 400 of buffer input 0, which has 400" in str(error), error
    print("an address outside is refused")
"""


@pytest.mark.dsl
def test_cutlass_call_runs_in_the_emulator(tmp_path: Path) -> None:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, "-m", "layoutgemm", "emulate", "--arch", "sm_90a", str(path)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert "an address outside is refused" in done.stdout, done.stderr
    assert "2 launch(es)" in done.stdout + done.stderr
    assert done.returncode == 1  # the kernel that could not go on


def test_nvidia_smi_answers_for_the_emulated_gpu() -> None:
    with emulated_gpu("sm_100a"):
        asked = ["nvidia-smi", "--query-gpu=name,compute_cap", "--format=csv,noheader"]
        assert subprocess.check_output(asked, text=True) == "NVIDIA B200, 10.0\n"
        with pytest.raises(subprocess.CalledProcessError):
            subprocess.run(["nvidia-smi", "--query-gpu=clocks.sm"], check=True, stderr=subprocess.DEVNULL)
