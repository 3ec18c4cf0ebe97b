"""The Provider of the CUTLASS Operator API: operators found, refused with the reason, built again, compiled."""

from __future__ import annotations

import dataclasses
import importlib
import pickle
import re
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")
ops = needs.module("cutlass.operators")

import layoutgemm
from layoutgemm import operators
from layoutgemm.errors import LayoutError, OperandError
from layoutgemm.kernels.epilogue.chain import Epilogue
from layoutgemm.operators import dense as module
from layoutgemm.operators.api import missing_name
from layoutgemm.operators.epilogues import finish_for, step_of
from layoutgemm.operators.hopper import running
from layoutgemm.operators.problems import check_memory
from layoutgemm.torch_op.scaled_grouped import grouped as groups_of_torch

BF16, FP8 = torch.bfloat16, torch.float8_e4m3fn
TARGETS = ("80", "86", "90a", "100a", "120a")


def dense(m: int, n: int, k: int, *batch: int, kind: Any = BF16, into: Any = None, total: Any = None) -> Any:
    a, b = torch.empty(*batch, m, k, dtype=kind), torch.empty(*batch, n, k, dtype=kind).mT
    c = torch.empty(*batch, m, n, dtype=into or kind)
    return ops.GemmArguments(a, b, c, total or (torch.float32 if kind.is_floating_point else torch.int32))


