"""The forms of PTX's scalar instructions: every spelling, the types of its operands, and the least target.

One line of `TABLE` is a family of forms. `[.rn|.rz]` is optional, `.u32|.s32` is a choice. Operand types follow the
colon: `t` is the last type of the opcode, `u` the one before it, `w` twice the width of `t`, `d` the result's type.
`*` before a type allows wider registers, `v4:` is a vector of four, `d|p` is a pair, `?` an operand that may be left
out. `@90` is the least
target, `@100a` an architecture or a family of its own, `@100A` an architecture alone, `@10x` one of the family 100 to
109 and `@10X` its architectures alone.

Source: PTX ISA, "Instruction Set". A test compares this table with what ptxas 13.4 accepts, for PTX 9.4, and with an
earlier ptxas without the newer forms. ptxas takes rcp.ftz.f64 with a rounding mode, too, which PTX does not have.
"""

from __future__ import annotations

import itertools
import re
from functools import cache, lru_cache
from typing import NamedTuple

_WORDS = {
    "INT": ".u16|.u32|.u64|.s16|.s32|.s64",
    "BITS": ".b16|.b32|.b64",
    "ANY": ".b16|.b32|.b64|.u16|.u32|.u64|.s16|.s32|.s64|.f32|.f64",
    "RND": ".rn|.rz|.rm|.rp",
    "RNI": ".rni|.rzi|.rmi|.rpi",
    "HALF": ".f16|.f16x2",
    "BRAIN": ".bf16|.bf16x2",
    "ICMP": ".eq|.ne|.lt|.le|.gt|.ge",
    "UCMP": ".lo|.ls|.hi|.hs",
    "FCMP": ".eq|.ne|.lt|.le|.gt|.ge|.equ|.neu|.ltu|.leu|.gtu|.geu|.num|.nan",
    "BOOL": ".and|.or|.xor",
    "I8": ".u8|.s8|.u16|.s16|.u32|.s32|.u64|.s64",
    "FP8": ".e4m3x2|.e5m2x2",
    "FP64": ".e2m1x2|.e2m3x2|.e3m2x2",
}
_TYPE = re.compile(r"(?:[busf]|bf|tf|e|ue)\d\w*|pred")
TABLE = """
add sub       INT                                          : t t t
add sub       .sat .s32                                    : t t t
add           .sat .u32|.u16x2|.s16x2                      : t t t      @12x
add           .u16x2|.s16x2                                : t t t      @90
add sub       [.sat] .u8x4|.s8x4                           : t t t      @12x
add sub       .cc .u32|.s32|.u64|.s64                      : t t t
addc subc     [.cc] .u32|.s32|.u64|.s64          : t t t
mul           .lo|.hi INT                                  : t t t
mul           .wide .u16|.s16|.u32|.s32                    : w t t
mad           .lo|.hi INT                                  : t t t t
mad           .wide .u16|.s16|.u32|.s32                    : w t t w
mad           .hi .sat .s32                                : t t t t
mad           .lo|.hi .cc .u32|.s32|.u64|.s64    : t t t t
madc          .lo|.hi [.cc] .u32|.s32|.u64|.s64  : t t t t
mul24         .lo|.hi .u32|.s32                            : t t t
mad24         .lo|.hi .u32|.s32                            : t t t t
mad24         .hi .sat .s32                                : t t t t
sad           INT                                          : t t t t
div rem       INT                                          : t t t
abs neg       .s16|.s32|.s64                               : t t
neg           .s8x4                                        : t t        @12x
min max       INT                                          : t t t
min max       .u16x2|.s16x2                                : t t t      @90
min max       .relu .s16x2|.s32                            : t t t      @90
min max       .u8x4|.s8x4                                  : t t t      @12x
min max       .relu .s8x4                                  : t t t      @12x
popc clz      .b32|.b64                                    : b32 t
bfind         [.shiftamt] .u32|.s32|.u64|.s64              : b32 t
fns           .b32                                         : t b32 b32 b32
brev          .b32|.b64                                    : t t
bfe           .u32|.s32|.u64|.s64                          : t t b32 b32
bfi           .b32|.b64                                    : t t t b32 b32
szext         .clamp|.wrap .u32|.s32                       : t t b32
bmsk          .clamp|.wrap .b32                            : t b32 b32
dp4a          .u32|.s32 .u32|.s32                          : b32 u t b32
dp2a          .lo|.hi .u32|.s32 .u32|.s32                  : b32 u t b32
and or xor    .pred|.b16|.b32|.b64                         : t t t
not           .pred|.b16|.b32|.b64                         : t t
cnot          BITS                                         : t t
lop3          .b32                                         : t t t t i
lop3          .and|.or .b32                                : d|p t t t i pred
shl           BITS                                         : t t b32
shr           BITS                                         : t t b32
shr           INT                                          : t t b32
shf           .l|.r .clamp|.wrap .b32                      : t t t b32
prmt          .b32                                         : t t t b32
prmt          .b32 .f4e|.b4e|.rc8|.ecl|.ecr|.rc16          : b32 b32 b32 b32
mov           ANY                                          : t t
mov           .pred|.b128                                  : t t
mov           .v2 ANY                                      : v2:t v2:t
mov           .v4 .b16|.b32|.u16|.u32|.s16|.s32|.f32       : v4:t v4:t
cvta          [.to] .global|.shared|.local|.const|.shared::cta|.param .u32|.u64 : t t
cvta          [.to] .shared::cluster .u32|.u64             : t t        @90
isspacep      .global|.local|.const|.shared|.shared::cta   : pred b64
isspacep      .param|.param::entry                         : pred b64
isspacep      .shared::cluster                             : pred b64   @90
selp          ANY                                          : t t t pred
slct          ANY .s32                                     : u u u s32
slct          [.ftz] ANY .f32                              : u u u f32
setp          ICMP INT                                     : p|p t t
setp          .eq|.ne BITS                                 : p|p t t
setp          ICMP BOOL INT                                : p|p t t pred
setp          UCMP .u16|.u32|.u64                          : p|p t t
setp          UCMP BOOL .u16|.u32|.u64                     : p|p t t pred
setp          .eq|.ne BOOL BITS                            : p|p t t pred
setp          FCMP [.ftz] .f32                             : p|p t t
setp          FCMP BOOL [.ftz] .f32                        : p|p t t pred
setp          FCMP .f64                                    : p|p t t
setp          FCMP BOOL .f64                               : p|p t t pred
setp          FCMP [.ftz] .f16                             : p t t
setp          FCMP BOOL [.ftz] .f16                        : p t t pred
setp          FCMP .bf16                                   : p t t      @90
setp          FCMP BOOL .bf16                              : p t t pred @90
setp          FCMP [.ftz] .f16x2                           : p|p t t
setp          FCMP BOOL [.ftz] .f16x2                      : p|p t t pred
setp          FCMP .bf16x2                                 : p|p t t      @90
setp          FCMP BOOL .bf16x2                            : p|p t t pred @90
set           ICMP .u32|.s32|.f32|.f16 INT                 : u t t
set           ICMP BOOL .u32|.s32|.f32|.f16 INT            : u t t pred
set           UCMP .u32|.s32|.f32|.f16 .u16|.u32|.u64      : u t t
set           UCMP BOOL .u32|.s32|.f32|.f16 .u16|.u32|.u64 : u t t pred
set           .eq|.ne .u32|.s32|.f32|.f16 BITS             : u t t
set           .eq|.ne BOOL .u32|.s32|.f32|.f16 BITS        : u t t pred
set           FCMP [.ftz] .u32|.s32|.f32|.f16 .f32         : u t t
set           FCMP BOOL [.ftz] .u32|.s32|.f32|.f16 .f32    : u t t pred
set           FCMP .u32|.s32|.f32|.f16 .f64                : u t t
set           FCMP BOOL .u32|.s32|.f32|.f16 .f64           : u t t pred
set           FCMP [.ftz] .f16|.u16|.s16|.u32|.s32 .f16    : u t t
set           FCMP BOOL [.ftz] .f16|.u16|.s16|.u32|.s32 .f16 : u t t pred
set           FCMP .bf16|.u16|.s16|.u32|.s32 .bf16         : u t t      @90
set           FCMP BOOL .bf16|.u16|.s16|.u32|.s32 .bf16    : u t t pred @90
set           FCMP [.ftz] .f16x2|.u32|.s32 .f16x2          : u t t
set           FCMP BOOL [.ftz] .f16x2|.u32|.s32 .f16x2     : u t t pred
set           FCMP .bf16x2|.u32|.s32 .bf16x2               : u t t      @90
set           FCMP BOOL .bf16x2|.u32|.s32 .bf16x2          : u t t pred @90
set           ICMP .bf16 INT                               : u t t      @90
set           ICMP BOOL .bf16 INT                          : u t t pred @90
set           UCMP .bf16 .u16|.u32|.u64                    : u t t      @90
set           UCMP BOOL .bf16 .u16|.u32|.u64               : u t t pred @90
set           .eq|.ne .bf16 BITS                           : u t t      @90
set           .eq|.ne BOOL .bf16 BITS                      : u t t pred @90
set           FCMP .bf16 .f16|.f32                         : u t t      @90
set           FCMP BOOL .bf16 .f16|.f32                    : u t t pred @90
set           FCMP .bf16 .f64                              : u t t      @90
set           FCMP BOOL .bf16 .f64                         : u t t pred @90
testp         .finite|.infinite|.number|.notanumber|.normal|.subnormal .f32|.f64 : pred t
copysign      .f32|.f64                                    : t t t
add sub mul   [RND] [.ftz] [.sat] .f32                     : t t t
add sub mul   [RND] .f64                                   : t t t
add sub mul   [RND] [.ftz] .f32x2                          : t t t      @100
add sub mul   [.rn] [.ftz] [.sat] HALF                     : t t t
add sub mul   [.rn] BRAIN                                  : t t t      @90
add sub       [RND] [.sat] .f32 .f16|.bf16                 : f32 t f32  @100
fma mad       RND [.ftz] [.sat] .f32                       : t t t t
fma mad       RND .f64                                     : t t t t
fma           RND [.ftz] .f32x2                            : t t t t    @100
fma           .rn [.ftz] [.sat] HALF                       : t t t t
fma           .rn [.ftz] .relu HALF                        : t t t t    @80
fma           RND [.relu] BRAIN                            : t t t t    @80
fma           .rn .oob [.relu] HALF                        : t t t t    @90
fma           .rn .oob [.relu] BRAIN                       : t t t t    @90
fma           RND [.sat] .f32 .f16|.bf16                   : f32 t t f32 @100
div           .approx|.full [.ftz] .f32                    : t t t
div           RND [.ftz] .f32                              : t t t
div           RND .f64                                     : t t t
rcp sqrt      .approx [.ftz] .f32                          : t t
rcp sqrt      RND [.ftz] .f32                              : t t
rcp sqrt      RND .f64                                     : t t
rcp           .approx .ftz .f64                            : t t
rsqrt         .approx [.ftz] .f32|.f64                     : t t
abs neg       [.ftz] .f32                                  : t t
abs neg       .f64                                         : t t
abs neg       [.ftz] HALF                                  : t t
abs neg       BRAIN                                        : t t        @80
min max       [.ftz] [.NaN] .xorsign .abs .f32             : t t t      @86
min max       [.ftz] [.NaN] .f32                           : t t t
min max       [.ftz] [.NaN] [.abs] .f32                    : t t t t    @100
min max       .f64                                         : t t t
min max       [.ftz] [.NaN] .xorsign .abs HALF             : t t t      @86
min max       [.ftz] [.NaN] HALF                           : t t t      @80
min max       [.NaN] .xorsign .abs BRAIN                   : t t t      @86
min max       [.NaN] BRAIN                                 : t t t      @80
sin cos lg2 ex2 .approx [.ftz] .f32                        : t t
ex2           .approx HALF                                 : t t
ex2           .approx .ftz BRAIN                           : t t        @90
tanh          .approx .f32|.f16|.f16x2                     : t t
tanh          .approx .bf16|.bf16x2                        : t t        @90
cvt           I8 I8                                        : *u *t
cvt           .sat .u8 .s8|.u16|.s16|.u32|.s32|.u64|.s64   : *u *t
cvt           .sat .s8 .u8|.u16|.s16|.u32|.s32|.u64|.s64   : *u *t
cvt           .sat .u16 .s8|.s16|.u32|.s32|.u64|.s64       : *u *t
cvt           .sat .s16 .u16|.u32|.s32|.u64|.s64           : *u *t
cvt           .sat .u32 .s8|.s16|.s32|.u64|.s64            : *u *t
cvt           .sat .s32 .u32|.u64|.s64                     : *u *t
cvt           .sat .u64 .s8|.s16|.s32|.s64                 : *u *t
cvt           .sat .s64 .u64                               : *u *t
cvt           RNI [.ftz] [.sat] I8 .f32                    : *u *t
cvt           RNI [.sat] I8 .f64                           : *u *t
cvt           RNI [.sat] I8 .f16                           : *u *t
cvt           RNI .u16|.s16|.u32|.s32|.u64|.s64 .bf16      : u t       @90
cvt           RND [.ftz] [.sat] .f32 I8                    : *u *t
cvt           RND [.sat] .f64|.f16 I8                      : *u *t
cvt           RND .bf16 .u16|.s16|.u32|.s32|.u64|.s64      : u t       @90
cvt           RND .bf16 .f16|.f64                          : u t       @90
cvt           RND .f16 .bf16                               : u t       @90
cvt           .f16 .bf16                                   : u t       @90
cvt           .bf16 .f16                                   : u t       @90
cvt           [RND] .f64 .bf16                             : u t       @90
cvt           .rm|.rp [.ftz] .bf16 .f32                    : u t       @80
cvt           .rn|.rz .ftz .bf16 .f32                      : u t       @80
cvt           [RNI] [.ftz] [.sat] .f32 .f32                : *u *t
cvt           [RNI] [.sat] .f64 .f64                       : *u *t
cvt           [RNI] [.sat] .f16 .f16                       : *u *t
cvt           [RNI] .bf16 .bf16                            : u t       @90
cvt           RND [.ftz] [.sat] .f32 .f64                  : *u *t
cvt           RND [.ftz] [.sat] .f16 .f32                  : *u *t
cvt           RND [.sat] .f16 .f64                         : *u *t
cvt           [.ftz] [.sat] .f32 .f16                      : *u *t
cvt           [.ftz] [.sat] .f64 .f32                      : *u *t
cvt           [.sat] .f64 .f16                             : *u *t
cvt           [RND] .f32 .bf16                             : u t
cvt           [RND] .ftz .f32 .bf16                        : u t       @90
cvt           .rn|.rz [.relu] [.satfinite] .f16 .f32       : *u *t       @80
cvt           .rn|.rz [.relu] [.satfinite] .bf16 .f32      : u t         @80
cvt           .rn|.rz [.relu] [.satfinite] .f16x2|.bf16x2 .f32 : u t t   @80
cvt           .rna .tf32 .f32                              : b32 t       @80
cvt           .rn|.rz [.relu] .tf32 .f32                   : b32 t       @90
cvt           .rn|.rz [.relu] .satfinite .tf32 .f32        : b32 t       @100
cvt           .rna .satfinite .tf32 .f32                   : b32 t       @80
cvt           .rn .satfinite [.relu] FP8 .f32              : b16 t t     @89
cvt           .rn .satfinite [.relu] FP8 .f16x2            : b16 t       @89
cvt           .rn [.relu] .f16x2 FP8                       : u b16       @89
cvt           .rn .satfinite [.relu] .e2m3x2|.e3m2x2 .f32  : b16 t t     @100a
cvt           .rn .satfinite [.relu] .e2m1x2 .f32          : b8 t t      @100a
cvt           .rn [.relu] .f16x2 .e2m3x2|.e3m2x2           : u b16       @100a
cvt           .rn [.relu] .f16x2 .e2m1x2                   : u b8        @100a
cvt           .rz|.rp [.satfinite] .ue8m0x2 .f32           : b16 t t     @100a
cvt           .rz|.rp [.satfinite] .ue8m0x2 .bf16x2        : b16 t       @100a
cvt           .rn .bf16x2 .ue8m0x2                         : u b16       @100a
cvt           .rn .satfinite [.relu] FP8|.e2m3x2|.e3m2x2 .bf16x2 : b16 t @100a
cvt           .rn .satfinite [.relu] .e2m3x2|.e3m2x2 .f16x2 : b16 t      @100a
cvt           .rn .satfinite [.relu] .e2m1x2 .f16x2|.bf16x2 : b8 t       @100a
cvt           .rn [.satfinite] [.relu] .bf16x2 FP8|.e2m3x2|.e3m2x2 : u b16 @100a
cvt           .rn [.satfinite] [.relu] .bf16x2 .e2m1x2     : u b8        @100a
cvt           .rn [.satfinite] [.relu] .scaled::n2::ue8m0 .bf16x2 FP8|.e2m3x2|.e3m2x2 : u b16 b16 @100a
cvt           .rn [.satfinite] [.relu] .scaled::n2::ue8m0 .bf16x2 .e2m1x2 : u b8 b16 @100a
cvt           .rn [.satfinite] [.relu] .bf16x2 .s2f6x2     : u b16       @100A
cvt           .rn [.satfinite] [.relu] .scaled::n2::ue8m0 .bf16x2 .s2f6x2 : u b16 b16 @100A
cvt           .rn .satfinite [.relu] .s2f6x2 .f32          : b16 t t     @100A
cvt           .rn .satfinite [.relu] .s2f6x2 .bf16x2       : b16 t       @100A
cvt           .rn .satfinite [.relu] .scaled::n2::ue8m0 .s2f6x2 .f32 : b16 t t b16 @100A
cvt           .rn .satfinite [.relu] .scaled::n2::ue8m0 .s2f6x2 .bf16x2 : b16 t b16 @100A
cvt           .rs [.relu] [.satfinite] .f16x2|.bf16x2 .f32 : u t t b32   @10X
cvt           .rs [.relu] .satfinite .e4m3x4|.e5m2x4|.e2m3x4|.e3m2x4 .f32 : b32 v4:t b32 @10X
cvt           .rs [.relu] .satfinite .e2m1x4 .f32          : b16 v4:t b32 @10X
cvt           .pack .sat .u16|.s16 .s32                    : b32 t t
cvt           .pack .sat .u8|.s8|.u4|.s4|.u2|.s2 .s32 .b32 : b32 s32 s32 b32
"""


