"""Operands of every entry point: one rule for kind, device, memory and types, forward mode, and rounding once."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import torch.autograd.forward_ad as forward
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import functionalize, hessian, jacfwd, jacrev, jvp, vmap
from torch.overrides import TorchFunctionMode

import layoutgemm
from layoutgemm import Sm80Plan, gemm, grouped_matmul, matmul, scaled_matmul
from layoutgemm.dtypes import dtype
from layoutgemm.errors import LayoutError, OperandError, TensorError
from layoutgemm.kernels import TeachingPlan
from layoutgemm.kernels.epilogue.chain import Aux, Bias, Epilogue
from layoutgemm.kernels.run.operand_checks import overlaps_itself, share_memory
from layoutgemm.torch_op import api as torch_op
from layoutgemm.torch_op import launch
from layoutgemm.torch_op.compiled.guards import KeptCalls
from layoutgemm.torch_op.reference import rounded
from tests.torch_op.operand_fuzz import faults

BF16, F32, F64, E4M3 = torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn
OP, GATED = torch.ops.layoutgemm.matmul, torch.ops.layoutgemm.gated


def ones(*shape: int, kind: Any = BF16) -> Any:
    return torch.ones(shape).to(kind)


def refused(call: Any, *words: str) -> None:
    with pytest.raises(LayoutError) as error:
        call()
    assert all(word in str(error.value) for word in words), str(error.value)


def test_random_calls_are_right_or_refused() -> None:
    tally: dict[str, int] = {}
    assert not list(faults(11, 1200, tally))
    assert tally["answered"] > 300 and tally["refused"] > 300


# ------------------------------------------------------------------------------------------------------------ one place


def calls(bad: str, x: Any) -> list[tuple[str, Any]]:
    """Every entry point with one operand exchanged, and that operand's name."""
    a, b, e = ones(4, 4), ones(4, 4), ones(4, 4, kind=E4M3)
    plan, ampere = TeachingPlan.derive(4, 4, 4, c="bf16"), Sm80Plan.derive(4, 4, 4, c="bf16")
    of_bias, scale, ends = Epilogue(Bias(dtype="bf16")), torch.ones(4, 1), torch.tensor([0, 4])
    found: list[tuple[str, Any]] = [
        ("a", lambda: matmul(x, b)), ("b", lambda: matmul(a, x)), ("out", lambda: matmul(a, b, out=x)),
        ("bias", lambda: matmul(a, b, bias=x)), ("bias", lambda: matmul(a, b, bias=x, activation="swiglu")),
        ("a", lambda: gemm(1, x, b)), ("c", lambda: gemm(1, a, b, 1, x)), ("out", lambda: gemm(1, a, b, out=x)),
        ("bias", lambda: matmul(a, b, epilogue=of_bias, given={"bias": x})),
        ("aux", lambda: matmul(a, b, epilogue=Epilogue(Aux()), given={"aux": x})),
        ("a", lambda: scaled_matmul(x, scale, e)), ("scale_a", lambda: scaled_matmul(e, x, e)),
        ("b", lambda: scaled_matmul(e, scale, x)), ("scale_b", lambda: scaled_matmul(e, scale, e, x)),
        ("out", lambda: scaled_matmul(e, scale, e, out=x)), ("a", lambda: grouped_matmul(x, b[None], ends)),
        ("b", lambda: grouped_matmul(a, x, ends)), ("offsets", lambda: grouped_matmul(a, b[None], x)),
        ("out", lambda: grouped_matmul(a, b[None], ends, out=x)),
        *[("out", lambda p=p: p.run(a, b, out=x, device="reference")) for p in (plan, ampere)],
    ]  # fmt: skip
    if bad != "object":
        found += [("b", lambda: OP(a, x)), ("b", lambda: GATED(a, x, "swiglu", BF16))]
        found += [("b", lambda p=p: p.run(a, x, device="reference")) for p in (plan, ampere)]
    return found


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_what_is_no_dense_tensor_of_the_device_is_refused_by_name() -> None:
    square = ones(4, 4)
    for bad, x, error in (
        ("object", 5, OperandError), ("object", [1.0], OperandError), ("sparse", square.to_sparse(), OperandError),
        ("csr", square.to_sparse_csr(), OperandError), ("meta", square.to("meta"), LayoutError),
        ("nested", torch.nested.nested_tensor([square, square]), OperandError),
        ("jagged", torch.nested.nested_tensor([square, square], layout=torch.jagged), OperandError),
    ):  # fmt: skip
        for number, (name, call) in enumerate(calls(bad, x)):
            with pytest.raises(error) as found:
                call()
            assert name in str(found.value), (bad, number, name, str(found.value))


