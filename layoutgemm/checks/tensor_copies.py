"""Checks of tensor copies: every element of a tile once, in its place. Every element of the tensor in one tile.

`filled_by` looks at one tile, element by element: its size is known. Where it lies in global memory may depend on
symbols; an address is then compared as a polynomial, coefficient by coefficient, which decides it at every size.
`tiles_cover` speaks of the whole tensor: it is proven mode by mode for every size, and enumerated where it is small.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias

from ..arguments import checked
from ..atoms import SmemTile, TmaPlan
from ..atoms.tma.box import Leaf, leaves_of
from ..atoms.tma.engine import global_bits, shared_bits
from ..atoms.tma.rules import multiple
from ..layouts import ComposedLayout, Layout
from ..layouts.proofs.prove import covers, injective
from ..layouts.proofs.verdicts import Proof
from ..layouts.symbols.dims import dim
from ..layouts.symbols.facts import Facts
from ..layouts.symbols.polynomial import make, show
from ..lazy_numpy import np
from ..report import Check

if TYPE_CHECKING:
    import numpy.typing as npt

EXHAUST = 1 << 18  # elements of a tensor that is enumerated
Ints: TypeAlias = "npt.NDArray[np.int64]"


@checked()
def filled_by(name: str, tile: SmemTile | Layout | ComposedLayout, plan: TmaPlan) -> Check:
    """Check that the copies move every element of the tile exactly once. They go between its place in shared and in
    global memory.

    tile  where the tile's elements lie in shared memory: what the plan was derived from, or should have been

    The places in shared memory are those that the engine writes at an aligned address.
    """
    where = _tile_bits(tile, plan)
    order = np.argsort(where)
    box = plan.over([1 << 31] * len(plan.box), (0,) * (len(plan.box) - 1))
    want = _wanted(tile, plan, where.size)
    got = {key: np.full(where.size, np.iinfo(np.int64).min) for key in want}
    times = np.zeros(where.size, dtype=np.int64)
    witness = ""
    for copy in plan.instructions:
        at = shared_bits(box, copy.smem_offset).reshape(-1, order="F") if copy.smem_offset % 128 == 0 else None
        if at is None:
            witness = witness or f"the box at {copy.coord_offset} starts at shared byte {copy.smem_offset}"
            continue
        found = order[np.minimum(np.searchsorted(where, at, sorter=order), where.size - 1)]
        wrong = np.nonzero(where[found] != at)[0]
        if len(wrong):
            byte = int(at[wrong[0]]) // 8
            witness = witness or f"the box at {copy.coord_offset} has byte {byte}, where the tile holds no element"
            found, at = np.delete(found, wrong), np.delete(at, wrong)
        np.add.at(times, found, 1)
        for key, values in _moved(plan, copy.coord_offset, want).items():
            flat = values.reshape(-1, order="F")
            got[key][found] = np.delete(flat, wrong) if len(wrong) else flat
    if not witness and (times != 1).any():
        first = int(np.nonzero(times != 1)[0][0])
        witness = f"element {_named(tile, first)} copied {times[first]} times, should be 1"
    if not witness:
        for key in want:
            wrong = np.nonzero(got[key] != want[key])[0]
            if len(wrong):
                first = int(wrong[0])
                have = {k: int(v[first]) for k, v in got.items()}
                should = {k: int(v[first]) for k, v in want.items()}
                witness = (
                    f"element {_named(tile, first)} is the tensor's {_place(have, plan)}, should be "
                    f"{_place(should, plan)}"
                )
                break
    statement = (
        f"{len(plan.instructions)} box(es) {plan.box} with swizzle {plan.swizzle} move each element once, in its place"
    )
    return Check(name, statement, not witness, f"exhaustion ({where.size} elements)", witness)


def _tile_bits(tile: Any, plan: TmaPlan) -> Ints:
    """Shared bit offset of each element of the tile, in order of its flat index."""
    if isinstance(tile, SmemTile):
        mn, k = tile.extent
        address = np.asarray(tile.byte(np.arange(mn)[:, None], np.arange(k)[None, :]))
        return address.reshape(-1, order="F") * 8
    bits = plan.kind.smem_bits
    if isinstance(tile, ComposedLayout) and tile.swizzle.unit not in (None, bits):
        tile = tile.recast(bits)
    count = tile.size // plan.stages
    offsets = np.asarray(tile.offsets())[:count] * bits
    if bits != plan.kind.gmem_bits:
        offsets = offsets // 128 * 128 + offsets % 128 // bits * plan.kind.gmem_bits
    return offsets


def _terms(entry: Any) -> dict[Hashable, int]:
    """An entry as monomial -> coefficient."""
    return {(): entry} if isinstance(entry, int) else dict(entry.terms)


def _leaf_coordinates(plan: TmaPlan) -> list[tuple[Leaf, Ints]]:
    assert plan.gmem is not None
    rank = plan.gmem.rank
    leaves = leaves_of(plan.gmem, plan.tile, [f"mode {i}" for i in range(rank)])
    flat, out = np.arange(int(np.prod([leaf.tile for leaf in leaves]))), []
    for leaf in leaves:
        out.append((leaf, flat % leaf.tile * leaf.step))
        flat = flat // leaf.tile
    return out


def _wanted(tile: Any, plan: TmaPlan, count: int) -> dict[Hashable, Ints]:
    """The place of each element of tile 0 in the tensor: monomial -> bits, or dimension -> coordinate."""
    if plan.gmem is None:
        mn = tile.extent[0]
        flat = np.arange(count)
        inner, outer = (flat // mn, flat % mn) if tile.major == "K" else (flat % mn, flat // mn)
        return {0: inner, 1: outer}
    out: dict[Hashable, Ints] = {(): np.zeros(count, dtype=np.int64)}
    for leaf, index in _leaf_coordinates(plan):
        for key, factor in _terms(leaf.stride).items():
            out[key] = out.get(key, 0) + index * factor * plan.kind.gmem_bits
    return out


def _moved(plan: TmaPlan, start: tuple[int, ...], keys: Iterable[Hashable]) -> dict[Hashable, Ints]:
    """The same for the elements of one box: arrays of the box's shape, innermost dimension first."""
    shape = plan.moved
    places = zip(start, plan.each_step, shape, strict=True)
    grid = np.meshgrid(*(c + s * np.arange(n) for c, s, n in places), indexing="ij")
    if plan.gmem is None or plan.strides is None:
        return dict(enumerate(grid))
    out: dict[Hashable, Ints] = {key: np.zeros(shape, dtype=np.int64) for key in keys}
    for index, stride in zip(grid, (None, *plan.strides), strict=True):
        bits = {(): plan.kind.gmem_bits} if stride is None else {k: 8 * v for k, v in _terms(stride).items()}
        for key, factor in bits.items():
            out[key] = out.get(key, np.zeros(shape, dtype=np.int64)) + index * factor
    return {key: out[key] for key in keys}


