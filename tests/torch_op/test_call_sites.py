"""Call sites of Inductor's code: the launch of a second call, and what keeps a site from one."""

from __future__ import annotations

from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import torch._inductor.config as config
from torch.utils.flop_counter import FlopCounterMode

from layoutgemm import QuantizedFormat, QuantizedWeight, inductor, matmul
from layoutgemm.errors import TensorError
from layoutgemm.inductor import registration
from layoutgemm.torch_op import prepared
from layoutgemm.torch_op.compiled import direct
from layoutgemm.torch_op.compiled.call_sites import LAUNCHES, CallSite
from tests.torch_op.host_launches import bare_launches, host_launches

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn
MATMUL = {"config": "", "allow_tf32": None}
FINISHED = {**MATMUL, "activation": "silu", "tensors": ("bias",)}
SCALED = {"activation": None, "recipe_a": "", "recipe_b": "", "use_fast_accum": True, "config": ""}
GROUPED = {**SCALED, "said": "offs", "tensors": ("groups",)}


def whole(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randint(-4, 5, shape).to(dtype)


def packed() -> Any:
    return QuantizedWeight.quantize(torch.randn(128, 256), QuantizedFormat("int4", 128))


PACKED = {"code": "int4", "group": 128, "zeros": False, "n": 128, "k": 256, "config": "", "activation": None}


class Counted:
    """A product of `direct` that counts its calls."""

    def __init__(self, function: Any, options: dict[str, Any]) -> None:
        self.function, self.options, self.calls = function, options, 0

    def __call__(self, *tensors: Any, out: Any) -> None:
        self.calls += 1
        self.function(*tensors, out=out, **self.options)


FORMS: dict[str, tuple[Any, dict[str, Any], Any, tuple[int, ...]]] = {
    "matrices": (direct.matmul, MATMUL, lambda: (whole(256, 128), whole(192, 128).mT), (256, 192)),
    "few rows": (direct.matmul, MATMUL, lambda: (whole(8, 512), whole(192, 512).mT), (8, 192)),
    "a batch": (direct.matmul, MATMUL, lambda: (whole(3, 64, 128), whole(3, 128, 192)), (3, 64, 192)),
    "bias and activation": (
        direct.finished, FINISHED, lambda: (whole(64, 128), whole(192, 128).mT, whole(192)), (64, 192),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("inference", [False, True])
def test_second_calls_are_the_launch_alone(form: str, inference: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """At other tensors. Results are those of the product on the CPU."""
    function, options, tensors, shape = FORMS[form]
    product = Counted(function, options)
    site = CallSite(product).of(len(tensors()))
    with torch.inference_mode(inference):
        calls = [(tensors(), torch.empty(shape, dtype=BF16)) for _ in range(3)]
        want = []
        for inputs, _ in calls:
            want.append(torch.empty(shape, dtype=BF16))
            function(*inputs, out=want[-1], **options)
        with host_launches(monkeypatch) as noted:
            for inputs, out in calls:
                site(*inputs, out=out)
        assert product.calls == 1 and len(noted.made) == 3
        assert all(torch.equal(out, right) for (_, out), right in zip(calls, want))


@pytest.mark.parametrize("views", [(), (None, ((128, 192), (192, 1), 64))])
def test_a_site_refuses_tensors_whose_storage_was_freed(views: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their address is 0, a multiple of 16. The product refuses them, views of them too."""
    product, a, b = Counted(direct.matmul, MATMUL), whole(64, 128), whole(130 if views else 128, 192)
    site, out = CallSite(product, views).of(2), torch.empty(64, 192, dtype=BF16)
    with bare_launches(monkeypatch) as noted:
        site(a, b, out=out)
        site(a, b, out=out)
        b.untyped_storage().resize_(0)
        with pytest.raises(TensorError, match="data is not allocated yet: b, of shape"):
            site(a, b, out=out)
    assert (len(noted.arguments), product.calls) == (2, 2)


def test_a_call_under_a_mode_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch runs a graph's first call under one: its launch writes elsewhere, and is copied."""
    product = Counted(direct.matmul, MATMUL)
    site, a, b, out = CallSite(product).of(2), whole(64, 128), whole(128, 192), torch.empty(64, 192, dtype=BF16)
    with host_launches(monkeypatch):
        with FlopCounterMode(display=False):
            site(a, b, out=out)
        for _ in range(3):
            site(a, b, out=out.zero_())
            assert torch.equal(out, a @ b)
    assert product.calls == 2


def test_the_sites_of_a_compiled_graph_keep_their_launches(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the third call on none calls its product: the first is torch's analysis, the second is recorded."""
    torch._dynamo.reset()
    layers = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.Linear(128, 64)).to(BF16)
    calls, finished, x = [], direct.finished, whole(32, 64)
    monkeypatch.setattr(direct, "finished", lambda *t, **named: (calls.append(1), finished(*t, **named)))
    with torch.no_grad(), inductor.register(devices=["cpu"], autotune=False), host_launches(monkeypatch) as noted:
        with config.patch(force_disable_caches=True):
            compiled = torch.compile(layers, fullgraph=True)
            found = [compiled(x) for _ in range(4)]
    assert (len(calls), len(noted.made)) == (2 * 2, 2 * 4)
    assert all(torch.equal(each, found[0]) for each in found)


OTHERS: dict[str, tuple[Any, dict[str, Any], Any, tuple[int, ...]]] = {
    "scaled": (
        direct.scaled_matmul, {**SCALED, "tensors": ("scale_b",)},
        lambda: (whole(64, 256, dtype=E4M3), torch.rand(64, 1), whole(192, 256, dtype=E4M3).mT, torch.rand(1, 192)),
        (64, 192),
    ),
    "grouped": (
        direct.grouped_matmul, GROUPED,
        lambda: (whole(64, 128), whole(2, 192, 128).mT, torch.tensor([24, 64], dtype=torch.int32)), (64, 192),
    ),
    "gated": (
        direct.gated, {**MATMUL, "activation": "swiglu"}, lambda: (whole(64, 128), whole(384, 128).mT), (64, 192),
    ),
    "packed": (
        direct.quantized_matmul, {**PACKED, "tensors": ()}, lambda: (whole(16, 256), packed().units), (16, 128),
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", OTHERS)
def test_launches_have_the_products_arguments(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second call, at other tensors, has those of the product's own launch there."""
    function, options, tensors, shape = OTHERS[form]
    product = Counted(function, options)
    site, calls = CallSite(product), [(tensors(), torch.empty(shape, dtype=BF16)) for _ in range(2)]
    with bare_launches(monkeypatch) as noted:
        for inputs, out in calls:
            site(*inputs, out=out)
        (inputs, out) = calls[1]
        function(*inputs, out=out, **options)
    assert product.calls == 1, f"{form}: {product.calls} calls of the product"
    first, second, right = noted.arguments
    assert second == right != first


def refused(site: CallSite, tensors: Any, out: Any, patch: pytest.MonkeyPatch) -> int:
    """The number of three calls of a site that call its product."""
    product = site._call
    assert isinstance(product, Counted)
    with host_launches(patch):
        for _ in range(3):
            site(*tensors, out=out)
    return product.calls


def test_calls_of_more_than_a_launch_stay_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Copies, one tensor twice, addresses between multiples of 16, and results that are written again."""
    square, out = whole(128, 128), torch.empty(128, 128, dtype=BF16)
    assert refused(CallSite(Counted(direct.matmul, MATMUL)), (square, square), out, monkeypatch) == 3
    a, b = whole(64, 130)[:, ::2], whole(192, 65).mT  # TMA reads neither
    assert refused(CallSite(Counted(direct.matmul, MATMUL)), (a, b), torch.empty(64, 192, dtype=BF16), monkeypatch) == 3
    begins = whole(64 * 128 + 1)[1:].view(64, 128)
    assert (
        refused(
            CallSite(Counted(direct.matmul, MATMUL)), (begins, whole(128, 192)), torch.empty(64, 192, dtype=BF16),
            monkeypatch,
        )
        == 3
    )  # fmt: skip

    def twice(a: Any, b: Any, *, out: Any) -> None:
        direct.matmul(a, b, out=out, **MATMUL)
        out.add_(1)

    site = CallSite(Counted(twice, {}))
    assert refused(site, (whole(64, 128), whole(128, 192)), torch.empty(64, 192, dtype=BF16), monkeypatch) == 3


def test_a_kept_site_serves_addresses_of_16_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A later call between multiples of 16 is the product's, and the launch stays."""
    product = Counted(direct.matmul, MATMUL)
    site, b, out = CallSite(product).of(2), whole(128, 192), torch.empty(64, 192, dtype=BF16)
    with host_launches(monkeypatch):
        for a, calls in ((whole(64, 128), 1), (whole(64 * 128 + 1)[1:].view(64, 128), 2), (whole(64, 128), 2)):
            site(a, b, out=out)
            assert product.calls == calls
            want = torch.empty_like(out)
            direct.matmul(a, b, out=want, **MATMUL)
            assert torch.equal(out, want)


def test_code_that_an_earlier_version_generated_runs() -> None:
    """Inductor's cache on disk outlives a version of the package: its sites do not say how many tensors they have."""
    a, b, out = whole(64, 128), whole(128, 192), torch.empty(64, 192, dtype=BF16)
    direct.site(direct.matmul, **MATMUL)(a, b, out=out)
    assert torch.equal(out, a @ b)


def test_a_site_reads_views_of_what_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Addresses are those of the views. One that begins between multiples of 16 is the product's."""
    for begin, calls in ((64, 1), (1, 3)):
        views = (((64, 128), (192, 1), begin), ((128, 192), (1, 256), 128))
        product = Counted(direct.matmul, MATMUL)
        site = CallSite(product, views)
        with host_launches(monkeypatch):
            for _ in range(3):
                a, b, out = whole(64, 192), whole(192, 256), torch.empty(64, 192, dtype=BF16)
                site(a, b, out=out)
                want = torch.empty_like(out)
                direct.matmul(a.as_strided(*views[0]), b[:, 128:].T, out=want, **MATMUL)
                assert torch.equal(out, want)
        assert product.calls == calls


def test_inductors_choice_is_a_site_of_its_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each size has its own."""
    products: list[Any] = []
    monkeypatch.setattr(registration, "FIRST_GPU", -1)
    monkeypatch.setattr(registration, "_sites", {})
    monkeypatch.setattr(registration, "matmul", lambda a, b, **named: (products.append(a.shape), matmul(a, b, **named)))
    with host_launches(monkeypatch):
        for m, calls in ((64, 1), (64, 2), (64, 2), (32, 3), (64, 3)):
            a, b, out = whole(m, 128), whole(192, 128).mT, torch.empty(m, 192, dtype=BF16)
            registration.layoutgemm_matmul(a, b, out=out)
            assert len(products) == calls and torch.equal(out.double(), (a.double() @ b.double()).to(BF16).double())


def test_what_is_tuned_is_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    product = Counted(direct.matmul, MATMUL)
    site, a, b, out = CallSite(product), whole(64, 128), whole(128, 192), torch.empty(64, 192, dtype=BF16)
    with host_launches(monkeypatch):
        site(a, b, out=out)
        prepared.forget()
        assert not LAUNCHES
        site(a, b, out=out)
        site(a, b, out=out)
    assert product.calls == 2
