"""Overlapping products: the reference on gloo processes, the choice of kernels, and the calls of a rank in order."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'layoutgemm[torch]'")
if not torch.distributed.is_available():
    pytest.skip("this torch is built without torch.distributed", allow_module_level=True)

from layoutgemm.distributed import overlap, shard_plans, workspaces
from layoutgemm.errors import PlanError, RankError, TensorError
from layoutgemm.kernels.sm90.choose.occupancy import Places

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
    for choice in (gather, scatter):
        assert m // ranks % choice.chunks == 0
    assert m // ranks // scatter.chunks % (scatter.plan.tile[0] * scatter.plan.config.cluster[0]) == 0


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
        size = workspaces._buffer_offset(flags) + nbytes
        memories = [torch.zeros(size, dtype=torch.uint8) for _ in range(2)]
        nothing = SimpleNamespace(
            cuda_stream=0, wait_stream=lambda _: self.log.append("join"), wait_event=lambda _: self.log.append("join")
        )
        counters, record = torch.zeros(2 * chunks, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
        handle = Handle(0, memories, self.log)
        self.space = workspaces.Workspace(handle, memories[0], flags, counters, record, nothing, 3.0, name)
        self.arguments: tuple[int, ...] = ()
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: nothing)
        monkeypatch.setattr(torch.cuda, "stream", lambda _: __import__("contextlib").nullcontext())
        monkeypatch.setattr(overlap, "_index", lambda _: 0)
        monkeypatch.setattr(overlap, "of_device", lambda _: Places(132))
        monkeypatch.setattr(overlap, "compile_plan", lambda plan: SimpleNamespace(launch=self.launch))
        monkeypatch.setattr(overlap, "wait_value", lambda *given: self.log.append(f"wait for {given[2]}"))
        monkeypatch.setattr(workspaces, "write_value", self.write)

    def launch(self, *arguments: int, stream: int) -> None:
        self.arguments = arguments
        self.log.append("launch")

    def write(self, stream: int, address: int, value: int) -> None:
        handle = self.space.handle
        rank = next(r for r in (0, 1) if 0 <= address - handle.buffer_ptrs[r] < 4 * self.space.flag_count)
        self.log.append(f"flag {(address - handle.buffer_ptrs[rank]) // 4} of rank {rank}")


def test_a_gather_copies_flags_and_launches_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = shard_plans.gather_choice(512, 128, 64, ranks=2, chunks=2)
    rank = Rank(monkeypatch, "all_gather_matmul", 4, 512 * 64 * 2, 2)
    theirs = rank.space.buffer(1, (512, 64), torch.bfloat16)
    theirs[256:] = 7
    a, b = torch.ones(256, 64, dtype=torch.bfloat16), torch.ones(128, 64, dtype=torch.bfloat16)
    out = torch.empty(512, 128, dtype=torch.bfloat16)
    overlap._gather(rank.space, choice, a, b.t(), out)
    assert rank.log == ["meet", "join", "flag 2 of rank 0", "flag 3 of rank 0", "launch", "meet", "join"]
    whole = rank.space.buffer(0, (512, 64), torch.bfloat16)
    assert whole[:256].eq(1).all() and whole[256:].eq(7).all()
    named = dict(zip(choice.plan.parameters, rank.arguments, strict=True))
    assert (named["m"], named["n"], named["k"], named["lda"], named["ldb"], named["ldc"]) == (512, 128, 64, 64, 64, 128)
    assert (named["rank"], named["chunks"], named["chunk_rows"], named["target"]) == (0, 2, 128, 1)
    assert named["a"] == whole.data_ptr() and named["flags"] == rank.space.memory.data_ptr()


def test_a_scatter_launches_first_and_sends_chunks_as_they_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    choice = shard_plans.scatter_choice(512, 128, 64, ranks=2, chunks=2)
    rank = Rank(monkeypatch, "matmul_reduce_scatter", 2, 256 * 128 * 2, 2)
    a, b = torch.ones(512, 64, dtype=torch.bfloat16), torch.ones(128, 64, dtype=torch.bfloat16)
    partial = torch.arange(512)[:, None].expand(512, 128).to(torch.bfloat16).contiguous()
    rank.space.extra["partial sums"] = partial
    out = torch.empty(256, 128, dtype=torch.bfloat16)
    overlap._scatter(rank.space, choice, a, b.t(), out)
    done = overlap.signals_of_chunk(choice.plan, 128)
    sent = [f"wait for {done}", "flag 0 of rank 1", f"wait for {done}", "flag 1 of rank 1"]
    assert rank.log == ["meet", "join", "launch", *sent, "join"]
    assert torch.equal(rank.space.buffer(1, (1, 256, 128), torch.bfloat16)[0], partial[256:])
    named = dict(zip(choice.plan.parameters, rank.arguments, strict=True))
    assert named["result"] == out.data_ptr() and named["c"] == partial.data_ptr() and named["result_ld"] == 128
    assert named["inbox"] == rank.space.buffer(0, (1, 256, 128), torch.bfloat16).data_ptr()


def test_a_wait_that_ended_names_rank_and_flag(monkeypatch: pytest.MonkeyPatch) -> None:
    rank = Rank(monkeypatch, "all_gather_matmul", 4, 64, 2)
    rank.space.require_alive()
    rank.space.record[:] = torch.tensor([3, 0, 1, 0], dtype=torch.int32)
    with pytest.raises(RankError, match=r"rank 0 waited 3 s for flag 2, which was 0 and not 1: chunk 0 of rank 1"):
        rank.space.require_alive()


@pytest.mark.skipif(importlib.util.find_spec("cuda") is None, reason="needs CUDA's bindings")
def test_stream_memory_operations_exist() -> None:
    from cuda.bindings import driver

    assert callable(driver.cuStreamWriteValue32) and callable(driver.cuStreamWaitValue32)


def test_an_output_over_an_operand_is_refused() -> None:
    """By the check that every product has: views of one memory, and an output that lies on itself."""
    room = torch.zeros(64, 64, dtype=torch.bfloat16)
    read = {"a": room[:32], "b": torch.zeros(64, 64, dtype=torch.bfloat16)}
    with pytest.raises(TensorError, match="out, which is written to, shares memory with a"):
        overlap._output(room[16:48], (32, 64), read)
    with pytest.raises(TensorError, match="more than one element of out"):
        overlap._output(torch.zeros(1, 64, dtype=torch.bfloat16).expand(32, 64), (32, 64), read)
    assert overlap._output(room[32:], (32, 64), read) is not None
