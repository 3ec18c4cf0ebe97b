"""Candidate configurations of the Hopper kernel for a shape, and random shapes."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
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


def of_programs(name: str) -> dict[str, Sm90Choice]:
    """Configurations of five programs of bench_programs.py, most of them for 8192, by what they change.

    router         rows of A come from DRAM once; what CTAs share, how deep a stage is, who is transposed, and what
                   combines the columns of a row
    quantised      tiles of whole groups of 128 columns: which of them hide their stores, and their order
    cross-entropy  the largest tiles in other orders, and smaller ones that hide the reduction
    dual           two matrices B: both kinds of clusters of the largest tiles, their orders, and tiles in turn
    rms norm       tiles that hide the residual's loads, largest tiles that do not, and three warpgroups

    >>> names = "router", "quantised", "cross-entropy", "dual", "rms norm", "causal"
    >>> [len(of_programs(name)) for name in names]
    [18, 14, 12, 13, 13, 0]
    """
    made = {
        "router": _router, "quantised": _quantised, "cross-entropy": _cross_entropy, "dual": _dual,
        "rms norm": _rms_norm,
    }  # fmt: skip
    return made.get(name, dict)()


_ROUNDS = ClusterOccupancy().gpc_rounds(2)


def _named(base: dict[str, Any], settings: dict[str, dict[str, Any]], turned: bool = False) -> dict[str, Sm90Choice]:
    """Choices by name: a base's settings with others in their place."""
    return {name: Sm90Choice(Sm90Config(**{**base, **more}), turned) for name, more in settings.items()}


def _router() -> dict[str, Sm90Choice]:
    base: dict[str, Any] = {
        "tile": (128, 128), "cluster": (1, 2), "consumers": 1, "loader": "warp", "launch": "tiles", "overlap": True,
        "prefetch": 2, "chunks": 1, "buffers": 2, "finish": "cluster",
    }  # fmt: skip
    tiled = {"finish": "launch"}
    split = {
        **tiled,
        "split": 2,
        "one_tile_per_cluster": True,
        "cluster": (1, 1),
        "consumers": 2,
        "chunks": 2,
        "buffers": 1,
    }
    straight: dict[str, dict[str, Any]] = {
        "128 deep": {"tile_k": 128}, "128 deep, 256B": {"tile_k": 128, "l2_promotion": "256B"},
        "256B": {"l2_promotion": "256B"}, "no prefetch": {"prefetch": 0}, "trigger at the end": {"trigger": "end"},
        "two warpgroups": {"consumers": 2}, "alone": {"cluster": (1, 1), **tiled},
        "shared B": {"cluster": (2, 1), **tiled}, "a second launch": tiled,
        "64x256": {"tile": (64, 256), "cluster": (1, 1)}, "64x256, shared B": {"tile": (64, 256), "cluster": (2, 1)},
        "128x256 in 2 parts": {**split, "tile": (128, 256)}, "256x128 in 2 parts": {**split, "tile": (256, 128)},
    }  # fmt: skip
    transposed: dict[str, dict[str, Any]] = {  # clusters of four: 30 are resident, and 29 of 128x144 cover 8192 tokens
        "transposed 128x144, four": {"tile": (128, 144), "cluster": (2, 2)},
        "transposed 256x72, four": {"tile": (256, 72), "cluster": (1, 4), "consumers": 2},
        "transposed 256x64": {"tile": (256, 64), "consumers": 2},
        "transposed 256x64, 128 deep": {"tile": (256, 64), "consumers": 2, "tile_k": 128},
        "transposed 128x128": {"cluster": (2, 1)},
    }
    return _named(base, straight) | _named({**base, **tiled}, transposed, True)


def _quantised() -> dict[str, Sm90Choice]:
    base: dict[str, Any] = {
        "tile": (128, 256), "cluster": (2, 1), "along": "N", "gpc_order": _ROUNDS, "l2_promotion": "256B", "chunks": 1,
        "buffers": 2,
    }  # fmt: skip
    low = {"tile": (256, 128), "cluster": (1, 2), "staged_epilogue_k_tiles": 2}
    return _named(base, {
        "not dealt": {"gpc_order": ()}, "shared A": {"cluster": (1, 2)}, "along M": {"along": "M"},
        "bands of 16": {"group": 16}, "bands of 4": {"group": 4}, "K backwards": {"reverse_odd_tiles": True},
        "one buffer": {"buffers": 1}, "two chunks": {"chunks": 2, "buffers": 1}, "a loader": {"loader": "warpgroup"},
        "256x128": low, "256x128, shared B": {**low, "cluster": (2, 1)},
        "128x128 in turn": {"tile": (128, 128), "schedule": "pingpong", "loader": "warpgroup"},
        "192x256": {"tile": (192, 256), "consumers": 3, "gpc_order": ()},
        "halves of 3 K tiles": {"staged_epilogue_k_tiles": 3, "loader": "warpgroup"},
    })  # fmt: skip


