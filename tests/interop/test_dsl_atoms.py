"""from_cute and to_cute of the CuTe DSL's products and copies, against its own maps."""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import replace
from typing import Any

import pytest

from layoutgemm import Layout
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
from layoutgemm.errors import AtomError
from layoutgemm.interop import dsl_atoms, from_cute
from layoutgemm.interop.unsupported import REFUSED

pytestmark = pytest.mark.dsl

if importlib.util.find_spec("cutlass") is not None:
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute import nvgpu
    from cutlass.cute.nvgpu import OperandMajorMode, cpasync, tcgen05, warp, warpgroup


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
    reducing = tcgen05.LdRed32x32bOp(tcgen05.Repetition.x8, tcgen05.Pack.NONE, tcgen05.TmemLoadRedOp.MAXABS)
    assert from_cute(reducing) == tcgen05_ld("32x32b", 8, reduce="max.abs")
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
    """Every conversion is compared with the DSL's own maps: one wrong line in a table cannot pass."""
    product = wgmma(64).to_cute()
    monkeypatch.setitem(dsl_atoms.PRODUCTS, ("warpgroup", "MmaF16BF16Op"), lambda op: wgmma(64, a_source="rmem"))
    with pytest.raises(AtomError, match=r"operand A of wgmma.* is .* here and .* in the DSL: modes of .128, 8. and"):
        from_cute(product)
    monkeypatch.setitem(dsl_atoms.PRODUCTS, ("warpgroup", "MmaF16BF16Op"), lambda op: wgmma(128))
    with pytest.raises(AtomError, match=r"operand B .*: modes of \[128, 2048\] and \[128, 1024\]"):
        from_cute(product)
    load = ldmatrix(4, element="bf16").to_cute()
    monkeypatch.setitem(dsl_atoms.MATRIX_COPIES, ("warp", "LdMatrix8x8x16bOp"), lambda op: ldmatrix(4, transpose=True))
    with pytest.raises(AtomError, match=r"side dst of ldmatrix.* here and .* in the DSL"):
        from_cute(load)
    tiled = TiledMma(mma_sync((16, 8, 16)), (2, 2, 1), (None, Layout((8, 2, 2), (1, 16, 8)), None)).to_cute()
    monkeypatch.setattr(dsl_atoms, "_tile", lambda kind: (None, None, None))
    with pytest.raises(AtomError, match=r"operand B of mma.* tiled is .* in the DSL"):
        from_cute(tiled)


def test_a_tensor_copy_is_its_box(sm90: None) -> None:
    """The DSL's TMA atom says what it moves, not of which tensor: that is asked of tensor and tile."""
    bf = cutlass.BFloat16
    pointer = cute.make_ptr(bf, 0, cute.AddressSpace.gmem, assumed_align=16)
    tensor = cute.make_tensor(pointer, cute.make_layout((4096, 1024), stride=(1024, 1)))
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, bf)
    tile = cute.tile_to_shape(atom, (128, 64), (0, 1))
    forms = (
        (cpasync.CopyBulkTensorTileG2SOp(), {}, ("gmem", "smem"), ".mbarrier::complete_tx::bytes"),
        (cpasync.CopyBulkTensorTileG2SMulticastOp(), {"num_multicast": 2}, ("gmem", "smem"), ".multicast::cluster"),
        (cpasync.CopyBulkTensorTileS2GOp(), {}, ("smem", "gmem"), ".tile.bulk_group"),
        (cpasync.CopyReduceBulkTensorTileS2GOp(), {}, ("smem", "gmem"), ".add.tile.bulk_group"),
    )
    for op, options, spaces, ending in forms:
        theirs, _ = cpasync.make_tiled_tma_atom(op, tensor, tile, (128, 64), **options)
        box = from_cute(theirs)
        assert (box.source, box.target) == spaces and box.ptx.endswith(ending) and box.element.name == "bf16"
        # value v is element v of the box, which runs along the tensor's contiguous mode
        assert box.threads == 1 and [box.coords("dst")(0, v) for v in (1, 64, 65 * 64 + 3)] == [(0, 1), (1, 0), (65, 3)]
        with pytest.raises(AtomError, match=r"is a tensor copy, .*tma_load \(or tma_store\) of from_cute\(tensor\)"):
            from_cute(op)
    load, _ = cpasync.make_tiled_tma_atom(forms[0][0], tensor, tile, (128, 64))
    found = from_cute(tile, element="bf16", unit="bytes")
    assert len(from_cute(load).html(dst=found)) < 200_000 and from_cute(load).svg().startswith("<svg")
    theirs = load
    plan = tma_load(from_cute(tensor), from_cute(tile, element="bf16", unit="bytes"), dtype="bf16")
    assert (plan.box, plan.swizzle, len(plan.instructions)) == ((64, 128), "128B", 1)
    assert 'tma_gbasis = <"(64,128):(1@1,1@0)">' in str(theirs.type)  # the box that the DSL found


def test_every_operation_of_the_dsl_is_accounted_for() -> None:
    """A class that a new version brings is seen here: it has an atom, or is refused with a reason."""
    found, kinds = set(), (cute.atom.MmaOp, cute.atom.CopyOp)
    for part in ("common", "warp.mma", "warp.copy", "warpgroup.mma", "tcgen05.mma", "tcgen05.copy", "cpasync.copy"):
        module = importlib.import_module(f"cutlass.cute.nvgpu.{part}")
        for name, kind in vars(module).items():
            own = isinstance(kind, type) and issubclass(kind, kinds) and kind.__module__ == module.__name__
            if own and "_make_trait" in vars(kind) and "Base" not in name:
                found.add((part.partition(".")[0], name))
    tables = {*dsl_atoms.PRODUCTS, *dsl_atoms.MATRIX_COPIES, *dsl_atoms.THREAD_COPIES}
    tables |= {("tcgen05", name) for name in dsl_atoms._CP} | {("cpasync", name) for name in dsl_atoms.TENSOR_COPIES}
    assert not {key for key in {*tables, *REFUSED} if key not in found}, "a table names what the DSL has not"
    by_name = (dsl_atoms._TMEM, dsl_atoms._TMEM_REDUCING)
    rest = {key for key in found - tables if not (key[0] == "tcgen05" and any(p.fullmatch(key[1]) for p in by_name))}
    assert rest == set(REFUSED)
    assert (len(found), len(dsl_atoms.TENSOR_COPIES), len(rest)) == (79, 7, 9)
