"""Grouped products of operands of any kind. They are checked, then computed by a kernel, or on the CPU in float64.

    a             b             groups         result       group e                                  on a GPU
    ------------  ------------  -------------  -----------  ---------------------------------------  ------------------
    (rows, K)     (E, K, N)     of rows        (rows, N)    C[g] = A[g] @ B[e]                       the grouped kernel
    (E, M, K)     (K, columns)  of columns     (M, columns) C[:, g] = A[e] @ B[:, g]                 its transpose
    (M, K)        (K, N)        of K           (E, M, N)    C[e] = A[:, g] @ B[g]                    the kernel along K
    (E, M, K)     (E, K, N)     none           (E, M, N)    C[e] = A[e] @ B[e]                       matmul
    (E, rows, K)  (E, K, N)     counts         (E, rows, N) C[e, :count] = A[e, :count] @ B[e]       the grouped kernel

Rows or columns that are in no group, from the last of `offs` on, are zeros in a new result and stay in the caller's
`out`, on each path. The kernel writes these zeros, or leaves them. Masked rows that do not count are never written: a
new result has anything there. `offsets` and groups along K leave nothing out, so an empty group's C is zeros.

Rows, and masked ones, may be gated: see `gated`. The derivatives of the first three forms are among them: with dC in
place of C, dA = dC @ B^T and dB = A^T @ dC. The result of the second form is column-major, as the transpose of the
first form's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from math import lcm
from typing import NamedTuple

import torch

from ...arguments import as_int
from ...dtypes import dtype
from ...errors import OperandError, TensorError
from ...kernels.epilogue.chain import Epilogue
from ...kernels.epilogue.grouped_matrix import Part
from ...kernels.indexed.rows import IndexedRows, RowIndices
from ...kernels.operands.combined import LINE, Combined
from ...kernels.operands.gated import HALVES
from ...kernels.operands.promoted import DEPTH
from ...kernels.plan import present
from ...kernels.ragged import AlongK, Ragged, check_multiples, masked_rows
from ...kernels.run.operand_checks import addressed
from ...kernels.sm90.choose.rules import whole_columns
from ...kernels.sm90.choose.scaled_grouped import (
    along_k_config,
    k_blocks_config,
    usual_config,
)
from ...kernels.sm90.plan import Sm90Config, Sm90Plan
from .. import tuned_store
from ..bias_activation import by_torch
from ..checks import check_activation, check_alike, stored_as
from ..compiled.traced import named
from ..compute import gated_product, product
from ..epilogue import epilogue_product
from ..indexed.torch_rows import gathered
from ..prepared import gpu, on_gpu
from ..reference import exact, rounded
from ..types import C_NAMES, NAMES, GroupsConfig, GroupsPlan, listed
from .block_factors import (
    ELEMENTS,
    Lines,
    blocked_tables,
    depth_of_b,
    elements_of_k,
    factor_lines,
    format_by_recipe,
    format_of,
    has_factors,
    places_in_chunks,
)
from .by_mma import MmaProduct, batch_config, by_mma, mma_plan
from .epilogue import epilogue_of, why_unfinished
from .gated import why_by_torch
from .kept import NOT_KEPT, KeptKey, find, launch
from .recipes import SQUARE, Recipes, ScaledOperand, as_vector, recipes_of
from .scaled import (
    FP8,
    NO_FINISH,
    BiasActivation,
    ScaledCall,
    beside,
    check_addresses,
    check_bias,
    checked_factors,
    derived,
    finished_by_torch,
    line,
    of_group,
    of_one,
    scaled_product,
    span_of,
    sums,
    tuned_name,
    vectors_of,
)

ROWS, COLUMNS, ALONG_K, BATCH, MASKED = "rows", "columns", "K", "batch", "masked"
INTS = {torch.int32: "i32", torch.int64: "i64"}  # types of groups and of row indices
_KEPT_AS = {ROWS: "groups", MASKED: "masked groups", ALONG_K: "groups along K"}  # names of what was measured
_JOINED = {ROWS: "a", COLUMNS: "b"}  # operands whose rows, or columns, lie in groups
_FORMS = {(2, 3): ROWS, (3, 2): COLUMNS, (2, 2): ALONG_K}
MASKED_GROUPS = "masked groups"
OFFSETS, ENDS, COUNTS = "offsets", "offs", "counts"  # the arguments that say which groups there are
# That tiles are chosen by:
_RECORDS = "groups_{,uneven_,turned_,halved_,dealt_}h200.json"


class GroupedCall(NamedTuple):
    """A checked grouped product.

    form     which of the table's
    said     the argument that says the groups, or ""
    experts  how many groups
    recipes  of the scales, or None
    kind     the result's type, and its `shape`
    span     K blocks whose scales may come together: see `span_of`
    """

    form: str
    said: str
    experts: int
    recipes: Recipes | None
    kind: torch.dtype
    shape: tuple[int, ...]
    span: int = 1

    @property
    def leaves_rows(self) -> bool:
        """True if there may be rows or columns in no group, which are not written."""
        return self.said in (ENDS, COUNTS) and self.form != ALONG_K

    def lines(self, a: torch.Tensor, b: torch.Tensor) -> Lines:
        """The places of block scales, of operands as they are multiplied."""
        recipes = present(self.recipes)
        return factor_lines(a, b, format_by_recipe(a, b, recipes.a), _JOINED.get(self.form, ""), self.experts)

    def places(self, lines: Lines, groups: torch.Tensor) -> torch.Tensor | None:
        """The place of each row, or column, of groups among block scales. None of a batch's."""
        joined = next((line for line in lines if line.groups), None)
        if joined is None:
            return None
        return places_in_chunks(joined.shape[-2], groups[1:] if self.said == OFFSETS else groups, joined.rows)

    @property
    def in_batch_of_one(self) -> bool:
        """True for one group with its own matrix C. Its plan has no batch."""
        return self.form != ROWS and self.experts == 1 and len(self.shape) == 3


