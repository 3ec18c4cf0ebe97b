"""The result of a run, and where a run can take place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import torch

    from ...emulator.api import Emulation


DEVICES = ("cuda", "emulator", "reference")


@dataclass(frozen=True, eq=False)
class GemmResult:
    """A run's result: the product, its device, and the copied operands.

    c       (M, N), or (batch, M, N); NumPy float32 for NumPy inputs (narrower outputs as the float32 values they stand
            for), int32 of integers, else a torch tensor of the plan's type on the inputs' device, its lines padded to
            16 bytes where a tensor store needs that
    ran_on  "NVIDIA H200 (cuda:0)", "emulator", or "NumPy executor"
    why     why it ran there, when the caller did not choose
    copies  one sentence for each operand that was copied before the run, or `out` after it, with the rule that made it
            necessary
    emulation  launches with their records, of a run with `banks` or `timeline`: `result.emulation.launches[0].timeline`
    written  what the plan's epilogue wrote besides C, by name, see `kernels.run.fused`
    """

    c: Any
    ran_on: str
    why: str = ""
    copies: tuple[str, ...] = field(default=())
    written: Mapping[str, Any] = field(default_factory=dict)
    emulation: Emulation | None = field(default=None, repr=False)

    def __array__(self, dtype: npt.DTypeLike | None = None, copy: bool | None = None) -> np.ndarray:
        if isinstance(self.c, np.ndarray):
            return np.asarray(self.c, dtype=dtype)
        value = self.c.detach().float() if self.c.is_floating_point() else self.c
        return np.asarray(value.cpu().numpy(), dtype=dtype)

    def into(self, out: np.ndarray | torch.Tensor | None) -> GemmResult:
        """The result with C stored in the array `out`, if given."""
        if out is None:
            return self
        out[...] = self.c
        return replace(self, c=out)
