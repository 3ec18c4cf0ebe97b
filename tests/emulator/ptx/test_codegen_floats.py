"""Every floating-point instruction against exact rational arithmetic, rounded once to the destination's format."""

from __future__ import annotations

import itertools
import math
import operator
from fractions import Fraction

import pytest

from tests.emulator.ptx.lanewise import agree, evaluate
from tests.test_dtypes import codes_of, value_of

# name -> (bits, exponent bits, mantissa bits)
FORMATS = {"f64": (64, 11, 52), "f32": (32, 8, 23), "f16": (16, 5, 10), "bf16": (16, 8, 7), "tf32": (19, 8, 10)}
NAN, INF = "nan", "inf"
Number = tuple[int, "Fraction | str"]  # (sign, size)


def unpack(bits: int, name: str) -> Number:
    width, exponents, mantissas = FORMATS[name]
    sign, exponent = bits >> width - 1, bits >> mantissas & (1 << exponents) - 1
    mantissa, bias = bits & (1 << mantissas) - 1, (1 << exponents - 1) - 1
    if exponent == (1 << exponents) - 1:
        return sign, NAN if mantissa else INF
    whole = mantissa | (1 << mantissas if exponent else 0)
    return sign, Fraction(whole) * Fraction(2) ** (max(exponent, 1) - bias - mantissas)


def pack(number: Number, name: str, away: bool = False) -> int:
    """Rounded to nearest even (or ties away from 0); NaN is all ones but the sign."""
    width, exponents, mantissas = FORMATS[name]
    sign, size = number
    top = ((1 << exponents) - 1) << mantissas
    if size == NAN:
        return (1 << width - 1) - 1
    if size == INF:
        return sign << width - 1 | top
    if size == 0:
        return sign << width - 1
    bias = (1 << exponents - 1) - 1
    exponent = max(math.floor(math.log2(size.numerator) - math.log2(size.denominator)), -bias)
    while Fraction(2) ** (exponent + 1) <= size:
        exponent += 1
    while exponent > 1 - bias and Fraction(2) ** exponent > size:
        exponent -= 1
    exponent = max(exponent, 1 - bias)
    scaled = size / Fraction(2) ** (exponent - mantissas)
    down, rest = int(scaled), scaled - int(scaled)
    if rest > Fraction(1, 2) or (rest == Fraction(1, 2) and (away or down & 1)):
        down += 1
    code = down + ((exponent + bias - 1) << mantissas)  # a mantissa that overflows goes to the next exponent
    return sign << width - 1 | min(code, top)


def value(number: Number) -> Fraction:
    return -number[1] if number[0] else number[1]


def of(x: Fraction, zero_sign: int = 0) -> Number:
    return (zero_sign, Fraction(0)) if x == 0 else (int(x < 0), abs(x))


def add(a: Number, b: Number) -> Number:
    if NAN in (a[1], b[1]) or (a[1] == b[1] == INF and a[0] != b[0]):
        return 0, NAN
    if INF in (a[1], b[1]):
        return a if a[1] == INF else b
    return of(value(a) + value(b), a[0] & b[0])


def negate(a: Number) -> Number:
    return 1 - a[0], a[1]


def multiply(a: Number, b: Number) -> Number:
    sign, sizes = a[0] ^ b[0], (a[1], b[1])
    if NAN in sizes or (INF in sizes and 0 in sizes):
        return 0, NAN
    return sign, INF if INF in sizes else a[1] * b[1]


def divide(a: Number, b: Number) -> Number:
    sign = a[0] ^ b[0]
    if NAN in (a[1], b[1]) or a[1] == b[1] == INF or a[1] == b[1] == 0:
        return 0, NAN
    if a[1] == INF or b[1] == 0:
        return sign, INF
    return (sign, Fraction(0)) if b[1] == INF else (sign, a[1] / b[1])


def fused(a: Number, b: Number, c: Number) -> Number:
    return add(multiply(a, b), c)


