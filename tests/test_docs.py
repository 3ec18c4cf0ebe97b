"""The documentation is true: its examples run, its commands, links and pages exist, its pictures and tables are made.

Pages follow the rules of tests/test_readme.py. The slow test at the end runs `make docs`.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import doctest
import importlib
import importlib.metadata
import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from docs import chapters, claims, fences, heights, percent, reference, tables
from tests import needs
from tests.test_readme import SHELL, absent, blocks, command_problem, commands, run_python

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PACKAGE = "layoutgemm"
PAGES = sorted(DOCS.rglob("*.md"))
PROGRAMS = [path for folder in ("layouts", "atoms", "kernels") for path in (ROOT / folder).glob("*.py")]
# Pages that are made when the site is built.
MADE = {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.py")}
MADE |= {tables.source_page(path.relative_to(ROOT).as_posix()) for path in PROGRAMS}
each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())


def text_of(page: Path) -> str:
    return fences.visible(page.read_text(encoding="utf-8"))


@each_page
def test_python_blocks(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    every = list(blocks(text_of(page)))
    assert not [block.line for block in every if ">>>" in block.text and block.language != "python"], "never run"
    found = [block for block in every if block.language == "python"]
    if not found:
        return
    monkeypatch.chdir(tmp_path)
    report = run_python(found, absent() if any(block.tags for block in found) else frozenset())
    assert not report, "\n" + "".join(report).replace("README.md", page.name)


def undefined(text: str) -> set[str]:
    """Names that a block reads, and neither binds nor finds among Python's own."""
    nodes = list(ast.walk(ast.parse(text)))
    imported = {each.asname or each.name.partition(".")[0] for x in nodes if isinstance(x, (ast.Import, ast.ImportFrom))
                for each in x.names}  # fmt: skip
    bound = {x.id for x in nodes if isinstance(x, ast.Name) and not isinstance(x.ctx, ast.Load)}
    arguments = {x.arg for x in nodes if isinstance(x, ast.arg)}
    return {x.id for x in nodes if isinstance(x, ast.Name)} - imported - bound - arguments - {*dir(builtins)}


def test_each_door_runs_in_a_fresh_interpreter() -> None:
    pages = [text_of(DOCS / name) for name in ("frameworks.md", "transformers.md", "jax.md")]
    found = [block for page in pages for block in blocks(page) if block.language in ("python", "py")]
    assert len(found) > 8 and not [(block.line, bad) for block in found if (bad := undefined(block.text))]
    assert undefined("import a.b\nc = a.b(lambda d: d + e)") == {"e"}


@each_page
def test_commands_and_links(page: Path) -> None:
    text = text_of(page)
    problems = []
    for block in blocks(text):
        for command, _ in commands(block) if block.language in SHELL else ():
            if why := command_problem(command):
                problems.append(f"{page.name}:{block.line}: {why}")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        name = target.partition("#")[0]
        if name and not re.match(r"[a-z]+:", name):
            place = (page.parent / name).resolve()
            if not place.exists() and place.relative_to(DOCS).as_posix() not in MADE:
                problems.append(f"{page.name}: there is no page {target}")
    assert not problems, "\n".join(problems)


def pictures_asked_for(page: Path) -> int:
    return len(re.findall(r"^```picture", page.read_text(encoding="utf-8"), flags=re.MULTILINE))


@each_page
def test_pictures_and_tables_are_made(page: Path) -> None:
    kept: list[str] = []

    def keep(svg: str) -> str:
        kept.append(svg)
        return f"{len(kept)}.svg"

    made = fences.render(page.read_text(encoding="utf-8"), keep)
    assert not re.search(r"^```(picture|generated|python \w)|<!-- when", made, flags=re.MULTILINE)
    for value in re.findall(r"\bnan\b|\binf\b|\bNone\b", re.sub(r"`[^`]*`|```.*?```", "", made, flags=re.DOTALL)):
        pytest.fail(f"{page.name} says {value}")
    assert len(kept) == pictures_asked_for(page) and all(svg.startswith("<svg") and "</svg>" in svg for svg in kept)
    objects = page.read_text(encoding="utf-8") if page.parent == reference.API else ""
    tall = heights.height(reference.without_objects(made), kept) + reference.estimate(objects) * bool(objects)
    assert tall <= reference.MOST_SCREENS * reference.SCREEN, f"about {tall:.0f} pixels, more than ten screens"


