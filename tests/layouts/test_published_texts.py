"""Texts as people publish them, in issues, tutorials and logs: each is read as the layout that it denotes."""

from __future__ import annotations

import re

import pytest

from layoutgemm import Layout, Swizzle, dim, parse, wgmma
from layoutgemm.errors import CompositionError, ParseError
from layoutgemm.layouts import ComposedLayout, E
from layoutgemm.layouts.listing import Listing
from layoutgemm.layouts.proofs.prove import prove
from tests.layouts.damage import outcomes

# (what CuTe, the CuTe DSL, a compiler or an author prints, the layout in this library's notation)
PUBLISHED = [
    ("!rhs = !nvgpu.tensormap.descriptor<tensor = memref<64x64xf16, strided<[64, 1]>, 3>, swizzle = swizzle_128b,"
     " l2promo = none, oob = zero, interleave = none>", "S<3,3,3>[16b] o 0 o (64,64):(64,1)"),
    ("%3 = builtin.unrealized_conversion_cast %1 : !llvm.ptr to !nvgpu.tensormap.descriptor<tensor = memref<8x8xf32, "
     "#gpu.address_space<workgroup>>, swizzle = swizzle_32b, l2promo=l2promo_128b>", "S<1,2,3>[32b] o 0 o (8,8):(8,1)"),
    ("!nvgpu.tensormap.descriptor<tensor = memref<128xf32,3>,   swizzle=none,   oob = nan>", "(128):(1)"),
    ('%r = cute.zipped_divide(%l, %t) : (!cute.layout<"24:1">, !cute.shape<"4">) -> !cute.layout<"(4,6):(1,4)">',
     "(4,6):(1,4)"),
    ("Sw<3,4,3> o smem_ptr[16b](unset) o ((_64,_4),(_8,_8),(_1,_3)):((_1,_512),(_64,_2048),(_0,_16384))",
     "S<3,3,3>[16b] o 0 o ((64,4),(8,8),(1,3)):((1,512),(64,2048),(0,16384))"),
    ("  // Sw<3,4,3> o smem_ptr[16b](unset) o ((_64,_4),(_8,_8),(_1,_3)):((_1,_4096),(_64,_512),(_0,_16384))",
     "S<3,3,3>[16b] o 0 o ((64,4),(8,8),(1,3)):((1,4096),(64,512),(0,16384))"),
    ("smem_ptr[16b](0x7f8f00000c00) o Sw<3,3,3> o _0 o (((_64,_256),_2)):(((_1,_64),_16384))",
     "S<3,3,3>[16b] o 0 o (((64,256),2)):(((1,64),16384))"),
    ("smem_ptr[16b](0x7f8f00000c00) o (64,256):(_1,64)", "(64,256):(1,64)"),
    ("smem_ptr[16b](0x7f8f00001380) o ((_8,_1),_1,_16,_1):((_1,_0),_0,_1024,_0)", "((8,1),1,16,1):((1,0),0,1024,0)"),
    ("smem_ptr[16b](0x7f8f00000c00) o Sw<3,3,3> o _0 o (((_64,_256),_2),_1,_1,_1):(((_1,_64),_16384),_0,_0,_0)",
     "S<3,3,3>[16b] o 0 o (((64,256),2),1,1,1):(((1,64),16384),0,0,0)"),
    ("tensor(raw_ptr(0x0000000000000400: f16, smem, align<1024>) o (8,8):(8,1), data=\n       [[", "(8,8):(8,1)"),
    ("NotImplementedError: load & store swizzled memory is not supported yet: tensor<ptr<f32, smem,"
     " align<1024>, S<3,4,3>> o ((32,2),(8,8),(1,2)):((1,2048),(32,256),(0,4096))>",
     "S<3,2,3>[32b] o 0 o ((32,2),(8,8),(1,2)):((1,2048),(32,256),(0,4096))"),
    ("CUTE A:\tptr[4b](0x61d41db20660) o (_16,_16):(_1,_16):\n    4.00    2.00", "(16,16):(1,16)"),
    ("    tAsA shape = smem_ptr[16b](0x7f424e000040) o ((_8,_1),_4,_2,_3):((_1,_0),_1024,16,_4096)",
     "((8,1),4,2,3):((1,0),1024,16,4096)"),
    ("    tCrD shape = ptr[16b](0x7f424cfffbe0) o ((_2,_2),_4,_8):((_1,_2),_4,_16)", "((2,2),4,8):((1,2),4,16)"),
    ("smem_ptr[16b](0x7f7200004404) o ((_2,(_2,_2)),_1,_1,_2):((_1,(_256,16)),_0,_0,_1024)",
     "((2,(2,2)),1,1,2):((1,(256,16)),0,0,1024)"),
    ("// [print] stensor_v: Sw<3,4,3>_smem_ptr[16b](0x7ef800000400) o ((_512,_16),(_1,_3)):((_1,_512),(_0,_8192))",
     "S<3,3,3>[16b] o 0 o ((512,16),(1,3)):((1,512),(0,8192))"),
    ("swizzle_atom: Sw<3,3,3> o _0 o (_8,(_8,_8)):(_8,(_1,_64))", "S<3,3,3> o 0 o (8,(8,8)):(8,(1,64))"),
    ("sA layout: Sw<3,3,3> o _0 o ((_8,_16),((_8,_8),_1),(_1,_3)):((_8,_512),((_1,_64),_0),(_0,_8192))",
     "S<3,3,3> o 0 o ((8,16),((8,8),1),(1,3)):((8,512),((1,64),0),(0,8192))"),
    ("  // tensor_sfa: ((_1,256),(_1,8),1):((_0,_1),(_0,256),2048)", "((1,256),(1,8),1):((0,1),(0,256),2048)"),
    ("Sw<1,4,3> o smem_ptr[16b](unset) o (_64,_16):(_16,_1)\n"
     "         0      1      2\n    +------+------+------+\n 0  |    0 |    1 |    2 |\n    +------+------+------+",
     "S<1,3,3>[16b] o 0 o (64,16):(16,1)"),
    ("ptr[32b](0x7ffd) o (_4,_8):(_8,_1)\n    0.00    1.00", "(4,8):(8,1)"),
    ("gmem_ptr[32b](0x7f1d5a000000) o (_128,_8,32):(_1,_512,4096)", "(128,8,32):(1,512,4096)"),
    ("gC : gmem_ptr[32b](0x7f36ac000000) o (_128,_128):(_1,512)", "(128,128):(1,512)"),
    ("ArithTuple(0,_0,_0,_0) o ((_64,_128),_1,_4):((_1@0,_1@1),_0,_64@0)", "((64,128),1,4):((1@0,1@1),0,64@0)"),
    ("ArithTuple(_0,0) o (((_64,_128),_1),4):(((_1@0,_1@1),_0),_64@0)", "(((64,128),1),4):(((1@0,1@1),0),64@0)"),
    ("mA: ArithTuple(_0,_0,_0) o (5120,5120,1):(_1@1,_1@0,_1@2)", "(5120,5120,1):(1@1,1@0,1@2)"),
    ("layout: ((2, 4), 8):((1, 2), 8)", "((2,4),8):((1,2),8)"),
    ("((2,4),8):((1,2),8)", "((2,4),8):((1,2),8)"),
    ("Layout_MN: (_8,_1024):(_1024,_1)", "(8,1024):(1024,1)"),
    ("Layout<Shape<_4,_8>,Stride<_8,_1>>", "(4,8):(8,1)"),
    ("cute::Layout<cute::tuple<cute::C<4>, cute::C<8>>, cute::tuple<cute::C<8>, cute::C<1>>>", "(4,8):(8,1)"),
    ("Layout<Shape <Shape < _4,_8>,Shape < _2,_2,  _2>>, Stride<Stride<_32,_1>,Stride<_16,_8,_128>>>",
     "((4,8),(2,2,2)):((32,1),(16,8,128))"),
    ("Layout<_64>", "64:1"),
    ("Layout<Shape<_64,_4>,\n                           Stride<_128,_32>>", "(64,4):(128,32)"),
    ("ComposedLayout<Swizzle<3,4,3>, smem_ptr_flag, Layout<Shape<_1024,_8>,Stride<_1,_1024>>>",
     "S<3,7,3>[1b] o 0 o (1024,8):(1,1024)"),
    ("composition(Swizzle<3,3,3>{}, Layout<Shape<_8,_64>,Stride<_64,_1>>{})", "S<3,3,3> o 0 o (8,64):(64,1)"),
    ("make_layout(make_shape(Int<32>{}, Int<4>{}), make_stride(Int<4>{}, Int<1>{}))", "(32,4):(4,1)"),
    ("make_layout((4,8), stride=(8,1))", "(4,8):(8,1)"),
    ("cute.make_layout((4, 8), stride=(8, 1))", "(4,8):(8,1)"),
    ("(((_8,_4),_2),_4):(((_1,_16),_8),_64)", "(((8,4),2),4):(((1,16),8),64)"),
    ("tCgA: gmem_ptr[16b](GMEM_ADDR_A) o ((_128,_16),_1,_4,4):((256,_1),_0,_16,_64)",
     "((128,16),1,4,4):((256,1),0,16,64)"),
    ("tCtAcc: tmem_[32b](TMEM_ADDR) o ((_128,_256),_1,_1):((_65536,_1),_0,_0)", "((128,256),1,1):((65536,1),0,0)"),
    ("tCrA: UMMA::DescriptorIterator o (_1,_1,_4):(_0,_0,_2)", "(1,1,4):(0,0,2)"),
    ("tCtAcc: tmem_[32b](0x0000.0000) o (((_128,_256)),_1,_1):(((_65536,_1)),_0,_0)",
     "(((128,256)),1,1):(((65536,1)),0,0)"),
    ("GMMA::DescriptorIterator o (_1,_2,_4,(_1,_3)):(_0,_64,_256,(_0,_1024))", "(1,2,4,(1,3)):(0,64,256,(0,1024))"),
    ("raw_ptr(0x00007f15f1e00000: f16, gmem, align<16>) o (512,256,1):(256,1,131072) = \n  ( 0.1, 0.2 )",
     "(512,256,1):(256,1,131072)"),
    ("tensor<ptr<f32, tmem, align<16>> o ((128,256),1,1):((65536,1),0,0)>", "((128,256),1,1):((65536,1),0,0)"),
    ('!cute.composed_layout<"S<3,4,3> o 0 o (8,64):(64,1)">', "S<3,4,3> o 0 o (8,64):(64,1)"),
    ('!cute.swizzle<"S<3,4,3>">', "S<3,4,3>"),
    ("S<3,4,3> o 0 o ((8,16),(64,1),(1,4)):((64,512),(1,0),(0,8192))",
     "S<3,4,3> o 0 o ((8,16),(64,1),(1,4)):((64,512),(1,0),(0,8192))"),
    ("ComposedLayout(Swizzle(3,3,3),0,Layout((8,64),(64,1)))", "S<3,3,3> o 0 o (8,64):(64,1)"),
    ("(4, 8):(8, 1)", "(4,8):(8,1)"),
    ("Swizzle<3,3,3>", "S<3,3,3>"),
    ('%0 = cute.make_layout() : !cute.layout<"(4,8):(8,1)">', "(4,8):(8,1)"),
    ("_8:_1", "8:1"),
    ("(_1):(_0)", "(1):(0)"),
    ("(4,8):(8,1) ", "(4,8):(8,1)"),
    ('%lay_2:2 = !cute.layout<"(4,8):(8,1)">', "(4,8):(8,1)"),
    ("% Layout: (_4,_8):(_8,_1)\n\\documentclass[convert]{standalone}\n\\usepackage{tikz}", "(4,8):(8,1)"),
]  # fmt: skip


