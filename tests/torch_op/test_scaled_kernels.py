"""scaled_matmul and grouped_matmul by their kernels, in the emulator: the launches that a GPU gets, and kept ones."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, explain_matmul, grouped_matmul, scaled_matmul
from layoutgemm.torch_op.prepared import config_text
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.kernel_fuzz import faults
from tests.torch_op.test_operator import BF16, F32, emulated, integers

pytestmark = pytest.mark.dsl
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SMALL = Sm90Config((64, 64), consumers=1, stages=2, loader="warp")


def powers(*shape: int) -> Any:
    return 2.0 ** torch.randint(-1, 2, shape).float()


def spread(scale: Any, group: int, size: int, k: int) -> Any:
    return scale.double().repeat_interleave(group, -2)[..., :size, :].repeat_interleave(128, -1)[..., :k]


def scaled_case(name: str, m: int = 70, n: int = 48, k: int = 272) -> tuple[dict[str, Any], Any]:
    """Operands whose product is exact, and the product in float64, before bias and activation."""
    a, b = integers(m, k, dtype=E4M3), integers(n, k, dtype=E5M2).mT
    blocks = -(-k // 128)
    plain = a.double() @ b.double()
    if name == "tensors":
        sa, sb = torch.tensor(0.5), torch.tensor([[2.0]])
        return {"a": a, "scale_a": sa, "b": b, "scale_b": sb}, plain
    if name == "rows":
        sa, sb = powers(m, 1), powers(1, n)
        return {"a": a, "scale_a": sa, "b": b, "scale_b": sb}, sa.double() * plain * sb.double()
    if name == "rows and a tensor":
        sa, sb = powers(m), torch.tensor([2.0])
        return {"a": a, "scale_a": sa, "b": b, "scale_b": sb}, sa.double()[:, None] * plain * 2
    if name == "rows, of one":
        sa = powers(m, 1)
        return {"a": a, "scale_a": sa, "b": b}, sa.double() * plain
    groups = {"1x128, 128x128": (1, 128), "1x128, 1x128": (1, 1), "128x128, 128x128": (128, 128)}[name]
    sa, sb = powers(-(-m // groups[0]), blocks), powers(-(-n // groups[1]), blocks)
    want = (a.double() * spread(sa, groups[0], m, k)) @ (b.double() * spread(sb, groups[1], n, k).mT)
    return {"a": a, "scale_a": sa, "b": b, "scale_b": sb}, want


CASES = ("tensors", "rows", "rows and a tensor", "rows, of one", "1x128, 128x128", "1x128, 1x128", "128x128, 128x128")
FEW = ("rows", "1x128, 128x128")


@pytest.mark.parametrize("name", [x if x in FEW else pytest.param(x, marks=pytest.mark.slow) for x in CASES])
def test_scaled_products_twice(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The long way, then kept: the same result, with bias and activation, into a new tensor and the caller's."""
    given, want = scaled_case(name)
    bias = integers(48, dtype=F32)
    finished = torch.relu(want + bias)
    with emulated(monkeypatch) as calls:
        for _ in (1, 2):
            assert torch.equal(scaled_matmul(**given, out_dtype=F32, config=SMALL).double(), want)
            got = scaled_matmul(**given, bias=bias, activation="relu", out_dtype=F32, config=SMALL)
            assert torch.equal(got.double(), finished)
            out = torch.empty(70, 48, dtype=BF16)
            assert scaled_matmul(**given, out=out, config=SMALL) is out and torch.equal(out, want.to(BF16))
        assert len(calls) == 6 and len(kept.READY) == 3
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        other, more = scaled_case(name)
        assert torch.equal(scaled_matmul(**other, out_dtype=F32, config=SMALL).double(), more)


