"""Overlapping products: the reference on gloo processes, the choice of kernels, and the calls of a rank in order."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")
if not torch.distributed.is_available():
    pytest.skip("this torch is built without torch.distributed: install PyTorch's own wheel", allow_module_level=True)

from layoutgemm.distributed import (
    Transfer,
    all_gather_matmul,
    calls,
    gathered_rows,
    kept,
    matmul_reduce_scatter,
    operators,
    overlap,
    products,
    reference,
    shard_plans,
    workspaces,
)
from layoutgemm.distributed.checks import ShardProduct, check_alike, output_of
from layoutgemm.distributed.gathered_rows import RankRows, RowsCall, sends_of_rows
from layoutgemm.errors import LayoutError, OperandError, PlanError, RankError, TensorError
from layoutgemm.kernels.run import stream_memory
from layoutgemm.kernels.run.stream_memory import MemoryOperation
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.kernels.sm90.shards import Gathered, Scattered, tiles_of_shard
from layoutgemm.torch_op.scaled_grouped.recipes import Recipes

PROGRAM = Path(__file__).with_name("overlap_program.py")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="fork is POSIX's: run it on Linux or macOS")
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_reference_on_gloo(world: int, tmp_path: Path) -> None:
    root = PROGRAM.parents[2]
    path = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(PROGRAM), str(world), str(tmp_path / "store")]
    ranks = subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=path, start_new_session=True
    )
    try:
        output = ranks.communicate(timeout=300)[0]
    finally:
        with contextlib.suppress(ProcessLookupError):  # all have ended
            os.killpg(ranks.pid, signal.SIGKILL)
    assert ranks.returncode == 0 and output.split().count("right") == world, output


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("sizes", [(4096, 14336, 4096), (8192, 8192, 8192), (16384, 4096, 14336), (1024, 512, 256)])
def test_kernels_are_found_for_every_number_of_ranks(ranks: int, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    gather = shard_plans.gather_choice(m, n // ranks, k, ranks=ranks)
    scatter = shard_plans.scatter_choice(m, n, k // ranks, ranks=ranks)
    assert m // ranks % gather.chunks == 0
    assert tiles_of_shard(scatter.plan, ranks) % scatter.chunks == 0
    large = (ranks - 1) * m // ranks * n * 2 >= 32 << 20  # bytes that go on
    most, by = (4, "copies") if large else (16, "stores")
    assert scatter.transfer.by == by and scatter.chunks <= most


def test_sizes_without_a_kernel_are_refused() -> None:
    with pytest.raises(PlanError, match="no multiple of a cluster's"):
        shard_plans.scatter_choice(200, 256, 256, ranks=2)
    with pytest.raises(PlanError, match="401 % 2"):
        shard_plans.gather_choice(401, 256, 256, ranks=2)
    for k, kind, said in ((12, "bf16", "24 % 16"), (520, "e4m3", "520 % 16")):  # a shard of one row has any pitch
        with pytest.raises(PlanError, match=said):
            shard_plans.gather_choice(2, 256, k, ranks=2, kind=kind)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"timeout": -1}, "timeout must be seconds above 0, and finite, not -1"),
        ({"timeout": 0}, "timeout must be seconds above 0"),
        ({"timeout": math.nan}, "timeout must be seconds above 0"),
        ({"timeout": math.inf}, "timeout must be seconds above 0"),
        ({"timeout": "soon"}, "timeout must be seconds above 0, and finite, not 'soon'"),
        ({"transfer": "copies"}, "transfer must be a Transfer or None, not 'copies'"),
        ({"config": {"stages": 3}}, "config must be a Sm90Config or None, not {'stages': 3}"),
    ],
)
def test_options_of_a_call_are_refused_by_name(options: dict[str, Any], said: str) -> None:
    x = torch.ones(64, 64, dtype=torch.bfloat16)
    for product in (all_gather_matmul, matmul_reduce_scatter):
        with pytest.raises(OperandError, match=said):
            product(x, x, **options)
    for chunks in (0, "2", True):
        with pytest.raises(PlanError, match="chunks of Transfer must be a"):
            Transfer(chunks=chunks)


@pytest.mark.parametrize(
    ("looks", "said"),
    [
        ({1: [7], 2: [6, 6, 7]}, "rank 2 came later"),
        ({1: [7], 2: [6]}, "rank 2 did not come"),
        ({1: [6], 2: [6, 7]}, "rank 1 did not come"),
        ({1: [7], 2: [8]}, "each rank came, and one has ended or given up since"),
    ],
)
def test_a_rank_that_comes_late_is_no_rank_that_has_ended(looks: dict[int, list[int]], said: str) -> None:
    """The store's number of each other rank's calls, look by look; this one is at its seventh."""

    def add(key: str, more: int) -> int:
        numbers = looks[int(key.rpartition("/")[2])]
        return numbers.pop(0) if len(numbers) > 1 else numbers[0]

    group = SimpleNamespace(size=lambda: 3, rank=lambda: 0, get_group_store=lambda: SimpleNamespace(add=add))
    assert reference._missing(group, 7, 0.1) == said


@pytest.mark.parametrize(("tile", "schedule"), [((128, n), "cooperative") for n in (192, 208, 224, 240)] + [
    ((128, 192), "pingpong")])  # fmt: skip
def test_tiles_that_a_gather_may_choose_hold_their_checks(tile: tuple[int, int], schedule: str) -> None:
    [config] = [each for each in shard_plans._candidates(Gathered(), (4096, 3584, 4096), ClusterOccupancy(132))
                if (each.tile, each.schedule) == (tile, schedule)]  # fmt: skip
    shard_plans.gather_choice(4096, 3584, 4096, ranks=4, config=config).plan.check().require()


@pytest.mark.parametrize("tile", [(128, n) for n in (128, 160, 176, 192)])
def test_scatters_in_turns_hold_their_checks(tile: tuple[int, int]) -> None:
    [config] = [each for each in shard_plans._candidates(Scattered(), (4096, 4096, 4096), ClusterOccupancy(132))
                if (each.tile, each.schedule, each.cluster) == (tile, "pingpong", (2, 1))]  # fmt: skip
    shard_plans.scatter_choice(4096, 4096, 1024, ranks=4, config=config).plan.check().require()


class Handle:
    """A rank's symmetric memory, on the CPU."""

    def __init__(self, rank: int, memories: list[Any]) -> None:
        self.rank, self.world_size, self.memories = rank, len(memories), memories
        self.buffer_ptrs = [memory.data_ptr() for memory in memories]

    def get_buffer(self, rank: int, shape: tuple[int, ...], dtype: Any, offset: int) -> Any:
        count = 1
        for extent in shape:
            count *= extent
        return self.memories[rank].view(dtype)[offset : offset + count].view(shape)