PUBLISHED += [
    ("SW_3_4_3 o 0 o (8, 64):(64, 1)", "S<3,4,3> o 0 o (8,64):(64,1)"),
    ("SW_3_4_3", "S<3,4,3>"),
    ("Sw<0,4,3> o smem_ptr[16b](unset) o ((_8,_8),(_8,_16)):((_8,_64),(_1,_512))",
     "S<0,3,3>[16b] o 0 o ((8,8),(8,16)):((8,64),(1,512))"),
    ("smem_sparse<2>_ptr[8b](unset) o (_8,_64):(_64,_1)", "(8,64):(64,1)"),
    ("Sw<3,4,3> o smem_sparse<2>_ptr[16b](unset) o (_8,_128):(_128,_1)", "S<3,4,3>[bytes] o 0 o (8,128):(128,1)"),
    ("sparse<2>_gmem_ptr[16b](0x7f00) o (4,8):(8,1)", "(4,8):(8,1)"),
    ("Tensor<0x0000562ee9fcc340@generic o (4,8):(8,1)>", "(4,8):(8,1)"),
    ("print(tCgC) #tensor<ptr<f32, gmem, align<8>> o ((2,2,16),2,1,16):((1,32768,8),524288,0,1048576)>",
     "((2,2,16),2,1,16):((1,32768,8),524288,0,1048576)"),
    ('print("mA:\\t"); print(mA); print("\\n");   // mA:   ArithTuple(_0,_0) o (512,256):(_1@1,_1@0)',
     "(512,256):(1@1,1@0)"),
    ("auto result = coalesce(layout);    // _12:_1", "12:1"),
    ("# sK: tensor<ptr<bf16, smem, align<1024>, S<3,4,3>> o\n# ((64,16),1,(4,2),2):((64,1),0,(16,4096),8192)>",
     "S<3,3,3>[16b] o 0 o ((64,16),1,(4,2),2):((64,1),0,(16,4096),8192)"),
    ("// tmem_[32b](0x0000.0000) o\n    // ((_32,_1),_32,_1,_1,_2):((_65536,_0),_1,_0,_0,_32)",
     "((32,1),32,1,1,2):((65536,0),1,0,0,32)"),
    ("make_identity_tensor:\nArithTuple(_0,_0) o (_4,_8):(_1@0,_1@1):\n  (0,0)  (0,1)\n  (1,0)  (1,1)",
     "(4,8):(1@0,1@1)"),
    ('%747 = "cute.static"() : () -> !cute.layout<"(1,1,1):(0,0,0)">', "(1,1,1):(0,0,0)"),
    ('%R = cute.coalesce(%in) : (!cute.layout<"(4,5):(1,4)">) -> !cute.layout<"20:1"> loc(#loc3)', "20:1"),
    ('OpResult(%v = cute.make_view(%0, %l) : !cute.memref<f16, gmem, align<16>, "(4,8):(8,1)">)', "(4,8):(8,1)"),
    ('%10 = cute.recast_layout<32, 16> (%l) : !cute.layout<"(8,64):(64,1)"> to !cute.layout<"(8,32):(32,1)"> // a -> b',
     "(8,32):(32,1)"),
    ('%r = cute.select<[1, 0]> (%l) : (!cute.layout<"(4,8):(8,1)">) -> !cute.layout<"(8,4):(1,8)">', "(8,4):(1,8)"),
    ("S<3,0,-3 o 8 o (8,8):(8,1)", "S<3,0,-3> o 8 o (8,8):(8,1)"),  # str() of the DSL
    ("tensor<0 o 5:1>", "5:1"),
    ("tensor<3 o 5:1>", "S<0,0,0> o 3 o 5:1"),
    ("cute::Layout<cute::tuple<cute::constant<int, 4>, cute::C<8>>, cute::tuple<cute::constant<int, 8>, cute::C<1>>>",
     "(4,8):(8,1)"),
    ("Layout s2xh4_col = make_layout(make_shape(Int<2>{}, make_shape(2,2)), LayoutLeft{});", "(2,(2,2)):(1,(2,4))"),
    ("Layout((4,8):(8,1))", "(4,8):(8,1)"),
    ("(Int<4>,C<8>):(cute::C<8>,_1)", "(4,8):(8,1)"),
    ("cute::ComposedLayout<cute::Swizzle<2, 4, 3>, cute::smem_ptr_flag_bits<16>, cute::Layout<cute::tuple<cute::_8, "
     "cute::_32>, cute::tuple<cute::_32, cute::_1>>>", "S<2,3,3>[16b] o 0 o (8,32):(32,1)"),
    ("Layout<Shape<_8, Shape<_2, _4>>, Stride<_1, Stride<_8, _16>>> layout;", "(8,(2,4)):(1,(8,16))"),
    ("make_layout(make_layout(4,1), make_layout(make_shape(2,3), LayoutRight{}))", "(4,(2,3)):(1,(3,1))"),
    ("make_ordered_layout(Shape<_4,_8>{}, Step<_1,_0>{})", "(4,8):(8,1)"),
    ("cute.make_ordered_layout((4, 8, 2), order=(2, 0, 1))", "(4,8,2):(16,1,8)"),
    ("cute.make_identity_layout((4,8))", "(4,8):(1@0,1@1)"),
    ("sA  ==>  Sw<2,3,3> o _0 o ((_8,_16),(_32,_1)):((_32,_256),(_1,_0))",
     "S<2,3,3> o 0 o ((8,16),(32,1)):((32,256),(1,0))"),
    ("sA -> (8,8):(8,1)", "(8,8):(8,1)"),
    ("layout (8,8):(8,1);", "(8,8):(8,1)"),
    ("Shape: (4,8), Stride: (8,1)", "(4,8):(8,1)"),
    ("Layout(shape = (4, (2, 8)), stride = (1, (4, 8)))", "(4,(2,8)):(1,(4,8))"),
    ("\ufeff(4,8):\u200b(8,1)\xa0", "(4,8):(8,1)"),
    ("(20,2):(16,4) o (4,5):(1,4)", "(4,5):(16,64)"),
    ("(6,2):(8,2) o 0 o (4,3):(3,1)", "((2,2),3):((24,2),8)"),
]  # fmt: skip


