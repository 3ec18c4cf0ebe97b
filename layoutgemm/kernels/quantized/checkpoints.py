"""Codes of checkpoints, as other tools pack them, to plain QuantizedWeights.

    tool                  int32 words            order in a word               zero points
    ------------------    -------------------    --------------------------    -----------------------------------------
    GPTQ                  (K / 8, N), along K    code i at bit 4 i             (groups, N / 8), along N, one less stored
    AWQ, GEMM             (K, N / 8), along N    columns 0 2 4 6 1 3 5 7       (groups, N / 8), along N, the same order
    AWQ, GEMV             (N, K / 8), along K    code i at bit 4 i             (N, groups / 8), along K, filled up
    compressed-tensors    (N, K / 8), along K    code i at bit 4 i             (N / 8, groups), along N

Scales are (groups, N) of GPTQ and AWQ, (N, groups) of compressed-tensors and of GEMV, which fills them up with 0.
GPTQ's second format stores zero points as they are. The first has 1 subtracted from each of a word's, as integers: a
zero point of 0 takes 1 from the next one. So 1 is added to each of a word's, with carries. The last words of
compressed-tensors are filled up where K, or N of zero points, is no whole words. Its zero points may also be int8 (N,
groups), with a sign.

GPTQ and compressed-tensors have 8 bits, too, in half as many codes a word: they are int8 where every zero point is 128,
and refused otherwise. Float4 weights are bytes of two codes along K, the first in the low half, and scales of e4m3 or
powers of two (`from_float4`). Weights of whole bytes, int8 or float8, lie as they are (`from_bytes`).

Sources: the packing functions of AutoGPTQ (qlinear_cuda.py), GPTQModel (convert_gptq_v1_to_v2_format), AutoAWQ
(packing_utils.py, gemv.py), compressed-tensors (pack_quantized.py, nvfp4, naive_quantized.py), gpt-oss (weights.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from ...arguments import checked, shown
from ...errors import OperandError
from .formats import GROUPS, QuantizedFormat
from .packing import QuantizedWeights

_WORD = 32
_BITS = (4, 8)
_CODES = _WORD // _BITS[0]  # of 4 bits in a word
_IN_ORDER = tuple(range(_CODES))
_AWQ = (0, 2, 4, 6, 1, 3, 5, 7)  # the column that nibble i of a word holds
_EXCESS, _NAN_EXPONENT = 127, 255  # of scales that are powers of two
_BLOCK = 128  # rows and columns of a block that shares a scale
_NO_GROUP = -1  # in each place of a weight_g_idx that was never set
Words = npt.NDArray[Any]


def _words(name: str, words: Words) -> Words:
    """The words of a matrix. Raises OperandError for others than int32."""
    array = np.asarray(words)
    if array.ndim != 2 or array.dtype not in (np.int32, np.uint32):
        raise OperandError(f"{name} is {array.dtype} of shape {array.shape}: int32 words of a matrix")
    return array


def _codes(
    name: str, words: Words, axis: int, order: tuple[int, ...] = _IN_ORDER, bits: int = 4
) -> npt.NDArray[np.uint8]:
    """The codes of words along an axis: eight of 4 bits a word, or four of 8."""
    array = _words(name, words)
    raw, count = np.ascontiguousarray(array).view(np.uint32), _WORD // bits
    places, mask = np.argsort(order[:count]), np.uint32((1 << bits) - 1)
    parts = [(raw >> np.uint32(bits * int(places[i])) & mask).astype(np.uint8) for i in range(count)]
    found = np.stack(parts, axis=axis + 1)
    shape = list(array.shape)
    shape[axis] *= count
    return found.reshape(shape)


def _floats(name: str, given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Scales in float64. Raises OperandError for other numbers, which would be exponents or codes."""
    array = np.asarray(given)
    if array.dtype.kind != "f":
        raise OperandError(f"{name} is {array.dtype} of shape {array.shape}: floats")
    return array.astype(np.float64)


