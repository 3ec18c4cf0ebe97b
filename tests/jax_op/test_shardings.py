"""Products on a mesh of four devices of the CPU: each pair of shardings, forward and backward."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import numpy as np
import pytest

from tests import needs

jax = needs.module("jax")
jnp = jax.numpy
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from layoutgemm.errors import OperandError
from layoutgemm.jax import grouped_matmul, matmul
from layoutgemm.jax_op.product import Product
from layoutgemm.jax_op.shardings import axes_of, labels_of

ONE = [(None, None), ("x", None), (None, "x"), (("x", "y"), None), ("x", "y"), ("y", "x")]


def placed(mesh: Mesh, spec: Any, *shape: int, seed: int = 0) -> Any:
    x = np.random.default_rng((seed, *shape)).standard_normal(shape, np.float32)
    return jax.device_put(jnp.asarray(x), NamedSharding(mesh, PartitionSpec(*spec)))


def layer(a: Any, b: Any, bias: Any) -> Any:
    return matmul(a, b, bias=bias, activation="relu", allow_tf32=True)


@pytest.mark.parametrize(
    ("of_a", "of_b"), [*itertools.product(ONE[1:5], ONE[:5:2]), (ONE[5], ONE[1]), (ONE[2], ONE[1])]
)
def test_shardings_give_the_same_product(mesh: Mesh, of_a: Any, of_b: Any) -> None:
    a, b, bias = placed(mesh, of_a, 8, 16), placed(mesh, of_b, 16, 12, seed=1), placed(mesh, (None,), 12)
    wanted = np.maximum(np.asarray(a, np.float64) @ np.asarray(b, np.float64) + np.asarray(bias), 0)
    np.testing.assert_allclose(jax.jit(layer)(a, b, bias), wanted, rtol=1e-5, atol=1e-5)


def test_rows_stay_where_they_are_and_columns_too(mesh: Mesh) -> None:
    a, b, bias = placed(mesh, ("x", None), 8, 16), placed(mesh, (None, "y"), 16, 12), placed(mesh, ("y",), 12)
    compiled = jax.jit(layer).lower(a, b, bias).compile()
    text = compiled.as_text()
    assert not any(word in text for word in ("all-gather", "all-reduce", "collective-permute"))
    assert compiled(a, b, bias).sharding.spec == PartitionSpec("x", "y")


def test_a_sharded_k_is_reduced_before_bias_and_activation(mesh: Mesh) -> None:
    a, b, bias = placed(mesh, (None, "x"), 8, 16), placed(mesh, ("x", None), 16, 12), placed(mesh, (None,), 12)
    text = jax.jit(layer).lower(a, b, bias).compile().as_text()
    assert "all-reduce" in text and "all-gather" not in text


def test_gradients_on_a_mesh(mesh: Mesh) -> None:
    a, b, bias = placed(mesh, ("x", None), 8, 16), placed(mesh, (None, "y"), 16, 12), placed(mesh, ("y",), 12)

    def loss(a: Any, b: Any, bias: Any) -> Any:
        return (layer(a, b, bias) ** 2).sum()

    found = jax.jit(jax.grad(loss, (0, 1, 2)))(a, b, bias)
    alone = jax.grad(loss, (0, 1, 2))(*[jnp.asarray(np.asarray(x)) for x in (a, b, bias)])
    for x, y in zip(found, alone, strict=True):
        np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-4)


def test_tangents_on_a_mesh_and_in_shard_map(mesh: Mesh) -> None:
    a, b, bias = placed(mesh, ("x", None), 8, 16), placed(mesh, (None, "y"), 16, 12), placed(mesh, ("y",), 12)
    specs = PartitionSpec("x", None), PartitionSpec(None, "y"), PartitionSpec("y")
    each = jax.shard_map(layer, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("x", "y"))
    whole = [jnp.asarray(np.asarray(x)) for x in (a, b, bias)]
    wanted = jax.jvp(lambda a, b, bias: jnp.maximum(a @ b + bias, 0), whole, whole)
    for f in (layer, each):
        found = jax.jit(lambda *x, f=f: jax.jvp(f, x, x))(a, b, bias)
        for x, y in zip(found, wanted, strict=True):
            np.testing.assert_allclose(np.asarray(x), np.asarray(y), rtol=1e-4, atol=1e-4)


def test_a_batch_is_sharded_under_vmap(mesh: Mesh) -> None:
    a, b = placed(mesh, ("x", None, None), 4, 8, 16), placed(mesh, ("x", None, None), 4, 16, 12)
    compiled = jax.jit(jax.vmap(lambda a, b: matmul(a, b, allow_tf32=True))).lower(a, b).compile()
    assert "all-gather" not in compiled.as_text()
    wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_allclose(compiled(a, b), wanted, rtol=1e-5, atol=1e-5)


def test_shard_map_multiplies_what_it_is_given(mesh: Mesh) -> None:
    a, b = placed(mesh, ("x", None), 8, 16), placed(mesh, (None, "y"), 16, 12)
    specs = (PartitionSpec("x", None), PartitionSpec(None, "y"))
    each = jax.shard_map(
        lambda a, b: matmul(a, b, allow_tf32=True), mesh=mesh, in_specs=specs, out_specs=PartitionSpec("x", "y"),
        check_vma=False,
    )  # fmt: skip
    wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64)
    np.testing.assert_allclose(jax.jit(each)(a, b), wanted, rtol=1e-5, atol=1e-5)


def test_shard_map_sums_the_gradient_of_what_devices_share(mesh: Mesh) -> None:
    """With check_vma, JAX's default, as jax.numpy.matmul: the result varies along the axes of both operands."""
    a, b, bias = placed(mesh, ("x", None), 4, 6), placed(mesh, (None, "y"), 6, 8), placed(mesh, ("y",), 8)

    def loss(multiply: Any, *operands: Any) -> Any:
        specs = PartitionSpec("x", None), PartitionSpec(None, "y"), PartitionSpec("y")
        each = jax.shard_map(multiply, mesh=mesh, in_specs=specs, out_specs=PartitionSpec("x", "y"))
        return (each(*operands) ** 2).sum()

    found = jax.jit(jax.grad(functools.partial(loss, layer), (0, 1, 2)))(a, b, bias)
    plain = jax.grad(lambda a, b, bias: (jnp.maximum(a @ b + bias, 0) ** 2).sum(), (0, 1, 2))
    wanted = jax.jit(plain)(a, b, bias)
    for x, y in zip(found, wanted, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-4)


