"""A four-stage ring, proven for any number of K tiles, and a published loop, refuted.

    python kernels/pipelines.py

The published guide's loop (its section 6.2) advances the stage and ignores the phase. At k = 4 the ring wraps, and the
wait for stage 0 checks the parity of k = 0. It passes at once, and the MMA reads the old tile.
"""

from layoutgemm.checks import Interleaving, Pipeline, cluster_ring, ring
from layoutgemm.checks.pipeline.actions import Advance, ForK

good = ring(stages=4, bytes=32768, consumers=2, registers=(40, 232))
print(good.explain())
print(good.check().require())
print(good.prove(), "\n")


def without_flip(pipeline: Pipeline) -> Pipeline:
    """The same loops with `stage = (stage + 1) % 4` and a constant phase."""
    for role in pipeline.roles:
        forgetful = []
        for action in role.program:
            if isinstance(action, ForK):
                body = [Advance(a.cursor, flip=False) if isinstance(a, Advance) else a for a in action.body]
                action = ForK(tuple(body))
            forgetful.append(action)
        pipeline = pipeline.with_program(role.name, tuple(forgetful))
    return pipeline


found = without_flip(ring(stages=4, bytes=32768)).prove()
print(found, "\n")
assert isinstance(found, Interleaving)
assert any(step.k == 4 and "waits for full[0], parity 0" in step.text for step in found.steps)

shared = cluster_ring(4, 16384, 32768, cluster=(2, 1), consumers=2)
print(shared.explain())
print(shared.check().require())
