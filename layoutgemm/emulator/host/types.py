"""Argument types of a compiled host function, and the bytes of its values.

The compiler's module states two types of an argument. `llvm.func` has the machine type: `i32`, `!llvm.ptr`, or for a
tensor `!llvm.struct<(ptr, struct<(EXTENTS, STRIDES)>)>` with the run-time ones only. Before lowering, `func.func` has
more: `!cute.memref<bf16, gmem, align<16>, "(?,64):(64,1)">`, with the element type, the alignment and all fixed
extents.
"""

from __future__ import annotations

import ctypes
import math
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...arguments import shown
from ...dtypes import dtype
from ...errors import EmulatorError
from .arguments import ArgumentMemory, Array, array_of, element_of

Field = tuple[int, int]  # (offset, bytes) in an argument
_MASKS = {
    "extent": "dynamic_shapes_mask",
    "stride": "dynamic_strides_mask",
}  # of a CuTe tensor: what it gives at run time


@dataclass(frozen=True)
class TensorMode:
    """An extent or a stride. A compiled constant, or None with its divisor at run time."""

    value: int | None
    divisor: int = 1


@dataclass(frozen=True)
class HostParameter:
    """One argument of a host function.

    name     what messages call it
    kind     "tensor" (its descriptor), "pointer", "scalar", "stream", or "bytes" (a struct of another kind)
    type     of a scalar: "i1", "s32", "u32", "i32" (of either sign), "f32", "tf32", ...; s, u and i of 8 to 128 bits
    size     bytes
    shapes, strides  of a tensor: where its descriptor holds those of run time, in order
    element  of a tensor or a pointer: its type as the compiler writes it, "bf16"; "" where that is not known
    align    of a tensor, bytes
    modes    of a tensor: all extents and all strides, where they are known
    """

    name: str
    kind: str
    type: str = ""
    size: int = 8
    shapes: tuple[Field, ...] = ()
    strides: tuple[Field, ...] = ()
    element: str = ""
    align: int = 1
    modes: tuple[tuple[TensorMode, ...], tuple[TensorMode, ...]] | None = None

    def __str__(self) -> str:
        return self.type or self.kind


# Types ----------------------------------------------------------------------------------------------------------------

_SCALARS = {"i1": 1, "i8": 1, "i16": 2, "i32": 4, "i64": 8, "i128": 16, "f16": 2, "bf16": 2, "f32": 4, "f64": 8}
_MEMREF = re.compile(r'!cute\.memref<(\w+), \w+(?:, align<(\d+)>)?, "([^":]*):([^":]*)">')
_POINTER = re.compile(r"!cute\.ptr<(\w+),")
_MODE = re.compile(r"(\?)(?:\{([^}]*)\})?|(\d+)")


def parameter_of(machine: str, traced: str = "", name: str = "") -> HostParameter:
    """The argument of a machine type, and of its type before lowering if known.

    >>> parameter_of("!llvm.struct<(ptr<1>, struct<(struct<(i32, i32)>, i64)>)>").strides
    ((16, 8),)
    >>> str(parameter_of("i32")), str(parameter_of("!llvm.ptr", "!cuda.stream"))
    ('i32', 'stream')
    """
    machine = machine.removeprefix("!llvm.")
    if machine in _SCALARS:
        return HostParameter(name, "scalar", "tf32" if traced == "tf32" else machine, _SCALARS[machine])
    if machine.partition("<")[0] == "ptr":
        found = _POINTER.match(traced)
        kind = "stream" if traced == "!cuda.stream" else "pointer"
        return HostParameter(name, kind, element=found[1] if found else "")
    tree, rest = _tree(machine)
    if rest or not isinstance(tree, list):
        raise EmulatorError(f"an argument of type {machine} is of a kind that is not known")
    placed, end, _ = _placed(tree, 0)
    if not (len(tree) == 2 and tree[0] == "ptr" and isinstance(tree[1], list) and len(tree[1]) == 2):
        return HostParameter(name, "bytes", size=end)
    shapes = len(_placed(tree[1][:1], 0)[0])
    extents, strides = tuple(placed[1 : 1 + shapes]), tuple(placed[1 + shapes :])
    out = HostParameter(name, "tensor", size=end, shapes=extents, strides=strides)
    found = _MEMREF.fullmatch(traced)
    if found is None:
        return out
    modes = (_modes(found[3]), _modes(found[4]))
    known = [len([mode for mode in side if mode.value is None]) for side in modes] == [shapes, len(strides)]
    return replace(out, element=found[1], align=int(found[2] or 1), modes=modes if known else None)


