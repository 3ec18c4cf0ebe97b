"""The bridge's conversions: layouts, atoms and tiled ones as objects of the CuTe DSL.

    object here                          the DSL's
    ---------------------------------    ---------------------------------------------------
    Layout, Swizzle, ComposedLayout      make_layout, make_swizzle, make_composed_layout
    MmaAtom                              MmaUniversalOp; warp, warpgroup, tcgen05 operations
    CopyAtom                             CopyUniversalOp, CopyG2SOp, LdMatrix, StMatrix, tcgen05 Ld and St operations
    TiledMma, TiledCopy                  make_tiled_mma, make_tiled_copy
    TmaPlan, with the tensor             make_tiled_tma_atom

Every atom is turned back and compared before it is returned: what the DSL makes is what was asked for, or an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass._mlir import ir
from cutlass.cute import nvgpu
from cutlass.cute.atom import CopyOp, MmaOp
from cutlass.cute.nvgpu import cpasync, tcgen05, warp, warpgroup
from cutlass.cutlass_dsl import CuTeDSL

from layoutgemm.arguments import shown
from layoutgemm.atoms import CopyAtom, MmaAtom, SmemTile, TiledCopy, TiledMma, TmaPlan, TmemCopyAtom, VectorCopy
from layoutgemm.atoms.mma.tcgen05 import Tcgen05Atom
from layoutgemm.atoms.tma.rules import MODES
from layoutgemm.dtypes import DType
from layoutgemm.errors import AtomError, LayoutError
from layoutgemm.interop.cute_reader import tensor_layout
from layoutgemm.interop.dsl_atoms import copy_atom, mma_atom, tensor_box
from layoutgemm.interop.dsl_layouts import ELEMENTS
from layoutgemm.interop.unsupported import UnsupportedObject
from layoutgemm.layouts import ComposedLayout, Layout, ScaledBasis, Swizzle
from layoutgemm.layouts.symbols.dims import parse_entry
from layoutgemm.layouts.symbols.polynomial import Polynomial, show

_TYPES = {ours: theirs for theirs, ours in ELEMENTS.items()} | {"ue4m3": "Float8E4M3FN"}
_MMA_ARGUMENTS = ("a_major", "b_major")


# The DSL's objects point into the module they were made in, and to touch one whose module is gone ends the process. One
# context serves all modules made here, and they are kept: some kilobytes each, where a context takes a megabyte.
_kept: list[Any] = []


def _in_trace() -> bool:
    try:
        return ir.InsertionPoint.current is not None
    except ValueError:
        return False


@contextmanager
def context(arch: str | None = None) -> Iterator[None]:
    """A compiler's context, so that the DSL's objects can be made outside a kernel.

    >>> from layoutgemm.atoms import ldmatrix, wgmma
    >>> with context("sm_90a"):
    ...     theirs = Layout((8, (4, 2)), (1, (8, 32))).to_cute()
    ...     print(theirs, wgmma(64).to_cute().op.shape_mnk, ldmatrix(4, element="bf16").to_cute().layout_dst_tv)
    (8,(4,2)):(1,(8,32)) (64, 64, 16) (32,(2,4)):(2,(1,64))
    """
    if _in_trace():
        raise LayoutError("a trace is under way, and has a context of its own")
    environment = CuTeDSL._get_dsl().envar
    before = environment.arch
    if arch is not None:
        environment.arch = arch
    try:
        if not _kept:
            _kept.append(ir.Context())
        with _kept[0], ir.Location.unknown():
            module = ir.Module.create()
            _kept.append(module)
            with ir.InsertionPoint(module.body):
                yield
    finally:
        environment.arch = before


def to_cute(x: object, **values: Any) -> Any:
    """See interop.to_cute."""
    if not _in_trace():
        raise LayoutError(
            f"{x}: an object of the CuTe DSL is made in a trace: inside @cute.jit or @cute.kernel, or under "
            f"`with layoutgemm.interop.cute_context():`"
        )
    if isinstance(x, (Layout, ComposedLayout)):
        return layout(x, values)
    if isinstance(x, TmaPlan):
        return tensor_copy(x, **values)
    unknown = [name for name in values if name not in _MMA_ARGUMENTS or not isinstance(x, (MmaAtom, TiledMma))]
    if unknown:
        raise LayoutError(f"{x} has no {unknown[0]} to give a value")
    if isinstance(x, Swizzle):
        return cute.make_swizzle(x.bits, x.base, x.shift)
    if isinstance(x, MmaAtom):
        return _checked(x, cute.make_mma_atom(operation(x, **values)))
    if isinstance(x, TiledMma):
        atom = _checked(x.atom, cute.make_mma_atom(operation(x.atom, **values)))
        permutation = tuple([layout(p, {}) if isinstance(p, Layout) else p for p in x.permutation])
        return cute.make_tiled_mma(atom, layout(x.atom_layout, {}), permutation)
    if isinstance(x, CopyAtom):
        return make_copy(x)
    if isinstance(x, TiledCopy):
        tiler = tuple([layout(t if isinstance(t, Layout) else Layout(t), {}) for t in x.tiler])
        return cute.make_tiled_copy(make_copy(x.atom), layout(x.layout_tv, {}), tiler)
    raise UnsupportedObject(
        f"to_cute takes layouts, swizzles, atoms, tiled ones and tensor copies, not {type(x).__name__}"
    )


# ---------------------------------------------------------------- layouts


def layout(x: Layout | ComposedLayout, values: Mapping[str, object]) -> cute.Layout | cute.ComposedLayout:
    """A Layout or ComposedLayout as the DSL's; `values` are its symbols' values."""
    if isinstance(x, ComposedLayout):
        if isinstance(x.layout, ComposedLayout):
            raise LayoutError(f"{x}: the DSL's composed layouts end with a plain layout")
        swizzle = cute.make_swizzle(x.swizzle.bits, x.swizzle.base, x.swizzle.shift)
        return cute.make_composed_layout(swizzle, _entry(x.offset, values), layout(x.layout, values))
    return cute.make_layout(_entry(x.shape, values), stride=_entry(x.stride, values))


def _entry(x: object, values: Mapping[str, object]) -> object:
    if isinstance(x, tuple):
        return tuple([_entry(y, values) for y in x])
    if isinstance(x, ScaledBasis):
        return cute.ScaledBasis(_entry(x.value, values), list(x.path))
    if not isinstance(x, Polynomial):
        return x

    def value(name: str) -> Any:  # an int, or the DSL's traced integer
        if name not in values:
            given = f"only {', '.join(values)} is given" if values else "give it as to_cute(name=value)"
            raise LayoutError(f"the entry {show(x)} needs a value of {name}, and {given}")
        return values[name]

    return parse_entry(show(x), value)


# ---------------------------------------------------------------- products


def _type(of: DType) -> type[cutlass.Numeric]:
    if of.name not in _TYPES:
        raise LayoutError(f"the CuTe DSL has no type for {of}")
    return getattr(cutlass, _TYPES[of.name])


def operation(atom: MmaAtom, a_major: str = "K", b_major: str = "K") -> MmaOp:
    """The DSL's operation of a matrix atom. Raises AtomError where it has none."""
    for operand, major, legal in (("A", a_major, atom.a_majors), ("B", b_major, atom.b_majors)):
        if major not in legal:
            raise AtomError(f"{operand} of {atom} is {' or '.join(legal)}-major, not {shown(major)}")
    a, b, c = (_type(of) for of in (atom.a_dtype, atom.b_dtype, atom.c_dtype))
    name, shape = atom.ptx.partition(".")[0], atom.shape_mnk
    if "satfinite" in atom.ptx or atom.d_dtype is not None or atom.thread_ids is not None:
        raise AtomError(f"the CuTe DSL has no operation for {atom}")
    majors = [getattr(nvgpu.OperandMajorMode, major) for major in (a_major, b_major)]
    if isinstance(atom, Tcgen05Atom):
        return _tcgen05_operation(atom, (a, b, c), majors)
    if name == "fma":
        return nvgpu.MmaUniversalOp(a)
    if name == "wgmma":
        source = getattr(warpgroup.OperandSource, atom.a_source.upper())
        if atom.a_dtype.bits == 16:
            return warpgroup.MmaF16BF16Op(a, c, shape, source, *majors)
        kind = {("float", 8): warpgroup.MmaF8Op, ("int", 8): warpgroup.MmaI8Op, ("uint", 8): warpgroup.MmaI8Op}
        if (op := kind.get((atom.a_dtype.kind, atom.a_dtype.bits))) is not None:
            return op(a, b, c, shape, source, *majors)
    if name == "mma" and atom.scale is not None:
        scale = _type(atom.scale.dtype)
        if ".kind::mxf8f6f4." in atom.ptx:
            return warp.MmaMXF8F6F4Op(a, b, c, scale)
        return (warp.MmaMXF4NVF4Op if ".kind::mxf4nvf4." in atom.ptx else warp.MmaMXF4Op)(a, c, scale)
    if name == "mma" and atom.a_dtype == atom.b_dtype and "kind::" not in atom.ptx:
        if atom.a_dtype.name in ("f16", "bf16"):
            return warp.MmaF16BF16Op(a, c, shape)
        if atom.a_dtype.name in ("e4m3", "e5m2"):
            return warp.MmaFP8Op(a, c, shape)
        if atom.a_dtype.name == "tf32":
            return warp.MmaTF32Op(shape)
    raise AtomError(f"the CuTe DSL has no operation for {atom}")