NO_SCALES = (None, None)
SIDE = 77  # the side stream's handle; the product's is 0


class Rank:
    """A rank's call without a GPU: streams and launches are noted, copies are made at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, flags: int, nbytes: int, chunks: int) -> None:
        self.log: list[str] = []
        size = workspaces.buffer_offset(flags) + nbytes
        memories = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
        record = torch.zeros(4, dtype=torch.int32)
        handle = Handle(0, memories)
        self.space = workspaces.Workspace(handle, memories[0], flags, chunks, record, SIDE, 3.0, name)
        self.arguments: tuple[int, ...] = ()
        self.space.events = 1, 2
        monkeypatch.setattr(calls, "of_device", lambda _: ClusterOccupancy(132))
        monkeypatch.setattr(calls, "compile_plan", lambda plan: None)
        for module in (calls, gathered_rows):
            monkeypatch.setattr(module, "clear_words", lambda _, to, count: ctypes.memset(to, 0, 4 * count))
            monkeypatch.setattr(module, "raw_stream", lambda _: 0)
        monkeypatch.setattr(workspaces, "follow", self.follow)
        monkeypatch.setattr(workspaces, "_is_capturing", lambda: False)
        monkeypatch.setattr(
            calls, "DirectLaunch", lambda *given: SimpleNamespace(launch=functools.partial(self.launch, given))
        )
        for module in (calls, gathered_rows, workspaces):
            monkeypatch.setattr(module, "copy_bytes", self.copy)
        for module in (gathered_rows, workspaces):
            monkeypatch.setattr(module, "memory_operations", self.operate)

    def follow(self, stream: int, other: int, event: int) -> None:
        self.log.append("fork" if stream == SIDE else "join")

    def launch(self, given: Sequence[Any], addresses: Sequence[int], stream: int) -> None:
        values = [*given[1]]
        for place, address in zip(given[2], addresses, strict=True):
            values[place] = address
        self.arguments = tuple(values)
        self.log.append("launch")

    def copy(self, stream: int, to: int, of: int, nbytes: int) -> None:
        ctypes.memmove(to, of, nbytes)
        self.log.append(f"copy of {nbytes}")

    def operate(self, stream: int, operations: Sequence[MemoryOperation]) -> None:
        for waits, address, value in operations:
            self.log.append(f"wait for {value}" if waits else f"{self.word(address)} = {value}")

    def word(self, address: int) -> str:
        starts, words = self.space.handle.buffer_ptrs, self.space.flag_count + 1
        rank = next(r for r in (0, 1) if 0 <= address - starts[r] < 4 * words)
        flag = (address - starts[rank]) // 4
        return f"flag {flag} of rank {rank}" if flag < self.space.flag_count else f"begun of rank {rank}"


BEGINS = ["begun of rank 1 = 1", "wait for 1", "begun of rank 0 = 0"]


@pytest.mark.parametrize("m", [512, 300])
def test_a_gather_sends_rows_and_flags_and_launches(monkeypatch: pytest.MonkeyPatch, m: int) -> None:
    """Own rows go from where they lie, unless a tile has rows of two shards."""
    choice = shard_plans.gather_choice(m, 128, 64, ranks=2, transfer=Transfer(2))
    rank, rows = Rank(monkeypatch, "all_gather_matmul", 4, m * 64 * 2, 2), m // 2
    rank.space.sends = tuple(sends_of_rows(rank.space, RankRows.of(choice.plan, choice.chunks)))
    for r in (0, 1):
        rank.space.buffer(r, (m, 64), torch.bfloat16).fill_(7)
    a, b = torch.ones(rows, 64, dtype=torch.bfloat16), torch.ones(128, 64, dtype=torch.bfloat16)
    out = torch.empty(m, 128, dtype=torch.bfloat16)
    calls.GatherCall(rank.space, choice, a, b.t(), out, False, 0).start(a, b.t(), NO_SCALES, out, 0)
    chunk = f"copy of {rows // 2 * 64 * 2}"
    sent = [chunk, "flag 0 of rank 1 = 1", chunk, "flag 1 of rank 1 = 1"]
    assert rank.log == ["fork", *BEGINS, *sent, "launch", "join"]
    theirs, whole = (rank.space.buffer(r, (m, 64), torch.bfloat16) for r in (1, 0))
    assert theirs[:rows].eq(1).all() and theirs[rows:].eq(7).all() and whole[rows:].eq(7).all()
    named = dict(zip(choice.plan.parameters, rank.arguments, strict=True))
    assert whole[:rows].eq(1 if m == 300 else 7).all()
    assert named["own"] == (whole if m == 300 else a).data_ptr()
    assert (named["m"], named["n"], named["k"], named["lda"], named["ldb"], named["ldc"]) == (m, 128, 64, 64, 64, 128)
    assert (named["rank"], named["ranks"], named["chunks"], named["target"]) == (0, 2, 2, 1)
    assert named["a"] == whole.data_ptr() and named["flags"] == rank.space.memory.data_ptr()


def test_sends_are_one_launch_from_the_third_call_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each address of own rows; a user's graph takes the operations themselves."""
    choice = shard_plans.gather_choice(512, 128, 64, ranks=2, transfer=Transfer(1))
    rank = Rank(monkeypatch, "all_gather_matmul", 2, 512 * 64 * 2, 1)
    rank.space.sends = tuple(sends_of_rows(rank.space, RankRows.of(choice.plan, choice.chunks)))
    a, b = (torch.ones(rows, 64, dtype=torch.bfloat16) for rows in (256, 128))
    out = torch.empty(512, 128, dtype=torch.bfloat16)
    call = calls.GatherCall(rank.space, choice, a, b.t(), out, False, 0)
    each = ["fork", *BEGINS, f"copy of {256 * 128}", "flag 0 of rank 1 = 1", "launch", "join"]
    copies, replayed = ["copy" in said for said in each], ["fork", "replay", "launch", "join"]
    monkeypatch.setattr(workspaces, "recorded", lambda stream, operations: operations)
    monkeypatch.setattr(workspaces, "replay", lambda stream, graph: rank.log.append("replay"))
    for want in (each, each, replayed, replayed):
        rank.log.clear()
        call.start(a, b.t(), NO_SCALES, out, 0)
        assert rank.log == want
    rank.log.clear()
    monkeypatch.setattr(workspaces, "_is_capturing", lambda: True)
    call.start(a, b.t(), NO_SCALES, out, 0)
    assert rank.log == each and sum(copies) == 1
    monkeypatch.setattr(workspaces, "_is_capturing", lambda: False)
    rank.log.clear()
    call.start(a.clone(), b.t(), NO_SCALES, out, 0)
    assert rank.log == each


