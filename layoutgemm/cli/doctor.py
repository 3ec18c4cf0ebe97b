"""`layoutgemm doctor`: the kernels' requirements that this machine meets, and how to get the rest."""

from __future__ import annotations

import argparse
import ctypes
import importlib.metadata
import importlib.util
import json
import os
import platform
import runpy
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .. import __version__
from ..errors import LayoutError
from ..kernels.compile import cache as object_cache
from ..kernels.compile.launcher import cuda_driver, runtime_candidates
from ..kernels.compile.sass import find_tool
from ..torch_op.problem import OLDEST_TORCH
from .arguments import add
from .commands import Commands

EXAMPLES = ("layoutgemm doctor --json  # status 1 where something is missing",)
TESTED_DSL = "4.8.1"
OK, MISSING, NOTE = "ok", "missing", "note"
ABSENT = "not installed"


def add_doctor(commands: Commands) -> None:
    """The subcommand doctor."""
    add(commands, "doctor", EXAMPLES, run)


def run(args: argparse.Namespace) -> int:
    """Examine the machine and print; returns the exit status."""
    findings = examine()
    print(report(findings, args.json))
    return status(findings)


@dataclass(frozen=True)
class ReportLine:
    """One line of the report.

    name    what was examined
    state   "ok"; "missing": matmul does not run on a GPU without it; "note": some feature is limited without it
    found   what is there
    way_out the remedy, "" where none is needed
    """

    name: str
    state: str
    found: str
    way_out: str = ""

    def __str__(self) -> str:
        mark = {OK: "ok     ", MISSING: "MISSING", NOTE: "note   "}[self.state]
        return f"{mark} {self.name:<10} {self.found}" + (f"\n{'':19}-> {self.way_out}" if self.way_out else "")


def examine() -> list[ReportLine]:
    """Examine everything that compiling and running a kernel needs. Compiles, launches and keeps nothing.

    >>> {finding.state for finding in examine()} <= {"ok", "missing", "note"}
    True
    """
    return [
        ReportLine(
            "package", OK, f"layoutgemm {__version__}, Python {platform.python_version()}, {platform.platform()}"
        ),
        _driver(),
        *_gpus(),
        _dsl(),
        _runtime(),
        _linker(),
        _tools(),
        *_cache(),
    ]


def report(findings: Sequence[ReportLine], as_json: bool = False) -> str:
    """The findings as text, or as JSON with the verdict."""
    missing = [finding.name for finding in findings if finding.state == MISSING]
    if as_json:
        return json.dumps({"ok": not missing, "missing": missing, "findings": [asdict(f) for f in findings]}, indent=1)
    verdict = "matmul runs on the GPU here"
    if missing:
        verdict = f"matmul does not run on a GPU here: {', '.join(missing)}. "
        without = any(finding.name == "torch" and finding.found == ABSENT for finding in findings)
        computed = "On CPU tensors it is computed by torch"
        verdict += "Layouts, proofs and pictures need none of it" if without else computed
    return "\n".join([*map(str, findings), "", verdict])


def status(findings: Sequence[ReportLine]) -> int:
    """0 when matmul can run on a GPU here, 1 when something is missing for it."""
    return int(any(finding.state == MISSING for finding in findings))


def _driver() -> ReportLine:
    try:
        driver = cuda_driver()
    except OSError:
        return ReportLine("driver", MISSING, "no NVIDIA driver", "install one: https://www.nvidia.com/drivers")
    number = ctypes.c_int(0)
    driver.cuDriverGetVersion(ctypes.byref(number))
    cuda = f"{number.value // 1000}.{number.value % 1000 // 10}"
    version = ""
    try:
        first = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").splitlines()[0]
        version = next((word for word in first.split() if word[:1].isdigit() and "." in word), "")
    except (OSError, IndexError):
        pass
    said = f"NVIDIA driver {version or 'of unknown version'}, CUDA {cuda}"
    if number.value < 12000:
        return ReportLine("driver", MISSING, said, "these kernels need a driver for CUDA 12 or later")
    return ReportLine("driver", OK, said)


@dataclass(frozen=True)
class _Torch:
    """The installed torch, as its file version.py states it: importing torch takes a second.

    version, cuda  of torch, and of the CUDA that it is built with, None for none
    sees_gpus      False where it can find none: built for no GPU, or without a driver
    """

    version: str
    cuda: str | None
    sees_gpus: bool


def _torch() -> _Torch | None:
    """The installed torch, or None."""
    spec = importlib.util.find_spec("torch")
    if spec is None:
        return None
    stated = Path(spec.origin or "").with_name("version.py")
    if "torch" in sys.modules or not stated.is_file():
        import torch

        return _Torch(torch.__version__, torch.version.cuda, True)
    facts = runpy.run_path(str(stated))
    cuda, hip = facts.get("cuda"), facts.get("hip")
    return _Torch(facts["__version__"], cuda, hip is not None or (cuda is not None and _has_driver()))


def _has_driver() -> bool:
    try:
        cuda_driver()
    except OSError:
        return False
    return True


