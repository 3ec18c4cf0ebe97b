"""Rows by index that torch's own functions read and scatter.

As in the kernels, an index outside reads zeros and writes nothing: torch's functions end a GPU's context there.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from ...kernels.run.operand_checks import addressed, resolved
from ..checks import modes_of_dispatch, tracing_state


def known_indices(x: torch.Tensor) -> npt.NDArray[np.int64] | None:
    """The indices that the host sees, or None. A GPU's, traced and mapped ones give None.

    >>> known_indices(torch.tensor([2, 0])).tolist(), known_indices(torch.empty(2, device="meta"))
    ([2, 0], None)
    """
    if x.device.type != "cpu" or not addressed(x) or tracing_state() is not None:
        return None
    with torch._C._DisableFuncTorch():  # a transform of other operands hides the memory
        return indices_of(x)


def indices_of(x: torch.Tensor) -> npt.NDArray[np.int64]:
    """The indices in a CPU tensor's memory.

    >>> indices_of(torch.tensor([[2, 0]]))
    array([[2, 0]])
    """
    if modes_of_dispatch():  # a view for NumPy is an operator, which a mode of fake tensors answers without memory
        return np.array(x.tolist(), np.int64).reshape(x.shape)
    found: npt.NDArray[np.int64] = resolved(x).numpy()
    return found


def inside_rows(indices: torch.Tensor, rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A column mask of the indices in 0..rows-1, and the clamped indices."""
    clamped = indices.clamp(0, rows - 1)
    return (clamped == indices).unsqueeze(-1), clamped


def selected(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """The rows of x that indices name, zeros for those outside.

    Elements of 8 bits go as integers, which all of torch's kernels take.

    >>> selected(torch.tensor([[1.0], [2.0]]), torch.tensor([1, -1, 2])).tolist()
    [[2.0], [0.0], [0.0]]
    >>> selected(torch.tensor([1.0, 2.0]), torch.tensor([1, -1])).tolist()
    [2.0, 0.0]
    """
    if x.is_floating_point() and x.dtype.itemsize == 1:
        return selected(x.view(torch.uint8), indices).view(x.dtype)
    inside, named = inside_rows(indices, x.shape[0])
    return torch.where(inside if x.ndim > 1 else inside.squeeze(-1), x.index_select(0, named), 0)


def scattered(into: torch.Tensor, indices: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A tensor like `into`, with rows where their indices say. Those outside are dropped.

    >>> scattered(torch.zeros(2, 1), torch.tensor([1, 2]), torch.tensor([[1.0], [2.0]])).tolist()
    [[0.0], [1.0]]
    """
    if 0 in (*into.shape, rows.shape[0]):
        return into
    inside, _ = inside_rows(indices, into.shape[0])
    # The product's row of each row of `into`, by one place more, for all that are outside.
    numbers = torch.arange(rows.shape[0], device=into.device)
    sources = numbers.new_full((into.shape[0] + 1,), -1)
    source = sources.index_copy(0, torch.where(inside.squeeze(-1), indices, into.shape[0]).long(), numbers)[:-1]
    return torch.where((source >= 0).unsqueeze(-1), rows.index_select(0, source.clamp(min=0)), into)


def gathered(a: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A's chosen rows, zeros for indices outside."""
    return selected(a, rows)


def of_rows(a: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """A tensor of the chosen rows' shape, without memory of its own.

    >>> of_rows(torch.zeros(5, 8), torch.zeros(2, 3).long()).shape
    torch.Size([2, 3, 8])
    """
    some = a[..., :1, :] if a.shape[-2] else a.new_zeros(1, a.shape[-1])
    return some.expand(*rows.shape, -1)
