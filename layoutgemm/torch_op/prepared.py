"""Prepared launches of checked tensors, kept for calls of the same shapes, strides and types.

tensors  --problem_of-->  Problem  --PreparedProblem-->  kept in PREPARED by `key`, where `matmul`'s fast path finds it
"""

from __future__ import annotations

import functools
import json
from typing import NamedTuple

import torch

from ..arch import arch
from ..errors import OperandError
from ..kernels.compile.worker import entry_of_choice
from ..kernels.epilogue.chain import Epilogue
from ..kernels.operands.combined import Combined
from ..kernels.run.occupancy import of_device
from ..kernels.sm80.choose import Sm80Choice
from ..kernels.sm80.plan import Sm80Config
from ..kernels.sm90.choose.occupancy import ClusterOccupancy
from ..kernels.sm90.choose.rules import Sm90Choice
from ..kernels.sm90.plan import Sm90Config
from ..kernels.sm100.choose import Sm100Choice
from ..kernels.sm100.plan import Sm100Config
from .compiled.constant_objects import constant_of_objects
from .compiled.guards import KeptCalls
from .launch import PreparedProblem, mark_written
from .problem import (
    Problem,
    StridedOperand,
    asks_tcgen05,
    code_of,
    contiguous_strides,
    gated_shapes,
    stores_fused,
    why_no_code,
)
from .types import C_NAMES, NAMES, usual_type

Config = Sm90Config | Sm90Choice | Sm100Config
MAX_PREPARED = 4096  # problems kept ready; beyond, the oldest quarter goes
PREPARED: KeptCalls[PreparedProblem] = KeptCalls()  # with guards of `linear`, which `forget` drops too


class LaunchEpilogue(NamedTuple):
    """The steps between a kernel's accumulators and its stores.

    epilogue, words  the epilogue, and its parameters at this launch
    key              of the prepared launch: what differs from other finishes
    keep_batch_separate   True if no two matrices of a batch are merged: the epilogue has operands of its own for each
                     row or matrix
    gated            what gates the product, in place of an epilogue
    second_k         K of a second pair, whose product is added; 0 if there is none
    """

    epilogue: Epilogue | None
    words: tuple[int, ...]
    key: tuple[object, ...]
    keep_batch_separate: bool = False
    gated: Combined | str | None = None
    second_k: int = 0


NO_FINISH = LaunchEpilogue(None, (), (None, None))


