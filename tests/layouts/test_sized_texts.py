"""Sizes and strides as torch, Inductor and MLIR print them; element types of pasted texts."""

from __future__ import annotations

import random

import pytest

from layoutgemm import Layout, Swizzle, dim, parse
from layoutgemm.errors import ParseError
from layoutgemm.layouts import ComposedLayout
from layoutgemm.layouts.notation import stated_element
from tests.layouts.damage import damaged, outcomes

SIZED = [
    ("torch.Size([4, 8]) (8, 1)", "(4,8):(8,1)"),
    ("torch.Size([2, 3, 5]), (15, 5, 1)", "(2,3,5):(15,5,1)"),
    ("torch.Size([7]) (3,)", "(7):(3)"),
    ("x: torch.Size([4, 8]), (1, 4)  # transposed", "(4,8):(1,4)"),
    ("size=(4, 8), stride=(8, 1)", "(4,8):(8,1)"),
    ("shape: (4, 8) stride: (16, 2)", "(4,8):(16,2)"),
    ("shape=torch.Size([4, 8]), stride=(0, 1), dtype=torch.float16", "(4,8):(0,1)"),
    ("f32[4, 8][8, 1]cuda:0", "(4,8):(8,1)"),
    ('arg0_1: "bf16[4, 8, 2][16, 2, 1]cpu"', "(4,8,2):(16,2,1)"),
    ("FixedLayout('cuda:0', torch.float16, size=[4, 8], stride=[8, 1])", "(4,8):(8,1)"),
    ("FixedLayout('cuda:0', torch.float16, size=[4, 8], stride=[8, 1], offset=32)", "S<0,0,0> o 32 o (4,8):(8,1)"),
    ("assert_size_stride(arg1_1, (4, 8), (8, 1))", "(4,8):(8,1)"),
    ("buf1 = empty_strided_cuda((4, 8), (8, 1), torch.float16)", "(4,8):(8,1)"),
    ("memref<4x8xf16>", "(4,8):(8,1)"),
    ("memref<2x3x5xf32, 3>", "(2,3,5):(15,5,1)"),
    ("%0 : memref<4x8xf16, strided<[16, 2], offset: 4>, #gpu.address_space<workgroup>>", "S<0,0,0> o 4 o (4,8):(16,2)"),
    ("memref<4x8xf16, affine_map<(d0, d1) -> (d1 * 4 + d0)>>", "(4,8):(1,4)"),
    ("reinterpret_tensor(buf0, (4, 8), (8, 1), 0)", "(4,8):(8,1)"),
    ("buf3 = reinterpret_tensor(buf0, (4, 8), (8, 1), 16); del buf0", "S<0,0,0> o 16 o (4,8):(8,1)"),
    ("x.as_strided((4, 8), (8, 1))", "(4,8):(8,1)"),
    ("torch.as_strided(x, (4, 8), (8, 1), storage_offset=3)", "S<0,0,0> o 3 o (4,8):(8,1)"),
    ("x.shape=torch.Size([4, 8]), x.stride()=(8, 1)", "(4,8):(8,1)"),
    ("(torch.Size([4, 8]), (8, 1))", "(4,8):(8,1)"),
    ("a.size() = torch.Size([4, 8]), a.stride() = (8, 1)", "(4,8):(8,1)"),
    ("sizes() = [4, 8], strides() = [8, 1]", "(4,8):(8,1)"),
    (
        "TensorMetadata(shape=torch.Size([4, 8]), dtype=torch.float16, requires_grad=False, stride=(8, 1), qparams={})",
        "(4,8):(8,1)",
    ),
    ("FakeTensor<Float16, (4, 8), (1, 4)>", "(4,8):(1,4)"),
    # NumPy counts bytes, DLPack elements
    ("shape (4, 8) strides (64, 8) dtype float64", "(4,8):(8,1)"),
    ("{'shape': (4, 8), 'strides': (4, 16), 'typestr': '<f4', 'data': (140, False), 'version': 3}", "(4,8):(1,4)"),
    ("{'shape': (4, 8), 'typestr': '<f4', 'strides': None, 'version': 3}", "(4,8):(8,1)"),
    ("shape=(4, 8), strides=(16, 2), itemsize=2", "(4,8):(8,1)"),
    ("shape=(4, 8), strides=(8, 1)", "(4,8):(8,1)"),
    ("DLTensor(shape=[4, 8], strides=[16, 2], byte_offset=0)", "(4,8):(16,2)"),
    ("DLTensor(shape=[4, 8], strides=[16, 2], dtype=float16, byte_offset=64)", "S<0,0,0> o 32 o (4,8):(16,2)"),
    ("f32[4,8,2]{0,2,1}", "(4,8,2):(1,8,4)"),
    ("memref<4x8xf16, strided<[16, 2], offset: 4>, 3>", "S<0,0,0> o 4 o (4,8):(16,2)"),
    ("Layout(shape=(4, 8), stride=(8, 1))", "(4,8):(8,1)"),
    ("cute::Swizzle<3, 4, 3>{}", "S<3,4,3>"),
    ("tensor<ptr<f8E4M3FN, smem, align<1024>, S<3,4,3>> o (8,128):(128,1)>", "S<3,4,3>[bytes] o 0 o (8,128):(128,1)"),
    ("Swizzle(3, 3, 3) o (8,64):(64,1)", "S<3,3,3> o 0 o (8,64):(64,1)"),
    ('!cute.coord_tensor<"(0,0)", "(128,64):(1@0,1@1)">', "(128,64):(1@0,1@1)"),
    ("ArithTupleIterator(0,0) o (4,8):(_1@0,_1@1)", "(4,8):(1@0,1@1)"),
]