def _tcgen05_operation(
    atom: Tcgen05Atom, types: tuple[type[cutlass.Numeric], ...], majors: list[nvgpu.OperandMajorMode]
) -> MmaOp:
    a, b, c = types
    group = tcgen05.CtaGroup.ONE if atom.cta_group == 1 else tcgen05.CtaGroup.TWO
    where = (atom.shape_mnk, group, getattr(tcgen05.OperandSource, atom.a_source.upper()))
    if atom.ws or atom.sparse or atom.archs[0] != "sm_100a":
        raise AtomError(f"{atom} for {atom.archs[0]} is not made for the CuTe DSL here: dense products of sm_100a are")
    if atom.kind == "f16":
        return tcgen05.MmaF16BF16Op(a, c, *where, *majors)
    if atom.kind == "tf32":
        return tcgen05.MmaTF32Op(*where, *majors)
    if atom.kind == "i8" and a is not b:
        raise AtomError(f"{atom} of {atom.a_dtype} and {atom.b_dtype}: the CuTe DSL's operation has one type for both")
    if atom.kind == "i8":
        return tcgen05.MmaI8Op(a, *where, *majors)
    if atom.kind == "f8f6f4":
        return tcgen05.MmaF8F6F4Op(a, b, c, *where, *majors)
    assert atom.scale is not None
    if atom.kind == "mxf8f6f4":
        return tcgen05.MmaMXF8F6F4Op(a, b, *where, *majors)
    if atom.kind == "mxf4":
        return tcgen05.MmaMXF4Op(*where)
    return tcgen05.MmaMXF4NVF4Op(_type(atom.scale.dtype), *where)


