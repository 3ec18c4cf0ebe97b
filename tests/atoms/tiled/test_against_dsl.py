"""Tiled products and copies against the CuTe DSL, as functions: one subprocess, every question at once.

Where the DSL is wrong the test says so: `test_the_dsl_retiles_a_permuted_fragment_wrongly`.
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm.atoms import wgmma
from layoutgemm.atoms.tiled.copy import TiledCopy
from layoutgemm.atoms.tiled.derived_copies import (
    make_tiled_copy_A,
    make_tiled_copy_B,
    make_tiled_copy_C,
    make_tiled_copy_C_atom,
    make_tiled_copy_D,
    make_tiled_copy_S,
    make_tiled_copy_tv,
)
from layoutgemm.atoms.tiled.mma import TiledMma
from layoutgemm.errors import AtomError
from layoutgemm.layouts import Layout, ScaledBasis
from tests.atoms.tiled.tiled_atoms import ldmatrix, stmatrix, vector, warp_mma
from tests.oracle.runner import ask_dsl

PROGRAM = Path(__file__).parents[2] / "oracle" / "dsl_tiled.py"
EIGHTS = Layout((8, 2, 2), (1, 16, 8))


def pairs(k: int) -> Layout:
    """K dealt so that a thread's pairs of two steps lie side by side: a thread then loads 16 bytes of K at once."""
    return Layout((2, 4, 2, k // 16), (1, k // 4, 2, 4))


def mma_question(
    family: str, shape: tuple[int, int, int], atoms: Layout, permutation: tuple[Any, ...], times: Any
) -> Any:
    mma = TiledMma(warp_mma(shape[2]) if family == "warp" else wgmma(shape[1]), atoms, permutation)
    extent = [e * t for e, t in zip(mma.tile_mnk, times)]
    spec = {"family": family, "shape": list(shape), "atoms": send(atoms), "permutation": [send(p) for p in permutation]}
    return mma, {"mma": spec, "extent": extent, "thread": (37 * 5) % mma.threads}


def send(value: Any) -> Any:
    if isinstance(value, Layout):
        return {"shape": send(value.shape), "stride": send(value.stride)}
    return [send(v) for v in value] if isinstance(value, tuple) else value


def receive(value: Any) -> Any:
    if isinstance(value, dict) and "shape" in value:
        return Layout(receive(value["shape"]), receive(value["stride"]))
    if isinstance(value, dict):
        return ScaledBasis(value["e"][0], tuple(value["e"][1:]))
    return tuple(receive(v) for v in value) if isinstance(value, list) else value


NONE = (None, None, None)
MMAS = [
    ("warp", (16, 8, 16), Layout((1, 1, 1)), NONE, (2, 2, 2)),
    ("warp", (16, 8, 16), Layout((2, 2, 1)), NONE, (2, 4, 1)),
    ("warp", (16, 8, 8), Layout((4, 1, 1)), NONE, (1, 3, 2)),
    ("warp", (16, 8, 16), Layout((1, 1, 2)), NONE, (2, 2, 2)),
    ("warp", (16, 8, 8), Layout((2, 2, 2)), NONE, (1, 1, 1)),
    ("warp", (16, 8, 16), Layout((2, 2, 1), (2, 1, 0)), NONE, (1, 2, 3)),
    ("warp", (16, 8, 16), Layout((2, 1, 1)), (None, EIGHTS, None), (2, 2, 1)),
    ("warp", (16, 8, 16), Layout((2, 2, 1)), (None, EIGHTS, None), (2, 2, 2)),
    ("warp", (16, 8, 16), Layout((2, 2, 1)), (32, 32, 16), (1, 2, 1)),
    ("warp", (16, 8, 16), Layout((4, 1, 1)), (64, 16, 32), (1, 2, 2)),
    ("warp", (16, 8, 8), Layout((1, 2, 1)), (32, None, pairs(32)), (2, 1, 1)),
    ("warp", (16, 8, 16), Layout((2, 2, 1)), (None, None, Layout((2, 4, 2, 2), (1, 4, 2, 16))), (1, 1, 2)),
    ("wgmma", (64, 64, 16), Layout((1, 1, 1)), NONE, (2, 1, 4)),
    ("wgmma", (64, 64, 16), Layout((2, 1, 1)), NONE, (1, 2, 2)),
    ("wgmma", (64, 24, 16), Layout((1, 2, 1)), NONE, (1, 2, 1)),
]


def random_mma(rng: random.Random) -> Any:
    k = rng.choice((8, 16))
    counts = rng.choice(((2, 2, 1), (4, 1, 1), (1, 4, 1), (2, 1, 2), (1, 2, 2), (1, 1, 1), (1, 2, 1)))
    atoms = Layout.ordered(counts, rng.choice(((0, 1, 2), (1, 0, 2), (2, 1, 0))))
    permutation: list[Any] = []
    for size, count in zip((16, 8, k), counts):
        extent = size * count * rng.choice((1, 2, 4))
        shape = rng.choice([(size, extent // size), (2, size // 2, extent // size), (size // 2, extent // size, 2)])
        dealt = Layout.ordered(shape, rng.sample(range(len(shape)), len(shape)))
        permutation.append(rng.choice((None, extent, dealt)))
    return "warp", (16, 8, k), atoms, tuple(permutation), [rng.choice((1, 2, 3)) for _ in range(3)]


MMAS += [random_mma(random.Random(seed)) for seed in range(12)]


def copy_atom(spec: dict[str, Any]) -> Any:
    if spec["op"] == "universal":
        return vector(spec["bits"])
    return {"ldmatrix": ldmatrix, "stmatrix": stmatrix}[spec["op"]](spec["count"], spec["transpose"])


def make(spec: dict[str, Any], mma: TiledMma | None) -> TiledCopy:
    atom = copy_atom(spec)
    if spec["make"] == "tv":
        return make_tiled_copy_tv(atom, receive(spec["thr"]), receive(spec["val"]))
    if spec["make"] in "SD":
        return {"S": make_tiled_copy_S, "D": make_tiled_copy_D}[spec["make"]](atom, make(spec["of"], mma))
    assert mma is not None
    by_name = {"A": make_tiled_copy_A, "B": make_tiled_copy_B, "C": make_tiled_copy_C, "C_atom": make_tiled_copy_C_atom}
    return by_name[spec["make"]](atom, mma)


def tv(bits: int, thr: Layout, val: Layout) -> dict[str, Any]:
    return {"op": "universal", "bits": bits, "make": "tv", "thr": send(thr), "val": send(val)}


def matrix(op: str, count: int, transpose: bool, made: str, **more: Any) -> dict[str, Any]:
    return {"op": op, "count": count, "transpose": transpose, "make": made, **more}


TV_COPIES = [
    tv(128, Layout((16, 8), (8, 1)), Layout((1, 8))),
    tv(64, Layout((16, 8), (8, 1)), Layout((1, 8))),
    tv(32, Layout((32, 4), (1, 32)), Layout((4, 1))),
    tv(128, Layout((4, 32)), Layout((8, 2))),
    tv(64, Layout((8, 4), (4, 1)), Layout((2, 4), (4, 1))),
    tv(16, Layout(((2, 4), 4), ((1, 8), 2)), Layout((3, 2), (2, 1))),
    matrix("ldmatrix", 4, False, "tv", thr=send(Layout((8, 4), (4, 1))), val=send(Layout((2, 4), (4, 1)))),
]


def random_tv(rng: random.Random) -> dict[str, Any]:
    rows, columns = rng.choice(((2, 16), (4, 8), (8, 4), (16, 2), (32, 1), (3, 8), (8, 6)))
    down, right = rng.choice(((1, 8), (2, 4), (4, 2), (8, 1), (1, 4), (3, 4), (4, 1)))
    bits = rng.choice([b for b in (16, 32, 64, 128) if down * right * 16 % b == 0])
    orders = ((0, 1), (1, 0))
    return tv(
        bits, Layout.ordered((rows, columns), rng.choice(orders)), Layout.ordered((down, right), rng.choice(orders))
    )


TV_COPIES += [random_tv(random.Random(seed)) for seed in range(10)]
FOR_OPERANDS = [  # (which of MMAS, copy)
    (1, matrix("ldmatrix", 4, False, "A")),
    (1, matrix("ldmatrix", 2, False, "B")),
    (1, matrix("ldmatrix", 2, True, "B")),
    (1, matrix("ldmatrix", 1, False, "B")),
    (1, matrix("stmatrix", 2, False, "C")),
    (7, matrix("ldmatrix", 4, False, "B")),
    (8, matrix("ldmatrix", 4, False, "B")),
    (8, matrix("ldmatrix", 4, True, "B")),
    (8, matrix("stmatrix", 4, False, "C")),
    (9, matrix("ldmatrix", 4, False, "B")),
    (10, {"op": "universal", "bits": 128, "make": "A"}),
    (10, {"op": "universal", "bits": 64, "make": "B"}),
    (0, {"op": "universal", "bits": 32, "make": "C"}),
    (13, matrix("stmatrix", 4, False, "C_atom")),
    (12, matrix("stmatrix", 2, True, "C_atom")),
    (13, {"op": "universal", "bits": 32, "make": "S", "of": matrix("stmatrix", 4, False, "C_atom")}),
    (13, matrix("stmatrix", 4, False, "S", of=matrix("stmatrix", 4, False, "C_atom"))),
    (8, {"op": "universal", "bits": 32, "make": "D", "of": matrix("ldmatrix", 4, False, "B")}),
    (4, matrix("ldmatrix", 2, True, "A")),
]
PERMUTED_C = (6, {"op": "universal", "bits": 32, "make": "C"})  # the rest of N comes as 16, 8, 32


# What ours refuses and the DSL answers: our call, the words of its refusal, the DSL's question.
REFUSED: dict[str, Any] = {
    "gap": (
        lambda: TiledMma(warp_mma(), Layout((2, 2, 1), (1, 4, 0))),
        "numbered 0 to 3",
        {"mma": {"family": "warp", "shape": [16, 8, 16], "atoms": send(Layout((2, 2, 1), (1, 4, 0)))}},
    ),
    "overhang": (
        lambda: TiledMma(warp_mma(), (1, 1, 1), (None, 64, None)).partition_C(0, Layout((16, 32))),
        r"32 = 0\*64 \+ 32",
        {
            "mma": {
                "family": "warp",
                "shape": [16, 8, 16],
                "atoms": send(Layout((1, 1, 1))),
                "permutation": [None, 64, None],
            }
        },
    ),
    "threads": (
        lambda: make_tiled_copy_tv(vector(64), Layout((8, 4), (1, 16)), Layout((1, 4))),
        "to number 32 threads 0 to 31",
        {"copy": tv(64, Layout((8, 4), (1, 16)), Layout((1, 4)))},
    ),
}


def questions() -> dict[str, Any]:
    """id -> (our object, its TiledMma or None, question)."""
    out: dict[str, Any] = {}
    for i, case in enumerate(MMAS):
        mma, question = mma_question(*case)
        out[f"mma-{i}"] = mma, mma, question
    for name, (_, _, question) in REFUSED.items():
        if "mma" in question:
            question = {"mma": {"permutation": [None] * 3, **question["mma"]}}
        out[name] = None, None, {**question, "extent": [16, 32, 16] if "mma" in question else [16, 32], "thread": 0}
    for i, spec in enumerate(TV_COPIES):
        copy = make(spec, None)
        extent = [2 * e for e in copy.tile]
        out[f"copy-{i}"] = copy, None, {"copy": spec, "extent": extent, "thread": 11}
    for i, (which, spec) in enumerate([*FOR_OPERANDS, PERMUTED_C]):
        mma, question = mma_question(*MMAS[which])
        copy = make(spec, mma)
        operand = spec["of"]["make"] if "of" in spec else spec["make"]
        extent = tuple(2 * e for e in mma.tile_of(operand[0]))
        fragment = Layout(mma.partition_shape(operand[0], extent))
        question = {**question, "copy": spec, "extent": list(extent), "fragment": send(fragment)}
        out[f"for-{i}" if (which, spec) != PERMUTED_C else "permuted"] = copy, mma, question
    return out


@pytest.fixture(scope="module")
def asked() -> dict[str, Any]:
    return questions()


@pytest.fixture(scope="module")
def replies(asked: dict[str, Any]) -> dict[str, dict[str, Any]]:
    got = ask_dsl(PROGRAM, [{"id": name, **q} for name, (_, _, q) in asked.items()])
    failed = {name: reply for name, reply in got.items() if "answer" not in reply}
    assert not failed, failed
    return {name: {key: receive(v) for key, v in reply["answer"].items() if not isinstance(v, dict) or "shape" in v}
            | {key: {k: receive(x) for k, x in v.items()} for key, v in reply["answer"].items()
               if isinstance(v, dict) and "shape" not in v}
            for name, reply in got.items()}  # fmt: skip


def values(layout: Layout) -> Any:
    offsets = layout.offsets()
    if not layout.has_basis:
        return offsets
    full = [o if isinstance(o, np.ndarray) else np.zeros(layout.size, int) for o in offsets]
    return np.stack([*full, *[np.zeros(layout.size, int)] * (3 - len(full))])


def same(ours: Layout, theirs: Layout, what: str) -> None:
    """One function of the flat coordinate, mode for mode of one size; coordinates by their numbers."""
    assert ours.size == theirs.size, f"{what}: {ours} here, {theirs} there"
    assert np.array_equal(values(ours), values(theirs)), f"{what}: {ours} here, {theirs} there"
    assert [m.size for m in ours] == [m.size for m in theirs], f"{what}: {ours} here, {theirs} there"


def same_part(ours: tuple[Any, Any], theirs: tuple[Any, Any], what: str) -> None:
    layout, start = ours
    width = len(theirs[1])
    assert tuple(start) + (0,) * (width - len(start)) == theirs[1], f"{what}: begins at {start} here, {theirs[1]} there"
    same(layout, theirs[0], what)


@pytest.mark.dsl
@pytest.mark.parametrize("i", range(len(MMAS)))
def test_tiled_products(asked: Any, replies: Any, i: int) -> None:
    mma, _, question = asked[f"mma-{i}"]
    reply = replies[f"mma-{i}"]
    m, n, k = question["extent"]
    assert mma.tile_mnk == reply["tile"]
    same(mma.thr_layout_vmnk, reply["threads"], "thr_layout_vmnk")
    for operand, extent in {"A": (m, k), "B": (n, k), "C": (m, n)}.items():
        same(mma.atom.layout(operand), reply["atom"][operand], f"atom {operand}")
        if operand == "C" and mma.atom_layout[2].size > 1:
            same_where_k_is_0(mma, reply["tv"]["C"])
        else:
            same(mma.tv_layout(operand), reply["tv"][operand], f"tv_layout_{operand}_tiled")
        ours = Layout(mma.partition_shape(operand, extent))
        assert [x.size for x in ours] == [x.size for x in Layout(reply[f"shape_{operand}"])]
        part = getattr(mma, f"partition_{operand}")(question["thread"], Layout.identity((*extent, 3)))
        same_part(part, reply[f"part_{operand}"], f"partition_{operand}")
        row_major = Layout((*extent, 2), (extent[1], 1, extent[0] * extent[1]))
        same(mma.thrfrg(operand, row_major), reply[f"thrfrg_{operand}"], f"thrfrg_{operand}")


def same_where_k_is_0(mma: TiledMma, theirs: Layout) -> None:
    """The threads of the first atom along K; the DSL puts those of the others outside the tile.

    It composes the map of (ThrV, (ThrM, ThrN)) with the numbers of (ThrV, ThrM, ThrN, ThrK) and so runs off its end. In
    mma_atom.hpp, get_layoutC_TV leaves out the step that get_layoutA_TV has. Its partition_C takes the coordinates one
    by one and agrees with ours for every thread.
    """
    ours = mma.layout_C()
    k = np.arange(mma.threads) // int(mma.thr_layout_vmnk[3].stride) % mma.atom_layout[2].size
    at = [i for i in range(ours.size) if k[i % mma.threads] == 0]
    assert np.array_equal(ours.offsets()[at], theirs.offsets()[at])
    size = mma.tile_of("C")[0] * mma.tile_of("C")[1]
    assert sorted(set(ours.offsets())) == list(range(size))
    if mma.atom_layout[1].size > 1:  # with one atom along N the run goes on with stride 0 and is right by luck
        assert max(theirs.offsets()) >= size


@pytest.mark.dsl
def test_the_dsl_leaves_the_tile_of_c_where_k_has_threads(replies: Any) -> None:
    """Atoms (2,2,2): a C tile of 32 x 16 has elements 0 to 511, and the DSL's map reaches 1023."""
    assert max(replies["mma-4"]["tv"]["C"].offsets()) == 1023
    assert max(TiledMma(warp_mma(8), (2, 2, 2)).layout_C().offsets()) == 511


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_here(name: str) -> None:
    call, words, _ = REFUSED[name]
    with pytest.raises(AtomError, match=words):
        call()


@pytest.mark.dsl
def test_what_the_dsl_answers_there(replies: Any) -> None:
    """Atoms numbered 0, 1, 4, 5: half of the 128 threads are in no map. A tile of 64 columns over 32: columns to 63.

    Threads numbered with gaps, 4 columns in a row for each: thread 0 gets columns 0, 8, 2 and 10 of its row.
    """
    gap, over, threads = (replies[name] for name in ("gap", "overhang", "threads"))
    assert gap["tv"]["C"][0].size == 64 and gap["threads"].size == 128
    part, start = over["part_C"]
    columns = part.offsets()[1]
    assert start[1] + max(columns) > 31
    assert [int(threads["tv"](0, v)) // 8 for v in range(4)] == [0, 8, 2, 10]


def compare_copy(copy: TiledCopy, question: Any, reply: Any) -> None:
    same(copy.atom.layout_src, reply["atom"]["src"], "atom src")
    same(copy.atom.layout_dst, reply["atom"]["dst"], "atom dst")
    assert copy.tile == reply["tile"]
    for ours, theirs in zip(copy.tiler, reply["tiler"]):
        assert Layout(ours).equivalent(theirs).ok if isinstance(ours, int) else ours.equivalent(theirs).ok
    same(copy.layout_tv, reply["tv"], "layout_tv_tiled")
    identity = Layout.identity((*question["extent"], 3))
    for side, partition in (("src", copy.partition_S), ("dst", copy.partition_D)):
        same(copy.tv_layout(side), reply[side], f"layout_{side}_tv_tiled")
        part, start = partition(question["thread"], identity)
        same_part((part, start), reply[f"part_{side}"], f"partition {side}")
        instructions = [m.size for m in part[0]]
        theirs = reply[f"part_{side}"][0][0]
        assert instructions[0] == (theirs[0].size if theirs.rank > 1 else theirs.size), (part, theirs)


@pytest.mark.dsl
@pytest.mark.parametrize("i", range(len(TV_COPIES)))
def test_copies_of_threads_and_values(asked: Any, replies: Any, i: int) -> None:
    copy, _, question = asked[f"copy-{i}"]
    compare_copy(copy, question, replies[f"copy-{i}"])


@pytest.mark.dsl
@pytest.mark.parametrize("i", range(len(FOR_OPERANDS)))
def test_copies_for_operands(asked: Any, replies: Any, i: int) -> None:
    copy, _, question = asked[f"for-{i}"]
    reply = replies[f"for-{i}"]
    compare_copy(copy, question, reply)
    fragment = receive(question["fragment"])
    same(copy.retile(fragment), reply["retile"], "retile")
    # Without what it knows of the product it finds the same order.
    blind = TiledCopy(copy.atom, copy.layout_tv, copy.tiler).retile(fragment)
    same(blind, reply["retile"], "retile of a copy that knows no product")


@pytest.mark.dsl
def test_the_dsl_retiles_a_permuted_fragment_wrongly(asked: Any, replies: Any) -> None:
    """N dealt as (8,2,2):(1,16,8) to one warp: the fragment's second block is 16 columns on, its third 8.

    The tiled copy gives its second block, too, the columns from 16 on. The DSL retiles by position and hands it the
    registers of the block 8 columns on. Ours hands it the registers that hold what it stores.
    """
    copy, mma, question = asked["permuted"]
    reply = replies["permuted"]
    compare_copy(copy, question, reply)
    fragment = receive(question["fragment"])
    thread, extent = question["thread"], tuple(question["extent"])
    held = mma.view("C", extent)
    stored, start = copy.partition_S(thread, Layout.identity(extent))

    def wrong(retiled: Layout) -> list[int]:
        """Flat coordinates at which the copy stores another element than the register holds."""
        registers = retiled.offsets()
        rows, columns = stored.offsets()
        there = [(int(r) + start[0], int(c) + start[1]) for r, c in zip(rows, columns)]
        rest = Layout(tuple(m.size for m in fragment[1:]))
        return [i for i, x in enumerate(registers) if held(thread, int(x) % 4, rest.coord(int(x) // 4)) != there[i]]

    ours, theirs = copy.retile(fragment), reply["retile"]
    assert ours.size == theirs.size == fragment.size
    assert wrong(ours) == []
    assert len(wrong(theirs)) == fragment.size // 2 and wrong(theirs)[0] == 4
    with pytest.raises(AtomError, match=r"blocks 1 and 2 of the tile .* hold the values from .* use make_tiled_copy_A"):
        TiledCopy(copy.atom, copy.layout_tv, copy.tiler).retile(fragment)