def scaled(block_b: tuple[int, ...] = (1, 128, 128), swizzle: str = "SwizzleNone") -> Any:
    a, b = torch.empty(256, 256).to(FP8), torch.empty(512, 256).to(FP8).mT
    how = ops.ScaleSwizzleMode[swizzle]
    scale_b = torch.empty(512 // block_b[1], 2)
    return ops.GemmArguments(
        ops.ScaledOperand(a, torch.empty(256, 2), (1, 1, 128), how), ops.ScaledOperand(b, scale_b, block_b, how),
        torch.empty(256, 512, dtype=BF16), torch.float32,
    )  # fmt: skip


def grouped(along: str) -> Any:
    """Three groups of rows, columns or K, in orders that the kernel reads."""
    new = {
        "m": lambda: (torch.empty(256, 128), torch.empty(3, 128, 64), torch.empty(256, 64)),
        "n": lambda: (torch.empty(3, 64, 128), torch.empty(256, 128).mT, torch.empty(256, 64).mT),
        "k": lambda: (torch.empty(256, 64).mT, torch.empty(256, 128), torch.empty(3, 64, 128)),
    }[along]
    ends = torch.tensor([100, 200, 256], dtype=torch.int32)
    return ops.IndexPtrGroupedGemmArguments(*[x.to(BF16) for x in new()], torch.float32, ends, along)


def fused(function: Any, **given: Any) -> Any:
    a, b, d = (torch.empty(256, 256, dtype=BF16) for _ in range(3))
    return ops.GemmArguments(a, b, d, torch.float32, epilogue=ops.EpilogueArguments(function, **{"D": d, **given}))


def ours(args: Any, target: str = "90a") -> list[Any]:
    return ops.get_operators(args, target_sm=target, providers=[operators.LayoutgemmProvider])


def built_again(operator: Any) -> Any:
    """The operator from metadata whose design went through bytes."""
    design = pickle.loads(pickle.dumps(operator.metadata.design))
    return operator.metadata.operator_class(dataclasses.replace(operator.metadata, design=design))


def linear(accum, alpha, C):
    # read, never run
    t = accum * alpha + C
    D = gelu(t) - 1  # noqa: F821
    return D


def test_the_provider_is_registered_in_front() -> None:
    assert next(iter(ops.available_providers)) == "layoutgemm"
    found = ops.get_operators(dense(512, 512, 512), target_sm="90a")
    names = [operator.metadata.operator_name.partition(".")[0] for operator in found]
    assert names[0] == "layoutgemm" and names.count("layoutgemm") == 1
    assert "cutedsl" in names


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("batch", [(), (3,), (1,)])
def test_one_operator_a_problem(target: str, batch: tuple[int, ...]) -> None:
    args = dense(256, 512, 128, *batch)
    (operator,) = ours(args, target)
    assert operator.supports(args, target)
    design = operator.metadata.design
    made = design.kernel.plan(256, 512, 128, 2 if batch == (3,) else 1)
    assert design.code == made.arch.name == f"sm_{target}"
    assert design.tile_shape == tuple(made.tile) and "EFC" not in type(operator).__name__


def test_the_kernel_is_that_of_matmul() -> None:
    args = dense(4096, 4096, 4096)
    (operator,) = ours(args)
    a, b = torch.empty(4096, 4096, dtype=BF16, device="meta"), torch.empty(4096, 4096, dtype=BF16, device="meta").mT
    plan = operator.metadata.design.kernel.plan(4096, 4096, 4096, 1)
    assert str(plan) == layoutgemm.explain_matmul(a, b).kernel


@pytest.mark.parametrize("args", [dense(256, 512, 128), scaled(), *map(grouped, "mnk")], ids=["dense", "fp8", *"mnk"])
def test_operators_are_built_again_from_metadata(args: Any) -> None:
    (operator,) = ours(args)
    again = built_again(operator)
    assert again is not operator and again.supports(args, "90a")


def test_a_name_is_the_same_in_another_process() -> None:
    program = (
        "import tests.operators.test_provider as t; "
        "print(*[t.ours(x)[0].metadata.operator_name for x in (t.dense(64, 64, 64), t.scaled(), t.grouped('m'))])"
    )
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert said == [ours(x)[0].metadata.operator_name for x in (dense(64, 64, 64), scaled(), grouped("m"))]


@pytest.mark.parametrize(
    ("args", "target", "part"),
    [
        (dense(256, 256, 256), "90", "target 90"),
        (dense(256, 256, 256), "100a", "runs sm_100a, and the operator is of sm_90a"),
        (dense(256, 256, 256, 4), "90a", "no kernel for"),
        (dense(256, 256, 100), "90a", "these arguments need|copies nothing|no kernel"),
        (dense(256, 0, 256), "90a", "out|a size is 0"),
        (dense(256, 256, 256, total=torch.float16), "90a", "accumulator"),
        (dense(256, 256, 256, kind=torch.float32), "90a", "float32"),
        (fused("def f(accum): D = relu(accum); return D"), "90a", "the operator takes B as bf16:col"),
    ],
)
def test_supports_refuses_with_the_reason(args: Any, target: str, part: str) -> None:
    (operator,) = ours(dense(256, 256, 256))
    status = operator._supports(args, ops.TargetSm(target))
    assert not status
    assert any(text in str(status.error) for text in part.split("|")), status.error


@pytest.mark.parametrize(
    "args",
    [dense(64, 64, 64, kind=torch.float32), dense(64, 64, 64, total=torch.float16), scaled(swizzle="Swizzle32x4x4")],
)
def test_no_operator_for_what_no_kernel_computes(args: Any) -> None:
    assert ours(args) == []


def views(a: Any, b: Any, out: Any, **epilogue: Any) -> Any:
    made = ops.EpilogueArguments("def f(accum, C): D = accum + C; return D", D=out, **epilogue) if epilogue else None
    return ops.GemmArguments(a, b, out, torch.float32, epilogue=made)


def plain(*shape: int) -> Any:
    return torch.empty(shape, dtype=BF16)


LINE, SQUARE = plain(3 * 64 * 64), plain(64, 64)


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (lambda: views(SQUARE, plain(64, 64), SQUARE), "out, which is written to, shares memory with A"),
        (lambda: views(plain(64, 64), LINE[:4096].view(64, 64), LINE[64:4160].view(64, 64)), "shares memory with B"),
        (lambda: views(plain(64, 64), plain(64, 64), SQUARE, C=SQUARE[0]), "shares memory with C"),
        (
            lambda: views(*plain(2, 3, 64, 64), LINE.as_strided((3, 64, 64), (512, 64, 1))),
            "more than one element of out",
        ),
        (lambda: views(torch._neg_view(SQUARE), plain(64, 64), plain(64, 64)), "A has torch's negative bit"),
        (
            lambda: views(plain(64, 64), plain(64, 64), SQUARE, C=10**400),
            "C = an integer of 1329 bits is beyond float32",
        ),
    ],
)
def test_memory_and_numbers_that_no_launch_may_have_are_refused(args: Any, part: str) -> None:
    (operator,) = ours(views(plain(64, 64), plain(64, 64), plain(64, 64)))
    assert ours(args()) == []
    assert part in str(operator._supports(args(), ops.TargetSm("90a")).error)