def test_heights_count_what_a_page_shows() -> None:
    """A closed note takes one line, and a wide table more than a narrow one."""
    folded = '??? note "a"\n\n' + "    a line\n" * 3000
    assert heights.height(folded) < 400 < heights.height(folded.replace("    ", "").replace("??? ", "")) - 1000
    row = "| " + " | ".join(["several words that need a line or two"] * 5) + " |\n"
    table = heights.height(row + "|---|---|---|---|---|\n" + row * 200)
    assert table > 1.5 * heights.height("| a |\n|---|\n" + "| b |\n" * 200) > 200 * 29
    module = "::: layoutgemm.kernels.sm90.grouped\n"
    some = reference.estimate(f"{module}    options: {{members: [GroupOffsets]}}\n")
    assert reference.estimate(module) > some > 400


def test_no_file_hides_an_object_of_the_reference() -> None:
    """`layoutgemm.kernels.plan` is a file, too: its page would show the file's objects in place of the function's."""
    for page in reference.API.glob("*.md"):
        for module, name, _ in reference.entries(page.read_text(encoding="utf-8")):
            place = ROOT.joinpath(*reference.path(module, name).split("."))
            assert not place.is_dir() and not place.with_suffix(".py").exists(), f"{page.name}: {module}.{name}"


def loose_rows(text: str) -> list[str]:
    """Rows outside of a table: Markdown shows them as text where no head and dashes stand before them."""
    found, inside = [], False
    lines = re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    for line, following in zip(lines, [*lines[1:], ""], strict=True):
        row = line.startswith("|")
        inside = row and (inside or re.match(r"\| ?:?--", following) is not None)
        if row and not inside:
            found.append(line)
    return found


@pytest.mark.parametrize("page", [*PAGES, *sorted(ROOT.glob("*.md"))], ids=lambda page: page.name)
def test_rows_stand_in_a_table(page: Path) -> None:
    assert loose_rows(page.read_text(encoding="utf-8")) == []


def test_a_row_behind_a_blank_line_is_found() -> None:
    assert loose_rows("| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |\n") == ["| 3 | 4 |"]


def test_pictures_are_of_the_library_and_none_is_committed() -> None:
    assert sum(map(pictures_asked_for, PAGES)) >= 10
    assert not [path for path in DOCS.rglob("*") if path.suffix in (".svg", ".png", ".jpg")]


def test_every_page_is_in_the_navigation() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    named = set(re.findall(r"([\w/-]+\.md)", nav))
    assert named == {page.relative_to(DOCS).as_posix() for page in PAGES} | {n for n in MADE if "notebooks/" in n}


def test_every_level_has_a_section() -> None:
    text = "".join((DOCS / f"{name}.md").read_text(encoding="utf-8") for name in ("ladder", "ladder_persistent"))
    levels = sorted({int(number) for number in re.findall(r"\{ #level-(\d+) \}", text)})
    assert levels == list(range(1, 13)) == sorted({entry["level"] for entry in tables.record("ladder")["levels"]})
    assert levels == [int(number) for number in re.findall(r"^level\((\d+)\)$", text, flags=re.MULTILINE)]


def test_no_line_of_the_ladder_runs_through_a_label() -> None:
    chart = tables.ladder_chart()
    (line,) = (float(x) for x in re.findall(r'<path d="M([\d.]+) ', chart))
    labels = re.findall(r'<text x="([\d.]+)" y="[\d.]+" text-anchor="end">([^<]+)<', chart)
    assert len(labels) == 2 * len(tables.record("ladder")["levels"])
    for end, text in labels:
        right = float(end)
        assert right < line or right - 9 * len(text) > line, text  # digits are at most 9 pixels wide


def test_all_claims_are_shown_and_decided() -> None:
    shown = claims.claims()
    assert len(claims.program().CLAIMS) > 20 and "not equivalent" in shown and "proven by" in shown
    for claim in claims.program().CLAIMS:
        assert claim.says in shown


