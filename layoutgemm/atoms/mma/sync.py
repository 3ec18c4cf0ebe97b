"""The warp's matrix products: every dense mma.sync of PTX, from sm_70 to sm_121a.

One table lists the shapes, types and accumulators, and the first target of each. `fragments.fragment` gives the
thread-value layouts of all of them from the shape and the bits of the types.

Source: PTX ISA, "Multiply-and-Accumulate Instruction: mma" (syntax, restrictions and "Target ISA Notes") and "Block
Scaling for mma.sync" (table of valid combinations of kind, types and scale vector size).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...arguments import checked, shown
from ...dtypes import DType, dtype
from ...errors import AtomError
from ..targets import since
from .base import NARROW, Container, MmaAtom, ScaleFactors
from .warp_fragments import QUAD_PAIR_LANES, fragment, quad_pair, run_of, scale_fragment

Shape = tuple[int, int, int]
_FAMILY_120 = ("sm_120a", "sm_121a")


@dataclass(frozen=True, slots=True)
class SyncForm:
    """One row of the table. A and B each of one of `types`, accumulators, shapes, where, and the qualifiers."""

    types: tuple[str, ...]
    shapes: tuple[Shape, ...]
    accumulators: tuple[str, ...]
    archs: tuple[str, ...]
    kind: str | None = None
    scales: tuple[tuple[str, int], ...] = ()  # (type of the factors, elements along K that share one)


FORMS = (
    SyncForm(("f16",), ((8, 8, 4),), ("f16", "f32"), since("sm_70")),
    SyncForm(("f16",), ((16, 8, 8),), ("f16", "f32"), since("sm_75")),
    SyncForm(("f16",), ((16, 8, 16),), ("f16", "f32"), since("sm_80")),
    SyncForm(("bf16",), ((16, 8, 8), (16, 8, 16)), ("f32",), since("sm_80")),
    SyncForm(("tf32",), ((16, 8, 4), (16, 8, 8)), ("f32",), since("sm_80")),
    SyncForm(("f64",), ((8, 8, 4),), ("f64",), since("sm_80")),
    SyncForm(("f64",), ((16, 8, 4), (16, 8, 8), (16, 8, 16)), ("f64",), since("sm_90")),
    SyncForm(("i8", "u8"), ((8, 8, 16),), ("i32",), since("sm_75")),
    SyncForm(("i8", "u8"), ((16, 8, 16), (16, 8, 32)), ("i32",), since("sm_80")),
    SyncForm(("i4", "u4"), ((8, 8, 32),), ("i32",), since("sm_75")),
    SyncForm(("i4", "u4"), ((16, 8, 32), (16, 8, 64)), ("i32",), since("sm_80")),
    SyncForm(("b1",), ((8, 8, 128),), ("i32",), since("sm_75")),
    SyncForm(("b1",), ((16, 8, 128), (16, 8, 256)), ("i32",), since("sm_80")),
    SyncForm(("e4m3", "e5m2"), ((16, 8, 16), (16, 8, 32)), ("f16", "f32"), since("sm_89")),
    SyncForm(NARROW, ((16, 8, 32),), ("f16", "f32"), _FAMILY_120, "f8f6f4"),
    SyncForm(NARROW, ((16, 8, 32),), ("f32",), _FAMILY_120, "mxf8f6f4", (("ue8m0", 32),)),
    SyncForm(("e2m1",), ((16, 8, 64),), ("f32",), _FAMILY_120, "mxf4", (("ue8m0", 32),)),
    SyncForm(
        ("e2m1",), ((16, 8, 64),), ("f32",), _FAMILY_120, "mxf4nvf4", (("ue4m3", 16), ("ue8m0", 32), ("ue8m0", 16))
    ),
)
# The logical operation of a one-bit product, and the target from which it exists where that is not the shape's.
BIT_OPS = {"xor": "sm_75", "and": "sm_80"}
# In these kinds an element sits in a byte: e2m1 in the middle four bits, the six-bit types in the lower six.
_BYTE_KINDS = ("f8f6f4", "mxf8f6f4")
_LOW_BIT = {"e2m1": 2}
_VOLTA: Shape = (8, 8, 4)
_INTEGER = {"i": "s", "u": "u"}


@checked(AtomError)
def mma_sync(
    shape: Shape | str,
    a: DType | str = "bf16",
    b: DType | str | None = None,
    c: DType | str | None = None,
    d: DType | str | None = None,
    *,
    layouts: tuple[str, str] = ("row", "col"),
    saturate: bool = False,
    bit_op: str = "xor",
    kind: str | None = None,
    scale: DType | str | None = None,
    vector: int | None = None,
) -> MmaAtom:
    """The warp's product mma.sync of a shape and types, all operands in registers.

    shape    (M, N, K) in elements, or "m16n8k16"
    a, b     types of A and B; b is a's unless given
    c, d     accumulator types; c is f32 (i32, f64 where the inputs are integers, f64) unless given, d is c's
    layouts  majorness of A and B: ("row", "col"), and for m8n8k4 on f16 every other pair of these
    saturate clamp to i32 where an integer accumulator would wrap (.satfinite)
    bit_op   "xor" or "and", of b1 inputs
    kind     "f8f6f4", "mxf8f6f4", "mxf4" or "mxf4nvf4", on sm_120a and sm_121a
    scale, vector   format of the block scales and how many elements along K share one, where the kind leaves a choice

    The layouts come from one formula (module `fragments`): with t the lane, v the value, p = max(1, 32 // bits)
    elements to a register and H = M // 8 blocks of rows,
        A: row t//4 + 8*((v//p) % H),  k = p*(t%4) + v%p + 4*p*(v//(p*H))
        B: row t//4 (a column of the product),  k = p*(t%4) + v%p + 4*p*(v//p)
        C: row t//4 + 8*((v//2) % H),  column 2*(t%4) + v%2

    m8n8k4 on f16 is four products at once: the maps are those of one quad pair, `thread_ids` gives its lanes, and pair
    i adds 4*i. Raises AtomError for whatever PTX has not, naming what it has.

    >>> print(mma_sync((16, 8, 16)), mma_sync((16, 8, 16)).layout_A)
    mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 ((4,8),(2,2,2)):((32,1),(16,8,128))
    >>> print(mma_sync("m16n8k64", "e2m1", kind="mxf4").scale.layout_A)
    ((2,2,8),2):((8,0,1),16)
    >>> mma_sync((16, 8, 8), "tf32", c="f16")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.AtomError: mma.sync m16n8k8 of tf32 and tf32 accumulates in f32, not in f16
    """
    mnk = _shape(shape)
    a_type = dtype(a)
    b_type = a_type if b is None else dtype(b)
    form = _form(mnk, a_type, b_type, kind)
    c_type = dtype(c) if c is not None else dtype(form.accumulators[-1])
    d_type = c_type if d is None else dtype(d)
    what = f"mma.sync {_text(mnk)} of {a_type} and {b_type}"
    volta = mnk == _VOLTA and a_type.name == "f16"
    _check_accumulators(what, form, c_type, d_type, volta)
    _check_options(what, a_type, c_type, volta, layouts, saturate, bit_op)
    factors = _scale(form, what, mnk, scale, vector)
    archs = form.archs
    if a_type.bits == 1:
        archs = tuple([target for target in archs if target in since(BIT_OPS[bit_op])])
    in_bytes = kind in _BYTE_KINDS
    m, n, k = mnk
    if volta:
        map_a = quad_pair("A", along_k=layouts[0] == "row")
        map_b = quad_pair("B", along_k=layouts[1] == "col")
        map_c, map_d = quad_pair("C", bits=c_type.bits), quad_pair("C", bits=d_type.bits)
    else:
        map_a = fragment(m, k, run_of(8 if in_bytes else a_type.bits))
        map_b = fragment(n, k, run_of(8 if in_bytes else b_type.bits))
        map_c = map_d = fragment(m, n, 2)
    return MmaAtom(
        ptx=_ptx(mnk, (d_type, a_type, b_type, c_type), form, layouts, saturate, bit_op, factors),
        archs=archs,
        shape_mnk=mnk,
        a_dtype=a_type,
        b_dtype=b_type,
        c_dtype=c_type,
        d_dtype=None if d_type == c_type else d_type,
        threads=8 if volta else 32,
        thread_ids=QUAD_PAIR_LANES if volta else None,
        layout_A=map_a,
        layout_B=map_b,
        layout_C=map_c,
        layout_D=None if d_type == c_type else map_d,
        a_source="rmem",
        b_source="rmem",
        source=f'PTX ISA, "Matrix Fragments for mma.{_text(mnk)}"',
        scale=factors,
        a_container=_container(a_type) if in_bytes else None,
        b_container=_container(b_type) if in_bytes else None,
    )


def _check_accumulators(what: str, form: SyncForm, c: DType, d: DType, volta: bool) -> None:
    """Raise AtomError for types of C and D that the form has not; `volta`: for m8n8k4 on f16."""
    for wanted in (c, d):
        if wanted.name not in form.accumulators:
            raise AtomError(f"{what} accumulates in {' or '.join(form.accumulators)}, not in {wanted}")
    if c != d and not (volta and d.name == "f32"):
        only = "takes C and D of one type, or C f16 and D f32" if volta else "takes C and D of one type"
        raise AtomError(f"{what} {only}; got C {c} and D {d}")


def _check_options(
    what: str, a: DType, c: DType, volta: bool, layouts: tuple[str, str], saturate: bool, bit_op: str
) -> None:
    """Raise AtomError for majors, a saturation or a bit operation that the types have not."""
    if tuple(layouts) != ("row", "col") and not (volta and len(layouts) == 2 and set(layouts) <= {"row", "col"}):
        raise AtomError(
            f'{what} takes A "row" and B "col"{" or any other pair of these" if volta else ""}, not {shown(layouts)}'
        )
    if saturate and not (c.name == "i32" and a.bits > 1):
        raise AtomError(f"{what} does not saturate: .satfinite is for 8-bit and 4-bit integers")
    if bit_op not in BIT_OPS or (bit_op != "xor" and a.bits > 1):
        raise AtomError(f'{what} has no bit operation {shown(bit_op)}: b1 has "xor" and "and", other types none')


def mma_sync_atoms() -> Iterator[MmaAtom]:
    """Every dense mma.sync, in each form. A form has all its types, accumulators, majors, saturation, operations and
    scales."""
    for form in FORMS:
        for mnk, a, b in product(form.shapes, form.types, form.types):
            volta = mnk == _VOLTA and a == "f16"
            for c, d in product(form.accumulators, form.accumulators):
                if c != d and not (volta and d == "f32"):
                    continue
                if volta:
                    for majors in product(("row", "col"), ("row", "col")):
                        yield mma_sync(mnk, a, b, c, d, layouts=majors)
                elif form.scales:
                    for name, vector in form.scales:
                        yield mma_sync(mnk, a, b, c, d, kind=form.kind, scale=name, vector=vector)
                elif a == "b1":
                    for bit_op in BIT_OPS:
                        yield mma_sync(mnk, a, b, c, d, bit_op=bit_op)
                else:
                    for saturate in (False, True) if c == "i32" else (False,):
                        yield mma_sync(mnk, a, b, c, d, kind=form.kind, saturate=saturate)


def _shape(shape: Shape | str) -> Shape:
    if isinstance(shape, str):
        found = re.fullmatch(r"m(\d+)n(\d+)k(\d+)", shape)
        if found is None:
            raise AtomError(f"{shown(shape)} is no shape: write (16, 8, 16) or 'm16n8k16'")
        return (int(found[1]), int(found[2]), int(found[3]))
    return shape


def _text(mnk: Shape) -> str:
    return "m{}n{}k{}".format(*mnk)


def _form(mnk: Shape, a: DType, b: DType, kind: str | None) -> SyncForm:
    """The row of the table; raises AtomError that names PTX's kinds, types or shapes."""
    kinds = sorted({form.kind for form in FORMS if form.kind is not None})
    if kind is not None and kind not in kinds:
        raise AtomError(f"mma.sync has no kind {shown(kind)}; it has {', '.join(kinds)}, or none")
    of_kind = [form for form in FORMS if form.kind == kind]
    named = f" of kind {kind}" if kind else ""
    typed = [form for form in of_kind if a.name in form.types and b.name in form.types]
    if not typed:
        sets = " | ".join(dict.fromkeys(" ".join(form.types) for form in of_kind))
        elsewhere = sorted({str(form.kind) for form in FORMS if a.name in form.types and b.name in form.types})
        hint = f"; kind {' or '.join(elsewhere)} takes them" if elsewhere and kind is None else ""
        raise AtomError(f"mma.sync{named} takes A and B both from one of: {sets}; got A {a} and B {b}{hint}")
    for form in typed:
        if mnk in form.shapes:
            return form
    shapes = ", ".join(_text(shape) for form in typed for shape in form.shapes)
    raise AtomError(f"mma.sync{named} of {a} and {b} has {shapes}; it has no {_text(mnk)}")


def _scale(form: SyncForm, what: str, mnk: Shape, scale: DType | str | None, vector: int | None) -> ScaleFactors | None:
    if not form.scales:
        if scale is not None or vector is not None:
            raise AtomError(f"{what} has no block scales: kinds mxf8f6f4, mxf4 and mxf4nvf4 have them")
        return None
    wanted = None if scale is None else dtype(scale).name
    found = [pair for pair in form.scales if wanted in (None, pair[0]) and vector in (None, pair[1])]
    if len(found) != 1:
        choices = ", ".join(f"{name} for {count} elements" for name, count in form.scales)
        verb = "leaves a choice" if found else "is not there"
        raise AtomError(f"{what}, kind {form.kind}, scales by {choices}; scale={scale}, vector={vector} {verb}")
    (name, count), (m, n, k) = found[0], mnk
    return ScaleFactors(dtype(name), count, scale_fragment(m, k // count), scale_fragment(n, k // count))


def _container(of: DType) -> Container | None:
    return None if of.bits == 8 else Container(8, _LOW_BIT.get(of.name, 0))


def ptx_type(of: DType) -> str:
    """PTX's name of a format: its signed integers begin with s.

    >>> ptx_type(dtype("i8")), ptx_type(dtype("u4")), ptx_type(dtype("bf16"))
    ('s8', 'u4', 'bf16')
    """
    return of.name if of.kind == "float" or of.name == "b1" else _INTEGER[of.name[0]] + of.name[1:]


def _ptx(
    mnk: Shape,
    types: tuple[DType, DType, DType, DType],
    form: SyncForm,
    layouts: tuple[str, str],
    saturate: bool,
    bit_op: str,
    factors: ScaleFactors | None,
) -> str:
    parts = ["mma.sync.aligned", _text(mnk), *layouts]
    if form.kind is not None:
        parts.append(f"kind::{form.kind}")
    if factors is not None:
        parts += ["block_scale", f"scale_vec::{mnk[2] // factors.vector}X"]
    if saturate:
        parts.append("satfinite")
    parts += [ptx_type(of) for of in types]
    if types[1].bits == 1:
        parts += [bit_op, "popc"]
    if factors is not None:
        parts.append(ptx_type(factors.dtype))
    return ".".join(parts)
