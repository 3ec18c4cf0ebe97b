"""The search of the documentation in a page opened as a file: the worker's script runs in a frame."""

import shutil
from pathlib import Path

from tests import needs

ROOT = Path(__file__).resolve().parents[1]
# Answers a message with what it imported; as the theme's worker, it awaits the import of the first message.
WORKER = """
let index;
self.addEventListener("message", async ({ data }) => {
  if (data === "setup") { await importScripts("index.js"); index = self.found; }
  self.postMessage(`${data} ${index.length}`);
});
"""
PAGE = """<!DOCTYPE html><title>t</title><script src="iframe-worker.js"></script><script>
addEventListener("DOMContentLoaded", () => {
  const worker = new Worker("worker.js");
  window.heard = [];
  worker.addEventListener("message", ({ data }) => heard.push(data));
  for (const each of ["setup", "query"]) worker.postMessage(each); // the second before the first is done
});
</script>"""


def test_a_page_opened_as_a_file_has_a_worker(tmp_path):
    sync_api = needs.module("playwright.sync_api")
    program = needs.browser()
    shutil.copy(ROOT / "docs" / "iframe-worker.js", tmp_path)
    for name, text in {"worker.js": WORKER, "index.js": "self.found = [1, 2, 3];", "page.html": PAGE}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox", "--disable-gpu"])
        page = browser.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        page.wait_for_function("heard.length === 2", timeout=10_000)
        assert page.evaluate("heard") == ["setup 3", "query 3"]
        browser.close()


def test_the_site_uses_it_and_fetches_nothing():
    config = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    assert "polyfills: [iframe-worker.js]" in config and "\n  - offline\n" in config
    assert "http" not in (ROOT / "docs" / "iframe-worker.js").read_text(encoding="utf-8")
