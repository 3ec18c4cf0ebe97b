"""Overlapping products: the reference on gloo processes, the choice of kernels, and the calls of a rank in order."""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'layoutgemm[torch]'")
if not torch.distributed.is_available():
    pytest.skip("this torch is built without torch.distributed", allow_module_level=True)

from layoutgemm.distributed import Transfer, kept, overlap, shard_plans, workspaces
from layoutgemm.distributed.checks import ShardProduct, output_of
from layoutgemm.errors import PlanError, RankError, TensorError
from layoutgemm.kernels.sm90.choose.occupancy import Places
from layoutgemm.kernels.sm90.shards import tiles_of_shard
from layoutgemm.torch_op.scaled_grouped.recipes import Recipes

PROGRAM = Path(__file__).with_name("overlap_program.py")


@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_reference_on_gloo(world: int, tmp_path: Path) -> None:
    commands = [[sys.executable, str(PROGRAM), str(rank), str(world), str(tmp_path / "store")] for rank in range(world)]
    root = PROGRAM.parents[2]
    path = {"PYTHONPATH": str(root), "PATH": "/usr/bin:/bin"}
    started = [
        subprocess.Popen(each, cwd=root, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=path)
        for each in commands
    ]
    try:
        outputs = [each.communicate(timeout=300)[0] for each in started]
    finally:
        for each in started:
            each.kill()
    assert all("right" in output for output in outputs), "\n".join(outputs)


