"""Groups, their block scales, and K blocks with scales, by tcgen05: proven, executed and emulated."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm import plan
from layoutgemm.errors import PlanError
from layoutgemm.kernels import AlongK, IndexedRows, Ragged, RowIndices, Sm100Config, Sm100Plan
from layoutgemm.kernels.epilogue.chain import Bias, ColumnReduce, Epilogue
from layoutgemm.kernels.grouped import stores as of_stores
from layoutgemm.kernels.operands.promoted import mainloop_of
from layoutgemm.kernels.sm100 import scale_checks
from layoutgemm.kernels.sm100.choose import choose_sm100
from tests import needs

needs_dsl = [needs.DSL, needs.C_COMPILER, pytest.mark.dsl]
ONE, PAIR, SCALED = (Sm100Config(tile, stages=3) for tile in ((128, 32), (256, 64), (128, 128)))
ENDS = np.array([0, 3, 3, 133, 140, 200], np.int32)
PARTS = list(enumerate(pairwise(ENDS.tolist())))
M, N, K = 200, 40, 136
VECTORS = {"mxfp8": ("e4m3", 32), "nvfp4": ("e2m1", 16)}


def integers(*shape: int) -> np.ndarray:
    """Small integers that every type has; their sums are exact."""
    return np.random.default_rng(sum(shape)).integers(-2, 3, shape).astype(np.float32)


def powers(*shape: int) -> np.ndarray:
    """Powers of two, as scales."""
    return (2.0 ** np.random.default_rng(sum(shape)).integers(-2, 3, shape)).astype(np.float32)


def of_each(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of groups of rows."""
    return np.concatenate([a[first:end] @ b[e] for e, (first, end) in PARTS])


def derived(m: int = M, k: int = K, **asked: Any) -> Sm100Plan:
    """A plan of five groups with small tiles."""
    return Sm100Plan.derive(m, N, k, **{"batch": 5, "b": "bf16:col", "c": "f32", "config": ONE, **asked})


Case = tuple[Sm100Plan, np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray, Any]


def of_rows_case(name: str) -> Case:
    """Groups of rows."""
    a, b, every, given = integers(M, K), integers(5, K, N), np.s_[:], {"offsets": ENDS}
    if name == "masked":
        a, counts = integers(5, M, K), np.array([3, 0, 200, 133, 128], np.int32)
        where = np.arange(M) < counts[:, None]
        return derived(ragged=Ragged.of(5, masked=True)), a, b, {"counts": counts}, a @ b, where
    want = of_each(a, b)
    if name == "ends":
        more, ends = np.concatenate([a, a[:9]]), ENDS[1:].astype(np.int64)
        made = derived(M + 9, ragged=Ragged.of(5, "i64", ends=True))
        return made, more, b, {"ends": ends}, want, np.s_[:M]
    if name == "gathered and scattered":
        rows, out = np.random.default_rng(0).permutation(M).astype(np.int32), np.arange(M)[::-1] + 4
        mixed, placed = np.empty_like(a), np.zeros((M + 4, N), np.float32)
        mixed[rows], placed[out] = a, want
        made = derived(ragged=Ragged.of(5), indexed=IndexedRows(RowIndices(M), RowIndices(M + 4, "i64")))
        return made, mixed, b, {**given, "rows": rows, "out_rows": out}, placed, out
    return derived(ragged=Ragged.of(5), config=PAIR if name == "rows, a pair" else ONE), a, b, given, want, every


def along_k_case(name: str) -> Case:
    """Groups along K: at any line of bf16 and of e4m3, and in blocks of 128 of e4m3."""
    blocks = name == "along K in blocks"
    ends = np.array([0, 0, 128, 128, 256, 300] if blocks else [0, 3, 3, 70, 70, 140], np.int32)
    k, kind = int(ends[-1]), "e4m3" if "e4m3" in name or blocks else "bf16"
    a, b = integers(150, k), integers(k, N)
    want = np.stack([a[:, first:end] @ b[first:end] for first, end in pairwise(ends.tolist())])
    orders = {"a": kind, "b": f"{kind}:col"} if blocks else {"a": f"{kind}:col", "b": kind}
    groups = AlongK.of(5, multiple=128 if blocks else 1)
    made = derived(150, k, along_k=groups, config=PAIR if "pair" in name else ONE, **orders)
    return made, a, b, {"offsets": ends}, want, np.s_[:]


