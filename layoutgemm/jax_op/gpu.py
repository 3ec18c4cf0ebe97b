"""A product on the GPU: solved by `torch_op.solver`, launched by `cutlass.jax.cutlass_call`.

    Product --problem_of--> Problem --solve--> Solution --multiply--> copies as XLA operations, one call of the kernel

The call is compiled when XLA lowers the program, for the shapes that it is traced with. XLA's arrays are contiguous and
aligned to 16 bytes at least. Where no GPU is found (a lowering on another machine), it is solved for an H200.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, cast

import jax
import jax.numpy as jnp
import numpy as np

from ..arch import arch
from ..dtypes import DType
from ..errors import OperandError, PlanError
from ..kernels.compile import cache as object_cache
from ..kernels.compile.compiler import kernel_facts, kernel_of, require_dsl
from ..kernels.compile.launcher import runtime_library
from ..kernels.derive import padded_leading
from ..kernels.epilogue.chain import Epilogue
from ..kernels.epilogue.reduce import combined
from ..kernels.partials import WORD_BYTES, ReducingPlan
from ..kernels.plan import WORKSPACE, GemmPlan
from ..kernels.run.occupancy import cluster_occupancy
from ..kernels.sm90.choose.occupancy import ClusterOccupancy
from ..kernels.sm90.plan import Sm90Plan
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
from .outputs import Arrays, Shaped, WritingProduct, one_or_all, stores_c, written_arrays
from .product import C_NAMES, NAMES, Product, bytes_of
from .reference import finish

Kernel = Callable[..., None]
Address: TypeAlias = Any  # the DSL's Int64; in the emulator an array
Words = Callable[[Mapping[str, Address]], Sequence[object]]
Start = Callable[[Kernel, object, Mapping[str, Address]], None]


class TensorAddress(Protocol):
    """The place of a tensor of the DSL."""

    def toint(self) -> object:
        """The address."""


class KernelTensor(Protocol):
    """A tensor as `cutlass_call` gives it."""

    @property
    def iterator(self) -> TensorAddress:
        """Its first element."""


@dataclass(frozen=True)
class Target:
    """A GPU that a product is solved for. Its code, shared memory of a block in bytes, clusters at a time, name."""

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
    """The product as a problem. Without bias and activation, and stored wide, where the kernel has no epilogue.

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
        sums = _call(product.without_finish(), found, on, operands)
        return finish(sums, bias, product.activation, kind)
    return _call(product, found, on, [*operands, *(() if bias is None else (bias,))])


def copied(x: jax.Array, copy: OperandCopy) -> jax.Array:
    """The operand as a contiguous array with the copy's strides: lines are padded with zeros."""
    x = jnp.broadcast_to(x, copy.shape)
    if copy.strides[-1] != 1:
        x = jnp.swapaxes(x, -1, -2)
    leading = max(copy.strides[-2:])
    return jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, leading - x.shape[-1])])


def _call(product: Product, solution: Solution, on: Target, arrays: Sequence[jax.Array]) -> jax.Array:
    """The launches of a solution; `arrays`: A, B and any bias."""
    plan, read = solution.kernel.plan(*solution.sizes), dict(zip(("a", "b", "bias"), arrays))
    results = [CallResult("c", *product.outputs[0])]
    return launched_solution(plan, solution, on, read, results, product, _bias_words)["c"]


def _bias_words(pointers: Mapping[str, Address]) -> tuple[object, ...]:
    return (pointers["bias"], 0) if "bias" in pointers else ()


class CallResult(NamedTuple):
    """An array that a call gives. Its name, shape and type, and what it holds before, or None."""

    name: str
    shape: Ints
    kind: str
    first: jax.Array | None = None


def launched(
    plan: GemmPlan, on: Target, read: Mapping[str, jax.Array], results: Sequence[CallResult],
    facts: Mapping[str, object], start: Start,
) -> dict[str, jax.Array]:  # fmt: skip
    """The arrays that one call of a kernel gives, by name.

    read   the arrays that it reads, by name
    facts  what of the call decides on the code of `start`, besides the names and shapes of its arrays
    start  the launch, traced on the host's side, of the kernel, the stream and the arrays' addresses by name

    Raises PlanError without the CuTe DSL and its `cutlass.jax`.
    """
    arrays = {**read, **{x.name: x.first for x in results if x.first is not None}}
    # A result that takes an array's memory is no further argument of the launch.
    names = (*arrays, *[x.name for x in results if x.first is None])
    aliases = {[*arrays].index(x.name): at for at, x in enumerate(results) if x.first is not None}
    shapes = [(x.shape, x.kind) for x in results]
    traced = functools.partial(_at_addresses, cast(Kernel, kernel_of(plan.for_any_size())), start, names)
    found = called(plan, on, shapes, {**facts, "names": names}, traced, aliases)(*arrays.values())
    return dict(zip([x.name for x in results], found, strict=True))


def launched_solution(
    plan: GemmPlan, solution: Solution, on: Target, read: Mapping[str, jax.Array], results: Sequence[CallResult],
    product: Product | WritingProduct, words: Words,
) -> dict[str, jax.Array]:  # fmt: skip
    """The arrays that a solution's launches give, by name: as `launched`.

    plan   of the solution's sizes
    words  of the plan's epilogue, at the arrays' addresses
    """
    clusters, steps = workers(solution, on.places), [bytes_of(each) for each in product.types]
    facts = {"launches": solution.launches, "sizes": solution.sizes, "workers": clusters, "leading": solution.leading,
             "strides": solution.strides, "product": str(product)}  # fmt: skip
    start = functools.partial(_start, plan.parameters, solution, steps, words, clusters)
    return launched(plan, on, read, results, facts, start)


