"""Calls of `cute.compile`'s result in the emulator, with its user's arguments.

The function's own object code runs above a stub of the CUDA runtime (`host/launcher.py`). Arguments are bound and
flattened as the DSL does, and each becomes the bytes of the compiled type. The DSL packs the objects that only it can
pack, those with `__c_pointers__` and registered adapters. Functions with TVM-FFI are entered through TVM-FFI, whose
checks run on tensors "on a GPU" at the emulator's addresses.

Compiled code no longer states a tensor's element type or its fixed extents. A hook of the DSL, which `watch` registers,
keeps the types of each function that is compiled from then on.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import inspect
import json
import re
import sys
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np

from ...arguments import shown
from ...errors import EmulatorError, NotCompiledError
from ...layouts.proofs.verdicts import Function
from .arguments import ArgumentMemory, PackedArray, array_of
from .exported import WAY_OUT, loaded_from_file
from .launcher import HostFunction, HostLaunch, gathered
from .types import HostParameter, PackedArgument, emulated, packed, parameter_of

KEEP = (
    'compile with options="--gpu-arch sm_90a --keep-ptx --dump-dir FOLDER" (or CUTE_DSL_KEEP_PTX=1) to keep it; '
    "FOLDER has to exist, else the DSL keeps nothing and says nothing"
)
TYPES = "layoutgemm.arguments"  # the attribute of a module that lists its host function's types before lowering
_STREAMS = ("CUstream", "cudaStream_t", "_FakeStream", "Stream")


def watch() -> None:
    """Have an imported CuTe DSL keep the argument types of later compilations."""
    dsl = sys.modules.get("cutlass.cutlass_dsl")
    for name in ("CuTeDSL", "CuteExperimentalDSL"):
        kind: Any = getattr(dsl, name, None)
        if hasattr(kind, "register_trace_finalize_hook"):
            kind._get_dsl().register_trace_finalize_hook(_keep_types)


def _keep_types(owner: Any, module: Any, function: str) -> None:
    from cutlass._mlir import ir

    for op in module.body.operations:
        if "sym_name" in op.attributes and op.attributes["sym_name"].value == function and len(op.regions[0].blocks):
            kinds = [str(argument.type) for argument in op.regions[0].blocks[0].arguments]
            with module.context:
                module.operation.attributes[TYPES] = ir.StringAttr.get(json.dumps(kinds))


def parameters_of(compiled: object) -> list[HostParameter]:
    """The arguments of a compiled function, read from its module or its file's record."""
    machine, traced = types_of(compiled)
    if len(machine) != len(traced):
        traced = [""] * len(machine)
    return [parameter_of(one, before) for one, before in zip(machine, traced, strict=True)]


def types_of(compiled: Any) -> tuple[list[str], list[str]]:
    """The machine types of a compiled function's arguments, and their types before lowering if kept."""
    if (loaded := loaded_from_file(compiled)) is not None:
        return loaded.record.machine, loaded.record.traced
    module, entry = compiled.ir_module, f"_mlir_ciface_{compiled.function_name}"
    attributes = module.operation.attributes
    traced = json.loads(attributes[TYPES].value) if TYPES in attributes else []
    for op in module.body.operations:
        if op.operation.name == "llvm.func" and op.attributes["sym_name"].value == entry:
            return [str(argument.type) for argument in op.regions[0].blocks[0].arguments], traced
    raise EmulatorError("the compiled module has no host function: this version of the CuTe DSL is not known")


_WITHOUT_STREAM: weakref.WeakKeyDictionary[object, bool] = weakref.WeakKeyDictionary()


def is_without_stream(compiled: object) -> bool:
    """True if no parameter of a compiled function is a stream.

    Its kernels run on the legacy one: the DSL launches on stream 0 where `launch` gets none. False where the types were
    not kept.
    """
    found = _WITHOUT_STREAM.get(compiled)
    if found is None:
        machine, traced = types_of(compiled)
        found = _WITHOUT_STREAM[compiled] = len(machine) == len(traced) and "!cuda.stream" not in traced
    return found


