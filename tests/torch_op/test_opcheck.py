"""torch.library.opcheck of every operator, over types, layouts and recorded derivatives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests import needs

torch = needs.module("torch")

import torch.distributed as dist

import layoutgemm.nn  # noqa: F401 - with torch_op it defines every operator of one process
from layoutgemm.distributed.operators import name_of
from layoutgemm.kernels import Prologue
from layoutgemm.kernels.epilogue.chain import Activation, Aux, Bias, Epilogue
from layoutgemm.kernels.operands.combined import function_of
from layoutgemm.kernels.quantized.formats import QuantizedFormat
from layoutgemm.torch_op.composed.parts import AskedParts, parts_text
from layoutgemm.torch_op.quantized import QuantizedExperts, QuantizedWeight
from layoutgemm.torch_op.quantized.dense import facts_of

BF16, F16, F32, E4M3, E5M2 = torch.bfloat16, torch.float16, torch.float32, torch.float8_e4m3fn, torch.float8_e5m2
PREFIX = "layoutgemm::"
OFFSETS, PICKED = torch.tensor([0, 2, 5], dtype=torch.int32), torch.tensor([3, 1, 1])
BIASED = Epilogue(Bias("n", "bf16"), Activation("gelu"))
KEPT = Epilogue(Bias("n", "bf16"), Aux("bf16"), Activation("relu"))
SCALED = Prologue.of(lambda x, i, k, ops, s: x * s, s="m").json
SILU = function_of("silu", 2, ()).json
PAIRS = parts_text(AskedParts(activation="gelu"), 1, ("bias",), ())
LOWER = parts_text(AskedParts("lower"), 1, (), ())
WRITES = parts_text(AskedParts("lower", epilogue=KEPT), 1, (), ("bias", "aux"))


def drawn(*shape: int, kind: Any = BF16) -> Any:
    return (torch.randint(-8, 9, shape).float() / 8).to(kind)


def columns(*shape: int, kind: Any = BF16) -> Any:
    """A matrix, or a batch of matrices, whose columns are contiguous."""
    *front, rows, wide = shape
    return drawn(*front, wide, rows, kind=kind).mT


def pitched(*shape: int, kind: Any = BF16) -> Any:
    """A matrix whose rows are apart in memory."""
    *front, wide = shape
    return drawn(*front, wide + 5, kind=kind)[..., 2 : wide + 2]


def stretched(*shape: int) -> Any:
    """A batch of one matrix at one address."""
    return drawn(*shape[1:]).expand(*shape)


A, B, UP, BIAS = drawn(5, 8), drawn(8, 6), drawn(8, 6), drawn(6)
EIGHT, SCALE = (drawn(5, 128, kind=E4M3), columns(128, 128, kind=E4M3)), (torch.rand(5, 1), torch.rand(1, 1))
FACTORS = [torch.full((n, 4), 2.0).to(torch.float8_e8m0fnu) for n in (5, 128)]
GROUPS, EIGHTS = drawn(2, 8, 6), columns(2, 128, 64, kind=E4M3)
INT4 = QuantizedWeight.quantize(torch.randn(64, 128), QuantizedFormat("int4", 64))
EXPERTS = QuantizedExperts.of([INT4, INT4])
FACTS = facts_of(INT4.format, INT4.n, INT4.k)

# Arguments of each operator. A tensor of 16 bits or more, outside of `written`, takes a derivative where one is had.
CALLS: dict[str, list[tuple[Any, ...]]] = {
    "matmul": [
        (pitched(5, 7), columns(7, 3)), (drawn(2, 1, 5, 7), stretched(3, 7, 4), F32), (columns(5, 8), B, F32),
        (drawn(2, 5, 7, kind=F32), drawn(7, 4, kind=F32), None, "", True),
        (drawn(5, 7, kind=F32), drawn(2, 7, 4, kind=F32), None, "", True), (A, B), (A.half(), B.half()),
        (drawn(0, 8), B), (drawn(5, 0), drawn(0, 6)), (drawn(5, 16, kind=E5M2), columns(16, 8, kind=E4M3)),
        (torch.ones(5, 16, dtype=torch.int8), torch.ones(16, 8, dtype=torch.int8)),
    ],
    "finished": [(pitched(5, 8), columns(8, 6), BIAS, each, BF16) for each in (None, "relu", "gelu")],
    "gated": [(stretched(2, 5, 8), columns(8, 6), "geglu", BF16)],
    "epilogue_matmul": [(pitched(5, 8), columns(8, 6), [BIAS], [], [], [], BIASED.json),
                        (A, B, [BIAS], [drawn(5, 6)], [], [], KEPT.json)],
    "combined_matmul": [(columns(5, 8), [pitched(8, 6), columns(8, 6)], [], SILU)],
    "prologue_matmul": [(pitched(5, 8), columns(8, 6), [torch.rand(5)], SCALED, BIAS, "gelu")],
    "prologue_grouped_matmul": [(A, columns(2, 8, 6), OFFSETS, [torch.rand(5)], SCALED)],
    "combined_grouped_matmul": [
        (A, [GROUPS, columns(2, 8, 6)], OFFSETS, [], SILU, "offsets", None, drawn(2, 6), "gelu"),
    ],
    "combined_scaled_grouped_matmul": [
        (drawn(5, 32, kind=E4M3), [columns(2, 32, 16, kind=E4M3), drawn(2, 32, 16, kind=E4M3)], OFFSETS,
         torch.rand(5, 1), [torch.rand(2, 1, 16), torch.rand(2, 1, 16)], [], SILU),
    ],
    "indexed_matmul": [(A, columns(8, 6), PICKED, None, None, None, None, None),
                       (A, GROUPS, PICKED, None, None, OFFSETS[:3].clamp(max=3), None, None)],
    "composed_matmul": [([pitched(5, 8), columns(5, 9)], [B, columns(9, 6)], [BIAS], [], [], PAIRS),
                        ([A], [B], [], [], [], LOWER)],
    "composed_matmul_writing": [([A, drawn(5, 9)], [B, drawn(9, 6)], [BIAS], [drawn(5, 6)], [], [], WRITES)],
    "visited_part": [(drawn(5, 6), [A], [B], [], [], [], LOWER, BF16)],
    "grouped_matmul": [(columns(5, 8), columns(2, 8, 6), OFFSETS), (columns(8, 5), drawn(5, 6), OFFSETS),
                       (A, GROUPS, OFFSETS, "offsets", None, None, F32, "", "", "", drawn(2, 6), "gelu")],
    "added_rows": [(drawn(4, 6), torch.tensor([1, 3, 1, 9, -1]), drawn(5, 6))],
    "grouped_epilogue_matmul": [
        (A, columns(2, 8, 6), OFFSETS, None, None, None, [drawn(2, 6)], [], [], [], BIASED.json),
        (A, GROUPS, OFFSETS, None, None, None, [drawn(2, 6), columns(2, 8, 6)], [], [], [], BIASED.json, "offsets",
         None, "", "", True, "", None, SILU),
    ],
    "quantized_matmul": [(pitched(3, 128), INT4.units, INT4.scales, drawn(64), "silu", *FACTS)],
    "quantized_epilogue_matmul": [
        (pitched(3, 128), INT4.units, INT4.scales, None, [drawn(64)], [], [], [], BIASED.json, *FACTS),
        (pitched(3, 128), INT4.units, INT4.scales, None, [drawn(64)], [drawn(3, 64)], [], [], KEPT.json, *FACTS),
    ],
    "quantized_grouped_matmul": [(pitched(5, 128), EXPERTS.units, EXPERTS.scales, OFFSETS, "relu", *FACTS)],
    "dequantized": [(INT4.units, INT4.scales, BF16, *FACTS)],
    "fp8_product": [(pitched(5, 128), columns(64, 128), drawn(64), "BlockWise1x128", "BlockWise128x128", BF16, True),
                    (drawn(2, 5, 16), drawn(2, 6, 16), None, "RowWise", "TensorWise", F32, False)],
    "fp8_grouped_product": [(pitched(5, 128), columns(2, 128, 64), OFFSETS, "offsets", 1, F32)],
    "quantize": [(pitched(2, 5, 130),), (columns(5, 130), "BlockWise128x128", E5M2, True, "k")],
    "quantize_both": [(columns(5, 130), E5M2, False, "k")],
    "quantize_together": [([A, columns(5, 130)], "RowWise,BlockWise1x128", [False, True])],
    "scaled_matmul": [
        (EIGHT[0], SCALE[0], EIGHT[1], SCALE[1], drawn(128), "gelu"),
        (drawn(5, 300, kind=E5M2), torch.rand(5, 3), columns(300, 130, kind=E4M3), torch.rand(2, 3)),
        (EIGHT[0], torch.rand(5, 1), EIGHT[1], None, drawn(128, kind=F32), "gelu", F32, "RowWise", "", False),
    ],
    "block_scaled_matmul": [(EIGHT[0], FACTORS[0], EIGHT[1], FACTORS[1])],
    "scaled_matmul_quantized": [(EIGHT[0], SCALE[0], EIGHT[1], SCALE[1], None, None, E4M3)],
    "scaled_epilogue_matmul": [(EIGHT[0], SCALE[0], EIGHT[1], SCALE[1], [drawn(128)], [], [], [], BIASED.json)],
    "check": [(A, B, None, BIAS, "gelu", None, None)],
    "check_gemm": [(A, B, drawn(5, 6), None, 2.0, None, [torch.ones(())], None)],
    "check_epilogue": [(A, B, [BIAS], [], [], [], BIASED.json, None, None, None, None)],
    "check_combined": [(A, [B, UP], [], SILU, None, None, None)],
    "check_prologue": [(A, B, [torch.rand(5)], SCALED, None, None, None, None)],
    "check_prologue_groups": [(A, GROUPS, OFFSETS, [torch.rand(5)], SCALED, "offsets", None, None, None, None)],
    "check_combined_groups": [(A, [GROUPS, GROUPS], OFFSETS, [], SILU, "offsets", None, None, None, None, None)],
    "check_combined_scaled_groups": [
        (drawn(5, 32, kind=E4M3), [columns(2, 32, 16, kind=E4M3)] * 2, OFFSETS, torch.rand(5, 1),
         [torch.rand(2, 1, 16)] * 2, [], SILU, "offsets", None, None, None, None, None, "", "", True, ""),
    ],
    "check_indexed": [(A, B, PICKED, None, None, None, None, None, None, None)],
    "check_composed": [([A], [B], [], [], [], [], LOWER, None, None, None)],
    "check_grouped": [(A, GROUPS, OFFSETS, None, None, None, None, "offsets", None, None, "", "")],
    "check_grouped_epilogue": [
        (A, GROUPS, OFFSETS, None, None, None, [drawn(2, 6)], [], [], [], BIASED.json, "offsets", None, "", "", True,
         "", None, None),
    ],
    "check_block_scaled": [
        (EIGHT[0], FACTORS[0], EIGHT[1], FACTORS[1], None, None, None, None, None, BF16, "", "", "", ""),
    ],
    "check_quantize": [(A,)],
    "check_scaled": [(EIGHT[0], SCALE[0], EIGHT[1], SCALE[1], None, None, None, BF16, "", "", "")],
    "check_scaled_epilogue": [
        (EIGHT[0], SCALE[0], EIGHT[1], SCALE[1], [drawn(128)], [], [], [], BIASED.json, BF16, "", "", True, "",
         None, None),
    ],
}  # fmt: skip
UNDERIVED = {
    "block_scaled_matmul", "gated", "dequantized", "quantize", "quantize_both", "quantize_together", "scaled_matmul",
    "scaled_matmul_quantized", "scaled_epilogue_matmul", "quantized_epilogue_matmul", "combined_scaled_grouped_matmul",
}  # fmt: skip
ALONE = ("test_schema", "test_faketensor", "test_autograd_registration")
TRACED = {"matmul": 5, "scaled_matmul": 2}  # of their calls, those whose gradients are traced too; of others, one
ACROSS = {"all_gather_matmul", "matmul_reduce_scatter", "gathered_rows", "summed_rows"}  # several processes' operators


def derived(x: Any) -> Any:
    """The tensor, or those of a list, with a derivative to record."""
    if isinstance(x, list):
        return [derived(each) for each in x]
    wanted = isinstance(x, torch.Tensor) and x.is_floating_point() and x.dtype.itemsize > 1
    return x.detach().requires_grad_() if wanted else x


def check(operator: Any, given: tuple[Any, ...], tests: tuple[str, ...]) -> None:
    eight = any(x.dtype in (E4M3, E5M2) for x in given if isinstance(x, torch.Tensor))
    # The schema's test compares by allclose, which torch does not have for float8.
    results = torch.library.opcheck(operator, given, test_utils=[t for t in tests if not eight or t != "test_schema"])
    assert set(results.values()) == {"SUCCESS"}, results


@pytest.mark.parametrize(("name", "at"), [(name, at) for name, calls in CALLS.items() for at in range(len(calls))])
def test_operators_pass_torchs_checks(name: str, at: int) -> None:
    operator, given = getattr(torch.ops.layoutgemm, name).default, CALLS[name][at]
    check(operator, given, ALONE)
    traced = ("test_faketensor", "test_aot_dispatch_dynamic") if at < TRACED.get(name, 1) else ("test_faketensor",)
    if name in UNDERIVED:
        check(operator, given, traced)
    elif not name.startswith("check"):
        writes = [argument.is_write for argument in operator._schema.arguments]
        check(operator, tuple(x if out else derived(x) for x, out in zip(given, writes)), traced)


@pytest.fixture
def group() -> Iterator[str]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield name_of(None)
    dist.destroy_process_group()


def test_operators_of_several_processes_pass_them(group: str) -> None:
    for name in ACROSS:
        given = (A, columns(8, 6), None, None, group, 30.0) if "matmul" in name else (pitched(5, 8), group)
        check(
            getattr(torch.ops.layoutgemm, name).default, tuple(map(derived, given)), ("test_schema", "test_faketensor")
        )


def test_no_operator_is_left_out() -> None:
    known = {name.removeprefix(PREFIX) for name in torch._C._dispatch_get_all_op_names() if name.startswith(PREFIX)}
    assert known == {*CALLS, *ACROSS, "refuse"}  # which raises its text
