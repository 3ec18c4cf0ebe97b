"""The Blackwell primitives' programs: with one instruction left out or changed, each of them fails and says why."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from layoutgemm.dtypes import bf16
from layoutgemm.errors import EmulatorError
from layoutgemm.kernels.ladder.primitives import Regions, emulate, right
from tests import needs

pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]
FOLDER = Path(__file__).parents[3] / "kernels"


def load(stem: str) -> ModuleType:
    """A program of the root folder, as a module."""
    spec = importlib.util.spec_from_file_location(f"primitive_{stem}", FOLDER / f"{stem}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # the DSL looks a kernel's source up through its module
    spec.loader.exec_module(module)
    return module


def nothing(*_: Any, **__: Any) -> None:
    """In place of an instruction."""


def allocated(name: str) -> None:
    program = load("blackwell_01_allocate")
    emulate(name, program.Allocate((64,)), {"out": np.zeros(1, np.int32)}, orders=1)


def stored(name: str) -> None:
    program = load("blackwell_02_registers")
    kernel = program.Registers("16x256b")
    shape = (kernel.halves, 128, kernel.ld.registers)
    arrays = {"rows": np.zeros((128, program.COLUMNS), np.int32), "registers": np.zeros(shape, np.int32)}
    emulate(name, kernel, arrays, orders=1)


def multiplied(name: str, stem: str = "blackwell_04_multiply", *given: Any) -> None:
    program = load(stem)
    kernel = program.Pair(256, 32, 32, *given) if given else program.Multiply("f16", 16, 32, "bf16", "bf16:col")
    m, n, k = (kernel.sizes[name] for name in "mnk")
    x, y = np.ones((m, k), np.float32), np.ones((n, k), np.float32)
    d = np.zeros((m, n), np.float32)
    emulate(name, kernel, {"a": bf16.encode(x), "b": bf16.encode(y), "d": d}, orders=1)
    right(name, d, np.full_like(d, k if given else 2 * k), "right")


def paired(name: str) -> None:
    multiplied(name, "blackwell_05_pair", "bf16", "bf16:col")


# (what is run, the bridge's function that does nothing, what is found)
LEFT_OUT = (
    (allocated, "tensor_free", "ends with 64 columns allocated"),
    (stored, "tensor_stored", "race: tcgen05.ld"),
    (multiplied, "fence_after_sync", "race: tcgen05"),
    (multiplied, "tensor_commit", "no thread can go on"),
    (paired, "fence_before_sync", "race: tcgen05.dealloc"),
)


@pytest.mark.parametrize("run, function, found", LEFT_OUT, ids=lambda v: v if isinstance(v, str) else "")
def test_missing_synchronisation_is_found(run: Any, function: str, found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from layoutgemm.kernels.dsl import tcgen05 as bridge_tcgen05

    monkeypatch.setattr(bridge_tcgen05, function, nothing)
    with pytest.raises(EmulatorError, match=found):
        run(f"without {function}")


def test_a_commit_to_one_block_of_a_pair_leaves_the_other_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    from layoutgemm.kernels.dsl import tcgen05 as bridge_tcgen05

    commit = bridge_tcgen05.tensor_commit
    monkeypatch.setattr(bridge_tcgen05, "tensor_commit", lambda barrier, blocks, mask: commit(barrier, blocks, 1))
    with pytest.raises(EmulatorError, match="no thread can go on"):
        paired("commit to one")


def test_regions_lie_apart() -> None:
    regions = Regions.of(a=(100, 16), b=(8, 8), c=(1024, 1024))
    assert [regions[name] for name in "abc"] == [0, 104, 1024] and regions.total == 2048
    with pytest.raises(KeyError):
        regions["d"]


def test_wrong_elements_are_named() -> None:
    with pytest.raises(EmulatorError, match=r"it: 1 elements are wrong; \(1, 0\) is 5, should be 2"):
        right("it", np.array([[1], [5]]), np.array([[1], [2]]), "")
