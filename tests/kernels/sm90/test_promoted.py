"""Main loops that promote: each K block summed afresh, scaled by tables, added in f32; in NumPy and compiled."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.checks.pipeline.actions import Expect, WaitGroup
from layoutgemm.checks.pipeline.model import walk
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import IndexedRows, RowIndices, Sm90Config, Sm90Plan, error_bound
from layoutgemm.kernels.compile.cache import facts_of
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue
from layoutgemm.kernels.run.arrays import global_matrix
from layoutgemm.kernels.run.emulated import emulate_plan
from layoutgemm.kernels.run.epilogue_operands import words_read
from layoutgemm.kernels.sm90.checks import pipeline_of
from layoutgemm.kernels.sm90.mainloop import BULK, NUMBER_BYTES, Promoted, Table, product_of, product_sets
from layoutgemm.kernels.sm90.operands.stage_numbers import NumberSlots, numbers_read
from layoutgemm.kernels.sm90.pipeline_model import HopperPipeline
from layoutgemm.kernels.store import StoreChunk
from tests import needs

needs_dsl = needs.DSL
SMALL = Sm90Config((64, 64), consumers=1, stages=2)
M, N, K = 200, 136, 328  # ragged along each; three K blocks of 128, the last of 72


TOGETHER = 1024  # K of main loops that read numbers of 4 K blocks together: twice


def scaled(rows: int = 1, columns: int = 128, depth: int = 128, span: int = 1) -> Promoted:
    tables = Table("sa", "m", rows), Table("sb", "n", columns)
    return Promoted.of(lambda total, product, sa, sb: total + sa * sb * product, *tables, depth=depth, span=span)


ONLY_A = Promoted.of(lambda total, product, sa: total + sa * product, Table("sa", "m"))
DECAY = Promoted.of(lambda total, product, sa: total * sa + product, Table("sa", "m"), depth=64)
FORMS = {  # config, main loop, batch, A, B, C
    "two": (Sm90Config((128, 64), chunks=1, buffers=2, stages=3), scaled(), 1, "e4m3", "e4m3:col", "bf16"),
    "loader": (replace(SMALL, loader="warpgroup", stages=3), scaled(columns=64), 2, "e5m2", "e4m3:col", "f32"),
    "pair": (Sm90Config((128, 64), cluster=(2, 1), loader="warp"), scaled(), 1, "e4m3", "e5m2:col", "bf16"),
    "across": (Sm90Config((128, 128), cluster=(1, 2), stages=2), scaled(128, 8), 1, "e4m3", "e4m3:col", "f32"),
    "each column": (replace(SMALL, tile=(64, 16)), scaled(columns=1), 1, "e4m3", "e4m3:col", "f16"),
    "two blocks": (
        Sm90Config((256, 32), stages=2),
        scaled(rows=3, columns=32),
        1,
        "e4m3",
        "e4m3:col",
        "bf16:col",
    ),
    "direct": (replace(SMALL, store="direct"), ONLY_A, 1, "e4m3", "e4m3:col", "f32"),
    "bf16": (replace(SMALL, loader="warp"), DECAY, 1, "bf16:col", "bf16", "bf16"),
    "no table": (replace(SMALL, tile=(64, 32)), Promoted.of(lambda t, x: t + x), 1, "e4m3", "e4m3:col", "f32"),
    "rows": (replace(SMALL, loaded_a_rows=8), scaled(), 1, "e4m3", "e4m3:col", "bf16"),
    "parts of K": (
        replace(SMALL, loader="warp", one_tile_per_cluster=True, split=4),
        scaled(),
        1,
        "e4m3",
        "e4m3:col",
        "bf16",
    ),
    "parts of two": (
        replace(SMALL, loader="warp", one_tile_per_cluster=True, split=2, cluster=(1, 2)),
        scaled(),
        1,
        "e4m3",
        "e4m3:col",
        "f32",
    ),
    "one tile": (
        Sm90Config((128, 64), one_tile_per_cluster=True, store="direct"),
        scaled(),
        2,
        "e4m3",
        "e5m2:col",
        "f16",
    ),
    "wide": (Sm90Config((256, 128), loader="warpgroup", chunks=1), scaled(), 1, "e4m3", "e4m3:col", "bf16"),
    "five blocks": (replace(SMALL, loader="warp", stages=3), scaled(depth=32), 1, "e4m3", "e4m3:col", "bf16"),
    "three": (Sm90Config((192, 128), consumers=3, chunks=1), scaled(), 1, "e4m3", "e4m3:col", "bf16"),
    # The third tile lies across two groups of columns.
    "across groups": (replace(SMALL, tile=(64, 48), loader="warp"), scaled(), 1, "e4m3", "e4m3:col", "bf16"),
    "alone, two blocks": (
        Sm90Config((128, 32), consumers=1, loader="warp", chunks=1),
        scaled(),
        1,
        "e4m3",
        "e4m3:col",
        "bf16",
    ),
    "alone, four parts": (replace(SMALL, tile=(64, 256), loader="warp"), scaled(), 1, "e4m3", "e4m3:col", "f16"),
    "together": (replace(SMALL, loader="warpgroup"), scaled(span=4), 2, "e4m3", "e4m3:col", "bf16"),
    "together, pair": (
        Sm90Config((256, 32), loader="warpgroup", cluster=(1, 2)),
        scaled(columns=8, span=4),
        1,
        "e5m2",
        "e4m3:col",
        "f32",
    ),
    "at once": (
        Sm90Config((256, 64), loader="warpgroup", chunks=1, store_at_once=True, box_rows=64),
        scaled(),
        1,
        "e4m3",
        "e4m3:col",
        "bf16",
    ),
    "warps at once": (
        Sm90Config((128, 96), loader="warp", chunks=1, store_at_once=True),
        scaled(),
        2,
        "e4m3",
        "e4m3:col",
        "f16",
    ),
    "two scales": (Sm90Config((128, 96), chunks=1, buffers=1), scaled(columns=64), 1, "e4m3", "e4m3:col", "bf16"),
}
SLOW = [pytest.mark.slow]
EMULATED = (
    "no table", "loader", "two", "pair", "each column", "bf16", "rows", "parts of K", "parts of two", "one tile",
    "five blocks", "across groups", "together", "together, pair", "at once", "warps at once", "alone, two blocks",
    "alone, four parts",
)  # fmt: skip


def problem(form: str) -> tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, np.ndarray], np.ndarray]:
    """Small integers and scales that are powers of two: every sum is exact."""
    config, loop, batch, a_type, b_type, c_type = FORMS[form]
    m, k = 8 if form == "rows" else M, K if loop.span == 1 else TOGETHER
    plan = Sm90Plan.derive(m, N, k, batch=batch, a=a_type, b=b_type, c=c_type, config=config, mainloop=loop)
    rng, front = np.random.default_rng(3), (batch,) if batch > 1 else ()
    a, b = (rng.integers(-3, 4, (*front, *shape)).astype(np.float32) for shape in ((m, k), (k, N)))
    blocks = -(-k // loop.depth)
    tables = {
        t.name: np.exp2(rng.integers(-2, 3, (*front, *t.shape(m, N, blocks)))).astype(np.float32) for t in loop.tables
    }
    want = loop.reference(a, b, **tables)
    return plan, a, b, tables, np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(want.astype(np.float32))))


def test_the_definition() -> None:
    rng = np.random.default_rng(0)
    a, b, sa, sb = (rng.random(shape) for shape in ((3, 300), (300, 130), (3, 3), (2, 3)))
    want = np.zeros((3, 130))
    for i, j, k in np.ndindex(3, 130, 300):
        want[i, j] += sa[i, k // 128] * sb[j // 128, k // 128] * a[i, k] * b[k, j]
    assert np.allclose(scaled().reference(a, b, sa=sa, sb=sb), want)


@pytest.mark.parametrize(
    "form",
    [
        pytest.param(x, marks=SLOW * (x in ("three", "across", "pair", "parts of two") or x.startswith("alone")))
        for x in FORMS
    ],
)
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, b, tables, want = problem(form)
    plan.check().require()
    assert np.array_equal(plan.run(a, b, given=tables).c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("form", EMULATED)
def test_compiled_kernel_is_exact(form: str) -> None:
    plan, a, b, tables, want = problem(form)
    assert np.array_equal(plan.run(a, b, given=tables, device="emulator").c, want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", ["loader", *[pytest.param(form, marks=SLOW) for form in ("pair", "five blocks")]])
def test_scales_along_m_come_by_bulk_copies(form: str) -> None:
    plan, a, b, tables, want = problem(form)
    tables = {name: np.swapaxes(np.swapaxes(x, -1, -2).copy(), -1, -2) for name, x in tables.items()}
    done = plan.run(a, b, given=tables, device="emulator")
    assert np.array_equal(done.c, want)
    assert "mbarrier::complete_tx::bytes" in plan.compile().ptx and plan.m % plan.tile[0]  # the last tile has cp.async
    wider = np.zeros((*tables["sa"].shape[:-2], tables["sa"].shape[-1], M + 1), np.float32)  # no multiple of 16 bytes
    wider[..., :M] = np.swapaxes(tables["sa"], -1, -2)
    tables["sa"] = np.swapaxes(wider[..., :M], -1, -2)
    assert np.array_equal(plan.run(a, b, given=tables, device="emulator").c, want)


@pytest.mark.parametrize("form", ["loader", "parts of K"])
def test_bulk_copies_of_numbers_are_proven(form: str) -> None:
    """Without their promise of bytes the pipeline is refuted. Numbers that never come whole have no such case."""

    def without(program: Any) -> Any:
        kept = [action for action in program if not isinstance(action, Expect)]
        parts = ("then", "orelse", "body")
        return tuple(
            replace(x, **{name: without(getattr(x, name)) for name in parts if hasattr(x, name)}) for x in kept
        )

    single, mixed, *_ = pipeline_of(problem(form)[0]).cases()
    assert single.name == f"{mixed.name}, numbers copied one by one" and single.prove() and mixed.prove()
    roles = tuple(replace(role, program=without(role.program)) for role in mixed.roles)
    assert "more land than are expected" in str(replace(mixed, roles=roles).prove())
    names = [case.name for case in pipeline_of(problem("five blocks")[0]).cases()]
    other = replace(FORMS["loader"][1], tables=(Table("sa", "m", 4), Table("sb", "n", 64)))
    plan = Sm90Plan.derive(M, N, K, a="e4m3", b="e4m3:col", config=FORMS["loader"][0], mainloop=other)
    assert any("one by one" in name for name in names)
    assert not any("one by one" in case.name for case in pipeline_of(plan).cases())


def test_bulk_copies_of_rows_that_begin_anywhere_stay_in_the_table() -> None:
    """Every byte is the table's, the numbers among them; with one K block more some byte is not."""
    slots, m, blocks = NumberSlots(Table("sa", "m", 1), 1, 8, 0, 8, slack=BULK), 29, 3
    assert slots.bulk_bytes == 48
    left_out = set()
    for pitch in (29, 30, 31, 32, 1, 0):
        end = NUMBER_BYTES * ((blocks - 1) * pitch + m)
        for row in range(m):
            first = NUMBER_BYTES * row
            found = slots.in_bulk((row, m, blocks), first, (0, 1, pitch))
            starts = [(first + NUMBER_BYTES * pitch * block) // BULK * BULK for block in range(blocks)]
            assert all(0 <= start <= end - slots.bulk_bytes for start in starts[:found]), (pitch, row, found)
            left_out.add(blocks - found)
            if row + slots.slots > m and found < blocks:
                assert starts[found] + slots.bulk_bytes > end or pitch < slots.slots
    assert left_out == {0, 1, blocks}
    for table in ((4, 1, 32), (0, 2, 32), (0, 1, -32)):  # an address, rows apart, and K blocks that go back
        assert slots.in_bulk((0, m, blocks), table[0], table) == 0


def test_numbers_of_four_k_blocks_take_one_read_and_the_proven_room() -> None:
    """Their slots have 16 bytes; a slot of 4 would be another number's."""
    plan = problem("together")[0]
    assert [part.slot_bytes for part in plan.numbers.parts] == [16, 16] and plan.numbers.bulk_bytes == 0
    assert plan.smem.numbers_bytes == 16 * (64 + 1)
    once = replace(plan, mainloop=scaled())
    assert "derivation" in {check.name for check in once.check() if not check}
    assert "those of 4 K blocks together" in plan.explain()


@needs_dsl
@pytest.mark.dsl
def test_code_of_four_k_blocks_reads_numbers_once() -> None:
    plan = problem("together")[0]
    compiled = plan.compile()
    sass = compiled.sass()
    assert sass.serialised_wgmma(len(plan.a.descriptor.k_steps)) is None and sass.local_memory == ()
    copies = 2  # of four K blocks' code: the loop, and the last ones, behind which no product is issued
    assert sass.count("FFMA") == copies * 4 * plan.blocks * plan.mma.accumulator_registers
    reads = [i for i in sass.instructions if i.base == "LDS" and "PT" not in i.predicate]
    assert len(reads) == copies * len(numbers_read(plan)) and compiled.ptx.count("ld.shared.v4.b32") == len(reads)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"k": 640}, r"K = 640: numbers of 4 K blocks come together, so K is a multiple of 128 \* 4"),
        ({"loader": "self"}, "loader = 'self', split = 1: numbers of 4 K blocks come together by a warp of their own"),
        ({"loader": "warp", "split": 2, "one_tile_per_cluster": True}, "split = 2: numbers of 4 K blocks"),
    ],
)
def test_what_reads_no_numbers_together(change: dict[str, Any], message: str) -> None:
    config, k = replace(SMALL, loader="warpgroup"), change.pop("k", TOGETHER)
    with pytest.raises(PlanError, match=message):
        Sm90Plan.derive(M, N, k, a="e4m3", b="e4m3:col", config=replace(config, **change), mainloop=scaled(span=4))


