"""Compiled host functions on the CPU: headers, launches, arguments, tensor maps by the driver and inline."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms.tma_rules import TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator import host
from layoutgemm.emulator.arguments import Packed
from layoutgemm.emulator.host import HostFunction, HostParameter, read_header
from layoutgemm.emulator.memory import GlobalMemory
from layoutgemm.emulator.tensor_map import decode
from layoutgemm.errors import EmulatorError

HEADER = """
typedef struct {
    void *data;
    int32_t dynamic_shapes[2];
    int64_t dynamic_strides[1];
} k_Tensor_a_t;
typedef struct {
    void *data;
} k_Tensor_b_t;
typedef struct {
    void *data;
    int64_t dynamic_shapes[1];
} k_Tensor_many_t;
typedef struct {
    k_Tensor_many_t elements[3];
    int32_t count;
} k_TensorList_many_t;
void _mlir_k__mlir_ciface_f(void **args, int32_t num_args);

static inline int32_t cute_dsl_k_wrapper(k_Kernel_Module_t *module, k_Tensor_a_t *a, k_Tensor_b_t *b, \
k_TensorList_many_t *many, int32_t n, float alpha, void *p, int32_t *shape, cudaStream_t stream) {
    int32_t ret = 0;
    void *args[12] = {
        a, b, &many->elements[0], &many->elements[1], &many->elements[2], &n, &alpha, &p, &shape[0], &shape[1], &stream,
        &ret
    };
    return ret;
}
"""


def test_a_header_is_read() -> None:
    assert read_header(HEADER) == [
        HostParameter("a", "tensor", shapes=(2, "int32_t"), strides=(1, "int64_t")),
        HostParameter("b", "tensor"),
        HostParameter("many", "tensors", count=3, shapes=(1, "int64_t")),
        HostParameter("n", "scalar", "int32_t"),
        HostParameter("alpha", "scalar", "float"),
        HostParameter("p", "pointer"),
        HostParameter("shape", "integers", "int32_t", 2),
        HostParameter("stream", "stream"),
    ]


@pytest.mark.parametrize(("old", "new"), [("float alpha", "quad alpha"), ("_wrapper(", "_wrapped(")])
def test_an_unknown_header_is_refused(old: str, new: str) -> None:
    with pytest.raises(EmulatorError, match="not known"):
        read_header(HEADER.replace(old, new))


def packed(name: str, value: Any) -> list[bytes]:
    parameter = next(p for p in read_header(HEADER) if p.name == name)
    parts = value if isinstance(value, list) else [value]
    named = [(name, array) for part in parts if (array := host.array_of(part)) is not None]
    return host._packed(parameter, value, host.Arrays(named))


START = GlobalMemory.START.to_bytes(8, "little")


def test_arguments_are_packed() -> None:
    a = np.zeros((4, 6), np.float32)
    assert packed("a", a) == [START + bytes([4, 0, 0, 0, 6, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0])]
    assert packed("a", a.T) == [START + bytes([6, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0])]
    assert packed("b", a) == [START]
    assert packed("n", -2) == [b"\xfe\xff\xff\xff"]
    assert packed("alpha", 1) == [np.float32(1).tobytes()]
    assert packed("p", a) == [START]
    assert packed("p", 0) == [bytes(8)]
    assert packed("shape", (3, (4,))) == [b"\3\0\0\0", b"\4\0\0\0"]
    assert len(packed("many", [a.reshape(-1)[:8], a.reshape(-1)[8:16], a.reshape(-1)[16:]])) == 3


def test_descriptors_are_aligned_as_c_aligns_them() -> None:
    a = np.zeros((2, 3, 4), np.float32)
    parameter = HostParameter("a", "tensor", shapes=(3, "int32_t"), strides=(2, "int64_t"))
    arrays = host.Arrays([("a", host.array_of(a))])
    (content,) = host._packed(parameter, a, arrays)
    assert np.frombuffer(content[8:24], np.int32).tolist() == [2, 3, 4, 0]
    assert np.frombuffer(content[24:], np.int64).tolist() == [12, 4]


def test_a_descriptor_of_packed_elements_counts_elements() -> None:
    a = Packed(np.zeros((6, 32), np.uint8), "e2m1")
    parameter = HostParameter("a", "tensor", shapes=(2, "int32_t"), strides=(1, "int64_t"))
    arrays = host.Arrays([("a", host.array_of(a))])
    (content,) = host._packed(parameter, a, arrays)
    assert content[:8] == START and np.frombuffer(content[8:16], np.int32).tolist() == [6, 64]
    assert np.frombuffer(content[16:], np.int64).tolist() == [64]


@pytest.mark.dsl
def test_a_cute_tensor_of_four_bits() -> None:
    cutlass = pytest.importorskip("cutlass")
    from cutlass.cute.runtime import from_dlpack

    cute = from_dlpack(np.zeros((8, 64), np.int8), assumed_align=16)
    cute.element_type = cutlass.Float4E2M1FN
    found = host.array_of(cute)
    assert found is not None and (found.shape, found.bits, found.high - found.low) == ((8, 64), 4, 256)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a", 3, "a is a tensor"),
        ("a", np.zeros((2, 3, 4), np.float32), "takes 2 of the tensor's 3 extents"),
        ("a", np.zeros((4, 12), np.float32)[:, ::2], "takes 1 of the tensor's 2 strides"),
        ("n", np.zeros(3), "scalar of type int32_t, and an array"),
        ("n", "x", "'x' was given"),
        ("p", 12345, "lies in none"),
        ("shape", (1, 2, 3), "3 integers"),
        ("many", np.zeros(4), "a list of 3"),
    ],
)
def test_wrong_arguments_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        packed(name, value)


def test_a_missing_compiler_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EmulatorError, match="install gcc or clang, or set CC"):
        host.c_compiler()


def test_an_object_that_asks_for_more_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "f.c"
    source.write_text("int _cudaOther(void); int f(void) { return _cudaOther(); }")
    host.subprocess.run([host.c_compiler(), "-c", "-fPIC", str(source), "-o", str(tmp_path / "f.o")], check=True)
    with pytest.raises(EmulatorError, match="it calls _cudaOther, which the stub runtime does not have"):
        host._link((tmp_path / "f.o").read_bytes())


def test_the_stub_tells_of_a_driver_encoded_map(tmp_path: Path) -> None:
    """A host function in C that does what a compiled one does: encode a map, launch with it in a cluster."""
    source = tmp_path / "f.c"
    source.write_text("""
    #include <stdint.h>
    #include <stddef.h>
    int _cudaLibraryGetKernel(void **, void *, const char *);
    int _cuTensorMapEncodeTiled(void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *,
                                const uint32_t *, int, int, int, int);
    struct attribute { int32_t kind, padding; uint32_t value[16]; };
    struct launch { uint32_t grid[3], block[3]; size_t shared; void *stream; const void *attributes; uint32_t count; };
    int _cudaLaunchKernelEx(const struct launch *, const void *, void **);
    void _mlir_k__mlir_ciface_f(void **args, int32_t count) {
      void *kernel; char map[128]; int swizzle = *(int *)args[1]; char *p = *(char **)args[0];
      if (swizzle == -2) { *(int *)args[2] = 700; return; }
      if (swizzle == -1) { p += 100000; swizzle = 0; }
      uint64_t dims[2] = {100, 60}, strides[1] = {256}; uint32_t box[2] = {64, 8}, steps[2] = {1, 1};
      _cudaLibraryGetKernel(&kernel, 0, "kernel");
      int status = _cuTensorMapEncodeTiled(map, 9, 2, *(void **)args[0], dims, strides, box, steps, 0, swizzle, 2, 0);
      struct attribute cluster = {4, 0, {2, 1, 1}};
      struct launch launch = {{4, 3, 1}, {64, 2, 1}, 4096, 0, &cluster, 1};
      void *arguments[2] = {map, &p};
      *(int *)args[2] = status ? status : _cudaLaunchKernelEx(&launch, kernel, arguments);
    }""")
    host.subprocess.run([host.c_compiler(), "-c", "-fPIC", str(source), "-o", str(tmp_path / "f.o")], check=True)
    ptx = """.version 8.0
    .target sm_90a
    .visible .entry kernel(.param .align 64 .b8 map[128], .param .u64 p) { .reg .b64 %d; ld.param.b64 %d, [p]; ret; }"""
    parameters = [HostParameter("a", "pointer"), HostParameter("swizzle", "scalar", "int32_t")]
    function = HostFunction.link((tmp_path / "f.o").read_bytes(), ptx, parameters)
    a = np.zeros((60, 128), np.uint16)
    for swizzle, name in ((0, "none"), (3, "128B")):
        _, (launch,) = function.call([a, swizzle])
        assert (launch.grid, launch.block, launch.cluster) == ((4, 3, 1), (64, 2, 1), (2, 1, 1))
        assert (launch.dynamic_shared, launch.kernel.name) == (4096, "kernel")
        assert list(launch.pointers()) == [(128, GlobalMemory.START)]
        want = TensorMap(dtype("bf16"), (100, 60), (256,), (64, 8), (1, 1), name)
        assert decode(launch.parameters[:128]) == (want, GlobalMemory.START)
    with pytest.raises(EmulatorError, match="kernel: parameter byte 128 points to byte 100000 of a, outside"):
        function.call([a, -1])
    with pytest.raises(EmulatorError, match="status 700"):
        function.call([a, -2])
    with pytest.raises(EmulatorError, match="swizzle 9 is not known"):
        function.call([a, 9])
    with pytest.raises(EmulatorError, match="64 elements are 128 bytes"):
        function.call([a, 1])
    with pytest.raises(EmulatorError, match=r"takes 2: a \(pointer\), swizzle \(scalar\)"):
        function.call([a])


# Compiled by the DSL --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def small() -> Any:
    from tests.emulator.kernels import small

    return small


Compile = Callable[..., Any]


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> Compile:
    """Compile for sm_90a, PTX kept."""
    import cutlass.cute as cute

    folder = tmp_path_factory.mktemp("dsl")
    options = f"--gpu-arch sm_90a --keep-ptx --generate-line-info --dump-dir {folder}"
    return lambda kernel, *args: cute.compile(kernel, *args, options=options)


def dynamic(array: Any) -> Any:
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(array).mark_layout_dynamic()


@pytest.mark.dsl
def test_grids_and_arguments_of_a_compiled_function(small: Any, compiled: Compile) -> None:
    from cutlass import Float32, Int32
    from cutlass.cute.runtime import make_fake_stream

    x = np.zeros(5, np.float32)
    function = HostFunction.of(
        compiled(small.Scale(), dynamic(x), dynamic(x), Int32(1), Float32(1), make_fake_stream())
    )
    assert [p.kind for p in function.parameters] == ["tensor", "tensor", "scalar", "scalar", "stream"]
    for count in (1, 128, 129, 1000):
        a, b = np.zeros(count, np.float32), np.zeros(count, np.float32)
        for arguments in ((a, b, count, 2.5), (a, dynamic(b), Int32(count), Float32(2.5), None)):
            _, (launch,) = function.call(arguments)
            assert launch.grid == (-(-count // 128), 1, 1) and launch.block == (128, 1, 1)
            assert np.frombuffer(launch.parameters, np.int32)[[2, 6, 8]].tolist() == [count] * 3
            assert np.frombuffer(launch.parameters, np.float32)[9] == 2.5
            assert [value - GlobalMemory.START >> 32 for _, value in launch.pointers()] == [0, 1]


@pytest.mark.dsl
def test_several_launches_of_a_call(small: Any, compiled: Compile) -> None:
    function = HostFunction.of(compiled(small.Twice(), dynamic(np.zeros(64, np.float32))))
    _, launches = function.call([np.zeros(64, np.float32)])
    assert [launch.cluster for launch in launches] == [(1, 1, 1), (2, 1, 1)]
    assert ["add" in launch.kernel.name for launch in launches] == [True, False]


@pytest.mark.dsl
@pytest.mark.parametrize(
    ("kind", "tile", "bits", "swizzle"),
    [
        ("BFloat16", (8, 64), 3, "128B"),
        ("Float16", (4, 32), 2, "64B"),
        ("Float32", (16, 8), 1, "32B"),
        ("Int8", (8, 16), 0, "none"),
        ("TFloat32", (8, 32), 3, "128B"),
    ],
)
def test_maps_that_the_dsl_encodes(
    small: Any, compiled: Compile, kind: str, tile: Any, bits: int, swizzle: str
) -> None:
    """NVIDIA's own atoms write the 128 bytes without the driver: they are read as what they were asked for."""
    import cutlass
    from cutlass.cute.runtime import make_ptr

    element = getattr(cutlass, kind)
    function = HostFunction.of(
        compiled(small.Maps(element, tile, bits), make_ptr(element, 0, assumed_align=32), *[cutlass.Int32(64)] * 3)
    )
    names = {"BFloat16": "bf16", "Float16": "f16", "Float32": "f32", "Int8": "u8", "TFloat32": "tf32"}
    size = element.width // 8
    memory = np.zeros(1 << 16, np.uint8)
    for rows, columns, pitch in ((64, 64, 64), (17, 100, 128)):
        _, (launch,) = function.call([memory, rows, columns, pitch])
        found, address = decode(launch.parameters[:128])
        want = TensorMap(dtype(names[kind]), (columns, rows), (pitch * size,), tile[::-1], (1, 1), swizzle)
        assert (found, address) == (want, GlobalMemory.START)


@pytest.mark.dsl
def test_ptx_has_to_be_kept(small: Any) -> None:
    import cutlass.cute as cute

    made = cute.compile(small.Twice(), dynamic(np.zeros(64, np.float32)), options="--gpu-arch sm_90a")
    if isinstance(made.__ptx__, str):
        pytest.skip("this environment keeps PTX always")
    with pytest.raises(EmulatorError, match="--keep-ptx"):
        HostFunction.of(made)


def test_what_is_no_compiled_function() -> None:
    with pytest.raises(EmulatorError, match="no PTX"):
        HostFunction.of(object())
    assert ctypes.sizeof(host._SCALARS["int64_t"]) == 8
