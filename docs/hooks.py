"""mkdocs hooks: pages through `docs.fences`, and pages for notebooks and programs."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

from docs import chapters, fences, percent, reference, tables  # noqa: E402

PROGRAMS = [path for folder in ("layouts", "atoms", "kernels") for path in sorted((ROOT / folder).glob("*.py"))]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.py"))


def on_files(files: Files, config: Any) -> Files:
    """Adds a page for each notebook, program, and part of a long file."""
    for book in chapters.BOOKS:
        for address, text in chapters.chapters(book).items():
            files.append(File.generated(config, address, content=text))
    for path in NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{path.stem}.md", content=f"{path.name}\n"))
    for path in PROGRAMS:
        name = path.relative_to(ROOT).as_posix()
        said = tables.docstring(path).partition("\n")[0]
        text = f"# {name}\n\n{said}\n\n```python\n{path.read_text(encoding='utf-8').rstrip()}\n```\n"
        files.append(File.generated(config, tables.source_page(name), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Makes the pictures and tables of a page. A picture is a file, named by the hash of its content."""

    def keep(svg: str) -> str:
        uri = f"pictures/{hashlib.sha256(svg.encode()).hexdigest()[:16]}.svg"
        if files.get_file_from_path(uri) is None:
            files.append(File.generated(config, uri, content=svg))
        return get_relative_url(uri, page.url)

    source = page.file.src_uri
    if source.startswith("notebooks/"):
        return percent.page(ROOT / source.replace(".md", ".py"), keep)
    if source.startswith(("programs/", *(f"{book}/" for book in chapters.BOOKS))):
        return markdown
    return reference.expanded(fences.render(markdown, keep))
