"""matmul on CPU tensors: the reference, its refusals, and the kernels' own plans and arguments in the emulator."""

from __future__ import annotations

import contextlib
import ctypes
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.module("torch")

from benchmarks.soak_cases import Case, cases, draw, fault, kernel_of, tensors
from benchmarks.soak_refusals import Refusal, refusals
from layoutgemm import Sm90Config, explain_matmul, gemm, matmul
from layoutgemm.emulator.api import emulate_host
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import OperandError, PlanError, TensorError
from layoutgemm.kernels.compile.launcher import ArgumentBlock, Launcher
from layoutgemm.kernels.run import tensor_maps
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm90.choose.occupancy import ClusterOccupancy
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.torch_op import api as torch_op
from layoutgemm.torch_op import bias_activation as torch_finish
from layoutgemm.torch_op import compute as torch_compute
from layoutgemm.torch_op import emulated as torch_emulated
from layoutgemm.torch_op import epilogue as torch_epilogue
from layoutgemm.torch_op import launch as torch_launch
from layoutgemm.torch_op import prepared as torch_prepared
from layoutgemm.torch_op import solver as torch_solver
from layoutgemm.torch_op.indexed import product as torch_indexed
from layoutgemm.torch_op.problem import Problem, StridedOperand, contiguous_strides, shapes_of
from layoutgemm.torch_op.scaled_grouped import grouped as torch_grouped
from layoutgemm.torch_op.scaled_grouped import grouped_epilogue, own_epilogue
from layoutgemm.torch_op.scaled_grouped import kept as torch_kept
from layoutgemm.torch_op.scaled_grouped import scaled as torch_scaled
from layoutgemm.torch_op.solver import solve

BF16, F32 = torch.bfloat16, torch.float32
ROOT = Path(__file__).resolve().parents[2]
SMALL = Sm90Config((64, 64), consumers=1, loader="warp")


def integers(*shape: int, dtype: Any = BF16) -> Any:
    return torch.randint(-3, 4, shape).to(dtype)


# ------------------------------------------------------------------------------------------------- shapes and refusals


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (4, 5)), ((4,), (4,)), ((4,), (4, 5)), ((3, 4), (4,)), ((2, 3, 4), (4,)), ((4,), (2, 4, 5)),
        ((2, 3, 4), (4, 5)), ((3, 4), (2, 4, 5)), ((2, 1, 3, 4), (5, 4, 6)), ((0, 4), (4, 5)), ((3, 0), (0, 5)),
        ((2, 3, 4), (2, 4, 0)), ((1, 1), (1, 1)), ((0, 3, 4), (4, 5)), ((2, 0, 3, 4), (1, 4, 5)),
    ],
)  # fmt: skip
def test_shapes_and_values_are_those_of_torch(shapes: tuple[Any, Any]) -> None:
    a, b = (integers(*shape) for shape in shapes)
    got, want = matmul(a, b), torch.matmul(a.double(), b.double()).bfloat16()
    assert got.shape == want.shape and torch.equal(got, want)
    c = torch.empty_like(want)
    assert matmul(a, b, out=c) is c and torch.equal(c, want)


def test_words_are_those_of_torch() -> None:
    """A refusal begins with torch's text for the same float tensors, except sizes of batches."""
    for shapes in (((3, 4), (5, 6)), ((4,), (5,)), ((3, 4), (5,)), ((2, 1, 3, 4), (3, 2, 4, 4)), ((), (3, 4))):
        a, b = (torch.ones(shape).bfloat16() for shape in shapes)
        with pytest.raises(RuntimeError) as theirs:
            torch.matmul(a, b)
        with pytest.raises(RuntimeError) as ours:
            matmul(a, b)
        assert isinstance(ours.value, (TensorError, ValueError))
        assert str(ours.value).startswith(str(theirs.value).rstrip(".")), (str(ours.value), str(theirs.value))


REFUSALS = refusals("cpu")


def test_refusals_say_what_is_wrong_and_write_nothing() -> None:
    assert len(REFUSALS) >= 200 and len({refusal.name for refusal in REFUSALS}) == len(REFUSALS)
    faults = [text for refusal in REFUSALS if (text := refusal.fault())]
    assert not faults, "\n".join(faults)


