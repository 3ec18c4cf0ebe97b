"""A grouped product of a function of a's elements, checked and computed now. A Hopper kernel does it, or the CPU.

    groups     a             along M          along K
    -------    ----------    -------------    ------------------------
    of rows    (rows, K)     (rows,)          (K,), or (groups, K)
    masked     (E, M, K)     (E, M)           (E, K)
    of K       (M, K)        (M,), (E, M)     (K,)

Rows and columns are counted in a; those of masked groups in each of its matrices.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch

from ...errors import LayoutError, OperandError
from ...kernels.operands.prologue import Prologue
from ...kernels.ragged import AlongK, Ragged, masked_rows
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm90.choose.prologue import plan_with_prologue
from ...kernels.sm90.config import Sm90Config
from .. import tuned_store
from ..checks import autocast
from ..compiled.traced import named
from ..prepared import gpu, on_gpu, start
from ..problem import bias_epilogue
from ..scaled_grouped.by_mma import MmaProduct, by_mma, mma_plan
from ..scaled_grouped.grouped import (
    ALONG_K,
    BATCH,
    ENDS,
    INTS,
    MASKED,
    ROWS,
    GroupedCall,
    group_of_lines,
    group_of_rows,
    grouped_product,
)
from ..scaled_grouped.operators import checked_grouped
from ..scaled_grouped.scaled import BiasActivation, line
from ..types import C_NAMES, NAMES, GroupsPlan
from .product import check_gate, check_names, check_type, check_vectors, function_of, launched, order_for

_WITHOUT = "of groups of rows, of masked ones and of K"


class GroupedPrologue(NamedTuple):
    """activation(prologue(a) @ b + bias) in groups; `given`: the prologue's operands by name."""

    call: GroupedCall
    a: torch.Tensor
    b: torch.Tensor
    groups: torch.Tensor
    prologue: Prologue
    given: Mapping[str, torch.Tensor]
    finish: BiasActivation

    @property
    def tensors(self) -> tuple[torch.Tensor | None, ...]:
        """The tensors that it reads."""
        return self.a, self.b, self.groups, self.finish.bias, *self.given.values()

    @property
    def joined(self) -> bool:
        """True if the rows of all groups are those of one matrix."""
        return self.call.form == ROWS


def checked_groups(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str, prologue: Prologue,
    given: Mapping[str, torch.Tensor], finish: BiasActivation, out: torch.Tensor | None, out_dtype: object,
) -> GroupedPrologue:  # fmt: skip
    """The product of a call. Raises OperandError or TensorError for operands that do not fit."""
    check_names(prologue, given, finish.bias is not None)
    name = parameter(said)
    if name in prologue.names:
        raise OperandError(f"an operand of the prologue is named {name}, as the groups are: name it otherwise")
    check_operands({"a": a, "b": b, **named(**{said: groups}), **given, **named(bias=finish.bias)}, named(out=out))
    check_gate(finish.activation)
    a, b = autocast(a, b)
    call = checked_grouped(a, b, groups, said, None, None, finish, out, out_dtype, "", "")
    if call.form not in (ROWS, MASKED, ALONG_K):
        what = "a batch, which matmul(prologue=) takes" if call.form == BATCH else f"groups of {call.form}"
        raise OperandError(f"prologue: {_WITHOUT}, and these are {what}")
    check_type(a)
    assert groups is not None
    *front, m, k = a.shape
    shapes = {"m": [[*front, m]], "k": [[*front, k]]}
    if (each := {ROWS: "k", ALONG_K: "m"}.get(call.form)) is not None:  # one for all groups, or one for each
        shapes[each].append([call.experts, *shapes[each][0]])
    check_vectors(prologue, given, shapes)
    return GroupedPrologue(call, a, b, groups, prologue, given, finish)


def parameter(said: str) -> str:
    """The kernel's name of the groups that an argument says."""
    return "ends" if said == ENDS else said


def function_of_groups(product: GroupedPrologue) -> torch.Tensor:
    """f(A) by torch, as `function_of` has it. A row is computed with its group's vectors."""
    given = dict(product.given)
    for operand in product.prologue.operands:
        value = given[operand.name]
        if product.joined and operand.axis == "k" and value.ndim > 1:
            given[operand.name] = value[group_of_rows(product.call, product.groups)]
        if product.call.form == ALONG_K and operand.axis == "m" and value.ndim > 1:
            given[operand.name] = value[group_of_lines(product.call, product.groups, product.a.shape[-1])].mT
    return function_of(product.a, product.prologue, given)