class PtxForm(NamedTuple):
    """One family of forms: the words after the name, the types of the operands, the least target ("80", "100a")."""

    words: tuple[str, ...]
    operands: tuple[str, ...]
    target: str


def _choices(token: str) -> tuple[str, ...]:
    """The spellings that one token of a line allows."""
    optional = token.startswith("[")
    body = token.strip("[]")
    if " " in body:  # several words that come together
        found: tuple[str, ...] = ("".join(_WORDS.get(word, word) for word in body.split()),)
    else:
        found = tuple("|".join(_WORDS.get(word, word) for word in body.split("|")).split("|"))
    return (("", *found)) if optional else found


@cache
def _table() -> dict[str, list[tuple[tuple[tuple[str, ...], ...], tuple[str, ...], str]]]:
    """name -> (the choices of each token, operand types, least target) of each of its lines."""
    out: dict[str, list[tuple[tuple[tuple[str, ...], ...], tuple[str, ...], str]]] = {}
    for line in TABLE.strip().splitlines():
        spelled, _, right = line.partition(" : ")
        target = next((part[1:] for part in right.split() if part[0] == "@"), "50")
        types = tuple(part for part in right.split() if part[0] != "@")
        names = re.match(r"[a-z0-9 ]*", spelled).group().split()  # type: ignore[union-attr]
        tokens = re.findall(r"\[[^\]]*\]|\S+", spelled)[len(names) :]
        for name in names:
            out.setdefault(name, []).append((tuple(_choices(token) for token in tokens), types, target))
    return out


