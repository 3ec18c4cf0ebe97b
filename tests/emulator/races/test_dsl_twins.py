"""Kernels of the CuTe DSL with the mistakes that its users make: the right one is silent, and each mistake is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import emulate
from layoutgemm.emulator.host.dsl_calls import watch
from layoutgemm.emulator.machine.interpreter import Policy
from layoutgemm.errors import EmulatorError

pytestmark = pytest.mark.dsl

EARLY = Policy(loads="early", products="early", stores="early", elect="highest")
RANDOM = np.random.default_rng(20261129)


def integers(*shape: int) -> np.ndarray:
    return RANDOM.integers(-3, 4, shape).astype(np.float32)


def ring() -> tuple[list[np.ndarray], np.ndarray]:
    x = integers(64, 96)
    sums = x.reshape(64, 3, 32).sum(1)
    return [x, np.zeros((128, 32), np.float32)], np.concatenate([sums, 2 * sums])


def stages() -> tuple[list[np.ndarray], np.ndarray]:
    x = integers(5, 256)
    return [x, np.zeros(256, np.float32)], x.sum(0)[::-1]


def accumulators() -> tuple[list[np.ndarray], np.ndarray]:
    a, b = integers(128, 128), integers(64, 128)
    return [a.astype(np.float16), b.astype(np.float16), np.zeros((128, 64), np.float32)], a @ b.T


CASES = {"Ring": (ring, "sm_90a"), "Stages": (stages, "sm_80"), "Accumulators": (accumulators, "sm_100a")}


@pytest.fixture(scope="module")
def twins() -> Any:
    from tests.emulator.kernels import twins

    return twins


@pytest.fixture(scope="module")
def compiled(twins: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """A kernel by name, compiled once for all of its mistakes."""
    import cutlass
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_compact_tensor

    watch()
    folder, done = tmp_path_factory.mktemp("twins"), {}

    def get(name: str) -> Any:
        if name not in done:
            case, arch = CASES[name]
            kinds = {"float32": cutlass.Float32, "float16": cutlass.Float16}
            fake = []
            for array in case()[0]:
                shape = (cute.sym_int(), 256) if array.shape == (5, 256) else array.shape
                order = tuple(range(array.ndim))[::-1]
                fake.append(
                    make_fake_compact_tensor(kinds[str(array.dtype)], shape, stride_order=order, assumed_align=16)
                )
            options = f"--gpu-arch {arch} --keep-ptx --generate-line-info --dump-dir {folder}"
            done[name] = cute.compile(getattr(twins, name)(), *fake, cutlass.Int32(0), options=options)
        return done[name]

    return get


@pytest.mark.parametrize("name", CASES)
def test_the_right_kernels_have_no_finding(compiled: Callable[[str], Any], name: str) -> None:
    arrays, want = CASES[name][0]()
    for policy in (Policy(), EARLY):
        done = emulate(compiled(name), *arrays, 0, policy=policy)
        assert done.ok and np.array_equal(arrays[-1], want), done.report()
    # What the pipeline classes themselves do: no proxy fence before a refill, a store by 32 lanes, one lane's release,
    # and no waits or fences of tensor memory.
    assert {one.orders.partition(" by")[0].partition(" (")[0] for one in done.findings} <= {
        "fence.proxy.async",
        "bar.warp.sync",
        "One lane, as elect.sync chooses it, does it for the warp.",
        "tcgen05.wait::ld",
        "tcgen05.wait::ld or ::st",
        "tcgen05.fence::after_thread_sync",
    }


# Kernel, mistake, kind of the finding or the class of the error, the line of Python, the role of its warp, the remedy.
MISTAKES = [
    ("Ring", "COUNT", "EmulatorError", "ring.producer_acquire(state)", "loads by TMA",
     "of count 2: it ends too soon if"),
    ("Ring", "RELEASE", "DeadlockError", "ring.consumer_wait(state)", "works in shared memory",
     "waits for it at the mbarrier at 0x3410 of CTA (0, 0, 0): an arrival of one of the two is missing"),
    ("Ring", "TAIL", "exit", "ring.consumer_release(state)", "works in shared memory", "a pipeline's producer_tail"),
    ("Ring", "PHASE", "DeadlockError", "ring.consumer_wait(state)", "works in shared memory",
     "its parity is one phase ahead"),
    ("Ring", "REUSE", "race", "sY[i // self.SIZE, i % self.SIZE] =", "works in shared memory",
     "cp.async.bulk.wait_group by the thread that issued the first"),
    ("Ring", "NAMED", "DeadlockError", "number_of_threads=threads", "works in shared memory",
     "the count is 96 in place of 64, or warp 2 should arrive"),
    ("Ring", "CLUSTER", "EmulatorError", "ring.consumer_wait(state)", "waits", "a barrier of all threads that use it"),
    ("Ring", "FENCE", "race", "cute.copy(store, tYs", "works in shared memory + stores",
     "fence.proxy.async by each thread that wrote"),
    ("Stages", "GROUP", "race", "+ sX[at, chunk", "loads by cp.async + stores", "cp.async.wait_group by each thread"),
    ("Stages", "EMPTY_COMMIT", "race", "+ sX[at, chunk", "loads by cp.async + stores",
     "cp.async.wait_group by each thread"),
    ("Accumulators", "COMMIT", "DeadlockError", "done = multiplied", "loads by TMA + multiplies",
     "an arrival is missing, or comes behind a wait"),
    ("Accumulators", "DEALLOC", "race", "tmem.free(start)", "reads accumulators", "tcgen05.wait by the first's warp"),
    ("Accumulators", "ACCUMULATE", "uninitialised", "cute.gemm(mma", "multiplies", "zeros are written before"),
    ("Accumulators", "FULL", "race", "cute.copy(copy, tDtC", "reads accumulators", "tcgen05.commit to an mbarrier"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "mistake", "kind", "line", "role", "remedy"), MISTAKES)
def test_a_mistake_is_found_with_its_line_its_role_and_its_remedy(
    twins: Any, compiled: Callable[[str], Any], name: str, mistake: str, kind: str, line: str, role: str, remedy: str
) -> None:
    text = Path(twins.__file__).read_text().splitlines()
    (number,) = [n for n, one in enumerate(text, 1) if line in one]
    place, arrays = f"twins.py:{number}", CASES[name][0]()[0]
    try:
        found = emulate(compiled(name), *arrays, getattr(twins, mistake)).findings
    except EmulatorError as error:
        assert type(error).__name__ == kind
        assert place in str(error) and role in str(error) and remedy in str(error), str(error)
        return
    kept = [one for one in found if one.kind == kind and str(one.source).endswith(place)]
    assert kept and role in kept[0].role and remedy in kept[0].orders, [str(one) for one in found]


def test_a_view_of_another_swizzle_gives_another_result_and_no_finding(
    twins: Any, compiled: Callable[[str], Any]
) -> None:
    """Every byte is written and in order: the values are the only sign."""
    arrays, want = stages()
    assert emulate(compiled("Stages"), *arrays, twins.SWIZZLE).ok and not np.array_equal(arrays[-1], want)
