"""DeepGEMM as a peer: structures and numbers of cuda.h, tensor maps, what is launched, what is compiled."""

from __future__ import annotations

import ctypes
import json
import re
import sys
import types
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from benchmarks import bench_gemm, deepgemm, deepgemm_build, peers
from benchmarks.deepgemm import Driver, Kernel, TensorMap
from layoutgemm.bench import Operands, Problem

HEADER = Path("/usr/local/cuda/include/cuda.h")

# What DeepGEMM 2.6.1 prints for 512x14336x4096 on 132 multiprocessors.
PRINTED = (
    "GemmConfig(layout=Layout(swap_ab=0, block_m=128, block_n=224, block_k=64, cluster_m=2, cluster_n=1), "
    "storage_config=StorageConfig(load_block_m=128, load_block_n=224, store_block_m=128, store_block_n=224, "
    "swizzle_a_mode=128, swizzle_b_mode=128, swizzle_cd_mode=64), pipeline_config=PipelineConfig(smem_size=192768, "
    "num_stages=3), launch_config=LaunchConfig(num_sms=132, num_sms_per_cluster=2, num_threads=384, "
    "num_tma_threads=128, num_math_threads=256, num_non_epilogue_threads=0, num_epilogue_threads=0))"
)
CONFIG = deepgemm_build.configuration(PRINTED)
PROBLEM = Problem(512, 14336, 4096)


class ModelDriver:
    """The driver's functions, each of which notes what it was given; `status` is what all of them return."""

    def __init__(self, status: int = 0, kernels: int = 1) -> None:
        self.status, self.kernels = status, kernels
        self.called: list[tuple[str, tuple[Any, ...]]] = []

    def __getattr__(self, name: str) -> Any:
        def function(*arguments: Any) -> int:
            self.called.append((name, arguments))
            if name == "cuLibraryGetKernelCount":
                arguments[0]._obj.value = self.kernels
            if name == "cuKernelGetFunction":
                arguments[0]._obj.value = 77
            return self.status

        if name not in deepgemm.SIGNATURES:
            raise AttributeError(name)
        setattr(self, name, function)
        return function

    def given(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.called if called == name]


def test_structures_have_the_offsets_of_the_header() -> None:
    """CUDA 13.0, x86-64, by a C program: sizeof and offsetof of CUlaunchConfig and CUlaunchAttribute."""
    config, attribute = deepgemm.LaunchConfig, deepgemm.LaunchAttribute
    assert (ctypes.sizeof(config), ctypes.sizeof(attribute)) == (56, 72)
    names = ("sharedMemBytes", "hStream", "attrs", "numAttrs")
    assert [getattr(config, name).offset for name in names] == [24, 32, 40, 48]
    assert attribute.value.offset == 8


@pytest.mark.skipif(not HEADER.is_file(), reason="cuda.h is not installed")
def test_numbers_are_those_of_the_installed_header() -> None:
    text = HEADER.read_text(errors="replace")
    want = {name: number for name, number in vars(deepgemm).items() if name.startswith("CU_")}
    spans = want.pop("CU_TENSOR_MAP_SWIZZLE")
    want |= {f"CU_TENSOR_MAP_SWIZZLE_{'NONE' if span == 16 else f'{span}B'}": number for span, number in spans.items()}
    assert len(want) == 11
    for name, number in want.items():
        listed = re.findall(rf"\b{name}\s*=\s*(0x[0-9a-f]+|\d+|CU_\w+|cu\w+)", text)
        if listed:
            assert int(listed[0], 0) == number, name
        else:  # enumerators of CUtensorMapDataType and others that count up from 0
            enum = next(body for body in re.findall(r"enum \w+ \{([^}]*)\}", text) if re.search(rf"\b{name}\b", body))
            names = re.findall(r"\b(CU_\w+)\b", re.sub(r"/\*.*?\*/", "", enum, flags=re.S))
            assert names.index(name) == number, name


def test_tensor_maps_are_those_of_deepgemms_host_code() -> None:
    """runtime_utils.hpp: columns before rows; a box is one swizzle span wide and a tile high."""
    assert Kernel(Path("x"), CONFIG).maps(PROBLEM, (4096, 4104, 14336)) == (
        TensorMap((4096, 512), 8192, (64, 128), 128),
        TensorMap((4096, 14336), 8208, (64, 224), 128),
        TensorMap((14336, 512), 28672, (32, 128), 64),
    )


