"""Clocks: which accesses to global memory a thread knows to have happened. They count across all blocks of a launch.

Accesses come from sources: each warp, the loads of each mbarrier, the bulk stores of some lanes, the cp.async of each
warp. A source counts its accesses in turns, and a turn is known only with all turns before it. A warp's turn ends where
it releases something. `Knowledge.clocks` goes wherever the ledger's sets go. A flag takes it to other clusters.

PTX ISA, "Memory Consistency Model", "Causality order" and "Proxy-preserved base causality order".
"""

from __future__ import annotations

from typing import NamedTuple

Clock = dict[int, int]  # source -> its last known turn
Stamp = tuple[int, int]  # (source, turn)


class Clocks(NamedTuple):
    """Five clocks, never changed in place.

    known    accesses that have happened
    crossed  those of them that came before a proxy fence, or are the async proxy's own
    fenced   those that came before a fence of the GPU's scope, by a thread that knew of them: a relaxed write hands
             these on
    doubted  known, and what a volatile or atomic read without a fence tells of: practice counts on it, PTX does not
    told     doubted, and what any relaxed read tells of: a fence makes it known
    """

    known: Clock
    crossed: Clock
    fenced: Clock
    doubted: Clock
    told: Clock

    def merged(self, other: Clocks) -> Clocks:
        """The accesses that either knows: one of the two, if it covers the other."""
        if other is self or other is NO_CLOCKS:
            return self
        if self is NO_CLOCKS:
            return other
        found = [_merged(one, two) for one, two in zip(self, other, strict=True)]
        for whole in (other, self):
            if all(one is two for one, two in zip(found, whole, strict=True)):
                return whole
        return Clocks(*found)

    def covers(self, other: Clocks) -> bool:
        """True if these know all accesses that the other knows."""
        return all(one is two or all(one.get(source, 0) >= turn for source, turn in two.items())
                   for one, two in zip(self, other, strict=True))  # fmt: skip

    def common(self, other: Clocks) -> Clocks:
        """The accesses that both know: one of the two, if the other covers it."""
        if other is self:
            return self
        found = [_common(one, two) for one, two in zip(self, other, strict=True)]
        for whole in (self, other):
            if all(one is two for one, two in zip(found, whole, strict=True)):
                return whole
        return Clocks(*found)

    def after(self, stamp: Stamp, asynchronous: bool) -> Clocks:
        """These, and a source's turn; asynchronous: it was the async proxy's."""
        source, turn = stamp
        if self.known.get(source, 0) >= turn and (not asynchronous or self.crossed.get(source, 0) >= turn):
            return self
        one = {source: turn}
        return self.merged(Clocks(one, one if asynchronous else {}, {}, one, one))

    def after_proxy_fence(self) -> Clocks:
        """These after fence.proxy.async."""
        return self._replace(crossed=self.known)

    def after_fence(self, acquires: bool, releases: bool = True) -> Clocks:
        """These after a fence of the GPU's scope. `acquires`: it is not a release alone. `releases`: it is not an
        acquire alone."""
        known = self.told if acquires else self.known
        doubted = self.told if acquires else self.doubted
        return Clocks(known, self.crossed, known if releases else self.fenced, doubted, self.told)

    def handed_relaxed(self) -> Clocks:
        """The part that a relaxed write hands on."""
        if not self.fenced:
            return NO_CLOCKS
        return Clocks(self.fenced, self.crossed, self.fenced, self.fenced, self.fenced)

    def after_relaxed(self, other: Clocks, practice: bool) -> Clocks:
        """These after a relaxed read of what was handed on. `practice`: one that older code counts on without a
        fence."""
        doubted = _merged(self.doubted, other.doubted) if practice else self.doubted
        return self._replace(doubted=doubted, told=_merged(self.told, other.told))


NO_CLOCKS = Clocks({}, {}, {}, {}, {})


def _merged(one: Clock, two: Clock) -> Clock:
    """The later turns of both; one of the two where it has all of them."""
    if one is two or not two:
        return one
    if not one:
        return two
    out = dict(two)
    ahead = False
    for source, turn in one.items():
        if out.get(source, 0) < turn:
            out[source], ahead = turn, True
    if not ahead:
        return two
    return one if len(out) == len(one) and all(one[source] >= turn for source, turn in two.items()) else out


def _common(one: Clock, two: Clock) -> Clock:
    """The earlier turns of both; one of the two where the other has all of them."""
    if one is two:
        return one
    out = {source: min(turn, two[source]) for source, turn in one.items() if source in two}
    return one if out == one else two if out == two else out
