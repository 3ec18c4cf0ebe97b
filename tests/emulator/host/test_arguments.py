"""Arrays as global memory: where they lie, what they share, and pointers that lead nowhere."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layoutgemm import emulate
from layoutgemm.emulator.host import dsl_calls as dsl_host
from layoutgemm.emulator.host.arguments import ArgumentMemory, Array, PackedArray, array_of
from layoutgemm.emulator.host.dsl_calls import watch
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.errors import EmulatorError
from tests import needs


def arrays(**values: Any) -> ArgumentMemory:
    return ArgumentMemory([(name, array) for name, value in values.items() if (array := array_of(value)) is not None])


def test_an_array_is_a_buffer_over_its_own_bytes() -> None:
    a = np.arange(12, dtype=np.float32)
    made = arrays(a=a)
    found = array_of(a)
    assert found is not None
    address = made.address(found.address)
    assert address == GlobalMemory.START
    made.memory.write(np.array([address + 8]), np.array([7.0], np.float32).view(np.uint8)[None])
    assert a[2] == 7.0


def test_views_of_one_array_share_a_buffer_and_keep_their_alignment() -> None:
    a = np.zeros((8, 20), np.float32)
    left, right = a[:, :10], a[:, 3:]
    made = arrays(left=left, right=right, other=np.zeros(4))
    assert [buffer.name for buffer in made.memory.buffers] == ["left/right", "other"]
    places = [made.address(array_of(view).address) for view in (left, right)]
    assert places[1] - places[0] == 12
    alone = arrays(right=right)
    assert alone.address(array_of(right).address) % 4096 == 12


def test_distant_views_have_separate_buffers() -> None:
    a = np.zeros(100, np.uint8)
    assert len(arrays(x=a[:40], y=a[60:]).memory.buffers) == 2
    assert len(arrays(x=a[:40], y=a[40:]).memory.buffers) == 2
    assert len(arrays(x=a[:41], y=a[40:]).memory.buffers) == 1


def test_transposed_and_reversed_arrays() -> None:
    a = np.arange(6, dtype=np.int16).reshape(2, 3)
    found = array_of(a.T)
    assert found is not None and (found.shape, found.strides) == ((3, 2), (1, 3))
    back = array_of(a[::-1])
    assert back is not None and back.strides == (-3, 1) and back.address - back.low == 6


def test_read_only_arrays_stay_so() -> None:
    a = np.zeros(4, np.float32)
    a.flags.writeable = False
    made = arrays(a=a)
    with pytest.raises(ValueError, match="read-only"):
        made.memory.write(np.array([GlobalMemory.START]), np.zeros((1, 4), np.uint8))


def test_numbers_are_no_arrays() -> None:
    assert [array_of(value) for value in (1, 2.0, np.float32(3), np.int64(4), "x", None)] == [None] * 6


def test_tensors_elsewhere_are_refused() -> None:
    gpu = SimpleNamespace(data_ptr=lambda: 0, device=SimpleNamespace(type="cuda"))
    with pytest.raises(EmulatorError, match="CPU memory"):
        array_of(gpu)


def test_torch_tensors() -> None:
    torch = needs.module("torch")
    x = torch.zeros(6, 10, dtype=torch.bfloat16)[:, 2:]
    found = array_of(x)
    at = x.data_ptr()
    assert found == Array(at, (6, 8), (10, 1), 16, at, at + 2 * 58, at - 4, True, at + 2 * 58)


def test_elements_narrower_than_a_byte() -> None:
    """Extents and strides count elements, along whichever axis is contiguous; the bytes are those of the array."""
    memory = np.zeros((6, 40), np.uint8)
    found = array_of(PackedArray(memory[:, 8:], "e2m1"))
    assert found is not None and (found.shape, found.strides, found.bits) == ((6, 64), (80, 1), 4)
    assert found.high - found.low == 5 * 40 + 32
    columns = array_of(PackedArray(np.zeros((3, 8, 2), np.uint8).transpose(1, 2, 0)[:, :, 0].T, "u4"))
    assert columns is not None and (columns.shape, columns.strides) == ((4, 8), (1, 4))
    six = array_of(PackedArray(np.zeros((2, 48), np.int8), "e2m3"))
    assert six is not None and (six.shape, six.strides, six.bits) == ((2, 64), (64, 1), 6)
    for wrong, message in (
        (PackedArray(memory, "e4m3"), "narrower"),
        (PackedArray(np.zeros((2, 8), np.uint16), "e2m1"), "array of bytes"),
        (PackedArray(memory[:, ::2], "e2m1"), "side by side"),
        (PackedArray(np.zeros((2, 7), np.uint8), "e2m3"), "side by side"),
        (PackedArray(np.zeros(7, np.uint8), "e2m3"), "7 bytes hold no whole number"),
    ):
        with pytest.raises(EmulatorError, match=message):
            array_of(wrong)
    with pytest.raises(EmulatorError, match="3 elements of e2m1"):
        PackedArray.of(np.zeros(3, np.uint8), "e2m1")
    codes = np.random.default_rng(0).integers(0, 64, (3, 8))
    stream = PackedArray.of(codes, "e3m2").values
    for row, packed in zip(codes, stream, strict=True):
        assert int.from_bytes(packed.tobytes(), "little") == sum(int(c) << 6 * i for i, c in enumerate(row))


def test_torch_packs_two_of_e2m1_in_a_byte() -> None:
    torch = needs.module("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("torch.float4_e2m1fn_x2 needs torch 2.8 or later")
    x = torch.zeros(4, 32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2)
    found = array_of(x)
    assert found is not None and (found.shape, found.strides, found.bits) == ((4, 64), (64, 1), 4)
    assert (found.address, found.high - found.low) == (x.data_ptr(), 128)


def test_empty_arrays() -> None:
    made = arrays(a=np.zeros((0, 4)), b=np.zeros(3))
    assert len(made.memory.buffers[0].data) == 0


def test_addresses_of_no_array() -> None:
    made = arrays(a=np.zeros(4))
    with pytest.raises(EmulatorError, match=r"lies in none of the arrays of this call \(a\)"):
        made.address(64)


def test_pointers_outside_the_arrays_are_refused() -> None:
    a = np.zeros(16, np.uint8)
    made = arrays(a=a)
    start = GlobalMemory.START
    made.hold([(0, start), (8, start + 16), (16, 5), (24, 0)], "k")
    with pytest.raises(EmulatorError, match="k: parameter byte 8 points to byte 17 of a"):
        made.hold([(8, start + 17)], "k")
    with pytest.raises(EmulatorError, match="address of this process"):
        made.hold([(0, array_of(a).address)], "k")


# A compiled function, called as its user calls it ---------------------------------------------------------------------


class Call:
    """A call: its arguments, its keyword arguments, the expected first element or message, the array."""

    def __init__(self, want: Any, *args: Any, array: Any = None, **named: Any) -> None:
        self.want, self.args, self.array, self.named = want, args, array, named


def kinds(ffi: bool, x: Any, t: Any) -> dict[str, tuple[Any, tuple[Any, ...], list[Call]]]:
    """Name -> (function, what it is compiled with, calls)."""
    import cuda.bindings.driver as cuda
    import cuda.bindings.runtime as cudart
    import cutlass.cute as cute
    from cutlass import Boolean, Float32, Int8, Int32, Int64, Uint32
    from cutlass.cute.runtime import from_dlpack, make_fake_compact_tensor, make_fake_stream, make_ptr

    from tests.emulator.kernels import call_kinds as k

    stream, null = cuda.CUstream(0), make_fake_stream()
    fake = make_fake_compact_tensor(Int32, (cute.sym_int(divisibility=8),), assumed_align=4)
    c = from_dlpack(x, enable_tvm_ffi=ffi)
    address = make_ptr(Int32, x.ctypes.data, cute.AddressSpace.gmem, assumed_align=4)
    deep = (1, (2, 3))

    def refused(message: str, *args: Any) -> list[Call]:
        """A call with another layout than the compiled one: TVM-FFI compares them, the DSL does not."""
        return [Call(message, *args)] if ffi else []

    rows: dict[str, tuple[Any, tuple[Any, ...], list[Call]]] = {
        "fake": (k.plain, (fake, Int32(1), null), [
            Call(2, x, 2, stream), Call(3, t, Int32(3), stream, array=t), Call(5, c, 5),
            Call(4, x, np.int32(4), cudart.cudaStream_t(0)), Call(6, x, n=6),
            Call(7, n=7, stream=stream, x=x), Call(8, x, 8, null),
            Call("x has elements of float32; the compiled function takes int32", x.astype(np.float32), 2, stream),
            Call("x has 2 axes", x.reshape(4, 8), 2, stream),
            *refused("x has stride 2 along axis 0", x[::2], 2, stream),
            *refused("x has extent 31 along axis 0; .*multiples of 8", x[:31], 2, stream),
            Call(r"n is .*1099511627776 was given: it holds -2147483648 to", x, 1 << 40, stream),
            Call(r"n is .*2\.5 was given", x, 2.5, stream), Call("n is .*'2' was given", x, "2", stream),
            Call("n is .*None was given", x, None, stream), Call("n is a scalar .*an array was given", x, x, stream),
            Call("x is a tensor", 3, 3, stream), Call("stream is a stream", x, 3, x),
            Call("missing a required argument: 'n'", x), Call("too many positional arguments", x, 1, stream, 2),
            Call("unexpected keyword argument 'm'", x, 1, stream, m=2),
        ]),
        "environment's stream": (k.plain, (fake, Int32(1), make_fake_stream(use_tvm_ffi_env_stream=True)), [
            Call(2, x, 2), Call(3, t, 3, stream, array=t),
        ]),
        "bare": (k.bare, (c, True, 1, 0.5, stream), [
            Call(5, c, True, 2, 1.0, stream), Call(4, x, False, 3, 0.5), Call(7, x, 1, 2, 2, stream),
            Call("flag is a scalar of type i1, and 2 was given: it holds 0 to 1", x, 2, 2, 2.0, stream),
            Call("ratio is .*1e[+]39 was given", x, True, 2, 1e39, stream),
            Call("n is .*3000000000 was given", x, True, 3000000000, 2.0, stream),
            *refused("x has extent 16 along axis 0; the compiled function assumes 32", x[:16], True, 3, 2.0, stream),
        ]),
        "grouped": (k.grouped, (c, (Int32(1), (Int32(1), Int32(1))), k.Pair(Int32(1), Int32(1)), None), [
            Call(31, c, deep, k.Pair(4, 5), None), Call(11, x, deep, k.Pair(0, 5), None),
            Call(34, x, deep, k.Pair(4, 5), None, n=7),
            Call(r"p gives 0.*p, a tuple, gives nothing|p has 0 elements", c, (), k.Pair(4, 5), None),
            Call("p has 3 elements, and its annotation 2", c, (1, (2, 3), 4), k.Pair(4, 5), None),
            Call(r"p\[1\]\[0\] is .*it holds", c, (1, (1 << 31, 3)), k.Pair(4, 5), None),
            Call(r"pair\.b is .*0\.5 was given", c, deep, k.Pair(4, 0.5), None),
            Call("none was None when the function was compiled", c, deep, k.Pair(4, 5), 3),
        ]),
        "shaped": (k.shaped, (c, (1, 2), Int32(1)), [
            Call(5, c, (1, 2), 3), Call(r"fixed is \(1, 3\), and was another constant", c, (1, 3), 3),
        ]),
        "classes": (k.classes, (k.Config(c, Int32(1), 2), k.Frozen(1, 100)), [
            Call(107, k.Config(c, 2, 3), k.Frozen(1, 100)), Call(118, k.Config(x, Int32(4), 4), k.Frozen(2, 100)),
            Call(r"config\.more is .*it holds", k.Config(c, 2, 1 << 40), k.Frozen(1, 100)),
            Call(r"config\.x has elements of float64", k.Config(np.zeros(32), 2, 1), k.Frozen(1, 100)),
        ]),
        "pointed": (k.pointed, (address, 1), [
            Call(2, address, 2, extra=[x]), Call(3, x, 3), Call(4, x.ctypes.data, 4, extra=[x]),
            Call("p: address 0x.* lies in none of the arrays", address, 2),
            Call("p is a pointer", 1.5, 2),
        ]),
        "addressed": (k.addressed, (c, Int64(x.ctypes.data), 1), [
            Call(2, c, x.ctypes.data, 2), Call(3, t, t.data_ptr(), 3, array=t), Call(4, x, Int64(x.ctypes.data), 4),
        ]),
        "viewed": (k.viewed, (c, Int8(1), Uint32(1), Float32(1), Boolean(1)), [
            Call(7, c, 1, 2, 3.0, True), Call(-128 - 1 + 3, c, -128, (1 << 32) - 1, 3, False),
            Call("a is a scalar of type s8, and 128 was given", c, 128, 2, 3.0, True),
            Call("b is a scalar of type u32, and -1 was given", c, 1, -1, 3.0, True),
        ]),
    }  # fmt: skip
    if not ffi:  # TVM-FFI takes neither, as the DSL says when it compiles
        rows["raw"] = (k.bare, (x, True, 1, 0.5, stream), [Call(5, t, True, 2, 1.0, stream, array=t)])
        rows["own"] = (k.own, (k.Own(c, 1),), [
            Call(2, k.Own(c, 2)), Call("it cannot be packed by the DSL", k.Own(x, 2)),
            Call("it stands where a tensor is taken", 3),
        ])  # fmt: skip
    return rows


@pytest.mark.dsl
@pytest.mark.parametrize("ffi", [False, True])
def test_every_kind_of_argument_is_taken_or_named(ffi: bool, tmp_path: Path) -> None:
    cute, torch = needs.module("cutlass.cute"), needs.module("torch")
    watch()
    x, t = np.zeros(32, np.int32), torch.zeros(32, dtype=torch.int32)
    options = f"--gpu-arch sm_90a --keep-ptx --dump-dir {tmp_path}" + " --enable-tvm-ffi" * ffi
    for name, (host, compiled_with, calls) in kinds(ffi, x, t).items():
        function = cute.compile(host, *compiled_with, options=options)
        for number, call in enumerate(calls):
            x[:], t[:] = 0, 0
            if isinstance(call.want, str):
                with pytest.raises(EmulatorError, match=call.want):
                    emulate(function, *call.args, **call.named)
                continue
            done = emulate(function, *call.args, **call.named)
            got = np.asarray(x if call.array is None else call.array)
            assert done.ok and got.tolist() == list(range(call.want, call.want + 32)), (name, number, got[:2])


@pytest.mark.dsl
def test_a_fixed_extent_that_differs_is_lint(tmp_path: Path) -> None:
    """As on a GPU, the kernel takes the compiled extent; that it may reach beyond the array is found."""
    cute = needs.module("cutlass.cute")
    watch()
    from cutlass.cute.runtime import from_dlpack, make_fake_stream

    from tests.emulator.kernels import call_kinds as k

    options = f"--gpu-arch sm_90a --keep-ptx --dump-dir {tmp_path}"
    function = cute.compile(
        k.bare, from_dlpack(np.zeros(32, np.int32)), True, 1, 0.5, make_fake_stream(), options=options
    )
    longer, shorter = np.zeros(48, np.int32), np.zeros(16, np.int32)
    done = emulate(function, longer, True, 2, 1.0)
    assert done.ok and longer.tolist() == [*range(5, 37), *[0] * 16]
    assert [(one.kind, one.message) for one in done.findings] == [
        ("lint", "x has extent 48 along axis 0; the compiled function assumes 32, which it takes")
    ]
    with pytest.raises(EmulatorError, match="byte 124 of buffer x, which has 64"):
        emulate(function, shorter, True, 2, 1.0)


@pytest.mark.dsl
def test_a_function_that_was_compiled_unwatched_is_called_all_the_same(tmp_path: Path) -> None:
    """Its types before lowering are not known: those of the machine say how its arguments are packed."""
    needs.module("cutlass.cute")
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import from_dlpack, make_fake_stream

    from tests.emulator.kernels import call_kinds as k

    x = np.zeros(32, np.int32)
    options = f"--gpu-arch sm_90a --keep-ptx --dump-dir {tmp_path}"
    tensor = from_dlpack(x).mark_layout_dynamic()
    function = cute.compile(k.plain, tensor, Int32(1), make_fake_stream(), options=options)
    attributes = function.ir_module.operation.attributes
    if dsl_host.TYPES in attributes:
        del attributes[dsl_host.TYPES]
    for arguments in ((x, 3), (tensor, 3, None)):
        x[:] = 0
        assert emulate(function, *arguments).ok and x[:2].tolist() == [3, 4]
    assert [p.kind for p in dsl_host.parameters_of(function)] == ["tensor", "scalar", "pointer"]
    with pytest.raises(EmulatorError, match="x: the compiled function takes 1 of the tensor's 2 extents"):
        emulate(function, x.reshape(4, 8), 3)