@functools.cache
def _runtime(ffi: bool) -> tuple[object, ...]:
    """The DSL's runtime, loaded for the whole process: writing an object looks up there what it calls."""
    import cutlass.runtime

    paths = cutlass.runtime.find_runtime_libraries(enable_tvm_ffi=ffi)
    return tuple([ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL) for path in paths])


def _object_of(compiled: Any, ffi: bool) -> bytes:
    """The object code of a compiled function's module."""
    from cutlass._mlir._mlir_libs._cutlass_ir import _mlirExecutionEngine

    engine: Any = _mlirExecutionEngine
    target = compiled.host_target
    _runtime(ffi)
    with tempfile.TemporaryDirectory(prefix="layoutgemm-host-") as folder:
        made = Path(folder) / "host.o"
        engine.dump_object_file_pic(
            compiled.ir_module, str(made), compiled.function_name, host_triple=target.triple, host_cpu=target.cpu,
            host_features=target.features,
        )  # fmt: skip
        return made.read_bytes()


# Arguments ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CallValue:
    """One value of a call that becomes one argument of the host function.

    name        the parameter's, with the way into it: "sizes[1]", "config.scale"
    annotation  the DSL's scalar type that the user asked for, or None
    """

    name: str
    value: object
    annotation: object = None


def _is_stream(value: object) -> bool:
    return value is not None and (
        type(value).__name__ in _STREAMS or hasattr(value, "__cuda_stream__") or hasattr(value, "cuda_stream")
    )


def _repointed(value: object) -> bool:
    """True for a tensor of the DSL whose descriptor has another address than the tensor. A launch reads the descriptor.

    Scripts write a new address there, and drop the tensor's DLPack data, to spare a conversion for each call.
    """
    packed = getattr(value, "_c_pointers_cache", None)
    if not packed or not hasattr(value, "_dltensor_wrapper"):
        return False
    own = value._dltensor_wrapper
    return own is None or ctypes.c_uint64.from_address(packed[0]).value != own.data_ptr


def _is_array(value: object) -> bool:
    """True for an array, or for a tensor on any device. Asking may raise."""
    if _repointed(value):
        return False
    return isinstance(value, PackedArray) or (
        (hasattr(value, "__array_interface__") and not np.isscalar(value)) or hasattr(value, "data_ptr")
    )


def _is_scalar_type(kind: object) -> bool:
    """True for Int32, Float32, or another scalar type of the DSL."""
    return type(kind).__name__ in ("IntegerMeta", "FloatMeta", "NumericMeta")


def _fields(value: Any) -> Iterator[tuple[str, object, object]]:
    """(name, value, annotation) of each field of a dataclass that is not a constant."""
    from cutlass.base_dsl.utils.tree_utils import is_constexpr_field

    for part in dataclasses.fields(value):
        if not is_constexpr_field(part, value):
            yield part.name, getattr(value, part.name), part.type


