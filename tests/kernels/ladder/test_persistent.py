"""Levels 6 to 12 of the ladder: proven, compiled to the instructions meant, emulated without a finding, and guarded."""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import smem_tile
from layoutgemm.checks import Interleaving, Pipeline, cluster_ring, deletions
from layoutgemm.checks.pipeline.actions import Arrive, ForK, If, TmaLoad
from layoutgemm.dtypes import bf16
from layoutgemm.emulator.api import emulate_host
from layoutgemm.emulator.host.launcher import HostFunction
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import EmulatorError
from layoutgemm.kernels.ladder import levels
from layoutgemm.kernels.ladder.levels import SharedMap
from layoutgemm.kernels.run.emulated import host_parameters
from layoutgemm.kernels.sm90.pipeline_model import HopperPipeline
from layoutgemm.kernels.store_ring import StoreRing
from layoutgemm.schedule import Grouped, Linear, Persistent, reuse
from tests import needs

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = {int(path.name[7:9]): path for path in sorted((ROOT / "kernels").glob("hopper_*.py"))}
LEVELS = (6, 7, 8, 9, 10, 11, 12)
# Ragged along M, N and K; clusters of tiles of C. Fewer k tiles than stages, then more.
SIZES = {(260, 300, 72): 4, (140, 264, 328): 2}
EARLY = Policy(loads="early", products="early", stores="early", elect="highest")
# Instructions of a level without the wgmmas and the two loads of a k tile; f32 is stored in pairs, or one by one.
WAYS_OUT = {
    **{number: {"STG": 192, "STS": 0, "STSM": 0, "UTMASTG": 0} for number in (6, 7, 8)},
    **{number: {"STG": 0, "STS": 64, "STSM": 0, "UTMASTG": 4} for number in (9, 10)},
    11: {"STG": 0, "STS": 0, "STSM": 16, "UTMASTG": 4},
    12: {"STG": 0, "STS": 0, "STSM": 28, "UTMASTG": 8},
}
dsl = pytest.mark.dsl
emulated = needs.C_COMPILER


@cache
def level(number: int, workers: int | None = None) -> Any:
    """The program's level, or the same kernel for so many clusters."""
    (found,) = levels.load(PROGRAMS[number])
    if workers is None:
        return found
    name = f"{found.name}, {workers} cluster(s)"
    return levels.Level(number, name, type(found.kernel)(workers), found.guide, found.c)


def compiled_level(number: int) -> Any:
    """For one cluster where that is a choice: it then does all tiles, in turn. Otherwise the code is the program's."""
    return level(number, 1 if number > 6 else None)


# ------------------------------------------------------------------------------------------------------------- proofs


@dsl
@pytest.mark.parametrize("number", LEVELS)
def test_proven_and_told(number: int) -> None:
    """All checks hold, and the docstring's table of roles and barriers equals the model's."""
    found = level(number)
    report = found.check().require()
    assert any(check.name == "pipeline" for check in report)
    text = inspect.getdoc(inspect.getmodule(type(found.kernel)))
    assert text is not None and textwrap.indent(found.kernel.pipeline.explain(), "    ") in text
    assert len(found.program.read_text(encoding="utf-8").splitlines()) <= 260


