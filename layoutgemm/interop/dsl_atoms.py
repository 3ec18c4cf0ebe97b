"""The CuTe DSL's instructions, tiled products and tiled copies as ours.

An operation of the DSL is a small Python object: its class and fields name the instruction, and a table leads from them
to an atom here. An atom of the DSL also has thread-value maps, and so have its tiled products and copies. What is made
here is compared with all of them, as functions, before it is returned: a difference is an error that shows both.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..atoms import (
    CopyAtom,
    MmaAtom,
    TiledCopy,
    TiledMma,
    bulk_copy,
    cp_async,
    fma,
    ldmatrix,
    ldmatrix_m16n8,
    load_global,
    load_shared,
    mma_sync,
    st_async,
    stmatrix,
    store_global,
    store_shared,
    tcgen05_cp,
    tcgen05_ld,
    tcgen05_mma,
    tcgen05_st,
    universal_copy,
    wgmma,
)
from ..atoms.copy.tmem import HALVED
from ..atoms.targets import since
from ..dtypes import DType
from ..errors import AtomError, LayoutError
from ..layouts import Layout
from .dsl_layouts import element_of, static_layout
from .unsupported import MAPS, REFUSED

if TYPE_CHECKING:
    from cutlass import cute
    from cutlass.cute.atom import CopyOp, MmaOp

# ---------------------------------------------------------------- operations


def _name(value: Any) -> str:
    """The name of a member of one of the DSL's enumerations, in lower case."""
    return str(value.name).lower()


def _scale(op: MmaOp, field: str) -> str:
    # The DSL has one type for e4m3 with and without its sign; the factors have none.
    name = element_of(getattr(op, field)).name
    return "ue4m3" if name == "e4m3" else name


def _warp(op: MmaOp) -> MmaAtom:
    ab = element_of(op.ab_dtype)
    return mma_sync(tuple(op.shape_mnk), ab, c=element_of(op.acc_dtype))


def _warp_scaled(kind: str) -> Callable[[MmaOp], MmaAtom]:
    def make(op: MmaOp) -> MmaAtom:
        a = element_of(op.ab_dtype if hasattr(op, "ab_dtype") else op.a_dtype)
        b = element_of(op.ab_dtype if hasattr(op, "ab_dtype") else op.b_dtype)
        scale, vector = _scale(op, "sf_type"), int(op.sf_vec_size)
        return mma_sync(tuple(op.shape_mnk), a, b, element_of(op.acc_dtype), kind=kind, scale=scale, vector=vector)

    return make


def _wgmma(op: MmaOp) -> MmaAtom:
    a, b, c = (element_of(kind) for kind in (op.a_dtype, op.b_dtype, op.acc_dtype))
    return wgmma(int(op.shape_mnk[1]), a, b, c, _name(op.a_src))


def _tcgen05(kind: str, sparse: bool = False) -> Callable[[MmaOp], MmaAtom]:
    def make(op: MmaOp) -> MmaAtom:
        a, b, c = (element_of(x) for x in (op.a_dtype, op.b_dtype, op.acc_dtype))
        m, n, k = map(int, op.shape_mnk)
        scale, vector = (_scale(op, "sf_dtype"), int(op.sf_vec_size)) if kind.startswith("mx") else (None, None)
        group = {"one": 1, "two": 2}[_name(op.cta_group)]
        return tcgen05_mma(kind, m, n, a, b, c, group, _name(op.a_src), scale, vector, k, sparse=sparse)

    return make


