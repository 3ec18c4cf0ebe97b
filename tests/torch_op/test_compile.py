"""The operator as torch's machinery sees it: compiler, fake tensors, autograd, functorch, autocast, tracing. On the
CPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import (
    ComposedLayout,
    Layout,
    QuantizedFormat,
    Sm90Config,
    Sm100Config,
    Swizzle,
    gemm,
    grouped_matmul,
    matmul,
)
from layoutgemm.errors import OperandError
from layoutgemm.kernels.epilogue.chain import Epilogue, Scale
from layoutgemm.schedule import Triangular
from layoutgemm.torch_op.compiled.constant_objects import constant_of_objects

BF16, F32 = torch.bfloat16, torch.float32
SCALED = Epilogue(Scale())
OP = torch.ops.layoutgemm.matmul
SHAPES = [
    ((5, 8), (8, 6)), ((3, 5, 8), (8, 6)), ((5, 8), (3, 8, 6)), ((3, 5, 8), (3, 8, 6)), ((2, 1, 5, 8), (3, 8, 6)),
    ((1, 5, 8), (3, 8, 6)),
]  # fmt: skip


@pytest.fixture(autouse=True)
def tf32() -> Any:
    """float32 is multiplied here: on the CPU in full, so that gradients can be compared with differences."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = True
    yield
    torch.backends.cuda.matmul.allow_tf32 = before


def normal(*shape: int, dtype: Any = F32, grad: bool = False) -> Any:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


