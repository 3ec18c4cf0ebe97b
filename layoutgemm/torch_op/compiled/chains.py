"""Kept chains: the launches of one call. Later ones read what earlier ones have written.

    first call    checked; its launches are recorded, and the caller says which tensors each of them has
    later ones    a guard holds for its tensors: an allocation for all that is read and dropped, one for each result

What is dropped lies in one piece of memory, where a tensor takes the place of tensors that no later launch reads.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.autograd.forward_ad as _forward

from ...kernels.plan import rounded_up
from ...kernels.run.capture import first_call
from ..checks import differentiated, launched_alone, modes_of_dispatch, modes_of_functions
from ..launch import APART, NONE_WRITTEN, DirectLaunch, NewResult, NewTensor, ProductCall, Recording, making, recorded
from ..prepared import PREPARED
from .guards import ALIGNED, FIRST_GPU, MAX_READY, Guard, KeptCalls, Key, LastCallsByOptions, LaunchesByAddress, guarded

Tensors = Sequence[torch.Tensor]
Results = tuple["torch.Tensor | None", ...]
Made: TypeAlias = Any  # one tensor, or several and None
Record = Callable[[Made, Any, Tensors], Made]


class Chain(NamedTuple):
    """The launches of one call.

    steps    of each launch its tensors: each is one argument, and no other argument is an address
    results  of the call, with None for one that is not wanted
    """

    steps: Sequence[Tensors]
    results: Results


ALL: list[KeptCalls[LaunchesByAddress[ProductCall]]] = []  # of each function


class ChainCalls:
    """The kept chains of one function.

    kept  by the options of a call, shapes and number of its tensors
    last  guards that held last, by the options and by the id of the tensor that most calls share
    record  makes the result of a kept chain where its derivative is recorded, of it, the options and the tensors. None:
            such a call has no chain
    """

    def __init__(self, record: Record | None = None) -> None:
        self.kept: KeptCalls[LaunchesByAddress[ProductCall]] = KeptCalls()
        self.last = LastCallsByOptions(self.kept.on_clear)
        self.record = record
        ALL.append(self.kept)
        PREPARED.on_clear.append(self.kept.clear)  # the next call of each chooses anew

    def of(self, make: Callable[[], Chain], options: Key, tensors: Tensors) -> Made:
        """The results of a call that records no derivatives. `again`, or what `make` does, kept where it can be."""
        found = self.again(options, tensors)
        if found is not None:
            return found
        alone = launches_alone(tensors) and not differentiated(*tensors)
        results = (self.first(make, options, tensors) if alone else make()).results
        return results if len(results) > 1 else results[0]

    def again(self, options: Key, tensors: Tensors) -> Made:
        """The results of a kept chain, or None without one. One tensor, or several and None.

        options  whatever else of the call decides on its launches.
        tensors  all that the call reads; the second one is the tensor that most calls share.
        """
        try:
            if (made := self.last.again(options, *tensors)) is not None:
                return made
            if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
                return None
            if (found := self._seen(options, tensors)) is None:
                return None
            if (usual := found.kept.get(())) is not None:
                call = self._call(options, found, usual)
                self.last[options, len(tensors)].note(id(tensors[1]), Guard(found.check, found.records, call))
            return self._call(options, found, partial(_at_any, found.kept))(*tensors)
        except (AttributeError, RuntimeError, TypeError):  # no dense tensors, or an option without a hash
            return None

    def _call(self, options: Key, guard: Guard[LaunchesByAddress[ProductCall]], product: ProductCall) -> ProductCall:
        """A kept chain, recorded where a derivative is."""
        if not guard.records:
            return product
        record = self.record

        def call(*tensors: torch.Tensor) -> Made:
            if not torch.is_grad_enabled():
                return product(*tensors)
            made = None if record is None else product(*tensors)
            return None if record is None or made is None else record(made, options, tensors)

        return call

    def _seen(self, options: Key, tensors: Tensors) -> Guard[LaunchesByAddress[ProductCall]] | None:
        short: Key = options, tensors[0].shape, tensors[1].shape, len(tensors)
        return next((guard for guard in self.kept.seen.get(short, ()) if guard[0](*tensors)), None)

    def first(self, make: Callable[[], Chain], options: Key, tensors: Tensors) -> Chain:
        """The call that `make` does, recording no derivatives; kept, if its launches are known."""
        with torch.no_grad(), first_call(), recorded() as record:
            made = make()
            if (call := _call_of(record, tensors, made)) is None:
                return made
        try:
            found = self._seen(options, tensors)
        except TypeError:  # an option without a hash
            return made
        launches: LaunchesByAddress[ProductCall] = LaunchesByAddress() if found is None else found.kept
        if found is None:
            short: Key = options, tensors[0].shape, tensors[1].shape, len(tensors)
            guarded(self.kept.seen, short, tensors, launches, MAX_READY)
        launches.keep([x.data_ptr() for x in tensors], call)
        return made


def launches_alone(tensors: Tensors) -> bool:
    """True for plain tensors of one GPU whose call only autograd may have to see."""
    if torch.compiler.is_compiling():  # an exporter would record the region below, which its programs cannot save
        return False
    with torch.no_grad():
        try:
            index = launched_alone(tensors)
        except RuntimeError:  # no dense tensors
            return False
    return index is not None and index >= FIRST_GPU


def _at_any(launches: LaunchesByAddress[ProductCall], *tensors: torch.Tensor) -> Made:
    """The results of a kept chain for tensors that begin anywhere; None without one."""
    addresses, low = [x.data_ptr() for x in tensors], 0
    for at in addresses:
        low |= at
    kept = launches.at(addresses, low)
    return None if kept is None else kept(*tensors)


def _call_of(record: Recording, tensors: Tensors, made: Chain) -> ProductCall | None:
    """The chain as a function of the call's tensors; None where a launch has another address among its arguments."""
    results = [x for x in made.results if x is not None]
    if len(record.launches) != len(made.steps) or record.memory or record.lists or record.clears:
        return None
    if not all(_is_alone(x) for x in results):
        return None
    inner = _places(made.steps, [*tensors, *results])
    number = {x.data_ptr(): i for i, x in enumerate(tensors)}
    if len(number) < len(tensors):  # another call's may lie apart
        return None
    new = {x.data_ptr(): NewTensor(tuple(x.shape), tuple(x.stride()), x.dtype, None) for x in results}
    launches: list[NewResult] = []
    for one, step in zip(record.launches, made.steps):
        addresses = [x.data_ptr() for x in step]
        arguments = one.arguments
        if len({*addresses}) < len(addresses):
            return None
        if sorted(at for at in arguments if not record.knows(at)) != sorted(addresses):
            return None
        direct = DirectLaunch(one.compiled, arguments, [arguments.index(at) for at in addresses], one.device, one.what)
        places = dict(zip(addresses, direct.places))
        makes = tuple([new.pop(at)._replace(place=place) for at, place in places.items() if at in new])
        reads = {number[at]: place for at, place in places.items() if at in number}
        within = {place: inner.at[at] for at, place in places.items() if at in inner.at}
        if len(makes) + len(reads) + len(within) < len(places):  # a result is read by a later launch
            return None
        launches.append(NewResult(direct, makes, reads, (), within))
    if new:
        return None
    written = {x.data_ptr() for x in results}
    order = [x.data_ptr() for step in made.steps for x in step if x.data_ptr() in written]
    returns = [None if x is None else order.index(x.data_ptr()) for x in made.results]
    given = NONE_WRITTEN._replace(aligned=not any(x.data_ptr() & ALIGNED for x in tensors))
    return making(launches, len(tensors), returns, given, inner.size)


