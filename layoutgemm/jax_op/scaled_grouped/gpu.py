"""A product with scales or of groups on the GPU: its plan, launched by `cutlass.jax.cutlass_call`.

    ScaledProduct --plan_of--> Sm90Plan --multiply--> copies as XLA operations, one call of the kernel

Sums of row-wise and tensor-wise scales that stay in the tensor core are matmul's: a Problem, solved, with an epilogue.
Rows of C are made as long as a TMA store needs them, and cut afterwards.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ...dtypes import dtype
from ...errors import OperandError
from ...kernels.derive import padded_leading
from ...kernels.epilogue.chain import Epilogue
from ...kernels.epilogue.parameters import PlacedOperand, words_of
from ...kernels.operands.gated import HALVES
from ...kernels.operands.promoted import DEPTH, widest_span
from ...kernels.plan import MAX_WORDS, WORKSPACE, present
from ...kernels.ragged import AlongK, Ragged
from ...kernels.sm90.choose.occupancy import ClusterOccupancy
from ...kernels.sm90.choose.scaled_grouped import (
    along_k_config,
    gated_config,
    k_blocks_config,
    plan_with_scales,
    read_each_column,
    scaled_config,
    usual_config,
)
from ...kernels.sm90.plan import Sm90Plan
from ...torch_op.problem import Problem, Solution, StridedOperand, contiguous_strides
from ...torch_op.scaled_grouped.epilogue import epilogue_of
from ...torch_op.scaled_grouped.recipes import Recipes
from ...torch_op.solver import solve
from ..functions.product import in_rows
from ..gpu import (
    Address,
    CallResult,
    Target,
    call_results,
    copied,
    launched_once,
    launched_solution,
    lines_of,
    outputs_from,
    target,
)
from ..outputs import Arrays, listed, written_arrays
from ..product import C_NAMES, NAMES
from .product import ALONG_K, PLAIN, ROWS, ScaledProduct
from .reference import finished

_INTS = {"int32": "i32", "int64": "i64"}
_Given = Mapping[str, Any]


def multiply(product: ScaledProduct, *operands: jax.Array) -> Arrays:
    """The product by a kernel, operands in the order of its names. What `primitive` lowers to on a GPU.

    Raises OperandError on GPUs without such kernels, PlanError without the CuTe DSL and its `cutlass.jax`.
    """
    on = target()
    if on.code != "sm_90a":
        raise OperandError(
            f"a product with scales or of groups on {on.name}: these kernels run on compute capability 9.0 (H100, "
            "H200, GH200)"
        )
    given = dict(zip(product.names, operands, strict=True))
    if 0 in (*product.result, product.sizes[2], *product.b):  # an empty sum is 0
        if product.epilogue is None and (0 in product.result or 0 in product.b[:1]):
            return jnp.zeros(product.result, product.types[2])
        return finished(product, jnp.zeros(product.without_finish().result, jnp.float32), given)
    if product.gate is not None and not product.turned and dtype(NAMES[product.types[1]]).bits > 8:
        sums = product.without_finish()  # a gated product's kernel reads a K-major b, which 8 bits are copied to
        (wide,) = listed(multiply(sums, *[given[name] for name in sums.names]))
        return finished(product, wide, given)
    in_mainloop = product.recipes is None or product.recipes.in_mainloop or not product.fast
    if product.form == PLAIN and not in_mainloop and product.gate is None:
        return _solved(product, given, on)
    return _planned(product, given, on)


def epilogue_for(product: ScaledProduct) -> Epilogue:
    """The epilogue. It has the scales that the main loop leaves, then the product's own, or bias and activation.

    A gate is no step of it.

    >>> recipes = Recipes("RowWise", "TensorWise")
    >>> product = ScaledProduct(PLAIN, (8, 16), (16, 8), ("float8_e4m3fn",) * 3, recipes=recipes, scales=((8, 1), (1,)))
    >>> [type(step).__name__ for step in epilogue_for(product).steps]
    ['VectorScale', 'Scale']
    """
    bias = None if product.bias is None else C_NAMES[product.bias[0]]
    found = epilogue_of(product.recipes or Recipes("", ""), bias, product.activation)
    if product.epilogue is None:
        return found
    own = in_rows(product.epilogue, product.sizes[1])
    return Epilogue(*found.steps, *own.steps, pairs=own.pairs, stores_c=own.stores_c, lines=own.lines)


@functools.lru_cache(1024)
def plan_of(product: ScaledProduct, places: ClusterOccupancy) -> Sm90Plan:
    """The plan of a product that has a kernel of its own. Raises PlanError.

    places  of the GPU
    """
    m, n, k, batch = product.sizes
    a, b, c = NAMES[product.types[0]], NAMES[product.types[1]], C_NAMES[product.types[2]]
    recipes, epilogue = product.recipes, epilogue_for(product) or None
    columns = 1 if epilogue is None else epilogue.columns
    scales: tuple[int, ...] | None = None
    if recipes is not None:
        scales = recipes.groups if recipes.in_mainloop else None if product.fast else ()
    if product.form == ALONG_K:
        config = (
            k_blocks_config(m, n, k, batch, scales, c, places, columns)
            if product.turned
            else along_k_config(m, n, k, batch, wide=dtype(c).bits == 32, columns=columns)
        )
        orders = ("row", "col") if product.turned else ("col", "row")
        groups = AlongK.of(batch, _INTS[str(product.offsets)], multiple=DEPTH if product.turned else 1)
        types = f"{a}:{orders[0]}", f"{b}:{orders[1]}", c
        return plan_with_scales((m, n, k, batch), types, scales, config, along_k=groups, epilogue=epilogue)
    types = a, f"{b}:{'col' if product.turned or dtype(b).bits == 8 else 'row'}", c
    ragged, sums = None, 1 if product.gate is None else HALVES
    if product.form == ROWS:
        ragged = Ragged.of(batch, _INTS[str(product.offsets)])
        config = usual_config((m, n, k, batch), types, scales, sums, columns, places)
    elif scales is None:
        config, _ = gated_config((m, n, k, batch), types, str(product.gate), places)
    else:
        each = read_each_column(scales, n, sums)
        config = scaled_config(
            m, n, k, batch=batch, each_column=each, columns=columns, c=c, sums=sums, places=places, adds=scales == ()
        )
    more = {"ragged": ragged, "epilogue": epilogue, "gated": product.gate}  # all arrays are contiguous
    return plan_with_scales((m, n, k, batch), types, scales, config, widest_span(k), **more)


def _planned(product: ScaledProduct, given: _Given, on: Target) -> Arrays:
    """One launch of the product's own plan."""
    plan = plan_of(product, on.places)
    m, n, _, batch = product.sizes
    a, b = given["a"], given["b"]
    if product.form != ALONG_K and plan.b.order == ("row" if product.turned else "col"):
        b = jnp.swapaxes(b, -1, -2)
    a, b = lines_of(a, plan.a.dtype), lines_of(b, plan.b.dtype)
    made = padded_leading(plan.c.dtype, n) if plan.store is not None else n
    apart = batch > 1 and product.form != ROWS
    pitches = (m * a.shape[-1] if apart and product.form == PLAIN else a.size, b.shape[-1] * b.shape[-2], m * made)
    leading = a.shape[-1], b.shape[-1], made
    resident = on.places.resident(plan.cluster_size)
    numbers = (m, n, product.sizes[2], batch, *leading, *pitches, resident)
    results = call_results(product, plan, CallResult("c", (*product.result[:-1], made), product.types[2]))
    read, words = {**given, "a": a, "b": b}, functools.partial(words_for, plan, product)
    return outputs_from(product, launched_once(plan, on, read, results, {"product": str(product)}, numbers, words))


