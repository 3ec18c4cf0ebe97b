"""The guard that is asked first, by the id of a weight or its scales: it launches for the same call alone.

CPU tensors are taken for a GPU's, and launches compute nothing: their arguments are compared with those of a process
that has kept nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import LayoutError, grouped_matmul, matmul, scaled_matmul
from layoutgemm.torch_op import api, prepared
from layoutgemm.torch_op.compiled.guards import MAX_CHANGES
from layoutgemm.torch_op.scaled_grouped import api as scaled_api
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.host_launches import bare_launches

SIZE = 128


def tensors() -> SimpleNamespace:
    """Operands of all calls."""
    eight = torch.ones(2 * SIZE, SIZE).to(torch.float8_e4m3fn)
    return SimpleNamespace(
        a=torch.ones(SIZE, SIZE).bfloat16(), b=torch.ones(SIZE, SIZE).bfloat16(), bias=torch.ones(SIZE),
        experts=torch.ones(2, SIZE, SIZE).bfloat16(), groups=torch.tensor([0, 64, 128]),
        ends=torch.tensor([64, 128]), a8=eight[:SIZE],
        b8=eight[SIZE:].T, scale_a=torch.ones(SIZE, 1), scale_b=torch.ones(1, 1), one=torch.ones(1, 1),
    )  # fmt: skip


CALLS: dict[str, Callable[[SimpleNamespace], Any]] = {
    "matmul": lambda t: matmul(t.a, t.b),
    "bias": lambda t: matmul(t.a, t.b, bias=t.bias),
    "linear": lambda t: api.linear(t.a, t.b),
    "linear with a bias": lambda t: api.linear(t.a, t.b, t.bias),
    "scaled": lambda t: scaled_matmul(t.a8, t.scale_a, t.b8, t.scale_b),
    "one scale": lambda t: scaled_matmul(t.a8, t.one, t.b8, t.one),
    "a's scales": lambda t: scaled_matmul(t.a8, t.one, t.b8),
    "offsets": lambda t: grouped_matmul(t.a, t.experts, t.groups),
    "ends": lambda t: grouped_matmul(t.a, t.experts, offs=t.ends),
    "counts": lambda t: grouped_matmul(t.a.view(2, -1, SIZE), t.experts, counts=t.ends),
}
# Of which tensor the last call is noted, and the tensors of the call.
NOTED = {"matmul": "b", "bias": "bias", "linear": "b", "linear with a bias": "b", "scaled": "scale_b",
         "one scale": "one", "a's scales": "b8"}  # fmt: skip
READ = {"matmul": "a b", "bias": "a b bias", "linear": "a b", "linear with a bias": "a b bias",
        "scaled": "a8 scale_a b8 scale_b", "one scale": "a8 one b8", "a's scales": "a8 one b8"}  # fmt: skip


def lasts() -> list[Any]:
    """All places to look first."""
    plain = [api._LAST, api._LAST_BIAS, *api._LAST_LINEAR.values(), *api._LAST_LINEAR_BIAS.values()]
    scaled = scaled_api._SCALED, scaled_api._SCALED_ONCE, scaled_api._SCALED_A, *scaled_api._GROUPED.values()
    return [*plain, *[each.last for each in scaled]]


def odd(x: Any) -> Any:
    """The same values, 2 bytes behind a multiple of 16."""
    size = 2 // min(2, x.element_size())
    memory = torch.empty(x.numel() + size, dtype=x.dtype).view(torch.uint8)
    made = memory.view(x.dtype)[size:].as_strided(x.shape, x.stride())
    return made.copy_(x)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: x,
    "rows": lambda x: torch.cat([x.float(), x.float()]).to(x.dtype),
    "fewer columns": lambda x: x[..., : x.shape[-1] // 2].clone() if x.shape[-1] > 1 else x,
    "strides": lambda x: x.mT.contiguous().mT if x.ndim > 1 and min(x.shape) > 1 else x,
    "pitch": lambda x: torch.cat([x.float()] * 2, -1).to(x.dtype)[..., : x.shape[-1]],
    "type": lambda x: x.double() if x.dtype == torch.float32 else x.half() if x.element_size() == 2
            else x.float().to(torch.float8_e5m2),
    "address": odd,
    "gradient": lambda x: x.clone().requires_grad_(),
    "negated": lambda x: torch._neg_view(x),
}  # fmt: skip


def launches(run: Callable[[], Any], noted: Any, read: list[Any]) -> list[Any]:
    """The launches of a call, or its refusal; a tensor's place stands for its address."""
    noted.arguments.clear()
    try:
        c = run()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return [type(error), str(error)]
    places = {x.data_ptr(): place for place, x in enumerate([*read, c], 1 << 40) if x.device.type != "meta"}
    facts = c.shape, c.stride(), c.dtype, c.requires_grad
    # of addresses of no operand, as those of a copy, only the alignment is compared
    launched = [[places.get(x, x if x < 1 << 32 else x % 16) for x in each[:-2]] for each in noted.arguments]
    return [facts, launched]


