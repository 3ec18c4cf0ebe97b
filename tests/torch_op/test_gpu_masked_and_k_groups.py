"""Masked groups and groups along K on a GPU, against float64: counts and ends that the device alone knows."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import grouped_matmul
from layoutgemm.kernels import Sm90Config
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.test_gpu_scaled_grouped import BF16, F16, F32, eight, normal, off, scales, wide, without_waiting

pytestmark = [pytest.mark.gpu, pytest.mark.dsl]

# Groups, rows of each, N, K, counts.
MASKED: dict[str, tuple[int, int, int, tuple[int, ...]]] = {
    "decoding": (4096, 512, 1024, (20, 0, 1, 64, 65, 128, 3, 17)),
    "many": (1024, 384, 256, tuple(range(0, 960, 10))),
    "ragged": (130, 264, 136, (130, 0, 129, 7)),
    "one": (300, 256, 512, (129,)),
    "all empty": (64, 256, 256, (0, 0, 0)),
    "no counts": (64, 256, 256, (-3, 65, 1 << 30, 64)),
}
CONFIGS = (None, Sm90Config((64, 256), consumers=1, loader="warp"),
           Sm90Config((256, 192), cluster=(1, 2), staged_epilogue_k_tiles=2),
           Sm90Config((128, 128), cluster=(2, 1), loader="warpgroup"))  # fmt: skip


def counted_rows(counts: tuple[int, ...], rows: int) -> Any:
    held = torch.tensor(counts, device="cuda").clamp(0, rows)
    return torch.arange(rows, device="cuda") < held[:, None]


@pytest.mark.parametrize("config", CONFIGS, ids=["choice", "64", "256", "128"])
@pytest.mark.parametrize("kind", [BF16, F16])
@pytest.mark.parametrize("name", MASKED)
def test_masked(name: str, kind: Any, config: Any) -> None:
    """Rows that count against float64; the others of `out` stay, and may be NaN in `a`."""
    torch.manual_seed(0)
    rows, n, k, counts = MASKED[name]
    a, b = normal(len(counts), rows, k, kind=kind), normal(len(counts), n, k, kind=kind).mT
    which = counted_rows(counts, rows)
    a[~which] = torch.nan
    given = torch.tensor(counts, device="cuda", dtype=torch.int32)
    out = torch.full((len(counts), rows, n), 7.0, dtype=kind, device="cuda")
    with without_waiting():
        grouped_matmul(a, b, counts=given, out=out, config=config)
        got = grouped_matmul(a, b, counts=given.long(), config=config)
    want = (torch.where(which[..., None], a, 0).double() @ b.double())[which]
    most = (torch.where(which[..., None], a, 0).double().abs() @ b.double().abs())[which]
    bound = torch.finfo(kind).eps * want.abs() + (k + 3) * 2.0**-23 * most + 1e-6
    assert bool(((out[which].double() - want).abs() <= bound).all())
    assert torch.equal(got[which], out[which]) and bool((out[~which] == 7).all())


@pytest.mark.parametrize(
    "recipes", [("RowWise", "RowWise"), ("BlockWise1x128", "BlockWise128x128")], ids=["rows", "blocks"]
)
@pytest.mark.parametrize("name", MASKED)
def test_masked_with_scales(name: str, recipes: tuple[str, str]) -> None:
    rows, n, k, counts = MASKED[name]
    if k % 16:
        k = 144
    groups = len(counts)
    a, b = eight(rows, n, k, groups)
    sa, sb = scales(recipes[0], "a", rows, k, groups), scales(recipes[1], "b", n, k, groups)
    which = counted_rows(counts, rows)
    given = torch.tensor(counts, device="cuda", dtype=torch.int32)
    out = torch.full((groups, rows, n), 7.0, dtype=F32, device="cuda")
    with without_waiting():
        grouped_matmul(a, b, counts=given, scale_a=sa, scale_b=sb, out=out, out_dtype=F32)
    left = a.double() * wide(recipes[0], "a", sa, rows, k)
    right = b.double() * wide(recipes[1], "b", sb, n, k)
    if int(which.sum()):
        want, most = (left @ right)[which], (left.abs() @ right.abs())[which]
        assert off(out[which], want, most, k, recipes[0] == "RowWise") <= 1
    assert bool((out[~which] == 7).all())


def test_masked_in_a_graph() -> None:
    """The counts are read at each replay; a kept launch serves all of them."""
    a, b = normal(6, 1024, 512), normal(6, 384, 512).mT
    counts = torch.zeros(6, device="cuda", dtype=torch.int32)
    out = torch.empty(6, 1024, 384, dtype=BF16, device="cuda")
    grouped_matmul(a, b, counts=counts, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_matmul(a, b, counts=counts, out=out)
    launches = len(kept.READY)
    all_of_them = grouped_matmul(a, b, counts=torch.full_like(counts, 1024))
    for values in ((1024,) * 6, (0,) * 6, (1, 1024, 0, 63, 64, 65), (500, 2, 3, 0, 0, 1023)):
        counts.copy_(torch.tensor(values))
        out.fill_(7.0)
        graph.replay()
        which = counted_rows(values, 1024)
        assert torch.equal(out[which], all_of_them[which]) and bool((out[~which] == 7).all()), values
    assert len(kept.READY) <= launches + 1


def test_masked_is_deterministic_and_keeps_to_its_output() -> None:
    """Twenty launches give the same bits, and nothing beside `out` changes."""
    a, b = normal(8, 512, 1024), normal(8, 512, 1024).mT
    counts = torch.tensor([0, 512, 17, 300, 64, 65, 128, 1], device="cuda", dtype=torch.int32)
    room = torch.full((8, 520, 528), 7.0, dtype=BF16, device="cuda")
    out = room[:, 4:516, 8:520]
    grouped_matmul(a, b, counts=counts, out=out)
    first = room.clone()
    for _ in range(20):
        grouped_matmul(a, b, counts=counts, out=out)
    assert torch.equal(room, first)
    assert bool((room[:, :4] == 7).all()) and bool((room[:, 516:] == 7).all())
    assert bool((room[..., :8] == 7).all()) and bool((room[..., 520:] == 7).all())


# -------------------------------------------------------------------------------------------------------------- along K

LINES: dict[str, tuple[int, ...]] = {
    "even": (256,) * 8,
    "ragged": (0, 1, 300, 0, 0, 77, 128, 513, 64, 0, 16, 15, 17, 1000, 0, 63, 65),
    "one": (129,),
    "tiny": (1,) * 40,
    "all in one": (0, 0, 4096, 0),
    "many": tuple(range(96)),
}
K_CONFIGS = (None, Sm90Config((64, 64), consumers=1, loader="warp"),
             Sm90Config((256, 192), cluster=(1, 2), staged_epilogue_k_tiles=2),
             Sm90Config((128, 256), cluster=(2, 1)), Sm90Config((128, 128), cluster=(1, 2), loader="warpgroup"),
             Sm90Config((64, 72), consumers=1, loader="warp", tile_k=32))  # fmt: skip


def bounded(got: Any, a: Any, b: Any, ends: list[int]) -> bool:
    """True if every group is within float32's error of its sum, and one rounding."""
    right = True
    for e, (first, end) in enumerate(pairwise([0, *ends])):
        left, other = a[:, first:end].double(), b[first:end].double()
        want, most = left @ other, left.abs() @ other.abs()
        of = torch.finfo(got.dtype)
        bound = of.eps * (want.abs() + of.smallest_normal) + (end - first + 3) * 2.0**-23 * most
        right = right and bool(((got[e].double() - want).abs() <= bound).all())
    return right


