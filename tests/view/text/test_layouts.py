"""Tables say what the layouts do."""

from __future__ import annotations

import pytest

from layoutgemm.errors import LayoutError
from layoutgemm.layouts import Layout
from layoutgemm.view import layout_table, tv_table


def body(table: str) -> list[list[str]]:
    return [line.split("|")[1].split() for line in table.splitlines()[3:]]


def test_layout_table() -> None:
    layout = Layout(((2, 2), 8), ((1, 16), 2))
    assert body(layout_table(layout)) == [[str(layout(i, j)) for j in range(8)] for i in range(4)]
    assert body(layout_table(Layout(5, 3))) == [["0", "3", "6", "9", "12"]]


def test_lines_are_equally_long() -> None:
    lines = layout_table(Layout((12, 12), (100, 1))).splitlines()[1:]
    assert len({len(line) for line in lines}) == 1


def test_tv_table() -> None:
    tv = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))
    rows = body(tv_table(tv, (16, 8)))
    for t in range(32):
        for v in range(4):
            assert rows[t // 4 + 8 * (v // 2)][2 * (t % 4) + v % 2] == f"{t}:{v}"


def test_tv_table_of_shared_and_empty_places() -> None:
    assert body(tv_table(Layout((4, 2), (0, 1)), (2, 2))) == [["0:0+3", "-"], ["0:1+3", "-"]]


def test_refusals() -> None:
    with pytest.raises(LayoutError, match="leaves the tile"):
        tv_table(Layout((4, 2), (1, 4)), (4, 1))
    with pytest.raises(LayoutError, match="cells to draw"):
        layout_table(Layout((1024, 1024)))