def _is_alone(x: torch.Tensor) -> bool:
    """True for a tensor that is all of its memory."""
    return x.storage_offset() == 0 and x.untyped_storage().nbytes() == x.nbytes


class _Inner(NamedTuple):
    """The tensors that a chain makes and drops. It has where each begins, by its address, and bytes of their memory."""

    at: dict[int, int]
    size: int


def _places(steps: Sequence[Tensors], others: Tensors) -> _Inner:
    """Places for all tensors of the steps but `others`.

    >>> x, values, scales, turned = (torch.ones(size, dtype=torch.uint8) for size in (8, 300, 4, 40))
    >>> found = _places([(x, values), (values, scales), (scales, turned)], [x])
    >>> [found.at[each.data_ptr()] for each in (values, scales, turned)], found.size
    ([0, 512, 0], 768)
    """
    own = {x.data_ptr() for x in others}
    sizes = {x.data_ptr(): x.untyped_storage().nbytes() for step in steps for x in step}
    used: dict[int, tuple[int, int]] = {}  # the first and the last launch
    for number, step in enumerate(steps):
        for x in step:
            if x.data_ptr() not in own:
                used[x.data_ptr()] = used.get(x.data_ptr(), (number, number))[0], number
    placed: dict[int, tuple[int, int]] = {}  # begin and end
    for at, (first, last) in used.items():
        busy = sorted(placed[other] for other in placed if used[other][0] <= last and first <= used[other][1])
        begin, size = 0, rounded_up(sizes[at], APART)
        for low, high in busy:
            if begin + size <= low:
                break
            begin = max(begin, high)
        placed[at] = begin, begin + size
    return _Inner({at: begin for at, (begin, _) in placed.items()}, max((end for _, end in placed.values()), default=0))
