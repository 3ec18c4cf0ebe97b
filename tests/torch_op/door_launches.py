"""Every torch door on CPU tensors: the launches of all products run in the emulator, as on a GPU of any target."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from layoutgemm.arch import arch
from layoutgemm.emulator.api import emulate_host
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.kernels.run.emulated import host_of
from layoutgemm.torch_op import emulated
from layoutgemm.torch_op.compiled.guards import LEAST_ADDRESS
from layoutgemm.torch_op.problem import asks_tcgen05
from tests.torch_op import host_launches
from tests.torch_op.host_launches import BareLaunches, bare_launches, values_of

WHERE = "layoutgemm.torch_op."
TARGETS = (
    "composed.plans", "composed.product", "indexed.product", "operands.pairs", "operands.several", "prepared",
    "prologue.product", "quantized.experts", "quantized.explain", "quantized.launch", "quantized.own_epilogue",
    "scaled_grouped.by_mma",
)  # fmt: skip
WORKERS = 2  # clusters of a persistent kernel: each computes several tiles


class Memory:
    """The memory of tensors whose addresses were taken. It is kept, so that no other tensor gets their addresses."""

    def __init__(self) -> None:
        self.seen: dict[int, tuple[torch.UntypedStorage, torch.dtype]] = {}

    def note(self, x: torch.Tensor) -> None:
        """Remember a tensor's memory."""
        storage = x.untyped_storage()
        self.seen[storage._cdata] = storage, x.dtype

    def at(self, address: int) -> Any:
        """The memory from an address on. An address in no tensor, or in one that is gone, is an AssertionError."""
        for storage, kind in self.seen.values():
            if storage.data_ptr() <= address < storage.data_ptr() + storage.nbytes():
                assert torch._C._storage_Use_Count(storage._cdata) > 1, "a launch reads a tensor that is gone"
                return emulated.memory_at(address, [torch.empty(0, dtype=kind, device="cpu").set_(storage)])
        raise AssertionError(f"address {address:#x} is in none of the tensors")


class _Launcher:
    """A kernel's launches, emulated on the memory of tensors."""

    def __init__(self, plan: Any, memory: Memory, made: list[Any], computes: bool):
        self.plan, self.memory, self.made = plan, memory, made
        self.host = host_of(plan.compile()) if computes else None

    def load(self, device: int) -> None:
        """Nothing."""

    def block(self, arguments: Any) -> Any:
        values = [*arguments, 0, 0]
        return SimpleNamespace(values=values, pointer=values)

    def entry(self, arguments: Any) -> None:
        values = values_of(arguments)
        self.made.append((self.plan, list(values)))
        given: list[Any] = list(values[:-2])
        nothing = np.zeros(0, np.uint8)  # in place of a C that is not stored
        for at, kind in enumerate(self.plan.parameters.values()):
            if kind == "address":
                given[at] = self.memory.at(given[at]) if given[at] >= LEAST_ADDRESS else nothing
            elif kind == "word" and given[at] > LEAST_ADDRESS:
                given[at] = self.memory.at(given[at])
        if self.host is None:
            return
        for name in ("workers", "blocks"):
            if name in self.plan.parameters:
                given[list(self.plan.parameters).index(name)] = WORKERS
        emulate_host(self.host, given, progress=False, policy=Policy(edges=False)).raise_for_findings()


@contextlib.contextmanager
def every_door(patch: Any, code: str = "sm_90a", computes: bool = True) -> Iterator[list[tuple[Any, list[int]]]]:
    """All doors launch as on a GPU of that target. Yields (plan, arguments) of the launches that were made.

    computes  False: a launch looks at its addresses alone, and results are whatever their memory held
    """
    memory = Memory()
    made: list[tuple[Any, list[int]]] = []
    real = torch.Tensor.data_ptr

    def seen(self: Any) -> int:
        if self.device.type != "meta":
            memory.note(self)
        return real(self)

    def target(index: int, config: object = None) -> tuple[str, int]:
        if asks_tcgen05(config) or code == "sm_100a":
            assert asks_tcgen05(config), "a kernel of tcgen05 that was not asked for"
            return "sm_100a", arch("sm_100a").smem_per_block
        return code, arch(code).smem_per_block

    class Launches(BareLaunches):
        def compiled(self, plan: Any) -> Any:
            return SimpleNamespace(launcher=_Launcher(plan, memory, made, computes), plan=plan)

    patch.setattr(torch.Tensor, "data_ptr", seen)
    patch.setattr(host_launches, "BareLaunches", Launches)
    with bare_launches(patch):
        for name in TARGETS:
            patch.setattr(importlib.import_module(WHERE + name), "target", target)
        for name in ("prologue.product", "prologue.grouped", "composed.product"):
            patch.setattr(importlib.import_module(WHERE + name), "raw_stream", lambda index: 77, raising=False)
        patch.setattr("layoutgemm.kernels.run.ampere.resident", lambda index, blocks: WORKERS)
        patch.setattr(importlib.import_module(WHERE + "fp8.launch"), "target", lambda i, config=None: (code, 0))
        yield made
