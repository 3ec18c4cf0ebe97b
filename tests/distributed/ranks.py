"""Emulated ranks of a product of shards: their arrays, their launches and the copy engines between them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from layoutgemm.emulator.devices import DeviceLaunch, Stream, device_launch
from layoutgemm.kernels import Sm90Config, Sm90Plan
from layoutgemm.kernels.epilogue.chain import MAX_WORDS
from layoutgemm.kernels.run.emulated import linked
from layoutgemm.kernels.sm90.shards import RECORD_WORDS, Gathered, Scattered, check_division, signals_of_chunk

POISON = 0x7FC0  # a NaN of bf16


@dataclass
class Ranks:
    """One product of shards on several emulated devices, of small integers with exact sums."""

    plan: Sm90Plan
    ranks: int
    chunks: int
    polls: int = 1 << 30
    target: int = 1
    workers: int = 2
    records: list[np.ndarray] = field(default_factory=list)

    def __post_init__(self) -> None:
        check_division(self.plan, self.ranks, self.chunks)
        plan, rng = self.plan, np.random.default_rng(self.ranks)
        self.chunk_rows = plan.m // (self.ranks * self.chunks)
        self.shard_rows = self.chunks * self.chunk_rows
        gathers = isinstance(plan.shards, Gathered)
        whole = 1 if gathers else self.ranks
        self.a = [rng.integers(-2, 3, (plan.m, plan.k)).astype(np.float32) for _ in range(whole)]
        self.b = [rng.integers(-2, 3, (plan.n, plan.k)).astype(np.float32) for _ in range(self.ranks)]
        self.flags = [np.zeros((self.ranks) * self.chunks, np.uint32) for _ in range(self.ranks)]
        self.counters = [np.zeros(self.ranks * self.chunks, np.uint32) for _ in range(self.ranks)]
        self.records = [np.zeros(RECORD_WORDS, np.uint32) for _ in range(self.ranks)]
        encode = plan.a.dtype.encode
        self.buffers = [np.full((plan.m, plan.k), POISON, np.uint16) for _ in range(self.ranks)]
        for rank, buffer in enumerate(self.buffers):
            own = self.rows(rank) if gathers else slice(0, plan.m)
            buffer[own] = encode(self.a[0 if gathers else rank][own])
        kind = plan.c.dtype.storage
        self.c = [np.full((plan.m, plan.n), -1, np.int64).astype(kind) for _ in range(self.ranks)]
        self.inbox = [np.full((self.ranks - 1, self.shard_rows, plan.n), -1, np.int64).astype(kind)
                      for _ in range(self.ranks)]  # fmt: skip
        self.result = [np.full((self.shard_rows, plan.n), -1, np.int64).astype(kind) for _ in range(self.ranks)]

    def rows(self, rank: int, chunk: int | None = None) -> slice:
        """Rows of a rank's shard, or of one chunk of it."""
        if chunk is None:
            return slice(rank * self.shard_rows, (rank + 1) * self.shard_rows)
        first = rank * self.shard_rows + chunk * self.chunk_rows
        return slice(first, first + self.chunk_rows)

    def launch(self, rank: int) -> DeviceLaunch:
        """A rank's launch."""
        plan = self.plan
        sizes = (plan.m, plan.n, plan.k, 1, plan.k, plan.k, plan.n, 0, 0, 0, self.workers)
        words = [self.flags[rank], self.target, rank, self.chunks, self.chunk_rows, self.polls, self.records[rank]]
        if isinstance(plan.shards, Scattered):
            words += [self.counters[rank], self.inbox[rank], self.result[rank], plan.n]
        encoded = plan.b.dtype.encode(self.b[rank])
        words += [0] * (MAX_WORDS - len(words))
        return device_launch(linked(plan), (self.buffers[rank], encoded, self.c[rank], *sizes, *words))

    def launches(self) -> list[DeviceLaunch]:
        """All ranks' launches."""
        return [self.launch(rank) for rank in range(self.ranks)]

    def streams(self, lost: tuple[int, int] | None = None) -> list[Stream]:
        """Each rank's side stream; lost: (rank, flag) of a flag that is never written."""
        make = self._pulls if isinstance(self.plan.shards, Gathered) else self._pushes
        return [make(rank, lost) for rank in range(self.ranks)]

    def _pulls(self, rank: int, lost: tuple[int, int] | None) -> Stream:
        stream = Stream(f"side stream of rank {rank}")
        for step in range(1, self.ranks):
            peer = (rank + step) % self.ranks
            for chunk in range(self.chunks):
                rows, flag = self.rows(peer, chunk), peer * self.chunks + chunk
                stream.copy(self.buffers[peer][rows], self.buffers[rank][rows])
                if (rank, flag) != lost:
                    stream.write(self.flags[rank], flag, self.target)
        return stream

    def _pushes(self, rank: int, lost: tuple[int, int] | None) -> Stream:
        stream, done = Stream(f"side stream of rank {rank}"), signals_of_chunk(self.plan, self.chunk_rows)
        for step in range(1, self.ranks):
            owner = (rank + step) % self.ranks
            slot = rank - (rank > owner)
            for chunk in range(self.chunks):
                local = slice(chunk * self.chunk_rows, (chunk + 1) * self.chunk_rows)
                stream.wait(self.counters[rank], owner * self.chunks + chunk, done)
                stream.copy(self.c[rank][self.rows(owner, chunk)], self.inbox[owner][slot][local])
                if (owner, slot * self.chunks + chunk) != lost:
                    stream.write(self.flags[owner], slot * self.chunks + chunk, self.target)
        return stream

    def wrong(self) -> list[int]:
        """The ranks whose results are not the exact ones."""
        plan, bad = self.plan, []
        for rank in range(self.ranks):
            if isinstance(plan.shards, Gathered):
                found, want = self.c[rank], self.a[0] @ self.b[rank].T
            else:
                found = self.result[rank]
                want = sum((a @ b.T for a, b in zip(self.a, self.b, strict=True)), np.float32(0))[self.rows(rank)]
            if not np.array_equal(plan.c.dtype.decode(found), plan.c.dtype.decode(plan.c.dtype.encode(want))):
                bad.append(rank)
        return bad


def gathered(m: int, n: int, k: int, **config: object) -> Sm90Plan:
    """A plan of an all-gather product."""
    return Sm90Plan.derive(m, n, k, b="bf16:col", config=Sm90Config(**config), shards=Gathered())


def scattered(m: int, n: int, k: int, c: str = "bf16", **config: object) -> Sm90Plan:
    """A plan of a reduce-scatter product."""
    return Sm90Plan.derive(m, n, k, b="bf16:col", c=c, config=Sm90Config(**config), shards=Scattered())
