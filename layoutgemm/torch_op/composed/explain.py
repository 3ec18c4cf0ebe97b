"""The kernel, copies and workspace of a composed product, in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from math import prod

import torch

from ...kernels.indexed.rows import ROWS
from ...kernels.operands.pair import SecondPair
from ...kernels.orders import clusters_of_plan, described_order, schedule_of
from ...kernels.run.epilogue_operands import indexed_rows
from ...kernels.sm90.explain import described_triangles
from ...kernels.sm90.indexed.row_copy import copied_bytes
from ...kernels.sm90.plan import Sm90Plan
from ...kernels.sm100.plan import Sm100Plan
from ..epilogue import finish_of, readable_gate
from ..explanation import ZEROS, Explanation, of_plan, partial_text, sums_again
from ..launch import plan_of
from ..operands.pairs import finish_of_pairs, placed_pairs
from ..prepared import NO_FINISH, Config, problem_at
from ..prologue.rows import chosen_text
from ..solver import solve
from .api import ComposedOptions, Operands, operands_of, refusal_of_kinds, refuse_or_raise, with_rows_chosen
from .checks import ComposedCall, checked, epilogue_of, in_order
from .parts import OWN, AskedParts, parts_of_text, parts_text
from .plans import ready_plan
from .product import ways_of_call, with_function_applied


def explain_composed(
    a: Operands, b: Operands, asked: AskedParts, own: Mapping[str, torch.Tensor | None],
    given: Mapping[str, object] | None, options: ComposedOptions, through: tuple[str, ...] = (),
) -> Explanation:  # fmt: skip
    """Which kernel the product takes, why, and what it copies; raises as `composed_product` does.

    >>> x, nothing = torch.empty(4096, 4096).bfloat16(), ComposedOptions(None, None, None, None)
    >>> explain_composed(x, x.mT, AskedParts("lower"), {}, None, nothing).why
    '528 of 1024 tiles, 51.6% of the grid'
    """
    refuse_or_raise(refusal_of_kinds(asked, given))
    there = {name: x for name in OWN if (x := own.get(name)) is not None}
    of_parts, chosen = dict(given or {}), []
    if asked.prologue is not None and ROWS in there:
        of_parts, through, rows = in_order(of_parts, through, there[ROWS]), (), there.pop(ROWS)
        a, asked, of_parts = with_rows_chosen(a, asked, rows, of_parts)
        chosen = [chosen_text(a if isinstance(a, torch.Tensor) else a[0])]
    left, right = operands_of(a, b, asked.combine is not None)
    values = {**there, **of_parts}
    parts = parts_of_text(parts_text(asked, len(right) // len(left), tuple(there), tuple(of_parts)))
    call = checked(left, right, parts, values, options.out, options.out_dtype, True, through)
    if call.plain_pairs:
        return _of_pairs(call, options.config)
    if 0 in call.shape:
        return ZEROS
    steps = epilogue_of(call)
    finish = None if steps is None else finish_of(steps, {x.name: values[x.name] for x in steps.given}, call.shape)
    call = call.as_rows
    epilogue = None if finish is None else finish.epilogue
    ways = ways_of_call(call, options.config, epilogue)
    copies = [f"{text}, {size} bytes" for text, size in chosen]
    if ways is not None and ways.apart:
        call = with_function_applied(call)
        copies.append(f"a: torch computes its function first, in float32; {ways.memory} bytes")
    ready = ready_plan(call, options.config, epilogue)
    plan = ready.plan
    if isinstance(plan, Sm100Plan):
        of_tcgen05 = "parts of one tcgen05 kernel, which was asked for"
        return of_plan(plan, *_of_one(call, plan), options.out, of_tcgen05, chosen)
    if not isinstance(plan, Sm90Plan):
        why = "the mma.sync kernel" if ways is None else f"the mma.sync kernel; {ways}"
        more = ways.memory if ways is not None and ways.apart else 0
        return Explanation(str(plan), why, 1, tuple(copies), plan.partial_bytes + more + sum(n for _, n in chosen))
    why = "parts of one kernel" if parts.order is None else _described(plan)
    if parts.promotes is not None:
        why = ("scales of K blocks are the main loop's; " if parts.promotes else "exact sums; ") + why
    if parts.triangles is not None:
        why = described_triangles(plan) if parts.order is None else f"{why}; {described_triangles(plan)}"
    why = why if ready.why is None else f"{why}; {ready.why}"
    told = of_plan(plan, *_of_one(call, plan), options.out, why, chosen)
    if bytes_ := copied_bytes(plan):  # in the workspace, by the same launch
        told = replace(told, copies=(f"a: {indexed_rows(plan)} chosen rows, {bytes_} bytes", *told.copies))
    if any(x.requires_grad for x in call.tensors) and not parts.linear:
        told = replace(told, backward=sums_again(prod(call.shape[:-1]) * sum(x.shape[-1] for x in call.b)))
    if plan.partial_bytes:
        told = replace(told, copies=(*told.copies, partial_text(plan.partial_bytes)))
    return replace(told, workspace=told.workspace + plan.workspace)


def _described(plan: Sm90Plan) -> str:
    return described_order(schedule_of(plan), clusters_of_plan(plan))


def _of_one(call: ComposedCall, plan: Sm90Plan | Sm100Plan) -> tuple[torch.Tensor, torch.Tensor]:
    """A and B as the plan reads them: of a batch of one, matrices."""
    a, b = call.a[0], call.b[0]
    if call.parts.gate is not None and b.stride(-2) != 1:
        b = readable_gate(b.to("meta"))
    return (a[0], b[0]) if a.ndim > 2 and plan.batch == 1 else (a, b)


def _of_pairs(call: ComposedCall, config: Config | None) -> Explanation:
    """Two pairs, whose copies are those of each matrix."""
    left, right = call.a, call.b
    if 0 in (*left[0].shape, *right[0].shape, *left[1].shape):
        return Explanation("one product, or none", "a size is 0", 0, (), 0)
    rows, columns, copied = placed_pairs(left, right)
    found = solve(problem_at(rows[0], columns[0], call.kind, config, None, finish_of_pairs(rows, columns, NO_FINISH)))
    made = [x for x, y in zip((*rows, *columns), (*left, *right)) if x.data_ptr() != y.data_ptr()]
    memory = sum(x.untyped_storage().nbytes() for x in made)
    plan = replace(plan_of(found), pair=SecondPair(rows[1].shape[1]))
    return Explanation(str(plan), found.why, 1, tuple(copied), memory)
