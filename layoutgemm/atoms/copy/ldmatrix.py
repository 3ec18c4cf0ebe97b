"""Matrix copies of a warp: ldmatrix, stmatrix and movmatrix.

All of them move matrices between shared memory and registers. In shared memory a matrix is a few rows of 16 bytes, each
at the address that one lane supplies. In registers quads of lanes hold it. One rule gives every form. Let the fragment
have dimensions (a, b): a across the eight quads of the warp, b within a quad. Lane l then holds

    a = l//4 + 8*g          for g = 0, 1, ... (A/8 groups)
    b = (B/4)*(l%4) + i     for i = 0, ..., B/4 - 1

i the fastest, then g, then the matrices. Without .trans a is the row in memory and b the column along it; with .trans a
is the column and b the row. The reference tile numbers the elements as memory has them: along a row, then row by row,
then matrix by matrix.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...arguments import checked, shown
from ...dtypes import DType, dtype
from ...errors import AtomError
from ...layouts import E, Layout
from ...memo import memoized
from ..targets import since
from .base import WARP, CopyAtom

ROW_BYTES = 16  # at each address: PTX ISA, "Warp-level matrix load instruction: ldmatrix", each row is 16 bytes
_LANES = (4, 8)  # lanes of a quad, quads of a warp
# The 8-bit forms belong to the architecture-specific targets: PTX ISA, ldmatrix and stmatrix, "Target ISA Notes".
_BYTE_FORMS = tuple(target for target in since("sm_100") if target.endswith("a"))


@dataclass(frozen=True)
class _Form:
    """One row of the table of forms. It has PTX's name, the matrix as memory has it, and what may stand with it."""

    shape: str
    type: str
    rows: int
    bits: int
    counts: tuple[int, ...]
    transposes: tuple[bool, ...]
    archs: tuple[str, ...]

    @property
    def columns(self) -> int:
        """Elements of a row: 16 bytes of them. Packed sources are padded so that 16 elements fill a row too."""
        return ROW_BYTES * 8 // self.bits


# PTX ISA, "Warp-level matrix load instruction: ldmatrix" (tables of .shape, .num, .src_fmt) and "Warp-level matrix
# store instruction: stmatrix". `rows` counts rows of 16 bytes in memory; stmatrix calls 8 of them of bytes m16n8, after
# the fragment, which is their transpose. The maps of the 8-bit forms: cute/atom/copy_traits_sm100.hpp.
_LOADS = {
    "m8n8.b16": _Form("m8n8", "b16", 8, 16, (1, 2, 4), (False, True), since("sm_75")),
    "m16n16.b8": _Form("m16n16", "b8", 16, 8, (1, 2), (True,), _BYTE_FORMS),
    "m16n16.b8x16.b6x16_p32": _Form("m16n16", "b8x16.b6x16_p32", 16, 8, (1, 2), (True,), _BYTE_FORMS),
    "m16n16.b8x16.b4x16_p64": _Form("m16n16", "b8x16.b4x16_p64", 16, 8, (1, 2), (True,), _BYTE_FORMS),
    "m8n16.b8x16.b6x16_p32": _Form("m8n16", "b8x16.b6x16_p32", 8, 8, (1, 2, 4), (False,), _BYTE_FORMS),
    "m8n16.b8x16.b4x16_p64": _Form("m8n16", "b8x16.b4x16_p64", 8, 8, (1, 2, 4), (False,), _BYTE_FORMS),
}
_STORES = {
    "m8n8.b16": _Form("m8n8", "b16", 8, 16, (1, 2, 4), (False, True), since("sm_90")),
    "m16n8.b8": _Form("m16n8", "b8", 8, 8, (1, 2, 4), (True,), _BYTE_FORMS),
}
_MOVES = {"m8n8.b16": _Form("m8n8", "b16", 8, 16, (1,), (True,), since("sm_75"))}


