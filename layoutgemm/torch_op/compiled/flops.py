"""Floating point operations of torch.ops.layoutgemm.*, as torch's FlopCounterMode and its partitioner count them.

An operator without a formula counts as 0, and nothing says so. As torch does, a multiplication and an addition are two
operations, and what follows the sums is not counted. Sizes alone are known: of masked groups all rows count.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from math import prod

import torch
from torch.utils.flop_counter import register_flop_formula

Shape = Sequence[int]
_N = 6


def of_product(a: Shape, b: Shape, *others: object, **named: object) -> int:
    """The operations of (..., M, K) by (..., K, N), whose batches broadcast.

    >>> of_product((3, 1, 2, 5), (4, 5, 7))
    1680
    """
    batch = torch.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
    return 2 * prod(batch) * a[-2] * a[-1] * b[-1]


def of_groups(a: Shape, b: Shape, *others: object, **named: object) -> int:
    """The operations of a grouped product. Each row, column or element of K is in one group.

    >>> of_groups((10, 5), (4, 5, 7)), of_groups((4, 3, 5), (5, 10)), of_groups((3, 10), (10, 7))
    (700, 300, 420)
    """
    if len(a) == 3 and len(b) == 2:  # groups of columns
        return 2 * a[1] * prod(b)
    return 2 * prod(a) * b[-1]


def _of_rows(a: Shape, b: Shape, rows: Shape | None, *others: object, **named: object) -> int:
    m = prod(a[:-1]) if rows is None else prod(rows)
    return 2 * m * a[-1] * b[-1]


def _of_groups_of_rows(
    a: Shape, b: Shape, groups: Shape | None, scale_a: Shape | None, scale_b: Shape | None, rows: Shape | None,
    *others: object, **named: object,
) -> int:  # fmt: skip
    function = others[12] if len(others) > 12 else named.get("function")
    products = json.loads(str(function))["matrices"] if function else 1
    return products * (of_groups(a, b) if rows is None else _of_rows(a, b, rows))


def _of_scaled(a: Shape, scale_a: Shape, b: Shape, *others: object, **named: object) -> int:
    return of_product(a, b)


def _of_block_scaled(a: torch.Tensor, scale_a: object, b: torch.Tensor, *others: object, **named: object) -> int:
    """The operations of a product of tensors, whose bytes have two 4-bit elements each."""
    return of_product(a.shape, b.shape) * (2 if a.dtype == getattr(torch, "float4_e2m1fn_x2", None) else 1)


def _of_several(a: Shape, b: Sequence[Shape], *others: object, **named: object) -> int:
    return sum(of_product(a, each) for each in b)


def _of_several_groups(
    a: Shape, b: Sequence[Shape], groups: Shape | None, numbers: object, function: str, said: str = "",
    rows: Shape | None = None, *others: object, **named: object,
) -> int:  # fmt: skip
    return sum(of_groups(a, each) if rows is None else _of_rows(a, each, rows) for each in b)


def _of_several_scaled(
    a: Shape, b: Sequence[Shape], groups: Shape | None, scale_a: object, scale_b: object, numbers: object,
    function: str, said: str = "", rows: Shape | None = None, *others: object, **named: object,
) -> int:  # fmt: skip
    return _of_several_groups(a, b, groups, numbers, function, said, rows)


def _of_parts(a: Sequence[Shape], b: Sequence[Shape], read: Sequence[Shape], *others: object, **named: object) -> int:
    """The parts' text, the first among the others, names what is read: a row of the product for each of `rows`."""
    own = json.loads(next(text for text in others if isinstance(text, str)))["own"]
    first = (*read[own.index("rows")], a[0][-1]) if "rows" in own else a[0]
    sums = len(b) // len(a)
    return sum(of_product([first, *a[1:]][i // sums], each) for i, each in enumerate(b))


def _of_packed(x: Shape, units: Shape, *others: int, **named: int) -> int:
    """N is the seventh argument behind the weights, of one product and of groups."""
    return 2 * prod(x) * named.get("n", others[_N])


def _of_packed_steps(x: Shape, units: Shape, *others: object, **named: int) -> int:
    return 2 * prod(x) * int(str(named.get("n", others[_N + 4])))  # behind four lists of operands, and their text


_FORMULAS: Mapping[str, Callable[..., int]] = {
    "matmul": of_product, "finished": of_product, "gated": of_product, "prologue_matmul": of_product,
    "epilogue_matmul": of_product, "combined_matmul": _of_several, "scaled_matmul": _of_scaled,
    "scaled_matmul_quantized": _of_scaled,
    "scaled_epilogue_matmul": _of_scaled, "grouped_epilogue_matmul": _of_groups_of_rows,
    "grouped_matmul": of_groups, "prologue_grouped_matmul": of_groups,
    "combined_grouped_matmul": _of_several_groups, "combined_scaled_grouped_matmul": _of_several_scaled,
    "composed_matmul": _of_parts, "composed_matmul_writing": _of_parts,
    "indexed_matmul": _of_rows, "quantized_matmul": _of_packed, "quantized_grouped_matmul": _of_packed,
    "quantized_epilogue_matmul": _of_packed_steps,
}  # fmt: skip


def count_flops(name: str) -> None:
    """Have torch count the operations of an operator, if it is a product."""
    if name == "block_scaled_matmul":
        register_flop_formula(torch.ops.layoutgemm.block_scaled_matmul, get_raw=True)(_of_block_scaled)
    if name in _FORMULAS:
        register_flop_formula(getattr(torch.ops.layoutgemm, name))(_FORMULAS[name])
