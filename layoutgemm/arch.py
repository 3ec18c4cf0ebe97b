"""Facts of each GPU architecture, frozen, each with its source.

The table is data, in `arches.json`.

Sources, named once: [PG] CUDA C++ Programming Guide, appendix "Compute Capabilities", table "Technical Specifications
per Compute Capability"; [PTX] PTX ISA, the section of the instruction named. [TUNE] is the architecture's tuning guide,
[SHEET] NVIDIA's data sheet of the GPU.

CCCL's `cuda/__device/arch_traits.h` has the numbers of [PG] too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from .arguments import is_int, read_by, shown, unnamed
from .errors import PlanError

KIB = 1024
# Thread blocks of a grid along x, y and z, on every architecture here [PG].
MAX_GRID = (2**31 - 1, 65535, 65535)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of an architecture [SHEET].

    name             as the driver gives it
    multiprocessors  how many it has
    memory, l2       GiB of memory, MiB of L2
    """

    name: str
    multiprocessors: int
    memory: int
    l2: int


Capability = tuple[int, int]  # a compute capability: (9, 0)


@dataclass(frozen=True, slots=True)
class Arch:
    """The facts of one architecture that plans are checked against.

    name                     the target that ptxas is given
    smem_per_sm              bytes of shared memory of one multiprocessor; each resident block costs 1 KiB more [PG]
    threads_per_sm, blocks_per_sm   resident limits [PG]
    cluster_portable, cluster_max   thread blocks of a cluster: on every device, and with the non-portable attribute
                                    [PG]
    tmem_columns             columns of tensor memory, 128 lanes of 32 bits each (0: none) [PTX tcgen05]
    features                 instruction families present, by their PTX names [PTX]
    capabilities             compute capabilities that run its code, its own first [PG "Binary Compatibility"]
    gpu                      one GPU of the first capability
    also                     other names of the architecture
    sources                  where each number above can be read
    smem_reserved_per_block  bytes the system keeps of every block's shared memory [PG]
    registers_per_sm         32-bit registers of one multiprocessor [PG]
    registers_per_thread     most that one thread can be compiled to use [PG]
    threads_per_block        most threads of a block [PG]

    >>> arch("sm_90a").smem_per_block
    232448
    >>> "wgmma" in arch("sm_90a").features, "wgmma" in arch("sm_120a").features
    (True, False)
    """

    name: str
    smem_per_sm: int
    threads_per_sm: int
    blocks_per_sm: int
    cluster_portable: int
    cluster_max: int
    tmem_columns: int
    features: frozenset[str]
    capabilities: tuple[Capability, ...]
    gpu: Gpu
    also: tuple[str, ...]
    sources: MappingProxyType[str, str]
    smem_reserved_per_block: int = 1 * KIB
    registers_per_sm: int = 64 * KIB
    registers_per_thread: int = 255
    threads_per_block: int = 1024
    warp_size: int = 32
    smem_banks: int = 32
    smem_bank_bytes: int = 4

    @property
    def smem_per_block(self) -> int:
        """Bytes of dynamic shared memory that one thread block may ask for (opt-in maximum) [PG]."""
        return self.smem_per_sm - self.smem_reserved_per_block

    @property
    def smem_of_one_block(self) -> int:
        """The fewest bytes of shared memory that a multiprocessor has once, and not twice.

        >>> arch("sm_90a").smem_of_one_block
        115713
        """
        return self.smem_per_sm // 2 - self.smem_reserved_per_block + 1

    @property
    def is_family(self) -> bool:
        """True for a family target. Its code runs on all its capabilities, and uses what they have in common."""
        return self.name.endswith("f")

    def require(self, feature: str, why: str) -> None:
        """Raise PlanError, with the architectures that have it, if this one lacks an instruction family."""
        if feature not in self.features:
            having = ", ".join(with_feature(feature)) or "none"
            raise PlanError(f"{why} needs {feature}, which {self.name} lacks; architectures with it: {having}")

    def __reduce__(self) -> tuple[object, ...]:
        # A mapping proxy does not pickle; the name identifies an architecture.
        return (arch, (self.name,))

    def __hash__(self) -> int:
        return hash(self.name)


def _read() -> tuple[Arch, ...]:
    """The architectures of the package's table, in their order."""
    table = json.loads(Path(__file__).with_name("arches.json").read_text(encoding="utf-8"))
    found = []
    for name, facts in table["arches"].items():
        facts["smem_per_sm"] = facts.pop("smem_kib_per_sm") * KIB
        facts["features"], facts["also"] = frozenset(facts["features"]), tuple(facts["also"])
        facts["capabilities"] = tuple([(major, minor) for major, minor in facts["capabilities"]])
        facts["gpu"] = Gpu(**facts["gpu"])
        facts["sources"] = MappingProxyType(table["sources"] | facts["sources"])
        found.append(Arch(name, **facts))
    return tuple(found)


# Machine code of an 8.x target runs on later 8.x, but for those of Tegra, 8.7: it has code of its own. That of an "a"
# target runs on one capability, that of an "f" target on the capabilities of its family from its own on.
_SPECIFIC = _read()


def _family(first: Arch) -> Arch:
    """The family target of an architecture: for the GPUs of its major capability from its own on."""
    (major, minor), *_ = first.capabilities
    later = [entry for entry in _SPECIFIC if entry.capabilities[0][0] == major and entry.capabilities[0][1] >= minor]
    common = frozenset.intersection(*[entry.features for entry in later])
    covered = tuple([entry.capabilities[0] for entry in later])
    return replace(first, name=f"{first.name[:-1]}f", features=common, capabilities=covered, also=())