@pytest.mark.parametrize("shapes", SHAPES)
def test_gradients(shapes: Any) -> None:
    a, b = (normal(*shape, grad=True) for shape in shapes)
    x, y = (t.detach().double().requires_grad_() for t in (a, b))
    grad = normal(*torch.matmul(x, y).shape)
    torch.matmul(x, y).backward(grad.double())
    matmul(a, b).backward(grad)
    for mine, theirs in ((a.grad, x.grad), (b.grad, y.grad)):
        assert mine.shape == theirs.shape and torch.allclose(mine.double(), theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("shapes", [((8,), (8,)), ((8,), (8, 6)), ((5, 8), (8,)), ((8,), (3, 8, 6)), ((3, 5, 8), (8,))])
def test_gradients_of_vectors(shapes: Any) -> None:
    a, b = (normal(*shape, grad=True) for shape in shapes)
    x, y = (t.detach().clone().requires_grad_() for t in (a, b))
    assert matmul(a, b).shape == torch.matmul(x, y).shape
    matmul(a, b).square().sum().backward()
    torch.matmul(x, y).square().sum().backward()
    assert torch.allclose(a.grad, x.grad, rtol=1e-4, atol=1e-4) and torch.allclose(b.grad, y.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:Input .* is not a double precision:UserWarning")
def test_gradcheck_and_of_gradients() -> None:
    """Against differences. The product is bilinear, so a long step is exact but for float32's rounding."""
    a, b = normal(3, 4, grad=True), normal(4, 2, grad=True)
    options = {"eps": 0.5, "atol": 1e-3, "rtol": 1e-3, "nondet_tol": 0.0}
    assert torch.autograd.gradcheck(matmul, (a, b), **options)
    assert torch.autograd.gradgradcheck(matmul, (a, b), **options)
    bias = normal(2, grad=True)
    assert torch.autograd.gradcheck(lambda a, b, bias: matmul(a, b, bias=bias), (a, b, bias), **options)


def test_bias_and_scalars_have_gradients() -> None:
    a, b, bias, c = normal(5, 8, grad=True), normal(8, 6, grad=True), normal(6, grad=True), normal(5, 6, grad=True)
    value = matmul(a, b, bias=bias, activation="gelu").sum() + gemm(2.0, a, b, 3.0, c).sum()
    value.backward()
    x, y, z, w = (t.detach().clone().requires_grad_() for t in (a, b, bias, c))
    (torch.nn.functional.gelu(x @ y + z).sum() + (2 * (x @ y) + 3 * w).sum()).backward()
    for mine, theirs in ((a, x), (b, y), (bias, z), (c, w)):
        assert torch.allclose(mine.grad, theirs.grad, rtol=1e-4, atol=1e-4)


def test_types_without_gradients_say_so() -> None:
    a = torch.ones(16, 16).to(torch.float8_e4m3fn).requires_grad_()
    with pytest.raises(OperandError, match="have no gradient here"):
        matmul(a, a.detach()).sum().backward()


@pytest.mark.parametrize("lines", [1, 4])
def test_a_result_of_8_bits_is_rounded_once_while_derivatives_are_recorded(lines: int) -> None:
    """torch has no activations of float8; a vector takes another way than matrices."""
    a, b = normal(lines, 16, dtype=torch.bfloat16), normal(16, 24, dtype=torch.bfloat16)
    a = a[0] if lines == 1 else a
    eight = torch.float8_e4m3fn
    for bias in (None, normal(24, dtype=torch.bfloat16)):
        want = matmul(a, b, bias=bias, activation="gelu", out_dtype=eight)
        got = matmul(a.clone().requires_grad_(), b, bias=bias, activation="gelu", out_dtype=eight)
        off = (got.float() - want.float()).abs()
        assert got.dtype == eight and bool((off <= 2.0**-3 * want.float().abs() + 2.0**-9).all())


def test_nothing_is_recorded_without_need() -> None:
    a, b = normal(5, 8, grad=True), normal(8, 6)
    with torch.no_grad():
        assert not matmul(a, b).requires_grad
    with torch.inference_mode():
        assert not matmul(a, b).requires_grad
    assert not matmul(a.detach(), b).requires_grad and matmul(a, b).requires_grad


@pytest.mark.parametrize("dynamic", [False, True])
def test_the_compiler_takes_it_whole(dynamic: bool) -> None:
    def step(x: Any, w: Any, bias: Any) -> Any:
        return matmul(x, w.T, bias=bias, activation="silu").square().mean()

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    w, bias = normal(6, 8, grad=True), normal(6, grad=True)
    for rows in (5, 7):
        x = normal(rows, 8)
        want = torch.autograd.grad(step(x, w, bias), (w, bias))
        got = torch.autograd.grad(compiled(x, w, bias), (w, bias))
        assert all(torch.allclose(g, e, rtol=1e-5, atol=1e-6) for g, e in zip(got, want))


def older_rule(tx: Any, function: Any, name: str, given: Any, named: Any) -> Any:
    """A constant function's call as torch before 2.13 traces it: of constants that it can rebuild alone."""
    from torch._dynamo.source import ConstantSource

    result = function(*[x.as_python_constant() for x in given], **{n: x.as_python_constant() for n, x in named.items()})
    return tx.output.register_attr_or_module(result, name, source=ConstantSource(name))


@pytest.mark.parametrize("older", [False, True])
def test_the_compiler_takes_objects(older: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trace takes the caller's object, and is made anew where another is given."""
    if older:
        monkeypatch.setattr("torch._dynamo.variables.functions.invoke_and_store_as_constant", older_rule)
        monkeypatch.setattr("layoutgemm.torch_op.compiled.constant_objects.BY_ADDRESS", True)
    config, orders = Sm90Config((64, 64), consumers=1), [Triangular("lower"), Triangular("upper")]
    a, b = normal(128, 128), normal(128, 128)
    compiled = torch.compile(
        lambda a, b, order: matmul(a, b, config=config, order=order), fullgraph=True, backend="aot_eager"
    )
    for order in orders:
        assert torch.equal(compiled(a, b, order), matmul(a, b, config=config, order=order))
    seen: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        seen.extend(str(text) for node in graph.graph.nodes for text in node.args if "tile" in str(text))
        return graph.forward

    taken = torch.compile(lambda a, b, config: matmul(a, b, config=config), fullgraph=True, backend=backend)
    for rows in (64, 128, 192):  # each goes before the next one comes, which may have its address
        taken(a, b, Sm90Config((rows, 64), consumers=rows // 64))
    assert len(set(seen)) == 3


def test_a_graph_hears_of_the_end_of_each_object_that_a_caller_makes() -> None:
    """A constant function's result is of one object: another one, perhaps at its address, is traced anew."""
    text = constant_of_objects(str)
    compiled = torch.compile(lambda x, y: x + len(text(y)), fullgraph=True, backend="eager")
    makers = (
        lambda i: QuantizedFormat("int4", (16, 128, 32)[i]), lambda i: Layout((3, 10**i)),
        lambda i: Swizzle(1, 0, 1 + i), lambda i: Sm100Config((128, 64 * 2**i)),
        lambda i: ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 4**i))),
    )  # fmt: skip
    x = torch.zeros(1)
    for make in makers:
        torch._dynamo.reset()
        found = [compiled(x, make(i)).item() for i in range(3)]  # each goes before the next one, which has its address
        assert found == [len(str(make(i))) for i in range(3)]


def test_the_compiler_takes_a_configuration() -> None:
    config = Sm90Config((64, 64), consumers=1)
    compiled = torch.compile(lambda a, b: matmul(a, b, config=config), fullgraph=True, backend="aot_eager")
    a, b = normal(4, 8), normal(8, 5)
    assert torch.equal(compiled(a, b), matmul(a, b))
    with pytest.raises(Exception, match="cannot be multiplied"):
        torch.compile(lambda a, b: matmul(a, b), fullgraph=True, backend="aot_eager")(a, a)


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
def test_export_and_trace() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return matmul(x, y, activation="relu")

    a, b = normal(4, 8), normal(8, 5)
    exported = torch.export.export(Model(), (a, b))
    assert any("layoutgemm.finished" in str(node.target) for node in exported.graph.nodes)
    assert torch.equal(exported.module()(a, b), Model()(a, b))
    traced = torch.jit.trace(lambda x: matmul(x, b), a)
    other = a + 1
    assert torch.equal(traced(other), matmul(other, b))


def test_an_exported_graph_has_no_region_that_records_nothing() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            scaled = matmul(x, y, epilogue=Epilogue(Scale()), given={"alpha": 2.0})
            return matmul(scaled, (y, y), combine="silu")

    a, b = normal(4, 8, dtype=BF16), normal(8, 8, dtype=BF16)
    exported = torch.export.export(Model(), (a, b), strict=False)
    named = [str(node.target) for node in exported.graph.nodes if node.op == "call_function"]
    assert named == ["layoutgemm.epilogue_matmul.default", "layoutgemm.combined_matmul.default"]
    assert torch.equal(exported.module()(a, b), Model()(a, b))


@pytest.mark.parametrize("activation", ["relu", None])
def test_a_float8_result_has_gradients(activation: str | None) -> None:
    a, b = normal(4, 8, dtype=BF16, grad=True), normal(8, 6, dtype=BF16)
    c = matmul(a, b, activation=activation, out_dtype=torch.float8_e5m2)
    c.backward(torch.ones_like(c))
    positive = torch.ones(4, 6) if activation is None else (c.detach().float() > 0).float()
    assert torch.allclose(a.grad.float(), positive @ b.detach().float().T, rtol=2**-7, atol=2**-7)


def test_fake_and_meta_tensors() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        a, b = torch.empty(3, 5, 8, device="cuda", dtype=BF16), torch.empty(8, 6, device="cuda", dtype=BF16)
        got = matmul(a, b, out_dtype=F32)
        assert got.shape == (3, 5, 6) and got.dtype == F32 and got.device.type == "cuda" and got.is_contiguous()
        with pytest.raises(RuntimeError, match="cannot be multiplied"):
            matmul(a, a)
    got = matmul(torch.empty(5, 8, device="meta").bfloat16(), torch.empty(8, device="meta").bfloat16())
    assert got.shape == (5,) and got.device.type == "meta"


def test_vmap() -> None:
    a, b = normal(3, 5, 8), normal(3, 8, 6)
    want = torch.matmul(a, b)

    def close(x: Any, y: Any) -> bool:
        return torch.allclose(x, y, rtol=1e-5, atol=1e-5)

    vmap = torch.func.vmap
    assert close(vmap(matmul)(a, b), want)
    assert close(vmap(matmul, in_dims=(0, None))(a, b[0]), torch.matmul(a, b[0]))
    assert close(vmap(matmul, in_dims=(None, 0))(a[0], b), torch.matmul(a[0], b))
    assert close(vmap(matmul, in_dims=(1, 2), out_dims=1)(a.transpose(0, 1), b.permute(1, 2, 0)), want.transpose(0, 1))
    assert close(vmap(lambda x, y: matmul(x, y, bias=torch.ones(6)))(a, b), want + 1)
    # a batch within, of one operand alone; a matrix and a vector; twice
    c = normal(3, 2, 8, 6)
    assert close(vmap(matmul)(a, c), torch.matmul(a.unsqueeze(1), c))
    assert close(vmap(matmul)(a, b[..., 0]), torch.einsum("bmk,bk->bm", a, b[..., 0]))
    d = normal(4, 8, 6)
    assert close(vmap(vmap(matmul, (None, 0)), (0, None))(a, d), torch.matmul(a.unsqueeze(1), d))


def test_functional_gradients() -> None:
    a, b = normal(3, 5, 8), normal(8, 6)
    each = torch.func.vmap(torch.func.grad(lambda x, y: matmul(x, y).square().sum()), in_dims=(0, None))(a, b)
    want = torch.func.vmap(torch.func.grad(lambda x, y: torch.matmul(x, y).square().sum()), in_dims=(0, None))(a, b)
    assert torch.allclose(each, want, rtol=1e-4, atol=1e-4)
    got = torch.func.jacrev(lambda x: matmul(x, b))(a[0])
    assert torch.allclose(got, torch.func.jacrev(lambda x: torch.matmul(x, b))(a[0]), rtol=1e-5, atol=1e-5)


def test_torch_func_inside_of_a_compiled_function_is_refused_by_name() -> None:
    a, b = normal(5, 8), normal(8, 6)
    inside = torch.compile(lambda x: torch.func.grad(lambda y: matmul(y, b).sum())(x), backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"layoutgemm\.matmul has it, outside of torch\.compile"):
        inside(a)
    torch._dynamo.reset()


@pytest.mark.parametrize(
    ("flag", "said"), [("no", r"'no' \(str\)"), (1, r"1 \(int\)"), (torch.tensor(True), "a Tensor")]
)
def test_a_flag_that_is_no_bool_is_refused_as_outside_of_the_compiler(flag: Any, said: str) -> None:
    """bool("no") allowed tf32."""
    a, b = normal(4, 4).to(BF16), normal(4, 4).to(BF16)
    forms: list[Callable[[Any], Any]] = [
        lambda flag: matmul(a, b, allow_tf32=flag),
        lambda flag: gemm(1.0, a, b, allow_tf32=flag),
        lambda flag: matmul(a, [b, b], combine="silu", allow_tf32=flag),
        lambda flag: matmul(a, b, rows=torch.arange(4), allow_tf32=flag),
        lambda flag: matmul(a, b, epilogue=SCALED, given={"alpha": 2.0}, allow_tf32=flag),
    ]
    for form in forms:
        with pytest.raises(OperandError, match="allow_tf32 must be True or False, not "):
            form(flag)
        with pytest.raises(Exception, match=f"allow_tf32 must be True or False, not {said}"):
            torch.compile(form, backend="eager", fullgraph=True)(flag)
    torch._dynamo.reset()


def test_unknown_keywords_are_refused_as_outside_of_the_compiler() -> None:
    a = normal(4, 4).to(BF16)
    for call, said in (
        (lambda: matmul(a, a, trans_b=True), r"matmul\(\) got an unexpected keyword argument 'trans_b'; give b.mT"),
        (lambda: gemm(1.0, a, a, out_=a), r"gemm\(\) got an unexpected keyword argument 'out_'; do you mean 'out'"),
    ):
        with pytest.raises(TypeError, match=said):
            call()
        with pytest.raises(Exception, match=said):
            torch.compile(call, backend="eager", fullgraph=True)()
    torch._dynamo.reset()


def test_autocast() -> None:
    a, b = normal(5, 8), normal(8, 6)
    for kind in (BF16, torch.float16):
        with torch.autocast("cpu", dtype=kind):
            for got in (matmul(a, b), OP(a, b), matmul(a, b.to(kind))):
                assert got.dtype == kind
                want = (a.to(kind).double() @ b.to(kind).double()).to(kind)
                assert torch.equal(got, want)
            with torch.autocast("cpu", enabled=False):
                assert matmul(a, b).dtype == F32
    with torch.autocast("cpu", dtype=BF16):
        eight = a.to(torch.float8_e4m3fn)
        assert matmul(eight, b.to(torch.float8_e4m3fn)).dtype == BF16  # left as they are
        x = normal(5, 8, grad=True)
        matmul(x, b).sum().backward()
        assert x.grad.dtype == F32


def test_modes_see_the_operator() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(str(function))
            return function(*args, **(kwargs or {}))

    with Watch():
        matmul(normal(4, 8), normal(8, 5))
    assert "layoutgemm.matmul.default" in seen


@pytest.mark.parametrize("activation", [None, "gelu"])
def test_finished_operator_is_checked_by_torch_and_maps_its_bias(activation: Any) -> None:
    finished = torch.ops.layoutgemm.finished
    a, b, bias = normal(5, 8, dtype=BF16), normal(8, 6, dtype=BF16), normal(3, 6)
    results = torch.library.opcheck(finished, (a, b, bias[0], activation, BF16))
    assert set(results.values()) == {"SUCCESS"}, results
    mapped = torch.vmap(lambda z: finished(a, b, z, activation, F32))(bias)
    each = torch.stack([finished(a, b, z, activation, F32) for z in bias])
    assert torch.allclose(mapped, each, rtol=1e-5, atol=1e-5)
    left, right, line = (x.clone().requires_grad_() for x in (a, b, bias[0]))
    assert set(torch.library.opcheck(finished, (left, right, line, activation, BF16)).values()) == {"SUCCESS"}
    assert torch.equal(
        finished(left, right, line, activation, BF16), matmul(left, right, bias=line, activation=activation)
    )


FINISHED = {
    "a bias": (None, BF16), "relu": ("relu", BF16), "gelu": ("gelu", BF16), "a gate": ("swiglu", BF16),
    "f32": ("silu", F32),
}  # fmt: skip


@pytest.mark.parametrize("name", FINISHED)
def test_a_bias_is_rounded_once_by_every_way_that_records_derivatives(name: str) -> None:
    """Compiled, exported and in torch.func, both passes have eager mode's bits."""
    activation, kind = FINISHED[name]
    x, weight, bias, grad = normal(33, 70, dtype=BF16), normal(48, 70, dtype=BF16), 30 * normal(48, dtype=BF16), None

    class Layer(torch.nn.Module):
        def forward(self, x: Any, weight: Any, bias: Any) -> Any:
            return matmul(x, weight.mT, bias=bias, activation=activation, out_dtype=kind)

    layer, leaves = Layer(), tuple(t.clone().requires_grad_() for t in (x, weight, bias))
    want = layer(*leaves)
    grad = torch.ones_like(want)
    gradients = torch.autograd.grad(want, leaves, grad)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)(*leaves)
    exported = torch.export.export(layer, leaves).module()(*leaves)
    mapped, pull = torch.func.vjp(layer, x, weight, bias)
    forward, tangent = torch.func.jvp(layer, (x, weight, bias), (x, weight, bias))
    assert all(torch.equal(each, want) for each in (compiled, exported, mapped, forward))
    for found in (torch.autograd.grad(compiled, leaves, grad), torch.autograd.grad(exported, leaves, grad), pull(grad)):
        # torch's compiler decomposes the derivatives of its own activations.
        room = 0 if activation in (None, "relu") else 2**-7
        for each, one in zip(found, gradients, strict=True):
            assert (each.double() - one.double()).norm() <= room * one.double().norm()
    by_lines = sum((g.float() * t.float()).sum() for g, t in zip(gradients, (x, weight, bias), strict=True))
    assert torch.allclose(tangent.float().sum(), by_lines, rtol=2**-6)


def test_derivatives_of_finished_products_have_derivatives() -> None:
    a, b, bias = normal(4, 8), normal(8, 6), normal(6)

    def ours(a: Any, b: Any, bias: Any) -> Any:
        return matmul(a, b, bias=bias, activation="relu", allow_tf32=True)

    def torchs(a: Any, b: Any, bias: Any) -> Any:
        return torch.relu(a @ b + bias)

    def second(of: Any) -> Any:
        first = torch.func.grad(lambda *given: of(*given).square().sum())
        return torch.func.grad(lambda *given: first(*given).square().sum(), 1)(a, b, bias)

    assert torch.allclose(second(ours), second(torchs), rtol=1e-4, atol=1e-4)
    lines, rows = normal(3, 6), normal(3, 4, 8)
    each = [
        torch.func.vmap(torch.func.grad(lambda z, x, of=of: of(x, b, z).sum()))(lines, rows) for of in (ours, torchs)
    ]
    assert torch.allclose(*each, rtol=1e-4, atol=1e-4)


TRACED: dict[str, dict[str, Any]] = {
    "plain": {}, "relu": {"bias": True, "activation": "relu"}, "gelu": {"bias": True, "activation": "gelu"},
    "a gate": {"activation": "swiglu"},
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")  # sizes are compared, and are those of the trace
@pytest.mark.parametrize("name", TRACED)
def test_a_trace_records_derivatives(name: str) -> None:
    """torch.jit.trace traces a second time, without recording, and compares the graphs."""
    options = dict(TRACED[name])
    a, b, bias = (
        t.requires_grad_() for t in (normal(4, 8, dtype=BF16), normal(8, 6, dtype=BF16), normal(6, dtype=BF16))
    )

    def of(a: Any, b: Any, bias: Any) -> Any:
        return matmul(a, b, **{**options, "bias": bias} if "bias" in options else options)

    leaves = (a, b, bias) if "bias" in options else (a, b)
    traced = torch.jit.trace(of, (a, b, bias))
    found, want = traced(a, b, bias), of(a, b, bias)
    grads = [torch.autograd.grad(c, leaves, torch.ones_like(c)) for c in (found, want)]
    assert torch.equal(found, want) and all(torch.equal(x, y) for x, y in zip(*grads, strict=True))


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
def test_a_launch_of_its_own_is_not_traced() -> None:
    a, w = normal(4, 8, dtype=BF16), normal(8, 6, dtype=BF16)
    for of in (
        lambda a: matmul(a, w, order="row"),
        lambda a: matmul(a, (w, w), combine=lambda x, y, ops, s: x + y),
        lambda a: matmul(a, w, epilogue=Epilogue(Scale()), given={"alpha": 2.0}),
    ):
        with pytest.raises(OperandError, match=r"is a launch of its own, not under torch.jit.trace: call it beside"):
            torch.jit.trace(of, (a,))
    rows = torch.tensor([2, 0])
    assert torch.equal(torch.jit.trace(lambda a: matmul(a, w, rows=rows), (a,))(a), matmul(a, w, rows=rows))


def test_vmap_writes_into_a_mapped_output_alone() -> None:
    a, b, out = normal(3, 4, 8, dtype=BF16), normal(8, 6, dtype=BF16), torch.empty(3, 4, 6, dtype=BF16)
    torch.vmap(lambda x, c: matmul(x, b, out=c))(a, out)
    assert torch.equal(out, matmul(a, b))
    one, ends = torch.zeros(4, 6, dtype=BF16), torch.tensor([0, 2, 4], dtype=torch.int32)
    for of in (
        lambda x: matmul(x, b, out=one),
        lambda x: gemm(2.0, x, b, out=one),
        lambda x: grouped_matmul(x, torch.stack([b, b]), ends, out=one),
    ):
        with pytest.raises(OperandError, match=r"out is one tensor for all that torch.func.vmap maps: map it too"):
            torch.vmap(of)(a)
    assert not one.any()


def test_functionalize_takes_products_and_outputs() -> None:
    a, b, bias = normal(4, 8, dtype=BF16), normal(8, 6, dtype=BF16), normal(6, dtype=BF16)

    def into(a: Any, b: Any) -> Any:
        out = torch.empty(4, 6, dtype=BF16)
        matmul(a, b, bias=bias, out=out)
        return out

    functionalize = torch.func.functionalize
    assert torch.equal(functionalize(into)(a, b), matmul(a, b, bias=bias))
    assert torch.equal(functionalize(matmul)(a, b), matmul(a, b))
    out = torch.zeros(4, 6, dtype=BF16)
    functionalize(lambda a, b, out: matmul(a, b, out=out))(a, b, out)
    assert torch.equal(out, matmul(a, b))
    ends, many = torch.tensor([0, 2, 4], dtype=torch.int32), torch.stack([b, b])
    assert torch.equal(functionalize(lambda a: grouped_matmul(a, many, ends))(a), grouped_matmul(a, many, ends))


def test_forward_derivatives_of_finished_products_are_those_of_torch() -> None:
    a, b, bias = normal(4, 8), normal(8, 6), normal(6)
    for way in (torch.func.jacfwd, torch.func.jacrev):
        found = way(lambda *t: matmul(*t[:2], bias=t[2], activation="relu", allow_tf32=True), (0, 1, 2))(a, b, bias)
        want = way(lambda a, b, z: torch.relu(a @ b + z), (0, 1, 2))(a, b, bias)
        assert all(torch.allclose(x, y, rtol=1e-4, atol=1e-4) for x, y in zip(found, want, strict=True))
