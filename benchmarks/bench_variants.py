"""Scaled fp8 and grouped products, called as users call them, against torch and DeepGEMM.

    python benchmarks/bench_variants.py --json benchmarks/results/scaled_grouped_h100.json    # some minutes

`scaled`: A (M, K) and B (N, K) of e4m3 with a float32 scale for each 1 x 128 of A and 128 x 128 of B. A's scales lie
along M for all, as torch and DeepGEMM take them; "scales along K" are the other order, which only ours takes. Peers are
torch._scaled_mm with equal blocks, with row and column scales (without promotion), torch.mm and `layoutgemm.matmul` of
bf16, and DeepGEMM if it is installed.

`grouped`: as many rows for each expert; `ours, ends` is called as torch is, into a new result. Peers are
torch._grouped_mm and a loop of torch.mm, which needs the group offsets on the host. `grouped, scaled`: both; the peer
is torch._scaled_grouped_mm with row scales. DeepGEMM takes both with each group padded to its alignment; the padding is
not timed.

`uneven`: the same of groups of 0.7 to 1.3 of the average's rows, drawn at random. `few`: of 1 to 8 such groups.

`masked`: 4096 rows for each expert, of which as many count. `ours` is told how many to expect, as DeepGEMM is; `ours,
rows not told` is not. Peers are DeepGEMM and torch._grouped_mm of 3 dimensions, which multiplies all rows.
Beside them is torch._grouped_mm of packed rows, those that count alone, without the packing.

`along K`: the gradients of experts' weights, of as many rows each. Peers are torch._grouped_mm and a loop of torch.mm.
`along K, scaled`: the same of e4m3 with a scale for each 1 x 128 of both, and a float32 result. The peer is DeepGEMM,
which adds to a float32 result; its operands are each group's own matrices, whose copy is not timed. `ours, bf16 result`
has a result of 16 bits, `ours, 128x128` scales of B for 128 columns, `ours, rows` one for each row of a group; both
results are of 16 bits. Beside them is `ours of bf16`.

`steps`: the forward pass of experts and both gradients, of large groups. `ours` is `fp8_grouped_matmul` with groups at
multiples of 128, quantising included; `ours, multiple of 1` has the weights' gradient in bf16. The peer is
torch._grouped_mm of bf16, which computes other values; beside them is `ours of bf16`.

Every result of ours is checked against float64 first. Times are bursts of graphs of about 5 ms by
`layoutgemm/bench/method.py`. Operands rotate if they would stay in L2. Ratios are to the fastest peer that computes the
same.
"""

from __future__ import annotations

import argparse
import importlib
import json
import random
import statistics
import sys
from collections.abc import Callable, Sequence
from functools import partial
from itertools import accumulate, pairwise, product
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from benchmarks import deepgemm, needs
from layoutgemm.bench.method import GRAPH_SECONDS, ROTATION_BYTES
from layoutgemm.kernels import Sm90Config
from layoutgemm.kernels.run import occupancy
from layoutgemm.kernels.sm90.choose.scaled_grouped import (
    along_k_candidates,
    scaled_candidates,
)

