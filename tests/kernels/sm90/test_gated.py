"""Gated products: both halves of B's tile from one matrix, a gate and what it multiplies in one thread, C of half."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan, error_bound
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, Scale
from layoutgemm.kernels.epilogue.numpy_math import Math
from layoutgemm.kernels.operands.gated import Gated, as_one_matrix
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.choose.scaled_grouped import grouped_config
from tests import needs
from tests.kernels.sm90.other_orders import SOON, stored_in_order

needs_dsl = needs.DSL
SMALL = Sm90Config((64, 64), consumers=1, stages=2)
SIZES = (72, 88, 136)  # ragged along each: 88 columns are a tile of 32 and a part of one, twice
FORMS = {
    "plain": (SMALL, "f32"),
    "bf16": (Sm90Config((128, 128), stages=2), "bf16"),
    "sixteen": (replace(SMALL, tile=(64, 16)), "bf16"),
    "columns": (SMALL, "bf16:col"),
    "direct": (replace(SMALL, store="direct"), "f32"),
    "pair": (replace(SMALL, cluster=(2, 1)), "bf16"),
    "across": (replace(SMALL, cluster=(1, 2), tile_k=128), "f16"),
    "pingpong": (Sm90Config((64, 96), schedule="pingpong", loader="warpgroup", stages=2), "bf16"),
    "early": (Sm90Config((256, 64), staged_epilogue_k_tiles=1, chunks=1, buffers=2, stages=2), "bf16"),
    "rows": (replace(SMALL, loaded_a_rows=8, one_tile_per_cluster=True), "bf16"),
    "parts": (replace(SMALL, loaded_a_rows=8, one_tile_per_cluster=True, split=2, loader="warp"), "bf16"),
    "four parts": (replace(SMALL, one_tile_per_cluster=True, split=4, loader="warp", store="direct"), "f32"),
}
EMULATED = ("plain", "pair", "pingpong", "direct", "parts", "four parts")


def integers(shape: tuple[int, ...], seed: int, most: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).integers(-most, most + 1, shape).astype(np.float32)


def product(a: np.ndarray, w: np.ndarray, kind: str = "relu") -> np.ndarray:
    """The gated product from the definition: w is (2H, K)."""
    gate, up = np.split(w.astype(np.float64), 2)
    return Gated(kind).apply([(a @ w.T).astype(np.float32) for w in (gate, up)], Math)


def problem(form: str, kind: str = "relu") -> tuple[Sm90Plan, np.ndarray, np.ndarray]:
    config, c = FORMS[form]
    m, n, k = SIZES if config.loaded_a_rows is None else (config.loaded_a_rows, *SIZES[1:])
    plan = Sm90Plan.derive(m, n, k, b="bf16:col", c=c, config=config, gated=kind)
    return plan, integers((m, k), 1, 1), integers((2 * n, k), 2, 1)


def test_a_batch_is_exact_and_the_checks_hold() -> None:
    m, n, k = SIZES
    plan = Sm90Plan.derive(m, n, k, batch=3, b="bf16:col", c="f32", config=SMALL, gated="relu")
    plan.check().require()
    a, w = integers((3, m, k), 1, 1), integers((3, 2 * n, k), 2, 1)
    want = np.stack([product(x, y) for x, y in zip(a, w, strict=True)])
    assert np.array_equal(plan.run(a, w.swapaxes(1, 2), device="reference").c, want)


def rounded(plan: Sm90Plan, values: np.ndarray) -> np.ndarray:
    return np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(values)))


@pytest.mark.parametrize("form", FORMS)
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, w = problem(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, w.T, device="reference").c, rounded(plan, product(a, w)))


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", EMULATED)
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, w = problem(form)
    assert np.array_equal(plan.run(a, w.T, device="emulator").c, rounded(plan, product(a, w)))


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("kind", ["silu", "gelu"])
def test_functions_are_within_their_bound(kind: str) -> None:
    plan, a, w = problem("plain", kind)
    a, w = a / 4, w / 4
    want = product(a, w, kind)
    for device in ("reference", "emulator"):
        found = plan.run(a, w.T, device=device).c
        assert np.all(np.abs(found - want) <= 3e-6 * np.abs(want) + 3e-6), device
        assert np.abs(want).max() > 1


@needs_dsl
@pytest.mark.dsl
def test_an_epilogue_comes_after_the_gate() -> None:
    from tests.kernels.epilogue.test_chain import emulate

    m, n, k = SIZES
    epilogue = Epilogue(Scale(), Bias())
    plan = Sm90Plan.derive(m, n, k, b="bf16:col", c="f32", config=SMALL, gated="relu", epilogue=epilogue)
    a, w = integers((m, k), 1, 1), integers((2 * n, k), 2, 1)
    given: dict[str, Any] = {"alpha": 0.5, "bias": integers((n,), 3)}
    found, _ = emulate(plan, given, product(a, w), (a, w.T))
    assert np.array_equal(found, epilogue.reference(product(a, w), **given).c)


# ---------------------------------------------------------------------------------------------------- groups of rows

# Configuration, types of A, B and C, rows of each group, and whether these are counts of masked groups.
GROUPS: dict[str, tuple[Sm90Config, str, str, str, tuple[int, ...], bool]] = {
    "rows": (SMALL, "bf16", "bf16:col", "bf16", (0, 70, 1, 64, 0, 15), False),
    "pair": (replace(SMALL, cluster=(2, 1), loader="warpgroup"), "bf16", "bf16:col", "f32", (70, 0, 33), False),
    "masked": (replace(SMALL, cluster=(1, 2), loader="warp"), "f16", "f16:col", "f16", (90, 0, 3, 64), True),
    "one masked": (SMALL, "e4m3", "e4m3:col", "bf16", (66,), True),
    "early": (
        Sm90Config((256, 64), staged_epilogue_k_tiles=1, stages=2),
        "bf16",
        "bf16:col",
        "bf16",
        (300, 0, 1),
        False,
    ),
    "halves": (
        Sm90Config((128, 64), stages=2, cluster=(2, 1), turn_last_pair=True, halve_last_round=True),
        "bf16",
        "bf16:col",
        "bf16",
        (200, 0, 129),
        True,
    ),
}
Grouped = tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray]


def of_groups(form: str, kind: str = "relu") -> Grouped:
    """A plan, A and B, the groups, and C: of masked groups NaN in rows that do not count."""
    config, a_type, b_type, c_type, rows, masked = GROUPS[form]
    groups, m, (n, k) = len(rows), max(rows) if masked else sum(rows), SIZES[1:]
    plan = Sm90Plan.derive(
        m, n, k, batch=groups, a=a_type, b=b_type, c=c_type, config=config, gated=kind,
        ragged=Ragged.of(groups, "i32", masked),
    )  # fmt: skip
    w = integers((groups, 2 * n, k), 2, 1)
    a = integers((groups, m, k) if masked else (m, k), 1, 1)
    ends = np.cumsum([0, *rows])
    if not masked:
        given = {"offsets": ends.astype(np.int32)}
        want = np.concatenate([product(a[ends[e] : ends[e + 1]], w[e], kind) for e in range(groups)])
        return plan, a, w.swapaxes(1, 2), given, rounded(plan, want)
    want = rounded(plan, np.stack([product(a[e], w[e], kind) for e in range(groups)]))
    want[np.arange(m)[None, :] >= np.asarray(rows)[:, None]] = np.nan
    which = slice(None) if groups > 1 else 0  # one masked group's plan has no batch
    return plan, a[which], w.swapaxes(1, 2)[which], {"counts": np.asarray(rows, np.int32)}, want[which]


@pytest.mark.parametrize("form", GROUPS)
def test_groups_are_exact_and_the_checks_hold(form: str) -> None:
    plan, a, b, given, want = of_groups(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=given, device="reference").c, want, equal_nan=True)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "form", [pytest.param(x, marks=[pytest.mark.slow] * (x in ("pair", "early", "halves"))) for x in GROUPS]
)
def test_compiled_groups_are_exact(form: str) -> None:
    plan, a, b, given, want = of_groups(form)
    assert np.array_equal(plan.run(a, b, given=given, device="emulator").c, want, equal_nan=True)


@needs_dsl
@pytest.mark.dsl
def test_groups_in_another_order_of_events() -> None:
    plan, a, b, given, want = of_groups("rows")
    found = stored_in_order(plan, a, b, given, SOON)
    assert np.array_equal(plan.c.dtype.decode(found), want)


@needs_dsl
@pytest.mark.dsl
def test_kernels_of_chosen_groups_have_no_local_memory() -> None:
    for rows in (192, 8192):
        config = grouped_config(rows, 8192)
        plan = Sm90Plan.derive(
            8 * rows, 3072, 4096, batch=8, b="bf16:col", config=config, ragged=Ragged.of(8), gated="silu"
        )
        compiled = plan.compile()
        assert compiled.sass().local_memory == () and compiled.resources.local_bytes == 0


def test_groups_that_meet_the_wrong_half_are_found() -> None:
    plan = of_groups("rows")[0]
    assert plan.b.tma.dims == ("k", "n", "half", "l")
    (copy,) = plan.b.tma.instructions
    assert "copy B" in broken(plan, instructions=(replace(copy, coord_offset=(0, 0, 1, 0)),))
    assert "copy B" in broken(plan, dims=("k", "n", "l", "half"))
    whole = as_one_matrix(plan.b)
    assert whole.tma.dims == ("k", "n", "l") and whole.tma.box == (64, 32, 1)


def test_integers_are_gated_as_floats() -> None:
    m, n, k = 40, 24, 64
    plan = Sm90Plan.derive(m, n, k, a="i8", b="i8:col", c="f32", config=SMALL, gated="relu")
    a, w = integers((m, k), 1), integers((2 * n, k), 2)
    found = plan.run(a.astype(np.int8), w.T.astype(np.int8), device="reference").c
    assert np.array_equal(found, product(a, w))


def broken(plan: Sm90Plan, **changes: Any) -> str:
    """Names of the failed checks of a plan with a changed field of B's copies."""
    report = replace(plan, b=replace(plan.b, tma=replace(plan.b.tma, **changes))).check()
    return ", ".join(check.name for check in report if not check)


