"""Arguments of a compiled CuTe DSL function, packed by the DSL's own code.

The DSL packs the arguments of a call into a list of addresses, one for each parameter of the host function, on a
machine without a GPU as on one with it. Kernels in the emulator see addresses of the emulator's choosing, so a stand-in
takes the place of each array before that. The host function's signature, in the LLVM dialect, says what lies behind
each address: `read_signature`.

A function compiled with --enable-tvm-ffi takes its arguments through TVM-FFI instead. There each array becomes a DLPack
tensor that says it lies on a GPU, at its emulated address: `gpu_tensor`.
"""

from __future__ import annotations

import copy
import ctypes
import dataclasses
import re
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import EmulatorError
from .arguments import Array, Arrays, array_of

CUDA = 2  # kDLCUDA, dlpack.h
_STREAM = re.compile(r"stream", re.IGNORECASE)

# Signatures -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class HostParameter:
    """One parameter of a host function, as it is called: an address of the value of this type.

    kind     "tensor" (an address, extents, strides), "pointer", "scalar", "stream", or "struct" for any other
    type     C type of a scalar
    shapes   (how many extents, C type) that a tensor's descriptor holds; strides likewise
    """

    name: str
    kind: str
    type: str = ""
    shapes: tuple[int, str] = (0, "int32_t")
    strides: tuple[int, str] = (0, "int64_t")


# C types of the scalars of the LLVM dialect; i1 is a byte.
_SCALARS = {
    "i1": "uint8_t", "i8": "int8_t", "i16": "int16_t", "i32": "int32_t", "i64": "int64_t",
    "f32": "float", "f64": "double", "f16": "__half_raw", "bf16": "__nv_bfloat16",
}  # fmt: skip
_SIGNATURE = re.compile(r"llvm\.func @_mlir_ciface_[^\s(]*\((.*)\) -> i32")


def read_signature(text: str) -> list[HostParameter]:
    """The parameters of the one host function of a module in the LLVM dialect, in order.

    Raises EmulatorError for a module without a host function.

    >>> read_signature("llvm.func @_mlir_ciface_f(%arg0: !llvm.ptr, %arg1: f32) -> i32")[1]
    HostParameter(name='parameter 1', kind='scalar', type='float', shapes=(0, 'int32_t'), strides=(0, 'int64_t'))
    """
    found = _SIGNATURE.search(text)
    if found is None:
        raise EmulatorError("the compiled module has no host function: this version of the CuTe DSL is not known")
    parts = _split(found[1])
    return [_parameter(f"parameter {number}", part.partition(":")[2]) for number, part in enumerate(parts)]


def _split(text: str) -> list[str]:
    """The parts between the commas that stand in no bracket."""
    parts, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        depth += (sign in "(<[{") - (sign in ")>]}" and text[at - 1] != "-")
        if sign == "," and not depth:
            parts.append(text[start:at])
            start = at + 1
    return [part.strip() for part in [*parts, text[start:]] if part.strip()]


def _parameter(name: str, text: str) -> HostParameter:
    kind = text.partition("{")[0].strip().removeprefix("!llvm.")
    if kind in _SCALARS:
        return HostParameter(name, "scalar", _SCALARS[kind])
    if re.fullmatch(r"ptr(<\d+>)?", kind):
        return HostParameter(name, "pointer")
    members = _members(kind)
    if members is not None and len(members) == 2 and members[0].startswith("ptr"):
        layout = _members(members[1])
        leaves = [_leaves(part) for part in layout] if layout is not None and len(layout) == 2 else []
        if len(leaves) == 2 and all(len(set(part)) <= 1 and set(part) <= {"i32", "i64"} for part in leaves):
            shapes, strides = ((len(part), _SCALARS[part[0]] if part else "int64_t") for part in leaves)
            return HostParameter(name, "tensor", "", shapes, strides)
    return HostParameter(name, "struct", kind)