Call = Callable[[], Any]
DEPTH = 128  # of K, that share a scale
SHARED = ((2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048))  # N, K
SCALED = (*[(m, *nk) for m, nk in product((1, 64, 128, 4096), SHARED)], (8192, 8192, 8192))
GROUPS = ((4, 8192), (8, 4096), (32, 192), (6, 20), (64, 64), (128, 512))  # experts, rows of each
WEIGHTS = ((6144, 7168), (7168, 3072), (4096, 4096), (4096, 2048))  # N, K
GROUPED = tuple((experts, experts * rows, *nk) for (experts, rows), nk in product(GROUPS, WEIGHTS))
STEPS = tuple(
    (experts, experts * rows, *nk) for (experts, rows), nk in product(GROUPS[:2], ((4096, 7168), (7168, 2048)))
)
MASKED_ROWS = 4096  # of each group; some of them count
MASKED = tuple(
    (experts, experts * rows, *nk)
    for (experts, rows), nk in product(((32, 192), (6, 1024), (32, 20)), ((4096, 7168), (7168, 2048)))
)
ALONG_K = tuple(
    (experts, mn[0], mn[1], experts * rows)
    for (experts, rows), mn in product(((4, 8192), (8, 4096), (16, 2048)), ((4096, 7168), (7168, 2048)))
)  # experts, M, N, K of all of them
UNEVEN = tuple(
    (experts, experts * rows, 4096, 4096)
    for experts, rows in ((32, 100), (32, 160), (32, 192), (16, 256), (16, 300), (16, 400), (16, 512), (8, 768),
                          (8, 1024), (4, 2048), (4, 8192))
)  # fmt: skip
FEW = tuple(
    (experts, experts * rows, *nk)
    for nk, groups in {
        (4096, 4096): ((1, 100), (1, 300), (2, 150), (4, 128), (3, 200), (1, 250), (2, 128), (2, 100)),
        (7168, 2048): ((1, 200), (1, 400)),
        (2048, 7168): ((1, 300), (2, 150), (2, 300), (4, 200), (4, 128), (4, 250)),
        (2048, 4096): ((2, 300), (1, 350), (2, 250), (4, 100), (4, 150), (2, 400), (8, 100)),
        (4096, 7168): ((2, 200),),
        (3072, 4096): ((2, 200),),
        (2112, 4096): ((2, 300),),
        (2112, 7168): ((2, 300),),
        (4160, 4096): ((1, 300),),
    }.items()
    for experts, rows in groups
)  # fmt: skip
EACH_LINE = (
    ((256, 128), (1, 1)),
    ((256, 128), (2, 1)),
    ((256, 128), (1, 2)),
    ((128, 128), (1, 1)),
    ((128, 128), (1, 2)),
    ((128, 160), (1, 1)),
    ((128, 160), (2, 1)),
    ((128, 64), (1, 1)),
)  # tiles and clusters, the likeliest first, of a scale for each row and each column
KINDS = {
    "scaled": SCALED, "grouped": GROUPED, "grouped, scaled": GROUPED, "masked": MASKED, "masked, scaled": MASKED,
    "along K": ALONG_K, "along K, scaled": ALONG_K, "uneven": UNEVEN, "uneven, scaled": UNEVEN,
    "few": FEW, "few, scaled": FEW, "steps": STEPS,
}  # fmt: skip
OURS, OURS_UNTOLD = "ours", "ours, rows not told"
PACKED = "torch._grouped_mm, packed"
OTHERS = ("torch._scaled_mm, rows", "torch._scaled_mm, rows, fast", "torch.mm of bf16", "ours of bf16", PACKED)
_CHECKED_ROWS = 64


