"""Operands that are no tensors, empty, sparse or scalars, and torch.func: each right, or refused by name."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import (
    QuantizedFormat,
    QuantizedWeight,
    explain_matmul,
    fp8_matmul,
    grouped_matmul,
    matmul,
    quantized_matmul,
    scaled_matmul,
)
from layoutgemm.errors import LayoutError, OperandError, TensorError
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce
from layoutgemm.torch_op.api import linear
from layoutgemm.torch_op.quantized import QuantizedExperts, quantized_grouped_matmul
from tests.torch_op.host_launches import bare_launches, host_launches

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


def normal(*shape: int, kind: Any = BF16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(kind)


OFFS, ROWS = torch.tensor([8, 8, 24]), torch.arange(24) % 16
WEIGHT = QuantizedWeight.quantize(normal(48, 64, kind=torch.float32), QuantizedFormat("int4", 32))
QUANTISED = {"out_dtype": E4M3, "out_recipe": "BlockWise1x128"}
EIGHT = {"a": normal(24, 64, kind=E4M3), "b": normal(32, 64, kind=E4M3).T}
SCALES = {"scale_a": torch.ones(24, 1), "scale_b": torch.ones(1, 1)}
CALLS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "matmul": (matmul, {"a": normal(24, 64), "b": normal(64, 32)}),
    "a gate": (lambda **x: matmul(**x, activation="swiglu"), {"a": normal(24, 64), "b": normal(64, 32)}),
    "scaled": (scaled_matmul, {**EIGHT, **SCALES}),
    "scaled, quantised": (lambda **x: scaled_matmul(**x, **QUANTISED), {**EIGHT, **SCALES}),
    "groups": (grouped_matmul, {"a": normal(24, 64), "b": normal(3, 64, 32), "offs": OFFS}),
    "groups along K": (grouped_matmul, {"a": normal(16, 24), "b": normal(24, 32), "offs": OFFS}),
    "groups of columns": (grouped_matmul, {"a": normal(3, 16, 64), "b": normal(64, 24), "offs": OFFS}),
    "rows": (matmul, {"a": normal(16, 64), "b": normal(64, 32), "rows": ROWS}),
    "rows scattered": (matmul, {"a": normal(24, 64), "b": normal(64, 32), "out_rows": torch.arange(24),
                                "row_weights": torch.ones(24)}),
    "rows of gated groups": (lambda **x: grouped_matmul(**x, activation="swiglu"),
                             {"a": normal(16, 64), "b": normal(3, 64, 32), "rows": ROWS, "offs": OFFS}),
    "packed": (lambda x: quantized_matmul(x, WEIGHT), {"x": normal(24, 64)}),
    "fp8": (fp8_matmul, {"a": normal(24, 128), "b": normal(128, 128)}),
}  # fmt: skip
ODD: dict[str, Callable[[Any], Any]] = {
    "None": lambda x: None, "a list": lambda x: [1.0], "a scalar": lambda x: x.flatten()[0],
    "sparse": lambda x: x.float().to_sparse(), "complex": lambda x: x.float().to(torch.complex64),
    "float64": lambda x: x.double(), "meta": lambda x: x.to("meta"), "no first": lambda x: x[:0],
    "no last": lambda x: x[..., :0], "a dimension more": lambda x: x[None],
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_odd_operands_are_computed_or_refused_by_name(name: str) -> None:
    """Optional operands may be absent, and a batch is one: whatever is refused is refused by a LayoutError."""
    call, given = CALLS[name]
    refused = 0
    for which, x in given.items():
        for change in ODD.values():
            try:
                call(**{**given, which: change(x)})
            except LayoutError:
                refused += 1
    assert refused >= 5 * len(given)


@pytest.mark.parametrize("name", CALLS)
def test_strides_and_addresses_do_not_change_a_result(name: str) -> None:
    call, given = CALLS[name]
    want = call(**given)
    for which, x in given.items():
        turned = x.mT.contiguous().mT if x.ndim > 1 else x
        flat = torch.zeros(x.numel() + 4, dtype=x.dtype)
        elsewhere = flat[3 if x.dtype.itemsize > 1 else 4 : x.numel() + (3 if x.dtype.itemsize > 1 else 4)].view(
            x.shape
        )
        elsewhere.copy_(x)
        for other in (turned, elsewhere):
            got = call(**{**given, which: other})
            for one, two in zip(*[y if isinstance(y, tuple) else (y,) for y in (got, want)], strict=True):
                assert torch.equal(one.float(), two.float()), which


@pytest.mark.parametrize("name", [name for name, (_, given) in CALLS.items() if "scale_a" not in given])
def test_several_gradients_at_once_are_those_one_by_one(name: str) -> None:
    """`is_grads_batched=True` maps the backward pass by an older vmap than torch.func's."""
    call, given = CALLS[name]
    own = {which: x.clone().requires_grad_(x.is_floating_point() and x.ndim > 1) for which, x in given.items()}
    leaves = [x for x in own.values() if x.requires_grad]
    for some in ({}, {"a": normal(2, 24, 64).requires_grad_()} if name == "matmul" else {}):
        c = call(**{**own, **some})
        grads = normal(3, *c.shape, kind=c.dtype)
        wanted = [*leaves[1:], *some.values()] if some else leaves
        at_once = torch.autograd.grad(c, wanted, grads, is_grads_batched=True, retain_graph=True)
        each = [torch.autograd.grad(c, wanted, grad, retain_graph=True) for grad in grads]
        assert all(torch.equal(x, torch.stack(y)) for x, y in zip(at_once, zip(*each), strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_operands_with_the_negative_bit_are_read_as_what_they_stand_for(name: str) -> None:
    call, given = CALLS[name]
    want = call(**given)
    for which, x in given.items():
        if x.dtype.itemsize > 1:  # torch negates no float8
            got = call(**{**given, which: torch._neg_view(-x)})
            assert torch.equal(*[(y[0] if isinstance(y, tuple) else y).float() for y in (got, want)]), which


# M * N * K of the calls above where it is not 24 * 32 * 64.
MULTIPLIED = {"groups along K": 16 * 32 * 24, "groups of columns": 16 * 24 * 64, "packed": 24 * 48 * 64,
              "fp8": 24 * 128 * 128}  # fmt: skip


def freed(x: Any, begin: int = 0) -> Any:
    """Such a tensor whose storage was freed, as a sharded parameter's is between its uses; it begins at an element."""
    span = sum((size - 1) * step for size, step in zip(x.shape, x.stride())) + 1
    made = torch.empty(begin + span, dtype=x.dtype).as_strided(x.shape, x.stride(), begin)
    made.untyped_storage().resize_(0)
    return made


class Named(torch.Tensor):
    """A subclass that changes nothing."""


@pytest.mark.parametrize("name", CALLS)
def test_tensors_without_memory_and_of_subclasses(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By first and by kept calls, on the CPU and as if on a GPU: no launch reads address 0."""
    call, given = CALLS[name]
    for place in ("cpu", "gpu"):
        with bare_launches(monkeypatch) if place == "gpu" else contextlib.nullcontext() as noted:
            for _ in range(3):
                call(**given)
                for operand, x in given.items():
                    for begin in (0, 128):  # its address is then no 0, but the bytes before it
                        with pytest.raises(TensorError, match=f"its data is not allocated yet: {operand}, of shape"):
                            call(**{**given, operand: freed(x, begin)})
            for operand, x in given.items():
                found = call(**{**given, operand: x.as_subclass(Named)})
                assert place == "gpu" or close(found, call(**given))
                if x.dtype in (torch.int64, torch.int32):
                    continue
                zeros = torch._efficientzerotensor(x.shape, dtype=x.dtype)
                count = 0 if noted is None else len(noted.arguments)
                found = call(**{**given, operand: zeros})
                assert place == "gpu" or close(found, call(**{**given, operand: torch.zeros_like(x)}))
                launched = [] if noted is None else noted.arguments[count:]
                assert not [at for each in launched for at in each[:3] if at == 0]


def close(found: Any, wanted: Any) -> bool:
    """True if results, one or several, are equal."""
    pairs = zip(found, wanted, strict=True) if isinstance(found, tuple) else [(found, wanted)]
    return all(torch.equal(x.as_subclass(torch.Tensor).float(), y.float()) for x, y in pairs)


def test_gradients_of_a_freed_weight_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its storage went between the passes, whose launches are kept."""
    x, weight = normal(24, 64).requires_grad_(), normal(64, 32).requires_grad_()
    with host_launches(monkeypatch):
        for _ in range(3):
            matmul(x, weight).sum().backward()
        c = matmul(x, weight)
        weight.untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="of size 0"):  # torch's, of the weight's view
            c.sum().backward()


def test_a_negative_bit_of_a_type_that_torch_does_not_negate_is_refused() -> None:
    for operand in ("a", "b"):
        with pytest.raises(OperandError, match=f"{operand} is torch.float8_e4m3fn with torch's negative bit"):
            scaled_matmul(**{**EIGHT, **SCALES, operand: torch._neg_view(EIGHT[operand])})


@pytest.mark.parametrize("name", CALLS)
def test_torch_counts_a_product_s_operations(name: str) -> None:
    call, given = CALLS[name]
    with FlopCounterMode(display=False) as counter:
        call(**given)
    assert counter.get_total_flops() == 2 * MULTIPLIED.get(name, 24 * 32 * 64)


def test_refusals_of_row_indices_and_scalars_name_them() -> None:
    a, b = normal(16, 64), normal(64, 32)
    for given, text in (
        ({"a": None}, "a is a .*NoneType"), ({"b": [1]}, "b is a .*list"),
        ({"rows": ROWS[0]}, r"rows is torch.int64 of shape \[\]"),
    ):  # fmt: skip
        with pytest.raises(OperandError, match=text):
            matmul(**{"a": a, "b": b, "rows": ROWS, **given})
    with pytest.raises(OperandError, match=r"x is .*sparse"):
        quantized_matmul(normal(24, 64).to_sparse(), WEIGHT)


def test_packed_products_under_torch_func_are_those_of_autograd() -> None:
    x, bias = normal(24, 64), torch.randn(48)

    def loss(x: Any) -> Any:
        return quantized_matmul(x, WEIGHT, bias=bias, activation="silu").float().square().sum()

    leaf = x.clone().requires_grad_()
    loss(leaf).backward()
    assert torch.equal(torch.func.grad(loss)(x), leaf.grad) and leaf.grad.any()
    rows = torch.vmap(lambda x: quantized_matmul(x, WEIGHT))(x)
    assert torch.equal(rows, quantized_matmul(x, WEIGHT))
    each = torch.vmap(torch.func.grad(loss))(x.view(24, 1, 64)).view(24, 64)
    assert torch.allclose(each.float(), leaf.grad.float(), rtol=0.02, atol=0.02)
    with pytest.raises(OperandError, match=r"quantized_matmul is differentiated by torch.func"):
        facts = (WEIGHT.format.code, WEIGHT.format.group, WEIGHT.format.zeros, 48, 64)
        torch.func.grad(
            lambda x: torch.ops.layoutgemm.quantized_matmul(x, WEIGHT.units, WEIGHT.scales, None, None, *facts).sum()
        )(x.float().bfloat16())


def test_fp8_matmul_refuses_other_derivatives_by_name() -> None:
    a, b = normal(24, 128), normal(128, 128)
    for run in (
        lambda: torch.func.grad(lambda x: fp8_matmul(x, b).float().sum())(a),
        lambda: torch.vmap(lambda x: fp8_matmul(x, b))(torch.stack([a, a])),
    ):
        with pytest.raises(OperandError, match=r"fp8_matmul under torch.func"):
            run()
    with torch.autograd.forward_ad.dual_level(), pytest.raises(TensorError, match="a has a tangent"):
        fp8_matmul(torch.autograd.forward_ad.make_dual(a, a), b)


# ------------------------------------------------------------------------------------------- arguments of other kinds

LINEAR = {"x": normal(24, 64), "weight": normal(32, 64), "bias": normal(32)}
EIGHT_WEIGHT = QuantizedWeight.quantize(normal(48, 64, kind=torch.float32), QuantizedFormat("int4", 32), E4M3)
KINDS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    **CALLS,
    "a linear layer": (linear, LINEAR),
    "packed, finished": (
        lambda x, bias: quantized_matmul(x, WEIGHT, bias=bias),
        {"x": normal(24, 64), "bias": normal(48)},
    ),
    "packed, of float8": (
        lambda x, scale_x: quantized_matmul(x, EIGHT_WEIGHT, scale_x=scale_x),
        {"x": EIGHT["a"], "scale_x": torch.ones(24)},
    ),
    "packed experts": (
        lambda x, scale_x: quantized_grouped_matmul(
            x, QuantizedExperts.of([EIGHT_WEIGHT] * 2), torch.tensor([0, 8, 24]), scale_x=scale_x
        ),
        {"x": EIGHT["a"], "scale_x": torch.ones(24)},
    ),
}  # fmt: skip


class Subclass(torch.Tensor):
    """A subclass without a meaning of its own: torch's dispatcher sees the call."""


@pytest.mark.parametrize("name", KINDS)
def test_what_is_no_tensor_is_refused_by_name_on_every_way(name: str) -> None:
    """A number, a text or a module beside plain tensors, recorded ones and subclasses."""
    call, given = KINDS[name]
    for which in given:
        for odd in (1.0, True, "text", [1.0], {}, torch.nn.Identity()):
            others = {key: x for key, x in given.items() if key != which}
            recorded = {key: x.clone().requires_grad_() if x.dtype == BF16 else x for key, x in others.items()}
            for way in (others, recorded, {key: x.as_subclass(Subclass) for key, x in others.items()}):
                with pytest.raises(LayoutError):
                    call(**way, **{which: odd})


@pytest.mark.parametrize("name", KINDS)
def test_torch_s_default_type_changes_nothing(name: str) -> None:
    call, given = KINDS[name]
    want = call(**given)
    torch.set_default_dtype(torch.float64)
    try:
        got = call(**given)
    finally:
        torch.set_default_dtype(torch.float32)
    for one, two in zip(*[y if isinstance(y, tuple) else (y,) for y in (got, want)], strict=True):
        assert one.dtype == two.dtype and torch.equal(one.float(), two.float())


@pytest.mark.parametrize("weight", [normal(64), normal(32, 64)[0, 0], None, [1.0]])
def test_a_weight_that_is_no_matrix_is_refused(weight: Any) -> None:
    with pytest.raises(OperandError, match="weight"):
        linear(LINEAR["x"], weight)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda a, b: matmul(a, b, order=[1]), r"order = \[1\]: a Schedule, a name"),
        (lambda a, b: explain_matmul(a, b, order=[1]), r"order = \[1\]: a Schedule, a name"),
        (lambda a, b: explain_matmul(a, b, triangles=3), "triangles is a int: a Triangles"),
        (lambda a, b: fp8_matmul(a, b, out_dtype={}), "out_dtype"),
        (lambda a, b: fp8_matmul(a, b, out_dtype=torch.zeros(2)), "out_dtype"),
        (lambda a, b: fp8_matmul(a, b, recipe_a=None), "recipe_a None and recipe_b BlockWise128x128: both of"),
        (lambda a, b: fp8_matmul(a, b, recipe_b="rowwize"), "recipe_b 'rowwize': do you mean 'RowWise'[?] known"),
        (lambda a, b: matmul(a, b, activation="rleu"), "do you mean 'relu'[?] known are 'relu', "),
        (lambda a, b: quantized_matmul(a, WEIGHT, activation=["relu"]), r"activation \['relu'\]: known are"),
        (lambda a, b: QuantizedWeight.quantize(b, WEIGHT.format, ["bf16"]), r"activations are \['bf16'\]"),
        (lambda a, b: matmul(a, b, epilogue=Epilogue(Bias(), sums="1")), "sums of Epilogue must be an integer"),
        (lambda a, b: matmul(a, b, epilogue=Epilogue(Bias(), stores_c="no")), "stores_c of Epilogue must be True or"),
        (lambda a, b: matmul(a, b, epilogue=Epilogue(RowReduce(ordered="no"))), "ordered must be True or False"),
    ],
)
def test_options_of_foreign_kinds_are_refused_by_name(call: Callable[[Any, Any], Any], said: str) -> None:
    with pytest.raises(LayoutError, match=said):
        call(normal(32, 64), normal(64, 48))
