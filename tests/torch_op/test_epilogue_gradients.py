"""Gradients of matmul behind an epilogue, against float64 autograd of the same steps."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from layoutgemm import explain_matmul, matmul
from layoutgemm.errors import TensorError
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    ActivationGradient,
    Amax,
    Aux,
    Bias,
    Clamp,
    ColumnGroup,
    ColumnReduce,
    Custom,
    Dropout,
    Epilogue,
    EpilogueOperand,
    Quantize,
    Reduction,
    Residual,
    RowReduce,
    Scale,
    Step,
    VectorScale,
)

M, N, K = 6, 40, 16
Tensors = dict[str, torch.Tensor]
Written = dict[str, torch.Tensor]
ROW, COLUMN = torch.arange(M)[:, None], torch.arange(N)[None, :]


class Case(NamedTuple):
    """A step, its operands, and the same step by hand: (x, operands, written) -> x, of any float type."""

    step: Step
    shapes: dict[str, tuple[int, ...]]
    by_hand: Callable[[torch.Tensor, Tensors, Written], torch.Tensor]


def kept(name: str, function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A step that writes a function of x, and leaves x."""

    def by_hand(x: torch.Tensor, of: Tensors, written: Written) -> torch.Tensor:
        written[name] = function(x)
        return x

    return by_hand


def gelu_slope(z: torch.Tensor) -> torch.Tensor:
    return torch.special.ndtr(z) + z * torch.exp(-z * z / 2) / (2 * torch.pi) ** 0.5


OWN = Custom.of(
    lambda x, i, j, ops, g, s: ops.where((i + 2 * j) % 3 == 0, x * g, ops.exp(-x * x) + ops.maximum(s * x, 1)),
    EpilogueOperand("g", "mn", "f32"), EpilogueOperand("s", "m", "f32"),
)  # fmt: skip
SQUARED = ColumnGroup.of(
    lambda x, i, j, ops, g: (x[0] * x[1] * g[1], x[1] - g[0] * j), EpilogueOperand("pairs", "mn", "f32")
)
WEIGHED = Reduction.of(
    lambda x, i, j, ops: (x * ops.float(j), x * x),
    lambda a, b, ops: (a[0] + b[0], a[1] + b[1]),
    identity=(0.0, 0.0), finish=lambda a, ops: (a[0] / (1.0 + a[1]), a[1]), results=("mean", "squares"),
)  # fmt: skip


def weighed(x: torch.Tensor, of: Tensors, written: Written) -> torch.Tensor:
    squares = x.square().sum(0)
    written["w_mean"], written["w_squares"] = (x * COLUMN).sum(0) / (1 + squares), squares
    return x


def best(x: torch.Tensor, of: Tensors, written: Written) -> torch.Tensor:
    written["best_value"] = x.max(-1).values
    return x


def own(x: torch.Tensor, of: Tensors, written: Written) -> torch.Tensor:
    other = torch.exp(-x * x) + torch.maximum(of["s"][:, None] * x, torch.ones((), dtype=x.dtype))
    return torch.where((ROW + 2 * COLUMN) % 3 == 0, x * of["g"], other)


def squared(x: torch.Tensor, of: Tensors, written: Written) -> torch.Tensor:
    (x0, x1), (g0, g1) = x.unflatten(-1, (-1, 2)).unbind(-1), of["pairs"].unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([x0 * x1 * g1, x1 - g0 * COLUMN[..., ::2]], -1).flatten(-2)


