"""Programs of CUDA C++: a library as nvcc makes it, written by hand, so that no nvcc is needed here."""

from __future__ import annotations

import ctypes
import struct
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from layoutgemm import emulated_gpu
from layoutgemm.cli.main import main
from layoutgemm.emulator.host.cuda_calls import DeviceMemory
from layoutgemm.emulator.host.launcher import c_compiler
from tests import needs

pytestmark = needs.C_COMPILER

PTX = """
.version 8.7
.target sm_90
.address_size 64
.global .align 4 .u32 counter;
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.visible .entry asserts() {
  .param .b64 a; .param .b64 b; .param .b32 c; .param .b64 d; .param .b64 e;
  st.param.b64 [a], 0; st.param.b64 [b], 0; st.param.b32 [c], 7; st.param.b64 [d], 0; st.param.b64 [e], 1;
  call.uni __assertfail, (a, b, c, d, e);
  ret; }
.visible .entry twice(.param .u64 x, .param .u32 n) {
  .reg .pred %p; .reg .f32 %f; .reg .b32 %r<5>; .reg .b64 %d<4>;
  ld.param.u64 %d0, [x]; ld.param.u32 %r3, [n];
  mov.u32 %r0, %tid.x; mov.u32 %r1, %ctaid.x; mov.u32 %r2, %ntid.x; mad.lo.u32 %r0, %r1, %r2, %r0;
  setp.ge.u32 %p, %r0, %r3; @%p bra out;
  mul.wide.u32 %d1, %r0, 4; add.u64 %d1, %d0, %d1; ld.global.f32 %f, [%d1]; add.f32 %f, %f, %f; st.global.f32 [%d1], %f;
  mov.u64 %d2, counter; atom.global.add.u32 %r4, [%d2], 1;
out: ret; }
.visible .entry sampled(.param .u64 texture, .param .u64 x) {
  .reg .pred %p; .reg .f32 %f<6>; .reg .b32 %r<2>; .reg .b64 %d<3>;
  ld.param.u64 %d0, [texture]; ld.param.u64 %d1, [x]; mov.u32 %r0, %tid.x; setp.ge.u32 %p, %r0, 8; @%p bra out;
  and.b32 %r1, %r0, 3; cvt.rn.f32.u32 %f0, %r1; add.f32 %f0, %f0, 0f3F800000; shr.u32 %r1, %r0, 2;
  cvt.rn.f32.u32 %f1, %r1; add.f32 %f1, %f1, 0f3F000000;
  tex.2d.v4.f32.f32 {%f2, %f3, %f4, %f5}, [%d0, {%f0, %f1}];
  mul.wide.u32 %d2, %r0, 4; add.u64 %d1, %d1, %d2; st.global.f32 [%d1], %f2;
out: ret; }
"""
PROGRAM = """
#include <assert.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaMalloc(void *, size_t), cudaMemcpy(void *, const void *, size_t, int), cudaDeviceSynchronize(void);
int cudaMemcpyFromSymbol(void *, const void *, size_t, size_t, int), cudaGetLastError(void);
int cudaIpcOpenMemHandle(void *), cudaDeviceGetAttribute(int *, int, int);
int cudaGetDeviceProperties(void *, int), cudaFree(void *);
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *);
const char *cudaGetErrorString(int);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const void *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaRegisterVar(void **, void *, char *, const char *, int, size_t, int, int);
static unsigned char image[] __attribute__((aligned(8))) = {IMAGE};
static struct { unsigned magic, version; void *data, *more; } wrapper = {0x466243b1, 1, image, 0};
static int counter;
static void twice(void) {}
static void sampled(void) {}
static void asserts(void) {}
struct extent { size_t width, height, depth; };
struct format { int x, y, z, w, kind; };
struct format cudaCreateChannelDesc(int, int, int, int, int);
int cudaMallocArray(void *, void *, size_t, size_t, unsigned);
int cudaMemcpy3D(void *), cudaMalloc3D(void *, struct extent);
int cudaMemcpy2DToArray(void *, size_t, size_t, void *, size_t, size_t, size_t, int), cudaFreeArray(void *);
int cudaCreateTextureObject(void *, void *, void *, void *), cudaLaunchHostFunc(void *, void (*)(void *), void *);
static float *x;
static void last(void) { printf("freed: %d\\n", cudaFree(x)); }
__attribute__((constructor)) static void begin(void) {
  void **handle = __cudaRegisterFatBinary(&wrapper);
  __cudaRegisterFunction(handle, twice, "twice", "twice", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(handle, asserts, "asserts", "asserts", -1, 0, 0, 0, 0, 0);
  __cudaRegisterFunction(handle, sampled, "sampled", "sampled", -1, 0, 0, 0, 0, 0);
  __cudaRegisterVar(handle, &counter, "counter", "counter", 0, 4, 0, 0);
}
static float *x;
static void show(void *text) { printf("%s:", (char *)text); }
static void sample(char *name, size_t *resource) {
  float values[8];
  size_t texture;
  struct { int modes[3], linear, normalized, standard; float border[4]; int rest[9]; } linear = {{1, 3, 1}, 1};
  cudaCreateTextureObject(&texture, resource, &linear, 0);
  void *given[] = {&texture, &x};
  cudaLaunchKernel(sampled, (dim3){1, 1, 1}, (dim3){32, 1, 1}, given, 0, 0);
  cudaMemcpy(values, x, sizeof values, 2);
  cudaLaunchHostFunc(0, show, name);
  for (int i = 0; i < 8; i++) printf(" %g", values[i]);
  printf("\\n");
}
static void textures(void) {
  float rows[2][4] = {1, 2, 3, 4, 10, 20, 30, 40};
  struct format format = cudaCreateChannelDesc(32, 0, 0, 0, 2);
  void *array;
  size_t cubic[4];
  cudaMallocArray(&array, &format, 4, 2, 0);
  cudaMemcpy2DToArray(array, 0, 0, rows, 16, 16, 2, 1);
  sample("array", (size_t[]){0, (size_t)array, 0, 0, 0, 0, 0, 0, 0});
  cudaMalloc3D(cubic, (struct extent){16, 2, 1});
  cudaMemcpy3D((size_t[]){(size_t)array, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, cubic[0], cubic[1], 16, 2, 3, 2, 1, 3});
  size_t place[] = {3, cubic[0], 32, 0, 2, 4, 2, cubic[1], 0};
  sample("pitched", place);
  place[4] = 5;
  sample("normalized 8 bits", place);
  cudaFreeArray(array);
}
static void *launch(void *unused) {
  unsigned n = 48;
  void *given[] = {&x, &n};
  for (int i = 0; i < 3; i++) assert(!cudaLaunchKernel(twice, (dim3){2, 1, 1}, (dim3){32, 1, 1}, given, 0, 0));
  return 0;
}
int main(int argc, char **argv) {
  float values[48] = {1, 2, 3};
  struct { char name[256], more[800]; } gpu;
  unsigned n = 48, count, processors;
  atexit(last);
  assert(argc == 2);
  cudaGetDeviceProperties(&gpu, 0);
  cudaDeviceGetAttribute(&processors, 16, 0);
  assert(!cudaDeviceGetAttribute(&count, 20, 0) && !count);  // computeMode: NVIDIA's samples ask first
  cudaMalloc(&x, sizeof values);
  cudaMemcpy(x, values, sizeof values, 1);
  if (!strcmp(argv[1], "beyond")) n = 60;
  if (!strcmp(argv[1], "copy")) cudaMemcpy(values, x, 256, 2);
  if (!strcmp(argv[1], "textures")) return textures(), 0;
  if (!strcmp(argv[1], "assert")) {
    cudaLaunchKernel(asserts, (dim3){1, 1, 1}, (dim3){32, 1, 1}, 0, 0, 0);
    printf("%s, %d\\n", cudaGetErrorString(cudaDeviceSynchronize()), cudaGetLastError());
  }
  if (!strcmp(argv[1], "threads")) {
    pthread_t one;
    pthread_create(&one, 0, launch, 0);
    launch(0);
    pthread_join(one, 0);
  }
  if (!strcmp(argv[1], "refused")) cudaIpcOpenMemHandle(0);
  void *given[] = {&x, &n};
  int status = cudaLaunchKernel(twice, (dim3){argv[1][0] == 'n' ? 0 : 2, 1, 1}, (dim3){32, 1, 1}, given, 0, 0);
  cudaMemcpy(values, x, sizeof values, 2);
  cudaMemcpyFromSymbol(&count, &counter, 4, 0, 2);
  printf("%s: %g %g %u, %s, %u\\n", gpu.name, values[0], values[2], count, cudaGetErrorString(status), processors);
  if (!strcmp(argv[1], "exit")) exit(5);
  return 0;
}
"""


