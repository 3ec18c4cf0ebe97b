"""Distributed scripts: ranks that take turns, their collectives, and kernels that wait for those of other ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from layoutgemm.cli.main import main
from layoutgemm.emulator.host.collectives import UNSUPPORTED, Collectives
from layoutgemm.emulator.host.ranks import Ranks
from layoutgemm.errors import EmulatorError
from tests import needs


def test_ranks_meet_in_turns() -> None:
    ranks, said = Ranks(3), []

    def body(rank: int) -> None:
        assert os.environ["RANK"] == str(rank) == str(ranks.current)
        os.environ["RANK"] = f"{rank}!"
        for step in range(2):
            said.append((step, rank))
            assert ranks.together("meeting", rank * 10 + step) == [step, 10 + step, 20 + step]
            assert os.environ["RANK"] == f"{rank}!"

    before = dict(os.environ)
    ranks.run(body)
    assert said == [(0, 0), (0, 1), (0, 2), (1, 2), (1, 0), (1, 1)]  # the last to come goes on at once
    assert dict(os.environ) == before


def test_ranks_that_wait_for_one_another_say_where() -> None:
    ranks = Ranks(2)
    with pytest.raises(EmulatorError, match="rank 0 in all_reduce, rank 1 in barrier"):
        ranks.run(lambda rank: ranks.together("barrier" if rank else "all_reduce") and None)
    ranks = Ranks(2)
    with pytest.raises(EmulatorError, match="rank 0 in barrier; rank 1 has ended"):
        ranks.run(lambda rank: None if rank else ranks.together("barrier") and None)


def test_a_failure_ends_the_other_ranks() -> None:
    ranks = Ranks(2)

    def body(rank: int) -> None:
        if rank:
            raise ZeroDivisionError("here")
        ranks.together("barrier")

    with pytest.raises(ZeroDivisionError, match="here"):
        ranks.run(body)


def test_all_to_all_of_equal_and_other_parts() -> None:
    torch = needs.module("torch")
    ranks = Ranks(2)
    of = Collectives(torch, ranks)
    got = {}

    def body(rank: int) -> None:
        rows, even = torch.arange(6.0) + 10 * rank, torch.empty(6)
        of.all_to_all_single(even, rows)
        uneven = torch.empty(4 if rank else 8)
        of.all_to_all_single(uneven, rows, [2, 2] if rank else [4, 4], [4, 2])
        got[rank] = even.tolist(), uneven.tolist()
        with pytest.raises(EmulatorError, match="5 rows are not 2 equal parts"):
            of.all_to_all_single(even, rows[:5])
        with pytest.raises(EmulatorError, match=rf"rank {rank} gets \[3, 3\] rows, not \[2, 4\]"):
            of.all_to_all_single(even, rows, [2, 4])

    ranks.run(body)
    assert got == {
        0: ([0, 1, 2, 10, 11, 12], [0, 1, 2, 3, 10, 11, 12, 13]),
        1: ([3, 4, 5, 13, 14, 15], [4, 5, 14, 15]),
    }


def test_a_collective_that_ranks_lack_is_refused_by_its_name() -> None:
    functions = Collectives(needs.module("torch"), Ranks(1)).functions()
    for name in UNSUPPORTED:
        with pytest.raises(EmulatorError, match=rf"torch\.distributed\.{name} does not run with --ranks"):
            functions[name]()


OF_INDUCTOR = """
import torch
native = torch._C._distributed_c10d._SymmetricMemory
assert native.has_multicast_support("cuda", 0) and callable(native.empty_strided_p2p)
"""


def test_symmetric_memory_keeps_what_inductor_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = needs.module("torch")
    if not hasattr(getattr(torch._C, "_distributed_c10d", None), "_SymmetricMemory"):
        pytest.skip("this torch has no symmetric memory: install one with torch.distributed")
    (tmp_path / "compiled.py").write_text(OF_INDUCTOR)
    assert main(["emulate", "--ranks", "2", str(tmp_path / "compiled.py")]) == 0, capsys.readouterr().err


# Each rank adds its input to its peer's buffer, and tells both by a multicast flag; then it waits for its own flag.
SCRIPT = """
import os
import sys
import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem
import cuda.bindings.driver as cuda
import cutlass
import cutlass.cute as cute
import cutlass.torch as cutlass_torch
import cutlass.utils as utils
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def kernel(mine: cute.Tensor, peer: cute.Tensor, inbox: cute.Tensor, out: cute.Tensor, flag: cute.Tensor,
           flag_mc: cute.Tensor, count: cutlass.Constexpr):
    t, _, _ = cute.arch.thread_idx()
    peer[t] = mine[t] * 2
    cute.arch.sync_threads()
    if t == 0:
        utils.distributed.multimem_red_add1(flag_mc.iterator, scope="sys", order="release")
        utils.distributed.spin_lock_atom_cas_relaxed_wait(flag.iterator, expected_val=count, reset_val=0, scope="sys")
    cute.arch.sync_threads()
    out[t] = inbox[t] + mine[t]