def scaled_case(name: str) -> Case:
    """Block scales of groups of rows; K blocks with scales of 1 x 128 and 128 x 128, of 1 x 128 each."""
    form, a, b = name.partition(" ")[0], integers(M, 320), integers(5, 320, N)
    if form in VECTORS:
        kind, vector = VECTORS[form]
        masked, blocks = name.endswith("masked"), 320 // vector
        a = integers(5, M, 320) if masked else a
        scale_a, scale_b = powers(*a.shape[:-1], blocks), powers(5, N, blocks)
        counts, types = np.array([3, 0, 200, 133, 128], np.int32), {"a": kind, "b": f"{kind}:col", "scales": form}
        made = derived(k=320, ragged=Ragged.of(5, masked=masked), config=SCALED, **types)
        wide = a * np.repeat(scale_a, vector, -1), b * np.repeat(scale_b, vector, -1).swapaxes(1, 2)
        given = {"counts" if masked else "offsets": counts if masked else ENDS, "scale_a": scale_a, "scale_b": scale_b}
        where = np.arange(M) < counts[:, None] if masked else np.s_[:]
        return made, a, b, given, wide[0] @ wide[1] if masked else of_each(*wide), where
    each, groups = name.endswith("each column"), name.startswith("groups")
    loop = mainloop_of((1, 1 if each else 128))
    front, lines = (5,) if groups else (), N if each else 1
    scale_a, scale_b = powers(M, 3), powers(*front, lines, 3)
    wide = a * np.repeat(scale_a, 128, -1)[:, :320]
    across = np.repeat(np.broadcast_to(scale_b, (*front, N, 3)) if not each else scale_b, 128, -1)[..., :320]
    b = b if groups else b[0]
    right = b * across.swapaxes(-1, -2)
    asked = {"ragged": Ragged.of(5)} if groups else {"batch": 1}
    config = PAIR if name.startswith("pair") else ONE
    made = derived(k=320, a="e4m3", b="e4m3:col", mainloop=loop, config=config, **asked)
    given = {"scale_a": scale_a, "scale_b": scale_b} | ({"offsets": ENDS} if groups else {})
    return made, a, b, given, of_each(wide, right) if groups else wide @ right, np.s_[:]


CASES = {
    **dict.fromkeys(("rows", "rows, a pair", "masked", "ends", "gathered and scattered"), of_rows_case),
    **dict.fromkeys(("along K", "along K, a pair", "along K, e4m3", "along K in blocks"), along_k_case),
    **dict.fromkeys(("mxfp8", "nvfp4", "nvfp4 masked"), scaled_case),
    **dict.fromkeys(("128x128", "pair, 128x128", "groups, 128x128", "each column"), scaled_case),
}


@pytest.mark.parametrize("name", [pytest.param(c, marks=pytest.mark.slow) for c in CASES])
def test_the_executor_is_right(name: str) -> None:
    made, a, b, given, want, where = CASES[name](name)
    made.check().require()
    assert np.array_equal(made.run(a, b, given=given, device="reference").c[where], want[where])


@pytest.mark.parametrize("name", [pytest.param(c, marks=[*needs_dsl, pytest.mark.slow]) for c in CASES])
def test_the_compiled_kernel_is_right_and_free_of_races(name: str) -> None:
    made, a, b, given, want, where = CASES[name](name)
    assert np.array_equal(made.run(a, b, given=given, device="emulator").c[where], want[where])


@pytest.mark.parametrize("mark", [pytest.param(0, marks=[*needs_dsl, pytest.mark.slow])])
def test_columns_of_groups_are_reduced_behind_a_bias_of_each(mark: int) -> None:
    a, b, bias = integers(M, K), integers(5, K, N), integers(5, N)
    made = derived(ragged=Ragged.of(5), epilogue=Epilogue(Bias(), ColumnReduce("sum", "sums")))
    made.check().require()
    found = made.run(a, b, given={"offsets": ENDS, "bias": bias}, device="emulator")
    want = of_each(a, b) + bias[np.repeat(range(5), np.diff(ENDS))]
    assert np.array_equal(found.c, want)
    assert np.array_equal(found.written["sums"], np.stack([want[first:end].sum(0) for _, (first, end) in PARTS]))


