"""from_cute and to_cute with the CuTe DSL: round trips, its own objects against our atoms, and evaluation by its IR."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutgemm import AtomError, ComposedLayout, Layout, LayoutError, ScaledBasis, Swizzle, dim
from layoutgemm.atoms import (
    TiledCopy,
    TiledMma,
    cp_async,
    fma,
    ldmatrix,
    load_global,
    load_shared,
    make_tiled_copy_A,
    make_tiled_copy_C,
    make_tiled_copy_tv,
    mma_sync,
    smem_tile,
    stmatrix,
    store_global,
    store_shared,
    tcgen05_ld,
    tcgen05_mma,
    tcgen05_st,
    tma_load,
    universal_copy,
    wgmma,
)
from layoutgemm.interop import cute_context, dsl_atoms, from_cute, tensor_layout, to_cute
from tests.layouts.strategies import pairs, random_pair

pytestmark = pytest.mark.dsl

if importlib.util.find_spec("cutlass") is not None:
    import cutlass
    import cutlass.cute as cute
    from cutlass._mlir import ir
    from cutlass.cute import nvgpu
    from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05, warp, warpgroup


@pytest.fixture
def sm90() -> Iterator[None]:
    with cute_context("sm_90a"):
        yield


@pytest.fixture
def sm100() -> Iterator[None]:
    with cute_context("sm_100a"):
        yield


# ---------------------------------------------------------------- layouts

TABLE = [
    Layout(4), Layout((4,)), Layout(4, 0), Layout((4, 8), (8, 1)), Layout(((4, 2), 3), ((2, -1), 0)),
    Layout((2, (3, (4, 5))), (60, (20, (5, 1)))), Layout((1, 1, 7), (0, 5, 1)), Layout((4, 4), (1 << 40, 1)),
    Layout(1 << 33), Layout.identity((4, (2, 3))), Layout.identity(8), Layout((4, 8), (ScaledBasis(8, (1,)), 0)),
    Layout((2, 3), (ScaledBasis(-2, (0, 1)), ScaledBasis(3, (1,)))),
]  # fmt: skip


def test_layouts_there_and_back(sm90: None) -> None:
    rng = random.Random(0)
    for ours in [*TABLE, *(Layout(*random_pair(rng)) for _ in range(150))]:
        theirs = ours.to_cute()
        assert str(theirs) == str(ours)
        assert from_cute(theirs) == ours


@settings(max_examples=40)
@given(pair=pairs(), offset=st.integers(0, 64), fields=st.sampled_from([(1, 0, 1), (3, 4, 3), (2, 3, -4), (3, 0, 5)]))
def test_any_layout_there_and_back(pair: Any, offset: int, fields: tuple[int, int, int]) -> None:
    plain = Layout(*pair)
    swizzled = ComposedLayout(Swizzle(*fields), offset, plain)
    with cute_context():
        theirs = plain.to_cute(), swizzled.to_cute()
        assert [from_cute(x) for x in theirs] == [plain, swizzled]
        last = plain.size - 1
        if min(plain.offsets()) >= 0:  # what a swizzle makes of a negative offset is no place in memory
            assert int(cute.crd2idx(last, theirs[1])) == swizzled(last)
    assert [from_cute(x) for x in theirs] == [plain, swizzled]  # outside, what is said of them stays


def test_reading_adds_nothing_to_the_kernel(sm90: None) -> None:
    pointer = cute.make_ptr(cutlass.BFloat16, 0, cute.AddressSpace.smem, assumed_align=1024)
    mma = TiledMma(wgmma(64), (2, 1, 1))
    copy = make_tiled_copy_tv(universal_copy(64, "bf16"), Layout((16, 8), (8, 1)), Layout((1, 8)))
    layout = Layout((64, 64), (64, 1)).to_cute()
    atom = Swizzle(3, 3, 3) @ Layout((8, 64))
    theirs = [x.to_cute() for x in (atom.swizzle, atom, mma, mma.atom, copy, copy.atom)]
    theirs += [layout, cute.make_tensor(pointer, layout), cute.make_identity_tensor((4, 8))]
    block = ir.InsertionPoint.current.block
    before = len(block.operations)
    assert len([from_cute(x) for x in theirs]) == 9
    assert len(block.operations) == before
    layout.shape  # noqa: B018
    assert len(block.operations) > before  # what asking the DSL itself does: the count sees it


def test_the_dsl_evaluates_what_it_is_given_as_we_do(sm90: None) -> None:
    rng = random.Random(1)
    for _ in range(40):
        ours = Layout(*random_pair(rng))
        theirs = ours.to_cute()
        for i in rng.sample(range(ours.size), min(ours.size, 5)):
            assert int(theirs(i)) == ours(i), str(ours)


def test_composed_layouts_there_and_back(sm90: None) -> None:
    rng = random.Random(2)
    for bits, base, shift in ((3, 3, 3), (2, 4, 3), (1, 0, -2), (0, 4, 3), (2, 1, 5)):
        swizzle = Swizzle(bits, base, shift)
        assert from_cute(swizzle.to_cute()) == swizzle or bits == 0
        assert from_cute(swizzle.to_cute(), unit="bytes").unit == 8
        for offset in (0, 8, 24):
            ours = ComposedLayout(swizzle, offset, Layout((8, (4, 16)), (64, (1, 4))))
            theirs = ours.to_cute()
            back = from_cute(theirs)
            assert back == ours or bits == 0
            for i in rng.sample(range(512), 12):
                # Their evaluation, in their compiler, of an object that we wrote; and ours, of what we read of it.
                assert int(cute.crd2idx(i, theirs)) == ours(i) == back(i)


@pytest.mark.parametrize("kind", ["INTER", "SW32", "SW64", "SW128"])
@pytest.mark.parametrize("major", ["K", "MN"])
@pytest.mark.parametrize("name", ["BFloat16", "Float8E4M3FN"])
def test_official_smem_atoms_are_swizzled_by_bytes(sm90: None, kind: str, major: str, name: str) -> None:
    element = {"BFloat16": "bf16", "Float8E4M3FN": "e4m3"}[name]
    atom_kind = getattr(warpgroup.SmemLayoutAtomKind, f"{major}_{kind}")
    theirs = warpgroup.make_smem_layout_atom(atom_kind, getattr(cutlass, name))
    # As an object it is a function of element numbers, and that is what is read ...
    plain = from_cute(theirs)
    for i in range(0, plain.layout.size if isinstance(plain, ComposedLayout) else plain.size, 7):
        assert plain(i) == int(cute.crd2idx(i, theirs))
    # ... what its swizzle does to memory, on a pointer, is another, which the DSL shows of a tensor.
    pointer = cute.make_ptr(getattr(cutlass, name), 0, cute.AddressSpace.smem, assumed_align=1024)
    swizzled = cute.recast_ptr(pointer, theirs.inner, dtype=getattr(cutlass, name))
    tensor = tensor_layout(cute.make_tensor(swizzled, theirs.outer))
    assert tensor.layout == from_cute(theirs, element=element, unit="bytes")
    assert (tensor.element.name, tensor.space, tensor.alignment) == (element, "smem", 1024)
    swizzle = "none" if kind == "INTER" else f"{kind.removeprefix('SW')}B"
    own = smem_tile(plain.shape, element, major, swizzle)
    assert np.array_equal(tensor.layout.offsets(), own.composed.offsets())


def test_a_swizzle_of_a_layout_counts_elements(sm90: None) -> None:
    layout = cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))
    pointer = cute.make_ptr(cutlass.BFloat16, 0, cute.AddressSpace.smem, assumed_align=16)
    assert from_cute(cute.make_tensor(pointer, layout)) == Swizzle(3, 3, 3, 16) @ Layout((8, 64), (64, 1))


def test_part_of_a_swizzled_tensor_is_refused(sm90: None) -> None:
    pointer = cute.make_ptr(cutlass.BFloat16, 0, cute.AddressSpace.smem, assumed_align=1024)
    pointer = cute.recast_ptr(pointer, cute.make_swizzle(3, 4, 3), dtype=cutlass.BFloat16)
    whole = cute.make_tensor(pointer, cute.make_layout((64, 64), stride=(64, 1)))
    assert from_cute(cute.local_tile(whole, (8, 64), (1, 0))) == Swizzle(3, 3, 3, 16) @ Layout((8, 64), (64, 1))
    with pytest.raises(LayoutError, match="does not say where its elements lie"):
        from_cute(cute.local_tile(whole, (4, 64), (1, 0)))


def test_coordinate_tensors(sm90: None) -> None:
    theirs = cute.make_identity_tensor((4, (2, 3)))
    assert from_cute(theirs) == Layout.identity((4, (2, 3)))
    assert tensor_layout(theirs).element is None
    assert from_cute(cute.local_tile(cute.make_identity_tensor((64, 64)), (8, 16), (1, 2))) == Layout.identity((8, 16))
    assert from_cute(cute.E([0, 1])) == ScaledBasis(1, (0, 1))


def test_tensors_outside_a_trace() -> None:
    sizes = (cute.sym_int(symbol="M"), cute.sym_int(divisibility=8, symbol="K"))
    fake = cute.runtime.make_fake_compact_tensor(cutlass.BFloat16, sizes, stride_order=(1, 0), assumed_align=16)
    facts = tensor_layout(fake)
    M, K, d = dim("M"), dim("K", multiple_of=8), dim("d0", multiple_of=8, min=0)
    assert facts.layout == Layout((M, K), (d, 1))
    assert (facts.element.name, facts.space, facts.alignment) == ("bf16", "gmem", 16)
    assert from_cute(fake, names=("M", "K", "K")) == Layout((M, K), (K, 1))
    size = cute.sym_int64(divisibility=4)
    square = cute.runtime.make_fake_tensor(cutlass.Float32, (size, size), stride=(size, 1))
    n = dim("n0", multiple_of=4)
    assert from_cute(square) == Layout((n, n), (n, 1))  # one SymInt is one integer
    array = np.zeros((4, 6), np.float32)
    assert from_cute(cute.runtime.from_dlpack(array.T)) == Layout((6, 4))
    assert tensor_layout(cute.runtime.from_dlpack(array)).element.name == "f32"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What from_cute gives inside @cute.jit, of run-time tensors and integers."""
    pytest.importorskip("cutlass")
    seen: dict[str, Any] = {}

    @cute.kernel
    def kernel(tiled_mma: cute.TiledMma):  # type: ignore[no-untyped-def]
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, cutlass.BFloat16)
        whole = cute.tile_to_shape(atom, (128, 64, 2), (0, 1, 2))
        sA = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.BFloat16, whole.outer, 1024, swizzle=whole.inner)
        seen["sA"] = tensor_layout(sA)
        seen["sA layout"] = from_cute(whole, element="bf16", unit="bytes")
        seen["stage"] = from_cute(sA[None, None, 1])
        seen["mma"] = from_cute(tiled_mma)

    @cute.jit
    def host(a: cute.Tensor, n: cutlass.Int32, wide: cutlass.Int64):  # type: ignore[no-untyped-def]
        seen["a"] = tensor_layout(a)
        seen["named"] = from_cute(a, names=("M", "K", "ld"))
        seen["tile"] = from_cute(cute.local_tile(a, (64, 32), (n, 0)))
        seen["made"] = from_cute(cute.make_layout((n, cute.assume(wide, 16), 4), stride=(4, wide, 1)))
        seen["offset"] = from_cute(
            cute.make_composed_layout(cute.make_swizzle(3, 3, 3), cute.assume(n, 8), cute.make_layout((8, 8)))
        )
        M, K = dim("M"), dim("K", multiple_of=8)
        back = Layout((M, (8, K // 8)), (2 * K, (1, 8))).to_cute(M=n, K=cute.assume(n, 8))
        seen["back"] = str(back)
        seen["again"] = from_cute(back, names=("M", "blocks", "pitch"))
        try:
            Layout((M, K)).to_cute(M=n)
        except LayoutError as error:
            seen["missing"] = str(error)
        try:
            with cute_context():
                pass
        except LayoutError as error:
            seen["nested"] = str(error)
        k = OperandMajorMode.K
        op = warpgroup.MmaF16BF16Op(
            cutlass.BFloat16, cutlass.Float32, (64, 64, 16), warpgroup.OperandSource.SMEM, k, k
        )
        kernel(cute.make_tiled_mma(op, (2, 1, 1))).launch(grid=[1, 1, 1], block=[256, 1, 1])

    sizes = (cute.sym_int(), cute.sym_int(divisibility=8))
    fake = cute.runtime.make_fake_compact_tensor(cutlass.BFloat16, sizes, stride_order=(1, 0), assumed_align=16)
    cute.compile(host, fake, cutlass.Int32(3), cutlass.Int64(16), options="--gpu-arch sm_90a")
    return seen


def test_run_time_layouts_in_a_trace(traced: dict[str, Any]) -> None:
    facts = traced["a"]
    d = dim("d0", multiple_of=8, min=0)
    assert facts.layout == Layout((dim("n0"), dim("n1", multiple_of=8)), (d, 1))
    assert (facts.element.name, facts.space, facts.alignment) == ("bf16", "gmem", 16)
    assert traced["named"] == Layout((dim("M"), dim("K", multiple_of=8)), (dim("ld", multiple_of=8, min=0), 1))
    assert traced["tile"] == Layout((64, 32), (d, 1))
    wide = (dim("n0"), dim("n1", multiple_of=16), 4), (4, dim("d1", min=0), 1)
    assert traced["made"] == Layout(*wide)
    assert str(traced["offset"]) == "S<3,3,3> o o0 o (8,8):(1,8)"
    # A proof about it holds at every size that the kernel may meet.
    assert traced["named"].logical_divide((None, 8)).equivalent(traced["named"])


def test_inside_a_kernel(traced: dict[str, Any]) -> None:
    outer = Layout(((8, 16), (64, 1), (1, 2)), ((64, 512), (1, 0), (0, 8192)))
    swizzled = Swizzle(3, 3, 3, 16) @ outer
    assert traced["sA"].layout.equivalent(swizzled) and traced["sA layout"].equivalent(swizzled)
    assert (traced["sA"].element.name, traced["sA"].space, traced["sA"].alignment) == ("bf16", "smem", 1024)
    assert traced["stage"].equivalent(smem_tile((128, 64), "bf16", "K", "128B").composed)
    assert traced["mma"] == TiledMma(wgmma(64), Layout((2, 1, 1), (1, 0, 0)))


def test_symbols_given_back_in_a_trace(traced: dict[str, Any]) -> None:
    assert traced["back"] == "(?,(8,?)):(?{div=16},(1,8))"
    pitch = dim("pitch", multiple_of=16, min=0)
    assert traced["again"] == Layout((dim("M"), (8, dim("blocks"))), (pitch, (1, 8)))
    assert "needs a value of K, and only M is given" in traced["missing"]
    assert "a context of its own" in traced["nested"]


def test_without_a_trace_to_cute_says_what_it_needs() -> None:
    for own in (Layout(4), Swizzle(3, 4, 3), Swizzle(3, 3, 3) @ Layout(64), wgmma(64), ldmatrix(4)):
        with pytest.raises(LayoutError, match=r"inside @cute\.jit or @cute\.kernel, or under"):
            own.to_cute()


def test_what_the_dsl_cannot_hold(sm90: None) -> None:
    nested = Swizzle(3, 3, 3) @ (Swizzle(2, 4, 3) @ Layout((8, 64), (64, 1)))
    with pytest.raises(LayoutError, match="end with a plain layout"):
        nested.to_cute()
    with pytest.raises(LayoutError, match="needs a value of M"):
        Layout((dim("M"), 8)).to_cute()
    with pytest.raises(LayoutError, match="has no M to give"):
        to_cute(Swizzle(3, 4, 3), M=3)
    with pytest.raises(TypeError, match="not str"):
        to_cute("4:1")
    function = cute.make_composed_layout(lambda c: c, 0, cute.make_layout(4))
    with pytest.raises(LayoutError, match="a Python function"):
        from_cute(function)


# ---------------------------------------------------------------- products


def same_maps(ours: TiledMma, theirs: Any) -> None:
    """Every operand over the tile as their compiler has it, value by value."""
    for operand in "ABC" if ours.atom_layout[2].size == 1 else "AB":
        layout = getattr(theirs, f"tv_layout_{operand}_tiled")
        mine = ours.tv_layout(operand)
        assert mine.equivalent(from_cute(layout)), (str(ours.atom), operand)
        last = ours.threads - 1, int(mine[1].size) - 1
        assert int(layout(last)) == mine(*last)


WARP = [
    ("MmaF16BF16Op", ("BFloat16", "Float32", (16, 8, 16)), mma_sync((16, 8, 16))),
    ("MmaF16BF16Op", ("Float16", "Float16", (16, 8, 8)), mma_sync((16, 8, 8), "f16", c="f16")),
    ("MmaTF32Op", ((16, 8, 8),), mma_sync((16, 8, 8), "tf32")),
    ("MmaFP8Op", ("Float8E4M3FN", "Float32", (16, 8, 32)), mma_sync((16, 8, 32), "e4m3")),
]


@pytest.mark.parametrize(("name", "args", "ours"), WARP, ids=lambda x: str(x)[:40])
def test_warp_products(sm90: None, name: str, args: tuple[Any, ...], ours: Any) -> None:
    op = getattr(warp, name)(*[getattr(cutlass, a) if isinstance(a, str) else a for a in args])
    assert from_cute(op) == ours  # an operation is a Python object: it needs no trace
    assert from_cute(cute.make_mma_atom(op)) == ours == from_cute(ours.to_cute())
    k = ours.shape_mnk[2]
    eights = Layout((8, 2, 2), (1, 16, 8))
    for atoms, permutation in [
        (Layout((1, 1, 1)), (None, None, None)),
        (Layout((2, 2, 1)), (32, 32, k)),
        (Layout((2, 2, 1), (2, 1, 0)), (None, eights, None)),
        (Layout((4, 1, 1)), (64, 16, 2 * k)),
        (Layout((1, 2, 2)), (None, None, None)),
    ]:
        theirs = cute.make_tiled_mma(
            op, atoms.to_cute(), tuple([p.to_cute() if isinstance(p, Layout) else p for p in permutation])
        )
        mine = TiledMma(ours, atoms, permutation)
        got = from_cute(theirs)
        assert (got.atom, got.tile_mnk, got.threads) == (ours, mine.tile_mnk, mine.threads)
        assert got.atom_layout.equivalent(atoms)
        same_maps(got, theirs)
        assert from_cute(got.to_cute()) == got
        assert from_cute(theirs.get_slice(3)) == got


def test_every_sampled_wgmma(sm90: None) -> None:
    k = OperandMajorMode.K
    for n in (8, 16, 24, 64, 104, 128, 200, 256):
        for source in ("SMEM", "RMEM"):
            where = getattr(warpgroup.OperandSource, source)
            op = warpgroup.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (64, n, 16), where, k, k)
            ours = wgmma(n, a_source=source.lower())
            assert from_cute(op) == ours == from_cute(ours.to_cute())
            theirs = cute.make_tiled_mma(op, (2, 1, 1))
            got = from_cute(theirs)
            assert got == TiledMma(ours, Layout((2, 1, 1), (1, 0, 0)))
            same_maps(got, theirs)
    e4, e5 = cutlass.Float8E4M3FN, cutlass.Float8E5M2
    op = warpgroup.MmaF8Op(e4, e5, cutlass.Float32, (64, 64, 32), warpgroup.OperandSource.SMEM, k, k)
    assert from_cute(op) == wgmma(64, "e4m3", "e5m2") == from_cute(wgmma(64, "e4m3", "e5m2").to_cute())
    assert from_cute(wgmma(64, "i8", "u8").to_cute()) == wgmma(64, "i8", "u8")
    made = wgmma(64).to_cute(a_major="MN").op
    assert made.a_major_mode == OperandMajorMode.MN and made.b_major_mode == OperandMajorMode.K
    with pytest.raises(AtomError, match=r"A of .* is K-major, not 'MN'"):
        wgmma(64, "e4m3").to_cute(a_major="MN")
    for ours in (wgmma(64, "tf32"), wgmma(64, "i8", saturate=True), mma_sync((8, 8, 4), "f16")):
        with pytest.raises(AtomError, match="has no operation for"):
            ours.to_cute()


TCGEN05 = [
    ("MmaF16BF16Op", ["BFloat16", "Float32"], ("f16", 128, 64, "bf16")),
    ("MmaF16BF16Op", ["Float16", "Float16"], ("f16", 64, 40, "f16", "f16", "f16")),
    ("MmaTF32Op", [], ("tf32", 128, 128)),
    ("MmaI8Op", ["Uint8"], ("i8", 128, 64, "u8")),
    ("MmaFP8Op", ["Float8E5M2", "Float16"], ("f8f6f4", 128, 64, "e5m2", "e5m2", "f16")),
    ("MmaF8F6F4Op", ["Float8E4M3FN", "Float4E2M1FN", "Float32"], ("f8f6f4", 128, 64, "e4m3", "e2m1")),
    ("MmaMXF8Op", ["Float8E4M3FN"], ("mxf8f6f4", 128, 64, "e4m3")),
]


@pytest.mark.filterwarnings("ignore:.*is deprecated, use:DeprecationWarning")
def test_tcgen05_products(sm100: None) -> None:
    compared = 0
    for group in (1, 2):
        for name, types, args in TCGEN05:
            if group == 2 and args[1] == 64:
                continue
            m, n = args[1] * group, args[2]
            ours = tcgen05_mma(args[0], m, n, *args[3:], cta_group=group)
            where = ((m, n, ours.shape_mnk[2]), [tcgen05.CtaGroup.ONE, tcgen05.CtaGroup.TWO][group - 1])
            majors = (tcgen05.OperandSource.SMEM, OperandMajorMode.K, OperandMajorMode.K)
            op = getattr(tcgen05, name)(*[getattr(cutlass, t) for t in types], *where, *majors)
            assert from_cute(op) == ours == from_cute(ours.to_cute()), name
            theirs = cute.make_tiled_mma(op)
            same_maps(from_cute(theirs), theirs)
            compared += 1
    assert compared == 13
    for ours in (
        tcgen05_mma("mxf4", 128, 64),
        tcgen05_mma("mxf4nvf4", 256, 64, cta_group=2),
        tcgen05_mma("mxf8f6f4", 128, 64, "e2m3", "e5m2"),
        tcgen05_mma("f16", 128, 64, a_source="tmem"),
    ):
        assert from_cute(ours.to_cute()) == ours
    sparse = (cutlass.Float16, cutlass.Float32, (16, 8, 16), warp.SparseMetadataFormat.TID)
    with pytest.raises(AtomError, match=r"the DSL's warp\.MmaF16BF16SparseOp has no atom here"):
        from_cute(warp.MmaF16BF16SparseOp(*sparse))


def test_fma(sm90: None) -> None:
    assert from_cute(nvgpu.MmaUniversalOp(cutlass.Float32)) == fma() == from_cute(fma().to_cute())
    theirs = cute.make_tiled_mma(nvgpu.MmaUniversalOp(cutlass.Float32), (16, 16, 1))
    same_maps(from_cute(theirs), theirs)


# ---------------------------------------------------------------- copies

COPIES = [
    *[ldmatrix(n, transpose=t, element="bf16") for n in (1, 2, 4) for t in (False, True)],
    *[stmatrix(n, transpose=t, element="f16") for n in (1, 2, 4) for t in (False, True)],
    ldmatrix(4, element="e4m3"), ldmatrix(4, element="f32"), ldmatrix(2),
    *[universal_copy(bits, "bf16") for bits in (16, 32, 64, 128)], load_shared(128, "f32"), store_shared(64, "e4m3"),
    store_global(128, "i32"), cp_async(16, "cg", "bf16"), cp_async(4, "ca", "f32"),
]  # fmt: skip
BLACKWELL_COPIES = [
    ldmatrix(2, "m16n16.b8", transpose=True), ldmatrix(4, "m8n16.b8x16.b4x16_p64"), stmatrix(4, "m16n8.b8", True),
    *[make(s, n) for make in (tcgen05_ld, tcgen05_st) for s, n in (("32x32b", 32), ("16x256b", 4), ("16x64b", 1))],
    tcgen05_ld("32x32b", 16, pack=True, element="f16"), tcgen05_st("16x128b", 2, unpack=True, element="bf16"),
]  # fmt: skip


def test_copies_there_and_back(sm90: None) -> None:
    for ours in COPIES:
        theirs = ours.to_cute()
        back = from_cute(theirs, spaces=(ours.source, ours.target))
        assert replace(back, element=ours.element) == ours and back.element.bits == ours.element.bits
        for side in ("src", "dst"):
            assert from_cute(getattr(theirs, f"layout_{side}_tv")).equivalent(ours.layout(side))


def test_blackwell_copies_there_and_back(sm100: None) -> None:
    for ours in BLACKWELL_COPIES:
        back = from_cute(ours.to_cute())
        assert replace(back, element=ours.element) == ours and back.element.bits == ours.element.bits


def test_operations_of_copies() -> None:
    assert from_cute(warp.LdMatrix8x8x16bOp(True, 4)) == ldmatrix(4, transpose=True)
    assert from_cute(tcgen05.Ld32x32bOp(tcgen05.Repetition.x8)) == tcgen05_ld("32x32b", 8)
    with pytest.raises(AtomError, match="does not say how many bits"):
        from_cute(nvgpu.CopyUniversalOp())
    with pytest.raises(AtomError, match=r"is a tensor copy, .*tma_load"):
        from_cute(cpasync.CopyBulkTensorTileG2SOp())


def test_memory_attributes_of_copies(sm90: None) -> None:
    f32 = cutlass.Float32
    for options, ours in [
        ({"load_cache_mode": nvgpu.LoadCacheMode.STREAMING}, load_global(128, "f32", cache="cs")),
        ({"l1c_evict_priority": nvgpu.CacheEvictionPriority.NO_ALLOCATE}, load_global(128, "f32", evict="no_allocate")),
        ({"l2_prefetch_size": nvgpu.L2PrefetchSize.SIZE_128B}, load_global(128, "f32", l2_prefetch=128)),
        ({"invariant": True}, load_global(128, "f32", read_only=True)),
        ({"memory_order": nvgpu.MemoryOrder.ACQUIRE, "memory_scope": nvgpu.MemoryScope.CTA},
         load_global(128, "f32", order="acquire", scope="cta")),
    ]:  # fmt: skip
        assert from_cute(cute.make_copy_atom(nvgpu.CopyG2ROp(), f32, num_bits_per_copy=128, **options)) == ours
    volatile = cute.make_copy_atom(
        nvgpu.CopyS2ROp(), f32, num_bits_per_copy=128, memory_order=nvgpu.MemoryOrder.VOLATILE
    )
    with pytest.raises(AtomError, match="has no atom here"):
        from_cute(volatile)


def test_maps_that_split_elements_are_refused(sm90: None) -> None:
    """The DSL counts elements that lie in two lanes, and merges threads; see tests/atoms/test_copy_oracle.py."""
    with pytest.raises(AtomError, match="moves no whole f32"):
        from_cute(cute.make_copy_atom(warp.LdMatrix8x8x16bOp(True, 1), cutlass.Float32))
    with pytest.raises(AtomError):  # sixteen instructions, or none: no atom copies 512 bits
        from_cute(cute.make_copy_atom(nvgpu.CopyUniversalOp(), cutlass.Float32, num_bits_per_copy=512))


def test_tiled_copies(sm90: None) -> None:
    vector = universal_copy(128, "bf16")
    mma = TiledMma(mma_sync((16, 8, 16)), (2, 2, 1), (32, 32, 16))
    bf = cutlass.BFloat16
    load = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), bf)
    threads, values = Layout((16, 8), (8, 1)), Layout((1, 8))
    pairs = [
        (
            cute.make_tiled_copy_tv(vector.to_cute(), threads.to_cute(), values.to_cute()),
            make_tiled_copy_tv(vector, threads, values),
        ),
        (cute.make_tiled_copy_A(load, mma.to_cute()), make_tiled_copy_A(ldmatrix(4, element="bf16"), mma)),
        (
            cute.make_tiled_copy_C(cute.make_copy_atom(warp.StMatrix8x8x16bOp(False, 2), bf), mma.to_cute()),
            make_tiled_copy_C(stmatrix(2, element="bf16"), mma),
        ),
    ]
    for theirs, ours in pairs:
        got = from_cute(theirs)
        assert (got.atom, got.tile, got.threads) == (ours.atom, ours.tile, ours.threads)
        for side in ("src", "dst"):
            layout = from_cute(getattr(theirs, f"layout_{side}_tv_tiled"))
            assert got.tv_layout(side).equivalent(layout) and ours.tv_layout(side).equivalent(layout)
        assert from_cute(got.to_cute()) == got == from_cute(theirs.get_slice(0))
    assert from_cute(pairs[1][0]).feeds(mma, "A")
    one_by_one = TiledMma(mma_sync((16, 8, 16)), (2, 2, 1), (None, 32, None))
    assert from_cute(cute.make_tiled_copy_B(load, one_by_one.to_cute())).feeds(one_by_one, "B")
    with pytest.raises(AtomError, match="has 1 blocks, and a tile 2"):  # A's rows for B: no register fits
        from_cute(pairs[1][0]).feeds(mma, "B")
    # A tiler of layouts: rows dealt in twos.
    dealt = TiledCopy(vector, Layout((4, 8), (8, 1)), (Layout((2, 2), (1, 4)), 8))
    assert from_cute(dealt.to_cute()) == dealt


