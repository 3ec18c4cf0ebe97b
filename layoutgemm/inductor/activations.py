"""Activations in decomposed graphs: patterns traced with the framework's own decompositions, and their matches."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch._inductor.decomposition import select_decomp_table
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx

from ..torch_op.bias_activation import ACTIVATIONS

VIEWS = (torch.ops.aten.view.default, torch.ops.aten.reshape.default)
_MOST_NODES = 16  # that read a product and are compared with a pattern's last node


class ActivationPattern(NamedTuple):
    """An activation as a graph of one placeholder, by its last node."""

    name: str
    last: Node
    size: int


class Match(NamedTuple):
    """An activation that follows a product: its name, its last node, and its nodes.

    view  the node that gives the product another shape before, as a linear layer of three dimensions has, or None
    """

    name: str
    last: Node
    inner: frozenset[Node]
    view: Node | None = None


@functools.cache
def patterns(kind: torch.dtype, rank: int) -> tuple[ActivationPattern, ...]:
    """The activations of a tensor of that type, as Inductor decomposes them; the longest first.

    >>> [pattern.name for pattern in patterns(torch.float32, 2)][-1] in ACTIVATIONS
    True
    """
    found: dict[str, ActivationPattern] = {}
    for name, activation in ACTIVATIONS.items():
        graph = _traced(activation, torch.ones((3, 5, 7)[:rank], dtype=kind))
        last = next(node for node in graph.nodes if node.op == "output").args[0]
        if isinstance(last, Node):
            found[name] = ActivationPattern(name, last, len(graph.nodes))
    return tuple(sorted(found.values(), key=lambda pattern: -pattern.size))


def _traced(activation: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> Graph:
    """The graph of an activation; the wrapper has the one argument that make_fx counts."""

    def one(x: torch.Tensor) -> torch.Tensor:
        return activation(x)

    return make_fx(one, select_decomp_table(), tracing_mode="fake")(x).graph


def following(product: Node, kind: torch.dtype, rank: int) -> Match | None:
    """The activation that a product's result goes into and nothing else reads, or None.

    kind, rank  of the result
    """
    view = next(iter(product.users), None)
    if view is not None and len(product.users) == 1 and view.target in VIEWS and "val" in view.meta:
        found = following(view, kind, view.meta["val"].ndim)
        return None if found is None or found.view is not None else found._replace(view=view)
    ends = _descendants(product)
    for pattern in patterns(kind, rank):
        for end in ends:
            inner: dict[Node, Node] = {}
            if not _same(pattern.last, end, product, inner):
                continue
            nodes = frozenset(inner.values())
            if all(user in nodes for node in (product, *nodes - {end}) for user in node.users):
                return Match(pattern.name, end, nodes)
    return None


def _descendants(product: Node) -> list[Node]:
    """Nodes that read a product, directly or through others, nearest first."""
    found: dict[Node, None] = {}
    waiting = [product]
    while waiting and len(found) < _MOST_NODES:
        for user in waiting.pop(0).users:
            if user.op == "call_function" and user not in found:
                found[user] = None
                waiting.append(user)
    return list(found)


def _same(pattern: object, found: object, product: Node, inner: dict[Node, Node]) -> bool:
    """True if two nodes compute the same of the placeholder and of the product; fills `inner`."""
    if not isinstance(pattern, Node):
        if isinstance(pattern, (tuple, list)):
            if not isinstance(found, (tuple, list)) or len(pattern) != len(found):
                return False
            return all(_same(x, y, product, inner) for x, y in zip(pattern, found))
        return type(pattern) is type(found) and pattern == found
    if pattern.op == "placeholder":
        return found is product
    if not isinstance(found, Node) or found is product or pattern.target != found.target:
        return False
    if pattern in inner:
        return inner[pattern] is found
    inner[pattern] = found
    if len(pattern.args) != len(found.args) or pattern.kwargs.keys() != found.kwargs.keys():
        return False
    pairs = [*zip(pattern.args, found.args), *[(pattern.kwargs[key], found.kwargs[key]) for key in pattern.kwargs]]
    return all(_same(x, y, product, inner) for x, y in pairs)