# Lines of programs, logs, tutorials and the IR, with what stands around a layout there
PUBLISHED += [
    ("  // mSFA_mkl: ArithTuple(_0,_0,_0) o ((_1,256),(_1,8),1):((_0,_1@0),(_0,_1@1),_1@2)",
     "((1,256),(1,8),1):((0,1@0),(0,1@1),1@2)"),
    ("      cute::Step<cute::_1, cute::X, cute::_1>{}); // ArithTuple(_0,_0) o\n                        // "
     "(_128,_64,1,32,128):(_1@1,_1@0,_128@1,_64@0,_128@1)", "(128,64,1,32,128):(1@1,1@0,128@1,64@0,128@1)"),
    ('print("mB:\t"); print(mB);   // mB:   ArithTuple(_0,_0) o (1024,256):(_1@1,_1@0)', "(1024,256):(1@1,1@0)"),
    ("sA_layout:   Sw<3,4,3> o \nsmem_ptr[16b](unset) o ((_128,\n_16),_1,_4):((_64,_1),_0,_16) ",
     "S<3,3,3>[16b] o 0 o ((128,16),1,4):((64,1),0,16)"),
    ("tCgB  gmem_ptr[16b](0x7f61c3e00400) o ( _2,_1,_2):( _1,_0,_8)", "(2,1,2):(1,0,8)"),
    ("ValueError: Expected TensorSSA, but got tensor<ptr<f16, gmem, align<16>> o (16):(1)>", "(16):(1)"),
    ("Layout row = make_layout(a, b);                 // (3,4):(1,3)", "(3,4):(1,3)"),
    ("reg_shape = regs.shape  # ((8,1),1,2):((1,0),0,8)", "((8,1),1,2):((1,0),0,8)"),
    ("tdPcdP = thr_mma_VdO.partition_C(cdP)[(None, None), 0, 0]  # (64,128):(1@0,1@1)", "(64,128):(1@0,1@1)"),
    ("# K>> smem_slice:  tensor<ptr<f16, smem, align<1024>, S<3,4,3>> o ((64,16),1,(4,2)):((64,1),0,(16,4096))>",
     "S<3,3,3>[16b] o 0 o ((64,16),1,(4,2)):((64,1),0,(16,4096))"),
    ("# \u2192 (4,8):(1,4)", "(4,8):(1,4)"),
    (">>> print(L)\n(4,8):(8,1)", "(4,8):(8,1)"),
    ("//     ->  (_2,_2,_2,_2):(_1,_4,_8,_2)", "(2,2,2,2):(1,4,8,2)"),
    ("=> ((2,2),3):((24,2),8)", "((2,2),3):((24,2),8)"),
    ("We may notice that *TV Layout* in above example is `((32,4),(8,4)):((128,4),(16,1))`.",
     "((32,4),(8,4)):((128,4),(16,1))"),
    ("That layout ``(4,4,2):(1,8,4)`` is read like a scatter permutation", "(4,4,2):(1,8,4)"),
    ("tensor: raw_ptr(0x00000000079e5100: i16, generic, align<2>) o (3):(1) =", "(3):(1)"),
    ("A_SMEM = ComposedLayout(Swizzle(3, 4, 3), 0,\n      Layout(((2, 8), (4, 16)), ((512, 64), (16, 1))))",
     "S<3,4,3> o 0 o ((2,8),(4,16)):((512,64),(16,1))"),
    ('             : (!cute.layout<"(4,3):(3,1)">) -> !cute.layout<"(3,4):(4,1)">', "(3,4):(4,1)"),
    ('  -> !cute.composed_layout<"S<3,5,4> o 2 o (2,3):(1,2)">', "S<3,5,4> o 2 o (2,3):(1,2)"),
    ('!cute.composed_layout<"(4,5):(1,4) o 2 o (2,3):(1,2)">', "S<0,0,0> o 2 o (2,3):(1,2)"),
    ('!cute.composed_layout<"(4,5):(1,4) o (0,0) o (2,3):(1@0,1@1)">', "(2,3):(1,4)"),
    ("(4,5):(8,1) o 5 o (3,2):(1,4)", "S<0,0,0> o 9 o (3,2):(8,1)"),
    ('// CHECK: cute.zipped_product(%0, %1) : (!cute.layout<"(4,3):(1@0,1@1)">, !cute.layout<"(2,5):(1,2)">) -> '
     '!cute.layout<"((4,3),(2,5)):((1@0,1@1),(3@1,6@1))">', "((4,3),(2,5)):((1@0,1@1),(3@1,6@1))"),
    ('tma_gbasis = <"(64,128,1,(1)):(1@1,1@0,1@0@0@2,(1@1@2))">', "(64,128,1,(1)):(1@1,1@0,1@0@0@2,(1@1@2))"),
    ("Layout.row_major(4, 8, 2)", "(4,8,2):(16,2,1)"), ("a = layout.Layout.col_major(4, 8)  # Mojo", "(4,8):(1,4)"),
    ("FixedLayout(device(type='cuda', index=0), torch.float16, size=[4, 8], stride=[8, 1])", "(4,8):(8,1)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "right"), PUBLISHED, ids=range(len(PUBLISHED)))
def test_a_published_text_is_its_layout(text: str, right: str) -> None:
    assert str(parse(text)) == right
    assert parse(right) == parse(text)


@pytest.mark.parametrize("wrapper", ["cute:ComposedLayout<", "mine::Swizzled<", "error: no match for 'Composed<"])
def test_a_layout_beside_a_swizzle_is_not_read_without_it(wrapper: str) -> None:
    """The layout alone would be another function."""
    plain = "cute::Layout<cute::tuple<cute::_8,cute::_32>,cute::tuple<cute::_32,cute::_1>>"
    assert str(parse(f"error: no match for '{plain}' here")) == "(8,32):(32,1)"
    with pytest.raises(ParseError):
        parse(f"{wrapper}cute::Swizzle<2,4,3>, {plain}>")


LISTED = [
    """TiledCopy
  Tiler_MN:       (_32,_16)
  TiledLayout_TV: ((_4,_8,_2,_4),((_2,_2,_2),(_1,_1))):((_64,_1,_16,_0),((_32,_8,_256),(_0,_0)))
Copy_Atom
  ThrID:        _1:_0
  ValLayoutSrc: (_1,_1):(_0,_0)
  ValLayoutDst: (_1,_1):(_0,_0)
  ValLayoutRef: (_1,_1):(_0,_0)
  ValueType:    16b""",
    """//tiled_t2r_copy:
//TiledCopy
//  Tiler_MN:       ((_16,_32):(_32,_1),_1:_0,_1:_0)
//  TiledLayout_TV: ((_32,_4),(_4,_32)):((_0,_1),(_4,_16))
//Copy_Atom
//  ThrID:        _32:_1
//  ValLayoutSrc: (_32,_128):(_0,_1)
//  ValLayoutDst: (_32,_4):(_4,_1)
//  ValLayoutRef: (_32,_128):(_0,_1)
//  ValueType:    32b""",
    """  // tma_load_sfa: TiledCopy
  //   Tiler_MN:       (_128,_1)
  //   TiledLayout_TV: (_1,((_128,_1))):(_0,((_1,_0)))
  // Copy_Atom
  //   ThrID:        _1:_0
  //   ValLayoutSrc: (_1,_128):(_0,_1)
  //   ValLayoutDst: (_1,_128):(_0,_1)
  //   ValLayoutRef: (_1,_128):(_0,_1)
  //   ValueType:    32b""",
    """  // Copy_Atom
  //   ThrID:        _1:_0
  //   ValLayoutSrc: (_1,_8):(_0,_1)
  //   ValLayoutDst: (_1,_8):(_0,_1)
  //   ValLayoutRef: (_1,_8):(_0,_1)
  //   ValueType:    16b
  // ThrCopy
  //   ThrIdx: 0
  // TiledCopy
  //   Tiler_MN:       (_16,_64)
  //   TiledLayout_TV: ((_8,_16),_8):((_128,_1),_16)""",
    """TiledLayout_TV: ((_8,_16),_8):((_128,_1),_16)
Tiler_MN: (_16, _64)
layout S_TV: ((_8,_16),(_8,_1)):((_128,_1),(_16,_0))""",
    """TiledMMA
  ThrLayoutVMNK:  (_4,_1,_1,_1):(_1,_0,_0,_0)
  PermutationMNK: (_,_,_)
MMA_Atom
  ThrID:      _4:_1
  Shape_MNK:  (_128,_256,_16)
  LayoutA_TV: (_1,(_128,_16)):(_0,(_1,_128))
  LayoutB_TV: (_1,(_256,_16)):(_0,(_1,_256))
  LayoutC_TV: (_1,(_128,_256)):(_0,(_1,_128))""",
    """ThrMMA
  Thr VMNK: (_0,_1,_0,_0)
TiledMMA
  ThrLayoutVMNK:  (_128,_1,_1,_1):(_1,_0,_0,_0)
  PermutationMNK: (_,_,_)
MMA_Atom
  ThrID:      _128:_1
  Shape_MNK:  (_64,_64,_16)
  LayoutA_TV: (_128,(_64,_16)):(_0,(_1,_64))
  LayoutB_TV: (_128,(_64,_16)):(_0,(_1,_64))
  LayoutC_TV: ((_4,_8,_4),(_2,_2,_8)):((_128,_1,_16),(_64,_8,_512))""",
    """Tiler_MN:       (_128,_8)""",
    """% LayoutC: ((_4,_8),(_2,_2)):((_32,_1),(_16,_8))
% ThrIDC: _32:_1
\\documentclass[convert]{standalone}""",
]  # fmt: skip


@pytest.mark.parametrize("text", LISTED, ids=range(len(LISTED)))
def test_every_value_of_a_published_listing(text: str) -> None:
    found = Layout.parse(text)
    assert isinstance(found, Listing)
    lines = [re.sub(r"^[\s/%]+", "", line) for line in text.replace("_", "\0").split("\n")]
    fields = dict(line.replace("\0", "_").split(":", 1) for line in lines if re.search(r":\s*\S", line))
    plain = {
        name.replace("Thr VMNK", "ThrVMNK"): re.sub(r"_(?=\d)|\s", "", value)
        for name, value in fields.items()
        if value.strip() not in ("TiledCopy", "TiledMMA")
    }
    assert dict(line.strip().split(": ") for line in str(found).split("\n") if ":" in line) == plain


def test_a_tiled_copy_of_the_ir_is_a_listing() -> None:
    found = parse(
        '!copy_simt = !cute.tiled_copy<!cute_nvgpu.atom.stsm<f16, mode = <"(8,8)">, n>, '
        'layout_copy_tv = <"((32,4),(32,1)):((4,1),(128,0))">, tiler_mn = <"[(4,32):(32,1);32:1]">>'
    )
    assert isinstance(found, Listing) and found.title == "TiledCopy"
    assert found["TiledLayout_TV"] == parse("((32,4),(32,1)):((4,1),(128,0))")
    assert found["Tiler_MN"] == (Layout((4, 32), (32, 1)), Layout(32))
    mma = parse(
        '!cute.tiled_mma<!cute_nvgpu.sm90.mma<64x128x16, ab_major = (k, k)>, atom_layout_MNK = <"(1,1,1):(0,0,0)">>'
    )
    assert isinstance(mma, Listing) and mma.layouts == {"AtomLayoutMNK": Layout((1, 1, 1), (0, 0, 0))}


def test_a_name_may_stand_before_a_listing() -> None:
    listing = """Tiled MMA
      Thr Layout VMNK: (2,1,1,1):(1,0,0,0)
      Permutation MNK: (_,_,_)
    MMA Atom
      ThrID:           2:1
      Shape MNK:       (256,128,16)
      TV Layout A:     (2,(128,16)):(128,(1,256))"""
    assert parse("tiled_mma    = " + listing) == parse("tiled_mma = {} " + listing) == parse(listing)
    assert parse(listing + " => sliced along M") == parse(listing)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("zipped_divide((8,16):(16,1), (4,8))", "((4,8),(2,2)):((16,1),(64,8))"),
        ("logical_divide((9,(4,8)):(59,(13,1)), <3:3, (2,4):(1,8)>)",
         "((3,3),((2,4),(2,2))):((177,59),((13,2),(26,1)))"),
        ("cute::zipped_divide((8,6):(1,8), (4,_))  // tiles", "((4,1),(2,6)):((1,0),(4,8))"),
        ("complement((2,2):(1,6), 24)", "(3,2):(2,12)"),
        ("coalesce(composition((4,8):(8,1), (8,4):(4,1)))", "32:1"),
        ("coalesce((2,(1,6)):(1,(6,2)), (1,1))", "(2,6):(1,2)"),
        ("zipped_divide(Sw<3,3,3> o _0 o (8,64):(64,1), (8,8))", "S<3,3,3> o 0 o ((8,8),(1,8)):((64,1),(0,8))"),
        ("cute.blocked_product((2,5):(5,1), (3,4):(1,3))", "((2,3),(5,4)):((5,10),(1,30))"),
        ("coalesce(layout);  // 12:1", "12:1"),
    ],
)  # fmt: skip
def test_an_operation_is_its_result(text: str, right: str) -> None:
    assert str(parse(text)) == right


