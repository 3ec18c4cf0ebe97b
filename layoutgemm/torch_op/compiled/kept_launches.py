"""Kept calls of products with an epilogue, an order, several matrices or scalars. A call's one launch, made again.

A call is recorded while it runs: its launches, and the memory that was allocated for partial results. It is kept if it
was one launch of which every argument is known. An argument is the address of a tensor of the call, of the result or of
that memory, a number of the call, or follows from shapes, strides and types. A call that copied or converted anything
has another address or another count of writes, and is not kept. A new result that was cleared is cleared again.

A guard finds the call again (`guards`). What a guard does not see is checked at each call: addresses have the lowest
bits of the recorded ones, and what is written overlaps nothing else.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ...dtypes import f32
from ...kernels.epilogue.chain import Epilogue, EpilogueOperand
from ...kernels.epilogue.parameters import number_word
from ...kernels.run.capture import first_call
from ..checks import PLAIN, modes_of_dispatch, modes_of_functions, seen_by_autograd_alone, tracing_state
from ..launch import (
    ZEROS,
    DirectLaunch,
    Given,
    NewResult,
    NewTensor,
    ProductCall,
    RecordedLaunch,
    Recording,
    Runs,
    making,
    recorded,
    span,
)
from ..prepared import PREPARED
from ..problem import StridedOperand
from .guards import FIRST_GPU, KeptCalls, Key, LaunchesByAddress, guarded

OWN = ("a", "b", "c")  # a launch's first arguments
MAX_KEPT = 1024


@dataclass(frozen=True, eq=False)
class KeptCall:
    """A launch for tensors of known shapes and strides.

    direct   the launch: it takes the addresses of the tensors, of a new C, of workspaces, then words of numbers
    result   shape, strides and type of a new C; None where the caller gave one, or none is stored
    kind     of an empty result, where no C is stored; else None
    spans    bytes from first to last element, of each tensor
    written  places of those that are written
    numbers  the operands that are numbers
    memory   bytes of each workspace, and what it holds before the launch
    lists    what the launch reads of its plan's own
    clears   whether a new C is cleared first, for what the launch leaves out
    ordered  whether it gives the same bits each time: in torch's deterministic mode no other is made again
    """

    direct: DirectLaunch
    result: tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None
    kind: torch.dtype | None
    spans: tuple[int, ...]
    written: tuple[int, ...]
    numbers: tuple[EpilogueOperand, ...]
    memory: tuple[tuple[int, Runs], ...]
    lists: tuple[torch.Tensor, ...]
    clears: bool = False
    ordered: bool = True

    @cached_property
    def again(self) -> ProductCall:
        """The launch again, for tensors that a guard holds for, then words of numbers.

        Their addresses have the bits of the recorded ones. Into a given C it returns the last tensor.
        """
        count = len(self.spans)
        return self.call(count, (), count - 1 if self.result is None and self.kind is None else None, aligned=False)

    def call(
        self, count: int, beside: Sequence[torch.Tensor], into: int | None, aligned: bool = True
    ) -> ProductCall:  # fmt: skip
        """The launch for `count` tensors and words of numbers: see `launch.making`.

        beside  tensors that are made behind the result: the launch has them behind the call's
        into    which tensor is returned, where there is no new C
        """
        places = iter(self.direct.places)
        reads = {i: next(places) for i in range(count)}
        more = [NewTensor(tuple(x.shape), tuple(x.stride()), x.dtype, next(places)) for x in beside]
        made, returns = [], [0] if self.result is not None else []
        if self.result is not None:
            made.append(NewTensor(*self.result, next(places), ZEROS if self.clears else ()))
        made += more
        returns += range(len(returns), len(made))
        made += [NewTensor((size,), (1,), torch.uint8, next(places), runs) for size, runs in self.memory]
        if self.kind is not None and into is None:  # no C is stored
            returns = [len(made), *returns]
            made.append(NewTensor((0,), (1,), self.kind, None))
        launch = NewResult(self.direct, tuple(made), reads, tuple(places))
        written = tuple([place for place in self.written if place < count])
        given = Given(written, self.spans if written else (), into, self.ordered, aligned)
        return making([launch], count, returns, given)


class LaunchesByBegins(LaunchesByAddress[KeptCall]):
    """The same, and by the tensors that begin where others do. A launch for them is of such calls alone.

    A product of a matrix and its own transpose is another than that of two matrices: a symmetric order is of it alone.

    >>> launches = LaunchesByBegins()
    >>> launches.key_of((32, 64), False), launches.key_of((32, 32, 64), False), launches.key_of((36, 36), True)
    ((), (0, 0, 2), (4, 4, 0, 0))
    """

    def key_of(self, addresses: Sequence[int], odd: bool) -> tuple[int, ...]:
        """The bits of addresses; where one repeats, the first tensor with each behind them."""
        bits = super().key_of(addresses, odd)
        return bits if len({*addresses}) == len(addresses) else (*bits, *map([*addresses].index, addresses))


KEPT: KeptCalls[LaunchesByBegins] = KeptCalls()
PREPARED.on_clear.append(KEPT.clear)  # the next call of each chooses anew


class Extras(NamedTuple):
    """The parts of a call beside the tensors that it reads.

    written   tensors that it writes besides its result, by the names of the kernel's parameters
    numbers   the operands that are numbers, whose values are in `given`
    stores_c  whether the result has elements
    """

    written: Mapping[str, torch.Tensor] = MappingProxyType({})
    numbers: tuple[EpilogueOperand, ...] = ()
    given: Mapping[str, Any] = MappingProxyType({})
    stores_c: bool = True


NO_EXTRAS = Extras()


class Served(NamedTuple):
    """A kept call that was made again.

    tensors  in the order of the launch: a new C is not among them
    """

    kept: KeptCall
    tensors: Sequence[torch.Tensor]
    result: torch.Tensor


class _Served(threading.local):
    """The innermost list in which this thread's served calls are noted."""

    now: list[Served] | None = None


