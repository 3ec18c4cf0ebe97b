"""Matrix and instruction descriptors, bit by bit against the CuTe DSL's words, in one subprocess."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

from layoutgemm import Layout
from layoutgemm.atoms import SWIZZLES, InstructionDescriptor, operand_read, smem_tile, tcgen05_read, wgmma
from layoutgemm.atoms.smem.descriptor import derive
from layoutgemm.atoms.smem.instruction_descriptor import CODES
from layoutgemm.dtypes import dtype
from layoutgemm.errors import AtomError, DescriptorError
from tests import needs
from tests.oracle.runner import ask

PROGRAM = Path(__file__).parents[2] / "oracle" / "dsl_descriptors.py"
pytestmark = [
    pytest.mark.dsl,
    needs.DSL,
]
KIND_OF = {"f16": "f16", "bf16": "f16", "tf32": "tf32", "e4m3": "f8f6f4", "e5m2": "f8f6f4", "i8": "i8", "u8": "i8"}
KIND_OF |= {"e2m1": "mxf4"}


def read_of(question: dict[str, Any]) -> Any:
    """The rows that the question's instruction reads: of A or, where no A has so many, of B."""
    if question["arch"] == "sm_90a":
        return operand_read(wgmma(question["rows"], question["dtype"]), "A" if question["rows"] == 64 else "B")
    return tcgen05_read(KIND_OF[question["dtype"]], question["dtype"], question["rows"])


