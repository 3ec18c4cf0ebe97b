"""The rules of tensor memory and tcgen05: each by a text that breaks it."""

from __future__ import annotations

import re

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.atoms.mma.tcgen05 import tcgen05_mma
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import DeadlockError, EmulatorError, PtxError
from tests.emulator.ops.tcgen05.case import STRICT, Case, only
from tests.emulator.run_ptx import Result, module, run
from tests.micro import tcgen05 as text_of

BASE = Case(tcgen05_mma("f16", 128, 16, "bf16"), swizzle="32B")
PAIR = Case(tcgen05_mma("f16", 256, 32, "bf16", cta_group=2), swizzle="32B")
SCALED = Case(tcgen05_mma("mxf8f6f4", 128, 16), swizzle="32B")


def broken(case: Case, old: str, new: str, policy: Policy | None = None, count: int = -1) -> Result:
    assert old in case.text
    return case.run(case.text.replace(old, new, count), policy)


ALLOC = "tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 32;"
GIVE_UP = "  tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;\n"
DEALLOC = "  tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 32;\n"


def lints(found: Result) -> list[str]:
    """The messages of lints that name the strict switch, where there are no other findings."""
    assert set(found.kinds) <= {"lint"}, found.findings
    assert all("Policy(tensor_strict=True)" in one.message for one in found.findings), found.findings
    return [one.message for one in found.findings]


def test_every_kernel_here_is_clean_under_the_strict_switch():
    for case in (BASE, PAIR, SCALED):
        case.check(STRICT)


@pytest.mark.parametrize(
    "old,new,says",
    (
        (ALLOC, ALLOC.replace("32;", "48;"), "48 columns"),
        (ALLOC, ALLOC.replace("32;", "16;"), "16 columns"),
        ("and.b32 %ta, %lane, 96;", "and.b32 %ta, %lane, 96; add.u32 %ta, %ta, 128;", "tensor memory has lanes 0..127"),
        (GIVE_UP, GIVE_UP + "  " + ALLOC + "\n", "has given up its permit"),
        (DEALLOC, DEALLOC.replace("%base, 32;", "%base, 64;"), "dealloc of 64 columns"),
        (DEALLOC, "  add.u32 %base, %base, 32;\n" + DEALLOC, "dealloc of 32 columns|is not a tensor-memory address"),
        (DEALLOC, DEALLOC.replace("%base, 32;", "0, 32;") + DEALLOC, "allocated are: 32 from column 480"),
        ("add.u32 %at, %ta, 0;", "add.u32 %at, %ta, 0x200000;", "lanes 32..63 of tensor memory: warp 0|not a tensor"),
        ("add.u32 %at, %ta, 8;", "sub.u32 %at, %ta, 8;", "is not allocated"),
        ("mov.b32 %d, %base;", "sub.u32 %d, %base, 8;", "is not allocated"),
        ("mov.b32 %d, %base;", "add.u32 %d, %base, 24;", r"(this reaches|is not allocated).*; allocated are: 32 from"),
        ("tcgen05.mma.cta_group::1", "tcgen05.mma.cta_group::2", "M of kind|needs pairs of blocks"),
    ),
)
def test_misuse_is_an_error(old, new, says):
    with pytest.raises(EmulatorError, match=says):
        broken(BASE, old, new, count=1)


def test_columns_that_are_freed_twice_are_a_finding():
    """As in a kernel of cuDNN's, whose four warps free the columns of one: the run goes on."""
    result = BASE.run(BASE.text.replace(DEALLOC, DEALLOC + DEALLOC))
    assert result.kinds == ["protocol"]
    assert "frees 32 columns from 480 that were freed before: tcgen05.dealloc" in result.findings[0].message
    assert np.array_equal(BASE.result(result), BASE.exact)


@pytest.mark.parametrize("mask", [0, 32, 64])
def test_lanes_of_another_quarter_in_an_address_are_the_warps_own(mask: int):
    """As NVIDIA's and DeepGEMM's kernels have it: the results are right, and it is reported."""
    text = BASE.text.replace("and.b32 %ta, %lane, 96;", f"and.b32 %ta, %lane, {mask};")
    result = BASE.run(text)
    assert set(result.kinds) == {"lint"}
    assert np.array_equal(BASE.result(result), BASE.exact)
    assert "They are taken for the warp's own" in result.findings[0].message
    if mask:  # under this policy of the first quarter alone
        with pytest.raises(EmulatorError, match=r"of tensor memory: warp \d reaches"):
            BASE.run(text, policy=Policy(fences="writers"))


