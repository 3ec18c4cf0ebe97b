"""One product of matrices or batches in a JAX program.

    layoutgemm_product       a primitive with its derivatives, and with vmap's rule: a mapped dimension is the batch's
    --> custom_partitioning  each device of a mesh multiplies its shards; `shardings` has the rules
    --> layoutgemm_product_of_device    a primitive: its shape, and its lowering for "cuda" and "cpu"

`derivatives` has the rules of the first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NoReturn, Protocol

import jax
from jax.experimental.custom_partitioning import custom_partitioning
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir
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


def mapped(
    multiply: Callable[..., Arrays], product: Product, size: int, on: Sequence[bool], *operands: jax.Array
) -> Arrays:
    """A dense product's rule for vmap: the mapped dimension is one of the batch. See `differentiable_of`."""
    del size
    rank = len(product.batch)
    a, b = [_front(x, rank + 2) if moves else x for x, moves in zip(operands[:2], on[:2], strict=True)]
    own = replace(product, a=a.shape, b=b.shape)
    if product.bias is None or not on[2]:
        return multiply(own, a, b, *operands[2:])
    # The kernel's bias is one vector: a vector for each matrix is added to sums in float32.
    (sums,) = listed(multiply(own.without_finish(), a, b))
    return finish(sums, _front(operands[2], rank + 2), product.activation, product.types[2])


def one_by_one(
    multiply: Callable[..., Arrays], product: object, on: Sequence[bool], arrays: Sequence[jax.Array]
) -> Arrays:
    """A vmap rule's results of one call after another."""
    moving = [x for x, moves in zip(arrays, on, strict=True) if moves]

    def one(parts: Sequence[jax.Array]) -> Arrays:
        rest = iter(parts)
        return multiply(product, *[next(rest) if moves else x for x, moves in zip(arrays, on, strict=True)])

    found: Arrays = jax.lax.map(one, moving)
    return found


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


@functools.lru_cache(MAX_PRODUCTS)
def partitioned(product: Product) -> Callable[..., jax.Array]:
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
    """The types of a product's arrays. Under shard_map they vary along the axes that its operands vary along."""
    first, found = operands[0], []
    for shape, kind in product.outputs:
        if not first.manual_axis_type.varying:
            found.append(jax.core.ShapedArray(shape, jax.numpy.dtype(kind)))
            continue
        whole = NamedSharding(first.sharding.mesh, PartitionSpec(*(None,) * len(shape)))
        manual = first.manual_axis_type
        found.append(jax.core.ShapedArray(shape, jax.numpy.dtype(kind), sharding=whole, manual_axis_type=manual))
    return found


Operands = tuple[jax.Array, ...]
Tangents = Sequence["jax.Array | None"]  # of operands or results; None for those that have none
Mapped = Callable[..., Arrays]
Derived = Callable[..., tuple[Arrays, Tangents]]
Transposed = Callable[..., jax.Array]


def primitive_of(name: str, on_cuda: Callable[..., Arrays], on_cpu: Callable[..., Arrays]) -> Callable[..., Arrays]:
    """One device's primitive: its shapes and its lowerings. Gives the function that binds it: (product, *operands).

    on_cuda, on_cpu  (product, *operands) -> the product's `outputs`, as `one_or_all` has them
    """
    made = Primitive(f"{name}_of_device")
    made.multiple_results = True

    def bound(product: object, *operands: jax.Array) -> Arrays:
        return one_or_all(made.bind(*operands, product=product))

    made.def_abstract_eval(result_types)
    made.def_impl(_computed(bound))
    for platform, compute in (("cuda", on_cuda), ("cpu", on_cpu)):

        def traced(
            *operands: jax.Array, product: object, compute: Callable[..., Arrays] = compute
        ) -> Sequence[jax.Array]:
            return listed(compute(product, *operands))

        mlir.register_lowering(made, _lowering(traced), platform=platform)
    mlir.register_lowering(made, _refused)
    return bound