def words_for(plan: Sm90Plan, product: ScaledProduct, pointers: Mapping[str, object]) -> tuple[Any, ...]:
    """The sixteen words of a launch: the epilogue's, the main loop's tables, the groups' offsets.

    pointers  addresses of the operands, by name; all are contiguous
    """
    placed = _placed(product, plan.epilogue, pointers)
    own = words_of(plan.epilogue, placed, pointers.get(WORKSPACE))[: len(plan.epilogue.words)]
    words: list[Any] = [*own]
    for table in plan.mainloop.tables if plan.mainloop is not None else ():
        shape = product.scales["scale_b" == table.name]
        assert shape is not None
        lines, blocks = shape[-2:]
        words += [pointers[table.name], blocks, 1, lines * blocks if len(shape) > 2 else 0]
    if plan.groups is not None:
        words.append(pointers["offsets"])
    return (*words, *[0] * (MAX_WORDS - len(words)))


def _placed(product: ScaledProduct, epilogue: Epilogue, pointers: Mapping[str, object]) -> dict[str, object]:
    """An epilogue's operands: each matrix of a batch, or group, has its own vector, or all share one."""
    m, n, _, batch = product.sizes
    own = {operand.name: shape for operand, shape in zip(product.operands, product.shapes, strict=True)}
    own |= {operand.name: shape for operand, (shape, _) in written_arrays(product)}
    found: dict[str, object] = dict(product.numbers)
    for operand in epilogue.given:
        if operand.host:
            continue
        shape = product.bias[1] if operand.name == "bias" and product.bias is not None else own.get(operand.name)
        shape = product.scales[operand.name == "scale_b"] if shape is None else shape
        assert shape is not None
        # a gate's are of all columns of b
        size = product.columns * operand.count if operand.axes == "n" else _count(operand.shape(m, n))
        several = batch > 1 and operand.axes != "" and _count(shape) > size
        leading = shape[-1] if operand.axes == "mn" else 0
        found[operand.name] = PlacedOperand(pointers[operand.name], leading, size if several else 0)
    return found


