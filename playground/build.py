"""Builds the playground: a folder that any static host can serve.

    python playground/build.py [FOLDER] [--distribution URL]        default: build/playground

Python for the browser is Pyodide, taken from npm in one fixed version. Algebra, proofs and pictures of layouts need
nothing else. A cell with arrays or formulas loads NumPy or SymPy, once: SymPy is taken from PyPI, NumPy from Pyodide's
distribution (a URL, or a folder with its wheels). Where one cannot be had, the page is built without, and says so in
the cell.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import shutil
import subprocess
import sys
import tarfile
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "playground"
sys.path.insert(0, str(ROOT))

from docs import percent  # noqa: E402

PYODIDE = "314.0.7"
DISTRIBUTION = f"https://cdn.jsdelivr.net/pyodide/v{PYODIDE}/full/"
PACKAGES = {"numpy": ("numpy",), "sympy": ("mpmath", "sympy")}  # what a cell can ask for -> its wheels
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
# Of the package: what the algebra, its proofs, its pictures and plans load.
PARTS = ("__init__.py", "errors.py", "arguments.py", "lazy_numpy.py", "lazy_names.py",
         "cute_names.py", "memo.py",
         "arch.py", "arches.json", "dtypes.py", "regex.py", "report.py", "moved.py", "moved.json", "graph_marks.py",
         "layouts", "atoms", "schedule", "checks", "view", "kernels")  # fmt: skip


def archive() -> bytes:
    """The package without its parts for GPUs and frameworks, and `session.py`, as a zip."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as zipped:
        for part in PARTS:
            path = ROOT / "layoutgemm" / part
            files = [path]
            if path.is_dir():
                files = sorted(file for file in path.rglob("*") if file.suffix in (".py", ".json", ".txt"))
            for file in files:
                zipped.write(file, file.relative_to(ROOT).as_posix())
        zipped.write(HERE / "session.py", "session.py")
    return made.getvalue()


def notebooks() -> list[dict[str, object]]:
    """The notebooks as cells: code, and the words before it. Cells with arrays are left out."""
    out: list[dict[str, object]] = []
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        cells, words = [], ""
        for kind, text in percent.cells(path.read_text(encoding="utf-8").replace("import numpy as np\n", "")):
            if kind == "markdown":
                words = re.sub(r"\n+Needs: \w+\n", "\n", f"{words}\n\n{text}".strip())  # what the other cells need
            elif text.strip() and "np." not in text:
                cells.append({"source": text.strip(), "words": words})
                words = ""
        title = cells[0]["words"].partition("\n")[0].lstrip("# ") or path.stem
        out.append({"title": title, "cells": cells})
    return out


def runtime(folder: Path) -> None:
    """Pyodide's files, from npm, which checks their digest. Kept in `folder`."""
    if all((folder / name).exists() for name in RUNTIME):
        return
    folder.mkdir(parents=True, exist_ok=True)
    done = subprocess.run(["npm", "pack", "--silent", f"pyodide@{PYODIDE}"], cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"npm could not fetch pyodide {PYODIDE}: {done.stderr.strip()}")
    packed = folder / done.stdout.split()[-1]
    with tarfile.open(packed) as tar:
        for name in RUNTIME:
            found = tar.extractfile(f"package/{name}")
            assert found is not None
            (folder / name).write_bytes(found.read())
    packed.unlink()


def wheels(folder: Path, distribution: str) -> dict[str, str]:
    """Puts the wheels of PACKAGES into Pyodide's folder. The packages that could not be had, with the reason.

    Pyodide's lock file says each wheel's version and digest. A wheel that PyPI has for every platform comes from there
    in the same version, and the lock file gets its digest, which the browser checks.
    """
    where = folder / "pyodide-lock.json"
    lock, absent = json.loads(where.read_text(encoding="utf-8")), {}
    for name, parts in PACKAGES.items():
        try:
            for part in parts:
                _wheel(folder, lock["packages"][part], distribution)
        except OSError as error:
            absent[name] = str(error)
    where.write_text(json.dumps(lock), encoding="utf-8")
    return absent


