"""Gated products by matmul: swiglu and geglu, in one kernel where there is one, else by torch; modes and compilers."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, explain_matmul, matmul
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.kernels.compile.worker import Kernel, plan_of, received, sent
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.torch_op.solver import why_unfused
from tests.torch_op.test_operator import BF16, F32, SMALL, emulated, integers

ACTS = {"swiglu": torch.nn.functional.silu, "geglu": torch.nn.functional.gelu}


def expected(a: Any, b: Any, activation: str, bias: Any = None) -> Any:
    """In float64, from the definition: gate columns first."""
    wide = torch.matmul(a.double(), b.double()) + (0 if bias is None else bias.double())
    gate, up = wide.chunk(2, -1)
    return ACTS[activation](gate) * up


def close(got: Any, want: Any, rounding: float = 2.0**-8) -> bool:
    return got.shape == want.shape and bool(((got.double() - want).abs() <= 1.5 * rounding * want.abs() + 1e-5).all())


@pytest.mark.parametrize("activation", ACTS)
@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 6)), ((4,), (4, 6)), ((2, 3, 4), (4, 6)), ((3, 4), (2, 4, 6)), ((0, 4), (4, 6)), ((3, 0), (0, 6)),
    ],
)  # fmt: skip
def test_the_definition_on_the_cpu(shapes: Any, activation: str) -> None:
    a, b = (torch.randn(shape).bfloat16() for shape in shapes)
    got, want = matmul(a, b, activation=activation), expected(a, b, activation)
    assert got.dtype == BF16 and close(got, want)
    out = torch.empty(want.shape, dtype=F32)
    assert matmul(a, b, activation=activation, out=out, out_dtype=F32) is out and close(out, want, 2.0**-20)
    bias = torch.randn(shapes[1][-1])
    assert close(matmul(a, b, activation=activation, bias=bias), expected(a, b, activation, bias))


def test_refusals_name_the_operand() -> None:
    a, b = torch.ones(4, 8).bfloat16(), torch.ones(8, 6).bfloat16()
    for given, error, text in (
        ({"b": b[:, :5]}, TensorError, "b has 5 columns: .* an even number"),
        ({"b": b[:, 0]}, TensorError, "b is a vector"),
        ({"bias": torch.ones(3)}, TensorError, r"bias of shape \[3\] does not fit a product of shape \[4, 6\]"),
        ({"activation": "reglu"}, OperandError, "known are .*'swiglu', 'geglu'"),
        ({"out": torch.empty(4, 6).bfloat16()}, TensorError, r"out has shape \[4, 6\], the product \[4, 3\]"),
        ({"a": a.to(torch.int8), "b": b.to(torch.int8)}, OperandError, "say out_dtype=torch.float32"),
        ({"a": a[:, :7]}, TensorError, "K is 7 in a and 8 in b"),
    ):
        with pytest.raises(error, match=text):
            matmul(**{"a": a, "b": b, "activation": "swiglu", **given})
    eight = matmul(a.to(torch.int8), b.to(torch.int8), activation="swiglu", out_dtype=F32)
    assert close(eight, expected(a, b, "swiglu"), 2.0**-20)


def test_explanations_say_how_and_what_memory() -> None:
    a, w = torch.empty(128, 64).bfloat16(), torch.empty(512, 64).bfloat16()
    fused = explain_matmul(a, w.T, activation="swiglu")
    assert fused.kernel.startswith("Sm90Plan 128x256x64") and "gated by silu" in fused.kernel
    assert (fused.launches, fused.copies, fused.workspace) == (1, (), 0) and "gated: " in fused.why
    rows = explain_matmul(a, w.T.contiguous(), activation="swiglu")
    assert "then torch gates it" in rows.kernel and "reads a K-major b" in rows.why
    assert rows.workspace == 128 * 4 * (512 + 256 + 256)
    pitch = explain_matmul(a, torch.empty(512, 65).bfloat16()[:, :64].T, activation="geglu")  # the weights are copied
    assert "gated by gelu" in pitch.kernel and pitch.copies[0].endswith(f", {512 * 64 * 2} bytes")
    assert pitch.workspace == 512 * 64 * 2
    other = explain_matmul(a, w.T, activation="swiglu", config=Sm90Config((64, 24), consumers=1))
    assert "24 columns, half of them the gate's" in other.why and "then torch gates it" in other.kernel


def test_kernels_are_compiled_elsewhere() -> None:
    kernel = Kernel(Sm90Choice(SMALL), ("bf16:row", "bf16:col", "bf16:row"), False, None, "silu")
    plan = plan_of(kernel)
    assert received(sent(plan)) == plan.for_any_size() != plan_of(kernel._replace(gated=None)).for_any_size()
    assert kernel.plan(64, 40, 64, 1).gated.kind == "silu"


FUSED = {
    # operands, and how many launches the kernel takes
    "ragged": (lambda: (integers(70, 72), integers(88, 72).mT), 1),
    "a batch that is rows": (lambda: (integers(2, 35, 72), integers(80, 72).mT), 1),
    "a vector": (lambda: (integers(64), integers(48, 64).mT), 1),
    "two pairs": (lambda: (integers(2, 20, 64), integers(2, 48, 64).mT), 1),
    "weights off 16 bytes": (lambda: (integers(20, 64), integers(48 * 64 + 1)[1:].view(48, 64).mT), 1),
    "odd columns of C": (lambda: (integers(20, 64), integers(50, 64).mT), 1),
}
FEW = ("ragged", "two pairs", "weights off 16 bytes")


@pytest.mark.dsl
@pytest.mark.parametrize(
    "name", [name if name in FEW else pytest.param(name, marks=pytest.mark.slow) for name in FUSED]
)
def test_one_kernel_in_the_emulator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second time by the fast path, where there is no copy and one launch."""
    make, launches = FUSED[name]
    a, b = make()
    want = expected(a, b, "swiglu")
    with emulated(monkeypatch) as calls:
        for turn in (1, 2):
            assert close(matmul(a, b, activation="swiglu", config=SMALL), want)
            assert len(calls) == turn * launches
        assert calls[0][0][4] == want.shape[-1]  # the kernel's n is C's
        fast = calls[-1][1] == 77
        assert fast == (launches == 1 and name != "weights off 16 bytes")


