"""The cost models' data file: read once, complete, with its record and units, and part of the wheel."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import fields, is_dataclass
from importlib.resources import files
from pathlib import Path

import pytest

from layoutgemm.kernels.sm90.choose import costs, large_m, occupancy, rules, small_m
from layoutgemm.kernels.sm90.choose.costs import cost_model, promoted_model

FILE = files("layoutgemm.kernels.sm90.choose") / "h200.json"
ROOT = Path(__file__).resolve().parents[3]


def test_each_part_names_its_record_and_each_number_its_meaning() -> None:
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    model = cost_model()
    parts = {field.name: getattr(model, field.name) for field in fields(model)}
    assert entries.pop("gpu") == parts.pop("gpu")
    assert entries.keys() == parts.keys()
    for name, part in parts.items():
        assert is_dataclass(part) and {field.name for field in fields(part)} == entries[name].keys(), name
        assert re.search(r"benchmarks/results/\w+\.json", entries[name]["fitted_to"]), name
        for path in re.findall(r"benchmarks/[\w/.]+\.\w+", entries[name]["fitted_to"]):
            assert (ROOT / path).is_file(), path
        for key, entry in entries[name].items():
            assert key == "fitted_to" or (len(entry) == 2 and len(entry[1]) > 2), key


def test_scaled_products_have_a_file_of_their_own_gpu() -> None:
    entries = json.loads((FILE.parent / "h100.json").read_text(encoding="utf-8"))  # type: ignore[attr-defined]
    model, found = promoted_model(), entries["promoted"]
    assert set(entries) == {"gpu", "promoted"} and {field.name for field in fields(model)} == found.keys()
    assert (ROOT / found["fitted_to"].partition(":")[0]).is_file()
    assert all(key == "fitted_to" or (len(entry) == 2 and len(entry[1]) > 2) for key, entry in found.items())
    assert model.full_step.keys() == model.full_end.keys() and promoted_model() is model


def test_the_file_is_read_once_and_each_module_has_its_part() -> None:
    model = cost_model()
    assert cost_model() is model
    assert (small_m.MODEL, large_m.MODEL) == (model.few_rows, model.many_rows)
    assert (rules.MODEL, occupancy.MODEL) == (model.other_types, model.places)
    assert model.other_types.rates[256, 224] == 1.0 and model.few_rows.unaligned[64] == 660e6
    assert model.places.rounds[4] == ((tuple(range(4, 12)), 2), ((4, 6, 7, 8, 9, 10, 11), 2))


def test_a_missing_or_unknown_number_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    entries = json.loads(FILE.read_text(encoding="utf-8"))
    monkeypatch.setattr(costs, "files", lambda _: tmp_path)
    for name, change in (("less", {"clock": None}), ("more", {"clocks": [1.0, "Hz"]})):
        numbers = {**entries["many_rows"], **change}
        kept = {key: value for key, value in numbers.items() if value is not None}
        (tmp_path / f"{name}.json").write_text(json.dumps({**entries, "many_rows": kept}))
        with pytest.raises(TypeError, match="clock"):
            cost_model(name)


def test_import_of_the_package_does_not_read_it() -> None:
    code = "import sys, layoutgemm; print('layoutgemm.kernels.sm90.choose.costs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "False\n"