# (part of cutlass.cute.nvgpu, class) -> the atom of an operation of that class.
PRODUCTS: dict[tuple[str, str], Callable[[MmaOp], MmaAtom]] = {
    ("common", "MmaUniversalOp"): lambda op: fma(element_of(op.abacc_dtype)),
    ("warp", "MmaF16BF16Op"): _warp,
    ("warp", "MmaFP8Op"): _warp,
    ("warp", "MmaTF32Op"): lambda op: mma_sync(tuple(op.shape_mnk), "tf32"),
    ("warp", "MmaMXF4Op"): _warp_scaled("mxf4"),
    ("warp", "MmaMXF4NVF4Op"): _warp_scaled("mxf4nvf4"),
    ("warp", "MmaMXF8Op"): _warp_scaled("mxf8f6f4"),
    ("warp", "MmaMXF8F6F4Op"): _warp_scaled("mxf8f6f4"),
    ("warpgroup", "MmaF16BF16Op"): _wgmma,
    ("warpgroup", "MmaF8Op"): _wgmma,
    ("warpgroup", "MmaI8Op"): _wgmma,
    ("tcgen05", "MmaF16BF16Op"): _tcgen05("f16"),
    ("tcgen05", "MmaF16BF16SparseOp"): _tcgen05("f16", sparse=True),
    ("tcgen05", "MmaTF32Op"): _tcgen05("tf32"),
    ("tcgen05", "MmaI8Op"): _tcgen05("i8"),
    ("tcgen05", "MmaFP8Op"): _tcgen05("f8f6f4"),
    ("tcgen05", "MmaFP8SparseOp"): _tcgen05("f8f6f4", sparse=True),
    ("tcgen05", "MmaF8F6F4Op"): _tcgen05("f8f6f4"),
    ("tcgen05", "SM107MmaFP8Op"): _tcgen05("f8f6f4"),
    ("tcgen05", "MmaMXF8Op"): _tcgen05("mxf8f6f4"),
    ("tcgen05", "MmaMXF8F6F4Op"): _tcgen05("mxf8f6f4"),
    ("tcgen05", "SM107BlockScaledMmaMXF8F6F4Op"): _tcgen05("mxf8f6f4"),
    ("tcgen05", "MmaMXF4Op"): _tcgen05("mxf4"),
    ("tcgen05", "SM103MmaMXF4Op"): _tcgen05("mxf4"),
    ("tcgen05", "MmaMXF4NVF4Op"): _tcgen05("mxf4nvf4"),
    ("tcgen05", "SM103MmaMXF4NVF4Op"): _tcgen05("mxf4nvf4"),
    ("tcgen05", "SM107MmaMXF4NVF4Op"): _tcgen05("mxf4nvf4"),
}

# unpack_bits of the matrix loads -> PTX's source format.
_PACKED = {None: "b8", 6: "b8x16.b6x16_p32", 4: "b8x16.b4x16_p64"}


def _load_8x16(op: CopyOp) -> CopyAtom:
    # Without unpacking there is no m8n16: the DSL issues m8n8.b16, which moves the same bytes.
    return ldmatrix(op.num_matrices, f"m8n16.{_PACKED[op.unpack_bits]}" if op.unpack_bits else "m8n8.b16")


# (part of cutlass.cute.nvgpu, class) -> the atom of an operation that says all by itself, in its own element.
MATRIX_COPIES: dict[tuple[str, str], Callable[[CopyOp], CopyAtom]] = {
    ("warp", "LdMatrix8x8x16bOp"): lambda op: ldmatrix(op.num_matrices, transpose=op.transpose),
    ("warp", "LdMatrix8x16x8bOp"): _load_8x16,
    ("warp", "LdMatrix16x8x8bOp"): lambda op: ldmatrix_m16n8(op.num_matrices, _PACKED[op.unpack_bits]),
    ("warp", "LdMatrix16x16x8bOp"): lambda op: ldmatrix(
        op.num_matrices, f"m16n16.{_PACKED[op.unpack_bits]}", op.transpose
    ),
    ("warp", "StMatrix8x8x16bOp"): lambda op: stmatrix(op.num_matrices, transpose=op.transpose),
    ("warp", "StMatrix16x8x8bOp"): lambda op: stmatrix(op.num_matrices, "m16n8.b8", op.transpose),
}

# Memory attributes as the DSL's types spell them -> keyword of load_global and store_global, value.
_ATTRIBUTES: dict[str, Callable[[str], tuple[str, Any]]] = {
    "load_cache_mode": lambda value: ("cache", value),
    "store_cache_mode": lambda value: ("cache", value),
    "l1_cache_evict_priority": lambda value: ("evict", value),
    "l2_prefetch_size": lambda value: ("l2_prefetch", int(value.removeprefix("size_").removesuffix("b"))),
    "invariant": lambda value: ("read_only", value == "true"),
    "mem_order": lambda value: ("order", value),
    "mem_scope": lambda value: ("scope", value),
}


@dataclass(frozen=True)
class _Copy:
    """A copy atom of threads: operation, bits, element, spaces (the caller's word), attributes."""

    op: CopyOp
    bits: int
    element: DType
    spaces: tuple[str, str]
    attributes: dict[str, Any]

    @property
    def bytes(self) -> int:
        if self.bits % 8:
            raise AtomError(f"a copy of {self.bits} bits is no whole number of bytes")
        return self.bits // 8