@checked(AtomError)
def ldmatrix(
    count: int, form: str = "m8n8.b16", transpose: bool = False, element: DType | str | None = None
) -> CopyAtom:
    """The load of `count` matrices from shared memory into the registers of a warp.

    count      1, 2 or 4 matrices (.x1, .x2, .x4); 1 or 2 for m16n16
    form       "m8n8.b16"; "m16n16.b8"; "m16n16" or "m8n16" with ".b8x16.b6x16_p32" or ".b8x16.b4x16_p64": 16 elements
               of 6 or 4 bits, padded to a row of 16 bytes, become bytes
    transpose  .trans: may be either for m8n8, must be True for m16n16, False for m8n16
    element    the type that the maps count in, of any width that leaves elements whole; by default the form's own

    Lanes 0..rows-1 supply a row address each, the others are ignored; addresses are multiples of 16 bytes. Raises
    AtomError for a form that PTX has not, naming those it has. Source: PTX ISA, "Warp-level matrix load instruction:
    ldmatrix"; cute/atom/copy_traits_sm75.hpp, copy_traits_sm100.hpp.

    >>> atom = ldmatrix(4)
    >>> print(atom, atom.layout_src, atom.layout_dst)
    ldmatrix.sync.aligned.m8n8.x4.shared.b16 (32,8):(8,1) ((4,8),(2,4)):((2,8),(1,64))
    >>> print(ldmatrix(1, "m16n16.b8", transpose=True).layout_dst)
    ((4,8),(4,2)):((64,1),(16,8))
    >>> ldmatrix(4, "m16n16.b8", transpose=True)
    Traceback (most recent call last):
    ...
    layoutgemm.errors.AtomError: ldmatrix m16n16.b8 moves 1 or 2 matrices, not 4
    """
    spec = _chosen("ldmatrix", _LOADS, form, count, transpose)
    return _matrix_copy("ldmatrix", spec, count, transpose, element)


@checked(AtomError)
def stmatrix(
    count: int, form: str = "m8n8.b16", transpose: bool = False, element: DType | str | None = None
) -> CopyAtom:
    """The store of `count` matrices from the registers of a warp to shared memory.

    count      1, 2 or 4 matrices
    form       "m8n8.b16" (sm_90), or "m16n8.b8": matrices of 16 rows and 8 columns of bytes, stored by columns
    transpose  .trans: may be either for m8n8, must be True for m16n8
    element    the type that the maps count in, of any width that leaves elements whole; by default the form's own

    The same maps as ldmatrix, in the other direction. Raises AtomError for a form that PTX has not. Source: PTX ISA,
    "Warp-level matrix store instruction: stmatrix"; cute/atom/copy_traits_sm90.hpp, copy_traits_sm100.hpp.

    >>> print(stmatrix(2).layout_src, stmatrix(2).layout_dst)
    ((4,8),(2,2)):((2,8),(1,64)) ((16,2),8):((8,0),1)
    >>> stmatrix(1, "m16n8.b8")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.AtomError: stmatrix m16n8.b8 exists only with .trans
    """
    spec = _chosen("stmatrix", _STORES, form, count, transpose)
    return _matrix_copy("stmatrix", spec, count, transpose, element)


@checked(AtomError)
def movmatrix(element: DType | str | None = None) -> CopyAtom:
    """The transposition of one 8x8 matrix of 16-bit elements across the registers of a warp.

    Source: PTX ISA, "Warp-level matrix transpose instruction: movmatrix".

    >>> print(movmatrix(), movmatrix().layout_dst)
    movmatrix.sync.aligned.m8n8.trans.b16 ((4,8),2):((16,1),8)
    """
    spec = _MOVES["m8n8.b16"]
    atom = CopyAtom(
        ptx=f"movmatrix.sync.aligned.{spec.shape}.trans.{spec.type}",
        archs=spec.archs,
        element=dtype(f"u{spec.bits}"),
        threads=WARP,
        source="rmem",
        target="rmem",
        layout_src=_fragment(spec, 1, False),
        layout_dst=_fragment(spec, 1, True),
        reference='PTX ISA, "Warp-level matrix transpose instruction: movmatrix"',
        tile=_tile(spec, 1),
    )
    return atom if element is None else atom.recast(element)


