"""Orders of tiles as text, which a graph of torch's compiler or a file holds.

A name stays a name. A schedule is the list of its class and its fields; a layout among them is its text. An order's
function is traced first: its text is that of the expressions.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import fields
from typing import TypeAlias

from ..arguments import checked, shown
from ..errors import LayoutError, PlanError
from ..layouts import Layout
from .functions import Formula, LayoutOrder
from .listed import Banded, TileList
from .rotated import Rotated
from .tile_order import Grouped, Hilbert, Linear, Schedule
from .triangular import Triangular

Asked: TypeAlias = Schedule | Layout | str | Callable[..., object]
_KINDS: dict[str, type[Schedule]] = {
    kind.__name__: kind
    for kind in (Banded, Formula, Grouped, Hilbert, LayoutOrder, Linear, Rotated, TileList, Triangular)
}


def refused_order(order: object) -> str:
    """The refusal of an argument that is no order.

    >>> refused_order(3)
    "order = 3: a Schedule, a name, a Layout, or a function of the tile's number"
    """
    return f"order = {shown(order)}: a Schedule, a name, a Layout, or a function of the tile's number"


def order_text(order: Asked) -> str:
    """The text of an order as a caller asks for it; `order_of_text` reads it.

    Raises PlanError for a schedule of another class, for a function that no order has, and for anything else.

    >>> order_text("lower"), order_text(Triangular("upper", 2))
    ('"lower"', '["Triangular", {"half": "upper", "group": 2, "tile_shape": null, "mirror": false}]')
    >>> order_of_text(order_text(lambda t, rows, columns: (t // columns, t % columns))).table((2, 2)).tolist()
    [[0, 0], [0, 1], [1, 0], [1, 1]]
    """
    if isinstance(order, Layout):
        order = LayoutOrder(layout=order)
    if not isinstance(order, (str, Schedule)):
        if not callable(order):
            raise PlanError(refused_order(order))
        order = Formula.of(order)
    return json.dumps(order if isinstance(order, str) else _entry(order))


def _entry(value: object) -> object:
    """A field's value as JSON has it."""
    if isinstance(value, Schedule):
        name = type(value).__name__
        if _KINDS.get(name) is not type(value):
            raise PlanError(f"an order of class {name} has no text: those of {', '.join(_KINDS)} have")
        return [name, {each.name: _entry(getattr(value, each.name)) for each in fields(value) if each.init}]
    return str(value) if isinstance(value, Layout) else value


@checked(PlanError)
def order_of_text(text: str) -> Schedule | str:
    """The order that `order_text` wrote. Raises PlanError for another text.

    >>> order_of_text('["Linear", {"along": "N"}]')
    Linear(along='N')
    """
    try:
        found = json.loads(text)
        made = found if isinstance(found, str) else _schedule(found)
        if order_text(made) != text:
            raise PlanError(f"an order's text is {text[:200]}, and that order's is {order_text(made)[:200]}")
    except (ValueError, TypeError, KeyError, RecursionError, LayoutError) as error:
        raise error if isinstance(error, PlanError) else PlanError(f"no order's text: {text[:200]}") from None
    return made


def _schedule(entry: object) -> Schedule:
    if not isinstance(entry, list) or len(entry) != 2:
        raise PlanError(f"no order's text: {str(entry)[:200]}")
    kind = _KINDS[entry[0]]
    return kind(**{name: _field(name, value) for name, value in entry[1].items()})  # type: ignore[arg-type]  # checked there


def _field(name: str, value: object) -> object:
    """A field's value again: a schedule, a layout, or plain numbers with tuples in place of lists."""
    if name in ("inner", "schedule") and value is not None:
        return _schedule(value)
    return Layout.parse(str(value)) if name == "layout" else _tuples(value)


def _tuples(value: object) -> object:
    return tuple([_tuples(part) for part in value]) if isinstance(value, list) else value
