"""Plans of the production kernel: what is derived, what is refused and why, and that every check can fail."""

from __future__ import annotations

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import wgmma
from layoutgemm.errors import LayoutError, OperandError, PlanError
from layoutgemm.kernels import GemmPlan, TeachingConfig, TeachingPlan, error_bound, plan_checks
from layoutgemm.kernels.compile.compiler import kernel_facts
from layoutgemm.kernels.run import tensor_maps
from layoutgemm.kernels.run.torch_tensors import check_out
from layoutgemm.kernels.sm90 import checks as sm90_proofs
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.explain import barriers, roles
from layoutgemm.kernels.sm90.multicast import MulticastGroups
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan
from layoutgemm.kernels.sm90.smem import SplitKExchange
from layoutgemm.schedule import Persistent
from tests import needs
from tests.kernels.plan_mutants import Stuck, outcome, values, with_chunk
from tests.kernels.sm90.table import LATER, TABLE, small


def names(*slow: str) -> list[Any]:
    """The table's names, some of them for the longer run."""
    return [pytest.param(name, marks=[pytest.mark.slow] * (name in slow)) for name in TABLE]


def derive(m: int = 300, n: int = 200, k: int = 200, *, a: Any = "bf16", b: Any = "bf16:col", c: Any = "bf16",
           batch: int = 1, **config: Any) -> Sm90Plan:  # fmt: skip
    tile = config.pop("tile", (64, 32))
    return GemmPlan.derive(m, n, k, a=a, b=b, c=c, batch=batch, config=small(*tile, **config))


# ----------------------------------------------------------------------------------------------------------- derivation


def test_the_config_chooses_the_kernel() -> None:
    assert isinstance(derive(), Sm90Plan)
    assert isinstance(TeachingPlan.derive(64, 64, 64, config=TeachingConfig()), TeachingPlan)
    plan = derive()
    assert plan == derive() and hash(plan) == hash(derive()) and pickle.loads(pickle.dumps(plan)) == plan
    assert plan != derive(k=201) and kernel_facts(plan) == kernel_facts(derive(m=9, n=9, k=9))
    assert kernel_facts(plan) != kernel_facts(derive(c="f16"))
    assert str(GemmPlan.derive(64, 64, 64, config=Sm90Config()).c.dtype) == "bf16"  # A's type, unless given


@pytest.mark.parametrize("name", names(*LATER, "cluster 4x2, self", "widest"))
def test_every_plan_of_the_table_holds(name: str) -> None:
    report = TABLE[name].plan().check()
    assert report, str(report)
    assert len(report) >= 23


def test_a_multicast_share_is_the_part_that_a_block_sends() -> None:
    plan = derive(tile=(128, 64), cluster=(2, 2), loader="warp", stages=2)
    assert (plan.a.tma.sent_bytes, plan.b.tma.sent_bytes, plan.full_bytes) == (8192, 4096, 24576)
    assert plan.empty_arrivals == 2 * 4 * 3  # warps of a block; blocks of its row or column
    turns = derive(tile=(64, 64), cluster=(2, 1), schedule="pingpong", loader="warp", consumers=2)
    assert turns.empty_arrivals == 4 * 2


def test_registers_change_hands_where_threads_start_with_too_few() -> None:
    assert derive(tile=(128, 32), loader="warpgroup").registers == (24, 240)
    assert derive(tile=(192, 32), loader="warpgroup").registers == (24, 160)
    assert derive(tile=(128, 32), loader="warp").registers is None
    assert derive(tile=(64, 32), loader="warpgroup").registers is None


# ------------------------------------------------------------------------------------------------------------- refusals

