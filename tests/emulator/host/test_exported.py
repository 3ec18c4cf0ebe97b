"""Functions of exported files run in the emulator, or are refused by name."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from layoutgemm import emulate, emulated_gpu
from layoutgemm.emulator.host.exported import MAGIC, exported_in, machine_code
from layoutgemm.errors import EmulatorError
from tests import needs

needs.module("cutlass")
pytestmark = pytest.mark.dsl
needs_ffi = pytest.mark.skipif(not needs.found("tvm_ffi"), reason=needs.reason("tvm_ffi"))
ROWS, COLUMNS = 3, 40

KERNELS = """
import cutlass
import cutlass.cute as cute


@cute.kernel
def kernel(a: cute.Tensor, b: cute.Tensor, n: cutlass.Int32):
    t, _, _ = cute.arch.thread_idx()
    row, _, _ = cute.arch.block_idx()
    if t < a.shape[1]:
        b[row, t] = a[row, t] + n


@cute.jit
def add(a: cute.Tensor, b: cute.Tensor, n: cutlass.Int32):
    kernel(a, b, n).launch(grid=(a.shape[0], 1, 1), block=(64, 1, 1))


@cute.jit
def twice(a: cute.Tensor, b: cute.Tensor, n: cutlass.Int32):
    kernel(a, b, 2 * n).launch(grid=(a.shape[0], 1, 1), block=(64, 1, 1))
"""


def tensors() -> tuple[Any, Any]:
    a = np.arange(ROWS * COLUMNS, dtype=np.int32).reshape(ROWS, COLUMNS)
    return a, np.zeros_like(a)


def dynamic(value: Any, **options: Any) -> Any:
    from cutlass.cute.runtime import from_dlpack

    return from_dlpack(value, **options).mark_layout_dynamic()


def library(folder: Path, *objects: Path, libraries: tuple[str, ...] = ()) -> Path:
    made = folder / "lib.so"
    subprocess.run(["cc", "-shared", "-o", str(made), *map(str, objects), *libraries], check=True)
    return made


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of exported objects: add.o, twice.o, lib.so of both; ffi_add.o and ffi_twice.o."""
    made = tmp_path_factory.mktemp("exported")
    (made / "exported_kernels.py").write_text(KERNELS)
    spec = importlib.util.spec_from_file_location("exported_kernels", made / "exported_kernels.py")
    assert spec is not None and spec.loader is not None
    kernels: Any = importlib.util.module_from_spec(spec)
    with emulated_gpu("sm_90a"):
        spec.loader.exec_module(kernels)
        import cutlass.cute as cute

        a, b = map(dynamic, tensors())
        for function in (kernels.add, kernels.twice):
            name = function.__name__
            cute.compile(function, a, b, 1).export_to_c(str(made), name, name)
        if importlib.util.find_spec("tvm_ffi") is not None:
            a, b = (dynamic(x, enable_tvm_ffi=True) for x in tensors())
            for function in (kernels.add, kernels.twice):
                name = function.__name__
                compiled = cute.compile(function, a, b, 1, options="--enable-tvm-ffi")
                compiled.export_to_c(str(made / f"ffi_{name}.o"), function_name=name, export_only_tvm_ffi_symbols=True)
    library(made, made / "add.o", made / "twice.o")
    yield made


def load(path: Path, **options: Any) -> Any:
    import cutlass.cute as cute

    return cute.runtime.load_module(str(path), **options)


@pytest.mark.parametrize("file", ["add.o", "lib.so"])
def test_a_function_of_a_file_runs_as_it_was_compiled(folder: Path, file: str) -> None:
    a, b = tensors()
    with emulated_gpu("sm_90a") as gpu:
        load(folder / file).add(dynamic(a), dynamic(b), 5)
    assert np.array_equal(b, a + 5)
    assert gpu.ok and len(gpu.runs) == 1


def test_a_library_of_two_objects_has_both_functions(folder: Path) -> None:
    a, b = tensors()
    with emulated_gpu("sm_90a"):
        module = load(folder / "lib.so")
        module["twice"](dynamic(a), dynamic(b), 5)
        assert np.array_equal(b, a + 10)
        module.add(dynamic(a), dynamic(b), 5)
        assert np.array_equal(b, a + 5)
        with pytest.raises(Exception, match="absent not found"):
            module.absent  # noqa: B018
    assert sorted(exported_in((folder / "lib.so").read_bytes())) == ["add", "twice"]


