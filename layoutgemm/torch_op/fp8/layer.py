"""A float8 layer's two launches, found again by a guard: x is quantised, then multiplied with the weights.

first calls  `quantize` and `scaled_matmul`, with all their checks; their launches are recorded
later ones   two allocations and two launches
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.autograd.forward_ad as _forward

from ...kernels.plan import rounded_up
from ..checks import launched_alone, modes_of_dispatch, modes_of_functions
from ..compiled.guards import FIRST_GPU, MAX_READY, KeptCalls, Key, LaunchesByAddress, guarded
from ..launch import DirectLaunch, Recording, current_device, empty_on_gpu, raw_stream, recorded

Made = tuple[torch.Tensor, torch.Tensor, torch.Tensor]  # values and scales of x, and the result
_APART = 256  # bytes: scales begin at a multiple, as memory of their own does


class KeptLayer(NamedTuple):
    """Both launches, for tensors of known shapes, strides and types.

    quantize  takes the addresses of x, its values and its scales
    product   takes the addresses of the values, the scales, the layer's tensors and the result
    scales    bytes from the values to the scales, in one piece of memory of `size` bytes
    result    shape, strides and type
    """

    quantize: DirectLaunch
    product: DirectLaunch
    scales: int
    size: int
    result: tuple[tuple[int, ...], tuple[int, ...], torch.dtype]


KEPT: KeptCalls[LaunchesByAddress[KeptLayer]] = KeptCalls()


def layer_again_or(
    make: Callable[[], Made], options: Key, x: torch.Tensor, own: Sequence[torch.Tensor]
) -> torch.Tensor:
    """The result of both launches of an earlier call, or what `make` computes: kept, if it was two launches.

    options  whatever else of the call decides on the kernels
    own      the layer's tensors: weights, their scales, and a bias if there is one
    """
    if modes_of_functions() or modes_of_dispatch() or _forward._current_level >= 0:
        return make()[2]
    tensors, launches = (x, *own), None
    try:
        short: Key = options, x.shape, own[0].shape, len(own)
        for guard in KEPT.seen.get(short, ()):
            if guard.holds(tensors):
                launches = guard.kept
                if (found := _again(launches, tensors)) is not None:
                    return found
                break
        index = launched_alone(tensors)
    except (AttributeError, RuntimeError, TypeError):  # no dense tensors
        return make()[2]
    if index is None or index < FIRST_GPU:
        return make()[2]
    with recorded() as record:
        made = make()
    kept = _kept(record, tensors, made)
    if kept is not None:
        if launches is None:
            guarded(KEPT.seen, short, tensors, launches := LaunchesByAddress(), MAX_READY)
        launches.keep([each.data_ptr() for each in tensors], kept)
    return made[2]


def _again(launches: LaunchesByAddress[KeptLayer], tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """The result at the addresses of tensors that a guard holds for."""
    addresses, low = [each.data_ptr() for each in tensors], 0
    for at in addresses:
        low |= at
    kept = launches.at(addresses, low)
    if kept is None or current_device() != (index := kept.quantize.device):
        return None
    stream = raw_stream(index)
    memory = empty_on_gpu((kept.size,), (1,), torch.uint8)  # it lives until the launch
    values = memory.data_ptr()
    scales = values + kept.scales
    kept.quantize.launch((addresses[0], values, scales), stream)
    c = empty_on_gpu(*kept.result)
    kept.product.launch((values, scales, *addresses[1:], c.data_ptr()), stream)
    return c


def _kept(record: Recording, tensors: Sequence[torch.Tensor], made: Made) -> KeptLayer | None:
    """The call as two launches; None where it was more, or an argument is not known."""
    values, scales, c = made
    if len(record.launches) != 2 or record.memory or record.lists or record.clears or not c.is_contiguous():
        return None
    quantize = _direct(record, 0, (tensors[0], values, scales))
    product = _direct(record, 1, (values, scales, *tensors[1:], c))
    if quantize is None or product is None:
        return None
    apart = rounded_up(values.untyped_storage().nbytes(), _APART)
    size = apart + scales.untyped_storage().nbytes()
    return KeptLayer(quantize, product, apart, size, (tuple(c.shape), tuple(c.stride()), c.dtype))


def _direct(record: Recording, number: int, tensors: Sequence[torch.Tensor]) -> DirectLaunch | None:
    """A recorded launch for such tensors; None unless each is an argument once, and no other address is."""
    made = record.launches[number]
    arguments, addresses = made.arguments, [x.data_ptr() for x in tensors]
    if sorted(at for at in arguments if not record.knows(at)) != sorted(addresses):
        return None
    return DirectLaunch(made.compiled, arguments, [arguments.index(at) for at in addresses], made.device, made.what)
