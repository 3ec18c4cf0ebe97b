"""The compilation targets of PTX that atoms name, in order of their features."""

from __future__ import annotations

from collections.abc import Collection

from ..arch import Arch
from ..arguments import shown
from ..errors import AtomError

# Targets of the PTX ISA that atoms name, oldest first; those that end in "a" also have instructions of their own.
TARGETS = (
    *("sm_70", "sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a"),
    *("sm_100", "sm_100a", "sm_103", "sm_103a", "sm_110", "sm_110a", "sm_120", "sm_120a", "sm_121", "sm_121a"),
)
TENSOR_MEMORY_ARCHS = ("sm_100a", "sm_103a", "sm_110a")  # of tcgen05


def since(target: str) -> tuple[str, ...]:
    """Every target from `target` on, as in "requires sm_80 or higher". Raises AtomError for an unknown one.

    >>> since("sm_103")
    ('sm_103', 'sm_103a', 'sm_110', 'sm_110a', 'sm_120', 'sm_120a', 'sm_121', 'sm_121a')
    """
    if target not in TARGETS:
        raise AtomError(f"no target {shown(target)}; known: {', '.join(TARGETS)}")
    return TARGETS[TARGETS.index(target) :]


def exists_on(archs: Collection[str], target: Arch) -> bool:
    """True if an atom of these targets exists on an architecture. On a family's if all that it is for have it.

    >>> from layoutgemm.arch import arch
    >>> exists_on(since("sm_89"), arch("sm_86")), exists_on(TENSOR_MEMORY_ARCHS, arch("sm_100f"))
    (False, True)
    """
    if not target.is_family:
        return target.name in archs
    return all(f"sm_{major}{minor}a" in archs for major, minor in target.capabilities)