@cache
def forms_of(name: str) -> dict[str, list[PtxForm]]:
    """Every form of an instruction by its spelled opcode; a spelling may have several, of different operands.

    >>> forms_of("testp")["testp.number.f64"]
    [PtxForm(words=('number', 'f64'), operands=('pred', 'f64'), target='50')]
    >>> [form.operands for form in forms_of("min")["min.f32"]]
    [('f32', 'f32', 'f32'), ('f32', 'f32', 'f32', 'f32')]
    """
    out: dict[str, list[PtxForm]] = {}
    for tokens, types, target in _table().get(name, ()):
        for chosen in itertools.product(*tokens):
            text = "".join(chosen)
            words = tuple(text.split(".")[1:])
            named = {"t": words[-1], "u": words[-2] if len(words) > 1 else "", "w": _twice(words[-1])}
            operands = tuple(
                "*" + named[one[1:]]
                if one[0] == "*"
                else one[:3] + named[one[3:]]
                if one[2:3] == ":"
                else named.get(one, one).replace("d|", f"{words[-1]}|")
                for one in types
            )
            out.setdefault(name + text, []).append(PtxForm(words, operands, target))
    return out


def _twice(kind: str) -> str:
    return f"{kind[0]}{2 * int(kind[1:])}" if kind[1:].isdigit() else ""


