"""layoutgemm.jax.matmul of several parts: values, transforms, derivatives, meshes, refusals, and launches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.errors import LayoutError, OperandError
from layoutgemm.jax import matmul
from layoutgemm.jax_op.composed import api, gpu
from layoutgemm.jax_op.composed.plans import checked_plan
from layoutgemm.jax_op.composed.product import ComposedProduct
from layoutgemm.kernels import Prologue
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, Scale
from layoutgemm.kernels.orders import cluster_tile
from layoutgemm.schedule import Linear, Rotated
from tests.jax_op.emulated import emulate_calls

M, N, K, K2 = 24, 16, 32, 16
NORM = Prologue.of(lambda x, i, k, ops, s: x * s, s="m")


def normal(*shape: int, kind: str = "bfloat16", seed: int = 0) -> Any:
    values = np.random.default_rng((seed, *shape)).standard_normal(shape) * 0.5
    return jnp.asarray(values.astype(np.float32), jnp.dtype(kind))  # rounded by NumPy, which compiles nothing


def wide(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


A, A2 = normal(M, K), normal(M, K2)
B, B1, B2 = normal(K, N, seed=1), normal(K, N, seed=2), normal(K2, N, seed=3)
BIAS, S = normal(N, kind="float32"), abs(normal(M, kind="float32"))
ROWS = jnp.asarray(np.random.default_rng(0).integers(0, M, M))
OUT_ROWS = jnp.asarray(np.random.default_rng(1).permutation(M + 8)[:M])
OUT = normal(M + 8, N, kind="float32", seed=4)
SQUARE = normal(300, K, seed=5)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def scattered(value: np.ndarray) -> np.ndarray:
    found = wide(OUT).copy()
    found[np.asarray(OUT_ROWS)] = value
    return found


def case(want: Callable[[], np.ndarray], a: Any = A, b: Any = B, **more: Any) -> tuple[Any, Any, dict[str, Any], Any]:
    return a, b, {"out_dtype": "float32", **more}, want


def product(a: Any = A, b: Any = B) -> np.ndarray:
    found: np.ndarray = wide(a) @ wide(b)
    return found


PAIR = {"a": (A, A2), "b": (B, B2)}
BATCH = {  # of two pairs, of two matrices B each: all differ from matrix to matrix
    "a": (jnp.stack([A, A * 2]), jnp.stack([A2, A2 * 3])),
    "b": ((jnp.stack([B, B1]), jnp.stack([B1, -B])), (jnp.stack([B2, -B2]), jnp.stack([B2 * 2, B2]))),
}


def of_batch() -> np.ndarray:
    """p - s * q of BATCH, with s = 2."""
    (a, a2), ((b, b1), (b2, b3)) = BATCH["a"], BATCH["b"]
    return product(a, b) + product(a2, b2) - 2 * (product(a, b1) + product(a2, b3))


CASES = {
    "a gate of two": case(lambda: silu(product()) * product(b=B1), b=(B, B1), combine="silu"),
    "a function of three": case(
        lambda: product() - 2 * product(b=B1) * product(b=B), b=(B, B1, B),
        combine=lambda p, q, r, ops, s: p - s * q * r, given={"s": 2},
    ),
    "a function behind rows": case(
        lambda: np.maximum(product()[np.asarray(ROWS)] * product(b=B1)[np.asarray(ROWS)] + wide(BIAS), 0), b=(B, B1),
        combine=lambda p, q, ops: p * q, rows=ROWS, bias=BIAS, activation="relu",
    ),
    "pairs": case(lambda: product() + product(A2, B2) + wide(BIAS), **PAIR, bias=BIAS),
    "pairs of an epilogue": case(
        lambda: 3 * (product() + product(A2, B2)) + wide(BIAS), **PAIR, epilogue=Epilogue(Scale(), Bias()),
        given={"alpha": 3.0, "bias": BIAS},
    ),
    "rows": case(lambda: product()[np.asarray(ROWS)], rows=ROWS),
    "rows in the kernel": case(lambda: product()[np.asarray(ROWS)], rows=ROWS.astype("int32"), copy_rows=False),
    "rows of both": case(
        lambda: scattered(product()[np.asarray(ROWS)] * wide(S)[:, None]), rows=ROWS, out_rows=OUT_ROWS,
        row_weights=S, out=OUT,
    ),
    "a gate behind a prologue": case(
        lambda: silu(product(A * S[:, None].astype("bfloat16"))[:, : N // 2])
        * product(A * S[:, None].astype("bfloat16"))[:, N // 2 :],
        prologue=NORM, given={"s": S.astype("bfloat16").astype("float32")}, activation="swiglu",
    ),
    "rows of a prologue": case(
        lambda: product(A * S[:, None].astype("bfloat16"))[np.asarray(ROWS)], rows=ROWS, prologue=NORM,
        given={"s": S.astype("bfloat16").astype("float32")},
    ),
    "a gate before an epilogue": case(
        lambda: 2 * silu(product()[:, : N // 2]) * product()[:, N // 2 :], activation="swiglu",
        epilogue=Epilogue(Scale()), given={"alpha": 2.0},
    ),
    "all rows in another order": case(lambda: product() + wide(BIAS), order="hilbert", bias=BIAS),
    "a batch of an order": case(
        lambda: np.stack([product(), product(-A)]), a=jnp.stack([A, -A]), b=jnp.stack([B, B]), order="rows"
    ),
    "a batch of rows": case(
        lambda: np.stack([product() * product(b=B1), product(-A) * product(-A, B1)]), a=jnp.stack([A, -A]), b=(B, B1),
        combine=lambda p, q, ops: p * q,
    ),
    "a batch of two pairs": case(of_batch, **BATCH, combine=lambda p, q, ops, s: p - s * q, given={"s": 2}),
    "a batch turned": case(
        of_batch, a=tuple([x.mT for x in BATCH["a"]]), b=tuple([tuple([x.mT for x in each]) for each in BATCH["b"]]),
        combine=lambda p, q, ops, s: p - s * q, given={"s": 2}, transpose_a=True, transpose_b=True,
    ),
}  # fmt: skip


def called(name: str, **more: Any) -> Any:
    a, b, given, _ = CASES[name]
    return matmul(a, b, **{**given, **more})


@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_float64(name: str) -> None:
    want = CASES[name][3]()
    found = called(name)
    assert found.shape == want.shape and found.dtype == "float32"
    np.testing.assert_allclose(np.asarray(found), want, rtol=2e-5, atol=2e-5)


# ------------------------------------------------------------------------------------------------------ orders of tiles


def tile_of(order: Any) -> tuple[int, int]:
    """Rows and columns of a tile of SQUARE's product in that order."""
    shape = SQUARE.shape
    plan = checked_plan(
        ComposedProduct(shape, shape, ("bfloat16", "bfloat16", "float32"), (False, True), None, None, order=order)
    )
    return cluster_tile(plan)


