"""Inductor's code for the operators: calls without torch's dispatcher, of the same results."""

from __future__ import annotations

import re
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch._inductor import config as inductor
from torch._inductor.utils import run_and_get_code

from layoutgemm import (
    QuantizedFormat,
    QuantizedWeight,
    Sm90Config,
    fp8_matmul,
    grouped_matmul,
    matmul,
    quantize,
    quantized_matmul,
    scaled_matmul,
)
from layoutgemm.kernels.epilogue.chain import Bias, Epilogue, RowReduce
from layoutgemm.torch_op.compiled import direct, lowering
from layoutgemm.torch_op.composed.parts import PLACED, AskedParts, parts_text
from layoutgemm.torch_op.prepared import config_text
from layoutgemm.torch_op.scaled_grouped import kept

CALL = re.compile(r"(?!.*layoutgemm_direct\.site)(\w+ = )?(layoutgemm_direct[._]|torch\.ops\.layoutgemm\.)")
BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


def normal(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def compiled(function: Callable[..., Any], *inputs: Any, **options: Any) -> tuple[Any, list[str]]:
    """The result, and the calls of ours in the code that Inductor wrote, now: kept code may be another version's."""
    torch._dynamo.reset()
    with torch.no_grad(), inductor.patch(force_disable_caches=True):
        result, sources = run_and_get_code(torch.compile(function, fullgraph=True, **options), *inputs)
    lines = "\n".join(sources).splitlines()
    return result, [line.strip() for line in lines if CALL.match(line.strip())]


A, B, BIAS = normal(24, 64), normal(40, 64).mT, normal(40)
SCALES = torch.rand(24, 1), torch.rand(1, 1)
EIGHT = normal(24, 64, dtype=E4M3), normal(40, 64, dtype=E4M3).mT
OFFS = torch.tensor([5, 20], dtype=torch.int32)
EACH = normal(2, 40, 64).mT
PACKED, BY_COLUMN = (QuantizedWeight.quantize(B.mT, QuantizedFormat("int4", group)) for group in (32, None))
OF_EIGHT = QuantizedWeight.quantize(B.mT, QuantizedFormat("int4", 32), E4M3)
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "matmul": (lambda a, b: matmul(a, b), (A, B)),
    "matmul of f32": (lambda a, b: matmul(a, b, out_dtype=torch.float32), (A, B)),
    "matmul of a batch": (lambda a, b: matmul(a, b), (normal(3, 24, 64), B)),
    "matmul of slices": (lambda a, b: matmul(a[4:, 16:48], b.mT[:, 16:48].mT), (A, B)),
    "finished": (lambda a, b, c: matmul(a, b, bias=c, activation="gelu"), (A, B, BIAS)),
    "finished without bias": (lambda a, b: matmul(a, b, activation="silu"), (A, B)),
    "gated": (lambda a, b: matmul(a, b, activation="swiglu"), (A, B)),
    "scaled_matmul": (lambda a, s, b, t: scaled_matmul(a, s, b, t), (EIGHT[0], SCALES[0], EIGHT[1], SCALES[1])),
    "scaled_matmul with bias": (
        lambda a, s, b, t, c: scaled_matmul(a, s, b, t, bias=c, activation="relu"),
        (EIGHT[0], SCALES[0], EIGHT[1], SCALES[1], BIAS),
    ),
    "grouped_matmul": (lambda a, b, offs: grouped_matmul(a, b, offs=offs), (A, EACH, OFFS)),
    "quantized_matmul": (lambda a: quantized_matmul(a, PACKED), (A,)),
    "quantized_matmul with bias": (
        lambda a, c: quantized_matmul(a, BY_COLUMN, bias=c, activation="silu", out_dtype=torch.float32),
        (A, BIAS),
    ),
    "quantized_matmul of float8": (
        lambda a, s, c: quantized_matmul(a, OF_EIGHT, scale_x=s, bias=c),
        (EIGHT[0], SCALES[0], BIAS),
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_generated_code_calls_it_directly(name: str) -> None:
    """Rows in no group are zeros too: the last rows of `grouped_matmul` here."""
    function, inputs = CALLS[name]
    got, lines = compiled(function, *inputs)
    assert torch.equal(got, function(*inputs))
    (line,) = lines
    assert re.match(rf"layoutgemm_direct_{name.split()[0]}_[0-9a-f]{{16}}\(", line) and "out=" in line
    assert "reinterpret_tensor" not in line  # views are the site's


STEPS = Epilogue(Bias("n", "bf16"), RowReduce("sum", "total"))


def written(a: Any, b: Any, c: Any, **options: Any) -> tuple[Any, Any]:
    """C, and the sums that the epilogue writes."""
    total = a.new_zeros(a.shape[0], dtype=torch.float32)
    return matmul(a, b, epilogue=STEPS, given={"bias": c, "total": total}, **options), total


def test_calls_that_write_need_no_dispatcher() -> None:
    """One whose order leaves tiles out, and one of every tile."""

    def both(a: Any, b: Any, c: Any) -> tuple[Any, ...]:
        return *written(a, b, c), *written(a, b, c, order="lower")

    got, lines = compiled(both, A, B, BIAS)
    for x, y in zip(got, both(A, B, BIAS), strict=True):
        assert torch.equal(x, y) and x.any()
    names = ("epilogue_matmul", "composed_matmul_writing")
    assert [f"layoutgemm_direct.{name}(" in line for name, line in zip(names, lines, strict=True)] == [True, True]


LEAST = Epilogue(RowReduce("min", "least"), stores_c=False)


def scaled_and_grouped(a: Any, s: Any, b: Any, t: Any, x: Any, experts: Any, offs: Any, c: Any) -> tuple[Any, ...]:
    """Sums of rows beside C: scaled, by A's scale alone, of groups; then a gate's least."""
    totals, least = [x.new_zeros(24, dtype=torch.float32) for _ in range(3)], x.new_zeros(24, dtype=torch.float32)
    given = [{"bias": c, "total": total} for total in totals]
    one = scaled_matmul(a, s, b, t, epilogue=STEPS, given=given[0], out_dtype=BF16)
    two = scaled_matmul(a, s, b, epilogue=STEPS, given=given[1], use_fast_accum=False)
    three = grouped_matmul(x, experts, offs=offs, epilogue=STEPS, given=given[2])
    none = grouped_matmul(x, experts, offs=offs, activation="swiglu", epilogue=LEAST, given={"least": least})
    return one, two, three, none, *totals, least


def test_scaled_and_grouped_calls_that_write_need_no_dispatcher() -> None:
    inputs = EIGHT[0], SCALES[0], EIGHT[1], SCALES[1], A, EACH, OFFS, BIAS
    got, lines = compiled(scaled_and_grouped, *inputs)
    for x, y in zip(got, scaled_and_grouped(*inputs), strict=True):
        assert torch.equal(x, y)
    names = ["scaled_epilogue_matmul"] * 2 + ["grouped_epilogue_matmul"] * 2
    assert [f"layoutgemm_direct.{name}(" in line for name, line in zip(names, lines, strict=True)] == [True] * 4


NO_GROUP = {
    "rows": (normal(24, 64), normal(2, 40, 64).mT, {}),
    "gated rows": (normal(24, 64), normal(2, 40, 64).mT, {"activation": "swiglu"}),
    "rows with a bias": (normal(24, 64), normal(2, 40, 64).mT, {"bias": BIAS}),
    "columns of one row": (normal(2, 1, 64), normal(64, 24), {}),
    "no K": (normal(24, 0), normal(2, 0, 40), {}),
    "no groups": (normal(24, 64), normal(0, 64, 40), {}),
}


@pytest.mark.parametrize("name", NO_GROUP)
def test_what_is_in_no_group_is_zero_on_each_path(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator and direct calls into memory give the zeros of a new result."""
    a, b, options = NO_GROUP[name]
    ends = OFFS[: max(a.ndim == 3, b.shape[0] if b.ndim == 3 else 0) * 2]
    want = grouped_matmul(a, b, offs=ends, **options)
    last = int(ends[-1]) if len(ends) else 0
    left = want[..., last:] if a.ndim == 3 else want[last:]
    assert left.numel() and not left.any()
    named = {"bias": options.get("bias"), "activation": options.get("activation")}
    operator = torch.ops.layoutgemm.grouped_matmul(a, b, ends, "offs", **named)
    assert torch.equal(operator, want)
    out = torch.full_like(want, float("nan"))
    tensors = ("groups", *["bias"] * ("bias" in options))
    direct.grouped_matmul(
        a, b, ends, *[options[x] for x in tensors[1:]], out=out, said="offs", activation=options.get("activation"),
        recipe_a="", recipe_b="", use_fast_accum=True, config="", tensors=tensors,
    )  # fmt: skip
    assert torch.equal(out, want)
    kept = torch.full_like(want, 7.0)
    grouped_matmul(a, b, offs=ends, out=kept, **options)
    assert bool(((kept[..., last:] if a.ndim == 3 else kept[last:]) == 7).all())


@pytest.mark.dsl
def test_a_direct_call_launches_one_kernel_and_clears_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice: the long way and kept. The last rows are in no group."""
    from tests.torch_op.test_operator import emulated, integers

    small = config_text(Sm90Config((64, 64), consumers=1, stages=2, loader="warp"))
    options = {"said": "offs", "activation": None, "recipe_a": "", "recipe_b": "", "use_fast_accum": True,
               "config": small, "tensors": ("groups",)}  # fmt: skip
    a, b = integers(24, 64), integers(2, 40, 64).mT
    want = grouped_matmul(a, b, offs=OFFS)
    with emulated(monkeypatch) as calls:
        monkeypatch.setattr(torch.Tensor, "zero_", None)  # no other launch zeroes
        for turn in (1, 2):
            out = torch.full_like(want, float("nan"))
            direct.grouped_matmul(a, b, OFFS, out=out, **options)
            assert torch.equal(out, want) and len(calls) == turn
            monkeypatch.setattr(kept, "launch_of", None)


SEVERAL: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "quantize": (lambda x: quantize(x), (normal(24, 200),)),
    "quantize with options": (
        lambda x: quantize(x.mT, "RowWise", dtype=torch.float8_e5m2, power_of_two=True, scale_major="k"),
        (normal(24, 200),),
    ),
    "scaled_matmul_quantized": (
        lambda a, s, b, t: scaled_matmul(a, s, b, t, out_dtype=E4M3, out_recipe="BlockWise1x128"),
        (EIGHT[0], SCALES[0], EIGHT[1], SCALES[1]),
    ),
    "scaled_matmul_quantized with bias": (
        lambda a, s, b, c: scaled_matmul(
            a, s, b, bias=c, activation="silu", out_dtype=torch.float8_e5m2, out_recipe="BlockWise1x128"
        ),
        (EIGHT[0], SCALES[0], EIGHT[1], BIAS),
    ),
}


@pytest.mark.parametrize("name", SEVERAL)
def test_calls_with_two_results_are_direct_too(name: str) -> None:
    function, inputs = SEVERAL[name]
    got, lines = compiled(function, *inputs)
    want = function(*inputs)
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.dtype) == (y.shape, y.dtype) and torch.equal(x.float(), y.float())
        assert x.stride() == y.stride()
    (line,) = lines
    assert f"= layoutgemm_direct.{name.split()[0]}(" in line


def test_a_float8_layer_is_direct_calls_forward_and_backward() -> None:
    """With a size that is a symbol, and results of one call in the next."""
    torch._dynamo.reset()
    a, b = normal(24, 256).requires_grad_(), normal(136, 256).requires_grad_()

    def layer(a: Any, b: Any) -> Any:
        return fp8_matmul(torch.relu(a), b.mT)

    call = torch.compile(layer, fullgraph=True, dynamic=True)
    grad = normal(24, 136)

    def step() -> tuple[Any, ...]:
        result = call(a, b)
        return result, *torch.autograd.grad(result, (a, b), grad)

    with inductor.patch(force_disable_caches=True):
        found, sources = run_and_get_code(step)
    wanted = layer(a, b)
    want = wanted, *torch.autograd.grad(wanted, (a, b), grad)
    assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))
    calls = [line.strip() for line in "".join(sources).splitlines() if CALL.match(line.strip())]
    assert len(sources) == 2 and sum("= layoutgemm_direct.quantize_together(" in line for line in calls) == 2
    assert sum(line.startswith("layoutgemm_direct.scaled_matmul(") for line in calls) == 3 and len(calls) == 5


