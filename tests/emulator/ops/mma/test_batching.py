"""Products in a row that are multiplied together: as if they had been executed one by one."""

from __future__ import annotations

import re

import numpy as np
import pytest

from layoutgemm.atoms.mma.sync import mma_sync
from layoutgemm.emulator.machine.interpreter import PtxMachine
from layoutgemm.emulator.machine.launch import Launch, Policy, Watch
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.ops.mma import sync as module
from layoutgemm.emulator.ops.mma.batching import instructions_in_a_row
from tests.emulator.run_ptx import Result, program, run
from tests.emulator.run_ptx import module as text_of

ATOMS = [
    mma_sync((16, 8, 16), "bf16"),
    mma_sync((16, 8, 16), "f16", c="f16"),
    mma_sync((16, 8, 8), "tf32"),
    mma_sync((16, 8, 32), "e4m3"),
    mma_sync((16, 8, 32), "i8", saturate=True),
    mma_sync((16, 8, 16), "f64"),
]


def grid(atom, a: int, b: int, rounds: int = 2, after: str = "") -> tuple[str, dict[str, np.ndarray]]:
    """`a` A's times `b` B's into accumulators of their own, over and over; every register comes from a buffer.

    after  what follows each round; {c} is the first register of the first accumulator
    """
    width = 64 if atom.a_dtype.bits == 64 else 32
    letter = "d" if width == 64 else "r"
    count = {name: max(1, atom.registers(name) * 32 // width) for name in "ABC"}
    at, lines = 0, ["mov.u32 %r95, %tid.x;", f"mul.wide.u32 %d95, %r95, {width // 8};", "add.u64 %d94, %d95, %x;"]
    groups: dict[str, list[list[str]]] = {}
    for name, copies in (("A", a), ("B", b), ("C", a * b)):
        for _ in range(copies):
            names = [f"%{letter}{at + i}" for i in range(count[name])]
            for i, register in enumerate(names):
                lines.append(f"ld.global.b{width} {register}, [%d94+{(at + i) * 4 * width}];")
            groups.setdefault(name, []).append(names)
            at += count[name]
    for _ in range(rounds):
        for n, c in enumerate(groups["C"]):
            vectors = [c, groups["A"][n // b], groups["B"][n % b], c]
            lines.append(f"{atom.ptx} " + ", ".join("{" + ", ".join(v) + "}" for v in vectors) + ";")
        lines.append(after.replace("{c}", groups["C"][0][0]))
    lines.append("add.u64 %d94, %d95, %y;")
    for c in groups["C"]:
        for register in c:
            at_ = int(register[2:])
            lines.append(f"st.global.b{width} [%d94+{at_ * 4 * width}], {register};")
    rng = np.random.default_rng(a * b)
    kind = atom.a_dtype
    raw = kind.encode(rng.integers(0, 4, (at, 32, width // kind.bits))).view(f"u{width // 8}").reshape(at, 32)
    raw = np.ascontiguousarray(raw)
    first = (count["A"] * a) + count["B"] * b
    acc = atom.c_dtype
    raw[first:] = (
        acc.encode(rng.integers(0, 9, (at - first, 32, width // acc.bits))).view(f"u{width // 8}").reshape(-1, 32)
    )
    return "\n".join(lines), {"x": raw, "y": np.zeros_like(raw)}


def both(atom, a: int, b: int, monkeypatch: pytest.MonkeyPatch, after: str = "") -> tuple[Result, Result]:
    """Together, and one by one: that is decided where a program is loaded, so each loads its own."""
    text, buffers = grid(atom, a, b, after=after)
    program.cache_clear()
    together = run(text, buffers, target="sm_90a")
    text, buffers = grid(atom, a, b, after=after)
    with monkeypatch.context() as patch:
        patch.setattr(module, "_run_from", lambda *_: None)
        program.cache_clear()
        apart = run(text, buffers, target="sm_90a")
    program.cache_clear()
    return together, apart


@pytest.mark.parametrize("atom", ATOMS, ids=lambda atom: atom.ptx)
@pytest.mark.parametrize("a,b", ((2, 3), (1, 4), (4, 1)))
def test_a_batch_equals_single_instructions(atom, a: int, b: int, monkeypatch: pytest.MonkeyPatch):
    if atom.a_dtype.bits == 64 and a * b > 4:
        a, b = 1, 3
    calls: list[int] = []
    whole = module.InstructionRun.go
    monkeypatch.setattr(module.InstructionRun, "go", lambda self, fiber: calls.append(self.count) or whole(self, fiber))
    together, apart = both(atom, a, b, monkeypatch)
    assert calls == [a * b, a * b] and together["y"].any()
    assert np.array_equal(together["y"], apart["y"])
    assert together.machine.counts.instructions == apart.machine.counts.instructions
    assert together.machine.counts.executed == apart.machine.counts.executed
    assert together.machine.operations == apart.machine.operations


def test_accumulators_that_change_between_two_runs(monkeypatch: pytest.MonkeyPatch):
    together, apart = both(mma_sync((16, 8, 32), "i8"), 2, 2, monkeypatch, "add.u32 {c}, {c}, 1;")
    assert np.array_equal(together["y"], apart["y"])
    same, _ = both(mma_sync((16, 8, 32), "i8"), 2, 2, monkeypatch)
    assert not np.array_equal(together["y"], same["y"])


def row(text: str, first: int = 0) -> list[int]:
    """Positions of the products that form a run with the given one."""
    made = program(text_of(text, {}))
    products = [ins for ins in made.kernel.instructions if ins.words[0] == "mma"]
    return [products.index(ins) for ins in instructions_in_a_row(made, products[first])]


MMA = "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {D}, {%r20, %r21, %r22, %r23}, {%r24, %r25}, {C};"


def one(d: int, c: int) -> str:
    vectors = [", ".join(f"%r{first + i}" for i in range(4)) for first in (d, c)]
    return MMA.replace("{D}", "{" + vectors[0] + "}").replace("{C}", "{" + vectors[1] + "}")


def test_where_a_row_ends():
    assert row(one(0, 0) + one(4, 4) + one(8, 8)) == [0, 1, 2]
    assert row(one(0, 0) + one(4, 0) + one(8, 8)) == [0]  # the second reads what the first wrote
    assert row(one(0, 0) + one(4, 4) + one(8, 0)) == [0, 1]
    assert row(one(0, 4) + one(4, 8) + one(8, 12)) == [0, 1, 2]  # written after it was read
    assert row(one(0, 0) + "L: " + one(4, 4)) == [0]
    assert row(one(0, 0) + "L: " + one(4, 4) + one(8, 8), 1) == [1, 2]
    assert row(one(0, 0) + "@%p0 " + one(4, 4)) == [0]
    assert row(one(0, 0) + "mov.u32 %r50, 0;" + one(4, 4)) == [0]
    assert row(one(0, 0) + one(4, 4).replace("bf16.bf16", "f16.f16")) == [0]
    assert row("".join(one(0, 4) for _ in range(80))) == list(range(64))


def test_unusual_operands_run_one_by_one():
    """An unwritten register is named with its instruction; constants and uniform values multiply."""
    zeros = "".join(f"mov.b32 %r{i}, 0;" for i in (*range(12), *range(20, 25)))
    text = zeros + one(0, 0) + one(4, 4) + one(8, 8).replace("%r23", "%r40")
    found = run(text).machine.suspects.found
    assert "register %r25 is read and was never written" in found[0].message
    assert re.search(r"mma\.sync.*%r0", found[0].text)
    (found,) = run(text.replace("mov.b32 %r24, 0;", "mov.b32 %r24, 0; mov.b32 %r25, 0;")).machine.suspects.found
    assert "register %r40 is read and was never written" in found.message
    assert re.search(r"mma\.sync.*%r8", found.text)
    out = np.zeros(32, np.uint32)
    ones = text.replace("0;", "0x3f803f80;").replace("%r40", "%r23")
    ones = ones.replace("mov.b32 %r24,", "mov.b32 %r25, 0x3f803f80; mov.b32 %r24,")
    ones += "mov.u32 %r90, %tid.x; mul.wide.u32 %d0, %r90, 4; add.u64 %d0, %d0, %out; st.global.b32 [%d0], %r8;"
    run(ones, {"out": out})
    assert (out.view(np.float32) == 16 + np.uint32(0x3F803F80).view(np.float32)).all()


def test_a_diverged_warp_is_reported_once():
    zeros = "".join(f"mov.b32 %r{i}, 0;" for i in (*range(12), *range(20, 26)))
    text = zeros + "mov.u32 %r90, %tid.x; setp.lt.u32 %p0, %r90, 16; @%p0 bra END;" + one(0, 0) + one(4, 4) + one(8, 8)
    assert run(text + "END:").kinds == ["divergence"]


def test_a_run_is_as_long_as_its_products_in_a_timeline():
    text, buffers = grid(ATOMS[0], 2, 3, 1)
    memory = GlobalMemory()
    addresses = [memory.add(name, array).address.to_bytes(8, "little") for name, array in buffers.items()]
    launch = Launch((1, 1, 1), (32, 1, 1), b"".join(addresses), memory)
    made = program(text_of(text, {"x": "u64", "y": "u64"}))
    machine = PtxMachine(made, launch, Policy(), watch=Watch(timeline=True)).run()
    assert machine.recorder is not None
    (span,) = [s for r in machine.recorder.timeline().rows for s in r.spans if s.kind == "mma"]
    assert (span.times, span.end - span.begin) == (6, 6)
