"""Torch's "cuda" device without a GPU: what scripts ask of torch.cuda, with the answers that a GPU gives."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import emulated_gpu
from layoutgemm.emulator.host.torch_device.memory import DeviceUse
from layoutgemm.emulator.host.torch_device.tensors import tensor_at
from layoutgemm.errors import EmulatorError
from tests import needs

torch = needs.module("torch")


@pytest.fixture(autouse=True)
def gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    tmp_path_factory.getbasetemp()  # not in the session's folder, which goes with it
    with emulated_gpu("sm_90a"):
        yield


def test_a_copy_to_the_host_stays_on_the_host() -> None:
    host = torch.zeros(2)
    assert not host.copy_(torch.ones(2, device="cuda")).is_cuda
    assert host.numpy().tolist() == [1, 1]


def test_modules_move_to_the_gpu() -> None:
    layer = torch.nn.Linear(2, 2).to("cuda")
    assert layer.weight.is_cuda and layer(torch.ones(2, device="cuda")).is_cuda
    assert not layer.to("cpu").weight.is_cuda
    assert copy.deepcopy(torch.nn.Linear(2, 2, device="cuda")).bias.is_cuda


def test_tensors_of_two_devices_are_refused() -> None:
    host, device = torch.ones(2, 2), torch.ones(2, 2, device="cuda")
    for compute in (lambda: device + host, lambda: host @ device, lambda: torch.cat([device, host.cpu()])):
        with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
            compute()
    assert (device + torch.tensor(1.0)).is_cuda  # a number of the host may go with it
    assert device[torch.tensor([0])].is_cuda
    assert torch.allclose(device.cpu(), host)


def test_a_gpu_that_is_not_there_is_refused() -> None:
    for ask in (
        lambda: torch.ones(1, device="cuda:1"),
        lambda: torch.ones(1).to(2),
        lambda: torch.ones(1).cuda(3),
        lambda: torch.cuda.set_device(1),
        lambda: torch.cuda.get_device_properties("cuda:7"),
    ):
        with pytest.raises(RuntimeError, match="invalid device ordinal"):
            ask()


def test_the_gpu_has_random_numbers_of_its_own() -> None:
    torch.manual_seed(3)
    host = torch.randn(4)
    torch.manual_seed(3)
    device = torch.randn(4, device="cuda")
    assert torch.equal(torch.randn(4), host) and not torch.equal(device.cpu(), host)
    torch.cuda.manual_seed(3)
    assert torch.equal(torch.empty(4, device="cuda").normal_(), device)
    state = torch.cuda.get_rng_state()
    drawn = torch.rand_like(device)
    torch.cuda.set_rng_state(state)
    assert torch.equal(torch.rand_like(device), drawn)
    assert torch.Generator(device="cuda").device.type == "cuda"


def test_each_stream_is_current_where_it_was_entered() -> None:
    first, second = torch.cuda.Stream(priority=-1), torch.cuda.Stream()
    with torch.cuda.stream(first):
        with second:
            assert torch.cuda.current_stream() == second
        assert torch.cuda.current_stream() == first and first.priority == -1
    assert torch.cuda.current_stream() == torch.cuda.default_stream() == torch.accelerator.current_stream()
    with pytest.raises(ValueError, match="enable_timing"):
        torch.cuda.Event().elapsed_time(torch.cuda.Event())


def test_a_stream_that_a_script_leaves_set_ends_with_its_session() -> None:
    with emulated_gpu("sm_90a"):
        torch.cuda.set_stream(torch.cuda.Stream())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


class Halved(torch.autograd.Function):
    """A function that saves no tensor, and notes where its gradient lies."""

    seen: list[bool]

    @staticmethod
    def forward(ctx: object, x: object) -> object:
        return x * 0.5  # type: ignore[operator]

    @staticmethod
    def backward(ctx: object, gradient: object) -> object:
        Halved.seen.append(gradient.is_cuda)  # type: ignore[attr-defined]
        return gradient * 0.5  # type: ignore[operator]


def test_gradients_are_where_the_results_are_though_nothing_is_saved() -> None:
    for device in ("cuda", "cpu"):
        Halved.seen = []
        Halved.apply(torch.ones(2, device=device, requires_grad=True)).sum().backward()
        assert Halved.seen == [device == "cuda"]


def test_a_compiled_class_stays_a_class() -> None:
    assert torch.compile(Halved) is Halved


def test_wrappers_of_kernels_get_the_current_stream_from_torchs_module_in_c() -> None:
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream
    assert torch._C._cuda_getCurrentRawStream(0) == torch.cuda.current_stream().cuda_stream != stream.cuda_stream


def test_torch_compile_traces_a_whole_function() -> None:
    product = torch.compile(lambda x: torch.relu(x @ x.T).cuda().to("cuda") + 1, backend="eager", fullgraph=True)
    found = product(torch.full((2, 3), 0.5, device="cuda"))
    assert found.is_cuda and found.tolist() == [[1.75, 1.75], [1.75, 1.75]]


def test_tensors_that_vmap_wraps_need_no_memory() -> None:
    found = torch.vmap(lambda x: torch.where(x > 1, x, x.new_zeros(1)[0]))(torch.arange(4, device="cuda"))
    assert found.is_cuda and found.tolist() == [0, 0, 2, 3]


def test_threads_of_a_script_see_the_gpu() -> None:
    found: list[bool] = []
    thread = threading.Thread(target=lambda: found.append(torch.ones(2, device="cuda").is_cuda))
    thread.start()
    thread.join()
    assert found == [True]


def test_memory_in_use_is_counted() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.empty(1000, device="cuda")
    assert (
        torch.cuda.memory_allocated() - before
        == 4096
        == torch.cuda.memory_stats()["allocated_bytes.all.current"] - before
    )  # of 4,000 bytes, rounded up to 512
    del x
    assert torch.cuda.memory_allocated() == before and torch.cuda.max_memory_allocated() >= before + 4096
    with pytest.raises(torch.cuda.OutOfMemoryError):
        torch.empty(1 << 50, device="cuda")


def test_a_parameter_keeps_the_storage_of_its_tensor_named() -> None:
    weight = torch.nn.Parameter(torch.zeros(4, device="cuda"), requires_grad=False)
    assert (place := tensor_at(weight.data_ptr())) is not None and place[0] == "the storage of a tensor, 16 bytes"


def test_autocast_is_of_the_gpu() -> None:
    x = torch.ones(2, 2, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        assert (x @ x).dtype is torch.bfloat16
        with torch.autocast("cuda", enabled=False):
            assert (x @ x).dtype is torch.float32
    assert (x @ x).dtype is torch.float32
    y = x.bfloat16()
    with torch.autocast("cuda", dtype=torch.float32):
        assert (y @ y).dtype is torch.float32


def test_autocast_computes_in_float32_what_it_does_on_a_gpu() -> None:
    x = torch.ones(2, 8, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    functional = torch.nn.functional
    with torch.autocast("cuda", dtype=torch.bfloat16):
        labels = torch.zeros(2, dtype=torch.long, device="cuda")
        found = [x.softmax(-1), functional.layer_norm(x, (8,)), x.exp(), x.sum(), functional.cross_entropy(x, labels)]
        assert [one.dtype for one in found] == [torch.float32] * 5
        assert [one.dtype for one in (x.sum(dtype=torch.bfloat16), x.relu(), x + x)] == [x.dtype] * 3
    found[0].sum().backward()
    assert x.grad is not None and x.grad.dtype is torch.bfloat16
    assert x.softmax(-1).dtype is torch.bfloat16


def test_a_product_has_the_type_that_is_asked_for() -> None:
    """torch has `out_dtype` on a GPU alone. The sum is not rounded to the operands' type."""
    a, b = torch.full((1, 3), 1.0078125, device="cuda").bfloat16(), torch.ones(3, 2, device="cuda").bfloat16()
    for found in (torch.mm(a, b, out_dtype=torch.float32), torch.mm(a, b, torch.float32)):
        assert found.dtype is torch.float32 and found.tolist() == [[3.0234375, 3.0234375]]
    assert torch.bmm(a[None], b[None], out_dtype=torch.float32).shape == (1, 1, 2)
    assert torch.addmm(torch.ones(2, device="cuda"), a, b, out_dtype=torch.float32).tolist() == [[4.0234375] * 2]
    assert torch.mm(a, b).dtype is torch.bfloat16