def quantised(x: Any, rows: int) -> tuple[Any, Any]:
    """Quantises a matrix to (e4m3, float32 scales). One scale is for so many rows and 128 of K, by their largest
    magnitude."""
    import torch

    *front, n, k = x.shape
    padded = torch.zeros(*front, -(-n // rows) * rows, k, device=x.device)
    padded[..., :n, :] = x
    blocks = padded.view(*front, -(-n // rows), rows, k // DEPTH, DEPTH)
    scales = blocks.abs().amax((-3, -1)).clamp(1e-4) / 448
    values = (blocks / scales[..., :, None, :, None]).view(padded.shape)[..., :n, :]
    return values.to(torch.float8_e4m3fn).contiguous(), scales


def spread(scale: Any, group: int, size: int, k: int) -> Any:
    """Scales that match the magnitude of their blocks."""
    return scale.double().repeat_interleave(group, -2)[..., :size, :].repeat_interleave(DEPTH, -1)[..., :k]


def off(got: Any, want: Any) -> float:
    """The error of a result, as a share of 2**-8 of the wanted values' norm. bf16 rounds to 2**-9 of each."""
    return float((got.double() - want).norm() / want.norm() * 2**8)


def copies(weights: Any) -> int:
    """The copies of weights that are multiplied in turns. They are as many as hold more than 240 MB."""
    return int(ROTATION_BYTES // (weights.numel() * weights.element_size())) + 1


def attempt(calls: dict[str, list[Call]], name: str, each: list[Call]) -> None:
    """One of the peers, if it runs."""
    try:
        for call in each:
            call()
    except Exception as error:  # absent, or not for these shapes
        print(f"    {name}: {type(error).__name__}: {str(error).splitlines()[0][:160]}", flush=True)
        return
    calls[name] = each


def scaled(sizes: tuple[int, int, int], tiles: int = 0) -> tuple[dict[str, list[Call]], float]:
    """A product with scales of K blocks. Has every contender's calls, and the error of ours as a share of the bound."""
    import torch

    import layoutgemm

    m, n, k = sizes
    count = max(1, min(16, (240 << 20) // (m * k + n * k + 2 * m * n)))
    wide = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    (a, sa), (b, sb) = quantised(wide[0], 1), quantised(wide[1], DEPTH)
    sets = [(a.clone(), b.clone(), torch.empty(m, n, device="cuda", dtype=torch.bfloat16)) for _ in range(count)]
    calls: dict[str, list[Call]] = {}
    by_columns = sa.T.contiguous().T  # as torch and DeepGEMM take it
    rows, columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    ways: dict[str, dict[str, Any]] = {
        "torch._scaled_mm, blocks": {"scale_a": by_columns, "scale_b": sb.T},
        "torch._scaled_mm, rows": {"scale_a": rows, "scale_b": columns, "use_fast_accum": False},
        "torch._scaled_mm, rows, fast": {"scale_a": rows, "scale_b": columns, "use_fast_accum": True},
    }
    for name, more in ways.items():
        more |= {"out_dtype": torch.bfloat16}
        attempt(calls, name, [lambda s=s, more=more: torch._scaled_mm(s[0], s[1].T, out=s[2], **more) for s in sets])
    short = [(*[x.bfloat16() for x in wide], s[2]) for s in sets[: -(-count // 2)]]
    attempt(calls, "torch.mm of bf16", [lambda s=s: torch.mm(s[0], s[1].T, out=s[2]) for s in short])
    attempt(calls, "ours of bf16", [lambda s=s: layoutgemm.matmul(s[0], s[1].T, out=s[2]) for s in short])
    if deepgemm.installed():
        package = importlib.import_module(deepgemm.PACKAGE)
        aligned = package.get_mn_major_tma_aligned_tensor(sa)
        for name, dependent in deepgemm.WAYS.items():

            def launch(s: Any, dependent: bool = dependent) -> None:
                package.set_pdl(dependent)
                package.fp8_gemm_nt((s[0], aligned), (s[1], sb), s[2], disable_ue8m0_cast=True)

            attempt(calls, name, [lambda s=s, launch=launch: launch(s) for s in sets])
    places = occupancy.resident(torch.cuda.current_device(), 1)
    for config in scaled_candidates((*sizes, 1), places)[:tiles]:
        name = f"{OURS} {config.tile[0]}x{config.tile[1]}, K in {config.split}, cluster {config.cluster}"
        more = {"config": config}
        attempt(calls, name, [
            lambda s=s, more=more: layoutgemm.scaled_matmul(s[0], by_columns, s[1].T, sb, out=s[2], **more)
            for s in sets
        ])  # fmt: skip
    of_rows: list[Call] = [lambda s=s: layoutgemm.scaled_matmul(s[0], sa, s[1].T, sb, out=s[2]) for s in sets]
    attempt(calls, f"{OURS}, scales along K", of_rows)
    calls[OURS] = [lambda s=s: layoutgemm.scaled_matmul(s[0], by_columns, s[1].T, sb, out=s[2]) for s in sets]
    calls[OURS][0]()
    some = torch.randperm(m, device="cuda")[:_CHECKED_ROWS]
    want = (spread(sa[some], 1, len(some), k) * a[some].double()) @ (spread(sb, DEPTH, n, k) * b.double()).T
    return calls, off(sets[0][2][some], want)


def group_tiles(rows: int, with_scales: bool) -> dict[str, Sm90Config]:
    """Configurations for groups of so many rows, by name, other than the chosen one.

    >>> list(group_tiles(20, True))
    ['64x64', '64x96', '64x128', '64x192']
    """
    usual: dict[str, Any] = {"chunks": 1, "buffers": 2, "l2_promotion": "256B"}
    if rows <= 64:
        widths = (64, 96, 128, 192) if with_scales else range(96, 257, 16)
        return {f"64x{n}": Sm90Config((64, n), consumers=1, loader="warp", **usual) for n in widths}
    if with_scales:
        tiles = {
            (128, 256): ((2, 1),), (256, 128): ((2, 1), (1, 2)), (128, 192): ((2, 1), (1, 2)), (128, 160): ((2, 1),),
        }  # fmt: skip
        usual |= {"buffers": 1, "loader": "warpgroup"}
        found = {f"{m}x{n}, cluster {x}": Sm90Config((m, n), cluster=x, **usual) for (m, n), of in tiles.items()
                 for x in of}  # fmt: skip
        three = Sm90Config((192, 128), consumers=3, cluster=(1, 2), **usual | {"chunks": 2})
        return {**found, "192x128, cluster (1, 2)": three}
    wide = {(256, 192): (1, 2), (256, 224): (2, 1), (128, 256): (2, 1)}
    found = {
        f"{m}x{n}": Sm90Config((m, n), cluster=x, staged_epilogue_k_tiles=2, **usual) for (m, n), x in wide.items()
    }
    turns = Sm90Config((128, 192), schedule="pingpong", loader="warpgroup", cluster=(2, 1), **usual)
    return {**found, "128x192 pingpong": turns}


def rows_between(experts: int, each: int, spread: float) -> list[int]:
    """The rows of each group, drawn from within `spread` of `each`. They are the same ones every time.

    >>> rows_between(3, 100, 0.0)
    [100, 100, 100]
    """
    draw = random.Random(experts * each)
    return [round(each * (1 + spread * (2 * draw.random() - 1))) for _ in range(experts)]


def grouped(
    sizes: tuple[int, int, int, int], with_scales: bool, tiles: int = 0, unevenness: float = 0.0
) -> tuple[dict[str, list[Call]], float]:
    """A grouped product, with scales or without, in the same form.

    unevenness  of the groups' rows around their average, as a share of it
    """
    import torch

    import layoutgemm

    experts, m, n, k = sizes
    each = m // experts
    rows = rows_between(experts, each, unevenness)
    m = sum(rows)
    a, b = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (experts, n, k)))
    c = torch.empty(m, n, device="cuda", dtype=torch.bfloat16)
    places = [0, *accumulate(rows)]
    offsets = torch.tensor(places, device="cuda", dtype=torch.int32)
    ends, last = offsets[1:].contiguous(), slice(m - min(rows[-1], _CHECKED_ROWS), m)
    calls: dict[str, list[Call]] = {}
    scales: dict[str, Any] = {}
    left, right = a[last].double(), b[-1].double()
    if with_scales:
        a, sa = quantised(a, 1)
        quantised_b = [quantised(x, DEPTH) for x in b]
        b, sb = (torch.stack(parts) for parts in zip(*quantised_b, strict=True))
        scales = {"scale_a": sa.mT.contiguous().mT, "scale_b": sb}
        left = a[last].double() * spread(sa[last], 1, left.shape[0], k)
        right = b[-1].double() * spread(sb[-1], DEPTH, n, k)
    weights = [b, *(b.clone() for _ in range(copies(b) - 1))]
    if with_scales:
        one_a, one_b = torch.ones(m, device="cuda"), torch.ones(experts, n, device="cuda")
        more = {"offs": ends, "out_dtype": torch.bfloat16}
        attempt(calls, "torch._scaled_grouped_mm, rows", [
            lambda b=b: torch._scaled_grouped_mm(a, b.transpose(1, 2), one_a, one_b, **more) for b in weights
        ])  # fmt: skip
    else:
        attempt(calls, "torch._grouped_mm", [
            lambda b=b: torch._grouped_mm(a, b.transpose(1, 2), offs=ends) for b in weights
        ])  # fmt: skip

        def loop(b: Any) -> None:
            for e, (first, end) in enumerate(pairwise(places)):
                torch.mm(a[first:end], b[e].T, out=c[first:end])

        attempt(calls, "a loop of torch.mm", [partial(loop, b) for b in weights])
    if deepgemm.installed():
        both = (scales["scale_a"], scales["scale_b"]) if scales else None
        found = [deepgemm.grouped_launches(a, b, rows, both) for b in weights]
        for name in found[0]:
            attempt(calls, name, [launch for of in found for launch in of[name]])

    def ours(where: dict[str, Any], config: Sm90Config | None = None) -> list[Call]:
        more = where | scales
        return [lambda b=b: layoutgemm.grouped_matmul(a, b.transpose(1, 2), config=config, **more) for b in weights]

    for name, config in list(group_tiles(each, with_scales).items())[:tiles]:
        attempt(calls, f"{OURS} {name}", ours({"offsets": offsets, "out": c}, config))
    calls[f"{OURS}, ends"] = ours({"offs": ends})
    calls[OURS] = ours({"offsets": offsets, "out": c})
    calls[OURS][0]()
    return calls, off(c[last], left @ right.T)


def masked(sizes: tuple[int, int, int, int], with_scales: bool, tiles: int = 0) -> tuple[dict[str, list[Call]], float]:
    """A product of masked groups, with scales or without. `sizes` has the rows that count, of all groups together."""
    import torch

    import layoutgemm

    experts, m, n, k = sizes
    each = m // experts
    wide = torch.randn(experts, MASKED_ROWS, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16)
    c = torch.empty(experts, MASKED_ROWS, n, device="cuda", dtype=torch.bfloat16)
    counts = torch.full((experts,), each, device="cuda", dtype=torch.int32)
    calls: dict[str, list[Call]] = {}
    scales: dict[str, Any] = {}
    a, rows = wide, slice(0, min(each, _CHECKED_ROWS))
    left, right = a[-1, rows].double(), b[-1].double()
    if with_scales:
        (a, b), (sa, sb) = zip(*[
            map(torch.stack, zip(*[quantised(x, group) for x in of], strict=True)) for of, group in ((a, 1), (b, DEPTH))
        ])  # fmt: skip
        scales = {"scale_a": sa.mT.contiguous().mT, "scale_b": sb}
        left = a[-1, rows].double() * spread(sa[-1, rows], 1, left.shape[0], k)
        right = b[-1].double() * spread(sb[-1], DEPTH, n, k)
    else:
        ends = torch.arange(each, m + 1, each, device="cuda", dtype=torch.int32)
        packed = wide[:, :each].reshape(m, k)
        attempt(calls, PACKED, [lambda: torch._grouped_mm(packed, b.transpose(1, 2), offs=ends)])
        attempt(calls, "torch._grouped_mm, all rows", [lambda: torch._grouped_mm(a, b.transpose(1, 2))])
    if deepgemm.installed():
        package = importlib.import_module(deepgemm.PACKAGE)
        for name, dependent in deepgemm.WAYS.items():

            def launch(dependent: bool = dependent) -> None:
                package.set_pdl(dependent)
                if with_scales:
                    aligned = package.get_mn_major_tma_aligned_tensor(scales["scale_a"])
                    operands = (a, aligned), (b, scales["scale_b"])
                    package.m_grouped_fp8_gemm_nt_masked(*operands, c, counts, each, disable_ue8m0_cast=True)
                else:
                    package.m_grouped_bf16_gemm_nt_masked(a, b, c, counts, each)

            attempt(calls, name, [launch])
    more = {"counts": counts, "out": c, **scales}
    for name, config in list(group_tiles(each, with_scales).items())[:tiles]:
        attempt(calls, f"{OURS} {name}", [
            lambda config=config: layoutgemm.grouped_matmul(a, b.transpose(1, 2), config=config, **more)
        ])  # fmt: skip
    calls[OURS_UNTOLD] = [lambda: layoutgemm.grouped_matmul(a, b.transpose(1, 2), **more)]
    calls[OURS] = [lambda: layoutgemm.grouped_matmul(a, b.transpose(1, 2), expected_rows=each, **more)]
    calls[OURS][0]()
    return calls, off(c[-1, rows], left @ right.T)


def along_k(sizes: tuple[int, int, int, int], tiles: int) -> tuple[dict[str, list[Call]], float]:
    """Gradients of weights: as many rows of each expert. `tiles`: other configurations, the likeliest first."""
    import torch

    import layoutgemm

    experts, m, n, k = sizes
    each = k // experts
    x, grad = (torch.randn(k, size, device="cuda", dtype=torch.bfloat16) for size in (m, n))
    c = torch.empty(experts, m, n, device="cuda", dtype=torch.bfloat16)
    offsets = torch.arange(0, k + 1, each, device="cuda", dtype=torch.int32)
    ends = offsets[1:].contiguous()
    calls: dict[str, list[Call]] = {}
    attempt(calls, "torch._grouped_mm", [lambda: torch._grouped_mm(x.T, grad, offs=ends)])

    def loop() -> None:
        for e in range(experts):
            rows = slice(e * each, (e + 1) * each)
            torch.mm(x[rows].T, grad[rows], out=c[e])

    attempt(calls, "a loop of torch.mm", [loop])
    for config in along_k_candidates((m, n, k, experts))[:tiles]:
        name = f"{OURS} {config.tile[0]}x{config.tile[1]} by {config.loader}, cluster {config.cluster}"
        more = {"config": config}
        attempt(calls, name, [lambda more=more: layoutgemm.grouped_matmul(x.T, grad, offsets, out=c, **more)])
    calls[OURS] = [lambda: layoutgemm.grouped_matmul(x.T, grad, offsets, out=c)]
    calls[OURS][0]()
    some = torch.randperm(m, device="cuda")[:_CHECKED_ROWS]
    return calls, off(c[-1][some], x[-each:, some].double().T @ grad[-each:].double())


def along_k_scaled(sizes: tuple[int, int, int, int], tiles: int) -> tuple[dict[str, list[Call]], float]:
    """The same of e4m3 with a scale for each 1 x 128 of both operands."""
    import torch

    import layoutgemm

    experts, m, n, k = sizes
    each = k // experts
    x, grad = (torch.randn(k, size, device="cuda", dtype=torch.bfloat16) for size in (m, n))
    (a, sa), (b, sb) = quantised(x.T, 1), quantised(grad.T, 1)
    c = torch.empty(experts, m, n, device="cuda")
    short = torch.empty(experts, m, n, device="cuda", dtype=torch.bfloat16)
    offsets = torch.arange(0, k + 1, each, device="cuda", dtype=torch.int32)
    lines = {"scale_a": sa.T.contiguous().T, "scale_b": sb.T.contiguous().T}
    ways: dict[str, dict[str, Any]] = {
        f"{OURS}, 128x128": {"scale_a": lines["scale_a"], "scale_b": sb[::DEPTH].contiguous(), "out": short},
        f"{OURS}, rows": {
            "scale_a": torch.ones(experts, m, 1, device="cuda"), "scale_b": torch.ones(experts, 1, n, device="cuda"),
            "out": short,
        },
        f"{OURS}, bf16 result": {**lines, "out": short},
        OURS: {**lines, "out": c},
    }  # fmt: skip
    for scales in ways.values():
        scales["out_dtype"] = scales["out"].dtype
    calls: dict[str, list[Call]] = {
        "ours of bf16": [lambda: layoutgemm.grouped_matmul(x.T, grad, offsets, out=short)],
    }
    if deepgemm.installed():
        for name, launches in deepgemm.along_k_launches(a, b, each, (sa, sb)).items():
            attempt(calls, name, launches)
    for tile, cluster in EACH_LINE[:tiles]:
        more = {**ways[OURS], "config": Sm90Config(tile, cluster=cluster, loader="warpgroup", chunks=1, buffers=1)}
        name = f"{OURS} {tile[0]}x{tile[1]}, cluster {cluster}"
        attempt(calls, name, [lambda more=more: layoutgemm.grouped_matmul(a, b.T, offsets, **more)])
    for name, scales in ways.items():
        calls[name] = [lambda scales=scales: layoutgemm.grouped_matmul(a, b.T, offsets, **scales)]
    calls[OURS][0]()
    some, last = torch.randperm(m, device="cuda")[:_CHECKED_ROWS], slice(k - each, k)
    left, right = a[some].double() * spread(sa[some], 1, len(some), k), b.double() * spread(sb, 1, n, k)
    return calls, off(c[-1][some], left[:, last] @ right[:, last].T)


def steps(sizes: tuple[int, int, int, int]) -> tuple[dict[str, list[Call]], float]:
    """The forward and the backward pass of experts. The error is that of the last one's weight."""
    import torch

    import layoutgemm

    experts, m, n, k = sizes
    each = m // experts
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16).requires_grad_()
    weight = torch.randn(experts, n, k, device="cuda", dtype=torch.bfloat16).requires_grad_()
    grad = torch.randn(m, n, device="cuda", dtype=torch.bfloat16)
    ends = torch.arange(each, m + 1, each, device="cuda", dtype=torch.int32)

    def step(multiply: Callable[..., Any], **more: Any) -> Call:
        return lambda: torch.autograd.grad(multiply(x, weight.mT, offs=ends, **more), (x, weight), grad)

    calls: dict[str, list[Call]] = {}
    attempt(calls, "torch._grouped_mm", [step(torch._grouped_mm)])
    calls["ours of bf16"] = [step(layoutgemm.grouped_matmul)]
    calls[f"{OURS}, multiple of 1"] = [step(layoutgemm.fp8_grouped_matmul)]
    calls[OURS] = [step(layoutgemm.fp8_grouped_matmul, multiple=DEPTH)]
    found: Any = None
    for name in list(calls):
        for _ in range(3):  # the third pass is by kept launches
            found = calls[name][0]()
    some, last = torch.randperm(n, device="cuda")[:_CHECKED_ROWS], slice(m - each, m)
    (a, sa), (b, sb) = layoutgemm.quantize(grad.mT), layoutgemm.quantize(x.detach().mT)
    left, right = a[some].double() * spread(sa[some], 1, len(some), m), b.double() * spread(sb, 1, k, m)
    return calls, off(found[1][-1][some], left[:, last] @ right[:, last].T)


FORMS: dict[str, Callable[[Any, bool, int], tuple[dict[str, list[Call]], float]]] = {
    "scaled": lambda sizes, _, tiles: scaled(sizes, tiles),
    "grouped": grouped,
    "masked": masked,
    "along K": lambda sizes, scales, tiles: (along_k_scaled if scales else along_k)(sizes, tiles),
    "uneven": partial(grouped, unevenness=0.3),
    "few": partial(grouped, unevenness=0.3),
    "steps": lambda sizes, *_: steps(sizes),
}


def run(kinds: Sequence[str], rounds: int, file: Path | None, tiles: int = 0, loop: float = 0.0) -> int:
    """Checks, then times, every contender of every shape.

    tiles  configurations other than the chosen one
    loop   seconds of launches in one graph, at least one of each operand set
    """
    import torch

    from layoutgemm.bench import machine
    from layoutgemm.bench.method import CudaDevice, burst

    device, failed = CudaDevice(), 0
    record: dict[str, Any] = {"machine": machine.facts(), "shapes": {}}
    print(record["machine"], flush=True)
    ratios: dict[str, list[float]] = {}
    for kind, sizes in [(name, sizes) for name in kinds for sizes in KINDS[name]]:
        torch.manual_seed(0)
        title = f"{kind} {'x'.join(map(str, sizes))}"
        form, with_scales = kind.partition(",")[0], kind.endswith("scaled")
        calls, error = FORMS[form](sizes, with_scales, tiles)
        torch.cuda.synchronize()
        if not error <= 1:
            print(f"WRONG {title}: {error:.2f} of the bound", flush=True)
            failed += 1
            continue
        if loop:
            expected = max(1e-6, device.seconds(device.record(calls[OURS])) / len(calls[OURS]))
            calls = {name: each * max(1, round(loop / expected / len(each))) for name, each in calls.items()}
        samples = burst(device, {name: device.record(each) for name, each in calls.items()}, rounds, random.Random(0))
        times = {name: statistics.median(values) / len(calls[name]) for name, values in samples.items()}
        alike = [seconds for name, seconds in times.items() if not name.startswith(OURS) and name not in OTHERS]
        beside = f"{min(alike) / times[OURS]:.3f} of the best peer's speed" if alike else "no peer"
        if alike:
            ratios.setdefault(kind, []).append(min(alike) / times[OURS])
        tflops = (6 if form == "steps" else 2) * sizes[-3] * sizes[-2] * sizes[-1] / times[OURS] / 1e12
        said = ", ".join(f"{name} {us * 1e6:.1f}" for name, us in sorted(times.items(), key=lambda x: x[1]))
        print(f"{title}: {beside}, {tflops:.0f} TFLOP/s, {error:.2f} of the bound", flush=True)
        print(f"    {said} us", flush=True)
        record["shapes"][title] = {name: round(seconds * 1e6, 2) for name, seconds in times.items()}
        if file is not None:
            file.write_text(json.dumps(record, indent=1) + "\n")
        del calls
        torch.cuda.empty_cache()
    for kind, found in ratios.items():
        print(f"{kind}: geometric mean {statistics.geometric_mean(found):.3f}, least {min(found):.3f}")
    return 1 if failed else 0


def main(argv: Sequence[str] | None = None) -> int:
    """The command; exits 1 for a wrong result of ours, 2 if it finds no GPU."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--kinds", nargs="+", choices=tuple(KINDS), default=tuple(KINDS))
    parser.add_argument("--tiles", type=int, default=0, help="configurations besides the choice")
    parser.add_argument(
        "--loop", type=float, default=GRAPH_SECONDS, help="seconds of launches in a graph; 0: of each set once"
    )
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(argv)
    if status := needs.refused(needs.no_gpu()):
        return status
    return run(options.kinds, options.rounds, options.json, options.tiles, options.loop)


if __name__ == "__main__":
    sys.exit(main())
