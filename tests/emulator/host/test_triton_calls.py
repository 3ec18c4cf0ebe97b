"""Triton's launches on an emulated GPU, by Triton and as its launcher makes them."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

from layoutgemm import emulated_gpu
from layoutgemm.emulator.api import emulate
from layoutgemm.emulator.host.devices import GpuModel
from layoutgemm.emulator.host.triton_calls import (
    _DRIVER_ANSWERS,
    CONSTEXPR,
    KERNEL,
    TUPLE,
    DriverModule,
    KernelArg,
    TritonLaunch,
    _driven,
    host_cublas,
    tuned_here,
)
from layoutgemm.errors import EmulatorError
from tests import needs

torch = needs.module("torch")

# x[i] += n * (i < count), with Triton's two pointers to scratch memory.
PTX = """
.version 8.7
.target sm_90a
.visible .entry grow(.param .u64 x, .param .f32 n, .param .u32 count, .param .u64 a, .param .u64 b) .reqntid 32
{
  .reg .b32 %r<4>; .reg .b64 %d<3>; .reg .f32 %f<3>; .reg .pred %p;
  ld.param.u64 %d0, [x]; ld.param.f32 %f0, [n]; ld.param.u32 %r0, [count];
  mov.u32 %r1, %tid.x; mov.u32 %r2, %ctaid.x; mad.lo.u32 %r1, %r2, 32, %r1;
  setp.ge.u32 %p, %r1, %r0; @%p bra END;
  mul.wide.u32 %d1, %r1, 4; add.u64 %d0, %d0, %d1;
  ld.global.f32 %f1, [%d0]; add.f32 %f1, %f1, %f0; st.global.f32 [%d0], %f1;
END: ret;
}
"""
KERNELS = SimpleNamespace(
    name="grow", asm={"ptx": PTX}, metadata=SimpleNamespace(num_warps=1, num_ctas=1, shared=0)
)  # what Triton calls a compiled kernel


def test_the_driver_module_launches_what_triton_hands_over() -> None:
    """Tuples are taken apart, constants left out, scratch memory is 0."""
    with emulated_gpu("sm_90a") as gpu:
        x = torch.zeros(40, device="cuda")
        module = DriverModule(GpuModel.of("sm_90a"), lambda one, stream: gpu.runs.append(emulate(one)))
        with module.loading(KERNELS):
            _, function, *_ = module.load_binary("grow", b"", 0, 0)
        own = KernelArg(None, KERNEL)
        annotations = [own, KernelArg([own, own], TUPLE), KernelArg(None, CONSTEXPR)]
        module.launch(2, 1, 1, 0, function, False, False, None, None, None, None, None, None, annotations,
                      ["*fp32", "fp32", "i32"], [x, (2.5, 37), 128])  # fmt: skip
        assert x.tolist() == [2.5] * 37 + [0] * 3 and gpu.ok
        module.launch(0, 1, 1, 0, function, False, False, None, None, None, None, None, None, annotations, [], [])
        with pytest.raises(EmulatorError, match="grow has 5 parameters, Triton's launcher gave 4"):
            emulate(TritonLaunch(module._kernels[id(function)], (1, 1, 1), 32, 1, 0, [("*fp32", x)] * 4))


def compiled_by_signature() -> ModuleType:
    """A driver as in Triton 3.6, whose launchers are compiled from C."""
    driver = ModuleType("driver")
    for name in ("CudaUtils", "CudaLauncher", "make_launcher", "compile_module_from_src", "library_dirs"):
        setattr(driver, name, lambda *args, **named: pytest.fail("it needs a GPU"))
    driver.CudaDriver = type("CudaDriver", (), dict.fromkeys(_DRIVER_ANSWERS))
    driver._BASE_ARGS_FORMAT = "iiiKKppOOOOOO"
    return driver


def test_a_launcher_that_triton_compiles_from_c_is_replaced() -> None:
    driver = compiled_by_signature()
    with emulated_gpu("sm_90a") as gpu:
        x = torch.zeros(40, device="cuda")
        module = DriverModule(GpuModel.of("sm_90a"), lambda one, stream: gpu.runs.append(emulate(one)))
        with _driven(driver, module):
            utils = driver.CudaUtils()
            with module.loading(KERNELS):
                _, function, *_ = utils.load_binary("grow", b"", 0, 0)
            signature = {0: "*fp32", 1: ("fp32", "i32", "constexpr"), 2: "constexpr"}
            made = driver.compile_module_from_src(
                src=driver.make_launcher({}, signature, None), name="launcher", library_dirs=driver.library_dirs()
            )
            hooked = []
            made.launch(
                2, 1, 1, 0, function, False, False, None, None, (1, 1, 0), "facts", hooked.append, None,
                x, (2.5, 37, 3), 128,
            )  # fmt: skip
        assert x.tolist() == [2.5] * 37 + [0] * 3 and gpu.ok and hooked == ["facts"]


@pytest.mark.parametrize(
    "descriptors, parts",
    [(None, ["*fp16", *["i64"] * 4, "i1"]), ([None], ["*fp16", *["i64"] * 4, "i1"]), ([{}], ["nvTmaDesc"])],
)
def test_a_descriptor_is_its_map_or_its_parts(descriptors: list[object] | None, parts: list[str]) -> None:
    module = DriverModule(GpuModel.of("sm_90a"), lambda one, stream: None)
    made = module.compiled_launcher({}, {0: "tensordesc<fp16[64, 32]>", 1: "i32"}, descriptors)
    assert made.types == [*parts, "i32", "i32", "i64", "i64", "i32"]


class Autotuner:
    """As Triton's: it times its configurations, and runs the best one. Each is what a launch raises, or None."""

    def __init__(self, configurations: list[Exception | None], launch: Callable[[], None], in_lists: bool) -> None:
        self.configurations, self.launch, self.in_lists = configurations, launch, in_lists

    def prune_configs(self, kwargs: object) -> list[int]:
        return list(range(len(self.configurations)))

    def _bench(self, *args: object, config: int) -> object:
        self.launch()
        time = float("inf") if self.configurations[config] is not None else 1.0
        return [time] * 3 if self.in_lists else time

    def check_disk_cache(self, key: object, configurations: object, measure: Callable[[], object]) -> bool:
        raise AssertionError("times of the emulator are written to the disk")

    def run(self) -> int:
        times: dict[int, object] = {}
        self.check_disk_cache(
            "key", [], lambda: times.update({n: self._bench(config=n) for n in self.prune_configs({})})
        )
        best: int = min(times, key=times.get)  # type: ignore[arg-type]
        self.launch()
        return best


