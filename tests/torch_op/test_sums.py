"""Products of integers, gradients of empty products, and the second-best kernel."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import gemm, matmul
from layoutgemm.errors import OperandError
from layoutgemm.torch_op.problem import Problem, StridedOperand
from layoutgemm.torch_op.solver import solve

BF16, F32 = torch.bfloat16, torch.float32


def test_what_follows_a_product_of_integers_happens_in_float32_as_in_the_kernel() -> None:
    a, b = torch.full((2, 64), 127, dtype=torch.int8), torch.full((64, 2), 100, dtype=torch.int8)
    exact = 812800.0
    for kind in (BF16, torch.float16, F32):
        got = matmul(a, b, bias=torch.ones(2, dtype=kind), out_dtype=F32)
        assert got.tolist() == [[exact + 1] * 2] * 2
    for name in ("relu", "relu_sq", "gelu", "gelu_tanh", "silu", "sigmoid", "tanh"):
        got = matmul(a, b, activation=name, out_dtype=F32)
        want = exact**2 if name == "relu_sq" else 1 if name in ("sigmoid", "tanh") else exact
        assert torch.allclose(got, torch.full((2, 2), float(want)), rtol=1e-6)
    one = torch.ones(1, 1, dtype=torch.int8)
    for c, alpha, beta, want in ((0.5, 1, 1, 1.5), (2.5, 1, 2, 6.0), (0.0, 0.5, 1, 0.5), (3.0, 1, 0.5, 2.5)):
        assert gemm(alpha, one, one, beta, torch.full((1, 1), c)).item() == want
    assert gemm(3000, a, b, 1, torch.zeros(2, 2))[0, 0].item() == 3000 * exact
    # stored as integers: what is whole stays, what would be cut off is refused
    assert gemm(2, one, one, 3, torch.full((1, 1), 5, dtype=torch.int32)).item() == 17
    assert gemm(1.0, a, b).tolist() == [[812800] * 2] * 2 and gemm(1.0, a, b).dtype == torch.int32
    odd = torch.full((1, 1041), 127, dtype=torch.int8)  # 1041 * 127 * 127 is odd, beyond 2**24, and so no float32
    assert gemm(1.0, odd, odd.T, 1.0, torch.full((1, 1), 2, dtype=torch.int32)).item() == 1041 * 127**2 + 2
    whole = matmul(-a, b, bias=torch.tensor([812801, 0], dtype=torch.int32), activation="relu")
    assert whole.dtype == torch.int32 and whole.tolist() == [[1, 0], [1, 0]]
    for refused, text in (
        (lambda: matmul(a, b, bias=torch.ones(2)), "bias is torch.float32, and the product is stored as torch.int32"),
        (lambda: matmul(a, b, activation="gelu"), "activation 'gelu' gives fractions"),
        (lambda: matmul(a, b, activation="relu_sq"), "or more than torch.int32 holds"),
        (lambda: gemm(0.5, a, b), "alpha = 0.5 of a result stored as torch.int32"),
        (lambda: gemm(torch.tensor([1.0, 2.0]), a, b), "alpha = tensor"),
        (lambda: gemm(1, a, b, 0.5, torch.ones(2, 2, dtype=torch.int32)), "beta = 0.5"),
    ):
        with pytest.raises(OperandError, match=text):
            refused()


@pytest.mark.parametrize("shapes", [((3, 4, 5), (5, 0)), ((3, 4, 0), (0, 5)), ((0, 4, 5), (5, 6)), ((3, 0, 5), (5, 6))])
def test_gradients_of_nothing(shapes: Any) -> None:
    a, b = (torch.ones(shape).bfloat16().requires_grad_() for shape in shapes)
    matmul(a, b).float().sum().backward()
    for x, y in zip((a, b), [z.detach().requires_grad_() for z in (a, b)], strict=True):
        assert x.grad is not None and x.grad.shape == y.shape and not x.grad.isnan().any()


def test_where_the_likeliest_kernel_is_none_the_next_one_is_taken() -> None:
    """Column-major A has no cluster of four, wide results fewer stages, 8-bit rows whole 16 bytes."""
    for m, n, k, a, c, columns, gated in (
        (136, 5408, 14840, "bf16", "bf16", True, None),
        (160, 11712, 280, "bf16", "bf16", True, None),
        (896, 15808, 4632, "bf16", "f32", False, None),
        (5040, 3584, 13632, "bf16", "f32", False, None),
        (39, 5712, 2304, "e4m3", "e4m3", False, None),
        (2944, 5032, 4800, "bf16", "f32", False, "silu"),
        (16, 3976, 2960, "bf16", "bf16", True, "silu"),
    ):
        halves = 2 if gated else 1
        found = solve(Problem(
            StridedOperand((m, k), (1, m) if columns else (k, 1), a), StridedOperand((k, n * halves), (1, k), a),
            StridedOperand((m, n), (n, 1), c), gated=gated,
        ))  # fmt: skip
        assert "little choice" not in found.why and " us" in found.why, (m, n, k, found.why)
        found.kernel.plan(*found.sizes)


@pytest.mark.parametrize("rows,pitch,batch", [(1, 3, 1), (2, 2, 1), (2, 3, 5), (3, 3, 1)])
def test_matrices_become_rows_of_one_where_their_rows_are_evenly_apart(rows: int, pitch: int, batch: int) -> None:
    """One row of each matrix lies anywhere; of more, the next matrix's first is where one more row would be."""
    a = StridedOperand((5, rows, 64), (pitch * 64, 64, 1), "bf16")
    b, c = StridedOperand((64, 128), (1, 64), "bf16"), StridedOperand((5, rows, 128), (rows * 128, 128, 1), "bf16")
    assert solve(Problem(a, b, c)).sizes == ((rows * 5, 128, 64, 1) if batch == 1 else (rows, 128, 64, batch))
