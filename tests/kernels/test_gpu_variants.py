"""Kernels of variants on a GPU, against float64: scales of K blocks."""

from __future__ import annotations

from typing import Any

import pytest

import layoutgemm
from layoutgemm.kernels import Sm90Config

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'layoutgemm[torch]'")
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
