"""Products with several parts in a JAX program. The primitive, vmap, meshes, the derivative, and `matmul`'s call.

    matmul(x, (w_gate, w_up), combine="silu")
    matmul((x, y), (w, v), bias=bias)
    matmul(q, k, transpose_b=True, order="lower")
    matmul(x, w, rows=tokens, out_rows=places, row_weights=weights, out=so_far)

A derivative recomputes the sums, and jax derives the parts. A mesh cuts rows and columns where no part knows an
element's place; XLA gathers all other operands, and K.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ...errors import OperandError
from ...kernels.epilogue.chain import Epilogue, VectorScale
from ...kernels.epilogue.parameters import check_names, host_number
from ...kernels.indexed.rows import OUT_ROWS, ROWS, check_distinct, check_inside
from ...kernels.operands.combined import Combine, Combined, function_of, refusal_of_matrices, refusal_of_pairs
from ...kernels.operands.gated import combination
from ...kernels.operands.prologue import Prologue, check_chosen
from ...kernels.orders import Order, is_symmetric, order_values
from ...layouts import Layout
from ...memo import exact
from ...schedule import Formula, Schedule
from ...schedule.listed import tiles_on_host
from ..derivatives import derived_by_jax
from ..functions.api import finish_steps, launch_numbers
from ..functions.product import FUNCTION_TYPES, check_functions, check_operand, check_stored, check_written
from ..functions.sharded import partitioned
from ..inputs import array_of, flag, known_integers, type_name
from ..outputs import Arrays, Result, listed, named_results
from ..primitive import MAX_PRODUCTS, differentiable_of, one_by_one, primitive_of, varying_alike
from ..product import check_types, gate_of, stored_as
from . import gpu
from .plans import checked_plan
from .product import (
    INTS,
    OUT,
    ROW_WEIGHTS,
    TILES,
    ComposedProduct,
    check_kept,
    check_matrices,
    check_parts_together,
    check_vector,
    order_names,
)
from .reference import computed, gathered, with_sums


class CallParts(NamedTuple):
    """Arguments of `matmul` that ask for more than a product."""

    combine: Combine | None = None
    order: Order | None = None
    rows: jax.Array | None = None
    out_rows: jax.Array | None = None
    row_weights: jax.Array | None = None
    copy_rows: bool | None = None
    out: jax.Array | None = None
    epilogue: Epilogue | None = None
    prologue: Prologue | None = None
    bias: jax.Array | None = None
    activation: str | None = None


def composes(a: object, b: object, asked: CallParts) -> bool:
    """True if a call has parts that functions of one product do not have.

    >>> composes(None, None, CallParts(order="lower")), composes(None, None, CallParts(activation="swiglu"))
    (True, False)
    """
    several = isinstance(a, tuple) or isinstance(b, tuple)
    functions = asked.epilogue is not None or asked.prologue is not None
    gated = functions and isinstance(asked.activation, str) and gate_of(asked.activation) is not None
    return several or gated or any(x is not None for x in asked[:7])


def multiply_parts(
    a: object, b: object, asked: CallParts, given: Mapping[str, object] | None, out_dtype: object,
    turned: tuple[object, object], allow_tf32: object,
) -> Result:  # fmt: skip
    """The product with its parts. Raises TensorError, OperandError or PlanError for those that do not fit."""
    left, right = _operands(a, b, asked)
    _check_counts(left, right, asked)
    flags = flag("transpose_a", turned[0]), flag("transpose_b", turned[1])
    check_types(str(left[0].dtype), str(right[0].dtype), flag("allow_tf32", allow_tf32))
    kind = stored_as(str(left[0].dtype), type_name(out_dtype))
    gate = gate_of(asked.activation)
    values = {} if given is None else dict(given)
    if asked.prologue is not None and asked.rows is not None:
        left[0], asked = _chosen(left[0], asked, values, flags[0]), asked._replace(rows=None, copy_rows=None)
    left, front = _in_rows(left, right, asked, flags)
    shapes = [[(tuple(x.shape), str(x.dtype)) for x in side] for side in (left, right)]
    check_matrices(shapes[0], shapes[1], flags, gate is not None)
    if asked.order is not None and is_symmetric(asked.order) and not (a is b and flags[0] is not flags[1]):
        raise OperandError("order = 'symmetric': b is a's own transpose, as in matmul(a, a, transpose_b=True, order=)")
    product, arrays = _product_of(left, right, asked, values, (flags, kind, gate))
    _check_indices(product, dict(zip(product.names, arrays, strict=True)))
    found: Arrays = _compiled(product, *varying_alike(*arrays))
    if front:  # without an epilogue of the caller's
        (only,) = listed(found)
        return only.reshape(*front, *only.shape[1:])
    return named_results(product.epilogue, found)


def _operands(a: object, b: object, asked: CallParts) -> tuple[list[jax.Array], list[jax.Array]]:
    """The matrices of a, and those that the first multiplies before those of the second.

    Raises OperandError for numbers of them that a function of several sums does not have.
    """
    left = _matrices("a", a)
    if asked.combine is None:
        return left, _matrices("b", b)
    if text := refusal_of_matrices(b) if len(left) == 1 else refusal_of_pairs(b, len(left)):
        raise OperandError(text)
    if isinstance(b, (tuple, list)) and len(left) > 1:
        return left, [*_matrices("b[0]", b[0]), *_matrices("b[1]", b[1])]
    return left, _matrices("b", b)


def _matrices(name: str, x: object) -> list[jax.Array]:
    several = isinstance(x, (tuple, list))
    given: Sequence[object] = x if isinstance(x, (tuple, list)) else [x]
    return [array_of(f"{name}[{i}]" if several else name, each) for i, each in enumerate(given)]


def _check_counts(left: Sequence[jax.Array], right: Sequence[jax.Array], asked: CallParts) -> None:
    """Raise OperandError for other numbers of matrices, and for parts that exclude each other."""
    if asked.combine is not None:
        if gate_of(asked.activation) is not None:
            raise OperandError("activation and combine: the function of the products has the gate")
    elif len(left) != len(right) or len(left) not in (1, 2):
        raise OperandError(f"a is {len(left)} arrays and b {len(right)}: one of each, or two pairs; or combine=")
    if asked.out is not None and asked.order is None and asked.out_rows is None:
        raise OperandError("out: the result of an order of some tiles, or of out_rows=, keeps its values elsewhere")
    if asked.copy_rows is not None:
        flag("copy_rows", asked.copy_rows)


def _chosen(a: jax.Array, asked: CallParts, values: dict[str, object], turned: bool) -> jax.Array:
    """A's chosen rows in front of a prologue, and in `values` its numbers of them.

    f(A)[rows] = f(A[rows]).

    Raises OperandError for a function that reads its row's number, other numbers of rows, and copy_rows=False.
    """
    rows, prologue = array_of(ROWS, asked.rows), asked.prologue
    if not isinstance(prologue, Prologue):
        raise OperandError(f"prologue is a {type(prologue).__qualname__}: a Prologue, made by Prologue.of")
    if asked.copy_rows is False:
        raise OperandError("copy_rows = False: rows of an a with a prologue are copied first")
    if a.ndim != 2:
        raise OperandError(f"a is {a.shape}: rows= and out_rows= are of matrices; jax.vmap maps batches of them")
    check_vector(ROWS, rows.shape, str(rows.dtype), rows.shape[0] if rows.ndim else 0)
    check_chosen(prologue)
    count = a.shape[-1 if turned else 0]
    _check_known(ROWS, rows, count, "a")
    for operand in prologue.operands:
        if operand.axis != "m" or operand.name not in values:
            continue
        x = array_of(operand.name, values[operand.name])
        if x.shape != (count,):
            raise OperandError(f"{operand.name} has shape {x.shape}: ({count},), one for each row of a, not of rows")
        values[operand.name] = gathered(x[:, None], rows)[:, 0]
    return gathered(a.T, rows).T if turned else gathered(a, rows)


def _in_rows(
    left: list[jax.Array], right: Sequence[jax.Array], asked: CallParts, turned: tuple[bool, bool]
) -> tuple[list[jax.Array], tuple[int, ...]]:
    """A's rows of a whole batch as one matrix, for a matrix b: (a, shape of the result's rows or ())."""
    plain = all(x is None for x in (asked.order, asked.rows, asked.out_rows, asked.epilogue, asked.prologue))
    fits = all(x.ndim > 2 and x.shape[:-1] == left[0].shape[:-1] for x in left) and all(x.ndim == 2 for x in right)
    if not plain or not fits or turned[0]:
        return left, ()
    return [x.reshape(-1, x.shape[-1]) for x in left], tuple(left[0].shape[:-1])


def _product_of(
    left: Sequence[jax.Array], right: Sequence[jax.Array], asked: CallParts, values: dict[str, object],
    said: tuple[tuple[bool, bool], str, str | None],
) -> tuple[ComposedProduct, list[jax.Array]]:  # fmt: skip
    """The product and its arrays, checked; `values`: what the caller gave by name."""
    flags, kind, gate = said
    order = _order(asked.order)
    epilogue = _epilogue(asked, gate, kind, right[0].shape[-2 if flags[1] else -1], values)
    prologue, more = asked.prologue, order_names(order)
    check_written(epilogue, values)
    of_epilogue = [] if epilogue is None else [x.name for x in epilogue.given if not x.written]
    owned = [*(prologue.names if prologue is not None else ()), *of_epilogue]
    each = len(right) // len(left)
    how, sums = _function(asked, gate, each, [name for name in values if name not in (*owned, *more)])
    check_names([*owned, *more, *sums], values, "the product's parts read")
    if prologue is not None and str(left[0].dtype) not in FUNCTION_TYPES:
        raise OperandError(f"a is {left[0].dtype}: a prologue is of {', '.join(FUNCTION_TYPES)}")
    rows, out_rows, out = (
        None if x is None else array_of(name, x)
        for name, x in ((ROWS, asked.rows), (OUT_ROWS, asked.out_rows), (OUT, asked.out))
    )
    wholes = {name: _whole(name, values[name]) for name in more if name != TILES}
    product = ComposedProduct(
        left[0].shape, right[0].shape, (str(left[0].dtype), str(right[0].dtype), kind), flags, epilogue, prologue, (),
        () if epilogue is None else launch_numbers(epilogue, values), how,
        (left[1].shape, right[each].shape) if len(left) > 1 else (), order, tuple(wholes.items()),
        tuple([(name, _float(name, values[name])) for name in sums]), None, None, asked.copy_rows, TILES in more,
        out is not None,
    )  # fmt: skip
    if rows is not None:
        check_vector(ROWS, rows.shape, str(rows.dtype), rows.shape[0] if rows.ndim else 0)
        product = replace(product, rows=(rows.shape[0], INTS[str(rows.dtype)]))
    m = product.sizes[0]
    if out_rows is not None:
        check_vector(OUT_ROWS, out_rows.shape, str(out_rows.dtype), m)
        count = out.shape[0] if out is not None and out.ndim == 2 else m
        product = replace(product, out_rows=(count, INTS[str(out_rows.dtype)]))
    if product.batch and (rows is not None or out_rows is not None):
        raise OperandError(f"a is {product.a}: rows= and out_rows= are of matrices; jax.vmap maps batches of them")
    own = [array_of(operand.name, values[operand.name]) for operand in product.operands]
    product = replace(product, shapes=tuple([x.shape for x in own]))
    beside = [name for name in ("bias", ROW_WEIGHTS) if getattr(asked, name) is not None]
    check_parts_together(product, beside)
    check_stored(product)
    for operand, x in zip(product.operands, own, strict=True):
        check_operand(operand, product.wanted(operand), x.shape, str(x.dtype))
    if out is not None:
        check_kept(product, out.shape, str(out.dtype))
    checked_plan(product)
    listed = [_tiles(product, values[TILES])] if product.lists_tiles else []
    further = [*right[1:each], *left[1:], *right[each:]]
    arrays = [left[0], right[0], *further, *own, *[x for x in (rows, out_rows) if x is not None], *listed]
    return product, [*arrays, *([] if out is None else [out])]


def _order(order: Order | None) -> Order | None:
    """The order, a function of tiles as its traced formula: equal functions are compiled once."""
    if order is None or isinstance(order, (str, Layout, Schedule)) or not callable(order):
        return order
    return Formula.of(order)


def _function(
    asked: CallParts, gate: str | None, matrices: int, left: Sequence[str]
) -> tuple[Combined | None, tuple[str, ...]]:
    """(the function of several sums or a gate, the names of its numbers)."""
    if asked.combine is not None:
        return function_of(asked.combine, matrices, tuple(left)), tuple(left)
    return combination(gate), ()


def _epilogue(
    asked: CallParts, gate: str | None, kind: str, columns: int, values: dict[str, object]
) -> Epilogue | None:
    """The caller's epilogue, or bias, activation and weights of rows as steps; their arrays go to `values`."""
    activation = None if gate is not None else asked.activation
    finish = {"bias": asked.bias, "activation": activation, ROW_WEIGHTS: asked.row_weights}
    beside = [name for name, x in finish.items() if x is not None]
    if asked.epilogue is not None or asked.prologue is not None:
        check_functions(asked.epilogue, asked.prologue, values, beside)
    if asked.epilogue is not None or not beside:
        return asked.epilogue
    steps = finish_steps(asked.bias, activation, columns, kind, values).steps
    if asked.row_weights is None:
        return Epilogue(*steps)
    if ROW_WEIGHTS in values:
        raise OperandError("row_weights are given, and a part reads an operand of that name: name it otherwise")
    values[ROW_WEIGHTS] = asked.row_weights
    return Epilogue(*steps, VectorScale("m", "f32", ROW_WEIGHTS))


