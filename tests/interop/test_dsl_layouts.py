"""from_cute and to_cute of the CuTe DSL's layouts and tensors: round trips, its own evaluation, traces."""

from __future__ import annotations

import importlib.util
import random
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutgemm import ComposedLayout, Layout, LayoutError, Swizzle, dim
from layoutgemm.atoms import (
    TiledMma,
    ldmatrix,
    make_tiled_copy_tv,
    smem_tile,
    universal_copy,
    wgmma,
)
from layoutgemm.interop import cute_context, from_cute, tensor_layout, to_cute
from layoutgemm.interop.dsl_layouts import Symbols, layout_of
from layoutgemm.layouts import CoordinateTensor, ScaledBasis
from tests import needs
from tests.layouts.strategies import pairs, random_pair

pytestmark = pytest.mark.dsl

if importlib.util.find_spec("cutlass") is not None:
    import cutlass
    import cutlass.cute as cute
    from cutlass._mlir import ir
    from cutlass.cute.nvgpu import OperandMajorMode, warpgroup


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
    tile = cute.local_tile(cute.make_identity_tensor((64, 64)), (8, 16), (1, 2))
    assert from_cute(tile) == CoordinateTensor((8, 32), Layout.identity((8, 16)))
    assert from_cute(tile)(3, 5) == (11, 37)
    assert from_cute(cute.E([0, 1])) == ScaledBasis(1, (0, 1))


def test_tensors_without_a_number_format(sm90: None) -> None:
    """Truth values and matrix descriptors have a layout and no number format."""
    predicates = tensor_layout(cute.make_rmem_tensor((4, 2), cutlass.Boolean))
    assert (predicates.layout, predicates.element, predicates.space) == (Layout((4, 2)), None, "rmem")
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, cutlass.BFloat16)
    pointer = cute.make_ptr(cutlass.BFloat16, 0, cute.AddressSpace.smem, assumed_align=1024)
    swizzled = cute.recast_ptr(pointer, atom.inner, dtype=cutlass.BFloat16)
    sA = cute.make_tensor(swizzled, cute.tile_to_shape(atom, (64, 64), (0, 1)).outer)
    mma = TiledMma(wgmma(64)).to_cute()
    descriptors = tensor_layout(mma.make_fragment_A(mma.get_slice(0).partition_A(sA)))
    assert (descriptors.layout, descriptors.element) == (Layout((1, 1, 4), (0, 0, 2)), None)


def test_tensors_outside_a_trace() -> None:
    sizes = (cute.sym_int(symbol="M"), cute.sym_int(divisibility=8, symbol="K"))
    fake = cute.runtime.make_fake_compact_tensor(cutlass.BFloat16, sizes, stride_order=(1, 0), assumed_align=16)
    facts = tensor_layout(fake)
    M, K, d = dim("M"), dim("K", multiple_of=8), facts.layout.stride[0]
    assert facts.layout == Layout((M, K), (d, 1)) and d % 8 == 0 and d >= 0
    assert (facts.element.name, facts.space, facts.alignment) == ("bf16", "gmem", 16)
    assert from_cute(fake, names=("M", "K", "K")) == Layout((M, K), (K, 1))
    size = cute.sym_int64(divisibility=4)
    square = cute.runtime.make_fake_tensor(cutlass.Float32, (size, size), stride=(size, 1))
    layout = from_cute(square)
    n = layout.shape[0]
    assert layout == Layout((n, n), (n, 1)) and n % 4 == 0  # one SymInt is one integer
    assert from_cute(square).shape[0] != n  # without a name it is another in another layout
    array = np.zeros((4, 6), np.float32)
    assert from_cute(cute.runtime.from_dlpack(array.T)) == Layout((6, 4))
    assert tensor_layout(cute.runtime.from_dlpack(array)).element.name == "f32"


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Results of from_cute inside @cute.jit, for run-time tensors and integers."""
    needs.module("cutlass")
    seen: dict[str, Any] = {}

    @cute.kernel
    def kernel(tiled_mma: cute.TiledMma):
        atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, cutlass.BFloat16)
        whole = cute.tile_to_shape(atom, (128, 64, 2), (0, 1, 2))
        sA = cutlass.memory.SmemAllocator().allocate_tensor(cutlass.BFloat16, whole.outer, 1024, swizzle=whole.inner)
        seen["sA"] = tensor_layout(sA)
        seen["sA layout"] = from_cute(whole, element="bf16", unit="bytes")
        seen["stage"] = from_cute(sA[None, None, 1])
        seen["mma"] = from_cute(tiled_mma)

    @cute.jit
    def host(a: cute.Tensor, n: cutlass.Int32, wide: cutlass.Int64):
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
        op = warpgroup.MmaF16BF16Op(cutlass.BFloat16, cutlass.Float32, (64, 64, 16), warpgroup.OperandSource.SMEM, k, k)
        kernel(cute.make_tiled_mma(op, (2, 1, 1))).launch(grid=[1, 1, 1], block=[256, 1, 1])

    sizes = (cute.sym_int(), cute.sym_int(divisibility=8))
    fake = cute.runtime.make_fake_compact_tensor(cutlass.BFloat16, sizes, stride_order=(1, 0), assumed_align=16)
    cute.compile(host, fake, cutlass.Int32(3), cutlass.Int64(16), options="--gpu-arch sm_90a")
    return seen


def test_run_time_layouts_in_a_trace(traced: dict[str, Any]) -> None:
    facts = traced["a"]
    (n0, n1), d = facts.layout.shape, facts.layout.stride[0]
    assert facts.layout == Layout((n0, n1), (d, 1)) and n1 % 8 == 0 and d % 8 == 0 and n0 >= 1 and d >= 0
    assert (facts.element.name, facts.space, facts.alignment) == ("bf16", "gmem", 16)
    assert traced["named"] == Layout((dim("M"), dim("K", multiple_of=8)), (dim("ld", multiple_of=8, min=0), 1))
    step = traced["tile"].stride[0]
    assert traced["tile"] == Layout((64, 32), (step, 1)) and step % 8 == 0 and step >= 0 and step != d
    (m0, m1, four), (same, m2, one) = traced["made"].shape, traced["made"].stride
    assert (four, same, one) == (4, 4, 1) and m1 % 16 == 0 and m0 >= 1 and m2 >= 0
    assert re.sub(r"_\d+", "", str(traced["offset"])) == "S<3,3,3> o o0 o (8,8):(1,8)"
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


def test_an_entry_that_the_dsl_could_not_compute_is_refused() -> None:
    """Its tv_layout_B_tiled of three warps under an N permutation (4,2,2):(1,8,4) reads so."""
    with pytest.raises(LayoutError, match="an entry is x: the DSL writes x where its algebra found no layout"):
        layout_of("((4,8,3),((2,2),(x,2))):((96,6,x),((768,384),(x,48)))", Symbols(None))