def test_sizes_may_be_symbols() -> None:
    torch._dynamo.reset()
    call = torch.compile(lambda a, b: matmul(a, b), fullgraph=True, dynamic=True)
    with torch.no_grad():
        for m in (5, 9, 17):
            a = normal(m, 64)
            assert torch.equal(call(a, B), matmul(a, B))


def test_rows_may_be_counted_at_run_time() -> None:
    """As tokens that a router picks: their number is no size that the compiler knows."""
    kept = torch.tensor([True, False, True] * 8)
    with torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True):
        got, lines = compiled(lambda a, b, keep: matmul(a[keep.nonzero().squeeze(-1)], b), A, B, kept)
    assert torch.equal(got, matmul(A[kept], B)) and len(lines) == 1


def test_gradients_are_direct_calls_too() -> None:
    torch._dynamo.reset()
    a, b = normal(24, 64).requires_grad_(), normal(64, 40).requires_grad_()
    with inductor.patch(force_disable_caches=True):
        result, sources = run_and_get_code(torch.compile(lambda a, b: matmul(a, b), fullgraph=True), a, b)
    grad = normal(24, 40)
    found = torch.autograd.grad(result, (a, b), grad)
    want = torch.autograd.grad(matmul(a, b), (a, b), grad)
    assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))
    assert "layoutgemm_direct_matmul_" in sources[0] and "torch.ops.layoutgemm" not in sources[0]


