"""Integers and tuples mean the same at every entry point; other values are refused alike.

Each row is a call and arguments that it takes. Every argument is replaced by equivalent values, which must give an
equal answer, and by meaningless values, which must raise a LayoutError.
"""

from __future__ import annotations

import collections
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import checks, from_cute, plan, schedule
from layoutgemm.arch import arch
from layoutgemm.arguments import MAX_BITS, as_int, checked, refusal, shown
from layoutgemm.atoms import (
    InstructionDescriptor,
    SmemDescriptor,
    SmemTile,
    TiledCopy,
    TiledMma,
    bulk_copy,
    cp_async,
    decode,
    describe,
    diff,
    feeds,
    fragment,
    ldmatrix,
    ldmatrix_m16n8,
    load_global,
    load_shared,
    make_tiled_copy,
    mma_sync,
    smem_tile,
    st_async,
    stmatrix,
    tcgen05_cp,
    tcgen05_ld,
    tcgen05_mma,
    tcgen05_st,
    tma_load,
    universal_copy,
    wgmma,
)
from layoutgemm.atoms.mma.fma import fma
from layoutgemm.dtypes import dtype
from layoutgemm.errors import AtomError, LayoutError, PlanError
from layoutgemm.kernels import Operand, Sm80Config, Sm80Plan, Sm90Config, Sm90Plan, Sm100Config, Sm100Plan
from layoutgemm.kernels.teaching.plan import TeachingConfig, TeachingPlan
from layoutgemm.layouts import Layout, make_layout
from layoutgemm.schedule.text import order_text
from layoutgemm.view import copy_svg, fragment_svg, schedule_svg, tiled_mma_svg, tv_svg

TILE = smem_tile((128, 64), "bf16", "K")
GMEM = Layout((512, 512), (512, 1))
MMA = TiledMma(mma_sync("m16n8k16", "bf16"), (2, 2, 1))
COPY = make_tiled_copy(load_shared(128, "f16"), Layout((4, 8), (8, 1)), Layout((1, 8)))
WORD = 0x4000004000010840
HOPPER = arch("sm_90a")
TYPES = (dtype("bf16"), dtype("bf16"), dtype("f32"))
READS = checks.matrix_access((64, 64), "bf16")
TV = Layout(((4, 8), (2, 2)), ((32, 1), (16, 8)))


def row(name: str, call: Callable[..., Any], *arguments: Any) -> Any:
    return pytest.param(call, arguments, id=name)


