"""A distributed script on several emulated GPUs of one host. Its ranks take turns, and their kernels run side by side.

`layoutgemm emulate --ranks 4 script.py` does what `torchrun --nproc-per-node 4 script.py` does. A launch ends before
its rank goes on. What a CUDA graph has captured on several streams runs at once, with its copies.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from ..arch import Arch
from ..arguments import as_int
from ..errors import EmulatorError
from .api import Emulation, Orders, launches_of, result_of
from .host.arguments import memory_found_by
from .host.collectives import distributed
from .host.graphs.graph import CudaGraph, ExecutableGraph, GraphNode
from .host.launcher import HostLaunch
from .host.multicast import Multicast
from .host.ranks import Ranks
from .host.session import ScriptRun, run_script
from .host.torch_device.streams import CAPTURES
from .host.torch_device.tensors import gpu_mode
from .machine.devices import DeviceOrder, Devices, Stream
from .machine.interpreter import Policy, PtxMachine
from .machine.launch import Watch
from .machine.memory import GlobalMemory
from .ops import program_of
from .turns import RUNNING


class RankLaunches:
    """The launches of all ranks that have not run yet."""

    def __init__(self, ranks: Ranks, policy: Policy, multicast: Multicast) -> None:
        self.ranks, self.policy, self.multicast = ranks, policy, multicast
        self.pending: list[Stream] = []
        self.captured: Stream | None = None  # where launches of a graph go
        self.devices: Devices | None = None
        ranks.work = self.work

    def emulate(
        self, compiled: object, *args: object, policy: Orders = None, progress: bool = True,
        extra: Sequence[object] = (), banks: bool = False, timeline: bool = False, **named: object,
    ) -> Emulation:  # fmt: skip
        """`emulate` of the current rank, whose kernels run beside those of others."""
        memory, launches = launches_of(compiled, args, extra, named)
        memory.windows = self.multicast.replicas
        done = Emulation()
        stream = Stream(f"rank {self.ranks.current}") if self.captured is None else self.captured
        for launch in launches:
            stream.steps.append(
                (f"kernel {launch.kernel.name}", self._step(launch, memory, done, Watch(banks, timeline)))
            )
        if self.captured is None:
            self._hand_over([stream])
        return done

    def _step(self, launch: HostLaunch, memory: GlobalMemory, done: Emulation, watch: Watch) -> Callable[[], bool]:
        """The step that starts a kernel, and is over when it has ended."""
        name = f"rank {self.ranks.current}"
        running: list[tuple[PtxMachine, float]] = []

        def step() -> bool:
            assert self.devices is not None
            if not running:
                machine = PtxMachine(program_of(launch.kernel), launch.within(memory), self.policy, None, watch)
                machine.device = name
                running.append((machine, time.perf_counter()))
                self.devices.start(machine)
                return False
            machine, start = running[0]
            if machine in self.devices.running:
                return False
            machine.finish()
            done.launches.append(result_of(launch, machine, time.perf_counter() - start))
            return True

        return step

    def replay(self, graph: CudaGraph) -> None:
        """Do the work of a graph of the current rank. What was captured on a stream in order, behind others' nodes."""
        streams: dict[int, Stream] = {}
        over: set[GraphNode] = set()
        for node in graph.order():
            stream = streams.setdefault(node.stream, Stream(f"rank {self.ranks.current}, stream {len(streams)}"))
            name = f"a wait for {len(node.behind)} nodes of the graph"
            stream.steps.append((name, lambda node=node: over.issuperset(node.behind)))  # type: ignore[misc]
            if node.work.bodies:
                raise EmulatorError(f"a graph with a {node.work.kind.name} node is not emulated on several GPUs")
            if node.work.launches:
                self.captured = stream
                try:
                    node.work.run()
                finally:
                    self.captured = None
            else:
                stream.steps.append((f"a {node.work.kind.name} node", lambda node=node: node.work.run() or True))  # type: ignore[misc]

            def ends(node: GraphNode = node) -> bool:
                over.add(node)
                return True

            stream.steps.append(("the end of it", ends))
        self._hand_over(list(streams.values()))

    def _hand_over(self, streams: list[Stream]) -> None:
        self.pending += streams
        self.ranks.wait("its kernels", lambda: not any(stream.steps for stream in streams))

    def work(self) -> bool:
        """Run all that the ranks have handed over."""
        streams, self.pending = self.pending, []
        if not streams:
            return False
        self.devices = Devices([], streams, self._order(), self.policy.seed)
        with RUNNING:
            self.devices.run()
        return True

    def _order(self) -> DeviceOrder:
        if self.policy.pick == "random":
            return "random"
        return "copies first" if self.policy.loads == "early" else "devices first"


def run_ranks(
    path: Path | str, arguments: Sequence[str], arch: Arch | str | int | tuple[int, int], ranks: int,
    policy: Policy | None = None, autotune: str = "first", **options: object,
) -> ScriptRun:  # fmt: skip
    """Run a Python script as torchrun would, each rank on an emulated GPU.

    A module, given by its name, runs as by `python -m`.

    Raises EmulatorError where the file is not there or torch is missing, PlanError for an unknown architecture.
    """
    together = Ranks(as_int(ranks, "the number of ranks", EmulatorError, least=1))
    multicast = Multicast()
    launches = RankLaunches(together, policy or Policy(), multicast)

    def runner(body: Callable[[], None]) -> None:
        from unittest import mock

        with ExitStack() as stack:
            CAPTURES.order.is_kept = False  # until the session ends: collective operations order streams, too
            stack.enter_context(distributed(together, multicast))
            stack.enter_context(memory_found_by(multicast.holder))
            stack.enter_context(mock.patch.object(ExecutableGraph, "runs", launches.replay))
            together.run(lambda rank: body(), gpu_mode)

    done = run_script(launches.emulate, path, arguments, arch, runner, autotune, policy=policy, **options)
    if isinstance(done.error, EmulatorError) and done.error not in done.gpu.fatal:
        done.gpu.fatal.append(done.error)
    return done