def _whole(name: str, value: object) -> int:
    """A number that an order reads. Raises OperandError for one that is known only when the program runs."""
    if isinstance(value, jax.core.Tracer):
        raise OperandError(f"{name} is traced, and an order's number is a launch's: give a Python number")
    return int(host_number(name, value, whole=True))


def _float(name: str, value: object) -> float:
    if isinstance(value, jax.core.Tracer):
        raise OperandError(f"{name} is traced, and combine='s number is a launch's: give a Python number")
    return exact(float(host_number(name, value)))


def _tiles(product: ComposedProduct, tiles: object) -> jax.Array:
    """The list of tiles as a kernel reads it. Raises OperandError for one that does not fit.

    A list that is known only when the program runs is such a vector already, and is not looked at.
    """
    if isinstance(tiles, jax.core.Tracer):
        if tiles.ndim != 1 or tiles.dtype != jnp.int32:
            raise OperandError(
                f"tiles is {tiles.dtype} of shape {tiles.shape} and traced: an int32 vector, row + 2**16 * column each"
            )
        return tiles
    plan = checked_plan(product)
    return jnp.asarray(order_values(plan, {TILES: tiles_on_host(np.asarray(tiles))})[TILES])


def _check_indices(product: ComposedProduct, own: Mapping[str, jax.Array]) -> None:
    """Refuse known indices outside of their matrix, and repeated ones of the result."""
    for name, count, of in (
        (ROWS, product.a[-1 if product.turned[0] else -2], "a"), (OUT_ROWS, product.result[-2], "the result")
    ):  # fmt: skip
        if name in own:
            _check_known(name, own[name], count, of)