def test_an_operation_without_an_answer_says_why() -> None:
    with pytest.raises(CompositionError) as error:
        parse("composition((4,2):(1,8), (2,2):(1,3))")
    assert error.value.witness == 3
    for text, said in (
        ("complement((2,2):(1,6), 24", "',' or ')'"), ("coalesce(4:1, 3, 4)", "other operands of coalesce"),
        ("zipped_divide((8,6), 4:1)", "a layout as the first operand"), ("coalesce(4:1) 5", "more text"),
        ("coalesce(" * 80 + "4:1" + ")" * 80, "operations nest at most"),
    ):  # fmt: skip
        with pytest.raises(ParseError, match=re.escape(said)):
            parse(text)


def test_a_tiler_of_the_ir_is_a_listing() -> None:
    found = parse('  : !cute.tile<"[(4,8):(1,4);_;(2,3):(1,2)]">')
    assert isinstance(found, Listing) and found["Tiler_MN"] == (Layout((4, 8), (1, 4)), None, Layout((2, 3), (1, 2)))


def test_a_published_accumulator_is_that_of_wgmma() -> None:
    (listing,) = [parse(text) for text in LISTED if text.startswith("ThrMMA")]
    assert isinstance(listing, Listing)
    assert prove(listing["LayoutC_TV"], wgmma(64).layout("C"))
    assert prove(listing["LayoutA_TV"], wgmma(64).layout("A"))


