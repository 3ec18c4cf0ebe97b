"""layoutgemm.jax.scaled_matmul and grouped_matmul with epilogues: values, transforms, refusals, and their launches."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from layoutgemm.dtypes import f32
from layoutgemm.errors import LayoutError
from layoutgemm.jax import grouped_matmul, scaled_matmul
from layoutgemm.jax_op.gpu import Target
from layoutgemm.jax_op.scaled_grouped import gpu
from layoutgemm.jax_op.scaled_grouped.product import ALONG_K, PLAIN, ROWS, ScaledProduct
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Bias,
    Custom,
    Epilogue,
    EpilogueOperand,
    Residual,
    Scale,
)
from layoutgemm.torch_op.scaled_grouped.recipes import Recipes
from tests.jax_op.test_functions import normal

M, N, K, GROUPS = 30, 12, 40, 4
OFFSETS = np.array([0, 10, 10, 22, 30], np.int32)
PARTS = [(int(x), int(y)) for x, y in pairwise(OFFSETS)]
DECAY = Custom.of(lambda x, i, j, ops, slope: x * ops.exp(slope * (j - i)), EpilogueOperand("slope", "m", f32))
STEPS = Epilogue(Scale(), Bias("n"), DECAY, Residual(beta=None), Activation("silu"))
A, B = normal(M, K, kind="bfloat16"), normal(GROUPS, K, N, kind="bfloat16", seed=1)
ARRAYS = {"bias": normal(GROUPS, N), "slope": normal(M) * 0.05, "d": normal(M, N, kind="bfloat16")}
OF_K = {"bias": ARRAYS["bias"], "slope": ARRAYS["slope"][:8], "d": normal(GROUPS, 8, N, kind="bfloat16")}


def exact(x: Any) -> np.ndarray:
    return np.asarray(x, np.float64)


def single(arrays: dict[str, Any]) -> dict[str, Any]:
    return {name: np.asarray(x, np.float32) for name, x in arrays.items()}


def grouped(a: Any, b: Any, offsets: Any = OFFSETS, **arrays: Any) -> Any:
    return grouped_matmul(a, b, offsets, epilogue=STEPS, given={"alpha": 0.5, **arrays}, out_dtype="float32")


def near(found: Any, want: np.ndarray, bound: float = 2e-6) -> None:
    assert np.asarray(found).shape == want.shape
    assert np.abs(exact(found) - want).max() <= bound * max(1.0, np.abs(want).max())


def test_groups_are_those_of_numpy() -> None:
    sums = np.concatenate([exact(A)[x:y] @ exact(B)[e] for e, (x, y) in enumerate(PARTS)]).astype(np.float32)
    near(grouped(A, B, **ARRAYS), STEPS.reference_of_groups(sums, PARTS, alpha=0.5, **single(ARRAYS)).c)
    shared = {**ARRAYS, "bias": ARRAYS["bias"][1]}
    near(grouped(A, B, **shared), STEPS.reference_of_groups(sums, PARTS, alpha=0.5, **single(shared)).c)
    left, right = normal(M, 8, kind="bfloat16"), normal(M, N, kind="bfloat16", seed=2)
    sums = np.stack([exact(left)[x:y].T @ exact(right)[x:y] for x, y in PARTS]).astype(np.float32)
    near(grouped(left.T, right, **OF_K), STEPS.reference(sums, alpha=0.5, **single(OF_K)).c)


@pytest.mark.parametrize("scales", [((M, 1), (N, 1)), ((M, 2), (N, 2)), ((M, 1), (1,))], ids=["rows", "blocks", "one"])
def test_steps_see_the_scaled_sums(scales: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    a, b = normal(M, 256, kind="float8_e4m3fn"), normal(N, 256, kind="float8_e4m3fn", seed=1)
    of_a, of_b = [abs(normal(*shape, seed=seed)) + 0.5 for seed, shape in enumerate(scales)]
    arrays = {**ARRAYS, "bias": ARRAYS["bias"][0]}

    def product(a: Any, of_a: Any, arrays: Any) -> Any:
        given = {"alpha": 0.5, **arrays}
        return scaled_matmul(a, of_a, b, of_b, transpose_b=True, epilogue=STEPS, given=given, out_dtype="float32")

    found = product(a, of_a, arrays)
    wide = [
        exact(x) * (float(s.reshape(())) if s.size == 1 else np.repeat(exact(s), 256 // s.shape[1], 1))
        for x, s in ((a, of_a), (b, of_b))
    ]
    sums = (wide[0] @ wide[1].T).astype(np.float32)
    near(found, STEPS.reference(sums, alpha=0.5, **single(arrays)).c, 1e-5)
    twice = {**arrays, "d": jnp.stack([arrays["d"], -arrays["d"]])}
    axes = {"bias": None, "slope": None, "d": 0}
    mapped = jax.vmap(product, (0, None, axes))(jnp.stack([a, a]), of_a, twice)
    near(mapped[0], exact(found), 1e-6)
    near(mapped[1], exact(product(a, of_a, {**arrays, "d": -arrays["d"]})), 1e-6)


def test_gradients_of_groups_are_those_of_jax() -> None:
    group = np.searchsorted(OFFSETS[1:], np.arange(M), side="right")

    def ours(a: Any, b: Any, *arrays: Any) -> Any:
        return (grouped(a, b, **dict(zip(ARRAYS, arrays, strict=True))) ** 2).sum()

    def theirs(a: Any, b: Any, bias: Any, slope: Any, d: Any) -> Any:
        of_rows = b.astype(jnp.float32)[group]
        sums = jnp.einsum("mk,mkn->mn", a.astype(jnp.float32), of_rows, precision="highest") * 0.5 + bias[group]
        sums = sums * jnp.exp(slope[:, None] * (jnp.arange(N) - jnp.arange(M)[:, None])) + d.astype(jnp.float32)
        return (jax.nn.silu(sums) ** 2).sum()

    given = A, B, *ARRAYS.values()
    pairs = zip(*[jax.jit(jax.grad(f, range(5)))(*given) for f in (ours, theirs)], strict=True)
    for x, y in pairs:
        near(x, exact(y), 0.01)


def test_a_mesh_has_the_product_of_one_device(mesh: Any) -> None:
    def product(b: Any, bias: Any) -> Any:
        return grouped(A, b, **{**ARRAYS, "bias": bias})

    columns = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, None, "x"))
    vectors = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(None, "x"))
    parts = jax.device_put(B, columns), jax.device_put(ARRAYS["bias"], vectors)
    near(jax.jit(product)(*parts), exact(product(B, ARRAYS["bias"])))  # columns are counted in the whole result


def test_products_without_elements_have_the_steps() -> None:
    none = {"slope": ARRAYS["slope"][:0], "d": ARRAYS["d"][:0]}
    assert grouped(A[:0], B, 0 * OFFSETS, bias=ARRAYS["bias"], **none).shape == (0, N)
    found = grouped_matmul(A[:, :0], B[:, :0], OFFSETS, epilogue=Epilogue(Bias()), given={"bias": ARRAYS["bias"]})
    assert jnp.array_equal(found[12], ARRAYS["bias"][2].astype("bfloat16"))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"activation": "relu"}, "activation and epilogue: one or the other"),
        ({"epilogue": None}, "there is neither"),
        ({"given": {}}, "the epilogue takes bias: bias is missing"),
        ({"given": {"bias": jnp.ones((3, N))}}, "bias is float32 of shape (3, 12): it takes float32 of shape (12,) or"),
        ({"given": {"bias": jnp.ones(N, "bfloat16")}}, "bias is bfloat16 of shape (12,): it takes float32"),
        ({"epilogue": Epilogue(Bias(name="offsets")), "given": {"offsets": jnp.ones(N)}}, "is named offsets, as one"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], message: str) -> None:
    options = {"epilogue": Epilogue(Bias()), "given": {"bias": jnp.ones(N)}, **more}
    with pytest.raises(LayoutError) as found:
        grouped_matmul(A, B, OFFSETS, **options)
    assert message in str(found.value)


# ------------------------------------------------------------------------------------------------------ without a GPU


def product_of(form: str, recipes: Recipes | None = None) -> ScaledProduct:
    kind = "bfloat16" if recipes is None else "float8_e4m3fn"
    types, more = (kind, kind, "bfloat16"), {"epilogue": Epilogue(*STEPS.steps[:-1]), "numbers": (("alpha", 0.5),)}
    if form == PLAIN:
        shapes = (64,), (128,), (128, 64)
        scales = ((128, 1), (64, 1)) if recipes == Recipes("RowWise", "RowWise") else ((128, 2), (64, 2))
        return ScaledProduct(
            PLAIN, (128, 256), (64, 256), types, True, recipes=recipes, scales=scales, shapes=shapes, **more
        )
    groups = {"offsets": "int32", "groups": 3}
    if form == ROWS:
        return ScaledProduct(
            ROWS, (128, 256), (3, 64, 256), types, True, **groups, shapes=((3, 64), (128,), (128, 64)), **more
        )
    shapes = (3, 64), (128,), (3, 128, 64)
    return ScaledProduct(ALONG_K, (256, 128), (256, 64), types, **groups, shapes=shapes, **more)


@pytest.mark.parametrize(
    ("form", "recipes", "strides"),
    [
        (ROWS, None, {"bias_batch": 64, "slope_batch": 0, "d_ld": 64, "d_batch": 0}),
        (ALONG_K, None, {"bias_batch": 64, "slope_batch": 0, "d_ld": 64, "d_batch": 128 * 64}),
        (PLAIN, Recipes("BlockWise1x128", "BlockWise1x128"), {"bias_batch": 0, "slope_batch": 0, "d_ld": 64}),
    ],
    ids=["rows", "along_k", "blocks"],
)
def test_words_of_a_launch(form: str, recipes: Recipes | None, strides: dict[str, int]) -> None:
    product = product_of(form, recipes)
    plan = gpu.plan_of(product, Target().places)
    assert plan.check() and plan.epilogue.pairs
    pointers = {name: 64 * i for i, name in enumerate(product.names, 1)}
    words = dict(zip(plan.words, gpu.words_for(plan, product, pointers), strict=False))
    want = {"alpha": 0x3F000000, **{name: pointers[name] for name in ("bias", "slope", "d")}, **strides}
    assert {name: words[name] for name in want} == want


def test_scales_of_rows_are_steps_before_the_own_ones() -> None:
    product = product_of(PLAIN, Recipes("RowWise", "RowWise"))
    steps = gpu.solution_of(product, Target()).kernel.epilogue
    assert steps is not None
    assert [type(step).__name__ for step in steps.steps] == [
        "VectorScale", "VectorScale", "Scale", "Bias", "Custom", "Residual"
    ]  # fmt: skip


@pytest.mark.dsl
def test_lowering_compiles_one_call_of_a_kernel() -> None:
    def product(a: Any, b: Any, offsets: Any, bias: Any, slope: Any, d: Any) -> Any:
        given = {"alpha": 0.5, "bias": bias, "slope": slope, "d": d}
        return grouped_matmul(a, b, offsets, transpose_b=True, epilogue=STEPS, given=given)

    kinds = ["bfloat16", "bfloat16", "int32", "float32", "float32", "bfloat16"]
    shapes = [(128, 64), (3, 64, 64), (4,), (3, 64), (128,), (128, 64)]
    arrays = [jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in zip(shapes, kinds, strict=True)]
    text = jax.jit(product).trace(*arrays).lower(lowering_platforms=("cuda",)).as_text()
    assert text.count("stablehlo.custom_call") == 1 and "CuteDSLRT" in text
    assert not any(f"stablehlo.{op}" in text for op in ("transpose", "pad", "add", "multiply", "dot_general"))


# ----------------------------------------------------------------------------------------------------------- on a GPU


@pytest.mark.gpu
@pytest.mark.parametrize("form", [ROWS, ALONG_K])
def test_groups_on_a_gpu(form: str) -> None:
    ends, parts = np.array([0, 100, 100, 230, 300], np.int32), [(0, 100), (100, 100), (100, 230), (230, 300)]
    m, n, k = (300, 136, 328) if form == ROWS else (200, 136, 300)
    a = normal(m, k, kind="bfloat16")
    b = normal(4, k, n, kind="bfloat16", seed=1) if form == ROWS else normal(k, n, kind="bfloat16", seed=1)
    lead = () if form == ROWS else (4,)
    arrays = {"bias": normal(4, n), "slope": normal(m) * 0.01, "d": normal(*lead, m, n, kind="bfloat16")}
    steps = Epilogue(*STEPS.steps[:-1])
    given = {"alpha": 0.5, **arrays}
    found = jax.jit(lambda a, b: grouped_matmul(a, b, ends, epilogue=steps, given=given, out_dtype="float32"))(a, b)
    if form == ROWS:
        sums = np.concatenate([exact(a)[x:y] @ exact(b)[e] for e, (x, y) in enumerate(parts)]).astype(np.float32)
        want = steps.reference_of_groups(sums, parts, alpha=0.5, **single(arrays)).c
    else:
        sums = np.stack([exact(a)[:, x:y] @ exact(b)[x:y] for x, y in parts]).astype(np.float32)
        want = steps.reference(sums, alpha=0.5, **single(arrays)).c
    assert np.abs(exact(found) - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.gpu
@pytest.mark.parametrize("recipe", ["RowWise", "BlockWise1x128"])
def test_scaled_products_on_a_gpu(recipe: str) -> None:
    m, n, k = 200, 144, 384
    a, b = (jnp.round(normal(rows, k, seed=rows)).astype("float8_e4m3fn") for rows in (m, n))  # sums fit 14 bits
    width = 1 if recipe == "RowWise" else 3
    of_a, of_b = abs(normal(m, width)) + 0.5, abs(normal(n, width, seed=3)) + 0.5
    arrays = {"bias": normal(n), "slope": normal(m) * 0.01, "d": normal(m, n, kind="bfloat16")}
    steps, given = Epilogue(*STEPS.steps[:-1]), {"alpha": 0.5, **arrays}
    found = jax.jit(lambda a, b: scaled_matmul(
        a, of_a, b, of_b, transpose_b=True, epilogue=steps, given=given, out_dtype="float32", recipe_a=recipe,
        recipe_b=recipe, use_fast_accum=False,
    ))(a, b)  # fmt: skip
    wide = [exact(x) * np.repeat(exact(s), k // width, 1) for x, s in ((a, of_a), (b, of_b))]
    want = steps.reference((wide[0] @ wide[1].T).astype(np.float32), alpha=0.5, **single(arrays)).c
    assert np.abs(exact(found) - want).max() <= 1e-4 * np.abs(want).max()
