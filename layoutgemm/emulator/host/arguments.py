"""Arrays of the caller as global memory. NumPy arrays, CPU torch tensors and tensors of the CuTe DSL.

An emulated kernel works in the caller's own memory, at addresses that the emulator chooses. Each array, or each group
of overlapping arrays, is a buffer far from the next, so an access beyond it hits no other. An address keeps the
alignment that the array has within its allocation.

Elements narrower than a byte come as `PackedArray`: bytes with several elements each along the contiguous axis.
The first element is in the lowest bits, as in kernels and in torch.float4_e2m1fn_x2. Extents and strides then count
elements. A plain array of bytes counts bytes, and its element type is unknown.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import FrameType, FunctionType, ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from ...dtypes import DType, dtype
from ...errors import EmulatorError, OperandError
from ..machine.memory import GlobalBuffer, GlobalMemory

PAGE = 4096


@dataclass(frozen=True)
class Array:
    """The address, shape, strides and bounds of an array in this process.

    address   of its first element
    shape     elements; strides in elements
    bits      of an element
    low, high the bytes [low, high) that its elements touch
    base      where its allocation begins
    limit     where its allocation ends, if that is known to be behind `high`
    writeable whether a kernel may write it
    element   its floating-point type, if it has one that has a name here
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    bits: int
    low: int
    high: int
    base: int
    writeable: bool = True
    limit: int = 0
    element: DType | None = field(default=None, compare=False)