@pytest.mark.parametrize("config", K_CONFIGS, ids=["choice", "64", "256x192", "128x256", "128", "64x72"])
@pytest.mark.parametrize("kind", [BF16, F16])
@pytest.mark.parametrize("name", LINES)
def test_along_k(name: str, kind: Any, config: Any) -> None:
    """Against float64, of every output type; an empty group gives zeros, and the host does not wait."""
    torch.manual_seed(0)
    sizes = LINES[name]
    ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
    a, b = normal(sum(sizes), 520, kind=kind).mT, normal(sum(sizes), 392, kind=kind)
    offsets = torch.nn.functional.pad(ends, (1, 0))
    with without_waiting():
        got = grouped_matmul(a, b, offs=ends, config=config)
        same = grouped_matmul(a, b, offsets.long(), config=config)
        out = torch.full((len(sizes), 520, 392), 7.0, dtype=F32, device="cuda")
        if config is None:
            grouped_matmul(a, b, offsets, out=out, out_dtype=F32)
    assert torch.equal(got, same) and bounded(got, a, b, ends.tolist())
    assert config is not None or bounded(out, a, b, ends.tolist())
    assert not got[[e for e, size in enumerate(sizes) if not size]].any()


def test_no_group_along_k_reads_lines_of_another() -> None:
    """Lines of no group, and of a group beside it, are NaN and infinity."""
    sizes = (3, 70, 1, 64, 130, 5)
    ends = torch.tensor(sizes, device="cuda").cumsum(0).int()
    for poisoned in range(len(sizes)):
        a, b = normal(300, 264).mT, normal(300, 136)
        first, end = int(ends[poisoned]) - sizes[poisoned], int(ends[poisoned])
        a[:, first:end], b[first:end] = torch.nan, torch.inf
        a[:, int(ends[-1]) :], b[int(ends[-1]) :] = torch.nan, torch.nan
        for config in (None, *K_CONFIGS[1:3]):
            got = grouped_matmul(a, b, offs=ends, config=config)
            clean = [e for e in range(len(sizes)) if e != poisoned]
            assert bool(got[clean].isfinite().all()) and not bool(got[poisoned].isfinite().any()), (poisoned, config)


