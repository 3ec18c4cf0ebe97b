"""Every integer, logic, shift and conversion instruction against Python integers, lane by lane."""

from __future__ import annotations

import itertools
import operator

import numpy as np
import pytest

from layoutgemm.emulator.ptx.values import find_set
from layoutgemm.errors import PtxError
from tests.emulator.ptx.lanewise import agree, evaluate
from tests.emulator.run_ptx import run

SIZES = (16, 32, 64)


def signed(x: int, bits: int) -> int:
    return x - (1 << bits) if x >> bits - 1 else x


def view(x: int, kind: str) -> int:
    bits = int(kind[1:])
    x &= (1 << bits) - 1
    return signed(x, bits) if kind[0] == "s" else x


def fit(x: int, bits: int) -> int:
    return x & (1 << bits) - 1


def quotient(a: int, b: int, bits: int) -> int:
    """Toward 0. PTX leaves division by 0 open; the hardware gives all ones."""
    if b == 0:
        return fit(-1, bits)
    magnitude = abs(a) // abs(b)
    return fit(magnitude if (a < 0) == (b < 0) else -magnitude, bits)


KINDS = [f"{letter}{bits}" for letter in "us" for bits in SIZES]


@pytest.mark.parametrize("kind", KINDS)
def test_arithmetic(kind):
    bits = int(kind[1:])
    b = f"b{bits}"

    def two(name, function):
        agree(
            f"{name}.{kind} {{0}}, {{a}}, {{b}}",
            [b, b],
            [b],
            lambda x, y: fit(function(view(x, kind), view(y, kind)), bits),
        )

    two("add", operator.add)
    two("sub", operator.sub)
    two("mul.lo", operator.mul)
    two("mul.hi", lambda x, y: x * y >> bits)
    two("min", min)
    two("max", max)
    two("div", lambda x, y: quotient(x, y, bits))
    two("rem", lambda x, y: x - view(quotient(x, y, bits), kind) * y if y else -1)  # an H100 gives all ones
    three = [b, b, b]
    agree(f"mad.lo.{kind} {{0}}, {{a}}, {{b}}, {{c}}", three, [b], lambda x, y, z: fit(x * y + z, bits))
    agree(f"mad.hi.{kind} {{0}}, {{a}}, {{b}}, {{c}}", three, [b],
          lambda x, y, z: fit((view(x, kind) * view(y, kind) >> bits) + z, bits))  # fmt: skip
    if kind[0] == "s":
        agree(f"neg.{kind} {{0}}, {{a}}", [b], [b], lambda x: fit(-x, bits))
        agree(f"abs.{kind} {{0}}, {{a}}", [b], [b], lambda x: fit(abs(view(x, kind)), bits))
    if bits < 64:
        wide = f"b{2 * bits}"
        agree(f"mul.wide.{kind} {{0}}, {{a}}, {{b}}", [b, b], [wide],
              lambda x, y: fit(view(x, kind) * view(y, kind), 2 * bits))  # fmt: skip
        agree(f"mad.wide.{kind} {{0}}, {{a}}, {{b}}, {{c}}", [b, b, wide], [wide],
              lambda x, y, z: fit(view(x, kind) * view(y, kind) + z, 2 * bits))  # fmt: skip


def test_saturating_addition():
    for name, function in (("add", operator.add), ("sub", operator.sub)):
        agree(f"{name}.sat.s32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b32"],
              lambda x, y, f=function: fit(max(-(1 << 31), min((1 << 31) - 1, f(signed(x, 32), signed(y, 32)))), 32))  # fmt: skip # noqa: E501