def test_wrong_plans_are_found() -> None:
    plan, a, w = problem("pair")
    copies = plan.b.tma.instructions
    assert [copy.coord_offset for copy in copies] == [(0, 0, 0), (0, 0, 1)]  # each of the pair sends a half to both
    twice = tuple(replace(copy, coord_offset=(0, 0, 0)) for copy in copies)
    assert "copy B" in broken(plan, instructions=twice)
    assert "copy B" in broken(plan, instructions=tuple(replace(c, smem_offset=c.smem_offset + 128) for c in copies))
    whole = Sm90Plan.derive(72, 88, 136, b="bf16:col", config=SMALL)  # its halves are neighbours, not H lines apart
    other = problem("plain")[0]
    assert "copy B" in broken(other, instructions=whole.b.tma.instructions, dims=("k", "n"), box=whole.b.tma.box)
    store = replace(other, store=whole.store)
    assert not store.check() and "columns of C" in str([c.name for c in store.check() if not c])
    wide = Sm90Plan.derive(72, 88, 136, b="bf16:col", config=replace(SMALL, tile=(64, 128)))
    assert "gated" in [check.name for check in replace(other, mma=wide.mma).check() if not check]
    with pytest.raises(PlanError):  # fewer bytes land than the barrier waits for
        half = replace(plan.b, tma=replace(plan.b.tma, instructions=copies[:1]))
        replace(plan, b=half).run(a, w.T, device="reference")


