"""Facts of the architectures, and the refusals that name what has a feature."""

import pickle

import pytest

from layoutgemm.arch import ARCHES, arch
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


def test_require_names_who_has_it():
    with pytest.raises(PlanError, match="this kernel needs wgmma, which sm_80 has not; architectures with it: sm_90a"):
        arch("sm_80").require("wgmma", "this kernel")


def test_unknown_names():
    with pytest.raises(PlanError, match="do you mean 'sm_90a'"):
        arch("sm_90")
    with pytest.raises(PlanError, match="no architecture 90"):
        arch(90)


def test_every_number_has_a_source_and_pickles():
    for facts in ARCHES.values():
        assert facts.sources["smem_per_block"] and facts.sources["features"]
        assert pickle.loads(pickle.dumps(facts)) is facts
