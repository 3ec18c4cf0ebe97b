"""Texts of C++, the DSL's modules, NumPy, XLA, Mosaic and CUDA Tile, and their refusals."""

from __future__ import annotations

import pytest

from layoutgemm import Layout, parse
from layoutgemm.atoms import mma_sync
from layoutgemm.errors import ParseError
from layoutgemm.layouts.listing import Listing

MEMREF = '!memref_gmem_f16_1 = !cute.memref<f16, gmem, align<16>, "((16,8),(4,1)):((8,1),(128,0))">\n'
# (what a program prints or an author writes, the layout)
READ = [
    # CuTe: pointers to parts of a byte, operations on types and calls
    ("gmem_subptr[4b](0x7ffe12345678.0) o (128,64):(64,_1)", "(128,64):(64,1)"),
    ("Sw<3,4,3>_smem_subptr[4b](0x7f0000000400.0) o (_8,_256):(_256,_1)", "S<3,5,3>[4b] o 0 o (8,256):(256,1)"),
    ("upcast<2>(Layout<Shape<_8,_64>,Stride<_64,_1>>{})", "(8,32):(32,1)"),
    ("zipped_divide(Layout<Shape<_8,_64>,Stride<_64,_1>>{}, Shape<_4,_8>{})", "((4,8),(2,8)):((64,1),(256,8))"),
    ("logical_product(Layout<Shape<_2,_2>>{}, Layout<_4>{})", "((2,2),4):((1,2),4)"),
    ("raked_product(make_layout(Shape<_32,_4>{}), make_layout(Shape<_1,_8>{}))", "(32,(8,4)):(1,(128,32))"),
    ("auto c = complement(Layout<_4,_2>{}, Int<32>{});", "(2,4):(1,8)"),
    ("cute.logical_divide(cute.make_layout((4, 8), stride=(8, 1)), (2, 4))", "((2,2),(4,2)):((8,16),(1,4))"),
    # a module of the DSL: the line that names a type, and a line that uses it
    (MEMREF + "%l = cute.get_layout(%v) : !memref_gmem_f16_1", "((16,8),(4,1)):((8,1),(128,0))"),
    (MEMREF + "%g = cute.group_modes(%v) <0, 2> : (!other) -> !memref_gmem_f16_1 loc(#loc3)",
     "((16,8),(4,1)):((8,1),(128,0))"),
    # NumPy's __array_interface__, torch's graphs
    ("{'data': (93880793878400, False), 'strides': (4, 32), 'descr': [('', '<f4')], 'typestr': '<f4', 'shape': (8, 4), "
     "'version': 3}", "(8,4):(1,8)"),
    ("{'data': (93880793878400, False), 'strides': None, 'descr': [('', '<f4')], 'typestr': '<f4', 'shape': (4, 8), "
     "'version': 3}", "(4,8):(8,1)"),
    ('Tensor "bf16[16, 64][64, 1]cuda:0"', "(16,64):(64,1)"),
    # MLIR's column-major memrefs
    ("memref<4x8xf32, affine_map<(d0, d1) -> (d1, d0)>>", "(4,8):(1,4)"),
    ("memref<2x4x8xf32, affine_map<(i, j, k) -> (k, i, j)>>", "(2,4,8):(4,1,8)"),
    # XLA's, Mosaic's, CUDA Tile's
    ("pred[8,128]{1,0:T(8,128)(4,1)}", "((4,2),128):((1,512),4)"),
    ("TMEMLayout(tiling=Tiling(tiles=((128, 1), (32, 1))), warp_dims=(-4,), lane_dims=(-2,), vector_dim=-1)",
     "((32,4),(1)):((1,32),(128))"),
    ("<Layout._WGMMA_ACC_32BIT: 17>", "((4,8,4),(1,2,2)):((128,1,16),(64,64,8))"),
    ("!cuda_tile.tensor_view<32x16x32xf16, strides=[512,1,16]>", "(32,16,32):(512,1,16)"),
    ("%v = tensor_view<64x64xf16, strides=[64, 1]>", "(64,64):(64,1)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "right"), READ, ids=range(len(READ)))
def test_a_text_is_its_layout(text: str, right: str) -> None:
    assert str(parse(text)) == right


def test_unknown_extents_of_a_view_are_symbols() -> None:
    found = parse("!cuda_tile.tensor_view<?x16xf32, strides=[16,1]>")
    assert isinstance(found, Layout) and found.stride == (16, 1) and found.shape[1] == 16


def test_an_atom_of_tensor_layouts_is_a_listing() -> None:
    found = parse(
        "MMAAtom(name='SM80_16x8x8_F32F16F16F32_TN', ptx='mma.sync', shape_mnk=(16, 8, 8), thr_id=None, "
        "a_layout=Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))), c_layout=Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))))"
    )
    assert isinstance(found, Listing) and found.title == "MMA_Atom" and found["ThrID"] is None
    assert found["Shape_MNK"] == (16, 8, 8) and found["LayoutA_TV"] == mma_sync("m16n8k8", "f16").layout("A")
    copy = parse("CopyAtom(name='SM75_LDSM', ptx='ldmatrix', thr_id=Layout(32, 1), src_layout_bits=Layout(32, 128))")
    assert isinstance(copy, Listing) and copy["src_layout_bits"] == Layout(32, 128)
    assert parse("MMAAtom('SM80_16x8x8_F32F16F16F32_TN', 16x8x8)") == parse("SM80_16x8x8_F32F16F16F32_TN")


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("Sw<3,4,3>_smem_subptr[4b](0x400.4) o (_8,_256):(_256,_1)", "Sw", "does not say where its elements lie"),
        ("zipped_divide(Layout<Shape<_8,_64>>{}, Shape<_4,x>{})", "x>", "an integer, as in _4"),
        ("upcast<2>(Layout<_8,_1>{}, 3, 4)", "upcast", "other operands of upcast"),
        (MEMREF + "%l = cute.get_layout(%v) : !memref_smem", "!memref_smem", "the line above that says !memref_smem"),
        ("func.func @k(%a: !cute.memref<f16, gmem, \"4:1\">) {", "func", "not the head of a function or a module"),
        ("cute.copy(%a, %s) : (!cute.memref<f16, gmem, \"4:1\">, !cute.memref<f16, rmem, \"4:1\">)", "cute.copy",
         "not an operation without a result"),
        ("%v = cute.make_atom() : () -> !cute_nvgpu.sm80.mma<16x8x16, elem_type = (f16, f16, f32) >", "!cute_nvgpu",
         "not an atom's type alone"),
        ("!cuda_tile.tile<128x64xf16>", "!cuda", "not a value in registers"),
        ("!cuda_tile.partition_view<tile=(64x64), tensor_view<?xf16, strides=[?]>>", "partition", "zipped_divide cuts"),
        ("!cuda_tile.tensor_view<4x8xf16, strides=[8]>", "8]", "2 strides, one a size, not 1"),
        ("#tpu.tiled<(8,128),[16,1]>", "#tpu", "tiles without an array"),
        ("f32[]{:T(128)}", "f32", "one array with dimensions"), ("(f32[8]{0}, f32[8]{0})", "(f32", "one array"),
        ("Format(layout=Layout(major_to_minor=(0, 1), tiling=()))", "Format", "the array's shape too"),
        ("<Layout.WG_STRIDED: 7>", "Layout", "the tiles and their dimensions"),
        ("TMEMLayout.SCALES_LAYOUT", "TMEM", "the tiles and their dimensions"),
        ("VectorLayout(32, (0, 0), (8, 128), None)", "Vector", "as in (4,8):(8,1), and VectorLayout begins no text"),
        ("<cutlass.cute.runtime._Tensor object at 0x7f00>", "<cutlass", "begins no text that is read"),
        ("S<4,3,3>", "S<4", "B = 4 > |S| = 3"), ("SW_4_3_3", "SW", "B = 4 > |S| = 3"),
        ("Layout((4, 8), (8,))", "Layout", "stride (8) is not congruent with shape (4,8)"),
        ("Layout((4, 0))", "Layout", "extent must be at least 1, not 0"), ("S<3,3>", "S<3", "S begins no text"),
        ("MMAAtom(name='x', thr_id=Layout(32, 1)", "", "')' and the end"),
        ("MMAAtom(name='x', 3)", "3)", "a name and its value"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_where_and_what_was_expected(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert expected in str(error.value)
    assert error.value.position == (text.index(at) if at else len(text))
