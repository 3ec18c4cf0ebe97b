"""Any two parts of a Hopper product have a right kernel, or a reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels import AlongK, IndexedRows, Prologue, Promoted, Ragged, RowIndices, Sm90Config, Sm90Plan, Table
from layoutgemm.kernels.epilogue.chain import Activation, Epilogue, RowReduce
from layoutgemm.kernels.operands.combinations import PARTS, REFUSED, refusal
from layoutgemm.kernels.operands.combined import Combined
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.sm90.operands.row_sums import RowSums
from layoutgemm.kernels.sm90.shards import Gathered
from layoutgemm.kernels.sm90.triangular.operands import Triangles
from layoutgemm.layouts import Layout
from tests import needs
from tests.kernels.plan_mutants import Stuck

M, N, K, K2, ROWS, GROUPS = 136, 104, 160, 24, 90, 4
OFFSETS = np.array([0, 0, 70, 71, M], np.int32)
ALONG_K = np.array([0, 0, 70, 71, K], np.int32)
SMALL = Sm90Config((64, 64), consumers=1, loader="warpgroup", stages=2)
Given = dict[str, Any]
ASKED: dict[str, Given] = {
    "gate": {"gated": "relu"},
    "several B": {"gated": Combined.of(lambda x, y, ops, s: x + s * y, numbers=("s",))},
    "main loop": {"mainloop": Promoted.of(lambda total, x, sa: total + sa * x, Table("sa", "m"))},
    "groups of rows": {"ragged": Ragged.of(GROUPS), "batch": GROUPS},
    "masked groups": {"ragged": Ragged.of(GROUPS, masked=True), "batch": GROUPS},
    "groups along K": {"along_k": AlongK.of(GROUPS), "batch": GROUPS, "a": "bf16:col", "b": "bf16:row"},
    "second pair": {"pair": K2},
    "gathered rows": {"indexed": IndexedRows(RowIndices(ROWS))},
    "copied rows": {"indexed": IndexedRows(RowIndices(ROWS), copy=True)},
    "scattered rows": {"indexed": IndexedRows(scatter=RowIndices(200))},
    "prologue": {"prologue": Prologue.of(lambda x, i, k, ops, r: x * r, r="m")},
    "row sums": {"row_sums": RowSums(), "a": "bf16:col"},
    "packed weights": {"weights": QuantizedFormat("int4", 32)},
    "shards": {"shards": Gathered()},
    "triangular operands": {"triangles": Triangles(a="lower")},
    "batch": {"batch": 3},
    "epilogue": {"epilogue": Epilogue(Activation("relu"))},
    "groups of columns": {"epilogue": Epilogue(RowReduce("max", each=8))},
    "symmetric order": {"order": "symmetric", "n": M},
    "order of some tiles": {"order": "lower"},
    "order with words": {"order": "hilbert"},
    "other orders": {"order": "snake"},
}
# Two of one kind: an argument has one value.
EXCLUSIVE = (
    ("gate", "several B"), ("groups of rows", "masked groups"), ("gathered rows", "copied rows"),
    ("symmetric order", "order of some tiles", "order with words", "other orders"),
    ("batch", "groups of rows", "masked groups", "groups along K"), ("epilogue", "groups of columns"),
)  # fmt: skip


def asked(parts: Sequence[str]) -> Given:
    """The arguments of `Sm90Plan.derive` for these parts."""
    found: Given = {"b": "bf16:col", "c": "f32", "n": N, "config": SMALL}
    for name in parts:
        found |= {key: value for key, value in ASKED[name].items() if key != "indexed"}
    if {"main loop", "groups along K"} <= set(parts):  # whose groups begin at K blocks
        found |= {"a": "e4m3", "b": "e4m3:col", "along_k": AlongK.of(GROUPS, multiple=128)}
    if {"main loop", "symmetric order"} <= set(parts):  # whose numbers are of A and B alike
        found["mainloop"] = Promoted.of(lambda t, x, sa, sb: t + sa * sb * x, Table("sa", "m"), Table("sb", "n"))
    rows = [ASKED[name]["indexed"] for name in parts if "indexed" in ASKED[name]]
    if rows:
        gather, scatter = (next((getattr(x, of) for x in rows if getattr(x, of)), None) for of in ("gather", "scatter"))
        found["indexed"] = IndexedRows(gather, scatter, any(x.copies for x in rows))
    return found


def derived(*parts: str) -> Sm90Plan:
    given = asked(parts)
    return Sm90Plan.derive(M, given.pop("n"), K, **given)


PAIRS = [
    pair for pair in combinations(ASKED, 2) if not any(pair[0] in group and pair[1] in group for group in EXCLUSIVE)
]


def test_every_part_is_walked() -> None:
    assert set(ASKED) == set(PARTS)
    walked = {frozenset(pair) for pair in PAIRS}
    beside = {frozenset(pair) for pair in (("groups of rows", "groups along K"), ("masked groups", "groups along K"))}
    assert {frozenset(pair) for pair in REFUSED} <= walked | beside


def test_any_two_parts_have_a_kernel_or_a_reason() -> None:
    """The table says what is refused, all of it, and in these words."""
    wrong = []
    for pair in PAIRS:
        try:
            derived(*pair)
            found = ""
        except PlanError as error:
            found = str(error)
        wanted = refusal(pair).replace("batch:", "batch = 3:", 1)
        if found != wanted:
            wrong.append((pair, found, wanted))
    assert not wrong


def test_three_parts_go_together_where_each_two_do() -> None:
    together = {pair for pair in PAIRS if not refusal(pair)}
    for parts in combinations(ASKED, 3):
        if together.issuperset(combinations(parts, 2)):
            derived(*parts)


def test_a_refusal_beside_the_table_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PlanError("a prologue: none")

    monkeypatch.setattr("layoutgemm.kernels.sm90.request.check_prologue", refuse)
    with pytest.raises(AssertionError, match="a prologue: none"):
        test_any_two_parts_have_a_kernel_or_a_reason()


@pytest.mark.parametrize(
    "parts",
    [
        ("gate", "gathered rows"), ("main loop", "scattered rows"), ("gathered rows", "prologue"),
        ("groups along K", "epilogue"), ("second pair", "symmetric order"), ("triangular operands", "batch"),
    ],
    ids=" + ".join,
)  # fmt: skip
def test_a_planted_fault_is_named(parts: tuple[str, ...]) -> None:
    plan = derived(*parts)
    faults = {
        "barriers": replace(plan, full_arrivals=plan.full_arrivals + 1),
        "tiles of C": replace(plan, order=replace(plan.order, schedule=Stuck())),
    }
    for name, mutant in faults.items():
        assert name in [check.name for check in mutant.check() if not check], (parts, name)


def test_a_shared_slot_of_partial_sums_is_named() -> None:
    given = asked(["second pair", "epilogue"])
    given["config"] = replace(SMALL, split=2, one_tile_per_cluster=True)
    plan = Sm90Plan.derive(M, given.pop("n"), K, **given)
    assert plan.exchange is not None and plan.check()
    layout = plan.exchange.layout
    shape, (thread, _, *others) = layout.shape, layout.stride
    both = replace(plan, exchange=replace(plan.exchange, layout=Layout(shape, (thread, 0, *others))))
    assert "exchange" in [check.name for check in both.check() if not check]


# ------------------------------------------------------------------------------------------------------- float64


class Problem:
    """Operands of small integers for some parts, and the product in float64, written for itself."""

    def __init__(self, plan: Sm90Plan, parts: Sequence[str]):
        self.plan, self.parts, self.rng = plan, parts, np.random.default_rng(0)
        self.given: Given = {}
        batch = plan.batch if "groups of rows" not in parts and "groups along K" not in parts else 1
        self.lead = (batch,) if batch > 1 else ()
        of_b = (plan.batch,) if plan.batch > 1 and "groups along K" not in parts else ()
        gathers = "gathered rows" in parts or "copied rows" in parts
        self.a = self.drawn(*self.lead, ROWS if gathers else M, K)
        if "triangular operands" in parts:
            self.a = np.tril(self.a)
        self.b = self.drawn(*of_b, K, plan.n * (2 if "gate" in parts else 1))
        if "symmetric order" in parts:
            self.b = np.ascontiguousarray(self.a.swapaxes(-1, -2))

    def drawn(self, *shape: int, low: int = -2) -> np.ndarray:
        return self.rng.integers(low, 3, shape).astype(np.float32)

    @property
    def rows(self) -> np.ndarray:
        """A's rows in the product's order, behind the prologue."""
        a = self.a.astype(np.float64)
        if a.shape[-2] == ROWS:
            at = self.given["rows"] = self.rng.integers(0, ROWS, int(np.prod(self.lead)) * M).astype(np.int32)
            at = at.reshape(*self.lead, M)
            a = np.take_along_axis(a, at[..., None].astype(np.int64), -2)
        if "prologue" in self.parts:
            self.given["r"] = self.drawn(*self.lead, M, low=1)
            a = a * self.given["r"][..., None]
        return a

    def sums(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """A @ B, of groups each with its own share."""
        b = b.astype(np.float64)
        if "groups of rows" in self.parts:
            return np.concatenate([a[s:e] @ b[i] for i, (s, e) in enumerate(pairwise(OFFSETS))])
        if "groups along K" in self.parts:
            return np.stack([a[:, s:e] @ b[s:e] for s, e in pairwise(ALONG_K)])
        return a @ b

    def wanted(self) -> np.ndarray:
        """C, of rows where they are scattered to; what is not stored is 0."""
        a, b, parts = self.rows, self.b, self.parts
        if "main loop" in parts:
            scale = self.given["sa"] = np.exp2(self.drawn(*self.lead, M, -(-K // 128)))
            each = np.repeat(scale, 128, -1)[..., :K]
            a = a * each
            if "symmetric order" in parts:
                self.given["sb"], b = scale, b * each.swapaxes(-1, -2)
        sums, of_b = [self.sums(a, b)], b.shape[:-2]
        if "several B" in parts:
            self.given |= {"b1": self.drawn(*of_b, K, self.plan.n), "s": 2.0}
            sums.append(self.sums(a, self.given["b1"]))
        if "second pair" in parts:
            a2 = self.given["a2"] = self.drawn(*self.lead, M, K2)
            for i, one in enumerate(sums):
                b2 = np.ascontiguousarray(a2.mT) if "symmetric order" in parts else self.drawn(*of_b, K2, one.shape[-1])
                self.given[f"b{2 + i}"] = b2
                sums[i] = one + self.sums(a2.astype(np.float64), b2)
        c = sums[0] + 2 * sums[1] if "several B" in parts else sums[0]
        if "gate" in parts:
            c = np.maximum(c[..., : self.plan.n], 0) * c[..., self.plan.n :]
        if "order of some tiles" in parts:
            i, j = (np.arange(size) // tile for size, tile in zip((M, self.plan.n), self.plan.tile_c, strict=True))
            last_row = (i[:, None] + 1) * self.plan.tile_c[0] - 1
            c = np.where(last_row >= j[None, :] * self.plan.tile_c[1], c, 0)
        if self.plan.ragged is not None or self.plan.along_k is not None:
            counts = np.array([M, 0, 1, 70], np.int32)
            self.given[self.plan.groups.name] = (
                counts if "masked groups" in parts else OFFSETS if "groups of rows" in parts else ALONG_K
            )
            if "masked groups" in parts:
                c = np.where(np.arange(M)[None, :, None] < counts[:, None, None], c, np.nan)
        if "scattered rows" in parts:
            rows = self.given["out_rows"] = self.rng.permutation(200)[:M].astype(np.int32)
            c, found = np.zeros((200, self.plan.n)), c
            c[rows] = found
        return c

    def check(self, device: str) -> None:
        want = self.wanted()
        got = np.asarray(self.plan.run(self.a, self.b, given=self.given, device=device).c, np.float64)
        assert got.shape == want.shape and np.array_equal(got[~np.isnan(want)], want[~np.isnan(want)]), self.parts


RUN = [
    ("gate", "gathered rows"), ("several B", "gathered rows"), ("gate", "scattered rows"),
    ("main loop", "scattered rows"), ("second pair", "scattered rows"), ("gathered rows", "prologue"),
    ("copied rows", "prologue"), ("scattered rows", "prologue"), ("gathered rows", "order with words"),
    ("scattered rows", "order of some tiles"), ("groups along K", "order with words"),
    ("groups along K", "order of some tiles"), ("gate", "triangular operands"), ("several B", "triangular operands"),
    ("second pair", "symmetric order"), ("triangular operands", "order with words"), ("gate", "masked groups"),
    ("gate", "second pair", "scattered rows"), ("several B", "second pair", "prologue", "copied rows"),
    ("groups of rows", "gate", "gathered rows"), ("groups of rows", "main loop", "scattered rows"),
    ("groups of rows", "gathered rows", "scattered rows", "prologue"),
    ("several B", "batch", "second pair"), ("gate", "batch", "second pair"), ("several B", "masked groups"),
    ("groups of rows", "several B", "second pair"), ("groups of rows", "several B", "gathered rows", "scattered rows"),
    ("second pair", "symmetric order", "batch"), ("prologue", "triangular operands"),
    ("second pair", "triangular operands"), ("several B", "second pair", "prologue", "triangular operands"),
]  # fmt: skip
# In the shorter run: one of each mechanism.
FIRST = {
    ("main loop", "scattered rows"), ("gathered rows", "prologue"), ("scattered rows", "order of some tiles"),
    ("groups along K", "order with words"), ("second pair", "symmetric order"),
    ("groups of rows", "gate", "gathered rows"), ("triangular operands", "order with words"),
}  # fmt: skip


@pytest.mark.parametrize(
    "parts", [pytest.param(x, marks=() if x in FIRST else pytest.mark.slow) for x in RUN], ids=" + ".join
)
def test_the_executor_and_the_proofs(parts: tuple[str, ...]) -> None:
    plan = derived(*parts)
    plan.check().require()
    assert plan.explain()
    Problem(plan, parts).check("reference")


@needs.DSL
@pytest.mark.dsl
@pytest.mark.parametrize(
    "parts",
    [pytest.param(x, marks=() if x == ("gathered rows", "prologue") else pytest.mark.slow) for x in RUN],
    ids=" + ".join,
)
def test_the_compiled_kernel_is_right_and_free_of_races(parts: tuple[str, ...]) -> None:
    Problem(derived(*parts), parts).check("emulator")
