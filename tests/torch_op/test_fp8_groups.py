"""fp8_grouped_matmul: groups of rows in fp8, and their gradients in fp8 along K."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import fp8_grouped_matmul, grouped_matmul
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.torch_op.reference import rounded
from tests.torch_op.test_fp8_matmul import BF16, BLOCK, F32, SQUARE, dequantised, exactly_quantised, normal

K, N, ROWS = 144, 72, 300  # blocks that end early
ENDS = [0, 128, 128, 256, 300]  # one of no rows; K of the last product ends inside of a block
WAYS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "offsets": lambda ends: {"offsets": ends}, "offs": lambda ends: {"offs": ends[1:].clone()},
}  # fmt: skip


def bound_of(x: Any, y: Any, scale_x: Any, scale_y: Any) -> Any:
    """The largest error of the sums of x @ y^T."""
    dx, dy = (torch.maximum(2.0**-4 * t.double().abs(), 2.0**-10 * s) for t, s in ((x, scale_x), (y, scale_y)))
    return dx @ y.double().abs().t() + x.double().abs() @ dy.t() + dx @ dy.t()


def check_product(got: Any, x: Any, y: Any, values: list[tuple[Any, Any]], device: str) -> None:
    """x @ y^T: on the CPU by what was multiplied, rounded once; everywhere within the stated bound of x and y."""
    (left, scale_x), (right, scale_y) = values
    want = left @ right.t()
    if device == "cpu":  # float64 sums in another order are not equal
        most = 2.0**-8 * want.abs() + 2.0**-40 * (left.abs() @ right.abs().t())
        assert bool(((got.double() - want).abs() <= most).all())
    exact, bound = x.double() @ y.double().t(), bound_of(x, y, scale_x, scale_y)
    assert bool(((got.double() - exact).abs() <= (bound + 2**-7 * (exact.abs() + bound)) * 1.001).all())


def check_gradients(device: str, said: str, transposed: bool, multiple: int = 128) -> None:
    ends = torch.tensor(ENDS, dtype=torch.int32, device=device)
    a = normal(ROWS, K).to(device).requires_grad_()
    weight = normal(4, *((N, K) if transposed else (K, N))).to(device).requires_grad_()
    c = fp8_grouped_matmul(a, weight.mT if transposed else weight, **WAYS[said](ends), multiple=multiple)
    grad = normal(ROWS, N, seed=1).to(device)
    c.backward(grad)
    assert c.dtype == a.grad.dtype == weight.grad.dtype == BF16 and weight.grad.stride() == weight.stride()
    with torch.no_grad():
        b, of_b = (x.mT if transposed else x for x in (weight, weight.grad))
        (x, scale_x), (dy, scale_dy) = dequantised(a, BLOCK), dequantised(grad, BLOCK)
        along, of_along = dequantised(a.t(), BLOCK), dequantised(grad.t(), BLOCK)
        for e, (first, end) in enumerate(pairwise(ENDS)):
            part = slice(first, end)
            by_columns, by_rows = dequantised(b[e].t(), SQUARE), dequantised(b[e], SQUARE)
            check_product(c[part], a[part], b[e].t(), [(x[part], scale_x[part]), by_columns], device)
            check_product(a.grad[part], grad[part], b[e], [(dy[part], scale_dy[part]), by_rows], device)
            if multiple == 1:
                assert torch.equal(of_b[e], rounded(a[part].double().t() @ grad[part].double(), BF16))
                continue
            both = [(values[:, part], scales[:, part]) for values, scales in (along, of_along)]
            check_product(of_b[e], a[part].t(), grad[part].t(), both, device)


@pytest.mark.parametrize("said, transposed", [("offsets", False), ("offs", True)])
def test_product_and_gradients(said: str, transposed: bool) -> None:
    check_gradients("cpu", said, transposed)


def test_groups_at_any_row_have_a_gradient_of_16_bits() -> None:
    check_gradients("cpu", "offs", True, multiple=1)
    for kind in (F32, torch.float16):  # of the result, whose gradient is cast to x's
        x, experts = normal(60, 144), normal(2, 48, 144, kind=F32).requires_grad_()
        c = fp8_grouped_matmul(x, experts.mT, torch.tensor([0, 17, 60]), out_dtype=kind)
        grad = normal(60, 48, kind=kind)
        c.backward(grad)
        want = grad[:17].bfloat16().double().t() @ x[:17].double()
        assert c.dtype == kind and experts.grad.dtype == F32 and torch.equal(experts.grad[0], want.float())


@pytest.mark.gpu
@pytest.mark.parametrize("said", WAYS)
@pytest.mark.parametrize("transposed", [False, True])
def test_on_a_gpu(said: str, transposed: bool) -> None:
    check_gradients("cuda", said, transposed)


@pytest.mark.gpu
def test_a_broken_promise_is_nan_on_a_gpu() -> None:
    """The group that ends inside of a block, and the one that begins there."""
    x, experts = (normal(*shape).cuda().requires_grad_() for shape in ((384, 128), (3, 128, 64)))
    ends = torch.tensor([100, 256, 384], device="cuda")
    c = fp8_grouped_matmul(x, experts, offs=ends, multiple=128)
    c.sum().backward()
    assert c.isfinite().all() and x.grad.isfinite().all()
    assert experts.grad[:2].isnan().all() and experts.grad[2].isfinite().all()


def test_rows_in_no_group() -> None:
    """They give zeros, and are in no gradient; some are NaN."""
    ends, b = torch.tensor([128, 256]), normal(2, 128, 64)
    a, grad = normal(300, 128), normal(300, 64, seed=1)
    short, grad[256:] = a[:256].clone().requires_grad_(), 7.0
    a[256:] = float("nan")
    found = []
    for x, of in ((a.requires_grad_(), grad), (short, grad[:256])):
        experts = b.clone().requires_grad_()
        c = fp8_grouped_matmul(x, experts, offs=ends, multiple=128)
        c.backward(of)
        found.append((c[:256], experts.grad, x.grad[:256]))
        assert not c[256:].any() and not x.grad[256:].any()
    assert all(torch.equal(mine, want) for mine, want in zip(*found, strict=True))


@pytest.mark.parametrize("transposed", [False, True])
def test_second_derivatives_are_those_of_a_plain_product(transposed: bool) -> None:
    """Gradients of gradients, and a third derivative, equal float64's: no operand here is rounded."""
    m, k, n, ends = 144, 48, 80, [0, 128, 144]
    shapes = [(m, k), (2 * n, k), (m, n), (m, k), (2 * n, k)]
    values = [exactly_quantised(*shape, seed=i) for i, shape in enumerate(shapes)]
    values = [x.view(2, n, k) if x.shape[0] == 2 * n else x for x in values]

    def second(multiply: Any, kind: Any) -> list[Any]:
        a, weight, grad, of_a, of_weight = (x.to(kind).requires_grad_() for x in values)
        c = multiply(a, weight.mT if transposed else weight.mT.contiguous())
        first = torch.autograd.grad(c, (a, weight), grad, create_graph=True)
        both = torch.autograd.grad(first, (grad, a, weight), (of_a, of_weight), create_graph=True)
        third = torch.autograd.grad(both[1], (of_weight, grad), of_a.detach())
        return [*first, *both, *third]

    def exact(a: Any, b: Any) -> Any:
        return torch.cat([a[first:end] @ b[e] for e, (first, end) in enumerate(pairwise(ends))])

    groups = torch.tensor(ends)
    ours = second(lambda a, b: fp8_grouped_matmul(a, b, groups, multiple=128), F32)
    for at, (mine, want) in enumerate(zip(ours, second(exact, torch.float64), strict=True)):
        assert mine.dtype == F32 and torch.equal(mine.double(), want), at


