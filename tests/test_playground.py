"""The playground: what a cell gives and refuses, its archive without NumPy, and the page in a browser."""

import doctest
import importlib.util
import json
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "playground"


def module(name):
    spec = importlib.util.spec_from_file_location(f"playground_{name}", HERE / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


session, builder = module("session"), module("build")


def test_examples():
    assert doctest.testmod(session).failed == 0


def test_cells_share_names_and_give_a_result_a_statement():
    cells = ["A = Layout((4, 8), (8, 1))\nA.zipped_divide((2, 4))", "A(1, 2)\nprove(A, Layout((4, 8)))\nprint(len(A))"]
    first, second = json.loads(session.answers(json.dumps(cells)))
    assert [line["text"] for line in first] == ["(4,8):(8,1)", "((2,4),(2,2)):((8,1),(16,4))"]
    assert first[0]["grid"]["planes"] == [[[8 * i + j for j in range(8)] for i in range(4)]]
    assert second[0]["text"] == "10" and second[2]["printed"] == "2\n"
    assert second[1]["holds"] is False and "gives 8 and 1" in second[1]["text"]


def test_an_error_ends_its_cell_and_no_other():
    first, second = json.loads(
        session.answers(json.dumps(["Layout((4,2),(1,8)).compose(Layout((2,2),(1,3)))\n1", "2 + 2"]))
    )
    assert len(first) == 1 and first[0]["error"].startswith("CompositionError: cannot compose")
    assert second[0]["text"] == "4"


@pytest.mark.parametrize(
    "cell",
    [
        "import os",
        "from os import system",
        "().__class__",
        "_x = 1",
        "'{0.__class__}'.format(1)",
        "(x for x in [1]).gi_frame",
        "Layout.mro()",
        "lambda: 1",
        "def f(): pass",
        "while True: pass",
        "class A: pass",
        "A := 1",
    ],
)
def test_cells_reach_layouts_only(cell):
    (line,) = session.run(cell, session.names())
    assert "error" in line and "text" not in line


@pytest.mark.parametrize("name", ["open", "eval", "exec", "getattr", "__import__", "type", "vars", "globals", "input"])
def test_cells_have_few_builtins(name):
    (line,) = session.run(f"{name}(1)", session.names())
    assert "error" in line


def test_planes_of_further_modes_and_no_picture_of_symbols():
    found = session.grid(session.layouts.Layout((2, 3, 2), (1, 2, 10)))
    assert found["rest"] == [2] and found["planes"][1] == [[10, 12, 14], [11, 13, 15]]
    assert session.grid(session.layouts.Layout((session.dim("M"), 2))) is None
    assert session.grid(session.layouts.Layout(1 << 20)) is None


BLOCKED = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("numpy", "sympy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.path[:0] = [sys.argv[1]]
import layoutgemm, session
assert layoutgemm.__file__.startswith(sys.argv[1])
print(session.answers('["A = Layout((4, 8), (8, 1)) @ Layout((4, 4), (1, 8))", "A.offsets()"]'))
"""


def test_the_archive_is_enough_without_numpy(tmp_path):
    (tmp_path / "layoutgemm.zip").write_bytes(builder.archive())
    shutil.unpack_archive(tmp_path / "layoutgemm.zip", tmp_path / "site")
    command = [sys.executable, "-c", BLOCKED, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    (composed,), (offsets,) = json.loads(done.stdout)
    assert composed["text"] == "(4,4):(8,2)" and composed["grid"]["planes"][0][1] == [8, 10, 12, 14]
    assert offsets["error"] == "this needs numpy, which the page does not have"


def test_notebooks_become_cells():
    found = builder.notebooks()
    assert len(found) == len(list((ROOT / "notebooks").glob("*.py")))
    assert all(book["title"] and book["cells"] for book in found)
    (line, *_) = session.run(found[0]["cells"][0]["source"], session.names())
    assert "error" not in line or "playground" in line["error"]


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path):
    sync_api = pytest.importorskip("playwright.sync_api", reason="extra `browser`")
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if program is None or shutil.which("npm") is None:
        pytest.skip("no Chromium or no npm on the PATH")
    builder.build(tmp_path)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "-d", str(tmp_path)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        time.sleep(1)
        with sync_api.sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
            page, complaints, asked = browser.new_page(), [], []
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda request: asked.append(request.url))
            home = f"http://127.0.0.1:{port}/"
            page.goto(home)
            page.wait_for_selector("#status[data-turn]", state="attached", timeout=300_000)
            page.fill("textarea", "A = Layout((4, 8), (8, 1))\nA @ Layout((4, 4), (1, 8))")
            page.wait_for_function("document.querySelectorAll('article').length === 2", timeout=60_000)
            page.hover("td[data-offset='10']")
            assert page.locator("td.lit").count() == 2  # the same offset in both pictures
            address = page.url
            again = browser.new_page()
            again.goto(address)  # the address holds the cells
            assert again.input_value("textarea").endswith("A @ Layout((4, 4), (1, 8))")
            assert complaints == [] and all(url.startswith((home, "data:")) for url in asked)
            browser.close()
    finally:
        server.kill()
