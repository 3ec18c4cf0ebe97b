"""Repeated calls with options: found by the places of their tensors and numbers in the call.

CPU tensors are taken for a GPU's, and launches compute nothing: their arguments are compared with those of a process
that has kept nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from layoutgemm import Sm90Config, fp8_matmul, grouped_matmul, matmul, quantized_matmul, scaled_matmul
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce, Scale, VectorScale
from layoutgemm.kernels.operands.prologue import Prologue
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.kernels.run import capture
from layoutgemm.torch_op import api, launch, prepared
from layoutgemm.torch_op.compiled import c_calls, kept_launches, repeated_calls
from layoutgemm.torch_op.compiled.guards import _class
from layoutgemm.torch_op.quantized import api as packed
from layoutgemm.torch_op.quantized.weights import QuantizedWeight
from layoutgemm.torch_op.scaled_grouped import kept
from tests.torch_op.host_launches import BareLaunches, bare_launches

pytestmark = [
    pytest.mark.dsl,
    pytest.mark.skipif(_class is None, reason="this torch has no guards in C, so nothing is kept: pip install torch"),
]
C_CALLS = c_calls.library() is not None  # else no call with packed weights is found by its arguments
SIZE, SQUARE = 128, "BlockWise128x128"
STEPS, SUMS = Epilogue(Scale(), Bias()), Epilogue(RowReduce("sum", "sums"))
TILE = Sm90Config((SIZE, SIZE))
PACKED = QuantizedWeight.quantize(torch.ones(SIZE, SIZE), QuantizedFormat("int4", 128))


def tensors() -> SimpleNamespace:
    """Operands of all calls, each of its own memory."""
    ones, eight = torch.ones(SIZE, SIZE).bfloat16(), torch.ones(SIZE, SIZE).to(torch.float8_e4m3fn)
    return SimpleNamespace(
        a=ones.clone(), b=ones.clone(), a2=ones.clone(), b2=ones.clone(), bias=torch.ones(SIZE), sums=torch.zeros(SIZE),
        alpha=0.5, experts=torch.ones(2, SIZE, SIZE).bfloat16(), groups=torch.tensor([0, 64, 128]), out=ones.clone(),
        a8=eight.clone(), b8=eight.clone().T, b9=eight.clone().T, scale_a=torch.ones(SIZE, 1), scale_b=torch.ones(1, 1),
        scale_n=torch.ones(1, SIZE),
        rows=torch.arange(SIZE).flip(0), weights=torch.ones(SIZE),
    )  # fmt: skip


CALLS: dict[str, tuple[Callable[[SimpleNamespace], Any], str]] = {
    "an epilogue": (lambda t: matmul(t.a, t.b, epilogue=STEPS, given={"alpha": t.alpha, "bias": t.bias}), "a b bias"),
    "sums of rows": (lambda t: matmul(t.a, t.b, epilogue=SUMS, given={"sums": t.sums}), "a b sums"),
    "sums and an output": (
        lambda t: matmul(t.a, t.b, epilogue=SUMS, given={"sums": t.sums}, out=t.out), "a b sums out"),
    "two pairs": (lambda t: matmul((t.a, t.a2), (t.b, t.b2)), "a a2 b b2"),
    "several": (lambda t: matmul(t.a, (t.b, t.b2), combine="silu"), "a b b2"),
    "an activation": (lambda t: matmul(t.a, t.b, bias=t.bias, activation="gelu"), "a b bias"),
    "an output": (lambda t: matmul(t.a, t.b, out=t.out), "a b out"),
    "scales and a bias": (lambda t: scaled_matmul(t.a8, t.scale_a, t.b8, t.scale_b, bias=t.bias),
                          "a8 scale_a b8 scale_b bias"),
    "scales, read as vectors": (lambda t: scaled_matmul(t.a8, t.scale_a, t.b8, t.scale_n, order="lower"),
                                "a8 scale_a b8 scale_n"),
    "scales of rows by index": (lambda t: scaled_matmul(t.a8, t.scale_a, t.b8, t.scale_n, rows=t.rows),
                                "a8 b8 scale_n rows scale_a"),
    "scales of blocks and rows by index": (lambda t: scaled_matmul(t.a8, t.scale_a, t.b8, t.scale_b, rows=t.rows,
                                                                   recipe_a="BlockWise1x128", recipe_b=SQUARE),
                                           "a8 scale_a b8 scale_b rows"),
    "two matrices with scales": (lambda t: scaled_matmul(t.a8, t.scale_a, (t.b8, t.b9), (t.scale_n, t.scale_b),
                                                         combine="silu"), "a8 b8 b9 scale_n scale_a scale_b"),
    "one scale twice": (lambda t: scaled_matmul(t.a8, t.scale_a, (t.b8, t.b9), (t.scale_n, t.scale_n), combine="silu"),
                        "a8 b8 b9 scale_a scale_n"),
    "quantised": (lambda t: scaled_matmul(t.a8, t.scale_a, t.b8, t.scale_b, config=TILE, out_dtype=torch.float8_e4m3fn,
                                          out_recipe="BlockWise1x128"), "a8 scale_a b8 scale_b"),
    "groups and a bias": (lambda t: grouped_matmul(t.a, t.experts, t.groups, bias=t.bias), "a experts groups bias"),
    "sums of groups": (lambda t: grouped_matmul(t.a, t.experts, t.groups, epilogue=SUMS, given={"sums": t.sums}),
                       "a experts groups sums"),
    "placed rows": (lambda t: matmul(t.a, t.b, out_rows=t.rows), "a b rows"),
    "placed rows and an output": (lambda t: grouped_matmul(t.a, t.experts, t.groups, out_rows=t.rows, out=t.out,
                                                           row_weights=t.weights), "a experts groups rows weights out"),
    "rows copied first": (lambda t: matmul(t.a, t.b, rows=t.rows, copy_rows=True, out=t.out), "a b rows out"),
}  # fmt: skip


def odd(x: Any) -> Any:
    """The same values, one element behind a multiple of 16 bytes."""
    made = torch.empty(x.numel() + 1, dtype=x.dtype)[1:].as_strided(x.shape, x.stride())
    return made.copy_(x)


CHANGES: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda x: x,
    "memory": lambda x: x.clone(),
    "rows": lambda x: torch.cat([x.float(), x.float()]).to(x.dtype),
    "columns": lambda x: x[..., : x.shape[-1] // 2].clone() if x.shape[-1] > 1 else x,
    "pitch": lambda x: torch.cat([x.float()] * 2, -1).to(x.dtype)[..., : x.shape[-1]],
    "type": lambda x: x.to(torch.float64 if x.dtype == torch.float32 else torch.float16),
    "address": odd,
    "gradient": lambda x: x.clone().requires_grad_() if x.is_floating_point() and x.itemsize > 1 else x,
    "negated": lambda x: torch._neg_view(x) if x.is_floating_point() and x.itemsize > 1 else x,
    "no tensor": lambda x: [1.0],
}


@pytest.fixture
def noted(monkeypatch: pytest.MonkeyPatch) -> Iterator[BareLaunches]:
    with bare_launches(monkeypatch) as launches:
        yield launches


def forget() -> None:
    prepared.forget()
    kept.READY.clear()
    kept_launches.KEPT.clear()


def said(run: Callable[[], Any], noted: BareLaunches, read: list[Any]) -> list[Any]:
    """The launches of a call and its results, or its refusal; a tensor's place stands for its address."""
    noted.arguments.clear()
    try:
        made = run()
    except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
        return [type(error), str(error)]
    results = made if isinstance(made, tuple) else (made,)
    every = [x for x in (*read, *results) if isinstance(x, torch.Tensor)]
    places = {x.data_ptr(): place for place, x in enumerate(every, 1 << 40)}
    launched = [[places.get(x, x if x < 1 << 32 else x % 16) for x in each[:-2]] for each in noted.arguments]
    return [[(x.shape, x.stride(), x.dtype, x.requires_grad) for x in results], launched]


