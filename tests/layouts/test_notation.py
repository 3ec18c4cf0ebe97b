"""Texts that people paste, texts that are damaged, and integers of other libraries: read alike, or refused in place."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from layoutgemm import ComposedLayout, E, Layout, Swizzle, dim, parse, smem_tile, wgmma
from layoutgemm.arch import arch
from layoutgemm.arguments import DEPTH, plain
from layoutgemm.atoms import TiledMma, fma, ldmatrix, mma_sync
from layoutgemm.dtypes import dtype
from layoutgemm.errors import LayoutError, ParseError
from layoutgemm.kernels.derive import Operand
from layoutgemm.layouts import CoordinateTensor, CounterExample
from layoutgemm.layouts.formulas import from_expr
from layoutgemm.layouts.notation import MAX_TEXT
from layoutgemm.layouts.proofs.prove import prove
from layoutgemm.layouts.proofs.verdicts import TWO_INDICES
from layoutgemm.layouts.symbols.facts import Facts
from layoutgemm.schedule import Grouped
from tests import needs

# What CuTe, the CuTe DSL and pycute print -> what it is here.
PASTED = {
    "(4,):(1,)": "(4):(1)",
    "_8:_1": "8:1",
    "(_4,(_2,8)):(_1,(_4,_8))": "(4,(2,8)):(1,(4,8))",
    "(_4,_8):(_0,-_1)": "(4,8):(0,-1)",
    "ptr[32b](nil) o (4,8):(8,1)": "(4,8):(8,1)",
    "gmem_ptr[16b](0x7f5c2e000000) o (128,64):(64,_1)": "(128,64):(64,1)",
    "raw_ptr(0x00007f5c: f32, generic, align<4>) o (4,8):(8,1)": "(4,8):(8,1)",
    "tensor<ptr<f16, smem, align<16>> o (4,8):(8,1)>": "(4,8):(8,1)",
    "tensor<ptr<f16, smem, align<16>> o (4,8):(8,1)> = (1, 2)": "(4,8):(8,1)",
    '!cute.layout<"(4,8):(8,1)">': "(4,8):(8,1)",
    "'(4,8):(8,1)'": "(4,8):(8,1)",
    "(4,8):(E<0>,E<1>)": "(4,8):(1@0,1@1)",
    "(4,(2,8)):(E<0>,(2*E<1,0>,E<1,1>))": "(4,(2,8)):(1@0,(2@0@1,1@1@1))",
    "Sw<3,4,3> o smem_ptr[16b](unset) o ((8,16),(64,2)):((64,512),(1,1024))":
        "S<3,3,3>[16b] o 0 o ((8,16),(64,2)):((64,512),(1,1024))",
    "Sw<2,4,3>_smem_ptr[8b](0x7f0000000400) o (8,64):(64,1)": "S<2,4,3>[bytes] o 0 o (8,64):(64,1)",
    "Sw<1,4,3> o smem_ptr[32b](unset) o (8,8):(8,1)": "S<1,2,3>[32b] o 0 o (8,8):(8,1)",
    "tensor<ptr<f16, smem, align<1024>, S<3,4,3>> o (8,64):(64,1)>": "S<3,3,3>[16b] o 0 o (8,64):(64,1)",
    "S<3,4,3> o 0 o (8,64):(64,1)": "S<3,4,3> o 0 o (8,64):(64,1)",
    # labels, comments, values, another value
    "tCsA:\tSw<3,4,3>_smem_ptr[16b](SMEM_ADDR_A) o ((_128,_16),_1,_4):((_64,_1),_0,_16)":
        "S<3,3,3>[16b] o 0 o ((128,16),1,4):((64,1),0,16)",
    "LayoutA_TV: ((_4,_8),(_2,_2,_2)):((_32,_1),(_16,_8,_128))": "((4,8),(2,2,2)):((32,1),(16,8,128))",
    "layout_a = (4,8):(8,1)": "(4,8):(8,1)",
    "[DSL INFO] logical_divide  lA = tensor<ptr<f32, gmem, align<16>> o ((2,8),(4,8)):((32,64),(1,4))>":
        "((2,8),(4,8)):((32,64),(1,4))",
    "Thread (?) - gA: tensor<ptr<f32, gmem, align<16>> o (128,8,4):(1,256,2048)>": "(128,8,4):(1,256,2048)",
    "blkA raw_ptr(0x00007f12d9e00000: f32, gmem, align<16>) o (1024):(1)": "(1024):(1)",
    "x=tensor<ptr<f32, gmem, align<16>> o (4096):(1)>; N=Int32(?)": "(4096):(1)",
    "  // (_128,_64,4):(256,_1,_64)": "(128,64,4):(256,1,64)",
    "(_128,_64,4):(256,_1,_64)  // tile": "(128,64,4):(256,1,64)",
    "(4,3):(1,4)\n       0    1    2\n    +----+----+----+\n 0  |  0 |  4 |  8 |\n    +----+----+----+": "(4,3):(1,4)",
    "tensor(raw_ptr(0x00000000014f2090: f32, generic, align<4>) o (3):(1), data=\n  [-1.5, 0.0, ],\n)": "(3):(1)",
    # pointers of other things than elements of shared memory
    "UMMA::DescriptorIterator o (_1,_1,_4):(_0,_0,_2)": "(1,1,4):(0,0,2)",
    "tmem_[32b](0x0000.0000) o ((_128,_256),_1,_1):((_65536,_1),_0,_0)": "((128,256),1,1):((65536,1),0,0)",
    "counting_iter(0) o (4,8):(8,1)": "(4,8):(8,1)",
    "subptr[4b](0x7f0000000000.0) o (4,8):(8,1)": "(4,8):(8,1)",
    "tensor<(0,0) o (64,32):(1@1,1@0)>": "(64,32):(1@1,1@0)",
    # an address that is left out, the DSL's elements under a swizzle, signs of a page's source
    "Sw<3,4,3>_smem_ptr[16b](0x7f..) o (8,64):(64,1)": "S<3,3,3>[16b] o 0 o (8,64):(64,1)",
    "tensor<ptr<f16, smem, align<1024>> o S<3,3,3> o 0 o (8,64):(64,1)>": "S<3,3,3>[16b] o 0 o (8,64):(64,1)",
    "Sw&lt;3,4,3&gt; o smem_ptr[16b](unset) o (_8,_64):(_64,_1)": "S<3,3,3>[16b] o 0 o (8,64):(64,1)",
    '!cute.memref<f16, smem, align<16>, "(4,8):(8,1)">': "(4,8):(8,1)",
    '!memref_smem_f16_ = !cute.memref<f16, smem, align<1024>, S<3,4,3>, "(8,64):(64,1)">':
        "S<3,3,3>[16b] o 0 o (8,64):(64,1)",
    # tensor-layouts
    "(8, 64) : (64, 1)": "(8,64):(64,1)",
    "(Swizzle(3, 3, 3)) o ((8, 64) : (64, 1))": "S<3,3,3> o 0 o (8,64):(64,1)",
    "(Swizzle(3, 3, 3)) o {5} o ((8, 64) : (64, 1))": "S<3,3,3> o 5 o (8,64):(64,1)",
    "ComposedLayout(Swizzle(3, 3, 3), Layout((8, 64), (64, 1)), offset=5)": "S<3,3,3> o 5 o (8,64):(64,1)",
}  # fmt: skip


@pytest.mark.parametrize(("text", "right"), PASTED.items())
def test_pasted_texts(text: str, right: str) -> None:
    assert str(parse(text)) == right
    assert str(Layout.parse(f"  {text} ")) == right


def test_a_swizzled_pointer_counts_bytes() -> None:
    found = parse("Sw<3,4,3> o smem_ptr[16b](unset) o (8,64):(64,1)")
    by_bytes = Swizzle(3, 4, 3)
    assert isinstance(found, ComposedLayout)
    assert all(2 * found(i) == by_bytes(2 * Layout((8, 64), (64, 1))(i)) for i in range(512))


def test_each_unknown_is_a_symbol_of_its_own() -> None:
    found = parse("(?,8,?{div=16}):(?{i64 div=8},1,8)")
    first, third, stride = found.shape[0], found.shape[2], found.stride[0]
    assert len({str(first), str(third), str(stride)}) == 3
    assert found.shape[1] == 8 and third % 16 == 0 and stride % 8 == 0
    with pytest.raises(LayoutError):
        first // 2  # nothing is known of it


@pytest.mark.parametrize(
    ("text", "position", "said"),
    [
        ("(4,8:(1,4)", 4, "expected ',' or ')'"), ("4", 1, "expected ':'"), ("(4,x y):(1,4)", 3, "no integer"),
        ("4:1 junk", 4, "more text"), ("M//0:1", 0, "a division by zero"), ("M%0:1", 0, "a division by zero"),
        ("(4,0):(1,4)", 0, "at least 1"), ("M*9**9**9:1", 0, "more than 4096 bits"),
        ("9" * 1200 + ":1", 0, "1200 digits"),
        ("M**100:1", 0, "at most 32"), ("(" * 100_000, MAX_TEXT, "100000 characters"),
        ("(" * 3000, DEPTH, f"at most {DEPTH} deep"), ("S<3,4,3> o " * 3000 + "4:1", 704, "more than 64 swizzles"),
        ("-" * 1500 + "M:1", 0, "nests more than"), ("\ud800:1", 0, "integer"), ("ptr[16b](0x0) (4):(1)", 14, "' o '"),
        ("ptr<f16, smem o 4:1", 4, "the end of the pointer"), ("S<9,4,3> o 4:1", 0, "9"), ("1@x:1", 1, "expected ':'"),
    ],
)  # fmt: skip
def test_a_damaged_text_is_refused_where_it_is(text: str, position: int, said: str) -> None:
    with pytest.raises(ParseError) as error:
        parse(text)
    assert said in str(error.value)
    assert len(str(error.value)) < 600
    str(error.value).encode()
    if text[:1] not in "-M9":  # of an expression the place is its own
        assert error.value.position == position


def test_random_texts_are_read_or_refused() -> None:
    rng = random.Random(0)
    parts = [*PASTED, "(M,N//4):(1,M)", "((8,2),4):((1,16),8)", "(4,8):(1@0,1@1)"]
    signs = "()<>,:@?_*/%+- \"'=oSEMw0123456789[]{}\ud800é"
    read = 0
    for _ in range(4000):
        text = rng.choice(parts)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(text) + 1)
            more = rng.choice(["", rng.choice(signs), rng.choice(parts)[:9]])
            text = text[:at] + more + text[at + rng.randint(0, 2) :]
        try:
            found = parse(text)
        except LayoutError:
            continue
        read += 1
        assert parse(str(found)) == found, text
    assert read > 400


def test_deep_tuples_are_refused() -> None:
    def nested(depth: int) -> Any:
        x: Any = 2
        for _ in range(depth):
            x = (x,)
        return x

    deepest = Layout(nested(DEPTH), nested(DEPTH))
    assert parse(str(deepest)) == eval(repr(deepest)) == deepest
    assert hash(parse(str(deepest))) == hash(deepest)
    for make in (lambda: Layout(nested(600)), lambda: Layout(nested(2), nested(600)), lambda: Layout(4)(nested(600))):
        with pytest.raises(LayoutError):
            make()


def test_offsets_that_64_bits_do_not_hold_are_refused() -> None:
    large = Layout((4, 8), (1 << 62, 1))
    with pytest.raises(LayoutError, match="do not fit 64 bits"):
        large(np.arange(32))
    assert large(np.arange(2)).tolist() == [0, 1 << 62]
    assert large(3, 1) == (3 << 62) + 1
    for wraps in (lambda: large(np.array([3]), 1), lambda: Layout((4, 4), 2 * (1 << 61,))(np.array([3]), np.array([3])),
                  lambda: ComposedLayout(Swizzle(3, 4, 3), 1 << 62, large)(np.array([1])),
                  lambda: CoordinateTensor((1 << 62, 0), Layout((4, 8), (E(0) * (1 << 61), E(1))))(np.array([3]), 0),
                  ):  # fmt: skip
        with pytest.raises(LayoutError, match="do not fit 64 bits"):
            wraps()
    with pytest.raises(LayoutError, match="more than 65536"):
        Layout((2**100, 7)).svg()
    assert f">{2**70 + 1}</text>" in Layout((4, 8), (2**70, 1)).svg()  # pictures compute with integers of any size


def test_extents_beyond_64_bits_take_arrays_of_coordinates() -> None:
    long = Layout((4, 1 << 70, 2), (1, 8, 4))
    assert long(np.array([13, 1 << 40])).tolist() == [long(13), long(1 << 40)]
    assert [part.tolist() for part in long.coord(np.array([13]))] == [[1], [3], [0]]
    swizzled = ComposedLayout(Swizzle(3, 4, 3), 0, Layout((1000, 3), (9, 1)))
    assert swizzled.equivalent(Layout((5, 1 << 70, 3), (1 << 70, 15, 1 << 80))).index == 1  # no OverflowError


def test_plain_converts_integers_and_lists_and_nothing_else() -> None:
    torch = needs.module("torch")
    assert plain(torch.Size([4, 8])) == (4, 8) and plain(torch.Size([4, 8])).__class__ is tuple
    for same in (True, 1.0, "4", None, [1.5], [object], np.bool_(True), np.float32(2)):
        assert plain(same) is same


def test_integers_of_numpy_are_integers_everywhere() -> None:
    i = np.int64
    for ours, theirs in (
        (wgmma(64), wgmma(i(64))), (mma_sync((16, 8, 16)), mma_sync([i(16), i(8), i(16)])),
        (smem_tile((128, 64), "bf16", "K"), smem_tile([128, i(64)], "bf16", "K")), (ldmatrix(4), ldmatrix(i(4))),
        (Grouped(group=8), Grouped(group=i(8))), (Swizzle(3, 4, 3), Swizzle(i(3), i(4), i(3))),
    ):  # fmt: skip
        assert ours == theirs
    product = TiledMma(fma(), Layout((4, 8, 1)))
    assert product.partition_A(i(3), Layout((4, 16))) == product.partition_A(3, Layout((4, 16)))
    assert product.get_slice(np.uint8(3)).thread == 3
    for wrong in (True, 64.0, "64", None, (64,)):
        with pytest.raises(LayoutError):
            wgmma(wrong)


def test_a_counterexample_refutes() -> None:
    assert CounterExample(3, 4, 5).explain() == "not equivalent: 3 gives 4 and 5"
    for wrong in (
        lambda: CounterExample(3, 4, 4), lambda: CounterExample(3, None, None),
        lambda: CounterExample((1, 2), 4, 5, method=TWO_INDICES), lambda: CounterExample(1, 4, 4, method=TWO_INDICES),
        lambda: CounterExample(1, 5, 2, 1, between=(Layout(4), Layout(4, 2))),
    ):  # fmt: skip
        with pytest.raises(LayoutError):
            wrong()
    assert CounterExample(1, 1, 2, 1, between=(Layout(4), Layout(4, 2))).left == 1


HOSTILE = (
    "(" * 2000, "-" * 3000 + "M", "9" * 5000, "\ud800", "M*9**9**9", "M**100000000", "M//0", "M%0", "1<<99999999",
    "x" * 100_000, "", "()", "[1]", "1.5", "lambda: 1", "M if N else 1", "True", "M; N", "\x00", "a.b", "f(1)",
    "ceil_div(M,0)", "x<<-1", "x>>9**9",
)  # fmt: skip


@pytest.mark.parametrize("number", range(len(HOSTILE)))
def test_every_parser_reads_or_refuses_hostile_texts(number: int) -> None:
    text, taken = HOSTILE[number], 0
    for read in (
        Facts, lambda t: Facts(f"64 | {t}"), lambda t: from_expr(t, x=4), lambda t: from_expr(t, 4), arch, dtype,
        Operand.parse, lambda t: parse("(M):(1)", given=t), lambda t: parse(f"{t}:1"),
    ):  # fmt: skip
        try:
            read(text)
        except LayoutError as error:
            assert len(str(error).encode()) < 2000 or len(text) >= 2000
        else:
            taken += 1
    assert taken == {"()": 3, "lambda: 1": 1}.get(text, 0)  # no facts, no index, no strides; a layout with a label


# ---------------------------------------------------------------- pointers, unknowns, and what repr prints


@pytest.mark.parametrize("facts", ["div=0", "div=-8", "foo", "dvi=8", "div=8 i64", "i64 div=8x"])
def test_unreadable_facts_of_an_unknown_are_refused(facts: str) -> None:
    with pytest.raises(ParseError, match="i64 div=8"):
        parse(f"(?{{{facts}}},4):(4,1)")


def test_unknowns_of_two_texts_are_no_one_integer() -> None:
    first, second = parse("(?,8):(8,1)"), parse("(?,8):(8,1)")
    assert not set(first.symbols) & set(second.symbols)
    assert not prove(first, second).ok and not first.equivalent(second).ok and first != second
    assert prove(first, first).ok
    inside = parse("(?{div=8},?):(?,1)")
    assert len(set(inside.symbols)) == 3 and all(name.isidentifier() for name in inside.symbols)
    assert set(parse(str(inside)).symbols) == set(inside.symbols)
    (name,) = first.symbols
    assert str(first.at(**{name: 4})) == "(4,8):(8,1)"


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("Sw<3,4,3>_smem_ptr[16b](0x7f10) o (8,64):(64,1)", 392),
        ("Sw<3,4,3> o smem_ptr[16b](0x7f10) o (8,64):(64,1)", 392),
        ("Sw<3,4,3>_smem_ptr[16b](0x7c00) o (8,64):(64,1)", 0),
        ("Sw<3,4,3>_smem_ptr[16b](unset) o (8,64):(64,1)", 0),
        ("Sw<3,4,3>_smem_ptr[16b](nil) o (8,64):(64,1)", 0),
        ("Sw<2,4,3>_smem_ptr[16b](0x7f10) o (8,64):(64,1)", 136),
        ("tensor<ptr<bf16, smem, align<1024>, S<3,4,3>> o (8,64):(64,1)>", 0),
        ("tensor<ptr<bf16, smem, align<4096>, S<3,4,3>> o (8,64):(64,1)>", 0),
    ],
)
def test_the_address_of_a_swizzled_pointer_counts(text: str, offset: int) -> None:
    got = parse(text)
    assert got.offset == offset
    # The byte address of every element, by the swizzle of addresses.
    by = Swizzle(2 if "Sw<2" in text else 3, 4, 3)
    start = (0x7F10 if "7f10" in text else 0) % by.span
    assert [2 * x for x in got.offsets()] == [by(start + 2 * x) for x in got.layout.offsets()]


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("Sw<3,4,3>_smem_ptr[16b](0x7f11) o (8,64):(64,1)", "no multiple of an element of 16 bits"),
        ("Sw<3,4,3>_smem_ptr[16b](p) o (8,64):(64,1)", "does not say where its elements lie"),
        ("tensor<ptr<bf16, smem, align<16>, S<3,4,3>> o (8,64):(64,1)>", "a multiple of 16: the text does not say"),
        ("tensor<ptr<bf16, smem, S<3,4,3>> o (8,64):(64,1)>", "a multiple of 2: the text does not say"),
    ],
)
def test_a_pointer_that_does_not_say_where_elements_lie_is_refused(text: str, part: str) -> None:
    with pytest.raises(ParseError, match=part):
        parse(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4:_-1", "4:-1"), ("4:-_1", "4:-1"), ("(_4,_2):(_-1,_8)", "(4,2):(-1,8)"), ("4:_-1@0", "4:-1@0"),
        ("ArithTuple(_0,_0) o (4,8):(1@0,1@1)", "(4,8):(1@0,1@1)"),
        ("ArithTuple(0,(_0,_0)) o (4,8):(1@0,1@1)", "(4,8):(1@0,1@1)"),
        ("Layout((4, 8), (8, 1))", "(4,8):(8,1)"), ("Layout((4, (2, 3)))", "(4,(2,3)):(1,(4,8))"),
        ("Layout((4,), (8,))", "(4):(8)"), (" Layout( 4 , -1 ) ", "4:-1"),
    ],
)  # fmt: skip
def test_notations_of_others_and_repr_are_read(text: str, expected: str) -> None:
    assert str(parse(text)) == expected


@pytest.mark.parametrize(
    "value",
    [
        Layout((4, 8), (8, 1)), Layout((4,), (8,)), Layout((4, (2, 8)), (E(0), (E(1, 0), 8 * E(1, 1)))),
        Swizzle(3, 4, 3), Swizzle(3, 4, 3, "bytes"), Swizzle(3, 3, -3, 16), Swizzle(3, 3, 3) @ Layout((8, 64), (64, 1)),
        Swizzle(1, 0, 3, 16) @ ComposedLayout(Swizzle(3, 3, 3, 16), 64, Layout((8, 64), (64, 1))),
        Layout((dim("M"), 8), (8, 64 * dim("M") + 1)),
    ],
)  # fmt: skip
def test_repr_is_read_back(value: Any) -> None:
    dim("M")  # a text's M is the one made last, which another test's may be
    assert parse(repr(value)) == value


@pytest.mark.parametrize("text", ["Swizzle(3, 4)", "Layout()", "Layout(4", "Layout(4,,)", "ComposedLayout(4, 0, 4)",
                                  "Swizzle(3, 4, 3, 'bits')", "Layout(4, 1, 1)", "Swizzle(4, 4, 3)"])  # fmt: skip
def test_a_damaged_repr_is_refused(text: str) -> None:
    with pytest.raises(ParseError):
        parse(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [("E<0>", E(0)), (" 3*E<1>", 3 * E(1)), ("2@0", 2 * E(0)), ("E<1,0>", E(1, 0)), ("_5@1@0", 5 * E(0, 1))],
)
def test_a_basis_element_alone(text, wanted):
    """As CuTe prints it; with an extent it is a stride."""
    assert parse(text) == wanted and parse(f"4:{text.strip()}") == Layout(4, wanted)


@pytest.mark.parametrize("text", ["E<>", "E<0", "@0", "2@", "E<0>:1", "E<a>"])
def test_no_basis_element(text):
    with pytest.raises(ParseError):
        parse(text)


def test_kind_names_what_the_text_is() -> None:
    assert parse("(4,8):(8,1)", kind=Layout) == Layout((4, 8), (8, 1))
    assert parse("(64,M):(1,64)", kind=Layout) == parse("(64,M):(1,64)")
    with pytest.raises(ParseError, match=r"'\(4,8\):\(8,1\)' is a Layout and no Swizzle"):
        Swizzle.parse("(4,8):(8,1)")
    with pytest.raises(ParseError, match=r"is a Swizzle and no ComposedLayout"):
        parse("S<3,4,3>", kind=ComposedLayout)
    with pytest.raises(ParseError, match=r"kind must be a class, such as Layout, not .Layout."):
        parse("4:1", kind="Layout")