# (part of cutlass.cute.nvgpu, class) -> the atom of a copy of threads.
THREAD_COPIES: dict[tuple[str, str], Callable[[_Copy], CopyAtom]] = {
    ("common", "CopyUniversalOp"): lambda c: universal_copy(c.bits, c.element, *c.spaces),
    ("common", "CopyG2ROp"): lambda c: load_global(c.bits, c.element, **c.attributes),
    ("common", "CopyR2GOp"): lambda c: store_global(c.bits, c.element, **c.attributes),
    ("common", "CopyS2ROp"): lambda c: load_shared(c.bits, c.element),
    ("common", "CopyR2SOp"): lambda c: store_shared(c.bits, c.element),
    ("cpasync", "CopyG2SOp"): lambda c: cp_async(c.bytes, _name(c.op.cache_mode), c.element),
    ("cpasync", "CopyBulkG2SOp"): lambda c: bulk_copy(c.bytes, "gmem", "smem", c.element),
    ("cpasync", "CopyBulkG2SMulticastOp"): lambda c: bulk_copy(c.bytes, element=c.element, multicast=True),
    ("cpasync", "CopyBulkS2GOp"): lambda c: bulk_copy(c.bytes, "smem", "gmem", c.element),
    ("cpasync", "CopyBulkS2GByteMaskOp"): lambda c: bulk_copy(c.bytes, "smem", "gmem", c.element, byte_mask=True),
    ("cpasync", "CopyBulkS2SOp"): lambda c: bulk_copy(c.bytes, "smem", "smem", c.element),
    ("cpasync", "CopyDsmemStoreOp"): lambda c: st_async(c.bits, c.element),
}
_CP = {
    "Cp128x256bOp": ("128x256b", ""),
    "Cp128x128bOp": ("128x128b", ""),
    "Cp4x256bOp": ("4x256b", ""),
    "Cp2x64x128b0213Op": ("64x128b", "warpx2::02_13"),
    "Cp2x64x128b0123Op": ("64x128b", "warpx2::01_23"),
    "Cp4x32x128bOp": ("32x128b", "warpx4"),
}
# Tensor copies whose atoms say what they move -> (source, target, what follows the rank in PTX, boxes that one moves).
# The modes ::gather4 and ::scatter4 move four boxes of one row each, whose rows four coordinates name.
_LOAD = "d.shared::cluster.global.tile{}.mbarrier::complete_tx::bytes"
_STORE = "d.global.shared::cta{}.tile{}.bulk_group"
_MULTICAST = ".multicast::cluster"
TENSOR_COPIES = {
    "CopyBulkTensorTileG2SOp": ("gmem", "smem", _LOAD.format(""), 1),
    "CopyBulkTensorTileG2SMulticastOp": ("gmem", "smem", _LOAD.format("") + _MULTICAST, 1),
    "CopyBulkTensorTileS2GOp": ("smem", "gmem", _STORE.format("", ""), 1),
    "CopyReduceBulkTensorTileS2GOp": ("smem", "gmem", _STORE.format(".{}", ""), 1),
    "CopyBulkTensor2DGather4G2SOp": ("gmem", "smem", _LOAD.format("::gather4"), 4),
    "CopyBulkTensor2DGather4G2SMulticastOp": ("gmem", "smem", _LOAD.format("::gather4") + _MULTICAST, 4),
    "CopyBulkTensor2DScatter4S2GOp": ("smem", "gmem", _STORE.format("", "::scatter4"), 4),
}
_TMEM = re.compile(r"(Ld|St)(\d+x\d+bx?2?)Op")
_TMEM_REDUCING = re.compile(r"LdRed(\d+x\d+bx?2?)Op")


def _key(op: object) -> tuple[str, str]:
    parts = type(op).__module__.split(".")
    return parts[3] if len(parts) > 3 else "", type(op).__name__


def _refuse(part: str, name: str) -> None:
    if (part, name) in REFUSED:
        raise AtomError(f"the DSL's {part}.{name} is {REFUSED[part, name]}")


def product_of(op: MmaOp) -> MmaAtom:
    """The atom of one of the DSL's matrix operations. Raises AtomError without one."""
    part, name = _key(op)
    make = PRODUCTS.get((part, name))
    _refuse(part, name)
    if make is None:
        raise AtomError(
            f"the DSL's {part}.{name} has no atom here; the maps of an atom of it are layouts, as in "
            f"from_cute(x.tv_layout_A)"
        )
    return make(op)


