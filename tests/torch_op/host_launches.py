"""Launches of prepared products without a GPU: CPU tensors stand for an H200's, and torch computes what a kernel would.

Addresses, sizes, orders and distances are those that the kernel gets, so a wrong one gives a wrong product. Or nothing
is computed, and what remains is the host's time.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from layoutgemm.inductor import registration
from layoutgemm.kernels.epilogue.chain import Activation, Bias
from layoutgemm.kernels.run import tensor_maps
from layoutgemm.torch_op import api, bias_activation, compute, epilogue, launch, prepared
from layoutgemm.torch_op.compiled import call_sites, chains, kept_launches
from layoutgemm.torch_op.composed import plans
from layoutgemm.torch_op.composed import product as composed
from layoutgemm.torch_op.fp8 import launch as fp8
from layoutgemm.torch_op.indexed import product as indexed
from layoutgemm.torch_op.operands import grouped as combined_groups
from layoutgemm.torch_op.operands import pairs, several
from layoutgemm.torch_op.prologue import grouped as prologue_groups
from layoutgemm.torch_op.prologue import product as prologue
from layoutgemm.torch_op.quantized import dense as quantized_dense
from layoutgemm.torch_op.quantized import experts as quantized_experts
from layoutgemm.torch_op.quantized import kept as quantized_kept
from layoutgemm.torch_op.quantized import launch as quantized
from layoutgemm.torch_op.quantized import own_epilogue as quantized_epilogue
from layoutgemm.torch_op.scaled_grouped import block_scaled, grouped, grouped_epilogue, kept, own_epilogue, scaled
from layoutgemm.torch_op.types import TYPES

_KINDS = {**TYPES, "tf32": torch.float32}
_WORDS = 14  # where the epilogue's begin among a launch's arguments


@dataclass
class HostLaunches:
    """The launches that were made, each a kernel's solution.

    empties  tensors that results were allocated as, in order
    """

    made: list[Any] = field(default_factory=list)
    empties: list[torch.Tensor] = field(default_factory=list)


def values_of(given: Any) -> list[int]:
    """A launch's arguments, stream and status. A chain hands over their addresses."""
    return given if isinstance(given, list) else [ctypes.c_int64.from_address(at).value for at in given]


def memory(at: int, name: str, size: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
    """The tensor at an address."""
    kind = _KINDS[name]
    span = (sum((n - 1) * step for n, step in zip(size, strides)) + 1) * kind.itemsize
    raw = torch.frombuffer((ctypes.c_uint8 * span).from_address(at), dtype=torch.uint8)
    return raw.view(kind).as_strided(size, strides)


def compute_launch(solution: Any, given: Any) -> None:
    """The product that a launch with these arguments computes, in float64, rounded once."""
    values = values_of(given)
    m, n, k, batch = solution.sizes
    at = values[1], values[0], values[2]
    at = at if solution.kernel.choice.swapped else (values[0], values[1], values[2])
    gate = solution.kernel.gated
    assert gate is None or isinstance(gate, str), "several matrices are no launch of this kind"
    tensors = []
    for address, operand, (rows, columns), pitch, step in zip(
        at, solution.kernel.operands, ((m, k), (k, n if gate is None else 2 * n), (m, n)), solution.leading,
        solution.strides,
    ):  # fmt: skip
        name, _, order = operand.partition(":")
        inner = (pitch, 1) if order == "row" else (1, pitch)
        tensors.append(memory(address, name, (batch, rows, columns), (step, *inner)))
    a, b, c = tensors
    value = a.double() @ b.double()
    if gate is not None:
        value = bias_activation.ACTIVATIONS[gate](value[..., :n]) * value[..., n:]
    word = _WORDS
    for step in getattr(solution.kernel.epilogue, "steps", ()):
        if isinstance(step, Bias):
            value = value + memory(values[word], step.dtype, (n,), (1,)).double()
            word += 2
        else:
            assert isinstance(step, Activation)
            value = bias_activation.ACTIVATIONS[step.kind](value)
    c.copy_(value)


@contextlib.contextmanager
def host_launches(patch: Any, computes: bool = True) -> Iterator[HostLaunches]:
    """CPU tensors are taken for an H200's.

    patch     pytest's monkeypatch, or a MonkeyPatch of one's own
    computes  whether a launch writes its product; else nothing is computed, and nothing noted
    """
    noted = HostLaunches()

    class Launcher:
        def __init__(self, solution: Any) -> None:
            self.solution = solution

        def load(self, device: int) -> None:
            pass

        def block(self, arguments: Any) -> Any:
            values = [*arguments, 0, 0]
            return SimpleNamespace(values=values, pointer=values)

        def entry(self, given: Any) -> None:
            if computes:
                noted.made.append(self.solution)
                compute_launch(self.solution, given)

    def empty(shape: Any, strides: Any, kind: torch.dtype) -> torch.Tensor:
        made = torch.empty_strided(shape, strides, dtype=kind)
        noted.empties.append(made.detach())
        return made

    quick = torch._C._dynamo.guards._empty_strided_cpu
    patch.setattr(launch, "kernel", lambda solution: SimpleNamespace(launcher=Launcher(solution)))
    patch.setattr(launch, "THREAD", SimpleNamespace(bound=True))
    patch.setattr(compute, "on_gpu", lambda index: True)
    for module in (launch, api):
        patch.setattr(module, "current_device", lambda: -1)
        patch.setattr(module, "raw_stream", lambda index: 77)
        if hasattr(module, "empty_on_gpu"):
            patch.setattr(module, "empty_on_gpu", empty if computes else quick)
    patch.setattr(call_sites, "FIRST_GPU", -1)
    patch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=88))
    prepared.forget()
    try:
        yield noted
    finally:
        prepared.forget()