def test_a_pairs_second_block_may_name_the_lanes_of_the_pairs_rows():
    """128 and on for its own, in loads that a B200 runs; one block alone may not."""
    rows = "and.b32 %ta, %lane, 96; { .reg .b32 %q; mov.u32 %q, %cluster_ctarank; mad.lo.u32 %ta, %q, 128, %ta; }"
    text = PAIR.text.replace("and.b32 %ta, %lane, 96;", rows)
    result = PAIR.run(text)
    assert set(result.kinds) == {"lint"} and {one.cta for one in result.findings} == {(1, 0, 0)}
    assert np.array_equal(PAIR.result(result), PAIR.exact)
    with pytest.raises(EmulatorError, match=r"lanes 0\.\.127"):
        PAIR.run(text, policy=Policy(fences="writers"))
    with pytest.raises(EmulatorError, match=r"lanes 0\.\.127"):
        PAIR.run(text.replace("%q, 128", "%q, 256"))


def test_a_leak_is_reported():
    found = broken(BASE, DEALLOC, "")
    only(found, "exit", "ends with 32 columns allocated")
    assert found.findings[0].orders.startswith("tcgen05.dealloc by the warp that allocated them")


def test_allocation_waits_for_columns():
    """Warp 1 gets its columns when warp 0 frees its own; otherwise no thread goes on."""
    text = """
      .reg .b32 %t, %s, %c; .reg .pred %p, %q;
      mov.u32 %t, %tid.x; mov.u32 %s, smem; setp.lt.u32 %p, %t, 32; @%p bra first;
      bar.sync 1, 64;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s+4], 512;
      ld.shared.b32 %c, [%s+4];
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 512;
      bra done;
    first:
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 256;
      ld.shared.b32 %c, [%s];
      bar.sync 1, 64;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 256;
    done:
    """
    assert run(text, block=64, shared=64, target="sm_100a").findings == []
    with pytest.raises(DeadlockError, match=r"tcgen05\.alloc"):
        kept = text.replace("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 256;", "")
        run(kept, block=64, shared=64, target="sm_100a")


def test_several_allocations():
    text = """
      .reg .b32 %s, %c<4>; .reg .b64 %g;
      mov.u32 %s, smem;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 64;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s+4], 32;
      ld.shared.b32 %c0, [%s];
      ld.shared.b32 %c1, [%s+4];
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c0, 64;
      bar.warp.sync -1;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 256;
      ld.shared.b32 %c2, [%s];
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c1, 32;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c2, 256;
      st.global.b32 [%out], %c0; st.global.b32 [%out+4], %c1; st.global.b32 [%out+8], %c2;
    """
    out = np.zeros(3, dtype=np.uint32)
    assert run(text, {"out": out}, block=32, shared=64, target="sm_100a").findings == []
    assert out.tolist() == [448, 416, 160]


@pytest.mark.parametrize("fence,strict", (("", True), ("", False), ("fence.proxy.async.shared::cta;", True)))
@pytest.mark.parametrize("write", ("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%r29], 32;", "st"))
def test_a_copy_over_the_word_of_an_allocation(write, fence, strict):
    """PTX keeps the order with an allocation's write, and asks for a proxy fence."""
    alloc = write if write != "st" else f"{ALLOC.replace('%s', '%r29+64')} st.shared.b32 [%r29], 0;"
    at = "%r29" if write != "st" else "%r29+64"
    text = f"""
      mov.u32 %r29, smem; mov.u32 %r20, fixed; mov.u32 %r1, %tid.x; setp.eq.u32 %p0, %r1, 0;
      @%p0 mbarrier.init.shared.b64 [%r20], 1; @%p0 fence.mbarrier_init.release.cluster;
      {alloc} ld.shared.b32 %r2, [{at}]; {fence} bar.sync 0;
      @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 16;
      @%p0 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r29], [%a], 16, [%r20];
      wait: mbarrier.try_wait.parity.shared.b64 %p2, [%r20], 0; @!%p2 bra wait;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %r2, 32;
    """
    policy = Policy(strict=strict)
    found = run(text, {"a": np.zeros(16, np.uint8)}, shared=128, static=16, target="sm_100a", policy=policy).findings
    races = [one.message for one in found if one.kind == "race"]
    if fence:
        assert found == []
    elif write == "st":
        assert any("no fence.proxy.async between the write" in one for one in races)
    else:
        assert strict or any("tcgen05.alloc's write and the copy" in one.message for one in found)
        assert bool(races) == strict