MODULE = """
#include <tvm/ffi/c_api.h>
#include <stdlib.h>
typedef struct { unsigned x, y, z; } dim3;
int cudaLaunchKernel(const void *, dim3, dim3, void **, size_t, void *), cuCtxSynchronize(void);
void **__cudaRegisterFatBinary(void *);
void __cudaRegisterFunction(void **, const void *, char *, const char *, int, void *, void *, void *, void *, int *);
void __cudaUnregisterFatBinary(void **);
static unsigned char image[] __attribute__((aligned(8))) = {IMAGE};
static struct { unsigned magic, version; void *data, *more; } wrapper = {0x466243b1, 1, image, 0};
static void twice(void) {}
static void last(void) { __cudaUnregisterFatBinary(0); }
__attribute__((constructor)) static void begin(void) {
  __cudaRegisterFunction(__cudaRegisterFatBinary(&wrapper), twice, "twice", "twice", -1, 0, 0, 0, 0, 0);
  atexit(last);
}
int run(float *x, unsigned n) {
  void *given[] = {&x, &n};
  return cudaLaunchKernel(twice, (dim3){2, 1, 1}, (dim3){32, 1, 1}, given, 0, 0);
}
int __tvm_ffi_twice(void *self, const TVMFFIAny *args, int count, TVMFFIAny *result) {
  DLTensor *x = args[0].type_index == kTVMFFIDLTensorPtr ? args[0].v_ptr : (char *)args[0].v_ptr + sizeof(TVMFFIObject);
  result->type_index = kTVMFFIInt;
  result->v_int64 = 1000 * x->device.device_type + run(x->data, args[1].v_int64);
  return 0;
}
"""