def test_the_documents_of_the_claims_are_named_by_their_titles() -> None:
    program, shown = claims.program(), claims.sources()
    for name, title in program.SOURCES.items():
        assert f"| {name} | {title} |" in shown
    for claim in program.CLAIMS:
        name, _, section = claim.source.partition(" ")
        assert name == "asked" or name in program.SOURCES
        assert name != "guide" or re.fullmatch(r"\d+\.\d+", section)
    refuted = [str(i) for i, claim in enumerate(program.CLAIMS, 1) if not claim.holds and "guide" in claim.source]
    assert len(refuted) > 5 and f"| {', '.join(refuted)} |" in shown


def test_a_notebook_becomes_a_page() -> None:
    kept: list[str] = []
    page = percent.page(ROOT / "notebooks" / "01_layouts_in_ten_minutes.py", lambda svg: kept.append(svg) or "p.svg")
    assert page.startswith("# Layouts in ten minutes") and len(kept) >= 3
    assert "not equivalent at M=64, N=2: (1,0) gives 2 and 1" in page


def test_wrong_pages_are_found() -> None:
    with pytest.raises(ValueError, match="ends in an expression"):
        fences.evaluate("x = 1")
    with pytest.raises(ValueError, match="SVG document"):
        fences.render("```picture a\n'text'\n```\n", lambda svg: "p.svg")
    with pytest.raises(NameError):
        fences.render("```generated\nno_such_table()\n```\n", lambda svg: "p.svg")
    with pytest.raises(ValueError, match="expected"):
        wrong = claims.program()
        before = wrong.CLAIMS
        try:
            wrong.CLAIMS = (wrong.Claim("t", "guide", "says", lambda: False, True),)
            claims.claims()
        finally:
            wrong.CLAIMS = before


def test_a_caption_shows_code_as_code() -> None:
    made = fences.figure("<svg/>", 'see `desc "a"` <now>', lambda svg: "p.svg")
    assert "<figcaption>see <code>desc &quot;a&quot;</code> &lt;now&gt;</figcaption>" in made
    assert 'alt="see desc &quot;a&quot; &lt;now&gt;"' in made


@pytest.mark.parametrize("book", chapters.BOOKS)
def test_a_long_file_is_shown_whole_in_short_parts(book: str) -> None:
    source, _ = chapters.BOOKS[book]
    whole = tables.plain((ROOT / source).read_text(encoding="utf-8"))
    shown = chapters.chapters(book)
    lines = [line for text in shown.values() for line in text.splitlines() if not line.startswith(("# ", "Next: "))]
    assert [re.sub(r" \{ #part-\d+ \}$", "", line) for line in lines if line] == [x for x in whole.splitlines() if x]
    assert max(text.count("\n") for text in shown.values()) < chapters.MOST_LINES + 10
    assert max(map(heights.height, shown.values())) <= reference.MOST_SCREENS * reference.SCREEN
    linked = re.findall(r"\]\(([^()]+)#([^()]+)\)$", chapters.contents(book), flags=re.MULTILINE)
    assert len(linked) == len(re.findall(r"^##+ ", whole, flags=re.MULTILINE)) and len(set(linked)) == len(linked)
    assert all(f"{{ #{anchor} }}" in shown[address] for address, anchor in linked)


@pytest.mark.parametrize("name", ["chapters", "fences", "heights", "percent", "tables", "docstrings"])
def test_examples_of_the_builders(name: str) -> None:
    if name == "docstrings":
        needs.module("griffe")
    assert doctest.testmod(importlib.import_module(f"docs.{name}")).failed == 0


def test_claims_are_numbered_alike_in_the_table_and_below() -> None:
    made = claims.claims()
    table, below = (
        re.findall(r"^\| (\d+) \|", made, re.MULTILINE),
        re.findall(r'^!!! \w+ "(\d+)\. ', made, re.MULTILINE),
    )
    assert table == below == [str(n) for n in range(1, len(claims.program().CLAIMS) + 1)]


