"""The walk of a size to its plan, as the package's docstring draws it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from layoutgemm import kernels, plan
from layoutgemm.kernels import planner
from layoutgemm.kernels.plan import tile_count
from tests import walks

MOST = 5
READER = "arguments"  # stands at every door
# Sizes that no tile, grid or constant is equal to, and that a choice does not round: of few rows, and of many.
SMALL, LARGE = 37, 5008


def files_of(size: int, call: Callable[[], object]) -> list[str]:
    """The files whose functions are handed the size, in the order of the first visit."""
    found = walks.files_of(lambda x: type(x) is int and x == size, call, "kernels")
    return [name for name in dict.fromkeys(found) if name != READER]


def drawn(size: int) -> list[str]:
    """The files of the docstring's first table that a size passes through on sm_90a."""
    first = next(part for part in (kernels.__doc__ or "").split("\n\n") if part[:4] == "    ")
    table = [line.split("  ")[2] for line in first.splitlines()]
    place = {SMALL: 0, LARGE: 1}[size]
    files = [cell.removeprefix("sm90.choose.").split(" or ") for cell in table]
    return [f"sm90.choose.{names[place]}" if len(names) == 2 else cell for cell, names in zip(table, files)]


@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_m_takes_the_way_that_is_drawn(size: int) -> None:
    files = files_of(size, lambda: plan(size, 4096, 2048, arch="sm_90a"))
    assert files == drawn(size) and len(files) <= MOST


@pytest.mark.parametrize(
    ("arch", "way"),
    [
        ("sm_80", ["planner", "sm80.choose", "sm80.plan"]), ("sm_120a", ["planner", "sm80.choose", "sm80.plan"]),
        ("sm_100a", ["planner", "sm100.choose", "sm100.plan"]),
    ],
)  # fmt: skip
@pytest.mark.parametrize("size", [SMALL, LARGE])
def test_m_takes_a_shorter_way_elsewhere(arch: str, way: list[str], size: int) -> None:
    assert files_of(size, lambda: plan(size, 4096, 2048, arch=arch)) == way
    said = " ".join((kernels.__doc__ or "").split())
    assert {"sm_80": "On sm_80 and sm_120a", "sm_120a": "On sm_80 and sm_120a", "sm_100a": "on sm_100a"}[arch] in said
    assert ", ".join(way[:-1]) + f" and {way[-1]}" in said


def test_the_walk_sees_another_file(monkeypatch: pytest.MonkeyPatch) -> None:
    real = planner.candidates
    monkeypatch.setattr(planner, "candidates", lambda m, *rest, **more: (tile_count(m, 8), real(m, *rest, **more))[1])
    assert "plan" in files_of(LARGE, lambda: plan(LARGE, 4096, 2048, arch="sm_80"))
