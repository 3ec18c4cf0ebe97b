"""Moves between registers, and addresses. PTX ISA, "Data Movement and Conversion Instructions": mov, cvta."""

from __future__ import annotations

from ..codegen import (
    LOCAL_BYTES,
    LOCAL_WINDOW,
    PARAMETER_BASE,
    SHARED_WINDOW,
    CodeGenerator,
    bits_of,
    elements_of,
    rule,
)
from ..parser import MAX_PARAMETER_BYTES, PtxInstruction, PtxOperand


@rule("mov")
def _mov(g: CodeGenerator, ins: PtxInstruction) -> str | list[tuple[PtxOperand, str]]:
    kind, (target, source) = ins.words[-1], ins.operands
    if ins.words[1] in ("v2", "v4"):
        return [(to, g.read(part, kind)) for to, part in zip(target.parts, elements_of(source), strict=True)]
    if target.kind == "vector":
        if all(part.kind == "sink" for part in target.parts):
            raise ValueError("all of its results are dropped")
        each = bits_of(kind) // len(target.parts)
        text = g.read(source, kind)
        for part in target.parts:
            if part.kind == "reg" and (wrong := g.misfit(part, each)):
                raise ValueError(wrong)
        return [(part, _field(text, i * each, each, bits_of(kind))) for i, part in enumerate(target.parts)]
    if source.kind == "vector":
        return _joined([g.read(part, f"b{bits_of(kind) // len(source.parts)}") for part in source.parts], bits_of(kind))
    return g.read(source, kind)


def _field(text: str, low: int, width: int, whole: int) -> str:
    if whole == 128:
        return f"part128({text}, {low}, {width})"
    if whole == 64:
        half = f"narrow({text})" if low < 32 else f"high({text})"
        return half if width == 32 else f"({half} >> {low % 32} & {(1 << width) - 1})"
    return f"({text} >> {low} & {(1 << width) - 1})"


def _joined(parts: list[str], whole: int) -> str:
    each = whole // len(parts)
    if whole == 128:
        return f"join128({', '.join(parts)})"
    if whole == 64:
        half = len(parts) // 2
        low, up = (_joined(p, 32) if len(p) > 1 else p[0] for p in (parts[:half], parts[half:]))
        return f"join64({low}, {up})"
    return "(" + " | ".join(f"({part}) << {i * each}" if i else f"({part})" for i, part in enumerate(parts)) + ")"


WINDOWS = {"shared": SHARED_WINDOW, "shared::cta": SHARED_WINDOW, "shared::cluster": SHARED_WINDOW,
           "local": LOCAL_WINDOW}  # fmt: skip


@rule("isspacep")
def _isspacep(g: CodeGenerator, ins: PtxInstruction) -> str:
    """True for generic addresses in a state space. Parameters lie in global memory's; constants have no window here."""
    text, space = g.read(ins.operands[1], "b64"), ins.words[1]
    if space == "const":
        raise ValueError("whether a generic address is in const memory is not modelled")
    if space.startswith("param"):
        return f"(({text} >= {PARAMETER_BASE}) & ({text} < {PARAMETER_BASE + MAX_PARAMETER_BYTES}))"
    shared = f"({text} >= {SHARED_WINDOW})"
    local = f"(({text} >= {LOCAL_WINDOW}) & ({text} < {LOCAL_WINDOW + LOCAL_BYTES}))"
    return local if space == "local" else shared if space != "global" else f"({shared} | {local}) ^ True"


@rule("cvta")
def _cvta(g: CodeGenerator, ins: PtxInstruction) -> str:
    """Addresses of shared and of local memory lie in windows of the generic ones; others stay as they are."""
    back, space = ins.words[1] == "to", ins.words[-2]
    if bits_of(ins.words[-1]) != 64:
        raise ValueError("addresses have 64 bits here")
    text = g.read(ins.operands[1], "b64")
    if space not in WINDOWS:
        return text
    if back and space != "local":
        return f"to_shared({text}, {SHARED_WINDOW})"
    return f"({text} {'-' if back else '+'} {WINDOWS[space]})"