def test_a_product_by_many_threads_is_reported():
    text = BASE.text.replace("setp.ne.u32 %stop, %w, 0;", "setp.gt.u32 %stop, %w, 1;")
    text = text.replace("[%bar], 1;", "[%bar], 2;")
    only(BASE.run(text), "protocol", "is issued by 2 lanes, each for itself")


def test_a_missing_commit_is_a_deadlock():
    commit = "  " + text_of.commit()[0] + "\n"
    with pytest.raises(DeadlockError, match=r"mbarrier\.try_wait") as caught:
        broken(BASE, commit, "")
    assert "note: no tcgen05.commit follows tcgen05.mma" in str(caught.value)


def test_reading_an_accumulator_before_the_commit_races():
    wait = "  @!%done bra wait;\n"
    only(broken(BASE, wait, ""), "race", "tensor memory of CTA (0, 0, 0), lanes 0..15")
    commit, mma = "  " + text_of.commit()[0] + "\n", re.search(r"  tcgen05\.mma.*\n", BASE.text)[0]
    only(broken(BASE, mma + commit, commit + mma), "race", "nothing orders them")


def test_products_of_two_warps_race():
    """The same product by another warp: the engine keeps only one thread's products in order."""
    two = "setp.ne.u32 %stop, %w, 0;"
    again = "and.b32 %w, %w, 31; setp.ne.u32 %stop, %w, 0; @!%stop setp.gt.u32 %stop, %lane, 32;"
    text = BASE.text.replace(two, again).replace("[%bar], 1;", "[%bar], 2;")
    only(BASE.run(text), "race", "nothing orders them")


def test_a_pair_deallocates_when_both_have_read():
    """One block's reads of its tensor memory must end before the other block's dealloc."""
    end = PAIR.text.index("barrier.cluster.arrive.aligned;", PAIR.text.rindex("tcgen05.ld"))
    alone = PAIR.text[:end] + PAIR.text[end:].replace("barrier.cluster.arrive.aligned;", "bar.sync 0;", 1)
    found = PAIR.run(alone.replace("barrier.cluster.wait.aligned;\n  setp.ge.u32 %stop", "setp.ge.u32 %stop"))
    races = [finding for finding in found.findings if finding.kind == "race"]
    assert races and "tcgen05.dealloc" in races[0].message and "tcgen05.ld" in races[0].message, found.findings
    assert not PAIR.run(PAIR.text).findings


def test_deallocation_before_the_product_has_completed_races():
    wait = "  @!%done bra wait;\n"
    reads = r"  (add.u32 %at, %ta, \d+;\n  tcgen05.ld|st.global|tcgen05.wait::ld).*\n"
    text = re.sub(reads, "", BASE.text.replace(wait, ""))
    only(BASE.run(text), "race", "tcgen05.dealloc")


def test_an_access_to_freed_columns_names_the_deallocation():
    """Without an order it is a race, and reads the words as they are."""
    text = """
      .reg .b32 %t, %s, %c, %v; .reg .pred %p;
      mov.u32 %t, %tid.x; mov.u32 %s, smem; setp.ge.u32 %p, %t, 32; @%p bra other;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 32; ld.shared.b32 %c, [%s];
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 32;
      BARRIER bra done;
    other:
      BARRIER mov.b32 %c, 0x2001e0; tcgen05.ld.sync.aligned.32x32b.x1.b32 {%v}, [%c]; tcgen05.wait::ld.sync.aligned;
    done:
    """
    ordered = text.replace("BARRIER", "bar.sync 1, 64;")
    with pytest.raises(
        EmulatorError, match=r"not allocated: tcgen05\.dealloc.* by CTA \(0, 0, 0\) warp 0 has freed it"
    ):
        run(ordered, block=64, shared=64, target="sm_100a")
    found = run(text.replace("BARRIER", ""), block=64, shared=64, target="sm_100a").findings
    assert found[0].kind == "race" and "column 480 of tensor memory, and before it" in found[0].message