def _checked(atom: MmaAtom, made: cute.MmaAtom) -> cute.MmaAtom:
    back = mma_atom(made)
    if back != atom:
        raise AtomError(f"the CuTe DSL makes {back} of {atom.shape_mnk} for {atom} of {atom.shape_mnk}")
    return made


# ---------------------------------------------------------------- copies

_MATRIX = re.compile(
    r"(ldmatrix|stmatrix)\.sync\.aligned\.(m\d+n\d+)\.x(\d)(\.trans)?\.shared\.(b16|b8|b8x16\.b[46]x16_p\d+)"
)


def make_copy(atom: CopyAtom) -> cute.CopyAtom:
    """The DSL's copy atom of one here. Raises AtomError where it has none."""
    made = _make_copy(atom)
    back = copy_atom(made, (atom.source, atom.target))
    # The compiler's integers have no sign: what is made of u16 says i16.
    if back.element.bits != atom.element.bits or replace(back, element=atom.element) != atom:
        raise AtomError(f"the CuTe DSL makes {back} for {atom}, counted in {back.element} and {atom.element}")
    return made


def _make_copy(atom: CopyAtom) -> cute.CopyAtom:
    element = _type(atom.element)
    if (op := _matrix_operation(atom)) is not None:
        return cute.make_copy_atom(op, element)
    if isinstance(atom, TmemCopyAtom) and "rmem" in (atom.source, atom.target):
        load = atom.target == "rmem"
        if atom.reduction:
            return cute.make_copy_atom(_reducing(atom), element)
        kind = getattr(tcgen05, f"{'Ld' if load else 'St'}{atom.shape}Op")
        packed = (tcgen05.Pack.PACK_16b_IN_32b if load else tcgen05.Unpack.UNPACK_32b_IN_16b) if atom.pack else None
        repeat = getattr(tcgen05.Repetition, f"x{atom.repeat}")
        return cute.make_copy_atom(kind(repeat) if packed is None else kind(repeat, packed), element)
    bits = atom.values_per_thread("src") * atom.element.bits
    if isinstance(atom, VectorCopy):
        return cute.make_copy_atom(nvgpu.CopyUniversalOp(), element, num_bits_per_copy=bits)
    if (found := re.match(r"cp\.async\.(ca|cg)\.shared\.global", atom.ptx)) is not None:
        mode = {"ca": cpasync.LoadCacheMode.ALWAYS, "cg": cpasync.LoadCacheMode.GLOBAL}[found[1]]
        return cute.make_copy_atom(cpasync.CopyG2SOp(mode), element, num_bits_per_copy=bits)
    if ".bulk.tensor." in atom.ptx:
        raise AtomError(
            f"{atom}: the DSL makes a tensor copy of a tensor and a tile, and an atom has neither: take "
            f"tma_load(from_cute(tensor), from_cute(tile, unit='bytes', ...)).to_cute(tensor=tensor), or tma_store"
        )
    raise AtomError(f"{atom} is not made for the CuTe DSL here: vectors, cp.async, matrix and tensor-memory copies are")


