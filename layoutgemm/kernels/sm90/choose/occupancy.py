"""Resident clusters of a Hopper GPU, one CTA to an SM.

A cluster lies within a graphics cluster (GPC), of which a chip has up to eight, of 18 multiprocessors or fewer: not the
same on all chips. What does not find a place waits for one, and the kernel takes twice as long.
"""

from __future__ import annotations

from dataclasses import dataclass

from ....schedule.gpc_order import Rounds
from .costs import cost_model

SIZES = (2, 3, 4, 8)  # blocks of the clusters that kernels have
MODEL = cost_model("places")  # of the GPU that others are scaled from


@dataclass(frozen=True)
class ClusterOccupancy:
    """A GPU's SMs, its resident clusters of 2, 3, 4 and 8 CTAs, and its memory's rate.

    clusters  (): the share of the multiprocessors that an H200's have
    memory    TB/s by the clock and the bus: an H200 has 4.9, an H100 of 80 GB 3.4

    Raises ValueError for another number of numbers.

    >>> ClusterOccupancy().clusters, ClusterOccupancy(114).clusters, ClusterOccupancy(132, (66, 36, 26, 14)).most(8)
    ((66, 39, 30, 15), (57, 33, 25, 12), 14)
    """

    multiprocessors: int = MODEL.multiprocessors
    clusters: tuple[int, ...] = ()
    memory: float = MODEL.memory

    def __post_init__(self) -> None:
        whole = MODEL.multiprocessors
        found = self.clusters or tuple(count * self.multiprocessors // whole for count in MODEL.clusters)
        if len(found) != len(SIZES):
            raise ValueError(f"clusters = {self.clusters}: one number for each of {SIZES} blocks")
        object.__setattr__(self, "clusters", found)

    @classmethod
    def of(cls, known: int | ClusterOccupancy) -> ClusterOccupancy:
        """The places of a GPU of which no more than its multiprocessors may be known.

        >>> ClusterOccupancy.of(132) == ClusterOccupancy.of(ClusterOccupancy()) == ClusterOccupancy()
        True
        """
        return known if isinstance(known, ClusterOccupancy) else cls(known)

    def resident(self, blocks: int) -> int:
        """As `most`, of any number of blocks up to the largest of SIZES. Between them what the next larger one has.

        One at least: a launch has a cluster, which then waits for its place.

        Raises ValueError for more, as `most` does.

        >>> [ClusterOccupancy().resident(blocks) for blocks in (1, 2, 4, 6)]
        [132, 66, 30, 15]
        """
        return max(1, self.most(next((size for size in (1, *SIZES) if size >= blocks), blocks)))

    def gpc_rounds(self, blocks: int) -> Rounds:
        """The rounds in which an idle GPU deals clusters out to GPCs: see `schedule.GpcOrder`.

        Known of H200s, by what they have place for; () where they are not.

        >>> [(places[0], len(places), times) for places, times in ClusterOccupancy().gpc_rounds(2)]
        [(0, 4, 1), (4, 8, 4), (4, 7, 4)]
        >>> ClusterOccupancy(132, (66, 36, 26, 14)).gpc_rounds(2)
        ()
        """
        known = self.multiprocessors == MODEL.multiprocessors and self.clusters == MODEL.clusters
        return MODEL.rounds.get(blocks, ()) if known else ()

    def most(self, blocks: int) -> int:
        """Clusters of `blocks` CTAs that run at a time. Raises ValueError unless `blocks` is 1 or in SIZES.

        >>> [ClusterOccupancy().most(blocks) for blocks in (1, 2, 3, 4, 8)]
        [132, 66, 39, 30, 15]
        """
        if blocks == 1:
            return self.multiprocessors
        if blocks not in SIZES:
            raise ValueError(f"clusters of {blocks} CTAs: the occupancy is known for 1 and {SIZES}")
        return self.clusters[SIZES.index(blocks)]
