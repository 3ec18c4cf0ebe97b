"""Vector copies of single threads. They are ld and st of 8 to 256 bits, and the widest one that a layout allows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import gcd
from typing import Any

from ...arguments import checked, shown
from ...dtypes import DType, dtype
from ...errors import AtomError
from ...layouts import ComposedLayout, Layout, Verdict
from ...layouts.int_tuple import leaves
from ..targets import TARGETS, since
from .base import CopyAtom, lane_copy

# Bits of one ld or st -> vector suffix and type. PTX ISA, "Vectors" and "Data Movement and Conversion Instructions: ld"
# and "st": at most 128 bits, except .v8.b32 of global memory on sm_100 and later.
_VECTORS = {8: ".b8", 16: ".b16", 32: ".b32", 64: ".v2.b32", 128: ".v4.b32", 256: ".v8.b32"}
_WIDE = 256
_WIDE_ARCHS = since("sm_100")
# (source, target) of a copy between a memory and registers -> opcode and state space.
_OPCODES = {
    ("gmem", "rmem"): ("ld", "global"),
    ("rmem", "gmem"): ("st", "global"),
    ("smem", "rmem"): ("ld", "shared"),
    ("rmem", "smem"): ("st", "shared"),
}
# Cache operators and their modes by the names of the DSL's LoadCacheMode and StoreCacheMode, the default first. PTX
# ISA, "Cache Operators".
LOAD_CACHE = {"ca": "always", "cg": "global", "cs": "streaming", "lu": "last_use", "cv": "none"}
STORE_CACHE = {"wb": "write_back", "cg": "global", "cs": "streaming", "wt": "write_through"}
# PTX ISA, "Cache Eviction Priority Hints"; "evict_normal" is what no hint means.
EVICTION = ("evict_normal", "evict_first", "evict_last", "evict_unchanged", "no_allocate")
L2_PREFETCH = (64, 128, 256)
# PTX ISA, "Memory Consistency Model: Scope", and the orders that ld and st have.
SCOPES = ("cta", "cluster", "gpu", "sys")
_ORDERS = {"ld": ("weak", "relaxed", "acquire", "volatile"), "st": ("weak", "relaxed", "release", "volatile")}


@dataclass(frozen=True)
class VectorCopy(CopyAtom):
    """A copy by one thread of `bits` consecutive bits between a memory and registers.

    bits       width of the one instruction; its address is a multiple of as many bytes
    """

    bits: int = 0

    @property
    def alignment(self) -> int:
        """Bytes that every address is a multiple of. The vector's own size (PTX ISA, "ld", natural alignment)."""
        return self.bits // 8

    @checked(AtomError)
    def fits(self, layout: Layout | ComposedLayout, alignment: int = 16) -> Verdict:
        """Prove that a tile of that layout (coordinate -> element) can be cut into these vectors.

        alignment   bytes that the tile's address is a multiple of

        >>> print(load_shared(128, "bf16").fits(Layout((64, 64), (72, 1))).ok)
        True
        >>> load_shared(128, "bf16").fits(Layout((64, 64), (68, 1))).reason
        '128 bits are 8 elements of bf16, and only 4 go at once: the stride 68 is a multiple of 4, not of 8'
        """
        found = widest(layout, self.element, alignment, self.bits)
        want = self.values_per_thread("src")
        if found.bits == self.bits:
            return Verdict(True)
        return Verdict(
            False,
            f"{self.bits} bits are {want} elements of {self.element}, and only {found.elements} go at once: "
            + found.why,
        )


@checked(AtomError)
def universal_copy(
    bits: int | None = None, element: DType | str = "u8", source: str = "gmem", target: str = "rmem"
) -> VectorCopy:
    """The plain copy of `bits` bits, one instruction, without memory attributes.

    bits      8, 16, 32, 64 or 128, 256 between global memory and registers of sm_100; None is one element
    element   the type that the maps count in, no wider than the copy
    source, target   one of them "rmem", the other "gmem" or "smem"

    Raises AtomError for a width that no single instruction has (a wider copy is several of them). Source: PTX ISA, "ld"
    and "st"; CopyUniversalOp of the DSL.

    >>> copy = universal_copy(128, "bf16")
    >>> print(copy, copy.layout_src, copy.bytes_per_thread("dst"))
    ld.global.v4.b32 (1,8):(0,1) 16
    """
    return _vector(bits, element, source, target)