REFUSED: list[tuple[Callable[[], Any], str]] = [
    (lambda: derive(m=0), "m = 0: a size is 1 to 2"),
    (lambda: derive(k=2**31), "k = 2147483648: a size"),
    (lambda: derive(n=True), "n of plan must be an integer"),
    (lambda: derive(batch=0), "batch = 0: a size"),
    (lambda: derive(batch=2.0), "batch of plan must be an integer"),
    (lambda: GemmPlan.derive(64, 64, 64, arch="sm_80", config=Sm90Config()), "sm_80 takes a Sm80Config"),
    (lambda: derive(a="f32"), "a is f32; this kernel multiplies"),
    (lambda: derive(c="i8"), "c is i8; of bf16 inputs this kernel stores f32"),
    (lambda: derive(a="e4m3", b="e4m3:row"), "e4m3"),
    (lambda: derive(tile=(64, 36)), "N = 36 is none of them"),
    (lambda: derive(tile_k=24), "tile_k = 24: a positive multiple of the instruction's K = 16"),
    (lambda: derive(stages=1), "1 stage(s), and at least 2, of A 8192 + B 4096 bytes beside 4096"),
    (lambda: derive(stages=40), "18 fit into 232448"),
    (lambda: derive(stages=True), "stages of Sm90Config must be an integer or None, not True"),
    (lambda: Sm90Config(tile=(64,)), "tile of Sm90Config must be 2 integers, not (64,)"),
    (lambda: Sm90Config(cluster=(2, True)), "cluster of Sm90Config must be 2 integers, not (2, True)"),
    (lambda: Sm90Config(one_tile_per_cluster=1), "one_tile_per_cluster of Sm90Config must be True or False, not 1"),
    (lambda: Sm90Config(schedule="pong"), "schedule = 'pong': do you mean 'pingpong'? known are 'cooperative'"),
    (lambda: Sm90Config(consumers=0), "consumers of Sm90Config must be at least 1, not 0"),
    (lambda: Sm90Config((256, 64), consumers=4), "three warpgroups and a producer"),
    (lambda: Sm90Config((96, 64), consumers=1), "96 rows for 1 cooperative warpgroup(s)"),
    (lambda: small(cluster=(4, 4)), "4 * 4 = 16 blocks of a cluster: every GPU takes 8"),
    (lambda: small(cluster=(3, 1), split=3, one_tile_per_cluster=True), "3 * 1 * 3 parts of K = 9 blocks"),
    (lambda: small(schedule="pingpong", consumers=2), "pingpong needs a loader of its own"),
    (lambda: small(schedule="pingpong", loader="warp"), "pingpong takes two consumers in turn, not 1"),
    (
        lambda: small(one_tile_per_cluster=True, staged_epilogue_k_tiles=1),
        "one tile a cluster leaves nothing to overlap with",
    ),
    (lambda: small(split=2), "one tile a cluster, one_tile_per_cluster=True"),
    (
        lambda: small(split=2, one_tile_per_cluster=True, staged_epilogue_k_tiles=1),
        "one tile a cluster leaves nothing to overlap with",
    ),
    (
        lambda: small(split=2, one_tile_per_cluster=True, schedule="pingpong", consumers=2, loader="warp"),
        "one tile a cluster leaves nothing to overlap with",
    ),
    (lambda: small(loaded_a_rows=12), "loaded_a_rows = 12: a multiple of 8 up to 64"),
    (lambda: derive(m=17, loaded_a_rows=16), "loaded_a_rows = 16 of A's tile are loaded, and the product has 17"),
    (lambda: Sm90Config(group=1025), "group = 1025: 1024 at most"),
    (lambda: Sm90Config(stages={}), "stages of Sm90Config must be an integer or None, not {} (dict)"),
    (lambda: Sm90Config(tile_k=1 << 40), "tile_k of Sm90Config must be at most 2147483647"),
    (lambda: small(128, 32, loaded_a_rows=16), "loaded_a_rows is for a tile of 64 rows that no other block shares"),
    (lambda: derive(a="bf16:col", loaded_a_rows=16), "loaded_a_rows = 16 of a col-major A"),
    (
        lambda: derive(tile=(64, 128), cluster=(4, 1), tile_k=128),
        "B's tile of 128x128, shared by 4 blocks: copy 0 of block 2 starts at (64, 0), byte 16384: 2 times the "
        "distance of block 1 is (0, 128), byte 16384",
    ),
    (lambda: derive(tile=(64, 40), split=2, one_tile_per_cluster=True), "40 columns in 2 parts"),
    (
        lambda: derive(tile=(64, 256), split=2, one_tile_per_cluster=True, tile_k=128, stages=3),
        "32768 of partial sums: 2 fit",
    ),
    (
        lambda: derive(tile=(64, 256), one_tile_per_cluster=True, stages=2, tile_k=16, chunks=4, buffers=2),
        "bytes, the stages",
    ),
    (lambda: derive(tile=(64, 32), m=2**31 - 1, n=2**31 - 1), "tiles of clusters"),
    (lambda: derive(tile=(64, 8), c="e4m3"), "no whole 16 bytes"),
    (lambda: small(launch="grid"), "launch = 'grid': known are 'workers', 'tiles'"),
    (lambda: small(prefetch=2), "prefetch = 2 before the kernel before has ended: with overlap=True alone"),
    (lambda: small(prefetch=-1, overlap=True), "prefetch of Sm90Tuning must be at least 0, not -1"),
    (lambda: small(launch="tiles", schedule="pingpong", loader="warp", consumers=2), "pingpong takes two in turn"),
    (lambda: derive(launch="tiles", batch=2), "batch = 2: a grid of tiles is that of one matrix"),
    (lambda: derive(tile=(64, 32), launch="tiles", n=32 * 65536), "x 65536 tiles of clusters along M and N: a grid"),
    (lambda: derive(tile=(64, 32), launch="tiles", along="N", m=64 * 65536), "second dimension, which is M"),
    (lambda: derive(tile=(64, 40), staged_epilogue_k_tiles=1), "N = 20 is none of them"),
    (
        lambda: derive(tile=(64, 32), staged_epilogue_k_tiles=1, store="direct"),
        "halves its columns: those leave by tensor stores alone",
    ),
    (
        lambda: Sm90Plan.derive(
            64, 32, 64, b="bf16:col", gated="silu", config=small(64, 64, staged_epilogue_k_tiles=1)
        ),
        "gated products halve them, too",
    ),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number: int) -> None:
    make, text = REFUSED[number]
    with pytest.raises(LayoutError) as error:
        make()
    assert text in str(error.value)


