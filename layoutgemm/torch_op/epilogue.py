"""A user's own epilogue on matmul. Its operands as tensors, checked by name, and the launches that take them.

    matmul(a, b, epilogue=Epilogue(Bias(), Aux(), Activation("gelu")), given={"bias": bias, "aux": aux})

What an operand of the epilogue may be, for C of shape (batch..., M, N):

    axes    given                                                   shape
    ------  ------------------------------------------------------  ------------------------------------------
    ""      a number, or a float32 tensor of one element            (), (1,)
    "n"     a vector whose elements are contiguous                  (N,) or (batch..., N)
    "m"     a vector whose elements are contiguous                  (M,) or (batch..., M)
    "mn"    matrices whose rows, or whose columns, are contiguous   (M, N) or (batch..., M, N)

Of a matrix with a `unit`, such as one scale for every 128 columns, M and N are those of its units.

The order that a step states for a matrix is not asked for: the tensor's strides say which index is contiguous.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from math import gcd, prod
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch

from ..atoms.copy.base import VECTOR_BYTES
from ..errors import OperandError, PlanError, TensorError
from ..kernels.column_groups import check_groups
from ..kernels.epilogue.chain import ColumnReduce, Custom, Dropout, Epilogue, Reduction, ReductionStep, refusal_of_type
from ..kernels.epilogue.chain import EpilogueOperand as Operand
from ..kernels.epilogue.grouped_matrix import parts_of
from ..kernels.epilogue.numpy_math import Math
from ..kernels.epilogue.parameters import PlacedOperand, check_names, host_number, words_of
from ..kernels.epilogue.steps import ordered
from ..kernels.operands.combined import Combined
from ..kernels.operands.gated import Gated
from ..kernels.partials import check_groups_of_columns
from ..kernels.plan import present
from ..moved import old_names
from .bias_activation import GATES
from .launch import mark_written, workspace_on
from .prepared import Config, LaunchEpilogue, lies_in_units, on_gpu, prepare, problem_at
from .problem import Shapes, Solution, gated_shapes
from .reference import multiply, rounded
from .solver import solve
from .types import TYPES

__getattr__ = old_names(__name__)

Tensors = dict[str, Any]
Groups = Sequence[tuple[int, int]] | Sequence[int] | None
SumsGate: TypeAlias = str | tuple[Combined, Mapping[str, float]]  # an activation, or a function of two sums
# Widths of tiles that C's columns may be whole multiples of: few numbers, as each is a kernel of its own.
_WIDTHS, _LEAST_WIDTH = 768, 64
COMBINED: Mapping[str, Callable[..., torch.Tensor]] = {"sum": torch.add, "max": torch.maximum, "min": torch.minimum}


def arguments_beside(bias: object, activation: object) -> list[str]:
    """Names of arguments that an epilogue stands for, where they are given. Not of an activation that gates."""
    replaced = activation is not None and gate_of(activation) is None
    return ["bias"] * (bias is not None) + ["activation"] * replaced


def gate_of(activation: object) -> str | None:
    """The function of an activation's gate; None for others.

    >>> gate_of("swiglu"), gate_of("silu"), gate_of(None)
    ('silu', None, None)
    """
    return GATES.get(activation) if isinstance(activation, str) else None


def refusal_of_epilogue(epilogue: object, given: object, beside: Sequence[str], gated: bool = False) -> str:
    """Why a call's epilogue, or the dict of its operands, is refused, or "". torch.compile traces it.

    beside  as `arguments_beside` has them
    gated   the product has a gate, which steps may precede
    """
    if epilogue is None:
        return "given holds an epilogue's operands, and there is no epilogue"
    for name in beside:
        gates = f"; the gates, {' and '.join(GATES)}, go before it" if name == "activation" else ""
        return f"{name} and epilogue: one or the other; Bias() and Activation(...) are steps of the latter{gates}"
    if given is not None and not isinstance(given, Mapping):
        return f"given is a {type(given).__qualname__}; it is a dict, the epilogue's operands by name"
    if not isinstance(epilogue, Epilogue):
        return refusal_of_type(epilogue)
    if epilogue.flipped:
        return "the epilogue is that of the transposed C (Epilogue.transposed); matmul turns it by itself"
    if epilogue.sums and not gated:
        return f"sums = {epilogue.sums}: the epilogue's first steps are before a gate, and there is none"
    return ""


def check_epilogue(epilogue: object, kinds: Mapping[str, type], gated: bool = False) -> None:
    """Raise OperandError unless an epilogue takes operands of these names and classes. `gated`: behind a gate."""
    if text := refusal_of_epilogue(epilogue, None, (), gated):
        raise OperandError(text)
    assert isinstance(epilogue, Epilogue)
    _check_kinds(epilogue, kinds)


def _check_kinds(epilogue: Epilogue, kinds: Mapping[str, type]) -> None:
    check_names([operand.name for operand in epilogue.given], kinds)
    for operand in epilogue.given:
        kind = kinds[operand.name]
        if not (operand.host or issubclass(kind, torch.Tensor)):
            number = issubclass(kind, (int, float)) and not operand.axes and operand.dtype.name in ("f32", "i32")
            way = f"; EpilogueOperand({operand.name!r}, '', '{operand.dtype}', host=True) is a number" if number else ""
            raise OperandError(f"{operand.name} is a {kind.__qualname__}, not a torch tensor{way}")


def check_fit(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, epilogue: Epilogue, given: Tensors, out: torch.Tensor | None,
    gate: str | None = None,
) -> Shapes:  # fmt: skip
    """The product's sizes. Raises OperandError or TensorError for operands that do not fit it.

    gate  as `gate_of` has it: b holds the gate's columns, then as many that it multiplies
    """
    for name, x in (("a", a), ("b", b)):
        if x.ndim < 2:
            raise OperandError(f"{name} is a vector: an epilogue follows a product of matrices, or of a batch of them")
    shapes = gated_shapes(a.shape, b.shape, gate)
    check_result(epilogue, given, kind, shapes.result, out)
    return shapes


def check_result(
    epilogue: Epilogue, given: Tensors, kind: torch.dtype, shape: tuple[int, ...], out: torch.Tensor | None,
    joined: int = 0, chosen: Mapping[str, int] | None = None,
) -> None:  # fmt: skip
    """Raise OperandError or TensorError for operands or a result that an epilogue does not have.

    PlanError for groups of columns that no kernel reduces.

    joined  groups that share the rows of one C, each with columns of its own
    chosen  numbers of vectors along M that row indices choose from, by name
    """
    if not kind.is_floating_point:
        raise OperandError(f"the product is {kind}, and an epilogue computes in float32: say out_dtype=torch.float32")
    if out is not None and not epilogue.stores_c:
        raise OperandError("out is given, and the epilogue stores no C (stores_c=False)")
    check_groups_of_columns(epilogue)  # as the kernels that torch has refuse them: the CPU, too
    check_groups(epilogue)
    epilogue.check_columns(shape[-1])
    quantize = epilogue.quantizes
    if quantize is not None and kind != TYPES[quantize.dtype]:
        raise OperandError(
            f"the product is {kind}, and Quantize gives {quantize.dtype}: out_dtype={TYPES[quantize.dtype]}"
        )
    for operand in epilogue.given:
        if operand.host:
            host_number(operand.name, given[operand.name], operand.dtype.name == "i32")
        else:
            rows = (chosen or {}).get(operand.name, shape[-2])
            check_operand(operand, given[operand.name], (*shape[:-2], rows, shape[-1]), joined)
    for step in epilogue.reductions:
        lines = [operand for operand in step.given if operand.rank == 2 and min(given[operand.name].shape[-2:]) > 1]
        orders = {order_of(operand, given[operand.name]): operand.name for operand in lines}
        if len(orders) > 1:
            row, col = orders["row"], orders["col"]
            raise OperandError(f"{row} is row-major, and {col} column-major: results of one reduction have one order")


class GivenOperands(NamedTuple):
    """A call's operands of its epilogue by name. All, and the tensors that are read and written."""

    every: Tensors
    read: dict[str, torch.Tensor]
    written: dict[str, torch.Tensor]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        """Those that are read, then those that are written."""
        return {**self.read, **self.written}