def test_views_that_share_no_element_are_taken() -> None:
    wide, square = plain(64, 128), plain(64, 64)
    assert ours(views(wide[:, :64], square, wide[:, 64:])) and ours(views(square, square, plain(64, 64)))
    assert ours(views(square, square, out := plain(64, 64), C=out)), (
        "C += A @ B, each element read before it is written"
    )


def test_fake_tensors_are_asked_about_as_real_ones() -> None:
    """torch's autotuning may ask with tensors without memory."""
    with torch._subclasses.FakeTensorMode():
        assert len(ours(dense(256, 256, 256))) == 1
        assert ours(views(plain(64, 64), plain(64, 64), plain(64, 1).expand(64, 64))) == []


def test_out_of_a_scaled_or_grouped_product_has_memory_of_its_own() -> None:
    rows = plain(256, 128)
    ends = torch.tensor([100, 200, 256], dtype=torch.int32)
    args = ops.IndexPtrGroupedGemmArguments(rows, plain(3, 128, 128), rows, torch.float32, ends, "m")
    (operator,) = ours(grouped("m"))
    assert ours(args) == []
    assert "out, which is written to, shares memory with A" in str(operator._supports(args).error)


@pytest.mark.parametrize(
    ("one", "other", "part"),
    [
        (dense(64, 64, 64), dense(64, 64, 64, kind=torch.float16), "A is f16:row and B is f16:col"),
        (dense(64, 64, 64), dense(64, 64, 64, 1), None),
        (scaled(), scaled((1, 1, 128)), "mainloop.tables"),
        (grouped("m"), grouped("n"), "B is bf16:col; the operator takes B as bf16:row"),
    ],
)
def test_a_refusal_says_where_the_kernels_differ(one: Any, other: Any, part: str | None) -> None:
    status = ours(one)[0]._supports(other, ops.TargetSm("90a"))
    assert bool(status) if part is None else part in str(status.error) and len(str(status.error)) < 600


def test_groups_of_columns_name_operands_of_the_transposed_product() -> None:
    args = grouped("n")
    wrong = args.A.tensor.runtime_tensor[..., :1].expand(3, 64, 128)
    args = ops.IndexPtrGroupedGemmArguments(
        wrong, args.B.tensor.runtime_tensor, args.out.tensor.runtime_tensor, torch.float32,
        torch.tensor([100, 200, 256], dtype=torch.int32), "n",
    )  # fmt: skip
    assert "b is A.mT" in str(ours(grouped("n"))[0]._supports(args).error)


@pytest.mark.parametrize(
    ("changes", "of_design", "part"),
    [
        ({"design": None}, {}, "metadata's design is None"),
        ({}, {"kernel": None}, "design.kernel is a NoneType, no Kernel"),
        ({}, {"code": "sm_80"}, "design.code is 'sm_80', and its kernel is of sm_90a"),
        ({"supported_targets": [ops.TargetSm("80")]}, {}, "supported_targets"),
        ({"operator_class": operators.ScaledOperator}, {}, "design.kernel is a Kernel, no PlannedKernel"),
    ],
)
def test_altered_metadata_is_refused_by_the_field(changes: Any, of_design: Any, part: str) -> None:
    metadata = ours(dense(64, 64, 64))[0].metadata
    altered = dataclasses.replace(metadata, design=dataclasses.replace(metadata.design, **of_design))
    altered = dataclasses.replace(altered, **changes)
    with pytest.raises(LayoutError, match=re.escape(part)):
        altered.operator_class(altered)


def test_operands_that_need_a_copy_are_refused() -> None:
    args = grouped("n")
    made = ops.IndexPtrGroupedGemmArguments(
        torch.empty(3, 64, 128, dtype=BF16), torch.empty(128, 256, dtype=BF16), torch.empty(64, 256, dtype=BF16),
        torch.float32, torch.tensor([100, 200, 256], dtype=torch.int32), "n",
    )  # fmt: skip
    (operator,) = ours(args)
    assert ours(made) == []
    assert "copies nothing" in str(operator._supports(made, ops.TargetSm("90a")).error)


