"""grouped_matmul(a, (b0, b1), combine=). A function of the products with several matrices, checked and computed now.

    groups     a                         each b                result
    -------    ----------------------    ------------------    ------------------
    of rows    (rows, K)                 (groups, K, N)        (rows, N)
    masked     (groups, M, K)            (groups, K, N)        (groups, M, N)

By one Hopper kernel, or in float64 on the CPU, rounded once. Bias and activation come behind the function.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from ...errors import OperandError
from ...kernels.epilogue.chain import MAX_WORDS, Epilogue
from ...kernels.indexed.rows import check_inside
from ...kernels.operands.combined import Combine, Combined
from ...kernels.operands.product import distance_of
from ...kernels.plan import WORKSPACE, present
from ...kernels.run.epilogue_operands import rows_memory, words_of_tensors
from ...kernels.run.operand_checks import check_operands
from ...kernels.verbs import named as verbs_of
from ..bias_activation import GATES
from ..checks import autocast
from ..compiled.traced import named
from ..epilogue import finish_of
from ..indexed.grouped_rows import check_row_indices
from ..indexed.torch_rows import gathered, known_indices, of_rows
from ..launch import mark_written, note_workspace
from ..prepared import NO_FINISH, LaunchEpilogue, on_gpu
from ..scaled_grouped.grouped import (
    COUNTS,
    ENDS,
    MASKED,
    ROWS,
    GroupedCall,
    epilogue_of_call,
    expected_config,
    finished_group,
    group_sums,
    plan_of,
)
from ..scaled_grouped.kept import launch_once
from ..scaled_grouped.operators import checked_grouped
from ..scaled_grouped.recipes import SCALES
from ..scaled_grouped.scaled import BiasActivation, line
from ..types import GroupsConfig, GroupsPlan
from .several import check_alike, combined_sums, function_and_numbers


class GroupedCombined(NamedTuple):
    """activation(combine(a @ b[0], a @ b[1], ...) + bias) in groups.

    rows    of a that are read, each the next of the product's; or None
    scales  of blocks: those of a's rows as they are read, and those of all b, one behind the other; or ()
    """

    call: GroupedCall
    a: torch.Tensor
    b: list[torch.Tensor]
    groups: torch.Tensor
    how: Combined
    numbers: Mapping[str, float]
    finish: BiasActivation
    rows: torch.Tensor | None = None
    scales: tuple[torch.Tensor, ...] = ()

    @property
    def tensors(self) -> list[torch.Tensor]:
        """The tensors that it reads, in the order of `of`."""
        return [self.a, *self.b, self.groups, *[x for x in (self.rows, self.finish.bias) if x is not None]]

    def of(self, tensors: Sequence[torch.Tensor]) -> GroupedCombined:
        """The same product of other tensors."""
        a, *rest = tensors
        b, (groups, *more) = rest[: len(self.b)], rest[len(self.b) :]
        rows = None if self.rows is None else more.pop(0)
        bias = None if self.finish.bias is None else more.pop(0)
        return self._replace(a=a, b=list(b), groups=groups, rows=rows, finish=self.finish._replace(bias=bias))

    def chosen(self) -> GroupedCombined:
        """The same with A's chosen rows as a matrix."""
        return self if self.rows is None else self._replace(a=gathered(self.a, self.rows), rows=None)


def checked_groups(
    a: torch.Tensor, b: Sequence[torch.Tensor], groups: torch.Tensor | None, said: str, combine: Combine,
    given: Mapping[str, object] | None, finish: BiasActivation, rows: torch.Tensor | None, out: torch.Tensor | None,
    out_dtype: object,
) -> GroupedCombined:  # fmt: skip
    """The product of a call. Raises OperandError or TensorError for operands that do not fit."""
    how, numbers = function_and_numbers(b, combine, given)
    if isinstance(finish.activation, str) and finish.activation in GATES:
        raise OperandError("activation and combine: the function of the products has the gate")
    matrices = {f"b[{i}]": x for i, x in enumerate(b)}
    read = {"a": a, **matrices, **named(**{said: groups}, rows=rows, bias=finish.bias)}
    check_operands(read, named(out=out))
    check_numbers(numbers, said, len(b))
    b = [autocast(a, x)[1] for x in b]
    a, first = autocast(a, b[0])
    check_alike([first, *b[1:]])
    if rows is not None:
        _check_rows(a, rows, said)
    call = checked_grouped(
        a if rows is None else of_rows(a, rows), first, groups, said, None, None, finish, out, out_dtype, "", ""
    )
    if call.form not in (ROWS, MASKED):
        what = "no groups: matmul(combine=) takes a batch" if groups is None else f"groups of {call.form}"
        raise OperandError(f"combine: of groups of rows and of masked ones, and these are {what}")
    assert groups is not None
    return GroupedCombined(call, a, list(b), groups, how, numbers, finish, rows)


def check_numbers(numbers: Mapping[str, float], said: str, matrices: int) -> None:
    """Raise OperandError for a number with the name of another kernel parameter."""
    further = [word for i in range(1, matrices) for word in (f"b{i}", f"ldb{i}", distance_of(f"b{i}"))]
    taken = {"bias", "rows", "a_rows", "a", "b", "c", WORKSPACE, "ends" if said == ENDS else said, *further}
    for name in numbers:
        if name in taken:
            raise OperandError(
                f"a number of the function is named {name}, as the kernel's own operand: name it otherwise"
            )


def _check_rows(a: torch.Tensor, rows: torch.Tensor, said: str) -> None:
    if said == COUNTS:
        raise OperandError("rows and counts with combine: rows of masked groups by index are of one matrix b each")
    check_row_indices(rows.dtype, rows.ndim, a.ndim)
    if (found := known_indices(rows)) is not None:
        check_inside("rows", found, a.shape[0], "a")


