"""Grouped products: tiles of groups whose ends the device alone knows, and stores that end with their group."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.derive import padded_leading
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue
from layoutgemm.kernels.grouped import stores as of_stores
from layoutgemm.kernels.grouped.rows import tables
from layoutgemm.kernels.grouped.stores import store_place
from layoutgemm.kernels.indexed.rows import IndexedRows, RowIndices
from layoutgemm.kernels.ragged import Ragged
from layoutgemm.kernels.run.arrays import global_matrix
from layoutgemm.kernels.run.emulated import emulate_launch, emulate_plan
from layoutgemm.kernels.sm90 import grouped as sm90_ragged
from layoutgemm.kernels.sm90 import reference as sm90_reference
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.kernels.sm90.choose.scaled_grouped import gated_config, plan_with_scales, usual_config
from layoutgemm.kernels.sm90.mainloop import Promoted, Table
from layoutgemm.kernels.store import WARPS_OF_GROUP
from tests import needs
from tests.kernels.sm90.other_orders import each_policy, stored_in_order

needs_dsl = needs.DSL
SLOW = [pytest.mark.slow]
SMALL = Sm90Config((64, 64), consumers=1, stages=3)
TURNS = Sm90Config((64, 64), consumers=1, stages=2, cluster=(2, 1), turn_last_pair=True)
HALVES = Sm90Config((128, 32), stages=2, halve_last_round=True)
AT_ONCE = Sm90Config((128, 64), stages=2, chunks=2, store_at_once=True, overlap=True)
SIZES = (0, 70, 0, 1, 64, 0, 0, 33, 15, 0)
SCALED = Promoted.of(lambda total, product, sa, sb: total + sa * sb * product, Table("sa", "m"), Table("sb", "n", 64))
FORMS: dict[str, tuple[Sm90Config, str, str, str, tuple[int, ...], Any]] = {
    "small": (SMALL, "bf16", "bf16:col", "bf16", SIZES, None),
    "two": (Sm90Config((128, 64), chunks=1, buffers=2, stages=2), "f16", "f16", "f32", (130, 0, 257, 3), None),
    "pair": (replace(SMALL, cluster=(2, 1), loader="warpgroup"), "bf16", "bf16:col", "bf16", SIZES, None),
    "across": (replace(SMALL, cluster=(1, 2), loader="warp"), "bf16", "bf16:col", "f16", SIZES, None),
    "pingpong": (Sm90Config((64, 32), schedule="pingpong", loader="warpgroup"), "bf16", "bf16", "bf16", SIZES, None),
    "early": (
        Sm90Config((256, 64), staged_epilogue_k_tiles=1, stages=2),
        "bf16",
        "bf16:col",
        "bf16",
        (300, 0, 1, 256),
        None,
    ),
    "one": (replace(SMALL, reverse_odd_tiles=True, along="N"), "bf16", "bf16:col", "f32", (75,), None),
    "fp8": (SMALL, "e4m3", "e5m2:col", "e4m3", SIZES, None),
    "scaled": (  # with fewer tiles than CTAs, as the GPU deals these out
        Sm90Config((64, 64), consumers=1, stages=2, loader="warp", gpc_order=(((0,), 1), ((0, 1, 2), 2))),
        "e4m3",
        "e4m3:col",
        "bf16",
        (70, 0, 130, 4),
        SCALED,
    ),
    "boxes": (Sm90Config((128, 64), stages=2, box_rows=64, overlap=True), "bf16", "bf16:col", "bf16", SIZES, None),
    "at once": (replace(AT_ONCE, box_rows=64), "e4m3", "e4m3:col", "bf16", (70, 0, 130, 1), SCALED),
    "skips": (
        Sm90Config((192, 64), consumers=3, stages=2, skip_empty_blocks=True),
        "bf16",
        "bf16:col",
        "bf16",
        (200, 0, 64, 1, 129, 192),
        None,
    ),
    "skips early": (
        Sm90Config((256, 64), staged_epilogue_k_tiles=1, stages=2, cluster=(1, 2), skip_empty_blocks=True),
        "f16",
        "f16:col",
        "f16",
        (300, 0, 1, 256, 65),
        None,
    ),
    "skips in turn": (
        Sm90Config((128, 64), schedule="pingpong", loader="warpgroup", cluster=(2, 1), skip_empty_blocks=True),
        "bf16",
        "bf16:col",
        "bf16",
        (129, 0, 64, 65),
        None,
    ),
    "skips scaled": (
        Sm90Config((256, 64), stages=2, cluster=(2, 1), skip_empty_blocks=True),
        "e4m3",
        "e4m3:col",
        "bf16",
        (70, 0, 513, 1, 129),
        SCALED,
    ),
    "turns": (
        Sm90Config((128, 32), stages=2, cluster=(2, 1), turn_last_pair=True),
        "bf16",
        "bf16:col",
        "bf16",
        (129, 0, 257, 64, 256),
        None,
    ),
    "turns, loader": (
        Sm90Config((64, 64), consumers=1, stages=3, loader="warpgroup", cluster=(2, 1), turn_last_pair=True, along="N"),
        "f16",
        "f16",
        "f16",
        (130, 0, 64, 1, 65),
        None,
    ),
    "turns in turn": (
        Sm90Config((64, 64), schedule="pingpong", loader="warpgroup", cluster=(2, 1), turn_last_pair=True),
        "bf16",
        "bf16",
        "bf16",
        (130, 0, 64, 1, 65),
        None,
    ),
    "turns scaled": (
        Sm90Config((128, 64), stages=2, loader="warpgroup", cluster=(2, 1), turn_last_pair=True, chunks=2, buffers=1),
        "e4m3",
        "e4m3:col",
        "bf16",
        (70, 0, 513, 1, 129),
        SCALED,
    ),
    "turns scaled, one warpgroup": (
        replace(TURNS, loader="warp", chunks=1, overlap=True),
        "e4m3",
        "e4m3:col",
        "bf16",
        (65, 0, 130, 1),
        SCALED,
    ),
    "turns and skips": (
        Sm90Config((128, 64), stages=2, cluster=(2, 1), turn_last_pair=True, skip_empty_blocks=True),
        "bf16",
        "bf16:col",
        "bf16",
        (70, 0, 385, 1, 129),
        None,
    ),
    "shifts": (Sm90Config((128, 32), stages=2, shift_last_tile=True), "bf16", "bf16:col", "bf16", (70, 0, 185), None),
    "shifts, few rows": (
        Sm90Config((64, 64), consumers=1, stages=3, loader="warp", cluster=(1, 2), shift_last_tile=True),
        "f16",
        "f16:col",
        "f16",
        (90, 1, 0, 12),
        None,
    ),
    "shifts, turned": (
        replace(TURNS, loader="warp", chunks=1, overlap=True, shift_last_tile=True),
        "e4m3",
        "e4m3:col",
        "bf16",
        (65, 0, 130, 130),
        SCALED,
    ),
    "shifts, at once": (
        replace(AT_ONCE, loader="warp", halve_last_round=True, shift_last_tile=True),
        "e4m3",
        "e4m3:col",
        "bf16",
        (70, 0, 130, 129),
        SCALED,
    ),
    "shifts, halves": (
        replace(HALVES, cluster=(2, 1), turn_last_pair=True, skip_empty_blocks=True, stages=3, shift_last_tile=True),
        "bf16",
        "bf16:col",
        "bf16",
        (257, 130, 0, 130),
        None,
    ),
    "halves": (HALVES, "bf16", "bf16", "f32", (70, 0, 129), None),
    "halves, turned": (
        replace(HALVES, cluster=(2, 1), turn_last_pair=True, skip_empty_blocks=True, stages=3, group=1),
        "bf16",
        "bf16:col",
        "bf16",
        (257, 130, 0, 100),
        None,
    ),
    "halves, pairs": (
        replace(HALVES, cluster=(2, 1), loader="warpgroup", along="N"),
        "f16",
        "f16:col",
        "f16",
        (64, 0, 400),
        None,
    ),
    "halves, across": (replace(HALVES, cluster=(1, 2)), "bf16", "bf16:col", "bf16", (70, 200, 0, 129), None),
    "halves early": (
        replace(HALVES, tile=(256, 32), staged_epilogue_k_tiles=1, skip_empty_blocks=True),
        "bf16",
        "bf16:col",
        "bf16",
        (400, 0, 65),
        None,
    ),
    "halves scaled": (
        replace(
            HALVES,
            tile=(128, 64),
            cluster=(2, 1),
            loader="warpgroup",
            turn_last_pair=True,
            chunks=2,
            store_at_once=True,
            box_rows=64,
            overlap=True,
        ),
        "e4m3",
        "e4m3:col",
        "bf16",
        (257, 1, 0, 129),
        SCALED,
    ),
    "warps at once": (AT_ONCE, "e4m3", "e4m3:col", "bf16", (70, 0, 130, 1), SCALED),
}
LATE = (
    "early",
    "halves early",
    "halves",
    "halves, pairs",
    "halves, across",
    "pingpong",
    "fp8",
    "turns in turn",
)  # forms whose executor is tried with the slow tests
N, K = 88, 200


Problem = tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray]


def problem(form: str, offsets_type: str = "i32") -> Problem:
    config, a_type, b_type, c_type, sizes, loop = FORMS[form]
    groups, m = len(sizes), sum(sizes)
    plan = Sm90Plan.derive(
        m, N, K, batch=groups, a=a_type, b=b_type, c=c_type, config=config, mainloop=loop,
        ragged=Ragged.of(groups, offsets_type),
    )  # fmt: skip
    rng, most = np.random.default_rng(1), 1 if c_type == "e4m3" else 3
    a, b = (rng.integers(-most, most + 1, shape).astype(np.float32) for shape in ((m, K), (groups, K, N)))
    offsets = np.cumsum([0, *sizes]).astype(np.int32 if offsets_type == "i32" else np.int64)
    given: dict[str, Any] = {"offsets": offsets}
    parts = []
    if loop is not None:
        given["sa"] = np.exp2(rng.integers(-2, 3, (m, 2))).astype(np.float32)
        given["sb"] = np.exp2(rng.integers(-2, 3, (groups, 2, 2))).astype(np.float32)
    for e, (first, end) in enumerate(pairwise(offsets)):
        if loop is None:
            parts.append(a[first:end].astype(np.float64) @ b[e])
        else:
            parts.append(loop.reference(a[first:end], b[e], sa=given["sa"][first:end], sb=given["sb"][e]))
    want = np.concatenate(parts).astype(np.float32)
    return plan, a, b, given, np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(want)))


@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x in LATE)) for x in FORMS])
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, b, given, want = problem(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=given).c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("form", FORMS)
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, b, given, want = problem(form, "i64" if form == "pair" else "i32")
    assert np.array_equal(plan.run(a, b, given=given, device="emulator").c, want)


ENDS: dict[str, tuple[str, bool, tuple[int, ...], int, str]] = {  # form, clears, ends, columns, type of ends
    "small": ("small", True, (0, 70, 70, 71, 90, 90, 91, 100, 100, 100), N, "i32"),
    "stay": ("small", False, (0, 70, 70, 71, 90, 90, 91, 100, 100, 100), N, "i64"),
    "none": ("across", True, (0,) * 10, N, "i64"),
    "two": ("two", True, (130, 130, 257, 300), 85, "i32"),  # rows of 340 bytes
    "scaled": ("scaled", True, (0, 66, 130, 204), N, "i32"),  # all rows
}


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("case", [pytest.param(x, marks=SLOW * (x in ("none", "two"))) for x in ENDS])
def test_ends_without_a_zero_and_rows_behind_them(case: str) -> None:
    """Rows from the last end on are zeros, or stay as they were: NaN."""
    form, clears, ends, n, kind = ENDS[case]
    config, a_type, b_type, c_type, sizes, loop = FORMS[form]
    m, groups = sum(sizes), len(ends)
    ragged = Ragged.of(groups, kind, ends=True, clears=clears)
    plan = Sm90Plan.derive(
        m, n, K, batch=groups, a=a_type, b=b_type, c=c_type, config=config, mainloop=loop, ragged=ragged
    )
    plan.check().require()
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-1, 2, shape).astype(np.float32) for shape in ((m, K), (groups, K, n)))
    given: dict[str, Any] = {"ends": np.array(ends, {"i32": np.int32, "i64": np.int64}[kind])}
    if loop is not None:
        rows = np.exp2(rng.integers(-2, 3, m)).astype(np.float32)
        # Next to each other, so that bulk copies take them, but from row 66, no multiple of 4, on.
        given |= {"sa": np.asfortranarray(np.stack([rows, rows], 1)), "sb": np.ones((groups, 2, 2), np.float32)}
    want = np.full((m, n), 0 if clears else np.nan, np.float32)
    for e, (first, end) in enumerate(pairwise((0, *ends))):
        want[first:end] = a[first:end] @ b[e] * (1 if loop is None else rows[first:end, None])
    for device in ("reference", "emulator"):
        assert np.array_equal(plan.run(a, b, given=given, device=device).c, want, equal_nan=True), device


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("skips", [True, False])
def test_empty_blocks_are_not_multiplied(skips: bool) -> None:
    """Blocks of 64 rows that are multiplied: those with a row of the group, or all of each tile."""
    plan, a, b, given, want = problem("skips")
    if not skips:
        config = replace(plan.config, skip_empty_blocks=False)
        plan = Sm90Plan.derive(a.shape[0], N, K, batch=len(b), b="bf16:col", config=config, ragged=plan.ragged)
    c, done = emulate_plan(
        plan, *[global_matrix(op, x, [], True) for op, x in ((plan.a, a), (plan.b, b))], progress=False,
        given=(given["offsets"], *[0] * 15),
    )  # fmt: skip
    assert not done.findings, done.report()
    assert np.array_equal(plan.c.dtype.decode(c), want)
    assert ("behind a group's end are not multiplied" in plan.explain()) == skips
    rows = 64 if skips else plan.tile[0]
    blocks = sum(-(-size // rows) * rows // 64 for size in FORMS["skips"][4])
    steps = -(-K // plan.tile[2]) * len(plan.a.descriptor.k_steps)
    products = sum(count for name, count in done.instructions.items() if name.startswith("wgmma.mma_async"))
    assert products == WARPS_OF_GROUP * blocks * plan.tiles[1] * steps


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("loader", ["self", "warpgroup"])
def test_pairs_turn_where_a_group_has_an_odd_row_of_tiles(loader: str) -> None:
    """Masked groups of 0 to 4 rows of tiles, three columns: fewer pairs than without, and the same results."""
    counts, (m, n, k) = np.array([64, 0, 129, 200, 1, 199], np.int32), (200, 150, 96)
    ragged, rng = Ragged.of(len(counts), masked=True), np.random.default_rng(2)
    a, b = (rng.integers(-3, 4, (len(counts), *size)).astype(np.float32) for size in ((m, k), (k, n)))
    clusters = []
    for turns in (True, False):
        config = replace(TURNS, loader=loader, turn_last_pair=turns)
        plan = Sm90Plan.derive(m, n, k, batch=len(counts), b="bf16:col", config=config, ragged=ragged)
        plan.check().require()
        clusters.append(tables(plan, counts)[1][-1])
        assert ("share A in place of B" in plan.explain()) == turns
        for device in ("reference", "emulator") if turns else ():
            c = plan.run(a, b, given={"counts": counts}, device=device).c
            for found, x, y, count in zip(c, a, b, counts, strict=True):
                assert np.array_equal(found[:count], plan.c.dtype.decode(plan.c.dtype.encode(x[:count] @ y))), device
    tiles = [-(-int(count) // 64) for count in counts]
    assert clusters == [sum(x // 2 * 3 + x % 2 * 2 for x in tiles), sum(-(-x // 2) * 3 for x in tiles)]


def test_a_pair_that_turns_elsewhere_is_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("turns, loader")[0]
    place, turned = sm90_ragged.tile_of_group, sm90_ragged.is_turned

    def one_row_on(plan: Any, number: Any, *of: Any) -> Any:
        row, column = place(plan, number, *of)
        return row + (number == 0), column

    for name, wrong in (
        ("tile_of_group", one_row_on), ("is_turned", lambda *of: False), ("is_turned", lambda *of: not turned(*of)),
        ("clusters_of", lambda plan, rows, columns: -(-rows // 128) * columns),
    ):  # fmt: skip
        monkeypatch.setattr(sm90_ragged, name, wrong)
        assert failing(plan) == {"groups"}, name
        monkeypatch.undo()
    assert not failing(plan)


def test_halves_elsewhere_are_refuted(monkeypatch: pytest.MonkeyPatch) -> None:
    plans = [problem(form)[0] for form in ("halves, turned", "halves")]
    turn, turns, turned = sm90_ragged.tile_of_turn, sm90_ragged.last_round, sm90_ragged.is_turned

    def alone(plan: Any, row: Any, start: Any, end: Any) -> Any:  # as if `row` began a tile
        return turned(plan, row, start, end) and end - row > 64

    for name, wrong in (
        ("tile_of_turn", lambda *of: (turn(*of)[0], 0)), ("is_turned", alone),
        ("last_round", lambda tiles, clusters, choose: turns(tiles, 2 * clusters, choose)),
        ("last_round", lambda tiles, clusters, choose: (tiles // clusters * clusters, 2 * tiles)),
    ):  # fmt: skip
        monkeypatch.setattr(sm90_ragged, name, wrong)
        found = [failing(plan) for plan in plans]
        assert all("last rounds" in x for x in (found if name != "is_turned" else found[:1])), name
        monkeypatch.undo()
    assert not any(map(failing, plans)) and "tiles of a last round" in plans[0].explain()


@needs_dsl
@pytest.mark.dsl
@each_policy
def test_in_other_orders_of_events(policy: Policy) -> None:
    """Two tiles that write one row conflict: the order decides which one wins."""
    plan, a, b, given, want = problem("small")
    found = stored_in_order(plan, a, b, given, policy)
    assert np.array_equal(plan.c.dtype.decode(found), want)


@needs_dsl
@pytest.mark.dsl
def test_one_kernel_serves_all_groups_and_leaves_ungrouped_rows() -> None:
    """The same compiled kernel: fewer groups, fewer rows than C has, and a C in the middle of other lines."""
    plan, a, b, _, _ = problem("small")
    other = Sm90Plan.derive(50, N, K, batch=3, b="bf16:col", config=SMALL, ragged=Ragged.of(3))
    assert plan.compile() is other.compile()
    a, b = a[:50], np.ascontiguousarray(b[:3].swapaxes(1, 2))
    offsets = np.asarray([7, 20, 20, 41], np.int32)  # rows 0 to 6 and 41 to 49 are in no group
    leading, pitch = padded_leading(plan.a.dtype, K), padded_leading(plan.c.dtype, N) + 8
    bits = [np.full((*x.shape[:-1], leading), 0x7FC0, np.uint16) for x in (a, b)]
    for lying, x in zip(bits, (a, b), strict=True):
        lying[..., :K] = plan.a.dtype.encode(x)
    c = np.full((60, pitch), 0xFFFF, np.uint16)
    want = c.copy()
    for e, (first, end) in enumerate(pairwise(offsets)):
        want[first:end, :N] = plan.c.dtype.encode(a[first:end] @ b[e].T)
    sizes = (50, N, K, 3, leading, leading, pitch, 0, N * leading, 0, 2)
    done = emulate_launch(plan, (*bits, c, *sizes, offsets, *[0] * 15), progress=False)
    assert not done.findings, done.report()
    assert np.array_equal(c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("skips", [False, True])
def test_the_compiled_code(skips: bool) -> None:
    config = Sm90Config((128, 256), chunks=1, buffers=2, skip_empty_blocks=skips)
    plan = Sm90Plan.derive(1000, 512, 512, batch=8, b="bf16:col", config=config, ragged=Ragged.of(8))
    plan.check().require()
    compiled = plan.compile()
    sass, used = compiled.sass(), compiled.resources
    assert sass.local_memory == () and used.local_bytes == used.stack_bytes == 0
    steps = len(plan.a.descriptor.k_steps)
    assert max(sass.wgmma_runs) == steps and sass.serialised_wgmma(steps) is None
    # One warp makes the table: three entries a lane. All threads meet behind it, and nowhere else.
    assert sass.count("LDG") == 3
    assert [x.operands for x in sass.instructions if x.base == "BAR" and x.operands.split(",")[0] == "0x0"] == ["0x0"]


def test_a_search_has_two_rounds_of_reads() -> None:
    """Each read that a search's round makes is known before the round: those of a warp are in flight together."""
    reads: list[list[int]] = []

    def first(group: int) -> int:
        reads[-1].append(group)
        return 2 * group

    for tile in (0, 100):
        reads.append([])
        assert Ragged.of(64).find(first, tile, lambda condition, yes, no: yes if condition else no) == tile // 2
    assert [len(read) for read in reads] == [14, 14] and reads[0][:7] == reads[1][:7] == list(range(8, 64, 8))


