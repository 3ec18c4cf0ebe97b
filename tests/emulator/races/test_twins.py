"""Small kernels whose synchronisation is subtle: each right, and silent; and with mistakes, each of them found."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pytest

from layoutgemm import emulate_ptx
from layoutgemm.errors import DeadlockError, EmulatorError
from tests.emulator.run_ptx import module

# %r31 thread, %r26 lane, %r25 warp, %r24 block, %r29 rank in the cluster; %p31 thread 0, %p30 lane 0; %r30 shared
# memory, %r27 the lane's word there, %d31 the lane's bytes, %d30 its word of the result.
START = """mov.u32 %r31, %tid.x; mov.u32 %r30, smem; mov.u32 %r29, %cluster_ctarank; mov.u32 %r24, %ctaid.x;
setp.eq.u32 %p31, %r31, 0; and.b32 %r26, %r31, 31; shr.u32 %r25, %r31, 5; setp.eq.u32 %p30, %r26, 0;
shl.b32 %r28, %r26, 2; add.u32 %r27, %r30, %r28; mul.wide.u32 %d31, %r26, 4; add.u64 %d30, %o, %d31;"""
MEET = "barrier.cluster.arrive; barrier.cluster.wait;"
LAST = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"
INIT = "@%p31 mbarrier.init.shared.b64 [%r30+{at}], {count};"
INITED = "@%p31 fence.mbarrier_init.release.cluster; bar.sync 0;"
LOAD = "cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
STORE = "cp.async.bulk.global.shared::cta.bulk_group"
FENCE = "fence.proxy.async.shared::cta;"


def by_lines(text: str) -> str:
    """The text with a line for each instruction."""
    return " ".join(text.split()).replace("; ", ";\n")


@dataclass(frozen=True)
class Twin:
    """A kernel, its mistakes, and its launch.

    wrong  a text of the kernel -> what stands there instead; and the kind of the finding, or of the error
    want   the result `o`, a word of each lane; the other buffers are inputs
    """

    name: str
    body: str
    wrong: tuple[tuple[str, str, str], ...]
    want: list[int]
    inputs: Mapping[str, np.ndarray] = field(default_factory=dict)
    launch: Mapping[str, int] = field(default_factory=dict)
    target: str = "sm_90a"
    directives: str = ""

    def run(self, old: str = "", new: str = "") -> tuple[list, np.ndarray | str]:
        """(findings, the result or the error) of the kernel with a text changed."""
        body, old = by_lines(self.body), by_lines(old)
        assert old in body, old
        out = {name: value.copy() for name, value in self.inputs.items()} | {"o": np.zeros(len(self.want), np.uint32)}
        body = START + body.replace(old, by_lines(new), 1)
        text = module(body, dict.fromkeys(out, "u64"), self.target, directives=self.directives)
        try:
            found = emulate_ptx(text, args=list(out.values()), **{"block": 32, "smem": 4096, **self.launch})
        except EmulatorError as error:
            return [], f"{'deadlock' if isinstance(error, DeadlockError) else 'error'}: {error}"
        return found.findings, out["o"]


def iota(count: int, first: int = 0) -> np.ndarray:
    return np.arange(first, first + count, dtype=np.uint32)


LANES = list(range(32))
TWINS = [
    Twin(
        "a barrier's phase wraps",
        f"""{INIT.format(at=1024, count=1)} {INIT.format(at=1032, count=32)} {INITED}
        mov.u32 %r1, 0; mov.u32 %r9, 0; setp.ge.u32 %p0, %r31, 32; @%p0 bra C; @!%p31 bra END;
        P: and.b32 %r2, %r1, 1; xor.b32 %r3, %r2, 1;
        PW: mbarrier.try_wait.parity.shared.b64 %p1, [%r30+1032], %r3; @!%p1 bra PW;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r30+1024], 128; mul.wide.u32 %d1, %r1, 128; add.u64 %d1, %x, %d1;
        {LOAD} [%r30], [%d1], 128, [%r30+1024]; add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5; @%p2 bra P; bra END;
        C: and.b32 %r2, %r1, 1; CW: mbarrier.try_wait.parity.shared.b64 %p1, [%r30+1024], %r2; @!%p1 bra CW;
        ld.shared.u32 %r4, [%r27]; add.u32 %r9, %r9, %r4; {FENCE} mbarrier.arrive.shared.b64 _, [%r30+1032];
        add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 5; @%p2 bra C; st.global.u32 [%d30], %r9; END:""",
        (
            ("C: and.b32 %r2, %r1, 1;", "C: mov.u32 %r2, 0;", "deadlock"),
            ("P: and.b32 %r2, %r1, 1;", "P: shr.u32 %r2, %r1, 1; and.b32 %r2, %r2, 1;", "error"),
            ("add.u32 %r9, %r9, %r4; " + FENCE + " mbarrier.arrive.shared.b64 _, [%r30+1032];",
             "mbarrier.arrive.shared.b64 _, [%r30+1032]; ld.shared.u32 %r4, [%r27]; add.u32 %r9, %r9, %r4;", "race"),
        ),
        [sum(lane + 32 * i for i in range(5)) for lane in LANES],
        {"x": iota(160)},
        {"block": 64},
    ),
    Twin(
        "groups of cp.async with a ragged tail",
        """mov.u32 %r1, 0; mov.u32 %r9, 0; add.u64 %d1, %x, %d31; mov.u32 %r8, %r27;
        cp.async.ca.shared.global [%r8], [%d1], 4; cp.async.commit_group;
        cp.async.ca.shared.global [%r8+128], [%d1+128], 4; cp.async.commit_group;
        L: add.u32 %r2, %r1, 2; setp.lt.u32 %p0, %r2, 5; rem.u32 %r3, %r2, 3; mad.lo.u32 %r3, %r3, 128, %r27;
        mul.wide.u32 %d2, %r2, 128; add.u64 %d2, %d2, %d1;
        cp.async.wait_group 1; bar.sync 0;
        rem.u32 %r4, %r1, 3; shl.b32 %r4, %r4, 7; add.u32 %r4, %r4, %r30; xor.b32 %r5, %r26, 31;
        mad.lo.u32 %r4, %r5, 4, %r4;
        ld.shared.u32 %r6, [%r4]; add.u32 %r9, %r9, %r6;
        @%p0 cp.async.ca.shared.global [%r3], [%d2], 4; cp.async.commit_group;
        add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 5; @%p1 bra L;
        st.global.u32 [%d30], %r9;""",
        (
            ("4; cp.async.commit_group;\n        add.u32", "4; @%p0 cp.async.commit_group;\n        add.u32", "race"),
            ("cp.async.wait_group 1;", "cp.async.wait_group 2;", "race"),
            ("bar.sync 0;", "", "race"),
            ("rem.u32 %r3, %r2, 3;", "rem.u32 %r3, %r2, 2;", "race"),
        ),
        [sum(31 - lane + 32 * i for i in range(5)) for lane in LANES],
        {"x": iota(160)},
    ),
    Twin(
        "named barriers of several counts",
        """setp.eq.u32 %p1, %r25, 0; setp.eq.u32 %p2, %r25, 3; @%p2 bra LAST; shl.b32 %r1, %r25, 7;
        add.u32 %r1, %r1, %r27;
        st.shared.u32 [%r1], %r31; @!%p1 bra OTHERS; bar.sync 1, 96; ld.shared.u32 %r2, [%r27+128];
        ld.shared.u32 %r3, [%r27+256]; add.u32 %r2, %r2, %r3; st.shared.u32 [%r27+384], %r2; bar.arrive 2, 64; bra END;
        OTHERS: bar.arrive 1, 96; bra END;
        LAST: bar.sync 2, 64; ld.shared.u32 %r2, [%r27+384]; st.global.u32 [%d30], %r2; END:""",
        (
            ("bar.sync 1, 96;", "bar.sync 1, 64;", "protocol"),
            ("st.shared.u32 [%r27+384], %r2; bar.arrive 2, 64;", "bar.arrive 2, 64; st.shared.u32 [%r27+384], %r2;",
             "race"),
            ("LAST: bar.sync 2, 64;", "LAST: bar.sync 2, 32;", "race"),
            ("OTHERS: bar.arrive 1, 96;", "OTHERS: bar.arrive 1, 64;", "protocol"),
            ("LAST: bar.sync 2, 64;", "LAST: bar.sync 3, 64;", "deadlock"),
        ),
        [96 + 2 * lane for lane in LANES],
        {},
        {"block": 128},
    ),
    Twin(
        "a store's source is written again after its read",
        f"""st.shared.u32 [%r27], %r31; {FENCE} bar.warp.sync -1; @!%p31 bra A;
        {STORE} [%o], [%r30], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
        A: bar.warp.sync -1; add.u32 %r1, %r31, 7; st.shared.u32 [%r27], %r1; {FENCE} bar.warp.sync -1; @!%p31 bra END;
        {STORE} [%y], [%r30], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:""",
        (
            ("wait_group.read 0;", "wait_group.read 1;", "race"),
            ("cp.async.bulk.wait_group.read 0;", "", "race"),
            ("A: bar.warp.sync -1;", "A:", "race"),
            ("cp.async.bulk.wait_group 0;", "", "exit"),
        ),
        LANES,
        {"y": iota(32)},
    ),
    Twin(
        "a store's result is read after its end",
        f"""add.u32 %r1, %r31, 5; st.shared.u32 [%r27], %r1; {FENCE} bar.warp.sync -1; @!%p31 bra A;
        {STORE} [%y], [%r30], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
        A: bar.warp.sync -1; add.u64 %d1, %y, %d31; ld.global.u32 %r2, [%d1]; st.global.u32 [%d30], %r2;""",
        (("wait_group 0;", "wait_group.read 0;", "race"), ("cp.async.bulk.commit_group;", "", "race")),
        [lane + 5 for lane in LANES],
        {"y": iota(32)},
    ),
    Twin(
        "a proxy fence on both paths",
        f"""setp.lt.u32 %p1, %r26, 16; @%p1 bra LOW; st.shared.u32 [%r27], %r31; {FENCE} bra DONE;
        LOW: add.u32 %r1, %r31, 0; st.shared.u32 [%r27], %r1; fence.proxy.async; DONE: bar.sync 0; @!%p31 bra END;
        {STORE} [%o], [%r30], 128; cp.async.bulk.commit_group; cp.async.bulk.wait_group 0; END:""",
        (("fence.proxy.async; DONE", "DONE", "race"), (FENCE, "", "race"), ("bar.sync 0;", "", "race")),
        LANES,
    ),
    Twin(
        "st.async into the other block",
        f"""{INIT.format(at=1024, count=1)} {INITED} @%p31 mbarrier.arrive.expect_tx.shared.b64 _, [%r30+1024], 128;
        {MEET}
        xor.b32 %r1, %r29, 1; mapa.shared::cluster.u32 %r2, %r27, %r1; add.u32 %r3, %r30, 1024;
        mapa.shared::cluster.u32 %r3, %r3, %r1; mad.lo.u32 %r4, %r29, 100, %r31;
        st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%r2], %r4, [%r3];
        W: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p1, [%r30+1024], 0; @!%p1 bra W;
        ld.shared.u32 %r5, [%r27]; mul.wide.u32 %d1, %r29, 128; add.u64 %d1, %d1, %d30; st.global.u32 [%d1], %r5;""",
        (
            ("@!%p1 bra W;", "", "race"),
            ("1024], 128; " + MEET, "1024], 128;", "race"),
            ("1024], 128; " + MEET, "1024], 124; " + MEET, "exit"),
            ("1024], 128; " + MEET, "1024], 132; " + MEET, "deadlock"),
            ("mapa.shared::cluster.u32 %r3, %r3, %r1;", "mapa.shared::cluster.u32 %r3, %r3, %r29;", "error"),
        ),
        [100 + lane for lane in LANES] + LANES,
        {},
        {"grid": 2, "cluster": 2},
    ),
    Twin(
        "a block reads the other's shared memory before that ends",
        f"""mad.lo.u32 %r1, %r29, 100, %r31; st.shared.u32 [%r27], %r1; {MEET} xor.b32 %r2, %r29, 1;
        mapa.shared::cluster.u32 %r3, %r27, %r2; ld.shared::cluster.u32 %r4, [%r3]; mul.wide.u32 %d1, %r29, 128;
        add.u64 %d1, %d1, %d30; st.global.u32 [%d1], %r4; {LAST}""",
        (
            (LAST, "", "exit"),
            ("barrier.cluster.wait.aligned;", "", "exit"),
            (MEET, "barrier.cluster.arrive.relaxed; barrier.cluster.wait;", "race"),
            (MEET, "bar.sync 0;", "race"),
        ),
        [100 + lane for lane in LANES] + LANES,
        {},
        {"grid": 2, "cluster": 2},
    ),
    Twin(
        "multicast to all blocks",
        f"""{INIT.format(at=1024, count=1)} {INITED} @%p31 mbarrier.arrive.expect_tx.shared.b64 _, [%r30+1024], 128;
        {MEET}
        setp.eq.u32 %p1, %r29, 0; and.pred %p1, %p1, %p31; mov.u16 %h1, 3; @!%p1 bra W;
        cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster
        [%r30], [%x], 128, [%r30+1024], %h1;
        W: mbarrier.try_wait.parity.shared.b64 %p2, [%r30+1024], 0; @!%p2 bra W;
        ld.shared.u32 %r5, [%r27]; mul.wide.u32 %d1, %r29, 128; add.u64 %d1, %d1, %d30; st.global.u32 [%d1], %r5;
        END:""",
        (
            ("W: mbarrier", "W: setp.eq.u32 %p3, %r29, 1; @%p3 bra END; mbarrier", "exit"),
            ("mov.u16 %h1, 3;", "mov.u16 %h1, 1;", "deadlock"),
            ("128; " + MEET, "128;", "race"),
            ("[%r30+1024], 128; ", "[%r30+1024], 256; ", "deadlock"),
        ),
        LANES + LANES,
        {"x": iota(32)},
        {"grid": 2, "cluster": 2},
    ),
    Twin(
        "two consumers take turns over odd tiles",
        f"""mov.u32 %r1, 0; INIT: mad.lo.u32 %r4, %r1, 8, %r30; @%p31 mbarrier.init.shared.b64 [%r4+1024], 1;
        @%p31 mbarrier.init.shared.b64 [%r4+1088], 1; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 6; @%p1 bra INIT;
        {INITED}
        setp.eq.u32 %p0, %r25, 0; @!%p0 bra C; @!%p31 bra END; mov.u32 %r1, 0;
        P: rem.u32 %r2, %r1, 6; mad.lo.u32 %r4, %r2, 8, %r30; div.u32 %r3, %r1, 6; and.b32 %r3, %r3, 1;
        xor.b32 %r3, %r3, 1;
        PW: mbarrier.try_wait.parity.shared.b64 %p1, [%r4+1088], %r3; @!%p1 bra PW;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r4+1024], 128; mad.lo.u32 %r5, %r2, 128, %r30;
        mul.wide.u32 %d1, %r1, 128; add.u64 %d1, %x, %d1; {LOAD} [%r5], [%d1], 128, [%r4+1024];
        add.u32 %r1, %r1, 1; setp.lt.u32 %p2, %r1, 15; @%p2 bra P; bra END;
        C: sub.u32 %r10, %r25, 1; mul.lo.u32 %r1, %r10, 3;
        T: setp.ge.u32 %p3, %r10, 5; @%p3 bra END; mov.u32 %r9, 0; mov.u32 %r11, 0;
        K: rem.u32 %r2, %r1, 6; mad.lo.u32 %r4, %r2, 8, %r30; div.u32 %r3, %r1, 6; and.b32 %r3, %r3, 1;
        CW: mbarrier.try_wait.parity.shared.b64 %p1, [%r4+1024], %r3; @!%p1 bra CW; mad.lo.u32 %r5, %r2, 128, %r27;
        ld.shared.u32 %r6, [%r5]; add.u32 %r9, %r9, %r6; {FENCE} bar.warp.sync -1;
        @%p30 mbarrier.arrive.shared.b64 _, [%r4+1088]; add.u32 %r1, %r1, 1; add.u32 %r11, %r11, 1;
        setp.lt.u32 %p2, %r11, 3; @%p2 bra K; mul.wide.u32 %d1, %r10, 128; add.u64 %d1, %d1, %d30;
        st.global.u32 [%d1], %r9; add.u32 %r10, %r10, 2; add.u32 %r1, %r1, 3; bra T; END:""",
        (
            ("add.u32 %r10, %r10, 2; add.u32 %r1, %r1, 3;", "add.u32 %r10, %r10, 2;", "error"),
            ("mul.lo.u32 %r1, %r10, 3;", "mov.u32 %r1, 0;", "deadlock"),
            ("div.u32 %r3, %r1, 6; and.b32 %r3, %r3, 1;\n        CW", "mov.u32 %r3, 0;\n        CW", "deadlock"),
            ("setp.ge.u32 %p3, %r10, 5;", "setp.ge.u32 %p3, %r10, 4;", "exit"),
            (f"{FENCE} bar.warp.sync -1;\n        @%p30", "@%p30", "lint"),
            ("setp.lt.u32 %p2, %r1, 15;", "setp.lt.u32 %p2, %r1, 14;", "deadlock"),
        ),
        [int(sum(lane + 32 * (3 * tile + k) for k in range(3))) for tile in range(5) for lane in LANES],
        {"x": iota(15 * 32)},
        {"block": 96},
    ),
    Twin(
        "a lock in shared memory",
        """mov.u32 %r9, 1; mov.u32 %r10, 0; @%p31 st.shared.u32 [%r30], %r10; @%p31 st.shared.u32 [%r30+4], %r10;
        bar.sync 0;
        @!%p30 bra M; L: atom.acquire.cta.shared.cas.b32 %r11, [%r30], %r10, %r9; setp.ne.u32 %p1, %r11, 0; @%p1 bra L;
        ld.shared.u32 %r12, [%r30+4]; add.u32 %r12, %r12, 1; st.shared.u32 [%r30+4], %r12;
        st.release.cta.shared.u32 [%r30], %r10; M: bar.sync 0; ld.shared.u32 %r1, [%r30+4];
        st.global.u32 [%d30], %r1;""",
        (
            ("st.release.cta", "st.relaxed.cta", "race"),
            ("st.release.cta.shared", "st.volatile.shared", "race"),
            ("atom.acquire.cta.shared.cas", "atom.relaxed.cta.shared.cas", "race"),
            ("add.u32 %r12, %r12, 1; st.shared.u32 [%r30+4], %r12;\n        st.release.cta.shared.u32 [%r30], %r10;",
             "st.release.cta.shared.u32 [%r30], %r10; add.u32 %r12, %r12, 1; st.shared.u32 [%r30+4], %r12;", "race"),
        ),
        [4] * 32,
        {},
        {"block": 128},
    ),
    Twin(
        "the last block adds what all have written",
        """mul.wide.u32 %d5, %r31, 4; mul.wide.u32 %d1, %r24, 256; add.u64 %d1, %d1, %d5; add.u64 %d1, %d1, %y;
        add.u32 %r2, %r31, %r24; st.global.u32 [%d1], %r2; membar.gl; bar.sync 0; mov.u32 %r3, 1;
        @%p31 atom.global.add.u32 %r4, [%c], %r3; @%p31 st.shared.u32 [%r30], %r4; bar.sync 0;
        ld.shared.u32 %r5, [%r30];
        setp.ne.u32 %p1, %r5, 2; @%p1 bra END; membar.gl; add.u64 %d2, %y, %d5; ld.global.u32 %r6, [%d2];
        ld.global.u32 %r7, [%d2+256]; ld.global.u32 %r8, [%d2+512]; add.u32 %r6, %r6, %r7; add.u32 %r6, %r6, %r8;
        add.u64 %d2, %o, %d5; st.global.u32 [%d2], %r6; END:""",
        (
            ("membar.gl; bar.sync 0;", "bar.sync 0;", "race"),
            ("membar.gl; bar.sync 0;", "membar.cta; bar.sync 0;", "race"),
            ("membar.gl; bar.sync 0;", "membar.gl;", "race"),
            ("@%p1 bra END; membar.gl;", "@%p1 bra END;", "lint"),
            ("st.shared.u32 [%r30], %r4; bar.sync 0;", "st.shared.u32 [%r30], %r4;", "race"),
        ),
        [3 * tid + 3 for tid in range(64)],
        {"y": iota(192), "c": np.zeros(1, np.uint32)},
        {"grid": 3, "block": 64},
    ),
    Twin(
        "a warp's flag behind bar.warp.sync",
        """setp.ne.u32 %p0, %r24, 0; @%p0 bra READ; add.u64 %d1, %y, %d31; st.global.u32 [%d1], %r31; bar.warp.sync -1;
        mov.u32 %r1, 1; st.global.u32 [%d1+256], %r31; @%p31 st.release.gpu.global.u32 [%f], %r1;
        add.u64 %d1, %d1, 128; st.global.u32 [%d1], %r31;
        bra END;
        READ: @!%p31 bra GO; POLL: ld.acquire.gpu.global.u32 %r2, [%f]; setp.eq.u32 %p1, %r2, 0; @%p1 bra POLL;
        GO: bar.warp.sync -1; add.u64 %d1, %y, %d31; ld.global.u32 %r3, [%d1]; st.global.u32 [%d30], %r3; END:""",
        (
            ("bar.warp.sync -1;", "", "race"),
            ("bar.warp.sync -1;", "setp.lt.u32 %p3, %r26, 16; @!%p3 bra A; bar.warp.sync 0xffff; A:", "race"),
            ("ld.global.u32 %r3, [%d1];", "ld.global.u32 %r3, [%d1+128];", "race"),
            ("ld.global.u32 %r3, [%d1];", "ld.global.u32 %r3, [%d1+256];", "race"),
        ),
        LANES,
        {"y": iota(96), "f": np.zeros(1, np.uint32)},
        {"grid": 2},
    ),
    Twin(
        "a flag that a block polls",
        """setp.ne.u32 %p0, %r24, 0; mul.wide.u32 %d5, %r31, 4; add.u64 %d1, %y, %d5; @%p0 bra READ;
        st.global.u32 [%d1], %r31;
        bar.sync 0; mov.u32 %r1, 1; @%p31 st.release.gpu.global.u32 [%f], %r1; bra END; READ: @!%p31 bra GO;
        POLL: ld.acquire.gpu.global.u32 %r2, [%f]; setp.eq.u32 %p1, %r2, 0; @%p1 bra POLL; GO: bar.sync 0;
        ld.global.u32 %r3, [%d1]; add.u64 %d1, %o, %d5; st.global.u32 [%d1], %r3; END:""",
        (
            ("bar.sync 0; mov.u32 %r1, 1;", "mov.u32 %r1, 1;", "race"),
            ("st.release.gpu", "st.relaxed.gpu", "race"),
            ("st.release.gpu.global", "st.global", "race"),
            ("ld.acquire.gpu", "ld.relaxed.gpu", "race"),
            ("ld.acquire.gpu", "ld.acquire.cta", "race"),
            ("GO: bar.sync 0;", "GO:", "race"),
        ),
        list(range(64)),
        {"y": iota(64), "f": np.zeros(1, np.uint32)},
        {"grid": 2, "block": 64},
    ),
    Twin(
        "one barrier an iteration, two buffers",
        """mov.u32 %r1, 0; mov.u32 %r9, 0; L: and.b32 %r2, %r1, 1; mad.lo.u32 %r3, %r2, 256, %r30;
        mad.lo.u32 %r4, %r31, 4, %r3;
        add.u32 %r5, %r31, %r1; st.shared.u32 [%r4], %r5; bar.sync 0; xor.b32 %r6, %r31, 32;
        mad.lo.u32 %r4, %r6, 4, %r3;
        ld.shared.u32 %r7, [%r4]; add.u32 %r9, %r9, %r7; add.u32 %r1, %r1, 1; setp.lt.u32 %p1, %r1, 4; @%p1 bra L;
        mul.wide.u32 %d1, %r31, 4; add.u64 %d1, %o, %d1; st.global.u32 [%d1], %r9;""",
        (("and.b32 %r2, %r1, 1;", "mov.u32 %r2, 0;", "race"), ("bar.sync 0;", "bar.warp.sync -1;", "race")),
        [4 * (tid ^ 32) + 6 for tid in range(64)],
        {},
        {"block": 64},
    ),
    Twin(
        "lanes exchange words behind bar.warp.sync",
        """st.shared.u32 [%r27], %r31; bar.warp.sync -1; xor.b32 %r1, %r26, 16; mad.lo.u32 %r2, %r1, 4, %r30;
        ld.shared.u32 %r3, [%r2]; st.global.u32 [%d30], %r3;""",
        (
            ("bar.warp.sync -1;", "", "race"),
            ("bar.warp.sync -1;", "setp.lt.u32 %p1, %r26, 16; @%p1 bra A; bar.warp.sync 0xffff0000; bra B; "
             "A: bar.warp.sync 0xffff; B:", "race"),
            ("bar.warp.sync -1;", "bar.warp.sync 0xffff;", "divergence"),
        ),
        [lane ^ 16 for lane in LANES],
    ),
    Twin(
        "a shuffle among those that take part",
        """setp.lt.u32 %p1, %r26, 16; mov.u32 %r2, 0; @!%p1 bra A; shfl.sync.bfly.b32 %r2, %r31, 8, 0x1f, 0xffff;
        A: st.global.u32 [%d30], %r2;""",
        (
            ("%r31, 8,", "%r31, 16,", "divergence"),
            ("0xffff;", "-1;", "divergence"),
            ("0xffff;", "0xff;", "divergence"),
        ),
        [lane ^ 8 for lane in range(16)] + [0] * 16,
    ),
    Twin(
        "a reduction of a branch's lanes",
        """setp.lt.u32 %p1, %r26, 20; mov.u32 %r2, 0; @!%p1 bra A; redux.sync.add.u32 %r2, %r31, 0xfffff;
        A: st.global.u32 [%d30], %r2;""",
        (("0xfffff;", "0xffff;", "divergence"), ("0xfffff;", "-1;", "divergence")),
        [190] * 20 + [0] * 12,
    ),
    Twin(
        "elect in a branch",
        """setp.lt.u32 %p1, %r26, 8; mov.u32 %r2, 0; @%p1 bra A; elect.sync %r3|%p2, 0xffffff00;
        selp.u32 %r2, 1, 2, %p2;
        A: st.global.u32 [%d30], %r2;""",
        (("0xffffff00;", "-1;", "divergence"), ("0xffffff00;", "0xff;", "divergence")),
        [0] * 8 + [1] + [2] * 23,
    ),
    Twin(
        "vectors of 16 bytes",
        """st.shared.u32 [%r27], %r31; bar.warp.sync -1; and.b32 %r1, %r31, 7; shl.b32 %r2, %r1, 4;
        add.u32 %r2, %r2, %r30;
        ld.shared.v4.u32 {%r3, %r4, %r5, %r6}, [%r2]; st.global.u32 [%d30], %r6;""",
        (("shl.b32 %r2, %r1, 4;", "shl.b32 %r2, %r1, 3;", "error"), ("[%r2];", "[%r2+4];", "error")),
        [4 * (lane % 8) + 3 for lane in LANES],
    ),
    Twin(
        "rows of ldmatrix",
        """mov.u32 %r9, 0; L: mad.lo.u32 %r1, %r9, 128, %r27; mad.lo.u32 %r2, %r9, 32, %r31; st.shared.u32 [%r1], %r2;
        add.u32 %r9, %r9, 1; setp.lt.u32 %p1, %r9, 4; @%p1 bra L; bar.warp.sync -1; mad.lo.u32 %r1, %r31, 16, %r30;
        ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%r2, %r3, %r4, %r5}, [%r1]; st.global.u32 [%d30], %r5;""",
        (
            ("mad.lo.u32 %r1, %r31, 16, %r30;", "mad.lo.u32 %r1, %r31, 24, %r30;", "error"),
            ("mad.lo.u32 %r1, %r31, 16, %r30;", "mad.lo.u32 %r1, %r31, 144, %r30;", "error"),
            ("setp.lt.u32 %p1, %r9, 4;", "setp.lt.u32 %p1, %r9, 3;", "uninitialised"),
            ("bar.warp.sync -1;", "", "race"),
        ),
        [96 + lane for lane in LANES],
    ),
    Twin(
        "shared memory that a mask leaves out",
        """setp.lt.u32 %p1, %r26, 20; @%p1 st.shared.u32 [%r27], %r31; bar.warp.sync -1; ld.shared.u32 %r1, [%r27];
        mov.u32 %r2, 0; selp.u32 %r3, %r1, %r2, %p1; st.global.u32 [%d30], %r3;""",
        (("selp.u32 %r3, %r1, %r2, %p1;", "add.u32 %r3, %r1, %r2;", "uninitialised"),),
        list(range(20)) + [0] * 12,
    ),
    Twin(
        "partial sums into another block",
        f"""mov.u32 %r1, 0; @%p31 st.shared.u32 [%r30], %r1; {MEET} mapa.shared::cluster.u32 %r2, %r30, 0;
        red.shared::cluster.add.u32 [%r2], %r31; {LAST}
        setp.ne.u32 %p1, %r29, 0; @%p1 bra END; ld.shared.u32 %r3, [%r30]; st.global.u32 [%d30], %r3; END:""",
        (
            (MEET, "", "race"),
            (LAST, "bar.sync 0;", "race"),
            (LAST, "barrier.cluster.arrive.relaxed; barrier.cluster.wait;", "race"),
        ),
        [2 * 496] * 32,
        {},
        {"grid": 2, "cluster": 2},
    ),
    Twin(
        "one thread waits for a copy, a barrier tells the others",
        f"""{INIT.format(at=1024, count=1)} {INITED} @!%p31 bra A;
        mbarrier.arrive.expect_tx.shared.b64 _, [%r30+1024], 128;
        {LOAD} [%r30], [%x], 128, [%r30+1024]; W: mbarrier.try_wait.parity.shared.b64 %p1, [%r30+1024], 0; @!%p1 bra W;
        A: bar.sync 0; ld.shared.u32 %r1, [%r27]; mul.wide.u32 %d1, %r31, 4; add.u64 %d1, %o, %d1;
        st.global.u32 [%d1], %r1;""",
        (
            ("A: bar.sync 0;", "A:", "race"),
            ("@!%p1 bra W;", "", "race"),
            ("W: mbarrier.try_wait.parity", "W: mbarrier.try_wait.parity.relaxed.cta", "race"),
        ),
        LANES + LANES,
        {"x": iota(32)},
        {"block": 64},
    ),
    Twin(
        "copies of cp.async arrive at a barrier",
        f"""{INIT.format(at=1024, count=32)} {INITED} setp.ge.u32 %p1, %r31, 32; @%p1 bra W; add.u64 %d1, %x, %d31;
        cp.async.ca.shared.global [%r27], [%d1], 4; cp.async.mbarrier.arrive.noinc.shared.b64 [%r30+1024]; bra END;
        W: mbarrier.try_wait.parity.shared.b64 %p1, [%r30+1024], 0; @!%p1 bra W; ld.shared.u32 %r1, [%r27];
        st.global.u32 [%d30], %r1; END:""",
        (
            ("cp.async.mbarrier.arrive.noinc.shared.b64 [%r30+1024];", "mbarrier.arrive.shared.b64 _, [%r30+1024];",
             "race"),
            (".noinc", "", "deadlock"),
            (INIT.format(at=1024, count=32), INIT.format(at=1024, count=31), "protocol"),
        ),
        LANES,
        {"x": iota(32)},
        {"block": 64},
    ),
    Twin(
        "a barrier's memory is used again",
        f"""{INIT.format(at=0, count=64)} {INITED} mbarrier.arrive.shared.b64 _, [%r30];
        W: mbarrier.try_wait.parity.shared.b64 %p1, [%r30], 0; @!%p1 bra W; bar.sync 0;
        @%p31 mbarrier.inval.shared.b64 [%r30];
        @%p31 st.shared.u32 [%r30], %r31; bar.sync 0; ld.shared.u32 %r1, [%r30]; add.u32 %r1, %r1, %r26;
        st.global.u32 [%d30], %r1;""",
        (
            ("@!%p1 bra W; bar.sync 0;", "@!%p1 bra W;", "protocol"),
            ("@%p31 mbarrier.inval.shared.b64 [%r30];", "", "lint"),
            ("bar.sync 0; @%p31 mbarrier.inval.shared.b64 [%r30];", "", "protocol"),
            ("mbarrier.arrive.shared.b64 _, [%r30];", "@%p31 st.shared.u32 [%r30], %r31; bar.sync 0; "
             "mbarrier.arrive.shared.b64 _, [%r30];", "error"),
        ),
        LANES,
        {},
        {"block": 64},
    ),
    Twin(
        "registers move from one warpgroup to another",
        """setp.lt.u32 %p1, %r31, 128; @!%p1 bra MORE; setmaxnreg.dec.sync.aligned.u32 24; bra DONE;
        MORE: setmaxnreg.inc.sync.aligned.u32 240; DONE: setp.lt.u32 %p2, %r31, 32; @%p2 st.global.u32 [%d30], %r26;""",
        (
            ("setmaxnreg.dec.sync.aligned.u32 24;", "", "deadlock"),
            ("setmaxnreg.dec.sync.aligned.u32 24;", "setmaxnreg.dec.sync.aligned.u32 40;", "deadlock"),
            ("setmaxnreg.dec.sync.aligned.u32 24;", "@!%p31 bra DONE; setmaxnreg.dec.sync.aligned.u32 24;", "deadlock"),
            ("setp.lt.u32 %p1, %r31, 128;", "setp.lt.u32 %p1, %r31, 160;", "protocol"),
        ),
        LANES,
        {},
        {"block": 384},
        directives=".reqntid 384 .minnctapersm 1",
    ),
]  # fmt: skip


@pytest.mark.parametrize("twin", TWINS, ids=lambda twin: twin.name)
def test_the_right_one_is_silent(twin: Twin) -> None:
    findings, out = twin.run()
    assert [finding for finding in findings if finding.kind != "lint"] == []
    assert not isinstance(out, str) and out.tolist() == twin.want, out


@pytest.mark.parametrize(
    ("twin", "old", "new", "kind"),
    [(twin, *wrong) for twin in TWINS for wrong in twin.wrong],
    ids=lambda x: getattr(x, "name", ""),
)
def test_each_mistake_is_found(twin: Twin, old: str, new: str, kind: str) -> None:
    """A finding has a line, the role of its warp, and a remedy."""
    findings, out = twin.run(old, new)
    if isinstance(out, str):
        assert out.startswith(kind), out
        assert re.search(r"PTX line \d+", out) and re.search(r"CTA \(\d, 0, 0\) warps? \d", out), out
        return
    hits = [finding for finding in findings if finding.kind == kind]
    assert hits, [str(finding) for finding in findings]
    for hit in hits:
        assert hit.orders, hit
        assert (hit.line and hit.role) or kind == "exit", hit
