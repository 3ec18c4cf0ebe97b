"""The parts of a composed product as text, which an operator's schema can hold.

The text has the order, prologue, function of several sums, epilogue and activation. It has the names of the operands
too, in the four lists of `operators`: tensors that are read, tensors that are written, numbers, and whole numbers.
"""

from __future__ import annotations

import json
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch

from ...errors import OperandError, PlanError
from ...kernels.epilogue.chain import Epilogue
from ...kernels.epilogue.parameters import check_names
from ...kernels.indexed.rows import OUT_ROWS, ROWS
from ...kernels.operands.combined import Combine, Combined, function_of
from ...kernels.operands.gated import epilogue_behind
from ...kernels.operands.prologue import Prologue
from ...kernels.orders import Order, check_name, names_in_given
from ...kernels.sm90.triangular.operands import Triangles
from ...layouts import Layout
from ...memo import function_key
from ...schedule import Schedule
from ...schedule.text import order_of_text, order_text, refused_order
from ..bias_activation import GATES
from ..checks import check_activation
from ..epilogue import arguments_beside, refusal_of_epilogue
from ..operands.operators import function_of_text
from ..own_epilogue.names import OperandNames
from ..own_epilogue.operators import epilogue_of_text
from ..prologue.operators import prologue_of
from ..scaled_grouped.recipes import SCALES

ROW_WEIGHTS, BIAS, TILES, ADD_ROWS = "row_weights", "bias", "tiles", "add_rows"
OWN = (BIAS, ROWS, OUT_ROWS, ADD_ROWS, ROW_WEIGHTS, *SCALES)  # arguments that are tensors by name
PLACED = frozenset((ROWS, OUT_ROWS, ADD_ROWS))  # those that say which rows of a and of the result


Halves = tuple[str | None, str | None]  # of A and of B, as `Triangles` has them


class AskedParts(NamedTuple):
    """Arguments of `matmul` that ask for more than a product. Those that are tensors are in `own`, by name.

    prologue, epilogue  objects, or their texts
    triangles           an object, or its halves
    promotes            rows of A, and columns of B, that share a scale of a K block; () for a main loop that only adds
                        K blocks in float32, None for sums that stay in the tensor core
    """

    order: Order | None = None
    prologue: Prologue | str | None = None
    combine: Combine | None = None
    epilogue: Epilogue | str | None = None
    activation: str | None = None
    copy_rows: bool | None = None
    triangles: Triangles | Halves | None = None
    promotes: tuple[int, ...] | None = None


def composes(pairs: bool, asked: AskedParts, own: Mapping[str, object]) -> bool:
    """True if a call's parts have no operator of their own.

    pairs  whether a and b are two tensors each, or the several b batches

    >>> composes(False, AskedParts(epilogue="text"), {}), composes(False, AskedParts(epilogue="text"), {"rows": 1})
    (False, True)
    """
    indexed = any(own.get(name) is not None for name in (ROWS, OUT_ROWS, ROW_WEIGHTS))
    if own.get(ADD_ROWS) is not None:
        return True
    if pairs or asked.order is not None or asked.triangles is not None:
        return True
    if asked.combine is not None:
        more = asked.prologue, asked.epilogue, asked.activation, own.get(BIAS)
        return indexed or any(x is not None for x in more)
    if asked.prologue is not None:
        gated = isinstance(asked.activation, str) and asked.activation in GATES
        return asked.epilogue is not None or gated or own.get(OUT_ROWS) is not None
    return indexed and (asked.epilogue is not None or own.get(BIAS) is not None)


def has_batches(b: object) -> bool:
    """True if one of several matrices B is a batch of them.

    >>> has_batches((torch.ones(2, 3), torch.ones(2, 3))), has_batches([torch.ones(4, 2, 3)] * 2)
    (False, True)
    """
    return isinstance(b, (tuple, list)) and any(isinstance(x, torch.Tensor) and x.ndim > 2 for x in b)


