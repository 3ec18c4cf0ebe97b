"""The notebooks run as plain scripts and assert what they say; as notebooks they run too, and show pictures."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from typing import Any

import pytest

from tests.test_root_programs import absent, run_program

NOTEBOOKS = sorted((Path(__file__).resolve().parents[1] / "notebooks").glob("*.py"))
TOOLS = ("ipykernel", "jupytext", "nbclient")


def skip_without_needs(path: Path) -> None:
    line = re.search(r"^# Needs: *(.*?)\.?$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    lacking = [need.strip() for need in line[1].split(",") if absent(need.strip())] if line else []
    if lacking:
        pytest.skip(f"needs {', '.join(lacking)}")


def test_there_are_five() -> None:
    assert [path.name[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_as_a_script(path: Path, tmp_path: Path) -> None:
    skip_without_needs(path)
    problem = run_program(path, tmp_path)
    assert problem is None, problem


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_is_marked(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert "\n# %% [markdown]\n# # " in text, "a notebook begins with its title"
    assert len(re.findall(r"^assert |^    assert ", text, flags=re.MULTILINE)) >= 4


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_as_a_notebook(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if lacking := [name for name in TOOLS if importlib.util.find_spec(name) is None]:
        pytest.skip(f"{', '.join(lacking)} not installed: pip install 'layoutgemm[notebooks]'")
    skip_without_needs(path)
    import jupytext
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(path.parents[1]))
    notebook: Any = jupytext.read(path)
    NotebookClient(notebook, timeout=300, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", ())]
    pictures = [o["data"]["image/svg+xml"] for o in outputs if "image/svg+xml" in o.get("data", {})]
    assert pictures or "needs" in path.read_text(encoding="utf-8").lower()
    assert all(picture.startswith("<svg") for picture in pictures)
