"""Kernels of variants on a GPU, against float64: scales of K blocks, and groups of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm.errors import LayoutError
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import Amax, Aux, Bias, Custom, Epilogue, Scale
from layoutgemm.kernels.sm90.mainloop import Promoted, Table
from layoutgemm.torch_op.scaled_grouped import kept

pytestmark = [pytest.mark.gpu, pytest.mark.dsl]

CONFIGS = {
    "default": None,
    "three": Sm90Config((192, 128), consumers=3, chunks=1, buffers=1),
    "loader": Sm90Config((128, 128), loader="warpgroup", cluster=(2, 1), chunks=1, buffers=2),
    "direct": Sm90Config((128, 64), store="direct", cluster=(1, 2)),
}


def scaled_error(m: int, n: int, k: int, rows: int, columns: int | None, config: Any, front: tuple[int, ...]) -> float:
    """The largest error of scaled_matmul, in units of what it may be."""
    torch.manual_seed(m + n + k)
    a, b = (torch.randn(*front, *shape, device="cuda").to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
    blocks = -(-k // 128)
    sa = torch.rand(*front, -(-m // rows), blocks, device="cuda") + 0.5
    sb = None if columns is None else torch.rand(*front, blocks, -(-n // columns), device="cuda").mT + 0.5
    got = layoutgemm.scaled_matmul(a, sa, b.mT, sb, out_dtype=torch.float32, config=config)
    again = layoutgemm.scaled_matmul(a, sa, b.mT, sb, out_dtype=torch.float32, config=config)
    assert torch.equal(got, again)
    wide_a = sa.double().repeat_interleave(rows, -2)[..., :m, :].repeat_interleave(128, -1)[..., :k] * a.double()
    wide_b = b.double()
    if sb is not None:
        wide_b *= sb.double().repeat_interleave(columns, -2)[..., :n, :].repeat_interleave(128, -1)[..., :k]
    want, most = wide_a @ wide_b.mT, wide_a.abs() @ wide_b.abs().mT
    # Of each of the four instructions of a K block 33 terms are cut by 2**-13 of the largest; then f32.
    bound = (33 * 4 * 2.0**-13 + (blocks + 3) * 2.0**-23) * most
    return float(((got.double() - want).abs() / bound).max())


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("rows, columns", [(1, 128), (128, 128), (1, None), (1, 1)])
def test_scaled_matmul(config: str, rows: int, columns: int | None) -> None:
    for m, n, k in ((1024, 1024, 1024), (1000, 1040, 1104), (264, 392, 80), (7, 128, 7168), (1, 24, 16)):
        assert scaled_error(m, n, k, rows, columns, CONFIGS[config], ()) <= 1, (m, n, k)
    assert scaled_error(130, 72, 400, rows, columns, CONFIGS[config], (3,)) <= 1


def test_scaled_matmul_into_a_tensor() -> None:
    a, b = (torch.randn(shape, device="cuda").to(torch.float8_e5m2) for shape in ((300, 256), (136, 256)))
    sa = torch.full((300, 2), 0.5, device="cuda")
    want = layoutgemm.scaled_matmul(a, sa, b.T)
    whole = torch.zeros(300, 200, dtype=torch.bfloat16, device="cuda")
    layoutgemm.scaled_matmul(a, sa, b.T, out=whole[:, :136])
    assert torch.equal(whole[:, :136], want) and not whole[:, 136:].any()
    # an A that is not K-major is copied
    assert torch.equal(layoutgemm.scaled_matmul(a.T.contiguous().T, sa, b.T), want)


GROUPS = {
    "default": None,
    "narrow": Sm90Config((64, 128), consumers=1, loader="warp", stages=3, chunks=1),
    "pair": Sm90Config((128, 256), cluster=(2, 1), chunks=1, buffers=2),
    "across": Sm90Config((128, 192), cluster=(1, 2), chunks=1, buffers=2),
    "early": Sm90Config((256, 192), staged_epilogue_k_tiles=1, chunks=1, buffers=2),
    "pingpong": Sm90Config((64, 192), schedule="pingpong", loader="warpgroup", chunks=1, buffers=2),
}
BATCHES = {
    "even": (256,) * 8,
    "ragged": (0, 1, 300, 0, 0, 77, 128, 513, 64, 0, 16, 15, 17, 1000, 0),
    "one": (129,),
    "none but the last": (*[0] * 70, 5),
    "many": tuple(range(256)),
}


def grouped(kind: Any, sizes: tuple[int, ...], order: str, n: int = 520, k: int = 712) -> tuple[Any, Any, Any]:
    torch.manual_seed(len(sizes))
    a = (torch.randn(sum(sizes), k, device="cuda") / 4).to(kind)
    b = (torch.randn(len(sizes), *((n, k) if order == "col" else (k, n)), device="cuda") / 4).to(kind)
    offsets = torch.tensor([0, *sizes], device="cuda").cumsum(0).int()
    return a, b.mT if order == "col" else b, offsets


@pytest.mark.parametrize(
    "batch, config",
    [("ragged", config) for config in GROUPS] + [(b, c) for b in BATCHES if b != "ragged" for c in ("default", "pair")],
)
def test_grouped_matmul(batch: str, config: str) -> None:
    for kind, order, output in (
        (torch.bfloat16, "col", torch.float32), (torch.float16, "row", torch.float16),
        (torch.float8_e4m3fn, "col", torch.bfloat16),
    ):  # fmt: skip
        if kind == torch.float16 and batch == "many":
            continue
        a, b, offsets = grouped(kind, BATCHES[batch], order)
        got = layoutgemm.grouped_matmul(a, b, offsets, out_dtype=output, config=GROUPS[config])
        ends_again = offsets.long() if batch == "even" else offsets
        again = layoutgemm.grouped_matmul(a, b, ends_again, out_dtype=output, config=GROUPS[config])
        assert torch.equal(got, again)
        ends = offsets.tolist()
        cut = 2.0**-13 if kind == torch.float8_e4m3fn else 2.0**-23
        for e, (first, end) in enumerate(zip(ends, ends[1:])):  # noqa: RUF007
            x, y = a[first:end].double(), b[e].double()
            bound = a.shape[1] * 1.1 * cut * (x.abs() @ y.abs()) + 1e-6
            want = x @ y
            if output != torch.float32:
                bound += torch.finfo(output).eps / 2 * (want.abs() + bound) + 1e-6
            assert bool(((got[first:end].double() - want).abs() <= bound).all()), (batch, config, kind, e)


@pytest.mark.parametrize("batch", ["even", "ragged", "many"])
def test_grouped_matmul_with_scales(batch: str) -> None:
    """As scaled_matmul of each group: the same bits."""
    a, b, offsets = grouped(torch.float8_e4m3fn, BATCHES[batch], "col")
    blocks = -(-a.shape[1] // 128)
    sa = torch.rand(len(a), blocks, device="cuda")
    sb = torch.rand(len(b), -(-b.shape[2] // 128), blocks, device="cuda")
    got = layoutgemm.grouped_matmul(a, b, offsets, scale_a=sa, scale_b=sb)
    ends = offsets.tolist()
    for e, (first, end) in enumerate(zip(ends, ends[1:])):  # noqa: RUF007
        if end > first:
            rows = slice(first, end)
            assert torch.equal(got[rows], layoutgemm.scaled_matmul(a[rows], sa[rows], b[e], sb[e])), e


def test_rows_in_no_group_and_lines_beside_stay() -> None:
    a, b, _ = grouped(torch.bfloat16, (100,) * 3, "col", n=136)
    offsets = torch.tensor([7, 100, 100, 233], device="cuda", dtype=torch.int32)
    whole = torch.full((300, 200), 7.0, dtype=torch.bfloat16, device="cuda")
    layoutgemm.grouped_matmul(a, b, offsets, out=whole[:, 32:168])
    written = torch.zeros(300, 200, dtype=torch.bool, device="cuda")
    written[7:233, 32:168] = True
    assert bool((whole[~written] == 7).all())
    for rows, e in ((slice(7, 100), 0), (slice(100, 233), 2)):
        torch.testing.assert_close(whole[rows, 32:168], layoutgemm.matmul(a[rows], b[e]))


def test_in_a_graph_the_offsets_are_read_at_each_replay() -> None:
    a, b, offsets = grouped(torch.bfloat16, (64, 64, 64), "col", n=128, k=256)
    out = torch.empty(192, 128, dtype=torch.bfloat16, device="cuda")
    layoutgemm.grouped_matmul(a, b, offsets, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        layoutgemm.grouped_matmul(a, b, offsets, out=out)
    offsets.copy_(torch.tensor([0, 1, 150, 192]))
    graph.replay()
    assert torch.equal(out, layoutgemm.grouped_matmul(a, b, offsets))


def test_plans_that_read_more_run_on_arrays() -> None:
    """An epilogue's operands, and a main loop's tables, as NumPy arrays beside A and B: as in the emulator."""
    rng = np.random.default_rng(0)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((2, 200, 136), (2, 136, 72)))
    square = Custom.of(lambda x, i, j, ops: ops.where(x > 0, x * x, 0.0))
    epilogue = Epilogue(Scale(), Bias(), Aux("bf16"), Amax(), square)
    plan = Sm90Plan.derive(200, 72, 136, batch=2, b="bf16:col", c="f32", config=CONFIGS["direct"], epilogue=epilogue)
    given = {"alpha": 2.0, "bias": rng.integers(-9, 9, (2, 72)).astype(np.float32)}
    out = np.empty((2, 200, 72), np.float32)
    result, expected = plan.run(a, b, given=given, out=out), epilogue.reference(a @ b, **given)
    assert "cuda" in result.ran_on and result.c is out and np.array_equal(out, expected.c)
    for name, value in expected.written.items():
        assert np.array_equal(result.written[name], value), name

    loop = Promoted.of(lambda total, product, sa: total + sa * product, Table("sa", "m"))
    scaled = Sm90Plan.derive(200, 72, 256, a="e4m3", b="e4m3:col", c="f32", config=CONFIGS["loader"], mainloop=loop)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((200, 256), (256, 72)))
    sa = 2.0 ** rng.integers(-2, 3, (200, 2)).astype(np.float32)
    found = scaled.run(a, b, given={"sa": sa})
    want = (np.repeat(sa, 128, axis=1) * a).astype(np.float64) @ b
    assert "cuda" in found.ran_on and np.array_equal(found.c, want)


def test_a_launch_is_kept_for_tensors_of_the_same_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second call writes addresses alone; whatever else differs goes the long way, and is checked there."""

    def operands(seed: int, m: int = 200, n: int = 256, k: int = 384) -> tuple[Any, Any, Any, Any]:
        torch.manual_seed(seed)
        a, b = (torch.randn(*shape, device="cuda").to(torch.float8_e4m3fn) for shape in ((m, k), (n, k)))
        return a, torch.rand(m, k // 128, device="cuda"), b.mT, torch.rand(n // 128, k // 128, device="cuda")

    first, other = operands(1), operands(2)
    want = layoutgemm.scaled_matmul(*other)
    into = torch.empty_like(want)
    layoutgemm.scaled_matmul(*first, out=torch.empty_like(want))
    long_way = kept.launch_of

    def never(*_: Any) -> Any:
        raise AssertionError("the long way")

    monkeypatch.setattr(kept, "launch_of", never)
    assert torch.equal(layoutgemm.scaled_matmul(*other), want)
    version = into._version
    assert layoutgemm.scaled_matmul(*other, out=into) is into and torch.equal(into, want) and into._version > version
    same = other[0], other[1], other[2], other[3].clone()
    assert torch.equal(layoutgemm.scaled_matmul(*same), want)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        apart = layoutgemm.scaled_matmul(*other)
    stream.synchronize()
    assert torch.equal(apart, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        recorded = layoutgemm.scaled_matmul(*other)
    graph.replay()
    assert torch.equal(recorded, want)

    # Whatever else differs goes the long way.
    monkeypatch.setattr(kept, "launch_of", long_way)
    lying = torch.empty(200 * 384 + 8, dtype=torch.uint8, device="cuda")[8:].view(torch.float8_e4m3fn).view(200, 384)
    lying.copy_(other[0])  # 8 bytes past a multiple of 16
    assert torch.equal(layoutgemm.scaled_matmul(lying, *other[1:]), want)
    size, start = 200 * 384, 200 * 384 - 256
    bytes_ = torch.empty(start + 200 * 256 * 2, dtype=torch.uint8, device="cuda")
    low = bytes_[:size].view(torch.float8_e4m3fn).view(200, 384)
    high = bytes_[start:].view(torch.bfloat16).view(200, 256)  # begins in the last line of `low`
    low.copy_(other[0])
    assert torch.equal(layoutgemm.scaled_matmul(low, *other[1:]), want)
    with pytest.raises(LayoutError, match="shares memory"):
        layoutgemm.scaled_matmul(low, *other[1:], out=high)
    with pytest.raises(LayoutError, match="requires grad"):
        layoutgemm.scaled_matmul(other[0], other[1].clone().requires_grad_(), *other[2:])


def test_a_grouped_launch_is_kept_too(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, offsets = grouped(torch.bfloat16, (64, 0, 192, 100), "col")
    want = layoutgemm.grouped_matmul(a, b, offsets)
    other = torch.tensor([0, 100, 200, 256, 356], device="cuda", dtype=torch.int32)
    slow = layoutgemm.grouped_matmul(a, b, torch.stack([other, other], 1)[:, 0])  # offsets that are not contiguous

    def never(*_: Any) -> Any:
        raise AssertionError("the long way")

    monkeypatch.setattr(kept, "launch_of", never)
    assert torch.equal(layoutgemm.grouped_matmul(a, b, offsets), want)
    assert torch.equal(layoutgemm.grouped_matmul(a, b, other), slow) and not torch.equal(slow, want)
