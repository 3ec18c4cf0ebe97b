"""Microkernels of one scalar, warp-wide or matrix instruction each, drawn from the table of forms; a file of results.

A kernel has 1,024 threads. Each reads 64 bits from three arrays, a, b and c, into registers of 16, 32 and 64 bits
(%ha, %ra, %da, and so on), executes the body, and writes 64 bits of %hx, %rx or %dx. `draw` makes bodies, `inputs`
the arrays: edges of integers, special values and neighbours of every float format, and operands that nearly cancel.

A file holds the inputs, the bodies and what a device gave, compressed: xz of a line of JSON and of the arrays, whose
bytes are sorted by significance.
"""

from __future__ import annotations

import json
import lzma
import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from layoutgemm.dtypes import dtype
from layoutgemm.emulator.ptx.forms import PtxForm, form_of, forms_of, names
from tests.micro.mma_sync import header

THREADS = 1024
Words = npt.NDArray[np.uint64]
REGISTERS = """
 .reg .b8 %ba, %bb, %bx; .reg .b16 %ha, %hb, %hc, %hx; .reg .b32 %ra, %rb, %rc, %rx, %t, %u, %v;
 .reg .b64 %da, %db, %dc, %dx, %q, %o; .reg .pred %p, %s, %g;"""
READ = "ld.param.u64 %q, [p{0}]; add.u64 %q, %q, %o; ld.global.u64 %d{0}, [%q];"
TAILS = {16: "cvt.u64.u16 %dx, %hx;", 32: "cvt.u64.u32 %dx, %rx;", 64: ""}


@dataclass(frozen=True)
class Case:
    """One kernel.

    body       its instructions
    bits       of the register that it writes: 16, 32 or 64
    floats     the float type of the result; "" where bits are compared
    tolerance  relative, of an approximation; 0: all bits, but NaNs are alike whatever their payload
    absolute   an error that an approximation may have besides
    """

    body: str
    bits: int
    floats: str = ""
    tolerance: float = 0.0
    absolute: float = 0.0


def text_of(case: Case, name: str) -> str:
    """The `.entry` of a case."""
    return f""".visible .entry {name}(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u64 px) {{{REGISTERS}
 mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 8; {" ".join(READ.format(x) for x in "abc")}
 {" ".join(f"cvt.u32.u64 %r{x}, %d{x}; cvt.u16.u64 %h{x}, %d{x};" for x in "abc")}
 mov.u32 %rx, 0; mov.u64 %dx, 0; mov.u16 %hx, 0;
 {case.body}
 {TAILS[case.bits]}
 ld.param.u64 %q, [px]; add.u64 %q, %q, %o; st.global.u64 [%q], %dx;
 ret; }}
"""


def module_of(cases: Sequence[Case], target: str, version: str = "") -> str:
    """One module with the kernels k0, k1, ... of these cases, in the least version of PTX with the target's forms."""
    version = version or ("8.6" if int(re.sub(r"\D", "", target)) < 100 else "9.2")
    return header(target, version) + "".join(text_of(case, f"k{n}") for n, case in enumerate(cases))


# Operands -------------------------------------------------------------------------------------------------------------

EDGES = [
    0, 1, 2, 3, 5, 31, 32, 33, 63, 64, 65, 127, 128, 255, 256, 0x7FFF, 0x8000, 0xFFFF, 0x10000, 0x7FFFFF, 0x800000,
    0xFFFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 1 << 32, (1 << 53) - 1, 1 << 53, (1 << 53) + 1, (1 << 63) - 1,
    1 << 63, (1 << 64) - 1, (1 << 64) - 2, 0x5555555555555555, 0x0123456789ABCDEF,
]  # fmt: skip
# Exponent and fraction bits of the float formats.
FORMATS = {"f16": (5, 10), "bf16": (8, 7), "f32": (8, 23), "f64": (11, 52)}


