"""A solution on CPU tensors, in the emulator. The kernel, arguments and copies that a GPU gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from ..errors import OperandError
from ..kernels.compile.worker import plan_of
from ..kernels.run.emulated import emulate_launch
from .launch import run_staged, staged
from .problem import Solution, arguments


def emulate(
    solution: Solution, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, words: Sequence[object] = (),
    workers: int = 2,
) -> None:  # fmt: skip
    """Run a solution's kernel in the emulator, on CPU tensors. Seconds where a GPU takes microseconds.

    Raises EmulatorError for what the emulator finds.
    """
    # Elements as plain words of their width: what they mean is the kernel's business.
    plan = plan_of(solution.kernel)
    held = staged(solution, a, b, c)

    def launch(*addresses: int) -> None:
        arrays = [memory_at(at, held) for at in addresses]
        emulate_launch(plan, arguments(solution, arrays, workers, words), progress=False).raise_for_findings()

    run_staged(solution, held, launch)
    if held[2] is not c:
        c.copy_(held[2])


def memory_at(address: int, held: Sequence[torch.Tensor]) -> Any:
    """The memory from an address to the end of its allocation, as a NumPy array.

    held  tensors, one of which has the address; elements of the array are integers of its elements' width

    Raises OperandError for an address in none of them.
    """
    for x in held:
        storage = x.untyped_storage()
        first, end = storage.data_ptr(), storage.data_ptr() + storage.nbytes()
        if first <= address < end:
            whole = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
            count = (end - address) // x.element_size()
            # A part of the allocation's array: the emulated address is as far from an aligned one as this one is.
            return np.frombuffer(whole, f"i{x.element_size()}", count, address - first)
    raise OperandError(f"address {address:#x} is in none of the tensors")