def _tree(text: str) -> tuple[object, str]:
    """A machine type as a name, or a struct's types as a list; and the rest of the text."""
    if text.startswith("struct<("):
        rest, parts = text.removeprefix("struct<("), []
        while not rest.startswith(")"):
            part, rest = _tree(rest.removeprefix(", "))
            parts.append(part)
        return parts, rest[2:]
    found = re.match(r"array<(\d+) x ", text)
    if found:
        part, rest = _tree(text[found.end() :])
        return [part] * int(found[1]), rest[1:]
    found = re.match(r"(\w+)(<\d+>)?", text)
    if found is None or (found[1] != "ptr" and found[1] not in _SCALARS):
        raise EmulatorError(f"an argument of type {text} is of a kind that is not known")
    return found[1], text[found.end() :]


def _placed(tree: Any, at: int) -> tuple[list[Field], int, int]:
    """The offsets of a type's leaves by C's rules, with its end and its alignment."""
    if isinstance(tree, str):
        size = 8 if tree == "ptr" else _SCALARS[tree]
        at = -(-at // size) * size
        return [(at, size)], at + size, size
    align = max([_placed(part, 0)[2] for part in tree], default=1)
    at, out = -(-at // align) * align, []
    for part in tree:
        found, at, _ = _placed(part, at)
        out += found
    return out, -(-at // align) * align, align


def _modes(text: str) -> tuple[TensorMode, ...]:
    out = []
    for dynamic, notes, number in _MODE.findall(text):
        divisor = re.search(r"div=(\d+)", notes)
        out.append(TensorMode(None, int(divisor[1]) if divisor else 1) if dynamic else TensorMode(int(number)))
    return tuple(out)


# Values ---------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PackedArgument:
    """The address of an argument's bytes that the DSL's own packing has written. 0 is a null handle."""

    address: int


def packed(parameter: HostParameter, name: str, value: object, arrays: ArgumentMemory) -> bytes:
    """A value as its argument's bytes. Raises EmulatorError that names the mismatch."""
    if isinstance(value, PackedArgument):
        return _raw(parameter, name, value, arrays)
    if parameter.kind == "stream":
        if array_of(value) is not None or isinstance(value, (bool, float, str)):
            raise EmulatorError(f"{name} is a stream, and {_said(value)} was given")
        return bytes(8)
    if parameter.kind == "tensor":
        return _descriptor(parameter, name, value, arrays)
    array = array_of(value)
    if parameter.kind == "scalar":
        if array is None or not array.shape:
            return _scalar(parameter.type, emulated(parameter, value, arrays), name)
        if parameter.size != 8 or parameter.type[0] == "f":
            raise EmulatorError(f"{name} is a scalar of type {parameter.type}, and an array was given")
        return arrays.address(array.address).to_bytes(8, "little")
    if parameter.kind == "bytes":
        raise EmulatorError(f"{name} is a struct of {parameter.size} bytes, and {_said(value)} was given")
    if array is not None:
        return arrays.address(array.address).to_bytes(8, "little")
    return _pointer(parameter, name, value, arrays)


def emulated(parameter: HostParameter, value: object, arrays: ArgumentMemory) -> object:
    """The emulated address for an integer that is one of known memory, as `x.data_ptr()`. Else the value."""
    number = getattr(value, "value", value)
    wide = parameter.kind == "scalar" and parameter.type in ("i64", "s64", "u64")
    return arrays.address(number) if wide and type(number) is int and arrays.known(number) else value


def _said(value: object) -> str:
    return f"{value!r}" if isinstance(value, (bool, int, float, str, type(None))) else f"a {type(value).__name__}"


def _pointer(parameter: HostParameter, name: str, value: object, arrays: ArgumentMemory) -> bytes:
    raw = getattr(value, "_pointer", value)
    raw = getattr(raw, "value", raw) if type(raw).__module__ == "ctypes" else raw
    if raw is None or hasattr(raw, "getPtr") or hasattr(raw, "__cuda_stream__"):
        return bytes(8)
    if isinstance(raw, bool) or not isinstance(raw, int):
        raise EmulatorError(f"{name} is a pointer: pass the array that it points to, not {_said(value)}")
    kind = canonical(getattr(getattr(value, "dtype", None), "__name__", ""))
    if kind and parameter.element and not _alike(canonical(parameter.element), kind):
        raise EmulatorError(f"{name} points to {kind}; the compiled function takes a pointer to {parameter.element}")
    if raw == 0:
        return bytes(8)
    try:
        return arrays.address(raw).to_bytes(8, "little")
    except EmulatorError as error:
        raise EmulatorError(f"{name}: {error}") from error


def _raw(parameter: HostParameter, name: str, value: PackedArgument, arrays: ArgumentMemory) -> bytes:
    if value.address == 0:
        if parameter.kind not in ("stream", "pointer"):
            raise EmulatorError(f"{name} is a {parameter}, and a null handle was given")
        return bytes(8)
    content = ctypes.string_at(value.address, parameter.size)
    if parameter.kind not in ("tensor", "pointer"):
        return bytes(8) if parameter.kind == "stream" else content
    host = int.from_bytes(content[:8], "little")
    if host and (parameter.kind == "tensor" or arrays.holds(host)):
        content = arrays.address(host).to_bytes(8, "little") + content[8:]
    return content


def _scalar(kind: str, value: Any, name: str) -> bytes:
    number = getattr(value, "value", value)
    number = number.item() if hasattr(number, "item") else number
    said = f"{name} is a scalar of type {kind}, and {_said(value)} was given"
    if isinstance(number, (str, bytes)):
        raise EmulatorError(said)
    try:
        if kind in ("f16", "bf16", "f32", "tf32", "f64"):
            return _float(kind, float(number), said)
        whole = int(number)
    except (TypeError, ValueError, OverflowError):
        raise EmulatorError(said) from None
    if whole != number:
        raise EmulatorError(said)
    bits = int(kind[1:])
    low, high = (0 if kind[0] == "u" or bits == 1 else -(1 << bits - 1)), 1 << bits - (kind[0] == "s")
    if not low <= whole < high:
        raise EmulatorError(f"{said}: it holds {low} to {high - 1}")
    return (whole & ((1 << bits) - 1)).to_bytes(max(1, bits // 8), "little")


def _float(kind: str, number: float, said: str) -> bytes:
    if kind in ("f16", "bf16"):
        content = int(dtype(kind).encode([number])[0]).to_bytes(2, "little")
        infinite = math.isinf(float(dtype(kind).decode(np.frombuffer(content, np.uint16))[0]))
    elif kind == "f64":
        return struct.pack("<d", number)
    else:
        content, infinite = struct.pack("<f", number), False  # raises OverflowError
    if infinite and not math.isinf(number):
        raise EmulatorError(said)
    return content


# Tensors --------------------------------------------------------------------------------------------------------------


def _descriptor(parameter: HostParameter, name: str, value: object, arrays: ArgumentMemory) -> bytes:
    """A tensor's descriptor: its address, and the extents and strides that the compiled function takes at run time."""
    array = array_of(value)
    if array is None:
        raise EmulatorError(
            f"{name} is a tensor: pass a NumPy array, a CPU torch tensor or a CuTe tensor, not {_said(value)}"
        )
    if parameter.element:
        _hold_element(parameter.element, name, value, array)
    address = arrays.address(array.address)
    if address % parameter.align:
        raise EmulatorError(f"{name} is not aligned to {parameter.align} bytes, as the compiled function assumes")
    if parameter.modes is not None:
        shape, strides = _held(parameter.modes, name, array, value, arrays.memory.notes)
    else:
        masks = [getattr(value, f"dynamic_{what}_mask", None) for what in ("shapes", "strides")]
        shape = _dynamic(name, array.shape, len(parameter.shapes), masks[0], "extents")
        strides = _strides(name, array, len(parameter.strides), masks[1])
    content = bytearray(parameter.size)
    content[:8] = address.to_bytes(8, "little")
    for (at, size), number in zip((*parameter.shapes, *parameter.strides), (*shape, *strides), strict=True):
        if not -(1 << 8 * size - 1) <= number < 1 << 8 * size - 1:
            raise EmulatorError(f"{name}: {number} is not a {8 * size}-bit extent or stride of the compiled function")
        content[at : at + size] = number.to_bytes(size, "little", signed=True)
    return bytes(content)


def _held(
    modes: tuple[tuple[TensorMode, ...], tuple[TensorMode, ...]], name: str, array: Array, value: object,
    notes: list[str],
) -> tuple[list[int], list[int]]:  # fmt: skip
    """The run-time extents and strides; `notes` gets what differs from the compiled layout, which the DSL ignores.

    Raises EmulatorError for another number of axes, or of run-time values, than the compiled function reads.
    """
    shape, strides = array.shape, array.strides
    if len(shape) != len(modes[0]):
        # A mode of extent 1 is dropped: torch and NumPy scalars have no axis, and a layout has at least one.
        if shape or [mode.value for mode in modes[0]] not in ([1], []):
            said = f"{name} has {len(shape)} axes, the compiled function's tensor {len(modes[0])}"
            if any(mode.value is None for mode in (*modes[0], *modes[1])):
                raise EmulatorError(said)
            notes.append(f"{said}: it takes its own layout")
            return [], []
        shape, strides = (1,), (1,)
    out: tuple[list[int], list[int]] = ([], [])
    for what, numbers, side, chosen in zip(("extent", "stride"), (shape, strides), modes, out, strict=True):
        taken = [axis for axis, mode in enumerate(side) if mode.value is None]
        given = _marked(value, what, name, taken, len(numbers))
        chosen += [numbers[axis] for axis in given]
        if given != taken:
            notes.append(
                f"{name} gives the {what}s of axes {shown(given)} at run time, and the compiled function takes them "
                f"for those of axes {shown(taken)}"
            )
            continue
        for axis, (number, mode) in enumerate(zip(numbers, side, strict=True)):
            differs = number % mode.divisor if mode.value is None else number != mode.value
            if differs and not (what == "stride" and shape[axis] == 1):  # a stride of one element is multiplied by 0
                assumed = f"multiples of {mode.divisor}" if mode.value is None else f"{mode.value}, which it takes"
                notes.append(f"{name} has {what} {number} along axis {axis}; the compiled function assumes {assumed}")
    return out


def _marked(value: object, what: str, name: str, taken: list[int], rank: int) -> list[int]:
    """The axes whose extents or strides a CuTe tensor gives at run time; of another array those that are taken."""
    mask: Sequence[object] | None = getattr(value, _MASKS[what], None)
    if mask is None or len(mask) != rank:
        return taken
    given = [axis for axis, dynamic in enumerate(mask) if dynamic]
    return given if len(given) == len(taken) else taken


def _dynamic(name: str, values: Sequence[int], count: int, mask: Any, what: str) -> list[int]:
    """The values that are run-time arguments, by the tensor's own mask if it has one."""
    if mask is not None and sum(map(bool, mask)) == count:
        return [value for value, dynamic in zip(values, mask, strict=True) if dynamic]
    if count == len(values):
        return list(values)
    if count == 0:
        return []
    raise EmulatorError(
        f"{name}: the compiled function takes {count} of the tensor's {len(values)} {what} at run time, and an array "
        "does not say which: import emulate from layoutgemm before compiling, or pass the CuTe tensor, from_dlpack(x) "
        "marked dynamic as it was to compile"
    )


def _strides(name: str, array: Array, count: int, mask: object) -> list[int]:
    if mask is None and count == len(array.strides) - 1:
        # The stride that was compiled in is the 1 of the contiguous mode; of several it may be any.
        if 1 in array.strides:
            leading = array.strides.index(1)
            return [stride for i, stride in enumerate(array.strides) if i != leading]
    return _dynamic(name, array.strides, count, mask, "strides")


# Elements -------------------------------------------------------------------------------------------------------------


def canonical(name: str) -> str:
    """An element type's name in one spelling, for the compiler, the DSL, torch and NumPy.

    >>> [canonical(x) for x in ("f8E4M3FN", "Float8E4M3FN", "float8_e4m3fn", "bf16", "i32", "float4_e2m1fn_x2")]
    ['float8e4m3fn', 'float8e4m3fn', 'float8e4m3fn', 'bfloat16', 'int32', 'float4e2m1fn']
    """
    found = re.fullmatch(r"(f|bf|tf|i|si|ui)(\d.*)", name)
    if found:
        long = {"f": "float", "bf": "bfloat", "tf": "tfloat", "i": "int", "si": "int", "ui": "uint"}
        name = long[found[1]] + found[2]
    name = name.lower().replace("_", "").removesuffix("x2")
    return "int1" if name in ("bool", "boolean") else name


def _bits(name: str) -> int:
    found = re.search(r"\d+", name)
    return int(found[0]) if found else 0


def _alike(want: str, got: str) -> bool:
    """True if the compiled function can read these elements. Unsigned integers match any type of their width."""
    if want == got or (want == "tfloat32" and got == "float32"):
        return True
    if "int" in want and "int" in got:
        return _bits(want) == _bits(got) or {_bits(want), _bits(got)} == {1, 8}
    return got.startswith("uint") and _bits(want) == _bits(got)


def _hold_element(element: str, name: str, value: object, array: Array) -> None:
    want, got = canonical(element), canonical(element_of(value))
    if got and not _alike(want, got):
        hint = ""
        if _bits(want) < 8 <= _bits(got):
            hint = ": pass PackedArray(x, the elements' type)"
        elif _bits(want) == _bits(got):
            hint = f": pass such an array, or its bits as uint{_bits(want)}"
        raise EmulatorError(f"{name} has elements of {got}; the compiled function takes {want}{hint}")
    if not got and array.bits != _bits(want):
        raise EmulatorError(f"{name} has elements of {array.bits} bits; the compiled function takes {want}")