def _reducing(atom: TmemCopyAtom) -> CopyOp:
    """The DSL's operation of a tcgen05.ld.red."""
    way = getattr(tcgen05.TmemLoadRedOp, atom.reduction.replace(".", "").upper())
    parts = getattr(tcgen05.Repetition, f"x{atom.repeat}"), tcgen05.Pack.NONE, way, False
    if atom.split is None:
        return tcgen05.copy.LdRed32x32bOp(*parts)
    return tcgen05.copy.LdRed16x32bx2Op(*parts, atom.split)


def tensor_copy(
    plan: TmaPlan, tensor: cute.Tensor | None = None, **unknown: object
) -> tuple[cute.CopyAtom, cute.Tensor]:
    """make_tiled_tma_atom of a DSL tensor and the plan's tile: atom, coordinates, `smem_layout`.

    Raises AtomError for another tensor than the plan's, and where the DSL finds other boxes.
    """
    if unknown or tensor is None:
        given = f"not {', '.join(unknown)}" if unknown else "and none is given"
        raise LayoutError(f"a tensor copy is made for a tensor of the DSL: give it as to_cute(tensor=mA), {given}")
    theirs = tensor_layout(tensor)
    if theirs.element is None or _unsigned(theirs.element) != _unsigned(plan.dtype):
        raise AtomError(f"the plan copies {plan.dtype}, and the tensor has {theirs.element or tensor.element_type}")
    gmem = theirs.layout
    if isinstance(gmem, Layout) and plan.gmem is not None and not (gmem._symbolic or plan.gmem._symbolic):
        verdict = gmem.equivalent(plan.gmem)
        if not verdict:
            raise AtomError(f"the plan's tensor is {plan.gmem}, and this one {gmem}: {verdict.explain()}")
    plain = plan.smem.layout if isinstance(plan.smem, (SmemTile, ComposedLayout)) else plan.smem
    part = isinstance(plan.smem, (SmemTile, ComposedLayout)) and plan.smem.offset != 0
    if not isinstance(plain, Layout) or part:
        raise AtomError(f"the plan has no tile that the DSL takes, but {plan.smem}: derive it by tma_load or tma_store")
    shared, mode = layout(plain, {}), MODES[plan.swizzle]
    if mode.bits:  # of byte addresses, as the DSL has it for tiles in shared memory
        shared = cute.make_composed_layout(cute.make_swizzle(mode.bits, mode.base, mode.shift), 0, shared)
    tiler = tuple([layout(t, {}) if isinstance(t, Layout) else t for t in plan.tile])
    made = cpasync.make_tiled_tma_atom(_tensor_operation(plan), tensor, shared, tiler, plan.multicast)
    box = tensor_box(made[0])
    found, count = tuple(box.flatten().shape), int(plain.size) // plan.stages // int(box.size)
    if found != plan.box or count != len(plan.instructions):
        raise AtomError(
            f"the DSL copies {count} x {found} and the plan {len(plan.instructions)} x {plan.box}: copy with "
            "load_tile, send_tile or store_tile of layoutgemm.kernels.dsl.bridge, which take the plan as it is"
        )
    return made


def _unsigned(kind: DType) -> str:
    """A type's name; of integers the width alone: the compiler's have no sign."""
    return f"integer of {kind.bits}" if kind.kind in ("int", "uint") else kind.name


def _tensor_operation(plan: TmaPlan) -> CopyOp:
    if plan.operation == "load":
        many = plan.multicast > 1
        return cpasync.CopyBulkTensorTileG2SMulticastOp() if many else cpasync.CopyBulkTensorTileG2SOp()
    if plan.operation == "store":
        return cpasync.CopyBulkTensorTileS2GOp()
    return cpasync.CopyReduceBulkTensorTileS2GOp(getattr(cute.ReductionKind, plan.reduction.upper()))


def _matrix_operation(atom: CopyAtom) -> CopyOp | None:
    found = _MATRIX.fullmatch(atom.ptx)
    if found is None:
        return None
    name, shape, count, transposed, form = found.groups()
    transpose, matrices = transposed is not None, int(count)
    unpack = int(form[7]) if form.startswith("b8x16") else None
    kind = {
        ("ldmatrix", "m8n8"): warp.LdMatrix8x8x16bOp,
        ("ldmatrix", "m8n16"): warp.LdMatrix8x16x8bOp,
        ("ldmatrix", "m16n16"): warp.LdMatrix16x16x8bOp,
        ("stmatrix", "m8n8"): warp.StMatrix8x8x16bOp,
        ("stmatrix", "m16n8"): warp.StMatrix16x8x8bOp,
    }[name, shape]
    return kind(transpose, matrices) if unpack is None else kind(transpose, matrices, unpack)