def test_shared_memory_is_watched():
    only(broken(BASE, "  fence.proxy.async.shared::cta;\n", ""), "race", "no fence.proxy.async")
    for operand in "AB":
        store = f"  mov.u32 %to, smem{operand};\n  st.shared.b32 [%to+16], %w;\n"
        only(broken(BASE, "wait:\n", store + "wait:\n"), "race", "tcgen05.mma")
    short = broken(BASE, "add.u32 %i, %i, 512;", "add.u32 %i, %i, 8192;")
    only(short, "uninitialised", "never written")
    assert not short.machine.findings.found and short.machine.suspects.found  # it counts if a result depends on it


def test_unwritten_tensor_memory_is_reported():
    store = re.search(r"  add.u32 %at, %ta, 8;\n  tcgen05.st.*\n", BASE.text)[0]
    only(broken(BASE, store, ""), "uninitialised", "the accumulator at lane 0, column ")
    store = re.search(rf"  add.u32 %at, %ta, {SCALED.at['SFB']};\n  tcgen05.st.*\n", SCALED.text)[0]
    only(broken(SCALED, store, ""), "uninitialised", "a scale factor of B")


def test_copies_of_scale_factors_have_to_agree():
    SCALED.image[0, 32, SCALED.at["SFA"]] ^= 1
    try:
        only(SCALED.run(), "protocol", "differs between the quarters")
    finally:
        SCALED.image[0, 32, SCALED.at["SFA"]] ^= 1


def test_descriptors_are_checked():
    mma = re.search(r"  tcgen05\.mma", BASE.text)[0]
    for bit in (14, 30, 53):
        found = broken(BASE, mma, f"  or.b64 %descA, %descA, {1 << bit:#x};\n" + mma)
        only(found, "descriptor", f"sets bits {bit},")
        assert np.array_equal(BASE.result(found), BASE.exact)
    for bits, says in ((1 << 6, "6"), (1 << 2, "sparse"), (1 << 25, "M of"), (6 << 7, "format")):
        word = BASE.word ^ bits
        with pytest.raises(EmulatorError, match=says):
            broken(BASE, f"mov.u32 %idesc, {BASE.word:#x};", f"mov.u32 %idesc, {word:#x};")
    with pytest.raises(EmulatorError, match="version"):
        broken(BASE, mma, f"  xor.b64 %descA, %descA, {1 << 46:#x};\n" + mma)
    with pytest.raises(EmulatorError, match="reaches shared offset"):
        broken(BASE, mma, "  or.b64 %descA, %descA, 0x3000;\n" + mma)
    found = broken(SCALED, "  tcgen05.mma", "  or.b32 %sfa, %sfa, 0x40000000;\n  tcgen05.mma")
    only(found, "descriptor", "says byte 1 of a word")


def test_a_kernel_uses_one_cta_group_size():
    found = broken(PAIR, "relinquish_alloc_permit.cta_group::2", "relinquish_alloc_permit.cta_group::1")
    only(found, "protocol", "one for all")


def test_a_pair_must_wait_for_its_leaders_operations():
    """Without the multicast the second block waits for ever; without its own wait it reads too early."""
    with pytest.raises(DeadlockError):
        broken(PAIR, "mov.u16 %mask, 3;", "mov.u16 %mask, 1;")
    skip = "  setp.ne.u32 %first, %rank, 0;\n  @%first bra skips;\n"
    text = PAIR.text.replace("wait:\n", skip + "wait:\n")
    text = text.replace("  @!%done bra wait;\n", "  @!%done bra wait;\nskips:\n")
    found = PAIR.run(text)
    assert set(found.kinds) <= {"race", "exit"} and "race" in found.kinds
    with pytest.raises(EmulatorError, match="multicast to mask 0x5"):
        broken(PAIR, "mov.u16 %mask, 3;", "mov.u16 %mask, 5;")


def test_a_block_has_to_know_of_the_commit_before_it_ends():
    leaves = "  barrier.cluster.arrive.aligned;\n  barrier.cluster.wait.aligned;\n"
    leaves += "  setp.ne.u32 %first, %rank, 0;\n  @%first bra over;\n"
    found = PAIR.run(PAIR.text.replace("wait:\n", leaves + "wait:\n"))
    assert any("CTA (1, 0, 0) ends without knowing of tcgen05.commit" in finding.message for finding in found.findings)


