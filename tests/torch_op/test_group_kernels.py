"""Masked groups and groups along K by their kernels, in the emulator: the launches that a GPU gets, and kept ones."""

from __future__ import annotations

import itertools
import json
import re
import statistics
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks.bench_variants import rows_between
from layoutgemm import Sm90Config, grouped_matmul
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.kernels.sm90.choose.scaled_grouped import grouped_config, usual_config
from layoutgemm.torch_op.scaled_grouped import kept
from layoutgemm.torch_op.scaled_grouped.grouped import check_grouped, expected_config
from layoutgemm.torch_op.scaled_grouped.scaled import NO_FINISH
from tests.torch_op.test_operator import BF16, F32, emulated, integers
from tests.torch_op.test_scaled_kernels import OFFSETS, experts, powers, spread

pytestmark = pytest.mark.dsl
E4M3 = torch.float8_e4m3fn
SMALL = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")
COUNTS = torch.tensor([3, 0, 70, 64, 1], dtype=torch.int32)


def masked(kind: Any = BF16, n: int = 48, k: int = 144) -> tuple[Any, Any, Any]:
    """Groups of 70 rows, a matrix for each, and what they make in float64."""
    a, b = integers(5, 70, k, dtype=kind), integers(5, n, k, dtype=kind).mT
    return a, b, a.double() @ b.double()


def same(got: Any, want: Any, counts: Any, rest: float | None = None) -> bool:
    """True if the rows that count are those wanted, and the others are `rest`."""
    count = torch.arange(got.shape[1]) < counts[:, None]
    return torch.equal(got[count], want.to(got.dtype)[count]) and (rest is None or bool((got[~count] == rest).all()))


def test_masked_groups_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept with other counts: into a new tensor, and the caller's."""
    a, b, want = masked()
    out = torch.full((5, 70, 48), 7.0, dtype=BF16)
    with emulated(monkeypatch) as calls:
        assert same(grouped_matmul(a, b, counts=COUNTS, config=SMALL), want, COUNTS)
        assert grouped_matmul(a, b, counts=COUNTS, config=SMALL, out=out) is out and same(out, want, COUNTS, 7)
        assert len(calls) == 2 and len(kept.READY) == 2
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        for values in ((70, 1, 0, 64, 65), (0, 0, 0, 0, 0), (-5, 1 << 30, 71, 2, 0)):
            counts = torch.tensor(values, dtype=torch.int32)
            held = counts.clamp(0, 70)
            assert same(grouped_matmul(a, b, counts=counts, config=SMALL), want, held)
            grouped_matmul(a, b, counts=counts, config=SMALL, out=out.fill_(7.0))
            assert same(out, want, held, 7)