# --------------------------------------------------------------------------------------------------------------- checks


def groups_of(
    offsets: torch.Tensor | None, offs: torch.Tensor | None, counts: torch.Tensor | None
) -> tuple[torch.Tensor | None, str]:
    """The groups, and the argument that says them. Raises OperandError for two."""
    given = [(x, said) for x, said in ((offsets, OFFSETS), (offs, ENDS), (counts, COUNTS)) if x is not None]
    if len(given) > 1:
        raise OperandError(f"{given[0][1]} and {given[1][1]}: groups are said by one of offsets, offs and counts")
    return given[0] if given else (None, OFFSETS)


def check_expected(rows: object, groups: object, config: object, of: str = "groups of rows") -> None:
    """Raise OperandError for `rows` that choose no tiles. Such rows are no int of at least 1, or there are no groups,
    or a configuration.

    of  the groups whose tiles they may choose, which `groups` are, or None
    """
    if rows is None:
        return
    if groups is None or config is not None:
        what = f"no {COUNTS if of == MASKED_GROUPS else 'groups'}" if groups is None else "a config"
        raise OperandError(f"expected_rows: it chooses tiles of {of}, and there is {what}")
    as_int(rows, "expected_rows", OperandError, least=1)


def check_grouped(
    a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, out_dtype: object, names: tuple[str, str], finish: BiasActivation = NO_FINISH,
) -> GroupedCall:  # fmt: skip
    """The grouped product of dense tensors of one device. Raises OperandError or TensorError, naming the operand.

    groups  offsets, ends or counts, as `said` names them; their values are checked on the CPU only
    names   of the recipes, "" for those that the shapes say
    """
    scaled = scale_a is not None or scale_b is not None
    by_instruction = has_factors(a, scale_a, scale_b)
    if not by_instruction:
        _check_types(a, b, scaled)
    form = _form(a, b, groups, said)
    if elements_of_k(a) != depth_of_b(b) or (a.ndim == b.ndim == 3 and a.shape[0] != b.shape[0]):
        raise _no_form(a, b)
    experts = b.shape[0] if b.ndim == 3 else a.shape[0] if a.ndim == 3 else 0
    if groups is not None:
        experts = _check_groups(a, b, groups, said, experts)
    kind = stored_as(FP8[0] if by_instruction else a.dtype, out_dtype, a.dtype)
    check_activation(finish.activation)
    if form in (COLUMNS, ALONG_K) and (finish.bias is not None or finish.activation is not None):
        name = "bias" if finish.bias is not None else "activation"
        raise OperandError(why_unfinished(form, name))
    front = (experts,) if a.ndim == b.ndim else ()
    shape = (*front, a.shape[-2], finish.columns(b))
    check_bias(finish.bias, [(b.shape[-1],), (experts, b.shape[-1])])
    if scale_a is None:
        if scaled or any(names):
            what = "scale_b" if scaled else "recipe_a" if names[0] else "recipe_b"
            raise OperandError(f"{what} without a scale_a")
        return GroupedCall(form, said, experts, None, kind, shape)
    if by_instruction:
        return GroupedCall(form, said, experts, _of_factors(form, a, b, scale_a, scale_b, names, experts), kind, shape)
    recipes = _check_scales(form, a, b, scale_a, scale_b, names, experts)
    span = 1 if form == ALONG_K else span_of(a.shape[-1], recipes, scale_a, scale_b)
    return GroupedCall(form, said, experts, recipes, kind, shape, span)


def _of_factors(
    form: str, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor | None,
    names: tuple[str, str], experts: int,
) -> Recipes:  # fmt: skip
    """The recipes of block scales. Raises OperandError or TensorError for groups along K, and for other factors."""
    of_k = format_of(a, scale_a, b, scale_b, names)
    if form == ALONG_K:
        raise OperandError(
            f"scale_a: {of_k.name} of groups along K has no kernel; scales of 128 of K, of rows and of columns have one"
        )
    return checked_factors(
        factor_lines(a, b, of_k, _JOINED.get(form, ""), experts), of_k, {"scale_a": scale_a, **named(scale_b=scale_b)}
    )


def _check_types(a: torch.Tensor, b: torch.Tensor, scaled: bool) -> None:
    kinds = FP8 if scaled else (torch.bfloat16, torch.float16, *FP8)
    for name, x in (("a", a), ("b", b)):
        if x.dtype not in kinds:
            way = ". layoutgemm.quantize makes such an operand and its scales" * scaled
            of = " with scales" * scaled
            raise OperandError(f"{name} is {x.dtype}: a grouped product{of} is of {listed(kinds)}{way}")
    check_alike(a, b)