def test_own_rows_of_another_pitch_are_copied_once(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = shard_plans.gather_choice(512, 128, 64, ranks=2, transfer=Transfer(1))
    rank = Rank(monkeypatch, "all_gather_matmul", 2, 512 * 64 * 2, 1)
    rank.space.sends = tuple(sends_of_rows(rank.space, RankRows.of(choice.plan, choice.chunks)))
    a = torch.ones(256, 128, dtype=torch.bfloat16)[:, :64]
    b, out = torch.ones(128, 64).bfloat16().t(), torch.empty(512, 128).bfloat16()
    calls.GatherCall(rank.space, choice, a, b, out, False, 0).start(a, b, NO_SCALES, out, 0)
    here, there = (rank.space.buffer(r, (512, 64), torch.bfloat16) for r in (0, 1))
    assert here[:256].eq(1).all() and there[:256].eq(1).all()
    assert dict(zip(choice.plan.parameters, rank.arguments, strict=True))["own"] == here.data_ptr()


def test_rows_go_around_the_ring_of_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of four ranks sends to the one before it alone: its own rows, then what has come."""
    plan = shard_plans.gather_choice(512, 128, 64, ranks=4, transfer=Transfer(1)).plan
    memories = [torch.zeros(4096 + 512 * 64 * 2, dtype=torch.uint8) for _ in range(4)]
    record = torch.zeros(4, dtype=torch.int32)
    space = workspaces.Workspace(Handle(1, memories), memories[1], 4, 1, record, None, 3.0, "")
    sends, shard = list(sends_of_rows(space, RankRows.of(plan, 1))), 128 * 64 * 2
    assert [send.destination - memories[0].data_ptr() for send in sends[:3]] == [4096 + i * shard for i in (1, 2, 3)]
    assert [send.of_rows for send in sends[:3]] == [True, False, False] and sends[3].nbytes == 0
    assert [send.source - memories[1].data_ptr() for send in sends[1:3]] == [4096 + i * shard for i in (2, 3)]
    words = [[(one.waits, one.address - memories[int(not one.waits) * -1 + 1].data_ptr()) for one in send.operations]
             for send in sends[1:]]  # fmt: skip
    assert words == [[(False, 4), (True, 8)], [(False, 8), (True, 12)], [(False, 12)]]


@pytest.mark.parametrize("beside", [False, True])
def test_all_rows_are_there_for_another_product(monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    """Behind a gather's own product, or beside another one: own rows lie among those that have come."""
    choice = shard_plans.gather_choice(512, 128, 64, ranks=2, transfer=Transfer(1))
    rank, rows = Rank(monkeypatch, "all_gather_matmul", 2, 512 * 64 * 2, 1), RankRows.of(choice.plan, 1)
    rank.space.sends = tuple(sends_of_rows(rank.space, rows))
    rank.space.buffer(0, (512, 64), torch.bfloat16).fill_(7)
    a, b, out = torch.ones(256, 64).bfloat16(), torch.ones(128, 64).bfloat16().t(), torch.empty(512, 128).bfloat16()
    sent, own = ["fork", *BEGINS, f"copy of {a.nbytes}", "flag 0 of rank 1 = 1"], f"copy of {a.nbytes}"
    if beside:
        call = RowsCall(rank.space, rows, torch.bfloat16, 0)
        call.begin(a)
        found = call.end()
        assert rank.log == [*sent, own, "wait for 1", "join"]
    else:
        product = calls.GatherCall(rank.space, choice, a, b, out, False, 0)
        product.start(a, b, NO_SCALES, out, 0)
        found = product.rows_of_all(a)
        assert rank.log == [*sent, "launch", "join", own, "join"]
    assert found[:256].eq(1).all() and found[256:].eq(7).all() and found.shape == (512, 64)


@pytest.mark.parametrize("count", [1, 256])
def test_a_gather_of_8_bits_moves_scales_before_rows(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """The scales of all rows lie behind them; one of a tensor is one of each row."""
    epilogue = products._epilogue(
        ShardProduct("e4m3", "col", torch.bfloat16, Recipes("TensorWise", "RowWise")), "RowWise"
    )
    choice = shard_plans.gather_choice(512, 128, 64, ranks=2, kind="e4m3", transfer=Transfer(1), epilogue=epilogue)
    rank = Rank(monkeypatch, "all_gather_matmul", 2, 512 * (64 + 4), 1)
    rank.space.sends = tuple(sends_of_rows(rank.space, RankRows.of(choice.plan, choice.chunks)))
    a, b = (torch.ones(rows, 64).to(torch.float8_e4m3fn) for rows in (256, 128))
    scales = torch.full((count,), 3.0), torch.ones(128)
    out = torch.empty(512, 128, dtype=torch.bfloat16)
    calls.GatherCall(rank.space, choice, a, b.t(), out, True, 0).start(a, b.t(), scales, out, 0)
    found, there = (rank.space.buffer(r, (512,), torch.float32, 512 * 64) for r in (0, 1))
    assert found[:256].eq(3).all() and there[:256].eq(3).all()
    copies = [said for said in rank.log if said.startswith("copy")]
    assert copies[-2:] == ["copy of 1024", f"copy of {256 * 64}"] and len(copies) == 2 + (count > 1)
    named = dict(zip(choice.plan.parameters, rank.arguments, strict=True))
    assert (named["scale_a"], named["scale_b"]) == (found.data_ptr(), scales[1].data_ptr())
    assert named["lda"] == named["ldb"] == 64 and named["flags"] == rank.space.memory.data_ptr()


def scatter(monkeypatch: pytest.MonkeyPatch, transfer: Transfer) -> tuple[Rank, Any, dict[str, int], Any]:
    """A scatter's call of rank 0: what it did, its choice, the launch's arguments by name, and C."""
    choice = shard_plans.scatter_choice(512, 128, 64, ranks=2, transfer=transfer)
    rank = Rank(monkeypatch, "matmul_reduce_scatter", choice.chunks + 1, choice.room_bytes, choice.chunks)
    a, b = torch.ones(512, 64, dtype=torch.bfloat16), torch.ones(128, 64, dtype=torch.bfloat16)
    calls.furnish(rank.space, choice, torch.device("cpu"))
    if transfer.by == "copies":
        rank.space.extra["partial sums"][:] = torch.arange(choice.room_bytes) % 251
    out = torch.empty(256, 128, dtype=torch.bfloat16)
    calls.ScatterCall(rank.space, choice, a, b.t(), out, False, 0).start(a, b.t(), NO_SCALES, out, 0)
    return rank, choice, dict(zip(choice.plan.parameters, rank.arguments, strict=True)), out


def test_a_scatter_is_one_launch_that_stores_into_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, choice, named, out = scatter(monkeypatch, Transfer())
    space = rank.space
    assert rank.log == ["launch"] and space.extra["calls"].tolist() == [1]
    assert (named["outbox"], named["counts"]) == (space.address(1), space.flag_address(1, 0))
    assert named["told"] == space.flag_address(1, choice.chunks) and named["calls"] == space.extra["calls"].data_ptr()
    assert named["c"] == out.data_ptr() and named["ldc"] == 128 and named["target"] == choice.done
    assert named["inbox"] == space.address(0)


def test_copies_of_a_scatter_leave_as_chunks_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, choice, named, _ = scatter(monkeypatch, Transfer(2, "copies"))
    done, half = choice.done, choice.room_bytes // 2
    copy = f"copy of {half}"
    sent = [f"wait for {done}", copy, "flag 0 of rank 1 = 1", f"wait for {done}", copy, "flag 1 of rank 1 = 1"]
    assert rank.log == ["fork", "launch", *BEGINS, *sent, "join"]
    staging = rank.space.extra["partial sums"]
    assert torch.equal(rank.space.buffer(1, (2 * half,), torch.uint8), staging)
    assert named["outbox"] == staging.data_ptr() and named["target"] == 1
    assert named["counts"] == rank.space.extra["counters"].data_ptr()


def test_a_wait_that_ended_names_rank_and_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch, "all_gather_matmul", 4, 64, 2)
    rank.space.require_alive()
    rank.space.record[:] = torch.tensor([3, 0, 1, 0], dtype=torch.int32)
    said = "rank 0 waited 3 s for flag 2, which was 0 and not 1: chunk 0 of rank 1, by way of rank 1, did not"
    with pytest.raises(RankError, match=said):
        rank.space.require_alive()
    rank = Rank(monkeypatch, "matmul_reduce_scatter", 5, 64, 4)
    for flag, said in ((3, "chunk 3 of the sums for rank 0, from rank 1,"), (4, "the beginning of rank 1's call")):
        rank.space.record[:] = torch.tensor([flag + 1, 0, 1, 0], dtype=torch.int32)
        with pytest.raises(RankError, match=said):
            rank.space.require_alive()


def test_a_launch_failure_is_named_by_later_calls_and_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """torch reports a stopped kernel as a launch failure, at any call; a failure alone stays what it is."""
    space = Rank(monkeypatch, "all_gather_matmul", 2, 64, 1).space
    monkeypatch.setattr(workspaces, "_WORKSPACES", {(): space})
    failure = RuntimeError("unspecified launch failure")

    def fails(*_: object) -> None:
        raise failure

    x = torch.ones(64, 64, dtype=torch.bfloat16)
    for module in (overlap, operators):
        monkeypatch.setattr(module, "find", fails)
    monkeypatch.setattr(overlap, "group_of", lambda _: None)
    monkeypatch.setattr(operators, "_group", lambda _: None)
    asked = (lambda: all_gather_matmul(x, x), lambda: operators._product("all_gather_matmul", x, x, "", 3.0))
    for call in asked:
        with pytest.raises(RuntimeError, match="unspecified launch failure"):
            call()
    workspaces._say_at_exit()
    assert capsys.readouterr().err == ""
    space.record[:] = torch.tensor([2, 0, 1, 0])
    said = "all_gather_matmul: rank 0 waited 3 s for flag 1, which was 0 and not 1: chunk 0 of rank 1, "
    workspaces._say_at_exit()
    assert capsys.readouterr().err.startswith(f"layoutgemm: {said}")
    for call in asked:
        with pytest.raises(RankError, match=said) as named:
            call()
        assert named.value.__cause__ is failure
    workspaces._say_at_exit()  # an error has named it
    assert capsys.readouterr().err == ""


@pytest.mark.skipif(not needs.found("cuda"), reason=needs.reason("cuda"))
def test_stream_memory_operations_exist() -> None:
    from cuda.bindings import driver

    assert callable(driver.cuStreamBatchMemOp)
    [one, two] = stream_memory._parameters((stream_memory.write(64, 3), stream_memory.wait(128, 5)))
    kinds = driver.CUstreamBatchMemOpType
    assert one.operation == kinds.CU_STREAM_MEM_OP_WRITE_VALUE_32 and int(one.writeValue.address) == 64
    assert two.operation == kinds.CU_STREAM_MEM_OP_WAIT_VALUE_32 and int(two.waitValue.value) == 5


def test_an_output_over_an_operand_is_refused() -> None:
    """By the check that every product has: views of one memory, and an output that lies on itself."""
    room = torch.zeros(64, 64, dtype=torch.bfloat16)
    read = {"a": room[:32], "b": torch.zeros(64, 64, dtype=torch.bfloat16)}
    kind = torch.bfloat16
    with pytest.raises(TensorError, match="out, which is written to, shares memory with a"):
        output_of(room[16:48], (32, 64), kind, read)
    with pytest.raises(TensorError, match="more than one element of out"):
        output_of(torch.zeros(1, 64, dtype=kind).expand(32, 64), (32, 64), kind, read)
    assert output_of(room[32:], (32, 64), kind, read) is not None


def test_a_call_is_kept_for_the_same_shapes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept, "FIRST_GPU", -1)
    a, b, scale = torch.ones(8, 16).bfloat16(), torch.ones(24, 16).bfloat16().T, torch.ones(8, 1)

    def key(x: Any = a, y: Any = b, scales: Any = (None, None), options: Any = (None,), out: Any = None) -> Any:
        return kept.find("gather", "group", (x, y), scales, out, options)[0]

    others = [
        key(a[:4]), key(torch.ones(8, 32).bfloat16()[:, :16]), key(a.half()), key(y=b.contiguous()),
        key(scales=(scale, None)), key(scales=(None, scale)), key(options=(1,)),
        key(out=torch.ones(8, 24)), key(out=torch.ones(8, 24).half()),
    ]  # fmt: skip
    assert key() and len({key(), *others}) == 10
    assert key(a.clone().requires_grad_()) == () and key(torch.ones(129).bfloat16()[1:].view(8, 16)) == ()
    with torch.no_grad():
        assert key(a.clone().requires_grad_()) == key()
    call: Any = object()
    kept.keep((), call)
    kept.keep(key(), call)
    assert key(out=a) == () and key(out=torch.ones(25)[1:]) == ()
    assert kept.find("gather", "group", (a, b), (None, None), None, (None,))[1] is call
    assert () not in kept._KEPT
    kept._KEPT.clear()


