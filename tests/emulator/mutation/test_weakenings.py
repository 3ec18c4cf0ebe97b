"""Mutants that weaken or move an ordering instruction: how they are made, and how each is caught."""

from __future__ import annotations

import struct

import numpy as np
import pytest

from layoutgemm.emulator.machine.interpreter import Launch, Policy
from layoutgemm.emulator.machine.memory import GlobalMemory
from layoutgemm.emulator.mutation.run import EARLY, IN_TURN, LaunchCase, verdict
from layoutgemm.emulator.mutation.weakenings import weakenings
from layoutgemm.emulator.ptx.parser import PtxKernel, parse
from tests.emulator.run_ptx import module

# Thread 0 has a copy bring 128 bytes, peeks at the barrier, and waits if that fails; all store their word, and thread 0
# stores the words that the warp has doubled by a bulk copy.
BODY = """mov.u32 %r31, %tid.x; mov.u32 %r30, smem; shl.b32 %r28, %r31, 2; add.u32 %r27, %r30, %r28;
setp.eq.u32 %p0, %r31, 0; @!%p0 bra READY; mbarrier.init.shared.b64 [%r30+512], 1;
READY: fence.mbarrier_init.release.cluster; bar.sync 0; mov.u32 %r5, 0; @!%p0 bra WAIT;
mbarrier.arrive.expect_tx.shared.b64 _, [%r30+512], 128;
cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r30], [%a], 128, [%r30+512];
WAIT: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p1, [%r30+512], %r5; @%p1 bra GO;
AGAIN: mbarrier.try_wait.parity.shared.b64 %p2, [%r30+512], %r5; @!%p2 bra AGAIN;
GO: ld.shared.b32 %r6, [%r27]; add.u32 %r6, %r6, %r6; st.shared.b32 [%r27+256], %r6; fence.proxy.async.shared::cta;
bar.sync 1, 32; @!%p0 bra END; cp.async.bulk.global.shared::cta.bulk_group [%c], [%r30+256], 128;
cp.async.bulk.commit_group; cp.async.bulk.wait_group.read 0;
END:"""


def kernel() -> PtxKernel:
    return parse(module(BODY, {"a": "u64", "c": "u64"}))[0]


def case(policy: Policy) -> LaunchCase:
    def launch() -> Launch:
        memory = GlobalMemory()
        buffers = {"a": np.arange(32, dtype=np.uint32), "c": np.zeros(32, np.uint32)}
        parameters = struct.pack("<QQ", *[memory.add(name, array).address for name, array in buffers.items()])
        return Launch((1, 1, 1), (32, 1, 1), parameters, memory, dynamic_shared=1024)

    def check(launch: Launch) -> str | None:
        a, c = (launch.memory.buffers[i].data.view(np.uint32) for i in (0, 1))
        return None if (c == 2 * a).all() else f"c is {c[:4].tolist()}"

    return LaunchCase("one", launch, check, policy)


def how(name: str, policy: Policy = IN_TURN) -> str:
    """The finding that catches the mutant of this name, or ""."""
    made = kernel()
    (mutant,) = [one for one in weakenings(made) if one.name(made) == name]
    origins = mutant.origins(made)
    assert sorted(origins) == list(range(len(made.instructions)))  # each is there once, in its old place or another
    return verdict(made, case(policy), mutant)[0]


def test_the_kernel_itself_passes() -> None:
    for policy in (IN_TURN, EARLY, Policy(waits="reluctant")):
        assert verdict(kernel(), case(policy))[0] == ""


@pytest.mark.parametrize(
    ("name", "caught"),
    [
        ("fence.mbarrier_init.release.cluster #0: one access later", ""),  # one warp alone uses the barrier
        ("mbarrier.try_wait.parity.shared.b64 #0: relaxed", "race"),
        ("fence.proxy.async.shared::cta #0: of global memory alone", "race"),
        ("fence.proxy.async.shared::cta #0: one access later", "race"),  # after the barrier
        ("fence.proxy.async.shared::cta #0: one access earlier", "race"),  # before the store
        ("bar.sync #1: arrives without a wait", "race"),
        ("bar.sync #1: at another barrier", ""),
        ("cp.async.bulk.commit_group #0: one access earlier", "exit"),
        ("mbarrier.arrive.expect_tx.shared.b64 #0: one access later", ""),  # bytes may come before they are expected
    ],
)
def test_how_each_is_caught(name: str, caught: str) -> None:
    found = how(name)
    assert found.split(":")[0] == caught, found


def test_a_peek_that_fails_hides_what_it_does() -> None:
    """Copies that land late let the peek fail, and the wait behind it acquires."""
    relaxed = "mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 #0: relaxed"
    assert how(relaxed) == ""
    assert how(relaxed, EARLY).startswith("race: ld.shared.b32")


def test_names_are_of_one_mutant() -> None:
    made = kernel()
    names = [mutant.name(made) for mutant in weakenings(made)]
    assert len(set(names)) == len(names) and all(mutant.kernel(made).instructions for mutant in weakenings(made))