def built(folder: Path, name: str, program: str, ptx: str = PTX, flags: int = 0x11, more: Sequence[str] = ()) -> Path:
    """The library of a program of C, with PTX as nvcc registers it."""
    text = ptx.encode()
    text += b"\0" * (-len(text) % 8)
    entry = struct.pack("<HHIQIIHHIIIQQQ", 1, 0x101, 64, len(text), 0, 0, 7, 8, 90, 64, 0, flags, 0, 0)
    image = struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entry) + len(text)) + entry + text
    source, made = folder / f"{name}.c", folder / f"{name}.so"
    source.write_text(program.replace("IMAGE", ",".join(map(str, image))))
    subprocess.run([c_compiler(), "-shared", "-fPIC", "-w", "-o", str(made), str(source), *more], check=True)
    return made


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The program, and one whose PTX is marked as compressed."""
    folder = tmp_path_factory.mktemp("program")
    return {name: built(folder, name, PROGRAM, flags=flags) for name, flags in (("plain", 0x11), ("packed", 0x8011))}


@pytest.mark.parametrize(
    "word, status, said",
    [
        ("right", 0, "H100 80GB HBM3: 2 6 48, no error, 132\nfreed: 0\n"),
        ("exit", 3, "2 6 48, no error, 132\nfreed: 0\n"),
        ("beyond", 1, "unspecified launch failure"),
        ("copy", 1, "cudaMemcpy of 256 bytes: allocation 1 (192 bytes of cudaMalloc) ends 192 bytes behind 0x"),
        ("refused", 1, "2 6 48, no error, 132\nfreed: 0\n"),
        ("refused", 1, "the program calls cudaIpcOpenMemHandle, which has no answer on an emulated GPU"),
        ("assert", 1, "device-side assert triggered, 710"),
        ("threads", 0, "128 384 336, no error, 132"),
        ("textures", 1, "array: 1.5 2.5 3.5 4 15 25 35 40\npitched: 2.5 3.5 2 0 25 35 20 0\n"),
        ("textures", 1, "a channel format of [32, 0, 0, 0] bits and kind 5: 1, 2 or 4"),
        ("no blocks", 0, "1 3 0, invalid configuration argument"),
    ],
)
def test_a_program_runs_above_the_emulated_runtime(
    libraries: dict[str, Path], capfd: pytest.CaptureFixture[str], word: str, status: int, said: str
) -> None:
    assert main(["emulate", str(libraries["plain"]), word]) == status
    assert said in capfd.readouterr().out


def test_an_assertion_of_the_program_ends_it_alone(
    libraries: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["emulate", str(libraries["plain"])]) == 3
    out, err = capfd.readouterr()
    assert "nothing found" in out and "Assertion `argc == 2' failed" in err


def test_programs_that_cannot_run_say_why(
    libraries: dict[str, Path], capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["emulate", str(libraries["packed"]), "x"]) == 1
    assert "compressed: build it with nvcc -no-compress" in capfd.readouterr().out
    assert main(["emulate", "--arch", "sm_80", str(libraries["plain"]), "x"]) == 1
    assert "no PTX for compute capability 8.0" in capfd.readouterr().out
    wrong = tmp_path / "text.so"
    wrong.write_text("not a library")
    assert main(["emulate", str(wrong)]) == 1
    assert "text.so is no library of a program" in capfd.readouterr().out
    assert main(["emulate", "--ranks", "2", str(libraries["plain"])]) == 2
    assert "--ranks 2 runs a script of Python as torchrun does" in capfd.readouterr().err
    monkeypatch.setenv("PATH", "")
    source = tmp_path / "a.cu"
    source.touch()
    assert main(["emulate", str(source)]) == 2
    assert "no nvcc is on the path" in capfd.readouterr().err


def test_memory_of_the_device_is_aligned_as_by_cuda_malloc() -> None:
    memory = DeviceMemory()
    places = [memory.allocate(size) for size in (1, 100, 4096)]
    assert not any(place % 256 for place in places)
    assert memory.holder(places[1] + 99)[0] == "allocation 2 (100 bytes of cudaMalloc)"  # type: ignore[index]
    assert memory.holder(places[1] + 100) is None


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A module of TVM-FFI that needs a library of CUDA which is not there."""
    ffi, folder = needs.module("tvm_ffi"), tmp_path_factory.mktemp("module")
    (folder / "driver.c").write_text("int cuCtxSynchronize(void) { return 1; }")
    driver = [c_compiler(), "-shared", "-Wl,-soname,libcuda.so.99", "-o", "libcuda.so", "driver.c"]
    subprocess.run(driver, cwd=folder, check=True)
    included = [f"-I{one}" for one in ffi.libinfo.include_paths()]
    return built(folder, "module", MODULE, more=[*included, f"-L{folder}", "-Wl,--no-as-needed", "-lcuda"])