def test_one_rule_says_whether_an_output_has_its_memory_for_itself() -> None:
    """Overlap of operands and outputs is refused by all entry points; views that only look close are taken."""
    whole, e = ones(4, 8), ones(4, 4, kind=E4M3)
    out, beside, a, b = whole[:, ::2], whole[:, 1::2], ones(4, 4), ones(4, 4)
    scales = torch.ones(4, 8)
    plan, ends, aux = TeachingPlan.derive(4, 4, 4, c="bf16"), torch.tensor([0, 4]), Epilogue(Aux())
    row = torch.zeros(4, 4).bfloat16()
    for call, words in (
        (lambda: matmul(a, b, bias=row[1], out=row), ("out", "bias")),
        (lambda: matmul(a, b, bias=row[1], activation="relu", out=row), ("out", "bias")),
        (lambda: matmul(a, b, epilogue=Epilogue(Bias(dtype="bf16")), given={"bias": row[1]}, out=row), ("out", "bias")),
        (lambda: matmul(a, row, epilogue=aux, given={"aux": row}), ("aux", "shares memory with b")),
        (lambda: matmul(row, b, out=row), ("out", "shares memory with a")),
        (lambda: gemm(1, row, b, out=row), ("out", "shares memory with a")),
        (lambda: gemm(2, a, b, 1, row[1], out=row), ("out", "shares memory with c")),
        (lambda: scaled_matmul(e, scales[:, :1], e, out=scales[:, :4], out_dtype=F32), ("out", "scale_a")),
        (lambda: grouped_matmul(row, b[None], ends, out=row), ("out", "shares memory with a")),
        (lambda: plan.run(row, b, out=row, device="reference"), ("out", "shares memory with a")),
        (lambda: matmul(a, b, out=row[:1].expand(4, 4)), ("more than one element of out",)),
        (lambda: Sm80Plan.derive(4, 4, 4, c="bf16").run(a, b, out=row[:1].expand(4, 4)), ("written twice",)),
        (lambda: matmul(a, b, out=torch._neg_view(row)), ("out", "negative bit")),
    ):
        refused(call, *words)
        assert not row.any()
    assert torch.equal(matmul(beside, b, out=out), 4 * a) and out is not beside
    assert torch.equal(grouped_matmul(beside, b[None], ends, out=out), 4 * a)
    assert torch.equal(scaled_matmul(e, scales[:, :1], e, out=scales[:, 4:], out_dtype=F32), 4 * ones(4, 4, kind=F32))
    assert torch.equal(gemm(2, a, b, 1, out, out=out), 12 * a)  # c itself: each element is read before it is written
    lines = torch.zeros(20)
    assert not overlaps_itself(lines.as_strided((2, 3), (3, 2))) and overlaps_itself(lines.as_strided((2, 3), (2, 1)))
    assert not share_memory(lines[::3], lines[1::3]) and share_memory(lines[::3], lines[1::2])


def test_types_that_integers_and_activations_take() -> None:
    i8, i32, most = torch.ones(1, 2, dtype=torch.int8), torch.int32, 2**31 - 1
    for bias, word in (
        (torch.tensor([2**40]), "int64"), (torch.tensor([1]), "int64"), (torch.tensor([1j]), "complex64"),
        (torch.tensor([True]), "bool"), (torch.tensor([1.0]), "float32"), (5, "int"),
        (torch.tensor([most], dtype=i32), "at (0, 0)"),
    ):  # fmt: skip
        refused(lambda bias=bias: matmul(i8, i8.T, bias=bias), "bias", word)
    near = torch.tensor([most - 2], dtype=i32)
    assert matmul(i8, i8.T, bias=near).item() == most and matmul(-i8, i8.T, bias=-near - 1).item() == -(2**31)
    assert matmul(i8, i8.T, bias=near, out_dtype=F32).item() == 2.0**31  # the nearest float32
    for alpha, beta, c, name in (
        (2**30, 1, torch.tensor([[2**30]], dtype=i32), "alpha, beta and c"), (2**31, 0, None, "alpha"),
        (10**400, 0, None, "alpha"), (1, 2, torch.tensor([[2**40]]), "c"), (2**30, 0, None, "alpha"),
    ):  # fmt: skip
        refused(lambda alpha=alpha, beta=beta, c=c: gemm(alpha, i8, i8.T, beta, c), name)
    x = ones(2, 2)
    for kind in (torch.complex64, F64, torch.int64, torch.bool):
        refused(lambda kind=kind: matmul(x, x, bias=torch.ones(2).to(kind)), "bias", str(kind))
    for name in (["relu"], 5, {}, "RELU", object):
        refused(lambda name=name: matmul(x, x, activation=name), "activation")
    refused(lambda: gemm(1e39, x, x), "alpha", "beyond float32")
    refused(lambda: gemm(torch.ones(2), x, x), "alpha")
    refused(lambda: matmul(x, x, out_dtype="bf16"), "out_dtype")


