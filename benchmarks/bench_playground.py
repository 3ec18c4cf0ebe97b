"""Times edits of the built playground in Chromium: from the input to the frame with its results, and its picture.

    make playground
    python benchmarks/bench_playground.py [build/playground]

Needs the extra `browser` and Chromium. Prints, for each kind of cell, the milliseconds of several edits: the results on
the screen / their pictures on the screen. The page notes both in its status line. Rendering is by software.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

EDITS = {
    "divide": [f"Layout((4, 8), (8, 1)).zipped_divide((2, {n}))" for n in (1, 2, 4, 8)],
    "prove": [f"M = dim('M', multiple_of={n})\nprove(Layout((M, 8), (8, 1)), Layout((M, 8)))" for n in (64, 32, 16, 8)],
    "64 x 64 offsets": [f"Layout((64, {n}), ({n}, 1))" for n in (64, 63, 62, 61, 60)],
    "svg of 4 x 8": [f"Layout((4, {n}), ({n}, 1)).svg()" for n in (8, 9, 10, 11, 12)],
    "svg of 16 x 16": [f"Layout((16, {n}), ({n}, 1)).svg()" for n in (16, 17, 18, 19, 20)],
    "svg of 64 x 64": [f"Layout((64, {n}), ({n}, 1)).svg()" for n in (64, 63, 62, 61, 60)],
    "64 x 64 in tiles": [f"Layout((64, {n})).zipped_divide((8, 8)).svg(divided='zipped')" for n in (64, 56, 48, 40)],
    "a wgmma": [f"wgmma({n})" for n in (64, 72, 80, 88, 96)],
    "a fragment": [f"fragment_svg(wgmma({n}), 'C')" for n in (8, 16, 24, 32, 64)],
}


SETTLED = 100  # ms: a cell of two lines is two edits


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server without a log."""

    def log_message(self, *_: Any) -> None:
        """Says nothing."""


def edit(page: Any, cell: str) -> str:
    """Writes a cell and waits: "results" or "results/picture" in milliseconds."""
    turn = int(page.get_attribute("#status", "data-turn"))
    page.fill("textarea", cell)
    while int(page.get_attribute("#status", "data-turn")) == turn:
        page.wait_for_timeout(5)
    page.wait_for_timeout(SETTLED)
    took = f"{float(page.get_attribute('#status', 'data-results')):.0f}"
    drawn = page.query_selector("article:last-child[data-picture]")
    if drawn is None:
        return took
    number = drawn.get_attribute("data-picture")
    page.wait_for_selector(f"#status[data-picture='{number}']", state="attached")
    return f"{took}/{float(page.get_attribute('#status', 'data-pictures')):.0f}"


def main(folder: Path) -> None:
    """Serves the folder, and edits the first cell of its page."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/")
        page.wait_for_selector("#status[data-turn]", state="attached", timeout=300_000)
        print(f"Python ready after {float(page.get_attribute('#status', 'data-ready') or 0):.0f} ms")
        for name, cells in EDITS.items():
            print(f"{name:18}" + " ".join(f"{edit(page, cell):>9}" for cell in cells), flush=True)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "build/playground"))