def order(a: Number) -> tuple[float, int]:
    size = math.inf if a[1] == INF else a[1]
    return (-size if a[0] else size), 1 - a[0]


def least(a: Number, b: Number) -> Number:
    if a[1] == NAN or b[1] == NAN:
        return b if a[1] == NAN else a
    return min(a, b, key=order)


def greatest(a: Number, b: Number) -> Number:
    if a[1] == NAN or b[1] == NAN:
        return b if a[1] == NAN else a
    return max(a, b, key=order)


TWO = {"add": add, "sub": lambda a, b: add(a, negate(b)), "mul": multiply, "min": least, "max": greatest}
SPECIAL = {
    32: (0x80000000, 1, 0x80000001, 0x00800000, 0x007FFFFF, 0x3F800000, 0xBF800000, 0x7F800000, 0xFF800000, 0x7FC00000,
         0x7F7FFFFF, 0x3F800001, 0x4B800000, 0x40490FDB, 0x477FE000, 0x33800000),
    64: (1 << 63, 1, 0x3FF0000000000000, 0xBFF0000000000000, 0x7FF0000000000000, 0xFFF0000000000000, 0x7FF8000000000000,
         0x7FEFFFFFFFFFFFFF, 0x0010000000000000, 0x3FF0000000000001, 0x4330000000000001),
    16: (0x8000, 1, 0x3C00, 0xBC00, 0x7C00, 0xFC00, 0x7E00, 0x7BFF, 0x0400, 0x3F80, 0xBF80, 0x7F80, 0xFF80, 0x7FC0,
         0x7F7F, 0x3C01, 0x3F81, 0x0080),
}  # fmt: skip


def same(name: str):
    return lambda got, want: got == want or (unpack(got, name)[1] == NAN == unpack(want, name)[1] and name == "f64")


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_arithmetic(name):
    bits = FORMATS[name][0]
    b = f"b{bits}"
    for operation, function in TWO.items():
        rounding = ".rn" if operation in ("add", "sub", "mul") else ""
        agree(f"{operation}{rounding}.{name} {{0}}, {{a}}, {{b}}", [b, b], [b],
              lambda x, y, f=function: pack(f(unpack(x, name), unpack(y, name)), name), SPECIAL[bits], same(name))  # fmt: skip # noqa: E501
    agree(f"fma.rn.{name} {{0}}, {{a}}, {{b}}, {{c}}", [b] * 3, [b],
          lambda x, y, z: pack(fused(*[unpack(v, name) for v in (x, y, z)]), name), SPECIAL[bits], same(name), 4)  # fmt: skip # noqa: E501
    if bits >= 32:
        agree(f"div.rn.{name} {{0}}, {{a}}, {{b}}", [b, b], [b],
              lambda x, y: pack(divide(unpack(x, name), unpack(y, name)), name), SPECIAL[bits], same(name))  # fmt: skip
    flip = 1 << bits - 1
    agree(f"neg.{name} {{0}}, {{a}}", [b], [b], lambda x: x ^ flip, SPECIAL[bits])
    agree(f"abs.{name} {{0}}, {{a}}", [b], [b], lambda x: x & flip - 1, SPECIAL[bits])


def test_fma_rounds_once_where_two_roundings_differ():
    # bf16: 1 + 2**-7 times itself is a tie but for the addend far below it.
    one = 0x3F81
    exact = Fraction(129, 128) ** 2
    for addend in (0x0080, 0x8080, 0x2B80, 0xAB80):
        got = evaluate("fma.rn.bf16 {0}, {a}, {b}, {c}", [("b16", [x] * 32) for x in (one, one, addend)], ["b16"])
        assert got[0][0] == pack(of(exact + value(unpack(addend, "bf16"))), "bf16")
    half_way = 0x3F80, 0x3FC0  # 1.0 and 1.5: 1.5 * (1 + 2**-7) lies half way between two bf16
    for addend in (0x0001, 0x8001):
        inputs = [("b16", [x] * 32) for x in (half_way[1], one, addend)]
        want = Fraction(3, 2) * Fraction(129, 128) + value(unpack(addend, "bf16"))
        assert evaluate("fma.rn.bf16 {0}, {a}, {b}, {c}", inputs, ["b16"])[0][0] == pack(of(want), "bf16")


