"""Several emulated devices side by side, with copy engines between them, in an adversarial order.

Each device runs one launch in a memory of its own. An array that is an argument on two devices is one memory with an
address on each, as peers of one host map it. Copy engines are streams of steps beside the kernels: copies, writes of
flags, and waits for counters. Turns are dealt out by the order:

    "devices first"   a copy engine moves only when every device only polls: flags come as late as they can
    "copies first"    devices a few operations at a time, and engines before them
    "random"          devices a few operations at a time, engines a part of a copy at a time

A stream of a device may also start kernels, one after another: `Devices.start`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from ...arguments import shown
from ...errors import DeadlockError, EmulatorError
from .deadlocks import stuck
from .interpreter import PtxMachine

DeviceOrder = Literal["devices first", "copies first", "random"]
QUANTUM = 64  # operations of a device's turn, unless devices come first
ROUNDS = 32  # without any progress before a deadlock is reported: a kernel's own limit of a wait may end it
PATIENCE = 1 << 8  # operations after which a device that only polls gives its turn to another
Array = npt.NDArray[np.generic]


@dataclass
class Stream:
    """A stream of a copy engine. Steps in order, each as the hardware does it, without a thread of a kernel.

    name  for reports

    >>> flags = np.zeros(2, np.uint32)
    >>> stream = Stream("side stream").copy(np.ones(4), np.zeros(4)).write(flags, 1, 7)
    >>> while stream.advance(): pass
    >>> flags.tolist()
    [0, 7]
    """

    name: str
    steps: list[tuple[str, Callable[[], bool]]] = field(default_factory=list)

    def copy(self, source: Array, destination: Array) -> Stream:
        """Copy an array in two halves, the last one first. No reader may count on the order of bytes."""
        if source.shape != destination.shape or source.dtype != destination.dtype:
            of = f"{source.dtype}{source.shape} to {destination.dtype}{destination.shape}"
            raise EmulatorError(f"{self.name}: a copy of {of}")
        half = len(source) // 2
        for name, part in (("second", slice(half, None)), ("first", slice(0, half))):

            def step(part: slice = part) -> bool:
                destination[part] = source[part]
                return True

            self.steps.append((f"the copy's {name} half", step))
        return self

    def write(self, flags: Array, number: int, value: int) -> Stream:
        """Set a flag, after all steps before it (cuStreamWriteValue32)."""

        def step() -> bool:
            flags[number] = value
            return True

        self.steps.append((f"a write of {value} to flag {number}", step))
        return self

    def wait(self, counters: Array, number: int, value: int) -> Stream:
        """Wait until a counter has reached a value (cuStreamWaitValue32, GEQ)."""
        self.steps.append((f"a wait for {value} in counter {number}", lambda: int(counters[number]) >= value))
        return self

    def advance(self) -> bool:
        """Do the next step; returns False at the end, and while it waits."""
        if not self.steps or not self.steps[0][1]():
            return False
        self.steps.pop(0)
        return True


class Devices:
    """Machines, one a device, and streams of copy engines, until all have ended.

    Raises DeadlockError, which names the waiting threads of each device and the waiting step of each stream, where
    nothing can go on.
    """

    def __init__(
        self, machines: Sequence[PtxMachine], streams: Sequence[Stream], order: DeviceOrder = "devices first",
        seed: int = 0,
    ) -> None:  # fmt: skip
        if order not in ("devices first", "copies first", "random"):
            raise EmulatorError(f"order = {shown(order)}: 'devices first', 'copies first' or 'random'")
        self.machines, self.streams, self.order = list(machines), list(streams), order
        self.random = random.Random(seed)
        self.running: list[PtxMachine] = []
        self.started = False

    def start(self, machine: PtxMachine) -> None:
        """Let a machine run beside the others from now on."""
        machine.quantum = QUANTUM if self.order != "devices first" else 0
        machine.PATIENCE, machine.alone = PATIENCE, False
        machine.begin()
        self.running.append(machine)
        self.started = True

    def run(self) -> None:
        """Run all launches and streams."""
        for machine in self.machines:
            self.start(machine)
        try:
            still = 0  # rounds without any progress
            while self.running or any(stream.steps for stream in self.streams):
                if self._round():
                    still = 0
                    continue
                still += 1
                if still > ROUNDS + max([len(machine.polling) for machine in self.running], default=0):
                    raise DeadlockError(self._stuck())
        finally:
            for machine in self.machines:
                machine.finish()

    def _round(self) -> bool:
        """A turn of each, or of one engine; True if something advanced."""
        if self.order == "copies first" and self._copy():
            return True
        if self.order == "random" and self.random.random() < 0.1 and self._copy():
            return True
        advanced = False
        for machine in self.random.sample(self.running, len(self.running)):
            before = machine.advanced
            try:
                ended = not machine.turn()
            except EmulatorError as error:
                said = "".join([f"\n{one}" for one in machine.findings.found])
                said = f"\nfound before that:{said}" if said else ""
                raise type(error)(f"{self._name(machine)}: {error}{said}") from error
            if ended:
                self.running.remove(machine)
                advanced = True
            advanced = advanced or machine.advanced != before
        return advanced or self._copy()

    def _copy(self) -> bool:
        """A step of one stream, or the start of a kernel."""
        self.started = False
        for stream in self.random.sample(self.streams, len(self.streams)):
            if stream.advance() or self.started:
                return True
        return False

    def _name(self, machine: PtxMachine) -> str:
        """The device that runs a machine."""
        return machine.device or f"device {self.machines.index(machine)}"

    def _stuck(self) -> str:
        lines = ["no device and no copy engine can go on:"]
        for machine in dict.fromkeys([*self.machines, *self.running]):
            lines += [f"{self._name(machine)}: {stuck(cluster)}" for cluster in machine.polling]
        lines += [f"{stream.name}: {stream.steps[0][0]}" for stream in self.streams if stream.steps]
        return "\n".join(lines)
