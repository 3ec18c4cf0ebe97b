"""layoutgemm.jax.matmul: checks, and vectors as matrices."""

from __future__ import annotations

from collections.abc import Mapping

import jax
import jax.numpy as jnp

from ..kernels.epilogue.chain import Epilogue
from ..kernels.sm90.operands.prologue import Prologue
from .derivatives import compiled
from .functions.api import multiply_with_functions
from .inputs import array_of, flag, type_name
from .primitive import varying_alike
from .product import Product, check_finish, check_shapes, check_types, stored_as


def matmul(
    a: jax.Array,
    b: jax.Array,
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
) -> jax.Array:
    """activation(a @ b + bias), with shapes as in jax.numpy.matmul: vectors, matrices, batches that broadcast.

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
    epilogue     in place of bias and activation: any `kernels.epilogue.chain.Epilogue` that writes C alone, for two
                 matrices or two batches of as many. given has the arrays and numbers that it reads, by name
    prologue     a function of a's elements before they are multiplied, a `kernels.Prologue`: of bfloat16, float16 and
                 float8, on 9.0. It goes with an epilogue, or with bias and activation; given has its vectors, too

    Sums are float32, of integers int32. On the CPU jax computes the product in float32 and rounds it once. Works under
    jit, grad (reverse mode, any number of times) and vmap, and on meshes: rows, columns, K and batch may be sharded.
    A gradient is rounded to a's type before it is multiplied. A call is compiled for its shapes.

    Raises TensorError for shapes that do not meet, OperandError for types that no kernel multiplies or stores.

    >>> import jax.numpy as jnp
    >>> a = jnp.arange(6, dtype=jnp.bfloat16).reshape(2, 3)
    >>> matmul(a, a, transpose_b=True).tolist()
    [[5.0, 14.0], [14.0, 50.0]]
    >>> matmul(a, jnp.ones((5, 3, 4), jnp.bfloat16), bias=jnp.ones(4), activation="relu").shape
    (5, 2, 4)
    >>> from layoutgemm.kernels import Prologue
    >>> scaled = Prologue.of(lambda x, i, k, ops, s: ops.maximum(x, 0.0) * s, s="m")
    >>> matmul(a - 3, a, transpose_b=True, prologue=scaled, given={"s": jnp.array([1.0, 2.0])}).tolist()
    [[0.0, 0.0], [10.0, 28.0]]
    """
    if epilogue is not None or prologue is not None or given is not None:
        flags = transpose_a, transpose_b
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
    result: jax.Array = compiled(product, *alike, *[None] * (3 - len(alike)))
    if vectors[0]:
        result = jnp.squeeze(result, -2)
    return jnp.squeeze(result, -1) if vectors[1] else result
