"""Hopper's warpgroup products: wgmma.mma_async of every N and type. A is in shared memory or in registers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product

from ...arguments import checked, shown
from ...dtypes import DType, bf16, dtype
from ...errors import AtomError
from ...layouts import Layout
from .base import MmaAtom
from .sync import ptx_type
from .warp_fragments import fragment, run_of

M, THREADS, WARPS, K_BYTES = 64, 128, 4, 32
_EVERY_N = tuple(range(8, 257, 8))
# Integers and bits have 8, 24 and the multiples of 16.
_INTEGER_N = tuple([n for n in _EVERY_N if n in (8, 24) or n % 16 == 0])


@dataclass(frozen=True, slots=True)
class WgmmaForm:
    """One row of the table. A and B each of one of `types`, accumulators, values of N, majors from shared memory."""

    types: tuple[str, ...]
    accumulators: tuple[str, ...]
    n: tuple[int, ...]
    majors: tuple[str, ...] = ("K",)


# K is 32 bytes for all of them. Source: PTX ISA, "Asynchronous Multiply-and-Accumulate Instruction: wgmma.mma_async".
# Its list of integer shapes stops at n224 while that of bits goes on to n256; ptxas and the CuTe DSL take n240 and n256
# for integers too.
FORMS = (
    WgmmaForm(("bf16",), ("f32",), _EVERY_N, ("K", "MN")),
    WgmmaForm(("f16",), ("f16", "f32"), _EVERY_N, ("K", "MN")),
    WgmmaForm(("tf32",), ("f32",), _EVERY_N),
    WgmmaForm(("e4m3", "e5m2"), ("f16", "f32"), _EVERY_N),
    WgmmaForm(("i8", "u8"), ("i32",), _INTEGER_N),
    WgmmaForm(("b1",), ("i32",), _INTEGER_N),
)
SOURCES = ("smem", "rmem")


@checked(AtomError)
def wgmma(
    n: int,
    a: DType | str = bf16,
    b: DType | str | None = None,
    c: DType | str | None = None,
    a_source: str = "smem",
    *,
    saturate: bool = False,
) -> MmaAtom:
    """Hopper's warpgroup product wgmma.mma_async m64 n`n`, 32 bytes of K; B from shared memory.

    n         8 to 256 in steps of 8; for integers and bits 8, 16, 24 and then in steps of 16
    a, b      bf16, f16 or tf32 both, e4m3 or e5m2 each, i8 or u8 each, or b1 both (by AND); b is a's unless given
    c         the accumulator: f32, or f16 for f16 and 8-bit floats, i32 for integers; the widest unless given
    a_source  "smem": A by a descriptor; "rmem": A from registers
    saturate  clamp to i32 where an integer accumulator would wrap (.satfinite)

    16-bit operands in shared memory may be K- or MN-major; all others are K-major.

    The accumulator's map: thread t of the warpgroup is in warp t//32 and lane t%32. A warp owns 16 rows; a lane owns
    rows lane//4 and lane//4 + 8 of them, and of every 8 columns the two at 2*(lane%4). Value v counts columns within
    the pair (v%2), then the two rows, then groups of 8 columns: `fragments.fragment` over four warps. A in registers
    is the same with k as the column and 32 // bits elements side by side.

    Raises AtomError for any other n, type or source. Source: PTX ISA, "Asynchronous Warpgroup Level Matrix
    Multiply-Accumulate Operation using wgmma.mma_async", figures of the register fragments of m64nNk8 to m64nNk256.

    >>> atom = wgmma(64)
    >>> print(atom, atom.layout_C)
    wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 ((4,8,4),(2,2,8)):((128,1,16),(64,8,512))
    >>> atom.accumulator_registers
    32
    >>> print(wgmma(64, "e4m3", a_source="rmem").layout_A)
    ((4,8,4),(4,2,2)):((256,1,16),(64,8,1024))
    """
    a_type = dtype(a)
    b_type = a_type if b is None else dtype(b)
    form = next((form for form in FORMS if a_type.name in form.types and b_type.name in form.types), None)
    if form is None:
        sets = " | ".join(" ".join(each.types) for each in FORMS)
        raise AtomError(f"wgmma takes A and B both from one of: {sets}; got A {a_type} and B {b_type}")
    c_type = dtype(form.accumulators[-1]) if c is None else dtype(c)
    integers = c_type.name == "i32"
    if c_type.name not in form.accumulators:
        inputs = str(a_type) if a_type == b_type else f"{a_type} and {b_type}"
        raise AtomError(f"wgmma accumulates {inputs} inputs in {' or '.join(form.accumulators)}, not in {c_type}")
    if n not in form.n:
        steps = "8, 16, 24, 32, 48, ..., 256 (steps of 16)" if form.n == _INTEGER_N else "8, 16, ..., 256"
        raise AtomError(f"wgmma for {a_type} and {b_type} has N = {steps}; N = {shown(n)} is none of them")
    if a_source not in SOURCES:
        raise AtomError(f'wgmma takes A from "smem" or "rmem", not from {shown(a_source)}')
    if saturate and not (integers and a_type.bits > 1):
        raise AtomError(f"wgmma of {a_type} and {b_type} does not saturate: .satfinite is for i8 and u8")
    k = K_BYTES * 8 // a_type.bits
    clamp, tail = ".satfinite" if saturate else "", ".and.popc" if a_type.bits == 1 else ""
    types = ".".join(map(ptx_type, (c_type, a_type, b_type)))
    everyone = Layout((THREADS, (M, k)), (0, (1, M)))
    return MmaAtom(
        ptx=f"wgmma.mma_async.sync.aligned.m{M}n{n}k{k}{clamp}.{types}{tail}",
        archs=("sm_90a",),
        shape_mnk=(M, n, k),
        a_dtype=a_type,
        b_dtype=b_type,
        c_dtype=c_type,
        threads=THREADS,
        layout_A=everyone if a_source == "smem" else fragment(M, k, run_of(a_type.bits), WARPS),
        layout_B=Layout((THREADS, (n, k)), (0, (1, n))),
        layout_C=fragment(M, n, 2, WARPS),
        a_source=a_source,
        b_source="smem",
        a_majors=form.majors if a_source == "smem" else ("K",),
        b_majors=form.majors,
        source=f"PTX ISA, wgmma.mma_async, register fragments of m64nNk{k}; cute/atom/mma_traits_sm90_gmma.hpp",
    )


def wgmma_atoms() -> Iterator[MmaAtom]:
    """Every dense wgmma, in each form. A form has all its types, accumulators, N, sources of A and saturation."""
    for form in FORMS:
        for a, b, c, n, source in product(form.types, form.types, form.accumulators, form.n, SOURCES):
            yield wgmma(n, a, b, c, source)
            if c == "i32" and a != "b1":
                yield wgmma(n, a, b, c, source, saturate=True)
