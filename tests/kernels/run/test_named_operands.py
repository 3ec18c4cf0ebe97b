"""Operands that plans read by name: one function has the launch's words of every architecture, in the plan's order."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError
from layoutgemm.kernels import (
    Combined,
    IndexedRows,
    Prologue,
    Promoted,
    Ragged,
    RowIndices,
    Sm80Config,
    Sm80Plan,
    Sm90Config,
    Sm90Plan,
    Sm100Config,
    Sm100Plan,
    Table,
)
from layoutgemm.kernels.run.epilogue_operands import (
    names_read,
    order_words,
    values_read,
    words_of_tensors,
    words_read,
)
from layoutgemm.kernels.sm90.operands.row_sums import RowSums
from tests import needs

ROWS, K = 72, 128
SWIGLU = Combined.of(lambda g, u, ops, s: g * ops.sigmoid(g) * u + s * u, numbers=("s",))
TURNED = {"order": lambda t, rows, columns, ops, first: ((t + first) % rows, t // rows)}
INDEXED = {"indexed": IndexedRows(RowIndices(50), RowIndices(90, "i64"))}
SCALED = {"mainloop": Promoted.of(lambda total, x, sa, sb: total + sa * sb * x, Table("sa", "m"), Table("sb", "n"))}
BY_VECTORS = {"prologue": Prologue.of(lambda x, i, k, ops, r, w: x * r * w, r="m", w="k:bf16")}
BY_MMA = Sm80Config((64, 64), 32, 3, (2, 2))
HOPPER, GATHERING = Sm90Config((64, 64), consumers=1), Sm90Config((64, 64), consumers=1, loader="warpgroup")
CASES: dict[str, tuple[type[Any], dict[str, Any]]] = {
    "sm_80, several B and a pair": (
        Sm80Plan,
        {"gated": SWIGLU, "pair": 16, "config": BY_MMA},
    ),
    "sm_80, rows and an order": (Sm80Plan, {**INDEXED, **TURNED}),
    "sm_80, a prologue": (Sm80Plan, BY_VECTORS),
    "sm_90, several B, a pair and an order": (Sm90Plan, {"gated": SWIGLU, "pair": 16, "config": HOPPER, **TURNED}),
    "sm_90, scales": (Sm90Plan, {**SCALED, "a": "e4m3", "b": "e4m3:col", "config": HOPPER}),
    "sm_90, groups": (Sm90Plan, {"ragged": Ragged.of(3), "batch": 3, "config": HOPPER}),
    "sm_90, rows": (Sm90Plan, {**INDEXED, "config": GATHERING}),
    "sm_90, copied rows": (Sm90Plan, {"indexed": IndexedRows(RowIndices(50), copy=True), "config": HOPPER}),
    "sm_90, a prologue": (Sm90Plan, {**BY_VECTORS, "config": GATHERING}),
    "sm_90, row sums": (Sm90Plan, {"row_sums": RowSums(), "a": "bf16:col", "config": GATHERING}),
    "sm_100, several B and a pair": (Sm100Plan, {"gated": SWIGLU, "pair": 16, "config": Sm100Config((128, 64))}),
    "sm_100, rows and an order": (Sm100Plan, {**INDEXED, **TURNED}),
}


def asked(case: str) -> tuple[Any, dict[str, Any]]:
    """The plan, and what it reads by name."""
    kind, options = CASES[case]
    plan = kind.derive(ROWS, 64, K, **{"b": "bf16:col", **options})
    vectors = [] if plan.prologue is None else plan.prologue.operands
    given: dict[str, Any] = {name: np.zeros(shape, np.float32) for name, (_, shape) in plan.further.items()}
    given |= dict.fromkeys(plan.numbers_given, 2.0) | ({"first": 1} if "order" in options else {})
    given |= {x.name: np.ones(plan.m if x.axis == "m" else plan.k, np.float32) for x in vectors}
    if plan.indexed is not None:
        given |= {"rows": np.arange(ROWS, dtype=np.int32) % 50}
        given |= {"out_rows": np.arange(ROWS, dtype=np.int64)} if plan.indexed.scatter is not None else {}
    given |= {"sa": np.ones((ROWS, 1), np.float32), "sb": np.ones((64, 1), np.float32)} if plan.mainloop else {}
    given |= {"offsets": np.array([0, 10, 10, ROWS], np.int32)} if plan.ragged is not None else {}
    return plan, given | ({"row_sums": np.zeros(ROWS, np.float32)} if plan.row_sums is not None else {})


@pytest.mark.parametrize("case", CASES)
def test_the_words_of_a_launch_are_the_plans_in_order(case: str) -> None:
    plan, given = asked(case)
    words = words_read(plan, values_read(plan, given))
    assert set(names_read(plan)) == set(given)
    arrays = {name for name, value in given.items() if isinstance(value, np.ndarray)} | {"copied_rows"}
    found = [name for name, word in zip(plan.words, words, strict=False) if isinstance(word, np.ndarray)]
    assert found == [name for name in plan.words if name in arrays] and len(words) == 16
    assert all(isinstance(word, int) and word == 0 for word in words[len(plan.words) :])


@pytest.mark.parametrize("case", CASES)
def test_operands_by_name_are_missed_and_refused_by_name(case: str) -> None:
    plan, given = asked(case)
    for name in given:
        with pytest.raises(OperandError, match=rf"\b{name}\b"):
            values_read(plan, {key: value for key, value in given.items() if key != name})
    read = "no table" if plan.mainloop is not None else f"reads {', '.join(names_read(plan))}"
    with pytest.raises(OperandError, match=rf"more.* {read}"):
        values_read(plan, {**given, "more": 1})


@pytest.mark.parametrize("case", CASES)
def test_tensors_are_words_where_arrays_are(case: str) -> None:
    torch = needs.module("torch")
    plan, given = asked(case)
    bf16 = [x.name for x in plan.prologue.operands if x.dtype.name == "bf16"] if plan.prologue is not None else []
    tensors = {name: torch.from_numpy(x) if isinstance(x, np.ndarray) else x for name, x in given.items()}
    tensors |= {name: tensors[name].bfloat16() for name in bf16}
    placed = {name: (tensors[name], plan.n, 0) for name in plan.further}
    room = torch.zeros(1)
    words = words_of_tensors(plan, tensors, torch.device("cpu"), placed, room)
    at = {x.data_ptr(): name for name, x in {**tensors, "copied_rows": room}.items() if isinstance(x, torch.Tensor)}
    arrays = words_read(plan, values_read(plan, given))
    assert [number for number, word in enumerate(words) if word in at] == [
        number for number, word in enumerate(arrays) if isinstance(word, np.ndarray)
    ]
    assert [at[word] for word in words if word in at] == [name for name in plan.words if name in at.values()]
    vectors = [name for name, x in tensors.items() if isinstance(x, torch.Tensor) and x.ndim == 1]
    for name in vectors:
        apart = torch.stack([tensors[name]] * 2, 1)[:, 0]
        with pytest.raises(OperandError, match=f"{name} has stride 2: it must be contiguous"):
            words_of_tensors(plan, {**tensors, name: apart}, torch.device("cpu"), placed, room)


def test_a_strided_list_of_tiles_is_refused() -> None:
    torch = needs.module("torch")
    plan = Sm90Plan.derive(ROWS, 64, K, config=HOPPER, order="list")
    tiles = torch.zeros((2, 2), dtype=torch.int32)
    assert order_words(plan, {"tiles": tiles[0]}, torch.device("cpu")) == (tiles.data_ptr(), 2)
    with pytest.raises(OperandError, match="tiles has stride 2"):
        order_words(plan, {"tiles": tiles[:, 0]}, torch.device("cpu"))
