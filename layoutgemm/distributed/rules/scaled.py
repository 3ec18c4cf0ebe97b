"""Sharding rules of scaled products and of quantize: operands together with their scales.

    cut        scales of rows    of 1 x 128 blocks        of 128 x 128 blocks        of the tensor
    ---------  ----------------  -----------------------  -------------------------  -------------
    rows of a  cut likewise      cut likewise             where shards are whole     replicated
                                                          blocks, or one has all
    K          replicated        where shards are whole blocks, or one has all       replicated
    batch      cut likewise      cut likewise             cut likewise               replicated

Columns of b are cut as rows of a are, but not those of a gate and of its pair. With K cut result and bias are partial,
so there is no activation, and a result of 8 bits is not computed so.
"""

from __future__ import annotations

import torch

from ...errors import LayoutError
from ...kernels.operands.promoted import DEPTH
from ...torch_op.bias_activation import GATES
from ...torch_op.fp8.operators import options_of
from ...torch_op.scaled_grouped.recipes import BLOCK, ROW, SQUARE, TENSOR, Recipes, ScaledOperand, Scales, recipes_of
from .signature import OperatorCall, PlacedRule, Placement, Rule, TensorLike, parts_of, whole_partial_shard


class PlacedScales:
    """The placements of one operand's scales. `lines`, `k` and `front` give None where they cannot be cut so.

    of, scale  the operand, and its scales or None
    recipe     the scales', "" without any
    """

    def __init__(self, of: ScaledOperand, scale: TensorLike | None, recipe: str, k: int, parts: int) -> None:
        self.of, self.scale, self.recipe, self.depth, self.parts = of, scale, recipe, k, parts
        self.whole, _, self.shard = whole_partial_shard()

    def lines(self) -> Placement | None:
        """With rows of a, or columns of b, cut."""
        if not self.recipe or self.recipe == TENSOR or self.scale is None:
            return self.whole
        rank, at = len(self.of.front), len(self.of.front)
        if self.recipe == SQUARE and self.of.size % (DEPTH * self.parts):
            return self.whole if self.of.size <= DEPTH else None
        if self.recipe == ROW and len(self.scale.shape) == rank + 2 and self.scale.shape[rank + 1] == self.of.size != 1:
            at = rank + 1
        found: Placement = self.shard(at)
        return found

    def k(self) -> Placement | None:
        """With K cut."""
        if self.scale is None or self.recipe not in (BLOCK, SQUARE) or self.of.blocks == 1:
            return self.whole
        if self.depth % (DEPTH * self.parts):
            return None
        found: Placement = self.shard(len(self.of.front) + 1)
        return found

    def front(self, place: int) -> Placement:
        """With a dimension of the batch cut."""
        if self.scale is None or self.recipe == TENSOR:
            return self.whole
        found: Placement = self.shard(place)
        return found


