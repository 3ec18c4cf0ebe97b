"""Mutation testing of a compiled function or of PTX, on one set of arguments.

    print(mutate(compiled, a, b, c).table())

A mutant is caught when the emulator refuses it, reports a finding, or leaves other bytes in memory than the kernel. For
a survivor the table states what is unchanged (`survivors.py`). One set of arguments is seldom enough:
`survivors.explained` takes a case for each shape.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from ...arguments import checked
from ...errors import EmulatorError
from ..api import described
from ..host.arguments import array_at
from ..host.dsl_calls import CompiledFunction
from ..host.launcher import HostFunction, HostLaunch
from ..machine.interpreter import Launch, Policy
from ..machine.memory import GlobalMemory, MemorySnapshot
from ..turns import in_turn
from .mutants import Mutant, alterations, deletions, fields
from .run import EARLY, IN_TURN, LaunchCase, ShowsProgress, Survey, sample
from .survivors import explained
from .weakenings import weakenings

ORDERS = (IN_TURN, Policy(fences="writers", waits="reluctant", elect="highest"), EARLY)
Progress = ShowsProgress


@in_turn
@checked(EmulatorError)
def mutate(
    compiled: object,
    *args: object,
    count: int | None = None,
    extra: Sequence[object] = (),
    progress: Progress | None = None,
    edges: bool = True,
) -> Survey:
    """Run mutants of a compiled CuTe DSL function's kernel, with `emulate`'s arguments.

    count     at most this number, spread over the kinds of mutants; None: all
    progress  called with (done, number of mutants, row) after each
    edges     False: outputs own their pitch, as in `Policy`

    Arrays have their content again when it returns. Raises EmulatorError for a function that launches several kernels,
    and for a kernel with findings before any change.
    """
    host = compiled if isinstance(compiled, HostFunction) else CompiledFunction.of(compiled)
    arrays, launches = host.call(args, extra)
    if len(launches) != 1:
        raise EmulatorError(f"the function launches {len(launches)} kernels: mutants are made of one")
    return _survey(launches[0], arrays.memory, count, progress, edges)


@in_turn
@checked(EmulatorError)
def mutate_ptx(
    text: str | Path,
    *,
    grid: int | Sequence[int] = 1,
    block: int | Sequence[int] | None = None,
    cluster: int | Sequence[int] | None = None,
    smem: int = 0,
    args: Sequence[object] = (),
    kernel: str | None = None,
    count: int | None = None,
    progress: Progress | None = None,
    edges: bool = True,
) -> Survey:
    """Run mutants of a PTX kernel, described as for `emulate_ptx`."""
    return _survey(*described(text, grid, block, cluster, smem, args, kernel), count, progress, edges)


def _survey(
    launch: HostLaunch, memory: GlobalMemory, count: int | None, progress: Progress | None, edges: bool
) -> Survey:
    memory.follow = array_at
    before = memory.contents()
    after: list[MemorySnapshot] = []

    def restored() -> Launch:
        memory.restore(before)
        return launch.within(memory)

    def check(done: Launch) -> str | None:
        if not after:
            after.append(done.memory.contents())
        different = [buffer.name for buffer, _ in done.memory.differing(after[0])]
        return f"other bytes in {', '.join(different)}" if different else None

    def mutants() -> Iterator[Mutant]:
        yield from itertools.chain(deletions(launch.kernel), weakenings(launch.kernel), fields(launch.kernel))
        yield from alterations(launch.kernel, restored())

    orders = [replace(order, edges=edges) for order in ORDERS]
    cases = [LaunchCase(f"order {number}", restored, check, policy) for number, policy in enumerate(orders)]
    try:
        chosen = mutants() if count is None else sample(mutants(), count)
        return explained(launch.kernel, cases, chosen, progress)
    finally:
        restored()
