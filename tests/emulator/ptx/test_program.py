"""Blocks, meeting points, liveness, and the refusal of what is not known."""

from __future__ import annotations

import linecache

import numpy as np
import pytest

from layoutgemm.emulator.ptx.program import CodeSegment, Program
from layoutgemm.errors import PtxError
from tests.emulator.run_ptx import module, program, run


def made(body: str) -> tuple[Program, int]:
    """The program, and the pc of the first instruction of the body."""
    return program(module(body, {}, shared=False)), 0


def names(made_: Program, bits: int) -> set[str]:
    return {name for name, at in made_.index.items() if bits >> at & 1}


def test_blocks_and_meeting_points_of_nested_branches():
    body = """
    @%p0 bra A;
    @%p1 bra B;
    mov.u32 %r0, 1;
    bra C;
    B: mov.u32 %r0, 2;
    C: mov.u32 %r1, 1;
    bra D;
    A: mov.u32 %r0, 3;
    D: mov.u32 %r2, %r0;"""
    found, _ = made(body)
    assert found.leaders == [0, 1, 2, 4, 5, 7, 8]
    assert found.meets[0] == 8 and found.meets[1] == 5


def test_lanes_that_exit_keep_no_others_from_meeting():
    found, _ = made("@%p0 bra A;\n mov.u32 %r0, 1;\n bra B;\n A: exit;\n B: mov.u32 %r1, 1;")
    assert found.meets[0] == found.size  # the ways meet at the end alone
    found, _ = made("@%p0 exit;\n @%p1 bra A;\n mov.u32 %r0, 1;\n A: mov.u32 %r1, 1;")
    assert found.meets[1] == 3


def test_a_loop_without_a_way_out():
    found, _ = made("@%p0 bra A;\n mov.u32 %r0, 1;\n ret;\n A: mov.u32 %r1, 1;\n bra A;")
    assert found.meets[0] == found.size
    found, _ = made("L: @%p0 bra L;\n mov.u32 %r1, 1;")
    assert found.meets[0] == 1


def test_liveness():
    body = """
    mov.u32 %r0, 1;
    @%p0 bra A;
    add.u32 %r1, %r0, 1;
    bra B;
    A: mov.u32 %r1, 2;
    B: add.u32 %r2, %r1, %r3;
    @%p1 mov.u32 %r4, 1;
    add.u32 %r5, %r4, %r2;"""
    found, _ = made(body)
    assert names(found, found.live[0]) == {"%p0", "%p1", "%r3", "%r4"}  # a predicated write keeps the old value alive
    assert names(found, found.live[2]) == {"%r0", "%r3", "%r4", "%p1"}
    assert names(found, found.live[4]) == {"%r3", "%r4", "%p1"}
    assert names(found, found.live[5]) == {"%r1", "%r3", "%r4", "%p1"}
    assert found.live[found.size] == 0


def test_runs_of_arithmetic_are_one_step():
    found, _ = made("mov.u32 %r0, 1;\n add.u32 %r1, %r0, 1;\n bar.sync 0;\n add.u32 %r2, %r1, 1;")
    first, third = found.steps[0], found.steps[3]
    assert isinstance(first, CodeSegment) and first.end == 2 and names(found, first.writes) == {"%r0", "%r1"}
    assert names(found, first.moved) == {"%r0"}
    assert isinstance(third, CodeSegment) and third.end == 4
    assert found.steps[2].ins.opcode == "bar.sync"


@pytest.mark.parametrize("kind", ("f16", "bf16"))
def test_conversions_in_a_row_are_one_call_with_the_results_of_single_ones(kind):
    """The third reads the second's result, so that two series follow each other; one value is the same in all lanes."""
    lines = [f"cvt.rn.{kind}x2.f32 {operands};" for operands in ("%r1, %f1, %f2", "%r2, %f2, %f3", "%r3, %r2, %f1",
             "%r4, %f1, %f1", "%r5, %f3, %f3")]  # fmt: skip
    head = (
        "ld.global.b32 %f3, [%x]; mov.u32 %r0, %tid.x; mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %x, %d0;"
        "ld.global.b32 %f1, [%d1]; ld.global.b32 %f2, [%d1+128];"
    )
    stores = "".join(f"st.global.b32 [%d1+{128 * n}], %r{n};" for n in range(1, 6))
    floats = np.random.default_rng(1).standard_normal(192).astype(np.float32) * 1e3
    floats[[3, 40]] = np.nan, np.inf
    results = []
    for between in ("", "bar.warp.sync -1;"):
        x = floats.view(np.uint32).copy()
        found = run(head + between.join(lines) + stores, {"x": x})
        results.append(x.tolist())
        texts = ["".join(linecache.getlines(s.run.__code__.co_filename)) for s in found.machine.program.steps
                 if isinstance(s, CodeSegment)]  # fmt: skip
        assert sum(text.count("packed_pairs") for text in texts) == (0 if between else 2)
        assert found.kinds == []
    assert results[0] == results[1] != floats.view(np.uint32).tolist()


def test_shared_symbols_do_not_begin_at_0_and_the_dynamic_part_comes_last():
    found = program(module("mov.u32 %r0, smem; mov.u32 %r1, fixed;", {}, static=48))
    assert found.symbols["fixed"] == 1024 and found.symbols["smem"] == 2048 == found.shared_bytes


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("frobnicate.b32 %r0;", "does not know frobnicate.b32"),
        ("bra nowhere;", "no label nowhere"),
        ("ld.frob.b32 %r0, [%d0];", "ld.frob.b32 is no form of ld that the emulator knows"),
        ("mov.u32 %r0, %r1, %r2;", "unknown form of mov"),
    ],
)
def test_refusals_name_the_line(body, says):
    with pytest.raises(PtxError, match=rf"PTX line \d+.*{says}"):
        made(body)
