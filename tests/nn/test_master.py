"""layoutgemm.nn.MasterLinear and MasterGroups: training in fp8 by recipe, alone and in a model."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import fp8_grouped_matmul, quantize
from layoutgemm.errors import OperandError, TensorError
from layoutgemm.nn import ExpertsMLP, MasterGroups, MasterLinear, kept_weights, swap_linears
from layoutgemm.torch_op.reference import rounded
from layoutgemm.torch_op.scaled_grouped import training
from tests.torch_op.door_launches import every_door

BF16, F32 = torch.bfloat16, torch.float32
BLOCK, SQUARE = "BlockWise1x128", "BlockWise128x128"


def normal(*shape: int, dtype: Any = BF16, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape) + seed)).to(dtype)


def spread(values: Any, scales: Any, rows: int) -> Any:
    wide = scales.double().repeat_interleave(rows, 0)[: values.shape[0]].repeat_interleave(128, 1)
    return values.double() * wide[:, : values.shape[1]]


def test_each_pass_has_its_recipe(monkeypatch: pytest.MonkeyPatch) -> None:
    """1x128 by 128x128 forward and for x, 1x128 by 1x128 for the weights; each product of what is quantised."""
    seen: list[Any] = []
    real = training.scaled_matmul
    monkeypatch.setattr(
        training, "scaled_matmul", lambda *x, **o: seen.append((o["recipe_a"], o["recipe_b"])) or real(*x, **o)
    )
    layer = MasterLinear(272, 144, dtype=BF16)
    x = normal(3, 50, 272).requires_grad_()
    grad = normal(3, 50, 144, seed=1)
    c = layer(x)
    c.backward(grad)
    assert seen == [(BLOCK, SQUARE), (BLOCK, SQUARE), (BLOCK, BLOCK)]
    with torch.no_grad():
        rows, of_c = x.flatten(0, 1), grad.flatten(0, 1)
        want = spread(*quantize(rows, BLOCK), 1) @ spread(*quantize(layer.weight, SQUARE), 128).mT + layer.bias.double()
        assert torch.equal(c.flatten(0, 1), rounded(want, BF16))
        of_weight = spread(*quantize(of_c.mT, BLOCK), 1) @ spread(*quantize(rows.mT, BLOCK), 1).mT
        assert torch.equal(layer.weight.grad, rounded(of_weight, BF16))


def test_a_merged_adapter_is_rounded_with_the_weight() -> None:
    """An update three times the weight: most of the product before the merge is the adapter's, in bfloat16."""
    layer, x = MasterLinear(128, 256, bias=False, dtype=BF16), normal(64, 128)
    down, up = normal(8, 128) * 0.04, normal(256, 8) * 0.5
    layer.weight.data = normal(256, 128) * 0.02
    merged = MasterLinear(128, 256, bias=False, dtype=BF16)
    merged.weight.data = layer.weight.data + up @ down
    with torch.no_grad():
        want = x.double() @ (layer.weight.double() + up.double() @ down.double()).mT
        before, after = (layer(x) + x @ down.mT @ up.mT).double(), merged(x).double()
        rounded_to_fp8 = spread(*quantize(x, BLOCK), 1) @ spread(*quantize(merged.weight, SQUARE), 128).mT
    off = [float((y - want).norm() / want.norm()) for y in (before, after)]
    assert 0.01 < off[0] < 0.02 and 0.03 < off[1] < 0.05, off
    assert torch.equal(merged(x), rounded(rounded_to_fp8, BF16))


def model(kind: Any) -> Any:
    torch.manual_seed(0)
    made = torch.nn.Sequential(torch.nn.Linear(64, 144), torch.nn.GELU(), torch.nn.Linear(144, 16))
    return made.to(kind)


