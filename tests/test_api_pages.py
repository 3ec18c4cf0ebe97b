"""The pages: every public name stands on one, none is longer than ten screens, and the search finds names."""

from __future__ import annotations

import doctest
import functools
import http.server
import importlib
import importlib.util
import os
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from docs import heights, reference
from tests import needs

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(reference.API.glob("*.md"))
UNTOLD = {"FAMILIES", "SPANS", "SWIZZLES"}  # values without a docstring


def test_examples() -> None:
    assert doctest.testmod(reference).failed == 0


def test_every_public_name_stands_on_one_page() -> None:
    told = Counter(
        (module, name) for page in PAGES for module, name, _ in reference.entries(page.read_text(encoding="utf-8"))
    )
    assert [entry for entry, times in told.items() if times > 1] == []
    for package in reference.PACKAGES:
        public = set(importlib.import_module(package).__all__) - UNTOLD
        assert public - {name for module, name in told if module == package} == set()


def test_every_public_method_of_a_layout_stands_on_a_page() -> None:
    layout = reference.found("layoutgemm.layouts", "Layout")
    told = [
        entry
        for page in PAGES
        for _, name, members in reference.entries(page.read_text(encoding="utf-8"))
        for entry in (members if name == "Layout" else [name.removeprefix("Layout.")] * name.startswith("Layout."))
    ]
    methods = {name for name, value in vars(layout).items() if not name.startswith("_") and value.__doc__}
    assert methods - {"shape", "stride"} <= set(told) and len(told) == len(set(told))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_is_longer_than_ten_screens(page: Path) -> None:
    """By its docstrings and lines; pictures and tables count where tests/test_docs.py makes them."""
    text = page.read_text(encoding="utf-8")
    tall = heights.height(reference.without_objects(text)) + reference.estimate(text)
    assert tall <= reference.MOST_SCREENS * reference.SCREEN


def test_a_long_page_is_found() -> None:
    everything = [*(ROOT / "docs" / "api").glob("t*.md"), ROOT / "docs" / "api" / "mma.md"]
    assert reference.estimate("".join(page.read_text(encoding="utf-8") for page in everything)) > 10_000


# ---------------------------------------------------------------- the built site


def browser(playwright: Any) -> Any:
    return playwright.chromium.launch(executable_path=needs.browser(), args=["--no-sandbox", "--disable-gpu"])


def check_heights(page: Any, site: Path) -> None:
    """In a window of 1280 pixels no page is longer than ten times a thousand; programs are as long as they are."""
    page.set_viewport_size({"width": 1280, "height": reference.SCREEN})
    for each in sorted(site.rglob("*.html")):
        if each.parent.name != "programs":
            page.goto(each.as_uri())
            page.evaluate("Promise.all([...document.images].map(each => (each.loading = 'eager', each.decode())))")
            tall = page.evaluate("document.documentElement.scrollHeight")
            assert tall <= reference.MOST_SCREENS * reference.SCREEN, f"{each.relative_to(site)} is {tall} pixels"


def check_search(page: Any, address: str) -> None:
    """The search finds the page of bank_conflicts, from a page of another folder."""
    page.goto(address)
    page.click("input.md-search__input")
    page.keyboard.type("bank_conflicts")
    page.wait_for_selector(".md-search-result__link[href*='api/banks.html']", timeout=60_000)


@pytest.mark.slow
def test_the_built_site_has_short_pages_and_a_search(tmp_path: Path) -> None:
    sync_api = needs.module("playwright.sync_api")
    needs.site_builder()
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    with sync_api.sync_playwright() as playwright:
        check_site(browser(playwright), tmp_path)


def check_site(opened: Any, site: Path) -> None:
    page = opened.new_page()
    check_heights(page, site)
    check_search(page, (site / "api" / "layout.html").as_uri())
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        check_search(page, f"http://127.0.0.1:{server.server_port}/api/layout.html")
        server.shutdown()
    opened.close()
