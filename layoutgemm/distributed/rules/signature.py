"""Placements by the names of an operator's arguments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

import torch

from ...errors import OperandError

Placement: TypeAlias = "torch.distributed.tensor.placement_types.Placement"
Rule = tuple["list[Placement | None]", "list[Placement | None]"]


class Mesh(Protocol):
    """A device mesh."""

    def size(self) -> int:
        """The number of its devices."""


class TensorLike(Protocol):
    """An operand as DTensor hands it to a rule."""

    shape: tuple[int, ...]


class PlacedRule(NamedTuple):
    """One rule: the results' placements, and those of operands by name; other operands are replicated."""

    results: tuple[Placement, ...]
    operands: Mapping[str, Placement]


class OperatorCall:
    """An operator's arguments by name, with its defaults."""

    def __init__(self, operator: str, args: Sequence[object]) -> None:
        self.schema = getattr(torch.ops.layoutgemm, operator).default._schema.arguments
        self.args = args
        given = {x.name: x.default_value for x in self.schema if x.has_default_value()}
        self.given: dict[str, object] = {**given, **{x.name: value for x, value in zip(self.schema, args)}}

    def tensor(self, name: str) -> TensorLike:
        """A tensor that is given."""
        found = self.optional(name)
        if found is None:
            raise OperandError(f"{name} is missing")
        return found

    def optional(self, name: str) -> TensorLike | None:
        """A tensor, or None."""
        found = self.given[name]
        return found if found is None or hasattr(found, "shape") else None  # type: ignore[return-value]

    def text(self, name: str) -> str:
        """An argument that is a text, "" for None."""
        found = self.given[name]
        return found if isinstance(found, str) else ""

    def rules(self, found: Sequence[PlacedRule]) -> list[Rule]:
        """The rules as DTensor takes them. Placements in the order of the arguments that were given."""
        whole = whole_partial_shard()[0]
        made: list[Rule] = []
        for rule in found:
            inputs = [
                rule.operands.get(x.name, whole) if hasattr(value, "shape") else None
                for x, value in zip(self.schema, self.args)
            ]
            made.append(([*rule.results], inputs))
        return made


def whole_partial_shard() -> tuple[Placement, Placement, type]:
    """Replicate(), Partial() and Shard."""
    from torch.distributed.tensor import Partial, Replicate, Shard

    return Replicate(), Partial(), Shard


def parts_of(x: TensorLike) -> int:
    """The most parts that a dimension is cut into: the devices of an operand's mesh."""
    mesh: Mesh | None = getattr(x, "mesh", None)
    return 1 if mesh is None else mesh.size()
