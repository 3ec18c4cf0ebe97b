"""Orders as text: each is read back as the same order, and other texts are refused."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pytest

from layoutgemm.errors import PlanError
from layoutgemm.layouts import Layout
from layoutgemm.schedule import (
    Banded,
    Formula,
    Grouped,
    Hilbert,
    LayoutOrder,
    Linear,
    Rotated,
    Schedule,
    TileList,
    Triangular,
)
from layoutgemm.schedule.text import order_of_text, order_text

ORDERS: list[Any] = [
    "lower", Linear("N"), Grouped("N", 3, True), Hilbert(), Triangular("upper", 2, (64, 128)), Triangular(mirror=True),
    Banded(below=3, above=0), TileList(), TileList(schedule=Triangular("lower")), Rotated(Linear("N"), ranks=4),
    Rotated(Grouped("M"), ranks=2, axis="N", name="me"), LayoutOrder(layout=Layout((4, 2), (2, 1))),
    Formula.of(
        lambda t, rows, columns, ops, first: (1 + (t + first) // columns, ops.minimum(t % columns, 7)),
        lambda rows, columns: (rows - 1) * columns,
        lambda row, column, rows, columns, ops: ops.minimum(row, 1),
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(ORDERS)))
def test_an_order_is_read_back(number: int) -> None:
    order = ORDERS[number]
    assert order_of_text(order_text(order)) == order


def test_positional_arguments_are_the_first_fields() -> None:
    """Dynamo of torch 2.11 gives them to the first fields of a class, `init` or not."""
    for order in ORDERS[1:]:
        assert all(each.init for each in fields(order)), type(order)
    assert (Triangular("upper").along, Triangular().along, Rotated(Linear("N")).along) == ("N", "M", "M")


def test_layouts_and_functions_are_schedules() -> None:
    layout = Layout((2, 2), (2, 1))
    assert order_of_text(order_text(layout)) == LayoutOrder(layout=layout)
    found = order_of_text(order_text(lambda t, rows, columns: (t // columns, t % columns)))
    assert isinstance(found, Schedule) and found.table((2, 3)).tolist() == Linear("N").table((2, 3)).tolist()


WITHOUT = '["Formula", {"along": "M", "row": %s, "column": ["int", 0], "tiles": null, "visits": null}]'
OF_SOME = '["Formula", {"along": "M", "row": ["number"], "column": ["int", 0], "tiles": %s, "visits": %s}]'
REFUSED = {
    "nothing": "no order's text",
    "{}": "no order's text",
    '["Spiral", {}]': "no order's text",
    '["Linear", {"along": "Q"}]': "runs along",
    '["Linear", {}]': "that order's is",
    '["Linear",  {"along": "M"}]': "that order's is",
    WITHOUT % '["power", ["number"], ["int", 2]]': "no part of an order's expression",
    WITHOUT % '["+", ["number"]]': "no part of an order's expression",
    WITHOUT % '["word", 3]': "no part of an order's expression",
    WITHOUT % '["int", 2147483648]': "no part of an order's expression",  # the kernel's integers have 32 bits
    WITHOUT % '["int", true]': "no part of an order's expression",
    WITHOUT % '["row"]': "no part of an order's expression of number, rows, columns",
    OF_SOME % ('["number"]', '["int", 1]'): "no part of an order's expression of rows, columns",
    OF_SOME % ('["word", "rank"]', '["int", 1]'): "no part of an order's expression of rows, columns",
    OF_SOME % ('["rows"]', "null"): "how many, `tiles`, and which, `visits`",
}


@pytest.mark.parametrize("text", REFUSED)
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(PlanError, match=REFUSED[text]):
        order_of_text(text)


def test_other_orders_have_no_text() -> None:
    class Own(Linear):
        pass

    with pytest.raises(PlanError, match="an order of class Own has no text"):
        order_text(Own())
    with pytest.raises(PlanError, match="order = 3: a Schedule, a name, a Layout"):
        order_text(3)  # type: ignore[arg-type]
