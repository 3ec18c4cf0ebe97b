"""Microkernels of the matrix instructions in the emulator, by the program for a GPU.

On a GPU every product of these kernels was what the integers give (benchmarks/results/atoms_h200.json), and the two
were compared bit by bit (benchmarks/verify_emulator.py, benchmarks/results/emulator_h200.json).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks import verify_atoms, verify_copies, verify_emulator
from layoutgemm.atoms import MmaAtom, atoms, mma_sync, wgmma
from layoutgemm.atoms.tma import engine as tma_engine
from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.emulator.machine.interpreter import Policy
from tests.micro import tensor_stores
from tests.micro.emulated_device import EmulatedDevice

RECORD = Path(__file__).parents[3] / "benchmarks" / "results" / "emulator_h200.json"
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


def test_shared_addresses_and_low_bits_equal_the_gpus_record() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    device, rng = EmulatedDevice("sm_90a"), np.random.default_rng(2)
    assert verify_emulator.addresses(device)["emulator"] == recorded["shared addresses"]["gpu"]
    assert verify_emulator.low_bits(device, rng)["emulator"] is recorded["tf32 low bits matter"]["gpu"]


FORMS = list(verify_copies.forms())


@pytest.mark.parametrize("cases", FORMS, ids=lambda cases: str(cases[0]))
def test_where_stored_lines_end(cases: list[tensor_stores.Case]) -> None:
    """`verify_copies.py edges` in the emulator: its writes equal the engine model's, with findings."""
    rng, owned = np.random.default_rng(3), Policy(edges=False)
    row = verify_copies.ends(EmulatedDevice("sm_90a", owned), cases, rng, tensor_stores.PTX_VERSION)
    unit = cases[0].unit
    assert row["ok"], row["why"]
    assert row["last"] == dict.fromkeys(range(5 * unit + 1, 6 * unit + 1), 6 * unit - 1)
    row = verify_copies.ends(EmulatedDevice("sm_90a"), cases[-2:-1], rng, tensor_stores.PTX_VERSION)
    assert not row["ok"] and f"beyond the tensor's {6 * unit - 1} of {cases[0].dtype}" in row["why"]
    whole = verify_copies.ends(EmulatedDevice("sm_90a"), cases[-1:], rng, tensor_stores.PTX_VERSION)
    assert whole["ok"], whole["why"]


class ElementDevice(EmulatedDevice):
    """A GPU that ends stored lines at elements."""

    def load(self, ptx: str) -> str:
        self.case = next(case for cases in FORMS for case in cases if tensor_stores.kernel(case, "sm_90a") == ptx)
        return ptx

    def launch(self, *args: object, maps: Sequence[tuple[TensorMap, int]] = (), **more: object) -> list[np.ndarray]:
        image, after = (array.copy() for array in args[4])
        ((tmap, _),) = maps
        for at in self.case.coordinates:
            bits, inside = tma_engine.global_bits(tmap, at)
            word = f"u{tmap.dtype.bytes}"
            values = image.view(word)[tma_engine.shared_bits(tmap, 0) // tmap.kind.gmem_bits]
            after.view(word)[bits[inside] // tmap.kind.gmem_bits] = values[inside]
        return [after]


def test_a_wrong_row_end_is_found() -> None:
    rng = np.random.default_rng(4)
    row = verify_copies.ends(ElementDevice("sm_90a"), FORMS[1][:2], rng, tensor_stores.PTX_VERSION)
    assert not row["ok"] and row["last"] == {41: 40, 42: 41}
    assert row["why"].startswith("41 columns: the last one written is 40, not 47; 42 columns")


def test_the_record_holds_every_form() -> None:
    recorded = json.loads(RECORD.read_text(encoding="utf-8"))
    names = {row["atom"] for row in recorded["rows"]}
    assert names == {atom.ptx for atom in verify_emulator.chosen("sm_90a", 1)}
    assert all(row["integers"] and row.get("floats", 0) <= 1 for row in recorded["rows"])
    assert len(list(atoms("sm_90a", "mma.sync"))) <= len(names)
