"""scaled_matmul of torch tensors on the CPU: against the definition, and every refusal by name."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'layoutgemm[torch]'")

import layoutgemm  # noqa: E402
from layoutgemm.errors import OperandError, TensorError  # noqa: E402

E4M3 = torch.float8_e4m3fn


def operands(m: int = 200, n: int = 300, k: int = 300, *front: int) -> tuple[Any, Any]:
    generator = torch.Generator().manual_seed(m + n + k)
    a, b = (torch.randn(*front, *shape, generator=generator) for shape in ((m, k), (n, k)))
    return a.to(E4M3), b.to(E4M3).transpose(-1, -2)


def spread(scale: Any, group: int, size: int, k: int, depth: int = 128) -> Any:
    """Scales as large as the operand that they are of."""
    return scale.double().repeat_interleave(group, -2)[..., :size, :].repeat_interleave(depth, -1)[..., :k]


@pytest.mark.parametrize("rows", [1, 128])
@pytest.mark.parametrize("columns", [None, 1, 128])
@pytest.mark.parametrize("front", [(), (2,)])
def test_scaled_matmul_is_its_definition(rows: int, columns: int | None, front: tuple[int, ...]) -> None:
    m, n, k = 200, 300, 300
    a, b = operands(m, n, k, *front)
    sa = torch.rand(*front, -(-m // rows), 3)
    sb = None if columns is None else torch.rand(*front, -(-n // columns), 3)
    want = a.double() * spread(sa, rows, m, k)
    other = b.double() if sb is None else b.double() * spread(sb, columns or 1, n, k).transpose(-1, -2)
    got = layoutgemm.scaled_matmul(a, sa, b, sb, out_dtype=torch.float32)
    assert torch.allclose(got.double(), want @ other, rtol=1e-6, atol=1e-5)
    out = torch.empty(*front, m, n, dtype=torch.bfloat16)
    assert layoutgemm.scaled_matmul(a, sa, b, sb, out=out) is out
    assert torch.equal(out, layoutgemm.scaled_matmul(a, sa, b, sb)) and out.abs().max() > 1


def test_nothing_to_sum() -> None:
    empty = layoutgemm.scaled_matmul(torch.empty(3, 0).to(E4M3), torch.empty(3, 0), torch.empty(0, 5).to(E4M3))
    assert empty.tolist() == [[0.0] * 5] * 3


def test_scaled_matmul_names_what_it_refuses() -> None:
    a, b = operands()
    sa, sb = torch.rand(200, 3), torch.rand(3, 3)
    for given, error, text in (
        ({"a": 1}, OperandError, "a is a builtins.int, not a torch tensor"),
        ({"scale_b": 2.0}, OperandError, "scale_b is a builtins.float"),
        ({"a": a.float()}, OperandError, "a is torch.float32: scales are for float8"),
        ({"b": b[:299]}, TensorError, r"a and b have shapes \[200, 300\] and \[299, 300\]"),
        ({"scale_a": sa[:-1]}, TensorError, r"scale_a has shape \[199, 3\]: \[200, 3\], or \[2, 3\]"),
        ({"scale_b": sb.T[:, :2]}, TensorError, r"scale_b has shape \[3, 2\]: \[300, 3\], or \[3, 3\]"),
        ({"scale_a": sa.double()}, OperandError, "scale_a is torch.float64, and scales are float32"),
        ({"scale_b": sb.clone().requires_grad_()}, OperandError, "scale_b requires grad"),
        ({"out_dtype": torch.int8}, OperandError, "out_dtype torch.int8"),
        ({"scale_a": sa.to("meta")}, TensorError, "scale_a"),
    ):
        usual = {"a": a, "scale_a": sa, "b": b, "scale_b": sb}
        with pytest.raises(error, match=text):
            layoutgemm.scaled_matmul(**{**usual, **given})
