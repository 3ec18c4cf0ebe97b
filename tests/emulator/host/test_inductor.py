"""torch.compile on an emulated GPU: Inductor's kernels launch in the emulator, or the report says that they did not."""

from __future__ import annotations

import gc
from types import SimpleNamespace

import pytest

from layoutgemm import emulated_gpu
from layoutgemm.emulator.host.devices import GpuModel
from layoutgemm.emulator.host.torch_device import inductor
from layoutgemm.emulator.host.triton_calls import DriverModule
from tests import needs

torch = needs.module("torch")


def test_a_report_says_that_compiled_graphs_ran_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inductor, "version", lambda name: "3.4.0")
    with emulated_gpu("sm_90a") as gpu:
        torch.compile(lambda x: x + 1, backend="eager")
        assert gpu.notes == []
        for _ in range(2):
            torch.compile(lambda x: x + 1)
        assert torch._C._cuda_cudaCachingAllocator_is_enabled()  # mode="reduce-overhead" asks
    assert gpu.report().splitlines()[1:] == [f"note: {inductor.UNCHECKED}"]
    assert gpu.as_json()["notes"] == [inductor.UNCHECKED] and "none of its kernels were checked" in inductor.UNCHECKED
    assert gpu.ok


def test_kernels_find_the_tensors_that_a_launch_lends() -> None:
    """Within a kernel's `run` alone, and as long as the tensors live."""
    lent, given, other = inductor.LentTensors(), [torch.zeros(5), 3], torch.zeros(3)
    launch = lent.launch(lambda driver, *values: values[-1])
    launch(None, [other])
    assert lent.at(other.data_ptr()) is None
    assert lent.run(lambda kernel: launch(None, given))(None) is given
    address = given[0].data_ptr()
    name, first, content = lent.at(address + 19) or ("", 0, None)
    assert (name, first, len(content)) == ("a float32 tensor (5,)", address, 20)
    assert lent.at(address + 20) is None
    given.clear()
    del content
    gc.collect()
    assert lent.at(address) is None


def test_flex_attention_takes_the_lowering_of_gpus() -> None:
    """The first question for the device has a GPU as answer, later ones the node's."""

    class Node(SimpleNamespace):
        def get_device(self) -> object:
            return torch.device("cpu")

    asked = inductor._lowered(lambda query, scale: [query.get_device().type, query.get_device().type, scale])
    assert asked(Node(), scale=2) == ["cuda", "cpu", 2] and Node().get_device().type == "cpu"


def test_inductors_kernels_launch_in_the_emulator() -> None:
    """Reductions with gradients, a product with its template, and a graph of the CPU."""
    needs.module("triton")
    if not inductor.has_triton():
        pytest.skip("Inductor's kernels launch with Triton 3.6 to 3.9: pip install triton==3.9.0")
    with emulated_gpu("sm_90a") as gpu:
        model = torch.nn.Sequential(torch.nn.LayerNorm(40), torch.nn.GELU()).cuda()
        x, y = (torch.randn(7, 40, device="cuda", requires_grad=True) for _ in range(2))
        y.data.copy_(x.data)
        found = torch.compile(model)(x)
        found.square().mean().backward()
        assert found.is_cuda and len(gpu.runs) >= 2
        model(y).square().mean().backward()
        assert torch.allclose(x.grad, y.grad, atol=1e-6)
        before = len(gpu.runs)
        a, b = torch.ones(2, 20, 24, device="cuda").half(), torch.ones(2, 24, 16, device="cuda").half()
        c = torch.compile(torch.bmm, mode="max-autotune-no-cudagraphs")(a, b)
        assert c.is_cuda and bool((c == 24).all()) and len(gpu.runs) > before
        host = torch.compile(lambda x: x * 2)(torch.ones(5))
        assert not host.is_cuda and host.tolist() == [2.0] * 5
    assert gpu.ok and gpu.notes == [], gpu.report()


def test_kernels_that_outlive_the_session_ask_no_driver() -> None:
    kernel = SimpleNamespace(name="k", asm={"ptx": ""}, module="handle")
    module = DriverModule(GpuModel.of("sm_90a"), lambda one, stream: None)
    with module.loading(kernel):
        module.load_binary("k", b"", 0, 0)
    module.unload()
    assert kernel.module is None
