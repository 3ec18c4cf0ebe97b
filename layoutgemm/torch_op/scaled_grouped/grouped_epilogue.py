"""Grouped products and an epilogue of the caller's own, as `matmul` has it.

What an operand of the epilogue may be, by the form of the groups:

    groups                result          along M               along N                            matrices
    ------------------    ------------    ------------------    -------------------------------    -----------------
    of rows               (rows, N)       (rows,)               (N,), or (groups, N)               (rows, N)
    masked, of K, none    (groups, M, N)  (M,), (groups, M)     (N,), or (groups, N)               C's, or (M, N)

What is written has the larger of two shapes: columns of groups of rows are reduced to (groups, N). An `Amax` is of all
groups. Of an empty group a reduction's results are those of no element.

Rows of no group are behind the last of `offs`, or those beyond a count. No step writes there, and no reduction takes
them: the caller's operands keep what they have, as `out` does. In a new C the first kind are zeros.

Rows and columns are counted in C, those of masked groups and of K in each of its matrices.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import torch

from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import MAX_WORDS, Epilogue
from ...kernels.indexed.row_copy import COPIED
from ...kernels.indexed.rows import check_inside
from ...kernels.operands.combined import Combined
from ...kernels.operands.product import distance_of
from ...kernels.plan import WORKSPACE
from ...kernels.run.epilogue_operands import rows_memory, words_of_tensors
from ...kernels.run.operand_checks import addressed, check_operands
from ...kernels.verbs import named as verbs_of
from ..checks import (
    autocast,
    copied,
    derived_by_transform,
    has_tangent,
    needs_dispatcher,
    refuse_traces,
    seen_and_recorded,
)
from ..compiled.guards import MAX_READY
from ..compiled.kept_launches import epilogue_again_or
from ..compiled.traced import named
from ..epilogue import (
    GivenOperands,
    Groups,
    Tensors,
    arguments_beside,
    check_order,
    check_result,
    epilogue_product,
    finish_of,
    gate_of,
    given_operands,
    nothing_of,
    operands_of_one,
    readable_gate,
    reference_of,
)
from ..indexed.grouped_rows import Options, checked_rows
from ..indexed.torch_rows import gathered, known_indices, of_rows
from ..launch import mark_written, note_workspace, workspace_on
from ..operands.several import check_alike, combined_sums
from ..own_epilogue.formula import RowGroups, StepResults, steps_by_torch
from ..own_epilogue.names import OperandNames
from ..own_epilogue.recorded import derivable, recorded
from ..prepared import LaunchEpilogue, config_text, on_gpu
from ..types import GroupsConfig, GroupsPlan
from .block_factors import blocked_tables
from .by_mma import batch_config, by_mma
from .epilogue import why_unfinished
from .epilogue_gradients import ProductFormula, check_derivable
from .grouped import (
    BATCH,
    COLUMNS,
    COUNTS,
    ENDS,
    INTS,
    MASKED,
    OFFSETS,
    ROWS,
    GroupedCall,
    check_expected,
    expected_config,
    group_sums,
    groups_of,
    in_groups,
    plan_of,
)
from .kept import PLANS, launch_once
from .operators import checked_grouped, differentiable
from .own_epilogue import CheckedScales, ScaledFactors, behind_scales, scaled_steps
from .recipes import Recipes, fast_accum, named_recipes
from .scaled import NO_FINISH, BiasActivation, ScaledCall, check_config, of_one

_OF_ROWS = ("rows", "a_rows", COPIED)


class FurtherMatrices(NamedTuple):
    """Matrices B of each group behind the first, and the function of all products.

    numbers  of the function, by name
    """

    b: list[torch.Tensor]
    how: Combined
    numbers: Mapping[str, float]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The matrices by the names of the kernel's parameters."""
        return {f"b{i}": x for i, x in enumerate(self.b, 1)}

    @property
    def words(self) -> list[str]:
        """Names of the kernel's parameters, without those of the numbers."""
        return [word for name in self.tensors for word in (name, f"ld{name}", distance_of(name))]