# ------------------------------------------------------------------------------------------------- every check can fail


class OtherParts(Sm90Plan):
    """Parts of K that leave the last k tile out."""

    def part_of_k(self, k_tiles: Any, part: Any) -> Any:
        first, end = super().part_of_k(k_tiles, part)
        return (first, end - 1) if part == self.config.split - 1 else (first, end)


class CrossedAtom:
    """An instruction whose values are where those of another order would be."""

    def __init__(self, atom: Any) -> None:
        self.atom, self.accumulator_registers = atom, atom.accumulator_registers

    def coords_C(self, thread: Any, value: Any) -> Any:
        return self.atom.coords_C(thread, value ^ 2 * (value & 1))


class Crossed(Sm90Plan):
    @property
    def stored(self) -> Any:
        return CrossedAtom(self.mma)


def with_property(name: str, value: Any) -> type[Sm90Plan]:
    """A plan of which one property says something else."""
    assert isinstance(getattr(Sm90Plan, name), property)
    return type("Changed", (Sm90Plan,), {name: property(lambda self: value)})


class OtherColumns(Sm90Plan):
    """Blocks are numbered along N first."""

    @property
    def sharers(self) -> MulticastGroups:
        class ByRows(MulticastGroups):
            def place(self, rank: Any) -> tuple[Any, Any]:
                return rank // self.columns, rank % self.columns

        return ByRows(*self.config.cluster)


class ShortRuns(Sm90Plan):
    """Zeros for all but the last 16 bytes of each run."""

    @property
    def dead_runs(self) -> tuple[tuple[int, int], ...]:
        return tuple((first, count - 16) for first, count in super().dead_runs)


class OneSlot(SplitKExchange):
    """Every other block's sums in the same place."""

    def slot(self, source: Any, target: Any) -> Any:
        return 0


class Light(SplitKExchange):
    """Warps that send less than is expected."""

    @property
    def sends(self) -> int:
        return super().sends - 16


def as_(kind: type[Sm90Plan], plan: Sm90Plan) -> Sm90Plan:
    return kind(**{name: getattr(plan, name) for name in plan.__dataclass_fields__})


def test_a_pipeline_of_too_many_states_is_undecided(monkeypatch: pytest.MonkeyPatch) -> None:
    def endless(case: Any) -> Any:
        raise PlanError("ring of 2: 20001 runs and no end")

    monkeypatch.setattr(plan_checks, "_proven", endless)
    report = derive(stages=2).check()
    assert not report and "undecided: ring of 2: 20001 runs and no end" in str(report)