def computed_groups(
    product: GroupedCombined, config: GroupsConfig | None = None, out: torch.Tensor | None = None,
    expected_rows: int | None = None,
) -> torch.Tensor:  # fmt: skip
    """A checked product, computed now; no derivative is recorded. Raises OperandError for a GPU without such kernels.

    >>> a, b, ends = torch.ones(3, 2).half(), torch.ones(2, 2, 1).half(), torch.tensor([1, 2])
    >>> both = lambda p, q, ops, s: p + s * q
    >>> nothing = BiasActivation(), None, None, None
    >>> made = checked_groups(a, (b, 2 * b), ends, "offs", both, {"s": 10}, *nothing)
    >>> computed_groups(made).tolist()
    [[42.0], [42.0], [0.0]]
    """
    with torch.no_grad():
        product = product.of([x.resolve_neg() for x in product.tensors])
        call, a = product.call, product.a
        if 0 in (*call.shape, call.experts):
            return torch.zeros(call.shape, dtype=call.kind, device=a.device) if out is None else out
        if not on_gpu(a.get_device()):
            return _by_reference(product.chosen(), out)
        if 0 in a.shape:  # empty sums are 0, and the function of them follows
            rows = call.shape[:-1] if product.rows is None or a.shape[0] == 0 else a.shape[:-1]
            zeros = [a.new_zeros(*rows, 16), *[b.new_zeros(b.shape[0], 16, b.shape[-1]) for b in product.b]]
            product = product.of([*zeros, *product.tensors[len(zeros) :]])
        own = out[0] if out is not None and call.in_batch_of_one else out
        c = _launched(_of_one(product), config, own, expected_rows)
        return out if out is not None else c.unsqueeze(0) if call.in_batch_of_one else c


def _by_reference(product: GroupedCombined, out: torch.Tensor | None) -> torch.Tensor:
    """Each group in float64; `out` keeps its rows of no group."""
    call = product.call
    c = torch.zeros(call.shape, dtype=call.kind) if out is None else out
    of_a, of_b = product.scales or (None, None)
    each = [None] * len(product.b) if of_b is None else of_b.chunk(len(product.b), -2)
    sums = [group_sums(call, product.a, b, product.groups, of_a, scale) for b, scale in zip(product.b, each)]
    for parts in zip(*sums, strict=True):
        e, part, _ = parts[0]
        value = combined_sums(product.how, [wide.double() for *_, wide in parts], product.numbers)
        c[part] = finished_group(call, value, product.finish, e)
    return c


# --------------------------------------------------------------------------------------------------------- on a GPU


def _of_one(product: GroupedCombined) -> GroupedCombined:
    """One masked group as a product of matrices; all others as they are."""
    call, bias = product.call, product.finish.bias
    if not call.in_batch_of_one:
        return product
    bias = bias[0] if bias is not None and bias.ndim > 1 else bias
    return product._replace(
        call=call._replace(shape=call.shape[1:]), a=product.a[0], b=[x[0] for x in product.b],
        finish=product.finish._replace(bias=bias), scales=tuple([x[0] for x in product.scales]),
    )  # fmt: skip


def _finish(product: GroupedCombined) -> LaunchEpilogue:
    """Bias and activation as a kernel takes them."""
    steps, bias = epilogue_of_call(product.call, product.finish), product.finish.bias
    given = {} if bias is None else {"bias": line(bias)}
    return finish_of(steps, given, product.call.shape, product.call.form == ROWS) if steps else NO_FINISH


def plan_of_groups(
    product: GroupedCombined, config: GroupsConfig | None, clears: bool, expected_rows: int | None = None
) -> tuple[GroupsPlan, str]:
    """The plan that a product's kernel is compiled from, and why. That of an H200 for CPU tensors.

    clears         rows in no group become zeros
    expected_rows  of a group, for which tiles are chosen
    """
    product = _of_one(product)
    call, a, b, how = product.call, product.a, product.b[0], product.how
    why = ""
    if config is None and expected_rows is not None:
        config = expected_config(call, a, b, expected_rows, product.finish, how)
        why = f"expected_rows = {expected_rows}: tiles of {'x'.join(map(str, present(config.tile)))}"
    steps, ends = _finish(product).epilogue or Epilogue(), call.said == ENDS
    plan, chosen = plan_of(call, a, b, product.groups, product.finish, config, ends, clears, product.rows, steps, how)
    return plan, why or chosen


def _launched(
    product: GroupedCombined, config: GroupsConfig | None, out: torch.Tensor | None, expected_rows: int | None
) -> torch.Tensor:
    """One launch on the current stream of the operands' device."""
    if product.finish.bias is not None:  # a copy lives until the launch
        product = product._replace(finish=product.finish._replace(bias=line(product.finish.bias)))
    plan, _ = plan_of_groups(product, config, out is None, expected_rows)
    a, (first, *others), device = product.a, product.b, product.a.device
    further = {f"b{i}": x for i, x in enumerate(others, 1)}
    placed = {name: verbs_of(plan.operand_path).lines(plan, name, further[name], [], True) for name in plan.further}
    memory = rows_memory(plan, device)
    note_workspace(memory)
    own = _finish(product).words[: len(plan.epilogue.words)]
    assert plan.groups is not None
    rows = {} if product.rows is None else {"rows": product.rows.contiguous()}
    tables = dict(zip(SCALES, product.scales))
    given = {**further, **tables, **product.numbers, plan.groups.name: product.groups.contiguous(), **rows}
    words = words_of_tensors(plan, given, device, placed, memory)
    mark_written([] if out is None else [out])
    return launch_once(plan, a, first, out, (*own, *words)[:MAX_WORDS])
