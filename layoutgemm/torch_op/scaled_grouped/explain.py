"""Explanations of scaled_matmul and grouped_matmul, without a GPU: see `layoutgemm.explain_matmul`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import torch

from ...dtypes import dtype, f32
from ...kernels.derive import padded_leading
from ...kernels.fp8.plan import BLOCK as BLOCK_OF_C
from ...kernels.plan import present
from ...kernels.run.epilogue_operands import indexed_rows
from ...kernels.run.operand_checks import resolved
from ...kernels.sm90.config import Sm90Config
from ...kernels.sm90.indexed.row_copy import copied_bytes
from ...kernels.sm90.plan import Sm90Plan
from ..bias_activation import gated_finish
from ..compiled.traced import named
from ..epilogue import GivenOperands, finish_of
from ..explanation import (
    ZEROS,
    Explanation,
    copied_operand,
    gated_after,
    of_plan,
    of_solution,
    partial_text,
    sums_again,
    with_steps,
)
from ..fp8.launch import AS_QUANTIZE, shapes_of, writes_in_place
from ..indexed.torch_rows import of_rows
from ..prepared import NO_FINISH, problem_at
from ..solver import solve, why_unfused
from ..types import C_NAMES
from .block_factors import copied_factors, factor_lines, format_by_recipe
from .block_scaled import BlockArguments
from .block_scaled import plan_of as block_plan
from .by_mma import scaled_by_mma
from .epilogue import SCALE_C
from .gated import why_by_torch
from .grouped import ALONG_K, BATCH, COLUMNS, ENDS, MASKED, GroupedCall, expected_config, ungated
from .grouped import epilogue_of_call as epilogue_of_groups
from .grouped import plan_of as plan_of_groups
from .grouped_epilogue import (
    GroupedFactors,
    GroupedOptions,
    checked_groups,
    grouped_launch,
    of_one_group,
    with_readable_gate,
)
from .operators import checked_grouped, checked_scaled
from .own_epilogue import ScaledFactors, behind_scales, checked, of_one, own_plan, promotes
from .recipes import SCALES, Recipes, as_vector
from .scaled import BiasActivation, ScaledCall, check_config, epilogue_for, plan_of, quantizes_in_kernel, vectors_of


def explain_scaled(
    a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None, finish: BiasActivation,
    out: torch.Tensor | None, out_dtype: torch.dtype | None, recipes: tuple[object, object], config: Any,
    out_recipe: object = None,
) -> Explanation:  # fmt: skip
    """Which kernel `scaled_matmul` takes for these tensors, why, and what it copies. Raises as that does."""
    check_config(config)
    call = checked_scaled(a, scale_a, b, scale_b, finish, out, out_dtype, *recipes, out_recipe)
    if 0 not in (*call.shape, *a.shape) and call.quantizes and not quantizes_in_kernel(call, a, finish, config):
        return _then_quantized(call, a, scale_a, b, scale_b, finish, out, config)
    return _scaled(call, a, scale_a, b, scale_b, finish, out, config)


_NO_GATE = "b: mma.sync's kernel with block scales has no gate"


def explain_block_scaled(given: BlockArguments) -> Explanation:
    """Which kernel `scaled_matmul` with block scales takes, why, and what it copies. Raises as that does."""
    call, of, _ = given.checked()
    if 0 in (*call.shape, call.k):
        return ZEROS
    no_gate = _NO_GATE if scaled_by_mma(of.a.get_device(), given.config) else ""
    if call.halves > 1 and (by_torch := no_gate or why_by_torch(of.b, factors=True)):
        every = given._replace(activation=None, bias=None, out=None, out_dtype=torch.float32)
        return gated_after(explain_block_scaled(every), by_torch, call.shape)
    plan, why = block_plan(call, of, given.activation, given.config)
    copies = copied_factors((call.lines(0), call.lines(1)), dict(zip(SCALES, call.laid(of), strict=True)))
    return of_plan(plan, of.a, of.b, given.out, f"{_applied(call.form)}; {why}", copies)


def _applied(form: str) -> str:
    """The sentence on block scales of a format."""
    return f"{form}: the instruction applies the factors"


def explain_own_epilogue(
    of: ScaledFactors, epilogue: object, given: Mapping[str, object] | None, recipes: tuple[object, object],
    finish: BiasActivation, out: torch.Tensor | None, out_dtype: torch.dtype | None, config: Any,
) -> Explanation:  # fmt: skip
    """Which kernel `scaled_matmul` with an epilogue takes, why, and what it copies. Raises as that does."""
    made = checked(of, epilogue, given, recipes, finish, out, out_dtype, config)
    if 0 in (*made.call.shape, of.a.shape[-1]):
        return ZEROS
    if of.one:
        made, out = of_one(made), None if out is None else out[0]
    call, of, steps, operands, gate = made
    gated = gate is not None
    whole, every = behind_scales(call.recipes, (of.a.ndim, of.b.ndim), of.scales, steps, operands, gated)
    vectors = {name: x for name, x in every.items() if name in of.scales}
    copies = _copied_vectors(call.recipes, of.scales, of.a.ndim, vectors)
    if gated or promotes(call, finish.fast):
        plan, why, _ = own_plan(made._replace(steps=whole), finish.fast, every, config)
        reason = "scales of rows, columns and tensors are the epilogue's, before the gate"
        if call.recipes.by_instruction:
            form = format_by_recipe(of.a, of.b, call.recipes.a)
            reason = _applied(form.name)
            copies += copied_factors(factor_lines(of.a, of.b, form), of.scales)
        elif promotes(call, finish.fast):
            reason = "scales of K blocks are the main loop's" if call.recipes.in_mainloop else "exact sums"
        partial = [(partial_text(plan.partial_bytes).rpartition(",")[0], plan.partial_bytes)] if plan.partials else []
        return _derived(of_plan(plan, of.a, of.b, out, f"{reason}; {why}", [*copies, *partial]), call, of.b, operands)
    found = with_steps(of.a, of.b, call.kind, whole, every, out, config)
    said, total = [f"{why}, {size} bytes" for why, size in copies], sum(size for _, size in copies)
    why = f"scales of rows, columns and tensors are the epilogue's; {found.why}"
    told = replace(found, why=why, copies=(*said, *found.copies), workspace=total + found.workspace)
    return _derived(told, call, of.b, operands)


def _derived(
    told: Explanation, call: ScaledCall | GroupedCall, b: torch.Tensor, operands: GivenOperands,
    products: Sequence[torch.Tensor] = (),
) -> Explanation:  # fmt: skip
    """The explanation with the backward pass, where an operand requires grad; `products`: A and B with gradients."""
    multiplied = any(x.requires_grad for x in products)
    if not (multiplied or any(x.requires_grad for x in operands.tensors.values())):
        return told
    return replace(told, backward=sums_again(prod(call.shape[:-1]) * b.shape[-1], multiplied))


def _then_quantized(
    call: ScaledCall, a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None,
    finish: BiasActivation, out: torch.Tensor | None, config: Sm90Config | None,
) -> Explanation:  # fmt: skip
    """A product in float32, which a kernel of its own quantises."""
    wide = call._replace(kind=torch.float32, quantizes=False)
    found = _scaled(wide, a, scale_a, b, scale_b, finish, None, config)
    lines = prod(call.shape[:-1])
    between = lines * padded_leading(f32, call.shape[-1]) * f32.bytes
    made = [(f"the product: float32 between two kernels, {between} bytes", between)]
    if out is not None and not writes_in_place(out, AS_QUANTIZE._replace(dtype=call.kind)):
        pitch = padded_leading(dtype(C_NAMES[call.kind]), call.shape[-1])
        beside = lines * (pitch + 4 * -(-call.shape[-1] // BLOCK_OF_C))
        made.append((f"out: strides {tuple(out.stride())}: quantised beside it, then copied, {beside} bytes", beside))
    return replace(
        found, kernel=f"{found.kernel}; then a kernel quantises it", launches=found.launches + 1,
        why=f"two kernels are estimated faster, or none does both; {found.why}",
        copies=(*found.copies, *[text for text, _ in made]), workspace=found.workspace + sum(size for _, size in made),
    )  # fmt: skip


def _scaled(
    call: ScaledCall, a: torch.Tensor, scale_a: torch.Tensor, b: torch.Tensor, scale_b: torch.Tensor | None,
    finish: BiasActivation, out: torch.Tensor | None, config: Sm90Config | None,
) -> Explanation:  # fmt: skip
    if 0 in (*call.shape, a.shape[-1]):
        return ZEROS
    scales = {"scale_a": scale_a, **named(scale_b=scale_b)}
    vectors, _ = vectors_of(call.recipes, dict.fromkeys(scales, a.ndim), scales)
    copies = _copied_vectors(call.recipes, scales, a.ndim, vectors)
    if call.recipes.in_mainloop or not finish.fast or finish.gate is not None:
        plan, why = plan_of(call, a, b, finish, config)
        reason = "exact sums"
        if call.recipes.by_instruction:
            form = format_by_recipe(a, b, call.recipes.a)
            reason = _applied(form.name)
            copies += copied_factors(factor_lines(a, b, form), scales)
        elif call.recipes.in_mainloop:
            reason = "scales of K blocks are the main loop's"
        elif finish.fast:
            reason = "scales of rows, columns and tensors are the epilogue's, before the gate"
        reason = f"{reason}; {why}"
        return of_plan(plan, a, b, out, reason, copies)
    if finish.bias is not None:
        vectors["bias"] = finish.bias
    if call.quantizes:
        shape, strides = shapes_of(call.shape, AS_QUANTIZE).scales
        vectors[SCALE_C] = torch.empty_strided(shape, strides, dtype=torch.float32, device="meta")
    made = finish_of(epilogue_for(call, finish), vectors, call.shape)
    found = solve(problem_at(a, b, call.kind, config, out, made))
    told = of_solution(found, (a.dtype, b.dtype), call.kind)
    said = tuple([f"{why}, {size} bytes" for why, size in copies])
    return replace(
        told, why=f"scales of rows, columns and tensors are the epilogue's; {told.why}", copies=said + told.copies,
        workspace=sum(size for _, size in copies) + told.workspace,
    )  # fmt: skip


def _copied_vectors(
    recipes: Recipes, scales: dict[str, torch.Tensor], rank: int, vectors: dict[str, torch.Tensor]
) -> list[tuple[str, int]]:
    """The scales that an epilogue does not read where they lie: why, and bytes."""
    found = []
    for name, vector in vectors.items():
        x = as_vector(scales[name], recipes.a if name == "scale_a" else recipes.b, rank)
        if x is not None and x.ndim == vector.ndim > 0 and vector.stride() != x.stride():
            rule = f"{name}: elements lie {x.stride(-1)} apart, and an epilogue's are contiguous"
            found.append((rule, vector.nbytes))
    return found


# -------------------------------------------------------------------------------------------------------------- grouped


def explain_grouped(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, finish: BiasActivation, out: torch.Tensor | None, out_dtype: torch.dtype | None,
    recipes: tuple[object, object], config: Any, expected_rows: int | None = None, rows: torch.Tensor | None = None,
) -> Explanation:  # fmt: skip
    """Which kernel `grouped_matmul` takes for these tensors, why, and what it copies. Raises as that does.

    rows  of A that are copied first; scale_a is that of the chosen rows
    """
    check_config(config)
    read = a if rows is None else of_rows(a, rows)
    call = checked_grouped(read, b, groups, said, scale_a, scale_b, finish, out, out_dtype, *recipes)
    if rows is not None:
        return _of_rows(call, a, b, groups, scale_a, scale_b, finish, out, config, rows)
    if expected_rows is not None:
        config = expected_config(call, a, b, expected_rows, finish)
        found = _grouped(call, a, b, groups, scale_a, scale_b, finish, out, config)
        tile = "x".join(map(str, config.tile))
        read = "counts of rows" if call.form == MASKED else "ends"
        what = f"one launch for all groups, whose {read} the kernel reads; expected_rows = {expected_rows}"
        return found if found == ZEROS else replace(found, why=f"{what}: tiles of {tile}")
    return _grouped(call, a, b, groups, scale_a, scale_b, finish, out, config)


def _grouped(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, finish: BiasActivation, out: torch.Tensor | None, config: Sm90Config | None,
    rows: torch.Tensor | None = None,
) -> Explanation:  # fmt: skip
    if call.form == COLUMNS:
        recipes = None if call.recipes is None else Recipes(call.recipes.b, call.recipes.a)
        turned = call._replace(form="rows", shape=call.shape[::-1], recipes=recipes)
        into = None if out is None else out.mT
        if call.recipes is not None:
            scale_a, scale_b = as_vector(scale_a, call.recipes.a, 3), as_vector(scale_b, call.recipes.b, 2)
        found = _grouped(turned, b.mT, a.mT, groups, scale_b, scale_a, finish, into, config)
        return replace(found, why=f"groups of columns are rows of the transposed product; {found.why}")
    if 0 in (*call.shape, a.shape[-1], call.experts) and call.form != BATCH:
        return ZEROS
    if call.form == BATCH:
        return _batches(call, a, b, scale_a, scale_b, finish, out, config)
    assert groups is not None
    copies: list[tuple[str, int]] = []
    if rows is not None and call.recipes is not None and call.recipes.by_instruction:
        a, rows = _gathered(a, rows, copies), None
    copies += _copied_beside(call, (a, b), named(scale_a=scale_a, scale_b=scale_b), groups)
    of_factors = call.recipes is not None and call.recipes.by_instruction
    if finish.gate is not None and (by_torch := why_by_torch(b, of_factors)):
        wide, plain = ungated(call, b, torch.float32), finish._replace(activation=None)
        found = _grouped(wide, a, b, groups, scale_a, scale_b, plain, None, config, rows)
        return gated_after(found, by_torch, call.shape)
    if call.in_batch_of_one:
        a, b = [x if x.ndim == 2 else x[0] for x in (a, b)]
        out = None if out is None else out[0]
    plan, why = plan_of_groups(call, a, b, groups, finish, config, call.said == ENDS, out is None, rows)
    if rows is not None and isinstance(plan, Sm90Plan):
        copies.append((f"a: {indexed_rows(plan)} chosen rows", copied_bytes(plan)))
    return of_plan(plan, a, b, out, f"{_one_launch(call.form)}; {why}", copies)


def _gathered(a: torch.Tensor, rows: torch.Tensor, copies: list[tuple[str, int]]) -> torch.Tensor:
    """A stand-in for chosen rows of A that torch gathers; the copy is noted."""
    made = torch.empty((*rows.shape, a.shape[-1]), dtype=a.dtype, device="meta")
    copies.append((f"a: torch gathers {rows.numel()} chosen rows", made.nbytes))
    return made


def _one_launch(form: str) -> str:
    """The sentence on a launch of groups of that form."""
    what = {MASKED: "counts of rows", ALONG_K: "ends along K"}.get(form, "ends")
    return f"one launch for all groups, whose {what} the kernel reads"


def _copied_beside(
    call: GroupedCall, factors: tuple[torch.Tensor, torch.Tensor], scales: dict[str, torch.Tensor], groups: torch.Tensor
) -> list[tuple[str, int]]:
    """Copies of operands beside A and B, the `factors`: why, and bytes."""
    copies: list[tuple[str, int]] = []
    if call.recipes is not None and call.recipes.by_instruction:
        copies += copied_factors(call.lines(*factors), scales)
    if call.recipes is not None and not call.recipes.in_mainloop:
        of = {"scale_a": factors[0].ndim, "scale_b": factors[1].ndim}
        vectors, _ = vectors_of(call.recipes, of, scales)
        for name, rank in of.items():
            one = {name: vectors[name]} if name in vectors else {}
            copies += _copied_vectors(call.recipes, scales, rank, one)
    if not groups.is_contiguous():
        rule = f"{call.said}: stride {groups.stride(0)}, and the kernel reads stride 1"
        copies.append((rule, groups.nbytes))
    return copies


def explain_grouped_epilogue(
    of: GroupedFactors, asked: GroupedOptions, epilogue: object, given: Mapping[str, object] | None
) -> Explanation:
    """Which kernel `grouped_matmul` with an epilogue takes, why, and what it copies. Raises as that does."""
    made = checked_groups(of, epilogue, given, asked)
    if 0 in (*made.call.shape, made.call.experts, *made.of.a.shape):
        return ZEROS
    gathered: list[tuple[str, int]] = []
    if made.of.rows is not None and made.call.recipes is not None and made.call.recipes.by_instruction:
        chosen = _gathered(made.of.a, made.of.rows, gathered)
        made = made._replace(of=made.of._replace(a=chosen, rows=None))
    one = of_one_group(made)
    call, of = one.call, one.of
    assert of.groups is not None
    copies = gathered + _copied_beside(call, (of.a, of.b), of.scales, of.groups)
    further = of.matrices[1:]
    out = asked.out if asked.out is None or made.call.shape == call.shape else asked.out[0]
    one = with_readable_gate(one)
    if one.of.b is not of.b:
        copies.append(("b: a gate's kernel reads contiguous columns; copied column-major", of.b.nbytes))
        of = one.of
    found = grouped_launch(one, out is None and one.steps.stores_c)
    plan = found.plan
    a = of.a
    copies += [copy for i, x in enumerate(further, 1) for copy in copied_operand(plan, "B", resolved(x), f"b[{i}]")]
    if of.rows is not None:
        a = a.expand(*of.b.shape[:-2], *a.shape[-2:]) if of.rows.ndim == 2 else a
        if isinstance(plan, Sm90Plan):
            copies.append((f"a: {indexed_rows(plan)} chosen rows", copied_bytes(plan)))
        if of.scale_a is not None and of.scale_a.shape[:1] == of.rows.shape:
            copies.append((f"scale_a: torch gathers {of.rows.shape[0]} chosen rows", of.scale_a.nbytes))
    if plan.partials:
        copies.append((partial_text(plan.partial_bytes).rpartition(",")[0], plan.partial_bytes))
    why = found.why
    if asked.expected_rows is not None:
        why = f"expected_rows = {asked.expected_rows}: tiles of {'x'.join(map(str, present(plan.config.tile)))}"
    told = of_plan(plan, a, of.b, out, f"{_one_launch(call.form)}; {why}", copies)
    products = (made.of.a, made.of.b) if made.of.scale_a is None else ()
    return _derived(told, made.call, of.b, made.operands, products)


def _of_rows(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, finish: BiasActivation, out: torch.Tensor | None, config: Sm90Config | None,
    rows: torch.Tensor,
) -> Explanation:  # fmt: skip
    """The same with rows of A by index, which are copied first."""
    found = _grouped(call, a, b, groups, scale_a, scale_b, finish, out, config, rows)
    if found == ZEROS or scale_a is None or scale_a.shape[:1] != rows.shape:
        return found
    of_scales = f"scale_a: torch gathers {rows.shape[0]} chosen rows, {scale_a.nbytes} bytes"
    return replace(found, copies=(*found.copies, of_scales), workspace=found.workspace + scale_a.nbytes)


def _batches(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None,
    finish: BiasActivation, out: torch.Tensor | None, config: Sm90Config | None,
) -> Explanation:  # fmt: skip
    """Groups of as many rows each: a batch."""
    if call.recipes is not None and scale_a is not None:
        scaled = ScaledCall(call.recipes, call.kind, call.shape, span=call.span)
        found = _scaled(scaled, a, scale_a, b, scale_b, finish, out, config)
    elif 0 in (*call.shape, a.shape[-1]):
        return ZEROS
    else:
        made = NO_FINISH
        if finish.gate is not None:
            made = gated_finish(str(finish.activation))
            unfused = "bias: of all columns before the gate" if finish.bias is not None else ""
            if unfused := unfused or why_unfused(problem_at(a, b, call.kind, config, out, made)):
                wide = ungated(call, b, torch.float32)
                found = _batches(wide, a, b, None, None, finish._replace(activation=None), None, config)
                return gated_after(found, unfused, call.shape)
        elif finish.bias is not None or finish.activation is not None:
            given = {} if finish.bias is None else {"bias": finish.bias}
            made = finish_of(epilogue_of_groups(call, finish), given, call.shape)
        solution = solve(problem_at(a, b, call.kind, config, out, made))
        found = of_solution(solution, (a.dtype, b.dtype), call.kind)
    return found
