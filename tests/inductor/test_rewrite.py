"""The Inductor door on the CPU: hooks set and removed, products of tiny models rewritten, results the same."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import torch._inductor.config as config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import layoutgemm.inductor.registration as module
from layoutgemm import inductor
from layoutgemm.errors import OperandError
from layoutgemm.inductor import gates, rewrite
from layoutgemm.inductor.rewrite import PRODUCTS, rewrite_graph

BF16 = torch.bfloat16
ACTS = {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu, "tanh": torch.tanh}


def normal(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def rewritten(function: Any, *inputs: Any, products: Any = frozenset(PRODUCTS)) -> Any:
    """The graph that Inductor's decompositions make, rewritten; its report, and the results of both."""
    from torch._inductor.decomposition import select_decomp_table

    def model(*x: Any) -> Any:
        return function(*x)

    graph = make_fx(model, select_decomp_table(), tracing_mode="fake")(*inputs)
    graph.graph.eliminate_dead_code()
    want = graph(*inputs)
    report = rewrite_graph(graph.graph, frozenset(products), frozenset({"cpu"}))
    graph.recompile()
    return graph, report, graph(*inputs), want


def near(got: Any, want: Any) -> bool:
    off = (got.double() - want.double()).abs().max()
    return got.shape == want.shape and got.dtype == want.dtype and bool(off <= 2.0**-6 * want.abs().max())


@pytest.mark.parametrize("act", list(ACTS))
def test_addmm_with_its_activation_is_one_operator(act: str) -> None:
    graph, report, got, want = rewritten(
        lambda bias, a, b: ACTS[act](torch.addmm(bias, a, b)), normal(8), normal(4, 16), normal(16, 8)
    )
    (only,) = report.rewritten
    assert only.by == "layoutgemm.finished" and only.fused == ("bias", act)
    assert [n.target for n in graph.graph.nodes if n.op == "call_function"] == [torch.ops.layoutgemm.finished.default]
    assert near(got, want)


GATED = (normal(2, 5, 16), normal(16, 24), normal(16, 24))


@pytest.mark.parametrize("act", list(ACTS))
@pytest.mark.parametrize("up_first", [False, True])
def test_a_gated_pair_is_one_operator(act: str, up_first: bool) -> None:
    """Each product views x by itself, as a linear layer of three dimensions does."""

    def model(x: Any, gate: Any, up: Any) -> Any:
        if up_first:
            return (x @ up) * ACTS[act](x @ gate)
        return ACTS[act](x @ gate) * (x @ up)

    graph, report, got, want = rewritten(model, *GATED, products=())
    targets = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert targets.count(torch.ops.layoutgemm.combined_matmul.default) == 1
    assert not {torch.ops.aten.mm.default, torch.ops.aten.mul.Tensor} & set(targets)
    assert [each.by for each in report.products] == ["layoutgemm.combined_matmul"] * 2
    assert {x for each in report.products for x in each.fused} >= {act, "the gate mm_1" if up_first else "the gate mm"}
    assert near(got, want)


OTHER_PAIRS: dict[str, Any] = {
    "another x": lambda x, gate, up: torch.relu(x @ gate) * (x.flip(1) @ up),
    "the product is read": lambda x, gate, up: (torch.relu(x @ gate) * (y := x @ up), y),
    "the gate is read": lambda x, gate, up: (torch.relu(y := x @ gate) * (x @ up), y),
    "a sum": lambda x, gate, up: torch.relu(x @ gate) + x @ up,
    "one product": lambda x, gate, up: torch.relu(y := x @ gate) * y,
    "another shape": lambda x, gate, up: torch.relu(x @ gate) * (x @ up[:, :1]),
    "another type": lambda x, gate, up: torch.relu(x @ gate) * (x @ up).float(),
}


@pytest.mark.parametrize("which", OTHER_PAIRS)
def test_other_pairs_stay_apart(which: str) -> None:
    graph, _, got, want = rewritten(OTHER_PAIRS[which], *GATED, products=())
    targets = [n.target for n in graph.graph.nodes if n.op == "call_function"]
    assert torch.ops.layoutgemm.combined_matmul.default not in targets
    pairs = zip(got, want) if isinstance(got, tuple) else [(got, want)]
    assert all(near(x, y) for x, y in pairs)


