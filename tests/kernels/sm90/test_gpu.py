"""The production kernel on a GPU: every form against float64, operands as torch makes them, and launches that overlap.

Programmatic dependent launch lets a kernel begin while the previous one still writes. In the chains here every launch
reads the previous launch's output and overwrites its input. A chain without overlap gives the expected bits.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from layoutgemm.dtypes import tf32
from layoutgemm.errors import OperandError
from layoutgemm.kernels import GemmPlan, error_bound
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice
from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan
from tests import needs
from tests.kernels.sm90.table import TABLE, small

torch = needs.module("torch")
pytestmark = [pytest.mark.gpu, pytest.mark.dsl]

TYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32, "e4m3": torch.float8_e4m3fn,
         "e5m2": torch.float8_e5m2, "tf32": torch.float32, "i8": torch.int8, "u8": torch.uint8,
         "i32": torch.int32}  # fmt: skip


def tensor(operand: Any, values: Any) -> Any:
    """Values in the operand's layout on the GPU, padded for a tensor map."""
    lines = values if operand.order == "row" else np.swapaxes(values, -1, -2)
    pitch = -(-lines.shape[-1] // 16) * 16
    whole = torch.zeros((*lines.shape[:-1], pitch), device="cuda").to(TYPES[operand.dtype.name])
    whole[..., : lines.shape[-1]] = torch.from_numpy(np.ascontiguousarray(lines)).cuda().to(whole.dtype)
    found = whole[..., : lines.shape[-1]]
    return found if operand.order == "row" else found.transpose(-1, -2)


@pytest.mark.parametrize("name", TABLE)
def test_every_form_is_exact(name: str) -> None:
    """Small integers, of which every sum is exact; twice, so that a kernel that leaves something behind shows it."""
    plan = TABLE[name].plan()
    a, b, want = (x if plan.batch > 1 else x[0] for x in TABLE[name].values())
    for _ in range(2):
        result = plan.run(tensor(plan.a, a), tensor(plan.b, b), copy=False)
        assert result.copies == () and result.c.dtype == TYPES[plan.c.dtype.name]
        assert np.array_equal(np.asarray(result), want)


@pytest.mark.parametrize("name", TABLE)
def test_real_values_are_within_the_bound(name: str) -> None:
    """Sizes of several waves, against float64. Values of tf32 are float32, which the kernel rounds."""
    product = TABLE[name]
    m = product.m if product.config.loaded_a_rows else product.m + 1500
    larger = replace(product, m=m, n=product.n + 1300, k=product.k + 1000)
    plan = larger.plan()
    rng = np.random.default_rng(0)
    front = (plan.batch,) if plan.batch > 1 else ()
    pair = [x if front else x[0] for x in larger.values()[:2]]
    for which, op in enumerate((plan.a, plan.b)):
        if op.dtype.kind == "float":
            values = rng.standard_normal(pair[which].shape).astype(np.float32) / 4
            whole = op.dtype.name == "tf32"
            pair[which] = values if whole else np.asarray(op.dtype.decode(op.dtype.encode(values)))
    first = plan.run(*(tensor(op, x) for op, x in zip((plan.a, plan.b), pair)))
    error = np.abs(np.asarray(first) - np.matmul(*pair, dtype=np.float64))
    assert (error <= error_bound(plan, *pair)).all()
    again = plan.run(*(tensor(op, x) for op, x in zip((plan.a, plan.b), pair)))
    assert np.array_equal(np.asarray(first), np.asarray(again))  # the same bits from run to run


def test_tf32_rounds_to_nearest_even() -> None:
    """C = A @ 1 is A as the tensor copy brings it: f32 to the nearest tf32, ties to even, infinities and NaNs kept."""
    plan = GemmPlan.derive(64, 32, 32, a="tf32", b="tf32:col", config=small(64, 32))
    a = torch.randn(64, 32, device="cuda")
    a.view(torch.int32)[0, :4] = torch.tensor([0x3F801000, 0x3F803000, 0x3F800FFF, 0x3F801001], device="cuda")
    c = plan.run(a, torch.eye(32, device="cuda").T, copy=False).c.cpu().numpy()
    assert np.array_equal(c, tf32.decode(tf32.encode(a.cpu().numpy())))
    ends = torch.zeros(64, 32, device="cuda")
    bits = [0x7F800000, -0x800000, 0x7FFFFFFF, 0x7F800001, 0x7FC00000]
    ends.view(torch.int32)[range(5), range(5)] = torch.tensor(bits, dtype=torch.int32, device="cuda")
    ones = torch.ones(32, 32, device="cuda")
    rows = plan.run(ends, ones).c[:5, 0].cpu()
    assert rows[0] == float("inf") and rows[1] == -float("inf") and bool(torch.isnan(rows[2:]).all()), rows


def test_integers_stop_at_the_ends() -> None:
    plan = GemmPlan.derive(64, 16, 33040, a="u8", b="u8:col", config=small(64, 16))
    a, b = (torch.full(shape, 255, dtype=torch.uint8, device="cuda") for shape in ((64, 33040), (16, 33040)))
    assert 255 * 255 * 33040 > 2**31 and bool((plan.run(a, b.T, copy=False).c == 2**31 - 1).all())


def test_an_operand_that_is_not_k_major_is_copied() -> None:
    for kind, output in (("tf32", torch.float32), ("i8", torch.int32)):
        plan = GemmPlan.derive(72, 136, 208, a=kind, b=f"{kind}:col", config=small(64, 32))
        a, b = integers(72, 208, dtype=TYPES[kind]), integers(208, 136, dtype=TYPES[kind])
        result = plan.run(a, b)
        assert result.c.dtype == output and torch.equal(result.c.double(), a.double() @ b.double())
        assert len(result.copies) == 1 and "the plan takes it col-major" in result.copies[0]
        with pytest.raises(OperandError, match="the plan takes it col-major"):
            plan.run(a, b, copy=False)


def integers(*shape: int, dtype: Any = torch.bfloat16) -> Any:
    return torch.randint(-4, 5, shape, device="cuda").to(dtype)


def test_operands_as_torch_makes_them() -> None:
    plan = GemmPlan.derive(72, 136, 200, batch=3, b="bf16:col", config=small())
    a, b = integers(3, 72, 200), integers(3, 136, 200)
    want = (a.double() @ b.double().transpose(1, 2)).bfloat16()
    assert torch.equal(plan.run(a, b.transpose(1, 2), copy=False).c, want)
    # each matrix of the batch lies between the rows of another
    between = integers(72, 3, 200)
    got = plan.run(between.transpose(0, 1), b.transpose(1, 2), copy=False)
    assert torch.equal(got.c, (between.transpose(0, 1).double() @ b.double().transpose(1, 2)).bfloat16())
    # one matrix for all of a batch is no tensor map's: its matrices lie 0 elements apart
    same = a[:1].expand(3, 72, 200)
    result = plan.run(same, b.transpose(1, 2))
    assert len(result.copies) == 1 and "matrices of the batch lie 0 elements apart" in result.copies[0]
    assert torch.equal(result.c, (same.double() @ b.double().transpose(1, 2)).bfloat16())
    with pytest.raises(OperandError, match="matrices of the batch lie 0 elements apart"):
        plan.run(same, b.transpose(1, 2), copy=False)


def test_outputs_of_the_product() -> None:
    plan = GemmPlan.derive(72, 135, 200, b="bf16:col", config=small())
    a, b = integers(72, 200), integers(135, 200).T
    want = (a.double() @ b.double()).bfloat16()
    assert plan.run(a, b).c.stride() == (136, 1)  # lines padded to 16 bytes
    whole = torch.full((72, 144), 5.0, dtype=torch.bfloat16, device="cuda")
    with pytest.raises(OperandError, match="2 bytes beyond it are overwritten"):  # the caller's, beside the view
        plan.run(a, b, out=whole[:, :135], copy=False)
    result = plan.run(a, b, out=whole[:, :135])
    assert "tensor store ends it at a multiple of 16" in result.copies[0] and torch.equal(whole[:, :135], want)
    assert bool((whole[:, 135:] == 5).all())
    tight = torch.zeros(72, 135, dtype=torch.bfloat16, device="cuda")
    result = plan.run(a, b, out=tight)
    assert result.c is tight and torch.equal(tight, want) and "lines lie 135 * 2 = 270 bytes apart" in result.copies[0]
    with pytest.raises(OperandError, match="computes into a buffer with pitch 136"):
        plan.run(a, b, out=tight, copy=False)
    turned = torch.zeros(135, 72, dtype=torch.bfloat16, device="cuda").T
    assert "takes it row-major" in plan.run(a, b, out=turned).copies[0] and torch.equal(turned, want)
    direct = GemmPlan.derive(72, 135, 200, b="bf16:col", config=small(store="direct"))
    tight.zero_()
    assert direct.run(a, b, out=tight, copy=False).copies == () and torch.equal(tight, want)
    with pytest.raises(OperandError, match="out, which is written to, shares memory with a"):
        square = integers(64, 64)
        GemmPlan.derive(64, 64, 64, config=small()).run(square, square.clone(), out=square)


def test_numpy_arrays_and_cpu_tensors_are_taken_to_the_gpu() -> None:
    plan = GemmPlan.derive(72, 136, 208, a="e4m3", b="e5m2:col", config=small(64, 48))
    a, b = (torch.randint(-3, 4, shape).float() for shape in ((72, 208), (208, 136)))
    want = (a.double() @ b.double()).bfloat16().float().numpy()
    assert np.array_equal(plan.run(a.numpy(), b.numpy(), device="cuda").c, want)
    given = a.to(torch.float8_e4m3fn), b.to(torch.float8_e5m2)
    assert np.array_equal(plan.run(*given, device="cuda").c.float().numpy(), want)
    assert np.array_equal(plan.run(a.numpy(), b.numpy(), device="reference").c, want)


# ------------------------------------------------------------------------------------------------ launches that overlap

M, SIZE, LAUNCHES = 64, 1024, 300
CONFIGS = (
    Sm90Choice(Sm90Config((64, 64), consumers=1, loader="warp")),
    Sm90Choice(Sm90Config((64, 64), consumers=1, loader="warp", one_tile_per_cluster=True), swapped=True),
    Sm90Choice(Sm90Config((64, 64), consumers=1, loader="warp", one_tile_per_cluster=True, split=2)),
    Sm90Choice(
        Sm90Config(
            (64, 64), consumers=1, loader="warp", one_tile_per_cluster=True, split=2, cluster=(1, 2), trigger="end"
        )
    ),
    Sm90Choice(
        Sm90Config((64, 64), consumers=1, loader="warp", one_tile_per_cluster=True, split=4, cluster=(1, 2), chunks=4)
    ),
)


class Chain:
    """C of one launch is A of the next: two buffers in turn, and a matrix of weights for every configuration."""

    def __init__(self, overlap: bool) -> None:
        generator = torch.Generator(device="cuda").manual_seed(1)

        def normal(*shape: int) -> Any:
            return torch.randn(*shape, device="cuda", generator=generator)

        self.first = normal(M, SIZE).bfloat16()
        self.buffers = [self.first.clone(), torch.zeros_like(self.first)]
        # Columns of length 1: values neither grow nor vanish.
        self.weights = [(normal(SIZE, SIZE) / SIZE**0.5).bfloat16() for _ in CONFIGS]
        self.launches: list[Callable[[int], None]] = []
        for which, choice in enumerate(CONFIGS):
            early = {"overlap": overlap, "prefetch": choice.config.prefetch if overlap else 0}
            choice = replace(choice, config=replace(choice.config, **early))
            self.launches.append(self._launch(choice, self.weights[which]))

    def _launch(self, choice: Sm90Choice, weights: Any) -> Callable[[int], None]:
        plan: Sm90Plan = choice.plan(M, SIZE, SIZE, b="bf16:col")  # B is (K, N): weights.T, K contiguous
        compiled = plan.compile()
        workers = torch.cuda.get_device_properties(0).multi_processor_count // plan.cluster_size
        sizes, leading = (M, SIZE, SIZE, 1), (SIZE, SIZE, SIZE)

        def launch(step: int) -> None:
            source, target = self.buffers[step % 2], self.buffers[(step + 1) % 2]
            pointers = source.data_ptr(), weights.data_ptr(), target.data_ptr()
            arguments = choice.arguments(pointers, sizes, leading, (0, 0, 0), workers)
            compiled.launch(*arguments, stream=torch.cuda.current_stream().cuda_stream)

        return launch

    def run(self, order: list[int]) -> Any:
        """The last product of the chain."""
        self.buffers[0].copy_(self.first)
        for step, which in enumerate(order):
            self.launches[which](step)
        return self.buffers[len(order) % 2]


@pytest.fixture(scope="module")
def chains() -> tuple[Chain, Chain]:
    """(without overlap, with overlap), each warmed up."""
    made = Chain(False), Chain(True)
    for chain in made:
        chain.run(list(range(len(CONFIGS))))
    torch.cuda.synchronize()
    return made


def order(seed: int) -> list[int]:
    chosen = random.Random(seed)
    return [chosen.randrange(len(CONFIGS)) for _ in range(LAUNCHES)]


def test_one_link_is_right(chains: tuple[Chain, Chain]) -> None:
    for chain in chains:
        for which in range(len(CONFIGS)):
            got = chain.run([which]).double()
            want = chain.first.double() @ chain.weights[which].double().T
            assert float((got - want).abs().max()) < 0.05 * float(want.abs().max())


@pytest.mark.parametrize("seed", range(5))
def test_a_chain_of_launches_that_overlap(chains: tuple[Chain, Chain], seed: int) -> None:
    apart, together = chains
    want = apart.run(order(seed)).clone()
    assert bool(torch.isfinite(want).all()) and float(want.abs().max()) > 1e-3
    for _ in range(3):
        got = together.run(order(seed)).clone()
        assert torch.equal(got, want), f"{int((got != want).sum())} of {want.numel()} elements differ"


@pytest.mark.parametrize("seed", range(5, 8))
def test_a_chain_in_a_graph(chains: tuple[Chain, Chain], seed: int) -> None:
    """In a graph, launches follow as closely as they can."""
    apart, together = chains
    want = apart.run(order(seed)).clone()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = together.run(order(seed))
    for _ in range(10):
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(result, want), f"{int((result != want).sum())} of {want.numel()} elements differ"