@pytest.mark.parametrize("along", "mnk")
def test_ends_are_read_where_they_lie(along: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The launched plan is the operator's own. Its ends are the caller's tensor, so nothing is allocated."""
    args = grouped(along)
    (operator,) = ours(args)
    seen: list[Any] = []

    def launched(keeping: Any, plan: Any, a: Any, b: Any, tables: Any, operands: Any, out: Any) -> Any:
        seen.append((plan, tables["ends"]))
        return out

    monkeypatch.setattr(groups_of_torch, "launch", launched)
    monkeypatch.setattr(groups_of_torch, "on_gpu", lambda index: True)
    operator.launch(operator.tensors(args, running))
    (plan, ends) = seen[0]
    assert plan == operator.plan and ends is args.offsets.tensor.runtime_tensor


def test_ends_that_would_be_copied_or_converted_are_refused() -> None:
    args = grouped("k")
    (operator,) = ours(args)
    for ends, text in (
        (torch.tensor([100, 0, 200, 0, 256, 0], dtype=torch.int32)[::2], "offs: stride 2, .*copies nothing"),
        (torch.tensor([100, 200, 256], dtype=torch.int16), "offs is torch.int16"),
    ):
        given = [x.tensor.runtime_tensor for x in (args.A, args.B, args.out)]
        wrong = ops.IndexPtrGroupedGemmArguments(*given, torch.float32, ends, "k")
        assert ours(wrong) == []
        assert re.search(text, str(operator._supports(wrong, ops.TargetSm("90a")).error))


def test_an_epilogue_is_what_its_source_says() -> None:
    given = {"alpha": 2.0, "C": torch.empty(256, dtype=BF16)}
    finish = finish_for(fused(linear, **given))
    assert finish is not None and finish.epilogue is not None
    x, c = np.linspace(-2, 2, 12, dtype=np.float32).reshape(3, 4), np.arange(4, dtype=np.float32)
    found = Epilogue(*finish.epilogue.steps).reference(x, alpha=2.0, C=c).c
    want = torch.nn.functional.gelu(torch.from_numpy(x * 2.0 + c)) - 1
    assert np.allclose(found, want.numpy(), atol=1e-6)


@pytest.mark.parametrize(
    ("source", "part"),
    [
        ("def f(accum): D = accum; total = sum(accum); return D, total", "sum"),
        ("def f(accum): D = reshape(accum, accum); return D", "reshape"),
        ("def f(accum): D = accum; F = accum; return D, F", "returns D alone"),
    ],
)
def test_an_epilogue_that_no_kernel_has_is_refused(source: str, part: str) -> None:
    with pytest.raises(OperandError, match=part):
        step_of(source, [])


@pytest.mark.parametrize(
    ("given", "part"),
    [
        ({"alpha": 1.0, "C": torch.empty(1, dtype=BF16)}, "shape"),
        ({"alpha": 1.0, "C": torch.empty(256, dtype=BF16), "D": torch.empty(256, 256, dtype=BF16)}, "another tensor"),
        ({"alpha": 1.0, "C": ops.Load(torch.empty(256, dtype=BF16), via="sync_gmem_load")}, "transport"),
    ],
)
def test_an_epilogue_operand_that_does_not_fit_is_refused(given: dict[str, Any], part: str) -> None:
    args = fused(linear, **given)
    with pytest.raises(OperandError, match=part):
        finish_for(args)
    assert ours(args) == []


def test_an_epilogue_is_in_the_kernel_of_every_target() -> None:
    args = fused(linear, alpha=2.0, C=torch.empty(256, dtype=BF16))
    plans = [ours(args, target)[0].metadata.design.kernel.plan(256, 256, 256, 1) for target in TARGETS]
    assert [plan.arch.name for plan in plans] == ["sm_80", "sm_86", "sm_90a", "sm_100a", "sm_120a"]
    assert all(plan.check() and len(plan.epilogue.given) == 2 for plan in plans)


def test_an_api_without_a_name_is_refused_by_it() -> None:
    lacking = type("old", (), dict.fromkeys(("GemmArguments", "Provider"), 1))
    assert missing_name(lacking) == "IndexPtrGroupedGemmArguments"


def test_an_absent_api_is_refused_by_name() -> None:
    program = "import sys; sys.modules['cutlass.operators'] = None; import layoutgemm.operators"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True).stderr
    assert "pip install nvidia-cutlass-operators" in said


def compiled(args: Any, target: str) -> Any:
    (operator,) = ours(args, target)
    artifact = built_again(operator).compile(args, target)
    assert f".target sm_{ {'86': '80'}.get(target, target) }" in artifact.compiled_obj.ptx
    return artifact


@pytest.mark.parametrize("target", ["80", "90a", "100a", "120a"])
def test_kernels_compile_from_metadata(target: str) -> None:
    assert str(compiled(dense(256, 256, 256), target).compiled_for) == target


@pytest.mark.slow
@pytest.mark.parametrize("args", [scaled(), *map(grouped, "mk")], ids=["fp8", *"mk"])
def test_scaled_and_grouped_kernels_compile_from_metadata(args: Any) -> None:
    compiled(args, "90a")


@pytest.mark.slow
@pytest.mark.parametrize("target", ["80", "90a", "100a", "120a"])
def test_kernels_with_epilogues_compile_from_metadata(target: str) -> None:
    compiled(fused(linear, alpha=2.0, C=torch.empty(256, dtype=BF16)), target)


class Recorded:
    """In place of a launch on a GPU: its arguments."""

    def __init__(self, problem: Any, shape: Any, kind: Any, device: int) -> None:
        self.problem, self.calls = problem, []

    def launch(self, *given: Any) -> None:
        self.calls.append(given)


def test_a_run_passes_addresses_stream_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PreparedProblem", Recorded)
    monkeypatch.setattr(module, "_current_device", lambda: -1)  # as tensors on the CPU have it
    args = fused(linear, alpha=2.0, C=torch.empty(256, dtype=BF16))
    (operator,) = ours(args)
    operator.run(args, ops.CompiledArtifact(None, operator, ops.TargetSm("90a")), 77, None, True)
    ((prepared,),) = [list(operator._kept.values())]
    ((a, b, c, stream, words),) = prepared.calls
    assert (a, b, c) == tuple(int(x.tensor.data_ptr) for x in (args.A, args.B, args.out))
    assert stream == 77 and 0x40000000 in words  # 2.0
    assert prepared.problem.config == operator.kernel.choice
    monkeypatch.setattr(module, "_current_device", lambda: 0)
    with pytest.raises(OperandError, match="A is on cpu, and the launch on cuda:0"):
        operator.run(args, ops.CompiledArtifact(None, operator, ops.TargetSm("90a")), 77, None, True)
    elsewhere = SimpleNamespace(tensor=None)
    alone = SimpleNamespace(A=elsewhere, B=elsewhere, out=elsewhere, epilogue=args.epilogue)
    with pytest.raises(OperandError, match=r"[CD] is on cpu, and the launch on cuda:0"):
        check_memory(alone, 0)


def test_torchs_autotuning_finds_the_operator_first() -> None:
    """The query of torch's NVGEMM backend, for dense products: ours is the first without a fusible epilogue."""
    cache = pytest.importorskip(
        "torch._inductor.codegen.nv_universal_gemm.kernel_cache", reason="needs torch 2.14: pip install -U torch"
    )
    if not hasattr(cache, "get_kernel_by_name_via_args"):
        pytest.skip("torch asks for operators by their arguments from 2.14 on: pip install -U torch")
    backend = importlib.import_module("torch._inductor.codegen.nv_universal_gemm.nv_universal_gemm")
    for args in (dense(4096, 4096, 4096), dense(16, 512, 1024), dense(256, 256, 256, 3), dense(64, 64, 64, kind=FP8)):
        [found] = cache.partition_compatible_kernels(args, 90, lambda metadata: 0, 1, candidate_source="args")
        first = found[0]
        assert first.metadata.provider is operators.LayoutgemmProvider
        assert backend._exclude_efc_kernels(first.metadata) and not backend._include_efc_kernels_only(first.metadata)
        assert first.get_workspace_size(args).size_bytes == 0
        name = first.metadata.operator_name
        cache.clear_cache()  # as in a worker that compiles
        assert built_again(cache.get_kernel_by_name_via_args(name, args, 90)).metadata.operator_name == name


# ---------------------------------------------------------------------------------------------------------- on a GPU


def on_gpu(args: Any) -> None:
    """Run our operator, built again from its metadata, on the current stream."""
    cc = "".join(map(str, torch.cuda.get_device_capability()))
    target = f"{cc}a" if int(cc) >= 90 else cc
    (operator,) = ours(args, target)
    again = built_again(operator)
    again.run(args, again.compile(args, target), torch.cuda.current_stream())
    torch.cuda.synchronize()


@pytest.mark.gpu
@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("size", [(512, 384, 256), (1000, 504, 264)])
def test_dense_products_on_a_gpu(size: tuple[int, int, int], batch: tuple[int, ...]) -> None:
    m, n, k = size
    a, b = torch.randn(*batch, m, k, device="cuda").bfloat16(), torch.randn(*batch, k, n, device="cuda").bfloat16()
    c = torch.empty(*batch, m, n, device="cuda", dtype=BF16)
    on_gpu(ops.GemmArguments(a, b, c, torch.float32))
    want = a.double() @ b.double()
    assert (c.double() - want).abs().max() <= want.abs().max() * 2**-8


@pytest.mark.gpu
def test_an_epilogue_on_a_gpu() -> None:
    a, b = (torch.randn(256, 256, device="cuda").bfloat16() for _ in range(2))
    bias, d = torch.randn(256, device="cuda").bfloat16(), torch.empty(256, 256, device="cuda", dtype=BF16)
    epilogue = ops.EpilogueArguments(linear, alpha=2.0, C=bias, D=d)
    on_gpu(ops.GemmArguments(a, b, d, torch.float32, epilogue=epilogue))
    want = torch.nn.functional.gelu(a.double() @ b.double() * 2 + bias.double()) - 1
    assert (d.double() - want).abs().max() <= want.abs().max() * 2**-7


@pytest.mark.gpu
def test_scaled_and_grouped_products_on_a_gpu() -> None:
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0: scaled and grouped products run on no other")
    a, b = torch.randn(256, 256, device="cuda").to(FP8), torch.randn(512, 256, device="cuda").to(FP8).mT
    sa, sb, c = (
        torch.rand(256, 2, device="cuda"),
        torch.rand(4, 2, device="cuda"),
        torch.empty(256, 512).cuda().to(BF16),
    )
    how = ops.ScaleSwizzleMode.SwizzleNone
    on_gpu(ops.GemmArguments(
        ops.ScaledOperand(a, sa, (1, 1, 128), how), ops.ScaledOperand(b, sb, (1, 128, 128), how), c, torch.float32
    ))  # fmt: skip
    wide_a = a.double() * sa.double().repeat_interleave(128, 1)
    wide_b = b.double() * sb.double().repeat_interleave(128, 0).repeat_interleave(128, 1).mT
    want = wide_a @ wide_b
    assert (c.double() - want).abs().max() <= want.abs().max() * 2**-7
    rows, experts = torch.randn(256, 128, device="cuda").bfloat16(), torch.randn(3, 128, 64, device="cuda").bfloat16()
    ends, out = torch.tensor([100, 200, 256], device="cuda", dtype=torch.int32), torch.empty(256, 64).cuda().to(BF16)
    on_gpu(ops.IndexPtrGroupedGemmArguments(rows, experts, out, torch.float32, ends, "m"))
    parts = [rows[i:j].double() @ experts[g].double() for g, (i, j) in enumerate([(0, 100), (100, 200), (200, 256)])]
    want = torch.cat(parts)
    assert (out.double() - want).abs().max() <= want.abs().max() * 2**-8


@pytest.mark.gpu
def test_beside_nvidias_operators_in_one_process() -> None:
    """All operators that the API finds for a product give the same result; the ratio is benchmarks/'s to record."""
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0: NVIDIA's operators for wgmma run on no other")
    a, b = (torch.randn(1024, 1024, device="cuda").bfloat16() for _ in range(2))
    want = a.double() @ b.double()
    args = ops.GemmArguments(a, b, c := torch.empty_like(a), torch.float32)
    found = ops.get_operators(args, target_sm="90a")
    assert found[0].metadata.provider is operators.LayoutgemmProvider
    for operator in found[:4]:
        c.zero_()
        operator.run(args, stream=torch.cuda.current_stream())
        torch.cuda.synchronize()
        assert (c.double() - want).abs().max() <= want.abs().max() * 2**-8, operator.metadata.operator_name