def test_raw_operators_refuse_alike_on_every_device() -> None:
    x, wide = ones(4, 4), torch.ones(4, 4)
    for place in ("cpu", "meta"):
        a, f32 = x.to(place), wide.to(place)
        for call, words in (
            (lambda a=a: OP(a, a, None, "{{{"), ("config",)), (lambda a=a: OP(a, a, None, "[" * 5000), ("config",)),
            (lambda a=a: OP(a, a, None, "3"), ("config",)), (lambda a=a: OP(a.double(), a.double()), ("float64",)),
            (lambda a=a: OP(a, a, torch.int8), ("out_dtype",)), (lambda a=a: OP(a[0], a), ("a has shape [4]",)),
            (lambda a=a: OP(a, a[:3]), ("cannot be multiplied",)), (lambda a=a: OP(a, a.half()), ("same dtype",)),
            (lambda a=a: OP(a.expand(2, 4, 4), a.expand(3, 4, 4)), ()), (lambda f=f32: OP(f, f), ("allow_tf32",)),
            (lambda f=f32: GATED(f, f, "swiglu", F32), ("allow_tf32",)), (lambda a=a: GATED(a, a, "x", BF16), ("'x'",)),
            (lambda a=a: GATED(a, a[:, :3], "swiglu", BF16), ("columns",)),
        ):  # fmt: skip
            refused(call, *words)
        assert OP(f32, f32, None, "", True).shape == (4, 4)


@pytest.mark.parametrize("off", ["a", "b"])
def test_pairs_of_types_are_refused_by_the_operand_that_is_off(off: str) -> None:
    wide, one, ends = ones(4, 4), torch.ones(()), torch.tensor([0, 4], dtype=torch.int32)
    a, b = (wide.to(E4M3), wide) if off == "a" else (wide, wide.to(E4M3))
    for call in (
        lambda: matmul(a, b),
        lambda: grouped_matmul(a, b[None], ends),
        lambda: matmul(a, b, order="lower"),
        lambda: matmul((a, a), (b, b)),
        lambda: matmul(a, b, rows=ends),
    ):
        with pytest.raises(TensorError, match=f"convert {off} to torch.bfloat16, which has all values of"):
            call()
    other = "b" if off == "a" else "a"  # the one without 8 bits
    for call in (
        lambda: scaled_matmul(a, one, b, one),
        lambda: grouped_matmul(a, b[None], ends, scale_a=one, scale_b=torch.ones(1)),
    ):
        with pytest.raises(OperandError, match=f"{other} is torch.bfloat16: .*layoutgemm.quantize makes such an"):
            call()


