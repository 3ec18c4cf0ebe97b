"""One product of matrices or batches in a JAX program.

    multiply --> custom_vmap             a mapped dimension becomes one of the batch
             --> custom_partitioning     each device of a mesh multiplies its shards; `shardings` has the rules
             --> layoutgemm_product      a primitive: its shape, and its lowering for "cuda" and "cpu"

Derivatives are one floor up, in `matmul`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn

import jax
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import Primitive
from jax.interpreters import mlir
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ..errors import OperandError
from . import gpu, reference
from .product import Product
from .reference import finish
from .shardings import axes_of, entries_of, labels_of

Compute = Callable[[Product, jax.Array, jax.Array, "jax.Array | None"], jax.Array]
MAX_PRODUCTS = 1024  # traced functions that are kept

product_p = Primitive("layoutgemm_product")


def multiply(product: Product, a: jax.Array, b: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """The product's result: (*batch, m, n)."""
    operands = (a, b) if bias is None else (a, b, bias)
    result: jax.Array = _mapped(product)(*operands)
    return result


@functools.lru_cache(MAX_PRODUCTS)
def _mapped(product: Product) -> Callable[..., jax.Array]:
    """The product as a function that vmap maps to batches."""
    shared = custom_vmap(_partitioned(product))

    @shared.def_vmap
    def rule(size: int, mapped: Sequence[bool], *operands: jax.Array) -> tuple[jax.Array, bool]:
        del size
        rank = len(product.batch)
        a, b = [_front(x, rank + 2) if on else x for x, on in zip(operands[:2], mapped[:2], strict=True)]
        bias = operands[2] if product.bias is not None else None
        if bias is None or not mapped[2]:
            return multiply(replace(product, a=a.shape, b=b.shape), a, b, bias), True
        # The kernel's bias is one vector: a vector for each matrix is added to sums in float32.
        plain = replace(product, a=a.shape, b=b.shape, types=(*product.types[:2], product.wide), bias=None)
        sums = multiply(replace(plain, activation=None), a, b)
        return finish(sums, _front(bias, rank + 2), product.activation, product.types[2]), True

    return shared


def _front(x: jax.Array, rank: int) -> jax.Array:
    """The array with its first dimension in front of `rank` others."""
    return x.reshape(x.shape[0], *(1,) * (rank + 1 - x.ndim), *x.shape[1:])


def spec_of(sharding: NamedSharding, rank: int) -> tuple[object, ...]:
    """The entries of a sharding's partition spec, as many as dimensions. Raises OperandError for one without axes."""
    own = getattr(sharding, "spec", None)
    if own is None:
        raise OperandError(f"a sharding without named axes, {sharding}: layoutgemm.jax needs a mesh")
    return (*own, *(None,) * (rank - len(own)))


def _partitioned(product: Product) -> Callable[..., jax.Array]:
    """The product as a function that is partitioned over a mesh."""
    labels = labels_of(product)
    ranks = [len(names) for names in labels.operands]

    def partition(
        mesh: Mesh, operands: Sequence[jax.ShapeDtypeStruct], result: jax.ShapeDtypeStruct
    ) -> tuple[object, ...]:
        sizes: Mapping[str, int] = mesh.shape
        given = [spec_of(x.sharding, rank) for x, rank in zip(operands, ranks, strict=True)]
        axes = axes_of(labels, given, spec_of(result.sharding, len(labels.result)), product.sizes[2], sizes)

        def sharding(names: Sequence[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*entries_of(names, axes)))

        def local(a: jax.Array, b: jax.Array, *bias: jax.Array) -> jax.Array:
            own = replace(product, a=a.shape, b=b.shape)
            if "k" not in axes:
                return _bound(own, a, b, *bias)
            wide = replace(own, types=(*own.types[:2], own.wide), bias=None, activation=None)
            sums = jax.lax.psum(_bound(wide, a, b), axes["k"])
            return finish(sums, bias[0] if bias else None, own.activation, own.types[2])

        return mesh, local, sharding(labels.result), tuple([sharding(names) for names in labels.operands])

    shared = custom_partitioning(functools.partial(_bound, product))
    shared.def_partition(partition, sharding_rule=labels.rule, reduction_factors=("k",))
    return shared


def _bound(product: Product, *operands: jax.Array) -> jax.Array:
    result: jax.Array = product_p.bind(*operands, product=product)
    return result


@product_p.def_abstract_eval
def _abstract(*operands: jax.core.ShapedArray, product: Product) -> jax.core.ShapedArray:
    del operands
    return jax.core.ShapedArray(product.result, jax.numpy.dtype(product.types[2]))


@product_p.def_impl
def _by_itself(*operands: jax.Array, product: Product) -> jax.Array:
    return jax.jit(functools.partial(_bound, product))(*operands)


def _lowered(compute: Compute) -> Callable[..., object]:
    def lowered(a: jax.Array, b: jax.Array, bias: jax.Array | None = None, *, product: Product) -> jax.Array:
        return compute(product, a, b, bias)

    lowering: Callable[..., object] = mlir.lower_fun(lowered, multiple_results=False)
    return lowering


def refused(ctx: mlir.LoweringRuleContext, *operands: object, product: object) -> NoReturn:
    """The lowering for platforms without kernels. Raises OperandError, naming them."""
    del operands, product
    platforms = ", ".join(ctx.module_context.platforms)
    raise OperandError(f"layoutgemm.jax runs on cuda, and on the cpu as its reference; this is for {platforms}")


mlir.register_lowering(product_p, _lowered(gpu.multiply), platform="cuda")
mlir.register_lowering(product_p, _lowered(reference.multiply), platform="cpu")
mlir.register_lowering(product_p, refused)