class GroupedFactors(NamedTuple):
    """Operands in groups, with the scales of both.

    further  matrices that are multiplied beside b, whose function is the product; or None
    groups  offsets, ends or counts, as `said` names them
    rows    of a that are read, each the next of the product's; scale_a is that of the product's rows. Of masked groups
            (groups, M), rows of each group's matrix, or of one for all
    """

    a: torch.Tensor
    b: torch.Tensor
    groups: torch.Tensor | None
    said: str
    scale_a: torch.Tensor | None = None
    scale_b: torch.Tensor | None = None
    rows: torch.Tensor | None = None
    further: FurtherMatrices | None = None

    @property
    def matrices(self) -> list[torch.Tensor]:
        """The matrices B that are multiplied."""
        return [self.b, *(self.further.b if self.further is not None else [])]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """All by name."""
        return {
            "a": self.a, "b": self.b, **(self.further.tensors if self.further is not None else {}),
            **named(**{self.said: self.groups}, scale_a=self.scale_a, scale_b=self.scale_b, rows=self.rows),
        }  # fmt: skip

    @property
    def scales(self) -> dict[str, torch.Tensor]:
        """The scales by name."""
        return named(scale_a=self.scale_a, scale_b=self.scale_b)

    @property
    def counted_rows(self) -> list[torch.Tensor]:
        """The row indices that count, on the CPU. They are of all groups, or of each masked one."""
        assert self.rows is not None
        if self.rows.ndim == 1:
            return [self.rows]
        assert self.groups is not None
        return [lines[:count] for lines, count in zip(self.rows, self.groups.tolist(), strict=True)]

    def gathered(self) -> GroupedFactors:
        """The same with the chosen rows as a matrix, or as one for each group."""
        if self.rows is None:
            return self
        if self.rows.ndim == 1:
            return self._replace(a=gathered(self.a, self.rows), rows=None)
        each = self.a.expand(self.b.shape[0], *self.a.shape[-2:])
        return self._replace(a=torch.stack([gathered(x, i) for x, i in zip(each, self.rows, strict=True)]), rows=None)

    def of_matrices(self, a: torch.Tensor, b: Sequence[torch.Tensor]) -> GroupedFactors:
        """The same of other matrices."""
        further = None if self.further is None else self.further._replace(b=list(b[1:]))
        return self._replace(a=a, b=b[0], further=further)

    @property
    def words(self) -> tuple[str, ...]:
        """Names of a kernel's parameters that an operand of the epilogue cannot have."""
        groups = {ENDS: "ends"}.get(self.said, self.said)
        further = [] if self.further is None else self.further.words
        return (groups, *self.scales, *_OF_ROWS * (self.rows is not None), *further)


class CheckedGroups(NamedTuple):
    """A grouped product with an epilogue, checked.

    call      the product, and `of` its operands
    steps     the epilogue, and `operands` those of it
    config    of the kernel, or None for the usual
    fast      whether sums of 8-bit floats stay in the tensor core
    activation  that gates, before the epilogue, or None
    """

    call: GroupedCall
    of: GroupedFactors
    steps: Epilogue
    operands: GivenOperands
    config: GroupsConfig | None
    fast: bool
    activation: str | None = None

    @property
    def gate(self) -> str | None:
        """The function of the gate, or None."""
        return gate_of(self.activation)

    def check_derivable(self) -> None:
        """Raise TensorError or OperandError, naming it, for what has no derivative where one is recorded."""
        constants = {name: x for name, x in self.of.tensors.items() if self.of.scale_a is not None or x.itemsize == 1}
        check_derivable(self.steps, self.call.kind, constants, self.call.form == ROWS)

    @property
    def factors(self) -> Tensors:
        """A, B, groups, scales and row indices, by name."""
        return self.of.tensors

    def put(self, factors: Tensors, operands: GivenOperands) -> CheckedGroups:
        """The same product of other tensors."""
        names = ("a", "b", *(self.of.further.tensors if self.of.further is not None else ()))
        a, *b = [factors[name] for name in names]
        rest = {"groups" if name == self.of.said else name: x for name, x in factors.items() if name not in names}
        return self._replace(of=self.of.of_matrices(a, b)._replace(**rest), operands=operands)

    @property
    def joined(self) -> int:
        """The groups that share the rows of one C; 0 where each has a matrix."""
        return self.call.experts if self.call.form == ROWS else 0


