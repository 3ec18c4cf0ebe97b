"""Kept launches of products with packed weights, for activations of the same shape.

find  a kept launch: the call writes addresses, and nothing is checked but the addresses themselves
keep  the launch of a checked product whose tensors are read in place
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ...kernels.epilogue.parameters import number_word
from ...memo import is_value
from ..checks import launched_alone, modes_of_dispatch, modes_of_functions, tracing_state
from ..compiled.c_calls import RepeatPlan
from ..compiled.guards import (
    ALIGNED,
    FIRST_GPU,
    LEAST_ADDRESS,
    MAX_READY,
    Guard,
    KeptCalls,
    LastCallsByOptions,
    guarded,
)
from ..compiled.repeated_calls import RepeatedCalls
from ..launch import DirectLaunch, NewResult, NewTensor, ProductCall, empty_on_gpu, making, raw_stream
from ..problem import contiguous_strides
from .weights import QuantizedWeight

Key = tuple[object, ...]

_ALIGNED_FLOAT = 3  # and in that of a float32
_grad_enabled = torch.is_grad_enabled
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class Part(NamedTuple):
    """A launch that computes some of the output features. It takes addresses: weights, x, C, then the vectors.

    starts  bytes from each tensor's first element to the part's: of the weights, C and the vectors
    """

    launch: DirectLaunch
    starts: tuple[int, ...]


class KeptProduct(NamedTuple):
    """The launches for tensors of known shapes and strides.

    parts           the launches
    memory          bytes of each workspace that a call allocates, of the last addresses
    shape, strides  of the result, with its type `kind`
    product         of one launch the call that makes a new result of x, the weights and the vectors; it gives None for
                    addresses that are no multiples of 16
    """

    parts: Sequence[Part]
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: torch.dtype
    memory: Sequence[int]
    product: ProductCall | None


READY: KeptCalls[KeptProduct] = KeptCalls()
SEEN = READY.seen
LAST = LastCallsByOptions(READY.on_clear)  # by the weights' units


def _tensors(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None,
    scale_x: torch.Tensor | None = None,
) -> tuple[torch.Tensor, ...]:  # fmt: skip
    """The tensors that a launch reads, in its order."""
    tensors: tuple[torch.Tensor, ...] = (x, units) if scales is None else (x, units, scales)
    if scale_x is not None:
        tensors = (*tensors, scale_x)
    return tensors if bias is None else (*tensors, bias)


def found_last(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, options: Key
) -> torch.Tensor | None:
    """The result of the last launch with these weights; None without one for such tensors."""
    try:
        found: torch.Tensor | None = LAST.again(options, *_tensors(x, units, scales, bias))
        return found
    except (AttributeError, TypeError, RuntimeError):  # no dense tensors
        return None


def find(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, options: Key,
    scale_x: torch.Tensor | None = None,
) -> tuple[Key, torch.Tensor | None]:  # fmt: skip
    """(key, the result of a kept launch or None). The key () stands for a call that cannot be kept.

    options  whatever else of the call decides on the kernel, the weights' format and sizes among it
    """
    tensors = _tensors(x, units, scales, bias, scale_x)
    short: Key = ()
    again: KeptProduct | None = None
    try:
        if (c := LAST.again(options, *tensors)) is not None:
            return (), c
        if not (
            modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0 or tracing_state() is not None
        ):
            short = options, x.shape, scales is None, scale_x is None, bias is None
            for check, records, kept in SEEN.get(short, ()):
                if check(*tensors) and not (records and _grad_enabled()):
                    again = kept
                    if kept.product is not None and not records:
                        LAST[options, len(tensors)].note(id(units), Guard(check, records, kept.product))
                    break
    except (AttributeError, TypeError, RuntimeError):  # no dense tensors, or a configuration without a hash
        return (), None
    if again is not None:
        c = None if again.product is None else again.product(*tensors)
        if c is not None or (c := _again(again, tensors, scale_x)) is not None:
            return (), c
    key, found = _by_facts(tensors, scales, bias, options, scale_x)
    if found is None or (c := _again(found, tensors, scale_x)) is None:
        return key, None
    if short:
        guarded(SEEN, short, tensors, found, MAX_READY)
    return key, c


_WITH_WEIGHTS = "scale_x", "bias"  # options of a call that are tensors, in the order of a launch


def note_again(calls: RepeatedCalls, weight: QuantizedWeight, options: Mapping[str, object]) -> None:
    """Let `calls` find the last call of these weights and options by its arguments.

    Not one with an epilogue of its own, or an output: its launch is another.
    """
    if any(x is not None for name, x in options.items() if name not in (*_WITH_WEIGHTS, *_OPTIONS)):
        return
    tensors = [name for name in _WITH_WEIGHTS if options.get(name) is not None]
    count = 2 + (weight.scales is not None) + len(tensors)
    try:
        last = LAST.get(((weight.kind, *[options.get(name) for name in _OPTIONS]), count))
    except TypeError:  # an option without a hash
        return
    guard = None if last is None else last.get(id(weight.units))
    at = id(weight)
    if guard is None or calls.last.get(at) is False:
        return
    others = {name: x for name, x in options.items() if name not in tensors}
    own = ("units", True, None), ("scales", weight.scales is not None, None), ("kind", False, weight.kind)
    plan = RepeatPlan(
        functions=(guard.check, guard.kept, None, number_word),
        given="given",
        operands=-2,
        arguments=[(None, 1), (type(weight), len(own))],
        options=len(options),
        compared=[(False, name, x, is_value(x)) for name, x in others.items()],
        named=[(False, name) for name in tensors],
        numbers=(),
        attributes=own,
    )
    if (found := plan.call()) is not None:
        calls.note(at, found)


_OPTIONS = "activation", "out_dtype", "config"  # of the key of `LAST`, behind the weights' kind


def _again(kept: KeptProduct, tensors: Sequence[torch.Tensor], scale_x: torch.Tensor | None) -> torch.Tensor | None:
    """The result of a kept launch at any addresses that it can read; None where it cannot."""
    index, (at_x, at_units, *others) = kept.parts[0].launch.device, [t.data_ptr() for t in tensors]
    if _current_device() != index or (at_x | at_units) & ALIGNED:
        return None
    if scale_x is not None and scale_x.data_ptr() & _ALIGNED_FLOAT:
        return None
    if min(at_x, at_units, *others) < LEAST_ADDRESS:
        return None
    c = empty_on_gpu(kept.shape, kept.strides, kept.kind)
    own = [empty_on_gpu((size,), (1,), torch.uint8) for size in kept.memory]  # they live until the launch
    memory, stream = [t.data_ptr() for t in own], raw_stream(index)
    for part in kept.parts:
        launch_part(part, (at_units, at_x, c.data_ptr(), *others), memory, stream)
    return c


def launch_part(part: Part, addresses: Sequence[int], memory: Sequence[int], stream: int) -> None:
    """Launch a part for the whole tensors' addresses; `memory` has those of its workspaces."""
    (of_units, *starts), (at_units, at_x, *others) = part.starts, addresses
    own = [at + start for at, start in zip(others, starts, strict=True)]
    part.launch.launch((at_units + of_units, at_x, *own, *memory), stream)