@needs_ffi
@pytest.mark.parametrize("linked", [False, True])
def test_a_function_with_tvm_ffi_is_entered_through_the_symbol_of_its_file(folder: Path, linked: bool) -> None:
    from cutlass.cute.runtime import find_runtime_libraries

    paths = {name: folder / f"ffi_{name}.o" for name in ("add", "twice")}
    if linked:  # with the real CUDA runtime, whose functions are not the emulator's
        (folder / "ffi").mkdir()
        libraries = tuple(find_runtime_libraries(enable_tvm_ffi=True))
        paths = dict.fromkeys(paths, library(folder / "ffi", *paths.values(), libraries=libraries))
    a, b = tensors()
    with emulated_gpu("sm_90a") as gpu:
        added, doubled = (getattr(load(path, enable_tvm_ffi=True), name) for name, path in paths.items())
        for n in (5, -3):
            added(a, b, n)
            assert np.array_equal(b, a + n)
        doubled(a, b, 5)
        assert np.array_equal(b, a + 10)
        with pytest.raises(Exception, match="Mismatched"):
            added(a, b.astype(np.float32), 5)
    assert len(gpu.runs) == 3


def test_findings_of_a_loaded_function_name_its_python_lines(folder: Path) -> None:
    a, b = tensors()
    with emulated_gpu("sm_90a") as gpu, pytest.raises(EmulatorError, match=r"exported_kernels\.py:\d+"):
        load(folder / "add.o").add(dynamic(a), dynamic(b[:2]), 5)
    assert not gpu.ok


def changed(folder: Path, tmp_path: Path, before: bytes, after: bytes) -> Path:
    content = (folder / "add.o").read_bytes()
    assert before in content and len(before) == len(after)
    path = tmp_path / "add.o"
    path.write_bytes(content.replace(before, after))
    return path


def refusal(path: Path, name: str = "add", arch: str = "sm_90a", **options: Any) -> str:
    with emulated_gpu(arch), pytest.raises(EmulatorError) as raised:
        getattr(load(path, **options), name)
    return str(raised.value)


def test_machine_code_alone_is_refused_with_the_way_out(folder: Path, tmp_path: Path) -> None:
    path = changed(folder, tmp_path, MAGIC, MAGIC.replace(b"1", b"0"))
    text = refusal(path)
    assert text.startswith(f"add of {path} is machine code alone") and "export it within `layoutgemm emulate`" in text


@needs_ffi
def test_machine_code_alone_with_tvm_ffi_is_refused(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "ffi.o"
    path.write_bytes((folder / "ffi_add.o").read_bytes().replace(MAGIC, MAGIC.replace(b"1", b"0")))
    assert f"add of {path} is machine code alone" in refusal(path, enable_tvm_ffi=True)


def test_other_machine_code_than_was_exported_is_refused(folder: Path, tmp_path: Path) -> None:
    content = (folder / "add.o").read_bytes()
    at = content.find(b"\x7fELF\x02\x01", 1)
    image = content[at : at + 200]
    path = changed(folder, tmp_path, image, image[:-1] + bytes([image[-1] ^ 1]))
    assert "its machine code is not what was exported with the PTX there" in refusal(path)
    assert machine_code(path.read_bytes()) != machine_code(content) and len(machine_code(content)) == 1


def test_a_damaged_record_is_refused(folder: Path, tmp_path: Path) -> None:
    content = (folder / "add.o").read_bytes()
    at = content.find(MAGIC) + len(MAGIC) + 20
    path = changed(folder, tmp_path, content[at : at + 40], bytes(40))
    assert "is damaged" in refusal(path)


def test_machine_code_of_another_gpu_is_refused(folder: Path) -> None:
    assert "add of" in (text := refusal(folder / "add.o", arch="sm_100a"))
    assert text.endswith("was compiled for sm_90a; this is sm_100a")


def test_outside_of_an_emulated_gpu_a_loaded_function_is_refused(folder: Path) -> None:
    a, b = tensors()
    with pytest.raises(EmulatorError, match="loaded from a file, as machine code alone: export it within"):
        emulate(load(folder / "add.o").add, a, b, 5)


def test_what_was_loaded_outside_of_an_emulated_gpu_is_refused_within(folder: Path) -> None:
    a, b = tensors()
    module = load(folder / "add.o")
    added = module.add
    with emulated_gpu("sm_90a"):
        with pytest.raises(EmulatorError, match="add is of a module that was loaded outside of this emulated GPU"):
            module.add  # noqa: B018
        with pytest.raises(EmulatorError, match="loaded from a file outside of this emulated GPU: load it within"):
            added(dynamic(a), dynamic(b), 5)
    assert not b.any()