@cute.jit
def launch(mine: cute.Tensor, peer: cute.Tensor, inbox: cute.Tensor, out: cute.Tensor, flag: cute.Tensor,
           flag_mc: cute.Tensor, count: cutlass.Constexpr, stream: cuda.CUstream):
    kernel(mine, peer, inbox, out, flag, flag_mc, count).launch(grid=(1, 1, 1), block=(32, 1, 1), stream=stream)


rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group(backend="nccl")
assert (dist.get_rank(), dist.get_world_size(), torch.cuda.device_count()) == (rank, 2, 2)
inbox = symm_mem.empty(32, dtype=torch.float32, device=f"cuda:{rank}")
assert inbox.device == torch.device("cuda", rank)
handle = symm_mem.rendezvous(inbox, dist.group.WORLD)
peer = handle.get_buffer(1 - rank, inbox.shape, inbox.dtype)
assert handle.buffer_ptrs[rank] == inbox.data_ptr() and handle.buffer_ptrs[1 - rank] == peer.data_ptr()
flag = symm_mem.empty(1, dtype=torch.int32, device="cuda")
window = symm_mem.rendezvous(flag, dist.group.WORLD).multicast_ptr
flag_mc = cutlass_torch.as_tensor(window, flag.shape, flag.dtype)
mine = torch.arange(32, device="cuda", dtype=torch.float32) + 100 * rank
out, stream = torch.zeros_like(mine), cuda.CUstream(0)
count = int(sys.argv[1])
tensors = [from_dlpack(x) for x in (mine, peer, inbox, out, flag, flag_mc)]
compiled = cute.compile(launch, *tensors, count, stream)
if sys.argv[2] == "graph":
    source = mine.clone()
    graph, main, side = torch.cuda.CUDAGraph(), torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.graph(graph, stream=main):
        side.wait_stream(main)
        compiled(*tensors, cuda.CUstream(side.cuda_stream))  # waits for the peer's, which may begin later
        cuda.cuMemcpyDtoDAsync(mine.data_ptr(), source.data_ptr(), 128, main.cuda_stream)
        main.wait_stream(side)
        cuda.cuMemcpyDtoDAsync(source.data_ptr(), out.data_ptr(), 128, main.cuda_stream)
    assert not out.any()
    graph.replay()
    torch.testing.assert_close(source, out)
else:
    compiled(*tensors, stream)
wanted = mine.clone()
dist.all_reduce(wanted)  # mine + theirs
torch.testing.assert_close(out, mine + 2 * (wanted - mine))
print("rank", rank, "is right")
dist.destroy_process_group()
"""


@pytest.mark.dsl
@pytest.mark.parametrize(("count", "how", "status"), [(2, "plain", 0), (2, "graph", 0), (3, "plain", 1)])
def test_kernels_of_two_ranks_wait_for_each_other(
    count: int, how: str, status: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    needs.module("torch")
    needs.module("cutlass")
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    modules = sys.modules["__main__"]
    found = main(["emulate", "--arch", "sm_100a", "--ranks", "2", str(path), str(count), how])
    out, err = capfd.readouterr()
    assert found == status, err
    assert sys.modules["__main__"] is modules
    if status:
        assert "no device and no copy engine can go on" in out and "rank 0" in out and "rank 1" in out
    else:
        assert "rank 0 is right" in out and "rank 1 is right" in out and "2 launch(es), nothing found" in out