ENTRIES = [
    row("wgmma", wgmma, 64),
    row("mma_sync", lambda shape: mma_sync(shape, "bf16"), (16, 8, 16)),
    row("tcgen05_mma", lambda m, n, pair: tcgen05_mma("f16", m, n, cta_group=pair), 128, 64, 1),
    row("tcgen05_mma k", lambda k: tcgen05_mma("mxf4", 128, 64, k=k), 64),
    row("ldmatrix", ldmatrix, 4),
    row("stmatrix", stmatrix, 4),
    row("ldmatrix_m16n8", ldmatrix_m16n8, 2),
    row("cp_async", lambda n, read: cp_async(n, src_bytes=read), 16, 8),
    row("cp_async l2_prefetch", lambda size: cp_async(16, l2_prefetch=size), 128),
    row("bulk_copy", bulk_copy, 32),
    row("st_async", st_async, 64),
    row("load_shared", load_shared, 128),
    row("load_global", lambda n, ahead: load_global(n, l2_prefetch=ahead), 128, 128),
    row("universal_copy", universal_copy, 64),
    row("tcgen05_ld", lambda n: tcgen05_ld("32x32b", n), 4),
    row("tcgen05_ld split", lambda split: tcgen05_ld("16x32bx2", 4, split=split), 8),
    row("tcgen05_st", lambda n: tcgen05_st("32x32b", n), 4),
    row("tcgen05_cp", lambda pair: tcgen05_cp("128x256b", cta_group=pair), 1),
    row("smem_tile", lambda extent: smem_tile(extent, "bf16", "K"), (128, 64)),
    row("SmemTile", lambda at: SmemTile(TILE.dtype, "K", TILE.swizzle_name, TILE.layout, "packed", at), 8),
    row("fragment", fragment, 16, 16, 2, 1),
    row("TiledMma", lambda atoms: TiledMma(mma_sync("m16n8k16", "bf16"), atoms), (2, 2, 1)),
    row("TiledMma.partition_C", lambda thread: MMA.partition_C(thread, Layout((64, 64))), 3),
    row("TiledMma.get_slice", lambda thread: MMA.get_slice(thread).partition_C(Layout((64, 64))), 3),
    row("TiledMma.fragment", lambda tile: MMA.fragment("C", tile), (64, 64)),
    row("TiledCopy", lambda tiler: TiledCopy(COPY.atom, COPY.layout_tv, tiler), (4, 64)),
    row("TiledCopy.partition_S", lambda thread: COPY.partition_S(thread, Layout((4, 64), (64, 1))), 3),
    row("TiledCopy.vectors", lambda width: COPY.vectors("src", Layout((4, 64), (64, 1)), width), 4),
    row("TiledCopy.view", lambda extent: COPY.view("src", extent), (4, 64)),
    row("tma_load tile", lambda tile: tma_load(GMEM, TILE, tile=tile), (128, 64)),
    row("tma_load", lambda n, at: tma_load(GMEM, TILE, multicast=n, address=at), 2, 0),
    row("SmemDescriptor", lambda step, at: SmemDescriptor("128B", step, 16, address=at).word, 1024, 1024),
    row("InstructionDescriptor", lambda m, n: InstructionDescriptor("f16", m, n, *TYPES), 128, 256),
    row("decode", decode, WORD),
    row("describe", describe, WORD),
    row("diff", diff, WORD, 0x4000004000010000),
    row("feeds", lambda blocks: feeds(ldmatrix(4), TILE, mma_sync("m16n8k16", "bf16"), "A", blocks), (1, 1)),
    row("TeachingPlan.derive", lambda m, n, k: TeachingPlan.derive(m, n, k, b="bf16:col"), 200, 136, 72),
    row("Sm80Plan.derive", lambda m, n, k, b: Sm80Plan.derive(m, n, k, batch=b, b="bf16:col"), 256, 256, 128, 2),
    row("Sm90Plan.derive", lambda m, n, k, b: Sm90Plan.derive(m, n, k, batch=b, b="bf16:col"), 256, 256, 128, 2),
    row("Sm100Plan.derive", lambda m, n, k, b: Sm100Plan.derive(m, n, k, batch=b, b="bf16:col"), 256, 256, 128, 2),
    row("TeachingConfig", lambda n, k: TeachingPlan.derive(200, 136, 72, config=TeachingConfig(n, k)), 64, 64),
    row("Sm80Config", lambda tile, warps, group: Sm80Config(tile, warps=warps, group=group), (128, 128), (2, 2), 8),
    row("Sm90Config", lambda tile, c, group: Sm90Config(tile, cluster=c, group=group), (128, 128), (2, 1), 8),
    row("Sm100Config", lambda tile, n: Sm100Config(tile, accumulators=n), (128, 128), 2),
    row("why_not", lambda tile, n: str(checks.why_not("sm_90a", tile, n)), (128, 256, 64), 3),
    row("most_stages", lambda stage, other: checks.most_stages(HOPPER, stage, other), 49152, 1024),
    row("shared_memory", lambda size, n: checks.shared_memory(HOPPER, {"a": size}, n), 49152, 1),
    row("registers", lambda n, each: checks.registers(HOPPER, n, {"a": each}), 128, 100),
    row("role_registers", lambda pair: checks.role_registers(HOPPER, {"a": pair}), (128, 40)),
    row("tensor_memory", lambda size: checks.tensor_memory(arch("sm_100a"), {"a": size}), 128),
    row("ring", lambda n, size, c, w: checks.ring(n, size, consumers=c, warps=w).barriers, 2, 16384, 1, 4),
    row("cluster_ring", lambda n, c: checks.cluster_ring(n, 1024, 1024, c).barriers, 2, (2, 1)),
    row("multistage", lambda n, w: checks.multistage(n, warps=w).barriers, 3, 4),
    row("pingpong", lambda n, w: checks.pingpong(n, 1024, warps=w).barriers, 2, 4),
    row("tcgen05_ring", lambda n, a: checks.tcgen05_ring(n, 1024, accumulators=a).barriers, 2, 2),
    row("self_loading", lambda n, w: checks.self_loading(n, 1024, warps=w).barriers, 2, 4),
    row("thread_access", lambda n, lanes: checks.thread_access(Layout((32, 4), (4, 1)), n, lanes=lanes).coords, 4, 8),
    row("matrix_access", lambda extent, n: checks.matrix_access(extent, "bf16", matrices=n).coords, (16, 16), 2),
    row("tiled_access", lambda extent: checks.tiled_access(COPY, extent).coords, (4, 64)),
    row("bank_conflicts", lambda width: str(checks.bank_conflicts(list(range(0, 128, 4)), width, "ld.shared")), 4),
    row("sectors", lambda n: str(checks.sectors(list(range(0, 128, 4)), 4, "ld.global", alignment=n)), 128),
    row("element=", lambda n: str(checks.bank_conflicts(Layout(32), checks.thread_access(Layout(32)), element=n)), 32),
    row("find_padding", lambda e: checks.find_padding(e, READS, "bf16").pitch, (64, 64)),
    row("Grouped", lambda n: schedule.Grouped(group=n), 8),
    row("Schedule.table", lambda grid: schedule.Hilbert().table(grid), (4, 3)),
    row("Schedule.tile", lambda grid: schedule.Linear().tile(5, grid), (4, 3)),
    row("Persistent", lambda n, c: schedule.Persistent(schedule.Linear(), n, c), 4, (2, 1)),
    row("StreamK", schedule.StreamK, 3, 4, 4, 3),
    row("visits_once", lambda grid: schedule.visits_once([(0, 0), (1, 0)], grid).ok, (2, 1)),
    row("reuse", lambda n, tile: schedule.reuse(schedule.Linear().table((8, 8)), n, tile), 4, (1, 1)),
    row("tv_svg", lambda tile, thread: tv_svg(TV, tile, thread=thread)[:9], (16, 8), 3),
    row("fragment_svg", lambda thread: fragment_svg(wgmma(64), thread=thread)[:9], 3),
    row("schedule_svg", lambda grid, wave: schedule_svg(schedule.Linear(), grid, wave=wave)[:9], (4, 3), 2),
    row("copy_svg", lambda thread: copy_svg(ldmatrix(4), thread=thread)[:9], 3),
    row("tiled_mma_svg", lambda thread: tiled_mma_svg(MMA, thread=thread)[:9], 3),
]  # fmt: skip