def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Notes each call that goes through its function, which the cases here do by `served`."""
    first: list[str] = []
    served = api.served

    def counted() -> Any:
        first.append("")
        return served()

    monkeypatch.setattr(api, "served", counted)
    return first


FEW = ("nothing", "memory", "address")  # changes of most calls: first calls take the time
FULL = ("sums of rows", "two pairs", "quantised")  # what a guard asks is the same for the others


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_differs_launches_as_a_first_one(
    name: str, noted: BareLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each tensor in turn is another one; each result is that of a fresh process."""
    run, names = CALLS[name]
    first = asked(monkeypatch)
    for change, vary in CHANGES.items() if name in FULL else [(each, CHANGES[each]) for each in FEW]:
        for which in names.split() if name in FULL else names.split()[-1:]:
            results = []
            for keeps in (True, False):
                t = tensors()
                forget()
                for _ in range(3 * keeps):
                    run(t)
                count = len(first)
                setattr(t, which, vary(getattr(t, which)))
                read = [getattr(t, each) for each in names.split()]
                results.append(said(lambda t=t: run(t), noted, read))
                if keeps and change in ("nothing", "memory"):
                    assert len(first) == count and len(noted.arguments) == 1
            assert results[0] == results[1], (change, which)


def test_numbers_of_rows_by_index_are_no_numbers_of_rows_in_order(noted: BareLaunches) -> None:
    """Two calls that differ in that alone: scales of A's rows, and an epilogue's vector of the product's rows."""
    t = tensors()
    steps = Epilogue(VectorScale("m", "f32", "scale_a"), VectorScale("n", "f32", "scale_b"))
    given = {"scale_a": t.scale_a[:, 0], "scale_b": t.scale_n[0]}
    for _ in range(3):
        scaled_matmul(t.a8, given["scale_a"], t.b8, given["scale_b"], rows=t.rows)
        matmul(t.a8, t.b8, rows=t.rows, epilogue=steps, given=given, out_dtype=torch.bfloat16)
    assert len(noted.arguments) == 6 and len(noted.plans) == 2
    assert [plan.indexed.through for plan in noted.plans] == [("scale_a",), ()]


