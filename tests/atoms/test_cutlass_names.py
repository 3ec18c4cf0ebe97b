"""The names of CUTLASS's atoms are read as the instructions that they are."""

from __future__ import annotations

import pytest

from layoutgemm import parse
from layoutgemm.atoms import (
    TiledCopy,
    TiledMma,
    cp_async,
    fma,
    ldmatrix,
    ldmatrix_m16n8,
    make_tiled_copy,
    mma_sync,
    movmatrix,
    stmatrix,
    tcgen05_cp,
    tcgen05_ld,
    tcgen05_mma,
    tcgen05_st,
    universal_copy,
    wgmma,
)
from layoutgemm.atoms.cutlass_names import named
from layoutgemm.errors import ParseError
from layoutgemm.layouts import Layout
from tests.layouts.damage import outcomes

EXAMPLE = "half_t, half_t, float, 128, 256, UMMA::Major::K, UMMA::Major::K"
NAMES = [
    ("SM70_8x8x4_F32F16F16F32_NT", mma_sync((8, 8, 4), "f16", layouts=("col", "row"))),
    ("SM80_16x8x16_F16F16F16F16_TN", mma_sync((16, 8, 16), "f16", c="f16")),
    ("SM80_16x8x8_F32TF32TF32F32_TN", mma_sync((16, 8, 8), "tf32")),
    ("SM80_16x8x32_S32S8U8S32_TN_SATURATE", mma_sync((16, 8, 32), "i8", "u8", saturate=True)),
    ("SM80_16x8x256_S32U1U1S32_TN_ANDPOPC", mma_sync((16, 8, 256), "b1", bit_op="and")),
    ("SM89_16x8x32_F32E4M3E5M2F32_TN", mma_sync((16, 8, 32), "e4m3", "e5m2")),
    ("SM90_16x8x4_F64F64F64F64_TN", mma_sync((16, 8, 4), "f64")),
    ("SM90_64x128x16_F32BF16BF16_SS", wgmma(128)),
    ("SM90_64x128x16_F32BF16BF16_RS<GMMA::Major::K, GMMA::Major::MN>", wgmma(128, a_source="rmem")),
    ("SM90::GMMA::MMA_64x64x32_F16E4M3E5M2_SS_TN<>", wgmma(64, "e4m3", "e5m2", "f16")),
    ("cute::SM90_64x16x32_S32U8S8_SS_TN_SATURATE", wgmma(16, "u8", "i8", saturate=True)),
    (
        "cute::MMA_Atom<cute::SM90_64x256x16_F32F16F16_SS<(cute::GMMA::Major)0, (cute::GMMA::Major)1> >",
        wgmma(256, "f16"),
    ),
    (f"SM100_MMA_F16BF16_SS<{EXAMPLE}>", tcgen05_mma("f16", 128, 256, "f16")),
    ("SM100_MMA_F16BF16_2x1SM_TS<bfloat16_t, bfloat16_t, float, 256, 128, UMMA::Major::K, UMMA::Major::K>{}",
     tcgen05_mma("f16", 256, 128, "bf16", cta_group=2, a_source="tmem")),
    ("MMA_Traits<SM100_MMA_F8F6F4_SS, float_e4m3_t, float_e2m1_t, float, C<128>, Int<64>>",
     tcgen05_mma("f8f6f4", 128, 64, "e4m3", "e2m1")),
    ("SM100_MMA_MXF4_SS<float_e2m1_t, float_e2m1_t, float, float_ue4m3_t, 128, 128, 16, UMMA::Major::K>",
     tcgen05_mma("mxf4nvf4", 128, 128, scale="ue4m3", vector=16)),
    ("SM120_16x8x32_TN<float_e5m2_t, float_e2m1_t, float>", mma_sync((16, 8, 32), "e5m2", "e2m1", kind="f8f6f4")),
    ("SM120::BLOCKSCALED::SM120_16x8x64_TN_VS<float_e2m1_t, float_e2m1_t, float, float_ue8m0_t, 32>",
     mma_sync((16, 8, 64), "e2m1", kind="mxf4", scale="ue8m0", vector=32)),
    ("UniversalFMA<float, float, float, float>", fma()),
    ("SM75_U32x4_LDSM_N", ldmatrix(4)),
    ("SM75_U16x8_LDSM_T{}", ldmatrix(4, transpose=True)),
    ("SM75_U32x1_MOVM_T", movmatrix()),
    ("SM90_U16x4_STSM_T", stmatrix(2, transpose=True)),
    ("Copy_Atom<SM75_U32x2_LDSM_N, cutlass::half_t>", ldmatrix(2, element="f16")),
    ("SM100_U8x8_LDSM_T", ldmatrix_m16n8(2)),
    ("SM100_SU4_DU8x16_x2_LDSM_N", ldmatrix(2, "m8n16.b8x16.b4x16_p64")),
    ("Copy_Atom<SM80_CP_ASYNC_CACHEALWAYS<uint64_t>, float>", cp_async(8, "ca", "f32")),
    ("SM80_CP_ASYNC_CACHEGLOBAL_ZFILL<cute::uint128_t>", cp_async(16, "cg", src_bytes="register")),
    ("Copy_Atom<UniversalCopy<uint4>, bfloat16_t>", universal_copy(128, "bf16")),
    ("SM100_TMEM_LOAD_32dp32b32x", tcgen05_ld("32x32b", 32)),
    ("SM100_TMEM_STORE_16dp256b4x_16b", tcgen05_st("16x256b", 4, True, element="u16")),
    ("SM100_UTCCP_4x32dp128bit_2cta", tcgen05_cp("32x128b", "warpx4", 2)),
    ("using TiledMma = TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>, Layout<Shape<_2,_2,_1>>, Tile<_32,_32,_16>>;",
     TiledMma(mma_sync((16, 8, 16), "f16"), Layout((2, 2, 1)), (32, 32, 16))),
    ("make_tiled_mma(SM80_16x8x8_F32F16F16F32_TN{}, Layout<Shape<_2,_1>>{})",
     TiledMma(mma_sync((16, 8, 8), "f16"), Layout((2, 1, 1), (1, 2, 0)))),
    ("TiledCopy copyA = make_tiled_copy(Copy_Atom<UniversalCopy<uint128_t>, float>{}, Layout<Shape<_32,_8>>{}, "
     "Layout<Shape< _4,_1>>{});", make_tiled_copy(universal_copy(128, "f32"), Layout((32, 8)), Layout((4, 1)))),
    ("TiledCopy<Copy_Atom<UniversalCopy<uint128_t>, half_t>, Layout<Shape<_8,_8>,Stride<_8,_1>>, Tile<_64>>",
     TiledCopy(universal_copy(128, "f16"), Layout((8, 8), (8, 1)), (64,))),
    ("warp-level F16/BF16 MMA Operation\n  A/B data type         = Float16\n  Accumulator data type = Float32\n"
     "  Instruction shape MNK = (16, 8, 16)", mma_sync((16, 8, 16), "f16")),
    ("op = warpgroup F16/BF16 MMA Operation\n  A data type           = BFloat16\n  B data type           = BFloat16\n"
     "  Accumulator data type = Float32\n  A source location     = OperandSource.RMEM\n"
     "  Instruction shape MNK = (64, 128, 16)", wgmma(128, a_source="rmem")),
    ("tcgen05 F16/BF16 MMA Operation\n  A data type           = Float16\n  B data type           = Float16\n"
     "  Accumulator data type = Float32\n  CTA group             = CtaGroup.TWO\n"
     "  A source location     = OperandSource.SMEM\n  Instruction shape MNK = (256, 128, 16)",
     tcgen05_mma("f16", 256, 128, "f16", cta_group=2)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "atom"), NAMES, ids=range(len(NAMES)))