@pytest.mark.parametrize("kind", [BF16, F32])
def test_a_swapped_model_trains_as_its_original(kind: Any) -> None:
    """The loss falls along with the original's; parameters and state dict are its own."""
    theirs = model(kind)
    ours = copy.deepcopy(theirs)
    before = list(ours.parameters())
    swaps = swap_linears(ours, weights="master")
    assert [each.by for each in swaps] == ["MasterLinear"] * 2
    assert all(x is y for x, y in zip(ours.parameters(), before, strict=True))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    x, target = normal(48, 64, dtype=kind), normal(48, 16, dtype=kind, seed=1)
    losses: list[list[float]] = []
    for each in (ours, theirs):
        optimizer = torch.optim.SGD(each.parameters(), lr=1.0)
        losses.append([])
        for _ in range(5):
            loss = (each(x) - target).float().square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[-1].append(float(loss))
    assert losses[1][-1] < 0.97 * losses[1][0]
    fallen = [curve[0] - curve[-1] for curve in losses]
    assert abs(fallen[0] - fallen[1]) < 0.1 * fallen[1]
    theirs.load_state_dict(ours.state_dict())


def test_vectors_activations_autocast_copies_and_compilation() -> None:
    layer = MasterLinear(32, 16, activation="silu", dtype=BF16)
    x = normal(4, 32)
    plain = MasterLinear(32, 16, dtype=BF16)
    plain.weight, plain.bias = layer.weight, layer.bias
    want = torch.nn.functional.silu(plain(x).float())
    assert layer(x).dtype == BF16 and torch.allclose(layer(x).float(), want, atol=2e-2)
    assert layer(x[0]).shape == (16,)
    for other in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert torch.equal(other(x), layer(x))
    wide = MasterLinear(32, 16)
    with torch.autocast("cpu", BF16):
        assert wide(x.float()).dtype == BF16
    step = torch.compile(lambda x: layer(x).square().sum(), fullgraph=True, backend="aot_eager")
    got, eager = (torch.autograd.grad(f(x), layer.weight)[0] for f in (step, lambda x: layer(x).square().sum()))
    assert torch.equal(got, eager)
    assert "BlockWise1x128 x BlockWise128x128, activation='silu'" in repr(layer)


def test_tied_weights_stay_tied() -> None:
    tied = model(BF16)
    tied.append(torch.nn.Linear(144, 16, bias=False, dtype=BF16))
    tied[3].weight = tied[2].weight
    swap_linears(tied, weights="master")
    assert tied[3].weight is tied[2].weight


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: MasterLinear(8, 7, activation="swiglu"), "b has 7 columns: a gated product takes gate and up"),
        (lambda: MasterLinear(8, 8, recipe_a="RowWise"), "recipe_a RowWise and recipe_b BlockWise128x128: both"),
        (lambda: MasterLinear(8, 8, recipe_b="BlockWise1x32"), "compute capability 10.0"),
        (lambda: swap_linears(model(BF16), weights="fp4"), "weights 'fp4': 'own', 'fp8', 'master' or a Quant"),
    ],
)
def test_refusals(call: Any, text: str) -> None:
    with pytest.raises((OperandError, TensorError), match=text):
        call()


@pytest.mark.parametrize("recipes", [(BLOCK, SQUARE), ("RowWise", "RowWise")])
def test_a_gate_is_in_the_product_without_derivatives(recipes: tuple[str, str]) -> None:
    """Values of both ways, and gradients against those of torch's gate."""
    layer = MasterLinear(272, 144, dtype=BF16, activation="swiglu", recipe_a=recipes[0], recipe_b=recipes[1])
    plain = MasterLinear(272, 144, dtype=BF16, recipe_a=recipes[0], recipe_b=recipes[1])
    plain.weight, plain.bias = layer.weight, layer.bias
    x = normal(3, 5, 272)
    with torch.no_grad():
        got = layer(x)
        assert got.dtype == BF16 and torch.equal(layer(x[0, 0]), got[0, 0])
    leaf = x.clone().requires_grad_()
    again = layer(leaf)
    assert got.shape == again.shape == (3, 5, 72)
    assert float((again - got).detach().abs().max()) <= 2.0**-6 * float(got.abs().max())
    found = torch.autograd.grad(again.sum(), (leaf, layer.weight))
    gate, up = plain(leaf).float().chunk(2, -1)
    want = torch.autograd.grad((torch.nn.functional.silu(gate) * up).sum(), (leaf, layer.weight))
    for mine, theirs in zip(found, want, strict=True):
        assert float((mine - theirs).abs().max()) <= 0.1 * float(theirs.abs().max())


