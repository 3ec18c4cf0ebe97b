"""Candidate configurations of the Hopper kernel for a shape, and random shapes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace

from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.plan import Sm90Config
from layoutgemm.schedule import GpcOrder
from layoutgemm.torch_op.tuning import candidates as tunable

NEXT = (("start", 2), ("end", 0))  # when the next kernel's blocks may come, k tiles fetched before this one's


def candidates(m: int, n: int, k: int, b_major: str = "k", likely: int | None = None) -> Iterator[Sm90Choice]:
    """Candidate configurations for a shape; the heuristic's choice comes first.

    likely  number of further candidates, the fastest by estimate; None: all that `choose` considers, with other
            loaders, clusters, tile orders and triggers too

    >>> len(list(candidates(4096, 4096, 4096, likely=8))), len(list(candidates(4096, 4096, 4096))) > 100
    (9, True)
    """
    found = list(tunable(m, n, k, "k", b_major))
    if likely is None:
        more = _other_launches(found) if m <= 64 else _many_rows(m, n, found[0].config.tuning.overlap)
        found = list(dict.fromkeys([*found, *more]))
    yield from found if likely is None else found[: 1 + likely]


def _other_launches(found: list[Sm90Choice]) -> Iterator[Sm90Choice]:
    """Each configuration with both triggers: at its start, and at its end."""
    for choice in found:
        for trigger, early in NEXT:
            yield replace(choice, config=replace(choice.config, overlap=True, trigger=trigger, prefetch=early))


def _many_rows(m: int, n: int, overlap: bool) -> Iterator[Sm90Choice]:
    base = Sm90Config(chunks=1, buffers=2, overlap=overlap, prefetch=int(overlap))
    for width in (64, 96, 128, 192, 256):  # one wave: a grid of tiles, and stores that begin early
        wide = width == 256
        config = replace(
            base,
            tile=(128, width),
            launch="tiles",
            staged_epilogue_k_tiles=2,
            loader="warp",
            consumers=2 if wide else 1,
        )
        yield Sm90Choice(replace(config, cluster=(2, 1), along="N"))
        yield Sm90Choice(config)
        if width in (64, 128):
            low = replace(config, tile=(64, width), staged_epilogue_k_tiles=0, prefetch=2 * int(overlap))
            yield Sm90Choice(low)
            yield Sm90Choice(replace(low, cluster=(2, 1), along="N"))
    for cluster, group, along in (((2, 1), 8, "M"), ((2, 1), 8, "N"), ((1, 2), 8, "N"), ((1, 1), 8, "M")):
        for width in (128, 160, 176, 192, 208, 224):
            config = replace(
                base, tile=(256, width), cluster=cluster, group=group, along=along, staged_epilogue_k_tiles=2
            )
            yield Sm90Choice(config)
        for width in (64, 96, 128, 160, 192, 224, 256):
            config = replace(base, tile=(128, width), cluster=cluster, group=group, along=along)
            yield Sm90Choice(config)
            if width <= 192:
                yield Sm90Choice(replace(config, loader="warp", consumers=1))
                yield Sm90Choice(replace(config, loader="warp", consumers=1, staged_epilogue_k_tiles=2))
                yield Sm90Choice(replace(config, loader="warpgroup", schedule="pingpong"))
        if m * n <= 4096 * 4096:
            for width in (64, 128, 192, 256):
                config = replace(base, tile=(64, width), cluster=cluster, group=group, along=along, consumers=1)
                yield Sm90Choice(replace(config, loader="warp"))
                if width <= 128:
                    yield Sm90Choice(replace(config, loader="warpgroup", schedule="pingpong", consumers=2))


def random_shapes(count: int, seed: int = 0, unit: int = 64) -> list[tuple[int, int, int]]:
    """Random shapes: log-uniform sizes, N and K multiples of `unit`, M a multiple of 8 or a power of two.

    >>> random_shapes(2)
    [(4288, 8384, 3264), (4, 14912, 3968)]
    """
    rng = random.Random(seed)

    def size(low: int, high: int, unit: int) -> int:
        return max(unit, round(math.exp(rng.uniform(math.log(low), math.log(high))) / unit) * unit)

    shapes = []
    for i in range(count):
        m = size(128, 8192, 8) if i % 2 == 0 else 1 << rng.randrange(0, 7)
        shapes.append((m, size(1024, 16384, unit), size(1024, 16384, unit)))
    return shapes


def name_of(choice: Sm90Choice) -> str:
    """A short, unique name of a configuration.

    >>> name_of(Sm90Choice(Sm90Config((256, 224), cluster=(2, 1), group=4)))
    '256x224 self c21 g4M'
    """
    config, tuning = choice.config, choice.config.tuning
    parts = ["swap"] * choice.swapped + ["x".join(map(str, config.tile))]
    parts += ["pp"] * (config.schedule == "pingpong")
    parts.append({"self": "self", "warp": "w", "warpgroup": "wg"}[config.loader])
    parts.append("c" + "".join(map(str, config.cluster)))
    parts.append(f"g{tuning.group}{tuning.along}")
    defaults = Sm90Config()
    shorts = {"stages": "s", "tile_k": "k", "chunks": "ch", "buffers": "b", "split": "split", "consumers": "wg",
              "prefetch": "pf"}  # fmt: skip
    for field, short in shorts.items():
        if getattr(config, field) != getattr(defaults, field):
            parts.append(f"{short}{getattr(config, field)}")
    parts += [f"r{config.loaded_a_rows}"] * (config.loaded_a_rows is not None)
    parts += ["single"] * config.one_tile_per_cluster
    parts += ["tiles"] * (config.launch == "tiles")
    parts += [config.store] * (config.store != "tma")
    parts += [f"{tuning.first}first"] * (tuning.first is not None)
    parts += ["dealt " + str(GpcOrder(tuning.gpc_order)).replace(", ", " ")] * bool(tuning.gpc_order)
    parts += ["late"] * (tuning.trigger == "end") + [tuning.l2_promotion] * (tuning.l2_promotion != "128B")
    parts += (
        ["snake"] * tuning.reverse_odd_tiles
        + [f"early{config.staged_epilogue_k_tiles}"] * (config.staged_epilogue_k_tiles > 0)
        + ["pdl"] * tuning.overlap
    )
    return " ".join(parts)
