"""Pointers in memory: followed into arrays that the calling functions hold, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.emulator.api import ORDERS, Orders
from layoutgemm.errors import EmulatorError
from tests import needs
from tests.emulator.run_ptx import module

# Lane i adds 1 to the word at table[i] + offset, and gives what was there.
ADD = "ld.global.u32 %r1, [%d2]; add.u32 %r2, %r1, 1; st.global.u32 [%d2], %r2;"
READ = "ld.global.u32 %r1, [%d2];"
FOLLOW = """
mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 8; add.u64 %d0, %d0, %table; ld.global.u64 %d1, [%d0];
cvt.u64.u32 %d3, %offset; add.u64 %d2, %d1, %d3; {0}
mul.wide.u32 %d4, %r0, 4; add.u64 %d4, %d4, %out; st.global.u32 [%d4], %r1;
"""


class Holder:
    """An object that keeps arrays."""

    def __init__(self, *arrays: np.ndarray) -> None:
        self.arrays = list(arrays)


def address(array: np.ndarray) -> int:
    return int(array.ctypes.data)


def follow(
    table: list[int], offset: int = 0, body: str = ADD, policy: Orders = None, given: np.ndarray | None = None
) -> list[int]:
    """The bytes at the addresses in the table."""
    names = {"table": "u64", "out": "u64", "offset": "u32"} | ({} if given is None else {"given": "u64"})
    out = np.zeros(len(table), np.uint32)
    args = [np.array(table, np.uint64), out, offset, *([] if given is None else [given])]
    text = module(FOLLOW.format(body), names)
    done = emulate_ptx(text, block=len(table), args=args, policy=policy, smem=64, progress=False)
    return done.raise_for_findings() and out.tolist()


def test_lanes_follow_pointers_of_their_own() -> None:
    a, b = np.array([7, 8], np.uint32), np.array([9, 10, 11], np.uint32)
    assert follow([address(a), address(b)], 4) == [8, 10]
    assert a.tolist() == [7, 9] and b.tolist() == [9, 11, 11]
    with pytest.raises(EmulatorError, match="lies in no buffer"):
        follow([address(a), address(b)], 1 << 20)


def test_generic_loads_follow_pointers_anywhere_in_the_process() -> None:
    """A large array, mapped near 2**47, is in neither shared nor local memory."""
    large = np.arange(1 << 20, dtype=np.uint32)
    body = "isspacep.shared %p0, %d2; isspacep.local %p1, %d2; or.pred %p0, %p0, %p1; "
    body += "ld.u32 %r1, [%d2]; @%p0 mov.u32 %r1, 1;"
    for offset in (0, 4 * 77, 4 * 999999):
        assert follow([address(large)], offset, body) == [offset // 4]
    assert address(large) > 1 << 40


def test_arrays_of_lists_and_objects() -> None:
    held = Holder(np.array([5], np.uint32))
    assert follow([address(held.arrays[0])]) == [5]
    torch = needs.module("torch")
    tensors = [torch.tensor([20, 21], dtype=torch.int32), torch.tensor([30], dtype=torch.int32)]
    assert follow([one.data_ptr() for one in tensors]) == [20, 30] and tensors[0].tolist() == [21, 21]


def test_every_order_starts_from_the_same_content() -> None:
    part = np.arange(8, dtype=np.uint32)
    both = ADD.replace("ld.global.u32 %r1", "st.global.u32 [%given], 50; ld.global.u32 %r1")
    assert follow([address(part)], 20, both, ORDERS, part[:4]) == [5]
    assert part.tolist() == [50, 1, 2, 3, 4, 6, 6, 7]


def test_a_repeated_run_keeps_its_writes_through_pointers() -> None:
    """It reads uninitialised shared memory, so it runs again with other bytes there."""
    a = np.array([7], np.uint32)
    unwritten = "mov.u32 %r9, smem; ld.shared.b32 %r8, [%r9]; and.b32 %r8, %r8, 0; add.u32 %r2, %r2, %r8;"
    body = ADD.replace("st.global", f"{unwritten} st.global")
    assert follow([address(a)], body=body) == [7] and a.tolist() == [8]
    with pytest.raises(EmulatorError, match="uninitialised"):  # the array followed depends on them
        follow([address(a)], body=body.replace("and.b32 %r8, %r8, 0;", ""))


def test_a_pointer_to_an_argument_is_that_argument() -> None:
    given = np.array([3, 4], np.uint32)
    assert follow([address(given)], 0, "st.global.u32 [%given], 9; " + ADD, None, given) == [9]
    assert given.tolist() == [10, 4]
    with pytest.raises(EmulatorError, match=r"8 bytes|lies in no buffer"):
        follow([address(given)], 8, READ, None, given)


def test_an_address_beyond_an_argument_is_an_error() -> None:
    for body in ("add.u64 %d1, %given, 8;", "sub.u64 %d1, %given, 4;"):
        with pytest.raises(EmulatorError, match=r"is byte 8 of buffer given|lies in no buffer"):
            text = module(f"{body} ld.global.u32 %r0, [%d1];", {"given": "u64"})
            emulate_ptx(text, block=1, args=[np.zeros(2, np.uint32)], progress=False)
    for gone in (0, 8, 1 << 40, (1 << 64) - 8):
        with pytest.raises(EmulatorError, match="lies in no buffer"):
            follow([gone])