def mutants() -> Iterator[tuple[str, str, Sm90Plan]]:
    """(check, what is changed, plan)."""
    plan = derive(tile=(64, 80), cluster=(2, 1), loader="warp", chunks=2, stages=2)
    assert plan.check() and plan.store is not None
    other = derive(tile=(64, 80), loader="warp", chunks=2, stages=2, tile_k=32, cluster=(2, 1))
    smem, store = plan.smem, plan.store
    a, b = plan.a, plan.b
    yield "tiles of C", "order", replace(plan, order=Persistent(Stuck("M", 8), 1, (2, 1)))
    yield "tiles of C", "cluster of the order", replace(plan, order=replace(plan.order, cluster=(1, 2)))
    yield "tiles of K", "depth of the tile", replace(plan, tile=(64, 80, 32))
    yield "tile A", "layout", replace(plan, a=replace(a, smem=replace(a.smem, layout=Layout((64, 64), (0, 1)))))
    yield "copy A", "copies", replace(plan, a=replace(a, tma=other.a.tma))
    yield "copy B", "box", replace(plan, b=replace(b, tma=replace(b.tma, box=(64, 32))))
    spans = derive(tile=(64, 80), b="bf16:row", loader="warp", stages=2)
    assert spans.check() and spans.b.rest is not None
    (only,) = spans.b.rest.instructions
    for what, moved in (("place", replace(only, smem_offset=0)), ("columns", replace(only, coord_offset=(48, 0)))):
        rest = replace(spans.b.rest, instructions=(moved,))
        yield "copy B", f"{what} of the last span", replace(spans, b=replace(spans.b, rest=rest))
    yield "copy B", "no last span", replace(spans, b=replace(spans.b, rest=None))
    wide = replace(spans.b.rest, box=(32, 64))
    yield "copy B", "width of the last span", replace(spans, b=replace(spans.b, rest=wide))
    ended = derive(tile=(64, 80), loader="warp", stages=2)
    assert ended.check() and ended.a.ends is not None and ended.b.ends is not None
    yield "ends A", "bytes", replace(ended, a=replace(ended.a, ends=replace(ended.a.ends, line=256)))
    yield "ends B", "rows", replace(ended, b=replace(ended.b, ends=replace(ended.b.ends, box=72)))
    alone = derive(tile=(64, 32), store="direct", stages=2)
    yield "neighbours", "places of the values", as_(Crossed, alone)
    late = (b.tma.instructions[0], replace(b.tma.instructions[1], rank=0))
    yield "shares B", "ranks", replace(plan, b=replace(b, tma=replace(b.tma, instructions=late)))
    yield "shares A", "blocks", replace(plan, a=replace(a, tma=replace(a.tma, multicast=2)))
    yield "descriptor A", "descriptor", replace(plan, a=replace(a, descriptor=other.a.descriptor))
    tall = derive(tile=(192, 32), consumers=1, loader="warp", stages=2)
    apart = tall.a.descriptor.mn_steps
    for which, steps in (("descriptor A", (*apart[:2], apart[2] + 1024)), ("blocks A", (apart[0], apart[2], apart[1]))):
        moved = replace(tall.a, descriptor=replace(tall.a.descriptor, mn_steps=steps))
        yield which, "blocks", replace(tall, a=moved)
    yield "blocks A", "blocks", replace(plan, blocks=2)
    yield "barriers", "bytes", replace(plan, full_bytes=plan.full_bytes + 16)
    yield "pipeline", "bytes", replace(plan, full_bytes=plan.full_bytes + 16)
    yield "barriers", "arrivals", replace(plan, empty_arrivals=7)
    yield "pipeline", "arrivals", replace(plan, empty_arrivals=7)
    yield "pipeline", "arrivals at full", replace(plan, full_arrivals=2)
    yield "fragment map", "layout", replace(plan, mma=replace(plan.mma, layout_C=wgmma(88).layout_C))
    yield "columns of C", "a chunk twice", with_chunk(plan, column=64, width=16)
    yield "columns of C", "values", with_chunk(plan, first_value=4)
    yield "boxes of C", "map", with_chunk(plan, map=1)
    yield "boxes of C", "box", replace(plan, store=replace(store, maps=(store.maps[1], store.maps[1])))
    yield "buffers of C", "offset", with_chunk(plan, offset=1024)
    yield "buffers of C", "size", replace(plan, store=replace(store, buffer_bytes=1024))
    rows = store.rounds[0].chunks[0].rows
    yield "rows of C", "rows", with_chunk(plan, rows=lambda lane, at: rows(lane, at) ^ 8)
    yield "rows of C", "kind of stmatrix", with_chunk(plan, matrices=2)
    yield "shared map", "B over A", replace(plan, smem=replace(smem, b_offset=smem.b_offset - 1024))
    yield "shared map", "barriers over C", replace(plan, smem=replace(smem, barrier_offset=smem.c_offset))
    yield "shared map", "a buffer", replace(plan, smem=replace(smem, c_buffer_bytes=1024))
    yield "shared memory", "stages", replace(plan, stages=9)
    yield "threads", "threads", replace(plan, threads=128)
    yield "registers", "blocks", replace(plan, blocks=7)
    changing = derive(tile=(128, 32), loader="warpgroup", stages=2)
    yield "setmaxnreg", "registers", replace(changing, registers=(40, 240))
    yield "setmaxnreg", "no multiple of 8", replace(changing, registers=(24, 228))
    two = replace(derive(tile=(128, 32), loader="warp", stages=2), threads=256)
    yield "threads", "a loader that is not there", two
    single, columns = (
        derive(tile=(128, 32), one_tile_per_cluster=True, stages=2),
        derive(c="bf16:col", tile=(128, 32), stages=2),
    )
    yield "named barriers", "stages", as_(with_property("stages_barrier", 2), single)
    yield "named barriers", "threads at the stages", as_(with_property("stages_threads", 128), single)
    yield "named barriers", "threads at a store", as_(with_property("store_threads", 256), columns)
    turns = derive(tile=(64, 32), schedule="pingpong", consumers=2, loader="warpgroup", stages=2)
    yield "named barriers", "threads of a turn", as_(with_property("turn_threads", 128), turns)
    yield "barriers", "who shares", as_(OtherColumns, derive(m=256, n=128, cluster=(2, 2), stages=2))
    few = derive(m=16, loaded_a_rows=16, loader="warp", stages=2)
    yield "copy A", "zeros", as_(ShortRuns, few)
    yield "copy A", "rows", replace(few, config=replace(few.config, loaded_a_rows=24))
    parts = derive(tile=(64, 64), split=2, one_tile_per_cluster=True, stages=3)
    assert parts.check() and parts.exchange is not None
    yield "tiles of K", "parts", as_(OtherParts, parts)
    same = Layout(parts.exchange.layout.shape, (1, 64, 512, 512, 512))
    yield "exchange", "places", replace(parts, exchange=replace(parts.exchange, layout=same))
    three = derive(tile=(64, 48), split=3, one_tile_per_cluster=True, chunks=3, stages=2)
    assert three.check() and three.exchange is not None
    yield "exchange", "slots", replace(three, exchange=OneSlot(three.exchange.values, three.exchange.layout))
    fewer = Layout((*three.exchange.layout.shape[:-1], 1))
    yield "exchange", "too few slots", replace(three, exchange=replace(three.exchange, layout=fewer))
    yield "pipeline", "arrivals at the sums", as_(with_property("sums_arrivals", 2), parts)
    yield "pipeline", "bytes of the sums", replace(parts, exchange=Light(parts.exchange.values, parts.exchange.layout))
    moved_sums = replace(parts.smem, sums_offset=parts.smem.empty_offset)
    yield "shared map", "the barrier of the sums", replace(parts, smem=moved_sums)
    yield "exchange", "values", replace(parts, exchange=replace(parts.exchange, values=8))
    yield "shared map", "sums over the stages", replace(parts, exchange=replace(parts.exchange, offset=0))
    yield "exchange", "sums over the barriers", replace(parts, exchange=replace(parts.exchange, offset=65536))
    ring = derive(tile=(64, 192), chunks=1, buffers=2, stages=2)  # three rounds through two buffers
    assert ring.check() and ring.store is not None

    class Hasty(type(ring.store)):
        def pending(self, number: int) -> int:
            return int(self.buffers) - 1

    hasty = Hasty(**{name: getattr(ring.store, name) for name in ring.store.__dataclass_fields__})
    yield "pipeline", "stores that are waited for", replace(ring, store=hasty)
    direct = derive(tile=(64, 32), c="f32", stages=2)
    assert direct.store is not None
    tile = replace(direct.store.rounds[0].chunks[0].tile, layout=Layout((16, 32), (32, 0)))
    yield "rows of C", "tile of f32", with_chunk(direct, tile=tile)


