"""Tensor copies of the CuTe DSL, and what is refused: from_cute of its atoms, to_cute of plans."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from layoutgemm import Layout, LayoutError, dims
from layoutgemm.atoms import SmemTile, smem_tile, tcgen05_ld, tma_load, tma_reduce, tma_store
from layoutgemm.errors import AtomError
from layoutgemm.interop import from_cute

pytestmark = pytest.mark.dsl

if importlib.util.find_spec("cutlass") is not None:
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.nvgpu import cpasync, tcgen05, warp, warpgroup

ROWS, COLUMNS = Layout((4096, 1024), (1024, 1)), Layout((4096, 1024))


def tensor(layout: Layout = ROWS, element: str = "BFloat16") -> Any:
    pointer = cute.make_ptr(getattr(cutlass, element), 0, cute.AddressSpace.gmem, assumed_align=16)
    return cute.make_tensor(pointer, layout.to_cute())


def official_tile(m: int, k: int) -> Any:
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, cutlass.BFloat16)
    return cute.tile_to_shape(atom, (m, k), (0, 1))


# ---------------------------------------------------------------- gathers and scatters


def test_gathers_and_scatters_move_four_rows(sm100: None) -> None:
    pointer = cute.make_ptr(cutlass.Int32, 0, cute.AddressSpace.gmem, assumed_align=16)
    rows = cute.make_tensor(pointer, cute.make_layout((512, 1024), stride=(1, 0)))
    forms = (
        ("Gather4G2SOp", {}, "shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes"),
        ("Gather4G2SMulticastOp", {"num_multicast": 2},
         "shared::cluster.global.tile::gather4.mbarrier::complete_tx::bytes.multicast::cluster"),
        ("Scatter4S2GOp", {}, "global.shared::cta.tile::scatter4.bulk_group"),
    )  # fmt: skip
    for name, options, form in forms:
        op = getattr(cpasync, f"CopyBulkTensor2D{name}")()
        theirs = cpasync.make_tiled_tma_atom(
            op, tensor(), official_tile(128, 64), (128, 64), gmem_coord_tensor=rows, **options
        )[0]
        ours = from_cute(theirs)
        assert ours.ptx == f"cp.async.bulk.tensor.2d.{form}" and "sm_90a" not in ours.archs
        assert ours.layout_src.equivalent(from_cute(theirs.layout_src_tv)) and ours.threads == 1
        places = [ours.coords("dst")(0, v) for v in range(256)]  # (which of the four coordinates, column)
        assert places == [(v // 64, v % 64) for v in range(256)]
        with pytest.raises(AtomError, match="is a tensor copy, whose box follows from the tensor and the tile"):
            from_cute(op)


# ---------------------------------------------------------------- what is refused, and says why


def refused(name: str) -> Any:
    f32 = cutlass.Float32
    if name == "warp.MmaF16BF16SparseOp":
        return warp.MmaF16BF16SparseOp(cutlass.Float16, f32, (16, 8, 32), warp.SparseMetadataFormat.TID)
    part, kind = name.split(".")
    if part == "tcgen05":
        return getattr(tcgen05.copy, kind)(tcgen05.Repetition.x8)
    return getattr(cpasync.copy, kind)()


@pytest.mark.parametrize(
    ("name", "why", "way_out"),
    [
        ("cpasync.CopyBulkTensorIm2ColG2SOp", "im2col mode: which pixel", r"from_cute\(x.layout_dst_tv\), .*tma_load"),
        ("cpasync.CopyBulkTensorIm2ColG2SMulticastOp", "im2col mode: which pixel", "tma_load"),
        ("cpasync.CopyBulkTensorIm2ColS2GOp", "im2col mode: which pixel", "tma_store"),
        ("cpasync.CopyBulkTensorTileG2SOverrideOp", "given when it is issued, and the DSL makes no atom", "tma_load"),
        ("cpasync.CopyBulkTensorTileG2SMulticastOverrideOp", "given when it is issued", "tma_load or tma_store"),
        ("cpasync.CopyBulkTensorTileS2GOverrideOp", "given when it is issued", "tma_load or tma_store"),
        ("tcgen05.LdSPCompress32x32bOp", "tcgen05.ld.spcompress of sm_107a", "layout_dst_tv"),
        ("tcgen05.LdRedSPCompress32x32bOp", "tcgen05.ld.red.spcompress of sm_107a", "layout_dst_tv"),
        ("warp.MmaF16BF16SparseOp", "mma.sp, of which DSL 4.8.1 makes no atom", "mma_sync of the same M and N"),
    ],
)
def test_a_refusal_says_what_why_and_the_way_out(sm100: None, name: str, why: str, way_out: str) -> None:
    with pytest.raises(AtomError, match=f"the DSL's {name} is .*{why}.*{way_out}") as refusal:
        from_cute(refused(name))
    assert "\n" not in str(refusal.value)


def test_the_reasons_hold(sm100: None) -> None:
    """The refusals hold for this version of the DSL; this test fails for a more capable one."""
    with pytest.raises(AttributeError, match="MmaAtomSM80SparseType"):
        cute.make_mma_atom(refused("warp.MmaF16BF16SparseOp"))
    with pytest.raises(ValueError, match="expects a bulk tensor"):
        cpasync.make_tiled_tma_atom(
            refused("cpasync.CopyBulkTensorTileG2SOverrideOp"), tensor(), official_tile(128, 64), (128, 64)
        )
    pixels = tensor(Layout(((32, 32, 8), 64), ((64, 2048, 65536), 1)))
    ones, corner = (1, 1), (-1, -1)
    made = [
        cpasync.make_im2col_tma_atom(
            cpasync.CopyBulkTensorIm2ColG2SOp(), pixels, official_tile(128, 64), (128, 64),
            corner, upper, ones, ones, ones, (0, 0), ones,
        )[0]
        for upper in (corner, (0, 0))
    ]  # fmt: skip
    assert str(made[0].type) == str(made[1].type)  # another bounding box, other pixels, the same atom
    with pytest.raises(AtomError, match="im2col mode"):
        from_cute(made[0])
    assert from_cute(made[0].layout_dst_tv) == Layout((1, 8192), (0, 1))  # the way out
    plain, compressed = (
        cute.make_copy_atom(op(tcgen05.Repetition.x8), cutlass.Float32)
        for op in (tcgen05.Ld32x32bOp, tcgen05.copy.LdSPCompress32x32bOp)
    )
    assert str(plain.layout_dst_tv.type) == str(compressed.layout_dst_tv.type)
    with pytest.raises(AtomError, match="spcompress"):
        from_cute(compressed)


# ---------------------------------------------------------------- loads that reduce, by halves


def test_reducing_loads(sm100: None) -> None:
    for way in ("MAX", "MIN", "MAXABS", "MINABS"):
        for split in (0, 8, 40):
            arguments = (tcgen05.Pack.NONE, tcgen05.TmemLoadRedOp[way], False, split)
            theirs = cute.make_copy_atom(
                tcgen05.copy.LdRed16x32bx2Op(tcgen05.Repetition.x8, *arguments), cutlass.Float32
            )
            reduce = way[:3].lower() + (".abs" if way.endswith("ABS") else "")
            ours = tcgen05_ld("16x32bx2", 8, split=split, reduce=reduce)
            assert from_cute(theirs) == ours == from_cute(ours.to_cute()) and ours.tmem(16, 1) == (0, split + 1)
            assert ours != tcgen05_ld("16x32bx2", 8, split=split + 1, reduce=reduce)
    ours = tcgen05_ld("32x32b", 16, reduce="min.abs")
    assert from_cute(ours.to_cute()) == ours
    quiet = tcgen05.copy.LdRed16x32bx2Op(tcgen05.Repetition.x8, tcgen05.Pack.NONE, tcgen05.TmemLoadRedOp.MAX, True)
    with pytest.raises(AtomError, match=r"and not one with \.NaN; the maps of an atom of it are layouts"):
        from_cute(quiet)


KERNEL = """
import cutlass, cutlass.cute as cute
from cutlass.cute.nvgpu import tcgen05
from cutlass.cute.runtime import make_fake_compact_tensor

