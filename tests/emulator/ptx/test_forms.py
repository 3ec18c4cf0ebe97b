"""The table of forms against ptxas, and the rules of modifiers, operands and targets."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from layoutgemm.emulator.ptx.forms import PtxForm, form_of, forms_of, names
from tests import needs

PTXAS = shutil.which("ptxas")
# Forms of PTX 9.1 and 9.2, and the first release of ptxas that is tested with them.
NEWER, NEWEST = (
    re.compile(r"s2f6x2|\.e\dm\dx2\.(b?f16x2)|\.bf16x2\.e\dm\dx2|[us]8x4|^add\.sat\.(u32|[us]16x2)"),
    (13, 4),
)
REGISTERS = {1: "p", 8: "b", 16: "h", 32: "r", 64: "d", 128: "q"}


def width(kind: str) -> int:
    kind = kind.lstrip("*")
    if kind in ("pred", "p"):
        return 1
    if kind in ("u8x4", "s8x4"):
        return 32
    if kind.endswith("x2"):
        return 64 if kind == "f32x2" else 32
    found = re.search(r"\d+", kind)
    assert found is not None, kind
    return 8 if kind == "b8" else max(16, int(found.group()))


def operand(kind: str, number: int) -> str:
    if kind == "i":
        return "5"
    if kind[2:3] == ":":
        return "{" + ", ".join([f"%{REGISTERS[width(kind[3:])]}{n}" for n in range(int(kind[1]))]) + "}"
    whole, _, beside = kind.partition("|")
    return f"%{REGISTERS[width(whole)]}{number}" + ("|%p7" if beside else "")


def spelled(opcode: str, form: PtxForm) -> str:
    return f"{opcode} {', '.join(operand(kind, n) for n, kind in enumerate(form.operands))};"


@cache
def release() -> tuple[int, int]:
    """The release of ptxas, as (13, 0)."""
    assert PTXAS is not None
    said = subprocess.run([PTXAS, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"release (\d+)\.(\d+)", said)
    assert found is not None
    return int(found[1]), int(found[2])


def version() -> str:
    """The version of PTX that ptxas knows, of those with the forms of the table."""
    return "9.4" if release() >= NEWEST else "9.0" if release() >= (13, 0) else "8.6"


def refused_by_ptxas(lines: list[str], target: str, folder: Path) -> dict[int, str]:
    """Line -> error, for each line that ptxas refuses."""
    declared = " ".join(f".reg .{'pred' if bits == 1 else f'b{bits}'} %{r}<8>;" for bits, r in REGISTERS.items())
    head = f".version {version()}\n.target {target}\n.address_size 64\n.visible .entry k() {{\n{declared}\n"
    text = folder / "forms.ptx"
    text.write_text(head + "\n".join(lines) + "\nret; }\n")
    assert PTXAS is not None
    done = subprocess.run(
        [PTXAS, "-arch", target, str(text), "-o", str(folder / "forms.o")], capture_output=True, text=True
    )
    said = done.stdout + done.stderr
    return {int(line) - 6: why for line, why in re.findall(r"line (\d+); error\s*: (.*)", said)}


@needs.PTXAS
@pytest.mark.parametrize("target", ["sm_80", "sm_90a", "sm_100a", "sm_100f", "sm_103a", "sm_120a"])
def test_ptxas_takes_the_forms_of_the_table_and_no_others(target: str, tmp_path: Path):
    """Every spelling for every target, and neighbours of it: a word left out, doubled or exchanged for another."""
    lines, ours = [], []
    for name in sorted(names()):
        for opcode, found in forms_of(name).items():
            if NEWER.search(opcode) and release() < NEWEST:
                continue
            for form in found:
                lines.append(spelled(opcode, form))
                ours.append(takes(opcode, len(form.operands), target))
    refused = refused_by_ptxas(lines, target, tmp_path)
    assert len(refused) < len(lines) / 4
    wrong = [(line, refused.get(n, "taken")) for n, line in enumerate(lines) if ours[n] != (n not in refused)]
    assert not wrong, wrong[:10]


def takes(opcode: str, operands: int, target: str) -> bool:
    try:
        form_of(opcode, operands, target)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "opcode",
    [
        "add.sat.u32", "add.rz.f16", "mul.sat.f64", "fma.f32", "fma.rn.relu.f32", "min.relu.u32", "min.rn.f32",
        "div.f32", "rcp.f64", "sqrt.approx.f64", "cvt.f32.f64", "cvt.rn.f64.f32", "cvt.rzi.f32.s32", "cvt.sat.s32.u8",
        "cvt.f16x2.f32", "cvt.rn.e4m3x2.f32", "setp.lt.b32", "setp.lo.s32", "setp.ftz.eq.f64", "shf.l.b32", "abs.u32",
        "prmt.f4e", "lop3.b64", "bfe.b32", "testp.zero.f32", "mad.wide.u64", "mul.wide.b32", "selp.f16", "slct.u32.u32",
        "dp4a.u32", "ex2.f32", "tanh.f32", "popc.u32", "neg.u32", "add.cc.u16", "sad.f32", "ex2.approx.bf16",
    ],
)  # fmt: skip
def test_what_ptxas_refuses_is_refused(opcode: str):
    assert not any(takes(opcode, count, "sm_100a") for count in range(1, 7))


def test_modifiers_stand_in_any_order():
    assert form_of("add.ftz.rn.f32", 3, "sm_80") == form_of("add.rn.ftz.f32", 3, "sm_80")
    assert form_of("cvt.satfinite.rn.e4m3x2.f32", 3, "sm_90").operands == ("b16", "f32", "f32")
    assert takes("cvt.rn.f16.f32", 2, "sm_80") and not takes("cvt.f32.rn.f16", 2, "sm_80")


def test_targets():
    assert takes("add.f32x2", 3, "sm_100") and not takes("add.f32x2", 3, "sm_90a")
    assert takes("min.f32", 3, "sm_80") and takes("min.f32", 4, "sm_120a") and not takes("min.f32", 4, "sm_90a")
    assert takes("cvt.rn.f16x2.e2m1x2", 2, "sm_100a") and not takes("cvt.rn.f16x2.e2m1x2", 2, "sm_100")
    assert takes("fma.rn.f32.bf16", 4, "sm_100a") and not takes("fma.rn.f32.bf16", 4, "sm_90a")
    assert takes("cvt.rs.f16x2.f32", 4, "sm_103a") and not takes("cvt.rs.f16x2.f32", 4, "sm_120a")
