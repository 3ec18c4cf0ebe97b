"""torch.ops.layoutgemm.all_gather_matmul and matmul_reduce_scatter: as torch's compiler and autograd see them.

    gathered_rows(x, group)     the rows of all ranks
    summed_rows(x, group)       this rank's rows of all ranks' sum

A group is given by its name. The gradient of one product is the other one; those of b need the rows of all ranks:

    C = gathered(A) @ B           dA = this rank's rows of the sum of dC @ B^T      dB = gathered(A)^T @ dC
    C = this rank's rows of the   dA = gathered(dC) @ B^T                           dB = A^T @ gathered(dC)
        sum of A @ B

They are made of the same operators, so they have gradients of their own.
"""

from __future__ import annotations

import functools
from typing import TypeAlias

import torch
import torch.distributed as dist
from torch.autograd.function import FunctionCtx

from ..errors import OperandError, TensorError
from ..torch_op.api import matmul
from ..torch_op.checks import has_tangent, needs_dispatcher, refuse_derivatives
from ..torch_op.operators import operator_of, with_autograd
from .calls import GatherCall
from .checks import KINDS, SCALED, SHARD_ROWS, Group, group_of
from .kept import find
from .products import GATHER, PRODUCTS, SCATTER, OverlapOptions, gather_product, rows_beside, scatter_product
from .workspaces import raise_if_given_up

Scale: TypeAlias = torch.Tensor | None


def name_of(group: Group) -> str:
    """The name by which an operator knows a group."""
    return str((dist.distributed_c10d._get_default_group() if group is None else group).group_name)


def _group(name: str) -> dist.ProcessGroup:
    found: dist.ProcessGroup = dist.distributed_c10d._resolve_process_group(name)
    return group_of(found)


def _result(
    gathers: bool, a: torch.Tensor, b: torch.Tensor, scales: object, group: str, timeout: float
) -> torch.Tensor:
    """A result's shape and type; the product checks the operands."""
    if a.ndim != 2 or b.ndim != 2 or a.dtype not in KINDS:
        raise OperandError(f"a and b are {a.dtype}{list(a.shape)} and {b.dtype}{list(b.shape)}: no product of shards")
    ranks = _group(group).size()
    if not gathers and a.shape[0] % ranks:
        raise OperandError(f"a has {a.shape[0]} rows for {ranks} ranks: {a.shape[0]} % {ranks} != 0")
    rows = a.shape[0] * ranks if gathers else a.shape[0] // ranks
    return a.new_empty((rows, b.shape[1]), dtype=torch.bfloat16 if a.dtype in SCALED else a.dtype)


Call = tuple[bool, torch.Tensor, torch.Tensor, tuple[Scale, Scale], str, float]


def _call(
    gathers: bool, a: torch.Tensor, b: torch.Tensor, scale_a: torch.Tensor | None, scale_b: torch.Tensor | None,
    group: str, timeout: float,
) -> Call:  # fmt: skip
    return gathers, a, b, (scale_a, scale_b), group, timeout


def _computed(
    gathers: bool, a: torch.Tensor, b: torch.Tensor, scales: tuple[Scale, Scale], group: str, timeout: float
) -> torch.Tensor:
    multiply = gather_product if gathers else scatter_product
    return multiply(a.detach(), b.detach(), _group(group), scales, None, OverlapOptions(None, None, timeout))


for _name, _gathers in ((GATHER, True), (SCATTER, False)):
    operator_of(_name, functools.partial(_call, _gathers), _computed, _result)


def _rows_call(x: torch.Tensor, group: str) -> tuple[torch.Tensor, str]:
    return x, group


def _rows_of(x: torch.Tensor, rows: int) -> torch.Tensor:
    return x.new_empty((rows, *x.shape[1:]))


def gather_rows(x: torch.Tensor, group: str) -> torch.Tensor:
    """The rows of all ranks. They are sent as bytes: a CPU group does not send every type."""
    found, x = _group(group), x.detach().contiguous()
    whole = x.new_empty((x.shape[0] * found.size(), *x.shape[1:]))
    dist.all_gather_into_tensor(whole.view(torch.uint8), x.view(torch.uint8), group=found)
    return whole


