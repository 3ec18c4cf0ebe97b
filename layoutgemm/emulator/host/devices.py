"""The GPUs that a script is told about. One for each architecture, with the numbers that host code asks for.

Their numbers are those of `layoutgemm.arch`.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from ...arch import Arch, ArchName, of_capability
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
    def of(cls, arch: ArchName) -> GpuModel:
        """The device of an architecture; of a family's, its first. Raises PlanError for one that is not known.

        >>> GpuModel.of("sm_90a").name, GpuModel.of("hopper").multiprocessors, GpuModel.of((10, 0)).capability
        ('NVIDIA H100 80GB HBM3', 132, (10, 0))
        """
        capability = arch_named(arch).capabilities[0]
        found = of_capability(capability)
        assert found is not None, capability
        gpu = found.gpu
        return cls(found, gpu.name, capability, gpu.multiprocessors, gpu.memory << 30, gpu.l2 << 20)

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
