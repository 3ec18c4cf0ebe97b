"""Copy instructions as values: which thread reads and writes which element.

A copy atom moves the elements of a small reference tile, numbered 0, 1, 2, ... Two thread-value layouts give, for every
thread and each of its values, the element that it names on the source side and on the destination side. Where a thread
only supplies an address (ldmatrix) the values of that side are the elements at that address.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..dtypes import DType
from ..errors import AtomError
from ..layouts import Layout

SPACES = ("gmem", "smem", "rmem", "tmem")


@dataclass(frozen=True)
class CopyAtom:
    """One copy instruction.

    ptx          the instruction's name without its operands
    archs        architectures that have it
    element      the type that the layouts count in
    threads      how many threads execute it together (1: each thread on its own, 32: a warp)
    source, target   where it reads and writes: "gmem", "smem", "rmem" or "tmem"
    layout_src   (thread, value) -> element of the reference tile that this thread names or holds at the source
    layout_dst   (thread, value) -> the same at the destination
    reference    where the maps can be read
    thread_ids   (thread of the maps) -> thread of the warp; None where they are the same
    """

    ptx: str
    archs: tuple[str, ...]
    element: DType
    threads: int
    source: str
    target: str
    layout_src: Layout
    layout_dst: Layout
    reference: str
    thread_ids: Layout | None = None

    def __post_init__(self) -> None:
        for side in (self.source, self.target):
            if side not in SPACES:
                raise AtomError(f"{self.ptx} copies between {', '.join(SPACES)}, not {side!r}")

    def layout(self, side: str) -> Layout:
        """The thread-value layout of side "src" or "dst"."""
        if side not in ("src", "dst"):
            raise AtomError(f'{self.ptx} has sides "src" and "dst", not {side!r}')
        return self.layout_src if side == "src" else self.layout_dst

    def __str__(self) -> str:
        return self.ptx
