"""The cost models' data file: read once, complete, with its record and units, and part of the package."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

from layoutgemm.kernels.epilogue.chain import ColumnReduce, Epilogue, RowReduce
from layoutgemm.kernels.sm90.choose import costs, large_m, occupancy, reductions, rules, scaled_grouped, small_m
from layoutgemm.kernels.sm90.choose.costs import cost_model
from layoutgemm.kernels.sm90.choose.reductions import ReductionCost
from layoutgemm.kernels.sm90.choose.rules import choose, likeliest
from layoutgemm.kernels.sm90.indexed import choose as indexed

ROOT = Path(__file__).resolve().parents[3]
ENTRIES = json.loads((files("layoutgemm.kernels.sm90.choose") / "h200.json").read_text(encoding="utf-8"))
MODULES = {
    "places": "layoutgemm/kernels/sm90/choose/occupancy.py",
    "few_rows": "layoutgemm/kernels/sm90/choose/small_m.py",
    "many_rows": "layoutgemm/kernels/sm90/choose/large_m.py",
    "other_types": "layoutgemm/kernels/sm90/choose/rules.py",
    "unaligned_rows": "layoutgemm/torch_op/choose.py",
}
OF_H100 = json.loads((files("layoutgemm.kernels.sm90.choose") / "h100.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", MODULES)
def test_each_number_is_in_the_file_and_in_use(name: str) -> None:
    tree = ast.parse((ROOT / MODULES[name]).read_text(encoding="utf-8"))
    used = {
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "MODEL"
    }
    assert used == cost_model(name).numbers.keys() == ENTRIES[name].keys() - {"fitted_to"}


def test_each_part_names_its_record_and_each_number_its_unit() -> None:
    assert ENTRIES.keys() == {"gpu", *MODULES} and ENTRIES["gpu"].startswith("NVIDIA H200")
    for name in MODULES:
        record = ENTRIES[name]["fitted_to"]
        assert cost_model(name).fitted_to == record and re.search(r"benchmarks/results/\w+\.json", record), name
        for path in re.findall(r"benchmarks/[\w/.]+\.\w+", record):
            assert (ROOT / path).is_file(), path
        for key, entry in ENTRIES[name].items():
            assert key == "fitted_to" or (len(entry) == 2 and len(entry[1]) > 2), key


def test_numbers_of_indexed_rows_are_in_use_and_name_their_record() -> None:
    entries, text = OF_H100["indexed_rows"], Path(indexed.__file__).read_text(encoding="utf-8")
    assert set(re.findall(r"MODEL\.(\w+)", text)) == entries.keys() - {"fitted_to"} == indexed.MODEL.numbers.keys()
    assert all(key == "fitted_to" or (len(entry) == 2 and len(entry[1]) > 2) for key, entry in entries.items())
    assert (ROOT / entries["fitted_to"].partition(":")[0]).is_file()


def test_scaled_products_have_a_file_of_their_own_gpu() -> None:
    entries = OF_H100
    found, text = entries["promoted"], Path(scaled_grouped.__file__).read_text(encoding="utf-8")
    assert (
        set(entries) == {"gpu", "promoted", "indexed_rows", "reductions"}
        and (ROOT / found["fitted_to"].partition(":")[0]).is_file()
    )
    steps = {f"{kind}_{part}" for kind in scaled_grouped.KINDS for part in ("step", "end")}
    used = set(re.findall(r"(?:MODEL|model)\.(\w+)", text)) | steps
    assert used == found.keys() - {"fitted_to"} == scaled_grouped.MODEL.numbers.keys()
    assert all(key == "fitted_to" or (len(entry) == 2 and len(entry[1]) > 2) for key, entry in found.items())
    assert all(found[f"{kind}_step"][0].keys() == found[f"{kind}_end"][0].keys() for kind in scaled_grouped.KINDS)
    record = json.loads((ROOT / found["fitted_to"].partition(":")[0]).read_text(encoding="utf-8"))["shapes"]
    assert all(2 < len(times) and min(times.values()) > 0 for times in record.values())


def test_choices_of_scaled_products_lose_little_to_the_fastest_kernel_measured() -> None:
    record = json.loads((ROOT / "benchmarks/results/scaled_tiles_h100.json").read_text(encoding="utf-8"))["shapes"]
    lost = {}
    for shape, times in record.items():
        m, n, k = map(int, shape.split("x"))
        for config in scaled_grouped.scaled_candidates((m, n, k, 1), 132):
            tile = f"{config.tile[0]}x{config.tile[1]}"
            kind = (
                f"S{tile}/{config.split}"
                if config.one_tile_per_cluster
                else f"{'F' if config.loader == 'warpgroup' else 'P'}{tile}"
            )
            if kind in times:  # the record has no time of some that are never near
                fastest = min(us for name, us in times.items() if not name.startswith("dg"))
                lost[shape] = times[kind] / fastest
                break
    assert lost.keys() == record.keys()
    assert max(lost.values()) < 1.09, max(lost.items(), key=lambda x: x[1])


def of_h200(*kinds: str) -> list[tuple[tuple[int, ...], dict[str, float]]]:
    """(sizes, us by contender) of the sweeps on an H200, without spaces in names."""
    rows = json.loads((ROOT / "benchmarks/results/scaled_choices_h200.json").read_text(encoding="utf-8"))["rows"]
    return [
        (tuple(row["sizes"]), {name.replace(" ", "").removeprefix("ours"): us for name, us in row["us"].items()})
        for row in rows
        if row["kind"] in kinds
    ]


def test_an_h200_has_the_tiles_that_its_memory_is_fast_enough_for() -> None:
    lost = {}
    for (m, n, k), us in of_h200("scaled, scales along K"):
        config = scaled_grouped.scaled_config(m, n, k, places=occupancy.ClusterOccupancy())
        parts = f"/{config.split}" if config.split > 1 else ""
        name = f"{'' if config.one_tile_per_cluster else 'few'}{config.tile[1]}{parts}"
        if m <= 128 and config.tile[0] == (64 if m == 64 else 128) and name in us:
            lost[m, n, k] = us[name] / min(us.values())
    assert len(lost) >= 9 and max(lost.values()) < 1.01, lost
    assert lost[128, 7168, 16384] == lost[64, 7168, 16384] == lost[128, 14336, 4096] == 1
    of_h100 = scaled_grouped.scaled_config(128, 7168, 16384, places=occupancy.ClusterOccupancy(memory=3.4))
    assert of_h100.split == 1 == scaled_grouped.scaled_config(128, 7168, 16384).split


def test_choices_of_large_groups_and_exact_sums_are_ahead_of_their_peers_on_an_h200() -> None:
    bf16, seen = ("bf16", "bf16:col", "bf16"), 0
    for (groups, rows, n, k), us in of_h200("uneven", "grouped"):
        found = scaled_grouped.usual_config((groups * rows, n, k, groups), bf16, None)
        tile, band = "x".join(map(str, found.tile)), f"{found.tuning.along}{found.tuning.group}"
        turns, cluster = "pp" if found.schedule == "pingpong" else tile, "({},{})".format(*found.cluster)
        name = next(
            x for x in (f"{turns}{cluster}{band}", f"{turns}{tile}{cluster}{band}", f"{turns}{band}") if x in us
        )
        seen += 1
        assert us[name] <= min(us[x] for x in ("deepgemm", "loop", "torch") if x in us), (groups, rows, n, k)
    assert seen == 11
    for (m, n, k), us in of_h200("row-wise, exact"):
        found = scaled_grouped.scaled_config(m, n, k, adds=True, places=occupancy.ClusterOccupancy())
        name = {(256, 128): "256x128(1,2)", (128, 192): "128x192"}[found.tile]
        assert us[name] < us["torchrows"], (m, n, k)
    [(sizes, us)] = [x for x in of_h200("scaled, scales along K") if x[0] == (4096, 2112, 7168)][1:]
    assert scaled_grouped.scaled_config(*sizes).tuning.group == 11 and us["N11"] < us["dgpdl"]


def test_the_file_is_read_once_and_each_module_has_its_model() -> None:
    assert cost_model("places") is cost_model("places")
    assert [module.MODEL for module in (occupancy, small_m, large_m, rules)] == list(map(cost_model, list(MODULES)[:4]))
    assert rules.MODEL.rates[256, 224] == 1.0 and small_m.MODEL.unaligned[64] == 660e6
    assert occupancy.MODEL.rounds[4] == ((tuple(range(4, 12)), 2), ((4, 6, 7, 8, 9, 10, 11), 2))
    with pytest.raises(AttributeError, match="clocks"):
        _ = large_m.MODEL.clocks


def test_an_entry_without_a_unit_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(costs, "files", lambda _: tmp_path)
    (tmp_path / "other.json").write_text('{"gpu": "another", "places": {"fitted_to": "x", "multiprocessors": [4]}}')
    with pytest.raises(ValueError, match="unpack"):
        cost_model("places", "other")


def test_import_of_the_package_does_not_read_it() -> None:
    code = "import sys, layoutgemm; print('layoutgemm.kernels.sm90.choose.costs' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True).stdout == "False\n"


def test_reductions_cost_what_the_record_says() -> None:
    used = set(re.findall(r"MODEL\.(\w+)", Path(reductions.__file__).read_text(encoding="utf-8")))
    assert used == cost_model("reductions", "h100").numbers.keys()
    record = json.loads((ROOT / "benchmarks/results/reductions_h100.json").read_text())["costs"]
    steps = {
        "row sum": RowReduce("sum"), "row max": RowReduce("max"), "row softmax": RowReduce("softmax"),
        "row argmax": RowReduce("argmax"), "column sum": ColumnReduce("sum"), "column argmax": ColumnReduce("argmax"),
    }  # fmt: skip
    for size, elements in (("4096", 4 * 128 * 256), ("8192", 9 * 256 * 224)):
        plain = record[size]["plain"]
        for name, step in steps.items():
            found = ReductionCost.of(Epilogue(step)).seconds(elements) * 1e6
            assert abs(found - (record[size][name] - plain)) < plain * (0.02 if name == "column argmax" else 0.003), (
                name
            )


def test_the_choice_and_its_reason_weigh_reductions() -> None:
    """Reductions prefer the operand order in which they are of rows."""
    row, column = (Epilogue(kind("argmax")) for kind in (RowReduce, ColumnReduce))
    for m, n, k in ((4096, 256, 7168), (4096, 4096, 4096)):
        of_row, of_column = (likeliest(m, n, k, epilogue=x) for x in (row, column))
        fastest = {swapped: [next(e for e in each if e.swapped is swapped) for each in (of_row, of_column)]
                   for swapped in (False, True)}  # fmt: skip
        assert fastest[False][0].reduced < fastest[False][1].reduced
        assert fastest[True][0].reduced > fastest[True][1].reduced
        assert "of them for reductions" in str(of_row[0])
    choice, why = choose(4096, 4096, 4096, epilogue=column)
    assert choice.swapped and "of them for reductions" in why
