"""Products with scales and an epilogue of the caller's own, as `matmul` has it.

scales                    applied by
------------------------  -----------------------------------------------------------------
of blocks                 the promoted main loop
of rows, of tensors       the epilogue's first steps, `scale_a` and `scale_b`
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ...errors import OperandError
from ...kernels.epilogue.chain import MAX_WORDS, Epilogue
from ...kernels.operands.gated import HALVES
from ...kernels.run.epilogue_operands import words_of_tensors
from ...kernels.run.operand_checks import check_operands
from ...kernels.sm80.plan import Sm80Config
from ...kernels.sm90.choose.rules import whole_columns
from ...kernels.sm90.plan import Sm90Config, Sm90Plan
from .. import tuned_store
from ..checks import copied, derived_by_transform, has_tangent, needs_dispatcher, refuse_traces, seen_and_recorded
from ..compiled.kept_launches import epilogue_again_or
from ..epilogue import (
    GivenOperands,
    Tensors,
    arguments_beside,
    check_order,
    check_result,
    epilogue_product,
    finish_of,
    given_operands,
    operands_of_one,
    reduce_nothing,
    reference_of,
)
from ..launch import mark_written, workspace_on
from ..own_epilogue.formula import StepResults, steps_by_torch
from ..own_epilogue.names import OperandNames
from ..own_epilogue.recorded import derivable, recorded
from ..prepared import LaunchEpilogue, config_text, gpu, on_gpu
from ..types import GroupsPlan
from .block_factors import blocked_tables, factor_lines, format_by_recipe
from .by_mma import MmaProduct, by_mma, mma_plan
from .epilogue import epilogue_of
from .epilogue_gradients import ProductFormula, check_derivable
from .kept import launch_once
from .operators import checked_scaled, plain_config
from .recipes import SCALES, Recipes, named_recipes
from .scaled import BiasActivation, ScaledCall, check_config, chosen, derived, facts_of, gated_choice, sums, vectors_of
from .scaled import of_one as of_one_matrix


class CheckedScales(NamedTuple):
    """A product with scales and an epilogue, checked."""

    call: ScaledCall
    of: ScaledFactors
    steps: Epilogue
    operands: GivenOperands
    gate: str | None = None  # the function of a gate before the steps

    @property
    def factors(self) -> Tensors:
        """A, B and their scales, by name."""
        return self.of.tensors

    def put(self, factors: Tensors, operands: GivenOperands) -> CheckedScales:
        """The same product of other tensors."""
        return self._replace(of=self.of._replace(**factors), operands=operands)


class ScaledFactors(NamedTuple):
    """Operands with their scales."""

    a: torch.Tensor
    scale_a: torch.Tensor
    b: torch.Tensor
    scale_b: torch.Tensor | None

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All by name."""
        return {name: x for name, x in self._asdict().items() if x is not None}

    @property
    def one(self) -> bool:
        """True for a batch of one."""
        return self.a.ndim == 3 and self.a.shape[0] == 1

    @property
    def scales(self) -> dict[str, torch.Tensor]:
        """The scales by name."""
        return {name: x for name, x in self.tensors.items() if name in SCALES}


def with_epilogue(
    of: ScaledFactors, epilogue: object, given: Mapping[str, object] | None, recipes: tuple[object, object],
    finish: BiasActivation, out: torch.Tensor | None, out_dtype: torch.dtype | None, config: Sm90Config | None,
) -> torch.Tensor:  # fmt: skip
    """The product; without elements, of shape (0,), where the epilogue stores no C.

    Raises OperandError, TensorError or PlanError before anything is written, naming the operand.

    >>> from layoutgemm.kernels.epilogue.chain import RowReduce
    >>> one = torch.ones(2, 128).to(torch.float8_e4m3fn)
    >>> largest = torch.empty(2)
    >>> steps, found = Epilogue(RowReduce("max")), {"row_max": largest}
    >>> of = ScaledFactors(one, torch.tensor([[1.0], [0.5]]), one.T, None)
    >>> with_epilogue(of, steps, found, (None, None), BiasActivation(), None, torch.bfloat16, None).tolist()
    [[128.0, 128.0], [64.0, 64.0]]
    >>> largest.tolist()
    [128.0, 64.0]
    """

    def make() -> torch.Tensor:
        refuse_traces("epilogue=")
        made = checked(of, epilogue, given, recipes, finish, out, out_dtype, config)
        tensors = *of.tensors.values(), *made.operands.tensors.values()
        sees, records = seen_and_recorded(tensors, out)
        sums = ScaledFormula(made, finish.fast, config_text(config), finish.activation)
        if records:
            check_derivable(made.steps, made.call.kind, of.tensors, False)
            if derived_by_transform() or any(has_tangent(x) for x in tensors):
                return derivable(sums)
            if not sees:
                return recorded(sums)
        if not (sees or records):
            return scaled_steps(made, finish.fast, config, out)
        return copied(dispatched(made, finish.fast, sums.config, finish.activation), out)

    if finish.bias is not None:
        return make()
    tensors = {"a": of.a, "b": of.b, "scale_a": of.scale_a, "scale_b": of.scale_b}
    return epilogue_again_or(make, ("scaled_matmul", recipes, finish, out_dtype, config), tensors, epilogue, given, out)