class GroupedOptions(NamedTuple):
    """The options of a call.

    finish         bias and activation, which an epilogue stands for unless that gates, and `use_fast_accum`
    recipes        as the caller names them
    expected_rows  of a group, for which the configuration is chosen
    """

    finish: BiasActivation = NO_FINISH
    recipes: tuple[object, object] = (None, None)
    out: torch.Tensor | None = None
    out_dtype: torch.dtype | None = None
    config: GroupsConfig | None = None
    expected_rows: int | None = None


def grouped_call(
    a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor | None, options: Options
) -> tuple[GroupedFactors, GroupedOptions]:
    """The operands and options of a call, whose other arguments are `options`, by name.

    Raises OperandError or TensorError for row indices beside which there is no epilogue, and for groups said twice.
    """
    if text := refusal_beside(rows is not None, options):
        raise OperandError(text)
    groups, said = groups_of(options.get("offsets"), options.get("offs"), options.get("counts"))
    scale_a = options["scale_a"]
    if rows is not None and options.get("counts") is not None:
        check_operands({"a": a, "b": b, "rows": rows})
        _check_masked_rows(a, b, rows)
    elif rows is not None:
        groups, said, scale_a = checked_rows(a, rows, options)
    said_groups = [x for x in map(options.get, (OFFSETS, ENDS, COUNTS)) if x is not None]
    check_expected(options.get("expected_rows"), said_groups or None, options["config"])
    finish = BiasActivation(options["bias"], options["activation"], fast_accum(options["use_fast_accum"]))
    asked = GroupedOptions(
        finish, (options["recipe_a"], options["recipe_b"]), options["out"], options["out_dtype"], options["config"],
        options.get("expected_rows"),
    )  # fmt: skip
    return GroupedFactors(a, b, groups, said, scale_a, options["scale_b"], rows), asked


def refusal_beside(by_index: bool, options: Options) -> str:
    """Why an epilogue of groups does not go with arguments of row indices, or "". torch.compile traces it.

    by_index  whether rows= is given
    """
    masked = by_index and options.get("counts") is not None
    for name in ("out_rows", "row_weights", "scale_a", "scale_b") if masked else ():
        if options.get(name) is not None:
            return f"{name}: masked groups of rows by index take none"
    if masked and options.get("copy_rows") is False:
        return "copy_rows: False, and rows of masked groups are copied first"
    for name in ("out_rows", "row_weights", "copy_rows") if not by_index else ():
        if options.get(name) is not None:
            return f"{name} and epilogue: a grouped product with an epilogue takes rows= alone"
    return ""


def _check_masked_rows(a: torch.Tensor, b: torch.Tensor, rows: torch.Tensor) -> None:
    """Raise OperandError or TensorError for row indices that are not those of masked groups."""
    if b.ndim != 3 or a.ndim not in (2, 3) or (a.ndim == 3 and a.shape[0] != b.shape[0]):
        shapes = f"{list(a.shape)} and {list(b.shape)}"
        raise TensorError(f"a and b have shapes {shapes}: (groups, rows, K), or (rows, K) for all, and (groups, K, N)")
    if rows.dtype not in INTS or rows.ndim != 2 or rows.shape[0] != b.shape[0]:
        of = f"{rows.dtype} of shape {list(rows.shape)}"
        raise OperandError(f"rows is {of}: int32 or int64 of [{b.shape[0]}, M], rows of each group's product")