def test_a_refusal_that_does_not_come_is_seen() -> None:
    x, y = integers(4, 4), integers(4, 4)
    assert "was not refused" in Refusal("fine", lambda: matmul(x, y), TensorError, "").fault()
    assert "instead of" in Refusal("other", lambda: matmul(x, x[:2]), PlanError, "").fault()
    assert "the error says" in Refusal("words", lambda: matmul(x, x[:2]), TensorError, "no such words").fault()

    def writes() -> None:
        y.fill_(9)
        raise TensorError("x")

    assert "something was written" in Refusal("writes", writes, TensorError, "", y).fault()


def test_types_of_the_product() -> None:
    x = torch.eye(16)
    f16, e4m3, i8 = torch.float16, torch.float8_e4m3fn, torch.int8
    for kind, out in ((BF16, BF16), (f16, f16), (e4m3, BF16), (i8, torch.int32)):
        assert matmul(x.to(kind), x.to(kind)).dtype == out
    assert matmul(x.bfloat16(), x.bfloat16(), out_dtype=F32).dtype == F32
    eight = matmul(x.to(torch.float8_e4m3fn), x.to(torch.float8_e5m2), out_dtype=torch.float8_e5m2)
    assert eight.dtype == torch.float8_e5m2 and torch.equal(eight.float(), x)


