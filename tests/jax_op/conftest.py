"""JAX for the tests of its operator: four devices on the CPU, and none of a GPU's memory taken in advance."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
try:
    import jax
except ImportError:
    jax = None
else:
    jax.config.update("jax_num_cpu_devices", 4)


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests marked gpu run on JAX's GPU, all others on the CPU."""
    if jax is None:
        pytest.skip("jax is not installed: pip install jax")
    if request.node.get_closest_marker("gpu") is None:
        with jax.default_device(jax.devices("cpu")[0]):
            yield
        return
    try:
        jax.devices("cuda")
    except RuntimeError:
        pytest.skip("JAX finds no NVIDIA GPU: pip install 'jax[cuda13]'")
    yield
