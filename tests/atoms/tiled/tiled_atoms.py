"""Atoms for the tests of tiled operations, and the definition of a tiled product. The algebra is compared with it.

The maps come from the formulas of PTX ISA (matrix fragments for mma.m16n8k16 and m16n8k8; ldmatrix; stmatrix), so that
these tests do not depend on the families of atoms.
"""

from __future__ import annotations

from typing import Any

from layoutgemm.atoms import CopyAtom, MmaAtom
from layoutgemm.atoms.tiled.mma import TiledMma
from layoutgemm.dtypes import bf16, f32
from layoutgemm.layouts import Layout

FRAGMENTS = {
    16: (
        Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 8, 128))),
        Layout(((4, 8), (2, 2)), ((16, 1), (8, 64))),
        Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))),
    ),
    8: (
        Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))),
        Layout(((4, 8), 2), ((16, 1), 8)),
        Layout(((4, 8), (2, 2)), ((32, 1), (16, 8))),
    ),
}


def warp_mma(k: int = 16, ids: Layout | None = None) -> MmaAtom:
    """mma.sync m16n8k`k` of bf16."""
    name = f"mma.sync.aligned.m16n8k{k}.row.col.f32.bf16.bf16.f32"
    maps = FRAGMENTS[k]
    return MmaAtom(name, ("sm_80",), (16, 8, k), bf16, bf16, f32, 32, *maps, "rmem", "rmem", "PTX ISA", thread_ids=ids)


def quad_pair() -> MmaAtom:
    """An atom of 8 threads, the upper four numbered 16 to 19, like sm_70's m8n8k4."""
    a = Layout((8, 4), (1, 8))
    c = Layout(((2, 2, 2), (2, 2, 2)), ((1, 16, 4), (8, 2, 32)))
    return MmaAtom(
        "mma.sync.aligned.m8n8k4.row.col.f32.f16.f16.f32", ("sm_70",), (8, 8, 4), bf16, bf16, f32, 8, a, a, c,
        "rmem", "rmem", "PTX ISA", thread_ids=Layout((4, 2), (1, 16)),
    )  # fmt: skip


def matrix_maps(count: int, transpose: bool) -> tuple[Layout, Layout]:
    """(registers, rows) of ldmatrix and stmatrix: element 64*matrix + 8*row + column."""
    registers = Layout(((4, 8), (2, count)), ((16, 1), (8, 64)) if transpose else ((2, 8), (1, 64)))
    return registers, Layout(((8 * count, 4 // count), 8), ((8, 0), 1))


def ldmatrix(count: int, transpose: bool = False) -> CopyAtom:
    registers, rows = matrix_maps(count, transpose)
    name = f"ldmatrix.sync.aligned.m8n8.x{count}{'.trans' * transpose}.shared.b16"
    return CopyAtom(name, ("sm_75",), bf16, 32, "smem", "rmem", rows, registers, "PTX ISA, ldmatrix")


def stmatrix(count: int, transpose: bool = False) -> CopyAtom:
    registers, rows = matrix_maps(count, transpose)
    name = f"stmatrix.sync.aligned.m8n8.x{count}{'.trans' * transpose}.shared.b16"
    return CopyAtom(name, ("sm_90",), bf16, 32, "rmem", "smem", registers, rows, "PTX ISA, stmatrix")


def vector(bits: int, source: str = "gmem", target: str = "rmem") -> CopyAtom:
    """A copy of `bits` by each thread on its own."""
    values = Layout((1, bits // 16), (0, 1))
    return CopyAtom(f"copy.b{bits}", ("sm_80",), bf16, 1, source, target, values, values, "PTX ISA, ld and st")


def defined(mma: TiledMma, operand: str, extent: tuple[int, int]) -> dict[tuple[int, int, tuple[int, int]], Any]:
    """(thread, value, (rest, rest)) -> (row, column), from the words of the definition and no algebra.

    The atom's element (i, j) of atom (x, y) in rest (r, s) has position i + I*(x + X*r) along the rows. A permutation P
    deals position p to element P(p % size) + size*(p // size). Of a warpgroup every 43rd thread is given.
    """
    modes = {"A": (0, 2), "B": (1, 2), "C": (0, 1)}[operand]
    atom, atoms = mma.atom, [mode.size for mode in mma.atom_layout]
    sizes = [atom.shape_mnk[i] for i in modes]
    ids = atom.thread_ids or Layout(atom.threads)
    # Only for ids 0..threads-1 does a thread's number follow from the atom's number by counting.
    assert sorted(ids.offsets()) == list(range(atom.threads))
    step = 1 if atom.threads == 32 else 43
    out = {}
    rests = [range(e // (s * atoms[i])) for e, s, i in zip(extent, sizes, modes)]
    for x in range(atoms[0]):
        for y in range(atoms[1]):
            for z in range(atoms[2]):
                place = (x, y, z)
                for v in range(0, atom.threads, step):
                    thread = int(ids(v)) + atom.threads * int(mma.atom_layout(place))
                    for value in range(atom.layout(operand)[1].size):
                        element = int(atom.layout(operand)(v, value))
                        inside = element % sizes[0], element // sizes[0]
                        for r in rests[0]:
                            for s in rests[1]:
                                coordinate = []
                                for i, mode, rest, size in zip(inside, modes, (r, s), sizes):
                                    p = i + size * (place[mode] + atoms[mode] * rest)
                                    tiler = mma.permutation[mode]
                                    if isinstance(tiler, Layout):
                                        p = int(tiler(p % tiler.size)) + tiler.size * (p // tiler.size)
                                    coordinate.append(p)
                                out[thread, value, (r, s)] = tuple(coordinate)
    return out
