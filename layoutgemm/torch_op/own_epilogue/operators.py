"""torch.ops.layoutgemm.epilogue_matmul: products with an epilogue, as torch's compiler and functorch see them.

`epilogue` is `Epilogue.json`. Its operands are in four lists, each in the steps' order: tensors that are read, tensors
that are written, numbers and whole numbers of the launch. `activation` gates, before the epilogue. The result of an
epilogue without a C has no elements. No derivative: a recorded one is refused. vmap makes a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from ...errors import OperandError, PlanError, TensorError
from ...graph_marks import constant_in_graphs
from ...kernels.epilogue.chain import Epilogue
from ...kernels.epilogue.parameters import check_names
from ...kernels.epilogue.steps import EpilogueOperand
from ...kernels.run.operand_checks import check_operands
from ..checks import check_call, check_out
from ..compiled.traced import CHECKS, checking_operator
from ..epilogue import (
    GivenOperands,
    Tensors,
    arguments_beside,
    check_fit,
    epilogue_product,
    gate_of,
    refusal_of_epilogue,
)
from ..operators import Places, VmapInfo, configured, in_front, operator_of
from ..prepared import Config
from ..problem import gated_shapes
from .derivatives import EpilogueProduct, recorded, refusal_of_derivatives
from .names import OperandNames

_FOREIGN = "the epilogue has a step of another package, which no graph holds: Custom.of makes a step of a function"


@lru_cache(256)
def epilogue_of_text(text: str) -> Epilogue:
    """The epilogue of `Epilogue.json`. Raises OperandError for another text, and for the transposed C's."""
    if not text:
        raise OperandError(_FOREIGN)
    try:
        found = Epilogue.from_json(text)
    except PlanError as error:
        raise OperandError(str(error)) from error
    if found.flipped:
        raise OperandError("the epilogue is that of the transposed C: an operator turns it by itself")
    return found


@constant_in_graphs
def operand_names(text: str) -> tuple[tuple[str, ...], ...]:
    """The names of the operands of an epilogue as text, in the operator's four lists."""
    return tuple(OperandNames.of(epilogue_of_text(text)))


def _check_names(text: str, given: Sequence[str]) -> None:
    check_names([operand.name for operand in epilogue_of_text(text).given], given)


def operands_of(
    text: str, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor], numbers: Sequence[float],
    wholes: Sequence[int],
) -> tuple[Epilogue, Tensors]:  # fmt: skip
    """The epilogue of a text, and its operands by name. Raises OperandError for other numbers of them."""
    steps = epilogue_of_text(text)
    known = [0 if isinstance(x, torch.SymInt) else x for x in wholes]  # the launch looks at a symbol's value
    every: Tensors = {}
    for said, names, values in zip(OperandNames._fields, OperandNames.of(steps), (read, written, numbers, known)):
        if len(names) != len(values):
            of = ", ".join(names) or "none"
            raise OperandError(f"{said} has {len(values)} operands, and the epilogue has {of}")
        every |= zip(names, values)
    return steps, every


def with_symbols(steps: Epilogue, operands: GivenOperands, wholes: Sequence[int]) -> GivenOperands:
    """The operands with whole numbers as the operator has them: symbols, of which `operands_of` makes 0."""
    return operands._replace(every={**operands.every, **dict(zip(OperandNames.of(steps).wholes, wholes, strict=True))})


def _checked(
    a: torch.Tensor, b: torch.Tensor, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor],
    numbers: Sequence[float], wholes: Sequence[int], epilogue: str, out: torch.Tensor | None,
    out_dtype: torch.dtype | None, allow_tf32: bool | None, activation: str | None,
) -> EpilogueProduct:  # fmt: skip
    """The product of an operator's arguments. Raises OperandError or TensorError for those that do not fit."""
    steps, every = operands_of(epilogue, read, written, numbers, wholes)
    gate = gate_of(activation)
    if refused := refusal_of_epilogue(steps, every, arguments_beside(None, activation), gate is not None):
        raise OperandError(refused)
    of_steps = [{name: every[name] for name in names} for names in (steps.reads, steps.writes)]
    check_operands({"a": a, "b": b, **of_steps[0]}, {**of_steps[1], **({} if out is None else {"out": out})})
    left, right, kind = check_call(a, b, None, out_dtype, allow_tf32)
    shape = tuple(gated_shapes(left.shape, right.shape, gate).result)
    if out is not None:
        check_out(out, shape, kind, {"a": left, "b": right})
    check_fit(left, right, kind, steps, every, out, gate)
    return EpilogueProduct(left, right, kind, steps, every, shape, gate, activation)