def test_nan_of_minimum_and_maximum():
    for operation, function in (("min", least), ("max", greatest)):

        def strict(x, y, f=function):
            a, b = unpack(x, "f32"), unpack(y, "f32")
            return pack((0, NAN) if NAN in (a[1], b[1]) else f(a, b), "f32")

        agree(f"{operation}.NaN.f32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b32"], strict, SPECIAL[32])


@pytest.mark.parametrize("name", ["f16x2", "bf16x2"])
def test_packed_halves(name):
    kind = name[:-2]

    def both(function):
        def lane(*words):
            parts = [pack(function(*[unpack(w >> at & 0xFFFF, kind) for w in words]), kind) for at in (0, 16)]
            return parts[0] | parts[1] << 16

        return lane

    extra = tuple(x << 16 | y for x in SPECIAL[16] for y in SPECIAL[16][:4])
    for operation, function in TWO.items():
        agree(f"{operation}.{name} {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b32"], both(function), extra)
    agree(f"fma.rn.{name} {{0}}, {{a}}, {{b}}, {{c}}", ["b32"] * 3, ["b32"], both(fused), extra)
    agree(f"neg.{name} {{0}}, {{a}}", ["b32"], ["b32"], lambda x: x ^ 0x80008000)
    agree(f"abs.{name} {{0}}, {{a}}", ["b32"], ["b32"], lambda x: x & 0x7FFF7FFF)


def test_pairs_of_f32():
    def both(function):
        def lane(*words):
            parts = [pack(function(*[unpack(w >> at & 0xFFFFFFFF, "f32") for w in words]), "f32") for at in (0, 32)]
            return parts[0] | parts[1] << 32

        return lane

    extra = tuple(x << 32 | y for x in SPECIAL[32] for y in SPECIAL[32][:4])
    for operation in ("add", "mul"):
        agree(f"{operation}.rn.f32x2 {{0}}, {{a}}, {{b}}", ["b64", "b64"], ["b64"], both(TWO[operation]), extra)
    agree("fma.rn.f32x2 {0}, {a}, {b}, {c}", ["b64"] * 3, ["b64"], both(fused), extra)


def flushed(bits: int) -> int:
    return bits if bits & 0x7F800000 else bits & 0x80000000


def clamp(bits: int) -> int:
    sign, size = unpack(bits, "f32")
    return 0 if size == NAN or sign else 0x3F800000 if size == INF or size > 1 else bits


def test_flushing_and_saturation():
    for operation in ("add", "mul", "min", "max"):

        def small(x, y, f=TWO[operation]):
            return flushed(pack(f(unpack(flushed(x), "f32"), unpack(flushed(y), "f32")), "f32"))

        tiny = (1, 0x80000001, 0x007FFFFF, 0x00800000, 0x80800000, 0x1F800000)
        agree(f"{operation}.ftz.f32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b32"], small, tiny)
    for operation in ("add", "mul"):

        def bounded(x, y, f=TWO[operation]):
            return clamp(pack(f(unpack(x, "f32"), unpack(y, "f32")), "f32"))

        agree(f"{operation}.sat.f32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b32"], bounded, SPECIAL[32])


