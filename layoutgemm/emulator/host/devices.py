"""The GPUs that a script is told about: one for each architecture, with the numbers that host code asks for.

Source: NVIDIA's data sheets; the CUDA C++ Programming Guide, "Compute Capabilities", by way of `layoutgemm.arch`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ...arch import Arch, facts_of
from ...arch import arch as arch_named


@dataclass(frozen=True)
class GpuModel:
    """A GPU as host code sees it.

    arch             its architecture, for which code is compiled
    name             as the driver gives it
    capability       compute capability
    multiprocessors  how many there are
    memory, l2       bytes
    """

    arch: Arch
    name: str
    capability: tuple[int, int]
    multiprocessors: int
    memory: int
    l2: int

    @classmethod
    def of(cls, arch: Arch | str | int | tuple[int, int]) -> GpuModel:
        """The device of an architecture. Raises PlanError for one that is not known.

        >>> GpuModel.of("sm_90a").name, GpuModel.of("hopper").multiprocessors, GpuModel.of((10, 0)).capability
        ('NVIDIA H100 80GB HBM3', 132, (10, 0))
        """
        found = _VARIANTS.get(str(arch).lower()) or arch_named(arch)
        digits = found.name.removeprefix("sm_").rstrip("abcdef")
        name, multiprocessors, gigabytes, megabytes = _GPUS.get(found.name, (f"a GPU of {found.name}", 132, 80, 50))
        capability = int(digits[:-1]), int(digits[-1])
        return cls(found, name, capability, multiprocessors, gigabytes << 30, megabytes << 20)


# name, multiprocessors, GB of memory, MB of L2
_GPUS = {
    "sm_80": ("NVIDIA A100-SXM4-80GB", 108, 80, 40),
    "sm_86": ("NVIDIA GeForce RTX 3090", 82, 24, 6),
    "sm_89": ("NVIDIA L40S", 142, 48, 96),
    "sm_90a": ("NVIDIA H100 80GB HBM3", 132, 80, 50),
    "sm_100a": ("NVIDIA B200", 148, 180, 126),
    "sm_103a": ("NVIDIA B300", 148, 268, 126),
    "sm_120a": ("NVIDIA GeForce RTX 5090", 170, 32, 96),
}
# Targets whose limits are those of the architecture below them (CUDA C++ Programming Guide, "Compute Capabilities").
_VARIANTS = {"sm_103a": replace(facts_of("sm_103a"), name="sm_103a")}