@pytest.mark.parametrize("name", [*NOTED, "recorded", "linear, not recorded", "linear with a bias, not recorded"])
def test_the_guard_that_is_asked_first_launches_the_same_call_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each tensor in turn is another one; the noted one keeps its id."""
    name, _, of = ("matmul, recorded" if name == "recorded" else name).partition(", ")
    recorded, run = of == "recorded" or (name.startswith("linear") and not of), CALLS[name]
    with bare_launches(monkeypatch) as noted:
        for change, vary in CHANGES.items():
            for which in READ[name].split():
                results = []
                for keeps in (True, False):
                    t = tensors()
                    t.b.requires_grad_(recorded)
                    prepared.forget()
                    kept.READY.clear()
                    assert not any(lasts())
                    if keeps:
                        for _ in range(4):
                            run(t)
                        noted_at = id(getattr(t, NOTED[name]))
                        (guard,) = [found for last in lasts() for at, found in last.items() if at == noted_at]
                        assert not guard[0](*[getattr(t, each).to("meta") for each in READ[name].split()])
                    given = getattr(t, which)
                    made = vary(given.detach())
                    if which == NOTED[name]:  # the same object
                        given.requires_grad_(False)
                        given.data = made.detach()
                        given.requires_grad_(made.requires_grad)
                    else:
                        setattr(t, which, made)
                    read = [getattr(t, each) for each in READ[name].split()]
                    results.append(launches(lambda t=t: run(t), noted, read))
                assert results[0] == results[1], (change, which)


@pytest.mark.parametrize("name", CALLS)
def test_an_id_that_is_another_tensors_launches_nothing_else(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    t, less = tensors(), tensors()
    less.a, less.a8, less.scale_a = less.a[:64].clone(), less.a8[:64].clone(), less.scale_a[:64].clone()
    less.groups, less.ends = less.groups // 2, torch.tensor([32, 64 if name == "ends" else 16])
    if name == "counts":
        t.ends = torch.tensor([32, 64])
    for x in (t.b, less.b):
        x.requires_grad_(name.startswith("linear"))
    run = CALLS[name]
    with bare_launches(monkeypatch):
        results = [run(t) for _ in range(4)]
        assert sum(map(len, lasts())) == 1
        for last in lasts():
            for guard in list(last.values()):
                last.update({id(x): guard for x in vars(less).values()})
        results.append(run(less))
        rows = 1 if name == "counts" else 0
        assert [x.shape[rows] for x in results] == [*[SIZE // (1 + rows)] * 4, 64 // (1 + rows)]


@pytest.mark.filterwarnings("ignore:.*nested tensors")
@pytest.mark.parametrize("name", NOTED)
def test_nested_tensors_are_refused_as_in_a_first_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's guard would end the process. So each place has one, with the guard looked for first and not."""
    with bare_launches(monkeypatch):
        for which in READ[name].split():
            for known in (False, True):
                t = tensors()
                t.b.requires_grad_(name.startswith("linear"))
                for _ in range(4):
                    CALLS[name](t)
                x = getattr(t, which).detach()
                nested = torch.nested.nested_tensor([x if x.element_size() > 1 else x.half()] * 2)  # none of float8
                for last in lasts() if known else ():
                    last.update({id(nested): guard for guard in last.values()})
                setattr(t, which, nested)
                with pytest.raises((LayoutError, TypeError), match="nested"):
                    CALLS[name](t)


def test_a_linear_layer_is_recorded_where_gradients_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """One guard serves calls with gradients on and off, and goes past `matmul`."""
    t = tensors()
    t.b.requires_grad_()
    with bare_launches(monkeypatch) as noted:
        for grad in (False, True, True, False):
            with torch.set_grad_enabled(grad):
                assert api.linear(t.a, t.b).requires_grad == grad
        monkeypatch.setattr(api, "matmul", None)
        monkeypatch.setattr(api, "_linear_by_facts", None)
        noted.arguments.clear()
        for grad in (True, False):
            with torch.set_grad_enabled(grad):
                assert api.linear(t.a, t.b).requires_grad == grad
        assert len(noted.arguments) == 2


def test_calls_that_change_each_time_are_not_looked_for_first(monkeypatch: pytest.MonkeyPatch) -> None:
    with bare_launches(monkeypatch) as noted, torch.no_grad():
        t = tensors()
        other = t.a[:64].clone()
        for _ in range(2 * MAX_CHANGES):
            assert matmul(t.a, t.b).shape[0] == 128 and matmul(other, t.b).shape[0] == 64
        assert api._LAST == {id(t.b): None} and len(noted.arguments) == 4 * MAX_CHANGES
        prepared.forget()
        assert not api._LAST
        for _ in range(4):
            matmul(t.a, t.b, bias=None)  # as without one
        assert api._LAST[id(t.b)] is not None and not api._LAST_BIAS


def test_one_tensor_twice_is_found_by_a_guard(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch's own guard holds for no tensor that it is given twice; other calls of the shapes keep theirs."""
    t, into = tensors(), torch.empty(SIZE, SIZE).bfloat16()
    calls = [
        lambda: matmul(t.a, t.a), lambda: matmul(t.a, t.b), lambda: matmul(t.a, t.a, bias=t.bias),
        lambda: matmul(t.b, t.b, out=into),
    ]  # fmt: skip
    with bare_launches(monkeypatch) as noted:
        for call in calls * 3:
            call()
        searched, prepared_by_key = [], api._prepared  # what finds a call by its longer key
        monkeypatch.setattr(api, "_prepared", lambda *given: searched.append(given) or prepared_by_key(*given))
        noted.arguments.clear()
        for call in calls:
            call()
        first, second = t.a.data_ptr(), t.b.data_ptr()
        assert [each[:2] for each in noted.arguments] == [[first] * 2, [first, second], [first] * 2, [second] * 2]
        assert not searched
