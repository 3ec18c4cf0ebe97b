"""The kernel, copies and workspace of a product with row indices, in words."""

from __future__ import annotations

from dataclasses import replace

import torch

from ...errors import OperandError
from ...kernels.run.epilogue_operands import indexed_rows
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.indexed.row_copy import copied_bytes
from ..explanation import ZEROS, Explanation, gated_after
from ..prepared import Config
from ..scaled_grouped.by_mma import by_mma, mma_plan
from ..scaled_grouped.gated import why_by_torch
from ..scaled_grouped.scaled import check_config, unswapped
from ..tuned_store import MEASURED
from .plans import measured, mma_product, plan_of, why_copied
from .product import IndexedCall, IndexedOperands, check_indexed, shape_of, ungated


def explain_indexed(
    given: IndexedOperands, out: torch.Tensor | None, activation: str | None, out_dtype: torch.dtype | None,
    config: Config | None, copy_rows: bool | None, others: dict[str, object] | None = None,
) -> Explanation:  # fmt: skip
    """Which kernel a product with row indices takes, why, and what it copies. Raises as the product does.

    others  arguments that such a product does not take, or is not explained with, by name

    >>> a, b = torch.empty(8192, 4096).bfloat16(), torch.empty(4096, 4096).bfloat16()
    >>> told = explain_indexed(IndexedOperands(a, b, torch.arange(8192)), None, None, None, None, None)
    >>> told.why
    'A copied first: 38.0 us, gathered in the kernel: 55.6 us (estimates)'
    >>> told.copies, told.workspace
    (('a: 8192 chosen rows, 67108864 bytes',), 67108864)
    """
    for name, x in (others or {}).items():
        if x is not None:
            raise OperandError(f"{name}: a product with row indices takes none, or is not explained with it")
    config = unswapped(config)
    check_config(config)
    call = check_indexed(given, out, activation, out_dtype)
    if 0 in (given.m, *call.shape, given.a.shape[-1]):
        return ZEROS
    if call.gate is not None and (why := why_by_torch(given.b)):
        every, plain = ungated(call, given)
        return gated_after(_explained(every, plain, config, copy_rows), why, call.shape)
    if call.gate is not None and given.places:
        in_order = call._replace(shape=(given.m, call.shape[-1]))
        found = _explained(in_order, given.in_order, config, copy_rows)
        return replace(found, kernel=f"{found.kernel}; then torch scatters its rows")
    return _explained(call, given, config, copy_rows)


def _explained(
    call: IndexedCall, given: IndexedOperands, config: Sm90Config | None, copy_rows: bool | None
) -> Explanation:
    of = shape_of(call, given, config)
    if by_mma(given.a.get_device(), config):
        made, why = mma_plan(mma_product(of, copy_rows), given.a.get_device(), config)
        return Explanation(str(made), why, 1, (), made.workspace)
    plan = plan_of(of, config, copy_rows)
    found = measured(of, copy_rows) if config is None else None
    bytes_ = copied_bytes(plan)
    copies = (f"a: {indexed_rows(plan)} chosen rows, {bytes_} bytes",)
    why = why_copied(of, found or config, copy_rows) or "rows of C alone have indices"
    why = f"{why}; {MEASURED}" if found is not None and found == plan.config else why
    return Explanation(str(plan), why, 1, copies if bytes_ else (), plan.workspace)