@pytest.fixture
def tf32() -> Any:
    """torch's setting, put back afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    yield torch.backends.cuda.matmul
    torch.backends.cuda.matmul.allow_tf32 = before


def test_float32_needs_leave(tf32: Any) -> None:
    x = torch.eye(4)
    tf32.allow_tf32 = False
    with pytest.raises(OperandError, match="allow_tf32=True"):
        matmul(x, x)
    assert torch.equal(matmul(x, x, allow_tf32=True), x)
    tf32.allow_tf32 = True
    assert torch.equal(matmul(x, x), x)
    with pytest.raises(OperandError, match="allow_tf32=True"):
        matmul(x, x, allow_tf32=False)


def test_torch_s_newer_setting_of_tf32() -> None:
    """In a process of its own: once it is used, the older one cannot be read."""
    if not hasattr(torch.backends.cuda.matmul, "fp32_precision"):
        pytest.skip("torch.backends.cuda.matmul has no fp32_precision before 2.9: pip install -U torch")
    code = (
        "import torch, layoutgemm\n"
        "x = torch.eye(4)\n"
        "for setting, taken in (('tf32', True), ('ieee', False), ('tf32', True)):\n"
        "    torch.backends.cuda.matmul.fp32_precision = setting\n"
        "    try:\n"
        "        layoutgemm.matmul(x, x)\n"
        "    except layoutgemm.errors.OperandError:\n"
        "        assert not taken\n"
        "    else:\n"
        "        assert taken\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_an_output_that_a_graph_has_saved_is_seen_to_change() -> None:
    a, b = integers(4, 8), integers(8, 4)
    saved = torch.ones(4, 4).bfloat16()
    weight = torch.ones(4, 4).bfloat16().requires_grad_()
    loss = (weight * saved).sum()
    with torch.no_grad():
        matmul(a, b, out=saved)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_bias_and_activation_round_once() -> None:
    torch.manual_seed(0)
    a, b, bias = torch.randn(9, 33).bfloat16(), torch.randn(33, 7).bfloat16(), torch.randn(7).bfloat16()
    exact = a.double() @ b.double() + bias.double()
    for name, function in torch_finish.ACTIVATIONS.items():
        got = matmul(a, b, bias=bias, activation=name)
        want = function(exact)
        # one rounding to 8 bits of significand, of a float32 value
        assert bool(((got.double() - want).abs() <= 2.0**-8 * want.abs() * 1.001 + 1e-5).all()), name
    c = torch.randn(9, 7).bfloat16()
    got = gemm(2.5, a, b, -0.5, c)
    want = 2.5 * (exact - bias.double()) - 0.5 * c.double()
    assert bool(((got.double() - want).abs() <= 2.0**-8 * want.abs() * 1.001 + 1e-5).all())
    assert torch.equal(gemm(1, a, b, 0, torch.full_like(c, float("nan"))), matmul(a, b))  # c is not read


def test_gemm_refuses_a_c_that_does_not_meet_the_product() -> None:
    a, b = integers(4, 8), integers(8, 6)
    with pytest.raises(TensorError, match=r"tensor a \(5\) must match the size of tensor b \(6\)"):
        gemm(1, a, b, 1, torch.ones(5).bfloat16())
    with pytest.raises(TensorError, match=r"c of shape \[2, 4, 6\] does not broadcast to the product's \[4, 6\]"):
        gemm(1, a, b, 1, torch.ones(2, 4, 6).bfloat16())
    with pytest.raises(OperandError, match=r"c is a builtins\.float, not a torch tensor"):
        gemm(1, a, b, 1, 3.0)
    with pytest.raises(OperandError, match=r"beta = 1 needs a c to scale"):
        gemm(1, a, b, 1)


# ------------------------------------------------------------------------------------------------------------ solutions


def given(*shape: int, strides: Any = None, dtype: str = "bf16", start: int = 16) -> StridedOperand:
    return StridedOperand(shape, tuple(strides or contiguous_strides(shape)), dtype, start)


def solved(a: StridedOperand, b: StridedOperand, c: StridedOperand | None = None, config: Any = None) -> Any:
    shape = shapes_of(a.shape, b.shape).result
    return solve(Problem(a, b, c or given(*shape), config=config))


@pytest.mark.parametrize(
    "a, b, orders, sizes, launches",
    [
        (given(128, 64), given(64, 72), "row row row", (128, 72, 64, 1), 1),
        (given(128, 64, strides=(1, 128)), given(64, 72, strides=(1, 64)), "col col row", (128, 72, 64, 1), 1),
        # a batch that shares B is more rows; one that shares A, of one row, is more columns
        (given(8, 2, 64), given(64, 72), "row row row", (16, 72, 64, 1), 1),
        (given(8, 2, 64, strides=(64, 512, 1)), given(64, 72), "row row row", (8, 72, 64, 2), None),
        (given(64), given(8, 64, 1, strides=(64, 1, 1)), "row col row", (1, 8, 64, 1), 1),
        # dimensions of the batch that lie one after the other are one
        (given(2, 3, 16, 64), given(2, 3, 64, 24), "row row row", (16, 24, 64, 6), 1),
        # heads of attention: two strides, so the shorter one is launches
        (
            given(2, 8, 128, 64, strides=(65536, 64, 512, 1)), given(2, 8, 64, 128, strides=(65536, 64, 1, 512)),
            "row col row", (128, 128, 64, 8), 2,
        ),
        (given(4096, 512), given(512, 1), "row col col", (4096, 1, 512, 1), 1),
        (given(5, 1), given(1, 7), "col row row", (5, 7, 1, 1), 1),
    ],
)  # fmt: skip
def test_strides_that_are_taken_as_they_are(
    a: StridedOperand, b: StridedOperand, orders: str, sizes: Any, launches: int | None
) -> None:
    found = solved(a, b)
    assert found.copies == (None, None, None)
    if launches is not None:
        assert tuple(name.partition(":")[2] for name in found.kernel.operands) == tuple(orders.split())
        assert found.sizes == sizes and len(found.launches) == launches


@pytest.mark.parametrize(
    "a, why",
    [
        (given(64, 65), "lines lie 65 * 2 = 130 bytes apart, no multiple of 16; copied row-major, lines 72"),
        (given(64, 64, start=2), "its address is a multiple of 2 bytes, not of 16; copied row-major, lines 64"),
        (given(64, 64, strides=(256, 2)), "elements of a line lie 2 apart"),
        (given(64, 64, strides=(0, 1)), "lines of 64 elements lie 0 elements apart, so they overlap"),
        (given(3, 64, 64, strides=(4100, 64, 1)), "matrices of the batch lie 4100 * 2 = 8200 bytes apart"),
        (given(64, 64, strides=(1, 65)), "copied col-major, lines 64 elements apart"),
    ],
)
def test_copies_say_why(a: StridedOperand, why: str) -> None:
    copy = solved(a, given(a.shape[-1], 64), config=SM90).copies[0]
    assert copy is not None and why in copy.why


SM90 = Sm90Choice(SMALL)  # given by the caller, it is the kernel: operands are copied for it, whatever that costs


def test_eight_bits_want_k_contiguous() -> None:
    a, b = given(64, 64, dtype="e4m3"), given(64, 64, dtype="e4m3")
    assert "K contiguous alone" in solved(a, b, config=SM90).copies[1].why
    assert solved(a, given(64, 64, strides=(1, 64), dtype="e4m3")).copies == (None, None, None)


def test_a_shared_matrix_is_one_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    a = given(64, 128)
    found = solved(a, given(100, 128, 80))
    assert len(found.launches) == 1 and found.sizes[3] == 100 and found.strides[0] == 0 and found.copies[0] is None
    # where a tensor map did not take the stride of 0: launches, or beyond their number a copy
    monkeypatch.setattr(torch_solver, "STRETCHED_IN_MAP", False)
    many = torch_solver.MAX_LAUNCHES
    assert len(solved(a, given(many, 128, 80)).launches) == many
    found = solved(a, given(many + 1, 128, 80), config=SM90)
    assert len(found.launches) == 1 and found.sizes[3] == many + 1 and "more than 32 launches" in found.copies[0].why
    assert found.copies[0].shape == (many + 1, 64, 128)


def test_two_dimensions_of_a_batch_of_which_one_is_shared() -> None:
    """Neither dimension is more rows, since columns of A are contiguous: the longer is in the map, the other
    launches."""
    a = given(100, 40, 64, 72, strides=(40 * 72 * 64, 72 * 64, 1, 64))
    found = solved(a, given(100, 1, 72, 80))
    assert found.sizes[3] == 4000 and len(found.launches) == 1 and "more than 32 launches" in found.copies[1].why
    found = solved(a, given(1, 40, 72, 80))
    assert found.sizes[3] == 100 and len(found.launches) == 40 and found.copies == (None, None, None)


def test_where_lines_end_decides_who_stores_them() -> None:
    def store(c: StridedOperand) -> tuple[str, str]:
        found = solved(given(64, 64), given(64, c.shape[1]), c, SM90)
        return found.kernel.choice.config.store, found.kernel.operands[2]

    assert store(given(64, 64)) == ("tma", "bf16:row")
    assert store(given(64, 64, strides=(1, 64))) == ("tma", "bf16:col")
    assert store(given(64, 60)) == ("direct", "bf16:row")  # 120 bytes
    assert store(given(64, 60, strides=(64, 1))) == ("direct", "bf16:row")  # a tensor store would write to 128
    assert store(given(64, 64, start=2)) == ("direct", "bf16:row")
    assert solved(given(64, 64), given(64, 64), given(64, 64, strides=(256, 2))).copies[2] is not None


def test_what_has_no_kernel_is_refused_by_name() -> None:
    rows = Sm90Choice(Sm90Config((64, 64), consumers=1, loaded_a_rows=8))
    turned = given(64, 64, strides=(1, 64))
    with pytest.raises(OperandError, match=r"no kernel for a bf16:col.*rows = 8 of a col-major A"):
        solve(Problem(turned, given(64, 64), given(64, 64), config=rows))
    with pytest.raises(OperandError, match="a size is at most 2"):
        solved(given(2**31, 8), given(8, 8))


def test_a_grid_of_tiles_is_bounded_across_but_not_in_the_order_of_gpcs() -> None:
    """64 columns a tile: 65,536 tiles of N, one more than a grid's second dimension holds."""
    a, b, c = (StridedOperand(shape, (shape[1], 1), "bf16") for shape in ((64, 64), (64, 1 << 22), (64, 1 << 22)))
    config = Sm90Config((64, 64), consumers=1, launch="tiles", along="M")
    with pytest.raises(OperandError, match=r"no kernel for .*1 x 65536 tiles .* a grid holds 65535 along its second"):
        solve(Problem(a, b, c, config=Sm90Choice(config)))
    linear = replace(config, tuning=replace(config.tuning, gpc_order=(((0,), 1),)))
    assert solve(Problem(a, b, c, config=Sm90Choice(linear))).kernel.choice.config == linear