def scale_values(name: str, given: npt.ArrayLike) -> npt.NDArray[np.float64]:
    """Scales in float64, from floats or from uint8, which are exponents of powers of two.

    Raises OperandError for other numbers, and for an exponent of 255, which is NaN.

    >>> scale_values("scales", np.array([127, 130], np.uint8)).tolist()
    [1.0, 8.0]
    """
    array = np.asarray(given)
    if array.dtype != np.uint8:
        return _floats(name, array)
    if (array == _NAN_EXPONENT).any():
        at = tuple([int(x) for x in np.argwhere(array == _NAN_EXPONENT)[0]])
        raise OperandError(f"{name} 255 at {at} is NaN: exponents are 0 to 254")
    return np.exp2(array.astype(np.float64) - _EXCESS)


def _bits(name: str, words: Words, axis: int, features: int, filled: bool = False) -> int:
    """Bits of a code of words that hold as many as there are features.

    filled  whether the last word is filled up

    Raises OperandError unless they are 4 or 8, and for so few features that both are.
    """
    shape = np.shape(words)
    held = (shape[axis] if len(shape) == 2 else 0) * _WORD
    found = [bits for bits in _BITS if features and 0 <= held - features * bits < (_WORD if filled else 1)]
    if len(found) == 1:
        return found[0]
    if found:
        raise OperandError(f"{name} has shape {shape}: {features} codes of 4 bits fill a word as those of 8 do")
    many = f"{held / features:g} bits each" if features else "none"
    raise OperandError(f"{name} has shape {shape}: {features} codes would have {many}; known are 4 and 8")


def _weights(codes: npt.NDArray[np.uint8], scales: object, zeros: npt.NDArray[Any], bits: int = 4) -> QuantizedWeights:
    """Plain weights of (N, K) codes and (N, groups); zero points of half the range alone need none."""
    wide = np.asarray(scales, np.float64)
    if wide.ndim != 2 or wide.shape != zeros.shape or wide.shape[0] != codes.shape[0] or not wide.shape[1]:
        raise OperandError(f"scales {wide.shape} and zero points {zeros.shape} of {codes.shape} codes: (N, groups)")
    symmetric = bool((zeros == 1 << (bits - 1)).all())
    if bits == 8 and not symmetric:
        at = tuple([int(x) for x in np.argwhere(zeros != 128)[0]])
        raise OperandError(f"zero point {int(zeros[at])} at {at} of 8-bit codes: int8 weights have 128 everywhere")
    code = "int4"
    if bits == 8:
        code, codes = "int8", codes ^ np.uint8(128)  # code - 128, in two's complement
    if wide.shape[1] == 1 and codes.shape[1] not in GROUPS and symmetric:
        return QuantizedWeights(QuantizedFormat(code), codes, wide[:, 0].astype(np.float32))
    group, repeats = _group(codes.shape[1], wide.shape[1])
    wide, zeros = np.repeat(wide, repeats, axis=1), np.repeat(zeros, repeats, axis=1)
    fmt = QuantizedFormat(code, group, zeros=not symmetric)
    return QuantizedWeights(fmt, codes, wide, None if symmetric else zeros)


def _group(k: int, groups: int) -> tuple[int, int]:
    """(weights that share a scale, repeats of each scale) for K in that many groups.

    Groups of a multiple of a known size become several with the same scale. Raises OperandError for others.
    """
    size, rest = divmod(k, groups) if groups else (0, k)
    found = next((group for group in reversed(GROUPS) if size and size % group == 0), None)
    if rest or found is None:
        raise OperandError(f"{groups} groups of K = {k}: known are groups of {GROUPS}")
    return found, size // found


