"""The fragment formulas as PTX ISA prints them, one per shape and type: the reference for our single derivation.

Each entry gives the row and column of element i of a lane's fragment, with g = lane >> 2 (the group) and q = lane % 4
(the thread in its group). For B, PTX's row is k and its column is n.

Source: PTX ISA, sections "Matrix Fragments for mma.m8n8k4 with .f16" to "Matrix Fragments for mma.m16n8k256", and
"Register Fragments" of wgmma.mma_async.
"""

from __future__ import annotations

from collections.abc import Callable

from layoutgemm.atoms import MmaAtom

Place = Callable[[int, int, int], tuple[int, int]]


def high(i: int, *low: range) -> int:
    """0 when i lies in one of the ranges where PTX gives row = groupID, else 8."""
    return 0 if any(i in part for part in low) else 8


# (shape, bits of the type) -> (A, B); f64 and tf32 share a shape with others, so bits tell them apart.
MULTIPLICANDS: dict[tuple[tuple[int, int, int], int], tuple[Place, Place]] = {
    ((8, 8, 4), 64): (lambda g, q, i: (g, q), lambda g, q, i: (q, g)),
    ((8, 8, 16), 8): (lambda g, q, i: (g, q * 4 + i), lambda g, q, i: (q * 4 + i, g)),
    ((8, 8, 32), 4): (lambda g, q, i: (g, q * 8 + i), lambda g, q, i: (q * 8 + i, g)),
    ((8, 8, 128), 1): (lambda g, q, i: (g, q * 32 + i), lambda g, q, i: (q * 32 + i, g)),
    ((16, 8, 4), 32): (lambda g, q, i: (g if i == 0 else g + 8, q), lambda g, q, i: (q, g)),
    ((16, 8, 4), 64): (lambda g, q, i: (g if i == 0 else g + 8, q), lambda g, q, i: (q, g)),
    ((16, 8, 8), 16): (
        lambda g, q, i: (g + high(i, range(2)), q * 2 + (i & 1)),
        lambda g, q, i: (q * 2 + i, g),
    ),
    ((16, 8, 8), 32): (
        lambda g, q, i: (g if i in (0, 2) else g + 8, q if i in (0, 1) else q + 4),
        lambda g, q, i: (q if i == 0 else q + 4, g),
    ),
    ((16, 8, 8), 64): (
        lambda g, q, i: (g if i in (0, 2) else g + 8, q if i in (0, 1) else q + 4),
        lambda g, q, i: (q if i == 0 else q + 4, g),
    ),
    ((16, 8, 16), 16): (
        lambda g, q, i: (g + high(i, range(2), range(4, 6)), q * 2 + (i & 1) + (0 if i < 4 else 8)),
        lambda g, q, i: (q * 2 + (i & 1) + (0 if i < 2 else 8), g),
    ),
    ((16, 8, 16), 64): (
        lambda g, q, i: (g if i % 2 == 0 else g + 8, i * 2 + q if i % 2 == 0 else i * 2 - 2 + q),
        lambda g, q, i: (q + i * 4, g),
    ),
    ((16, 8, 16), 8): (
        lambda g, q, i: (g + high(i, range(4)), q * 4 + (i & 3)),
        lambda g, q, i: (q * 4 + i, g),
    ),
    ((16, 8, 32), 8): (
        lambda g, q, i: (g + high(i, range(4), range(8, 12)), q * 4 + (i & 3) + (0 if i < 8 else 16)),
        lambda g, q, i: (q * 4 + (i & 3) + (0 if i < 4 else 16), g),
    ),
    ((16, 8, 32), 4): (
        lambda g, q, i: (g + high(i, range(8)), q * 8 + (i & 7)),
        lambda g, q, i: (q * 8 + i, g),
    ),
    ((16, 8, 64), 4): (
        lambda g, q, i: (g + high(i, range(8), range(16, 24)), q * 8 + (i & 7) + (0 if i < 16 else 32)),
        lambda g, q, i: (q * 8 + (i & 7) + (0 if i < 8 else 32), g),
    ),
    ((16, 8, 128), 1): (
        lambda g, q, i: (g + high(i, range(32)), q * 32 + (i & 31)),
        lambda g, q, i: (q * 32 + i, g),
    ),
    ((16, 8, 256), 1): (
        lambda g, q, i: (g + high(i, range(32), range(64, 96)), q * 32 + (i & 31) + (0 if i < 64 else 128)),
        lambda g, q, i: (q * 32 + (i & 31) + (0 if i < 32 else 128), g),
    ),
}


def accumulator(rows: int) -> Place:
    if rows == 8:
        return lambda g, q, i: (g, q * 2 + (i & 1))
    return lambda g, q, i: (g + high(i, range(2)), q * 2 + (i & 1))


def quad_pair(atom: MmaAtom, operand: str, lane: int, i: int) -> tuple[int, int]:
    """mma.m8n8k4 on f16, as a (row, column) of PTX: for B the row is k."""
    _, majors = atom.ptx.split("m8n8k4.")
    a_major, b_major = majors.split(".")[:2]
    low = lane < 16
    if operand == "A" and a_major == "row":
        return (lane % 4 if low else lane % 4 + 4), i
    if operand == "A":
        return (i % 4 if low else i % 4 + 4), lane % 4
    if operand == "B" and b_major == "row":
        return lane % 4, (i if low else i + 4)
    if operand == "B":
        return i, (lane % 4 if low else lane % 4 + 4)
    if atom.dtype_of(operand).bits == 16:
        return (lane % 4 if low else lane % 4 + 4), i
    x = (lane & 1) + (i & 2)
    return (x if low else x + 4), (i & 4) + (lane & 2) + (i & 1)


def warpgroup(atom: MmaAtom, operand: str, thread: int, i: int) -> tuple[int, int]:
    """wgmma: C of every N, and A in registers, by the width of the type."""
    warp, g, q = thread // 32, thread % 32 // 4, thread % 4
    if operand in ("C", "D"):
        return warp * 16 + g + 8 * (i // 2 % 2), 2 * q + i % 2 + 8 * (i // 4)
    row = {
        32: lambda: (g if i in (0, 2) else g + 8, q if i in (0, 1) else q + 4),
        16: lambda: MULTIPLICANDS[(16, 8, 16), 16][0](g, q, i),
        8: lambda: MULTIPLICANDS[(16, 8, 32), 8][0](g, q, i),
        1: lambda: MULTIPLICANDS[(16, 8, 256), 1][0](g, q, i),
    }[atom.a_dtype.bits]()
    return warp * 16 + row[0], row[1]


def place(atom: MmaAtom, operand: str, thread: int, i: int) -> tuple[int, int]:
    """(row, column) in our terms of element i of a lane's fragment: (m, k), (n, k) or (m, n)."""
    if atom.ptx.startswith("wgmma"):
        return warpgroup(atom, operand, thread, i)
    if atom.thread_ids is not None:
        row, column = quad_pair(atom, operand, thread, i)
    else:
        g, q = thread >> 2, thread % 4
        if operand in ("C", "D"):
            return accumulator(atom.shape_mnk[0])(g, q, i)
        pair = MULTIPLICANDS[atom.shape_mnk, atom.element_bits(operand)]
        row, column = pair["AB".index(operand)](g, q, i)
    return (column, row) if operand == "B" else (row, column)