CASES = {
    "scale": Case(Scale("twice"), {}, lambda x, of, written: x * 2.5),
    "scale in memory": Case(Scale("alpha", device=True), {"alpha": (1,)}, lambda x, of, written: x * of["alpha"]),
    "bias": Case(Bias(), {"bias": (N,)}, lambda x, of, written: x + of["bias"]),
    "rows": Case(VectorScale("m", "f32", "v"), {"v": (M,)}, lambda x, of, written: x * of["v"][:, None]),
    "residual": Case(Residual("f32"), {"d": (M, N)}, lambda x, of, written: x - 0.5 * of["d"]),
    "gelu": Case(Activation("gelu"), {}, lambda x, of, written: torch.nn.functional.gelu(x)),
    "silu": Case(Activation("silu"), {}, lambda x, of, written: x * torch.sigmoid(x)),
    "slope": Case(ActivationGradient("gelu", "f32", name="z"), {"z": (M, N)},
                  lambda x, of, written: x * gelu_slope(of["z"])),
    "clamp": Case(Clamp(-1.0, 2.0), {}, lambda x, of, written: x.clamp(-1.0, 2.0)),
    "aux": Case(Aux("f32"), {}, kept("aux", lambda x: x)),
    "columns": Case(SQUARED, {"pairs": (M, N)}, squared),
    "own": Case(OWN, {"g": (M, N), "s": (M,)}, own),
    "sum": Case(RowReduce("sum", "total"), {}, kept("total", lambda x: x.sum(-1))),
    "max": Case(ColumnReduce("max", "most"), {}, kept("most", lambda x: x.amax(-2))),
    "lse": Case(RowReduce("log_sum_exp", "lse"), {}, kept("lse", lambda x: x.logsumexp(-1))),
    "amax": Case(Amax("largest"), {}, kept("largest", lambda x: torch.maximum(x.abs().amax(), torch.full((1,), 0.25)))),
    "parts": Case(RowReduce("sum_of_squares", "parts", each=16), {},
                  kept("parts", lambda x: torch.stack([y.square().sum(-1) for y in x.split(16, -1)], -1))),
    "in memory": Case(ColumnReduce("sum", "more", ordered=False), {}, kept("more", lambda x: x.sum(-2) + 0.25)),
    "argmax": Case(RowReduce("argmax", "best"), {}, best),
    "own reduction": Case(ColumnReduce(WEIGHED, "w"), {}, weighed),
}  # fmt: skip
NUMBERS = {"twice": 2.5, "beta": -0.5}
FLOW = 2**-6  # relative: a slope is rounded to bfloat16 before the gradient's products


def given_of(epilogue: Epilogue, of: Tensors) -> dict[str, object]:
    """A call's operands: those that are written hold quarters."""
    given: dict[str, object] = {operand.name: NUMBERS[operand.name] for operand in epilogue.numbers}
    for name in epilogue.writes:
        operand = epilogue.named_given(name)
        kind = torch.int32 if operand.dtype.kind == "int" else torch.float32
        given[name] = torch.full(operand.shape(M, N) or (1,), 0.25).to(kind)
    return {**given, **{name: of[name] for name in epilogue.reads}}


def results(epilogue: Epilogue, a: torch.Tensor, b: torch.Tensor, of: Tensors) -> list[torch.Tensor]:
    """C and what the steps write, indices apart."""
    given = given_of(epilogue, of)
    c = matmul(a, b, epilogue=epilogue, given=given, out_dtype=torch.float32)
    written = [given[name] for name in epilogue.writes if epilogue.named_given(name).dtype.kind != "int"]
    return [*([c] if epilogue.stores_c else []), *written]  # type: ignore[list-item]


def by_hand(names: list[str], a: torch.Tensor, b: torch.Tensor, of: Tensors) -> list[torch.Tensor]:
    x, written = a @ b, Written()
    for name in names:
        x = CASES[name].by_hand(x, of, written)
    return [x, *written.values()]


def loss(found: list[torch.Tensor]) -> torch.Tensor:
    weights = [torch.linspace(0.5, 1.5, x.numel(), dtype=x.dtype).reshape(x.shape) for x in found]
    return torch.stack([(x * w).sin().sum().double() for x, w in zip(found, weights, strict=True)]).sum()


