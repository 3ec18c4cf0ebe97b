"""matmul with an epilogue of the user's own: operands, refusals, the reference, and the kernel in the emulator."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, matmul
from layoutgemm.dtypes import dtype
from layoutgemm.errors import LayoutError, OperandError, PlanError, TensorError
from layoutgemm.kernels.compile.worker import Kernel, plan_of, received, sent
from layoutgemm.kernels.epilogue.chain import (
    STEPS,
    Activation,
    Amax,
    Aux,
    Bias,
    Clamp,
    Custom,
    Dropout,
    Epilogue,
    EpilogueOperand,
    Quantize,
    Residual,
    RowReduce,
    Scale,
)
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.torch_op import epilogue as torch_epilogue
from layoutgemm.torch_op.problem import Problem
from layoutgemm.torch_op.problem import StridedOperand as Tensor
from layoutgemm.torch_op.solver import solve
from tests.torch_op.test_operator import F32, SMALL, emulated, integers

GATE = Custom.of(
    lambda x, i, j, ops, gate: ops.where(j <= i + 8, x * gate, -1.0), EpilogueOperand("gate", "mn", dtype("f32"))
)
ALL = Epilogue(
    Scale("alpha"), Residual("bf16"), Bias("n", "bf16"), Bias("m", name="rows"), Aux(), GATE,
    Clamp(-500.0, 500.0), Amax(), Activation("relu"),
)  # fmt: skip


def operands(batch: tuple[int, ...], m: int, n: int, fronts: bool = True) -> dict[str, Any]:
    """Operands of `ALL`, of small integers; with `fronts` each matrix of the batch has vectors of its own."""
    front = batch if fronts else ()
    return {
        "alpha": 2.0, "beta": -1.0, "d": integers(*batch, m, n), "bias": integers(*front, n), "gate": integers(
            *batch, n, m, dtype=F32).mT, "rows": integers(*front, m, dtype=F32),
        "aux": torch.full((*batch, m, n), 7.0).bfloat16(),
        "amax": torch.zeros(1),
    }  # fmt: skip


def expected(a: Any, b: Any, given: dict[str, Any]) -> tuple[Any, Any, Any]:
    """C in float64, aux, amax, by torch."""
    x = 2 * torch.matmul(a.double(), b.double()) - given["d"].double()
    x = x + given["bias"].double()[..., None, :] + given["rows"].double()[..., :, None]
    aux = x.bfloat16()
    i, j = torch.arange(x.shape[-2])[:, None], torch.arange(x.shape[-1])[None, :]
    x = torch.where(j <= i + 8, x * given["gate"].double(), torch.tensor(-1.0).double()).clamp(-500, 500)
    return torch.relu(x), aux, x.abs().max()


def check(a: Any, b: Any, fronts: bool = True, turn: Any = None, **options: Any) -> None:
    shape = torch.matmul(a.double(), b.double()).shape
    given = operands(tuple(shape[:-2]), *shape[-2:], fronts=fronts)
    if turn is not None:
        given = {name: turn(name, x) for name, x in given.items()}
    want, aux, largest = expected(a, b, given)
    got = matmul(a, b, epilogue=ALL, given=given, **options)
    assert got.shape == shape and torch.equal(got, want.to(got.dtype))
    assert torch.equal(given["aux"], aux) and given["amax"].item() == largest.item()


SHAPES = [
    ((20, 24), (24, 16)), ((7, 9), (9, 5)), ((3, 20, 24), (24, 16)), ((20, 24), (3, 24, 16)),
    ((2, 3, 8, 16), (3, 16, 8)),
]  # fmt: skip


@pytest.mark.parametrize("shapes", SHAPES)
@pytest.mark.parametrize("fronts", [True, False])
def test_the_reference_on_the_cpu(shapes: Any, fronts: bool) -> None:
    a, b = (integers(*shape) for shape in shapes)
    check(a, b, fronts)
    check(a, b, fronts, out_dtype=F32)


def test_sizes_of_zero_and_an_amax_that_goes_on() -> None:
    bias = torch.tensor([1.0, -2.0])
    got = matmul(integers(3, 0), integers(0, 2), epilogue=Epilogue(Bias()), given={"bias": bias})
    assert torch.equal(got, bias.bfloat16().expand(3, 2))
    amax = torch.tensor([5.0])
    x = torch.eye(4).bfloat16()
    for scale, most in ((2.0, 5.0), (-9.0, 9.0)):
        matmul(x, x, epilogue=Epilogue(Scale(), Amax()), given={"alpha": scale, "amax": amax})
        assert amax.item() == most
    assert matmul(x[:0], x, epilogue=Epilogue(Amax()), given={"amax": amax}).shape == (0, 4) and amax.item() == 9.0
    out = torch.empty(4, 4).bfloat16()
    device = torch.tensor(3.0)
    got = matmul(x, x, epilogue=Epilogue(Scale("s", device=True)), given={"s": device}, out=out)
    assert got is out and torch.equal(out, 3 * x)


def refused(error: type[Exception], text: str, epilogue: Any, given: Any, **options: Any) -> None:
    options = {"a": torch.ones(16, 32).bfloat16(), "b": torch.ones(32, 24).bfloat16(), **options}
    tensors = {} if not given else {name: x for name, x in given.items() if getattr(x, "is_cpu", False)}
    before = {name: x.clone() for name, x in tensors.items()}
    with pytest.raises(error, match=text):
        matmul(options.pop("a"), options.pop("b"), epilogue=epilogue, given=given, **options)
    assert all(torch.equal(x, given[name]) for name, x in before.items())


@pytest.mark.parametrize("step", [RowReduce("sum", "parts", each=4), Quantize("parts", each=12)])
def test_groups_of_columns_that_no_kernel_reduces_are_refused_on_the_cpu_too(step: Any) -> None:
    kind = torch.float8_e4m3fn if isinstance(step, Quantize) else torch.float32
    x, parts = torch.ones(16, 48).bfloat16(), torch.zeros(16, 48 // step.each)
    with pytest.raises(PlanError, match=f"parts: each = {step.each}: a multiple of 8 columns"):
        matmul(x, torch.ones(48, 48).bfloat16(), epilogue=Epilogue(step), given={"parts": parts}, out_dtype=kind)
    assert not parts.any()


def test_refusals_name_the_operand() -> None:
    ones = torch.ones
    bias, d = Epilogue(Bias()), Epilogue(Residual(beta=None))
    refused(OperandError, "takes bias: bias is missing", bias, {})
    refused(OperandError, "takes bias: bios is no operand", bias, {"bias": ones(24), "bios": 1})
    refused(OperandError, "there is no epilogue", None, {"bias": ones(24)})
    refused(OperandError, "epilogue is a str", "relu", {})
    refused(OperandError, "given is a list", bias, [])
    refused(OperandError, "transposed C", bias.transposed(), {"bias": ones(24)})
    refused(OperandError, "bias and epilogue", bias, {"bias": ones(24)}, bias=ones(24))
    refused(OperandError, "activation and epilogue", bias, {"bias": ones(24)}, activation="relu")
    refused(TensorError, r"bias has shape \[16\].*\[24\]", bias, {"bias": ones(16)})
    refused(TensorError, "bias is torch.bfloat16", bias, {"bias": ones(24).bfloat16()})
    refused(TensorError, "meta: bias", bias, {"bias": ones(24, device="meta")})
    refused(OperandError, "bias is a list", bias, {"bias": [1.0] * 24})
    refused(OperandError, "bias: elements lie 2 apart", bias, {"bias": ones(48)[::2]})
    refused(OperandError, "alpha is a number", Epilogue(Scale()), {"alpha": ones(1)})
    refused(OperandError, "alpha is a number.*bool", Epilogue(Scale()), {"alpha": True})
    refused(OperandError, "alpha = 1e[+]39 is beyond float32", Epilogue(Scale()), {"alpha": 1e39})
    refused(OperandError, "seed is a number", Epilogue(Dropout(0.5)), {"seed": 1.5})
    read = Epilogue(Custom.of(lambda x, i, j, ops, t: x * t, EpilogueOperand("t", "", "f32")))
    refused(
        OperandError,
        r"t is a float, not a torch tensor; EpilogueOperand\('t', '', 'f32', host=True\)",
        read,
        {"t": 1.0},
    )
    refused(TensorError, r"d has shape \[24, 16\]", d, {"d": ones(24, 16).bfloat16()})
    refused(OperandError, "d: strides .* neither rows nor columns", d, {"d": ones(32, 48).bfloat16()[::2, ::2]})
    wants = ones(16, 32).bfloat16().requires_grad_()
    with torch.no_grad():
        made = matmul(wants, ones(32, 24).bfloat16(), epilogue=bias, given={"bias": ones(24)})
        assert made[0, 0] == 33 and not made.requires_grad
    refused(OperandError, "a is a vector", bias, {"bias": ones(24)}, a=ones(32).bfloat16())
    refused(OperandError, "product is torch.int32", bias, {"bias": ones(24)}, a=ones(16, 32).to(torch.int8),
            b=ones(32, 24).to(torch.int8))  # fmt: skip
    aux = Epilogue(Aux())
    refused(TensorError, "more than one element of aux", aux, {"aux": ones(1, 24).bfloat16().expand(16, 24)})
    refused(TensorError, r"aux has shape \[16, 24\]", aux, {"aux": ones(16, 24).bfloat16()},
            a=ones(2, 16, 32).bfloat16())  # fmt: skip
    square = ones(16, 16).bfloat16()
    shared = {"aux": square}
    refused(TensorError, "aux, which is written to, shares memory with a", aux, shared, a=square, b=square.clone())
    held = ones(16, 24).bfloat16()
    refused(TensorError, "shares memory with out", aux, {"aux": held}, out=held)
    refused(TensorError, "shares memory with other", Epilogue(Aux(), Aux(name="other")), {"aux": held, "other": held})
    mapped = torch.func.vmap(lambda x: matmul(x, square, epilogue=aux, given={"aux": square.clone()}))
    with pytest.raises(OperandError, match="aux is one tensor for all"):
        mapped(ones(2, 16, 16).bfloat16())
    assert issubclass(TensorError, LayoutError)


def test_matrices_keep_operands_in_their_places() -> None:
    """Across their rows a swapped product's epilogue would read them: a fifth of 2400x1024x4928."""
    a, c = (Tensor(shape, (shape[1], 1), "bf16", 16) for shape in ((2400, 4928), (2400, 1024)))
    b = Tensor((4928, 1024), (1, 4928), "bf16", 16)
    swapped = {
        name: solve(Problem(a, b, c, epilogue=epilogue)).kernel.choice.swapped
        for name, epilogue in (("none", None), ("bias", Epilogue(Bias())), ("residual", Epilogue(Residual())))
    }
    assert swapped == {"none": True, "bias": True, "residual": False}