def differentiable_of(
    name: str, of_devices: Callable[..., Callable[..., Arrays]], mapped: Mapped, derived: Derived,
    transposed: Transposed | None = None,
) -> Callable[..., Arrays]:  # fmt: skip
    """A primitive of whole arrays, with vmap and derivatives. Gives the function that binds it: (product, *operands).

    of_devices  product -> its function of arrays, over a mesh
    mapped      (binding function, product, size, which operands have vmap's dimension, in front, *operands) -> arrays,
                each with that dimension in front
    derived     (binding function, product, operands, their tangents) -> arrays, and their tangents
    transposed  of products that are linear in a and in b: (product, "a" or "b", the result's gradient, *operands) ->
                the gradient of that operand, of which shape and type alone are known
    """
    made = Primitive(name)
    made.multiple_results = True

    @functools.lru_cache(MAX_PRODUCTS)
    def call_of(product: object, mesh: object, *facts: tuple[tuple[int, ...], object]) -> ClosedJaxpr:
        """The function of a product's arrays, which jit searches for what needs a mesh."""
        del mesh  # in whose context it is traced
        return jax.make_jaxpr(of_devices(product))(*[jax.ShapeDtypeStruct(*each) for each in facts])

    def bound(product: object, *operands: jax.Array) -> Arrays:
        facts = [(x.shape, x.dtype) for x in operands]
        call = call_of(product, jax.sharding.get_abstract_mesh(), *facts)
        return one_or_all(made.bind(*operands, product=product, call=call))

    def types(*operands: jax.core.ShapedArray, product: PrimitiveProduct, call: object) -> list[jax.core.ShapedArray]:
        del call
        return result_types(*operands, product=product)

    made.def_abstract_eval(types)
    made.def_impl(_computed(bound))
    mlir.register_lowering(made, _lowering(lambda *operands, product, call: jaxpr_as_fun(call)(*operands)))

    batching.primitive_batchers[made] = _batched(bound, mapped)
    ad.primitive_jvps[made] = _jvp(bound, derived)
    if transposed is not None:
        ad.primitive_transposes[made] = _transpose(transposed)
    return bound


def _batched(bound: Callable[..., Arrays], mapped: Mapped) -> Callable[..., object]:
    """A primitive's rule for vmap, by one whose operands have the mapped dimension in front."""

    def batched(
        operands: Sequence[jax.Array], dims: Sequence[int | None], *, product: object, call: object
    ) -> tuple[list[jax.Array], list[int]]:
        del call
        on = [dim is not None for dim in dims]
        front = [x if dim is None else jax.numpy.moveaxis(x, dim, 0) for x, dim in zip(operands, dims, strict=True)]
        size = next(x.shape[0] for x, moves in zip(front, on, strict=True) if moves)
        found = listed(mapped(bound, product, size, on, *front))
        return found, [0] * len(found)

    return batched


def _jvp(bound: Callable[..., Arrays], derived: Derived) -> Callable[..., object]:
    """A primitive's rule for tangents, by one that has None for those that are 0."""

    def jvp(
        primals: Operands, tangents: Sequence[object], *, product: PrimitiveProduct, call: object
    ) -> tuple[list[jax.Array], list[object]]:
        del call
        found, moved = derived(bound, product, primals, [None if isinstance(x, ad.Zero) else x for x in tangents])
        values = listed(found)
        filled = [
            ad.Zero(jax.typeof(value).to_tangent_aval()) if x is None or x.dtype == jax.dtypes.float0 else x
            for value, x in zip(values, moved, strict=True)
        ]
        return values, filled

    return jvp


def _transpose(transposed: Transposed) -> Callable[..., object]:
    """A primitive's rule for gradients, of its one operand that is a tangent."""

    def transpose(grads: Sequence[object], *operands: object, product: object, call: object) -> list[object]:
        del call
        (grad,) = grads
        at = next(i for i, x in enumerate(operands) if ad.is_undefined_primal(x))
        given = [x.aval if ad.is_undefined_primal(x) else x for x in operands]  # type: ignore[attr-defined]
        found: list[object] = [None] * len(operands)
        found[at] = ad.Zero(given[at]) if isinstance(grad, ad.Zero) else transposed(product, "ab"[at], grad, *given)
        return found

    return transpose


def _computed(bound: Callable[..., Arrays]) -> Callable[..., list[jax.Array]]:
    """A primitive's value outside of jit."""

    def computed(*operands: jax.Array, product: object, **others: object) -> list[jax.Array]:
        del others
        with jax.disable_jit(False):  # else jit would call the primitive, and this again
            return listed(jax.jit(functools.partial(bound, product))(*operands))

    return computed


def _lowering(traced: Callable[..., Sequence[jax.Array]]) -> Callable[..., object]:
    """The lowering of a function (*operands, **parameters) -> arrays."""

    def lowered(ctx: mlir.LoweringRuleContext, *operands: object, **parameters: object) -> object:
        # One device's parts: the axes along which they vary would have to meet in all that `traced` calls.
        types = [jax.core.ShapedArray(x.shape, x.dtype) for x in ctx.avals_in]
        lower = mlir.lower_fun(traced, multiple_results=True)
        return lower(ctx.replace(avals_in=types), *operands, **parameters)

    return lowered


def _refused(ctx: mlir.LoweringRuleContext, *operands: object, product: object) -> NoReturn:
    """The lowering for platforms without kernels. Raises OperandError, naming them."""
    del operands, product
    platforms = ", ".join(ctx.module_context.platforms)
    raise OperandError(f"layoutgemm.jax runs on cuda, and on the cpu as its reference; this is for {platforms}")


_bound = primitive_of("layoutgemm_product", gpu.multiply, reference.multiply)