def test_numbers_are_those_of_the_call_and_other_options_another_call(noted: BareLaunches) -> None:
    t = tensors()
    run, _ = CALLS["an epilogue"]
    for alpha, word in ((0.5, 0x3F000000), (0.5, 0x3F000000), (2, 0x40000000), (-0.0, 0x80000000), (0.0, 0)):
        t.alpha = alpha
        run(t)
        assert word in noted.arguments[-1]
    for wrong, text in ((1e39, "alpha = 1e\\+39 is beyond float32"), (True, "alpha is a number"), ("1", "alpha")):
        t.alpha = wrong
        with pytest.raises(ValueError, match=text):
            run(t)
    count = len(noted.arguments)
    for given in ({"bias": t.bias}, {"alpha": 1.0, "bias": t.bias, "more": 1.0}, {"alpha": 1.0, "beta": t.bias}, 7):
        with pytest.raises((ValueError, TypeError)):
            matmul(t.a, t.b, epilogue=STEPS, given=given)
    for options in ({"activation": "relu"}, {"bias": t.bias}, {"out_dtype": torch.int8}, {"allow_tf32": 1}):
        with pytest.raises(ValueError):
            matmul(t.a, t.b, epilogue=STEPS, given={"alpha": 1.0, "bias": t.bias}, **options)
    assert len(noted.arguments) == count


