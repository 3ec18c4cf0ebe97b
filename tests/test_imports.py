"""Import rules by folder, confined packages, and tests of the checker itself.

A folder imports its own row of `ROWS` and the rows above it. Exceptions (an arrow down, an inner import, a circle of
files) are counted here, and the counts may only fall.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

import layoutgemm

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "layoutgemm"

# Lowest first: a file imports its own row and those above it in this table.
ROWS: tuple[tuple[str, ...], ...] = (
    (
        "errors",
        "arguments",
        "graph_marks",
        "lazy_numpy",
        "cute_names",
        "lazy_names",
        "memo",
        "arch",
        "dtypes",
        "regex",
        "report",
        "moved",
    ),
    ("layouts",),
    ("atoms",),
    ("schedule",),
    ("checks",),
    ("view",),
    ("emulator",),
    ("kernels",),
    ("interop",),
    ("torch_op", "bench"),
    ("jax_op",),
    ("jax",),
    ("nn", "inductor", "distributed", "operators"),
    ("cli", "__main__", "pytest_plugin"),
)
ROW = {name: number for number, row in enumerate(ROWS) for name in row}
# Modules that a file names for a registry, which loads them when it is first asked: the arrows up, and why.
ARROWS_UP: dict[str, tuple[tuple[str, ...], str]] = {
    "layouts/registries.py": (
        (
            "atoms.cutlass_names",
            "layouts.coordinates",
            "layouts.layout",
            "layouts.notation",
            "layouts.formulas",
            "layouts.linear",
            "layouts.proofs.prove",
            "layouts.swizzle",
            "layouts.symbols.symbolic_layout",
            "layouts.symbols.sympy_formulas",
            "layouts.symbols.sympy_io",
        ),
        "a layout has what is written on top of it as methods, and SymPy and atoms are loaded where they are wanted",
    ),
    "layouts/display.py": (
        ("interop.cute_writer", "view.layouts", "view.objects", "view.pages.html", "view.raster"),
        "an object has its picture, its page and its object of the CuTe DSL as methods",
    ),
    "checks/pipeline/model.py": (
        ("checks.pipeline.prove", "checks.pipeline.table", "view.diagrams.pipeline"),
        "a pipeline has its proof, its table and its picture as methods",
    ),
    "emulator/machine/timeline.py": (("emulator.pictures",), "emulating loads no view"),
    "kernels/plan.py": (("kernels.page", "kernels.pictures"), "the page of a plan knows all plans"),
}

# Optional or slow to import: the folders below layoutgemm that may name them, "*" being one folder.
CONFINED: dict[str, tuple[str, ...]] = {
    "cutlass": (
        "kernels/dsl",
        "kernels/*/device",
        "kernels/compile",
        "interop",
        "emulator/host",
        "operators",
        "jax_op",
    ),
    "cuda": ("kernels/dsl", "kernels/compile", "kernels/run", "emulator/host"),
    "tvm_ffi": ("emulator/host",),
    "jax": ("jax_op", "emulator/host"),
    "torch": (
        "torch_op",
        "bench",
        "nn",
        "inductor",
        "distributed",
        "operators",
        "kernels/run",
        "kernels/ladder",
        "cli",
        "emulator/host",
    ),
    "sympy": ("layouts/symbols",),
    "pynvml": ("bench",),
    "pytest": ("",),
    "resvg_py": ("view",),
    "safetensors": ("nn",),
}
FREE = frozenset({"numpy"})
TYPES = frozenset({"typing_extensions"})  # every type checker has it
ARCHITECTURES = ("sm80", "sm90", "sm100", "teaching")
PROGRAM_FOLDERS = ("layouts", "atoms", "kernels")
MOST_FILES = 20  # of a folder
MOST_WORDS = 15  # of a first sentence


class Import(NamedTuple):
    """One imported name.

    path, line   where
    target       absolute dotted name; of `from a import b` it is a.b
    inner        whether it stands inside of a function
    typing       whether only type checkers see it
    """

    path: Path
    line: int
    target: str
    inner: bool
    typing: bool


class Walk(NamedTuple):
    """The findings of one walk over a file's nodes.

    imports    (line, target, inner, typing) of each imported name: see `Import`
    modules    own modules that it names for a registry: where it makes one, and where a class says who draws it
    classes    the names of those that it defines
    functions  (name, lines without the docstring)
    anys       uses of `Any`
    openings   (line, first sentence) of the docstrings of the module, its classes and public functions
    """

    imports: tuple[tuple[int, str, bool, bool], ...]
    modules: frozenset[str]
    classes: frozenset[str]
    functions: tuple[tuple[str, int], ...]
    anys: int
    openings: tuple[tuple[int, str], ...]


def walk(path: Path, root: Path = ROOT) -> Walk:
    return _walk(path.read_text(encoding="utf-8"), path.relative_to(root).parts[:-1])


@functools.cache
def _walk(text: str, package: tuple[str, ...]) -> Walk:
    """The findings in a text of a file in a package. Kept: several tests ask for all files."""
    imports: list[tuple[int, str, bool, bool]] = []
    modules: set[str] = set()
    classes: set[str] = set()
    functions: list[tuple[str, int]] = []
    openings: list[tuple[int, str]] = []
    anys = 0
    waiting: list[tuple[ast.AST, bool, bool]] = [(ast.parse(text), False, False)]
    while waiting:
        node, inner, typing = waiting.pop()
        inner = inner or isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        checked = isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)
        for child in ast.iter_child_nodes(node):
            waiting.append((child, inner, typing or (checked and child in node.body)))
        imports += [(getattr(node, "lineno", 0), name, inner, typing) for name in imported(node, package)]
        makes = isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Registry"
        if makes or (isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "").endswith("_by")):
            texts = [x.value for x in ast.walk(node) if isinstance(x, ast.Constant) and isinstance(x.value, str)]
            modules |= {text.removeprefix(f"{PACKAGE}.") for text in texts if text.startswith(f"{PACKAGE}.")}
        elif isinstance(node, ast.Name):
            anys += node.id == "Any"
        elif isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            name, told = getattr(node, "name", ""), ast.get_docstring(node)
            if isinstance(node, ast.ClassDef):
                classes.add(name)
            elif name:
                functions.append((name, lines_of(node) - (lines_of(node.body[0]) if told is not None else 0)))
            if told and (isinstance(node, ast.ClassDef) or not name.startswith("_") or name.endswith("__")):
                openings.append((node.body[0].lineno, first_sentence(told)))
    return Walk(tuple(imports), frozenset(modules), frozenset(classes), tuple(functions), anys, tuple(openings))


def imported(node: ast.AST, package: tuple[str, ...]) -> list[str]:
    """The absolute names that a node of a file in a package imports."""
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        base = package[: len(package) - node.level + 1] if node.level else ()
        stem = ".".join([*base, *([node.module] if node.module else [])])
        return [f"{stem}.{alias.name}" for alias in node.names]
    if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
        callee = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        if callee in ("import_module", "__import__") and isinstance(node.args[0].value, str):
            return [node.args[0].value]
    return []


def lines_of(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def first_sentence(docstring: str) -> str:
    """A docstring's first sentence, each piece of code as one word."""
    return re.split(r"(?<=[.!?])\s", re.sub(r"`+[^`]+`+", "X", docstring.partition("\n\n")[0]))[0]