@pytest.mark.parametrize("name", ["f32", "f64", "f16", "bf16"])
def test_comparisons(name):
    b, bits = f"b{FORMATS[name][0]}", FORMATS[name][0]
    compare = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le, "gt": operator.gt,
               "ge": operator.ge}  # fmt: skip
    for operation, function in compare.items():
        for unordered in (False, True):

            def holds(x, y, f=function, u=unordered):
                a, c = unpack(x, name), unpack(y, name)
                return int(u) if NAN in (a[1], c[1]) else int(f(order(a)[0], order(c)[0]))

            agree(f"setp.{operation}{'u' if unordered else ''}.{name} {{0}}, {{a}}, {{b}}", [b, b], ["pred"], holds,
                  SPECIAL[bits])  # fmt: skip
    for operation in ("num", "nan"):

        def ordered(x, y, o=operation):
            return int((NAN in (unpack(x, name)[1], unpack(y, name)[1])) == (o == "nan"))

        agree(f"setp.{operation}.{name} {{0}}, {{a}}, {{b}}", [b, b], ["pred"], ordered, SPECIAL[bits])


def test_set_writes_a_mask_or_a_one():
    """__hgt2_mask is set.gt.u32.f16x2: each half of the result belongs to the halves of both operands."""

    def masks(x, y):
        return sum(0xFFFF << n for n in (0, 16) if holds(x >> n & 0xFFFF, y >> n & 0xFFFF))

    def holds(x, y, name="f16"):
        a, c = unpack(x, name), unpack(y, name)
        return NAN not in (a[1], c[1]) and order(a)[0] > order(c)[0]

    pairs = [low | SPECIAL[16][-n] << 16 for n, low in enumerate(SPECIAL[16])]
    agree("set.gt.u32.f16x2 {0}, {a}, {b}", ["b32", "b32"], ["b32"], masks, pairs)
    for to, one in (("f16", 0x3C00), ("bf16", 0x3F80)):
        text = f"set.gt.{to}.f32 {{0}}, {{a}}, {{b}}"
        agree(text, ["b32", "b32"], ["b16"], lambda x, y, one=one: one * holds(x, y, "f32"), SPECIAL[32])


@pytest.mark.parametrize("source", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("to", ["f32", "f64", "f16", "bf16"])
def test_conversions_of_floats(source, to):
    if source == to:
        return
    wide, out = FORMATS[source][0], FORMATS[to][0]
    narrow = {source, to} == {"f16", "bf16"}  # F2F.BF16.F16 rounds to the nearest, with .rn and without
    for rounding in ("", ".rn") if narrow else (".rn",) if out < wide else ("",):
        text = f"cvt{rounding}.{to}.{source} {{0}}, {{a}}"
        agree(text, [f"b{wide}"], [f"b{out}"], lambda x: pack(unpack(x, source), to), SPECIAL[wide], same(to))


def test_conversions_that_saturate_or_clamp():
    def limited(x, to, relu, finite):
        sign, size = unpack(x, "f32")
        if relu and sign and size != NAN:
            sign, size = 0, Fraction(0)
        code = pack((sign, size), to)
        top = (1 << FORMATS[to][0] - 1) - 1
        infinite = ((1 << FORMATS[to][1]) - 1) << FORMATS[to][2]
        return code - 1 if finite and code & top == infinite else code

    for to in ("f16", "bf16"):
        agree(
            f"cvt.rn.satfinite.{to}.f32 {{0}}, {{a}}",
            ["b32"],
            ["b16"],
            lambda x, t=to: limited(x, t, 0, 1),
            SPECIAL[32],
        )
        agree(f"cvt.rn.relu.{to}.f32 {{0}}, {{a}}", ["b32"], ["b16"], lambda x, t=to: limited(x, t, 1, 0), SPECIAL[32])
        agree(f"cvt.rn.{to}x2.f32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b32"],
              lambda x, y, t=to: limited(x, t, 0, 0) << 16 | limited(y, t, 0, 0), SPECIAL[32])  # fmt: skip
        agree(f"cvt.rn.satfinite.relu.{to}x2.f32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b32"],
              lambda x, y, t=to: limited(x, t, 1, 1) << 16 | limited(y, t, 1, 1), SPECIAL[32])  # fmt: skip
    agree("cvt.sat.f32.f32 {0}, {a}", ["b32"], ["b32"], clamp, SPECIAL[32])