def test_a_module_of_tvm_ffi_launches_on_the_emulated_gpu(module: Path) -> None:
    torch, ffi = needs.module("torch"), needs.module("tvm_ffi")
    with emulated_gpu("hopper") as gpu:
        x = torch.arange(48, dtype=torch.float32, device="cuda")
        twice = ffi.load_module(str(module)).twice
        assert twice(x, 48) == 2000  # kDLCUDA, and no error
        assert x.tolist() == [2.0 * i for i in range(48)]
        library = ctypes.CDLL(str(module))
        assert library.run(ctypes.c_void_p(x.data_ptr()), 24) == 0
        assert x[::12].tolist() == [0.0, 48.0, 48.0, 72.0]
        assert gpu.ok and len(gpu.runs) == 2
        assert twice(x, 60) == 2719  # beyond the tensor: as on a GPU, a status
        assert len(gpu.fatal) == 1 and "float32 tensor (48,)" in str(gpu.fatal[0])


@pytest.mark.slow
def test_a_process_that_loaded_a_module_ends_well(module: Path) -> None:
    needs.module("torch")
    code = f"""
import layoutgemm, tvm_ffi
with layoutgemm.emulated_gpu("hopper"):
    import torch
    x = torch.ones(48, device="cuda")
    tvm_ffi.load_module({str(module)!r}).twice(x, 48)
print(x.sum().item())"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "96.0\n"), done.stderr


def test_a_library_with_its_own_runtime_is_noted(tmp_path: Path) -> None:
    (tmp_path / "static.c").write_text('int image __attribute__((section(".nv_fatbin"))) = 1;')
    subprocess.run([c_compiler(), "-shared", "-o", "static.so", "static.c"], cwd=tmp_path, check=True)
    with emulated_gpu("hopper") as gpu:
        assert ctypes.c_int.in_dll(ctypes.CDLL(str(tmp_path / "static.so")), "image").value == 1
    assert gpu.notes == [
        "static.so has CUDA's runtime within, and launches past the emulator: build it with -cudart shared"
    ]


def test_nvcc_keeps_the_ptx_of_what_a_script_compiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvcc").write_text('#!/bin/sh\necho "$NVCC_APPEND_FLAGS"\n')
    (tmp_path / "nvcc").chmod(0o755)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-O1")

    def asked(*words: str) -> str:
        return subprocess.run([str(tmp_path / "nvcc"), *words], capture_output=True, text=True).stdout.strip()

    with emulated_gpu("sm_100a"):
        assert asked("-c", "x.cu") == "-O1 -no-compress -lineinfo -gencode=arch=compute_100a,code=compute_100a"
        assert asked("-shared", "x.cu").endswith("code=compute_100a -cudart=none")
        assert asked("--cubin", "x.cu") == "-O1"  # nvcc refuses it for two architectures
    assert asked("-c", "x.cu") == "-O1"
