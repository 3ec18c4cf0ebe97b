"""tcgen05 atoms, copies and tensor-memory layouts against the CuTe DSL, as functions."""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.atoms.copy.tmem import (
    FRAGMENTS,
    REDUCING_SHAPES,
    REDUCTIONS,
    SPREADS,
    TmemCopyAtom,
    repetitions,
    tcgen05_cp,
    tcgen05_ld,
    tcgen05_st,
)
from layoutgemm.atoms.mma.tcgen05 import KINDS, Tcgen05Atom, legal_m, legal_n, tcgen05_mma, tcgen05_mma_atoms
from layoutgemm.atoms.tmem.layout import TmemLayout, accumulator, allocation_columns, scale_chunk
from layoutgemm.errors import AtomError
from layoutgemm.layouts import Layout, ScaledBasis
from layoutgemm.layouts.int_tuple import transform
from tests.oracle.runner import ask

PROGRAM = Path(__file__).parents[2] / "oracle" / "dsl_tcgen05.py"
pytestmark = pytest.mark.dsl
TILES = (2, 2)
DEPTH = 4  # instructions along K whose scale factors lie together
# With K = 96 the DSL counts factors by tiles of 8 instructions, which it cuts into buffers of 12 factors to a row.
DSL_DEPTH_96 = 8
FACTORS_96 = 12
ALLOCATED = (32, 40, 64, 96, 200, 256, 512)
_CP = {
    ("128x256b", ""): "Cp128x256bOp",
    ("128x128b", ""): "Cp128x128bOp",
    ("4x256b", ""): "Cp4x256bOp",
    ("64x128b", "warpx2::02_13"): "Cp2x64x128b0213Op",
    ("64x128b", "warpx2::01_23"): "Cp2x64x128b0123Op",
    ("32x128b", "warpx4"): "Cp4x32x128bOp",
}

# What the DSL builds and the PTX ISA's table of shapes has not, with the arguments that ours refuses.
_KK = ["major:K", "major:K"]
LAX: tuple[tuple[dict[str, Any], dict[str, Any]], ...] = (
    (
        {"id": "i8 N = 40", "cls": "MmaI8Op", "args": ["i8", [128, 40, 32], "cta:1", "from:smem", *_KK]},
        {"kind": "i8", "m": 128, "n": 40},
    ),
    (
        {"id": "i8 N = 16, two blocks", "cls": "MmaI8Op", "args": ["i8", [256, 16, 32], "cta:2", "from:smem", *_KK]},
        {"kind": "i8", "m": 256, "n": 16, "cta_group": 2},
    ),
    (
        {
            "id": "bf16 into f16",
            "cls": "MmaF16BF16Op",
            "args": ["bf16", "f16", [128, 64, 16], "cta:1", "from:smem", *_KK],
        },
        {"kind": "f16", "m": 128, "n": 64, "a": "bf16", "c": "f16"},
    ),
    (
        {
            "id": "K = 96, M = 128, two blocks",
            "arch": "sm_103a",
            "cls": "SM103MmaMXF4Op",
            "args": [[128, 64, 96], "cta:2", "from:smem"],
        },
        {"kind": "mxf4", "m": 128, "n": 64, "cta_group": 2, "k": 96},
    ),
)


def atoms() -> list[Tcgen05Atom]:
    """All types and accumulators at one N; for one pair of types of each kind every M, cta_group, source and many N."""
    chosen = {}
    for atom in tcgen05_mma_atoms():
        first = KINDS[atom.kind].types[0]
        m, n, k = atom.shape_mnk
        corner = n <= 32 and m == legal_m(atom.kind, atom.threads, k)[-1] and atom.a_source == "smem"
        if corner or (atom.a_dtype.name, atom.b_dtype.name) == (first, first):
            chosen[key(atom)] = atom
    for kind, entry in KINDS.items():
        for group in (1, 2):
            for n in legal_n(kind, group)[:: 1 if kind in ("f16", "i8") else 5]:
                atom = tcgen05_mma(kind, legal_m(kind, group)[-1], n, cta_group=group)
                chosen[key(atom)] = atom
        assert entry.name == kind
    for atom in narrow_a():
        chosen[key(atom)] = atom
    for dtype in ("f16", "bf16", "e4m3", "e5m2"):
        kind = "f16" if "f16" in dtype else "f8f6f4"
        for group in (1, 2):
            atom = tcgen05_mma(kind, 128, 64, dtype, cta_group=group, sparse=True)
            chosen[key(atom)] = atom
    return list(chosen.values())