def test_pinned_memory_says_so() -> None:
    assert torch.ones(2).pin_memory().is_pinned() and torch.empty(2, pin_memory=True).is_pinned()
    assert not torch.ones(2).is_pinned()
    assert torch.ones(2).pin_memory().to("cuda", non_blocking=True).is_cuda


def test_files_load_where_they_are_asked_to(tmp_path: Path) -> None:
    path = tmp_path / "x.pt"
    torch.save({"x": torch.ones(2, device="cuda")}, path)
    assert torch.load(path)["x"].is_cuda and torch.load(path, map_location="cuda:0")["x"].is_cuda
    assert torch.load(path, map_location="cpu")["x"].numpy().tolist() == [1, 1]


def test_a_tensor_prints_its_device() -> None:
    assert repr(torch.ones(2, device="cuda")) == "tensor([1., 1.], device='cuda:0')"
    assert (
        repr(torch.ones(1, device="cuda", dtype=torch.bfloat16))
        == "tensor([1.], device='cuda:0', dtype=torch.bfloat16)"
    )
    assert torch.ones(2, device="cuda").__cuda_array_interface__["shape"] == (2,)


def test_a_graph_holds_torchs_work() -> None:
    """Replays do the captured work in order; tensors that it changes stay until then."""
    x, total, host = torch.zeros(3, device="cuda"), torch.zeros(3, device="cuda"), torch.zeros(3)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=torch.cuda.Stream()):
        y = (x + 1) * 2
        total += y
        host.copy_(total, non_blocking=True)
        part = y[1:]
    assert total.tolist() == host.tolist() == [0, 0, 0]
    for i in range(2):
        x.fill_(i)
        graph.replay()
        assert y.tolist() == [2 * i + 2] * 3 and part.tolist() == [2 * i + 2] * 2
    assert total.tolist() == host.tolist() == [6, 6, 6]
    with pytest.raises(RuntimeError, match="due to a previous error during capture"), torch.cuda.graph(graph):
        with pytest.raises(
            RuntimeError, match=r"not permitted when stream is capturing \(torch's tolist in a CUDA graph"
        ):
            x.tolist()
    with pytest.raises(RuntimeError, match="replay without a preceding successful capture"):
        graph.replay()


