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

Scaled and grouped products, and packed weights, have theirs in `rules`. DTensor takes the rule that moves the fewest
bytes, and redistributes operands for it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch

from ..errors import OperandError
from ..kernels.run.operand_checks import WITHOUT_RULES
from ..torch_op import operators as _matmul  # noqa: F401  # defines the operators, as the next does
from ..torch_op.compiled.traced import OF_TENSORS
from ..torch_op.quantized import experts as _experts  # noqa: F401  # which imports the others
from ..torch_op.scaled_grouped import operators as _operators  # noqa: F401
from .rules.grouped import grouped_rules
from .rules.packed import PACKED
from .rules.scaled import quantize_both_rules, quantize_rules, scaled_quantized_rules, scaled_rules
from .rules.signature import Placement, Rule, TensorLike, whole_partial_shard


@functools.cache
def register_shardings() -> None:
    """Give DTensor the sharding rules of matmul, scaled and grouped products, quantize, and packed weights.

    Once a process, before a DTensor is multiplied; further calls do nothing. Also for calls that torch.compile traces.
    Products with row indices have no rule: DTensor refuses them by name.

    Raises OperandError, naming torch's version, where it has no `register_sharding`.
    """
    try:
        from torch.distributed.tensor.experimental import register_sharding
    except ImportError as error:
        name = "torch.distributed.tensor.experimental.register_sharding"
        raise OperandError(f"torch {torch.__version__} has no {name}: 2.6 and later have") from error
    WITHOUT_RULES.pop("DTensor", None)
    for name, rules in _RULES.items():
        operator = getattr(torch.ops.layoutgemm, name).default
        register_sharding(operator)(rules)
        _key_by_all_arguments(operator)
    for name, handler in PACKED.items():
        torch.library.register_torch_dispatch(f"layoutgemm::{name}", torch.distributed.tensor.DTensor, handler)
    for name in ("check", "check_scaled", "check_grouped", "check_quantize"):
        torch.library.register_torch_dispatch(f"layoutgemm::{name}", torch.distributed.tensor.DTensor, _checking(name))


def _key_by_all_arguments(operator: torch._ops.OpOverload) -> None:
    """Let DTensor keep a rule's choice for calls with the same arguments alone.

    register_sharding makes a key of tensors, and of what stands behind the first integer. Our texts stand in front: an
    activation that is a gate would be cut as the one before it was.
    """
    known = getattr(torch.distributed.tensor.DTensor._op_dispatcher.sharding_propagator, "op_to_schema_info", {})
    if operator not in known:
        raise OperandError(f"torch {torch.__version__} keeps sharding rules in another way: 2.6 to 2.14 are known")
    known[operator] = replace(known[operator], static_argnum=0)


def _checking(name: str) -> Callable[..., None]:
    """DTensor's rule of a traced call's check, on whole shapes: an operator without a result has no placements."""

    def rule(
        cls: type, operator: object, types: Sequence[type], arguments: Sequence[object] = (),
        named: Mapping[str, object] | None = None,
    ) -> None:  # fmt: skip
        del cls, operator, types
        OF_TENSORS[name](*arguments, **named or {})

    return rule


def product_rules(a: Sequence[int], b: Sequence[int], linear: bool) -> list[tuple[Placement, Placement, Placement]]:
    """Placements of (C, A, B) of a product of those shapes.

    linear  whether C's sums may still be partial: not where an epilogue follows
    """
    whole, partial, shard = whole_partial_shard()
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
    """Rules of torch.ops.layoutgemm.finished. A bias is sharded as C's columns are, or partial as C is.

    Sums that are partial have no activation yet.
    """
    whole, partial, shard = whole_partial_shard()
    rank, rest = max(len(a.shape), len(b.shape)), [None] * (1 + len(options))
    rules: list[Rule] = []
    for c, x, y in product_rules(a.shape, b.shape, activation is None):
        along = shard(0) if c == shard(rank - 1) else partial if c == partial else whole
        rules.append(([c], [x, y, None if bias is None else along, *rest]))
    return rules


def gated_rules(a: TensorLike, b: TensorLike, *options: object) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.gated. Columns stay whole, since a cut would part gates from their pairs."""
    rank = max(len(a.shape), len(b.shape))
    shard = whole_partial_shard()[2]
    kept = [rule for rule in product_rules(a.shape, b.shape, False) if rule[0] != shard(rank - 1)]
    return [([c], [x, y, *[None] * len(options)]) for c, x, y in kept]


_RULES: dict[str, Callable[..., list[Rule]]] = {
    "matmul": matmul_rules,
    "finished": finished_rules,
    "gated": gated_rules,
    "scaled_matmul": scaled_rules,
    "scaled_matmul_quantized": scaled_quantized_rules,
    "grouped_matmul": grouped_rules,
    "quantize": quantize_rules,
    "quantize_both": quantize_both_rules,
}