@pytest.mark.parametrize("bits", (32, 64))
def test_carries(bits):
    """sub.cc carries where nothing is borrowed, as ptxas compiles it: IADD3 P0 of a + ~b + 1, and IMAD.X of P0."""
    k, b, one = f"u{bits}", f"b{bits}", 1 << bits
    zero = {32: "%r20", 64: "%d20"}[bits]  # the result that is not looked at
    three = [b, b, b]

    def after(first, second, carry, result):
        agree(f"{first}.cc.{k} {zero}, {{a}}, {{b}}; {second}.{k} {{0}}, {{b}}, {{c}}", three, [b],
              lambda x, y, z: fit(result(y, z, carry(x, y)), bits))  # fmt: skip

    after("add", "addc", lambda x, y: x + y >= one, lambda y, z, c: y + z + c)
    after("sub", "addc", lambda x, y: x >= y, lambda y, z, c: y + z + c)
    after("add", "subc", lambda x, y: x + y >= one, lambda y, z, c: y - z - 1 + c)
    after("sub", "subc", lambda x, y: x >= y, lambda y, z, c: y - z - 1 + c)
    agree(f"sub.cc.{k} {zero}, {{a}}, {{b}}; subc.cc.{k} {zero}, {{b}}, {{c}}; addc.{k} {{0}}, {{a}}, 0", three, [b],
          lambda x, y, z: fit(x + (y >= z + (x < y)), bits))  # fmt: skip
    agree(f"mad.lo.cc.{k} {zero}, {{a}}, {{b}}, {{c}}; madc.hi.{k} {{0}}, {{a}}, {{b}}, 0", three, [b],
          lambda x, y, z: x * y + z >> bits)  # fmt: skip


def test_minimum_and_maximum_that_are_not_negative():
    for name, function in (("min", min), ("max", max)):
        agree(f"{name}.relu.s32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b32"],
              lambda x, y, f=function: max(0, f(signed(x, 32), signed(y, 32))))  # fmt: skip


