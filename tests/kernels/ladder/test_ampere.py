"""The first level of Ampere's ladder: machine code, proofs, results, and the missing barrier."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.atoms import as_tile
from layoutgemm.emulator.api import ORDERS
from layoutgemm.errors import EmulatorError
from layoutgemm.kernels.ladder import levels
from layoutgemm.layouts import Layout
from tests import needs

KERNELS = Path(__file__).resolve().parents[3] / "kernels"
pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]
# One block; K unlike M and N; every edge ragged, several blocks; fewer k tiles than stages.
SIZES = ((64, 64, 256), (64, 192, 32), (130, 133, 77), (70, 10, 5))


@lru_cache
def level() -> Any:
    return levels.load(KERNELS / "ampere_01_pipelined.py")[0]


def test_machine_code() -> None:
    compiled = level().compile()
    code, taken = compiled.sass(), compiled.resources
    # two copies for each stage and in the loop; 1 + 4 loads and 8 products a k tile; pairs, or elements, of C
    held = {"LDGSTS": 2 * 3, "LDSM": 1 + 4, "HMMA": 8, "STG": 3 * 16}
    assert {name: code.count(name) for name in held} == held
    assert not code.local_memory and (taken.stack_bytes, taken.local_bytes) == (0, 0)


def test_the_programs_claims_are_proven() -> None:
    report = level().check()
    assert report, "\n".join(map(str, report.failures))
    names = {check.name for check in report}
    assert names >= {"pipeline", "fragments of A", "fragments of B", "banks of ldmatrix, A", "copies"}


def test_without_the_swizzle_reads_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = level().kernel
    monkeypatch.setattr(kernel, "tile", as_tile(Layout((64, 16), (16, 1)), "bf16"))
    assert {check.name for check in kernel.check().failures} == {"banks of ldmatrix, A", "banks of ldmatrix, B"}


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_right_and_silent(size: tuple[int, int, int]) -> None:
    level().emulate(*size, orders=ORDERS if size == (70, 10, 5) else None)


def test_without_its_second_meeting_it_is_a_race(monkeypatch: pytest.MonkeyPatch) -> None:
    import dataclasses

    from layoutgemm.kernels.dsl import bridge

    whole, calls = bridge.block_sync, []

    def first_only() -> None:
        calls.append(None)
        if len(calls) == 1:
            whole()

    monkeypatch.setattr(bridge, "block_sync", first_only)
    with pytest.raises(EmulatorError, match="race"):
        dataclasses.replace(level(), name="one meeting").emulate(64, 64, 100)
