"""Compiled host functions on the CPU: headers, launches, arguments, tensor maps by the driver and inline."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import emulate
from layoutgemm.atoms.tma.rules import TensorMap
from layoutgemm.dtypes import dtype
from layoutgemm.emulator.host import launcher as host
from layoutgemm.emulator.host import types as host_types
from layoutgemm.emulator.host.arguments import PackedArray
from layoutgemm.emulator.host.dsl_calls import CompiledFunction, watch
from layoutgemm.emulator.host.launcher import HostFunction, gathered
from layoutgemm.emulator.host.types import TensorMode, parameter_of
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.machine.tensor_map import decode
from layoutgemm.errors import EmulatorError
from tests import needs

MATRIX = "!llvm.struct<(ptr<1>, struct<(struct<(i32, i32)>, i64)>)>"
TYPES = {"a": MATRIX, "b": "!llvm.struct<(ptr, struct<(struct<()>, struct<()>)>)>", "n": "i32", "alpha": "f32"}
TYPES |= {"p": "!llvm.ptr<1>", "flag": "i1", "half": "f16", "brain": "bf16", "wide": "i64"}
TYPES |= {"layout": "!llvm.struct<(i32)>"}
LONG = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (1 << 33, 1), (0, 4))


@pytest.mark.parametrize(
    ("machine", "kind", "size", "shapes", "strides"),
    [
        (MATRIX, "tensor", 24, ((8, 4), (12, 4)), ((16, 8),)),
        ("!llvm.struct<(ptr, struct<(struct<()>, struct<()>)>)>", "tensor", 8, (), ()),
        ("!llvm.struct<(ptr, struct<(i32, struct<()>)>)>", "tensor", 16, ((8, 4),), ()),
        ("!llvm.struct<(ptr, struct<(i32, i64)>)>", "tensor", 24, ((8, 4),), ((16, 8),)),
        ("!llvm.struct<(ptr, struct<(struct<(i32, i64)>, i32)>)>", "tensor", 32, ((8, 4), (16, 8)), ((24, 4),)),
        ("!llvm.struct<(ptr, struct<(struct<(struct<(i64, i32)>, i32)>, i32)>)>", "tensor", 40,
         ((8, 8), (16, 4), (24, 4)), ((32, 4),)),
        ("!llvm.struct<(i32, array<3 x i8>)>", "bytes", 8, (), ()),
        ("!llvm.ptr", "pointer", 8, (), ()),
        ("i1", "scalar", 1, (), ()),
    ],
)  # fmt: skip
def test_types_say_where_values_go(machine: str, kind: str, size: int, shapes: Any, strides: Any) -> None:
    found = parameter_of(machine)
    assert (found.kind, found.size, found.shapes, found.strides) == (kind, size, shapes, strides)


def test_types_before_lowering_say_more() -> None:
    found = parameter_of(MATRIX, '!cute.memref<bf16, gmem, align<16>, "(?,?{div=8}):(?{i64 div=8},1)">')
    assert (found.element, found.align) == ("bf16", 16)
    assert found.modes == ((TensorMode(None), TensorMode(None, 8)), (TensorMode(None, 8), TensorMode(1)))
    assert parameter_of("!llvm.ptr", "!cuda.stream").kind == "stream"
    assert parameter_of("!llvm.ptr<1>", "!cute.ptr<f4E2M1FN, gmem, align<16>>").element == "f4E2M1FN"
    assert parameter_of("i32", "tf32").type == "tf32"


@pytest.mark.parametrize("machine", ["!llvm.struct<(ptr, quad)>", "f80", "vector<4xi32>"])
def test_an_unknown_type_is_refused(machine: str) -> None:
    with pytest.raises(EmulatorError, match="not known"):
        parameter_of(machine)


def packed(name: str, value: Any, traced: str = "") -> bytes:
    arrays = gathered([(name, value)])
    return host_types.packed(parameter_of(TYPES[name], traced), name, value, arrays)


START = GlobalMemory.START.to_bytes(8, "little")


def test_arguments_are_packed() -> None:
    a = np.zeros((4, 6), np.float32)
    assert packed("a", a) == START + bytes([4, 0, 0, 0, 6, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0])
    assert packed("a", a.T) == START + bytes([6, 0, 0, 0, 4, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0])
    assert packed("b", a) == START
    assert packed("n", -2) == packed("n", (1 << 32) - 2) == b"\xfe\xff\xff\xff"
    assert packed("alpha", 1) == np.float32(1).tobytes()
    assert (packed("flag", True), packed("half", 1.5), packed("brain", 1.5)) == (b"\1", b"\0\x3e", b"\xc0\x3f")
    assert packed("alpha", float("inf")) == np.float32("inf").tobytes()
    assert packed("p", a) == packed("wide", a) == START
    assert packed("p", 0) == packed("p", None) == bytes(8)


def test_a_descriptor_of_packed_elements_counts_elements() -> None:
    content = packed(
        "a", PackedArray(np.zeros((6, 32), np.uint8), "e2m1"), '!cute.memref<f4E2M1FN, gmem, "(?,?):(?,1)">'
    )
    assert content[:8] == START and np.frombuffer(content[8:16], np.int32).tolist() == [6, 64]
    assert np.frombuffer(content[16:], np.int64).tolist() == [64]


@pytest.mark.dsl
def test_a_cute_tensor_of_four_bits() -> None:
    cutlass = needs.module("cutlass")
    from cutlass.cute.runtime import from_dlpack

    cute = from_dlpack(np.zeros((8, 64), np.int8), assumed_align=16)
    cute.element_type = cutlass.Float4E2M1FN
    found = host.array_of(cute)
    assert found is not None and (found.shape, found.bits, found.high - found.low) == ((8, 64), 4, 256)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("a", 3, "a is a tensor"),
        ("a", np.zeros((2, 3, 4), np.float32), "a: .*takes 2 of the tensor's 3 extents"),
        ("a", np.zeros((4, 12), np.float32)[:, ::2], "a: .*takes 1 of the tensor's 2 strides"),
        ("a", LONG, "a: 8589934592 is not a 32-bit extent"),
        ("n", np.zeros(3), "n is a scalar of type i32, and an array"),
        ("n", "x", "n is .*'x' was given"),
        ("n", 2.5, "n is .*2.5 was given"),
        ("n", 1 << 32, "n is .*it holds -2147483648 to 4294967295"),
        ("n", float("nan"), "n is .*nan was given"),
        ("flag", 2, "flag is .*it holds 0 to 1"),
        ("alpha", 1e39, r"alpha is .*1e\+39 was given"),
        ("half", 65520, "half is .*65520 was given"),
        ("p", 12345, "p: .*lies in none"),
        ("p", 1.5, "p is a pointer"),
        ("layout", 3, "layout is a struct of 4 bytes"),
    ],
)
def test_wrong_arguments_are_refused(name: str, value: Any, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        packed(name, value)


@pytest.mark.parametrize(
    ("array", "traced", "message"),
    [
        (np.zeros((4, 6)), "f32, gmem", "a has elements of float64; the compiled function takes float32"),
        (np.zeros((4, 6), np.int32), "f32, gmem", "float32: pass such an array, or its bits as uint32"),
        (np.zeros((4, 6), np.float16), "bf16, gmem", "a has elements of float16"),
        (np.zeros((4, 6), np.uint8), "f4E2M1FN, gmem", "pass PackedArray"),
        (np.zeros((2, 4, 6), np.float32), "f32, gmem", "a has 3 axes, the compiled function's tensor 2"),
        (np.zeros(27, np.float32)[3:].reshape(4, 6), "f32, gmem, align<16>", "a is not aligned to 16 bytes"),
    ],
)
def test_wrong_tensors_are_refused(array: Any, traced: str, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        packed("a", array, f'!cute.memref<{traced}, "(?,?):(?{{i64 div=2}},1)">')


@dataclass
class Marked:
    """A CuTe tensor of (5, 6):(1, 5), with one stride to give at run time."""

    dynamic_strides_mask: tuple[int, int]
    dynamic_shapes_mask: tuple[int, int] = (1, 1)
    array: Any = field(default_factory=lambda: np.zeros((6, 5), np.float32).T)

    @property
    def __array_interface__(self) -> Any:
        return self.array.__array_interface__


@pytest.mark.parametrize(
    ("layout", "value", "notes"),
    [
        ("(4,6):(6,1)", np.zeros((4, 6), np.float32), []),
        (
            "(4,6):(6,1)",
            np.zeros((5, 6), np.float32),
            ["extent 5 along axis 0; the compiled function assumes 4, which"],
        ),
        ("(4,6):(6,1)", np.zeros(24, np.float32), ["b has 1 axes, the compiled function's tensor 2: it takes its own"]),
        ("(1,6):(12,1)", np.zeros((1, 6), np.float32), []),
        (
            "(?,?):(?{i64 div=2},1)",
            np.zeros((4, 6), np.float32)[:, ::2],
            ["stride 2 along axis 1; .* assumes 1, which"],
        ),
        ("(?,?):(?{i64 div=2},1)", np.zeros((4, 3), np.float32), ["stride 3 along axis 0; .* assumes multiples of 2"]),
        ("(?,?):(?{i64 div=2},1)", Marked((0, 1)), [r"a gives the strides of axes \[1\] .* for those of axes \[0\]"]),
        ("(?,?):(?{i64 div=2},1)", Marked((1, 0)), ["stride 1 along axis 0", "stride 5 along axis 1"]),
    ],
)
def test_layouts_that_differ_from_the_compiled_ones_are_notes(layout: str, value: Any, notes: list[str]) -> None:
    """The DSL compares no layouts: it gives a kernel the numbers that its tensor has at run time, in order."""
    name = "a" if "?" in layout else "b"
    arrays = gathered([(name, value)])
    content = host_types.packed(parameter_of(TYPES[name], f'!cute.memref<f32, gmem, "{layout}">'), name, value, arrays)
    found = arrays.memory.notes
    assert len(found) == len(notes) and all(re.search(note, text) for note, text in zip(notes, found, strict=True))
    if isinstance(value, Marked):
        assert int.from_bytes(content[16:], "little") == (5 if value.dynamic_strides_mask[1] else 1)


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
    parameters = [parameter_of("!llvm.ptr", name="a"), parameter_of("i32", name="swizzle")]
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

    watch()
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
    function = CompiledFunction.of(
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
    function = CompiledFunction.of(compiled(small.Twice(), dynamic(np.zeros(64, np.float32))))
    _, launches = function.call([np.zeros(64, np.float32)])
    assert [launch.cluster for launch in launches] == [(1, 1, 1), (2, 1, 1)]
    assert ["add" in launch.kernel.name for launch in launches] == [True, False]
    assert [launch.dependent for launch in launches] == [False, False]


@pytest.mark.dsl
@pytest.mark.parametrize("waits", [True, False])
def test_a_dependent_launch(small: Any, compiled: Compile, waits: bool) -> None:
    x, y, z = (np.full(32, value, np.float32) for value in (1, 0, 0))
    function = CompiledFunction.of(compiled(small.Dependent(waits), *map(dynamic, (x, y, z))))
    _, launches = function.call([x, y, z])
    assert [launch.dependent for launch in launches] == [False, True]
    done = emulate(function, x, y, z, progress=False)
    assert [one.kind for one in done.findings] == ([] if waits else ["race"]) and z.tolist() == [4.0] * 32


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
    function = CompiledFunction.of(
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
        pytest.skip("CUTE_DSL_KEEP_PTX is set: unset it")
    with pytest.raises(EmulatorError, match=r"--keep-ptx.*FOLDER has to exist"):
        CompiledFunction.of(made)


def test_other_objects_than_compiled_functions_are_refused() -> None:
    with pytest.raises(EmulatorError, match=r"the emulator takes what cute\.compile returned, not object"):
        CompiledFunction.of(object())