def grouped_with_epilogue(
    of: GroupedFactors, asked: GroupedOptions, epilogue: object, given: Mapping[str, object] | None
) -> torch.Tensor:
    """The product; without elements, of shape (0,), where the epilogue stores no C.

    Raises OperandError, TensorError or PlanError before anything is written, naming the operand.

    >>> from layoutgemm.kernels.epilogue.chain import ColumnReduce
    >>> a, b, ends = torch.ones(4, 2).bfloat16(), torch.ones(2, 2, 3).bfloat16(), torch.tensor([1, 3])
    >>> sums = torch.empty(2, 3)
    >>> steps, found = Epilogue(ColumnReduce("sum", "sums")), {"sums": sums}
    >>> grouped_with_epilogue(GroupedFactors(a, b, ends, "offs"), GroupedOptions(), steps, found).tolist()
    [[2.0, 2.0, 2.0], [2.0, 2.0, 2.0], [2.0, 2.0, 2.0], [0.0, 0.0, 0.0]]
    >>> sums.tolist()
    [[2.0, 2.0, 2.0], [4.0, 4.0, 4.0]]
    """

    def make() -> torch.Tensor:
        refuse_traces("epilogue=")
        made = checked_groups(of, epilogue, given, asked)
        out, tensors = asked.out, [*made.of.tensors.values(), *made.operands.tensors.values()]
        sees, records = seen_and_recorded(tensors, out)
        if records:
            made.check_derivable()
            if derived_by_transform() or any(has_tangent(x) for x in tensors):
                return derivable(GroupedFormula(made))
            if not sees:
                return recorded(GroupedFormula(made))
        return _dispatched(made, out) if sees or records else grouped_steps(made, out)

    if asked.finish.bias is not None or of.groups is None:
        return make()
    groups, further = {"ends" if of.said == ENDS else of.said: of.groups}, of.further
    tensors = {
        "a": of.a, "b": of.b, **(further.tensors if further is not None else {}), **groups, "scale_a": of.scale_a,
        "scale_b": of.scale_b, "rows": of.rows,
    }  # fmt: skip
    how, numbers = (None, {}) if further is None else (further.how, further.numbers)
    options = "grouped_matmul", asked._replace(out=None), how
    return epilogue_again_or(make, options, tensors, epilogue, given, asked.out, numbers)


def _dispatched(made: CheckedGroups, out: torch.Tensor | None) -> torch.Tensor:
    """The product that torch's dispatcher sees, of operands that have been checked."""
    of, call = made.of, made.call
    lists = OperandNames.of(made.steps).lists(made.operands.every)
    recipes, further = call.recipes or Recipes("", ""), of.further
    read, written, numbers, wholes = lists
    function = ""
    if further is not None:
        read, function = [*read, *further.b], further.how.json
        numbers = [*numbers, *[further.numbers[name] for name in further.how.numbers]]
    value: torch.Tensor = torch.ops.layoutgemm.grouped_epilogue_matmul(
        of.a, of.b, of.groups, of.scale_a, of.scale_b, of.rows, read, written, numbers, wholes, made.steps.json,
        of.said, call.kind, *recipes, made.fast, config_text(made.config), made.activation, function,
    )  # fmt: skip
    return in_place_of_rows(value, out, call.said if call.leaves_rows else "", of.groups)


def in_place_of_rows(
    value: torch.Tensor, out: torch.Tensor | None, said: str, groups: torch.Tensor | None
) -> torch.Tensor:
    """The result, or `out` with its rows that are in a group. `said`: the argument that leaves rows out, or ""."""
    if out is not None and said and groups is not None:
        value = torch.where(in_groups(value.shape, said, groups), value, out)
    return copied(value, out)