def copy_of(op: CopyOp, element: DType | None = None, said: _Copy | None = None) -> CopyAtom:
    """The atom of one of the DSL's copy operations. `element` and what a copy of threads says, a copy atom adds."""
    part, name = _key(op)
    if (part, name) in MATRIX_COPIES:
        base = MATRIX_COPIES[part, name](op)
        return base if element is None else base.recast(element)
    shape = _TMEM.fullmatch(name)
    if part == "tcgen05" and (shape is not None or name in _CP):
        if shape is None:
            group = {"one": 1, "two": 2}[_name(op.cta_group)]
            return tcgen05_cp(*_CP[name], group, element="u8" if element is None else element)
        make, packed = (tcgen05_ld, "pack") if shape[1] == "Ld" else (tcgen05_st, "unpack")
        repeat, pack = int(_name(op.repeat).removeprefix("x")), _name(getattr(op, packed)) != "none"
        return make(shape[2], repeat, pack, element="f32" if element is None else element)
    if part == "tcgen05" and (reducing := _TMEM_REDUCING.fullmatch(name)) is not None:
        if op.nan or (element is not None and element.name != "f32"):
            asked = "one with .NaN" if op.nan else f"that of {element}"
            raise AtomError(
                f"the DSL's {part}.{name} of f32 without .NaN has an atom here, and not {asked}; {MAPS.format('dst')}"
            )
        way = _name(op.redOp)[:3] + (".abs" if _name(op.redOp).endswith("abs") else "")
        # Columns between the halves: the last operand of the instruction, as the DSL writes it into the PTX.
        split = int(op.half_split_off) if reducing[1] == HALVED else None
        return tcgen05_ld(reducing[1], int(_name(op.repeat).removeprefix("x")), split=split, reduce=way)
    if (part, name) in THREAD_COPIES:
        if said is None:
            raise AtomError(f"the DSL's {part}.{name} does not say how many bits it copies: take a copy atom of it")
        if said.attributes and name not in ("CopyG2ROp", "CopyR2GOp"):
            raise AtomError(f"the DSL's {part}.{name} with {said.attributes} has no atom here")
        return THREAD_COPIES[part, name](said)
    _refuse(part, name)
    if "BulkTensor" in name:  # an operation without its atom does not say the box
        raise AtomError(
            f"the DSL's {part}.{name} is a tensor copy, whose box follows from the tensor and the tile: take "
            f"layoutgemm.atoms.tma_load (or tma_store) of from_cute(tensor) and from_cute(tile)"
        )
    raise AtomError(f"the DSL's {part}.{name} has no atom here; {MAPS.format('src')}")


# ---------------------------------------------------------------- atoms and tiled ones


def same(what: str, ours: Layout, theirs: Layout) -> None:
    """Raises AtomError unless both are one function, mode by mode of the same size."""
    sizes = [[int(mode.size) for mode in layout] for layout in (ours, theirs)]
    verdict = ours.equivalent(theirs)
    if sizes[0] != sizes[1] or not verdict:
        why = f"modes of {sizes[0]} and {sizes[1]}" if sizes[0] != sizes[1] else verdict.explain()
        raise AtomError(f"{what} is {ours} here and {theirs} in the DSL: {why}")


def mma_atom(x: cute.MmaAtom) -> MmaAtom:
    """The atom of the DSL's MmaAtom, or of the atom in its TiledMma."""
    atom, kind = product_of(x.op), x.type
    for operand in "ABC":
        theirs = static_layout(getattr(kind, f"layout_{operand.lower()}_tv"))
        same(f"operand {operand} of {atom}", atom.layout(operand), theirs)
    return atom


def copy_atom(x: cute.CopyAtom, spaces: tuple[str, str]) -> CopyAtom:
    """The atom of the DSL's CopyAtom, or of the atom in its TiledCopy."""
    if type(x.op).__name__ in TENSOR_COPIES:
        return tensor_copy(x)
    kind, element = x.type, element_of(x.value_type)
    theirs = {side: static_layout(getattr(kind, f"layout_{side}_tv")) for side in ("src", "dst")}
    written = re.findall(r"(\w+) = (\w+)", str(kind))
    attributes = dict(_ATTRIBUTES[key](value) for key, value in written if key in _ATTRIBUTES)
    if attributes.get("order") in ("relaxed", "acquire", "release"):
        attributes.setdefault("scope", "cta")  # the default, which the type leaves out
    bits = int(theirs["src"][1].size) * element.bits
    atom = copy_of(x.op, element, _Copy(x.op, bits, element, spaces, attributes))
    for side, layout in theirs.items():
        same(f"side {side} of {atom}", atom.layout(side), layout)
    return atom


def tensor_box(x: cute.CopyAtom) -> Layout:
    """The box of the DSL's atom of a tensor copy, as the DSL found it. It maps value -> coordinate in the tensor."""
    basis = re.search(r'tma_gbasis = <"([^"]*)">', str(x.type))
    if basis is None:
        raise AtomError(f"the DSL's {type(x.op).__name__} says no box in {x.type}")
    return Layout.parse(basis[1])