@checked(AtomError)
def load_global(
    bits: int | None = None,
    element: DType | str = "u8",
    cache: str = "ca",
    evict: str = "evict_normal",
    l2_prefetch: int | None = None,
    order: str = "weak",
    scope: str | None = None,
    read_only: bool = False,
) -> VectorCopy:
    """ld.global: a vector from global memory to registers, with its cache behaviour.

    cache        "ca", "cg", "cs", "lu" or "cv", or the DSL's name for it ("always", "global", ...)
    evict        L1 priority: "evict_normal", "evict_first", "evict_last", "evict_unchanged" or "no_allocate"
    l2_prefetch  64, 128 or 256 bytes, or None
    order, scope "weak" (no scope), "volatile" (no scope), "relaxed" or "acquire" with "cta", "cluster", "gpu" or "sys"
    read_only    .nc, through the read-only path

    Raises AtomError for combinations that PTX has not. Source: PTX ISA, "ld", "ld.global.nc"; CopyG2ROp of the DSL.

    >>> print(load_global(128, "f32", cache="streaming"), load_global(256, "f32", evict="no_allocate").archs[0])
    ld.global.cs.v4.b32 sm_100
    >>> load_global(128, "f32", cache="cg", evict="evict_first")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.AtomError: ld.global takes a cache operator or an L1 priority, not both: .cg, L1::evict_first
    """
    return _vector(
        bits, element, "gmem", "rmem", cache=cache, evict=evict, l2_prefetch=l2_prefetch, order=order, scope=scope,
        read_only=read_only,
    )  # fmt: skip


@checked(AtomError)
def store_global(
    bits: int | None = None,
    element: DType | str = "u8",
    cache: str = "wb",
    evict: str = "evict_normal",
    order: str = "weak",
    scope: str | None = None,
) -> VectorCopy:
    """st.global: a vector from registers to global memory.

    cache        "wb", "cg", "cs" or "wt", or the DSL's name for it ("write_back", "global", ...)
    evict        L1 priority, as for load_global
    order, scope "weak", "volatile", or "relaxed" or "release" with a scope

    Raises AtomError for combinations that PTX has not. Source: PTX ISA, "st"; CopyR2GOp of the DSL.

    >>> print(store_global(128, "f32", cache="wt"), store_global(32, "f32", order="release", scope="sys"))
    st.global.wt.v4.b32 st.release.sys.global.b32
    """
    return _vector(bits, element, "rmem", "gmem", cache=cache, evict=evict, order=order, scope=scope)


@checked(AtomError)
def load_shared(
    bits: int | None = None, element: DType | str = "u8", order: str = "weak", scope: str | None = None
) -> VectorCopy:
    """ld.shared: a vector from shared memory to registers. Source: PTX ISA, "ld"; CopyS2ROp of the DSL.

    >>> print(load_shared(64, "bf16"), load_shared(64, "bf16").phases[0][-1])
    ld.shared.v2.b32 15
    """
    return _vector(bits, element, "smem", "rmem", order=order, scope=scope)


@checked(AtomError)
def store_shared(
    bits: int | None = None, element: DType | str = "u8", order: str = "weak", scope: str | None = None
) -> VectorCopy:
    """st.shared: a vector from registers to shared memory. Source: PTX ISA, "st"; CopyR2SOp of the DSL.

    >>> print(store_shared(128, "f32"))
    st.shared.v4.b32
    """
    return _vector(bits, element, "rmem", "smem", order=order, scope=scope)


def vector_copies() -> Iterator[CopyAtom]:
    """Every width of the plain vector copies, counted in bytes.

    >>> len(list(vector_copies()))
    22
    """
    for (source, target), (_, space) in _OPCODES.items():
        for bits in _VECTORS:
            if bits < _WIDE or space == "global":
                yield universal_copy(bits, "u8", source, target)