def square(order: Any, **more: Any) -> Any:
    return matmul(SQUARE, SQUARE, transpose_b=True, order=order, out_dtype="float32", **more)


def test_an_order_of_some_tiles_computes_those_alone() -> None:
    want, (high, wide_) = product(b=SQUARE.T, a=SQUARE), tile_of("lower")
    i, j = np.indices(want.shape)
    inside = j // wide_ * wide_ <= i // high * high + high - 1
    assert 0 < inside.sum() < inside.size
    np.testing.assert_allclose(square("lower"), np.where(inside, want, 0), rtol=1e-5, atol=1e-5)
    out = normal(300, 300, kind="float32")
    np.testing.assert_allclose(square("lower", out=out), np.where(inside, want, wide(out)), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(square("symmetric"), want, rtol=1e-5, atol=1e-5)


def test_a_list_of_tiles_is_known_or_traced() -> None:
    want, (high, wide_) = product(b=SQUARE.T, a=SQUARE), tile_of("list")
    i, j = np.indices(want.shape)
    inside = ((i // high == 1) & (j // wide_ == 0)) | ((i // high == 0) & (j // wide_ == 1))
    assert 0 < inside.sum() < inside.size
    tiles = np.array([[1, 0], [0, 1]])
    np.testing.assert_allclose(square("list", given={"tiles": tiles}), np.where(inside, want, 0), rtol=1e-5, atol=1e-5)
    with pytest.raises(LayoutError, match="tiles: "):
        square("list", given={"tiles": tiles[[0, 0]]})
    listed = jnp.array([1, 65536, -7], jnp.int32)
    found = jax.jit(lambda tiles: square("list", given={"tiles": tiles}))(listed)
    np.testing.assert_allclose(found, np.where(inside, want, 0), rtol=1e-5, atol=1e-5)
    with pytest.raises(OperandError, match=r"tiles is int32 of shape \(2, 2\) and traced: an int32 vector"):
        jax.jit(lambda tiles: square("list", given={"tiles": tiles}))(jnp.asarray(tiles))


def test_an_order_s_number_is_the_launch_s() -> None:
    order = Rotated(Linear("N"), ranks=2)
    np.testing.assert_allclose(square(order, given={"rank": 1}), product(b=SQUARE.T, a=SQUARE), rtol=1e-5, atol=1e-5)
    with pytest.raises(OperandError, match="rank is traced, and an order's number"):
        jax.jit(lambda rank: square(order, given={"rank": rank}))(1)
    with pytest.raises(LayoutError, match="rank = 2: the order is of 2 ranks"):
        square(order, given={"rank": 2})


# ----------------------------------------------------------------------------------------------------------- transforms


def test_vmap_is_a_call_after_another_or_one_of_all_rows() -> None:
    a = jnp.stack([A, -A, A * 2])

    def combined(a: Any) -> Any:
        return matmul(a, (B, B1), combine="silu", bias=BIAS, out_dtype="float32")

    found = jax.vmap(combined)(a)
    np.testing.assert_allclose(found, np.stack([combined(x) for x in a]), rtol=1e-5, atol=1e-5)
    text = str(jax.make_jaxpr(jax.vmap(combined))(a))
    assert f"bf16[{3 * M},{K}]" in text and "scan" not in text
    rows = jnp.stack([ROWS, ROWS[::-1]])
    found = jax.vmap(lambda rows, b: matmul(A, b, rows=rows, out_dtype="float32"))(rows, jnp.stack([B, B1]))
    want = [product()[np.asarray(ROWS)], product(b=B1)[np.asarray(ROWS[::-1])]]
    np.testing.assert_allclose(found, np.stack(want), rtol=1e-5, atol=1e-5)


def test_indices_outside_read_zeros_and_write_nothing_where_they_are_not_known() -> None:
    rows, places = ROWS.at[0].set(-1).at[1].set(M), OUT_ROWS.at[2].set(-1).at[3].set(99)
    found = jax.jit(lambda *x: matmul(A, B, rows=x[0], out_rows=x[1], out=OUT, out_dtype="float32"))(rows, places)
    want, value = wide(OUT).copy(), product()[np.asarray(rows) % M]
    value[:2] = 0
    for i in [i for i in range(M) if i not in (2, 3)]:
        want[int(OUT_ROWS[i])] = value[i]
    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-5)
    for more, said in (
        ({"rows": rows}, r"rows\[0\] = -1: a has 24 rows"),
        ({"out_rows": places, "out": OUT}, "out_rows"),
    ):
        with pytest.raises(OperandError, match=said):
            matmul(A, B, out_dtype="float32", **more)
    with pytest.raises(OperandError, match="out_rows"):
        matmul(A, B, out_rows=OUT_ROWS.at[0].set(OUT_ROWS[1]), out=OUT, out_dtype="float32")


def close(found: Any, want: Any) -> None:
    x, y = wide(found), wide(want)
    assert x.shape == y.shape and np.abs(x - y).max() <= 0.01 * np.abs(y).max()


def test_gradients_are_those_of_jax() -> None:
    def theirs(a: Any, b: Any, b1: Any, bias: Any, weights: Any, out: Any) -> Any:
        x = a.astype("float32")[ROWS]
        p, q = (jnp.matmul(x, y.astype("float32"), precision="highest") for y in (b, b1))
        return (out.at[OUT_ROWS].set((p * jnp.tanh(q) + bias) * weights[:, None]) ** 2).sum()

    def ours(a: Any, b: Any, b1: Any, bias: Any, weights: Any, out: Any) -> Any:
        how = lambda p, q, ops: p * ops.tanh(q)  # noqa: E731
        given = {"rows": ROWS, "out_rows": OUT_ROWS, "row_weights": weights, "bias": bias, "out": out}
        return (matmul(a, (b, b1), combine=how, out_dtype="float32", **given) ** 2).sum()

    given = A, B, B1, BIAS, S, OUT
    for x, y in zip(*[jax.jit(jax.grad(f, range(6)))(*given) for f in (ours, theirs)], strict=True):
        close(x, y)


def test_gradients_of_tiles_and_pairs() -> None:
    mask = jnp.asarray(np.asarray(square("lower")) != 0)
    plain = jax.grad(lambda a: (jnp.where(mask, jnp.matmul(a, SQUARE.astype("float32").T), 0) ** 2).sum())
    found = jax.grad(lambda a: (matmul(a, SQUARE, transpose_b=True, order="lower", out_dtype="float32") ** 2).sum())
    close(found(SQUARE), plain(SQUARE.astype("float32")))
    of_pairs = jax.grad(lambda *x: matmul((x[0], x[2]), (x[1], x[3]), out_dtype="float32").sum(), range(4))
    ones = np.ones((M, N))
    want = ones @ wide(B).T, wide(A).T @ ones, ones @ wide(B2).T, wide(A2).T @ ones
    for x, y in zip(of_pairs(A, B, A2, B2), want, strict=True):
        close(x, y)


def test_a_mesh_cuts_rows_and_columns(mesh: Any) -> None:
    def put(x: Any, *axes: Any) -> Any:
        return jax.device_put(x, jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes)))

    def combined(a: Any, b: Any, b1: Any, bias: Any) -> Any:
        return matmul(a, (b, b1), combine="silu", bias=bias, activation="relu", out_dtype="float32")

    shards = put(A, "x", None), put(B, None, "y"), put(B1, None, "y"), put(BIAS, "y")
    compiled = jax.jit(combined).lower(*shards).compile()
    found = compiled(*shards)
    assert found.sharding.spec == jax.sharding.PartitionSpec("x", "y") and "all-gather" not in compiled.as_text()
    np.testing.assert_allclose(found, combined(A, B, B1, BIAS), rtol=1e-5, atol=1e-5)
    by_k = jax.jit(combined)(put(A, None, "x"), put(B, "x", None), put(B1, "x", None), BIAS)
    np.testing.assert_allclose(by_k, combined(A, B, B1, BIAS), rtol=1e-5, atol=1e-5)
    pairs = jax.jit(lambda a, a2: matmul((a, a2), (B, B2), out_dtype="float32"))(put(A, "x"), put(A2, ("x", "y")))
    np.testing.assert_allclose(pairs, matmul((A, A2), (B, B2), out_dtype="float32"), rtol=1e-5, atol=1e-5)
    rows = jax.jit(lambda a, rows: matmul(a, B, rows=rows, out_dtype="float32"))(put(A, "x"), put(ROWS, "y"))
    np.testing.assert_allclose(rows, product()[np.asarray(ROWS)], rtol=1e-5, atol=1e-5)
    spec = jax.sharding.PartitionSpec(("x", "y"))
    mapped = jax.shard_map(
        lambda a: matmul((a, a), (B, B1), out_dtype="float32"), mesh=mesh, in_specs=spec, out_specs=spec
    )
    np.testing.assert_allclose(mapped(A), product() + product(b=B1), rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"b": (B,), "combine": "silu"}, "b is 1 matrices: combine= takes a tuple of 2 to 4"),
        ({"b": (B, B1)}, "a is 1 arrays and b 2: one of each, or two pairs; or combine="),
        ({"a": (A, A), "b": (B, B1), "combine": "silu"}, "b is of ArrayImpl and ArrayImpl: combine= of two a"),
        ({"b": (B, B1[:, :8]), "combine": "silu"}, "b[1] of (32, 8): the first are of (24, 32) and (32, 16)"),
        ({"b": (B, B1.astype("float16")), "combine": "silu"}, "b[1] float16: matrices of one type"),
        ({"b": (B, B1), "combine": "silu", "activation": "swiglu"}, "activation and combine: the function"),
        ({"b": (B, B1), "combine": lambda p, q, ops, s: p * s}, "called with (sum0, sum1, ops)"),
        ({"b": (B, B1), "combine": "sine"}, "combine = 'sine': known are"),
        ({"order": "spiral"}, "order = 'spiral': known are"),
        ({"a": SQUARE, "b": SQUARE.T, "order": lambda t, rows, columns: (0, 0)}, "order: tile (0, 0) is visited"),
        ({"order": "symmetric"}, "order = 'symmetric': b is a's own transpose"),
        ({"order": "list"}, "tiles is missing"),
        ({"order": "lower", "given": {"alpha": 1.0}}, "alpha is no operand of it"),
        ({"rows": ROWS.astype("float32")}, "rows is float32 of shape (24,): int32 or int64"),
        ({"rows": ROWS[None]}, "rows is int32 of shape (1, 24)"),
        ({"out_rows": ROWS[:3]}, "out_rows is int32 of shape (3,): int32 or int64 of (24,)"),
        ({"a": jnp.stack([A, A]), "b": jnp.stack([B, B]), "rows": ROWS}, "rows= and out_rows= are of matrices"),
        ({"rows": ROWS[:3], "prologue": NORM, "given": {"s": S[:3]}}, "s has shape (3,): (24,), one for each row of a"),
        ({"rows": ROWS, "prologue": Prologue.of(lambda x, i, k, ops: x * i)}, "the function reads i, the number of a"),
        ({"row_weights": S}, "row_weights: the rows of a product with rows="),
        ({"rows": ROWS, "row_weights": S.astype("float16")}, "row_weights is float16 of shape (24,)"),
        ({"copy_rows": True}, "copy_rows: of a product with rows="),
        ({"out": OUT}, "out: the result of an order of some tiles"),
        ({"order": "lower", "out": OUT}, "out is float32 of shape (32, 16): the result is bfloat16 of (24, 16)"),
        ({"activation": "swiglu", "bias": BIAS, "prologue": NORM, "given": {"s": S}}, "bias and a gate"),
        ({"a": A.astype("int8"), "b": (B.astype("int8"),) * 2, "combine": "silu"}, "the product is int32, and comb"),
        ({"a": A[:0], "rows": ROWS}, "a has shape (0, 32): of a product with several parts no size may be 0"),
        ({"a": (A, A2), "b": (B, B2), "order": "lower", "rows": ROWS, "copy_rows": False}, "a second pair"),
        ({"rows": ROWS, "epilogue": Epilogue(Scale(name="rows")), "given": {"rows": 1.0}}, "are named rows"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], said: str) -> None:
    given = {"a": A, "b": B, **more}
    with pytest.raises(LayoutError) as found:
        matmul(given.pop("a"), given.pop("b"), **given)
    assert said in str(found.value)


