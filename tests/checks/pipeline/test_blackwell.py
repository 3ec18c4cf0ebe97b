"""The pipeline of a Blackwell GEMM: proven by one block and by a pair, wrong numbers and deletions refuted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from layoutgemm.checks import Interleaving, PipelineProof, deletions
from layoutgemm.errors import PlanError
from layoutgemm.kernels.sm100.pipeline_model import BlackwellPipeline
from layoutgemm.kernels.store_ring import StoreRing

LANDS = (1024, 2048)
FORMS = {
    "one block": BlackwellPipeline(2, LANDS),
    "one accumulator": BlackwellPipeline(2, LANDS, accumulators=1),
    "a pair": BlackwellPipeline(2, LANDS, pair=True),
    "a pair, three accumulators": BlackwellPipeline(2, LANDS, accumulators=3, pair=True),
}


@pytest.mark.parametrize("name", FORMS)
def test_every_form_is_proven(name: str) -> None:
    (pipeline,) = FORMS[name].cases()
    assert isinstance(pipeline.prove(), PipelineProof), pipeline.prove()


@pytest.mark.parametrize("name", ["one block", "a pair"])
def test_wrong_numbers_are_refuted(name: str) -> None:
    form = FORMS[name]
    right = form.size * form.warps
    for changed in (
        {"full_bytes": 1024}, {"full_arrivals": 2}, {"empty_arrivals": 2}, {"acc_full_arrivals": 2},
        {"acc_empty_arrivals": right - 1}, {"acc_empty_arrivals": right + 1},
    ):  # fmt: skip
        found = replace(form, **changed).pipeline().prove()
        assert isinstance(found, Interleaving), changed


@pytest.mark.parametrize("name", ["one block", "a pair"])
def test_nothing_that_synchronises_can_be_left_out(name: str) -> None:
    """But at the end of a pair the wait of the mma warp is enough. It waits for the others. The tail of the loader lets
    the last commits arrive before the CTA ends: the emulator asks for that, and this model does not."""
    survivors = [what for what, mutant in deletions(FORMS[name].pipeline()) if mutant.prove()]
    ends = {"ClusterWait()", "Wait('empty', 'load', flip=True)", "Advance('load')"}
    if name == "one block":
        assert survivors == []
    else:
        assert {what.split(": ")[1] for what in survivors} == ends and not any("mma" in what for what in survivors)


def test_the_store_is_a_pipeline_of_its_own() -> None:
    ring = StoreRing(1, 2, (((0, 1), (1, 1)),))
    pipeline, store = replace(FORMS["one block"], store=ring).cases()
    assert pipeline.prove() and store.prove()
    hasty = StoreRing(1, 2, (((0, 2), (1, 2)),))
    assert isinstance(replace(FORMS["one block"], store=hasty).store_pipeline().prove(), Interleaving)
    with pytest.raises(PlanError, match="no buffers"):
        FORMS["one block"].store_pipeline()