@checked(AtomError)
def ldmatrix_m16n8(count: int, source: str = "b8", element: DType | str | None = None) -> CopyAtom:
    """The load that mirrors stmatrix m16n8.b8. `count` matrices (2 or 4) of 16 rows and 8 columns of bytes.

    PTX has no such instruction. It is ldmatrix m16n16 x1 or x2 with the rows of memory handed to other lanes and the
    bytes of the registers permuted afterwards; both permutations follow from the two maps. source is "b8",
    "b8x16.b6x16_p32" or "b8x16.b4x16_p64". Raises AtomError for another count. Source: SM100_U8x8_LDSM_T and
    SM100_U8x16_LDSM_T in cute/arch/copy_sm100.hpp; LdMatrix16x8x8bOp of the DSL.

    >>> atom = ldmatrix_m16n8(2)
    >>> print(atom, atom.layout_src, atom.layout_dst == stmatrix(2, "m16n8.b8", True).layout_src)
    ldmatrix.sync.aligned.m16n16.x1.trans.shared.b8 ((2,2,4,2),16):((16,128,32,0),1) True
    """
    if count not in (2, 4):
        raise AtomError(f"m16n8 matrices are loaded in pairs, as an m16n16: 2 or 4 of them, not {shown(count)}")
    base = ldmatrix(count // 2, f"m16n16.{source}", transpose=True)
    want = stmatrix(count, "m16n8.b8", transpose=True).layout_src
    # Of the four rows 4*q + i + 2*h that lane q of a quad gets from an m16n16, rows i of one m16n8 matrix and h of its
    # neighbour are wanted: memory row number (i, h, q) is to hold what the fragment has at that i, h and q.
    pair, _, matrix = want[1].stride
    rows = Layout((2, 2, 4, 2), (pair, matrix, want[0].stride[0], 2 * matrix if count == 4 else 0))
    atom = CopyAtom(
        ptx=base.ptx,
        archs=base.archs,
        element=base.element,
        threads=WARP,
        source="smem",
        target="rmem",
        layout_src=Layout.join(rows, base.layout_src[1]),
        layout_dst=want,
        reference="cute/arch/copy_sm100.hpp, SM100_U8x8_LDSM_T and SM100_U8x16_LDSM_T",
        tile=_tile(_STORES["m16n8.b8"], count),
    )
    return atom if element is None else atom.recast(element)


def matrix_copies() -> Iterator[CopyAtom]:
    """Every matrix copy that PTX has, in the form's own element.

    >>> len(list(matrix_copies()))
    28
    """
    for make, table in ((ldmatrix, _LOADS), (stmatrix, _STORES)):
        for form, spec in table.items():
            for count in spec.counts:
                for transpose in spec.transposes:
                    yield make(count, form, transpose)
    yield movmatrix()


def _chosen(name: str, table: dict[str, _Form], form: str, count: int, transpose: bool) -> _Form:
    spec = table.get(form) if isinstance(form, str) else None
    if spec is None:
        raise AtomError(f"{name} has no form {shown(form)}; PTX allows {', '.join(table)}")
    if isinstance(count, bool) or count not in spec.counts:
        *most, last = spec.counts
        raise AtomError(f"{name} {form} moves {', '.join(map(str, most))} or {last} matrices, not {shown(count)}")
    if transpose not in spec.transposes:
        raise AtomError(f"{name} {form} exists only {'with' if spec.transposes[0] else 'without'} .trans")
    return spec


def _fragment(spec: _Form, count: int, transpose: bool) -> Layout:
    """(lane, value) -> element: the rule at the head of this module."""
    along_row, down = (spec.columns, 1), (spec.rows, spec.columns)  # (extent, stride) of a row and of the rows
    (a, sa), (b, sb) = (along_row, down) if transpose else (down, along_row)
    modes = [(b // 4, sb), (a // 8, 8 * sa), (count, spec.rows * spec.columns)]
    kept = [mode for mode in modes if mode[0] > 1]
    shape, stride = (tuple(x) if len(kept) > 1 else x[0] for x in zip(*kept))
    return Layout((_LANES, shape), ((b // 4 * sb, sa), stride))


def _addresses(spec: _Form, count: int) -> Layout:
    """(lane, value) -> element at the lane's address: row by row; lanes beyond the rows repeat them (stride 0)."""
    rows, width = spec.rows * count, spec.columns
    if rows == WARP:
        return Layout((WARP, width), (width, 1))
    return Layout(((rows, WARP // rows), width), ((width, 0), 1))


def _tile(spec: _Form, count: int) -> Layout:
    """Element number -> (row, column), and the matrix where there are several."""
    rank = 3 if count > 1 else 2
    return Layout((spec.columns, spec.rows, count)[:rank], (E(1), E(0), E(2))[:rank])


@memoized(256)
def _matrix_copy(name: str, spec: _Form, count: int, transpose: bool, element: DType | str | None) -> CopyAtom:
    load = name == "ldmatrix"
    memory, registers = _addresses(spec, count), _fragment(spec, count, transpose)
    atom = CopyAtom(
        ptx=f"{name}.sync.aligned.{spec.shape}.x{count}{'.trans' if transpose else ''}.shared.{spec.type}",
        archs=spec.archs,
        element=dtype(f"u{spec.bits}"),
        threads=WARP,
        source="smem" if load else "rmem",
        target="rmem" if load else "smem",
        layout_src=memory if load else registers,
        layout_dst=registers if load else memory,
        reference=f'PTX ISA, "Warp-level matrix {"load" if load else "store"} instruction: {name}"',
        tile=_tile(spec, count),
    )
    return atom if element is None else atom.recast(element)
