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

from tests import needs

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "playground"


def module(name):
    spec = importlib.util.spec_from_file_location(f"playground_{name}", HERE / f"{name}.py")
    made = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = made
    spec.loader.exec_module(made)
    return made


session, builder = module("session"), module("build")


def answers(*cells):
    """The lines of each cell."""
    return [[json.loads(line) for line in lines] for lines in json.loads(session.answers(json.dumps(cells)))["cells"]]


def test_examples():
    assert doctest.testmod(session).failed == 0


def test_cells_share_names_and_give_a_result_a_statement():
    cells = ["A = Layout((4, 8), (8, 1))\nA.zipped_divide((2, 4))", "A(1, 2)\nprove(A, Layout((4, 8)))\nprint(len(A))"]
    first, second = answers(*cells)
    assert [line["text"] for line in first] == ["(4,8):(8,1)", "((2,4),(2,2)):((8,1),(16,4))"]
    assert first[0]["grid"]["planes"] == [[[8 * i + j for j in range(8)] for i in range(4)]]
    assert second[0]["text"] == "10" and second[2]["printed"] == "2\n"
    assert second[1]["holds"] is False and "gives 8 and 1" in second[1]["text"]


def test_a_comparison_says_what_differs():
    false, true = (lines[0] for lines in answers("congruent((4, (2, 3)), (4, 6))", "compatible(24, (4, 6))"))
    assert false["holds"] is False and false["text"].endswith("mode 1 is (2,3) and 6")
    assert true["holds"] is True and true["text"] == "holds"


def test_an_error_ends_its_cell_and_no_other():
    first, second = answers("Layout((4,2),(1,8)).compose(Layout((2,2),(1,3)))\n1", "2 + 2")
    assert len(first) == 1 and first[0]["error"].startswith("CompositionError: cannot compose")
    assert second[0]["text"] == "4"