def test_a_commit_to_a_block_that_has_ended():
    """Block 1 tells block 0 that it is done, and ends; a multicast commit of block 0 then arrives there too."""
    meet = "barrier.cluster.arrive; barrier.cluster.wait;"
    body = f"""mov.u32 %r30, %tid.x; mov.u32 %r20, fixed; setp.eq.u32 %p0, %r30, 0; mov.u32 %r25, %cluster_ctarank;
    @%p0 mbarrier.init.shared.b64 [%r20], 1; add.u32 %r21, %r20, 8; @%p0 mbarrier.init.shared.b64 [%r21], 32;
    fence.mbarrier_init.release.cluster; {meet} mapa.shared::cluster.u32 %r22, %r21, 0; setp.ne.u32 %p1, %r25, 0;
    @!%p1 bra WAITS; mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r22]; LATER bra END;
    WAITS: L: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p2, [%r21], 0; @!%p2 bra L;
    @%p0 tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [%r20], 3;
    END:"""
    settings = {"block": 32, "grid": 2, "cluster": 2, "shared": 1024, "static": 64, "target": "sm_100a"}
    found = run(body.replace("LATER", ""), {}, **settings)
    assert any("mbarrier of CTA (1, 0, 0), which has ended" in one.message for one in found.findings)
    assert set(found.kinds) == {"exit"}
    waits = "M: mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r20], 0; @!%p3 bra M;"
    assert run(body.replace("LATER", waits), {}, **settings).kinds == []


def test_a_commit_releases_its_threads_accesses():
    wait = "  @!%done bra wait;\n"
    text = BASE.text.replace("  tcgen05.commit", "  st.shared.b32 [%s], %w;\n  tcgen05.commit")
    assert BASE.run(text.replace(wait, wait + "  ld.shared.b32 %w, [%s];\n")).findings == []


FRESH = """
      .reg .b32 %s, %c, %w;
      mov.u32 %s, smem;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 512;
      ld.shared.b32 %c, [%s];
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%c], %s;
      tcgen05.wait::st.sync.aligned;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 512;
      bar.warp.sync -1;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 512;
      tcgen05.ld.sync.aligned.32x32b.x1.b32 %w, [%c];
      tcgen05.wait::ld.sync.aligned;
      st.global.b32 [%out], %w;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 512;
"""


@pytest.mark.parametrize("fill", [0xFF, 0x40])
def test_columns_are_fresh_when_they_are_allocated_again(fill):
    out = np.zeros(1, dtype=np.uint32)
    found = run(FRESH, {"out": out}, block=32, shared=64, target="sm_100a", policy=Policy(fill=fill))
    assert out[0] == 0x01010101 * fill and not found.machine.findings.found
    only(found, "uninitialised", "lane 0, column 0 of tensor memory was never written")


def test_a_load_of_fresh_columns_counts_where_a_result_depends_on_it():
    def kinds(body):
        text = module(body, {"out": "u64"}, "sm_100a")
        return [one.kind for one in emulate_ptx(text, block=32, smem=64, args=[np.zeros(1, np.uint32)]).findings]

    assert kinds(FRESH) == ["uninitialised"]
    assert kinds(FRESH.replace("st.global", "and.b32 %w, %w, 0; st.global")) == []


def test_words_of_an_earlier_allocation_are_not_an_accumulator():
    """The same columns, freed and allocated again: earlier writes there do not count."""
    again = """  setp.ge.u32 %stop, %lane, 32;
      @%stop bra anew;
      tcgen05.fence::after_thread_sync;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %base, 32;
      mov.u32 %s, column;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 32;
    anew:
      bar.sync 0;
    """
    here = "  or.b32 %w, %lane, %rank;\n"
    text = BASE.text.replace(GIVE_UP, "").replace(here, again + here)
    only(BASE.run(text), "uninitialised", "the accumulator at lane 0, column 480 of tensor memory was never written")
    assert BASE.run(text.replace("setp.eq.u32 %add, 0, 0;", "setp.ne.u32 %add, 0, 0;")).findings == []