ODD, WIDE, CONFIGURED = ones(4, 3), torch.ones(4, 4), object()
MASK = torch.tensor([True, False, True, True])
GRAD = ones(4, 4).requires_grad_()
# calls that are compiled, and what the refusal says; apart from the calls, whose lines torch quotes
COMPILED = (
    (lambda a: matmul(a, a, activation="nope"), "activation 'nope': known are 'relu', 'relu_sq'"),
    (lambda a: matmul(a, a, activation=["relu"]), r"activation \['relu'\]: known are"),
    (lambda a: matmul(a.double(), a.double()), "a and b are torch.float64; this library multiplies bfloat16"),
    (lambda a: matmul(a, a.half()), "expected a and b to have the same dtype, .*; convert one of them"),
    (lambda a: matmul(a, a.to(E4M3)), "bfloat16 != torch.float8_e4m3fn; convert b to torch.bfloat16, which has all"),
    (lambda a: matmul(a.to(E4M3), a), "float8_e4m3fn != torch.bfloat16; convert a to torch.bfloat16, which has all"),
    (lambda a: matmul(a.char(), a), "int8 != torch.bfloat16; convert a to torch.bfloat16"),
    (lambda a: matmul(a.char(), a.to(E4M3)), "convert both to torch.bfloat16, which has all their values"),
    (lambda a: matmul(a, a.double()), "convert b to a type of the library's"),
    (lambda a: matmul(a.double(), a), "convert a to a type of the library's"),
    (lambda a: matmul(a.float(), a.float(), allow_tf32=False), "the tensor cores would round them to tf32"),
    (lambda a: matmul(a, a, bias=5), "bias is a builtins.int"),
    (lambda a: matmul(a, a, bias=CONFIGURED), "bias is a builtins.object"),
    (lambda a: matmul(5, a), "a is a builtins.int"),
    (lambda a: matmul(a, a, activation="swish"), "'swish' is 'silu'"),
    (lambda a: matmul(a, a, activation=torch.relu), "; its name is 'relu'"),
    (lambda a: matmul(a, a, activation=torch.nn.GELU(approximate="tanh")), "; its name is 'gelu_tanh'"),
    (lambda a: matmul(a, a, activation=lambda x: x), r"a step: epilogue=Epilogue\(Custom.of\(function\)\)"),
    (lambda a: matmul(a, (a, a)), r"b is a builtins.tuple, .*; several b take combine=, and two pairs are \(a, a2\)"),
    (lambda a: matmul(a, a, rows=[0, 1]), r"rows is a builtins.list, .*; torch.tensor\(rows, device=a.device\) is one"),
    (lambda a: matmul(a, a, rows=MASK), r"rows is torch.bool of .*; rows.nonzero\(\).flatten\(\) are the rows"),
    (lambda a: matmul(a, a, order="lower", out_rows=MASK), r"out_rows.nonzero\(\).flatten\(\) are the rows"),
    (lambda a: matmul(a, a, combine="silu"), "b is a Tensor: combine= takes a tuple of 2 to 4"),
    (lambda a: matmul(a, None), "b is a builtins.NoneType"),
    (lambda a: matmul(a, a, bias=a[0, :3]), r"bias of shape \[3\] does not fit a product of shape \[4, 4\]"),
    (lambda a: matmul(a, a, bias=a[0].double()), "bias is torch.float64; to a product"),
    (lambda a: matmul(a, a, out=3), "out is a int, not a torch tensor"),
    (lambda a: matmul(a, a, out=ODD), r"out has shape \[4, 3\], the product \[4, 4\]"),
    (lambda a: matmul(a, a, out=WIDE), "Expected out tensor to have dtype"),
    (lambda a: matmul(a, a, out=ones(1, 4).expand(4, 4)), "more than one element of out"),
    (lambda a: matmul(a, GRAD, out=a), "don't support automatic differentiation"),
    (lambda a: matmul(a, a, out_dtype=torch.int8), "out_dtype torch.int8: a product of torch.bfloat16 is stored"),
    (lambda a: matmul(a, a, out_dtype="bf16"), "out_dtype bf16: a product of torch.bfloat16 is stored"),
    (lambda a: matmul(a, a, config=5), "config is a int; it is an Sm90Config"),
    (lambda a: matmul(a, a[:3]), r"cannot be multiplied \(4x4 and 3x4\): K is 4 in a and 3 in b; b.mT has K = 4"),
    (lambda a: matmul(a, a[0, :3]), r"size mismatch, got input \(4\), mat \(4x4\), vec \(3\)"),
    (lambda a: matmul(a, a[:, :3], activation="swiglu"), "b has 3 columns: a gated product"),
    (lambda a: matmul(a, a, given={}), "given holds an epilogue's operands, and there is no epilogue"),
    (lambda a: scaled_matmul(a, a, a), "a is torch.bfloat16: scales are for float8_e4m3fn"),
    (lambda a: grouped_matmul(a, a, a), "offsets is torch.bfloat16 of shape"),
    (lambda a: gemm(1, a, a, 2), "beta = 2 needs a c to scale"),
    (lambda a: gemm(1e39, a, a), r"alpha = 1e\+39 is beyond float32"),
    (lambda a: gemm(10**400, a, a), "alpha = an integer of 1329 bits"),
    (lambda a: gemm("2", a, a), "alpha is a number, given at the launch; got a str"),
    (lambda a: gemm(a[0], a, a), r"alpha has shape \[4\]: a number, or a tensor of one element"),
    (lambda a: gemm(1, a, a, 1, 3.0), "c is a builtins.float"),
    (lambda a: gemm(1, a, a, 1, a[:3]), r"The size of tensor a \(3\) must match"),
    (lambda a: gemm(1, a.to(torch.int8), a.to(torch.int8), 0.5, a.int()), "beta = 0.5 of a result stored as"),
)  # fmt: skip


