"""One product with scales or of groups in a JAX program.

multiply --> custom_vmap             a mapped dimension: a batch, or one call after another
         --> custom_partitioning     each device of a mesh multiplies its shards; `sharded` has the rules
         --> layoutgemm_described    a primitive: its shape, and its lowering for "cuda" and "cpu"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.custom_batching import custom_vmap
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding

from ...torch_op.scaled_grouped.recipes import TENSOR
from ..outputs import Arrays, written_by
from ..primitive import MAX_PRODUCTS, all_mapped, partition_rule, primitive_of, spec_of
from ..shardings import Axes
from . import gpu, reference
from .product import PLAIN, ScaledProduct
from .sharded import cut, labels_of


def multiply(product: ScaledProduct, *operands: jax.Array) -> Arrays:
    """The product's arrays, operands in the order of its names."""
    return _mapped(product)(*operands)


@functools.lru_cache(MAX_PRODUCTS)
def _mapped(product: ScaledProduct) -> Callable[..., Arrays]:
    """The product as a function that vmap maps."""
    # Where a step may know its row and column, XLA gathers a kernel's operands: a part's coordinates are others.
    alone = product.epilogue is not None
    shared = custom_vmap(functools.partial(_bound, product) if alone else _partitioned(product))

    @shared.def_vmap
    def rule(size: int, mapped: Sequence[bool], *operands: jax.Array) -> tuple[Arrays, object]:
        whole = dict(zip(product.names, mapped, strict=True))
        tensors = product.recipes is not None and TENSOR in product.recipes
        one_each = ["bias"] * (product.bias is not None) + [x.name for x in product.operands if not x.axes]
        gives = any(not x.axes for x in written_by(product.epilogue))
        apart = tensors or gives or any(whole[name] for name in one_each)  # a launch has one of each
        if product.form == PLAIN and len(product.a) == 2 and not apart:
            own = {"bias", *[operand.name for operand in product.operands]}  # one for all, or one of each
            wide = [
                x if on or name in own else jnp.broadcast_to(x, (size, *x.shape))
                for (name, on), x in zip(whole.items(), operands, strict=True)
            ]
            found = multiply(with_shapes(product, wide), *wide)
            return found, all_mapped(found)

        def one(i: jax.Array) -> Arrays:
            return multiply(product, *[x[i] if on else x for x, on in zip(operands, mapped, strict=True)])

        found = jax.lax.map(one, jnp.arange(size))
        return found, all_mapped(found)

    return shared


def with_shapes(product: ScaledProduct, operands: Sequence[jax.Array]) -> ScaledProduct:
    """The product of operands of other shapes."""
    shapes = {name: tuple(x.shape) for name, x in zip(product.names, operands, strict=True)}
    bias = None if product.bias is None else (product.bias[0], shapes["bias"])
    return replace(
        product, a=shapes["a"], b=shapes["b"], bias=bias, scales=(shapes.get("scale_a"), shapes.get("scale_b")),
        shapes=tuple([shapes[operand.name] for operand in product.operands]),
    )  # fmt: skip


def _partitioned(product: ScaledProduct) -> Callable[..., Arrays]:
    """The product as a function that is partitioned over a mesh."""
    labels, may = labels_of(product), cut(product)

    def entries(sharding: NamedSharding, names: Sequence[str]) -> tuple[object, ...]:
        return tuple([x if name in may else None for name, x in zip(names, spec_of(sharding, len(names)), strict=True)])

    def local(axes: Mapping[str, Axes], *parts: jax.Array) -> Arrays:
        own = with_shapes(product, parts)
        if "k" not in axes:
            return _bound(own, *parts)
        sums = own.without_finish()
        given = dict(zip(own.names, parts, strict=True))
        whole = jax.lax.psum(_bound(sums, *[given[name] for name in sums.names]), axes["k"])
        return reference.finished(own, whole, given)

    factors = dict.fromkeys(name for names in (*labels.operands, *labels.results) for name in names)  # in their order
    shared = custom_partitioning(functools.partial(_bound, product))
    rule = partition_rule(labels, product.sizes[2], entries, local)
    shared.def_partition(
        rule, sharding_rule=labels.rule, reduction_factors=("k",) if "k" in may else (),
        need_replication_factors=tuple([name for name in factors if name not in may]),
    )  # fmt: skip
    return shared


_bound = primitive_of("layoutgemm_described", gpu.multiply, reference.multiply)
