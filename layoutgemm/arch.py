"""Facts of each GPU architecture, frozen, each with its source.

Sources, named once: [PG] CUDA C++ Programming Guide, appendix "Compute Capabilities", table "Technical Specifications
per Compute Capability"; [PTX] PTX ISA, the section of the instruction named; [TUNE] the architecture's tuning guide.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from types import MappingProxyType

from .arguments import is_int, read_by, shown
from .errors import PlanError

KIB = 1024
# Thread blocks of a grid along x, y and z, on every architecture here [PG].
MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class Arch:
    """The facts of one architecture that plans are checked against.

    name                     the target that ptxas is given
    smem_per_block           bytes of dynamic shared memory one thread block may ask for (opt-in maximum) [PG]
    smem_per_sm              bytes of shared memory of one multiprocessor; each resident block costs 1 KiB more [PG]
    smem_reserved_per_block  bytes the system keeps of every block's shared memory [PG]
    registers_per_sm         32-bit registers of one multiprocessor [PG]
    registers_per_thread     most that one thread can be compiled to use [PG]
    threads_per_sm, threads_per_block, blocks_per_sm   resident limits [PG]
    cluster_portable, cluster_max   thread blocks of a cluster: on every device, and with the non-portable attribute
                                    [PG]
    tmem_columns             columns of tensor memory, 128 lanes of 32 bits each (0: none) [PTX tcgen05]
    features                 instruction families present, by their PTX names [PTX]
    sources                  where each number above can be read

    >>> arch("sm_90a").smem_per_block
    232448
    >>> "wgmma" in arch("sm_90a").features, "wgmma" in arch("sm_120a").features
    (True, False)
    """

    name: str
    smem_per_block: int
    smem_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    cluster_portable: int
    cluster_max: int
    tmem_columns: int
    features: frozenset[str]
    sources: MappingProxyType[str, str]
    smem_reserved_per_block: int = 1 * KIB
    registers_per_sm: int = 64 * KIB
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    warp_size: int = 32
    smem_banks: int = 32
    smem_bank_bytes: int = 4

    def require(self, feature: str, why: str) -> None:
        """Raise PlanError, with the architectures that have it, if this one lacks an instruction family."""
        if feature not in self.features:
            having = ", ".join(entry.name for entry in ARCHES.values() if feature in entry.features) or "none"
            raise PlanError(f"{why} needs {feature}, which {self.name} lacks; architectures with it: {having}")

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy does not pickle; the name identifies an architecture.
        return (arch, (self.name,))

    def __hash__(self) -> int:
        return hash(self.name)


_TABLE = 'CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"'
_SM80 = frozenset({"mma.sync", "ldmatrix", "cp.async", "mbarrier"})
_SM90 = _SM80 | {"stmatrix", "cp.async.bulk.tensor", "elect.sync", "cluster", "griddepcontrol"}


def _sources(**own: str) -> MappingProxyType[str, str]:
    common = dict.fromkeys(
        (
            "smem_per_block",
            "smem_per_sm",
            "threads_per_sm",
            "blocks_per_sm",
            "registers_per_sm",
            "registers_per_thread",
            "threads_per_block",
            "smem_reserved_per_block",
            "cluster_portable",
        ),
        _TABLE,
    )
    common["features"] = 'PTX ISA, "Target ISA Notes" of each instruction'
    return MappingProxyType(common | own)


ARCHES: dict[str, Arch] = {
    entry.name: entry
    for entry in (
        Arch("sm_80", 163 * KIB, 164 * KIB, 2048, 32, 1, 1, 0, _SM80, _sources()),
        Arch(
            "sm_90a", 227 * KIB, 228 * KIB, 2048, 32, 8, 16, 0, _SM90 | {"wgmma", "setmaxnreg", "tma.multicast"},
            _sources(cluster_max='Hopper Tuning Guide, "Thread Block Clusters"'),
        ),
        Arch(
            "sm_100a", 227 * KIB, 228 * KIB, 2048, 32, 8, 16, 512,
            _SM90 | {"tcgen05", "setmaxnreg", "tma.multicast"},
            _sources(
                cluster_max='Blackwell Tuning Guide, "Thread Block Clusters"',
                tmem_columns='PTX ISA, "Tensor Memory"',
            ),
        ),
        Arch("sm_120a", 99 * KIB, 100 * KIB, 1536, 24, 8, 8, 0, _SM90 | {"setmaxnreg"}, _sources()),
    )
}  # fmt: skip


def facts_of(target: str) -> Arch:
    """The facts of the nearest architecture to a PTX target, not a later generation.

    >>> facts_of("sm_103a").name, facts_of("sm_86").name, facts_of("sm_120f").name
    ('sm_100a', 'sm_80', 'sm_120a')
    """

    def number(name: str) -> int:
        return int(name.removeprefix("sm_").rstrip("af"))

    below = [entry for entry in ARCHES.values() if number(entry.name) <= number(target)]
    return max(below or [min(ARCHES.values(), key=lambda a: number(a.name))], key=lambda a: number(a.name))


# Families by their common names. Blackwell means the data-center parts: others have no tensor memory.
_FAMILIES = {"ampere": "sm_80", "hopper": "sm_90a", "blackwell": "sm_100a", "blackwell-geforce": "sm_120a"}


ArchName = str | int | tuple[int, int] | Arch  # how a caller names an architecture


def arch(name: ArchName) -> Arch:
    """The facts of an architecture, by any of its names, in any case: "sm_90a", "sm90", "hopper", 90, (9, 0).

    A name without its suffix means the architecture-specific target: wgmma and tcgen05 exist on sm_90a and sm_100a
    alone [PTX, "Target ISA Notes"]. Raises PlanError with the nearest names for one that is not in the table.

    >>> [arch(name).name for name in ("sm_90a", "SM90", "hopper", 90, (9, 0), "9.0")]
    ['sm_90a', 'sm_90a', 'sm_90a', 'sm_90a', 'sm_90a', 'sm_90a']
    >>> arch("sm_86")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.PlanError: no architecture 'sm_86'; do you mean sm_80? known: sm_80 or ampere, sm_90a or hopper, \
sm_100a or blackwell, sm_120a or blackwell-geforce
    """
    if isinstance(name, Arch):
        return name
    text = _written(name)
    found = ARCHES.get(_FAMILIES.get(text, text)) or ARCHES.get(f"{text}a")
    if found is None:
        near = get_close_matches(text, [*ARCHES, *_FAMILIES], 1) if text else []
        meant = f"do you mean {near[0]}? " if near else ""
        known = ", ".join(f"{target} or {family}" for family, target in _FAMILIES.items())
        raise PlanError(f"no architecture {shown(name)}; {meant}known: {known}")
    return found


def _written(name: object) -> str:
    """A name in the table's spelling, without a suffix if it has none: "sm_90" of "SM90", 90, (9, 0) and "9.0"."""
    if isinstance(name, (tuple, list)) and len(name) == 2 and all(map(is_int, name)):
        return f"sm_{int(name[0])}{int(name[1])}"
    if is_int(name) and 0 < name < 1000:
        return f"sm_{int(name)}"
    if not isinstance(name, str):
        return ""
    text = name.strip().lower().replace(" ", "-")
    version = re.fullmatch(r"(?:sm_?|compute_?)?(\d+)\.?(\d)([af]?)", text)
    return f"sm_{version[1]}{version[2]}{version[3]}" if version else text


read_by(Arch, arch)