def test_explanations() -> None:
    a, b = torch.empty(64, 65).bfloat16(), torch.empty(65, 64).bfloat16()
    found = explain_matmul(a, b, config=SMALL)
    assert found.launches == 1 and len(found.copies) == 1 and found.workspace == 64 * 72 * 2
    assert str(found).startswith("Sm90Plan 64x64x65: ") and "  copied: a: lines lie 65 * 2" in str(found)
    assert explain_matmul(a[:0], b).kernel == "no kernel: zeros"


# ------------------------------------------------------------------------------------------------------ in the emulator


@contextlib.contextmanager
def emulated(monkeypatch: pytest.MonkeyPatch, edges: bool = True) -> Any:
    """matmul takes CPU tensors for an H200's: kernels run in the emulator, all else is the code that a GPU gets.

    edges  whether a store may not end a line at the next multiple of 16 bytes
    """
    calls: list[Any] = []

    class Emulated:
        """A host function that reads its arguments from a `ArgumentBlock` and emulates the launch."""

        def __init__(self, kernel: Any):
            self.plan = kernel.plan
            self.host = linked(self.plan)
            self.entry = self.call

        def load(self, device: int) -> None:
            assert device == -1

        def block(self, arguments: Any) -> ArgumentBlock:
            return ArgumentBlock(self.entry, arguments)

        def call(self, pointer: Any) -> None:
            count = len(self.plan.parameters)
            addresses = (ctypes.c_void_p * (count + 2)).from_address(pointer.value)
            long = ctypes.c_int64
            kinds = {"address": ctypes.c_uint64, "size": ctypes.c_int32, "stride": long, "word": long}
            values = [
                kinds[kind].from_address(address).value
                for kind, address in zip(self.plan.parameters.values(), addresses[:count], strict=True)
            ]
            nothing = np.zeros(0, np.uint8)  # in place of a C that is not stored
            held = [torch_emulated.memory_at(value, kept) if value else nothing for value in values[:3]]
            calls.append((values, ctypes.c_uint64.from_address(addresses[count]).value))
            words = [torch_emulated.memory_at(word, kept) if word > 1 << 32 else word for word in values[14:]]
            few = [2] if len(values) > 13 else []  # blocks, of a kernel that takes their number
            given, policy = [*held, *values[3:13], *few, *words], None if edges else Policy(edges=False)
            emulate_host(self.host, given, progress=False, policy=policy).raise_for_findings()
            ctypes.c_int32.from_address(addresses[count + 1]).value = 0

    kept: list[Any] = []
    original, real = torch_launch.kernel, torch.Tensor.data_ptr

    def seen(self: Any) -> int:
        kept.append(self)
        return real(self)

    monkeypatch.setattr(torch_launch, "kernel", lambda solution: SimpleNamespace(launcher=Emulated(original(solution))))
    monkeypatch.setattr(torch.Tensor, "data_ptr", seen)
    for module in (torch_launch, torch_op, torch_kept):
        monkeypatch.setattr(module, "current_device", lambda: -1)
        monkeypatch.setattr(module, "raw_stream", lambda index: 77)
        if hasattr(module, "empty_on_gpu"):
            monkeypatch.setattr(module, "empty_on_gpu", lambda *x: torch.empty_strided(*x[:2], dtype=x[2]))
    # plans with more to them than A and B
    for name, value in {
        "compile_apart": lambda plan: SimpleNamespace(launcher=Emulated(SimpleNamespace(plan=plan))),
        "FIRST_GPU": -1,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch_kept, name, value)
    monkeypatch.setattr(tensor_maps, "resident", lambda index, blocks: 2)
    torch_kept.READY.clear()
    modules = torch_compute, torch_epilogue, torch_scaled, torch_grouped, torch_indexed
    for module in (*modules, own_epilogue, grouped_epilogue):
        monkeypatch.setattr(module, "on_gpu", lambda x: True)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: SimpleNamespace(cuda_stream=88))
    torch_prepared.forget()
    try:
        yield calls
    finally:
        torch_prepared.forget()
        torch_kept.READY.clear()