@dataclass(frozen=True)
class PackedArray:
    """An array of bytes that holds elements narrower than a byte.

    values  uint8 or int8, a NumPy array or a CPU torch tensor, with one contiguous axis
    kind    element type, by name: "e2m1", "u4", "e2m3", ...

    >>> found = array_of(PackedArray(np.zeros((3, 32), np.uint8), "e2m1"))
    >>> found.shape, found.strides, found.high - found.low
    ((3, 64), (64, 1), 96)
    """

    values: Any
    kind: str

    @staticmethod
    def of(codes: npt.NDArray[np.integer], kind: str) -> PackedArray:
        """From the bits of each element, one to a byte: packed along the last axis.

        >>> PackedArray.of(np.array([[1, 2, 3, 15]], np.uint8), "e2m1").values.tolist()
        [[33, 243]]
        """
        width = dtype(kind).bits
        if codes.shape[-1] * width % 8:
            raise EmulatorError(f"{codes.shape[-1]} elements of {kind} are not a whole number of bytes")
        spread = np.unpackbits(codes.astype(np.uint8)[..., None], axis=-1, bitorder="little")[..., :width]
        return PackedArray(np.packbits(spread.reshape(*codes.shape[:-1], -1), axis=-1, bitorder="little"), kind)

    def array(self) -> Array:
        """Raises EmulatorError for elements of whole bytes, and for bytes without a contiguous axis."""
        found, width = array_of(self.values), dtype(self.kind).bits
        if found is None or found.bits != 8 or width >= 8:
            raise EmulatorError(f"PackedArray is an array of bytes and a type narrower than that, not {self.kind}")
        along = [i for i, (n, stride) in enumerate(zip(found.shape, found.strides)) if stride == 1 and n > 1]
        if len(along) != 1 or any(8 * x % width for i, x in enumerate(found.strides) if i != along[0]):
            raise EmulatorError(f"bytes of strides {found.strides} hold no {self.kind} side by side along one axis")
        if 8 * found.shape[along[0]] % width:
            raise EmulatorError(f"{found.shape[along[0]]} bytes hold no whole number of {self.kind}")
        shape = tuple([8 * n // width if i == along[0] else n for i, n in enumerate(found.shape)])
        strides = tuple([1 if i == along[0] else 8 * stride // width for i, stride in enumerate(found.strides)])
        return replace(found, shape=shape, strides=strides, bits=width)


def array_of(value: Any) -> Array | None:
    """The array that a value is, or None for a scalar. Raises EmulatorError for tensors outside CPU memory."""
    if isinstance(value, PackedArray):
        return value.array()
    if hasattr(value, "__array_interface__") and not np.isscalar(value):
        return _numpy(np.asarray(value))
    if not hasattr(value, "data_ptr"):
        return None
    device = getattr(getattr(value, "device", None), "type", "cpu")
    if device != "cpu":
        raise EmulatorError(f"a tensor on {value.device}: the emulator works in CPU memory, pass x.cpu()")
    if hasattr(value, "element_size"):  # a torch tensor
        storage = value.untyped_storage()
        bits, base = 8 * value.element_size(), storage.data_ptr()
        found = _spanned(value.data_ptr(), tuple(value.shape), tuple(value.stride()), bits, base)
        found = replace(found, limit=base + storage.nbytes(), element=_float_of(value.dtype))
        if str(value.dtype) == "torch.float4_e2m1fn_x2":
            return PackedArray(value.view(sys.modules["torch"].uint8), "e2m1").array()
        return found
    kind = getattr(value, "element_type", None)  # a tensor of the CuTe DSL
    if kind is None or not isinstance(value.data_ptr, int):
        return None
    address = value.data_ptr
    bits = 8 if kind.__name__ == "Boolean" else kind.width  # a Boolean has one bit, and lies in a byte
    place = gpu_memory_at(address)
    base = place[1] if place is not None else address // PAGE * PAGE
    found = _spanned(address, _flat(value.shape), _flat(value.stride), bits, base)
    return found if place is None else replace(found, limit=base + len(place[2]))


def element_of(value: object) -> str:
    """The element type of an array by its own name, as "float32", or "".

    >>> element_of(np.zeros(3, np.uint16)), element_of(PackedArray(np.zeros(4, np.uint8), "u4"))
    ('uint16', '')
    """
    kind = getattr(value, "element_type", None) or getattr(value, "dtype", None)  # of the CuTe DSL, torch, NumPy
    name = getattr(kind, "name", None) if isinstance(kind, np.dtype) else getattr(kind, "__name__", None)
    return str(name or kind or "").removeprefix("torch.")


def _numpy(value: npt.NDArray[np.generic]) -> Array:
    root: Any = value
    while isinstance(root.base, np.ndarray):
        root = root.base
    if any(stride % value.itemsize for stride in value.strides):
        raise EmulatorError(f"an array with strides {value.strides} bytes of elements of {value.itemsize}")
    strides = tuple([stride // value.itemsize for stride in value.strides])
    base = root.__array_interface__["data"][0]
    address = value.__array_interface__["data"][0]
    found = _spanned(address, value.shape, strides, 8 * value.itemsize, base, value.flags.writeable)
    return replace(found, element=_float_of(value.dtype)) if value.dtype.kind == "f" else found


def _float_of(kind: object) -> DType | None:
    """The floating-point type of an array; None for integers, which hold any bits, and for types without a name."""
    try:
        found = dtype(kind)
    except OperandError:
        return None
    return found if found.kind == "float" else None


def _spanned(
    address: int, shape: Sequence[int], strides: Sequence[int], bits: int, base: int, writeable: bool = True
) -> Array:
    low = high = 0
    for extent, stride in zip(shape, strides, strict=True):
        low += min(0, (extent - 1) * stride)
        high += max(0, (extent - 1) * stride)
    end = address + -(-(high + 1) * bits // 8) if all(shape) else address
    return Array(address, tuple(shape), tuple(strides), bits, address + low * bits // 8, end, base, writeable)


def _flat(value: Any) -> tuple[int, ...]:
    if isinstance(value, tuple):
        return tuple([leaf for part in value for leaf in _flat(part)])
    return (int(value),)


Place = tuple[str, int, npt.NDArray[np.uint8]]  # what holds an address: its name, its first address, its bytes
_FINDERS: list[Callable[[int], Place | None]] = []


@contextmanager
def memory_found_by(find: Callable[[int], Place | None]) -> Iterator[None]:
    """Within it `array_at` also asks `find`, which knows an emulated GPU's memory."""
    _FINDERS.append(find)
    try:
        yield
    finally:
        _FINDERS.remove(find)


def gpu_memory_at(address: int) -> Place | None:
    """The memory of an emulated GPU that holds an address, or None."""
    return next((found for find in reversed(_FINDERS) if (found := find(address)) is not None), None)


def array_at(address: int) -> Place | None:
    """The memory that holds an address: an emulated GPU's, or an array of the callers."""
    return gpu_memory_at(address) or callers_array(address)


def bytes_at(low: int, size: int, owner: object) -> npt.NDArray[np.uint8]:
    """The bytes [low, low + size) of this process, which keep their owner alive."""
    content: Any = (ctypes.c_uint8 * size).from_address(low)
    content.of = owner
    return np.frombuffer(content, dtype=np.uint8)


def _bytes(low: int, high: int, writeable: bool) -> npt.NDArray[np.uint8]:
    """The bytes [low, high) of this process."""
    content: Any = (ctypes.c_uint8 * (high - low)).from_address(low) if high > low else b""
    view = np.frombuffer(content, dtype=np.uint8)
    if not writeable:
        view.flags.writeable = False
    return view


def callers_array(address: int) -> Place | None:
    """The array of a calling frame that holds an address. (name, first address, bytes), or None.

    Only variables of the callers are searched, and the lists, tuples, dicts and objects in them. An address outside
    their arrays is an error, as on a GPU. The search reads no memory.
    """
    frame: FrameType | None = sys._getframe(1)
    seen: dict[int, int] = {}
    while frame is not None:
        if not str(frame.f_globals.get("__name__", "")).startswith("layoutgemm."):
            for name, value in [*frame.f_locals.items(), *frame.f_globals.items()]:
                for place, one in _arrays_in(name, value, 3, seen):
                    try:
                        array = array_of(one)
                    except EmulatorError:  # on a GPU, or without a description
                        continue
                    if array is not None and array.low <= address < array.high:
                        view = bytes_at(array.low, array.high - array.low, one)
                        view.flags.writeable = array.writeable
                        return place, array.low, view
        frame = frame.f_back
    return None


def _arrays_in(name: str, value: object, depth: int, seen: dict[int, int]) -> Iterator[tuple[str, object]]:
    """(name, array) of the arrays in a variable, down to a depth; seen: object -> the depth examined."""
    if seen.get(id(value), -1) >= depth or isinstance(value, (type, ModuleType, FunctionType)):
        return
    seen[id(value)] = depth
    if _may_be_array(value):
        yield name, value
    elif depth:
        parts: Iterable[tuple[str, object]] = ()
        if isinstance(value, dict):
            parts = [(f"{name}[{key!r}]", part) for key, part in list(value.items())]
        elif isinstance(value, (list, tuple)):
            parts = [(f"{name}[{number}]", part) for number, part in enumerate(value)]
        elif isinstance(attributes := getattr(value, "__dict__", None), dict):
            parts = [(f"{name}.{key}", part) for key, part in list(attributes.items())]
        for place, part in parts:
            yield from _arrays_in(place, part, depth - 1, seen)


def _may_be_array(value: object) -> bool:
    return isinstance(value, np.ndarray) or (
        type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")
    )


class ArgumentMemory:
    """The arrays of one call, as buffers of a global memory."""

    def __init__(self, named: Sequence[tuple[str, Array]]) -> None:
        self.memory = GlobalMemory()
        self.regions: list[tuple[int, int, GlobalBuffer]] = []
        merged: list[tuple[Array, list[str]]] = []
        for name, array in sorted(named, key=lambda entry: (entry[1].low, entry[1].high)):
            if merged and array.low < merged[-1][0].high:
                first, names = merged[-1]
                high, limit = max(first.high, array.high), max(first.limit, array.limit)
                element = first.element if first.element == array.element else None
                writeable = first.writeable and array.writeable
                both = replace(first, high=high, limit=limit, writeable=writeable, element=element)
                merged[-1] = both, [*names, name]
            else:
                merged.append((array, [name]))
        # In the order of the arguments, so that addresses do not depend on where the process put the arrays.
        order = {name: number for number, (name, _) in enumerate(named)}
        for array, names in sorted(merged, key=lambda entry: min(order[n] for n in entry[1])):
            low, high, base = array.low, array.high, array.base
            view = _bytes(low, high, array.writeable)
            # A GPU aligns allocations, this process less; a script may also have aligned the address that it sees.
            offset = max((low - base) % PAGE, low % PAGE, key=lambda at: at & -at or PAGE)
            buffer = self.memory.add("/".join(dict.fromkeys(names)), view, offset)
            buffer.element = array.element
            if array.limit:  # the base is that of an allocation, too
                buffer.before = low - base
            if high < array.limit and array.limit - low + offset <= self.memory.GAP:
                buffer.allocation = _bytes(low, array.limit, array.writeable)
            self.regions.append((low, high, buffer))

    def holds(self, host: int) -> bool:
        """True if a host address lies in one of the arrays."""
        return any(low <= host < high or low == host == high for low, high, _ in self.regions)

    def known(self, host: int) -> bool:
        """True if an array, or an emulated GPU's memory, holds a host address."""
        return any(low <= host < high for low, high, _ in self.regions) or gpu_memory_at(host) is not None

    def address(self, host: int) -> int:
        """The emulated address of a host address in known memory. Raises EmulatorError."""
        for low, high, buffer in self.regions:
            if low <= host < high or low == host == high:
                return buffer.address + host - low
        if (found := gpu_memory_at(host)) is not None:
            name, first, view = found
            buffer = self.memory.add(name, view, first % PAGE)
            self.regions.append((first, first + len(view), buffer))
            return buffer.address + host - first
        names = ", ".join([buffer.name for *_, buffer in self.regions])
        raise EmulatorError(
            f"address {host:#x} lies in none of the arrays of this call ({names}): pass the array itself, or as `extra`"
        )

    def hold(self, pointers: Iterable[tuple[int, int]], what: str) -> None:
        """Raise EmulatorError for a (parameter byte, 64-bit value) that points outside of all arrays."""
        first, size = self.memory.START, self.memory.GAP * len(self.memory.buffers)
        for at, word in pointers:
            if first <= word < first + size:
                buffer = self.memory.buffers[(word - first) // self.memory.GAP]
                if not buffer.address <= word <= buffer.end:
                    side = word - buffer.address
                    raise EmulatorError(f"{what}: parameter byte {at} points to byte {side} of {buffer.name}, outside")
            elif any(low <= word < high for low, high, _ in self.regions):
                raise EmulatorError(f"{what}: parameter byte {at} is an address of this process, {word:#x}")
