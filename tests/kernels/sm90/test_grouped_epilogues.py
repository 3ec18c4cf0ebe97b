"""Epilogues that write and reduce in groups of rows, masked ones and along K: compiled kernels in the emulator."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import AlongK, Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Amax,
    Aux,
    Bias,
    ColumnReduce,
    Epilogue,
    Outputs,
    Quantize,
    Residual,
    RowReduce,
    VectorScale,
)
from layoutgemm.kernels.epilogue.grouped_matrix import parts_of
from layoutgemm.kernels.indexed.rows import IndexedRows, RowIndices
from layoutgemm.kernels.partials import PartialResults, reductions_check
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.sm90.mainloop import Promoted, Table
from tests import needs

pytestmark = [needs.DSL, pytest.mark.dsl]
SLOW = [pytest.mark.slow]
SMALL = Sm90Config((64, 64), consumers=1, stages=2)
SIZES = (0, 70, 1, 0, 64, 17, 3)
N, K, BEHIND = 88, 80, 6  # BEHIND: rows of no group
SCALED = Promoted.of(lambda total, product, sa, sb: total + sa * sb * product, Table("sa", "m"), Table("sb", "n", 64))

ELEMENTS = Epilogue(Residual("f32", beta=None), Bias("n"), Aux("f32"), Activation("relu"), Amax())
ROWS = Epilogue(RowReduce("sum", "sums"), RowReduce("max", "most", each=32, order="col"), RowReduce("softmax", "soft"))
COLUMNS = Epilogue(
    ColumnReduce("sum", "total"), ColumnReduce("argmax", "best"), RowReduce("argmax", "first"), stores_c=False
)
ATOMIC = Epilogue(
    VectorScale("m", "f32", "each"),
    RowReduce("sum", "sums", ordered=False),
    ColumnReduce("sum", "total", ordered=False),
)
QUANTIZED = Epilogue(Quantize("scales", 32, "e4m3"), stores_c=True)
FEW = Epilogue(Residual("f32", beta=None), RowReduce("sum", "sums"), Amax())  # tables of scales leave few parameters
FEW_COLUMNS = Epilogue(ColumnReduce("softmax", "soft"))
STEPS = {
    "elements": ELEMENTS, "rows": ROWS, "columns": COLUMNS, "atomic": ATOMIC, "quantized": QUANTIZED, "few": FEW,
    "few columns": FEW_COLUMNS,
}  # fmt: skip


@dataclass(frozen=True)
class Form:
    """A grouped product: the sizes of its groups, and how they are said."""

    config: Sm90Config = SMALL
    sizes: tuple[int, ...] = SIZES
    said: str = "ends"
    types: tuple[str, str, str] = ("bf16", "bf16:col", "f32")
    loop: Promoted | None = None
    indexed: IndexedRows | None = None


PAIR = replace(SMALL, cluster=(2, 1), loader="warpgroup")
FORMS = {
    "ends": Form(),
    "offsets": Form(said="offsets"),
    "one": Form(sizes=(70,)),
    "pair": Form(PAIR),
    "two": Form(Sm90Config((128, 64), chunks=1, buffers=2, stages=2)),
    "turns": Form(Sm90Config((64, 64), schedule="pingpong", loader="warpgroup", stages=3)),
    "early": Form(Sm90Config((256, 64), staged_epilogue_k_tiles=1, stages=2), (300, 0, 1, 256)),
    "scaled": Form(Sm90Config((128, 64), stages=2), types=("e4m3", "e4m3:col", "f32"), loop=SCALED),
    "halves": Form(  # three columns of tiles: each last round has a half of both
        Sm90Config((128, 32), stages=2, cluster=(2, 1), turn_last_pair=True, halve_last_round=True, loader="warpgroup"),
        sizes=(257, 130, 0, 100),
    ),
    "copied": Form(indexed=IndexedRows(RowIndices(50), copy=True)),
    "gathered": Form(replace(SMALL, loader="warpgroup"), said="offsets", indexed=IndexedRows(RowIndices(50))),
    "masked": Form(said="counts"),
    "masked one": Form(sizes=(40,), said="counts"),
    "masked pair": Form(PAIR, said="counts"),
    "along K": Form(replace(SMALL, loader="warp"), said="K", types=("bf16:col", "bf16:row", "f32")),
}
CASES = [
    ("ends", "elements", ()), ("ends", "rows", ()), ("ends", "columns", ()), ("ends", "atomic", SLOW),
    ("ends", "quantized", SLOW), ("offsets", "columns", SLOW), ("one", "columns", SLOW), ("one", "rows", SLOW),
    ("pair", "rows", SLOW), ("pair", "columns", SLOW), ("two", "columns", SLOW), ("turns", "rows", SLOW),
    ("turns", "columns", SLOW), ("early", "elements", SLOW), ("early", "rows", SLOW),
    ("halves", "elements", SLOW), ("halves", "rows", SLOW), ("halves", "columns", SLOW), ("halves", "atomic", SLOW),
    ("halves", "quantized", SLOW),
    ("scaled", "few", SLOW), ("scaled", "few columns", SLOW),
    ("copied", "columns", SLOW), ("gathered", "rows", SLOW), ("masked", "elements", SLOW), ("masked", "rows", SLOW),
    ("masked", "columns", ()), ("masked", "atomic", SLOW), ("masked one", "columns", SLOW),
    ("masked pair", "rows", SLOW),
    ("along K", "elements", SLOW), ("along K", "rows", SLOW), ("along K", "columns", SLOW),
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A plan, its operands, and what the steps make of the exact sums."""

    plan: Sm90Plan
    a: Any
    b: Any
    given: dict[str, Any]
    sums: Any
    groups: Any

    @property
    def wanted(self) -> Outputs:
        """By the definition in NumPy."""
        names = [operand.name for operand in self.plan.epilogue.given if not operand.written]
        own = {name: self.given[name] for name in names}
        if self.groups is None:
            return self.plan.epilogue.reference(self.sums, **own)
        return self.plan.epilogue.reference_of_groups(self.sums, self.groups, **own)