@pytest.mark.dsl
def test_the_fast_path_launches_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """First by the long way, then by the short one: same words in the argument block, exact product both times."""
    a, b = integers(100, 72), integers(136, 72).T
    want = torch.matmul(a.double(), b.double()).bfloat16()
    with emulated(monkeypatch) as calls:
        assert torch.equal(matmul(a, b, config=SMALL), want)
        assert torch.equal(matmul(a, b, config=SMALL), want)
        (first, _), (second, stream) = calls
        assert stream == 77 and calls[0][1] == 88
        assert first[:2] == second[:2] == [a.data_ptr(), b.data_ptr()] and first[3:] == second[3:]
        assert second[3:10] == [100, 136, 72, 1, 72, 72, 136]
        # another address, and one off 16 bytes, which is copied
        assert torch.equal(matmul(a.clone(), b, config=SMALL), want)
        odd = torch.zeros(100 * 72 + 1, dtype=BF16)[1:].view(100, 72).copy_(a)
        assert torch.equal(matmul(odd, b, config=SMALL), want)
        assert calls[3][1] == 88 and calls[3][0][0] not in (odd.data_ptr(), a.data_ptr())
        # into a tensor of the caller's, by the short way the second time; over an operand is refused by either
        for stride in (136, 144):
            whole = torch.full((100, stride), 5.0, dtype=BF16)
            for turn in range(2):
                out = whole[:, :136].zero_()
                version = out._version
                assert matmul(a, b, out=out, config=SMALL) is out and torch.equal(out, want)
                assert out._version > version or not turn
                assert calls[-1][1] == (77 if turn else 88) and bool((whole[:, 136:] == 5).all())
        square = integers(64, 64)
        matmul(square, square.clone(), out=torch.empty_like(square), config=SMALL)
        with pytest.raises(TensorError, match="shares memory with a"):
            matmul(square, square.clone(), out=square, config=SMALL)
        # recorded by autograd alone: the short way, too
        x = a.clone().requires_grad_()
        got = matmul(x, b, config=SMALL)
        assert got.requires_grad and torch.equal(got, want) and calls[-1][1] == 77
        # recorded in forward mode: the operator, which has tangents
        with torch.autograd.forward_ad.dual_level():
            got = matmul(torch.autograd.forward_ad.make_dual(a.clone(), a.clone()), b, config=SMALL)
            assert torch.equal(torch.autograd.forward_ad.unpack_dual(got).tangent, want) and calls[-1][1] == 88


