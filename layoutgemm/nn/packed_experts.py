"""Dense experts, in parameters of three dimensions, as an `ExpertsMLP` of packed weights.

    first (experts, rows, wide)    rows = 2 * hidden with a gate, else hidden    }  ->  PackedGroups each
    second (experts, wide, hidden)                                               }

Both may be transposed, as (experts, in features, out features). The module's own forward decides, tried on small
weights: see `stored_experts.compared`.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..errors import LayoutError
from ..kernels.quantized.formats import QuantizedFormat
from ..torch_op.quantized import QuantizedExperts, QuantizedWeight
from .experts import ExpertsMLP, OwnGate, PackedGroups
from .stored_experts import compared


def packed_mlp(module: torch.nn.Module, fmt: QuantizedFormat) -> ExpertsMLP | str:
    """The module in the place of dense experts, or the reason against it.

    Weights are rounded to codes.

    "" for a module without two parameters of three dimensions.

    >>> packed_mlp(torch.nn.Linear(2, 2), QuantizedFormat("int8"))
    ''
    """
    found = {key: x for key, x in module._parameters.items() if x is not None}
    keys = [key for key, x in found.items() if x.ndim == 3]
    if len(keys) != 2:
        return ""
    biased = any(x.ndim == 2 for x in found.values())
    reason, ways = "its parameters are not (experts, n or 2n, k) and (experts, k, n)", _ways(module, keys)
    for transposed, gated in ways:
        _, reason = compared(module, keys, gated, transposed, biased)
        if not reason:
            try:
                first, down = (_groups(module, key, fmt, transposed) for key in keys)
            except LayoutError as error:
                return str(error)
            return ExpertsMLP(first, down, OwnGate(module, gated)).train(module.training)
    return reason


def _ways(module: torch.nn.Module, keys: Sequence[str]) -> list[tuple[bool, bool]]:
    """(whether both are transposed, whether the first one has a gate) that the shapes allow."""
    said, found = getattr(module, "is_transposed", None), []
    for transposed in [said] if isinstance(said, bool) else [False, True]:
        shapes = [module.get_parameter(key).shape for key in keys]
        (experts, rows, wide), second = [(e, b, a) if transposed else (e, a, b) for e, a, b in shapes]
        found += [(transposed, rows == 2 * second[2])] * (second[:2] == (experts, wide) and rows in _sizes(second[2]))
    return found


def _sizes(hidden: int) -> tuple[int, int]:
    """Rows of the first parameter without a gate, and with one."""
    return hidden, 2 * hidden


def _groups(module: torch.nn.Module, key: str, fmt: QuantizedFormat, transposed: bool) -> PackedGroups:
    """A parameter's packed weights, with its bias. Raises OperandError for sizes or types that have none."""
    x = module.get_parameter(key)
    dense, bias = x.mT if transposed else x, module._parameters.get(f"{key}_bias")
    if x.is_meta:
        _, n, k = dense.shape
        every = [QuantizedWeight.on_meta(n, k, fmt, x.dtype)] * len(x)
    else:
        every = [QuantizedWeight.quantize(one, fmt, x.dtype) for one in dense.detach()]
    return PackedGroups(QuantizedExperts.of(every), bias=bias)
