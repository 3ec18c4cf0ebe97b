"""multimem: reductions over the memories of several devices, stores to all of them, and what is refused."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from layoutgemm.dtypes import dtype
from layoutgemm.emulator.machine.interpreter import Launch, PtxMachine
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.errors import EmulatorError, PtxError

from ..run_ptx import module, program

LANES = 4
# %d0: this lane's 16 bytes of the window; %d1: of the output
PLACE = "mov.u32 %r31, %tid.x; mul.wide.u32 %d31, %r31, 16; add.u64 %d0, %window, %d31; add.u64 %d1, %out, %d31;"


def run(body: str, parts: list[np.ndarray], out: np.ndarray, known: bool = True) -> None:
    """Run instructions on a window over the parts."""
    window, memory = np.zeros(parts[0].nbytes, np.uint8), GlobalMemory()
    low = window.__array_interface__["data"][0]

    def windows(address: int, size: int) -> list[np.ndarray] | None:
        first = address - low
        inside = known and 0 <= first < window.nbytes
        return [part.view(np.uint8).reshape(-1)[first : first + size] for part in parts] if inside else None

    memory.windows = windows
    addresses = [memory.add("window", window).address, memory.add("out", out).address]
    text = module(PLACE + body, {"window": "u64", "out": "u64"}, "sm_100a", False)
    launch = Launch((1, 1, 1), (LANES, 1, 1), struct.pack("<2Q", *addresses), memory)
    machine = PtxMachine(program(text), launch).run()
    assert not machine.findings.found and not window.any()


SUMS = [
    ("add.v4.f32", "f32", np.float32, "add"), ("add.acc::f32.v4.bf16x2", "bf16", np.uint16, "add"),
    ("add.acc::f32.v4.f16x2", "f16", np.float16, "add"), ("max.v4.f16x2", "f16", np.float16, "max"),
    ("add.acc::f16.v4.e4m3x4", "e4m3", np.uint8, "add"),
]  # fmt: skip


@pytest.mark.parametrize(("words", "name", "storage", "reduction"), SUMS)
def test_a_load_reduces_over_the_devices(words: str, name: str, storage: type, reduction: str) -> None:
    kind, random = dtype(name), np.random.default_rng(0)
    values = random.standard_normal((3, LANES * 16 // np.dtype(storage).itemsize)).astype(np.float32)
    parts = [np.asarray(kind.encode(one)).view(storage) for one in values]
    out = np.zeros(LANES * 16, np.uint8)
    registers = "{%r0, %r1, %r2, %r3}"
    run(f"multimem.ld_reduce.weak.global.{words} {registers}, [%d0]; st.global.v4.b32 [%d1], {registers};", parts, out)
    held = [np.asarray(kind.decode(part.view(kind.storage)), np.float32) for part in parts]
    wanted = (held[0] + held[1]) + held[2] if reduction == "add" else np.maximum.reduce(held)
    assert np.array_equal(out.view(kind.storage), np.asarray(kind.encode(wanted)))


def test_stores_and_reductions_reach_every_device() -> None:
    parts, out = [np.arange(16, dtype=np.uint32) * n for n in (1, 10)], np.zeros(16, np.uint32)
    before = [part.copy() for part in parts]
    run("multimem.red.relaxed.gpu.global.add.s32 [%d0], 5;", parts, out)
    for part, old in zip(parts, before, strict=True):
        assert np.array_equal(part, old + 5 * (np.arange(16) % 4 == 0))
    run(
        "mov.u32 %r0, %tid.x; setp.ne.u32 %p0, %r0, 2; @%p0 multimem.st.weak.global.v2.f32 [%d0], {%r0, %r31};",
        parts,
        out,
    )
    for part, old in zip(parts, before, strict=True):
        assert part.reshape(4, 4)[[0, 1, 3], 0].tolist() == [0, 1, 3] == part.reshape(4, 4)[[0, 1, 3], 1].tolist()
        assert part[8] == old[8] + 5


@pytest.mark.parametrize(
    ("body", "known", "says"),
    [
        ("multimem.red.relaxed.sys.global.add.u32 [%d0], 1;", False, "which is no multicast address"),
        ("multimem.red.relaxed.sys.global.add.u32 [%d1], 1;", True, "which is no multicast address"),
        ("ld.global.u32 %r0, [%d0];", True, "is a multicast address"),
        ("st.global.u32 [%d0], %r0;", True, "is a multicast address"),
        ("add.u64 %d0, %d0, 4; multimem.st.weak.global.v2.f32 [%d0], {%r31, %r31};", True, "not a multiple of"),
    ],
)
def test_what_is_refused_when_it_runs(body: str, known: bool, says: str) -> None:
    with pytest.raises(EmulatorError, match=says):
        run(body, [np.zeros(16, np.uint32)] * 2, np.zeros(16, np.uint32), known)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("multimem.ld_reduce.weak.global.and.f32 %f0, [%d0];", "of floats"),
        ("multimem.st.weak.global.add.f32 [%d0], %f0;", "with a reduction"),
        ("multimem.red.relaxed.sys.global.u32 [%d0], 1;", "without a reduction"),
        ("multimem.ld_reduce.weak.global.add.v4.f32 {%f0, %f1}, [%d0];", "another number of registers"),
        ("multimem.ld_reduce.weak.shared.add.f32 %f0, [%d0];", "shared is not emulated"),
    ],
)
def test_forms_that_ptx_does_not_have(text: str, says: str) -> None:
    with pytest.raises(PtxError, match=says):
        run(text, [np.zeros(16, np.uint32)], np.zeros(16, np.uint32))
