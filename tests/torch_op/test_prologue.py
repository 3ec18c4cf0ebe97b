"""matmul(prologue=): on the CPU against torch, gradients, compilers, refusals, and on a GPU against float64."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as forward_ad
from torch._subclasses.fake_tensor import FakeTensorMode

from layoutgemm import Sm90Config, explain_matmul, matmul
from layoutgemm.errors import OperandError, PlanError
from layoutgemm.kernels import Prologue
from layoutgemm.torch_op.prologue.product import PrologueProduct, plan_of_product
from tests.torch_op.host_launches import bare_launches

NORM = Prologue.of(lambda x, i, k, ops, rstd, w: x * rstd * w, rstd="m", w="k:bf16")
GELU = Prologue.of(lambda x, i, k, ops: x * ops.normal(x))
RELU = Prologue.of(lambda x, i, k, ops: ops.maximum(x, 0.0))
OPERATOR = torch.ops.layoutgemm.prologue_matmul


def drawn(device: str = "cpu", m: int = 5, n: int = 8, k: int = 16, batch: int = 0) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    lead = (batch,) if batch else ()
    x, w = torch.randn(*lead, m, k, device=device).bfloat16(), torch.randn(*lead, k, n, device=device).bfloat16()
    return x, w, torch.rand(*lead, m, device=device) + 0.5, torch.rand(*lead, k, device=device).bfloat16()


def normalised(x: torch.Tensor, rstd: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
    return (x.float() * rstd[..., :, None] * gamma.float()[..., None, :]).to(x.dtype)


def test_the_product_with_bias_and_activation() -> None:
    x, w, rstd, gamma = drawn()
    bias, out = torch.linspace(-1, 1, 8), torch.empty(5, 8, dtype=torch.float32)
    given = {"rstd": rstd, "w": gamma}
    got = matmul(x, w, prologue=NORM, given=given, bias=bias, activation="relu", out=out, out_dtype=torch.float32)
    want = torch.relu(normalised(x, rstd, gamma).double() @ w.double() + bias)
    assert got is out and (got - want).abs().max() <= 1e-6 * want.abs().max()
    x, w, rstd, gamma = drawn(batch=3)
    got = matmul(x, w, prologue=NORM, given={"rstd": rstd, "w": gamma})
    assert torch.equal(got, (normalised(x, rstd, gamma).double() @ w.double()).bfloat16())


def test_gradients_are_those_of_torch() -> None:
    tensors = [t.requires_grad_() for t in drawn()]
    x, w, rstd, gamma = tensors
    matmul(x, w, prologue=NORM, given={"rstd": rstd, "w": gamma}).sum().backward()
    got = [t.grad.clone() for t in tensors if t.grad is not None]
    for t in tensors:
        t.grad = None
    (normalised(x, rstd, gamma) @ w).sum().backward()
    for mine, t in zip(got, tensors, strict=True):
        assert t.grad is not None
        assert (mine.float() - t.grad.float()).abs().max() <= 0.02 * t.grad.float().abs().max()


def test_whole_numbers_of_the_function_meet_coordinates() -> None:
    step = Prologue.of(lambda x, i, k, ops: ops.where(ops.maximum(k, 3) > 3, x * (2 + k // 2), x))
    x = torch.ones(2, 8).bfloat16()
    assert matmul(x, torch.eye(8).bfloat16(), prologue=step)[1].tolist() == [1, 1, 1, 1, 4, 4, 5, 5]


def test_coordinates_are_rows_and_columns_of_a() -> None:
    causal = Prologue.of(lambda x, i, k, ops: ops.where(k <= i, x, 0.0) + ops.float(k % 2))
    x, w, *_ = drawn()
    want = (torch.tril(x.float()) + torch.arange(16) % 2).bfloat16().double() @ w.double()
    assert torch.equal(matmul(x, w, prologue=causal), want.bfloat16())
    x.requires_grad_()
    assert torch.equal(matmul(x, w, prologue=causal).detach(), want.bfloat16())


def product(
    x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, gamma: torch.Tensor, bias: torch.Tensor | None = None
) -> torch.Tensor:
    return matmul(x, w, prologue=NORM, given={"rstd": rstd, "w": gamma}, bias=bias, activation="relu")


def compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    torch._dynamo.reset()
    return torch.compile(function, fullgraph=True, backend="aot_eager")


def slopes(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> list[torch.Tensor]:
    own = [x.detach().clone().requires_grad_() for x in tensors]
    return list(torch.autograd.grad(function(*own).float().square().sum(), own))


def near(found: list[torch.Tensor], wanted: list[torch.Tensor]) -> bool:
    pairs = zip(found, wanted, strict=True)
    return all(bool((x.float() - y.float()).abs().max() <= 0.02 * y.float().abs().max() + 1e-3) for x, y in pairs)


def test_a_compiled_graph_has_the_product_and_its_gradients() -> None:
    tensors = *drawn(), torch.linspace(-1, 1, 8)
    made = compiled(product)
    assert torch.equal(made(*tensors), product(*tensors))
    assert near(slopes(made, *tensors), slopes(product, *tensors))
    x, w, rstd, gamma, _ = tensors
    for function in (product, made):  # a gradient by the prologue's operand alone
        own = rstd.clone().requires_grad_()
        assert near([*torch.autograd.grad(function(x, w, own, gamma).float().sum(), own)], [slope_of_rows(*tensors)])


def slope_of_rows(x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, gamma: torch.Tensor, _: object) -> torch.Tensor:
    own = rstd.clone().requires_grad_()
    torch.relu(normalised(x, own, gamma) @ w).float().sum().backward()
    assert own.grad is not None
    return own.grad


def test_a_graph_is_traced_anew_for_another_prologue() -> None:
    x, w, *_ = drawn()
    made = compiled(lambda prologue, out: matmul(x, w, prologue=prologue, out=out))
    for prologue in (RELU, GELU):
        out = torch.empty(5, 8).bfloat16()
        made(prologue, out)
        assert torch.equal(out, matmul(x, w, prologue=prologue))


def test_an_exported_program_has_the_product_for_any_rows() -> None:
    class Module(torch.nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
            return product(x, w, rstd, gamma)

    rows = torch.export.Dim("m", min=2, max=64)
    made = torch.export.export(Module(), drawn(), dynamic_shapes=({0: rows}, None, {0: rows}, None)).module()
    more = drawn(m=9)
    assert torch.equal(made(*more), product(*more))


def test_fake_tensors_and_meta_tensors_have_the_shape() -> None:
    with FakeTensorMode() as mode:
        assert product(*[mode.from_tensor(x) for x in drawn()]).shape == (5, 8)
    assert product(*[x.to("meta") for x in drawn(batch=2)]).shape == (2, 5, 8)


def test_opcheck() -> None:
    x, w, rstd, gamma = drawn()
    bias = torch.linspace(-1, 1, 8)
    for each in ((x, w, rstd, gamma), [t.clone().requires_grad_() for t in (x, w, rstd, gamma)]):
        arguments = (each[0], each[1], [*each[2:]], NORM.to_json(), bias, "relu", torch.float32, "")
        assert set(torch.library.opcheck(OPERATOR.default, arguments).values()) == {"SUCCESS"}
    for text in (
        "",
        "{}",
        '{"operands": {}, "value": ["mul", ["x"]]}',
        '{"operands": {}, "value": ["add", ["x"], ["i"]]}',
    ):
        with pytest.raises(OperandError):
            OPERATOR(x, w, [], text)
    with pytest.raises(OperandError, match="given has 1 tensors, and the prologue reads rstd, w"):
        OPERATOR(x, w, [rstd], NORM.to_json())


def test_transforms_of_torch_func() -> None:
    x, w, rstd, gamma = drawn(batch=3)
    shared = w[0], gamma[0]
    biases = torch.linspace(-1, 1, 24).reshape(8, 3)

    def of(x: torch.Tensor, rstd: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        return product(x, shared[0], rstd, shared[1], bias)

    want = torch.stack([of(x[i], rstd[i], biases[:, i]) for i in range(3)])
    assert torch.equal(torch.vmap(of, in_dims=(0, 0, 1))(x, rstd, biases), want)
    assert torch.equal(torch.vmap(product)(x, w, rstd, gamma), product(x, w, rstd, gamma))
    several = torch.stack([x, -x]), w, torch.stack([rstd, rstd + 1]), gamma
    inside = torch.vmap(product, in_dims=(0, None, 0, None))(*several)
    assert torch.equal(inside[1], product(-x, w, rstd + 1, gamma))

    def loss(x: torch.Tensor, rstd: torch.Tensor) -> torch.Tensor:
        return of(x, rstd).float().square().sum()

    for found in (torch.func.grad(loss, argnums=(0, 1))(x[1], rstd[1]), [
        each[1] for each in torch.vmap(torch.func.grad(loss, argnums=(0, 1)))(x, rstd)
    ]):  # fmt: skip
        assert near([*found], slopes(of, x[1], rstd[1]))
    tangents = torch.ones_like(rstd[0])
    with forward_ad.dual_level():
        one = forward_ad.unpack_dual(of(x[0], forward_ad.make_dual(rstd[0], tangents))).tangent
    assert near([one], [torch.func.jvp(lambda rstd: of(x[0], rstd), (rstd[0],), (tangents,))[1]])
    assert bool((one != 0).any())


def test_autocast_casts_the_matrices() -> None:
    x, w, *_ = drawn()
    with torch.autocast("cpu", torch.bfloat16):
        for function in (matmul, compiled(matmul)):
            assert torch.equal(function(x.float(), w.float(), prologue=RELU), matmul(x, w, prologue=RELU))


def test_empty_products_are_zeros_and_the_finish() -> None:
    x, w, rstd, gamma = drawn()
    assert product(x[:0], w, rstd[:0], gamma).shape == (0, 8)
    bias = torch.linspace(-1, 1, 8)
    assert torch.equal(product(x[:, :0], w[:0], rstd, gamma[:0], bias), torch.relu(bias).bfloat16().expand(5, 8))


def test_a_launch_with_a_bias_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, rstd, gamma = drawn(m=64, n=64, k=64, batch=2)
    for kind in (torch.float32, torch.bfloat16):
        bias = torch.ones(64, dtype=kind)
        given = {"rstd": rstd, "w": gamma}
        plan = plan_of_product(PrologueProduct(x, w, NORM, given, bias, "relu", torch.bfloat16), None).plan
        want = {"rstd": rstd, "w": gamma, "bias": bias, "a": x, "b": w}
        numbers = {"rstd_batch": 64, "w_batch": 64, "bias_batch": 0, "m": 64, "n": 64, "k": 64}
        with bare_launches(monkeypatch) as noted:
            for _ in range(2):
                noted.arguments.clear()
                noted.allocated = 0
                product(x, w, rstd, gamma, bias)
                (made,) = noted.arguments
                values = dict(zip(plan.parameters, made, strict=False))
                assert {name: values[name] for name in want} == {name: t.data_ptr() for name, t in want.items()}
                assert {name: values[name] for name in numbers} == numbers
            assert noted.allocated == 1  # the second call is a kept one


def test_the_explanation_says_the_cost() -> None:
    x, w = torch.empty(4096, 4096).bfloat16(), torch.empty(4096, 4096).bfloat16().T
    gamma = torch.empty(8192).bfloat16()[::2]
    given = {"rstd": torch.empty(4096), "w": gamma}
    told = explain_matmul(x, w, prologue=NORM, given=given, bias=torch.empty(4096).half(), activation="relu")
    assert told.why.startswith("a's function is computed 16 times for each element, once for each tile of 256 columns;")
    assert told.copies == ("w: elements lie 2 apart, and a kernel's are contiguous, 8192 bytes",)
    assert "tile 128x256x64" in told.kernel and told.workspace == 8192
    small = Sm90Config((64, 64), consumers=1)
    told = explain_matmul(torch.empty(16, 100).bfloat16(), w[:100, :33], prologue=RELU, config=small)
    assert told.why.endswith("config= is the caller's") and len(told.copies) == 1
    assert explain_matmul(x[:0], w, prologue=RELU).launches == 0
    for name, value in (("use_fast_accum", False), ("scale_b", x)):
        with pytest.raises(OperandError, match=f"{name} and prologue"):
            explain_matmul(x, w, prologue=RELU, **{name: value})
    with pytest.raises(OperandError, match=r"a is torch\.bfloat16: scales are for float8_e4m3fn"):
        explain_matmul(x, w, prologue=RELU, scale_a=x)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"given": {"rstd": None}}, "the prologue reads rstd, w: w is missing"),
        ({"given": {"z": None}}, "z is no operand of it"),
        ({"given": {"rstd": torch.ones(4)}}, "rstd is torch.float32 of shape [4]: it takes torch.float32 of"),
        ({"given": {"w": torch.ones(16)}}, "w is torch.float32 of shape [16]: it takes torch.bfloat16"),
        ({"order": "symmetric"}, "a prologue and a symmetric order"),
        ({"given": {"rstd": 1.0}}, "rstd is a builtins.float, not a torch tensor"),
        ({"config": 3}, "config is a int"),
        ({"prologue": lambda x: x}, "a Prologue, made by Prologue.of"),
    ],
)  # fmt: skip
def test_refusals(more: dict[str, Any], message: str) -> None:
    x, w, rstd, gamma = drawn()
    given = {"rstd": rstd, "w": gamma}
    changed = dict(more.pop("given", {}))
    if changed.get("rstd", 0) is None:
        given = {"rstd": rstd}
    elif "z" in changed:
        given["z"] = rstd
    else:
        given |= changed
    options = {"prologue": NORM, "given": given, **more}
    with pytest.raises((OperandError, PlanError)) as found:
        matmul(x, w, **options)
    assert message in str(found.value)
    with pytest.raises(RuntimeError) as traced:
        compiled(lambda x, w: matmul(x, w, **options))(x, w)
    assert message in str(traced.value)


def test_a_bias_of_two_meanings() -> None:
    x, w, rstd, _ = drawn()
    scaled = Prologue.of(lambda x, i, k, ops, bias: x * bias, bias="m")
    with pytest.raises(OperandError, match="the prologue reads an operand of that name"):
        matmul(x, w, prologue=scaled, given={"bias": rstd}, bias=torch.ones(8))


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_8_bits_are_rounded_and_saturated(kind: torch.dtype) -> None:
    torch.manual_seed(0)
    x, w = torch.randn(12, 16).to(kind), torch.randn(16, 8).to(torch.float8_e4m3fn)
    rstd, gamma = 2.0 ** torch.arange(12.0), torch.full((16,), 64.0).bfloat16()
    most = torch.finfo(kind).max
    computed = (x.float() * rstd[:, None] * 64.0).clamp(-most, most).to(kind)
    assert (computed.float().abs() == most).any(), "some are beyond the type's largest"

    def product(x: torch.Tensor, w: torch.Tensor, rstd: torch.Tensor, gamma: torch.Tensor) -> torch.Tensor:
        return matmul(x, w, prologue=NORM, given={"rstd": rstd, "w": gamma}, out_dtype=torch.float32)

    want = (computed.double() @ w.double()).float()
    assert torch.equal(product(x, w, rstd, gamma), want)
    assert torch.equal(compiled(product)(x, w, rstd, gamma), want)
    told = explain_matmul(x, w, prologue=NORM, given={"rstd": rstd, "w": gamma})
    assert told.copies[0].startswith("b: the plan takes it col-major")


def test_types_that_have_none() -> None:
    x = torch.ones(16, 16)
    with pytest.raises(OperandError, match="a prologue is of bfloat16, float16, float8_e4m3fn, float8_e5m2"):
        matmul(x, x, prologue=GELU, allow_tf32=True)


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(5, 8, 16), (300, 264, 520), (1000, 1032, 72), (4096, 4096, 1024)])
@pytest.mark.parametrize("prologue", [NORM, GELU], ids=["norm", "gelu"])
def test_on_a_gpu(sizes: tuple[int, int, int], prologue: Prologue) -> None:
    m, n, k = sizes
    for batch, turned in ((0, False), (2, False), (0, True)):
        x, w, rstd, gamma = drawn("cuda", m, n, k, batch)
        if turned:
            x = x.mT.contiguous().mT
        given = {"rstd": rstd, "w": gamma} if prologue is NORM else {}
        exact = normalised(x, rstd, gamma) if given else (x.float() * torch.special.ndtr(x.float())).bfloat16()
        want = exact.double() @ w.double()
        for _ in range(2):  # the second call is a kept one
            got = matmul(x, w, prologue=prologue, given=given, out_dtype=torch.float32)
        # An approximated function may round to the neighbour: 2**-8 of a term, of K of random sign.
        bound = 2.0**-7 * (exact.double().abs() @ w.double().abs()) / k**0.5 + 1e-3
        assert bool(((got - want).abs() <= 4 * bound).all())


@pytest.mark.gpu
def test_a_bias_a_compiled_call_and_a_graph_on_a_gpu() -> None:
    tensors = drawn("cuda", 300, 264, 520)
    x, w, rstd, gamma = tensors
    for kind in (torch.float32, torch.bfloat16):
        bias = torch.linspace(-1, 1, 264, device="cuda").to(kind)
        eager = product(*tensors, bias)
        want = torch.relu(normalised(x, rstd, gamma).double() @ w.double() + bias.double())
        assert bool(((eager - want).abs() <= 2.0**-7 * want.abs() + 1e-3).all())
        assert torch.equal(torch.compile(product, fullgraph=True)(*tensors, bias), eager)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = product(*tensors, bias)
        graph.replay()
        assert torch.equal(found, eager)
    for left, right in zip(slopes(compiled(product), *tensors), slopes(product, *tensors), strict=True):
        assert near([left], [right])