def test_constants_as_operands():
    agree("add.s32 {0}, {a}, -5", ["b32"], ["b32"], lambda x: fit(x - 5, 32))
    agree("mul.wide.s32 {0}, {a}, -3", ["b32"], ["b64"], lambda x: fit(signed(x, 32) * -3, 64))
    agree("mad.lo.s32 {0}, {a}, 16, -1", ["b32"], ["b32"], lambda x: fit(x * 16 - 1, 32))
    agree("add.s64 {0}, {a}, -8", ["b64"], ["b64"], lambda x: fit(x - 8, 64))
    agree("mul.lo.s64 {0}, {a}, -8", ["b64"], ["b64"], lambda x: fit(x * -8, 64))
    agree("and.b64 {0}, {a}, -16", ["b64"], ["b64"], lambda x: x & fit(-16, 64))
    agree("max.s32 {0}, {a}, -7", ["b32"], ["b32"], lambda x: fit(max(signed(x, 32), -7), 32))
    agree("div.u64 {0}, {a}, 10", ["b64"], ["b64"], lambda x: x // 10)
    agree("sub.s64 {0}, 0, {a}", ["b64"], ["b64"], lambda x: fit(-x, 64))
    agree("xor.b32 {0}, {a}, 0xF0F0F0F0", ["b32"], ["b32"], lambda x: x ^ 0xF0F0F0F0)


@pytest.mark.parametrize("bits", SIZES)
def test_logic_and_shifts(bits):
    b = f"b{bits}"
    for name, function in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        agree(f"{name}.{b} {{0}}, {{a}}, {{b}}", [b, b], [b], function)
    agree(f"not.{b} {{0}}, {{a}}", [b], [b], lambda x: fit(~x, bits))
    agree(f"cnot.{b} {{0}}, {{a}}", [b], [b], lambda x: int(x == 0))

    def right(x, n, kind):
        return fit(view(x, kind) >> min(n, bits), bits)

    beyond = (bits - 1, bits, bits + 1, 255)
    agree(f"shl.{b} {{0}}, {{a}}, {{b}}", [b, "b32"], [b], lambda x, n: fit(x << min(n, bits), bits), beyond)
    for letter in "us":
        kind = f"{letter}{bits}"
        agree(f"shr.{kind} {{0}}, {{a}}, {{b}}", [b, "b32"], [b], lambda x, n, k=kind: right(x, n, k), beyond)
        for n in (0, 1, bits - 1, bits, 200):
            agree(f"shr.{kind} {{0}}, {{a}}, {n}", [b], [b], lambda x, k=kind, n=n: right(x, n, k), rounds=1)
    for n in (0, 1, bits - 1, bits, 200):
        agree(f"shl.{b} {{0}}, {{a}}, {n}", [b], [b], lambda x, n=n: fit(x << min(n, bits), bits), rounds=1)
    agree(f"shr.{b} {{0}}, {{a}}, 3", [b], [b], lambda x: x >> 3)


def test_logic_of_predicates():
    for name, function in (("and", operator.and_), ("or", operator.or_), ("xor", operator.xor)):
        agree(f"{name}.pred {{0}}, {{a}}, {{b}}", ["pred", "pred"], ["pred"], function)
        agree(f"{name}.pred {{0}}, {{a}}, !{{b}}", ["pred", "pred"], ["pred"], lambda x, y, f=function: f(x, 1 - y))
    agree("not.pred {0}, {a}", ["pred"], ["pred"], lambda x: 1 - x)
    agree("mov.pred {0}, {a}", ["pred"], ["pred"], lambda x: x)


@pytest.mark.parametrize("way", list(itertools.product("lr", ("clamp", "wrap"))))
def test_funnel_shift(way):
    def funnel(low, up, n):
        n = min(n, 32) if way[1] == "clamp" else n & 31
        both = up << 32 | low
        return fit(both << n >> 32, 32) if way[0] == "l" else fit(both >> n, 32)

    agree(f"shf.{way[0]}.{way[1]}.b32 {{0}}, {{a}}, {{b}}, {{c}}", ["b32"] * 3, ["b32"], funnel)


def test_lop3_of_every_table():
    for table in range(0, 256, 7):
        agree(f"lop3.b32 {{0}}, {{a}}, {{b}}, {{c}}, {table:#x}", ["b32"] * 3, ["b32"],
              lambda a, b, c, t=table: sum(
                  (t >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32)), rounds=1)  # fmt: skip # noqa: E501


def test_prmt():
    def permute(a, b, selector):
        data = (b << 32 | a).to_bytes(8, "little")
        out = 0
        for i in range(4):
            pick = selector >> 4 * i & 15
            byte = data[pick & 7]
            out |= (byte if pick < 8 else 255 * (byte >> 7)) << 8 * i
        return out

    agree("prmt.b32 {0}, {a}, {b}, {c}", ["b32"] * 3, ["b32"], permute)
    for selector in (0x3210, 0x7654, 0x5410, 0x7632, 0x1032, 0xFEDC, 0x0123, 0x4444):
        agree(f"prmt.b32 {{0}}, {{a}}, {{b}}, {selector:#x}", ["b32"] * 2, ["b32"],
              lambda a, b, s=selector: permute(a, b, s), rounds=1)  # fmt: skip


@pytest.mark.parametrize("bits", (32, 64))
def test_bit_fields(bits):
    b = f"b{bits}"

    def extract(x, at, length, letter):
        """PTX ISA, bfe: its pseudo-code. An H100 takes positions and lengths of 64-bit fields as they are."""
        at, length = (at & 255, length & 255) if bits == 32 else (at, min(length, 64))
        if length == 0 or letter == "u":
            sign = 0
        else:
            sign = x >> min(at + length - 1, bits - 1) & 1
        out = 0
        for i in range(bits):
            out |= (x >> at + i & 1 if i < length and at + i < bits else sign) << i
        return out

    def insert(x, y, at, length):
        at, length = (at & 255, length & 255) if bits == 32 else (at, min(length, 64))
        for i in range(length):
            if at + i < bits:
                y = y & ~(1 << at + i) | (x >> i & 1) << at + i
        return y

    for letter in "us":
        agree(f"bfe.{letter}{bits} {{0}}, {{a}}, {{b}}, {{c}}", [b, "b32", "b32"], [b],
              lambda x, p, n, s=letter: extract(x, p, n, s))  # fmt: skip
    agree(f"bfi.{b} {{0}}, {{a}}, {{b}}, {{c}}, {{d}}", [b, b, "b32", "b32"], [b], insert)
    agree(f"popc.{b} {{0}}, {{a}}", [b], ["b32"], lambda x: bin(x).count("1"))
    agree(f"clz.{b} {{0}}, {{a}}", [b], ["b32"], lambda x: bits - len(bin(x)[2:]) if x else bits)
    agree(f"brev.{b} {{0}}, {{a}}", [b], [b], lambda x: int(f"{x:0{bits}b}"[::-1], 2))

    def highest(x, letter):
        if letter == "s" and x >> bits - 1:
            x = fit(~x, bits)
        return x.bit_length() - 1 if x else 0xFFFFFFFF

    for letter in "us":
        agree(f"bfind.{letter}{bits} {{0}}, {{a}}", [b], ["b32"], lambda x, s=letter: highest(x, s))


COMPARE = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
           "ge": operator.ge, "lo": operator.lt, "ls": operator.le, "hi": operator.gt, "hs": operator.ge}  # fmt: skip


