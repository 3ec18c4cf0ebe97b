"""cvt, of every pair of types. PTX ISA, "Data Movement and Conversion Instructions": cvt, cvt.pack."""

from __future__ import annotations

from ....dtypes import dtype
from .. import floats
from ..codegen import MASKS, CodeGenerator, bits_of, kind_of, mask_of_type, rule
from ..parser import PtxInstruction
from ..rounding import rounding_of


@rule("cvt")
def _cvt(g: CodeGenerator, ins: PtxInstruction) -> str:
    *words, to, from_ = ins.words[1:]
    sources = ins.operands[1:]
    if "rs" in words:
        return _stochastic(g, ins)
    if "pack" in words:
        return _packed_integers(g, ins)
    if to == "s2f6x2":
        raise ValueError("cvt to s2f6x2 is left out of the emulator: no hardware has confirmed its NaN and its scale")
    if from_ == "s2f6x2" or "scaled::n2::ue8m0" in words:
        return _scaled(g, ins)
    if to.endswith("x2") and from_ == "f32":
        up, low = (f"decode({g.read(o, from_)}, KIND_f32)" for o in sources)
        return _pair(words, to, up, low)
    if to.endswith("x2") and from_.endswith("x2"):
        kind = kind_of(from_[:-2])
        text, bits = g.packed(sources[0]), _field_bits(from_)
        up, low = (f"decode({text} >> {at} & {(1 << bits) - 1}, {kind})" for at in (bits, 0))
        return _pair(words, to, up, low)
    if to[0] in "su" and from_[0] in "su":
        return _integer(g, ins, to, from_, "sat" in words)
    if to[0] in "su":
        mode = next(word for word in words if word in floats.ROUND)
        text = g.low(sources[0], from_)
        text = f"bits32(flushed(f32({text})))" if "ftz" in words and from_ == "f32" else text
        width = _register(g, ins, to)
        return f"to_integer({text}, {kind_of(from_)}, {mode!r}, {bits_of(to)}, {to[0] == 's'}, {width})"
    wide = "wide" if _register(g, ins, "b32" if to == "tf32" else to) > max(32, bits_of(to)) else ""
    if from_[0] in "su":
        value = g.signed(sources[0], from_, wider=True)
        return f"{wide}(from_integer({value}, {kind_of(to)}, {rounding_of(words)!r}, {'sat' in words}))"
    return f"{wide}({_between_floats(g, ins)})"


def _scaled(g: CodeGenerator, ins: PtxInstruction) -> str:
    """cvt of a narrow pair to a pair of bf16, scaled by a third operand."""
    *words, to, from_ = ins.words[1:]
    text, scales = g.packed(ins.operands[1]), g.packed(ins.operands[2]) if len(ins.operands) > 2 else None
    bits, halves = _field_bits(from_) if from_ != "s2f6x2" else 8, []
    for at, scale_at in ((bits, 8), (0, 0)):
        part = f"fixed_pair({text}, {at})"
        if from_ != "s2f6x2":
            part = f"decode({text} >> {at} & {(1 << bits) - 1}, {kind_of(from_[:-2])})"
        halves.append(part if scales is None else f"scaled({part}, {scales}, {scale_at})")
    return _pair(words, to, *halves)


# Destination of .rs -> how many random bits an element has, and their lowest bit in `rbits` for each element, from the
# first source on. Two elements with one place share their bits: the first one has them in reverse order.
# PTX ISA, "cvt", figures of the layouts of random bits. It leaves open the order in a shared half, and which half of
# e2m1x4 an element has. The former is what FlashInfer found for e4m3x4 on sm_100a (include/flashinfer/mamba/
# conversion.cuh); the latter is that of bf16x2, since TransformerEngine has 8 bits an element (util/ptx.cuh).
_RANDOM = {
    "f16x2": (13, (16, 0)),
    "bf16x2": (16, (16, 0)),
    **dict.fromkeys(("e4m3x4", "e5m2x4", "e2m3x4", "e3m2x4"), (16, (16, 16, 0, 0))),
    "e2m1x4": (8, (24, 8, 16, 0)),
}


def _stochastic(g: CodeGenerator, ins: PtxInstruction) -> str:
    """cvt.rs: each element is rounded away from zero if its random bits and the lost bits of its mantissa carry."""
    *words, to, _ = ins.words[1:]
    count, places = _RANDOM[to]
    *sources, random = ins.operands[1:]
    sources = list(sources[0].parts) if sources[0].kind == "vector" else sources
    kind, bits = to[:-2], g.read(random, "b32")
    field = 16 if to in ("f16x2", "bf16x2") else _field_bits(to)
    parts = []
    for n, (source, place) in enumerate(zip(sources, places, strict=True)):
        chosen = f"({bits} >> {place} & {(1 << count) - 1})"
        if places[n + 1 : n + 2] == (place,):
            chosen = f"by_lane(lambda x: reverse_bits(x, {count}), {chosen})"
        value = _limited(words, f"decode({g.read(source, 'f32')}, KIND_f32)", kind)
        made = f"encode(stochastic({value}, {kind_of(kind)}, {chosen}, {count}), {kind_of(kind)})"
        parts.append(f"({made} << {field * (len(sources) - 1 - n)})")
    return f"({' | '.join(parts)})"