def test_every_check_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = set()
    for check, what, plan in mutants():
        with monkeypatch.context() as patch:
            if check != "pipeline":  # the proof that takes most of the time, where another check is to fail
                patch.setattr(sm90_proofs, "_pipelines", lambda plan: [])
            failed = {found.name: found for found in plan.check().failures}
        assert check in failed, f"{check}, {what}: {plan.check()}"
        assert failed[check].witness, f"{check}, {what}"
        seen.add(check)
    some = ("self", "K in 2 parts", "16 rows", "warpgroup, three consumers", "pingpong", "columns")
    names = {found.name for name in some for found in TABLE[name].plan().check()}
    # The banks of a swizzled tile, and a fragment's coordinates, follow from the tile's and the fragment's layouts.
    assert names - seen == {"tile B", "banks A", "banks B", "descriptor B", "blocks B", "coordinates"}


def test_a_loader_warp_takes_registers_for_four() -> None:
    """416 threads have 128 registers each, as 512 have: ptxas compiles 200 columns beside them, and not 208."""
    for columns, fits in ((200, True), (208, False)):
        config = Sm90Config((192, columns), consumers=3, loader="warp", chunks=1)
        assert bool(GemmPlan.derive(512, 512, 512, b="bf16:col", config=config).check()) is fits


def test_one_instruction_fits_the_registers_of_the_launch() -> None:
    """setmaxnreg gives each consumer of 512 threads 160 registers; ptxas compiles a wgmma with the launch's 128."""
    for columns, witness in ((200, ""), (208, "130 registers or more, setmaxnreg or not, and a launch of 512 threads")):
        config = Sm90Config((192, columns), consumers=3, loader="warpgroup", chunks=1)
        found = {
            check.name: check for check in GemmPlan.derive(512, 512, 512, b="bf16:col", config=config).check().checks
        }
        assert witness in found["registers"].witness and found["registers"].ok is not bool(witness)
        assert found["setmaxnreg"].ok


def test_spills_are_predicted_from_registers() -> None:
    """Two blocks of 256 columns are 256 accumulators, more than a thread has."""
    failed = GemmPlan.derive(512, 512, 512, b="bf16:col", config=Sm90Config((256, 256), stages=2)).check().failures
    assert [check.name for check in failed] == ["registers"] and failed[0].witness == "27 too many"
    with pytest.raises(PlanError, match="FAILS  registers"):
        GemmPlan.derive(512, 512, 512, b="bf16:col", config=Sm90Config((256, 256), stages=2)).check().require()


# ---------------------------------------------------------------------------------------------------------- explanation