def test_matrices_are_read_in_lines_where_all_begin_at_multiples_of_16_bytes() -> None:
    room, epilogue = (
        torch.zeros(1000, dtype=torch.bfloat16),
        Epilogue(Residual(beta=None), Bias("n", "f32"), Aux("f32")),
    )

    def lines(d: Any, epilogue: Epilogue = epilogue) -> bool:
        m, n = d.shape
        given = {"d": d, "bias": torch.zeros(n + 1)[1:], "aux": torch.zeros(m, n + 1)[:, :n]}
        return torch_epilogue.finish_of(epilogue, given, (m, n)).epilogue.lines

    assert lines(room[:128].view(8, 16)) and lines(room[8:136].view(8, 16)) and lines(room[:192].view(8, 24)[:, :16])
    assert not lines(room[4:132].view(8, 16)), "the address"
    assert not lines(room[:160].view(8, 20)[:, :16]), "the distance of rows"
    assert not lines(room[:96].view(8, 12)), "columns"
    assert not lines(room[:128].view(16, 8).T), "columns are contiguous"
    assert not lines(room[:128].view(8, 16), Epilogue(Bias("n", "f32"), Aux("f32"))), "nothing is read"


def test_every_step_reaches_the_compiling_process() -> None:
    for steps in (ALL.steps, (Dropout(0.25), Clamp(0.0))):
        kernel = Kernel(Sm90Choice(Sm90Config()), ("bf16:row",) * 3, True, Epilogue(*steps).in_pairs(lines=True))
        plan = plan_of(kernel)
        assert received(sent(plan)) == plan.for_any_size()
    assert {type(step).__name__ for step in (*ALL.steps, Dropout(0.25), Clamp(0.0))} <= set(STEPS)