def test_8_bits_have_no_derivative() -> None:
    eight = A.astype("float8_e4m3fn"), B.astype("float8_e4m3fn")
    with pytest.raises(OperandError, match="products of 8-bit types have no derivative"):
        jax.grad(lambda a: matmul(a, (eight[1], eight[1]), combine="silu").astype("float32").sum())(eight[0])


# -------------------------------------------------------------------------------------------------------- without a GPU


@pytest.mark.dsl
def test_lowering_compiles_one_call_that_writes_into_out() -> None:
    def placed(a: Any, b: Any, out: Any) -> Any:
        return matmul(a, b, out_rows=OUT_ROWS, out=out, out_dtype="float32")

    text = jax.jit(placed, donate_argnums=2).trace(A, B, OUT).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call") == 1 and "CuteDSLRT" in text and "output_operand_alias" in text
    assert not any(f"stablehlo.{op}" in text for op in ("transpose", "pad", "add", "scatter", "dot_general"))


EMULATED = "a function of three", "pairs of an epilogue", "rows of both", "a batch of two pairs"


@pytest.mark.dsl
@pytest.mark.parametrize(
    "name", [*EMULATED, *[pytest.param(x, marks=pytest.mark.slow) for x in CASES if x not in EMULATED]]
)
def test_the_arguments_of_a_call_compute_the_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, given, want = CASES[name]
    emulate_calls(monkeypatch, gpu)
    monkeypatch.setattr(api, "_compiled", gpu.multiply)
    found = matmul(a, b, **given)
    np.testing.assert_allclose(np.asarray(found), want(), rtol=2e-3, atol=2e-3)


@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [{"order": "lower", "out": OUT}, {"order": "list", "given": {"tiles": [[2, 0], [0, 1]]}}]
)
def test_tiles_alone_are_written(how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each list is an array of the call, the kernel's own one and the caller's."""
    if "out" in how:
        how = {**how, "out": normal(300, 300, kind="float32")}
    want = square(**how)
    emulate_calls(monkeypatch, gpu)
    monkeypatch.setattr(api, "_compiled", gpu.multiply)
    np.testing.assert_allclose(square(**how), want, rtol=1e-4, atol=1e-4)