def given_operands(
    epilogue: object, given: Mapping[str, object] | None, beside: Sequence[str] = (), gated: bool = False
) -> tuple[Epilogue, GivenOperands]:
    """A call's epilogue and its operands.

    beside, gated  as `refusal_of_epilogue` has them

    Raises OperandError for another epilogue, and for other operands or classes of them.
    """
    if text := refusal_of_epilogue(epilogue, given, beside, gated):
        raise OperandError(text)
    assert isinstance(epilogue, Epilogue)
    every: Tensors = dict(given) if given is not None else {}
    _check_kinds(epilogue, {name: type(x) for name, x in every.items()})
    of_steps = [{name: every[name] for name in names} for names in (epilogue.reads, epilogue.writes)]
    return epilogue, GivenOperands(every, *of_steps)


def operands_of_one(epilogue: Epilogue, operands: GivenOperands) -> GivenOperands:
    """The operands of a batch of one, as a product without a batch takes them."""
    every = dict(operands.every)
    for operand in epilogue.given:
        if operand.axes and every[operand.name].ndim > operand.rank:
            every[operand.name] = every[operand.name][0]
    return GivenOperands(every, *[{name: every[name] for name in names} for names in (epilogue.reads, epilogue.writes)])


def epilogue_product(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, epilogue: Epilogue, given: Tensors,
    config: Config | None = None, out: torch.Tensor | None = None, gate: str | None = None,
) -> torch.Tensor:  # fmt: skip
    """The product with its epilogue, computed now, after kinds and memory have been checked.

    Without elements, of shape (0,), where the epilogue stores no C.

    gate  as `check_fit` has it

    Raises OperandError or TensorError for operands that do not fit the product, and for a GPU without such kernels.
    """
    shapes = check_fit(a, b, kind, epilogue, given, out, gate)
    with torch.no_grad():
        if 0 in shapes.result:
            reduce_nothing(epilogue, given)
            empty = shapes.result if epilogue.stores_c else (0,)
            return torch.empty(empty, dtype=kind, device=a.device) if out is None else out
        if not on_gpu(a.get_device()):
            value = by_reference(a, b, kind, epilogue, given, gate)
            if not epilogue.stores_c:
                return value.new_empty(0)
            return value if out is None else out.copy_(value)
        check_order(epilogue)
        if shapes.k == 0:  # an empty sum is 0, and the epilogue follows
            a, b = a.new_zeros(*a.shape[:-1], 16), b.new_zeros(*b.shape[:-2], 16, b.shape[-1])
        c = out
        if c is None:  # of a C that is not stored only shape and strides are known
            c = torch.empty(shapes.result, dtype=kind, device=a.device if epilogue.stores_c else "meta")
        given = {name: x.resolve_neg() if isinstance(x, torch.Tensor) else x for name, x in given.items()}
        written = [given[operand.name] for operand in epilogue.given if operand.written]
        mark_written([c, *written] if epilogue.stores_c else written)
        if gate is not None:
            b = readable_gate(b)
        for part in list(spread(a.resolve_neg(), b.resolve_neg(), c, epilogue, given)):
            _launch(*part, epilogue, kind, config, gate)
        return c if epilogue.stores_c else a.new_empty(0, dtype=kind)


