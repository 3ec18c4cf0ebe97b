"""Spellings of memory and synchronising instructions: those that ptxas takes, and no others."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from layoutgemm.emulator.ptx.coverage import refusals
from layoutgemm.emulator.ptx.parser import parse
from layoutgemm.errors import PtxError
from tests import needs
from tests.emulator.run_ptx import run

PTXAS = shutil.which("ptxas")
DECLARED = " ".join(
    f".reg .{kind} %{letter}<8>;"
    for letter, kind in {"p": "pred", "h": "b16", "r": "b32", "d": "b64", "f": "f32", "e": "f64", "q": "b128"}.items()
)
ORDERS = ("", "acquire.cta", "acquire.cluster", "release.cta", "release.cluster", "relaxed.cta", "relaxed.cluster")
ORDERS += ("acquire", "release", "cta", "acquire.gpu", "relaxed", "acq_rel.gpu", "acq_rel")
# Spelled alike, and in other words: their operands' registers.
VALUES = {
    "u32": "%r1",
    "s32": "%r1",
    "b32": "%r1",
    "u64": "%d1",
    "s64": "%d1",
    "b64": "%d1",
    "f32": "%f1",
    "b16": "%h1",
    "f64": "%e1",
    "f16": "%h1",
    "bf16": "%h1",
    "f16x2": "%r1",
    "bf16x2": "%r1",
    "b128": "%q1",
}


def joined(*words: str) -> str:
    return ".".join(word for word in words if word)


def barriers() -> Iterator[str]:
    for order, space in itertools.product(ORDERS, ("", "shared", "shared::cta", "shared::cluster")):
        at = "[%r0]" if space else "[%d0]"
        for name, parity, limit in itertools.product(("try_wait", "test_wait"), ("parity", ""), ("", ", %r2")):
            phase = "%r1" if parity else "%d1"
            yield f"mbarrier.{joined(name, parity, order, space, 'b64')} %p0, {at}, {phase}{limit};"
        for name, state in itertools.product(("arrive", "arrive_drop"), ("%d1", "_")):
            yield f"mbarrier.{joined(name, order, space, 'b64')} {state}, {at};"
            yield f"mbarrier.{joined(name, order, space, 'b64')} {state}, {at}, %r1;"
            yield f"mbarrier.{joined(name, 'expect_tx', order, space, 'b64')} {state}, {at}, %r1;"
            yield f"mbarrier.{joined(name, 'noComplete', order, space, 'b64')} {state}, {at}, %r1;"
        yield f"mbarrier.{joined('expect_tx', order, space, 'b64')} {at}, 16;"
        yield f"mbarrier.{joined('init', order, space, 'b64')} {at}, 4;"
        yield f"mbarrier.{joined('inval', order, space, 'b64')} {at};"
    for name, cta, aligned in itertools.product(("bar", "barrier"), ("", "cta"), ("", "aligned")):
        for what, operands in itertools.product(("sync", "arrive"), ("0", "1, 64", "%r0", "%r0, %r1", "0, 48", "16")):
            yield f"{joined(name, cta, what, aligned)} {operands};"
        yield f"{joined(name, cta, 'red.popc', aligned, 'u32')} %r0, 0, %p0;"
        for how, kind in itertools.product(("and", "or", "xor"), ("pred", "u32")):
            yield f"{joined(name, cta, 'red', how, aligned, kind)} %p1, 0, 64, !%p0;"
    for what, order, aligned in itertools.product(
        ("arrive", "wait"), ORDERS[:1] + ORDERS[7:9] + ("relaxed",), ("", "aligned")
    ):
        yield f"{joined('barrier.cluster', what, order, aligned)};"
    fences = ("sc", "acq_rel", "acquire", "release", "", "volatile")
    for order, scope in itertools.product(fences, ("cta", "cluster", "gpu", "sys", "")):
        yield f"{joined('fence', order, scope)};"
    for space in ("", "global", "shared::cta", "shared::cluster", "shared"):
        yield f"{joined('fence.proxy.async', space)};"
    for words in (
        "membar.cta",
        "membar.gl",
        "membar.sys",
        "membar.gpu",
        "fence.mbarrier_init.release.cluster",
        "fence.mbarrier_init",
    ):
        yield f"{words};"


def accesses() -> Iterator[str]:
    scopes = ("", "volatile", "relaxed.gpu", "acquire.sys", "release.cluster", "weak", "relaxed", "acquire", "gpu")
    for words, space in itertools.product(scopes, ("", "global", "shared", "shared::cluster")):
        at = "[%r0]" if "shared" in space else "[%d0]"
        yield f"{joined('ld', words, space, 'b32')} %r1, {at};"
        yield f"{joined('st', words, space, 'b32')} {at}, %r1;"
        yield f"{joined('atom', words, space, 'add.u32')} %r1, {at}, %r2;"
        yield f"{joined('red', words, space, 'add.u32')} {at}, %r2;"
    for words in (
        "L1::no_allocate.L2::256B",
        "nc.L1::evict_last",
        "L1::evict_first.L2::cache_hint",
        "nc",
        "cv",
        "lu",
        "wt",
    ):
        policy = ", %d1" if "hint" in words else ""
        yield f"ld.global.{words}.v4.f32 {{%f0, %f1, %f2, %f3}}, [%d0]{policy};"
        yield f"st.global.{words}.b32 [%d0], %r1{policy};"
    names = ("add", "min", "max", "inc", "dec", "and", "or", "xor", "cas", "exch")
    for name, kind, ftz in itertools.product(names, VALUES, ("", "noftz")):
        value = VALUES[kind]
        more = f", {value}" if name == "cas" else ""
        yield f"{joined('atom.global', name, ftz, kind)} {value}, [%d0], {value}{more};"
        yield f"{joined('red.global', name, ftz, kind)} [%d0], {value}{more};"
        for vector in (2, 4, 8):
            values = "{" + ", ".join([value] * vector) + "}"
            if name in ("add", "min"):
                yield f"{joined('red.global', name, ftz, f'v{vector}', kind)} [%d0], {values};"
    asynchronous = "mbarrier::complete_tx::bytes"
    for name, kind in itertools.product(names, ("u32", "s32", "u64", "s64", "b32", "b64", "f32", "f16", "bf16", "f64")):
        value = VALUES[kind]
        yield f"red.async.relaxed.cluster.{asynchronous}.shared::cluster.{name}.{kind} [%r0], {value}, [%r2];"
        yield f"cp.reduce.async.bulk.shared::cluster.shared::cta.{asynchronous}.{name}.{kind} [%r0], [%r1], 64, [%r2];"
        for ftz in ("", "noftz"):
            yield f"{joined('cp.reduce.async.bulk.global.shared::cta.bulk_group', name, ftz, kind)} [%d0], [%r0], 64;"
    for kind, vector in itertools.product(("b32", "b64", "b16", "f32"), ("", "v2", "v4")):
        value = VALUES[kind] if not vector else "{" + ", ".join([VALUES[kind]] * int(vector[1])) + "}"
        yield f"{joined('st.async.shared::cluster', asynchronous, vector, kind)} [%r0], {value}, [%r2];"


def vectors() -> Iterator[str]:
    """Loads and stores of vectors, with words that not every vector, space and target has."""
    orders = ("", "volatile", "relaxed.gpu", "nc", "mmio.relaxed.sys", "ca")
    sizes = (("", "b32"), ("v4", "b32"), ("v8", "b32"), ("v4", "b64"), ("v8", "b16"), ("v2", "b128"), ("v8", "b64"),
             ("v4", "f64"), ("", "b128"), ("v2", "f32"))  # fmt: skip
    spaces = ("global", "", "shared", "shared::cluster", "local", "const", "param")
    hints = ("", "L1::evict_last", "L1::no_allocate", "L2::evict_last", "L2::cache_hint", "L2::128B",
             "L1::evict_last.L2::evict_last.L2::cache_hint")  # fmt: skip
    for order, hint, (vector, kind), space in itertools.product(orders, hints, sizes, spaces):
        if order == "volatile" and ("L2::evict" in hint or space == "local"):
            continue  # ptxas takes the one, PTX does not; the other is newer than .version 8.8
        value = VALUES[kind]
        if vector:
            value = "{" + ", ".join(f"{value[:2]}{n}" for n in range(int(vector[1]))) + "}"
        at, policy = "[%r0]" if "shared" in space else "[%d0]", ", %d1" if "cache_hint" in hint else ""
        yield f"{joined('ld', order, space, hint, vector, kind)} {value}, {at}{policy};"
        if order not in ("nc", "ca") and "128B" not in hint:
            yield f"{joined('st', order, space, hint, vector, kind)} {at}, {value}{policy};"
        if not order and not hint and space in ("", "global"):
            yield f"{joined('ldu', space, vector, kind)} {value}, {at};"
    for operator in ("ca", "cg", "cs", "lu", "cv", "wb"):
        yield f"ld.const.{operator}.b32 %r1, [%d0];"
    names = ("%tid.w", "%cluster_nctaid.w", "%lanemask_gt", "%pm7", "%envreg31", "%reserved_smem_offset_cap", "%nsmid")
    for name in names:
        yield f"mov.u32 %r1, {name};"
    yield from ("mov.u64 %d1, %current_graph_exec;", "mov.u64 %d1, %clock64;", "isspacep.param::entry %p0, %d0;")


def others() -> Iterator[str]:
    for name, kind in itertools.product(("add", "min", "and", "xor"), ("u32", "s32", "b32")):
        yield f"redux.sync.{name}.{kind} %r0, %r1, -1;"
    yield from (
        "redux.sync.min.f32 %f0, %f1, -1;", "redux.sync.max.abs.NaN.f32 %f0, %f1, -1;",
        "match.any.sync.b32 %r0, %r1, -1;", "match.any.sync.b32 %r0|%p0, %r1, -1;",
        "match.all.sync.b64 %r0|%p0, %d1, -1;", "nanosleep.u32 %r0;", "nanosleep.b32 1;",
        "discard.global.L2 [%d0], 128;", "discard.L2 [%d0], 64;", "setmaxnreg.inc.sync.aligned.u32 264;",
        "applypriority.global.L2::evict_normal [%d0], 128;", "applypriority.L2::evict_normal [%d0], 64;",
        "prefetchu.L1 [%d0];", "prefetchu.L2 [%d0];", "prefetchu.global.L1 [%d0];",
        "prefetch.global.L2 [%d0];", "prefetch.shared.L2 [%r0];", "prefetch.tensormap [%d0];", "prefetch.L1 [%d0];",
        "setmaxnreg.inc.sync.aligned.u32 232;", "setmaxnreg.dec.sync.aligned.u32 25;",
        "setmaxnreg.inc.sync.aligned.u32 %r0;", "cp.async.bulk.wait_group %r0;", "cp.async.bulk.wait_group.read 1;",
        "st.bulk.weak.shared::cta [%r0], 64, 0;", "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p0, %q0;",
        "vote.sync.ballot.b32 %r0, %p0, -1;",
        "clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r0], [%r1];",
        "stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r0], {%r1};", "vote.sync.all.pred %p0, !%p1, -1;",
        "ldmatrix.sync.aligned.m8n16.x1.shared.b8x16.b6x16_p32 {%r0}, [%r1];",
        "cp.async.bulk.global.shared::cta.bulk_group.cp_mask [%d0], [%r0], 64, %h0;",
    )  # fmt: skip


def refused_by_ptxas(lines: list[str], target: str, folder: Path, declared: str = DECLARED) -> dict[int, str]:
    """Line -> error, for each line that ptxas refuses."""
    text = folder / "lines.ptx"
    head = f".version 8.8\n.target {target}\n.address_size 64\n.visible .entry k() {{\n{declared}\n"
    text.write_text(head + "\n".join(lines) + "\nret; }\n")
    assert PTXAS is not None
    done = subprocess.run([PTXAS, "-arch", target, text, "-o", folder / "lines.o"], capture_output=True, text=True)
    return {int(n) - 6: why for n, why in re.findall(r"line (\d+); error\s*: (.*)", done.stdout + done.stderr)}


def refused_here(lines: list[str], target: str) -> dict[int, str]:
    """Line -> error, for each line that the emulator refuses."""
    text = f".version 8.8\n.target {target}\n.visible .entry k() {{ {DECLARED}\n" + "\n".join(lines) + "\nret; }"
    (kernel,) = parse(text)
    assert len(kernel.instructions) == len(lines) + 1 and not kernel.problems
    return refusals(kernel)


@needs.PTXAS
@pytest.mark.parametrize("lines", [barriers, accesses, vectors, others])
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_ptxas_takes_the_same_spellings(target: str, lines: Callable[[], Iterator[str]], tmp_path: Path) -> None:
    every = list(lines())
    theirs, ours = refused_by_ptxas(every, target, tmp_path), refused_here(every, target)
    different = {every[n]: theirs.get(n) or ours.get(n) for n in theirs.keys() ^ ours.keys()}
    assert different == {} and 0 < len(theirs) < len(every)


LOAD_OF_ROWS = "cp.async.bulk.tensor.2d.shared::{}.global.tile::gather4.mbarrier::complete_tx::bytes"
FIVE = "[%d0, {%r1, %r2, %r3, %r4, %r5}]"
CHOSEN_ROWS = [
    f"{LOAD_OF_ROWS.format('cta')} [%r0], {FIVE}, [%r1];",
    f"{LOAD_OF_ROWS.format('cluster')} [%r0], {FIVE}, [%r1];",
    f"cp.async.bulk.prefetch.tensor.2d.L2.global.tile::gather4 {FIVE};",
    f"cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group {FIVE}, [%r0];",
]


@needs.PTXAS
@pytest.mark.parametrize("target", ["sm_90a", "sm_100", "sm_100f", "sm_103a", "sm_120a"])
def test_ptxas_takes_chosen_rows_for_the_same_targets(target: str, tmp_path: Path) -> None:
    theirs, ours = refused_by_ptxas(CHOSEN_ROWS, target, tmp_path), refused_here(CHOSEN_ROWS, target)
    assert theirs.keys() == ours.keys(), (theirs, ours)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ld.relaxed.global.b32 %r1, [%d0];", "no form of ld that the emulator knows"),
        ("mbarrier.test_wait.parity.shared.b64 %p0, [%r0], %r1, %r2;", r"other operands than PTX has \(v a v; a: an"),
        ("ld.global.v8.b32 {%r0, %r1, %r2, %r3, %r4, %r5, %r6, %r7}, [%d0];", "256 bits needs .target sm_100"),
        ("st.shared.v4.b64 [%r0], {%d0, %d1, %d2, %d3};", r"256 bits in \.shared: it is of global memory"),
        ("ld.global.L2::evict_last.b32 %r1, [%d0];", r"goes with \.v8\.b32 and \.v4\.b64 alone"),
        ("ld.shared.L2::128B.b32 %r1, [%r0];", r"\.L2::128B in \.shared: it is of global memory alone"),
        ("ld.global.ca.L1::evict_last.b32 %r1, [%d0];", "priority of eviction in L1 do not go together"),
        ("ld.nc.b32 %r1, [%d0];", r"ld\.nc is of \.global"),
        ("redux.sync.min.f32 %f0, %f1, -1;", "needs .target sm_10x or above"),
        ("stmatrix.sync.aligned.m16n8.x1.trans.shared.b8 [%r0], {%r1};", ".m16n8 needs .target sm_100a or above"),
        ("discard.L2 [%d0], 64;", r"\(a 128; a: an address\)"),
        ("bar.sync 16;", "16 is not 0 to 15"),
        ("bar.sync 0, 48;", "48 is not 32 to 1024, a multiple of 32"),
    ],
)  # fmt: skip
def test_a_spelling_that_does_not_exist(line: str, says: str) -> None:
    with pytest.raises(PtxError, match=rf"PTX line \d+: .*{says}"):
        run(line)


# ptxas takes modifiers in any order. Triton writes tcgen05.cp.cta_group::1.warpx4.32x128b.
ANY_ORDER = [
    ("sm_100a", "tcgen05.cp.cta_group::1.warpx4.32x128b [%r1], %d0;"),
    ("sm_100a", "tcgen05.cp.64x128b.warpx2::02_13.cta_group::1 [%r1], %d0;"),
    ("sm_100a", "tcgen05.ld.x2.pack::16b.b32.16x64b.aligned.sync {%r1, %r2}, [%r1];"),
    ("sm_100a", "tcgen05.st.32x32b.sync.aligned.x1.b32 [%r1], {%r2};"),
    ("sm_90a", "wgmma.mma_async.m64n8k16.f32.aligned.sync.f16.f16 {%f0, %f1, %f2, %f3}, %d0, %d0, 1, 1, 1, 0, 0;"),
    (
        "sm_90a",
        "mma.sync.row.s32.col.aligned.s8.s8.s32.m8n8k16 {%r0, %r1}, {%r2}, {%r3}, {%r0, %r1};",
    ),
    ("sm_90a", "ldmatrix.sync.b16.shared.x1.m8n8.trans.aligned {%r1}, [%r0];"),
    ("sm_90a", "ld.global.v4.f32.L1::no_allocate {%f0, %f1, %f2, %f3}, [%d0];"),
    ("sm_90a", "red.async.u32.add.shared::cluster.cluster.mbarrier::complete_tx::bytes.relaxed [%r0], %r1, [%r0];"),
    ("sm_90a", "setp.lt.f32.ftz.and %p0, %f0, %f1, %p1;"),
    ("sm_90a", "cvt.e4m3x2.f32.rn.satfinite %h0, %f0, %f1;"),
    ("sm_90a", "redux.sync.s32.add %r1, %r1, -1;"),
]


@pytest.mark.parametrize(("target", "line"), ANY_ORDER)
def test_modifiers_in_any_order(target: str, line: str) -> None:
    assert refused_here([line], target) == {}


@needs.PTXAS
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a"])
def test_ptxas_takes_modifiers_in_any_order(target: str, tmp_path: Path) -> None:
    assert refused_by_ptxas([line for needed, line in ANY_ORDER if needed == target], target, tmp_path) == {}


def test_types_may_come_before_other_words() -> None:
    body = "cvt.rn.f32.s32 %f0, %r30; fma.f32.rn %f1, %f0, 0f40200000, 0f3f000000; cvt.s32.rzi.f32 %r1, %f1;"
    store = "mul.wide.u32 %d1, %r30, 4; add.s64 %d1, %out, %d1; st.s32.global [%d1], %r1;"
    found = run(f"mov.u32 %r30, %tid.x; {body} {store}", {"out": np.zeros(32, np.int32)})
    assert np.array_equal(found["out"], (np.arange(32) * 2.5 + 0.5).astype(np.int32))
