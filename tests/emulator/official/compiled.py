"""Examples compiled without a GPU, and kept: PTX, the exported object and its types, by a hash of what made them.

A second run reads the cache and imports no cutlass, which is most of a run's time.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import inspect
import json
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layoutgemm.emulator.host.dsl_calls import types_of, watch
from layoutgemm.kernels.compile import cache as object_cache
from layoutgemm.kernels.compile.compiler import _runtime_library, dsl_version
from tests.emulator.official import fetch
from tests.emulator.official.examples import Constant, Example, Matrix, Number, Pointer, Scales, Sizes, Stream

PARTS = ("kernel.ptx", "kernel.o", "kernel.json")
TYPES = {
    "f16": "Float16", "bf16": "BFloat16", "f32": "Float32", "tf32": "TFloat32", "e4m3": "Float8E4M3FN",
    "e5m2": "Float8E5M2", "e2m1": "Float4E2M1FN", "ue8m0": "Float8E8M0FNU", "s8": "Int8", "u8": "Uint8",
    "s32": "Int32",
}  # fmt: skip
BITS = {"f16": 16, "bf16": 16, "f32": 32, "tf32": 32, "e2m1": 4, "s32": 32}


@dataclass(frozen=True)
class Compiled:
    """A compiled example: PTX text, the object with its host function, its arguments' types, and the names' prefix."""

    example: Example
    ptx: str
    object: bytes
    types: list[tuple[str, str]]
    symbol: str


def facts_of(example: Example) -> dict[str, Any]:
    """The inputs that decide the code: file, configuration, this module's request, DSL and machine."""
    return {
        "file": fetch.FILES[example.path],
        "arch": example.arch,
        "kernel": _said(example.kernel),
        "arguments": [_said(argument) for argument in example.arguments],
        "dsl": dsl_version(),
        "host": object_cache.host(),
        "sources": hashlib.sha256(Path(__file__).read_bytes()).hexdigest(),
    }


def _said(value: Any) -> str:
    """A value as text that changes when it does: a function's code, and what it closes over and defaults to."""
    code = getattr(value, "__code__", None)
    if code is not None:
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        constants = [_said(c) if hasattr(c, "co_code") else repr(c) for c in code.co_consts]
        return f"{code.co_code.hex()} {code.co_names} {constants} {[_said(cell) for cell in cells]}"
    if isinstance(value, Constant):
        return f"Constant({_said(value.make)})"
    if isinstance(value, Pointer):
        return f"Pointer({_said(value.of)}, {value.align})"
    return value.co_code.hex() if hasattr(value, "co_code") else repr(value)


@functools.cache
def compiled(example: Example) -> Compiled:
    """The example's code, from the cache or from the compiler. Needs the file, and for the compiler the DSL."""
    facts = facts_of(example)
    symbol = f"official_{object_cache.key_of(facts)[:16]}"
    parts = object_cache.read(facts, PARTS)
    if parts is None:
        parts = _compile(example, symbol)
        object_cache.write(facts, parts)
    ptx, object_, types = (parts[name] for name in PARTS)
    return Compiled(example, ptx.decode(), object_, json.loads(types), symbol)


def missing(example: Example) -> str | None:
    """Why the example cannot be had here, or None."""
    if fetch.path_of(example.path) is None:
        return fetch.MISSING
    if object_cache.read(facts_of(example), ("kernel.ptx",)) is None and importlib.util.find_spec("cutlass") is None:
        return "the example is not compiled yet, and cutlass is not installed: pip install 'layoutgemm[dsl]' (Linux)"
    return None


def _load(path: Path) -> Any:
    """The example's module. Examples import each other by name, so their folder is on the path while they load."""
    name = "official_" + hashlib.sha256(str(path).encode()).hexdigest()[:12]
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    above = [str(path.parent), *(str(parent.parent) for parent in path.parents if parent.name == "cute")]
    sys.path[:0] = above
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            spec.loader.exec_module(module)
    finally:
        for entry in above:
            sys.path.remove(entry)
    return module


def _argument(argument: Any, cutlass: Any) -> Any:
    """A stand-in for one argument, with every size and stride open but the contiguous one."""
    import cutlass.cute as cute
    from cutlass.cute.runtime import make_fake_stream, make_fake_tensor, make_ptr

    if isinstance(argument, Pointer):
        kind = getattr(cutlass, TYPES[argument.of.dtype])
        return make_ptr(kind, 0, cute.AddressSpace.gmem, assumed_align=argument.align)
    if isinstance(argument, Matrix):
        kind = getattr(cutlass, TYPES[argument.dtype])
        if not argument.modes:
            return make_fake_tensor(kind, (1,), (1,), assumed_align=4)
        unit = 128 // BITS.get(argument.dtype, 8)
        shape = tuple(1 if mode == "1" else cute.sym_int() for mode in argument.modes)
        stride = tuple(1 if mode == argument.major else cute.sym_int64(divisibility=unit) for mode in argument.modes)
        return make_fake_tensor(kind, shape, stride, assumed_align=16)
    if isinstance(argument, Scales):
        shape = (32, 4, cute.sym_int(), 4, cute.sym_int(), cute.sym_int())
        stride = (16, 4, cute.sym_int64(divisibility=512), 1, 512, cute.sym_int64(divisibility=512))
        return make_fake_tensor(getattr(cutlass, TYPES[argument.dtype]), shape, stride, assumed_align=32)
    if isinstance(argument, Sizes):
        return (cutlass.Int32(0),) * 4
    if isinstance(argument, Number):
        return cutlass.Float32(argument.value)
    if isinstance(argument, Constant):
        return argument.make(cutlass)
    if isinstance(argument, Stream):
        return make_fake_stream()
    raise TypeError(f"{argument!r} is no argument")


def _compile(example: Example, symbol: str) -> dict[str, bytes]:
    import cutlass
    import cutlass.cute as cute

    path = fetch.path_of(example.path)
    assert path is not None, fetch.MISSING
    watch()
    kernel = example.kernel(_load(path), cutlass)
    folder = tempfile.mkdtemp(prefix="layoutgemm-")
    try:
        arguments = [_argument(argument, cutlass) for argument in example.arguments]
        options = f"--gpu-arch {example.arch} --keep-ptx --keep-cubin --dump-dir {folder}"
        function = cute.compile(kernel, *arguments, options=options)
        _runtime_library()
        # Exporting pickles the host function's signature, and the default of a stream cannot be pickled.
        spec = function.execution_args
        plain = [p.replace(default=inspect.Parameter.empty) for p in spec.signature.parameters.values()]
        spec.signature = spec.signature.replace(parameters=plain)
        function.export_to_c(folder, "exported", symbol)
        # Elements are passed as bits, so of the types before lowering streams alone matter.
        types = [(one, before if before == "!cuda.stream" else "") for one, before in zip(*types_of(function))]
        parts = (function.__ptx__.encode(), (Path(folder) / "exported.o").read_bytes(), json.dumps(types).encode())
        return dict(zip(PARTS, parts, strict=True))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
