"""Kept launches of products with packed weights, for activations of the same shape.

find  a kept launch: the call writes addresses, and nothing is checked but the addresses themselves
keep  the launch of a checked product whose tensors are read in place
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from ..checks import launched_alone
from ..launch import Direct, empty_on_gpu, raw_stream
from ..problem import contiguous_strides

Key = tuple[object, ...]

FIRST_GPU = 0  # of the indices of devices; below are CPUs
MAX_READY = 4096  # beyond, all go
_ALIGNED = 15  # bits that are 0 in an address that TMA or a bulk copy reads, or stores to
_ALIGNED_FLOAT = 3  # and in that of a float32
_current_device: Callable[[], int] = getattr(torch._C, "_cuda_getDevice", torch.cuda.current_device)


class KeptProduct(NamedTuple):
    """A launch for tensors of known shapes and strides; it takes addresses: weights, x, C, then the vectors.

    direct          the launch
    shape, strides  of the result, with its type `kind`
    """

    direct: Direct
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    kind: torch.dtype


READY: dict[Key, KeptProduct] = {}


def find(
    x: torch.Tensor, units: torch.Tensor, scales: torch.Tensor | None, bias: torch.Tensor | None, options: Key,
    scale_x: torch.Tensor | None = None,
) -> tuple[Key, torch.Tensor | None]:  # fmt: skip
    """(key, the result of a kept launch or None); the key () stands for a call that cannot be kept.

    options  whatever else of the call decides on the kernel, the weights' format and sizes among it
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
        kept = READY.get(key)
        at_x, at_units = x.data_ptr(), units.data_ptr()
    except TypeError:  # a configuration without a hash
        return (), None
    if kept is None or _current_device() != index or (at_x | at_units) & _ALIGNED:
        return key, None
    if scale_x is not None and scale_x.data_ptr() & _ALIGNED_FLOAT:
        return key, None
    c = empty_on_gpu(kept.shape, kept.strides, kept.kind)
    kept.direct.launch((at_units, at_x, c.data_ptr(), *[v.data_ptr() for v in vectors]), raw_stream(index))
    return key, c


def keep(key: Key, direct: Direct, shape: Sequence[int], kind: torch.dtype) -> None:
    """Keep a launch under the key of `find`.

    shape  of the result as the call returns it
    """
    if len(READY) >= MAX_READY:
        READY.clear()
    READY[key] = KeptProduct(direct, tuple(shape), contiguous_strides(shape), kind)
