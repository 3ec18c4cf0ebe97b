"""A product with functions on the GPU. Matmul's kernel with its epilogue, or the one with a prologue.

XLA's arrays are contiguous and aligned to 16 bytes at least. The call is compiled for the traced shapes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from ...errors import OperandError
from ...kernels.derive import padded_leading
from ...kernels.epilogue.chain import Epilogue
from ...kernels.epilogue.parameters import PlacedOperand, words_of
from ...kernels.operands.prologue import PrologueOperand
from ...kernels.plan import MAX_WORDS, WORKSPACE, present
from ...kernels.sm90.choose.prologue import plan_with_prologue
from ...kernels.sm90.plan import Sm90Plan
from ...torch_op.problem import Problem, Solution, stores_fused
from ...torch_op.solver import solve
from ..gpu import (
    Address,
    CallResult,
    Target,
    call_results,
    copied,
    launched_once,
    launched_solution,
    lines_of,
    operand_of,
    outputs_from,
    target,
)
from ..outputs import Arrays, written_arrays
from ..product import C_NAMES, NAMES, bytes_of
from .product import FunctionProduct, in_rows, known_by_row
from .reference import computed


def multiply(product: FunctionProduct, *arrays: jax.Array) -> Arrays:
    """The product by a kernel: what the primitive lowers to on a GPU.

    Raises PlanError without the CuTe DSL and its `cutlass.jax`, OperandError where no kernel exists.
    """
    if 0 in (*product.result, product.sizes[2]):
        return computed(product, *arrays)
    on = target()
    return _with_prologue(product, arrays, on) if product.prologue is not None else _with_epilogue(product, arrays, on)


@functools.lru_cache(1024)
def plan_of(product: FunctionProduct, on: Target) -> Sm90Plan:
    """The plan of a product with a prologue. Raises OperandError for a GPU without such kernels."""
    if on.code != "sm_90a" or product.prologue is None:
        raise OperandError(f"{on.name} runs {on.code}: a prologue needs wgmma, compute capability 9.0")
    m, n, k = product.sizes
    a, b, c = product.types
    orders = "col" if product.turned[0] else "row", "col" if product.turned[1] else "row"
    names = f"{NAMES[a]}:{orders[0]}", f"{NAMES[b]}:{orders[1]}", C_NAMES[c]
    epilogue = None if product.epilogue is None else in_rows(product.epilogue, n)
    sizes = m, n, k, *(product.batch or (1,))
    return plan_with_prologue(sizes, names, product.prologue, epilogue, None, on.places.multiprocessors)


def _with_prologue(product: FunctionProduct, arrays: Sequence[jax.Array], on: Target) -> Arrays:
    """One launch of the kernel with a prologue. Of 8 bits XLA turns the arrays that have K in their rows.

    wgmma reads those with K contiguous alone.
    """
    if bytes_of(product.types[0]) == 1:
        turned = product.turned[0], not product.turned[1]
        arrays = [*[jnp.swapaxes(x, -1, -2) if y else x for x, y in zip(arrays, turned)], *arrays[2:]]
        product = product.k_contiguous
    plan = plan_of(product, on)
    (m, n, k), batch = product.sizes, plan.batch
    a, b = lines_of(arrays[0], plan.a.dtype), lines_of(arrays[1], plan.b.dtype)
    made = padded_leading(plan.c.dtype, n) if plan.store is not None else n
    pitches = a.shape[-1] * a.shape[-2], b.shape[-1] * b.shape[-2], m * made
    numbers = (m, n, k, batch, a.shape[-1], b.shape[-1], made, *pitches, on.places.resident(plan.cluster_size))
    read = dict(zip(product.names, (a, b, *arrays[2:]), strict=True))
    results = call_results(product, plan, CallResult("c", (*product.result[:-1], made), product.types[2]))
    words = functools.partial(words_for, plan.words, product, plan.epilogue)
    return outputs_from(product, launched_once(plan, on, read, results, {"product": str(product)}, numbers, words))


def words_for(
    names: Sequence[str], product: FunctionProduct, epilogue: Epilogue, pointers: Mapping[str, object],
    more: Mapping[str, object] | None = None,
) -> tuple[object, ...]:  # fmt: skip
    """The sixteen words of a launch, in the order of the plan's names.

    epilogue  as the kernel has it
    pointers  addresses of the operands, by name; all are contiguous
    more      words of other parts, by name
    """
    placed: dict[str, object] = dict(product.numbers)
    table: dict[str, object] = dict(more or {})
    m, n, _ = product.sizes
    written = [(operand, shape) for operand, (shape, _) in written_arrays(product)]
    for operand, shape in (*zip(product.operands, product.shapes, strict=True), *written):
        if isinstance(operand, PrologueOperand):
            table |= dict(zip(operand.words, (pointers[operand.name], shape[-1]), strict=True))
            continue
        one = operand.shape(m, n)
        size = functools.reduce(lambda x, y: x * y, one, 1)
        several = bool(product.batch) and operand.axes != "" and len(shape) > len(one)
        placed[operand.name] = PlacedOperand(pointers[operand.name], (0, *one)[-1], size if several else 0)
    table |= dict(zip(epilogue.words, words_of(epilogue, placed, pointers.get(WORKSPACE)), strict=False))
    if missing := [name for name in names if name not in table]:
        raise OperandError(f"the kernel takes {missing[0]}, which a product of JAX arrays does not have")
    return (*[table[name] for name in names], *[0] * (MAX_WORDS - len(names)))


# ------------------------------------------------------------------------------------------------- by matmul's kernel


@functools.lru_cache(1024)
def solution_of(product: FunctionProduct, on: Target) -> Solution:
    """matmul's kernel with the epilogue. Raises OperandError where none exists."""
    assert product.epilogue is not None
    kind = C_NAMES[product.types[2]]
    if not stores_fused(on.code, kind):
        raise OperandError(f"{on.name} runs {on.code}, whose kernels store no {product.types[2]} behind an epilogue")
    of_a = operand_of(product.a, NAMES[product.types[0]], product.turned[0])
    of_b = operand_of(product.b, NAMES[product.types[1]], product.turned[1])
    into = operand_of(product.result, kind, turned=False)
    found = solve(
        Problem(
            of_a, of_b, into, on.places, on.name, epilogue=in_rows(product.epilogue, product.sizes[1]),
            keep_batch_separate=known_by_row(product.epilogue) or bool(product.batch), code=on.code, smem=on.smem,
        )
    )  # fmt: skip
    if found.copies[2] is not None or len(found.launches) != 1:
        why = f"{len(found.launches)} launches" if found.copies[2] is None else found.copies[2].why
        raise OperandError(f"no kernel stores a contiguous C of {product.result} at once: {why}")
    return found


def _with_epilogue(product: FunctionProduct, arrays: Sequence[jax.Array], on: Target) -> Arrays:
    """The launch of matmul's kernel."""
    found = solution_of(product, on)
    operands = [
        x if copy is None else copied(jnp.swapaxes(x, -1, -2) if turned else x, copy)
        for x, copy, turned in zip(arrays[:2], found.copies[:2], product.turned, strict=True)
    ]
    plan = found.kernel.plan(*found.sizes)
    read = dict(zip(product.names, (*operands, *arrays[2:]), strict=True))
    results = call_results(product, plan, CallResult("c", product.result, product.types[2]))
    epilogue = present(found.kernel.epilogue)

    def words(pointers: Mapping[str, Address]) -> Sequence[object]:
        return words_for(epilogue.words, product, epilogue, pointers)[: len(epilogue.words)]

    return outputs_from(product, launched_solution(plan, found, on, read, results, product, words))
