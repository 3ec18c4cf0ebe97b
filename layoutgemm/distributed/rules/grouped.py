"""Sharding rules of grouped products.

    a             b             result        cut                    a         b         result
    ------------  ------------  ------------  ---------------------  --------  --------  ---------
    (rows, K)     (E, K, N)     (rows, N)     columns                          Shard(2)  Shard(1)
                                              K                      Shard(1)  Shard(1)  Partial
    (E, M, K)     (K, columns)  (M, columns)  rows                   Shard(1)            Shard(0)
                                              K                      Shard(2)  Shard(0)  Partial
    (M, K)        (K, N)        (E, M, N)     rows                   Shard(0)            Shard(1)
                                              columns                          Shard(1)  Shard(2)
    (E, M, K)     (E, K, N)     (E, M, N)     experts, with counts   Shard(0)  Shard(0)  Shard(0)
                                              rows, without counts   Shard(1)            Shard(1)
                                              columns                          Shard(2)  Shard(2)
                                              K                      Shard(2)  Shard(1)  Partial

Offsets count the rows of all groups, so what lies in groups is not cut: DTensor gathers it. Scales and gates are cut
as those of scaled products. A product of 16 bits is linear in each operand, so one may be partial.
"""

from __future__ import annotations

from ...torch_op.bias_activation import GATES
from .scaled import PlacedScales, scales_of
from .signature import OperatorCall, PlacedRule, Placement, Rule, TensorLike, whole_partial_shard

# Ranks of a and b -> the dimensions of a's rows, b's columns, K of a, and K of b; None for what lies in groups.
_DIMS: dict[tuple[int, int], tuple[int | None, int | None, int | None, int | None]] = {
    (2, 3): (None, 2, 1, 1),
    (3, 2): (1, None, 2, 0),
    (2, 2): (0, 1, None, None),
    (3, 3): (1, 2, 2, 1),
}


def grouped_rules(*args: object) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.grouped_matmul."""
    call = OperatorCall("grouped_matmul", args)
    whole, partial, _ = whole_partial_shard()
    found, scales = [PlacedRule((whole,), {})], scales_of(call)
    ranks = len(call.tensor("a").shape), len(call.tensor("b").shape)
    if scales is None or ranks not in _DIMS:
        return call.rules(found)
    found += _lines(call, ranks, *scales)
    of_a, of_b = scales
    if call.optional("bias") is None and not call.text("activation"):
        shard = whole_partial_shard()[2]
        *_, k_of_a, k_of_b = _DIMS[ranks]
        k_a, k_b = of_a.k(), of_b.k()
        if k_of_a is not None and k_a is not None and k_b is not None:
            given = {"a": shard(k_of_a), "scale_a": k_a, "b": shard(k_of_b), "scale_b": k_b}
            found.append(PlacedRule((partial,), given))
        if call.optional("scale_a") is None:
            found += [PlacedRule((partial,), {name: partial}) for name in ("a", "b")]
    return call.rules(found)


def _lines(call: OperatorCall, ranks: tuple[int, int], of_a: PlacedScales, of_b: PlacedScales) -> list[PlacedRule]:
    """With rows of a, columns of b, or experts cut."""
    shard = whole_partial_shard()[2]
    rows, columns, *_ = _DIMS[ranks]
    in_c = ranks[0] == ranks[1]  # a result of experts in front
    bias, groups, found = call.optional("bias"), call.optional("groups"), []
    masked = ranks == (3, 3) and groups is not None
    if rows is not None and not masked and (lines := of_a.lines()) is not None:
        found.append(PlacedRule((shard(int(in_c)),), {"a": shard(rows), "scale_a": lines}))
    if columns is not None and call.text("activation") not in GATES and (lines := of_b.lines()) is not None:
        given = {"b": shard(columns), "scale_b": lines, "bias": _last(bias)}
        found.append(PlacedRule((shard(1 + int(in_c)),), given))
    if ranks == (3, 3):
        own: dict[str, Placement] = {"a": shard(0), "b": shard(0), "groups": shard(0)}
        own |= {"scale_a": of_a.front(0), "scale_b": of_b.front(0)}
        if bias is not None and len(bias.shape) == 2:
            own["bias"] = shard(0)
        found.append(PlacedRule((shard(0),), own))
    return found


def _last(bias: TensorLike | None) -> Placement:
    """A bias of columns, or of each expert's, with columns cut."""
    found: Placement = whole_partial_shard()[2](0 if bias is None else len(bias.shape) - 1)
    return found
