"""The GPUs that a script is told about: one for each architecture, with the numbers that host code asks for.

Source: NVIDIA's data sheets; the CUDA C++ Programming Guide, "Compute Capabilities", by way of `layoutgemm.arch`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

from ...arch import Arch, facts_of
from ...arch import arch as arch_named

CUDA = 13, 0  # the version of the emulated driver, and of a torch that was built without CUDA


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

    def nvidia_smi(self, folder: Path) -> None:
        """Write a command `nvidia-smi` into a folder, which answers --query-gpu and lists the device."""
        facts = {
            "name": self.name, "gpu_name": self.name, "compute_cap": "{}.{}".format(*self.capability), "index": 0,
            "count": 1, "memory.total": f"{self.memory >> 20} MiB", "driver_version": "580.00",
        }  # fmt: skip
        path = folder / "nvidia-smi"
        path.write_text(
            f"#!{sys.executable}\nimport sys\nfacts = {facts!r}\n"
            "asked = [x.partition('=')[2].split(',') for x in sys.argv if x.startswith('--query-gpu=')]\n"
            "unknown = [x for x in sum(asked, []) if x not in facts]\n"
            "sys.exit('not a field of the emulated GPU: ' + ', '.join(unknown)) if unknown else None\n"
            "header = not any('noheader' in x for x in sys.argv)\n"
            "for fields in asked:\n"
            "    print(*[', '.join(fields)] * header, ', '.join(str(facts[x]) for x in fields), sep='\\n')\n"
            "if not asked:\n    print('GPU 0: ' + facts['name'])\n"
        )
        path.chmod(0o755)


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
