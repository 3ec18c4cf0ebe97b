"""matmul and grouped_matmul with a gate and an epilogue of one's own: values, kernels, a graph, vmap, refusals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import explain_matmul, grouped_matmul, matmul
from layoutgemm.errors import LayoutError
from layoutgemm.kernels.epilogue.chain import Bias, ColumnReduce, Epilogue, Quantize, Residual, RowReduce, Scale
from layoutgemm.torch_op.epilogue import solutions, spread
from layoutgemm.torch_op.scaled_grouped.grouped_epilogue import (
    GroupedFactors,
    GroupedOptions,
    checked_groups,
    grouped_launch,
    with_readable_gate,
)
from layoutgemm.torch_op.scaled_grouped.scaled import BiasActivation
from tests.torch_op.host_launches import bare_launches
from tests.torch_op.test_compiled_epilogue import compiled

M, H, K = 24, 24, 64
REDUCED = RowReduce("sum", "rows_of"), ColumnReduce("max", "most")
STEPS = Epilogue(Bias("n"), Residual("bf16", beta=None), *REDUCED, sums=1)
SCALED = Epilogue(Bias("n"), Scale("alpha"), sums=1)
ENDS = torch.tensor([10, 10, 19])  # an empty group, and rows of none
COUNTS = torch.tensor([3, 0, M])


def tensors(*front: int, weights: tuple[int, ...] = ()) -> dict[str, Any]:
    torch.manual_seed(0)
    return {
        "a": torch.randn(*front, M, K).bfloat16(), "b": torch.randn(*weights, K, 2 * H).bfloat16(),
        "bias": torch.randn(*weights, 2 * H), "d": torch.randn(*front, M, H).bfloat16(),
    }  # fmt: skip


def operands(of: dict[str, Any], *columns: int) -> dict[str, Any]:
    written = {"rows_of": torch.full(of["d"].shape[:-1], 7.0), "most": torch.full((*columns, H), 7.0)}
    return {"bias": of["bias"], "d": of["d"], **written}


def gated(a: Any, b: Any, bias: Any, d: Any) -> Any:
    gate, up = (a.double() @ b.double() + bias.double()).chunk(2, -1)
    return torch.nn.functional.silu(gate) * up + d.double()


def assert_close(found: Any, want: Any) -> None:
    bound = 2.0**-7 if found.dtype == torch.bfloat16 else 2.0**-18
    assert torch.allclose(found.double(), want.double(), rtol=bound, atol=2e-4)


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("front", [(), (3,)])
def test_a_product_with_a_gate_and_steps_equals_float64(front: tuple[int, ...], turned: bool) -> None:
    of = tensors(*front, weights=front)
    of["b"] = of["b"].mT.contiguous().mT if turned else of["b"]
    of["bias"] = of["bias"].reshape(-1, 2 * H)[0]
    given = operands(of, *front)
    c, want = matmul(of["a"], of["b"], activation="swiglu", epilogue=STEPS, given=given), gated(**of)
    for found, wanted in ((c, want), (given["rows_of"], want.sum(-1)), (given["most"], want.amax(-2))):
        assert_close(found, wanted)
    into = torch.empty_like(c)
    assert matmul(of["a"], of["b"], activation="swiglu", epilogue=STEPS, given=given, out=into) is into
    assert torch.equal(into, c)


@pytest.mark.parametrize("said", ["offs", "counts", ""])
def test_groups_with_a_gate_and_steps_equal_float64(said: str) -> None:
    of = tensors(*([] if said == "offs" else [3]), weights=(3,))
    given, groups = operands(of, 3), {"offs": {"offs": ENDS}, "counts": {"counts": COUNTS}, "": {}}[said]
    c = grouped_matmul(of["a"], of["b"], **groups, activation="swiglu", epilogue=STEPS, given=given)
    first = [0, *ENDS.tolist()]
    for e in range(3):
        rows: Any = slice(first[e], first[e + 1]) if said == "offs" else (e, slice(COUNTS[e] if said else M))
        want = gated(of["a"][rows], of["b"][e], of["bias"][e], of["d"][rows])
        assert_close(c[rows], want)
        assert_close(given["rows_of"][rows], want.sum(-1))
        assert_close(given["most"][e], want.amax(-2) if len(want) else torch.full((H,), -torch.inf))
    if said == "offs":
        assert not c[19:].any() and (given["rows_of"][19:] == 7).all(), "rows of no group"


def product(a: Any, b: Any, given: dict[str, Any]) -> Any:
    return matmul(a, b, activation="swiglu", epilogue=STEPS, given=given)


def in_groups(a: Any, b: Any, given: dict[str, Any]) -> Any:
    return grouped_matmul(a, b, offs=ENDS.to(a.device), activation="swiglu", epilogue=STEPS, given=given)


@pytest.mark.parametrize("call", [product, in_groups])
def test_a_graph_and_vmap_have_the_product(call: Any) -> None:
    weights = (3,) if call is in_groups else ()
    of = tensors(weights=weights)
    eager, traced, mapped = operands(of, *weights), operands(of, *weights), operands(of, *weights)
    want = call(of["a"], of["b"], eager)
    assert torch.equal(compiled(call, "eager")(of["a"], of["b"], traced), want)
    written = {name: torch.stack([mapped[name]] * 2) for name in STEPS.writes}

    def one(a: Any, out: dict[str, Any]) -> Any:
        return call(a, of["b"], {**mapped, **out})

    found = torch.func.vmap(one)(torch.stack([of["a"].neg(), of["a"]]), written)
    assert torch.equal(found[1], want) and not torch.equal(found[0], want)
    assert all(torch.equal(traced[name], x) and torch.equal(written[name][1], x) for name, x in eager.items()
               if name in STEPS.writes)  # fmt: skip


@pytest.mark.dsl
def test_kernels_in_the_emulator_equal_the_cpu() -> None:
    of = tensors()
    of["b"] = of["b"].mT.contiguous().mT
    given = operands(of)
    c = torch.empty(M, H).bfloat16()
    (solution,) = solutions(of["a"], of["b"], c, given, STEPS, c.dtype, None, "silu")
    whole = tensors(weights=(3,))
    each = operands(whole, 3)
    finish = BiasActivation(None, "swiglu")
    made = checked_groups(GroupedFactors(whole["a"], whole["b"], ENDS, "offs"), STEPS, each, GroupedOptions(finish))
    grouped = grouped_launch(with_readable_gate(made), True).plan
    for plan, numbers, own, want in (
        (solution.kernel.plan(M, H, K, 1), of, given, product(of["a"], of["b"], given)),
        (grouped, whole, each, in_groups(whole["a"], whole["b"], each)),
    ):
        assert plan.check() and plan.epilogue.sums == 1
        read = {"bias": numbers["bias"].numpy(), "d": numbers["d"].float().numpy()}
        more = {} if plan.groups is None else {plan.groups.name: ENDS.numpy()}
        found = plan.run(numbers["a"].float().numpy(), numbers["b"].float().numpy(), given={**read, **more},
                         device="emulator")  # fmt: skip
        kept = slice(19 if more else M)
        assert_close(torch.from_numpy(np.asarray(found.c, np.float32))[kept].bfloat16(), want[kept].double())
        for name in STEPS.writes:
            rows = kept if name == "rows_of" else slice(None)
            assert_close(torch.from_numpy(np.asarray(found.written[name]))[rows], own[name][rows].double())


@pytest.mark.parametrize("batch", [0, 3, 40])
def test_launches_have_the_addresses_of_each_matrix(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    front = (batch,) * (batch > 0)
    of = tensors(*front)
    of["b"] = of["b"].mT.contiguous().mT
    given, c = operands(of, *front), torch.empty(*front, M, H).bfloat16()
    (part,) = spread(of["a"], of["b"], c, STEPS, given)
    found = list(solutions(*part, STEPS, c.dtype, None, "silu"))
    names = found[0].kernel.plan(M, H, K, 1).parameters
    with bare_launches(monkeypatch) as noted:
        for _ in range(2):
            noted.arguments.clear()
            matmul(of["a"], of["b"], activation="swiglu", epilogue=STEPS, given=given, out=c)
            assert len(noted.arguments) == max(batch, 1)
            for e, made in enumerate(noted.arguments):
                own = {"a": of["a"], "c": c, "d": given["d"], "rows_of": given["rows_of"], "most": given["most"]}
                want = {name: (x[e] if batch else x).data_ptr() for name, x in own.items()}
                want |= {"b": of["b"].data_ptr(), "bias": of["bias"].data_ptr(), "m": M, "n": H, "k": K}
                values = dict(zip(names, made, strict=False))
                assert {name: values[name] for name in want} == want


def test_the_explanation_names_the_gate_and_the_copied_weights() -> None:
    of, whole = tensors(), tensors(weights=(3,))
    for told in (
        explain_matmul(of["a"], of["b"], activation="swiglu", epilogue=STEPS, given=operands(of)),
        explain_matmul(
            whole["a"], whole["b"], offs=ENDS, activation="swiglu", epilogue=STEPS, given=operands(whole, 3)
        ),
    ):
        assert "gated by silu" in told.kernel and told.launches == 1
        assert told.copies[0].startswith("b: a gate's kernel reads contiguous columns")
    weights, own = of["b"].mT.contiguous().mT, {"bias": of["bias"], "alpha": 2}
    turned = explain_matmul(of["a"], weights, activation="swiglu", epilogue=SCALED, given=own)
    assert turned.copies == ()


def test_a_gate_and_a_quantised_result_have_whole_blocks_of_columns() -> None:
    a, b = torch.empty(256, K).bfloat16(), torch.empty(1024, K).bfloat16().mT
    steps, scales = Epilogue(Quantize()), torch.empty(256, 4)
    told = explain_matmul(
        a, b, activation="geglu", epilogue=steps, given={"scales": scales}, out_dtype=torch.float8_e4m3fn
    )
    assert "tile 64x256" in told.kernel or "tile 128x256" in told.kernel


def test_refusals_name_the_argument() -> None:
    of, whole = tensors(), tensors(weights=(3,))
    given, along_k = {"bias": of["bias"], "alpha": 2.0}, {"offs": torch.tensor([10, M])}
    gate = {"activation": "swiglu", "epilogue": SCALED, "given": given}
    other = {**gate, "activation": "relu"}
    for text, call in (
        ("activation and epilogue: one or the other", lambda: matmul(of["a"], of["b"], **other)),
        ("bias and epilogue: one or the other", lambda: matmul(of["a"], of["b"], bias=of["bias"], **gate)),
        ("before a gate, and there is none", lambda: matmul(of["a"], of["b"], **{**gate, "activation": None})),
        ("b has 47 columns: a gated product", lambda: matmul(of["a"], of["b"][:, 1:], **gate)),
        (r"bias has shape \[48\]; .* it is \[44\]", lambda: matmul(of["a"], of["b"][:, 4:], **gate)),
        ("groups of K take none", lambda: grouped_matmul(of["a"].T, of["d"], **along_k, **gate)),
        ("one or the other", lambda: grouped_matmul(whole["a"], whole["b"], offs=ENDS, bias=of["bias"], **gate)),
        ("the product is torch.int32", lambda: matmul(of["a"].to(torch.int8), of["b"].to(torch.int8), **gate)),
    ):  # fmt: skip
        with pytest.raises(LayoutError, match=text):
            call()


@pytest.mark.gpu
@pytest.mark.parametrize("turned", [False, True])
def test_on_a_gpu(turned: bool) -> None:
    for call, weights in ((product, ()), (in_groups, (3,))):
        of = {name: x.cuda() for name, x in tensors(weights=weights).items()}
        of["b"] = of["b"].mT.contiguous().mT if turned else of["b"]
        given = {name: x.cuda() for name, x in operands(of, *weights).items()}
        cpu = {name: x.cpu() for name, x in of.items()}
        own = operands(cpu, *weights)
        want = call(cpu["a"], cpu["b"], own)
        for _ in range(2):  # the second call is a kept one
            assert_close(call(of["a"], of["b"], given).cpu(), want.double())
            assert all(torch.allclose(given[name].cpu(), own[name], rtol=1e-4, atol=1e-3) for name in STEPS.writes)