def _between_floats(g: CodeGenerator, ins: PtxInstruction) -> str:
    """cvt of one float."""
    *words, to, from_ = ins.words[1:]
    text = f"decode({g.low(ins.operands[1], from_)}, {kind_of(from_)})"
    if "ftz" in words and from_ == "f32":
        text = f"flushed({text})"
    for word in words:
        if word in floats.ROUND:
            text = f"ROUND[{word!r}]({text})"
    if "sat" in words:
        text = f"saturated({text}, 0, 1)"
    text = _limited(words, text, to)
    if to == "tf32":
        mode = next(word for word in words if word in ("rn", "rna", "rz"))
        text = f"tf32(bits32({text}), {mode!r})"
        return f"limit_tf32({text})" if "satfinite" in words else text
    mode = rounding_of(words)
    if to == "f64":
        return f"bits64({text})"
    if to != "f32":
        return _narrowed(text, to, mode)
    text = f"to_f32({text}, {mode!r})" if mode != "rn" else text
    return f"bits32(flushed(np.float32({text})))" if "ftz" in words else f"bits32({text})"


def _narrowed(text: str, to: str, mode: str) -> str:
    """The bits of a value in a format of 16 bits or less."""
    return f"encode({text}, {kind_of(to)})" if mode == "rn" else f"to_narrow({text}, {kind_of(to)}, {mode!r})"


def _limited(words: list[str], text: str, to: str) -> str:
    """A cvt's clamps: .relu turns negative values into 0, .satfinite clamps to the range; NaN stays."""
    if "relu" in words:
        text = f"np.where({text} <= 0, np.float32(0), {text})"
    if "satfinite" in words and to in floats.LARGEST:
        text = f"np.clip({text}, -{floats.LARGEST[to]!r}, {floats.LARGEST[to]!r})"
    return text


def _field_bits(kind: str) -> int:
    """Bits of each half of a packed pair: 6-bit types are padded to bytes."""
    bits = dtype(kind[:-2]).bits
    return 8 if bits == 6 else bits


def _pair(words: list[str], to: str, up: str, low: str) -> str:
    """cvt to a packed pair."""
    kind = to[:-2]
    if kind == "ue8m0":
        halves = [f"scale_bits({x}, {'rp' in words}, {'satfinite' in words})" for x in (up, low)]
    else:
        halves = [_narrowed(_limited(words, x, kind), kind, rounding_of(words)) for x in (up, low)]
    return f"({halves[0]} << {_field_bits(to)} | {halves[1]})"


def _packed_integers(g: CodeGenerator, ins: PtxInstruction) -> str:
    """cvt.pack: two integers clamped to a narrow type, above them the low bits of a third."""
    kind = next(word for word in ins.words[3:])
    a, b, *c = (g.read(operand) for operand in ins.operands[1:])
    return f"by_lane(lambda c, a, b: packed_fields(c, a, b, {kind!r}), {c[0] if c else 0}, {a}, {b})"


def _integer(g: CodeGenerator, ins: PtxInstruction, to: str, from_: str, saturate: bool) -> str:
    """cvt between integers; a register wider than its type has the type's sign, or zeros, above."""
    source = ins.operands[1]
    value = g.signed(source, from_, wider=True)
    bits, had, register = bits_of(to), bits_of(from_), _register(g, ins, to)
    (low, top), (least, most) = _range(to), _range(from_)
    fits = low <= least and most <= top
    if saturate:
        value = f"largest({value}, {low})" if low > least else value
        value = f"least({value}, {top})" if top < most else value
    if had < 64 and register < 64:
        if fits or (saturate and low == 0):
            return f"({value}) & {MASKS[register]}" if least < 0 else value
        if to[0] == "s" and register > bits and not saturate:
            value = _sign_extended(value, to)
        return f"({value}) & {MASKS[register if to[0] == 's' else bits]}"
    if had == 64 and bits == 64 and (fits or not saturate):
        return g.read(source, from_)
    if had < 64 and fits:
        return f"signed_wide({value})" if least < 0 else f"wide({value})"
    return f"converted({value}, {bits}, {to[0] == 's'}, {register})"


def _register(g: CodeGenerator, ins: PtxInstruction, kind: str) -> int:
    """Bits of the register that a cvt writes. Raises ValueError for one that is narrower than its type."""
    target = ins.operands[0]
    register, bits = bits_of(g.kinds.get(target.text, kind)), bits_of(kind)
    if target.kind == "reg" and register < bits:
        raise ValueError(f"{target.text} is a register of {register} bits, narrower than .{kind}")
    return max(register, bits)


def _range(kind: str) -> tuple[int, int]:
    bits = bits_of(kind)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)


def _sign_extended(text: str, kind: str) -> str:
    half = 1 << bits_of(kind) - 1
    return f"((({text}) & {mask_of_type(kind)} ^ {half}) - {half})"