def _members(kind: str) -> list[str] | None:
    found = re.fullmatch(r"struct<\((.*)\)>", kind)
    return None if found is None else _split(found[1])


def _leaves(kind: str) -> list[str]:
    members = _members(kind)
    return [kind] if members is None else [leaf for member in members for leaf in _leaves(member)]


# Stand-ins ------------------------------------------------------------------------------------------------------------


class StandIn:
    """Takes the place of an array, a pointer or a stream that is left out, until the DSL has packed all arguments.

    name     of the argument, with the path to it: "x", "p[1]", "config.a"
    value    what it stands for
    array    where that lies, or None for an address: `address`, in this process
    """

    BYTES = 512  # more than the descriptor of a tensor of 16 extents and 16 strides

    def __init__(self, name: str, value: Any, array: Array | None, address: int = 0) -> None:
        self.name, self.value, self.array, self.address = name, value, array, address
        self.words = ctypes.create_string_buffer(self.BYTES)

    def __c_pointers__(self) -> list[int]:
        """What the DSL asks an argument for: the addresses of its parts."""
        return [ctypes.addressof(self.words)]


def replaced(value: Any, name: str, make: Callable[[str, Any, Array | None, int], Any]) -> Any:
    """The value with `make(name, leaf, array, address)` for each array and pointer: in tuples, lists and dataclasses.

    Objects that hold one are copied; what holds none is returned as it is.
    """
    if _is_fake(value):
        raise EmulatorError(f"{name} is a fake tensor, which has no memory: pass an array of its type and shape")
    array = array_of(value)
    if array is not None:
        return make(name, value, array, array.address)
    if isinstance(value, np.generic):  # the DSL takes Python's numbers
        return value.item()
    if hasattr(value, "_pointer") and hasattr(value, "__c_pointers__"):  # cute.runtime.make_ptr
        return make(name, value, None, int(value._pointer))
    if isinstance(value, (list, tuple)):
        fields = getattr(value, "_fields", range(len(value)))
        parts = [
            replaced(part, f"{name}.{at}" if isinstance(at, str) else f"{name}[{at}]", make)
            for at, part in zip(fields, value, strict=True)
        ]
        if all(new is old for new, old in zip(parts, value, strict=True)):
            return value
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, type) or not (dataclasses.is_dataclass(value) or hasattr(value, "__c_pointers__")):
        return value
    names = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else list(_attributes(value))
    changed = {}
    for attribute in names:
        old = getattr(value, attribute, None)
        new = replaced(old, f"{name}.{attribute}", make)
        if new is not old:
            changed[attribute] = new
    if not changed:
        return value
    twin = copy.copy(value)
    for attribute, new in changed.items():
        object.__setattr__(twin, attribute, new)
    return twin


def _is_fake(value: Any) -> bool:
    """Whether a value is one of the DSL's placeholders for compiling: make_fake_tensor, make_fake_stream."""
    return type(value).__name__.startswith("_Fake") and type(value).__module__.startswith("cutlass.")


def _attributes(value: Any) -> Mapping[str, Any]:
    """The attributes of an object of the user's own; those of the DSL's and CUDA's are none of ours."""
    module = type(value).__module__.partition(".")[0]
    return {} if module in ("cutlass", "cuda", "torch", "numpy") else getattr(value, "__dict__", {})