class GroupedFormula(ProductFormula[CheckedGroups]):
    """A checked product in groups, as `own_epilogue.recorded` derives it."""

    @property
    def held(self) -> tuple[str, ...]:
        """Written operands that keep a part of what they have. All, where rows are in no group."""
        return self.epilogue.writes if self.made.call.leaves_rows else super().held

    def launched(self) -> torch.Tensor:
        """The product by a kernel, into the operands that it has."""
        if needs_dispatcher(*self.made.of.tensors.values(), *self.made.operands.tensors.values()):
            return _dispatched(self.made, None)
        return grouped_steps(self.made)

    def formula(self) -> StepResults:
        """Float32 sums with derivatives, and the steps by torch, group by group."""
        made, call, of = self.made, self.made.call, self.made.of.gathered()
        if of.scale_a is None:
            products = [differentiable(of.a, b, of.groups, of.said, torch.float32) for b in of.matrices]
            sums = together(of, products)
        else:
            assert call.recipes is not None
            sums = torch.ops.layoutgemm.grouped_matmul(
                of.a, of.b, of.groups, of.said, of.scale_a, of.scale_b, torch.float32, *call.recipes,
                config_text(made.config) if call.recipes.by_instruction else "", None, None, made.fast,
            )  # fmt: skip
        rows = self._rows()
        found = steps_by_torch(self.epilogue, sums, self.every, call.kind, made.gate, rows=rows)
        if rows is None or rows.inside is None:
            return found
        return found._replace(c=torch.where(rows.inside, found.c, 0))

    def _rows(self) -> RowGroups | None:
        """The groups of the result's rows; None where all rows of each matrix are in one."""
        call, of = self.made.call, self.made.of
        groups = of.groups
        if groups is None or call.form not in (ROWS, MASKED):
            return None
        if call.form == MASKED:
            return RowGroups(in_groups(call.shape, call.said, groups), None, 0)
        ends = groups if of.said == ENDS else groups[1:]
        rows = torch.arange(call.shape[0], device=ends.device)
        group = torch.searchsorted(ends.long(), rows, right=True)
        inside = (group < call.experts).unsqueeze(-1) if call.leaves_rows else None
        return RowGroups(inside, group, call.experts)


def grouped_steps(made: CheckedGroups, out: torch.Tensor | None = None) -> torch.Tensor:
    """A checked product, computed now; without elements where the epilogue stores no C."""
    with torch.no_grad():
        return _batch(made, out) if made.call.form == BATCH else _computed(made, out)


def checked_groups(
    of: GroupedFactors, epilogue: object, given: Mapping[str, object] | None, asked: GroupedOptions
) -> CheckedGroups:
    """The product, its epilogue and that one's operands. Raises OperandError or TensorError, naming the operand."""
    finish, out = asked.finish, asked.out
    beside = arguments_beside(finish.bias, finish.activation)
    steps, operands = given_operands(epilogue, given, beside, finish.gate is not None)
    if taken := [name for name in operands.every if name in of.words]:
        raise OperandError(f"an operand of the epilogue is named {taken[0]}, as one of the product is")
    if of.further is not None:
        _check_names_of_numbers(of, of.further, operands)
        if finish.gate is not None:
            raise OperandError("activation and combine: the function of the products has the gate")
    check_config(asked.config)
    check_operands({**of.tensors, **operands.read}, {**operands.written, **named(out=out)})
    matrices = [autocast(of.a, x)[1] for x in of.matrices]
    a, b = autocast(of.a, of.b)
    check_alike(matrices)
    of, finish = of.of_matrices(a, matrices), finish._replace(bias=None)
    if of.rows is not None and of.said == COUNTS:
        _check_masked_rows(a, b, of.rows)
    if of.rows is not None and of.rows.numel() and not a.shape[-2]:
        raise OperandError(f"a has no rows, and rows has {of.rows.numel()} indices")
    read = a if of.rows is None else of_rows(a, of.rows)
    names = named_recipes(asked.recipes, of.scale_a, of.scale_b)
    scales = of.scale_a, of.scale_b
    call = checked_grouped(read, b, of.groups, of.said, *scales, finish, out, asked.out_dtype, *names)
    if call.form == COLUMNS:
        raise OperandError(why_unfinished("columns", "epilogue"))
    if of.further is not None and call.form not in (ROWS, MASKED):
        what = "no groups: matmul(combine=) takes a batch" if of.groups is None else f"groups of {call.form}"
        raise OperandError(f"combine: of groups of rows and of masked ones, and these are {what}")
    if of.rows is not None and of.rows.device.type == "cpu" and addressed(of.rows):
        for lines in of.counted_rows:
            if (found := known_indices(lines)) is not None:
                check_inside("rows", found, a.shape[-2], "a")
    made = CheckedGroups(call, of, steps, operands, asked.config, finish.fast, finish.activation)
    check_result(steps, operands.every, call.kind, call.shape, out, made.joined)
    if asked.expected_rows is not None:
        sums = None if of.further is None else of.further.how
        made = made._replace(config=expected_config(call, read, b, asked.expected_rows, finish, sums))
    return made


