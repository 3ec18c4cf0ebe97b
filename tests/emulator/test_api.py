"""Whole runs: PTX with a described launch, compiled CuTe DSL functions, the fixture, the command line, and plans."""

from __future__ import annotations

import gc
import json
import re
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import layoutgemm
from layoutgemm import emulate_ptx
from layoutgemm.cli.main import main
from layoutgemm.emulator.api import ORDERS, StructOf, TensorMapOf
from layoutgemm.emulator.host.arguments import PackedArray, array_of
from layoutgemm.emulator.machine.interpreter import YOUNG, Policy, PtxMachine
from layoutgemm.emulator.mutation.api import mutate_ptx
from layoutgemm.errors import DeadlockError, EmulatorError, PtxError
from layoutgemm.kernels import TeachingPlan
from layoutgemm.pytest_plugin import emulate_or_fail
from tests import needs
from tests.emulator.run_ptx import module
from tests.test_pytest_plugin import plugin_options


def test_other_objects_than_compiled_functions_are_refused() -> None:
    with pytest.raises(TypeError, match=r"the emulator takes what cute\.compile returned, not NoneType"):
        layoutgemm.emulate(None)
    with pytest.raises(TypeError, match="PTX, as text or as a file, is for emulate_ptx"):
        layoutgemm.emulate(Path("kernel.ptx"))


# y = s * x with one barrier between the threads: x goes through shared memory, reversed. `BARRIER` orders the threads.
REVERSE = """
.version 8.0
.target sm_80
.file 1 "reverse.py"
.visible .entry reverse(.param .u64 x, .param .u64 y, .param .f32 s, .param .u32 n)
.reqntid 64, 1, 1
{
.shared .align 16 .b8 tile[256];
.reg .b32 %r<9>; .reg .b64 %d<9>; .reg .f32 %f<3>; .reg .pred %p;
ld.param.u64 %d0, [x]; ld.param.u64 %d1, [y]; ld.param.f32 %f0, [s]; ld.param.u32 %r8, [n];
mov.u32 %r0, %tid.x; mov.u32 %r1, tile; shl.b32 %r2, %r0, 2; add.u32 %r3, %r1, %r2;
mul.wide.u32 %d2, %r0, 4; add.u64 %d3, %d0, %d2; add.u64 %d4, %d1, %d2;
.loc 1 10 0
ld.global.f32 %f1, [%d3];
st.shared.f32 [%r3], %f1;
BARRIER
.loc 1 12 0
sub.u32 %r4, 252, %r2; add.u32 %r5, %r1, %r4;
ld.shared.f32 %f2, [%r5];
mul.f32 %f2, %f2, %f0;
setp.ge.u32 %p, %r0, %r8;
@%p bra END;
st.global.f32 [%d4], %f2;
END:
ret;
}
"""
GOOD, RACY = REVERSE.replace("BARRIER", "bar.sync 0;"), REVERSE.replace("BARRIER", "")


def test_ptx_runs_in_the_callers_arrays() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    done = emulate_ptx(GOOD, args=[x, y, 2.0, 64])
    assert done and done.ok and done.findings == []
    assert (y == 2 * x[::-1]).all()
    assert done.bytes["global read"] == 256 and done.instructions["bar.sync"] == 2
    assert "reverse" in done.report() and done.report().endswith("0 findings")
    assert done.unreached() == []


def test_a_race_names_both_sides_and_the_lines_of_the_program() -> None:
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    done = emulate_ptx(RACY, args=[x, y, 2.0, 64])
    race = next(finding for finding in done.findings if finding.kind == "race")
    assert not done.ok
    assert "ld.shared.f32 at PTX line" in race.message and "st.shared.f32 at PTX line" in race.message
    assert "warp 0" in race.message and "warp 1" in race.message and "nothing orders them" in race.message
    assert str(race.source) in ("reverse.py:12", "reverse.py:10")
    assert "reverse.py:10" in str(race) and "reverse.py:12" in str(race)
    with pytest.raises(EmulatorError, match="nothing orders them"):
        done.raise_for_findings()