@pytest.mark.gpu
@pytest.mark.parametrize("kind", [BF16, F32])
def test_a_swapped_model_trains_on_a_gpu(kind: Any) -> None:
    """Gradients within the recipe's bound of the original's."""
    theirs = model(kind).cuda()
    ours = copy.deepcopy(theirs)
    swap_linears(ours, weights="master")
    x = normal(300, 64, dtype=kind).cuda()
    for each in (ours, theirs):
        each(x).float().square().sum().backward()
    for mine, want in zip(ours.parameters(), theirs.parameters(), strict=True):
        off = (mine.grad.double() - want.grad.double()).norm() / want.grad.double().norm()
        assert mine.grad.dtype == kind and float(off) < 2**-3


def test_experts_train_in_fp8() -> None:
    """ExpertsMLP of master weights, and all gradients, are near float32's."""
    torch.manual_seed(0)
    first, down = MasterGroups(3, 128, 256, dtype=BF16), MasterGroups(3, 128, 128, dtype=BF16)
    mlp = ExpertsMLP(first, down, lambda x: torch.nn.functional.silu(x[:, :128]) * x[:, 128:])
    x, index, factors = torch.randn(40, 128).to(BF16), torch.randint(0, 3, (40, 2)), torch.rand(40, 2)
    leaf, other = (x.clone().requires_grad_() for _ in range(2))
    mlp(leaf, index, factors).sum().backward()
    wide = [w.detach().float().requires_grad_() for w in (first.weight, down.weight)]
    hidden = torch.einsum("rk,rsnk->rsn", other.float(), wide[0][index])
    hidden = torch.nn.functional.silu(hidden[..., :128]) * hidden[..., 128:]
    (torch.einsum("rsk,rsnk->rsn", hidden, wide[1][index]) * factors[..., None]).sum().backward()
    for got, want in ((leaf.grad, other.grad), (first.weight.grad, wide[0].grad), (down.weight.grad, wide[1].grad)):
        assert got.dtype == BF16 and float((got.float() - want.float()).norm() / want.float().norm()) < 2**-3
    with pytest.raises(OperandError, match="down: multiple = 128, and an expert's rows begin anywhere"):
        ExpertsMLP(first, MasterGroups(3, 128, 128, multiple=128), torch.nn.ReLU())
    with pytest.raises(OperandError, match="experts"):
        MasterGroups(-1, 2, 2)


class _Rounded(torch.autograd.Function):
    """An emulation in float64: x @ w[e].T of operands that are rounded by the recipe."""

    @staticmethod
    def forward(ctx: Any, x: Any, w: Any, index: Any) -> Any:
        ctx.save_for_backward(x, w, index)
        return torch.einsum("rk,rnk->rn", as_stored(x, 1), as_stored(w, 128)[index])

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        x, w, index = ctx.saved_tensors
        of_x = torch.einsum("rn,rnk->rk", as_stored(grad, 1), as_stored(w.mT, 128).mT[index])
        return of_x, torch.zeros_like(w).index_add(0, index, grad[:, :, None] * x[:, None]), None