ALONE = Sm90Config((64, 64), consumers=1, loader="warp", chunks=1, buffers=1)


@pytest.mark.parametrize(
    ("config", "sets", "parts"),
    [
        (ALONE, 2, 1),
        (replace(ALONE, tile=(64, 192)), 2, 2),
        (replace(ALONE, tile=(64, 256)), 2, 4),
        (replace(ALONE, tile=(128, 96)), 2, 1),
        (replace(ALONE, tile=(64, 200)), 1, 1),  # 100 totals and 200 products, and 200 columns are no two parts
        (replace(ALONE, loader="self"), 1, 1),
        (Sm90Config((128, 192), loader="warpgroup", chunks=1), 1, 1),
        (Sm90Config((128, 256), loader="warpgroup", chunks=1), 1, 2),
    ],
)  # fmt: skip
def test_a_warpgroup_that_multiplies_alone_has_two_sets_of_products(config: Sm90Config, sets: int, parts: int) -> None:
    plan = Sm90Plan.derive(M, N, K, a="e4m3", b="e4m3:col", config=config, mainloop=scaled())
    assert (product_sets(plan), product_of(plan)[2]) == (sets, parts)
    assert ("two sets in turn" in plan.explain()) == (sets > 1)


@pytest.mark.parametrize("parts", [1, 2])
def test_products_in_turn_are_read_behind_their_wait(parts: int) -> None:
    """One more product in flight is a race. So is a stage that is released in front of the wait."""

    def changed(program: Any, wrong: Any) -> Any:
        inner = ("then", "orelse", "body")
        found = [
            wrong(replace(x, **{name: changed(getattr(x, name), wrong) for name in inner if hasattr(x, name)}))
            for x in program
        ]
        return tuple(found)

    pipeline = HopperPipeline(
        3, (8192, 8192), promoted=True, product_sets=2, column_parts=parts, loader=2, numbers=True, full_arrivals=33
    )
    case = pipeline.cases()[0]
    assert case.prove() and "in turn" in case.name

    def late(action: Any) -> Any:
        return replace(action, pending=action.pending + 1) if isinstance(action, WaitGroup) else action

    roles = tuple(replace(role, program=changed(role.program, late)) for role in case.roles)
    assert "race" in str(replace(case, roles=roles).prove())


