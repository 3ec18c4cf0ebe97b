"""The Hopper kernel, compiled without a GPU: what the code holds is what the plan says, and what NVIDIA derives."""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layoutgemm.errors import AtomError, PlanError
from layoutgemm.kernels import TeachingConfig, TeachingPlan
from layoutgemm.kernels.compile import compiler as compiling
from layoutgemm.kernels.compile.sass import disassemble
from tests.kernels.oracles import nvidia_map, once, run_program
from tests.oracle.ptx_constants import wgmma_uses

pytestmark = [pytest.mark.dsl, pytest.mark.usefixtures("cache_of_this_run")]
ORDERS = ("row", "col")
SWIZZLES = ("none", "32B", "64B", "128B")
# Every order and type of C with four stages; the other depths are for the longer run, but for one of each.
COMBINATIONS = [
    pytest.param(
        f"{dtype}:{a}", f"{dtype}:{b}", c, stages,
        marks=[pytest.mark.slow] * (stages != 4 and not (a == "row" and b == "col" and c == "f32")),
    )
    for dtype, depths in (("bf16", (1, 2, 4)), ("f16", (3,)))
    for a, b, stages in itertools.product(ORDERS, ORDERS, depths)
    for c in ("f32", dtype)
]  # fmt: skip
# The tile of 64 x 64 fits every swizzle; the longer run adds other depths, and every swizzle of a narrow tile.
TILES = [
    (64, 64, SWIZZLES),
    pytest.param(64, 128, SWIZZLES, marks=pytest.mark.slow),
    pytest.param(64, 16, SWIZZLES, marks=pytest.mark.slow),
    pytest.param(24, 32, SWIZZLES, marks=pytest.mark.slow),
    (24, 32, ("none",)),
    (8, 64, ("none",)),
    (256, 64, ("128B",)),
]


def derive(
    a: str = "bf16", b: str = "bf16", c: str = "f32", m: int = 64, n: int = 64, k: int = 64, **config: Any
) -> TeachingPlan:
    return TeachingPlan.derive(m, n, k, a=a, b=b, c=c, config=TeachingConfig(**config))


# ------------------------------------------------------------------------------------------------- what the code says


def check_ptx(plan: TeachingPlan, ptx: str) -> None:
    """Every constant of the plan that PTX shows, bit by bit; AssertionError names the first that differs."""
    uses = wgmma_uses(ptx)
    assert len(uses) == plan.tile[2] // plan.mma.shape_mnk[2], f"{len(uses)} wgmmas"
    for index, use in enumerate(uses):
        for name, operand, word, transposed in (
            ("A", plan.a, use.a, use.transpose_a),
            ("B", plan.b, use.b, use.transpose_b),
        ):
            want = operand.descriptor.word + (operand.descriptor.k_steps[index] >> 4)
            assert word == want, f"{name}, K block {index}: descriptor constant {word:#018x}, the plan has {want:#018x}"
            assert transposed == (operand.major == "MN"), f"{name} is {operand.major}-major, transposed: {transposed}"
        assert use.shape == "m{}n{}k{}".format(*plan.mma.shape_mnk)
        assert use.types == f"f32.{plan.mma.a_dtype.name}.{plan.mma.b_dtype.name}"

    def constant(register: str) -> int:
        return int(re.search(rf"mov\.b32\s+{register}, (\d+);", ptx)[1])

    inits = re.findall(r"mbarrier\.init\.shared\S*\s+\[[^]]+\], (%r\d+);", ptx)
    assert [constant(register) for register in inits] == [plan.barrier.arrivals] * plan.barrier.count
    promises = re.findall(r"mbarrier\.arrive\.expect_tx\S*\s+%rd\d+, \[[^]]+\], (%r\d+);", ptx)
    assert [constant(register) for register in promises] == [plan.barrier.bytes] * (plan.stages + 1)
    copies = (len(plan.a.tma.instructions) + len(plan.b.tma.instructions)) * (plan.stages + 1)
    assert ptx.count("cp.async.bulk.tensor.2d.shared::cta.global") == copies
    assert f".target {plan.arch.name}" in ptx