def _check_names_of_numbers(of: GroupedFactors, further: FurtherMatrices, operands: GivenOperands) -> None:
    """Raise OperandError for a number of the function that is named as another operand."""
    taken = {"bias", "a", "b", "c", "rows", "a_rows", WORKSPACE, *of.words, *operands.every}
    for name in further.numbers:
        if name in taken:
            raise OperandError(
                f"a number of the function is named {name}, as another operand of the kernel: name it otherwise"
            )


def together(of: GroupedFactors, sums: Sequence[torch.Tensor]) -> torch.Tensor:
    """One matrix of the products with each B. It is the function of them, or the only one."""
    return sums[0] if of.further is None else combined_sums(of.further.how, sums, of.further.numbers)


def _batch(made: CheckedGroups, out: torch.Tensor | None) -> torch.Tensor:
    """Groups of as many rows each: the batch that `matmul` and `scaled_matmul` take."""
    of, call, config = made.of, made.call, batch_config(made.config)
    if of.scale_a is None:
        return epilogue_product(of.a, of.b, call.kind, made.steps, made.operands.every, config, out, made.gate)
    assert call.recipes is not None
    inner = ScaledCall(call.recipes, call.kind, call.shape, span=call.span)
    one = CheckedScales(inner, scaled_factors(of), made.steps, made.operands, made.gate)
    return scaled_steps(one, made.fast, config, out)


def scaled_factors(of: GroupedFactors) -> ScaledFactors:
    """The operands of a batch with scales."""
    assert of.scale_a is not None
    return ScaledFactors(of.a, of.scale_a, of.b, of.scale_b)


def _computed(made: CheckedGroups, out: torch.Tensor | None) -> torch.Tensor:
    """The product of operands that have been checked."""
    call, of, device = made.call, made.of, made.of.a.device
    if 0 in (*call.shape, call.experts):
        _reduce_nothing(made)
        if not made.steps.stores_c:
            return torch.empty(0, dtype=call.kind, device=device)
        return torch.zeros(call.shape, dtype=call.kind, device=device) if out is None else out
    index, of_batch = of.a.get_device(), of.rows is not None and of.rows.ndim == 2
    apart = call.recipes is not None and call.recipes.by_instruction  # no kernel reads such rows by index
    apart = apart or 0 in of.a.shape or not on_gpu(index) or (of_batch and by_mma(index, made.config))
    if of.rows is not None and apart:
        made = made._replace(of=of.gathered())
    if not on_gpu(of.a.get_device()):
        return _on_cpu(made, out)
    made = with_readable_gate(without_zeros(made))
    c = _launched(of_one_group(made), out if out is None or not call.in_batch_of_one else out[0], out is None)
    if out is not None or not made.steps.stores_c:
        return c if out is None else out
    return c.unsqueeze(0) if call.in_batch_of_one else c