def test_tf32():
    def rounded(x, away):
        sign, size = unpack(x, "f32")
        return (x | 0x7FFFFFFF) & 0x7FFFFFFF if size == NAN else pack((sign, size), "tf32", away) << 13

    for word in ("rna", "rn"):

        def agrees(got, want):
            return got == want or (
                got & 0x7F800000 == 0x7F800000 == want & 0x7F800000 and got & 0x7FE000 and want & 0x7FFFFF
            )

        agree(f"cvt.{word}.tf32.f32 {{0}}, {{a}}", ["b32"], ["b32"], lambda x, w=word: rounded(x, w == "rna"),
              (*SPECIAL[32], 0x3F801000, 0x3F803000, 0x3F800FFF), agrees)  # fmt: skip
    top = evaluate(
        "cvt.rna.satfinite.tf32.f32 {0}, {a}", [("b32", [0x7F800000, 0x7F7FFFFF, 0xFF800000] + [0] * 29)], ["b32"]
    )
    assert top[0][:3] == [0x7F7FE000, 0x7F7FE000, 0xFF7FE000]


@pytest.mark.parametrize("to", [f"{letter}{bits}" for letter in "us" for bits in (8, 16, 32, 64)])
def test_floats_to_integers(to):
    bits = int(to[1:])
    low, top = (-(1 << bits - 1), (1 << bits - 1) - 1) if to[0] == "s" else (0, (1 << bits) - 1)
    modes = {"rzi": int, "rmi": math.floor, "rpi": math.ceil, "rni": round}
    out = max(bits, 16)
    for source in ("f32", "f64", "f16"):
        for mode, function in modes.items():

            def convert(x, f=function, source=source):
                sign, size = unpack(x, source)
                if size == NAN and (source == "f64" or bits == 64):  # the top bit of the type, as an H100 gives it
                    return (low if to[0] == "s" else 1 << bits - 1) & (1 << out) - 1
                if size == NAN:
                    return 0
                whole = (low if sign else top) if size == INF else max(low, min(top, f(value((sign, size)))))
                return whole & (1 << out) - 1

            width = FORMATS[source][0]
            extra = {
                32: (0x4F000000, 0xCF000000, 0x4F800000, 0x5F000000, 0x3F000000, 0xBFC00000, 0x42FE0000),
                64: (0x43E0000000000000, 0xC3E0000000000000, 0x3FE0000000000000, 0x41EFFFFFFFE00000),
                16: (),
            }
            agree(f"cvt.{mode}.{to}.{source} {{0}}, {{a}}", [f"b{width}"], [f"b{out}"], convert,
                  SPECIAL[width] + extra[width])  # fmt: skip


@pytest.mark.parametrize("to", ["f32", "f64", "f16", "bf16"])
def test_integers_to_floats(to):
    for source in [f"{letter}{bits}" for letter in "us" for bits in (8, 16, 32, 64)]:
        if source[1:] == "8" and to == "bf16":
            continue  # no form of PTX
        bits = int(source[1:])

        def convert(x, source=source, bits=bits):
            x &= (1 << bits) - 1
            whole = x - (1 << bits) if source[0] == "s" and x >> bits - 1 else x
            return pack(of(Fraction(whole)), to)

        agree(f"cvt.rn.{to}.{source} {{0}}, {{a}}", [f"b{max(bits, 16)}"], [f"b{FORMATS[to][0]}"], convert)


def test_rounding_to_whole_floats():
    for mode, function in {"rzi": int, "rmi": math.floor, "rpi": math.ceil, "rni": round}.items():

        def whole(x, f=function):
            sign, size = unpack(x, "f32")
            return (
                pack((sign, size), "f32")
                if size in (NAN, INF)
                else pack(of(Fraction(f(value((sign, size)))), sign), "f32")
            )

        agree(f"cvt.{mode}.f32.f32 {{0}}, {{a}}", ["b32"], ["b32"], whole, (*SPECIAL[32], 0x3F000000, 0x40200000))