def drawn(names: list[str]) -> tuple[Epilogue, list[torch.Tensor], list[str]]:
    """The epilogue, its leaves with A and B first, and the names of the others."""
    epilogue = Epilogue(*[CASES[name].step for name in names])
    shapes = {name: shape for each in names for name, shape in CASES[each].shapes.items()}
    leaves = [torch.randn(M, K).bfloat16() / 4, torch.randn(K, N).bfloat16()]
    return epilogue, [*leaves, *[torch.randn(shape) for shape in shapes.values()]], list(shapes)


def draws(count: int) -> list[list[str]]:
    """Steps at random, each of them once at least; a kernel has sixteen words for their operands."""
    made, left = random.Random(0), list(CASES)
    made.shuffle(left)
    found: list[list[str]] = []
    while left or len(found) < count:
        names = [*[left.pop() for _ in range(min(2, len(left)))], *made.sample(list(CASES), 2)]
        names = list(dict.fromkeys(names))
        words = sum(len(operand.words) for name in names for operand in CASES[name].step.given)
        found.append(names if words < 16 else names[:2])
    return found


def gradients(function: Callable[..., list[torch.Tensor]], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    leaves = [x.detach().clone().requires_grad_() for x in leaves]
    found = torch.autograd.grad(loss(function(*leaves)), leaves, materialize_grads=True, allow_unused=True)
    return list(found)


def close(found: list[torch.Tensor], wanted: list[torch.Tensor], flow: float = FLOW) -> None:
    for x, want in zip(found, wanted, strict=True):
        assert float((x.double() - want).norm()) <= flow * float(want.norm()) + 1e-6


@pytest.mark.parametrize("names", draws(12), ids="-".join)
def test_gradients_are_those_of_float64(names: list[str]) -> None:
    torch.manual_seed(len(names[0]))
    epilogue, leaves, others = drawn(names)

    def ours(a: torch.Tensor, b: torch.Tensor, *values: torch.Tensor) -> list[torch.Tensor]:
        return results(epilogue, a, b, dict(zip(others, values, strict=True)))

    def right(a: torch.Tensor, b: torch.Tensor, *values: torch.Tensor) -> list[torch.Tensor]:
        return by_hand(names, a, b, dict(zip(others, values, strict=True)))

    wide = [x.double() for x in leaves]
    close(ours(*leaves), right(*wide), 2**-16)
    wanted = gradients(right, wide)
    close(gradients(ours, leaves), wanted)
    transformed = torch.func.grad(lambda *x: loss(ours(*x)), tuple(range(len(leaves))))(*leaves)
    close(list(transformed), wanted)


SEVERAL = ["bias", "aux", "own", "lse"]
STEPS = Epilogue(*[CASES[name].step for name in SEVERAL])


def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, g: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    given = {"bias": bias, "g": g, "s": s, "aux": bias.new_empty(M, N), "lse": bias.new_empty(M)}
    c = matmul(a, b, epilogue=STEPS, given=given, out_dtype=torch.float32)
    return loss([c, given["aux"], given["lse"]])


def wanted_of(leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    def right(a: torch.Tensor, b: torch.Tensor, *values: torch.Tensor) -> list[torch.Tensor]:
        return by_hand(SEVERAL, a, b, dict(zip(("bias", "g", "s"), values, strict=True)))

    return gradients(right, [x.double() for x in leaves])


@pytest.fixture(scope="module")
def leaves() -> list[torch.Tensor]:
    torch.manual_seed(3)
    return drawn(SEVERAL)[1]


def test_a_compiled_step_has_the_same_gradients(leaves: list[torch.Tensor]) -> None:
    torch._dynamo.reset()
    step = torch.compile(product, fullgraph=True, backend="aot_eager")
    given = [x.clone().requires_grad_() for x in leaves]
    close(list(torch.autograd.grad(step(*given), given)), wanted_of(leaves))


def test_second_derivatives_forward_mode_and_vmap(leaves: list[torch.Tensor]) -> None:
    def right(*given: torch.Tensor) -> torch.Tensor:
        return loss(by_hand(SEVERAL, *given[:2], dict(zip(("bias", "g", "s"), given[2:], strict=True))))

    def twice(function: Callable[..., torch.Tensor], given: list[torch.Tensor]) -> list[torch.Tensor]:
        given = [x.clone().requires_grad_() for x in given]
        first = torch.autograd.grad(function(*given), given, create_graph=True)
        return list(torch.autograd.grad(sum(x.double().sin().sum() for x in first), given))

    wide = [x.double() for x in leaves]
    close(twice(product, leaves), twice(right, wide), 2 * FLOW)  # first gradients are rounded, too
    tangents = tuple(torch.randn_like(x) for x in leaves)
    ours = torch.func.jvp(product, tuple(leaves), tangents)[1]
    close([ours], [torch.func.jvp(right, tuple(wide), tuple(x.double() for x in tangents))[1]])
    several = torch.stack([leaves[2], 2 * leaves[2]])
    mapped = torch.vmap(lambda bias: torch.func.grad(product)(leaves[0], leaves[1], bias, *leaves[3:]))(several)
    each = [torch.func.grad(product)(leaves[0], leaves[1], bias, *leaves[3:]) for bias in several]
    close(list(mapped), [x.double() for x in each], 2**-7)


def test_one_tensor_twice_has_the_sum_of_both_gradients() -> None:
    x = torch.randn(8, 8, dtype=torch.float64)

    def square(x: torch.Tensor, times: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        x = x.clone().requires_grad_()
        first = torch.autograd.grad(times(x).double().sin().sum(), x, create_graph=True)
        return [first[0].detach(), *torch.autograd.grad(first[0].double().square().sum(), x)]

    epilogue = Epilogue(Activation("tanh"))
    ours = square(x.half(), lambda x: matmul(x, x.mT, epilogue=epilogue, given={}, out_dtype=torch.float32))
    close(ours, square(x.half().double(), lambda x: (x @ x.mT).tanh()))


def test_dropouts_mask_is_the_kernels() -> None:
    given = [torch.randn(M, K).bfloat16().requires_grad_(), torch.randn(K, N).bfloat16().requires_grad_()]
    for seed in (7, -(2**31), 2**31 - 1):
        epilogue = Epilogue(Dropout(0.25))
        c = matmul(*given, epilogue=epilogue, given={"seed": seed}, out_dtype=torch.float32)
        made = torch.autograd.grad(c.sum(), given)
        mask = torch.from_numpy(epilogue.reference(torch.ones(M, N).numpy(), seed=seed).c.copy())
        a, b = (x.detach().float() for x in given)
        close(list(made), [(mask @ b.mT).double(), (a.mT @ mask).double()])


def test_a_batch_behind_a_gate_without_a_c() -> None:
    steps = Epilogue(Bias(), Activation("gelu"), RowReduce("softmax", "row"), stores_c=False, sums=1)
    a, b, bias = torch.randn(2, M, K).bfloat16(), torch.randn(2, N, K).bfloat16().mT, torch.randn(N)
    read = [x.clone().requires_grad_() for x in (a, b, bias)]
    given = {"bias": read[2], "row_max": torch.empty(2, M), "row_log_sum_exp": torch.empty(2, M)}
    c = matmul(read[0], read[1], activation="swiglu", epilogue=steps, given=given)
    assert c.shape == (0,) and not c.requires_grad
    made = torch.autograd.grad(given["row_log_sum_exp"].square().sum() + given["row_max"].sum(), read)
    wide = [x.double().requires_grad_() for x in (a, b, bias)]
    gate, up = (wide[0] @ wide[1] + wide[2]).chunk(2, -1)
    x = torch.nn.functional.gelu(torch.nn.functional.silu(gate) * up)
    close(list(made), list(torch.autograd.grad(x.logsumexp(-1).square().sum() + x.amax(-1).sum(), wide)))


def test_a_linear_epilogue_computes_no_sums_again(monkeypatch: pytest.MonkeyPatch) -> None:
    from layoutgemm.torch_op.own_epilogue import derivatives

    made: list[torch.dtype] = []
    real = derivatives.product
    monkeypatch.setattr(derivatives, "product", lambda a, b, kind: made.append(kind) or real(a, b, kind))
    a, b = torch.randn(M, K).bfloat16().requires_grad_(), torch.randn(K, N).bfloat16().requires_grad_()
    for names, products in ((["twice", "bias", "aux", "sum"], 2), (["bias", "gelu"], 3)):
        epilogue = Epilogue(*[Scale("twice") if name == "twice" else CASES[name].step for name in names])
        sum(x.sum() for x in results(epilogue, a, b, {"bias": torch.randn(N)})).backward()
        assert len(made) == products
        made.clear()
        told = explain_matmul(a, b, epilogue=epilogue, given=given_of(epilogue, {"bias": torch.randn(N)})).backward
        assert told.startswith("two products" if products == 2 else f"float32 sums again, {4 * M * N} bytes")
    assert explain_matmul(a.detach(), b.detach(), epilogue=epilogue, given={"bias": torch.randn(N)}).backward == ""


def test_what_has_no_derivative_is_refused_by_name() -> None:
    a, b = torch.randn(M, 128).bfloat16(), torch.randn(128, 128).bfloat16()
    leaf, relu, fp8 = a.clone().requires_grad_(), Epilogue(Activation("relu")), torch.float8_e4m3fn
    quantize = Epilogue(Quantize())
    scales, aux = torch.empty(M, 1), torch.zeros(M, 128).bfloat16().requires_grad_()
    calls: list[tuple[str, Callable[[], object]]] = [
        ("Quantize.*values of 8 bits have no gradient", lambda: matmul(
            leaf, b, epilogue=quantize, given={"scales": scales}, out_dtype=fp8)),
        ("aux is a leaf that requires grad", lambda: matmul(a, b, epilogue=Epilogue(Aux()), given={"aux": aux})),
        ("arguments don't support automatic differentiation", lambda: matmul(
            leaf, b, epilogue=relu, given={}, out=torch.empty(M, 128).bfloat16())),
        ("bfloat16|8 bits have no gradient", lambda: matmul(
            a.to(fp8), b.to(fp8), epilogue=Epilogue(Bias()), given={"bias": torch.ones(128, requires_grad=True)})),
    ]  # fmt: skip
    for message, call in calls:
        with pytest.raises(TensorError, match=message):
            call()
    index = torch.empty(M, dtype=torch.int32)
    given = {"best_value": torch.empty(M), "best_index": index}
    assert matmul(leaf, b, epilogue=Epilogue(RowReduce("argmax", "best")), given=given).requires_grad
    assert given["best_value"].requires_grad and not index.requires_grad
    torch._dynamo.reset()
    for message, call in (calls[0], calls[2]):
        with pytest.raises(RuntimeError, match=message):
            torch.compile(call, backend="eager", fullgraph=True)()


@pytest.mark.parametrize("sizes", [(0, 4), (4, 0)])
def test_reductions_of_nothing_have_the_same_results_with_gradients(sizes: tuple[int, int]) -> None:
    m, n = sizes
    kinds = {"i32": torch.int32, "f32": torch.float32}
    lines = [kind(name, "s") for kind in (RowReduce, ColumnReduce) for name in ("max", "softmax", "argmax", "top2")]
    for step in (Amax("s"), *lines):
        found: list[Written] = []
        for records in (False, True):
            a = torch.randn(m, 8).half().requires_grad_(records)
            given: Tensors = {
                x.name: torch.full(x.shape(m, n) or (1,), 3, dtype=kinds[x.dtype.name]) for x in step.given
            }
            c = matmul(a, torch.randn(8, n).half(), epilogue=Epilogue(step), given=given)
            found.append({name: x.detach() for name, x in given.items()})
            if records:
                (c.sum() + sum(x.sum() for x in given.values() if x.requires_grad)).backward()
                assert a.grad is not None and not a.grad.any()
        for name, x in found[0].items():
            assert torch.equal(x, found[1][name]), (step, name)