def test_the_docstring_of_the_kernel_has_the_rows_of_the_plans() -> None:
    """Names and kinds of barriers, from plans of every form, against the docstring's table."""
    program = Path(__file__).parents[3] / "layoutgemm/kernels/sm90/device/gemm.py"
    text = program.read_text(encoding="utf-8").split('"""')[1]
    table = text.split("waited for by\n")[1].split("\n\n")[0].splitlines()
    assert table[0].split()[0].strip("-") == ""
    told = {(row[4:16].strip(), row[16:28].split(",")[0].strip()) for row in table[1:] if row[4] != " "}
    computed = set()
    for product in TABLE.values():
        for row in barriers(product.plan()):
            computed.add((row.name.rstrip(" 0123456789"), row.kind.split()[0]))
    assert computed == told
    told_roles = set(re.findall(r"^    (loader|consumer) ", text, re.MULTILINE))
    assert told_roles == {row.name.split()[0] for row in roles(TABLE["pingpong"].plan())}


def test_the_barriers_of_a_plan() -> None:
    plan = derive(tile=(64, 48), cluster=(2, 1), schedule="pingpong", loader="warp", consumers=2, c="bf16:col")
    assert [tuple(row) for row in barriers(plan)] == [
        ("full[s]", "mbarrier", "1 arrival, of the loader, and 14336 bytes", "consumer 0, consumer 1"),
        ("empty[s]", "mbarrier", "8 arrivals, of each warp of consumer 0 or consumer 1 of 2 blocks", "loader"),
        ("turn 0", "named 3", "256 threads", "consumer 0"),
        ("turn 1", "named 4", "256 threads", "consumer 1"),
        ("store 0", "named 1", "128 threads", "consumer 0"),
        ("store 1", "named 2", "128 threads", "consumer 1"),
        ("cluster", "cluster", "2 * 288 threads", "loader, consumer 0, consumer 1"),
    ]
    assert roles(derive())[1].who == "warp 0" and roles(plan)[2].who == "warp 8"


def test_explanation_holds_the_numbers() -> None:
    text = derive(m=13, loaded_a_rows=16, split=2, one_tile_per_cluster=True, loader="warp", c="bf16:col").explain()
    for part in (
        "1 x 7 of C, 4 along K", "K in 2 parts", "loaded up to row 16; 6144 bytes of each stage are zeros",
        "0x4000004000010000", "stmatrix x4 .trans", "8 values of each part to (128,2,1,1,1):(1,128,256,256,256)",
        "bytes from byte", "m64n32k16",
    ):  # fmt: skip
        assert part in text, (part, text)
    assert "each thread its own values" in derive(store="direct").explain()
    early = small(launch="tiles", along="N", cluster=(2, 1), overlap=True, prefetch=2)
    text = Sm90Plan.derive(200, 300, 64, config=early).explain()
    assert "a grid of 20 x 2 blocks, along N first" in text and "2 k tile(s), 20480 bytes a block" in text
    assert "one half of the columns after the other" in derive(tile=(64, 32), staged_epilogue_k_tiles=1).explain()
    assert "setmaxnreg: 24 for the loader, 240 for consumers" in derive(tile=(128, 32), loader="warpgroup").explain()
    svg = derive().svg()
    assert svg.startswith("<svg") and "m64n32k16" in svg


# --------------------------------------------------------------------------------------------------- running on the CPU


@pytest.mark.parametrize("name", names(*LATER, "widest"))
def test_the_executor_is_exact(name: str) -> None:
    plan = TABLE[name].plan()
    a, b, want = (x if plan.batch > 1 else x[0] for x in TABLE[name].values())
    result = plan.run(a, b, device="reference")
    assert result.c.dtype == want.dtype
    assert result.ran_on == "NumPy executor" and result.c.shape == want.shape and np.array_equal(result.c, want)


def test_swapped_operands_in_the_executor() -> None:
    choice = Sm90Choice(small(64, 16, one_tile_per_cluster=True), swapped=True)
    plan = choice.plan(13, 200, 100, b="bf16:col")
    a, b, want = values(plan)
    assert np.array_equal(plan.run(a, b, device="reference").c, want) and (plan.m, plan.n) == (200, 13)


def test_real_values_within_the_bound() -> None:
    rng = np.random.default_rng(1)
    for a_type, b_type, c_type in (("bf16", "bf16:col", "f32"), ("f16", "f16", "f16"), ("e4m3", "e5m2:col", "bf16"),
                                   ("e4m3", "e4m3:col", "e4m3")):  # fmt: skip
        plan = derive(70, 40, 300, a=a_type, b=b_type, c=c_type, split=2, one_tile_per_cluster=True)
        pair = []
        for op, shape in ((plan.a, (70, 300)), (plan.b, (300, 40))):
            pair.append(np.asarray(op.dtype.decode(op.dtype.encode(rng.standard_normal(shape).astype(np.float32) / 4))))
        error = np.abs(plan.run(*pair, device="reference").c - np.matmul(*pair, dtype=np.float64))
        assert (error <= error_bound(plan, *pair)).all() and error.max() > 0


