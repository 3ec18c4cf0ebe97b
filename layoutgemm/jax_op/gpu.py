"""A product on the GPU: solved by `torch_op.solver`, launched by `cutlass.jax.cutlass_call`.

    Product --problem_of--> Problem --solve--> Solution --multiply--> copies as XLA operations, one call of the kernel

The call is compiled when XLA lowers the program, for the shapes that it is traced with. XLA's arrays are contiguous and
aligned to 16 bytes at least. Where no GPU is found (a lowering on another machine), it is solved for an H200.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from ..arch import arch
from ..dtypes import DType
from ..errors import OperandError, PlanError
from ..kernels.compile import cache as object_cache
from ..kernels.compile.compiler import kernel_facts, kernel_of, require_dsl
from ..kernels.compile.launcher import runtime_library
from ..kernels.derive import padded_leading
from ..kernels.epilogue.chain import Epilogue
from ..kernels.run.occupancy import cluster_occupancy
from ..kernels.sm90.choose.occupancy import ClusterOccupancy
from ..torch_op.problem import (
    Ints,
    OperandCopy,
    Problem,
    Solution,
    StridedOperand,
    arguments,
    bias_epilogue,
    code_of,
    contiguous_strides,
    stores_fused,
    why_no_code,
    workers,
)
from ..torch_op.solver import solve, why_unfused
from .product import C_NAMES, NAMES, Product, bytes_of
from .reference import finish


@dataclass(frozen=True)
class Target:
    """A GPU that a product is solved for: its code, shared memory of a block in bytes, clusters at a time, name."""

    code: str = "sm_90a"
    smem: int = field(default_factory=lambda: arch("sm_90a").smem_per_block)
    places: ClusterOccupancy = field(default_factory=ClusterOccupancy)
    name: str = "NVIDIA H200"


@functools.cache
def target() -> Target:
    """The first of JAX's GPUs, or an H200 where JAX has no GPU.

    Raises OperandError where no kernel runs on it.
    """
    try:
        found = jax.local_devices(backend="cuda")[0]
    except RuntimeError:  # no such backend
        return Target()
    major, minor = (int(part) for part in found.compute_capability.split("."))
    code = code_of((major, minor))
    if code is None:
        raise OperandError(f"{found} is {found.device_kind}, {why_no_code((major, minor), 'jax.numpy.matmul')} arrays")
    processors = int(found.core_count)
    room = cluster_occupancy(int(found.local_hardware_id), processors) if major >= 9 else ClusterOccupancy(processors)
    return Target(code, arch(code).smem_per_block, room, str(found.device_kind))


def fuses(product: Product, on: Target) -> bool:
    """True if the kernel adds the bias and computes the activation, if any.

    A gated product's kernel reads a K-major b, and takes no bias.
    """
    if product.gate is None:
        plain = product.bias is None and product.activation is None
        return plain or stores_fused(on.code, C_NAMES[product.types[2]])
    return product.bias is None and not why_unfused(_problem(product, on, None, product.gate))


def problem_of(product: Product, on: Target) -> Problem:
    """The product as a problem: without bias and activation, and stored wide, where the kernel has no epilogue.

    >>> found = problem_of(Product((64, 32), (48, 32), ("bfloat16",) * 3, (False, True)), Target())
    >>> found.b.shape, found.b.strides
    ((32, 48), (1, 32))
    """
    if not fuses(product, on):
        return _problem(product.without_finish(), on)
    epilogue = None
    if product.gate is None and (product.bias is not None or product.activation is not None):
        of_bias = None if product.bias is None else C_NAMES[product.bias]
        epilogue = bias_epilogue(of_bias, product.activation, product.sizes[1] % 2 == 0)
    return _problem(product, on, epilogue, product.gate)


def _problem(product: Product, on: Target, epilogue: Epilogue | None = None, gated: str | None = None) -> Problem:
    return Problem(
        operand_of(product.a, NAMES[product.types[0]], product.turned[0]),
        operand_of(product.b, NAMES[product.types[1]], product.turned[1]),
        operand_of(product.result, C_NAMES[product.types[2]], turned=False),
        on.places, on.name, epilogue=epilogue, code=on.code, smem=on.smem, gated=gated,
    )  # fmt: skip


def operand_of(shape: Ints, name: str, turned: bool) -> StridedOperand:
    """A contiguous array as an operand; `turned`: it holds the transposed matrices."""
    strides = contiguous_strides(shape)
    if turned:
        shape, strides = (*shape[:-2], shape[-1], shape[-2]), (*strides[:-2], strides[-1], strides[-2])
    return StridedOperand(shape, strides, name)


@functools.lru_cache(1024)
def solution_of(product: Product, on: Target) -> Solution:
    """The kernel, launches and copies of a product without empty sizes.

    Raises OperandError where no kernel exists for the types or sizes.
    """
    found = solve(problem_of(product, on))
    if found.copies[2] is not None:
        raise OperandError(f"no kernel stores a contiguous C of {product.result}: {found.copies[2].why}")
    return found


def multiply(product: Product, a: jax.Array, b: jax.Array, bias: jax.Array | None = None) -> jax.Array:
    """The product by a kernel: what `primitive` lowers to on a GPU.

    Raises PlanError without the CuTe DSL and its `cutlass.jax`, OperandError where no kernel exists.
    """
    *_, kind = product.types
    if 0 in (*product.result, product.sizes[2]):  # an empty sum is 0
        return finish(jnp.zeros(product.without_finish().result, product.wide), bias, product.activation, kind)
    on = target()
    found = solution_of(product, on)
    operands = [
        x if copy is None else copied(jnp.swapaxes(x, -1, -2) if turned else x, copy)
        for x, copy, turned in zip((a, b), found.copies[:2], product.turned, strict=True)
    ]
    if not fuses(product, on):
        sums = _call(product.without_finish(), found, on)(*operands)
        return finish(sums, bias, product.activation, kind)
    result: jax.Array = _call(product, found, on)(*operands, *(() if bias is None else (bias,)))
    return result


def copied(x: jax.Array, copy: OperandCopy) -> jax.Array:
    """The operand as a contiguous array with the copy's strides: lines are padded with zeros."""
    x = jnp.broadcast_to(x, copy.shape)
    if copy.strides[-1] != 1:
        x = jnp.swapaxes(x, -1, -2)
    leading = max(copy.strides[-2:])
    return jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, leading - x.shape[-1])])