def _no_form(a: torch.Tensor, b: torch.Tensor) -> TensorError:
    return TensorError(
        f"a and b have shapes {list(a.shape)} and {list(b.shape)}: (rows, K) and (experts, K, N); (experts, M, K) and "
        "(K, columns); (M, K) and (K, N); or (experts, M, K) and (experts, K, N)"
    )


def _form(a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, said: str) -> str:
    """The form, by ranks and by the argument that says the groups."""
    if a.ndim not in (2, 3) or b.ndim not in (2, 3):
        raise _no_form(a, b)
    both = a.ndim == b.ndim == 3
    if both and groups is None:
        return BATCH
    if both and said != COUNTS:
        raise OperandError(f"{said}: a and b have 3 dimensions, the first of which are the groups: without, or counts=")
    if groups is None:
        raise OperandError(f"offsets is missing: a and b have {a.ndim} and {b.ndim} dimensions, so groups have ends")
    if said == COUNTS and not both:
        raise OperandError(f"counts: a and b have {a.ndim} and {b.ndim} dimensions, and masked groups 3 and 3")
    return MASKED if both else _FORMS[a.ndim, b.ndim]


def _check_groups(a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor, said: str, experts: int) -> int:
    """The number of groups. Raises OperandError for another type or shape, and for values that are no groups."""
    along = a.ndim == b.ndim == 2
    zero = int(said == OFFSETS)  # a leading zero
    right = groups.dtype in (torch.int32, torch.int64) and groups.ndim == 1
    if not right or (groups.shape[0] < zero if along else groups.shape[0] != experts + zero):
        shape = f"[groups{' + 1' * zero}]" if along else f"{[experts + zero]}"
        what = {
            OFFSETS: "where each group begins, and the last one ends",
            ENDS: "where each group ends",
            COUNTS: "how many rows of each group there are",
        }[said]
        raise OperandError(f"{said} is {groups.dtype} of shape {list(groups.shape)}: int32 or int64 of {shape}, {what}")
    if addressed(groups) and groups.device.type == "cpu":
        check_values(groups.tolist(), said, a, b)
    return groups.shape[0] - zero if along else experts


def check_values(ends: list[int], said: str, a: torch.Tensor, b: torch.Tensor, name: str = "a") -> None:
    """Raise OperandError, with the first that is wrong, for values that are no groups. `name` is a's in errors.

    Groups along K of 8-bit floats are in blocks, as the kernel has them.
    """
    if said == COUNTS:
        for e, count in enumerate(ends):
            if not 0 <= count <= a.shape[1]:
                raise OperandError(f"counts[{e}] = {count}: a has 0 to {a.shape[1]} rows in a group")
        return
    size, of = (a.shape[0], f"{name}'s {{}} rows") if (a.ndim, b.ndim) == (2, 3) else (b.shape[-1], "b's {} columns")
    size, of = (a.shape[-1], "a's {} columns, K") if a.ndim == b.ndim == 2 else (size, of)
    things = of.format(size)
    shown = f"{said} = {ends}" if len(ends) <= 17 else f"{said} of {len(ends)}"
    if said == OFFSETS and (ends[0] != 0 or ends[-1] != size):
        wrong = 0 if ends[0] != 0 else len(ends) - 1
        rule = f"they go from 0 to {things}, none below the one before it"
        raise OperandError(f"{shown}: {rule}; {said}[{wrong}] = {ends[wrong]}")
    before = [0, *ends]
    for e, (first, end) in enumerate(pairwise(before)):
        if end < first or end > size:
            at = f"{said}[{e}] = {end}"
            rule = f"0 to {things}, none below the one before it"
            raise OperandError(f"{shown}: they go from {rule}; {at}" + f" follows {first}" * (end < first and e > 0))
    if a.ndim == b.ndim == 2 and a.dtype in FP8:
        check_multiples(said, ends, DEPTH, size)