def scales_of(call: OperatorCall) -> tuple[PlacedScales, PlacedScales] | None:
    """The scales of a product's operands. None where they are refused, which the operator says itself."""
    a, b, scale_a, scale_b = call.tensor("a"), call.tensor("b"), call.optional("scale_a"), call.optional("scale_b")
    k = a.shape[-1]
    blocks, parts = -(-k // DEPTH), parts_of(a)
    of_a = ScaledOperand("a", tuple(a.shape[:-2]), a.shape[-2], blocks)
    of_b = ScaledOperand("b", tuple(b.shape[:-2]), b.shape[-1], blocks)
    recipes = Recipes("", "")
    if scale_a is not None:
        one, two = _typed(scale_a), None if scale_b is None else _typed(scale_b)
        try:
            recipes = recipes_of(of_a, one, call.text("recipe_a"), of_b, two, call.text("recipe_b"))
        except LayoutError:
            return None
    return PlacedScales(of_a, scale_a, recipes.a, k, parts), PlacedScales(of_b, scale_b, recipes.b, k, parts)


def _typed(scale: TensorLike) -> Scales:
    """Scales with their type, which DTensor has beside the shape."""

    class Typed:
        shape = tuple(scale.shape)
        dtype = getattr(getattr(scale, "tensor_meta", None), "dtype", torch.float32)

    return Typed()


def scaled_rules(*args: object) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.scaled_matmul."""
    return _scaled(OperatorCall("scaled_matmul", args), 1)


def scaled_quantized_rules(*args: object) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.scaled_matmul_quantized: columns in whole blocks of the result's scales."""
    return _scaled(OperatorCall("scaled_matmul_quantized", args), 2)


def _scaled(call: OperatorCall, results: int) -> list[Rule]:
    whole, partial, shard = whole_partial_shard()
    a, b, rank = call.tensor("a"), call.tensor("b"), len(call.tensor("a").shape)
    found = [PlacedRule((whole,) * results, {})]
    scales = scales_of(call)
    if scales is None or len(b.shape) != rank:
        return call.rules(found)
    of_a, of_b = scales
    if (lines := of_a.lines()) is not None:
        found.append(PlacedRule((shard(rank - 2),) * results, {"a": shard(rank - 2), "scale_a": lines}))
    gated = call.text("activation") in GATES
    blocks = results == 1 or not b.shape[-1] % (DEPTH * parts_of(a))
    if not gated and blocks and (lines := of_b.lines()) is not None:
        given = {"b": shard(rank - 1), "scale_b": lines, "bias": shard(0)}
        found.append(PlacedRule((shard(rank - 1),) * results, given))
    k_a, k_b = of_a.k(), of_b.k()
    plain = not call.text("activation") and _sums(call.given["out_dtype"])
    if results == 1 and plain and k_a is not None and k_b is not None:
        given = {"a": shard(rank - 1), "scale_a": k_a, "b": shard(rank - 2), "scale_b": k_b, "bias": partial}
        found.append(PlacedRule((partial,), given))
    for place in range(rank - 2):
        given = {"a": shard(place), "scale_a": of_a.front(place), "b": shard(place), "scale_b": of_b.front(place)}
        found.append(PlacedRule((shard(place),) * results, given))
    return call.rules(found)


def _sums(kind: object) -> bool:
    """True if results of a type are added between processes: not those of 8 bits."""
    return kind is None or (isinstance(kind, torch.dtype) and kind.itemsize > 1)


def quantize_rules(*args: object) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.quantize: a scale's elements stay together."""
    call = OperatorCall("quantize", args)
    whole, _, shard = whole_partial_shard()
    x = call.tensor("x")
    rank, parts, found = len(x.shape), parts_of(x), [PlacedRule((whole, whole), {})]
    given = call.given
    recipe = options_of(given["recipe"], given["dtype"], given["power_of_two"], given["scale_major"]).recipe
    cut = [] if recipe == TENSOR else [*range(rank - 2)]
    if recipe in (ROW, BLOCK) or (recipe == SQUARE and x.shape[-2] % (DEPTH * parts) == 0):
        cut.append(rank - 2)
    if recipe in (BLOCK, SQUARE) and x.shape[-1] % (DEPTH * parts) == 0:
        cut.append(rank - 1)
    found += [PlacedRule((shard(place), shard(place)), {"x": shard(place)}) for place in cut]
    return call.rules(found)


def quantize_both_rules(*args: object) -> list[Rule]:
    """Rules of torch.ops.layoutgemm.quantize_both: dimensions cut in whole blocks of a scale."""
    call = OperatorCall("quantize_both", args)
    whole, _, shard = whole_partial_shard()
    x = call.tensor("x")
    rank, parts, found = len(x.shape), parts_of(x), [PlacedRule((whole,) * 4, {})]
    found += [PlacedRule((shard(place),) * 4, {"x": shard(place)}) for place in range(rank - 2)]
    for place, turned in ((rank - 2, rank - 1), (rank - 1, rank - 2)):
        if x.shape[place] % (DEPTH * parts) == 0:
            results = shard(place), shard(place), shard(turned), shard(turned)
            found.append(PlacedRule(results, {"x": shard(place)}))
    return call.rules(found)
