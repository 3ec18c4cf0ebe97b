"""Sm90Config and Sm90Tuning as values: short form, replace, copies, text and JSON."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import pytest

from layoutgemm.errors import PlanError
from layoutgemm.kernels import Sm90Config, Sm90Tuning
from layoutgemm.kernels.compile.worker import choice_of, entry_of_choice
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice

KNOBS: dict[str, Any] = {
    "group": 4, "along": "N", "reverse_odd_tiles": True, "overlap": True, "trigger": "end", "prefetch": 1, "first": "B",
    "l2_promotion": "256B", "chunks": 1, "buffers": 2, "gpc_order": (((0, 1), 2),),
    "products": "warp", "box_rows": 64, "store_at_once": True,
    "scales": "sums", "features": 48, "skip_empty_blocks": True, "turn_last_pair": True, "halve_last_round": True,
    "shift_last_tile": True,
    "blocks_per_sm": 2, "finish": "cluster",
}  # fmt: skip
FULL = Sm90Config((64, 32), cluster=(2, 1), consumers=1, loader="warp", one_tile_per_cluster=True, **KNOBS)


def test_fields_and_knobs_are_apart() -> None:
    described, tuned = ({field.name for field in fields(kind)} for kind in (Sm90Config, Sm90Tuning))
    assert len(described) <= 14 and tuned == set(KNOBS) and not described & tuned
    assert [getattr(Sm90Tuning(**KNOBS), name) for name in KNOBS] == list(KNOBS.values())


def test_short_form_puts_knobs_into_tuning() -> None:
    tuning = Sm90Tuning(**KNOBS)
    assert FULL == Sm90Config(
        (64, 32), cluster=(2, 1), consumers=1, loader="warp", one_tile_per_cluster=True, tuning=tuning
    )
    assert {name: getattr(FULL, name) for name in KNOBS} == KNOBS
    base = Sm90Config(tuning=Sm90Tuning(group=2))
    assert Sm90Config(tuning=base.tuning, along="N").tuning == Sm90Tuning(group=2, along="N")


@pytest.mark.parametrize("name", KNOBS)
def test_replace_changes_one_knob_and_keeps_the_others(name: str) -> None:
    usual = getattr(Sm90Tuning(), name)
    if name == "overlap":  # prefetch needs it
        found, changes = replace(FULL, overlap=False, prefetch=0), {"overlap": False, "prefetch": 0}
    else:
        found, changes = replace(FULL, **{name: usual}), {name: usual}
    assert found.tuning == replace(FULL.tuning, **changes) and found.tile == FULL.tile
    assert found != FULL and FULL.tuned(**changes) == found
    assert replace(FULL, tile=(64, 64)).tuning == FULL.tuning


@pytest.mark.parametrize("config", [Sm90Config(), FULL])
def test_copies_and_texts_are_equal(config: Sm90Config) -> None:
    names = {"Sm90Config": Sm90Config, "Sm90Tuning": Sm90Tuning}
    for other in (
        copy.copy(config), copy.deepcopy(config), pickle.loads(pickle.dumps(config)), eval(repr(config), names),
        Sm90Config(**config.settings), Sm90Config(**json.loads(json.dumps(config.settings))),
    ):  # fmt: skip
        assert other == config and hash(other) == hash(config) and other.tuning == config.tuning
    assert len({config, config.tuned(group=3), replace(config, stages=2)}) == 3


def test_json_of_a_choice_is_flat_and_reads_back() -> None:
    choice = Sm90Choice(FULL, swapped=True)
    entry = json.loads(json.dumps(entry_of_choice(choice)))
    assert entry["config"]["group"] == 4 and "tuning" not in entry["config"]
    assert choice_of(entry) == choice
    for name in ("gpc_order", "dealt"):  # the second is of stored choices of version 0.1
        stored = {"swapped": False, "config": {"tile": [64, 32], "consumers": 1, "overlap": True, name: [[[0, 1], 2]]}}
        known = Sm90Config((64, 32), consumers=1, overlap=True, gpc_order=(((0, 1), 2),))
        assert choice_of(stored) == Sm90Choice(known)


@pytest.mark.parametrize(
    ("former", "name", "value"),
    [
        ("snake", "reverse_odd_tiles", True),
        ("dealt", "gpc_order", (((0, 1), 2),)),
        ("single", "one_tile_per_cluster", True),
        ("early", "staged_epilogue_k_tiles", 2),
    ],
)
def test_former_names_of_knobs_work_and_warn(former: str, name: str, value: object) -> None:
    config = Sm90Config(**{name: value})
    makers: list[Callable[..., Sm90Config]] = [Sm90Config, lambda **knobs: replace(Sm90Config(), **knobs)]
    for made in [*makers, *[Sm90Config().tuned] * hasattr(Sm90Tuning(), name)]:
        with pytest.warns(DeprecationWarning, match=f"Sm90Config.{former} is now {name}; the old name goes in"):
            assert made(**{former: value}) == config
    with pytest.warns(DeprecationWarning, match=f"Sm90Config.{former} is now {name}"):
        assert getattr(config, former) == value


@pytest.mark.parametrize(
    ("error", "settings", "why"),
    [
        (PlanError, {"trigger": "late"}, "trigger = 'late': known are 'start', 'end'"),
        (PlanError, {"chunks": 0}, "chunks of Sm90Tuning must be at least 1, not 0"),
        (PlanError, {"tuning": {"chunks": 1}}, "tuning of Sm90Config must be an? Sm90Tuning"),
        (PlanError, {"store": "smem"}, "store = 'smem': known are 'tma', 'direct'"),
        (TypeError, {"groups": 4}, "no field 'groups'"),
        (TypeError, {"tuning": Sm90Tuning(), "snakes": 1}, "no field 'snakes'"),
    ],
)
def test_errors_name_the_field(error: type[Exception], settings: dict[str, Any], why: str) -> None:
    with pytest.raises(error, match=why):
        Sm90Config(**settings)
    with pytest.raises(error, match=why):
        replace(Sm90Config(), **settings)


def test_unknown_names_and_assignments_are_refused() -> None:
    with pytest.raises(AttributeError, match="no field 'overlaps'"):
        _ = Sm90Config().overlaps
    for name in ("tile", "overlap"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(Sm90Config(), name, True)