def as_stored(x: Any, rows: int) -> Any:
    """The values in float64 of float8_e4m3fn with scales, of `rows` rows and 128 columns each."""
    blocks = x.reshape(*x.shape[:-2], -1, rows, x.shape[-1] // 128, 128)
    scale = (blocks.abs().amax((-3, -1), keepdim=True) / 448).float().double()
    return ((blocks / scale).to(torch.float8_e4m3fn).double() * scale).view(x.shape)


def test_a_routers_gradient_is_off_by_the_rounding_of_fp8() -> None:
    """The experts are given: in a model of layers other ones are chosen, too, which no bound holds."""
    torch.manual_seed(0)
    first, down = MasterGroups(4, 128, 512, dtype=F32), MasterGroups(4, 256, 128, dtype=F32)
    x, router, index = torch.randn(64, 128), torch.randn(4, 128) / 11, torch.rand(64, 4).argsort()[:, :2]
    for layer in (first, down):
        layer.weight.requires_grad_(False)  # whose gradient is a product of 16 bits
        layer.weight.copy_(torch.randn_like(layer.weight) / layer.weight.shape[-1] ** 0.5)

    def gradients(mlp: Any, kind: Any) -> tuple[Any, Any]:
        rows, leaf = (each.to(kind, copy=True).requires_grad_() for each in (x, router))
        factors = torch.softmax(rows @ leaf.T, -1).gather(1, index)
        value = mlp(rows, index, factors / factors.sum(1, keepdim=True))
        (value.double() ** 2).mean().backward()
        return rows.grad.double(), leaf.grad.double()

    def each_expert(product: Any) -> Any:
        def mlp(rows: Any, index: Any, factors: Any) -> Any:
            gate, up = product(rows.repeat_interleave(2, 0), first.weight.double(), index.flatten()).chunk(2, 1)
            hidden = torch.nn.functional.silu(gate) * up
            value = product(hidden, down.weight.double(), index.flatten()).view(64, 2, 128)
            return (value * factors[..., None]).sum(1)

        return mlp

    gate = ExpertsMLP(first, down, lambda h: torch.nn.functional.silu(h[:, :256]) * h[:, 256:])
    exact = gradients(each_expert(lambda x, w, at: torch.einsum("rk,rnk->rn", x, w[at])), torch.float64)
    emulated = gradients(each_expert(_Rounded.apply), torch.float64)
    for ours, rounded_only, want in zip(gradients(gate, F32), emulated, exact, strict=True):
        error, apart = ((found - other).norm() / want.norm() for found, other in ((ours, want), (ours, rounded_only)))
        assert 0.02 < error < 0.08 and apart < 0.004


def test_groups_at_multiples_of_128_have_gradients_in_fp8() -> None:
    layer, x, ends = MasterGroups(2, 128, 64, multiple=128), torch.randn(256, 128), torch.tensor([0, 128, 256])
    layer(x, ends).sum().backward()
    weight = layer.weight.detach().clone().requires_grad_()
    fp8_grouped_matmul(x, weight.mT, ends, multiple=128).sum().backward()
    assert torch.equal(layer.weight.grad, weight.grad) and "multiple=128" in repr(layer)
    assert float(layer.weight.detach().abs().max()) <= 128**-0.5


def memory_again(one: Any) -> None:
    """Other memory at the address of memory that is gone, with other values."""
    raw = bytearray(one.weight.nbytes)
    for value in (3.0, 4.0):
        torch.frombuffer(raw, dtype=BF16).fill_(value)
        one.weight.data = torch.frombuffer(raw, dtype=BF16).view(one.weight.shape)
        one(normal(2, one.in_features))


def swapped(one: Any) -> None:
    """A state dict, with parameters swapped in place."""
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        one.load_state_dict({**one.state_dict(), "weight": one.weight * 3})
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


CHANGES: dict[str, Any] = {
    "a write": lambda one: one.weight.mul_(2),
    "an optimizer's step": lambda one: torch.optim.SGD([one.weight], lr=1.0).step(),
    "a state dict": lambda one: one.load_state_dict({**one.state_dict(), "weight": one.weight * 3}),
    "another parameter": lambda one: setattr(one, "weight", torch.nn.Parameter(one.weight * 4)),
    "other memory": lambda one: setattr(one.weight, "data", one.weight * 5),
    "memory that comes again": memory_again,
    "other strides": lambda one: setattr(one.weight, "data", one.weight.data.as_strided(one.weight.shape, (1, 144))),
    "a fused optimizer's step": lambda one: torch.optim.Adam([one.weight], lr=1.0, fused=True).step(),
    "swapped parameters": swapped,
    "another type": lambda one: one.to(F32).to(BF16),
    "training, then a write past the count": lambda one: (one.train(), one.weight.data.mul_(6), one.eval()),
    "a write past the count, and the call again": lambda one: (one.weight.data.mul_(7), one.keep_quantized()),
}


@torch.no_grad()
@pytest.mark.parametrize("of", ["plain", "silu", "swiglu", "groups"])
def test_kept_weights_give_the_same_bits(of: str) -> None:
    """Also in another type's autocast region, and as a copy."""
    more = [torch.tensor([0, 2, 3])] if of == "groups" else []
    activation = of if of in ("silu", "swiglu") else None
    made = MasterGroups(2, 130, 16) if more else MasterLinear(130, 16, activation=activation)
    x, plain = normal(3, 130, dtype=F32), copy.deepcopy(made)
    kept = made.eval().keep_quantized()
    for other in (kept, copy.deepcopy(kept), pickle.loads(pickle.dumps(kept))):
        assert torch.equal(other(x, *more), plain(x, *more))
    with torch.autocast("cpu", torch.float16):
        got, want = kept(x, *more), plain(x, *more)
    assert got.dtype == torch.float16 and torch.equal(got, want)


@torch.no_grad()
@pytest.mark.parametrize("name", CHANGES)
def test_kept_weights_follow_a_change(name: str) -> None:
    """They stay in their memory, which a graph would read."""
    kept, x = MasterLinear(272, 144, dtype=BF16).eval().keep_quantized(), normal(2, 272)
    assert [*kept.state_dict()] == ["weight", "bias"]
    place = kept._kept.pair[0].data_ptr()
    for region in (None, torch.float16, None):
        kept.weight.grad = torch.ones_like(kept.weight)
        CHANGES[name](kept)
        with torch.autocast("cpu", region, enabled=region is not None):
            found = kept._quantized(x, kept.weight)
        assert all(map(torch.equal, found, quantize(kept.weight.to(region or BF16), SQUARE)))
        assert found[0].data_ptr() == place


def test_kept_weights_are_quantised_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In eval mode without derivatives; compiled calls read what is kept, and training quantises at each call."""
    layer, x, seen = MasterLinear(128, 16, dtype=BF16).eval().keep_quantized(), normal(4, 128), []
    real = training.quantize_together
    monkeypatch.setattr(
        training, "quantize_together", lambda asked: seen.extend(x.shape[0] for x, *_ in asked) or real(asked)
    )
    with torch.no_grad():
        want, compiled = layer(x), torch.compile(layer, fullgraph=True, backend="aot_eager")
        assert seen == [4] and torch.equal(compiled(x), want)
        layer.weight.data.mul_(2)  # past the count: the caller says so
        assert torch.equal(layer(x), want) and torch.equal(layer.keep_quantized()(x), compiled(x))
        assert not torch.equal(compiled(x), want)
    seen.clear()
    layer(x).sum().backward()
    assert layer.weight.grad is not None and seen[:2] == [4, 16]
    with torch.no_grad():
        seen.clear()
        layer.train()(x)
        assert seen == [4, 16]
        layer.requires_grad_(False)
        assert not layer.eval()(x).requires_grad


def test_weights_without_elements_are_not_kept() -> None:
    with pytest.raises(OperandError, match=r"weight that is a .*Parameter on meta: a plain tensor on a GPU or"):
        MasterLinear(8, 8, device="meta").keep_quantized()
    with pytest.raises(OperandError, match="keep of keep_quantized"):
        MasterLinear(8, 8).keep_quantized(1)  # type: ignore[arg-type]
    with torch.inference_mode(), pytest.raises(OperandError, match="counts no writes of one made in inference mode"):
        MasterLinear(8, 8).keep_quantized()
    layer = MasterLinear(128, 8).eval().keep_quantized()
    size = layer.weight.untyped_storage().nbytes()
    layer.weight.untyped_storage().resize_(0)  # as a sharded parameter's is between calls
    with pytest.raises(OperandError):
        layer.keep_quantized()
    layer.weight.untyped_storage().resize_(size)
    torch.nn.init.ones_(layer.weight)
    with torch.no_grad():
        assert float((layer(torch.ones(1, 128)) - 128 - layer.bias).abs().max()) < 1e-3


def passed(layer: Any, x: Any) -> tuple[Any, Any]:
    """The result and x's gradient; the weight's is accumulated."""
    x = x.detach().clone().requires_grad_()
    value = layer(x)
    value.float().square().sum().backward()
    return value.detach(), x.grad


@pytest.mark.parametrize("recipes", [("BlockWise1x128", "BlockWise128x128"), ("RowWise", "RowWise")])
@pytest.mark.parametrize("activation", [None, "silu", "swiglu"])
def test_weights_are_quantised_once_for_some_micro_batches(
    activation: str | None, recipes: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the bits of a layer that quantises at each call; the next step's weights are quantised anew."""
    options: Any = {"activation": activation, "recipe_a": recipes[0], "recipe_b": recipes[1], "dtype": BF16}
    plain = MasterLinear(272, 144, **options)
    once, weights, others = copy.deepcopy(plain).quantize_once(), [], []
    counted, together = kept_weights.quantize, training.quantize_together
    optimizers = [torch.optim.SGD(layer.parameters(), lr=0.5) for layer in (plain, once)]
    for _ in range(2):
        for number in range(3):
            x = normal(3 + number, 272)
            want = passed(plain, x)
            with monkeypatch.context() as patch:
                patch.setattr(kept_weights, "quantize", lambda x, recipe: weights.append(x.shape) or counted(x, recipe))
                patch.setattr(
                    training, "quantize_together", lambda asked: others.extend(x for x, *_ in asked) or together(asked)
                )
                assert all(map(torch.equal, passed(once, x), want))
            assert once._once.nbytes > 2 * 144 * 272
        assert torch.equal(once.weight.grad, plain.weight.grad) and torch.equal(once.bias.grad, plain.bias.grad)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        assert once._once.nbytes == 0
    assert weights == [(144, 272), (272, 144)] * 2  # for each step, in both layouts
    each = 3 if recipes[0] == BLOCK else 4  # x and dC, both ways; blocks of dC by one kernel
    assert len(others) == 2 * 3 * each and not {(144, 272), (272, 144)} & {tuple(x.shape) for x in others}


@pytest.mark.parametrize("name", CHANGES)
def test_weights_that_are_quantised_once_follow_a_change(name: str) -> None:
    once, x = MasterLinear(272, 144, dtype=BF16).quantize_once(), normal(2, 272)
    for region in (None, torch.float16, None):
        passed(once, x)
        once.weight.grad = torch.ones_like(once.weight)
        with torch.no_grad():
            CHANGES[name](once.keep_quantized() if "call again" in name else once)
        if "the call again" in name:
            once.quantize_once()
        plain = copy.deepcopy(once if once.training else once.train()).quantize_once(False)
        with torch.autocast("cpu", region, enabled=region is not None):
            found, want = passed(once, x.float()), passed(plain, x.float())
        assert all(map(torch.equal, found, want))


def test_a_weight_between_its_passes_is_the_forward_ones_or_an_error() -> None:
    once, x = MasterLinear(128, 16, dtype=BF16).quantize_once(), normal(2, 128).requires_grad_()
    value = once(x)
    torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0).step()  # drops what is kept
    value.sum().backward()
    want = MasterLinear.of(once)(y := x.detach().requires_grad_())
    want.sum().backward()
    assert torch.equal(x.grad, y.grad)
    value = once(x)
    with torch.no_grad():
        once.weight.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        value.sum().backward()


