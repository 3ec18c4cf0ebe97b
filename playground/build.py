"""Builds the playground: a folder that any static host can serve.

    python playground/build.py [FOLDER]        default: build/playground

Python for the browser is Pyodide, taken from npm in one fixed version. The page has no NumPy, so the layout algebra and
its pictures work, and a cell that needs more says so.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "playground"
sys.path.insert(0, str(ROOT))

from docs import percent  # noqa: E402

PYODIDE = "314.0.7"
RUNTIME = ("pyodide.mjs", "pyodide.asm.mjs", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
# Of the package: what the algebra, its proofs and its pictures load.
PARTS = ("__init__.py", "errors.py", "arguments.py", "lazy_numpy.py", "arch.py", "dtypes.py", "report.py", "moved.py",
         "moved.json", "layouts", "view")  # fmt: skip


def archive() -> bytes:
    """The package's layouts and `session.py`, as a zip."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as zipped:
        for part in PARTS:
            path = ROOT / "layoutgemm" / part
            for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
                zipped.write(file, file.relative_to(ROOT).as_posix())
        zipped.write(HERE / "session.py", "session.py")
    return made.getvalue()


def notebooks() -> list[dict[str, object]]:
    """The notebooks as cells: their code, and the words before it."""
    out: list[dict[str, object]] = []
    for path in sorted((ROOT / "notebooks").glob("*.py")):
        cells, words = [], ""
        for kind, text in percent.cells(path.read_text(encoding="utf-8")):
            if kind == "markdown":
                words = f"{words}\n\n{text}".strip()
            elif text.strip():
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


def build(folder: Path) -> None:
    """Writes the page, the package and Pyodide to `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    runtime(folder / "pyodide")
    (folder / "layoutgemm.zip").write_bytes(archive())
    (folder / "notebooks.json").write_text(json.dumps(notebooks()), encoding="utf-8")
    shutil.copy(HERE / "page.html", folder / "index.html")
    for name in ("page.mjs", "worker.mjs", "style.css"):
        shutil.copy(HERE / name, folder / name)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "build" / "playground"
    build(target)
    print(f"{target}: serve it with `python -m http.server -d {target}`")
