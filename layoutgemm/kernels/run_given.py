"""Running plans that read more than A and B, in NumPy or the emulator: tables of a main loop, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import OperandError
from .epilogue import MAX_WORDS
from .silicon import GlobalMatrix
from .sm90_plan import Sm90Plan
from .sm90_reference import execute_sm90


def given_of(plan: Sm90Plan, given: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """What the plan reads besides A and B, checked; raises OperandError naming what is missing or does not fit."""
    if plan.mainloop is None:
        raise OperandError(f"given = {', '.join(given)}: the plan reads A and B alone")
    return plan.mainloop.check(given, plan.m, plan.n, plan.k, plan.batch)


def words_of_tensors(plan: Sm90Plan, given: Mapping[str, Any], device: Any) -> tuple[int, ...]:
    """The sixteen words of a launch on CUDA tensors, of any strides; raises OperandError for one that does not fit."""
    words: list[int] = []
    if plan.mainloop is not None:
        for table, shape in plan.mainloop.expected(given, plan.m, plan.n, plan.k, plan.batch):
            value = given[table.name]
            if getattr(value, "device", None) != device or str(value.dtype) != "torch.float32":
                raise OperandError(f"{table.name} is {_said(value)}: it takes torch.float32 on {device}")
            if tuple(value.shape) != shape:
                raise OperandError(f"{table.name} has shape {tuple(value.shape)}: it takes {shape}, {table.said}")
            words += [value.data_ptr(), value.stride(-2), value.stride(-1), value.stride(0) if plan.batch > 1 else 0]
    return (*words, *[0] * (MAX_WORDS - len(words)))


def _said(value: Any) -> str:
    return f"{getattr(value, 'dtype', type(value).__name__)} on {getattr(value, 'device', 'no device')}"


def execute_given(plan: Sm90Plan, a: GlobalMatrix, b: GlobalMatrix, given: Mapping[str, Any], device: str) -> Any:
    """C by the NumPy executor ("reference") or by the compiled kernel ("emulator"), as `run_plan` gives it."""
    values = given_of(plan, given)
    if device == "reference":
        return execute_sm90(plan, a, b, given=values)
    from .emulated import emulate_plan
    from .silicon import values_of

    words, done = emulate_plan(plan, a, b, given=words_of_arrays(plan, values))
    done.raise_for_findings()
    return values_of(plan.c.dtype, words)


def words_of_arrays(plan: Sm90Plan, values: Mapping[str, npt.NDArray[Any]]) -> tuple[Any, ...]:
    """The sixteen words of an emulated launch, arrays in place of their addresses."""
    words: list[Any] = []
    for table in plan.mainloop.tables if plan.mainloop is not None else ():
        lying = np.ascontiguousarray(values[table.name], np.float32)
        groups, k_blocks = lying.shape[-2:]
        words += [lying, k_blocks, 1, groups * k_blocks if plan.batch > 1 else 0]
    return (*words, *[0] * (MAX_WORDS - len(words)))
