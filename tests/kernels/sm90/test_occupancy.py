"""Resident clusters: the known counts of an H200, and a GPU's own answers."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.verify_places import held
from layoutgemm.kernels import Sm80Config, Sm80Plan, Sm90Plan, Sm100Config, Sm100Plan
from layoutgemm.kernels.run import ampere, tensor_maps, torch_tensors
from layoutgemm.kernels.run import occupancy as device_places
from layoutgemm.kernels.sm90.choose.occupancy import SIZES, ClusterOccupancy
from layoutgemm.kernels.sm90.choose.rules import Sm90Choice, choose
from layoutgemm.kernels.sm90.plan import Sm90Config
from layoutgemm.schedule import GpcOrder
from tests import needs

ROOT = Path(__file__).resolve().parents[3]


def test_fewer_places_than_multiprocessors() -> None:
    """Whole clusters of what an H200 has, and the same share of another's multiprocessors."""
    for places in (ClusterOccupancy(), ClusterOccupancy(114), ClusterOccupancy(78), ClusterOccupancy(1)):
        for blocks in SIZES:
            assert places.most(blocks) * blocks <= places.multiprocessors
        assert places.most(1) == places.multiprocessors
    with pytest.raises(ValueError, match=r"clusters = \(66, 33\): one number for each of"):
        ClusterOccupancy(132, (66, 33))
    with pytest.raises(ValueError, match="clusters of 5 CTAs"):
        ClusterOccupancy().most(5)


def test_a_persistent_kernel_has_as_many_clusters_as_find_a_place() -> None:
    """An H200 holds 30 clusters of four blocks, not 33: three would start after others end."""
    launch = pytest.importorskip("layoutgemm.torch_op.launch", reason=needs.reason("torch"))
    for cluster, wanted in (((1, 1), 132), ((2, 1), 66), ((2, 2), 30), ((2, 4), 15)):
        choice = Sm90Choice(Sm90Config((128, 128), cluster=cluster))
        solution = SimpleNamespace(kernel=SimpleNamespace(choice=choice))
        assert launch.workers(solution, ClusterOccupancy()) == wanted
        assert launch.workers(solution, ClusterOccupancy(132, (0, 0, 0, 0))) == (132 if cluster == (1, 1) else 1)


def test_one_function_counts_the_clusters_of_a_launch() -> None:
    """Other places only display a GPU's SM count, or stand in for it."""
    shown = {"doctor.py", "machine.py", "on_gpu.py", "occupancy.py"}
    shown |= {
        "cuda_calls.py",
        "cuda_programs.py",
        "session.py",
        "answers.py",
        "triton_calls.py",
        "inductor.py",
    }  # of the emulated GPU
    readers = set()
    for path in [path for folder in ("layoutgemm", "benchmarks", "kernels") for path in (ROOT / folder).rglob("*.py")]:
        if re.search("multi_?processor_?count", path.read_text(encoding="utf-8"), re.IGNORECASE):
            readers.add(path.name)
    assert readers == shown


def test_a_gpu_is_asked_for_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = needs.module("cuda.bindings.driver")
    asked, done = driver.CUdevice_attribute, driver.CUresult.CUDA_SUCCESS
    for kilohertz, bits, rate in ((3_201_000, 6144, 4.9), (2_619_000, 5120, 3.4), (0, 0, ClusterOccupancy().memory)):
        values = {asked.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: kilohertz,
                  asked.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: bits}  # fmt: skip
        monkeypatch.setattr(driver, "cuDeviceGet", lambda index: (done, index))
        monkeypatch.setattr(driver, "cuDeviceGetAttribute", lambda name, _, values=values: (done, values[name]))
        assert device_places.memory_rate(0) == rate
    monkeypatch.setattr(driver, "cuDeviceGet", lambda index: (driver.CUresult.CUDA_ERROR_NO_DEVICE, 0))
    assert device_places.memory_rate(0) == ClusterOccupancy().memory
    slow = ClusterOccupancy(memory=3.4)
    assert slow != ClusterOccupancy() and slow.gpc_rounds(2) == ClusterOccupancy().gpc_rounds(2)


@pytest.mark.parametrize("answer", [(66, 39, 30, 15), (57, 33, 25, 12), (0, 0, 0, 0), None])
def test_a_gpu_is_asked_for_its_clusters(answer: tuple[int, ...] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = needs.module("torch")

    def asked(index: int) -> tuple[int, ...]:
        if answer is None:
            raise RuntimeError("the driver does not say")
        return answer

    monkeypatch.setattr(device_places, "asked", asked)
    try:
        for major, processors in ((9, 132), (10, 148), (12, 170), (8, 108)):
            device_places.of_device.cache_clear()
            device_places.cluster_occupancy.cache_clear()
            found = SimpleNamespace(major=major, multi_processor_count=processors)
            monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index, found=found: found)
            known = ClusterOccupancy(processors, answer or ()) if major >= 9 else ClusterOccupancy(processors)
            got = [device_places.resident(0, blocks) for blocks in (1, 2, 3, 4, 8)]
            assert got == [processors, *[max(1, count) for count in known.clusters]]
    finally:
        device_places.of_device.cache_clear()
        device_places.cluster_occupancy.cache_clear()


class Launched(Exception):
    """A launch, instead of one."""


