"""`emulate_devices`: launches on several devices of one host, in one process. Copy engines work between them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..arguments import checked
from ..errors import EmulatorError
from .api import Emulation, result_of
from .host.arguments import array_at
from .host.launcher import HostFunction, HostLaunch
from .machine.devices import DeviceOrder, Devices, Stream
from .machine.interpreter import Policy, PtxMachine
from .machine.memory import GlobalMemory
from .ops import program_of

DeviceLaunch = tuple[HostLaunch, GlobalMemory]


@checked(EmulatorError)
def device_launch(host: HostFunction, args: Sequence[object], extra: Sequence[object] = ()) -> DeviceLaunch:
    """The launch of a linked host function on a device, and the device's memory.

    Raises EmulatorError for a function that launches none, or several.
    """
    arrays, launches = host.call(args, extra)
    if len(launches) != 1:
        raise EmulatorError(f"a device runs one launch at a time, and the host function made {len(launches)}")
    arrays.memory.follow = array_at
    return launches[0], arrays.memory


@checked(EmulatorError)
def emulate_devices(
    launches: Sequence[DeviceLaunch],
    streams: Sequence[Stream] = (),
    *,
    policy: Policy | None = None,
    order: DeviceOrder = "devices first",
    seed: int = 0,
) -> list[Emulation]:
    """Run one launch on each device, beside the streams of copy engines. What was found on each.

    launches  of `device_launch`, or of `api.described` for PTX
    streams   copies, flags and waits, each in its order
    policy    the order within a device; order, seed: that between devices and engines, see `machine.devices`

    Raises DeadlockError where nothing can go on, EmulatorError where a kernel cannot.
    """
    machines = [PtxMachine(program_of(one.kernel), one.within(memory), policy) for one, memory in launches]
    start = time.perf_counter()
    Devices(machines, streams, order, seed).run()
    seconds = time.perf_counter() - start
    return [
        Emulation([result_of(launch, machine, seconds)])
        for (launch, _), machine in zip(launches, machines, strict=True)
    ]


__all__ = ["DeviceLaunch", "Stream", "device_launch", "emulate_devices"]
