"""The Ampere kernel's loop as a pipeline, proven for any number of k tiles.

It loads by cp.async, or by tensor copies.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...checks import Buffer, Cursor, Mbarrier, NamedBarrier, Pipeline, Role
from ...checks.pipeline.actions import (
    Advance,
    Ahead,
    ArriveExpect,
    Commit,
    CpAsync,
    ForK,
    If,
    Program,
    Read,
    Sync,
    TmaLoad,
    Wait,
    WaitGroup,
    Write,
)
from ...checks.pipeline.model import CTA
from ...checks.pipeline.patterns import start


def prefetching(stages: int, warps: int, ahead: bool = True, persistent: bool = False) -> Pipeline:
    """The kernel's loop. Copies stages - 1 k tiles ahead, fragments one depth ahead, also into the next k tile, or not.

    A persistent kernel's k tiles are those of all its tiles, one after another, and C's buffers are no matter of the
    ring. Of the zeros beyond the last k tile the kernel takes fragments, too, which it does not multiply; the model
    does not.

    >>> bool(prefetching(3, 4).prove())
    True
    """

    def copy(distance: int, at: str | int) -> Program:
        """A k tile that is not there is copied as zeros."""
        return (If(Ahead(distance), (CpAsync("ab", at),), (CpAsync("ab", at, new=False),)), Commit("cp.async"))

    meet: Program = (WaitGroup("cp.async", stages - 2), Sync(CTA))
    first: Program = (Read("ab", "read", last=False),)
    fill = tuple(action for s in range(stages - 1) for action in copy(s, s))
    body: Program = (
        Read("ab", "read"), *copy(stages - 1, "load"), *meet, Advance("read"), Advance("load"), If(Ahead(1), first),
    )  # fmt: skip
    store: Program = (WaitGroup("cp.async", 0), Sync(CTA), *(Write("ab", s, new=False) for s in range(stages)))
    if persistent:
        store = store[:1]
    program: Program = (*fill, *meet, If(Ahead(0), first), ForK(body), *store)
    if not ahead:
        body = (*meet, Read("ab", "read"), *copy(stages - 1, "load"), Advance("read"), Advance("load"))
        program = (*fill, ForK(body), *store)
    cursors = (Cursor("read", stages), Cursor("load", stages, index=stages - 1))
    return Pipeline(
        f"cp.async, {stages} stages{', fragments ahead' if ahead else ''}",
        (Role("math", warps, program, cursors),),
        (NamedBarrier(CTA, 32 * warps),),
        (Buffer("ab", stages),),
        arch="sm_80",
    )


def tensor_ring(stages: int, warps: int, bytes_: int, lands: int | None = None, ahead: bool = True) -> Pipeline:
    """The same loop fed by TMA loads, issued by one thread behind the CTA's barrier.

    bytes_   that an mbarrier expects;   lands   that the copies bring, by default as many

    >>> bool(tensor_ring(3, 4, 16384).prove())
    True
    """

    def load(distance: int, at: str | int) -> Program:
        return (If(Ahead(distance), (ArriveExpect("full", at), TmaLoad("ab", at, "full", lands))),)

    first: Program = (Read("ab", "read", last=False),)
    fill = tuple(action for s in range(stages - 1) for action in load(s, s))
    body: Program = (
        *load(stages - 1, "load"), Read("ab", "read"), Advance("read"), Advance("load"),
        If(Ahead(1), (Wait("full", "read"),)), Sync(CTA), If(Ahead(1), first),
    )  # fmt: skip
    store: Program = (Sync(CTA), *(Write("ab", s, new=False) for s in range(stages)))
    begin: Program = (*start(True), *fill, If(Ahead(0), (Wait("full", "read"), *first)))
    if not ahead:
        body = (
            Wait("full", "read"), Sync(CTA), *load(stages - 1, "load"), Read("ab", "read"), Advance("read"),
            Advance("load"),
        )  # fmt: skip
        begin = (*start(True), *fill)
    cursors = (Cursor("read", stages), Cursor("load", stages, index=stages - 1))
    return Pipeline(
        f"tensor copies, {stages} stages",
        (Role("math", warps, (*begin, ForK(body), *store), cursors),),
        (Mbarrier("full", 1, stages, bytes_), NamedBarrier(CTA, 32 * warps)),
        (Buffer("ab", stages),),
    )


@lru_cache(maxsize=64)
def proven(stages: int, warps: int, ahead: bool, persistent: bool, bytes_: int, lands: int) -> Any:
    """A pipeline's proof: many plans have the same pipeline."""
    by_copies = tensor_ring(stages, warps, bytes_, lands, ahead) if bytes_ else None
    return (by_copies or prefetching(stages, warps, ahead, persistent)).prove()