@pytest.mark.parametrize("kind", [*KINDS, "b16", "b32", "b64"])
def test_comparisons(kind):
    b = f"b{kind[1:]}"
    names = ["eq", "ne"] if kind[0] == "b" else ["eq", "ne", "lt", "le", "gt", "ge"]
    names += ["lo", "ls", "hi", "hs"] if kind[0] == "u" else []
    for name in names:

        def compare(x, y, f=COMPARE[name]):
            return int(f(view(x, kind), view(y, kind)))

        agree(f"setp.{name}.{kind} {{0}}, {{a}}, {{b}}", [b, b], ["pred"], compare)
        agree(f"setp.{name}.and.{kind} {{0}}|{{1}}, {{a}}, {{b}}, {{c}}", [b, b, "pred"], ["pred", "pred"],
              lambda x, y, p, c=compare: (c(x, y) & p, (1 - c(x, y)) & p), rounds=1)  # fmt: skip
    agree(f"setp.eq.or.{kind} {{0}}, {{a}}, {{b}}, !{{c}}", [b, b, "pred"], ["pred"],
          lambda x, y, p: int(x == y) | 1 - p)  # fmt: skip
    agree(f"setp.eq.xor.{kind} {{0}}, {{a}}, {{b}}, {{c}}", [b, b, "pred"], ["pred"], lambda x, y, p: int(x == y) ^ p)
    agree(f"selp.{kind} {{0}}, {{a}}, {{b}}, {{c}}", [b, b, "pred"], [b], lambda x, y, p: x if p else y)
    agree(f"setp.ne.{kind} {{0}}, {{a}}, 0", [b], ["pred"], lambda x: int(x != 0))
    agree(f"selp.{kind} {{0}}, -1, 0, {{a}}", ["pred"], [b], lambda p: fit(-1, int(kind[1:])) if p else 0)


def test_a_negative_constant_in_a_comparison():
    agree("setp.lt.s32 {0}, {a}, -3", ["b32"], ["pred"], lambda x: int(signed(x, 32) < -3))
    agree("setp.gt.s64 {0}, {a}, -3", ["b64"], ["pred"], lambda x: int(signed(x, 64) > -3))


