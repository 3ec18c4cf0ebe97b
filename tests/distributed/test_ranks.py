"""Kernels of shards on several emulated devices: copies, flags and counters in adversarial orders between them."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from layoutgemm.atoms import wgmma
from layoutgemm.emulator.devices import Stream, emulate_devices
from layoutgemm.errors import DeadlockError, EmulatorError, PlanError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.sm90.shards import Gathered, Patience, Scattered, check_division
from layoutgemm.schedule import ShardByShard
from tests import needs

sys.path.insert(0, str(Path(__file__).parent))
from ranks import Ranks, gathered, scaled, scattered

from layoutgemm.emulator.api import described, emulate_ptx

needs_dsl = needs.DSL
SLOW = [pytest.mark.slow]
# Rows of a shard are no whole tiles of A; C has a ragged edge along N.
GATHER = {"tile": (128, 64), "stages": 3}
SCATTER = {"tile": (128, 64), "stages": 3, "loader": "warpgroup", "chunks": 1, "buffers": 2}
WIDE = {**SCATTER, "cluster": (2, 1)}
TURNS = {**SCATTER, "schedule": "pingpong"}
PAIR = {"tile": (128, 64), "stages": 3, "cluster": (2, 1), "loader": "warp", "chunks": 1, "buffers": 2}


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    ("ranks", "order", "config", "rows"),
    [
        (2, "devices first", GATHER, 150),
        (4, "random", GATHER, 150),
        (2, "random", GATHER, 256),
        (2, "random", {**PAIR, "tile": (128, 240), "loader": "warpgroup"}, 256),
        pytest.param(2, "copies first", PAIR, 150, marks=SLOW),
        pytest.param(3, "random", PAIR, 384, marks=SLOW),
        pytest.param(4, "devices first", GATHER, 384, marks=SLOW),
    ],
)
def test_all_gather_product_is_exact(ranks: int, order: str, config: dict[str, object], rows: int) -> None:
    """A shard of `rows` is some whole tiles, or not: then a tile has rows of two shards."""
    k, chunks = (192, 1) if ranks == 2 else (64, 3)
    given = Ranks(gathered(ranks * rows, 96, k, **config), ranks, chunks)
    done = emulate_devices(given.launches(), given.streams(), order=order, seed=ranks)
    assert not given.wrong()
    assert not [one.report() for one in done if one.findings]


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize(
    ("ranks", "k", "order", "config", "c", "how"),
    [
        (2, 128, "devices first", SCATTER, "bf16", {"chunks": 4}),
        (2, 384, "random", SCATTER, "bf16", {"chunks": 2}),
        (4, 64, "random", SCATTER, "bf16", {"chunks": 2, "calls": 3}),
        (2, 128, "random", SCATTER, "bf16", {"chunks": 2, "copies": True}),
        (2, 128, "copies first", {**TURNS, "cluster": (2, 1)}, "bf16", {"chunks": 4, "copies": True}),
        (2, 384, "random", TURNS, "bf16", {"chunks": 2, "calls": 2}),
        pytest.param(2, 64, "copies first", {**TURNS, "tile": (64, 64)}, "f32", {"chunks": 4}, marks=SLOW),
        pytest.param(2, 320, "random", WIDE, "bf16", {"chunks": 2}, marks=SLOW),
        pytest.param(3, 512, "copies first", WIDE, "f32", {"chunks": 2, "copies": True}, marks=SLOW),
        pytest.param(4, 64, "devices first", SCATTER, "bf16", {"chunks": 4}, marks=SLOW),
    ],
)
def test_reduce_scatter_product_is_exact(
    ranks: int, k: int, order: str, config: dict[str, object], c: str, how: dict[str, int]
) -> None:
    """From 5 K tiles on the loader counts a tile, below its consumers do: a kernel of 3 stages."""
    rows = 1024 if ranks == 2 else 256 * ranks
    given = Ranks(scattered(rows, 88, k, c, **config), ranks, **how)
    done = emulate_devices(given.launches(), given.streams(), order=order, seed=ranks)
    assert not given.wrong()
    assert not [one.report() for one in done if one.findings]


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_products_of_8_bits_with_scales_are_exact(kind: str) -> None:
    """Each rank has scales of its own; a scatter applies them before sums are rounded and sent."""
    shards, rows = (Gathered(), 300) if kind == "gather" else (Scattered(), 512)
    given = Ranks(scaled(shards, rows, 88, 256, **SCATTER), 2, chunks=2)
    done = emulate_devices(given.launches(), given.streams(), order="random", seed=3)
    assert not given.wrong()
    assert not [one.report() for one in done if one.findings]


def small(kind: str) -> Ranks:
    plan = gathered(300, 96, 192, **GATHER) if kind == "gather" else scattered(512, 88, 128, **SCATTER)
    return Ranks(plan, 2, chunks=1, copies=kind == "scatter")


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_lost_flag_is_a_deadlock_that_names_the_device(kind: str) -> None:
    given = small(kind)
    with pytest.raises(DeadlockError, match=r"device 1: no thread can go on(.|\n)*\(loads by TMA"):
        emulate_devices(given.launches(), given.streams(lost=(1, 0)))


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_a_wait_ends_with_rank_and_flag_on_record(kind: str) -> None:
    given = small(kind)
    given.patience = Patience(40 if kind == "gather" else 1000, 0)  # what is not lost comes sooner
    with pytest.raises(EmulatorError, match="device 1: trap was executed"):
        emulate_devices(given.launches(), given.streams(lost=(1, 0)), order="copies first")
    assert given.records[1].tolist() == [1, 0, 1, 1]  # flag 0, which was 0 and not 1, on rank 1
    assert given.records[0].tolist() == [0, 0, 0, 0]


@needs_dsl
@pytest.mark.dsl
def test_the_limit_of_a_wait_is_by_the_clock_and_not_by_loads() -> None:
    """Rows come after more than four loads of their flag: in time, unless that is the limit."""
    for limit in (1 << 20, 0):
        given = small("gather")
        given.patience = Patience(4, limit)
        with nullcontext() if limit else pytest.raises(EmulatorError, match="trap was executed"):
            emulate_devices(given.launches(), given.streams(), order="devices first")
        assert bool(given.wrong()) is not bool(limit)
    given = small("gather")
    given.patience = Patience(4, 1)
    with pytest.raises(EmulatorError, match="device 1: trap was executed"):
        emulate_devices(given.launches(), given.streams(lost=(1, 0)), order="copies first")
    assert given.records[1].tolist() == [1, 0, 1, 1]


@needs_dsl
@pytest.mark.dsl
def test_a_rank_that_does_not_begin_is_on_record() -> None:
    given = Ranks(scattered(512, 88, 128, **SCATTER), 2, chunks=1, patience=Patience(40, 0))
    with pytest.raises(EmulatorError, match="trap was executed"):
        emulate_devices([given.launch(1)])
    assert given.records[1].tolist() == [1 + given.begun, 0, 1, 1]  # rank 1 waited for rank 0 to begin its first call
    assert (given.inbox[0] == 0xFF).all()  # and stored nothing into its room before


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("kind", ["gather", "scatter"])
def test_without_the_wait_every_rank_is_wrong(kind: str) -> None:
    given = small(kind)
    given.target = 0  # flags are 0: every wait ends at once
    emulate_devices(given.launches(), given.streams())
    assert given.wrong() == [0, 1]


def test_devices_that_wait_for_each_other_are_named() -> None:
    text = """
    .version 8.0
    .target sm_80
    .visible .entry pass(.param .u64 mine, .param .u64 theirs) { .reg .pred %p; .reg .b32 %r<2>; .reg .b64 %d<2>;
      ld.param.u64 %d0, [mine];
      ld.param.u64 %d1, [theirs];
    AGAIN:
      ld.acquire.sys.global.u32 %r0, [%d0];
      setp.eq.u32 %p, %r0, 0;
      @%p bra AGAIN;
      st.release.sys.global.u32 [%d1], %r0;
      ret; }"""
    words = [np.zeros(1, np.uint32) for _ in range(2)]
    launches = [described(text, 1, 1, 1, 0, (words[i], words[1 - i]), None) for i in range(2)]
    with pytest.raises(DeadlockError, match=r"device 0(.|\n)*device 1"):
        emulate_devices(launches)
    launches = [described(text, 1, 1, 1, 0, (words[i], words[1 - i]), None) for i in range(2)]
    emulate_devices(launches, [Stream("host").write(words[0], 0, 7)])
    assert [int(word[0]) for word in words] == [7, 7]


def test_multimem_is_refused_where_no_ranks_share_memory() -> None:
    text = """
    .version 8.1
    .target sm_90
    .visible .entry reduce(.param .u64 x) { .reg .b32 %r<1>; .reg .b64 %d<1>;
      ld.param.u64 %d0, [x];
      multimem.ld_reduce.relaxed.sys.global.add.u32 %r0, [%d0];
      ret; }"""
    with pytest.raises(EmulatorError.__bases__[0], match=r"multimem.*which is no multicast address"):
        emulate_ptx(text, block=1, args=[np.zeros(1, np.uint32)])


def test_the_checks_hold_and_fail_where_a_number_is_changed() -> None:
    for make, m, config in ((gathered, 300, GATHER), (scattered, 512, SCATTER)):
        plan = make(m, 96, 128, **config)
        plan.check().require()
        names = {check.name for check in plan.check().checks}
        assert names >= (
            {"rank's order", "flags", "own rows"}
            if make is gathered
            else {"partial sums", "counters", "no circular wait"}
        )
        assert "shards:" in plan.explain()
    sized = replace(plan, mma=wgmma(128, "bf16", "bf16", "f32"))
    assert {"partial sums", "derivation"} & {check.name for check in sized.check() if not check}


def test_shards_in_another_order_are_a_circular_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    plan, place = scattered(512, 96, 128, **SCATTER), ShardByShard.place

    def alternating(number: object, each: int) -> object:
        shard, within = place(number, each)
        return shard, (within + shard % 2) % each

    monkeypatch.setattr(ShardByShard, "place", staticmethod(alternating))
    assert "no circular wait" in {check.name for check in plan.check().checks if not check}


@pytest.mark.parametrize(
    ("shards", "config", "said"),
    [
        (Gathered(), {"reverse_odd_tiles": True}, "reverse_odd_tiles = True"),
        (Gathered(), {"overlap": True}, "overlap = True"),
        (Gathered(), {"along": "N"}, "along = 'N'"),
        (Scattered(), {"loader": "self"}, "loader = 'self'"),
        (Scattered(), {"store": "direct", "loader": "warp"}, "store = 'direct'"),
        (Scattered(), {"staged_epilogue_k_tiles": 1, "loader": "warp"}, "staged_epilogue_k_tiles = 1"),
        (Scattered(), {"tile": (128, 72), "loader": "warp"}, "no whole 16 bytes"),
    ],
)
def test_other_kernels_are_refused_by_name(shards: object, config: dict[str, object], said: str) -> None:
    with pytest.raises(PlanError, match=said):
        Sm90Plan.derive(512, 64, 64, config=Sm90Config(**config), shards=shards)


def test_rows_that_do_not_divide_are_refused() -> None:
    plan = scattered(384, 64, 64, **GATHER, loader="warp")
    for ranks, chunks, said in (
        (2, 1, "no multiple of a cluster's 128"),
        (5, 1, "384 % 5"),
        (9, 1, "9 rank"),
        (3, 2, "1 tiles of clusters of a shard in 2 chunks"),
    ):
        with pytest.raises(PlanError, match=said):
            check_division(plan, ranks, chunks)
    with pytest.raises(PlanError, match=r"runs through layoutgemm\.distributed"):
        plan.run(np.zeros((384, 64), np.float32), np.zeros((64, 64), np.float32))
