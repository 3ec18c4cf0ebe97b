"""Arrays as global memory: where they lie, what they share, and pointers that lead nowhere."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from layoutgemm.emulator.arguments import Array, Arrays, Packed, array_of
from layoutgemm.emulator.memory import GlobalMemory
from layoutgemm.errors import EmulatorError


def arrays(**values: Any) -> Arrays:
    return Arrays([(name, array) for name, value in values.items() if (array := array_of(value)) is not None])


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


def test_views_that_lie_apart_do_not() -> None:
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
    torch = pytest.importorskip("torch")
    x = torch.zeros(6, 10, dtype=torch.bfloat16)[:, 2:]
    found = array_of(x)
    at = x.data_ptr()
    assert found == Array(at, (6, 8), (10, 1), 16, at, at + 2 * 58, at - 4, True)


def test_elements_narrower_than_a_byte() -> None:
    """Extents and strides count elements, along whichever axis is contiguous; the bytes are those of the array."""
    memory = np.zeros((6, 40), np.uint8)
    found = array_of(Packed(memory[:, 8:], "e2m1"))
    assert found is not None and (found.shape, found.strides, found.bits) == ((6, 64), (80, 1), 4)
    assert found.high - found.low == 5 * 40 + 32
    columns = array_of(Packed(np.zeros((3, 8, 2), np.uint8).transpose(1, 2, 0)[:, :, 0].T, "u4"))
    assert columns is not None and (columns.shape, columns.strides) == ((4, 8), (1, 4))
    six = array_of(Packed(np.zeros((2, 48), np.int8), "e2m3"))
    assert six is not None and (six.shape, six.strides, six.bits) == ((2, 64), (64, 1), 6)
    for wrong, message in (
        (Packed(memory, "e4m3"), "narrower"),
        (Packed(np.zeros((2, 8), np.uint16), "e2m1"), "array of bytes"),
        (Packed(memory[:, ::2], "e2m1"), "side by side"),
        (Packed(np.zeros((2, 7), np.uint8), "e2m3"), "side by side"),
        (Packed(np.zeros(7, np.uint8), "e2m3"), "7 bytes hold no whole number"),
    ):
        with pytest.raises(EmulatorError, match=message):
            array_of(wrong)
    with pytest.raises(EmulatorError, match="3 elements of e2m1"):
        Packed.of(np.zeros(3, np.uint8), "e2m1")
    codes = np.random.default_rng(0).integers(0, 64, (3, 8))
    stream = Packed.of(codes, "e3m2").values
    for row, packed in zip(codes, stream, strict=True):
        assert int.from_bytes(packed.tobytes(), "little") == sum(int(c) << 6 * i for i, c in enumerate(row))


def test_torch_packs_two_of_e2m1_in_a_byte() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch, "float4_e2m1fn_x2"):
        pytest.skip("this torch has no float4_e2m1fn_x2")
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


def test_pointers_are_held() -> None:
    a = np.zeros(16, np.uint8)
    made = arrays(a=a)
    start = GlobalMemory.START
    made.hold([(0, start), (8, start + 16), (16, 5), (24, 0)], "k")
    with pytest.raises(EmulatorError, match="k: parameter byte 8 points to byte 17 of a"):
        made.hold([(8, start + 17)], "k")
    with pytest.raises(EmulatorError, match="address of this process"):
        made.hold([(0, array_of(a).address)], "k")