def test_the_strict_switch_asks_for_waits_and_fences():
    ld_wait, st_wait = "  tcgen05.wait::ld.sync.aligned;\n", "  tcgen05.wait::st.sync.aligned;\n"
    *early, dealloc = lints(broken(BASE, ld_wait, ""))
    assert early and all("a register that tcgen05.ld" in one for one in early) and "before it, tcgen05.ld" in dealloc
    only(broken(BASE, st_wait, ""), "race", "tcgen05.st")
    with pytest.raises(EmulatorError, match=r"no tcgen05\.wait::ld has been executed since"):
        broken(BASE, ld_wait, "", STRICT)
    only(broken(BASE, st_wait, "", STRICT), "race", "tcgen05.st")
    fence = "  tcgen05.fence::after_thread_sync;\n"
    assert all("no tcgen05.fence::after_thread_sync" in one for one in lints(broken(BASE, fence, "")))
    strict = broken(BASE, fence, "", STRICT)
    only(strict, "race", "nothing orders them")
    lint = [line for one in broken(BASE, fence, "").findings for line, _ in one.sites]
    assert sorted(one.line for one in strict.findings) == sorted(lint)


def test_a_use_of_loaded_registers_before_the_wait_is_lint_where_strict_has_an_error():
    """A move takes a register along. A path that comes to a wait first has no such use."""
    load, wait = "tcgen05.ld.sync.aligned.32x32b.x1.b32 %w, [%c];", "tcgen05.wait::ld.sync.aligned;"
    use, skip = "add.u32 %x, %v, 1;", "setp.eq.u32 %p, %t, 99; @%p bra OVER;"
    text = """
      .reg .b32 %s, %c, %w, %v, %t, %x; .reg .pred %p;
      mov.u32 %s, smem; mov.u32 %t, %tid.x;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 32;
      ld.shared.b32 %c, [%s];
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%c], %t;
      tcgen05.wait::st.sync.aligned;
      BODY
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 32;
    """
    settings = {"block": 32, "shared": 64, "target": "sm_100a"}
    move = "mov.b32 %v, %w;"
    for body, used in (
        (load + move + wait + use, False),
        (load + move + use + wait, True),
        (load + wait + move + use, False),
        (load + move + skip + use + "OVER:" + wait, False),  # not on each path, and the wait comes first for the others
        (load + move + skip + use + "OVER:", True),
        (load + "mov.b32 %w, 0;" + move + use + wait, False),
    ):
        found = run(text.replace("BODY", body), {}, **settings)
        says = [one for one in lints(found) if "uses a register" in one]
        assert len(says) == used, body
        if used:
            with pytest.raises(EmulatorError, match=r"no tcgen05\.wait::ld has been executed since"):
                run(text.replace("BODY", body), {}, policy=STRICT, **settings)


def test_several_stores_to_one_place_are_lint_without_a_wait_between_them():
    store = "  tcgen05.st.sync.aligned.32x32b.x8.b32 [%at], {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7};\n"
    assert all("hands it on without tcgen05.wait" in one for one in lints(broken(BASE, store, store + store)))
    only(broken(BASE, store, store + store, STRICT), "race", "tcgen05.st")
    waited = store + "  tcgen05.wait::st.sync.aligned;\n" + store
    assert broken(BASE, store, waited).findings == [] and broken(BASE, store, waited, STRICT).findings == []


def test_a_load_counts_as_done_where_its_registers_are_used_up():
    """A second warp frees the columns after a barrier; no wait stands before it."""
    load, use = "tcgen05.ld.sync.aligned.32x32b.x1.b32 %w, [%c];", "add.u32 %v, %w, 1;"
    text = """
      .reg .b32 %s, %c, %w, %v, %t; .reg .pred %first;
      mov.u32 %s, smem; mov.u32 %t, %tid.x; setp.lt.u32 %first, %t, 32;
      @!%first bra MET;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 32;
      MET: bar.sync 0;
      ld.shared.b32 %c, [%s];
      @!%first bra SECOND;
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%c], %t;
      tcgen05.wait::st.sync.aligned;
      BEFORE bar.sync 0; AFTER bra END;
      SECOND: bar.sync 0;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 32;
      END:
    """

    def found(before: str, after: str) -> list[str]:
        body = text.replace("BEFORE", before).replace("AFTER", after)
        return run(body, {}, block=64, shared=64, target="sm_100a").kinds

    # Another warp frees the columns than allocated them, without the fences.
    assert found(load + use, "") == ["lint"] * 3
    assert found(load, use) == ["lint"] * 2 + ["race"]
    assert found(load + "tcgen05.wait::ld.sync.aligned;", use) == ["lint"] * 2


