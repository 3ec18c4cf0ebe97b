"""Products with functions in a JAX program: the primitive, vmap, the derivative, and `matmul`'s call.

    matmul(x, w, prologue=norm, given={"rstd": rstd, "w": gamma})
    matmul(x, w, epilogue=Epilogue(Custom.of(...)), given={...})

A derivative recomputes the sums, and jax derives the functions. Under jit on sharded arrays rows and columns stay
sharded where no function knows an element's place, and nothing is reduced across them; XLA gathers all other operands.
Under shard_map coordinates are those of a device's part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import jax
import jax.numpy as jnp

from ...errors import OperandError
from ...kernels.epilogue.chain import Activation, Bias, Epilogue
from ...kernels.epilogue.parameters import host_number
from ...kernels.epilogue.steps import EpilogueOperand, Step
from ...kernels.operands.prologue import Prologue, PrologueOperand
from ...memo import exact
from ..derivatives import derived_by_jax
from ..inputs import array_of, flag, type_name
from ..outputs import Arrays, Result, listed, named_results, one_or_all, written_by
from ..primitive import MAX_PRODUCTS, differentiable_of, one_by_one, primitive_of, varying_alike
from ..product import C_NAMES, check_finish, check_shapes, check_types, stored_as
from . import gpu
from .product import FunctionProduct, check_functions, check_given, check_operands
from .reference import computed, with_sums
from .sharded import partitioned


def multiply_with_functions(
    a: jax.Array, b: jax.Array, epilogue: Epilogue | None, prologue: Prologue | None,
    given: Mapping[str, object] | None, finish: tuple[jax.Array | None, str | None], out_dtype: object,
    turned: tuple[object, object], allow_tf32: object,
) -> Result:  # fmt: skip
    """epilogue(prologue(a) @ b), or activation(prologue(a) @ b + bias).

    finish  bias and activation, which go with a prologue alone
    turned  transpose_a, transpose_b

    Raises TensorError for shapes that do not meet, OperandError for functions, types and operands without a kernel.
    """
    beside = [name for name, x in zip(("bias", "activation"), finish, strict=True) if x is not None]
    check_functions(epilogue, prologue, given, beside)
    left, right = array_of("a", a), array_of("b", b)
    flags = flag("transpose_a", turned[0]), flag("transpose_b", turned[1])
    check_types(str(left.dtype), str(right.dtype), flag("allow_tf32", allow_tf32))
    kind = stored_as(str(left.dtype), type_name(out_dtype))
    check_shapes(left.shape, right.shape, flags)
    values = dict(given or {})
    if beside:
        columns = None if right.ndim == 1 else right.shape[-2 if flags[1] else -1]
        epilogue = finish_steps(*finish, columns, kind, values)
    check_given(epilogue, prologue, values)
    numbers = () if epilogue is None else launch_numbers(epilogue, values)
    types = str(left.dtype), str(right.dtype), kind
    product = FunctionProduct(left.shape, right.shape, types, flags, epilogue, prologue, (), numbers)
    arrays = [array_of(operand.name, values[operand.name]) for operand in product.operands]
    product = replace(product, shapes=tuple([x.shape for x in arrays]))
    check_operands(product, [(x.shape, str(x.dtype)) for x in arrays])
    return named_results(epilogue, _compiled(product, *varying_alike(left, right, *arrays)))


def finish_steps(
    bias: jax.Array | None, activation: str | None, columns: int | None, kind: str, values: dict[str, object]
) -> Epilogue:
    """Bias and activation, which is no gate, as steps; the bias goes to `values`."""
    added = None if bias is None else array_of("bias", bias)
    check_finish(None if added is None else (added.shape, str(added.dtype)), activation, columns, kind)
    steps: list[Step] = []
    if added is not None:
        if "bias" in values:
            raise OperandError("bias is given, and the prologue reads an operand of that name: name it otherwise")
        values["bias"] = added
        steps.append(Bias("n", C_NAMES[str(added.dtype)]))
    return Epilogue(*steps, *([] if activation is None else [Activation(activation)]))


def launch_numbers(epilogue: Epilogue, given: Mapping[str, object]) -> tuple[tuple[str, int | float], ...]:
    """The numbers of a launch by name. Raises OperandError for one that is known only when the program runs."""
    found = []
    for operand in epilogue.numbers:
        value = given[operand.name]
        if isinstance(value, jax.core.Tracer):
            raise OperandError(
                f"{operand.name} is traced, and a launch's: give a Python number, or an array to Scale(device=True)"
            )
        found.append((operand.name, host_number(operand.name, value, operand.dtype.name == "i32")))
    return exact(tuple(found))


_bound = primitive_of("layoutgemm_functions", gpu.multiply, computed)


@functools.lru_cache(MAX_PRODUCTS)
def _of_devices(product: FunctionProduct) -> Callable[..., Arrays]:
    """The product's function of arrays, over a mesh."""
    return partitioned(product, functools.partial(_bound, product), _bound)


def _mapped(
    multiply: Callable[..., Arrays], product: FunctionProduct, size: int, on: Sequence[bool], *arrays: jax.Array
) -> Arrays:
    """The rule for vmap: a batch, or call by call."""
    if any(not operand.axes for operand in written_by(product.epilogue)):
        return one_by_one(multiply, product, on, arrays)
    batch = (size, *product.batch)
    found = [_stretched(x, moves, batch, len(product.batch)) for x, moves in zip(arrays[:2], on[:2], strict=True)]
    for operand, x, moves in zip(product.operands, arrays[2:], on[2:], strict=True):
        found.append(_of_batch(operand, x, moves, batch, product))
    own = replace(product, a=found[0].shape, b=found[1].shape, shapes=tuple([x.shape for x in found[2:]]))
    made = listed(multiply(own, *found))
    return one_or_all([x.reshape(size, *shape) for x, (shape, _) in zip(made, product.outputs, strict=True)])


def _of_batch(
    operand: PrologueOperand | EpilogueOperand, x: jax.Array, on: bool, batch: tuple[int, ...], product: FunctionProduct
) -> jax.Array:
    """An operand of the batch that vmap makes."""
    if isinstance(operand, EpilogueOperand):
        rank = operand.rank
        if rank == 0 and on:
            raise OperandError(f"{operand.name} is mapped by vmap, and a launch has one: a vector along 'm' has more")
        if (not on and x.ndim == rank) or rank == 0:
            return x
        return _stretched(x, on, batch, x.ndim - on - rank)
    return _stretched(x, on, batch, len(product.batch))


def _stretched(x: jax.Array, on: bool, batch: tuple[int, ...], own: int) -> jax.Array:
    """The array with the whole batch in front, as one dimension.

    on   whether its first dimension is the mapped one
    own  its dimensions of the product's batch
    """
    inner = x.shape[on + own :]
    front = (*x.shape[:1], *(1,) * (len(batch) - 1 - own), *x.shape[1 : 1 + own]) if on else x.shape[:own]
    return jnp.broadcast_to(x.reshape(*front, *inner), (*batch, *inner)).reshape(-1, *inner)


_differentiable = differentiable_of("layoutgemm_functions", _of_devices, _mapped, derived_by_jax(with_sums))
_compiled = jax.jit(_differentiable, static_argnums=0)