def test_second_derivatives_of_groups_at_any_row() -> None:
    """They are near `grouped_matmul`'s own."""
    x, experts, ends = normal(48, 128).requires_grad_(), normal(2, 128, 64).requires_grad_(), torch.tensor([0, 17, 48])

    def penalty(multiply: Any, **more: Any) -> Any:
        c = multiply(x, experts, ends, **more).float().square().sum()
        first = torch.autograd.grad(c, (x, experts), create_graph=True)
        return torch.cat([g.flatten() for g in torch.autograd.grad(first, experts, [t.detach() for t in first])])

    ours, theirs = penalty(fp8_grouped_matmul).float(), penalty(grouped_matmul).float()
    assert float((ours - theirs).norm() / theirs.norm()) < 2**-3


def test_autocast_and_what_is_kept() -> None:
    """Float32 leaves have float32 gradients of bfloat16 products; a frozen operand keeps nothing of the other."""
    x, experts, ends = normal(128, 128, kind=F32), normal(2, 128, 64, kind=F32), torch.tensor([0, 128, 128])
    left, right = x.clone().requires_grad_(), experts.clone().requires_grad_()
    with torch.autocast("cpu", BF16):
        c = fp8_grouped_matmul(left, right, ends)
    c.sum().backward()
    assert c.dtype == BF16 and left.grad.dtype == right.grad.dtype == F32
    for a, b, kept in ((x, right, [True, False]), (left, experts, [False, True])):
        c = fp8_grouped_matmul(a, b, ends, multiple=128)  # in torch 2.11 its end frees what it saved
        assert [t is not None for t in c.grad_fn.saved_tensors[:2]] == kept


