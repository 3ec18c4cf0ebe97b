"""Rows by index of an A with a prologue. Torch copies them first, and the vector of a number for each row with them.

    f(A)[rows] = f(A[rows]), of a function that does not read the number of its row

An index outside of A reads zeros on a GPU, of which the function is computed, and is refused on the CPU.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ...arguments import shown
from ...errors import OperandError
from ...graph_marks import constant_in_graphs
from ...kernels.indexed.rows import check_inside
from ...kernels.operands.prologue import Prologue, check_chosen
from ...kernels.run.operand_checks import check_operands
from ..compiled.traced import CHECKS, check_kinds, refusal, refuse
from ..indexed.torch_rows import gathered, known_indices, selected
from ..scaled_grouped.grouped import INTS
from ..types import of_mask
from .operators import prologue_of

Tensors = Mapping[str, torch.Tensor]


def of_chosen_rows(
    a: torch.Tensor, rows: torch.Tensor, prologue: Prologue, given: Tensors, copy_rows: object
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """A's chosen rows, and the prologue's operands for them.

    copy_rows  as the caller has it

    Raises OperandError for a function that reads its row's number, rows of another type, and copy_rows=False.

    >>> scaled = Prologue.of(lambda x, i, k, ops, s: x * s, s="m")
    >>> a, s = torch.eye(2).half(), torch.tensor([3.0, 4.0])
    >>> [x.tolist() for x in of_chosen_rows(a, torch.tensor([1]), scaled, {"s": s}, None)[1].values()]
    [[4.0]]
    """
    traced = torch.compiler.is_dynamo_compiling()
    if traced:
        check_kinds({"a": a, "rows": rows, **given}, {})
        refuse(refusal("prologue rows", prologue.json, rows.dtype, rows.ndim, a.ndim, copy_rows))
    else:
        check_operands({"a": a, "rows": rows, **given})
        _check(prologue.json, rows.dtype, rows.ndim, a.ndim, copy_rows)
        if (known := known_indices(rows)) is not None:
            check_inside("rows", known, a.shape[0], "a")
    found = dict(given)
    for name in _of_rows(prologue.json):
        if name not in given:
            continue  # the product names it
        if given[name].ndim != 1 or given[name].shape[0] != a.shape[0]:
            text = f"{name} has shape {list(given[name].shape)}: [{a.shape[0]}], one for each row of a, not of rows"
            if traced:
                refuse(text)
            raise OperandError(text)
        found[name] = selected(given[name], rows)
    return gathered(a, rows), found


def chosen_text(a: torch.Tensor) -> tuple[str, int]:
    """An explanation's text of A's chosen rows, and their bytes."""
    return f"a: torch copies {a.shape[0]} chosen rows", a.nbytes


@constant_in_graphs
def _of_rows(text: str) -> tuple[str, ...]:
    """The names of a prologue's operands of a number for each row."""
    return tuple([operand.name for operand in prologue_of(text).operands if operand.axis == "m"])


def _check(text: str, kind: torch.dtype, rank: int, rank_of_a: int, copy_rows: object) -> None:
    if copy_rows is not None and copy_rows is not True:
        raise OperandError(f"copy_rows = {shown(copy_rows)}: rows of an a with a prologue are copied first")
    if kind not in INTS or rank != 1 or rank_of_a != 2:
        raise OperandError(
            f"rows is {kind} of {rank} dimensions, and a has {rank_of_a}: with a prologue they are int32 or int64, a "
            f"vector, of a matrix{of_mask('rows', kind)}"
        )
    check_chosen(prologue_of(text))


CHECKS["prologue rows"] = _check