def test_shard_map_with_vmap_and_groups(mesh: Mesh) -> None:
    a, b = placed(mesh, (None, "x", None), 3, 4, 6), placed(mesh, (None, "y"), 6, 8)
    biases = placed(mesh, (None, None), 3, 8)
    mapped = jax.vmap(lambda a, b, bias: matmul(a, b, bias=bias, allow_tf32=True), in_axes=(0, None, 0))
    specs = PartitionSpec(None, "x"), PartitionSpec(None, "y"), PartitionSpec(None, "y")
    each = jax.shard_map(mapped, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(None, "x", "y"))
    wanted = np.asarray(a, np.float64) @ np.asarray(b, np.float64) + np.asarray(biases)[:, None]
    np.testing.assert_allclose(jax.jit(each)(a, b, biases), wanted, rtol=1e-5, atol=1e-5)

    rows, ends = a[0].astype(jnp.bfloat16), jnp.array([0, 1, 4])
    experts = placed(mesh, (None, None, "y"), 2, 6, 8).astype(jnp.bfloat16)
    groups = functools.partial(grouped_matmul, out_dtype=jnp.float32)
    specs = PartitionSpec(None), PartitionSpec(None, None, "y"), PartitionSpec(None)
    each = jax.shard_map(groups, mesh=mesh, in_specs=specs, out_specs=PartitionSpec(None, "y"))
    np.testing.assert_array_equal(jax.jit(each)(rows, experts, ends), groups(rows, experts, ends))


def test_shard_map_over_some_axes_is_refused(mesh: Mesh) -> None:
    a, b = placed(mesh, ("x", None), 8, 16), placed(mesh, (None, "y"), 16, 12)
    specs = PartitionSpec("x", None), PartitionSpec(None, None)
    each = jax.shard_map(layer, mesh=mesh, in_specs=(*specs, None), out_specs=specs[0], axis_names={"x"})
    with pytest.raises(OperandError, match="shard_map over x leaves y of the mesh to XLA"):
        jax.jit(each)(a, b, None)


def test_an_axis_serves_one_factor_and_k_is_split_evenly() -> None:
    labels = labels_of(Product((8, 6), (6, 4), ("bfloat16",) * 3))
    sizes = {"x": 2, "y": 4}
    assert axes_of(labels, [("x", None), (None, "x")], [(None, None)], 6, sizes) == {"m": ("x",)}
    assert axes_of(labels, [(None, "y"), ("y", None)], [(None, None)], 6, sizes) == {}  # 6 / 4
