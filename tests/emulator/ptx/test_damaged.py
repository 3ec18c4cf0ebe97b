"""Damaged and hostile PTX: read and run, or refused with an error of the library that names the place."""

from __future__ import annotations

import random
import re

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.emulator.machine.interpreter import Launch, Policy, PtxMachine
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.ops import build
from layoutgemm.emulator.ptx.parser import parse
from layoutgemm.emulator.ptx.program import Program
from layoutgemm.errors import DeadlockError, EmulatorError, LayoutError, PtxError
from tests.emulator.ops.test_memory import HISTOGRAM
from tests.emulator.run_ptx import module

LOOP = """
.reg .pred ready; mov.u32 %r0, %tid.x; mov.u32 %r1, smem; mov.u32 %r2, fixed; setp.eq.u32 %p0, %r0, 0;
@%p0 mbarrier.init.shared.b64 [%r2], 64; bar.sync 0; cvt.u64.u32 %d0, %r0; mad.lo.u32 %r3, %r0, 4, %r1;
{ .reg .b32 t; .reg .pred p; mov.u32 t, 3; L: sub.u32 t, t, 1; setp.ne.u32 p, t, 0; @p bra L; mov.u32 %r4, t; }
st.shared.v2.b32 [%r1+128], {%r3, %r4}; mbarrier.arrive.shared.b64 %d1, [%r2];
wait: mbarrier.try_wait.parity.shared.b64 ready, [%r2], 0; @!ready bra wait;
shfl.sync.bfly.b32 %r5|%p1, %r3, 1, 31, -1; selp.b32 %r5, %r5, 7, %p1; mov.b64 {%r6, %r7}, %d0;
ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r8, %r9}, [%r1]; prmt.b32 %r9, %r8, %r5, 0x5410;
mov.b32 %f0, 0f3F800000; fma.rn.f32 %f1, %f0, %f0, %f0; cvt.rn.bf16x2.f32 %r10, %f1, %f0; bfe.u32 %r11, %r10, 4, 9;
add.u64 %d3, %x, 16; atom.global.add.u32 %r12, [%d3+-4], 1; @%p0 st.global.b32 [%x], %r10; bar.warp.sync -1;
"""
MODULES = [
    (module(HISTOGRAM, {"x": "u64", "h": "u64", "n": "u32"}), 2),
    (module(LOOP, {"x": "u64"}, static=16), 1),
]
HOSTILE = (
    "", "-1", "99999999999", "0x", "0xFFFFFFFFFFFFFFFFFF", "%r9999", "<", ">", "[", "]", "{", "}", "(", ")", ".v4",
    "0f", "_", "|", "!", "@", ":", ",", ";", "\0", "é", "٣", "//", "/*", "+", "-", ".", "%p0", "%tid.x", "%d0", "ret;",
    ".reg", ".shared", ".param", "<2>", "[0]", "[-4]", ".b128", ".pred", "08", "%clock64", ".loc 1 2", "\n", ".align 3",
    "bra", "\ud800", "{%r1}", "[%r1", "1e9", ".u13", ".u32", ".f32", ".s8",
)  # fmt: skip