def test_a_report_says_why_a_gated_pair_stays_two_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU of 8.x; its graph is made of tensors without data."""
    for each in (gates, rewrite):
        monkeypatch.setattr(each, "target", lambda index, config=None: ("sm_80", 0))
    with FakeTensorMode():
        x, gate, up = (torch.empty(shape, dtype=BF16, device="cuda") for shape in ((4, 16), (16, 24), (16, 24)))
        graph = make_fx(lambda x, gate, up: torch.relu(x @ gate) * (x @ up))(x, gate, up).graph
        report = rewrite_graph(graph, frozenset(), frozenset({"cuda"}))
    said = "cuda:0 runs sm_80: several products in one kernel need sm_90a"
    assert [each.apart for each in report.products] == [f"mm_1: {said}", f"mm: {said}"]
    assert [each.by for each in report.products] == ["layoutgemm.finished", ""]
    first, second, _ = str(report).splitlines()
    assert first.endswith(f"layoutgemm.finished with relu; not one product with mm_1: {said}")
    assert second.startswith("left       mm_1 (mm): mm is not asked for") and second.endswith(f"with mm: {said}")


def test_an_activation_whose_input_is_read_twice_stays() -> None:
    def model(a: Any, b: Any) -> Any:
        c = a @ b
        return torch.relu(c) + c

    _, report, got, want = rewritten(model, normal(4, 16), normal(16, 8))
    assert [each.fused for each in report.rewritten] == [()] and near(got, want)


def test_mm_is_left_to_autotuning_unless_asked_for() -> None:
    _, report, *_ = rewritten(torch.mm, normal(4, 16), normal(16, 8), products=["addmm"])
    assert "autotuning" in report.left[0].reason
    _, report, got, want = rewritten(torch.mm, normal(4, 16), normal(16, 8))
    assert report.rewritten[0].by == "layoutgemm.matmul" and near(got, want)


def test_bmm_and_scaled_and_grouped_products() -> None:
    _, report, got, want = rewritten(torch.bmm, normal(3, 4, 16), normal(3, 16, 8))
    assert report.rewritten and near(got, want)
    a, b = normal(16, 32).to(torch.float8_e4m3fn), normal(16, 32).to(torch.float8_e4m3fn).T
    scale = torch.tensor(0.5)
    _, report, got, want = rewritten(lambda *x: torch._scaled_mm(*x, out_dtype=BF16), a, b, scale, scale)
    assert [each.by for each in report.rewritten] == ["layoutgemm.scaled_matmul"] and near(got, want)
    ends = torch.tensor([3, 16], dtype=torch.int32)
    _, report, got, want = rewritten(lambda *x: torch._grouped_mm(*x), normal(16, 32), normal(2, 32, 16), ends)
    assert [each.by for each in report.rewritten] == ["layoutgemm.grouped_matmul"] and near(got, want)


def test_products_that_the_operator_refuses_are_left_with_its_reason() -> None:
    _, report, got, want = rewritten(torch.mm, normal(4, 16, dtype=torch.float32), normal(16, 8, dtype=torch.float32))
    assert "tf32" in report.left[0].reason and torch.equal(got, want)
    _, report, got, want = rewritten(lambda *x: torch.addmm(*x, beta=2), normal(8), normal(4, 16), normal(16, 8))
    assert "beta = 2" in report.left[0].reason and torch.equal(got, want)
    column = normal(4, 1)
    _, report, got, want = rewritten(torch.addmm, column, normal(4, 16), normal(16, 8))
    assert "bias of shape [4, 1]" in report.left[0].reason and torch.equal(got, want)


@pytest.mark.parametrize("factors", [{}, {"beta": 2}, {"alpha": 0.5}, {"alpha": 0.5, "beta": -1.5}])
def test_a_matrix_is_added_in_the_kernel(factors: dict[str, float]) -> None:
    a, b = normal(4, 16), normal(16, 8)
    for matrix in (normal(4, 8), normal(8, 4).T):
        _, report, got, want = rewritten(lambda *x: torch.relu(torch.addmm(*x, **factors)), matrix, a, b)
        assert report.rewritten[0].by == "layoutgemm.epilogue_matmul" and near(got, want)
        assert report.rewritten[0].fused == ("matrix", "relu")
    front = normal(3, 4, 8), normal(3, 4, 16), normal(3, 16, 8)
    _, report, got, want = rewritten(lambda *x: torch.baddbmm(*x, **factors), *front)
    assert report.rewritten[0].product == "baddbmm" and near(got, want)


@pytest.mark.parametrize("alpha", [1, 2])
def test_a_matrix_times_zero_is_not_read(alpha: int) -> None:
    nan = torch.full((4, 8), torch.nan, dtype=BF16)
    for addend in (nan, nan[0]):
        _, report, got, want = rewritten(
            lambda *x: torch.addmm(*x, beta=0, alpha=alpha), addend, normal(4, 16), normal(16, 8)
        )
        assert near(got, want) and not got.isnan().any() and bool(report.rewritten) == (alpha == 1)


def test_scaled_groups_are_an_operator_and_other_products_are_reported() -> None:
    a, b = normal(16, 32).to(torch.float8_e4m3fn), normal(2, 16, 32).to(torch.float8_e4m3fn).mT
    scales, ends = (torch.rand(16), torch.rand(2, 16)), torch.tensor([3, 16], dtype=torch.int32)
    graph = torch.fx.Graph()
    nodes = [graph.placeholder(name) for name in ("a", "b", "scale_a", "scale_b", "offs")]
    last = graph.call_function(torch.ops.aten._scaled_grouped_mm.default, tuple(nodes), {"out_dtype": BF16})
    eight = graph.call_function(torch.ops.aten._int_mm.default, (nodes[0], nodes[1]))
    graph.output((last, eight))
    with FakeTensorMode() as mode:
        for node, x in zip(nodes, (a, b, *scales, ends)):
            node.meta["val"] = mode.from_tensor(x)
        last.meta["val"], eight.meta["val"] = torch.empty(16, 16, dtype=BF16), torch.empty(16, 16, dtype=torch.int32)
        report = rewrite_graph(graph, frozenset(PRODUCTS), frozenset({"cpu"}))
    assert [each.by for each in report.rewritten] == ["layoutgemm.grouped_matmul"], str(report)
    assert [str(each) for each in report.left] == ["left       _int_mm_default (_int_mm): no operator takes its place"]
    [call] = [node for node in graph.nodes if node.op == "call_function" and "grouped" in node.name]
    got = call.target(*[dict(zip(nodes, (a, b, *scales, ends))).get(x, x) for x in call.args])
    want = torch.cat(
        [
            (a[i:j].double() * scales[0][i:j, None]) @ (b[e].double() * scales[1][e])
            for e, (i, j) in enumerate([(0, 3), (3, 16)])
        ]
    )
    assert near(got, want.to(BF16))


class Tiny(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = torch.nn.Linear(16, 32, dtype=BF16), torch.nn.Linear(32, 16, dtype=BF16)

    def forward(self, x: Any) -> Any:
        return self.down(torch.nn.functional.gelu(self.up(x)))


def test_inductor_compiles_a_model_with_the_pass() -> None:
    model, x = Tiny().eval(), normal(2, 5, 16)
    torch._dynamo.reset()
    with torch.no_grad(), inductor.register(devices=["cpu"]) as registered, config.patch(force_disable_caches=True):
        got = torch.compile(model, fullgraph=True)(x)
        want = model(x)
    assert near(got, want)
    (graph,) = registered.graphs
    assert [each.fused for each in graph.rewritten] == [("bias", "gelu"), ("bias",)], str(registered)
    assert "2 of 2 products rewritten in the inference graph" in str(registered) and str(registered).endswith(
        "1 graph seen"
    )


def test_hooks_are_put_back() -> None:
    before = list(config.external_matmul), config.post_grad_custom_post_pass
    with inductor.register():
        assert [each.__name__ for each in config.external_matmul[-1:]] == ["layoutgemm_matmul"]
        first = config.post_grad_custom_post_pass
        with inductor.register(["mm"]):
            assert config.post_grad_custom_post_pass.uuid() != first.uuid()
        assert config.post_grad_custom_post_pass is first
    assert (list(config.external_matmul), config.post_grad_custom_post_pass) == before
    outer = inductor.register()
    inner = inductor.register()
    with pytest.raises(OperandError, match="later"):
        outer.remove()
    inner.remove()
    inductor.unregister()
    with pytest.raises(OperandError, match="without a register"):
        inductor.unregister()


def test_the_hook_writes_the_product() -> None:
    a, b, out = normal(4, 16), normal(16, 8), torch.empty(4, 8, dtype=BF16)
    with inductor.register(devices=["cpu"]):
        config.external_matmul[-1](a, b, out=out)
    assert near(out, a @ b)


def test_a_device_that_is_not_asked_for_is_not_tuned() -> None:
    a, b, out = normal(4, 16), normal(16, 8), torch.empty(4, 8, dtype=BF16)
    with inductor.register() as registered:
        with pytest.raises(RuntimeError, match=r"on cpu: register\(devices=\) has cuda"):
            config.external_matmul[-1](a, b, out=out)
    assert not registered.refused


def test_a_product_without_a_kernel_is_left_to_other_choices() -> None:
    """Inductor drops a choice that raises RuntimeError, and ends the compilation at any other error."""
    a, b, out = torch.ones(4, 16), torch.ones(16, 8), torch.empty(4, 8)
    with inductor.register(devices=["cpu"]) as registered:
        with pytest.raises(RuntimeError, match=r"layoutgemm does not compute mm of \[4, 16\] and \[16, 8\].*tf32"):
            config.external_matmul[-1](a, b, out=out)
    assert "not tuned   mm of [4, 16] and [16, 8]: a and b are float32" in str(registered)


def test_a_torch_without_the_hook_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    from types import ModuleType

    monkeypatch.setattr(module, "HOOKS", ("no_such_hook",))
    with pytest.raises(OperandError, match=r"torch 2\..* has no torch\._inductor\.config\.no_such_hook"):
        inductor.register()
    assert isinstance(config, ModuleType)
    with pytest.raises(OperandError, match="products"):
        inductor.register(["conv"])
    with pytest.raises(OperandError, match="devices"):
        inductor.register(devices=["tpu"])


def test_register_refuses_values_of_other_types_by_name() -> None:
    """A text was read letter by letter, and "no" as True."""
    with pytest.raises(OperandError, match=r"products of register must be a list of .*, not 'addmm'"):
        inductor.register("addmm")
    with pytest.raises(OperandError, match="devices of register must be a list of cuda, cpu, not 'cuda'"):
        inductor.register(devices="cuda")
    with pytest.raises(OperandError, match=r"an entry of products must be one of .*, not 3"):
        inductor.register([3])
    with pytest.raises(OperandError, match="autotune of register must be True or False, not 'no'"):
        inductor.register(autotune="no")