def _call(
    a: torch.Tensor, b: torch.Tensor, read: Sequence[torch.Tensor], written: Sequence[torch.Tensor],
    numbers: Sequence[float], wholes: Sequence[int], epilogue: str, out_dtype: torch.dtype | None = None,
    config: str = "", allow_tf32: bool | None = None, activation: str | None = None,
) -> tuple[EpilogueProduct, Sequence[int], Config | None]:  # fmt: skip
    call = _checked(a, b, read, written, numbers, wholes, epilogue, None, out_dtype, allow_tf32, activation)
    return call, wholes, configured(config)


def _computed(of: EpilogueProduct, wholes: Sequence[int], config: Config | None) -> torch.Tensor:
    return epilogue_product(of.a, of.b, of.kind, of.epilogue, of.every, config, None, of.gate).contiguous()


CHECK_EPILOGUE = checking_operator("check_epilogue", _checked)


def _recorded(call: EpilogueProduct, wholes: Sequence[int], config: Config | None) -> torch.Tensor:
    symbols = dict(zip(OperandNames.of(call.epilogue).wholes, wholes, strict=True))
    return recorded(call._replace(every={**call.every, **symbols}), config)


def _mapped(
    info: VmapInfo, in_dims: Places, a: torch.Tensor, b: torch.Tensor, read: Sequence[torch.Tensor],
    written: Sequence[torch.Tensor], numbers: Sequence[float], wholes: Sequence[int], epilogue: str, *others: object,
) -> tuple[torch.Tensor, int]:  # fmt: skip
    """A batch of all slices. Raises OperandError for what one launch cannot have several of."""
    size, steps = info.batch_size, epilogue_of_text(epilogue)
    ranks = [x.ndim - (at is not None) for x, at in zip((a, b), in_dims)]
    batch = max(ranks) - 2
    stays = in_dims[0] is None and in_dims[1] is not None
    left = a if stays else _in_batch(a, in_dims[0], size, 2, batch)
    right = b if in_dims[1] is None else _in_batch(b, in_dims[1], size, 2, batch)
    of_read = [
        _operand_of_slices(steps.named_given(name), x, at, size, batch)
        for name, x, at in zip(steps.reads, read, in_dims[2], strict=True)
    ]
    of_written = [
        _operand_of_slices(steps.named_given(name), x, at, size, batch)
        for name, x, at in zip(steps.writes, written, in_dims[3], strict=True)
    ]
    value = torch.ops.layoutgemm.epilogue_matmul(left, right, of_read, of_written, numbers, wholes, epilogue, *others)
    return (value if steps.stores_c else value.new_empty(size, 0)), 0


operator_of(
    "epilogue_matmul",
    _call,
    _computed,
    lambda call, *_: call.a.new_empty(call.shape if call.epilogue.stores_c else (0,), dtype=call.kind),
    _recorded,
    _mapped,
    mutates=("written",),
    autocast=True,
)


def check_mapped(operand: EpilogueOperand, at: int | None) -> None:
    """Raise OperandError for an operand that every slice of a mapped call would write."""
    if operand.written and at is None:
        raise OperandError(
            f"{operand.name} is one tensor for all that torch.func.vmap maps, and is written to: map it, too"
        )


def _operand_of_slices(
    operand: EpilogueOperand, x: torch.Tensor, at: int | None, size: int, batch: int
) -> torch.Tensor:
    """An operand of the batch of all slices: a view, so that what is written lies in the caller's tensor."""
    check_mapped(operand, at)
    rank = operand.rank
    if not rank:
        if at is not None:
            raise OperandError(f"{operand.name} is mapped by torch.func.vmap, and a launch has one")
        return x
    if at is None and x.ndim == rank:
        return x
    return _in_batch(x, at, size, rank, batch)


def _in_batch(x: torch.Tensor, at: int | None, size: int, rank: int, batch: int) -> torch.Tensor:
    """The tensor with the mapped dimension in front of a batch of that many dimensions."""
    x = in_front(x, at, size)
    missing = batch - (x.ndim - 1 - rank)
    return x.reshape(size, *(1,) * missing, *x.shape[1:]) if missing else x


def _check_derivative(text: str, multiplied: torch.dtype, asked: torch.dtype | None) -> None:
    """Raise TensorError for a derivative that is recorded, and that the product does not have."""
    steps = epilogue_of_text(text) if text else None
    if refused := refusal_of_derivatives(steps, multiplied, asked or multiplied):
        raise TensorError(refused)


# A call's values that are no tensors, for the compiler.
CHECKS["epilogue"] = _check_names
CHECKS["derivative"] = _check_derivative
