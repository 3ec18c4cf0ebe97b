"""Times edits of the built playground in Chromium: from the input to the frame with its results, and its picture.

    make playground
    python benchmarks/bench_playground.py [build/playground] [--pages 5] [--only "a wgmma"]

Needs the extra `browser` and Chromium, which renders by software. Each kind of cell gets new pages. Prints the first
edit of a page apart from its later ones, as median (worst) in milliseconds: until the results are on the screen, until
their picture is, and of both the time in Python alone, which depends less on the load.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, sync_playwright

EDITS = {
    "divide": [f"Layout((4, 8), (8, 1)).zipped_divide(({m}, {n}))" for m in (1, 2, 4) for n in (1, 2, 4, 8)],
    "prove": [f"M = dim('M', multiple_of={n})\nprove(Layout((M, 8), (8, 1)), Layout((M, 8)))" for n in range(8, 96, 8)],
    "64 x 64 offsets": [f"Layout((64, {n}), ({n}, 1))" for n in range(64, 53, -1)],
    "svg of 4 x 8": [f"Layout((4, {n}), ({n}, 1)).svg()" for n in range(8, 19)],
    "svg of 16 x 16": [f"Layout((16, {n}), ({n}, 1)).svg()" for n in range(16, 27)],
    "svg of 64 x 64": [f"Layout((64, {n}), ({n}, 1)).svg()" for n in range(64, 53, -1)],
    "64 x 64 in tiles": [f"Layout((64, {n})).zipped_divide((8, 8)).svg(divided='zipped')" for n in range(64, 8, -8)],
    "a wgmma": [f"wgmma({n})" for n in range(64, 152, 8)],
    "a fragment": [f"fragment_svg(wgmma({n}), 'C')" for n in range(64, 0, -8)],
    "a swizzled tile": [f"smem_tile((64, {n}), 'bf16', 'K', '128B')" for n in range(64, 384, 64)],
    "a tiled copy": [f"make_tiled_copy(universal_copy(128, 'bf16'), Layout((16, {n}), ({n}, 1)), Layout((1, 8)))" for n in (8, 4, 2, 1)],  # fmt: skip # noqa: E501
    "a tcgen05 mma": [f"tcgen05_mma('f16', 128, {n}, 'bf16')" for n in range(64, 192, 16)],
}
THINKS = 1000  # ms between the page and the first edit: a reader's first look
SETTLED = 100  # ms: a cell of two lines is two edits


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server without a log."""

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@dataclass(frozen=True)
class Edit:
    """Milliseconds of one edit."""

    results: float
    picture: float
    python: float


def number(page: Page, name: str) -> float:
    """A number that the page notes in its status line."""
    return float(page.get_attribute("#status", f"data-{name}") or 0)


def edit(page: Page, cell: str) -> Edit:
    """Writes a cell and waits for its results and its picture."""
    turn = number(page, "turn")
    page.fill("textarea", cell)
    while number(page, "turn") == turn:
        page.wait_for_timeout(5)
    page.wait_for_timeout(SETTLED)
    results, python = number(page, "results"), number(page, "answered")
    drawn = page.query_selector("article:last-child[data-picture]")
    if drawn is None:
        return Edit(results, results, python)
    page.wait_for_selector(f"#status[data-picture='{drawn.get_attribute('data-picture')}']", state="attached")
    return Edit(results, number(page, "pictures"), python + number(page, "drawn"))


def line(edits: list[Edit]) -> str:
    """Median (worst) of the results, the pictures and Python's part."""
    columns = ([getattr(each, name) for each in edits] for name in ("results", "picture", "python"))
    return "".join(f"{median(ms):7.0f} ({max(ms):3.0f})" for ms in columns)


def kind(browser: Browser, home: str, cells: list[str]) -> tuple[float, list[Edit]]:
    """A new page: the ms until Python is ready, and its edits."""
    page = browser.new_page()
    page.goto(home)
    page.wait_for_selector("#status[data-turn]", state="attached", timeout=300_000)
    page.wait_for_timeout(THINKS)
    out = number(page, "ready"), [edit(page, cell) for cell in cells]
    page.close()
    return out


def main(folder: Path, pages: int, only: str) -> None:
    """Serves the folder, and edits the first cell of its page."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ready = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        columns = "".join(f"{name:>13}" for name in ("results", "picture", "Python"))
        print(f"{'':18}{'first:':>8}{columns[8:]}{'later:':>8}{columns[8:]}   load")
        for name, cells in EDITS.items():
            if only not in name:
                continue
            found = [kind(browser, f"http://127.0.0.1:{server.server_port}/", cells) for _ in range(pages)]
            ready += [ms for ms, _ in found]
            later = [each for _, edits in found for each in edits[1:]]
            print(f"{name:18}{line([edits[0] for _, edits in found])}{line(later)}   {os.getloadavg()[0]:.1f}", flush=True)
        browser.close()
    print(f"Python ready after {median(ready):.0f} ms ({max(ready):.0f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Times edits of the playground.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/playground"))
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--only", default="", help="kinds of cells with this in their names")
    given = parser.parse_args()
    main(given.folder, given.pages, given.only)