def integers(seed: int, *shape: int) -> Any:
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def case(name: str, steps: str) -> Case:
    form, epilogue = FORMS[name], STEPS[steps]
    count, masked, along_k = len(form.sizes), form.said == "counts", form.said == "K"
    front = () if (masked or along_k) and count == 1 else (count,)
    bounds = [0, *np.cumsum(form.sizes).tolist()]
    m = 80 if masked else 72 if along_k else bounds[-1] + BEHIND * (form.said == "ends")
    k = bounds[-1] if along_k else K
    kept = "e4m3" if epilogue.quantizes is not None else form.types[2]
    plan = Sm90Plan.derive(
        m, N, k, batch=count, a=form.types[0], b=form.types[1], c=kept, config=form.config, epilogue=epilogue,
        mainloop=form.loop, indexed=form.indexed, along_k=AlongK.of(count) if along_k else None,
        ragged=None if along_k else Ragged.of(count, "i32", masked, form.said == "ends"),
    )  # fmt: skip
    given: dict[str, Any] = {}
    read = integers(1, *front * masked, m if form.indexed is None else 50, k)
    b = integers(2, k, N) if along_k else integers(2, *front, k, N)
    a = read
    if form.indexed is not None:
        given["rows"] = np.random.default_rng(3).integers(0, 50, m).astype(np.int32)
        a = read[given["rows"]]
    if along_k:
        groups, numbers = None, bounds
        sums = np.stack([a[:, s:e] @ b[s:e] for s, e in pairwise(bounds)])
    elif masked:
        groups, numbers = list(form.sizes), list(form.sizes)
        sums = a @ b
    else:
        groups, numbers = list(pairwise(bounds)), bounds[form.said == "ends" :]
        sums = np.zeros((m, N), np.float32)
        for e, (first, end) in enumerate(groups):
            sums[first:end] = a[first:end] @ b[e]
    if form.loop is not None:
        scale, other = np.exp2(integers(4, m, 1)), np.exp2(integers(5, *front, 2, 1))
        given |= {"sa": scale, "sb": other}
        for e, (first, end) in enumerate(groups or ()):
            sums[first:end] *= scale[first:end] * other[e].repeat(64, 0)[:N, 0]
    given[plan.groups.name] = np.asarray(numbers, np.int32)
    several = sums.shape[:-2]
    for operand in [operand for operand in epilogue.given if not operand.written]:
        one = operand.shape(m, N)
        of = front if operand.axes == "n" else several
        given[operand.name] = integers(6, *of, *one)
    if count == 1 and masked:
        groups, sums = [(0, form.sizes[0])], sums.reshape(m, N)
    return Case(plan, read, b, given, sums, groups)