EIGHT = [f"{letter}{bits}" for letter in "us" for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("to", EIGHT)
@pytest.mark.parametrize("saturate", (False, True))
def test_conversions_of_integers(to, saturate):
    """Both registers may be wider than their types: above are zeros, or the sign, and what is read there is dropped."""
    bits = int(to[1:])
    for source, into, out_of in itertools.product(EIGHT, SIZES, SIZES):
        if into < bits or out_of < int(source[1:]):
            continue
        fits = int(source[1:]) <= bits if source[0] == to[0] else source[0] == "u" and int(source[1:]) < bits
        if saturate and fits:  # ptxas refuses a .sat without effect
            continue

        def convert(x, source=source, into=into):
            value = view(x, source)
            if saturate:
                low, top = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
                value = max(low, min(top, value))
            return fit(view(value, to), into)

        agree(f"cvt{'.sat' if saturate else ''}.{to}.{source} {{0}}, {{a}}", [f"b{out_of}"], [f"b{into}"],
              convert, (0x7F, 0x80, 0xFF, 0x8080), rounds=1)  # fmt: skip


@pytest.mark.parametrize("kind", ["f16", "f32"])
def test_conversions_of_floats_into_wider_registers(kind):
    bits = 16 if kind.endswith("16") else 32
    for source, register in (("f32", "b32"), ("f64", "b64"), ("s16", "b32"), ("u32", "b64"), ("f16", "b64")):
        if (kind, source) in (("f32", "f16"), ("f16", "f16"), ("f32", "f32")):
            continue
        wide, narrow = [], []
        for into, out in ((32 if bits == 16 else 64, wide), (bits, narrow)):
            values = [n * 0x3F3504F3 & (1 << int(register[1:])) - 1 for n in range(32)]
            text = f"cvt.rn.{kind}.{source} {{0}}, {{a}}"
            out += evaluate(text, [(register, values)], [f"b{into}"])[0]
        assert wide == narrow


def test_registers_of_another_width_than_the_type_are_refused():
    for text in (
        "add.u32 %d0, %r0, %r1", "mov.b32 %r0, %h0", "bfe.u32 %r0, %d0, %r1, %r2", "shl.b64 %d0, %d1, %d2",
        "selp.b32 %d0, %r0, %r1, %p0", "setp.eq.u16 %p0, %r0, %h1", "and.b32 %r0, %r1, %h1", "popc.b64 %d0, %d1",
        "mul.wide.u32 %r0, %r1, %r2", "mad.wide.u16 %d0, %h0, %h1, %r1", "fma.rn.f16 %h0, %h1, %h2, %r0",
        "neg.s64 %r0, %d0", "mov.b64 {%r0, %h0}, %d0", "mov.b64 %d0, {%r0, %h0}", "selp.b32 %r0, %r1, %r2, %r3",
        "cvt.u32.u8 %h0, %h1", "cvt.u8.u64 %h0, %r0", "cvt.rn.f32.u64 %r0, %r1", "cvt.rzi.u64.f32 %r0, %r1",
        "ld.shared.u32 %h0, [%r0]", "st.shared.b64 [%r0], %r1", "ld.shared.v2.b32 {%r0, %h0}, [%r0]",
        "atom.shared.add.u32 %d0, [%r0], %r1", "@%r0 mov.u32 %r0, 1",
    ):  # fmt: skip
        with pytest.raises(PtxError, match=r"PTX line \d+.*register of (\d+|type)"):
            run(text + ";", shared=64)


@pytest.mark.parametrize("kind", [*EIGHT, "f32", "b8", "b32"])
def test_loads_and_stores_with_wider_registers(kind):
    """ld extends to its register by the type's sign, st drops what is above; 64-bit logic takes what came of them."""
    bits = int(kind.lstrip("usfb"))
    for letter, into in (("h", 16), ("r", 32), ("d", 64)):
        if into < bits:
            continue
        values = [(n * 0x9E3779B97F4A7C15 ^ n << 60) & (1 << 64) - 1 for n in range(32)]
        source, out = np.array(values, np.uint64), np.zeros(32, np.uint64)
        kept = np.zeros(32, np.uint64)
        for index in ("%tid.x", "0"):
            run(
                f"""mov.u32 %r31, %tid.x; mul.wide.u32 %d31, %r31, 8; add.u64 %d30, %out, %d31;
                add.u64 %d28, %kept, %d31; mov.u32 %r30, {index}; mul.wide.u32 %d29, %r30, 8;
                add.u64 %d29, %source, %d29; ld.global.{kind} %{letter}5, [%d29]; st.global.{kind} [%d28], %{letter}5;
                cvt.u64.u{into} %d6, %{letter}5; or.b64 %d6, %d6, 0; st.global.b64 [%d30], %d6;""",
                {"source": source, "out": out, "kept": kept},
            )
            for lane in range(32):
                value = values[lane if index != "0" else 0]
                assert int(out[lane]) == fit(view(value, f"{'s' if kind[0] == 's' else 'u'}{bits}"), into)
                assert int(kept[lane]) == fit(value, bits)


def test_moves():
    for b in ("b16", "b32", "b64"):
        agree(f"mov.{b} {{0}}, {{a}}", [b], [b], lambda x: x)
        agree(f"@{{b}} mov.{b} {{0}}, {{a}}".replace("{0}", "{a}"), [b, "pred"], [], lambda *a: ())
    for b in ("b16", "b32", "b64"):
        agree(f"mov.v2.{b} {{{{{{0}}, {{1}}}}}}, {{{{{{a}}, {{b}}}}}}", [b] * 2, [b] * 2, lambda x, y: (x, y))
    swap = "mov.v2.b32 {{{a}, {b}}}, {{{b}, {a}}}; mov.v4.b32 {{{0}, {1}, {2}, _}}, {{1, 2, 3, 4}}; "
    agree(swap + "@{c} mov.b32.v4 {{{0}, _, {1}, {2}}}, {{{a}, {a}, {b}, 7}}", ["b32", "b32", "pred"], ["b32"] * 3,
          lambda x, y, c: (y, x, 7) if c else (1, 2, 3))  # fmt: skip
    agree("mov.b32 {0}, {{{a}, {b}}}", ["b16", "b16"], ["b32"], lambda x, y: x | y << 16)
    agree("mov.b64 {0}, {{{a}, {b}}}", ["b32", "b32"], ["b64"], lambda x, y: x | y << 32)
    agree(
        "mov.b64 {0}, {{{a}, {b}, {c}, {d}}}", ["b16"] * 4, ["b64"], lambda a, b, c, d: a | b << 16 | c << 32 | d << 48
    )
    agree("mov.b32 {{{0}, {1}}}, {a}", ["b32"], ["b16", "b16"], lambda x: (x & 0xFFFF, x >> 16))
    agree("mov.b64 {{{0}, {1}}}, {a}", ["b64"], ["b32", "b32"], lambda x: (fit(x, 32), x >> 32))
    agree("mov.b64 {{_, {0}}}, {a}", ["b64"], ["b32"], lambda x: x >> 32)
    agree("mov.b64 {{{0}, _}}, {a}", ["b64"], ["b32"], lambda x: fit(x, 32))


def test_a_predicate_keeps_the_other_lanes():
    body = """mov.u32 %r30, %tid.x; mul.wide.u32 %d30, %r30, 8; add.s64 %d0, %out, %d30; setp.lt.u32 %p0, %r30, 9;
    mov.u32 %r0, 7; @%p0 mov.u32 %r0, 5; @!%p0 add.u32 %r0, %r0, 1; mov.u64 %d1, 0x1234567890;
    @%p0 mov.u64 %d1, 1; cvt.u64.u32 %d2, %r0; add.u64 %d1, %d1, %d2; st.global.u64 [%d0], %d1;"""
    import numpy as np

    out = np.zeros(32, np.uint64)
    run(body, {"out": out})
    assert out.tolist() == [6 if i < 9 else 0x1234567898 for i in range(32)]


@pytest.mark.parametrize(
    "text",
    [
        "add.cc.u16 %h0, %h1, %h2;", "addc.f32 %f0, %f1, %f2;", "mul24.wide.u32 %r0, %r1, %r2;", "prmt.f4e.b64 %r0, %r1, %r2, %r3;",  # noqa: E501
        "set.eq.u64.u32 %d0, %r1, %r2;", "mul.hi.b32 %r0, %r1, %r2;", "add.rz.f16 %h0, %h1, %h2;", "frobnicate.u32 %r0;",  # noqa: E501
        "cvt.rni.f32.f64 %f0, %e0;", "mov.foo.u32 %r0, %r1;", "shf.x.clamp.b32 %r0, %r1, %r2, %r3;", "sad.b32 %r0, %r1, %r2, %r3;",  # noqa: E501
        "lop3.xor.b32 %r0|%p0, %r1, %r2, %r3, 1, %p1;", "mov.u32 %r0, nowhere;", "mov.u32 7, %r0;", "add.u32 _, %r0, 6;",  # noqa: E501
        "add.f32 %f0, %f1, %r0, %r1;", "add.f32 %f0, %f1, 1;", "add.u32 %r0, %f1, %r2;", "bfe.u32 %r0, %r1, 300, 5;",
        "setp.eq.f32 %p0, %f0, 0;", "cvt.sat.s32.u8 %r0, %h0;", "min.f32 %f0, %f1, %f2, %f3;", "add.f32x2 %d0, %d1, %d2;",  # noqa: E501
        "cvt.rn.satfinite.e4m3x2.f32 %r0, %f1, %f2;",
    ],
)  # fmt: skip
def test_unknown_forms_are_refused_with_their_line(text):
    with pytest.raises(PtxError, match=r"PTX line \d+"):
        run(text)


def test_evaluate_wants_arithmetic():
    assert evaluate("mov.b32 {0}, {a}", [("b32", [3] * 32)], ["b32"]) == [[3] * 32]


@pytest.mark.parametrize(
    ("mask", "base", "offset", "found"),
    [
        (0b10100, 0, 2, 4), (0b10100, 4, -2, 2), (0b10100, 4, 0, 4), (0b10100, 3, 0, 0xFFFFFFFF),
        (0b10100, 0, 3, 0xFFFFFFFF),
        # As an H100 gave them: a base beyond 31, downwards, finds nothing; -2**31 gives 0.
        (0x8, 0xFFFFFFFF, -1, 0xFFFFFFFF), (0x800000, 0x4000600, -1, 0xFFFFFFFF), (0x5, 0x5, -(1 << 31), 0),
        (0x80FFFFFF, 0x3F895BA3, -(1 << 31), 0),
    ],
)  # fmt: skip
def test_the_nth_set_bit(mask: int, base: int, offset: int, found: int) -> None:
    assert find_set(mask, base, offset & 0xFFFFFFFF) == found