def test_wrong_plans_give_wrong_products() -> None:
    plan = derive(200, 100, 136, tile=(64, 72), cluster=(2, 1), loader="warp", chunks=2, stages=2)
    assert outcome(plan) == ""
    b, store = plan.b, plan.store
    assert store is not None
    rows = store.rounds[0].chunks[0].rows
    swapped = tuple(replace(copy, rank=1 - copy.rank) for copy in b.tma.instructions)
    wrong = {
        "bytes": replace(plan, full_bytes=plan.full_bytes + 16),
        "arrivals": replace(plan, empty_arrivals=plan.empty_arrivals + 1),
        "a share missing": replace(plan, b=replace(b, tma=replace(b.tma, instructions=b.tma.instructions[:1]))),
        "order": replace(plan, order=Persistent(Stuck("M", 8), 1, (2, 1))),
        "rows": with_chunk(plan, rows=lambda lane, at: rows(lane, at) ^ 8),
        "matrices": with_chunk(plan, matrices=2),
        "column": with_chunk(plan, column=64),
        "values": with_chunk(plan, first_value=4),
        "B over A": replace(plan, smem=replace(plan.smem, b_offset=0)),
        "buffers over the stages' end": replace(plan, smem=replace(plan.smem, c_buffer_bytes=64)),
    }
    assert [name for name, mutant in wrong.items() if not outcome(mutant)] == []
    # Who sends a share does not matter to the product.
    assert outcome(replace(plan, b=replace(b, tma=replace(b.tma, instructions=swapped)))) == ""
    parts = derive(100, 100, 200, tile=(64, 64), split=2, one_tile_per_cluster=True, stages=3)
    assert outcome(parts) == "" and parts.exchange is not None
    same = Layout(parts.exchange.layout.shape, (1, 0, 512, 512, 512))
    assert outcome(replace(parts, exchange=replace(parts.exchange, layout=same)))
    assert outcome(as_(OtherParts, parts))


def test_operands_as_they_come() -> None:
    plan = derive(8, 16, 24, batch=2)
    a, b, want = values(plan)
    strided = np.zeros((2, 16, 48), np.float32)
    strided[:, ::2, ::2] = a
    out = np.empty((2, 8, 16), np.float32)
    assert plan.run(strided[:, ::2, ::2], b, out=out, device="reference").c is out and np.array_equal(out, want)
    for bad, text in (
        ((a[0], b), r"a has shape \(8, 24\), the plan takes \(2, 8, 24\)"),
        ((a, b[:1]), r"b has shape \(1, 24, 16\)"),
        ((a.astype(bool), b), "a is bool; the plan's bf16 is given as float32 or bfloat16"),
        ((a, b.astype(np.float64)), "b is float64"),
    ):
        with pytest.raises(OperandError, match=text):
            plan.run(*bad, device="reference")
    with pytest.raises(OperandError, match=r"out has shape \(8, 16\)"):
        plan.run(a, b, out=out[0], device="reference")
    with pytest.raises(OperandError, match="device 'gpu'"):
        plan.run(a, b, device="gpu")
    odd = derive(8, 16, 17)
    a, b, want = values(odd)
    result = odd.run(a, b, device="reference")
    assert np.array_equal(result.c, want) and len(result.copies) == 2 and "copied with pitch 24" in result.copies[0]
    with pytest.raises(OperandError, match="copy=True makes a copy"):
        odd.run(a, b, device="reference", copy=False)


def test_nan_and_infinity_pass_through() -> None:
    plan = derive(8, 16, 24)
    a, b, _ = values(plan)
    a[0, 0], a[1, 0] = np.nan, np.inf
    b[0] = 1
    c = plan.run(a, b, device="reference").c
    assert np.isnan(c[0]).all() and np.isposinf(c[1]).all() and np.isfinite(c[2:]).all()


def test_torch_tensors_on_the_cpu() -> None:
    torch = needs.module("torch")
    plan = derive(8, 16, 32, a="e4m3", b="e4m3:col", c="e5m2", batch=2)
    a, b, want = values(plan)
    x, y = (torch.from_numpy(v).to(torch.float8_e4m3fn) for v in (a, b))
    result = plan.run(x, y, device="reference")
    assert result.c.dtype == torch.float8_e5m2 and np.array_equal(result.c.float().numpy(), want)
    out = torch.empty(2, 8, 16, dtype=torch.float8_e5m2)
    assert plan.run(x, y, out=out, device="reference").c is out and np.array_equal(out.float().numpy(), want)
    with pytest.raises(OperandError, match="elements would be written twice"):
        plan.run(x, y, out=out[:1].expand(2, 8, 16), device="reference")
    with pytest.raises(OperandError, match=r"a is torch.float32, the plan takes torch.float8_e4m3fn"):
        plan.run(x.float(), y, device="reference")


