"""layoutgemm.quantize: results, refusals, torch's compiler and transforms, and the kept launch, emulated."""

from __future__ import annotations

import contextlib
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import quantize, quantize_both, scaled_matmul
from layoutgemm.emulator.api import emulate_host
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.kernels.run.emulated import host_of
from layoutgemm.torch_op import launch as launches
from layoutgemm.torch_op.emulated import memory_at
from layoutgemm.torch_op.fp8 import api, launch
from layoutgemm.torch_op.fp8.reference import quantized
from tests.torch_op.host_launches import bare_launches

needs_dsl = needs.DSL
BF16, F32, E4M3, E5M2 = torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
BLOCK, SQUARE, ROW, TENSOR = "BlockWise1x128", "BlockWise128x128", "RowWise", "TensorWise"


def normal(*shape: int, kind: Any = BF16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(kind)


def back(values: Any, scales: Any, recipe: str) -> Any:
    """values * scales, in float64."""
    high, wide = {BLOCK: (1, 128), SQUARE: (128, 128), ROW: (1, 1 << 20), TENSOR: (1 << 20,) * 2}[recipe]
    rows, columns = (torch.arange(n) // of for n, of in zip(values.shape[-2:], (high, wide)))
    return values.double() * scales.double()[..., rows, :][..., columns]


@pytest.mark.parametrize("recipe", [BLOCK, SQUARE, ROW, TENSOR])
@pytest.mark.parametrize(("kind", "bits"), [(E4M3, 4), (E5M2, 3)])
def test_it_is_within_half_a_unit_of_the_last_place(recipe: str, kind: Any, bits: int) -> None:
    x = normal(2, 150, 300)
    for powers in (False, True):
        values, scales = quantize(x, recipe, dtype=kind, power_of_two=powers)
        assert values.dtype == kind and values.shape == x.shape and values.stride() == (150 * 304, 304, 1)
        least = 2.0**-10 if kind == E4M3 else 2.0**-17
        spread = back(torch.ones_like(x), scales, recipe)
        bound = torch.maximum(2.0**-bits * x.double().abs(), least * spread)
        assert ((back(values, scales, recipe) - x.double()).abs() <= bound * (1 + 2**-20)).all()
        assert (torch.frexp(scales)[0] == 0.5).all() == powers


def test_shapes_and_strides_of_scales() -> None:
    x = normal(5, 257)
    for recipe, major, shape, strides in (
        (BLOCK, "mn", (5, 3), (1, 8)), (BLOCK, "k", (5, 3), (3, 1)), (SQUARE, "mn", (1, 3), (1, 4)),
        (ROW, "mn", (5, 1), (1, 1)), (TENSOR, "k", (1, 1), (1, 1)),
    ):  # fmt: skip
        _, scales = quantize(x, recipe, scale_major=major)
        assert (tuple(scales.shape), scales.stride()) == (shape, strides) and scales.dtype == F32
    for shape, of_scales in (((0, 200), (0, 2)), ((3, 0), (3, 0)), ((2, 0, 7), (2, 0, 1))):
        values, scales = quantize(torch.zeros(shape))
        assert values.shape == shape and scales.shape == of_scales


def test_a_transpose_is_quantised_along_the_other_dimension() -> None:
    x = normal(130, 260)
    for recipe in (BLOCK, SQUARE, ROW):
        for have, want in zip(quantize(x.mT, recipe), quantize(x.mT.contiguous(), recipe)):
            assert torch.equal(have.float(), want.float()) and have.stride() == want.stride()


def test_the_product_takes_both() -> None:
    a, b = normal(70, 200), normal(40, 200)
    (x, scale_x), (y, scale_y) = quantize(a), quantize(b, SQUARE)
    c = scaled_matmul(x, scale_x, y.mT, scale_y, out_dtype=F32)
    want = back(x, scale_x, BLOCK) @ back(y, scale_y, SQUARE).mT
    assert (c - want).abs().max() < 1e-4


@pytest.mark.parametrize(
    ("x", "options", "kind", "said"),
    [
        (torch.zeros(4, 4, dtype=torch.int32), {}, OperandError, "x is torch.int32: quantize takes float32, bfloat16"),
        (torch.zeros(4), {}, TensorError, r"x has shape \[4\]"),
        (3, {}, OperandError, "x is a builtins.int, not a torch tensor"),
        (torch.zeros(4, 4), {"dtype": BF16}, OperandError, "dtype torch.bfloat16: float8_e4m3fn or float8_e5m2"),
        (torch.zeros(4, 4), {"recipe": "BlockWise1x32"}, OperandError, "recipe BlockWise1x32: scales of 32"),
        (torch.zeros(4, 4), {"power_of_two": 1}, OperandError, "power_of_two = 1: True or False"),
        (torch.zeros(4, 4), {"scale_major": "m"}, OperandError, "scale_major 'm'"),
        (torch.zeros(4, 4).to_sparse(), {}, OperandError, "x is torch.sparse_coo"),
        (torch.zeros(4, 4, requires_grad=True), {}, TensorError, "x requires grad, and quantize has no gradient"),
    ],
)
def test_refusals_name_the_argument(x: Any, options: Any, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        quantize(x, **options)
    if isinstance(x, torch.Tensor) and x.layout == torch.strided:
        torch._dynamo.reset()
        with pytest.raises(Exception, match=said):
            torch.compile(lambda x: quantize(x, **options), backend="eager", fullgraph=True)(x)


@pytest.mark.parametrize("function", [quantize, quantize_both])
def test_refusals_stay_once_a_launch_is_kept(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key takes 1 for True."""
    x = normal(40, 256)
    with bare_launches(monkeypatch) as noted:
        function(x, power_of_two=True)
        for given in (1, 1.0, np.True_):
            with pytest.raises(OperandError, match="power_of_two = "):
                function(x, power_of_two=given)
        assert len(noted.arguments) == 1


def test_compiled_mapped_and_of_fake_tensors() -> None:
    x = normal(3, 20, 200)
    want = quantize(x)
    compiled = torch.compile(lambda x: quantize(x), backend="aot_eager", fullgraph=True)
    mapped = torch.vmap(lambda x: quantize(x.mT))(x.mT)
    for found in (compiled(x), mapped):
        for have, right in zip(found, want):
            assert torch.equal(have.float(), right.float()) and have.dtype == right.dtype
    with torch._subclasses.FakeTensorMode():
        for have, right in zip(quantize(torch.empty(3, 20, 200)), want):
            assert (have.shape, have.stride(), have.dtype) == (right.shape, right.stride(), right.dtype)
    torch.library.opcheck(torch.ops.layoutgemm.quantize, (x, SQUARE), {"dtype": E5M2})


def equal(found: Any, wanted: Any) -> bool:
    """True for pairs of the same bits, types and strides."""
    return all(
        torch.equal(have.float(), right.float()) and (have.dtype, have.stride()) == (right.dtype, right.stride())
        for mine, other in zip(found, wanted, strict=True)
        for have, right in zip(mine, other, strict=True)
    )


def test_both_ways_are_quantize_of_each() -> None:
    """On the CPU, under the compiler, vmap and FakeTensor."""
    x = normal(3, 130, 200)
    want = quantize(x), quantize(x.mT)
    compiled = torch.compile(lambda x: quantize_both(x), backend="aot_eager", fullgraph=True)
    for found in (quantize_both(x), compiled(x), torch.vmap(quantize_both)(x)):
        assert equal(found, want)
    options = {"dtype": E5M2, "power_of_two": True, "scale_major": "k"}
    assert equal(quantize_both(x[0], **options), (quantize(x[0], **options), quantize(x[0].mT, **options)))
    with torch._subclasses.FakeTensorMode():
        for found, right in zip(quantize_both(torch.empty(3, 130, 200)), want):
            assert [(t.shape, t.stride(), t.dtype) for t in found] == [(t.shape, t.stride(), t.dtype) for t in right]
    torch.library.opcheck(torch.ops.layoutgemm.quantize_both, (x[0],), {"dtype": E5M2})
    for bad, said in ((x[0, 0], "x has shape"), (x.clone().requires_grad_(), "requires grad")):
        with pytest.raises(TensorError, match=said):
            quantize_both(bad)
    with pytest.raises(OperandError, match="scale_major"):
        quantize_both(x, scale_major="up")


# ------------------------------------------------------------------------------------------------------------ launches


class Emulated:
    """CPU tensors are taken for a GPU's; launches are emulated. `held`: all tensors that a launch may reach."""

    def __init__(self, patch: Any) -> None:
        self.held: list[Any] = []
        self.launched = 0
        patch.setattr(launch, "compiled", lambda plan: SimpleNamespace(launcher=self.launcher(plan)))
        patch.setattr(launch, "on_gpu", lambda index: True)
        patch.setattr(launch, "target", lambda index, config=None: ("sm_90a", 0))
        for module in (launch, launches):
            patch.setattr(module, "empty_on_gpu", self.empty)
            patch.setattr(module, "raw_stream", lambda index: 77)
        patch.setattr(launches, "THREAD", SimpleNamespace(bound=True))
        patch.setattr(launches, "current_device", lambda: -1)
        patch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())

    def read(self, *tensors: Any) -> None:
        """Tensors that the next launch reads."""
        self.held = [*tensors]

    def empty(self, shape: Any, strides: Any, kind: Any) -> Any:
        self.held.append(torch.empty_strided(shape, strides, dtype=kind))
        return self.held[-1]

    def launcher(self, plan: Any) -> Any:
        def block(arguments: Any) -> Any:
            values = [*arguments, 0, 0]
            return SimpleNamespace(values=values, pointer=values)

        def entry(values: list[int]) -> None:
            self.launched += 1
            held = [x.view(torch.uint8) if x.itemsize == 1 else x for x in self.held]
            given = [
                memory_at(value, held) if kind == "address" else value
                for value, kind in zip(values, plan.parameters.values())
            ]
            emulate_host(host_of(plan.compile()), tuple(given), progress=False).raise_for_findings()

        return SimpleNamespace(load=lambda device: None, block=block, entry=entry)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Any:
    launch.READY.clear()
    yield lambda: Emulated(monkeypatch)
    launch.READY.clear()


@needs_dsl
def test_a_launch_reads_x_where_it_lies(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows or columns, a pitch, matrices apart, odd addresses, and copies."""
    whole = normal(2, 40, 300)
    cases = (
        (whole, BLOCK, 0), (whole[0, :, 1:257], BLOCK, 0), (whole[:, :, 8:200].mT, BLOCK, 0),
        (whole[0, ::2, ::2], BLOCK, 1), (whole[0].mT, ROW, 1), (whole[1, 3:4, :131], SQUARE, 0),
    )  # fmt: skip
    wanted = [quantize(x, recipe, power_of_two=True) for x, recipe, _ in cases]
    gpu, made = emulated(), []
    real = torch.Tensor.contiguous

    def contiguous(x: Any) -> Any:
        made.append(real(x))
        gpu.held.append(made[-1])
        return made[-1]

    monkeypatch.setattr(torch.Tensor, "contiguous", contiguous)
    for (x, recipe, copies), want in zip(cases, wanted):
        gpu.read(x)
        made.clear()
        found = quantize(x, recipe, power_of_two=True)
        assert len(made) == copies
        for have, right in zip(found, want):
            assert torch.equal(have.float(), right.float()) and have.stride() == right.stride()
    assert gpu.launched == len(cases)


@needs_dsl
def test_both_ways_are_one_launch(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contiguous rows or columns are read in place; the second time without checks."""
    x = normal(2, 24, 136)
    cases = x, x[1, :, 8:].mT
    wanted = [(quantize(t), quantize(t.mT)) for t in cases]
    gpu = emulated()
    for turn in range(2):
        for t, want in zip(cases, wanted, strict=True):
            gpu.read(t)
            assert equal(quantize_both(t), want)
        assert gpu.launched == 2 * (turn + 1)
        monkeypatch.setattr(api, "check_quantized", None)


@needs_dsl
def test_a_second_call_launches_and_checks_nothing(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, x = emulated(), normal(40, 256)
    gpu.read(x)
    first = quantize(x)
    monkeypatch.setattr(api, "check_quantized", None)
    y = -x
    gpu.read(y)
    values, scales = quantize(y)
    assert gpu.launched == 2 and len(gpu.held) == 3
    assert torch.equal(values.float(), -first[0].float()) and torch.equal(scales, first[1])


@needs_dsl
def test_results_lie_in_memory_that_is_given(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """One launch writes where strides and addresses are those of new results; else results are copied."""
    gpu, x = emulated(), normal(40, 200)
    values, scales = quantized(x, BLOCK, E4M3, False)
    pitched = torch.zeros(40 * 208 + 1, dtype=E4M3)
    for turn, out in enumerate((None, pitched[:-1].view(40, 208)[:, :200], pitched[1:].view(40, 208)[:, :200])):
        of_c = torch.empty_strided((40, 2), (1, 40))
        gpu.read(x, of_c, *[t for t in (out,) if t is not None])
        found = launch.computed_into(x, launch.AS_QUANTIZE, out, of_c)
        assert out is None or found is out
        assert torch.equal(found.float(), values.float()) and torch.equal(of_c, scales)
        assert gpu.launched == turn + 1
        if turn == 0:
            part = launch._part
            monkeypatch.setattr(launch, "_part", None)
        else:
            monkeypatch.setattr(launch, "_part", part)
    wide = torch.zeros(40, 2)
    gpu.read(x)
    launch.computed_into(x, launch.AS_QUANTIZE, None, wide)
    assert torch.equal(wide, scales)


@needs_dsl
def test_a_kept_launch_is_not_taken_for_other_calls(emulated: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address that its loads do not reach; a negated tensor; one whose derivative is recorded."""
    room = normal(1, 40 * 256 + 1).flatten()
    x, off = room[:-1].view(40, 256), room[1:].view(40, 256)
    want = quantize(off), quantize(-x)
    gpu = emulated()
    gpu.read(room)
    quantize(x)
    real = torch.Tensor.resolve_neg

    def resolved(y: Any) -> Any:
        gpu.held.append(real(y))
        return gpu.held[-1]

    monkeypatch.setattr(torch.Tensor, "resolve_neg", resolved)
    for y, right in zip((off, torch._neg_view(x)), want):
        for have, one in zip(quantize(y), right):
            assert torch.equal(have.float(), one.float())
    with pytest.raises(TensorError, match="x requires grad"):
        quantize(x.detach().requires_grad_())
