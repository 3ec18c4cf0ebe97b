"""layoutgemm.jax.scaled_matmul and grouped_matmul: checks, and the derivative of groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

import jax
import jax.numpy as jnp

from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import Epilogue
from ...torch_op.scaled_grouped.epilogue import why_unfinished
from ..derivatives import check_derived, saved, summed, tangents_through, through_activation
from ..functions.api import launch_numbers
from ..functions.product import check_functions, check_given, check_operand, check_stored
from ..inputs import array_of, flag, known_integers, type_name
from ..outputs import Arrays, Result, listed, named_results, read_by
from ..primitive import Operands, Tangents, differentiable_of, varying_alike
from ..product import check_finish, other_way, stored_as
from ..reference import activated
from .primitive import mapped, of_devices
from .product import ALONG_K, FLOAT8, PLAIN, ROWS, ScaledProduct, check_bias, check_offsets, check_operands, recipes_for
from .reference import finished, groups_of_rows


def scaled_matmul(
    a: jax.Array,
    scale_a: jax.Array,
    b: jax.Array,
    scale_b: jax.Array | None = None,
    *,
    recipe_a: object = None,
    recipe_b: object = None,
    bias: jax.Array | None = None,
    activation: str | None = None,
    use_fast_accum: bool = True,
    out_dtype: object = "bfloat16",
    transpose_b: bool = False,
    epilogue: Epilogue | None = None,
    given: Mapping[str, object] | None = None,
) -> Result:
    """activation(A @ B + bias) of 8-bit floats, each with its scales.

    a, b     float8_e4m3fn or float8_e5m2 each, (M, K) and (K, N), or batches of them; transpose_b: b is (N, K), which
             the kernel reads in place. On GPUs of compute capability 9.0, or on the CPU
    scale_a  float32: (M, K blocks of 128), or (M / 128, K blocks); (M, 1) or (M,); one element
    scale_b  float32, or None: (N, K blocks), or (N / 128, K blocks); (1, N), (N, 1) or (N,); one element
    recipe_a, recipe_b, use_fast_accum  as `layoutgemm.scaled_matmul` has them
    bias     float32, bfloat16 or float16, (N,); activation one of relu, relu_sq, gelu, gelu_tanh, silu, sigmoid, tanh
    activation  also a gate, "swiglu" or "geglu": b is [gate | up], and the result act(a @ gate) * (a @ up) has half of
             b's columns. scale_b and bias are of all of b's; they come before the gate
    epilogue in place of bias and activation, behind the scales: any `kernels.epilogue.chain.Epilogue`. given has the
             arrays and numbers that it reads, by name. Of one that writes more than C the result is (c, {name: array})

    On the CPU jax computes in float32 and rounds once. Works under jit, vmap and on meshes, where rows, columns and
    batch may be sharded, but not blocks of 128. No gradients, as of all products of 8 bits.

    Raises TensorError for shapes that do not meet, OperandError for types and recipes without a kernel.

    >>> import jax.numpy as jnp
    >>> a, b = jnp.ones((2, 256), jnp.float8_e4m3fn), jnp.ones((3, 256), jnp.float8_e4m3fn)
    >>> scaled_matmul(a, jnp.array([[1.0, 2.0], [0.5, 0.25]]), b, transpose_b=True)[:, 0].tolist()
    [384.0, 96.0]
    """
    left, right = array_of("a", a), array_of("b", b)
    transpose_b, use_fast_accum = flag("transpose_b", transpose_b), flag("use_fast_accum", use_fast_accum)
    check_operands(str(left.dtype), str(right.dtype), True, False)
    k_of_b = right.shape[-1 if transpose_b else -2] if right.ndim > 1 else None
    if (
        left.ndim not in (2, 3)
        or right.ndim != left.ndim
        or left.shape[-1] != k_of_b
        or left.shape[:-2] != right.shape[:-2]
    ):
        order = "(N, K)" if transpose_b else "(K, N)"
        raise TensorError(f"a and b have shapes {left.shape} and {right.shape}: (M, K) and {order}, or as many of both")
    product = ScaledProduct(
        PLAIN, tuple(left.shape), tuple(right.shape), _types(left, right, out_dtype), transpose_b,
        fast=use_fast_accum,
    )  # fmt: skip
    product, operands = _with_scales(product, [left, right], scale_a, scale_b, recipe_a, recipe_b)
    finish = bias, activation, epilogue, given
    return _finished(product, operands, finish, [(product.columns,)])


def grouped_matmul(
    a: jax.Array,
    b: jax.Array,
    offsets: jax.Array,
    *,
    scale_a: jax.Array | None = None,
    scale_b: jax.Array | None = None,
    recipe_a: object = None,
    recipe_b: object = None,
    bias: jax.Array | None = None,
    activation: str | None = None,
    use_fast_accum: bool = True,
    out_dtype: object = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    epilogue: Epilogue | None = None,
    given: Mapping[str, object] | None = None,
) -> Result:
    """A grouped GEMM, as in a mixture of experts. It is a product for each group, in one launch.

    a (rows, K), b (groups, K, N)  groups of rows: (rows, N). transpose_b: b is (groups, N, K)
    a (M, K), b (K, N)             groups of K: (groups, M, N). transpose_a: a is (K, M), read in place
    a, b      bfloat16, float16, float8_e4m3fn or float8_e5m2. On GPUs of compute capability 9.0, or on the CPU. Of
              float8 and groups of K the kernel reads a, and b by transpose_b, in place
    offsets   int32 or int64 of groups + 1: where each group begins, from 0, and the last one ends, at a's rows (or K);
              none below the one before it, so that groups may be empty. Values are checked where the host has them:
              not where they are traced or on a GPU. Groups of K of float8 begin at multiples of 128, and end there or
              at K: the product of any other is NaN
    scale_a   of float8 and groups of rows: (rows, K blocks of 128), (rows, 1), (rows,) or one element; scale_b (groups,
              N, K blocks), (groups, N / 128, K blocks), (groups, 1, N), (groups, N, 1), (groups, N) or one element.
              Of groups of K: (M, K blocks) or (M / 128, K blocks), and N for M of b; (groups, M, 1) and (groups, 1, N);
              or one element
    bias      of groups of rows: (N,), or (groups, N) for one of each group. In the kernel, as the activation
    activation  of groups of rows also a gate, "swiglu" or "geglu": b is [gate | up] of each group, and the result has
              half of its columns; bias and scale_b are of all. In one kernel for transpose_b=True and for float8
    out_dtype default a's type; bfloat16 for float8
    epilogue  in place of bias and activation, of both forms: any `kernels.epilogue.chain.Epilogue`; of one that
              writes more than C the result is (c, {name: array}), columns reduced in each group of rows. given has the
              arrays and numbers that it reads, by name: of groups of rows a vector along N is (N,), or
              (groups, N); of K each group has vectors and matrices of its own, or all share one

    Differentiable for bfloat16 and float16, in both modes and any number of times. vmap computes one product after
    another. On meshes columns may be sharded, and K of groups of rows without scales.

    Raises TensorError for shapes that do not meet, OperandError for types and options without a kernel.

    >>> import jax.numpy as jnp
    >>> a, b = jnp.ones((3, 2), jnp.bfloat16), jnp.arange(1, 4, dtype=jnp.bfloat16).reshape(3, 1, 1).repeat(2, 1)
    >>> grouped_matmul(a, b, jnp.array([0, 1, 1, 3])).ravel().tolist()
    [2.0, 6.0, 6.0]
    """
    left, right, ends = array_of("a", a), array_of("b", b), array_of("offsets", offsets)
    transpose_a, transpose_b = flag("transpose_a", transpose_a), flag("transpose_b", transpose_b)
    use_fast_accum = flag("use_fast_accum", use_fast_accum)
    check_operands(str(left.dtype), str(right.dtype), scale_a is not None, True)
    if left.ndim != 2 or right.ndim not in (2, 3):
        shapes = f"a and b have shapes {left.shape} and {right.shape}"
        raise TensorError(f"{shapes}: (rows, K) and (groups, K, N), or (M, K) and (K, N)")
    groups = right.shape[0] if right.ndim == 3 else None
    k = left.shape[0] if transpose_a else left.shape[1]
    grouped = (k, "columns, K") if groups is None else (left.shape[1 if transpose_a else 0], "rows")
    check_offsets(str(ends.dtype), tuple(ends.shape), groups, known_integers(offsets), *grouped)
    k_of_b = right.shape[-1 if transpose_b else -2]
    if k != k_of_b:
        said = f"K is {k} in a of shape {left.shape} and {k_of_b} in b of shape {right.shape}"
        raise TensorError(f"{said}{other_way(k, right.shape, transpose_b)}")
    if scale_a is None and (scale_b is not None or recipe_a is not None or recipe_b is not None):
        what = "scale_b" if scale_b is not None else "recipe_a" if recipe_a is not None else "recipe_b"
        raise OperandError(f"{what} without a scale_a")
    count, kind = ends.shape[0] - 1, str(ends.dtype)
    types = _types(left, right, out_dtype)
    if groups is None:
        for name, x in (("bias", bias), ("activation", activation)):
            if x is not None:
                raise OperandError(why_unfinished(ALONG_K, name))
        blocks = str(left.dtype) in FLOAT8  # whose K is contiguous
        left, right = left if transpose_a != blocks else left.T, right.T if transpose_b != blocks else right
        product = ScaledProduct(
            ALONG_K, tuple(left.shape), tuple(right.shape), types, blocks, kind, count, fast=use_fast_accum
        )
        operands = [left, right, ends]
        if scale_a is not None:
            product, operands = _with_scales(product, operands, scale_a, scale_b, recipe_a, recipe_b)
        return _finished(product, operands, (None, None, epilogue, given), [])
    left = left.T if transpose_a else left
    product = ScaledProduct(
        ROWS, tuple(left.shape), tuple(right.shape), types, transpose_b, kind, count, fast=use_fast_accum
    )
    operands = [left, right, ends]
    if scale_a is not None:
        product, operands = _with_scales(product, operands, scale_a, scale_b, recipe_a, recipe_b)
    n = product.columns
    return _finished(product, operands, (bias, activation, epilogue, given), [(n,), (count, n)])


def _types(a: jax.Array, b: jax.Array, out_dtype: object) -> tuple[str, str, str]:
    return str(a.dtype), str(b.dtype), stored_as(str(a.dtype), type_name(out_dtype))


def _with_scales(
    product: ScaledProduct, operands: list[jax.Array], scale_a: object, scale_b: object, recipe_a: object,
    recipe_b: object,
) -> tuple[ScaledProduct, list[jax.Array]]:  # fmt: skip
    """The product with its scales checked, and the operands with them."""
    given = [array_of(name, x) for name, x in (("scale_a", scale_a), ("scale_b", scale_b)) if x is not None]
    of_a, of_b = given[0], given[1] if len(given) > 1 else None
    found = recipes_for(product, of_a, of_b, recipe_a, recipe_b)
    shapes = tuple(of_a.shape), None if of_b is None else tuple(of_b.shape)
    return replace(product, recipes=found, scales=shapes), [*operands, *given]


def _finished(
    product: ScaledProduct, operands: list[jax.Array],
    finish: tuple[object, object, Epilogue | None, Mapping[str, object] | None], shapes: list[tuple[int, ...]],
) -> Result:  # fmt: skip
    """The product with bias and activation, or with an epilogue and what it reads, checked."""
    bias, activation, epilogue, given = finish
    if epilogue is not None or given is not None:
        beside = [name for name, x in (("bias", bias), ("activation", activation)) if x is not None]
        check_functions(epilogue, None, given, beside)
        assert epilogue is not None
        return _with_epilogue(product, operands, epilogue, given or {})
    added = None if bias is None else array_of("bias", bias)
    said = None if added is None else (str(added.dtype), tuple(added.shape))
    check_bias(said, shapes)
    name = check_finish(None, activation, product.columns, product.types[2])
    return _differentiable(replace(product, bias=said, activation=name), *operands, added)


def _with_epilogue(
    product: ScaledProduct, operands: list[jax.Array], epilogue: Epilogue, given: Mapping[str, object]
) -> Result:
    """The product with an epilogue of the caller's own, checked."""
    check_given(epilogue, None, given)
    if taken := [name for name in given if name in product.names]:
        raise OperandError(f"an operand of the epilogue is named {taken[0]}, as one of the product is")
    arrays = [array_of(operand.name, given[operand.name]) for operand in read_by(epilogue)]
    shapes, numbers = tuple([tuple(x.shape) for x in arrays]), launch_numbers(epilogue, given)
    product = replace(product, epilogue=epilogue, shapes=shapes, numbers=numbers)
    check_stored(product)
    for operand, x in zip(product.operands, arrays, strict=True):
        check_operand(operand, product.wanted(operand), tuple(x.shape), str(x.dtype))
    return named_results(epilogue, _differentiable(product, *operands, *arrays))