def imports_of(path: Path, root: Path) -> list[Import]:
    """All imports of a file."""
    return [Import(path, *found) for found in walk(path, root).imports]


def direction(importer: str, target: str) -> str | None:
    """Why a piece of the package may not import another, or None."""
    if importer in ("__init__", target):
        return None
    if target == "__init__":
        return None if ROW.get(importer, -1) >= ROW["torch_op"] else "imports the package root, which imports it"
    for piece in (importer, target):
        if piece not in ROW:
            return f"{piece} has no row in the import order: give it one in tests/test_imports.py"
    return None if ROW[target] <= ROW[importer] else f"{importer} may not import {target}, which stands below it"


def confined_to(folder: str, places: tuple[str, ...]) -> bool:
    """True if a folder is one of these places or inside one."""
    patterns = [re.escape(place).replace(r"\*", "[^/]+") for place in places]
    return any(re.fullmatch(rf"{pattern}(/.*)?" if pattern else "", folder) for pattern in patterns)


def package_violations(root: Path) -> Iterator[str]:
    """Broken rules of the files under root/layoutgemm, one line each: path, line number, what is wrong."""
    package = root / PACKAGE
    pieces = {path.stem if path.suffix == ".py" else path.name for path in package.iterdir()}
    for path in sorted(package.rglob("*.py")):
        below = path.relative_to(package)
        folder = below.parent.as_posix() if below.parent.parts else ""
        importer = below.parts[0].removesuffix(".py")
        for found in imports_of(path, root):
            where = f"{path.relative_to(root).as_posix()}:{found.line}"
            head, _, rest = found.target.partition(".")
            if head == PACKAGE:
                piece = rest.partition(".")[0]
                # `from layoutgemm import Layout` names no piece: it asks the package root.
                why = direction(importer, piece if piece in pieces else "__init__")
                if why is not None:
                    yield f"{where}: {why}"
            elif head in CONFINED:
                if not confined_to(folder, CONFINED[head]):
                    yield f"{where}: {head} may be imported only in {', '.join(CONFINED[head])}"
            elif head not in sys.stdlib_module_names and head not in (FREE | TYPES if found.typing else FREE):
                yield f"{where}: {head} is not a dependency of the package"