def test_an_unrolled_loop_leaves_room_for_other_findings() -> None:
    """60 stores of one line race with the loads of another; a last store, of a third line, races as well."""
    stores = "\n".join(f"st.shared.b32 [%r1+{8 * n}], %r0;" for n in range(60))
    loads = "\n".join(f"ld.shared.b32 %r2, [%r1+{8 * n}];" for n in range(60))
    body = f"""mov.u32 %r0, %tid.x; mov.u32 %r1, smem; shr.u32 %r3, %r0, 5; setp.eq.u32 %p0, %r3, 0; @%p0 bra READ;
    .loc 1 10 0
    {stores}
    .loc 1 11 0
    st.shared.b32 [%r1+500], 1;
    bra END;
    READ:
    .loc 1 12 0
    {loads}
    .loc 1 13 0
    ld.shared.b32 %r2, [%r1+500];
    END:"""
    text = module(body, {}) + '.file 1 "mine.py"\n'
    for policy in (Policy(), Policy(pick="random", seed=1)):
        found = [one for one in emulate_ptx(text, block=64, smem=512, policy=policy).findings if one.kind == "race"]
        lines = [str(one.source) for one in found]
        assert len(lines) == 5 and len(set(lines)) == 2 and set(lines) < {f"mine.py:{n}" for n in range(10, 14)}


def test_orders_are_compared() -> None:
    """A thread's flag through shared memory: the result depends on who comes first."""
    x, y = np.arange(64, dtype=np.float32), np.zeros(64, np.float32)
    policies = [Policy(races=False), Policy(races=False, pick="random", seed=5), Policy(races=False, pick="random")]
    done = emulate_ptx(RACY, args=[x, y, 1.0, 64], policy=policies)
    (differs,) = {finding for finding in done.findings if "depends on the order" in finding.message}
    assert str(differs.source) == "reverse.py:12" and "both have it from: st.global.f32 at PTX line" in differs.message
    assert "st.shared.f32 at PTX line" in differs.message and "bar.sync of both warps" in differs.orders
    good = emulate_ptx(GOOD, args=[x, y, 1.0, 64], policy=ORDERS)
    assert good.ok and len(good.launches) == len(ORDERS)
    assert (y == x[::-1]).all()


LAST = """{
.reg .b32 %r<5>; .reg .f32 %f<3>; .reg .b64 %d<3>; .reg .pred %p;
ld.param.u64 %d0, [y]; mov.u32 %r0, %tid.x; setp.ge.u32 %p, %r0, 32;
.loc 1 20 0
@!%p WRITE 0f4C000000;
.loc 1 21 0
@%p WRITE 0f3F800000;
ret;
}
"""


@pytest.mark.parametrize(
    ("write", "lines", "orders"),
    [("st.global.f32 [%d0],", {"20", "21"}, "bar.sync of both warps"),
     ("red.global.add.f32 [%d0],", {"20", "21"}, "The sum's rounding follows the order of its terms"),
     # No race is looked for among operations whose old value is used, as of a lock.
     ("atom.global.exch.b32 %r1, [%d0],", {"20", "21"}, "bar.sync of both warps")],
)  # fmt: skip
def test_a_result_that_depends_on_the_order_names_its_last_writers(write: str, lines: set[str], orders: str) -> None:
    """Two warps write one word of y: 32 times 2**25, and 1, which is lost in a sum with -2**30."""
    head = '.version 8.0\n.target sm_80\n.file 1 "last.py"\n.visible .entry last(.param .u64 y)\n'
    y = np.full(1, -(2.0**30), np.float32)
    policy = [Policy(races=False, pick="random", seed=seed) for seed in range(8)]
    found = emulate_ptx(head + LAST.replace("WRITE", write), block=33, args=[y], policy=policy)
    (differs,) = [finding for finding in found.findings if finding.kind == "race"]
    assert (
        "of y depends on the order: Policy(pick='random', races=False) and" in differs.message
        and orders in differs.orders
    )
    assert lines == {line for line in lines if f"(last.py:{line})" in differs.message}, differs.message


def test_every_order_begins_with_the_same_arrays() -> None:
    """In place: y = 2 * reversed(y), once whatever the number of orders."""
    y = np.arange(64, dtype=np.float32)
    apart = GOOD.replace("st.global.f32", "bar.sync 1; st.global.f32").replace("@%p bra END;", "")
    assert emulate_ptx(apart, args=[y, y, 2.0, 64], policy=ORDERS).ok
    assert (y == 2 * np.arange(63, -1, -1)).all()


