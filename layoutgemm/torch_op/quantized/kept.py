"""Kept launches of products with packed weights, for activations of the same shape.

find  a kept launch: the call writes addresses, and nothing is checked but the addresses themselves
keep  the launch of a checked product whose tensors are read in place
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ..checks import launched_alone, modes_of_dispatch, modes_of_functions, tracing_state
from ..compiled.guards import ALIGNED, FIRST_GPU, LEAST_ADDRESS, MAX_READY, KeptCalls, guarded
from ..launch import DirectLaunch, empty_on_gpu, raw_stream
from ..problem import contiguous_strides

Key = tuple[object, ...]

_ALIGNED_FLOAT = 3  # and in that of a float32
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class KeptProduct(NamedTuple):
    """A launch for tensors of known shapes and strides; it takes addresses: weights, x, C, then the vectors.

    direct          the launch
    memory          bytes of each workspace that a call allocates, of the last addresses
    shape, strides  of the result, with its type `kind`
    """

    direct: DirectLaunch
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: torch.dtype
    memory: Sequence[int] = ()


READY: KeptCalls[KeptProduct] = KeptCalls()
SEEN = READY.seen


def find(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, options: Key,
    scale_x: torch.Tensor | None = None,
) -> tuple[Key, torch.Tensor | None]:  # fmt: skip
    """(key, the result of a kept launch or None); the key () stands for a call that cannot be kept.

    options  whatever else of the call decides on the kernel, the weights' format and sizes among it
    """
    vectors = [v for v in (scales, scale_x, bias) if v is not None]
    short: Key = ()
    again: KeptProduct | None = None
    if not (modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0 or tracing_state() is not None):
        try:
            short = options, x.shape, scales is None, scale_x is None, bias is None
            for guard in SEEN.get(short, ()):
                if guard.holds((x, units, *vectors)):
                    again = guard.kept
                    break
        except (AttributeError, TypeError, RuntimeError):  # no dense tensors, or a configuration without a hash
            return (), None
        if again is not None and (c := _again(again, x, units, scale_x, vectors)) is not None:
            return (), c
    key, kept = _by_facts(x, units, scales, bias, options, scale_x)
    if kept is None or (c := _again(kept, x, units, scale_x, vectors)) is None:
        return key, None
    if short:
        guarded(SEEN, short, (x, units, *vectors), kept, MAX_READY)
    return key, c


def _again(
    kept: KeptProduct, x: torch.Tensor, units: torch.Tensor, scale_x: torch.Tensor | None,
    vectors: Sequence[torch.Tensor],
) -> torch.Tensor | None:  # fmt: skip
    """The result of a kept launch; None where an address is another."""
    index, at_x, at_units = kept.direct.device, x.data_ptr(), units.data_ptr()
    if _current_device() != index or (at_x | at_units) & ALIGNED:
        return None
    if scale_x is not None and scale_x.data_ptr() & _ALIGNED_FLOAT:
        return None
    others = [v.data_ptr() for v in vectors]
    if min(at_x, at_units, *others) < LEAST_ADDRESS:
        return None
    c = empty_on_gpu(kept.shape, kept.strides, kept.kind)
    own = [empty_on_gpu((size,), (1,), torch.uint8) for size in kept.memory]  # they live until the launch
    addresses = (at_units, at_x, c.data_ptr(), *others, *[memory.data_ptr() for memory in own])
    kept.direct.launch(addresses, raw_stream(index))
    return c


def _by_facts(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, options: Key,
    scale_x: torch.Tensor | None,
) -> tuple[Key, KeptProduct | None]:  # fmt: skip
    """The key of all facts of the tensors, and the launch kept under it.

    The key () stands for a call that cannot be kept.
    """
    vectors = [v for v in (scales, scale_x, bias) if v is not None]
    index = launched_alone((x, units, *vectors))
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


def keep(key: Key, direct: DirectLaunch, shape: Sequence[int], kind: torch.dtype, memory: Sequence[int] = ()) -> None:
    """Keep a launch under the key of `find`.

    shape   of the result as the call returns it
    memory  bytes of the workspaces that the launch takes
    """
    if len(READY) >= MAX_READY:
        READY.clear()
    READY[key] = KeptProduct(direct, tuple(shape), contiguous_strides(shape), kind, memory)