def sum_rows(x: torch.Tensor, group: str) -> torch.Tensor:
    """This rank's rows of all ranks' sum."""
    found, x = _group(group), x.detach().contiguous()
    if x.device.type == "cpu":  # not every CPU group sums, and none every type
        every = gather_rows(x, group).float().unflatten(0, (found.size(), -1))
        return every.sum(0).chunk(found.size())[found.rank()].to(x.dtype)
    mine = x.new_empty((x.shape[0] // found.size(), *x.shape[1:]))
    dist.reduce_scatter_tensor(mine, x, group=found)
    return mine


operator_of("gathered_rows", _rows_call, gather_rows, lambda x, group: _rows_of(x, x.shape[0] * _group(group).size()))
operator_of("summed_rows", _rows_call, sum_rows, lambda x, group: _rows_of(x, x.shape[0] // _group(group).size()))


# Eager products and their gradients skip torch's dispatcher, unless something there has to see them.


def _product(name: str, a: torch.Tensor, b: torch.Tensor, group: str, timeout: float) -> torch.Tensor:
    try:
        return _computed_or_seen(name, a, b, group, timeout)
    except RuntimeError as error:  # of a context that an earlier call's kernel has ended, for one
        raise_if_given_up(error)
        raise


def _computed_or_seen(name: str, a: torch.Tensor, b: torch.Tensor, group: str, timeout: float) -> torch.Tensor:
    if not torch.compiler.is_compiling():
        none, way, found = (None, None), OverlapOptions(None, None, timeout), _group(group)
        key, kept = find(name, found, (a, b), none, None, way)
        if kept is not None:
            return kept.run(a, b, none, None)
        if not needs_dispatcher(a, b):
            return PRODUCTS[name](a, b, found, none, None, way, key)
    value: torch.Tensor = getattr(torch.ops.layoutgemm, name)(a, b, None, None, group, timeout)
    return value


def _rows(gathers: bool, x: torch.Tensor, group: str) -> torch.Tensor:
    if not needs_dispatcher(x):
        return (gather_rows if gathers else sum_rows)(x, group)
    operators = torch.ops.layoutgemm
    value: torch.Tensor = (operators.gathered_rows if gathers else operators.summed_rows)(x, group)
    return value


# With `setup_context` in place of `forward(ctx, ...)` torch would look up the signature in each call.


class _RowsOfRanks(torch.autograd.Function):
    """Gathered rows, or summed ones: each is the other's gradient."""

    @staticmethod
    def forward(ctx: FunctionCtx, x: torch.Tensor, group: str, gathers: bool) -> torch.Tensor:
        ctx.group, ctx.gathers = group, gathers
        return _rows(gathers, x, group)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        return _rows(not ctx.gathers, grad, ctx.group), None, None


with_autograd("gathered_rows", lambda x, group: _RowsOfRanks.apply(x, group, True))
with_autograd("summed_rows", lambda x, group: _RowsOfRanks.apply(x, group, False))


class _ShardProduct(torch.autograd.Function):
    """The product of a name, with its gradients."""

    @staticmethod
    def forward(
        ctx: FunctionCtx, name: str, a: torch.Tensor, b: torch.Tensor, group: str, timeout: float
    ) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        ctx.way = name, group, timeout
        return _product(name, a, b, group, timeout)

    @staticmethod
    def backward(ctx: FunctionCtx, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        (a, b), (name, group, timeout) = ctx.saved_tensors, ctx.way
        grad, gathers = grad.contiguous(), name == GATHER
        wants_a, wants_b = ctx.needs_input_grad[1:3]
        if wants_a and wants_b and _group(group).size() > 1 and grad.device.type == "cuda":
            if not needs_dispatcher(grad, a, b):
                both = _gradients_of_gather if gathers else _gradients_of_scatter
                return None, *both(grad, a, b, group, timeout), None, None
        of_a = of_b = None
        if wants_a:
            of_a = _product(SCATTER if gathers else GATHER, grad, b.mT, group, timeout)
        if wants_b:
            rows = (_rows(True, a, group), grad) if gathers else (a, _rows(True, grad, group))
            of_b = _gradient_of_b(*rows, b)
        return None, of_a, of_b, None, None


def _gradients_of_gather(
    grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, group: str, timeout: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a and b: the rows of A that b's needs come while a's is computed."""
    a = a.contiguous()
    rows = rows_beside(a, _group(group), timeout)
    rows.begin(a)
    of_a = _product(SCATTER, grad, b.mT, group, timeout)
    return of_a, _gradient_of_b(rows.end(), grad, b)


def _gradients_of_scatter(
    grad: torch.Tensor, a: torch.Tensor, b: torch.Tensor, group: str, timeout: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Gradients of a and b: the product for a's has gathered the rows that b's needs."""
    of_a = _product(GATHER, grad, b.mT, group, timeout)
    none, way, found = (None, None), OverlapOptions(None, None, timeout), _group(group)
    _, call = find(GATHER, found, (grad, b.mT), none, None, way)
    whole = call.rows_of_all(grad) if isinstance(call, GatherCall) else _rows(True, grad, group)
    return of_a, _gradient_of_b(a, whole, b)


def _gradient_of_b(a: torch.Tensor, grad: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """A^T @ dC, rows contiguous as in B: torch would copy another gradient of a weight."""
    return matmul(a.mT, grad) if b.stride(-1) == 1 else matmul(grad.mT, a).mT


def recorded(
    name: str, a: torch.Tensor, b: torch.Tensor, scale_a: Scale, scale_b: Scale, group: str, timeout: float
) -> torch.Tensor:
    """A product whose derivative is recorded. Raises OperandError and TensorError for those that have none."""
    if torch._C._functorch.peek_interpreter_stack() is not None:
        raise OperandError(f"{name}: torch.func takes no operator's derivative, and this product has no other")
    named = {"a": a, "b": b, "scale_a": scale_a, "scale_b": scale_b}
    if any(x is not None and has_tangent(x) for x in named.values()):
        raise TensorError(f"{name} has no forward derivative: give unpack_dual(x).primal of each tensor")
    if scale_a is not None or scale_b is not None:
        refuse_derivatives(named, "a product of float8 has none; use torch.no_grad(), or give its detach()")
    elif name == GATHER and a.requires_grad and a.shape[0] % SHARD_ROWS and a.device.type == "cuda":
        raise OperandError(f"a has {a.shape[0]} rows: its gradient needs a multiple of {SHARD_ROWS} rows in each shard")
    value: torch.Tensor = _ShardProduct.apply(name, a, b, group, timeout)
    return value


for _name in PRODUCTS:
    with_autograd(_name, functools.partial(recorded, _name))
