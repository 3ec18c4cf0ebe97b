"""Uninitialised reads by products are findings only where a result depends on them."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.atoms import wgmma
from layoutgemm.emulator.api import Emulation
from layoutgemm.emulator.findings import Finding
from layoutgemm.emulator.machine.launch import Policy, Watch
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.machine.unwritten_memory import FILLS, settled
from tests.emulator.ops.mma.test_wgmma import Case
from tests.kernels.sm90.table import TABLE
from tests.kernels.sm90.test_emulated import emulate

BASE = Case(wgmma(8, "bf16"))
LATE_STORE = "add.u32 %i, %i, 512;"  # the step of the loop that copies the tiles into shared memory


def ran(text: str, policy: Policy | list[Policy] | None = None) -> tuple[Emulation, np.ndarray]:
    """The findings, and D."""
    d = np.zeros((128, BASE.atom.registers("D")), dtype=np.uint32)
    found = emulate_ptx(text, block=128, args=[*[BASE.inputs[name] for name in "ABC"], d], policy=policy)
    return found, d


def only_zeros(text: str) -> str:
    """The kernel with every value that it stores multiplied by 0 beforehand: nothing depends on the product."""
    lines = text.splitlines()
    stores = [i for i, line in enumerate(lines) if "st.global" in line]
    for i in reversed(stores):
        value = lines[i].rsplit("%", 1)[1].rstrip("; ")
        lines.insert(i, f"  and.b32 %{value}, %{value}, 0;")
    return "\n".join(lines)


def test_a_result_that_depends_on_it() -> None:
    whole, _ = ran(BASE.text)
    assert whole.ok and not whole.launches[0].suspects
    short = BASE.text.replace(LATE_STORE, "add.u32 %i, %i, 4096;")
    for policy in (None, Policy(fill=FILLS[1]), [Policy(), Policy(loads="early")]):
        found, _ = ran(short, policy)
        assert {f.kind for f in found.findings} == {"uninitialised"}, found.report()


def test_a_result_that_does_not() -> None:
    short = only_zeros(BASE.text.replace(LATE_STORE, "add.u32 %i, %i, 4096;"))
    found, d = ran(short)
    assert found.ok and found.launches[0].suspects and not d.any()


@pytest.mark.parametrize("name", ["a tile outside, cluster 2x1", "half a tile outside, cluster 1x2"])
def test_rows_outside_a_matrix(name: str) -> None:
    """A tile's rows beyond the matrix: products read what no copy brought, and nothing that is stored depends on it."""
    done = emulate(TABLE[name])
    assert not done.findings and done.launches[0].suspects


def test_the_arrays_are_those_of_the_first_run() -> None:
    memory = GlobalMemory()
    array = np.zeros(4, np.uint8)
    memory.add("x", array)
    fills: list[int] = []
    searched: list[bool] = []
    text = "wgmma.mma_async.sync"

    class Ran:
        def __init__(self) -> None:
            self.suspects, self.findings = [Finding("uninitialised", "read", 1, text)], ["other"]
            self.racing = None

    def run(policy: Policy, watch: object) -> list[Ran]:
        fills.append(policy.fill)
        searched.append(policy.races)
        array[:] += np.uint8(policy.fill)
        return [Ran()]

    (launch,) = settled(run, memory, Policy(), Watch())
    assert fills == list(FILLS) and array.tolist() == [FILLS[0]] * 4
    assert searched == [True, False]  # races are found in the first run
    assert [str(finding)[:19] for finding in launch.findings] == ["other", "uninitialised: read"]
