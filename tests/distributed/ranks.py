"""Emulated ranks of a product of shards: their arrays, their launches and the copy engines between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from layoutgemm.emulator.devices import DeviceLaunch, Stream, device_launch
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import MAX_WORDS, Epilogue
from layoutgemm.kernels.epilogue.steps import VectorScale
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm90.shards import (
    RECORD_WORDS,
    Gathered,
    Patience,
    Scattered,
    check_division,
    crosses_shards,
    room_bytes,
    signals_of_chunk,
)

POISON = 0x7FC0  # a NaN of bf16


@dataclass
class Ranks:
    """One product of shards on several emulated devices, of small integers with exact sums.

    copies  partial sums of a scatter go to their owners by copy engines, and not by the kernels' stores
    calls   launches of a scatter, this one counted
    """

    plan: Sm90Plan
    ranks: int
    chunks: int
    patience: Patience = Patience(1 << 30, 0)
    target: int | None = None
    workers: int = 2
    copies: bool = False
    calls: int = 1
    records: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_division(self.plan, self.ranks, self.chunks)
        plan, rng, ranks = self.plan, np.random.default_rng(self.ranks), range(self.ranks)
        self.shard_rows = plan.m // self.ranks
        gathers = isinstance(plan.shards, Gathered)
        whole = 1 if gathers else self.ranks
        self.a = [rng.integers(-2, 3, (plan.m, plan.k)).astype(np.float32) for _ in range(whole)]
        self.b = [rng.integers(-2, 3, (plan.n, plan.k)).astype(np.float32) for _ in ranks]
        self.records = [np.zeros(RECORD_WORDS, np.uint32) for _ in ranks]
        self.buffers = [np.full((plan.m, plan.k), POISON, np.uint16).astype(plan.a.dtype.storage) for _ in ranks]
        if gathers:  # own rows lie elsewhere; in the gathered matrix where a tile has rows of two shards
            self.own = [plan.a.dtype.encode(self.a[0][self.rows(rank)]) for rank in ranks]
        for rank, buffer in enumerate(self.buffers):
            if not gathers:
                buffer[:] = plan.a.dtype.encode(self.a[rank])
            elif crosses_shards(plan, self.ranks):
                buffer[self.rows(rank)] = self.own[rank]
        self.weights = [plan.b.dtype.encode(b) for b in self.b]
        rows = plan.m if gathers else self.shard_rows
        self.c = [np.full((rows, plan.n), -1, np.int64).astype(plan.c.dtype.storage) for _ in ranks]
        rows = [np.exp2(rng.integers(-1, 2, plan.m)).astype(np.float32) for _ in ranks]
        self.factors = [
            (rows[0 if gathers else rank], np.exp2(rng.integers(-1, 2, plan.n)).astype(np.float32)) for rank in ranks
        ]
        before = 0
        if not gathers:
            self.done = signals_of_chunk(plan, self.ranks, self.chunks)
            self.target = self.target if self.target is not None else 1 if self.copies else self.done
            before = (self.calls - 1) * self.target
            self._rooms()
        self.target = 1 if self.target is None else self.target
        self.flags = [np.full(self.ranks * self.chunks + self.ranks, before, np.uint32) for _ in ranks]
        if not gathers:
            for flags in self.flags:
                flags[self.begun] = (1 << 30) if self.copies else self.calls - 1

    @property
    def begun(self) -> int:
        """The flag that says that the rank before has begun."""
        return (self.ranks - 1) * self.chunks

    def _rooms(self) -> None:
        """Rooms of sums that come, and of sums for the copy engines."""
        size, ranks = room_bytes(self.plan, self.ranks), range(self.ranks)
        self.inbox, self.staging = ([np.full((self.ranks - 1, size), 0xFF, np.uint8) for _ in ranks] for _ in range(2))
        self.counters = [np.zeros((self.ranks - 1) * self.chunks, np.uint32) for _ in ranks]
        self.numbers = [np.array([self.calls], np.uint32) for _ in ranks]
        self.nobody = np.zeros(1, np.uint32)

    def _goes_on(self, rank: int) -> list[np.ndarray]:
        """Rooms and counters of sums that go on; the word that tells of a start."""
        if self.copies:
            return [self.staging[rank], self.counters[rank], self.nobody]
        to = (rank - 1) % self.ranks
        return [self.inbox[to], self.flags[to], self.flags[(rank + 1) % self.ranks][self.begun :]]

    def rows(self, rank: int, chunk: int | None = None) -> slice:
        """Rows of a rank's shard, or of one chunk of it."""
        if chunk is None:
            return slice(rank * self.shard_rows, (rank + 1) * self.shard_rows)
        rows = self.shard_rows // self.chunks
        return slice(rank * self.shard_rows + chunk * rows, rank * self.shard_rows + (chunk + 1) * rows)

    def launch(self, rank: int) -> DeviceLaunch:
        """A rank's launch."""
        plan = self.plan
        sizes = (plan.m, plan.n, plan.k, 1, plan.k, plan.k, plan.n, 0, 0, 0, self.workers)
        words: list[object] = [*self.scale_words(rank), self.flags[rank], self.target, rank, self.ranks, self.chunks]
        words += [self.patience.word, self.records[rank]]
        if isinstance(plan.shards, Scattered):
            words += [self.numbers[rank], *self._goes_on(rank), self.inbox[rank]]
        else:
            words.append(self.own[rank])
        words += [0] * (MAX_WORDS - len(words))
        return device_launch(linked(plan), (self.buffers[rank], self.weights[rank], self.c[rank], *sizes, *words))

    def scale_words(self, rank: int) -> list[object]:
        """The words of the epilogue's factors."""
        if not self.plan.epilogue:
            return []
        return [word for factors in self.factors[rank] for word in (factors, len(factors))]

    def launches(self) -> list[DeviceLaunch]:
        """All ranks' launches."""
        return [self.launch(rank) for rank in range(self.ranks)]

    def streams(self, lost: tuple[int, int] | None = None) -> list[Stream]:
        """Each rank's side stream; lost: (rank, flag) of a flag that is never written."""
        if isinstance(self.plan.shards, Scattered) and not self.copies:
            return []
        make = self._rows_sent if isinstance(self.plan.shards, Gathered) else self._sums_sent
        return [make(rank, lost) for rank in range(self.ranks)]

    def _rows_sent(self, rank: int, lost: tuple[int, int] | None) -> Stream:
        stream, rows = Stream(f"side stream of rank {rank}"), self.shard_rows // self.chunks
        to = (rank - 1) % self.ranks
        for distance in range(self.ranks - 1):
            shard = (rank + distance) % self.ranks
            for chunk in range(self.chunks):
                flag, place = shard * self.chunks + chunk, self.rows(shard, chunk)
                if distance:
                    stream.wait(self.flags[rank], flag, self.target)
                rows_of = self.buffers[rank][place] if distance else self.own[rank][chunk * rows : (chunk + 1) * rows]
                stream.copy(rows_of, self.buffers[to][place])
                if (to, flag) != lost:
                    stream.write(self.flags[to], flag, self.target)
        return stream

    def _sums_sent(self, rank: int, lost: tuple[int, int] | None) -> Stream:
        stream = Stream(f"side stream of rank {rank}")
        step, to = room_bytes(self.plan, self.ranks) // self.chunks, (rank - 1) % self.ranks
        for number in range((self.ranks - 1) * self.chunks):
            place = number // self.chunks, slice(number % self.chunks * step, (number % self.chunks + 1) * step)
            stream.wait(self.counters[rank], number, self.done)
            stream.copy(self.staging[rank][place], self.inbox[to][place])
            if (to, number) != lost:
                stream.write(self.flags[to], number, self.target)
        return stream

    def product(self, rank: int) -> np.ndarray:
        """A rank's own product, scaled."""
        sums = self.a[rank % len(self.a)] @ self.b[rank].T
        rows, columns = self.factors[rank]
        return sums * rows[:, None] * columns if self.plan.epilogue else sums

    def wrong(self) -> list[int]:
        """The ranks whose results are not the exact ones."""
        plan, bad = self.plan, []
        for rank in range(self.ranks):
            if isinstance(plan.shards, Gathered):
                found, want = self.c[rank], self.product(rank)
            else:
                found = self.c[rank]
                want = sum((self.product(r) for r in range(self.ranks)), np.float32(0))[self.rows(rank)]
            if not np.array_equal(plan.c.dtype.decode(found), plan.c.dtype.decode(plan.c.dtype.encode(want))):
                bad.append(rank)
        return bad


def gathered(m: int, n: int, k: int, **config: object) -> Sm90Plan:
    """A plan of an all-gather product."""
    return Sm90Plan.derive(m, n, k, b="bf16:col", config=Sm90Config(**config), shards=Gathered())


def scaled(shards: Gathered | Scattered, m: int, n: int, k: int, **config: object) -> Sm90Plan:
    """A plan of shards of 8 bits, with a factor for each row and column."""
    steps = VectorScale("m", "f32", "scale_a"), VectorScale("n", "f32", "scale_b")
    kinds = {"a": "e4m3", "b": "e4m3:col", "c": "bf16"}
    return Sm90Plan.derive(m, n, k, **kinds, config=Sm90Config(**config), epilogue=Epilogue(*steps), shards=shards)


def scattered(m: int, n: int, k: int, c: str = "bf16", **config: object) -> Sm90Plan:
    """A plan of a reduce-scatter product."""
    return Sm90Plan.derive(m, n, k, b="bf16:col", c=c, config=Sm90Config(**config), shards=Scattered())
