"""Values and scales by torch's operators, on any device: the bits of the kernel."""

from __future__ import annotations

import torch

from ...kernels.fp8.plan import BLOCK as DEPTH
from ...kernels.fp8.plan import LEAST
from ..scaled_grouped.recipes import BLOCK, ROW, SQUARE


def quantized(
    x: torch.Tensor, recipe: str, dtype: torch.dtype, powers: bool
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    """x (..., M, K) as `dtype`, and scales (..., M or its squares, K blocks). (..., M, 1); or of all x one.

    >>> values, scales = quantized(torch.tensor([[1.0, -3.5]]), "BlockWise1x128", torch.float8_e4m3fn, False)
    >>> values.float().tolist(), scales.tolist()
    ([[128.0, -448.0]], [[0.0078125]])
    """
    rows, columns = x.shape[-2:]
    if not x.numel():
        groups = -(-rows // DEPTH) if recipe == SQUARE else rows
        blocks = -(-columns // DEPTH) if recipe in (BLOCK, SQUARE) else 1
        shape = (*x.shape[:-2], groups, blocks) if recipe in (BLOCK, SQUARE, ROW) else (1,) * x.ndim
        return x.to(dtype), _scales(x.new_zeros(shape, dtype=torch.float32), dtype, powers)[0]
    high = DEPTH if recipe == SQUARE else 1
    wide = DEPTH if recipe in (BLOCK, SQUARE) else columns
    padded = torch.nn.functional.pad(x.float(), (0, -columns % wide, 0, -rows % high))
    blocks_of_x = padded.unflatten(-1, (-1, wide)).unflatten(-3, (-1, high))  # ..., groups, high, blocks, wide
    amax = blocks_of_x.abs().amax((-3, -1), keepdim=True)
    if recipe not in (BLOCK, SQUARE, ROW):
        amax = amax.amax().reshape((1,) * amax.ndim)
    scale, inverse = _scales(amax, dtype, powers)
    values = _rounded(blocks_of_x * inverse, dtype)
    scales = scale.flatten(-2).flatten(-3, -2)
    return values.flatten(-2).flatten(-3, -2)[..., :rows, :columns].contiguous(), scales


def _scales(amax: torch.Tensor, dtype: torch.dtype, powers: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales, and what values are multiplied by: divisions by tensors, which are correctly rounded on a GPU too."""
    amax = amax.clamp_min(LEAST)
    most = torch.full_like(amax, torch.finfo(dtype).max)
    scale, one = amax / most, torch.ones_like(amax)
    if not powers:
        return scale, one / amax * most
    bits = scale.contiguous().view(torch.int32)
    power = ((bits + 0x7FFFFF) & -0x800000).view(torch.float32)  # the exponent above, but for powers
    scale = torch.where(scale.isnan(), scale, power)
    return scale, one / scale


def _rounded(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Rounded to nearest even, saturating; NaN as 0x7f, whatever its sign."""
    most = torch.finfo(dtype).max
    return torch.where(x.isnan(), torch.nan, x.clamp(-most, most)).to(dtype)
