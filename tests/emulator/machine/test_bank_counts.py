"""Bank conflicts counted over a run, against a count by hand; instructions by their lines, and the table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.cli.main import main
from layoutgemm.emulator.findings import Counts
from layoutgemm.emulator.machine.bank_counts import BankUse, wavefronts
from layoutgemm.emulator.machine.interpreter import PtxMachine
from layoutgemm.emulator.machine.launch import Launch, Watch
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.machine.sector_counts import SectorUse
from tests.emulator.run_ptx import module, program


def uses(body: str, block: int = 32) -> dict[str, BankUse]:
    """Opcode -> what it did, of a body over 16 KiB of shared memory; %r31 is the thread, %r30 where it begins."""
    head = "mov.u32 %r31, %tid.x; mov.u32 %r30, smem; mov.b32 %r29, 0; mov.f32 %f0, 0f00000000;"
    made = program(module(head + body, {}))
    launch = Launch((1, 1, 1), (block, 1, 1), b"", GlobalMemory(), dynamic_shared=1 << 14)
    machine = PtxMachine(made, launch, watch=Watch(banks=True)).run()
    return {made.kernel.instructions[pc].opcode: use for pc, use in machine.counts.banks.items()}


def test_patterns_of_words_against_a_count_by_hand():
    """32 lanes of 4 bytes are one phase: the most different words that any of the 32 banks has to give."""
    rng = np.random.default_rng(1)
    for _ in range(50):
        words = rng.integers(0, 96, 32)
        lanes = int(rng.integers(1, 1 << 32))
        taking = [int(word) for lane, word in enumerate(words) if lanes >> lane & 1]
        by_bank = [{word for word in taking if word % 32 == bank} for bank in range(32)]
        expected = (max(map(len, by_bank)), -(-len(set(taking)) // 32))
        for base in (0, 1024, 1028, 1160):  # any base turns all banks alike
            found = wavefronts("ld.shared", 4, base + 4 * np.array(taking), lanes)
            assert found == (*expected, expected[0])


@pytest.mark.parametrize("stride,ways", ((4, 1), (8, 2), (128, 32), (132, 1), (0, 1)))
def test_strides(stride: int, ways: int):
    body = f"mad.lo.u32 %r0, %r31, {stride}, %r30; st.shared.b32 [%r0], %r29; ld.shared.b32 %r1, [%r0];"
    for use in uses(body).values():
        assert (use.requests, use.wavefronts, use.minimum, use.ways) == (1, ways, 1, ways)


def test_widths_and_idle_lanes():
    wide = "mad.lo.u32 %r0, %r31, 16, %r30; st.shared.v4.b32 [%r0], {%r29, %r29, %r29, %r29};"
    assert uses(wide)["st.shared.v4.b32"] == BankUse(1, 4, 4, 1)
    byte = "add.u32 %r0, %r31, %r30; st.shared.b8 [%r0+3], %r29;"
    assert uses(byte)["st.shared.b8"] == BankUse(1, 1, 1, 1)
    few = "mad.lo.u32 %r0, %r31, 128, %r30; setp.lt.u32 %p0, %r31, 5; @%p0 st.shared.b32 [%r0], %r29;"
    assert uses(few)["st.shared.b32"] == BankUse(1, 5, 1, 5)
    generic = "cvt.u64.u32 %d1, %r30; cvta.shared.u64 %d0, %d1; st.b32 [%d0], %r29;"
    assert uses(generic)["st.b32"] == BankUse(1, 1, 1, 1)


def test_bytes_keep_their_words_and_lanes_their_phases():
    # Bytes 3 and 132 are in words 0 and 33, of banks 0 and 1, wherever the lower one is in its word.
    assert wavefronts("ld.shared", 1, np.array([3, 132]), 0b11) == (1, 1, 1)
    # Lanes 0 and 8 of 16 bytes each are served apart; lanes 0 and 1 together.
    assert wavefronts("st.shared", 16, np.array([0, 128]), 0b100000001)[2] == 1
    assert wavefronts("st.shared", 16, np.array([0, 128]), 0b11)[2] == 2


def test_executions_add_up():
    body = """mad.lo.u32 %r0, %r31, 8, %r30; mov.u32 %r2, 0;
    LOOP: st.shared.b32 [%r0], %r29; add.u32 %r0, %r0, 4; add.u32 %r2, %r2, 1; setp.lt.u32 %p0, %r2, 3;
    @%p0 bra LOOP;"""
    assert uses(body, 64)["st.shared.b32"] == BankUse(6, 12, 6, 2)


def test_matrices_by_their_rows():
    """Eight rows of 16 bytes: in the same banks at a pitch of 128 bytes, apart at 144 or swizzled."""
    store = "stmatrix.sync.aligned.m8n8.x4.shared.b16 [%r0], {%r29, %r29, %r29, %r29};"
    load = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r0];"
    for place, ways in (
        ("mad.lo.u32 %r0, %r31, 128, %r30;", 8),
        ("mad.lo.u32 %r0, %r31, 144, %r30;", 1),
        ("and.b32 %r5, %r31, 7; shl.b32 %r5, %r5, 4; mad.lo.u32 %r0, %r31, 128, %r5; add.u32 %r0, %r0, %r30;", 1),
    ):
        found = uses(place + store + load)
        assert found["stmatrix.sync.aligned.m8n8.x4.shared.b16"] == BankUse(1, 4 * ways, 4, ways)
        assert found["ldmatrix.sync.aligned.m8n8.x2.shared.b16"] == BankUse(1, 2 * ways, 2, ways)


def test_other_accesses():
    atomic = uses("mad.lo.u32 %r0, %r31, 8, %r30; st.shared.b32 [%r0], %r29; atom.shared.add.u32 %r1, [%r0], 1;")
    assert atomic["atom.shared.add.u32"] == BankUse(1, 2, 1, 2)
    copy = """mad.lo.u32 %r0, %r31, 32, %r30; cvt.u64.u32 %d1, %r31; mul.lo.u64 %d1, %d1, 16; add.u64 %d0, %d1, %x;
    cp.async.cg.shared.global [%r0], [%d0], 16; cp.async.wait_all;"""
    memory = GlobalMemory()
    address = memory.add("x", np.zeros(512, np.uint8)).address
    made = program(module("mov.u32 %r31, %tid.x; mov.u32 %r30, smem;" + copy, {"x": "u64"}))
    launch = Launch((1, 1, 1), (32, 1, 1), address.to_bytes(8, "little"), memory, dynamic_shared=2048)
    assert list(PtxMachine(made, launch, watch=Watch(banks=True)).run().counts.banks.values()) == [BankUse(1, 8, 4, 2)]
    # Another block's memory is reached over the cluster's network.
    remote = "mapa.shared::cluster.u32 %r1, %r30, 0; st.shared::cluster.b32 [%r1], %r29;"
    assert uses(remote)["st.shared::cluster.b32"] == BankUse(1, 1, 1, 1)


TEXT = """
.version 8.0
.target sm_80
.file 1 "columns.py"
.visible .entry columns(.param .u64 y) .reqntid 32, 1, 1
{
.shared .align 16 .b8 tile[4096];
.reg .b32 %r<9>; .reg .b64 %d<9>;
ld.param.u64 %d0, [y]; mov.u32 %r0, %tid.x; mov.u32 %r1, tile; mad.lo.u32 %r2, %r0, 128, %r1;
mad.lo.u32 %r3, %r0, 4, %r1; mul.wide.u32 %d1, %r0, 4; add.u64 %d0, %d0, %d1;
.loc 1 7 0
st.shared.b32 [%r2], %r0;
.loc 1 8 0
st.shared.b32 [%r3], %r0;
atom.shared.add.u32 %r5, [%r2], 1;
.loc 1 9 0
ld.shared.b32 %r4, [%r3];
st.global.b32 [%d0], %r4;
ret;
}
"""


def test_the_table_names_lines_and_excess_wavefronts():
    done = emulate_ptx(TEXT, args=[np.zeros(32, np.uint32)], banks=True)
    report = done.report()
    assert "shared memory: 4 accesses take at least 66 wavefronts, at best 4; those of atomics are lower" in report
    lines = [line.split() for line in report.splitlines() if "shared." in line and "columns.py" in line]
    assert lines[0][1:] == ["1", "32", "1", "32", "st.shared.b32", "columns.py:7"]
    assert lines[1][1:] == ["1", ">=32", "1", "32", "atom.shared.add.u32", "columns.py:8"]
    assert len(lines) == 2  # free of conflicts: not in the table
    rows = done.as_json()["launches"][0]["banks"]
    assert [row["wavefronts"] for row in rows] == [32, 32, 1, 1] and [row["at_least"] for row in rows][1]
    assert "wavefronts" not in emulate_ptx(TEXT, args=[np.zeros(32, np.uint32)]).report()


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path = tmp_path / "columns.ptx"
    path.write_text(TEXT)
    assert main(["emulate", str(path), "--arg", "i32:32", "--banks"]) == 0
    assert "wavefronts  ideal  ways" in capsys.readouterr().out
    assert main(["emulate", str(path), "--arg", "i32:32", "--banks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["launches"][0]["banks"][0]["source"] == "columns.py:7"


def test_counts_of_two_runs_add_up():
    one, two = (
        Counts(executed=bytearray(4), banks={3: BankUse(1, 4, 1, 4)}, sectors={1: SectorUse(1, 32, 4)})
        for _ in range(2)
    )
    two.banks[2] = BankUse(1, 1, 1, 1)
    one.merge(two)
    assert one.banks == {3: BankUse(2, 8, 2, 4), 2: BankUse(1, 1, 1, 1)} and one.sectors == {1: SectorUse(2, 64, 8)}


def moved(body: str, block: int = 32) -> dict[str, SectorUse]:
    """Opcode -> sectors, of a body over 16 KiB of global memory at %x; %r31 is the thread."""
    done = emulate_ptx(
        module(f"mov.u32 %r31, %tid.x; mov.u32 %r30, smem; {body}", {"x": "u64"}), block=block, smem=4096, banks=True,
        args=[np.zeros(1 << 14, np.uint8)],
    )  # fmt: skip
    return {row.ins.opcode: row.use for row in done.launches[0].sectors}


@pytest.mark.parametrize(
    ("stride", "opcode", "values", "expected"),
    [(4, "ld.global.b32", "%r0", (1, 4, 4)), (8, "ld.global.b32", "%r0", (1, 8, 4)),
     (128, "ld.global.b32", "%r0", (1, 32, 4)), (0, "ld.global.b32", "%r0", (1, 1, 1)),
     (16, "ld.global.v4.b32", "{%r0, %r1, %r2, %r3}", (1, 16, 16)), (32, "ld.global.u8", "%r0", (1, 32, 1)),
     (256, "ld.global.nc.v2.b32", "{%r0, %r1}", (1, 32, 8))],
)  # fmt: skip
def test_sectors_of_strides(stride: int, opcode: str, values: str, expected: tuple[int, int, int]) -> None:
    body = f"mul.wide.u32 %d0, %r31, {stride}; add.u64 %d0, %d0, %x; {opcode} {values}, [%d0];"
    assert moved(body)[opcode] == SectorUse(*expected)


def test_sectors_of_other_accesses() -> None:
    body = """mul.wide.u32 %d0, %r31, 64; add.u64 %d0, %d0, %x; mad.lo.u32 %r1, %r31, 16, %r30;
    cp.async.cg.shared.global [%r1], [%d0], 16; setp.lt.u32 %p0, %r31, 3; cp.async.wait_all; st.global.b32 [%d0+4], 1;
    red.global.add.u32 [%x], 1; @%p0 st.global.u64 [%d0+8], 2; mov.u32 %r5, 4;
    mul.wide.u32 %d2, %r31, 4; add.u64 %d2, %d2, %x; st.global.u8 [%d2+8192], %r5;"""
    found = moved(body, 64)
    assert found["cp.async.cg.shared.global"] == SectorUse(2, 64, 32)
    assert found["st.global.b32"] == SectorUse(2, 64, 8) and found["red.global.add.u32"] == SectorUse(2, 2, 2)
    assert found["st.global.u64"] == SectorUse(1, 3, 1) and found["st.global.u8"] == SectorUse(2, 8, 2)


def test_a_table_of_sectors() -> None:
    done = emulate_ptx(TEXT.replace("mul.wide.u32 %d1, %r0, 4;", "mul.wide.u32 %d1, %r0, 64;"),
                       args=[np.zeros(512, np.uint32)], banks=True)  # fmt: skip
    report = done.report()
    assert "global memory: 1 accesses move 32 sectors of 32 bytes, at best 4" in report
    (line,) = [line.split() for line in report.splitlines() if "st.global" in line]
    assert line[1:] == ["1", "32", "4", "st.global.b32", "columns.py:9"]
    (row,) = done.as_json()["launches"][0]["sectors"]
    assert (row["source"], row["sectors"], row["minimum"]) == ("columns.py:9", 32, 4)