def _reduce_nothing(made: CheckedGroups) -> None:
    """The reductions of a C without elements, where they have places: the results of no element at all."""
    call, groups = made.call, made.of.groups
    inside = None
    if call.leaves_rows and groups is not None:
        inside = in_groups(call.shape, call.said, groups).squeeze(-1)
    for step in made.steps.reductions:
        if not step.ordered or step.each is not None:
            continue
        for operand, value in zip(step.given, nothing_of(step, made.of.a.device), strict=True):
            target, numbers = made.operands.every[operand.name], value
            if inside is not None and operand.axes == "m":
                numbers = torch.where(inside.unsqueeze(-1) if operand.count > 1 else inside, numbers, target)
            target.copy_(numbers)


# ----------------------------------------------------------------------------------------------------------- on the CPU


def _on_cpu(made: CheckedGroups, out: torch.Tensor | None) -> torch.Tensor:
    """Each group's sums in float64, then the steps on all of them in float32."""
    call, of, steps = made.call, made.of, made.steps
    assert of.groups is not None
    wide = torch.zeros((*call.shape[:-1], of.b.shape[-1]), dtype=torch.float32)
    of_each = [group_sums(call, of.a, b, of.groups, of.scale_a, of.scale_b) for b in of.matrices]
    for products in zip(*of_each, strict=True):
        wide[products[0][1]] = together(of, [sums.double() for *_, sums in products]).float()
    numbers = of.groups.tolist()
    groups: Groups = None
    if call.form == MASKED:
        groups = numbers
    elif call.form == ROWS:
        groups = list(pairwise(numbers if call.said == OFFSETS else [0, *numbers]))
    value = reference_of(wide, call.kind, steps, made.operands.every, groups, made.gate)
    if not steps.stores_c:
        return value.new_empty(0)
    if out is None and not call.leaves_rows:
        return value
    into = torch.zeros(call.shape, dtype=call.kind) if out is None else out
    if not call.leaves_rows:
        return into.copy_(value)
    return into.copy_(torch.where(in_groups(call.shape, call.said, of.groups), value, into))


# ------------------------------------------------------------------------------------------------------------- launches


def without_zeros(made: CheckedGroups) -> CheckedGroups:
    """The same product with a K of at least 1. An empty sum is 0, and the epilogue follows."""
    of = made.of
    if of.a.shape[-1]:
        return made
    a = torch.zeros(*of.a.shape[:-1], 16, dtype=torch.bfloat16, device=of.a.device)
    b = torch.zeros(*of.b.shape[:-2], 16, of.b.shape[-1], dtype=torch.bfloat16, device=of.a.device)
    of = of.of_matrices(a, [b] * len(of.matrices))._replace(scale_a=None, scale_b=None)
    return made._replace(of=of, call=made.call._replace(recipes=None))


def with_readable_gate(made: CheckedGroups) -> CheckedGroups:
    """The same product with the weights of a gate as its kernel reads them."""
    return made if made.gate is None else made._replace(of=made.of._replace(b=readable_gate(made.of.b)))


def of_one_group(made: CheckedGroups) -> CheckedGroups:
    """One masked group, or one along K, as a product of matrices. All others as they are."""
    call, of = made.call, made.of
    if not call.in_batch_of_one:
        return made
    recipes = call.recipes or Recipes("", "")
    scales = [of_one(x, name) for x, name in zip((of.scale_a, of.scale_b), recipes, strict=True)]
    a, *b = [x if x.ndim == 2 else x[0] for x in (of.a, *of.matrices)]
    rows = of.rows if of.rows is None else of.rows[0]
    return made._replace(
        call=call._replace(shape=call.shape[1:]), operands=operands_of_one(made.steps, made.operands),
        of=of.of_matrices(a, b)._replace(scale_a=scales[0], scale_b=scales[1], rows=rows),
    )  # fmt: skip


class GroupedLaunch(NamedTuple):
    """One launch.

    plan, why  and the reason for its configuration
    finish     the epilogue's words
    operands   whose addresses these are: they live until the launch
    tables     what else is read, by name
    """

    plan: GroupsPlan
    why: str
    finish: LaunchEpilogue
    operands: Tensors
    tables: dict[str, torch.Tensor]