def _special(rng: random.Random, kind: str) -> int:
    """The bits of a special value, or of a number near a power of two."""
    exponent, fraction = FORMATS[kind]
    top, bias = (1 << exponent) - 1, (1 << exponent - 1) - 1
    low = rng.choice((0, 0, 1, (1 << fraction) - 1, 1 << fraction - 1, rng.getrandbits(fraction)))
    scale = rng.choice((0, 0, 1, top, top - 1, bias, bias, bias - 1, bias + 1, bias + fraction, bias + 15, bias + 31,
                        min(top - 1, bias + 63), max(1, bias - fraction)))  # fmt: skip
    return rng.getrandbits(1) << exponent + fraction | scale << fraction | low


def _random_float(rng: random.Random, kind: str) -> int:
    """The bits of a float of a moderate exponent."""
    exponent, fraction = FORMATS[kind]
    bias = (1 << exponent - 1) - 1
    scale = min((1 << exponent) - 2, max(1, bias + rng.randint(-12, 12)))
    return rng.getrandbits(1) << exponent + fraction | scale << fraction | rng.getrandbits(fraction)


def _word(rng: random.Random) -> int:
    way = rng.randrange(8)
    if way == 0:
        return rng.choice(EDGES)
    if way == 1:
        return rng.getrandbits(64)
    if way == 2:
        return rng.randrange(-70, 70) & (1 << 64) - 1
    make = _special if way < 6 else _random_float
    kind = rng.choice(("f16", "bf16", "f32", "f32", "f64"))
    bits = 1 + sum(FORMATS[kind])
    return sum(make(rng, kind) << at for at in range(0, 64, bits))


def inputs(seed: int) -> list[Words]:
    """a, b, c: 1,024 words each; some b and c are a neighbour or the negative of a, or nearly cancel a * b."""
    rng = random.Random(seed)
    rows = []
    for _ in range(THREADS):
        a, b, c = (_word(rng) for _ in "abc")
        way = rng.randrange(12)
        if way == 0:
            b = a
        elif way == 1:
            b = a ^ rng.choice((1 << 15, 1 << 31, 1 << 63, 0x80008000, 1))
        elif way == 2:
            b = a + rng.choice((-1, 1)) & (1 << 64) - 1
        elif way in (3, 4):
            a, b = (_random_float(rng, "f32") for _ in "ab")
            with np.errstate(all="ignore"):
                product = np.float32(-1) * np.uint32(a).view(np.float32) * np.uint32(b).view(np.float32)
            c = int(product.view(np.uint32)) + rng.choice((-1, 0, 0, 1)) & 0xFFFFFFFF
        elif way == 5:
            a, b = (_random_float(rng, "f64") for _ in "ab")
            with np.errstate(all="ignore"):
                wide = -np.uint64(a).view(np.float64) * np.uint64(b).view(np.float64)
            c = int(wide.view(np.uint64)) + rng.choice((-1, 0, 0, 1)) & (1 << 64) - 1
        rows.append((a, b, c))
    return [np.array(column, dtype=np.uint64) for column in zip(*rows, strict=True)]


# Forms ----------------------------------------------------------------------------------------------------------------

APPROXIMATE = {"f32": 2.0**-19, "f64": 2.0**-18, "f16": 2.0**-9, "bf16": 2.0**-6}
# PTX ISA: tanh.approx.f32 has a relative error, lg2 near 1 and the results of sin and cos an absolute one.
RELATIVE = {"tanh.approx.f32": 2.0**-10.9}
ABSOLUTE = {"lg2": 2.0**-21.9, "sin": 2.0**-20.4, "cos": 2.0**-20.4, "ex2.approx.f16": 2.0**-24}


def _bits(kind: str) -> int:
    if kind in ("pred", "p"):
        return 1
    if kind.endswith(("x2", "8x4")):
        return 64 if kind == "f32x2" else 32
    return max(8 if kind == "b8" else 16, int(re.search(r"\d+", kind)[0]))


def _register(kind: str, name: str, rng: random.Random) -> str:
    """The register of an operand of a type; one that may be wider sometimes is."""
    bits = _bits(kind.lstrip("*"))
    if kind[0] == "*":
        bits = rng.choice([size for size in (16, 32, 64) if size >= bits] + [max(16, bits)] * 2)
    return f"%{ {8: 'b', 16: 'h', 32: 'r', 64: 'd'}[bits] }{name}"


