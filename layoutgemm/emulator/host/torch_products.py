"""Matrix products of torch on an emulated GPU, summed as tensor cores do.

Products of 16-bit floats are summed in float32 and rounded once. Where a plain product or an einsum has one summed
axis, 16 of its elements are added at a time, as by an instruction of a tensor core. `torch._scaled_mm` with block
scales, which torch lacks on the CPU, multiplies the scaled values in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any

import numpy as np

from ...atoms.tmem.layout import scale_chunk
from ...dtypes import dtype

PRODUCTS = (
    "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "linear", "baddbmm", "addmm", "addbmm", "mv", "dot",
    "_scaled_mm",
)  # fmt: skip
STEP = 16  # elements of 16 bits that an instruction of a tensor core sums (PTX ISA, "mma", "wgmma", "tcgen05.mma")


def product(torch: ModuleType, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The product that a function of torch, one of PRODUCTS, gives on a GPU."""
    if name == "_scaled_mm":
        found = block_scaled(torch, *args, **kwargs)
        return func(*args, **kwargs) if found is None else found
    short = (torch.float16, torch.bfloat16)
    kinds = {x.dtype for x in tensors_in(torch, args) if x.dtype in short}
    if len(kinds) != 1 or kwargs.get("out") is not None:
        return func(*args, **kwargs)

    def wide(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.float() if x.dtype in short else x
        return type(x)(map(wide, x)) if type(x) in (list, tuple) else x

    args = tuple(map(wide, args))
    kwargs = {key: wide(x) for key, x in kwargs.items()}
    found = None if kwargs else _in_steps(torch, name, func, args)
    done = func(*args, **kwargs) if found is None else found
    return done.to(kinds.pop()) if isinstance(done, torch.Tensor) else done


def _in_steps(torch: ModuleType, name: str, func: Any, args: tuple[Any, ...]) -> Any:
    """A product summed STEP elements at a time; None unless one axis is summed."""
    if name == "einsum" and len(args) == 3 and isinstance(args[0], str) and "." not in args[0] and "->" in args[0]:
        equation, *operands = args
        inputs, _, output = equation.replace(" ", "").partition("->")
        names = inputs.split(",")
        summed = {letter for letter in inputs if letter.isalpha() and letter not in output}
        if len(names) != 2 or len(summed) != 1 or any(name.count(min(summed)) != 1 for name in names):
            return None
        axes = [name.index(min(summed)) for name in names]
        times: Callable[[Any, Any], Any] = lambda a, b: func(equation, a, b)  # noqa: E731
    elif name in ("matmul", "__matmul__", "mm", "bmm") and len(args) == 2 and all(x.dim() >= 2 for x in args):
        operands, axes, times = list(args), [args[0].dim() - 1, args[1].dim() - 2], func
    else:
        return None
    if not all(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in operands):
        return None
    a, b = (torch.split(x, STEP, axis) for x, axis in zip(operands, axes, strict=True))
    if len(a) != len(b) or not len(a):
        return None
    total = times(a[0], b[0])
    for left, right in zip(a[1:], b[1:]):
        total = total + times(left, right)
    return total


def tensors_in(torch: ModuleType, values: Iterable[object]) -> Iterator[Any]:
    """The tensors among values, and in lists and tuples of them."""
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from tensors_in(torch, x)


def block_scaled(
    torch: ModuleType, a: Any, b: Any, scale_a: Any, scale_b: Any, bias: Any = None, scale_result: Any = None,
    out_dtype: Any = None, use_fast_accum: bool = False,
) -> Any:  # fmt: skip
    """torch._scaled_mm of A [M, K] and B [K, N] with block scales; else None.

    A factor is for 32 elements along K in e8m0, for 16 in e4m3. cuBLAS keeps them in the order of `scale_chunk`.
    """
    sizes = {torch.float8_e8m0fnu: 32, torch.float8_e4m3fn: 16}
    if scale_a.dtype not in sizes or scale_b.dtype is not scale_a.dtype or scale_result is not None:
        return None
    left = _scaled(torch, a, scale_a, sizes[scale_a.dtype])
    right = _scaled(torch, b.t(), scale_b, sizes[scale_a.dtype])
    if left is None or right is None:
        return None
    done = left @ right.t()
    if bias is not None:
        done = done + bias.float()
    return done.to(out_dtype or torch.bfloat16)


def _scaled(torch: ModuleType, x: Any, scale: Any, size: int) -> Any:
    """The values [rows, K] of a narrow matrix times its scale factors, in float32; None for another count of them."""
    if x.dtype == torch.float4_e2m1fn_x2:  # two to a byte, the first in the lower bits
        codes = x.contiguous().view(torch.uint8).cpu().numpy()
        pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)
        values = torch.from_numpy(np.asarray(dtype("e2m1").decode(np.arange(16)), np.float32)[pairs])
    else:
        values = x.float()
    rows, columns = values.shape
    factors = -(-columns // size)
    down, along = -(-rows // 128), -(-factors // 4)
    if scale.numel() != down * along * 512:
        return None
    place = np.asarray(scale_chunk().offsets()).reshape(4, 128).T  # [row, factor] of a chunk
    chunks = scale.contiguous().reshape(down, along, 512).float()[:, :, torch.from_numpy(place.copy())]
    table = chunks.permute(0, 2, 1, 3).reshape(down * 128, along * 4)[:rows, :factors]
    return values * table.repeat_interleave(size, 1)[:, :columns]
