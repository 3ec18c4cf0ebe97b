"""matmul of several matrices: combine=, on the CPU by the reference, with gradients, and what is refused."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

import layoutgemm
from layoutgemm.errors import OperandError, PlanError, TensorError
from layoutgemm.kernels.operands.combined import function_of
from layoutgemm.torch_op.explain import explain_matmul
from layoutgemm.torch_op.operands.several import as_lines, finish_of
from layoutgemm.torch_op.prepared import LaunchEpilogue, problem_at
from layoutgemm.torch_op.solver import solve


def tensors(*shapes: tuple[int, ...], kind: Any = torch.bfloat16) -> list[Any]:
    made = torch.Generator().manual_seed(0)
    return [(torch.randint(-8, 9, shape, generator=made).float() / 8).to(kind) for shape in shapes]


def silu_gate(g: Any, u: Any, ops: Any) -> Any:
    return g * ops.sigmoid(g) * u


def weighted(x: Any, y: Any, ops: Any, s: Any) -> Any:
    return x + s * y


FORMS: list[tuple[Any, dict[str, float], Any]] = [
    ("silu", {}, lambda g, u: torch.nn.functional.silu(g) * u),
    ("gelu", {}, lambda g, u: torch.nn.functional.gelu(g) * u),
    (silu_gate, {}, lambda g, u: torch.nn.functional.silu(g) * u),
    (lambda g, u, ops: g * u, {}, lambda g, u: g * u),
    (weighted, {"s": 0.5}, lambda x, y: x + 0.5 * y),
    (lambda x, y, z, ops: ops.where(x > 0, ops.maximum(y, 0.25), ops.exp(-z / 8)), {},
     lambda x, y, z: torch.where(x > 0, y.clamp(min=0.25), torch.exp(-z / 8))),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(FORMS)))
def test_values_and_gradients_are_those_of_float64(number: int) -> None:
    combine, numbers, plain = FORMS[number]
    count = plain.__code__.co_argcount
    a, *b = [x.requires_grad_() for x in tensors((3, 5, 64), *[(64, 24)] * count, kind=torch.float32)]
    found = layoutgemm.matmul(a, tuple(b), combine=combine, given=numbers, allow_tf32=True)
    wide = [x.detach().double().requires_grad_() for x in (a, *b)]
    want = plain(*[wide[0] @ x for x in wide[1:]])
    torch.testing.assert_close(found.double(), want, rtol=1e-6, atol=1e-6)
    slope = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    exact = torch.autograd.grad(want, wide, slope.double(), materialize_grads=True, retain_graph=True)
    for got, right in zip(torch.autograd.grad(found, [a, *b], slope), exact, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-3)
    again = layoutgemm.matmul(a, tuple(b), combine=combine, given=numbers, allow_tf32=True)
    seconds = []
    for value, leaves, grad in ((again, [a, *b], slope), (want, wide, slope.double())):
        first = torch.autograd.grad(value, leaves, grad, create_graph=True, allow_unused=True)
        total = sum(x.square().sum() for x in first if x is not None)
        seconds.append(torch.autograd.grad(total, leaves, materialize_grads=True, allow_unused=True))
    for got, right in zip(*seconds, strict=True):
        torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-3 * max(1.0, float(right.abs().max())))


class Blend:
    """A layer whose own number is part of the function."""

    def __init__(self) -> None:
        self.s = 0.0

    def of(self, x: Any, y: Any, ops: Any) -> Any:
        return x + self.s * y


def test_a_function_is_traced_anew_for_other_values_that_it_reads() -> None:
    blend, held, number = Blend(), [0.0], 0.0
    functions = (blend.of, lambda x, y, ops: x + held[0] * y, lambda x, y, ops: x + number * y)
    a, x, y = tensors((5, 64), (64, 24), (64, 24))
    for number in (0.5, 0.5, 2.0):
        blend.s = held[0] = number
        want = a.double() @ x.double() + number * (a.double() @ y.double())
        for combine in functions:
            for options in ({}, {"bias": torch.zeros(24)}):
                found = layoutgemm.matmul(a, (x, y), combine=combine, out_dtype=torch.float32, **options)
                torch.testing.assert_close(found.double(), want, rtol=1e-6, atol=1e-6)


def test_gelu_of_large_negative_sums_keeps_its_digits() -> None:
    """x * (1 + erf) / 2 is 0 below -8, in float64."""
    row, one = torch.tensor([[-3.0, -8.0, -10.0, -12.0]]).half(), torch.ones(1, 4).half()
    found = layoutgemm.matmul(torch.ones(1, 1).half(), (row, one), combine="gelu", out_dtype=torch.float32)
    want = [x * math.erfc(-x / math.sqrt(2)) / 2 for x in row[0].tolist()]
    torch.testing.assert_close(found[0].double(), torch.tensor(want).double(), rtol=1e-6, atol=0)


def test_only_what_is_asked_for_is_derived() -> None:
    a, x, y = tensors((8, 64), (64, 16), (64, 16))
    x.requires_grad_()
    found = layoutgemm.matmul(a, (x, y), combine=lambda p, q, ops: p + 0 * p)
    found.float().sum().backward()
    assert x.grad is not None and y.grad is None and x.grad.dtype == torch.bfloat16
    assert not layoutgemm.matmul(a, (x.detach(), y), combine="silu").requires_grad


def test_out_sizes_of_zero_and_an_empty_sum() -> None:
    a, x, y = tensors((8, 64), (64, 16), (64, 16))
    out = torch.empty(8, 16, dtype=torch.bfloat16)
    assert layoutgemm.matmul(a, (x, y), combine=weighted, given={"s": 2}, out=out) is out
    assert torch.equal(out, (a.double() @ x.double() + 2 * (a.double() @ y.double())).bfloat16())
    assert layoutgemm.matmul(a[:0], (x, y), combine="silu").shape == (0, 16)
    one = layoutgemm.matmul(a[:, :0], (x[:0], y[:0]), combine=lambda p, q, ops: ops.exp(p) + q)
    assert torch.equal(one, torch.ones(8, 16).bfloat16())


A, X, Y = tensors((8, 64), (64, 16), (64, 16))
HALF = LaunchEpilogue(None, (), ())
REFUSED: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (OperandError, "b is a Tensor: combine= takes a tuple of 2 to 4 matrices", {"b": X}),
    (OperandError, "b is 5 matrices", {"b": (X,) * 5}),
    (OperandError, r"called with \(sum0, sum1, sum2, ops\)", {"b": (X,) * 3, "combine": lambda x, y, ops: x}),
    (OperandError, "combine = 'mish': known are relu", {"combine": "mish"}),
    (OperandError, r"= 'swiglu': combine='silu' is silu\(a @ b\[0\]\) \* \(a @ b\[1\]\)", {"combine": "swiglu"}),
    (OperandError, r"called with \(sum0, sum1, ops, s\)", {"given": {"s": 1}}),
    (OperandError, "s is a number", {"combine": weighted, "given": {"s": X}}),
    (TensorError, r"b\[1\] is torch.bfloat16 of shape \[64, 8\]", {"b": (X, Y[:, :8])}),
    (TensorError, r"b\[1\] is torch.float16", {"b": (X, Y.half())}),
    (OperandError, r"b\[1\] is a builtins.int", {"b": (X, 1)}),
    (TensorError, "K is 32 in a and 64 in b", {"a": A[:, :32]}),
    (TensorError, "a is a vector", {"a": A[0]}),
    (OperandError, "activation and combine: the function of the products has the gate", {"activation": "swiglu"}),
    (PlanError, "several matrices B and a symmetric order", {"order": "symmetric"}),
    (OperandError, "sums are combined in float32", {"a": A.char(), "b": (X.char(), Y.char())}),
    (TensorError, "out, which is written to, shares memory with b", {"out": X[:8]}),
    (TensorError, "products of 8 bits have no gradient", {"a": A.to(torch.float8_e4m3fn),
                                      "b": (X.to(torch.float8_e4m3fn), Y.to(torch.float8_e4m3fn).requires_grad_())}),
    (TensorError, "don't support automatic differentiation",
     {"a": A.clone().requires_grad_(), "out": torch.empty(8, 16).bfloat16()}),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_refusals(number: int) -> None:
    kind, text, changed = REFUSED[number]
    with pytest.raises(kind, match=text):
        layoutgemm.matmul(**{"a": A, "b": (X, Y), "combine": "silu", **changed})


def test_a_constant_is_an_element_of_all() -> None:
    a, b, bias = torch.ones(3, 4).half().requires_grad_(), torch.ones(4, 2).half(), torch.ones(2)
    for more in ({}, {"bias": bias}):
        c = layoutgemm.matmul(a, (b, b), combine=lambda p, q, ops: 2.0, **more)
        assert c.tolist() == [[2.0 + len(more)] * 2] * 3
        c.sum().backward() if c.requires_grad else None
        assert a.grad is None or not a.grad.any()


def test_a_tuple_wants_a_function() -> None:
    with pytest.raises(OperandError, match=r"b is a builtins\.tuple"):
        layoutgemm.matmul(A, (X, Y))


def test_one_kernel_and_the_copies_are_explained() -> None:
    how = explain_matmul(A, (X, Y), combine="silu")
    assert how.kernel.endswith("2 matrices B combined") and how.copies == () and how.launches == 1
    odd = torch.empty(64, 17).bfloat16()
    how = explain_matmul(A, (X, odd[:, 1:]), combine=weighted, given={"s": 1})
    assert how.copies == ("b[1]: copied row-major, no lines that tensor copies read",)
    how = explain_matmul(A, (X.T.contiguous().T, Y), combine="silu")
    assert how.copies == ("b[1]: copied col-major, row-major, unlike others",)
    with pytest.raises(OperandError, match="given without epilogue or combine"):
        explain_matmul(A, X, given={})


def test_the_launch_has_each_matrix_and_the_numbers() -> None:
    """Addresses and pitches are the launch's, so that one kernel serves them all."""
    wide = torch.empty(64, 24).bfloat16()[:, :16]
    placed, copies = as_lines([X, wide])
    how = function_of(weighted, 2, ("s",))
    finish = finish_of(how, {"s": 0.5}, placed)
    assert copies == [] and finish.words == (wide.data_ptr(), 24, int(np.float32(0.5).view(np.uint32)))
    assert function_of(weighted, 2, ("s",)) is how
    problem = problem_at(A, placed[0], torch.bfloat16, None, None, finish)
    assert solve(problem).kernel.takes_words