def test_a_tensor_map_of_packed_elements() -> None:
    codes = np.random.default_rng(0).integers(0, 16, (32, 256))
    packed, out = PackedArray.of(codes, "e2m1"), np.zeros((32, 128), np.uint8)
    found = TensorMapOf(packed, (16, 128), "64B").tensor_map(array_of(packed))
    assert (found.dtype.name, found.extents, found.strides, found.box) == ("e2m1", (256, 32), (128,), (128, 16))
    maps = [TensorMapOf(packed, (16, 128), "64B"), TensorMapOf(PackedArray(out, "e2m1"), (16, 128), "64B")]
    text = COPY.replace("sm_90a", "sm_100a").replace("shl.b32 %r3, %r3, 6", "shl.b32 %r3, %r3, 7")
    done = emulate_ptx(text.replace(", 2048;\n", ", 1024;\n"), grid=(2, 2), smem=4096, args=maps)
    assert done.ok and np.array_equal(out, packed.values)


def test_a_tensor_map_of_three_dimensions() -> None:
    a = np.zeros((3, 5, 16), np.float32)
    made = TensorMapOf(a[:, :4], (1, 2, 8), "32B", steps=(1, 2, 1))
    found = made.tensor_map(array_of(a[:, :4]))
    assert (found.extents, found.strides, found.box, found.steps) == ((16, 4, 3), (64, 320), (8, 2, 1), (1, 2, 1))
    assert found.dtype.name == "f32"


def test_unreached_instructions() -> None:
    x, y = np.zeros(64, np.float32), np.zeros(64, np.float32)
    assert [ins.opcode for ins in emulate_ptx(GOOD, args=[x, y, 1.0, 0]).unreached()] == ["st.global.f32"]


def test_beyond_an_array() -> None:
    x, y = np.zeros(63, np.float32), np.zeros(64, np.float32)
    with pytest.raises(EmulatorError, match="buffer x, which has 252"):
        emulate_ptx(GOOD, args=[x, y, 1.0, 64])