@pytest.mark.dsl
def test_bias_activation_and_scalars_in_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """The emulated kernel against float64, rounded once; the second call by the short way."""
    a, b, bias, c = integers(70, 64), integers(72, 64).T, torch.randn(72).bfloat16(), integers(70, 72)
    product = torch.matmul(a.double(), b.double())
    with emulated(monkeypatch) as calls:
        want = torch.relu(product + bias.double()).bfloat16()
        for stream in (88, 77):
            got = matmul(a, b, bias=bias, activation="relu", config=SMALL)
            assert torch.equal(got, want) and calls[-1][1] == stream
        odd = torch.empty(73, dtype=BF16)[1:].copy_(bias)  # off 16 bytes: by the long way, no pairs
        assert torch.equal(matmul(a, b, bias=odd, activation="relu", config=SMALL), want) and calls[-1][1] == 88
        got = gemm(2.0, a, b, -1.5, c, config=SMALL)
        assert torch.equal(got, (2 * product - 1.5 * c.double()).bfloat16()) and len(calls) == 4
        # what the kernel does not take is done by torch, to the same end
        x = bias.clone().requires_grad_()
        assert torch.equal(matmul(a, b, bias=x, activation="relu", config=SMALL), want)


SAMPLE = {
    "rows and columns": (lambda: (integers(70, 64), integers(72, 64).T)),
    "a batch with a shared matrix": (lambda: (integers(70, 64), integers(3, 72, 64).transpose(1, 2))),
    "a shared matrix that is no more rows": (lambda: (integers(3, 64, 72).transpose(1, 2), integers(64, 80))),
    "odd sizes, copied": (lambda: (integers(33, 65), integers(65, 31))),
    "heads": (lambda: (integers(2, 70, 3, 64).transpose(1, 2), integers(2, 72, 3, 64).permute(0, 2, 3, 1))),
}


