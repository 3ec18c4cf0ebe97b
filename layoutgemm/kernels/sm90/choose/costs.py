"""The cost models' numbers: one JSON file a GPU, which names the record that they were fitted to and each unit."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from ....schedule.gpc_order import Rounds


@dataclass(frozen=True)
class PlaceFacts:
    """Resident clusters of a GPU, and the order in which it deals them out."""

    fitted_to: str
    multiprocessors: int
    clusters: tuple[int, ...]
    rounds: dict[int, Rounds]


@dataclass(frozen=True)
class FewRowsModel:
    """Numbers of the model for up to 64 rows: `small_m`."""

    fitted_to: str
    memory: float
    one_sm: float
    l2: float
    start: float
    late: float
    step: float
    step_column: float
    exchange: float
    exchange_kb: float
    at_once: float
    at_once_swapped: float
    narrow: float
    narrow_lines: int
    together: int
    wave: float
    crowded: float
    few_idle: int
    last_wave: float
    sparse: float
    spare: int
    many_idle: int
    crowded_one: float
    alike: float
    unaligned: dict[int, float]
    unaligned_longer: float
    most_each: float
    fetched: int
    long_k: int
    sharing_columns: int
    sharing_tiles: int
    half_spans: float


@dataclass(frozen=True)
class ManyRowsModel:
    """Numbers of the model for more than 64 rows of 16-bit elements: `large_m`."""

    fitted_to: str
    clock: float
    heat: float
    heating: float
    cool: float
    turn_loss: float
    read_a: int
    read_column: float
    read_hidden: float
    lines: int
    halved: float
    l2: float
    l2_later: float
    weights: float
    shared: float
    shared_later: float
    paired: dict[int, tuple[float, float]]
    memory: float
    again: float
    apart: float
    shallow: float
    step: float
    end: float
    end_256: float
    power_256: float
    end_192: float
    power_192: float
    end_64: float
    wave: float
    start: float
    crowded: float
    crowded_split: float
    few_idle: int
    later: float
    most_each: float
    fill: float
    fill_whole: float
    large_loss: float
    part_span: float
    between: float
    between_later: float
    wide_alone: float
    low_sharing: float
    swapped: float
    swapped_end: float
    across: float
    exchange: float
    exchange_128: float
    sent: float
    more_parts: float
    late_split: float
    early_split: int
    early_sharing: int
    together: float
    lines_together: float
    large: float
    fill_dealt: float
    after: float
    long_work: float
    rounds_of_a: float
    band: float
    narrow_band: int
    long_k: int
    edge: int
    many: int
    unequal: int
    least_split: int


@dataclass(frozen=True)
class OtherTypesModel:
    """Numbers of the model for other types, and of gated products: `rules`."""

    fitted_to: str
    clock: float
    tile_cycles: int
    low_tile_cycles: int
    short_work: float
    rates: dict[tuple[int, int], float]
    cluster_bytes: int
    narrow_cluster_bytes: int
    memory: float
    launch: float
    one_sm: float
    l2: float
    l2_alone: float
    shared: float
    unshared: float
    turns: float
    fetched: int


@dataclass(frozen=True)
class UnalignedRowsModel:
    """Numbers that compare mma.sync with a copy for TMA: `torch_op.choose`."""

    fitted_to: str
    by_tma: float
    by_lines: float
    memory: float
    copied: float
    copy: float
    launch: float
    narrow: dict[int, float]


@dataclass(frozen=True)
class PromotedModel:
    """Numbers of the model for products whose K blocks are scaled: `scaled_grouped`."""

    fitted_to: str
    multiprocessors: int
    start: float
    memory: float
    l2: float
    added: float
    wave: float
    exchange: dict[int, float]
    step: dict[tuple[int, int], float]
    full_start: float
    full_wait: float
    full_step: dict[tuple[int, int], float]
    full_end: dict[tuple[int, int], float]


@dataclass(frozen=True)
class CostModel:
    """All that was measured of one GPU for the choice of kernels."""

    gpu: str
    places: PlaceFacts
    few_rows: FewRowsModel
    many_rows: ManyRowsModel
    other_types: OtherTypesModel
    unaligned_rows: UnalignedRowsModel


@cache
def cost_model(name: str = "h200") -> CostModel:
    """The numbers of the package's file `name`.json, read once.

    >>> model = cost_model()
    >>> model.gpu.partition(":")[0], model.places.multiprocessors, model.many_rows.paired[64]
    ('NVIDIA H200', 132, (1.006, 0.987))
    """
    gpu, parts = _read(name)
    return CostModel(gpu, **parts)


@cache
def promoted_model(name: str = "h100") -> PromotedModel:
    """The numbers for scaled products of the package's file `name`.json, read once.

    >>> promoted_model().step[64, 32]
    1.4e-07
    """
    model: PromotedModel = _read(name)[1]["promoted"]
    return model


def _read(name: str) -> tuple[str, dict[str, Any]]:
    """The GPU that a file is of, and its parts."""
    entries = json.loads((files(__package__) / f"{name}.json").read_text(encoding="utf-8"))
    gpu = entries.pop("gpu")
    return gpu, {name: _PARTS[name](**{key: _value(x) for key, x in part.items()}) for name, part in entries.items()}


_PARTS: dict[str, Any] = {
    "promoted": PromotedModel,
    "places": PlaceFacts, "few_rows": FewRowsModel, "many_rows": ManyRowsModel, "other_types": OtherTypesModel,
    "unaligned_rows": UnalignedRowsModel,
}  # fmt: skip


def _value(entry: Any) -> Any:
    """A value without its meaning; "256x224" and "64" are keys of two numbers and of one."""
    value = entry if isinstance(entry, str) else entry[0]
    if isinstance(value, dict):
        keys = [tuple(map(int, key.split("x"))) for key in value]
        return {key[0] if len(key) == 1 else key: _tuples(x) for key, x in zip(keys, value.values(), strict=True)}
    return _tuples(value)


def _tuples(x: Any) -> Any:
    return tuple([_tuples(y) for y in x]) if isinstance(x, list) else x