def _named(tile: Any, flat: int) -> str:
    if isinstance(tile, SmemTile):
        return f"(mn, k) = ({flat % tile.extent[0]}, {flat // tile.extent[0]})"
    return str(tile.coord(flat))


def _place(terms: dict[Any, int], plan: TmaPlan) -> str:
    if plan.gmem is None:
        return "(" + ", ".join(f"{dim} {terms[i]}" for i, dim in enumerate(plan.dims)) + ")"
    if set(terms) == {()}:
        return f"byte {terms[()] / 8:g}"
    return f"bit {show(make(dict(terms)))}"


# ------------------------------------------------------------------------------------------------------ whole tensor


@checked()
def tiles_cover(name: str, plan: TmaPlan) -> Check:
    """Check that the tiles cover each element of the tensor once, for every size. They must start where the plan says.

    Mode by mode: the elements of the tiles are the coordinates of the mode, none twice, and no tile lies outside. One
    tile on is as far in the tensor map as in the layout. A part of a merged dimension does not hang over its end. The
    bytes that a store writes beyond a line, to the end of its last 16, hold no element of the tensor. Lines start at
    multiples of 16 bytes, so a line with an element in those bytes has an element of the first line there too.
    """
    if plan.gmem is None or plan.strides is None:
        return Check(name, "the plan has no global layout", False, "none", "sizes are given at run time")
    methods: list[str] = []
    witness = ""
    gmem = plan.gmem
    rank = gmem.rank if isinstance(gmem.shape, tuple) else 1
    leaves = leaves_of(gmem, plan.tile, [f"mode {i}" for i in range(rank)])
    for leaf in leaves:
        witness = witness or _leaf_covered(leaf, methods)
    strides = (None, *plan.strides)
    for mode, digits in enumerate(plan.starts):
        places = iter(digits)
        for leaf in (leaf for leaf in leaves if leaf.mode == mode):
            for step in ([1] if leaf.step > 1 else []) + [leaf.tile * leaf.step]:
                count, adds = next(places, (None, ()))
                have: int = 0
                for at, add in adds:
                    stride = strides[at]
                    have = have + 8 * add * stride if stride is not None else have + add * plan.kind.gmem_bits
                should = step * leaf.stride * plan.kind.gmem_bits
                if not bool(have == should) and count != 1 and not witness:
                    witness = f"one tile on along {leaf.name} is {have} bits on in the map, {should} in {gmem}"
    sizes = [leaf.extent for leaf in leaves] + list(plan.strides)
    if not witness and all(isinstance(size, int) for size in sizes) and gmem.size <= EXHAUST:
        witness = _exhausted(plan, leaves)
        methods.append(f"exhaustion ({gmem.size} elements)")
    shape = "x".join(str(leaf.extent) for leaf in leaves)
    tile = "x".join(str(leaf.tile) for leaf in leaves)
    statement = f"tiles of {tile} hold each element of {shape} once, and start where the plan says"
    return Check(name, statement, not witness, ", ".join(dict.fromkeys(methods)) or "normal form", witness)