def test_offsets_that_are_no_groups_write_nothing_outside() -> None:
    room = torch.full((6, 264, 144), 7.0, dtype=BF16, device="cuda")
    a, b = normal(300, 264).mT, normal(300, 136)
    for values in ((-9, 40, 20, 60, 1000), (50, 1 << 30, -(1 << 31), 7, 7), (300, 0, 300, 0, 300)):
        offsets = torch.tensor(values, device="cuda", dtype=torch.int32)
        grouped_matmul(a, b, offsets, out=room[1:5, :, :136])
        torch.cuda.synchronize()
        assert bool((room[[0, 5]] == 7).all()) and bool((room[..., 136:] == 7).all())


def test_along_k_in_a_graph() -> None:
    a, b = normal(1024, 512).mT, normal(1024, 384)
    offsets = torch.tensor([0, 0, 0, 0, 0, 1024], device="cuda", dtype=torch.int32)
    out = torch.empty(5, 512, 384, dtype=BF16, device="cuda")
    grouped_matmul(a, b, offsets, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_matmul(a, b, offsets, out=out)
    for values in ((0, 1, 2, 3, 1000, 1024), (0, 200, 400, 600, 800, 1024), (0, 0, 1024, 1024, 1024, 1024)):
        offsets.copy_(torch.tensor(values))
        graph.replay()
        assert bounded(out, a, b, list(values[1:])), values
    first = out.clone()
    for _ in range(20):
        graph.replay()
    assert torch.equal(out, first)


@pytest.mark.parametrize("shape", [(4, 8192, 4096, 7168), (16, 2048, 7168, 2048)])
def test_along_k_of_the_benchmark(shape: tuple[int, ...]) -> None:
    """The sizes that are timed, some rows of them against float64."""
    groups, rows, m, n = shape
    a, b = normal(groups * rows, m).mT, normal(groups * rows, n)
    ends = torch.arange(rows, groups * rows + 1, rows, device="cuda", dtype=torch.int32)
    got = grouped_matmul(a, b, offs=ends)
    some = torch.randperm(m, device="cuda")[:64]
    assert bounded(got[:, some], a[some], b, ends.tolist())


@pytest.mark.parametrize("recipe", ["lines", "squares", "rows", "none"])
@pytest.mark.parametrize(
    "m, n, ends", [(200, 136, (0, 128, 128, 640, 1000)), (1024, 512, (256, 256, 1280, 2048)), (64, 72, (400,))]
)
def test_k_blocks(m: int, n: int, ends: tuple[int, ...], recipe: str) -> None:
    """8-bit floats against float64 by each recipe; the host does not wait, and the bits are the same again."""
    torch.manual_seed(0)
    k, groups, blocks = ends[-1], len(ends), -(-ends[-1] // 128)
    a, b = eight(m, n, k)
    of_lines = torch.rand(blocks, m, device="cuda").mT + 0.5, torch.rand(n, blocks, device="cuda") + 0.5
    given = {
        "lines": of_lines, "squares": (of_lines[0], torch.rand(-(-n // 128), blocks, device="cuda") + 0.5),
        "rows": (torch.rand(groups, m, 1, device="cuda"), torch.rand(groups, 1, n, device="cuda")),
        "none": (None, None),
    }[recipe]  # fmt: skip
    offs, (sa, sb) = torch.tensor(ends, device="cuda", dtype=torch.int32), given
    with without_waiting():
        got, same = [grouped_matmul(a, b, offs=offs, scale_a=sa, scale_b=sb, out_dtype=F32) for _ in range(2)]
    left, right = a.double(), b.mT.double()
    if recipe in ("lines", "squares"):
        lines = sb if recipe == "lines" else sb.repeat_interleave(128, 0)[:n]
        left, right = [x * s.double().repeat_interleave(128, 1)[:, :k] for x, s in ((left, sa), (right, lines))]
    short = 2.0**-12 if recipe in ("lines", "squares") else 2.0**-9  # sums of 14 bits: of 128 elements, or of a group
    for e, (first, end) in enumerate(pairwise([0, *ends])):
        factor = sa[e].double() * sb[e].double() if recipe == "rows" else 1.0
        want, most = [
            factor * (x[:, first:end] @ y[:, first:end].mT) for x, y in ((left, right), (left.abs(), right.abs()))
        ]
        assert bool(((got[e].double() - want).abs() <= short * most + 1e-6).all())
    assert torch.equal(got, same)


def test_a_group_inside_of_a_k_block_is_nan() -> None:
    a, b = eight(256, 256, 512)
    offs = torch.tensor([128, 200, 384, 512], device="cuda", dtype=torch.int32)
    got = grouped_matmul(a, b, offs=offs)
    assert [bool(x.isnan().all()) for x in got] == [False, True, True, False] and not got[[0, 3]].isnan().any()
