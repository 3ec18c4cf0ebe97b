"""Texts that state a result, of CUTLASS's and Triton's own tests and logs: each is that function, or it is refused."""

from __future__ import annotations

import itertools
import math
import re

import pytest

from layoutgemm import Layout, parse
from layoutgemm.errors import ParseError
from layoutgemm.layouts.linear import LinearLayout

# (a text, the shape and stride that it states)
STATED: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    ("[CuTe Info] tCrA tensor<ptr<f16, rmem, align<16>> o ((2,2,2),4,2):((1,2,4),8,32)>",
     (2, 2, 2, 4, 2), (1, 2, 4, 8, 32)),
    ("[CuTe Info] tBgB tensor<ptr<f32, gmem> o ((1,1),4,1,640):((0,0),163840,0,8)>", (4, 640), (163840, 8)),
    ("[CUTLASS] gA tensor<ptr<f16, gmem, align<16>> o (128,32,32):(1024,1,32)>", (128, 32, 32), (1024, 1, 32)),
    ("[DSL INFO] tAsA: tensor<ptr<f32, smem, align<16>> o ((1,4),1,1,3):((0,1),0,0,1056)>", (4, 3), (1, 1056)),
    ("(4,8,2):(2,8,1) o (2,2,2):(1,8,2)  =>  (2,2,2):(2,16,4)", (2, 2, 2), (2, 16, 4)),
    ("(4,8,2):(2,8,1) o (4,2,2):(2,8,1)  =>  (4,2,2):(4,16,2)", (4, 2, 2), (4, 16, 2)),
    ("(8,8):(8,1) o ((2,2,2),(2,2,2)):((1,16,4),(8,2,32))  =>  ((2,2,2),(2,2,2)):((8,2,32),(1,16,4))",
     (2, 2, 2, 2, 2, 2), (8, 2, 32, 1, 16, 4)),
    ("(4):(0) o (4):(1)  =>  (4):(0)", (4,), (0,)),
    ("(4,3):(3,1) o (6):(2)  =>  ((2,3)):((6,1))", (2, 3), (6, 1)),
    ("(4,3):(3,1) o (8):(1)  =>  ((4,2)):((3,1))", (4, 2), (3, 1)),
    ("complement((2,4):(1,6), 24) is 3:2", (3,), (2,)),
    ("complement((2,4,8):(8,1,64), 460) => (2,4):(4,16)", (2, 4), (4, 16)),
    ("(2,1,6):(1,6,2) ==> 12:1", (12,), (1,)),
    ("raked_product( 128:1, (4,4):(1,4) ) = ((4,128),4):((128,1),512)", (4, 128, 4), (128, 1, 512)),
    ('-> !cute.layout<"((3,2),(3,3)):((1,9),(3,18))"> {', (3, 2, 3, 3), (1, 9, 3, 18)),
    ('func.func @fold_flat_product_layout() -> !cute.layout<"(3,4,2,5):(4,1,12,24)"> {', (3, 4, 2, 5), (4, 1, 12, 24)),
    ('%r = cute.logical_divide(%a, %b) : (!cute.layout<"6:2">, !cute.layout<"(2,3):(3,1)">) -> '
     '!cute.layout<"((2,3),1):((6,2),12)">', (2, 3), (6, 2)),
    ("1. Compute `(6,2):(8,2) o 4:3`", (2, 2), (24, 2)),
    ("`20:2  o  (5,4):(4,1)`. Composition formulation.", (5, 4), (8, 2)),
    ("#shared = #ttg.padded_shared<[1:+1] {order = [0], shape = [1024]}>", (1024,), (2,)),
    ("#PADDED_SHARED = #ttg.padded_shared<[256:+8] {order = [1, 0], shape = [16, 32]}>", (8, 2, 32), (32, 264, 1)),
    ("#shared = #ttg.padded_shared<[64:+4] {offset = [[1], [2], [4], [8], [64], [128], [16], [32]], block = []}>",
     (16, 4, 4), (1, 68, 16)),
]  # fmt: skip