@dataclass
class BareLaunches:
    """Launches that compute nothing: the arguments of each, how many results were allocated, and the compiled plans."""

    arguments: list[list[int]] = field(default_factory=list)
    allocated: int = 0
    plans: list[Any] = field(default_factory=list)

    def compiled(self, plan: Any) -> Any:
        """A kernel whose launches are noted."""
        self.plans.append(plan)
        return SimpleNamespace(launcher=self, plan=plan)

    def load(self, device: int) -> None:
        """The launcher's: nothing."""

    def block(self, arguments: Any) -> Any:
        """The launcher's block of arguments."""
        values = [*arguments, 0, 0]
        return SimpleNamespace(values=values, pointer=values)

    def entry(self, given: Any) -> None:
        """The launcher's launch."""
        self.arguments.append([*values_of(given)])


@contextlib.contextmanager
def bare_launches(patch: Any) -> Iterator[BareLaunches]:
    """CPU tensors are taken for an H200's by all products, and nothing is computed."""
    noted = BareLaunches()
    made = noted.compiled

    def empty(shape: Any, strides: Any, kind: torch.dtype) -> torch.Tensor:
        noted.allocated += 1
        return torch.empty_strided(shape, strides, dtype=kind)

    patch.setattr(launch, "kernel", lambda solution: made(launch.plan_of(solution)))
    patch.setattr(launch, "THREAD", SimpleNamespace(bound=True))
    patch.setattr(kept, "compile_apart", made)
    patch.setattr(plans, "compile_apart", made)
    patch.setattr(composed, "raw_stream", lambda index: 77)
    patch.setattr(kept, "FIRST_GPU", -1)
    patch.setattr(kept_launches, "FIRST_GPU", -1)
    patch.setattr(call_sites, "FIRST_GPU", -1)
    patch.setattr(chains, "FIRST_GPU", -1)
    patch.setattr(registration, "FIRST_GPU", -1)
    patch.setattr(registration, "_sites", {})
    patch.setattr(tensor_maps, "resident", lambda index, blocks: 2)
    patch.setattr(quantized_kept, "FIRST_GPU", -1)
    for module in (quantized, quantized_epilogue, quantized_experts):
        patch.setattr(module, "compile_apart", made)
        patch.setattr(module, "raw_stream", lambda index: 77)
    for module in (fp8, quantized_dense):
        patch.setattr(module, "compiled", made)
    patch.setattr(fp8, "target", lambda index, config=None: ("sm_90a", 0))
    for module in (launch, api, kept):
        patch.setattr(module, "current_device", lambda: -1)
    patch.setattr(quantized_kept, "_current_device", lambda: -1)
    for module in (launch, api, kept, quantized_kept, fp8, quantized_dense):
        patch.setattr(module, "raw_stream", lambda index: 77)
        if hasattr(module, "empty_on_gpu"):
            patch.setattr(module, "empty_on_gpu", empty)
    groups = (scaled, block_scaled, own_epilogue, grouped, grouped_epilogue)
    for module in (
        compute,
        epilogue,
        *groups,
        quantized,
        quantized_epilogue,
        quantized_experts,
        indexed,
        several,
        pairs,
        composed,
        prologue,
        prologue_groups,
        combined_groups,
        fp8,
        quantized_dense,
    ):
        patch.setattr(module, "on_gpu", lambda index: True)
    patch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    patch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=88))
    keeping = kept.READY, kept_launches.KEPT, quantized_kept.READY, quantized_dense.READY, fp8.READY, *chains.ALL
    prepared.forget()
    quantized.forget()
    quantized_epilogue.forget()
    quantized_experts.forget()
    plans._ready.cache_clear()
    for ready in keeping:
        ready.clear()
    try:
        yield noted
    finally:
        prepared.forget()
        quantized.forget()
        quantized_epilogue.forget()
        quantized_experts.forget()
        plans._ready.cache_clear()
        for ready in keeping:
            ready.clear()
