"""Sm80Plan: what it derives, what it refuses, that its checks hold, and that each of them can fail."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import as_tile, smem_tile
from layoutgemm.checks import deletions
from layoutgemm.errors import AtomError, OperandError, PlanError
from layoutgemm.kernels import GemmPlan
from layoutgemm.kernels.compile.compiler import kernel_facts
from layoutgemm.kernels.sm80.choose import shared_bytes
from layoutgemm.kernels.sm80.operand import PARTED, ThreadAddresses, byte_selector
from layoutgemm.kernels.sm80.pipeline import prefetching
from layoutgemm.kernels.sm80.plan import Sm80Config, Sm80Plan
from layoutgemm.layouts import Layout
from tests.kernels.sm80.table import SMALL, TABLE, Product


def derive(**given: Any) -> Sm80Plan:
    return Sm80Plan.derive(1000, 1030, 500, **{"b": "bf16:col", **given})


# ------------------------------------------------------------------------------------------------------ what it derives


def test_the_default() -> None:
    plan = derive()
    assert (plan.tile, plan.stages, plan.warps, plan.threads, plan.blocks) == ((128, 256, 32), 4, (2, 4), 256, (4, 8))
    assert plan.smem.total == 4 * (128 + 256) * 64 and plan.tiles == (8, 5)
    # one address a thread for its copies, one a depth for its fragments: all else is constant
    assert [len(op.copy.places.bases) for op in (plan.a, plan.b)] == [1, 1]
    assert [len(op.load.places.bases) for op in (plan.a, plan.b)] == [2, 2]
    assert plan.store.tile.swizzle_name == "128B" and plan.c.dtype.name == "bf16"


def test_sm_80_and_an_sm80_config_ask_for_this_plan() -> None:
    assert isinstance(GemmPlan.derive(64, 64, 64, arch="sm_80"), Sm80Plan)
    plan = GemmPlan.derive(64, 64, 64, arch="sm_90a", config=SMALL)
    assert isinstance(plan, Sm80Plan) and plan.arch.name == "sm_90a"
    assert not isinstance(GemmPlan.derive(64, 64, 64), Sm80Plan)


@pytest.mark.parametrize(
    ("a", "order", "kind", "swizzle"),
    [
        ("bf16", "row", "ldmatrix", "64B"), ("bf16", "col", "ldmatrix.trans", "128B"),
        ("tf32", "row", "ldmatrix", "64B"), ("tf32", "col", "words", "128B_ATOM_32B"),
        ("i8", "row", "ldmatrix", "64B"), ("i8", "col", "bytes", "128B"),
    ],
)  # fmt: skip
def test_how_fragments_are_loaded(a: str, order: str, kind: str, swizzle: str) -> None:
    plan = derive(a=f"{a}:{order}", b=a)
    assert (plan.a.load.kind, plan.a.smem.swizzle_name) == (kind, swizzle)


def test_an_operand_of_bytes_parts_even_and_odd_rows_of_c() -> None:
    plan = derive(a="i8:col", b="i8:row")
    assert plan.store.orders == (PARTED, PARTED)
    # lane 0 holds C's (0, 0), and in the next block along N (0, 1): its neighbour
    assert plan.store.registers[0] == (0, 4)
    assert [tuple(int(x) for x in plan.store.place(0, r)) for r in (0, 1, 2, 4)] == [(0, 0), (0, 2), (1, 0), (0, 1)]


@pytest.mark.parametrize("late", (0, 1))
def test_selectors_of_prmt(late: int) -> None:
    matrices = [[(m, row, odd) for row in range(2) for odd in range(2)] for m in range(2)]
    both = matrices[0] + matrices[1]
    for odd in range(2):
        selector = byte_selector(late, odd)
        taken = [both[selector >> 4 * i & 15] for i in range(4)]
        first, second = (1, 0) if late else (0, 1)
        assert taken == [(first, 0, odd), (first, 1, odd), (second, 0, odd), (second, 1, odd)]


def test_the_trace_sees_no_sizes() -> None:
    small = Sm80Plan.derive(64, 64, 64, b="bf16:col")
    assert kernel_facts(small) == kernel_facts(derive())
    assert kernel_facts(small) != kernel_facts(derive(config=Sm80Config(group=4)))


def test_explain_names_every_part() -> None:
    text = derive(a="i8:col", b="i8").explain()
    for word in ("m16n8k32", "bytes", "cp.async of 16", "4 stages", "bar.sync", "rounds of 16"):
        assert word in text, text


def test_the_picture_is_the_accumulator_of_the_instruction() -> None:
    svg = derive(a="i8:col", b="i8").svg()
    assert "m16n8k32" in svg and ">V3 (8, 1)</text>" in svg  # PTX ISA, fragments of m16n8k32: rows of thread 0
    assert svg.count(">T31</text>") == 4


# ------------------------------------------------------------------------------------------------------ what it refuses

REFUSED = [
    ({"a": "e4m3", "b": "e4m3:col"}, "sm_80 has no mma.sync.aligned.m16n8k32.row.col.f32.e4m3"),
    ({"arch": "sm_70"}, "sm_70"),
    ({"a": "f64"}, "f64"),
    ({"a": "bf16", "b": "f16"}, "a is bf16 and b f16"),
    ({"c": "bf16:col"}, "row-major"),
    ({"c": "i32"}, "c is i32; of bf16 inputs"),
    ({"a": "i8", "b": "i8:col", "c": "f32"}, "c is f32; of i8 inputs"),
    ({"batch": 0}, "batch = 0"),
    ({"batch": 70000}, "batch = 70000"),
    ({"config": Sm80Config(tile=(120, 256))}, "120 of M for 2 warp"),
    ({"config": Sm80Config(tile=(128, 200))}, "200 of N for 4 warp"),
    ({"config": Sm80Config(tile_k=24)}, "tile_k = 24"),
    ({"config": Sm80Config(stages=1)}, "1 stage"),
    ({"config": Sm80Config(stages=40)}, "6 fit"),
    ({"config": Sm80Config(stages=4, blocks_per_sm=2)}, "3 fit"),
    ({"config": Sm80Config(warps=(8, 8), tile=(128, 256))}, "threads"),
    ({"config": Sm80Config(tile=(160, 256))}, "lines do not divide the tile"),
    ({"config": Sm80Config(align=(1, 16, 16))}, "a is bf16, aligned to 2"),
    ({"config": Sm80Config(loads="tma")}, "loads='tma' needs cp.async.bulk.tensor, which sm_80 lacks"),
    ({"batch": 2, "config": Sm80Config(persistent=True)}, "a persistent kernel multiplies one pair"),
    ({"config": Sm80Config(stmatrix=True)}, "stmatrix=True needs stmatrix, which sm_80 lacks"),
    ({"arch": "sm_120a", "c": "f32", "config": Sm80Config((128, 128), stmatrix=True)}, "stmatrix stores 16-bit"),
    (
        {"arch": "sm_120a", "a": "tf32:col", "b": "tf32", "config": Sm80Config((64, 64), warps=(2, 2), loads="tma")},
        "which this kernel fills by cp.async",
    ),
]


@pytest.mark.parametrize(("given", "says"), REFUSED, ids=[str(r[1])[:24] for r in REFUSED])
def test_refused(given: dict[str, Any], says: str) -> None:
    with pytest.raises((PlanError, AtomError), match=says):
        derive(**given)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"tile": (128,)}, "tile"), ({"warps": (0, 4)}, "warps"), ({"align": (16, 16, 3)}, "align"),
        ({"loads": "bulk"}, "loads"), ({"stmatrix": 1}, "stmatrix"),
        ({"persistent": True, "loads": "tma"}, "persistent kernel copies by cp.async"),
        ({"loads": "tma", "align": (8, 16, 16)}, "aligned to 16"),
        ({"group": 0}, "group"), ({"along": "K"}, "along"), ({"ahead": 1}, "ahead"),
    ],
)  # fmt: skip
def test_refused_configurations(given: dict[str, Any], says: str) -> None:
    with pytest.raises(PlanError, match=says):
        Sm80Config(**given)


# -------------------------------------------------------------------------------------------- checks hold, and can fail


@pytest.mark.parametrize("name", TABLE)
def test_every_check_holds(name: str) -> None:
    report = TABLE[name].plan().check()
    assert report, "\n".join(map(str, report.failures))
    assert len(report) >= 23


def crossed(places: ThreadAddresses) -> ThreadAddresses:
    """The last constant 16 bytes off."""
    *most, (index, (base, constant)) = places.entries
    return replace(places, entries=(*most, (index, (base, constant + 16))))


def with_a(plan: Sm80Plan, **changes: Any) -> Sm80Plan:
    return replace(plan, a=replace(plan.a, **changes))


def failing(plan: Sm80Plan) -> set[str]:
    return {check.name for check in plan.check().failures}


def test_each_check_can_fail() -> None:
    plan = derive(a="bf16:col", b="bf16")
    rows = derive()
    load, copy, store = plan.a.load, plan.a.copy, plan.store
    assert not failing(plan) and not failing(rows)
    assert "addresses A" in failing(with_a(plan, load=replace(load, places=crossed(load.places))))
    assert "addresses A" in failing(with_a(plan, copy=replace(copy, places=crossed(copy.places))))
    assert "fragments A" in failing(with_a(plan, load=replace(load, order=PARTED)))
    assert "fragments of C" in failing(with_a(plan, load=replace(load, order=PARTED)))
    assert "fragments A" in failing(with_a(plan, load=rows.a.load))
    assert "banks of loads A" in failing(with_a(rows, smem=as_tile(Layout((128, 32), (32, 1)), "bf16")))
    assert "copies A" in failing(with_a(rows, copy=replace(rows.a.copy, parts=(1, 1))))
    assert "warps" in failing(replace(plan, warps=(4, 2)))
    assert "tiles of K" in failing(replace(plan, tile=(128, 256, 64)))
    swapped = (store.registers[1], store.registers[0], *store.registers[2:])
    assert "fragments of C" in failing(replace(plan, store=replace(store, registers=swapped)))
    assert "fragments of C" in failing(replace(plan, store=replace(store, registers=((0, 2), *store.registers[1:]))))
    unswizzled = as_tile(Layout(store.tile.extent, (store.tile.extent[1], 1)), "bf16")
    assert "banks of C" in failing(replace(plan, store=replace(store, tile=unswizzled)))
    assert "stages" in failing(replace(plan, smem=replace(plan.smem, b_offset=4096)))
    assert "stages" in failing(replace(plan, smem=replace(plan.smem, c_buffer_bytes=1024)))
    assert "stages" in failing(replace(plan, stages=5))
    assert "shared memory" in failing(replace(plan, smem=replace(plan.smem, total=1 << 20)))
    many = derive(config=Sm80Config((256, 256), 32, 2, (2, 2)))
    assert "registers" in failing(many)


def test_each_check_of_tensor_copies_can_fail() -> None:
    given: Any = {"arch": "sm_120a", "config": replace(SMALL, loads="tma", stmatrix=True)}
    plan = derive(**given)
    assert not failing(plan) and plan.full_bytes == 2 * 64 * 32 * 2
    other = derive(**{**given, "config": replace(SMALL, loads="tma", tile=(128, 64))})
    assert "copies A" in failing(with_a(plan, tma=other.a.tma)) and "pipeline" in failing(with_a(plan, tma=other.a.tma))
    assert "stages" in failing(replace(plan, smem=replace(plan.smem, barrier_offset=0)))
    store = plan.store
    assert store.matrices is not None
    assert "stmatrix" in failing(replace(plan, store=replace(store, matrices=crossed(store.matrices))))
    full = derive(arch="sm_120a", config=Sm80Config((128, 128), 64, 3, (2, 2), loads="tma", stmatrix=True))
    assert full.smem.total == 3 * 32768 + 24 <= full.arch.smem_per_block
    with pytest.raises(PlanError, match="3 fit into"):
        derive(arch="sm_120a", config=Sm80Config((128, 128), 64, 4, (2, 2), loads="tma"))


def test_a_ring_without_its_waits_is_no_ring() -> None:
    for ahead in (True, False):
        pipeline = prefetching(3, 4, ahead)
        assert pipeline.prove()
        survivors = [what for what, mutant in deletions(pipeline) if mutant.prove()]
        # Ahead, the last meeting orders the store behind the fragments of zeros beyond K, which the model has not:
        # the emulator finds that race (test_emulated_sm80).
        assert survivors == (["math: Sync('cta')"] if ahead else []), survivors


# ------------------------------------------------------------------------------------------------------- NumPy executor


EXECUTED = ("bf16 row-col", "f16 col-row", "tf32 col-row", "int8 col-row", "fp8 col-col", "odd pitches", "batch",
            "one element", "256x192, late")  # fmt: skip


@pytest.mark.parametrize("name", EXECUTED)
def test_the_executor_gives_the_product(name: str) -> None:
    product = TABLE[name]
    plan = product.plan()
    a, b, want = (x if product.batch > 1 else x[0] for x in product.values())
    kinds = {"i8": np.int8, "u8": np.uint8}
    given = [x.astype(kinds.get(op.dtype.name, np.float32)) for op, x in ((plan.a, a), (plan.b, b))]
    result = plan.run(*given, device="reference")
    assert result.ran_on == "NumPy executor"
    np.testing.assert_array_equal(result.c, plan.c.dtype.decode(plan.c.dtype.encode(want)))


def test_a_wrong_address_is_a_wrong_product() -> None:
    product = Product()
    plan = product.plan()
    a, b, want = (x[0] for x in product.values())
    broken = with_a(plan, load=replace(plan.a.load, places=crossed(plan.a.load.places)))
    result = broken.run(a.astype(np.float32), b.astype(np.float32), device="reference")
    assert not np.array_equal(result.c, plan.c.dtype.decode(plan.c.dtype.encode(want)))


def test_operands_are_refused_by_name() -> None:
    plan = Sm80Plan.derive(8, 8, 8, a="i8", b="i8:col")
    ones = np.ones((8, 8), np.int8)
    with pytest.raises(OperandError, match="a is float32; the plan's i8 is given as int8"):
        plan.run(ones.astype(np.float32), ones, device="reference")
    with pytest.raises(OperandError, match=r"b has shape \(8, 7\)"):
        plan.run(ones, ones[:, :7], device="reference")
    with pytest.raises(OperandError, match="device 'gpu'"):
        plan.run(ones, ones, device="gpu")


def test_places_take_a_function_apart() -> None:
    tile = smem_tile((64, 64), "bf16", "K")
    indices = [(i, s) for s in range(4) for i in range(4)]
    places = ThreadAddresses.derive(
        lambda t, at: tile.byte(t % 16 + 16 * at[0], 8 * (t // 16) + 16 * at[1]), 32, indices
    )
    assert len(places.bases) == 4  # one a depth: the swizzle's XOR; rows are constants
    plain = smem_tile((64, 64), "bf16", "K", "none")
    assert len(ThreadAddresses.derive(lambda t, at: plain.byte(t % 16 + 16 * at[0], 8 * (t // 16) + 16 * at[1]), 32,
                             indices).bases) == 1  # fmt: skip
    assert Layout(16) != PARTED


# ----------------------------------------------------------------------------------------------------------- the choice


@pytest.mark.parametrize("form", [{}, {"persistent": True}, {"loads": "tma"}], ids=str)
def test_the_choice_counts_the_bytes_of_the_plan(form: dict[str, Any]) -> None:
    config = Sm80Config((64, 64), 32, 3, (2, 2), **form)
    plan = Sm80Plan.derive(1, 1, 1, arch="sm_90a", c="f32", config=config)
    assert shared_bytes(config) == plan.smem.total
