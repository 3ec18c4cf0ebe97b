"""Modules that quantise: types of x, of the module and of an autocast region; inputs that are refused."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm.errors import OperandError
from layoutgemm.nn import MasterLinear, QuantizedLinear, ScaledLinear

BF16, F16, F32, F8 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn
MODULES = {
    "scaled": ScaledLinear.of,
    "master": MasterLinear.of,
    "packed": QuantizedLinear.from_linear,
    "packed, float8 x": lambda layer: QuantizedLinear.from_linear(layer, activations=F8),
}


def _module(name: str) -> tuple[Any, Any]:
    torch.manual_seed(3)
    return MODULES[name](torch.nn.Linear(128, 32, dtype=BF16)), torch.randn(4, 128)


@pytest.mark.parametrize("name", MODULES)
def test_autocast_says_the_type_of_the_result(name: str) -> None:
    module, x = _module(name)
    with torch.no_grad():
        # Modules that quantise x take it as it is; others round it to the region's type first.
        want = module(x).to(BF16) if name in ("scaled", "packed, float8 x") else module(x.to(BF16))
        with torch.autocast("cpu", dtype=BF16):
            assert module(x).dtype == BF16 and torch.equal(module(x), want)
            compiled = torch.compile(module, fullgraph=True, backend="eager")
            assert torch.equal(compiled(x), want)


def test_a_region_of_another_type_than_the_packed_weights_is_refused() -> None:
    module, x = _module("packed")
    text = r"x is torch.float16, and the weights are packed for torch.bfloat16: torch.autocast casts it"
    with torch.autocast("cpu", dtype=F16), pytest.raises(OperandError, match=text):
        module(x)


@pytest.mark.parametrize("name", MODULES)
def test_meta_modules_compute_shapes_in_any_region(name: str) -> None:
    module, x = _module(name)
    found = module.to("meta")(x.to("meta", BF16))
    assert (found.device.type, found.shape, found.dtype) == ("meta", (4, 32), BF16)


@pytest.mark.parametrize("kind", [F16, F32])
@pytest.mark.parametrize("recorded", [True, False])
def test_a_cast_scaled_linear_has_results_and_states_of_that_type(kind: Any, recorded: bool) -> None:
    module, x = _module("scaled")
    exact = module.dequantized().double()
    module = module.to(kind)
    with torch.set_grad_enabled(recorded):
        assert module(x.to(kind)).dtype == kind == module.state_dict()["weight"].dtype
    assert torch.equal(module.dequantized().double(), exact)


@pytest.mark.parametrize("name", MODULES)
def test_an_array_is_refused_by_name(name: str) -> None:
    module, x = _module(name)
    with pytest.raises(OperandError, match=r"x is a numpy.ndarray, not a torch tensor"):
        module(x.numpy())


def test_a_master_linear_is_exported_with_its_gradients_on() -> None:
    module, x = _module("master")
    x = x.to(BF16)
    assert module.weight.requires_grad and torch.equal(torch.export.export(module, (x,)).module()(x), module(x))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", [*MODULES, "in order of groups"])
def test_other_features_are_refused(name: str, compiled: bool) -> None:
    """More of them, too, which a layer that reorders x would leave unread."""
    if name in MODULES:
        module, x = _module(name)
    else:
        packed, x = _module("packed")
        module = QuantizedLinear(packed.weight, order=torch.arange(127, -1, -1))
    call = torch.compile(module, backend="eager") if compiled else module
    wrong = [torch.ones(4, 256), torch.ones(4, 127), *[torch.tensor(1.0)] * (not compiled)]
    with torch.no_grad():
        assert call(x.to(BF16)).shape == (4, 32)
        for odd in wrong:
            with pytest.raises(Exception, match=r"x has shape \[.*\]: \(..., 128\), the module's in_features"):
                call(odd.to(BF16))


def test_the_scales_of_a_new_module_are_float32_whatever_torch_s_default_is() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        module = ScaledLinear(128, 32)
        assert module(torch.ones(2, 128, dtype=BF16)).dtype == BF16
    finally:
        torch.set_default_dtype(F32)
    assert module.weight_scale.dtype == F32
