"""GatePlan: a kernel that gates one half of a matrix's columns with the other.

It may make the gradient of that instead.

    h (m, 2n) = [gate | up]         y = act(gate) * up
    gradient of y: dy (m, n)        dh = [dy * up * act'(gate) | dy * act(gate)]
    weighted, a factor f a row      dh likewise of f * dy, f * y, and the sums of dy * y along rows, in parts

A product that autograd records stores its sums, which the backward pass reads; so the gate is a kernel of its own. Each
element is read once and written once, in vectors of up to 16 bytes, and computed in f32. A thread has one vector of
gate and the one of up beside it, at the same place in the other half.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ...arch import Arch, arch
from ...arguments import shown
from ...atoms.copy.base import VECTOR_BYTES, WARP
from ...dtypes import DType, dtype
from ...errors import PlanError
from ..epilogue.places import Functions, Value
from ..verbs import named

if TYPE_CHECKING:
    from ..compile.compiler import CompiledGemm

THREADS = 256  # of a CTA
LEAST_ACCESS = 4  # bytes of a load
_SOURCES = ("bf16", "f16", "f32")
_DENSITY = 1 / math.sqrt(2 * math.pi)


def _silu_slope(x: Value, ops: Functions) -> Value:
    part = ops.sigmoid(x)
    return part * (1.0 + x * (1.0 - part))


def _gelu_slope(x: Value, ops: Functions) -> Value:
    return ops.normal(x) + x * (_DENSITY * ops.exp(x * x * -0.5))


# The derivatives of those `epilogue.steps.ACTIVATIONS` that gate.
SLOPES: Mapping[str, Callable[[Value, Functions], Value]] = {"silu": _silu_slope, "gelu": _gelu_slope}


@dataclass(frozen=True)
class GatePlan:
    """A kernel that gates, or makes the gradient; its code serves any size.

    source    type of h and y: bf16, f16 or f32
    kind      act: "silu" or "gelu"
    gradient  whether it makes the gradient
    weighted  whether the gradient is of rows with a factor each: n is a multiple of `part` then
    access    bytes of a load: 16, or 8 or 4 where addresses, pitches or n are no multiple of it
    code      the architecture that it is compiled for

    Raises PlanError, naming the argument.

    >>> plan = GatePlan("bf16", "silu")
    >>> plan.vector, list(plan.parameters)
    (8, ['h', 'y', 'm', 'n', 'ldh'])
    """

    source: str
    kind: str
    gradient: bool = False
    access: int = VECTOR_BYTES
    code: str = "sm_90a"
    weighted: bool = False

    device_kernel: ClassVar[str] = "gates.device.gate:kernel_of"  # as `kernels.verbs.named` takes it

    def __post_init__(self) -> None:
        if self.source not in _SOURCES:
            raise PlanError(f"source = {shown(self.source)}: known are {', '.join(_SOURCES)}")
        if self.kind not in SLOPES:
            raise PlanError(f"kind = {shown(self.kind)}: known are {', '.join(SLOPES)}")
        if self.weighted and not self.gradient:
            raise PlanError("weighted = True of a gate: of its gradient alone")
        if self.access not in (LEAST_ACCESS, 8, VECTOR_BYTES):
            raise PlanError(f"access = {shown(self.access)}: {LEAST_ACCESS}, 8 or {VECTOR_BYTES} bytes")

    @property
    def arch(self) -> Arch:
        """The architecture."""
        return arch(self.code)

    @property
    def parameters(self) -> dict[str, str]:
        """The kernel's parameters, and what each is."""
        addresses: tuple[str, ...] = ("h", "dy", "dh") if self.gradient else ("h", "y")
        addresses += ("factors", "y", "sums") if self.weighted else ()
        return {**dict.fromkeys(addresses, "address"), "m": "size", "n": "size", "ldh": "stride"}

    @property
    def x(self) -> DType:
        """The type of elements."""
        return dtype(self.source)

    @property
    def vector(self) -> int:
        """Elements of a thread's vector."""
        return self.access // self.x.bytes

    @property
    def part(self) -> int:
        """Elements of a row that a warp has. A weighted gradient's sums are (m, n / part), float32."""
        return WARP * self.vector

    @property
    def overlaps(self) -> bool:
        """True where it waits for the kernel before it, and the next begins early."""
        return "griddepcontrol" in self.arch.features

    @property
    def facts(self) -> dict[str, object]:
        """All that decides the code, as JSON-able data."""
        return {"gate": {name: getattr(self, name) for name in ("source", "kind", "gradient", "access", "weighted")}}

    def compile(self) -> CompiledGemm:
        """The kernel, compiled or from the cache. It needs the DSL, and a GPU only to launch."""
        made: CompiledGemm = named("compile.compiler:compile_own")(self)
        return made
