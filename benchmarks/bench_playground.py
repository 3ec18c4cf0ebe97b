"""Times edits of the built playground in Chromium.

Time counts from the input to the frame with its results, and its picture.

    make playground
    python benchmarks/bench_playground.py [build/playground] [--pages 5] [--only "a wgmma"]

Needs the extra `browser` and Chromium, which renders by software; Linux for the CPU time. Each kind of cell gets new
pages, and the first edit waits until they have warmed up. Prints first and later edits apart, as median (worst) in ms:

results  from the edit until they are on the screen
picture  until it is
CPU      time of the browser's threads, without that of other processes: it decides on a busy machine
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import http.server
import os
import shutil
import threading
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

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
    "a tiled copy": [
        f"make_tiled_copy(universal_copy(128, 'bf16'), Layout((16, {n}), ({n}, 1)), Layout((1, 8)))"
        for n in (8, 4, 2, 1)
    ],
    "a tcgen05 mma": [f"tcgen05_mma('f16', 128, {n}, 'bf16')" for n in range(80, 208, 16)],
}
SETTLED = 100  # ms between edits
WARM = 5000  # ms that the first edit waits at most for the page's warm-up
# Writes a cell as a keystroke does, and waits until the page notes its results and its picture.
EDIT = """async (cell) => {
  const [status, area] = ["#status", "textarea"].map((name) => document.querySelector(name)), { turn } = status.dataset;
  const noted = (what) => new Promise((resolve) => {
    const look = () => what() && (watch.disconnect(), resolve());
    const watch = new MutationObserver(look);
    watch.observe(status, { attributes: true });
    look();
  });
  area.value = cell;
  area.dispatchEvent(new Event("input", { bubbles: true }));
  await noted(() => status.dataset.turn !== turn);
  const { picture } = document.querySelector("article:last-child").dataset;
  if (picture) await noted(() => status.dataset.picture === picture);
  return { ...status.dataset, drew: Boolean(picture) };
}"""


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A server without a log."""

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@dataclass(frozen=True)
class Edit:
    """Milliseconds of one edit."""

    results: float
    picture: float
    cpu: float


def processes() -> list[Path]:
    """The folders in /proc of this process's descendants."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(stat.parent.name)] = int(stat.read_text().rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for each in found:
        found += [pid for pid, parent in parents.items() if parent == each]
    return [Path("/proc") / str(pid) for pid in found[1:]]


def threads() -> list[Path]:
    """The files with the CPU time of the browser's threads; background compilers are left out."""
    out = []
    for process in processes():
        with contextlib.suppress(OSError):
            if any(kind in (process / "cmdline").read_bytes() for kind in (b"--type=renderer", b"--type=gpu-process")):
                for thread in (process / "task").iterdir():
                    if not (thread / "comm").read_text().startswith("ThreadPool"):
                        out.append(thread / "schedstat")
    return out


def cpu_ms(files: list[Path]) -> float:
    """Milliseconds that the threads have run."""
    return sum(int(file.read_text().split()[0]) for file in files if file.exists()) / 1e6


def edit(page: Page, cell: str, files: list[Path]) -> Edit:
    """Writes a cell and waits for its results and its picture."""
    before = cpu_ms(files)
    found = page.evaluate(EDIT, cell)
    spent = cpu_ms(files) - before
    results = float(found["results"])
    return Edit(results, float(found["pictures"]) if found["drew"] else results, spent)


def line(edits: list[Edit]) -> str:
    """Median (worst) of the results, the pictures and the CPU time."""
    columns = ([getattr(each, name) for each in edits] for name in ("results", "picture", "cpu"))
    return "".join(f"{median(ms):7.0f} ({max(ms):3.0f})" for ms in columns)


def kind(browser: Browser, home: str, cells: list[str]) -> tuple[float, list[Edit]]:
    """A new page: the ms until Python is ready, and its edits."""
    page = browser.new_page()
    page.goto(home)
    page.wait_for_selector("#status[data-turn]", state="attached", timeout=300_000)
    ready = float(page.get_attribute("#status", "data-ready") or 0)
    with contextlib.suppress(TimeoutError):
        page.wait_for_selector("#status[data-warm]", state="attached", timeout=WARM)
    files, edits = threads(), []
    for cell in cells:
        edits.append(edit(page, cell, files))
        page.wait_for_timeout(SETTLED)
    page.close()
    return ready, edits


def main(folder: Path, pages: int, only: str) -> None:
    """Serves the folder, and edits the first cell of its page."""
    program = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(folder)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    ready = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        columns = "".join(f"{name:>13}" for name in ("results", "picture", "CPU"))
        print(f"{'':18}{'first edit':>39}{'later edits':>39}\n{'':18}{columns}{columns}   load")
        for name, cells in EDITS.items():
            if only not in name:
                continue
            found = [kind(browser, f"http://127.0.0.1:{server.server_port}/", cells) for _ in range(pages)]
            ready += [ms for ms, _ in found]
            later = [each for _, edits in found for each in edits[1:]]
            print(
                f"{name:18}{line([edits[0] for _, edits in found])}{line(later)}   {os.getloadavg()[0]:.1f}", flush=True
            )
        browser.close()
    print(f"Python ready after {median(ready):.0f} ms ({max(ready):.0f})")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Times edits of the playground.")
    parser.add_argument("folder", type=Path, nargs="?", default=Path("build/playground"))
    parser.add_argument("--pages", type=int, default=5)
    parser.add_argument("--only", default="", help="kinds of cells with this in their names")
    given = parser.parse_args()
    main(given.folder, given.pages, given.only)
