"""Every kind of argument of a compiled CuTe DSL function, passed as on a GPU; and what is refused, by name."""

from __future__ import annotations

from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from layoutgemm import emulate
from layoutgemm.emulator.arguments import Packed, array_of
from layoutgemm.emulator.packing import CUDA, GpuTensor, bound, replaced
from layoutgemm.errors import EmulatorError


@dataclass(frozen=True)
class Config:
    x: Any
    value: Any


Pair = namedtuple("Pair", ["x", "value"])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Function name -> compiled, each once; options are added to those that keep the PTX."""
    pytest.importorskip("cutlass")
    import cutlass.cute as cute

    from tests.emulator.kernels import arguments

    folder = tmp_path_factory.mktemp("dsl")
    kept: dict[str, Any] = {}

    def compiled(name: str, *example: Any, options: str = "") -> Any:
        if name + options not in kept:
            every = f"--gpu-arch sm_90a --keep-ptx --dump-dir {folder} {options}"
            kept[name + options] = cute.compile(getattr(arguments, name), *example, options=every)
        return kept[name + options]

    return compiled


def dynamic(x: Any) -> Any:
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(x).mark_layout_dynamic()


def zeros(count: int = 32) -> Any:
    return np.zeros(count, np.int32)


def filled(x: Any) -> int | None:
    """The value that `fill` was called with, or None for another content."""
    first = int(x[0])
    return first if [int(each) for each in x] == list(range(first, first + len(x))) else None


@pytest.mark.dsl
def test_streams_numbers_and_arrays(made: Any) -> None:
    import cuda.bindings.driver as cuda
    from cutlass import Int32
    from cutlass.cute.runtime import make_fake_stream

    run = made("stream_left_untyped", dynamic(zeros()), Int32(1), cuda.CUstream(0))
    torch = pytest.importorskip("torch")
    for x in (zeros(), zeros(7), torch.zeros(32, dtype=torch.int32)):
        for value, call in (
            (3, (x, 3)), (4, (x, Int32(4))), (5, (x, np.int32(5), None)), (6, (dynamic(zeros()), 6)),
            (7, (x, 7, cuda.CUstream(0))), (8, (x, 8, make_fake_stream())),
        ):  # fmt: skip
            assert emulate(run, *call).ok
            assert value == 6 or filled(x) == value
    x = zeros()
    assert emulate(run, x, value=9).ok and filled(x) == 9
    assert emulate(run, value=10, x=x).ok and filled(x) == 10


@pytest.mark.dsl
def test_types_that_are_not_annotated(made: Any) -> None:
    run, x = made("untyped", zeros(), 1), zeros()
    for value in (3, np.int64(4)):
        assert emulate(run, x, value).ok and filled(x) == value


@pytest.mark.dsl
def test_defaults(made: Any) -> None:
    run, x = made("with_default", dynamic(zeros())), zeros()
    assert emulate(run, x).ok and filled(x) == 4
    assert emulate(run, x, 5).ok and filled(x) == 5


@pytest.mark.dsl
def test_addresses(made: Any) -> None:
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import make_ptr, nullptr

    run, x = made("by_pointer", nullptr(Int32, cute.AddressSpace.gmem, 4), Int32(1)), zeros()
    pointer = make_ptr(Int32, x.ctypes.data, cute.AddressSpace.gmem, assumed_align=4)
    for given, extra in ((x, ()), (pointer, (x,))):
        x[:] = 0
        assert emulate(run, given, 32, extra=extra).ok and filled(x) == 3
    x[:] = 0
    assert emulate(run, x[8:], 24).ok and filled(x[8:]) == 3 and not x[:8].any()
    with pytest.raises(EmulatorError, match="lies in none of the arrays"):
        emulate(run, pointer, 32)


@pytest.mark.dsl
def test_lists_and_nested_tuples(made: Any) -> None:
    from cutlass import Int32

    x, y = zeros(), zeros()
    run = made("of_a_list", [dynamic(x), dynamic(y)], (Int32(1), (Int32(2),)), True)
    assert emulate(run, [x, y], (40, (2,)), False).ok and (filled(x), filled(y)) == (42, 0)
    assert emulate(run, (dynamic(x), y), (Int32(1), [2]), True).ok and (filled(x), filled(y)) == (3, 1)
    for wrong in (([x], (1, (2,)), True), ([x, y], (1,), True), ([x, y], (), True), ([x, y], (1, (2, 3)), True)):
        with pytest.raises(EmulatorError, match=r"xs: list, numbers: tuple, flag: bool\) pack into \d values"):
            emulate(run, *wrong)


@pytest.mark.dsl
@pytest.mark.parametrize("kind", [Config, Pair])
def test_objects_and_none(made: Any, kind: Any) -> None:
    from cutlass import Int32

    x = zeros()
    name = "of_an_object"
    run = made(name, kind(dynamic(x), Int32(1)), None, options="" if kind is Config else "--opt-level 3")
    given = kind(x, Int32(8))
    assert emulate(run, given, None).ok and filled(x) == 8
    assert given == kind(given.x, given.value)  # the caller's object is as it was


@pytest.mark.dsl
def test_tvm_ffi(made: Any) -> None:
    pytest.importorskip("tvm_ffi")
    torch = pytest.importorskip("torch")
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

    fake = make_fake_compact_tensor(Int32, (cute.sym_int(),), stride_order=(0,), assumed_align=4)
    stream = make_fake_stream(use_tvm_ffi_env_stream=True)
    run = made("stream_left_untyped", fake, Int32(1), stream, options="--enable-tvm-ffi")
    for x in (zeros(), zeros(5), torch.zeros(32, dtype=torch.int32)):
        assert emulate(run, x, 21).ok and filled(x) == 21
        assert emulate(run, x, value=22).ok and filled(x) == 22
    for wrong, message in (
        (np.zeros(32, np.float32), "expected dtype=int32"), (zeros(4).reshape(2, 2), "expected ndim=1"),
        (7, "expected Tensor"), (fake, "x is a fake tensor"),
    ):  # fmt: skip
        with pytest.raises(EmulatorError, match=message):
            emulate(run, wrong, 1)


@pytest.mark.dsl
def test_what_is_refused_is_named(made: Any) -> None:
    import cuda.bindings.driver as cuda
    import cutlass.cute as cute
    from cutlass import Int32
    from cutlass.cute.runtime import make_fake_compact_tensor

    run, x = made("stream_left_untyped", dynamic(zeros()), Int32(1), cuda.CUstream(0)), zeros()
    fake = make_fake_compact_tensor(Int32, (cute.sym_int(),), stride_order=(0,), assumed_align=4)
    for call, keywords, message in (
        ((x,), {}, "value is missing: 1 arguments; the compiled function takes 2: x, value"),
        ((x, 1, None, 2), {}, "4 arguments; the compiled function takes 2: x, value"),
        ((x, 1), {"other": 2}, "other is no parameter of the compiled function, which takes x, value"),
        ((x, 1), {"value": 2}, "value is given twice: as argument 2, and by its name"),
        ((x, "a"), {}, r"x: ndarray, value: str\): a to integer conversion is not supported"),
        ((x, 2**40), {}, "1099511627776 does not fit in Int32"),
        ((5, 1), {}, r"parameter 0 .* is a tensor: pass a NumPy array"),
        ((None, 1), {}, "pack into 2 values, and the function was compiled for 3"),
        ((fake, 1), {}, "x is a fake tensor"),
        ((zeros(64)[::2], 1), {}, r"x: one of the tensor's strides is compiled in as 1, and the array's are \(2,\)"),
        ((zeros(4).reshape(2, 2), 1), {}, "x: the compiled function takes 1 of the tensor's 2 extents"),
    ):
        with pytest.raises(EmulatorError, match=message):
            emulate(run, *call, **keywords)


def test_leaves_are_replaced_where_they_are_and_nothing_else_is() -> None:
    x, seen = zeros(), []

    def make(name: str, value: Any, array: Any, address: int) -> str:
        seen.append(name)
        return name

    class Own:
        __c_pointers__ = None

        def __init__(self) -> None:
            self.inner, self.size = (x, 2), 3

    own = Own()
    assert replaced([1, (x, "a"), Pair(x, 2)], "p", make) == [1, ("p[1][0]", "a"), Pair("p[2].x", 2)]
    assert replaced(Config(x, 1), "c", make) == Config("c.x", 1)
    assert replaced(own, "o", make).inner == ("o.inner[0]", 2) and own.inner[0] is x
    plain = [1, (2.5, None), {"x": x}, Config(1, 2)]
    assert replaced(plain, "p", make) is plain
    assert seen == ["p[1][0]", "p[2].x", "c.x", "o.inner[0]"]


def test_streams_may_be_left_out_wherever_they_stand() -> None:
    import inspect

    def f(a, stream, b=2, *, main_stream: CUstream, c): ...  # type: ignore[no-untyped-def]  # noqa: F821

    signature = inspect.signature(f)
    assert bound(signature, (1,), {"c": 3}) == {"a": 1, "stream": None, "b": 2, "main_stream": None, "c": 3}
    assert bound(signature, (1, 5), {"c": 3})["b"] == 5
    assert bound(signature, (1, 9, 5), {"c": 3, "main_stream": 8}) == {
        "a": 1, "stream": 9, "b": 5, "main_stream": 8, "c": 3,
    }  # fmt: skip


def test_dlpack_of_a_gpu_tensor() -> None:
    torch = pytest.importorskip("torch")
    for value, code, bits in (
        (np.zeros((2, 3), np.float16), 2, 16), (torch.zeros(2, 3, dtype=torch.bfloat16), 4, 16),
        (torch.zeros(2, 3, dtype=torch.float8_e4m3fn), 10, 8), (np.zeros((2, 3), bool), 6, 8),
    ):  # fmt: skip
        tensor = GpuTensor(value, array_of(value), 1 << 40)
        words = tensor.managed.tensor
        assert (words.data, words.device.kind, words.rank, words.code, words.bits) == (1 << 40, CUDA, 2, code, bits)
        assert list(tensor.shape) == [2, 3] and list(tensor.strides) == [3, 1]
    with pytest.raises(EmulatorError, match="no code in DLPack"):
        GpuTensor(np.zeros(2, "datetime64[s]"), array_of(np.zeros(2, np.int64)), 0)
    assert array_of(Packed(np.zeros((1, 4), np.uint8), "e2m1")).shape == (1, 8)
