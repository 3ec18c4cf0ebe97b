"""Repeated calls of a function with options: a kept launch, found by the places of its tensors and numbers in the call.

    first call    checked; its launch is kept (`kept_launches`, `scaled_grouped.kept`)
    next one      found there by a guard, and noted: which argument is which address of the launch
    later ones    found here: options are the same objects, one guard holds for all tensors, and addresses are written

Nothing is proved here. A call that differs in anything goes through the function, which finds or checks it as before.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from operator import is_, itemgetter, or_
from typing import Any

import torch
import torch.autograd.forward_ad as _forward

from ..checks import modes_of_dispatch, modes_of_functions
from .guards import ALIGNED, MAX_CHANGES, MAX_GUARDS, MAX_READY, check_of
from . import kept_launches
from .kept_launches import KEPT, KeptCall, Served, launched_again, served

Arguments = tuple[Any, ...]
Options = Mapping[str, Any]
Again = Callable[[Arguments, Options], Any]
GIVEN = "given"  # the option that holds operands by name
_PAIRS = (tuple, list)
_address = torch.Tensor.data_ptr
_grad_enabled = torch.is_grad_enabled


class RepeatedCalls:
    """The calls of one function that are found by their arguments.

    `weight` is the place of the argument that most calls share: what was found for it last is asked first.
    """

    def __init__(self, weight: int) -> None:
        self._weight = weight
        self._last: dict[tuple[object, ...], Again | None] = {}
        self._changes: dict[tuple[object, ...], int] = {}
        self._seen: dict[tuple[object, ...], list[Again]] = {}
        KEPT.on_clear.append(self.clear)

    def clear(self) -> None:
        """Drop all."""
        self._last.clear()
        self._changes.clear()
        self._seen.clear()

    def again_or(self, function: Callable[..., Any], arguments: Arguments, options: Options) -> Any:
        """The result of a kept launch for such a call, or of the function, whose kept launch is noted."""
        if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
            return function(*arguments, **options)
        try:
            weight = arguments[self._weight]
            if type(weight) in _PAIRS:
                weight = weight[0]
            key = (id(weight), id(options.get("epilogue")), len(arguments), *options)
            known = self._last.get(key, _unknown)
            if known is not None and (found := known(arguments, options)) is not None:
                return found
            kind = (weight.shape, len(arguments), *options)
            for again in self._seen.get(kind, ()):
                if again is not known and (found := again(arguments, options)) is not None:
                    self._note(key, again)
                    return found
        except (AttributeError, IndexError, TypeError):  # no tensors, or none that are dense
            return function(*arguments, **options)
        with served() as calls:
            result = function(*arguments, **options)
        if len(calls) == 1 and (made := repeated(calls[0], arguments, options, result)) is not None:
            if len(self._seen) >= MAX_READY:
                self.clear()
            of_kind = self._seen.setdefault(kind, [])
            if len(of_kind) < MAX_GUARDS * 2:
                of_kind.append(made)
            self._note(key, made)
        return result

    def _note(self, key: tuple[object, ...], again: Again) -> None:
        """Look for a call here first; not for one that changes too often."""
        if len(self._last) >= MAX_READY:
            self._last.clear()
            self._changes.clear()
        changes = self._changes[key] = self._changes.get(key, 0) + 1
        self._last[key] = again if changes <= MAX_CHANGES else None


def _unknown(arguments: Arguments, options: Options) -> None:
    return None


def repeated(call: Served, arguments: Arguments, options: Options, result: object) -> Again | None:
    """What makes the launch of a served call again, for arguments like these; None where something else was done too.

    Each tensor of the call must be one of the launch, and each number in `given` one of the launch's or the same object
    as before. A tensor of the launch that is no argument must be part of the result, and is allocated anew.
    """
    given = options.get(GIVEN)
    if given is not None and type(given) is not dict:
        return None
    several = result if type(result) is tuple else (result,)
    if several[0] is not call.result:
        return None
    kinds = tuple(map(type, arguments))
    nested = any(kind in _PAIRS for kind in kinds)
    flat = tuple(chain.from_iterable(_spread(arguments))) if nested else arguments
    lengths = tuple(len(x) for x in arguments if type(x) in _PAIRS)
    given = given or {}
    of_options = [name for name, x in options.items() if isinstance(x, torch.Tensor)]
    of_given = [name for name, x in given.items() if isinstance(x, torch.Tensor)]
    tensors = [*flat, *[options[name] for name in of_options], *[given[name] for name in of_given]]
    places = {id(x): place for place, x in enumerate(tensors)}
    numbers = {operand.name for operand in call.kept.numbers}
    if not all(isinstance(x, torch.Tensor) for x in tensors) or len(places) != len(tensors) or numbers - given.keys():
        return None
    beside = [x for x in several[1:] if id(x) not in places]
    places |= {id(x): len(tensors) + place for place, x in enumerate(beside)}
    order = [places.get(id(x)) for x in call.tensors]
    if None in order or sorted(order) != list(range(len(tensors) + len(beside))):  # type: ignore[type-var]
        return None
    if any(x.data_ptr() & ALIGNED or not x.data_ptr() for x in tensors) or (check := check_of(tensors)) is None:
        return None
    kept = _in_order(call.kept, [order.index(place) for place in range(len(order))])
    fixed = [name for name in options if name not in of_options and name != GIVEN]
    of_fixed, constants = _values_of(fixed), tuple(options[name] for name in fixed)
    held = [name for name in given if name not in of_given and name not in numbers]
    of_held, kept_given = _values_of(held), tuple(given[name] for name in held)
    more, named = _values_of(of_options), _values_of(of_given)
    memory = [(tuple(x.shape), tuple(x.stride()), x.dtype) for x in beside]
    records, count, size, into = any(x.requires_grad for x in tensors), len(arguments), len(given), "out" in of_options
    takes_given = GIVEN in options and options[GIVEN] is not None

    def again(arguments: Arguments, options: Options) -> Any:
        if len(arguments) != count or not all(map(is_, of_fixed(options), constants)):
            return None
        tensors = arguments
        if nested:
            if tuple(map(type, arguments)) != kinds or tuple([len(x) for x in arguments if type(x) in _PAIRS]) != lengths:
                return None
            tensors = tuple(chain.from_iterable(_spread(arguments)))
        if of_options:
            tensors = (*tensors, *more(options))
        operands = options.get(GIVEN)
        if takes_given:
            try:
                if type(operands) is not dict or len(operands) != size:
                    return None
                if of_given:
                    tensors = (*tensors, *named(operands))
                if held and not all(map(is_, of_held(operands), kept_given)):
                    return None
            except KeyError:
                return None
        elif operands is not None:
            return None
        try:
            if not check(*tensors) or (records and _grad_enabled()):
                return None
        except (AttributeError, RuntimeError, TypeError):  # no dense tensors
            return None
        values = list(map(_address, tensors))
        if reduce(or_, values) & ALIGNED or 0 in values:
            return None
        if not memory:
            return launched_again(kept, tensors, values, operands, options["out"] if into else None)
        made = [kept_launches.empty_on_gpu(*each) for each in memory]
        values += map(_address, made)
        c = launched_again(kept, tensors, values, operands, options["out"] if into else None)
        return None if c is None else (c, *made)

    return again


def _spread(arguments: Arguments) -> list[Sequence[Any]]:
    """Each argument as the tensors that it holds."""
    return [x if type(x) in _PAIRS else (x,) for x in arguments]


def _values_of(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """The values of names, as a tuple."""
    if len(names) > 1:
        return itemgetter(*names)
    if names:
        [name] = names
        return lambda values: (values[name],)
    return lambda values: ()


def _in_order(kept: KeptCall, order: Sequence[int]) -> KeptCall:
    """A kept call whose tensors are handed over in another order: `order` has the former place of each."""
    direct, count = kept.direct, len(order)
    places = (*[direct.places[place] for place in order], *direct.places[count:])
    return replace(
        kept,
        direct=direct.at(places),
        spans=tuple([kept.spans[place] for place in order]),
        written=tuple([order.index(place) for place in kept.written]),
    )