def _model() -> Any:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.LayerNorm(6), torch.nn.ReLU(), torch.nn.Linear(6, 2))
    return made.cuda()


def test_a_graph_holds_a_step_of_training() -> None:
    """Gradients, and what layers save for them, are of the replay's batch."""
    captured, plain = _model(), _model()
    batches = [torch.randn(3, 4).cuda() for _ in range(3)]
    place, graph = torch.zeros(3, 4, device="cuda"), torch.cuda.CUDAGraph()
    steps = [torch.optim.SGD(model.parameters(), lr=0.5) for model in (captured, plain)]
    with torch.cuda.graph(graph):
        loss = captured(place).square().mean()
        loss.backward()
        steps[0].step()
    for batch in batches:
        place.copy_(batch)
        graph.replay()
        steps[1].zero_grad()
        wanted = plain(batch).square().mean()
        wanted.backward()
        steps[1].step()
        assert torch.equal(loss, wanted)
    for one, other in zip(captured.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other) and torch.equal(one.grad, other.grad)


def test_a_graph_of_inference_mode_and_one_of_attention() -> None:
    """Versions of memory stay at replays; results have the form that they had at the capture."""
    x, graph = torch.zeros(4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.inference_mode(), torch.cuda.graph(graph):
        y = (x + 1).mul_(2)
    graph.replay()
    assert y.tolist() == [2] * 4
    layer = torch.nn.MultiheadAttention(4, 2, batch_first=True).cuda()
    place, batch = torch.randn(1, 3, 4).cuda(), torch.randn(1, 3, 4).cuda()
    with torch.cuda.graph(graph):
        out = layer(place, place, place)[0]
        out.square().sum().backward()
    gradients = [one.grad for one in layer.parameters()]
    place.copy_(batch)
    graph.replay()
    layer.zero_grad()
    wanted = layer(batch, batch, batch)[0]
    wanted.square().sum().backward()
    assert torch.equal(out, wanted)
    for one, other in zip(gradients, layer.parameters(), strict=True):
        assert torch.equal(one, other.grad)


def test_graphed_callables_give_values_and_gradients() -> None:
    captured, plain = _model(), _model()
    graphed = torch.cuda.make_graphed_callables(captured, (torch.randn(3, 4, device="cuda", requires_grad=True),))
    for _ in range(2):
        one = torch.randn(3, 4, device="cuda")
        other = one.clone().requires_grad_()
        one.requires_grad_()
        for model, x, function in ((captured, one, graphed), (plain, other, plain)):
            model.zero_grad()
            function(x).square().sum().backward()
        assert torch.equal(one.grad, other.grad)
        assert all(torch.equal(x.grad, y.grad) for x, y in zip(captured.parameters(), plain.parameters(), strict=True))


def test_a_graph_draws_other_numbers_at_each_replay() -> None:
    x, graph = torch.ones(64, device="cuda", requires_grad=True), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = torch.nn.functional.dropout(x, 0.5)
        y.sum().backward()
    seen = []
    for _ in range(2):
        graph.replay()
        seen.append(y.detach().clone())
        assert torch.equal(x.grad, seen[-1])  # the mask of this replay
    assert not torch.equal(*seen)


def _turned(x: Any) -> Any:
    y = (x + 1).t_()
    y.add_(1)
    return (y * 2).unsqueeze_(0)


def _of_a_list(x: Any) -> Any:
    parts = [x, x * 2]
    made = torch.stack(parts)
    parts.clear()
    return made


def _shifted(x: Any) -> Any:
    y = x.int()
    y <<= 2
    return y


def _under_autocast(x: Any) -> Any:
    with torch.autocast("cuda", torch.bfloat16):
        return x @ x[:, :3]


def _added_to_new(x: Any) -> Any:
    return torch.tensor([1.0, 2.0, 3.0, 4.0], device="cuda").add_(x[0]) + torch.zeros(4, device="cuda").add_(x[1])


CAPTURED = {
    "a form that changes later": _turned,
    "a list that changes later": _of_a_list,
    "a shift in place": _shifted,
    "autocast": _under_autocast,
    "another type": lambda x: x.to(torch.float64),
    "rows by index": lambda x: x.requires_grad_()[torch.tensor([2, 0], device="cuda")].detach(),
    "an output without elements": lambda x: torch.mul(x, 2, out=torch.empty(0, device="cuda")),
    "tensors of the script's numbers": _added_to_new,
    "a copy to the host": lambda x: x.to("cpu", non_blocking=True),
}


@pytest.mark.parametrize("name", CAPTURED)
def test_a_replay_does_what_the_script_does(name: str) -> None:
    """Whatever the script does between the capture and the replay."""
    x, graph = torch.zeros(4, 4, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = CAPTURED[name](x)
    for _ in range(2):
        values = torch.randn(4, 4) * 8
        x.detach().copy_(values)
        graph.replay()
        assert torch.equal(y.cpu(), CAPTURED[name](values.cuda()).cpu()) and y.data_ptr() != x.data_ptr()


def test_a_capture_changes_no_memory_and_waits_for_none() -> None:
    x, layer, graph = torch.ones(3, 2, device="cuda"), torch.nn.BatchNorm1d(2).cuda(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layer(x)
    assert layer.running_mean.tolist() == [0, 0]
    graph.replay()
    assert torch.allclose(layer.running_mean.cpu(), torch.full((2,), 0.1))
    with pytest.raises(RuntimeError, match="due to a previous error during capture"), torch.cuda.graph(graph):
        with pytest.raises(RuntimeError, match=r"torch's cpu in a CUDA graph"):
            x.cpu()


def test_what_autograd_calls_may_ask_for_the_gpu() -> None:
    """Hooks, and checkpoints that are computed again: under autocast, nested, with new tensors."""
    inner, norm, seen = torch.nn.Linear(4, 4).cuda(), torch.nn.LayerNorm(4).cuda(), []

    def scaled(x: Any) -> Any:
        return norm(inner(x)).softmax(-1) * torch.ones(4, device="cuda")

    def again(x: Any) -> Any:
        return torch.utils.checkpoint.checkpoint(scaled, x, use_reentrant=False)

    x = torch.randn(3, 4, device="cuda", requires_grad=True)
    x.register_hook(lambda grad: seen.append(torch.ones(1, device="cuda").is_cuda) or grad)
    found = []
    for function in (scaled, again, lambda x: torch.utils.checkpoint.checkpoint(again, x, use_reentrant=False)):
        with torch.autocast("cuda", torch.bfloat16):
            y = function(x)
        found.append(torch.autograd.grad(y.float().square().sum(), x)[0])
    assert seen == [True] * 3 and all(torch.equal(found[0], one) for one in found[1:])


def test_streams_of_a_capture_fork_and_join() -> None:
    x, side = torch.zeros(4, device="cuda"), torch.cuda.Stream()
    for joins in (True, False):
        graph, whole = torch.cuda.CUDAGraph(), torch.cuda.graph
        done = pytest.raises(RuntimeError, match="unjoined work") if not joins else nullcontext()
        with done, whole(graph, stream=torch.cuda.Stream()):
            main = torch.cuda.current_stream()
            side.wait_stream(main)
            with torch.cuda.stream(side):
                assert torch.cuda.is_current_stream_capturing()
                x += 1
            if joins:
                torch.cuda.current_stream().wait_stream(side)
            assert main.is_capturing()
    assert not x.any() and not torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(torch.cuda.CUDAGraph()), torch.cuda.stream(torch.cuda.default_stream()):
        x += 1  # not of the capture: torch's streams do not wait for the default stream
    assert x.tolist() == [1] * 4
    for wrong in (torch.cuda.synchronize, lambda: torch.cuda.current_stream().synchronize()):
        with pytest.raises(RuntimeError, match="previous error during capture"):
            with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(RuntimeError, match="not permitted when"):
                wrong()


def test_the_accelerator_is_the_gpu() -> None:
    assert torch.accelerator.is_available() and torch.accelerator.current_accelerator().type == "cuda"
    with torch.accelerator.device_index(0), torch.cuda.device_of(torch.ones(1, device="cuda")):
        torch.accelerator.synchronize()
    assert torch.get_device_module() is torch.cuda


def test_a_memory_pool_and_a_raw_stream_are_those_of_the_gpu() -> None:
    pool, stream = torch.cuda.MemPool(), torch.cuda.Stream()
    assert not isinstance(None, torch.cuda.MemPool)  # torch's compiler asks it of each value
    with torch.cuda.use_mem_pool(pool), torch.cuda.stream(stream):
        assert torch.ones(3, device="cuda").is_cuda and pool.use_count() == 1 and pool.snapshot() == []
        assert torch._C._cuda_getCurrentRawStream(0) == stream.cuda_stream


def test_kernels_draw_from_the_seed_and_the_offset_of_the_default_generator() -> None:
    torch.manual_seed(7)
    (generator,) = torch.cuda.default_generators
    state = generator.get_state()
    assert state.view(torch.int64).tolist() == [7, 0] and str(generator.device) == "cuda:0"
    generator.set_state(torch.tensor([7, 12]).view(torch.uint8))
    assert generator.get_offset() == 12 and torch.cuda.initial_seed() == 7
    assert generator.set_state(torch.tensor([-1, 4]).view(torch.uint8)).get_state().view(torch.int64).tolist() == [
        -1,
        4,
    ]
    drawn = torch.rand(3, device="cuda").tolist()
    generator.set_state(state)
    assert torch.cuda.initial_seed() == 7 and torch.rand(3, device="cuda").tolist() != drawn
    torch.cuda.manual_seed(3)
    assert generator.get_state().view(torch.int64).tolist() == [3, 0]


def test_what_an_emulated_gpu_lacks_is_named() -> None:
    with pytest.raises(EmulatorError, match=r"torch\.cuda\.utilization on an emulated GPU: it has no counters"):
        torch.cuda.utilization()
    with pytest.raises(AttributeError, match="clock_rate: the emulated NVIDIA H100"):
        torch.cuda.get_device_properties(0).clock_rate  # noqa: B018


def test_bytes_in_use_follow_storages_that_grow_share_and_die() -> None:
    use = DeviceUse()
    a = torch.empty(100, dtype=torch.uint8).untyped_storage()
    for _ in range(2):
        use.add(a)
    assert (use.bytes(), use.peak, use.count) == (512, 512, 1)
    a.resize_(2000)
    use.add(a)
    b = torch.from_numpy(memory := np.zeros(600, np.uint8)).untyped_storage()
    c = torch.from_numpy(memory).untyped_storage()
    use.add(b)
    use.add(c)
    assert use.bytes() == 2048 + 1024 and len(use.storages()) == 3
    del b
    assert use.bytes() == 2048 + 1024
    del c
    assert use.bytes() == 2048
    del a
    assert (use.bytes(), use.peak, use.storages()) == (0, 3072, [])


def test_a_storage_that_is_resized_is_counted_anew() -> None:
    with emulated_gpu():
        before = torch.cuda.memory_allocated()
        x = torch.tensor(1, dtype=torch.uint8, device="cuda").expand(4096) + 1
        x.untyped_storage().resize_(0)
        assert torch.cuda.memory_allocated() == before
        x.resize_(8192)
        assert torch.cuda.memory_allocated() == before + 8192