def _leaf_covered(leaf: Leaf, methods: list[str]) -> str:
    """A witness that tiles miss or repeat a mode, or "" with the proofs' methods."""
    extent, run = leaf.extent, leaf.tile * leaf.step
    if isinstance(extent, int):
        count: Any = -(-extent // run)
    elif multiple(extent, run):
        count = extent // run
    else:  # whatever else is known of the extent: proven for all of them
        given = Facts(f"T_ = ceil_div(E_, {run})")
        extent, count = given(dim("E_")), given["T_"]
    tiles = Layout((leaf.tile, leaf.step, count), (leaf.step, 1, run))
    for answer in (injective(tiles), covers(tiles, extent), covers(Layout(extent), (count - 1) * run + 1)):
        if not isinstance(answer, Proof):
            return f"{leaf.name}: {answer.explain()}"
        methods.append(answer.method)
    return ""


def _exhausted(plan: TmaPlan, leaves: list[Leaf]) -> str:
    """Every tile through the engine: each element of the tensor is moved once, for each time that a mode repeats it."""
    tmap = plan.tensor_map
    assert plan.gmem is not None
    offsets = np.asarray(plan.gmem.offsets()) * plan.kind.gmem_bits
    wanted = np.bincount(offsets // plan.kind.gmem_bits)
    found = np.zeros_like(wanted)
    rank = plan.gmem.rank
    counts = []
    for mode in range(rank):
        count = 1
        for leaf in (leaf for leaf in leaves if leaf.mode == mode):
            count *= leaf.step * -(-leaf.extent // (leaf.tile * leaf.step))
        counts.append(range(count))
    for index in itertools.product(*counts):
        for start in plan.coordinates(index):
            bits, inside = global_bits(tmap, start)
            np.add.at(found, bits[inside] // plan.kind.gmem_bits, 1)
    wrong = np.nonzero(found != wanted)[0]
    if len(wrong):
        first = int(wrong[0])
        return f"element {first} of global memory is moved {found[first]} times, should be {wanted[first]}"
    return ""
