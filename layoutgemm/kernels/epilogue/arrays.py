"""An epilogue's operands as NumPy arrays: laid out as a kernel finds them in memory, and read back after it has run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ...errors import OperandError
from .chain import Epilogue
from .numpy_math import rounded
from .parameters import Placed, words_of

PADDING = 6  # elements behind each line of a matrix, which a kernel has to leave as they are


class Arrays:
    """The epilogue operands of a launch. C's `shape` is (M, N) or (batch, M, N).

    given  what is read, by name: a number, (), (M,), (N,) or (M, N) as the operand's axes say, or one for each matrix
           of a batch; values are rounded to the operand's type

    Raises OperandError for an operand that is missing, is not the epilogue's, or has another shape.

    >>> from layoutgemm.kernels.epilogue.chain import Bias, Scale
    >>> arrays = Arrays(Epilogue(Scale(), Bias()), (4, 8), {"alpha": 2.0, "bias": np.ones(8)})
    >>> hex(arrays.words[0]), arrays.words[1].shape
    ('0x40000000', (8,))
    """

    def __init__(self, epilogue: Epilogue, shape: tuple[int, ...], given: Mapping[str, object]):
        self.epilogue = epilogue
        self._bits: dict[str, np.ndarray] = {}
        placed: dict[str, Any] = {name: value for name, value in given.items() if self._host(name)}
        extents = {"m": shape[-2], "n": shape[-1]}
        for operand in epilogue.given:
            if operand.host or (not operand.written and operand.name not in given):
                continue
            one = tuple(extents[axis] for axis in operand.axes) or (1,)
            several = (*shape[:-2], *one)
            if operand.written:
                value = np.zeros(several if operand.axes else one, np.float32)
            else:
                value = np.atleast_1d(rounded(operand, given[operand.name]))
            if value.shape not in (one, several):
                raise OperandError(f"{operand.name} has shape {value.shape}; the epilogue takes {one}")
            own = len(value.shape) > len(one)  # a matrix, or a vector, for each of the batch
            if operand.axes == "mn" and operand.order == "col":
                value = value.swapaxes(-1, -2)
            pad = PADDING if operand.axes == "mn" else 0
            lines = np.full((*value.shape[:-1], value.shape[-1] + pad), np.nan, np.float32)
            lines[..., : value.shape[-1]] = value
            bits = self._bits[operand.name] = operand.dtype.encode(lines)
            leading = lines.shape[-1]
            placed[operand.name] = Placed(bits, leading, int(np.prod(lines.shape[1:])) if own else 0)
        unknown = {name: value for name, value in given.items() if name not in placed}
        self.words: tuple[Any, ...] = words_of(epilogue, {**placed, **unknown})

    def _host(self, name: str) -> bool:
        return any(operand.host and operand.name == name for operand in self.epilogue.given)

    def written(self) -> dict[str, np.ndarray]:
        """The operands that the kernel wrote, by name, as float32. Raises OperandError for a write behind a line."""
        found: dict[str, np.ndarray] = {}
        for operand in self.epilogue.given:
            if not operand.written:
                continue
            value = np.asarray(operand.dtype.decode(self._bits[operand.name]), np.float32)
            if operand.axes == "mn":
                value, behind = value[..., :-PADDING], value[..., -PADDING:]
                if not np.isnan(behind).all():
                    raise OperandError(f"{operand.name}: the kernel wrote behind its lines")
                value = value if operand.order == "row" else value.swapaxes(-1, -2)
            found[operand.name] = value if operand.axes else value[0]
        return found


__all__ = ["PADDING", "Arrays"]
