"""The NumPy executor: right on every order, type and ragged size, and wrong as soon as any number of the plan is."""

import dataclasses
from itertools import product

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import SmemDescriptor, TmaCopy
from layoutgemm.atoms.smem.descriptor import SM90_FIELDS
from layoutgemm.errors import LayoutError, PlanError
from layoutgemm.kernels import TeachingConfig, TeachingPlan, error_bound
from layoutgemm.kernels.run.hardware_model import Barrier, SharedBytes, accumulator_registers

SIZES = [(64, 64, 64), (128, 64, 256), (1, 1, 1), (65, 63, 65), (200, 136, 72), (3, 130, 17), (70, 5, 640)]


def operands(plan, seed=0, integers=False):
    rng = np.random.default_rng(seed)

    def draw(shape):
        if integers:
            return rng.integers(-4, 5, shape).astype(np.float32)
        return rng.standard_normal(shape, dtype=np.float32)

    values = [draw((plan.m, plan.k)), draw((plan.k, plan.n))]
    return [op.dtype.decode(op.dtype.encode(v)) for op, v in zip((plan.a, plan.b), values, strict=True)]


def run(plan, a, b):
    return plan.run(a, b, device="reference").c


def assert_right(plan):
    a, b = operands(plan)
    c = run(plan, a, b)
    error = np.abs(c.astype(np.float64) - a.astype(np.float64) @ b.astype(np.float64))
    assert (error <= error_bound(plan, a, b)).all()
    # f32 sums of small integers are exact, so one product too many or too few shows
    a, b = operands(plan, integers=True)
    exact = a.astype(np.float64) @ b.astype(np.float64)
    assert np.array_equal(run(plan, a, b), plan.c.dtype.decode(plan.c.dtype.encode(exact)))


@pytest.mark.parametrize("size", SIZES, ids=lambda s: "x".join(map(str, s)))
@pytest.mark.parametrize("b_order", ("row", "col"))
@pytest.mark.parametrize("a_order", ("row", "col"))
def test_sizes_and_orders(size, a_order, b_order):
    assert_right(TeachingPlan.derive(*size, a=f"bf16:{a_order}", b=f"bf16:{b_order}"))


@pytest.mark.parametrize("kind, c", (("bf16", "bf16"), ("f16", "f32"), ("f16", "f16")))
def test_types(kind, c):
    assert_right(TeachingPlan.derive(100, 72, 130, a=kind, b=f"{kind}:col", c=c))