def test_the_tensor_on_another_device_and_the_one_with_a_gradient_are_named() -> None:
    a, scale, out = ones(4, 4, kind=E4M3), torch.ones(4, 1), ones(4, 4)
    refused(lambda: scaled_matmul(a.to("meta"), scale, a, scale), "scale_a is on cpu, a is on meta")
    refused(lambda: scaled_matmul(a, scale.to("meta"), a, scale), "scale_a is on meta, a and b are on cpu")
    refused(lambda: matmul(out, out.to("meta")), "b is on meta, a is on cpu")
    leaf, groups = ones(4, 4).requires_grad_(), torch.tensor([0, 4])
    refused(lambda: matmul(ones(4, 4), leaf, out=out), "or has a tangent: b")
    scales = {"scale_a": scale.requires_grad_(), "scale_b": torch.ones(1, 1, 4)}
    refused(lambda: grouped_matmul(a, a[None], groups, out=out, **scales), "or has a tangent: scale_a")
    refused(lambda: grouped_matmul(leaf, ones(1, 4, 4), groups, out=out), "or has a tangent: a")
    assert bool((out == 1).all())


@pytest.mark.parametrize("function, text", COMPILED, ids=[text for _, text in COMPILED])
def test_refusals_keep_their_text_under_the_compiler(function: Any, text: str) -> None:
    """A fake kernel raises them: traced Python that raised would leave the text to the compiler, which may drop it."""
    torch._dynamo.reset()
    with pytest.raises(torch._dynamo.exc.TorchRuntimeError, match=text):
        torch.compile(function, fullgraph=True, backend="eager")(ones(4, 4))


def test_compiled_calls_are_right_and_their_checks_leave_no_trace() -> None:
    from torch._dynamo.backends.common import aot_autograd

    x, bias, names = ones(4, 4), torch.ones(4), []

    def watch(module: Any, inputs: Any) -> Any:
        names.extend(str(node.target) for node in module.graph.nodes)
        return module

    for function in (
        lambda a, c: gemm(2.0, a, a, 0.5, c), lambda a, c: gemm(2, a, a, 0, None), lambda a, c: matmul(a, a, out=c),
        lambda a, c: matmul(a, a, bias=bias, activation="relu"), lambda a, c: matmul(a, a[0]),
        lambda a, c: matmul(a, a, activation="geglu", bias=bias), lambda a, c: matmul(a, a, activation="swiglu"),
        lambda a, c: vmap(lambda one: matmul(one, a, bias=bias))(a.unsqueeze(1)),
        lambda a, c: vmap(lambda one: gemm(one[0], a, a, 1.0, c))(bias.unsqueeze(1)),
    ):  # fmt: skip
        for backend in ("eager", aot_autograd(fw_compiler=watch)):
            torch._dynamo.reset()
            got = torch.compile(function, fullgraph=True, backend=backend)(x, x.clone())
            assert torch.equal(got, function(x, x.clone()))
    assert any("layoutgemm.matmul" in name for name in names) and not any("layoutgemm.check" in name for name in names)


def test_compiled_calls_see_autocast() -> None:
    a = torch.randn(5, 8)
    for function in (lambda x: matmul(x, x.T), lambda x: gemm(2.0, x, x.T)):
        torch._dynamo.reset()
        with torch.autocast("cpu", dtype=BF16):
            got = torch.compile(function, fullgraph=True, backend="aot_eager")(a)
            assert got.dtype == BF16 and torch.equal(got, function(a))


def test_sizes_and_numbers_may_be_symbols_of_the_compiler() -> None:
    torch._dynamo.reset()
    options: Any = {"fullgraph": True, "backend": "aot_eager", "dynamic": True}
    scaled = torch.compile(lambda s, a, t, c: gemm(s, a, a.T, t, c), **options)
    into = torch.compile(lambda a, bias, out: matmul(a, a.T, bias=bias, out=out), **options)
    for n, alpha in ((5, 2.0), (7, 3.5), (9, 0.25)):
        a, out = ones(n, 8), ones(n, n)
        assert torch.equal(scaled(alpha, a, 1.0, out), gemm(alpha, a, a.T, 1.0, out))
        assert torch.equal(scaled(alpha, a, 0.0, None), gemm(alpha, a, a.T))
        assert into(a, torch.ones(n), out) is out and bool((out == 9).all())
    with pytest.raises(Exception, match="beyond float32"):
        scaled(1e300, ones(11, 8), 1.0, ones(11, 11))
    with pytest.raises(Exception, match=r"beta = 3\.0 needs a c to scale"):
        scaled(2.0, ones(11, 8), 3.0, None)


# ------------------------------------------------------------------------------------------- the bits, and the rounding