def grouped_launch(made: CheckedGroups, clears: bool) -> GroupedLaunch:
    """The launch of a product on a GPU.

    clears  rows of no group become zeros
    """
    call, of = made.call, made.of
    assert of.groups is not None
    whole, every, tables = made.steps, dict(made.operands.every), of.scales
    if call.recipes is not None and not call.recipes.in_mainloop:
        ranks, gated = (of.a.ndim, of.b.ndim), made.gate is not None
        whole, every = behind_scales(call.recipes, ranks, of.scales, made.steps, made.operands, gated)
        tables = {}
    if call.recipes is not None and call.recipes.by_instruction:
        lines = call.lines(of.a, of.b)
        tables, _ = blocked_tables(lines, tables, call.places(lines, of.groups))
    every = {name: x.resolve_neg() if isinstance(x, torch.Tensor) else x for name, x in every.items()}
    finish = finish_of(whole, every, call.shape, made.joined > 0)
    numbers = of.groups.contiguous()
    plan, why = _plan(made, numbers, clears, finish.epilogue)
    assert plan.groups is not None
    named_rows = {} if of.rows is None else {"rows": of.rows.contiguous().view(-1)}
    return GroupedLaunch(plan, why, finish, every, {**named_rows, plan.groups.name: numbers, **tables})


def _plan(
    made: CheckedGroups, numbers: torch.Tensor, clears: bool, epilogue: Epilogue | None
) -> tuple[GroupsPlan, str]:
    """The plan of a product, and why this configuration: kept for the next call of its shapes, types and steps."""
    call, of = made.call, made.of
    facts = of.a.shape, of.a.dtype, of.b.stride(-2) == 1 and of.b.stride(-1) != 1, of.b.dtype, of.a.get_device()
    rows = None if of.rows is None else of.rows.dtype
    how = None if of.further is None else of.further.how
    key = (call, *facts, numbers.dtype, rows, made.fast, made.config, clears, epilogue, made.activation, how)
    found = PLANS.get(key)
    if found is None:
        if len(PLANS) >= MAX_READY:
            PLANS.clear()
        finish, ends = NO_FINISH._replace(fast=made.fast, activation=made.activation), call.said == ENDS
        found = plan_of(call, of.a, of.b, numbers, finish, made.config, ends, clears, of.rows, epilogue, how)
        PLANS[key] = found
    return found


def _launched(made: CheckedGroups, out: torch.Tensor | None, new: bool) -> torch.Tensor:
    """The product by its kernel; without elements where no C is stored."""
    call, of, steps = made.call, made.of, made.steps
    check_order(steps)
    a, *matrices = [x.resolve_neg() for x in (of.a, *of.matrices)]
    b = matrices[0]
    if of.rows is not None and of.rows.ndim == 2:
        a = a.expand(b.shape[0], *a.shape[-2:])
    scales = {name: x.resolve_neg() for name, x in of.scales.items()}
    of = of.of_matrices(a, matrices)._replace(**scales)
    made = made._replace(of=of)
    found = grouped_launch(made, new and steps.stores_c)
    plan = found.plan
    mark_written([*made.operands.written.values(), *([] if out is None else [out])])
    partial, memory = workspace_on(a.device, plan.partial_bytes), rows_memory(plan, a.device)
    note_workspace(memory)
    own = list(found.finish.words[: len(plan.epilogue.words)])
    if plan.partials:
        own[-1] = partial.data_ptr()
    further, numbers = ({}, {}) if of.further is None else (of.further.tensors, of.further.numbers)
    placed = {name: verbs_of(plan.operand_path).lines(plan, name, further[name], [], True) for name in plan.further}
    others = words_of_tensors(plan, {**found.tables, **further, **numbers}, a.device, placed, memory)
    c = out
    if not steps.stores_c:  # only its shape and strides are known
        c = torch.empty(call.shape, dtype=call.kind, device="meta")
    value = launch_once(plan, a, b, c, (*own, *others)[:MAX_WORDS])
    return value if steps.stores_c else a.new_empty(0, dtype=call.kind)
