"""matmul(a, (b0, b1), combine=f, rows=): a function of products of chosen rows with several matrices, in one launch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch

from ...errors import LayoutError, OperandError, TensorError
from ...kernels.run.operand_checks import check_operands
from ...kernels.run.tensor_maps import run_with_operands
from ...kernels.sm90.choose.occupancy import ClusterOccupancy
from ...kernels.sm90.choose.rules import Sm90Choice, in_place
from ...kernels.sm90.indexed.rows import IndexedRows, RowIndices
from ...kernels.sm90.operands.combined import Combined
from ...kernels.sm90.plan import Sm90Plan
from ..checks import autocast_type, cast, differentiated, has_tangent, needs_dispatcher, refuse_traces
from ..operands.several import Combine, as_lines, checked_call, computed
from ..prepared import Config, choice_of, gpu, on_gpu
from ..scaled_grouped.grouped import INTS
from ..scaled_grouped.kept import require_hopper
from ..types import C_NAMES, NAMES
from .product import IndexedOperands, check_indexed
from .torch_rows import of_rows, selected

_WAY_OUT = "give combine= the rows that torch.index_select makes"


def combined_rows(
    a: torch.Tensor, b: Sequence[torch.Tensor], rows: torch.Tensor, combine: Combine,
    given: Mapping[str, object] | None, out: torch.Tensor | None, config: Config | None, out_dtype: torch.dtype | None,
) -> torch.Tensor:  # fmt: skip
    """combine(a[rows] @ b[0], a[rows] @ b[1], ...): a's rows are copied first, then one kernel multiplies.

    Raises as `matmul_combined` and `check_indexed` do; TensorError where derivatives are recorded.

    >>> x, w = torch.eye(2).half(), torch.tensor([[1.0, -2.0], [3.0, 4.0]]).half()
    >>> combined_rows(x, (w, w), torch.tensor([1, 0, 1]), "relu", None, None, None, None).tolist()
    [[9.0, 16.0], [1.0, -0.0], [9.0, 16.0]]
    """
    refuse_traces("combine= with rows=")
    check_operands({"a": a, "rows": rows})
    a = cast(a, to := autocast_type(a))
    if isinstance(b, (tuple, list)) and b:
        check_operands({"a": a, "b": b[0]})
        check_indexed(IndexedOperands(a, cast(b[0], to), rows), None, None, out_dtype)
    m = rows.shape[0]
    _, matrices, how, numbers, kind = checked_call(of_rows(a, rows), b, combine, given, out, config, out_dtype, None)
    if differentiated(a, *matrices) or any(has_tangent(x) for x in (a, *matrices)):
        raise TensorError(f"combine= with rows= has no derivatives: {_WAY_OUT}")
    with torch.no_grad():
        if needs_dispatcher(a, rows, *matrices, out):
            raise OperandError(
                f"combine= with rows= is a launch of its own, not seen by torch's dispatcher: {_WAY_OUT}"
            )
        if not on_gpu(a.get_device()) or 0 in (m, *a.shape, *matrices[0].shape):
            return computed(selected(a, rows), matrices, how, numbers, kind, config, out)
        require_hopper(a.get_device(), "a product with row indices")
        placed, _ = as_lines([x.resolve_neg() for x in matrices])
        order = "row" if placed[0].stride(-1) == 1 and placed[0].stride(0) != 1 else "col"
        types = NAMES[a.dtype], f"{NAMES[placed[0].dtype]}:{order}", C_NAMES[kind]
        sizes = m, placed[0].shape[1], a.shape[1], a.shape[0]
        plan = plan_of(sizes, types, INTS[rows.dtype], how, choice_of(config), gpu(a.get_device())[0])
        further = dict(zip(plan.further, placed[1:], strict=True))
        read = {"rows": rows.contiguous(), **further, **numbers}
        result: torch.Tensor = run_with_operands(plan, a, placed[0], read, out).c
        return result


@lru_cache(maxsize=256)
def plan_of(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], kind: str, how: Combined,
    config: Sm90Choice | None, places: ClusterOccupancy,
) -> Sm90Plan:  # fmt: skip
    """The plan of a call: M, N, K and rows of A; types of A, B and C; the indices' type."""
    m, n, k, rows = sizes
    if config is None:
        major = "K" if types[1].endswith(":col") else "MN"
        found = in_place(m, n, k, a=types[0], b_major=major, multiprocessors=places, gated=how)
        choices = [choice for choice, _ in found]
    else:
        choices = [config]
    last = None
    for choice in choices:
        try:
            return choice.plan(
                m, n, k, a=types[0], b=types[1], c=types[2], gated=how,
                indexed=IndexedRows(RowIndices(rows, kind), copy=True),
            )  # fmt: skip
        except LayoutError as error:
            last = last or error
    raise OperandError(f"no kernel of several matrices and rows by index: {last}") from last