@pytest.mark.parametrize("pdl", [False, True])
def test_what_is_launched(monkeypatch: pytest.MonkeyPatch, pdl: bool) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: types.SimpleNamespace(cuda_stream=5))
    library = ModelDriver()
    shapes = ((512, 4096), (14336, 4096), (512, 14336))
    operands = Operands(*(torch.empty(shape, dtype=torch.bfloat16) for shape in shapes))
    [launch] = Kernel(Path("a.cubin"), CONFIG).launches(PROBLEM, pdl, [operands], Driver(library))
    assert library.given("cuLibraryLoadFromFile")[0][1] == b"a.cubin"
    assert library.given("cuFuncSetAttribute")[0][1:] == (8, 192768)
    maps = library.given("cuTensorMapEncodeTiled")
    assert [given[3] for given in maps] == [matrix.data_ptr() for matrix in operands]
    assert all(given[0] % 64 == 0 for given in maps)
    assert [list(given[6]) for given in maps] == [[64, 128], [64, 224], [32, 128]]
    launch()
    launch()
    config, function, parameters, extra = library.given("cuLaunchKernelEx")[1]
    config = config._obj
    assert (config.gridDimX, config.gridDimY, config.blockDimX, config.sharedMemBytes) == (132, 1, 384, 192768)
    assert (config.hStream, function.value, extra) == (5, 77, None)
    attributes = [(config.attrs[i].id, list(config.attrs[i].value[:3])) for i in range(config.numAttrs)]
    assert attributes == [(4, [2, 1, 1]), *([(6, [1, 0, 0])] if pdl else [])]
    # a null grouped layout, the sizes, and the three maps themselves, not pointers to them
    assert ctypes.c_uint64.from_address(parameters[0]).value == 0
    assert [ctypes.c_uint32.from_address(parameters[i]).value for i in (1, 2, 3)] == [512, 14336, 4096]
    assert list(parameters)[4:] == [given[0] for given in maps]


def test_a_status_and_a_cubin_of_two_kernels_are_errors() -> None:
    with pytest.raises(deepgemm.DriverError, match="cuLibraryLoadFromFile returned status 1"):
        Driver(ModelDriver(status=1)).function(Path("a.cubin"), 0)
    with pytest.raises(deepgemm.DriverError, match="holds 2 kernels"):
        Driver(ModelDriver(kernels=2)).function(Path("a.cubin"), 0)


def folder_of(path: Path) -> Path:
    kernels = {str(PROBLEM): {"file": "a.cubin", **CONFIG}}
    (path / "index.json").write_text(json.dumps({"deepgemm": "2.6.1", "nvcc": "V13.0.88", "kernels": kernels}))
    return path


def test_a_folder_gives_its_shapes_and_says_which_it_lacks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(peers, "LEFT_OUT", {})
    monkeypatch.setattr(deepgemm, "LEFT_OUT", peers.LEFT_OUT)
    with pytest.raises(SystemExit):
        bench_gemm.arguments(["--deepgemm", str(tmp_path)])
    assert "holds no index.json" in capsys.readouterr().err
    options = bench_gemm.arguments(["--deepgemm", str(folder_of(tmp_path)), "--contender", "deepgemm"])
    found = bench_gemm.contenders(PROBLEM, options)
    assert [c.name for c in found] == ["torch.mm", "deepgemm", "deepgemm pdl"]
    assert {c.note for c in found[1:]} == {"128x224x64 cluster 2x1 3 stages"} and found[1].family == "deepgemm"
    assert [c.name for c in bench_gemm.contenders(Problem(512, 14336, 4096, "n"), options)] == ["torch.mm"]
    assert peers.LEFT_OUT == {"DeepGEMM, 512x14336x4096 B n-major": f"{tmp_path} holds no kernel for it"}
    assert deepgemm.version(tmp_path) == "2.6.1 (nvcc V13.0.88)"


def test_without_package_or_folder_it_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deepgemm, "LEFT_OUT", {})
    monkeypatch.setattr(deepgemm, "installed", lambda: False)
    assert deepgemm.deepgemm(PROBLEM) == [] and deepgemm.version() == "none"
    assert list(deepgemm.LEFT_OUT) == ["DeepGEMM"]
    monkeypatch.setattr(deepgemm, "installed", lambda: True)
    monkeypatch.setitem(sys.modules, "deep_gemm", None)
    assert deepgemm.version() == "unknown (ModuleNotFoundError)"


def test_the_installed_package_is_called_in_both_ways(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []
    package = types.SimpleNamespace(set_pdl=calls.append, bf16_gemm_nt=lambda *given: calls.append(given))
    monkeypatch.setitem(sys.modules, "deep_gemm", package)
    monkeypatch.setattr(deepgemm, "installed", lambda: True)
    operands = Operands(1, 2, 3)
    for contender in deepgemm.deepgemm(PROBLEM):
        [launch] = contender.prepare([operands])
        launch()
    assert calls == [False, (1, 2, 3), True, (1, 2, 3)]


def test_the_instance_holds_what_the_heuristic_chose() -> None:
    """In the order of the kernel's template: majors, sizes, groups, tile, swizzles, stages, threads, multicast."""
    listed = deepgemm_build.instance(14336, 4096, CONFIG).partition("impl<")[2].partition(">")[0]
    assert [part.strip() for part in listed.split(",")] == [
        *("cute::UMMA::Major::K", "cute::UMMA::Major::K", "0", "14336", "4096", "1", "128", "224", "64"),
        *("128", "128", "64", "3", "128", "256", "2", "false", "132", "GemmType::Normal", "false"),
        "cutlass::bfloat16_t",
    ]
    along_n = {**CONFIG, "cluster_m": 1, "cluster_n": 2}
    assert "2, true," in deepgemm_build.instance(14336, 4096, along_n)


def test_a_compiler_that_fails_is_named_with_what_it_says() -> None:
    with pytest.raises(SystemExit, match=r"(?s)failed:.*no such option"):
        deepgemm_build.ran([sys.executable, "-c", "raise SystemExit('no such option')"])
