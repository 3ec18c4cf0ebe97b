"""Groups, and K blocks with scales, by mma.sync: proven, executed and emulated."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.errors import PlanError
from layoutgemm.kernels import AlongK, IndexedRows, Prologue, Promoted, Ragged, RowIndices, Sm80Config, Sm80Plan, Table
from layoutgemm.kernels.epilogue.chain import Activation, Bias, ColumnReduce, Epilogue
from layoutgemm.kernels.operands import thread_numbers as of_blocks
from layoutgemm.kernels.operands.promoted import mainloop_of
from layoutgemm.kernels.sm80 import groups as of_groups
from tests import needs

needs_dsl = [needs.DSL, needs.C_COMPILER, pytest.mark.dsl]
SMALL = Sm80Config((16, 32), 32, 2, (1, 1))
BLOCKS = Sm80Config((16, 32), 128, 2, (1, 1))
ENDS = np.array([0, 3, 3, 33, 40], np.int32)
PARTS = list(enumerate(pairwise(ENDS.tolist())))
N, K = 24, 40


def integers(*shape: int) -> np.ndarray:
    """Small integers, whose sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-3, 4, shape).astype(np.float32)


def of_each(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of groups of rows."""
    return np.concatenate([a[first:end] @ b[e] for e, (first, end) in PARTS])


def derived(m: int = 40, k: int = K, **asked: Any) -> Sm80Plan:
    """A small plan of four groups."""
    return Sm80Plan.derive(m, N, k, **{"batch": 4, "b": "bf16:col", "c": "f32", "config": SMALL, **asked})


def case(name: str) -> tuple[Sm80Plan, np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray, Any]:
    """Plan, A, B, further operands, the product, and where it is compared."""
    a, b, every = integers(40, K), integers(4, K, N), np.s_[:]
    if name == "rows":
        return derived(ragged=Ragged.of(4)), a, b, {"offsets": ENDS}, of_each(a, b), every
    if name == "ends":
        more = np.concatenate([a, a[:9]])
        want = np.concatenate([of_each(a, b), np.zeros((9, N), np.float32)])
        return (
            derived(49, ragged=Ragged.of(4, "i64", ends=True)),
            more,
            b,
            {"ends": ENDS[1:].astype(np.int64)},
            want,
            every,
        )
    if name == "masked":
        a, counts = integers(4, 40, K), np.array([3, 0, 40, 33], np.int32)
        where = np.arange(40) < counts[:, None]
        return derived(ragged=Ragged.of(4, masked=True)), a, b, {"counts": counts}, a @ b, where
    if name == "along K":
        a, b = integers(48, 40), integers(40, N)
        want = np.stack([a[:, first:end] @ b[first:end] for _, (first, end) in PARTS])
        return derived(48, 40, a="bf16:col", b="bf16", along_k=AlongK.of(4)), a, b, {"offsets": ENDS}, want, every
    if name == "gathered and scattered":
        rows, out = np.arange(40, dtype=np.int32)[::-1] % 30, np.arange(40, dtype=np.int32) * 7 % 41
        want = np.zeros((41, N), np.float32)
        want[out] = of_each(a[:30][rows], b)
        indexed = IndexedRows(RowIndices(30), RowIndices(41))
        made = derived(ragged=Ragged.of(4), indexed=indexed)
        return made, a[:30], b, {"offsets": ENDS, "rows": rows, "out_rows": out}, want, every
    made = derived(ragged=Ragged.of(4), prologue=Prologue.of(lambda x, i, k, ops, w: x * w, w="k"))
    w = np.random.default_rng(0).integers(1, 3, (4, K)).astype(np.float32)
    want = np.concatenate([(a[f:e] * w[i]) @ b[i] for i, (f, e) in PARTS])
    return made, a, b, {"offsets": ENDS, "w": w}, want, every


CASES = ("rows", "ends", "masked", "along K", "gathered and scattered", "prologue")


@pytest.mark.parametrize("name", [pytest.param(c, marks=[pytest.mark.slow] * (c != "along K")) for c in CASES])
def test_the_executor_is_right(name: str) -> None:
    made, a, b, given, want, where = case(name)
    assert np.array_equal(made.run(a, b, given=given, device="reference").c[where], want[where])
    assert "groups       " in made.explain()


@pytest.mark.parametrize("name", [pytest.param(c, marks=[*needs_dsl, pytest.mark.slow]) for c in CASES])
def test_the_compiled_kernel_is_right_and_free_of_races(name: str) -> None:
    made, a, b, given, want, where = case(name)
    made.check().require()
    assert np.array_equal(made.run(a, b, given=given, device="emulator").c[where], want[where])


@pytest.mark.parametrize("mark", [pytest.param(0, marks=[*needs_dsl, pytest.mark.slow])])
def test_columns_of_groups_are_reduced_behind_a_bias_of_each(mark: int) -> None:
    a, b, bias = integers(40, K), integers(4, K, N), integers(4, N)
    made = derived(ragged=Ragged.of(4), epilogue=Epilogue(Bias(), ColumnReduce("sum", "sums"), Activation("relu")))
    made.check().require()
    found = made.run(a, b, given={"offsets": ENDS, "bias": bias}, device="emulator")
    want = of_each(a, b) + bias[np.repeat(range(4), np.diff(ENDS))]
    assert np.array_equal(found.c, np.maximum(want, 0))
    each = [want[first:end].sum(0) for _, (first, end) in PARTS]
    assert np.array_equal(found.written["sums"], np.stack(each))


WRONG: dict[str, Any] = {
    "a tile too few": ("row_tiles", lambda m, groups, height: m // height + groups - 1),
    "no end": ("border", lambda first, end, choose: (first, end + 1)),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_tiles_fail_their_check(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived(ragged=Ragged.of(4, masked=what == "no end"))
    monkeypatch.setattr(of_groups, *WRONG[what])
    assert [check.name for check in of_groups.group_checks(made) if not check] == ["groups"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "room": ({"ragged": Ragged.of(1), "batch": 65}, "batch = 65: Ragged.of(groups) has room for them"),
    "contiguous K": ({"along_k": AlongK.of(4)}, "a is bf16 row-major: groups begin at any line of K"),
    "persistent": (
        {"ragged": Ragged.of(4), "config": Sm80Config((32, 64), persistent=True)},
        "a persistent kernel multiplies one pair",
    ),
    "zeros": ({"ragged": Ragged.of(4, ends=True, clears=True)}, "a new result begins with zeros"),
    "rows of one matrix": (
        {"ragged": Ragged.of(4, masked=True), "indexed": IndexedRows(RowIndices(9))},
        "no kernel has masked groups and gathered rows",
    ),
    "blocks along K": (
        {"along_k": AlongK.of(4), "a": "bf16:col", "b": "bf16", "mainloop": mainloop_of(())}, "mainloop and along_k"
    ),
    "depth": ({"mainloop": mainloop_of(()), "batch": 1}, "tile_k = 32: a k tile is what is promoted at a time, 128"),
    "integers": ({"mainloop": mainloop_of(()), "batch": 1, "a": "i8", "b": "i8:col", "c": "i32"}, "sums of i32"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_obstacle(what: str) -> None:
    asked, said = REFUSED[what]
    with pytest.raises(PlanError) as refused:
        derived(**asked)
    assert said in str(refused.value)


def test_every_architecture_takes_groups_by_its_kernel() -> None:
    asked: dict[str, Any] = {"batch": 8, "b": "bf16:col", "ragged": Ragged.of(8)}
    found = [plan(256, 256, 128, arch=arch, **asked) for arch in ("a100", "rtx-4090", "rtx-5090", "h100", "b200")]
    assert [type(each).__name__ for each in found] == ["Sm80Plan"] * 3 + ["Sm90Plan", "Sm100Plan"]
    assert plan(256, 256, 128, arch="b200", config=Sm80Config((64, 64), warps=(2, 2)), **asked).arch.name == "sm_100a"


# ------------------------------------------------------------------------------------------------------------- K blocks


def scales(*shape: int) -> np.ndarray:
    """Powers of two: products stay exact."""
    return (2.0 ** np.random.default_rng(len(shape)).integers(-2, 3, shape)).astype(np.float32)


def blocks_case(name: str) -> tuple[Sm80Plan, np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """A product with scales of 128 of K: plan, A, B, further operands and the result."""
    m, k = 40, 144
    asked: dict[str, Any] = {"arch": "sm_89", "a": "e4m3", "b": "e4m3:col", "config": BLOCKS, "batch": 1}
    loop = mainloop_of((1, 128))
    if name == "groups":
        a, b, of_a, of_b = integers(m, k), integers(4, k, N), scales(m, 2), scales(4, 1, 2)
        want = np.concatenate([
            loop.reference(a[f:e], b[i], scale_a=of_a[f:e], scale_b=of_b[i]) for i, (f, e) in PARTS
        ])  # fmt: skip
        made = derived(m, k, **{**asked, "batch": 4, "ragged": Ragged.of(4), "mainloop": loop})
        return made, a, b, {"scale_a": of_a, "scale_b": of_b, "offsets": ENDS}, want
    if name == "columns of a batch":
        loop = mainloop_of((1, 1))
        a, b, of_a, of_b = integers(2, m, k), integers(2, k, N), scales(2, m, 2), scales(2, N, 2)
        made = derived(m, k, **{**asked, "batch": 2, "mainloop": loop})
        return made, a, b, {"scale_a": of_a, "scale_b": of_b}, loop.reference(a, b, scale_a=of_a, scale_b=of_b)
    a, b, of_a, of_b = integers(m, k), integers(k, 2 * N), scales(m, 2), scales(1, 2)
    made = derived(m, k, **{**asked, "mainloop": loop, "gated": "relu"})
    gate, up = np.split(loop.reference(a, b, scale_a=of_a, scale_b=of_b), 2, axis=1)
    return made, a, b, {"scale_a": of_a, "scale_b": of_b}, np.maximum(gate, 0) * up


@pytest.mark.parametrize(
    "name", ["groups", *[pytest.param(c, marks=pytest.mark.slow) for c in ("columns of a batch", "gate")]]
)
def test_k_blocks_are_promoted_with_their_scales(name: str) -> None:
    made, a, b, given, want = blocks_case(name)
    assert np.array_equal(made.run(a, b, given=given, device="reference").c, want.astype(np.float32))
    assert "main loop    total = total + ((scale_a * scale_b) * product)" in made.explain()


@pytest.mark.parametrize(
    "name",
    [pytest.param(c, marks=[*needs_dsl, pytest.mark.slow]) for c in ("groups", "columns of a batch", "gate")],
)  # fmt: skip
def test_the_compiled_promotion_is_right_and_free_of_races(name: str) -> None:
    made, a, b, given, want = blocks_case(name)
    made.check().require()
    assert np.array_equal(made.run(a, b, given=given, device="emulator").c, want.astype(np.float32))


def test_a_number_of_another_column_fails_its_check(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = Promoted.of(lambda total, x, s: total + s * x, Table("s", "n", 16))
    made = derived(40, 144, arch="sm_89", a="e4m3", b="e4m3:col", config=BLOCKS, batch=1, mainloop=loop)
    assert of_blocks.number_checks(made)[0]
    monkeypatch.setattr(of_blocks, "gcd", lambda *x: 32)
    failed = [check for check in of_blocks.number_checks(made) if not check]
    assert [check.name for check in failed] == ["numbers"] and "s: lane" in failed[0].witness