# Narrow formats: the values of their codes from tests/test_dtypes.py.
def table(kind: str) -> dict[int, float]:
    return {code: value_of(kind, code) for code in codes_of(kind)}


@pytest.mark.parametrize("kind", ["e4m3", "e5m2", "e3m2", "e2m3", "e2m1"])
def test_narrow_formats(kind):
    codes = table(kind)
    bits = {"e4m3": 8, "e5m2": 8}.get(kind, 4 if kind == "e2m1" else 6)
    field = 4 if kind == "e2m1" else 8
    finite = {c: v for c, v in codes.items() if math.isfinite(v)}
    most = max(finite.values())
    positive = {c: Fraction(v) for c, v in finite.items() if c >> bits - 1 == 0}

    def narrow(x, relu=False):
        sign, size = unpack(x, "f32")
        if size == NAN:
            return 0x7F if bits == 8 else max(positive)
        if relu and sign:
            sign, size = 0, Fraction(0)
        exact = Fraction(most) if size == INF or size > most else size
        best = min(positive, key=lambda c: (abs(positive[c] - exact), c & 1))
        return best | sign << bits - 1

    steps = tuple(
        pack(of(Fraction(v) + Fraction(d, 64)), "f32") for v in list(finite.values())[:40:3] for d in (-1, 0, 1)
    )
    out = "b8" if kind == "e2m1" else "b16"
    agree(f"cvt.rn.satfinite.{kind}x2.f32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], [out],
          lambda x, y: narrow(x) << field | narrow(y), (*SPECIAL[32], *steps), rounds=4)  # fmt: skip
    agree(f"cvt.rn.satfinite.relu.{kind}x2.f32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], [out],
          lambda x, y: narrow(x, True) << field | narrow(y, True), (*SPECIAL[32], *steps))  # fmt: skip

    def half(code):
        v = codes[code & (1 << bits) - 1]
        if math.isnan(v):
            return 0x7FFF
        return pack((int(math.copysign(1, v) < 0), INF if math.isinf(v) else Fraction(abs(v))), "f16")

    agree(f"cvt.rn.f16x2.{kind}x2 {{0}}, {{a}}", [out], ["b32"],
          lambda x: half(x >> field & (1 << field) - 1) << 16 | half(x & (1 << field) - 1), rounds=6)  # fmt: skip


def test_scales():
    def code(x, up, top):
        _, size = unpack(x, "f32")
        if size == NAN:
            return 255
        if size == INF:
            return top
        fits = [c for c in range(255) if (Fraction(2) ** (c - 127) >= size if up else Fraction(2) ** (c - 127) <= size)]
        return (min(fits) if up else max(fits)) if fits else (top if up else 0)

    for word, (limit, top) in itertools.product(("rp", "rz"), ((".satfinite", 254), ("", 255))):
        agree(f"cvt.{word}{limit}.ue8m0x2.f32 {{0}}, {{a}}, {{b}}", ["b32", "b32"], ["b16"],
              lambda x, y, u=word == "rp", top=top: code(x, u, top) << 8 | code(y, u, top), SPECIAL[32])  # fmt: skip

    def bf16(c):
        return 0x7FFF if c == 255 else pack((0, Fraction(2) ** (c - 127)), "bf16")

    agree("cvt.rn.bf16x2.ue8m0x2 {0}, {a}", ["b16"], ["b32"], lambda x: bf16(x >> 8) << 16 | bf16(x & 255))