def run_of(name: str) -> tuple[Any, Any, int]:
    """A plan, what launches it, and the blocks of its clusters."""
    torch = needs.module("torch")
    plan: Any
    if name == "three":
        config = Sm90Config((64, 96), consumers=1, cluster=(3, 1))
        plan, blocks = Sm90Plan.derive(64, 96, 64, b="bf16:col", config=config), 3
    elif name == "parts":
        config = Sm90Config((64, 64), consumers=1, cluster=(2, 1), split=2, one_tile_per_cluster=True)
        plan, blocks = Sm90Plan.derive(64, 64, 256, config=config), 4
    elif name == "pair":
        plan, blocks = Sm100Plan.derive(64, 64, 64, config=Sm100Config((256, 64))), 2
    else:
        plan, blocks = Sm80Plan.derive(64, 64, 64, config=Sm80Config((64, 64), warps=(2, 2), persistent=True)), 1
    a, b = torch.zeros(plan.m, plan.k).bfloat16(), torch.zeros(plan.k, plan.n).bfloat16()
    return plan, lambda: torch_tensors.launch(plan, a, b, None, "", True), blocks


@pytest.mark.parametrize("name", ["three", "parts", "pair", "blocks"])
def test_a_launch_of_a_plan_has_as_many_clusters_as_are_resident(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, launch, blocks = run_of(name)
    import torch

    def compiled(plan: Any) -> Any:
        def launched(*arguments: int, stream: int) -> None:
            raise Launched(dict(zip(plan.parameters, arguments)))

        return SimpleNamespace(launch=launched)

    monkeypatch.setattr(torch_tensors, "compile_plan", compiled)
    monkeypatch.setattr(torch.cuda, "device", lambda index: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index=None: SimpleNamespace(cuda_stream=0))
    for module in (ampere, tensor_maps):
        monkeypatch.setattr(module, "resident", lambda index, blocks: 1000 + blocks)
    with pytest.raises(Launched) as found:
        launch()
    assert found.value.args[0]["workers"] == 1000 + blocks


def test_clusters_without_a_place_are_not_chosen() -> None:
    """A chip that holds 14 clusters of eight gets no grid of 15, nor an unplaceable cluster."""
    shape = 184, 7624, 13136  # lines begin between the memory's: clusters share as much as they can
    sizes = []
    for clusters in ((66, 39, 30, 15), (66, 39, 30, 8), (66, 39, 0, 0)):
        config = choose(*shape, multiprocessors=ClusterOccupancy(132, clusters))[0].config
        blocks = config.cluster[0] * config.cluster[1] * config.split
        sizes.append(blocks)
        choice = choose(*shape, multiprocessors=ClusterOccupancy(132, clusters))[0]
        m, n = shape[1::-1] if choice.swapped else shape[:2]
        tiles = -(-m // config.tile[0]) * -(-n // config.tile[1])
        assert tiles * config.split <= blocks * ClusterOccupancy(132, clusters).most(blocks)
    assert sizes[0] >= 4 > sizes[2]


@pytest.mark.parametrize("shape", [(8192, 8192, 8192), (216, 5376, 6656)])
def test_tiles_are_dealt_out_where_the_rounds_are_known(shape: tuple[int, int, int]) -> None:
    """And only there; the kernel then never begins before the one in front of it has ended."""
    choice = choose(*shape)[0]
    config, told = choice.config, choice.plan(*shape, b="bf16:col").explain()
    assert f"taken in rounds of {GpcOrder(config.gpc_order)}" in told and "a grid of" not in told
    assert ("126 blocks, a tile each, by rounds" in told) == (config.launch == "tiles")
    assert config.gpc_order == ClusterOccupancy().gpc_rounds(config.cluster[0] * config.cluster[1]) != ()
    assert not config.overlap and config.prefetch == 0
    assert choose(*shape, multiprocessors=ClusterOccupancy(132, (66, 36, 26, 14)))[0].config.gpc_order == ()


def test_a_gpu_that_does_not_answer_has_an_h200s_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choices are made all the same."""

    def refused(index: int) -> tuple[int, ...]:
        raise RuntimeError(f"no GPU {index}")

    monkeypatch.setattr(device_places, "asked", refused)
    assert device_places.cluster_occupancy.__wrapped__(0, 114) == ClusterOccupancy(114)


def test_rounds_equal_the_record() -> None:
    """The dealt rounds equal the recorded launch for each cluster size; shifted by one they differ."""
    record = json.loads((ROOT / "benchmarks" / "results" / "places_h200.json").read_text())
    assert tuple(record["clusters"]) == ClusterOccupancy().clusters and tuple(record["sizes"]) == SIZES
    known = [blocks for blocks in (1, *SIZES) if ClusterOccupancy().gpc_rounds(blocks)]
    assert known == [1, 2, 4]
    for blocks in known:
        at = record["seen"][str(blocks)]["first"]
        assert len(at) == ClusterOccupancy().most(blocks) and held(ClusterOccupancy().gpc_rounds(blocks), at) == ""
    assert held(ClusterOccupancy().gpc_rounds(1), record["seen"]["1"]["first"], plant=1) != ""


@pytest.mark.gpu
def test_the_gpus_answer() -> None:
    """Whole clusters that fit; the context that was current stays so."""
    import torch
    from cuda.bindings import driver

    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("needs a GPU of compute capability 9.0: the recorded clusters are of one")
    torch.zeros(1, device="cuda")
    before = int(driver.cuCtxGetCurrent()[1])
    found = device_places.asked(torch.cuda.current_device())
    most = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    assert int(driver.cuCtxGetCurrent()[1]) == before
    assert all(0 < count * blocks <= most for count, blocks in zip(found, SIZES, strict=True))
    assert found[0] > most // 2 - 10
    assert list(found) == sorted(found, reverse=True)
