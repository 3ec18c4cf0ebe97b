"""Gated pairs of products in a decomposed graph. act(mm(x, gate)) * mm(x, up) becomes one operator.

    node of the graph                          becomes torch.ops.layoutgemm.
    -----------------------------------------  -------------------------------------------
    act(mm(x, gate)) * mm(x, up), views of it  combined_matmul(x, [gate, up], function)

Both products read the same x, and nothing else reads what lies between them and the result: in training the backward
pass does, and the pair stays.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch.fx import Graph, Node

from ..errors import LayoutError
from ..torch_op.operands.operators import text_of
from ..torch_op.prepared import target
from .activations import VIEWS, Match, following

_aten, _ours = torch.ops.aten, torch.ops.layoutgemm
_HOPPER = "sm_90a"


class GatedPair(NamedTuple):
    """A gated pair. The products, the activation of the first, and the node that multiplies it by the second.

    view  of the second product's result, or None
    """

    gate: Node
    up: Node
    match: Match
    product: Node
    view: Node | None

    @property
    def inner(self) -> set[Node]:
        """The nodes that the operator takes the place of, but the last."""
        views = {view for view in (self.view, self.match.view) if view is not None}
        return {self.gate, self.up, *self.match.inner, *views}


def gated_pair(gate: Node) -> GatedPair | None:
    """The pair whose first product is that mm, or None."""
    value = gate.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return None
    match = following(gate, value.dtype, value.ndim)
    if match is None or len(match.last.users) != 1:
        return None
    [product] = match.last.users
    factors = [x for x in product.args if x is not match.last]
    if product.target is not _aten.mul.Tensor or len(product.args) != 2 or len(factors) != 1:
        return None
    other = factors[0]
    if not isinstance(other, Node) or len(other.users) != 1:
        return None
    view, up = (other, other.args[0]) if other.target in VIEWS else (None, other)
    if not isinstance(up, Node) or up.target is not _aten.mm.default or len(up.users) != 1:
        return None
    same = _is_same(gate.args[0], up.args[0]) and up is not gate and (view is None) is (match.view is None)
    found = up.meta.get("val"), product.meta.get("val"), match.last.meta.get("val")
    if not same or not all(isinstance(x, torch.Tensor) for x in found):
        return None
    if not (found[0].shape == value.shape and found[1].shape == found[2].shape):
        return None
    if {x.dtype for x in found} != {value.dtype}:
        return None
    return GatedPair(gate, up, match, product, view)


def _is_same(x: object, y: object) -> bool:
    """True for one node, and for views of one node: a linear layer of three dimensions views its input."""
    if not isinstance(x, Node) or not isinstance(y, Node):
        return False
    return x is y or (x.target is y.target and x.target in VIEWS and x.args == y.args and x.kwargs == y.kwargs)


def join(graph: Graph, pair: GatedPair) -> str:
    """Put the operator in the pair's place; the reason why it takes none, or ""."""
    gate, up, match, product, _ = pair
    value = gate.meta["val"]
    try:
        if value.device.type == "cuda" and (code := target(value.device.index or 0)[0]) != _HOPPER:
            return f"{value.device} runs {code}: several products in one kernel need {_HOPPER}"
        operands = gate.args[0], [gate.args[1], up.args[1]]
        others: tuple[object, ...] = [], text_of(match.name, 2, ()), value.dtype
        fake = _ours.combined_matmul.default(*[_fakes(x) for x in operands], *others)
    except (LayoutError, RuntimeError, TypeError) as error:
        return str(error) or type(error).__name__
    with graph.inserting_before(product):
        made = graph.call_function(_ours.combined_matmul.default, (*operands, *others))
        made.meta = {**gate.meta, "val": fake}
        result = made
        if match.view is not None:
            result = graph.call_function(match.view.target, (made, *match.view.args[1:]))
            result.meta = {**product.meta}
    product.replace_all_uses_with(result)
    graph.erase_node(product)
    for old in sorted(pair.inner, reverse=True):
        graph.erase_node(old)
    return ""


def _fakes(x: object) -> object:
    if isinstance(x, list):
        return [_fakes(each) for each in x]
    return x.meta["val"] if isinstance(x, Node) else x