def test_the_swizzle_of_a_pointer_acts_on_its_bytes() -> None:
    """CuTe's Sw<3,4,3> of halves and floats, against the byte addresses that it stands for."""
    by = Swizzle(3, 4, 3)
    for bits in (8, 16, 32):
        found = parse(f"Sw<3,4,3> o smem_ptr[{bits}b](unset) o (_8,_{1024 // bits}):(_{1024 // bits},_1)")
        assert isinstance(found, ComposedLayout)
        assert [found(i) * bits // 8 for i in range(found.size)] == [
            by(found.layout(i) * bits // 8) for i in range(found.size)
        ]


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("Layout<Shape<_4,_8>>{}", "(4,8):(1,4)"),
        ("using L = Layout<Shape<_4,Shape<_2,_3>>, Stride<_6,Stride<_3,_1>>>;", "(4,(2,3)):(6,(3,1))"),
        ("make_layout(Shape<_4>{}, Stride<_m1>{})", "(4):(-1)"),
        ("Tensor A = make_tensor(make_gmem_ptr(A), make_shape(8, 16), make_stride(_16{}, Int<1>{}));", "(8,16):(16,1)"),
        ("Tensor r = make_tensor<float>(Shape<_4,_8>{}, LayoutRight{});", "(4,8):(8,1)"),
        ("make_tensor(make_inttuple_iter(0,0), make_shape(4,5), make_stride(E<1>{}, E<0>{}))", "(4,5):(1@1,1@0)"),
        ("Tensor s = make_tensor(make_smem_ptr(p), composition(Swizzle<3,3,3>{}, make_layout(make_shape(8, 64))));",
         "S<3,3,3> o 0 o (8,64):(1,8)"),
        ("auto l = make_layout(make_shape(_4{}, make_shape(2, Int<3>{})), LayoutRight{});", "(4,(2,3)):(6,(3,1))"),
        ("make_layout(make_shape(_4{}, make_shape(2, Int<3>{})), LayoutLeft{})", "(4,(2,3)):(1,(4,8))"),
        ("Layout<Shape<_4,_8>, Stride<E<0>,E<1,2>>>", "(4,8):(1@0,1@2@1)"),
        ("cute.make_composed_layout(cute.make_swizzle(3, 3, 3), 0, cute.make_layout((8, 64), stride=(64, 1)))",
         "S<3,3,3> o 0 o (8,64):(64,1)"),
        ("composition(Swizzle<2,0,2>{}, Int<4>{}, Layout<_16>{})", "S<2,0,2> o 4 o 16:1"),
        ("ComposedLayout<Swizzle<3,4,3>, smem_ptr_flag_bits<16>, Layout<Shape<_8,_64>,Stride<_64,_1>>>",
         "S<3,3,3>[16b] o 0 o (8,64):(64,1)"),
        ("make_layout(make_shape(Int<128>{}, Int<64>{}), GenRowMajor{}) // C++ before CUTLASS 3.5", "(128,64):(64,1)"),
    ],
)  # fmt: skip
def test_source_text_is_its_layout(text: str, right: str) -> None:
    assert str(Layout.parse(text)) == right


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("Layout<Shape<_4,M>,Stride<_1,_4>>", "M", "an integer, as in _4"),
        ("Layout<Shape<_4,_8>,Stride<_1>>", "Layout", "not congruent"),
        ("Layout<Shape<_4,_8>,Stride<_1,_4>", "", "',' or '>'"),
        ("make_layout(make_shape(4, 8)) junk", "junk", "the end of the text"),
        ("composition(A, Layout<_8>{})", "A", "a swizzle"),
        ("make_layout(make_shape(M, 8))", "M", "an integer"),
        ("(_4,_8)", "", "':'"),
        ("make_tensor(make_inttuple_iter(128,0), make_shape(4,5))", "make_int", "a pointer, or zeros"),
        ("make_tensor(make_smem_ptr(p), sA_layout)", "sA", "an integer"),
        ("ArithTuple(128,_0) o (128,64):(_1,128)", "Arith", "strides as 1@0"),
        ("(5,0) o (4,8):(1@0@0,1@1)", "(5", "which leads to a tuple there"),
        ("(_4,_8x):(_8,_1)", "_8x", "an integer, as in _8"),
        ("(4,8):(8,1) o 3 o 4:1", "(4", "no layout with modes 4 is"),
        ("vector<12xf32> o (3, 4)", "vector", "a vector of values, which has no strides"),
        ("%p : !cute.ptr<f32, gmem, align<16>>", "!cute", "a pointer alone; !cute.memref<...> has its layout"),
        ("using TileShape = Shape<_128,_128,_64>;", "using", "a shape or a tile alone"),
        ("GmmaDescriptor: 0x4000004000010040\n  start_addr :  0x0040", "Gmma", "`layoutgemm desc` prints its fields"),
        ("Swizzle<3,4,3> o smem_ptr o ((8,n),(8,k)):((1,LBO),(8,SBO))", "smem_ptr", "a pointer without its type"),
        ('%22 = cute.static : !cute.stride<"((1@0,1@1),(2@0,0))">', "!cute", "not !cute.stride"),
        (
            '%d = cute.zipped_divide(%v, %t) : !cute.memref<f16, gmem, "(8,8):(8,1)">, !cute.tile<"[2:1;4:1]">',
            "!cute",
            "this line of cute.zipped_divide has those of its operands alone",
        ),
        ('%d = cute.zipped_divide(%v, %t) : !memref_gmem_f16, !cute.tile<"[2:1;4:1]">', "!mem", "type of the result"),
        (
            "\\begin{tikzpicture}[x={(0cm,-1cm)}]\n\\node[fill=black!00] at (0,0) {0};",
            "\\begin",
            "`% Layout: ...` above",
        ),
        ('%f = cute.filter_zeros(%l) : !cute.layout<"(4,8):(0,1)">', "!cute", "this line of cute.filter_zeros"),
        (
            '%3 = cute.composition(%v, %l) : (!memref_f16, !cute.layout<"(4,4):(1,256)">) -> !memref_f16_5',
            "!memref_f16_5",
            "paste the line !memref_f16_5 = ...",
        ),
        ("`(4,8):(8,1)` and `(8,4):(1,8)`", "` and", "more text"),
        ("#linear", "#linear", "the name of one that stands before it"),
        ("(4,5):(1,4) o ? o (2,3):(1,2)", "? o", "an offset in numbers behind (4,5):(1,4)"),
        ("!nvgpu.mbarrier.group<num_barriers = 7>", "!nvgpu", "an attribute of another dialect"),
        ("!nvgpu.tensormap.descriptor<tensor = !smem, swizzle = none>", "tensor = !", "tensor = memref<64x64xf16, 3>"),
        (
            "!nvgpu.tensormap.descriptor<tensor = memref<8x64xf16, 3>, swizzle = swizzle_64b>",
            "swizzle_64b",
            "rows of at most 64 bytes, not 128",
        ),
        (
            "!nvgpu.tensormap.descriptor<tensor = memref<8x8xf16, 3>, interleave = interleave_16b>",
            "interleave_16b",
            "interleave = none",
        ),
        ("#ttg.nvidia_mma<{versionMajor = 2, warpsPerCTA = [2, 2]}>", "#ttg", "instrShape = [m, n, ...]"),
        ("(2,2):(3,1) o (2,2):(1,3)", "(2", "two layouts that compose"),
        (
            "tensor<ptr<f16, smem, align<1024>, S<34,3>> o (8,64):(64,1)>",
            "ptr",
            "a memory space, align<16> or S<3,4,3>",
        ),
        ("TiledCopy\n  Tiler_MN: (_32,_16)\n  ThrID    _1:_0", "ThrID", "a name of letters and digits"),
        ('!cute.tiled_copy<!a.b<f16>, layout_cop_tv = <"(4,8):(8,1)">>', "layout_cop", "layout_copy_tv, tiler_mn"),
    ],
)
def test_what_is_not_read_says_where_and_what_was_expected(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert expected in str(error.value)
    assert error.value.position == (text.index(at) if at else len(text))


def test_damaged_texts_are_read_or_refused() -> None:
    texts = [*LISTED, *[text for text, _ in PUBLISHED]]
    read, refused = outcomes(text[:at] + text[at + 1 :] for text in texts for at in range(0, len(text), 3))
    assert read > 1400 and refused > 1400, (read, refused)


def test_an_extent_that_a_type_does_not_say_is_a_symbol() -> None:
    found = parse("cute::Layout<cute::tuple<int, cute::C<8>>, cute::tuple<cute::C<8>, long>>")
    rows, columns = found.shape
    assert columns == 8 and not isinstance(rows, int) and found.stride[0] == 8 and found.stride[1] != rows


def test_an_unknown_of_the_dsl_keeps_what_is_known() -> None:
    found = parse("tensor<ptr<i8, gmem, align<16>> o (4096,?,?):(?{i64 div=16},1,?{i64 div=16})>")
    assert isinstance(found, Layout)
    assert found.shape[0] == 4096 and found.stride[0] % 16 == 0 and found.stride[1] == 1
    assert dim("M") not in found.shape


def test_an_offset_of_symbols_is_kept() -> None:
    tile = ComposedLayout(Swizzle(3, 4, 3), dim("M") + 3, Layout((8, 8), (1, 8)))
    assert parse(str(tile)) == tile
    unknown = parse('!cute.composed_layout<"S<3,4,3> o ?{div=16} o (8,?):(1,8)">')
    assert isinstance(unknown, ComposedLayout) and unknown.layout.stride == (1, 8)
    assert str(unknown.offset).startswith("unknown") and str(unknown.offset) != str(unknown.layout.shape[1])
    assert Layout(unknown.offset, 1).zipped_divide(16).shape[0] == 16  # a multiple of 16


def test_an_unknown_stride_leads_along_a_coordinate() -> None:
    found = parse("(4,?):(?{i64 div=8}@1,1@0@2)")
    assert str(parse("?:?@0").stride).endswith("@0")
    step, other = found.stride
    assert other == E(2, 0) and step.path == (1,) and Layout(step.value, 1).zipped_divide(8).shape[0] == 8


def test_an_iterator_of_narrow_elements_is_a_pointer() -> None:
    assert parse("subbyte_iterator[4b](0x7ff0.2) o (_4,_8):(_8,_1)") == parse("(4,8):(8,1)")


@pytest.mark.parametrize(
    ("source", "printed"),
    [
        ("tile_to_shape(GMMA::Layout_MN_SW128_Atom<half_t>{}, make_shape(Int<256>{}, Int<64>{}, Int<3>{}))",
         "Sw<3,4,3> o smem_ptr[16b](unset) o ((_64,_4),(_8,_8),(_1,_3)):((_1,_512),(_64,_2048),(_0,_16384))"),
        ("tile_to_shape(GMMA::Layout_MN_SW128_Atom<half_t>{}, Shape<_256,_64,_3>{}, Step<_2,_1,_3>{})",
         "Sw<3,4,3> o smem_ptr[16b](unset) o ((_64,_4),(_8,_8),(_1,_3)):((_1,_4096),(_64,_512),(_0,_16384))"),
        ("using Atom = UMMA::Layout_K_SW64_Atom<cutlass::float_e4m3_t>;",
         "Sw<2,4,3> o smem_ptr[8b](unset) o (_8,_64):(_64,_1)"),
        ("GMMA::Layout_K_INTER_Atom<float>{}", "Sw<0,4,3> o smem_ptr[32b](unset) o (_8,_4):(_4,_1)"),
        ("cute::GMMA::Layout_MN_SW32_Atom<tfloat32_t>", "Sw<1,4,3> o smem_ptr[32b](unset) o (_8,_8):(_1,_8)"),
    ],
)  # fmt: skip
def test_a_tile_that_cutlass_names_is_the_layout_that_it_prints(source: str, printed: str) -> None:
    assert parse(source) == parse(printed)


# (text of a compiler or of an IR, the layout in this library's notation)
OF_COMPILERS = [
    ('!cute.memref<f16, smem, align<1024>, "S<3,4,3> o 0 o (8,64):(64,1)">', "S<3,4,3>[16b] o 0 o (8,64):(64,1)"),
    ('!cute.memref<f16, smem, align<1024>, S<3,4,3>, "(8,64):(64,1)">', "S<3,3,3>[16b] o 0 o (8,64):(64,1)"),
    ("!fly.layout<(4, 8) : (1, 4)>", "(4,8):(1,4)"),
    ("!fly.memref<f16, shared, (128,64,2):(64,1,8192), align<1024>>", "(128,64,2):(64,1,8192)"),
    ("!fly.composed_layout<S<3,3,3> o 0 o (8,64):(64,1)>", "S<3,3,3> o 0 o (8,64):(64,1)"),
    ("%l = fly.make_layout(%s) : (!fly.int_tuple<(4,8)>, !fly.int_tuple<(1E0,1E1)>) -> !fly.layout<(4,8):(1E0,1E1)>",
     "(4,8):(1@0,1@1)"),
    ("cute::Layout<cute::tuple<cute::C<(int)4>, cute::C<(int)8>>, cute::tuple<cute::C<(int)8>, cute::C<(int)1>>>",
     "(4,8):(8,1)"),
    ("const cute::Layout<cute::tuple<cute::C<4>, cute::C<8> >, cute::tuple<cute::C<8>, cute::C<1> > >&", "(4,8):(8,1)"),
    ("cute::Layout<cute::tuple<cute::_128, cute::_64>, cute::tuple<cute::ScaledBasis<cute::C<1>, 0>, "
     "cute::ScaledBasis<cute::C<2>, 1, 0>>>", "(128,64):(1@0,2@0@1)"),
    ("cute::Tensor<cute::ViewEngine<cute::gmem_ptr<float*>>, cute::Layout<cute::tuple<cute::_4, cute::_8>, "
     "cute::tuple<cute::_8, cute::_1>>>", "(4,8):(8,1)"),
    ("error: static assertion failed: cute::Layout<cute::tuple<cute::_4, cute::_8>, cute::tuple<cute::_8, cute::_1>>",
     "(4,8):(8,1)"),
    ("note: in instantiation of 'Show<cute::Layout<cute::tuple<cute::_4>, cute::tuple<cute::_2>>>' requested here",
     "(4):(2)"),
    ("void f(T) [with T = cute::Layout<cute::tuple<cute::_4>, cute::tuple<cute::_2>>; int N = 3]", "(4):(2)"),
    ("cute.make_swizzle(3, 4, 3)", "S<3,4,3>"),
    ("tensor_layouts.Layout((4, 8), (8, 1))", "(4,8):(8,1)"),
    ("torch.Size([2, 3]), (3, 1), 5", "S<0,0,0> o 5 o (2,3):(3,1)"),
    ("(torch.Size([2, 3]), (3, 1), 0)", "(2,3):(3,1)"),
    ("torch.Size([4, 8]), stride (8, 1)", "(4,8):(8,1)"),
    ("memref<4x8xvector<4xf32>, 3>", "(4,8):(8,1)"),
    ("torch.Size([4, 8]), stride=(8, 1), storage_offset=3", "S<0,0,0> o 3 o (4,8):(8,1)"),
    ("%s = memref.subview %0[0, 4] [4, 8] [1, 1] : memref<16x16xf32> to memref<4x8xf32, strided<[16, 1], offset: 4>>",
     "S<0,0,0> o 4 o (4,8):(16,1)"),
    ("%0 = memref.alloc() : memref<4x8xf32, 3>", "(4,8):(8,1)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "right"), OF_COMPILERS)
def test_a_text_of_a_compiler_is_its_layout(text: str, right: str) -> None:
    assert str(parse(text)) == right


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("error: no way from 'cute::Layout<cute::_4, cute::_1>' to 'cute::Layout<cute::_8, cute::_1>'", "no way", ""),
        ("cute::Tensor<cute::ViewEngine<cute::smem_ptr<cute::swizzle_ptr<cute::Swizzle<3,4,3>, half*>>>, "
         "cute::Layout<cute::_4, cute::_1>>", "swizzle_ptr", "print(tensor) does"),
        ("Layout(shape=(4, 8), stride=(8, 1), swizzle=Swizzle(3, 0, 3))", "swizzle=", "without a swizzle"),
        ("memref<4x8xf32>, memref<8x4xf32>", ", memref", "one memref"),
        ("f32[8,128]{1,0}, f32[4]{0}", ", f32", "the end of the text"),
        ("GMMA::Layout_K_SW128_Atom<TA>{}", "TA", "unknown number format 'TA'"),
        ("SwizzleTransform(128), TilingTransform((8, 64))", "Swizzle", "not a change of an array's shape"),
        ("ArithTuple(0,6@4) o (4,8):(1@0,1@1)", "Arith", ""),
        ("memref<4x8xf32, affine_map<(i, j) -> (i floordiv j)>>", "i flo", "a division by zero"),
        ("(1@0,1@1)", "1@0", "a stride alone"),
        ("tensor<4x8xf32>", "tensor", "a tensor's sizes alone"),
        ("memref<*xf32>", "memref", "a memref without extents"),
        ("!cute_nvgpu.atom.ldsm<val_type = bf16>", "!cute_nvgpu", "an atom's type alone"),
        ("#iree_gpu.mma_layout<MFMA_F32_16x16x16_F16>", "#iree_gpu", "an attribute of another dialect"),
        ("!fly.composed_layout<SM<2,6,2> o 0 o (8,64):(64,1)>", "SM<", "an integer"),
    ],
)  # fmt: skip
def test_what_a_compiler_does_not_say_is_refused(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError, match="expected") as error:
        parse(text)
    assert expected in str(error.value) and error.value.position == text.index(at)
