"""Races of loads from global memory: findings where a result depends on the value, lint where nothing does."""

from __future__ import annotations

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.emulator.api import Emulation
from layoutgemm.emulator.machine.launch import Policy

# %r0: the element of a lane, %r1: its warp, %d1: the element's address in a, %d2: in b.
HEAD = """
.version 8.7
.target sm_90a
.visible .entry update(.param .u64 a, .param .u64 b)
{
  .reg .b32 %r<9>; .reg .b64 %d<9>; .reg .pred %p<9>;
  ld.param.u64 %d1, [a]; ld.param.u64 %d2, [b];
  mov.u32 %r0, %tid.x; shr.u32 %r1, %r0, 5; and.b32 %r0, %r0, 31;
  mul.wide.u32 %d0, %r0, 4; add.u64 %d1, %d1, %d0; add.u64 %d2, %d2, %d0;
  setp.eq.u32 %p0, %r1, 0;
"""
DOUBLED = "ld.global.b32 %r2, [%d1]; add.u32 %r3, %r2, %r2;"  # by every warp
OWN = "@%p0 st.global.b32 [%d1], %r3;"  # by warp 0, as Triton has it


def ran(body: str, threads: int = 64, policy: Policy | None = None) -> tuple[Emulation, np.ndarray]:
    """The run, and what it leaves in a, which holds 1 to 32."""
    a = np.arange(1, 33, dtype=np.uint32)
    done = emulate_ptx(f"{HEAD}{body} ret; }}", block=threads, args=[a, np.zeros(32, np.uint32)], policy=policy)
    return done, a


@pytest.mark.parametrize("order", [Policy(), Policy(loads="early"), Policy(pick="random", seed=3)])
def test_spare_warps_of_an_update_in_place_are_lint(order: Policy) -> None:
    done, a = ran(DOUBLED + OWN, policy=order)
    assert done.ok and [one.kind for one in done.findings] == ["lint"], done.report()
    assert "other values there change no result" in done.findings[0].message and "strict" in done.findings[0].message
    assert a.tolist() == list(range(2, 66, 2))
    assert not ran(DOUBLED + OWN, threads=32)[0].findings


def test_the_strict_policy_holds_them_to_ptx() -> None:
    assert [one.kind for one in ran(DOUBLED + OWN, policy=Policy(strict=True))[0].findings] == ["race"]


@pytest.mark.parametrize(
    "use",
    [
        "@!%p0 st.global.b32 [%d2], %r3;",  # a result
        "setp.gt.u32 %p1, %r2, 9; @%p1 st.global.b32 [%d2], 1;",  # decides whether one is written
        "and.b32 %r4, %r2, 31; mul.wide.u32 %d3, %r4, 4; add.u64 %d3, %d2, %d3; sub.u64 %d3, %d3, %d0; "
        "@!%p0 st.global.b32 [%d3], 1;",
        "@%p0 bra.uni END; WAIT: ld.global.b32 %r2, [%d1]; setp.eq.u32 %p1, %r2, 0; @%p1 bra WAIT; END:",  # polls
    ],
)
def test_a_value_that_matters_stays_a_race(use: str) -> None:
    done, _ = ran(DOUBLED + OWN + use)
    assert not done.ok and "race" in {one.kind for one in done.findings}, done.report()


def test_a_kernel_that_reads_its_neighbour_stays_a_race() -> None:
    shift = "xor.b32 %r4, %r1, 1; mad.lo.u32 %r4, %r4, 4, 0; cvt.u64.u32 %d4, %r4; ld.param.u64 %d5, [a];"
    own = "mul.wide.u32 %d6, %r1, 4; add.u64 %d6, %d5, %d6; add.u64 %d4, %d5, %d4;"
    done, _ = ran(f"{shift}{own} ld.global.b32 %r2, [%d4]; st.global.b32 [%d6], %r2;")
    assert [one.kind for one in done.findings if one.kind != "lint"] == ["race"], done.report()


def test_an_unused_read_does_not_hide_a_race_of_stores_at_the_same_line() -> None:
    """Warp 0 reads, and warps 1 and 2 store different values there."""
    done, _ = ran("@%p0 ld.global.b32 %r2, [%d1]; @!%p0 st.global.b32 [%d1], %r1;", threads=96)
    assert sorted(one.kind for one in done.findings) == ["lint", "race"], done.report()
    (race,) = [one for one in done.findings if one.kind == "race"]
    assert race.message.count("st.global.b32") == 2