@pytest.fixture
def short_way(monkeypatch: pytest.MonkeyPatch) -> Any:
    """CPU tensors take the fast path, whose launches are noted."""
    launches: list[tuple[Any, ...]] = []

    class Launcher:
        def load(self, device: int) -> None:
            pass

        def block(self, arguments: Any) -> Any:
            return SimpleNamespace(values=[*arguments, 0, 0], pointer=arguments)

        def entry(self, pointer: Any) -> None:
            launches.append(pointer)

    direct: Any = launch.DirectLaunch(SimpleNamespace(launcher=Launcher()), (0, 0, 0), (2, 0, 1), -1, "")  # type: ignore[arg-type]
    ready = SimpleNamespace(
        simple=True, tf32=False, spans=(512, 512, 512), device=-1, product=direct.product((16, 16), (16, 1), BF16),
        launch=lambda *arguments: launches.append(arguments), shape=(16, 16), strides=(16, 1), kind=BF16,
        of_tensors=lambda count: direct.at((0, 1, *[1] * (count - 2), 2)),
    )  # fmt: skip

    class Always(KeptCalls[Any]):
        def get(self, key: Any, default: Any = None) -> Any:
            return ready if key else default

    monkeypatch.setattr(torch_op, "PREPARED", Always())
    for module in (launch, torch_op):
        monkeypatch.setattr(module, "current_device", lambda: -1)
        monkeypatch.setattr(module, "raw_stream", lambda index: 0)
    monkeypatch.setattr(launch, "empty_on_gpu", lambda *x: torch.empty_strided(*x[:2], dtype=x[2]))
    monkeypatch.setattr(launch, "THREAD", SimpleNamespace(bound=True))
    return launches


class Noted(TorchFunctionMode):
    """Notes the functions that it sees."""

    def __init__(self) -> None:
        super().__init__()
        self.functions: list[object] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.functions.append(func)
        return func(*args, **(kwargs or {}))


def test_the_fast_path_leaves_to_the_long_way_what_it_would_get_wrong(short_way: list[Any]) -> None:
    a, b, bias, out = (torch.randn(shape).bfloat16() for shape in ((16, 16), (16, 16), (16,), (16, 16)))
    for again in (1, 2):  # by the facts of the tensors, then by a guard
        matmul(a, b)
        matmul(a, b, bias=bias, out=out)
        assert len(short_way) == 2 * again  # it is taken at all
    neg, want = torch._neg_view, (a.double() @ b.double()).bfloat16()
    assert torch.equal(matmul(neg(a), b), -want) and torch.equal(matmul(a, neg(b)), -want)
    assert torch.equal(matmul(neg(a), neg(b)), want)
    zero = torch.zeros_like(a)
    assert torch.equal(matmul(zero, b, bias=neg(bias))[0], -bias)
    refused(lambda: matmul(a, b, out=neg(out)), "out", "negative bit")
    refused(lambda: matmul(a, b, bias=out[3], out=out), "out", "bias")
    refused(lambda: matmul(a.to_sparse(), b), "a is")
    refused(lambda: matmul(torch.nested.nested_tensor([a, a]), b), "a is a nested")
    with forward.dual_level():
        tangent = forward.unpack_dual(matmul(forward.make_dual(a, a), b)).tangent
        assert torch.equal(tangent, want)
    wide = torch.empty(16 * 16 + 8, dtype=BF16)
    refused(lambda: matmul(wide[: 16 * 16].view(16, 16), b, out=wide[8:].view(16, 16)), "out", "shares memory with a")
    odd = torch.empty(16 * 16 + 1, dtype=BF16)[1:].view(16, 16).copy_(a)  # off 16 bytes
    assert torch.equal(matmul(odd, b), want)
    with torch.autocast("cpu", torch.float16):
        assert matmul(a, b).dtype == torch.float16
    assert torch.equal(vmap(matmul, (0, None))(a.expand(2, 16, 16).clone(), b), want.expand(2, 16, 16))
    assert functionalize(matmul)(a, b).equal(want)
    with FakeTensorMode() as mode:
        assert matmul(mode.from_tensor(a), mode.from_tensor(b)).shape == (16, 16)
    with Noted() as noted:
        matmul(a, b)
    assert noted.functions
    assert len(short_way) == 4
    z = torch.complex(torch.randn(4, 4), torch.randn(4, 4))
    assert z.conj().imag.is_neg()
    got = gemm(1.0, z.conj().imag, torch.eye(4), 1.0, z.conj().imag, allow_tf32=True)
    assert torch.equal(got, -2 * z.imag)