def _check_known(name: str, indices: jax.Array, count: int, of: str) -> None:
    """Raise OperandError for a known index outside of a matrix, or a repeated result row."""
    found = known_integers(indices)
    if found is None:
        return
    check_inside(name, found, count, of)
    if name == OUT_ROWS:
        check_distinct(name, found)


# ----------------------------------------------------------------------------------------------- vmap, meshes, gradient

_bound = primitive_of("layoutgemm_composed", gpu.multiply, computed)


@functools.lru_cache(MAX_PRODUCTS)
def _of_devices(product: ComposedProduct) -> Callable[..., Arrays]:
    """The product's function of arrays, over a mesh."""
    return partitioned(product, functools.partial(_bound, product), _bound)


def _mapped(
    multiply: Callable[..., Arrays], product: ComposedProduct, size: int, on: Sequence[bool], *arrays: jax.Array
) -> Arrays:
    """The rule for vmap: rows of a plain product are one product, others follow each other."""
    named = dict(zip(product.names, on, strict=True))
    if _folds(product, named):
        return _folded(multiply, product, size, named, arrays)
    return one_by_one(multiply, product, on, arrays)


def _folds(product: ComposedProduct, mapped: Mapping[str, bool]) -> bool:
    """True if mapped matrices a are rows of one product: no other array is mapped, or has a number for each row."""
    lefts = {"a", "a2"} if product.second else {"a"}
    steps = product.epilogue
    of_rows = steps is not None and (any("m" in x.axes for x in steps.given) or bool(steps.writes))
    only = {name for name, on in mapped.items() if on} == lefts
    return only and not (product.known_by_place or of_rows or product.turned[0] or product.batch)


def _folded(
    multiply: Callable[..., Arrays], product: ComposedProduct, size: int, mapped: Mapping[str, bool],
    arrays: Sequence[jax.Array],
) -> jax.Array:  # fmt: skip
    flat = [x.reshape(-1, x.shape[-1]) if on else x for x, on in zip(arrays, mapped.values(), strict=True)]
    named = dict(zip(mapped, flat, strict=True))
    second = (named["a2"].shape, product.second[1]) if product.second else ()
    own = replace(product, a=named["a"].shape, second=second)
    (found,) = listed(multiply(own, *flat))
    return found.reshape(size, *product.result)


_differentiable = differentiable_of("layoutgemm_composed", _of_devices, _mapped, derived_by_jax(with_sums))
_compiled = jax.jit(_differentiable, static_argnums=0)