@pytest.mark.parametrize(("text", "shape", "stride"), STATED, ids=range(len(STATED)))
def test_a_stated_result_is_read(text: str, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
    found = parse(text)
    assert isinstance(found, Layout)
    size = math.prod(shape)
    digits = [math.prod(shape[:i]) for i in range(len(shape))]
    right = [sum(x // one % n * d for one, n, d in zip(digits, shape, stride, strict=True)) for x in range(size)]
    assert [found(x) for x in range(found.size)] == right


# (a text, the text at the error, what the error says)
UNEQUAL = [
    ("(4,8):(8,1) = (4,8):(1,4)", "(4,8):(1,4)", "the function of (4,8):(8,1), as the text says: (1,0) gives 8 and 1"),
    ("(4,8,2):(2,8,1) o (2,2,2):(1,8,2)  =  (2,2,2):(2,16,5)", "(2,2,2):(2,16,5)", "(0,0,1) gives 4 and 5"),
    ("complement((2,4):(1,6), 24) is 3:4", "3:4", "expected the function of 3:2, as the text says: 1 gives 2 and 4"),
    ("S<3,4,3> o 0 o (8,64):(64,1) -> (8,64):(64,1)", "(8,64):(64,1)", "(2,0) gives 144 and 128"),
    ("(4,8):(8,1) == (4,9):(9,1)", "(4,9):(9,1)", "(1,0) gives 8 and 9"),
    (
        "{sizePerThread = [1], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}",
        "sizePerThread",
        "inputs with bases",
    ),
    ("{'vec': [8], 'perPhase': [1]}", "vec", "not vec, a field of another layout"),
    ("{register = [[0, 1]], size_per_thread = [1]}", "size_per_thread", "a field of another layout"),
]


@pytest.mark.parametrize(("text", "at", "expected"), UNEQUAL)
def test_a_text_that_contradicts_itself_is_refused(text: str, at: str, expected: str) -> None:
    with pytest.raises(ParseError, match=re.escape(expected)) as error:
        parse(text)
    assert text[error.value.position :].startswith(at)


# Linear layouts as Triton's tests and Gluon's programs spell them
LINEAR = [
    "#linear = #ttg.linear<{register = [[0, 1], [0, 2], [0, 4], [32, 0]], lane = [[1, 0], [2, 0], [4, 0], [8, 0], "
    "[16, 0], [0, 8]], warp = [[0, 0], [0, 0]], block = []}>",
    "// CHECK{LITERAL}: #linear = #ttg.linear<{register = [[0, 1], [0, 2], [0, 4], [0, 16], [0, 32]], lane = [[1, "
    "0], [2, 0], [4, 0], [8, 0], [16, 0], [0, 8]], warp = [[32, 0], [64, 0]], block = []}>",
    "#linear1 = #ttg.linear<{register = [[0, 1], [0, 8], [16, 0]], lane = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 2], "
    "[0, 4]], warp = [[0, 16], [0, 32]], block = []}>",
    "#linear = #ttg.linear<{register = [[0, 1]], lane = [[1, 0], [2, 0], [4, 0], [8, 0], [0, 3]], warp = [], block "
    "= []}>",
    "gl.DistributedLinearLayout(reg_bases=[[0, 16], [1, 0], [2, 0]], lane_bases=[[0, 0], [0, 1], [0, 2], [0, 4], "
    "[0, 8]], warp_bases=[[4, 0], [0, 32]], block_bases=[], shape=[8, 64])",
    "#  <['32', '32'], bf16, DistributedLinearLayout(reg_bases=[[1, 0], [2, 0], [4, 0], [0, 16]], lane_bases=[[0, "
    "1], [0, 2], [0, 4], [0, 8], [8, 0], [16, 0]], warp_bases=[], block_bases=[], shape=[32, 32])>",
    "ll: tl.constexpr = ttgl.DistributedLinearLayout(reg_bases=[[1]], lane_bases=[[2], [4], [8], [16], [32]], "
    "warp_bases=[[64], [128]], block_bases=[], shape=[256])",
]


@pytest.mark.parametrize("text", LINEAR, ids=range(len(LINEAR)))
def test_a_linear_layout_adds_its_bases_bit_by_bit(text: str) -> None:
    found = parse(text)
    assert isinstance(found, LinearLayout)
    bases = [
        tuple(map(int, each.split(","))) for each in re.findall(r"\[(\d+(?:, \d+)*)\]", text.partition("shape=")[0])
    ]
    extents = [1 << max(vector[d] for vector in bases).bit_length() for d in range(len(bases[0]))]
    for bits in itertools.product((0, 1), repeat=len(bases)):
        coordinate = [0] * len(extents)
        for vector in itertools.compress(bases, bits):
            coordinate = [x ^ y for x, y in zip(coordinate, vector, strict=True)]
        flat = sum(x * math.prod(extents[:d]) for d, x in enumerate(coordinate))
        assert found(sum(bit << k for k, bit in enumerate(bits))) == flat, bits
