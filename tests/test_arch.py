"""Facts of the architectures, and the refusals that name what has a feature."""

import pickle

import numpy as np
import pytest

from layoutgemm.arch import ARCHES, arch, of_capability
from layoutgemm.atoms import mma_sync, tcgen05_mma
from layoutgemm.atoms.targets import exists_on
from layoutgemm.checks import most_stages
from layoutgemm.errors import PlanError

# In bytes: shared memory of a block.
BLOCK = {
    "sm_80": 166912, "sm_86": 101376, "sm_87": 166912, "sm_89": 101376, "sm_90a": 232448,
    "sm_100a": 232448, "sm_103a": 232448, "sm_110a": 232448, "sm_120a": 101376, "sm_121a": 101376,
    "sm_100f": 232448, "sm_103f": 232448, "sm_110f": 232448, "sm_120f": 101376, "sm_121f": 101376,
}  # fmt: skip


def test_shared_memory_of_a_block_and_of_a_multiprocessor():
    assert {name: facts.smem_per_block for name, facts in ARCHES.items()} == BLOCK
    for facts in ARCHES.values():
        # one block's maximum is what a multiprocessor has less what the system keeps
        assert facts.smem_per_block == facts.smem_per_sm - facts.smem_reserved_per_block


def test_matrix_instruction_families():
    having = {
        feature: [n for n, f in ARCHES.items() if feature in f.features] for feature in ("mma.sync", "wgmma", "tcgen05")
    }
    with_tensor_memory = ["sm_100a", "sm_103a", "sm_110a", "sm_100f", "sm_103f", "sm_110f"]
    assert having == {"mma.sync": list(ARCHES), "wgmma": ["sm_90a"], "tcgen05": with_tensor_memory}
    fp8 = mma_sync("m16n8k32", "e4m3")
    assert [n for n, f in ARCHES.items() if "mma.sync.e4m3" in f.features] == [
        n for n, f in ARCHES.items() if exists_on(fp8.archs, f)
    ]


def test_compute_capabilities_that_run_the_code_of_a_target():
    assert arch("sm_100f").capabilities == ((10, 0), (10, 3)) and arch("sm_103f").capabilities == ((10, 3),)
    assert arch("sm_120f").capabilities == ((12, 0), (12, 1)) and arch("sm_120a").capabilities == ((12, 0),)
    assert arch("sm_80").capabilities == ((8, 0), (8, 6), (8, 9)) and arch("sm_87").capabilities == ((8, 7),)
    for facts in ARCHES.values():
        for other in facts.capabilities[1:] * facts.is_family:  # a family's limits are those of all its architectures
            assert arch(other).smem_per_sm >= facts.smem_per_sm and arch(other).tmem_columns == facts.tmem_columns
        own = of_capability(facts.capabilities[0])
        assert own is not None and facts.name.rstrip("af") == own.name.rstrip("af")


def test_an_instruction_exists_on_a_family_target_where_all_of_its_architectures_have_it():
    assert exists_on(tcgen05_mma("f16", 128, 64).archs, arch("sm_100f"))
    assert not exists_on(tcgen05_mma("i8", 128, 64).archs, arch("sm_100f"))  # 10.3 has no kind::i8
    assert exists_on(mma_sync("m16n8k32", "e4m3", kind="f8f6f4").archs, arch("sm_120f"))


def test_require_names_the_architectures_that_have_it():
    with pytest.raises(PlanError, match="this kernel needs wgmma, which sm_80 lacks; architectures with it: sm_90a"):
        arch("sm_80").require("wgmma", "this kernel")


@pytest.mark.parametrize(
    "name",
    [
        "sm_90a",
        "sm90a",
        "sm90",
        "sm_90",
        "SM90",
        "Hopper",
        "hopper",
        "compute_90",
        "9.0",
        90,
        np.int64(90),
        (9, 0),
        [9, 0],
    ],
    ids=repr,
)
def test_an_architecture_by_its_names(name):
    assert arch(name) is ARCHES["sm_90a"]


def test_families():
    assert [arch(name).name for name in ("ampere", (8, 0), "blackwell", (10, 0), "Blackwell GeForce", "sm120")] == [
        "sm_80", "sm_80", "sm_100a", "sm_100a", "sm_120a", "sm_120a",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "name, near",
    [
        ("sm_91", "sm_90a"), ("sm_901", "sm_90a"), ("sm_85", "sm_86"), ("sm_102", "sm_103a"),
        ("hoper", "hopper"), ("sm_90f", "sm_90a"), ("rtx-4080", "rtx-4090"),
        ((7, 4), ""), (9.0, ""),
        (None, ""), (True, ""), ("", ""), ((9, 0, 0), ""), ((9, True), ""), (10**5000, ""), (b"sm_90a", ""),
    ],
    ids=lambda x: repr(x)[:20] if not isinstance(x, int) else "an int",
)  # fmt: skip
def test_unknown_names(name, near):
    with pytest.raises(PlanError, match=f"do you mean {near}" if near else "known: sm_80 or ampere"):
        arch(name)
    with pytest.raises(PlanError):
        most_stages(name, 1024)


def test_names_of_gpus():
    names = ("RTX 4090", "NVIDIA GeForce RTX 4090", "ada", "rtx3090", "NVIDIA A100", "B300", "jetson thor", "GB10")
    assert [arch(name).name for name in names] == [
        "sm_89", "sm_89", "sm_89", "sm_86", "sm_80", "sm_103a", "sm_110a", "sm_121a",
    ]  # fmt: skip


def test_targets_without_a_kernel_are_refused_with_the_reason():
    for name, why in (("sm_75", "no cp.async"), ((8, 8), "the CuTe DSL has no such target"), ("sm_107a", "limits")):
        with pytest.raises(PlanError, match=f"no kernel for sm_.*{why}.*known: sm_80 or ampere"):
            arch(name)


def test_a_parameter_that_is_an_architecture_takes_its_names():
    assert most_stages("hopper", 49152) == most_stages(arch("sm_90a"), 49152) == 4


def test_every_number_has_a_source_and_pickles():
    for facts in ARCHES.values():
        assert facts.sources["smem_per_block"] and facts.sources["features"]
        assert pickle.loads(pickle.dumps(facts)) is facts
