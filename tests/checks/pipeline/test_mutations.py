"""Delete each single synchronising action of a correct pipeline: it must be refuted, or stand here with the reason."""

from __future__ import annotations

import pytest

from layoutgemm.checks import (
    Pipeline,
    cluster_ring,
    deletions,
    multistage,
    pingpong,
    ring,
    self_loading,
    tcgen05_ring,
)

LAST = "a cursor's last move: nobody looks at it again"
HELD = "the other roles of the CTA still wait, and a CTA stays as long as one of its warps"
IN_ORDER = "arrivals come in ring order: who knows that the stage filled last is released knows it of the others"

# (pipeline, role: action): how many of its places may go, and why
REDUNDANT = {
    ("cluster 2x1, ring of 2", "producer: Wait('empty', 'load', flip=True, by='one')"): (1, IN_ORDER),
    ("cluster 2x1, ring of 2", "producer: Advance('load')"): (1, LAST),
    ("cluster 2x1, ring of 2, sync", "producer: ClusterWait()"): (1, HELD),
    ("cluster 2x1, ring of 2, sync", "math: ClusterWait()"): (1, HELD),
    ("tcgen05 pair, ring of 2, 2 accumulators", "load: ClusterWait()"): (1, HELD),
    ("tcgen05 pair, ring of 2, 2 accumulators", "mma: ClusterWait()"): (1, HELD),
    ("tcgen05 pair, ring of 2, 2 accumulators", "epilogue: ClusterWait()"): (1, HELD),
}

CASES = [
    ("", ring(2, 1024, consumers=2, warps=2)),
    ("", ring(2, 1024, lag=1, warps=2, persistent=True, store=(2, 3))),
    ("", cluster_ring(2, 1024, 1024, (2, 1), warps=2)),
    (", sync", cluster_ring(2, 1024, 1024, (2, 1), warps=1, tail="sync")),
    ("", self_loading(2, 1024, warps=2)),
    ("", pingpong(1, 1024, warps=2, store=None)),
    ("", multistage(3, warps=2)),
    ("", tcgen05_ring(2, 1024, warps=2, store=(2, 3))),
    ("", tcgen05_ring(2, 1024, warps=1, pair=True)),
]


@pytest.mark.parametrize(("suffix", "pipeline"), CASES, ids=[p.name + suffix for suffix, p in CASES])
def test_every_deletion_is_refuted_or_redundant(suffix: str, pipeline: Pipeline) -> None:
    assert pipeline.prove()
    survivors: dict[str, int] = {}
    count = 0
    for name, mutant in deletions(pipeline):
        count += 1
        if mutant.prove():
            survivors[name] = survivors.get(name, 0) + 1
    allowed = {name: n for (of, name), (n, _) in REDUNDANT.items() if of == pipeline.name + suffix}
    assert survivors == allowed
    assert count >= 7


def test_all_redundancies_are_of_a_case() -> None:
    assert {of for of, _ in REDUNDANT} <= {p.name + suffix for suffix, p in CASES}