def test_behind_a_view_lies_the_rest_of_its_storage() -> None:
    """To read it is lint, to write it a finding. The end of the storage is an error, as is that of a NumPy array."""
    torch = needs.module("torch")
    names = {"x": "u64", "at": "u32"}
    add = """
    mov.u32 %r0, %tid.x; mad.lo.u32 %r0, %r0, 4, %at; cvt.u64.u32 %d0, %r0; add.u64 %d0, %d0, %x;
    ld.global.u32 %r1, [%d0]; add.u32 %r1, %r1, 1; st.global.u32 [%d0], %r1;"""
    whole = torch.arange(8, dtype=torch.int32)
    done = emulate_ptx(module(add, names), block=4, args=[whole[:6], 16], policy=ORDERS, progress=False)
    assert whole.tolist() == [0, 1, 2, 3, 5, 6, 7, 8]  # each order began with the same storage
    assert not done.ok
    lint, edge = done.findings[:2]
    assert [finding.kind for finding in done.findings].count("edge") == 1  # of both orders
    assert lint.message.startswith("byte 28 of x is accessed, which has 24: it lies in the tensor's storage")
    assert (edge.kind, edge.message) == (
        "edge", "2 bytes behind the elements of x, in its storage, were changed: the first is byte 24"
    )  # fmt: skip
    read = emulate_ptx(module(add.replace("add.u32 %r1, %r1, 1;", ""), names), block=4, args=[whole[:6], 16])
    assert read.ok and [finding.kind for finding in read.findings] == ["lint"]
    with pytest.raises(EmulatorError, match="byte 32 of buffer x, which has 24"):
        emulate_ptx(module(add, names), block=5, args=[whole[:6], 16])
    with pytest.raises(EmulatorError, match="byte 28 of buffer x, which has 24"):
        emulate_ptx(module(add, names), block=4, args=[np.arange(8, dtype=np.int32)[:6], 16])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        ([1, 2, 3], "takes 4"),
        ([np.zeros(64, np.float32)] * 3 + [64], "s has 4 bytes, an address 8"),
        ([0, 0, b"abc", 64], "3 were given"),
        ([0, 0, "x", 64], "'x' is not an array"),
        ([0, 0, 1.0, 1 << 32], "n has 32 bits, and 4294967296 does not fit"),
        ([0, 0, 1.0, np.int64(-(1 << 31) - 1)], "n has 32 bits, and -2147483649 does not fit"),
        ([0, 0, 1.0, 2.5], "n is .u32, 4 bytes: no float has"),
        ([0, 0, 1 + (1 << 24), 64], "s is .f32: not every integer as large as 16777217"),
        ([0, 0, 1e39, 64], "the float 1e\\+39 does not fit"),
        (
            [0, 0, 1.0, TensorMapOf(np.zeros((4, 4), np.float32), (4, 4))],
            "n has 4 bytes, a tensor map 128, and its address 8",
        ),
    ],
)
def test_wrong_arguments(args: list[Any], message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        emulate_ptx(GOOD, args=args)


def test_scalars_have_the_parameters_type() -> None:
    """NumPy's scalars and integers for a float parameter are not taken by their bits."""
    x = np.arange(64, dtype=np.float32)
    for scalar in (np.float32(2.5), np.float64(2.5), np.float16(2.5), 2, np.int64(2), np.uint8(2)):
        y = np.zeros(64, np.float32)
        assert emulate_ptx(GOOD, args=[x, y, scalar, np.int32(64)]).ok
        assert np.array_equal(y, x[::-1] * np.float32(scalar)), scalar


# y[i] = x[i] * scale, of one structure {x, scale, y}.
SCALE = """
.version 8.0
.target sm_80
.visible .entry scale(.param .align 8 .b8 all[24])
{
  .reg .b32 %r; .reg .f32 %f<2>; .reg .b64 %d<3>;
  ld.param.u64 %d0, [all]; ld.param.f32 %f1, [all+8]; ld.param.u64 %d1, [all+16];
  mov.u32 %r, %tid.x; mul.wide.u32 %d2, %r, 4; add.u64 %d0, %d0, %d2; add.u64 %d1, %d1, %d2;
  ld.global.f32 %f0, [%d0]; mul.f32 %f0, %f0, %f1; st.global.f32 [%d1], %f0; ret;
}
"""


def test_a_structure_holds_addresses() -> None:
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    assert emulate_ptx(SCALE, block=4, args=[StructOf({16: y, 0: x, 8: np.float32(3)})]).ok
    assert y.tolist() == [0, 3, 6, 9]
    assert emulate_ptx(SCALE, block=4, args=[StructOf({0: x, 8: b"\0\0\0\x40", 16: y})]).ok
    assert y.tolist() == [0, 2, 4, 6]
    with pytest.raises(EmulatorError, match=r"byte 16 of buffer all\+0, which has 16"):
        emulate_ptx(SCALE, block=5, args=[StructOf({0: x, 8: np.float32(3), 16: np.zeros(5, np.float32)})])


def test_a_structure_holds_tensor_maps() -> None:
    """A map copies the same by itself and as the member of a structure."""
    a, b = np.random.default_rng(0).standard_normal((2, 16, 64)).astype(np.float16)
    maps = TensorMapOf(a, (16, 64), "128B"), TensorMapOf(b, (16, 64), "128B")
    assert emulate_ptx(COPY, smem=4096, args=[StructOf({0: maps[0]}), maps[1]]).ok
    assert np.array_equal(a, b)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({0: 1}, r"all\+0: 1 is not an array, NumPy number"),
        ({0: np.zeros(4), 4: np.float32(1)}, r"all\+4 begins within the member before it, which ends at byte 8"),
        ({20: np.zeros(4)}, r"all\+20 ends at byte 28, and all has 24"),
        ({-1: np.float32(1)}, "an offset of all"),
        ([np.zeros(4)], "members of all"),
    ],
)
def test_members_that_do_not_fit(members: Any, message: str) -> None:
    with pytest.raises(EmulatorError, match=message):
        emulate_ptx(SCALE, block=4, args=[StructOf(members)])