def _check_scales(
    form: str, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor, scale_b: torch.Tensor | None,
    names: tuple[str, str], experts: int,
) -> Recipes:  # fmt: skip
    if form == COLUMNS and scale_b is None:
        raise OperandError("scale_a without a scale_b: groups of columns are rows of the transpose")
    blocks = -(-a.shape[-1] // DEPTH)
    along_k = form == ALONG_K
    fronts = [(experts,) if along_k else tuple(x.shape[:-2]) for x in (a, b)]
    of_a = ScaledOperand("a", fronts[0], a.shape[-2], blocks, along_k)
    of_b = ScaledOperand("b", fronts[1], b.shape[-1], blocks, along_k)
    found = recipes_of(of_a, scale_a, names[0], of_b, scale_b, names[1])
    check_addresses(scale_a=scale_a, scale_b=scale_b)
    for name, recipe, grouped, of in (
        ("scale_a", found.a, form == ROWS, of_a), ("scale_b", found.b, form == COLUMNS, of_b),
    ):  # fmt: skip
        if grouped and recipe == SQUARE and of.size > 1:
            shape = list((scale_a if name == "scale_a" else scale_b).shape)  # type: ignore[union-attr]
            lines = "row" if form == ROWS else "column"
            raise TensorError(f"{name} has shape {shape}: {[of.size, blocks]}, as groups end at any {lines}")
    return found


# ------------------------------------------------------------------------------------------------------------- products


def grouped_product(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None,
    scale_a: torch.Tensor | None = None, scale_b: torch.Tensor | None = None, finish: BiasActivation = NO_FINISH,
    config: GroupsConfig | None = None, out: torch.Tensor | None = None, keeping: KeptKey = NOT_KEPT,
    rows: torch.Tensor | None = None, clears: bool = False,
) -> torch.Tensor:  # fmt: skip
    """The product, computed now: a new tensor, or `out`.

    keeping  how the launch is kept
    rows     of groups of rows on a GPU: those of A that are copied first
    clears   `out` is a new result's memory: rows of no group become zeros
    """
    clears = clears or out is None
    apart = call.recipes is not None and call.recipes.by_instruction  # no kernel reads such rows by index
    if rows is not None and (apart or 0 in (*call.shape, *a.shape, call.experts) or not on_gpu(a.get_device())):
        a, rows = gathered(a, rows), None
    if call.form == COLUMNS:
        transposed = call._replace(form=ROWS, shape=call.shape[::-1])
        if call.recipes is not None:
            transposed = transposed._replace(recipes=Recipes(call.recipes.b, call.recipes.a))
            scale_a, scale_b = as_vector(scale_a, call.recipes.a, 3), as_vector(scale_b, call.recipes.b, 2)
        into = None if out is None else out.mT
        turned = keeping._replace(turned=True)
        value = grouped_product(
            transposed, b.mT, a.mT, groups, scale_b, scale_a, finish, config, into, turned, clears=clears
        )
        return value.mT if out is None else out
    if call.form == BATCH:
        return _batch(call, a, b, scale_a, scale_b, finish, config, out)
    if finish.gate is not None and on_gpu(a.get_device()) and why_by_torch(b, apart):
        return _gated_by_torch(call, a, b, groups, (scale_a, scale_b), finish, config, out, rows, clears)
    if 0 in (*call.shape, call.experts, a.shape[-1]):
        return _nothing(call, groups, finish, a.device, out, clears)
    if not on_gpu(a.get_device()):
        return _on_cpu(call, a, b, groups, scale_a, scale_b, finish, out.zero_() if clears and out is not None else out)
    assert groups is not None
    if call.in_batch_of_one:
        return _one_group(call, a, b, groups, (scale_a, scale_b), finish, config, out)
    return _by_kernel(call, a, b, groups, scale_a, scale_b, finish, config, out, keeping, rows, clears)


def ungated(call: GroupedCall, b: torch.Tensor, kind: torch.dtype) -> GroupedCall:
    """The product of all columns that a gate is of, stored as `kind`."""
    return call._replace(kind=kind, shape=(*call.shape[:-1], b.shape[-1]))


def _gated_by_torch(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None,
    scales: tuple[torch.Tensor | None, torch.Tensor | None], finish: BiasActivation, config: GroupsConfig | None,
    out: torch.Tensor | None, rows: torch.Tensor | None, clears: bool,
) -> torch.Tensor:  # fmt: skip
    """The product of all columns in float32, gated by torch."""
    every = ungated(call, b, torch.float32)
    plain = finish._replace(activation=None)
    wide = grouped_product(every, a, b, groups, *scales, plain, config, rows=rows)
    return _stored(call, finished(call, wide, groups, finish._replace(bias=None)), groups, out, clears)


def _stored(
    call: GroupedCall, value: torch.Tensor, groups: torch.Tensor | None, out: torch.Tensor | None, clears: bool
) -> torch.Tensor:
    """A value with zeros in no group, as the result; unless `clears`, `out` keeps its own there."""
    if out is None:
        return value.to(call.kind)
    if call.leaves_rows and groups is not None and not clears:
        value = torch.where(in_groups(call.shape, call.said, groups), value, out)
    return out.copy_(value)


def _nothing(
    call: GroupedCall, groups: torch.Tensor | None, finish: BiasActivation, device: torch.device,
    out: torch.Tensor | None, clears: bool,
) -> torch.Tensor:  # fmt: skip
    """Empty sums are 0, and bias and activation follow."""
    value = torch.zeros((*call.shape[:-1], call.shape[-1] * finish.halves), dtype=torch.float32, device=device)
    value = finished(call, value, groups, finish) if call.experts else value[..., : call.shape[-1]]
    return _stored(call, value, groups, out, clears)


def finished(
    call: GroupedCall, wide: torch.Tensor, groups: torch.Tensor | None, finish: BiasActivation
) -> torch.Tensor:
    """Bias and activation by torch on sums, rounded once; what is in no group is 0."""
    bias = finish.bias
    if bias is None and finish.activation is None:
        return rounded(wide, call.kind)
    if bias is not None and bias.ndim == 2 and call.form == ROWS and groups is not None:
        bias = bias[group_of_rows(call, groups)]
    elif bias is not None:
        bias = beside(bias)
    return in_groups_alone(call, finished_by_torch(wide, bias, finish, call.kind), groups)


def group_of_rows(call: GroupedCall, groups: torch.Tensor) -> torch.Tensor:
    """The group of each row of a product in groups of rows. Rows in no group have the last one."""
    return group_of_lines(call, groups, call.shape[0])


def group_of_lines(call: GroupedCall, groups: torch.Tensor, lines: int) -> torch.Tensor:
    """The group of each row, or of each line of K. Those in no group have the last one."""
    ends = groups[1:] if call.said == OFFSETS else groups
    line = torch.arange(lines, device=groups.device)
    return torch.searchsorted(ends.long(), line, right=True).clamp(max=call.experts - 1)


def in_groups_alone(call: GroupedCall, value: torch.Tensor, groups: torch.Tensor | None) -> torch.Tensor:
    """The result with zeros in no group."""
    if call.leaves_rows and groups is not None:
        value = torch.where(in_groups(call.shape, call.said, groups), value, 0)
    return value


def _batch(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None,
    finish: BiasActivation, given_config: GroupsConfig | None, out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Groups of as many rows each, all of them."""
    config = batch_config(given_config)
    if call.recipes is None and finish.gate is not None:
        return gated_product(a, b, beside(finish.bias), str(finish.activation), call.kind, config, out)
    if call.recipes is None and finish.bias is None and finish.activation is None:
        return product(a, b, call.kind, config, out)
    if call.recipes is None and on_gpu(a.get_device()):
        given = {} if finish.bias is None else {"bias": line(finish.bias)}
        return epilogue_product(a, b, call.kind, epilogue_of_call(call, finish), given, config, out)
    if call.recipes is None:
        value = by_torch(exact(a, b), beside(finish.bias), finish.activation, call.kind)
        return value if out is None else out.copy_(value)
    assert scale_a is not None
    inner = ScaledCall(call.recipes, call.kind, call.shape, span=call.span)
    return scaled_product(inner, a, scale_a, b, scale_b, finish, config, out)


def _one_group(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor,
    scales: tuple[torch.Tensor | None, torch.Tensor | None], finish: BiasActivation, config: GroupsConfig | None,
    out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """One masked group, or one along K: its plan has no batch."""
    recipes = call.recipes or Recipes("", "")
    scale_a, scale_b = scales
    if not (call.form == ALONG_K and recipes.in_mainloop):
        scale_a, scale_b = [of_one(x, of) for x, of in zip(scales, recipes, strict=True)]
    if finish.bias is not None and finish.bias.ndim > 1:
        finish = finish._replace(bias=finish.bias[0])
    inner = call._replace(shape=call.shape[1:])
    a, b = [x if x.ndim == 2 else x[0] for x in (a, b)]
    c = _by_kernel(inner, a, b, groups, scale_a, scale_b, finish, config, None if out is None else out[0], NOT_KEPT)
    return c.unsqueeze(0) if out is None else out


def counted(counts: torch.Tensor, rows: int) -> torch.Tensor:
    """Which rows of each group count, (experts, rows, 1).

    >>> counted(torch.tensor([1, 0]), 2).squeeze(-1).tolist()
    [[True, False], [False, False]]
    """
    places = counts.new_ones(rows).cumsum(0)  # from 1; a tensor subclass where counts are one
    return (places <= counts.unsqueeze(-1)).unsqueeze(-1)


def in_groups(shape: Sequence[int], said: str, groups: torch.Tensor) -> torch.Tensor:
    """A mask of the result's elements that are in a group. It broadcasts to the result.

    Columns are the last dimension of a result whose transpose has rows: `shape` is the transpose's then.

    >>> in_groups((4, 1), "offs", torch.tensor([1, 3])).squeeze(-1).tolist()
    [True, True, True, False]
    """
    if said == COUNTS:
        return counted(groups, shape[1])
    rows = torch.arange(shape[0], device=groups.device).unsqueeze(-1)
    return rows < (groups[-1] if groups.shape[0] else 0)


def _by_kernel(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, finish: BiasActivation, config: GroupsConfig | None, out: torch.Tensor | None,
    keeping: KeptKey, rows: torch.Tensor | None = None, clears: bool = False,
) -> torch.Tensor:  # fmt: skip
    """Groups of rows, masked ones, or along K, by their kernel."""
    chosen_rows = {} if rows is None else {"rows": rows.contiguous()}
    given = {name: x for name, x in (("scale_a", scale_a), ("scale_b", scale_b)) if x is not None}
    vectors: dict[str, torch.Tensor] = {}
    lying = True
    if call.recipes is not None and not call.recipes.in_mainloop:
        vectors, lying = vectors_of(call.recipes, {"scale_a": a.ndim, "scale_b": b.ndim}, given)
        given = {}
    if call.recipes is not None and call.recipes.by_instruction:
        lines = call.lines(a, b)
        given, lying = blocked_tables(lines, given, call.places(lines, groups))
    if finish.bias is not None:
        vectors["bias"] = line(finish.bias)
        lying = lying and vectors["bias"] is finish.bias
    numbers = groups.contiguous()
    if not lying:
        keeping = NOT_KEPT
    elif rows is not None:
        keeping = keeping if numbers is groups and chosen_rows["rows"] is rows else NOT_KEPT
    elif not keeping.key or numbers is not groups:  # known by what the kernel reads
        options = call.form, call.said, call.kind, call.recipes, finish[1:], config, clears
        others = () if scale_b is None and finish.bias is None else (scale_b, finish.bias)
        key, found = find(a, b, numbers, scale_a, others, out, options)
        if found is not None:
            return found
        keeping = KeptKey(key)
    plan, _ = plan_of(call, a, b, numbers, finish, config, call.said == ENDS, clears, rows)
    assert plan.groups is not None
    return launch(keeping, plan, a, b, {**chosen_rows, plan.groups.name: numbers, **given}, vectors, out)


def plan_of(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, numbers: torch.Tensor, finish: BiasActivation,
    config: GroupsConfig | None, ends: bool = False, clears: bool = False, rows: torch.Tensor | None = None,
    epilogue: Epilogue | None = None, how: Combined | None = None,
) -> tuple[GroupsPlan, str]:  # fmt: skip
    """The plan of a product by kernel, and why this configuration.

    ends    `numbers` are ends, without the zero in front
    clears  and rows behind the last one become zeros
    rows    of A that are copied first, or None for all in order
    epilogue  of the caller's own, or None for that of the call
    how     the function of products with several matrices, or None
    """
    own = epilogue is not None
    epilogue = epilogue_of_call(call, finish) if epilogue is None else epilogue
    if (call.recipes is not None and call.recipes.by_instruction) or by_mma(a.get_device(), config):
        of = mma_product(call, a, b, numbers, finish, ends, rows, epilogue, how)
        return mma_plan(of, a.get_device(), config)
    if call.form == ALONG_K:
        return _plan_along_k(call, a, b, numbers, config, ends, epilogue, finish, own)
    (m, n), k, masked = call.shape[-2:], a.shape[-1], call.form == MASKED
    types, scales = types_and_scales(call, a, b, finish)
    ragged = Ragged.of(call.experts, INTS[numbers.dtype], masked, ends, ends and clears)
    sizes = m, n, k, call.experts
    gate = finish.gate if how is None else how
    indexed = None if rows is None else IndexedRows(RowIndices(a.shape[-2], INTS[rows.dtype]), copy=True)

    def derive(config: Sm90Config) -> Sm90Plan:
        return derived(sizes, types, scales, config, ragged, epilogue, gate, indexed, call.span)

    if config is None and (own or how is not None or indexed is not None):
        of_parts = scales, call.form, gate, epilogue, indexed
        measured = tuned_store.lookup_with_parts(gpu(a.get_device())[1], sizes, types, *of_parts)
        if (found := tuned_store.fitting(measured, derive)) is not None:
            return derive(found), tuned_store.MEASURED
    plain = not (epilogue or masked or gate is not None or indexed is not None)
    given = batch_config(config)
    config, why = chosen(sizes, types, scales, a.get_device(), given, derive, masked, gate, epilogue.columns, plain)
    return derive(config), why


def mma_product(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, numbers: torch.Tensor, finish: BiasActivation,
    ends: bool = False, rows: torch.Tensor | None = None, epilogue: Epilogue | None = None,
    how: Combined | None = None,
) -> MmaProduct:  # fmt: skip
    """All that decides on a plan by mma.sync; arguments are those of `plan_of`. Rows of no group stay as they are."""
    (m, n), k, offsets = call.shape[-2:], elements_of_k(a), INTS[numbers.dtype]
    types, scales = types_and_scales(call, a, b, finish)
    groups: Ragged | AlongK = Ragged.of(call.experts, offsets, call.form == MASKED, ends)
    if call.form == ALONG_K:
        groups, types = AlongK.of(call.experts, offsets, ends), (f"{types[0]}:col", f"{NAMES[b.dtype]}:row", types[2])
        if scales is not None:
            what = "scale_a: scales of 128 of K" if scales else "use_fast_accum: sums that are added in float32"
            raise OperandError(
                f"{what} of groups along K are sm_90a's; by mma.sync they have scales of rows and columns"
            )
    gate = finish.gate if how is None else how
    indexed = None if rows is None else IndexedRows(RowIndices(a.shape[-2], INTS[rows.dtype]))
    form = format_by_recipe(a, b, call.recipes.a).name if call.recipes and call.recipes.by_instruction else None
    return MmaProduct((m, n, k, call.experts), types, groups, scales, epilogue or None, gate, indexed, form=form)


def types_and_scales(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, finish: BiasActivation
) -> tuple[tuple[str, str, str], tuple[int, ...] | None]:
    """The types of A, B and C with their orders, and the main loop's scales. A plain sum has None for these."""
    recipes = call.recipes
    if recipes is not None and recipes.by_instruction:
        return (ELEMENTS[a.dtype], f"{ELEMENTS[b.dtype]}:col", C_NAMES[call.kind]), None
    scales = None if recipes is None else recipes.groups if recipes.in_mainloop else None if finish.fast else ()
    order = "col" if a.dtype in FP8 or (b.stride(-2) == 1 and b.stride(-1) != 1) else "row"
    return (NAMES[a.dtype], f"{NAMES[b.dtype]}:{order}", C_NAMES[call.kind]), scales


def expected_config(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, rows: int, finish: BiasActivation, how: Combined | None = None
) -> GroupsConfig:
    """The configuration of groups of `rows` rows each, masked or not.

    how  the function of products with several matrices, or None

    Raises OperandError for groups of another form, and for more rows than there are.
    """
    if call.form not in (ROWS, MASKED):
        form = {COLUMNS: "of columns", ALONG_K: "along K"}.get(call.form, "of a batch")
        raise OperandError(f"expected_rows: it chooses tiles of groups of rows, and these are groups {form}")
    (m, k), n = a.shape[-2:], call.shape[-1]
    equal = call.form == ROWS
    if equal and rows * call.experts > max(m, call.experts):
        raise OperandError(
            f"expected_rows = {rows}: {call.experts} groups of as many have {rows * call.experts} rows, and a has {m}"
        )
    sizes = min(rows, max(m, 1)) * call.experts, n, k, call.experts
    if by_mma(a.get_device(), None):
        nothing = a.new_zeros(0, dtype=torch.int32)  # in place of numbers that decide on nothing
        of = mma_product(call, a, b, nothing, finish, how=how)._replace(rows=sizes[0] // call.experts)
        return mma_plan(of, a.get_device())[0].config
    places, _ = gpu(a.get_device())
    sums, (types, scales) = finish.halves if how is None else how.matrices, types_and_scales(call, a, b, finish)
    found = usual_config(sizes, types, scales, sums, places=places, equal=equal)
    return found if how is None else whole_columns(found, _unit(how, types))


def _plan_along_k(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, offsets: torch.Tensor, config: GroupsConfig | None, ends: bool,
    epilogue: Epilogue, finish: BiasActivation, own: bool,
) -> tuple[GroupsPlan, str]:  # fmt: skip
    """The plan of groups along K, and why this configuration. `own`: the epilogue is the caller's."""
    sizes, blocks = (a.shape[0], b.shape[1], a.shape[1], call.experts), a.dtype in FP8
    orders = ("row", "col") if blocks else ("col", "row")  # K is contiguous, or rows and columns are
    types = f"{NAMES[a.dtype]}:{orders[0]}", f"{NAMES[b.dtype]}:{orders[1]}", C_NAMES[call.kind]
    scales = types_and_scales(call, a, b, finish)[1]
    groups = AlongK.of(call.experts, INTS[offsets.dtype], ends, DEPTH if blocks else 1)
    name, why = gpu(a.get_device())[1], "given by the caller"

    def derive(config: GroupsConfig) -> GroupsPlan:
        return derived(sizes, types, scales, config, groups, epilogue)

    if config is None:
        of_parts = tuned_store.lookup_with_parts(name, sizes, types, scales, ALONG_K, epilogue) if own else None
        of_sizes = tuned_store.lookup(name, sizes, *ragged_name(types, scales, None, ALONG_K))
        fits = [tuned_store.fitting(found, derive) for found in (of_parts, of_sizes)]
        config = next((found for found in fits if found is not None and found.tile[1] % epilogue.columns == 0), None)
        why = tuned_store.MEASURED if config is not None else why
    if config is None:
        places, c, columns = gpu(a.get_device())[0], types[2], epilogue.columns
        config = (
            k_blocks_config(*sizes, scales, c, places, columns)
            if blocks
            else along_k_config(*sizes, wide=dtype(c).bits == 32, columns=columns)
        )
        tile, cluster = ("x".join(map(str, x)) for x in (config.tile, config.cluster))
        lines = -(-sizes[2] // sizes[3])
        why = f"{lines} of K a group on average: tiles of {tile} in clusters of {cluster} are estimated fastest"
    return derive(config), why


def epilogue_of_call(call: GroupedCall, finish: BiasActivation) -> Epilogue:
    """The epilogue of a call. It has the scales that the main loop leaves, bias, and an activation but for a gate."""
    bias = None if finish.bias is None else C_NAMES[finish.bias.dtype]
    return epilogue_of(call.recipes or Recipes("", ""), bias, finish.activation)


def chosen(
    sizes: tuple[int, int, int, int], types: tuple[str, str, str], scales: tuple[int, ...] | None, index: int,
    config: Sm90Config | None, derive: Callable[[Sm90Config], object], masked: bool = False,
    gate: str | Combined | None = None, columns: int = 1, plain: bool = False,
) -> tuple[Sm90Config, str]:  # fmt: skip
    """The configuration of a grouped kernel, and why. It is the caller's, the measured one, or the default for its
    rows.

    sizes    M, N, K and the groups; of masked groups M is each one's
    derive   makes the plan of a configuration; a measured one without a plan is passed over
    gate     the function of a gate, or of products with several matrices; or None
    columns  a CTA stores a multiple of this many columns of C
    plain    nothing but the product of rows in order is stored
    """
    if config is not None:
        return config, "given by the caller"
    if isinstance(gate, Combined):
        rows, said = (masked_rows(sizes[0]), "taken to be") if masked else (-(-sizes[0] // sizes[3]), "on average")
        of_rows, unit = rows * sizes[3] if masked else sizes[0], lcm(_unit(gate, types), gate.matrices * columns)
        usual = usual_config(
            (of_rows, *sizes[1:]), types, scales, gate.matrices, columns, gpu(index)[0], masked=masked
        )  # fmt: skip
        config = whole_columns(usual, unit)
        return config, f"{rows} rows a group {said}: tiles of {'x'.join(map(str, config.tile))}"
    sums = 1 if gate is None else HALVES
    found = tuned_store.lookup(gpu(index)[1], sizes, *ragged_name(types, scales, gate, MASKED if masked else ROWS))
    if found is not None and found.config.tile[1] // sums % columns == 0:
        shifts = plain and found.config.tuning.shift_last_tile  # of the product that was measured
        of_call = replace(found, config=found.config.tuned(shift_last_tile=shifts))
        if (fits := tuned_store.fitting(of_call, derive)) is not None:
            return fits, tuned_store.MEASURED
    if masked:
        rows = masked_rows(sizes[0])
        taken = rows * sizes[3], *sizes[1:]
        config = usual_config(taken, types, scales, sums, columns, gpu(index)[0], masked=True)
        tile = "x".join(map(str, config.tile))
        return config, f"up to {sizes[0]} rows a group, taken to be {rows}: tiles of {tile}"
    config = usual_config(sizes, types, scales, sums, columns, gpu(index)[0], shifts=plain)
    tile, rows = "x".join(map(str, config.tile)), -(-sizes[0] // sizes[3])
    return config, f"{rows} rows a group on average: tiles of {tile} ({_RECORDS})"


def _unit(how: Combined, types: tuple[str, str, str]) -> int:
    """The number that divides a tile's columns: each matrix then has whole lines."""
    return how.matrices * (8 if types[1].endswith("col") else LINE // dtype(types[1].partition(":")[0]).bytes)


def ragged_name(
    types: tuple[str, str, str], scales: tuple[int, ...] | None, gate: str | None = None, form: str = ROWS
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Types and orders by which a tuned grouped product is kept.

    form  groups of rows, masked ones, or along K

    >>> ragged_name(("bf16", "bf16:col", "bf16"), None)
    (('bf16 groups', 'bf16', 'bf16'), ('row', 'col', 'row'))
    >>> ragged_name(("bf16:col", "bf16:row", "bf16"), None, form=ALONG_K)
    (('bf16 groups along K', 'bf16', 'bf16'), ('col', 'row', 'row'))
    """
    (first, *rest), orders = tuned_name(types, scales, gate)
    return (f"{first} {_KEPT_AS[form]}", *rest), orders


# ----------------------------------------------------------------------------------------------------------- on the CPU


def _on_cpu(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor | None, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None, finish: BiasActivation, out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """Each group in float64, rounded once; `out` keeps its rows of no group."""
    assert groups is not None
    c = torch.zeros(call.shape, dtype=call.kind) if out is None else out
    for e, part, wide in group_sums(call, a, b, groups, scale_a, scale_b):
        c[part] = rounded(wide, call.kind) if call.form == ALONG_K else finished_group(call, wide, finish, e)
    return c


def group_sums(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, groups: torch.Tensor, scale_a: torch.Tensor | None,
    scale_b: torch.Tensor | None,
) -> Iterator[tuple[int, Part, torch.Tensor]]:  # fmt: skip
    """(number, index in C, sums in float64) of each group with elements of C."""
    values, recipes = groups.tolist(), call.recipes or Recipes("", "")
    if recipes.by_instruction:
        lines = call.lines(a, b)
        places = call.places(lines, groups)
        scale_a, scale_b = [
            line.plain(present(x), places if line.groups else None)
            for line, x in zip(lines, (scale_a, scale_b), strict=True)
        ]
    if call.form == MASKED:
        for e, count in enumerate(values):
            scales = [of_group(x, of, e) for x, of in ((scale_a, recipes.a), (scale_b, recipes.b))]
            yield e, (e, slice(count)), _sums(call, a[e], b[e], *scales)[:count]
        return
    for e, (first, end) in enumerate(pairwise(values if call.said == OFFSETS else [0, *values])):
        part = slice(first, end)
        if call.form == ALONG_K:
            if recipes.in_mainloop:
                blocks = slice(first // DEPTH, -(-end // DEPTH))
                scales = [None if x is None else x[:, blocks] for x in (scale_a, scale_b)]
            else:
                scales = [of_group(scale_a, recipes.a, e), of_group(scale_b, recipes.b, e)]
            yield e, (e,), _sums(call, a[:, part], b[part], *scales)
        elif end > first:
            scales = [of_group(scale_a, recipes.a, part), of_group(scale_b, recipes.b, e)]
            yield e, (part,), _sums(call, a[part], b[e], *scales)


def finished_group(call: GroupedCall, wide: torch.Tensor, finish: BiasActivation, e: int) -> torch.Tensor:
    """A group's bias and activation on its sums in float64, rounded once."""
    bias = finish.bias if finish.bias is None or finish.bias.ndim < 2 else finish.bias[e]
    return finished_by_torch(wide, bias, finish, call.kind)


def _sums(
    call: GroupedCall, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None
) -> torch.Tensor:
    if call.recipes is None:
        return exact(a, b)
    assert scale_a is not None
    return sums(call.recipes, a, scale_a, b, scale_b)