@pytest.mark.parametrize("name", ["placed rows", "placed rows and an output"])
def test_rows_that_are_not_placed_are_zeros_of_a_new_result_alone(
    name: str, noted: BareLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Launches compute nothing, and memory holds ones. No place of the output may be that of an operand."""
    first, (run, _), t = asked(monkeypatch), CALLS[name], tensors()
    monkeypatch.setattr(launch, "empty_on_gpu", lambda shape, strides, kind: torch.ones(shape, dtype=kind))
    for _ in range(3):
        run(t)
    count, value = len(first), 1 if "output" in name else 0
    assert torch.equal(run(t), torch.full((SIZE, SIZE), value).bfloat16()) and len(first) == count
    if value:
        t.out = t.a
        with pytest.raises(RuntimeError, match="out, which is written to, shares memory with a"):
            run(t)


@pytest.mark.parametrize("name", ["sums and an output", "an output", "sums of groups"])
def test_writes_are_counted_and_shared_memory_is_refused(
    name: str, noted: BareLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory beside an operand's is written by a repeated call; one that shares 16 bytes is named, and none written."""
    first, (run, names), t = asked(monkeypatch), CALLS[name], tensors()
    written = [each for each in names.split() if each in ("sums", "out")]
    for _ in range(4):
        before = [getattr(t, each)._version for each in written]
        run(t)
        assert [getattr(t, each)._version for each in written] == [version + 1 for version in before]
    for which in written:
        kept, count = getattr(t, which), len(first)
        last = torch.ones(2 * SIZE * SIZE, dtype=kept.dtype)
        bytes_of_a = SIZE * SIZE * t.a.itemsize // kept.itemsize
        t.a = last[:bytes_of_a].view(t.a.dtype).view(SIZE, SIZE)
        for shared in (0, 16):
            at = bytes_of_a - shared // kept.itemsize
            setattr(t, which, last[at : at + kept.numel()].view(kept.shape))
            version, launches = last._version, len(noted.arguments)
            if shared:
                with pytest.raises(RuntimeError, match=f"{which}, which is written to, shares memory with a"):
                    run(t)
            else:
                run(t)
                assert len(first) == count
            assert (last._version, len(noted.arguments)) == (version + (not shared), launches + (not shared))
        setattr(t, which, kept)


def test_a_number_that_is_missing_is_named_by_a_repeated_call(noted: BareLaunches) -> None:
    """Launches make a new result, write an operand too, or have an order of tiles."""
    sums = Epilogue(Scale(), RowReduce("sum", "sums"))
    for options in ({"epilogue": Epilogue(Scale())}, {"epilogue": sums}, {"epilogue": sums, "order": "snake"}):
        t = tensors()
        rest = {"sums": t.sums} if options["epilogue"] is sums else {}
        for name in ("alpha", "alpha", "alpha", "beta"):
            count = len(noted.arguments)
            try:
                matmul(t.a, t.b, **options, given={name: 0.5, **rest})
            except ValueError as error:
                assert "alpha" in str(error) and name == "beta" and len(noted.arguments) == count
            else:
                assert name == "alpha" and len(noted.arguments) == count + 1


def test_equal_options_are_those_of_the_kept_call(noted: BareLaunches, monkeypatch: pytest.MonkeyPatch) -> None:
    """Options that a caller makes anew are found by value."""
    t, first = tensors(), asked(monkeypatch)
    rows, groups = torch.ones(800, SIZE).bfloat16(), torch.tensor([0, 400, 800])
    calls: list[Callable[[], Any]] = [
        lambda: matmul(t.a, t.b, epilogue=Epilogue(Scale(), Bias()), given={"alpha": 0.5, "bias": t.bias}),
        lambda: matmul(t.a, t.b, out_dtype=torch.float32, config=Sm90Config((SIZE, SIZE))),
        lambda: matmul(t.a, t.b, activation="".join(["ge", "lu"])),
        lambda: grouped_matmul(rows, t.experts, groups, expected_rows=int("400"), activation="silu"),
    ]
    for run in calls:
        for _ in range(3):
            run()
        count = len(first)
        for _ in range(10):
            run()
        assert len(first) == count


def test_a_repeated_call_refuses_numbers_that_equal_its_options(noted: BareLaunches) -> None:
    """1 == True == 1.0, and a kept call's key compares so: a first call refuses what is of another type."""
    t, rows = tensors(), torch.arange(SIZE)
    doubled = Prologue.of(lambda x, i, k, ops: x + x)
    masked = torch.ones(2, SIZE, SIZE).bfloat16(), t.experts
    counts = torch.tensor([5, 6])
    calls: dict[str, tuple[Callable[[Any], Any], Any, list[Any]]] = {
        "scaled": (lambda x: scaled_matmul(t.a8, t.scale_a, t.b8, t.scale_b, use_fast_accum=x), True, [1, 1.0]),
        "groups": (lambda x: grouped_matmul(t.a, t.experts, t.groups, use_fast_accum=x), True, [1, 1.0]),
        "rows": (lambda x: grouped_matmul(t.a, t.experts, t.groups, expected_rows=x), 1, [True, 1.0]),
        "function": (
            lambda x: grouped_matmul(*masked, counts=counts, prologue=doubled, expected_rows=x), 1, [True, 1.0]),
        "sums": (lambda x: grouped_matmul(t.a, t.experts, t.groups, epilogue=SUMS, given={"sums": t.sums},
                                          expected_rows=x), 1, [True, 1.0]),
        "copies": (lambda x: matmul(t.a, t.b, rows=rows, copy_rows=x, order="lower"), True, [1, 1.0]),
        "tf32": (lambda x: matmul(t.a, (t.b, t.b2), combine="silu", allow_tf32=x), True, [1]),
    }  # fmt: skip
    for name, (run, right, wrong) in calls.items():
        for _ in range(3):
            run(right)
        for x in wrong:
            try:
                run(x)
            except ValueError:
                continue
            raise AssertionError((name, x))


def test_a_recorded_product_of_groups_has_the_tiles_of_expected_rows(noted: BareLaunches) -> None:
    """Training has the kernel that `explain_matmul` states, and the refusals of a call without gradients."""
    t, groups = tensors(), torch.tensor([0, 400, 800])
    sizes: list[list[Any]] = []
    for records in (False, True):
        forget()
        x = torch.ones(800, SIZE).bfloat16().requires_grad_(records)
        for rows in (400, None):
            noted.arguments.clear()
            noted.plans.clear()
            for _ in range(3):
                grouped_matmul(x, t.experts, groups, expected_rows=rows)
            sizes.append([plan.config for plan in noted.plans])
        with pytest.raises(ValueError, match="expected_rows = 700: 2 groups of as many have 1400 rows, and a has 800"):
            grouped_matmul(x, t.experts, groups, expected_rows=700)
    assert sizes[:2] == sizes[2:] and sizes[0] != sizes[1]


def test_calls_with_new_options_each_time_make_no_more_code(
    noted: BareLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A function that each call makes anew is never found again; rows of many counts are, each by its own shape."""
    t, made = tensors(), []
    inner = api.repeated
    monkeypatch.setattr(api, "repeated", lambda *call: made.append("") or inner(*call))
    keys = [Epilogue(Scale(f"alpha{i}")) for i in range(repeated_calls.MAX_OF_KIND + 8)]
    for _ in range(4):
        for each in keys:
            matmul(t.a, t.b, epilogue=each, given={each.numbers[0].name: 1.0})
    assert len(made) == repeated_calls.MAX_OF_KIND
    del made[:]
    rows = [torch.ones(8 * i, SIZE).bfloat16() for i in range(1, 21)]
    for _ in range(4):
        for a in rows:
            matmul(a, t.b, out_dtype=torch.float32)
    assert len(made) == len(rows)


def test_fake_tensors_of_symbolic_sizes_are_no_key(noted: BareLaunches) -> None:
    """Outside of their mode, too."""
    mode = torch._subclasses.FakeTensorMode(shape_env=torch.fx.experimental.symbolic_shapes.ShapeEnv())
    a, b = (mode.from_tensor(x, static_shapes=False) for x in (tensors().a, tensors().b))
    for options in ({"out_dtype": torch.float32}, {"activation": "relu"}):
        assert type(matmul(a, b, **options)).__name__ == "FakeTensor"


def test_what_is_written_overlaps_nothing_and_is_counted(noted: BareLaunches) -> None:
    t = tensors()
    room = torch.zeros(4 * SIZE)
    t.bias, t.sums = room[:SIZE], room[SIZE : 2 * SIZE]
    steps = Epilogue(Bias(), RowReduce("sum", "sums"))

    def run() -> Any:
        return matmul(t.a, t.b, epilogue=steps, given={"bias": t.bias, "sums": t.sums})

    for _ in range(4):
        version = t.sums._version
        run()
        assert t.sums._version == version + 1
    count = len(noted.arguments)
    for first in (0, 4, SIZE - 4):
        t.sums = room[first : first + SIZE]
        with pytest.raises(RuntimeError, match="sums, which is written to, shares memory with bias"):
            run()
    assert len(noted.arguments) == count


def test_a_name_of_an_operand_is_text_in_the_code(noted: BareLaunches) -> None:
    """Names of operands are the caller's, and come into the code that finds a call."""
    t, name = tensors(), "x'] or [\\\"0"
    for _ in range(4):
        with pytest.raises(ValueError):
            matmul(t.a, t.b, epilogue=STEPS, given={"alpha": 1.0, "bias": t.bias, name: 1.0})
    code = repeated_calls.source_of(
        (t.a, t.b),
        {"given": {name: t.bias}},
        repeated_calls.Named([], {}),
        repeated_calls.Named([name], {}),
        False,
        [],
    )
    names: dict[str, Any] = {"check": lambda *x: True, "product": lambda *x: x}
    exec(code, names)
    assert names["again"]((t.a, t.b), {"given": {name: t.bias}}) == (t.a, t.b, t.bias)


def test_calls_of_many_weights_and_epilogues_are_each_found(
    noted: BareLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    t, first = tensors(), asked(monkeypatch)
    weights = [torch.ones(SIZE, SIZE).bfloat16() for _ in range(5)]
    steps = [Epilogue(Scale(), Bias()), Epilogue(Scale("half"), Bias())]
    given = [{"alpha": 0.5, "bias": t.bias}, {"half": 0.5, "bias": t.bias}]

    def step() -> None:
        for b in weights:
            for epilogue, operands in zip(steps, given, strict=True):
                matmul(t.a, b, epilogue=epilogue, given=operands)

    step()
    count = len(first)
    step(), step()
    assert len(first) == count and len(noted.arguments) == 30
    for _ in range(40):  # views made anew, as of a weight's transpose
        matmul(t.a, weights[0].mT.contiguous(), epilogue=steps[0], given=given[0])
    assert len(first) == count and len(noted.arguments) == 70


def test_gradients_and_modes_are_seen(noted: BareLaunches) -> None:
    t = tensors()
    run, _ = CALLS["an epilogue"]
    t.b.requires_grad_()
    with torch.no_grad():
        for _ in range(4):
            assert not run(t).requires_grad
    assert run(t).requires_grad
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.float16):
        assert run(t).dtype == torch.float16
    count = len(noted.arguments)
    with torch._subclasses.FakeTensorMode() as mode, torch.no_grad():
        t = SimpleNamespace(**{
            name: mode.from_tensor(x) if isinstance(x, torch.Tensor) else x for name, x in vars(t).items()
        })  # fmt: skip
        assert type(run(t)).__name__ == "FakeTensor"
    assert len(noted.arguments) == count


OTHERS: dict[str, tuple[Callable[[SimpleNamespace], Any], str]] = {
    "packed weights": (lambda t: quantized_matmul(t.a, PACKED), "a"),
    "float8 of both": (lambda t: fp8_matmul(t.a, t.b), "a b"),
}


@pytest.mark.parametrize("case", ["an activation", "an epilogue", "groups and a bias", "scales and a bias", *OTHERS])
def test_a_first_call_in_a_capture_may_free_memory(
    case: str, noted: BareLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python collects while a kernel is derived; a repeated call asks for nothing."""
    entered = []

    @contextmanager
    def allowed() -> Iterator[None]:
        entered.append(len(noted.arguments))
        yield

    forget()
    call, given = {**CALLS, **OTHERS}[case][0], tensors()
    monkeypatch.setattr(capture, "allowed_in_capture", allowed)
    for name in ("is_initialized", "is_current_stream_capturing"):
        monkeypatch.setattr(torch.cuda, name, lambda: True)
    call(given)
    assert entered and entered[0] == 0 and noted.arguments, "before the launch"
    for _ in range(2):
        call(given)
    entered.clear()
    call(given)
    assert not entered


class Seen(torch.overrides.TorchFunctionMode):
    """A mode that sees functions."""


def weights() -> QuantizedWeight:
    return QuantizedWeight.quantize(torch.ones(SIZE, SIZE), QuantizedFormat("int4", 128))


PACKED_CHANGES: dict[str, tuple[Callable[[Any], Any], dict[str, Any], Callable[[], Any]]] = {
    **{name: (change, {}, nullcontext) for name, change in CHANGES.items()},
    "a mode of functions": (lambda x: x, {}, Seen),
    "forward derivatives": (lambda x: x, {}, torch.autograd.forward_ad.dual_level),
    "autocast": (lambda x: x, {}, lambda: torch.autocast("cpu", torch.float16)),
    "an epilogue": (lambda x: x, {"epilogue": Epilogue(Scale()), "given": {"alpha": 0.5}}, nullcontext),
    "an output": (lambda x: x, {"out": torch.ones(SIZE, SIZE).bfloat16()}, nullcontext),
    "an activation": (lambda x: x, {"activation": "silu"}, nullcontext),
    "a bias": (lambda x: x, {"bias": torch.ones(SIZE)}, nullcontext),
    "a type": (lambda x: x, {"out_dtype": torch.float32}, nullcontext),
    "no bias": (lambda x: x, {"bias": None}, nullcontext),
}  # fmt: skip


@pytest.mark.parametrize("name", PACKED_CHANGES)
def test_a_call_with_packed_weights_is_repeated_for_its_like_alone(
    name: str, noted: BareLaunches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A changed call goes through the function; one like the first does not."""
    asked: list[str] = []
    for each in ("find", "_own"):
        inner = getattr(packed, each)
        monkeypatch.setattr(packed, each, lambda *given, inner=inner, each=each: asked.append(each) or inner(*given))
    x, weight = torch.ones(SIZE, SIZE).bfloat16(), weights()
    for _ in range(3):
        quantized_matmul(x, weight)
    kept, count = noted.arguments[-1], len(asked)
    quantized_matmul(x.clone(), weight)
    assert len(asked) == count or not C_CALLS
    change, options, mode = PACKED_CHANGES[name]
    changed, same = change(x), name in ("nothing", "memory")
    for own in range(2):
        with mode():
            try:
                quantized_matmul(changed, weight, **options)
            except (RuntimeError, ValueError, TypeError, AttributeError, NotImplementedError):
                assert not same
        if not own or "epilogue" in options or "out" in options:  # others are found the second time
            assert (len(asked) == count) == same or not C_CALLS
        count = len(asked)
    for _ in range(2):
        quantized_matmul(x, weight)
    assert [at for at in kept if at < 1 << 32] == [at for at in noted.arguments[-1] if at < 1 << 32]


def test_packed_weights_of_another_object_are_read(noted: BareLaunches, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights' tensors are read at each call: others of a kind, and those that an object comes to have."""
    x, first, second = torch.ones(SIZE, SIZE).bfloat16(), weights(), weights()
    for weight in (first, second, first, second, first, second):
        for _ in range(3):
            quantized_matmul(x, weight)
            assert weight.units.data_ptr() in noted.arguments[-1]
    object.__setattr__(first, "units", third := second.units.clone())
    quantized_matmul(x, first)
    assert third.data_ptr() in noted.arguments[-1]
    object.__setattr__(first, "kind", "another kind")
    asked, find = [], packed.find
    monkeypatch.setattr(packed, "find", lambda *given: asked.append("") or find(*given))
    quantized_matmul(x, first)  # is no kept call
    assert asked and third.data_ptr() in noted.arguments[-1]