ARCHES: dict[str, Arch] = {
    entry.name: entry
    for entry in (*_SPECIFIC, *[_family(entry) for entry in _SPECIFIC if entry.capabilities[0] >= (10, 0)])
}


def with_feature(feature: str) -> tuple[str, ...]:
    """The targets with a feature, without those for a family.

    >>> with_feature("tcgen05"), with_feature("mma.sync.e4m3")[0]
    (('sm_100a', 'sm_103a', 'sm_110a'), 'sm_89')
    """
    return tuple([entry.name for entry in _SPECIFIC if feature in entry.features])


def facts_of(target: str) -> Arch:
    """The facts of the nearest architecture to a PTX target, not a later generation.

    >>> facts_of("sm_100").name, facts_of("sm_101a").name, facts_of("sm_120f").name
    ('sm_100a', 'sm_100a', 'sm_120f')
    """
    if target in ARCHES:
        return ARCHES[target]

    def number(name: str) -> int:
        return int(name.removeprefix("sm_").rstrip("af"))

    below = [entry for entry in _SPECIFIC if number(entry.name) <= number(target)]
    return max(below or [_SPECIFIC[0]], key=lambda a: number(a.name))


# Names without "-". Blackwell means the data-center parts: others have no tensor memory.
_NAMED = {name.replace("-", ""): entry.name for entry in _SPECIFIC for name in entry.also}
_BRANDS = ("nvidia", "geforce", "tesla", "jetson", "agx")  # words before the name of a GPU
# Targets without a kernel here, and why.
_WITHOUT = {
    **dict.fromkeys(("sm_70", "sm_72", "sm_75"), "it has no cp.async, and its tensor cores take no bf16"),
    "sm_88": "the CuTe DSL has no such target",
    "sm_107": "NVIDIA's documents do not give its limits",
}


ArchName = str | int | tuple[int, int] | Arch  # how a caller names an architecture


def arch(name: ArchName) -> Arch:
    """The facts of an architecture, by any of its names, in any case. "sm_90a", "sm90", "hopper", 90, (9, 0).

    A name without its suffix means the architecture-specific target: wgmma and tcgen05 exist on sm_90a and sm_100a
    alone [PTX, "Target ISA Notes"]. "sm_100f" is a family target. Names of GPUs are taken too: "RTX 4090", "h200".
    Raises PlanError with the nearest names for one that is not in the table, and the reason where there is one.

    >>> [arch(name).name for name in ("sm_90a", "SM90", "hopper", 90, (9, 0), "9.0", "H200")]
    ['sm_90a', 'sm_90a', 'sm_90a', 'sm_90a', 'sm_90a', 'sm_90a', 'sm_90a']
    >>> [arch(name).name for name in ("ada", "GeForce RTX 3090", (12, 1), "sm_100f")]
    ['sm_89', 'sm_86', 'sm_121a', 'sm_100f']
    >>> arch("sm_75")
    Traceback (most recent call last):
    ...
    layoutgemm.errors.PlanError: no kernel for sm_75: it has no cp.async, and its tensor cores take no bf16; known: \
sm_80 or ampere, sm_86 or ampere-geforce, sm_87 or orin, sm_89 or ada, sm_90a or hopper, sm_100a or blackwell, \
sm_103a or blackwell-ultra, sm_110a or thor, sm_120a or blackwell-geforce, sm_121a or spark
    """
    if isinstance(name, Arch):
        return name
    text = _written(name)
    found = ARCHES.get(text) or ARCHES.get(f"{text}a") or ARCHES.get(_NAMED.get(_bare(text), ""))
    if found is not None:
        return found
    known = ", ".join(f"{entry.name} or {entry.also[0]}" for entry in _SPECIFIC)
    if (why := _WITHOUT.get(text.rstrip("af"))) is not None:
        raise unnamed(PlanError(f"no kernel for {text}: {why}; known: {known}"), name)
    near = _near(text)
    meant = f"do you mean {near[0]}? " if near else ""
    raise unnamed(PlanError(f"no architecture {shown(name)}; {meant}known: {known}"), name)


def _near(text: str) -> list[str]:
    """The name that is most like another: of a target's, the nearest number of the same generation."""
    number = re.fullmatch(r"sm_(\d{1,6})[af]?", text)
    if number is not None:
        own = int(number[1])
        same = [entry.name for entry in _SPECIFIC if entry.capabilities[0][0] == own // 10]
        if same:
            return [min(same, key=lambda name: abs(int(name[3:].rstrip("af")) - own))]
    return get_close_matches(text, [*ARCHES, *[each for entry in _SPECIFIC for each in entry.also]], 1) if text else []


def of_capability(capability: Capability) -> Arch | None:
    """The architecture whose code a GPU of that compute capability runs best; None without one.

    >>> [found and found.name for found in map(of_capability, ((8, 6), (9, 0), (12, 1), (7, 5)))]
    ['sm_86', 'sm_90a', 'sm_121a', None]
    """
    return next((entry for entry in _SPECIFIC if entry.capabilities[0] == tuple(capability)), None)


def _bare(text: str) -> str:
    """A name without separators; a GPU's, which has digits, without brands: "rtx4090" of "nvidia-geforce-rtx-4090"."""
    words = text.split("-")
    return "".join([word for word in words if word not in _BRANDS] if re.search(r"\d", text) else words)


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