def _opened(name: str, value: object, annotation: object, scalars: bool) -> Iterator[CallValue]:
    """The run-time values of a parameter in the DSL's order; scalars: NumPy's own count without annotation."""
    numeric = annotation if _is_scalar_type(annotation) else None
    if value is None or isinstance(value, (str, bytes, dict, type)):
        if numeric is not None:
            yield CallValue(name, value, numeric)
        return
    if isinstance(value, np.generic):
        if scalars or numeric is not None:
            yield CallValue(name, value, numeric)
    elif _is_array(value) or _is_stream(value) or isinstance(value, (bool, int, float, ctypes.c_void_p)):
        yield CallValue(name, value, numeric)
    elif _is_scalar_type(type(value)):
        yield CallValue(name, value, numeric or type(value))
    elif hasattr(value, "_pointer") and hasattr(value, "memspace"):  # a pointer of the DSL
        yield CallValue(name, value)
    elif isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        kinds: tuple[object, ...] = getattr(annotation, "__args__", None) or ()
        hints = getattr(type(value), "__annotations__", {}) if names else {}
        if (len(kinds) == 2 and kinds[1] is Ellipsis) or (len(kinds) == 1 and isinstance(value, list)):
            kinds = (kinds[0],) * len(value)
        for number, part in enumerate(value):
            inner = hints.get(names[number]) if names else (kinds[number] if len(kinds) == len(value) else None)
            yield from _opened(f"{name}.{names[number]}" if names else f"{name}[{number}]", part, inner, scalars)
    elif hasattr(value, "__c_pointers__"):
        yield from _by_the_dsl(name, value)
    elif dataclasses.is_dataclass(value) and not _custom(value):
        for part, content, kind in _fields(value):
            yield from _opened(f"{name}.{part}", content, kind, scalars)
    else:
        adapter = _adapter(value)
        if adapter is not None:
            try:
                adapted = adapter(value)
            except Exception as error:
                raise EmulatorError(f"{name} cannot be packed by the DSL: {_plain(error)}") from error
            yield from _by_the_dsl(name, adapted)


def _is_algebra(annotation: object) -> bool:
    """True if an annotation is the DSL's Shape, Stride, Coord, Tile or IntTuple."""
    from cutlass.cutlass_dsl.cutlass import is_cute_algebra_type

    return bool(is_cute_algebra_type(annotation))


def _algebra(value: object) -> Iterator[object]:
    """The run-time scalars in a shape, stride or coordinate; the DSL takes its Python integers as constants."""
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _algebra(part)
    elif _is_scalar_type(type(value)):
        yield value


def _custom(value: object) -> bool:
    return any(hasattr(value, name) for name in ("__get_mlir_types__", "__extract_mlir_values__"))


def _adapter(value: object) -> Any:
    from cutlass.base_dsl.runtime.jit_arg_adapters import JitArgAdapterRegistry as Registry

    return Registry.call_with_scope(Registry.CUDA_DIALECT_SCOPE, Registry.get_registered_adapter, value)


def _by_the_dsl(name: str, value: object) -> Iterator[CallValue]:
    """The values that the DSL packs for an object, by their addresses."""
    from cutlass.base_dsl.typing import get_c_pointers

    try:
        pointers = get_c_pointers(value)
    except Exception as error:
        raise EmulatorError(f"{name} cannot be packed by the DSL: {_plain(error)}") from error
    for number, pointer in enumerate(pointers):
        address = getattr(pointer, "value", pointer)
        yield CallValue(
            name if len(pointers) == 1 else f"{name}({number})",
            OwnedPackedArgument(int(address or 0), (value, pointer)),
        )


class OwnedPackedArgument(PackedArgument):
    """Bytes that the DSL packed, with what owns them."""

    def __init__(self, address: int, owners: object) -> None:
        super().__init__(address)
        object.__setattr__(self, "owners", owners)


def _arrays_in(name: str, value: object, depth: int = 6) -> Iterator[tuple[str, object]]:
    """The arrays within a value, with names."""
    if _is_array(value):
        yield name, value
    elif _repointed(value):
        return
    elif depth and isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None)
        for number, part in enumerate(value):
            yield from _arrays_in(f"{name}.{names[number]}" if names else f"{name}[{number}]", part, depth - 1)
    elif depth and not isinstance(value, (str, bytes, type, np.generic)) and not _is_stream(value):
        if isinstance(getattr(value, "__dict__", None), dict):
            for key, part in vars(value).items():
                yield from _arrays_in(f"{name}.{key}", part, depth - 1)


def _typed(parameter: HostParameter, leaf: CallValue) -> HostParameter:
    """The parameter with its integer's sign, and with TFloat32 told apart from Int32. The user's annotation or the
    value's own type decides. A Python integer is an Int32 for the DSL."""
    plain = "Int32" if type(leaf.value) is int and leaf.annotation is None else ""
    name = getattr(leaf.annotation, "__name__", plain)
    if parameter.kind != "scalar" or parameter.type[0] != "i" or parameter.type == "i1":
        return parameter
    if name == "TFloat32":
        return dataclasses.replace(parameter, type="tf32")
    sign = {"Int": "s", "Uint": "u"}.get(name.rstrip("0123456789"))
    if sign and name.endswith(parameter.type[1:]):
        return dataclasses.replace(parameter, type=sign + parameter.type[1:])
    return parameter


