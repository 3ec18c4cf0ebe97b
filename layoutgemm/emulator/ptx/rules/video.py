"""Video instructions: vadd, vset, vmad and the like. PTX ISA, "Video Instructions"."""

from __future__ import annotations

import re

from ..codegen import CodeGenerator, rule
from ..parser import PtxInstruction, PtxOperand
from ..video import video_form

_SCALAR, _PAIR, _FOUR = re.compile(r"[b][0-3]|h[01]"), re.compile(r"h[0-3]{2}"), re.compile(r"b[0-7]{4}")
_MASKS = {2: re.compile(r"h(0|1|10)"), 4: re.compile(r"b(?=\d)3?2?1?0?")}
NAMES = ("add", "sub", "absdiff", "min", "max", "set")


def _selector(operand: PtxOperand) -> str:
    """The selector of an operand, "" without one."""
    return operand.text.rpartition(".")[2] if operand.kind == "part" else ""


@rule(
    *(f"v{name}{count}" for name in NAMES for count in ("", "2", "4")), "vavrg2", "vavrg4", "vshl", "vshr", "vmad",
    checks=False,
)  # fmt: skip
def _video(g: CodeGenerator, ins: PtxInstruction) -> list[tuple[PtxOperand, str]]:
    form, (d, a, b, *more) = video_form(ins.opcode), ins.operands
    to, *of = (_selector(operand) for operand in (d, a, b))
    merges = bool(to) and form.elements == 1
    asked = form.elements > 1 or merges or bool(form.second) or form.name == "mad"
    if len(more) > 1 or (asked and not more):
        raise ValueError(f"{len(ins.operands)} operands")
    if to and (form.second if form.elements == 1 else False):
        raise ValueError("a selected result and an accumulation")
    pattern = {1: _SCALAR, 2: _PAIR, 4: _FOUR}[form.elements]
    for selector, allowed in ((to, _MASKS.get(form.elements, _SCALAR)), *((one, pattern) for one in of)):
        if selector and allowed.fullmatch(selector) is None:
            raise ValueError(f".{selector} selects nothing here")
    bare = [operand.parts[0] if operand.kind == "part" else operand for operand in (d, a, b, *more)]
    texts = ", ".join([g.read(operand, "b32") for operand in bare[1:]] + ["0"] * (not more))
    name = "scalar_video" if form.elements == 1 else "simd_video"
    return [(bare[0], f"by_lane(lambda a, b, c: {name}({ins.opcode!r}, {(to, *of)!r}, a, b, c), {texts})")]