class OwnBias(Bias):
    """Another package's arithmetic."""


def test_a_step_of_somebody_elses_does_not_reach_it() -> None:
    plan = plan_of(Kernel(Sm90Choice(Sm90Config()), ("bf16:row",) * 3, True, Epilogue(OwnBias())))
    with pytest.raises(pickle.UnpicklingError, match=r"test_epilogue\.OwnBias is no part of a plan"):
        received(sent(plan))
    plan = plan_of(Kernel(Sm90Choice(Sm90Config()), ("bf16:row",) * 3, True, Epilogue(type("Bias", (Bias,), {})())))
    with pytest.raises(pickle.PicklingError):
        sent(plan)


# ------------------------------------------------------------------------------------------------------ in the emulator


def strange(name: str, x: Any) -> Any:
    """The same operand with other strides: columns contiguous, one row for all, a wider matrix, odd addresses."""
    if name == "d":
        return x.mT.contiguous().mT
    if name == "gate":
        return x[..., :1, :].clone().expand(x.shape)
    if name == "aux":
        return torch.zeros(*x.shape[:-1], x.shape[-1] + 3, dtype=x.dtype)[..., 1:-2]
    if name == "bias":
        return torch.zeros(*x.shape[:-1], x.shape[-1] + 1, dtype=x.dtype)[..., 1:].copy_(x)
    return x