def _count(shape: Sequence[int]) -> int:
    return functools.reduce(lambda x, y: x * y, shape, 1)


# -------------------------------------------------------------------------------------- by matmul's kernel and solver


@functools.lru_cache(1024)
def solution_of(product: ScaledProduct, on: Target) -> Solution:
    """matmul's kernel with the scales in its epilogue. Raises OperandError where no kernel exists."""
    epilogue = epilogue_for(product)
    pairs = product.sizes[1] % 2 == 0 if product.epilogue is None else epilogue.pairs
    epilogue = epilogue.in_pairs(pairs, epilogue.lines)
    kind = C_NAMES[product.types[2]]
    b = product.b
    strides = contiguous_strides(b)
    if product.turned:
        b, strides = (*b[:-2], b[-1], b[-2]), (*strides[:-2], strides[-1], strides[-2])
    return solve(
        Problem(
            StridedOperand(product.a, contiguous_strides(product.a), NAMES[product.types[0]]),
            StridedOperand(b, strides, NAMES[product.types[1]]),
            StridedOperand(product.result, contiguous_strides(product.result), kind),
            on.places, on.name, epilogue=epilogue, keep_batch_separate=True, code=on.code, smem=on.smem,
        )
    )  # fmt: skip


def _solved(product: ScaledProduct, given: _Given, on: Target) -> Arrays:
    """The launches of matmul's kernel."""
    found = solution_of(product, on)
    if found.copies[2] is not None:
        raise OperandError(f"no kernel stores a contiguous C of {product.result}: {found.copies[2].why}")
    a, b = given["a"], given["b"]
    a = a if found.copies[0] is None else copied(a, found.copies[0])
    b = b if found.copies[1] is None else copied(jnp.swapaxes(b, -1, -2) if product.turned else b, found.copies[1])
    plan = found.kernel.plan(*found.sizes)
    assert len(found.launches) == 1
    results = call_results(product, plan, CallResult("c", product.result, product.types[2]))
    epilogue, read = present(found.kernel.epilogue), {**given, "a": a, "b": b}

    def words(pointers: Mapping[str, Address]) -> Sequence[object]:
        placed = _placed(product, epilogue, pointers)
        return words_of(epilogue, placed, pointers.get(WORKSPACE))[: len(epilogue.words)]

    return outputs_from(product, launched_solution(plan, found, on, read, results, product, words))
