"""Facts of the architectures, and the refusals that name what has a feature."""

import pickle

import numpy as np
import pytest

from layoutgemm.arch import ARCHES, arch
from layoutgemm.checks import most_stages
from layoutgemm.errors import PlanError

# In bytes: shared memory of a block.
BLOCK = {"sm_80": 166912, "sm_90a": 232448, "sm_100a": 232448, "sm_120a": 101376}


def test_shared_memory_of_a_block_and_of_a_multiprocessor():
    assert {name: facts.smem_per_block for name, facts in ARCHES.items()} == BLOCK
    for facts in ARCHES.values():
        # one block's maximum is what a multiprocessor has less what the system keeps
        assert facts.smem_per_block == facts.smem_per_sm - facts.smem_reserved_per_block


def test_matrix_instruction_families():
    having = {
        feature: [n for n, f in ARCHES.items() if feature in f.features] for feature in ("mma.sync", "wgmma", "tcgen05")
    }
    assert having == {"mma.sync": list(ARCHES), "wgmma": ["sm_90a"], "tcgen05": ["sm_100a"]}


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
        ("sm_91", "sm_90a"), ("sm_86", "sm_80"), ("hoper", "hopper"), ("sm_90f", "sm_90a"), ((7, 5), ""), (9.0, ""),
        (None, ""), (True, ""), ("", ""), ((9, 0, 0), ""), ((9, True), ""), (10**5000, ""), (b"sm_90a", ""),
    ],
    ids=lambda x: repr(x)[:20] if not isinstance(x, int) else "an int",
)  # fmt: skip
def test_unknown_names(name, near):
    with pytest.raises(PlanError, match=f"do you mean {near}" if near else "known: sm_80 or ampere"):
        arch(name)
    with pytest.raises(PlanError):
        most_stages(name, 1024)


def test_a_parameter_that_is_an_architecture_takes_its_names():
    assert most_stages("hopper", 49152) == most_stages(arch("sm_90a"), 49152) == 4


def test_every_number_has_a_source_and_pickles():
    for facts in ARCHES.values():
        assert facts.sources["smem_per_block"] and facts.sources["features"]
        assert pickle.loads(pickle.dumps(facts)) is facts