@pytest.mark.parametrize("name", ["rows", pytest.param("tensors", marks=pytest.mark.slow)])
def test_exact_sums_are_promoted(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, want = scaled_case(name)
    with emulated(monkeypatch) as calls:
        for _ in (1, 2):
            got = scaled_matmul(**given, use_fast_accum=False, out_dtype=F32, config=SMALL)
            assert torch.equal(got.double(), want)
        assert len(calls) == 2 and kept.READY


def test_scales_of_any_strides(monkeypatch: pytest.MonkeyPatch) -> None:
    """TMA-aligned column-major scales are read in place; vectors are copied."""
    given, want = scaled_case("1x128, 128x128")
    aligned = torch.zeros(3, 72).mT[:70]
    aligned.copy_(given["scale_a"])
    assert aligned.stride() == (1, 72)
    rows, expected = scaled_case("rows")
    with emulated(monkeypatch):
        for _ in (1, 2):
            got = scaled_matmul(**{**given, "scale_a": aligned}, out_dtype=F32, config=SMALL)
            assert torch.equal(got.double(), want)
            got = scaled_matmul(
                **{**rows, "scale_a": rows["scale_a"].repeat(1, 2)[:, :1], "scale_b": rows["scale_b"].mT},
                out_dtype=F32, config=SMALL,
            )  # fmt: skip
            assert torch.equal(got.double(), expected)
        assert len(kept.READY) == 1


def test_a_batch_of_row_wise_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = integers(2, 20, 144, dtype=E4M3), integers(2, 48, 144, dtype=E4M3).mT
    sa, sb = powers(2, 20, 1), powers(2, 1, 48)
    want = sa.double() * (a.double() @ b.double()) * sb.double()
    with emulated(monkeypatch):
        for fast in (True, False):
            got = scaled_matmul(a, sa, b, sb, out_dtype=F32, config=SMALL, use_fast_accum=fast)
            assert torch.equal(got.double(), want)
        one = scaled_matmul(a[:1], sa[:1], b[:1], sb[:1], out_dtype=F32, config=SMALL)
        assert torch.equal(one.double(), want[:1])


@pytest.mark.parametrize("groups", [(1, 128), pytest.param((1, 1), marks=pytest.mark.slow)])
def test_a_batch_of_scales_of_blocks(groups: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """Scales of any strides are read in place: along K, along M, TMA-aligned, of all matrices, batch innermost."""
    m, n, k = 70, 48, 272
    a, b = integers(3, m, k, dtype=E4M3), integers(3, n, k, dtype=E4M3).mT
    sb = powers(3, -(-n // groups[1]), 3)
    right = torch.stack([b[i].double() * spread(sb[i], groups[1], n, k).mT for i in range(3)])
    plain, aligned = powers(3, m, 3), torch.zeros(3, 3, 72).mT[:, :m]
    aligned.copy_(plain)
    lying = (
        plain, plain.mT.contiguous().mT, aligned, plain[:1].expand(3, -1, -1),
        plain.permute(1, 2, 0).contiguous().permute(2, 0, 1),
    )  # fmt: skip
    with emulated(monkeypatch) as calls:
        for sa in lying:
            want = torch.stack([(a[i].double() * spread(sa[i], 1, m, k)) @ right[i] for i in range(3)])
            assert torch.equal(scaled_matmul(a, sa, b, sb, out_dtype=F32, config=SMALL).double(), want)
        assert len(calls) == len(kept.READY) == len(lying)


@pytest.mark.parametrize("blocks", [True, False])
def test_chosen_tiles_store_results_of_8_bits(blocks: bool) -> None:
    """Whole 16 bytes of a row: also where K is in parts, each of which stores a share of the columns."""
    for m, n, k in product((1, 16, 64, 300), (8, 128, 576, 2112), (128, 1536, 7168)):
        a, b = torch.empty(m, k, dtype=E4M3), torch.empty(n, k, dtype=E4M3).mT
        shapes = ((m, k // 128), (-(-n // 128), k // 128)) if blocks else ((m,), (n,))
        sa, sb = map(torch.ones, shapes)
        found = explain_matmul(a, b, scale_a=sa, scale_b=sb, out_dtype=E4M3, use_fast_accum=False)
        assert found.kernel.startswith("Sm90Plan") and found.launches == 1


OFFSETS = torch.tensor([0, 30, 30, 65, 70], dtype=torch.int32)


def experts(kind: Any = BF16, n: int = 48) -> tuple[Any, Any, Any]:
    """Rows of groups, a matrix for each, and what they make."""
    a, b = integers(70, 144, dtype=kind), integers(4, n, 144, dtype=kind).mT
    ends = OFFSETS.tolist()
    parts = [a[ends[e] : ends[e + 1]].double() @ b[e].double() for e in range(4)]
    return a, b, torch.cat(parts)


def test_groups_of_rows_and_of_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, want = experts()
    with emulated(monkeypatch) as calls:
        for _ in (1, 2):
            assert torch.equal(grouped_matmul(a, b, OFFSETS, config=SMALL), want.to(BF16))
        assert len(calls) == 2 and len(kept.READY) == 1
        assert torch.equal(grouped_matmul(a, b, offs=OFFSETS[1:], config=SMALL), want.to(BF16))
        columns = grouped_matmul(b.mT, a.mT, OFFSETS, config=SMALL)
        assert torch.equal(columns, want.to(BF16).mT) and columns.stride(0) == 1
        out = torch.empty(48, 70, dtype=BF16)
        assert grouped_matmul(b.mT, a.mT, OFFSETS, config=SMALL, out=out) is out and torch.equal(out, columns)


@pytest.mark.parametrize("n", [48, 41])
def test_ends_leave_what_is_behind(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """And where rows are computed with a pitch of 16 bytes, and copied."""
    a, b, want = experts(n=n)
    ends = torch.tensor([30, 30, 60, 63])
    with emulated(monkeypatch, edges=n % 8 == 0):
        for out in (None, torch.full((70, n), 7.0, dtype=BF16)):
            got = grouped_matmul(a, b, offs=ends, config=SMALL, out=out)
            assert torch.equal(got[:60], want[:60].to(BF16))
            assert (got[63:] == (0 if out is None else 7)).all()


def test_groups_with_scales(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, want = experts(E4M3)
    which = torch.repeat_interleave(torch.arange(4), OFFSETS.diff())
    sa, sb = powers(70, 1), powers(4, 1, 48)
    scaled = sa.double() * want * sb.double()[which, 0]
    blocks = powers(70, 2), powers(4, 1, 2)
    with emulated(monkeypatch):
        for _ in (1, 2):
            got = grouped_matmul(a, b, OFFSETS, scale_a=sa, scale_b=sb, out_dtype=F32, config=SMALL)
            assert torch.equal(got.double(), scaled)
            got = grouped_matmul(a, b, OFFSETS, scale_a=blocks[0], scale_b=blocks[1], out_dtype=F32, config=SMALL)
            wide = a.double() * spread(blocks[0], 1, 70, 144)
            other = b.double() * spread(blocks[1], 128, 48, 144).mT
            assert torch.equal(got.double(), torch.stack([wide[i] @ other[e] for i, e in enumerate(which.tolist())]))
        assert len(kept.READY) == 2


def test_groups_with_bias_and_activation(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the kernel: of one bias, and of one of each group; beside scales, and with exact sums."""
    a, b, want = experts(E4M3)
    which = torch.repeat_interleave(torch.arange(4), OFFSETS.diff())
    sa, sb, one, each = powers(70, 1), powers(4, 1, 48), integers(48, dtype=F32), integers(4, 48)
    scaled = sa.double() * want * sb.double()[which, 0]
    options = {"out_dtype": F32, "config": SMALL, "activation": "relu"}
    with emulated(monkeypatch) as calls:
        for _ in (1, 2):
            assert torch.equal(grouped_matmul(a, b, OFFSETS, bias=one, **options).double(), torch.relu(want + one))
            got = grouped_matmul(a, b, OFFSETS, scale_a=sa, scale_b=sb, bias=each, **options)
            assert torch.equal(got.double(), torch.relu(scaled + each.double()[which]))
            got = grouped_matmul(a, b, OFFSETS, scale_a=sa, scale_b=sb, bias=each, use_fast_accum=False, **options)
            assert torch.equal(got.double(), torch.relu(scaled + each.double()[which]))
        assert len(calls) == 6 and len(kept.READY) == 3
        x, y = integers(4, 20, 144), integers(4, 48, 144).mT
        got = grouped_matmul(x, y, bias=each, **options)
        assert torch.equal(got.double(), torch.relu(x.double() @ y.double() + each.double()[:, None]))


@pytest.mark.parametrize("name", ["rows", "1x128, 128x128"])
def test_launches_of_the_operator_are_kept(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a compiled graph calls it."""
    given, want = scaled_case(name)
    text = config_text(SMALL)

    def call() -> Any:
        tensors = given["a"], given["scale_a"], given["b"], given["scale_b"]
        return torch.ops.layoutgemm.scaled_matmul(*tensors, out_dtype=F32, config=text)

    with emulated(monkeypatch) as calls:
        first = call()
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        assert torch.equal(first.double(), want) and torch.equal(call(), first)
        assert len(calls) == 2 and len(kept.READY) == 1


def test_ends_and_transposed_products_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, want = experts()
    scales = {"scale_a": powers(4, 48, 1), "scale_b": powers(1, 70)}
    x, y = b.to(E4M3).mT, a.to(E4M3).mT
    with emulated(monkeypatch) as calls:
        first = [
            grouped_matmul(a, b, offs=OFFSETS[1:], config=SMALL),
            grouped_matmul(b.mT, a.mT, OFFSETS, config=SMALL),
        ]
        scaled = grouped_matmul(x, y, OFFSETS, config=SMALL, **scales)
        monkeypatch.setattr(kept, "launch_of", None)  # the long way is shut
        assert torch.equal(first[0], want.to(BF16)) and torch.equal(first[1], want.to(BF16).mT)
        assert torch.equal(grouped_matmul(a, b, offs=OFFSETS.clone()[1:], config=SMALL), first[0])
        assert torch.equal(grouped_matmul(b.mT, a.mT, OFFSETS.clone(), config=SMALL), first[1])
        assert torch.equal(grouped_matmul(x, y, OFFSETS, config=SMALL, **scales), scaled)
        assert len(calls) == 6


@pytest.mark.parametrize("seed", [0, pytest.param(100, marks=pytest.mark.slow)])
def test_random_products_are_those_of_the_cpu(seed: int) -> None:
    assert list(faults(seed, 40 if seed else 2)) == []