@pytest.mark.dsl
def test_what_has_no_kernel_is_gated_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, bias = integers(20, 64), integers(64, 48), integers(48)
    with emulated(monkeypatch) as calls:
        assert close(matmul(a, b, activation="swiglu", config=SMALL), expected(a, b, "swiglu"))
        got = matmul(a, b.mT.contiguous().mT, bias=bias, activation="swiglu", config=SMALL)
        assert close(got, expected(a, b, "swiglu", bias))
        assert [call[0][4] for call in calls] == [48, 48]


# ------------------------------------------------------------------------------------------------- modes and compilers


@pytest.mark.parametrize("activation", ACTS)
def test_gradients_are_those_of_torch(activation: str) -> None:
    a, b, bias = torch.randn(2, 5, 8), torch.randn(8, 6), torch.randn(6)
    grads = []
    for function in (lambda x, y, z: matmul(x, y, activation=activation, bias=z, allow_tf32=True), None):
        given = [x.clone().requires_grad_() for x in (a, b, bias)]
        got = function(*given) if function else gated_by_torch(*given, activation)
        got.square().sum().backward()
        grads.append([x.grad for x in given])
    for ours, theirs in zip(*grads, strict=True):
        assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4) and theirs.abs().max() > 0
    with pytest.raises(TensorError, match="automatic differentiation"):
        matmul(given[0], given[1], activation=activation, out=torch.empty(2, 5, 3), allow_tf32=True)


def gated_by_torch(a: Any, b: Any, bias: Any, activation: str) -> Any:
    gate, up = (torch.matmul(a, b) + bias).chunk(2, -1)
    return ACTS[activation](gate) * up


def test_the_operator_says_its_shape() -> None:
    from torch._subclasses import FakeTensorMode

    a, b = torch.randn(3, 5, 8).bfloat16(), torch.randn(8, 6).bfloat16()
    torch.library.opcheck(torch.ops.layoutgemm.gated.default, (a, b, "swiglu", BF16), test_utils=CHECKS)
    with FakeTensorMode() as mode:
        fake = [mode.from_tensor(x) for x in (a, b)]
        assert matmul(*fake, activation="swiglu").shape == (3, 5, 3)
        assert matmul(fake[0][0, 0], fake[1], activation="swiglu", out_dtype=F32).shape == (3,)
        with pytest.raises(TensorError, match="an even number"):
            matmul(fake[0], fake[1][:, :5], activation="swiglu")
    assert matmul(a.to("meta"), b.to("meta"), activation="geglu").shape == (3, 5, 3)
    with pytest.raises(RuntimeError, match="even number"):
        torch.ops.layoutgemm.gated(a.to("meta"), b.to("meta")[:, :5], "swiglu", BF16)


CHECKS = ("test_schema", "test_autograd_registration", "test_faketensor")


def test_modes_and_transforms() -> None:
    from torch.overrides import TorchFunctionMode

    class Nothing(TorchFunctionMode):
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return function(*args, **(kwargs or {}))

    a, b = torch.randn(3, 5, 8).bfloat16(), torch.randn(8, 6).bfloat16()
    want = matmul(a, b, activation="swiglu")
    with Nothing():
        assert torch.equal(matmul(a, b, activation="swiglu"), want)
    each = torch.func.vmap(lambda x: matmul(x, b, activation="swiglu"))(a)
    assert torch.equal(each, want)
    with torch.autocast("cpu", dtype=BF16):
        assert torch.equal(matmul(a.float(), b, activation="swiglu"), want)


def test_the_compiler_takes_it_whole() -> None:
    a, b = torch.randn(5, 8).bfloat16(), torch.randn(8, 6).bfloat16()
    function = torch.compile(lambda x, y: matmul(x, y, activation="swiglu") + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(function(a, b), matmul(a, b, activation="swiglu") + 1)
    x = a.clone().requires_grad_()
    function(x, b).sum().backward()
    assert x.grad is not None and x.grad.abs().max() > 0


def test_reasons_are_kept() -> None:
    why_unfused.cache_clear()
    a, w = torch.empty(128, 64).bfloat16(), torch.empty(512, 64).bfloat16()
    for _ in range(2):
        explain_matmul(a, w.T, activation="swiglu")
    assert why_unfused.cache_info().hits == 1
