"""Arithmetic of integers and operations on bits. PTX ISA, "Integer Arithmetic Instructions", "Logic and Shift"."""

from __future__ import annotations

from ..codegen import CodeGenerator, bits_of, mask_of_type, number, rule, wrapped
from ..parser import CARRIED, CARRY, PtxInstruction, PtxOperand

Pairs = list[tuple[PtxOperand, str]]
_CARRY = PtxOperand("reg", CARRY)
SIGNS = {"add": "+", "sub": "-", "mul": "*"}


def integer(g: CodeGenerator, ins: PtxInstruction) -> str | Pairs:
    """add, sub, mul, mad, div, min, max of integers; `.cc` writes the carry too."""
    name, kind = ins.words[0], ins.words[-1]
    if kind.endswith(("16x2", "8x4")):
        return _packed(g, ins)
    a, b, *c = ins.operands[1:]
    bits, mask = bits_of(kind), mask_of_type(kind)
    if "cc" in ins.words:
        return _carrying(g, ins)
    if name in ("add", "sub"):
        if "sat" in ins.words:
            exact = f"{g.signed(a, kind)} {SIGNS[name]} {g.signed(b, kind)}"
            low, top = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
            return f"least(largest({exact}, {low}), {top}) & {mask}"
        return wrapped(f"{g.read(a, kind)} {SIGNS[name]} {g.read(b, kind)}", bits)
    if name in ("min", "max"):
        chosen = f"{'least' if name == 'min' else 'largest'}({g.signed(a, kind)}, {g.signed(b, kind)})"
        if "relu" in ins.words:
            chosen = f"largest({chosen}, 0)"
        return f"signed_wide({chosen})" if kind == "s64" else chosen if kind[0] == "u" else f"{chosen} & {mask}"
    if name == "div":
        chosen = f"quotient({g.signed(a, kind)}, {g.signed(b, kind)})"
        return f"signed_wide({chosen})" if bits == 64 else f"{chosen} & {mask}"
    part = ins.words[1]
    product = _product(g, a, b, kind, part)
    if name == "mul":
        return product
    if "sat" in ins.words:
        return f"by_lane(lambda p, c: clamped(signed(p, 32) + signed(c, 32), 32), {product}, {g.read(c[0], kind)})"
    whole = 2 * bits if part == "wide" else bits
    return wrapped(f"({product}) + {g.read(c[0], f'{kind[0]}{whole}')}", whole)


def _product(g: CodeGenerator, a: PtxOperand, b: PtxOperand, kind: str, part: str) -> str:
    bits = bits_of(kind)
    if part == "lo":
        return wrapped(f"{g.read(a, kind)} * {g.read(b, kind)}", bits)
    if part == "wide":
        if kind == "s32":
            return f"signed_wide({g.signed(a, kind)} * {g.signed(b, kind)})"
        if kind == "u32":
            return f"wide({g.read(a, kind)}) * wide({g.read(b, kind)})"
        return f"({g.signed(a, kind)} * {g.signed(b, kind)}) & M32"
    if kind == "u32":
        return f"high(wide({g.read(a, kind)}) * wide({g.read(b, kind)}))"
    if kind == "s32":
        return f"({g.signed(a, kind)} * {g.signed(b, kind)} >> 32) & M32"
    if kind in ("u16", "s16"):
        return f"({g.signed(a, kind)} * {g.signed(b, kind)} >> 16) & 65535"
    core = "x * y >> 64" if kind == "u64" else "s64(x) * s64(y) >> 64 & M64"
    return f"wide(by_lane(lambda x, y: {core}, {g.read(a, kind)}, {g.read(b, kind)}))"


def _packed(g: CodeGenerator, ins: PtxInstruction) -> str:
    """add, sub, min, max of two 16-bit integers, or of four of 8 bits."""
    name, kind = ins.words[0], ins.words[-1]
    texts = ", ".join(g.read(operand, kind) for operand in ins.operands[1:])
    bits, fields = (16, "packed") if kind.endswith("16x2") else (8, "packed_bytes")
    a, b = (f"(({x} ^ {1 << bits - 1}) - {1 << bits - 1})" if kind[0] == "s" else x for x in "ab")
    if name in ("add", "sub"):
        core = f"{a} {SIGNS[name]} {b}"
        if "sat" in ins.words:
            low, top = (-(1 << bits - 1), (1 << bits - 1) - 1) if kind[0] == "s" else (0, (1 << bits) - 1)
            core = f"least(largest({core}, {low}), {top})"
    else:
        core = f"{'least' if name == 'min' else 'largest'}({a}, {b})"
        core = f"largest({core}, 0)" if "relu" in ins.words else core
    return f"{fields}(lambda a, b: ({core}) & {(1 << bits) - 1}, {texts})"


