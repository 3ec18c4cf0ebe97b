"""matmul((a, a2), (b, b2)). The sum of two products in one kernel, as for a low-rank update of weights (LoRA).

    matmul((x, x @ down), (w, up))       x @ w + (x @ down) @ up, added in float32 and rounded once

One accumulator takes the K tiles of the first pair and then of the second: see `kernels.operands.pair`. Bias and
activation follow in the kernel. On the CPU both products are computed in float64.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...errors import OperandError
from ..bias_activation import by_torch, fused
from ..compute import product
from ..prepared import NO_FINISH, Config, LaunchEpilogue, launched, on_gpu, target
from ..problem import reads_by_tma, shapes_of
from ..reference import exact
from .several import as_lines

Two = Sequence[torch.Tensor]


def computed_pairs(
    left: Two, right: Two, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype,
    config: Config | None = None, out: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The sum of two products of checked tensors, computed now; no derivative is recorded."""
    shape = shapes_of(left[0].shape, right[0].shape).result
    if 0 in shape:
        return torch.empty(shape, dtype=kind, device=left[0].device) if out is None else out
    gpu, live = on_gpu(left[0].get_device()), [i for i in range(2) if left[i].shape[-1]]
    if gpu and len(live) == 2:
        flat = None if out is None or not out.is_contiguous() else out.view(-1, shape[-1])
        value = _launched(left, right, bias, activation, kind, config, flat).reshape(shape)
        return value if out is None else out if flat is not None else out.copy_(value)
    if gpu:
        terms = [product(left[i], right[i], torch.float32, config) for i in live]
    else:
        terms = [exact(left[i], right[i]).double() for i in live]
    total = sum(terms[1:], terms[0]) if terms else torch.zeros(shape, dtype=torch.float32, device=left[0].device)
    value = by_torch(total, bias, activation, kind)
    return value if out is None else out.copy_(value)


def _launched(
    left: Two, right: Two, bias: torch.Tensor | None, activation: str | None, kind: torch.dtype, config: Config | None,
    out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """One launch, rows as one matrix: a new one, or `out`."""
    if not reads_by_tma(code := target(left[0].get_device(), config)[0]):
        raise OperandError(f"{left[0].device} runs {code}: two pairs in one kernel need wgmma, compute capability 9.0")
    bias = None if bias is None else bias.resolve_neg()
    rows, columns, _ = placed_pairs(left, right)
    after = NO_FINISH
    if bias is not None or activation is not None:
        found = fused(bias, activation, kind, columns[0].shape[1])
        if found is None:  # a bias that no kernel reads
            wide = launched(rows[0], columns[0], torch.float32, config, None, finish_of_pairs(rows, columns, NO_FINISH))
            value = by_torch(wide, bias, activation, kind)
            return value if out is None else out.copy_(value)
        after = found
    return launched(rows[0], columns[0], kind, config, out, finish_of_pairs(rows, columns, after))


def placed_pairs(left: Two, right: Two) -> tuple[list[torch.Tensor], list[torch.Tensor], list[str]]:
    """(A and A2 as matrices, B and B2, what was copied). Each two in one order that tensor copies read."""
    lines = [x.resolve_neg().reshape(-1, x.shape[-1]) for x in left]
    rows, of_a = as_lines(lines, "a", "row")
    columns, of_b = as_lines([x.resolve_neg() for x in right], "b")
    return rows, columns, [*of_a, *of_b]


def finish_of_pairs(rows: Two, columns: Two, after: LaunchEpilogue) -> LaunchEpilogue:
    """The second pair as a kernel takes it, after the words of an epilogue."""
    places = [word for x in (rows[1], columns[1]) for word in (x.data_ptr(), max(x.stride()))]
    second = rows[1].shape[1]
    key = (*after.key, "pair", second, rows[0].stride(), columns[0].stride())
    return after._replace(words=(*after.words, *places, second), key=key, second_k=second)
