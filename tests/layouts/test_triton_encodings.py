"""Triton's layouts of a tensor, as its compiler prints their types: the bases that its own tests state."""

from __future__ import annotations

import itertools
import re

import pytest

from layoutgemm import parse
from layoutgemm.atoms import MmaAtom, mma_sync, wgmma
from layoutgemm.errors import ParseError
from layoutgemm.layouts import Layout, LinearLayout
from tests.layouts.damage import outcomes


def blocked(each: list[int], threads: list[int], warps: list[int], order: list[int], head: str = "ttg") -> str:
    fields = f"sizePerThread = {each}, threadsPerWarp = {threads}, warpsPerCTA = {warps}, order = {order}"
    return f"#{head}.blocked<{{{fields}}}>"


def nvmma(width: int, transposed: bool = False, bits: int = 16) -> str:
    said = str(transposed).lower()
    return f"#ttg.nvmma_shared<{{swizzlingByteWidth = {width}, transposed = {said}, elementBitWidth = {bits}}}>"


def nvmma_3(width: int) -> str:
    return nvmma(width, True).replace("}", ", rank = 3}")


def swizzled(vec: int, each: int, most: int, order: list[int]) -> str:
    return f"#ttg.swizzled_shared<{{vec = {vec}, perPhase = {each}, maxPhase = {most}, order = {order}}}>"


def mma(version: int, size: list[int], warps: list[int]) -> str:
    fields = f"versionMajor = {version}, versionMinor = 0, warpsPerCTA = {warps}, instrShape = {size}"
    return f"#ttg.nvidia_mma<{{{fields}}}>"


def dot(parent: str, which: int, width: int) -> str:
    return f"#ttg.dot_op<{{opIdx = {which}, parent = {parent}, kWidth = {width}}}>"


def tmem(fields: str) -> str:
    return f"#ttng.tensor_memory_encoding<{fields}>"


MMA_LANES = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]]
A_LANES, B_LANES = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]], [[8, 0], [16, 0], [0, 1], [0, 2], [0, 4]]
# (type, input -> bases)
BLOCKED = blocked([1, 8], [2, 16], [4, 1], [1, 0])
FOUND = [
    (f"tensor<32x32xf32, {mma(2, [16, 8], [1, 1])}>",
     {"register": [[0, 1], [8, 0], [0, 8], [0, 16], [16, 0]], "lane": MMA_LANES, "warp": []}),
    (f"tensor<32x32xf32, {mma(3, [16, 16, 8], [4, 4])}>",
     {"register": [[0, 1], [8, 0], [0, 8]], "lane": MMA_LANES, "warp": [[16, 0], [0, 0], [0, 16], [0, 0]]}),
    (f"tensor<16x64xi8, {dot(mma(2, [16, 8], [1, 1]), 0, 8)}>",
     {"register": [[0, 1], [0, 2], [0, 4], [8, 0], [0, 32]], "lane": A_LANES, "warp": []}),
    (f"tensor<64x8xi8, {dot(mma(2, [16, 8], [1, 1]), 1, 8)}>",
     {"register": [[1, 0], [2, 0], [4, 0], [32, 0]], "lane": B_LANES, "warp": []}),
    (f"#mma = {mma(2, [16, 8], [4, 1])}\ntensor<128x128xi8, {dot('#mma', 0, 8)}>",
     {"register": [[0, 1], [0, 2], [0, 4], [8, 0], [0, 32], [0, 64], [64, 0]], "lane": A_LANES,
      "warp": [[16, 0], [32, 0]]}),
    (f"tensor<16xf32, {blocked([1], [4], [4], [0])}>",
     {"register": [], "lane": [[1], [2]], "warp": [[4], [8]], "block": []}),
    (f"tensor<128xf32, {blocked([1], [4], [4], [0], 'triton_gpu')}>",
     {"register": [[16], [32], [64]], "lane": [[1], [2]], "warp": [[4], [8]]}),
    (f"tensor<128x1x!tt.ptr<f32>, {blocked([1, 1], [4, 1], [4, 1], [0, 1])}>",
     {"register": [[16, 0], [32, 0], [64, 0]], "lane": [[1, 0], [2, 0]], "warp": [[4, 0], [8, 0]]}),
    (f"tensor<8xi1, {blocked([4], [4], [4], [0])}>",
     {"register": [[1], [2]], "lane": [[4], [0]], "warp": [[0], [0]]}),
    (f"tensor<1x64xbf16, {blocked([1, 1], [32, 1], [1, 8], [0, 1])}>",
     {"register": [[0, 8], [0, 16], [0, 32]], "lane": [[0, 0]] * 5, "warp": [[0, 1], [0, 2], [0, 4]]}),
    (f"%0 : tensor<32xf16, {blocked([2], [4], [1], [0])}>",
     {"register": [[1], [8], [16]], "lane": [[2], [4]], "warp": []}),
    (f"tensor<512x64xf16, {blocked([2, 2], [4, 8], [2, 2], [1, 0])}>  // one block of four",
     {"register": [[0, 1], [1, 0], [0, 32], [16, 0], [32, 0], [64, 0], [128, 0], [256, 0]],
      "lane": [[0, 2], [0, 4], [0, 8], [2, 0], [4, 0]], "warp": [[0, 16], [8, 0]]}),
    (f"tensor<2x1x1x1xf16, {blocked([1, 1, 1, 4], [2, 1, 1, 16], [1, 2, 4, 1], [3, 0, 1, 2])}>",
     {"register": [[0, 0, 0, 0]] * 2, "lane": [[0, 0, 0, 0]] * 4 + [[1, 0, 0, 0]], "warp": [[0, 0, 0, 0]] * 3}),
    (f"#blocked = {BLOCKED}\n#smem = #ttg.shared_memory\n%x = tensor<8x128xf16, #blocked>",
     {"register": [[0, 1], [0, 2], [0, 4]], "lane": [[0, 8], [0, 16], [0, 32], [0, 64], [1, 0]],
      "warp": [[2, 0], [4, 0]]}),
    (f"#blocked = {BLOCKED}\ntensor<128xf16, #ttg.slice<{{dim = 0, parent = #blocked}}>>",
     {"register": [[1], [2], [4]], "lane": [[8], [16], [32], [64], [0]], "warp": [[0], [0]]}),
    (f"tensor<8xi32, #ttg.slice<{{dim = 1, parent = {BLOCKED}}}>>",
     {"register": [], "lane": [[0], [0], [0], [0], [1]], "warp": [[2], [4]]}),
    ("tensor<4x2xf16, #ttg.linear<{register = [[0, 1]], lane = [[1, 0], [2, 0]], warp = [], block = []}>>",
     {"register": [[0, 1]], "lane": [[1, 0], [2, 0]], "warp": []}),
    # shared memory: offset -> the element there
    (f"!ttg.memdesc<1024xf16, {swizzled(1, 1, 1, [0])}, #smem>", {"offset": [[1 << i] for i in range(10)]}),
    (f"!ttg.memdesc<8x32xf16, {swizzled(4, 1, 8, [1, 0])}, #ttg.shared_memory, mutable>",
     {"offset": [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 4], [2, 8], [4, 16]]}),
    (f"!ttg.memdesc<8x8xf32, {swizzled(2, 2, 2, [0, 1])}, #smem>",
     {"offset": [[1, 0], [2, 0], [4, 0], [0, 1], [2, 2], [0, 4]]}),
    (f"#shared = {nvmma(128)}\n!ttg.memdesc<8x64xf16, #shared, #smem, mutable>",
     {"offset": [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32]]}),
    (f"!ttg.memdesc<8x32xf16, {nvmma(64)}, #smem>",
     {"offset": [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 0], [2, 8], [4, 16]]}),
    (f"!ttg.memdesc<128x16xf16, {nvmma(32)}, #smem>",
     {"offset": [[0, 1], [0, 2], [0, 4], [0, 8], [1, 0], [2, 0], [4, 8], [8, 0], [16, 0], [32, 0], [64, 0]]}),
    (f"!ttg.memdesc<16x64xf32, {nvmma(128, bits=32)}, #smem>",
     {"offset": [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [1, 4], [2, 8], [4, 16], [8, 0], [0, 32]]}),
    (f"!ttg.memdesc<64x8xf16, {nvmma(128, True)}, #smem>",
     {"offset": [[1, 0], [2, 0], [4, 0], [8, 0], [16, 0], [32, 0], [8, 1], [16, 2], [32, 4]]}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "bases"), FOUND, ids=range(len(FOUND)))
