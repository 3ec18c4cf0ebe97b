"""The production kernel, compiled, in the emulator: every form, type and order is exact, and nothing is found.

Inputs are small integers, of which every sum is exact; NaN lies between their lines, and what lies between C's has to
stay. What the compiler made of each form is looked at as well.
"""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, reject, settings
from hypothesis import strategies as st

from layoutgemm.emulator.api import ORDERS, Emulation
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.derive import padded_leading
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.run.hardware_model import unwritten
from layoutgemm.kernels.sm90.choose.rules import choose
from layoutgemm.kernels.sm90.plan import Sm90Config
from layoutgemm.schedule import GpcOrder
from tests import needs
from tests.kernels.sm90.table import LATER, TABLE, Product

pytestmark = [
    needs.DSL,
    needs.C_COMPILER,
]


def emulate(product: Product, policy: Policy | None = None, seed: int = 0) -> Emulation:
    """Run a product; AssertionError when an element of C is wrong, or one beside C has changed."""
    plan = product.plan()
    a, b, want = product.values(seed)
    (bits_a, lda, pitch_a), (bits_b, ldb, pitch_b) = product.operand(plan.a, a), product.operand(plan.b, b)
    lines = want if plan.c.order == "row" else want.swapaxes(1, 2)
    inner = lines.shape[2]
    ldc = padded_leading(plan.c.dtype, inner) + 16 if plan.store is not None else inner + 3
    words = unwritten(plan.c.dtype, (product.batch, lines.shape[1] + 1, ldc))
    expected = words.copy()
    expected[:, :-1, :inner] = plan.c.dtype.encode(lines)
    sizes = (product.m, product.n, product.k, product.batch, lda, ldb, ldc, pitch_a, pitch_b, words[0].size)
    # C owns its pitch: a tensor store may end a line at 16 bytes.
    owned = replace(policy or ORDERS[0], edges=False)
    done = emulate_launch(plan, (bits_a, bits_b, words, *sizes, product.workers), owned, progress=False)
    beyond = plan.bytes_beyond_line // plan.c.dtype.bytes
    words[:, :-1, inner : inner + beyond] = expected[:, :-1, inner : inner + beyond]
    wrong = np.argwhere(words != expected)
    assert not len(wrong), f"{plan}: {len(wrong)} elements, the first at {wrong[0]}\n{done.report()}"
    return done


def test_the_table_has_every_type_order_and_form() -> None:
    assert len(TABLE) >= 40
    plans = [product.plan() for product in TABLE.values()]
    assert {plan.a.dtype.name for plan in plans} == {"bf16", "f16", "e4m3", "e5m2", "tf32", "i8", "u8"}
    assert {plan.c.dtype.name for plan in plans} == {"f32", "bf16", "f16", "e4m3", "e5m2", "i32"}
    assert {(p.a.dtype.name, p.b.dtype.name) for p in plans} >= {("i8", "u8"), ("u8", "i8"), ("e4m3", "e5m2")}
    assert len({(p.a.order, p.b.order) for p in plans if p.a.dtype.bits == 16}) == 4
    assert {plan.c.order for plan in plans} == {"row", "col"}
    for name, values in {
        "schedule": 2, "loader": 3, "store": 2, "one_tile_per_cluster": 2, "staged_epilogue_k_tiles": 2,
        "reverse_odd_tiles": 2, "overlap": 2, "split": 3,
        "along": 2, "consumers": 3, "buffers": 3, "loaded_a_rows": 3, "cluster": 5,
        "launch": 2, "prefetch": 4, "trigger": 2, "l2_promotion": 2, "first": 3,
    }.items():  # fmt: skip
        assert len({getattr(plan.config, name) for plan in plans}) >= values, name


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LATER)) for n in TABLE])
def test_every_form_is_exact_and_silent(name: str) -> None:
    done = emulate(TABLE[name])
    assert not done.findings, done.report()


@pytest.mark.parametrize("name", [n for n in TABLE if n.startswith(("self,", "pingpong", "K in", "early", "a grid"))])
@pytest.mark.slow
def test_every_order_of_events(name: str) -> None:
    for policy in ORDERS[1:]:
        done = emulate(TABLE[name], policy, seed=1)
        assert not done.findings, done.report()