@pytest.mark.dsl
@pytest.mark.parametrize("name", SAMPLE)
def test_solutions_give_the_product_in_the_emulator(name: str) -> None:
    a, b = SAMPLE[name]()
    emulate(a, b, None, SMALL)


def emulate(a: Any, b: Any, out: Any, config: Any) -> None:
    want = torch.matmul(a.double(), b.double()).bfloat16()
    c = torch.full_like(want, float("nan")) if out is None else out
    torch_emulated.emulate(
        solve(torch_prepared.problem_of(a, b, c, torch_prepared.choice_of(config), ClusterOccupancy(), "")), a, b, c
    )
    assert torch.equal(c, want)


@pytest.mark.dsl
@pytest.mark.slow
@pytest.mark.parametrize("number", range(60))
def test_random_cases_in_the_emulator(number: int) -> None:
    """The soak's cases, their sizes cut down: what is solved is launched with the very arguments that a GPU gets."""
    case = draw(number, seed=1, kinds=(BF16,))
    sizes = tuple(min(size, 150) for size in case.sizes)
    small = Case(
        number, sizes, case.batches, case.vectors, (BF16, BF16, BF16), case.layouts, case.out, SMALL, True, False,
    )  # fmt: skip
    a, b, out, whole = tensors(small, "cpu")
    if 0 in (*shapes_of(a.shape, b.shape).result, sizes[2]):
        return
    emulate(a, b, out, SMALL)
    if whole is not None:
        out.fill_(3)
        assert bool((whole == 3).all())


# -------------------------------------------------------------------------------------------------------------- the
# soak


def test_the_soak_draws_many_kinds_and_sees_faults() -> None:
    drawn = list(cases(60, 0, (ClusterOccupancy(), "NVIDIA H200"), (BF16, torch.float8_e4m3fn), 30))
    assert len({kernel for _, kernel, _ in drawn} - {None}) <= 30
    assert any(copies for _, _, copies in drawn) and any(case.batches[0] for case, _, _ in drawn)
    plain = [case for case, kernel, _ in drawn if kernel is not None and case.form == "plain" and not case.finish]
    case = next(case for case in plain if case.types[0] == BF16)
    a, b, _, _ = tensors(case, "cpu")
    right = torch.matmul(a.double(), b.double()).to(case.types[2])
    assert fault(case, a, b, right) == ""
    wrong = right.clone()
    wrong.view(-1)[-1] += 1 if case.integers else right.abs().max() / 8 + 1
    assert fault(case, a, b, wrong) != ""
    assert kernel_of(case, (ClusterOccupancy(), "NVIDIA H200")) == kernel_of(case, (ClusterOccupancy(), "NVIDIA H200"))


# ------------------------------------------------------------------------------------------------------------ launching


