"""Launches of JAX arrays in the emulator: the arguments that a traced host function passes, on the CPU."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.jax_op.gpu import Target
from layoutgemm.kernels.run.emulated import emulate_launch

SIGNED = {1: np.int8, 2: np.int16, 4: np.int32}


class _Tensor:
    """An array whose address is the array itself."""

    def __init__(self, x: np.ndarray):
        self.iterator, self.x = self, x

    def toint(self) -> Any:
        return self.x


class _Kernel:
    """A kernel that a launch emulates, and checks for races."""

    plan: Any = None

    def __call__(self, *values: Any) -> None:
        # What a store writes behind a line is the padding of C, which is the call's own.
        emulate_launch(self.plan, values[:-1], Policy(edges=False), False).raise_for_findings()


def emulate_calls(monkeypatch: pytest.MonkeyPatch, gpu: ModuleType) -> None:
    """Have a module's launches emulated, for an H200; C holds 77 before, or the array whose memory it takes."""

    def called(plan: Any, on: Any, shape: Any, kind: str, facts: Any, start: Any, aliases: Any = None) -> Any:
        def call(*arrays: Any) -> Any:
            given = [np.array(x) for x in arrays]
            given = [x.view(SIGNED[x.itemsize]) if x.itemsize < 4 else x for x in given]
            kept = jnp.dtype(kind)
            c = given[next(iter(aliases))] if aliases else np.full(shape, 77, SIGNED[kept.itemsize])
            start.args[0].plan = plan
            start(None, *[_Tensor(x) for x in (given if aliases else (*given, c))])
            return jnp.asarray(c.view(kept))

        return call

    monkeypatch.setattr(gpu, "called", called)
    monkeypatch.setattr(gpu, "kernel_of", lambda plan: _Kernel())
    kinds = dict.fromkeys(("address", "size", "stride", "word"), lambda x: x)
    monkeypatch.setattr(gpu, "number_kinds", lambda: kinds)
    monkeypatch.setattr(gpu, "target", lambda: Target())