def _call(product: Product, solution: Solution, on: Target) -> Callable[..., jax.Array]:
    """The launches of a solution as a function of A, B and any bias."""
    plan = solution.kernel.plan(*solution.sizes)
    steps = [bytes_of(each) for each in product.types]
    clusters = workers(solution, on.places)
    facts = {"launches": solution.launches, "sizes": solution.sizes, "workers": clusters,
             "leading": solution.leading, "strides": solution.strides}  # fmt: skip
    start = functools.partial(_start, kernel_of(plan.for_any_size()), plan.parameters, solution, steps, clusters)
    return called(plan, on, product.result, product.types[2], facts, start)


def called(
    plan: Any, on: Target, shape: Ints, kind: str, facts: Mapping[str, object], start: Callable[..., None],
    aliases: Mapping[int, int] | None = None,
) -> Callable[..., jax.Array]:  # fmt: skip
    """A function of arrays that launches a kernel: `start`, traced on the host's side, has it.

    shape, kind  of the result
    facts        what else of the call decides on the code of `start`
    aliases      array -> 0 where the result takes its memory

    Raises PlanError without the CuTe DSL and its `cutlass.jax`.
    """
    require_dsl()
    try:
        import cutlass.jax
    except ImportError as error:
        raise PlanError(f"layoutgemm.jax launches by cutlass.jax, which does not import here: {error}") from None

    runtime_library()  # exporting the call links its host half against these symbols
    call: Callable[..., jax.Array] = cutlass.jax.cutlass_call(
        start,
        output_shape_dtype=jax.ShapeDtypeStruct(shape, jnp.dtype(kind)),
        input_output_aliases=aliases,
        compile_options=f"--gpu-arch {on.code}",
        compile_key=object_cache.key_of({**kernel_facts(plan), **facts}),
    )
    return call


def number_kinds() -> dict[str, Callable[[object], Any]]:
    """The DSL's types of a launch's numbers, by the kinds of its parameters."""
    from cutlass import Int32, Int64

    return {"address": Int64, "size": Int32, "stride": Int64, "word": Int64}


def lines_of(x: jax.Array, kind: DType) -> jax.Array:
    """The array with lines as long as TMA takes them: padded with zeros where they are not."""
    more = padded_leading(kind, x.shape[-1]) - x.shape[-1]
    return jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, more)]) if more else x


def _start(
    kernel: Any, parameters: dict[str, str], solution: Solution, steps: Sequence[int], clusters: int,
    stream: object, *tensors: Any,
) -> None:  # fmt: skip
    """Host side, traced: each launch at the tensors' addresses, with sizes and strides as constants.

    kernel, parameters  the DSL's kernel, and the kinds of what it takes
    steps               bytes of an element of A, B and C
    tensors             A, B, the bias if any, and C
    """
    kinds = number_kinds()
    a, b, *bias, c = [kinds["address"](tensor.iterator.toint()) for tensor in tensors]
    words = (*bias, 0) if bias else ()
    for at in solution.launches:
        pointers = [x + place * step for x, place, step in zip((a, b, c), at, steps, strict=True)]
        values = arguments(solution, pointers, clusters, words)
        kernel(*[kinds[kind](value) for kind, value in zip(parameters.values(), values, strict=True)], stream)