def bound(signature: Any, args: Sequence[Any], keywords: Mapping[str, Any]) -> dict[str, Any]:
    """Parameter -> value, in the order of the signature; None for a stream that was left out.

    Raises EmulatorError for an argument that is missing, one too many, and a keyword that is not known.
    """
    parameters = dict(signature.parameters)
    wanted = [name for name in parameters if not is_stream(name, parameters[name]) or name in keywords]
    names = [*parameters] if len(args) + len(keywords) > len(wanted) else wanted
    listed = f"{len(args) + len(keywords)} arguments; the compiled function takes {len(wanted)}: {', '.join(wanted)}"
    unknown = [name for name in keywords if name not in parameters]
    if unknown:
        raise EmulatorError(f"{unknown[0]} is no parameter of the compiled function, which takes {', '.join(wanted)}")
    if len(args) > len(names):
        raise EmulatorError(listed)
    given = dict(zip(names, args, strict=False))
    twice = [name for name in keywords if name in given]
    if twice:
        raise EmulatorError(f"{twice[0]} is given twice: as argument {names.index(twice[0]) + 1}, and by its name")
    given |= keywords
    out = {}
    for name, parameter in parameters.items():
        if name in given:
            out[name] = given[name]
        elif parameter.default is not parameter.empty:
            out[name] = parameter.default
        elif is_stream(name, parameter):
            out[name] = None
        else:
            raise EmulatorError(f"{name} is missing: {listed}")
    return out


def is_stream(name: str, parameter: Any) -> bool:
    """Whether a parameter is a CUDA stream, by its annotation, or by its name where it has none."""
    kind = parameter.annotation
    said = kind if isinstance(kind, str) else getattr(kind, "__name__", "")
    return bool(_STREAM.search(said)) or (kind is parameter.empty and bool(_STREAM.search(name)))


# The DSL's packing ----------------------------------------------------------------------------------------------------


@dataclass
class DslCall:
    """One call's arguments as the host function takes them.

    arrays     the memory that kernels see
    addresses  of the packed values, one for each parameter
    kept       what has to live until the function has run
    """

    arrays: Arrays
    addresses: list[int]
    kept: list[Any]


def memory_of(stand_ins: Sequence[StandIn], extra: Sequence[Any]) -> Arrays:
    """The arrays that stand-ins and `extra` name, as buffers of the emulated memory."""
    named = [(each.name, each.array) for each in stand_ins if each.array is not None]
    named += [(f"extra {n}", array) for n, value in enumerate(extra) if (array := array_of(value)) is not None]
    return Arrays(named)


def pack(
    binder: Any, parameters: Sequence[HostParameter], args: Sequence[Any], keywords: Mapping[str, Any],
    extra: Sequence[Any], describe: Callable[[HostParameter, StandIn, Arrays], bytes],
) -> DslCall:  # fmt: skip
    """Pack a call's arguments by the DSL's own code; `describe` gives the bytes of a stand-in.

    Raises EmulatorError for arguments that the DSL packs into another number of values than the function takes, and
    for one that it refuses.
    """
    signature = binder.signature
    stand_ins: list[StandIn] = []

    def make(name: str, value: Any, array: Array | None, address: int) -> StandIn:
        stand_ins.append(StandIn(name, value, array, address))
        return stand_ins[-1]

    given = bound(signature, args, keywords)
    values = ", ".join([f"{name}: {type(value).__name__}" for name, value in given.items() if value is not None])
    for name, value in given.items():
        absent = is_stream(name, signature.parameters[name]) and (value is None or _is_fake(value))
        given[name] = make(name, None, None, 0) if absent else replaced(value, name, make)
    by_name = {n: v for n, v in given.items() if signature.parameters[n].kind is signature.parameters[n].KEYWORD_ONLY}
    try:
        with warnings.catch_warnings():
            # A number that its type does not hold: the DSL warns, and passes its low bits.
            warnings.filterwarnings("error", message=r"(?s).*does not fit in")
            packed, adapted = binder.generate_execution_args(
                tuple([value for name, value in given.items() if name not in by_name]), by_name
            )
    except Exception as error:  # the DSL's own errors have no common base
        raise EmulatorError(f"the CuTe DSL does not take the arguments ({values}): {_said(error)}") from error
    addresses = [int(getattr(address, "value", address) or 0) for address in packed]
    if len(addresses) != len(parameters):
        kinds = ", ".join([p.type or p.kind for p in parameters])
        raise EmulatorError(
            f"the arguments ({values}) pack into {len(addresses)} values, and the function was compiled for "
            f"{len(parameters)} ({kinds}): pass what it was compiled with, tuples of the same lengths among it"
        )
    arrays, kept = memory_of(stand_ins, extra), [packed, adapted, given, stand_ins]
    owners = {ctypes.addressof(each.words): each for each in stand_ins}
    for number, (parameter, address) in enumerate(zip(parameters, addresses, strict=True)):
        stand_in = owners.get(address)
        if stand_in is not None:
            content = describe(dataclasses.replace(parameter, name=stand_in.name), stand_in, arrays)
            ctypes.memmove(address, content, len(content))
        elif parameter.kind == "tensor":
            raise EmulatorError(
                f"{parameter.name} of the compiled function, of those that ({values}) pack into, is a tensor: pass a "
                "NumPy array, a CPU torch tensor or a CuTe tensor, or an object that holds one as an attribute"
            )
        elif parameter.kind == "pointer" or parameter.type == "int64_t":
            # An address as a number, as `x.data_ptr()` gives it, points into the same array here.
            found = ctypes.c_uint64.from_address(address).value
            if arrays.holds(found):
                kept.append(word := ctypes.c_uint64(arrays.address(found)))
                addresses[number] = ctypes.addressof(word)
    return DslCall(arrays, addresses, kept)