@pytest.mark.parametrize("ranks", [2, 4, 8])
@pytest.mark.parametrize("sizes", [(4096, 14336, 4096), (8192, 8192, 8192), (16384, 4096, 14336), (1024, 512, 256)])
def test_kernels_are_found_for_every_number_of_ranks(ranks: int, sizes: tuple[int, int, int]) -> None:
    m, n, k = sizes
    gather = shard_plans.gather_choice(m, n // ranks, k, ranks=ranks)
    scatter = shard_plans.scatter_choice(m, n, k // ranks, ranks=ranks)
    assert m // ranks % gather.chunks == 0
    assert tiles_of_shard(scatter.plan, ranks) % scatter.chunks == 0
    large = 2 * m * n * k / ranks > 4e11
    most, lag, by = (4, 2, "copies") if large else (16, 4, "stores")
    assert scatter.transfer.by == by and scatter.chunks <= most and scatter.transfer.lag == min(lag, scatter.chunks)


def test_sizes_without_a_kernel_are_refused() -> None:
    with pytest.raises(PlanError, match="no multiple of a cluster's"):
        shard_plans.scatter_choice(200, 256, 256, ranks=2)
    with pytest.raises(PlanError, match="401 % 2"):
        shard_plans.gather_choice(401, 256, 256, ranks=2)


class Handle:
    """A rank's symmetric memory, on the CPU."""

    def __init__(self, rank: int, memories: list[Any], log: list[str]) -> None:
        self.rank, self.world_size, self.memories, self.log = rank, len(memories), memories, log
        self.buffer_ptrs = [memory.data_ptr() for memory in memories]

    def get_buffer(self, rank: int, shape: tuple[int, ...], dtype: Any, offset: int) -> Any:
        count = 1
        for extent in shape:
            count *= extent
        return self.memories[rank].view(dtype)[offset : offset + count].view(shape)

    def barrier(self, channel: int, timeout_ms: int) -> None:
        self.log.append("meet")


class Rank:
    """A rank's call without a GPU: streams and launches are noted, copies are made at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str, flags: int, nbytes: int, chunks: int) -> None:
        self.log: list[str] = []
        size = workspaces.buffer_offset(flags) + nbytes
        memories = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
        nothing = SimpleNamespace(
            cuda_stream=0, wait_stream=lambda _: self.log.append("join"), wait_event=lambda _: self.log.append("join")
        )
        record = torch.zeros(4, dtype=torch.int32)
        handle = Handle(0, memories, self.log)
        self.space = workspaces.Workspace(handle, memories[0], flags, chunks, record, nothing, 3.0, name)
        self.arguments: tuple[int, ...] = ()
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: nothing)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: __import__("contextlib").nullcontext())
        monkeypatch.setattr(overlap, "_index", lambda _: 0)
        monkeypatch.setattr(overlap, "of_device", lambda _: Places(132))
        monkeypatch.setattr(overlap, "compile_plan", lambda plan: None)
        monkeypatch.setattr(
            overlap, "Direct", lambda *given: SimpleNamespace(launch=functools.partial(self.launch, given))
        )
        monkeypatch.setattr(overlap, "copy_bytes", lambda _, to, of, nbytes: ctypes.memmove(to, of, nbytes))
        for module in (overlap, workspaces):
            monkeypatch.setattr(module, "wait_value", lambda *given: self.log.append(f"wait for {given[2]}"))
        monkeypatch.setattr(workspaces, "write_value", self.write)

    def launch(self, given: Sequence[Any], addresses: Sequence[int], stream: int) -> None:
        values = [*given[1]]
        for place, address in zip(given[2], addresses, strict=True):
            values[place] = address
        self.arguments = tuple(values)
        self.log.append("launch")

    def write(self, stream: int, address: int, value: int) -> None:
        handle = self.space.handle
        words = self.space.flag_count + 2
        rank = next(r for r in (0, 1) if 0 <= address - handle.buffer_ptrs[r] < 4 * words)
        flag = (address - handle.buffer_ptrs[rank]) // 4
        meets = flag - self.space.flag_count
        self.log.append(f"flag {flag} of rank {rank}" if meets < 0 else f"meeting {meets} of rank {rank} = {value}")


MEETING = ["meeting 0 of rank 1 = 1", "wait for 1", "meeting 1 of rank 0 = 0"]


@pytest.mark.parametrize("beside", [True, False])
def test_a_gather_copies_flags_and_launches_in_order(monkeypatch: pytest.MonkeyPatch, beside: bool) -> None:
    choice = shard_plans.gather_choice(512, 128, 64, ranks=2, transfer=Transfer(2, beside=beside))
    rank = Rank(monkeypatch, "all_gather_matmul", 4, 512 * 64 * 2, 2)
    theirs = rank.space.buffer(1, (512, 64), torch.bfloat16)
    theirs[256:] = 7
    a, b = torch.ones(256, 64, dtype=torch.bfloat16), torch.ones(128, 64, dtype=torch.bfloat16)
    out = torch.empty(512, 128, dtype=torch.bfloat16)
    choice.launches.clear()
    overlap._gather(rank.space, choice, a, b.t(), out)
    begins = ["join", *MEETING] if beside else ["meet", "join"]
    assert rank.log == [*begins, "flag 2 of rank 0", "flag 3 of rank 0", "launch", "meet", "join"]
    whole = rank.space.buffer(0, (512, 64), torch.bfloat16)
    assert whole[:256].eq(1).all() and whole[256:].eq(7).all()
    named = dict(zip(choice.plan.parameters, rank.arguments, strict=True))
    assert (named["m"], named["n"], named["k"], named["lda"], named["ldb"], named["ldc"]) == (512, 128, 64, 64, 64, 128)
    assert (named["rank"], named["ranks"], named["chunks"], named["target"]) == (0, 2, 2, 1)
    assert named["a"] == whole.data_ptr() and named["flags"] == rank.space.memory.data_ptr()


def test_a_gather_of_8_bits_moves_scales_before_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scales of all rows lie behind them; one of a tensor is one of each row."""
    epilogue = overlap._epilogue(
        ShardProduct("e4m3", "col", torch.bfloat16, Recipes("TensorWise", "RowWise")), "RowWise"
    )
    choice = shard_plans.gather_choice(512, 128, 64, ranks=2, kind="e4m3", transfer=Transfer(1), epilogue=epilogue)
    rank = Rank(monkeypatch, "all_gather_matmul", 2, 512 * (64 + 4), 1)
    rank.space.buffer(1, (512,), torch.float32, 512 * 64)[256:] = 5
    a, b = (torch.ones(rows, 64).to(torch.float8_e4m3fn) for rows in (256, 128))
    scales = torch.tensor([3.0]), torch.ones(128)
    choice.launches.clear()
    overlap._gather(rank.space, choice, a, b.t(), torch.empty(512, 128, dtype=torch.bfloat16), scales)
    found = rank.space.buffer(0, (512,), torch.float32, 512 * 64)
    assert found[:256].eq(3).all() and found[256:].eq(5).all()
    named = dict(zip(choice.plan.parameters, rank.arguments, strict=True))
    assert (named["scale_a"], named["scale_b"]) == (found.data_ptr(), scales[1].data_ptr())
    assert named["lda"] == named["ldb"] == 64 and named["flags"] == rank.space.memory.data_ptr()


def scatter(monkeypatch: pytest.MonkeyPatch, transfer: Transfer) -> tuple[Rank, Any, dict[str, int], Any]:
    """A scatter's call of rank 0: what it did, its choice, the launch's arguments by name, and C."""
    choice = shard_plans.scatter_choice(512, 128, 64, ranks=2, transfer=transfer)
    rank = Rank(monkeypatch, "matmul_reduce_scatter", choice.chunks + 1, choice.room_bytes, choice.chunks)
    a, b = torch.ones(512, 64, dtype=torch.bfloat16), torch.ones(128, 64, dtype=torch.bfloat16)
    overlap._furnish(rank.space, choice, torch.device("cpu"))
    if transfer.by == "copies":
        rank.space.extra["partial sums"][:] = torch.arange(2 * choice.room_bytes) % 251
    out = torch.empty(256, 128, dtype=torch.bfloat16)
    choice.launches.clear()
    overlap._scatter(rank.space, choice, a, b.t(), out)
    return rank, choice, dict(zip(choice.plan.parameters, rank.arguments, strict=True)), out


def test_a_scatter_is_one_launch_that_stores_into_peers(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, choice, named, out = scatter(monkeypatch, Transfer())
    space = rank.space
    assert rank.log == ["launch"] and space.extra["calls"].tolist() == [1]
    there = space.address(1), space.flag_address(1, 0), space.flag_address(1, choice.chunks)
    assert space.extra["peers"].tolist() == [[0, 0, 0], list(there)]
    assert named["c"] == out.data_ptr() and named["ldc"] == 128 and named["target"] == choice.done
    assert named["inbox"] == space.address(0) and named["lag"] == choice.transfer.lag
    assert (named["calls"], named["peers"]) == (space.extra["calls"].data_ptr(), space.extra["peers"].data_ptr())


def test_copies_of_a_scatter_leave_as_chunks_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    rank, choice, named, _ = scatter(monkeypatch, Transfer(2, "copies"))
    done, half = choice.done, choice.room_bytes // 2
    sent = [f"wait for {done}", "flag 0 of rank 1", f"wait for {done}", "flag 1 of rank 1"]
    assert rank.log == ["join", *MEETING, "launch", *sent, "join"]
    staging = rank.space.extra["partial sums"]
    assert torch.equal(rank.space.buffer(1, (2 * half,), torch.uint8), staging[2 * half :])
    peers, counters = rank.space.extra["peers"][1].tolist(), rank.space.extra["counters"].data_ptr()
    assert peers[:2] == [staging.data_ptr() + 2 * half, counters + 8] and named["target"] == 1


def test_a_wait_that_ended_names_rank_and_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch, "all_gather_matmul", 4, 64, 2)
    rank.space.require_alive()
    rank.space.record[:] = torch.tensor([3, 0, 1, 0], dtype=torch.int32)
    with pytest.raises(RankError, match=r"rank 0 waited 3 s for flag 2, which was 0 and not 1: chunk 0 of rank 1"):
        rank.space.require_alive()
    rank = Rank(monkeypatch, "matmul_reduce_scatter", 5, 64, 4)
    for flag, said in ((3, "chunk 3 of rank 1"), (4, "the beginning of rank 1's call")):
        rank.space.record[:] = torch.tensor([flag + 1, 0, 1, 0], dtype=torch.int32)
        with pytest.raises(RankError, match=said):
            rank.space.require_alive()


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="needs CUDA's bindings")
def test_stream_memory_operations_exist() -> None:
    from cuda.bindings import driver

    assert callable(driver.cuStreamWriteValue32) and callable(driver.cuStreamWaitValue32)


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
    call = kept.KeptCall(None, None, (8, 24), torch.bfloat16)
    kept.keep((), call)
    kept.keep(key(), call)
    assert key(out=a) == () and key(out=torch.ones(25)[1:]) == ()
    assert kept.find("gather", "group", (a, b), (None, None), None, (None,))[1] is call
    assert () not in kept._KEPT
    kept._KEPT.clear()