def test_the_cpu_rounds_once() -> None:
    generator = torch.Generator().manual_seed(0)
    for name in ("bf16", "f16", "e4m3", "e5m2", "f32"):
        kind = {"bf16": BF16, "f16": torch.float16, "e4m3": E4M3, "e5m2": torch.float8_e5m2, "f32": F32}[name]
        digits = dtype(name).mantissa
        value = torch.randint(2 ** (digits - 1), 2**digits, (4000,), generator=generator).double()
        value = (value + torch.randint(0, 2, (4000,), generator=generator) / 2) * 2.0 ** (3 - digits)
        value *= 1 + torch.randint(-2, 3, (4000,), generator=generator) * 2.0**-45  # beside a tie, or on it
        ends = torch.tensor([1e300, -1e300, float("nan"), float("inf"), 0.0, -0.0, 2e-46, 465.0, 61440.1]).double()
        # beside the ties of the least numbers of bf16, float16, e5m2 and e4m3
        least = torch.tensor([odd * 2.0**end for odd in (1, 3, 5) for end in (-134, -25, -17, -10)]).double()
        value = torch.cat([value, ends, *(least * (1 + each * 2.0**-52) for each in (-1, 0, 1))])
        want = torch.from_numpy(dtype(name).decode(dtype(name).encode(value.numpy())))
        assert torch.equal(rounded(value, kind).float().nan_to_num(7.0), want.nan_to_num(7.0)), name
    negative = torch.complex(value, value).conj().imag
    assert negative.is_neg() and torch.equal(rounded(negative, BF16).nan_to_num(7), rounded(-value, BF16).nan_to_num(7))
    near = torch.tensor([[1.0, 2**-8, 2**-40]]).bfloat16()
    one, right = ones(3, 1), 1.0078125
    assert matmul(near, one).item() == right and gemm(1.0, near, one).item() == right
    assert matmul(near[:, :2], one[:2], bias=torch.tensor([2.0**-40])).item() == right
    assert grouped_matmul(near, one[None], torch.tensor([0, 1])).item() == right
    assert OP(near, one).item() == right
    eight = torch.tensor([[1.0, 2**-4]]).to(E4M3), torch.tensor([[1.0], [2**-4 + 2**-7]]).to(E4M3)
    exact = eight[0].double() @ eight[1].double()
    assert scaled_matmul(eight[0], torch.ones(1, 1), eight[1]).item() == rounded(exact, BF16).item()
    i8 = torch.full((1, 2), 127, dtype=torch.int8)
    assert matmul(i8, i8.T, out_dtype=BF16).item() == rounded(torch.tensor(2 * 127.0**2).double(), BF16).item()


# --------------------------------------------------------------------------------------------------------- forward mode

ACTS = {
    None: lambda x: x, "relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid,
    "swiglu": lambda x: torch.nn.functional.silu(x[..., :2]) * x[..., 2:],
}  # fmt: skip


@contextlib.contextmanager
def tangents() -> Any:
    with forward.dual_level():
        yield lambda x: forward.unpack_dual(x).tangent


def normal(*shape: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + len(shape)))


def close(x: Any, y: Any, within: float = 1e-4) -> bool:
    return x is not None and x.shape == y.shape and torch.allclose(x, y, rtol=within, atol=within)


def mm(a: Any, b: Any, **options: Any) -> Any:
    return matmul(a, b, allow_tf32=True, **options)