def test_operands_and_outputs_as_tensor_maps_take_them() -> None:
    """The strides of a GPU run, without a GPU: nothing here is launched."""
    torch = needs.module("torch")
    plan = derive(72, 136, 200, batch=3)
    copies: list[str] = []

    def zeros(*shape: int) -> Any:
        return torch.zeros(shape, dtype=torch.bfloat16)

    lines, leading, pitch = tensor_maps.tma_operand(plan.a, zeros(3, 72, 200), copies, False)
    assert (leading, pitch, tuple(lines.shape)) == (200, 72 * 200, (3, 72, 200))
    assert tensor_maps.tma_operand(plan.b, zeros(3, 136, 200).transpose(1, 2), copies, False)[1:] == (200, 136 * 200)
    assert tensor_maps.tma_operand(plan.a, zeros(72, 3, 200).transpose(0, 1), copies, False)[1:] == (600, 200)
    assert copies == []
    for tensor, rule in (
        (zeros(3, 72, 203)[..., :200], "a: lines lie 203 * 2 = 406 bytes apart, no multiple of 16"),
        (zeros(1, 72, 200).expand(3, 72, 200), "matrices of the batch lie 0 elements apart"),
        (
            zeros(3 * 14404).as_strided((3, 72, 200), (14404, 200, 1)),
            "lie 14404 * 2 = 28808 bytes apart, no multiple of 16",
        ),
        (zeros(3, 200, 72).transpose(1, 2), "the plan takes it row-major, but its strides are (14400, 1, 72)"),
    ):
        with pytest.raises(OperandError, match=re.escape(rule)):
            tensor_maps.tma_operand(plan.a, tensor, copies, False)
        lines, leading, pitch = tensor_maps.tma_operand(
            plan.a, tensor + 1 if 0 in tensor.stride() else tensor, copies, True
        )
        assert (leading, pitch) == (200, 14400) and lines.shape == tensor.shape
    cpu = torch.device("cpu")
    odd = derive(72, 135, 200)
    made, late = tensor_maps.target(odd, None, cpu, copies, False)
    assert made.stride() == (136, 1) and not late
    for out, rule in (
        (zeros(72, 135), "out: lines lie 135 * 2 = 270 bytes apart"),
        (zeros(135, 72).T, "out: the plan takes it row-major, but its strides are (1, 72)"),
        (zeros(72 * 136 + 1)[1:].view(72, 136)[:, :135], "out: its address is a multiple of 2 bytes, not of 16"),
    ):
        with pytest.raises(OperandError, match=re.escape(rule)):
            tensor_maps.target(odd, out, cpu, copies, False)
        assert tensor_maps.target(odd, out, cpu, copies, True)[1]
    beside = zeros(72, 144)[:, :135]  # what follows its lines is the caller's
    with pytest.raises(OperandError, match="2 bytes beyond it are overwritten"):
        tensor_maps.target(odd, beside, cpu, copies, False)
    fits = zeros(72, 144)[:, :136]
    assert tensor_maps.target(derive(72, 136, 200), fits, cpu, copies, False) == (fits, False)
    columns = derive(72, 136, 200, c="bf16:col")
    made, late = tensor_maps.target(columns, None, cpu, copies, False)
    assert made.stride() == (1, 72) and tensor_maps.target(columns, zeros(136, 72).T, cpu, copies, False)[1] is False
    for shape in ((72, 134), (135, 72)):
        with pytest.raises(OperandError, match="out has shape"):
            check_out(odd, zeros(*shape), zeros(72, 200))


@pytest.mark.parametrize("config", [
    {"tile": (128, 256), "stages": 4, "consumers": 2}, {"tile": (64, 32), "stages": 7},
    {"tile": (128, 32), "one_tile_per_cluster": True},
])  # fmt: skip
def test_the_budget_of_shared_memory_names_the_bytes_of_each_part(config: dict[str, Any]) -> None:
    """The unnamed rest is the barriers and their alignment."""
    plan = derive(**config)
    check = next(check for check in plan.check().checks if check.name == "shared memory")
    for operand in (plan.a, plan.b):
        assert f"{plan.stages} stages of {operand.name} {plan.stages * operand.smem.bytes} " in check.statement
    gaps = int(re.search(r"barriers and gaps (\d+)", check.statement)[1])
    assert 2 * 8 * plan.stages <= gaps < 2 * 8 * plan.stages + 3 * 1024


def test_parts_of_k_take_whole_vectors_of_sums() -> None:
    """Also with direct stores, which take any columns: 80 in three parts were derived, and failed their check."""
    config = Sm90Config((128, 80), split=3, store="direct", one_tile_per_cluster=True)
    with pytest.raises(PlanError, match="split = 3 of 80 columns"):
        Sm90Plan.derive(199, 159, 131, config=config)