def symmetric_version(qzeros: Words) -> int | None:
    """The version of GPTQ's format, by symmetric weights' zero points; None for others.

    >>> [symmetric_version(np.full((1, 1), word, np.uint32)) for word in (0x77777777, 0x80808080, 0x77777778)]
    [1, 2, None]
    """
    words = np.ascontiguousarray(qzeros).view(np.uint32)
    for version, known in ((1, (0x77777777, 0x7F7F7F7F)), (2, (0x88888888, 0x80808080))):
        if words.size and (words == words.flat[0]).all() and int(words.flat[0]) in known:
            return version
    return None


def _first_format(qzeros: Words, bits: int) -> Words:
    """The zero points' words of GPTQ's first format, with 1 added to each zero point.

    Carries go from one zero point to the next.

    Raises OperandError for a word that AutoGPTQ stored of a zero point of 0: -1 in all bits from there on.
    """
    words, ones = np.ascontiguousarray(qzeros).view(np.uint32), (1 << _WORD) - 1
    for place in range(_WORD // bits - 1):
        lost = np.argwhere(words >> np.uint32(bits * place) == ones >> bits * place)
        if len(lost):
            at = tuple([int(x) for x in lost[0]])
            raise OperandError(
                f"qzeros {int(words[at]):#010x} at {at}: zero point {place} of the word is 0, stored as -1 over those "
                "behind it, which are lost. Quantise again, into the format 'gptq_v2'"
            )
    found: Words = words + np.uint32(ones // ((1 << bits) - 1))
    return found


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


def _in_order(
    name: str, codes: npt.NDArray[np.uint8], groups: int, g_idx: npt.ArrayLike | None, order: npt.ArrayLike | None
) -> npt.NDArray[np.uint8]:
    """Codes (N, K), their columns group by group in `order`. Raises OperandError for groups out of order."""
    if g_idx is None:
        if order is not None:
            raise OperandError(f"order without {name}: it is of input features whose groups are not in order")
        return codes
    given, count = np.asarray(g_idx), codes.shape[1]
    if given.shape != (count,) or given.dtype.kind not in "iu":
        raise OperandError(f"{name} is {given.dtype} of shape {given.shape}: integers of ({count},)")
    if order is not None:
        taken = np.asarray(order)
        if not np.array_equal(np.sort(taken.reshape(-1)), np.arange(count)):
            raise OperandError(f"order has shape {taken.shape}: each of {count} input features once")
        codes, given = codes[:, taken], given[taken]
    if count and (given.min() < 0 or given.max() >= groups):
        at = int(np.argmax((given < 0) | (given >= groups)))
        raise OperandError(f"{name}[{at}] = {given[at]}: groups are 0 to {groups - 1}, as the scales have them")
    wrong = np.nonzero(given != np.arange(count) // max(1, count // max(1, groups)))[0]
    if len(wrong):
        order_of_groups(given, groups)  # of groups of other sizes no order helps
        at = int(wrong[0])
        raise OperandError(f"{name}[{at}] = {given[at]}: groups are not in order (act-order): give order=")
    return codes


@checked(OperandError)
def from_gptq(
    qweight: Words, qzeros: Words, scales: npt.ArrayLike, g_idx: npt.ArrayLike | None = None,
    order: npt.ArrayLike | None = None, version: int = 1,
) -> QuantizedWeights:  # fmt: skip
    """The weights of a GPTQ checkpoint of 4 bits, or of 8 with the zero point 128.

    qweight  (K / 8, N); qzeros (groups, N / 8), one less than the zero points; scales (groups, N). Of 8 bits K / 4
             and N / 4
    version  of the format: in 2 ("gptq_v2" in a quantize_config.json) qzeros are the zero points. Those of version 2
             that are half the range everywhere are refused as version 1: some tools call them "gptq"
    g_idx    (K,): the group of each input feature
    order    the input features in the order of their groups, as `order_of_groups` has them: of an "act-order"
             checkpoint. The weights are of input features in that order, and x has to be given in it

    Raises OperandError for shapes that do not fit, and for groups out of order.
    """
    if version not in (1, 2):
        raise OperandError(f"version = {shown(version)}: 1, or 2 for zero points as they are")
    of_scales = np.shape(scales)
    bits = _bits("qzeros", qzeros, 1, of_scales[1] if len(of_scales) == 2 else 0)
    codes = _codes("qweight", qweight, 0, bits=bits).T
    if version == 1 and symmetric_version(qzeros) == 2:
        raise OperandError(
            f"qzeros are {1 << (bits - 1)} everywhere: zero points of symmetric weights as version 2 stores them. As "
            f"version 1 they would be {(1 << (bits - 1)) + 1}: version=2, or kind 'gptq_v2'"
        )
    stored = qzeros if version == 2 else _first_format(_words("qzeros", qzeros), bits)
    zeros = _codes("qzeros", stored, 1, bits=bits).T.astype(np.int64)
    codes = _in_order("g_idx", codes, zeros.shape[1], g_idx, order)
    return _weights(np.ascontiguousarray(codes), _floats("scales", scales).T, zeros, bits)


@checked(OperandError)
def from_awq(qweight: Words, qzeros: Words, scales: npt.ArrayLike) -> QuantizedWeights:
    """The weights of an AWQ checkpoint in GEMM's order.

    qweight  (K, N / 8); qzeros (groups, N / 8); scales (groups, N)

    Raises OperandError for shapes that do not fit, as those in GEMV's order: see `from_awq_gemv`.
    """
    shapes = np.shape(qweight), np.shape(scales)
    if [len(shape) for shape in shapes] == [2, 2] and shapes[0][1] * 8 != shapes[1][1]:
        raise OperandError(
            f"qweight has shape {shapes[0]} and scales {shapes[1]}: (K, N / 8) and (groups, N), GEMM's order; "
            "words along K are GEMV's: kind 'awq_gemv'"
        )
    codes, zeros = _codes("qweight", qweight, 1, _AWQ).T, _codes("qzeros", qzeros, 1, _AWQ).T
    return _weights(np.ascontiguousarray(codes), _floats("scales", scales).T, zeros)


@checked(OperandError)
def from_awq_gemv(qweight: Words, qzeros: Words, scales: npt.ArrayLike) -> QuantizedWeights:
    """The weights of an AWQ checkpoint in GEMV's order.

    qweight  (N, K / 8); qzeros (N, words); scales (N, 8 * words), with columns of 0 behind those of the groups

    The columns that are not 0 say how many groups there are. Words hold 8 zero points each, and as many are filled up:
    one word of groups of 128 or more, two of 64, four of 32. AWQ's own scales are above 0.

    Raises OperandError for shapes that do not fit, for groups that K does not have, and for another count of words.

    >>> ones = np.ones((8, 8)) * [1, 1, 0, 0, 0, 0, 0, 0]  # two groups of 128
    >>> made = from_awq_gemv(np.full((8, 32), 0x22222222, np.int32), np.full((8, 1), 0x11, np.int32), ones)
    >>> made.codes.shape, made.format.group, made.dense()[0, 0]
    ((8, 256), 128, np.float64(1.0))
    """
    codes, zeros, wide = _codes("qweight", qweight, 1), _codes("qzeros", qzeros, 1), _floats("scales", scales)
    if wide.shape != zeros.shape or len(wide) != len(codes):
        raise OperandError(
            f"qweight has shape {np.shape(qweight)}, qzeros {np.shape(qzeros)} and scales {wide.shape}: (N, K / 8), "
            "(N, words) and (N, 8 * words), GEMV's order"
        )
    k, groups = codes.shape[1], int(wide.any(axis=0).sum())
    if len(wrong := np.argwhere((wide != 0) != (np.arange(wide.shape[1]) < groups))):
        at = tuple([int(x) for x in wrong[0]])
        raise OperandError(f"scale {at} is {wide[at]:g}: those of {groups} groups are not 0, and all behind them are")
    if not groups or k % groups:
        raise OperandError(f"scales have {groups} column(s) that are not 0: K = {k} has no such number of groups")
    fill = max(1, _BLOCK // (k // groups))
    words = -(-groups // (_CODES * fill)) * fill
    if words != np.shape(qzeros)[1]:
        raise OperandError(
            f"qzeros has {np.shape(qzeros)[1]} words a row: {groups} groups of {k // groups} have {words} in GEMV's "
            "order"
        )
    return _weights(codes, wide[:, :groups], zeros[:, :groups])


@checked(OperandError)
def from_compressed_tensors(
    weight_packed: Words, weight_scale: npt.ArrayLike, weight_zero_point: Words | None = None,
    weight_shape: npt.ArrayLike | None = None, weight_g_idx: npt.ArrayLike | None = None,
    order: npt.ArrayLike | None = None,
) -> QuantizedWeights:  # fmt: skip
    """The weights of a compressed-tensors checkpoint, "pack-quantized" with 4 bits, or 8 with the zero point 128.

    weight_packed  (N, K / 8); weight_scale (N, groups); weight_zero_point (N / 8, groups), int8 (N, groups) of signed
                   ones, or None. Of 8 bits K / 4
    weight_shape   (2,): N and K, which say the bits; 4 without them, and K is whole words
    weight_g_idx   (K,): the group of each input feature; -1 of each where none was set
    order          as of `from_gptq`

    Raises OperandError for shapes that do not fit, and for groups out of order.
    """
    bits, scales, k = 4, _floats("weight_scale", weight_scale), None
    if weight_shape is not None:
        given, shape = np.asarray(weight_shape).reshape(-1), np.shape(weight_packed)
        sizes = given.tolist()
        if given.dtype.kind not in "iu" or len(sizes) != 2 or shape[:1] != (sizes[0],):
            raise OperandError(f"weight_shape is {sizes}, and weight_packed has shape {shape}: N and K")
        k = sizes[1]
        bits = _bits("weight_packed", weight_packed, 1, k, filled=True)
    codes = _codes("weight_packed", weight_packed, 1, bits=bits)[:, :k]
    zeros: Words = np.full(scales.shape, 1 << (bits - 1))
    if np.asarray(weight_zero_point).dtype == np.int8:  # as codes are before they are packed: with a sign
        zeros = np.asarray(weight_zero_point).astype(np.int64) + (1 << (bits - 1))
    elif weight_zero_point is not None:
        zeros = _codes("weight_zero_point", weight_zero_point, 0, bits=bits).astype(np.int64)
        if zeros.shape[0] - codes.shape[0] in range(_WORD // bits):
            zeros = zeros[: codes.shape[0]]
    if weight_g_idx is not None and np.array_equal(weight_g_idx, np.full(codes.shape[1], _NO_GROUP)):
        weight_g_idx = None
    codes = _in_order("weight_g_idx", codes, scales.shape[-1], weight_g_idx, order)
    return _weights(np.ascontiguousarray(codes), scales, zeros, bits)


@checked(OperandError)
def from_bytes(
    weight: npt.ArrayLike, weight_scale: npt.ArrayLike, code: str = "int8", weight_zero_point: object = None
) -> QuantizedWeights:
    """The weights of a checkpoint of whole bytes: compressed-tensors' float8 and int8, and MXFP8.

    weight        (N, K): int8; or uint8, the bits of float8
    weight_scale  floats: one number, (N,) or (N, 1) of columns, (N, groups), or (N / 128, K / 128) of blocks, rounded
                  up. Of float8 also uint8: the exponents of powers of two, with an excess of 127
    code          "int8", "e4m3" or "e5m2"
    weight_zero_point  zeros, of any shape, or None

    Raises OperandError for shapes and types that do not fit, for codes of NaN, and for zero points above or below 0.

    >>> from_bytes(np.full((2, 64), 0x38, np.uint8), [[0.5], [2]], "e4m3").dense()[:, 0].tolist()
    [0.5, 2.0]
    """
    codes, stored = np.asarray(weight), "i1" if code == "int8" else "u1"
    scales = (_floats if code == "int8" else scale_values)("weight_scale", weight_scale)
    if codes.ndim != 2 or codes.dtype != stored:
        raise OperandError(f"weight is {codes.dtype} of shape {codes.shape}: {np.dtype(stored)} of (N, K) for {code}")
    zeros = np.zeros(1) if weight_zero_point is None else np.asarray(weight_zero_point).astype(np.float64)
    if zeros.any():
        at = tuple([int(x) for x in np.argwhere(zeros)[0]])
        raise OperandError(f"weight_zero_point {zeros[at]:g} at {at}: {code} weights have 0 everywhere")
    (n, k), bits = codes.shape, codes.view(np.uint8)
    if scales.size == 1 or scales.shape in ((n,), (n, 1)):
        return QuantizedWeights(QuantizedFormat(code), bits, np.broadcast_to(scales.reshape(-1), n).astype(np.float32))
    of_blocks = -(-n // _BLOCK), -(-k // _BLOCK)
    if scales.shape == of_blocks and k % _BLOCK == 0:
        scales = np.repeat(scales, _BLOCK, axis=0)[:n]
    if scales.ndim != 2 or scales.shape[0] != n:
        raise OperandError(
            f"weight_scale has shape {scales.shape}: one number, ({n},), ({n}, 1), ({n}, groups), or {of_blocks} of "
            f"128 x 128 blocks" + f", and K = {k} is no multiple of 128" * (scales.shape == of_blocks)
        )
    group, repeats = _group(k, scales.shape[1])
    return QuantizedWeights(QuantizedFormat(code, group), bits, np.repeat(scales, repeats, axis=1))


@checked(OperandError)
def from_float4(
    packed: npt.ArrayLike, scales: npt.ArrayLike, global_scale: npt.ArrayLike | None = None
) -> QuantizedWeights:
    """The weights of an MXFP4 or NVFP4 checkpoint: compressed-tensors' or gpt-oss's.

    packed  uint8 (N, K / 2), or (N, groups, bytes). A byte has two codes along K, the first in the low half
    scales  (N, groups), floats. Or uint8: the exponents of powers of two, with an excess of 127
    global_scale  one number that scales are divided by, or None

    Raises OperandError for shapes and types that do not fit, and for a scale that is NaN.

    >>> weights = from_float4(np.full((64, 64), 0x21, np.uint8), np.full((64, 4), 128, np.uint8))
    >>> weights.format == QuantizedFormat("e2m1", 32), weights.dense()[0, :4].tolist()
    (True, [1.0, 2.0, 1.0, 2.0])
    """
    array, given = np.asarray(packed), np.asarray(scales)
    if array.ndim not in (2, 3) or array.dtype != np.uint8 or given.ndim != 2 or given.shape[0] != array.shape[0]:
        raise OperandError(
            f"packed is {array.dtype} of shape {array.shape}, and scales have shape {given.shape}: uint8 (N, K / 2) or "
            "(N, groups, bytes), and (N, groups); of several experts each one alone"
        )
    flat = array.reshape(array.shape[0], -1)
    codes = np.stack([flat & 15, flat >> 4], axis=-1).reshape(flat.shape[0], -1)
    wide = scale_values("scales", given)
    if global_scale is not None:
        divisor = _floats("global_scale", global_scale).reshape(-1)
        if divisor.shape != (1,) or not 0 < divisor[0] < np.inf:
            raise OperandError(f"global_scale is {divisor.tolist()}: one finite number above 0")
        wide = wide / divisor[0]
    group, rest = divmod(codes.shape[1], wide.shape[1] or 1)
    if rest or group not in GROUPS:
        raise OperandError(f"{wide.shape[1]} groups of K = {codes.shape[1]}: known are groups of {GROUPS}")
    return QuantizedWeights(QuantizedFormat("e2m1", group), codes, wide)
