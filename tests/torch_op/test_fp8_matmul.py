"""fp8_matmul: quantisation by recipe, the product and its gradients in fp8."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import fp8_matmul, matmul, quantize
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.torch_op.reference import rounded

BF16, F32 = torch.bfloat16, torch.float32
BLOCK, SQUARE, ROW, TENSOR = "BlockWise1x128", "BlockWise128x128", "RowWise", "TensorWise"
PAIRS = ((BLOCK, SQUARE), (BLOCK, BLOCK), (SQUARE, SQUARE), (ROW, ROW), (ROW, TENSOR), (TENSOR, TENSOR))
SIZES = (70, 272, 200)  # M, K, N: blocks that end early, and N no multiple of 16 for dA's K


def normal(*shape: int, kind: Any = BF16, seed: int = 0) -> Any:
    """Rows of very different magnitudes, as activations have them."""
    generator = torch.Generator().manual_seed(sum(shape) + seed)
    x = torch.randn(shape, generator=generator)
    return (x * torch.exp2(torch.randint(-6, 7, (*shape[:-1], 1), generator=generator))).to(kind)


def dequantised(x: Any, recipe: str) -> Any:
    """The values that the product multiplies, in float64, and each element's scale."""
    values, scales = quantize(x, recipe)
    high, wide = {BLOCK: (1, 128), SQUARE: (128, 128), ROW: (1, 1 << 20), TENSOR: (1 << 20,) * 2}[recipe]
    rows, columns = (torch.arange(n, device=x.device) // of for n, of in zip(x.shape, (high, wide), strict=True))
    spread = scales.double()[rows][:, columns]
    return values.double() * spread, spread


@pytest.mark.parametrize("recipe", [BLOCK, SQUARE, ROW, TENSOR])
def test_quantisation_is_within_its_bound(recipe: str) -> None:
    x = normal(150, 300)
    values, scales = quantize(x, recipe)
    assert values.dtype == torch.float8_e4m3fn and values.shape == x.shape and values.stride() == (304, 1)
    assert scales.shape == {BLOCK: (150, 3), SQUARE: (2, 3), ROW: (150, 1), TENSOR: (1, 1)}[recipe]
    back, spread = dequantised(x, recipe)
    bound = torch.maximum(2.0**-4 * x.double().abs(), 2.0**-10 * spread)
    assert bool(((back - x.double()).abs() <= bound * (1 + 2**-20)).all())
    assert values.float().abs().max() == 448  # the range is used


def test_zeros_and_what_is_not_finite() -> None:
    values, scales = quantize(torch.zeros(3, 200), BLOCK)
    assert not values.float().any() and (0 < scales).all() and (scales < 1e-30).all()
    x = torch.ones(2, 128)
    x[0, 5] = float("nan")
    c = fp8_matmul(x, torch.ones(128, 4))
    assert c[0].isnan().all() and (c[1] - 128).abs().max() < 2**-12
    assert fp8_matmul(torch.ones(0, 128), torch.ones(128, 4)).shape == (0, 4)


@pytest.mark.parametrize("recipes", PAIRS)
@pytest.mark.parametrize("transposed", [False, True])
def test_product_and_gradients(recipes: tuple[str, str], transposed: bool) -> None:
    """Against float64 products of what is multiplied, rounded once; and within the bound of what was given."""
    m, k, n = SIZES
    a, weight = normal(m, k).requires_grad_(), normal(n, k).requires_grad_()
    b = weight.t() if transposed else weight.t().contiguous().detach().requires_grad_()
    c = fp8_matmul(a, b, recipe_a=recipes[0], recipe_b=recipes[1])
    grad = normal(m, n, seed=1)
    c.backward(grad)
    right = weight.grad if transposed else b.grad
    lines = (BLOCK, BLOCK) if recipes[0] in (BLOCK, SQUARE) else (ROW, ROW)
    with torch.no_grad():
        cases = (
            (c, a, weight, recipes), (a.grad, grad, weight.t(), recipes),
            (right, grad.t(), a.t(), lines) if transposed else (right, a.t(), grad.t(), lines),
        )  # fmt: skip
        for got, x, y, names in cases:
            (left, scale_x), (other, scale_y) = dequantised(x, names[0]), dequantised(y, names[1])
            want = left @ other.t()
            assert got.dtype == BF16 and torch.equal(got, rounded(want, BF16))
            dx, dy = (torch.maximum(2.0**-4 * t.double().abs(), 2.0**-10 * s) for t, s in ((x, scale_x), (y, scale_y)))
            bound = dx @ y.double().abs().t() + x.double().abs() @ dy.t() + dx @ dy.t()
            exact = x.double() @ y.double().t()
            assert bool(((got.double() - exact).abs() <= (bound + 2**-8 * (exact.abs() + bound)) * 1.001).all())
    assert right.stride() == (weight if transposed else b).stride()


def test_sequences_bias_and_types() -> None:
    """A master weight in float32 has a gradient in float32, from float32 accumulators."""
    x, weight, bias = (
        t.requires_grad_() for t in (normal(3, 7, 144), normal(48, 144, kind=BF16), normal(48, kind=F32))
    )
    master = weight.detach().float().requires_grad_()
    c = fp8_matmul(x, weight.t(), bias=bias)
    assert c.shape == (3, 7, 48) and c.dtype == BF16
    c.sum().backward()
    assert x.grad.shape == x.shape and torch.equal(bias.grad, torch.full((48,), 21.0))
    wide = fp8_matmul(x.detach().float(), master.t(), out_dtype=BF16)
    assert wide.dtype == BF16
    wide.sum().backward()
    assert master.grad.dtype == F32 and torch.equal(master.grad.to(BF16), weight.grad)
    c, close = c.detach(), matmul(x, weight.t(), bias=bias).detach()
    assert float((c - close).float().norm() / close.float().norm()) < 2**-4


@pytest.mark.parametrize("recipes", PAIRS)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_batch_is_a_product_of_each_matrix(recipes: tuple[str, str], transposed: bool) -> None:
    """Results and gradients, with the operand's strides; a scale of all is of all matrices."""
    one = TENSOR not in recipes
    a = normal(3, 20, 272).requires_grad_()
    weight = normal(3, 48, 272) if transposed else normal(3, 272, 48)
    weight, bias = weight.requires_grad_(), normal(48, kind=F32).requires_grad_()
    options = {"bias": bias, "recipe_a": recipes[0], "recipe_b": recipes[1]}
    c = fp8_matmul(a, weight.mT if transposed else weight, **options)
    grad = normal(3, 20, 48, seed=1)
    found = torch.autograd.grad(c, (a, weight, bias), grad)
    assert c.shape == (3, 20, 48) and found[1].stride() == weight.stride()
    for i in range(3):
        x, w, of = (t.detach()[i].clone().requires_grad_() for t in (a, weight, grad))
        want = fp8_matmul(x, w.mT if transposed else w, **options)
        right = want, *torch.autograd.grad(want, (x, w), of.detach())
        for got, wanted in zip((c[i], found[0][i], found[1][i]), right, strict=True):
            assert torch.equal(got, wanted) or (not one and (got - wanted).norm() < 0.1 * wanted.norm())
    assert torch.allclose(found[2], grad.float().sum((0, 1)))


def test_gradients_that_nothing_reads_are_not_kept() -> None:
    x, weight = normal(16, 128), normal(32, 128).requires_grad_()
    for a, b, kept in ((x, weight, [True, False]), (x.clone().requires_grad_(), weight.detach(), [False, True])):
        c = fp8_matmul(a, b.t())
        assert [t is not None for t in c.grad_fn.saved_tensors] == kept
        c.sum().backward()
    assert a.grad is not None and weight.grad is not None


def test_it_accumulates() -> None:
    weight = normal(32, 128).requires_grad_()
    fp8_matmul(normal(16, 128), weight.t()).backward(normal(16, 32))
    first, at = weight.grad, weight.grad.data_ptr()
    once = first.clone()
    fp8_matmul(normal(16, 128), weight.t()).backward(normal(16, 32))
    assert weight.grad is first and first.data_ptr() == at and torch.equal(first, once + once)


def exactly_quantised(*shape: int, seed: int) -> Any:
    """Values that each recipe quantises without an error: 448 in each line of 128, and its halves."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.exp2(-torch.randint(0, 4, shape, generator=generator).double())
    rows, columns = (torch.arange(n) for n in shape)
    x[rows.unsqueeze(1) % 16 == columns % 16] = 1
    return x * 448 * torch.where(torch.rand(shape, generator=generator) < 0.5, -1, 1)


@pytest.mark.parametrize("recipes, transposed", list(zip(PAIRS, [True, False] * 3, strict=True)))
def test_second_derivatives_are_those_of_a_plain_product(recipes: tuple[str, str], transposed: bool) -> None:
    """Gradients of gradients, and a third derivative, equal float64's: no operand here is rounded."""
    m, k, n = 48, 144, 80
    values = [exactly_quantised(*shape, seed=i) for i, shape in enumerate([(m, k), (n, k), (m, n), (m, k), (n, k)])]

    def second(multiply: Any, kind: Any) -> list[Any]:
        a, weight, grad, of_a, of_weight = (x.to(kind).requires_grad_() for x in values)
        b = weight.t() if transposed else weight.t().contiguous()
        c = multiply(a, b)
        first = torch.autograd.grad(c, (a, weight), grad, create_graph=True)
        both = torch.autograd.grad(first, (grad, a, weight), (of_a, of_weight), create_graph=True)
        third = torch.autograd.grad(both[1], (of_weight, grad), of_a.detach())
        return [*first, *both, *third]

    ours = second(lambda a, b: fp8_matmul(a, b, recipe_a=recipes[0], recipe_b=recipes[1]), F32)
    theirs = second(torch.matmul, torch.float64)
    for at, (mine, want) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.dtype == F32 and torch.equal(mine.double(), want), at


def test_a_gradient_penalty_trains() -> None:
    """The second derivative is near bfloat16's own."""
    x, weight = normal(16, 128).requires_grad_(), normal(32, 128).requires_grad_()

    def penalty(multiply: Any) -> Any:
        (first,) = torch.autograd.grad(multiply(x, weight.t()).square().sum(), x, create_graph=True)
        return torch.autograd.grad(first.float().square().sum(), weight)[0].float()

    ours, theirs = penalty(fp8_matmul), penalty(matmul)
    assert float((ours - theirs).norm() / theirs.norm()) < 2**-3


def test_the_compiler_takes_it_whole() -> None:
    x, weight, bias = normal(16, 128).requires_grad_(), normal(32, 128).requires_grad_(), normal(32).requires_grad_()

    def step(x: Any, weight: Any, bias: Any) -> Any:
        return fp8_matmul(x, weight.t(), bias=bias).square().sum()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    want = torch.autograd.grad(step(x, weight, bias), (x, weight, bias))
    got = torch.autograd.grad(compiled(x, weight, bias), (x, weight, bias))
    assert all(torch.equal(mine, eager) for mine, eager in zip(got, want, strict=True))


A, B = normal(16, 128), normal(128, 32)
REFUSED: list[tuple[tuple[Any, ...], dict[str, Any], type[Exception], str]] = [
    ((A.to(torch.float8_e4m3fn), B), {}, OperandError, "a is torch.float8_e4m3fn: fp8_matmul quantises"),
    ((A, B.double()), {}, OperandError, "b is torch.float64"),
    ((A, 3), {}, OperandError, "b is a builtins.int, not a torch tensor"),
    ((A[0], B), {}, TensorError, r"shapes \[128\] and \[128, 32\]"),
    ((A, B[:64]), {}, TensorError, r"shapes \[16, 128\] and \[64, 32\]"),
    ((A, B), {"recipe_a": "RowWise"}, OperandError, "recipe_a RowWise and recipe_b BlockWise128x128: both"),
    ((A, B), {"recipe_b": "BlockWise1x32"}, OperandError, "compute capability 10.0"),
    ((A, B), {"bias": torch.ones(31)}, TensorError, r"bias has shape \[31\]"),
    ((A, B), {"out_dtype": torch.float64}, OperandError, "out_dtype torch.float64"),
]


@pytest.mark.parametrize("operands, options, kind, text", REFUSED)
def test_refusals(operands: Any, options: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        fp8_matmul(*operands, **options)


@pytest.mark.gpu
@pytest.mark.parametrize("recipes", PAIRS)
def test_on_a_gpu(recipes: tuple[str, str]) -> None:
    """Against float64 products of what the GPU quantised: its scales differ from the CPU's in the last bit."""
    check_gradients("cuda", recipes)


@pytest.mark.parametrize("recipes", PAIRS[:2])
def test_the_check_of_a_gpu_holds_on_the_cpu(recipes: tuple[str, str]) -> None:
    check_gradients("cpu", recipes)


def check_gradients(device: str, recipes: tuple[str, str]) -> None:
    a, weight = (normal(*shape).to(device).requires_grad_() for shape in ((3, 70, 272), (208, 272)))
    c = fp8_matmul(a, weight.t(), recipe_a=recipes[0], recipe_b=recipes[1])
    grad = normal(3, 70, 208, seed=1).to(device)
    c.backward(grad)
    lines = (BLOCK, BLOCK) if recipes[0] in (BLOCK, SQUARE) else (ROW, ROW)
    with torch.no_grad():
        x, dy = (t.reshape(-1, t.shape[-1]) for t in (a, grad))
        cases = (
            (c, x, weight, recipes), (a.grad, dy, weight.t(), recipes), (weight.grad, dy.t(), x.t(), lines),
        )  # fmt: skip
        for got, left, right, names in cases:
            want = dequantised(left, names[0])[0] @ dequantised(right, names[1])[0].t()
            assert float((got.double().view(want.shape) - want).norm() / want.norm()) < 2**-7