def test_functions():
    """Approximations: within two units of the last place; their special values exactly."""
    exact = {"rcp": lambda x: 1 / x, "sqrt": math.sqrt, "rsqrt": lambda x: 1 / math.sqrt(x), "ex2": lambda x: 2.0**x,
             "lg2": math.log2, "tanh": math.tanh}  # fmt: skip
    values = [0.5, 1.0, 1.5, 2.0, 3.7, 10.0, 0.001, 30.0] * 4
    bits = [pack(of(Fraction(v)), "f32") for v in values]
    for name, function in exact.items():
        got = evaluate(f"{name}.approx{'' if name == 'tanh' else '.ftz'}.f32 {{0}}, {{a}}", [("b32", bits)], ["b32"])[0]
        for x, code in zip(bits, got):
            want = Fraction(function(float(unpack(x, "f32")[1])))
            assert abs(value(unpack(code, "f32")) - want) <= abs(want) * Fraction(1, 1 << 23) + Fraction(1, 1 << 40)
    special = evaluate("rcp.approx.f32 {0}, {a}", [("b32", [0, 0x80000000, 0x7F800000, 0x7FC00000] * 8)], ["b32"])[0]
    assert special[:4] == [0x7F800000, 0xFF800000, 0, 0x7FFFFFFF]
    roots = evaluate("sqrt.rn.f32 {0}, {a}", [("b32", [0xBF800000, 0x80000000, 0x40800000, 0x40000000] * 8)], ["b32"])[
        0
    ]
    assert roots[:4] == [0x7FFFFFFF, 0x80000000, 0x40000000, 0x3FB504F3]
    assert evaluate("ex2.approx.ftz.bf16x2 {0}, {a}", [("b32", [0x40003F80] * 32)], ["b32"])[0][0] == 0x40804000
    assert evaluate("tanh.approx.f16 {0}, {a}", [("b16", [0x3C00] * 32)], ["b16"])[0][0] == 0x3A18


def test_sines_reduce_their_argument_as_an_h200_does() -> None:
    """Bits of an H200 for large arguments; others within the absolute error of PTX, 2**-20.5."""
    large = [0xF801FB99, 0x58C4D7F5, 0x4B394212, 0x7F800000] * 8
    sines, cosines = (
        evaluate(f"{name}.approx.f32 {{0}}, {{a}}", [("b32", large)], ["b32"])[0] for name in ("sin", "cos")
    )
    assert list(sines[:4]) == [0x80000000, 0, 0xBF800000, 0x7FFFFFFF]
    assert list(cosines[:2]) == [0x3F800000] * 2 and abs(value(unpack(cosines[2], "f32"))) < Fraction(1, 1 << 40)
    near = [Fraction(n, 10) for n in range(-31, 32, 2)]
    bits = [pack(of(x), "f32") for x in near]
    for name, function in (("sin", math.sin), ("cos", math.cos)):
        got = evaluate(f"{name}.approx.ftz.f32 {{0}}, {{a}}", [("b32", bits)], ["b32"])[0]
        for x, code in zip(near, got, strict=True):
            assert abs(value(unpack(code, "f32")) - Fraction(function(x))) < Fraction(1, 1400000)


def test_approximations_of_f64_with_ftz_read_the_upper_half_of_a_nan() -> None:
    """0xfff0000000000001 gave the reciprocal of -infinity on an H100, and 0x7ff0000000000001 the root's of infinity."""
    root = evaluate("rsqrt.approx.ftz.f64 {0}, {a}", [("b64", [0x7FF0000000000001, 0x7FF8000000000000] * 16)], ["b64"])[
        0
    ]
    assert list(root[:2]) == [0, 0x7FFFFFFF00000000]
    given = [0xFFF0000000000001, 0x7FF0000000000001, 0x7FF8000000000000, 0xFFF0000000000000] * 8
    (found,) = evaluate("rcp.approx.ftz.f64 {0}, {a}", [("b64", given)], ["b64"])
    assert list(found[:4]) == [1 << 63, 0, 0x7FFFFFFF00000000, 1 << 63]