def narrow_a() -> list[Tcgen05Atom]:
    """Instructions that read 4- and 6-bit A from tensor memory."""
    return [
        tcgen05_mma(kind, 128, 32, a, "e4m3", cta_group=group, a_source="tmem")
        for kind in ("f8f6f4", "mxf8f6f4")
        for a in ("e2m1", "e3m2", "e2m3")
        for group in (1, 2)
    ]


def key(atom: Tcgen05Atom) -> str:
    types = f"{atom.a_dtype}.{atom.b_dtype}.{atom.c_dtype}"
    scale = f".{atom.scale.dtype}" if atom.scale else ""
    return f"{atom}|{atom.shape_mnk}|{types}{scale}|{atom.a_source}"


def dsl_op(atom: Tcgen05Atom) -> tuple[str, str, list[Any]]:
    """Architecture, op class and arguments of the same instruction in the DSL."""
    a, b, c = atom.a_dtype.name, atom.b_dtype.name, atom.c_dtype.name
    k = atom.shape_mnk[2]
    shape, group, source = list(atom.shape_mnk), f"cta:{atom.threads}", f"from:{atom.a_source}"
    where = [shape, group, source]
    majors = ["major:K", "major:K"]
    arch = atom.archs[0]
    if atom.sparse:
        return arch, "MmaF16BF16SparseOp" if atom.kind == "f16" else "MmaFP8SparseOp", [a, c, *where, *majors, "tid"]
    if atom.kind == "f16":
        return arch, "MmaF16BF16Op", [a, c, *where, *majors]
    if atom.kind == "tf32":
        return arch, "MmaTF32Op", [*where, *majors]
    if atom.kind == "i8":
        return arch, "MmaI8Op", [a, *where, *majors]
    if atom.kind == "f8f6f4":
        if k == 64:
            return arch, "SM107MmaFP8Op", [a, b, c, *where, *majors]
        if a == b and a in ("e4m3", "e5m2") and atom.shape_mnk[1] > 32:
            return arch, "MmaFP8Op", [a, c, *where, *majors]
        return arch, "MmaF8F6F4Op", [a, b, c, *where, *majors]
    assert atom.scale is not None
    scale, vector = atom.scale.dtype.name, atom.scale.vector
    if atom.kind == "mxf8f6f4":
        if k == 64:
            return arch, "SM107BlockScaledMmaMXF8F6F4Op", [a, b, scale, vector, *where, *majors]
        if a == b and a in ("e4m3", "e5m2") and atom.shape_mnk[1] > 32:
            return arch, "MmaMXF8Op", [a, *where, *majors]
        return arch, "MmaMXF8F6F4Op", [a, b, *where, *majors]
    if k == 128:
        return arch, "SM107MmaMXF4NVF4Op", [scale, vector, *where]
    prefix = "SM103" if k == 96 else ""
    if atom.kind == "mxf4":
        return arch, f"{prefix}MmaMXF4Op", where
    return arch, f"{prefix}MmaMXF4NVF4Op", [scale, *where]


def copies() -> dict[str, tuple[TmemCopyAtom, str, list[Any], str]]:
    """Every load, store and tcgen05.cp of the DSL, at several element types."""
    out = {}
    for shape in FRAGMENTS:
        for repeat in repetitions(shape):
            for pack in (False, True):
                for element in ("f16",) if pack else ("f32", "f16", "u8"):
                    load = tcgen05_ld(shape, repeat, pack, element=element)
                    store = tcgen05_st(shape, repeat, pack, element=element)
                    out[f"{load}|{element}"] = load, f"Ld{shape}Op", [f"x{repeat}", *["pack"] * pack], element
                    out[f"{store}|{element}"] = store, f"St{shape}Op", [f"x{repeat}", *["unpack"] * pack], element
    for shape in REDUCING_SHAPES:
        for repeat in repetitions(shape)[1:]:
            for element, every in REDUCTIONS.items():
                ways = [way for way in every if "NaN" not in way]  # the DSL has none with .NaN
                for way in ways if repeat == 2 else ways[:1]:
                    load = tcgen05_ld(shape, repeat, element=element, reduce=way)
                    reduce = f"reduce:{way.replace('.', '').upper()}"
                    out[f"{load}|{element}"] = load, f"LdRed{shape}Op", [f"x{repeat}", "none", reduce], element
    for (shape, multicast), cls in _CP.items():
        for group in (1, 2):
            for element in ("f32", "f16", "u8"):
                atom = tcgen05_cp(shape, multicast, group, element=element)
                out[f"{atom}|{element}"] = atom, cls, [f"cta:{group}"], element
    return out


