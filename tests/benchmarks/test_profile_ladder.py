"""The ladder's profile: what ncu prints becomes a table, and what it does not print an error."""

from __future__ import annotations

import doctest
import json
from pathlib import Path

import pytest

from benchmarks import profile_ladder


def test_the_examples() -> None:
    assert doctest.testmod(profile_ladder).failed == 0


def test_other_files_are_refused_as_profiles() -> None:
    for text in ("", "==ERROR== ERR_NVGPUCTRPERM\n", '"ID","gpu__time_duration.sum"\n"","ns"\n'):
        with pytest.raises(RuntimeError, match="ncu gave no kernel"):
            profile_ladder.parsed(text)


@pytest.mark.dsl
def test_a_table_of_two_levels(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def counters(program: str, which: int, size: int, ncu: str) -> dict[str, str]:
        if "03" in program:
            raise RuntimeError("ncu gave no kernel")
        return {"gpu__time_duration.sum": "4000 ns", "lts__throughput.avg.pct_of_peak": "91 %"}

    monkeypatch.setattr(profile_ladder, "profiled", counters)
    monkeypatch.setattr(profile_ladder.device_levels, "facts", dict)
    path = tmp_path / "ladder.json"
    assert profile_ladder.table([2, 3, 4], 8192, "ncu", path) == 1
    shown = capsys.readouterr().out
    assert "level 3, TMA and wgmma: FAILED" in shown and "25.8 GB, 42.7 FLOP a byte" in shown
    assert "this ncu has no sm__cycles_active.avg" in shown and shown.count("91 %") == 2
    assert list(json.loads(path.read_text())["levels"]) == [
        "level 2, wgmma, tile swizzled by hand", "level 4, warp specialisation",
    ]  # fmt: skip
