"""Plans in the emulator. The compiled kernel and its compiled host function, executed on the CPU and race-checked."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from unittest import mock

import numpy as np

from ...atoms.tma.rules import STRIDE_UNIT
from ...emulator.api import Emulation, emulate_host
from ...emulator.host.launcher import HostCall, HostFunction
from ...emulator.host.types import HostParameter, parameter_of
from ...emulator.joined import JoinedGpu
from ...emulator.machine.interpreter import Policy
from ..compile.compiler import CompiledGemm, Plan, compile_plan
from ..derive import padded_leading
from ..sm90.plan import Sm90Plan
from ..sm100.plan import Sm100Plan
from .arrays import pitch_of_map
from .cpu import stored_lines
from .hardware_model import CLUSTERS, GlobalMatrix, unwritten, values_of
from .records import current_records

_TYPES = {"address": "i64", "size": "i32", "stride": "i64", "word": "i64"}
_HOSTS: dict[str, HostFunction] = {}


def emulate_plan(
    plan: Plan, a: GlobalMatrix, b: GlobalMatrix, policy: Policy | None = None, progress: bool = True,
    given: tuple[object, ...] = (),
) -> tuple[np.ndarray, Emulation]:  # fmt: skip
    """Run the compiled kernel. The raw bits of C, (M, N) or (batch, M, N), and the emulation.

    a, b   the operands as they lie in global memory
    given  the launch's last arguments, of a plan that has `words`; arrays in place of addresses
    """
    if isinstance(plan, (Sm90Plan, Sm100Plan)):
        return _emulate_persistent(plan, a, b, policy, progress, given)
    words = unwritten(plan.c.dtype, (plan.m, plan.n))
    sizes = (plan.m, plan.n, plan.k, *_leading(plan, a, b), plan.n)
    return words, emulate_launch(plan, (a.bits, b.bits, words, *sizes), policy, progress)


def _leading(plan: Plan, a: GlobalMatrix, b: GlobalMatrix) -> list[int]:
    """The pitches of A and B."""
    return [pitch_of_map(plan.a, a), pitch_of_map(plan.b, b)]


def _emulate_persistent(
    plan: Sm90Plan | Sm100Plan, a: GlobalMatrix, b: GlobalMatrix, policy: Policy | None, progress: bool,
    more: tuple[object, ...] = (),
) -> tuple[np.ndarray, Emulation]:  # fmt: skip
    """A few clusters at a time, so that each computes several tiles. What lies between C's lines has to stay.

    But for what the plan writes there by its own word (`bytes_beyond_line`): C has 16 bytes of pitch more.
    """
    lines, inner = (plan.rows_of_c, plan.n) if plan.c.order == "row" else (plan.n, plan.m)
    leading = padded_leading(plan.c.dtype, inner) if plan.store is not None else inner
    own = inner + plan.bytes_beyond_line // plan.c.dtype.bytes
    if own > inner:
        leading += STRIDE_UNIT // plan.c.dtype.bytes
        policy = replace(policy or Policy(), edges=False)
    batch = plan.matrices_of_c
    pitches = (*_leading(plan, a, b), leading, a.pitch, b.pitch, lines * leading)
    sizes = (plan.m, plan.n, plan.k, plan.batch, *pitches, CLUSTERS)
    words, done = stored_lines(
        plan, (batch, lines, leading), own,
        lambda c: emulate_launch(plan, (a.bits, b.bits, c, *sizes, *more), policy, progress),
    )  # fmt: skip
    found = words[..., :inner]
    found = found if plan.c.order == "row" else found.swapaxes(1, 2)
    return (found if batch > 1 else found[0]), done


def emulate_launch(
    plan: Plan, arguments: tuple[object, ...], policy: Policy | None = None, progress: bool = True
) -> Emulation:
    """Emulate the plan's compiled kernel on launch arguments, with arrays in place of addresses."""
    records = current_records()
    done = emulate_host(
        linked(plan), arguments, policy=policy, progress=progress, banks=records.banks, timeline=records.timeline
    )
    records.emulations.append(done)
    return done


def linked(plan: Plan) -> HostFunction:
    """The plan's compiled host function, linked; its kernels are with it."""
    return host_of(compile_plan(plan))


def host_of(compiled: CompiledGemm) -> HostFunction:
    """A compiled kernel's host function, linked, with the parameters that its plan names."""
    host = _HOSTS.get(compiled.symbol)
    if host is None:
        parameters = host_parameters(compiled.plan.parameters)
        host = _HOSTS[compiled.symbol] = HostFunction.link(compiled.object, compiled.ptx, parameters)
    return host


def host_parameters(parameters: Mapping[str, str]) -> list[HostParameter]:
    """A kernel's parameters, name -> kind, as its compiled host function has them. The stream comes last."""
    scalars = [parameter_of(_TYPES[kind], name=name) for name, kind in parameters.items()]
    return [*scalars, HostParameter("stream", "stream")]


def execute_compiled(plan: Plan, a: GlobalMatrix, b: GlobalMatrix, given: tuple[object, ...] = ()) -> np.ndarray:
    """C as float32 values, of integers as int32. Raises EmulatorError with the report when anything was found."""
    words, emulation = emulate_plan(plan, a, b, given=given)
    emulation.raise_for_findings()
    return values_of(plan.c.dtype, words)


# --------------------------------------------------------------------------------------------- on an emulated GPU


@contextmanager
def launched_on(gpu: JoinedGpu) -> Iterator[None]:
    """Within it compiled kernels are launched on an emulated GPU."""

    def read(compiled: CompiledGemm) -> EmulatedLauncher:
        return EmulatedLauncher(compiled, gpu)

    def write(compiled: CompiledGemm, launcher: object) -> None:
        vars(compiled)["launcher"] = launcher  # the real one, of a kernel that is compiled within

    with mock.patch.object(CompiledGemm, "launcher", property(read, write), create=True):
        yield


@dataclass(frozen=True)
class EmulatedLauncher:
    """In place of a `Launcher`: the kernel runs in the emulator before the launch returns."""

    compiled: CompiledGemm
    gpu: JoinedGpu

    def load(self, device: int) -> None:
        """Nothing: the PTX is read when it is launched."""

    def block(self, arguments: Sequence[int]) -> EmulatedBlock:
        """A block with these arguments, the stream and the status."""
        return EmulatedBlock(self, [*arguments, 0, 0])

    def entry(self, values: Sequence[int]) -> None:
        """Launch with a block's values. Raises EmulatorError for what a kernel cannot go on from."""
        *arguments, stream, _ = values
        plan = self.compiled.plan
        self.gpu.launch(HostCall(type(plan).__name__, host_of(self.compiled), tuple(arguments)), stream)


@dataclass(frozen=True)
class EmulatedBlock:
    """In place of an `ArgumentBlock`."""

    launcher: EmulatedLauncher
    values: list[int]

    @property
    def count(self) -> int:
        """The number of arguments: the place of the stream."""
        return len(self.values) - 2

    @property
    def pointer(self) -> list[int]:
        """The argument of the launcher's entry: the values themselves."""
        return self.values

    def call(self) -> int:
        """Launch with these values; 0, for no error."""
        self.launcher.entry(self.values)
        return 0