def test_checkpoints_copies_and_compilers_see_the_weights_that_are_quantised_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    once, x, seen = MasterLinear(128, 16, dtype=BF16).quantize_once(), normal(2, 128), []
    plain, real = MasterLinear.of(once), kept_weights.quantize
    want = passed(plain, x)
    monkeypatch.setattr(kept_weights, "quantize", lambda *given: seen.append(1) or real(*given))
    again = passed(lambda x: torch.utils.checkpoint.checkpoint(once, x, use_reentrant=False), x)
    assert all(map(torch.equal, again, want)) and len(seen) == 2
    for other in (copy.deepcopy(once), pickle.loads(pickle.dumps(once))):
        assert other._once is not once._once and all(map(torch.equal, passed(other, x), want))
    compiled = torch.compile(once, backend="aot_eager", fullgraph=True)
    assert all(map(torch.equal, passed(compiled, x), want))
    with torch.no_grad():
        once.weight.data.mul_(2)  # past the count: code of torch.compile keeps nothing
    assert torch.equal(passed(compiled, x)[0], passed(plain, x)[0])
    with pytest.raises(OperandError, match="once of quantize_once"):
        once.quantize_once(1)  # type: ignore[arg-type]


@needs.DSL
@pytest.mark.dsl
def test_launches_that_read_weights_are_two_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU, by kept chains of launches: both layouts once, and at each call of a layer without it."""
    read = {}
    for once in (False, True):
        layer = MasterLinear(256, 128, bias=False, dtype=BF16).quantize_once(once)
        with every_door(monkeypatch, computes=False) as made:
            for _ in range(2):
                for _ in range(3):
                    passed(layer, normal(4, 256))
                torch.optim.SGD(layer.parameters(), lr=0.0).step()
            at = layer.weight.data_ptr()
            read[once] = [at in values for _, values in made]
    assert sum(read[True]) == 2 * 2 and sum(read[False]) == 2 * 3 * 2
    assert len(read[True]) == len(read[False]) + 2 * 2  # where all others are one launch with the weight's