@pytest.mark.parametrize("mark", [pytest.param(0, marks=[*needs_dsl, pytest.mark.slow])])
def test_a_group_that_ends_inside_of_a_block_is_nan(mark: int, monkeypatch: pytest.MonkeyPatch) -> None:
    made, a, b, _, want, _ = along_k_case("along K in blocks")
    monkeypatch.setattr(AlongK, "take", lambda self, numbers, sizes: np.asarray(numbers, np.int64))
    given = {"offsets": np.array([0, 0, 128, 128, 200, 300], np.int32)}
    for device in ("reference", "emulator"):
        found = made.run(a, b, given=given, device=device).c
        assert np.isnan(found[3:]).all() and np.array_equal(found[:3], want[:3])


def test_wrong_tiles_ends_and_chunks_fail_their_check(monkeypatch: pytest.MonkeyPatch) -> None:
    made = derived(ragged=Ragged.of(5))
    place = of_stores.store_place
    monkeypatch.setattr(of_stores, "store_place", lambda row, end, *of: place(row, end + 1, *of))
    assert not of_stores.ends_check(made)
    monkeypatch.undo()
    scaled = scaled_case("mxfp8")[0]
    assert scale_checks.scale_checks(scaled)[1]
    monkeypatch.setattr(scale_checks, "first_chunks", lambda plan, row, start, before, columns: row // 128)
    wrong = scale_checks.scale_checks(scaled)[1]
    assert not wrong and "loads chunks" in str(wrong.witness)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "room": ({"ragged": Ragged.of(1), "batch": 65}, "batch = 65: Ragged.of(groups) has room for them"),
    "columns of C": ({"ragged": Ragged.of(5), "c": "f32:col"}, "c is f32 col-major: groups end between rows"),
    "columns of A": ({"ragged": Ragged.of(5), "a": "bf16:col"}, "a is bf16 col-major: groups begin at any row"),
    "zeros": ({"ragged": Ragged.of(5, ends=True, clears=True)}, "a new result begins with zeros"),
    "contiguous K": ({"along_k": AlongK.of(5)}, "a is bf16 row-major: groups begin at any line of K"),
    "tf32": (
        {"along_k": AlongK.of(5), "a": "tf32", "b": "tf32:col"}, "tcgen05.mma reads tf32 with K contiguous alone"
    ),
    "blocks along K": (
        {"along_k": AlongK.of(5), "a": "bf16:col", "b": "bf16", "mainloop": mainloop_of(())}, "mainloop and along_k"
    ),
    "depth": (
        {"mainloop": mainloop_of(()), "config": Sm100Config((128, 32), tile_k=64)}, "tile_k = 64: a k tile is what is"
    ),
    "pairs of CTAs": (
        {"ragged": Ragged.of(5), "a": "e4m3", "b": "e4m3:col", "scales": "mxfp8", "config": Sm100Config((256, 128))},
        "a tile of 256 rows: factors of groups of rows lie in chunks of 128 rows",
    ),
    "two scales": (
        {"a": "e4m3", "b": "e4m3:col", "scales": "mxfp8", "mainloop": mainloop_of((1, 128)), "config": SCALED},
        "mainloop: no kernel has it with block scales",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_refusals_name_the_obstacle(what: str) -> None:
    asked, said = REFUSED[what]
    with pytest.raises(PlanError) as refused:
        derived(**asked)
    assert said in str(refused.value)


def test_the_rule_takes_rows_of_a_group_and_columns_that_fit() -> None:
    loops = [mainloop_of((1, group)) for group in (128, 1)]
    assert [choose_sm100(4096, 4096, mainloop=loop)[0].tile for loop in loops] == [(256, 128), (128, 32)]
    groups = {"batch": 64, "ragged": Ragged.of(64)}
    assert [choose_sm100(8192, 4096, scaled=scaled, **groups)[0].tile for scaled in (False, True)] == [
        (128, 256), (128, 128),
    ]  # fmt: skip
    made = plan(8192, 4096, 7168, arch="b200", a="e4m3", b="e4m3:col", mainloop=loops[0], **groups)
    assert "promoted" in str(made) and all(x in made.explain() for x in ("main loop", "first rows and first tiles"))