@functools.cache
def replies() -> dict[str, Any]:
    questions: list[dict[str, Any]] = []
    for atom in atoms():
        arch, cls, args = dsl_op(atom)
        question = {"id": key(atom), "op": "mma", "arch": arch, "cls": cls, "args": args, "tiles": TILES}
        # The DSL lays out scale factors of 128 rows at a time.
        rows = atom.shape_mnk[0] // atom.threads
        if atom.scale and rows == 128 and atom.shape_mnk[1] % 128 == 0:
            question |= {"vector": atom.scale.vector, "depth": DSL_DEPTH_96 if atom.shape_mnk[2] == 96 else DEPTH}
        questions.append(question)
    for name, (copy, cls, args, element) in copies().items():
        question = {"id": name, "op": "copy", "cls": cls, "args": args, "element": element}
        questions.append(question | {"arch": copy.archs[0]})
    questions += [{"id": f"chunk {vector}", "op": "chunk", "vector": vector} for vector in (16, 32)]
    questions += [question | {"op": "mma", "tiles": (1, 1)} for question, _ in LAX]
    questions += [{"id": f"alloc {n}", "op": "alloc", "n": n} for n in ALLOCATED]
    # SFB where the data path stacks two halves of N: rows of A are 64 there, so it is asked for on its own.
    for n in (128, 256):
        arch, cls, args = dsl_op(stacked(n))
        questions.append({
            "id": f"stacked {n}", "op": "mma", "arch": arch, "cls": cls, "args": args, "tiles": TILES,
            "vector": 32, "depth": DEPTH,
        })  # fmt: skip
    return ask([sys.executable, str(PROGRAM)], questions)


def stacked(n: int) -> Tcgen05Atom:
    return tcgen05_mma("mxf8f6f4", 128, n, cta_group=2)


def answer(name: str) -> Any:
    reply = replies()[name]
    assert "answer" in reply, (name, reply)
    return reply["answer"]


def as_tuple(nested: Any) -> Any:
    return tuple(map(as_tuple, nested)) if isinstance(nested, list) else nested


def layout_of(value: dict[str, Any]) -> Layout:
    return Layout(as_tuple(value["shape"]), as_tuple(value["stride"]))


