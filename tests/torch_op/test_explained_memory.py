"""`explain_matmul(...).workspace` beside the memory that a call allocates, for every operator, without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile

from layoutgemm import (
    QuantizedFormat,
    QuantizedWeight,
    explain_matmul,
    grouped_matmul,
    matmul,
    quantized_matmul,
    scaled_matmul,
)
from layoutgemm.kernels.epilogue.chain import Bias, ColumnReduce, Epilogue, RowReduce
from layoutgemm.torch_op.fp8 import launch as fp8_launch
from layoutgemm.torch_op.operands import pairs, several
from layoutgemm.torch_op.quantized import QuantizedExperts, experts, quantized_grouped_matmul
from tests.torch_op.host_launches import bare_launches

BF16, F32, E4M3 = torch.bfloat16, torch.float32, torch.float8_e4m3fn
M, N, K = 256, 512, 512
SCRATCH = 60 * 60  # elements of the buffer of torch's CPU, not GPU, that copies a transpose


def normal(*shape: int, kind: Any = BF16) -> Any:
    return torch.randn(shape).to(kind)


def allocated(run: Callable[[], Any]) -> int:
    """The most bytes at a time that a call allocates beyond its results."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as made:
        found = run()
    results = {x.untyped_storage().data_ptr() for x in (found if isinstance(found, tuple) else (found,))}
    events = []

    def walk(nodes: Any) -> None:
        for node in nodes:
            if node.tag == _EventType.Allocation:
                events.append((node.start_time_ns, node.extra_fields.ptr, node.extra_fields.alloc_size))
            walk(node.children)

    walk(made.profiler.kineto_results.experimental_event_tree())
    events.sort()
    last = {pointer: place for place, (_, pointer, size) in enumerate(events) if size > 0}
    now = most = 0
    for place, (_, pointer, size) in enumerate(events):
        if abs(size) in (SCRATCH * 2, SCRATCH) or (pointer in results and place >= last[pointer]):
            continue
        now += size
        most = max(most, now)
    return most


A, B, ODD, WEIGHTS = normal(M, K), normal(K, N), normal(M, K + 1)[:, :K], normal(N, K)
EACH, OFFSETS, COUNTS = normal(4, K, N), torch.tensor([0, 64, 64, 200, 256]), torch.tensor([10, 0, 256, 3])
A8, W8, EACH8 = normal(M, K, kind=E4M3), normal(N, K, kind=E4M3), normal(4, N, K, kind=E4M3)
SCALES = {"scale_a": torch.rand(M, 4), "scale_b": torch.rand(4, 4)}
COLUMNS = {"scale_a": torch.rand(M, 4), "scale_b": torch.rand(N, 4)}
FEWER = {**COLUMNS, "scale_b": COLUMNS["scale_b"][: N - 4]}
OF_EACH = {"scale_a": torch.rand(M, 4), "scale_b": torch.rand(4, 4, 4)}
OUT, BATCH, ROWS = torch.empty(M, N + 8, dtype=BF16)[:, 4 : N + 4], normal(4, M, K), torch.randint(0, M, (M,))
OUT8 = torch.empty(M, N + 16, dtype=E4M3)[:, 8 : N + 8]
BIAS, LAST, OTHER = torch.rand(N), OFFSETS[1:].clone(), normal(K, N)
PACKED = QuantizedWeight.quantize(torch.randn(N, K), QuantizedFormat("int4", 128))
PACKED_EACH = QuantizedExperts.of([QuantizedWeight.quantize(torch.randn(N, K), QuantizedFormat("int4", 128))] * 4)
SPACED = {name: x.repeat_interleave(2, -1)[..., ::2] for name, x in (("scale_a", torch.rand(M)), ("scale_b", BIAS))}
QUANTIZED = {"out_dtype": E4M3, "out_recipe": "BlockWise1x128"}
NARROW = normal(N - 4, K, kind=E4M3)
SUMS = Epilogue(Bias("n", "f32"), RowReduce("sum", "rows"), ColumnReduce("max", "columns"))
ALONE = Epilogue(RowReduce("argmax", "best"), stores_c=False)
OF_GROUPS = Epilogue(RowReduce("sum", "rows"), ColumnReduce("max", "columns"))


def sums() -> dict[str, Any]:
    return {"bias": BIAS, "rows": torch.empty(M), "columns": torch.empty(N)}