def test_blocks_belong_to_one_call_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads launch one prepared product: every call finds its own words in its block."""
    seen: list[tuple[int, ...]] = []
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)

    @entry
    def host(pointer: int) -> None:
        addresses = (ctypes.c_void_p * 16).from_address(pointer)
        seen.append(tuple(ctypes.c_int64.from_address(addresses[i]).value for i in (0, 1, 2, 14)))
        ctypes.c_int32.from_address(addresses[15]).value = 0

    found = torch_launch.PreparedProblem.__new__(torch_launch.PreparedProblem)
    found.solution = solve(Problem(given(64, 64), given(64, 64), given(64, 64)))
    found.what = found.solution.kernel
    found._launcher = SimpleNamespace(entry=host, block=lambda arguments: ArgumentBlock(host, arguments))
    found._template, found._free, found._a, found._b, found.device = (0,) * 14, [], 0, 1, 0
    found._start = found._starter((0, 1, 2))
    monkeypatch.setattr(torch_launch, "current_device", lambda: 0)
    monkeypatch.setattr(torch_launch, "raw_stream", lambda index: 77)
    monkeypatch.setattr(torch_launch, "empty_on_gpu", lambda *x: torch.empty_strided(*x[:2], dtype=x[2]))
    product, made = found.product_as((1,), (1,), BF16), []

    def work(thread: int) -> None:
        x, y = torch.ones(8, dtype=BF16), torch.ones(8, dtype=BF16)
        for step in range(300):
            base = thread * 10000 + step * 4
            found.launch(base, base + 1, base + 2, base + 3)
            c = product(x, y)
            made.append((x.data_ptr(), y.data_ptr(), c.data_ptr(), 77, c))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    of_numbers = [words for words in seen if words[-1] != 77]
    assert len(of_numbers) == 2400 == len(set(of_numbers))
    assert all(b == a + 1 and c == a + 2 and s == a + 3 for a, b, c, s in of_numbers)
    assert len({words[2] for words in made}) == 2400 and {words[:4] for words in made} == {*seen} - {*of_numbers}
    assert len(found._free) <= 8

    @entry
    def refuse(pointer: int) -> None:
        ctypes.c_int32.from_address((ctypes.c_void_p * 16).from_address(pointer)[15]).value = 700

    found._launcher.entry = refuse
    found._start = found._starter((0, 1, 2))
    with pytest.raises(PlanError, match=r"cudaErrorIllegalAddress|cudaError 700"):
        found.launch(0, 0, 0, 0)
    with pytest.raises(PlanError, match=r"cudaErrorIllegalAddress|cudaError 700"):
        found.product_as((1,), (1,), BF16)(torch.ones(8), torch.ones(8))


def test_prepared_products_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch_prepared, "MAX_PREPARED", 8)
    monkeypatch.setattr(torch_prepared, "PreparedProblem", lambda *arguments: arguments)
    monkeypatch.setattr(torch_prepared, "gpu", lambda index, config=None: (ClusterOccupancy(), ""))
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    torch_prepared.forget()
    for m in range(1, 40):
        torch_prepared.prepare(torch.zeros(m, 8).bfloat16(), torch.zeros(8, 8).bfloat16(), BF16, None, None)
        assert len(torch_prepared.PREPARED) <= 10
    torch_prepared.forget()


def test_torch_is_imported_when_matmul_is_named() -> None:
    code = (
        "import sys, layoutgemm; assert 'torch' not in sys.modules; layoutgemm.matmul; assert 'torch' in sys.modules; "
        "print('cutlass' in sys.modules, 'torch._dynamo' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=120)
    assert done.stdout.strip() == "False False", done.stderr


def test_a_launcher_says_what_cuda_says() -> None:
    """`Launcher.load` asks once a device, in order, and gives CUDA's error by name."""
    asked: list[tuple[str, int]] = []
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
    status = 0

    def function(name: str, count: int) -> Any:
        @entry
        def call(pointer: int) -> None:
            addresses = (ctypes.c_void_p * count).from_address(pointer)
            device = ctypes.c_int32.from_address(addresses[1]).value if count == 3 else -1
            asked.append((name, device))
            ctypes.c_int32.from_address(addresses[count - 1]).value = status

        return call

    functions = {"entry": function("entry", 3), "_mlir_x_cuda_init": function("init", 2),
                 "_mlir_x_cuda_load_to_device": function("load", 3)}  # fmt: skip
    launcher = Launcher(lambda name: ctypes.cast(functions[name], ctypes.c_void_p).value or 0, "x", "entry")
    for device in (0, 1, 0, 1):
        launcher.load(device)
    assert asked == [("init", -1), ("load", 0), ("load", 1)]
    status = 209
    with pytest.raises(PlanError, match=r"cudaErrorNoKernelImageForDevice|209"):
        launcher.load(2)
    status = 0
    launcher.load(2)  # it was not taken for loaded
    assert asked[-1] == ("load", 2)