def test_a_result_of_contiguous_columns_stays_the_operators() -> None:
    """Groups of columns: the operator makes it, and the results agree."""
    function = lambda a, b, offs: grouped_matmul(a, b, offs=offs)  # noqa: E731
    inputs = normal(2, 24, 64), normal(40, 64).mT, torch.tensor([8, 40], dtype=torch.int32)
    got, lines = compiled(function, *inputs)
    assert torch.equal(got, function(*inputs)) and "layoutgemm_direct" not in "".join(lines)


@pytest.mark.parametrize("name", sorted(PLACED))
def test_code_gives_memory_to_results_that_depend_on_none(name: str) -> None:
    """Memory that Inductor allocates holds anything: a call into it writes every element."""
    indices, text = torch.arange(24).flip(0), parts_text(AskedParts(), 1, (name,), ())
    given: Any = {"numbers": (), "wholes": (), "parts": text, "config": "", "allow_tf32": None}
    results = [torch.full((24 if name == "rows" else 30, 40), first).bfloat16() for first in (0.0, 7.0)]
    for out in results:
        direct.composed_matmul(A, B, indices, out=out, **given)
    assert lowering._writes_every_element(text, ()) is torch.equal(*results)


def test_rows_are_added_to_zeros() -> None:
    places = torch.arange(24) // 2
    result, calls = compiled(lambda a, b, i: matmul(a, b, add_rows=i), A, B, places)
    assert torch.equal(result, matmul(A, B, add_rows=places)) and "composed_result" in calls[0]