_SERVED = _Served()


@contextmanager
def served() -> Iterator[list[Served]]:
    """The kept calls that this thread makes again inside."""
    found: list[Served] = []
    before, _SERVED.now = _SERVED.now, found
    try:
        yield found
    finally:
        _SERVED.now = before


def note_served(make: Callable[[], Served | None]) -> None:
    """Say that a kept call was made again, where a caller asks."""
    if _SERVED.now is not None and (call := make()) is not None:
        _SERVED.now.append(call)


def epilogue_again_or(
    make: Callable[[], torch.Tensor], options: Key, tensors: Mapping[str, torch.Tensor | None], epilogue: object,
    given: Mapping[str, object] | None, out: torch.Tensor | None, numbers: Mapping[str, float] | None = None,
) -> torch.Tensor:  # fmt: skip
    """`again_or` of a product with an epilogue; `given` holds the epilogue's operands.

    numbers  of a function of several products, by name
    """
    if type(epilogue) is not Epilogue or type(given) is not dict or len(given) != len(epilogue.given):
        return make()
    try:
        read = {**tensors, **{name: given[name] for name in epilogue.reads}}
        written = {name: given[name] for name in epilogue.writes}
    except KeyError:  # `make` names it
        return make()
    more = numbers or {}
    words = (*epilogue.numbers, *[EpilogueOperand(name, "", f32, host=True) for name in more])
    extras = Extras(written, words, {**given, **more}, epilogue.stores_c)
    return again_or(make, (options, epilogue), read, out, extras)


def again_or(
    make: Callable[[], torch.Tensor], options: Key, read: Mapping[str, torch.Tensor | None], out: torch.Tensor | None,
    extras: Extras = NO_EXTRAS,
) -> torch.Tensor:  # fmt: skip
    """The result of a kept call for such operands, or what `make` computes.

    That call is kept if it can be.

    options  the product's name, and whatever else of the call decides on its kernel
    read     tensors by the names of the kernel's parameters, A and B first; None for what is not given
    """
    if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0 or tracing_state() is not None:
        return make()
    own = {name: x for name, x in read.items() if x is not None}
    try:
        every = [*own.values(), *extras.written.values()]
        if every[0].get_device() < FIRST_GPU:
            return make()
        if out is not None:
            every.append(out)
        short: Key = (options, every[0].shape, every[1].shape, tuple(own), out is None)
        values, low = [x.data_ptr() for x in every], 0
        for at in values:
            low |= at
        launches: LaunchesByBegins | None = None
        for guard in KEPT.seen.get(short, ()):
            if guard.holds(every):
                launches = guard.kept
                if (kept := launches.at(values, low)) is not None:
                    words = [number_word(operand, extras.given[operand.name]) for operand in kept.numbers]
                    found = kept.again(*every, *words)
                    if found is None:
                        return make()
                    note_served(partial(Served, kept, every, found))
                    return found
                break
        if any(type(x) not in PLAIN for x in every) or not seen_by_autograd_alone():
            return make()  # subclasses, transforms, autocast: the call may launch for other tensors
        call = _RecordedCall(own, extras, out, every)
    except (AttributeError, KeyError, RuntimeError, TypeError):
        return make()  # no dense tensors, a number that is missing, or a configuration without a hash
    with first_call(), recorded() as record:
        c = make()
    kept = call.kept(record, c)
    if kept is not None and launches is None:
        guarded(KEPT.seen, short, every, launches := LaunchesByBegins(), MAX_KEPT)
    if kept is not None and launches is not None:
        launches.keep(values, kept)
    return c