def test_the_table_and_the_search() -> None:
    plan = problem("small")[0]
    rng = np.random.default_rng(5)
    for groups in (1, 3, 63, 64):
        offsets = np.concatenate([[0], np.cumsum(rng.choice([0, 0, 1, 63, 64, 65, 200], groups))])
        starts, first = tables(plan, offsets)
        assert starts[: groups + 1] == offsets.tolist() and starts[-1] == offsets[-1]
        visited = []
        for tile in range(first[-1]):
            group = plan.ragged.find(first.__getitem__, tile, lambda condition, yes, no: yes if condition else no)
            assert group < groups and starts[group] < starts[group + 1]
            visited.append((group, tile - first[group]))
        columns = plan.tiles[1]
        assert visited == [(e, i) for e in range(groups) for i in range(-(-int(np.diff(offsets)[e]) // 64) * columns)]


def failing(plan: Sm90Plan) -> set[str]:
    # "derivation" also names each field that was exchanged.
    return {check.name for check in plan.check() if not check} - {"derivation"}


def test_wrong_plans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("one")[0]
    assert failing(plan) == set()
    assert plan.store is not None
    plain = Sm90Plan.derive(75, N, K, b="bf16:col", c="f32", config=FORMS["one"][0])
    assert "ends of groups" in failing(replace(plan, store=plain.store))
    assert failing(replace(plan, smem=replace(plan.smem, table_offset=plan.smem.empty_offset))) == {"shared map"}
    assert failing(replace(plan, smem=replace(plan.smem, total=plan.smem.table_offset + 16))) >= {"shared map"}

    def off_by_one(row: Any, end: Any, column: Any, lines: int, minimum: Any, left_out: Any = 0) -> Any:
        return store_place(row, end + 1, column, lines, minimum, left_out)

    def whole(row: Any, end: Any, column: Any, lines: int, minimum: Any, left_out: Any = 0) -> Any:
        return store_place(row, row + lines, column, lines, minimum, left_out)

    def kept(row: Any, end: Any, column: Any, lines: int, minimum: Any, left_out: Any = 0) -> Any:
        return store_place(row, end, column, lines, minimum)

    for wrong in (off_by_one, whole):
        monkeypatch.setattr(of_stores, "store_place", wrong)
        assert failing(plan) == {"ends of groups"}
        monkeypatch.setattr(sm90_reference, "store_place", wrong)
        two = problem("small")
        with pytest.raises(PlanError, match="is stored 2 times"):
            two[0].run(two[1], two[2], given=two[3], device="reference")
    monkeypatch.setattr(of_stores, "store_place", kept)
    monkeypatch.setattr(sm90_reference, "store_place", kept)
    shifted = problem("shifts, few rows")
    assert failing(shifted[0]) == {"ends of groups"}
    with pytest.raises(PlanError, match="is stored 2 times"):
        shifted[0].run(shifted[1], shifted[2], given=shifted[3], device="reference")
    monkeypatch.undo()
    monkeypatch.setattr(Ragged, "find", lambda self, first, tile, choose: next(
        e for e in range(self.capacity) if first(e + 1) >= tile))  # fmt: skip
    assert failing(plan) == {"groups"}


def test_an_epilogue_reads_by_group() -> None:
    plan = Sm90Plan.derive(
        75, N, K, batch=2, b="bf16:col", config=SMALL, ragged=Ragged.of(2), epilogue=Epilogue(Bias())
    )
    assert plan.words == ("bias", "bias_batch", "offsets")
    plan.check().require()


@needs_dsl
@pytest.mark.dsl
@pytest.mark.slow
def test_a_bias_of_each_group() -> None:
    _, a, b, _, _ = problem("one")
    sizes = (30, 0, 45)
    groups, offsets = len(sizes), np.cumsum([0, *sizes]).astype(np.int32)
    plan = Sm90Plan.derive(
        75, N, K, batch=groups, b="bf16:col", c="f32", config=SMALL, ragged=Ragged.of(groups),
        epilogue=Epilogue(Bias(dtype="f32")),
    )  # fmt: skip
    bias = np.arange(groups * N, dtype=np.float32).reshape(groups, N)
    three = np.concatenate([b, 2 * b, -b])
    want = np.concatenate([a[first:end] @ three[e] + bias[e] for e, (first, end) in enumerate(pairwise(offsets))])
    lying = [global_matrix(op, x, [], True) for op, x in ((plan.a, a), (plan.b, three))]
    words = (bias, N, offsets, *[0] * 13)
    found, done = emulate_plan(plan, lying[0], lying[1], progress=False, given=words)
    assert not done.findings, done.report()
    assert np.array_equal(found.view(np.float32), want)


@pytest.mark.parametrize("columns", [1, 128])
@pytest.mark.parametrize("gate", [None, "silu"])
@pytest.mark.parametrize("kind", ["bf16", "e4m3"])
def test_each_chosen_configuration_has_a_plan(kind: str, gate: str | None, columns: int) -> None:
    """Groups of any average have one; so have gated batches, which skip no blocks."""
    types, scales, sums = (kind, f"{kind}:col", "bf16"), (1, 128) if kind == "e4m3" else None, 1 if gate is None else 2
    for rows in (65, 128, 129, 192, 223, 224, 383, 384, 512, 1023, 1024):
        sizes = 4 * rows, 1024, 1024, 4
        config = usual_config(sizes, types, scales, sums, columns)
        assert config.tile[1] % (columns * sums) == 0
        plan = plan_with_scales(sizes, types, scales, config, ragged=Ragged.of(4), gated=gate)
        assert plan.blocks * plan.mma.accumulator_registers <= 192
        assert plan.smem.total >= plan.arch.smem_of_one_block, rows
        if gate is not None and columns == 1:
            config, _ = gated_config((rows, 1024, 1024, 4), types, gate, ClusterOccupancy())
            Sm90Plan.derive(rows, 1024, 1024, batch=4, a=kind, b=f"{kind}:col", c="bf16", config=config, gated=gate)


def test_refusals() -> None:
    for options, said in (
        ({"masked": True, "ends": True}, "masked groups have counts, not ends"),
        ({"clears": True}, "clears: offsets leave no row"),
    ):
        with pytest.raises(PlanError, match=said):
            Ragged.of(3, **options)
    for ends, said in (([3, 1], r"ends\[1\] = 1"), ([-1, 1], r"ends\[0\] = -1"), ([3, 9], r"ends\[1\] = 9")):
        with pytest.raises(OperandError, match=f"{said}: they are 0 to A's 8 rows, in order"):
            Ragged.of(2, ends=True).take(np.array(ends, np.int32), (8, 64, 64, 2))

    def derive(**given: Any) -> Sm90Plan:
        usual = {"b": "bf16:col", "config": SMALL, "batch": 2, "ragged": Ragged.of(2)}
        return Sm90Plan.derive(64, 64, 64, **{**usual, **given})

    for given, text in (
        ({"a": "bf16:col"}, "a is bf16 col-major: groups begin at any row"),
        ({"c": "bf16:col"}, "c is bf16 col-major: groups end between rows"),
        ({"config": replace(SMALL, loaded_a_rows=8)}, "loaded_a_rows = 8"),
        ({"config": replace(SMALL, one_tile_per_cluster=True)}, "one_tile_per_cluster = True"),
        ({"config": replace(SMALL, overlap=True, prefetch=1)}, "prefetch = 1"),
        ({"config": replace(SMALL, store="direct")}, "store = 'direct'"),
        ({"config": replace(SMALL, skip_empty_blocks=True), "ragged": None}, "only groups of rows end within a tile"),
        ({"config": TURNS, "ragged": None}, "only groups of rows have a last row of tiles each"),
        ({"config": HALVES, "ragged": None}, "halve_last_round = True: only groups of rows count tiles on the GPU"),
        (
            {"config": replace(HALVES, cluster=(2, 2))},
            r"2 consumer\(s\), clusters of \(2, 2\): half a tile is one of two",
        ),
        ({"config": TURNS, "indexed": IndexedRows(RowIndices(99))}, "turn_last_pair = True: a turned pair shares A"),
        ({"config": TURNS, "pair": 16}, "turn_last_pair = True: a turned pair of CTAs shares A alone"),
        ({"batch": 65}, r"batch = 65: Ragged.of\(groups\) has room"),
        ({"ragged": 2}, "ragged of Sm90Plan.derive must be a Ragged or None, not 2"),
    ):
        with pytest.raises(PlanError, match=text):
            derive(**given)
    for make, text in ((lambda: Ragged.of(0), "ragged = 0"), (lambda: Ragged(64, "u8"), "offsets of 'u8'")):
        with pytest.raises(PlanError, match=text):
            make()
    plan, a, b, given, _ = problem("small")
    offsets = given["offsets"]
    turned = offsets.copy()
    turned[4] = 136
    for wrong, text in (
        ({}, "offsets is missing: where the groups of rows begin and end, 11 numbers"),
        ({"offsets": offsets.astype(np.int64)}, "offsets is int64"),
        ({"offsets": offsets[:-1]}, r"of shape \(10,\): it takes int32 of \(11,\)"),
        ({"offsets": offsets + 1}, r"offsets\[0\] = 1: they go from 0"),
        ({"offsets": turned}, r"offsets\[4\] = 136, offsets\[5\] = 135: .* none below the one before it"),
        ({**given, "sa": 1}, "given = sa: the plan reads offsets"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(a, b, given=wrong)
    for cluster in ((1, 2), (1, 1), (4, 1)):
        with pytest.raises(PlanError, match=r"pairs of CTAs along M, \(2, 1\), turn"):
            replace(TURNS, cluster=cluster)
    with pytest.raises(OperandError, match="b has shape"):
        plan.run(a, b[0], given=given)
    assert str(plan).endswith("rows in 10 group(s)") and "groups: 10 of 183 rows" in plan.explain()