def test_a_type_gives_the_bases_of_triton(text: str, bases: dict[str, list[list[int]]]) -> None:
    found = Layout.parse(text)
    assert isinstance(found, LinearLayout)
    shape = tuple(map(int, re.findall(r"(\d+)x", text[re.search(r"(memdesc|tensor)<\d", text).start() :])))
    rank = len(next(vector for vectors in bases.values() for vector in vectors))
    flat = Layout(shape[:rank])
    assert set(bases) | {"block"} == set(found.names)
    for name, vectors in bases.items():
        assert found.bits[found.names.index(name)] == len(vectors)
        for i, vector in enumerate(vectors):
            assert found(**{name: 1 << i}) == flat(tuple(vector)), (name, i)


def test_a_128_byte_swizzle_is_the_one_of_cute() -> None:
    """Triton's shared memory and CuTe's atom have each element in the same place."""
    places = parse(f"!ttg.memdesc<64x64xf16, {nvmma(128)}, #smem>").inverse()  # flat index, rows fastest -> offset
    cute = parse("Sw<3,4,3> o smem_ptr[16b](unset) o (_64,_64):(_64,_1)")
    assert [places(i) for i in range(4096)] == [cute(i) for i in range(4096)]


@pytest.mark.parametrize(
    ("text", "atom", "operand"),
    [
        (f"tensor<16x8xf32, {mma(2, [16, 8], [1, 1])}>", mma_sync("m16n8k16", "bf16"), "C"),
        (f"tensor<16x16xbf16, {dot(mma(2, [16, 8], [1, 1]), 0, 2)}>", mma_sync("m16n8k16", "bf16"), "A"),
        (f"tensor<16x32xi8, {dot(mma(2, [16, 8], [1, 1]), 0, 4)}>", mma_sync("m16n8k32", "i8"), "A"),
        (f"tensor<64x128xf32, {mma(3, [16, 128, 16], [4, 1])}>", wgmma(128), "C"),
        (f"tensor<64x16xbf16, {dot(mma(3, [16, 128, 16], [4, 1]), 0, 2)}>", wgmma(128, a_source="rmem"), "A"),
    ],
)
def test_fragments_are_those_of_the_instructions(text: str, atom: MmaAtom, operand: str) -> None:
    """(register, lane, warp) holds what (thread, value) of the atom holds."""
    found, tv = parse(text), atom.layout(operand)
    for thread in range(tv[0].size):
        for value in range(tv[1].size):
            assert found(register=value, lane=thread % 32, warp=thread // 32) == tv(thread, value), (thread, value)


@pytest.mark.parametrize(
    ("text", "at", "expected"),
    [
        ("#ttg.blocked<{sizePerThread = [1, 4], order = [1, 0]}>", "#ttg", "threadsPerWarp = [...]"),
        (f"#a = {BLOCKED}\n#b = {BLOCKED}", "#ttg", "one layout, not #a too"),
        (f"tensor<96x64xf16, {BLOCKED}>", "96", "powers of two, not 96"),
        (f"tensor<64xf16, {BLOCKED}>", "#ttg", "a permutation of 1 dimensions"),
        ("tensor<64xf16, #blocked>", "#blocked", "the name of one that stands before it"),
        ("tensor<64x64xf16, #ttg.nvidia_mma<{versionMajor = 3}>>", "#ttg", "warpsPerCTA = [...]"),
        (f"tensor<64x64xf16, {mma(5, [16, 8], [1, 1])}>", "#ttg", "versionMajor = 2 (mma.sync) or 3 (wgmma)"),
        (f"tensor<64x64xf16, {mma(2, [16, 12], [1, 1])}>", "#ttg", "instrShape = [m, n, ...]"),
        (f"tensor<64x64xf16, {dot(mma(3, [16, 64, 16], [4, 1]), 1, 2)}>", "#ttg", "opIdx = 0, or 1 of version 2"),
        (f"tensor<64x64xf16, {dot(nvmma(128), 0, 2)}>", "#ttg", "parent = #ttg.nvidia_mma"),
        ("tensor<64x64xf16, #ttg.warped<{version = 3}>>", "#ttg", "one of blocked, nvidia_mma, dot_op, slice"),
        (
            f"tensor<8x128xf16, {BLOCKED.replace('order', 'kWidth = 2, order')}>",
            "#ttg",
            "warpsPerCTA, order, not kWidth",
        ),
        ("tensor<64x64xf16, #ttg.blocked<{order = [1, 0]}>>", "#ttg", "sizePerThread = [...]"),
        (f"tensor<8x128xf16, {BLOCKED.replace('[1, 0]', '[1, 1]')}>", "#ttg", "a permutation of 2"),
        (f"tensor<8x128xf16, {BLOCKED.replace('[1, 8]', '[1, 6]')}>", "#ttg", "powers of two for sizePerThread"),
        (f"tensor<8x128xf16, {BLOCKED.replace('order', 'CTASplitNum = [2, 1], order')}>", "#ttg", "not 2 of 1"),
        (f"tensor<8x128xf16, {BLOCKED.replace('order', 'CGALayout = [[1, 1]], order')}>", "#ttg", "one a power of two"),
        (f"!ttg.memdesc<4x64xf16, {nvmma(128)}, #smem>", "#ttg", "8 rows or more"),
        (f"!ttg.memdesc<32x4x4xf16, {nvmma_3(128)}, #smem>", "#ttg", "8 rows or more"),
        (f"!ttg.memdesc<8x16xf16, {nvmma(0, True)}, #smem>", "#ttg", "Triton up to 3.7 passes over transposed"),
        ("tensor<2x2xf16, #ttg.linear<{register = [[0, 1]], lane = [[1, 0], [3, 0]]}>>", "#ttg", "[4, 2] or more"),
        (
            f"!ttg.memdesc<3x8x64xf16, {nvmma(128).replace('}', ', CGALayout = [[0, 0]]}')}, #smem>",
            "3x8",
            "one of them is 8x64",
        ),
        (
            f"!ttg.memdesc<2x128x64xf32, {tmem('blockM = 128, blockN = 64, colStride = 1')}, #ttng.tensor_memory>",
            "2x128",
            "one buffer of tensor memory, as in 128x64",
        ),
        (f"!ttg.memdesc<8x64xf16, {nvmma(128)}, #smem, mutable, 16x64>", "16x64", "this is a part of one of 16x64"),
        (
            "#ttg.shared<{vec = 8, perPhase = 1, maxPhase = 4, order = [1, 0], hasLeadingOffset = true}>",
            "#ttg",
            "1, 8 and",
        ),
        (
            "!ttg.memdesc<4x4xf16, #ttg.shared_linear<{offset = [[0, 1], [1, 0]]}, alignment = 16>, #smem>",
            "#ttg",
            "[2, 2]",
        ),
        (tmem("blockM = 128, blockN = 64, colStride = 1, fp4Padded = true"), "#ttng", "fp4Padded = false"),
        (f"!ttg.memdesc<64x16xf16, {nvmma(128)}, #smem>", "#ttg", "whole patterns of 128 bytes"),
        (
            f"#a = {BLOCKED}\n#s = {nvmma(128)}\nttg.local_store %x, %y : tensor<8x64xf16, #a> -> "
            "!ttg.memdesc<8x64xf16, #s, #smem, mutable>",
            "!ttg.memdesc",
            "one layout in a line, not tensor<",
        ),
        (
            f"#a = {BLOCKED}\n#s = {nvmma(128)}\n%t = ttg.async_copy %p, %b : tensor<8x64x!tt.ptr<f16>, #a> "
            "-> <8x64xf16, #s, #smem, mutable>",
            "<8x64xf16, #s",
            "one layout in a line",
        ),
        (f"#a = {BLOCKED}\ntt.func public @f(%x: i32) {{", "tt.func", "the type of a tensor behind the lines"),
        (f"!ttg.memdesc<64x64xf16, {nvmma(128)}, #smem> junk", ", #smem", "the end of the type"),
        (f"tensor<{'2x' * 17}f16, {BLOCKED}>", "2x", "at most 16 dimensions"),
        ("#ttg.padded_shared<[24:+8] {order = [1, 0], shape = [128, 32]}>", "padded_shared", "a power of two and a"),
        ("#ttg.padded_shared<[32:8] {order = [1, 0], shape = [128, 32]}>", "32:8", "[interval:+padding, ...]"),
        ("#ttg.padded_shared<[32:+8] {order = [1, 0]}>", "padded_shared", "order = [...] and shape = [...]"),
        (
            "#ttg.padded_shared<[4:+1] {offset = [[0, 1], [1, 1]], block = []}>",
            "padded_shared",
            "bases of one bit each",
        ),
        (
            "#ttg.padded_shared<[4:+1] {offset = [[0, 1], [0, 4]], block = []}>",
            "padded_shared",
            "all bits of dimension 1",
        ),
        ("PaddedSharedLayout([[4, 1]], [[0, 1], [0, 2]], [], [2, 4])", "PaddedShared", "the bases' shape [1, 4]"),
        (
            "!ttg.memdesc<64x32xf16, #ttg.padded_shared<[32:+8] {order = [1, 0], shape = [128, 32]}>, #smem>",
            "padded_shared",
            "the bases' shape [128, 32], not [64, 32]",
        ),
        (tmem("blockM = 32, blockN = 64, colStride = 1"), "#ttng", "blockM = 64 or 128"),
        ("TensorMemoryLayout(block=[128, 64], col_stride=1, two_ctas=True)", "Tensor", "twoCTAs = false"),
        ("shared_memory_descriptor<fp16, [8, 64], NVMMASharedLayout(128, 16, 2), [16, 64]>", "16, 64]", "one of 16x64"),
        (tmem("blockM = 128, blockN = 64, colStride = 1, twoCTAs = true"), "#ttng", "twoCTAs = false"),
        (tmem("blockM = 128, blockN = 64"), "#ttng", "colStride = an integer"),
    ],
)
def test_what_cannot_be_read_says_where_and_what_was_expected(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError, match="expected") as error:
        parse(text)
    assert expected in str(error.value)
    assert error.value.position in (text.index(at), text.index(at) + 1)


@pytest.mark.parametrize(
    ("fields", "halves"),
    [
        ("CGALayout = [[1, 0]]", "(64, 0)"),
        ("CGALayout = [[0, 1], [0, 0], [1, 0]]", "(0, 32), (0, 0), (64, 0)"),
        ("CTAsPerCGA = [2, 4], CTASplitNum = [2, 2], CTAOrder = [1, 0]", "(0, 32), (0, 0), (64, 0)"),
        ("CTAsPerCGA = [2, 2], CTASplitNum = [2, 2], CTAOrder = [0, 1]", "(64, 0), (0, 32)"),
    ],
)
def test_blocks_of_a_cluster_hold_parts_of_the_tensor(fields: str, halves: str) -> None:
    """Each block has the layout of one block over its part of 128 x 64; those beyond the split repeat a part."""
    parts = [tuple(map(int, pair.split(", "))) for pair in halves[1:-1].split("), (")]
    rows, columns = 128 >> sum(a > 0 for a, _ in parts), 64 >> sum(b > 0 for _, b in parts)
    kinds = ("tensor", blocked([1, 4], [4, 8], [2, 2], [1, 0])), ("tensor", mma(2, [16, 8], [2, 2])), (
        "!ttg.memdesc", swizzled(4, 2, 4, [1, 0])), ("!ttg.memdesc", nvmma(64))  # fmt: skip
    for kind, one in kinds:
        end = "" if kind == "tensor" else ", #ttg.shared_memory"
        found = parse(f"{kind}<128x64xf16, {one.replace('}', f', {fields}' + '}')}{end}>")
        alone = parse(f"{kind}<{rows}x{columns}xf16, {one}{end}>")
        assert found.bits == (*alone.bits[:-1], len(parts))
        for i, (row, column) in enumerate(parts):
            assert found(block=1 << i) == row + 128 * column
        for name, bits in zip(alone.names, alone.bits, strict=True):
            for bit in range(bits):
                place = alone(**{name: 1 << bit})
                assert found(**{name: 1 << bit}) == place % rows + 128 * (place // rows)


@pytest.mark.parametrize(
    ("count", "one", "shape", "text"),
    [
        (3, nvmma(128), (16, 64), "S<3,3,3> o 0 o (3,16,64):(1024,64,1)"),
        (3, nvmma(128, True), (128, 8), "S<3,3,3> o 0 o (3,(64,2),8):(1024,(1,512),64)"),
        (6, swizzled(8, 2, 4, [1, 0]), (8, 64), "S<2,3,4> o 0 o (6,8,64):(512,64,1)"),
        (5, nvmma(0), (8, 8), "(5,8,8):(64,8,1)"),
        (3, swizzled(1, 1, 1, [0]), (4,), "(3,4):(4,1)"),
    ],
)
def test_buffers_that_are_no_power_of_two_are_a_layout(count: int, one: str, shape: tuple[int, ...], text: str) -> None:
    """(buffer, coordinates) -> element: each buffer has the places of the layout of one."""
    said = "x".join(map(str, shape))
    found, alone = (
        parse(f"!ttg.memdesc<{count}x{said}xf16, {one}, #smem>"),
        parse(f"!ttg.memdesc<{said}xf16, {one}, #smem>"),
    )
    assert str(found) == text
    for coord in itertools.product(range(count), *map(range, shape)):
        buffer, offset = divmod(found(*coord), alone.size)
        assert buffer == coord[0] and alone(offset=offset) == Layout(shape)(coord[1:])


def test_padding_goes_on_through_buffers() -> None:
    one = "#ttg.padded_shared<[128:+8] {order = [1, 0], shape = [128, 32]}>"
    for count in (2, 3):
        found = parse(f"#p = {one}\n%x = ttg.local_alloc : () -> !ttg.memdesc<{count}x128x32xf16, #p, #smem, mutable>")
        assert str(found) == f"({count},(4,32),32):(4352,(32,136),1)"
    with pytest.raises(ParseError, match="intervals of at most 4096 elements"):
        parse(f"!ttg.memdesc<2x128x32xf16, {one.replace('128:', '8192:')}, #smem>")


def test_ones_for_tiles_per_warp_are_the_default() -> None:
    plain = "AMDMFMALayout(version=3, instr_shape=[32, 32, 8], transposed=True, warps_per_cta=[2, 2])"
    assert parse(plain.replace("])", "], tiles_per_warp=[1, 1, 1])")) == parse(plain)
    with pytest.raises(ParseError, match="2 integers, one a dimension, for tilesPerWarp"):
        parse(plain.replace("])", "], tiles_per_warp=[1, 2, 1])"))


def test_an_operand_is_not_split_along_k() -> None:
    parent = mma(2, [16, 8], [2, 2]).replace("}", ", CGALayout = [[1, 0], [0, 1]]}")
    found = parse(f"tensor<64x32xf16, {dot(parent, 0, 2)}>")
    assert [found(block=1), found(block=2)] == [32, 0]


def test_a_batch_comes_last() -> None:
    """mma.sync over 8 matrices of 32 x 16: the third warp dimension and further registers run over the batch."""
    fields = "versionMajor = 2, versionMinor = 0, warpsPerCTA = [2, 2, 1], instrShape = [1, 16, 8]"
    found = parse(f"tensor<8x32x16xf32, #ttg.nvidia_mma<{{{fields}}}>>")
    one = parse(f"tensor<32x16xf32, {mma(2, [16, 8], [2, 1])}>")
    for register in range(1 << found.bits[0]):
        for lane, warp in itertools.product(range(32), range(4)):
            place = one(register=register % 8, lane=lane, warp=warp % 2)
            batch = warp // 2 + 2 * (register // 8)
            assert found(register=register, lane=lane, warp=warp) == batch + 8 * (place % 32) + 8 * 32 * (place // 32)


def test_boxes_of_further_dimensions_follow() -> None:
    text = nvmma(128).replace("}", ", rank = 3}")
    found = parse(f"!ttg.memdesc<2x16x128xf16, {text}, #ttg.shared_memory>")
    for i, j, k in itertools.product(range(2), range(16), range(128)):
        row = 16 * i + j  # of a box of 32 rows with 64 columns
        offset = 64 * row + (k % 64 ^ 8 * (row % 8)) + 2048 * (k // 64)
        assert found(offset=offset) == i + 2 * (j + 16 * k)


@pytest.mark.parametrize("one", [nvmma(128), swizzled(8, 1, 8, [1, 0])])
def test_buffers_follow_each_other(one: str) -> None:
    """A dimension in front of the layout's own counts buffers."""
    found = parse(f"!ttg.memdesc<4x16x128xf16, {one}, #ttg.shared_memory, mutable>")
    alone = parse(f"!ttg.memdesc<16x128xf16, {one}, #ttg.shared_memory, mutable, 4x16x128>")
    for buffer, offset in itertools.product(range(4), range(2048)):
        assert found(offset=offset + 2048 * buffer) == buffer + 4 * alone(offset=offset)
    bare = tmem("blockM = 128, blockN = 64, colStride = 1")
    assert parse(f"!ttg.memdesc<1x128x64xf32, {bare}, #ttng.tensor_memory>") == parse(bare)


def test_a_printed_layout_lists_dimensions_in_its_own_order() -> None:
    """The tensor's first dimension, dim0, runs fastest wherever it stands in the list."""
    lines = " - register=1 -> (0, 1)\n - lane=1 -> (1, 0)\n   lane=2 -> (2, 0)\nwhere out dims are: "
    for sizes in ("[dim1 (size 4), dim0 (size 2)]", "[dim1, dim0]"):
        found = parse(lines + sizes)
        assert (found(register=1), found(lane=1), found(lane=2)) == (1, 2, 4)
    listed = '[("register", [[0, 1]]), ("lane", [[1, 0], [2, 0]])]'
    assert parse(f'LinearLayout.from_bases({listed}, ["dim1", "dim0"])').columns == (1, 2, 4)
    assert parse(lines + "[dim0 (size 4), dim1 (size 2)]").columns == (4, 1, 2)


@pytest.mark.parametrize(
    ("text", "same"),
    [
        (f"!tt.tensordesc<tensor<64x64xf16, {nvmma(128)}>>", f"!ttg.memdesc<64x64xf16, {nvmma(128)}, #smem>"),
        (f"!tt.tensordesc<64x64xf16, {nvmma(128)}>", f"!ttg.memdesc<64x64xf16, {nvmma(128)}, #smem>"),
        (f"#a = {BLOCKED} loc(#loc)", BLOCKED),
        (f"tensor<8x128x!tt.ptr<f16, 1>, {BLOCKED}>", f"tensor<8x128xf16, {BLOCKED}>"),
        ("#ttg.shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [0, 1], hasLeadingOffset = true}>",
         nvmma(64, True)),
        ("#s = #ttg.padded_shared<[4:+1] {order = [1, 0], shape = [2, 4]}>\n!ttg.memdesc<2x4xf16, #s, #smem, mutable>",
         "#ttg.padded_shared<[4:+1] {order = [1, 0], shape = [2, 4]}>"),
        ("!ttg.memdesc<2x2xi8, #ttg.shared_linear<{offset = [[0, 1], [1, 0]]}, alignment = 16>, #ttg.shared_memory>",
         "#ttg.linear<{offset = [[0, 1], [1, 0]]}>"),
        ("SliceLayout(1, DistributedLinearLayout([[0, 1]], [[1, 0], [2, 0]], [], [], [4, 2]))",
         '{"register": [], "lane": [[1], [2]], "warp": [], "block": []}'),
        ('LinearLayout({{S("register"), {{0, 1}}}, {S("lane"), {{1, 0}, {2, 0}}}}, {S("dim0"), S("dim1")})',
         '{"register": [[0, 1]], "lane": [[1, 0], [2, 0]]}'),
        ('auto ll = LinearLayout({{S("lane"), {{0, 1}, /*gap*/ {0, 2}}}}, {{S("dim1"), 1}, {S("dim0"), 4}}, false);',
         '{"lane": [[1, 0], [2, 0]]}'),
        ('LinearLayout.from_bases([("lane", [[0, 1]])], ["dim0", "dim1"], [1, 2], require_surjective=False)',
         '{"lane": [[0, 1]]}'),
        ("<[8, 128], fp16, BlockedLayout(size_per_thread=[1, 8], threads_per_warp=[2, 16], warps_per_cta=[4, 1], "
         "order=[1, 0], cga_layout=[])>", f"tensor<8x128xf16, {BLOCKED}>"),
        ("shared_memory_descriptor<fp16, [16, 64], NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, "
         "rank=2, transposed=False, fp4_padded=False, cga_layout=[]), [2, 16, 64]>",
         f"!ttg.memdesc<16x64xf16, {nvmma(128)}, #smem>"),
        ("tensor_memory_descriptor<fp32, [128, 64], TensorMemoryLayout(block=[128, 64], col_stride=1, cga_layout=[], "
         "two_ctas=False, fp4_padded=False)>", tmem("blockM = 128, blockN = 64, colStride = 1")),
        (f"// CHECK-DAG: #blocked = {BLOCKED}", BLOCKED),
        ("LAYOUT: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])", BLOCKED),
        ("constexpr[BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])]", BLOCKED),
        (f"#a = {BLOCKED}\n%5 = tt.addptr %4, %3 : tensor<8x128x!tt.ptr<f16>, #a>, tensor<8x128xi32, #a> loc(#loc5)",
         f"tensor<8x128xf16, {BLOCKED}>"),
        (f"#a = {BLOCKED}\n%6 = arith.extf %5 : tensor<8x128xf16, #a> to tensor<8x128xf32, #a>",
         f"tensor<8x128xf32, {BLOCKED}>"),
        (f"#a = {BLOCKED}\n}}) : (tensor<8x128xf16, #a>) -> tensor<8xf16, #ttg.slice<{{dim = 1, parent = #a}}>>",
         f"tensor<8xf16, #ttg.slice<{{dim = 1, parent = {BLOCKED}}}>>"),
        (f"#smem = #ttg.shared_memory\n#shared = {nvmma(128)}\n%b = ttg.memdesc_index %a[%c0_i32] : "
         "!ttg.memdesc<4x16x64xf16, #shared, #smem, mutable> -> !ttg.memdesc<16x64xf16, #shared, #smem, mutable>",
         f"!ttg.memdesc<16x64xf16, {nvmma(128)}, #smem>"),
        (f"#a = {BLOCKED}\n#l = #ttg.linear<{{register = [[0, 1]], lane = [[1, 0]], warp = [], block = []}}>\n"
         "%7 = ttg.convert_layout %6 : tensor<8x128xf16, #a> -> tensor<2x2xf16, #l>",
         "#ttg.linear<{register = [[0, 1]], lane = [[1, 0]], warp = [], block = []}>"),
        ("_TensorMemoryLinearLayout(rows=[[1, 0], [2, 0]], cols=[[0, 1]], shape=[4, 2])",
         '{"row": [[1, 0], [2, 0]], "col": [[0, 1]]}'),
    ],
)  # fmt: skip
def test_other_spellings_are_the_same_layouts(text: str, same: str) -> None:
    assert parse(text) == parse(same)


def test_padded_fp4_has_8_bytes_of_16() -> None:
    text = "#ttg.nvmma_shared<{swizzlingByteWidth = 128, transposed = false, elementBitWidth = 8, fp4Padded = true}>"
    found = parse(f"!ttg.memdesc<32x128xi8, {text}, #ttg.shared_memory>")
    assert parse(text).bits == (10, 0)
    for row, column in itertools.product(range(32), range(128)):
        byte = 16 * (column % 64 // 8) + column % 8  # of a line of 128 bytes
        offset = 128 * row + (byte ^ 16 * (row % 8)) + 4096 * (column // 64)
        assert found(offset=offset) == found(offset=offset + 8) == row + 32 * column


def test_a_linear_layout_of_a_larger_tensor_repeats_in_registers() -> None:
    text = "#ttg.linear<{register = [[1, 0]], lane = [[0, 1], [2, 0]], warp = [], block = []}>"
    found = parse(f"tensor<16x8xf16, {text}>")
    vectors = [(1, 0), (4, 0), (8, 0), (0, 2), (0, 4)]  # rows first, as its registers do
    assert [found(register=1 << i) for i in range(5)] == [row + 16 * column for row, column in vectors]
    assert found.is_bijective().ok


CLUSTERS = "order=[1, 0], ctas_per_cga=[1, 1], cta_split_num=[1, 1], cta_order=[1, 0]"


@pytest.mark.parametrize(
    ("alone", "tensor"),
    [
        (f"#blocked = {BLOCKED}", f"tensor<8x128xf16, {BLOCKED}>"),
        (f"%4 = ttg.convert_layout %3 : tensor<64x8xf16, {mma(2, [16, 8], [4, 1])}> -> tensor<8x128xf16, {BLOCKED}>",
         f"tensor<8x128xf16, {BLOCKED}>"),
        (f"!tt.memdesc<8x64xf16, {swizzled(8, 1, 8, [1, 0])}, #smem>",
         f"!ttg.memdesc<8x64xf16, {swizzled(8, 1, 8, [1, 0])}, #smem>"),
        ("gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])", f"tensor<8x128xf16, {BLOCKED}>"),
        (f"BlockedLayout(size_per_thread=[1, 8], threads_per_warp=[2, 16], warps_per_cta=[4, 1], {CLUSTERS})",
         f"tensor<8x128xf16, {BLOCKED}>"),
        (mma(2, [16, 8], [4, 1]), f"tensor<64x8xf32, {mma(2, [16, 8], [4, 1])}>"),
        (mma(3, [16, 128, 16], [4, 1]), f"tensor<64x128xf32, {mma(3, [16, 128, 16], [4, 1])}>"),
        ("NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 128, 16])",
         f"tensor<64x128xf32, {mma(3, [16, 128, 16], [4, 1])}>"),
        (f"#mma = {mma(2, [16, 8], [4, 1])}\n#dot = {dot('#mma', 0, 2)}",
         f"tensor<64x16xf16, {dot(mma(2, [16, 8], [4, 1]), 0, 2)}>"),
        (f"#ttg.slice<{{dim = 1, parent = {BLOCKED}}}>", f"tensor<8xf16, #ttg.slice<{{dim = 1, parent = {BLOCKED}}}>>"),
        ("SliceLayout(1, gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0]))",
         f"tensor<8xf16, #ttg.slice<{{dim = 1, parent = {BLOCKED}}}>>"),
        (swizzled(8, 1, 8, [1, 0]), f"!ttg.memdesc<8x64xf16, {swizzled(8, 1, 8, [1, 0])}, #smem>"),
        (swizzled(8, 2, 4, [0, 1]), f"!ttg.memdesc<32x8xf16, {swizzled(8, 2, 4, [0, 1])}, #smem>"),
        ("#ttg.shared<{vec = 8, perPhase = 2, maxPhase = 4, order = [0, 1], hasLeadingOffset = false}>",
         f"!ttg.memdesc<32x8xf16, {swizzled(8, 2, 4, [0, 1])}, #smem>"),
        (nvmma(128), f"!ttg.memdesc<8x64xf16, {nvmma(128)}, #smem>"),
        (nvmma(64, True), f"!ttg.memdesc<32x8xf16, {nvmma(64, True)}, #smem>"),
        ("NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2, transposed=False, fp4_padded=False)",
         f"!ttg.memdesc<8x64xf16, {nvmma(128)}, #smem>"),
        (f"#tlx.no_verify_layout<#tlx.user_layout<{BLOCKED}>>", f"tensor<8x128xf16, {BLOCKED}>"),
        (f"#a = {BLOCKED}\n#b = #tlx.user_layout<#a>\n#c = #b\n#ttg.slice<{{dim = 1, parent = #c}}>",
         f"tensor<8xf16, #ttg.slice<{{dim = 1, parent = {BLOCKED}}}>>"),
        (f"#a = {BLOCKED}\n#b = #tlx.user_layout<#a>\ntensor<8x128xf16, #b>", f"tensor<8x128xf16, {BLOCKED}>"),
        (f"#a = {BLOCKED}\n#a", f"tensor<8x128xf16, {BLOCKED}>"),
        ("#ttg.generic_linear<{register = [[1]], lane = [[2], [5]], warp = [[0]], block = []}>",
         "#ttg.linear<{register = [[1]], lane = [[2], [5]], warp = [[0]], block = []}>"),
    ],
)  # fmt: skip
def test_an_attribute_alone_is_over_its_own_tile(alone: str, tensor: str) -> None:
    assert Layout.parse(alone) == parse(tensor)


def test_damaged_types_are_read_or_refused() -> None:
    cut = [text[:at] + end for text, _ in FOUND for at in range(len(text)) for end in (text[at + 1 :], "")]
    read, refused = outcomes(cut)
    assert read > 500 and refused > 5000, (read, refused)


@pytest.mark.parametrize(
    ("pairs", "order", "shape"),
    [([(128, 4)], [1, 0], [32, 128]), ([(64, 8), (256, 16)], [1, 0], [16, 128]),
     ([(32, 4), (512, 4)], [0, 1], [64, 32]), ([(1, 1)], [1, 0], [4, 8]),
     ([(4096, 8)], [1, 0], [8, 8]), ([(16, 2)], [2, 0, 1], [2, 4, 8])],
)  # fmt: skip
def test_padding_moves_each_element_behind_its_intervals(
    pairs: list[tuple[int, int]], order: list[int], shape: list[int]
) -> None:
    said = ", ".join(f"{interval}:+{padding}" for interval, padding in pairs)
    found = parse(f"#shared = #ttg.padded_shared<[{said}] {{order = {order}, shape = {shape}}}>")
    assert isinstance(found, Layout) and [int(mode.size) for mode in found] == shape
    for place in itertools.product(*[range(extent) for extent in shape]):
        offset, step = 0, 1
        for dim in order:
            offset, step = offset + place[dim] * step, step * shape[dim]
        assert found(*place) == offset + sum(offset // interval * padding for interval, padding in pairs)
    listed = [list(pair) for pair in pairs]
    assert parse(f"ttgl.PaddedSharedLayout.with_identity_for({listed}, {shape}, {order})") == found


def test_padded_bases_permute_bits() -> None:
    found = parse("#ttg.padded_shared<[4:+1] {offset = [[1, 0], [0, 2], [0, 1], [2, 0]], block = []}>")
    bits = {(1, 0): 1, (0, 2): 2, (0, 1): 4 + 1, (2, 0): 8 + 2}
    for i, j in itertools.product(range(4), range(4)):
        assert found(i, j) == bits[1, 0] * (i & 1) + bits[2, 0] * (i >> 1) + bits[0, 1] * (j & 1) + bits[0, 2] * (
            j >> 1
        )


@pytest.mark.parametrize("which", [0, 1])
def test_an_operand_without_matrix_instructions_has_all_of_k_in_each_thread(which: int) -> None:
    parent = blocked([2, 4], [8, 4], [2, 2], [1, 0])
    shape = (64, 16) if which == 0 else (16, 64)
    found = parse(f"tensor<{shape[0]}x{shape[1]}xf32, {dot(parent, which, 1)}>")
    assert isinstance(found, LinearLayout)
    whole = parse(f"tensor<64x64xf32, {parent}>")
    free = which  # the dimension that is not K: rows of A, columns of B
    for lane, warp in itertools.product(range(32), range(4)):
        own = {found(register=r, lane=lane, warp=warp) for r in range(1 << found.bits[0])}
        places = {(flat % shape[0], flat // shape[0]) for flat in own}
        lines = {place[free] for place in places}
        assert places == {(i, k) if which == 0 else (k, i) for i in lines for k in range(16)}
        held = {whole(register=r, lane=lane, warp=warp) for r in range(1 << whole.bits[0])}
        assert lines == {(flat % 64, flat // 64)[free] for flat in held}  # those of the thread's own results


def test_tensor_memory_has_rows_in_lanes_and_sixteen_of_each_warp_where_there_are_64() -> None:
    full = parse(
        "!ttg.memdesc<256x64xf32, " + tmem("blockM = 128, blockN = 32, colStride = 1") + ", #ttng.tensor_memory>"
    )
    half = parse(tmem("blockM = 64, blockN = 32, colStride = 1"))
    wide = parse(
        "!ttg.memdesc<64x64xf32, " + tmem("blockM = 64, blockN = 32, colStride = 1") + ", #ttng.tensor_memory>"
    )
    apart = parse(tmem("blockM = 128, blockN = 32, colStride = 2"))
    for row, col in itertools.product(range(128), range(32)):
        assert full(row=row, col=col) == row + 256 * col
        assert full(row=row, col=col + 32) == row + 128 + 256 * col  # further rows first
        assert full(row=row, col=col + 64) == row + 256 * (col + 32)
        own = row % 16 + 16 * (row // 32)
        assert half(row=row, col=col) == own + 64 * col
        assert wide(row=row, col=col) == own + 64 * (col + 32 * (row // 16 % 2))
        assert apart(row=row, col=2 * col) == apart(row=row, col=2 * col + 1) == row + 128 * col
    assert parse("TensorMemoryLayout(block=(128, 32), col_stride=2)") == apart
    assert parse(tmem("blockM = 128, blockN = 32, unpacked = true")) == parse(
        tmem("blockM = 128, blockN = 32, colStride = 1")
    )


def test_scales_in_tensor_memory_are_in_all_four_warps() -> None:
    found = parse("!ttg.memdesc<128x8xi8, #ttng.tensor_memory_scales_encoding<>, #ttng.tensor_memory>")
    for row, col in itertools.product(range(128), range(32)):
        j, i, more, further = col % 4, col // 4 % 2, col // 8 % 2, col // 16
        assert found(row=row, col=col) == row % 32 + 32 * i + 64 * more + 128 * (j + 4 * further)


CLUSTERED = [  # (text, bases): combined over the blocks of a cluster as Triton combines them
    (
        "!ttg.memdesc<256x8xf32, #ttng.tensor_memory_encoding<blockM = 128, blockN = 8, colStride = 1, "
        "CGALayout = [[1, 0]], twoCTAs = true>, #ttng.tensor_memory>",
        {"row": [[1 << i, 0] for i in range(7)], "col": [[0, 1], [0, 2], [0, 4]], "block": [[128, 0]]},
    ),
    (
        "!ttg.memdesc<128x8xf32, #ttng.tensor_memory_encoding<blockM = 64, blockN = 8, colStride = 1, "
        "CGALayout = [[1, 0]], twoCTAs = true>, #ttng.tensor_memory>",
        {"row": [*[[1 << i, 0] for i in range(6)], [0, 4]], "col": [[0, 1], [0, 2]], "block": [[64, 0]]},
    ),
    (
        "!ttg.memdesc<128x16xf32, #ttng.tensor_memory_encoding<blockM = 128, blockN = 8, colStride = 1, "
        "CGALayout = [[0, 1]]>, #ttng.tensor_memory>",
        {"row": [[1 << i, 0] for i in range(7)], "col": [[0, 1], [0, 2], [0, 4]], "block": [[0, 8]]},
    ),
    (
        "tensor<64x32xf32, #ttg.amd_mfma<{version = 3, warpsPerCTA = [1, 1], instrShape = [32, 32, 8], "
        "isTransposed = false, CGALayout = [[1, 0]]}>>",
        {"register": [[1, 0], [2, 0], [8, 0], [16, 0]],
         "lane": [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [4, 0]], "warp": [], "block": [[32, 0]]},
    ),
]  # fmt: skip


@pytest.mark.parametrize(("text", "bases"), CLUSTERED)
def test_tensor_memory_and_mfma_over_a_cluster(text: str, bases: dict[str, list[list[int]]]) -> None:
    test_a_type_gives_the_bases_of_triton(text, bases)


PRINTED = [  # (type, input -> bases): to_linear_layout of Triton 3.9; 3.7 prints the same
    (f"!ttg.memdesc<16x4x8xf16, {nvmma_3(32)}, #smem>", {
        "offset": [[1, 0, 0], [2, 0, 0], [4, 0, 0], [8, 0, 0], [0, 0, 4], [0, 1, 0], [8, 2, 0], [0, 0, 1], [0, 0, 2]]}),
    (f"!ttg.memdesc<16x8x8xf16, {nvmma_3(32)}, #smem>", {
        "offset": [[1, 0, 0], [2, 0, 0], [4, 0, 0], [8, 0, 0], [0, 1, 0], [0, 2, 0], [8, 4, 0],
                   [0, 0, 1], [0, 0, 2], [0, 0, 4]]}),
    (f"!ttg.memdesc<512x512xf16, {nvmma(0)}, #smem>", {  # without a swizzle boxes along the fastest dimension first
        "offset": [*[[0, 1 << i] for i in range(8)], *[[1 << i, 0] for i in range(8)], [0, 256], [256, 0]]}),
    (f"!ttg.memdesc<512x512xf16, {nvmma(128)}, #smem>", {
        "offset": [*[[0, 1 << i] for i in range(6)], [1, 8], [2, 16], [4, 32], *[[8 << i, 0] for i in range(6)],
                   [0, 64], [0, 128], [0, 256]]}),
    ("tensor<32x64xf16, #ttg.dot_op<{opIdx = 0, parent = #ttg.amd_wmma<{version = 1, isTranspose = true, "
     "ctaLayout = {register = [[1, 0]], warp = [[0, 1]]}}>, kWidth = 8}>>", {
        "register": [[0, 1], [0, 2], [0, 4], [16, 0], [0, 8], [0, 16], [0, 32]],
        "lane": [[1, 0], [2, 0], [4, 0], [8, 0], [0, 0]], "warp": [[0, 0]]}),
]  # fmt: skip


@pytest.mark.parametrize(("text", "bases"), PRINTED)
def test_a_type_gives_the_bases_that_triton_prints(text: str, bases: dict[str, list[list[int]]]) -> None:
    test_a_type_gives_the_bases_of_triton(text, bases)


def test_registers_of_gluon_without_warps_are_read() -> None:
    called = "AMDWMMALayout(version=2, transposed=False, warp_bases=[], reg_bases=[[1, 0]], instr_shape=[16, 16, 16])"
    attribute = "#ttg.amd_wmma<{version = 2, isTranspose = false, ctaLayout = {register = [[1, 0]], warp = []}}>"
    assert parse(f"<[64, 16], fp16, {called}>") == parse(f"tensor<64x16xf16, {attribute}>")


def test_a_padded_buffer_of_gluon_is_its_attribute() -> None:
    called = "PaddedSharedLayout([[64, 8]], [[0, 1], [1, 0], [0, 2], [0, 4], [2, 0]], cga_layout=[], shape=[4, 8])"
    alone = parse(called)
    assert parse(f"shared_memory_descriptor<fp16, [4, 8], {called}, [4, 8]>") == alone
    assert parse("PaddedSharedLayout.with_identity_for([[8, 2]], [4, 8], [1, 0], [])") == parse("(4,8):(10,1)")


@pytest.mark.parametrize(("text", "expected"), [
    ("!ttg.memdesc<4x8xf16, {}, #smem, mutable, 8x8>", "this is a part of one of 8x8"),
    ("!ttg.memdesc<4x8xf16, {}, #smem> junk", "the end of the type"),
    ("#p = {}\n!ttg.memdesc<4x8xf16, #p, #smem, mutable, 8x8>", "this is a part of one of 8x8"),
    ("#p = {}\n!ttg.memdesc<4x8xf16, #p, #smem> junk", "the end of the type"),
])  # fmt: skip
def test_what_stands_behind_a_padded_layout_is_read(text: str, expected: str) -> None:
    with pytest.raises(ParseError, match=expected):
        parse(text.format("#ttg.padded_shared<[8:+2] {order = [1, 0], shape = [4, 8]}>"))


@pytest.mark.parametrize(("text", "expected"), [
    ("tensor<16x16xf16, #ttg.amd_wmma<{version = 1, ctaLayout = {warp = []}, instrShape = [16, 16, 32]}>>",
     "one of [[16, 16, 16]] of version 1"),
    ("tensor<16x64xf16, #ttg.dot_op<{opIdx = 0, parent = #ttg.amd_wmma<{version = 2, ctaLayout = {warp = []}}>, "
     "kWidth = 2}>>", "kWidth = one of (4, 8, 16) of version 2"),
])  # fmt: skip
def test_an_instruction_that_amd_does_not_have_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ParseError, match=re.escape(expected)):
        parse(text)


def test_a_field_that_linear_does_not_have_is_refused() -> None:
    """An input that is passed over would leave a layout of another tensor."""
    for text, name in (
        ("#ttg.linear<{register = [[0, 1]], lane = [[1, 0]], rank = 2}>", "rank"),
        ("tensor<2x2xf16, #ttg.linear<{foo = 3, register = [[0, 1]], lane = [[1, 0]]}>>", "foo"),
        ("#ttg.shared_linear<{offset = [[0, 1]], lane = [[1, 0]]}, alignment = 16>", "lane"),
        ("DistributedLinearLayout([[0, 1]], [[1, 0]], [], [], shape=[2, 2], foo=[[1, 1]])", "foo"),
        ('LinearLayout({"register": [[0, 1]], "lane": [[1, 0]]}, {"dim0": 2, "dim1": 2}, foo=3)', "foo"),
    ):
        with pytest.raises(ParseError, match=f"not {name}, in"):
            parse(text)
    assert parse("SharedLinearLayout([[0, 1], [1, 0]], alignment=16)").names == ("offset",)


@pytest.mark.parametrize(("text", "expected"), [
    ("#ttg.padded_shared<[128:+4] {order = [1, 0], shape = [32, 128], foo = 3}>", "not foo, in padded_shared"),
    ("PaddedSharedLayout.with_identity_for([[128, 4]], [32, 128], [1, 0], foo=[1])", "not foo, in padded_shared"),
    ("#ttg.padded_shared<[128:+4, 128:+8] {order = [1, 0], shape = [32, 128]}>", "each interval once"),
    ("BlockedLayout([1, 4], [8, 4], [4, 1], [1, 0], [[1, 0]], 7)", "CGALayout alone, without CTASplitNum"),
    ("SM80_16x8x16_F32BF16BF16F32_TN<3>", "SM80_16x8x16_F32BF16BF16F32_TN without arguments"),
    ("MMA_Atom<SM80_16x8x16_F32BF16BF16F32_TN, half_t>", "without further arguments"),
    ("SM75_U32x4_LDSM_N<uint128_t>", "SM75_U32x4_LDSM_N without arguments"),
    ("Copy_Atom<SM75_U32x4_LDSM_N, half_t, 3>", "one type of elements"),
    ("torch.Size([4, 8]), (8, 1), -3", "expected the end of the text"),
])  # fmt: skip
def test_an_argument_that_would_be_passed_over_is_refused(text: str, expected: str) -> None:
    with pytest.raises(ParseError, match=re.escape(expected)):
        parse(text)