def numbers(places: Layout, bits: int) -> Layout:
    """Places as the DSL counts them: elements of `bits`, 2**16 words between lanes."""
    steps = {0: 65536 * 32 // bits, 1: 32 // bits}

    def number(d: Any) -> Any:
        if not isinstance(d, ScaledBasis):
            return d
        return d.value // bits if d.path == (2,) else d.value * steps[d.path[0]]

    return Layout(places.shape, transform(number, places.stride))


def same(ours: Layout, theirs: Layout, name: str) -> None:
    verdict = ours.equivalent(theirs)
    assert verdict, (name, str(ours), str(theirs), str(verdict))


def test_every_op_answers():
    bad = {name: reply for name, reply in replies().items() if "answer" not in reply}
    assert not bad, list(bad.items())[:5]
    assert len(atoms()) > 400 and len(copies()) > 300


@pytest.mark.parametrize("question,arguments", LAX, ids=[question["id"] for question, _ in LAX])
def test_what_the_dsl_builds_and_ptx_has_not(question, arguments):
    """The DSL checks steps of N and the set of types more loosely than PTX. Ours follows PTX's table "Various
    combinations of .kind and shapes"."""
    reply = replies()[question["id"]]
    assert "answer" in reply, f"the DSL refuses it too: {reply}"
    with pytest.raises(AtomError, match="PTX allows"):
        tcgen05_mma(**arguments)


def test_thread_value_layouts_of_every_product():
    for atom in atoms():
        got = answer(key(atom))
        for operand in "ABC":
            same(atom.layout(operand), layout_of(got[operand]), f"{key(atom)} {operand}")


def test_accumulators_in_tensor_memory():
    checked = set()
    for atom in atoms():
        if atom.sparse:
            continue
        got = answer(key(atom))
        ours = atom.accumulator
        assert ours.columns == got["one"]["columns"], key(atom)
        same(numbers(ours.layout, atom.c_dtype.bits), layout_of(got["one"]["layout"]), key(atom))
        m, n, _ = atom.shape_mnk
        many = accumulator(m, n, atom.threads, c=atom.c_dtype, tiles=TILES, interleaved=atom.a_source == "smem")
        assert many.columns == got["many"]["columns"], key(atom)
        same(numbers(many.layout, atom.c_dtype.bits), layout_of(got["many"]["layout"]), key(atom))
        checked.add(atom.datapath.letter)
    assert checked == set("ABDF")


def test_sparse_products_over_two_blocks_differ_on_the_data_path():
    """PTX: M = 128 over two blocks with sparse A is layout C (16 rows to a quarter); the DSL lays it out like dense A,
    layout B. PTX's table is explicit, so ours is C; nothing here can run either."""
    atom = tcgen05_mma("f16", 128, 64, "f16", cta_group=2, sparse=True)
    got = answer(key(atom))["one"]
    assert atom.datapath.letter == "C" and atom.accumulator.columns == 64 and got["columns"] == 32
    dense = accumulator(128, 64, cta_group=2)
    same(numbers(dense.layout, 32), layout_of(got["layout"]), "the DSL's sparse accumulator is the dense one")


def test_operand_a_in_tensor_memory():
    equal = 0
    narrow = set(map(key, narrow_a()))
    for atom in atoms():
        if atom.a_source != "tmem" or key(atom) in narrow:
            continue
        got = answer(key(atom))["a"]
        ours = atom.operand_a
        assert ours.columns == got["columns"], key(atom)
        rows, depth, copies = ours.layout
        same(numbers(Layout.join(rows, copies, depth), atom.a_dtype.bits), layout_of(got["layout"]), key(atom))
        equal += 1
    assert equal > 30


def test_narrow_operand_a_has_a_byte_each():
    """The DSL packs 4-bit A of kinds f8f6f4 and mxf8f6f4 eight to a word. For 6-bit A it has no count of columns. PTX
    ("Packing format used for matrix A by .kind::mxf8f6f4 in Tensor Memory") gives each element a byte, and so does
    CUTLASS with its unpacked types. The DSL is wrong there, ours follows PTX."""
    for atom in narrow_a():
        got = answer(key(atom))["a"]
        assert atom.operand_a.columns == 8
        if atom.a_dtype.bits == 4:
            assert got["columns"] == 4
        else:
            assert got["columns"] > 512


def test_scale_factors_in_tensor_memory():
    checked = 0
    for atom in atoms():
        got = answer(key(atom))
        if "scale_a" not in got:
            continue
        for operand, name in (("A", "scale_a"), ("B", "scale_b")):
            compare_scales(atom, operand, got[name], 1)
        checked += 1
    assert checked > 5
    for n in (128, 256):
        compare_scales(stacked(n), "B", answer(f"stacked {n}")["scale_b"], 2)


def compare_scales(atom: Tcgen05Atom, operand: str, got: dict[str, Any], halves: int) -> None:
    assert atom.scale is not None
    k = atom.shape_mnk[2]
    ours: TmemLayout = atom.scale_layout(operand, FACTORS_96 * atom.scale.vector // k if k == 96 else DEPTH)
    assert ours.columns == got["columns"], key(atom)
    theirs = layout_of(got["layout"])
    row, factor, copies = numbers(ours.layout, 8)
    # ((row, copy), (element, factor)), 1, instruction; the elements of one factor stand still
    rows, (elements, each) = theirs[0]
    assert set(elements.offsets()) == {0} and theirs[1].size == 1
    have = Layout.join(row, copies, factor)
    same(have, Layout.join(rows, each, theirs[2]), f"{key(atom)} {operand}")


def test_copies():
    assert set(_CP) == set(SPREADS)
    for name, (atom, *_) in copies().items():
        got = answer(name)
        same(atom.layout_src, layout_of(got["src"]), f"{name} src")
        same(atom.layout_dst, layout_of(got["dst"]), f"{name} dst")


@pytest.mark.parametrize("vector", (16, 32))
def test_chunks_of_scale_factors_in_shared_memory(vector):
    rows, (elements, factors) = layout_of(answer(f"chunk {vector}"))
    assert set(elements.offsets()) == {0} and elements.size == vector
    same(scale_chunk(), Layout.join(rows, factors), f"chunk {vector}")


@pytest.mark.parametrize("n", ALLOCATED)
def test_allocation(n):
    assert allocation_columns(n) == answer(f"alloc {n}")
