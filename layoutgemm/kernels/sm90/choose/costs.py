"""The cost models' numbers. One JSON file a GPU, with the record that they were fitted to and each number's unit."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any


@dataclass(frozen=True)
class CostModel:
    """One cost model of a GPU. Its numbers are attributes, by the names in the JSON file.

    fitted_to  the record of measurements
    numbers    name -> value

    >>> cost_model("few_rows").start, cost_model("many_rows").paired[64]
    (1.5e-06, (1.006, 0.987))
    """

    fitted_to: str
    numbers: dict[str, Any] = field(repr=False)

    def __post_init__(self) -> None:
        self.__dict__.update(self.numbers)

    if TYPE_CHECKING:  # tests compare the names in use with those in the file

        def __getattr__(self, name: str) -> Any: ...


@cache
def _models(gpu: str) -> dict[str, CostModel]:
    """Name -> model, of the package's file `gpu`.json, read once."""
    entries = json.loads((files(__package__) / f"{gpu}.json").read_text(encoding="utf-8"))
    del entries["gpu"]
    return {name: CostModel(part.pop("fitted_to"), _values(part)) for name, part in entries.items()}


def cost_model(name: str, gpu: str = "h200") -> CostModel:
    """A GPU's cost model.

    name  of the H200's "places", "few_rows", "many_rows", "other_types" or "unaligned_rows"; of the H100's "promoted"
          or "indexed_rows"

    >>> cost_model("places").multiprocessors
    132
    """
    return _models(gpu)[name]


def changed(model: CostModel, **numbers: Any) -> CostModel:
    """The model with other numbers.

    >>> changed(cost_model("few_rows"), start=2e-6).start
    2e-06
    """
    return CostModel(model.fitted_to, model.numbers | numbers)


def _values(part: dict[str, list[object]]) -> dict[str, object]:
    """The values without their units; "256x224" and "64" are keys of two numbers and of one."""

    def plain(x: object) -> Any:
        if isinstance(x, dict):
            keys = [tuple(map(int, key.split("x"))) for key in x]
            return {key if len(key) > 1 else key[0]: plain(y) for key, y in zip(keys, x.values(), strict=True)}
        return tuple([plain(y) for y in x]) if isinstance(x, list) else x

    return {name: plain(value) for name, (value, _) in part.items()}
