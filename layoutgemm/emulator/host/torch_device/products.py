"""Matrix products of torch on an emulated GPU, summed as tensor cores do.

Products of 16-bit floats are summed in float32 and rounded once. Where a plain product or an einsum has one summed
axis, 16 of its elements are added at a time, as by an instruction of a tensor core. Products with block scales, also
of groups, which torch lacks on the CPU, multiply the scaled values in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np

from ....atoms.tmem.layout import block_scale_layout
from ....dtypes import dtype
from ...ops.mma.operands import products

if TYPE_CHECKING:
    from torch import Tensor
    from torch import dtype as TorchType

PRODUCTS = (
    "matmul", "__matmul__", "__rmatmul__", "mm", "bmm", "einsum", "linear", "baddbmm", "addmm", "addbmm", "mv", "dot",
    "_scaled_mm", "_scaled_grouped_mm_v2",
)  # fmt: skip
STEP = 16  # elements of 16 bits that an instruction of a tensor core sums (PTX ISA, "mma", "wgmma", "tcgen05.mma")


def product(torch: ModuleType, name: str, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The product that a function of torch, one of PRODUCTS, gives on a GPU."""
    if name == "_scaled_mm":
        found = block_scaled(torch, *args, **kwargs)
        return func(*args, **kwargs) if found is None else found
    if name == "_scaled_grouped_mm_v2":
        found = grouped_block_scaled(torch, *args, **kwargs)
        return func(*args, **kwargs) if found is None else found
    short = (torch.float16, torch.bfloat16)
    # mm, bmm, addmm and baddbmm take the type of the result, which torch has on a GPU alone.
    wanted = next((x for x in (*args, kwargs.get("out_dtype")) if isinstance(x, torch.dtype)), None)
    if wanted is not None and name in ("mm", "bmm", "addmm", "baddbmm"):
        args = tuple([x for x in args if x is not wanted])
        kwargs = {key: x for key, x in kwargs.items() if key != "out_dtype"}
    else:
        wanted = None
    given = list(tensors_in(torch, args))
    kinds = {x.dtype for x in given if x.is_floating_point()}
    fake = any(type(x) not in (torch.Tensor, torch.nn.Parameter) for x in given)  # of a tracer, without values
    if wanted is None and (fake or len(kinds) != 1 or not kinds <= {*short} or kwargs.get("out") is not None):
        return func(*args, **kwargs)

    def wide(x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return x.float() if x.dtype in short else x
        return type(x)(map(wide, x)) if type(x) in (list, tuple) else x

    args = tuple(map(wide, args))
    kwargs = {key: wide(x) for key, x in kwargs.items()}
    found = None if kwargs else _in_steps(torch, name, args)
    done = func(*args, **kwargs) if found is None else found
    casts = name != "dot" and torch.is_autocast_enabled("cuda")  # of a dot product it does not change the type
    cast = torch.get_autocast_dtype("cuda") if casts else kinds.pop()
    return done.to(wanted or cast) if isinstance(done, torch.Tensor) else done


def _in_steps(torch: ModuleType, name: str, args: tuple[Any, ...]) -> Tensor | None:
    """A product summed STEP elements at a time; None unless one axis is summed, and for gradients."""
    if name == "einsum" and len(args) == 3 and isinstance(args[0], str):
        equation, a, b = args
    elif name in ("matmul", "__matmul__", "mm", "bmm") and len(args) == 2 and args[0].dim() == args[1].dim():
        (a, b), equation = args, {2: "mk,kn->mn", 3: "zmk,zkn->zmn"}.get(args[0].dim(), "")
    else:
        return None
    if not all(isinstance(x, torch.Tensor) and x.dtype == torch.float32 and x.numel() for x in (a, b)):
        return None
    axes = _axes(equation.replace(" ", ""))
    if axes is None or a.requires_grad or b.requires_grad or (name != "einsum" and a.shape[:-2] != b.shape[:-2]):
        return None
    first, second, output, batch, rows, columns, along = axes
    size = {**dict(zip(first, a.shape)), **dict(zip(second, b.shape))}
    left = a.permute([first.index(x) for x in batch + rows + along]).numpy()
    right = b.permute([second.index(x) for x in batch + along + columns]).numpy()
    count, k = math.prod(size[x] for x in batch), size[along]
    left, right = left.reshape(count, -1, k), right.reshape(count, k, -1)
    found = np.zeros((count, left.shape[1], right.shape[2]), np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        for one, at in np.ndindex(count, -(-k // STEP)):
            step = slice(at * STEP, (at + 1) * STEP)
            found[one] += products(left[one, :, step], right[one, step])
    order = batch + rows + columns
    return torch.from_numpy(found.reshape([size[x] for x in order])).permute([order.index(x) for x in output])


def _axes(equation: str) -> tuple[str, str, str, str, str, str, str] | None:
    """An equation's terms, its batch, rows, columns and summed axis; None for another form than a product.

    >>> _axes("mkl,nkl->mnl")
    ('mkl', 'nkl', 'mnl', 'l', 'm', 'n', 'k')
    """
    inputs, arrow, output = equation.partition("->")
    first, _, second = inputs.partition(",")
    if not arrow or not (first + second + output).isalpha():
        return None
    batch = "".join([x for x in first if x in second and x in output])
    along = "".join([x for x in first if x in second and x not in output])
    rows, columns = ("".join([x for x in a if x not in b]) for a, b in ((first, second), (second, first)))
    once = all(len(set(term)) == len(term) for term in (first, second, output))
    if not once or len(along) != 1 or sorted(batch + rows + columns) != sorted(output):
        return None
    return first, second, output, batch, rows, columns, along


def tensors_in(torch: ModuleType, values: Iterable[object]) -> Iterator[Tensor]:
    """The tensors among values, and in lists and tuples of them."""
    for x in values:
        if isinstance(x, torch.Tensor):
            yield x
        elif isinstance(x, (list, tuple)):
            yield from tensors_in(torch, x)


def block_scaled(
    torch: ModuleType, a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, bias: Tensor | None = None,
    scale_result: Tensor | None = None, out_dtype: TorchType | None = None, use_fast_accum: bool = False,
) -> Tensor | None:  # fmt: skip
    """torch._scaled_mm of A [M, K] and B [K, N] with block scales; else None.

    A factor is for 32 elements along K in e8m0, for 16 in e4m3. cuBLAS keeps them in the order of `block_scale_layout`.
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


def grouped_block_scaled(
    torch: ModuleType, a: Tensor, b: Tensor, scale_a: Sequence[Tensor], recipe_a: object, swizzle_a: object,
    scale_b: Sequence[Tensor], recipe_b: object, swizzle_b: object, ends: Tensor | None = None,
    bias: Tensor | None = None, out_dtype: TorchType | None = None, *others: object,
) -> Tensor | None:  # fmt: skip
    """The products of groups of rows with block scales; None for another form.

    a, b  [rows, K] and [groups, K, N]
    ends  where each group's rows end. The factors of each group begin a new chunk of 128 rows. A second scale has a
          factor for each group.
    """
    size = {torch.float8_e8m0fnu: 32, torch.float8_e4m3fn: 16}.get(scale_a[0].dtype)
    if size is None or scale_b[0].dtype is not scale_a[0].dtype or ends is None or a.dim() != 2 or b.dim() != 3:
        return None
    done = torch.zeros(a.shape[0], b.shape[2], dtype=out_dtype or torch.bfloat16)
    packed = 2 if a.dtype == torch.float4_e2m1fn_x2 else 1
    factors = 4 * -(-a.shape[1] * packed // size // 4)
    flat, first, used = scale_a[0].reshape(-1), 0, 0
    for group, end in enumerate(ends.tolist()):
        room = 128 * -(-(end - first) // 128) * factors
        left = _scaled(torch, a[first:end], flat[used : used + room], size)
        right = _scaled(torch, b[group].t(), scale_b[0][group].reshape(-1), size)
        if left is None or right is None:
            return None
        found = left @ right.t()
        for more in (*scale_a[1:], *scale_b[1:]):
            found = found * more[group]
        done[first:end] = (found if bias is None else found + bias[group].float()).to(done.dtype)
        first, used = end, used + room
    return done


def _scaled(torch: ModuleType, x: Tensor, scale: Tensor, size: int) -> Tensor | None:
    """The values [rows, K] of a narrow matrix times its scale factors, in float32; None for another count of them."""
    if x.dtype == torch.float4_e2m1fn_x2:  # two to a byte, the first in the lower bits
        codes = x.contiguous().view(torch.uint8).cpu().numpy()
        pairs = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], 2 * codes.shape[1])
        values = torch.from_numpy(np.asarray(dtype("e2m1").decode(np.arange(16)), np.float32)[pairs])
    else:
        values = x.float()
    rows, columns = values.shape
    if 0 in values.shape:
        return values if scale.numel() == 0 else None
    factors = -(-columns // size)
    places = block_scale_layout(rows, factors)
    if scale.numel() != places.size:
        return None
    byte = places(np.arange(rows)[:, None], np.arange(factors))
    table = scale.contiguous().reshape(-1).float()[torch.from_numpy(byte)]
    return values * table.repeat_interleave(size, 1)[:, :columns]