@pytest.mark.parametrize("n", [48, 41])
def test_an_output_of_any_strides(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stored in place, or with a pitch of 16 bytes, and copied: rows that do not count stay."""
    a, b, want = masked(n=n)
    wide = torch.full((5, 70, n + 9), 7.0, dtype=BF16)
    columns = torch.full((5, n, 70), 7.0, dtype=BF16)
    with emulated(monkeypatch, edges=n % 8 == 0):
        for out in (wide[..., :n], wide[..., 3 : n + 3], columns.mT):
            grouped_matmul(a, b, counts=COUNTS.long(), config=SMALL, out=out.fill_(7.0))
            assert same(out, want, COUNTS, 7)
    assert (wide[..., n + 3 :] == 7).all()


@pytest.mark.parametrize("blocks", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_scales_bias_and_activation(blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, want = masked(E4M3)
    bias = integers(5, 48, dtype=F32)
    if blocks:
        sa, sb = powers(5, 70, 2), powers(5, 1, 2)
        want = (a.double() * spread(sa, 1, 70, 144)) @ (b.double() * spread(sb, 128, 48, 144).mT)
    else:
        sa, sb = powers(5, 70, 1), powers(5, 1, 48)
        want = sa.double() * want * sb.double()
    want = torch.relu(want + bias[:, None])
    given = {"scale_a": sa, "scale_b": sb, "bias": bias, "activation": "relu", "out_dtype": F32, "config": SMALL}
    with emulated(monkeypatch) as calls:
        for counts in (COUNTS, COUNTS.flip(0)):
            assert same(grouped_matmul(a, b, counts=counts, **given), want, counts)
        assert len(calls) == 2 and len(kept.READY) == 1


@pytest.mark.parametrize("kind", [BF16, pytest.param(E4M3, marks=pytest.mark.slow)])
def test_one_masked_group(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, want = masked(kind)
    out = torch.full((1, 70, 48), 7.0, dtype=BF16)
    bias = integers(1, 48, dtype=F32)
    scales = {} if kind == BF16 else {"scale_a": powers(1, 70, 1), "scale_b": torch.tensor([2.0])}
    factor = scales["scale_a"].double() * 2 if scales else 1
    counts = torch.tensor([66], dtype=torch.int32)
    with emulated(monkeypatch):
        got = grouped_matmul(a[:1], b[:1], counts=counts, config=SMALL, out=out, bias=bias, **scales)
        assert got is out and same(out, factor * want[:1] + bias, counts, 7)
        assert grouped_matmul(a[:1], b[:1], counts=counts, config=SMALL, **scales).shape == (1, 70, 48)


def test_rows_that_do_not_count_may_hold_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, want = masked()
    a[torch.arange(70) >= COUNTS[:, None]] = torch.nan
    with emulated(monkeypatch):
        assert same(grouped_matmul(a, b, counts=COUNTS, config=SMALL), want, COUNTS)


# -------------------------------------------------------------------------------------------------------------- along K


def lines(kind: Any = BF16, m: int = 72, n: int = 48) -> tuple[Any, Any, Any]:
    """Lines of groups along K, column-major A, and what the groups make."""
    a, b = integers(70, m, dtype=kind).mT, integers(70, n, dtype=kind)
    ends = OFFSETS.tolist()
    parts = [a[:, ends[e] : ends[e + 1]].double() @ b[ends[e] : ends[e + 1]].double() for e in range(4)]
    return a, b, torch.stack(parts)


@pytest.mark.parametrize("kind", [BF16, pytest.param(torch.float16, marks=pytest.mark.slow)])
def test_groups_along_k_twice(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept with other ends: an empty group gives zeros."""
    a, b, want = lines(kind)
    out = torch.full((4, 72, 48), 7.0, dtype=F32)
    with emulated(monkeypatch) as calls:
        assert torch.equal(grouped_matmul(a, b, OFFSETS, config=SMALL), want.to(kind))
        assert grouped_matmul(a, b, OFFSETS, config=SMALL, out=out, out_dtype=F32) is out
        assert torch.equal(out.double(), want) and not out[1].any()
        assert torch.equal(grouped_matmul(a, b, offs=OFFSETS[1:].long(), config=SMALL), want.to(kind))
        assert len(calls) == 3 and len(kept.READY) == 3
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        assert torch.equal(grouped_matmul(a, b, OFFSETS.clone(), config=SMALL), want.to(kind))
        turned = torch.tensor([0, 5, 69, 69, 70], dtype=torch.int32)
        got = grouped_matmul(a, b, turned, config=SMALL)
        assert torch.equal(got[3], (a[:, 69:].double() @ b[69:].double()).to(kind)) and not got[2].any()


def test_lines_in_no_group_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, _ = lines()
    ends = torch.tensor([10, 10, 33, 64], dtype=torch.int32)
    a[:, 64:], b[64:] = torch.nan, torch.inf
    with emulated(monkeypatch):
        got = grouped_matmul(a, b, offs=ends, config=SMALL)
    assert torch.equal(got[2], (a[:, 10:33].double() @ b[10:33].double()).to(BF16)) and bool(got.isfinite().all())


@pytest.mark.parametrize("form", ["contiguous K", "odd pitch", "one group", "an output of any strides"])
def test_operands_of_any_strides(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, want = lines()
    out = None
    if form == "contiguous K":
        a, b = a.contiguous(), b.mT.contiguous().mT
    elif form == "odd pitch":
        wide = torch.zeros(70, 75, dtype=BF16)
        a, b = wide[:, :72].copy_(a.mT).mT, torch.zeros(70, 53, dtype=BF16)[:, 3:51].copy_(b)
    elif form == "an output of any strides":
        out = torch.empty(4, 48, 77, dtype=BF16)[..., :72].mT
    offsets = OFFSETS
    if form == "one group":
        offsets, want = torch.tensor([0, 70]), (a.double() @ b.double())[None]
    with emulated(monkeypatch):
        for _ in (1, 2):
            got = grouped_matmul(a, b, offsets, config=SMALL, out=out)
            assert got.shape == want.shape and torch.equal(got, want.to(BF16))


@pytest.mark.parametrize("order", ["row", pytest.param("col", marks=pytest.mark.slow)])
def test_gradients_by_kernels(order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """dA by groups of rows, dB along K: of float16 too, and as B lies."""
    a, b, _ = experts(torch.float16)
    b = b if order == "col" else b.contiguous()
    x, y = a.clone().requires_grad_(), b.detach().requires_grad_()
    with emulated(monkeypatch) as calls:
        c = grouped_matmul(x, y, OFFSETS)
        grad = integers(*c.shape, dtype=torch.float16)
        c.backward(grad)
        assert len(calls) == 3
    ends = OFFSETS.tolist()
    for e in range(4):
        rows = slice(ends[e], ends[e + 1])
        assert torch.equal(x.grad[rows], (grad[rows].double() @ b[e].double().mT).half())
        assert torch.equal(y.grad[e], (a[rows].double().mT @ grad[rows].double()).half())
    assert y.grad.stride() == y.stride()


BLOCKS = torch.tensor([0, 128, 128, 384, 400], dtype=torch.int32)  # ends of groups along K of 8-bit floats


def k_blocks(m: int = 72, n: int = 48) -> tuple[Any, Any, Any, Any, Any]:
    """K-contiguous A and B, scales of 1x128 of both, and each group's product."""
    a, b = integers(m, 400, dtype=E4M3), integers(n, 400, dtype=E4M3).mT
    sa, sb = powers(4, m).mT, powers(n, 4)  # along M, as TMA-aligned scales lie, and along K
    wide = [x.double() * s.repeat_interleave(128, 1)[:, :400] for x, s in ((a, sa), (b.mT, sb))]
    ends = BLOCKS.tolist()
    parts = [wide[0][:, ends[e] : ends[e + 1]] @ wide[1][:, ends[e] : ends[e + 1]].mT for e in range(4)]
    return a, sa, b, sb, torch.stack(parts)


def test_groups_along_k_of_8_bits_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept with other ends; those inside of a block, which no host sees then, give NaN."""
    a, sa, b, sb, want = k_blocks()
    given = {"scale_a": sa, "scale_b": sb, "out_dtype": F32}
    inside = r"offsets\[1\] = 64 = 0 \* 128 \+ 64: groups of K in blocks begin at multiples of 128, and end there or at"
    with pytest.raises(OperandError, match=inside):
        grouped_matmul(a, b, torch.tensor([0, 64, 128, 384, 400]), **given)
    assert torch.equal(grouped_matmul(a, b, BLOCKS, **given).double(), want)  # on the CPU
    out = torch.full((4, 72, 48), 7.0, dtype=F32)
    with emulated(monkeypatch) as calls:
        assert grouped_matmul(a, b, BLOCKS, out=out, config=SMALL, **given) is out and torch.equal(out.double(), want)
        got = grouped_matmul(a, b, BLOCKS, config=SMALL, **given)
        assert torch.equal(got.double(), want) and len(calls) == len(kept.READY) == 2
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        turned = torch.tensor([0, 128, 200, 384, 400], dtype=torch.int32)
        got = grouped_matmul(a, b, turned, config=SMALL, **given)
        assert torch.equal(got[::3].double(), want[::3]) and bool(got[1:3].isnan().all())


@pytest.mark.parametrize("kind", ["rows", pytest.param("tensors", marks=pytest.mark.slow), "none", "one group"])
def test_factors_of_groups_along_k(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RowWise has a scale for each row of a group; K that is not contiguous is copied."""
    a, _, b, _, _ = k_blocks()
    ends = BLOCKS if kind != "one group" else torch.tensor([0, 400])
    groups = len(ends) - 1
    sa, sb = powers(groups, 72, 1), powers(groups, 1, 48)
    if kind in ("tensors", "none"):
        sa, sb = (torch.tensor([0.5]), torch.tensor([4.0])) if kind == "tensors" else (torch.ones(1), torch.ones(1))
    parts = [a[:, s:e].double() @ b[s:e].double() for s, e in itertools.pairwise(ends.tolist())]
    want = sa.double() * torch.stack(parts) * sb.double()
    given = {} if kind == "none" else {"scale_a": sa, "scale_b": sb}
    assert torch.equal(grouped_matmul(a, b, ends, out_dtype=F32, **given).double(), want)
    with emulated(monkeypatch):
        for fast in (True, False):
            got = grouped_matmul(a, b.contiguous(), ends, use_fast_accum=fast, out_dtype=F32, config=SMALL, **given)
            assert torch.equal(got.double(), want)


def test_scales_of_groups_along_k_are_refused_by_name() -> None:
    a, sa, b, sb, _ = k_blocks()
    for scales, error, text in (
        (
            (sa[:, :3], sb),
            TensorError,
            r"scale_a has shape \[72, 3\]: \[72, 4\], or \[1, 4\] for a scale of 128; \[4, 72, 1\]",
        ),
        ((sa, powers(4, 48)), TensorError, r"scale_b has shape \[4, 48\]: \[48, 4\], or \[1, 4\]"),
        ((sa, powers(4, 1, 48)), OperandError, "scale_a is BlockWise1x128 and scale_b RowWise"),
        ((None, sb), OperandError, "scale_b without a scale_a"),
    ):
        with pytest.raises(error, match=text):
            grouped_matmul(a, b, BLOCKS, scale_a=scales[0], scale_b=scales[1])
    with pytest.raises(OperandError, match="bias: groups of K take none"):
        grouped_matmul(a, b, BLOCKS, scale_a=sa, scale_b=sb, bias=torch.ones(48))


def test_expected_rows_choose_tiles_alone() -> None:
    a, b = torch.randn(3, 512, 256).bfloat16(), torch.randn(3, 256, 64).bfloat16()
    counts = torch.tensor([5, 0, 512], dtype=torch.int32)
    call = check_grouped(a, b, counts, "counts", None, None, None, ("", ""))
    tiles = [expected_config(call, a, b, rows, NO_FINISH).tile for rows in (20, 192, 100_000)]
    assert tiles == [grouped_config(20, columns=64, groups=3).tile, (64, 64), (64, 64)]
    told = grouped_matmul(a, b, counts=counts, expected_rows=20)
    assert torch.equal(told, grouped_matmul(a, b, counts=counts))
    for more, text in (
        ({"expected_rows": 20}, "there is no groups"),
        ({"expected_rows": 20, "counts": counts, "config": grouped_config(20)}, "there is a config"),
        ({"expected_rows": 0, "counts": counts}, "expected_rows"),
        ({"expected_rows": "20", "counts": counts}, "expected_rows must be an integer"),
    ):
        with pytest.raises(OperandError, match=text):
            grouped_matmul(a, b, **more)


RESULTS = Path(__file__).parents[2] / "benchmarks/results"
RECORD = RESULTS / "groups_equal_h200.json"
KINDS: dict[str, Any] = {
    "fp8": (("e4m3", "e4m3:col", "bf16"), (1, 128)), "bf16": (("bf16", "bf16:col", "bf16"), None)
}  # fmt: skip


def test_equal_groups_lose_little_to_the_fastest_tile_of_the_record() -> None:
    """A choice that is as for uneven groups has their time; of bfloat16 it is at most 4% behind, of float8 2%."""
    for name, us in json.loads(RECORD.read_text(encoding="utf-8"))["us"].items():
        kind, groups, rows, n, k = re.fullmatch(r"(\w+), (\d+) groups of (\d+) rows, (\d+)x(\d+)", name).groups()  # type: ignore[union-attr]
        sizes = int(groups) * int(rows), int(n), int(k), int(groups)
        config, before = (usual_config(sizes, *KINDS[kind], equal=equal) for equal in (True, False))
        found = f"{'x'.join(map(str, config.tile))} {config.cluster}"
        mine = (
            us["the choice for uneven groups"]
            if config == before
            else min(t for said, t in us.items() if found in said)
        )
        assert mine <= min(us.values()) * (1.02 if kind == "fp8" else 1.04), name
        assert mine <= us["the choice for uneven groups"] * 1.01


SECTIONS = "few tiles", "narrow tiles", "fewer rows", "few CTAs"  # of results/groups_halved_h200.json
BEHIND = {
    # No group has 129 rows in these draws, which the host does not see: tiles of 128 rows are one round.
    "bf16, 4 groups of about 128 rows, 4096x4096": 1.12, "fp8, 4 groups of about 128 rows, 4096x4096": 1.11,
    "bf16, 8 groups of about 128 rows, 7168x2048": 1.08,
    # 64x128 alone is faster here, in pairs it is not; of one group of 79 rows it is the other way.
    "bf16, 2 groups of about 80 rows, 2048x4096": 1.13,
}  # fmt: skip


def test_groups_of_few_tiles_lose_little_to_the_fastest_tile_of_the_record() -> None:
    """The fastest tile, or one at most 3% behind, but for `BEHIND`."""
    record = json.loads((RESULTS / "groups_halved_h200.json").read_text(encoding="utf-8"))
    found = set()
    for section, name in ((x, y) for x in SECTIONS for y in record[x]):
        of_name = re.fullmatch(r"(\w+), (\d+) groups of about (\d+) rows, (\d+)x(\d+)", name)
        if of_name is None or (section != SECTIONS[-1] and name in record[SECTIONS[-1]]):  # equal ones; run again
            continue
        kind, groups, rows, n, k = of_name.groups()
        sizes = sum(rows_between(int(groups), int(rows), 0.3)), int(n), int(k), int(groups)
        config = usual_config(sizes, *KINDS[kind])
        before = usual_config(sizes, *KINDS[kind], masked=True).tile if int(rows) < 224 else (128, 256)
        ours = {x: t for x, t in record[section][name].items() if x.startswith("ours")}
        tile = "x".join(map(str, config.tile))
        ours["the choice before"] = ours.pop("ours", max(ours.values()))
        named = ["the choice before"] if config.tile == before else [f"{tile} {config.cluster}", tile]
        said = next((x for x in named if any(x in y for y in ours)), "the choice before")
        mine = min(t for x, t in ours.items() if said in x)
        assert mine <= BEHIND.get(name, 1.03) * min(ours.values()), (name, said)
        found.add(config.tile)
    assert found >= {(64, 64), (64, 192), (128, 128), (128, 192), (128, 256)}


ALONE_BEHIND = {
    # The host does not see these draws. No group has 129 rows, and two groups make 11 tiles of 64 rows, and not 12.
    "4 groups of about 128 rows": 1.07, "2 groups of about 300 rows": 1.06,
    "bf16, 4 groups of about 200 rows": 1.05, "fp8, 4 groups of about 150 rows": 1.1,
    "fp8, 2 groups of about 200 rows": 1.1, "fp8, 1 groups of about 300 rows, 2048x7168": 1.07,
}  # fmt: skip


def test_single_ctas_of_few_groups_are_near_the_fastest_of_their_record() -> None:
    """The fastest tile of A's plain rows, or one at most 4% behind, but for `ALONE_BEHIND`.

    Tiles by GPC are timed with an early launch at the end of the kernel before. The chosen late one takes 0.2 us more.
    """
    record = json.loads((RESULTS / "groups_dealt_h200.json").read_text(encoding="utf-8"))
    ratios: dict[str, list[float]] = {"bf16": [], "fp8": []}
    for name, us in (x for run in ("first run", "second run") for x in record[run].items()):
        drawn = re.fullmatch(r"(\w+), (\d+) groups of about (\d+) rows, (\d+)x(\d+)", name)
        if drawn is None:
            continue
        kind, groups, rows, n, k = drawn.groups()
        sizes = sum(rows_between(int(groups), int(rows), 0.3)), int(n), int(k), int(groups)
        config = usual_config(sizes, *KINDS[kind], shifts=True)
        said = f"{'x'.join(map(str, config.tile))} {'gpc end' if config.tuning.gpc_order else 'start'}"
        if not config.tuning.shift_last_tile or said not in us:
            continue
        others = (t for x, t in us.items() if re.fullmatch(r"\d+x\d+ (gpc end|start|end)|choice", x))
        behind = max([1.04, *[x for of, x in ALONE_BEHIND.items() if of in name]])
        assert us[said] <= behind * min(others), name
        ratios[kind].append(min(us["deepgemm"], us["deepgemm pdl"]) / us[said])
        other = usual_config(sizes, *KINDS[kind], shifts=True, places=ClusterOccupancy(132, (66, 36, 26, 14)))
        assert not other.tuning.gpc_order
    assert len(ratios["bf16"]) > 25 and len(ratios["fp8"]) > 25 and min(ratios["fp8"]) > 0.79
    assert statistics.geometric_mean(ratios["bf16"]) > 0.995 and min(ratios["bf16"]) > 0.9


def test_few_scaled_groups_choose_by_products_in_turn() -> None:
    """The chosen tiles are within 2% of the fastest on average. None is 2% behind the former choice."""
    record = json.loads((RESULTS / "products_in_turn_h200.json").read_text(encoding="utf-8"))["second run"]
    behind, ahead = [], []
    for name, us in record.items():
        drawn = re.fullmatch(r"(\d+) groups of about (\d+) rows, (\d+)x(\d+)", name)
        if drawn is None:
            continue
        groups, rows, n, k = map(int, drawn.groups())
        config = usual_config((sum(rows_between(groups, rows, 0.3)), n, k, groups), *KINDS["fp8"], shifts=True)
        said = f"{'x'.join(map(str, config.tile))} {'gpc' if config.tuning.gpc_order else 'start'}"
        if config.tile[0] > 64 or said not in us:
            continue
        ours = [t for x, t in us.items() if x != "base" and not x.startswith("deepgemm")]
        behind.append(us[said] / min(ours))
        ahead.append(us["chosen"] / us[said])
    assert len(behind) > 10 and statistics.geometric_mean(behind) < 1.02 and min(ahead) > 0.98


def test_expected_rows_of_equal_groups_choose_tiles_that_they_fill() -> None:
    a, b, offs = torch.randn(768, 256).bfloat16(), torch.randn(4, 256, 64).bfloat16(), torch.arange(1, 5) * 192
    for said, groups in (("offs", offs), ("offsets", torch.arange(5) * 192)):
        call = check_grouped(a, b, groups, said, None, None, None, ("", ""))
        tiles = [expected_config(call, a, b, rows, NO_FINISH).tile for rows in (20, 128, 192)]
        assert tiles == [grouped_config(20, columns=64, groups=4).tile, (128, 256), (192, 128)]
        told = grouped_matmul(a, b, **{said: groups}, expected_rows=192)
        assert torch.equal(told, grouped_matmul(a, b, **{said: groups}))
    for given, more, text in (
        (
            (a, b),
            {"offs": offs, "expected_rows": 193},
            "expected_rows = 193: 4 groups of as many have 772 rows, and a has",
        ),
        ((a.T, a), {"offs": offs, "expected_rows": 1}, "of groups of rows, and these are groups along K"),
        (
            (
                b.mT,
                a[:64].T,
            ),
            {"offs": offs // 12, "expected_rows": 1},
            "these are groups of columns",
        ),
    ):
        with pytest.raises(OperandError, match=text):
            grouped_matmul(*given, **more)
