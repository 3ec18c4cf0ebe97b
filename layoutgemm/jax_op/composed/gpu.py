"""A product with several parts on the GPU. One launch of a kernel of compute capability 9.0.

XLA's arrays are contiguous and aligned to 16 bytes at least. XLA turns those that the kernel does not read as they lie,
and gathers rows where the kernel does not. Where the kernel stores some tiles or rows alone, the result's memory is
`out`, or zeros: XLA copies it unless nothing else reads it.
"""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ...errors import OperandError
from ...kernels.derive import padded_leading
from ...kernels.epilogue.parameters import float_word
from ...kernels.indexed.rows import OUT_ROWS, ROWS
from ...kernels.operands.combined import MOST_MATRICES
from ...kernels.operands.product import distance_of
from ...kernels.orders import clusters_of_plan, schedule_of
from ...kernels.run.partial import is_partial
from ...kernels.sm90.plan import Sm90Plan
from ...schedule import TileList
from ...torch_op.problem import Ints
from ..functions import gpu as functions
from ..gpu import (
    CallResult,
    Target,
    call_results,
    launched_once,
    lines_of,
    outputs_from,
    target,
)
from ..outputs import Arrays
from .plans import as_read, plan_of
from .product import OUT, TILES, ComposedProduct
from .reference import gathered

_LIST = "tile_list"  # an array that is made here, of an order's own tiles


def multiply(product: ComposedProduct, *arrays: jax.Array) -> Arrays:
    """The product by a kernel: what the primitive lowers to on a GPU.

    Raises PlanError without the CuTe DSL and its `cutlass.jax`, OperandError on a GPU without such a kernel.
    """
    on = target()
    if on.code != "sm_90a":
        raise OperandError(
            f"{on.name} runs {on.code}: a product with several parts needs wgmma, compute capability 9.0"
        )
    read = as_read(product)
    plan = plan_of(read)
    own = _as_read(product, read, dict(zip(product.names, arrays, strict=True)))
    a, b = lines_of(own["a"], plan.a.dtype), lines_of(own["b"], plan.b.dtype)
    further = {name: lines_of(own[name], plan.a.dtype if name == "a2" else plan.b.dtype) for name in plan.further}
    own |= {"a": a, "b": b, **further}
    schedule = schedule_of(plan)
    if isinstance(schedule, TileList) and schedule.schedule is not None:
        own[_LIST] = jnp.asarray(schedule.list_for(clusters_of_plan(plan)))
    found = _launched(read, plan, own, on)
    return outputs_from(product, found)


def _as_read(product: ComposedProduct, read: ComposedProduct, own: dict[str, jax.Array]) -> dict[str, jax.Array]:
    """The arrays, turned and gathered as `read` says."""
    for side, was, now in zip("ab", product.turned, read.turned, strict=True):
        if was is not now:
            turned = [name for name in own if name == side or name in _MORE[side]]
            own |= {name: jnp.swapaxes(own[name], -1, -2) for name in turned}
    if product.rows is not None and read.rows is None:
        own["a"] = gathered(own["a"], own.pop(ROWS))
    return own


_MORE: Mapping[str, tuple[str, ...]] = {"a": ("a2",), "b": tuple([f"b{i}" for i in range(1, 2 * MOST_MATRICES)])}


def _launched(product: ComposedProduct, plan: Sm90Plan, own: dict[str, jax.Array], on: Target) -> dict[str, jax.Array]:
    """One launch; the result's memory is that of an array where some of it is kept."""
    (m, n, k), rows = product.sizes, product.result[-2]
    made = padded_leading(plan.c.dtype, n) if plan.stores_by_maps else n
    partly, into, first = is_partial(plan), own.pop(OUT, None), None
    if partly:
        first = jnp.zeros(product.result, product.types[2]) if into is None else into
        first = jnp.pad(first, [*[(0, 0)] * (first.ndim - 1), (0, made - n)]) if made != n else first
    a, b = own["a"], own["b"]
    pitches = a.shape[-1] * a.shape[-2], b.shape[-1] * b.shape[-2], rows * made
    numbers = (m, n, k, plan.batch, a.shape[-1], b.shape[-1], made, *pitches, on.places.resident(plan.cluster_size))
    shapes = {name: x.shape for name, x in own.items() if name in (*plan.further, TILES, _LIST)}
    facts = {"product": str(product), "shapes": shapes}
    c = CallResult("c", (*product.result[:-1], made), product.types[2], first)

    def words(pointers: Mapping[str, object]) -> tuple[object, ...]:
        return words_for(plan, product, pointers, shapes) if plan.takes_extra_params else ()

    return launched_once(plan, on, own, call_results(product, plan, c, partly), facts, numbers, words)


def words_for(
    plan: Sm90Plan, product: ComposedProduct, pointers: Mapping[str, object], shapes: Mapping[str, Ints]
) -> tuple[object, ...]:
    """The sixteen words of a launch. Those of the functions, then of each part by the kernel's names."""
    more: dict[str, object] = {name: float_word(value) for name, value in product.sum_numbers}
    more |= dict(product.order_numbers)
    for name in plan.further:
        lines, length = shapes[name][-2:]
        more |= {name: pointers[name], f"ld{name}": length, distance_of(name): lines * length}
    if plan.pair is not None:
        more["k2"] = plan.pair.k
    tiles = _LIST if _LIST in pointers else TILES
    if tiles in pointers:
        more |= {"tiles": pointers[tiles], "tile_count": shapes[tiles][-1]}
    if ROWS in pointers:
        more |= {ROWS: pointers[ROWS], "a_rows": plan.rows_of_a}
    if OUT_ROWS in pointers:
        more |= {OUT_ROWS: pointers[OUT_ROWS], "c_rows": plan.rows_of_c}
    return functions.words_for(plan.words, product, plan.epilogue, pointers, more)
