"""An emulated GPU for code written for a real one: torch's tensors, launches, scripts, and their exit status."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import emulated_gpu
from layoutgemm.atoms.tmem.layout import scale_chunk
from layoutgemm.cli.main import main
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.host.arguments import array_at
from layoutgemm.emulator.host.cuda_calls import DeviceMemory
from layoutgemm.emulator.host.devices import GpuModel
from layoutgemm.emulator.host.graphs.statuses import CudaStatusError
from layoutgemm.emulator.host.session import notebook_code
from layoutgemm.errors import EmulatorError, PlanError
from tests import needs

torch = needs.module("torch")
needs_dsl = needs.DSL

SCRIPT = """
import sys
import torch
import cutlass
import cutlass.cute as cute
import cuda.bindings.driver as cuda
from cutlass.cute.runtime import from_dlpack


@cute.kernel
def kernel(a: cute.Tensor, b: cute.Tensor, n: cutlass.Constexpr):
    t, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    i = block * 32 + t
    if i < SIZE:
        b[i] = a[i] + n


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, n: cutlass.Constexpr, stream: cuda.CUstream):
    kernel(a, b, n).launch(grid=(BLOCKS, 1, 1), block=(32, 1, 1), stream=stream)


class Adder:
    def __init__(self, n):
        self.n = n

    @cute.jit
    def __call__(self, a: cute.Tensor, b: cute.Tensor):
        kernel(a, b, self.n).launch(grid=(BLOCKS, 1, 1), block=(32, 1, 1))


SIZE, BLOCKS = int(sys.argv[1]), int(sys.argv[2])
assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
assert cutlass.utils.HardwareInfo().get_max_active_clusters(2) == 66
x = torch.randn(50, device=torch.device("cuda"))
y = torch.zeros_like(x)
stream = cuda.CUstream(torch.cuda.current_stream().cuda_stream)
start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
start.record()
add(from_dlpack(x), from_dlpack(y), 1, stream)  # compiled and run at once
torch.testing.assert_close(y, x + 1)
compiled = cute.compile(add, from_dlpack(x), from_dlpack(y), 2, stream)
compiled(from_dlpack(x), from_dlpack(y), stream)
torch.testing.assert_close(y, x + 2)
Adder(3)(from_dlpack(x), from_dlpack(y))
end.record()
torch.cuda.synchronize()
assert start.elapsed_time(end) > 0
torch.testing.assert_close(y.cpu(), x.cpu() + int(sys.argv[3]))
print("all right")
"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    return str(path)


def test_tensors_on_the_emulated_gpu_say_so() -> None:
    with emulated_gpu((8, 0)) as gpu:
        on_cpu, x = torch.ones(2, 3), torch.arange(6, device="cuda").view(2, 3)
        assert (x.device, x.is_cuda, on_cpu.is_cuda) == (torch.device("cuda", 0), True, False)
        y = on_cpu.cuda()
        y[0, 0] = 7
        assert on_cpu[0, 0] == 1 and y.is_cuda and not y.cpu().is_cuda
        for found in (
            x + 1,
            x[0],
            x.float(),
            torch.empty_like(x),
            torch.cat([x, x]),
            x.to(y),
            y.to("cuda:0"),
            x.T.sum(0),
        ):
            assert found.is_cuda
        for found in (x.cpu(), x.to("cpu"), x.to(device="cpu", dtype=torch.float32), torch.empty(3, device="cpu")):
            assert not found.is_cuda
        assert torch.empty(3, device=x.device).is_cuda and x.get_device() == 0
        assert all(part.is_cuda for part in x.split(1))
        with pytest.raises(TypeError, match="Use Tensor"):
            x.numpy()
        assert x.cpu().numpy().tolist() == [[0, 1, 2], [3, 4, 5]]
        assert torch.randn(4, device="cuda", generator=torch.Generator(device="cuda")).is_cuda
        assert torch.cuda.get_device_properties(0).multi_processor_count == 108
    assert gpu.ok and not torch.cuda.is_available()