CONFIGS = [
    TeachingConfig(tile_k=16, stages=1),
    TeachingConfig(tile_k=32, stages=3),
    TeachingConfig(tile_k=128),
    TeachingConfig(tile_n=8),
    TeachingConfig(tile_n=40),
    TeachingConfig(tile_n=256),
    *(TeachingConfig(swizzle_a=s, swizzle_b=t) for s, t in product(("none", "32B", "64B"), repeat=2)),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
@pytest.mark.parametrize("orders", (("row", "row"), ("col", "col")))
def test_tiles_stages_and_swizzles(config, orders):
    assert_right(TeachingPlan.derive(70, 90, 200, a=f"bf16:{orders[0]}", b=f"bf16:{orders[1]}", config=config))


# ------------------------------------------------------------------------------------------- a wrong plan gives a wrong
# C


def outcome(plan):
    """None when the mutant computes the right product, else what went wrong."""
    a, b = operands(plan, seed=3, integers=True)
    try:
        c = run(plan, a, b)
    except LayoutError as error:
        return f"{type(error).__name__}: {error}"
    exact = a.astype(np.float64) @ b.astype(np.float64)
    return None if np.array_equal(c, exact) else "wrong values"


replace = dataclasses.replace


def plan_of(a="row", b="row", **config):
    return TeachingPlan.derive(128, 128, 128, a=f"bf16:{a}", b=f"bf16:{b}", config=TeachingConfig(**config))


def with_operand(plan, name, **changes):
    return replace(plan, **{name: replace(getattr(plan, name), **changes)})


def with_word(plan, name, word):
    descriptor = getattr(plan, name).descriptor
    return with_operand(plan, name, descriptor=replace(descriptor, base=SmemDescriptor.decode(word)))


def read_bits(plan, name):
    """Bits of the word that the hardware reads: every field but the address and a leading offset that it ignores."""
    operand = getattr(plan, name)
    rows, _ = plan.mma.tile_of(operand.name)
    swizzled = operand.smem.swizzle_name != "none"
    ignored = set()
    if swizzled and (operand.major == "K" or rows <= operand.smem.span_elements):
        ignored.add("leading_bytes")
    # the pattern repeats after 2**B lines: a base offset beyond them turns it back to itself
    used = {"base_offset": operand.smem.swizzle.bits}
    return [
        (field.name, bit)
        for field in SM90_FIELDS
        if field.name not in ignored | {"address"}
        for bit in range(field.low, field.low + used.get(field.name, field.width))
    ]


@pytest.mark.parametrize("orders", (("row", "row"), ("col", "col")))
@pytest.mark.parametrize("swizzle", ("128B", "64B", "none"))
def test_every_bit_of_both_descriptors_matters(orders, swizzle):
    plan = plan_of(*orders, swizzle_a=swizzle, swizzle_b=swizzle, stages=2)
    assert outcome(plan) is None
    for name in ("a", "b"):
        word = getattr(plan, name).descriptor.word
        for field, bit in read_bits(plan, name):
            assert outcome(with_word(plan, name, word ^ 1 << bit)), (name, field, bit)


def test_every_number_of_the_plan_matters():
    plan = TeachingPlan.derive(128, 128, 384, b="bf16:col", config=TeachingConfig(tile_k=128, stages=2))
    assert outcome(plan) is None
    first, second = plan.a.tma.instructions
    steps = plan.a.descriptor.k_steps
    tma, descriptor, smem = plan.a.tma, plan.a.descriptor, plan.smem
    mutants = {
        "copy swizzle": with_operand(plan, "a", tma=replace(tma, swizzle="64B")),
        "copy without swizzle": with_operand(plan, "b", tma=replace(plan.b.tma, swizzle="none")),
        "box one row short": with_operand(plan, "a", tma=replace(tma, box=(64, 63))),
        "box half as wide": with_operand(plan, "a", tma=replace(tma, box=(32, 64))),
        "a copy missing": with_operand(plan, "a", tma=replace(tma, instructions=(first,))),
        "copies exchanged": with_operand(
            plan,
            "a",
            tma=replace(
                tma, instructions=(TmaCopy(first.coord_offset, second.smem_offset), TmaCopy(second.coord_offset, 0))
            ),
        ),
        "coordinates exchanged": with_operand(plan, "a", tma=replace(tma, dims=("m", "k"))),
        "descriptor major": with_operand(plan, "a", descriptor=replace(descriptor, major="MN")),
        "K step of 16 units": with_operand(
            plan, "a", descriptor=replace(descriptor, k_steps=tuple(s // 2 for s in steps))
        ),
        "K steps reversed": with_operand(plan, "a", descriptor=replace(descriptor, k_steps=steps[::-1])),
        "too few bytes expected": replace(plan, barrier=replace(plan.barrier, bytes=plan.barrier.bytes - 16)),
        "too many bytes expected": replace(plan, barrier=replace(plan.barrier, bytes=plan.barrier.bytes + 16)),
        "two arrivals expected": replace(plan, barrier=replace(plan.barrier, arrivals=2)),
        "stages overlap": replace(plan, smem=replace(smem, a_stage_bytes=smem.a_stage_bytes // 2)),
        "B on top of A": replace(plan, smem=replace(smem, b_offset=0)),
        "a misaligned stage": replace(plan, smem=replace(smem, b_offset=smem.b_offset + 16, total=smem.total + 16)),
        "shared memory too small": replace(plan, smem=replace(smem, total=smem.b_offset)),
        "tiles of C too far apart": replace(plan, tile=(65, 64, 128)),
        "k tiles overlap": replace(plan, tile=(64, 64, 64)),
    }
    survivors = [name for name, mutant in mutants.items() if outcome(mutant) is None]
    assert not survivors


FRAGMENTS = [
    ((4, 8, 4), (2, 2, 8), (128, 1, 16), (64, 8, 512)),  # the right one
    ((4, 8, 4), (2, 2, 8), (128, 1, 16), (8, 64, 512)),  # the pair runs down a column
    ((8, 4, 4), (2, 2, 8), (128, 1, 16), (64, 8, 512)),  # lanes taken apart wrongly
    ((4, 8, 4), (2, 2, 8), (1, 128, 16), (64, 8, 512)),  # row and column of a lane exchanged
    ((4, 8, 4), (2, 8, 2), (128, 1, 16), (64, 512, 8)),  # value groups before row halves
    ((4, 8, 4), (2, 2, 8), (128, 1, 8), (64, 32, 512)),  # warps eight rows apart
]


@pytest.mark.parametrize("index", range(len(FRAGMENTS)))
def test_only_the_right_fragment_map_gives_the_product(index):
    threads, values, thread_strides, value_strides = FRAGMENTS[index]
    plan = plan_of()
    layout = Layout((threads, values), (thread_strides, value_strides))
    mutant = replace(plan, mma=replace(plan.mma, layout_C=layout))
    assert (outcome(mutant) is None) == (index == 0)


# ------------------------------------------------------------------------------------------------- the hardware's
# models


def test_a_barrier_completes_with_its_arrival_and_its_bytes_only():
    barrier = Barrier("full[0]", 1)
    with pytest.raises(PlanError, match="never completes the phase of parity 0: 1 arrival"):
        barrier.wait(0)
    barrier.wait(1)  # a fresh barrier's previous phase counts as complete
    barrier.arrive_expect(100)
    barrier.complete(60)
    with pytest.raises(PlanError, match=r"0 arrival\(s\) and 40 byte\(s\) are outstanding"):
        barrier.wait(0)
    barrier.complete(40)
    barrier.wait(0)


def test_fresh_shared_memory_is_not_a_number():
    plan = plan_of()
    memory = SharedBytes(1024)
    assert np.isnan(plan.a.dtype.decode(memory.read(np.array([memory.base]), plan.a.dtype))).all()
    with pytest.raises(PlanError, match="read at shared address 0x0, outside 0x4000"):
        memory.read(np.array([0]), plan.a.dtype)


def test_registers_hold_each_element_once():
    d = np.arange(64 * 24, dtype=np.float32).reshape(64, 24)
    assert sorted(accumulator_registers(d).ravel()) == sorted(d.ravel())