def check_order(epilogue: Epilogue) -> None:
    """Raise TensorError in torch's deterministic mode for sums in any order. Where that only warns, warn."""
    if epilogue.unordered_sums and torch.are_deterministic_algorithms_enabled():
        said = (
            f"{', '.join(epilogue.unordered_sums)}: a sum with ordered=False does not have a deterministic "
            "implementation, but you set 'torch.use_deterministic_algorithms(True)': take ordered=True"
        )
        if not torch.is_deterministic_algorithms_warn_only_enabled():
            raise TensorError(said)
        warnings.warn(said, stacklevel=2)


def readable_gate(b: torch.Tensor) -> torch.Tensor:
    """The weights of a gate as its kernel reads them. Copied unless their columns are contiguous."""
    return b if b.stride(-2) == 1 else b.mT.contiguous().mT


def _finish(epilogue: Epilogue, operands: Tensors, shape: Sequence[int], gate: str | None) -> LaunchEpilogue:
    """The epilogue as a kernel takes it, behind a gate or not."""
    found = finish_of(epilogue, operands, shape)
    return found if gate is None else found._replace(key=(*found.key, gate), gated=gate)


def _launch(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, operands: Tensors, epilogue: Epilogue, kind: torch.dtype,
    config: Config | None, gate: str | None,
) -> None:  # fmt: skip
    """One launch, or one for each matrix of a batch that no tensor map holds."""
    if gate is None or c.ndim == 2:
        finish = _finish(epilogue, operands, c.shape, gate)
        found = prepare(a, b, kind, config, c, finish)
        if not finish.keep_batch_separate or len(found.solution.launches) == 1:
            taken = present(finish.epilogue)
            size = found.workspace if taken.partials else 0
            parts = workspace_on(a.device, size)
            words = (*finish.words[: len(taken.words) - 1], parts.data_ptr()) if size else finish.words
            found.run(a, b, c, words)
            return
    for part in _one_by_one(a, b, c, epilogue, operands):
        _launch(*part, epilogue, kind, config, gate)


