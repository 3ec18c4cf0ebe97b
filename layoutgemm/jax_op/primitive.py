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
from .outputs import Arrays, Shaped, listed, one_or_all
from .product import Product
from .reference import finish
from .shardings import COLUMNS, Axes, Labels, axes_of, entries_of, labels_of

Entries = Callable[[NamedSharding, Sequence[str]], tuple[object, ...]]
Local = Callable[..., Arrays]
MAX_PRODUCTS = 1024  # traced functions that are kept


class PrimitiveProduct(Protocol):
    """A product as its primitive reads it."""

    @property
    def outputs(self) -> tuple[Shaped, ...]:
        """Shape and type of each array that it gives."""


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


def all_mapped(found: Arrays) -> object:
    """True for each result: all have the mapped dimension."""
    return jax.tree.map(lambda _: True, found)


def one_by_one(
    made: Callable[[], Callable[..., Arrays]], mapped: Sequence[bool], arrays: Sequence[jax.Array]
) -> tuple[Arrays, object]:
    """A vmap rule's results of one call after another; `made` gives the function of one."""
    moving = [x for x, on in zip(arrays, mapped, strict=True) if on]

    def one(parts: Sequence[jax.Array]) -> Arrays:
        rest = iter(parts)
        return made()(*[next(rest) if on else x for x, on in zip(arrays, mapped, strict=True)])

    found: Arrays = jax.lax.map(one, moving)
    return found, all_mapped(found)


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
    local    (axes of each factor, parts of the operands) -> parts of the results
    """

    def partition(mesh: Mesh, operands: Sequence[jax.ShapeDtypeStruct], results: Arrays) -> tuple[object, ...]:
        sizes: Mapping[str, int] = mesh.shape
        given = [entries(x.sharding, names) for x, names in zip(operands, labels.operands, strict=True)]
        wanted = [entries(x.sharding, names) for x, names in zip(listed(results), labels.results, strict=True)]
        axes = axes_of(labels, given, wanted, k, sizes)

        def sharding(names: Sequence[str]) -> NamedSharding:
            return NamedSharding(mesh, PartitionSpec(*entries_of(names, axes)))

        def of_parts(*parts: jax.Array) -> Arrays:
            return local(axes, *parts)

        made, read = ([sharding(names) for names in each] for each in (labels.results, labels.operands))
        return mesh, of_parts, one_or_all(made), tuple(read)

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


def result_types(*operands: jax.core.ShapedArray, product: PrimitiveProduct) -> list[jax.core.ShapedArray]:
    """The types of a product's arrays; under shard_map they vary along the axes that its operands vary along."""
    first, found = operands[0], []
    for shape, kind in product.outputs:
        if not first.manual_axis_type.varying:
            found.append(jax.core.ShapedArray(shape, jax.numpy.dtype(kind)))
            continue
        whole = NamedSharding(first.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
        manual = first.manual_axis_type
        found.append(jax.core.ShapedArray(shape, jax.numpy.dtype(kind), sharding=whole, manual_axis_type=manual))
    return found


def primitive_of(name: str, on_cuda: Callable[..., Arrays], on_cpu: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """A primitive with its shapes and its lowerings; gives the function that binds it: (product, *operands) -> arrays.

    on_cuda, on_cpu  (product, *operands) -> the product's `outputs`, as `one_or_all` has them
    """
    made = Primitive(name)
    made.multiple_results = True

    def bound(product: object, *operands: jax.Array) -> Arrays:
        return one_or_all(made.bind(*operands, product=product))

    def lowering(compute: Callable[..., Arrays]) -> Callable[..., object]:
        def traced(*operands: jax.Array, product: object) -> list[jax.Array]:
            return listed(compute(product, *operands))

        def lowered(ctx: mlir.LoweringRuleContext, *operands: object, product: object) -> object:
            # One device's parts: the axes along which they vary would have to meet in all that `compute` calls.
            types = [jax.core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in]
            return mlir.lower_fun(traced, multiple_results=True)(
                ctx.replace(avals_in=types), *operands, product=product
            )

        return lowered

    made.def_abstract_eval(result_types)

    def computed(*operands: jax.Array, product: object) -> list[jax.Array]:
        with jax.disable_jit(False):  # else jit would call the primitive, and this again
            return listed(jax.jit(functools.partial(bound, product))(*operands))

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
