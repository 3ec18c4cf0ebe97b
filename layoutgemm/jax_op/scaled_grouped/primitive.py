"""One product with scales or of groups in a JAX program.

multiply --> layoutgemm_described    a primitive with its derivatives, and with vmap's rule: a batch, or call by call
         --> custom_partitioning     each device of a mesh multiplies its shards; `sharded` has the rules
         --> layoutgemm_described_of_device     a primitive: its shape, and its lowering for "cuda" and "cpu"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import NamedSharding

from ...torch_op.scaled_grouped.recipes import TENSOR
from ..outputs import Arrays, written_by
from ..primitive import MAX_PRODUCTS, one_by_one, partition_rule, primitive_of, spec_of
from ..shardings import Axes
from . import gpu, reference
from .product import PLAIN, ScaledProduct
from .sharded import cut, labels_of


@functools.lru_cache(MAX_PRODUCTS)
def of_devices(product: ScaledProduct) -> Callable[..., Arrays]:
    """The product's function of arrays, over a mesh."""
    # Where a step may know its row and column, XLA gathers a kernel's operands: a part's coordinates are others.
    return functools.partial(_bound, product) if product.epilogue is not None else _partitioned(product)


def mapped(
    multiply: Callable[..., Arrays], product: ScaledProduct, size: int, on: Sequence[bool], *operands: jax.Array
) -> Arrays:
    """The rule for vmap. One product of a batch where all may be mapped, else one call after another."""
    whole = dict(zip(product.names, on, strict=True))
    tensors = product.recipes is not None and TENSOR in product.recipes
    one_each = ["bias"] * (product.bias is not None) + [x.name for x in product.operands if not x.axes]
    gives = any(not x.axes for x in written_by(product.epilogue))
    apart = tensors or gives or any(whole[name] for name in one_each)  # a launch has one of each
    if product.form != PLAIN or len(product.a) != 2 or apart:
        return one_by_one(multiply, product, on, operands)
    own = {"bias", *[operand.name for operand in product.operands]}  # one for all, or one of each
    wide = [
        x if moves or name in own else jnp.broadcast_to(x, (size, *x.shape))
        for (name, moves), x in zip(whole.items(), operands, strict=True)
    ]
    return multiply(with_shapes(product, wide), *wide)


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
