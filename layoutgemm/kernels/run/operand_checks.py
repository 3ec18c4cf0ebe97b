"""Tensors of a call, checked before anything is launched. Kind, layout, device, and memory of their own where written.

Every entry point that takes tensors asks here: matmul, gemm, scaled and grouped products, epilogues, the raw operators
torch.ops.layoutgemm.*, and plan.run. Each product checks its own types and shapes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from ...arguments import is_int
from ...atoms.tma.rules import STRIDE_UNIT
from ...errors import OperandError, TensorError
from ..alignment import address_misfit, batch_misfit, line_misfit

if TYPE_CHECKING:
    import torch

# Classes of tensors whose rules wait for a call, and the call.
WITHOUT_RULES = {"DTensor": "whose rules are registered once a process: layoutgemm.distributed.register_shardings()"}
_WORK: Any = 10_000  # candidates that the exact test of two strided tensors may try; beyond, they count as overlapping
_ANYWHERE = 1 << 20  # an address for a tensor that is compared with itself


def check_operands(read: Mapping[str, torch.Tensor], written: Mapping[str, torch.Tensor] | None = None) -> None:
    """Raise unless all are dense tensors of one device, and outputs overlap nothing.

    read     operands by name, the first of which says the device
    written  outputs by name

    Raises OperandError for anything but a dense tensor. Raises TensorError for a freed or cut storage, and for two
    devices. Raises it for an output that overlaps itself or another tensor. Raises it for one with torch's negative
    bit, which no kernel writes, and for one that was made in inference mode, outside of it.
    """
    import torch

    written = written or {}
    tensors = {**read, **written}
    for name, x in tensors.items():
        _check_dense(name, x, name in written)
    first = next(iter(tensors))
    for name, x in tensors.items():
        if x.device != tensors[first].device:
            b = tensors.get("b") if first == "a" else None
            others = "a and b are" if b is not None and b.device == tensors[first].device else f"{first} is"
            raise TensorError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{tensors[first].device} and {x.device}: {name} is on {x.device}, {others} on {tensors[first].device}"
            )
    for name, x in written.items():
        if addressed(x) and x.is_neg():
            raise TensorError(f"{name} has torch's negative bit, and is written to: {name}.resolve_neg() is a copy")
        if addressed(x) and x.is_inference() and not torch.is_inference_mode_enabled():
            raise TensorError(
                f"Inplace update to inference tensor outside InferenceMode is not allowed: {name}, of shape "
                f"{list(x.shape)}, was made there"
            )
        if overlaps_itself(x):
            raise TensorError(
                f"unsupported operation: more than one element of {name}, which is written to, refers to a single "
                f"memory location: shape {list(x.shape)}, strides {list(x.stride())}; elements would be written twice"
            )
        for other, y in tensors.items():
            if other != name and share_memory(x, y):
                raise TensorError(f"unsupported operation: {name}, which is written to, shares memory with {other}")


_OF_SEVERAL = {  # why an operand may be several tensors
    "a": "; two pairs are (a, a2) and (b, b2)",
    "b": "; several b take combine=, and two pairs are (a, a2) and (b, b2)",
}
_INDICES = frozenset({"rows", "out_rows", "add_rows", "offsets", "offs", "counts"})


def no_tensor(name: str, x: object, module: str = "") -> str:
    """The text of an error for x, which is no torch tensor. It says what takes x or makes a tensor of it.

    module  of its type, with a point, or none

    >>> import numpy as np
    >>> no_tensor("a", np.zeros(2))
    'a is a ndarray, not a torch tensor; torch.from_numpy(a) is one'
    >>> no_tensor("rows", [0, 1])
    'rows is a list, not a torch tensor; torch.tensor(rows, device=a.device) is one'
    """
    library = type(x).__module__.partition(".")[0]
    way_out = f"; torch.from_numpy({name}) is one" if library == "numpy" else ""
    way_out = "; layoutgemm.jax multiplies JAX's arrays" if library in ("jax", "jaxlib") else way_out
    if isinstance(x, (tuple, list)) and any(hasattr(each, "data_ptr") for each in x):
        way_out = _OF_SEVERAL.get(name, "")
    elif name in _INDICES and isinstance(x, (tuple, list, range)) and all(map(is_int, x)):
        way_out = f"; torch.tensor({name}, device=a.device) is one"
    return f"{name} is a {module}{type(x).__qualname__}, not a torch tensor{way_out}"


def _check_dense(name: str, x: torch.Tensor, written: bool) -> None:
    import torch

    if not isinstance(x, torch.Tensor):
        raise OperandError(no_tensor(name, x, "" if written else f"{type(x).__module__}."))
    if x.layout != torch.strided or x.is_nested:
        kind = "a nested tensor" if x.is_nested else x.layout
        way_out = f"{name}.to_padded_tensor(0)" if x.is_nested else f"{name}.to_dense()"
        raise OperandError(f"{name} is {kind}: this library multiplies dense tensors; {way_out} is one")
    if not addressed(x) or torch.jit.is_tracing():  # whose sizes are tensors
        if type(x).__name__ in WITHOUT_RULES:
            raise OperandError(f"{name} is a {type(x).__name__}, {WITHOUT_RULES[type(x).__name__]}")
        return
    if x.is_neg() and x.is_floating_point() and x.element_size() == 1:
        raise OperandError(f"{name} is {x.dtype} with torch's negative bit, and torch negates none of that type")
    if x._is_zerotensor():  # zeros without memory, which torch's dispatcher gives some
        if written:
            raise TensorError(f"ZeroTensors are immutable: {name} is written to; {name}.clone() is mutable")
    elif x.numel():
        last = x.storage_offset() + sum([(size - 1) * step for size, step in zip(x.shape, x.stride(), strict=True)])
        wanted, held = (last + 1) * x.element_size(), x.untyped_storage().nbytes()
        if held < wanted:
            raise TensorError(
                f"The tensor has a non-zero number of elements, but its data is not allocated yet: {name}, of shape "
                f"{list(x.shape)}, ends at byte {wanted} of its storage, which has {held}"
            )


def tensor_misfit(x: torch.Tensor, order: str, unit: int = STRIDE_UNIT) -> str:
    """Why a kernel cannot read a tensor where it lies, or "". Its lines run along `order`."""
    lines = x if order == "row" else x.transpose(-1, -2)
    count, extent = lines.shape[-2:]
    step, size = int(lines.stride(-1)), x.element_size()
    if extent > 1 and step != 1:
        return f"the plan takes it {order}-major, but its strides are {tuple(x.stride())}"
    batch = (int(lines.stride(0)),) if lines.ndim > 2 and lines.shape[0] > 1 else ()
    leading = int(lines.stride(-2)) if count > 1 else 0
    return (
        line_misfit(extent, step, count, leading, size, unit)
        or batch_misfit(batch, size, unit)
        or address_misfit(x.data_ptr(), unit)
    )


def addressed(x: torch.Tensor) -> bool:
    """True if a tensor has an address: not if traced, mapped, fake or meta.

    A subclass without a `__torch_dispatch__` of its own has one, as a parameter has.
    """
    import torch

    return (
        not torch.compiler.is_compiling()
        and getattr(type(x), "__torch_dispatch__", None) is torch.Tensor.__torch_dispatch__
        and x.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
        and not torch._C._functorch.is_legacy_batchedtensor(x)
    )


def overlaps_itself(x: torch.Tensor) -> bool:
    """True if two elements share an address.

    In order of strides, each dimension beyond what the ones before span: apart. Else the first dimension in which two
    elements differ decides, and there the later ones may lie on the first.

    >>> import torch
    >>> line = torch.zeros(8)
    >>> [overlaps_itself(line.as_strided((2, 3), strides)) for strides in ((3, 1), (3, 2), (2, 1))]
    [False, False, True]
    """
    span = 1
    for step, extent in sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1):
        if step < span:
            break
        span += step * (extent - 1)
    else:
        return False
    if x.numel() == 0:
        return False
    size, shape, strides = x.element_size(), tuple(x.shape), tuple(x.stride())
    if any(s == 0 for s, n in zip(strides, shape, strict=True) if n > 1):
        return True
    for at in range(len(shape)):
        inner = shape[at + 1 :], strides[at + 1 :]
        one = _Bytes(_ANYWHERE, (1, *inner[0]), (strides[at], *inner[1]), size)
        rest = _Bytes(_ANYWHERE + strides[at] * size, (shape[at] - 1, *inner[0]), (strides[at], *inner[1]), size)
        if shape[at] > 1 and _meet(one, rest):
            return True
    return False


def share_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """True if two tensors share a byte. The answer is exact but for very many strides, which count as sharing.

    False for tensors that have no addresses.

    >>> import torch
    >>> whole = torch.zeros(4, 8)
    >>> share_memory(whole[:, :3], whole[:, 3:]), share_memory(whole[:, :4], whole[:, 3:])
    (False, True)
    >>> share_memory(whole[0, :4], whole[:, 4:]), share_memory(whole[:, ::2], whole[:, 1::2])
    (False, False)
    """
    if x.numel() == 0 or y.numel() == 0 or not (addressed(x) and addressed(y)):
        return False
    return _meet(_bytes(x), _bytes(y))


def same_memory(x: torch.Tensor, y: torch.Tensor) -> bool:
    """True if y is x, or has the same elements at the same addresses."""
    return x is y or (
        x is not None and addressed(x) and addressed(y) and not (x.is_nested or y.is_nested) and x.dtype == y.dtype
        and x.shape == y.shape and x.stride() == y.stride() and x.data_ptr() == y.data_ptr()
    )  # fmt: skip


class _Bytes:
    """A tensor's elements as NumPy's array interface, for comparisons of addresses."""

    def __init__(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], size: int):
        self.first = address
        self.end = address + (sum((n - 1) * step for n, step in zip(shape, strides, strict=True)) + 1) * size
        self.__array_interface__ = {
            "data": (address, True), "shape": shape, "strides": tuple(step * size for step in strides),
            "typestr": f"|V{size}", "version": 3,
        }  # fmt: skip


def _bytes(x: torch.Tensor) -> _Bytes:
    return _Bytes(x.data_ptr(), tuple(x.shape), tuple(x.stride()), x.element_size())


def _meet(x: _Bytes, y: _Bytes) -> bool:
    if x.end <= y.first or y.end <= x.first:
        return False
    try:
        return bool(np.shares_memory(np.asarray(x), np.asarray(y), max_work=_WORK))
    except RuntimeError:  # numpy.exceptions.TooHardError, which older versions have elsewhere
        return True


def resolved(x: torch.Tensor) -> torch.Tensor:
    """The tensor with its values in memory. Torch's negative bit has them negated when they are read."""
    return x.resolve_neg() if x.is_neg() else x