def test_a_relaxed_wait_orders_tensor_memory_with_the_fence_after_it():
    """PTX ISA, "tcgen05", "Canonical synchronization patterns": the wait is relaxed, and the fence follows."""
    relaxed = BASE.text.replace("try_wait.parity.shared::cta", "try_wait.parity.relaxed.cta.shared::cta")
    assert relaxed != BASE.text
    for policy in (None, STRICT):
        assert BASE.run(relaxed, policy).findings == []
    without = relaxed.replace("  tcgen05.fence::after_thread_sync;\n", "")
    assert {one.kind for one in BASE.run(without).findings if "nothing orders them" in one.message} == {"race"}


@pytest.mark.parametrize("which,what", ((0, "tcgen05.st"), (1, "tcgen05.ld")))
def test_the_strict_switch_asks_for_the_fence_before_others_are_told(which, what):
    """The first fence orders four warps' stores before the product, the second loads before dealloc."""
    fence = "  tcgen05.fence::before_thread_sync;\n"
    parts = BASE.text.split(fence)
    text = parts[0] + (fence if which else "") + parts[1] + ("" if which else fence) + parts[2]
    assert all("hands it on without" in one and f"before it, {what}" in one for one in lints(BASE.run(text)))
    only(BASE.run(text, STRICT), "race", what)
    assert {one.line for one in BASE.run(text).findings} == {one.line for one in BASE.run(text, STRICT).findings}
    # A warp's own accesses need none, whatever it takes over in between.
    own = "  tcgen05.st.sync.aligned.32x32b.x1.b32 [%ta], %w;\n  tcgen05.wait::st.sync.aligned;\n"
    again = "  tcgen05.fence::after_thread_sync;\n"
    again += "  tcgen05.ld.sync.aligned.32x32b.x1.b32 %w, [%ta];\n  tcgen05.wait::ld.sync.aligned;\n"
    kept = BASE.text.replace(fence, own + again + fence, 1)
    assert BASE.run(kept, STRICT).findings == []


def test_a_commit_contains_the_fence():
    """Warp 0 stores, and warp 1 gives the columns back when it has been told."""
    text = """
      .reg .b32 %t, %s, %c; .reg .pred %p, %q;
      mov.u32 %t, %tid.x; mov.u32 %s, smem; setp.ge.u32 %p, %t, 32; @%p bra other;
      setp.eq.u32 %q, %t, 0;
      @%q mbarrier.init.shared.b64 [%s+16], 1;
      tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%s], 32;
      bar.sync 0;
      ld.shared.b32 %c, [%s];
      tcgen05.st.sync.aligned.32x32b.x1.b32 [%c], %t;
      tcgen05.wait::st.sync.aligned;
      @%q TELL
      bra done;
    other:
      bar.sync 0;
      ld.shared.b32 %c, [%s];
    wait:
      mbarrier.try_wait.parity.shared::cta.b64 %q, [%s+16], 0;
      @!%q bra wait;
      tcgen05.fence::after_thread_sync;
      tcgen05.dealloc.cta_group::1.sync.aligned.b32 %c, 32;
    done:
    """
    for tell, found in (  # a race if strict, else lint
        ("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%s+16];", []),
        ("mbarrier.arrive.shared.b64 _, [%s+16];", ["race"]),
    ):
        told = text.replace("TELL", tell)
        # Another warp gives the columns back than the one that has allocated them.
        assert run(told, block=64, shared=64, target="sm_100a", policy=STRICT).kinds == ["lint", *found]
        assert run(told, block=64, shared=64, target="sm_100a").kinds == ["lint"] * (1 + len(found))


@pytest.mark.parametrize(
    "old,new",
    (
        ("kind::f16", "kind::f17"),
        ("tcgen05.mma.cta", "tcgen05.mma.sp.cta"),
        ("kind::f16", "kind::f16.ashift"),
        ("kind::f16", "kind::f16.block_scale"),
        ("kind::f16", "kind::mxf8f6f4"),
        ("%idesc, %add;", "%idesc, %add, 16;"),
        ("%idesc, %add;", "%idesc, {%r0, %r1}, %add;"),
        ("tcgen05.wait::ld", "tcgen05.wait::mma"),
        ("32x32b.x8.b32", "32x32b.x4.b32"),
        ("32x32b.x8.b32", "32x32b.x3.b32"),
        ("b64 [%bar];", "multicast::cluster.b64 [%bar];"),
    ),
)
def test_unknown_forms_are_refused_at_load(old, new):
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        broken(BASE, old, new)
