"""Remedies where no TMA copy does what is asked: the nearest request that works.

Each rule has its remedies, tried in order. They pad the pitch of the global tensor, or lay the shared tile out along
the contiguous mode with a swizzle that fits. They use another swizzle, widen the tile, or put another mode contiguous.
A remedy is offered only when the copy it leads to was derived.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from math import gcd
from operator import mul
from typing import TYPE_CHECKING

from ...dtypes import DType, dtype
from ...errors import LayoutError, TmaError
from ...layouts import ComposedLayout, Layout
from ...layouts.int_tuple import Shape, compact, leaves, transform
from ...layouts.swizzle import AnyLayout
from ...layouts.symbols.facts import Facts
from ...layouts.symbols.polynomial import gens, show
from ..smem.tile import SmemTile
from .rules import MODES, format_of, multiple

if TYPE_CHECKING:
    from .derive import Request
    from .plan import TmaPlan


@dataclass(frozen=True)
class Suggestion:
    """A change that makes a copy possible.

    text     the change in words
    request  the request with the change made; `plan()` derives it
    """

    text: str
    request: Request

    def plan(self) -> TmaPlan:
        """The plan of the changed request."""
        return self.request.derive()

    def __str__(self) -> str:
        return self.text


def nearest(request: Request, error: TmaError) -> Suggestion | None:
    """The first remedy for the broken rule that leads to a plan, or None."""
    for remedy in _REMEDIES.get(error.rule, ()):
        try:
            for text, changed in remedy(request):
                if changed != request and _works(changed):
                    return Suggestion(text, changed)
        except LayoutError:
            continue
    return None


def fewest(request: Request, count: int) -> tuple[str, int] | None:
    """A shared layout that takes fewer instructions than `count`, in words, and their number."""
    best: tuple[str, int] | None = None
    for text, changed in _shared_along(request):
        try:
            found = len(changed.derive().issued_by(0))
        except LayoutError:
            continue
        if found < (count if best is None else best[1]):
            best = text, found
    return best


def _works(request: Request) -> bool:
    try:
        request.derive()
    except LayoutError:
        return False
    return True


Remedies = Iterator[tuple[str, "Request"]]


def _pad_pitch(request: Request) -> Remedies:
    """Strides rounded up to what the map counts in; a symbol gets the fact that it is a multiple."""
    kind = format_of(_element(request), request.format)
    unit = 8 * kind.unit // gcd(8 * kind.unit, kind.gmem_bits)
    gmem = request.gmem
    shape, stride = leaves(gmem.shape), leaves(gmem.stride)
    if all(isinstance(x, int) for x in (*shape, *stride)):
        made: dict[int, int] = {0: 0, 1: 1}
        for step in sorted(set(stride) - {0, 1}):
            below = max((s for s in made if s > 1 and step % s == 0), default=0)
            scaled = step // below * made[below] if below else step
            made[step] = -(-scaled // unit) * unit
        padded = Layout(gmem.shape, transform(made.__getitem__, gmem.stride))
        yield f"global layout {padded}", replace(request, gmem=padded)
        return
    facts = [
        f"{unit} | {show(step)}"
        for step in stride
        if not isinstance(step, int) and not multiple(step, unit) and len(gens(step)) == 1
    ]
    if facts:
        yield f"global layout with {', '.join(facts)}", replace(request, gmem=Facts(*facts)(gmem))


def _shared_along(request: Request) -> Remedies:
    """The tile along the global layout's strides, smallest first, under each swizzle whose span fits."""
    tile = _tile(request)
    if tile is None:
        return
    order = sorted(range(len(tile)), key=lambda i: _least(request.gmem, i))
    kind = format_of(_element(request), request.format)
    inner = tile[order[0]]
    for name in ("128B", "64B", "32B", "none"):
        span = MODES[name].span * 8 // kind.smem_bits
        if name == "none":
            span = inner
        if inner % span:
            continue
        # rows of one span, one under another, then the next span
        block = [span if i == order[0] else extent for i, extent in enumerate(tile)]
        steps, total = [0] * len(tile), 1
        for i in order:
            steps[i], total = total, total * block[i]
        shape = tuple((span, inner // span) if i == order[0] and inner > span else n for i, n in enumerate(tile))
        stride = tuple((1, total) if i == order[0] and inner > span else steps[i] for i in range(len(tile)))
        plain = Layout(shape, stride)
        if name == "none":
            yield f"shared layout {plain}", replace(request, smem=plain, dtype=_element(request))
            continue
        swizzle = MODES[name].swizzle
        smem = ComposedLayout(swizzle.recast(kind.smem_bits), 0, plain)
        text = f"shared layout {swizzle} o {plain}"
        yield text, replace(request, smem=smem, dtype=_element(request))


def _other_swizzle(request: Request) -> Remedies:
    """The same shared layout under another swizzle."""
    smem = request.smem
    plain = smem.layout if isinstance(smem, (SmemTile, ComposedLayout)) else smem
    kind = format_of(_element(request), request.format)
    for name in ("128B", "64B", "32B", "none"):
        changed: AnyLayout = plain
        if MODES[name].bits:
            changed = ComposedLayout(MODES[name].swizzle.recast(kind.smem_bits), 0, plain)
        yield f"swizzle {name}", replace(request, smem=changed, dtype=_element(request))


def _contiguous(request: Request) -> Remedies:
    """Another mode of the global layout contiguous: the one that shared memory runs along first, then any."""
    gmem = request.gmem
    if not isinstance(gmem.shape, tuple):
        yield f"global layout {Layout(gmem.shape)}", replace(request, gmem=Layout(gmem.shape))
        return
    for first in range(gmem.rank):
        order = [first, *(i for i in range(gmem.rank) if i != first)]
        steps: list[Shape | None] = [None] * gmem.rank
        total: int = 1
        for i in order:
            steps[i] = transform(partial(mul, total), compact(gmem[i].shape))
            total = total * gmem[i].size
        made = Layout(gmem.shape, tuple(steps))
        yield f"global layout {made}", replace(request, gmem=made)


def _wider_tile(request: Request) -> Remedies:
    """The tile's contiguous extent rounded up to 16 bytes, and further by powers of two."""
    tile = _tile(request)
    if tile is None:
        return
    inner = min(range(len(tile)), key=lambda i: _least(request.gmem, i))
    kind = format_of(_element(request), request.format)
    unit = kind.inner_box or 128 // gcd(128, kind.smem_bits)
    extent = -(-tile[inner] // unit) * unit
    wide = tuple(extent if i == inner else n for i, n in enumerate(tile))
    for _, changed in _shared_along(replace(request, tile=wide)):
        yield f"a tile of {'x'.join(map(str, wide))}", changed


def _smaller_tile(request: Request) -> Remedies:
    """Each extent of the tile cut down to a divisor of its mode. Only modes that it straddles are cut."""
    tile = _tile(request)
    if tile is None:
        return
    fitted = []
    for i, n in enumerate(tile):
        extents = leaves(request.gmem[i].shape)
        left = n
        if len(extents) > 1 and isinstance(extents[0], int):
            left = gcd(n, extents[0])
        fitted.append(left)
    for _, changed in _shared_along(replace(request, tile=tuple(fitted))):
        yield f"a tile of {'x'.join(map(str, fitted))}", changed


def _fewer_blocks(request: Request) -> Remedies:
    for blocks in range(min(request.multicast, 16) - 1, 0, -1):
        yield f"multicast to {blocks} blocks" if blocks > 1 else "no multicast", replace(request, multicast=blocks)


_REMEDIES: dict[str, tuple[Callable[[Request], Remedies], ...]] = {
    "stride": (_pad_pitch, _contiguous),
    "run": (_shared_along, _contiguous),
    "step": (_shared_along,),
    "contiguous": (_contiguous,),
    "span": (_other_swizzle, _shared_along),
    "swizzle": (_other_swizzle, _shared_along),
    "inner bytes": (_shared_along, _wider_tile),
    "packed box": (_shared_along, _wider_tile),
    "shared address": (_shared_along,),
    "injective": (_shared_along,),
    "rank": (_contiguous,),
    "tile": (_smaller_tile,),
    "multicast": (_fewer_blocks,),
}


def _element(request: Request) -> DType:
    return request.smem.dtype if isinstance(request.smem, SmemTile) else dtype(request.dtype)


def _tile(request: Request) -> tuple[int, ...] | None:
    """The tile's extents, one a mode of the global layout, where they are plain."""
    tile = request.tile
    if tile is None:
        smem = request.smem.layout if isinstance(request.smem, (SmemTile, ComposedLayout)) else request.smem
        if not isinstance(smem, Layout):
            return None
        tile = tuple(mode.size for mode in smem)[: request.gmem.rank]
    tile = tile if isinstance(tile, tuple) else (tile,)
    return tile if all(n.__class__ is int for n in tile) else None


def _least(gmem: Layout, mode: int) -> tuple[int, int]:
    """The rank of a mode when memory is walked: its smallest known stride; symbols come after numbers."""
    steps = leaves(gmem[mode].stride)
    known = [step for step in steps if isinstance(step, int) and step > 0]
    return (0, min(known)) if known else (1, len([step for step in steps if not isinstance(step, int)]))