def test_refusals() -> None:
    def derive(**given: Any) -> Sm90Plan:
        return Sm90Plan.derive(64, 64, 64, **{"b": "bf16:col", "config": SMALL, "gated": "silu", **given})

    for given, text in (
        ({"gated": "mish"}, "gated = 'mish': known are relu"),
        ({"b": "bf16"}, r"b is bf16 row-major: .* one \(2H, K\) matrix"),
        ({"a": "i8", "b": "i8:col"}, "c is i32, and a gated product is computed in f32"),
        ({"config": Sm90Config((64, 24), consumers=1)}, "24 columns, half of them the gate's: a multiple of 16"),
        ({"config": replace(SMALL, one_tile_per_cluster=True, split=8)}, "and K in 8 parts: a multiple of 128"),
    ):
        with pytest.raises(PlanError, match=text):
            derive(**given)
    plan = derive()
    with pytest.raises(OperandError, match=r"b has shape \(64, 64\), the plan takes \(64, 128\)"):
        plan.run(np.ones((64, 64), np.float32), np.ones((64, 64), np.float32))
    with pytest.raises(PlanError, match="gated by silu"):
        error_bound(plan, np.ones((64, 64)), np.ones((64, 128)))


def test_the_explanation_names_the_gate() -> None:
    plan = problem("plain", "silu")[0]
    assert plan.tiles == (2, 3) and plan.tile_c == (64, 32)
    assert str(plan).endswith("gated by silu")
    assert "value v of a thread becomes silu(value v) * value v + 16, for v < 16" in plan.explain()
    one = as_one_matrix(plan.b).tma
    one.check_global("b", 0, (136, 176), (136,))
    assert one.dims == ("k", "n") and as_one_matrix(plan.a) is plan.a


