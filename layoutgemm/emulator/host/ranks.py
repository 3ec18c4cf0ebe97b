"""The ranks of a distributed script in one process. Threads that take turns, as processes of `torchrun` would run.

One rank runs at a time, until it waits for others: in a collective operation, or for its kernels. Then the next one
that can go on has the turn. When none can, the kernels that wait are run side by side. So the host's part of a script
runs in the same order each time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from ...errors import EmulatorError


class _Abandoned(BaseException):
    """Ends the thread of a rank after another has failed."""


class Ranks:
    """`count` ranks, of which one has the turn.

    work  runs what the ranks have handed over, when all of them wait; returns False if there is nothing
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self.work: Callable[[], bool] = lambda: False
        self.states: list[dict[str, Any]] = [{} for _ in range(count)]  # of each rank: what its own process would hold
        self.failures: dict[int, BaseException] = {}
        self._turn = 0
        self._changed = threading.Condition()
        self._waiting: dict[int, tuple[str, Callable[[], bool]]] = {}
        self._ended: set[int] = set()
        self._meetings: dict[tuple[str, int], dict[int, Any]] = {}
        self._abandoned = False

    @property
    def current(self) -> int:
        """The rank that has the turn."""
        return self._turn

    @property
    def state(self) -> dict[str, Any]:
        """The current rank's own state."""
        return self.states[self._turn]

    def run(
        self, body: Callable[[int], None], within: Callable[[], AbstractContextManager[object]] = nullcontext
    ) -> None:
        """Run `body(rank)` for each rank, in a context of its own. The first failure is raised at the end."""
        main = sys.modules.get("__main__")
        for rank, state in enumerate(self.states):
            state["main"] = main
            state["environment"] = {
                "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(self.count),
                "LOCAL_WORLD_SIZE": str(self.count), "MASTER_ADDR": "localhost", "MASTER_PORT": "29500",
                "GROUP_RANK": "0",
            }  # fmt: skip

        def thread(rank: int) -> None:
            try:
                self._await(rank)
                with within():
                    body(rank)
            except _Abandoned:
                pass
            except SystemExit as stop:
                if stop.code:
                    self.failures[rank] = stop
            except BaseException as error:
                self.failures[rank] = error
            finally:
                with self._changed:
                    self._ended.add(rank)
                    self._leave(rank)
                    self._pass_on(rank)

        threads = [threading.Thread(target=thread, args=(rank,), daemon=True) for rank in range(self.count)]
        before = dict(os.environ)
        self._enter(0)
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        os.environ.clear()
        os.environ.update(before)
        if main is not None:
            sys.modules["__main__"] = main
        if self.failures:
            raise self.failures[min(self.failures)]

    def together(self, what: str, value: object = None) -> list[Any]:
        """A collective operation. The values of all ranks, in order, when each of them has come to it."""
        turn = self.state.setdefault("collectives", {}).get("number", 0)
        self.state["collectives"]["number"] = turn + 1
        meeting = self._meetings.setdefault((what, turn), {})
        meeting[self.current] = value
        self.wait(what, lambda: len(meeting) == self.count)
        return [meeting[rank] for rank in range(self.count)]

    def wait(self, what: str, ready: Callable[[], bool]) -> None:
        """Give the turn to others until this is so."""
        if ready():
            return
        rank = self._turn
        with self._changed:
            self._waiting[rank] = what, ready
            self._leave(rank)
            self._pass_on(rank)
        self._await(rank)

    # -------------------------------------------------------- turns

    def _await(self, rank: int) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._abandoned or (self._turn == rank and rank not in self._waiting))
            if self._abandoned:
                raise _Abandoned

    def _pass_on(self, rank: int) -> None:
        """Give the turn to the next rank that can go on; run the work that all wait for."""
        while len(self._ended) < self.count:
            if self.failures:
                self._abandon()
                return
            for other in [(rank + n) % self.count for n in range(1, self.count + 1)]:
                if other in self._ended or (other in self._waiting and not self._waiting[other][1]()):
                    continue
                self._waiting.pop(other, None)
                self._turn = other
                self._enter(other)
                self._changed.notify_all()
                return
            try:
                found = self.work()
            except BaseException as error:
                self.failures[rank] = error
                continue
            if not found:
                said = ", ".join(f"rank {one} in {what}" for one, (what, _) in sorted(self._waiting.items()))
                self.failures[rank] = EmulatorError(
                    f"the ranks wait for one another: {said}"
                    + "".join(f"; rank {one} has ended" for one in self._ended)
                )

    def _abandon(self) -> None:
        self._abandoned = True
        self._changed.notify_all()

    def _leave(self, rank: int) -> None:
        """Keep what belongs to the process of a rank."""
        state = self.states[rank]
        state["main"] = sys.modules.get("__main__")
        state["environment"] = {key: os.environ[key] for key in state["environment"] if key in os.environ}

    def _enter(self, rank: int) -> None:
        """Set up what belongs to the process of a rank."""
        state = self.states[rank]
        if state["main"] is not None:
            sys.modules["__main__"] = state["main"]
        os.environ.update(state["environment"])
