"""Runs on the CPU: the NumPy executor, and the compiled kernel in the emulator."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np

from ...errors import EmulatorError
from ..indexed.added_rows import added_rows, in_product_order
from ..plan import GemmPlan
from .arrays import global_matrix
from .hardware_model import GlobalMatrix, unwritten
from .result import GemmResult

T = TypeVar("T")
PROGRESS_SECONDS = 2.0  # between two lines of a long run


def executed(
    plan: GemmPlan, a: GlobalMatrix, b: GlobalMatrix, device: str,
    values: Mapping[str, object] | None = None, words: tuple[object, ...] = (),
) -> np.ndarray:  # fmt: skip
    """C by the NumPy executor ("reference") or by the compiled kernel ("emulator").

    values, words  the extra operands: by name for the executor, as the launch's last arguments for the kernel
    """
    if device != "reference":
        return np.asarray(plan.does("emulate")(plan, a, b, words))
    product, indexed = in_product_order(plan), getattr(plan, "indexed", None)
    in_order = values if values is None or indexed is None else indexed.gathered(values)
    given = {} if in_order is None else {"given": in_order}
    return added_rows(
        plan, np.asarray(product.does("execute")(product, a, b, progress=progress_line(), **given)), values
    )


def run_on_cpu(
    plan: GemmPlan, a: np.ndarray, b: np.ndarray, device: str, why: str, copy: bool,
    values: Mapping[str, object] | None = None, words: tuple[object, ...] = (),
) -> GemmResult:  # fmt: skip
    """Run the NumPy executor, or the emulator, on arrays that have been checked; see `executed`."""
    copies: list[str] = []
    bits_a, bits_b = (global_matrix(operand, value, copies, copy) for operand, value in ((plan.a, a), (plan.b, b)))
    c = executed(plan, bits_a, bits_b, device, values, words)
    return GemmResult(c, "emulator" if device == "emulator" else "NumPy executor", why, tuple(copies))


def stored_lines(
    plan: GemmPlan, shape: tuple[int, ...], own: int, launch: Callable[[np.ndarray], T]
) -> tuple[np.ndarray, T]:
    """C's bits after an emulated launch into them, and the launch's value.

    shape  of C in memory: the last extent is a line's pitch, of which the launch may write the first `own` elements

    Raises EmulatorError for a write between lines.
    """
    bits = unwritten(plan.c.dtype, shape)
    if getattr(plan, "adds_rows", False):
        bits[...] = 0
    before = bits[..., own:].copy()
    made = launch(bits)
    if not np.array_equal(before, bits[..., own:]):
        raise EmulatorError(f"{plan}: elements between the lines of C were written")
    return bits, made


def progress_line() -> Any:
    """A progress callback: a line to stderr every PROGRESS_SECONDS, none for short runs."""
    start = last = time.monotonic()

    def report(done: int, blocks: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_SECONDS and done < blocks:
            last = now
            left = (now - start) / done * (blocks - done)
            print(f"NumPy executor: block {done} of {blocks}, about {left:.0f} s left", file=sys.stderr, flush=True)

    return report