class Subclass(int):
    pass


def alike(x: Any) -> Iterator[Any]:
    """Values that mean the same as an integer or a tuple of integers."""
    if isinstance(x, tuple):
        yield from (list(x), torch.Size(x), tuple(np.int64(y) for y in x), [np.int32(y) for y in x])
        yield collections.namedtuple("Extent", [f"d{i}" for i in range(len(x))])(*x)
    else:
        yield Subclass(x)
        yield from (kind(x) for kind in (np.int64, np.uint64, np.int32, np.uint8, np.int16) if x <= np.iinfo(kind).max)


def meaningless(x: Any) -> Iterator[Any]:
    """Values that are neither an integer nor a tuple of integers."""
    yield from (True, np.bool_(True), 1.0, float("nan"), np.float32(2), "4", b"4", {}, {4}, object(), 1j, len)
    yield from (np.array([4.5]), torch.tensor([4.5, 8.0]), 10**5000, -(10**5000), -(10**30))
    if isinstance(x, tuple):
        for bad in (True, 1.0, "4", -1, 0, 10**5000, np.float32(2)):
            yield (bad, *x[1:])
            yield (*x[:-1], bad)
        yield ()
    else:
        yield from ([x], (x,), np.array(x), torch.tensor(x % 100))


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return type(a) is type(b) and np.array_equal(a, b)
    return bool(a == b) and repr(a) == repr(b)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("call, arguments", ENTRIES)
