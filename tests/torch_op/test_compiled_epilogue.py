"""matmul(epilogue=) under torch.compile, export, torch.func and modes: the operator, its shapes and its refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import matmul
from layoutgemm.dtypes import dtype
from layoutgemm.errors import LayoutError, OperandError, PlanError, TensorError
from layoutgemm.kernels.epilogue.chain import (
    Activation,
    Amax,
    Aux,
    Bias,
    Clamp,
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
)
from layoutgemm.kernels.epilogue.reductions import REDUCTIONS

OPERATOR = torch.ops.layoutgemm.epilogue_matmul
MASK = Custom.of(
    lambda x, i, j, ops, g: ops.where(j <= i + 2, x * g, -1.0), EpilogueOperand("g", "mn", dtype("f32"))
)  # fmt: skip
STEPS = Epilogue(Scale("alpha"), Bias("n", "bf16"), Aux(), MASK, RowReduce("max"), Activation("relu"))
SUMS = Epilogue(RowReduce("sum"), stores_c=False)
DROPOUT = Epilogue(Dropout(0.5))
Tensors = tuple[torch.Tensor, ...]


def drawn(m: int = 5, n: int = 8, k: int = 16, batch: int = 0, device: str = "cpu") -> Tensors:
    torch.manual_seed(0)
    lead = (batch,) if batch else ()
    a, b = torch.randn(*lead, m, k, device=device).bfloat16(), torch.randn(*lead, k, n, device=device).bfloat16()
    return a, b, torch.randn(n, device=device).bfloat16(), torch.randn(*lead, m, n, device=device)


def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, g: torch.Tensor) -> Tensors:
    aux, largest = torch.empty_like(g, dtype=torch.bfloat16), torch.empty_like(g[..., 0])
    given = {"alpha": 2.0, "bias": bias, "aux": aux, "g": g, "row_max": largest}
    return matmul(a, b, epilogue=STEPS, given=given), aux, largest


def compiled(function: Callable[..., Any], backend: Any = "aot_eager") -> Callable[..., Any]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend=backend)


def equal(found: Tensors, wanted: Tensors) -> bool:
    return all(torch.equal(x, y) for x, y in zip(found, wanted, strict=True))


class Product(torch.nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor, g: torch.Tensor) -> Tensors:
        return product(a, b, bias, g)


def test_a_graph_has_one_operator_and_writes_what_the_steps_write() -> None:
    operators: list[str] = []

    def noted(module: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        operators.extend(str(node.target) for node in module.graph.nodes if "layoutgemm" in str(node.target))
        return module.forward

    operands = drawn()
    assert equal(compiled(product, noted)(*operands), product(*operands))
    assert operators == ["layoutgemm.check_epilogue.default", "layoutgemm.epilogue_matmul"]
    held, only = torch.zeros(2, 5, 8).bfloat16(), Epilogue(Aux())

    def into(a: torch.Tensor, b: torch.Tensor, held: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
        return matmul(a, b, epilogue=only, given={"aux": held[0]}, out=out)

    out = torch.empty(5, 8).bfloat16()
    compiled(into)(*operands[:2], held, out)  # a view of an input is written, through functionalization
    assert torch.equal(held[0], out) and torch.equal(out, matmul(*operands[:2])) and not held[1].any()
    rows, again = torch.empty(5), torch.empty(5)
    assert matmul(*operands[:2], epilogue=SUMS, given={"row_sum": rows}).shape == (0,)
    made = compiled(lambda a, b: matmul(a, b, epilogue=SUMS, given={"row_sum": again}), "eager")
    assert made(*operands[:2]).shape == (0,) and torch.equal(rows, again)


def test_numbers_of_a_launch_may_change() -> None:
    a, b, *_ = drawn(64, 64)
    graphs = 0

    def counted(module: torch.fx.GraphModule, inputs: object) -> Callable[..., Any]:
        nonlocal graphs
        graphs += 1
        return module.forward

    def dropped(seed: int) -> torch.Tensor:
        return matmul(a, b, epilogue=DROPOUT, given={"seed": seed})

    made = compiled(dropped, counted)
    for seed in (1, 5, 7, 11):
        assert torch.equal(made(seed), dropped(seed))
    assert graphs == 2 and not torch.equal(dropped(1), dropped(5))  # the second is of any seed


def test_an_exported_program_is_of_any_rows() -> None:
    rows = torch.export.Dim("m", min=2, max=64)
    made = torch.export.export(Product(), drawn(), dynamic_shapes=({0: rows}, None, None, {0: rows}))
    more = drawn(9)
    assert equal(made.module()(*more), product(*more))
    names = [str(node.target) for node in made.graph.nodes if "layoutgemm" in str(node.target)]
    assert names == ["layoutgemm.epilogue_matmul.default"]


def test_fake_tensors_meta_tensors_and_modes() -> None:
    shapes = [(5, 8), (5, 8), (5,)]
    with FakeTensorMode() as mode:
        assert [x.shape for x in product(*[mode.from_tensor(x) for x in drawn()])] == shapes
    assert [x.shape for x in product(*[x.to("meta") for x in drawn()])] == shapes
    with FlopCounterMode(display=False) as counted:
        product(*drawn())
    assert counted.get_total_flops() == 2 * 5 * 8 * 16


def test_opcheck_and_refusals_of_the_operator() -> None:
    a, b, bias, g = drawn()
    aux, largest = torch.zeros(5, 8).bfloat16(), torch.zeros(5)
    lists = [bias, g], [aux, largest], [2.0], []
    arguments = (a, b, *lists, STEPS.json, torch.float32)
    assert set(torch.library.opcheck(OPERATOR.default, arguments).values()) == {"SUCCESS"}
    with pytest.raises(OperandError, match="read has 0 operands, and the epilogue has bias, g"):
        OPERATOR(a, b, [], *lists[1:], STEPS.json)
    with pytest.raises(TensorError, match="more than one element of aux"):
        OPERATOR(a, b, lists[0], [aux[:1].expand(5, 8), largest], *lists[2:], STEPS.json)
    for text in ("", "{}", STEPS.transposed().json, STEPS.json.replace("relu", "rela")):
        with pytest.raises(OperandError):
            OPERATOR(a, b, *lists, text)


OF_ITS_OWN = Reduction.of(lambda x, i, j, ops: x, lambda a, b, ops: ops.maximum(a[0], b[0]), [-1e30], name="most")


@pytest.mark.parametrize(
    "steps",
    [
        STEPS, SUMS, DROPOUT, Epilogue(Residual(), Clamp(), Amax(), pairs=True), Epilogue(Quantize()),
        Epilogue(ColumnReduce(OF_ITS_OWN), RowReduce(REDUCTIONS["softmax"], each=4)), STEPS.transposed(),
        Epilogue(Bias(), Scale(), sums=1),
    ],
    ids=range(8),
)  # fmt: skip
def test_an_epilogue_is_its_text(steps: Epilogue) -> None:
    assert Epilogue.from_json(steps.json) == steps


def test_texts_that_are_no_epilogue() -> None:
    text = Epilogue(Bias()).json
    for other in ("", "[]", "{}", text[:-1], text.replace("false", "0"), text.replace("Bias", "Step"),
                  text.replace('"n"', '"k"'), text.replace(", ", ","),
                  text.replace("[[", "[").replace("]]", "]")):  # fmt: skip
        with pytest.raises(PlanError):
            Epilogue.from_json(other)


def mapped(a: Any, b: Any, bias: Any, g: Any, aux: Any, largest: Any) -> torch.Tensor:
    given = {"alpha": 2.0, "bias": bias, "aux": aux, "g": g, "row_max": largest}
    return matmul(a, b, epilogue=STEPS, given=given)


def test_vmap_makes_a_batch() -> None:
    a, b, bias, g = drawn(batch=3)
    aux, largest = torch.zeros(5, 3, 8).bfloat16(), torch.zeros(3, 5)
    got = torch.vmap(mapped, in_dims=(0, None, None, 0, 1, 0))(a, b[0], bias, g, aux, largest)
    for i in range(3):
        assert equal((got[i], aux[:, i], largest[i]), product(a[i], b[0], bias, g[i]))
    inner, outer = torch.stack([a, -a]), torch.zeros(2, 3, 5, 8).bfloat16()
    twice = torch.vmap(mapped, in_dims=(0, None, None, None, 0, 0))  # a batch of its own inside
    got = twice(inner, b, bias, g, outer, torch.zeros(2, 3, 5))
    assert equal((got[1], outer[1]), product(-a, b, bias, g)[:2])
    sums = torch.vmap(lambda x: matmul(x, b, epilogue=SUMS, given={"row_sum": torch.zeros(3, 5)}))
    with pytest.raises(OperandError, match="row_sum is one tensor for all that"):
        sums(a)
    rows, only = torch.randn(3, 5), Epilogue(Bias("m"))
    one_by_all = torch.vmap(lambda x: matmul(x, b, epilogue=only, given={"bias": rows}))(-a)  # by each of a batch
    assert torch.equal(one_by_all[2], matmul(-a[2], b, epilogue=only, given={"bias": rows}))
    got = torch.vmap(lambda x: matmul(a[0], b[0], epilogue=only, given={"bias": x}))(rows)
    assert torch.equal(got[2], matmul(a[0], b[0], epilogue=only, given={"bias": rows[2]}))


def test_vmap_refuses_what_a_launch_has_one_of() -> None:
    a, b, bias, g = drawn(batch=3)
    aux = torch.zeros(5, 8).bfloat16()
    with pytest.raises(OperandError, match="aux is one tensor for all that"):
        torch.vmap(mapped, in_dims=(0, 0, None, 0, None, 0))(a, b, bias, g, aux, torch.zeros(3, 5))
    largest = torch.zeros(3, 1)
    with pytest.raises(OperandError, match=", and a launch has one"):
        torch.vmap(lambda a, x: matmul(a, b[0], epilogue=Epilogue(Amax()), given={"amax": x}))(a, largest)
    assert not aux.any() and not largest.any()


BIAS, D = Epilogue(Bias()), Epilogue(Residual(beta=None))


class Foreign(Bias):
    """A step of another package."""


@pytest.mark.parametrize(
    ("epilogue", "given", "more", "message"),
    [
        (BIAS, {}, {}, "takes bias: bias is missing"),
        (None, {"bias": torch.ones(8)}, {}, "there is no epilogue"),
        (BIAS, [], {}, "given is a list"),
        (BIAS, {"bias": torch.ones(8)}, {"activation": "relu"}, "activation and epilogue"),
        (BIAS, {"bias": torch.ones(5)}, {}, "bias has shape [5]; for a product of shape [5, 8] it is [8]"),
        (BIAS, {"bias": 1.0}, {}, "bias is a "),
        (BIAS, {"bias": torch.ones(8)}, {"config": 3}, "config is a int"),
        (Epilogue(Scale()), {"alpha": torch.ones(1)}, {}, "alpha is a number, given at the launch; got a Tensor"),
        (Epilogue(Scale()), {"alpha": True}, {}, "alpha is a number, given at the launch; got a bool"),
        (Epilogue(Scale()), {"alpha": 1e39}, {}, "alpha = 1e+39 is beyond float32"),
        (DROPOUT, {"seed": 1.5}, {}, "seed is a number, given at the launch; a whole number"),
        (DROPOUT, {"seed": 2**32}, {}, "seed is an integer of 33 bits, and a launch takes 32"),
        (D, {"d": torch.ones(5, 8).bfloat16().requires_grad_()}, {"out": torch.ones(5, 8).bfloat16()},
         "functions with out=... arguments don't support automatic differentiation"),
    ],
)  # fmt: skip
def test_a_traced_call_refuses_in_the_words_of_an_eager_one(
    epilogue: Any, given: Any, more: dict[str, Any], message: str
) -> None:
    a, b, *_ = drawn()
    with pytest.raises(LayoutError) as found:
        matmul(a, b, epilogue=epilogue, given=given, **more)
    assert message in str(found.value)
    with pytest.raises(RuntimeError) as traced:
        compiled(lambda a, b: matmul(a, b, epilogue=epilogue, given=given, **more), "eager")(a, b)
    assert message in str(traced.value)


def test_a_step_of_another_package_stays_eager() -> None:
    a, b, *_ = drawn()
    own, given = Epilogue(Foreign()), {"bias": torch.ones(8)}
    assert torch.equal(matmul(a, b, epilogue=own, given=given), matmul(a, b, bias=torch.ones(8)))
    with pytest.raises(RuntimeError, match="a step of another package, which no graph holds"):
        compiled(lambda a, b: matmul(a, b, epilogue=own, given=given))(a, b)


def test_torch_func_differentiates_no_operator_under_the_compiler() -> None:
    operands = drawn()
    with pytest.raises(RuntimeError, match=r"takes no operator\\*'s derivative: layoutgemm\.matmul has it"):
        compiled(torch.func.grad(lambda a: product(a, *operands[1:])[0].float().sum()))(operands[0])


def test_autocast_casts_the_matrices() -> None:
    a, b, *others = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        for function in (product, compiled(product)):
            assert equal(function(a.float(), b.float(), *others), product(a, b, *others))


@pytest.mark.gpu
def test_a_compiled_call_and_a_graph_on_a_gpu() -> None:
    operands = drawn(300, 264, 520, device="cuda")
    eager = product(*operands)
    assert equal(torch.compile(product, fullgraph=True)(*operands), eager)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = product(*operands)
    graph.replay()
    assert equal(found, eager)