@pytest.mark.parametrize(("text", "right"), SIZED)
def test_a_text_with_sizes_and_strides_is_its_layout(text: str, right: str) -> None:
    assert str(parse(text)) == right and Layout.parse(text) == parse(right)


def test_a_memref_with_a_map_is_its_formula() -> None:
    found = parse("memref<4x8xf16, affine_map<(i, j) -> (i floordiv 2 + (i mod 2) * 2 + j * 4)>, 3>")
    assert [found(i, j) for i in range(4) for j in range(8)] == [
        i // 2 + i % 2 * 2 + j * 4 for i in range(4) for j in range(8)
    ]


def test_unknown_sizes_are_new_symbols_and_names_are_symbols() -> None:
    found = parse("memref<?x8xf16, strided<[?, 1], offset: ?>>")
    assert isinstance(found, ComposedLayout) and found.swizzle == Swizzle(0, 0, 0)
    rows, _ = found.layout.shape
    pitch, one = found.layout.stride
    assert len({str(rows), str(pitch), str(found.offset)}) == 3 and one == 1
    symbolic = parse("f16[s0, 8][8, 1]cuda:0")
    assert symbolic == Layout((dim("s0"), 8), (8, 1))
    rows, columns = parse("memref<4x?xf16>").shape
    assert rows == 4 and parse("memref<?x?xf16>").stride[1] == 1 and not isinstance(columns, int)


