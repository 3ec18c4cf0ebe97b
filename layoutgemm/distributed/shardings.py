"""Sharding rules of torch.ops.layoutgemm.* for DTensor.

For C = A @ B of A (batch..., M, K) and B (batch..., K, N), along one dimension of a device mesh:

    A            B            C            reads as
    -----------  -----------  -----------  -----------------------------------------------------------
    Replicate    Replicate    Replicate
    Shard(M)     Replicate    Shard(M)     data and sequence parallel
    Replicate    Shard(N)     Shard(N)     column-wise; a bias is sharded too
    Shard(K)     Shard(K)     Partial      row-wise; C's sums are reduced; not before an activation
    Shard(batch) Shard(batch) Shard(batch) a batch that only one operand has leaves the other replicated
    Partial      Replicate    Partial      linear in A, and likewise in B; not before an activation

DTensor takes the rule that moves the fewest bytes, and redistributes operands for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import torch

from ..errors import OperandError
from ..torch_op import library as _library  # noqa: F401  # defines the operators, as the next does
from ..torch_op.bias_activation import GATES
from ..torch_op.compiled.traced import OF_TENSORS
from ..torch_op.scaled_grouped import operators as _operators  # noqa: F401

Placement: TypeAlias = "torch.distributed.tensor.placement_types.Placement"


class TensorLike(Protocol):
    """An operand as DTensor hands it to a rule."""

    shape: tuple[int, ...]


Rule = tuple["list[Placement | None]", "list[Placement | None]"]
_ours = torch.ops.layoutgemm


@functools.cache
def register_shardings() -> None:
    """Give DTensor the sharding rules of matmul, finished, gated and scaled_matmul.

    Once a process, before a DTensor is multiplied; further calls do nothing. Also for calls that torch.compile traces.
    Grouped products have no rule: DTensor refuses them by name.

    Raises OperandError, naming torch's version, where it has no `register_sharding`.
    """
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError as error:
        name = "torch.distributed.tensor.experimental.register_sharding"
        raise OperandError(f"torch {torch.__version__} has no {name}: 2.6 and later have") from error
    register_sharding(_ours.matmul.default)(matmul_rules)
    register_sharding(_ours.finished.default)(finished_rules)
    register_sharding(_ours.gated.default)(gated_rules)
    register_sharding(_ours.scaled_matmul.default)(scaled_rules)
    for name in ("check", "check_scaled"):
        torch.library.register_torch_dispatch(f"layoutgemm::{name}", torch.distributed.tensor.DTensor, _checking(name))


def _checking(name: str) -> Callable[..., None]:
    """DTensor's rule of a traced call's check, on whole shapes: an operator without a result has no placements."""

    def rule(
        cls: type, operator: object, types: Sequence[type], arguments: Sequence[object] = (),
        named: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        del cls, operator, types
        OF_TENSORS[name](*arguments, **named or {})

    return rule


def _placements() -> tuple[Placement, Placement, type]:
    from torch.distributed.tensor import Partial, Replicate, Shard

    return Replicate(), Partial(), Shard


def product_rules(a: Sequence[int], b: Sequence[int], linear: bool) -> list[tuple[Placement, Placement, Placement]]:
    """Placements of (C, A, B) of a product of those shapes.

    linear  whether C's sums may still be partial: not where an epilogue follows
    """
    whole, partial, shard = _placements()
    rank = max(len(a), len(b))
    rows = shard(rank - 2), shard(len(a) - 2), whole
    columns = shard(rank - 1), whole, shard(len(b) - 1)
    rules = [(whole, whole, whole), rows, columns]
    if linear:
        rules.append((partial, shard(len(a) - 1), shard(len(b) - 2)))
        rules += [(partial, partial, whole), (partial, whole, partial)]
    for place in range(rank - 2):
        of_a, of_b = place - rank + len(a), place - rank + len(b)
        spread_a = of_a < 0 or a[of_a] == 1
        spread_b = of_b < 0 or b[of_b] == 1
        if not (spread_a and spread_b):
            rules.append((shard(place), whole if spread_a else shard(of_a), whole if spread_b else shard(of_b)))
    return rules


def matmul_rules(a: TensorLike, b: TensorLike, *options: object) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.matmul."""
    return [([c], [x, y, *[None] * len(options)]) for c, x, y in product_rules(a.shape, b.shape, True)]


def finished_rules(
    a: TensorLike, b: TensorLike, bias: TensorLike | None, activation: str | None, *options: object
) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.finished: a bias is sharded as C's columns are, or partial as C is.

    Sums that are partial have no activation yet.
    """
    whole, partial, shard = _placements()
    rank, rest = max(len(a.shape), len(b.shape)), [None] * (1 + len(options))
    rules: list[Rule] = []
    for c, x, y in product_rules(a.shape, b.shape, activation is None):
        along = shard(0) if c == shard(rank - 1) else partial if c == partial else whole
        rules.append(([c], [x, y, None if bias is None else along, *rest]))
    return rules


def gated_rules(a: TensorLike, b: TensorLike, *options: object) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.gated: columns stay whole, since a cut would part gates from their pairs."""
    rank = max(len(a.shape), len(b.shape))
    shard = _placements()[2]
    kept = [rule for rule in product_rules(a.shape, b.shape, False) if rule[0] != shard(rank - 1)]
    return [([c], [x, y, *[None] * len(options)]) for c, x, y in kept]


def scaled_rules(
    a: TensorLike, scale_a: TensorLike, b: TensorLike, scale_b: TensorLike | None = None,
    bias: TensorLike | None = None, *options: object,
) -> list[Rule]:  # fmt: skip
    """Rules of torch.ops.layoutgemm.scaled_matmul: whole operands, rows or columns with the scales of each.

    Scales of 128 rows or columns are not cut: a shard may end inside of a block. Nor are the columns of a gate and of
    its pair.
    """
    whole, _, shard = _placements()
    rank, m, n = len(a.shape), a.shape[-2], b.shape[-1]
    rest = [None] * len(options)
    none_b, none_bias = (None if scale_b is None else whole), (None if bias is None else whole)
    rules: list[Rule] = [([whole], [whole, whole, whole, none_b, none_bias, *rest])]
    lines_a, lines_b = _line(scale_a, m), _line(scale_b, n)
    if lines_a is not None:
        rules.append(([shard(rank - 2)], [shard(rank - 2), lines_a, whole, none_b, none_bias, *rest]))
    gated = bool(options) and options[0] in GATES  # an activation follows the bias
    if not gated and (lines_b is not None or scale_b is None):
        over = None if bias is None else shard(0)
        rules.append(([shard(rank - 1)], [whole, whole, shard(rank - 1), lines_b, over, *rest]))
    return rules


def _line(scale: TensorLike | None, size: int) -> Placement | None:
    """The placement of scales whose operand's rows or columns are sharded; None where they cannot be."""
    whole, _, shard = _placements()
    if scale is None:
        return None
    if all(n == 1 for n in scale.shape):
        return whole
    places = [place for place, n in enumerate(scale.shape) if n == size]
    return shard(places[0]) if places else None