def body_of(opcode: str, form: PtxForm, rng: random.Random) -> Case | None:
    """A case of a form: registers chosen, predicates made of c; None for a form that is not drawn."""
    to, *sources = form.operands
    before, after, names_, texts = "", "", iter("abc" if rng.random() < 0.8 else "abca"), []
    for kind in sources:
        if kind == "i":
            texts.append(str(rng.randrange(256)))
        elif kind == "pred":
            before = "and.b32 %u, %rc, 1; setp.ne.u32 %g, %u, 0; "
            texts.append(rng.choice(("%g", "!%g")))
        elif kind[2:3] == ":":
            return None
        elif (name := next(names_, None)) is None:
            texts.append(str(rng.randrange(32)))
        elif kind == "b8":
            before += f"mov.b16 {{%b{name}, _}}, %h{name}; "
            texts.append(f"%b{name}")
        else:
            texts.append(_register(kind, name, rng))
    whole, _, beside = to.partition("|")
    if whole in ("p", "pred"):
        target, after, result = "%p", "selp.u32 %rx, 1, 0, %p;", "u32"
        if beside and rng.random() < 0.5:
            target, after = "%p|%s", after + " @%s or.b32 %rx, %rx, 2;"
    elif whole == "b8":
        target, after, result = "%bx", "mov.b16 %hx, {%bx, 0};", "b16"
        before += "mov.b16 {%bb, _}, %hb; "
        after = "mov.b16 %hx, {%bx, %bx};"
    elif beside:
        target, after, result = "%rx|%p", "@%p xor.b32 %rx, %rx, 0x80000000;", "b32"
    else:
        target = _register(whole, "x", rng)
        result = {"h": "b16", "r": "b32", "d": "b64"}[target[1]]
    floats = whole.lstrip("*") if re.match(r"\*?(b?f16(x2)?|f32(x2)?|f64|tf32)$", whole) else ""
    floats = "f32" if floats == "tf32" else floats
    if floats and _bits(floats) != int(result[1:]):
        floats = ""
    bounds = [0.0, 0.0]
    if {"approx", "full"} & set(form.words):
        bounds = [APPROXIMATE.get(floats.removesuffix("x2"), 0.0), 0.0]
        for bound, known in enumerate((RELATIVE, ABSOLUTE)):
            bounds[bound] = next((more for name, more in known.items() if opcode.startswith(name)), bounds[bound])
    text = f"{opcode} {', '.join([target, *texts])};"
    return Case(" ".join(f"{before}{text} {after}".split()), int(result[1:]), floats, *bounds)