def computed_groups(
    product: GroupedPrologue, config: Sm90Config | None = None, out: torch.Tensor | None = None,
    expected_rows: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """A checked product, computed now; no derivative is recorded. Raises OperandError for a GPU without such kernels.

    expected_rows  of masked groups, for which tiles are chosen

    >>> twice = Prologue.of(lambda x, i, k, ops, s: x * s, s="k")
    >>> a, b, s = torch.ones(2, 2).half(), torch.ones(2, 2, 1).half(), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> ends = torch.tensor([1, 2])
    >>> made = checked_groups(a, b, ends, "offs", twice, {"s": s}, BiasActivation(), None, None)
    >>> computed_groups(made).tolist()
    [[3.0], [7.0]]
    """
    with torch.no_grad():
        call, finish = product.call, product.finish
        given = {name: x.resolve_neg() for name, x in product.given.items()}
        product = product._replace(a=product.a.resolve_neg(), b=product.b.resolve_neg(), given=given)
        if 0 in (*call.shape, call.experts, *product.a.shape) or not on_gpu(product.a.get_device()):
            x = product.a if 0 in product.a.shape else function_of_groups(product)
            return grouped_product(call, x, product.b, product.groups, None, None, finish, config, out)
        if call.form == ALONG_K and by_mma(product.a.get_device(), config):  # no kernel has both
            x = function_of_groups(product)
            return grouped_product(call, x, product.b, product.groups, None, None, finish, config, out)
        return _launched(product, config, out, expected_rows)


def _launched(
    product: GroupedPrologue, config: Sm90Config | None, out: torch.Tensor | None, expected_rows: int | None
) -> torch.Tensor:
    """One launch on the current stream of the operands' device."""
    plan, _ = plan_of_groups(product, config, out is None, expected_rows)
    _, a, b, groups, _, given, finish = product
    bias = None if finish.bias is None else line(finish.bias)
    one = not product.joined and product.call.experts == 1
    return launched(plan, a, b, given, {parameter(product.call.said): groups.contiguous()}, bias, out, one)


def plan_of_groups(
    product: GroupedPrologue, config: Sm90Config | None, clears: bool, expected_rows: int | None = None
) -> tuple[GroupsPlan, str]:
    """The plan that a product's kernel is compiled from, and why. That of an H200 for CPU tensors.

    clears  rows in no group become zeros
    """
    call, a, b = product.call, product.a, product.b
    bias = product.finish.bias
    pairs = b.shape[-1] % 2 == 0 and (bias is None or (bias.ndim == 1 and start(bias) == 16))
    of_bias = None if bias is None else C_NAMES[bias.dtype]
    nothing = of_bias is None and product.finish.activation is None
    epilogue = None if nothing else bias_epilogue(of_bias, product.finish.activation, pairs)
    ends, masked, offsets = call.said == ENDS, call.form == MASKED, INTS[product.groups.dtype]
    ragged: Ragged | AlongK = Ragged.of(call.experts, offsets, masked, ends, ends and clears)
    names = f"{NAMES[a.dtype]}:{_order_of_rows(a)}", f"{NAMES[b.dtype]}:{order_for(b, 'col')}", C_NAMES[call.kind]
    sizes = a.shape[-2], b.shape[-1], a.shape[-1], call.experts
    places = gpu(a.get_device())[0].multiprocessors
    if call.form == ALONG_K:
        names = f"{NAMES[a.dtype]}:col", f"{NAMES[b.dtype]}:row", names[2]
        ragged = AlongK.of(call.experts, offsets, ends)
    if by_mma(a.get_device(), config):
        ragged = replace(ragged, clears=False) if isinstance(ragged, Ragged) else ragged
        of = MmaProduct(sizes, names, ragged, None, epilogue, prologue=product.prologue, rows=expected_rows or 0)
        return mma_plan(of, a.get_device(), config)
    rows = -(-sizes[0] // sizes[3])
    if masked:
        rows = masked_rows(sizes[0]) if expected_rows is None else min(expected_rows, sizes[0])
    derive = partial(plan_with_prologue, sizes, names, product.prologue, epilogue)
    if config is None and expected_rows is None:
        of_parts = product.prologue, call.form, epilogue
        measured = tuned_store.lookup_with_parts(gpu(a.get_device())[1], sizes, names, *of_parts)
        if measured is not None:
            with suppress(LayoutError):  # a result that does not fit is passed over
                return derive(measured.config, places, ragged, rows), tuned_store.MEASURED
    plan = derive(config, places, ragged, rows)
    if config is not None:
        return plan, "config= is the caller's"
    if call.form == ALONG_K:
        lines = -(-sizes[2] // sizes[3])
        return plan, f"{lines} of K a group on average: {plan.tile_c} tiles take least time (an estimate)"
    said = "taken to be" if masked else "on average"
    return plan, f"{rows} rows a group {said}: {plan.tile_c} tiles take least time (an estimate)"


def _order_of_rows(a: torch.Tensor) -> str:
    """The order of A, whose groups begin at any row: contiguous rows, unless each group has a matrix."""
    return "row" if a.ndim == 2 else order_for(a, "row")