def test_every_operator_has_a_lowering() -> None:
    assert lowering.register()
    from torch._inductor.lowering import lowerings

    for name in ("matmul", "finished", "gated", *(x for x in (*CALLS, *SEVERAL) if " " not in x)):
        assert getattr(torch.ops.layoutgemm, name).default in lowerings


def test_sites_differ_where_launches_do() -> None:
    """In one graph on two GPUs, too: a kept launch is of one."""

    class Stand:
        def __init__(self, device: str = "cuda:0", size: tuple[int, ...] = (8, 16), kind: Any = BF16) -> None:
            self.device, self.size, self.kind = torch.device(device), size, kind

        get_device = lambda self: self.device  # noqa: E731
        get_size = lambda self: self.size  # noqa: E731
        get_dtype = lambda self: self.kind  # noqa: E731
        get_stride = lambda self: (self.size[1], 1)  # noqa: E731
        get_layout = lambda self: SimpleNamespace(offset=0)  # noqa: E731

    def name(*tensors: Stand) -> str:
        found = lowering._site("layoutgemm_direct.matmul", {"config": ""}, tensors)
        assert found is not None
        return found[0]

    same = name(Stand(), Stand())
    others = [name(x, x) for x in (Stand("cuda:1"), Stand(size=(8, 32)), Stand(kind=torch.float16))]
    assert name(Stand(), Stand()) == same and len({same, *others}) == 4