@pytest.mark.dsl
@pytest.mark.parametrize(
    "case", ["rows", "swapped", "odd", "one matrix for a batch", "a batch", "two dimensions", "both shared"]
)
def test_the_kernel_in_the_emulator(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    swapped = Sm90Choice(Sm90Config((64, 16), consumers=1, loader="warp"), swapped=True)
    a, b, fronts, turn, config, launches = {
        "rows": (integers(70, 64), integers(72, 64).T, True, None, SMALL, 1),
        "swapped": (integers(10, 64), integers(72, 64).T, True, None, swapped, 1),
        "odd": (integers(33, 40), integers(40, 37), True, strange, SMALL, 1),
        "one matrix for a batch": (integers(3, 20, 64), integers(64, 40), False, None, SMALL, 1),
        "a batch": (integers(3, 20, 64), integers(3, 64, 40), True, strange, SMALL, 1),
        "two dimensions": (integers(2, 2, 20, 32), integers(2, 2, 32, 24).transpose(0, 1), True, None, SMALL, 2),
        "both shared": (
            integers(1, 20, 32).expand(2, 20, 32), integers(1, 32, 24).expand(2, 32, 24), True, None, SMALL, 2
        ),
    }[case]  # fmt: skip
    with emulated(monkeypatch) as calls:
        check(a, b, fronts, turn, config=config)
        assert len(calls) == launches


@pytest.mark.dsl
def test_a_bias_of_a_whole_batch_is_one_product(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operand that is equal for all rows lets a batch become rows; dropout, which counts rows, does not."""
    a, b, bias = integers(3, 20, 64), integers(64, 40), integers(40, dtype=F32)
    with emulated(monkeypatch) as calls:
        got = matmul(a, b, epilogue=Epilogue(Bias()), given={"bias": bias}, config=SMALL)
        assert torch.equal(got, (a.double() @ b.double() + bias.double()).bfloat16())
        assert calls[-1][0][3:7] == [60, 40, 64, 1]
        # a value for each row, or for each matrix: the matrices stay apart
        product, rows, biases = a.double() @ b.double(), integers(20, dtype=F32), integers(3, 40, dtype=F32)
        got = matmul(a, b, epilogue=Epilogue(Bias("m")), given={"bias": rows}, config=SMALL)
        assert torch.equal(got, (product + rows.double()[:, None]).bfloat16()) and calls[-1][0][3:7] == [20, 40, 64, 3]
        got = matmul(a, b, epilogue=Epilogue(Bias()), given={"bias": biases}, config=SMALL)
        assert torch.equal(got, (product + biases.double()[:, None]).bfloat16())
        assert calls[-1][0][3:7] == [20, 40, 64, 3]
        drop = Epilogue(Dropout(0.5), Bias())
        got = matmul(a, b, epilogue=drop, given={"bias": bias, "seed": 11}, config=SMALL)
        assert calls[-1][0][3:7] == [20, 40, 64, 3]
        monkeypatch.setattr(torch_epilogue, "on_gpu", lambda x: False)
        assert torch.equal(got, matmul(a, b, epilogue=drop, given={"bias": bias, "seed": 11}))
        monkeypatch.setattr(torch_epilogue, "on_gpu", lambda x: True)
        empty = matmul(a[..., :0], b[:0], epilogue=Epilogue(Bias()), given={"bias": bias}, config=SMALL)
        assert torch.equal(empty, bias.bfloat16().expand(3, 20, 40))


def test_an_operand_in_place_is_read_before_it_is_written() -> None:
    """All of C, and a triangle, which keeps its other tiles: out -= a @ b."""
    torch.manual_seed(0)
    a, b, d = torch.randn(136, 64).bfloat16(), torch.randn(64, 136).bfloat16(), torch.randn(136, 136).bfloat16()
    update = Epilogue(Scale(), Residual("bf16", beta=None))
    want = matmul(a, b, epilogue=update, given={"alpha": -1.0, "d": d})
    found = d.clone()
    assert matmul(a, b, epilogue=update, given={"alpha": -1.0, "d": found}, out=found) is found
    assert torch.equal(found, want)
    found = d.clone()
    matmul(a, b, order="lower", epilogue=update, given={"alpha": -1.0, "d": found}, out=found)
    assert torch.equal(found.tril(), want.tril()) and torch.equal(found[0, -1], d[0, -1])
    with pytest.raises(TensorError, match="out, which is written to, shares memory with d"):
        wide = torch.zeros(136, 137).bfloat16()
        matmul(a, b, epilogue=update, given={"alpha": -1.0, "d": wide[:, :-1]}, out=wide[:, 1:])
