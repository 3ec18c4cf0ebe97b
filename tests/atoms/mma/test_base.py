"""wgmma atoms: their maps against the published formulas and their own laws, and the registry of families."""

from dataclasses import replace

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.arch import arch
from layoutgemm.atoms import FAMILIES, MmaAtom, atoms, fma, wgmma
from layoutgemm.errors import AtomError
from tests.atoms.mma.ptx_fragments import place

EVERY_N = range(8, 257, 8)


@pytest.mark.parametrize("n", EVERY_N)
def test_accumulator_map_is_a_bijection_onto_the_tile(n):
    atom = wgmma(n)
    assert sorted(atom.layout_C.offsets()) == list(range(64 * n))
    assert atom.layout_C[0].size == atom.threads == 128
    assert atom.layout_C[1].size == n // 2 == atom.accumulator_registers


@pytest.mark.parametrize("n", (8, 64, 136, 256))
def test_coordinates_are_the_offsets_taken_apart(n):
    atom = wgmma(n)
    for operand in "ABC":
        rows, _ = atom.tile_of(operand)
        layout = atom.layout(operand)
        index = np.arange(layout.size)
        row, column = atom.coords(operand)(index)
        assert np.array_equal(row + rows * np.asarray(column), layout.offsets()), operand


def published_coordinate(thread, register):
    """The formula published with a 64x64 accumulator: warp, lane, then bits of the register number."""
    warp, lane = thread // 32, thread % 32
    row = warp * 16 + lane // 4 + 8 * (register // 2 % 2)
    column = lane % 4 * 2 + register % 2 + 8 * (register // 4)
    return row, column


def test_published_fragment_formula():
    coords = wgmma(64).coords_C
    for thread in range(128):
        for register in range(32):
            assert coords(thread, register) == published_coordinate(thread, register)
    # register 1 moves the column, register 2 the row
    assert [coords(0, r) for r in (1, 2)] == [(0, 1), (8, 0)]


def test_operands_in_shared_memory_are_seen_by_every_thread():
    atom = wgmma(48)
    assert set(atom.layout_A[0].offsets()) == {0} and set(atom.layout_B[0].offsets()) == {0}
    assert sorted(atom.layout_B[1].offsets()) == list(range(48 * 16))


@pytest.mark.parametrize("n", (0, 4, 12, 264, -8))
def test_no_such_n(n):
    with pytest.raises(AtomError, match="N = 8, 16"):
        wgmma(n)


@pytest.mark.parametrize("n", (True, 64.0, "64", (64,)))
def test_n_is_an_integer(n):
    with pytest.raises(AtomError, match="n of wgmma must be an integer, not "):
        wgmma(n)


def test_no_such_types():
    with pytest.raises(AtomError, match="got A bf16 and B f16"):
        wgmma(64, "bf16", "f16")
    with pytest.raises(AtomError, match="got A f64"):
        wgmma(64, "f64")
    with pytest.raises(AtomError, match="accumulates bf16 inputs in f32, not in f16"):
        wgmma(64, "bf16", c="f16")
    assert wgmma(64, "f16", c="f16").accumulator_registers == 16


def test_no_such_operand():
    with pytest.raises(AtomError, match="operands A, B, C and D, not 'E'"):
        wgmma(64).coords("E")


WGMMA = [atom for atom in atoms(family="wgmma") if isinstance(atom, MmaAtom)]


def test_every_type_has_its_n():
    found = {}
    for atom in WGMMA:
        found.setdefault((atom.a_dtype.name, atom.shape_mnk[2]), set()).add(atom.shape_mnk[1])
    every, integer = set(range(8, 257, 8)), {8, 16, 24, *range(32, 257, 16)}
    assert found == {
        **{(name, 16): every for name in ("bf16", "f16")},
        ("tf32", 8): every,
        **{(name, 32): every for name in ("e4m3", "e5m2")},
        **{(name, 32): integer for name in ("i8", "u8")},
        ("b1", 256): integer,
    }
    assert len({(atom.ptx, atom.a_source) for atom in WGMMA}) == len(WGMMA)
    assert all(atom.k_bytes == 32 for atom in WGMMA)


def test_register_maps_are_those_that_ptx_prints():
    for atom in WGMMA:
        if atom.shape_mnk[1] not in (8, 24, 80) or "satfinite" in atom.ptx:
            continue
        for operand in "AC" if atom.a_source == "rmem" and atom.shape_mnk[1] == 8 else "C":
            layout, rows = atom.layout(operand), 64
            got = layout.offsets().reshape(layout[1].size, 128)
            where = [[place(atom, operand, t, i) for t in range(128)] for i in range(layout[1].size)]
            assert np.array_equal(got, [[row + rows * column for row, column in line] for line in where]), atom.ptx
            assert atom.layout(operand).is_bijective()


def test_majors_and_sources():
    for atom in WGMMA:
        wide = atom.a_dtype.bits == 16
        assert atom.b_majors == (("K", "MN") if wide else ("K",))
        assert atom.a_majors == (("K", "MN") if wide and atom.a_source == "smem" else ("K",))
        assert atom.copies("A") == (128 if atom.a_source == "smem" else 1) and atom.copies("B") == 128
    registers = wgmma(8, "f16", a_source="rmem")
    assert registers.registers("A") == 4 and registers.slot("A", 7) == (3, 16)
    with pytest.raises(AtomError, match=r"operand B of .* is in smem, not in registers"):
        registers.registers("B")
    with pytest.raises(AtomError, match='takes A from "smem" or "rmem", not from \'tmem\''):
        wgmma(8, a_source="tmem")


@pytest.mark.parametrize("n", (40, 56, 248, 264, 12))
def test_integers_have_fewer_n(n):
    with pytest.raises(AtomError, match=r"wgmma for i8 and u8 has N = 8, 16, 24, 32, 48, .* N = \d+ is none"):
        wgmma(n, "i8", "u8")


def test_more_types_that_are_not():
    with pytest.raises(AtomError, match="accumulates i8 inputs in i32, not in f32"):
        wgmma(8, "i8", c="f32")
    with pytest.raises(AtomError, match="got A e4m3 and B i8"):
        wgmma(8, "e4m3", "i8")
    with pytest.raises(AtomError, match="does not saturate"):
        wgmma(8, "e4m3", saturate=True)
    with pytest.raises(AtomError, match="does not saturate"):
        wgmma(8, "b1", saturate=True)


def test_owner_is_the_inverse_for_every_n():
    for n in EVERY_N:
        atom = wgmma(n)
        row, column = (index.reshape(-1) for index in np.indices((64, n)))
        thread, value = atom.owner("C")(row, column)
        assert np.array_equal(atom.layout_C(thread, value), row + 64 * column)
    # a layout that skips elements has no inverse, and says which are missed
    broken = replace(wgmma(8), layout_C=Layout(((4, 8, 4), (2, 2)), ((128, 1, 16), (64, 4))))
    with pytest.raises(AtomError, match=r"operand C of .* has no inverse"):
        broken.owner("C")
    half = replace(wgmma(8), layout_C=Layout((128, 2), (1, 128)))
    with pytest.raises(AtomError, match="reaches 256 of the 64x8 elements"):
        half.owner("C")


def test_registry():
    assert set(FAMILIES) >= {"fma", "mma.sync", "wgmma"}
    assert {atom.ptx for atom in atoms("sm_90a", "wgmma")} == {atom.ptx for atom in WGMMA}
    assert not list(atoms("sm_100a", "wgmma"))
    assert {"sm_90a" in atom.archs for atom in atoms("sm_90a")} == {True}
    assert len(list(atoms(arch("sm_90a")))) == len(list(atoms("sm_90a")))
    for bad in ({"arch": "sm_91"}, {"family": "wmma"}):
        with pytest.raises(AtomError, match=r"no (target 'sm_91'|family 'wmma'); known: "):
            atoms(**bad)


def test_fma():
    assert fma("f64").coords("C")(0, 0) == (0, 0) and fma().owner("A")(0, 0) == (0, 0)
    with pytest.raises(AtomError, match=r"fma.rn multiplies f16, f32, f64, not i8"):
        fma("i8")
