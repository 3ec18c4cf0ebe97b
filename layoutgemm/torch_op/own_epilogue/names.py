"""The names of an epilogue's operands, in the four lists that the operators take."""

from __future__ import annotations

from typing import NamedTuple

import torch

from ...kernels.epilogue.chain import Epilogue
from ..epilogue import Tensors


class OperandNames(NamedTuple):
    """The names of an epilogue's operands, as the operator's lists have them."""

    read: tuple[str, ...]
    written: tuple[str, ...]
    numbers: tuple[str, ...]
    wholes: tuple[str, ...]

    @classmethod
    def of(cls, epilogue: Epilogue) -> OperandNames:
        """Those of an epilogue."""
        whole = [operand.dtype.name == "i32" for operand in epilogue.numbers]
        numbers, wholes = (
            tuple([operand.name for operand, is_whole in zip(epilogue.numbers, whole, strict=True) if is_whole is kind])
            for kind in (False, True)
        )
        return cls(epilogue.reads, epilogue.writes, numbers, wholes)

    def lists(self, given: Tensors) -> tuple[list[torch.Tensor | int | float], ...]:
        """The operands of a call."""
        read, written = ([given[name] for name in names] for names in (self.read, self.written))
        return read, written, [float(given[name]) for name in self.numbers], [int(given[name]) for name in self.wholes]
