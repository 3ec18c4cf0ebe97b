"""JAX for the tests of its operator: four devices on the CPU, and none of a GPU's memory taken in advance.

Without a GPU, XLA compiles quickly: values are computed once here, and it takes half the time of these tests.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests import needs

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
except ImportError:
    jax = None
else:
    jax.config.update("jax_num_cpu_devices", 4)
    if shutil.which("nvidia-smi") is None:
        jax.config.update("jax_disable_most_optimizations", True)
        # The emitters take a third of the processor seconds. XLA ends a process for a flag that it does not know.
        if importlib.metadata.version("jaxlib").startswith("0.10."):
            os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false")


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked gpu run on JAX's GPU, all others on the CPU."""
    if jax is None:
        pytest.skip(needs.reason("jax"))
    if request.node.get_closest_marker("gpu") is None:
        with jax.default_device(jax.devices("cpu")[0]):
            yield
        return
    try:
        gpu = jax.devices("cuda")[0]
    except RuntimeError:
        pytest.skip("JAX finds no NVIDIA GPU: pip install 'jax[cuda13]'")
    with jax.default_device(gpu):
        yield


@pytest.fixture
def mesh() -> Any:
    """Four devices on the CPU, two by two, with the axes x and y."""
    devices = jax.devices("cpu")
    if len(devices) < 4:
        pytest.skip("JAX began with fewer than four CPU devices: run tests/jax_op in a process of its own")
    return jax.sharding.Mesh(np.array(devices[:4]).reshape(2, 2), ("x", "y"))
