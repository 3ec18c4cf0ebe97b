"""Command-line names of atoms, copies, tile orders and swizzles: `mma:m16n8k16:bf16`, `copy:ldmatrix:4`, ..."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard

from .. import atoms, schedule
from ..arguments import shown
from ..atoms.mma.tcgen05 import KINDS
from ..dtypes import dtype
from ..errors import LayoutError, ParseError
from ..layouts import Layout, Swizzle, registries
from ..layouts.display import HasPicture
from ..layouts.notation import may_name_atom
from .arguments import one_line, size_pair

if TYPE_CHECKING:
    from ..atoms import CopyAtom, MmaAtom, TiledMma
    from ..schedule import Schedule

ATOMS = "wgmma:64:bf16:C, mma:m16n8k16:bf16:A"
WRITTEN = f"an atom is written FAMILY:SIZE[:TYPE[:KIND]][:OPERAND], as in {ATOMS}, mma:m16n8k64:e2m1:mxf4:SFA"
TILED = "a tiled atom is written tiled:MxNxK:ATOM, as in tiled:2x2x1:mma:m16n8k16"
OPERANDS = ("A", "B", "C", "D", "SFA", "SFB")
MAX_TILES = 1 << 16  # of a tile order that is shown


def _wgmma(size: str, a: str, b: str, operand: str, kind: str | None) -> MmaAtom:
    if kind is not None:
        raise LayoutError(f"wgmma:{size}:{a}:{kind}: wgmma has no kinds, mma and tcgen05 have, as in mxf4")
    if not size.isdigit():
        raise LayoutError(f"wgmma:{size}: its N is written as a number, as in wgmma:64:bf16:C")
    if operand == "B":
        raise LayoutError("no thread holds B of wgmma, shared memory does: show its tile, as in smem:64x16:bf16:K")
    return atoms.wgmma(int(size), a, b, a_source="rmem" if operand == "A" else "smem")


def _mma(size: str, a: str, b: str, operand: str, kind: str | None) -> MmaAtom:
    if kind == "mxf4nvf4":  # the types of scale factors that NVFP4 uses
        return atoms.mma_sync(size, a, b, kind=kind, scale="ue4m3", vector=16)
    return atoms.mma_sync(size, a, b, kind=kind)


def _tcgen05(size: str, a: str, b: str, operand: str, kind: str | None) -> MmaAtom:
    if operand:
        raise LayoutError(
            f"no thread holds operands of tcgen05.mma: show a tile in shared memory, as in smem:128x64:bf16:K, or with "
            f"--svg the tensor memory of tcgen05:{size}:{a}"
        )
    m, n = size_pair(size, "the size of tcgen05 is written MxN, as in tcgen05:128x256:bf16")
    if kind is None:
        kind = next((name for name, entry in KINDS.items() if dtype(a).name in entry.types), None)
    if kind is not None and kind not in KINDS:
        raise LayoutError(f"tcgen05:{size}:{a}:{kind}: the kinds of tcgen05.mma are {', '.join(KINDS)}")
    if kind is None:
        raise LayoutError(f"tcgen05:{size}:{a}: no kind of tcgen05.mma multiplies {a}")
    return atoms.tcgen05_mma(kind, m, n, a, b)


Maker: TypeAlias = "Callable[[str, str, str, str, str | None], MmaAtom]"  # of size, types, operand, kind
FAMILIES: dict[str, Maker] = {"wgmma": _wgmma, "mma": _mma, "tcgen05": _tcgen05}


def atom_of(text: str) -> tuple[MmaAtom, str]:
    """`FAMILY:SIZE[:TYPE[xTYPE][:KIND]][:OPERAND]` as the atom and its operand. Defaults: bf16 and C.

    Raises LayoutError.

    >>> atom, operand = atom_of("wgmma:64:e4m3xe5m2:A")
    >>> print(atom, operand)
    wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e5m2 A
    """
    family, *rest = text.split(":")
    operand = rest.pop() if has_operand(text) else "C"
    atom = cutlass_named(text)
    if is_product(atom):
        return atom, operand.upper()
    if not 1 <= len(rest) <= 3:
        raise LayoutError(f"{shown(text)}: {WRITTEN}")
    a, _, b = (rest[1] if len(rest) > 1 else "bf16").partition("x")
    kind = rest[2] if len(rest) > 2 else None
    return FAMILIES[family](rest[0], a, b or a, operand.upper(), kind), operand.upper()


def atom_layout(text: str) -> Layout | None:
    """The (thread, value) layout of an operand by its name, None for another text. Raises LayoutError.

    >>> print(atom_layout("mma:m16n8k16:bf16:C"), atom_layout("(4,8):(8,1)"))
    ((4,8),(2,2)):((32,1),(16,8)) None
    """
    if not has_operand(text) or not is_atom(text):
        return None
    atom, operand = atom_of(text)
    return atom.layout(operand)


def has_operand(text: str) -> bool:
    """True if the text ends with an operand.

    >>> has_operand("wgmma:64:bf16:C"), has_operand("wgmma:64:bf16"), has_operand("SM80_16x8x8_F32F16F16F32_TN:A")
    (True, False, True)
    """
    parts = text.split(":")
    return len(parts) > 1 + (parts[0] in FAMILIES) and parts[-1].upper() in OPERANDS


def cutlass_named(text: str) -> CopyAtom | MmaAtom | TiledMma | None:
    """The atom of a CUTLASS name, which an operand may follow; None for another text."""
    name = text.rpartition(":")[0] if has_operand(text) else text
    found: CopyAtom | MmaAtom | TiledMma | None = registries.atom_named(name) if may_name_atom(name) else None
    return found


def is_atom(text: str) -> bool:
    """True for the name of a matrix product.

    >>> is_atom("wgmma:64"), is_atom("SM80_16x8x8_F32F16F16F32_TN:A"), is_atom("SM75_U32x4_LDSM_N")
    (True, True, False)
    """
    return text.partition(":")[0] in FAMILIES or is_product(cutlass_named(text))


def is_product(found: CopyAtom | MmaAtom | TiledMma | None) -> TypeGuard[MmaAtom]:
    """True for a matrix product; where nothing was found, no file of atoms is loaded."""
    return found is not None and isinstance(found, atoms.MmaAtom)


def whole_atom(text: str) -> MmaAtom:
    """An atom without operand, as in `mma:m16n8k16:bf16`. Raises LayoutError."""
    atom = cutlass_named(text)
    if is_product(atom) and not has_operand(text):
        return atom
    family, *rest = text.split(":")
    if family not in FAMILIES or not 1 <= len(rest) <= 3 or has_operand(text):
        raise LayoutError(f"{shown(text)}: {WRITTEN}")
    a, _, b = (rest[1] if len(rest) > 1 else "bf16").partition("x")
    return FAMILIES[family](rest[0], a, b or a, "", rest[2] if len(rest) > 2 else None)


# ------------------------------------------------------------------- tiled atoms, copies, orders, swizzles


def object_of(text: str) -> tuple[HasPicture, dict[str, object], dict[str, Any]]:
    """The named object, its data for programs, and its drawing options. Raises LayoutError.

    >>> made, data, options = object_of("schedule:grouped:4:12x8")
    >>> print(made, options)
    Grouped(along='M', group=4, serpentine=False) {'grid': (12, 8)}
    """
    family, _, rest = text.partition(":")
    found = cutlass_named(text)
    if found is not None and not isinstance(found, atoms.MmaAtom):
        return found, object_data(found), {}
    if family == "schedule":
        order, grid = schedule_of(rest)
        return order, {"schedule": str(order), "grid": grid, "tiles": order.table(grid).tolist()}, {"grid": grid}
    if family == "copy":
        copy = copy_of(rest)
        return copy, object_data(copy), {}
    if family == "tiled":
        counts, _, name = rest.partition(":")
        sizes = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*)", counts)
        if sizes is None:
            raise LayoutError(f"{shown(text)}: {TILED}")
        if not name:
            raise LayoutError(f"{shown(text)}: {TILED}")
        tiled = atoms.TiledMma(whole_atom(name), (int(sizes[1]), int(sizes[2]), int(sizes[3])))
        return tiled, object_data(tiled), {}
    if is_atom(text):
        atom = whole_atom(text)
        layouts = {operand: str(atom.layout(operand)) for operand in atom.operands if operand != "D"}
        return atom, {"atom": atom.ptx, "shape": atom.shape_mnk, "threads": atom.threads, "layouts": layouts}, {}
    try:
        swizzle = Swizzle.parse(text)
    except ParseError as error:
        raise LayoutError(f"{one_line(error)}: a swizzle is written S<3,4,3> or S<3,4,3>[bytes]") from None
    return swizzle, {"swizzle": str(swizzle)}, {}


def object_data(made: CopyAtom | TiledMma) -> dict[str, object]:
    """A copy or a tiled product for programs."""
    if isinstance(made, atoms.TiledMma):
        return {"atom": made.atom.ptx, "tile": made.tile_mnk, "threads": made.threads}
    return {"copy": made.ptx, "src": str(made.layout_src), "dst": str(made.layout_dst)}


def schedule_of(text: str) -> tuple[Schedule, tuple[int, int]]:
    """`linear`, `grouped:8`, `serpentine:4:16x12` as an order of tiles and a grid. Raises LayoutError."""
    name, *rest = text.split(":")
    grid = size_pair(rest.pop(), "a grid is written ROWSxCOLUMNS") if rest and "x" in rest[-1] else (16, 12)
    orders: dict[str, Callable[[int], Schedule]] = {
        "linear": lambda group: schedule.Linear(),
        "grouped": lambda group: schedule.Grouped(group=group),
        "serpentine": lambda group: schedule.Grouped(group=group, serpentine=True),
        "hilbert": lambda group: schedule.Hilbert(),
    }
    if name not in orders or len(rest) > (name in ("grouped", "serpentine")) or not all(r.isdigit() for r in rest):
        known = "linear, grouped:GROUP, serpentine:GROUP or hilbert"
        raise LayoutError(f"schedule:{text}: an order is {known}, then :ROWSxCOLUMNS, as in schedule:grouped:8:16x12")
    if grid[0] * grid[1] > MAX_TILES:
        raise LayoutError(f"schedule:{text}: {grid[0]}x{grid[1]} tiles, and up to {MAX_TILES} are shown")
    return orders[name](int(rest[0]) if rest else 8), grid


def copy_of(text: str) -> CopyAtom:
    """`ldmatrix:4[:trans]`, `movmatrix`, `cp_async:16`, `ld:128`, `tcgen05_ld:32x32b:4` as a copy atom. Raises
    LayoutError.

    >>> print(copy_of("ldmatrix:2:trans").ptx)
    ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16
    """
    name, *rest = text.split(":")
    trans = rest[-1:] == ["trans"]
    numbers = [int(r) for r in rest if r.isdigit()]
    count = numbers[0] if numbers else 0
    forms: dict[str, tuple[int, Callable[[], CopyAtom]]] = {
        "ldmatrix": (1 + trans, lambda: atoms.ldmatrix(count, transpose=trans)),
        "stmatrix": (1 + trans, lambda: atoms.stmatrix(count, transpose=trans)),
        "movmatrix": (0, lambda: atoms.movmatrix()),
        "cp_async": (1, lambda: atoms.cp_async(count)),
        "ld": (1, lambda: atoms.load_shared(count)),
        "tcgen05_ld": (2, lambda: atoms.tcgen05_ld(rest[0], count)),
        "tcgen05_st": (2, lambda: atoms.tcgen05_st(rest[0], count)),
    }
    if name not in forms or forms[name][0] != len(rest) or (rest and not numbers):
        raise LayoutError(f"copy:{text}: a copy is one of {COPIES}")
    return forms[name][1]()


COPIES = (
    "copy:ldmatrix:4[:trans], copy:stmatrix:4[:trans], copy:movmatrix, copy:cp_async:16, copy:ld:128, "
    "copy:tcgen05_ld:32x32b:4, copy:tcgen05_st:32x32b:4"
)
