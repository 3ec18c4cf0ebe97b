"""Triton's layouts of AMD's matrix instructions: closed forms of the element in each lane and register."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from layoutgemm import parse
from layoutgemm.errors import ParseError
from layoutgemm.layouts import LinearLayout

Place = Callable[[int, int], tuple[int, int]]  # (register, lane) -> (row, column)


def mfma(size: list[int], warps: list[int], more: str = "", transposed: bool = False, version: int = 3) -> str:
    said = str(transposed).lower()
    fields = f"version = {version}, warpsPerCTA = {warps}, instrShape = {size}, isTransposed = {said}{more}"
    return f"#ttg.amd_mfma<{{{fields}}}>"


def wmma(version: int, cta: str, size: str = "", transposed: bool = False) -> str:
    fields = f"version = {version}, isTranspose = {str(transposed).lower()}, ctaLayout = {{{cta}}}{size}"
    return f"#ttg.amd_wmma<{{{fields}}}>"


ONE = "warp = []"
# (layout of one wavefront, its extents, the element of each register and lane)
INSTRUCTIONS: list[tuple[str, tuple[int, int], Place]] = [
    (mfma([32, 32, 8], [1, 1]), (32, 32), lambda r, lane: (8 * (r // 4) + 4 * (lane // 32) + r % 4, lane % 32)),
    (mfma([32, 32, 8], [1, 1], transposed=True), (32, 32),
     lambda r, lane: (lane % 32, 8 * (r // 4) + 4 * (lane // 32) + r % 4)),
    (mfma([16, 16, 16], [1, 1]), (16, 16), lambda r, lane: (4 * (lane // 16) + r, lane % 16)),
    (mfma([16, 16], [1, 1]).replace("version = 3", "versionMajor = 3, versionMinor = 0"), (16, 16),
     lambda r, lane: (4 * (lane // 16) + r, lane % 16)),
    (mfma([16, 16, 4], [1, 1], ", elementBitWidth = 64"), (16, 16), lambda r, lane: (4 * r + lane // 16, lane % 16)),
    (mfma([4, 64, 4], [1, 1]), (4, 64), lambda r, lane: (r, lane)),
    (mfma([64, 4, 4], [1, 1], transposed=True), (64, 4), lambda r, lane: (lane, r)),
    (wmma(1, ONE), (16, 16), lambda r, lane: (2 * r + lane // 16, lane % 16)),
    (wmma(2, ONE), (16, 16), lambda r, lane: (8 * (lane // 16) + r, lane % 16)),
    (wmma(2, ONE, transposed=True), (16, 16), lambda r, lane: (lane % 16, 8 * (lane // 16) + r)),
    (wmma(3, ONE, ", instrShape = [16, 16, 32]"), (16, 16), lambda r, lane: (8 * (lane // 16) + r, lane % 16)),
    (wmma(3, ONE, ", instrShape = [32, 16, 128]"), (32, 16),
     lambda r, lane: (16 * (r // 8) + 8 * (lane // 16) + r % 8, lane % 16)),
    # operands: (register, lane) -> (row, k) of A, (k, column) of B
    (f"#ttg.dot_op<{{opIdx = 0, parent = {mfma([32, 32, 8], [1, 1])}, kWidth = 4}}>", (32, 8),
     lambda r, lane: (lane % 32, 4 * (lane // 32) + r)),
    (f"#ttg.dot_op<{{opIdx = 1, parent = {mfma([16, 16, 32], [1, 1])}, kWidth = 8}}>", (32, 16),
     lambda r, lane: (8 * (lane // 16) + r, lane % 16)),
    (f"#ttg.dot_op<{{opIdx = 0, parent = {wmma(1, ONE)}, kWidth = 16}}>", (16, 16), lambda r, lane: (lane % 16, r)),
    (f"#ttg.dot_op<{{opIdx = 1, parent = {wmma(2, ONE)}, kWidth = 8}}>", (16, 16),
     lambda r, lane: (8 * (lane // 16) + r, lane % 16)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shape", "place"), INSTRUCTIONS)
def test_each_lane_and_register_holds_the_element_of_the_instruction(
    text: str, shape: tuple[int, int], place: Place
) -> None:
    alone, of_tensor = parse(text), parse(f"tensor<{shape[0]}x{shape[1]}xf32, {text}>")
    assert isinstance(alone, LinearLayout) and alone == of_tensor
    lanes = 1 << alone.bits[1]
    assert lanes == (64 if "mfma" in text else 32)
    for register in range(1 << alone.bits[0]):
        for lane in range(lanes):
            row, column = place(register, lane)
            assert alone(register=register, lane=lane) == row + shape[0] * column, (register, lane)


def test_warps_take_tiles_along_the_last_dimension_first() -> None:
    """4 x 2 tiles of 16 x 16 a warp; 2 x 2 warps; the rest of the tensor is in further registers."""
    found = parse(f"tensor<256x128xf32, {mfma([16, 16, 32], [2, 2], ', tilesPerWarp = [4, 2]')}>")
    for r in range(1 << found.bits[0]):
        for warp in range(4):
            inside, column_tile, column_rest = r % 4, r // 4 % 2, r // 8 % 2
            row_tile, row_rest = r // 16 % 4, r // 64
            row = inside + 16 * row_tile + 64 * (warp // 2) + 128 * row_rest
            column = 16 * column_tile + 32 * (warp % 2) + 64 * column_rest
            assert found(register=r, warp=warp) == row + 256 * column


def test_bases_of_a_wmma_count_instructions() -> None:
    found = parse(f"tensor<32x64xf32, {wmma(3, 'register = [[0, 1]], warp = [[0, 2], [1, 0]]')}>")
    for r in range(16):
        for warp in range(4):
            assert found(register=r, warp=warp) == r % 8 + 16 * (warp // 2) + 32 * (16 * (r // 8) + 32 * (warp % 2))


def test_the_phases_of_rotating_rows_rotate() -> None:
    text = "#ttg.amd_rotating_shared<{vec = 4, perPhase = 2, maxPhase = 8, order = [1, 0]}>"
    found = parse(f"!ttg.memdesc<256x64xf16, {text}, #ttg.shared_memory, mutable>")
    for row in range(256):
        phase = row // 2 % 8 ^ row // 16 % 8
        for column in range(64):
            assert found(offset=64 * row + column) == row + 256 * (column ^ (4 * phase))
    assert parse(text).inverse()(0) == 0


@pytest.mark.parametrize(
    ("gluon", "attribute"),
    [
        ("ttgl.amd.AMDMFMALayout(version=4, instr_shape=[16, 16, 32], transposed=True, warps_per_cta=[2, 4])",
         mfma([16, 16, 32], [2, 4], transposed=True, version=4)),
        ("AMDMFMALayout(version=3, instr_shape=[32, 32, 8], transposed=False, warps_per_cta=[2, 2], "
         "element_bitwidth=32, tiles_per_warp=[1, 2], cga_layout=[])",
         mfma([32, 32, 8], [2, 2], ", tilesPerWarp = [1, 2]")),
        ("gl.amd.AMDWMMALayout(2, True, [[0, 1], [1, 0]])", wmma(2, "warp = [[0, 1], [1, 0]]", transposed=True)),
        ("AMDWMMALayout(version=3, transposed=False, warp_bases=[[0, 2], [1, 0]], reg_bases=[[0, 1]], "
         "instr_shape=[16, 16, 32], cga_layout=[], rank=2)",
         wmma(3, "register = [[0, 1]], warp = [[0, 2], [1, 0]]", ", instrShape = [16, 16, 32]")),
        ("ttgl.amd.AMDWMMALayout(2, True, [2, 2])", wmma(2, "warp = [[0, 1], [1, 0]]", transposed=True)),
        (wmma(1, "warp = [[0, 1], [1, 0]]"), "#ttg.amd_wmma<{version = 1, warpsPerCTA = [2, 2]}>"),
        ("DotOperandLayout(operand_index=0, parent=AMDMFMALayout(version=3, instr_shape=[32, 32, 8], transposed=True,"
         " warps_per_cta=[2, 2]), k_width=4)",
         f"#ttg.dot_op<{{opIdx = 0, parent = {mfma([32, 32, 8], [2, 2], transposed=True)}, kWidth = 4}}>"),
    ],
)  # fmt: skip
def test_gluon_and_the_compiler_name_the_same_layouts(gluon: str, attribute: str) -> None:
    assert parse(gluon) == parse(attribute)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (mfma([32, 16, 8], [1, 1]), "[64, 4, ...] or [4, 64, ...]"),
        (mfma([64, 4, 4], [1, 1]), "isTransposed = true"),
        (mfma([16, 16, 16], [1, 1], version=7), "version = 1 to 4"),
        (mfma([32, 32, 8], [1, 1], ", elementBitWidth = 64"), "elementBitWidth = 32, or 64"),
        (mfma([32, 32, 8], [1, 1], ", CGALayout = [[1, 1]]"), "one a power of two, not [1, 1]"),
        (mfma([32, 32, 8], [1, 1], ", swizzled = 4"), "not swizzled"),
        (mfma([32, 32, 8], [2]), "of 2 or 3 dimensions"),
        (f"tensor<4x32x32xf32, {mfma([32, 32, 8], [1, 1])}>", "a tensor of 2 dimensions"),
        (wmma(4, ONE), "version = 1 to 3"),
        (wmma(2, "warp = [[0, 1], [1, 0, 0]]"), "bases with 2 or 3 integers"),
        (wmma(2, "warp = [[1, 1]]"), "one power of two"),
        (wmma(2, "lane = [[1, 0]]"), "ctaLayout = {register"),
        (f"#ttg.dot_op<{{opIdx = 2, parent = {wmma(2, ONE)}, kWidth = 8}}>", "opIdx = 0 or 1"),
    ],
)
def test_what_no_instruction_has_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ParseError, match="expected") as error:
        parse(text)
    assert expected in str(error.value)