def check_sass(plan: TeachingPlan, compiled: compiling.CompiledGemm) -> None:
    """The machine code has the plan's instruction counts and no slow extras."""
    code, taken = compiled.sass(), compiled.resources
    k_blocks = len(plan.a.descriptor.k_steps)
    copies = len(plan.a.tma.instructions) + len(plan.b.tma.instructions)
    assert code.count("HGMMA") == k_blocks
    # the first stages are filled before the loop, one stage inside it
    assert code.count("UTMALDG") == (plan.stages + 1) * copies
    assert code.count("STG") == plan.mma.accumulator_registers
    assert not code.local_memory, [str(i) for i in code.local_memory]
    assert (taken.stack_bytes, taken.local_bytes) == (0, 0)
    assert code.serialised_wgmma(k_blocks) is None, code.serialised_wgmma(k_blocks)
    assert code.wgmma_runs == (k_blocks,)
    # what is not accumulator is addresses and counters
    assert plan.mma.accumulator_registers < taken.registers <= max(128, plan.mma.accumulator_registers + 40)


@pytest.mark.parametrize("a, b, c, stages", COMBINATIONS)
def test_every_order_type_and_stage_count(a: str, b: str, c: str, stages: int) -> None:
    plan = derive(a, b, c, stages=stages)
    compiled = plan.compile()
    check_ptx(plan, compiled.ptx)
    check_sass(plan, compiled)
    # round to nearest even is the hardware's .rn
    rounded = 0 if c == "f32" else plan.mma.accumulator_registers
    assert len(re.findall(rf"cvt\.rn\.{c}\.f32", compiled.ptx)) == rounded


@pytest.mark.parametrize("tile_n, tile_k, swizzles", TILES)
def test_every_swizzle_and_tile(tile_n: int, tile_k: int, swizzles: tuple[str, ...]) -> None:
    """Each swizzle that fits the tile, on both operands at once, in both orders."""
    compiled = 0
    for order, swizzle in itertools.product(ORDERS, swizzles):
        other = "col" if order == "row" else "row"
        try:
            plan = derive(
                f"bf16:{order}", f"bf16:{other}",
                tile_n=tile_n, tile_k=tile_k, stages=2, swizzle_a=swizzle, swizzle_b=swizzle,
            )  # fmt: skip
        except AtomError:
            continue  # a span that does not divide the tile is refused
        check_ptx(plan, plan.compile().ptx)
        compiled += 1
    assert compiled >= len(swizzles)
    check_sass(plan, plan.compile())


# --------------------------------------------------------------------------------------------------- what NVIDIA says


def oracle_requests() -> list[dict[str, Any]]:
    """Every major and swizzle, as A and as B, for three tiles and other N."""
    layouts = list(itertools.product(("K", "MN"), SWIZZLES))
    requests = []
    for n, k in ((64, 64), (64, 128), (64, 16)):
        # a span along K needs K of its length; a span along M or N has 64 elements here, which all of them divide
        fitting = [(major, swizzle) for major, swizzle in layouts if major == "MN" or 2 * k % span(swizzle) == 0]
        requests += [{"a": one, "b": one, "n": n, "k": k, "dtype": "bf16"} for one in fitting]
    requests += [
        {"a": ("K", "128B"), "b": ("MN", "64B"), "n": 128, "k": 64, "dtype": "bf16"},
        {"a": ("MN", "64B"), "b": ("MN", "128B"), "n": 256, "k": 64, "dtype": "bf16"},
        {"a": ("MN", "none"), "b": ("K", "none"), "n": 24, "k": 32, "dtype": "bf16"},
        {"a": ("K", "64B"), "b": ("MN", "none"), "n": 8, "k": 32, "dtype": "bf16"},
        {"a": ("K", "128B"), "b": ("K", "128B"), "n": 64, "k": 64, "dtype": "f16"},
        {"a": ("MN", "32B"), "b": ("MN", "32B"), "n": 64, "k": 64, "dtype": "f16"},
    ]
    return requests


