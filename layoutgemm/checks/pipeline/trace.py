"""The steps of one run with their predecessors, and the shortest way to a hazard."""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from .program import Agent


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step of an interleaving.

    who   the warp, or "TMA" for what lands
    tile  number of the output tile, k of the k tile, in the warp's own count
    text  what it does, and what comes of it
    """

    who: str
    tile: int
    k: int
    text: str

    def __str__(self) -> str:
        return f"{self.who:<22} k={self.k:<3} {self.text}"


def warps_text(warps: list[str]) -> str:
    """Numbers of warps as one reads them.

    >>> warps_text(["2", "0", "1"]), warps_text(["3", "0"]), warps_text(["1"])
    ('warps 0-2', 'warps 0, 3', 'warp 1')
    """
    numbers = sorted(int(warp) for warp in warps)
    if len(numbers) == 1:
        return f"warp {numbers[0]}"
    if numbers == list(range(numbers[0], numbers[-1] + 1)):
        return f"warps {numbers[0]}-{numbers[-1]}"
    return "warps " + ", ".join(map(str, numbers))


@dataclass
class Event:
    """A step, and the numbers of the steps it comes right after."""

    agent: int
    k: int
    tile: int
    text: str
    behind: tuple[int, ...]


class Trace:
    """Collects the events of a run. Barriers are numbered as in the machine."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.last: dict[int, int] = {}
        self.waiting: dict[int, list[int]] = {}  # warp -> events that its next step comes after
        self.records: dict[int, int] = {}  # slot -> event that wrote it
        self.arrived: dict[int, list[int]] = {}  # mbarrier -> events counted in its current phase
        self.completions: dict[tuple[int, int], tuple[int, ...]] = {}
        self.texts: dict[tuple[int, int], str] = {}
        self.landed: dict[tuple[int, int], list[tuple[int, str]]] = {}  # (mbarrier, phase) -> bytes and who sent them
        self.named: dict[int, list[int]] = {}
        self.cluster: list[int] = []
        self.cluster_done: list[int] = []

    def step(self, agent: int, k: int, tile: int, text: str, behind: tuple[int, ...] = ()) -> int:
        """A warp's next step; its number."""
        before = [*behind, *self.waiting.pop(agent, ())]
        if agent in self.last:
            before.append(self.last[agent])
        self.events.append(Event(agent, k, tile, text, tuple(before)))
        self.last[agent] = len(self.events) - 1
        return self.last[agent]

    def landing(self, issue: int, text: str) -> int:
        """An asynchronous operation after its issue, in no warp's program order; its number."""
        source = self.events[issue]
        self.events.append(Event(-1, source.k, source.tile, text, (issue,)))
        return len(self.events) - 1

    def after(self, agent: int, events: list[int]) -> None:
        """The warp's next step comes after these as well."""
        self.waiting.setdefault(agent, []).extend(events)

    def complete(self, number: int, phase: int, text: str) -> None:
        """A phase of an mbarrier is over, by the events counted in it."""
        events = tuple(self.arrived.pop(number, ()))
        self.completions[(number, phase)] = events
        self.texts[(number, phase)] = text

    def completion(self, number: int, phase: int) -> tuple[int, ...]:
        """The events that completed a phase."""
        return self.completions.get((number, phase), ())

    def story(self, seeds: list[int], agents: tuple[Agent, ...]) -> tuple[TraceStep, ...]:
        """The given events and all that must come before them, in a possible order.

        Warps of a role that do the same in neighbouring steps make one step.
        """
        wanted: set[int] = set()
        todo = list(seeds)
        while todo:
            if (number := todo.pop()) not in wanted:
                wanted.add(number)
                todo += self.events[number].behind
        notes: dict[int, str] = {}
        order = self._order(wanted, agents)
        rank = {event: i for i, event in enumerate(order)}
        for phase, events in self.completions.items():
            if events and all(event in rank for event in events):
                notes[max(events, key=rank.__getitem__)] = self.texts[phase]
        steps: list[TraceStep] = []
        run: list[str] = []
        previous: tuple[object, ...] = ()
        for number in order:
            event = self.events[number]
            note = f"; {notes[number]}" if number in notes else ""
            group, warp = self._who(event, agents)
            if warp and self._same(event, agents) == previous:
                run.append(warp)
                steps[-1] = TraceStep(f"{group} {warps_text(run)}", event.tile, event.k, event.text + note)
                continue
            run = [warp]
            previous = self._same(event, agents)
            steps.append(TraceStep(f"{group} warp {warp}" if warp else group, event.tile, event.k, event.text + note))
        return tuple(steps)

    @staticmethod
    def _who(event: Event, agents: tuple[Agent, ...]) -> tuple[str, str]:
        if event.agent < 0:
            return "TMA", ""
        group, _, warp = agents[event.agent].name.partition(" warp ")
        return group, warp

    def _same(self, event: Event, agents: tuple[Agent, ...]) -> tuple[object, ...]:
        return (self._who(event, agents)[0], event.k, event.tile, event.text)

    def _order(self, wanted: set[int], agents: tuple[Agent, ...]) -> list[int]:
        """A possible order in which warps of a role that do the same stand together."""
        left = {event: sum(b in wanted for b in set(self.events[event].behind)) for event in wanted}
        after: dict[int, list[int]] = {}
        for event in wanted:
            for b in set(self.events[event].behind) & wanted:
                after.setdefault(b, []).append(event)
        ready = sorted(event for event, count in left.items() if not count)
        order: list[int] = []
        while ready:
            alike = self._same(self.events[order[-1]], agents) if order else ()
            event = next((e for e in ready if self._same(self.events[e], agents) == alike), ready[0])
            ready.remove(event)
            order.append(event)
            for later in after.get(event, ()):
                left[later] -= 1
                if not left[later]:
                    insort(ready, later)
        return order