def test_tangents_are_those_of_torch() -> None:
    for shapes in (((3, 4), (4, 4)), ((2, 3, 4), (4, 4)), ((3, 4), (2, 4, 4)), ((4,), (4, 4)), ((3, 4), (4,))):
        x, w = normal(*shapes[0]), normal(*shapes[1])
        dx, dw = torch.cos(5 * x), torch.sin(7 * w)
        with tangents() as of:
            for a, b, want in (
                (forward.make_dual(x, dx), w, dx @ w), (x, forward.make_dual(w, dw), x @ dw),
                (forward.make_dual(x, dx), forward.make_dual(w, dw), dx @ w + x @ dw),
            ):  # fmt: skip
                assert close(of(mm(a, b)), want)
                assert min(x.ndim, w.ndim) < 2 or close(of(OP(a, b, None, "", True)), want)
                with torch.no_grad():
                    assert close(of(mm(a, b)), want)
    x, w, bias = normal(3, 4), normal(4, 4), normal(4)
    dx, dw, db = (torch.cos(9 * t) for t in (x, w, bias))
    for name, act in ACTS.items():
        ours = jvp(lambda a, b, z, name=name: mm(a, b, bias=z, activation=name), (x, w, bias), (dx, dw, db))[1]
        assert close(ours, jvp(lambda a, b, z, act=act: act(a @ b + z), (x, w, bias), (dx, dw, db))[1]), name
        want = jvp(lambda z, act=act: act(x @ w + z), (bias,), (db,))[1]
        with tangents() as of:
            assert close(of(mm(x, w, bias=forward.make_dual(bias, db), activation=name)), want), name
    scalars = torch.tensor(2.0), torch.tensor(3.0)
    ours = jvp(lambda a, d, s, t: gemm(s, a, w[:, :3], t, d, allow_tf32=True), (x, x[:, :3] + 1, *scalars),
               (dx, dx[:, :3], *scalars))[1]  # fmt: skip
    assert close(ours, jvp(lambda a, d, s, t: s * (a @ w[:, :3]) + t * d, (x, x[:, :3] + 1, *scalars),
                           (dx, dx[:, :3], *scalars))[1])  # fmt: skip
    with tangents() as of:
        half = forward.make_dual(x.bfloat16(), dx.bfloat16()), forward.make_dual(w.bfloat16(), dw.bfloat16())
        assert close(of(mm(*half)).float(), dx @ w + x @ dw, 0.1) and of(mm(*half)).dtype == BF16


def test_transforms_of_transforms() -> None:
    x, w, xs = normal(3, 4), normal(4, 4), normal(2, 3, 4)
    f, g = (lambda a, b: mm(a, b).sin()), (lambda a, b: torch.matmul(a, b).sin())

    def total(of: Any) -> Any:
        return lambda a: of(a, w).square().sum()

    assert close(jacfwd(f)(x, w), jacfwd(g)(x, w)) and close(jacfwd(f, 1)(x, w), jacrev(g, 1)(x, w))
    want = hessian(total(g))(x)
    assert close(hessian(total(f))(x), want, 1e-3) and close(jacfwd(jacfwd(total(f)))(x), want, 1e-3)
    assert close(jacrev(jacfwd(total(f)))(x), want, 1e-3)
    each = vmap(lambda a: jvp(f, (a, w), (x, w))[1])(xs)
    assert close(each, vmap(lambda a: jvp(g, (a, w), (x, w))[1])(xs))
    # forward over reverse without torch.func
    products = []
    for of in (f, g):
        a, b = x.clone().requires_grad_(), w.clone().requires_grad_()
        with tangents() as tangent:
            dual = forward.make_dual(a, torch.cos(x))
            grads = torch.autograd.grad(of(dual, b).square().sum(), (dual, b))
            products.append([tangent(grad) for grad in grads])
    assert all(close(ours, theirs, 1e-3) for ours, theirs in zip(*products, strict=True))


def test_where_there_is_no_tangent_it_is_refused() -> None:
    x, w = normal(4, 4).bfloat16(), normal(4, 4).bfloat16()
    eight = ones(4, 4, kind=E4M3)
    with forward.dual_level():
        d = forward.make_dual(x, x)
        bias = forward.make_dual(torch.ones(4), torch.ones(4))
        for call in (
            lambda: matmul(d, w, out=torch.empty_like(x)), lambda: matmul(x, w, bias=bias, out=torch.empty_like(x)),
            lambda: matmul(x, w, out=d), lambda: gemm(forward.make_dual(torch.tensor(1.0), torch.tensor(1.0)), x, w,
                                                      out=torch.empty_like(x)),
            lambda: grouped_matmul(d, w[None], torch.tensor([0, 4]), out=torch.empty_like(x)),
            lambda: GATED(d, w, "swiglu", BF16),
            lambda: TeachingPlan.derive(4, 4, 4).run(d, w),
            lambda: scaled_matmul(eight, forward.make_dual(torch.ones(4, 1), torch.ones(4, 1)), eight),
            lambda: scaled_matmul(eight, torch.ones(4, 1), eight, bias=bias),
        ):  # fmt: skip
            refused(call)
        same = matmul(x, w, epilogue=Epilogue(Bias()), given={"bias": torch.ones(4)})  # none of these has one
        assert same.shape == (4, 4) and layoutgemm.matmul(x, w).shape == (4, 4)
    refused(lambda: jvp(OP, (x, w), (x, w)), "layoutgemm.matmul has it")
    grad = x.clone().requires_grad_()
    refused(lambda: GATED(grad, w, "swiglu", BF16), "derivative")
    with pytest.raises(TensorError, match="automatic differentiation"):
        matmul(x, w, bias=torch.ones(4).requires_grad_(), out=torch.empty_like(x))
