"""Launches of composed products, made in the emulator on the memory of CPU tensors."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from layoutgemm.kernels.run import fused, tensor_maps
from layoutgemm.kernels.run.emulated import emulate_launch
from layoutgemm.kernels.run.result import GemmResult
from layoutgemm.kernels.run.torch_tensors import launch_of
from layoutgemm.torch_op import emulated
from layoutgemm.torch_op.composed import plans
from layoutgemm.torch_op.composed import product as composed
from layoutgemm.torch_op.operands import grouped as groups
from layoutgemm.torch_op.scaled_grouped import grouped_epilogue, kept

STREAM = 88


def launches_are_emulated(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """From here on CPU tensors are taken for a GPU's. Returns the plans that were launched; findings are errors."""
    held: list[Any] = []
    made: list[Any] = []
    real = torch.Tensor.data_ptr

    def seen(self: Any) -> int:
        if self.device.type != "meta":
            held.append(self)
        return real(self)

    def memory(address: int) -> Any:
        return emulated.memory_at(address, held) if address else None  # a C that is not stored

    def direct(compiled: Any, arguments: tuple[int, ...], places: Any, index: int, plan: Any) -> Any:
        def launch(addresses: Any, stream: int) -> None:
            a, b, c = [memory(address) for address in arguments[:3]]
            words = [memory(word) if word > 1 << 32 else word for word in arguments[14:]]
            given = (a, b, a[:0] if c is None else c, *arguments[3:14], *words)
            assert len(given) == len(plan.parameters) and stream == STREAM
            made.append(plan)
            emulate_launch(plan, given, progress=False).raise_for_findings()

        return SimpleNamespace(launch=launch)

    def launched(plan: Any, a: Any, b: Any, out: Any, why: str, copy: bool, words: tuple[int, ...]) -> GemmResult:
        call = launch_of(plan, a, b, out, copy, words)
        direct(None, call.arguments, (), 0, plan).launch((), STREAM)
        return GemmResult(call.c, "emulator")

    monkeypatch.setattr(fused, "launch", launched)
    monkeypatch.setattr(fused, "require_gpu", lambda plan, index: None)
    monkeypatch.setattr(torch.Tensor, "data_ptr", seen)
    for module in (plans, kept):
        monkeypatch.setattr(module, "compile_apart", lambda plan: None)
    for module in (composed, kept):
        monkeypatch.setattr(module, "DirectLaunch", direct)
        monkeypatch.setattr(module, "raw_stream", lambda index: STREAM)
    for module in (composed, groups, grouped_epilogue):
        monkeypatch.setattr(module, "on_gpu", lambda index: True)
    monkeypatch.setattr(tensor_maps, "resident", lambda index, blocks: 2)
    monkeypatch.setattr("layoutgemm.kernels.run.ampere.resident", lambda index, blocks: 2)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    return made
