"""Docstrings and comments name files and modules that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "layoutgemm"
FILES = {path: path.read_text(encoding="utf-8") for path in sorted(ROOT.rglob("*.py"))}
LARGE = 12  # files, with __init__
FOLDERS = sorted({path.parent for path in FILES})
TOP = {path.stem for path in ROOT.iterdir() if path.is_dir()}
ELSEWHERE = {"1cta_mma_a_from_tmem.py", "mla_decode_fp8.py", "hca_fp8.py"}  # of CUTLASS and FlashInfer
MODULE = re.compile(r"`([a-z_0-9]+(?:\.[A-Za-z_0-9]+)+)`")
FORMER = re.compile(r"(?<!/)\b(sm(?:80|90|100)_[a-z]\w*)\b(?!\.cuh)")  # files are in folders of these names
FILE = re.compile(r"`((?:[a-z_0-9]+/)*[a-z_0-9]+\.py)`")


@cache
def names_of(path: Path) -> set[str]:
    """Names that a module binds, at any depth: functions, classes, variables, fields and imports."""
    found = set()
    for node in ast.walk(ast.parse(FILES[path])):
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            found.add(node.name)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.asname or node.name)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and path.name == "__init__.py":
            found.update(re.findall(r"\w+", node.value))  # names that a package loads later
    return found


def resolves(reference: str, folder: Path) -> bool:
    """A dotted name leads to a module, or to a name in one.

    It begins below `folder`, or below a folder around it.
    """
    first, *rest = reference.split(".")
    while folder != ROOT.parent:
        at, left = folder / first, list(rest)
        while left and (at / left[0]).is_dir():
            at /= left.pop(0)
        if left and (at / left[0]).with_suffix(".py") in FILES:
            at /= left.pop(0)
        module = at / "__init__.py" if at.is_dir() else at.with_suffix(".py")
        if module in FILES and (not left or left[0] in names_of(module)):
            return True
        folder = folder.parent
    return False


def broken(path: Path, text: str) -> list[str]:
    """References of a module's text that lead nowhere."""
    dotted = [x for x in MODULE.findall(text) if x.split(".")[0] in TOP and not x.endswith(".py")]
    wrong = [x for x in dotted if not resolves(x, path.parent)]
    wrong += FORMER.findall(text)
    files = set(FILE.findall(text)) - ELSEWHERE
    return wrong + [x for x in files if not ((ROOT.parent / x).is_file() or any((at / x) in FILES for at in FOLDERS))]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_references_lead_somewhere(folder: Path) -> None:
    found = {path.name: broken(path, text) for path, text in FILES.items() if path.parent == folder}
    assert not any(found.values()), {name: wrong for name, wrong in found.items() if wrong}


def unnamed(folder: Path) -> list[str]:
    """Modules of a package that its docstring does not name."""
    told = ast.get_docstring(ast.parse(FILES[folder / "__init__.py"])) or ""
    return [file.stem for file in FILES if file.parent == folder and not re.search(rf"\b{file.stem}\b", told)]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.relative_to(ROOT).as_posix())
def test_a_large_package_names_its_modules(folder: Path) -> None:
    """The docstring is enough to find a file among many."""
    missing = [name for name in unnamed(folder) if name != "__init__"] if folder != ROOT else []
    assert not missing or sum(file.parent == folder for file in FILES) <= LARGE


def test_a_reference_to_a_module_that_moved_is_found() -> None:
    home = ROOT / "kernels" / "plan.py"
    assert broken(home, "`kernels.sm90.plan.Sm90Plan`, `atoms.tma.engine`, `tma/engine.py`") == []
    assert broken(home, "`kernels.sm90_plan`, `atoms.tma.engine.fly`, `ops/tma.py`") == [
        "kernels.sm90_plan", "atoms.tma.engine.fly", "sm90_plan", "ops/tma.py",
    ]  # fmt: skip
    assert broken(home, "of the tile; see sm90_store, and as in sm80_gemm; see tile_count") == [
        "sm90_store",
        "sm80_gemm",
    ]