@pytest.mark.parametrize("in_lists", [False, True])
@pytest.mark.parametrize("every, launches, told", [(False, 1, 1), (True, 4, 0)])
def test_an_autotuned_kernel_runs_once_or_in_each_configuration(
    in_lists: bool, every: bool, launches: int, told: int
) -> None:
    with emulated_gpu("sm_90a") as gpu:
        x = torch.zeros(40, device="cuda")
        module = DriverModule(GpuModel.of("sm_90a"), lambda one, stream: gpu.runs.append(emulate(one)))
        with module.loading(KERNELS):
            _, function, *_ = module.load_binary("grow", b"", 0, 0)

        def launch() -> None:
            own = [KernelArg(None, KERNEL)] * 3
            module.launch(2, 1, 1, 0, function, False, False, None, None, None, None, None, None, own,
                          ["*fp32", "fp32", "i32"], [x, 1.0, 40])  # fmt: skip

        notes: list[str] = []
        with tuned_here(Autotuner, module, every, notes.append):
            tuner = Autotuner([MemoryError(), None, None], launch, in_lists)
            assert tuner.run() == 1 and len(gpu.runs) == launches and x.tolist() == [launches] * 40
            assert tuner.run() == 1 and len(gpu.runs) == 2 * launches  # as for another key
    assert len(set(notes)) == told and all("--autotune all" in note for note in notes)


