"""The emulator behind the interface of `cuda_driver.Device`: microkernels run on both and are compared."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.emulator.api import TensorMapOf, emulate_ptx
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import LayoutError
from tests.micro.cuda_driver import CudaError


class EmulatedDevice:
    """A GPU of some target, emulated. What is found in a run is an error, as a kernel here does nothing wrong."""

    def __init__(self, target: str, policy: Policy | None = None) -> None:
        self.target, self.policy = target, policy
        self.name, self.driver, self.ptx_version = f"emulated {target}", (0, 0), (9, 9)

    def load(self, ptx: str) -> str:
        """The module is its text; what cannot be read shows at the launch."""
        return ptx

    def unload(self, module: str) -> None:
        """Nothing to do."""

    def reopen(self) -> None:
        """Nothing to do."""

    def launch(
        self,
        module: str,
        name: str,
        grid: int,
        block: int,
        inputs: Sequence[npt.NDArray[Any]],
        outputs: Sequence[int],
        order: Sequence[int] | None = None,
        shared: int = 0,
        maps: Sequence[tuple[TensorMap, int]] = (),
    ) -> list[npt.NDArray[np.uint8]]:
        """As `cuda_driver.Device.launch`."""
        held = [np.ascontiguousarray(array).view(np.uint8).reshape(-1).copy() for array in inputs]
        held += [np.full(size, 0xFF, dtype=np.uint8) for size in outputs]
        args: list[Any] = [held[i] for i in (order if order is not None else range(len(held)))]
        args += [over(tmap, held[i]) for tmap, i in maps]
        options = {"policy": self.policy, "progress": False}
        try:
            done = emulate_ptx(module, grid=grid, block=block, smem=shared, args=args, kernel=name, **options)
        except LayoutError as error:
            raise CudaError(str(error)) from error
        if not done.ok:
            raise CudaError(done.report())
        return held[len(inputs) :]


def over(tmap: TensorMap, held: npt.NDArray[np.uint8]) -> TensorMapOf:
    """The tensor map over a buffer's bytes, as the emulator is told of it."""
    words = held.view(f"u{tmap.dtype.bytes}")
    strides = (*tmap.strides[::-1], tmap.dtype.bytes)
    tensor = np.lib.stride_tricks.as_strided(words, tmap.extents[::-1], strides)
    return TensorMapOf(
        tensor, tmap.box[::-1], tmap.swizzle, tmap.dtype.name, tmap.steps[::-1], tmap.l2_promotion, tmap.oob_fill
    )