def _said(error: BaseException) -> str:
    """The one line of an error of the DSL that says what is wrong, without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))
    cause = re.search(r"^\s*error: (.+)", text, re.M) or re.search(r"(?:error|warning)\[\w+\]: (.+)", text)
    return cause[1] if cause else text.strip().partition("\n")[0] or type(error).__name__


# TVM-FFI --------------------------------------------------------------------------------------------------------------


class _Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("index", ctypes.c_int32))


class _Tensor(ctypes.Structure):
    """DLTensor, dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_uint64), ("device", _Device), ("rank", ctypes.c_int32), ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p),
        ("offset", ctypes.c_uint64),
    )  # fmt: skip


_DELETE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    """DLManagedTensor, dlpack.h."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("delete", _DELETE))


@_DELETE
def _nothing(_: Any) -> None:
    """The memory is the caller's, and the capsule's words are kept with the call."""


class GpuTensor:
    """A DLPack tensor that says it lies on GPU 0, at an emulated address."""

    def __init__(self, value: Any, array: Array, address: int) -> None:
        self.managed = _Managed(delete=_nothing)
        tensor = self.managed.tensor
        tensor.data, tensor.rank, tensor.lanes = address, len(array.shape), 1
        tensor.device.kind, tensor.device.index = CUDA, 0
        tensor.code, tensor.bits = _element(value, array)
        self.shape = (ctypes.c_int64 * max(1, tensor.rank))(*array.shape)
        self.strides = (ctypes.c_int64 * max(1, tensor.rank))(*array.strides)
        tensor.shape, tensor.strides = ctypes.addressof(self.shape), ctypes.addressof(self.strides)

    def __dlpack__(self, **_: Any) -> Any:
        """The capsule. Data API standard, `__dlpack__`."""
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
        return new(ctypes.addressof(self.managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        """GPU 0."""
        return CUDA, 0


# DLDataTypeCode, dlpack.h: codes of the types that have one of their own.
_CODES = {
    "int": 0, "uint": 1, "float": 2, "bfloat": 4, "bool": 6, "float8_e4m3fn": 10, "float8_e5m2": 12,
    "float8_e8m0fnu": 14, "float4_e2m1fn_x2": 17,
}  # fmt: skip


def _element(value: Any, array: Array) -> tuple[int, int]:
    """(code, bits) of the elements, by DLPack's numbers."""
    name = str(getattr(value, "dtype", "")).removeprefix("torch.")
    code = _CODES.get(name, _CODES.get(name.rstrip("0123456789")))
    if code is None:
        raise EmulatorError(f"elements of type {name or type(value).__name__} have no code in DLPack")
    return code, array.bits
