"""The Blackwell kernel, compiled, in the emulator: every form, type and order is exact, and nothing is found.

Inputs are small integers, of which every sum is exact; NaN lies between their lines, and what lies between C's has to
stay. `tensor_strict` asks for what PTX asks for: waits for loads of tensor memory, and fences around meetings. No
device of this architecture has run any of it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from layoutgemm import plan
from layoutgemm.emulator.api import ORDERS, emulate_host
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm100.plan import MMA_WARP, Sm100Config
from tests import needs
from tests.kernels.sm90.table import Product
from tests.kernels.sm90.test_emulated import emulate
from tests.kernels.sm100.table import LATER, QUICK, TABLE, one

pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]
STRICT = replace(ORDERS[0], tensor_strict=True)


def test_the_table_has_every_type_order_and_form() -> None:
    plans = [product.plan() for product in TABLE.values()]
    assert len(plans) >= 30
    assert {plan.a.dtype.name for plan in plans} == {"bf16", "f16", "e4m3", "e5m2", "tf32", "i8", "u8"}
    assert {plan.c.dtype.name for plan in plans} == {"f32", "bf16", "f16", "e4m3", "e5m2", "i32"}
    for bits in (8, 16):
        for blocks in (1, 2):
            some = [p for p in plans if p.a.dtype.bits == bits]
            assert len({(p.a.order, p.b.order) for p in some}) == 4, bits
            assert {p.c.order for p in plans if p.blocks == blocks} == {"row", "col"}
    quick = [TABLE[name].plan() for name in QUICK]
    types = {op.dtype.name for p in quick for op in (p.a, p.b)}
    assert types == {"bf16", "f16", "e4m3", "e5m2", "tf32"} and {p.blocks for p in quick} == {1, 2}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LATER)) for n in TABLE])
def test_every_form_is_exact_and_silent(name: str) -> None:
    done = emulate(TABLE[name], STRICT)
    assert not done.findings, done.report()


ADVERSE = [*ORDERS[1:], Policy(waits="reluctant"), Policy(pick="random", seed=7, elect="highest", waits="reluctant")]


@pytest.mark.parametrize("order", range(len(ADVERSE)))
def test_any_order_of_events(order: int) -> None:
    done = emulate(TABLE["a pair"], replace(ADVERSE[order], tensor_strict=True), seed=order)
    assert not done.findings, done.report()


@pytest.mark.slow
@pytest.mark.parametrize("name", TABLE)
def test_every_form_in_every_order(name: str) -> None:
    for order, policy in enumerate(ADVERSE):
        done = emulate(TABLE[name], replace(policy, tensor_strict=True), seed=order)
        assert not done.findings, done.report()


@pytest.mark.parametrize("name", ["one block", "a pair"])
def test_one_compile_serves_every_size(name: str) -> None:
    """Edges along M, N and K, few k tiles, many tiles, short pairs."""
    first = TABLE[name]
    for m, n, k in ((1, 8, 8), (257, 65, 200)):
        product = replace(first, m=m, n=n, k=k, workers=2)
        done = emulate(product, STRICT)
        assert not done.findings, (m, n, k, done.report())


def overlap(accumulators: int) -> bool:
    """True if the second tile's products begin before the first tile's loads end."""
    product = Product(256, 64, 64, one(64, width=16, accumulators=accumulators), workers=1)
    plan = product.plan()
    a, b, _ = product.values()
    (bits_a, lda, pitch_a), (bits_b, ldb, pitch_b) = product.operand(plan.a, a), product.operand(plan.b, b)
    sizes = (256, 64, 64, 1, lda, ldb, 64, pitch_a, pitch_b, 0, 1)
    given = (bits_a, bits_b, np.zeros((256, 64), np.uint16), *sizes)
    done = emulate_host(linked(plan), given, timeline=True, progress=False)
    assert not done.findings and done.launches[0].timeline is not None
    rows = {row.warp: row.spans for row in done.launches[0].timeline.rows if row.warp is not None}
    products = [span.begin for span in rows[MMA_WARP] if span.kind == "mma"]
    loads = [span for span in rows[0] if span.kind == "accumulators"]
    assert len(products) == 2 and sum(span.times for span in loads) == 2 * 4
    return products[1] < loads[3].end


def test_with_two_accumulators_a_tile_is_stored_while_the_next_is_multiplied() -> None:
    assert [overlap(accumulators) for accumulators in (1, 2)] == [False, True]


@pytest.mark.parametrize(
    "arch", [pytest.param(x, marks=[pytest.mark.slow] * (x != "sm_103a")) for x in ("sm_103a", "sm_110a", "sm_100f")]
)
@pytest.mark.parametrize(
    "kind", [pytest.param(x, marks=[pytest.mark.slow] * (x != "bf16")) for x in ("bf16", "f16", "tf32", "e4m3")]
)
def test_every_architecture_with_tensor_memory_gives_the_product(arch: str, kind: str) -> None:
    made = plan(45, 40, 144, arch=arch, a=kind, b=f"{kind}:col", config=Sm100Config((128, 64)))
    rng = np.random.default_rng(3)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((45, 144), (144, 40)))
    assert made.arch.name == arch and np.array_equal(made.run(a, b, device="emulator").c, a @ b)


def test_the_run_says_that_it_was_emulated() -> None:
    plan = TABLE["a pair"].plan()
    a, b, want = (values[0] for values in TABLE["a pair"].values())
    result = plan.run(a, b, device="emulator")
    assert result.ran_on == "emulator" and (result.c == want).all()


# ------------------------------------------------------------------------------------------------------- at random

KINDS = ("bf16", "f16", "e4m3", "e5m2", "tf32")


@st.composite
def products(draw: st.DrawFn) -> Product:
    """Any configuration of small tiles; some are refused."""
    blocks = draw(st.sampled_from((1, 2)))
    config = Sm100Config(
        (128 * blocks, 16 * blocks * draw(st.integers(1, 5))),
        stages=draw(st.integers(2, 4)),
        accumulators=draw(st.integers(1, 3)),
        group=draw(st.integers(1, 3)),
        along=draw(st.sampled_from("MN")),
        overlap=draw(st.booleans()),
        width=draw(st.sampled_from((16, 32, 64, 128))),
        chunks=draw(st.integers(1, 3)),
        buffers=draw(st.integers(1, 3)),
    )
    kind = draw(st.sampled_from(KINDS))
    orders = [draw(st.sampled_from(("row", "col"))) for _ in "ab"]
    c = draw(st.sampled_from(("bf16", "f16", "f32", "e4m3", "bf16:col", "f32:col", "e5m2:col")))
    sizes = [draw(st.integers(1, 300)), draw(st.integers(1, 200)), draw(st.integers(1, 400))]
    return Product(
        *sizes, config, batch=draw(st.sampled_from((1, 1, 2))), a=f"{kind}:{orders[0]}", b=f"{kind}:{orders[1]}", c=c,
        workers=draw(st.integers(1, 3)),
    )  # fmt: skip


def held(product_of: st.DataObject) -> None:
    """A product that is not refused holds its checks, and is exact and silent."""
    for _ in range(40):
        try:
            product = product_of.draw(products())
            plan = product.plan()
        except LayoutError:
            continue
        assert plan.check(), str(plan.check())
        done = emulate(product, STRICT)
        assert not done.findings, done.report()
        return
    reject()  # all were refused: hypothesis draws another example, and fails where none is left


@pytest.mark.slow
@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_many_configurations(data: st.DataObject) -> None:
    held(data)