CARRIES = [
    f"{first}.cc.{kind} %{r}x, %{r}a, %{r}b{more}; {second}{cc}.{kind} %{r}x, %{r}c, %{r}x{more}; {third}"
    for kind, r in (("u32", "r"), ("s32", "r"), ("u64", "d"), ("s64", "d"))
    for first, second, more in (("add", "addc", ""), ("sub", "subc", ""), ("mad.lo", "madc.hi", f", %{r}c"))
    for cc, third in (("", ""), (".cc", f"{second.partition('.')[0][:3]}c{'.lo' if 'mad' in second else ''}.{kind} "
                                 f"%{r}x, %{r}x, %{r}a{more};"))
]  # fmt: skip
MASKED = "setp.gt.s32 %p, %ra, %rb; "
WARP = [
    *[f"shfl.sync.{mode}.b32 %rx|%p, %ra, {by}, {clamp}, -1; @!%p xor.b32 %rx, %rx, 0x80000000;"
      for mode in ("up", "down", "bfly", "idx") for by in ("3", "%rb") for clamp in (0, 31, 0x181F, 0x1C03, 0x1F00)],
    *[f"{MASKED}vote.sync.{way}.pred %p, {no}%p, -1; selp.u32 %rx, 1, 0, %p;"
      for way in ("all", "any", "uni") for no in ("", "!")],
    f"{MASKED}vote.sync.ballot.b32 %rx, %p, -1;",
    f"{MASKED}@%p activemask.b32 %rx;",
    f"{MASKED}@!%p bra $skip; activemask.b32 %u; vote.sync.ballot.b32 %rx, 1, %u; $skip:",
    *[f"and.b{n} %{r}x, %{r}a, {mask}; match.any.sync.b{n} %u, %{r}x, -1; mov.b32 %rx, %u;"
      for n, r in ((32, "r"), (64, "d")) for mask in (1, 3)],
    *[f"and.b32 %rx, %ra, {mask}; match.all.sync.b32 %rx|%p, %rx, -1; @%p xor.b32 %rx, %rx, 1;" for mask in (0, 1)],
    *[f"redux.sync.{way}.{kind} %rx, %ra, -1;" for way in ("add", "min", "max") for kind in ("u32", "s32")],
    *[f"redux.sync.{way}.b32 %rx, %ra, -1;" for way in ("and", "or", "xor")],
    "elect.sync %u|%p, -1; selp.u32 %rx, 1, 0, %p;",
    "prmt.b32 %rx, %ra, %rb, 0x4321; bar.warp.sync -1; shfl.sync.bfly.b32 %rx, %rx, 16, 31, -1;",
]  # fmt: skip
SHARED = (
    ".shared .align 128 .b8 s[16384]; mov.u32 %u, s; mad.lo.u32 %v, %t, 16, %u; "
    "st.shared.v2.b64 [%v], {%da, %db}; bar.sync 0; and.b32 %v, %rc, 1023; mad.lo.u32 %v, %v, 16, %u; "
)
ROWS = "and.b32 %v, %t, 31; and.b32 %rc, %t, 992; xor.b32 %v, %v, {}; add.u32 %v, %v, %rc; mad.lo.u32 %v, %v, 16, %u; "
MATRIX = [
    SHARED + "ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%rx}, [%v];",
    SHARED + "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%rx}, [%v];",
    SHARED + "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%rx, %ra}, [%v]; mov.b64 %dx, {%rx, %ra};",
    SHARED + "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%rx, %ra, %rb, %rc}, [%v]; xor.b32 %rx, %rx, %rb; "
    "add.u32 %ra, %ra, %rc; mov.b64 %dx, {%rx, %ra};",
    "movmatrix.sync.aligned.m8n8.trans.b16 %rx, %ra;",
    *[f"{SHARED}bar.sync 0; {ROWS.format(by)}stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%v], "
      f"{{{', '.join(('%ra', '%rb', '%rx', '%ra')[:count])}}}; bar.sync 0; mad.lo.u32 %v, %t, 16, %u; "
      "ld.shared.b64 %dx, [%v];"
      for by in (0, 7, 21) for count in (1, 2, 4) for trans in ("", ".trans")],
    *[f"{SHARED}and.b32 %ra, %ra, {size}; bar.sync 0; mad.lo.u32 %v, %t, 16, %u; "
      f"ld.param.u64 %q, [pa]; and.b64 %dc, %o, -16; add.u64 %q, %q, %dc; "
      f"cp.async.ca.shared.global [%v], [%q], {size}, %ra; cp.async.wait_all; ld.shared.b64 %dx, [%v];"
      for size in (8, 16)],
    *[f"{SHARED}ld.shared.{kind} %rx, [%v+{at}];"
      for kind, at in (("u8", 3), ("s8", 5), ("u16", 2), ("s16", 6), ("b32", 12))],
]  # fmt: skip


def draw(rng: random.Random, count: int, target: str, only: str = "") -> list[Case]:
    """Cases for a target: forms of every instruction in turn, and warp-wide and matrix instructions.

    only  a regular expression that opcodes must match; with it, no cases from lists
    """
    every: dict[str, list[tuple[str, PtxForm]]] = {}
    for name in sorted(names()):
        for opcode, found in forms_of(name).items():
            every.setdefault(name, []).extend(
                (opcode, form) for form in found if re.search(only, opcode) and _fits(opcode, form, target)
            )
    every = {name: rng.sample(found, len(found)) for name, found in every.items() if found}
    if only:
        count, out = min(count, sum(map(len, every.values()))), []
    else:
        out = _listed(rng)
    out = out[:count]
    while len(out) < count and every:
        for name in list(every):
            opcode, form = every[name].pop()
            if not every[name]:
                del every[name]
            case = (
                body_of(opcode, form, rng) if name not in ("addc", "subc", "madc") and "cc" not in form.words else None
            )
            if case is not None and len(out) < count:
                out.append(case)
    return out