def test_a_span_is_one_or_four() -> None:
    with pytest.raises(PlanError, match=r"span = 2: one of \(1, 4\)"):
        scaled(span=2)


@pytest.mark.parametrize("c", ["bf16", "e4m3"])
def test_boxes_of_a_warpgroup_are_filled_by_its_four_warps(c: str) -> None:
    config = Sm90Config((128, 256), loader="warpgroup", chunks=2, buffers=1, store_at_once=True, box_rows=64)
    plan = Sm90Plan.derive(256, 256, 256, a="e4m3", b="e4m3:col", c=c, config=config, mainloop=scaled())
    plan.check().require()
    assert plan.store is not None

    def wrong(chunk: StoreChunk) -> StoreChunk:
        """All four warps fill where the first has its rows, or one value further on."""
        if chunk.rows is None:
            return replace(chunk, first_value=chunk.first_value + 1)
        rows = chunk.rows
        return replace(chunk, rows=lambda lane, at: rows(lane, (at[0], 0)))

    rounds = tuple(replace(each, chunks=tuple(map(wrong, each.chunks))) for each in plan.store.rounds)
    failing = {check.name for check in replace(plan, store=replace(plan.store, rounds=rounds)).check() if not check}
    assert failing >= {"rows of C" if c == "bf16" else "columns of C"}