def _by_facts(
    tensors: Sequence[torch.Tensor], scales: torch.Tensor | None, bias: torch.Tensor | None, options: Key,
    scale_x: torch.Tensor | None,
) -> tuple[Key, KeptProduct | None]:  # fmt: skip
    """The key of all facts of the tensors, and the launch kept under it.

    The key () stands for a call that cannot be kept.
    """
    x, index = tensors[0], launched_alone(tensors)
    if index is None or index < FIRST_GPU:
        return (), None
    try:
        key: Key = (options, index, x.shape, x.stride(), x.dtype, scales is None)
        if bias is not None:
            key = (*key, bias.shape, bias.stride(), bias.dtype)
        if scale_x is not None:
            key = (*key, "scale_x", scale_x.shape, scale_x.stride(), scale_x.dtype)
        return key, READY.get(key)
    except TypeError:  # a configuration without a hash
        return (), None


def keep(
    key: Key, parts: Sequence[Part], shape: Sequence[int], kind: torch.dtype, vectors: int, memory: Sequence[int] = ()
) -> None:
    """Keep a product's launches under the key of `find`.

    shape    of the result as the call returns it
    vectors  tensors that each launch reads beside x and the weights
    memory   bytes of the workspaces that each launch takes
    """
    if len(READY) >= MAX_READY:
        READY.clear()
    size, strides = tuple(shape), contiguous_strides(shape)
    if len(parts) > 1:
        READY[key] = KeptProduct(parts, size, strides, kind, memory, None)
        return
    direct = parts[0].launch
    of_units, of_x, of_c, *others = direct.places
    makes = [NewTensor(size, strides, kind, of_c)]
    makes += [NewTensor((count,), (1,), torch.uint8, place) for count, place in zip(memory, others[vectors:])]
    reads = {0: of_x, 1: of_units, **dict(enumerate(others[:vectors], 2))}
    product = making([NewResult(direct, tuple(makes), reads)], 2 + vectors)
    READY[key] = KeptProduct(parts, size, strides, kind, memory, product)