def _listed(rng: random.Random) -> list[Case]:
    """The cases from lists."""
    out = [Case(body, 64 if "%dx" in body else 32) for body in WARP + MATRIX]
    return out + [Case(body, 64 if "%dx" in body else 32) for body in rng.sample(CARRIES, min(len(CARRIES), 12))]


def _fits(opcode: str, form: PtxForm, target: str) -> bool:
    try:
        form_of(opcode, len(form.operands), target)
    except ValueError:
        return False
    left_out = {"rs", "oob", "pred", "b128"} & set(form.words) or re.match(r"fma\.r[zmp](\.relu)?\.bf16$", opcode)
    return (
        not left_out and not re.search(r"s2f6x2\.\w+$", opcode) and opcode.partition(".")[0] not in ("cvta", "isspacep")
    )


# Results --------------------------------------------------------------------------------------------------------------


def _parts(words: Words, kind: str) -> list[tuple[Words, str]]:
    """The floats of each word: one, or both of a packed pair."""
    if not kind.endswith("x2"):
        return [(words, kind)]
    bits = 32 if kind == "f32x2" else 16
    mask = np.uint64((1 << bits) - 1)
    return [(words >> np.uint64(at) & mask, kind[:-2]) for at in (0, bits)]


def _values(words: Words, kind: str) -> npt.NDArray[np.float64]:
    form = dtype(kind)
    with np.errstate(invalid="ignore"):  # a signalling NaN
        return form.decode(words.astype(form.storage)).astype(np.float64)


def differing(case: Case, got: Words, want: Words) -> npt.NDArray[np.bool_]:
    """The threads whose results differ."""
    if not case.floats:
        return got != want
    out = np.zeros(len(got), dtype=bool)
    for (x, kind), (y, _) in zip(_parts(got, case.floats), _parts(want, case.floats), strict=True):
        a, b = _values(x, kind), _values(y, kind)
        wrong = (x != y) & ~(np.isnan(a) & np.isnan(b))
        if case.tolerance:
            with np.errstate(all="ignore"):
                size = np.maximum(np.abs(b), 2.0**-20 if kind != "f64" else 2.0**-300)
                near = np.abs(a - b) <= case.tolerance * size + case.absolute
            wrong &= ~near
        out |= wrong
    return out


def _shuffled(words: Words, bits: int) -> bytes:
    narrow = np.ascontiguousarray(words.astype(f"u{bits // 8}"))
    return narrow.view(np.uint8).reshape(-1, bits // 8).T.tobytes()


def _restored(raw: bytes, bits: int) -> Words:
    columns = np.frombuffer(raw, dtype=np.uint8).reshape(bits // 8, THREADS)
    return np.ascontiguousarray(columns.T).view(f"u{bits // 8}").reshape(-1).astype(np.uint64)


def save(path: Path, about: dict[str, str], arrays: Sequence[Words], results: Sequence[tuple[Case, Words]]) -> None:
    """Write inputs, cases and results; about: device, target, date."""
    head = json.dumps({"about": about, "cases": [asdict(case) for case, _ in results]})
    parts = [_shuffled(words, 64) for words in arrays] + [_shuffled(words, case.bits) for case, words in results]
    path.write_bytes(lzma.compress(head.encode() + b"\n" + b"".join(parts), preset=9))


def load(path: Path) -> tuple[dict[str, str], list[Words], list[tuple[Case, Words]]]:
    """The content of a file of `save`: about, the inputs, and (case, result) pairs."""
    line, _, raw = lzma.decompress(path.read_bytes()).partition(b"\n")
    head = json.loads(line)
    cases = [Case(**one) for one in head["cases"]]
    at, out = 0, []
    for bits in [64, 64, 64, *[case.bits for case in cases]]:
        size = bits // 8 * THREADS
        out.append(_restored(raw[at : at + size], bits))
        at += size
    return head["about"], out[:3], list(zip(cases, out[3:], strict=True))
