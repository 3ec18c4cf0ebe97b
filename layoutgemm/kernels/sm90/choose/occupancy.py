"""How many clusters of so many blocks run at a time on a Hopper GPU, one block to a multiprocessor.

A cluster lies within a graphics cluster (GPC), of which a chip has up to eight, of 18 multiprocessors or fewer: not the
same on all chips. What does not find a place waits for one, and the kernel takes twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....schedule.gpc_order import Rounds

SIZES = (2, 3, 4, 8)  # blocks of the clusters that kernels have
# How an H200 that has _H200's places deals clusters out, on all that were seen: four pairs of multiprocessors that are
# left over come first; of eight graphics clusters the second has 8 multiprocessors besides, the others twice as many.
_LEFT, _EIGHT, _SEVEN = tuple(range(4)), tuple(range(4, 12)), (4, *range(6, 12))
# Blocks of a cluster -> rounds of (places, times): `benchmarks/verify_places.py`.
_DEALT: dict[int, Rounds] = {
    1: ((_LEFT + _EIGHT, 2), (_EIGHT, 6), (_SEVEN, 8)),
    2: ((_LEFT, 1), (_EIGHT, 4), (_SEVEN, 4)),
    4: ((_EIGHT, 2), (_SEVEN, 2)),
}
_H200 = 132, (66, 39, 30, 15)  # cudaOccupancyMaxActiveClusters, of 200 KiB of shared memory a block


@dataclass(frozen=True)
class Places:
    """A GPU's multiprocessors, and how many clusters of 2, 3, 4 and 8 blocks run at a time on them.

    clusters  (): the share of the multiprocessors that an H200's have

    Raises ValueError for another number of numbers.

    >>> Places().clusters, Places(114).clusters, Places(132, (66, 36, 26, 14)).most(8)
    ((66, 39, 30, 15), (57, 33, 25, 12), 14)
    """

    multiprocessors: int = _H200[0]
    clusters: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        whole, known = _H200
        found = self.clusters or tuple(count * self.multiprocessors // whole for count in known)
        if len(found) != len(SIZES):
            raise ValueError(f"clusters = {self.clusters}: one number for each of {SIZES} blocks")
        object.__setattr__(self, "clusters", found)

    @classmethod
    def of(cls, known: int | Places) -> Places:
        """The places of a GPU of which no more than its multiprocessors may be known.

        >>> Places.of(132) == Places.of(Places()) == Places()
        True
        """
        return known if isinstance(known, Places) else cls(known)

    def resident(self, blocks: int) -> int:
        """As `most`, of any number of blocks up to the largest of SIZES: between them what the next larger one has.

        One at least: a launch has a cluster, which then waits for its place.

        Raises ValueError for more, as `most` does.

        >>> [Places().resident(blocks) for blocks in (1, 2, 4, 6)]
        [132, 66, 30, 15]
        """
        return max(1, self.most(next((size for size in (1, *SIZES) if size >= blocks), blocks)))

    def dealt(self, blocks: int) -> Rounds:
        """Rounds in which an idle GPU deals out clusters of so many blocks to graphics clusters: see `schedule.Dealt`.

        Known of H200s, by what they have place for; () where they are not.

        >>> [(places[0], len(places), times) for places, times in Places().dealt(2)]
        [(0, 4, 1), (4, 8, 4), (4, 7, 4)]
        >>> Places(132, (66, 36, 26, 14)).dealt(2)
        ()
        """
        return _DEALT.get(blocks, ()) if self == Places() else ()

    def most(self, blocks: int) -> int:
        """Clusters of so many blocks that run at a time. Raises ValueError for a number that is not in SIZES, nor 1.

        >>> [Places().most(blocks) for blocks in (1, 2, 3, 4, 8)]
        [132, 66, 39, 30, 15]
        """
        if blocks == 1:
            return self.multiprocessors
        if blocks not in SIZES:
            raise ValueError(f"clusters of {blocks} blocks: known are places for 1 and {SIZES}")
        return self.clusters[SIZES.index(blocks)]