def grouped_sums() -> dict[str, Any]:
    return {"rows": torch.empty(M), "columns": torch.empty(4, N)}


def masked_sums() -> dict[str, Any]:
    return {"rows": torch.empty(4, M), "columns": torch.empty(4, N)}


def best() -> dict[str, Any]:
    return {"best_value": torch.empty(M), "best_index": torch.empty(M, dtype=torch.int32)}


def scaled(a: Any, b: Any, scale_a: Any = None, scale_b: Any = None, **more: Any) -> Any:
    return scaled_matmul(a, scale_a, b, scale_b, **more)


def packed(a: Any, b: Any, scale_a: Any = None, **more: Any) -> Any:
    return quantized_matmul(a, b, scale_x=scale_a, **more)


def packed_experts(a: Any, b: Any, offsets: Any = None, **more: Any) -> Any:
    return quantized_grouped_matmul(a, b, offsets, **more)


CASES: dict[str, tuple[Callable[..., Any], Any, Any, dict[str, Any]]] = {
    "dense": (matmul, A, B, {}),
    "dense, A copied": (matmul, ODD, B, {}),
    "dense, B copied": (matmul, A, normal(K, N + 1), {}),
    "dense, few rows, K in parts": (matmul, A[:16], normal(8 * K, N)[:K], {}),
    "dense, a batch": (matmul, BATCH, EACH, {}),
    "dense, out": (matmul, A, B, {"out": OUT}),
    "dense, out of spaced columns": (matmul, A, B, {"out": torch.empty(M, 2 * N, dtype=BF16)[:, ::2]}),
    "reductions": (matmul, A, B, {"epilogue": SUMS, "given": sums}),
    "a reduction without C, A copied": (matmul, ODD, B, {"epilogue": ALONE, "given": best}),
    "several B": (matmul, A, (B, OTHER), {"combine": "silu"}),
    "pairs": (matmul, (A, A.clone()), (B, OTHER), {}),
    "gated": (matmul, A, WEIGHTS.T, {"activation": "swiglu"}),
    "gated by torch": (matmul, A, B, {"activation": "swiglu"}),
    "scaled": (scaled, A8, W8.T, SCALES),
    "scaled, C of a longer pitch": (scaled, A8, NARROW.T, SCALES),
    "scaled, B copied": (scaled, A8, W8, SCALES),
    "scaled, out copied": (scaled, A8, W8.T, {**SCALES, "out": OUT}),
    "scaled rows copied": (scaled, A8, W8.T, SPACED),
    "scaled, gated": (scaled, A8, W8.T, {**SCALES, "activation": "swiglu"}),
    "quantised by two kernels": (scaled, A8, W8.T, {**COLUMNS, **QUANTIZED}),
    "quantised by two kernels, a longer pitch": (scaled, A8, NARROW.T, {**FEWER, **QUANTIZED}),
    "quantised by two kernels, out copied": (scaled, A8, W8.T, {**COLUMNS, **QUANTIZED, "out": OUT8}),
    "quantised by one kernel, few rows": (scaled, A8, W8.T, {**SCALES, **QUANTIZED}),
    "quantised by one kernel, rows": (scaled, A8, W8.T, {"scale_a": SCALES["scale_a"][:, :1].clone(), **QUANTIZED}),
    "quantised by one kernel, out copied": (scaled, A8, W8.T, {**SCALES, **QUANTIZED, "out": OUT8}),
    "quantised by two kernels, gated": (scaled, A8, W8.T, {**SCALES, **QUANTIZED, "activation": "swiglu"}),
    "quantised by one kernel": (scaled, normal(8 * M, K, kind=E4M3), normal(8 * N, K, kind=E4M3).T,
                                {"scale_a": torch.rand(8 * M, 4), "scale_b": torch.rand(32, 4), **QUANTIZED}),
    "groups": (grouped_matmul, A, EACH, {"offsets": OFFSETS}),
    "groups by ends": (grouped_matmul, A, EACH, {"offs": LAST}),
    "groups by spaced ends": (grouped_matmul, A, EACH, {"offs": LAST.repeat_interleave(2)[::2]}),
    "groups of columns": (grouped_matmul, EACH, A.T, {"offsets": OFFSETS}),
    "groups of columns, B copied": (grouped_matmul, EACH, normal(K, M), {"offsets": OFFSETS}),
    "groups along K": (grouped_matmul, A.T, A, {"offs": LAST}),
    "groups along K, A copied": (grouped_matmul, normal(K, M), A, {"offs": LAST}),
    "masked groups": (grouped_matmul, BATCH, EACH, {"counts": COUNTS}),
    "groups of a batch": (grouped_matmul, BATCH, EACH, {}),
    "groups with scales": (grouped_matmul, A8, EACH8.mT, {"offsets": OFFSETS, **OF_EACH}),
    "groups with reductions": (grouped_matmul, A, EACH, {"offs": LAST, "epilogue": OF_GROUPS, "given": grouped_sums}),
    "groups with reductions, A and out copied": (
        grouped_matmul, ODD, EACH, {"offs": LAST, "out": OUT, "epilogue": OF_GROUPS, "given": grouped_sums}
    ),
    "masked groups with reductions": (
        grouped_matmul, BATCH, EACH, {"counts": COUNTS, "epilogue": OF_GROUPS, "given": masked_sums}
    ),
    "rows of groups with scales and reductions": (grouped_matmul, A8, EACH8.mT, {
        "offs": LAST, "rows": ROWS, "epilogue": Epilogue(RowReduce("sum", "sums"), stores_c=False),
        "given": lambda: {"sums": torch.empty(M)}, **OF_EACH,
    }),
    "gated groups": (grouped_matmul, A, EACH.mT, {"offsets": OFFSETS, "activation": "swiglu"}),
    "gated groups by torch": (grouped_matmul, A, EACH, {"offsets": OFFSETS, "activation": "swiglu", "bias": BIAS}),
    "gated groups with scales": (grouped_matmul, A8, EACH8.mT, {"offsets": OFFSETS, "activation": "geglu", **OF_EACH}),
    "rows gathered": (matmul, A, B, {"rows": ROWS}),
    "rows copied": (matmul, A, B, {"rows": ROWS, "copy_rows": True}),
    "rows scattered": (matmul, A, B, {"out_rows": torch.randperm(M)}),
    "rows gated": (matmul, A, WEIGHTS.T, {"rows": ROWS, "activation": "swiglu"}),
    "rows of gated groups with scales": (grouped_matmul, A8, EACH8.mT,
                                         {"offs": LAST, "rows": ROWS, "activation": "swiglu", **OF_EACH}),
    "packed weights": (packed, A, PACKED, {}),
    "packed weights, few rows": (packed, A[:4], PACKED, {}),
    "packed weights, x copied": (packed, ODD, PACKED, {}),
    "packed experts": (packed_experts, A, PACKED_EACH, {"offsets": OFFSETS}),
}  # fmt: skip


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Launches that compute nothing, of every operator."""
    with bare_launches(monkeypatch), torch.no_grad():
        for module in (several, pairs, fp8_launch, experts):
            monkeypatch.setattr(module, "on_gpu", lambda index: True)
        made = SimpleNamespace(launcher=None)
        monkeypatch.setattr(experts, "compile_apart", lambda plan: made)
        monkeypatch.setattr(experts, "DirectLaunch", lambda *x: SimpleNamespace(launch=lambda *y: None))
        monkeypatch.setattr(experts, "raw_stream", lambda index: 77)
        experts._prepared.cache_clear()
        fp8_launch.READY.clear()
        yield
        experts._prepared.cache_clear()
        fp8_launch.READY.clear()


@pytest.mark.usefixtures("bare")
@pytest.mark.parametrize("name", CASES)
def test_a_call_allocates_what_its_explanation_says(name: str) -> None:
    """The first call, and the next, whose launch is kept."""
    for _ in range(3):  # a process's first kept call finds out how torch lays out tensors, by small ones
        matmul(A[:2], B)
    call, a, b, more = CASES[name]
    options = {key: x() if callable(x) and key == "given" else x for key, x in more.items()}
    told = explain_matmul(a, b, **options)
    assert ("then a kernel quantises it" in told.kernel) == ("two kernels" in name)
    copies = sum(int(text.rpartition(", ")[2].partition(" ")[0]) for text in told.copies)
    assert told.workspace == copies or "torch gates" in told.kernel
    for _ in range(2):
        assert allocated(lambda: call(a, b, **options)) == told.workspace, str(told)
