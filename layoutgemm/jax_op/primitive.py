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
from typing import NoReturn, Protocol

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
from .shardings import COLUMNS, Axes, Labels, axes_of, entries_of, labels_of

Entries = Callable[[NamedSharding, Sequence[str]], tuple[object, ...]]
Local = Callable[..., jax.Array]
MAX_PRODUCTS = 1024  # traced functions that are kept


class PrimitiveProduct(Protocol):
    """A product as its primitive reads it."""

    @property
    def result(self) -> tuple[int, ...]:
        """The result's shape."""

    @property
    def types(self) -> tuple[str, str, str]:
        """JAX's names of the types of a, b and the result."""


def multiply(product: Product, a: jax.Array, b: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """The product's result: (*batch, m, n)."""
    operands = (a, b) if bias is None else (a, b, bias)
    result: jax.Array = _mapped(product)(*operands)
    return result


def manual_axes(*arrays: jax.Array) -> frozenset[object]:
    """The mesh axes of a shard_map along which any of the arrays differs between devices.

    >>> manual_axes(jax.numpy.ones(2))
    frozenset()
    """
    return frozenset().union(*[jax.typeof(x).manual_axis_type.varying for x in arrays])


def varying_alike(*arrays: jax.Array) -> tuple[jax.Array, ...]:
    """The arrays, all varying along the union of their manual axes.

    A gradient is then summed over the axes that its array lacked, as in jax.numpy with check_vma=True. No data moves.

    Raises OperandError in a shard_map over only some axes of its mesh: XLA does not name the others.
    """
    mesh = jax.sharding.get_abstract_mesh()
    others = [str(axis) for axis in mesh.axis_names if axis not in mesh.manual_axes]
    if mesh.manual_axes and others:
        raise OperandError(
            f"shard_map over {', '.join(map(str, mesh.manual_axes))} leaves {', '.join(others)} of the mesh to XLA, "
            "which would gather the operands of a product: name all axes in axis_names, or leave all to jit"
        )
    axes = manual_axes(*arrays)
    lacked = [tuple(axes - manual_axes(x)) for x in arrays]
    return tuple([jax.lax.pcast(x, own, to="varying") if own else x for x, own in zip(arrays, lacked, strict=True)])


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
        sums = multiply(replace(product, a=a.shape, b=b.shape).without_finish(), a, b)
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


def partition_rule(labels: Labels, k: int, entries: Entries, local: Local) -> Callable[..., tuple[object, ...]]:
    """A custom_partitioning rule: mesh axes of each factor, and the product of one device's parts.

    k        its size
    entries  (sharding, factors of the dimensions) -> entries of the partition spec
    local    (axes of each factor, parts of the operands) -> part of the result
    """

    def partition(
        mesh: Mesh, operands: Sequence[jax.ShapeDtypeStruct], result: jax.ShapeDtypeStruct
    ) -> tuple[object, ...]:
        sizes: Mapping[str, int] = mesh.shape
        given = [entries(x.sharding, names) for x, names in zip(operands, labels.operands, strict=True)]
        axes = axes_of(labels, given, entries(result.sharding, labels.result), k, sizes)

        def sharding(names: Sequence[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*entries_of(names, axes)))

        def of_parts(*parts: jax.Array) -> jax.Array:
            return local(axes, *parts)

        return mesh, of_parts, sharding(labels.result), tuple([sharding(names) for names in labels.operands])

    return partition


def _partitioned(product: Product) -> Callable[..., jax.Array]:
    """The product as a function that is partitioned over a mesh."""
    labels = labels_of(product)

    def local(axes: Mapping[str, Axes], a: jax.Array, b: jax.Array, *bias: jax.Array) -> jax.Array:
        own = replace(product, a=a.shape, b=b.shape)
        if "k" not in axes:
            return _bound(own, a, b, *bias)
        sums = jax.lax.psum(_bound(own.without_finish(), a, b), axes["k"])
        return finish(sums, bias[0] if bias else None, own.activation, own.types[2])

    rule = partition_rule(labels, product.sizes[2], lambda sharding, names: spec_of(sharding, len(names)), local)
    shared = custom_partitioning(functools.partial(_bound, product))
    whole = () if product.gate is None else COLUMNS
    shared.def_partition(rule, sharding_rule=labels.rule, reduction_factors=("k",), need_replication_factors=whole)
    return shared


def result_type(*operands: jax.core.ShapedArray, product: PrimitiveProduct) -> jax.core.ShapedArray:
    """The type of a product's result; under shard_map it varies along the axes that its operands vary along."""
    shape, kind, first = product.result, jax.numpy.dtype(product.types[2]), operands[0]
    if not first.manual_axis_type.varying:
        return jax.core.ShapedArray(shape, kind)
    whole = NamedSharding(first.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
    return jax.core.ShapedArray(shape, kind, sharding=whole, manual_axis_type=first.manual_axis_type)


def primitive_of(
    name: str, on_cuda: Callable[..., jax.Array], on_cpu: Callable[..., jax.Array]
) -> Callable[..., jax.Array]:
    """A primitive with its shape and its lowerings; gives the function that binds it: (product, *operands) -> array.

    on_cuda, on_cpu  (product, *operands) -> array; the product has `result`, its shape, and `types`, its own the third
    """
    made = Primitive(name)

    def bound(product: object, *operands: jax.Array) -> jax.Array:
        result: jax.Array = made.bind(*operands, product=product)
        return result

    def lowering(compute: Callable[..., jax.Array]) -> Callable[..., object]:
        def traced(*operands: jax.Array, product: object) -> jax.Array:
            return compute(product, *operands)

        def lowered(ctx: mlir.LoweringRuleContext, *operands: object, product: object) -> object:
            # One device's parts: the axes along which they vary would have to meet in all that `compute` calls.
            types = [jax.core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in]
            return mlir.lower_fun(traced, multiple_results=False)(
                ctx.replace(avals_in=types), *operands, product=product
            )

        return lowered

    made.def_abstract_eval(result_type)

    def computed(*operands: jax.Array, product: object) -> jax.Array:
        with jax.disable_jit(False):  # else jit would call the primitive, and this again
            result: jax.Array = jax.jit(functools.partial(bound, product))(*operands)
            return result

    made.def_impl(computed)
    mlir.register_lowering(made, lowering(on_cuda), platform="cuda")
    mlir.register_lowering(made, lowering(on_cpu), platform="cpu")
    mlir.register_lowering(made, _refused)
    return bound


def _refused(ctx: mlir.LoweringRuleContext, *operands: object, product: object) -> NoReturn:
    """The lowering for platforms without kernels. Raises OperandError, naming them."""
    del operands, product
    platforms = ", ".join(ctx.module_context.platforms)
    raise OperandError(f"layoutgemm.jax runs on cuda, and on the cpu as its reference; this is for {platforms}")


_bound = primitive_of("layoutgemm_product", gpu.multiply, reference.multiply)
