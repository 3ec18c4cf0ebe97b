"""Codes of checkpoints, as other tools pack them, to plain QuantizedWeights.

    tool                  int32 words            order in a word               zero points
    ------------------    -------------------    --------------------------    -----------------------------------------
    GPTQ                  (K / 8, N), along K    code i at bit 4 i             (groups, N / 8), along N, one less stored
    AWQ                   (K, N / 8), along N    columns 0 2 4 6 1 3 5 7       (groups, N / 8), along N, the same order
    compressed-tensors    (N, K / 8), along K    code i at bit 4 i             (N / 8, groups), along N

Scales are (groups, N) of GPTQ and AWQ, (N, groups) of compressed-tensors. Sources: the packing functions of AutoGPTQ
(qlinear_cuda.py), AutoAWQ (packing_utils.py), compressed-tensors (pack_quantized.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...arguments import checked
from ...errors import OperandError
from .formats import GROUPS, QuantizedFormat
from .packing import QuantizedWeights

_CODES = 8  # of a 32-bit word
_IN_ORDER = tuple(range(_CODES))
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that nibble i of a word holds
Words = npt.NDArray[Any]


def _codes(name: str, words: Words, axis: int, order: tuple[int, ...] = _IN_ORDER) -> npt.NDArray[np.uint8]:
    """The codes of words along an axis, which grows eightfold."""
    array = np.asarray(words)
    if array.ndim != 2 or array.dtype not in (np.int32, np.uint32):
        raise OperandError(f"{name} is {array.dtype} of shape {array.shape}: int32 words of a matrix")
    bits = np.ascontiguousarray(array).view(np.uint32)
    places = np.argsort(order)
    parts = [(bits >> np.uint32(4 * int(places[i])) & np.uint32(15)).astype(np.uint8) for i in range(_CODES)]
    found = np.stack(parts, axis=axis + 1)
    shape = list(array.shape)
    shape[axis] *= _CODES
    return found.reshape(shape)


def _weights(codes: npt.NDArray[np.uint8], scales: object, zeros: npt.NDArray[Any]) -> QuantizedWeights:
    """Plain weights of (N, K) codes and (N, groups); zero points of 8 alone need none."""
    wide = np.asarray(scales, np.float64)
    if wide.ndim != 2 or wide.shape != zeros.shape or wide.shape[0] != codes.shape[0]:
        raise OperandError(f"scales {wide.shape} and zero points {zeros.shape} of {codes.shape} codes: (N, groups)")
    group, rest = divmod(codes.shape[1], wide.shape[1])
    symmetric = bool((zeros == 8).all())
    if wide.shape[1] == 1 and group not in GROUPS and symmetric:
        return QuantizedWeights(QuantizedFormat("int4"), codes, wide[:, 0].astype(np.float32))
    if wide.shape[1] == 1 and group not in GROUPS and group % GROUPS[-1] == 0:
        repeats, group = group // GROUPS[-1], GROUPS[-1]  # zero points are of groups alone
        wide, zeros = np.repeat(wide, repeats, axis=1), np.repeat(zeros, repeats, axis=1)
    if rest or group not in GROUPS:
        raise OperandError(f"{wide.shape[1]} groups of K = {codes.shape[1]}: known are groups of {GROUPS}")
    fmt = QuantizedFormat("int4", group, zeros=not symmetric)
    return QuantizedWeights(fmt, codes, wide, None if symmetric else zeros)


@checked(OperandError)
def order_of_groups(g_idx: npt.ArrayLike, groups: int) -> npt.NDArray[np.int64]:
    """The order in which input features lie group by group, of an "act-order" checkpoint.

    g_idx  (K,): the group of each input feature

    Raises OperandError, with the first group, where groups are not of the same size.

    >>> order_of_groups([1, 0, 1, 0], 2).tolist()
    [1, 3, 0, 2]
    """
    given = np.asarray(g_idx)
    if given.ndim != 1 or given.dtype.kind not in "iu" or groups < 1 or given.size % groups:
        raise OperandError(f"g_idx is {given.dtype} of shape {given.shape}: (K,) integers of {groups} groups")
    sizes = np.array([int((given == group).sum()) for group in range(groups)])
    wrong = np.nonzero(sizes != given.size // groups)[0]
    if len(wrong):
        at = int(wrong[0])
        raise OperandError(f"group {at} has {sizes[at]} of {given.size} input features: {given.size // groups} each")
    return np.argsort(given, kind="stable").astype(np.int64)


@checked(OperandError)
def from_gptq(
    qweight: Words, qzeros: Words, scales: npt.ArrayLike, g_idx: npt.ArrayLike | None = None,
    order: npt.ArrayLike | None = None,
) -> QuantizedWeights:  # fmt: skip
    """The weights of a GPTQ checkpoint of 4 bits.

    qweight  (K / 8, N); qzeros (groups, N / 8), one less than the zero points; scales (groups, N)
    g_idx    (K,): the group of each input feature
    order    the input features in the order of their groups, as `order_of_groups` has them: of an "act-order"
             checkpoint. The weights are of input features in that order, and x has to be given in it

    Raises OperandError for shapes that do not fit, and for groups out of order.
    """
    codes, zeros = _codes("qweight", qweight, 0).T, _codes("qzeros", qzeros, 1).T.astype(np.int64) + 1
    if order is not None and g_idx is None:
        raise OperandError("order without g_idx: it is of input features whose groups are not in order")
    if g_idx is not None:
        given, count = np.asarray(g_idx), codes.shape[1]
        if given.shape != (count,):
            raise OperandError(f"g_idx has shape {given.shape}: ({count},)")
        if order is not None:
            taken = np.asarray(order)
            if not np.array_equal(np.sort(taken.reshape(-1)), np.arange(count)):
                raise OperandError(f"order has shape {taken.shape}: each of {count} input features once")
            codes, given = codes[:, taken], given[taken]
        wrong = np.nonzero(given != np.arange(count) // (count // max(1, zeros.shape[1])))[0]
        if len(wrong):
            at = int(wrong[0])
            raise OperandError(f"g_idx[{at}] = {given[at]}: groups are not in order (act-order): give order=")
    return _weights(np.ascontiguousarray(codes), np.asarray(scales, np.float64).T, zeros)


@checked(OperandError)
def from_awq(qweight: Words, qzeros: Words, scales: npt.ArrayLike) -> QuantizedWeights:
    """The weights of an AWQ checkpoint: qweight (K, N / 8), qzeros (groups, N / 8), scales (groups, N)."""
    codes, zeros = _codes("qweight", qweight, 1, _AWQ).T, _codes("qzeros", qzeros, 1, _AWQ).T
    return _weights(np.ascontiguousarray(codes), np.asarray(scales, np.float64).T, zeros)


@checked(OperandError)
def from_compressed_tensors(
    weight_packed: Words, weight_scale: npt.ArrayLike, weight_zero_point: Words | None = None
) -> QuantizedWeights:
    """The weights of a compressed-tensors checkpoint, "pack-quantized" with 4 bits.

    weight_packed  (N, K / 8); weight_scale (N, groups); weight_zero_point (N / 8, groups), or None
    """
    codes, scales = _codes("weight_packed", weight_packed, 1), np.asarray(weight_scale, np.float64)
    zeros = np.full(scales.shape, 8) if weight_zero_point is None else _codes("weight_zero_point", weight_zero_point, 0)
    return _weights(codes, scales, zeros)
