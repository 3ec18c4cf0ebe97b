"""Named-barrier ids and thread counts of a Hopper CTA, and the sharers of its loads."""

from __future__ import annotations

from ...checks.budgets import WARPGROUP
from ..numbers import W
from ..store import WARPS_OF_GROUP
from .config import Sm90Config
from .multicast import MulticastGroups


class NamedBarriers:
    """Named barriers and sharers of a configuration; an Sm90Plan is one. Barrier 0 is the CTA's.

    >>> from layoutgemm.kernels.sm90.plan import Sm90Config, Sm90Plan
    >>> config = Sm90Config((128, 64), schedule="pingpong", loader="warp")
    >>> plan = Sm90Plan.derive(512, 512, 512, b="bf16:col", config=config)
    >>> plan.store_barrier(1), plan.store_threads, plan.turn_barrier(1), plan.turn_threads
    (2, 128, 4, 256)
    """

    config: Sm90Config

    @property
    def sharing(self) -> int:
        """Blocks of a cluster that share loads: those of one part of K."""
        return self.config.cluster[0] * self.config.cluster[1]

    @property
    def sharers(self) -> MulticastGroups:
        """The CTAs that need and send each tile."""
        return MulticastGroups(*self.config.cluster)

    def sharers_of(self, turned: bool) -> MulticastGroups:
        """The same of CTAs that have turned, or have not."""
        return self.sharers.turned if turned else self.sharers

    @property
    def turns(self) -> bool:
        """True if pairs of CTAs share A in place of B where a group ends."""
        return self.config.tuning.turn_last_pair

    @property
    def cluster_size(self) -> int:
        """Blocks of a cluster: rank = part of K * sharing + place among those that share loads."""
        return self.sharing * self.config.split

    @property
    def drains(self) -> bool:
        """True if CTAs exit when their loaders know that the others are done.

        Those that exchange partial sums alone have all that is sent to them when they store.
        """
        return self.sharing > 1

    @property
    def sums_arrivals(self) -> int:
        """Arrivals at the barrier of partial sums. One is of the thread that says how many bytes come.

        Where sums stay in the block, each warp of the slices behind the first arrives instead.
        """
        return 1 if self.sends_sums else WARPS_OF_GROUP * (self.config.consumers - self.config.warpgroups_of_tile)

    @property
    def sends_sums(self) -> bool:
        """True if st.async sends partial sums to a cluster's blocks, and counts bytes.

        Without a cluster warps store them: compute-sanitizer stops a kernel with st.async to its own block.
        """
        return self.cluster_size > 1

    def store_barrier(self, consumer: W) -> W:
        """Named barrier of one consumer's store; an int or a traced integer."""
        return consumer + 1

    @property
    def store_threads(self) -> int:
        """Threads that meet there: the consumer's."""
        return WARPGROUP

    def turn_barrier(self, consumer: W) -> W:
        """The named barrier at which a pingpong consumer waits for its turn."""
        return consumer + 1 + self.config.consumers

    @property
    def turn_threads(self) -> int:
        """Threads of a turn. They are of the consumer that passes it on, and of the one that takes it."""
        return 2 * WARPGROUP

    @property
    def stages_barrier(self) -> int:
        """Named barrier of all consumers, after the stores' and the turns'."""
        return 1 + 2 * self.config.consumers

    @property
    def stages_threads(self) -> int:
        """Threads that meet there: all consumers'."""
        return WARPGROUP * self.config.consumers