def test_the_tile_order_saves_the_traffic_that_level_8_states() -> None:
    tile, grid, panel = (128, 256), (8192 // 128, 8192 // 256), 8192 * 2
    told = {}
    for order in (Linear("N"), Grouped("M", group=8)):
        counted = reuse(Persistent(order, 66, (2, 1)).order(grid), 132, tile)
        rows, columns = sum(counted.rows), sum(counted.columns)
        told[order] = (rows, columns, (rows * tile[0] + columns * tile[1]) * panel >> 20)
    assert list(told.values()) == [(94, 512, 2236), (304, 140, 1168)]
    text = PROGRAMS[8].read_text(encoding="utf-8")
    assert all(str(number) in text for counts in told.values() for number in counts)


def pipelines() -> dict[int, Pipeline]:
    """The models of the levels; the programs build the same, from their operands."""
    common: dict[str, Any] = {"lag": 1, "registers": (40, 232), "tail": "sync"}
    more: dict[int, dict[str, Any]] = {
        6: {"consumers": 2, "senders": "first"},
        7: {"consumers": 2, "senders": "first", "persistent": True, "meet": True},
        8: {"consumers": 2, "persistent": True, "meet": True},
        9: {"warps": 8, "persistent": True, "meet": True, "store": (1, 4)},
        10: {"warps": 8, "persistent": True, "store": (1, 4)},
        11: {"consumers": 2, "persistent": True, "store": (2, 4)},
    }
    found = {number: cluster_ring(4, 16384, 32768, (2, 1), **common, **given) for number, given in more.items()}
    return {**found, 12: self_loading().cases()[-2]}


def self_loading() -> HopperPipeline:
    """The model of level 12, with cases for every number of k tiles."""
    rounds = tuple((i % 2, 1) for i in range(4))
    return HopperPipeline(
        3, (32768, 14336), 61440, empty_arrivals=16, cluster=(2, 1), consumers=2, blocks=2, staged_epilogue_k_tiles=1,
        store=StoreRing(1, 2, (rounds, rounds)),
    )  # fmt: skip


@dsl
def test_the_models_are_the_programs() -> None:
    assert {number: level(number).kernel.pipeline for number in LEVELS} == pipelines()
    kernel = level(12).kernel
    assert (*kernel.short, kernel.pipeline, kernel.output) == self_loading().cases()
    assert sum(check.name == "pipeline" for check in level(12).check()) == len(self_loading().cases()) == 4


# What may go: one role's wait at the very end, since the others' keep the block there; the release of a block's last
# stages, for which no thread waits where there is no next tile; a producer's last wait, for a stage that an earlier one
# covers; and the place in a ring of one buffer.
LAST_WAIT = {"producer: ClusterWait()", "math: ClusterWait()"}
MODELS: list[tuple[dict[str, Any], set[str]]] = [
    (
        {"senders": "first", "lag": 1, "tail": "sync"},
        {*LAST_WAIT, "math: Arrive('empty', 'release', to=((0,), (0, 1)))", "math: Advance('release')"},
    ),
    ({"senders": "first", "lag": 1, "tail": "sync", "persistent": True, "meet": True}, LAST_WAIT),
    ({"lag": 1, "tail": "sync", "persistent": True, "store": (2, 2)}, LAST_WAIT),
    (
        {"lag": 1, "persistent": True, "store": (1, 1)},
        {"producer: Wait('empty', 'load', flip=True, by='one')", "producer: Advance('load')", "math: Advance('store')"},
    ),
]


@pytest.mark.parametrize("given, spare", MODELS)
def test_every_action_of_the_models_is_needed(given: dict[str, Any], spare: set[str]) -> None:
    model = cluster_ring(2, 64, 64, (2, 1), warps=2, **given)
    assert model.prove()
    assert {name for name, mutant in deletions(model) if mutant.prove()} == spare


def variant(pipeline: Pipeline, role: str, change: Any) -> Pipeline:
    """The pipeline with every action of a role's k loop replaced by `change`'s result."""

    def changed(program: Any) -> Any:
        out = []
        for action in program:
            if isinstance(action, ForK):
                action = ForK(changed(action.body))
            elif isinstance(action, If):
                action = If(action.condition, changed(action.then), changed(action.orelse))
            out.append(change(action))
        return tuple(out)

    return pipeline.with_program(role, changed(pipeline.role(role).program))


def test_a_guides_multicast_is_refuted() -> None:
    """Both blocks send all of B to both; a consumer releases the other block's stage and not its own."""

    def everyone_sends(action: Any) -> Any:
        if isinstance(action, If) and isinstance(action.then[0], TmaLoad):
            return action.then[0]
        return action

    def the_other_alone(action: Any) -> Any:
        return dataclasses.replace(action, to=((1,), (0,))) if isinstance(action, Arrive) else action

    first = cluster_ring(4, 16384, 32768, (2, 1), senders="first")
    assert isinstance(variant(first, "producer", everyone_sends).prove(), Interleaving)
    halves = cluster_ring(4, 16384, 32768, (2, 1))
    assert isinstance(variant(halves, "math", the_other_alone).prove(), Interleaving)
    assert first.prove() and halves.prove()


# --------------------------------------------------------------------------------------------------------------- code


@dsl
@pytest.mark.parametrize("number", LEVELS)
def test_code(number: int) -> None:
    """The machine code has what the level is about and nothing slow by mistake."""
    found = compiled_level(number)
    compiled = found.compile()
    code, taken = compiled.sass(), compiled.resources
    k_blocks = len(found.kernel.a.descriptor.k_steps)
    # Level 12 loads in four places: at the start, behind a k tile, and before and behind the last products of a tile;
    # the last k tile has two groups of its own. The others have one place for each.
    places = 4 if number == 12 else 1
    runs = (2 * k_blocks, k_blocks, k_blocks) if number == 12 else (k_blocks,)
    # One run of wgmmas a k tile: no wait and no fence inside, so the compiler has serialised nothing.
    assert code.wgmma_runs == runs and code.serialised_wgmma(k_blocks) is None
    assert code.count("UTMALDG") == 2 * places and compiled.ptx.count(".multicast::cluster") == places
    assert {name: code.count(name) for name in WAYS_OUT[number]} == WAYS_OUT[number]
    assert not code.local_memory, [str(i) for i in code.local_memory]
    # 384 threads start with 168 registers each; setmaxnreg then gives and takes. 256 have all they can name.
    assert (taken.stack_bytes, taken.local_bytes) == (0, 0)
    assert 244 <= taken.registers <= 255 if number == 12 else taken.registers == 168
    assert code.count("USETMAXREG") == (0 if number == 12 else 2)
    # Between two wgmmas only uniform arithmetic and what the compiler slips in: no descriptor leaves a vector register.
    bases = [i.base for i in code.instructions]
    products = [i for i, base in enumerate(bases) if base == "HGMMA"]
    for run in runs:
        first, last = products[0], products[run - 1]
        assert "R2UR" not in bases[first:last]
        products = products[run:]
    # Only one round of barrier initialisation: none in the loop over tiles.
    inits = (2 if number > 7 else 3) * found.kernel.stages
    assert len(re.findall(r"mbarrier\.init", compiled.ptx)) == inits


# ---------------------------------------------------------------------------------------------------------- execution


@dsl
@emulated
@pytest.mark.parametrize("number", LEVELS)
def test_right_and_silent(number: int) -> None:
    """Exact products at ragged sizes, all stores in bounds, and no race in two orders.

    One cluster does all tiles, in turn; level 6, which is not persistent, has one for each.
    """
    found = compiled_level(number)
    for (size, tiles), policy in zip(SIZES.items(), (None, EARLY)):
        (launch,) = found.emulate(*size, orders=policy).launches
        assert launch.cluster == (2, 1, 1) and launch.grid == (2 * (tiles if number == 6 else 1), 1, 1)


@dsl
def test_edge_findings_depend_on_the_owner_of_the_pitch() -> None:
    """Levels that store by tensor copies own it up to the next 16 bytes; the harness gives them 16 bytes more."""
    for number in LEVELS:
        found = level(number)
        assert found.whole_units == (number >= 9) == (found.c.name == "bf16")
        assert [found.written(n) for n in (1032, 1037)] == ([1032, 1040] if number >= 9 else [1032, 1037])
        assert [found.leading(8, n, 64)[2] for n in (1032, 1037)] == ([1032, 1048] if number >= 9 else [1032, 1037])


@dsl
@emulated
def test_a_levels_writes_beyond_its_rows_stay_in_the_pitch(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is in the pitch; it is reported unless the policy owns the pitch; nothing lies further on."""
    from layoutgemm.kernels.dsl import bridge

    found = compiled_level(9)

    class ByElement(levels.Level):
        """Owns no pitch."""

        def written(self, n: int) -> int:
            return n

    claimed = ByElement(9, found.name, found.kernel, found.guide, found.c)
    with pytest.raises(EmulatorError, match=r"384 elements of C are wrong; C\[0, 261\] is 0\.0, not nan"):
        claimed.emulate(128, 261, 72)
    monkeypatch.setattr(levels.Level, "orders", lambda self, orders: orders)
    with pytest.raises(EmulatorError, match=r"edge: a store of the box at \(256, 0\) writes element 263 of a line"):
        found.emulate(128, 263, 72)
    monkeypatch.undo()

    encode = bridge.encode_tensor_map

    def wider(plan: Any, base: Any, extents: Any, leading: Any) -> Any:
        more = 8 if plan.operation == "store" else 0
        return encode(plan, base, {**extents, "n": extents["n"] + more}, leading)

    monkeypatch.setattr(bridge, "encode_tensor_map", wider)
    monkeypatch.setenv("LAYOUTGEMM_CACHE_DIR", "")  # a cache would not know of this change
    wide = levels.Level(9, f"{found.name}, 8 columns more", found.kernel, found.guide, found.c)
    with pytest.raises(EmulatorError, match=r"elements of C are wrong; C\[0, 264\] is 0\.0, not nan"):
        wide.emulate(128, 261, 72)


def without(text: str, pattern: str, which: int) -> str:
    """PTX without one of the instructions that a pattern finds."""
    found = [match.span() for match in re.finditer(pattern, text, re.M)]
    assert found, pattern
    start, end = found[which]
    return text[:start] + text[end:]


# (level, instruction that goes, which of them)
PLANTED = [
    (12, r"^.*fence\.proxy\.async.*\n", -1),
    (12, r"^.*wgmma\.wait_group.*\n", 0),
    (11, r"^.*fence\.proxy\.async.*\n", -1),
    (11, r"^.*cp\.async\.bulk\.wait_group\.read.*\n", 2),
    (9, r"^.*bar\.sync.*\n|^.*barrier\.sync.*\n", -2),
    (7, r"^.*wgmma\.wait_group.*\n", 0),
]


@dsl
@emulated
@pytest.mark.parametrize("number, pattern, which", PLANTED)
def test_missing_synchronisation_is_found(number: int, pattern: str, which: int) -> None:
    """The emulator's silence means something: each of these lines is missed when it is gone."""
    found = compiled_level(number)
    compiled = found.compile()
    host = HostFunction.link(compiled.object, without(compiled.ptx, pattern, which), host_parameters(found.parameters))
    m, n, k = 128, 264, 264
    lda, ldb, ldc = found.leading(m, n, k)
    ones = [bf16.encode(np.ones((rows, pitch), np.float32)) for rows, pitch in ((m, lda), (n, ldb))]
    words = found.c.encode(np.zeros((m, ldc), np.float32))
    done = emulate_host(host, (*ones, words, m, n, k, lda, ldb, ldc), progress=False)
    assert any(finding.kind == "race" for finding in done.findings), done.report()


@pytest.mark.parametrize(("stages", "buffers"), [(2, 0), (4, 2), (3, 4)])
def test_the_parts_of_shared_memory_are_the_regions_of_its_map(stages: int, buffers: int) -> None:
    a, c = smem_tile((128, 64), "bf16", "K"), smem_tile((64, 32), "bf16", "K")
    smem = SharedMap.of(a, a, stages, c if buffers else None, buffers)
    parts = smem.parts()
    assert sum(parts.values()) == smem.total
    assert parts[f"{stages} stages of A"] == smem.b_offset - smem.a_offset == stages * a.bytes
    assert parts.get(f"{buffers} buffers of C", 0) == buffers * c.bytes
    assert parts["barriers and gaps"] == 2 * stages * 8