def folder_violations(root: Path) -> Iterator[str]:
    """Overfull folders, file families that should be folders, and files named as their folder."""
    package = root / PACKAGE
    for folder in sorted({path.parent for path in package.rglob("*.py")}):
        where = folder.relative_to(root).as_posix()
        files = [path for path in folder.glob("*.py") if not path.name.startswith("_")]
        if len(files) > MOST_FILES:
            yield f"{where}: {len(files)} files, more than {MOST_FILES}: make folders of them"
        families = Counter(path.stem.split("_")[0] for path in files if "_" in path.stem)
        yield from [f"{where}: {n} files begin with {name}_: make a folder" for name, n in families.items() if n >= 3]
        yield from [f"{where}/{path.name}: repeats its folder's name" for path in files if path.stem == folder.name]


def tree_violations(root: Path) -> Iterator[str]:
    """Broken rules of all Python files: star imports, utils modules, what root folders may hold."""
    folders = (PACKAGE, "tests", "benchmarks", *PROGRAM_FOLDERS)
    for path in sorted(file for folder in folders for file in (root / folder).rglob("*.py")):
        where, text = path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")
        if path.stem in ("util", "utils"):
            yield f"{where}: a module is named after what it holds, not {path.stem}"
        for node in ast.walk(ast.parse(text)) if re.search(r"import\s*\(?\s*\*", text) else ():
            if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
                yield f"{where}:{node.lineno}: star import"
    for theme in PROGRAM_FOLDERS:
        for path in sorted((root / theme).rglob("__init__.py")):
            where = path.relative_to(root).as_posix()
            yield f"{where}: {theme}/ holds programs; as a package it would shadow others of that name"


def violations(root: Path) -> list[str]:
    """All broken rules of the tree at root."""
    return [*package_violations(root), *folder_violations(root), *tree_violations(root)]


def test_the_tree_holds_the_rules() -> None:
    found = violations(ROOT)
    assert not found, "\n" + "\n".join(found)


@functools.cache
def heads_of(root: Path) -> dict[str, set[str]]:
    """First parts of the names that each folder's files import."""
    package, heads = root / PACKAGE, {}
    for path in sorted(package.rglob("*.py")):
        folder = path.parent.relative_to(package).as_posix().removeprefix(".")
        heads.setdefault(folder, set()).update(found.target.partition(".")[0] for found in imports_of(path, root))
    return heads


