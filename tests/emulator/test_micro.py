"""Microkernels of the matrix instructions, run in the emulator by the program that runs them on a GPU.

On a GPU every product of these kernels was what the integers give (benchmarks/results/atoms_h200.json), and the two
were compared bit by bit (benchmarks/verify_emulator.py, benchmarks/results/emulator_h200.json).
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import verify_atoms, verify_emulator
from layoutgemm.atoms import MmaAtom, atoms, mma_sync, wgmma
from layoutgemm.emulator.machine import Policy
from tests.micro.emulated_device import EmulatedDevice

RECORD = Path(__file__).parents[2] / "benchmarks" / "results" / "emulator_h200.json"
SYNC = [
    mma_sync("m8n8k4", "f16", c="f16", d="f32", layouts=("col", "row")),
    mma_sync("m16n8k8", "tf32"),
    mma_sync("m16n8k16", "bf16"),
    mma_sync("m16n8k8", "f64"),
    mma_sync("m8n8k16", "u8", "i8", saturate=True),
    mma_sync("m16n8k32", "e4m3", "e5m2"),
]
GROUP = [
    (wgmma(16, "bf16"), None),
    (wgmma(8, "f16", c="f16", a_source="rmem"), Policy(products="early")),
    (wgmma(8, "tf32"), Policy(pick="random", seed=5)),
    (wgmma(24, "e4m3", "e5m2", a_source="rmem"), None),
    (wgmma(8, "u8", "i8"), None),
]


@pytest.mark.parametrize("atom", SYNC, ids=str)
def test_warp_products(atom: MmaAtom, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_atoms, "RANDOM_CASES", 4)
    cases, bad = verify_atoms.run_mma_sync(EmulatedDevice("sm_90a"), atom, np.random.default_rng(0), True)
    assert cases and not bad


@pytest.mark.parametrize(("atom", "policy"), GROUP, ids=str)
def test_warpgroup_products(atom: MmaAtom, policy: Policy | None) -> None:
    device, rng = EmulatedDevice("sm_90a", policy), np.random.default_rng(1)
    firsts = [None] if atom.a_source == "rmem" else list(verify_atoms.tiles(atom, "A", True))
    seconds = list(verify_atoms.tiles(atom, "B", True))
    for first, second in ((firsts[0], seconds[-1]), (firsts[-1], seconds[0])):
        cases, bad = verify_atoms.run_wgmma(device, atom, rng, (first, second))
        assert cases and not bad


def test_what_a_gpu_said_of_shared_addresses_and_low_bits() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    device, rng = EmulatedDevice("sm_90a"), np.random.default_rng(2)
    assert verify_emulator.addresses(device)["emulator"] == recorded["shared addresses"]["gpu"]
    assert verify_emulator.low_bits(device, rng)["emulator"] is recorded["tf32 low bits matter"]["gpu"]


def test_the_record_holds_every_form() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    names = {row["atom"] for row in recorded["rows"]}
    assert names == {atom.ptx for atom in verify_emulator.chosen("sm_90a", 1)}
    assert all(row["integers"] and row.get("floats", 0) <= 1 for row in recorded["rows"])
    assert len(list(atoms("sm_90a", "mma.sync"))) <= len(names)
