"""An epilogue's operands as NumPy arrays. Laid out as a kernel finds them in memory, and read back after it has run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ...errors import OperandError
from .chain import Epilogue
from .matrix import rounded
from .parameters import PlacedOperand, words_of

PADDING = {False: 6, True: 8}  # elements behind each line of a matrix by `lines`: a kernel leaves them as they are
BEYOND = -77  # their value, of whole numbers; of others NaN


class Arrays:
    """The epilogue operands of a launch. C's `shape` is (M, N) or (batch, M, N).

    given  what is read, by name: a number, (), (M,), (N,) or (M, N) as the operand's axes say, or one for each matrix
           of a batch; values are rounded to the operand's type

    workspace  bytes of the plan's partial results: an array of them is a word of the launch
    first      what these hold before the launch, `ReducingPlan.first_partials`
    chosen     numbers of vectors along M that row indices choose from, by name
    groups     of C's rows, each with vectors along N of its own where one is given for each, and where they are written

    Raises OperandError for an operand that is missing, is not the epilogue's, or has another shape.

    >>> from layoutgemm.kernels.epilogue.chain import Bias, Scale
    >>> arrays = Arrays(Epilogue(Scale(), Bias()), (4, 8), {"alpha": 2.0, "bias": np.ones(8)})
    >>> hex(arrays.words[0]), arrays.words[1].shape
    ('0x40000000', (8,))
    """

    def __init__(
        self, epilogue: Epilogue, shape: tuple[int, ...], given: Mapping[str, object], workspace: int = 0,
        groups: int = 0, first: Sequence[tuple[int, np.generic]] = (), chosen: Mapping[str, int] | None = None,
    ):  # fmt: skip
        if results := [operand.name for operand in epilogue.given if operand.written and operand.name in given]:
            raise OperandError(f"{results[0]} is a result: of NumPy arrays, `written` of the run's result holds it")
        epilogue.check_columns(shape[-1])
        self.epilogue = epilogue
        self._bits: dict[str, np.ndarray] = {}
        placed: dict[str, Any] = {name: value for name, value in given.items() if self._host(name)}
        for operand in epilogue.given:
            if operand.host or (not operand.written and operand.name not in given):
                continue
            one = operand.shape((chosen or {}).get(operand.name, shape[-2]), shape[-1]) or (1,)
            joined = (groups,) if groups and operand.axes == "n" else ()
            several = (*shape[:-2], *joined, *one)
            if operand.written:
                value = np.full(several if operand.axes else one, operand.start, np.float32)
            else:
                value = np.atleast_1d(rounded(operand, given[operand.name]))
            if value.shape not in (one, several):
                raise OperandError(f"{operand.name} has shape {value.shape}; the epilogue takes {one}")
            own = len(value.shape) > len(one)  # a matrix, or a vector, for each of the batch
            if operand.rank == 2 and operand.order == "col":
                value = value.swapaxes(-1, -2)
            pad = PADDING[epilogue.lines] if operand.axes == "mn" else 0
            whole = operand.dtype.kind == "int"
            beyond, kind = (BEYOND, np.int32) if whole else (np.nan, np.float32)
            lines = np.full((*value.shape[:-1], value.shape[-1] + pad), beyond, kind)
            lines[..., : value.shape[-1]] = value
            bits = self._bits[operand.name] = operand.dtype.encode(lines)
            leading = lines.shape[-1]
            placed[operand.name] = PlacedOperand(bits, leading, int(np.prod(lines.shape[1:])) if own else 0)
        unknown = {name: value for name, value in given.items() if name not in placed}
        partial = np.full(max(1, workspace // 4), np.nan, np.float32)
        words, at = partial.view(np.uint32), 0
        for count, start in first:
            words[at : at + count] = start.view(np.uint32)
            at += count
        self.words: tuple[Any, ...] = words_of(epilogue, {**placed, **unknown}, partial)

    def _host(self, name: str) -> bool:
        return any(operand.host and operand.name == name for operand in self.epilogue.given)

    def written(self) -> dict[str, np.ndarray]:
        """The operands that the kernel wrote, by name, as float32, whole numbers as int32.

        Raises OperandError for a write behind a line.
        """
        found: dict[str, np.ndarray] = {}
        for operand in self.epilogue.given:
            if not operand.written:
                continue
            whole = operand.dtype.kind == "int"
            value = np.asarray(operand.dtype.decode(self._bits[operand.name]), np.int32 if whole else np.float32)
            if operand.axes == "mn":
                pad = PADDING[self.epilogue.lines]
                value, behind = value[..., :-pad], value[..., -pad:]
                if not (behind == BEYOND if whole else np.isnan(behind)).all():
                    raise OperandError(f"{operand.name}: the kernel wrote behind its lines")
            if operand.rank == 2 and operand.order == "col":
                value = value.swapaxes(-1, -2)
            found[operand.name] = value if operand.axes else value[0]
        return found