def test_what_differs_from_the_dsl_is_not_returned(sm90: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every conversion is held against the DSL's own maps: one wrong line in a table cannot pass."""
    product = wgmma(64).to_cute()
    monkeypatch.setitem(dsl_atoms.PRODUCTS, ("warpgroup", "MmaF16BF16Op"), lambda op: wgmma(64, a_source="rmem"))
    with pytest.raises(AtomError, match=r"operand A of wgmma.* is .* here and .* in the DSL: modes of .128, 8. and"):
        from_cute(product)
    monkeypatch.setitem(dsl_atoms.PRODUCTS, ("warpgroup", "MmaF16BF16Op"), lambda op: wgmma(128))
    with pytest.raises(AtomError, match=r"operand B .*: modes of \[128, 2048\] and \[128, 1024\]"):
        from_cute(product)
    load = ldmatrix(4, element="bf16").to_cute()
    monkeypatch.setitem(
        dsl_atoms.MATRIX_COPIES, ("warp", "LdMatrix8x8x16bOp"), lambda op: ldmatrix(4, transpose=True)
    )
    with pytest.raises(AtomError, match=r"side dst of ldmatrix.* here and .* in the DSL"):
        from_cute(load)
    tiled = TiledMma(mma_sync((16, 8, 16)), (2, 2, 1), (None, Layout((8, 2, 2), (1, 16, 8)), None)).to_cute()
    monkeypatch.setattr(dsl_atoms, "_tile", lambda kind: (None, None, None))
    with pytest.raises(AtomError, match=r"operand B of mma.* tiled is .* in the DSL"):
        from_cute(tiled)


def test_a_tensor_copy_is_made_of_what_it_copies(sm90: None) -> None:
    """The DSL's TMA atom says what it moves, not of which tensor: it is refused; tensor and tile are taken instead."""
    bf = cutlass.BFloat16
    pointer = cute.make_ptr(bf, 0, cute.AddressSpace.gmem, assumed_align=16)
    tensor = cute.make_tensor(pointer, cute.make_layout((4096, 1024), stride=(1024, 1)))
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, bf)
    tile = cute.tile_to_shape(atom, (128, 64), (0, 1))
    theirs, _ = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), tensor, tile, (128, 64))
    with pytest.raises(AtomError, match=r"is a tensor copy, .*tma_load \(or tma_store\) of from_cute\(tensor\)"):
        from_cute(theirs)
    plan = tma_load(from_cute(tensor), from_cute(tile, element="bf16", unit="bytes"), dtype="bf16")
    assert (plan.box, plan.swizzle, len(plan.instructions)) == ((64, 128), "128B", 1)
    assert "tma_gbasis = <\"(64,128):(1@1,1@0)\">" in str(theirs.type)  # the box that the DSL found