class _RecordedCall:
    """A call that is recorded: its tensors, and how often each has been written before.

    own       what is read by name, A and B first
    tensors   these, then what is written, then `out`
    """

    def __init__(
        self, own: Mapping[str, torch.Tensor], extras: Extras, out: torch.Tensor | None, tensors: Sequence[torch.Tensor]
    ):
        self.own, self.extras, self.out, self.tensors = own, extras, out, tensors
        self.written = tuple(range(len(own), len(tensors)))
        # Tensors of inference mode count no writes.
        self.versions = [None if x.is_inference() else x._version for x in tensors]

    def kept(self, record: Recording, c: torch.Tensor) -> KeptCall | None:
        """The call, or None for one that was more than a launch of known arguments. `c`: its result."""
        new = self.out is None and self.extras.stores_c
        if len(record.launches) != 1 or not self.written_once():
            return None
        made, target = record.launches[0], c if new else self.out
        if target is not None and not (target.is_contiguous() or target is self.out):
            return None
        if target is not None and not _as_launched(record, target):
            return None
        places = self.places(made, record, target)
        if places is None:
            return None
        numbers = self.extras.numbers
        workspaces = [place for place, value in enumerate(made.arguments) if value in record.memory]
        order = [places[name] for name in (*self.own, *self.extras.written, *(["c"] if target is not None else []))]
        order += [*workspaces, *[made.names.index(operand.name, len(OWN)) for operand in numbers]]
        direct = DirectLaunch(made.compiled, made.arguments, order, made.device, made.what)
        result = (tuple(c.shape), tuple(c.stride()), c.dtype) if new else None
        kind = None if self.extras.stores_c else c.dtype
        addresses = [made.arguments[place] for place in workspaces]
        memory = tuple([(record.memory[at], record.first[at]) for at in addresses])
        spans, lists = tuple(map(_span, self.tensors)), tuple(record.lists.values())
        clears, epilogue = new and record.clears, getattr(made.compiled.plan, "epilogue", None)
        unordered = isinstance(epilogue, Epilogue) and bool(epilogue.unordered_sums)
        return KeptCall(direct, result, kind, spans, self.written, numbers, memory, lists, clears, not unordered)

    def written_once(self) -> bool:
        """True if the call wrote once what it writes, and nothing else."""
        now = [None if before is None else x._version - before for x, before in zip(self.tensors, self.versions)]
        return all(count is None or count == (place in self.written) for place, count in enumerate(now))

    def places(self, made: RecordedLaunch, record: Recording, target: torch.Tensor | None) -> dict[str, int] | None:
        """The argument that is each tensor's address, by name. Returns None if one has none, or an argument is
        not known.

        target  C, or None where none is stored
        """
        a, b, *others = self.own.items()
        known = {**dict(others), **self.extras.written}
        numbers = [operand.name for operand in self.extras.numbers]
        addresses: dict[int, list[str]] = {}
        for name, x in (a, b):  # two at one address are so in each call of this launch: see `LaunchesByBegins`
            addresses.setdefault(x.data_ptr(), []).append(name)
        found: dict[str, int] = {}
        for place, (name, value) in enumerate(zip(made.names, made.arguments)):
            if place < 2 and addresses.get(value):  # of a transposed product A is the call's b
                found[addresses[value].pop(0)] = place
            elif place == 2 and target is not None and value == target.data_ptr():
                found["c"] = place
            elif place >= len(OWN) and name in known and value == known[name].data_ptr():
                found[name] = place
            elif name not in numbers and not record.knows(value):
                return None
        wanted = {*self.own, *self.extras.written, *(["c"] if target is not None else [])}
        return found if found.keys() == wanted else None


def _as_launched(record: Recording, c: torch.Tensor) -> bool:
    """True if a result is what the launch wrote, and nothing wrote to it since."""
    found = [version for x, version in record.targets if x.data_ptr() == c.data_ptr()]
    return len(found) == 1 and (found[0] is None or found[0] == c._version)


def _span(x: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last."""
    return span(StridedOperand(tuple(x.shape), tuple(x.stride()), "u8")) * x.element_size()


__all__ = ["FIRST_GPU", "KEPT", "Extras", "KeptCall", "again_or", "epilogue_again_or"]
