"""Repeated calls with options. A kept launch, found by the places of its tensors and numbers in the call.

    first call    checked; its launch is kept (`kept_launches`, `scaled_grouped.kept`)
    next one      found there by a guard, and noted: which argument is which address of the launch
    later ones    found here: options are equal, one guard holds for all tensors, and addresses are written

Nothing is proved here. A call that differs in anything goes through the function, which finds or checks it as before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any, Literal, NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ...kernels.epilogue.parameters import float_below, number_word
from ...memo import function_key, is_value
from . import c_calls
from .c_calls import RepeatPlan, modes_of_dispatch, modes_of_functions
from .guards import ALIGNED, MAX_CHANGES, MAX_READY, LastCalls, check_of
from .kept_launches import KEPT, KeptCall, Served

Arguments = Sequence[Any]
Options = Mapping[str, Any]
Again = Callable[[Arguments, Options], object]
Lasts = Mapping[tuple[int, "str | None"], LastCalls]
GIVEN, OUT, EPILOGUE = "given", "out", "epilogue"  # options: operands by name, where the result goes, and the chain
MAX_OF_KIND = 8  # calls of the same shapes and names: beyond, none is kept, as of a function that each call makes anew
SEVERAL = (tuple, list)


def epilogue_key(get: Callable[[str], object]) -> int:
    """The epilogue's part of a call's key in `RepeatedCalls.last`. The shared argument's id is the other."""
    found = get(EPILOGUE)
    return 0 if found is None else id(found)


class RepeatedCalls:
    """The calls of one function that are found by their arguments.

    last    what found a call last, by the ids of its weight and epilogue; False for calls that change too often. It is
            a place to look first, never a proof: an id may come to be another object's
    seen    all, by the first operand's shape, the weight's, and the names of the options
    alone   calls of tensors alone, by their number, and of one more, by its name
    weight  the place of the argument that most calls share
    first   the result of the kept call that was the last one of such arguments, or None; None while no call is kept.
            C looks for it where there is a compiler: `c_calls.first`
    """

    def __init__(self, alone: Lasts, weight: int) -> None:
        self.last: dict[int, Again | Literal[False]] = {}
        self.seen: dict[tuple[object, ...], list[Again]] = {}
        self.alone, self.weight = dict(alone), weight
        self.first: Again | None = None
        self._changes: dict[int, int] = {}
        KEPT.on_clear.append(self.clear)

    def _first(self, arguments: Arguments, options: Options) -> object:
        """`first` without a C compiler."""
        if len(arguments) <= self.weight:
            return None
        shared = arguments[self.weight]
        if len(options) < 2 and type(shared) not in SEVERAL:
            found = self.alone.get((len(arguments), next(iter(options), None)))
            try:
                made = None if found is None else found.again(*arguments, *options.values())
            except c_calls.NO_TENSORS:
                made = None
            if made is not None:
                return made
        if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
            return None
        at = id(shared[0] if type(shared) in SEVERAL and shared else shared)
        known = self.last.get(at ^ epilogue_key(options.get))
        return known(arguments, options) if known else None

    def look_first(self) -> None:
        """Look for calls by `first` from now on."""
        if self.first is None:
            alone = {of: last.places for of, last in self.alone.items()}
            self.first = c_calls.first(self.last, alone, self.weight, EPILOGUE) or self._first

    def clear(self) -> None:
        """Drop all."""
        self.last.clear()
        self.seen.clear()
        self._changes.clear()

    def note(self, at: int, again: Again) -> None:
        """Look for a call here first from now on."""
        self.look_first()
        if len(self.last) >= MAX_READY:
            self.last.clear()
            self._changes.clear()
        changes = self._changes[at] = self._changes.get(at, 0) + 1
        self.last[at] = again if changes <= MAX_CHANGES else False

    def keep(self, at: int, kind: tuple[object, ...], again: Again) -> None:
        """A call that is found from now on."""
        if len(self.seen) >= MAX_READY:
            self.clear()
        self.seen.setdefault(kind, []).append(again)
        self.note(at, again)