def test_equivalent_integers_give_equal_answers(call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    right = call(*arguments)
    for i, argument in enumerate(arguments):
        for other in alike(argument):
            assert equal(call(*arguments[:i], other, *arguments[i + 1 :]), right), (i, other)


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("call, arguments", ENTRIES)
def test_other_values_than_integers_are_refused(call: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    for i, argument in enumerate(arguments):
        for bad in meaningless(argument):
            try:
                answer = call(*arguments[:i], bad, *arguments[i + 1 :])
            except LayoutError as error:
                assert str(error) and len(str(error)) < 4000
            else:
                raise AssertionError(f"argument {i} = {shown(bad)} gives {shown(answer)}")


LONG: dict[str, Callable[[], object]] = {
    "an order": lambda: Sm90Plan.derive(128, 128, 64, order="x" * 100_000),
    "an order's class": lambda: order_text([0] * 100_000),  # type: ignore[arg-type]
    "a type": lambda: dtype("x" * 100_000),
    "a tile": lambda: Sm90Config((64,) * 100_000),  # type: ignore[arg-type]
    "an arch": lambda: arch("sm_" + "9" * 4_000),
}


@pytest.mark.parametrize("what", LONG)
def test_messages_are_short_for_long_values(what: str) -> None:
    with pytest.raises(LayoutError) as raised:
        LONG[what]()
    assert len(str(raised.value)) < 1_000, str(raised.value)[:200]


def test_the_common_message() -> None:
    for call, message in (
        (lambda: wgmma(64.0), "n of wgmma must be an integer, not 64.0 (float)"),
        (lambda: wgmma("64"), "n of wgmma must be an integer, not '64' (str)"),
        (lambda: smem_tile((128,), "bf16", "K"), "extent of smem_tile must be 2 integers, not (128,) (tuple)"),
        (lambda: Sm90Config(tile=(128, None)), "tile of Sm90Config must be 2 integers, not (128, None) (tuple)"),
        (lambda: MMA.get_slice(None), "thread of TiledMma.get_slice must be an integer, not None (NoneType)"),
        (lambda: ldmatrix(4, transpose=1), "transpose of ldmatrix must be True or False, not 1 (int)"),
        (lambda: mma_sync(10**99), "shape of mma_sync must be 3 integers or a string, not an integer of 329 bits"),
        (lambda: ldmatrix(4, 10**5000), "form of ldmatrix must be a string, not an integer of 16610 bits"),
        (lambda: ldmatrix(10**5000), "count of ldmatrix must be an integer of at most 4096 bits, not 16610 bits"),
    ):  # fmt: skip
        with pytest.raises(LayoutError) as error:
            call()
        assert str(error.value) == message


def test_values_of_a_dict_are_converted() -> None:
    """A NumPy integer would compute the sum of the parts with its width, and wrap."""
    parts = {"a": np.uint8(200), "b": np.uint8(100)}
    assert "300 bytes" in checks.shared_memory(HOPPER, parts).statement
    assert checks.registers(HOPPER, 128, {"a": np.uint8(200), "b": np.uint8(100)}).witness == (
        "45 registers a thread too many"
    )


def test_annotations_are_read_where_their_names_are() -> None:
    @checked(AtomError)
    def f(
        a: int | None, *rest: int, b: tuple[int, ...] = (), c: dict[str, int] | None = None, d: NotImported = 0
    ) -> Any:
        return a, rest, b, c

    class NotImported:
        pass

    assert f(np.int8(3), np.int8(4), b=[np.int16(5)], c={"x": np.int16(6)}) == (3, (4,), (5,), {"x": 6})
    assert f(None, d=NotImported()) == (None, (), (), None)
    for bad in (lambda: f(1, 2.0), lambda: f(1, b=3), lambda: f(1, c={"x": "6"}), lambda: f(1, d=5)):
        with pytest.raises(AtomError, match="must be"):
            bad()


def test_bounds() -> None:
    assert as_int(2**MAX_BITS - 1, "a") == 2**MAX_BITS - 1
    with pytest.raises(PlanError, match="at most 4096 bits"):
        as_int(2**MAX_BITS, "a", PlanError)
    with pytest.raises(PlanError, match="a must be at least 1, not 0"):
        as_int(0, "a", PlanError, least=1)
    with pytest.raises(PlanError, match="a must be at most 7, not 8"):
        as_int(8, "a", PlanError, most=7)
    assert refusal("4:1", "a", "an integer").endswith("CuTe's notation is read by parse('4:1')")


def test_the_number_of_a_tile_may_be_an_array() -> None:
    rows, columns = schedule.Linear().tile(np.arange(6), (2, 3))
    assert rows.tolist() == [0, 1] * 3 and columns.tolist() == [0, 0, 1, 1, 2, 2]
    for bad in (True, 5.0, "5", None, [5], object(), np.array([0.5]), torch.tensor([0.5])):
        with pytest.raises(PlanError, match=r"number of Schedule\.tile must be an integer"):
            schedule.Linear().tile(bad, (4, 3))


def test_settle_is_for_dataclasses() -> None:
    with pytest.raises(LayoutError, match="rounds of GpcOrder must be a tuple of"):
        schedule.GpcOrder(4)


@pytest.mark.parametrize(
    ("call", "begins"),
    [
        (lambda: plan(64, 64, 64, a="bf61:col"), "a of plan: unknown number format 'bf61'; do you mean bf16"),
        (lambda: plan(64, 64, 64, a="bf16:cool"), "a of plan: 'bf16:cool': the order is"),
        (lambda: plan(64, 64, 64, c="bf61"), "c of plan: unknown number format"),
        (lambda: plan(64, 64, 64, arch="hoper"), "arch of plan: no architecture 'hoper'; do you mean hopper?"),
        (lambda: plan(64, 64, 64, arch="sm_75"), "arch of plan: no kernel for sm_75"),
        (lambda: Operand("bf61"), "dtype of Operand: unknown number format"),  # type: ignore[arg-type]
        (lambda: fma("bf61"), "of of fma: unknown number format"),
        (lambda: from_cute(Layout(4), element="bf61"), "element of from_cute: unknown number format"),
    ],
)
def test_unknown_names_say_the_argument(call: Callable[[], object], begins: str) -> None:
    with pytest.raises(LayoutError) as raised:
        call()
    assert str(raised.value).startswith(begins) and raised.value.reason == str(raised.value)
    assert str(pickle.loads(pickle.dumps(raised.value))) == str(raised.value)


def test_values_that_are_no_argument_keep_their_message() -> None:
    @checked()
    def typed(name: object) -> object:
        return dtype(f"{name}1")

    with pytest.raises(LayoutError, match=r"^unknown number format 'bf61'"):
        typed("bf6")


def test_misspelt_keywords_name_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'acrh'; do you mean 'arch'\?$"):
        plan(64, 64, 64, acrh="sm_90a")  # type: ignore[call-arg]
    with pytest.raises(
        TypeError,
        match=r"'tile'; it is a field of Sm80Config and Sm90Config and Sm100Config: "
        r"write config= with the architecture's own$",
    ):
        plan(64, 64, 64, tile=(128, 64))  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'zzz'$"):
        plan(64, 64, 64, zzz=1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"'zz'; it takes a, a_source, b, c, saturate$"):
        wgmma(64, zz=1)  # type: ignore[call-arg]


def test_keywords_of_other_libraries_are_refused_with_what_to_write() -> None:
    import layoutgemm

    a = torch.ones(8, 8).bfloat16()
    for call, said in (
        (lambda: plan(64, 64, 64, trans_b=True), "'trans_b'; b='bf16:col' has K contiguous"),
        (lambda: plan(64, 64, 64, num_stages=4), "write config=Sm90Config(stages=4)"),
        (
            lambda: layoutgemm.matmul(a, a, transpose_b=True),
            "matmul() got an unexpected keyword argument 'transpose_b'; give b.mT",
        ),
        (lambda: layoutgemm.matmul(a, a, BLOCK_M=64), "write config=Sm90Config(tile=(128, 128))"),
        (lambda: layoutgemm.matmul(a, a, alpha=2.0), "layoutgemm.gemm(alpha, a, b, beta, c)"),
        (lambda: layoutgemm.matmul(a, a, actvation="relu"), "do you mean 'activation'?"),
        (
            lambda: layoutgemm.gemm(1.0, a, a, trans_b=True),
            "gemm() got an unexpected keyword argument 'trans_b'; give b.mT",
        ),
        (lambda: layoutgemm.quantize(a, recip="RowWise"), "do you mean 'recipe'?"),
        (lambda: layoutgemm.quantize_both(a, power_of_2=True), "do you mean 'power_of_two'?"),
        (lambda: layoutgemm.fp8_matmul(a, a, out_type=torch.half), "do you mean 'out_dtype'?"),
        (lambda: layoutgemm.fp8_grouped_matmul(a, a, offset=a), "do you mean 'offsets'?"),
        (lambda: layoutgemm.quantized_matmul(a, a, scales_x=a), "do you mean 'scale_x'?"),
        (lambda: layoutgemm.explain_matmul(a, a, split_k=2), "write config=Sm90Config(split=2)"),
        (lambda: layoutgemm.tune(8, 8, 8, trans_b=True), "b_major='k'"),
        (
            lambda: Layout((4, 8), order=(1, 0)),
            "Layout() got an unexpected keyword argument 'order'; write Layout.ordered",
        ),
        (lambda: make_layout((4, 8), strides=(8, 1)), "do you mean 'stride'?"),
    ):
        with pytest.raises(TypeError) as raised:
            call()
        assert said in str(raised.value)
    with pytest.raises(AttributeError, match=r"no attribute 'strides': write A.stride$"):
        _ = Layout(4).strides  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"'Layout' object has no attribute 'strode'$"):
        _ = Layout(4).strode
