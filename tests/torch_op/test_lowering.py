"""Inductor's code for the operators: calls without torch's dispatcher, of the same results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install 'layoutgemm[torch]'")

from torch._inductor.utils import run_and_get_code

from layoutgemm import QuantizedFormat, QuantizedWeight, grouped_matmul, matmul, quantized_matmul, scaled_matmul
from layoutgemm.torch_op.compiled import lowering

BF16, E4M3 = torch.bfloat16, torch.float8_e4m3fn


def normal(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def compiled(function: Callable[..., Any], *inputs: Any, **options: Any) -> tuple[Any, list[str]]:
    """The result, and the calls of ours in the code that Inductor wrote."""
    torch._dynamo.reset()
    with torch.no_grad():
        result, sources = run_and_get_code(torch.compile(function, fullgraph=True, **options), *inputs)
    lines = "\n".join(sources).splitlines()
    return result, [line.strip() for line in lines if "(" in line and "layoutgemm" in line and "#" not in line]


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
    assert line.startswith(f"layoutgemm_direct.{name.split()[0]}(") and "out=" in line


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
    result, sources = run_and_get_code(torch.compile(lambda a, b: matmul(a, b), fullgraph=True), a, b)
    grad = normal(24, 40)
    found = torch.autograd.grad(result, (a, b), grad)
    want = torch.autograd.grad(matmul(a, b), (a, b), grad)
    assert all(torch.equal(x, y) for x, y in zip(found, want, strict=True))
    assert "layoutgemm_direct.matmul(" in sources[0] and "torch.ops.layoutgemm" not in sources[0]


def test_a_result_of_contiguous_columns_stays_the_operators() -> None:
    """Groups of columns: the operator makes it, and the results agree."""
    function = lambda a, b, offs: grouped_matmul(a, b, offs=offs)  # noqa: E731
    inputs = normal(2, 24, 64), normal(40, 64).mT, torch.tensor([8, 40], dtype=torch.int32)
    got, lines = compiled(function, *inputs)
    assert torch.equal(got, function(*inputs)) and "layoutgemm_direct" not in "".join(lines)


def test_every_operator_has_a_lowering() -> None:
    assert lowering.register()
    from torch._inductor.lowering import lowerings

    for name in ("matmul", "finished", "gated", "scaled_matmul", "grouped_matmul", "quantized_matmul"):
        assert getattr(torch.ops.layoutgemm, name).default in lowerings