@pytest.mark.parametrize(
    ("name", "policy"), [("self, two blocks each", ORDERS[1]), ("pingpong", ORDERS[2]), ("16 rows", ORDERS[1])]
)
def test_another_order_of_events(name: str, policy: Policy) -> None:
    done = emulate(TABLE[name], policy, seed=1)
    assert not done.findings, done.report()


def test_a_kernel_takes_the_tiles_that_it_is_dealt(monkeypatch: pytest.MonkeyPatch) -> None:
    """If all clusters get the first tile, the other tiles are missing."""
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", "")
    monkeypatch.setattr(GpcOrder, "number", lambda self, nth, count, minimum=min: nth * 0)
    other = {"a grid of tiles, dealt out": (((0,), 1), ((1, 2, 3), 3)), "clusters dealt out": (((0, 1), 3),)}
    for name, rounds in other.items():
        product = TABLE[name]  # with rounds that no other test has: compiled kernels are kept in memory
        with pytest.raises(AssertionError, match="elements, the first at"):
            emulate(replace(product, config=replace(product.config, gpc_order=rounds)))


# ----------------------------------------------------------------------------------------------- what the compiler made


@pytest.mark.parametrize(("trigger", "words"), [("start", ["launch_dependents", "wait"]), ("end", ["wait"])])
def test_when_the_next_kernel_may_come(trigger: str, words: list[str]) -> None:
    """A block that says nothing lets it come when it ends; either way nothing is read before the wait."""
    first = TABLE["one tile, cluster 1x2, the next kernel at its end"]
    product = replace(first, config=replace(first.config, trigger=trigger))
    ptx = product.plan().compile().ptx
    assert re.findall(r"griddepcontrol\.(\w+)", ptx) == words
    loads = [at.start() for at in re.finditer(r"cp\.async\.bulk\.tensor[^\n]*mbarrier", ptx)]
    assert loads and min(loads) > ptx.index("griddepcontrol.wait")


@pytest.mark.parametrize(("first", "shared"), [(None, True), ("B", True), ("A", False)])
def test_the_order_of_the_first_loads(first: str | None, shared: bool) -> None:
    """Two blocks along M share B, whose copies are then the multicast ones."""
    product = TABLE["one tile, cluster 2x1, self"]
    product = replace(product, config=replace(product.config, first=first))
    ptx = product.plan().compile().ptx
    loads = re.findall(r"cp\.async\.bulk\.tensor[^\n]*mbarrier[^\n]*", ptx)
    assert [".multicast::cluster" in load for load in loads[:2]] == [shared, not shared]


LOOKED_AT = (
    "self", "warpgroup, three consumers", "pingpong, two blocks, early", "K in 2 parts of two blocks",
    "e4m3 times e5m2", "f32 columns", "widest", "tf32 to columns of f16, two blocks each, early",
    "i8 times u8 in clusters, early",
)  # fmt: skip


@pytest.mark.parametrize("name", LOOKED_AT)
def test_no_local_memory_and_products_that_overlap(name: str) -> None:
    plan = TABLE[name].plan()
    compiled = plan.compile()
    sass, used = compiled.sass(), compiled.resources
    assert sass.local_memory == () and used.local_bytes == used.stack_bytes == 0
    steps = len(plan.a.descriptor.k_steps)
    # The compiler may copy a k tile; of those at an early end each block has its own.
    each = steps if plan.config.staged_epilogue_k_tiles else steps * plan.blocks
    assert max(sass.wgmma_runs) == steps * plan.blocks
    assert sass.serialised_wgmma(each) is None, sass.serialised_wgmma(each)
    assert len(sass.wgmma_runs) >= 1 + plan.config.staged_epilogue_k_tiles
    if plan.registers is not None:
        assert sass.count("USETMAXREG") == 2
        assert used.registers == 65536 // plan.threads // 8 * 8
    else:
        assert sass.count("USETMAXREG") == 0
    assert used.registers * plan.threads <= 65536


