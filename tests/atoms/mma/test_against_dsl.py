"""Every warp and warpgroup matrix instruction of the CuTe DSL 4.8.1, compared with ours as functions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import MmaAtom, atoms, fma, mma_sync, wgmma
from tests.oracle.runner import ask_dsl

PROGRAM = Path(__file__).parents[2] / "oracle" / "dsl_mma.py"
VECTORS = Path(__file__).parents[2] / "vectors" / "tv_vectors.json"
KINDS = {"MmaMXF4Op": "mxf4", "MmaMXF4NVF4Op": "mxf4nvf4", "MmaMXF8Op": "mxf8f6f4", "MmaMXF8F6F4Op": "mxf8f6f4"}
# Class of the DSL -> how many combinations of arguments it takes.
CLASSES = {
    "universal.MmaUniversalOp": 3,
    "warp.MmaF16BF16Op": 6,
    # The class names an MLIR type that 4.8.1 does not ship, and the package does not export it: nothing to compare.
    "warp.MmaF16BF16SparseOp": 0,
    "warp.MmaFP8Op": 8,
    "warp.MmaMXF4NVF4Op": 1,
    "warp.MmaMXF4Op": 1,
    "warp.MmaMXF8F6F4Op": 4,
    "warp.MmaMXF8Op": 2,
    "warp.MmaTF32Op": 2,
    # A from both places; 32 N (integers: 18) with both operands K-major, and 3 more pairs of majors at one N
    "warpgroup.MmaF16BF16Op": 3 * 2 * (32 + 3),
    "warpgroup.MmaF8Op": 8 * 2 * (32 + 3),
    "warpgroup.MmaI8Op": 4 * 2 * (18 + 3),
}


def nested(value: Any) -> Any:
    return tuple(map(nested, value)) if isinstance(value, list) else value


def layout_of(entry: dict[str, Any]) -> Layout:
    return Layout(nested(entry["shape"]), nested(entry["stride"]))


@pytest.fixture(scope="module")
def replies() -> dict[str, Any]:
    questions = [{"id": "classes", "op": "classes"}]
    questions += [{"id": name, "op": "rows", "class": name} for name in CLASSES]
    return ask_dsl(PROGRAM, questions)


def ours(name: str, row: dict[str, Any]) -> MmaAtom:
    kind = name.partition(".")[2]
    if name.startswith("warpgroup."):
        return wgmma(row["n"], row["a"], row["b"], row["c"], row["a_source"])
    if kind == "MmaUniversalOp":
        return fma(row["a"])
    # The DSL has one type for e4m3 with and without its sign.
    scale = {"e4m3": "ue4m3"}.get(row.get("scale", ""), row.get("scale"))
    options = {"kind": KINDS[kind], "scale": scale, "vector": row["vector"]} if kind in KINDS else {}
    return mma_sync(tuple(row["shape"]), row["a"], row["b"], row["c"], **options)


@pytest.mark.dsl
def test_every_class_of_the_dsl_is_compared(replies: dict[str, Any]) -> None:
    assert replies["classes"]["answer"] == sorted(CLASSES)
    assert {name: len(replies[name]["answer"]) for name in CLASSES} == CLASSES


@pytest.mark.dsl
@pytest.mark.parametrize("name", [name for name, forms in CLASSES.items() if forms])
def test_maps_equal_the_dsl(replies: dict[str, Any], name: str) -> None:
    for row in replies[name]["answer"]:
        atom = ours(name, row)
        assert atom.shape_mnk == tuple(row["shape"])
        assert layout_of(row["threads"]).equivalent(Layout(atom.threads))
        for operand in "ABC":
            mine, theirs = atom.layout(operand), layout_of(row[operand])
            assert mine[0].size == theirs[0].size, (atom.ptx, operand)
            assert mine.equivalent(theirs), (atom.ptx, operand, str(mine), str(theirs))
        for operand in ("SFA", "SFB") if "SFA" in row else ():
            # There a value is an element along K, here a factor: element k has factor k // vector, of the same row.
            rows, _ = atom.tile_of(operand)
            theirs = layout_of(row[operand]).offsets().reshape(-1, 32)
            lane, k = np.arange(32)[None, :], np.arange(atom.shape_mnk[2])[:, None]
            factor = atom.coords(operand)(lane, k // row["vector"])
            assert theirs.shape == (atom.shape_mnk[2], 32)
            assert np.array_equal(theirs, factor[0] + rows * k), (atom.ptx, operand)
            assert np.array_equal(np.asarray(factor[1]) + 0 * lane, k // row["vector"] + 0 * lane)


@pytest.mark.dsl
def test_majors_are_those_of_ptx_and_the_dsl_is_laxer(replies: dict[str, Any]) -> None:
    """The DSL builds 8-bit and register operands that claim to be MN-major; its own text and PTX say that these do not
    exist."""
    lax = set()
    for name in ("warpgroup.MmaF16BF16Op", "warpgroup.MmaF8Op", "warpgroup.MmaI8Op"):
        for row in replies[name]["answer"]:
            atom = ours(name, row)
            for major, mine, operand in zip(row["majors"], (atom.a_majors, atom.b_majors), "AB"):
                if major not in mine:
                    source = row["a_source"] if operand == "A" else "smem"
                    lax.add((name.partition(".")[2], operand, source))
    no_choice = (("A", "smem"), ("B", "smem"), ("A", "rmem"))
    eight_bit = {(kind, *place) for kind in ("MmaF8Op", "MmaI8Op") for place in no_choice}
    assert lax == {("MmaF16BF16Op", "A", "rmem")} | eight_bit


@pytest.mark.dsl
def test_no_wgmma_of_ours_is_missing_there(replies: dict[str, Any]) -> None:
    have = {
        (row["n"], row["a"], row["b"], row["c"], row["a_source"])
        for name in ("warpgroup.MmaF16BF16Op", "warpgroup.MmaF8Op", "warpgroup.MmaI8Op")
        for row in replies[name]["answer"]
    }
    mine = {
        (a.shape_mnk[1], a.a_dtype.name, a.b_dtype.name, a.c_dtype.name, a.a_source)
        for a in atoms(family="wgmma")
        if isinstance(a, MmaAtom)
    }
    # The DSL leaves out what PTX also has: tf32 and one-bit operands.
    assert {key for key in mine if key[1] not in ("tf32", "b1")} == have


def parse(text: str, shape: list[int]) -> MmaAtom | None:
    """The atom that a row of the recorded vectors names; None for other families."""
    parts = text.split(".")
    if text.startswith("warp.mma."):
        types = parts[3:]
        c, a = types[0], types[1]
        return mma_sync((shape[0], shape[1], shape[2]), a, c=c)
    if not text.startswith("wgmma."):
        return None
    source = "rmem" if "RS" in parts else "smem"
    types = [part for part in parts[2:] if part not in ("SS", "RS", "K", "MN")]
    a = {"s8": "i8", "u8": "u8"}.get(types[-1], types[-1])
    return wgmma(shape[1], a, c=types[0] if len(types) > 1 else None, a_source=source)


def test_recorded_vectors() -> None:
    compared = 0
    rows = json.loads(VECTORS.read_text())["rows"]
    for row in rows:
        atom = parse(row["atom"], row.get("shape_mnk", []))
        if atom is None:
            continue
        theirs = layout_of(row)
        assert list(atom.shape_mnk) == row["shape_mnk"], row["atom"]
        assert atom.layout(row["operand"]).equivalent(theirs), row["atom"]
        compared += 1
    assert compared == sum(row["atom"].startswith(("warp.mma.", "wgmma.")) for row in rows) == 114