def damaged(text: str, rng: random.Random) -> str:
    """The text with one to three characters, tokens or statements deleted, replaced, doubled or exchanged."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        whole = re.compile(r"[^;]*;|.+$" if rng.random() < 0.3 else r"[%$\w.]+|\s+|.", re.S)
        parts = list(text) if rng.random() < 0.2 else whole.findall(text)
        at, other = rng.randrange(len(parts)), rng.randrange(len(parts))
        way = rng.randrange(5)
        if way == 0:
            del parts[at]
        elif way == 1:
            parts.insert(other, parts[at])
        elif way == 2:
            parts[at], parts[other] = parts[other], parts[at]
        elif way == 3:
            parts[at] = parts[other]
        else:
            parts[at] = rng.choice(HOSTILE)
        text = "".join(parts) or " "
    return text


def attempt(text: str, pointers: int) -> str:
    """Run the first kernel for a while; what was refused, or ""."""
    memory = GlobalMemory()
    addresses = [memory.add(f"b{n}", np.arange(512, dtype=np.uint8) % 16).address for n in range(pointers)]
    parameters = b"".join([address.to_bytes(8, "little") for address in addresses]) + (100).to_bytes(4, "little")
    try:
        kernel = parse(text)[0]
        launch = Launch((1, 1, 1), (64, 1, 1), parameters, memory, (1, 1, 1), 1024)
        PtxMachine(Program(kernel, build), launch, Policy(limit=5000)).run()
    except LayoutError as error:
        str(error).encode()
        return f"{type(error).__name__}: {error}"
    return ""


@pytest.mark.parametrize("number", range(len(MODULES)))
def test_damaged_modules(number: int) -> None:
    text, pointers = MODULES[number]
    assert not attempt(text, pointers)
    rng = random.Random(number)
    outcomes = [attempt(damaged(text, rng), pointers) for _ in range(400)]
    assert 30 < sum(not said for said in outcomes) < 370
    for said in outcomes:
        if said and not said.startswith("DeadlockError"):  # which names each warp that waits
            assert "PTX line" in said or "different findings" in said, said


def kernel(body: str, parameters: str = "", head: str = "", directives: str = "") -> str:
    return f".version 8.0\n.target sm_90a\n{head}.visible .entry k({parameters}) {directives}\n{{\n{body}\n}}\n"


BOUNDS = {
    "registers": (kernel(".reg .b32 %r<100000000>; ret;"), "line 5: .*more than 131072 registers"),
    "registers, twice": (kernel(".reg .b32 %r<99999>;\n.reg .b32 %s<99999>; ret;"), "line 6: .*more than 131072"),
    "digits of a count": (kernel(f".reg .b32 %r<{'9' * 5000}>; ret;"), "line 5: cannot read the declaration"),
    "digits of an offset": (kernel(f".reg .b64 %d; ld.global.b64 %d, [%d+{'9' * 5000}]; ret;"), "line 5"),
    "digits of a constant": (kernel(f".reg .b64 %d; mov.u64 %d, {'9' * 5000}; ret;"), "line 5: .*64 bits"),
    "scopes": (kernel("{" * 100000 + "ret;" + "}" * 100000), "line 5: more than 256 scopes"),
    "brackets": (kernel("mov.u32 " + "[" * 100000 + "]" * 100000 + ";"), "line 5: .*more than 64 brackets"),
    "braces": (kernel("mov.u32 " + "{" * 100000 + "}" * 100000 + ";"), "line 5: .*more than 64 brackets"),
    "a comment": (kernel("ret;") + "/*" * 100000, "line 7: the comment does not end"),
    "entries": (".target sm_90\n" + ".entry k(x " * 50000, "line 2: the kernel k has no body"),
    "shared memory": (kernel("ret;", head=".shared .b8 x[999999999];\n"), "line 3: .*999999999 bytes of shared"),
    "two extents": (kernel("ret;", head=".shared .b8 x[9999][9999];\n"), "line 3: .*99980001 bytes of shared"),
    "all shared memory": (
        kernel("".join(f".shared .b8 x{n}[16000000];" for n in range(9)) + "ret;"),
        "x1 ends at byte",
    ),
    "an alignment of 0": (kernel("ret;", head=".shared .align 0 .b8 x[9];\n"), "line 3: .*alignment of 0"),
    "an alignment of 3": (kernel("ret;", ".param .align 3 .b8 x[9]"), "line 3: .*alignment of 3"),
    "parameters": (kernel("ret;", ".param .b8 x[999999999]"), "line 3: .*parameters have 32764 bytes"),
    "words of a parameter": (kernel("ret;", ".param .u64 .ptr" + " .align 8" * 9999 + " x"), "line 3: .*cannot be"),
    "a type": (kernel("ret;", ".param .u33 x"), "line 3: .*not a type"),
    "half a character": (kernel("mov.u32 \ud800, 1; ret;"), "line 5"),
    "no instructions": (kernel(""), "line 3: the kernel k has no instructions"),
    "a label twice": (kernel("a: a: ret;"), "line 5: the label a stands twice"),
    "a directive": (kernel(".retl; ret;"), "line 5: .*not emulated"),
    "a guard": (kernel(".reg .b32 %r; @%r ret;"), "line 5: .*guard %r"),
    "a special register": (kernel(".reg .b32 %r; mov.u32 %r, %tidx; ret;"), "line 5: .*%tidx is neither"),
    "no target": (kernel("ret;").replace(".target", ""), "line 1: no .target"),
    "nothing": ("", "line 1"),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_out_of_bounds_declarations_are_refused_with_their_line(name: str) -> None:
    text, says = BOUNDS[name]
    with pytest.raises(PtxError, match=says if "ends at" in says else f"PTX {says}"):
        emulate_ptx(text + "\n", block=1, progress=False)


@pytest.mark.parametrize(
    ("directives", "arguments", "says"),
    [
        (".reqntid 999999999", {}, "a block of"), (".reqnctapercluster 999999", {}, "a cluster of"),
        ("", {"block": (1024, 2)}, "2048 threads, and 1024 are the most"), ("", {"grid": (1, 70000)}, "a grid of"),
        ("", {"smem": 1 << 40}, "dynamic shared memory"), ("", {"grid": 1 << 30}, "are not emulated"),
        ("", {"grid": 17, "cluster": 17}, "a cluster of"),
    ],
)  # fmt: skip
def test_launches_that_no_gpu_takes(directives: str, arguments: dict[str, object], says: str) -> None:
    with pytest.raises(EmulatorError, match=says):
        emulate_ptx(kernel("ret;", directives=directives), progress=False, **arguments)


@pytest.mark.parametrize(
    ("target", "most"),
    [("sm_80", 166912), ("sm_89", 101376), ("sm_90", 232448), ("sm_100a", 232448), ("sm_120a", 101376)],
)
def test_static_and_dynamic_shared_memory_of_a_block_are_limited(target: str, most: int) -> None:
    text = kernel(".shared .align 16 .b8 x[16]; ret;").replace(".target sm_90a", f".target {target}")
    assert f".target {target}" in text and emulate_ptx(text, block=1, smem=most - 16, progress=False).ok
    with pytest.raises(EmulatorError, match=f"16 bytes of static and {most - 15} of dynamic .* has {most} at most"):
        emulate_ptx(text, block=1, smem=most - 15, progress=False)


@pytest.mark.parametrize(("target", "most"), [("sm_80", 1), ("sm_90", 16), ("sm_100a", 16), ("sm_120a", 8)])
def test_clusters_are_limited(target: str, most: int) -> None:
    text = kernel("ret;").replace(".target sm_90a", f".target {target}")
    assert emulate_ptx(text, block=1, grid=most, cluster=most, progress=False).ok
    with pytest.raises(EmulatorError, match=f"a cluster of .{most + 1}"):
        emulate_ptx(text, block=1, grid=most + 1, cluster=most + 1, progress=False)


def test_a_loop_without_end_is_ended() -> None:
    for body in ("L: bra L;", ".reg .b32 %r; mov.u32 %r, 0; L: add.u32 %r, %r, 1; bra L;"):
        with pytest.raises(DeadlockError, match="1000 operations: a livelock"):
            emulate_ptx(kernel(body), block=32, policy=Policy(limit=1000), progress=False)


def test_shared_symbols_of_several_extents() -> None:
    (found,) = parse(kernel(".shared .align 4 .b32 x[3][5]; ret;"))
    assert found.shared[0].size == 60