@pytest.mark.parametrize("kind", ["bf16", "f16"])
@pytest.mark.parametrize("sizes", [(2048, 2048, 2048), (512, 8192, 8192)], ids=lambda s: "x".join(map(str, s)))
def test_halves_that_are_chosen_overlap(sizes: tuple[int, int, int], kind: str) -> None:
    """ptxas serialises the products of a tile that is finished by halves in most kernels: not in those chosen."""
    plan = choose(*sizes, a=kind)[0].plan(*sizes, a=kind, b=f"{kind}:col")
    assert plan.half is not None
    sass = plan.compile().sass()
    assert sass.serialised_wgmma(len(plan.a.descriptor.k_steps)) is None and sass.local_memory == ()


# ------------------------------------------------------------------------------------------------------- at random

KINDS = ("bf16:row", "bf16:col", "f16:row", "f16:col", "e4m3:row", "e5m2:row", "tf32:row", "i8:row")


@st.composite
def products(draw: st.DrawFn) -> Product:
    """Any configuration of small tiles, most of them refused."""
    consumers = draw(st.sampled_from((1, 1, 2, 3)))
    config = {
        "tile": (64 * consumers * draw(st.sampled_from((1, 1, 2))), 8 * draw(st.integers(1, 12))),
        "consumers": consumers,
        "stages": draw(st.integers(1, 4)),
        "schedule": draw(st.sampled_from(("cooperative", "cooperative", "pingpong"))),
        "loader": draw(st.sampled_from(("self", "warp", "warpgroup"))),
        "cluster": draw(st.sampled_from(((1, 1), (2, 1), (1, 2), (2, 2), (1, 3)))),
        "one_tile_per_cluster": draw(st.booleans()),
        "split": draw(st.sampled_from((1, 1, 2, 3))),
        "loaded_a_rows": draw(st.sampled_from((None, None, 8, 24))),
        "staged_epilogue_k_tiles": draw(st.sampled_from((0, 0, 1, 2))),
        "reverse_odd_tiles": draw(st.booleans()),
        "overlap": (overlap := draw(st.booleans())),
        "prefetch": draw(st.integers(0, 3)) if overlap else 0,
        "trigger": draw(st.sampled_from(("start", "end"))),
        "first": draw(st.sampled_from((None, "A", "B"))),
        "l2_promotion": draw(st.sampled_from(("none", "128B", "256B"))),
        "launch": draw(st.sampled_from(("workers", "workers", "tiles"))),
        "store": draw(st.sampled_from(("tma", "tma", "direct"))),
        "chunks": draw(st.integers(1, 3)),
        "buffers": draw(st.integers(1, 3)),
        "group": draw(st.integers(1, 3)),
        "along": draw(st.sampled_from("MN")),
    }
    a = draw(st.sampled_from(KINDS))
    pairs = {"e4": ("e4m3:col", "e5m2:col"), "e5": ("e4m3:col", "e5m2:col"), "i8": ("i8:col", "u8:col")}
    b = draw(st.sampled_from(pairs.get(a[:2], (f"{a[:-4]}:row", f"{a[:-4]}:col"))))
    outputs = ("bf16", "f16", "f32", "e4m3", "bf16:col", "f32:col", "e5m2:col")
    c = draw(st.sampled_from(("i32", "i32:col") if a[:2] == "i8" else outputs))
    sizes = [draw(st.integers(1, 200)), draw(st.integers(1, 200)), draw(st.integers(1, 400))]
    if config["loaded_a_rows"]:
        sizes[0] = min(sizes[0], config["loaded_a_rows"])
    return Product(
        *sizes, Sm90Config(**config), batch=draw(st.sampled_from((1, 1, 2))), a=a, b=b, c=c,
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
        # Beyond what registers hold, the kernel is right and slow: the other checks have to hold.
        assert {check.name for check in plan.check().failures} <= {"registers"}, str(plan.check())
        done = emulate(replace(product, workers=product.workers))
        assert not done.findings, done.report()
        return
    reject()  # all were refused: hypothesis draws another example, and fails where none is left


SETTINGS = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True}


@settings(max_examples=3, phases=(Phase.generate,), **SETTINGS)
@given(st.data())
def test_any_configuration(data: st.DataObject) -> None:
    held(data)


@pytest.mark.slow
@settings(max_examples=40, **{**SETTINGS, "derandomize": False})
@given(st.data())
def test_many_configurations(data: st.DataObject) -> None:
    held(data)