def _plain(error: BaseException) -> str:
    """The DSL's message in one line, without colours."""
    return re.sub(r"\s+", " ", re.sub(r"\x1b\[[0-9;]*m", "", str(error))).strip()


class RefusedArgumentError(EmulatorError):
    """An argument that TVM-FFI's own checks refuse; its error is the cause."""


# Functions ------------------------------------------------------------------------------------------------------------


@dataclass
class CompiledFunction:
    """The result of `cute.compile` and its host function, linked with the stub."""

    compiled: Any
    host: HostFunction
    entry: Any = field(default=None)

    @property
    def kernels(self) -> list[Any]:
        """The kernels of the PTX."""
        return self.host.kernels

    @property
    def parameters(self) -> list[HostParameter]:
        """The arguments of the host function, in order."""
        return self.host.parameters

    @classmethod
    def of(cls, compiled: Any) -> CompiledFunction:
        """The compiled function of `compiled`. Raises EmulatorError without kept PTX, or for another object."""
        if isinstance(compiled, Function) or not callable(compiled) or not type(compiled).__weakrefoffset__:
            raise NotCompiledError(f"the emulator takes what cute.compile returned, not {type(compiled).__name__}")
        text = getattr(compiled, "__ptx__", None)
        if not isinstance(text, str) or ".entry" not in text:
            if getattr(compiled, "load_from_binary", False):
                raise EmulatorError(f"the function was loaded from a file, as machine code alone: {WAY_OUT}")
            raise EmulatorError(f"the compiled function has no PTX: {KEEP}")
        ffi = sys.modules.get("tvm_ffi") if hasattr(compiled, "_create_tvm_ffi_function") else None
        libraries = [ffi.libinfo.find_libtvm_ffi()] if ffi is not None else []
        if (loaded := loaded_from_file(compiled)) is not None:
            content, entry = loaded.content, loaded.entry
        else:
            content = _object_of(compiled, ffi is not None)  # printed values may be in the name, and any letters
            entry = f"{'__tvm_ffi' if ffi is not None else '_mlir__mlir_ciface'}_{compiled.function_name}"
        host = HostFunction.link(content, text, parameters_of(compiled), libraries, entry)
        function = cls(compiled, host)
        if ffi is not None:
            at = ctypes.cast(host.library[entry], ctypes.c_void_p)
            function.entry = ffi.Function.__from_extern_c__(at.value, keep_alive_object=host.library)
        return function

    def call(
        self, values: Sequence[object], extra: Sequence[object] = (), named: Mapping[str, object] | None = None
    ) -> tuple[ArgumentMemory, list[HostLaunch]]:
        """Run the function: returns the memory that its kernels see, and its launches.

        values  the arguments of a call; streams left out or not
        extra   further arrays that kernels reach by addresses in them
        named   arguments by keyword
        """
        values, added = self._apart(tuple(values))
        bound = self._bound(values, dict(named or {}))
        leaves = [*self._leaves(bound), *[CallValue(name, value) for name, value in added.items()]]
        bound |= added
        found = [pair for name, value in bound.items() for pair in _arrays_in(name, value)]
        arrays = gathered(found, extra)
        arrays.memory.kept = (*arrays.memory.kept, bound, leaves)
        if self.entry is None:
            return arrays, self.host.run(self._words(leaves, arrays), arrays)
        try:
            ran = self._run_ffi(bound, leaves, arrays)
        except RefusedArgumentError as error:  # a script may expect TVM-FFI's error, a reader the argument's name
            try:
                self._words(leaves, arrays)
            except EmulatorError as named_error:
                raise RefusedArgumentError(f"{named_error}; TVM-FFI: {error}") from error.__cause__
            if arrays.memory.notes:
                raise RefusedArgumentError(f"{arrays.memory.notes[0]}; TVM-FFI: {error}") from error.__cause__
            raise
        self._words(leaves, arrays)  # what TVM-FFI takes and a kernel does not
        return arrays, ran

    def _words(self, leaves: Sequence[CallValue], arrays: ArgumentMemory) -> list[Any]:
        """The host function's arguments. Raises EmulatorError, naming the argument, for one that it does not take."""
        return [
            packed(_typed(parameter, leaf), leaf.name, leaf.value, arrays)
            for parameter, leaf in zip(self.parameters, leaves, strict=True)
        ]

    # -------------------------------------------------------- binding

    @property
    def _added(self) -> int:
        """The number of workspaces of `cute.experimental` behind the function's own arguments."""
        return int(getattr(self.compiled, "total_added_arguments", 0))

    def _apart(self, values: tuple[object, ...]) -> tuple[tuple[object, ...], dict[str, object]]:
        """The values of the function's own arguments, and the workspaces behind them by name.

        Raises EmulatorError where the workspaces are missing.
        """
        own = len(values) - self._added
        if own < 0:
            raise EmulatorError(f"{len(values)} arguments; the last {self._added} of a call are workspaces")
        return values[:own], {f"workspace[{n}]": value for n, value in enumerate(values[own:])}

    def _bound(self, values: tuple[object, ...], named: dict[str, object]) -> dict[str, object]:
        """Values by parameter, with defaults, and None for omitted streams."""
        execution = self.compiled.execution_args
        names, signature = execution._meta.all_names, execution.signature
        streams = [name for name, p in signature.parameters.items() if _may_be_stream(p)]
        needed = [name for name, p in signature.parameters.items() if p.default is inspect.Parameter.empty]
        given = len(values) + len(named)
        at_its_place = any(name in streams and _is_stream(value) for name, value in zip(names, values, strict=False))
        if streams and given < len(names) and not at_its_place and not set(streams) & set(named):
            others = [name for name in names if name not in streams]
            if given == len(others) or (given < len(needed) and len(values) <= len(others)):
                named = {**dict(zip(others, values, strict=False)), **named, **dict.fromkeys(streams)}
                values = ()
        missing = len(needed) - given
        if missing > 0 and not streams and all(p.kind == "stream" for p in self.parameters[-missing:]):
            named = {**named, **dict.fromkeys(needed[-missing:])}
        try:
            bound = signature.bind(*values, **named)
        except TypeError as error:
            takes = ", ".join(names)
            raise EmulatorError(f"{given} arguments; the compiled function takes ({takes}): {error}") from None
        bound.apply_defaults()
        return {name: bound.arguments[name] for name in names}

    def _leaves(self, bound: Mapping[str, object]) -> list[CallValue]:
        """One value for each argument of the host function. Raises EmulatorError that lists each parameter's values."""
        execution, count = self.compiled.execution_args, len(self.parameters) - self._added
        kinds = dict(zip(execution._meta.all_names, execution._meta.annotated_types, strict=True))
        none = _with_none(execution)
        for name, value in bound.items():
            if none[name] and value is not None:
                raise EmulatorError(f"{name} was None when the function was compiled: only None can be passed")
        told: list[list[CallValue]] = []
        flat: list[CallValue] = []
        for scalars in (False, True):
            told = [
                [] if none[name]
                else [CallValue(f"{name}({n})", part) for n, part in enumerate(_algebra(value))]
                if _is_algebra(kinds[name]) and not scalars
                else list(_opened(name, value, kinds[name], scalars))
                for name, value in bound.items()
            ]  # fmt: skip
            for leaves, (name, value) in zip(told, bound.items(), strict=True):
                if value is None and not none[name] and _expects_value(execution.signature.parameters[name]):
                    leaves.append(CallValue(name, None))
            flat = [leaf for leaves in told for leaf in leaves]
            if len(flat) == count:
                for name, leaves in zip(bound, told, strict=True):
                    if not leaves and _is_algebra(kinds[name]):
                        self._hold_constant(name, bound[name])
                return flat
        missing = [(name, at) for at, (name, value) in enumerate(bound.items()) if value is None and not told[at]]
        if len(missing) == count - len(flat) == 1:  # a stream without an annotation
            name, at = missing[0]
            place = sum(map(len, told[:at]))
            if self.parameters[place].kind in ("stream", "pointer"):
                return [*flat[:place], CallValue(name, None), *flat[place:]]
        says = ", ".join(f"{name} gives {len(leaves)}" for name, leaves in zip(bound, told, strict=True))
        raise EmulatorError(
            f"the arguments are {len(flat)} values ({says}); the compiled function takes {count}: "
            f"{', '.join(map(str, self.parameters))}{self._culprit(bound, told)}"
        )

    def _hold_constant(self, name: str, value: object) -> None:
        """Raise EmulatorError where a shape or the like differs from the compiled constant. The DSL writes the constant
        into the function's name, which it cuts at 180 characters."""
        from cutlass.base_dsl.dsl import _MANGLE_TRANSLATION_TABLE

        function = self.compiled.function_name
        said = "_".join(map(str, value)) if isinstance(value, tuple) else str(value)
        said = re.sub(r"\s+", "_", said.translate(_MANGLE_TRANSLATION_TABLE))
        if len(function) < 180 and said not in function:
            raise EmulatorError(
                f"{name} is {shown(value)}, and was another constant when the function was compiled "
                f"({function}): pass the "
                "same, or compile with Int32 values"
            )

    def _culprit(self, bound: Mapping[str, Any], told: Sequence[Sequence[CallValue]]) -> str:
        """The first mismatch of values and parameters, in words."""
        place = 0
        for name, leaves in zip(bound, told, strict=True):
            kind = self.compiled.execution_args.signature.parameters[name].annotation
            inner = get_args(kind) if get_origin(kind) is tuple and isinstance(bound[name], tuple) else ()
            if inner and Ellipsis not in inner and len(inner) != len(bound[name]):
                return f". {name} has {len(bound[name])} elements, and its annotation {len(inner)}"
            for leaf in leaves:
                if place == len(self.parameters):
                    return f". {leaf.name} is one too many"
                wanted = self.parameters[place]
                if (wanted.kind == "tensor") != _is_array(leaf.value) and not isinstance(leaf.value, PackedArgument):
                    return f". {leaf.name} stands where a {wanted} is taken"
                place += 1
            if not leaves and not _with_none(self.compiled.execution_args)[name]:
                return f". {name}, a {type(bound[name]).__name__}, gives nothing: pass what it was compiled with"
        return ""

    # -------------------------------------------------------- TVM-FFI

    def _run_ffi(
        self, bound: Mapping[str, object], leaves: Sequence[CallValue], arrays: ArgumentMemory
    ) -> list[HostLaunch]:
        """Run the function through TVM-FFI's entry, which takes no stream of its environment."""
        import tvm_ffi

        kinds = {leaf.name: p for leaf, p in zip(leaves, self.parameters, strict=True)}
        streams = {name for name, p in kinds.items() if p.kind == "stream"}

        def enter() -> None:
            device, given = tvm_ffi.DLDeviceType.kDLCUDA, dict(bound)
            while True:
                ready = [
                    ctypes.c_void_p(0) if name in streams else _for_ffi(name, value, kinds, arrays, int(device))
                    for name, value in given.items()
                ]
                try:
                    self.entry(*ready)
                except Exception as error:
                    if self.host.failure is not None:
                        return
                    taken = re.search(r"Expects (\d+) parameters", str(error))
                    if taken and int(taken[1]) == len(given) - len(streams & set(given)) < len(given):
                        given = {name: value for name, value in given.items() if name not in streams}
                        continue
                    if "device" in str(error) and device == tvm_ffi.DLDeviceType.kDLCUDA:
                        device = tvm_ffi.DLDeviceType.kDLCPU
                        continue
                    raise RefusedArgumentError(_plain(error)) from error
                return

        return self.host.recorded(enter, arrays)