def test_a_store_at_once_is_proven_as_one_round() -> None:
    """A buffer that is written while earlier stores still read it is refuted."""
    plan = problem("at once")[0]
    assert plan.store is not None and plan.store.buffers == len(plan.store.rounds) == 2 and plan.store.pending(1) == 0
    *_, store = pipeline_of(plan).cases()
    assert "1 rounds through 1 buffer" in store.name and store.prove()
    early = replace(
        store,
        roles=tuple(
            replace(
                role,
                program=tuple(
                    replace(x, body=tuple(replace(y, pending=1) if isinstance(y, WaitGroup) else y for y in x.body))
                    if hasattr(x, "body")
                    else x
                    for x in role.program
                ),
            )
            for role in store.roles
        ),
    )
    assert not early.prove()


@pytest.mark.parametrize(
    ("config", "more", "message"),
    [
        ({"store_at_once": True}, {"mainloop": None}, "this product has no such loop"),
        ({"store_at_once": True, "split": 2, "one_tile_per_cluster": True}, {}, "has split = 2"),
        ({"box_rows": 64}, {"indexed": IndexedRows(scatter=RowIndices(M))}, "store_at_once = False: not with indexed"),
        ({"box_rows": 32}, {}, "box_rows = 32: 16, a warp's rows, or 64, a warpgroup's"),
    ],
)
def test_what_is_not_stored_at_once(config: dict[str, Any], more: dict[str, Any], message: str) -> None:
    with pytest.raises(PlanError, match=message):
        made = replace(SMALL, loader="warp", **config)
        Sm90Plan.derive(M, N, K, a="e4m3", b="e4m3:col", config=made, **{"mainloop": scaled(), **more})


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "policy",
    [
        Policy(pick="random", waits="reluctant"),
        pytest.param(Policy(loads="early", products="early", lands="oldest"), marks=SLOW),
    ],
)
def test_in_other_orders_of_events(policy: Policy) -> None:
    plan, a, b, tables, want = problem("two")
    lying = [global_matrix(op, x, [], True) for op, x in ((plan.a, a), (plan.b, b))]
    words, done = emulate_plan(plan, lying[0], lying[1], policy, progress=False, given=words_read(plan, tables))
    assert not done.findings, done.report()
    assert np.array_equal(plan.c.dtype.decode(words), want)


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    "config", [Sm90Config((128, 128)), pytest.param(Sm90Config((192, 128), consumers=3), marks=SLOW)]
)
def test_the_code_has_one_run_of_products_and_one_multiplication_an_element(config: Sm90Config) -> None:
    plan = Sm90Plan.derive(M, N, K, a="e4m3", b="e4m3:col", config=config, mainloop=scaled())
    plan.check().require()
    compiled = plan.compile()
    sass, used = compiled.sass(), compiled.resources
    assert sass.local_memory == () and used.local_bytes == used.stack_bytes == 0
    steps = len(plan.a.descriptor.k_steps)
    assert sass.wgmma_runs == (steps,) * plan.blocks and sass.serialised_wgmma(steps) is None
    assert sass.count("FFMA") == plan.blocks * plan.mma.accumulator_registers
    # A total that moves to another register costs a copy, and meets its product in one bank: 128x256 took 19% longer.
    added = [x.operands.replace(".reuse", "").split(", ") for x in sass.instructions if x.base == "FFMA"]
    assert all(to == total for to, _, _, total in added)
    assert all((int(total[1:]) - int(product[1:])) % 2 for _, product, _, total in added)
    # No consumer loads from global memory: at a wgmma.fence it would wait for that.
    assert sass.count("LDG") == 0
    # A consumer that loads for itself does so in three places.
    assert sass.count("LDGSTS") == 3 * sum(-(-part.slots // 32) for part in plan.numbers.parts)
    reads = [i for i in sass.instructions if i.base == "LDS" and "PT" not in i.predicate]
    assert len(reads) == len(numbers_read(plan))


def failing(plan: Sm90Plan) -> set[str]:
    # "derivation" also names each field that was exchanged.
    return {check.name for check in plan.check() if not check} - {"derivation"}


def test_wrong_plans_are_found() -> None:
    plan = problem("two")[0]
    assert failing(replace(plan, mainloop=scaled(depth=64))) == {"promotion"}
    # a number for every 12 columns: a thread's columns 4 and 12 of a tile of 24 have two, and its registers one
    narrow = Sm90Plan.derive(M, N, K, a="e4m3", b="e4m3:col", config=replace(SMALL, tile=(64, 24)), mainloop=scaled())
    assert failing(replace(narrow, mainloop=scaled(columns=12))) == {"promotion"}
    wide = Sm90Plan.derive(M, N, K, a="e4m3", b="e4m3:col", config=Sm90Config((256, 256)), mainloop=scaled())
    assert failing(wide) == {"registers"}
    assert "each k tile promoted" in next(c.statement for c in plan.check() if c.name == "pipeline")


def test_a_promotion_that_does_not_wait_is_refuted() -> None:
    pipeline = pipeline_of(problem("loader")[0]).cases()[0]

    def swap(program: Any) -> Any:
        done = []
        for action in program:
            if action == WaitGroup("wgmma", 0):
                action = WaitGroup("wgmma", 1)
            for name in ("then", "orelse", "body"):
                if hasattr(action, name):
                    action = replace(action, **{name: swap(getattr(action, name))})
            done.append(action)
        return tuple(done)

    roles = tuple(replace(role, program=swap(role.program)) for role in pipeline.roles)
    assert any(a == WaitGroup("wgmma", 1) for role in roles for a in walk(role.program))
    assert pipeline.prove() and not replace(pipeline, roles=roles).prove()


def test_an_epilogue_comes_after_it() -> None:
    plan = Sm90Plan.derive(M, N, K, a="e4m3", b="e4m3:col", config=SMALL, mainloop=scaled(), epilogue=Epilogue(Bias()))
    assert plan.words == ("bias", "bias_batch", *scaled().words)
    plan.check().require()


def test_refusals() -> None:
    def derive(loop: Any = None, **given: Any) -> Sm90Plan:
        usual = {"a": "e4m3", "b": "e4m3:col", "config": SMALL, "mainloop": loop or scaled()}
        return Sm90Plan.derive(64, 64, 256, **{**usual, **given})

    for given, text in (
        ({"config": replace(SMALL, tile_k=64)}, "tile_k = 64: .* 128 elements"),
        ({"config": replace(SMALL, reverse_odd_tiles=True)}, "reverse_odd_tiles = True"),
        ({"config": Sm90Config((256, 64), staged_epilogue_k_tiles=1)}, "staged_epilogue_k_tiles = 1"),
        ({"config": Sm90Config((64, 64), schedule="pingpong", loader="warp")}, "schedule = 'pingpong'"),
        (
            {"config": replace(SMALL, one_tile_per_cluster=True, split=2), "loop": DECAY, "a": "bf16", "b": "bf16"},
            "does more than add",
        ),
        ({"loop": scaled(columns=12), "config": replace(SMALL, tile=(64, 24))}, "every 12 columns, in tiles of 24"),
        ({"loop": scaled(depth=24)}, "multiple of the instruction's K = 32"),
        ({"a": "i8", "b": "i8:col", "c": "f32"}, "computes in f32"),
        ({"loop": "sum"}, "a Promoted, made by Promoted.of"),
        ({"epilogue": Epilogue(Bias(name="sa"))}, "two parameters of the kernel are named sa"),
    ):
        with pytest.raises(PlanError, match=text):
            derive(**given)
    for make, text in (
        (lambda: Table("s", "k"), "axis 'k'"),
        (lambda: Table("s", "m", 0), "the group of s must be at least 1"),
        (lambda: Promoted.of(lambda t, x, a, b: t, Table("a", "m"), Table("a", "n")), "a name of its own"),
        (lambda: Promoted.of(lambda t, x: None), "returned nothing"),
    ):
        with pytest.raises(PlanError, match=text):
            make()
    plan, a, b, tables, _ = problem("two")
    for given, text in (
        ({}, "sa is missing"),
        ({**tables, "sc": 1}, "sc is no table"),
        ({**tables, "sa": tables["sa"][:-1]}, r"sa is float32 of shape \(199, 3\): it takes .* \(200, 3\)"),
        ({**tables, "sb": tables["sb"].astype(np.float64)}, "sb is float64"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(a, b, given=given)
    torch = needs.module("torch")
    with pytest.raises(OperandError, match=r"a is on cpu: .* takes CUDA tensors"):
        plan.run(torch.ones(a.shape), torch.ones(b.shape), given=tables)
    with pytest.raises(OperandError, match="given = sa, sb: the plan reads a and b alone"):
        Sm90Plan.derive(64, 64, 64, config=SMALL).run(a[:64, :64], b[:64, :64], given=tables)
    with pytest.raises(PlanError, match="a main loop of its own"):
        error_bound(plan, a, b)


def test_equal_main_loops_are_one_kernel_and_others_are_not() -> None:
    assert facts_of(scaled()) == facts_of(scaled())
    other = Promoted.of(lambda total, product, sa, sb: total + sa * product * sb, *scaled().tables)
    assert len({str(facts_of(x)) for x in (scaled(), scaled(columns=64), scaled(depth=64), other)}) == 4
    assert str(problem("two")[0]).endswith("K blocks of 128 promoted")
    assert "total = total + ((sa * sb) * product)" in problem("two")[0].explain()