@pytest.mark.parametrize(
    ("text", "position", "expected"),
    [
        ("torch.Size([4, 8]), (8,)", 21, "2 strides, one a size, not 1"),
        ("torch.Size([4, -]), (8, 1)", 15, "an integer"),
        ("torch.Size([]) ()", 12, "at least one mode"),
        ("torch.Size([0, 4]) (4, 1)", 12, "0"),
        ("memref<4x8xf16, affine_map<(d0) -> (d0)>>", 28, "a map of 2 coordinates"),
        ("memref<4x8xf16, affine_map<(d0, d1) -> (d0 * d1)>>", 40, "a map that is a layout"),
        ("memref<4x8xf16, strided><[16, 2], offset: 4>>", 11, "a memref's type"),
        ("shape=(4, 8), strides=(64, 8)", 23, "dtype=... too"),
        ("shape=(4, 8), strides=(9, 2), dtype=float32", 23, "multiples of 4 bytes, not"),
        ("DLTensor(shape=[4, 8], strides=[8, 1], byte_offset=64)", 32, "the type of the elements"),
        ("bf16[128,64]{0,1,2}", 13, "an order of 2 dimensions"),
        ("FixedLayout('cpu', torch.float16, size=[4, 8], stride=[8, 1], offse+t=32)", 62, "offset=, an integer"),
        ("size=(4, x y), stride=(8, 1)", 9, "no integer"),
        ('!cute.shape<"(4,8)">', 0, "not a shape or a coordinate alone"),
    ],
)
def test_what_cannot_be_read_says_where(text: str, position: int, expected: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert expected in str(error.value) and error.value.position == position


def test_random_sizes_and_strides_come_back() -> None:
    rng = random.Random(5)
    for _ in range(200):
        rank = rng.randint(1, 5)
        shape, stride = (tuple(rng.randint(low, 300) for _ in range(rank)) for low in (1, 0))
        right = Layout(shape, stride)
        sizes, strides = list(shape), list(stride)
        for text in (
            f"torch.Size({sizes}) {stride}",
            f"bf16{sizes}{strides}cuda:0",
            f"FixedLayout('cpu', torch.float32, size={sizes}, stride={strides})",
            f"memref<{'x'.join(map(str, sizes))}xf32, strided<{strides}>>",
        ):
            assert parse(text) == right, text


def test_broken_texts_raise_only_the_errors_of_the_library() -> None:
    signs = ["", "(", "]", "{", "=", "9", "x", ",", "-", "?", "[", "'"]
    read, refused = outcomes(damaged([text for text, *_ in SIZED], 6, signs))
    assert read > 500 and refused > 2000, (read, refused)


@pytest.mark.parametrize(
    ("text", "element"),
    [
        ("tensor<ptr<f32, smem, align<16>> o (4,8):(8,1)>", "f32"),
        ("raw_ptr(0x00007f10: e4m3, gmem, align<16>) o (4,8):(8,1)", "e4m3"),
        ("Sw<3,4,3> o smem_ptr[8b](unset) o (8,128):(128,1)", "u8"),
        ("ptr[32b](nil) o (4,8):(8,1)", "u32"),
        ("!ttg.memdesc<8x64xf16, #shared, #smem>", "f16"),
        ("memref<4x8xbf16, 3>", "bf16"),
        ("tensor<ptr<f8E4M3FN, smem, align<128>, S<3,4,3>> o (8,128):(128,1)>", "e4m3"),
        ("(4,8):(8,1)", None),
    ],
)
def test_the_element_type_that_a_text_states(text: str, element: str | None) -> None:
    found = stated_element(text)
    assert (None if found is None else found.name) == element


# What is added to a text behind its strides, or within its call, and means something else.
ADDED = [" o 3", "*2", "+1", ":1", "(3)", "{1}", " 7", ", foo = 3"]


@pytest.mark.parametrize("text", [
    "FixedLayout('cuda:0', torch.float16, size=[4, 8], stride=[8, 1])", "size=(4, 8), stride=(8, 1)",
    "sizes() = [4, 8], strides() = [8, 1]",
    "x.as_strided((4, 8), (8, 1))", "FakeTensor<Float16, (4, 8), (8, 1)>", "DLTensor(shape=[4, 8], strides=[8, 1])",
    "{'shape': (4, 8), 'strides': (32, 4), 'typestr': '<f4'}", "memref<4x8xf16, affine_map<(i, j) -> (i * 8 + j)>>",
])  # fmt: skip
def test_nothing_behind_the_strides_is_passed_over(text: str) -> None:
    assert str(parse(text)) == "(4,8):(8,1)"
    for added in ADDED:
        with pytest.raises(ParseError, match="expected"):
            parse(text + added)


@pytest.mark.parametrize("text", [
    "size=(4, 8), foo = 3, stride=(8, 1)", "Layout(foo = 3, shape=(4, 8), stride=(8, 1))",
    "FixedLayout('cuda:0', torch.float16, foo = 3, size=[4, 8], stride=[8, 1])",
    "FixedLayout('cuda:0', torch.float16, size=[4, 8], foo = 3, stride=[8, 1])",
    "DLTensor(foo = 3, shape=[4, 8], strides=[8, 1])", "DLTensor(shape=[4, 8], strides=[8, 1], foo = 3, byte_offset=0)",
])  # fmt: skip
def test_a_field_that_is_not_known_is_refused(text: str) -> None:
    known = text.replace("foo = 3, ", "")
    assert str(parse(known)) == "(4,8):(8,1)"
    with pytest.raises(ParseError) as error:
        parse(text)
    assert text[error.value.position :].startswith("foo")