def launched(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None = None,
    out: torch.Tensor | None = None, finish: LaunchEpilogue | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product of checked CUDA tensors, no size of them 0: one prepared launch."""
    if out is not None:
        mark_written((out,))
    a, b = a.resolve_neg(), b.resolve_neg()
    return prepare(a, b, kind, config, out, finish).run(a, b, out, (finish or NO_FINISH).words)


def prepare(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None = None,
    out: torch.Tensor | None = None, finish: LaunchEpilogue | None = None,
) -> PreparedProblem:  # fmt: skip
    """The prepared product of two CUDA tensors, kept for the next call."""
    index = a.get_device()
    usual = kind == usual_type(a.dtype)
    more: tuple[object, ...] = ()
    if out is not None or finish is not None:
        into = None if out is None else (out.shape, out.stride(), out.dtype)
        more = (into, *(finish or NO_FINISH).key)
    starts = tuple([16 if x is None else start(x) for x in (a, b, out)])
    if starts != (16, 16, 16):
        more = (*more, "off", *starts)
    operands = (a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype, index)
    key = (*operands, None if usual else kind, config, *more)
    found = PREPARED.get(key)
    if found is None:
        problem = problem_at(a, b, kind, config, out, finish)
        shape = gated_shapes(a.shape, b.shape, problem.gated).result
        with torch.cuda.device(index):
            found = PreparedProblem(problem, shape, kind, index)
        if len(PREPARED) >= MAX_PREPARED:
            for old in list(PREPARED)[: MAX_PREPARED // 4]:
                PREPARED.pop(old, None)
        PREPARED[key] = found
        if usual:
            PREPARED[(*operands, kind, config, *more)] = found  # the caller may name the usual type
    return found


def forget() -> None:
    """Drop every prepared product: the next call of each chooses anew. What was compiled stays."""
    PREPARED.clear()


def on_gpu(index: int) -> bool:
    """True if a tensor's `get_device()` is a GPU: -1 is the CPU."""
    return index >= 0


def fuses(index: int, kind: torch.dtype, config: Config | None = None) -> bool:
    """True if a GPU's kernels store results of that type behind an epilogue."""
    return stores_fused(target(index, config)[0], C_NAMES[kind])


def choice_of(config: Config | Sm100Choice | None) -> Sm90Choice | Sm100Choice | None:
    """A configuration as the choice of a kernel. Raises OperandError for anything else."""
    if config is None or isinstance(config, Sm90Choice | Sm100Choice):
        return config
    if isinstance(config, Sm90Config):
        return Sm90Choice(config)
    if isinstance(config, Sm100Config):
        return Sm100Choice(config)
    kind = type(config).__qualname__
    raise OperandError(f"config is a {kind}; it is an Sm90Config, an Sm90Choice, an Sm100Config or None")


def hopper_choice_of(config: Config | None, why: str) -> Sm90Choice | None:
    """The same of a product without a kernel by tcgen05. Raises OperandError for a configuration of that one.

    why  the kernel does not compute it
    """
    choice = choice_of(config)
    if isinstance(choice, Sm100Choice):
        raise OperandError(f"config is an Sm100Config, and {why}")
    return choice


def of_derivatives(config: object) -> Sm100Config | None:
    """The configuration of a product's derivatives. They have tcgen05's kernel where the product has, by its rule."""
    return Sm100Config() if asks_tcgen05(config) else None


@constant_of_objects
def config_text(config: Config | Sm80Config | None) -> str:
    """A configuration as text, which an operator's schema can hold; "" for none."""
    if config is None:
        return ""
    choice = Sm80Choice(config) if isinstance(config, Sm80Config) else choice_of(config)
    assert choice is not None
    return json.dumps(entry_of_choice(choice))


def problem_at(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, config: Config | None, out: torch.Tensor | None,
    finish: LaunchEpilogue | None = None,
) -> Problem:  # fmt: skip
    """The product of two tensors on their GPU as a problem. On an H200 for CPU tensors."""
    index = a.get_device()
    epilogue, _, _, separate, gated, second_k = finish or NO_FINISH
    shape = gated_shapes(a.shape, b.shape, gated).result
    c = out if out is not None else StridedOperand(shape, contiguous_strides(shape), C_NAMES[kind])
    on, room = target(index, config), gpu(index, config)
    return problem_of(a, b, c, choice_of(config), *room, epilogue, separate, on, gated, second_k)


def given(x: torch.Tensor, name: str) -> StridedOperand:
    """A tensor as part of a problem."""
    return StridedOperand(tuple(x.shape), tuple(x.stride()), name, start(x))


def start(x: torch.Tensor) -> int:
    """The largest power of two up to 16 that the tensor's address is a multiple of."""
    return alignment_of(x.data_ptr())


def alignment_of(address: int) -> int:
    """The largest power of two up to 16 that an address is a multiple of. 16 for 0, which stands for any.

    >>> alignment_of(0x1004), alignment_of(0)
    (4, 16)
    """
    return min(16, address & -address) if address else 16


def lies_in_units(x: torch.Tensor, unit: int, *steps: int) -> bool:
    """True if a tensor's address, and the bytes of `steps` elements, are multiples of `unit`.

    >>> import torch
    >>> x = torch.zeros(4, 12, dtype=torch.float16)
    >>> lies_in_units(x, 16, 8), lies_in_units(x, 16, 12), lies_in_units(x[:, 1:], 4, 12)
    (True, False, False)
    """
    return x.data_ptr() % unit == 0 and all(step * x.element_size() % unit == 0 for step in steps)


def problem_of(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor | StridedOperand, config: Sm90Choice | Sm100Choice | None,
    room: ClusterOccupancy, gpu: str, epilogue: Epilogue | None = None, separate: bool = False,
    on: tuple[str, int] | None = None, gated: Combined | str | None = None, second_k: int = 0,
) -> Problem:  # fmt: skip
    """The product of two tensors as a problem. c is a tensor, or stands for one.

    room, gpu  as `gpu` gives them; `on` as `target` does
    """
    into = c if isinstance(c, StridedOperand) else given(c, C_NAMES[c.dtype])
    of_a, of_b = given(a, NAMES[a.dtype]), given(b, NAMES[b.dtype])
    code, smem = target(-1) if on is None else on
    return Problem(of_a, of_b, into, room, gpu, config, epilogue, separate, code, smem, gated, second_k)


def gpu(index: int, config: object = None) -> tuple[ClusterOccupancy, str]:
    """A GPU's cluster occupancy and its name.

    -1 stands for an H200, and with tcgen05's configuration for a B200.

    Raises OperandError where the kernels do not run on it.
    """
    code, _ = target(index, config)
    if index >= 0:
        return _named(index)
    if asks_tcgen05(config):
        return ClusterOccupancy(arch(code).gpu.multiprocessors), "NVIDIA B200"
    return ClusterOccupancy(), "NVIDIA H200"


@functools.cache
def _named(index: int) -> tuple[ClusterOccupancy, str]:
    return of_device(index), str(torch.cuda.get_device_properties(index).name)


def target(index: int, config: object = None) -> tuple[str, int]:
    """A GPU's code and the most bytes of shared memory of a block. -1 stands for an H200 or a B200, as in `gpu`.

    Raises OperandError where no kernel runs on it, or not the one that a configuration asks for.
    """
    return _target(index, asks_tcgen05(config))


@functools.cache
def _target(index: int, by_tcgen05: bool) -> tuple[str, int]:
    if index < 0:
        code = "sm_100a" if by_tcgen05 else "sm_90a"
        return code, arch(code).smem_per_block
    found = torch.cuda.get_device_properties(index)
    version = found.major, found.minor
    code_here = code_of(version, Sm100Config() if by_tcgen05 else None)
    if code_here is None or torch.version.hip:
        why = why_no_code(version, "torch.matmul", "config=Sm100Config() asks for it where a function takes one")
        raise OperandError(f"cuda:{index} is {found.name}, {why} tensors")
    if by_tcgen05 and "tcgen05" not in arch(code_here).features:
        raise OperandError(
            f"config is an Sm100Config, of tcgen05, and cuda:{index} is {found.name}, of {code_here}: leave it out"
        )
    return code_here, int(getattr(found, "shared_memory_per_block_optin", arch(code_here).smem_per_block))
