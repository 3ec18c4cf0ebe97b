"""scaled_matmul and grouped_matmul on a GPU: recipes, forms, gradients and kept launches, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import grouped_matmul, scaled_matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import Sm90Config, Sm90Tuning
from layoutgemm.kernels.epilogue.chain import Amax, Epilogue, Residual, RowReduce, Scale
from layoutgemm.torch_op.scaled_grouped import kept

pytestmark = [pytest.mark.gpu, pytest.mark.dsl]
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
SIZES = ((1024, 1024, 1024), (1000, 1040, 1104), (7, 128, 7168), (1, 24, 144))


@contextmanager
def without_waiting() -> Iterator[None]:
    """Raise where the host waits for the GPU."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def eight(m: int, n: int, k: int, *front: int, kind: Any = E4M3) -> tuple[Any, Any]:
    torch.manual_seed(m + n + k)
    a, b = (torch.randn(*front, *shape, device="cuda") for shape in ((m, k), (n, k)))
    return a.to(kind), b.to(E4M3).mT


def scales(recipe: str, side: str, size: int, k: int, *front: int) -> Any:
    blocks = -(-k // 128)
    shape = {
        "TensorWise": (1,),
        "RowWise": (*front, size, 1) if side == "a" else (*front, 1, size),
        "BlockWise1x128": (*front, size, blocks),
        "BlockWise128x128": (*front, -(-size // 128), blocks),
    }[recipe]
    return torch.rand(shape, device="cuda") + 0.5


def wide(recipe: str, side: str, scale: Any, size: int, k: int) -> Any:
    """Scales as large as their operand, in float64."""
    scale = scale.double()
    if recipe in ("TensorWise", "RowWise"):
        return scale.reshape(()) if recipe == "TensorWise" else scale
    rows = scale if recipe == "BlockWise1x128" else scale.repeat_interleave(128, -2)[..., :size, :]
    spread = rows.repeat_interleave(128, -1)[..., :k]
    return spread if side == "a" else spread.mT


def off(got: Any, want: Any, most: Any, k: int, fast: bool) -> float:
    """The largest error, in units of what it may be: the tensor core cuts terms to 2**-13 of the largest of 33."""
    cut = (k * 1.1 if fast else 33 * 4) * 2.0**-13
    bound = (cut + (k / 128 + 8) * 2.0**-23) * most
    bound = bound + torch.finfo(got.dtype).eps * (want.abs() + bound) + 1e-6
    return float(((got.double() - want).abs() / bound).max())


NAMES = ("TensorWise", "RowWise", "BlockWise1x128", "BlockWise128x128")
PAIRS = [(x, y) for x in NAMES[:2] for y in NAMES[:2]] + [(x, y) for x in NAMES[2:] for y in NAMES[2:]]


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("recipes", PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_recipes(recipes: tuple[str, str], fast: bool) -> None:
    blocks = recipes[0].startswith("Block")
    for m, n, k in SIZES:
        a, b = eight(m, n, k, kind=E5M2 if fast else E4M3)
        sa, sb = scales(recipes[0], "a", m, k), scales(recipes[1], "b", n, k)
        left, right = a.double() * wide(recipes[0], "a", sa, m, k), b.double() * wide(recipes[1], "b", sb, n, k)
        want, most = left @ right, left.abs() @ right.abs()
        for kind in (F32, BF16, F16):
            got = scaled_matmul(a, sa, b, sb, out_dtype=kind, use_fast_accum=fast)
            assert off(got, want, most, k, fast and not blocks) <= 1, (m, n, k, kind)
            named = {"recipe_a": recipes[0], "recipe_b": recipes[1]}
            assert torch.equal(scaled_matmul(a, sa, b, sb, out_dtype=kind, use_fast_accum=fast, **named), got)
        bias = torch.randn(n, device="cuda")
        got = scaled_matmul(a, sa, b, sb, bias=bias, activation="relu", out_dtype=F32, use_fast_accum=fast)
        finished = (want + bias.double()).relu()
        assert off(got, finished, most + bias.abs().double(), k, fast and not blocks) <= 1, (m, n, k)


@pytest.mark.parametrize("recipes", PAIRS, ids=["-".join(pair) for pair in PAIRS])
def test_an_epilogue_of_the_user_s_own(recipes: tuple[str, str]) -> None:
    """Reductions see the values that C stores: those of an f32 C are compared to the bit."""
    epilogue = Epilogue(Scale("half"), Residual("f32", beta=None), RowReduce("max", "most"), Amax())
    for m, n, k in SIZES[1:]:
        a, b = eight(m, n, k)
        sa, sb = scales(recipes[0], "a", m, k), scales(recipes[1], "b", n, k)
        left, right = a.double() * wide(recipes[0], "a", sa, m, k), b.double() * wide(recipes[1], "b", sb, n, k)
        d = torch.randn(m, n, device="cuda")
        for fast in (True, False):
            own = {"half": 0.5, "d": d, "most": torch.empty(m, device="cuda"), "amax": torch.zeros(1, device="cuda")}
            got = scaled_matmul(a, sa, b, sb, out_dtype=F32, epilogue=epilogue, given=own, use_fast_accum=fast)
            want, most = 0.5 * (left @ right) + d.double(), left.abs() @ right.abs() + d.double().abs()
            assert off(got, want, most, k, fast and not recipes[0].startswith("Block")) <= 1, (m, n, k)
            assert torch.equal(own["most"], got.amax(1)) and own["amax"].item() == got.abs().amax().item()


@pytest.mark.parametrize("recipe", ["RowWise", "BlockWise1x128"])
def test_a_batch(recipe: str) -> None:
    m, n, k = 130, 72, 400
    a, b = eight(m, n, k, 3)
    sa, sb = scales(recipe, "a", m, k, 3), scales(recipe, "b", n, k, 3)
    got = scaled_matmul(a, sa, b, sb, out_dtype=F32)
    for i in range(3):
        assert torch.equal(got[i], scaled_matmul(a[i], sa[i], b[i], sb[i], out_dtype=F32))
    left, right = a.double() * wide(recipe, "a", sa, m, k), b.double() * wide(recipe, "b", sb, n, k)
    assert off(got, left @ right, left.abs() @ right.abs(), k, True) <= 1


def test_scales_lie_anyhow() -> None:
    m, n, k = 1000, 1040, 1104
    a, b = eight(m, n, k)
    for x, y in PAIRS:
        sa, sb = scales(x, "a", m, k), scales(y, "b", n, k)
        want = scaled_matmul(a, sa, b, sb)
        for lay in (
            lambda s: s.mT.contiguous().mT if s.ndim > 1 else s,
            lambda s: torch.zeros(s.shape[1], -(-s.shape[0] // 4) * 4, device="cuda").mT[: s.shape[0]].copy_(s)
            if s.ndim > 1 else s,
            lambda s: s.repeat_interleave(2, -1)[..., ::2],
        ):  # fmt: skip
            for _ in (1, 2):
                assert torch.equal(scaled_matmul(a, lay(sa), b, lay(sb)), want), (x, y)


def lain(s: Any) -> list[Any]:
    """The same scales in four ways: along K, 4 bytes on, with longer lines, along the lines."""
    *front, lines, blocks = s.shape
    moved = torch.zeros(s.numel() + 1, device="cuda")[1:].view(s.shape).copy_(s)
    wider = torch.zeros(*front, lines, blocks + 1, device="cuda")[..., :blocks].copy_(s)
    return [s, moved, wider, s.mT.contiguous().mT]


@pytest.mark.parametrize("form", ["plain", "at once", "gated", "quantised", "rows", "masked"])
def test_scales_along_k_are_read_four_k_blocks_at_a_time(form: str) -> None:
    """Bits do not hang on how scales lie; a kept launch is not taken for an address that it cannot read."""
    m, n, k, experts = (1000, 1040, 1024, 5) if form in ("rows", "masked") else (2100, 2080, 1024, 1)
    torch.manual_seed(3)
    front = (experts,) if experts > 1 else ()
    a = torch.randn(*(front if form == "masked" else ()), m, k, device="cuda").to(E4M3)
    b = torch.randn(*front, n, k, device="cuda").to(E4M3).mT
    sa = torch.rand(*a.shape[:-1], k // 128, device="cuda") + 0.5
    sb = torch.rand(*front, -(-n // 128), k // 128, device="cuda") + 0.5
    config = Sm90Config((256, 128), loader="warpgroup", cluster=(1, 2), chunks=2, store_at_once=True, box_rows=64)
    more = {
        "plain": {"config": replace(config, tuning=Sm90Tuning(chunks=1))},
        "at once": {"config": config, "activation": "gelu"},
        "gated": {"activation": "swiglu"},
        "quantised": {"out_dtype": E4M3, "out_recipe": "BlockWise1x128"},
    }.get(form, {})
    offsets = torch.tensor([0, 3, 3, 500, 777, m], device="cuda", dtype=torch.int32)
    counts = torch.tensor([1000, 0, 77, 128, 513], device="cuda", dtype=torch.int32)
    groups = {"rows": {"offsets": offsets}, "masked": {"counts": counts}}.get(form)

    def product(x: Any, y: Any) -> list[Any]:
        if groups is None:
            got = scaled_matmul(a, x, b, y, **more)
            return [z.float() for z in got] if isinstance(got, tuple) else [got]
        into = torch.zeros(*a.shape[:-1], n, device="cuda", dtype=BF16)
        grouped_matmul(a, b, scale_a=x, scale_b=y, out=into, **groups)
        return [into]

    want = product(lain(sa)[3], sb)
    assert all(bool(x.isfinite().all()) for x in want)
    for x in lain(sa):
        for y in lain(sb):
            for _ in (1, 2, 3):
                assert all(map(torch.equal, product(x, y), want)), (x.stride(), y.stride(), x.data_ptr() % 16)
    if form == "plain":
        left, right = wide("BlockWise1x128", "a", sa, m, k) * a.double(), b.double()
        right = right * wide("BlockWise128x128", "b", sb, n, k)
        assert off(want[0], left @ right, left.abs() @ right.abs(), k, False) <= 1


def test_row_wise_is_near_torchs() -> None:
    a, b = eight(512, 256, 1024)
    sa, sb = scales("RowWise", "a", 512, 1024), scales("RowWise", "b", 256, 1024)
    theirs = torch._scaled_mm(a, b, sa, sb, out_dtype=BF16)
    torch.testing.assert_close(scaled_matmul(a, sa, b, sb), theirs, rtol=2e-2, atol=0.5)


@pytest.mark.parametrize("recipes", [PAIRS[3], PAIRS[5]], ids=["rows", "blocks"])
def test_launches_are_kept(recipes: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a bias, on another stream, in a CUDA graph; an output over an operand is refused by either way."""
    m, n, k = 200, 256, 384

    def operands(seed: int) -> tuple[Any, ...]:
        torch.manual_seed(seed)
        a, b = (torch.randn(*shape, device="cuda").to(E4M3) for shape in ((m, k), (n, k)))
        return a, scales(recipes[0], "a", m, k), b.mT, scales(recipes[1], "b", n, k)

    bias = torch.randn(n, device="cuda")
    first, other = operands(1), operands(2)
    want = scaled_matmul(*other, bias=bias)
    into = torch.empty_like(want)
    scaled_matmul(*first, bias=bias, out=torch.empty_like(want))
    monkeypatch.setattr(kept, "launch_of", None)
    assert torch.equal(scaled_matmul(*other, bias=bias), want)
    version = into._version
    assert scaled_matmul(*other, bias=bias, out=into) is into and torch.equal(into, want) and into._version > version
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        apart = scaled_matmul(*other, bias=bias)
    stream.synchronize()
    assert torch.equal(apart, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = scaled_matmul(*other, bias=bias)
    graph.replay()
    assert torch.equal(recorded, want)
    assert not torch.equal(scaled_matmul(*other, bias=bias + 1), want)
    with pytest.raises(LayoutError, match="shares memory with bias"):
        scaled_matmul(*other, bias=into[0, :n].view(BF16), out=into)
    with without_waiting():
        scaled_matmul(*first, bias=bias)


# ------------------------------------------------------------------------------------------------------------- groups

GROUPS = {
    "even": (256,) * 8,
    "ragged": (0, 1, 300, 0, 0, 77, 128, 513, 64, 0, 16, 15, 17, 1000, 0),
    "one": (129,),
    "many": tuple(range(96)),
}


def ends_of(sizes: tuple[int, ...]) -> Any:
    return torch.tensor(sizes, device="cuda").cumsum(0).int()


def normal(*shape: int, kind: Any = BF16) -> Any:
    return (torch.randn(*shape, device="cuda") / 4).to(kind)


def definition(a: Any, b: Any, ends: list[int]) -> Any:
    groups = [slice(first, end) for first, end in pairwise([0, *ends])]
    if a.ndim == 3:
        return torch.cat([a[e] @ b[:, g] for e, g in enumerate(groups)], 1)
    if b.ndim == 3:
        return torch.cat([a[g] @ b[e] for e, g in enumerate(groups)])
    return torch.stack([a[:, g] @ b[g] for g in groups])


def close(got: Any, want: Any, k: int) -> bool:
    return bool(((got.double() - want).abs() <= 2.0**-7 * want.abs() + 2.0**-8 * max(k, 1) ** 0.5 / 16 + 1e-3).all())


@pytest.mark.parametrize("name", GROUPS)
@pytest.mark.parametrize("form", ["rows", "columns", "K"])
def test_forms(form: str, name: str) -> None:
    torch.manual_seed(0)
    ends, total, experts, n, k = ends_of(GROUPS[name]), sum(GROUPS[name]), len(GROUPS[name]), 264, 136
    a, b = {
        "rows": lambda: (normal(total, k), normal(experts, n, k).mT),
        "columns": lambda: (normal(experts, n, k), normal(total, k).mT),
        "K": lambda: (normal(total, k).mT, normal(total, n)),
    }[form]()
    offsets = torch.nn.functional.pad(ends, (1, 0))
    with without_waiting():
        got = grouped_matmul(a, b, offs=ends)
        same = grouped_matmul(a, b, offsets.long())
        out = torch.zeros_like(got)
        grouped_matmul(a, b, offsets, out=out)
    want = definition(a.double(), b.double(), ends.tolist())
    assert close(got, want, total if form == "K" else k)
    assert torch.equal(got, same) and torch.equal(got, out)
    assert torch.equal(got, grouped_matmul(a, b, offs=ends))


@pytest.mark.parametrize("lay", ["contiguous K", "odd pitch"])
def test_groups_along_k_of_any_layout(lay: str) -> None:
    """Groups that begin at any element of a line: copied into lines that they may begin between."""
    ends, total = ends_of(GROUPS["ragged"]), sum(GROUPS["ragged"])
    a = normal(136, total) if lay == "contiguous K" else normal(total, 137)[:, :136].mT
    b = normal(264, total).mT if lay == "contiguous K" else normal(total, 269)[:, 1:265]
    got = grouped_matmul(a, b, offs=ends)
    assert close(got, definition(a.double(), b.double(), ends.tolist()), total) and got.shape == (len(ends), 136, 264)
    empty = [e for e, size in enumerate(GROUPS["ragged"]) if not size]
    assert not got[empty].any()


@pytest.mark.parametrize("n", [264, 260])
def test_what_is_in_no_group_is_left(n: int) -> None:
    """Also where rows are computed with a pitch of 16 bytes, and copied."""
    a, b = normal(300, 136), normal(3, n, 136).mT
    ends = torch.tensor([100, 100, 233], device="cuda")
    got = grouped_matmul(a, b, offs=ends)
    assert not got[233:].any() and close(got[:233], definition(a.double(), b.double(), [100, 100, 233])[:233], 136)
    out = torch.full((300, n), 7.0, dtype=BF16, device="cuda")
    grouped_matmul(a, b, offs=ends, out=out)
    assert bool((out[233:] == 7).all()) and torch.equal(out[:233], got[:233])
    columns = torch.full((n, 300), 7.0, dtype=BF16, device="cuda")
    grouped_matmul(b.mT, a.mT, offs=ends, out=columns)
    assert bool((columns[:, 233:] == 7).all()) and torch.equal(columns[:, :233], got[:233].mT)


@pytest.mark.parametrize("scaled", [False, True])
def test_masked_groups(scaled: bool) -> None:
    counts = torch.tensor([3, 0, 64, 17], device="cuda", dtype=torch.int32)
    a, b = eight(64, 256, 512, 4) if scaled else (normal(4, 64, 512), normal(4, 256, 512).mT)
    given = {
        "scale_a": scales("BlockWise1x128", "a", 64, 512, 4),
        "scale_b": scales("BlockWise128x128", "b", 256, 512, 4),
    }
    given = given if scaled else {}
    out = torch.full((4, 64, 256), 7.0, dtype=BF16, device="cuda")
    grouped_matmul(a, b, counts=counts, out=out, **given)
    with without_waiting():
        got = grouped_matmul(a, b, counts=torch.full_like(counts, 64), **given)  # all rows
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grouped_matmul(a, b, counts=counts, out=out, **given)
    for values in ((3, 0, 64, 17), (64, 1, 0, 5)):
        counts.copy_(torch.tensor(values))
        out.fill_(7.0)
        graph.replay()
        for e, count in enumerate(values):
            assert torch.equal(out[e, :count], got[e, :count]) and bool((out[e, count:] == 7).all())


@pytest.mark.parametrize("batch", ["even", "ragged", "many"])
def test_groups_with_row_wise_scales(batch: str) -> None:
    """As scaled_matmul of each group, with sums that are exact: the same bits."""
    sizes = GROUPS[batch]
    total, n, k = sum(sizes), 264, 272
    a, b = eight(total, n, k)
    b = torch.stack([b] * len(sizes))
    sa, sb = scales("RowWise", "a", total, k), scales("RowWise", "b", n, k, len(sizes))
    ends = ends_of(sizes)
    got = grouped_matmul(a, b, offs=ends, scale_a=sa, scale_b=sb, out_dtype=F32)
    again = grouped_matmul(a, b, offs=ends, scale_a=sa, scale_b=sb, out_dtype=F32)
    assert torch.equal(got, again)
    for e, (first, end) in enumerate(pairwise([0, *ends.tolist()])):
        if end > first:
            left, right = a[first:end].double() * sa[first:end], b[e].double() * sb[e]
            assert off(got[first:end], left @ right, left.abs() @ right.abs(), k, True) <= 1, e


@pytest.mark.parametrize("each", [False, True])
def test_groups_with_bias_and_activation(each: bool) -> None:
    """In the kernel, and by torch where derivatives are recorded."""
    ends = ends_of(GROUPS["ragged"])
    total, experts = sum(GROUPS["ragged"]), len(ends)
    a, b = normal(total, 136), normal(experts, 264, 136).mT
    bias = torch.randn(*[experts] * each, 264, device="cuda")
    which = torch.repeat_interleave(torch.arange(experts, device="cuda"), torch.tensor(GROUPS["ragged"], device="cuda"))
    wide = definition(a.double(), b.double(), ends.tolist())
    want = torch.nn.functional.silu(wide + (bias[which] if each else bias).double())
    got = grouped_matmul(a, b, offs=ends, bias=bias, activation="silu")
    assert close(got, want, 136)
    recorded = grouped_matmul(a.detach().requires_grad_(), b, offs=ends, bias=bias.requires_grad_(), activation="silu")
    assert close(recorded, want, 136)
    recorded.float().sum().backward()
    assert bias.grad.shape == bias.shape and bool(bias.grad.isfinite().all())
    x, y = normal(4, 40, 136), normal(4, 264, 136).mT
    biases = torch.randn(4, 264, device="cuda")
    got = grouped_matmul(x, y, bias=biases, activation="relu")
    assert close(got, (x.double() @ y.double() + biases.double()[:, None]).relu(), 136)


# ----------------------------------------------------------------------------------------------------------- gradients


@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("name", GROUPS)
def test_gradients(name: str, order: str) -> None:
    """Both operands', against torch's of the definition in float64; the host does not wait for the ends."""
    torch.manual_seed(1)
    ends, total, experts, n, k = ends_of(GROUPS[name]), sum(GROUPS[name]), len(GROUPS[name]), 264, 136
    a = normal(total, k).requires_grad_()
    b = normal(experts, n, k).mT if order == "col" else normal(experts, k, n)
    b = b.detach().requires_grad_()
    grad = normal(total, n)
    offsets = torch.nn.functional.pad(ends, (1, 0))
    grouped_matmul(a, b, offsets).backward(grad)
    a.grad = b.grad = None
    with without_waiting():
        grouped_matmul(a, b, offsets).backward(grad)
    x, y = (t.detach().double().requires_grad_() for t in (a, b))
    definition(x, y, ends.tolist()).backward(grad.double())
    assert close(a.grad, x.grad, n) and close(b.grad, y.grad, total) and b.grad.stride() == b.stride()


def test_gradients_of_all_forms_twice() -> None:
    ends = ends_of((64, 0, 100, 92))
    for a, b in (
        (normal(256, 64), normal(4, 64, 72)), (normal(4, 64, 72), normal(256, 72).mT),
        (normal(256, 64).mT, normal(256, 72)),
    ):  # fmt: skip
        a, b = a.detach().requires_grad_(), b.detach().requires_grad_()
        x, y = (t.detach().double().requires_grad_() for t in (a, b))
        ours, theirs = grouped_matmul(a, b, offs=ends), definition(x, y, ends.tolist())
        first = torch.autograd.grad(ours.float().square().sum(), (a, b), create_graph=True)
        right = torch.autograd.grad(theirs.square().sum(), (x, y), create_graph=True)
        for mine, want in zip(first, right, strict=True):
            assert float((mine.double() - want).abs().max()) <= 0.03 * float(want.abs().max())
        second = torch.autograd.grad(sum(g.float().square().sum() for g in first), (a, b))
        right = torch.autograd.grad(sum(g.square().sum() for g in right), (x, y))
        for mine, want in zip(second, right, strict=True):
            assert float((mine.double() - want).abs().max()) <= 0.06 * float(want.abs().max())


def test_rows_in_no_group_have_no_gradient() -> None:
    a, b = normal(300, 136).requires_grad_(), normal(3, 136, 264).requires_grad_()
    ends = torch.tensor([100, 100, 233], device="cuda")
    grouped_matmul(a, b, offs=ends).float().square().sum().backward()
    assert not a.grad[233:].any() and bool(a.grad[:233].isfinite().all()) and not b.grad[1].any()


def test_float16_has_both_gradients() -> None:
    a, b = normal(64, 64, kind=F16).requires_grad_(), normal(2, 64, 72, kind=F16).requires_grad_()
    offsets = torch.tensor([0, 30, 64], device="cuda")
    grad = normal(64, 72, kind=F16)
    grouped_matmul(a, b, offsets).backward(grad)
    x, y = (t.detach().double().requires_grad_() for t in (a, b))
    definition(x, y, [30, 64]).backward(grad.double())
    assert close(a.grad, x.grad, 72) and close(b.grad, y.grad, 64)


@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_the_compiler_takes_it_whole(backend: str) -> None:
    torch._dynamo.reset()
    a, b = normal(256, 136), normal(4, 264, 136).mT
    x, y = eight(256, 264, 136)
    sa, sb = scales("RowWise", "a", 256, 136), scales("RowWise", "b", 264, 136)

    def step(a: Any, b: Any, offsets: Any) -> Any:
        c = grouped_matmul(torch.relu(a), b, offsets)
        return (c + scaled_matmul(x, sa, y, sb)).float().square().mean()

    compiled = torch.compile(step, fullgraph=True, backend=backend)
    for ends in ((0, 10, 10, 200, 256), (0, 0, 128, 128, 256)):
        offsets = torch.tensor(ends, device="cuda", dtype=torch.int32)
        given = [t.detach().requires_grad_() for t in (a, b)]
        want = torch.autograd.grad(step(*given, offsets), given)
        got = torch.autograd.grad(compiled(*given, offsets), given)
        for mine, right in zip(got, want, strict=True):
            torch.testing.assert_close(mine, right, rtol=3e-2, atol=1e-4)


def test_opcheck() -> None:
    a, b = normal(256, 136), normal(4, 136, 264)
    offsets = torch.tensor([0, 10, 10, 200, 256], device="cuda", dtype=torch.int32)
    for grad in (False, True):
        given = a.detach().requires_grad_(grad), b.detach().requires_grad_(grad), offsets, "offsets"
        results = torch.library.opcheck(torch.ops.layoutgemm.grouped_matmul.default, given)
        assert set(results.values()) == {"SUCCESS"}, results
    x, y = eight(256, 260, 136)  # rows of no multiple of 16 bytes: a padded result, made contiguous
    given = x, scales("RowWise", "a", 256, 136), y, scales("RowWise", "b", 260, 136)
    checks = ("test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
    results = torch.library.opcheck(torch.ops.layoutgemm.scaled_matmul.default, given, test_utils=checks)
    assert set(results.values()) == {"SUCCESS"}, results


def test_a_training_step_in_a_graph() -> None:
    """Forward and backward, captured; at each replay the ends are read anew."""
    a, b = normal(256, 136).requires_grad_(), normal(4, 264, 136).mT.detach().requires_grad_()
    offsets = torch.tensor([0, 10, 10, 200, 256], device="cuda", dtype=torch.int32)
    grad = normal(256, 264)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            torch.autograd.grad(grouped_matmul(a, b, offsets), (a, b), grad)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = torch.autograd.grad(grouped_matmul(a, b, offsets), (a, b), grad)
    offsets.copy_(torch.tensor([0, 64, 100, 100, 256]))
    graph.replay()
    want = torch.autograd.grad(grouped_matmul(a, b, offsets), (a, b), grad)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))