def _gpus() -> Iterator[ReportLine]:
    found = _torch()
    if found is None:
        yield ReportLine("torch", MISSING, ABSENT, "pip install 'layoutgemm[torch]'")
        return
    built = f"CUDA {found.cuda}" if found.cuda else "built without CUDA"
    said = f"torch {found.version}, {built}"
    numbers = [int(part) for part in found.version.split("+")[0].split(".")[:2] if part.isdigit()]
    if tuple(numbers) < OLDEST_TORCH:
        yield ReportLine("torch", MISSING, said, f"pip install 'torch>={OLDEST_TORCH[0]}.{OLDEST_TORCH[1]}'")
    elif not found.cuda:
        yield ReportLine("torch", MISSING, said, "install a build with CUDA: https://pytorch.org/get-started/locally")
    else:
        yield ReportLine("torch", OK, said)
    yield from _cards(found)


def _cards(found: _Torch) -> Iterator[ReportLine]:
    """A line for each GPU that torch finds."""
    absent = ReportLine("GPU", MISSING, "torch finds none", "a Hopper GPU (H100, H200, GH200) and its driver")
    if not found.sees_gpus:
        yield absent
        return
    import torch

    if not torch.cuda.is_available():
        yield absent
        return
    able = []
    for index in range(torch.cuda.device_count()):
        card = torch.cuda.get_device_properties(index)
        capability = f"{card.major}.{card.minor}"
        memory = f"{card.total_memory / 2**30:.0f} GiB"
        processors = card.multi_processor_count
        text = f"cuda:{index} {card.name}, compute capability {capability}, {processors} SMs, {memory}"
        able.append(((card.major, card.minor), text))
    for version, text in able:
        if version == (9, 0):
            yield ReportLine("GPU", OK, text, "")
        elif version[0] == 8 or version == (12, 0):  # torch_launch.target
            yield ReportLine(
                "GPU", NOTE, text, "matmul by mma.sync alone; the fast kernels want compute capability 9.0"
            )
        else:
            state = NOTE if any(other == (9, 0) for other, _ in able) else MISSING
            yield ReportLine("GPU", state, text, "these kernels run on compute capability 9.0, 8.x and 12.0")


def _dsl() -> ReportLine:
    if importlib.util.find_spec("cutlass") is None:
        return ReportLine("DSL", MISSING, "nvidia-cutlass-dsl is not installed", "Linux: pip install 'layoutgemm[dsl]'")
    try:
        version = importlib.metadata.version("nvidia-cutlass-dsl")
    except importlib.metadata.PackageNotFoundError:
        return ReportLine("DSL", MISSING, "another package named cutlass is installed", "pip install 'layoutgemm[dsl]'")
    if version != TESTED_DSL:
        said = f"nvidia-cutlass-dsl {version}; {TESTED_DSL} is the tested one"
        return ReportLine("DSL", NOTE, said, "pip install 'layoutgemm[dsl]'")
    return ReportLine("DSL", OK, f"nvidia-cutlass-dsl {version}")


def _runtime() -> ReportLine:
    for path in runtime_candidates():
        if path.exists():
            return ReportLine("runtime", OK, str(path))
    return ReportLine("runtime", MISSING, "the DSL's runtime library is absent", "pip install 'layoutgemm[dsl]'")


def _linker() -> ReportLine:
    names = (os.environ.get("CC", ""), "cc", "gcc", "clang")
    found = next((path for name in names if name and (path := shutil.which(name))), None)
    if found is None:
        return ReportLine(
            "compiler", NOTE, "no C compiler: kernels load through the DSL (slower, more memory), no emulator",
            "install gcc or clang, or set CC",
        )  # fmt: skip
    return ReportLine("compiler", OK, found)


def _tools() -> ReportLine:
    missing = []
    for name in ("nvdisasm", "cuobjdump"):
        try:
            find_tool(name)
        except LayoutError:
            missing.append(name)
    if missing:
        return ReportLine(
            "SASS tools", NOTE, f"no {', '.join(missing)}: CompiledGemm.sass and .resources do not work",
            "pip install 'layoutgemm[dsl]'",
        )  # fmt: skip
    return ReportLine("SASS tools", OK, "nvdisasm, cuobjdump")


def _cache() -> Iterator[ReportLine]:
    folder = object_cache.cache_dir()
    variable = object_cache.CACHE_DIR_VARIABLE
    if folder is None:
        chosen = os.environ.get(variable)
        why = "there is no home folder" if chosen is None else f"{variable} is {chosen!r}"
        why = why if chosen is None or not chosen.strip() else f"{why}, a home folder that does not exist"
        yield ReportLine("cache", NOTE, f"off: {why}", f"name a folder in {variable}")
        return
    kernels, tuned = folder / "kernels", folder / "tuned"
    for part in (kernels, tuned):
        object_cache.mend(part)
        if why := object_cache.distrust(part):
            yield ReportLine("cache", NOTE, f"{folder} is not used: {why}", object_cache.way_out(why))
            return
    try:
        files = [path.stat().st_size for path in kernels.glob("*.zip")] if os.path.isdir(kernels) else []
        results = len(list(tuned.glob("*.json"))) if os.path.isdir(tuned) else 0
        said = f"{folder}: {len(files)} kernels, {sum(files) / 1e6:.1f} MB, {results} files of tuned results"
        exists = next(path for path in (kernels, *kernels.parents) if path.exists())
        with tempfile.TemporaryFile(dir=exists):
            pass
    except OSError as error:
        yield ReportLine("cache", NOTE, f"{folder} cannot be written: {error.strerror}", f"set {variable} to a folder")
        return
    yield ReportLine("cache", OK, said)