@cute.kernel
def load(out: cute.Tensor):
    lane, _, _ = cute.arch.thread_idx()
    tmem = cute.make_ptr(cutlass.Float32, 0, cute.AddressSpace.tmem, assumed_align=16)
    tile = cute.make_tensor(tmem, cute.make_layout((16, 16), stride=(65536, 1)))
    op = tcgen05.copy.LdRed16x32bx2Op(
        tcgen05.Repetition.x8, tcgen05.Pack.NONE, tcgen05.TmemLoadRedOp.MAXABS, False, 12
    )
    copy = tcgen05.make_tmem_copy(cute.make_copy_atom(op, cutlass.Float32), tile)
    mine = copy.get_slice(lane)
    values = cute.make_rmem_tensor(mine.partition_D(cute.make_identity_tensor((16, 16))).shape, cutlass.Float32)
    reduced = cute.make_rmem_tensor((1, 1, 1), cutlass.Float32)
    cute.copy(copy, mine.partition_S(tile), [values, reduced])
    out[lane] = reduced[0] + values[0]

@cute.jit
def host(out: cute.Tensor):
    load(out).launch(grid=(1, 1, 1), block=(32, 1, 1))

print(cute.compile(host, make_fake_compact_tensor(cutlass.Float32, (32,))).__ptx__)
"""


def test_the_split_is_the_operand_of_the_instruction(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The maps of the DSL do not show it; what its compiler writes does."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    for name, value in (("ARCH", "sm_103a"), ("KEEP_PTX", "1"), ("DUMP_DIR", str(tmp_path))):
        monkeypatch.setenv(f"CUTE_DSL_{name}", value)
    done = subprocess.run([sys.executable, "kernel.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    (written,) = [line.strip() for line in done.stdout.splitlines() if "tcgen05.ld" in line]
    ours = tcgen05_ld("16x32bx2", 8, split=12, reduce="max.abs")
    assert written.startswith(ours.ptx + " ") and written.endswith(f", {ours.split};")


# ---------------------------------------------------------------- and back


def box(m: int, k: int, major: str = "K", swizzle: str = "128B") -> SmemTile:
    return smem_tile((m, k), "bf16", major, swizzle)


PLANS: list[tuple[Callable[[], Any], Layout]] = [
    (lambda: tma_load(ROWS, box(128, 64)), ROWS),
    (lambda: tma_load(ROWS, box(128, 128)), ROWS),  # two boxes
    (lambda: tma_load(COLUMNS, box(128, 64, "MN")), COLUMNS),
    (lambda: tma_load(ROWS, Layout((64, 32), (32, 1)), "bf16"), ROWS),
    (lambda: tma_load(ROWS, Layout((32, 8, 4), (8, 1, 256)), "bf16", tile=(32, 8)), ROWS),  # in four stages
    (lambda: tma_store(ROWS, box(64, 32, swizzle="64B")), ROWS),
    (lambda: tma_reduce(ROWS, box(64, 32, swizzle="64B"), operation="add"), ROWS),
    (lambda: tma_reduce(ROWS, box(64, 32, swizzle="64B"), operation="max"), ROWS),
]


@pytest.mark.parametrize("number", range(len(PLANS)))
def test_a_plan_is_made_of_the_dsls_tensor(sm90: None, number: int) -> None:
    derive, layout = PLANS[number]
    plan = derive()
    made = plan.to_cute(tensor(layout))
    theirs, coordinates = made
    back = from_cute(theirs)
    assert back.ptx == plan.ptx and back.layout_src.size == plan.box_bytes // 2
    # neighbours in the box are neighbours along the tensor's contiguous mode, then along the other one
    steps = [back.coords("dst")(0, v) for v in (1, plan.box[0])]
    assert steps == ([(0, 1), (1, 0)] if layout is ROWS else [(1, 0), (0, 1)])
    assert from_cute(coordinates.layout).shape == layout.shape
    # the swizzle is in no atom: it goes with the tile that the copy was made of
    tile = plan.smem.composed if isinstance(plan.smem, SmemTile) else plan.smem
    assert from_cute(made.smem_layout, element="bf16", unit="bytes").equivalent(tile)


def test_a_plan_of_symbols_is_made_of_any_tensor(sm90: None) -> None:
    m, k = dims("M K", multiple_of=8)
    plan = tma_load(Layout((m, k), (k, 1)), box(128, 64))
    assert from_cute(plan.to_cute(tensor())[0]).ptx == plan.ptx


def test_plans_that_the_dsl_would_copy_otherwise(sm90: None) -> None:
    plan = tma_load(ROWS, box(128, 64))
    with pytest.raises(AtomError, match=r"this one \(4096,1024\):\(1,4096\): not .*: \(1,0\) gives 1 and 1024"):
        plan.to_cute(tensor(COLUMNS))
    with pytest.raises(AtomError, match="the plan copies bf16, and the tensor has f16"):
        plan.to_cute(tensor(element="Float16"))
    with pytest.raises(LayoutError, match=r"to_cute\(tensor=mA\), and none is given"):
        plan.to_cute(None)
    with pytest.raises(AtomError, match=r"copies 1 x \(64, 128\) and the plan 2 x \(64, 64\): copy with .*send"):
        tma_load(ROWS, box(128, 64), multicast=2).to_cute(tensor())
    with pytest.raises(AtomError, match=r"the DSL copies 128 x \(64, 1\) and the plan 1 x \(64, 256\)"):
        tma_load(ROWS, box(128, 64), tile=(Layout(128, 2), 64)).to_cute(tensor())  # every second row
    with pytest.raises(AtomError, match=r"of a tensor and a tile, and an atom has neither: take .*to_cute\(tensor="):
        from_cute(plan.to_cute(tensor())[0]).to_cute()