@rule("addc", "subc", "madc")
def _carrying(g: CodeGenerator, ins: PtxInstruction) -> str | Pairs:
    """Extended-precision arithmetic: `.cc` writes the carry, addc, subc and madc read it.

    The carry of a - b - borrow is that of a + ~b + 1 - borrow, 1 where nothing is borrowed, as ptxas compiles it. The
    128-bit division of nvcc reads a subtraction's carry by addc.
    """
    name, kind = ins.words[0].removesuffix("c"), ins.words[-1]
    bits, mask = bits_of(kind), mask_of_type(kind)
    carry = f"R[{g.index[CARRY]}]" if ins.words[0] in CARRIED else str(int(name == "sub"))
    if name == "mad":
        texts = [_product(g, ins.operands[1], ins.operands[2], kind, ins.words[1]), g.read(ins.operands[3], kind)]
    else:
        texts = [g.read(operand, kind) for operand in ins.operands[1:]]
    second = f"(b ^ {mask})" if name == "sub" else "b"
    core = f"lambda a, b, c: a + {second} + c"
    value = f"by_lane(lambda a, b, c: ({core})(a, b, c) & {mask}, {', '.join(texts)}, {carry})"
    value = f"wide({value})" if bits == 64 else value
    if "cc" not in ins.words:
        return value
    over = f"by_lane(lambda a, b, c: ({core})(a, b, c) >> {bits} & 1, {', '.join(texts)}, {carry})"
    return [(ins.operands[0], value), (_CARRY, f"as_predicate({over} == 1)")]


@rule("abs", "neg")
def _sign(g: CodeGenerator, ins: PtxInstruction) -> str:
    name, kind, source = ins.words[0], ins.words[-1], ins.operands[1]
    text = g.read(source, kind)
    if kind == "s8x4":
        return f"packed_bytes(lambda a: -a & 255, {text})"
    if kind[0] == "s":
        if name == "neg":
            return f"signed_wide(-s64({text}))" if kind == "s64" else f"(-{text}) & {mask_of_type(kind)}"
        value = g.signed(source, kind)
        return f"signed_wide(abs({value}))" if kind == "s64" else f"abs({value}) & {mask_of_type(kind)}"
    sign = {"f32": 1 << 31, "f64": 1 << 63, "f16": 1 << 15, "bf16": 1 << 15}.get(kind, 0x80008000)
    whole = (1 << bits_of(kind)) - 1
    if "ftz" in ins.words:
        flush = "lambda x: flushed_half(x, 'f16')"
        text = {"f32": f"bits32(flushed(f32({text})))", "f16": f"({flush})({text})"}.get(
            kind, f"packed({flush}, {text})"
        )
    return f"({text} ^ {sign})" if name == "neg" else f"({text} & {whole ^ sign})"