@cache
def names() -> frozenset[str]:
    """The names of the instructions in the table."""
    return frozenset(_table())


@lru_cache(maxsize=1 << 12)
def form_of(opcode: str, operands: int, target: str) -> PtxForm:
    """The form of an opcode with this many operands. Raises ValueError that says what does not fit.

    >>> form_of("add.rz.f32", 3, "sm_90a").operands
    ('f32', 'f32', 'f32')
    >>> form_of("add.sat.u64", 3, "sm_90a")
    Traceback (most recent call last):
    ...
    ValueError: add.sat.u64 is no form of add that the emulator knows
    """
    name = opcode.partition(".")[0]
    found = forms_of(name).get(opcode) or _orderless(name).get(_sorted_words(opcode))
    if found is None:
        raise ValueError(f"{opcode} is no form of {name} that the emulator knows")
    fitting = [form for form in found if len(form.operands) == operands]
    if not fitting:
        counts = " or ".join(str(len(form.operands)) for form in found)
        raise ValueError(f"{opcode} takes {counts} operands, not {operands}")
    if not any(reached(target, form.target) for form in fitting):
        raise ValueError(f"{opcode} with {operands} operands needs .target sm_{fitting[0].target.lower()} or above")
    return fitting[0]


@cache
def _orderless(name: str) -> dict[tuple[str, ...], list[PtxForm]]:
    """The forms by their words in any order, which ptxas takes too."""
    return {_sorted_words(opcode): found for opcode, found in forms_of(name).items()}


def _sorted_words(opcode: str) -> tuple[str, ...]:
    """The words of an opcode: sorted modifiers, then the types in order."""
    words = opcode.split(".")[1:]
    kinds = [word for word in words if _TYPE.fullmatch(word)]
    return (*sorted(word for word in words if word not in kinds), *kinds)


def reached(target: str, least: str) -> bool:
    """True if an architecture ("sm_90a") has what `least` ("100a") asks for."""
    number = int(re.sub(r"\D", "", target) or 0)
    own = least[-1] in "axAX"
    if least[-1] in "xX" and number // 10 != int(least[:-1]):
        return False
    return number >= int(least[:-1] + "0" if least[-1] in "xX" else least.rstrip("aA")) and (
        not own or target[-1] in ("a" if least[-1].isupper() else "af")
    )
