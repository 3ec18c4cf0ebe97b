"""Forms of PTX 9.1 to 9.4, and every rounding of bf16, against Python's integers and fractions."""

from __future__ import annotations

import itertools
import math
import random
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from layoutgemm.errors import PtxError
from tests.emulator.run_ptx import module, program, run

RNG = random.Random(9)
BF16 = ml_dtypes.bfloat16


def computed(line: str, *operands: np.ndarray, target: str = "sm_120a", kind: str = "b32") -> np.ndarray:
    """The results of an instruction: operands in %r1, %r2, %r3, or in %h1 or %b1 and on; the result in %r0 or %h0."""
    count = len(operands[0])
    load = "mov.u32 %r30, %ctaid.x; mov.u32 %r31, %tid.x; mad.lo.u32 %r30, %r30, 32, %r31; mul.wide.u32 %d1, %r30, 4;"
    for n, _ in enumerate(operands, 1):
        load += f"add.u64 %d2, %a{n}, %d1; ld.global.u32 %r{n}, [%d2]; cvt.u16.u32 %h{n}, %r{n};"
        load += f"mov.b16 {{%b{n}, _}}, %h{n};"
    store = "cvt.u32.u16 %r0, %h0;" if kind == "b16" else ""
    body = f"{load} {line} {store} add.u64 %d2, %out, %d1; st.global.u32 [%d2], %r0;"
    out = np.zeros(count, np.uint32)
    buffers = {f"a{n}": x.astype(np.uint32) for n, x in enumerate(operands, 1)}
    run(body, {**buffers, "out": out}, grid=count // 32, target=target)
    return out


# Packed integers ------------------------------------------------------------------------------------------------------

WORDS = [0, 0xFFFFFFFF, 0x80808080, 0x7F7F7F7F, 0x80007FFF, 0xFF01FE02] + [RNG.getrandbits(32) for _ in range(26)]
PAIRS = list(itertools.product(WORDS, WORDS))
A, B = (np.array([pair[n] for pair in PAIRS], np.uint32) for n in (0, 1))


def fields(x: int, bits: int, signed: bool) -> list[int]:
    parts = [x >> at & (1 << bits) - 1 for at in range(0, 32, bits)]
    return [part - (1 << bits) if signed and part >> bits - 1 else part for part in parts]


def by_field(opcode: str, a: int, b: int) -> int:
    name, *words = opcode.split(".")
    bits, signed = (32 if words[-1] == "u32" else 16 if "16" in words[-1] else 8), words[-1][0] == "s"
    low, top = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    out = 0
    for n, (x, y) in enumerate(zip(fields(a, bits, signed), fields(b, bits, signed), strict=True)):
        made = {"add": x + y, "sub": x - y, "min": min(x, y), "max": max(x, y), "neg": -x}[name]
        made = max(made, 0) if "relu" in words else made
        made = min(max(made, low), top) if "sat" in words else made
        out |= (made & (1 << bits) - 1) << n * bits
    return out


FORMS = [f"{name}{sat}.{kind}" for name in ("add", "sub") for sat in ("", ".sat") for kind in ("u8x4", "s8x4")]
FORMS += [f"{name}.{kind}" for name in ("min", "max") for kind in ("u8x4", "s8x4", "relu.s8x4")]
FORMS += ["neg.s8x4", "add.sat.u32", "add.sat.u16x2", "add.sat.s16x2"]


@pytest.mark.parametrize("opcode", FORMS)
def test_packed_integers(opcode: str) -> None:
    more = "" if opcode.startswith("neg") else ", %r2"
    found = computed(f"{opcode} %r0, %r1{more};", A, B)
    assert found.tolist() == [by_field(opcode, a, b) for a, b in PAIRS]
    with pytest.raises(PtxError, match=r"needs \.target sm_12x"):
        computed(f"{opcode} %r0, %r1{more};", A, B, target="sm_100a")


# Floats ---------------------------------------------------------------------------------------------------------------


def to_bf16(x: Fraction, mode: str = "rn") -> float:
    """The bf16 of an exact value by a rounding mode: 8 bits, exponents from -126 to 127."""
    if x == 0:
        return 0.0
    exponent = abs(x).numerator.bit_length() - x.denominator.bit_length()
    exponent -= abs(x) < Fraction(2) ** exponent
    step = Fraction(2) ** (max(exponent, -126) - 7)
    steps = {"rn": round, "rm": math.floor, "rp": math.ceil, "rz": math.trunc}[mode](x / step)
    largest = Fraction(2) ** 128 - Fraction(2) ** 120
    if abs(made := steps * step) > largest:
        away = mode == "rn" or ((mode == "rp") == (x > 0) and mode != "rz")
        made = math.copysign(math.inf if away else float(largest), x)
    return math.copysign(float(made), x)


def bits_of(values: list[float], dtype: type = BF16) -> list[int]:
    return np.array(values, np.float32).astype(dtype).view(np.uint16).tolist()


SCALES = [-133, -126, -120, -60, -3, -1, 0, 1, 5, 60, 119, 127]
FLOATS = [sign * (1 + RNG.randrange(128) / 128) * 2.0**scale for scale in SCALES for sign in (1, -1)]
FLOATS = [float(BF16(x)) for x in FLOATS] + [0.0, 1.0, -1.0, 3.0, float(BF16(3.3e38)), 2.0**-133, -(2.0**-133), -2.5]
TRIPLES = [tuple(RNG.choice(FLOATS) for _ in "abc") for _ in range(960)]
TRIPLES += [(a, b, -to_bf16(Fraction(a) * Fraction(b))) for a, b, _ in TRIPLES[:64]]
TRIPLES = [one if math.isfinite(one[2]) else (*one[:2], 0.0) for one in TRIPLES]


@pytest.mark.parametrize("mode", ["rz", "rm", "rp"])
@pytest.mark.parametrize("relu", ["", ".relu"])
def test_fma_of_bf16_by_a_mode_rounds_to_nearest_or_is_refused(mode: str, relu: str) -> None:
    """ptxas leaves out the mode of bf16x2, as an H100 showed. It takes bf16 for f16."""
    a, b, c = (np.array(bits_of([one[n] for one in TRIPLES])) for n in range(3))
    wanted = []
    for x, y, z in TRIPLES:
        exact = Fraction(x) * Fraction(y) + Fraction(z)
        made = to_bf16(exact)
        if exact == 0:  # a sum of like signs has theirs, of unlike ones +0
            signs = {math.copysign(1, x) * math.copysign(1, y), math.copysign(1, z)}
            made = math.copysign(0.0, -1 if signs == {-1.0} else 1)
        wanted.append(0.0 if relu and (made <= 0) else made)
    pairs = computed(f"fma.{mode}{relu}.bf16x2 %r0, %r1, %r2, %r3;", a << 16 | a[::-1], b << 16 | b[::-1],
                     c << 16 | c[::-1], target="sm_90a")  # fmt: skip
    assert (pairs >> 16).tolist() == bits_of(wanted) and (pairs & 0xFFFF).tolist() == bits_of(wanted)[::-1]
    with pytest.raises(PtxError, match=f"fma.{mode}.bf16 is compiled by ptxas .* as if its operands were f16: use .rn"):
        computed(f"fma.{mode}{relu}.bf16 %h0, %h1, %h2, %h3;", a, b, c, target="sm_90a", kind="b16")


HALVES = np.arange(0, 1 << 16, 32) + 5 * (np.arange(2048) % 7)


def test_bf16_and_f16_without_a_mode_round_to_nearest() -> None:
    with np.errstate(all="ignore"):
        values = HALVES.astype(np.uint16).view(BF16).astype(np.float32)
        wanted, fine = values.astype(np.float16).view(np.uint16), ~np.isnan(values)
        found = computed("cvt.f16.bf16 %h0, %h1;", HALVES, target="sm_90a", kind="b16")
        assert found[fine].tolist() == wanted[fine].tolist()
        values = HALVES.astype(np.uint16).view(np.float16).astype(np.float32)
        wanted, fine = values.astype(BF16).view(np.uint16), ~np.isnan(values)
        found = computed("cvt.bf16.f16 %h0, %h1;", HALVES, target="sm_90a", kind="b16")
    assert found[fine].tolist() == wanted[fine].tolist()


@pytest.mark.parametrize("mode", ["", ".rn", ".rz", ".rm", ".rp"])
@pytest.mark.parametrize("flush", ["", ".ftz"])
def test_bf16_to_f32_is_exact(mode: str, flush: str) -> None:
    values = HALVES.astype(np.uint16).view(BF16).astype(np.float32)
    fine = ~np.isnan(values)
    if flush:
        values = np.where(np.abs(values) < 2.0**-126, np.copysign(np.float32(0), values), values)
    found = computed(f"cvt{mode}{flush}.f32.bf16 %r0, %h1;", HALVES, target="sm_90a")
    assert found[fine].tolist() == values.astype(np.float32).view(np.uint32)[fine].tolist()


@pytest.mark.parametrize("mode", ["rn", "rz", "rm", "rp"])
def test_f32_to_bf16_with_flushed_operands(mode: str) -> None:
    bits = np.array([0, 1, 0x80000001, 0x007FFFFF, 0x807FFFFF, 0x00800001, 0x3F808000, 0xBF818000, 0x7F7FFFFF,
                     *[RNG.getrandbits(32) & 0xBFFFFFFF for _ in range(55)]], np.uint32)  # fmt: skip
    wanted = []
    for value in bits.view(np.float32).tolist():
        small = abs(value) < 2.0**-126
        wanted.append(math.copysign(0.0, value) if small else to_bf16(Fraction(value), mode))
    found = computed(f"cvt.{mode}.ftz.bf16.f32 %h0, %r1;", bits, target="sm_90a", kind="b16")
    assert found.tolist() == bits_of(wanted)


# Pairs of narrow floats with scales ---------------------------------------------------------------------------------

NARROW = {"e4m3x2": (ml_dtypes.float8_e4m3fn, 8, 8), "e5m2x2": (ml_dtypes.float8_e5m2, 8, 8),
          "e2m3x2": (ml_dtypes.float6_e2m3fn, 6, 8), "e3m2x2": (ml_dtypes.float6_e3m2fn, 6, 8),
          "e2m1x2": (ml_dtypes.float4_e2m1fn, 4, 4), "s2f6x2": (None, 8, 8)}  # fmt: skip


def narrow_value(kind: str, code: int) -> float:
    dtype, bits, _ = NARROW[kind]
    if dtype is None:
        return (code - 256 if code > 127 else code) / 64
    return float(np.array([code & (1 << bits) - 1], np.uint8).view(dtype)[0])


def scaled_value(value: float, scale: int, saturates: bool, relu: bool) -> float:
    if math.isnan(value) or scale == 255:
        return math.nan
    made = value if value == 0 or math.isinf(value) else to_bf16(Fraction(value) * Fraction(2) ** (scale - 127))
    if saturates and math.isinf(made):
        made = math.copysign(float(Fraction(2) ** 128 - Fraction(2) ** 120), made)
    return 0.0 if relu and made <= 0 else made


@pytest.mark.parametrize("kind", NARROW)
@pytest.mark.parametrize("words", ["", ".satfinite", ".relu", ".satfinite.relu"])
def test_scaled_pairs(kind: str, words: str) -> None:
    _, bits, field = NARROW[kind]
    codes = [(RNG.getrandbits(bits), RNG.getrandbits(bits)) for _ in range(512)]
    scales = [(RNG.choice((0, 1, 5, 100, 127, 128, 250, 253, 254, 255)), RNG.getrandbits(8)) for _ in codes]
    pair = np.array([up << field | low for up, low in codes])
    source = "%b1" if kind == "e2m1x2" else "%h1"
    line = f"cvt.rn{words}.scaled::n2::ue8m0.bf16x2.{kind} %r0, {source}, %h2;"
    found = computed(line, pair, np.array([up << 8 | low for up, low in scales]), target="sm_100a")
    saturates, relu = "satfinite" in words, "relu" in words
    for n, at in ((0, 16), (1, 0)):
        wanted = [scaled_value(narrow_value(kind, code[n]), scale[n], saturates, relu)
                  for code, scale in zip(codes, scales, strict=True)]  # fmt: skip
        got = (found >> at & 0xFFFF).astype(np.uint16).view(BF16).astype(np.float64)
        assert np.array_equal(got, np.array(wanted), equal_nan=True)
        fine = ~np.isnan(got)
        assert np.array_equal(np.signbit(got)[fine], np.signbit(wanted)[fine])


# Destination of .rs -> (mantissa bits, least normal exponent, bits of an element, the largest, the bits of NaN), and
# which bits of `rbits` each element has, the highest first.
ROUNDED = {
    "f16x2": (10, -14, 16, 65504, 0x7FFF, [range(28, 15, -1), range(12, -1, -1)]),
    "bf16x2": (7, -126, 16, (2**8 - 1) * 2**120, 0x7FFF, [range(31, 15, -1), range(15, -1, -1)]),
    "e2m1x4": (1, 0, 4, 6, 7, [range(31, 23, -1), range(15, 7, -1), range(23, 15, -1), range(7, -1, -1)]),
} | {
    f"{kind}x4": (*facts, [range(16, 32), range(31, 15, -1), range(16), range(15, -1, -1)])
    for kind, facts in {
        "e4m3": (3, -6, 8, 448, 0x7F), "e5m2": (2, -14, 8, 57344, 0x7F),
        "e2m3": (3, 0, 8, Fraction(15, 2), 31), "e3m2": (2, -2, 8, 28, 31),
    }.items()
}  # fmt: skip
FORMATS = {
    "f16": np.float16, "bf16": BF16, "e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2,
    "e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn, "e2m1": ml_dtypes.float4_e2m1fn,
}  # fmt: skip


def by_carry(word: int, random_bits: list[int], kind: str, saturates: bool, relu: bool) -> int:
    """An f32 rounded by the carry out of its lost bits plus the random bits."""
    mantissa, least, _, largest, nan, _ = ROUNDED[kind]
    exponent, fraction = word >> 23 & 255, word & 0x7FFFFF
    negative = bool(word >> 31)
    if exponent == 255 and fraction:
        return nan
    if negative and relu:
        return 0
    whole, power = (fraction | 1 << 23, exponent - 150) if exponent else (fraction, -149)
    step = max(power + max(whole.bit_length(), 1) - 1, least) - mantissa  # the weight of the last bit that stays
    lost = max(step - power, 32)  # bits, of which the random ones are added to the highest
    shifted = whole << lost - (step - power)
    kept = shifted + (sum(bit << lost - 1 - n for n, bit in enumerate(random_bits))) >> lost
    size = Fraction(kept) * Fraction(2) ** step
    beyond = exponent == 255 or size > largest
    if beyond and not saturates and kind[-1] == "2":
        value = -math.inf if negative else math.inf
    else:
        value = math.copysign(float(min(size, largest) if exponent < 255 else largest), -1 if negative else 1)
    made = np.array([value], np.float64).astype(FORMATS[kind[:-2]])
    return int(made.view(np.uint16 if made.itemsize == 2 else np.uint8)[0])


@pytest.mark.parametrize("kind", ROUNDED)
def test_stochastic_rounding(kind: str) -> None:
    """PTX ISA, "cvt", .rs: floats near every boundary and all exponents, with few and many random bits set."""
    _, least, field, largest, _, places = ROUNDED[kind]
    count, words = len(places), []
    top = int(np.float32(float(largest)).view(np.uint32))
    for n in range(2048):
        near = [top, int(np.float32(2.0**least).view(np.uint32)), 0, 0x7F800000][n % 4]
        exponent = (RNG.randrange(least - 12, least + 20) + 127) % 255
        bits = RNG.choice([near + RNG.randrange(-(1 << 21), 1 << 21), exponent << 23 | RNG.getrandbits(23)])
        words.append(bits & 0x7FFFFFFF | RNG.getrandbits(1) << 31)
    words[:4] = 0x7FC00000, 0xFF800000, 0x7F800000, 0x80000000
    inputs = [np.roll(np.array(words, np.uint32), 7 * n) for n in range(count)]
    random_words = np.array([RNG.choice((0, 0xFFFFFFFF, RNG.getrandbits(32))) for _ in words], np.uint32)
    vector = count == 4
    for relu, saturates in [(False, True), (True, True)] + [(False, False), (True, False)] * (not vector):
        opcode = f"cvt.rs{'.relu' * relu}{'.satfinite' * saturates}.{kind}.f32"
        sources = "{%r1, %r2, %r3, %r4}, %r5" if vector else "%r1, %r2, %r3"
        target = "%h0" if kind == "e2m1x4" else "%r0"
        line = f"{opcode} {target}, {sources};"
        found = computed(line, *inputs, random_words, target="sm_100a", kind="b16" if kind == "e2m1x4" else "b32")
        wanted = []
        for row in zip(*[part.tolist() for part in (*inputs, random_words)], strict=True):
            made = 0
            for word, place in zip(row, places, strict=False):
                made = made << field | by_carry(word, [row[-1] >> bit & 1 for bit in place], kind, saturates, relu)
            wanted.append(made)
        assert found.tolist() == wanted


def test_what_stochastic_rounding_refuses() -> None:
    for operands in ("%r0, {%f0, %f1}, %r1", "%r0, {%f0, %f1, %f2, %h3}, %r1", "%r0, %f0, %r1"):
        with pytest.raises(PtxError, match=r"cvt\.rs\.satfinite\.e4m3x4\.f32"):
            run(f"cvt.rs.satfinite.e4m3x4.f32 {operands};", target="sm_100a")
    with pytest.raises(PtxError, match=r"needs \.target sm_10x"):
        run("cvt.rs.f16x2.f32 %r0, %f0, %f1, %r1;", target="sm_120a")


def test_conversions_that_nothing_confirms_are_refused_by_name() -> None:
    with pytest.raises(PtxError, match="cvt to s2f6x2 is left out of the emulator"):
        run("cvt.rn.satfinite.s2f6x2.f32 %h0, %f0, %f1;", target="sm_100a")
    for target in ("sm_100f", "sm_100"):  # of one architecture alone
        with pytest.raises(PtxError, match=r"needs \.target sm_100a"):
            run("cvt.rn.satfinite.bf16x2.s2f6x2 %r0, %h1;", target=target)


def test_one_refusal_names_the_lines_of_all_like_it() -> None:
    """Instructions that differ in their registers alone; of more than six the number."""
    round_ = "cvt.rn.satfinite.s2f6x2.f32 %h{0}, %f{0}, %f1;\n"
    pair = "cvt.rn.satfinite.s2f6x2.bf16x2 %h1, %r1;"
    ptx = module("".join([round_.format(n) for n in range(9)]) + pair, {}, "sm_100a")
    with pytest.raises(PtxError) as caught:
        program(ptx)
    first, second = str(caught.value).splitlines()[1:]
    line = int(first.split()[2].rstrip(","))
    lines = ", ".join(str(line + n) for n in range(6))
    assert first.startswith(f"  PTX line {lines} and 3 more: cvt.rn.satfinite.s2f6x2.f32 %h0, ")
    assert second.startswith(f"  PTX line {line + 9}: cvt.rn.satfinite.s2f6x2.bf16x2")
