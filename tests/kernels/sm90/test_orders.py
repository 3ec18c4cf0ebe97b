"""Orders of tiles in Hopper's kernel: some tiles, lists, ranks, triangular operands, symmetric products."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from layoutgemm import plan as plan_of
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Ragged, Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Amax,
    Aux,
    Bias,
    ColumnReduce,
    Custom,
    Epilogue,
    Quantize,
    Reduction,
    Residual,
    RowReduce,
    Scale,
    VectorScale,
)
from layoutgemm.kernels.operands.promoted import mainloop_of
from layoutgemm.kernels.orders import order_values, stored_elements
from layoutgemm.kernels.run.hardware_model import unwritten
from layoutgemm.kernels.sm90.triangular.operands import Triangles
from layoutgemm.layouts import Layout
from layoutgemm.schedule import Banded, Formula, Grouped, Linear, Rotated, Triangular
from tests import needs
from tests.kernels.sm90.other_orders import each_policy, stored_in_order

needs_dsl = needs.DSL
SLOW = [pytest.mark.slow]
ONE = Sm90Config((64, 64), consumers=1, stages=3, loader="warp")
SELF = replace(ONE, loader="self")
PAIR = Sm90Config((64, 128), consumers=1, stages=2, cluster=(2, 1))
PINGPONG = Sm90Config((64, 64), schedule="pingpong", loader="warp", stages=3)
SPLIT = Sm90Config((64, 64), consumers=1, stages=2, split=2, one_tile_per_cluster=True)
BACKWARDS = Formula.of(lambda t, rows, columns: (rows - 1 - t % rows, columns - 1 - t // rows))
RANKS = Rotated(Linear("N"), ranks=4)
SCALES = np.exp2(np.arange(136 * 3).reshape(136, 3) % 3 - 1).astype(np.float32)
# Configuration, type of C, sizes, batch, what `derive` is given, and what a run is.
FORMS: dict[str, tuple[Sm90Config, str, tuple[int, int, int], int, dict[str, Any], dict[str, Any]]] = {
    "lower": (ONE, "f32", (200, 264, 72), 1, {"order": "lower"}, {}),
    "upper": (PAIR, "bf16", (300, 264, 72), 1, {"order": "upper"}, {}),
    "lower pingpong": (PINGPONG, "bf16:col", (200, 200, 136), 1, {"order": Triangular(group=1)}, {}),
    "lower split": (SPLIT, "f32", (200, 136, 200), 1, {"order": "lower"}, {}),
    "lower batch": (SELF, "f32", (136, 136, 72), 3, {"order": "lower"}, {}),
    "lower threads": (replace(SELF, store="direct"), "bf16", (199, 199, 72), 1, {"order": "lower"}, {}),
    "hilbert": (ONE, "f32", (200, 264, 72), 1, {"order": "hilbert"}, {}),
    "band": (SELF, "bf16", (264, 264, 72), 1, {"order": Banded("M", 70, 0)}, {}),
    "list": (ONE, "f32", (200, 264, 72), 2, {"order": "list"}, {"tiles": np.array([[1, 2], [3, 0], [0, 4]])}),
    "rank": (ONE, "f32", (264, 136, 72), 1, {"order": RANKS}, {"rank": 3}),
    "function": (PAIR, "f32", (264, 200, 72), 2, {"order": BACKWARDS}, {}),
    "layout": (ONE, "f32", (136, 136, 72), 1, {"order": Layout((3, 3), (3, 1))}, {}),
    "A lower": (ONE, "f32", (264, 136, 264), 1, {"triangles": Triangles("lower")}, {}),
    "A upper": (replace(ONE, tile_k=32), "bf16", (136, 72, 328), 2, {"triangles": Triangles("upper")}, {}),
    "B lower": (replace(PAIR, loader="warpgroup"), "f32", (136, 264, 264), 1, {"triangles": Triangles(b="lower")}, {}),
    "both": (ONE, "f32", (200, 200, 200), 1, {"triangles": Triangles("lower", "lower"), "order": "lower"}, {}),
    "pairs of triangles": (replace(PAIR, loader="warpgroup"), "f32", (136, 264, 328), 1,
                           {"triangles": Triangles("upper", "lower"), "pair": 72}, {}),
    "symmetric": (ONE, "bf16", (264, 264, 72), 1, {"order": "symmetric"}, {}),
    "symmetric pair": (PAIR, "f32", (328, 328, 72), 1, {"order": "symmetric"}, {}),
    "symmetric col": (replace(PAIR, loader="warp", chunks=1, buffers=2), "f16:col", (264, 264, 72), 2,
                      {"order": "symmetric"}, {}),
    "symmetric pingpong": (PINGPONG, "bf16", (200, 200, 136), 1, {"order": "symmetric"}, {}),
    "symmetric scales": (ONE, "bf16", (136, 136, 264), 1, {"order": "symmetric", "mainloop": mainloop_of((1, 1))},
                         {"scale_a": SCALES, "scale_b": SCALES}),
}  # fmt: skip
QUICK = ("lower", "upper", "list", "A lower", "symmetric")
Problem = tuple[Sm90Plan, np.ndarray, np.ndarray, dict[str, Any], np.ndarray, np.ndarray]


def problem(form: str) -> Problem:
    """Plan, A, B, what is given, the product, and True where it is stored."""
    config, c, (m, n, k), batch, asked, given = FORMS[form]
    plan = Sm90Plan.derive(m, n, k, batch=batch, b="bf16:col", c=c, config=config, **asked)
    rng = np.random.default_rng(1)
    front = (batch,) * (batch > 1)
    a, b = (rng.integers(-2, 3, (*front, *shape)).astype(np.float32) for shape in ((m, k), (k, n)))
    cut = {None: lambda x: x, "lower": np.tril, "upper": np.triu}
    if plan.triangles is not None:
        a, b = cut[plan.triangles.a](a), cut[plan.triangles.b](b)
    if plan.mirror is not None:
        b = a.swapaxes(-1, -2)
    exact = a @ b if plan.mainloop is None else plan.mainloop.reference(a, b, **given)
    if plan.pair is not None:
        a2, b2 = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((m, plan.pair.k), (plan.pair.k, n)))
        given, exact = {**given, "a2": a2, "b2": b2}, exact + a2 @ b2
    want = np.asarray(plan.c.dtype.decode(plan.c.dtype.encode(exact)))
    stored = stored_elements(plan, order_values(plan, given))
    return plan, a, b, given, want, np.ones(want.shape[-2:], bool) if stored is None else stored


@pytest.mark.parametrize("form", FORMS)
def test_executor_is_exact_and_the_checks_hold(form: str) -> None:
    plan, a, b, given, want, stored = problem(form)
    plan.check().require()
    found = plan.run(a, b, given=given, device="reference").c
    assert np.array_equal(found, np.where(stored, want, 0))


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("form", [pytest.param(x, marks=SLOW * (x not in QUICK)) for x in FORMS])
@each_policy
def test_compiled_kernel_is_exact_and_touches_no_other_tile(form: str, policy: Policy) -> None:
    plan, a, b, given, want, stored = problem(form)
    found = stored_in_order(plan, a, b, given, policy)
    outside = np.broadcast_to(~stored, found.shape)
    assert np.array_equal(found[~outside], plan.c.dtype.encode(want)[~outside])
    assert np.array_equal(found[outside], unwritten(plan.c.dtype, found.shape)[outside])


@pytest.mark.parametrize("form", ["lower", "list"])
def test_out_keeps_its_values_outside_of_the_set(form: str) -> None:
    plan, a, b, given, want, stored = problem(form)
    out = np.full(want.shape, 7, np.float32)
    assert plan.run(a, b, given=given, device="reference", out=out).c is out
    assert np.array_equal(out, np.where(stored, want, 7))


def test_tiles_that_are_not_of_the_set_cost_nothing() -> None:
    plan = plan_of(8192, 8192, 8192, b="bf16:col", order="lower", config=Sm90Config((128, 256), cluster=(2, 1)))
    assert "528 of 1024 tiles, 51.6% of the grid" in plan.explain()
    both = Sm90Plan.derive(4096, 4096, 4096, triangles=Triangles("lower", "lower"), order="lower")
    share = next(line for line in both.explain().splitlines() if line.startswith("Triangles"))
    assert 30 < float(share.split(": ")[1].split("%")[0]) < 40


def test_the_rule_chooses_for_the_tiles_of_the_set() -> None:
    lower, narrow = (plan_of(2048, 2048, 4096, b="bf16:col", order=order) for order in ("lower", None))
    assert isinstance(lower, Sm90Plan) and lower.check() and lower.config != narrow.config
    for sizes in ((128, 128, 64), (4096, 4096, 512)):
        assert plan_of(*sizes, b="bf16:col", order="symmetric").check()


@needs_dsl
@pytest.mark.dsl
def test_equal_sums_of_a_symmetric_product_have_equal_results() -> None:
    own = Custom.of(lambda x, i, j, ops: ops.exp(-abs(x)) * x)
    near = Custom.of(lambda x, i, j, ops: ops.where(abs(i - j) < 100, x, ops.round(x * ops.float(i + j))))
    epilogue = Epilogue(Scale("s"), own, Activation("relu"), near)
    plan = Sm90Plan.derive(136, 136, 72, b="bf16:col", config=ONE, order="symmetric", epilogue=epilogue)
    assert plan.check()
    a = np.random.default_rng(0).integers(-3, 4, (136, 72)).astype(np.float32) / 4
    c = plan.run(a, a.T, given={"s": 0.25}, device="emulator").c
    x = 0.25 * (a.astype(np.float64) @ a.T)
    want, (i, j) = np.maximum(np.exp(-np.abs(x)) * x, 0), np.indices(x.shape)
    want = np.where(np.abs(i - j) < 100, want, np.rint(want * (i + j)))
    assert np.array_equal(c, c.T) and np.abs(c - want).max() < 2e-3 * max(1, want.max())


# Steps of a symmetric product, and its configuration: vectors, matrices and reductions in both of a tile's places.
BEST = Reduction.of(
    lambda x, i, j, ops: (x * ops.float(j), ops.float(i)), lambda a, b, ops: (a[0] + b[0], ops.maximum(a[1], b[1])),
    identity=(0.0, -1.0), finish=lambda a, ops: (a[0], a[1]), results=("moment", "last"),
)  # fmt: skip
WINDOW = Custom.of(lambda x, i, j, ops: ops.where((j <= i) & (i - j < 90), x, -1.0))
PLACED: dict[str, tuple[Epilogue, Sm90Config]] = {
    "a matrix": (Epilogue(Bias(), VectorScale("m", name="v"), Residual("f32")), PAIR),
    "a matrix in lines": (Epilogue(Residual("bf16")).in_pairs(lines=True), ONE),
    "rows and columns": (
        Epilogue(WINDOW, RowReduce("argmax"), ColumnReduce("sum"), RowReduce(BEST, "own"), Amax()),
        PAIR,
    ),
    "without C": (Epilogue(Bias(), RowReduce("max"), ColumnReduce("argmin"), stores_c=False), PINGPONG),
    "in memory": (Epilogue(Bias(), Aux("f32"), RowReduce("sum", ordered=False), ColumnReduce("max")), ONE),
}


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    ("name", "batch"),
    [
        ("a matrix in lines", 1),
        ("rows and columns", 2),
        ("without C", 1),
        pytest.param("a matrix", 2, marks=SLOW),
        pytest.param("rows and columns", 1, marks=SLOW),
        pytest.param("in memory", 1, marks=SLOW),
    ],
)
def test_a_symmetric_product_has_its_steps_at_both_places(name: str, batch: int) -> None:
    (epilogue, config), n = PLACED[name], 200
    half: Literal["lower", "upper"] = "upper" if batch == 2 else "lower"
    order, kind = Triangular(half, mirror=True), "bf16:col"
    plan = Sm90Plan.derive(n, n, 72, b=kind, c="f32", batch=batch, config=config, order=order, epilogue=epilogue)
    plan.check().require()
    rng, front = np.random.default_rng(0), (batch,) * (batch > 1)

    def drawn(*shape: int) -> np.ndarray:
        return rng.integers(-3, 4, (*front, *shape)).astype(np.float32)

    a, sizes = drawn(n, 72), {"n": (n,), "m": (n,), "mn": (n, n)}
    given = {x.name: 2.0 if x.host else drawn(*sizes[x.axes]) for x in epilogue.given if not x.written}
    done = plan.run(a, a.swapaxes(-1, -2), given=given, device="emulator")
    want = epilogue.reference(a @ a.swapaxes(-1, -2), **given)
    assert done.c is None or np.array_equal(done.c, want.c)
    assert set(done.written) == set(want.written)
    for key, value in want.written.items():
        assert np.array_equal(done.written[key], value), key


@pytest.mark.parametrize(("n", "tiles"), [(4096, 528), (6144, 528), (8192, 1056)])
def test_a_triangle_takes_tiles_that_fill_whole_rounds(n: int, tiles: int) -> None:
    """528 and 1056 tiles are four and eight rounds of 132 SMs."""
    plan = plan_of(n, n, n, b="bf16:col", order="lower")
    assert isinstance(plan, Sm90Plan)
    assert plan.order.schedule.count(plan.order.clusters(plan.tiles)) * plan.cluster_size == tiles


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"order": "spiral"}, "known are columns, rows"),
    ({"order": 3}, "a Schedule or a Layout or a string or a function"),
    ({"order": Layout(7)}, "a layout of 7 tiles"),
    ({"order": "lower", "config": replace(SELF, launch="tiles")}, "a grid of tiles has its own order"),
    (
        {"order": "lower", "batch": 2, "ragged": Ragged.of(2), "a": "bf16"},
        "an order of some tiles and groups of rows",
    ),
    (
        {"order": RANKS, "batch": 2, "ragged": Ragged.of(2)},
        "an order that reads words and groups of rows",
    ),
    ({"order": "symmetric", "n": 256}, "C is square, not 128x256"),
    ({"order": "symmetric", "config": replace(ONE, tile=(64, 128))}, "needs square tiles"),
    ({"order": "symmetric", "config": replace(ONE, store="direct")}, "a symmetric product takes 'tma'"),
    ({"order": "symmetric", "mainloop": mainloop_of((1, 128))}, "'symmetric': .* one group .* 128 columns of B"),
    ({"order": "symmetric", "config": SPLIT}, "split = 2: a symmetric product takes 1"),
    (
        {"order": "symmetric", "epilogue": Epilogue(RowReduce("max", each=32))},
        "results or functions of groups of columns and a symmetric order: a tile is stored again transposed",
    ),
    ({"order": "symmetric", "epilogue": Epilogue(Quantize()), "c": "e4m3"}, "groups of columns and a symmetric order"),
    ({"triangles": Triangles("lower"), "config": SELF}, "loader = 'self'"),
    ({"triangles": Triangles("lower"), "config": PINGPONG}, "schedule = 'pingpong'"),
    ({"triangles": Triangles("lower"), "config": ONE.tuned(reverse_odd_tiles=True)}, "reverse_odd_tiles = True"),
    ({"triangles": Triangles(b="lower"), "gated": "silu", "config": ONE}, "a tile has columns of 2 places of B"),
]


@pytest.mark.parametrize(("asked", "said"), REFUSED)
def test_what_has_no_kernel_is_refused_by_name(asked: dict[str, Any], said: str) -> None:
    asked = {"config": ONE, "b": "bf16:col", "n": 128, **asked}
    with pytest.raises(PlanError, match=said):
        Sm90Plan.derive(128, asked.pop("n"), 64, **asked)


def test_wrong_operands_are_refused_by_name() -> None:
    plan, a, b, _, _, _ = problem("A lower")
    a[3, 5] = 2
    with pytest.raises(OperandError, match=r"a is lower triangular, and a\[3, 5\] is 2.0"):
        plan.run(a, b, device="reference")
    plan, a, b, _, _, _ = problem("rank")
    for given, said in (({}, "rank is an integer"), ({"rank": 4}, "of 4 ranks"), ({"rank": -1}, "from 0 on")):
        with pytest.raises(OperandError, match=said):
            plan.run(a, b, given=given, device="reference")
    with pytest.raises(OperandError, match="given = tiles: the order reads rank"):
        plan.run(a, b, given={"rank": 0, "tiles": 1}, device="reference")
    fused = Sm90Plan.derive(64, 64, 64, config=ONE, order=RANKS, epilogue=Epilogue(Bias()))
    ones, bias = np.ones((64, 64), np.float32), np.zeros(64, np.float32)
    for given, said in (
        ({}, "rank is an integer"),
        ({"rank": 4}, "of 4 ranks"),
        ({"rank": 0, "x": 1}, "x is no operand"),
    ):
        with pytest.raises(OperandError, match=said):
            fused.run(ones, ones, given={"bias": bias, **given}, device="emulator")


@needs_dsl
@pytest.mark.dsl
def test_an_epilogue_without_c_follows_an_order_that_reads_a_list() -> None:
    """The largest product of each row in a band, for each 64 columns; results of tiles beyond the band are zeros."""
    m, n, k, width = 200, 136, 40, 64
    steps = Epilogue(RowReduce("argmax", "best", each=width), Aux("f32"), stores_c=False)
    plan = Sm90Plan.derive(m, n, k, b="bf16:col", c="f32", config=ONE, epilogue=steps, order=Banded(below=20, above=0))
    assert plan.check() and plan.order.schedule.words == ("tiles", "tile_count")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((m, k), (k, n)))
    found = plan.run(a, b, device="emulator")
    assert found.c is None
    product, right = a @ b, np.zeros((m, n), np.float32)
    best = np.zeros((m, 3), np.float32)
    for row, column in [(0, 0), (1, 0), (1, 1), (2, 1), (2, 2), (3, 2)]:
        rows, columns = slice(64 * row, 64 * row + 64), slice(width * column, width * column + width)
        right[rows, columns] = product[rows, columns]
        best[rows, column] = product[rows, columns].max(1)
    assert np.array_equal(found.written["aux"], right) and np.array_equal(found.written["best_value"], best)
    with pytest.raises(OperandError, match="the epilogue stores no C"):
        plan.run(a, b, out=right.copy(), device="emulator")


def failing(plan: Sm90Plan) -> dict[str, str]:
    return {check.name: check.witness for check in plan.check() if not check and check.name != "derivation"}


def test_a_refused_order_names_the_first_tile() -> None:
    twice = Formula.of(lambda t, rows, columns: (t % rows, t % columns))
    plan = Sm90Plan.derive(128, 128, 64, config=ONE, order=twice)
    assert failing(plan) == {"tiles of C": "tile (0, 0) is visited as number 0 and again as number 2"}
    missed = Formula.of(
        lambda t, rows, columns: (t % rows, t // rows), lambda rows, columns: rows * columns - 1,
        lambda row, column, rows, columns: row * 0 + 1,
    )  # fmt: skip
    plan = Sm90Plan.derive(128, 128, 64, config=ONE, order=missed)
    assert failing(plan) == {"tiles of C": "tile (1, 1) is never visited"}


def test_wrong_plans_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = problem("symmetric")[0]
    assert failing(plan) == {} and plan.mirror is not None
    rounds = plan.mirror.rounds
    assert "transposed store" in failing(replace(plan, mirror=replace(plan.mirror, rounds=rounds[1:])))
    assert "transposed store" in failing(replace(plan, mirror=plan.store))
    assert "transposed store" in failing(replace(plan, mirror=replace(plan.mirror, buffers=2)))
    triangular = problem("A lower")[0]
    assert failing(triangular) == {}

    def shorter(self: Triangles, *arguments: Any) -> tuple[Any, Any]:
        first, count = of_triangles(self, *arguments)
        return first, count - 1

    of_triangles = Triangles.k_tiles
    monkeypatch.setattr(Triangles, "k_tiles", shorter)
    assert "triangular operands" in failing(triangular)


def test_a_plan_with_an_order_is_the_derived_one() -> None:
    for form in ("lower", "rank", "symmetric", "function"):
        assert problem(form)[0].check()
    plan = problem("lower")[0]
    other = replace(plan, order=replace(plan.order, schedule=Grouped(group=3)))
    assert other.check()  # any proven order of every tile is an order of this kernel


@needs_dsl
@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize(
    "asked",
    [
        {"order": "lower", "config": Sm90Config((128, 256), cluster=(2, 1))},
        {"order": "lower"},
        {"order": "symmetric"},
        {"triangles": Triangles("lower"), "config": Sm90Config((128, 256), cluster=(2, 1), loader="warpgroup")},
    ],
    ids=["lower", "chosen", "symmetric", "triangular"],
)
def test_the_compiled_code(asked: dict[str, Any]) -> None:
    """No spills, and products of a K tile are issued together."""
    make = Sm90Plan.derive if "triangles" in asked else plan_of
    plan = make(4096, 4096, 4096, b="bf16:col", **asked)
    compiled = plan.compile()
    sass, used = compiled.sass(), compiled.resources
    assert sass.local_memory == () and used.local_bytes == used.stack_bytes == 0
    assert sass.serialised_wgmma(len(plan.a.descriptor.k_steps)) is None