def test_unknown_instructions_are_errors_at_load() -> None:
    with pytest.raises(PtxError, match=r"PTX line \d+.*frobnicate"):
        emulate_ptx(REVERSE.replace("BARRIER", "frobnicate.b32 %r0;"), args=[0, 0, 1.0, 64])


COPY = """
.version 8.0
.target sm_90a
.visible .entry copy(.param .align 64 .b8 from[128], .param .align 64 .b8 to[128])
{
.extern .shared .align 1024 .b8 tile[];
.reg .b32 %r<9>; .reg .b64 %d<3>; .reg .pred %p<3>;
mov.b64 %d0, from; cvta.param.u64 %d0, %d0; mov.b64 %d1, to; cvta.param.u64 %d1, %d1;
mov.u32 %r0, %tid.x; mov.u32 %r1, tile; add.u32 %r2, %r1, 2048; setp.ne.u32 %p0, %r0, 0;
mov.u32 %r3, %ctaid.x; mov.u32 %r4, %ctaid.y; shl.b32 %r3, %r3, 6; shl.b32 %r4, %r4, 4;
@%p0 bra END;
mbarrier.init.shared::cta.b64 [%r2], 1; fence.mbarrier_init.release.cluster;
mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r2], BYTES;
cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%d0, {%r3, %r4}], [%r2];
WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r2], 0;
@!%p1 bra WAIT;
cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d1, {%r3, %r4}], [%r1];
cp.async.bulk.commit_group; cp.async.bulk.wait_group 0;
END: ret;
}
""".replace("BYTES", "2048")


def test_tensor_maps_over_arrays() -> None:
    rng = np.random.default_rng(0)
    a = rng.integers(0, 1 << 16, (50, 200), dtype=np.uint16)
    b = np.zeros((50, 104), np.uint16)
    maps = [TensorMapOf(a[:, :104], (16, 64), "128B", "bf16"), TensorMapOf(b, (16, 64), "128B")]
    done = emulate_ptx(COPY, grid=(2, 4), smem=4096, args=maps, policy=ORDERS)
    assert done.ok and (b == a[:, :104]).all()
    with pytest.raises(DeadlockError, match="try_wait"):
        emulate_ptx(COPY.replace(", 2048;\n", ", 2064;\n"), grid=(2, 4), smem=4096, args=maps)
    # Columns 101 to 103 are the pitch of a matrix of 101, and the hardware writes them.
    c = np.zeros((50, 104), np.uint16)
    maps = [TensorMapOf(a[:, :104], (16, 64), "128B", "bf16"), TensorMapOf(c[:, :101], (16, 64), "128B", "bf16")]
    done = emulate_ptx(COPY, grid=(2, 4), smem=4096, args=maps, policy=ORDERS)
    assert [finding.kind for finding in done.findings] == ["edge"] and not done.ok
    assert "writes elements 101 to 103 of a line, beyond the tensor's 101 of bf16" in done.report()
    assert (c[:-1] == a[:-1, :104]).all() and (c[-1, :101] == a[-1, :101]).all()  # the view ends with element 101
    owned = [replace(order, edges=False) for order in ORDERS]
    assert emulate_ptx(COPY, grid=(2, 4), smem=4096, args=maps, policy=owned).ok
    with pytest.raises(EmulatorError, match="edge"):
        mutate_ptx(COPY, grid=(2, 4), smem=4096, args=maps, count=1)
    assert len(mutate_ptx(COPY, grid=(2, 4), smem=4096, args=maps, count=1, edges=False).rows) == 1
    with pytest.raises(EmulatorError, match="not contiguous"):
        emulate_ptx(COPY, args=[TensorMapOf(a.T, (16, 64)), maps[1]])


def test_an_address_of_a_tensor_map_reads_the_map_from_global_memory() -> None:
    """CUDA C++ that takes `const CUtensorMap *`: the map is in device memory."""
    a, b = np.arange(50 * 104, dtype=np.uint16).reshape(50, 104), np.zeros((50, 104), np.uint16)
    text = COPY.replace("mov.b64 %d0, from; cvta.param.u64 %d0, %d0;", "ld.param.u64 %d0, [from];")
    text = re.sub(r"\.param \.align 64 \.b8 from\[128\]", ".param .u64 from", text)
    maps = [TensorMapOf(a, (16, 64), "128B"), TensorMapOf(b, (16, 64), "128B")]
    assert emulate_ptx(text, grid=(2, 4), smem=4096, args=maps, policy=ORDERS).ok
    assert (a == b).all()


