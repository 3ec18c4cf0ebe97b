"""layoutgemm.jax.matmul: checks, and vectors as matrices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from ..kernels.epilogue.chain import Epilogue
from ..kernels.operands.combined import Combine
from ..kernels.operands.prologue import Prologue
from ..kernels.orders import Order
from .composed.api import CallParts, composes, multiply_parts
from .derivatives import compiled
from .functions.api import multiply_with_functions
from .inputs import array_of, flag, type_name
from .outputs import Result
from .primitive import varying_alike
from .product import Product, check_finish, check_shapes, check_types, stored_as


def matmul(
    a: jax.Array | Sequence[jax.Array],
    b: jax.Array | Sequence[jax.Array],
    *,
    bias: jax.Array | None = None,
    activation: str | None = None,
    out_dtype: object = None,
    transpose_a: bool = False,
    transpose_b: bool = False,
    allow_tf32: bool = False,
    epilogue: Epilogue | None = None,
    prologue: Prologue | None = None,
    given: Mapping[str, object] | None = None,
    combine: Combine | None = None,
    order: Order | None = None,
    rows: jax.Array | None = None,
    out_rows: jax.Array | None = None,
    row_weights: jax.Array | None = None,
    copy_rows: bool | None = None,
    out: jax.Array | None = None,
) -> Result:
    """activation(a @ b + bias), with shapes as in jax.numpy.matmul. They are vectors, matrices, batches that broadcast.

    a, b         bfloat16, float16, float8_e4m3fn or float8_e5m2, int8 or uint8 (two kinds of 8 bits may meet), or
                 float32 multiplied as tf32; on GPUs of compute capability 9.0, by mma.sync on 8.x and 12.0, on the CPU
    bias         float32, bfloat16 or float16, of shape (n,): added to each row
    activation   relu, relu_sq, gelu, gelu_tanh, silu, sigmoid or tanh. Both happen in the kernel on 9.0, elsewhere by
                 XLA on a float32 product
                 "swiglu" and "geglu" are gated products: b is [gate | up] of 2n columns, and the result
                 silu(a @ gate) * (a @ up), or gelu, has n. In one kernel for transpose_b=True and no bias; else XLA
                 gates a float32 product. A bias is of all 2n, and comes before the gate
    out_dtype    default a's type; bfloat16 for 8-bit floats, int32 for integers
    transpose_a  a is given as (..., k, m), transpose_b: b as (..., n, k). The kernel reads them so; `b.T` would be
                 copied by XLA first
    allow_tf32   whether float32 may be multiplied as tf32
    epilogue     in place of bias and activation: any `kernels.epilogue.chain.Epilogue`, for two matrices or two
                 batches of as many. given has the arrays and numbers that it reads, by name. Of one that writes more
                 than C, as a reduction, the result is (c, {name: array}), and c is None with stores_c=False
    prologue     a function of a's elements before they are multiplied, a `kernels.Prologue`: of bfloat16, float16 and
                 float8, on 9.0. It goes with an epilogue, or with bias and activation; given has its vectors, too
    combine      for a tuple b of two to four matrices: the function of (*products, ops, **given) that makes each
                 element of the result, or the name of an activation: that of the first product, times the second. Of
                 two tuples, (a, a2) and (b, b2), the result is activation(a @ b + a2 @ b2 + bias); of
                 ((b, b1), (b2, b3)) it is combine(a @ b + a2 @ b2, a @ b1 + a2 @ b3)
    order        the tiles of the result that are computed, and their order: see `kernels.orders`. given has what it
                 reads. A list of tiles may be traced, as int32 vector of row + 2**16 * column
    rows         int32 or int64: row i of the product reads row rows[i] of a, a matrix
    out_rows     likewise: row i of the product is row out_rows[i] of the result. An index may not repeat
    row_weights  float32: a factor of each row of the product, with rows or out_rows
    copy_rows    whether XLA gathers the rows first; default the way that is estimated faster, or the only one
    out          what the result holds in tiles and rows that are not stored, else zeros; with out_rows of any number of
                 rows. Donate it, and the kernel writes into its memory

    These parts go together, but for those of docs/combinations.md, in one kernel of 9.0. Indices outside of a matrix
    are refused where their values are known; elsewhere they read zeros and write nothing.

    Sums are float32, of integers int32. On the CPU jax computes the product in float32 and rounds it once. Works under
    jit, grad, jvp (any number of times) and vmap, and on meshes: rows, columns, K and batch may be sharded.
    A gradient is rounded to a's type before it is multiplied. A call is compiled for its shapes.

    Raises TensorError for shapes that do not meet, OperandError for types that no kernel multiplies or stores.

    >>> import jax.numpy as jnp
    >>> a = jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)
    >>> matmul(a, a, transpose_b=True).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    >>> matmul(a, jnp.ones((5, 3, 4), jnp.bfloat16), bias=jnp.ones(4), activation="relu").shape
    (5, 2, 4)
    >>> matmul(a, (a, a), combine=lambda p, q, ops, s: p - s * q, given={"s": 2.0}, transpose_b=True)[0].tolist()
    [-5.0, -14.0]
    >>> from layoutgemm.kernels import Prologue
    >>> scaled = Prologue.of(lambda x, i, k, ops, s: ops.maximum(x, 0.0) * s, s="m")
    >>> matmul(a - 3, a, transpose_b=True, prologue=scaled, given={"s": jnp.array([1.0, 2.0])}).tolist()
    [[0.0, 0.0], [10.0, 28.0]]
    """
    flags = transpose_a, transpose_b
    asked = CallParts(
        combine, order, rows, out_rows, row_weights, copy_rows, out, epilogue, prologue, bias, activation
    )  # fmt: skip
    if composes(a, b, asked):
        return multiply_parts(a, b, asked, given, out_dtype, flags, allow_tf32)
    if epilogue is not None or prologue is not None or given is not None:
        assert not isinstance(a, Sequence) and not isinstance(b, Sequence)
        return multiply_with_functions(
            a, b, epilogue, prologue, given, (bias, activation), out_dtype, flags, allow_tf32
        )  # fmt: skip
    left, right = array_of("a", a), array_of("b", b)
    turned = flag("transpose_a", transpose_a), flag("transpose_b", transpose_b)
    check_types(str(left.dtype), str(right.dtype), flag("allow_tf32", allow_tf32))
    kind = stored_as(str(left.dtype), type_name(out_dtype))
    check_shapes(left.shape, right.shape, turned)
    added = None if bias is None else array_of("bias", bias)
    columns = None if right.ndim == 1 else right.shape[-2 if turned[1] else -1]
    activation = check_finish(None if added is None else (added.shape, str(added.dtype)), activation, columns, kind)
    vectors = left.ndim == 1, right.ndim == 1
    left = left[None, :] if vectors[0] else left
    right = right[:, None] if vectors[1] else right
    types = str(left.dtype), str(right.dtype), kind
    product = Product(
        tuple(left.shape), tuple(right.shape), types, turned, None if added is None else str(added.dtype), activation
    )
    alike = varying_alike(*[x for x in (left, right, added) if x is not None])
    result: jax.Array = compiled(product, *alike)
    if vectors[0]:
        result = jnp.squeeze(result, -2)
    return jnp.squeeze(result, -1) if vectors[1] else result
