"""Kernels as object files: compiled without a GPU, loaded with one."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any


def export(folder: Path, kernel: Any, kinds: Iterable[str], symbol: str, arch: str) -> bytes:
    """Compiles a kernel into `folder`/`symbol`.o; returns its cubin.

    kinds  of the host function's parameters, as plans name them: `plan.parameters.values()`
    """
    import cutlass.cute as cute
    from cutlass import Int32, Int64
    from cutlass.cute.runtime import make_fake_stream

    from layoutgemm.kernels.compile.compiler import _runtime_library

    _runtime_library()
    values = {"address": Int64(0), "size": Int32(1), "stride": Int64(8)}
    with tempfile.TemporaryDirectory() as scratch:
        options = f"--gpu-arch {arch} --keep-cubin --dump-dir {scratch}"
        function = cute.compile(kernel, *[values[kind] for kind in kinds], make_fake_stream(), options=options)
        function.export_to_c(scratch, "exported", symbol)
        (folder / f"{symbol}.o").write_bytes((Path(scratch) / "exported.o").read_bytes())
        return bytes(function.__cubin__)


@functools.cache
def loaded(path: Path, symbol: str) -> Any:
    """A kernel's launch function, kept forever: a recorded graph does not own its code."""
    from cutlass.cute.runtime import load_module

    from layoutgemm.kernels.compile.compiler import _runtime_library

    _runtime_library()
    return load_module(str(path))[symbol]
