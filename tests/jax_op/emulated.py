"""Launches of JAX arrays in the emulator: the arguments that a traced host function passes, on the CPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.jax_op import gpu
from layoutgemm.jax_op.gpu import Target
from layoutgemm.kernels.run.emulated import emulate_launch

SIGNED = {1: np.int8, 2: np.int16, 4: np.int32}


class _Memory(np.ndarray):
    """An array in place of its address: with bytes added, the memory from there on."""

    def __add__(self, more: int) -> Any:  # type: ignore[override]
        return self.reshape(-1)[more // self.itemsize :]


class _Tensor:
    """An array whose address is the array itself."""

    def __init__(self, x: np.ndarray):
        self.iterator, self.x = self, x.view(_Memory)

    def toint(self) -> Any:
        return self.x


class _Kernel:
    """A kernel that a launch emulates, and checks for races."""

    plan: Any = None

    def __call__(self, *values: Any) -> None:
        # What a store writes behind a line is the padding of C, which is the call's own.
        emulate_launch(self.plan, values[:-1], Policy(edges=False), False).raise_for_findings()


def emulate_calls(monkeypatch: pytest.MonkeyPatch, module: ModuleType) -> None:
    """Have a module's launches emulated, for an H200; results hold 77 before, or the array whose memory they take."""

    def called(plan: Any, on: Any, shapes: Any, facts: Any, start: Any, aliases: Any) -> Any:
        def call(*arrays: Any) -> Any:
            given = [_as_stored(np.array(x)) for x in arrays]
            own = {at: given[i] for i, at in aliases.items()}
            kinds = [jnp.dtype(kind) for _, kind in shapes]
            made = {
                at: np.full(shape, 77, SIGNED.get(kinds[at].itemsize, np.int64))
                for at, (shape, _) in enumerate(shapes)
                if at not in own
            }
            start.args[0].plan = plan
            start(None, *[_Tensor(x) for x in (*given, *made.values())])
            return [jnp.asarray(x.view(kinds[at])) for at, x in sorted((own | made).items())]

        return call

    monkeypatch.setattr(gpu, "called", called)
    monkeypatch.setattr(gpu, "kernel_of", lambda plan: _Kernel())
    kinds = dict.fromkeys(("address", "size", "stride", "word"), lambda x: x)
    monkeypatch.setattr(gpu, "number_kinds", lambda: kinds)
    monkeypatch.setattr(module, "target", lambda: Target())


def _as_stored(x: np.ndarray) -> np.ndarray:
    """The bits of a type that NumPy lacks; a number is an array of one, which has an address."""
    x = np.atleast_1d(x)
    return x.view(SIGNED[x.itemsize]) if x.itemsize < 4 else x