def _differentiable(product: ScaledProduct, *operands: jax.Array | None) -> Arrays:
    result: Arrays = _compiled(product, *varying_alike(*[x for x in operands if x is not None]))
    return result


# ----------------------------------------------------------------------------------------------------------- derivative


def _derived(
    multiply: Callable[..., Arrays], product: ScaledProduct, operands: Operands, tangents: Tangents
) -> tuple[Arrays, Tangents]:
    """The product and its tangents: of an activation or a gate by the sums in float32."""
    check_derived(product.types, product.epilogue)
    plain, names = product.without_finish(), product.names
    if product.epilogue is not None:

        def again(*arrays: jax.Array) -> Arrays:
            own = dict(zip(names, arrays, strict=True))
            return finished(product, _sums(plain, *[own[name] for name in plain.names]), own)

        return saved(multiply(product, *operands)), tangents_through(again, operands, tangents)
    given, moving = dict(zip(names, operands, strict=True)), dict(zip(names, tangents, strict=True))
    offsets, kind, bias = given["offsets"], product.types[2], moving.get("bias")
    if bias is not None:
        bias = bias.astype(jnp.float32)
        bias = bias[None] if bias.ndim == 1 else bias[groups_of_rows(offsets, given["a"].shape[0])]
    linear = [
        None if moving[name] is None else _sums(plain, *[{**given, name: moving[name]}[x] for x in ("a", "b")], offsets)
        for name in ("a", "b")
    ]
    tangent = jnp.broadcast_to(summed([*linear, bias]), plain.result)
    if product.activation is None:
        return saved(multiply(product, *operands)), [tangent.astype(kind)]
    wide = replace(product, types=(*product.types[:2], "float32"), activation=None)
    (sums,) = listed(saved(multiply(wide, *operands)))
    tangent = through_activation(sums, tangent, product.activation)
    return activated(sums, product.activation).astype(kind), [tangent.astype(kind)]


