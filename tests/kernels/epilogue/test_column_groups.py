"""Functions of neighbouring columns: the reference, the refusals, the proof, and kernels in the emulator."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.atoms import wgmma
from layoutgemm.errors import PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan, column_groups
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Aux,
    ColumnGroup,
    Custom,
    Epilogue,
    EpilogueOperand,
    Quantize,
    RowReduce,
)
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from layoutgemm.kernels.sm100.plan import Sm100Config, Sm100Plan
from tests import needs

TURN, WEIGHTS, ROWS = (EpilogueOperand(name, axes, "f32") for name, axes in (("turn", "mn"), ("w", "n"), ("r", "m")))
IDS = EpilogueOperand("ids", "n", "i32")
SWAP = ColumnGroup.of(lambda x, i, j, ops: (x[1], x[0]))


def rotary(distance: int) -> ColumnGroup:
    return ColumnGroup.of(
        lambda x, i, j, ops, t: (x[0] * t[0] - x[1] * t[1], x[0] * t[1] + x[1] * t[0]), TURN, distance=distance
    )


# A step of each way in which lanes hold a group, with an output and a reduction between them.
EVERYTHING = Epilogue(
    Aux("f32"),
    ColumnGroup.of(lambda x, i, j, ops: (x[3] + j, x[2] - i, x[1] * 2.0, x[0]), columns=4),
    ColumnGroup.of(lambda x, i, j, ops, w, r: tuple(x[k ^ 5] * w[k] + r for k in range(8)), WEIGHTS, ROWS, columns=8),
    RowReduce("max", "most"),
    ColumnGroup.of(lambda x, i, j, ops, d: tuple(x[k ^ 9] + (d[k] >> 30) for k in range(16)), IDS, columns=16),
    rotary(16),
    Activation("relu"),
    ColumnGroup.of(lambda x, i, j, ops: (x[0] - x[1], x[1] + j), distance=2),
)


def operands(m: int, n: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = {"turn": (m, n), "w": (n,), "r": (m,)}
    found = {name: rng.integers(-2, 3, shape).astype(np.float32) for name, shape in shapes.items()}
    return {**found, "ids": rng.integers(-(2**31), 2**31, n).astype(np.int32)}


@pytest.mark.parametrize("distance", [1, 2, 3, 16])
def test_the_reference_turns_each_pair(distance: int) -> None:
    n = 96
    x, turn = (np.random.default_rng(i).standard_normal((2, 5, n)).astype(np.float32) for i in range(2))
    found = Epilogue(rotary(distance)).reference(x, turn=turn).c
    for j in range(n):
        first, second = (j, j + distance) if j // distance % 2 == 0 else (j - distance, j)
        cos, sin = turn[..., first], turn[..., second]
        low, high = x[..., first], x[..., second]
        assert np.array_equal(found[..., j], low * cos - high * sin if j == first else low * sin + high * cos)


def test_text_makes_an_equal_epilogue() -> None:
    again = Epilogue.from_json(EVERYTHING.json)
    assert again == EVERYTHING and hash(again) == hash(EVERYTHING) and again.columns == 32
    for text in ('["x", 2]', '["x", true]', '["x"]', '["given", "turn"]', '["given", "r", 0]'):
        with pytest.raises(PlanError, match="no part of an expression"):
            Epilogue.from_json(Epilogue(SWAP).json.replace('["x", 1]', text))


PLANS: dict[str, Callable[..., Any]] = {
    "sm_90a": lambda n, **more: Sm90Plan.derive(
        40, n, 40, b="bf16:col", c="f32", config=Sm90Config((64, 32), consumers=1, stages=2), **more
    ),
    "sm_80": lambda n, **more: Sm80Plan.derive(
        40, n, 40, b="bf16", c="f32", config=Sm80Config((64, 64), None, 3, (2, 2)), **more
    ),
    "sm_80, tf32 across K": lambda n, **more: Sm80Plan.derive(
        40, n, 40, a="tf32:col", b="tf32", c="f32", config=Sm80Config((64, 64), None, 3, (2, 2)), **more
    ),
    "sm_100a": lambda n, **more: Sm100Plan.derive(
        40, n, 40, b="bf16:col", c="f32", config=Sm100Config((128, 64)), **more
    ),
}  # fmt: skip


@needs.DSL
@needs.C_COMPILER
@pytest.mark.dsl
@pytest.mark.parametrize("name", ["sm_90a", *[pytest.param(x, marks=pytest.mark.slow) for x in list(PLANS)[1:]]])
def test_a_kernel_equals_the_reference(name: str) -> None:
    made = PLANS[name](64, epilogue=EVERYTHING)
    assert "column groups" in [check.name for check in made.check().require()]
    a, b = (np.random.default_rng(i).integers(-3, 4, x).astype(np.float32) for i, x in enumerate(((40, 40), (40, 64))))
    want = EVERYTHING.reference(a @ b, **operands(40, 64))
    found = made.run(a, b, given=operands(40, 64), device="emulator")
    assert np.array_equal(found.c, want.c)
    for output, value in want.written.items():
        assert np.array_equal(found.written[output], value), output


def test_groups_that_no_thread_has_are_refused() -> None:
    for n, step, text in (
        (33, SWAP, "C has 33 columns, and a group spans 2: 16 \\* 2 and 1 more"),
        (96, rotary(24), "stored at a time by 32 columns, and a group spans 48: 0 \\* 48 and 32 more"),
    ):
        with pytest.raises(PlanError, match=text):
            PLANS["sm_90a"](n, epilogue=Epilogue(step))
    with pytest.raises(PlanError, match="column 0 of value 0 is value 0 or 1 by the lane"):
        plan(64, 160, 64, arch="sm_80", epilogue=Epilogue(rotary(5)))
    with pytest.raises(PlanError, match="whole groups are of 512 columns, and a tile has at most 256"):
        column_groups.check_groups(Epilogue(rotary(256)))
    with pytest.raises(PlanError, match="rows of this kernel's product, which is computed transposed"):
        Epilogue(SWAP).transposed()
    with pytest.raises(PlanError, match=r"gave \(x\[0\],\): it gives 2 values"):
        ColumnGroup.of(lambda x, i, j, ops: (x[0],))
    for columns in (1, 3, 64, True, "2"):
        with pytest.raises(PlanError, match="known are 2, 4, 8, 16, 32"):
            ColumnGroup.of(lambda x, i, j, ops: x, columns=columns)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("other", "text"),
    [({"values": (1, 1, 0, 1)}, r"value 0 of lane 0 reads \(0, 1\) as \(0, 0\)"), ({"lanes": (0, 0, 0, 1)}, "reads")],
)
def test_the_proof_finds_a_wrong_place(other: dict[str, Any], text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    four = Epilogue(ColumnGroup.of(lambda x, i, j, ops: x[::-1], columns=4))
    atom = wgmma(32, "bf16", "bf16", "f32")
    assert column_groups.groups_check(four, atom, range(16)).ok
    right = column_groups.members_of(atom, 4, 1)
    monkeypatch.setattr(column_groups, "members_of", lambda *_: (replace(right[0], **other), *right[1:]))
    found = column_groups.groups_check(four, atom, range(16))
    assert not found.ok and re.search(text, found.witness), found.witness


def test_values_without_neighbours_say_who_has_them() -> None:
    with pytest.raises(PlanError, match=r"x is one value, and \[j \+ 1\] asks for several: ColumnGroup.of gives"):
        Custom.of(lambda x, i, j, ops: x[j + 1])
    with pytest.raises(PlanError, match="r is one value"):
        ColumnGroup.of(lambda x, i, j, ops, r: (x[0] * r[0], x[1]), ROWS)
    with pytest.raises(PlanError, match=r"join conditions by & and \|"):
        Custom.of(lambda x, i, j, ops: ops.where(0 <= j < 8, x, 0.0))
    with pytest.raises(PlanError, match="a scale is of columns of one row"):
        Quantize(each=(128, 128))  # type: ignore[arg-type]