def smem_questions() -> list[dict[str, Any]]:
    found = []
    for arch, types in (
        ("sm_90a", ("f16", "bf16", "tf32", "e4m3", "e5m2")),
        ("sm_100a", ("f16", "bf16", "tf32", "e4m3", "e5m2", "i8", "u8", "e2m1")),
    ):
        for name in types:
            bits = dtype(name).bits
            for major in ("K", "MN"):
                for swizzle, mode in SWIZZLES.items():
                    if (arch == "sm_90a" and mode.rows != 8) or not mode.readers or (major == "K" and mode.rows != 8):
                        continue
                    for rows, depth in ((64, 2048 // bits), (256, 4096 // bits)):
                        # an atom of 4 bits and 128 bytes is 256 rows wide
                        extent = [max(rows, 256), max(depth, 1024 // bits)]
                        found.append(
                            {
                                "op": "smem",
                                "arch": arch,
                                "major": major,
                                "swizzle": swizzle,
                                "dtype": name,
                                "extent": extent,
                                "rows": rows,
                                "depth": 256 // bits,
                            }
                        )
    return found


def layout_questions() -> list[dict[str, Any]]:
    """Atoms laid apart by strides larger than compact; and the same with rows at another pitch, which is refused."""
    rng = random.Random(7)
    found = []
    for arch in ("sm_90a", "sm_100a"):
        for major in ("K", "MN"):
            for swizzle in ("none", "32B", "64B", "128B"):
                for name in ("bf16", "e4m3", "tf32"):
                    if major == "MN" and name != "bf16" and (arch == "sm_90a" or name == "tf32"):
                        continue
                    for pitch in (1, 1, 2):
                        bits = dtype(name).bits
                        width = SWIZZLES[swizzle].span * 8 // bits
                        atom = 8 * width
                        across, along = (rng.randrange(1, 9) * atom for _ in range(2))
                        spans = -(-64 // width) if major == "MN" else -(-512 // bits // width)
                        rows = 64 if major == "K" else 512 // bits
                        shape = [[8, rows // 8], [width, spans]]
                        stride = [[width * pitch, across * 2], [1, along * 16]]
                        if major == "MN":
                            shape, stride = shape[::-1], stride[::-1]
                        found.append(
                            {
                                "op": "layout",
                                "arch": arch,
                                "major": major,
                                "swizzle": swizzle,
                                "dtype": name,
                                "shape": shape,
                                "stride": stride,
                                "rows": 64,
                                "depth": 256 // bits,
                            }
                        )
    return found


def instruction_questions() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []

    def put(cls: str, args: list[Any], ours: dict[str, Any], negate: tuple[bool, bool] = (False, False)) -> None:
        found.append({"op": "instruction", "class": cls, "args": args, "negate": list(negate), "ours": ours})

    for group, m, n in ((1, 64, 8), (1, 128, 256), (2, 128, 32), (2, 256, 160)):
        for a, b in (("K", "K"), ("K", "MN"), ("MN", "K"), ("MN", "MN")):
            shared = {"m": m, "n": n, "a_major": a, "b_major": b, "cta_group": group}
            tail = [group, "smem", a, b]
            for name, d in (("bf16", "f32"), ("f16", "f32"), ("f16", "f16")):
                put("MmaF16BF16Op", [name, d, [m, n, 16], *tail], dict(kind="f16", a=name, b=name, d=d, **shared))
            put("MmaTF32Op", [[m, n, 8], *tail], dict(kind="tf32", a="tf32", b="tf32", d="f32", **shared))
            if n % (16 * group) == 0 or b == "K":
                for name in ("i8", "u8"):
                    # the DSL's integer atoms always saturate
                    ours = dict(kind="i8", a=name, b=name, d="i32", saturate=True, **shared)
                    put("MmaI8Op", [name, [m, n, 32], *tail], ours)
                for name, d in (("e4m3", "f32"), ("e5m2", "f16")):
                    put(
                        "MmaF8F6F4Op",
                        [name, "e4m3", d, [m, n, 32], *tail],
                        dict(kind="f8f6f4", a=name, b="e4m3", d=d, **shared),
                    )
                if m == 128 * group:
                    put(
                        "MmaMXF8F6F4Op",
                        ["e5m2", "e4m3", [m, n, 32], *tail],
                        dict(kind="mxf8f6f4", a="e5m2", b="e4m3", d="f32", **shared),
                    )
    for a in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"):
        for b in ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1"):
            tail = [1, "smem", "K", "K"]
            put(
                "MmaF8F6F4Op",
                [a, b, "f32", [128, 64, 32], *tail],
                {"kind": "f8f6f4", "a": a, "b": b, "d": "f32", "m": 128, "n": 64},
            )
            put(
                "MmaMXF8F6F4Op",
                [a, b, [128, 64, 32], *tail],
                {"kind": "mxf8f6f4", "a": a, "b": b, "d": "f32", "m": 128, "n": 64},
            )
    for name in ("e2m3", "e2m1"):
        ours = {"kind": "f8f6f4", "a": name, "b": name, "d": "f32", "m": 128, "n": 64, "a_major": "MN", "b_major": "MN"}
        put("MmaF8F6F4Op", [name, name, "f32", [128, 64, 32], 1, "smem", "MN", "MN"], ours)
    for group, m, n in ((1, 128, 8), (2, 128, 32), (2, 256, 256)):
        shared = {"a": "e2m1", "b": "e2m1", "d": "f32", "m": m, "n": n, "cta_group": group}
        put("MmaMXF4Op", [[m, n, 64], group, "smem"], dict(kind="mxf4", **shared))
        for scale in ("ue8m0", "ue4m3"):
            put("MmaMXF4NVF4Op", [scale, [m, n, 64], group, "smem"], dict(kind="mxf4nvf4", scale=scale, **shared))
    for negate in ((True, False), (False, True), (True, True)):
        ours = {
            "kind": "f16",
            "a": "bf16",
            "b": "bf16",
            "d": "f32",
            "m": 128,
            "n": 64,
            "negate_a": negate[0],
            "negate_b": negate[1],
        }
        put("MmaF16BF16Op", ["bf16", "f32", [128, 64, 16], 1, "smem", "K", "K"], ours, negate)
    return found


@pytest.fixture(scope="module")
def answers() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    questions = smem_questions() + layout_questions() + instruction_questions()
    for index, question in enumerate(questions):
        question["id"] = index
    replies = ask([sys.executable, str(PROGRAM)], questions)
    return [(question, replies[question["id"]]) for question in questions]


def test_matrix_descriptors_equal_the_dsl_for_every_type_major_and_swizzle(
    answers: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    compared, refused = 0, set()
    for question, reply in answers:
        if question["op"] != "smem":
            continue
        tile = smem_tile(tuple(question["extent"]), question["dtype"], question["major"], question["swizzle"])
        where = f"{question}: {reply}"
        assert "answer" in reply, where
        try:
            word = derive(tile, read_of(question), read_of(question).name).word
        except DescriptorError:
            refused.add((question["arch"], question["dtype"], question["major"], question["swizzle"]))
            continue
        assert hex(word) == hex(reply["answer"]), where
        compared += 1
    # The DSL makes words also for layouts that the instruction does not read; PTX is right to forbid them: wgmma
    # transposes 16-bit types only; tcgen05 reads MN-major 32-bit types with 32-byte atoms only, others never with them,
    # and no MN-major packed 4-bit types.
    common = ("none", "32B", "64B", "128B")
    expected = {("sm_90a", name, "MN", s) for name in ("tf32", "e4m3", "e5m2") for s in common}
    expected |= {("sm_100a", "tf32", "MN", s) for s in common}
    expected |= {("sm_100a", name, "MN", "128B_ATOM_32B") for name in KIND_OF if name != "tf32"}
    expected |= {("sm_100a", "e2m1", "MN", s) for s in common}
    assert refused == expected, refused ^ expected
    assert compared == 2 * (5 * 4 + 2 * 4 + 8 * 4 + 6 * 4 + 1), compared


def test_layouts_of_any_stride_are_taken_and_refused_as_by_the_dsl(
    answers: list[tuple[dict[str, Any], dict[str, Any]]],
) -> None:
    taken = refused = 0
    for question, reply in answers:
        if question["op"] != "layout":
            continue
        shape, stride = (tuple(map(tuple, question[key])) for key in ("shape", "stride"))
        layout, read = Layout(shape, stride), read_of(question)
        try:
            word = derive(layout, read, read.name, swizzle=question["swizzle"], major=question["major"]).word
        except DescriptorError:
            assert "error" in reply, f"{question} is refused here, the DSL makes {reply['answer']:#x}"
            refused += 1
            continue
        assert "answer" in reply and hex(word) == hex(reply["answer"]), f"{question}: {word:#x}, DSL {reply}"
        taken += 1
    assert taken >= 60 and refused >= 30, (taken, refused)


def test_instruction_descriptors_equal_the_dsl(answers: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    kinds = set()
    for question, reply in answers:
        if question["op"] != "instruction":
            continue
        assert "answer" in reply, (question, reply)
        ours = InstructionDescriptor(**question["ours"])
        changes = ours.table.diff(ours.word, reply["answer"])
        assert not changes, f"{question['ours']}: {[str(change) for change in changes]}"
        again = InstructionDescriptor.decode(reply["answer"], ours.kind)
        assert again.word == ours.word
        kinds.add(ours.kind)
    assert kinds == set(CODES)


def test_the_questions_cover_what_they_should() -> None:
    with pytest.raises(AtomError):
        smem_tile((64, 64), "bf16", "K", "96B")
    assert len(smem_questions()) > 120 and len(instruction_questions()) > 120