class Named(NamedTuple):
    """The options of a call, or its operands in `given`. Names of tensors, and the other values by name."""

    tensors: list[str]
    others: dict[str, object]

    @classmethod
    def of(cls, values: Options, without: Sequence[str]) -> Named:
        """Tell them apart; `without` are told elsewhere."""
        tensors = [name for name, x in values.items() if isinstance(x, torch.Tensor)]
        return cls(tensors, {name: x for name, x in values.items() if name not in (*tensors, *without)})


def compared(at: str, kept: str, x: object) -> str:
    """Code that is true for a value at `at` other than that at `kept`.

    >>> compared("options['config']", "fixed[0]", None)
    "options['config'] is not fixed[0]"
    >>> compared("options['activation']", "fixed[0]", "silu")
    "(x := options['activation']) is not fixed[0] and (type(x) is not type(fixed[0]) or x != fixed[0])"
    """
    if not is_value(x):
        return f"{at} is not {kept}"
    return f"(x := {at}) is not {kept} and (type(x) is not type({kept}) or x != {kept})"


def repeated(call: Served, arguments: Arguments, options: Options, result: object) -> Again | None:
    """The function that repeats a served call's launch for arguments like these. None where more was done.

    Each tensor of the call must be one of the launch, or have all elements of one that is a view. Each number in
    `given` must be one of the launch's, or the same object as before. A tensor of the launch that is no argument must
    be part of the result, and is allocated anew.
    """
    given = options.get(GIVEN) or {}
    several = result if type(result) is tuple else (result,)
    if type(given) is not dict or several[0] is not call.result:
        return None
    words = [operand.name for operand in call.kept.numbers]
    of_options, of_given = Named.of(options, [GIVEN]), Named.of(given, words)
    tensors = [x for each in arguments for x in (each if type(each) in SEVERAL else [each])]
    tensors += [options[name] for name in of_options.tensors] + [given[name] for name in of_given.tensors]
    count = len(tensors)
    if not all(isinstance(x, torch.Tensor) for x in tensors) or not given.keys() >= {*words}:
        return None
    beside = [x for x in several[1:] if not any(x is y for y in tensors)]
    order = _places(call.tensors, [*tensors, *beside])
    if sorted(order) != list(range(count + len(beside))) or any(x.data_ptr() & ALIGNED for x in tensors):
        return None
    if any(len(function_key(x)) != 1 for x in of_options.others.values()):
        return None  # of a function that reads variables
    check = check_of(tensors, begins=True)
    kept = _in_order(call.kept, [order.index(place) for place in range(len(order))])
    if check is None:
        return None
    into = next((i for i, x in enumerate(tensors) if x is options.get(OUT)), None)
    if into is None and call.kept.result is None and call.kept.kind is None:
        return None
    product = kept.call(count, beside, into)
    records = any(x.requires_grad for x in tensors)
    plan = RepeatPlan(
        functions=(check, product, torch.is_grad_enabled if records else None, number_word),
        given=GIVEN,
        operands=-2 if GIVEN not in options else -1 if options[GIVEN] is None else len(given),
        arguments=[(type(each), len(each)) if type(each) in SEVERAL else (None, 1) for each in arguments],
        options=len(options),
        compared=[
            (place, name, x, is_value(x))
            for place, of in ((False, of_options), (True, of_given))
            for name, x in of.others.items()
        ],
        named=[(place, name) for place, of in ((False, of_options), (True, of_given)) for name in of.tensors],
        numbers=[(operand, operand.name, float_below(operand)) for operand in kept.numbers],
    )
    if (made := plan.call()) is not None:
        return made
    names: dict[str, Any] = {
        "check": check, "kept": kept, "fixed": [*of_options.others.values()],
        "held": [*of_given.others.values()], "grad_enabled": torch.is_grad_enabled, "product": product,
        "word": number_word, "numbers": kept.numbers,
    }  # fmt: skip
    source = source_of(arguments, options, of_options, of_given, records, words)
    exec(_code(source), names)
    found: Again = names["again"]
    return found


def _memory(x: torch.Tensor) -> tuple[object, ...]:
    """The elements of a tensor whose elements are contiguous; else something of its own."""
    return (x.data_ptr(), x.numel(), x.dtype) if x.is_contiguous() and x.numel() else (id(x),)


