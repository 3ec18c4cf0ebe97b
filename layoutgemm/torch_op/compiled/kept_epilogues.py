"""Kept calls of products with an epilogue of the caller's own: the one launch that a call made, made again.

A call is recorded while it runs: its launches, and the memory that was allocated for partial results. It is kept if it
was one launch of which every argument is known. An argument is the address of a tensor of the call, of the result or of
that memory, a number of the epilogue's, or follows from shapes, strides and types. A call that copied, cleared or
converted anything has another address or another count of writes, and is not kept.

A guard finds the call again (`guards`). What a guard does not see is looked at each time: addresses are multiples of
16, and what is written overlaps nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.autograd.forward_ad as _forward

from ...kernels.epilogue.chain import Epilogue, Given
from ...kernels.epilogue.parameters import number_word
from ...kernels.plan import WORKSPACE
from ..checks import modes_of_dispatch, modes_of_functions, tracing_state
from ..launch import Direct, RecordedLaunch, Recording, empty_on_gpu, raw_stream, recorded, span
from ..prepared import mark_written
from ..problem import StridedOperand
from .guards import Guard, KeptCalls, Key, guarded

OWN = ("a", "b", "c")  # a launch's first arguments
_BEYOND = 1 << 32  # addresses are larger, sizes and numbers smaller: what is not known and larger may be an address
MAX_KEPT = 1024
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A launch for tensors of known shapes and strides.

    direct   the launch: it takes the addresses of the tensors, of a new C, of the workspace, then words of numbers
    result   shape, strides and type of a new C; None where the caller gave one, or none is stored
    kind     of an empty result, where no C is stored; else None
    spans    bytes from first to last element, of each tensor
    written  places of those that are written
    numbers  the epilogue's operands that are numbers
    memory   bytes of the workspace
    """

    direct: Direct
    result: tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None
    kind: torch.dtype | None
    spans: tuple[int, ...]
    written: tuple[int, ...]
    numbers: tuple[Given, ...]
    memory: int


KEPT: KeptCalls[KeptCall] = KeptCalls()


