"""Guards of kept calls. One call in C says that tensors are as those of an earlier call.

torch's compiler guards its code by the same class: classes of the tensors, dispatch keys (devices, layouts, autocast,
functorch and Python modes, negation), types, shapes, strides, and whether each requires a gradient. Tensors of one call
are different objects. A torch without the class guards nothing, and calls are found by their longer keys.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

import torch
import torch.autograd.forward_ad as _forward

from . import c_calls
from .c_calls import Call, modes_of_dispatch, modes_of_functions

FIRST_GPU = 0  # of the indices of devices; below are CPUs, whose calls are no launches
MAX_READY = 4096  # kept calls; beyond, all go
ALIGNED = 15  # bits that are 0 in an address that TMA or a bulk copy reads, or stores to
# Addresses are larger, sizes and numbers smaller. A tensor of a freed storage has its offset for an address.
LEAST_ADDRESS = 1 << 32

Key = tuple[object, ...]
T = TypeVar("T")
MAX_GUARDS = 4  # of one key: calls that differ in strides, types or classes alone
MAX_CHANGES = 16  # of calls with one tensor; beyond, the last one is not looked for first
MAX_PLACES = 64  # of one call: launches for tensors that begin elsewhere; beyond, all go
_class = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "TensorGuards", None)
_grad_enabled = torch.is_grad_enabled


class Guard(NamedTuple, Generic[T]):
    """A kept call.

    check    whether tensors are as those of the call
    records  whether one of them requires a gradient: the call was made where none is recorded
    kept     whatever was kept of it
    """

    check: Callable[..., bool]
    records: bool
    kept: T

    def holds(self, tensors: Sequence[torch.Tensor]) -> bool:
        """True for tensors like those of the call, if no derivative is recorded."""
        return self.check(*tensors) and not (self.records and _grad_enabled())


class KeptCalls(dict[Key, T]):
    """Kept calls by their keys; `seen` has guards of repeated calls, by shorter keys.

    on_clear  called when all are dropped: what is made of these calls goes with them
    """

    def __init__(self) -> None:
        super().__init__()
        self.seen: dict[Key, list[Guard[T]]] = {}
        self.on_clear: list[Callable[[], None]] = []

    def clear(self) -> None:
        """Drop all, guards too."""
        super().clear()
        self.seen.clear()
        for also in self.on_clear:
            also()


class LastCalls(dict[int, "Guard[Call] | None"]):
    """Guards that held last, by the id of a tensor that most calls share. A weight, or its scales.

    A key of shapes takes a tenth of a repeated call's instructions, and an id almost none. It is a place to look first,
    never a proof: the guard is asked all the same. So an id may come to be another tensor's. None is of a tensor whose
    calls change too often, as of views that are made anew for each.

    key    the place of that tensor in the call
    order  the place in the call of each tensor that the guard and the kept call take
    on_clear  of calls with which these go

    >>> last = LastCalls(0, (1, 0))
    >>> last.note(id(3), Guard(lambda x, y: x > y, False, lambda x, y: x - y))
    >>> last.again(3, 5), last.again(3, 2), last.again(4, 5)
    (2, None, None)
    >>> for _ in range(MAX_CHANGES):
    ...     last.note(id(3), Guard(bool, False, bool))
    >>> [*last.values()]
    [None]
    """

    def __init__(self, key: int, order: Sequence[int], on_clear: list[Callable[[], None]] | None = None) -> None:
        super().__init__()
        self._changes: dict[int, int] = {}
        self.key, self.order = key, tuple(order)
        self.places = c_calls.Places(self, key, order)
        self.address = self.places.address
        if on_clear is not None:
            on_clear.append(self.clear)

    def note(self, at: int, guard: Guard[Call]) -> None:
        """Keep a guard that held for a call with a tensor of this id. Its `kept` does the call again."""
        if at in self and self[at] is None:
            return
        if len(self) >= MAX_READY:
            self.clear()
        if "again" not in vars(self) and (found := c_calls.again(self, self.places)) is not None:
            self.again = found  # type: ignore[method-assign]
        changes = self._changes[at] = self._changes.get(at, 0) + 1
        self[at] = guard if changes <= MAX_CHANGES else None

    def again(self, *tensors: torch.Tensor) -> torch.Tensor | None:
        """Do the last call of the tensor at `key` again. None if a mode or its guard says no.

        C does it where there is a compiler: `c_calls.again`.
        """
        if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
            return None
        found = self.get(id(tensors[self.key])) if len(tensors) == len(self.order) else None
        given = [tensors[place] for place in self.order] if found is not None else []
        made: torch.Tensor | None = found.kept(*given) if found is not None and found.check(*given) else None
        return made

    def clear(self) -> None:
        """Drop all."""
        super().clear()
        self._changes.clear()


class LastCallsByOptions(dict[tuple[Key, int], LastCalls]):
    """The last calls of each options and number of tensors, by the second one's id.

    on_clear  of calls with which these go

    >>> last = LastCallsByOptions([])
    >>> last["relu", 2].note(id(7), Guard(lambda *x: True, False, max))
    >>> last.again("relu", 3, 7), last.again("silu", 3, 7), last.again("relu", 3, 7, 8)
    (7, None, None)
    """

    def __init__(self, on_clear: list[Callable[[], None]]) -> None:
        super().__init__()
        on_clear.append(self.clear)

    def __missing__(self, of: tuple[Key, int]) -> LastCalls:
        if "again" not in vars(self) and (found := c_calls.by_options(self)) is not None:
            self.again = found  # type: ignore[method-assign]
        return self.setdefault(of, LastCalls(1, range(of[1])))

    def again(self, options: Key, *tensors: torch.Tensor) -> torch.Tensor | None:
        """As `LastCalls.again`, of these options. None too for one without a hash, and without dense tensors."""
        try:
            last = self.get((options, len(tensors)))
            return None if last is None else last.again(*tensors)
        except c_calls.NO_TENSORS:
            return None


class LaunchesByAddress(dict[tuple[int, ...], T]):
    """Launches of one call, by the lowest bits of its tensors' addresses.

    Copies and the widths of a kernel's reads follow from those bits. So a launch serves addresses that have its own
    bits, and calls whose tensors begin now here, now there find each their own.

    >>> launches = LaunchesByAddress()
    >>> launches.keep((LEAST_ADDRESS, LEAST_ADDRESS + 512), "in pairs")
    >>> launches.keep((LEAST_ADDRESS, LEAST_ADDRESS + 514), "one by one")
    >>> even, odd = LEAST_ADDRESS + 768, LEAST_ADDRESS + 770
    >>> launches.at((even, even), even), launches.at((even, odd), even | odd), launches.at((odd, odd), odd)
    ('in pairs', 'one by one', None)
    >>> launches.at((even, 768), even | 768)
    """

    def at(self, addresses: Sequence[int], together: int) -> T | None:
        """The launch for these addresses, or None. `together` has every bit of them.

        None also for a tensor whose storage was freed, as a sharded parameter's may be.
        """
        if min(addresses) < LEAST_ADDRESS:
            return None
        return self.get(self.key_of(addresses, bool(together & ALIGNED)))

    def keep(self, addresses: Sequence[int], launch: T) -> None:
        """Keep a launch for such addresses."""
        if len(self) >= MAX_PLACES:
            self.clear()
        self[self.key_of(addresses, any(at & ALIGNED for at in addresses))] = launch

    def key_of(self, addresses: Sequence[int], odd: bool) -> tuple[int, ...]:
        """The bits that tell addresses from multiples of 16, where one is `odd`; else ()."""
        return tuple([at & ALIGNED for at in addresses]) if odd else ()


def guarded(seen: dict[Key, list[Guard[T]]], key: Key, tensors: Sequence[torch.Tensor], kept: T, most: int) -> None:
    """Guard a call that was found by its longer key: `key` is the shorter one.

    most  keys in `seen`; beyond, all go

    >>> seen, x, y = {}, torch.ones(2), torch.ones(3)
    >>> guarded(seen, ("a call",), [x, y], "kept", 8)
    >>> [guard.holds([z, y]) for guard in seen[("a call",)] for z in (x.clone(), x[:1], x.double(), x.view(1, 2))]
    [True, False, False, False]
    >>> guarded(seen, ("another",), [x, x], "kept", 8)
    >>> [guard.holds(pair) for guard in seen[("another",)] for pair in ((y[:2], y[:2]), (x, x))]
    [False, True]
    """
    found = seen.get(key)
    if found is not None and not 0 < len(found) < MAX_GUARDS:
        return
    check = check_of(tensors)
    if check is None:  # no call of this key is guarded
        if _class is not None:
            seen.setdefault(key, [])
        return
    if len(seen) >= most:
        seen.clear()
    seen.setdefault(key, []).append(Guard(check, any(x.requires_grad for x in tensors), kept))


def check_of(tensors: Sequence[torch.Tensor], begins: bool = False) -> Callable[..., bool] | None:
    """The check that tensors are as these. None where torch has no class for it, or it does not hold for them.

    begins  whether tensors that begin where others do have to do so in each call
    """
    if _class is None:
        return None
    firsts = [next(i for i, other in enumerate(tensors) if other is x) for x in tensors]
    try:
        at = [x.data_ptr() if begins else place for place, x in zip(firsts, tensors)]
        beside = {i: first for i in sorted({*firsts}) if (first := at.index(at[i])) < i}
        check = c_calls.alike(tensors, firsts, beside) or _of_repeats(tensors, firsts, beside)
        return check if check(*tensors) else None
    except (TypeError, RuntimeError, AttributeError, SystemError):  # another version's class
        return None


def _of_repeats(
    tensors: Sequence[torch.Tensor], firsts: Sequence[int], beside: Mapping[int, int]
) -> Callable[..., bool]:  # fmt: skip
    """Torch's check of tensors of which some are one object: its own holds for none that it is given twice.

    firsts  of each tensor the place where it stands first
    beside  of some tensors that of an earlier one, which begins at the same address
    """
    places = sorted({*firsts})
    check = _by_torch([tensors[i] for i in places])
    again = [(place, first) for place, first in enumerate(firsts) if place != first]
    if not again and not beside:
        return check
    return lambda *given: (
        all(given[i] is given[j] for i, j in again)
        and check(*[given[i] for i in places])
        and all(given[i].data_ptr() == given[j].data_ptr() for i, j in beside.items())
    )


def _by_torch(tensors: Sequence[torch.Tensor]) -> Callable[..., bool]:
    """Torch's own check, of tensors that may be nested: for one, it ends the process."""
    assert _class is not None
    check = _class(
        *tensors, dynamic_dims_sizes=[list(x.shape) for x in tensors],
        dynamic_dims_strides=[list(x.stride()) for x in tensors],
    ).check  # fmt: skip
    return c_calls.plain(check) or (lambda *tensors: not any(x.is_nested for x in tensors) and check(*tensors))
