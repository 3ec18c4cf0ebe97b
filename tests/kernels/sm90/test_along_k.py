"""Groups along K: K tiles that begin with their group, whose ends the device alone knows."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import AlongK, Sm90Config, Sm90Plan
from layoutgemm.kernels.derive import padded_leading
from layoutgemm.kernels.epilogue.chain import Epilogue, Scale
from layoutgemm.kernels.grouped import along_k as module
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.sm90.mainloop import Promoted
from tests import needs
from tests.kernels.sm90.other_orders import each_policy, stored_in_order

needs_dsl = needs.DSL
SLOW = [pytest.mark.slow]
LOADER = Sm90Config((64, 64), consumers=1, stages=3, loader="warp")
SELF = replace(LOADER, loader="self")
SIZES = (0, 70, 0, 1, 64, 33, 0, 130)
# Configuration, type of A and B, type and order of C, lines of each group.
FORMS: dict[str, tuple[Sm90Config, str, str, tuple[int, ...]]] = {
    "loader": (LOADER, "bf16", "bf16", SIZES),
    "self": (SELF, "f16", "f32", SIZES),
    "two": (Sm90Config((128, 64), chunks=1, buffers=2, stages=2), "f16", "f16", (130, 0, 257, 3)),
    "pair": (replace(LOADER, cluster=(2, 1), loader="warpgroup"), "bf16", "bf16:col", SIZES),
    "across": (replace(LOADER, tile=(128, 64), consumers=2, cluster=(1, 2)), "bf16", "f16", (65, 2, 0, 100)),
    "narrow": (Sm90Config((64, 72), consumers=1, stages=2, loader="warp"), "bf16", "bf16", (63, 0, 66)),
    "early": (
        Sm90Config((256, 64), staged_epilogue_k_tiles=2, stages=3, loader="warp"),
        "bf16",
        "bf16",
        (200, 0, 1, 128),
    ),
    "halves": (replace(SELF, staged_epilogue_k_tiles=1), "bf16", "bf16", (64, 5, 0)),
    "deep": (replace(LOADER, tile_k=32, along="N"), "bf16", "bf16", (31, 0, 33, 64)),
    "threads store": (replace(LOADER, store="direct"), "bf16", "bf16", (70, 0, 9)),
    "one": (SELF, "bf16", "f32", (75,)),
}
M, N = 136, 88


Problem = tuple[Sm90Plan, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def problem(form: str, kind: str = "i32") -> Problem:
    config, of, c_type, sizes = FORMS[form]
    groups, k = len(sizes), sum(sizes)
    plan = Sm90Plan.derive(
        M, N, k, batch=groups, a=f"{of}:col", b=f"{of}:row", c=c_type, config=config, along_k=AlongK.of(groups, kind)
    )
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((M, k), (k, N)))
    offsets = np.cumsum([0, *sizes]).astype(np.int32 if kind == "i32" else np.int64)
    want = np.stack([a[:, s:e].astype(np.float64) @ b[s:e] for s, e in pairwise(offsets)])
    want = np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(want.astype(np.float32))))
    return plan, a, b, offsets, want if groups > 1 else want[0]


@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x in ("two", "early", "across"))) for x in FORMS])
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, b, offsets, want = problem(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given={"offsets": offsets}, device="reference").c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, b, offsets, want = problem(form, "i64" if form == "pair" else "i32")
    assert np.array_equal(plan.run(a, b, given={"offsets": offsets}, device="emulator").c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["loader", pytest.param("self", marks=SLOW), pytest.param("pair", marks=SLOW)])
@each_policy
def test_in_other_orders_of_events(form: str, policy: Policy) -> None:
    plan, a, b, offsets, want = problem(form)
    found = stored_in_order(plan, a, b, {"offsets": offsets}, policy)
    assert np.array_equal(plan.c.dtype.decode(found), want)


def launched(
    offsets: tuple[int, ...], k: int, config: Sm90Config, unread: list[int], ends: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """The bits of C of each group, and of the operands' NumPy product; lines `unread` of both are NaN.

    ends  whether the kernel reads the offsets without the first
    """
    groups = len(offsets) - 1
    plan = Sm90Plan.derive(
        M, N, k, batch=groups, a="bf16:col", b="bf16:row", config=config, along_k=AlongK.of(groups, ends=ends)
    )
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((k, M), (k, N)))
    a[unread], b[unread] = np.nan, np.inf
    leading = [padded_leading(plan.a.dtype, size) + 8 for size in (M, N)]
    bits = [np.full((k, pitch), 0x7FC0, np.uint16) for pitch in leading]
    c = np.full((groups, M + 1, N + 8), 0xFFFF, np.uint16)
    want = c.copy()
    for lying, x in zip(bits, (a, b), strict=True):
        lying[:, : x.shape[1]] = plan.a.dtype.encode(x)
    with np.errstate(invalid="ignore"):
        for e, (first, end) in enumerate(pairwise(np.clip(offsets, 0, k))):
            want[e, :M, :N] = plan.c.dtype.encode(a[first:end].T @ b[first:end])
    sizes = (M, N, k, groups, *leading, N + 8, 0, 0, (M + 1) * (N + 8), 2)
    done = emulate_launch(plan, (*bits, c, *sizes, np.asarray(offsets[ends:], np.int32), *[0] * 15), progress=False)
    assert not done.findings, done.report()
    return c, want


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("config", [LOADER, pytest.param(SELF, marks=SLOW)], ids=["loader", "self"])
def test_no_group_reads_lines_of_another(config: Sm90Config) -> None:
    """Lines of no group, before, between and behind, are NaN and infinity in both operands."""
    offsets = (3, 70, 70, 71, 135)
    c, want = launched(offsets, 150, config, [*range(3), *range(135, 150)])
    assert np.array_equal(c, want)


@needs_dsl
@pytest.mark.dsl
def test_ends_are_read_behind_a_zero() -> None:
    """Two groups are empty, and the last lines are in no group and NaN."""
    c, want = launched((0, 0, 70, 70, 135), 150, LOADER, [*range(135, 150)], ends=True)
    assert np.array_equal(c, want)


def test_ends_are_checked_and_executed() -> None:
    plan, a, b, offsets, want = problem("loader")
    groups = AlongK.of(len(offsets) - 1, ends=True)
    made = Sm90Plan.derive(M, N, plan.k, batch=plan.batch, a="bf16:col", b="bf16:row", c=plan.c.dtype,
                           config=LOADER, along_k=groups)  # fmt: skip
    made.check().require()
    assert np.array_equal(made.run(a, b, given={"ends": offsets[1:]}, device="reference").c, want)
    turned = offsets[1:].copy()
    turned[3] = 20
    for wrong, text in (
        ({}, "ends is missing: where the groups of K begin and end, 8 numbers"),
        ({"ends": turned}, r"ends\[3\] = 20: they are 0 to A's 298 columns, K, in order"),
        ({"ends": offsets[1:] + 1}, r"ends\[7\] = 299"),
    ):
        with pytest.raises(OperandError, match=text):
            made.run(a, b, given=wrong, device="reference")


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "offsets", [(-9, 40, 20, 60, 1000), pytest.param((50, 1 << 30, -(1 << 31), 7, 7), marks=SLOW)], ids=["few", "far"]
)
def test_offsets_that_are_no_groups_read_and_write_nothing_outside(offsets: tuple[int, ...]) -> None:
    c, want = launched(offsets, 90, LOADER, [])
    assert np.array_equal(c, want)


@needs_dsl
@pytest.mark.dsl
def test_the_compiled_code() -> None:
    """No spills, and products of a K tile are issued together."""
    for config in (
        Sm90Config((128, 256), loader="warpgroup", cluster=(2, 1), chunks=1, buffers=2),
        Sm90Config((256, 192), cluster=(1, 2), staged_epilogue_k_tiles=2, chunks=1, buffers=2),
    ):
        plan = Sm90Plan.derive(512, 512, 4096, batch=4, a="bf16:col", b="bf16:row", config=config, along_k=AlongK.of(4))
        plan.check().require()
        compiled = plan.compile()
        sass, used = compiled.sass(), compiled.resources
        assert sass.local_memory == () and used.local_bytes == used.stack_bytes == 0
        steps = len(plan.a.descriptor.k_steps)
        assert max(sass.wgmma_runs) == steps * plan.blocks and sass.serialised_wgmma(steps) is None


def failing(plan: Sm90Plan) -> set[str]:
    return {check.name for check in plan.check() if not check} - {"derivation"}


def test_wrong_plans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, a, b, offsets, _ = problem("loader")
    assert failing(plan) == set()
    plain = Sm90Plan.derive(M, N, plan.k, batch=8, a="bf16:col", b="bf16:row", config=LOADER)
    assert "starts of groups A" in failing(replace(plan, a=plain.a))
    assert "shared map" in failing(replace(plan, smem=replace(plan.smem, table_offset=plan.smem.empty_offset)))
    right = module.load_place

    def one_line_more(plan: Any, start: Any, end: Any, k_tile: Any, maximum: Any) -> Any:
        return right(plan, start - 1, end, k_tile, maximum)

    def whole(plan: Any, start: Any, end: Any, k_tile: Any, maximum: Any) -> Any:
        return right(plan, start - plan.tile[2], end, k_tile, maximum)

    a[:, :70], b[:70] = np.nan, np.nan  # of the groups before the one of a line
    for wrong in (one_line_more, whole):
        monkeypatch.setattr(module, "load_place", wrong)
        assert failing(plan) == {"starts of groups A", "starts of groups B"}
        got = plan.run(a, b, given={"offsets": offsets}, device="reference").c
        assert np.isnan(got[3]).all()
    monkeypatch.undo()
    assert not np.isnan(plan.run(a, b, given={"offsets": offsets}, device="reference").c[3:]).any()
    for form, least in (("loader", 0), ("self", 2), ("early", 1)):
        monkeypatch.setattr(Sm90Plan, "least_k_tiles", least)
        assert failing(problem(form)[0]) == {"groups along K"}, form
    monkeypatch.undo()
    monkeypatch.setattr(module, "k_tiles_of", lambda plan, lines, maximum: max(1, lines // plan.tile[2]))
    assert failing(plan) == {"groups along K"}


def test_k_tiles_of_a_group() -> None:
    """One, those whose epilogue is staged, or the stages of a consumer that loads."""
    least = {form: problem(form)[0].least_k_tiles for form in ("loader", "self", "early", "halves")}
    assert least == {"loader": 1, "self": 3, "early": 2, "halves": 3}
    plan = problem("self")[0]
    assert [module.k_tiles_of(plan, lines, max) for lines in (0, 1, 192, 193)] == [3, 3, 3, 4]
    assert module.line_table(plan, np.asarray([-1, 5, 10000]))[:4] == [0, 5, plan.k, plan.k]


def test_an_epilogue_comes_after_it() -> None:
    plan = Sm90Plan.derive(
        64, 64, 128, batch=2, a="bf16:col", b="bf16:row", config=LOADER, along_k=AlongK.of(2),
        epilogue=Epilogue(Scale("half", device=False)),
    )  # fmt: skip
    assert plan.words == ("half", "offsets")
    plan.check().require()


def test_refusals() -> None:
    def derive(**given: Any) -> Sm90Plan:
        usual = {"a": "bf16:col", "b": "bf16:row", "config": LOADER, "batch": 2, "along_k": AlongK.of(2)}
        return Sm90Plan.derive(64, 64, given.pop("k", 64), **{**usual, **given})

    for given, text in (
        ({"a": "bf16:row"}, "a is bf16 row-major: groups begin at any line of K"),
        ({"b": "bf16:col"}, "b is bf16 col-major: groups begin at any line of K"),
        ({"a": "e4m3", "b": "e4m3:col"}, "a is e4m3 row-major: wgmma reads e4m3 with K contiguous alone, a TMA load"),
        ({"a": "e4m3", "b": "e4m3:col"}, r"of e4m3 they begin at multiples of 128: AlongK.of\(groups, multiple=128\)"),
        ({"a": "tf32", "b": "tf32:col"}, "groups along K are of bf16 and f16$"),
        ({"config": replace(LOADER, split=2, one_tile_per_cluster=True)}, "one_tile_per_cluster = True"),
        ({"config": replace(LOADER, schedule="pingpong", consumers=2)}, "schedule = 'pingpong'"),
        ({"config": LOADER.tuned(overlap=True)}, "overlap = True: a product with groups along K takes False"),
        ({"config": LOADER.tuned(reverse_odd_tiles=True)}, "reverse_odd_tiles = True"),
        ({"batch": 65}, r"batch = 65: AlongK.of\(groups\) has room"),
        (
            {"mainloop": Promoted.of(lambda total, product: total + product, depth=64)},
            "mainloop: K blocks begin at multiples of their depth, and groups along K at any line; those of floats",
        ),
        (
            {"ragged": Ragged.of(2, masked=True)},
            "no kernel has masked groups and groups along K",
        ),
        ({"along_k": 2}, "along_k of Sm90Plan.derive must be an AlongK or None, not 2"),
        ({"k": (1 << 31) - 1}, "k = 2147483647: a coordinate of K"),
    ):
        with pytest.raises(PlanError, match=text):
            derive(**given)
    for make, text in ((lambda: AlongK.of(0), "0: how many groups"), (lambda: AlongK(64, "u8"), "offsets of 'u8'")):
        with pytest.raises(PlanError, match=text):
            make()
    plan, a, b, offsets, _ = problem("loader")
    turned = offsets.copy()
    turned[4] = 20
    for wrong, text in (
        ({}, "offsets is missing: where the groups of K begin and end, 9 numbers"),
        ({"offsets": offsets.astype(np.int64)}, "offsets is int64"),
        ({"offsets": offsets + 1}, r"offsets\[0\] = 1: they go from 0 to A's 298 columns"),
        ({"offsets": turned}, r"offsets\[3\] = 70, offsets\[4\] = 20: .* none below the one before it"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(a, b, given=wrong)
    assert str(plan).endswith("K in 8 group(s)") and "groups along K: 8 of 298 lines in all" in plan.explain()
