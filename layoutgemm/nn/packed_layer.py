"""Layers of packed or float8 weights from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from ..errors import LayoutError, OperandError, TensorError
from ..kernels.quantized.checkpoints import scale_values
from ..torch_op.scaled_grouped import DEPTH
from .quantized import NEEDED, QuantizedLinear
from .scaled import FLOAT8, ScaledLinear

FLOAT8_KIND, FLOAT8_SCALE = "fp8", "weight_scale_inv"
BLOCK_SCALE = "weight_scale"  # compressed-tensors' name of the same
PACKED_BY = (*dict.fromkeys(first for first, *_ in NEEDED.values()), FLOAT8_SCALE)  # the tensors that dense layers lack


def packed_layer(
    name: str, tensors: Mapping[str, torch.Tensor], kind: str, size: tuple[int, int], dtype: torch.dtype
) -> QuantizedLinear | ScaledLinear:
    """The layer of a checkpoint's tensors, by the last words of their names.

    size   (out features, in features) of the layer in the model
    dtype  of its weights there

    Raises OperandError or TensorError, naming the layer, for tensors that are not those of the kind or of the size.
    """
    made: QuantizedLinear | ScaledLinear
    try:
        if kind == FLOAT8_KIND:
            made = _scaled(tensors, size, dtype)
        else:
            made = QuantizedLinear.from_checkpoint(tensors, kind, dtype=dtype)
    except LayoutError as error:
        raise OperandError(f"{name}: {error}") from error
    check_size(name, (made.out_features, made.in_features), size)
    return made


def has_block_scales(weight: tuple[int, ...], scale: tuple[int, ...]) -> bool:
    """True if scales are of 128 x 128 blocks, by the shapes alone.

    Scales of rows, scales of groups and one scale are not.

    >>> has_block_scales((256, 512), (2, 4)), has_block_scales((256, 512), (256, 4)), has_block_scales((64, 64), (1, 1))
    (True, False, False)
    """
    return len(weight) == 2 and scale == blocks_of(weight) and scale[0] != weight[0] and scale != (1, 1)


def blocks_of(weight: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the scales of 128 x 128 blocks.

    >>> blocks_of((129, 64))
    (2, 1)
    """
    return tuple(-(-size // DEPTH) for size in weight)


def check_size(name: str, found: tuple[int, ...], size: tuple[int, ...]) -> None:
    """Raise TensorError unless stored weights have the model's size."""
    if found != size:
        have, want = ("x".join(map(str, each)) for each in (found, size))
        raise TensorError(f"{name} has {have} weights in the checkpoint, and {want} in the model")


def _scaled(tensors: Mapping[str, torch.Tensor], size: tuple[int, int], dtype: torch.dtype) -> ScaledLinear:
    """A layer of float8 weights with scales of blocks."""
    scale = tensors.get(BLOCK_SCALE)
    if scale is not None and FLOAT8_SCALE not in tensors and tuple(scale.shape) == blocks_of(size):
        tensors = {name: x for name, x in tensors.items() if name != BLOCK_SCALE} | {FLOAT8_SCALE: scale}
    scale = tensors.get(FLOAT8_SCALE)
    if scale is not None and scale.dtype == torch.uint8:  # exponents of powers of two, as files of e8m0 are read
        values = torch.from_numpy(scale_values(FLOAT8_SCALE, scale.cpu().numpy())).float()
        tensors = {**tensors, FLOAT8_SCALE: values.to(scale.device)}
    if surplus := sorted(tensors.keys() - {"weight", FLOAT8_SCALE, "bias"}):
        way_out = "; kind 'float-quantized' reads weight_scale" * ("weight_scale" in surplus)
        raise OperandError(
            f"{surplus[0]} is surplus: a layer of kind 'fp8' has weight, {FLOAT8_SCALE} and bias alone{way_out}"
        )
    weight = tensors.get("weight")
    if weight is None or weight.dtype != FLOAT8 or tuple(weight.shape) != size:
        there = "missing" if weight is None else f"{weight.dtype} of shape {list(weight.shape)}"
        raise OperandError(f"weight is {there}: {FLOAT8} of {list(size)}")
    made = ScaledLinear(size[1], size[0], "bias" in tensors, dtype=dtype)
    made.load_state_dict(dict(tensors))
    return made