def test_a_name_is_its_instruction(text: str, atom: object) -> None:
    assert named(text) == atom == parse(text)


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("SM90_TMA_LOAD_MULTICAST", "SM90", "a copy with a map"),
        ("Copy_Atom<SM90_TMA_LOAD, half_t>", "SM90", "tma_load()"),
        ("SM100_MMA_F16BF16_SS", "SM100", "its types"),
        ("SM100_MMA_F16BF16_SS<half_t, half_t, float>", "SM100", "M and N"),
        ("SM80_16x8x15_F32F16F16F32_TN", "SM80", "it has no m16n8k15"),
        ("SM80_16x8x16_F32F16F16_TN", "F32F16F16", "4 types"),
        ("SM90_64x128x32_F32BF16BF16_SS", "SM90", "K = 16, 32 bytes of bf16, not 32"),
        ("SM90::GMMA::SPARSE::GMMA_64x64x32_F32F16F16_SS", "SM90", "a dense product"),
        ("SM90_64x12x16_F32BF16BF16_SS", "SM90", "12"),
        ("SM75_U32x4_LDSM_T", "SM75", "U16 with _T"),
        ("SM75_U32x4_LDSM_N junk", "junk", "the end of the name"),
        ("SM75_U32x4_LDMS_N", "SM75", "the name of an atom"),
        ("MMA_Atom<SM80_16x8x16_F32F16F16F32_TN", "", "',' or '>'"),
        ("TiledMMA<SM75_U32x4_LDSM_N>", "SM75", "a matrix product"),
        ("TiledMMA<MMA_Atom<SM80_16x8x16_F32F16F16F32_TN>, Layout<Shape<_2,_2,_1>>, Tile<M>>", "TiledMMA", "a tile"),
        ("SM80_CP_ASYNC_CACHEGLOBAL<uint64_t>", "SM80", "cp.async.cg copies 16 bytes"),
    ],
)
def test_what_is_no_atom_says_where_and_why(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert expected in str(error.value)
    assert error.value.position == (text.index(at) if at else len(text))


def test_other_texts_are_no_names() -> None:
    for text in ("(4,8):(8,1)", "MMA_Atom\n  ThrID: _32:_1", "Layout<Shape<_4,_8>>", "TiledCopy", "SMEM: (4,8):(8,1)"):
        assert named(text) is None


def test_damaged_names_are_read_or_refused() -> None:
    cut = (text[:at] + text[at + 1 :] for text, _ in NAMES for at in range(0, len(text), 2))
    read, refused = outcomes(cut, ParseError)
    assert read > 200 and refused > 800, (read, refused)