def stale_rules(root: Path) -> Iterator[str]:
    """Names in the rules that do not exist in the tree, and unused permissions."""
    package = root / PACKAGE
    there = {path.stem if path.suffix == ".py" else path.name for path in package.iterdir()} - {"__pycache__"}
    yield from (f"ROWS names {name}, which does not exist" for name in sorted(set(ROW) - there))
    heads = heads_of(root)
    for head, places in CONFINED.items():
        for place in places:
            if not any(head in used for folder, used in heads.items() if confined_to(folder, (place,))):
                yield f"CONFINED lets {place or 'the root'} import {head}, which no file there does"
    used = set().union(*heads.values())
    yield from (f"FREE names {head}, which no file imports" for head in sorted(FREE - used))
    for rule, names, folder in (
        ("ARCHITECTURES", ARCHITECTURES, package / "kernels"), ("PROGRAM_FOLDERS", PROGRAM_FOLDERS, root),
    ):  # fmt: skip
        yield from (f"{rule} names {name}, which does not exist" for name in names if not (folder / name).is_dir())


def test_the_rules_name_existing_folders() -> None:
    """A rule about a folder that is gone would hold for nothing."""
    found = list(stale_rules(ROOT))
    assert not found, "\n" + "\n".join(found)


STALE = [
    ("ROW", {**ROW, "nowhere": 0}, "ROWS names nowhere"),
    ("CONFINED", {**CONFINED, "jax": ("nn",)}, "CONFINED lets nn import jax, which no file there does"),
    ("CONFINED", {**CONFINED, "sympy": ("layouts/symbols", "atoms")}, "CONFINED lets atoms import sympy"),
    ("FREE", FREE | {"nowhere"}, "FREE names nowhere"),
    ("ARCHITECTURES", (*ARCHITECTURES, "sm70"), "ARCHITECTURES names sm70"),
    ("PROGRAM_FOLDERS", (*PROGRAM_FOLDERS, "nowhere"), "PROGRAM_FOLDERS names nowhere"),
]