def tensor_copy(x: cute.CopyAtom) -> CopyAtom:
    """The DSL's atom of a tensor copy. One instruction of one thread, whose values are the box in its order.

    The box and its dimensions stand in the atom's type. Which tensor and which tile of shared memory they belong to
    stands nowhere in it: what needs those (coordinates, swizzle, the tensor map's rules) is asked of `tma_load`.

    A gather or scatter has a box of one row, and four of them: what counts rows is then which of the four coordinates,
    and not a row of the tensor. PTX ISA, "Tiled mode": the rows lie one after the other in shared memory.
    """
    kind, element = x.type, element_of(x.value_type)
    source, target, form, boxes = TENSOR_COPIES[type(x.op).__name__]
    box = tensor_box(x)
    if boxes > 1:
        if box.rank != 2 or box.shape[1] != 1:
            raise AtomError(f"a gather's or scatter's box has one row; the DSL found {box}")
        box = Layout((box.shape[0], boxes), box.stride)
    reduction = re.search(r"tma_reduce<(\w+)", str(kind))
    prefix = "cp.reduce.async" if reduction else "cp.async"
    ptx = f"{prefix}.bulk.tensor.{box.rank}{form.format(reduction[1].lower()) if reduction else form}"
    value = Layout((1, int(box.size)), (0, 1))
    for side in ("src", "dst"):
        same(f"side {side} of {ptx}", value, static_layout(getattr(kind, f"layout_{side}_tv")))
    return CopyAtom(ptx, since("sm_100" if boxes > 1 else "sm_90"), element, 1, source, target, value, value,
                    'PTX ISA, "cp.async.bulk.tensor"; the box as the DSL found it', None,
                    box if box.rank == 2 else None)  # fmt: skip


def tiled_mma(x: cute.TiledMma) -> TiledMma:
    """The DSL's TiledMma, compared with it over every operand."""
    atom, kind = mma_atom(x), x.type
    threads = static_layout(kind.thr_layout_vmnk)
    _, *counts = threads
    atoms = Layout.join(*(_divided(count, atom.threads) for count in counts))
    tiled = TiledMma(atom, atoms, _tile(kind.permutation_mnk))
    same(f"the threads of {atom} over {atoms}", tiled.thr_layout_vmnk, threads)
    # With atoms along K the DSL's tiled map of C gives the threads of all but the first places outside the tile, while
    # its partition_C puts them where they belong (tests/atoms/tiled/test_against_dsl.py): that map says nothing here.
    for operand in "ABC" if atoms[2].size == 1 else "AB":
        theirs = static_layout(getattr(kind, f"layout_{operand.lower()}_tv_tiled"))
        same(f"operand {operand} of {atom} tiled", tiled.tv_layout(operand), theirs)
    return tiled


def tiled_copy(x: cute.TiledCopy, spaces: tuple[str, str]) -> TiledCopy:
    """The DSL's TiledCopy, compared with it on both sides."""
    atom, kind = copy_atom(x, spaces), x.type
    tiled = TiledCopy(atom, static_layout(kind.layout_tv_tiled), _tile(kind.tiler_mn))
    for side in ("src", "dst"):
        theirs = static_layout(getattr(kind, f"layout_{side}_tv_tiled"))
        same(f"side {side} of {atom} tiled", tiled.tv_layout(side), theirs)
    return tiled


def _tile(kind: object) -> tuple[Layout | int | None, ...]:
    """A tile of the DSL's notation, [32:1;_;(8,2):(1,16)]: an int n for a mode of the first n elements."""
    found = re.search(r'"\[(.*)\]"', str(kind))
    if found is None:
        raise LayoutError(f"the tile {kind} has no modes")
    out: list[Layout | int | None] = []
    for part in found[1].split(";"):
        if "[" in part:
            raise LayoutError(f"the tile {kind} has a tile within a mode, which no tiler here has")
        layout = None if part == "_" else Layout.parse(part) if ":" in part else int(part)
        plain = isinstance(layout, Layout) and layout.depth == 0 and layout.stride == 1
        out.append(layout.size if isinstance(layout, Layout) and plain else layout)
    return tuple(out)


def _divided(layout: Layout, by: int) -> Layout:
    def each(stride: Any) -> Any:
        if isinstance(stride, tuple):
            return tuple(map(each, stride))
        if stride % by:
            raise AtomError(f"the atoms' threads {layout} do not lie whole warps of {by} threads apart")
        return stride // by

    return Layout(layout.shape, each(layout.stride))