@pytest.mark.parametrize(
    "cell",
    [
        "import os",
        "from os import system",
        "from dataclasses import sys",
        "from dataclasses import fields",
        "().__class__",
        "_x = 1",
        "'{0.__class__}'.format(1)",
        "(x for x in [1]).gi_frame",
        "Layout.mro()",
        "def _f(): pass",
        "def f(x): return f.__globals__",
        "lambda _x: 1",
        "try:\n    Layout(0)\nexcept LayoutError as e:\n    e.with_traceback(None)",
        "try:\n    Layout.x\nexcept AttributeError as e:\n    e.obj",
        "with Layout(4) as x: pass",
        "raise LayoutError('x')",
        "global A",
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


def test_cells_define_functions_and_catch_refusals():
    (lines,) = answers(
        "from layoutgemm.layouts import Layout as L\ndef twice(x):\n    return 2 * x\ntwice(L(4).size)\n"
        "try:\n    L((4, 2), (1, 8)) @ L((2, 2), (1, 3))\nexcept CompositionError as error:\n    print('refused')"
    )
    assert [line.get("text") for line in lines] == [None, None, "8", None] and lines[3]["printed"] == "refused\n"


LAYOUTS = (
    session.layouts.Layout(7, 3), session.layouts.Layout((4, 8), (8, 1)),
    session.layouts.Layout((3, (2, 5)), (2, (60, 7))),
    session.layouts.Layout((2, 3, (2, 2)), (5, 0, (1, 40))), session.layouts.Layout((4, 8), (8, -1)),
    session.layouts.Layout((4, 8), (session.layouts.E(1), session.layouts.E(0))),
    session.layouts.Swizzle(3, 3, 3) @ session.layouts.Layout((8, 64), (64, 1)),
    session.layouts.ComposedLayout(session.layouts.Swizzle(2, 0, 2), 5, session.layouts.Layout((4, 4), (4, 1))),
    session.layouts.Swizzle(1, 0, 3) @ (session.layouts.Swizzle(2, 0, 2) @ session.layouts.Layout((4, 4), (4, 1))),
)  # fmt: skip


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
def test_the_grid_of_a_layout_is_its_function(layout):
    values = [layout(i) for i in range(layout.size)]
    assert session.cells_of(layout) == [x if isinstance(x, int) else str(x) for x in values]
    grid = session.grid(layout)
    flat = [row[j] for plane in grid["planes"] for j in range(len(plane[0])) for row in plane]
    assert flat == session.cells_of(layout)


def test_pictures_follow_their_results_and_have_the_numbers_of_equal_values():
    first, second = answers("mma_sync('m16n8k16', 'bf16')\nwgmma(8)", "mma_sync('m16n8k16', 'bf16')\nLayout(4).svg()")
    numbers = [line["picture"] for line in first + second]
    assert numbers[0] == numbers[2] and len(set(numbers)) == 3
    drawings = {number: session.drawing(number) for number in numbers}
    assert all(
        svg.startswith("<svg") and svg.count("<title") == 1 for svg in drawings.values()
    )  # an image has no hover
    before = session.layouts.Layout(4).svg()
    assert before.count("<title") > 1  # elsewhere pictures have texts under the pointer


def test_the_rehearsal_draws_every_kind_of_cell_and_leaves_no_answers():
    for cell in session.WARM:
        assert [line for line in session.run(cell, {**session.names(), "N": 2}) if "error" in line] == []
    drawn = [session.warm(step) for step in range(len(session.WARM))]
    assert [svg[:4] for svg in drawn].count("<svg") == len(session.WARM) - 1  # one is of offsets
    assert session.warm(len(session.WARM)) != drawn[0]  # the next turn has other numbers
    session.forget()
    assert all(each.cache_info().currsize == 0 for each in session._remembered)


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
cells = ["A = Layout((4, 8), (8, 1)) @ Layout((4, 4), (1, 8))", "A.offsets()", "A.expr()", "wgmma(64).layout('A')"]
import json
print(session.answers(json.dumps(cells)))
pictures = ["wgmma(64, 'bf16')", "fragment_svg(wgmma(8), 'C')", "ldmatrix(4)", "E(0)",
            "smem_tile((64, 64), 'bf16', 'K', '128B')",
            "make_tiled_copy(universal_copy(128, 'bf16'), Layout((16, 8), (8, 1)), Layout((1, 8)))",
            "tcgen05_mma('f16', 128, 64, 'bf16')", "ring(stages=4, bytes=32768)", "Layout((4, 8), (E(0), E(1))).svg()"]
for [line] in json.loads(session.answers(json.dumps(pictures)))["cells"]:
    line = json.loads(line)
    assert "error" not in line, line
    assert session.drawing(line["picture"]).startswith("<svg") if "picture" in line else line["source"] == "E(0)", line
"""


def test_the_archive_is_enough_without_numpy(tmp_path):
    (tmp_path / "layoutgemm.zip").write_bytes(builder.archive())
    shutil.unpack_archive(tmp_path / "layoutgemm.zip", tmp_path / "site")
    command = [sys.executable, "-c", BLOCKED, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    composed, offsets, formula, atom = (json.loads(lines[0]) for lines in found["cells"])
    assert composed["text"] == "(4,4):(8,2)" and composed["grid"]["planes"][0][1] == [8, 10, 12, 14]
    assert found["needs"] == ["numpy", "sympy"] and atom["text"] == "(128,(64,16)):(0,(1,64))"
    assert offsets["error"] == "this needs numpy, which this copy of the page was built without"
    assert formula["error"] == "this needs sympy, which this copy of the page was built without"


PLANS = """
import json, sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("cutlass", "cuda", "torch", "sympy"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.path[:0] = [sys.argv[1]]
import session
print(session.answers(sys.stdin.read()))
"""


def test_the_archive_is_enough_for_plans(tmp_path):
    (tmp_path / "layoutgemm.zip").write_bytes(builder.archive())
    shutil.unpack_archive(tmp_path / "layoutgemm.zip", tmp_path / "site")
    (book,) = [book for book in builder.notebooks() if book["title"] == "Write a GEMM variant"]
    cells = json.dumps([cell["source"] for cell in book["cells"]])
    command = [sys.executable, "-c", PLANS, str(tmp_path / "site")]
    done = subprocess.run(command, cwd=tmp_path, input=cells, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for cell in json.loads(done.stdout)["cells"] for line in cell]
    assert [line["error"] for line in lines if "error" in line] == []
    assert any("4 fit" in line.get("printed", "") for line in lines) and any(line.get("picture") for line in lines)


def test_every_cell_of_the_notebooks_runs():
    found = builder.notebooks()
    assert len(found) == len(list((ROOT / "notebooks").glob("*.py"))) == 5
    for book in found:
        assert book["title"] and len(book["cells"]) > 4
        lines = [line for cell in answers(*(cell["source"] for cell in book["cells"])) for line in cell]
        assert [line["error"] for line in lines if "error" in line] == []


def test_a_wheel_comes_from_the_distribution_with_its_digest(tmp_path):
    (tmp_path / "from").mkdir()
    (tmp_path / "to").mkdir()
    (tmp_path / "from" / "numpy-1-wasm32.whl").write_bytes(b"a wheel")
    digest = builder.hashlib.sha256(b"a wheel").hexdigest()
    entry = {"name": "numpy", "version": "1", "file_name": "numpy-1-wasm32.whl", "sha256": digest}
    builder._wheel(tmp_path / "to", entry, str(tmp_path / "from"))
    assert (tmp_path / "to" / "numpy-1-wasm32.whl").read_bytes() == b"a wheel"
    for wrong in ({**entry, "sha256": "0"}, {**entry, "file_name": "numpy-2-wasm32.whl"}):
        with pytest.raises(OSError, match=r"another file|no wheel"):
            builder._wheel(tmp_path / "to", wrong, str(tmp_path / "from"))
    assert not (tmp_path / "to" / "numpy-1-wasm32.whl").exists()


COLORS = """(canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data, found = {};
  for (let i = 0; i < data.length; i += 4) {
    const color = [data[i], data[i + 1], data[i + 2]].map((x) => x.toString(16).padStart(2, "0")).join("");
    found[color] = 1;
  }
  return Object.keys(found);
}"""


def colors_of(page, canvas):
    """The colours of a canvas's pixels."""
    return {f"#{color.upper()}" for color in canvas.evaluate(COLORS)}


@pytest.mark.slow
def test_the_page_in_a_browser(tmp_path):
    sync_api = needs.module("playwright.sync_api")
    program = needs.browser()
    needs.program(["npm"], "install Node.js")
    absent = builder.build(tmp_path, distribution=str(tmp_path))
    assert set(absent) <= {"numpy", "sympy"}  # where no index can be reached
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
            page.on("console", lambda said: "getImageData" in said.text or complaints.append(said.text))  # reads here
            page.on("request", lambda request: asked.append(request.url))
            home = f"http://127.0.0.1:{port}/"
            page.goto(home)
            page.wait_for_selector("#status[data-turn]", state="attached", timeout=300_000)
            assert page.get_attribute("#status", "data-from") == "snapshot"
            page.fill("textarea", "A = Layout((4, 8), (8, 1))\nA @ Layout((4, 4), (1, 8))")
            page.wait_for_selector("article:nth-child(2):last-child td[data-offset='10']", timeout=60_000)
            page.hover("td[data-offset='10']")
            assert page.locator("td.lit").count() == 2  # the same offset in both pictures
            # An edit keeps the pictures of the lines that it does not change, and a large one is painted.
            kept = page.query_selector("article:first-child table")
            page.fill("textarea", "A = Layout((4, 8), (8, 1))\nLayout((64, 64), (64, 1))")
            page.wait_for_selector("canvas", timeout=60_000)
            assert kept.evaluate("(table) => table.isConnected")
            large = page.query_selector(".planes canvas")
            page.fill("textarea", "A = Layout((4, 8), (8, 1))\nLayout((64, 64), (1, 64))")
            page.wait_for_selector("text=(64,64):(1,64)", timeout=60_000)
            assert large.evaluate("(canvas) => canvas.isConnected")  # painted anew
            assert colors_of(page, large) >= {"#77AADD", "#111111"}  # fills of cells, and their numbers
            rest = page.query_selector(".planes canvas:last-child")  # beyond the page's edge: painted after the first
            page.wait_for_function(f"(canvas) => ({COLORS})(canvas).includes('dddddd')", arg=rest)
            assert colors_of(page, rest) >= {"#DDDDDD", "#111111"} and rest != large
            if "sympy" not in absent:  # loaded with the first formula
                page.fill("textarea", "wgmma(64).formula('A')")
                page.wait_for_selector("text=(v%64, v//64)", timeout=120_000)
            # Pictures follow their results, without NumPy; the one of an unchanged line is not drawn again.
            cell = "A = Layout((4, 8), (8, 1))\nA.svg()\nmma_sync('m16n8k16', 'bf16')\nA @ Layout((4, 4), (1, 8))"
            page.fill("textarea", cell)
            for place in (2, 3):
                page.wait_for_selector(f"article:nth-child({place}) > canvas", timeout=60_000)
            drawn = page.query_selector("article:nth-child(3) > canvas")
            page.fill("textarea", cell.replace("(1, 8))", "(1, 8)).coalesce()"))
            page.wait_for_selector("text=A @ Layout((4, 4), (1, 8)).coalesce()", timeout=60_000)
            assert drawn.evaluate("(canvas) => canvas.isConnected")
            assert drawn.get_attribute("aria-label").startswith("mma.sync.aligned.m16n8k16")
            assert colors_of(page, drawn) >= {"#77AADD", "#EE8866"}  # two hues of the operands
            address = page.url
            again = browser.new_page()
            again.goto(address)  # the address holds the cells
            assert again.input_value("textarea").endswith("A @ Layout((4, 4), (1, 8)).coalesce()")
            assert complaints == [] and all(url.startswith((home, "data:")) for url in asked)
            browser.close()
    finally:
        server.kill()
