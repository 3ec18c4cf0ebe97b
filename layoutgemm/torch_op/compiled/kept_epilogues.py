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
from ..checks import modes_of_dispatch, modes_of_functions, tracing_state
from ..launch import Direct, RecordedLaunch, Recording, empty_on_gpu, raw_stream, recorded, span
from ..prepared import mark_written
from ..problem import StridedOperand
from .guards import KeptCalls, Key, guarded

OWN = ("a", "b", "c")  # a launch's first arguments
_BEYOND = 1 << 32  # addresses are larger, sizes and numbers smaller: what is not known and larger may be an address
MAX_KEPT = 1024
FIRST_GPU = 0  # of the indices of devices; below are CPUs, whose calls are no launches
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


@dataclass(frozen=True, slots=True)
class KeptCall:
    """A launch for tensors of known shapes and strides.

    direct   the launch: it takes the addresses of the tensors, of a new C, of workspaces, then words of numbers
    result   shape, strides and type of a new C; None where the caller gave one, or none is stored
    kind     of an empty result, where no C is stored; else None
    spans    bytes from first to last element, of each tensor
    written  places of those that are written
    numbers  the epilogue's operands that are numbers
    memory   bytes of each workspace
    """

    direct: Direct
    result: tuple[tuple[int, ...], tuple[int, ...], torch.dtype] | None
    kind: torch.dtype | None
    spans: tuple[int, ...]
    written: tuple[int, ...]
    numbers: tuple[Given, ...]
    memory: tuple[int, ...]


KEPT: KeptCalls[KeptCall] = KeptCalls()


def again_or(
    make: Callable[[], torch.Tensor], options: Key, tensors: Mapping[str, torch.Tensor | None], epilogue: object,
    given: Mapping[str, Any] | None, out: torch.Tensor | None,
) -> torch.Tensor:  # fmt: skip
    """The result of a kept call for such operands, or what `make` computes.

    That call is kept if it can be.

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
        operands = {name: given[name] for name in (*epilogue.reads, *epilogue.writes)}
        every = [*own.values(), *operands.values()]
        if every[0].get_device() < FIRST_GPU:
            return make()
        if out is not None:
            every.append(out)
        short: Key = (options, epilogue, every[0].shape, every[1].shape, tuple(own), out is None)
        for guard in KEPT.seen.get(short, ()):
            if guard.holds(every):
                found = _again(guard.kept, every, given, out)
                return make() if found is None else found
        call = _RecordedCall(own, epilogue, operands, out, every)
    except (AttributeError, KeyError, RuntimeError, TypeError):  # no dense tensors, or a configuration without a hash
        return make()
    with recorded() as record:
        c = make()
    kept = call.kept(record, c)
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
    workspaces = [empty_on_gpu((size,), (1,), torch.uint8) for size in kept.memory]  # they live until the launch
    values += [x.data_ptr() for x in workspaces]
    kept.direct.launch([*values, *numbers], raw_stream(index))
    return c


class _RecordedCall:
    """A call that is recorded: its tensors, and how often each has been written before.

    own       the product's operands by name, A and B first; `operands` those of the epilogue
    tensors   all of them in this order, and `out`
    """

    def __init__(
        self, own: Mapping[str, torch.Tensor], epilogue: Epilogue, operands: Mapping[str, torch.Tensor],
        out: torch.Tensor | None, tensors: Sequence[torch.Tensor],
    ):  # fmt: skip
        self.own, self.epilogue, self.operands, self.out, self.tensors = own, epilogue, operands, out, tensors
        names = [*own, *operands, *([] if out is None else ["out"])]
        self.written = tuple([i for i, name in enumerate(names) if name in epilogue.writes or name == "out"])
        # Tensors of inference mode count no writes.
        self.versions = [None if x.is_inference() else x._version for x in tensors]

    def kept(self, record: Recording, c: torch.Tensor) -> KeptCall | None:
        """The call, or None for one that was more than a launch of known arguments. `c`: its result."""
        new = self.out is None and self.epilogue.stores_c
        if len(record.launches) != 1 or not self.written_once() or any(x.data_ptr() & 15 for x in self.tensors):
            return None
        if new and (not c.is_contiguous() or (not c.is_inference() and c._version > 1)):
            return None
        made, target = record.launches[0], c if new else self.out
        places = self.places(made, record, target)
        if places is None:
            return None
        numbers = tuple([operand for operand in self.epilogue.given if operand.host])
        workspaces = [place for place, value in enumerate(made.arguments) if value in record.memory]
        order = [places[name] for name in (*self.own, *self.operands, *(["c"] if target is not None else []))]
        order += [*workspaces, *[made.names.index(operand.name, len(OWN)) for operand in numbers]]
        direct = Direct(made.compiled, made.arguments, order, made.device, made.what)
        result = (tuple(c.shape), tuple(c.stride()), c.dtype) if new else None
        kind = None if self.epilogue.stores_c else c.dtype
        memory = tuple([record.memory[made.arguments[place]] for place in workspaces])
        return KeptCall(direct, result, kind, tuple(map(_span, self.tensors)), self.written, numbers, memory)

    def written_once(self) -> bool:
        """True if the call wrote once what it writes, and nothing else."""
        now = [None if before is None else x._version - before for x, before in zip(self.tensors, self.versions)]
        return all(count is None or count == (place in self.written) for place, count in enumerate(now))

    def places(self, made: RecordedLaunch, record: Recording, target: torch.Tensor | None) -> dict[str, int] | None:
        """The argument that is each tensor's address, by name; None if one has none, or an argument is not known.

        target  C, or None where none is stored
        """
        a, b, *others = self.own.items()
        known = {**dict(others), **self.operands}
        addresses = {x.data_ptr(): name for name, x in (a, b)}
        found: dict[str, int] = {}
        for place, (name, value) in enumerate(zip(made.names, made.arguments)):
            if place < 2 and value in addresses:  # of a transposed product A is the call's b
                found[addresses[value]] = place
            elif place == 2 and target is not None and value == target.data_ptr():
                found["c"] = place
            elif place >= len(OWN) and name in known and value == known[name].data_ptr():
                found[name] = place
            elif value >= _BEYOND and value not in record.memory:
                return None
        return found if found.keys() == {*self.own, *self.operands, *(["c"] if target is not None else [])} else None


def _span(x: torch.Tensor) -> int:
    """Bytes from a tensor's first element to behind its last."""
    return span(StridedOperand(tuple(x.shape), tuple(x.stride()), "u8")) * x.element_size()


__all__ = ["KEPT", "KeptCall", "again_or"]