def _dual() -> dict[str, Sm90Choice]:
    base: dict[str, Any] = {
        "tile": (256, 224), "cluster": (2, 1), "staged_epilogue_k_tiles": 2, "gpc_order": _ROUNDS, "along": "N",
        "l2_promotion": "256B", "chunks": 1, "buffers": 2,
    }  # fmt: skip
    across: dict[str, Any] = {"cluster": (1, 2)}
    low: dict[str, Any] = {"tile": (128, 256), "staged_epilogue_k_tiles": 0}
    return _named(base, {
        "256x224, shared B": {}, "256x224, shared B, not dealt": {"gpc_order": ()},
        "256x224, shared B, along M": {"along": "M"}, "256x224, shared B, bands of 4": {"group": 4},
        "256x224, shared B, bands of 16": {"group": 16}, "256x224, shared B, K backwards": {"reverse_odd_tiles": True},
        "256x224, shared A": across, "256x224, shared A, along M": {**across, "along": "M"},
        "256x208, shared A": {**across, "tile": (256, 208), "along": "M", "group": 16},
        "256x208, shared B": {"tile": (256, 208)}, "128x256": low, "128x256, a loader": {**low, "loader": "warpgroup"},
        "128x192 in turn": {
            "tile": (128, 192), "staged_epilogue_k_tiles": 0, "schedule": "pingpong", "loader": "warpgroup",
        },
    })  # fmt: skip


def _rms_norm() -> dict[str, Sm90Choice]:
    base: dict[str, Any] = {
        "tile": (128, 192), "cluster": (2, 1), "schedule": "pingpong", "loader": "warpgroup", "along": "N",
        "gpc_order": _ROUNDS, "l2_promotion": "256B", "chunks": 1, "buffers": 2,
    }  # fmt: skip
    whole: dict[str, Any] = {"tile": (128, 256), "schedule": "cooperative", "loader": "self"}
    return _named(base, {
        "in turn, not dealt": {"gpc_order": ()}, "in turn, shared A": {"cluster": (1, 2)},
        "in turn, along M": {"along": "M"}, "in turn, bands of 16": {"group": 16}, "in turn, bands of 4": {"group": 4},
        "in turn, K backwards": {"reverse_odd_tiles": True}, "128x176 in turn": {"tile": (128, 176)},
        "128x160 in turn": {"tile": (128, 160)}, "128x256": whole,
        "128x256, a loader": {**whole, "loader": "warpgroup"},
        "256x224": {**whole, "tile": (256, 224), "cluster": (1, 2), "staged_epilogue_k_tiles": 2},
        "256x192": {**whole, "tile": (256, 192), "cluster": (1, 2), "staged_epilogue_k_tiles": 2},
        "192x192": {**whole, "tile": (192, 192), "consumers": 3, "gpc_order": ()},
    })  # fmt: skip


def _cross_entropy() -> dict[str, Sm90Choice]:
    base: dict[str, Any] = {
        "tile": (256, 224), "cluster": (1, 2), "staged_epilogue_k_tiles": 2, "gpc_order": _ROUNDS,
        "l2_promotion": "256B", "chunks": 1, "buffers": 2,
    }  # fmt: skip
    return _named(base, {
        "not dealt": {"gpc_order": ()}, "shared B": {"cluster": (2, 1)}, "along N": {"along": "N"},
        "bands of 16": {"group": 16}, "bands of 4": {"group": 4}, "K backwards": {"reverse_odd_tiles": True},
        "bands of 6": {"group": 6}, "bands of 4, K backwards": {"group": 4, "reverse_odd_tiles": True},
        "256x208": {"tile": (256, 208)}, "stored whole": {"staged_epilogue_k_tiles": 0},
        "128x256": {"tile": (128, 256), "cluster": (2, 1), "along": "N", "staged_epilogue_k_tiles": 0},
        "128x192 in turn": {"tile": (128, 192), "cluster": (2, 1), "schedule": "pingpong", "loader": "warpgroup",
                            "staged_epilogue_k_tiles": 0},
    })  # fmt: skip


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
    """Random shapes of log-uniform sizes. N and K are multiples of `unit`, M a multiple of 8 or a power of two.

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