def span(swizzle: str) -> int:
    return {"none": 16, "32B": 32, "64B": 64, "128B": 128}[swizzle]


def plan_of(request: dict[str, Any]) -> TeachingPlan:
    """Our plan for what a request describes: A is row-major when K-major, B is column-major when K-major.

    Of two stages: those of 64 x 64 are the plans that `test_every_swizzle_and_tile` compiles.
    """
    (major_a, swizzle_a), (major_b, swizzle_b) = request["a"], request["b"]
    return derive(
        f"{request['dtype']}:{'row' if major_a == 'K' else 'col'}",
        f"{request['dtype']}:{'col' if major_b == 'K' else 'row'}",
        tile_n=request["n"], tile_k=request["k"], stages=2, swizzle_a=swizzle_a, swizzle_b=swizzle_b,
    )  # fmt: skip


@pytest.fixture(scope="module")
def nvidia(folder_of_this_run: Path) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """(request, what the DSL derives from its own layouts), in one subprocess for all workers."""
    requests, folder = oracle_requests(), folder_of_this_run / "nvidia's sm_90a"
    folder.mkdir(exist_ok=True)
    answers = once(folder / "answers.json", lambda: run_program("dsl_sm90.py", str(folder), requests))
    return list(zip(requests, answers, strict=True))


def misfits(plan: TeachingPlan, answer: dict[str, Any]) -> list[str]:
    """Differences between the plan and NVIDIA's derivation: descriptor words of every K block, transposes, boxes."""
    found = []
    for index, (a, b, transposed_a, transposed_b) in enumerate(answer["wgmma"]):
        for operand, word, transposed in ((plan.a, a, transposed_a), (plan.b, b, transposed_b)):
            ours = operand.descriptor.word + (operand.descriptor.k_steps[index] >> 4)
            if ours != word:
                found.append(f"{operand.name}, K block {index}: {ours:#018x}, NVIDIA derives {word:#018x}")
            if transposed != (operand.major == "MN"):
                found.append(f"{operand.name}: {operand.major}-major, NVIDIA transposes: {transposed}")
    if len(answer["wgmma"]) != len(plan.a.descriptor.k_steps):
        found.append(f"{len(plan.a.descriptor.k_steps)} K blocks, NVIDIA has {len(answer['wgmma'])}")
    for operand in (plan.a, plan.b):
        box = answer["boxes"][operand.name.lower()]
        if list(operand.tma.box) != box:
            found.append(f"{operand.name}: box {operand.tma.box}, NVIDIA has {box}")
    return found