@pytest.mark.parametrize(("rule", "value", "message"), STALE)
def test_a_rule_without_a_folder_is_found(
    rule: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(globals(), rule, value)
    found = list(stale_rules(ROOT))
    assert len(found) == 1 and found[0].startswith(message), found


# What is left of the old structure, and may only become less ------------------------------------------------------


def all_imports() -> list[Import]:
    return [found for path in sorted((ROOT / PACKAGE).rglob("*.py")) for found in imports_of(path, ROOT)]


def test_no_more_imports_inside_of_functions() -> None:
    """Each hides an arrow from the order of loading."""
    found: Counter[str] = Counter()
    lines = {(i.path, i.line) for i in all_imports() if i.inner and not i.typing and i.target.startswith(f"{PACKAGE}.")}
    for path, _ in lines:
        found[path.relative_to(ROOT / PACKAGE).as_posix()] += 1
    assert found == {path: count for path, (count, _) in INNER.items()}


def graph_of(root: Path, folders: Iterable[str]) -> dict[str, set[str]]:
    """The files of these folders that each of them imports, in functions too."""
    package = root / PACKAGE
    paths = [path for folder in folders for path in sorted((package / folder).rglob("*.py"))]
    names = {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}
    graph: dict[str, set[str]] = {}
    for name, path in names.items():
        graph[name] = set()
        for found in imports_of(path, root):
            target = found.target if found.target in names else found.target.rpartition(".")[0]
            if not found.typing and target in names and target != name:
                graph[name].add(target)
    return graph


def test_no_circle_of_files() -> None:
    """A circle raises CycleError, which names its files."""
    assert len(list(TopologicalSorter(graph_of(ROOT, FOLDERS)).static_order())) > 100


def test_a_circle_of_files_is_seen(tmp_path: Path) -> None:
    plant(tmp_path, {**GOOD, "layoutgemm/errors.py": "", "layoutgemm/layouts/layout.py": "from .proof import a\n"})
    plant(tmp_path, {"layoutgemm/layouts/proof.py": "def f():\n    from .layout import Layout\n"})
    with pytest.raises(CycleError, match=r"layouts\.proof"):
        list(TopologicalSorter(graph_of(tmp_path, ["layouts"])).static_order())


def test_arrows_up_are_those_of_the_list() -> None:
    """Modules that a registry loads escape the other rules: each is listed with a reason."""
    package = ROOT / PACKAGE
    found = {path.relative_to(package).as_posix(): walk(path).modules for path in sorted(package.rglob("*.py"))}
    assert {path: names for path, names in found.items() if names} == {p: set(n) for p, (n, _) in ARROWS_UP.items()}


def long_functions(root: Path) -> dict[str, int]:
    """ "file:function" -> its lines without the docstring, where they are more than `MOST_LINES`."""
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        where = path.relative_to(root / PACKAGE).as_posix()
        found.update({f"{where}:{name}": lines for name, lines in walk(path, root).functions if lines > MOST_LINES})
    return found


def test_functions_are_short_but_for_those_of_the_list() -> None:
    """A longer one does more than one thing, or has its reason in the list."""
    found = long_functions(ROOT)
    assert found.keys() == LONG.keys(), found


def long_openings(root: Path) -> list[str]:
    """First sentences of docstrings with more than `MOST_WORDS` words; numbers and signs do not count."""
    files = [
        path for folder in (PACKAGE, "benchmarks", *PROGRAM_FOLDERS) for path in sorted((root / folder).rglob("*.py"))
    ]
    told = [(path.relative_to(root).as_posix(), *opening) for path in files for opening in walk(path, root).openings]
    return [f"{at}:{line}: {text}" for at, line, text in told if len(re.findall(r"[A-Za-z][\w'-]*", text)) > MOST_WORDS]


def test_first_sentences_are_short() -> None:
    """Modules, classes and public functions: what does not fit goes into the next sentence."""
    found = long_openings(ROOT)
    assert not found, "\n" + "\n".join(found)


def test_a_long_first_sentence_is_found(tmp_path: Path) -> None:
    words = " ".join(["word"] * MOST_WORDS)
    code = f'"""{words}.\n\n{words} {words}."""\n\n\ndef _inner():\n    """{words} more."""\n\n\n'
    code += f'def told():\n    """`a b` {words}. Short."""\n\n\nclass _Told:\n    """{words}\n    more."""\n'
    plant(tmp_path, {"layoutgemm/a.py": code})
    assert [x.partition(": ")[0] for x in long_openings(tmp_path)] == ["layoutgemm/a.py:15", "layoutgemm/a.py:11"]


def files_of_classes(root: Path) -> dict[str, list[str]]:
    """The name of each class -> the files that define it."""
    found: dict[str, list[str]] = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        for name in walk(path, root).classes:
            found.setdefault(name, []).append(path.relative_to(root / PACKAGE).as_posix())
    return found


def test_a_class_name_has_one_meaning() -> None:
    """A search for a class finds one file."""
    assert {name: files for name, files in files_of_classes(ROOT).items() if len(files) > 1} == {}


def test_a_class_name_of_two_files_is_found(tmp_path: Path) -> None:
    plant(tmp_path, {"layoutgemm/a.py": "class Rows: ...\n", "layoutgemm/atoms/b.py": "class Rows: ...\n"})
    assert files_of_classes(tmp_path) == {"Rows": ["a.py", "atoms/b.py"]}


def test_few_types_are_unsaid() -> None:
    """`Any` checks nothing: it stands for what traced functions and other libraries' objects are."""
    assert sum(walk(path).anys for path in (ROOT / PACKAGE).rglob("*.py")) <= ANY


def test_imports_between_architectures_do_not_grow() -> None:
    kernels = ROOT / PACKAGE / "kernels"
    found = Counter()
    for i in all_imports():
        own = i.path.relative_to(kernels).parts[0] if i.path.is_relative_to(kernels) else ""
        other = i.target.removeprefix(f"{PACKAGE}.kernels.").partition(".")[0]
        if own in ARCHITECTURES and other in ARCHITECTURES and own != other:
            found[own, other] += 1
    assert dict(found) == BETWEEN_ARCHITECTURES


def test_no_more_private_names_cross_files() -> None:
    private = [i for i in all_imports() if i.target.startswith(f"{PACKAGE}.") and _is_private(i.target)]
    assert len(private) <= PRIVATE


def _is_private(target: str) -> bool:
    name = target.rpartition(".")[2]
    return name.startswith("_") and not name.startswith("__")


FOLDERS = sorted(path.name for path in (ROOT / PACKAGE).iterdir() if path.is_dir() and path.name[0] != "_")
# Imports inside of functions that stay: file -> how many, and why.
INNER: dict[str, tuple[int, str]] = {
    "bench/matmul.py": (3, "torch_op needs torch, whose absence is told first"),
    "cli/bench.py": (2, "bench needs torch, which no other command does"),
    "cli/tune.py": (1, "tuning needs torch, which no other command does"),
    "interop/cute_writer.py": (1, "to_dsl imports the CuTe DSL, which need not be installed"),
    "pytest_plugin.py": (1, "every run of pytest loads the plugin, and few emulate"),
}
ANY = 1120  # uses of typing.Any
# Functions longer than `MOST_LINES`, without their docstrings, and why each is one.
MOST_LINES = 60
_ROLES = "the roles of a kernel and their barriers stand in the order in which they happen"
LONG: dict[str, str] = {
    "emulator/races/happens_before.py:access": "the emulator's innermost loop: a call in it is felt in every run",
    "kernels/sm80/device/gemm_tma.py:tensor_kernel": _ROLES,
    "kernels/sm90/device/gemm.py:consume": "the registers of a consumer live through its whole loop",
    "kernels/sm90/device/promoted.py:consume": "the registers of a consumer live through its whole loop",
    "kernels/sm90/device/gemm.py:kernel": _ROLES,
    "kernels/sm100/device/gemm.py:run": _ROLES,
    "kernels/teaching/device/kernel.py:kernel": _ROLES,
    "torch_op/api.py:matmul": "the fast path of a call: each function call in it delays every launch",
}
PRIVATE = 3
BETWEEN_ARCHITECTURES: dict[tuple[str, str], int] = {}


# The checker, checked -------------------------------------------------------------------------------------------------

GOOD = {
    "layoutgemm/__init__.py": "from layoutgemm.layouts import Layout\nfrom .errors import LayoutError\n",
    "layoutgemm/errors.py": "",
    "layoutgemm/layouts/__init__.py": "from .layout import Layout\n",
    "layoutgemm/layouts/layout.py": "import numpy as np\nfrom ..errors import LayoutError\nclass Layout:\n    pass\n",
    "layoutgemm/layouts/symbols/io.py": "import sympy\n",
    "layoutgemm/atoms/__init__.py": "",
    "layoutgemm/view/__init__.py": "from layoutgemm.layouts import Layout\n",
    "layoutgemm/interop/__init__.py": "def to_cute(x):\n    from ..kernels.dsl import bridge\n",
    "layoutgemm/kernels/__init__.py": "import layoutgemm.atoms\n",
    "layoutgemm/kernels/dsl/bridge.py": "import cutlass\n",
    "layoutgemm/kernels/page.py": "from ..view import pages\n",
    "layoutgemm/kernels/sm90/device/gemm.py": "import cutlass.cute as cute\nfrom layoutgemm import layouts\n",
    "layoutgemm/torch_op/api.py": "import torch\nfrom layoutgemm import Layout\n",
    "layoutgemm/cli/main.py": "import layoutgemm.view\nfrom layoutgemm.kernels import sm90\n",
    "kernels/first_gemm.py": "import torch\nimport layoutgemm\n",
}

# (file that breaks a rule, its text, part of the message)
PLANTED = [
    ("layoutgemm/layouts/bad.py", "from layoutgemm.atoms import mma\n", "layouts may not import atoms"),
    ("layoutgemm/layouts/bad.py", "from .. import kernels\n", "layouts may not import kernels"),
    ("layoutgemm/layouts/symbols/bad.py", "from ...kernels.sm90 import x\n", "layouts may not import kernels"),
    ("layoutgemm/layouts/bad.py", "def f():\n    import layoutgemm.cli\n", "layouts may not import cli"),
    ("layoutgemm/layouts/bad.py", "from layoutgemm import Layout\n", "imports the package root"),
    ("layoutgemm/layouts/bad.py", "import layoutgemm\n", "imports the package root"),
    ("layoutgemm/layouts/bad.py", "from layoutgemm.view import svg\n", "layouts may not import view"),
    ("layoutgemm/layouts/bad.py", "def f():\n    from layoutgemm.view import svg\n", "layouts may not import view"),
    ("layoutgemm/atoms/bad.py", "def f():\n    from ..interop import to_cute\n", "atoms may not import interop"),
    ("layoutgemm/errors.py", "from .layouts import Layout\n", "errors may not import layouts"),
    ("layoutgemm/kernels/bad.py", "from layoutgemm import cli\n", "kernels may not import cli"),
    ("layoutgemm/view/bad.py", "from layoutgemm.kernels import plan\n", "view may not import kernels"),
    ("layoutgemm/novel.py", "from layoutgemm.layouts import Layout\n", "novel has no row"),
    ("layoutgemm/layouts/bad.py", "from ..interop import to_cute\n", "layouts may not import interop"),
    ("layoutgemm/atoms/bad.py", "import layoutgemm.interop\n", "atoms may not import interop"),
    ("layoutgemm/interop/bad.py", "import torch\n", "torch may be imported only in"),
    ("layoutgemm/layouts/bad.py", "import sympy\n", "sympy may be imported only in"),
    ("layoutgemm/layouts/bad.py", "def f():\n    from sympy.core import Symbol\n", "sympy may be imported only in"),
    ("layoutgemm/layouts/bad.py", "import importlib\nimportlib.import_module('sympy')\n", "sympy may be imported only"),
    ("layoutgemm/kernels/plan.py", "import cutlass\n", "cutlass may be imported only in"),
    ("layoutgemm/kernels/sm90/plan.py", "import cutlass\n", "cutlass may be imported only in"),
    ("layoutgemm/atoms/sm90.py", "import cutlass.cute\n", "cutlass may be imported only in"),
    ("layoutgemm/kernels/plan.py", "import torch\n", "torch may be imported only in"),
    ("layoutgemm/view/bad.py", "import matplotlib.pyplot\n", "matplotlib is not a dependency"),
    ("layoutgemm/layouts/bad.py", "from os import *\n", "star import"),
    ("tests/test_bad.py", "from os import *\n", "star import"),
    ("layoutgemm/layouts/utils.py", "", "named after what it holds"),
    ("layoutgemm/layouts/layouts.py", "", "repeats its folder's name"),
    ("kernels/__init__.py", "", "holds programs"),
]


def test_a_long_function_is_found(tmp_path: Path) -> None:
    body, told = "    x = 1\n" * MOST_LINES, '    """Told.\n\n    At length.\n    """\n'
    short = f"def short():\n{told}" + body.removeprefix("    x = 1\n")
    plant(tmp_path, {"layoutgemm/a.py": f"class A:\n    def long():\n{body.replace('    ', '        ')}\n{short}"})
    assert long_functions(tmp_path) == {"a.py:long": MOST_LINES + 1}


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


@pytest.mark.parametrize(
    ("names", "message"),
    [([f"file{i}" for i in range(21)], "21 files"), (["plan_a", "plan_b", "plan_c"], "3 files begin with plan_")],
)
def test_full_folders_and_families_are_found(tmp_path: Path, names: list[str], message: str) -> None:
    plant(tmp_path, {**GOOD, **{f"layoutgemm/atoms/{name}.py": "" for name in names}})
    (found,) = violations(tmp_path)
    assert message in found


def fresh(code: str) -> str:
    """The output of a new interpreter."""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_import_is_light() -> None:
    heavy = ("cutlass", "torch", "sympy", "matplotlib", "jax", "cuda", "numpy")
    loaded = f"import sys; print([m for m in {heavy!r} if m in sys.modules])"
    assert fresh(f"import layoutgemm, {loaded.removeprefix('import ')}") == "[]"
    assert fresh(f"import sympy, layoutgemm, {loaded.removeprefix('import ')}") == "['sympy']"  # the probe sees


# Packages whose names load their files when they are asked for.
LATER = ("atoms", "checks", "schedule", "view", "torch_op")


@pytest.mark.parametrize("name", LATER)
def test_a_late_name_is_found_and_is_no_file(name: str) -> None:
    """A file of that name would take its place once it is loaded."""
    package = importlib.import_module(f"{PACKAGE}.{name}")
    names = set(package.__all__)
    assert names <= set(dir(package)) and len(names) == len(package.__all__)
    typed = {found.target for found in imports_of(ROOT / PACKAGE / name / "__init__.py", ROOT) if found.typing}
    assert {target.rpartition(".")[2] for target in typed} == names
    files = {path.stem for path in (ROOT / PACKAGE / name).iterdir()}
    assert not names & files and all(getattr(package, each) is not None for each in names)
    with pytest.raises(AttributeError, match=f"module '{PACKAGE}.{name}' has no attribute 'nonsense'"):
        _ = package.nonsense


def test_the_top_level_has_at_most_40_names_and_lists_them() -> None:
    package = importlib.import_module(PACKAGE)
    listed = set(re.findall(r"\w+", str(package.__doc__).partition("Every refusal")[0]))
    names = {*package.__all__, *package._LATER} - {"LayoutError", "__version__"}
    assert len(names) <= 39 and names <= listed, names - listed


@pytest.mark.parametrize("name, home", [("complement", "layouts"), ("ldmatrix", "atoms"), ("Linear", "schedule")])
def test_a_name_of_another_room_is_pointed_at(name: str, home: str) -> None:
    said = f"module 'layoutgemm' has no attribute '{name}': it is layoutgemm.{home}.{name}"
    with pytest.raises(AttributeError, match=said):
        getattr(layoutgemm, name)
    with pytest.raises(ImportError, match=said):
        exec(f"from layoutgemm import {name}")
    assert not hasattr(layoutgemm, name)


def test_a_name_of_cute_that_is_no_function_is_told() -> None:
    for module in "layoutgemm", "layoutgemm.layouts", "layoutgemm.atoms":
        with pytest.raises(ImportError, match=r"'elem_less': write all\(x < n"):
            exec(f"from {module} import elem_less")
    with pytest.raises(AttributeError, match=r"it is layoutgemm\.layouts\.Layout"):
        _ = importlib.import_module("layoutgemm.atoms").Layout


def test_a_name_of_no_room_and_a_module_are_as_ever() -> None:
    with pytest.raises(AttributeError, match=r"has no attribute 'nonsense'$"):
        _ = layoutgemm.nonsense
    assert fresh("from layoutgemm import view; print(view.__name__)") == "layoutgemm.view"


def test_a_package_loads_one_file_for_a_name() -> None:
    code = (
        "import sys; from layoutgemm.{0} import {1}; print(sum(n.startswith('layoutgemm.{0}.') for n in sys.modules))"
    )
    assert fresh(code.format("schedule", "Linear")) == "1"
    assert int(fresh(code.format("atoms", "smem_tile"))) <= 3


def test_from_cute_imports_nothing_of_others() -> None:
    """It reads what it is given: neither the DSL nor torch, nor pycute's kin, is needed for another's objects."""
    code = "import sys, numpy, layoutgemm; layoutgemm.from_cute(numpy.zeros((4, 8))); "
    heavy = ("cutlass", "torch", "sympy", "tensor_layouts", "pycute", "cuda")
    assert fresh(f"{code}print([m for m in {heavy!r} if m in sys.modules])") == "[]"


def test_import_loads_the_algebra_alone() -> None:
    """Atoms, checks, kernels, views and NumPy come when they are named; bench_algebra times the import."""
    loaded = "{m.split('.')[1] for m in sys.modules if m.startswith('layoutgemm.')}"
    code = f"import sys, layoutgemm; print(sorted({loaded}))"
    known = "arguments cute_names dtypes errors graph_marks layouts lazy_names lazy_numpy moved regex"
    assert fresh(code) == str(known.split())