def launched_once(
    plan: Sm90Plan, on: Target, read: Mapping[str, jax.Array], results: Sequence[CallResult],
    facts: Mapping[str, object], numbers: Sequence[int], words: Words,
) -> dict[str, jax.Array]:  # fmt: skip
    """The arrays that one launch of a plan gives, by name: as `launched`.

    numbers  sizes, pitches and clusters of the launch, as constants
    words    of the launch, at the arrays' addresses
    """
    start = functools.partial(_start_once, plan.parameters, numbers, words)
    return launched(plan, on, read, results, {"numbers": numbers, **facts}, start)


def _start_once(
    parameters: Mapping[str, str], numbers: Sequence[int], words: Words,
    kernel: Kernel, stream: object, pointers: Mapping[str, Address],
) -> None:  # fmt: skip
    """Host side, traced: the launch at the tensors' addresses, with sizes and strides as constants."""
    start_kernel(kernel, parameters, (*[pointers[name] for name in "abc"], *numbers, *words(pointers)), stream)


def _at_addresses(kernel: Kernel, start: Start, names: Sequence[str], stream: object, *tensors: KernelTensor) -> None:
    """Host side, traced: `start` with the addresses of the tensors."""
    address = number_kinds()["address"]
    pointers = {name: address(x.iterator.toint()) for name, x in zip(names, tensors, strict=True)}
    start(kernel, stream, {"c": address(0), **pointers})  # of a C that is not stored nothing is read


def called(
    plan: GemmPlan, on: Target, shapes: Sequence[Shaped], facts: Mapping[str, object], start: Callable[..., None],
    aliases: Mapping[int, int],
) -> Callable[..., Sequence[jax.Array]]:  # fmt: skip
    """A function of arrays that launches a kernel. `start`, traced on the host's side, has it.

    shapes   of the results, and their types
    facts    what else of the call decides on the code of `start`
    aliases  array -> result that takes its memory
    """
    require_dsl()
    try:
        import cutlass.jax
    except ImportError as error:
        raise PlanError(f"layoutgemm.jax launches by cutlass.jax, which does not import here: {error}") from None

    runtime_library()  # exporting the call links its host half against these symbols
    call: Callable[..., Sequence[jax.Array]] = cutlass.jax.cutlass_call(
        start,
        output_shape_dtype=tuple([jax.ShapeDtypeStruct(shape, jnp.dtype(kind)) for shape, kind in shapes]),
        input_output_aliases=aliases or None,
        compile_options=f"--gpu-arch {on.code}",
        compile_key=object_cache.key_of({**kernel_facts(plan), **facts}),
    )
    return call


def call_results(product: WritingProduct, plan: ReducingPlan, c: CallResult, partly: bool = False) -> list[CallResult]:
    """The results of a call: C, the epilogue's outputs, and a workspace of partial results.

    partly  whether the kernel computes some tiles alone
    """
    held = () if product.epilogue is None else combined(product.epilogue.reductions)
    found = [c] * stores_c(product)
    for operand, (shape, kind) in written_arrays(product):
        begins = operand.name in held or (partly and operand.axes == "mn")
        first = jnp.full(shape or (1,), operand.start, kind) if begins else None
        found.append(CallResult(operand.name, shape or (1,), kind, first))
    if plan.epilogue.partials:  # the kernel has the word, though clusters with whole rows read none
        runs = [np.full(count, value).view(np.uint8) for count, value in plan.first_partials]
        first = jnp.asarray(np.concatenate(runs)) if runs else None
        found.append(CallResult(WORKSPACE, (max(WORD_BYTES, plan.partial_bytes),), "uint8", first))
    return found


def outputs_from(product: WritingProduct, found: Mapping[str, jax.Array]) -> Arrays:
    """The product's arrays, from a call's results by name."""
    stored = [found["c"][..., : product.result[-1]]] if stores_c(product) else []  # rows may be longer
    return one_or_all([*stored, *[found[x.name].reshape(shape) for x, (shape, _) in written_arrays(product)]])


def number_kinds() -> dict[str, Callable[[object], Any]]:
    """The DSL's types of a launch's numbers, by the kinds of its parameters."""
    from cutlass import Int32, Int64

    return {"address": Int64, "size": Int32, "stride": Int64, "word": Int64}


def lines_of(x: jax.Array, kind: DType) -> jax.Array:
    """The array with lines as long as TMA takes them. Padded with zeros where they are not."""
    more = padded_leading(kind, x.shape[-1]) - x.shape[-1]
    return jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, more)]) if more else x


def _start(
    parameters: Mapping[str, str], solution: Solution, steps: Sequence[int], words: Words, clusters: int,
    kernel: Kernel, stream: object, pointers: Mapping[str, Address],
) -> None:  # fmt: skip
    """Host side, traced: each launch at the tensors' addresses, with sizes and strides as constants.

    parameters  the kinds of what the kernel takes
    steps       bytes of an element of A, B and C
    """
    for at in solution.launches:
        places = [pointers[name] + place * step for name, place, step in zip("abc", at, steps, strict=True)]
        start_kernel(kernel, parameters, arguments(solution, places, clusters, words(pointers)), stream)


def start_kernel(kernel: Kernel, parameters: Mapping[str, str], values: Sequence[object], stream: object) -> None:
    """Host side, traced: one launch; `parameters`: names and kinds of what the kernel takes."""
    kinds = number_kinds()
    kernel(*[kinds[kind](value) for kind, value in zip(parameters.values(), values, strict=True)], stream)