def test_the_compiler_takes_it_whole() -> None:
    x, experts, ends = normal(256, 128).requires_grad_(), normal(2, 64, 128).requires_grad_(), torch.tensor([128, 256])

    def step(x: Any, experts: Any) -> Any:
        return fp8_grouped_matmul(x, experts.mT, offs=ends, multiple=128).square().sum()

    want = torch.autograd.grad(step(x, experts), (x, experts))
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    got = torch.autograd.grad(compiled(x, experts), (x, experts))
    assert all(torch.equal(mine, eager) for mine, eager in zip(got, want, strict=True))


A, B, AT = normal(256, 128), normal(2, 128, 32), torch.tensor([0, 128, 256])
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((A.to(torch.float8_e4m3fn), B, AT), {}, OperandError, "a is torch.float8_e4m3fn: fp8_grouped_matmul quantises"),
    ((A, B.double(), AT), {}, OperandError, "b is torch.float64"),
    ((A, 3, AT), {}, OperandError, "b is a builtins.int, not a torch tensor"),
    ((A, B[0], AT), {}, TensorError, r"shapes \[256, 128\] and \[128, 32\]: groups of rows"),
    ((A, B[:, :64], AT), {}, TensorError, r"shapes \[256, 128\] and \[2, 64, 32\]"),
    ((A, B), {}, OperandError, "offsets is missing"),
    ((A, B, AT), {"offs": AT[1:]}, OperandError, "offsets and offs: groups are said by one"),
    ((A, B, AT), {"multiple": 64}, OperandError, "multiple = 64: groups begin at any row, 1, or at multiples of 128"),
    ((A, B, AT), {"multiple": True}, OperandError, "multiple = True"),
    ((A, B, torch.tensor([0, 100, 256])), {"multiple": 128}, OperandError, r"offsets\[1\] = 100 = 0 \* 128 \+ 100"),
    ((A, B, torch.tensor([0, 128, 200])), {}, OperandError, r"offsets = \[0, 128, 200\]: they go from 0 to a's 256"),
    ((A.float(), B.float().requires_grad_(), AT), {}, OperandError, "a is torch.float32, and b's gradient of groups"),
    ((A, B, AT), {"out_dtype": torch.float64}, OperandError, "out_dtype torch.float64"),
]  # fmt: skip


@pytest.mark.parametrize("operands, options, kind, text", REFUSED)
def test_refusals(operands: Any, options: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        fp8_grouped_matmul(*operands, **options)


def test_transforms_are_refused() -> None:
    with pytest.raises(OperandError, match=r"fp8_grouped_matmul under torch.func"):
        torch.func.grad(lambda x: fp8_grouped_matmul(x, B, AT).float().sum())(A)