def test_descriptors_and_boxes_equal_nvidias(nvidia: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    found = {str(request): misfits(plan_of(request), answer) for request, answer in nvidia}
    assert len(found) == len(nvidia) >= 22
    assert not any(found.values()), {request: why for request, why in found.items() if why}


def test_a_changed_constant_is_seen_against_nvidia(nvidia: list[tuple[dict[str, Any], dict[str, Any]]]) -> None:
    """The comparison has teeth: each field of the word, the advance, the box, the majorness."""
    request, answer = nvidia[0]
    plan = plan_of(request)
    assert not misfits(plan, answer)
    for mutant in mutants(plan):
        assert misfits(mutant, answer) or mutant.barrier != plan.barrier, mutant


def mutants(plan: TeachingPlan) -> Iterator[TeachingPlan]:
    """The plan with one constant of its A operand, or of its barrier, changed."""
    change = dataclasses.replace

    def with_a(**fields: Any) -> TeachingPlan:
        return change(plan, a=change(plan.a, **fields))

    descriptor, tma = plan.a.descriptor, plan.a.tma
    yield with_a(
        descriptor=change(descriptor, base=change(descriptor.base, stride_bytes=descriptor.base.stride_bytes * 2))
    )
    yield with_a(
        descriptor=change(descriptor, base=change(descriptor.base, leading_bytes=descriptor.base.leading_bytes + 16))
    )
    other = "64B" if descriptor.base.swizzle_name != "64B" else "32B"
    yield with_a(descriptor=change(descriptor, base=change(descriptor.base, swizzle_name=other)))
    yield with_a(descriptor=change(descriptor, base=change(descriptor.base, base_offset=1)))
    yield with_a(descriptor=change(descriptor, k_steps=tuple(step + 16 * (step > 0) for step in descriptor.k_steps)))
    yield with_a(major="MN" if plan.a.major == "K" else "K")
    yield with_a(tma=change(tma, box=(tma.box[0] // 2, tma.box[1])))
    yield change(plan, barrier=change(plan.barrier, bytes=plan.barrier.bytes + 16))
    yield change(plan, barrier=change(plan.barrier, arrivals=plan.barrier.arrivals + 1))


def test_a_changed_constant_is_seen_in_the_ptx() -> None:
    plan = derive(stages=1)
    check_ptx(plan, plan.compile().ptx)
    seen = 0
    for mutant in mutants(plan):
        if mutant.a.tma != plan.a.tma:
            continue  # a box is no part of the PTX: the host function encodes it, see below
        with pytest.raises(AssertionError):
            check_ptx(plan, mutant.compile().ptx)
        seen += 1
    assert seen == 8


# ------------------------------------------------------------------------------------- what the host half really does


def host_calls(recorder: str, runs: list[tuple[TeachingPlan, list[int]]], folder: Path) -> list[list[dict[str, Any]]]:
    """Run each plan's compiled host function on its arguments, in one process; each one's calls to the CUDA runtime."""
    requests = []
    for index, (plan, arguments) in enumerate(runs):
        compiled = plan.compile()
        path = folder / f"{index}.o"
        path.write_bytes(compiled.object)
        requests.append({"object": str(path), "symbol": compiled.symbol, "arguments": arguments})
    answers = run_program("host_launch.py", recorder, requests)
    assert all(answer["status"] == 0 for answer in answers)
    return [answer["calls"] for answer in answers]


SIZES = [
    # m, n, k, lda, ldb, ldc: small, ragged, beyond gridDim.y, M*N > 2**31, pitches beyond 2**32 bytes, the last size
    (64, 64, 64, 64, 64, 64),
    (200, 136, 72, 80, 144, 136),
    (5_000_000, 64, 8, 8, 5_000_000, 64),
    (100_000, 90_000, 8200, 100_000, 90_112, 90_000),
    (64, 64, 64, 3_000_000_008, 2_200_000_000, 5_000_000_000),
    (2**31 - 1, 1, 8, 2**31, 8, 1),
]


def check_calls(plan: TeachingPlan, arguments: list[int], calls: list[dict[str, Any]]) -> None:
    """The host function encodes the plan's boxes and launches one block a tile."""
    a, b, _, m, n, k, lda, ldb, _, stream = arguments
    extents = {"m": m, "n": n, "k": k}
    *maps, launch = calls
    assert len(maps) == 2
    for operand, address, leading, made in ((plan.a, a, lda, maps[0]), (plan.b, b, ldb, maps[1])):
        assert made == {
            "call": "encode",
            "type": 9,  # CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
            "rank": 2,
            "address": address,
            "dims": [extents[name] for name in operand.tma.dims],
            "strides": [leading * operand.dtype.bytes],
            "box": list(operand.tma.box),
            "steps": [1, 1],
            "interleave": 0,
            "swizzle": operand.tma.driver_swizzle,
            "l2": 2,  # CU_TENSOR_MAP_L2_PROMOTION_L2_128B
            "oob": 0,  # zeros
        }
    assert launch["grid"] == list(TeachingPlan.derive(m, n, k).grid)
    assert (launch["block"], launch["shared"], launch["stream"]) == ([plan.threads, 1, 1], plan.smem.total, stream)


def test_the_host_half_encodes_the_plan(recorder: str, tmp_path: Path) -> None:
    runs = []
    for a_order, b_order in itertools.product(ORDERS, ORDERS):
        plan = derive(f"bf16:{a_order}", f"bf16:{b_order}", stages=2, swizzle_a="64B", swizzle_b="32B")
        runs += [(plan, [2**40, 2**41, 2**42, *sizes, 99]) for sizes in SIZES]
    for (plan, arguments), calls in zip(runs, host_calls(recorder, runs, tmp_path), strict=True):
        check_calls(plan, arguments, calls)


def test_tensor_maps_equal_nvidias(
    recorder: str, nvidia: list[tuple[dict[str, Any], dict[str, Any]]], tmp_path: Path
) -> None:
    """The DSL's map of its own tile and our driver arguments have equal fields."""
    mn, k, leading, address = 1000, 2000, 2048, 2**40 + 256
    chosen = [(request, answer) for request, answer in nvidia if request["k"] == 64 and request["n"] == 64]
    assert {tuple(request["a"]) for request, _ in chosen} == set(itertools.product(("K", "MN"), SWIZZLES))
    requests = [
        {"object": answer["object"], "symbol": answer["symbol"], "arguments": [address, mn, k, leading]}
        for _, answer in chosen
    ]
    theirs = [nvidia_map(answer["calls"][-1]["map"]) for answer in run_program("host_launch.py", recorder, requests)]
    plans = [plan_of(request) for request, _ in chosen]
    runs = [(plan, [address, 2**41, 2**42, mn, 64, k, leading, 4096, 64, 0]) for plan in plans]
    ours = [calls[0] for calls in host_calls(recorder, runs, tmp_path)]
    assert [{name: made[name] for name in want} for made, want in zip(ours, theirs, strict=True)] == theirs


def test_a_changed_box_or_swizzle_is_seen_by_the_recorder(recorder: str, tmp_path: Path) -> None:
    plan = derive(stages=1)
    arguments = [2**40, 2**41, 2**42, 72, 64, 80, 80, 64, 64, 0]
    changed = ({}, {"box": (32, 64)}, {"box": (64, 32)}, {"dims": ("m", "k")}, {"box": (32, 64), "swizzle": "64B"})
    mutants = [
        dataclasses.replace(plan, a=dataclasses.replace(plan.a, tma=dataclasses.replace(plan.a.tma, **fields)))
        for fields in changed
    ]
    right, *wrong = host_calls(recorder, [(mutant, arguments) for mutant in mutants], tmp_path)
    check_calls(plan, arguments, right)
    for calls in wrong:
        with pytest.raises(AssertionError):
            check_calls(plan, arguments, calls)
    # the DSL itself refuses a box wider than the swizzle's span
    tma = dataclasses.replace(plan.a.tma, swizzle="64B")
    with pytest.raises(ValueError, match="swizzle"):
        dataclasses.replace(plan, a=dataclasses.replace(plan.a, tma=tma)).compile()


# ---------------------------------------------------------------------------------------------------- when it is wrong


def test_wgmmas_that_wait_for_each_other_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check for serialised wgmmas, against a kernel that waits after each of them."""
    from cutlass.cute.nvgpu import warpgroup

    from layoutgemm.kernels.dsl import wgmma as bridge

    plan = derive(stages=1)
    gemm = bridge.cute.gemm

    def gemm_and_wait(*operands: Any, **named: Any) -> None:
        gemm(*operands, **named)
        warpgroup.commit_group()
        warpgroup.wait_group(0)
        warpgroup.fence()

    monkeypatch.setattr(bridge.cute, "gemm", gemm_and_wait)
    code = disassemble(compiling._trace(plan, "serialised")["kernel.cubin"])
    assert code.wgmma_runs == (1, 1, 1, 1)
    assert "1, 1, 1, 1" in code.serialised_wgmma(4)


def test_a_launch_without_a_gpu_says_so() -> None:
    from cuda.bindings import runtime

    if runtime.cudaGetDeviceCount()[1]:
        pytest.skip("needs a machine without a GPU: it tests the error there")
    with pytest.raises(PlanError, match="needs an NVIDIA GPU"):
        derive(stages=1).compile().launch(16, 16, 16, 64, 64, 64, 64, 64, 64)