def solutions(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, operands: Tensors, epilogue: Epilogue, kind: torch.dtype,
    config: Config | None, gate: str | None = None,
) -> Iterator[Solution]:  # fmt: skip
    """The launches of `_launch` in order; of `c`, only shape, strides and address are used."""
    if gate is None or c.ndim == 2:
        finish = _finish(epilogue, operands, c.shape, gate)
        found = solve(problem_at(a, b, kind, config, c, finish))
        if not finish.keep_batch_separate or len(found.launches) == 1:
            yield found
            return
    for part in _one_by_one(a, b, c, epilogue, operands):
        yield from solutions(*part, epilogue, kind, config, gate)


def _one_by_one(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, epilogue: Epilogue, operands: Tensors
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tensors]]:
    """The products of a batch, each with its operands."""
    lying = {operand.name for operand in epilogue.given if operand.axes}
    for i in range(c.shape[0]):
        yield a[i], b[i], c[i], {name: x[i] if name in lying else x for name, x in operands.items()}


def reduce_nothing(epilogue: Epilogue, given: Tensors) -> None:
    """The reductions of a C without elements, where they have places. The results of no element at all."""
    for step in epilogue.reductions:
        if not step.ordered or step.each is not None:
            continue
        for operand, value in zip(step.given, nothing_of(step, given[step.given[0].name].device), strict=True):
            given[operand.name].copy_(value)


def nothing_of(step: ReductionStep, device: torch.device | None = None) -> list[torch.Tensor]:
    """The outputs of a reduction of no element, as they are broadcast.

    >>> from layoutgemm.kernels.epilogue.chain import RowReduce
    >>> nothing_of(RowReduce("argmax"))
    [tensor([-inf]), tensor([2147483647], dtype=torch.int32)]
    """
    return step.outputs(results_of_nothing(step.reduction, device), torch.stack)


def results_of_nothing(reduction: Reduction, device: torch.device | None = None) -> list[torch.Tensor]:
    """The results of no element one by one, as they are broadcast. Filled, which a CUDA graph captures."""
    alone = [np.asarray([value], np.float32 if kind == "float" else np.int32)
             for value, kind in zip(reduction.identity, reduction.kinds, strict=True)]  # fmt: skip
    with np.errstate(all="ignore"):  # the logarithm of an empty sum
        found = [np.asarray(value) for value in reduction.finished(alone, Math)]
    kinds = [torch.int32 if value.dtype.kind == "i" else torch.float32 for value in found]
    return [torch.full((1,), value.item(), dtype=kind, device=device) for value, kind in zip(found, kinds, strict=True)]


def check_operand(operand: Operand, x: torch.Tensor, shape: tuple[int, ...], joined: int = 0) -> None:
    """Raise TensorError or OperandError for another type, shape or strides than a kernel takes.

    shape   of C, a batch in front
    joined  groups that share the rows of one C, each with columns of its own
    """
    name = operand.name
    if x.dtype != TYPES[operand.dtype.name]:
        way = f": {name}.int()" if operand.dtype.kind == "int" and not operand.written else ""
        raise TensorError(f"{name} is {x.dtype}; the epilogue's step says {TYPES[operand.dtype.name]}{way}")
    *batch, m, n = shape
    one = operand.shape(m, n)
    several = (joined, *one) if joined and operand.axes == "n" else (*batch, *one)
    fits = [one, several] if operand.axes else [(), (1,)]
    if operand.written and operand.axes:
        fits = fits[1:]
    if tuple(x.shape) not in fits:
        texts = " or ".join(str(list(fit)) for fit in dict.fromkeys(fits))
        raise TensorError(f"{name} has shape {list(x.shape)}; for a product of shape {list(shape)} it is {texts}")
    way = f"write to a contiguous tensor, and copy it to {name}" if operand.written else f"{name}.contiguous()"
    if len(operand.axes) == 1 and operand.count == 1 and x.shape[-1] > 1 and x.stride(-1) != 1:
        raise OperandError(f"{name}: elements lie {x.stride(-1)} apart, strides {x.stride()}; {way}")
    if operand.rank == 2 and x.numel() and not order_of(operand, x):
        what = "rows nor columns contiguous" if operand.axes == "mn" else "rows nor columns side by side"
        raise OperandError(f"{name}: strides {x.stride()} leave neither {what}; {way}")


