"""The bridge's arithmetic on single elements.

It has f32 functions, loads of a value or a pair, and atomic combinations.

Sources: PTX ISA, "tanh", "ex2", "rcp", "cvt", "max", "div", "ld", "st", "red".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import cutlass
import cutlass.cute as cute
import numpy as np
from cutlass import Boolean, Float32, Int32, Int64, Uint32

from ...dtypes import DType
from ..epilogue.numpy_math import mix
from .packed_weights import multiply_add
from .registers import convert_pair
from .types import assembly

# Abramowitz and Stegun, Handbook of Mathematical Functions, 7.1.26: erf(x) = 1 - poly(t) * exp(-x * x) with
# t = 1 / (1 + p * x) for x >= 0; its error is at most 1.5e-7.
_ERF_P = 0.3275911
_ERF = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
_LOG2E = math.log2(math.e)
_TURN = (6.28125, 0.0019350051879882812, 3.019916e-07)  # their sum is 2 pi; of 8 and 13 bits, and the rest
# log(Phi(x) / Phi(-x)) = x * (these, by powers of x * x), the normal distribution Phi as a logistic one: within 1.7e-3
# up to |x| = 5.5 (a minimax fit by Lawson's algorithm), so Phi has a relative error of 1.7e-3 at most, in its tail too.
_LOGIT = (1.5934149606731307, 0.07560413574206144, -0.0009701555546613748, 8.678765826776632e-06)


def _unary(name: str, x: Float32) -> Float32:
    return assembly(f"{name} $0, $1;", "=f,f", [Float32(x)], (Float32,), pure=True)[0]


class ElementMath:
    """f32 functions of registers, with the names that an epilogue's steps use.

    exact  tanh from exp and a division, for results that keep more than 16 bits; else the hardware's tanh.approx, whose
           relative error is 2**-11. exp is ex2.approx (2 ulp and the rounding of x / ln 2) in both. Results below
           2**-126 are 0 (.ftz): the compiler would spend three instructions on them.
    coarse the result keeps 8 bits or fewer (bf16, fp8): the normal distribution's relative error may be 1.7e-3
    """

    def __init__(self, exact: bool, coarse: bool = False):
        self.exact, self.coarse = exact, coarse

    @staticmethod
    def constant(value: float) -> float:
        """A number of f32."""
        return float(value)  # Python's own type, which the DSL knows

    @staticmethod
    def to_float(x: Int32) -> Float32:
        """A coordinate as f32."""
        return Int32(x).to(Float32)

    @staticmethod
    def whole(x: Float32) -> Int32:
        """x cut to an integer; beyond int32 its nearest, of NaN 0."""
        return assembly("cvt.rzi.s32.f32 $0, $1;", "=r,f", [Float32(x)], (Int32,), pure=True)[0]

    @staticmethod
    def exp(x: Float32) -> Float32:
        """e to the power of x."""
        return _unary("ex2.approx.ftz.f32", x * _LOG2E)

    @staticmethod
    def log(x: Float32) -> Float32:
        """The natural logarithm."""
        return _unary("lg2.approx.f32", x) * (1 / _LOG2E)

    @staticmethod
    def abs(x: Float32) -> Float32:
        """The magnitude; machine code takes it with the instruction that reads it."""
        return _unary("abs.f32", x)

    @staticmethod
    def floor(x: Float32) -> Float32:
        """The largest whole number up to x."""
        return _unary("cvt.rmi.f32.f32", x)

    @staticmethod
    def round(x: Float32) -> Float32:
        """The nearest whole number, of two the even one."""
        return _unary("cvt.rni.f32.f32", x)

    @staticmethod
    def sqrt(x: Float32) -> Float32:
        """The square root, correctly rounded."""
        return _unary("sqrt.rn.f32", x)

    @staticmethod
    def rsqrt(x: Float32) -> Float32:
        """1 / sqrt(x), within 2 ulp."""
        return _unary("rsqrt.approx.f32", x)

    @classmethod
    def sin(cls, x: Float32) -> Float32:
        """The sine, within 1e-6 up to |x| = 2**15."""
        return _unary("sin.approx.ftz.f32", cls._in_circle(x))

    @classmethod
    def cos(cls, x: Float32) -> Float32:
        """The cosine, likewise."""
        return _unary("cos.approx.ftz.f32", cls._in_circle(x))

    @classmethod
    def _in_circle(cls, x: Float32) -> Float32:
        """x less whole turns, -pi to pi, where sin.approx is within 2**-20.9: 2 pi in three parts, the first exact."""
        turns = cls.round(x * (1 / (2 * math.pi)))
        for part in _TURN:
            x = multiply_add(turns, Float32(-part), Float32(x))
        return x

    def tanh(self, x: Float32) -> Float32:
        """The hyperbolic tangent."""
        if not self.exact:
            return _unary("tanh.approx.f32", x)
        # By exp for large |x|, where it saturates without overflow; by the series below 0.04, where 1 - exp cancels.
        small = x * (1.0 + (x * x) * (-1 / 3 + (x * x) * (2 / 15)))
        size = self.abs(x)
        large = 1.0 - 2.0 * _unary("rcp.approx.ftz.f32", 1.0 + self.exp(2.0 * size))
        return self.where(size < 0.04, small, self.where(x < 0.0, -large, large))

    def sigmoid(self, x: Float32) -> Float32:
        """1 / (1 + exp(-x)). Not by tanh, whose error would be all of the value for small ones."""
        return _unary("rcp.approx.ftz.f32", 1.0 + self.exp(-x))

    def div(self, x: Float32, y: Float32) -> Float32:
        """x / y. Correctly rounded where `exact`, else within 2 ulp (div.full), in a third of the instructions."""
        if self.exact or isinstance(x, Int32):
            return x / y
        return assembly("div.full.f32 $0, $1, $2;", "=f,f,f", [Float32(x), Float32(y)], (Float32,), pure=True)[0]

    def erf(self, x: Float32) -> Float32:
        """The error function, within 1.5e-7."""
        value = 1.0 - self._tail(x, 1.0, 1.0)
        return self.where(x < 0.0, -value, value)

    def normal(self, x: Float32) -> Float32:
        """The normal distribution, within 1e-7 (or see `coarse`), computed by its lower tail."""
        if self.coarse:
            square, logit = x * x, _LOGIT[3]
            for coefficient in _LOGIT[2::-1]:
                logit = coefficient + square * logit
            return self.sigmoid(x * logit)
        tail = self._tail(x, math.sqrt(0.5), 0.5)
        return self.where(x < 0.0, tail, 1.0 - tail)

    def _tail(self, x: Float32, scale: float, factor: float) -> Float32:
        """factor * erfc(|x| * scale); the terms in pairs, so that the chain of dependent products is short."""
        size = self.abs(x)
        t = _unary("rcp.approx.ftz.f32", 1.0 + (_ERF_P * scale) * size)
        density = _unary("ex2.approx.ftz.f32", (x * x) * (-_LOG2E * scale * scale))
        a, b, c, d, e = [factor * coefficient for coefficient in _ERF]
        square = t * t
        polynomial = (a + b * t) + square * ((c + d * t) + square * e)
        return (t * density) * polynomial

    @staticmethod
    def maximum(x: Float32, y: Float32) -> Float32:
        """The larger of two; of a NaN and a number, the number."""
        return cutlass.max(x, y) if isinstance(x, Int32) else cute.arch.fmax(x, y)

    @staticmethod
    def minimum(x: Float32, y: Float32) -> Float32:
        """The smaller of two; of a NaN and a number, the number."""
        return cutlass.min(x, y) if isinstance(x, Int32) else cute.arch.fmin(x, y)

    @staticmethod
    def largest(x: Float32, y: Float32) -> Float32:
        """The larger of two, NaN where either is."""
        return assembly("max.NaN.f32 $0, $1, $2;", "=f,f,f", [Float32(x), Float32(y)], (Float32,), pure=True)[0]

    @staticmethod
    def smallest(x: Float32, y: Float32) -> Float32:
        """The smaller of two, NaN where either is."""
        return assembly("min.NaN.f32 $0, $1, $2;", "=f,f,f", [Float32(x), Float32(y)], (Float32,), pure=True)[0]

    @staticmethod
    def below(x: Float32) -> Float32:
        """The next number below; of -inf NaN, and of NaN infinity. Largest numbers and NaN are not up to it."""
        text = (
            "{ .reg .pred p; .reg .pred q; .reg .b32 u; .reg .b32 d; mov.b32 d, $1; or.b32 u, d, 0x80000000; "
            "add.s32 u, u, 1; add.s32 d, d, -1; setp.le.f32 p, $1, 0f00000000; selp.b32 d, u, d, p; "
            "setp.nan.f32 q, $1, $1; selp.b32 d, 0x7f800000, d, q; mov.b32 $0, d; }"
        )
        return assembly(text, "=f,f", [Float32(x)], (Float32,), pure=True)[0]

    @staticmethod
    def where(condition: Boolean, yes: Float32, no: Float32) -> Float32:
        """A choice without a branch."""
        kind = Int32 if all(isinstance(value, (Int32, int)) for value in (yes, no)) else Float32
        return kind(cutlass.select_(Boolean(condition), kind(yes), kind(no)))

    add = staticmethod(lambda x, y: x + y)
    sub = staticmethod(lambda x, y: x - y)
    mul = staticmethod(lambda x, y: x * y)
    floordiv = staticmethod(lambda x, y: x // y)
    mod = staticmethod(lambda x, y: x % y)
    and_ = staticmethod(lambda x, y: x & y)
    or_ = staticmethod(lambda x, y: x | y)
    xor = staticmethod(lambda x, y: x ^ y)
    lt = staticmethod(lambda x, y: x < y)
    le = staticmethod(lambda x, y: x <= y)
    gt = staticmethod(lambda x, y: x > y)
    ge = staticmethod(lambda x, y: x >= y)
    eq = staticmethod(lambda x, y: x == y)
    ne = staticmethod(lambda x, y: x != y)


# Loads of one value, and of two neighbours: (type of the result, instruction and what makes f32 of it, its constraint)
_ONE = {
    "f32": "ld.global.f32 $0, [$1];",
    "bf16": "{ .reg .b16 h; .reg .b16 z; mov.b16 z, 0; ld.global.b16 h, [$1]; mov.b32 $0, {z, h}; }",
    "f16": "{ .reg .b16 h; ld.global.b16 h, [$1]; cvt.f32.f16 $0, h; }",
}
_TWO = {
    "f32": "ld.global.v2.f32 {$0, $1}, [$2];",
    "bf16": "{ .reg .b16 l; .reg .b16 h; .reg .b16 z; mov.b16 z, 0; ld.global.v2.b16 {l, h}, [$2]; "
    "mov.b32 $0, {z, l}; mov.b32 $1, {z, h}; }",
    "f16": "{ .reg .b16 l; .reg .b16 h; ld.global.v2.b16 {l, h}, [$2]; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
}


def load_value(address: Int64, dtype: DType) -> Float32:
    """ld.global of one f32, bf16 or f16, as f32. The address is a multiple of its size."""
    return assembly(_ONE[dtype.name], "=f,l", [Int64(address)], (Float32,))[0]


def load_bits_if(address: Int64, offset: int, dtype: DType, inside: Boolean) -> Int32:
    """ld.global of the bits of one f32, bf16 or f16 where `inside`. Else 0, and no access. `float_of` makes f32 of it.

    offset  bytes behind the address, a part of the instruction: several loads share one address
    """
    load = f"ld.global.{'b32' if dtype.bits == 32 else 'u16'} $0, [$1+{offset}];"
    text = f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; mov.b32 $0, 0; @p {load} }}"
    return assembly(text, "=&r,l,r", [Int64(address), Int32(inside)], (Int32,))[0]


def float_of(bits: Int32, dtype: DType) -> Float32:
    """The value of `load_bits_if`, as f32."""
    if dtype.name == "f16":
        text = "{ .reg .b16 h; .reg .b16 z; mov.b32 {h, z}, $1; cvt.f32.f16 $0, h; }"
        return assembly(text, "=f,r", [Int32(bits)], (Float32,), pure=True)[0]
    return (Int32(bits) << (32 - dtype.bits)).bitcast(Float32)


def load_two(address: Int64, dtype: DType) -> list[Float32]:
    """ld.global of two neighbours, as f32. The address is a multiple of twice their size."""
    return assembly(_TWO[dtype.name], "=f,=f,l", [Int64(address)], (Float32, Float32))


def load_sixteen_bytes(address: Int64) -> list[Int32]:
    """ld.global of four 32-bit registers; the address is a multiple of 16."""
    text = "ld.global.v4.b32 {$0, $1, $2, $3}, [$4];"
    return assembly(text, "=r,=r,=r,=r,l,~{memory}", [Int64(address)], (Int32,) * 4)


def load_sixteen_bytes_if(address: Int64, inside: Boolean) -> list[Int32]:
    """The same where `inside`; else four zeros, and no access."""
    text = (
        "{ .reg .pred p; setp.ne.b32 p, $5, 0; mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0; "
        "@p ld.global.v4.b32 {$0, $1, $2, $3}, [$4]; }"
    )
    return assembly(text, "=&r,=&r,=&r,=&r,l,r,~{memory}", [Int64(address), Int32(inside)], (Int32,) * 4)


def as_words(values: Sequence[Float32], dtype: DType) -> list[Int32]:
    """f32 values as 32-bit registers: rounded pairs of bf16 or f16, or their own bits."""
    if dtype.name == "f32":
        return [Float32(value).bitcast(Int32) for value in values]
    return [Int32(convert_pair(low, high, dtype)) for low, high in zip(values[::2], values[1::2], strict=True)]


_UNPACK = {
    "bf16": "{ .reg .b16 l; .reg .b16 h; .reg .b16 z; mov.b16 z, 0; mov.b32 {l, h}, $2; mov.b32 $0, {z, l}; "
    "mov.b32 $1, {z, h}; }",
    "f16": "{ .reg .b16 l; .reg .b16 h; mov.b32 {l, h}, $2; cvt.f32.f16 $0, l; cvt.f32.f16 $1, h; }",
}


def from_words(words: Sequence[Int32], dtype: DType) -> list[Float32]:
    """Values of 32-bit registers as f32: the inverse of `as_words`."""
    if dtype.name == "f32":
        return [Int32(word).bitcast(Float32) for word in words]
    pairs = [assembly(_UNPACK[dtype.name], "=f,=f,r", [Int32(word)], (Float32,) * 2, pure=True) for word in words]
    return [value for pair in pairs for value in pair]


def _store_word(address: Int64, word: Int32 | Int64, bits: int, inside: Boolean) -> None:
    register = {16: "h", 32: "r", 64: "l"}[bits]
    assembly(
        f"{{ .reg .pred p; setp.ne.b32 p, $2, 0; @p st.global.b{bits} [$0], $1; }}",
        f"l,{register},r,~{{memory}}",
        [Int64(address), word, Int32(inside)],
    )


def store_value(address: Int64, value: Float32, dtype: DType, inside: Boolean) -> None:
    """st.global of one value as f32, bf16 or f16, where `inside` holds."""
    if dtype.name == "f32":
        _store_word(address, Float32(value).bitcast(Int32), 32, inside)
    else:
        pair = convert_pair(value, value, dtype)
        _store_word(address, cutlass.Int16(pair), 16, inside)


def store_two(address: Int64, low: Float32, high: Float32, dtype: DType, inside: Boolean) -> None:
    """st.global of two neighbours at a multiple of twice their size, where `inside` holds."""
    if dtype.name == "f32":
        words = [Int64(Float32(value).bitcast(Uint32)) for value in (low, high)]
        _store_word(address, words[0] | (words[1] << Int64(32)), 64, inside)
    else:
        _store_word(address, convert_pair(low, high, dtype), 32, inside)


def divided(x: Float32 | float, y: Float32 | float) -> Float32:
    """x / y, correctly rounded."""
    return assembly("div.rn.f32 $0, $1, $2;", "=f,f,f", [Float32(x), Float32(y)], (Float32,), pure=True)[0]


def divided_by(x: Float32, y: float) -> Float32:
    """x / y of a constant y, correctly rounded, without a branch. x is 1e-30 or more, infinite or NaN.

    Markstein's theorem: of a quotient within an ulp, and 1 / y rounded to nearest, one step by the exact remainder.
    """
    inverse = float(np.float32(1) / np.float32(y))
    quotient = Float32(x) * inverse
    step = multiply_add(quotient, Float32(-y), Float32(x))
    rounded = multiply_add(step, Float32(inverse), quotient)
    return ElementMath.where(x < math.inf, rounded, x)


def parts_of(x: Int32, y: Int32) -> tuple[Int32, Int32]:
    """x // y and x % y of numbers that are not negative. A signed division has corrections."""
    quotient = Int32(Uint32(x) // Uint32(y))
    return quotient, x - quotient * y


def inverse_of(x: Float32) -> Float32:
    """1 / x, correctly rounded, of 2**-126 <= x < 2**126. It is rcp.approx and one Newton step, as in rcp.rn's own
    code."""
    guess = _unary("rcp.approx.ftz.f32", x)
    return multiply_add(multiply_add(-Float32(x), guess, Float32(1.0)), guess, guess)


# Combination of an f32 with the one in memory. Floats that are not negative are ordered as their bits are as integers,
# negative ones as theirs are, unsigned and backwards; NaN, which `largest` gives without a sign, is above all.
_COMBINED = {
    "sum": "@p red.relaxed.gpu.global.add.f32 [$0], $1;",
    "max": "@a red.relaxed.gpu.global.max.s32 [$0], w; @b red.relaxed.gpu.global.min.u32 [$0], w;",
    "min": "@a red.relaxed.gpu.global.min.s32 [$0], w; @b red.relaxed.gpu.global.max.u32 [$0], w;",
}


def combine_value(address: Int64, value: Float32, operation: str, inside: Boolean) -> None:
    """red of an f32 in memory with a value, where `inside` holds. It becomes their "sum", "max" or "min"."""
    assembly(
        "{ .reg .pred p; .reg .pred a; .reg .pred b; .reg .pred s; .reg .b32 w; setp.ne.b32 p, $2, 0; mov.b32 w, $1; "
        f"setp.ge.s32 s, w, 0; and.pred a, s, p; not.pred s, s; and.pred b, s, p; {_COMBINED[operation]} }}",
        "l,f,r,~{memory}",
        [Int64(address), Float32(value), Int32(inside)],
    )


def random_pair(seed: Uint32, i: Int32, pair: Int32) -> Uint32:
    """32 random bits of two neighbours: see `kernels.epilogue.numpy_math.mix`."""
    return mix(Uint32(seed), Uint32(i), Uint32(pair), Uint32)


def number(word: Int32 | Int64, dtype: DType) -> Float32:
    """A number that a 64-bit parameter carries in its low half. It is f32, or i32 as an unsigned word."""
    low = Int32(word)
    return low.bitcast(Float32) if dtype.name == "f32" else low.bitcast(Uint32)