def dispatched(made: CheckedScales, fast: bool, config: str, activation: str | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked; `config` is text."""
    lists, call = OperandNames.of(made.steps).lists(made.operands.every), made.call
    value: torch.Tensor = torch.ops.layoutgemm.scaled_epilogue_matmul(
        *made.of, *lists, made.steps.json, call.kind, *call.recipes, fast, config, activation
    )
    return value


@dataclass(frozen=True)
class ScaledFormula(ProductFormula[CheckedScales]):
    """A checked product with scales, as `own_epilogue.recorded` derives it.

    fast    whether sums of 8-bit floats stay in the tensor core
    config  of the kernel, as text
    activation  that gates, before the epilogue, or None
    """

    fast: bool
    config: str
    activation: str | None

    def launched(self) -> torch.Tensor:
        """The product by a kernel, into the operands that it has."""
        if not needs_dispatcher(*self.made.of.tensors.values(), *self.made.operands.tensors.values()):
            return scaled_steps(self.made, self.fast, plain_config(self.config))
        return dispatched(self.made, self.fast, self.config, self.activation)

    def formula(self) -> StepResults:
        """Float32 sums, and the steps by torch."""
        call, of = self.made.call, self.made.of
        config = self.config if call.recipes.by_instruction else ""
        sums = torch.ops.layoutgemm.scaled_matmul(*of, None, None, torch.float32, *call.recipes, self.fast, config)
        return steps_by_torch(self.epilogue, sums, self.every, call.kind, self.made.gate)


def scaled_steps(
    made: CheckedScales, fast: bool, config: Sm90Config | None, out: torch.Tensor | None = None
) -> torch.Tensor:
    """A checked product, computed now; without elements where the epilogue stores no C.

    fast  whether sums of 8-bit floats stay in the tensor core
    """
    with torch.no_grad():
        if not made.of.one:
            return _computed(made, fast, out, config)
        c = _computed(of_one(made), fast, None if out is None else out[0], config)
        return out if out is not None else c.unsqueeze(0) if made.steps.stores_c else c


def of_one(made: CheckedScales) -> CheckedScales:
    """The product of a batch of one as that of its matrices. Such a plan has no batch."""
    call, of = made.call, made.of
    scale_a, scale_b = of_one_matrix(of.scale_a, call.recipes.a), of_one_matrix(of.scale_b, call.recipes.b)
    assert scale_a is not None
    return made._replace(
        call=call._replace(shape=call.shape[1:]), of=ScaledFactors(of.a[0], scale_a, of.b[0], scale_b),
        operands=operands_of_one(made.steps, made.operands),
    )  # fmt: skip


def checked(
    of: ScaledFactors, epilogue: object, given: Mapping[str, object] | None, recipes: tuple[object, object],
    finish: BiasActivation, out: torch.Tensor | None, out_dtype: torch.dtype | None, config: Sm90Config | None,
) -> CheckedScales:  # fmt: skip
    """The product, its epilogue and that one's operands. Raises OperandError or TensorError, naming the operand."""
    beside = arguments_beside(finish.bias, finish.activation)
    steps, operands = given_operands(epilogue, given, beside, finish.gate is not None)
    if taken := [name for name in operands.every if name in SCALES]:
        raise OperandError(f"an operand of the epilogue is named {taken[0]}, as the scales are")
    check_config(config)
    names = named_recipes(recipes, of.scale_a, of.scale_b)
    call = checked_scaled(of.a, of.scale_a, of.b, of.scale_b, finish, out, out_dtype, *names)
    check_operands({**of.tensors, **operands.read}, {**operands.written, **({} if out is None else {"out": out})})
    check_result(steps, operands.every, call.kind, call.shape, out)
    return CheckedScales(call, of, steps, operands, finish.gate)


def _computed(
    made: CheckedScales, fast: bool, out: torch.Tensor | None, config: Sm90Config | None
) -> torch.Tensor:  # fmt: skip
    """The product of operands that have been checked."""
    call, of, epilogue, operands, gate = made
    a, b = of.a, of.b
    if 0 in call.shape:
        reduce_nothing(epilogue, operands.every)
        shape = call.shape if epilogue.stores_c else (0,)
        return torch.empty(shape, dtype=call.kind, device=a.device) if out is None else out
    if not on_gpu(a.get_device()) or 0 in a.shape:
        if on_gpu(a.get_device()):  # an empty sum is 0, and the epilogue follows
            front = a.shape[:-1]
            shapes = (*front, 16), (*b.shape[:-2], 16, b.shape[-1])
            left, right = [torch.zeros(shape, dtype=torch.bfloat16, device=a.device) for shape in shapes]
            return epilogue_product(left, right, call.kind, epilogue, operands.every, None, out, gate)
        wide = (
            sums(call.recipes, a, of.scale_a, b, of.scale_b)
            if a.shape[-1]
            else torch.zeros((*call.shape[:-1], b.shape[-1]), dtype=torch.float32)
        )
        value = reference_of(wide.float(), call.kind, epilogue, operands.every, gate=gate)
        if not epilogue.stores_c:
            return value.new_empty(0)
        return value if out is None else out.copy_(value)
    whole, every = behind_scales(call.recipes, (of.a.ndim, of.b.ndim), of.scales, epilogue, operands, gate is not None)
    if gate is None and not promotes(call, fast) and not isinstance(config, Sm80Config):
        return epilogue_product(a, b, call.kind, whole, every, config, out)
    return _own_plan(made._replace(steps=whole), fast, every, out, config)


def behind_scales(
    recipes: Recipes, ranks: tuple[int, int], scales: dict[str, torch.Tensor], epilogue: Epilogue,
    operands: GivenOperands, gated: bool = False,
) -> tuple[Epilogue, Tensors]:  # fmt: skip
    """The epilogue behind the scales that the main loop leaves, and the operands of both.

    ranks  of A and B
    gated  scales come before a gate
    """
    vectors, _ = vectors_of(recipes, dict(zip(SCALES, ranks, strict=True)), scales)
    first = epilogue_of(recipes, None, None).steps
    before = len(first) + epilogue.sums if gated else 0
    whole = Epilogue(*first, *epilogue.steps, stores_c=epilogue.stores_c, sums=before)
    return whole, {**vectors, **operands.every}


def promotes(call: ScaledCall, fast: bool) -> bool:
    """True if the main loop adds its sums to others in float32."""
    return call.recipes.in_mainloop or not fast


def own_plan(
    made: CheckedScales, fast: bool, given: Tensors, config: Sm90Config | None
) -> tuple[GroupsPlan, str, LaunchEpilogue]:
    """The plan of a promoted or gated product, why this configuration, and the epilogue's words.

    fast   whether sums stay in the tensor core
    given  the operands of the whole epilogue, scales included
    """
    call, (a, _, b, _), epilogue, _, gate = made
    index = a.get_device()
    sizes, types, groups, form = facts_of(call, a, b, fast)
    finish = finish_of(epilogue, given, call.shape)
    if form is not None or by_mma(index, config):
        of = MmaProduct(sizes, types, None, groups, finish.epilogue or None, gate, form=form)
        return *mma_plan(of, index, config), finish

    def derive(config: Sm90Config) -> Sm90Plan:
        return derived(sizes, types, groups, config, None, finish.epilogue, gate, span=call.span)

    def whole(config: Sm90Config) -> Sm90Config:
        return whole_columns(config, HALVES * epilogue.columns)

    if config is None:
        measured = tuned_store.lookup_with_parts(gpu(index)[1], sizes, types, groups, gate, epilogue)
        if (found := tuned_store.fitting(measured, derive)) is not None:
            return derive(found), tuned_store.MEASURED, finish
    if groups is not None:
        config, why = chosen(sizes, types, groups, index, config, derive, epilogue.columns, gate)
    elif config is None:
        config, why = gated_choice(sizes, types, str(gate), index, None, lambda config: derive(whole(config)))
        config = whole(config)
    else:
        why = "given by the caller"
    return derive(config), why, finish


def _own_plan(
    made: CheckedScales, fast: bool, given: Tensors, out: torch.Tensor | None, config: Sm90Config | None
) -> torch.Tensor:  # fmt: skip
    """The product by a promoted or a gated kernel, on a GPU."""
    call, of, epilogue = made.call, made.of, made.steps
    check_order(epilogue)
    a, b = of.a.resolve_neg(), of.b.resolve_neg()
    given = {name: x.resolve_neg() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
    plan, _, finish = own_plan(made, fast, given, config)
    written = [given[operand.name] for operand in epilogue.given if operand.written]
    mark_written([*written, *([] if out is None else [out])])
    partial = workspace_on(a.device, plan.partial_bytes)
    own = list(finish.words[: len(plan.epilogue.words)])
    if plan.partials:
        own[-1] = partial.data_ptr()
    tables = {name: x.resolve_neg() for name, x in of.scales.items()} if call.recipes.in_mainloop else {}
    if call.recipes.by_instruction:
        tables, _ = blocked_tables(factor_lines(a, b, format_by_recipe(a, b, call.recipes.a)), tables)
    c = out
    if c is None:  # of a C that is not stored only shape and strides are known
        c = torch.empty(call.shape, dtype=call.kind, device=a.device if epilogue.stores_c else "meta")
    launch_once(plan, a, b, c, (*own, *words_of_tensors(plan, tables, a.device))[:MAX_WORDS])
    return c if epilogue.stores_c else a.new_empty(0, dtype=call.kind)