class Beside:
    """Rows of two ranks that come while a product runs: own ones, and twice those."""

    def __init__(self, log: list[str]) -> None:
        self.log = log

    def begin(self, a: Any) -> None:
        self.log.append("begin")
        self.rows = torch.cat([a, 2 * a])

    def end(self) -> Any:
        self.log.append("end")
        return self.rows


@pytest.mark.parametrize("transposed", [False, True])
def test_gradients_of_shards_beside_each_other(monkeypatch: pytest.MonkeyPatch, transposed: bool) -> None:
    """Rank 1 has twice the rows of rank 0. The gradient of a weight lies as the weight does."""
    log: list[str] = []
    rows, k, n = 64, 32, 48
    a, grad = torch.randint(-3, 4, (rows, k)).bfloat16(), torch.randint(-3, 4, (2 * rows, n)).bfloat16()
    b = torch.randint(-3, 4, (n, k)).bfloat16().t() if transposed else torch.randint(-3, 4, (k, n)).bfloat16()

    def product(name: str, x: Any, y: Any, group: str, timeout: float) -> Any:
        log.append(name)
        whole = x if name == products.SCATTER else torch.cat([x, 2 * x])
        return whole @ y

    monkeypatch.setattr(operators, "_group", lambda name: name)
    monkeypatch.setattr(operators, "rows_beside", lambda a, group, timeout: Beside(log))
    monkeypatch.setattr(operators, "_product", product)
    of_a, of_b = operators._gradients_of_gather(grad, a, b, "two ranks", 1.0)
    assert log == ["begin", products.SCATTER, "end"]
    assert torch.equal(of_a, grad @ b.t()) and torch.equal(of_b, torch.cat([a, 2 * a]).t() @ grad)
    assert of_b.stride() == b.stride()

    h, grad = torch.randint(-3, 4, (2 * rows, k)).bfloat16(), grad[:rows]
    monkeypatch.setattr(operators, "find", lambda *given: ((), None))  # a call that is not kept: rows come apart
    monkeypatch.setattr(operators, "_rows", lambda gathers, x, group: torch.cat([x, 2 * x]))
    of_h, of_b = operators._gradients_of_scatter(grad, h, b, "two ranks", 1.0)
    whole = torch.cat([grad, 2 * grad])
    assert torch.equal(of_h, whole @ b.t()) and torch.equal(of_b, h.t() @ whole)
    assert of_b.stride() == b.stride()