def _vector(
    bits: int | None,
    element: DType | str,
    source: str,
    target: str,
    cache: str | None = None,
    evict: str = "evict_normal",
    l2_prefetch: int | None = None,
    order: str = "weak",
    scope: str | None = None,
    read_only: bool = False,
) -> VectorCopy:
    kind = dtype(element)
    opcode = _OPCODES.get((source, target))
    if opcode is None:
        known = ", ".join(f"{a} -> {b}" for a, b in _OPCODES)
        raise AtomError(f"no ld or st copies {shown(source)} -> {shown(target)}; there are {known}")
    op, space = opcode
    width = kind.bits if bits is None else bits
    if width not in _VECTORS or (width == _WIDE and space != "global"):
        most = _WIDE if space == "global" else 128
        raise AtomError(f"{op}.{space} has 8, 16, 32, ..., {most} bits; no one instruction copies {shown(width)}")
    name = f"{op}{_order(op, order, scope)}.{space}"
    name += _caching(op, space, cache, evict, l2_prefetch, order, read_only)
    archs = _WIDE_ARCHS if width == _WIDE else since("sm_90") if scope == "cluster" else TARGETS
    return lane_copy(
        VectorCopy, kind, width, f"{width} bits", op,
        ptx=name + _VECTORS[width], archs=archs, source=source, target=target, bits=width,
    )  # fmt: skip


def _order(op: str, order: str, scope: str | None) -> str:
    if order not in _ORDERS[op]:
        raise AtomError(f"{op} has the orders {', '.join(_ORDERS[op])}, not {shown(order)}")
    if order in ("weak", "volatile"):
        if scope is not None:
            raise AtomError(f"{op} of order {order} has no scope; {shown(scope)} was given")
        return "" if order == "weak" else ".volatile"
    if scope not in SCOPES:
        raise AtomError(f"{op}.{order} needs a scope, one of {', '.join(SCOPES)}, not {shown(scope)}")
    return f".{order}.{scope}"


def _caching(
    op: str, space: str, cache: str | None, evict: str, l2_prefetch: int | None, order: str, read_only: bool
) -> str:
    """The qualifiers between state space and type, if PTX allows them together: PTX ISA, "ld", "st"."""
    table = LOAD_CACHE if op == "ld" else STORE_CACHE
    default = next(iter(table))
    cop = default if cache is None else next((k for k, v in table.items() if cache in (k, v)), None)
    if cop is None:
        names = ", ".join(f"{k} ({v})" for k, v in table.items())
        raise AtomError(f"{op} has the cache operators {names}, not {shown(cache)}")
    if evict not in EVICTION:
        raise AtomError(f"L1 priority is one of {', '.join(EVICTION)}, not {shown(evict)}")
    if l2_prefetch is not None and (isinstance(l2_prefetch, bool) or l2_prefetch not in L2_PREFETCH):
        raise AtomError(f"L2 prefetch sizes are {', '.join(map(str, L2_PREFETCH))} bytes, not {shown(l2_prefetch)}")
    hint = evict != EVICTION[0]
    if cop != default and hint:
        raise AtomError(f"{op}.{space} takes a cache operator or an L1 priority, not both: .{cop}, L1::{evict}")
    if cop != default and order != "weak":
        raise AtomError(f"{op}.{order} takes no cache operator; .{cop} was given")
    if order == "volatile" and (hint or l2_prefetch):
        raise AtomError(f"{op}.volatile takes no cache hints")
    if read_only and (order != "weak" or cop in ("lu", "cv")):
        raise AtomError(f"ld.global.nc is weak and has ca, cg or cs; got order {order} and .{cop}")
    parts = ".nc" if read_only else ""
    parts += f".{cop}" if cop != default else f".L1::{evict}" if hint else ""
    return parts + (f".L2::{l2_prefetch}B" if l2_prefetch else "")


@dataclass(frozen=True)
class WidestVector:
    """The widest vector of a layout. Its bits, its elements, and what keeps the next one from fitting.

    `elements` and `bits` are 0 where not even one element is a whole vector (elements narrower than a byte).
    """

    bits: int
    elements: int
    why: str

    def __str__(self) -> str:
        return f"{self.bits} bits ({self.elements} elements): {self.why}"