def test_the_default_device_and_what_scripts_call_besides() -> None:
    import torch

    def places() -> list[str]:
        made = torch.ones(3), torch.tensor([1]), torch.nn.Linear(2, 2).weight, torch.ones(3, device="cpu")
        return [x.device.type for x in made]

    with emulated_gpu("hopper"):
        assert places() == ["cpu"] * 4
        with torch.device("cuda"):
            assert places() == ["cuda"] * 3 + ["cpu"]
        torch.set_default_device("cuda")
        try:
            assert places() == ["cuda"] * 3 + ["cpu"]
        finally:
            torch.set_default_device(None)
        assert places() == ["cpu"] * 4
        with torch.device("meta"):
            assert torch.ones(3).device.type == "meta"
        assert torch.zeros(4, pin_memory=True).to("cuda", non_blocking=True).is_cuda
        with torch.cuda.nvtx.range("a part"):
            torch.cuda._sleep(1000)
        torch.cuda.set_rng_state(torch.cuda.get_rng_state())


def test_tracing_with_fake_tensors() -> None:
    """A tracer's tensors stand for ones on the GPU; they wrap tensors of the device "meta"."""
    torch = needs.module("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx, snapshot_fake

    with emulated_gpu("hopper"):
        x = torch.ones(2, 3, dtype=torch.bfloat16, device="cuda")
        assert torch.empty_like(x, device="meta").device.type == x.to("meta").device.type == "meta"
        graph = make_fx(lambda a: (a @ a.T).float() + a.sum(), tracing_mode="fake")(x)
        assert graph(x).tolist() == [[9.0, 9.0], [9.0, 9.0]]
        with FakeTensorMode() as mode:
            fake = mode.from_tensor(x).detach()
            product = torch.mm(fake, fake.T)
            assert (product.dtype, product.shape, fake.device.type) == (torch.bfloat16, (2, 2), "cuda")
            assert snapshot_fake(fake).device.type == "cuda"
            assert torch.addmm(product.float(), fake, fake.T).dtype == torch.float32
        with pytest.raises(RuntimeError, match="dtype"):
            torch.addmm(torch.zeros(2, 2, device="cuda"), x, x.T)


def test_products_of_short_floats_add_16_elements_at_a_time() -> None:
    """A script may ask for equal bits of its kernel and of torch."""
    torch.manual_seed(0)
    a, b = (torch.randn(shape, dtype=torch.float16) for shape in ((65, 200), (200, 33)))
    left, right, wanted = a.double(), b.double(), torch.zeros(65, 33)
    for k in range(0, 200, 16):  # exact products, summed in float64 and rounded once, as the emulator's
        wanted += (left[:, k : k + 16] @ right[k : k + 16]).float()
    assert not torch.equal(wanted, a.float() @ b.float())
    with emulated_gpu():
        x, y = a.cuda(), b.cuda()
        for product in (x @ y, torch.mm(x, y), torch.einsum("mk, kn -> mn", x, y), torch.bmm(x[None], y[None])[0]):
            assert product.is_cuda and torch.equal(product.cpu(), wanted.half())
        assert torch.equal(torch.einsum("mk,kn->m", x, y).cpu(), (a.float() @ b.float()).sum(1).half())


@pytest.mark.parametrize(("kind", "factor", "size"), [("e2m1", "e4m3", 16), ("e4m3", "ue8m0", 32)])
def test_block_scaled_products_of_torch(kind: str, factor: str, size: int) -> None:
    """torch._scaled_mm with chunks of 128 rows and 4 factors: torch has it for GPUs."""
    random, m, n, k = np.random.default_rng(0), 130, 16, 160
    torch_scale = {"e4m3": torch.float8_e4m3fn, "ue8m0": torch.float8_e8m0fnu}[factor]
    operands, values = [], []
    for rows in (m, n):
        codes = random.integers(0, 16 if kind == "e2m1" else 0x70, (rows, k), dtype=np.uint8)
        scales = random.integers(120, 126, (256 if rows > 128 else 128, -(-k // size // 4) * 4), dtype=np.uint8) // 2
        values.append(dtype(kind).decode(codes) * np.repeat(dtype(factor).decode(scales), size, 1)[:rows, :k])
        chunks = np.zeros((len(scales) // 128, scales.shape[1] // 4, 512), np.uint8)
        for row, column in np.ndindex(scales.shape):
            chunks[row // 128, column // 4, scale_chunk()(row % 128, column % 4)] = scales[row, column]
        packed = torch.from_numpy(codes[:, ::2] | codes[:, 1::2] << 4 if kind == "e2m1" else codes)
        of = torch.float4_e2m1fn_x2 if kind == "e2m1" else torch.float8_e4m3fn
        operands += [packed.view(of), torch.from_numpy(chunks.reshape(-1)).view(torch_scale)]
    with emulated_gpu("sm_100a"):
        a, scale_a, b, scale_b = (x.cuda() for x in operands)
        found = torch._scaled_mm(a, b.t(), scale_a, scale_b, out_dtype=torch.float32)
        assert found.is_cuda
        np.testing.assert_allclose(found.cpu(), values[0] @ values[1].T, rtol=1e-5)
        nothing = torch._scaled_mm(a[:0], b.t(), scale_a[:0], scale_b, out_dtype=torch.float32)
        assert nothing.shape == (0, n)  # a group without rows
        with pytest.raises((ValueError, RuntimeError, NotImplementedError)):  # torch's own: too few factors
            torch._scaled_mm(a, b.t(), scale_a[:-512], scale_b, out_dtype=torch.float32)
        ends = torch.tensor([128, 130], dtype=torch.int32, device="cuda")  # of two groups of rows: each its own chunks
        both, factors = (torch.stack([x.view(torch.uint8)] * 2).view(x.dtype) for x in (b, scale_b))
        more = torch.tensor([1.0, 4.0], device="cuda")
        grouped = torch._scaled_grouped_mm_v2(
            a, both.transpose(1, 2), [scale_a, more], [2, 0], [1], [factors], [2], [1], ends, None, torch.float32
        )
        wanted = values[0] @ values[1].T * np.where(np.arange(m) < 128, 1, 4)[:, None]
        assert grouped.is_cuda
        np.testing.assert_allclose(grouped.cpu(), wanted, rtol=1e-5)


def test_products_of_short_floats_are_summed_in_float32() -> None:
    a, b = (torch.full(shape, 1.0, dtype=torch.bfloat16) for shape in ((1, 1000), (1000, 1)))
    a[0, 0] = 256.0
    with emulated_gpu():
        for product in (a.cuda() @ b.cuda(), torch.einsum("mk,kn->mn", a.cuda(), b.cuda())):
            assert product.is_cuda and product.dtype == torch.bfloat16
            assert product.item() == torch.tensor(1255.0).bfloat16().item()


@needs_dsl
@pytest.mark.dsl
def test_a_script_runs_unchanged(script: str, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    before = dict(vars(torch.cuda)), list(sys.argv), list(sys.path)
    assert main(["emulate", "--timeline", str(tmp_path / "t.svg"), script, "50", "2", "3"]) == 0
    said = capfd.readouterr().out
    assert "all right\n" in said and "H100 80GB HBM3 (sm_90a): 3 launch(es), nothing found" in said
    assert (tmp_path / "t.svg").read_text().startswith("<svg")
    assert before == (dict(vars(torch.cuda)), sys.argv, sys.path)


@needs_dsl
@pytest.mark.dsl
def test_the_exit_status_tells_findings_from_failures(script: str, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["emulate", "--json", script, "50", "2", "4"]) == 3  # its own check fails
    out, err = capfd.readouterr()
    assert "Tensor-likes are not close" in err
    said = json.loads(out.splitlines()[-1])
    assert (said["status"], said["ok"], len(said["launches"]), said["arch"]) == (1, True, 3, "sm_90a")
    assert main(["emulate", script, "64", "2", "3"]) == 1  # the last threads write outside of the tensor
    assert "nothing found" not in (said := capfd.readouterr().out) and "EmulatorError: global address" in said
    assert "script.py:16" in said and "which has 200" in said
    for arguments, text in (
        (["--grid", "2", script], "--grid describes a launch of PTX"),
        (["--arch", "sm_9", script], "no architecture 'sm_9'"),
        (["nowhere.py"], "nowhere.py: no such script"),
        (["-m", "nowhere.py"], "-m nowhere.py: no such module"),
        (["-m", ""], "-m : no such module"),
        (["--arch", "sm_100a"], "a PTX file, a script, or -m MODULE: none is given"),
        (["--grid", "2", "-m", "pytest"], "--grid describes a launch of PTX, and pytest makes its own"),
    ):
        assert main(["emulate", *arguments]) == 2
        assert text in capfd.readouterr().err


def test_a_module_runs_by_its_name(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by python -m: its package is imported from the working directory, and what follows is its own."""
    (tmp_path / "emulated_pack").mkdir()
    (tmp_path / "emulated_pack" / "__init__.py").write_text("SIZE = 7")
    (tmp_path / "emulated_pack" / "go.py").write_text(
        "import sys\nfrom . import SIZE\nprint(SIZE, sys.argv[0][-5:], sys.argv[1:])\n"
    )
    monkeypatch.chdir(tmp_path)
    assert main(["emulate", "--arch", "sm_100a", "-m", "emulated_pack.go", "-m", "9"]) == 0
    assert "7 go.py ['-m', '9']" in capfd.readouterr().out
    assert main(["emulate", "-m", "emulated_pack.none"]) == 3
    assert "No module named emulated_pack.none" in capfd.readouterr().err


def test_what_a_script_exits_with(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for text, status in (
        ("", 0),
        ("raise SystemExit", 0),
        ("import sys; sys.exit(5)", 3),
        ("exit('no')", 3),
        ("1 / 0", 3),
    ):
        (tmp_path / "s.py").write_text(text)
        assert main(["emulate", str(tmp_path / "s.py")]) == status, text
    assert "ZeroDivisionError" in capfd.readouterr().err
    (tmp_path / "helper.py").write_text("FOUND = 3")
    (tmp_path / "s.py").write_text("import sys, helper\nassert sys.argv[1:] == ['--a', '-b'] and helper.FOUND == 3")
    assert main(["emulate", str(tmp_path / "s.py"), "--a", "-b"]) == 0


@needs_dsl
@pytest.mark.dsl
def test_the_driver_answers_and_its_memory_is_the_hosts() -> None:
    import cuda.bindings.driver as driver
    import cuda.bindings.runtime as runtime
    import numpy as np

    with emulated_gpu("blackwell"):
        assert driver.cuInit(0)[0] == driver.CUresult.CUDA_SUCCESS and runtime.cudaGetDeviceCount()[1] == 1
        kind = driver.CUdevice_attribute
        for name, value in (("MULTIPROCESSOR_COUNT", 148), ("COMPUTE_CAPABILITY_MAJOR", 10), ("WARP_SIZE", 32)):
            attribute = getattr(kind, f"CU_DEVICE_ATTRIBUTE_{name}")
            assert driver.cuDeviceGetAttribute(attribute, 0)[1] == value
        there, back = np.arange(8, dtype=np.int32), np.zeros(8, np.int32)
        address = driver.cuMemAlloc(32)[1]
        driver.cuMemcpyHtoD(address, there.ctypes.data, 32)
        driver.cuMemcpyDtoH(back.ctypes.data, address, 32)
        assert (back == there).all()
        driver.cuMemFree(address)
        with pytest.raises(EmulatorError, match="no allocation begins there"):
            driver.cuMemFree(address)
        with pytest.raises(EmulatorError, match="has no value on the emulated NVIDIA B200"):
            driver.cuDeviceGetAttribute(kind.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH, 0)


def test_devices_and_memory() -> None:
    memory = DeviceMemory()
    first = memory.allocate(16)
    found = memory.holder(first + 15)
    assert found is not None and found[1] == first and memory.holder(first + 16) is None
    memory.free(first)
    assert memory.holder(first) is None
    assert GpuModel.of("sm_120a").capability == (12, 0)
    with pytest.raises(PlanError, match="no architecture"), emulated_gpu("sm_7"):
        pass


@needs_dsl
@pytest.mark.dsl
@pytest.mark.parametrize("emulated_gpu", ["sm_100a"], indirect=True)
def test_the_fixture(emulated_gpu: Any) -> None:
    assert torch.cuda.get_device_capability() == (10, 0) and torch.ones(1, device="cuda").is_cuda
    assert emulated_gpu.runs == []


TABLE = """
import ctypes
import sys
import torch
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack, make_ptr


@cute.kernel
def kernel(pointer: cute.Pointer, b: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    b[t] = cute.make_tensor(pointer, cute.make_layout(32))[t] + 1


@cute.jit
def add(pointer: cute.Pointer, b: cute.Tensor):
    kernel(pointer, b).launch(grid=(1, 1, 1), block=(32, 1, 1))


x, y = torch.arange(32, device="cuda", dtype=torch.float32), torch.zeros(32, device="cuda")
pointer = make_ptr(cutlass.Float32, x.data_ptr(), cute.AddressSpace.gmem, assumed_align=16)
add.set_name_prefix("a_name_that_no_file_can_have_" * 8)
compiled = cute.compile(add, pointer, from_dlpack(y))
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    compiled(pointer, from_dlpack(y))
assert not y.any()
graph.replay()
assert torch.equal(y, x + 1)
other, template = torch.zeros(32, device="cuda"), from_dlpack(y.zero_())
ctypes.c_uint64.from_address(template.__c_pointers__()[0]).value = other.data_ptr()  # a launch reads this descriptor
compiled(pointer, template)
assert torch.equal(other, x + 1) and not y.any()
template._dlpack_data = template._dltensor_wrapper = None
other.zero_()
compiled(pointer, template)
assert torch.equal(other, x + 1)
"""


@needs_dsl
def test_addresses_of_tensors_and_graphs_in_a_notebook(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Pointers lead to tensors, also those in descriptors. Graphs launch when replayed. Magic commands are left out."""
    cells = [
        {"cell_type": "markdown", "source": ["# text\n"]},
        {"cell_type": "code", "source": ["%matplotlib inline\n", "!nvidia-smi\n"]},
        {"cell_type": "code", "source": TABLE.splitlines(keepends=True)},
    ]
    (tmp_path / "table.ipynb").write_text(json.dumps({"cells": cells}))
    assert main(["emulate", str(tmp_path / "table.ipynb")]) == 0, capfd.readouterr().err
    assert "3 launch(es), nothing found" in capfd.readouterr().out


CELLS = [
    "%matplotlib inline\nif True:\n    !nvidia-smi\n", "x = (7\n    % 4)\ny = 9 \\\n  % 5",
    '"""\n%r1\n"""\nz = """\n!a\n%b\n"""',
    "%%bash\necho hi", "\n%%time\nw = 1", "# (\n%time w += 1",
]  # fmt: skip


def test_a_notebook_without_its_commands(tmp_path: Path) -> None:
    """Lines of Python that begin with % or ! stay: they go on with a bracket, a string or a backslash."""
    path, found = tmp_path / "n.ipynb", {}
    path.write_text(json.dumps({"cells": [{"cell_type": "code", "source": cell} for cell in CELLS]}))
    exec(notebook_code(path), found)
    assert {name: found[name] for name in "xyzw"} == {"x": 3, "y": 4, "z": "\n!a\n%b\n", "w": 2}


@pytest.mark.parametrize("text", ["", "[]", '{"cells": 3}', '{"worksheets": []}', '{"cells": [{"cell_type": "code"}]}'])
def test_what_is_no_notebook_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "n.ipynb").write_text(text)
    with pytest.raises(EmulatorError, match=r"n\.ipynb is no notebook"):
        notebook_code(tmp_path / "n.ipynb")


def test_tensors_on_the_emulated_gpu_are_aligned_and_found() -> None:
    """Allocations lie at multiples of 512 bytes, and addresses lead to tensors."""
    with emulated_gpu():
        made = [torch.ones(n, device="cuda") for n in (3, 5, 7, 1000)] + [
            torch.ones(3).cuda(),
            torch.rand(9).to("cuda"),
        ]
        assert [x.data_ptr() % 512 for x in made] == [0] * len(made)
        found = array_at(made[3].data_ptr() + 8)
        assert found is not None and found[1] == made[3].data_ptr() and len(found[2]) == 4000
        assert made[3].sum().item() == 1000
        address, capsule = made[3].data_ptr(), made[3].__dlpack__()
        del made[3]
        left = array_at(address)  # the capsule keeps the memory
        assert left is not None and len(left[2]) == 4000 and capsule is not None
        with pytest.raises(CudaStatusError), torch.cuda.graph(torch.cuda.CUDAGraph()):
            with pytest.raises(EmulatorError, match="item in a CUDA graph"):
                made[0].sum().item()


def test_operators_of_cuda_are_the_hosts() -> None:
    """An operator that a library registers for CUDA runs on tensors of the emulated GPU."""
    with emulated_gpu():

        @torch.library.custom_op("layoutgemm_test::double", mutates_args=(), device_types="cuda")
        def double(x: torch.Tensor) -> torch.Tensor:
            return x * 2

        assert double(torch.ones(3, device="cuda")).tolist() == [2, 2, 2]


@pytest.mark.parametrize("device_types", [None, "cuda"])
def test_an_operators_body_allocates_on_the_gpu(device_types: str | None) -> None:
    """Torch calls a body without the modes that are on; "cuda" is CPU memory there as well."""
    seen: list[str] = []
    with emulated_gpu():
        name = f"layoutgemm_test::filled_{device_types}".lower()

        @torch.library.custom_op(name, mutates_args={"x"}, device_types=device_types)
        def fill(x: torch.Tensor) -> None:
            made = torch.full((3,), 7.0, device="cuda")
            seen.extend([str(x.device), str(made.device)])
            x.copy_(made)

        x = torch.empty(3, device="cuda")
        fill(x)
        assert x.tolist() == [7, 7, 7] and seen == ["cuda:0", "cuda:0"]


def test_devices_and_streams_of_other_libraries() -> None:
    """A device's number, a stream of a handle, and torch's bookkeeping of streams."""
    with emulated_gpu() as gpu:
        assert str(torch.ones(2, device=0).device) == "cuda:0"
        stream = torch.cuda.ExternalStream(7 << 12, device="cuda:0")
        assert stream.cuda_stream == 7 << 12
        with torch.cuda.device(0), torch.cuda.stream(stream):
            torch.ones(2, device="cuda").record_stream(torch.cuda.current_stream(device="cuda:0"))
        torch.cuda.synchronize(device=0)
        torch.cuda.set_stream(stream)
        assert isinstance(torch.cuda.device("cuda"), torch.cuda.device)
        assert torch.cuda.get_device_properties(device=0).name == gpu.device.name
    assert torch.cuda.ExternalStream.__module__.startswith("torch.") and "record_stream" not in vars(torch.Tensor)


def test_versions_of_cuda() -> None:
    """Torch without CUDA names the emulated driver's version within a session alone."""
    plain = torch.version.cuda
    with emulated_gpu():
        assert torch.version.cuda == (plain or "13.0")
    assert torch.version.cuda == plain


def test_threads_share_one_emulated_gpu() -> None:
    """Another thread may launch in it and not open one; a graph, and autocast, are the thread's own."""
    seen: list[object] = []

    def other() -> None:
        seen.append(torch.cuda.is_current_stream_capturing())
        with torch.autocast("cuda", torch.float16):
            inside.set()
            left.wait(10)
            seen.append(torch.get_autocast_dtype("cpu"))
        seen.append(torch.ones(2, device="cuda").is_cuda)
        with pytest.raises(EmulatorError, match="another thread of this process has an emulated GPU"), emulated_gpu():
            pass
        seen.append("refused")

    inside, left = threading.Event(), threading.Event()
    with emulated_gpu(), emulated_gpu("sm_80"):
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            thread = threading.Thread(target=other)
            thread.start()
            assert torch.cuda.is_current_stream_capturing()
            with torch.autocast("cuda", torch.bfloat16):
                inside.wait(10)
            left.set()
            thread.join(10)
        assert seen == [False, torch.float16, True, "refused"]
    with emulated_gpu():
        pass


def test_a_backward_function_sees_the_gpu() -> None:
    """Saved tensors and gradients of autograd say that they are on the GPU."""
    seen: list[str] = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            out = x * 2
            ctx.save_for_backward(x, out)
            return out

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            made = torch.empty_like(gradient)
            seen.extend(str(x.device) for x in (*ctx.saved_tensors, gradient, made))
            return gradient * 2

    for device in ("cuda:0", "cpu"):
        seen.clear()
        with emulated_gpu("sm_90a"):
            x = torch.ones(4, device=device, requires_grad=True)
            (Doubled.apply(x) * 3).sum().backward()
            assert x.grad is not None and str(x.grad.device) == device
        assert seen == [device] * 4
        assert x.grad.tolist() == [6.0] * 4


@needs_dsl
@pytest.mark.dsl
def test_a_benchmark_is_one_call() -> None:
    import cutlass.cute.testing
    import cutlass.testing

    called: list[int] = []
    with emulated_gpu():
        for module in (cutlass.testing, cutlass.cute.testing):
            arguments = module.JitArguments(7)
            assert module.benchmark(called.append, kernel_arguments=arguments, iterations=100) > 0
    assert called == [7, 7]


@needs_dsl
@pytest.mark.dsl
def test_a_function_without_kernels_runs_on_the_host(capfd: pytest.CaptureFixture[str]) -> None:
    from tests.emulator.kernels.small import greet

    with emulated_gpu() as gpu:
        greet(7)
    assert "seven is 7" in capfd.readouterr().out and gpu.runs == []


@needs_dsl
@pytest.mark.dsl
def test_a_workspace_comes_behind_the_arguments() -> None:
    """`cute.experimental` adds parameters to a function, which its signature does not have."""
    import dataclasses

    import cutlass.cute as cute
    from cutlass.cute.runtime import from_dlpack

    from tests.emulator.kernels.small import Room

    with emulated_gpu() as gpu:
        a, room = torch.arange(4.0, device="cuda"), torch.zeros(4, device="cuda")
        compiled = cute.compile(Room(), from_dlpack(a), from_dlpack(room))
        execution = compiled.execution_args
        own = [x for name, x in execution.signature.parameters.items() if name != "room"]
        execution.signature = execution.signature.replace(parameters=own)
        meta = execution._meta
        execution._meta = dataclasses.replace(
            meta, all_names=meta.all_names[:1], annotated_types=meta.annotated_types[:1], arg_count=1
        )
        execution._compiled_with_none = [False]
        compiled.total_added_arguments = 1
        compiled(from_dlpack(a), from_dlpack(room))
        assert room.cpu().tolist() == [1, 2, 3, 4] and gpu.ok
        with pytest.raises(EmulatorError, match=r"the last 1 of a call are workspaces|0 arguments"):
            compiled()


@needs_dsl
def test_the_dsl_has_its_own_settings_again_after_a_session() -> None:
    """In a process that imports the DSL within the session: it reads the environment once, when it is made."""
    program = (
        "from layoutgemm import emulated_gpu\n"
        "with emulated_gpu('sm_80'): import cutlass.cute\n"
        "from cutlass.cutlass_dsl.cutlass import CuTeDSL\n"
        "settings = CuTeDSL._get_dsl().envar\n"
        "print(settings.lineinfo, settings.keep_ptx, settings.arch)\n"
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("CUTE_DSL_")}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env={**environment, "CUTE_DSL_ARCH": "sm_90a"}
    )
    assert done.stdout.split() == ["False", "False", "sm_90a"], done.stdout + done.stderr


CALLS = """
import torch
import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import from_dlpack
from its_helpers import copied


def put(tile, value, at):
    tile[at] = value


@cute.kernel
def kernel(out: cute.Tensor):
    t, _, _ = cute.arch.thread_idx()
    tile = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.Int32, cute.make_layout(64), 16)
    for step in cutlass.range(2, unroll=1):
        put(tile, t + step, t)  # the kernel's own call
    out[t] = between(tile, t)


@cute.jit
def between(tile, t):
    return copied(tile, 63 - t)  # of a helper in another file


@cute.jit
def run(out: cute.Tensor):
    kernel(out).launch(grid=(1, 1, 1), block=(64, 1, 1))


run(from_dlpack(torch.zeros(64, dtype=torch.int32, device="cuda")))
"""
ITS_HELPERS = "import cutlass.cute as cute\n\n\n@cute.jit\ndef copied(tile, at):\n    return tile[at]\n"


@needs_dsl
def test_a_finding_in_a_helper_names_the_lines_that_called_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both accesses of a race: in a helper of the kernel's file, and in one of another file, called by a helper."""
    (tmp_path / "its_helpers.py").write_text(ITS_HELPERS)
    script = tmp_path / "calls.py"
    script.write_text(CALLS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    with emulated_gpu("sm_90a") as gpu:
        runpy.run_path(str(script), run_name="__main__")

    def line(text: str) -> int:
        return next(n for n, one in enumerate(CALLS.splitlines(), 1) if text in one)

    race = next(one for one in gpu.report().splitlines() if one.startswith("race: ld.shared"))
    put, call, helper = line("tile[at] = value"), line("put(tile, t + step, t)"), line("return copied")
    assert f"calls.py:{put}, called in line {call})" in race
    assert f"calls.py:{helper}, in " in race and "its_helpers.py:6) by CTA (0, 0, 0) warp 1" in race


@needs_dsl
def test_a_function_without_a_stream_runs_on_the_legacy_one() -> None:
    from cuda.bindings.driver import CUstream
    from cutlass import Float32, Int32, cute
    from cutlass.cute.runtime import from_dlpack

    from tests.emulator.kernels import small

    with emulated_gpu("sm_90a") as gpu:
        x = torch.ones(64, device="cuda")
        y = from_dlpack(x).mark_layout_dynamic()
        without = cute.compile(small.Twice(), y)
        scale = (Int32(64), Float32(2))
        given = cute.compile(small.Scale(), y, y, *scale, CUstream(0))
        side = torch.cuda.Stream()
        for waits in (True, False):
            torch.cuda.synchronize()
            with torch.cuda.stream(side):
                given(y, y, *scale, CUstream(side.cuda_stream))
                x.add_(1)
                torch.cuda.synchronize()
                without(y)
                if waits:
                    torch.cuda.synchronize()
                assert not gpu.findings
                x.add_(1)
        assert "which may still run on the legacy stream" in gpu.findings[0].message