@pytest.mark.parametrize("form, steps", [pytest.param(*x[:2], marks=x[2]) for x in CASES])
def test_what_the_steps_write_is_the_definition_s(form: str, steps: str) -> None:
    """Rows of no group keep what was there: each output starts with zeros."""
    made = case(form, steps)
    made.plan.check().require()
    found, want = made.plan.run(made.a, made.b, given=made.given, device="emulator"), made.wanted
    inside = np.zeros(made.sums.shape[:-1], bool)
    for part in parts_of(made.sums.shape, made.groups) if made.groups is not None else [(slice(None),)]:
        inside[part] = True
    if made.plan.epilogue.stores_c:
        c = made.plan.c.dtype
        assert np.array_equal(found.c[inside], np.asarray(c.decode(c.encode(want.c)))[inside])
    assert set(found.written) == set(want.written) == set(made.plan.epilogue.writes)
    for operand in [operand for operand in made.plan.epilogue.given if operand.written]:
        name, value, expected = operand.name, found.written[operand.name], want.written[operand.name]
        if "m" in operand.axes:
            assert not np.any(value[~inside]), name
            value, expected = value[inside], expected[inside]
        if made.plan.batch == 1:
            expected = expected.reshape(value.shape)
        if name == "soft_log_sum_exp":
            assert np.allclose(value, expected, rtol=1e-5), name
        else:
            assert np.array_equal(value, expected), name


def test_lines_of_columns_are_each_group_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = case("ends", "columns").plan
    values = range(plan.stored.accumulator_registers)
    assert reductions_check(plan, plan.stored, values) and plan.workspace == plan.partial_bytes
    lines = 161 // 16 + len(SIZES)
    assert plan.partial_bytes == 4 * (N * lines * (1 + 2) + 2 * 2 * 161)
    for name, wrong, text in (
        ("line", lambda self, row, group: row // self.span, "rows 0 to 1, then 0 more: lines 0 to 1, 0 to 0"),
        ("extents", lambda self, m, n, groups: (m // 16, n), "rows 0 to"),
        ("lines_of_group", lambda self, start, end, group: (start // 16, end // 16), "warps write lines"),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(PartialResults, name, wrong)
            found = reductions_check(plan, plan.stored, values)
            assert not found and text in found.witness


def test_numpy_operands_of_groups() -> None:
    made = case("ends", "elements")
    with pytest.raises(OperandError, match=r"bias has shape \(6, 88\)"):
        made.plan.run(made.a, made.b, given={**made.given, "bias": np.zeros((6, N))}, device="emulator")
    sums = np.zeros((4, 3), np.float32)
    for groups, text in (
        ([(0, 5)], r"groups\[0\] = \(0, 5\): rows of an accumulator of shape \(4, 3\)"),
        ([(0, 2), (3, 2)], r"groups\[1\] = \(3, 2\)"),
        ([3], r"groups\[0\] = 3"),
    ):
        with pytest.raises(PlanError, match=text):
            Epilogue(RowReduce()).reference_of_groups(sums, groups)
    with pytest.raises(PlanError, match="1 groups, and an accumulator of shape"):
        Epilogue(RowReduce()).reference_of_groups(np.zeros((2, 4, 3), np.float32), [3])