@checked(AtomError)
def widest(
    layout: Layout | ComposedLayout,
    element: DType | str,
    alignment: int = 16,
    limit: int = 128,
    other: Layout | ComposedLayout | None = None,
) -> WidestVector:
    """The widest vector for threads that walk a tile of that layout, with the reasons.

    layout      coordinate -> element of memory; a swizzled one must count elements
    element     the type that the layout counts
    alignment   bytes that the tile's address is a multiple of
    limit       bits of the widest vector wanted: 128, or 256 for global memory on sm_100
    other       the layout on the other side, over the same coordinates; its runs must agree (max_common_vector)

    A vector of w elements fits where w consecutive elements follow each other in memory and every such group starts at
    a multiple of w. So w divides the contiguous run, every other stride, the swizzle's unit, and the tile's address.
    Raises AtomError where an argument has no meaning.

    >>> print(widest(Layout((128, 64), (64, 1)), "bf16"))
    128 bits (8 elements): 128 bits is the limit asked for
    >>> print(widest(Layout((128, 64), (66, 1)), "bf16"))
    32 bits (2 elements): the stride 66 is a multiple of 2, not of 4
    >>> print(widest(Layout((128, 12), (12, 1)), "f32", alignment=8))
    64 bits (2 elements): the address is a multiple of 8 bytes, not of 16
    """
    kind = dtype(element)
    if limit not in _VECTORS:
        raise AtomError(f"the widest vector wanted is one of {', '.join(map(str, _VECTORS))} bits, not {shown(limit)}")
    if alignment < 1 or alignment & (alignment - 1):
        raise AtomError(f"alignment is a power of two of bytes, not {shown(alignment)}")
    rules = [(limit, f"{limit} bits is the limit asked for")]
    for side in (layout,) if other is None else (layout, other):
        rules += _rules(side, kind)
    if other is not None:
        bare, theirs = (x.layout if isinstance(x, ComposedLayout) else x for x in (layout, other))
        run = bare.max_common_vector(theirs)
        rules.append((kind.bits * _power(run), f"the two layouts have {run} consecutive element(s) in common"))
    rules.append((alignment * 8, f"the address is a multiple of {alignment} bytes, not of {2 * alignment}"))
    bits, why = min(rules, key=lambda rule: rule[0])
    if bits < 8 or bits < kind.bits:
        return WidestVector(0, 0, why)
    return WidestVector(bits, bits // kind.bits, why)


def _rules(layout: Layout | ComposedLayout, kind: DType) -> list[tuple[int, str]]:
    """(bits, reason): how wide a vector each part of the layout allows."""
    out = []
    bare: Any = layout
    if isinstance(layout, ComposedLayout):
        swizzle = layout.swizzle
        if swizzle.unit is not None and swizzle.unit != kind.bits:
            raise AtomError(f"{layout} swizzles {swizzle.unit}-bit units and is said to count {kind.bits}: recast it")
        if swizzle.bits:
            kept = 1 << swizzle.base
            out.append((kept * kind.bits, f"{swizzle} keeps {kept} elements together, not {2 * kept}"))
        if layout.offset:
            out.append(_multiple("the offset", layout.offset, kind))
        bare = layout.layout
    flat = bare.coalesce().flatten()
    if flat.has_basis or not all(x.__class__ is int for x in (*leaves(flat.shape), *leaves(flat.stride))):
        raise AtomError(f"{layout}: a vector's width needs offsets that are numbers, not symbols or coordinates")
    # The same element twice is no obstacle, so modes of stride 0 are left out; the run starts at stride 1.
    modes = [(d, s) for s, d in zip(leaves(flat.shape), leaves(flat.stride)) if s > 1 and d]
    run = 1
    rest: list[int] = []
    for stride, extent in sorted(modes, key=lambda mode: (mode[0] < 0, abs(mode[0]))):
        if stride == run:
            run *= extent
        else:
            rest.append(stride)
    out.append((kind.bits * _power(run), f"{run} consecutive element(s) are no multiple of {2 * _power(run)}"))
    return out + [_multiple("the stride", stride, kind) for stride in rest]


def _multiple(what: str, value: int, kind: DType) -> tuple[int, str]:
    power = _power(value)
    return kind.bits * power, f"{what} {value} is a multiple of {power}, not of {2 * power}"


def _power(value: int) -> int:
    """The largest power of two that divides the value."""
    return gcd(value, 1 << 62)