class Meeting:
    """A rank of a group in the store that its threads share."""

    def __init__(self, rank: int, size: int, store: Any) -> None:
        self.rank, self.size = (lambda: rank), (lambda: size)
        self.get_group_store = lambda: store


def together(size: int, facts: Any, absent: int = -1, timeout: float = 5.0) -> list[str]:
    """The errors of each rank's check; the absent one does not come."""
    store, said = torch.distributed.HashStore(), ["" for _ in range(size)]

    def one(rank: int) -> None:
        try:
            for each in facts[rank]:
                check_alike("all_gather_matmul", Meeting(rank, size, store), each, timeout)  # type: ignore[arg-type]
        except LayoutError as error:
            said[rank] = str(error)

    threads = [threading.Thread(target=one, args=(rank,)) for rank in range(size) if rank != absent]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.num_keys() <= 3 * size, "facts of former calls are kept"
    return said


def test_facts_of_ranks_are_compared_within_the_timeout() -> None:
    assert together(3, [[(1,), (2,), (3,), (4,)]] * 3) == [""] * 3
    first, second, third = together(3, [[(12,)], [(12,)], [(11,)]])
    assert "rank 0 has ('all_gather_matmul', 12), rank 2 has ('all_gather_matmul', 11): all call alike" in first
    assert second and "rank 2 has ('all_gather_matmul', 11), rank 0" in third
    for facts, absent in (([[(1,)]] * 3, 1), ([[(1,), (2,)], [(1,)], [(1,), (2,)]], -1)):
        said = together(3, facts, absent, 0.2)
        assert said[1] == "" and all("rank 1 did not come: it has ended" in said[rank] for rank in (0, 2)), said