def _places(wanted: Sequence[torch.Tensor], tensors: Sequence[torch.Tensor]) -> list[int]:
    """The place of each wanted tensor among others, each place once; -1 for none.

    It is the tensor itself, or one with the same elements: a launch may read views, as of scales without a dimension
    of 1.

    >>> x, y = torch.ones(1, 2), torch.ones(2)
    >>> _places([y, x[0], x[0]], [x, y, x]), _places([y[:1]], [y])
    ([1, 0, 2], [-1])
    """
    left, found = dict(enumerate(tensors)), []
    for x in wanted:
        same = [place for place, y in left.items() if x is y] or [
            i for i, y in left.items() if _memory(x) == _memory(y)
        ]
        left.pop(at := same[0] if same else -1, None)
        found.append(at)
    return found


@functools.lru_cache(256)
def _code(source: str) -> CodeType:
    return compile(source, "<repeated call>", "exec")


def source_of(
    arguments: Arguments, options: Options, of_options: Named, of_given: Named, records: bool,
    words: Sequence[str],
) -> str:  # fmt: skip
    """The code that finds a call's tensors, asks the guard, and launches. A loop over them takes twice the time.

    of_options, of_given  the options, and the operands in `given`, told apart
    records               whether a tensor requires a gradient: the launch is for calls that record none
    words                 the numbers in `given`

    >>> x, bias = torch.ones(2), torch.ones(2)
    >>> options = {"given": {"bias": bias, "alpha": 2.0}, "config": None}
    >>> print(source_of((x, x), options, Named([], {"config": None}), Named(["bias"], {}), False, ["alpha"]))
    def again(arguments, options):
        try:
            if len(arguments) != 2 or len(options) != 2: return None
            if options['config'] is not fixed[0]: return None
            given = options['given']
            if type(given) is not dict or len(given) != 2: return None
            t0, t1, = arguments
            t2 = given['bias']
            if not check(t0, t1, t2): return None
            w0 = word(numbers[0], given['alpha'])
        except (AttributeError, KeyError, RuntimeError, TypeError, ValueError): return None
        return product(t0, t1, t2, w0)
    """
    given = options.get(GIVEN)
    wrong = [f"len(arguments) != {len(arguments)} or len(options) != {len(options)}", *["grad_enabled()"] * records]
    for i, (name, x) in enumerate(of_options.others.items()):
        wrong.append(compared(f"options[{name!r}]", f"fixed[{i}]", x))
    lines = ["given = None" if given is None else f"given = options[{GIVEN!r}]"]
    if given is not None:
        wrong_given = [f"type(given) is not dict or len(given) != {len(given)}"]
        for i, (name, x) in enumerate(of_given.others.items()):
            wrong_given.append(compared(f"given[{name!r}]", f"held[{i}]", x))
        lines += [f"if {each}: return None" for each in wrong_given]
    elif GIVEN in options:
        wrong.append(f"options[{GIVEN!r}] is not None")
    names: list[str] = []

    def another() -> str:
        names.append(f"t{len(names)}")
        return names[-1]

    said = []
    for i, each in enumerate(arguments):
        if type(each) in SEVERAL:
            wrong.append(f"type(arguments[{i}]) is not {type(each).__name__}")
            said.append(f"({''.join(f'{another()}, ' for _ in each)})")
        else:
            said.append(another())
    lines.append(f"{''.join(f'{each}, ' for each in said)[:-1]} = arguments")
    lines += [f"{another()} = options[{name!r}]" for name in of_options.tensors]
    lines += [f"{another()} = given[{name!r}]" for name in of_given.tensors]
    every = ", ".join(names)
    lines.append(f"if not check({every}): return None")
    lines += [f"w{i} = word(numbers[{i}], given[{name!r}])" for i, name in enumerate(words)]
    numbered = [f"w{i}" for i in range(len(words))]
    body = [f"        {line}" for line in (*[f"if {each}: return None" for each in wrong], *lines)]
    return "\n".join([
        "def again(arguments, options):", "    try:", *body,
        "    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError): return None",
        f"    return product({', '.join([every, *numbered])})",
    ])  # fmt: skip


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
