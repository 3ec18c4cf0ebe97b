"""The program that checks atoms on a GPU, run on a model of one: it must pass what is right and see what is wrong."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import Layout
from layoutgemm.atoms import MmaAtom, mma_sync, wgmma
from layoutgemm.dtypes import dtype
from tests.atoms.mma.test_sync import refused
from tests.atoms.model_gpu import ModelGpu
from tests.micro import values
from tests.micro import wgmma as wgmma_text
from tests.micro.mma_sync import PTX_VERSION, header

PROGRAM = Path(__file__).parents[2] / "benchmarks" / "verify_atoms.py"
SYNC = [
    mma_sync("m8n8k4", "f16", c="f16", d="f32", layouts=("col", "row")),
    mma_sync("m8n8k4", "f16", layouts=("row", "col")),
    mma_sync("m16n8k8", "tf32"),
    mma_sync("m16n8k8", "f64"),
    mma_sync("m16n8k16", "f16", c="f16"),
    mma_sync("m8n8k16", "u8", "i8", saturate=True),
    mma_sync("m16n8k32", "i4", "u4"),
    mma_sync("m8n8k128", "b1"),
    mma_sync("m8n8k128", "b1", bit_op="and"),
    mma_sync("m16n8k16", "e4m3", "e5m2"),
    mma_sync("m16n8k32", "e2m1", "e3m2", kind="f8f6f4"),
    mma_sync("m16n8k64", "e2m1", kind="mxf4"),
]
GROUP = [
    wgmma(16, "bf16"),
    wgmma(16, "f16", c="f16", a_source="rmem"),
    wgmma(8, "tf32"),
    wgmma(24, "e4m3", "e5m2", a_source="rmem"),
    wgmma(8, "u8", "i8"),
]


@pytest.fixture(scope="module")
def program() -> Any:
    spec = importlib.util.spec_from_file_location("verify_atoms", PROGRAM)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    kept = list(sys.path)
    spec.loader.exec_module(module)
    sys.path[:] = kept
    module.RANDOM_CASES = 4
    return module


@pytest.fixture(scope="module")
def gpu() -> ModelGpu:
    return ModelGpu("sm_120a")


@pytest.mark.parametrize("atom", SYNC, ids=str)
def test_right_maps_pass(program: Any, gpu: ModelGpu, atom: MmaAtom) -> None:
    cases, bad = program.run_mma_sync(gpu, atom, np.random.default_rng(0), quick=True)
    assert bad == "" and cases >= 4 + sum(a * b for a, b in map(atom.tile_of, "ABC"))


def test_a_wrong_map_is_seen(program: Any, gpu: ModelGpu) -> None:
    rng = np.random.default_rng(0)
    atom = mma_sync("m16n8k16", "bf16")
    for change in (
        {"layout_A": Layout(((4, 8), (2, 2, 2)), ((32, 1), (16, 128, 8)))},  # the two halves of A's registers
        {"layout_B": Layout(((4, 8), (2, 2)), ((8, 1), (32, 64)))},  # k of B, but not of A, renumbered
        {"layout_C": Layout(((4, 8), (2, 2)), ((32, 1), (8, 16)))},
    ):
        assert "differ" in program.run_mma_sync(gpu, replace(atom, **change), rng, quick=True)[1]
    clamp = mma_sync("m8n8k16", "i8", saturate=True)
    row = program.report(gpu, clamp.ptx, "", lambda: program.run_mma_sync(gpu, clamp, rng, True))
    assert row["ok"]
    wrapping = program.run_mma_sync(gpu, replace(clamp, ptx=clamp.ptx.replace(".satfinite", "")), rng, quick=True)
    assert wrapping[1] == ""


@pytest.mark.parametrize("atom", GROUP, ids=lambda atom: f"{atom}-{atom.a_source}")
def test_every_tile_of_a_wgmma_passes(program: Any, atom: MmaAtom) -> None:
    gpu, rng = ModelGpu("sm_90a"), np.random.default_rng(0)
    firsts = list(program.tiles(atom, "A", True)) if atom.a_source == "smem" else [None]
    seconds = list(program.tiles(atom, "B", True))
    swizzles = {name.rpartition(" step")[0] for name, *_ in seconds}
    assert {"K 128B", "K 64B", "K 32B", "K none"} <= swizzles
    if atom.a_dtype.name != "bf16":  # all of them once; then the ends
        firsts, seconds = firsts[:1], [seconds[0], seconds[-1]]
    for pair in [*((first, seconds[0]) for first in firsts), *((firsts[0], second) for second in seconds)]:
        assert program.run_wgmma(gpu, atom, rng, pair)[1] == "", pair


def test_a_wrong_step_is_seen(program: Any) -> None:
    atom, gpu = wgmma(8, "bf16"), ModelGpu("sm_90a")
    a, b = next(program.tiles(atom, "A", True)), next(program.tiles(atom, "B", True))
    off = (a[0], a[1], a[2], a[3] + 32)  # the descriptor points one K block further than the operand lies
    bad = program.run_wgmma(gpu, atom, np.random.default_rng(0), (off, b))[1]
    assert "differ" in bad


def test_wgmma_kernels_assemble(program: Any) -> None:
    bodies = []
    for a, b, c in (
        *(("bf16", "bf16", "f32"), ("f16", "f16", "f16"), ("tf32", "tf32", "f32"), ("e5m2", "e4m3", "f16")),
        ("i8", "u8", "i32"),
    ):
        for n, source in ((8, "smem"), (256, "smem"), (64, "rmem")):
            atom = wgmma(n, a, b, c, source, saturate=c == "i32" and n == 8)
            sides = {
                operand: wgmma_text.Tile(2048 if operand == "A" else 32 * n, 0x4000004000010000, 32, a == "f16")
                for operand in "AB"
            }
            first = sides["A"] if source == "smem" else None
            text = wgmma_text.kernel(atom, first, sides["B"], name=f"k{len(bodies)}")
            bodies.append(text.removeprefix(header("sm_90a", PTX_VERSION)).replace("fill", f"fill{len(bodies)}_"))
    assert not refused(header("sm_90a") + "".join(bodies), "sm_90a")


def test_encodings() -> None:
    assert values.encode(dtype("e4m3"), [1, -2, 3]).tolist() == [0x38, 0xC0, 0x44]
    assert values.encode(dtype("e5m2"), [1, -2]).tolist() == [0x3C, 0xC0]
    assert values.encode(dtype("e2m1"), [1, 2, 3, 4, 6, -6]).tolist() == [2, 4, 5, 6, 7, 15]
    assert values.encode(dtype("e3m2"), [1, 28]).tolist() == [0xC, 0x1F]
    assert values.encode(dtype("ue8m0"), [1, 2]).tolist() == [127, 128]
    assert values.encode(dtype("i4"), [-8, 7]).tolist() == [8, 7]
    for name in ("bf16", "f16", "f32", "f64"):
        numbers = np.arange(-9, 10)
        assert np.array_equal(values.encode(dtype(name), numbers), dtype(name).encode(numbers.astype(np.float64)))
    for name, number in (("e2m1", 5), ("e4m3", 1 << 9), ("u8", -1), ("ue8m0", 3), ("ue4m3", -1)):
        with pytest.raises(ValueError, match=f"{name} has no {number}"):
            values.encode(dtype(name), [number])