def test_configurations_to_run_are_first_or_all() -> None:
    with (
        pytest.raises(EmulatorError, match="autotune='fastest'; it is one of 'first', 'all'"),
        emulated_gpu(autotune="fastest"),
    ):
        pass


@pytest.mark.parametrize("known", [False, True])
def test_another_launcher_is_refused_with_the_way_out(known: bool) -> None:
    """A script that imports Triton and launches nothing with it goes on."""
    driver = compiled_by_signature() if known else ModuleType("driver")
    driver._BASE_ARGS_FORMAT = "iiiKKppOOOOO"
    module = DriverModule(GpuModel.of("sm_90a"), lambda one, stream: None)
    with _driven(driver, module), pytest.raises(EmulatorError, match=r"of Triton 3\.5 to 3\.9.*for emulate_ptx"):
        driver.CudaUtils()


def test_what_the_driver_lacks_is_named() -> None:
    module = DriverModule(GpuModel.of("sm_90a"), lambda one, stream: None)
    with pytest.raises(EmulatorError, match="Triton's driver function get_current_device has no answer"):
        module.get_current_device()
    with pytest.raises(EmulatorError, match="loads k without its PTX"):
        module.load_binary("k", b"", 0, 0)


SCRIPT = """
import torch, triton, triton.language as tl

@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, at < n) + tl.load(y + at, at < n), at < n)

x, y = (torch.rand(300, device="cuda") for _ in range(2))
out = torch.empty_like(x)
launch = lambda: add[(triton.cdiv(300, 128),)](x, y, out, 300, BLOCK=128)
launch()
assert torch.equal(out, x + y)
assert triton.testing.do_bench(launch, warmup=1, rep=1) > 0
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    launch()
x.zero_()
graph.replay()
assert torch.equal(out, y)
"""


def test_a_script_of_triton_runs_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs.module("triton")
    from layoutgemm.cli.main import main

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    assert main(["emulate", "--arch", "sm_90a", str(path)]) == 0


def test_triton_s_cublas_is_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scripts of Triton make a CublasLt when they begin; the real one asks for libcublas.so."""
    library = SimpleNamespace(nvidia=SimpleNamespace(cublas=SimpleNamespace(CublasLt=None)))
    monkeypatch.setitem(sys.modules, "triton._C.libtriton", library)
    a, b, c = (torch.arange(6.0).reshape(2, 3) + n for n in range(3))
    with host_cublas():
        made = library.nvidia.cublas.CublasLt(None)
        short = torch.full((2, 2), torch.nan, dtype=torch.float16)
        made.matmul(a.half(), b.half(), short)
        assert short.tolist() == (a @ b.T).tolist()
        d = torch.zeros(2, 2)
        made.gemm(a, b, c[:, :2], d, 2.0, 3.0)
        assert d.tolist() == (2 * a @ b.T + 3 * c[:, :2]).tolist()
        with pytest.raises(EmulatorError, match="block_scaled_matmul_mxfp8 has no answer"):
            made.block_scaled_matmul_mxfp8(a)
    assert library.nvidia.cublas.CublasLt is None


def test_brain_floats_round_to_even() -> None:
    from layoutgemm.emulator.host.arguments import ArgumentMemory
    from layoutgemm.emulator.host.triton_calls import _bytes

    parameter = SimpleNamespace(size=2, offset=0)
    for value in (1.0, 1.00390625, 1.01171875, -3.1415927):
        word = torch.tensor(value).bfloat16().view(torch.int16).item() & 0xFFFF
        assert _bytes(parameter, "bf16", value, ArgumentMemory([])) == np.uint16(word).tobytes()  # type: ignore[arg-type]