def order_of_matrices(x: torch.Tensor) -> str:
    """Which index of the matrices is contiguous: "row" for the column index; "" for neither."""
    rows, columns = x.shape[-2:]
    if columns == 1 or x.stride(-1) == 1:
        return "row"
    return "col" if rows == 1 or x.stride(-2) == 1 else ""


def order_of(operand: Operand, x: torch.Tensor) -> str:
    """Which index of an operand of rank 2 is contiguous; "" where no kernel takes it."""
    return order_of_matrices(x) if operand.axes == "mn" else order_of_numbers(x)


def order_of_numbers(x: torch.Tensor) -> str:
    """Which index of several numbers a row or column is contiguous, as `order_of_matrices`. It is "" where lines have
    gaps.

    >>> [order_of_numbers(x) for x in (torch.empty(9, 4), torch.empty(4, 9).T, torch.empty(9, 8)[:, :4])]
    ['row', 'col', '']
    """
    order, (rows, columns) = order_of_matrices(x), x.shape[-2:]
    dense = rows == 1 or x.stride(-2) == columns if order == "row" else x.stride(-1) == rows
    return order if dense else ""


# ------------------------------------------------------------------------------------------------------------- on a CPU


def by_reference(
    a: torch.Tensor, b: torch.Tensor, kind: torch.dtype, epilogue: Epilogue, given: Tensors, gate: str | None = None
) -> torch.Tensor:
    """`Epilogue.reference` of a float64 product on the CPU, stored as `kind`.

    gate   as `check_fit` has it

    given  the epilogue's operands by name; those that it writes are written

    Raises OperandError where an operand's shape is not the epilogue's.

    >>> from layoutgemm.kernels.epilogue.chain import Bias
    >>> x = torch.eye(2).bfloat16()
    >>> by_reference(x, x, torch.float32, Epilogue(Bias()), {"bias": torch.tensor([1.0, 2.0])}).tolist()
    [[2.0, 2.0], [1.0, 3.0]]
    """
    return reference_of(multiply(a, b, torch.float32), kind, epilogue, given, gate=gate)


def reference_of(
    sums: torch.Tensor, kind: torch.dtype, epilogue: Epilogue, given: Tensors, groups: Groups = None,
    gate: SumsGate | None = None, visited: torch.Tensor | None = None,
) -> torch.Tensor:  # fmt: skip
    """The same of float32 sums.

    gate    the function of a gate, whose sums are of twice the columns, or None
    groups  of rows, as `Epilogue.reference_of_groups` has them: rows of no group are not written
    visited True for the elements (row, column) of an order's tiles: no others are reduced or written; None for all
    """

    def array(x: torch.Tensor, shape: Sequence[int]) -> Any:
        x = x.detach().resolve_neg()
        return (x if x.dtype == torch.int32 else x.float()).reshape(shape).numpy()

    values = {}
    for operand in epilogue.given:
        x = given[operand.name]
        if not operand.written:
            values[operand.name] = x if operand.host else array(x, () if not operand.axes else x.shape)
    try:
        how, numbers = (Gated(gate), {}) if isinstance(gate, str) else gate or (None, {})
        together = None if how is None else partial(how.apply, math=Math, numbers=numbers)
        if visited is not None:
            found = epilogue.reference_of_sums(sums.numpy(), together, visited.numpy(), **values)
        elif groups is not None:
            found = epilogue.reference_of_groups(sums.numpy(), groups, together, **values)
        elif together is not None:
            found = epilogue.reference_of_sums(sums.numpy(), together, **values)
        else:
            found = epilogue.reference(sums.numpy(), **values)
    except PlanError as error:
        raise OperandError(str(error)) from error
    parts = None if groups is None else parts_of(sums.shape, groups)
    combined = {step.name: COMBINED[present(step.reduction.atomic)] for step in epilogue.reductions if not step.ordered}
    for operand in [operand for operand in epilogue.given if operand.written]:
        target, value = given[operand.name], torch.from_numpy(np.array(found.written[operand.name]))
        if operand.name in combined:  # the caller may go on from earlier results
            value = combined[operand.name](value, target)
        if visited is not None and operand.axes == "mn":  # of units: their first columns
            value = torch.where(visited[:, :: operand.unit[1]], value.to(target.dtype), target)
        for part in parts if parts is not None and "m" in operand.axes else [...]:
            target[part] = value[part].to(target.dtype)
    return rounded(torch.from_numpy(found.c.copy()), kind)


# ------------------------------------------------------------------------------------------------------------- launches