@rule("rem")
def _remainder(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind = ins.words[-1]
    left = f"remainder({g.signed(ins.operands[1], kind)}, {g.signed(ins.operands[2], kind)})"
    return f"signed_wide({left})" if bits_of(kind) == 64 else f"{left} & {mask_of_type(kind)}"


@rule("sad")
def _sad(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind = ins.words[-1]
    bits, view = bits_of(kind), f"signed(x, {bits_of(kind)})" if kind[0] == "s" else "x"
    core = f"lambda a, b, c: c + abs((lambda x: {view})(a) - (lambda x: {view})(b)) & {mask_of_type(kind)}"
    found = f"by_lane({core}, {', '.join(g.read(operand, kind) for operand in ins.operands[1:])})"
    return f"wide({found})" if bits == 64 else found


@rule("mul24", "mad24")
def _product24(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind, high = ins.words[-1], ins.words[1] == "hi"
    texts = ", ".join(g.read(operand, kind) for operand in ins.operands[1:])
    core = f"product24(a, b, {kind == 's32'}, {high})"
    if ins.words[0] == "mul24":
        return f"by_lane(lambda a, b: {core}, {texts})"
    if "sat" in ins.words:
        return f"by_lane(lambda a, b, c: clamped(signed({core}, 32) + signed(c, 32), 32), {texts})"
    return f"by_lane(lambda a, b, c: {core} + c & M32, {texts})"


@rule("dp4a", "dp2a")
def _dot(g: CodeGenerator, ins: PtxInstruction) -> str:
    signs = tuple(kind == "s32" for kind in ins.words[-2:])
    width, at = (8, 0) if ins.words[0] == "dp4a" else (16, 2 if ins.words[1] == "hi" else 0)
    texts = ", ".join(g.read(operand) for operand in ins.operands[1:])
    return f"by_lane(lambda a, b, c: dot(a, b, c, {width}, {signs}, {at}), {texts})"


# Bits -----------------------------------------------------------------------------------------------------------------

TEMPLATES = {"and": "{} & {}", "or": "{} | {}", "xor": "{} ^ {}"}


@rule(*TEMPLATES)
def _logic(g: CodeGenerator, ins: PtxInstruction) -> str:
    return TEMPLATES[ins.words[0]].format(*[g.read(operand, ins.words[-1]) for operand in ins.operands[1:]])


@rule("lop3")
def _lookup(g: CodeGenerator, ins: PtxInstruction) -> str | Pairs:
    a, b, c = (g.read(operand) for operand in ins.operands[1:4])
    table = ins.operands[4]
    if table.kind != "number" or not 0 <= number(table.text, 32) < 256:
        raise ValueError(f"the table {table.text} is not a number from 0 to 255")
    found = f"lookup3({a}, {b}, {c}, {number(table.text, 32)})"
    if len(ins.words) == 2:
        return found
    sign, beside = {"and": "&", "or": "|"}[ins.words[1]], g.read(ins.operands[5], "pred")
    value, holds = ins.operands[0].parts
    return [(value, found), (holds, f"as_predicate({found} != 0) {sign} {beside}")]


@rule("prmt")
def _permute(g: CodeGenerator, ins: PtxInstruction) -> str:
    texts = ", ".join(g.read(operand) for operand in ins.operands[1:])
    return f"permute({texts})" if len(ins.words) == 2 else f"permute_by({ins.words[2]!r}, {texts})"


@rule("not", "cnot")
def _not(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind, text = ins.words[-1], g.read(ins.operands[1], ins.words[-1])
    if ins.words[0] == "cnot":
        return f"select{'64' if bits_of(kind) == 64 else ''}({text} == 0, 1, 0)"
    return f"{text} ^ True" if kind == "pred" else f"{text} ^ {mask_of_type(kind)}"


@rule("shl", "shr")
def _shift(g: CodeGenerator, ins: PtxInstruction) -> str:
    kind, amount = ins.words[-1], ins.operands[2]
    text, bits = g.read(ins.operands[1], kind), bits_of(kind)
    if amount.kind == "number" and number(amount.text, 32) < bits:
        n = number(amount.text, 32)
        if ins.words[0] == "shl":
            return f"({text} << {n}) & {mask_of_type(kind)}"
        if kind[0] != "s":
            return f"{text} >> {n}"
        if kind != "s64":
            return f"({g.signed(ins.operands[1], kind)} >> {n}) & {mask_of_type(kind)}"
    if ins.words[0] == "shl":
        return f"shift_left({text}, {g.read(amount)}, {bits})"
    return f"shift_right({text}, {g.read(amount)}, {bits}, {kind[0] == 's'})"


@rule("shf")
def _funnel(g: CodeGenerator, ins: PtxInstruction) -> str:
    low, up, amount = (g.read(o) for o in ins.operands[1:])
    return f"funnel({low}, {up}, {amount}, {ins.words[1] == 'l'}, {ins.words[2] == 'clamp'})"


@rule("bfe", "bfi", "brev", "popc", "clz", "bfind", "fns", "bmsk", "szext")
def _bits(g: CodeGenerator, ins: PtxInstruction) -> str:
    name, kind = ins.words[0], ins.words[-1]
    bits, signed, clamp = bits_of(kind), kind[0] == "s", "clamp" in ins.words
    for operand in ins.operands[-2:] if name in ("bfe", "bfi") else ():
        if operand.kind == "number" and not 0 <= number(operand.text, 32) < 256:
            raise ValueError(f"{operand.text} is a position or length that is not in 0..255")
    texts = [g.read(o, kind if i < (2 if name == "bfi" else 1) else "b32") for i, o in enumerate(ins.operands[1:])]
    core = {
        "bfe": f"lambda x, p, n: extract(x, p, n, {bits}, {signed})",
        "bfi": f"lambda a, b, p, n: insert(a, b, p, n, {bits})",
        "brev": f"lambda x: reverse_bits(x, {bits})",
        "popc": "lambda x: x.bit_count()",
        "clz": f"lambda x: {bits} - x.bit_length()",
        "bfind": f"lambda x: leading(x, {signed}, {bits}, {'shiftamt' in ins.words})",
        "fns": "find_set",
        "bmsk": f"lambda a, b: bit_mask(a, b, {clamp})",
        "szext": f"lambda a, b: extend_sign(a, b, {signed}, {clamp})",
    }[name]
    found = f"by_lane({core}, {', '.join(texts)})"
    return f"wide({found})" if bits == 64 and name in ("bfe", "bfi", "brev") else found