# Makes every page, notebook and program page as the site's hooks do, where only the modules of argv[1:] are found.
BUILDER = """
import json, sys
from pathlib import Path
allowed = {*sys.argv[1:], *sys.stdlib_module_names}
class Only:
    def __init__(self, finder):
        self.finder = finder
    def find_spec(self, name, path=None, target=None):
        return self.finder.find_spec(name, path, target) if name.partition(".")[0] in allowed else None
sys.meta_path[:] = map(Only, sys.meta_path)
sys.path.insert(0, ".")
from docs import fences, percent, tables
failed = []
def attempt(path, make):
    try:
        assert make()
    except Exception as error:
        failed.append(f"{path}: {type(error).__name__}: {error}")
keep = lambda svg: "p.svg"
for path in sorted(Path("docs").rglob("*.md")):
    attempt(path, lambda: fences.render(path.read_text(encoding="utf-8"), keep))
for path in sorted(Path("notebooks").glob("*.py")):
    attempt(path, lambda: percent.page(path, keep))
for path in sorted(path for folder in ("layouts", "atoms", "kernels") for path in Path(folder).glob("*.py")):
    attempt(path, lambda: tables.docstring(path))
print(json.dumps(failed))
"""


def installed_by(extra: str) -> set[str]:
    """Top-level modules of what `pip install layoutgemm[extra]` brings, of the distributions that are here."""
    requirements = needs.module("packaging.requirements")
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    waiting: list[tuple[Any, str]] = []
    for name in ("dependencies", extra):
        (listed,) = re.findall(rf"^{name} = \[(.*?)\]$", text, flags=re.MULTILINE | re.DOTALL)
        waiting += [(requirements.Requirement(each), "") for each in re.findall(r'"([^"]+)"', listed)]
    known: set[tuple[str, str]] = set()
    while waiting:
        required, asked = waiting.pop()
        if required.marker is not None and not required.marker.evaluate({"extra": asked}):
            continue
        for more in ("", *required.extras):
            if (key := (plain_name(required.name), more)) not in known:
                known.add(key)
                with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                    found = importlib.metadata.requires(required.name) or []
                    waiting += [(requirements.Requirement(each), more) for each in found]
    names = {name for name, _ in known}
    provided = importlib.metadata.packages_distributions().items()
    return {module for module, by in provided if names & {plain_name(name) for name in by}}


def plain_name(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def not_made(modules: set[str]) -> list[str]:
    """The pages that cannot be made with these modules alone, and why."""
    command = [sys.executable, "-c", BUILDER, *sorted(modules)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_pages_need_nothing_but_the_docs_extra() -> None:
    """`make docs` makes a new environment without torch, the CuTe DSL and the tests' packages."""
    modules = installed_by("docs")
    assert {"numpy", "sympy", "mpmath"} <= modules
    assert not modules & {"torch", "cutlass", "pytest", "hypothesis", "scipy", "nbclient"}
    assert not_made(modules | {PACKAGE, "docs", "benchmarks"}) == []


def test_a_page_that_needs_more_is_named() -> None:
    failed = not_made({"numpy", PACKAGE, "docs", "benchmarks"})
    assert failed and all("No module named 'sympy'" in each for each in failed)


def test_the_docs_target_installs_the_docs_extra_alone() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert re.findall(r"^docs: (.*)$", makefile, flags=re.MULTILINE) == ["$(VENV)/.docs"]
    ((before, recipe),) = re.findall(
        r"^\$\(VENV\)/\.docs: pyproject\.toml \| (\S+)\n((?:\t.*\n)+)", makefile, flags=re.MULTILINE
    )
    assert before == "$(VENV)/.base" and re.findall(r"-e '([^']*)'", recipe) == [".[docs]"]


@pytest.mark.slow
def test_the_site_is_built_and_fetches_nothing(tmp_path: Path) -> None:
    needs.site_builder()
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    html = {path: path.read_text(encoding="utf-8") for path in (tmp_path / "site").rglob("*.html")}
    assert len(html) > 40
    for path, text in html.items():
        loaded = re.findall(r'<(?:script|img|iframe|link)[^>]*(?:src|href)="?(https?:[^"> ]+)', text)
        assert not loaded, f"{path.name} loads {loaded}"
        for picture in re.findall(r'<img src="?([^"> ]+\.svg)', text):
            assert (path.parent / picture).exists(), f"{path.name} shows {picture}, which is not there"