def _with_none(execution: Any) -> dict[str, bool]:
    """Parameter -> True if it was None at compilation; version 4.7 of the DSL does not keep that."""
    names = execution._meta.all_names
    kept = getattr(execution, "_compiled_with_none", None) or [False] * len(names)
    return {name: none is True for name, none in zip(names, kept, strict=True)}


def _may_be_stream(parameter: inspect.Parameter) -> bool:
    kind = parameter.annotation
    name = getattr(kind, "__name__", str(kind))
    return name.rpartition(".")[2] in _STREAMS or (kind is inspect.Parameter.empty and parameter.name == "stream")


def _expects_value(parameter: inspect.Parameter) -> bool:
    """True if None stands for a null handle: for streams and pointers, by their annotation."""
    return _may_be_stream(parameter) or "Pointer" in str(parameter.annotation)


class _DLTensor(ctypes.Structure):
    """DLTensor, dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
    )  # fmt: skip


class _DeviceArray:
    """An array for DLPack, at an emulated address on another device."""

    def __init__(self, tensor: Any, address: int, device: int) -> None:
        self.capsule, self.device = tensor.__dlpack__(), (device, 0)
        get = ctypes.pythonapi.PyCapsule_GetPointer
        get.restype, get.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
        self.content = _DLTensor.from_address(get(self.capsule, b"dltensor"))
        self.content.data, self.content.device_type, self.content.device_id = address, device, 0

    def be(self, kind: Any) -> None:
        """Treat the elements as this type, of the same width."""
        self.content.code, self.content.bits, self.content.lanes = kind.type_code, kind.bits, kind.lanes

    def __dlpack__(self, **_: object) -> Any:
        return self.capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self.device


def _for_ffi(name: str, value: Any, kinds: Mapping[str, HostParameter], arrays: ArgumentMemory, device: int) -> Any:
    """An argument for TVM-FFI: arrays, pointers and addresses as emulated ones, dataclasses as tuples."""
    import tvm_ffi

    if (parameter := kinds.get(name)) is not None and parameter.kind == "pointer":
        array = array_of(value)
        raw = array.address if array is not None else getattr(value, "_pointer", value)
        raw = raw.value if isinstance(raw, ctypes.c_void_p) else raw
        if not isinstance(raw, int) or not raw:
            return ctypes.c_void_p(0)
        try:
            return ctypes.c_void_p(arrays.address(raw))
        except EmulatorError as error:
            raise EmulatorError(f"{name}: {error}") from None
    if _is_array(value):
        array = array_of(value)
        assert array is not None
        source = value.values if isinstance(value, PackedArray) else getattr(value, "_tvm_ffi_tensor", value)
        try:
            moved = _DeviceArray(tvm_ffi.from_dlpack(source), arrays.address(array.address), device)
            if isinstance(value, PackedArray) and value.kind == "e2m1":
                moved.be(tvm_ffi.dtype("float4_e2m1fnx2"))
            return tvm_ffi.from_dlpack(moved)
        except Exception as error:
            raise EmulatorError(f"{name} cannot be passed to TVM-FFI: {_plain(error)}") from error
    if isinstance(value, (list, tuple)):
        names = getattr(value, "_fields", None) or [f"[{number}]" for number in range(len(value))]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [part.name for part in dataclasses.fields(value)]
        value = [getattr(value, part) for part in names]
    else:
        plain = value.value if _is_scalar_type(type(value)) else value
        return plain if parameter is None else emulated(parameter, plain, arrays)
    inner = [name + (part if part[0] == "[" else f".{part}") for part in names]
    return tuple([_for_ffi(n, part, kinds, arrays, device) for n, part in zip(inner, value, strict=True)])
