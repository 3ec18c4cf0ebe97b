"""scaled_matmul and grouped_matmul with an epilogue under torch.compile, vmap and modes: operators and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import grouped_matmul, scaled_matmul
from layoutgemm.errors import LayoutError, OperandError
from layoutgemm.kernels.epilogue.chain import Activation, Aux, Bias, ColumnReduce, Epilogue, RowReduce, Scale
from tests.torch_op.test_compiled_epilogue import Foreign, Tensors, compiled, equal

STEPS = Epilogue(Scale("alpha"), Bias("n"), Aux(), RowReduce("max"), Activation("relu"))
SUMS = Epilogue(ColumnReduce("sum"), stores_c=False)
OFFSETS, ENDS, CHOSEN = torch.tensor([0, 7, 7, 20]), torch.tensor([7, 7, 17]), torch.tensor([3, 3, 0, 19, 5])
M, N, K = 6, 8, 256


def scaled_operands() -> Tensors:
    torch.manual_seed(0)
    a, b = torch.randn(M, K).to(torch.float8_e4m3fn), torch.randn(K, N).to(torch.float8_e4m3fn)
    return a, torch.rand(M, 1) + 0.5, b, torch.rand(1, N) + 0.5, torch.randn(N)


def written(rows: int, like: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return like.new_zeros(rows, N, dtype=torch.bfloat16), like.new_zeros(rows, dtype=torch.float32)


def into(a: Any, scale_a: Any, b: Any, scale_b: Any, bias: Any, aux: Any, largest: Any) -> torch.Tensor:
    given = {"alpha": 2.0, "bias": bias, "aux": aux, "row_max": largest}
    return scaled_matmul(a, scale_a, b, scale_b, epilogue=STEPS, given=given)


def scaled(a: Any, scale_a: Any, b: Any, scale_b: Any, bias: Any) -> Tensors:
    aux, largest = written(M, bias)
    return into(a, scale_a, b, scale_b, bias, aux, largest), aux, largest


def grouped_operands() -> Tensors:
    torch.manual_seed(0)
    return torch.randn(20, 16).bfloat16(), torch.randn(3, 16, N).bfloat16(), torch.randn(3, N)


def grouped(a: Any, b: Any, bias: Any, **more: Any) -> Tensors:
    more = more or {"offsets": OFFSETS}
    aux, largest = written(more["rows"].shape[0] if "rows" in more else a.shape[0], bias)
    given = {"alpha": 2.0, "bias": bias, "aux": aux, "row_max": largest}
    return grouped_matmul(a, b, epilogue=STEPS, given=given, **more), aux, largest


def column_sums(a: Any, b: Any, **more: Any) -> Tensors:
    sums = torch.zeros(3, N)
    return grouped_matmul(a, b, epilogue=SUMS, given={"column_sum": sums}, **more), sums


def test_scaled_products() -> None:
    operands = scaled_operands()
    a, scale_a, b, scale_b, bias = operands
    want = scaled(*operands)
    assert equal(compiled(scaled)(*operands), want)
    with FakeTensorMode() as mode:
        assert [x.shape for x in scaled(*[mode.from_tensor(x) for x in operands])] == [x.shape for x in want]
    aux, largest = torch.zeros(2, M, N).bfloat16(), torch.zeros(2, M)
    mapped = torch.vmap(into, in_dims=(None, 0, None, None, None, 0, 0))
    got = mapped(a, torch.stack([2 * scale_a, scale_a]), b, scale_b, bias, aux, largest)
    assert equal((got[1], aux[1], largest[1]), want)
    with pytest.raises(OperandError, match="aux is one tensor for all that"):
        torch.vmap(into, in_dims=(None, 0, None, None, None, None, 0))(
            a, torch.stack([scale_a] * 2), b, scale_b, bias, aux[0], largest
        )
    lists = [bias], [*written(M, bias)], [2.0], []
    kinds = ("test_faketensor", "test_autograd_registration", "test_aot_dispatch_dynamic")  # torch compares no float8
    operator = torch.ops.layoutgemm.scaled_epilogue_matmul.default
    found = torch.library.opcheck(operator, (a, scale_a, b, scale_b, *lists, STEPS.json), test_utils=kinds)
    assert set(found.values()) == {"SUCCESS"}


@pytest.mark.parametrize("form", ["offsets", "offs", "rows", "counts", "rows of counts", "K", "batch"])
def test_groups_of_every_form(form: str) -> None:
    a, b, bias = grouped_operands()
    masked, counts = torch.randn(3, 10, 16).bfloat16(), torch.tensor([3, 0, 10])
    calls = {
        "offsets": lambda: grouped(a, b, bias),
        "offs": lambda: grouped(a, b, bias, offs=ENDS),
        "rows": lambda: grouped(a, b, bias, offsets=torch.tensor([0, 2, 2, 5]), rows=CHOSEN),
        "counts": lambda: column_sums(masked, b, counts=counts),
        "rows of counts": lambda: column_sums(
            a, b, counts=torch.tensor([1, 0, 2]), rows=torch.tensor([[0, 1], [2, 3], [19, 4]])
        ),
        "K": lambda: column_sums(a.T, torch.ones(20, N).bfloat16(), offsets=OFFSETS),
        "batch": lambda: column_sums(masked, b),
    }
    call = calls[form]
    torch._dynamo.reset()
    assert equal(torch.compile(call, fullgraph=True, backend="eager")(), call())


def test_an_output_keeps_the_rows_of_no_group() -> None:
    a, b, bias = grouped_operands()
    outs = [torch.full((20, N), 7.0).bfloat16() for _ in range(2)]

    def call(out: torch.Tensor) -> torch.Tensor:
        return grouped(a, b, bias, offs=ENDS, out=out)[0]

    assert call(outs[0]) is outs[0] and torch.equal(compiled(call)(outs[1]), outs[0])
    assert torch.equal(*outs) and bool((outs[1][17:] == 7).all())


def test_the_grouped_operator() -> None:
    a, b, bias = grouped_operands()
    operator = torch.ops.layoutgemm.grouped_epilogue_matmul.default
    lists = [bias], [*written(20, bias)], [2.0], []
    found = torch.library.opcheck(operator, (a, b, OFFSETS, None, None, None, *lists, STEPS.json))
    assert set(found.values()) == {"SUCCESS"}
    with FlopCounterMode(display=False) as counted:
        grouped(a, b, bias, offsets=torch.tensor([0, 2, 2, 5]), rows=CHOSEN)
    assert counted.get_total_flops() == 2 * 5 * 16 * N
    with torch.autocast("cpu", torch.bfloat16):
        assert equal(grouped(a.float(), b.float(), bias), grouped(a, b, bias))
    leaves = [a.clone().requires_grad_() for _ in range(2)]
    c = operator(leaves[0], b, OFFSETS, None, None, None, [bias], [*written(20, bias)], [2.0], [], STEPS.json)
    mine = grouped(leaves[1], b, bias)[0]
    for value in (c, mine):
        value.float().sum().backward()
    assert torch.equal(c, mine) and torch.equal(leaves[0].grad, leaves[1].grad) and bool(leaves[0].grad.any())


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"given": {}}, "bias is missing"),
        ({"activation": "relu"}, "activation and epilogue: one or the other"),
        ({"offs": ENDS}, "offsets and offs: groups are said by one of"),
        ({"given": {"bias": torch.ones(2, N)}}, "bias has shape [2, 8]"),
        ({"config": 3}, "config is a int"),
        ({"recipe_a": "Rows"}, "recipe_a"),
    ],
)  # fmt: skip
def test_a_traced_call_refuses_in_the_words_of_an_eager_one(more: dict[str, Any], message: str) -> None:
    a, b, _ = grouped_operands()
    options = {"offsets": OFFSETS, "epilogue": Epilogue(Bias("n")), "given": {"bias": torch.ones(N)}, **more}
    with pytest.raises(LayoutError) as found:
        grouped_matmul(a, b, **options)
    assert message in str(found.value)
    with pytest.raises(RuntimeError) as traced:
        compiled(lambda a, b: grouped_matmul(a, b, **options), "eager")(a, b)
    assert message in str(traced.value)


def test_a_scaled_call_refuses_what_a_graph_has_not() -> None:
    a, scale_a, b, scale_b, bias = scaled_operands()
    of = {"epilogue": Epilogue(Foreign("n")), "given": {"bias": bias}}
    for more, message in (
        (of, "a step of another package, which no graph holds"),
        ({"epilogue": SUMS, "out_recipe": "BlockWise1x128"}, "out_recipe and epilogue: one or the other"),
    ):
        with pytest.raises(RuntimeError, match=message):
            compiled(lambda a, b, more=more: scaled_matmul(a, scale_a, b, scale_b, **more), "eager")(a, b)
