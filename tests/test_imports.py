"""Imports point one way, heavy packages stay where they belong, files stay short; and the checker itself is checked."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# Lowest first. A piece imports its own layer and the layers under it.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("errors", "arch", "dtypes"),
    ("layouts",),
    ("atoms",),
    ("checks",),
    ("emulator",),
    ("kernels",),
    ("interop",),
    ("bench", "bench_contenders", "bench_cublaslt", "bench_machine", "bench_outcome"),
    ("tuned", "torch_problem", "torch_choice"),
    (
        "torch_op", "torch_checks", "torch_epilogue", "torch_explain", "torch_finish", "torch_gated", "torch_launch",
        "torch_library", "torch_reference", "torch_variants", "jax_op", "distributed",
    ),
    ("tune", "bench_matmul", "doctor"),
    ("command",),
    ("cli", "__main__", "pytest_plugin"),
)
RANK = {piece: rank for rank, layer in enumerate(LAYERS) for piece in layer}
# view stands beside the chain: it draws these, and others import it inside the method that draws (cli: anywhere).
# A drawer does nothing but draw: it may import view, and others import it inside the method that draws.
DRAWERS = {"kernels/linked.py": "layoutgemm.kernels.linked"}
VIEW_IMPORTS = frozenset({"view", "errors", "arch", "dtypes", "layouts", "atoms", "checks"})
# interop gives layouts, atoms and tiled ones their `to_cute`: they import it inside that method. The one bridge file
# that makes objects of the DSL reads from it how theirs are read, and interop imports that file when it is called.
INTEROP_CALLERS = frozenset({"layouts", "atoms", "kernels"})

# Optional or slow to import: the only files (relative to layoutgemm/) that may name them, even inside a function.
CONFINED: dict[str, tuple[str, ...]] = {
    "sympy": ("layouts/symbolic*.py", "layouts/proof*.py"),
    "cutlass": ("kernels/bridge*.py", "kernels/compile*.py", "kernels/sm*.py", "emulator/dsl_host.py"),
    "cuda": ("kernels/sm*.py", "kernels/bridge*.py", "kernels/compile*.py", "kernels/run*.py", "kernels/device*.py"),
    "tvm_ffi": ("kernels/compile*.py", "kernels/run*.py", "emulator/dsl_host.py"),
    "torch": (
        "torch_op.py", "torch_checks.py", "torch_epilogue.py", "torch_explain.py", "torch_finish.py", "torch_gated.py",
        "torch_launch.py", "torch_library.py",
        "torch_reference.py", "torch_variants.py", "tune.py", "doctor.py", "distributed.py", "bench*.py",
        "kernels/run*.py", "kernels/device*.py",
    ),
    "jax": ("jax_op.py",),
    "pynvml": ("bench_machine.py",),
    "pytest": ("pytest_plugin.py",),
    "resvg_py": ("view/raster.py",),
}
FREE = frozenset({"numpy"})
MAX_LINES = 1000
PROGRAM_FOLDERS = ("layouts", "atoms", "kernels")


def imported(tree: ast.Module, module: str, is_package: bool) -> Iterator[tuple[int, str, bool]]:
    """(line, absolute dotted name, at module level) of all that a module imports; `from a import b` gives a.b."""
    package = module.split(".") if is_package else module.split(".")[:-1]
    waiting: list[tuple[ast.AST, bool]] = [(tree, True)]
    while waiting:
        node, at_top = waiting.pop()
        below = at_top and not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        waiting += [(child, below) for child in ast.iter_child_nodes(node)]
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names = [f"{stem}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
            callee = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if callee in ("import_module", "__import__") and isinstance(node.args[0].value, str):
                names = [node.args[0].value]
        for name in names:
            yield getattr(node, "lineno", 0), name, at_top


def direction(importer: str, target: str, at_top: bool) -> str | None:
    """Why piece `importer` may not import piece `target`, or None."""
    if importer == "__init__" or importer == target:
        return None
    if target == "__init__":
        return None if RANK.get(importer, -1) >= RANK["bench"] else "imports the package root, which imports it"
    if importer == "view":
        return None if target in VIEW_IMPORTS else f"view may not import {target}"
    if target == "interop" and importer in INTEROP_CALLERS:
        ok = not at_top or importer == "kernels"
        return None if ok else "imports interop at module level: import it inside the method that converts"
    if target == "view":
        ok = not at_top or RANK.get(importer, -1) >= RANK["bench"]
        return None if ok else "imports view at module level: import it inside the method that draws"
    for piece in (importer, target):
        if piece not in RANK:
            return f"{piece} has no place in the import order: give it one in tests/test_imports.py"
    return None if RANK[target] <= RANK[importer] else f"{importer} may not import {target}, which stands above it"


def package_violations(root: Path) -> Iterator[str]:
    """Broken rules of the files under root/layoutgemm, one line each: path, line number, what is wrong."""
    package = root / "layoutgemm"
    pieces = {path.stem if path.suffix == ".py" else path.name for path in package.iterdir()}
    for path in sorted(package.rglob("*.py")):
        inner = path.relative_to(package)
        where = path.relative_to(root).as_posix()
        importer = inner.parts[0].removesuffix(".py")
        is_package = path.name == "__init__.py"
        module = ".".join(["layoutgemm", *inner.with_suffix("").parts[: -1 if is_package else None]])
        for line, name, at_top in imported(ast.parse(path.read_text(encoding="utf-8")), module, is_package):
            head, _, rest = name.partition(".")
            if head == "layoutgemm":
                target = rest.partition(".")[0]
                # `from layoutgemm import Layout` names no piece: it asks the package root.
                drawer = inner.as_posix() in DRAWERS and target == "view"
                why = direction(importer, target if target in pieces else "__init__", at_top and not drawer)
                if why is None and at_top and any(f"{name}.".startswith(f"{drawn}.") for drawn in DRAWERS.values()):
                    why = f"imports {name} at module level: import it inside the method that draws"
                if why is not None:
                    yield f"{where}:{line}: {why}"
            elif head in CONFINED:
                if not any(fnmatch(inner.as_posix(), pattern) for pattern in CONFINED[head]):
                    yield f"{where}:{line}: {head} may be imported only in {', '.join(CONFINED[head])}"
            elif head not in sys.stdlib_module_names and head not in FREE:
                yield f"{where}:{line}: {head} is not a dependency of the package"


def tree_violations(root: Path) -> Iterator[str]:
    """Broken rules of all Python files: star imports, utils modules, length, what root folders may hold."""
    folders = ("layoutgemm", "tests", "benchmarks", *PROGRAM_FOLDERS)
    for path in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        where, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        if path.stem in ("util", "utils"):
            yield f"{where}: a module is named after what it holds, not {path.stem}"
        if (lines := text.count("\n")) > MAX_LINES:
            yield f"{where}: {lines} lines, more than {MAX_LINES}: split it"
        for node in ast.walk(ast.parse(text)) if re.search(r"import\s*\(?\s*\*", text) else ():
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                yield f"{where}:{node.lineno}: star import"
    for theme in PROGRAM_FOLDERS:
        stems = {path.stem for path in (root / "layoutgemm" / theme).rglob("*.py")} - {"__init__"}
        for path in sorted((root / theme).rglob("*.py")):
            where = path.relative_to(root).as_posix()
            if path.name == "__init__.py":
                yield f"{where}: {theme}/ holds programs; as a package it would shadow others of that name"
            elif path.stem in stems:
                yield f"{where}: layoutgemm/{theme} has a file of this name too"


def violations(root: Path) -> list[str]:
    """All broken rules of the tree at root."""
    return [*package_violations(root), *tree_violations(root)]


def test_the_tree_holds_the_rules() -> None:
    found = violations(ROOT)
    assert not found, "\n" + "\n".join(found)


GOOD = {
    "layoutgemm/__init__.py": "from layoutgemm.layouts import Layout\nfrom .errors import LayoutError\n",
    "layoutgemm/errors.py": "",
    "layoutgemm/layouts/__init__.py": "from .layout import Layout\n",
    "layoutgemm/layouts/layout.py": "import numpy as np\nfrom ..errors import LayoutError\n"
    "class Layout:\n    def _repr_svg_(self):\n        from layoutgemm.view import layout_svg\n",
    "layoutgemm/layouts/symbolic.py": "import sympy\n",
    "layoutgemm/atoms/__init__.py": "",
    "layoutgemm/view/__init__.py": "from layoutgemm.layouts import Layout\n",
    "layoutgemm/layouts/convert.py": "def to_cute(x):\n    from ..interop import to_cute\n",
    "layoutgemm/interop/__init__.py": "def to_cute(x):\n    from ..kernels import bridge_convert\n",
    "layoutgemm/kernels/__init__.py": "import layoutgemm.atoms\n",
    "layoutgemm/kernels/bridge_convert.py": "import cutlass\nfrom layoutgemm.interop import to_cute\n",
    "layoutgemm/kernels/linked.py": "from ..view import page\n",
    "layoutgemm/kernels/sm90_gemm.py": "import cutlass.cute as cute\nfrom layoutgemm import layouts\n",
    "layoutgemm/torch_op.py": "import torch\nfrom layoutgemm import Layout\n",
    "layoutgemm/cli.py": "import layoutgemm.view\nfrom layoutgemm.kernels import sm90_gemm\n",
    "kernels/first_gemm.py": "import torch\nimport layoutgemm\n",
}

# (file that breaks a rule, its text, part of the message)
PLANTED = [
    ("layoutgemm/layouts/bad.py", "from layoutgemm.atoms import mma\n", "layouts may not import atoms"),
    ("layoutgemm/layouts/bad.py", "from .. import kernels\n", "layouts may not import kernels"),
    ("layoutgemm/layouts/bad.py", "from ..kernels.sm90_gemm import x\n", "layouts may not import kernels"),
    ("layoutgemm/layouts/bad.py", "def f():\n    import layoutgemm.cli\n", "layouts may not import cli"),
    ("layoutgemm/layouts/bad.py", "from layoutgemm import Layout\n", "imports the package root"),
    ("layoutgemm/layouts/bad.py", "import layoutgemm\n", "imports the package root"),
    ("layoutgemm/layouts/bad.py", "from layoutgemm.view import svg\n", "imports view at module level"),
    ("layoutgemm/errors.py", "from .layouts import Layout\n", "errors may not import layouts"),
    ("layoutgemm/kernels/bad.py", "from .linked import plan_html\n", "imports layoutgemm.kernels.linked.plan_html at"),
    ("layoutgemm/kernels/bad.py", "from layoutgemm import cli\n", "kernels may not import cli"),
    ("layoutgemm/view/bad.py", "from layoutgemm.kernels import plan\n", "view may not import kernels"),
    ("layoutgemm/novel.py", "from layoutgemm.layouts import Layout\n", "novel has no place"),
    ("layoutgemm/layouts/bad.py", "from ..interop import to_cute\n", "imports interop at module level"),
    ("layoutgemm/atoms/bad.py", "import layoutgemm.interop\n", "imports interop at module level"),
    ("layoutgemm/checks/bad.py", "def f():\n    import layoutgemm.interop\n", "checks may not import interop"),
    ("layoutgemm/interop/bad.py", "def f():\n    import cutlass\n", "cutlass may be imported only in"),
    ("layoutgemm/interop/bad.py", "import torch\n", "torch may be imported only in"),
    ("layoutgemm/layouts/bad.py", "import sympy\n", "sympy may be imported only in"),
    ("layoutgemm/layouts/bad.py", "def f():\n    from sympy.core import Symbol\n", "sympy may be imported only in"),
    ("layoutgemm/layouts/bad.py", "import importlib\nimportlib.import_module('sympy')\n", "sympy may be imported only"),
    ("layoutgemm/kernels/plan.py", "import cutlass\n", "cutlass may be imported only in"),
    ("layoutgemm/atoms/sm90.py", "import cutlass.cute\n", "cutlass may be imported only in"),
    ("layoutgemm/kernels/plan.py", "import torch\n", "torch may be imported only in"),
    ("layoutgemm/cli.py", "__import__('torch')\n", "torch may be imported only in"),
    ("layoutgemm/view/bad.py", "import matplotlib.pyplot\n", "matplotlib is not a dependency"),
    ("layoutgemm/layouts/bad.py", "from os import *\n", "star import"),
    ("tests/test_bad.py", "from os import *\n", "star import"),
    ("layoutgemm/layouts/utils.py", "", "named after what it holds"),
    ("layoutgemm/layouts/bad.py", "x = 0\n" * 1001, "1001 lines, more than 1000"),
    ("kernels/bad.py", "x = 0\n" * 1001, "1001 lines, more than 1000"),
    ("kernels/__init__.py", "", "holds programs"),
    ("kernels/sm90_gemm.py", "", "has a file of this name too"),
]


def plant(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def test_a_good_tree_passes(tmp_path: Path) -> None:
    plant(tmp_path, GOOD)
    assert violations(tmp_path) == []


@pytest.mark.parametrize(("name", "text", "message"), PLANTED)
def test_each_rule_catches_its_violation(tmp_path: Path, name: str, text: str, message: str) -> None:
    plant(tmp_path, {**GOOD, name: text})
    found = violations(tmp_path)
    assert len(found) == 1, found
    assert message in found[0]
    assert found[0].startswith(name)


def fresh(code: str) -> str:
    """What a new interpreter prints."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light() -> None:
    heavy = ("cutlass", "torch", "sympy", "matplotlib", "jax", "cuda")
    loaded = f"import sys; print([m for m in {heavy!r} if m in sys.modules])"
    assert fresh(f"import layoutgemm, {loaded.removeprefix('import ')}") == "[]"
    assert fresh(f"import sympy, layoutgemm, {loaded.removeprefix('import ')}") == "['sympy']"  # the probe sees


def test_from_cute_imports_nothing_of_others() -> None:
    """It reads what it is given: neither the DSL nor torch, nor pycute's kin, is needed for another's objects."""
    code = "import sys, numpy, layoutgemm; layoutgemm.from_cute(numpy.zeros((4, 8))); "
    heavy = ("cutlass", "torch", "sympy", "tensor_layouts", "pycute", "cuda")
    assert fresh(f"{code}print([m for m in {heavy!r} if m in sys.modules])") == "[]"


def test_import_loads_the_algebra_alone() -> None:
    """Atoms, checks, kernels and views come when they are named; how long the import takes, bench_algebra tells."""
    loaded = "{m.split('.')[1] for m in sys.modules if m.startswith('layoutgemm.')}"
    code = f"import sys, layoutgemm; print(sorted({loaded}))"
    assert fresh(code) == "['dtypes', 'errors', 'layouts']"