def _wheel(folder: Path, entry: dict[str, str], distribution: str) -> None:
    """One wheel in `folder`. Raises OSError where it cannot be had, or is another than the lock file says."""
    target = folder / entry["file_name"]
    if not target.exists() and target.name.endswith("-none-any.whl"):
        wanted = f"{entry['name']}=={entry['version']}"
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
        done = subprocess.run([*command, wanted], capture_output=True, text=True)
        if done.returncode or not target.exists():
            raise OSError(f"pip could not fetch {wanted}: {done.stderr.strip()[-200:]}")
        entry["sha256"] = hashlib.sha256(target.read_bytes()).hexdigest()
    elif not target.exists():
        local = Path(distribution) / target.name
        content = local.read_bytes() if local.exists() else _fetched(distribution.rstrip("/") + "/" + target.name)
        target.write_bytes(content)
    if hashlib.sha256(target.read_bytes()).hexdigest() != entry["sha256"]:
        target.unlink()
        raise OSError(f"{target.name} is another file than the lock file names")


def _fetched(url: str) -> bytes:
    if not url.startswith("https://"):
        raise OSError(f"no wheel at {url}")
    with urllib.request.urlopen(url, timeout=60) as answer:
        content: bytes = answer.read()
        return content


def node(program: str, *arguments: object) -> None:
    """Runs a program of this folder. Raises SystemExit with the end of what node says."""
    done = subprocess.run(["node", str(HERE / program), *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        said = [line for line in done.stderr.splitlines() if len(line) < 500]  # others are of Pyodide's program
        raise SystemExit("\n".join([f"node {program}:", *said[-20:]]))


def compiled(folder: Path, absent: dict[str, str]) -> dict[str, str | None]:
    """The packages that a cell can ask for -> an archive of compiled modules; None: the wheel, as it has more."""
    out: dict[str, str | None] = {name: None for name in PACKAGES if name not in absent}
    if "sympy" in out:
        lock = json.loads((folder / "pyodide" / "pyodide-lock.json").read_text(encoding="utf-8"))
        out["sympy"] = f"sympy-{lock['packages']['sympy']['version']}.zip"
        if not (folder / out["sympy"]).exists():
            node("compiled.mjs", folder, "sympy", folder / out["sympy"])
    return out


def build(folder: Path, distribution: str = DISTRIBUTION) -> dict[str, str]:
    """Writes the page, the package and Pyodide to `folder`. The packages that it lacks, with the reason."""
    folder.mkdir(parents=True, exist_ok=True)
    runtime(folder / "pyodide")
    absent = wheels(folder / "pyodide", distribution)
    for old in (*folder.glob("layoutgemm-*.zip"), *folder.glob("snapshot-*.gz")):
        old.unlink()
    for name in ("page.mjs", "paint.mjs", "start.mjs", "worker.mjs", "style.css"):
        shutil.copy(HERE / name, folder / name)
    content = archive()
    stamp = hashlib.sha256(content).hexdigest()[:12]  # in the names: a browser's cache holds no file of another build
    packed, memory = folder / f"layoutgemm-{stamp}.zip", folder / f"snapshot-{stamp}.bin.gz"
    packed.write_bytes(content)
    node("snapshot.mjs", folder, packed, memory)
    built = {"snapshot": memory.name, "packages": {"layoutgemm": packed.name, **compiled(folder, absent)}}
    (folder / "built.json").write_text(json.dumps(built), encoding="utf-8")
    (folder / "notebooks.json").write_text(json.dumps(notebooks()), encoding="utf-8")
    shutil.copy(HERE / "page.html", folder / "index.html")
    return absent


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Builds the playground.")
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "playground")
    parser.add_argument("--distribution", default=DISTRIBUTION, help="URL or folder of Pyodide's wheels")
    given = parser.parse_args()
    for package, reason in build(given.folder, given.distribution).items():
        print(f"without {package}: {reason}")
    print(f"{given.folder}: serve it with `python -m http.server -d {given.folder}`")
