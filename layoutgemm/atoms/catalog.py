"""Every atom there is. A table from the name of an instruction family to the generator of its atoms.

A new family is one line here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from ..arch import Arch
from ..arguments import checked, shown
from ..errors import AtomError
from .copy.base import CopyAtom
from .copy.cp_async import async_copies
from .copy.ldmatrix import matrix_copies
from .copy.tmem import tcgen05_copies
from .copy.vector import vector_copies
from .mma.base import MmaAtom
from .mma.fma import fma_atoms
from .mma.sync import mma_sync_atoms
from .mma.tcgen05 import tcgen05_mma_atoms
from .mma.wgmma import wgmma_atoms
from .targets import TARGETS

FAMILIES: dict[str, Callable[[], Iterator[MmaAtom | CopyAtom]]] = {
    "fma": fma_atoms,
    "mma.sync": mma_sync_atoms,
    "wgmma": wgmma_atoms,
    "tcgen05.mma": tcgen05_mma_atoms,
    "tcgen05 copy": tcgen05_copies,
    "matrix copy": matrix_copies,
    "async copy": async_copies,
    "vector copy": vector_copies,
}


@checked(AtomError)
def atoms(arch: str | Arch | None = None, family: str | None = None) -> Iterator[MmaAtom | CopyAtom]:
    """Every matrix and copy atom, of one architecture and one family where they are given.

    Raises AtomError for an unknown architecture or family.

    >>> sum(1 for _ in atoms("sm_75", "mma.sync")), next(atoms("sm_90a", "wgmma")).ptx
    (31, 'wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16')
    """
    name = arch.name if isinstance(arch, Arch) else arch
    if name is not None and (not isinstance(name, str) or name not in TARGETS):
        raise AtomError(f"arch of atoms: no target {shown(name)}; known: {', '.join(TARGETS)}")
    if family is not None and family not in FAMILIES:
        raise AtomError(f"no family {shown(family)}; known: {', '.join(FAMILIES)}")
    chosen = FAMILIES if family is None else {family: FAMILIES[family]}
    # A generator of its own, so that bad arguments are refused here and not at the first atom.
    return (atom for make in chosen.values() for atom in make() if name is None or name in atom.archs)
