"""matmul of two pairs: their sum by the reference, with bias, activation and gradients, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm.errors import OperandError, PlanError, TensorError
from layoutgemm.torch_op.explain import explain_matmul
from layoutgemm.torch_op.operands.pairs import finish_of_pairs, placed_pairs
from layoutgemm.torch_op.prepared import NO_FINISH, problem_at
from layoutgemm.torch_op.reference import rounded
from layoutgemm.torch_op.solver import solve


def tensors(*shapes: tuple[int, ...], kind: Any = torch.bfloat16) -> list[Any]:
    made = torch.Generator().manual_seed(0)
    return [(torch.randint(-8, 9, shape, generator=made).float() / 8).to(kind) for shape in shapes]


SHAPES = ((3, 8, 64), (3, 8, 16), (64, 48), (16, 48), (48,))


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_the_sum_is_rounded_once(activation: str | None) -> None:
    x, h, w, u, bias = tensors(*SHAPES)
    found = layoutgemm.matmul((x, h), (w, u), bias=bias, activation=activation)
    want = x.double() @ w.double() + h.double() @ u.double() + bias.double()
    want = torch.nn.functional.gelu(want) if activation else want
    assert found.shape == (3, 8, 48) and torch.equal(found, rounded(want, torch.bfloat16))
    out = torch.empty(3, 8, 48).bfloat16()
    assert layoutgemm.matmul((x, h), (w, u), bias=bias, activation=activation, out=out) is out
    assert torch.equal(out, found)


def test_gradients_are_those_of_both_products() -> None:
    plain = [x.requires_grad_() for x in tensors(*SHAPES, kind=torch.float32)]
    wide = [x.detach().double().requires_grad_() for x in plain]
    x, h, w, u, bias = plain
    found = layoutgemm.matmul((x, h), (w, u), bias=bias, allow_tf32=True)
    slope = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    want = torch.autograd.grad(wide[0] @ wide[2] + wide[1] @ wide[3] + wide[4], wide, slope.double())
    for got, right in zip(torch.autograd.grad(found, plain, slope), want, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-5, atol=1e-5)
    seconds = []
    for value, leaves in ((layoutgemm.matmul((x, h), (w, u), allow_tf32=True), [x, h, w, u]),
                          (wide[0] @ wide[2] + wide[1] @ wide[3], wide[:4])):  # fmt: skip
        first = torch.autograd.grad(value.square().sum(), leaves, create_graph=True)
        seconds.append(torch.autograd.grad(sum(y.square().sum() for y in first), leaves))
    for got, right in zip(*seconds, strict=True):
        assert float((got.double() - right).abs().max() / right.abs().max()) < 1e-5
    (only,) = torch.autograd.grad(
        layoutgemm.matmul((x.detach(), h), (w.detach(), u.detach()), allow_tf32=True).sum(), h
    )
    assert only.shape == h.shape


def test_an_empty_pair_adds_nothing() -> None:
    x, h, w, u, bias = tensors(*SHAPES)
    alone = layoutgemm.matmul((x, h[..., :0]), (w, u[:0]), bias=bias)
    assert torch.equal(alone, layoutgemm.matmul(x, w, bias=bias))
    none = layoutgemm.matmul((x[..., :0], h[..., :0]), (w[:0], u[:0]), bias=bias)
    assert torch.equal(none, bias.expand(3, 8, 48))
    assert layoutgemm.matmul((x[:0], h[:0]), (w, u)).shape == (0, 8, 48)


def gated_sums(x: Any, h: Any, w: Any, w3: Any, u: Any, u3: Any) -> Any:
    """silu(x @ w + h @ u) * (x @ w3 + h @ u3), of any type."""
    return torch.nn.functional.silu(x @ w + h @ u) * (x @ w3 + h @ u3)


OF_SUMS = ((3, 8, 64), (3, 8, 16), (64, 48), (64, 48), (16, 48), (16, 48))


def test_a_function_of_sums_of_two_products_is_rounded_once() -> None:
    """A gated MLP with low-rank updates: matrices that lie apart, or gate and up in one."""
    x, h, w, w3, u, u3 = tensors(*OF_SUMS)
    want = rounded(gated_sums(*[each.double() for each in (x, h, w, w3, u, u3)]), torch.bfloat16)
    found = layoutgemm.matmul((x, h), ((w, w3), (u, u3)), combine="silu")
    assert found.shape == (3, 8, 48) and torch.equal(found, want)
    assert torch.equal(
        layoutgemm.matmul((x, h), (torch.cat([w, w3], 1), torch.cat([u, u3], 1)), activation="swiglu"), want
    )
    out = torch.empty(3, 8, 48).bfloat16()
    assert layoutgemm.matmul((x, h), ((w, w3), (u, u3)), combine="silu", out=out) is out and torch.equal(out, want)
    how = explain_matmul((x, h), ((w, w3), (u, u3)), combine="silu")
    assert how.launches == 1 and how.kernel.endswith("2 matrices B combined, and a second pair of K = 16")
    rows = torch.tensor([2, 0, 7])
    some = layoutgemm.matmul((x[0], h[0, :3]), ((w, w3), (u, u3)), combine="silu", rows=rows)
    own = [each.double() for each in (x[0, rows], h[0, :3], w, w3, u, u3)]
    assert torch.equal(some, rounded(gated_sums(*own), torch.bfloat16))


def test_gradients_and_transforms_of_such_a_function() -> None:
    plain = [x.float().requires_grad_() for x in tensors(*OF_SUMS)]
    wide = [x.detach().double().requires_grad_() for x in plain]

    def product(x: Any, h: Any, w: Any, w3: Any, u: Any, u3: Any) -> Any:
        return layoutgemm.matmul((x, h), ((w, w3), (u, u3)), combine="silu", allow_tf32=True)

    found, right = product(*plain), gated_sums(*wide)
    slope = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    both = torch.autograd.grad(found, plain, slope), torch.autograd.grad(right, wide, slope.double())
    for got, want in zip(*both, strict=True):
        assert float((got.double() - want).abs().max() / want.abs().max()) < 1e-5
    half = [x.detach().bfloat16() for x in plain]
    once = product(*half)
    assert torch.equal(torch.func.vmap(lambda x, h: product(x, h, *half[2:]))(half[0], half[1]), once)
    assert torch.equal(torch.compile(product, backend="aot_eager", fullgraph=True)(*half), once)


X, H, W, U, BIAS = tensors(*SHAPES)
REFUSED: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (OperandError, "a is 3 tensors and b 2", {"a": (X, H, H)}),
    (OperandError, "a is 0 tensors and b 2: one of each, or two pairs", {"a": ()}),
    (OperandError, "a is 0 matrices: combine= takes one a, or two", {"a": (), "combine": "silu"}),
    (OperandError, "a is 2 tensors and b 1: one of each, or two pairs", {"b": W}),
    (OperandError, r"a\[1\] is a builtins.int", {"a": (X, 1)}),
    (TensorError, r"a\[1\] of \[8, 16\] and b\[1\] of \[16, 48\]", {"a": (X, H[0])}),
    (TensorError, r"b\[1\] of \[16, 8\]", {"b": (W, U[:, :8])}),
    (TensorError, "K is 16 in a and 8 in b", {"b": (W, U[:8])}),
    (TensorError, r"a\[1\] is torch.float16", {"a": (X, H.half()), "b": (W, U.half())}),
    (OperandError, r"b is of Tensor and Tensor: combine= of two a takes b = \(\(b0, b1\)", {"combine": "silu"}),
    (OperandError, "b is of 2 matrices and 1 matrices", {"combine": "silu", "b": ((W, W), (U,))}),
    (OperandError, r"b\[0\] is 1 matrices: combine= takes a tuple of 2 to 4", {"combine": "silu", "b": ((W,), (U,))}),
    (OperandError, "a is 3 matrices: combine= takes one a, or two", {"combine": "silu", "a": (X, H, H)}),
    (
        TensorError,
        r"a\[1\] of \[3, 8, 16\] and b\[1\]\[1\] of \[16, 8\]",
        {"combine": "silu", "b": ((W, W), (U, U[:, :8]))},
    ),
    (
        OperandError,
        "activation and combine: the function of the products has the gate",
        {"combine": "silu", "b": ((W, W), (U, U)), "activation": "swiglu"},
    ),
    (OperandError, "several parts is of two matrices", {"order": "lower"}),
    (OperandError, "s is no operand of it", {"given": {"s": 1.0}}),
    (
        TensorError,
        r"a\[1\] of \[8, 16\] and b\[1\] of \[16, 48\]: 2 rows",
        {"a": (X[0], H[0]), "rows": torch.tensor([1, 0])},
    ),
    (
        PlanError,
        "pair: no kernel has a second pair and gathered rows: the second A's rows are in order",
        {"a": (X[0], H[0]), "rows": torch.arange(8), "copy_rows": False},
    ),
    (OperandError, "bias and a gate", {"activation": "swiglu", "bias": BIAS}),
    (OperandError, "sums are computed on in float32", {"a": (X.char(), H.char()), "b": (W.char(), U.char())}),
    (TensorError, r"out, which is written to, shares memory with a\[0\]", {"out": X.view(-1)[:1152].view(3, 8, 48)}),
    (TensorError, "bias", {"bias": BIAS[:8]}),
]


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number: int) -> None:
    kind, text, changed = REFUSED[number]
    with pytest.raises(kind, match=text):
        layoutgemm.matmul(**{"a": (X, H), "b": (W, U), **changed})


def test_one_kernel_of_both_is_explained_and_launched_with_its_words() -> None:
    how = explain_matmul((X, H), (W, U))
    assert how.kernel.endswith("and a second pair of K = 16") and how.copies == () and how.launches == 1
    assert how.why.endswith("K = 64 and 16 in one loop")
    how = explain_matmul((X, H), (W.T.contiguous().T, U))
    assert how.copies == ("b[1]: copied col-major, row-major, unlike others",)
    rows, columns, _ = placed_pairs((X, H), (W, U))
    finish = finish_of_pairs(rows, columns, NO_FINISH)
    assert finish.words == (H.data_ptr(), 16, U.data_ptr(), 48, 16) and finish.second_k == 16
    solution = solve(problem_at(rows[0], columns[0], torch.bfloat16, None, None, finish))
    assert solution.kernel.paired and solution.kernel.takes_words and not solution.kernel.choice.swapped