def test_lint_leaves_a_run_ok_and_is_told_once() -> None:
    a, b = np.ones((50, 104), np.uint16), np.zeros((50, 104), np.uint16)
    store = "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%d1, {%r3, %r4}], [%r1];"
    every = COPY.replace("@%p0 bra END;\n", "").replace("mbarrier.init", "@!%p0 mbarrier.init")
    every = every.replace("mbarrier.arrive", "bar.sync 0; @!%p0 mbarrier.arrive")
    every = every.replace("cp.async.bulk.tensor.2d.shared", "@!%p0 cp.async.bulk.tensor.2d.shared")
    every = every.replace(store, f"{store}\n{store}")
    done = emulate_ptx(every, grid=(2, 4), smem=4096, args=[TensorMapOf(x, (16, 64), "128B") for x in (a, b)])
    assert done.ok and [len(finding.sites) for finding in done.findings] == [2] and (a == b).all()
    assert (
        done.report().count("32 lanes issue a tensor store") == 1
        and "also at 1 more instruction: PTX line" in done.report()
    )
    with pytest.raises(EmulatorError, match=r"elect\.sync"):
        done.raise_for_findings(lint=True)


# The fixture ----------------------------------------------------------------------------------------------------------

pytest_plugins = ["pytester"]
AUTHOR = """
import numpy as np
TEXTS = {texts!r}
def test_mine(emulate):
    emulate(TEXTS[0], args=[np.zeros(64, np.float32), np.zeros(64, np.float32), 1.0, 64])
def test_another(emulate):
    emulate(TEXTS[1], args=[np.zeros(64, np.float32), np.zeros(64, np.float32), 1.0, 64])
def test_gpu(emulated_gpu):
    assert emulated_gpu.ok
"""


def test_large_objects_have_short_representations() -> None:
    text = module("bar.sync 0;" * 50 + "mov.u32 %r0, %tid.x; mov.u32 %r1, smem; st.shared.u32 [%r1], %r0;", {})
    done = emulate_ptx(text, block=1024, smem=64, banks=True, timeline=True, progress=False)
    (launch,) = done.launches
    shown = [repr(one) for one in (done, launch, launch.timeline, launch.counts, launch.kernel, launch.banks)]
    assert [len(one.splitlines()) for one in shown] == [1] * 6 and max(map(len, shown)) < 400
    assert shown[0] == "<Emulation of 1 launch(es): 1 race>"
    assert "1 finding(s), with banks, with timeline" in shown[1] and "32 rows" in shown[2]