def parts(batch: Sequence[int], tensors: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Tensors with a common batch in front, as problems of at most one batch dimension.

    >>> x, y = torch.empty(2, 3, 4, 5), torch.empty(3, 2, 4, 5).transpose(0, 1)
    >>> [[tuple(z.shape) for z in part] for part in parts((2, 3), [x, x])]
    [[(6, 4, 5), (6, 4, 5)]]
    >>> [[tuple(z.shape) for z in part] for part in parts((2, 3), [x, y])]
    [[(3, 4, 5), (3, 4, 5)], [(3, 4, 5), (3, 4, 5)]]
    """
    if len(batch) <= 1:
        yield list(tensors)
        return
    try:
        yield [x.view(prod(batch), *x.shape[len(batch) :]) for x in tensors]
    except RuntimeError:  # strides that no single one stands for
        for i in range(batch[0]):
            yield from parts(batch[1:], [x[i] for x in tensors])


def spread(
    a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, epilogue: Epilogue, given: Tensors
) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tensors]]:
    """a, b, c and the operands, as problems of at most one batch dimension."""
    batch = c.shape[:-2]
    lying = [operand for operand in epilogue.given if operand.axes]
    ranks = [operand.rank for operand in lying]
    values = [given[operand.name] for operand in lying]
    wide = [
        x if x.ndim == rank + len(batch) and x.shape[:-rank] == batch else x.expand(*batch, *x.shape[x.ndim - rank :])
        for x, rank in zip((a, b, c, *values), (2, 2, 2, *ranks))
    ]
    for one_a, one_b, one_c, *rest in parts(batch, wide):
        yield one_a, one_b, one_c, {**given, **{operand.name: x for operand, x in zip(lying, rest)}}


def finish_of(epilogue: Epilogue, given: Tensors, shape: Sequence[int], joined: bool = False) -> LaunchEpilogue:
    """The epilogue as a kernel takes it, with its parameters, for C of that shape.

    shape   (M, N) or (batch, M, N)
    joined  groups of rows share that C, each with columns of its own

    `given` has been checked, and its tensors have the batch in front where C has one. The word of a workspace, whose
    size follows from the kernel, is 0.
    """
    several = joined or (len(shape) > 2 and shape[0] > 1)
    placed: Tensors = {}
    orders: dict[str, str] = {}
    pairs, lines = shape[-1] % 2 == 0, shape[-1] % 8 == 0
    alone = False  # whether any of it differs from row to row, or from matrix to matrix
    for operand in epilogue.given:
        x = given[operand.name]
        if operand.host:
            placed[operand.name] = x
            continue
        made = placed[operand.name] = placed_of(operand, x, several)
        if not operand.axes:
            continue
        step, leading, order = made.batch, made.leading, "row"
        if operand.rank == 2:
            orders[operand.name] = order_of(operand, x)
        if operand.axes == "mn":
            order = orders[operand.name]
        alone = alone or operand.axes != "n" or step != 0
        if order == "row" and operand.axes != "m":
            pairs = pairs and lies_in_units(x, 2 * x.element_size(), leading, step)
            lines = lines and (operand.axes == "n" or operand.written or lies_in_units(x, VECTOR_BYTES, leading, step))
    alone = alone or any(
        isinstance(step, (Custom, Dropout, ColumnReduce)) for step in epilogue.steps
    )  # they may know their row
    steps = [ordered(step, orders) for step in epilogue.steps]
    lines = lines and any(orders[matrix.name] == "row" for matrix in epilogue.matrices)
    whole = gcd(shape[-1], _WIDTHS) if any(step.axes != "n" for step in epilogue.reductions) else 1
    taken = Epilogue(
        *steps, pairs=pairs, stores_c=epilogue.stores_c, sums=epilogue.sums, lines=lines,
        whole=whole if whole % _LEAST_WIDTH == 0 else 1,
    )  # fmt: skip
    return LaunchEpilogue(taken, words_of(taken, placed, 0), (taken, alone), alone)


def placed_of(operand: Operand, x: torch.Tensor, several: bool = True) -> PlacedOperand:
    """The place of a tensor's elements.

    several  matrices, each with operands of its own where x has one rank more
    """
    if not operand.axes:
        return PlacedOperand(x.data_ptr())
    leading = 0
    if operand.axes == "mn":
        across, along = (-2, -1) if order_of_matrices(x) == "row" else (-1, -2)
        leading = x.stride(across) if x.shape[across] > 1 else x.shape[along]
    return PlacedOperand(x.data_ptr(), leading, x.stride(0) if several and x.ndim > operand.rank else 0)