# n is C's; of B there are twice as many columns
CHOSEN = [
    # m, n, k, A        tile, cluster, schedule or rows
    ((4096, 14336, 4096, "bf16"), ((256, 208), (1, 2), "cooperative")),
    ((512, 14336, 4096, "bf16"), ((256, 224), (2, 1), "cooperative")),
    ((4096, 14336, 4096, "i8"), ((128, 192), (2, 1), "pingpong")),
    ((4096, 14336, 4096, "e4m3"), ((256, 208), (1, 2), "cooperative")),
    ((1, 14336, 4096, "bf16"), ((64, 224), (1, 1), 8)),
    ((16, 14336, 4096, "f16"), ((64, 224), (1, 1), 16)),
    ((64, 1000, 4096, "tf32"), ((64, 32), (1, 1), None)),
    ((64, 1000, 4096, "u8"), ((64, 32), (1, 1), None)),
    ((100, 24, 64, "bf16"), ((128, 64), (1, 1), "cooperative")),
    ((300, 8, 4096, "bf16"), ((64, 64), (1, 1), "cooperative")),
]


@pytest.mark.parametrize(("given", "want"), CHOSEN, ids=lambda x: "x".join(map(str, x)))
def test_the_choice_has_halves_that_the_instruction_has(given: Any, want: Any) -> None:
    *sizes, a = given
    choice, why = choose(*sizes, a=a, gated="silu")
    config = choice.config
    assert (config.tile, config.cluster, config.loaded_a_rows if sizes[0] <= 64 else config.schedule) == want
    assert not choice.swapped and why.endswith(f"gated: {config.tile[1] // 2} columns of C from {config.tile[1]} of B")
    plan = choice.plan(*sizes, a=a, b=f"{a}:col", c="bf16", gated="silu")
    assert plan.tile_c == (config.tile[0], config.tile[1] // 2)
    assert (choice, why) == choose(*sizes, a=a, gated=Gated("silu"))  # of its arguments alone


def test_every_gated_tile_that_may_be_chosen_is_derived() -> None:
    """Widths whose half is no width of the instruction are left out: 208 is one of floats, and none of integers."""
    found = set()
    for a in ("bf16", "e4m3", "i8", "tf32"):
        for n in (8, 40, 104, 300, 1000, 2500, 5000, 14336):
            for m in (1, 17, 64, 65, 130, 600, 3000):
                choice, _ = choose(m, n, 2048, a=a, gated="gelu")
                choice.plan(m, n, 2048, a=a, b=f"{a}:col", c="f32", gated="gelu")
                found.add((a == "i8", choice.config.tile[1]))
    assert len(found) > 12 and not any(integer and width % 32 for integer, width in found)
    assert (False, 208) in found


def test_configurations_for_other_products_are_refused() -> None:
    for given, text in (
        ({"b_major": "MN"}, "b_major = 'MN': gated by silu"),
        ({"gated": "mish"}, "known are relu"),
    ):
        with pytest.raises(PlanError, match=text):
            choose(64, 64, 64, **{"gated": "silu", **given})
    with pytest.raises(PlanError, match="operands that change places"):
        Sm90Choice(SMALL, swapped=True).plan(64, 64, 64, b="bf16:col", gated="silu")