def test_the_fixture_fails_with_the_report(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(AUTHOR.format(texts=(GOOD, RACY)))
    result = pytester.runpytest_subprocess(*plugin_options(), "-p", "no:tmpdir")  # a foreign project may leave it out
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(["*3 findings:*", "*race: *st.shared.f32*nothing orders them*"])
    result.stdout.fnmatch_lines(["FAILED *::test_another - Failed: 2 ra*"])


def test_the_fixture_returns_the_emulation() -> None:
    assert emulate_or_fail(GOOD, args=[np.zeros(64, np.float32), np.zeros(64, np.float32), 1.0, 64]).ok


# The command line -----------------------------------------------------------------------------------------------------


def command(tmp_path: Path, text: str, *arguments: str) -> int:
    (tmp_path / "k.ptx").write_text(text)
    return main(["emulate", str(tmp_path / "k.ptx"), *arguments])


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "x.npy", np.arange(64, dtype=np.float32))
    given = ["--arg", str(tmp_path / "x.npy"), "--arg", "f32:64=zeros", "--arg", "f32=3", "--arg", "u32=64"]
    assert command(tmp_path, GOOD, *given, "--save", f"1={tmp_path}/y.npy") == 0
    assert "0 findings" in capsys.readouterr().out
    assert (np.load(tmp_path / "y.npy") == 3 * np.arange(63, -1, -1)).all()
    assert command(tmp_path, RACY, *given, "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert not said["ok"] and "race" in [found["kind"] for found in said["findings"]]
    assert said["launches"][0]["block"] == [64, 1, 1]
    assert command(tmp_path, GOOD, "--arg", "f32:64") == 2
    assert "takes 4" in capsys.readouterr().err
    assert command(tmp_path, GOOD, "--arg", "nonsense", "--json") == 2
    assert "is not an argument" in json.loads(capsys.readouterr().out)["error"]


REFUSED = {
    "f32:64=5": "'5': random, zeros, nan or range", "e2m1:64=5": "'5': random, zeros, nan or range",
    "f32:3x": "'3x' is no shape", "f32=abc": "--arg f32=abc: ", "i32=": "--arg i32=: ", "none.npy": "--arg none.npy: ",
    "map:bf16:64x64:64x64:999B": "swizzle of TensorMapOf is '999B'",
}  # fmt: skip
REFUSED_OPTIONS = {
    "--ranks 2": "--ranks is of a script", "--arch sm_100a": "--arch is of a script", "--save 0=x.npy": "is no array",
}  # fmt: skip


def test_the_command_names_what_it_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cases = {f"--arg {text}": why for text, why in REFUSED.items()}
    for options, why in {**cases, **{f"--arg f32=1 {text}": why for text, why in REFUSED_OPTIONS.items()}}.items():
        assert command(tmp_path, GOOD, *options.split()) == 2
        assert why in capsys.readouterr().err


@pytest.mark.parametrize("junk", [
    {"swizzle": "999B"}, {"l2_promotion": 3}, {"oob_fill": "x"}, {"box": (64, "a")}, {"box": 64}, {"array": 3},
])  # fmt: skip
def test_a_tensor_map_of_junk_is_refused(junk: dict[str, Any]) -> None:
    with pytest.raises(EmulatorError, match=f"{next(iter(junk))} of TensorMapOf"):
        whole: dict[str, Any] = {"array": np.zeros((50, 104), np.uint16), "box": (16, 64), "kind": "bf16", **junk}
        emulate_ptx(COPY, grid=(2, 4), smem=4096, args=[TensorMapOf(**whole)] * 2, progress=False)


def test_the_command_with_tensor_maps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    maps = ["--arg", "map:bf16:50x104:16x64:128B", "--arg", "map:bf16:50x104:16x64:128B"]
    saved = ["--save", f"0={tmp_path}/a.npy", "--save", f"1={tmp_path}/b.npy"]
    assert command(tmp_path, COPY, "--grid", "2,4", "--smem", "4096", *maps, *saved, "--order", "3") == 0
    assert (np.load(tmp_path / "a.npy") == np.load(tmp_path / "b.npy")).all()
    assert "copy" in capsys.readouterr().out


# Compiled functions ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Any]:
    """The copying kernel, with its wait and without."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import from_dlpack

    from tests.emulator.kernels.small import Copy

    folder = tmp_path_factory.mktemp("dsl")
    options = f"--gpu-arch sm_90a --keep-ptx --generate-line-info --dump-dir {folder}"
    like = from_dlpack(np.zeros((96, 72), np.float16), assumed_align=16).mark_layout_dynamic(leading_dim=1)
    like = like.mark_compact_shape_dynamic(mode=1, divisibility=8)
    return {waits: cute.compile(Copy(waits=waits), like, like, options=options) for waits in (True, False)}


@pytest.mark.dsl
def test_a_compiled_function(copies: dict[bool, Any]) -> None:
    for rows, columns in ((32, 64), (1, 8), (33, 72), (100, 200)):
        a = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float16)
        b = np.zeros_like(a)
        done = emulate_or_fail(copies[True], a, b, policy=ORDERS, lint=True)
        assert (a == b).all()
        assert done.launches[0].grid == (-(-rows // 32), -(-columns // 64), 1)


@pytest.mark.dsl
def test_torch_tensors(copies: dict[bool, Any]) -> None:
    torch = needs.module("torch")
    a, b = torch.randn(40, 72).to(torch.float16), torch.zeros(40, 72, dtype=torch.float16)
    assert layoutgemm.emulate(copies[True], a, b).ok
    assert torch.equal(a, b)


@pytest.mark.dsl
def test_a_missing_wait_is_told_with_the_programs_lines(copies: dict[bool, Any]) -> None:
    a = np.ones((32, 64), np.float16)
    for policy in ORDERS:
        done = layoutgemm.emulate(copies[False], a, np.zeros_like(a), policy=policy)
        race = next(finding for finding in done.findings if finding.kind == "race")
        assert race.message.count("small.py:") == 2 and "cp.async.bulk.tensor.2d.global" in race.message


@pytest.mark.dsl
def test_an_array_too_small_for_the_host_functions_map(copies: dict[bool, Any]) -> None:
    from cutlass.cute.runtime import from_dlpack

    with pytest.raises(EmulatorError, match=r"takes \(a, b\): missing a required argument: 'b'"):
        layoutgemm.emulate(copies[True], np.zeros((32, 64), np.float16))
    a = np.zeros((32, 64), np.float16)
    cute = from_dlpack(a, assumed_align=16).mark_layout_dynamic(leading_dim=1)
    assert layoutgemm.emulate(copies[True], cute, a.copy()).ok


# Plans ----------------------------------------------------------------------------------------------------------------


@pytest.mark.dsl
@pytest.mark.parametrize("size", [(64, 64, 64), (100, 72, 136), (1, 1, 1), (65, 130, 328), (3, 9, 17)])
def test_plans_run_in_the_emulator(size: tuple[int, int, int]) -> None:
    """The compiled kernel gives what the NumPy executor gives, and nothing is found; 1 to 6 k tiles."""
    m, n, k = size
    plan = TeachingPlan.derive(m, n, k)
    rng = np.random.default_rng(m)
    a, b = rng.integers(-4, 5, (m, k)).astype(np.float32), rng.integers(-4, 5, (k, n)).astype(np.float32)
    result = plan.run(a, b, device="emulator")
    assert result.ran_on == "emulator"
    assert np.array_equal(result.c, a @ b)
    assert np.array_equal(result.c, plan.run(a, b, device="reference").c)


STORES = """
.version 8.0
.target sm_90a
.address_size 64
.visible .entry k(.param .u64 p, .param .u32 n) {
  .reg .u64 %rd<4>;
  .reg .u32 %r<4>;
  ld.param.u64 %rd1, [p];
  ld.param.u32 %r1, [n];
  mov.u32 %r2, %tid.x;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd3, %rd1, %rd2;
  st.global.u32 [%rd3], %r1;
  ret;
}
"""


@pytest.mark.parametrize("name", ["grid", "block", "cluster", "smem", "args", "kernel", "policy", "progress", "banks"])
def test_what_describes_no_launch_is_refused_by_name(name: str) -> None:
    def run(**given: Any) -> Any:
        return layoutgemm.emulate_ptx(
            STORES, **{"grid": 1, "block": 4, "args": [np.zeros(16, np.uint32), 7], "progress": False, **given}
        )

    assert run(grid=np.int64(2), block=[np.uint8(4)], smem=np.int16(16)).ok
    hostile = (1.0, "4", b"4", {}, {4}, object(), 1j, len, np.array([4.5]), 10**5000, -(10**30), -1, (1, 2, 3, 4))
    for bad in (*hostile, (True,)):
        if name == "kernel" and isinstance(bad, str):
            continue
        with pytest.raises(EmulatorError):
            run(**{name: bad})
    with pytest.raises(EmulatorError, match="loads = 'soon'; it is one of 'late', 'early'"):
        Policy(loads="soon")


@pytest.mark.parametrize("body", ["mov.u32 %r0, 1;", "st.global.b32 [%x+4096], 1;"])
def test_a_run_collects_garbage_rarely_and_leaves_the_setting(body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    turn = PtxMachine.turn
    monkeypatch.setattr(PtxMachine, "turn", lambda self: seen.append(gc.get_threshold()[0]) or turn(self))
    before = gc.get_threshold()
    gc.set_threshold(701, 11, 12)
    try:
        with nullcontext() if "st" not in body else pytest.raises(EmulatorError):
            emulate_ptx(module(body, {"x": "u64"}), block=32, args=[np.zeros(8, np.uint32)], progress=False)
        assert set(seen) == {YOUNG} and gc.get_threshold() == (701, 11, 12)
    finally:
        gc.set_threshold(*before)