@dataclass(frozen=True)
class Parts:
    """The parts of a product, and the names of its operands in the operator's lists.

    order       None: the kernel's own
    how         the function of several sums, or None
    activation  behind the sums; a gate's comes before an epilogue
    triangles   which of A and B are triangular, or None
    promotes    as `AskedParts` has it
    own         names of `OWN` that are given: the first of those that are read
    text        of all of these
    """

    order: Schedule | str | None
    prologue: Prologue | None
    how: Combined | None
    epilogue: Epilogue | None
    activation: str | None
    copy_rows: bool | None
    triangles: Triangles | None
    promotes: tuple[int, ...] | None
    own: tuple[str, ...]
    read: tuple[str, ...]
    written: tuple[str, ...]
    numbers: tuple[str, ...]
    wholes: tuple[str, ...]
    text: str

    @property
    def asked(self) -> AskedParts:
        """The arguments of a call with these parts."""
        return AskedParts(
            self.order, self.prologue, self.how, self.epilogue, self.activation, self.copy_rows, self.triangles,
            self.promotes,
        )  # fmt: skip

    @property
    def gate(self) -> str | None:
        """The function of a gate, or None."""
        return None if self.activation is None else GATES.get(self.activation)

    @property
    def stores_c(self) -> bool:
        """True if the product has a C."""
        return self.epilogue is None or self.epilogue.stores_c

    @property
    def order_names(self) -> tuple[str, ...]:
        """Names of what the order reads."""
        return () if self.order is None else names_in_given(self.order)

    @property
    def linear(self) -> bool:
        """True if C is linear in each operand. A sum of products, at most with a bias."""
        alone = self.prologue is None and self.how is None and self.epilogue is None and self.activation is None
        return alone and not {*PLACED, ROW_WEIGHTS} & set(self.own)


def parts_text(asked: AskedParts, matrices: int, own: Sequence[str], given: Sequence[str]) -> str:
    """The text of a call's parts.

    matrices  of b
    own       names of `OWN` that are given
    given     names of the operands in `given`

    Raises OperandError or PlanError, naming the part, for parts without a text and for other operands.

    >>> parts_of_text(parts_text(AskedParts("lower", activation="relu"), 1, ("bias",), ())).read
    ('bias',)
    """
    check_copy_rows(asked.copy_rows, own)  # here: the cache takes 1 for True
    check_activation(asked.activation)
    if asked.order is not None and not isinstance(asked.order, (Schedule, Layout, str)) and not callable(asked.order):
        raise PlanError(refused_order(asked.order))
    try:
        key = function_key(asked.order, asked.combine)
        return (_kept_text if key else _kept_text.__wrapped__)(asked, matrices, tuple(own), tuple(given), *key[2:])
    except TypeError as error:
        raise OperandError(f"a part of the product is of no kind that a kernel has: {error}") from error


@lru_cache(256)
def _kept_text(
    asked: AskedParts, matrices: int, own: tuple[str, ...], given: tuple[str, ...], *read: Hashable
) -> str:  # fmt: skip
    if isinstance(asked.order, str):
        check_name(asked.order)
    prologue = prologue_of(asked.prologue) if isinstance(asked.prologue, str) else asked.prologue
    epilogue = epilogue_of_text(asked.epilogue) if isinstance(asked.epilogue, str) else asked.epilogue
    beside = arguments_beside(BIAS if BIAS in own else None, asked.activation)
    gated = asked.activation in GATES
    if epilogue is not None:
        beside += [ROW_WEIGHTS] * (ROW_WEIGHTS in own)
        if text := refusal_of_epilogue(epilogue, None, beside, gated or asked.combine is not None):
            raise OperandError(text)
    claimed, names, of_a, order = _claimed(asked.order, prologue, epilogue, own)
    if twice := [name for i, name in enumerate(claimed) if name in claimed[:i]]:
        raise OperandError(f"two operands of the product are named {twice[0]}: give one of them another name")
    left = tuple([name for name in given if name not in claimed])
    how = None
    if asked.combine is not None:
        if gated:
            raise OperandError("activation and combine: the function of the products has the gate")
        how = function_of(asked.combine, matrices, left)
        epilogue_behind(how, epilogue)
    wanted = [name for name in claimed if name not in own]
    check_names([*wanted, *left] if how is not None else wanted, given, "the product's parts read")
    tiles = tuple([name for name in order if name == TILES])
    halves = Triangles(*asked.triangles) if isinstance(asked.triangles, tuple) else asked.triangles
    if (tables := [name for name in own if name in SCALES]) != list(SCALES[: len(asked.promotes or ())]):
        raise OperandError(f"tables of scales: {tables}, and the main loop reads {len(asked.promotes or ())}")
    entry = {
        "order": None if asked.order is None else order_text(asked.order),
        "prologue": None if prologue is None else prologue.json,
        "combine": None if how is None else how.json,
        "epilogue": None if epilogue is None else epilogue.json,
        "activation": asked.activation,
        "copy_rows": asked.copy_rows,
        "triangles": None if halves is None else [halves.a, halves.b],
        "promotes": asked.promotes,
        "own": list(own),
        "read": [*own, *names.read, *of_a, *tiles],
        "written": list(names.written),
        "numbers": [*names.numbers, *(() if how is None else how.numbers)],
        "wholes": [*names.wholes, *[name for name in order if name != TILES]],
    }
    return json.dumps(entry)