def again_or(
    make: Callable[[], torch.Tensor], options: Key, tensors: Mapping[str, torch.Tensor | None], epilogue: object,
    given: Mapping[str, Any] | None, out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The result of a kept call for such operands, or what `make` computes, which is kept if it can be.

    options  the product's name, and whatever else of the call decides on its kernel
    tensors  the product's own operands, by the names of the kernel's parameters; A and B first
    given    the epilogue's operands
    """
    if (
        type(epilogue) is not Epilogue or type(given) is not dict or len(given) != len(epilogue.given)
        or modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0 or tracing_state() is not None
    ):  # fmt: skip
        return make()
    own = {name: x for name, x in tensors.items() if x is not None}
    try:
        read = [*own.values(), *[given[name] for name in epilogue.reads]]
        every = [*read, *[given[name] for name in epilogue.writes]]
        if out is not None:
            every.append(out)
        short: Key = (options, epilogue, read[0].shape, read[1].shape, tuple(own), out is None)
        for guard in KEPT.seen.get(short, ()):
            if guard.holds(every):
                found = _again(guard.kept, every, given, out)
                return make() if found is None else found
    except (AttributeError, KeyError, RuntimeError, TypeError):  # no dense tensors, or a configuration without a hash
        return make()
    versions = [None if x.is_inference() else x._version for x in every]  # inference tensors count no writes
    with recorded() as record:
        c = make()
    kept = _kept(record, own, epilogue, given, out, c, every, versions)
    if kept is not None:
        guarded(KEPT.seen, short, every, kept, MAX_KEPT)
    return c


def _again(
    kept: KeptCall, tensors: Sequence[torch.Tensor], given: Mapping[str, Any], out: torch.Tensor | None
) -> torch.Tensor | None:
    """The launch for tensors that a guard holds for; None where an address is another."""
    index = kept.direct.device
    values = [x.data_ptr() for x in tensors]
    low = 0
    for at in values:
        low |= at
    if low & 15 or _current_device() != index:
        return None
    for place in kept.written:
        first, end = values[place], values[place] + kept.spans[place]
        for other, (at, size) in enumerate(zip(values, kept.spans)):
            if at < end and first < at + size and other != place:
                return None
    numbers = [number_word(operand, given[operand.name]) for operand in kept.numbers]
    mark_written([tensors[place] for place in kept.written])
    if kept.result is not None:
        c = empty_on_gpu(*kept.result)
        values.append(c.data_ptr())
    else:
        c = tensors[0].new_empty(0, dtype=kept.kind) if out is None else out
    if kept.memory:
        parts = empty_on_gpu((kept.memory,), (1,), torch.uint8)  # lives until the launch: a stream keeps its order
        values.append(parts.data_ptr())
    kept.direct.launch([*values, *numbers], raw_stream(index))
    return c


def _kept(
    record: Recording, own: Mapping[str, torch.Tensor], epilogue: Epilogue, given: Mapping[str, Any],
    out: torch.Tensor | None, c: torch.Tensor, tensors: Sequence[torch.Tensor], versions: Sequence[int | None],
) -> KeptCall | None:  # fmt: skip
    """The call that was recorded, or None for one that was more than a launch of known arguments."""
    if len(record.launches) != 1:
        return None
    made = record.launches[0]
    names = [*own, *epilogue.reads, *epilogue.writes, *(["out"] if out is not None else [])]
    writes = [place for place, name in enumerate(names) if name in epilogue.writes or name == "out"]
    new = out is None and epilogue.stores_c
    once = all(
        before is None or x._version == before + (place in writes)
        for place, (x, before) in enumerate(zip(tensors, versions))
    )
    if new and (not c.is_contiguous() or (not c.is_inference() and c._version > 1)):
        return None
    if not once or any(x.data_ptr() & 15 for x in tensors):
        return None
    target = c if new else out
    numbers = tuple([operand for operand in epilogue.given if operand.host])
    places = _places(made, record, own, {name: given[name] for name in epilogue.reads + epilogue.writes}, target)
    if places is None:
        return None
    order = [places[name] for name in [*own, *epilogue.reads, *epilogue.writes]]
    order += [places["c"]] if target is not None else []
    memory = 0
    if WORKSPACE in places:
        order.append(places[WORKSPACE])
        memory = record.memory[made.arguments[places[WORKSPACE]]]
    order += [made.names.index(operand.name, len(OWN)) for operand in numbers]
    direct = Direct(made.compiled, made.arguments, order, made.device, made.what)
    result = (tuple(c.shape), tuple(c.stride()), c.dtype) if new else None
    spans = [span(StridedOperand(tuple(x.shape), tuple(x.stride()), "u8")) * x.element_size() for x in tensors]
    return KeptCall(
        direct, result, None if epilogue.stores_c else c.dtype, tuple(spans), tuple(writes), numbers, memory
    )


def _places(
    made: RecordedLaunch, record: Recording, own: Mapping[str, torch.Tensor], operands: Mapping[str, torch.Tensor],
    target: torch.Tensor | None,
) -> dict[str, int] | None:  # fmt: skip
    """The argument that is each tensor's address, by name; None if one has none, or an argument is not known.

    target  C, or None where none is stored
    """
    a, b, *others = own.items()
    known = {**dict(others), **operands}
    addresses = {x.data_ptr(): name for name, x in (a, b)}
    found: dict[str, int] = {}
    for place, (name, value) in enumerate(zip(made.names, made.arguments)):
        if place < 2 and value in addresses:  # of a transposed product A is the call's b
            found[addresses[value]] = place
        elif place == 2 and target is not None and value == target.data_ptr():
            found["c"] = place
        elif place >= len(OWN) and name in known and value == known[name].data_ptr():
            found[name] = place
        elif place >= len(OWN) and name == WORKSPACE and value in record.memory:
            found[name] = place
        elif value >= _BEYOND:
            return None
    wanted = {*own, *operands, *(["c"] if target is not None else [])}
    return found if wanted <= found.keys() and found.keys() <= {*wanted, WORKSPACE} else None


__all__ = ["KEPT", "Guard", "KeptCall", "again_or"]