def _transposed(
    product: ScaledProduct, name: str, grad: jax.Array, a: jax.Array, b: jax.Array, offsets: jax.Array
) -> jax.Array:
    """The gradient of a or of b by a grouped product. The sums' gradient is rounded to their type.

    Groups of rows give one of rows and one of K, and groups of K two of rows: nothing is copied.
    """
    kind, grad = product.types[0], grad.astype(product.types[0])

    def rows(left: jax.Array, right: jax.Array, turned: bool) -> jax.Array:
        shapes = tuple(left.shape), tuple(right.shape)
        made = ScaledProduct(ROWS, *shapes, (kind,) * 3, turned, product.offsets, product.groups)
        return _sums(made, left, right, offsets)

    def along(left: jax.Array, right: jax.Array) -> jax.Array:
        shapes = tuple(left.shape), tuple(right.shape)
        made = ScaledProduct(ALONG_K, *shapes, (kind,) * 3, offsets=product.offsets, groups=product.groups)
        return _sums(made, left, right, offsets)

    if product.form == ALONG_K:
        return rows(b, grad, True) if name == "a" else rows(a, grad, False)
    if name == "a":
        return rows(grad, b, not product.turned)
    return along(grad, a) if product.turned else along(a, grad)


def _sums(product: ScaledProduct, *operands: jax.Array) -> jax.Array:
    """The product of one array."""
    (found,) = listed(_product(product, *operands))
    return found


_product = differentiable_of("layoutgemm_described", of_devices, mapped, _derived, _transposed)
_compiled = jax.jit(_product, static_argnums=0)