def _claimed(
    order: Order | None, prologue: Prologue | None, epilogue: Epilogue | None, own: Sequence[str]
) -> tuple[list[str], OperandNames, tuple[str, ...], tuple[str, ...]]:
    """The names that parts read: all, the epilogue's, the prologue's, the order's. Not those of combined sums."""
    names = OperandNames((), (), (), ()) if epilogue is None else OperandNames.of(epilogue)
    of_order = () if order is None else names_in_given(order)
    of_a = () if prologue is None else prologue.names
    return [*own, *names.read, *names.written, *names.numbers, *names.wholes, *of_a, *of_order], names, of_a, of_order


def names_left(
    order: Order | None, prologue: str | None, epilogue: str | None, given: Sequence[str]
) -> tuple[str, ...]:  # fmt: skip
    """The names of operands that no part but a function of several sums reads.

    >>> names_left("list", None, Epilogue.named("BIAS").json, ("tiles", "s", "bias"))
    ('s',)
    """
    of_a, steps = prologue and prologue_of(prologue), epilogue and epilogue_of_text(epilogue)
    claimed = _claimed(order, of_a or None, steps or None, ())[0]
    return tuple([name for name in given if name not in claimed])


def check_copy_rows(copy_rows: object, own: Sequence[str]) -> None:
    """Raise OperandError for `copy_rows` without rows, and for weights of rows in order."""
    if text := refusal_of_rows(copy_rows, own):
        raise OperandError(text)


def refusal_of_rows(copy_rows: object, own: Sequence[str]) -> str:
    """The same as text, or ""; torch.compile traces it.

    >>> refusal_of_rows(True, ("bias",))
    'copy_rows: True or False, of a product with rows='
    """
    if copy_rows is not None and (ROWS not in own or not isinstance(copy_rows, bool)):
        return "copy_rows: True or False, of a product with rows="
    if ROW_WEIGHTS in own and not any(name in PLACED for name in own):
        return "row_weights: the rows of a product with rows=, out_rows= or add_rows= have weights"
    if OUT_ROWS in own and ADD_ROWS in own:
        return "out_rows and add_rows: rows of the product are placed, or added to each other; give one"
    return ""


@lru_cache(256)
def parts_of_text(text: str) -> Parts:
    """The parts that `parts_text` wrote. Raises OperandError for another text."""
    try:
        found = json.loads(text)
        own, read, written, numbers, wholes = (
            tuple(map(str, found[name])) for name in ("own", "read", "written", "numbers", "wholes")
        )
        order, prologue, combine, epilogue = (found[name] for name in ("order", "prologue", "combine", "epilogue"))
        parts = Parts(
            None if order is None else order_of_text(order),
            None if prologue is None else prologue_of(prologue),
            None if combine is None else function_of_text(combine),
            None if epilogue is None else epilogue_of_text(epilogue),
            found["activation"], found["copy_rows"],
            None if found["triangles"] is None else Triangles(*found["triangles"]),
            None if found["promotes"] is None else tuple(map(int, found["promotes"])),
            own, read, written, numbers, wholes, text,
        )  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, OperandError):
            raise
        raise OperandError(str(error) if isinstance(error, PlanError) else f"no parts' text: {text[:200]}") from error
    _check_again(parts, text)
    return parts


def _check_again(parts: Parts, text: str) -> None:
    """Raise OperandError unless the parts have that text."""
    given = [name for name in (*parts.read, *parts.written, *parts.numbers, *parts.wholes) if name not in parts.own]
    matrices = 1 if parts.how is None else parts.how.matrices
    again = parts_text(parts.asked, matrices, parts.own, given)
    if again != text:
        raise OperandError(f"the parts' text is {text[:200]}, and theirs is {again[:200]}")


def lists_of(parts: Parts, values: Mapping[str, object]) -> tuple[list[object], ...]:
    """A call's operands by name, in the operator's four lists."""
    read, written, numbers, wholes = (
        [values[name] for name in names] for names in (parts.read, parts.written, parts.numbers, parts.wholes)
    )
    return read, written, [float(x) for x in numbers], wholes  # type: ignore[arg-type]  # numbers, by the checks


def named_lists(
    parts: Parts, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor] | None, numbers: Sequence[float],
    wholes: Sequence[int],
) -> dict[str, object]:  # fmt: skip
    """The operands by name; `written`: None for none of those. Raises OperandError for other numbers of them."""
    values: dict[str, object] = {}
    for said, given in (("read", read), ("written", written), ("numbers", numbers), ("wholes", wholes)):
        if given is None:
            continue
        names = getattr(parts, said)
        if len(names) != len(given):
            raise OperandError(f"{said} has {len(given)} operands, and the parts have {', '.join(names) or 'none'}")
        values |= zip(names, given)
    return values
